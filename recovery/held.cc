#include "recovery/held.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "recovery/check.h"

namespace warren {
namespace {

auto order(const HeldRounds& r) {
  return std::tuple(r.messages, r.timeline, r.group, r.version);
}
auto order(const HeldState& s) {
  return std::tuple(s.timeline, s.version, s.local);
}

// Contradicted: not held, whatever else says so.
constexpr std::uint64_t kContradicted = ~std::uint64_t{0};

HeldRun unite(const HeldRun& a, const HeldRun& b, std::uint64_t first, std::uint64_t count) {
  HeldRun out{first, count, a.total_bytes, a.call, a.held};
  if (a.total_bytes == b.total_bytes && a.call == b.call) {
    out.held.add(b.held);
  } else {
    out.total_bytes = kContradicted;
    out.call = 0;
    out.held = {};
  }
  return out;
}

void push(std::vector<HeldRun>& runs, HeldRun run) {
  if (!runs.empty()) {
    HeldRun& last = runs.back();
    WARREN_CHECK(last.end() <= run.first, "runs follow each other");
    if (last.end() == run.first && last.total_bytes == run.total_bytes && last.call == run.call &&
        last.held == run.held) {
      last.count += run.count;
      return;
    }
  }
  if (runs.size() < HeldReport::kMaxRuns) runs.push_back(std::move(run));
}

std::vector<HeldRun> unite(const std::vector<HeldRun>& a, const std::vector<HeldRun>& b) {
  std::vector<HeldRun> out;
  auto i = a.begin(), j = b.begin();
  std::uint64_t at = 0;  // everything below is done
  const auto begin_of = [&at](auto run, auto end) { return run == end ? ~std::uint64_t{0} : std::max(at, run->first); };
  while (i != a.end() || j != b.end()) {
    const std::uint64_t begin_i = begin_of(i, a.end()), begin_j = begin_of(j, b.end());
    const std::uint64_t begin = std::min(begin_i, begin_j);
    const bool in_i = begin_i == begin, in_j = begin_j == begin;
    const std::uint64_t end = std::min(in_i ? i->end() : begin_i, in_j ? j->end() : begin_j);
    if (in_i && in_j) {
      push(out, unite(*i, *j, begin, end - begin));
    } else {
      const HeldRun& run = in_i ? *i : *j;
      push(out, {begin, end - begin, run.total_bytes, run.call, run.held});
    }
    at = end;
    if (i != a.end() && i->end() <= at) ++i;
    if (j != b.end() && j->end() <= at) ++j;
  }
  return out;
}

template <class T, class Both>
std::vector<T> merge(const std::vector<T>& a, const std::vector<T>& b, const Both& both) {
  std::vector<T> out;
  auto i = a.begin(), j = b.begin();
  while (i != a.end() || j != b.end()) {
    if (j == b.end() || (i != a.end() && order(*i) < order(*j))) {
      out.push_back(*i++);
    } else if (i == a.end() || order(*j) < order(*i)) {
      out.push_back(*j++);
    } else {
      out.push_back(both(*i++, *j++));
    }
  }
  return out;
}

}  // namespace

void append_held(std::vector<HeldRun>& runs, std::uint64_t sequence, std::uint64_t total_bytes, std::uint64_t call,
                 Ranges held) {
  push(runs, {sequence, 1, total_bytes, call, std::move(held)});
}

HeldReport unite(const HeldReport& a, const HeldReport& b) {
  HeldReport out;
  out.rounds = merge(a.rounds, b.rounds, [](HeldRounds x, const HeldRounds& y) {
    x.runs = unite(x.runs, y.runs);
    return x;
  });
  out.states = merge(a.states, b.states, [](HeldState x, const HeldState& y) {
    if (x.total_bytes == y.total_bytes) {
      x.held.add(y.held);
    } else {
      x.total_bytes = kContradicted;
      x.held = {};
    }
    return x;
  });
  return out;
}

std::vector<HeldPosition> first_gaps(const HeldReport& united) {
  std::vector<HeldPosition> out;
  for (const HeldRounds& r : united.rounds) {
    HeldPosition& p = out.emplace_back(HeldPosition{r.messages, r.timeline, r.group, r.version, 0, {}});
    for (const HeldRun& run : r.runs) {
      if (run.first != p.rounds) break;
      if (!run.complete()) {
        p.final = run.held;
        break;
      }
      p.rounds = run.end();
    }
  }
  return out;
}

}  // namespace warren
