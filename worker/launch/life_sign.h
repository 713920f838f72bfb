// How a worker shows its launcher that it is alive: a page of memory that both see, in which the worker's control
// thread counts. A count that stands still tells a stopped, hung or deadlocked process from a slow one; nothing is
// sent, and neither waits for the other. The page also tells how long the count may stand still, whether the life
// has come to work, which tells a worker that is killed often from one that cannot start, and how its job ended for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "recovery/base/result.h"
#include "worker/settings/settings.h"

namespace warren::worker {

inline constexpr const char* kLifeVariable = "WARREN_LIFE_FD";

inline constexpr std::size_t kMostCauseBytes = 480;

struct LifePage;

// The worker's side. Thread rule: beat() and leave() from one thread at a time.
class LifeSign {
 public:
  // Of the page that WARREN_LIFE_FD names. Without a launcher, or where that descriptor is not the launcher's any more
  // (a program in between closed it), the sign shows nothing, and beat() and leave() do nothing.
  static LifeSign from_environment(const Environment& env = process_environment());

  // "I am in a job, and my control thread runs": at least once a heartbeat interval. The first begins the launcher's
  // watch. Never blocks.
  void beat() const;
  // "If I do not beat for so long, I hang": the round timeout, which the launcher may not know.
  void limit(std::int64_t limit_ms) const;
  // "I have taken part in computing a round": stays for the rest of this life.
  void worked() const;
  // "I have no place, and wait for one", and "I have one": the newest stays.
  void waits() const;
  void placed() const;
  // "The job is finished, and so am I", of the job in which the last beat was.
  void finished() const;
  // "This has ended the job, or my part in it": the first one stays, cut to kMostCauseBytes, until the sign that said
  // it is gone and the process has made another since. kFinished, which a life hears whose last one was lost in
  // finalize, is as finished(). `fenced`: the program is not to blame, and its next life goes on.
  void ended(const Status& why, bool fenced);
  // "I leave because my place is needed elsewhere": stays for the rest of this life.
  void drained() const;
  // When the launcher wants the worker to have left, on the monotonic clock; 0: it does not.
  [[nodiscard]] std::int64_t leave_by_ms() const;
  // "I am in no job any more": the launcher watches no longer, until the next beat().
  void leave() const;
  // Whether there is a launcher to see it.
  [[nodiscard]] bool shown() const { return page_ != nullptr; }

  LifeSign() = default;  // shows nothing
  LifeSign(LifeSign&& other) noexcept;
  LifeSign& operator=(LifeSign&& other) noexcept;
  LifeSign(const LifeSign&) = delete;
  LifeSign& operator=(const LifeSign&) = delete;
  // As leave().
  ~LifeSign();

 private:
  void forget_what_is_past() const;

  LifePage* page_ = nullptr;
  bool said_cause_ = false;
};

// The launcher's side: one life of one worker.
class LifeView {
 public:
  // A new page. kInternal: the system gave none.
  static Result<LifeView> create();

  // What the worker inherits; at least 3, closed on exec unless the worker's own process says otherwise between fork
  // and exec. Closed here by close_descriptor(), once the worker has it.
  [[nodiscard]] int fd() const { return fd_; }
  void close_descriptor();
  // How often the worker has beaten; 0: it is in no job, not yet or not any more.
  [[nodiscard]] std::uint64_t beats() const;
  // 0: it has not said, or what no round timeout can be.
  [[nodiscard]] std::int64_t limit_ms() const;
  [[nodiscard]] bool has_worked() const;
  // Nothing: it has not heard yet whether it has a place.
  [[nodiscard]] std::optional<bool> has_place() const;
  // It has beaten, and not finished since.
  [[nodiscard]] bool in_unfinished_job() const;
  // Why its job ended for it, printable; kOk: nothing was said.
  [[nodiscard]] Status cause() const;
  // Its program is not to blame for that, and its next life goes on.
  [[nodiscard]] bool fenced() const;
  [[nodiscard]] bool has_drained() const;
  // "Your place is needed elsewhere: leave by then." Milliseconds on the monotonic clock; 1: at once.
  void ask_to_leave(std::int64_t by_ms) const;

  LifeView() = default;
  LifeView(LifeView&& other) noexcept;
  LifeView& operator=(LifeView&& other) noexcept;
  LifeView(const LifeView&) = delete;
  LifeView& operator=(const LifeView&) = delete;
  ~LifeView();

 private:
  int fd_ = -1;
  LifePage* page_ = nullptr;
};

// Decides from looks at the count, made every `interval_ms` or later, whether a worker hangs. Time that the launcher
// itself did not run (stopped, suspended with the machine, or kept off the cores) counts as two intervals at most: what
// held the launcher up may have held up the worker as well.
class LifeWatch {
 public:
  // True: the count has stood still for limit_ms. `elapsed_ms`: since the previous look, at whatever worker.
  bool look(std::uint64_t beats, std::int64_t elapsed_ms, std::int64_t limit_ms, std::int64_t interval_ms);

 private:
  std::uint64_t beats_ = 0;
  std::int64_t silent_ms_ = 0;
};

}  // namespace warren::worker
