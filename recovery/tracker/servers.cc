// Lives that have left their ranks and go on serving what their hosts have logged (docs/decisions/0012, "What a drain
// leaves behind"): whose word is taken, how far it counts, and when they may go.
#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"

namespace warren {

using tracker_effect::Send;

bool TrackerMachine::others_answer_for(std::size_t rank) const {
  const std::string& host = plan_.members(static_cast<int>(rank)).host_id();
  for (std::size_t other = 0; other < members_.size(); ++other) {
    const bool there = other != rank && members_[other].state != MemberState::kGone;
    if (there && plan_.members(static_cast<int>(other)).host_id() == host) return true;
  }
  return false;
}

// The last one of its host, if as many copies are left when all that serve have gone.
bool TrackerMachine::may_serve(std::size_t rank) const {
  // From a gap on until the next plan nothing counts but what is there (on_log_gap).
  if (!logged() || shrinks() || distrust_inherited_ || others_answer_for(rank)) return false;
  std::set<std::string_view> domains;
  for (const wire::Member& m : plan_.members()) domains.insert(m.domain_id());
  return leavers_.servers().size() + 1 < std::min<std::size_t>(settings_.replicas(), domains.size());
}

void TrackerMachine::take_server(std::size_t rank, const wire::Leave& l, TimeMs now, Effects& effects) {
  count(Transition::server_taken);
  const Leavers::Server& s = leavers_.serve(plan_.members(static_cast<int>(rank)), l, now);
  log(Severity::kInfo, "rank_serves",
      name(rank) + " leaves, and serves what its host has logged for " + std::to_string(l.serves_ms()) +
          " ms at most: until a version newer than that is committed",
      effects, {{"rank", std::to_string(rank)}});
  arm(std::min(s.until, now + timeout_ms()));
}

// Its calls have returned what it has done: that stays so, whoever is left to know it. Of one whose host goes with it
// nothing counts, as of one that has died.
void TrackerMachine::take_farewell(std::size_t rank, const wire::Leave& l) {
  if (!logged() || shrinks() || !others_answer_for(rank) || !has_room_for(l.ByteSizeLong())) return;
  count(Transition::farewell_taken);
  leavers_.say_farewell(l, plan_.members(static_cast<int>(rank)).host_id());
}

// What is final of a call that has not returned is there as long as a rank of its host lives that was there then: that
// has its memory open, and may have reported before the last piece came. If all of them have died before the next plan,
// it is nowhere; where a launcher has kept it, their next lives tell it.
bool TrackerMachine::is_there_still(const Farewell& farewell) const {
  return waiting_.has_survivor_on(farewell.host_id);
}

void TrackerMachine::on_server(Incarnation who, const wire::Leave& l, TimeMs now, Effects& effects) {
  if (l.serves_ms() == 0) {
    count(Transition::server_over);
    return drop_server(who, "its time is over", effects);
  }
  count(Transition::server_heard);
  const bool becomes_aware = leavers_.hear(who, l, now);
  const Leavers::Server& s = leavers_.servers().at(who);
  arm(std::min(s.until, now + timeout_ms()));
  const bool lacks_plan =
      l.generation() < plan_.generation() && (state_ == State::kRunning || (is_named(who) && !s.aware));
  if (lacks_plan) return tell_server(who, effects);
  tell_heard(who, effects);
  if (becomes_aware && state_ == State::kGathering) maybe_plan(now, effects);
}

bool TrackerMachine::is_named(Incarnation server) const {
  return std::ranges::any_of(plan_.servers(), [&](const wire::Member& m) { return m.incarnation() == server.value; });
}

bool TrackerMachine::is_served(const std::string& host_id) const {
  return std::ranges::any_of(leavers_.servers(), [&](const auto& s) {
    return s.second.member.host_id() == host_id && rank_of(s.first).has_value();
  });
}

bool TrackerMachine::counts_on(Incarnation life) const {
  const auto rank = rank_of(life);
  return leavers_.serves(life) || (rank && members_[*rank].state != MemberState::kGone);
}

void TrackerMachine::tell_server(Incarnation server, Effects& effects) {
  WARREN_CHECK(Generation(plan_.generation()) <= persisted_generation_, "a plan is persisted before it is announced");
  WARREN_CHECK(acting_, "who decides has the promise of most");
  count(Transition::server_told);
  effects.emplace_back(Send{server, envelope_to(server), whole_plan()});
}

void TrackerMachine::drop_server(Incarnation server, const std::string& why, Effects& effects) {
  if (lose_server(server, why, effects)) persist(effects);
}

bool TrackerMachine::lose_server(Incarnation server, const std::string& why, Effects& effects) {
  const wire::Member member = leavers_.remove(server);
  log(Severity::kInfo, "server_gone",
      "worker " + member.worker_id() + " serves what host " + member.host_id() + " has logged no more: " + why, effects,
      {{"worker", member.worker_id()}});
  send_refused(server, Code::kClosed, why, effects);
  // A rank that has come back to this host has what it has replayed, and nobody tells how far that is. One that had a
  // rank in the newest plan is looked at with the next one.
  const bool had_rank = rank_of(server).has_value();
  return !had_rank && left_domains_.size() < settings_.replicas() && left_domains_.insert(member.domain_id()).second;
}

void TrackerMachine::drop_late_servers(TimeMs now, Effects& effects) {
  std::vector<std::pair<Incarnation, std::string>> late;
  for (const auto& [life, server] : leavers_.servers()) {
    // Whoever is to take its place may be waiting for its process to end.
    const bool unneeded = state_ == State::kGathering && !is_named(life) && now >= since_ + timeout_ms();
    if (now >= server.heard + timeout_ms()) {
      count(Transition::server_silent);
      late.emplace_back(life, "it has not been heard for " + std::to_string(now - server.heard) + " ms");
    } else if (now >= server.until) {
      count(Transition::server_over);
      late.emplace_back(life, "its time is over");
    } else if (unneeded) {
      count(Transition::server_unneeded);
      late.emplace_back(life, "the job has waited for a round timeout, and nobody has come for its place");
    } else {
      arm(std::min(server.heard + timeout_ms(), server.until));
      if (state_ == State::kGathering && !is_named(life)) arm(since_ + timeout_ms());
    }
  }
  for (const auto& [life, why] : late) drop_server(life, why, effects);
}

bool TrackerMachine::waits_for_servers(TimeMs now) {
  const TimeMs until = since_ + timeout_ms() / 4;
  if (leavers_.unaware().empty() || now >= until) return false;
  count(Transition::server_awaited);
  arm(until);
  return true;
}

// For a plan that is being made: it is not at one with what is known before it is whole, and is persisted then.
void TrackerMachine::drop_unaware_servers(Effects& effects) {
  for (const Incarnation life : leavers_.unaware()) {
    count(Transition::server_unaware);
    (void)lose_server(life, "the plan that named it has not reached it", effects);
  }
}

void TrackerMachine::dismiss_server(Incarnation server, Code code, const std::string& why, Effects& effects) {
  const wire::Member member = leavers_.remove(server);
  count(Transition::server_dismissed);
  log(Severity::kInfo, "server_gone",
      "worker " + member.worker_id() + " need not serve what host " + member.host_id() + " has logged any more: " + why,
      effects, {{"worker", member.worker_id()}});
  send_refused(server, code, why, effects);
}

void TrackerMachine::dismiss_servers(Code code, const std::string& why, Effects& effects) {
  const auto& servers = leavers_.servers();
  while (!servers.empty()) dismiss_server(servers.begin()->first, code, why, effects);
}

// One that no plan names has left since the checkpoint was taken, or may have. One that had gone beyond it may hold
// what only a rank that is lost had completed besides.
void TrackerMachine::dismiss_unneeded_servers(Effects& effects) {
  std::vector<Incarnation> unneeded;
  for (const auto& [life, server] : leavers_.servers()) {
    if (!is_named(life)) continue;
    if (server.newest < *committed_) {
      unneeded.push_back(life);
    } else {
      count(Transition::server_beyond_commit);
    }
  }
  for (const Incarnation life : unneeded) {
    dismiss_server(life, Code::kClosed, program_version() + " is committed, and nothing older is needed", effects);
  }
}

}  // namespace warren
