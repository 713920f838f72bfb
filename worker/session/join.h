// A life's way to its first plan. A worker waits for its rank, and a spare until a rank is lost and the tracker calls
// it. The life may also end on the way, and another one of the same process begins in its place.
//
// Threads: all functions are called under the session's lock, unless they say otherwise. The control thread tells what
// the tracker says; the program's thread waits.
#pragma once

#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "recovery/base/result.h"
#include "recovery/worker/worker_machine.h"
#include "worker/launch/joined_mark.h"
#include "worker/life/life.h"
#include "worker/session/control.h"
#include "worker/session/driver.h"
#include "worker/session/life_storage.h"
#include "worker/session/log.h"
#include "worker/settings/settings.h"

namespace warren::worker {

class Join {
 public:
  Join(const Settings& settings, const Log& log, Driver& driver, Life& life, LifeStorage& storage)
      : settings_(settings), log_(log), driver_(driver), life_(life), storage_(storage) {}
  Join(const Join&) = delete;
  Join& operator=(const Join&) = delete;

  // This life begins as a spare, or comes after another one of the same process that has had no rank. Before all else.
  void begin(bool spare, bool again) {
    spare_ = spare;
    begins_again_ = again;
  }
  // Waits until the tracker's name resolves, for at most the join timeout. Without the lock.
  [[nodiscard]] Status await_tracker_name() const;
  // Waits for the first plan, without the lock: as a spare for as long as the job lasts. Where the job has ended and
  // did not need this worker, returns kFinished, or ends the process with kExitFinished. Success also where another
  // life is to begin.
  [[nodiscard]] Status await_plan(Control& control);

  // From the control thread: the tracker has told this life to wait as a spare. `looked`: it has looked at what its
  // host holds, so that another life is to wait, which has mapped nothing.
  void waits_as_spare(bool looked);
  // From the control thread: a rank is lost, and the tracker asks this spare what its host holds.
  void called(const worker_effect::Called& call);
  // From the control thread: all that the host's segments hold is mapped.
  void mapped();
  // From the control thread: this life is over, and the program has seen nothing of it.
  void begin_again(const Status& why);

  [[nodiscard]] bool is_spare() const { return spare_; }
  // Another life is to begin.
  [[nodiscard]] bool is_to_begin_again() const { return begins_next_; }
  // Why, unless it is to wait as a spare.
  [[nodiscard]] const Status& over() const { return over_; }

  // The process has joined, until unmark().
  void keep(JoinedMark mark) { mark_ = std::move(mark); }
  void unmark() { mark_ = {}; }

 private:
  void look(std::unique_lock<std::mutex>& lock, const worker_effect::Called& call, Control& control);

  const Settings& settings_;
  const Log& log_;
  Driver& driver_;
  Life& life_;
  LifeStorage& storage_;
  bool spare_ = false;         // it began as one, or has been told to wait
  bool begins_again_ = false;  // this life comes after another one
  bool begins_next_ = false;   // another one is to come after it, with what it has mapped unmapped
  Status over_;
  bool mapped_ = false;
  std::optional<worker_effect::Called> called_;
  JoinedMark mark_;  // until this life is over
};

}  // namespace warren::worker
