// The process that makes a generation's NCCL id and is the meeting place of its communicator: one of its own, since
// NCCL keeps a thread and a socket for each (docs/decisions/0024-nccl.md). It ends with this object, and with this
// process, however that ends. It is a child as others: the program's SIGCHLD tells of its end, and wait() for any child
// collects it.
#pragma once

#include <sys/types.h>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "recovery/base/result.h"
#include "storage/segment_memory.h"
#include "worker/rounds/gpu_exchange.h"

namespace warren::worker {

// NCCL as this process has it.
struct NcclLibrary {
  std::int32_t version = 0;  // as NCCL counts, 22809
  std::string file;          // empty: it is of none
};

// Beside libwarren.so.
inline constexpr const char* kNcclRoot = "warren_nccl_root";

class NcclRoot {
 public:
  // `program`: cuda/nccl_root.cc; `library`: what it loads, which implements device_table.h, with this NCCL and no
  // other. kUnavailable: it does not start. Waits until the system has started it, and for nothing that it does.
  [[nodiscard]] static Result<std::unique_ptr<NcclRoot>> start(const std::string& program, const std::string& library,
                                                               const NcclLibrary& nccl, std::int64_t timeout_ms);
  // Waits for nothing.
  ~NcclRoot();
  NcclRoot(const NcclRoot&) = delete;
  NcclRoot& operator=(const NcclRoot&) = delete;

  // Nothing: not yet. kUnavailable: it has ended. kTimeout: it says nothing.
  [[nodiscard]] Result<std::optional<GpuExchange::Word::Id>> id();
  [[nodiscard]] pid_t process() const { return process_; }

 private:
  NcclRoot(std::string program, pid_t process, OwnedFd is, OwnedFd lives, OwnedFd says, std::int64_t timeout_ms);

  const std::string program_;
  const pid_t process_;
  OwnedFd is_;     // the process, also where the program has collected it, and its number is another one's
  OwnedFd lives_;  // closed: it ends
  const OwnedFd says_;
  const std::chrono::steady_clock::time_point until_;
  std::size_t read_ = 0;
  GpuExchange::Word::Id id_{};
};

}  // namespace warren::worker
