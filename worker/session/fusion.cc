#include "worker/session/fusion.h"

#include <cstring>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "worker/rounds/narrowing.h"

namespace warren::worker {
namespace {

struct Part {
  const void* input = nullptr;
  void* output = nullptr;
  std::uint64_t bytes = 0;
  std::unique_ptr<Call> staged;  // of which these are the copies; null: they are the program's
};

// The parts' inputs one after the other, and their results likewise.
class FusedCall final : public CallBuffers {
 public:
  FusedCall(std::vector<Part> parts, std::shared_ptr<CopyMemory> memory, CopyMemory::Taken taken)
      : parts_(std::move(parts)), memory_(std::move(memory)), taken_(std::move(taken)) {}
  ~FusedCall() override { memory_->give_back(std::move(taken_)); }
  FusedCall(const FusedCall&) = delete;
  FusedCall& operator=(const FusedCall&) = delete;

  // As the call's prepare function.
  std::int32_t fill() {
    std::byte* at = taken_.data.get();
    for (const Part& part : parts_) {
      if (part.staged != nullptr && part.staged->spec.prepare != nullptr) {
        const std::int32_t failed = part.staged->spec.prepare(part.staged->spec.prepare_context);
        status_ = part.staged->buffers->filled();
        if (failed != 0 || !status_.ok()) return failed;
      }
      if (part.bytes != 0) std::memcpy(at, part.input, part.bytes);
      at += part.bytes;
    }
    return 0;
  }
  [[nodiscard]] Status filled() const override { return status_; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override {
    const std::byte* at = taken_.data.get();
    for (const Part& part : parts_) {
      if (part.bytes != 0) std::memcpy(part.output, at, part.bytes);
      at += part.bytes;
      if (part.staged == nullptr || !part.staged->buffers->delivers()) continue;
      if (Status status = part.staged->buffers->deliver(); !status.ok()) return status;
    }
    return {};
  }

 private:
  const std::vector<Part> parts_;
  const std::shared_ptr<CopyMemory> memory_;
  CopyMemory::Taken taken_;
  Status status_;
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
  on_gpu_ = {};
  for (const auto& part : parts_) part->in_batch.store(false, std::memory_order_relaxed);
  return std::exchange(parts_, {});
}

Result<std::shared_ptr<Call>> Batch::close(const std::shared_ptr<CopyMemory>& memory, Staging* staging,
                                           std::vector<std::shared_ptr<Call>>& lost) {
  const std::uint64_t elements = elements_, bytes = bytes_;
  PartsOnGpu on_gpu = std::exchange(on_gpu_, {});
  const bool stages = !on_gpu.empty();
  lost = parts_;
  std::vector<std::shared_ptr<Call>> parts = take();
  const auto sent = [&](std::shared_ptr<Call> call) -> Result<std::shared_ptr<Call>> {
    if (call->spec.wire != DataType{}) {
      if (const Status narrowed = narrow(*call, shape_, memory); !narrowed.ok()) return narrowed;
    }
    lost.clear();
    return call;
  };
  if (parts.size() == 1) {
    if (stages) {
      if (const Status staged = staging->stage_part(on_gpu, 0, *parts.front(), shape_, true); !staged.ok())
        return staged;
    }
    return sent(parts.front());
  }
  const auto failed = [&](const Status& why) {
    return why.because_of_this("cannot put together " + std::to_string(lost.size()) + " allreduces");
  };
  auto call = std::make_shared<Call>();
  call->spec = parts.front()->spec;
  call->spec.count = elements;
  call->spec.parts = hash_parts(parts);
  bool packed = false;
  if (stages) {
    const auto made = staging->pack(on_gpu, parts, shape_, *call);
    if (!made.ok()) return failed(made.status());
    packed = made.value();
  }
  if (!packed) {
    std::vector<Part> alone;
    for (std::size_t i = 0; i < parts.size(); i++) {
      const CallSpec& spec = parts[i]->spec;
      Part& one = alone.emplace_back(Part{spec.input, spec.output, spec.count * element_bytes(spec), nullptr});
      if (!stages) continue;
      auto staged = std::make_unique<Call>();
      staged->spec = spec;
      staged->spec.wire = {};  // that is of all of them together
      if (const Status status = staging->stage_part(on_gpu, i, *staged, shape_, false); !status.ok()) {
        return failed(status);
      }
      if (staged->buffers == nullptr) continue;
      one.input = staged->spec.input;
      one.output = staged->spec.output;
      one.staged = std::move(staged);
    }
    auto taken = memory->take(bytes);
    if (!taken.ok()) return failed(taken.status());
    call->spec.input = call->spec.output = taken.value().data.get();
    auto fused = std::make_unique<FusedCall>(std::move(alone), memory, std::move(taken).value());
    call->spec.prepare = [](void* context) { return static_cast<FusedCall*>(context)->fill(); };
    call->spec.prepare_context = fused.get();
    call->buffers = std::move(fused);
  }
  auto made = sent(call);
  if (made.ok()) call->parts = std::move(parts);
  return made;
}

}  // namespace warren::worker
