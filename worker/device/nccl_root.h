// The process that makes an epoch's NCCL id and is the meeting place of its communicator: one of its own, since NCCL
// keeps a thread and a socket for each (docs/decisions/0024-nccl.md). It ends with this object, and with this process,
// however that ends.
#pragma once

#include <sys/types.h>
#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "recovery/result.h"
#include "storage/segment_memory.h"
#include "worker/exchange.h"

namespace warren::worker {

// Beside libwarren.so.
inline constexpr const char* kNcclRoot = "warren_nccl_root";

class NcclRoot {
 public:
  // `program`: cuda/nccl_root.cc; `library`: what it loads, which implements device_table.h. kUnavailable: it does not
  // start. Nothing here waits.
  [[nodiscard]] static Result<std::unique_ptr<NcclRoot>> start(const std::string& program, const std::string& library,
                                                               std::int64_t timeout_ms);
  ~NcclRoot();
  NcclRoot(const NcclRoot&) = delete;
  NcclRoot& operator=(const NcclRoot&) = delete;

  // Nothing: not yet. kUnavailable: it has ended. kTimeout: it says nothing.
  [[nodiscard]] Result<std::optional<Exchange::Word::Id>> id();
  [[nodiscard]] pid_t process() const { return process_; }

 private:
  NcclRoot(std::string program, pid_t process, OwnedFd lives, OwnedFd says, std::int64_t timeout_ms);

  const std::string program_;
  const pid_t process_;
  OwnedFd lives_;  // closed: it ends
  const OwnedFd says_;
  const std::chrono::steady_clock::time_point until_;
  std::size_t read_ = 0;
  Exchange::Word::Id id_{};
};

}  // namespace warren::worker
