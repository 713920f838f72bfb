// Memory for copies of a program's buffers (worker/rounds/narrowing.h, worker/session/fusion.h), kept for the next
// call: faulting it in anew costs as much as copying.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>

#include "recovery/base/result.h"

namespace warren::worker {

// Any thread may call.
class CopyMemory {
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

}  // namespace warren::worker
