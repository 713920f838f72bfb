#include "recovery/decide/held.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"

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

std::uint64_t held_until(const HeldReport& united, Timeline timeline, GroupId group, Version version,
                         std::uint64_t from) {
  const HeldRounds name{false, timeline, group, version, {}};
  const auto rounds = std::lower_bound(united.rounds.begin(), united.rounds.end(), name,
                                       [](const auto& a, const auto& b) { return order(a) < order(b); });
  if (rounds == united.rounds.end() || order(*rounds) != order(name)) return from;
  for (const HeldRun& run : rounds->runs) {
    if (run.end() <= from) continue;
    if (run.first > from || !run.complete()) break;
    from = run.end();
  }
  return from;
}

wire::Held to_wire(const HeldReport& report, Version from) {
  wire::Held out;
  std::size_t runs = 0, ranges = 0;
  for (const HeldRounds& r : report.rounds) {
    if (r.messages || (r.version < from && r.version != kPreamble)) continue;
    if (static_cast<std::size_t>(out.rounds_size()) == limits::kMaxHeldRounds) break;
    wire::HeldRounds& rounds = *out.add_rounds();
    rounds.set_timeline(r.timeline.value);
    rounds.set_group(r.group.value);
    rounds.set_version(r.version.value);
    for (const HeldRun& run : r.runs) {
      if (run.total_bytes == kContradicted) continue;
      const auto& held = run.held.intervals();
      if (++runs > limits::kMaxHeldRuns || (ranges += held.size()) > limits::kMaxHeldRanges) return out;
      wire::HeldRun& to = *rounds.add_runs();
      to.set_first(run.first);
      to.set_count(run.count);
      to.set_total_bytes(run.total_bytes);
      to.set_call(run.call);
      for (const Interval& i : held) {
        wire::ByteRange& range = *to.add_held();
        range.set_begin(i.begin);
        range.set_end(i.end);
      }
    }
  }
  return out;
}

HeldReport from_wire(const wire::Held& held) {
  HeldReport out;
  for (const wire::HeldRounds& r : held.rounds()) {
    HeldRounds& rounds = out.rounds.emplace_back(
        HeldRounds{false, Timeline(r.timeline()), GroupId(r.group()), Version(r.version()), {}});
    for (const wire::HeldRun& from : r.runs()) {
      HeldRun& run =
          rounds.runs.emplace_back(HeldRun{from.first(), from.count(), from.total_bytes(), from.call(), Ranges()});
      for (const wire::ByteRange& range : from.held()) run.held.add(range.begin(), range.end());
    }
  }
  return out;
}

std::vector<wire::Kept> keep_rounds(const HeldReport& disks, std::span<const wire::Kept* const> before,
                                    Timeline timeline, std::optional<Version> committed) {
  const Version start = committed.value_or(version_of_program(0));
  std::set<std::pair<GroupId, Version>> names;
  for (const HeldRounds& r : disks.rounds) {
    if (!r.messages && (r.version == kPreamble || r.version == start)) names.emplace(r.group, r.version);
  }
  std::vector<wire::Kept> out;
  for (const auto& [group, version] : names) {
    std::uint64_t at = 0;
    const auto keep = [&, group = group, version = version](Timeline of, std::uint64_t end) {
      if (end == at) return;
      wire::Kept& kept = out.emplace_back();
      kept.set_group(group.value);
      kept.set_version(version.value);
      kept.set_timeline(of.value);
      kept.set_rounds(end);
      at = end;
    };
    bool gap = false;
    for (const wire::Kept* k : before) {
      if (gap || k->group() != group.value || k->version() != version.value) continue;
      const Timeline of(k->timeline());
      keep(of, std::min(k->rounds(), held_until(disks, of, group, version, at)));
      gap = at != k->rounds();
    }
    if (!gap) keep(timeline, held_until(disks, timeline, group, version, at));
  }
  if (out.size() > limits::kMaxKept) out.clear();
  return out;
}

}  // namespace warren
