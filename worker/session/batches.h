// The fusion that a program has begun, and the batch of its calls that is not yet sent (worker/session/fusion.h).
//
// One thread at a time sends the batch, in its turn. That thread may let go of the session's lock, and each other call
// of the program waits for the end of the turn. So the rounds have the same order on all ranks.
//
// Threads: all functions are called under the session's lock.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/device/staging.h"
#include "worker/rounds/call.h"
#include "worker/schedule/schedule.h"
#include "worker/session/fusion.h"

namespace warren::worker {

class Batches {
 public:
  Batches() = default;
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  // Puts calls of this group together until end(). kInvalidArgument: a fusion has begun and has not ended.
  [[nodiscard]] Status begin(GroupId group);
  void end() { fusing_.reset(); }
  // A fusion has begun, of any group.
  [[nodiscard]] bool fuses() const { return fusing_.has_value(); }
  [[nodiscard]] bool fuses(GroupId group) const { return fusing_ == group; }
  // Whether the program may make this call now. Other ranks may not make a message or a call of another group: between
  // begin() and end() it would end the batch at some ranks alone, and is kInvalidArgument.
  [[nodiscard]] Status may_call(GroupId group, const Call& call) const;

  // Calls were put together that the engine does not have yet.
  [[nodiscard]] bool has_unsent() const { return !batch_.empty() || sends_; }
  // The call, which Batch::takes(), may be the next part. Otherwise the batch is to be sent first.
  [[nodiscard]] bool fits(GroupId group, const Call& call, std::uint64_t most_bytes) const {
    return batch_.empty() || batch_.fits(group, call, most_bytes);
  }
  // Adds a part. `on_gpu`: where its buffers lie, if GPUs are served; `after`: of Staging::mark().
  void add(GroupId group, const GroupShape& shape, const std::shared_ptr<Call>& call,
           const std::optional<Staging::Lies>& on_gpu, std::unique_ptr<DeviceCopies::Event> after);
  [[nodiscard]] bool full(std::uint64_t most_bytes) const { return batch_.full(most_bytes); }
  // Ends the batch unsent, and returns its parts.
  [[nodiscard]] std::vector<std::shared_ptr<Call>> take() { return batch_.take(); }

  // A thread's turn to send the batch; it ends with this object, which takes the lock again if an exception has left it
  // free.
  class Turn {
   public:
    Turn(Batches& batches, std::unique_lock<std::mutex>& lock);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    // The batch, which is the thread's alone from here on: Batch::close() may wait for a GPU, without the lock.
    [[nodiscard]] Batch take() { return std::exchange(batches_.batch_, {}); }

   private:
    Batches& batches_;
    std::unique_lock<std::mutex>& lock_;
  };
  // Waits for the turn of another thread, without the lock. True: there is a batch to send.
  [[nodiscard]] bool await_turn(std::unique_lock<std::mutex>& lock);

 private:
  std::condition_variable turn_ended_;
  Batch batch_;
  bool sends_ = false;             // a turn has not ended
  std::optional<GroupId> fusing_;  // the group whose calls are put together
};

}  // namespace warren::worker
