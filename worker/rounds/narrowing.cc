#include "worker/rounds/narrowing.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "worker/kernels/reduce.h"

namespace warren::worker {
namespace {

// A buffer of the program and its copy, in shares that begin with an element each.
struct Buffer {
  std::byte* wide = nullptr;
  std::byte* narrow = nullptr;
  std::uint64_t shares = 0;
  std::uint64_t values = 0;  // of each
};

class Conversion {
 public:
  explicit Conversion(DataType type) : element_values_(element_values(type)), element_bytes_(element_bytes(type)) {
    auto made = Reducer::make(type, ReduceOp::kSum, 1);
    WARREN_CHECK(made.ok(), "what f32 travels as is added");
    reducer_ = std::move(made).value();
  }

  void narrow(const Buffer& buffer) const {
    each_share(buffer, [this](std::byte* copy, std::byte* wide, std::uint64_t whole, std::size_t rest) {
      reducer_.copy(copy, Form::kValue, wide, Form::kPartial, whole, false);
      if (rest == 0) return;
      float filled_up[kI8BlockValues] = {};
      std::memcpy(filled_up, wide + whole * element_values_ * sizeof(float), rest * sizeof(float));
      reducer_.copy(copy + whole * element_bytes_, Form::kValue, filled_up, Form::kPartial, 1, false);
    });
  }
  void widen(const Buffer& buffer) const {
    each_share(buffer, [this](std::byte* copy, std::byte* wide, std::uint64_t whole, std::size_t rest) {
      reducer_.copy(wide, Form::kPartial, copy, Form::kValue, whole, false);
      if (rest == 0) return;
      float filled_up[kI8BlockValues];
      reducer_.copy(filled_up, Form::kPartial, copy + whole * element_bytes_, Form::kValue, 1, false);
      std::memcpy(wide + whole * element_values_ * sizeof(float), filled_up, rest * sizeof(float));
    });
  }

 private:
  // `whole`: elements all of whose values are there; `rest`: values of one more.
  template <class Do>
  void each_share(const Buffer& buffer, Do convert) const {
    const std::uint64_t whole = buffer.values / element_values_;
    const auto rest = static_cast<std::size_t>(buffer.values % element_values_);
    if (rest == 0) return convert(buffer.narrow, buffer.wide, buffer.shares * whole, rest);
    for (std::uint64_t share = 0; share < buffer.shares; share++) {
      convert(buffer.narrow + share * (whole + 1) * element_bytes_, buffer.wide + share * buffer.values * sizeof(float),
              whole, rest);
    }
  }

  const std::size_t element_values_, element_bytes_;
  Reducer reducer_;
};

class NarrowedCall final : public CallBuffers {
 public:
  NarrowedCall(const CallSpec& spec, std::unique_ptr<CallBuffers> around, std::shared_ptr<CopyMemory> memory,
               CopyMemory::Taken taken)
      : prepare_(spec.prepare),
        prepare_context_(spec.prepare_context),
        around_(std::move(around)),
        memory_(std::move(memory)),
        taken_(std::move(taken)),
        conversion_(narrow_type(spec.wire)) {}
  ~NarrowedCall() override { memory_->give_back(std::move(taken_)); }
  NarrowedCall(const NarrowedCall&) = delete;
  NarrowedCall& operator=(const NarrowedCall&) = delete;

  // As the call's prepare function, with what filled the wide input before it.
  std::int32_t fill() {
    const std::int32_t failed = prepare_ == nullptr ? 0 : prepare_(prepare_context_);
    if (failed == 0 && filled().ok()) conversion_.narrow(input);
    return failed;
  }
  [[nodiscard]] Status filled() const override { return around_ == nullptr ? Status() : around_->filled(); }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override {
    conversion_.widen(output);
    return around_ != nullptr && around_->delivers() ? around_->deliver() : Status();
  }

  Buffer input, output;

 private:
  const PrepareInput prepare_;
  void* const prepare_context_;
  const std::unique_ptr<CallBuffers> around_;
  const std::shared_ptr<CopyMemory> memory_;
  CopyMemory::Taken taken_;
  const Conversion conversion_;
};

}  // namespace

Status narrow(Call& call, const GroupShape& group, const std::shared_ptr<CopyMemory>& memory) {
  CallSpec& spec = call.spec;
  WARREN_CHECK(spec.type == DataType::kF32, "validated: a wire type is for f32");
  const BufferBytes wide = buffer_bytes(spec, group);
  const NarrowCopies copies = narrow_copies(spec, group);
  auto taken = memory->take(copies.bytes);
  if (!taken.ok()) return taken.status().because_of_this(std::string(to_string(spec.collective)));
  std::byte* const base = taken.value().data.get();
  const auto buffer = [&](void* data, std::uint64_t wide_bytes, std::uint64_t copy_at) {
    const std::uint64_t shares = spec.count == 0 ? 0 : wide_bytes / sizeof(float) / spec.count;
    return Buffer{static_cast<std::byte*>(data), base + copy_at, shares, spec.count};
  };
  auto narrowed = std::make_unique<NarrowedCall>(spec, std::move(call.buffers), memory, std::move(taken).value());
  narrowed->input = buffer(const_cast<void*>(spec.input), wide.input, copies.input_at);
  narrowed->output = buffer(spec.output, wide.output, copies.output_at);
  count_narrow(spec);
  spec.input = narrowed->input.narrow;
  spec.output = narrowed->output.narrow;
  spec.prepare = [](void* context) { return static_cast<NarrowedCall*>(context)->fill(); };
  spec.prepare_context = narrowed.get();
  call.buffers = std::move(narrowed);
  return {};
}

}  // namespace warren::worker
