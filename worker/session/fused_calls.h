// Asynchronous allreduces that the program makes one after the other, and that become one round (fusion.h). A batch is
// sent in these cases:
//
// - A call does not fit.
// - The program makes any other call.
// - The program waits or asks for one of the parts.
//
// Threads: from the program's threads. Functions that take the lock are called under it, and may let go of it; the
// others take it themselves.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/device/staging.h"
#include "worker/life/life.h"
#include "worker/rounds/call.h"
#include "worker/schedule/schedule.h"
#include "worker/session/admission.h"
#include "worker/session/batches.h"
#include "worker/session/driver.h"
#include "worker/session/gpus.h"
#include "worker/session/lent_memory.h"
#include "worker/session/trace_file.h"
#include "worker/settings/settings.h"
#include "worker/system/copy_memory.h"

namespace warren::worker {

class FusedCalls {
 public:
  // `copies`: memory for calls that have a wire type. All others outlive this.
  FusedCalls(const Settings& settings, Driver& driver, Life& life, Gpus& gpus, LentMemory& lent, Batches& batches,
             Admission& admission, std::shared_ptr<CopyMemory> copies)
      : default_bytes_(settings.fusion_bytes),
        driver_(driver),
        life_(life),
        gpus_(gpus),
        lent_(lent),
        batches_(batches),
        admission_(admission),
        copies_(std::move(copies)) {}
  FusedCalls(const FusedCalls&) = delete;
  FusedCalls& operator=(const FusedCalls&) = delete;
  // Shows when a part is issued; outlives all calls. Before the first call.
  void use(TraceFile& trace) { trace_ = &trace; }

  // Puts asynchronous allreduces of this group together until end(). kInvalidArgument: another group's are, or the job
  // is in mode shrink.
  [[nodiscard]] Status begin(GroupId group);
  // Sends the batch, and puts no calls together from here on.
  void end();
  // Ends a fusion of this group, if there is one.
  void end(std::unique_lock<std::mutex>& lock, GroupId group);
  // A fusion of this group has begun. Under the lock.
  [[nodiscard]] bool fuses(GroupId group) const { return batches_.fuses(group); }
  // The most bytes of a batch, where the program does not say.
  [[nodiscard]] std::uint64_t default_bytes() const { return default_bytes_; }

  // Takes a validated asynchronous call, not staged. The call may be put together with those before and after it, up to
  // `most_bytes`.
  [[nodiscard]] Status submit(GroupId group, const GroupShape& shape, const std::shared_ptr<Call>& call,
                              std::uint64_t most_bytes);
  // Sends the batch.
  void send();
  void send(std::unique_lock<std::mutex>& lock);

 private:
  // Where the buffers of a part lie, and the point of the program's stream at which they are ready.
  struct OnGpu {
    std::optional<Staging::Lies> lies;  // none: no GPU is served
    std::unique_ptr<DeviceCopies::Event> ready;
  };
  [[nodiscard]] Result<OnGpu> find(const CallSpec& spec, const GroupShape& shape);
  [[nodiscard]] Status submit_alone(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape,
                                    const std::shared_ptr<Call>& call);
  [[nodiscard]] Status add(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape,
                           const std::shared_ptr<Call>& call, OnGpu on_gpu);
  [[nodiscard]] Engine& engine() { return life_.engine(); }

  const std::uint64_t default_bytes_;
  Driver& driver_;
  Life& life_;
  Gpus& gpus_;
  LentMemory& lent_;
  Batches& batches_;
  Admission& admission_;
  const std::shared_ptr<CopyMemory> copies_;
  TraceFile* trace_ = nullptr;  // null: nobody wants it
};

}  // namespace warren::worker
