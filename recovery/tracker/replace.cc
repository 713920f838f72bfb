// What is done about a rank that holds up the others, beyond saying so: a spare takes its place, or where none can and
// the job may shrink, nobody does (docs/decisions/0012). It is asked to drain; from there on it is a rank that was
// lost.
#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/decide/spares.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"

namespace warren {

namespace {

// Another one in its place would help, and it hears that it is to leave. Who is silent is given up after a round
// timeout as ever.
bool replaceable(const Verdict& v) {
  return v.blame == Blame::kSlowRank || (v.blame == Blame::kCutOff && !v.silent);
}
std::size_t index_of(const Verdict& v) {
  return static_cast<std::size_t>(v.rank.value);
}
}  // namespace

std::int64_t TrackerMachine::replacement_pause_ms() const {
  return limits::kWindowsBetweenReplacements * straggler_limits(timeout_ms()).window_ms;
}

std::string TrackerMachine::excuse(std::size_t rank) const {
  const Member& m = members_[rank];
  if (m.state != MemberState::kActive) return "it has called finalize";
  if (m.draining) return "it leaves already";
  if (m.activity && (m.activity->replaying() || m.activity->replayed_rounds() != 0)) {
    return "it replays what it has missed";
  }
  // Its launcher would find the place taken, and end the job.
  if (!plan_.members(static_cast<int>(rank)).waits()) return "its worker was started without WARREN_SPARES";
  return {};
}

const StragglerWatch::Standing* TrackerMachine::first_to_replace(
    const std::vector<StragglerWatch::Standing>& standing) const {
  const StragglerWatch::Standing* first = nullptr;
  for (const StragglerWatch::Standing& s : standing) {
    if (!replaceable(s.verdict) || !excuse(index_of(s.verdict)).empty()) continue;
    if (first == nullptr || s.since < first->since) first = &s;
  }
  return first;
}

TrackerMachine::Successor TrackerMachine::successor_of(std::size_t rank, TimeMs now) const {
  if (now < no_replacement_before_) {
    return {{}, "one rank is replaced in " + seconds_text(replacement_pause_ms()) + " at most"};
  }
  const std::string out_of_reach = "without its machine, what was logged and committed might be out of reach";
  const SpareBench::Idle idle = spares_.those([&](const std::string& worker, const Spare& spare) {
    return now < spare.heard + limits::kSuspectHeartbeats * interval_ms() && !excluded(worker, now);
  });
  const wire::Member& member = plan_.members(static_cast<int>(rank));
  std::set<std::string> others;
  for (const wire::Member& m : plan_.members()) {
    if (m.rank() != member.rank() && !m.absent()) others.insert(m.host_id());
  }
  if (idle.workers.empty()) {
    if (!shrinks()) return {{}, "no spare is ready"};
    if (present() <= settings_.min_workers()) {
      return {{},
              "no spare is ready, and the job has no more than the " + std::to_string(settings_.min_workers()) +
                  " workers that it needs"};
    }
    return spares_in_reach(others) ? Successor{{}, {}, true} : Successor{{}, out_of_reach};
  }
  if (const auto lacks = lack()) return {{}, lack_text(*lacks)};
  for (const bool elsewhere : {true, false}) {
    const FreePlace place{member.host_id(), member.domain_id(), false, elsewhere};
    const std::size_t chosen = *choose_spares(std::span(&place, 1), idle.spares).front();
    std::set<std::string> there = others;
    there.insert(std::string(idle.spares[chosen].host_id));
    if (spares_in_reach(there)) return {idle.workers[chosen], {}};
  }
  return {{}, out_of_reach};
}

std::vector<StragglerWatch::Standing> TrackerMachine::foresee(TimeMs now) const {
  std::vector<StragglerWatch::Standing> standing = watch_.standing();
  foresee_ways(standing, now);
  if (settings_.replace_after_ms() == 0) return standing;
  const StragglerWatch::Standing* first = first_to_replace(standing);
  for (StragglerWatch::Standing& s : standing) {
    if (!replaceable(s.verdict)) continue;
    const std::size_t rank = index_of(s.verdict);
    std::string& next = s.verdict.next;
    if (leaves_ && rank_of(leaves_->life) == rank) {
      next = (leaves_->heard ? "it leaves, and " : "it was asked to leave, and ") + followed_by(leaves_->spare);
    } else if (const std::string why = excuse(rank); !why.empty()) {
      next = "it is not replaced: " + why;
    } else if (leaves_ || &s != first) {
      next = "another rank is replaced first";
    } else if (const Successor successor = successor_of(rank, now); !successor.obstacle.empty()) {
      next = "it is not replaced: " + successor.obstacle;
    } else {
      const std::int64_t left_ms = s.since + replace_after_ms() - now;
      next = (successor.nobody ? "the job goes on without it" : "it is replaced by spare " + successor.spare) +
             (left_ms <= 0 ? " now" : " in " + seconds_text(left_ms));
    }
  }
  return standing;
}

void TrackerMachine::replace_stragglers(const std::vector<Verdict>& found, TimeMs now, Effects& effects) {
  if (settings_.replace_after_ms() == 0) return;
  const std::vector<StragglerWatch::Standing> standing = watch_.standing();
  const auto against = [&](std::size_t rank) {
    return std::ranges::any_of(standing,
                               [&](const auto& s) { return replaceable(s.verdict) && index_of(s.verdict) == rank; });
  };
  std::erase_if(obstacles_, [&](const auto& o) { return !against(o.first); });
  if (leaves_ && !leaves_->heard && !against(*rank_of(leaves_->life))) {
    count(Transition::replace_withdrawn);
    log(Severity::kInfo, "replace_withdrawn",
        name(*rank_of(leaves_->life)) + " holds up nobody any more, and need not leave", effects,
        {{"rank", std::to_string(*rank_of(leaves_->life))}});
    leaves_.reset();
  }
  if (leaves_) return;
  const StragglerWatch::Standing* first = first_to_replace(standing);
  for (const StragglerWatch::Standing& s : standing) {
    const Verdict& v = s.verdict;
    const std::size_t rank = index_of(v);
    // It still is so.
    const bool again = std::ranges::any_of(found, [&](const Verdict& f) { return f.key() == v.key(); });
    if (!replaceable(v) || !again || now < s.since + replace_after_ms()) continue;
    Successor successor{{}, excuse(rank)};
    if (successor.obstacle.empty() && &s == first) successor = successor_of(rank, now);
    if (successor.nobody || !successor.spare.empty()) return ask_to_leave(rank, s, successor.spare, now, effects);
    if (successor.obstacle.empty() || obstacles_[rank] == successor.obstacle) continue;
    count(Transition::replace_obstructed);
    obstacles_[rank] = successor.obstacle;
    log(Severity::kWarning, "not_replaced",
        name(rank) + " holds up the others for " + seconds_text(now - s.since) +
            " and is not replaced: " + successor.obstacle,
        effects, {{"rank", std::to_string(rank)}});
  }
}

void TrackerMachine::ask_to_leave(std::size_t rank, const StragglerWatch::Standing& s, const std::string& spare,
                                  TimeMs now, Effects& effects) {
  count(Transition::replace_asked);
  const std::string why = std::string(to_string(s.verdict.blame)) + " for " + seconds_text(now - s.since);
  leaves_ = Leaves{Incarnation(plan_.members(static_cast<int>(rank)).incarnation()), spare,
                   "the tracker found it " + why + ", and " + followed_by(spare), false};
  if (spare.empty()) count(Transition::exclude_asked);
  no_replacement_before_ = now + replacement_pause_ms();
  log(Severity::kWarning, "replace_asked",
      name(rank) + " is asked to leave within " + seconds_text(timeout_ms()) + ", and " + followed_by(spare) + ": " +
          why,
      effects, {{"rank", std::to_string(rank)}, {"worker", spare}});
}

std::string TrackerMachine::followed_by(const std::string& spare) const {
  if (spare.empty()) return "the job goes on without it";
  const Spare* const found = spares_.find(spare);
  return "spare " + spare + (found == nullptr ? "" : " on host " + found->host_id) + " takes its place";
}

bool TrackerMachine::excluded(const std::string& worker, TimeMs now) const {
  const auto found = excluded_.find(worker);
  return found != excluded_.end() && now < found->second;
}

bool TrackerMachine::leaves_for_good(std::size_t rank) const {
  return leaves_ && leaves_->spare.empty() && rank_of(leaves_->life) == rank;
}

void TrackerMachine::forget_replaced(TimeMs now) {
  obstacles_.clear();
  std::erase_if(excluded_, [&](const auto& e) { return now >= e.second; });
  if (!leaves_) return;
  const auto rank = rank_of(leaves_->life);
  const bool still_there = rank && !absent(*rank);
  if (rank && !still_there && leaves_->spare.empty()) {
    count(Transition::excluded);
    // Else it would come in again with the next checkpoint, and hold up the others as before.
    excluded_[plan_.members(static_cast<int>(*rank)).worker_id()] = now + replacement_pause_ms();
  }
  // What it costs to replace a rank, until all have caught up, is no reason to replace another.
  if (!still_there) no_replacement_before_ = now + replacement_pause_ms();
  if (!still_there || !leaves_->heard) leaves_.reset();
}

bool TrackerMachine::given_away(std::size_t place, TimeMs now) const {
  const std::string& own = plan_.members(static_cast<int>(place)).worker_id();
  const bool for_nobody = leaves_for_good(place) || excluded(own, now);
  if ((!for_nobody && (!leaves_ || rank_of(leaves_->life) != place)) || spares_.held_back()) return false;
  if (state_ != State::kRunning && !interrupt_.resume()) return false;
  if (state_ == State::kGathering && (waiting_.survivors() == 0 || now >= since_ + timeout_ms())) return false;
  if (for_nobody || waiting_.takers().contains(place) || spares_.calls().contains(place)) return true;
  return std::ranges::any_of(
      spares_, [&](const auto& s) { return s.first != own && !s.second.call && spares_.counts_on(s.second.host_id); });
}

}  // namespace warren
