#include "recovery/worker/worker_machine.h"

#include <algorithm>
#include <iterator>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/plan_changes.h"
#include "recovery/worker/texts.h"
#include "recovery/worker/transitions.h"

namespace warren {

using worker_effect::Fail;
using worker_effect::Install;
using worker_effect::Log;
using worker_effect::Send;
using worker_effect::TrackerAway;

namespace {
constexpr const char* kTransitionNames[] = {
#define WARREN_X(name) #name,
    WARREN_WORKER_TRANSITIONS(WARREN_X)
#undef WARREN_X
};

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
  count(Transition::heartbeat);
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

void WorkerMachine::fail(State state, Status why, std::vector<WorkerEffect>& effects, bool fenced) {
  state_ = state;
  effects.emplace_back(Fail{std::move(why), fenced});
}

void WorkerMachine::start(TimeMs now, std::vector<WorkerEffect>& effects) {
  WARREN_CHECK(state_ == State::kIdle, "a worker machine starts once");
  count(Transition::started);
  state_ = State::kJoining;
  since_ = heard_ = now;
  next_send_ = now + interval_ms();
  next_complaint_ = now + kWaitLogIntervalMs;
  log(Severity::kInfo, "joining", "joining job " + options_.job + " at " + who(), effects);
  send_join(effects);
}

void WorkerMachine::on_message(const wire::Envelope& e, TimeMs now, std::vector<WorkerEffect>& effects) {
  if (e.job() != options_.job || e.receiver() != options_.self.value || state_ == State::kIdle) {
    return count(Transition::not_for_us);
  }
  if (!obeys(e, now, effects)) return;
  if (complained_) {
    count(Transition::tracker_back);
    complained_ = false;
    log(Severity::kInfo, "tracker_back", who() + " answers again after " + waited_text(now - heard_), effects);
  }
  if (tracker_.value != 0 && tracker_.value != e.sender()) {
    count(Transition::tracker_changed);
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
    case wire::Envelope::BODY_NOT_SET: return count(Transition::out_of_turn);
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
    count(Transition::term_refused);
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
  count(Transition::promised);
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
    return count(Transition::out_of_turn);
  }
  count(Transition::told);
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
    count(Transition::spare_welcomed);
    if (welcome.has_follow()) follow(welcome.follow(), effects);
    // A job that does not begin may be one that was finished and forgotten.
    if (welcome.joined() == 0) return unbegun_since_.reset();
    welcome_ = welcome;
    if (!unbegun_since_) unbegun_since_ = now;
    if (now >= *unbegun_since_ + options_.join_timeout_ms) join_timed_out(now, effects);
    return;
  }
  if (state_ == State::kSuspended && !welcome.spare()) {
    count(Transition::welcomed_suspended);
    welcome_ = welcome;
    return;
  }
  // The answer to an earlier join says nothing of the newest.
  if (state_ != State::kJoining || (welcome.spare() && welcome.called() != options_.join.called())) {
    return count(Transition::out_of_turn);
  }
  if (welcome.spare()) {
    wait_as_spare(now, effects);
    if (welcome.has_follow()) follow(welcome.follow(), effects);
    return;
  }
  count(Transition::welcomed);
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

void WorkerMachine::on_refused(const wire::Refused& refused, std::vector<WorkerEffect>& effects) {
  const Status why = Status(static_cast<Code>(refused.code()), who() + " refused: " + refused.reason());
  switch (state_) {
    case State::kJoining:
      count(Transition::refused_joining);
      return fail(State::kFailed, why.because_of_this("cannot join job " + options_.job), effects, refused.fenced());
    case State::kSpare:
      if (why.code() == Code::kFinished) {
        count(Transition::spare_unneeded);
        return fail(
            State::kFailed,
            Status(Code::kFinished, "job " + options_.job + " is finished: this worker " +
                                        (shrinks() ? "waited to come in" : "was a spare") + ", and was not needed"),
            effects);
      }
      count(Transition::spare_refused);
      return fail(State::kFailed, why.because_of_this("cannot wait as a spare of job " + options_.job), effects,
                  refused.fenced());
    case State::kMember:
    case State::kLeaving:
      // Disowned: another life has taken over, or this one was silent for too long. What it would still send or write
      // must not meet the new generation (I6).
      count(state_ == State::kMember ? Transition::fenced_member : Transition::fenced_leaving);
      fenced_ = true;
      given_up_ = refused.fenced();
      return stop(Generation(plan_.generation()).next(), why.because_of_this("out of job " + options_.job), false,
                  effects);
    case State::kServing: count(Transition::served_until_told); return end_serving(refused.reason(), effects);
    case State::kSuspended:
      count(Transition::fenced_suspended);
      return fail(State::kFailed, why.because_of_this("out of job " + options_.job), effects, refused.fenced());
    default: return count(Transition::out_of_turn);
  }
}

void WorkerMachine::on_plan(const wire::Plan& told, TimeMs now, std::vector<WorkerEffect>& effects) {
  const bool expected = state_ == State::kJoining || state_ == State::kSpare ||
                        (state_ == State::kSuspended && Generation(told.generation()) >= stop_generation_);
  if (told.generation() <= plan_.generation() || !expected) return count(Transition::plan_stale);
  wire::Plan plan = told;
  if (told.base_generation() != 0) {
    auto whole = with_changes(plan_, told);
    if (!whole.ok()) {
      // It was meant for another life, or the tracker has another plan in mind than this one has: the next report asks
      // for all of it.
      count(Transition::plan_for_other);
      needs_whole_plan_ = true;
      return log(Severity::kWarning, "plan_unusable", whole.status().describe(), effects);
    }
    plan = std::move(whole).value();
  }
  const auto self = std::find_if(plan.members().begin(), plan.members().end(),
                                 [&](const wire::Member& m) { return m.incarnation() == options_.self.value; });
  if (self == plan.members().end() || self->absent() || self->worker_id() != options_.join.worker_id()) {
    return count(Transition::plan_for_other);
  }
  if (state_ == State::kSpare) {
    // The answer to one of its joins has taken back what it said in them, and another one was believed.
    count(Transition::plan_for_spare);
    const std::string why = "it was told to wait on as a spare, and then planned for";
    send_leave(why, effects);
    return fail(State::kFailed, Status(Code::kClosed, "out of job " + options_.job + ": " + why), effects, true);
  }
  count(state_ == State::kJoining ? Transition::installed : Transition::reinstalled);
  const std::uint32_t rank = self->rank();
  plan_ = std::move(plan);
  needs_whole_plan_ = false;
  state_ = last_version_ ? State::kLeaving : State::kMember;
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
  if (last_version_) {
    send_finalize(effects);
  } else {
    send_heartbeat(now, effects);
  }
  repeat_wishes(effects);
}

// What the program waits for, or will: as often as heartbeats.
void WorkerMachine::repeat_wishes(std::vector<WorkerEffect>& effects) {
  if (loading_) {
    count(Transition::load_repeated);
    send_load(effects);
  }
  if (vote_.version() != 0) {
    count(Transition::vote_repeated);
    send_vote(effects);
  }
  if (vote_again_) {
    count(Transition::commit_voted_again);
    wire::Envelope e = envelope();
    wire::Vote& vote = *e.mutable_vote();
    vote.set_timeline(committed_timeline_.value);
    vote.set_version(committed_.value);
    vote.set_generation(plan_.generation());
    vote.mutable_setups()->Add(setups_.begin(), setups_.end());
    effects.emplace_back(Send{std::move(e)});
  }
  if (!log_gap_.empty()) {
    count(Transition::log_gap_repeated);
    send_log_gap(effects);
  }
}

void WorkerMachine::on_connection_trouble(const std::string& what, TimeMs, std::vector<WorkerEffect>& effects) {
  count(Transition::connection_trouble);
  if (what == trouble_) return;
  trouble_ = what;
  log(Severity::kWarning, "connection_trouble", "the connection to " + who() + ": " + wire_text(what), effects);
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
  send_leave("its join timeout has passed", effects);
  const std::string after = " after " + waited_text(now - since_);
  const std::string trouble = trouble_.empty() ? "" : " (the connection says: " + wire_text(trouble_) + ")";
  if (welcome_.world_size() == 0) {
    count(Transition::join_timed_out_unheard);
    return fail(State::kFailed,
                Status(Code::kTimeout, tracker_.value != 0 ? who() + " has decided nothing for the job" + after +
                                                                 "; its log says whom it waits for"
                                                           : who() + " has not answered" + after + trouble +
                                                                 "; start it, or correct its address, or look at the "
                                                                 "secret and the firewall")
                    .because_of_this("cannot join job " + options_.job),
                effects);
  }
  count(Transition::join_timed_out_incomplete);
  std::string text = "job " + options_.job + " has " + std::to_string(welcome_.joined()) + " of its " +
                     std::to_string(welcome_.world_size()) + " workers" + after;
  if (welcome_.missing_size() != 0) text += ", missing are " + list(welcome_.missing());
  if (now - heard_ > static_cast<std::int64_t>(options_.join.settings().round_timeout_ms())) {
    text += ", and " + who() + " has been silent for " + waited_text(now - heard_) + trouble;
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
            ? "waiting since " + waited_text(now - since_) + " until " + who() +
                  " is sure that no worker of the last run of job " + options_.job +
                  " lives, which takes up to two round timeouts (" + waited_text(2 * timeout_ms) +
                  ") from their end: it then goes on with " + std::to_string(options_.join.settings().world_size())
        : state_ == State::kJoining && welcome_.world_size() == 0
            ? who() + " decides nothing for job " + options_.job + " yet; its log says why"
        : state_ == State::kJoining ? "waiting since " + waited_text(now - since_) + " for the other workers of job " +
                                          options_.job + ", which has " + std::to_string(welcome_.joined()) +
                                          " of its " + std::to_string(welcome_.world_size()) +
                                          (welcome_.missing_size() == 0 ? "" : "; missing: " + list(welcome_.missing()))
        : state_ == State::kSuspended ? "all calls have waited " + waited_text(now - since_) + " for " +
                                            missing_ranks() + " (" + stop_why_.describe() + ")"
        : state_ == State::kServing ? "this worker has left job " + options_.job +
                                          ", and serves what its host has logged since " + waited_text(now - since_)
                                    : "finalize waits since " + waited_text(now - since_) +
                                          " for the tracker, or for ranks that have not called it",
        effects);
  } else {
    count(Transition::tracker_silent);
    complained_ = true;
    log(Severity::kWarning, "tracker_silent",
        who() + " has not answered for " + waited_text(now - heard_) +
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
    count(Transition::report_timed_out);
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
                                    waited_text(now - heard_)),
                false, effects);
  }
  const bool answers = state_ == State::kJoining && options_.join.called() != 0;
  if ((state_ == State::kSpare || answers) && term_.value != 0 &&
      now >= std::max(heard_, since_) + options_.join_timeout_ms) {
    // Whoever it has heard of is gone, and who is there now may have a lower term. Nobody counts on a spare's promise.
    count(Transition::spare_forgot);
    since_ = now;
    term_ = Term();
    tracker_ = Incarnation();
    // The call was that tracker's.
    if (answers) return wait_as_spare(now, effects);
  }
  if (state_ == State::kSuspended && now >= heard_ + options_.join_timeout_ms) {
    count(Transition::suspend_timed_out);
    return fail(State::kFailed,
                Status(Code::kTimeout, who() + " has not answered for " + waited_text(now - heard_) +
                                           " after it had interrupted the job; start it again, then this worker"),
                effects, true);
  }
  if (state_ == State::kLeaving && now >= heard_ + options_.join_timeout_ms) {
    count(Transition::leave_timed_out);
    fenced_ = given_up_ = true;
    return stop(Generation(plan_.generation()).next(),
                Status(Code::kTimeout, who() + " has not answered for " + waited_text(now - heard_) +
                                           "; whether the other ranks have finished is not known")
                    .because_of_this("cannot finalize job " + options_.job),
                false, effects);
  }
  if (state_ == State::kServing && now >= drain_->by) {
    count(Transition::served_its_time);
    send_serves(0, effects);
    return end_serving("its time is over", effects);
  }
  keep_alive(now, effects);
  if (state_ == State::kMember && !away_ && now >= away_from()) {
    count(Transition::tracker_away);
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
      count(Transition::join_repeated);
      send_join(effects);
      break;
    case State::kSpare:
      count(Transition::spare_repeated);
      send_join(effects);
      break;
    case State::kMember:
      send_heartbeat(now, effects);
      repeat_reports(effects);
      break;
    case State::kLeaving:
      count(Transition::leave_repeated);
      send_finalize(effects);
      repeat_reports(effects);
      break;
    case State::kSuspended:
      count(Transition::report_repeated);
      send_report(effects);
      for (const BrokenLink& broken : broken_links_) {
        if (!broken.gone) continue;
        count(Transition::peer_gone_repeated_suspended);
        send_link_broken(broken, effects);
      }
      break;
    case State::kServing:
      count(Transition::serves_repeated);
      send_serves(static_cast<std::uint64_t>(std::max<std::int64_t>(1, drain_->by - now)), effects);
      break;
    default: break;
  }
  if (state_ == State::kMember || state_ == State::kLeaving) repeat_wishes(effects);
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
