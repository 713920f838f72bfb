// Workers that join: whether their settings are the job's, which place is theirs, and who has to wait for one.
#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/job_settings.h"
#include "recovery/wire/peer_checks.h"

namespace warren {

void TrackerMachine::on_join(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  if (state_ == State::kFinished) {
    count(Transition::join_refused_finished);
    return refuse(who, Code::kFinished,
                  "job " + options_.job +
                      " is finished; if this is a new run, start its workers together, or free the name first by "
                      "`warren forget --job=" +
                      options_.job + "`",
                  effects);
  }
  if (const auto rank = rank_of(who)) {
    switch (members_[*rank].state) {
      case MemberState::kActive:
      case MemberState::kFinalizing: return repeat_plan(*rank, now, effects);
      case MemberState::kStopping: count(Transition::interrupt_repeated); return send_interrupt(*rank, effects);
      case MemberState::kSurvivor: count(Transition::join_repeated); return send_welcome(who, effects);
      case MemberState::kGone: return refuse_over(who, join.worker_id(), effects);
    }
  }
  if (waiting_.contains(who)) {
    count(Transition::join_repeated);
    return send_welcome(who, effects);
  }
  if (retired_.contains(who)) return refuse_over(who, join.worker_id(), effects);
  if (refuse_lost(who, join, now, effects)) return;
  if (settings_.world_size() == 0) {
    count(Transition::settings_taken);
    settings_ = copy_of(join.settings());
    settings_from_ = worker_on_host(join.worker_id(), join.host_id());
  } else if (wants_resize(join)) {
    // A spare's time comes when the others have made the job anew.
    return join.spare() ? tell_heard(who, effects) : resize(who, join, now, effects);
  } else if (refuse_settings(who, join, effects)) {
    return;
  }
  if (is_spare(who, join, now)) return on_spare(who, join, now, effects);
  if (state_ == State::kRunning) return join_running(who, join, now, effects);
  join_gathering(who, join, now, effects);
}

std::string TrackerMachine::differing_setting(const wire::JobSettings& s) const {
  const JobDifference found = difference(s, settings_);
  if (found.name.empty()) return {};
  return std::string(found.name) + " " + found.theirs + " is not the job's " + found.ours + ", which " +
         settings_from_ + " set";
}

bool TrackerMachine::refuse_settings(Incarnation who, const wire::Join& join, Effects& effects) {
  if (wants_resize(join)) return false;
  const std::string difference = differing_setting(join.settings());
  if (difference.empty()) return false;
  count(Transition::settings_refused);
  log(Severity::kWarning, "settings_refused",
      worker_on_host(join.worker_id(), join.host_id()) + " was refused: " + difference, effects,
      {{"worker", join.worker_id()}});
  const bool other_size = planned() && join.settings().world_size() != settings_.world_size();
  refuse(who, Code::kRefused,
         difference + "; give all workers of a job the same settings" +
             (other_size ? ", or, to go on from its newest checkpoint with another number of workers, start them all "
                           "with --resize (WARREN_RESIZE=1)"
                         : ""),
         effects);
  return true;
}

bool TrackerMachine::wants_resize(const wire::Join& join) const {
  if (!join.resize() || !planned() || join.settings().world_size() == settings_.world_size()) return false;
  wire::JobSettings same_size = join.settings();
  same_size.set_world_size(settings_.world_size());
  return differing_setting(same_size).empty();
}

// Of members and those who wait to be one, for people: who was heard last.
std::string TrackerMachine::whom_heard(TimeMs now) const {
  TimeMs last;
  std::string who;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (is_vacant(plan_.members(static_cast<int>(rank))) || members_[rank].heard < last) continue;
    last = members_[rank].heard;
    who = name(rank);
  }
  for (const auto& [worker, w] : waiting_) {
    if (w.heard < last) continue;
    last = w.heard;
    who = worker_on_host(worker, w.member.host_id());
  }
  return who.empty() ? "" : "; the last was " + who + ", " + seconds_text(now - last) + " ago";
}

