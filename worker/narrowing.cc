#include "worker/narrowing.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "recovery/check.h"
#include "worker/kernels/reduce.h"

namespace warren::worker {
namespace {

class NarrowedCall final : public CallBuffers {
 public:
  NarrowedCall(const CallSpec& spec, std::unique_ptr<CallBuffers> around, std::shared_ptr<CopyMemory> memory,
               CopyMemory::Taken taken, const Reducer& convert)
      : prepare_(spec.prepare),
        prepare_context_(spec.prepare_context),
        around_(std::move(around)),
        memory_(std::move(memory)),
        taken_(std::move(taken)),
        convert_(convert) {}
  ~NarrowedCall() override { memory_->give_back(std::move(taken_)); }
  NarrowedCall(const NarrowedCall&) = delete;
  NarrowedCall& operator=(const NarrowedCall&) = delete;

  // As the call's prepare function, with what filled the wide input before it.
  void fill() {
    if (prepare_ != nullptr) prepare_(prepare_context_);
    if (filled().ok()) convert_.copy(input.narrow, Form::kValue, input.wide, Form::kPartial, input.elements, false);
  }
  [[nodiscard]] Status filled() const override { return around_ == nullptr ? Status() : around_->filled(); }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override {
    convert_.copy(output.wide, Form::kPartial, output.narrow, Form::kValue, output.elements, false);
    return around_ != nullptr && around_->delivers() ? around_->deliver() : Status();
  }

  struct Buffer {
    std::byte* wide = nullptr;
    std::byte* narrow = nullptr;
    std::uint64_t elements = 0;
  };
  Buffer input, output;

 private:
  void (*const prepare_)(void* context);
  void* const prepare_context_;
  const std::unique_ptr<CallBuffers> around_;
  const std::shared_ptr<CopyMemory> memory_;
  CopyMemory::Taken taken_;
  const Reducer convert_;
};

}  // namespace

Status narrow(Call& call, const GroupShape& group, const std::shared_ptr<CopyMemory>& memory) {
  CallSpec& spec = call.spec;
  WARREN_CHECK(spec.type == DataType::kF32, "validated: f32 as f16 or bf16");
  const BufferBytes wide = buffer_bytes(spec, group);
  const NarrowCopies copies = narrow_copies(spec, group);
  auto taken = memory->take(copies.bytes);
  if (!taken.ok()) return taken.status().because_of_this(std::string(to_string(spec.collective)));
  const auto convert = Reducer::make(spec.wire, ReduceOp::kSum, 1);
  WARREN_CHECK(convert.ok(), "16-bit floats are added");
  std::byte* const base = taken.value().data.get();
  auto narrowed =
      std::make_unique<NarrowedCall>(spec, std::move(call.buffers), memory, std::move(taken).value(), convert.value());
  narrowed->input = {static_cast<std::byte*>(const_cast<void*>(spec.input)), base + copies.input_at,
                     wide.input / sizeof(float)};
  narrowed->output = {static_cast<std::byte*>(spec.output), base + copies.output_at, wide.output / sizeof(float)};
  spec.type = narrow_type(spec.wire);
  spec.input = narrowed->input.narrow;
  spec.output = narrowed->output.narrow;
  spec.prepare = [](void* context) { static_cast<NarrowedCall*>(context)->fill(); };
  spec.prepare_context = narrowed.get();
  call.buffers = std::move(narrowed);
  return {};
}

}  // namespace warren::worker
