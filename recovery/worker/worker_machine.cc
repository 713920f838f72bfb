#include "recovery/worker/worker_machine.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/plan_changes.h"

namespace warren {

using worker_effect::Called;
using worker_effect::Committed;
using worker_effect::Fail;
using worker_effect::Follow;
using worker_effect::Install;
using worker_effect::Loaded;
using worker_effect::Log;
using worker_effect::Send;
using worker_effect::Spare;
using worker_effect::StopDataPath;
using worker_effect::TrackerAway;

enum class WorkerMachine::Transition : std::uint8_t {
  kStarted,
  kJoinRepeated,
  kWelcomed,
  kRefusedJoining,
  kJoinTimedOutUnheard,
  kJoinTimedOutIncomplete,
  kInterruptedJoining,
  kInstalled,
  kPlanForOther,
  kPlanStale,
  kHeartbeat,
  kLinkBrokenReported,
  kLinkBrokenRepeated,
  kPeerGoneReported,
  kPeerGoneReportedSuspended,
  kPeerGoneRepeatedSuspended,
  kRoundFailedReported,
  kRoundFailedRepeated,
  kReportTimedOut,
  kReportStale,
  kInterrupted,
  kInterruptedLeaving,
  kInterruptedStopping,
  kInterruptStale,
  kStoppedRepeated,
  kStopped,
  kStoppedStale,
  kFencedMember,
  kFencedLeaving,
  kFencedStopped,
  kLeaving,
  kLeaveRepeated,
  kLeaveTimedOut,
  kGaveUpJoining,
  kGaveUpMember,
  kGaveUpLeaving,
  kFinished,
  kNotForUs,
  kOutOfTurn,
  kTrackerAway,
  kTrackerSilent,
  kTrackerBack,
  kTrackerChanged,
  kConnectionTrouble,
  kSuspended,
  kSuspendedJoining,
  kReinstalled,
  kReportRepeated,
  kWelcomedSuspended,
  kInterruptedSuspended,
  kEndedSuspended,
  kLoading,
  kLoadRepeated,
  kLoaded,
  kVoted,
  kStateTold,
  kVoteRepeated,
  kCommitVotedAgain,
  kCommitted,
  kLogGapReported,
  kLogGapRepeated,
  kGaveUpSuspended,
  kFinalizeDeferred,
  kFencedSuspended,
  kSuspendTimedOut,
  kTold,
  kPromised,
  kTermRefused,
  kDraining,
  kSpare,
  kSpareReturned,
  kSpareRepeated,
  kSpareWelcomed,
  kSpareUnneeded,
  kSpareRefused,
  kCalled,
  kCalledRepeated,
  kCalledAgain,
  kLooked,
  kLookedStale,
  kGaveUpSpare,
  kPlanForSpare,
  kSpareForgot,
  kFollows,
  kFollowStale,
  kLeaveRequested,
  kLeaveRequestRepeated,
  kLeaveRequestStale,
  kServing,
  kServingSuspended,
  kServesRepeated,
  kServesPlan,
  kServesPlanStale,
  kServedUntilTold,
  kServedItsTime,
};

namespace {
constexpr const char* kTransitionNames[] = {
    "started",
    "join_repeated",
    "welcomed",
    "refused_joining",
    "join_timed_out_unheard",
    "join_timed_out_incomplete",
    "interrupted_joining",
    "installed",
    "plan_for_other",
    "plan_stale",
    "heartbeat",
    "link_broken_reported",
    "link_broken_repeated",
    "peer_gone_reported",
    "peer_gone_reported_suspended",
    "peer_gone_repeated_suspended",
    "round_failed_reported",
    "round_failed_repeated",
    "report_timed_out",
    "report_stale",
    "interrupted",
    "interrupted_leaving",
    "interrupted_stopping",
    "interrupt_stale",
    "stopped_repeated",
    "stopped",
    "stopped_stale",
    "fenced_member",
    "fenced_leaving",
    "fenced_stopped",
    "leaving",
    "leave_repeated",
    "leave_timed_out",
    "gave_up_joining",
    "gave_up_member",
    "gave_up_leaving",
    "finished",
    "not_for_us",
    "out_of_turn",
    "tracker_away",
    "tracker_silent",
    "tracker_back",
    "tracker_changed",
    "connection_trouble",
    "suspended",
    "suspended_joining",
    "reinstalled",
    "report_repeated",
    "welcomed_suspended",
    "interrupted_suspended",
    "ended_suspended",
    "loading",
    "load_repeated",
    "loaded",
    "voted",
    "state_told",
    "vote_repeated",
    "commit_voted_again",
    "committed",
    "log_gap_reported",
    "log_gap_repeated",
    "gave_up_suspended",
    "finalize_deferred",
    "fenced_suspended",
    "suspend_timed_out",
    "told",
    "promised",
    "term_refused",
    "draining",
    "spare",
    "spare_returned",
    "spare_repeated",
    "spare_welcomed",
    "spare_unneeded",
    "spare_refused",
    "called",
    "called_repeated",
    "called_again",
    "looked",
    "looked_stale",
    "gave_up_spare",
    "plan_for_spare",
    "spare_forgot",
    "follows",
    "follow_stale",
    "leave_requested",
    "leave_request_repeated",
    "leave_request_stale",
    "serving",
    "serving_suspended",
    "serves_repeated",
    "serves_plan",
    "serves_plan_stale",
    "served_until_told",
    "served_its_time",
};

// More broken links than this say nothing new.
constexpr std::size_t kMaxBrokenLinks = 64;

std::string seconds(std::int64_t ms) {
  if (ms >= 10'000 || ms % 1000 == 0) return std::to_string(ms / 1000) + " s";
  return std::to_string(ms) + " ms";
}

std::string list(const google::protobuf::RepeatedPtrField<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

std::span<const char* const> WorkerMachine::transition_names() {
  return kTransitionNames;
}

WorkerMachine::WorkerMachine(Options options)
    : options_(std::move(options)), transitions_(std::size(kTransitionNames), 0) {
  static_assert(std::size(kTransitionNames) == static_cast<std::size_t>(Transition::kServedItsTime) + 1);
  WARREN_CHECK(validate(options_.join).ok(), "whoever makes a worker machine has validated its join");
  WARREN_CHECK(options_.self.value != 0 && options_.join_timeout_ms > 0, "incarnation and join timeout are given");
}

void WorkerMachine::count(Transition transition) {
  ++transitions_[static_cast<std::size_t>(transition)];
}

WorkerMachine::State WorkerMachine::state() const {
  return state_;
}
Generation WorkerMachine::generation() const {
  return Generation(plan_.generation());
}

std::int64_t WorkerMachine::welcomed_interval_ms() const {
  return static_cast<std::int64_t>(options_.join.settings().round_timeout_ms()) / limits::kJoinsPerRoundTimeout;
}
std::int64_t WorkerMachine::interval_ms() const {
  return heartbeat_interval_ms(static_cast<std::int64_t>(options_.join.settings().round_timeout_ms()));
}

std::string WorkerMachine::who() const {
  return "the tracker" + (options_.tracker_name.empty() ? std::string() : " at " + options_.tracker_name);
}

wire::Envelope WorkerMachine::envelope() const {
  wire::Envelope e;
  e.set_protocol(kProtocolVersion);
  e.set_job(options_.job);
  e.set_sender(options_.self.value);
  e.set_receiver(tracker_.value);
  e.set_term(term_.value);
  return e;
}

void WorkerMachine::log(Severity severity, std::string name, std::string text,
                        std::vector<WorkerEffect>& effects) const {
  LogEvent event{severity, std::move(name), std::move(text), {}};
  event.fields.emplace_back("job", options_.job);
  event.fields.emplace_back("worker", options_.join.worker_id());
  if (plan_.generation() != 0) {
    event.fields.emplace_back("generation", std::to_string(plan_.generation()));
    for (const wire::Member& m : plan_.members()) {
      if (m.incarnation() == options_.self.value) event.fields.emplace_back("rank", std::to_string(m.rank()));
    }
  }
  effects.emplace_back(Log{std::move(event)});
}

void WorkerMachine::send_join(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  *e.mutable_join() = options_.join;
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_heartbeat(TimeMs now, std::vector<WorkerEffect>& effects) {
  count(Transition::kHeartbeat);
  wire::Envelope e = envelope();
  wire::Heartbeat& h = *e.mutable_heartbeat();
  h.set_generation(plan_.generation());
  h.set_beat(++beat_);
  h.set_rounds_finished(progress_.rounds_finished);
  h.set_bytes_moved(progress_.bytes_moved);
  *h.mutable_gpu() = progress_.gpu;
  if (progress_.log) *h.mutable_log() = *progress_.log;
  if (!progress_.disk_trouble.empty()) h.set_disk_trouble(wire_text(progress_.disk_trouble));
  for (const wire::CurrentRound& r : progress_.rounds) *h.add_rounds() = r;
  if (progress_.activity) *h.mutable_activity() = *progress_.activity;
  if (progress_.blocked) *h.mutable_blocked() = *progress_.blocked;
  if (drain_) {
    h.mutable_draining()->set_left_ms(static_cast<std::uint64_t>(std::max<std::int64_t>(0, drain_->by - now)));
    h.mutable_draining()->set_reason(drain_->reason);
  }
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_leave(bool finalize, const std::string& reason, std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_leave()->set_generation(plan_.generation());
  e.mutable_leave()->set_finalize(finalize);
  e.mutable_leave()->set_reason(wire_text(reason));
  e.mutable_leave()->set_preempted(!finalize && preempted_);
  effects.emplace_back(Send{std::move(e)});
}

// How far this life and dead ones of its host have come. What is in flight its next life begins anew, unless all of it
// is there: somebody who is lost may have completed it. What is too much to say is as good as lost.
void WorkerMachine::send_serves(std::uint64_t left_ms, std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  wire::Leave& l = *e.mutable_leave();
  l.set_generation(std::max(served_.generation(), plan_.generation()));
  l.set_reason(drain_->reason);
  l.set_preempted(true);
  l.set_serves_ms(left_ms);
  if (left_ms != 0) {
    std::map<std::pair<std::uint64_t, std::uint64_t>, const wire::Position*> furthest;  // by (group, version)
    std::map<std::pair<std::uint64_t, std::uint64_t>, const wire::Setup*> setups;       // by (group, name)
    const auto take = [&](const auto& positions) {
      for (const wire::Position& p : positions) {
        const wire::Position*& most = furthest[{p.group(), p.version()}];
        if (most == nullptr || p.rounds() > most->rounds()) most = &p;
      }
    };
    take(standing_.positions);
    for (const wire::Setup& s : standing_.setups) setups[{s.group(), s.name()}] = &s;
    const wire::Logged& dead = standing_.logged;
    if (dead.run() == plan_.run() && dead.timeline() == plan_.timeline()) {
      take(dead.positions());
      for (const wire::Setup& s : dead.setups()) setups.try_emplace({s.group(), s.name()}, &s);
    }
    wire::Logged& logged = *l.mutable_logged();
    logged.set_run(plan_.run());
    logged.set_timeline(plan_.timeline());
    std::size_t ranges = 0;
    const auto copy_final = [&ranges](const auto& from, auto& to, std::size_t most) {
      const auto more = static_cast<std::size_t>(from.final_size());
      if (more == 0 || from.total_bytes() == 0 || ranges + more > most) return;
      ranges += more;
      *to.mutable_final() = from.final();
      to.set_total_bytes(from.total_bytes());
    };
    for (const auto& [key, most] : furthest) {
      if (logged.positions_size() == static_cast<int>(limits::kMaxPositions)) break;
      wire::Position p;
      p.set_group(key.first);
      p.set_version(key.second);
      p.set_rounds(most->rounds());
      copy_final(*most, p, limits::kMaxLoggedRanges);
      if (p.rounds() != 0 || p.final_size() != 0) *logged.add_positions() = std::move(p);
    }
    ranges = 0;
    for (const auto& [key, most] : setups) {
      if (l.setups_size() == static_cast<int>(limits::kMaxSetups)) break;
      wire::Setup s;
      s.set_group(key.first);
      s.set_name(key.second);
      s.set_timeline(most->timeline());
      s.set_done(most->done());
      copy_final(*most, s, limits::kMaxSetupRangesPerReport);
      if (s.done() || s.final_size() != 0) *l.add_setups() = std::move(s);
    }
  }
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_link_broken(const BrokenLink& broken, std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  wire::LinkBroken& b = *e.mutable_link_broken();
  b.set_generation(plan_.generation());
  b.set_peer(static_cast<std::uint32_t>(broken.peer.value));
  b.set_peer_incarnation(plan_.members(broken.peer.value).incarnation());
  b.set_evidence(wire_text(broken.evidence));
  b.set_gone(broken.gone);
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_round_failed(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  wire::RoundFailed& f = *e.mutable_round_failed();
  f.set_generation(plan_.generation());
  f.set_code(static_cast<std::uint32_t>(failed_round_.code()));
  const std::string reason = wire_text(failed_round_.describe());
  f.set_reason(reason.empty() ? "no reason given" : reason);
  if (const Rank peer = failed_round_.peer(); peer != kNoRank) {
    f.mutable_about()->set_peer(static_cast<std::uint32_t>(peer.value));
  }
  f.mutable_about()->set_round(std::string(failed_round_.round().substr(0, limits::kMaxRoundTextBytes)));
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_stopped(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_stopped()->set_generation(stop_generation_.value);
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_report(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  wire::Report& r = *e.mutable_report();
  r.set_generation(stop_generation_.value);
  r.set_version(standing_.version.value);
  r.set_plan_generation(needs_whole_plan_ ? 0 : plan_.generation());
  r.set_timeline(plan_.timeline());
  r.set_committed_version(committed_.value);
  r.set_committed_timeline(committed_timeline_.value);
  r.mutable_positions()->Add(standing_.positions.begin(), standing_.positions.end());
  r.mutable_setups()->Add(standing_.setups.begin(), standing_.setups.end());
  if (standing_.given_up) *r.mutable_given_up() = *standing_.given_up;
  // Where both do not fit, what only dead lives have seen is computed again.
  const std::size_t bytes = e.ByteSizeLong() + standing_.logged.ByteSizeLong() + 64;
  if (standing_.logged.ByteSizeLong() != 0 && bytes <= kMaxWorkerMessageBytes) *r.mutable_logged() = standing_.logged;
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_load(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_load();
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_vote(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  *e.mutable_vote() = vote_;
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::send_log_gap(std::vector<WorkerEffect>& effects) {
  wire::Envelope e = envelope();
  e.mutable_log_gap()->set_generation(plan_.generation());
  e.mutable_log_gap()->set_reason(log_gap_);
  if (setup_gap_) *e.mutable_log_gap()->mutable_setup() = *setup_gap_;
  e.mutable_log_gap()->set_renumbers(gap_renumbers_);
  if (checkpoint_gap_) {
    e.mutable_log_gap()->mutable_checkpoint()->set_version(checkpoint_gap_->version.value);
    e.mutable_log_gap()->mutable_checkpoint()->set_timeline(checkpoint_gap_->timeline.value);
  }
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::fail(State state, Status why, std::vector<WorkerEffect>& effects, bool fenced) {
  state_ = state;
  effects.emplace_back(Fail{std::move(why), fenced});
}

void WorkerMachine::start(TimeMs now, std::vector<WorkerEffect>& effects) {
  WARREN_CHECK(state_ == State::kIdle, "a worker machine starts once");
  count(Transition::kStarted);
  state_ = State::kJoining;
  since_ = heard_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + kWaitLogIntervalMs;
  log(Severity::kInfo, "joining", "joining job " + options_.job + " at " + who(), effects);
  send_join(effects);
}

void WorkerMachine::on_message(const wire::Envelope& e, TimeMs now, std::vector<WorkerEffect>& effects) {
  if (e.job() != options_.job || e.receiver() != options_.self.value || state_ == State::kIdle) {
    return count(Transition::kNotForUs);
  }
  if (!obeys(e, now, effects)) return;
  if (complained_) {
    count(Transition::kTrackerBack);
    complained_ = false;
    log(Severity::kInfo, "tracker_back", who() + " answers again after " + seconds(now - heard_), effects);
  }
  if (tracker_.value != 0 && tracker_.value != e.sender()) {
    count(Transition::kTrackerChanged);
    log(Severity::kInfo, "tracker_restarted", who() + " has been started again", effects);
    vote_again_ = knows_newer_commit();
  }
  tracker_ = Incarnation(e.sender());
  heard_ = now;
  if (std::exchange(away_, false)) effects.emplace_back(TrackerAway{false});
  switch (e.body_case()) {
    case wire::Envelope::kWelcome: return on_welcome(e.welcome(), now, effects);
    case wire::Envelope::kCalled: return on_called(e.called(), now, effects);
    case wire::Envelope::kRefused: return on_refused(e.refused(), effects);
    case wire::Envelope::kPlan:
      return state_ == State::kServing ? on_served_plan(e.plan(), now, effects) : on_plan(e.plan(), now, effects);
    case wire::Envelope::kInterrupt: return on_interrupt(e.interrupt(), now, effects);
    case wire::Envelope::kLoaded: return on_loaded(e.loaded(), effects);
    case wire::Envelope::kCommitted:
      if (Version(e.committed().version()) >= committed_) vote_again_ = false;
      return committed(Version(e.committed().version()), Timeline(e.committed().timeline()), effects);
    case wire::Envelope::kTell: return on_tell(e.tell(), effects);
    case wire::Envelope::kFinished: return on_finished(e.finished(), effects);
    case wire::Envelope::kHeartbeatReply:
      // Of a tracker that has come to decide: what this life has said before went by.
      if (e.heartbeat_reply().beat() == 0 &&
          (state_ == State::kJoining || state_ == State::kSpare || state_ == State::kSuspended)) {
        next_send_ = std::min(next_send_, now);
      }
      if (state_ == State::kMember && e.heartbeat_reply().beat() == beat_) {
        awaited_ms_ = static_cast<std::int64_t>(e.heartbeat_reply().awaited_ms());
        awaited_at_ = now;
      }
      if (e.heartbeat_reply().has_leave()) on_leave_request(e.heartbeat_reply().leave(), now, effects);
      return;
    case wire::Envelope::kJoin:
    case wire::Envelope::kHeartbeat:
    case wire::Envelope::kLinkBroken:
    case wire::Envelope::kRoundFailed:
    case wire::Envelope::kStopped:
    case wire::Envelope::kLeave:
    case wire::Envelope::kReport:
    case wire::Envelope::kLoad:
    case wire::Envelope::kVote:
    case wire::Envelope::kLogGap:
    case wire::Envelope::kKnown:
    case wire::Envelope::kForget:
    case wire::Envelope::kForgotten:
    case wire::Envelope::BODY_NOT_SET: return count(Transition::kOutOfTurn);
  }
}

// Nobody is obeyed whose term is lower than one that was heard of, or as high and another tracker's
// (docs/invariants.md, "Trackers").
bool WorkerMachine::obeys(const wire::Envelope& e, TimeMs now, std::vector<WorkerEffect>& effects) {
  const Term term(e.term());
  // The same tracker's term only rises; its refusals without a term come from before it looks at the job.
  const bool same = tracker_.value == 0 || tracker_.value == e.sender();
  if (same && (term == term_ || term.value == 0)) return true;
  if (term <= term_) {
    count(Transition::kTermRefused);
    if (e.has_refused() && term.value == 0 && refused_by_.value != e.sender()) {
      refused_by_ = Incarnation(e.sender());
      log(Severity::kWarning, "tracker_refused",
          "another tracker answers at the address of " + who() + ", and is not obeyed: " + e.refused().reason(),
          effects);
    }
    // So that it hears of the term that it needs; what has none does not look at ours.
    if (term.value != 0) next_send_ = std::min(next_send_, now);
    return false;
  }
  count(Transition::kPromised);
  // It may wait for this promise.
  if (term_.value != 0 || e.has_heartbeat_reply()) next_send_ = std::min(next_send_, now);
  term_ = term;
  return true;
}

// Than the tracker had when it made the plan: it may have made up a journal that was lost, or have an older one.
bool WorkerMachine::knows_newer_commit() const {
  return committed_ > Version(plan_.committed_version()) && committed_timeline_ == Timeline(plan_.timeline());
}

void WorkerMachine::on_tell(const wire::Tell& tell, std::vector<WorkerEffect>& effects) {
  const bool stopped = state_ == State::kStopping || state_ == State::kSuspended;
  if (fenced_ || (!stopped && state_ != State::kMember && state_ != State::kServing && state_ != State::kLeaving)) {
    return count(Transition::kOutOfTurn);
  }
  count(Transition::kTold);
  wire::Envelope e = envelope();
  wire::Known& known = *e.mutable_known();
  const wire::Plan& plan = served_.generation() > plan_.generation() ? served_ : plan_;
  known.set_generation(stopped ? stop_generation_.value : plan.generation());
  known.set_plan_generation(plan.generation());
  known.set_committed(committed_.value != 0);
  known.set_committed_version(committed_.value);
  known.set_committed_timeline(committed_timeline_.value);
  known.mutable_setups()->Add(setups_.begin(), setups_.end());
  if (plan.generation() > tell.generation()) *known.mutable_plan() = plan;
  // A plan of thousands of ranks is longer than what a worker may send: such a job needs its tracker's journal.
  if (e.ByteSizeLong() > kMaxWorkerMessageBytes) known.clear_plan();
  effects.emplace_back(Send{std::move(e)});
}

void WorkerMachine::on_welcome(const wire::Welcome& welcome, TimeMs now, std::vector<WorkerEffect>& effects) {
  if (state_ == State::kSpare && welcome.spare()) {
    count(Transition::kSpareWelcomed);
    if (welcome.has_follow()) follow(welcome.follow(), effects);
    // A job that does not begin may be one that was finished and forgotten.
    if (welcome.joined() == 0) return unbegun_since_.reset();
    welcome_ = welcome;
    if (!unbegun_since_) unbegun_since_ = now;
    if (now >= *unbegun_since_ + options_.join_timeout_ms) join_timed_out(now, effects);
    return;
  }
  if (state_ == State::kSuspended && !welcome.spare()) {
    count(Transition::kWelcomedSuspended);
    welcome_ = welcome;
    return;
  }
  // The answer to an earlier join says nothing of the newest.
  if (state_ != State::kJoining || (welcome.spare() && welcome.called() != options_.join.called())) {
    return count(Transition::kOutOfTurn);
  }
  if (welcome.spare()) {
    wait_as_spare(now, effects);
    if (welcome.has_follow()) follow(welcome.follow(), effects);
    return;
  }
  count(Transition::kWelcomed);
  // The tracker knows of it, and says what comes of it by itself: in a large job, whose workers all wait for the last
  // one, joins would be most of what the tracker hears.
  next_send_ = now + std::max(interval_ms(), welcomed_interval_ms());
  const bool changed = welcome_.joined() != welcome.joined();
  welcome_ = welcome;
  if (!changed) return;
  log(Severity::kInfo, "welcomed",
      "job " + options_.job + " has " + std::to_string(welcome.joined()) + " of its " +
          std::to_string(welcome.world_size()) + " workers" +
          (welcome.missing_size() == 0 ? "" : "; missing: " + list(welcome.missing())),
      effects);
}

void WorkerMachine::wait_as_spare(TimeMs now, std::vector<WorkerEffect>& effects) {
  const bool looked = !options_.join.spare();
  count(looked ? Transition::kSpareReturned : Transition::kSpare);
  state_ = State::kSpare;
  since_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + static_cast<std::int64_t>(options_.join.settings().round_timeout_ms());
  called_ = Generation();
  unbegun_since_.reset();
  // What it would say of its host may be untrue by the time that it is needed.
  options_.join.set_spare(true);
  options_.join.set_called(0);
  options_.join.clear_held();
  options_.join.clear_logged();
  if (options_.follows) *options_.join.mutable_followed() = {};
  follows_ = Version();
  log(Severity::kInfo, "spare_waits",
      shrinks() ? "this worker waits until job " + options_.job +
                      " takes it in: when a checkpoint is committed, or in the place of a worker that is lost"
                : "no rank of job " + options_.job + " is free: this worker waits as a spare until one is lost",
      effects);
  effects.emplace_back(Spare{looked});
}

void WorkerMachine::follow(const wire::Follow& what, std::vector<WorkerEffect>& effects) {
  const wire::Followed& had = options_.join.followed();
  const bool other_run = what.run() != had.run();
  const bool newer = other_run || what.generation() > had.generation();
  // Whose members are asked is not older than the commit: who was given up since may have logged something else.
  if (!options_.follows || (newer && !what.has_plan()) || (!other_run && what.generation() < had.generation()) ||
      (!newer && Version(what.version()) < follows_)) {
    return count(Transition::kFollowStale);
  }
  count(Transition::kFollows);
  follows_ = Version(what.version());
  follows_timeline_ = Timeline(what.timeline());
  Follow follow{follows_, follows_timeline_, {}};
  if (newer) follow.plan = what.plan();
  // What it has held before goes.
  wire::Followed& has = *options_.join.mutable_followed();
  has.Clear();
  has.set_generation(what.generation());
  has.set_run(what.run());
  effects.emplace_back(std::move(follow));
}

void WorkerMachine::followed(Version version, Timeline timeline) {
  if (state_ != State::kSpare || version != follows_ || timeline != follows_timeline_) return;
  options_.join.mutable_followed()->set_version(version.value);
  options_.join.mutable_followed()->set_timeline(timeline.value);
}

void WorkerMachine::on_called(const wire::Called& called, TimeMs now, std::vector<WorkerEffect>& effects) {
  const Generation generation(called.generation());
  const wire::Join& join = options_.join;
  if (state_ == State::kJoining && (join.spare() || (join.called() != 0 && generation > Generation(join.called())))) {
    // It was not heard to wait; or what it has said of its host is out of date.
    count(Transition::kCalledAgain);
    wait_as_spare(now, effects);
    // Then it begins anew, if it has looked before, and is called again.
    if (std::get<Spare>(effects.back()).looked) return;
  }
  if (state_ != State::kSpare) return count(Transition::kOutOfTurn);
  if (generation <= called_) return count(Transition::kCalledRepeated);
  if (called_ != Generation()) {
    // It looks already, and what it finds is of an earlier moment: it begins anew, and is called again.
    count(Transition::kCalledAgain);
    called_ = Generation();
    effects.emplace_back(Spare{true});
    return;
  }
  count(Transition::kCalled);
  called_ = generation;
  log(Severity::kInfo, "spare_called",
      shrinks() ? "this worker is called to come into job " + options_.job
                : "a rank of job " + options_.job + " was lost: this worker is called to take its place",
      effects);
  effects.emplace_back(Called{generation, called.stale()});
}

void WorkerMachine::looked(Generation generation, std::optional<wire::Held> held, wire::Logged logged, TimeMs now,
                           std::vector<WorkerEffect>& effects) {
  if (state_ != State::kSpare || generation != called_) return count(Transition::kLookedStale);
  count(Transition::kLooked);
  state_ = State::kJoining;
  since_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + kWaitLogIntervalMs;
  wire::Join& join = options_.join;
  join.set_spare(false);
  join.set_called(generation.value);
  join.clear_followed();
  if (held) *join.mutable_held() = std::move(*held);
  if (logged.ByteSizeLong() != 0) *join.mutable_logged() = std::move(logged);
  send_join(effects);
}

void WorkerMachine::on_refused(const wire::Refused& refused, std::vector<WorkerEffect>& effects) {
  const Status why = Status(static_cast<Code>(refused.code()), who() + " refused: " + refused.reason());
  switch (state_) {
    case State::kJoining:
      count(Transition::kRefusedJoining);
      return fail(State::kFailed, why.because_of_this("cannot join job " + options_.job), effects, refused.fenced());
    case State::kSpare:
      if (why.code() == Code::kFinished) {
        count(Transition::kSpareUnneeded);
        return fail(
            State::kFailed,
            Status(Code::kFinished, "job " + options_.job + " is finished: this worker " +
                                        (shrinks() ? "waited to come in" : "was a spare") + ", and was not needed"),
            effects);
      }
      count(Transition::kSpareRefused);
      return fail(State::kFailed, why.because_of_this("cannot wait as a spare of job " + options_.job), effects,
                  refused.fenced());
    case State::kMember:
    case State::kLeaving:
      // Disowned: another life has taken over, or this one was silent for too long. What it would still send or write
      // must not meet the new generation (I6).
      count(state_ == State::kMember ? Transition::kFencedMember : Transition::kFencedLeaving);
      fenced_ = true;
      given_up_ = refused.fenced();
      return stop(Generation(plan_.generation()).next(), why.because_of_this("out of job " + options_.job), false,
                  effects);
    case State::kServing: count(Transition::kServedUntilTold); return end_serving(refused.reason(), effects);
    case State::kSuspended:
      count(Transition::kFencedSuspended);
      return fail(State::kFailed, why.because_of_this("out of job " + options_.job), effects, refused.fenced());
    default: return count(Transition::kOutOfTurn);
  }
}

void WorkerMachine::on_plan(const wire::Plan& told, TimeMs now, std::vector<WorkerEffect>& effects) {
  const bool expected = state_ == State::kJoining || state_ == State::kSpare ||
                        (state_ == State::kSuspended && Generation(told.generation()) >= stop_generation_);
  if (told.generation() <= plan_.generation() || !expected) return count(Transition::kPlanStale);
  wire::Plan plan = told;
  if (told.base_generation() != 0) {
    auto whole = with_changes(plan_, told);
    if (!whole.ok()) {
      // It was meant for another life, or the tracker has another plan in mind than this one has: the next report asks
      // for all of it.
      count(Transition::kPlanForOther);
      needs_whole_plan_ = true;
      return log(Severity::kWarning, "plan_unusable", whole.status().describe(), effects);
    }
    plan = std::move(whole).value();
  }
  const auto self = std::find_if(plan.members().begin(), plan.members().end(),
                                 [&](const wire::Member& m) { return m.incarnation() == options_.self.value; });
  if (self == plan.members().end() || self->absent() || self->worker_id() != options_.join.worker_id()) {
    return count(Transition::kPlanForOther);
  }
  if (state_ == State::kSpare) {
    // The answer to one of its joins has taken back what it said in them, and another one was believed.
    count(Transition::kPlanForSpare);
    const std::string why = "it was told to wait on as a spare, and then planned for";
    send_leave(false, why, effects);
    return fail(State::kFailed, Status(Code::kClosed, "out of job " + options_.job + ": " + why), effects, true);
  }
  count(state_ == State::kJoining ? Transition::kInstalled : Transition::kReinstalled);
  const std::uint32_t rank = self->rank();
  plan_ = std::move(plan);
  needs_whole_plan_ = false;
  state_ = finalizing_ ? State::kLeaving : State::kMember;
  since_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + static_cast<std::int64_t>(options_.join.settings().round_timeout_ms());
  broken_links_.clear();
  failed_round_ = Status();
  log_gap_.clear();
  vote_.Clear();  // what this rank must hold may be something else now: the shell votes again
  vote_again_ = knows_newer_commit();
  log(Severity::kInfo, "plan_installed",
      "rank " + std::to_string(rank) + " of " + std::to_string(plan_.members_size()) + " in generation " +
          std::to_string(plan_.generation()) + " of job " + options_.job,
      effects);
  progress_.rounds.clear();  // of the generation before
  progress_.activity.reset();
  progress_.blocked.reset();
  awaited_ms_ = 0;
  effects.emplace_back(Install{plan_});
  if (plan_.committed()) committed(Version(plan_.committed_version()), Timeline(plan_.committed_timeline()), effects);
  if (finalizing_) {
    send_leave(true, {}, effects);
  } else {
    send_heartbeat(now, effects);
  }
  repeat_wishes(effects);
}

// What the program waits for, or will: as often as heartbeats.
void WorkerMachine::repeat_wishes(std::vector<WorkerEffect>& effects) {
  if (loading_) {
    count(Transition::kLoadRepeated);
    send_load(effects);
  }
  if (vote_.version() != 0) {
    count(Transition::kVoteRepeated);
    send_vote(effects);
  }
  if (vote_again_) {
    count(Transition::kCommitVotedAgain);
    wire::Envelope e = envelope();
    wire::Vote& vote = *e.mutable_vote();
    vote.set_timeline(committed_timeline_.value);
    vote.set_version(committed_.value);
    vote.set_generation(plan_.generation());
    vote.mutable_setups()->Add(setups_.begin(), setups_.end());
    effects.emplace_back(Send{std::move(e)});
  }
  if (!log_gap_.empty()) {
    count(Transition::kLogGapRepeated);
    send_log_gap(effects);
  }
}

void WorkerMachine::load(TimeMs, std::vector<WorkerEffect>& effects) {
  count(Transition::kLoading);
  loading_ = true;
  vote_.Clear();
  if (state_ == State::kMember) send_load(effects);
}

void WorkerMachine::on_loaded(const wire::Loaded& loaded, std::vector<WorkerEffect>& effects) {
  if (!loading_ || state_ != State::kMember) return count(Transition::kOutOfTurn);
  count(Transition::kLoaded);
  loading_ = false;
  effects.emplace_back(Loaded{loaded.committed(), Version(loaded.version()), Timeline(loaded.timeline())});
}

bool WorkerMachine::may_vote(Generation generation, Version version) {
  // The commit, or the end of the generation, was faster.
  if (version <= committed_ || generation != Generation(plan_.generation()) ||
      (state_ != State::kMember && state_ != State::kLeaving)) {
    count(Transition::kReportStale);
    return false;
  }
  WARREN_CHECK(vote_.version() == 0 || vote_.version() == version.value, "one version is voted for at a time");
  return true;
}

void WorkerMachine::vote(const Vote& vote, TimeMs, std::vector<WorkerEffect>& effects) {
  if (!may_vote(vote.generation, vote.version)) return;
  count(Transition::kVoted);
  vote_.Clear();
  vote_.set_timeline(vote.timeline.value);
  vote_.set_version(vote.version.value);
  vote_.set_generation(plan_.generation());
  *vote_.mutable_state() = vote.state;
  vote_.mutable_positions()->Add(vote.positions.begin(), vote.positions.end());
  setups_ = vote.setups;
  vote_.mutable_setups()->Add(setups_.begin(), setups_.end());
  vote_.set_local_hash(vote.local_hash);
  vote_.mutable_copies()->Add(vote.copies.begin(), vote.copies.end());
  send_vote(effects);
}

void WorkerMachine::tell_state(const StateWord& word, TimeMs, std::vector<WorkerEffect>& effects) {
  if (!may_vote(word.generation, word.version)) return;
  count(Transition::kStateTold);
  vote_.Clear();
  vote_.set_timeline(word.timeline.value);
  vote_.set_version(word.version.value);
  vote_.set_generation(plan_.generation());
  *vote_.mutable_state() = word.state;
  vote_.set_lacks(true);
  send_vote(effects);
}

void WorkerMachine::committed(Version version, Timeline timeline, std::vector<WorkerEffect>& effects) {
  if (version <= committed_) return;
  count(Transition::kCommitted);
  committed_ = version;
  committed_timeline_ = timeline;
  if (vote_.version() <= version.value) vote_.Clear();
  effects.emplace_back(Committed{version, timeline});
}

void WorkerMachine::on_log_gap(Generation generation, const Gap& gap, TimeMs now, std::vector<WorkerEffect>& effects) {
  if (!reports() || generation != Generation(plan_.generation()) || !log_gap_.empty())
    return count(Transition::kReportStale);
  count(Transition::kLogGapReported);
  if (broken_links_.empty() && failed_round_.ok()) reported_ = now;
  log_gap_ = wire_text(gap.reason.empty() ? "no reason given" : gap.reason);
  setup_gap_ = gap.setup;
  gap_renumbers_ = gap.renumbers;
  checkpoint_gap_ = gap.checkpoint;
  if (checkpoint_gap_) {
    log(Severity::kError, "checkpoint_lost", log_gap_, effects);
  } else {
    log(Severity::kError, "log_gap", log_gap_, effects);
  }
  send_log_gap(effects);
}

void WorkerMachine::stop(Generation generation, Status why, bool resume, std::vector<WorkerEffect>& effects) {
  state_ = State::kStopping;
  stop_generation_ = generation;
  stop_why_ = std::move(why);
  resume_ = resume;
  effects.emplace_back(StopDataPath{stop_generation_, stop_why_, resume, given_up_});
}

void WorkerMachine::suspend(TimeMs now, std::vector<WorkerEffect>& effects) {
  state_ = State::kSuspended;
  welcome_.clear_missing();  // of an earlier wait
  since_ = heard_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + kWaitLogIntervalMs;
  send_report(effects);
}

// The failure that an interrupt tells of, seen from this rank: the peer is another rank than this one.
Status WorkerMachine::said_by(const wire::Interrupt& interrupt) const {
  Status said(static_cast<Code>(interrupt.code()), interrupt.reason());
  const wire::About& about = interrupt.about();
  const auto at = static_cast<int>(about.rank());
  const bool own =
      about.has_rank() && at < plan_.members_size() && plan_.members(at).incarnation() == options_.self.value;
  if (about.has_rank() && !own) {
    said = said.about(Rank(static_cast<std::int32_t>(about.rank())));
  } else if (about.has_peer()) {
    said = said.about(Rank(static_cast<std::int32_t>(about.peer())));
  }
  return about.round().empty() ? said : said.about(about.round());
}

void WorkerMachine::on_interrupt(const wire::Interrupt& interrupt, TimeMs now, std::vector<WorkerEffect>& effects) {
  const Generation generation(interrupt.generation());
  const Status said = said_by(interrupt);
  // With a log, what ends all lives without being the program's fault sends the job back to its newest checkpoint.
  const bool rolled_back = !interrupt.resume() && !interrupt.ends_job() && options_.join.settings().replicas() != 0 &&
                           (said.code() == Code::kUnavailable || said.code() == Code::kPeerLost ||
                            said.code() == Code::kCorrupt || said.code() == Code::kTimeout);
  const Status why = rolled_back ? said.because_of_this(Code::kRolledBack, "job " + options_.job + " was rolled back")
                     : interrupt.ends_job() ? said.because_of_this("job " + options_.job + " cannot go on")
                                            : said.because_of_this("job " + options_.job + " was interrupted");
  switch (state_) {
    case State::kJoining:
      // The plan that made this life a member has not arrived and will not: nothing runs that would have to be stopped.
      stop_generation_ = generation;
      stop_why_ = why;
      log(Severity::kWarning, "interrupted", why.describe(), effects);
      if (interrupt.resume()) {
        count(Transition::kSuspendedJoining);
        // The tracker has forgotten with its plan what this life's host has of lives before, and nobody else may have
        // it.
        standing_ = Standing();
        standing_.logged = options_.join.logged();
        standing_.logged.clear_lives();
        return suspend(now, effects);
      }
      count(Transition::kInterruptedJoining);
      send_stopped(effects);
      return fail(State::kBroken, why, effects);
    case State::kMember:
    case State::kLeaving:
      if (generation <= Generation(plan_.generation())) return count(Transition::kInterruptStale);
      count(state_ == State::kMember ? Transition::kInterrupted : Transition::kInterruptedLeaving);
      log(Severity::kWarning, "interrupted", why.describe(), effects);
      return stop(generation, why, interrupt.resume(), effects);
    case State::kStopping:
      // The data path is stopping already, and nothing newer was installed: only the answer changes.
      count(Transition::kInterruptedStopping);
      if (generation < stop_generation_) return;
      stop_generation_ = generation;
      if (!interrupt.resume() && resume_) {
        resume_ = false;
        stop_why_ = why;
      }
      return;
    case State::kSuspended:
      if (generation < stop_generation_) return count(Transition::kInterruptStale);
      stop_generation_ = generation;
      stop_why_ = why;
      if (interrupt.resume()) {
        count(Transition::kInterruptedSuspended);
        return send_report(effects);
      }
      count(Transition::kEndedSuspended);
      log(Severity::kWarning, "interrupted", why.describe(), effects);
      send_stopped(effects);
      return fail(State::kBroken, why, effects);
    case State::kBroken:
      count(Transition::kStoppedRepeated);
      stop_generation_ = std::max(stop_generation_, generation);
      return send_stopped(effects);
    default: return count(Transition::kOutOfTurn);
  }
}

void WorkerMachine::on_stopped(Generation generation, Standing standing, TimeMs now,
                               std::vector<WorkerEffect>& effects) {
  if (state_ != State::kStopping || generation <= Generation(plan_.generation()))
    return count(Transition::kStoppedStale);
  if (fenced_) {
    count(Transition::kFencedStopped);
    return fail(State::kFailed, stop_why_, effects, given_up_);
  }
  if (resume_) {
    standing_ = std::move(standing);
    if (leaves_to_serve_) {
      count(Transition::kServing);
      return begin_to_serve(now, effects);
    }
    count(Transition::kSuspended);
    return suspend(now, effects);
  }
  count(Transition::kStopped);
  send_stopped(effects);
  fail(State::kBroken, stop_why_, effects);
}

void WorkerMachine::on_finished(const wire::Finished& finished, std::vector<WorkerEffect>& effects) {
  if (state_ != State::kLeaving || finished.generation() != plan_.generation()) return count(Transition::kOutOfTurn);
  count(Transition::kFinished);
  state_ = State::kFinished;
  effects.emplace_back(worker_effect::Finished{});
}

void WorkerMachine::on_connection_trouble(const std::string& what, TimeMs, std::vector<WorkerEffect>& effects) {
  count(Transition::kConnectionTrouble);
  if (what == trouble_) return;
  trouble_ = what;
  log(Severity::kWarning, "connection_trouble", "the connection to " + who() + ": " + wire_text(what), effects);
}

void WorkerMachine::on_link_broken(Generation generation, Rank peer, const std::string& evidence, TimeMs now,
                                   std::vector<WorkerEffect>& effects) {
  if (!reports() || generation != Generation(plan_.generation())) return count(Transition::kReportStale);
  count(Transition::kLinkBrokenReported);
  report_broken({peer, evidence}, now, effects);
}

void WorkerMachine::on_peer_gone(Generation generation, Rank peer, const std::string& evidence, TimeMs now,
                                 std::vector<WorkerEffect>& effects) {
  const bool suspended = state_ == State::kSuspended;
  if ((!suspended && !reports()) || generation != Generation(plan_.generation()))
    return count(Transition::kReportStale);
  count(suspended ? Transition::kPeerGoneReportedSuspended : Transition::kPeerGoneReported);
  report_broken({peer, evidence, true}, now, effects);
}

void WorkerMachine::report_broken(BrokenLink broken, TimeMs now, std::vector<WorkerEffect>& effects) {
  WARREN_CHECK(broken.peer.value >= 0 && broken.peer.value < plan_.members_size(), "links lead to ranks of the plan");
  if (broken_links_.empty() && failed_round_.ok()) reported_ = now;
  send_link_broken(broken, effects);
  if (broken_links_.size() == kMaxBrokenLinks) return;
  // Its connections, the rounds on them and whoever looks for its process find the same one after the other.
  const bool known = std::ranges::any_of(broken_links_, [&](const BrokenLink& b) { return b.peer == broken.peer; });
  // Where a job ends well its ranks close their ends one after the other, which is nothing to tell people.
  if (!known && state_ != State::kLeaving) {
    const wire::Member& peer = plan_.members(broken.peer.value);
    log(Severity::kWarning, "link_broken",
        "the link to rank " + std::to_string(broken.peer.value) + " (worker " + peer.worker_id() + " on host " +
            peer.host_id() + ") broke in generation " + std::to_string(plan_.generation()) + ": " +
            wire_text(broken.evidence),
        effects);
  }
  broken_links_.push_back(std::move(broken));
}

void WorkerMachine::on_round_failed(Generation generation, const Status& why, TimeMs now,
                                    std::vector<WorkerEffect>& effects) {
  if (!reports() || generation != Generation(plan_.generation()) || !failed_round_.ok()) {
    return count(Transition::kReportStale);
  }
  WARREN_CHECK(!why.ok(), "a failed round has a reason");
  count(Transition::kRoundFailedReported);
  if (broken_links_.empty()) reported_ = now;
  failed_round_ = why;
  // With a log, a lost link or a damaged chunk costs an interrupt and no more.
  const bool mends =
      options_.join.settings().replicas() != 0 && (why.code() == Code::kPeerLost || why.code() == Code::kCorrupt);
  // Of a round over a broken link the link's line says all.
  const bool told = why.code() == Code::kPeerLost && !broken_links_.empty();
  if (!told) log(mends ? Severity::kWarning : Severity::kError, "round_failed", wire_text(why.describe()), effects);
  send_round_failed(effects);
}

void WorkerMachine::leave(bool finalize, const std::string& reason, TimeMs now, std::vector<WorkerEffect>& effects) {
  const Status gave_up(Code::kClosed, "this worker left job " + options_.job + (reason.empty() ? "" : ": " + reason));
  switch (state_) {
    case State::kIdle: return fail(State::kFailed, gave_up, effects);
    case State::kJoining:
      count(Transition::kGaveUpJoining);
      send_leave(false, reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kSpare:
      count(Transition::kGaveUpSpare);
      send_leave(false, reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kMember:
      if (!finalize && may_serve(now)) {
        leaves_to_serve_ = true;
        return stop(Generation(plan_.generation()).next(), gave_up, true, effects);
      }
      if (!finalize) {
        count(Transition::kGaveUpMember);
        send_leave(false, reason, effects);
        return fail(State::kFailed, gave_up, effects);
      }
      count(Transition::kLeaving);
      finalizing_ = true;
      state_ = State::kLeaving;
      since_ = heard_ = now;
      next_send_ = now + interval_ms();
      next_complaint_ = now + kWaitLogIntervalMs;
      return send_leave(true, {}, effects);
    case State::kLeaving:
      if (finalize) return;
      count(Transition::kGaveUpLeaving);
      // Where nothing is logged its word stands: its rounds are done, and the other ranks finish without it. Otherwise
      // it must be replaced, and the others hear at once why.
      if (options_.join.settings().replicas() > 0) send_leave(false, reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kStopping:
    case State::kSuspended:
      if (finalize) {
        // Said with the next plan.
        count(Transition::kFinalizeDeferred);
        finalizing_ = true;
        return;
      }
      if (state_ == State::kStopping) return;
      if (may_serve(now)) {
        count(Transition::kServingSuspended);
        return begin_to_serve(now, effects);
      }
      count(Transition::kGaveUpSuspended);
      send_leave(false, reason, effects);
      return fail(State::kFailed, gave_up, effects);
    case State::kBroken:
    case State::kServing:
    case State::kFinished:
    case State::kFailed: return;
  }
}

// Where one copy is all there is, or is held by all hosts, who goes would be no help.
bool WorkerMachine::may_serve(TimeMs now) const {
  const wire::JobSettings& settings = options_.join.settings();
  return serves_ && plan_.generation() != 0 && !finalizing_ && settings.replicas() > 1 && settings.min_workers() == 0 &&
         drain_ && now < drain_->by;
}

void WorkerMachine::begin_to_serve(TimeMs now, std::vector<WorkerEffect>& effects) {
  state_ = State::kServing;
  since_ = heard_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + kWaitLogIntervalMs;
  const std::int64_t left_ms = std::max<std::int64_t>(1, drain_->by - now);
  log(Severity::kInfo, "serving",
      "this worker has left job " + options_.job + ", and serves what its host has logged for " + seconds(left_ms) +
          " at most: until a version newer than that is committed",
      effects);
  send_serves(static_cast<std::uint64_t>(left_ms), effects);
}

void WorkerMachine::on_served_plan(const wire::Plan& plan, TimeMs now, std::vector<WorkerEffect>& effects) {
  const auto named = std::ranges::find_if(
      plan.servers(), [&](const wire::Member& m) { return m.incarnation() == options_.self.value; });
  // What the first one calls done is all that may be served: without it nothing is.
  const bool next = named != plan.servers().end() && plan.base_generation() == 0 &&
                    plan.generation() > served_.generation() &&
                    (served_.generation() != 0 || named->since() == plan.generation());
  if (!next) return count(Transition::kServesPlanStale);
  count(Transition::kServesPlan);
  served_ = plan;
  effects.emplace_back(worker_effect::Serve{plan});
  // Another plan names it only once the tracker knows that it has this one.
  send_serves(static_cast<std::uint64_t>(std::max<std::int64_t>(1, drain_->by - now)), effects);
}

void WorkerMachine::end_serving(const std::string& why, std::vector<WorkerEffect>& effects) {
  state_ = State::kFailed;
  log(Severity::kInfo, "served", "this worker need not serve what its host has logged any more: " + why, effects);
  effects.emplace_back(worker_effect::Left{});
}

void WorkerMachine::drain(TimeMs by, const std::string& reason, bool serves, TimeMs now,
                          std::vector<WorkerEffect>& effects) {
  preempted_ = true;
  serves_ = serves_ || serves;
  const TimeMs latest = std::min(by, now + limits::kMaxDrainMs);
  if (drain_ && drain_->by <= latest) return;
  count(Transition::kDraining);
  begin_drain(latest, reason, now, effects);
}

// Who waits for a plan is asked again with the next one, if it is still in the way then.
void WorkerMachine::on_leave_request(const wire::LeaveRequest& request, TimeMs now,
                                     std::vector<WorkerEffect>& effects) {
  if (state_ != State::kMember || request.generation() != plan_.generation())
    return count(Transition::kLeaveRequestStale);
  if (drain_) return count(Transition::kLeaveRequestRepeated);
  count(Transition::kLeaveRequested);
  begin_drain(now + static_cast<std::int64_t>(request.within_ms()), request.reason(), now, effects);
  effects.emplace_back(worker_effect::Drain{drain_->by, drain_->reason});
}

void WorkerMachine::begin_drain(TimeMs latest, const std::string& reason, TimeMs now,
                                std::vector<WorkerEffect>& effects) {
  drain_ = Draining{latest, wire_text(reason)};
  log(Severity::kWarning, "draining",
      "this worker has been told to leave (" + drain_->reason +
          "): it does so when no call is under way, at the latest in " +
          seconds(std::max<std::int64_t>(0, latest - now)),
      effects);
  if (state_ == State::kMember) send_heartbeat(now, effects);
}

std::int64_t WorkerMachine::awaited_ms(TimeMs now) const {
  const bool lately = state_ == State::kMember && now - awaited_at_ < 3 * interval_ms();
  return lately ? awaited_ms_ : 0;
}

void WorkerMachine::set_progress(Progress progress) {
  progress_ = std::move(progress);
  if (progress_.rounds.size() > limits::kMaxRoundsPerHeartbeat) progress_.rounds.resize(limits::kMaxRoundsPerHeartbeat);
  for (wire::CurrentRound& r : progress_.rounds) {
    auto& ranks = *r.mutable_waiting_for();
    std::sort(ranks.begin(), ranks.end());
    ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  }
}

void WorkerMachine::join_timed_out(TimeMs now, std::vector<WorkerEffect>& effects) {
  // Not to be planned for after it has gone.
  send_leave(false, "its join timeout has passed", effects);
  const std::string after = " after " + seconds(now - since_);
  const std::string trouble = trouble_.empty() ? "" : " (the connection says: " + wire_text(trouble_) + ")";
  if (welcome_.world_size() == 0) {
    count(Transition::kJoinTimedOutUnheard);
    return fail(State::kFailed,
                Status(Code::kTimeout, tracker_.value != 0 ? who() + " has decided nothing for the job" + after +
                                                                 "; its log says whom it waits for"
                                                           : who() + " has not answered" + after + trouble +
                                                                 "; start it, or correct its address, or look at the "
                                                                 "secret and the firewall")
                    .because_of_this("cannot join job " + options_.job),
                effects);
  }
  count(Transition::kJoinTimedOutIncomplete);
  std::string text = "job " + options_.job + " has " + std::to_string(welcome_.joined()) + " of its " +
                     std::to_string(welcome_.world_size()) + " workers" + after;
  if (welcome_.missing_size() != 0) text += ", missing are " + list(welcome_.missing());
  if (now - heard_ > static_cast<std::int64_t>(options_.join.settings().round_timeout_ms())) {
    text += ", and " + who() + " has been silent for " + seconds(now - heard_) + trouble;
  }
  fail(State::kFailed,
       Status(Code::kTimeout, text + "; start the others, or correct the world size, or give a longer join timeout")
           .because_of_this("cannot join job " + options_.job),
       effects);
}

// Whom this life waits for while it is suspended, as far as the tracker has said.
std::string WorkerMachine::missing_ranks() const {
  std::string text;
  for (const std::string& worker : welcome_.missing()) {
    const auto m =
        std::ranges::find_if(plan_.members(), [&](const wire::Member& o) { return o.worker_id() == worker; });
    if (m != plan_.members().end() && m->absent()) continue;  // the others go on without it
    text += text.empty() ? "" : ", ";
    text += m == plan_.members().end()
                ? "worker " + worker
                : "rank " + std::to_string(m->rank()) + " (worker " + worker + " on host " + m->host_id() + ")";
  }
  return text.empty() ? "the place of a lost worker to be taken" : text + " to come back";
}

void WorkerMachine::complain_about_silence(TimeMs now, std::vector<WorkerEffect>& effects) {
  const auto timeout_ms = static_cast<std::int64_t>(options_.join.settings().round_timeout_ms());
  const bool unheard = state_ == State::kJoining && tracker_.value == 0;
  if (!unheard && now - heard_ < timeout_ms) {
    if (state_ == State::kMember || state_ == State::kSpare) {
      next_complaint_ = heard_ + timeout_ms;
      return;
    }
    log(Severity::kInfo, "waiting",
        state_ == State::kJoining && welcome_.world_size() == 0 && options_.join.resize()
            ? "waiting since " + seconds(now - since_) + " until " + who() +
                  " is sure that no worker of the last run of job " + options_.job +
                  " lives, which takes up to two round timeouts (" + seconds(2 * timeout_ms) +
                  ") from their end: it then goes on with " + std::to_string(options_.join.settings().world_size())
        : state_ == State::kJoining && welcome_.world_size() == 0
            ? who() + " decides nothing for job " + options_.job + " yet; its log says why"
        : state_ == State::kJoining ? "waiting since " + seconds(now - since_) + " for the other workers of job " +
                                          options_.job + ", which has " + std::to_string(welcome_.joined()) +
                                          " of its " + std::to_string(welcome_.world_size()) +
                                          (welcome_.missing_size() == 0 ? "" : "; missing: " + list(welcome_.missing()))
        : state_ == State::kSuspended ? "all calls have waited " + seconds(now - since_) + " for " + missing_ranks() +
                                            " (" + stop_why_.describe() + ")"
        : state_ == State::kServing ? "this worker has left job " + options_.job +
                                          ", and serves what its host has logged since " + seconds(now - since_)
                                    : "finalize waits since " + seconds(now - since_) +
                                          " for the tracker, or for ranks that have not called it",
        effects);
  } else {
    count(Transition::kTrackerSilent);
    complained_ = true;
    log(Severity::kWarning, "tracker_silent",
        who() + " has not answered for " + seconds(now - heard_) +
            (state_ == State::kMember
                 ? "; rounds and checkpoints go on while the log has room; commits and recoveries wait for it"
             : state_ == State::kSpare ? "; this worker waits until it does"
                                       : "") +
            (trouble_.empty() ? "" : "; the connection says: " + wire_text(trouble_)),
        effects);
  }
  next_complaint_ = now + kWaitLogIntervalMs;
}

void WorkerMachine::on_tick(TimeMs now, std::vector<WorkerEffect>& effects) {
  const std::optional<TimeMs> deadline = next_deadline();
  if (!deadline || now < *deadline) return;
  if (const auto give_up = join_deadline(); give_up && now >= *give_up) return join_timed_out(now, effects);
  if (const auto give_up = report_deadline(); give_up && now >= *give_up) {
    count(Transition::kReportTimedOut);
    fenced_ = true;
    const Status why =
        !log_gap_.empty() ? Status(Code::kUnavailable, log_gap_)
        : failed_round_.ok()
            ? Status(Code::kPeerLost, "the link to rank " + std::to_string(broken_links_.front().peer.value) +
                                          " broke: " + wire_text(broken_links_.front().evidence))
            : failed_round_;
    // Ranks that disagree will again, and a log that is full will be.
    given_up_ = why.code() != Code::kDesync && why.code() != Code::kExhausted;
    return stop(Generation(plan_.generation()).next(),
                why.because_of_this("job " + options_.job + " cannot go on, and " + who() + " has not answered for " +
                                    seconds(now - heard_)),
                false, effects);
  }
  const bool answers = state_ == State::kJoining && options_.join.called() != 0;
  if ((state_ == State::kSpare || answers) && term_.value != 0 &&
      now >= std::max(heard_, since_) + options_.join_timeout_ms) {
    // Whoever it has heard of is gone, and who is there now may have a lower term. Nobody counts on a spare's promise.
    count(Transition::kSpareForgot);
    since_ = now;
    term_ = Term();
    tracker_ = Incarnation();
    // The call was that tracker's.
    if (answers) return wait_as_spare(now, effects);
  }
  if (state_ == State::kSuspended && now >= heard_ + options_.join_timeout_ms) {
    count(Transition::kSuspendTimedOut);
    return fail(State::kFailed,
                Status(Code::kTimeout, who() + " has not answered for " + seconds(now - heard_) +
                                           " after it had interrupted the job; start it again, then this worker"),
                effects, true);
  }
  if (state_ == State::kLeaving && now >= heard_ + options_.join_timeout_ms) {
    count(Transition::kLeaveTimedOut);
    fenced_ = given_up_ = true;
    return stop(Generation(plan_.generation()).next(),
                Status(Code::kTimeout, who() + " has not answered for " + seconds(now - heard_) +
                                           "; whether the other ranks have finished is not known")
                    .because_of_this("cannot finalize job " + options_.job),
                false, effects);
  }
  if (state_ == State::kServing && now >= drain_->by) {
    count(Transition::kServedItsTime);
    send_serves(0, effects);
    return end_serving("its time is over", effects);
  }
  keep_alive(now, effects);
  if (state_ == State::kMember && !away_ && now >= away_from()) {
    count(Transition::kTrackerAway);
    away_ = true;
    effects.emplace_back(TrackerAway{true});
  }
  if (now >= next_complaint_) complain_about_silence(now, effects);
}

void WorkerMachine::keep_alive(TimeMs now, std::vector<WorkerEffect>& effects) {
  if (now < next_send_) return;
  next_send_ = now + interval_ms();
  switch (state_) {
    case State::kJoining:
      count(Transition::kJoinRepeated);
      send_join(effects);
      break;
    case State::kSpare:
      count(Transition::kSpareRepeated);
      send_join(effects);
      break;
    case State::kMember:
      send_heartbeat(now, effects);
      repeat_reports(effects);
      break;
    case State::kLeaving:
      count(Transition::kLeaveRepeated);
      send_leave(true, {}, effects);
      repeat_reports(effects);
      break;
    case State::kSuspended:
      count(Transition::kReportRepeated);
      send_report(effects);
      for (const BrokenLink& broken : broken_links_) {
        if (!broken.gone) continue;
        count(Transition::kPeerGoneRepeatedSuspended);
        send_link_broken(broken, effects);
      }
      break;
    case State::kServing:
      count(Transition::kServesRepeated);
      send_serves(static_cast<std::uint64_t>(std::max<std::int64_t>(1, drain_->by - now)), effects);
      break;
    default: break;
  }
  if (state_ == State::kMember || state_ == State::kLeaving) repeat_wishes(effects);
}

// With a log, who finalizes may owe others messages, and results that they replay.
bool WorkerMachine::reports() const {
  return state_ == State::kMember || (state_ == State::kLeaving && options_.join.settings().replicas() != 0);
}

void WorkerMachine::repeat_reports(std::vector<WorkerEffect>& effects) {
  for (const BrokenLink& broken : broken_links_) {
    count(Transition::kLinkBrokenRepeated);
    send_link_broken(broken, effects);
  }
  if (failed_round_.ok()) return;
  count(Transition::kRoundFailedRepeated);
  send_round_failed(effects);
}

std::optional<TimeMs> WorkerMachine::report_deadline() const {
  const bool reported = !broken_links_.empty() || !failed_round_.ok() || !log_gap_.empty();
  if (state_ != State::kMember || !reported) return std::nullopt;
  return std::max(heard_, reported_) + options_.join_timeout_ms;
}

std::optional<TimeMs> WorkerMachine::join_deadline() const {
  if (state_ != State::kJoining || options_.join.called() != 0) return std::nullopt;
  return since_ + (options_.join_within_ms != 0 ? options_.join_within_ms : options_.join_timeout_ms);
}

std::optional<TimeMs> WorkerMachine::next_deadline() const {
  switch (state_) {
    case State::kJoining: return std::min({next_send_, next_complaint_, join_deadline().value_or(next_send_)});
    case State::kSpare: return std::min(next_send_, next_complaint_);
    case State::kMember:
      return std::min(
          {next_send_, next_complaint_, report_deadline().value_or(next_send_), away_ ? next_send_ : away_from()});
    case State::kServing: return std::min({next_send_, next_complaint_, drain_->by});
    case State::kSuspended:
    case State::kLeaving: return std::min({next_send_, next_complaint_, heard_ + options_.join_timeout_ms});
    default: return std::nullopt;
  }
}

void WorkerMachine::check_invariants() const {
  const bool was_member =
      state_ == State::kMember || state_ == State::kStopping || state_ == State::kLeaving || state_ == State::kFinished;
  WARREN_CHECK(!was_member || plan_.generation() != 0, "only a plan makes a member");
  WARREN_CHECK(
      (state_ != State::kIdle && state_ != State::kJoining && state_ != State::kSpare) || plan_.generation() == 0,
      "who joins has no plan yet");
  WARREN_CHECK(state_ != State::kSpare || (options_.join.spare() && validate(options_.join).ok()),
               "a spare says nothing of its host before it is called (I1)");
  WARREN_CHECK(state_ != State::kSuspended || stop_generation_ > Generation(plan_.generation()),
               "what is reported is older (I6)");
  WARREN_CHECK(vote_.version() == 0 || Version(vote_.version()) > committed_, "nothing committed is voted for again");
  WARREN_CHECK(state_ != State::kStopping || stop_generation_ > Generation(plan_.generation()),
               "what is stopped is older (I6)");
  WARREN_CHECK(state_ != State::kStopping || !stop_why_.ok(), "calls in flight fail with a reason");
  WARREN_CHECK(broken_links_.size() <= kMaxBrokenLinks, "reports are bounded (I8)");
  WARREN_CHECK(state_ != State::kServing || (drain_ && preempted_ && plan_.generation() != 0),
               "who serves was preempted, and was a member");
  WARREN_CHECK(next_deadline().has_value() == (state_ == State::kJoining || state_ == State::kSpare ||
                                               state_ == State::kMember || state_ == State::kSuspended ||
                                               state_ == State::kServing || state_ == State::kLeaving),
               "what waits has a deadline (I7)");
}

}  // namespace warren
