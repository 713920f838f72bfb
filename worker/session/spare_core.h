// Whether the core would be idle while a rank waits: then looking again and again costs nobody anything, and the
// message that is waited for is seen at once. Where other programs compute, sleep ends sooner than a yield. No plan
// names all who may compute: ranks of other hosts of the same machine (containers, namespaces), the program's other
// threads. So both answers follow from the time that yields took: a yield is long if others ran.
#pragma once

#include <algorithm>
#include <chrono>

namespace warren::worker {

class SpareCore {
 public:
  // A call of the program's begins.
  void called() { others_ = std::max(others_ - 1, 0); }
  // A yield of a rank that waits returned after this time.
  void yielded(std::chrono::nanoseconds time) {
    if (time > kOthersRan) others_ = std::min(others_ + kWeight, kMost);
    if (time > kLongestTurn) {
      since_ = 0;
      if (++slices_ < kSlicesThatCount) return;
      slices_ = kSlicesThatCount;
      sleeps_left_ = sleeps_;
      sleeps_ = std::min(2 * sleeps_, kMostSleeps);
    } else if (++since_ == kYieldsBetweenSlices) {
      since_ = slices_ = 0;
      sleeps_ = kFirstSleeps;
    }
  }
  // A rank that waits slept instead of a yield.
  void slept() { sleeps_left_ = std::max(sleeps_left_ - 1, 0); }
  [[nodiscard]] bool free() const { return others_ <= kCrowded; }
  // Other programs compute here: a yield lasts for a time slice of theirs, and a sleeper is woken at once. Measured
  // with two ranks beside two such programs on two cores, through shared memory (warren_bench --sizes=4,65536,
  // 2026-12-01). An allreduce of 4 bytes took 0.8 ms by yields and 28 µs by sleep, one of 64 KiB 2.9 ms and 80 µs.
  [[nodiscard]] bool sleep_is_sooner() const { return sleeps_left_ > 0; }

 private:
  // A yield to nobody takes some 0.4 µs.
  static constexpr std::chrono::nanoseconds kOthersRan = std::chrono::microseconds(3);
  // Others ran in more than one of eight calls, lately. A heartbeat now and then is none of that.
  static constexpr int kWeight = 8, kCrowded = 64, kMost = 512;

  // Ranks that reduce yield, or sleep, before this. A slice is of 1.4 to 4 ms on two cores.
  static constexpr std::chrono::nanoseconds kLongestTurn = std::chrono::milliseconds(1);
  // A single slice may be the launcher's, or a disk's thread's. So three count, each within so many yields after the
  // one before.
  static constexpr int kSlicesThatCount = 3, kYieldsBetweenSlices = 512;
  // Then a yield tries again after so many sleeps, and after twice as many if it lasts for a slice, too.
  static constexpr int kFirstSleeps = 512, kMostSleeps = 16'384;

  int others_ = 0;
  int slices_ = 0, since_ = 0;  // slices lately; yields since the last one
  int sleeps_left_ = 0, sleeps_ = kFirstSleeps;
};

}  // namespace warren::worker
