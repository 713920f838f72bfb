// SIGTERM as a wish that a worker leaves, for workers that opt in (the setting on_sigterm).
#pragma once

#include <memory>

#include "recovery/base/result.h"

namespace warren::worker {

// While there is one in the process, SIGTERM is counted instead of ending it; what the program had made of it before
// the first is restored after the last. Threads: any.
class SigtermCount {
 public:
  // kUnavailable: the system refused.
  static Result<std::unique_ptr<SigtermCount>> take();
  ~SigtermCount();
  SigtermCount(const SigtermCount&) = delete;
  SigtermCount& operator=(const SigtermCount&) = delete;

  // How many have come since construction.
  [[nodiscard]] int count() const;

 private:
  explicit SigtermCount(int first) : first_(first) {}

  const int first_;
};

}  // namespace warren::worker
