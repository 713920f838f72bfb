// What survives an interrupt, and which version of the program is safe to start from: reports, loads, votes, commits.
// Other messages are in tracker_machine.cc, and how generations begin and end in generations.cc.
#include <algorithm>
#include <list>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/decide/frontier.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"

namespace warren {

using tracker_effect::Send;

void TrackerMachine::on_report(Incarnation who, const wire::Report& r, TimeMs now, Effects& effects) {
  if (state_ == State::kFinished && r.generation() == generation_.value) return count(Transition::out_of_turn);
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  if (r.generation() > generation_.value) return catch_up(*rank, r.generation(), now, effects);
  Member& m = members_[*rank];
  switch (m.state) {
    case MemberState::kActive:
    case MemberState::kFinalizing:
      // Its plan was lost, or this is an echo.
      m.plan_generation = Generation(r.plan_generation());
      return repeat_plan(*rank, now, effects);
    case MemberState::kSurvivor: count(Transition::report_repeated); return send_welcome(who, effects);
    default: break;
  }
  if (r.generation() != generation_.value || !interrupt_.resume()) {
    count(Transition::interrupt_repeated);
    return send_interrupt(*rank, effects);
  }
  if (without_frontier_ && r.plan_generation() < plan_.generation()) {
    // It did not get the plan that a disk knows, and nobody can tell it how far rounds had come: it begins anew.
    lose(*rank);
    refuse_stale(who, effects);
    return maybe_gather(now, effects);
  }
  const std::size_t bytes = r.ByteSizeLong();
  if (!has_room_for(bytes)) {
    count(Transition::reports_too_large);
    return roll_back(Code::kUnavailable,
                     "the reports of where the ranks of job " + options_.job + " are take more than " +
                         std::to_string(limits::kMaxPositionBytesPerJob) + " bytes",
                     now, effects);
  }
  count(Transition::report_taken);
  if (Timeline(r.timeline()) > timeline_) return fall_behind(*rank, r, now, effects);
  if (r.committed_version() != 0 && Timeline(r.committed_timeline()) == timeline_) {
    learn_commit(Version(r.committed_version()), timeline_, effects);
  }
  m.state = MemberState::kSurvivor;
  Waiting w;
  w.member = plan_.members(static_cast<int>(*rank));
  w.report = r;
  w.attempt = m.attempt;
  w.arrival = ++arrivals_;
  w.heard = now;
  log(Severity::kInfo, "worker_reported",
      name(*rank) + " has stopped in " + of_program(Version(r.version())) + " and waits for the next generation",
      effects, {{"rank", std::to_string(*rank)}, {"version", std::to_string(r.version())}});
  free_places_.erase(*rank);
  answered_ = now;
  waiting_.add(std::move(w));
  refuse_surplus_candidates(effects);
  send_welcome(who, effects);
  maybe_gather(now, effects);
}

void TrackerMachine::catch_up(std::size_t rank, std::uint64_t generation, TimeMs now, Effects& effects) {
  if (!logged() || generation - generation_.value > kMostGenerationsBehind) return count(Transition::out_of_turn);
  count(Transition::generation_ahead);
  const std::string what = name(rank) + " speaks of generation " + std::to_string(generation) +
                           ", the tracker's journal ends at generation " + std::to_string(generation_.value) +
                           ": it is an older copy";
  const bool resume = interrupt_.generation() == 0 || interrupt_.resume();
  generation_ = Generation(generation);
  if (resume) return end_generation(Code::kPeerLost, what, {}, Ending::kResumes, now, effects);
  roll_back(Code::kPeerLost, what, now, effects);
}

// A job of the same name that began anew has rounds of the same names.
bool TrackerMachine::continues(const wire::Logged& logged) const {
  return logged.run() == plan_.run() && logged.timeline() == timeline_.value;
}

Result<std::vector<wire::Position>> TrackerMachine::next_frontier(bool with_inherited) const {
  std::vector<RankPositions> reports;
  for (const auto& [worker, w] : waiting_) {
    // A plan that it has not heard of has ended the timeline of what it is in.
    const bool finals = !shrinks() || (w.report && w.report->timeline() == timeline_.value);
    if (w.report) reports.push_back({Rank(static_cast<std::int32_t>(w.member.rank())), &*w.report, finals});
  }
  std::vector<const wire::Position*> before, logged, served;
  std::list<wire::Position> on_disk, only_done;
  if (with_inherited) {
    for (const wire::Position& p : plan_.frontier()) before.push_back(&p);
    for (const auto& [life, server] : leavers_.servers()) {
      // What one that was named before has completed is in the plan's frontier, unless that proved wrong since.
      if (is_named(life) || !continues(server.logged)) continue;
      for (const wire::Position& p : server.logged.positions()) served.push_back(&p);
    }
    for (const Farewell& f : leavers_.farewells()) {
      if (!continues(f.said.logged())) continue;
      const bool there = is_there_still(f);
      for (const wire::Position& p : f.said.logged().positions()) {
        if (there) {
          served.push_back(&p);
          continue;
        }
        wire::Position& done = only_done.emplace_back();
        done.set_group(p.group());
        done.set_version(p.version());
        done.set_rounds(p.rounds());
        served.push_back(&done);
      }
    }
    for (const auto& [worker, w] : waiting_) {
      const wire::Logged& l = w.in_memory();
      if (continues(l)) {
        for (const wire::Position& p : l.positions()) logged.push_back(&p);
      }
      // A log that was full has left rounds on disk alone.
      if (!w.held) continue;
      for (const wire::HeldRounds& r : w.held->rounds()) {
        if (r.timeline() != timeline_.value || r.runs().empty()) continue;
        const wire::HeldRun& newest = *r.runs().rbegin();
        wire::Position& p = on_disk.emplace_back();
        logged.push_back(&p);
        p.set_group(r.group());
        p.set_version(r.version());
        p.set_rounds(newest.first() + newest.count() - 1);
        *p.mutable_final() = newest.held();
        if (r.group() != kWorldGroup.value) continue;
        if (!p.final().empty()) p.set_total_bytes(newest.total_bytes());
        p.set_empty(newest.total_bytes() == 0);
      }
    }
  }
  return merge_frontier(reports, before, logged, served, committed_,
                        [this](Rank rank) { return name(static_cast<std::size_t>(rank.value)); });
}

Result<std::vector<wire::Setup>> TrackerMachine::next_setups(bool goes_on) const {
  // What is done stays so in all timelines, whoever is left: its result may be part of what was committed.
  std::vector<const google::protobuf::RepeatedPtrField<wire::Setup>*> lists{&setups_}, served;
  std::list<google::protobuf::RepeatedPtrField<wire::Setup>> of_leavers;
  const auto add = [&](const auto& setups, const wire::Logged& logged, bool there = true) {
    auto& counted = of_leavers.emplace_back();
    for (const wire::Setup& s : setups) {
      if (s.done() || (there && goes_on && continues(logged))) *counted.Add() = s;
    }
    served.push_back(&counted);
  };
  for (const auto& [life, server] : leavers_.servers()) {
    // Those of one that was named before are known, or were forgotten.
    if (!is_named(life)) add(server.setups, server.logged);
  }
  for (const Farewell& f : leavers_.farewells()) add(f.said.setups(), f.said.logged(), is_there_still(f));
  for (const auto& [worker, w] : waiting_) {
    if (w.report) lists.push_back(&w.report->setups());
    const wire::Logged& l = w.in_memory();
    if (goes_on && continues(l)) lists.push_back(&l.setups());
  }
  return merge_setups(lists, served, timeline_);
}

void TrackerMachine::keep(std::vector<wire::Setup> setups) {
  std::erase_if(setups, [](const wire::Setup& s) { return !s.done(); });
  std::set<std::pair<std::uint64_t, std::uint64_t>> before;
  for (const wire::Setup& s : setups_) before.emplace(s.group(), s.name());
  for (const wire::Setup& s : setups) {
    if (!commit_learned_ && !before.contains({s.group(), s.name()})) {
      setups_since_commit_.emplace(s.group(), s.name());
    }
  }
  setups_.Clear();
  for (wire::Setup& s : setups) *setups_.Add() = std::move(s);
}

// A call that the others do not make may have finished with a wrong result, as a broadcast does at its root: nothing
// that was committed goes on from it, and all processes make it again. After a restart nobody knows any more which
// these are, unless nothing is committed.
void TrackerMachine::forget_uncommitted_setups() {
  google::protobuf::RepeatedPtrField<wire::Setup> committed;
  for (wire::Setup& s : setups_) {
    if (committed_ && !setups_since_commit_.contains({s.group(), s.name()})) *committed.Add() = std::move(s);
  }
  setups_.Swap(&committed);
  setups_since_commit_.clear();
}

Version TrackerMachine::next_version() const {
  return committed_ ? committed_->next() : kFirstCommit;
}

std::string TrackerMachine::program_version() const {
  return committed_ ? of_program(*committed_) : "the beginning";
}

void TrackerMachine::on_load(Incarnation who, Effects& effects) {
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  if (members_[*rank].state != MemberState::kActive) return count(Transition::out_of_turn);
  if (ballot_.drop(*rank)) count(Transition::vote_voided_by_load);
  count(Transition::load_answered);
  wire::Envelope e = envelope_to(who);
  wire::Loaded& loaded = *e.mutable_loaded();
  loaded.set_committed(committed_.has_value());
  loaded.set_version(committed_.value_or(Version()).value);
  loaded.set_timeline(committed_timeline_.value);
  effects.emplace_back(Send{who, std::move(e)});
}

void TrackerMachine::on_vote(Incarnation who, const wire::Vote& v, TimeMs now, Effects& effects) {
  // Who waits for Finished may repeat a vote that nobody needs any more.
  if (state_ == State::kFinished) return count(Transition::out_of_turn);
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  if (state_ != State::kRunning || !logged() || v.timeline() != timeline_.value ||
      v.generation() != plan_.generation()) {
    return count(Transition::out_of_turn);
  }
  if (Version(v.version()) < next_version()) {
    count(Transition::vote_of_committed);
    if (committed_) send_committed(who, effects);
    return;
  }
  // A checkpoint is taken when the one before is committed: the journal lacks that, or this rank is alone in its
  // belief.
  if (Version(v.version()) > next_version() && ballot_.votes() == 0)
    learn_commit(Version(v.version() - 1), timeline_, effects);
  if (Version(v.version()) != next_version()) return count(Transition::out_of_turn);
  if (ballot_.repeats(*rank, v)) return count(Transition::vote_repeated);
  if (!has_room_for(ballot_.bytes_of(*rank, v))) {
    count(Transition::reports_too_large);
    return roll_back(Code::kUnavailable,
                     "the counts of rounds in the votes of job " + options_.job + " take more than " +
                         std::to_string(limits::kMaxPositionBytesPerJob) + " bytes",
                     now, effects);
  }
  const bool first_word = ballot_.take(*rank, v, now);
  count(v.lacks() ? Transition::state_told : Transition::vote_taken);
  if (checkpoints_differ(now, effects)) return;
  // A rank that lacks something may wait for what a rank with another state never has. So states are compared before
  // all votes are there, and not again with each vote that follows.
  if (first_word && ballot_.states() == present() && states_differ(now, effects)) return;
  if (ballot_.votes() == present()) commit(now, effects);
}

// A rank in finalize takes no more checkpoints. So a later version that another rank has begun is never committed, and
// ranks that wait for that would wait for ever. Numbers decide this, and not time: a vote that still waits for a disk
// is for the rank's last version, or an older one.
bool TrackerMachine::checkpoints_differ(TimeMs now, Effects& effects) {
  const auto& first = last_versions_.oldest();
  if (!first || !logged() || first->version >= next_version()) return false;
  const LastVersions::Last& last = *last_versions_.newest();
  const bool voted = !ballot_.empty();
  if (!voted && last.version < next_version()) return false;
  count(Transition::finalized_early);
  const std::string other = voted ? name(ballot_.any_rank()) + " has taken " + of_program(next_version())
                                  : name(last.rank) + " has called finalize in " + of_program(last.version);
  interrupt(
      Code::kDesync,
      name(first->rank) + " has called finalize in " + of_program(first->version) + ", and " + other +
          ", which can never be committed: all ranks have to take the same checkpoints, and the log of the first one "
          "says it if one failed there",
      {}, now, effects);
  return true;
}

bool TrackerMachine::states_differ(TimeMs now, Effects& effects) {
  const std::string difference = ballot_.differing_states([this](std::size_t rank) { return name(rank); });
  if (difference.empty()) return false;
  count(Transition::states_differ);
  roll_back(Code::kDesync,
            "the ranks have given different states for " + of_program(next_version()) + ", which is not committed: " +
                difference + "; give equal bytes on all ranks, and what differs by rank as local states",
            now, effects);
  return true;
}

// Of what reports, votes and farewells say.
bool TrackerMachine::has_room_for(std::size_t bytes) const {
  return waiting_.report_bytes() + leavers_.farewell_bytes() + ballot_.bytes() + bytes <=
         limits::kMaxPositionBytesPerJob;
}

void TrackerMachine::commit(TimeMs now, Effects& effects) {
  const auto name_of = [this](std::size_t rank) { return name(rank); };
  if (const std::string difference = ballot_.differing_counts(name_of); !difference.empty()) {
    count(Transition::commit_desync);
    return roll_back(Code::kDesync, difference, now, effects);
  }
  if (states_differ(now, effects)) return;
  if (const std::string stale = ballot_.stale_copy(name_of); !stale.empty()) {
    count(Transition::states_differ);
    return roll_back(Code::kUnavailable,
                     stale + ", of " + of_program(next_version()) +
                         ", which is not committed: the two must not be mixed, so all ranks go back to the checkpoint "
                         "before",
                     now, effects);
  }
  std::vector<const google::protobuf::RepeatedPtrField<wire::Setup>*> lists = ballot_.setups();
  lists.insert(lists.begin(), &setups_);
  auto setups = merge_setups(lists, {}, timeline_);
  if (!setups.ok()) {
    count(Transition::commit_desync);
    return roll_back(setups.status().code(), setups.status().describe(), now, effects);
  }
  keep(std::move(setups).value());
  setups_since_commit_.clear();
  commit_learned_ = false;
  count(Transition::committed);
  committed_ = next_version();
  committed_timeline_ = timeline_;
  left_domains_.clear();
  count_missing_copies();
  ballot_.clear();
  persist(effects);
  log(Severity::kDebug, "committed", of_program(*committed_) + " of job " + options_.job + " is committed", effects,
      {{"version", std::to_string(committed_->value)}});
  for (const auto& [life, rank] : rank_by_incarnation_) {
    if (!absent(rank)) send_committed(life, effects);
  }
  dismiss_unneeded_servers(effects);
  if (suspended_) look_at_protection(effects);
  take_in(now, effects);
}

// It was told of this commit, or has seen that it was made, in this timeline: all had voted for it. A tracker announces
// what its journal holds, so that journal is not this one: this was made up from what others told, or is an older copy.
// Nobody has loaded an older version since: that takes a new plan, before which all who go on report.
void TrackerMachine::learn_commit(Version version, Timeline timeline, Effects& effects) {
  if (committed_ && version <= *committed_) return;
  count(Transition::commit_learned);
  // Which set-up rounds were part of it nobody tells.
  setups_since_commit_.clear();
  commit_learned_ = true;
  committed_ = version;
  committed_timeline_ = timeline;
  ballot_.clear();
  persist(effects);
  log(Severity::kInfo, "commit_learned",
      of_program(*committed_) + " of job " + options_.job +
          " is committed, as a member knows; the journal did not hold it",
      effects, {{"version", std::to_string(committed_->value)}});
  // Those that have left since it was made may have begun what comes after it.
  dismiss_unneeded_servers(effects);
}

void TrackerMachine::send_committed(Incarnation who, Effects& effects) const {
  WARREN_CHECK(committed_ == persisted_commit_, "a commit is persisted before it is announced");
  wire::Envelope e = envelope_to(who);
  e.mutable_committed()->set_version(committed_->value);
  e.mutable_committed()->set_timeline(committed_timeline_.value);
  effects.emplace_back(Send{who, std::move(e)});
}

void TrackerMachine::on_log_gap(Incarnation who, const wire::LogGap& g, TimeMs now, Effects& effects) {
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  if (state_ != State::kRunning || !logged() || g.generation() != plan_.generation())
    return count(Transition::out_of_turn);
  count(Transition::log_gap);
  // Where something is computed again, what they hold of it would be another attempt's.
  const auto& servers = leavers_.servers();
  while (!servers.empty()) drop_server(servers.begin()->first, "the log misses results all the same", effects);
  if (g.has_checkpoint()) return on_checkpoint_lost(*rank, g, now, effects);
  if (g.has_setup()) {
    count(Transition::log_gap_of_setup);
    if (!survivors_setups_.contains({g.setup().group(), g.setup().name()}) && plan_.kept().empty() &&
        g.setup().timeline() == timeline_.value &&
        (!committed_ || setups_since_commit_.contains({g.setup().group(), g.setup().name()}))) {
      // Whoever had completed it is gone, and it is no part of what was committed: who calls it has its input.
      count(Transition::log_gap_of_inherited);
      google::protobuf::RepeatedPtrField<wire::Setup> others;
      for (const wire::Setup& s : setups_) {
        if (s.group() != g.setup().group() || s.name() != g.setup().name()) *others.Add() = s;
      }
      setups_.Swap(&others);
      return end_generation(Code::kPeerLost,
                            name(*rank) + " misses a set-up round that only ranks which are gone have seen (" +
                                g.reason() + "); it is computed again",
                            {}, Ending::kResumes, now, effects);
    }
    setups_.Clear();
  } else if (const auto lacks = lack()) {
    // Where something is computed again, what is left of later rounds would be another attempt's.
    return undo_unprotected(name(*rank) + " misses results (" + g.reason() + "), and " + lack_text(*lacks), now,
                            effects);
  } else if (frontier_inherited_ && (plan_.kept().empty() || shrinks()) && !g.renumbers()) {
    // Whoever had completed those rounds is gone, and what its hosts alone held too; who is in them has its input.
    count(Transition::log_gap_of_inherited);
    distrust_inherited_ = true;
    return end_generation(Code::kPeerLost,
                          name(*rank) + " misses results that only ranks which are gone have seen (" + g.reason() +
                              "); they are computed again",
                          {}, Ending::kResumes, now, effects);
  }
  // Where disks said that they hold it, what is left of it there must not meet what would be computed again.
  roll_back(Code::kPeerLost, name(*rank) + " misses results that the log does not hold any more: " + g.reason(), now,
            effects);
}

void TrackerMachine::log_vote_wait(TimeMs now, Effects& effects) {
  if (ballot_.votes() == 0 || now - ballot_.since() < kWaitLogIntervalMs) return;
  count(Transition::vote_wait_logged);
  std::string others;
  std::size_t shown = 0;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (ballot_.has_voted(rank) || absent(rank)) continue;
    if (shown++ < kNamesInText) others += (others.empty() ? "" : ", ") + name(rank);
  }
  std::string troubles;
  for (const std::string& line : disk_troubles()) troubles += "; " + line;
  log(Severity::kInfo, "commit_waits",
      std::to_string(ballot_.votes()) + " of " + std::to_string(present()) + " ranks of job " + options_.job +
          " have stored " + of_program(next_version()) + "; it waits for " + others +
          (shown > kNamesInText ? " and others" : "") + troubles,
      effects);
}

}  // namespace warren
