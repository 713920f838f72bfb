// Calls on f32 whose values travel as f16 or bf16 (CallSpec::wire). The engine works on a copy of the narrower type: it
// is made when the round is about to read its input, and widened into the output when the round is over. So it is a
// round of 16-bit elements like any other, combined in f32, with its log and its recovery; the program's input is not
// touched before the result comes, and every rank keeps the values that the others have got, its own ones too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "recovery/result.h"
#include "worker/call.h"

namespace warren::worker {

// Memory for the copies, kept for the next call: faulting it in anew costs as much as narrowing. Any thread may call.
class NarrowMemory {
 public:
  // Kept while no call uses them.
  static constexpr std::size_t kMostIdleBytes = std::size_t{256} << 20;

  struct Free {
    void operator()(std::byte* data) const;
  };
  using Block = std::unique_ptr<std::byte, Free>;
  struct Taken {
    Block data;
    std::size_t bytes = 0;
  };
  // At least `bytes`, aligned to 64, with anything in it. kExhausted: the machine has no more.
  [[nodiscard]] Result<Taken> take(std::size_t bytes);
  void give_back(Taken taken);
  [[nodiscard]] std::size_t idle_bytes() const;

 private:
  mutable std::mutex mutex_;
  std::size_t idle_bytes_ = 0;
  std::multimap<std::size_t, Block> idle_;  // by size
};

// Gives a validated call that has a wire type, and whose buffers are memory of the CPU, such a copy, and itself as
// spec.prepare; what its buffers were before (Staging) stays in force around it. kExhausted: no memory.
[[nodiscard]] Status narrow(Call& call, const GroupShape& group, const std::shared_ptr<NarrowMemory>& memory);

}  // namespace warren::worker