// From nothing but the newest checkpoint: what was computed after it, and set-up rounds, are of a world of the old
// size.
void TrackerMachine::resize(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  // Those who were told to start again may be on their way for so long; who was lost has had that time already.
  const bool over = state_ == State::kGathering &&
                    std::ranges::all_of(members_, [&](const Member& m) { return now >= m.heard + timeout_ms(); });
  if (!over || !waiting_.empty()) {
    // The worker asks again. A silent member is given up after a round timeout.
    count(Transition::resize_waits);
    if (now >= next_resize_log_) {
      next_resize_log_ = now + kWaitLogIntervalMs;
      log(Severity::kInfo, "resize_waits",
          worker_on_host(join.worker_id(), join.host_id()) + " asks for " +
              std::to_string(join.settings().world_size()) + " workers: job " + options_.job +
              " goes on with so many once it is sure that none of the " + std::to_string(plan_.members_size()) +
              " of its last run lives, which is when none has been heard for " + seconds_text(timeout_ms()) +
              whom_heard(now),
          effects, {{"worker", join.worker_id()}});
    }
    return tell_heard(who, effects);
  }
  count(Transition::resized);
  end_calls();
  leaves_.reset();
  excluded_.clear();
  dismiss_servers(Code::kClosed, "the job goes on from its newest checkpoint, with another number of workers", effects);
  const std::string was = std::to_string(plan_.members_size());
  settings_ = copy_of(join.settings());
  settings_from_ = worker_on_host(join.worker_id(), join.host_id());
  retired_.keep(limits::retired_lives(settings_.world_size()));
  for (const auto& [life, rank] : rank_by_incarnation_) retire(life);
  members_.clear();
  absent_ = 0;
  rank_by_incarnation_.clear();
  place_by_worker_.clear();
  free_places_.clear();
  resized_ = true;
  log(Severity::kWarning, "resized",
      settings_from_ + " asks for " + std::to_string(settings_.world_size()) + " workers, and none of the " + was +
          " of job " + options_.job + " lives: it goes on from " + program_version() + " with so many",
      effects);
  join_gathering(who, join, now, effects);
}

// Those who wanted it are gone: the job is as it was.
void TrackerMachine::undo_resize() {
  count(Transition::resize_undone);
  resized_ = false;
  settings_ = plan_.settings();
  settings_from_ = "the plan of generation " + std::to_string(plan_.generation());
  members_.resize(static_cast<std::size_t>(plan_.members_size()));
  absent_ = count_absent();
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const wire::Member& m = plan_.members(static_cast<int>(rank));
    members_[rank].state = MemberState::kGone;
    free_places_.insert(rank);
    if (is_vacant(m)) continue;
    rank_by_incarnation_[Incarnation(m.incarnation())] = rank;
    place_by_worker_[m.worker_id()] = rank;
  }
}

void TrackerMachine::join_running(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  const auto place = place_of(join.worker_id());
  if (!place) {
    count(Transition::join_refused_full);
    return refuse(who, Code::kRefused,
                  "job " + options_.job + " has all its " + std::to_string(members_.size()) + " workers and " +
                      join.worker_id() + " is none of them; start fewer workers, or use another job name",
                  effects);
  }
  if (refuse_finalized(*place, who, effects)) return;
  replace_member(*place, join.attempt(), now, effects);
  join_gathering(who, join, now, effects);
}

// The program of such a rank has ended; where nothing is logged, a new life would run it from its beginning, alone.
bool TrackerMachine::refuse_finalized(std::size_t place, Incarnation who, Effects& effects) {
  if (members_[place].state != MemberState::kFinalizing || logged()) return false;
  count(Transition::join_refused_finalizing);
  refuse(who, Code::kClosed,
         name(place) + " has finalized in an earlier life and job " + options_.job +
             " ends when the other ranks have; do not start it again",
         effects);
  return true;
}

void TrackerMachine::replace_member(std::size_t place, std::uint32_t attempt, TimeMs now, Effects& effects) {
  count(Transition::join_replaced_member);
  const Incarnation old_life(plan_.members(static_cast<int>(place)).incarnation());
  const bool counted = attempt > members_[place].attempt;  // by a launcher
  lose(place);
  interrupt(Code::kPeerLost,
            name(place) + " was started again while its previous life was a member" +
                (counted ? "" : " (if it was not, two processes use this worker id)"),
            {}, now, effects);
  refuse_replaced(old_life, name(place), effects);
}

