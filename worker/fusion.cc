#include "worker/fusion.h"

#include <cstring>
#include <string>
#include <utility>

#include "recovery/check.h"
#include "worker/narrowing.h"

namespace warren::worker {
namespace {

// The parts' inputs one after the other, and their results likewise.
class FusedCall final : public CallBuffers {
 public:
  FusedCall(const std::vector<std::shared_ptr<Call>>& parts, std::shared_ptr<CopyMemory> memory,
            CopyMemory::Taken taken)
      : memory_(std::move(memory)), taken_(std::move(taken)) {
    for (const auto& part : parts) {
      places_.push_back({part->spec.input, part->spec.output, part->spec.count * element_bytes(part->spec)});
    }
  }
  ~FusedCall() override { memory_->give_back(std::move(taken_)); }
  FusedCall(const FusedCall&) = delete;
  FusedCall& operator=(const FusedCall&) = delete;

  // As the call's prepare function.
  void fill() {
    std::byte* at = taken_.data.get();
    for (const Part& part : places_) {
      if (part.bytes != 0) std::memcpy(at, part.input, part.bytes);
      at += part.bytes;
    }
  }
  [[nodiscard]] Status filled() const override { return {}; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override {
    const std::byte* at = taken_.data.get();
    for (const Part& part : places_) {
      if (part.bytes != 0) std::memcpy(part.output, at, part.bytes);
      at += part.bytes;
    }
    return {};
  }

 private:
  struct Part {
    const void* input = nullptr;
    void* output = nullptr;
    std::uint64_t bytes = 0;
  };
  std::vector<Part> places_;
  const std::shared_ptr<CopyMemory> memory_;
  CopyMemory::Taken taken_;
};

// FNV-1a over words: ranks that have put together other calls find out.
std::uint64_t hash_parts(const std::vector<std::shared_ptr<Call>>& parts) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const auto& part : parts) hash = (hash ^ part->spec.count) * 0x100000001b3u;
  return hash == 0 ? 1 : hash;
}

}  // namespace

bool Batch::takes(const Call& call, std::uint64_t most_bytes) {
  const CallSpec& spec = call.spec;
  return spec.collective == Collective::kAllreduce && spec.type != DataType::kCustom && spec.prepare == nullptr &&
         call.setup.empty() && call.buffers == nullptr && spec.count * element_bytes(spec) <= most_bytes;
}

bool Batch::fits(GroupId group, const Call& call, std::uint64_t most_bytes) const {
  const CallSpec& spec = call.spec;
  const CallSpec& first = parts_.front()->spec;
  return group == group_ && spec.type == first.type && spec.op == first.op && spec.wire == first.wire &&
         spec.algorithm == first.algorithm && parts_.size() < kMostParts &&
         spec.count * element_bytes(spec) <= most_bytes - bytes_;
}

void Batch::add(GroupId group, const GroupShape& shape, std::shared_ptr<Call> part) {
  WARREN_CHECK(parts_.empty() || group == group_, "a batch is of one group");
  group_ = group;
  shape_ = shape;
  elements_ += part->spec.count;
  bytes_ += part->spec.count * element_bytes(part->spec);
  part->in_batch.store(true, std::memory_order_relaxed);
  parts_.push_back(std::move(part));
}

std::vector<std::shared_ptr<Call>> Batch::take() {
  elements_ = bytes_ = 0;
  for (const auto& part : parts_) part->in_batch.store(false, std::memory_order_relaxed);
  return std::exchange(parts_, {});
}

Result<std::shared_ptr<Call>> Batch::close(const std::shared_ptr<CopyMemory>& memory,
                                           std::vector<std::shared_ptr<Call>>& lost) {
  const std::uint64_t elements = elements_, bytes = bytes_;
  lost = parts_;
  std::vector<std::shared_ptr<Call>> parts = take();
  const auto sent = [&](std::shared_ptr<Call> call) -> Result<std::shared_ptr<Call>> {
    if (call->spec.wire != DataType{}) {
      if (const Status narrowed = narrow(*call, shape_, memory); !narrowed.ok()) return narrowed;
    }
    lost.clear();
    return call;
  };
  if (parts.size() == 1) return sent(parts.front());
  auto taken = memory->take(bytes);
  if (!taken.ok()) {
    return taken.status().because_of_this("cannot put together " + std::to_string(lost.size()) + " allreduces");
  }
  auto call = std::make_shared<Call>();
  call->spec = parts.front()->spec;
  call->spec.count = elements;
  call->spec.parts = hash_parts(parts);
  call->spec.input = call->spec.output = taken.value().data.get();
  auto fused = std::make_unique<FusedCall>(parts, memory, std::move(taken).value());
  call->spec.prepare = [](void* context) { static_cast<FusedCall*>(context)->fill(); };
  call->spec.prepare_context = fused.get();
  call->buffers = std::move(fused);
  auto made = sent(call);
  if (made.ok()) call->parts = std::move(parts);
  return made;
}

}  // namespace warren::worker
