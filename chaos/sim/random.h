// The only source of chance in a simulated run: equal seeds draw equal numbers on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace warren::chaos {

// SplitMix64: one addition and a mix, so that numbers can also be drawn by position (see mix()).
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  [[nodiscard]] static constexpr std::uint64_t mix(std::uint64_t v) {
    v += 0x9e3779b97f4a7c15u;
    v = (v ^ (v >> 30)) * 0xbf58476d1ce4e5b9u;
    v = (v ^ (v >> 27)) * 0x94d049bb133111ebu;
    return v ^ (v >> 31);
  }

  std::uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    return mix(state_);
  }
  // 0 … n − 1; n > 0.
  std::uint64_t below(std::uint64_t n) { return next() % n; }
  std::int64_t between(std::int64_t least, std::int64_t most) {
    return least + static_cast<std::int64_t>(below(static_cast<std::uint64_t>(most - least + 1)));
  }
  bool chance(double probability) {
    return probability > 0 && static_cast<double>(next() >> 11) * 0x1p-53 < probability;
  }
  template <class T, std::size_t N>
  const T& pick(const T (&from)[N]) {
    return from[below(N)];
  }

 private:
  std::uint64_t state_;
};

}  // namespace warren::chaos
