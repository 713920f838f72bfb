// How a worker shows its launcher that it is alive: a page of memory that both see, in which the worker's control
// thread counts. A count that stands still tells a stopped, hung or deadlocked process from a slow one; nothing is
// sent, and neither waits for the other. The page also tells how long the count may stand still, and whether the life
// has come to work, which tells a worker that is killed often from one that cannot start.
#pragma once

#include <cstdint>

#include "recovery/result.h"
#include "worker/launch/settings.h"

namespace warren::worker {

inline constexpr const char* kLifeVariable = "WARREN_LIFE_FD";

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
  LifePage* page_ = nullptr;
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

  LifeView() = default;
  LifeView(LifeView&& other) noexcept;
  LifeView& operator=(LifeView&& other) noexcept;
  LifeView(const LifeView&) = delete;
  LifeView& operator=(const LifeView&) = delete;
  ~LifeView();

 private:
  int fd_ = -1;
  const LifePage* page_ = nullptr;
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
