// Combining steps whose operands the CPU cannot read, what is sent from there, and what is to lie there, too: they are
// carried out outside of the executor, which goes on meanwhile, and end at some later time
// (docs/decisions/0023-device-loans.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "worker/kernels/form.h"
#include "worker/kernels/reduce.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class GpuWork {
 public:
  struct Operand {
    const std::byte* at = nullptr;
    bool on_gpu = false;
    std::shared_ptr<const void> keeper = nullptr;  // it stays there
  };
  struct Work {
    // In the order of the bracketing. What is on a GPU are values; of those on the CPU the first one alone may have an
    // address, where all others are on the GPU. One that is alone is only to be brought to the CPU, or is what is made;
    // from the CPU, pinned there, it is only to be brought to where peers read what is made.
    std::vector<Operand> operands;
    bool copies = false;             // the latter two: of any type, and untouched
    Form first_form = Form::kValue;  // of the first operand: a partial result only where that is on the CPU
    Form made_form = Form::kValue;   // which is finished; or it is not
    std::size_t first_bytes = 0, made_bytes = 0;
    Bracketing bracketing = Bracketing::kChain;
    DataType type{};
    ReduceOp op{};
    std::uint64_t count = 0;
    std::size_t bytes = 0;           // of an operand that is a value
    std::uint32_t contributors = 0;  // that an average divides by
    bool stays = false;              // it is wanted on the GPU, too, and waits for room there
  };
  // What became of it, in memory of the CPU, as long as `memory` lives.
  struct Done {
    std::uint64_t id = 0;
    const std::byte* made = nullptr;           // what was asked for; null: it is still to be made
    std::vector<const std::byte*> operands{};  // then: those that were on the GPU; null: where it was
    std::shared_ptr<const void> memory = nullptr;
    MadeOnGpu on_gpu{};                                // where peers may read it, too; nothing: there was no room
    std::shared_ptr<const FinalOnGpu> here = nullptr;  // that, as peers find it: it keeps no place; null: nowhere
    std::shared_ptr<const void> stays = nullptr;       // where it stays there: for as long as this lives
  };

  virtual ~GpuWork() = default;
  // Returns its number, which no other has.
  [[nodiscard]] virtual std::uint64_t begin(Work work) = 0;
  // Something was begun that is not done, or has failed, which its owner hears.
  [[nodiscard]] virtual bool busy() const = 0;
  // One at a time, whatever became of who has begun it.
  [[nodiscard]] virtual std::optional<Done> take_done() = 0;
};

}  // namespace warren::worker
