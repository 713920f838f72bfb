#include "recovery/tracker/plan_start.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/ranges.h"

namespace warren {

namespace {

void clear_flight(wire::Position& p) {
  p.clear_final();
  p.clear_total_bytes();
  p.clear_empty();
}

// Whether survivors hold all of the result of the round in flight.
bool is_whole(const wire::Position& p) {
  Ranges final;
  for (const wire::ByteRange& range : p.final()) final.add(range.begin(), range.end());
  return p.empty() || (p.total_bytes() != 0 && final.covers(0, p.total_bytes()));
}

}  // namespace

std::uint64_t PlanStart::rounds_from_disks() const {
  std::uint64_t rounds = 0;
  if (goes_on) return rounds;
  for (const wire::Position& p : frontier) rounds += p.rounds();
  return rounds;
}

EndedAttempts end_timeline(PlanStart& start, Timeline timeline) {
  EndedAttempts attempts;
  for (wire::Position& p : start.frontier) {
    if (p.final_size() != 0 || p.empty()) {
      const bool whole = is_whole(p);
      ++(whole ? attempts.finished : attempts.dropped);
      if (whole) p.set_rounds(p.rounds() + 1);
    }
    clear_flight(p);
  }
  std::erase_if(start.frontier, [](const wire::Position& p) { return p.rounds() == 0 && !p.closed(); });
  for (const wire::Position& p : start.frontier) {
    const bool named = std::ranges::any_of(start.kept, [&](const wire::Kept& k) {
      return k.group() == p.group() && k.version() == p.version() && k.rounds() >= p.rounds();
    });
    if (named || p.rounds() == 0) continue;
    wire::Kept& k = start.kept.emplace_back();
    k.set_group(p.group());
    k.set_version(p.version());
    k.set_timeline(timeline.value);
    k.set_rounds(p.rounds());
  }
  std::ranges::sort(start.kept, {}, [](const wire::Kept& k) { return std::tuple(k.group(), k.version(), k.rounds()); });
  start.ends_timeline = true;
  return attempts;
}

bool drop_forgotten(PlanStart& start) {
  bool any = false;
  std::vector<wire::Kept> kept;
  for (wire::Kept& k : start.kept) {
    const auto p = std::ranges::find_if(
        start.frontier, [&](const wire::Position& f) { return f.group() == k.group() && f.version() == k.version(); });
    const std::uint64_t rounds = p == start.frontier.end() ? 0 : p->rounds();
    const bool goes_on = !kept.empty() && kept.back().group() == k.group() && kept.back().version() == k.version();
    if (k.rounds() > rounds) {
      any = true;
      // The next round's finals belong to a round that is forgotten.
      if (p != start.frontier.end()) clear_flight(*p);
    }
    k.set_rounds(std::min(k.rounds(), rounds));
    if (k.rounds() > (goes_on ? kept.back().rounds() : 0)) kept.push_back(std::move(k));
  }
  start.kept = std::move(kept);
  return any;
}

PlanStart start_from(std::vector<wire::Kept> kept) {
  PlanStart start;
  start.kept = std::move(kept);
  for (const wire::Kept& k : start.kept) {
    wire::Position* last = start.frontier.empty() ? nullptr : &start.frontier.back();
    if (last == nullptr || last->group() != k.group() || last->version() != k.version()) {
      last = &start.frontier.emplace_back();
      last->set_group(k.group());
      last->set_version(k.version());
    }
    last->set_rounds(k.rounds());
  }
  if (start.frontier.size() > limits::kMaxPositions) return {};
  return start;
}

std::size_t absences_of(const PlanStart& start, const wire::Plan& before, std::size_t missing) {
  std::size_t all = missing;
  for (const wire::Absence& a : before.absences()) {
    const bool used = std::ranges::any_of(start.kept, [&](const auto& k) { return k.timeline() == a.timeline(); });
    if (used) all += static_cast<std::size_t>(a.ranks_size());
  }
  return all;
}

}  // namespace warren
