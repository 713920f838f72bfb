#include "recovery/decide/waits.h"

#include <algorithm>
#include <map>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"

namespace warren {
namespace {

bool is_point(const wire::CurrentRound& r) {
  return r.collective() == static_cast<std::uint32_t>(Collective::kPoint);
}

bool lists(const RankReport& report, const RoundId& round) {
  return std::any_of(report.rounds.begin(), report.rounds.end(),
                     [&](const wire::CurrentRound& r) { return !is_point(r) && round_of(r) == round; });
}

bool waits_for(const wire::CurrentRound& round, Rank rank) {
  return std::find(round.waiting_for().begin(), round.waiting_for().end(), static_cast<std::uint32_t>(rank.value)) !=
         round.waiting_for().end();
}

bool waited(const wire::CurrentRound& round, std::int64_t least_ms) {
  return round.waited_ms() >= static_cast<std::uint64_t>(least_ms);
}

// So long it had waited in this round `before_ms` ago.
bool had_waited(const RankReport& report, const wire::CurrentRound& round, std::int64_t before_ms,
                std::int64_t least_ms) {
  return static_cast<std::int64_t>(round.waited_ms()) - (before_ms - report.age_ms) >= least_ms;
}

// Whoever is in `theirs` has done `mine`, or called something else: rounds of a group are done in order, but for set-up
// rounds, whose numbers are names; of these two ranks are at odds that wait for each other.
bool is_past(const wire::CurrentRound& theirs, const wire::CurrentRound& mine, Rank waiter) {
  if (is_setup(round_of(theirs)) || is_setup(round_of(mine))) return waits_for(theirs, waiter);
  return round_of(mine) < round_of(theirs);
}

Wait wait_of(const wire::CurrentRound& r, Rank waiter) {
  return {round_of(r), is_point(r) ? waiter : kNoRank};
}

// Since when nothing has come of this rank, as far as is told.
bool comes_something(const RankReport& to, Rank from, std::int64_t within_ms) {
  if (to.activity == nullptr) return false;
  const auto& links = to.activity->links();
  return std::any_of(links.begin(), links.end(), [&](const wire::LinkActivity& l) {
    return static_cast<std::int64_t>(l.peer()) == from.value && static_cast<std::int64_t>(l.quiet_ms()) < within_ms;
  });
}

std::string in_call(const wire::CurrentRound& r) {
  if (is_point(r)) return "a send or recv after " + to_string(round_of(r));
  return to_string(fingerprint_of(r)) + " in " + to_string(round_of(r));
}

const RankReport* report_of(std::span<const RankReport> reports, std::uint32_t rank) {
  return rank < reports.size() ? &reports[rank] : nullptr;
}

std::string seconds(std::uint64_t ms) {
  return std::to_string(ms / 1000) + " s";
}

std::optional<Disagreement> different_calls(std::span<const RankReport> reports, bool check_call_sites,
                                            const RankName& name) {
  std::map<RoundId, std::pair<Rank, const wire::CurrentRound*>> known;
  for (const RankReport& report : reports) {
    for (const wire::CurrentRound& r : report.rounds) {
      if (is_point(r)) continue;
      auto [it, added] = known.try_emplace(round_of(r), report.rank, &r);
      if (added) continue;
      const auto& [other_rank, other] = it->second;
      Fingerprint mine = fingerprint_of(r), theirs = fingerprint_of(*other);
      if (!check_call_sites) mine.site = theirs.site = 0;
      if (!agree(mine, theirs)) {
        return Disagreement{other_rank, report.rank,
                            name(other_rank) + " called " + to_string(fingerprint_of(*other)) + ", " +
                                name(report.rank) + " called " + to_string(fingerprint_of(r)) + ", both as " +
                                to_string(round_of(r)),
                            std::nullopt};
      }
      // An unknown call site agrees with all; the next rank is compared with one that is known.
      if (other->site() == 0) it->second = {report.rank, &r};
    }
  }
  return std::nullopt;
}

}  // namespace

RoundId round_of(const wire::CurrentRound& r) {
  return {Timeline(r.timeline()), GroupId(r.group()), Version(r.version()), Sequence(r.sequence())};
}

Fingerprint fingerprint_of(const wire::CurrentRound& r) {
  return {static_cast<Collective>(r.collective()),
          static_cast<DataType>(r.type()),
          static_cast<ReduceOp>(r.op()),
          static_cast<std::uint8_t>(r.algorithm()),
          r.root(),
          r.count(),
          r.shape(),
          r.site()};
}

std::optional<Disagreement> find_disagreement(std::span<const RankReport> reports, std::int64_t round_timeout_ms,
                                              bool check_call_sites, const RankName& name) {
  if (auto found = different_calls(reports, check_call_sites, name)) return found;
  for (const RankReport& a : reports) {
    for (const wire::CurrentRound& mine : a.rounds) {
      if (!waited(mine, round_timeout_ms)) continue;
      for (const std::uint32_t peer : mine.waiting_for()) {
        const RankReport* b = report_of(reports, peer);
        if (b == nullptr || b->rank == a.rank || comes_something(a, b->rank, round_timeout_ms)) continue;
        const std::string waits = name(a.rank) + " has waited " + seconds(mine.waited_ms()) + " for ";
        // What it has sent it may have to send again, over a link that is not up yet: that link has a round timeout
        // too.
        const std::int64_t patience_ms = is_point(mine) ? 2 * round_timeout_ms : round_timeout_ms;
        if (b->finalizing && b->finalizing_ms - a.age_ms >= patience_ms && waited(mine, patience_ms)) {
          return Disagreement{a.rank, b->rank,
                              waits + name(b->rank) + " with " + in_call(mine) + ", but rank " +
                                  std::to_string(b->rank.value) + " has called finalize after " +
                                  rounds_text(b->rounds_finished),
                              wait_of(mine, a.rank)};
        }
        if (is_point(mine) || lists(*b, round_of(mine))) continue;
        for (const wire::CurrentRound& theirs : b->rounds) {
          if (is_point(theirs) || theirs.group() != mine.group() || theirs.waiting_for().empty()) continue;
          if (!waited(theirs, round_timeout_ms)) continue;
          if (!is_past(theirs, mine, a.rank) || lists(a, round_of(theirs))) continue;
          // Who is not heard any more may have got on after its last word.
          const std::int64_t older_ms = std::max(a.age_ms, b->age_ms);
          if (!had_waited(a, mine, older_ms, round_timeout_ms) || !had_waited(*b, theirs, older_ms, round_timeout_ms)) {
            continue;
          }
          const std::int64_t whom = waits_for(theirs, a.rank) ? a.rank.value : std::int64_t{theirs.waiting_for(0)};
          return Disagreement{a.rank, b->rank,
                              waits + name(b->rank) + " with " + in_call(mine) + ", which has waited " +
                                  seconds(theirs.waited_ms()) + " for rank " + std::to_string(whom) + " with " +
                                  in_call(theirs),
                              wait_of(mine, a.rank)};
        }
      }
    }
  }
  return std::nullopt;
}

std::vector<std::int64_t> awaited_outside(std::span<const RankReport> reports) {
  std::vector<std::int64_t> awaited(reports.size(), 0);
  for (const RankReport& report : reports) {
    for (const wire::CurrentRound& r : report.rounds) {
      for (const std::uint32_t peer : r.waiting_for()) {
        const RankReport* const target = report_of(reports, peer);
        if (target == nullptr || target->finalizing || !target->rounds.empty()) continue;
        awaited[peer] = std::max(awaited[peer], static_cast<std::int64_t>(r.waited_ms()));
      }
    }
  }
  return awaited;
}

std::vector<WaitLine> describe_waits(std::span<const RankReport> reports, std::int64_t least_ms) {
  struct Found {
    const RankReport* waiter = nullptr;
    const wire::CurrentRound* round = nullptr;
    const RankReport* target = nullptr;
    bool leads_out = false;
    std::size_t waiters = 0;
  };
  std::map<RoundId, Found> rounds;
  for (const RankReport& report : reports) {
    for (const wire::CurrentRound& r : report.rounds) {
      if (!waited(r, least_ms)) continue;
      Found& found = rounds[round_of(r)];
      bool waits = false;
      for (const std::uint32_t peer : r.waiting_for()) {
        const RankReport* target = report_of(reports, peer);
        if (target == nullptr) continue;
        waits = true;
        const bool leads_out = !is_point(r) && !lists(*target, round_of(r));
        if (found.waiter != nullptr && (found.leads_out || !leads_out)) continue;
        found.waiter = &report;
        found.round = &r;
        found.target = target;
        found.leads_out = leads_out;
      }
      found.waiters += waits;
    }
  }
  std::vector<WaitLine> lines;
  for (const auto& [round, found] : rounds) {
    if (found.waiter == nullptr) continue;
    const std::string target = "rank " + std::to_string(found.target->rank.value);
    std::string text = "rank " + std::to_string(found.waiter->rank.value) + " waits for " + target + " in " +
                       to_string(round) + " since " + seconds(found.round->waited_ms());
    if (found.waiters > 1) {
      text += (found.waiters == 2 ? " (as does " : " (as do ") + std::to_string(found.waiters - 1) + " more " +
              (found.waiters == 2 ? "rank" : "ranks") + " in this round)";
    }
    text += "; " + target + (found.target->heard_lately ? " is alive" : " has missed heartbeats") +
            " and has finished " + rounds_text(found.target->rounds_finished);
    lines.push_back({found.waiter->rank, round, std::move(text)});
    if (lines.size() == limits::kMaxRoundsPerHeartbeat) break;
  }
  return lines;
}

}  // namespace warren