void TrackerMachine::refuse_replaced(Incarnation old_life, const std::string& whose, Effects& effects) {
  refuse(old_life, Code::kClosed,
         "a newer life of " + whose + " has joined; if that is not meant, give each process a worker id of its own",
         effects);
}

bool TrackerMachine::has_other_life(const std::string& worker, Incarnation who) const {
  const Waiting* const waits = waiting_.find(worker);
  if (waits != nullptr && waits->id() != who) return true;
  const Spare* const spare = spares_.find(worker);
  if (spare != nullptr && spare->life != who) return true;
  const auto place = place_of(worker);
  return place && members_[*place].state != MemberState::kGone &&
         plan_.members(static_cast<int>(*place)).incarnation() != who.value;
}

// Another life of a process whose worker id somebody has by now would throw that one out.
void TrackerMachine::refuse_over(Incarnation who, const std::string& worker, Effects& effects) {
  if (lost() || !has_other_life(worker, who)) return refuse_stale(who, effects);
  count(Transition::stale_life);
  refuse_replaced(who, "worker " + worker, effects);
}

void TrackerMachine::replace_waiting(const std::string& worker, Effects& effects) {
  count(Transition::join_replaced_waiting);
  const Incarnation old_life = waiting_.at(worker).id();
  remove_waiting(worker);
  retire(old_life);
  refuse_replaced(old_life, "worker " + worker, effects);
}

void TrackerMachine::join_gathering(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  const std::string& worker = join.worker_id();
  // A member's join to the tracker before this one, which is late.
  if (rebuilding_ && rebuilding_->strangers.contains(who)) return count(Transition::out_of_turn);
  // The machine does not know who has a place before the members have told. The worker asks again.
  if (rebuilding_ && waiting_.size() >= settings_.world_size() && !waiting_.contains(worker)) {
    return count(Transition::out_of_turn);
  }
  const auto place = place_of(worker);
  if (waiting_.contains(worker)) replace_waiting(worker, effects);
  std::optional<std::size_t> takes;
  if (const Spare* const spare = spares_.find(worker)) {
    if (spare->life != who) {
      replace_spare(worker, effects);
    } else {
      const Spare answers = spares_.take(worker);
      if (answers.call && answers.call->place != place) takes = answers.call->place;
      count(Transition::spare_answered);
    }
  }
  const bool candidate = has_places() && !place;
  if (candidate && candidates() >= free_places_.size()) {
    count(Transition::join_refused_no_place);
    return refuse(who, Code::kRefused,
                  "no place in job " + options_.job + " for worker " + worker + ": " +
                      (free_places_.empty() ? "all its workers are there"
                                            : "others wait for the places of " + comma_list(missing_workers())) +
                      "; start fewer workers, or use another job name",
                  effects);
  }
  join_timeout_ms_ = std::max(join_timeout_ms_, static_cast<std::int64_t>(join.join_timeout_ms()));
  Waiting w = waiting_from(who, join);
  take_held(w, join, effects);
  take_logged(w, join);
  look_for_what_is_out_of_reach(w);
  w.arrival = ++arrivals_;
  w.heard = arrived_ = now;
  w.candidate = candidate;
  w.takes = takes;
  if (waiting_.empty()) next_log_ = std::max(next_log_, now + kWaitLogIntervalMs);
  waiting_.add(std::move(w));
  if (place) free_places_.erase(*place);
  ++joins_;
  if (place) {
    // The place's own worker is there.
    end_call(*place);
    const auto& takers = waiting_.takers();
    if (const auto taker = takers.find(*place); taker != takers.end()) displace(std::string(taker->second), effects);
  }
  if (join.called() == 0 && has_places() && logged()) give_places_back_to(join.host_id(), effects);
  refuse_surplus_candidates(effects);
  arm(now + interval_ms());
  count(candidate ? Transition::join_candidate : place ? Transition::join_returned : Transition::join_taken);
  log_joined(join, candidate, takes, effects);
  send_welcome(who, effects);
  if (place && members_[*place].state == MemberState::kStopping) {
    // A new life of a worker says that the old one has stopped.
    count(Transition::join_while_stopping);
    lose(*place);
  }
  if (state_ == State::kInterrupted) maybe_gather(now, effects);
  if (state_ == State::kGathering) maybe_plan(now, effects);
}

