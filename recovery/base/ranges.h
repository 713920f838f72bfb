// Sets of numbers as sorted, disjoint, non-touching half-open intervals.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "recovery/base/check.h"

namespace warren {

struct Interval {
  std::uint64_t begin = 0, end = 0;  // begin < end
  friend bool operator==(const Interval&, const Interval&) = default;
};

class Ranges {
 public:
  Ranges() = default;
  Ranges(std::uint64_t begin, std::uint64_t end) {
    if (begin < end) intervals_.push_back({begin, end});
  }

  [[nodiscard]] const std::vector<Interval>& intervals() const { return intervals_; }
  [[nodiscard]] bool empty() const { return intervals_.empty(); }
  [[nodiscard]] std::uint64_t size() const {
    std::uint64_t n = 0;
    for (const Interval& i : intervals_) n += i.end - i.begin;
    return n;
  }
  [[nodiscard]] bool covers(std::uint64_t begin, std::uint64_t end) const {
    if (begin >= end) return true;
    const auto i = after(begin);
    return i != intervals_.begin() && (i - 1)->end >= end;
  }
  [[nodiscard]] bool meets(std::uint64_t begin, std::uint64_t end) const { return !intersect(begin, end).empty(); }

  void add(std::uint64_t begin, std::uint64_t end) {
    if (begin >= end) return;
    // Those that overlap or touch [begin, end) become one with it.
    auto first = std::lower_bound(intervals_.begin(), intervals_.end(), begin,
                                  [](const Interval& i, std::uint64_t at) { return i.end < at; });
    auto last = first;
    for (; last != intervals_.end() && last->begin <= end; ++last) {
      begin = std::min(begin, last->begin);
      end = std::max(end, last->end);
    }
    if (first == last) {
      intervals_.insert(first, {begin, end});
    } else {
      *first = {begin, end};
      intervals_.erase(first + 1, last);
    }
  }
  void add(const Ranges& other) {
    for (const Interval& i : other.intervals_) add(i.begin, i.end);
  }

  [[nodiscard]] Ranges intersect(std::uint64_t begin, std::uint64_t end) const {
    Ranges out;
    for (auto i = std::lower_bound(intervals_.begin(), intervals_.end(), begin,
                                   [](const Interval&v, std::uint64_t at) { return v.end <= at; });
         i != intervals_.end() && i->begin < end; ++i) {
      out.intervals_.push_back({std::max(begin, i->begin), std::min(end, i->end)});
      if (out.intervals_.back().begin >= out.intervals_.back().end) out.intervals_.pop_back();
    }
    return out;
  }
  [[nodiscard]] Ranges intersect(const Ranges& other) const {
    Ranges out;
    for (const Interval& i : other.intervals_) out.add(intersect(i.begin, i.end));
    return out;
  }
  [[nodiscard]] Ranges minus(const Ranges& other) const {
    Ranges out;
    auto taken = other.intervals_.begin();
    for (const Interval& i : intervals_) {
      std::uint64_t at = i.begin;
      while (taken != other.intervals_.end() && taken->end <= at) ++taken;
      for (auto t = taken; t != other.intervals_.end() && t->begin < i.end; ++t) {
        if (at < t->begin) out.intervals_.push_back({at, t->begin});
        at = std::max(at, t->end);
      }
      if (at < i.end) out.intervals_.push_back({at, i.end});
    }
    return out;
  }

  friend bool operator==(const Ranges&, const Ranges&) = default;

 private:
  // The first interval that begins after `at`.
  [[nodiscard]] std::vector<Interval>::const_iterator after(std::uint64_t at) const {
    return std::upper_bound(intervals_.begin(), intervals_.end(), at,
                            [](std::uint64_t v, const Interval& i) { return v < i.begin; });
  }

  std::vector<Interval> intervals_;
};

}  // namespace warren
