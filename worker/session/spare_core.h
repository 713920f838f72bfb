// Whether the core would be idle while a rank waits: then looking again and again costs nobody anything, and the
// message that is waited for is seen at once. Ranks of other hosts of the same machine (containers, namespaces) and the
// program's other threads are in no plan, so this goes by what yields took: one after which others ran is long.
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
  }
  [[nodiscard]] bool free() const { return others_ <= kCrowded; }

 private:
  // A yield to nobody takes some 0.4 µs.
  static constexpr std::chrono::nanoseconds kOthersRan = std::chrono::microseconds(3);
  // Others ran in more than one of eight calls, lately. A heartbeat now and then is none of that.
  static constexpr int kWeight = 8, kCrowded = 64, kMost = 512;

  int others_ = 0;
};

}  // namespace warren::worker