TrackerMachine::Waiting TrackerMachine::waiting_from(Incarnation who, const wire::Join& join) {
  Waiting w;
  w.member.set_incarnation(who.value);
  w.member.set_worker_id(join.worker_id());
  w.member.set_host_id(join.host_id());
  w.member.set_domain_id(join.domain_id());
  w.member.set_fetch_port(join.fetch_port());
  w.member.set_segment_socket(join.segment_socket());
  for (const wire::Endpoint& from : join.endpoints()) {
    wire::Endpoint& to = *w.member.add_endpoints();
    to.set_address(from.address());
    to.set_port(from.port());
  }
  if (join.has_traits()) *w.member.mutable_traits() = checks::known_fields(join.traits());
  w.member.set_waits(join.waits());
  w.attempt = join.attempt();
  w.called = Generation(join.called());
  w.resize = join.resize();
  return w;
}

void TrackerMachine::log_joined(const wire::Join& join, bool candidate, std::optional<std::size_t> takes,
                                Effects& effects) const {
  const std::string& worker = join.worker_id();
  log(Severity::kInfo, "worker_joined",
      worker_on_host(worker, join.host_id()) + " joined job " + options_.job + ", which has " +
          std::to_string(waiting_.size()) + " of " + std::to_string(settings_.world_size()) + " workers" +
          (takes       ? "; it was a spare, and takes the place of " + name(*takes)
           : candidate ? "; it waits for the place of a worker that does not come back"
                       : "") +
          (join.attempt() == 0 ? "" : " (started again " + std::to_string(join.attempt()) + " times)"),
      effects, {{"worker", worker}});
}

// A report that is too long to keep shrinks to the disk's job and its newest commit. The rounds then count as not held,
// and the disk as not empty.
void TrackerMachine::take_held(Waiting& w, const wire::Join& join, Effects& effects) {
  if (!join.has_held() || !logged() || (planned() && join.held().run() != plan_.run())) return;
  w.held = join.held();
  const bool learns = may_be_older_ && may_learn() && is_newer(w.held->known());
  if (planned() && !learns) w.held->mutable_known()->clear_plan();
  if (!waiting_.has_room_for(w.join_bytes())) {
    count(Transition::held_too_large);
    log(Severity::kWarning, "disk_report_dropped",
        "what the disks of job " + options_.job + " hold takes more than " +
            std::to_string(WaitingRoom::kJoinRoomBytes) + " bytes to say; the rounds of " +
            worker_on_host(join.worker_id(), join.host_id()) + " count as lost",
        effects, {{"worker", join.worker_id()}});
    w.held->clear_rounds();
    w.held->mutable_known()->clear_plan();
    w.held->mutable_known()->clear_setups();
  }
}

// Without it rounds that only dead lives have seen are computed again: as if their memory had been lost too.
void TrackerMachine::take_logged(Waiting& w, const wire::Join& join) const {
  if (!join.has_logged() || !logged()) return;
  if (waiting_.has_room_for(w.join_bytes() + join.logged().ByteSizeLong())) w.logged = join.logged();
}

void TrackerMachine::refuse_surplus_candidates(Effects& effects) {
  while (candidates() > free_places_.size()) {
    displace(std::string(waiting_.last_candidate().member.worker_id()), effects);
  }
}

void TrackerMachine::erase_waiting(const std::string& worker_id) {
  if (const auto place = place_of(worker_id)) free_places_.insert(*place);
  waiting_.remove(worker_id);
}

void TrackerMachine::clear_waiting() {
  waiting_.clear();
  leavers_.forget_farewells();
}

void TrackerMachine::remove_waiting(const std::string& worker_id) {
  if (waiting_.at(worker_id).report) {
    count(Transition::survivor_lost);
    lose(*place_of(worker_id));
  }
  erase_waiting(worker_id);
}

}  // namespace warren
