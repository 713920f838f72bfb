// How generations end, and what time does to a job. How they begin is in planning.cc, what messages do in
// tracker_machine.cc.
#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/decide/deadlock.h"
#include "recovery/decide/waits.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/packed_members.h"

namespace warren {

using tracker_effect::Drop;
using tracker_effect::Forget;
using tracker_effect::Log;
using tracker_effect::Persist;
using tracker_effect::Send;

namespace {
constexpr std::size_t kMostDoubts = 256;
// Of Envelope.plan: its number, and that bytes of a given length follow.
// With a short round timeout a busy machine's ordinary delays count as sleep: excused, and not worth a line.
constexpr std::int64_t kSleepWorthTellingMs = 1000;

std::string seconds(std::int64_t ms) {
  return ms >= 10'000 || ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}
}  // namespace

void TrackerMachine::count(Transition transition) {
  ++transitions_[static_cast<std::size_t>(transition)];
}

void TrackerMachine::arm(TimeMs at) {
  if (!deadline_ || at < *deadline_) deadline_ = at;
}

std::int64_t TrackerMachine::timeout_ms() const {
  return static_cast<std::int64_t>(settings_.round_timeout_ms());
}
std::int64_t TrackerMachine::interval_ms() const {
  return heartbeat_interval_ms(timeout_ms());
}
TrackerMachine::State TrackerMachine::state() const {
  return state_;
}
std::optional<TimeMs> TrackerMachine::next_deadline() const {
  return deadline_;
}

void TrackerMachine::log(Severity severity, std::string name, std::string text, Effects& effects,
                         std::vector<std::pair<std::string, std::string>> fields) const {
  fields.insert(fields.begin(), {"job", options_.job});
  if (generation_.value != 0) fields.emplace_back("generation", std::to_string(generation_.value));
  effects.emplace_back(Log{LogEvent{severity, std::move(name), std::move(text), std::move(fields)}});
}

void TrackerMachine::persist(Effects& effects) {
  wire::JobRecord record;
  record.set_format(kJobRecordFormat);
  record.set_job(options_.job);
  record.set_generation(generation_.value);
  record.set_term(term_.value);
  *record.mutable_settings() = settings_;
  record.set_settings_from(settings_from_);
  if (state_ == State::kFinished) {
    record.set_finished(true);
  } else {
    record.set_timeline(timeline_.value);
    record.set_committed(committed_.has_value());
    record.set_committed_version(committed_.value_or(Version()).value);
    record.set_committed_timeline(committed_timeline_.value);
    *record.mutable_setups() = setups_;
    *record.mutable_plan() = plan_;
    record.set_without_frontier(without_frontier_);
    record.set_join_timeout_ms(static_cast<std::uint64_t>(join_timeout_ms_));
    if (interrupt_.generation() != 0) *record.mutable_interrupt() = interrupt_;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      if (members_[rank].silent) record.add_finalized(static_cast<std::uint32_t>(rank));
    }
    for (const std::string& domain : left_domains_) record.add_left_domains(domain);
    for (const Incarnation life : retired_.oldest_first()) record.add_retired(life.value);
  }
  const Status valid = validate(record);
  WARREN_CHECK(valid.ok(), valid.describe().c_str());
  persisted_generation_ = generation_;
  persisted_commit_ = committed_;
  effects.emplace_back(Persist{record.SerializeAsString()});
}

namespace {
void append_varint(std::string& bytes, std::size_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7f) | 0x80);
  bytes += static_cast<char>(value);
}
// The tag and the length of a field of `bytes` bytes.
std::string head_of(int field, std::size_t bytes) {
  constexpr unsigned kLengthDelimited = 2;
  std::string head;
  append_varint(head, static_cast<unsigned>(field) << 3 | kLengthDelimited);
  append_varint(head, bytes);
  return head;
}
}  // namespace

std::string tracker_effect::encode(const Send& send) {
  if (send.plan == nullptr) return warren::encode(send.envelope, Side::kTracker);
  // Fields may come in any order, and parts of a message are put together: the plan comes last.
  std::string head;
  if (send.envelope.has_welcome()) {
    head = head_of(wire::Follow::kPlanFieldNumber, send.plan->size());
    head.insert(0, head_of(wire::Welcome::kFollowFieldNumber, head.size() + send.plan->size()));
    head.insert(0, head_of(wire::Envelope::kWelcomeFieldNumber, head.size() + send.plan->size()));
  } else {
    head = head_of(wire::Envelope::kPlanFieldNumber, send.plan->size());
  }
  std::string bytes = send.envelope.SerializeAsString();
  bytes.reserve(bytes.size() + head.size() + send.plan->size());
  return bytes.append(head).append(*send.plan);
}

wire::Envelope tracker_effect::envelope_of(const Send& send) {
  wire::Envelope e = send.envelope;
  if (send.plan == nullptr) return e;
  wire::Plan plan;
  WARREN_CHECK(plan.ParseFromString(*send.plan), "we have serialized it");
  plan = unpack(std::move(plan)).value();
  (e.has_welcome() ? *e.mutable_welcome()->mutable_follow()->mutable_plan() : *e.mutable_plan()) = std::move(plan);
  return e;
}

wire::Envelope TrackerMachine::envelope_to(Incarnation who) const {
  wire::Envelope e;
  e.set_protocol(kProtocolVersion);
  e.set_job(options_.job);
  e.set_sender(options_.self.value);
  e.set_receiver(who.value);
  e.set_term(term_.value);
  return e;
}

bool TrackerMachine::send_plan(std::size_t rank, TimeMs now, Effects& effects) {
  WARREN_CHECK(Generation(plan_.generation()) <= persisted_generation_, "a plan is persisted before it is announced");
  WARREN_CHECK(acting_, "who decides has the promise of most");
  const Incarnation who(plan_.members(static_cast<int>(rank)).incarnation());
  Member& m = members_[rank];
  const bool has_base = told_changes_ != nullptr && m.plan_generation == told_base_;
  const auto& plan = has_base ? told_changes_ : whole_plan();
  if (plan_bytes_out_ != 0 && plan_bytes_out_ + plan->size() > options_.most_plan_bytes_out) {
    count(Transition::plan_paced);
    return false;
  }
  plan_bytes_out_ += plan->size();
  m.plan_bytes_out = plan->size() + (m.plan_sent >= plans_counted_from_ ? m.plan_bytes_out : 0);
  m.plan_sent = now;
  if (has_base) count(Transition::plan_told_by_changes);
  effects.emplace_back(Send{who, envelope_to(who), plan});
  return true;
}

const std::shared_ptr<const std::string>& TrackerMachine::whole_plan() {
  if (told_ == nullptr) told_ = std::make_shared<const std::string>(packed(plan_).SerializeAsString());
  return told_;
}

const std::shared_ptr<const std::string>& TrackerMachine::followed_plan() {
  if (followed_ != nullptr) return followed_;
  wire::Plan plan;
  plan.set_generation(plan_.generation());
  plan.set_run(plan_.run());
  plan.set_timeline(plan_.timeline());
  *plan.mutable_settings() = plan_.settings();
  *plan.mutable_members() = plan_.members();
  *plan.mutable_servers() = plan_.servers();
  followed_ = std::make_shared<const std::string>(packed(std::move(plan)).SerializeAsString());
  return followed_;
}

// To one that asks for it, and has been sent it before, or whose turn comes.
void TrackerMachine::repeat_plan(std::size_t rank, TimeMs now, Effects& effects) {
  count(Transition::plan_repeated);
  if (rank < unannounced_ && send_plan(rank, now, effects)) return;
  tell_heard(Incarnation(plan_.members(static_cast<int>(rank)).incarnation()), effects);
}

void TrackerMachine::plan_arrived(std::size_t rank, TimeMs now, Effects& effects) {
  Member& m = members_[rank];
  const std::size_t bytes = std::exchange(m.plan_bytes_out, 0);
  if (bytes != 0 && m.plan_sent >= plans_counted_from_) plan_bytes_out_ -= std::min(plan_bytes_out_, bytes);
  if (bytes != 0) announce(now, effects);
}

void TrackerMachine::send_interrupt(std::size_t rank, Effects& effects) const {
  WARREN_CHECK(Generation(interrupt_.generation()) <= persisted_generation_,
               "a generation is persisted before it is announced");
  WARREN_CHECK(acting_ || lost(),
               "a tracker that decides has the promise of most ranks, or repeats that the job is lost");
  const Incarnation who(plan_.members(static_cast<int>(rank)).incarnation());
  wire::Envelope e = envelope_to(who);
  *e.mutable_interrupt() = interrupt_;
  effects.emplace_back(Send{who, std::move(e)});
}

void TrackerMachine::send_welcome(Incarnation who, Effects& effects) const {
  wire::Envelope e = envelope_to(who);
  wire::Welcome& w = *e.mutable_welcome();
  w.set_joined(static_cast<std::uint32_t>(waiting_.size()));
  w.set_world_size(settings_.world_size());
  for (std::string& worker : missing_workers()) w.add_missing(std::move(worker));
  effects.emplace_back(Send{who, std::move(e)});
}

void TrackerMachine::send_finished(Incarnation who, Effects& effects) const {
  wire::Envelope e = envelope_to(who);
  e.mutable_finished()->set_generation(generation_.value);
  effects.emplace_back(Send{who, std::move(e)});
  effects.emplace_back(Drop{who});
}

void TrackerMachine::announce(TimeMs now, Effects& effects) {
  while (unannounced_ < members_.size() && (absent(unannounced_) || send_plan(unannounced_, now, effects))) {
    ++unannounced_;
  }
}

void TrackerMachine::interrupt(Code code, const std::string& what, const std::vector<std::uint32_t>& lost, TimeMs now,
                               Effects& effects, const wire::About& about) {
  if (logged() && (code == Code::kPeerLost || code == Code::kCorrupt)) {
    return end_generation(code, what, lost, Ending::kResumes, now, effects, about);
  }
  if (logged()) return roll_back(code, what, now, effects, about);
  end_generation(code, what, lost, Ending::kRollsBack, now, effects, about);
}

void TrackerMachine::roll_back(Code code, const std::string& what, TimeMs now, Effects& effects,
                               const wire::About& about) {
  count(Transition::rolled_back);
  doubted_.clear();
  // The votes for a checkpoint have told what is part of it. The rest is undone, as what other lives have done is.
  leavers_.forget_what_they_said();
  if (code == Code::kDesync) forget_uncommitted_setups();
  end_generation(code, what, {}, Ending::kRollsBack, now, effects, about);
}

// For people: what they have to do, or what the job does by itself.
std::string TrackerMachine::what_comes_next(Code code, const std::vector<std::uint32_t>& lost, Ending ending) const {
  const std::string anew =
      "start the job anew: under another name, or this one once it is free, by `warren forget --job=" + options_.job +
      "`";
  switch (ending) {
    case Ending::kEndsJob:
      if (code == Code::kExhausted) {
        return "; take checkpoints, or give the logs more room (log_memory_bytes, data_dir), and " + anew;
      }
      return "; if what the workers had on disk still exists, start all of them again with it (data_dir); otherwise " +
             anew;
    case Ending::kResumes:
      if (lost.empty()) return "; the ranks stop, connect again and go on";
      if (!shrinks()) return "; the other ranks wait until it is started again, and go on";
      return "; the other ranks wait for it for " + seconds(static_cast<std::int64_t>(settings_.grace_ms())) +
             " at most, and go on";
    case Ending::kRollsBack: break;
  }
  if (code == Code::kDesync) {
    return "; make all ranks call the same things in the same order, then start the job again" +
           (logged() ? ": it goes on from " + program_version() : "");
  }
  if (logged()) return "; all processes start again from " + program_version();
  if (lost.empty()) return "; all ranks have to join again";
  return "; restart it and all ranks join again, or start the job again";
}

void TrackerMachine::end_generation(Code code, const std::string& what, const std::vector<std::uint32_t>& lost,
                                    Ending ending, TimeMs now, Effects& effects, wire::About about) {
  WARREN_CHECK(planned() && state_ != State::kFinished, "only a plan is interrupted");
  count(Transition::interrupted);
  ++interrupts_;
  generation_ = generation_.next();
  WARREN_CHECK(generation_.value < kMaxGeneration, "generations do not run out");
  const bool resume = ending == Ending::kResumes;
  const std::string next = what_comes_next(code, lost, ending);
  // What to do comes last and must survive a long reason.
  const std::string reason = wire_text(what).substr(0, limits::kMaxReasonBytes - next.size());
  interrupt_.Clear();
  interrupt_.set_generation(generation_.value);
  interrupt_.set_code(static_cast<std::uint32_t>(code));
  interrupt_.set_reason(wire_text(reason + next));
  interrupt_.mutable_lost()->Add(lost.begin(), lost.end());
  interrupt_.set_resume(resume);
  interrupt_.set_ends_job(ending == Ending::kEndsJob);
  if (!about.has_peer() && !lost.empty()) about.set_peer(lost.front());
  *interrupt_.mutable_about() = std::move(about);
  last_interrupt_ = interrupt_.reason();
  state_ = State::kInterrupted;
  since_ = answered_ = interrupted_at_ = now;
  if (!noticed_) noticed_ = now;
  next_repeat_ = now + interval_ms();
  evidence_.clear();
  watch_.forget();
  end_calls();
  // A vote says that what one plan makes a rank's duty is durable: under the next one duties differ, and all vote
  // again.
  ballot_.clear();
  last_versions_.clear();
  unannounced_ = members_.size();
  persist(effects);
  if (ending == Ending::kEndsJob) {
    log(Severity::kError, "job_lost", "job " + options_.job + " cannot go on: " + interrupt_.reason(), effects);
  } else {
    log(code == Code::kDesync ? Severity::kError : Severity::kWarning, "interrupted",
        "generation " + std::to_string(plan_.generation()) + " of job " + options_.job +
            " is over: " + interrupt_.reason(),
        effects);
  }
  stop_members(now, effects);
  arm(next_repeat_);
  maybe_gather(now, effects);
}

void TrackerMachine::stop_members(TimeMs now, Effects& effects) {
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    Member& m = members_[rank];
    if (m.state == MemberState::kGone) continue;
    if (m.state == MemberState::kSurvivor) {
      // What it reported was the answer to an older interrupt.
      count(Transition::survivors_interrupted);
      erase_waiting(plan_.members(static_cast<int>(rank)).worker_id());
    }
    send_interrupt(rank, effects);
    // Who has been silent for a round timeout already is not waited for.
    const bool given_up = m.silent || now >= m.heard + timeout_ms();
    m.state = MemberState::kStopping;
    if (!given_up) continue;
    lose(rank);
    effects.emplace_back(Drop{Incarnation(plan_.members(static_cast<int>(rank)).incarnation())});
  }
}

void TrackerMachine::interrupt_by_evidence(TimeMs now, Effects& effects) {
  std::vector<std::size_t> named(members_.size(), 0);
  for (const Evidence& e : evidence_) note_futile(e);
  if (end_for_unusable(now, effects)) return;
  for (const Evidence& e : evidence_) {
    // Where a relay has died, both ends lose the link.
    const RankPair pair = pair_of(static_cast<std::uint32_t>(e.reporter), static_cast<std::uint32_t>(e.peer));
    if (Rewiring::takes_detour(plan_, pair)) {
      rewiring_.note_broken(pair);
      continue;
    }
    ++named[e.peer];
    members_[e.peer].suspected = true;
  }
  const auto most = std::max_element(named.begin(), named.end());
  const auto rank = static_cast<std::size_t>(most - named.begin());
  std::string text;
  std::vector<std::uint32_t> lost;
  if (*most >= 2 && std::count(named.begin(), named.end(), *most) == 1) {
    count(Transition::evidence_against_one_rank);
    std::string reporters, first;
    std::size_t shown = 0;
    for (const Evidence& e : evidence_) {
      if (e.peer != rank || shown == kNamesInText) continue;
      if (shown++ == 0) first = e.text;
      reporters += (reporters.empty() ? "" : ", ") + std::to_string(e.reporter);
    }
    text = name(rank) + " is probably gone: " + std::to_string(*most) + " ranks lost their links to it (ranks " +
           reporters + "; rank " + reporters.substr(0, reporters.find(',')) + " reports: " + first + ")";
    lost.push_back(static_cast<std::uint32_t>(rank));
  } else {
    count(Transition::evidence_of_one_link);
    const Evidence& e = evidence_.front();
    text = name(e.reporter) + " lost its link to " + name(e.peer) + ": " + e.text;
    if (evidence_.size() > 1) text += " (and " + std::to_string(evidence_.size() - 1) + " more links broke)";
  }
  interrupt(Code::kPeerLost, text, lost, now, effects);
}

void TrackerMachine::maybe_gather(TimeMs now, Effects& effects) {
  if (state_ != State::kInterrupted) return;
  if (std::any_of(members_.begin(), members_.end(),
                  [](const Member& m) { return m.state == MemberState::kStopping; })) {
    return fence_suspects(now, effects);
  }
  count(Transition::gathering_again);
  state_ = State::kGathering;
  since_ = now;
  next_log_ = now + kWaitLogIntervalMs;
  arm(now + interval_ms());
  const std::string generation = "generation " + std::to_string(plan_.generation()) + " of job " + options_.job;
  if (lost()) {
    return log(Severity::kInfo, "gathering", "all members of " + generation + " have stopped; it cannot go on",
               effects);
  }
  log(Severity::kInfo, "gathering",
      !logged() ? "no member of " + generation + " runs any more; waiting for all workers to join again"
                : "all members of " + generation + " have stopped; " + std::to_string(waiting_.size()) + " of " +
                      std::to_string(members_.size()) + " workers are there",
      effects);
  call_spares(now, effects);
  maybe_plan(now, effects);
}

void TrackerMachine::finish(TimeMs now, Effects& effects) {
  count(Transition::finished);
  state_ = State::kFinished;
  // The record goes only after a time in which every member can ask again: a tracker that is restarted meanwhile still
  // knows that the job is finished.
  arm(now + timeout_ms());
  next_repeat_ = now + timeout_ms();
  persist(effects);
  log(Severity::kInfo, "finished", "job " + options_.job + " is finished: all ranks have called finalize", effects);
  for (const auto& [life, rank] : rank_by_incarnation_) {
    if (absent(rank)) continue;
    send_finished(life, effects);
    finished_lives_.push_back(life);
  }
  for (const auto& [worker, spare] : spares_) {
    count(Transition::spare_unneeded);
    refuse(spare.life, Code::kFinished, "job " + options_.job + " is finished", effects);
  }
  spares_.clear();
  dismiss_servers(Code::kFinished, "the job is finished", effects);
  members_.clear();
  absent_ = 0;
  rank_by_incarnation_.clear();
  place_by_worker_.clear();
  free_places_.clear();
  evidence_.clear();
  leaves_.reset();
  ballot_.clear();
  last_versions_.clear();
  plan_.Clear();
  told_ = told_changes_ = followed_ = nullptr;
  setups_.Clear();
  survivors_setups_.clear();
  setups_since_commit_.clear();
}

void TrackerMachine::on_tick(TimeMs now, Effects& effects) {
  if (!deadline_ || now < *deadline_) return;
  excuse_own_sleep(now, effects);
  deadline_.reset();
  if (!acting_) {
    if (now >= next_log_) {
      next_log_ = now + kWaitLogIntervalMs;
      log_promises(effects);
    }
    return arm(next_log_);
  }
  drop_silent_spares(now, effects);
  drop_late_servers(now, effects);
  switch (state_) {
    case State::kGathering: return tick_gathering(now, effects);
    case State::kRunning: return tick_running(now, effects);
    case State::kInterrupted: return tick_interrupted(now, effects);
    case State::kFinished:
      if (now < next_repeat_) return arm(next_repeat_);
      if (forgotten_) return;
      forgotten_ = true;
      count(Transition::forgotten);
      effects.emplace_back(Forget{});
      return;
  }
}

void TrackerMachine::excuse_own_sleep(TimeMs now, Effects& effects) {
  if (rebuilding_ && now - *deadline_ > kSleepWorthTellingMs) rebuilding_->since = now;
  if (settings_.world_size() == 0 || state_ == State::kFinished || now - *deadline_ <= interval_ms()) return;
  // This tracker was called late (a slow disk, a stopped machine): what its workers sent meanwhile may still be unread.
  count(Transition::slept);
  const std::int64_t late_ms = now - *deadline_;
  if (late_ms >= kSleepWorthTellingMs) {
    log(Severity::kWarning, "tracker_slept",
        "the tracker was held up for " + seconds(late_ms) + "; its workers are given time to be heard", effects);
  }
  judge_from_ = now + 2 * interval_ms();
  const TimeMs excused = now + (2 * interval_ms() - timeout_ms());
  for (Member& m : members_) m.heard = std::max(m.heard, excused);
  waiting_.excuse(excused);
  spares_.excuse(excused);
  leavers_.excuse(excused);
  if (state_ == State::kInterrupted) since_ = std::max(since_, excused);
  // Who is back may not have been heard.
  const auto grace_ms = static_cast<std::int64_t>(settings_.grace_ms());
  if (shrinks()) interrupted_at_ = std::max(interrupted_at_, now + (2 * interval_ms() - grace_ms));
}

bool TrackerMachine::find_silent(TimeMs now, Effects& effects) {
  std::vector<std::uint32_t> lost;
  bool finalized_silent = false;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    Member& m = members_[rank];
    if (m.silent || absent(rank)) continue;
    if (now < m.heard + timeout_ms()) {
      arm(m.heard + timeout_ms());
    } else if (m.state == MemberState::kActive || logged()) {
      lost.push_back(static_cast<std::uint32_t>(rank));
    } else if (m.state == MemberState::kFinalizing) {
      count(Transition::finalized_silent);
      m.silent = finalized_silent = true;
      log(Severity::kWarning, "finalized_silent",
          name(rank) + " has not been heard for " + seconds(now - m.heard) + "; it has called finalize, which stands",
          effects, {{"rank", std::to_string(rank)}});
    }
  }
  // A restarted tracker would wait in vain for these to repeat their Leave.
  if (finalized_silent && lost.empty()) persist(effects);
  if (lost.empty()) return false;
  count(Transition::member_silent);
  std::string text;
  for (std::size_t i = 0; i < lost.size() && i < kNamesInText; ++i) {
    text += (i == 0 ? "" : ", ") + name(lost[i]);
  }
  if (lost.size() > kNamesInText) text += " and " + std::to_string(lost.size() - kNamesInText) + " more";
  text += (lost.size() == 1 ? " has" : " have") + std::string(" not been heard for ") +
          seconds(now - members_[lost.front()].heard);
  const Verdict* verdict = watch_.against(Rank(static_cast<std::int32_t>(lost.front())));
  text += verdict != nullptr && verdict->blame == Blame::kCutOff ? ": cut off (" + verdict->reason + ")"
                                                                 : ": dead, hung or cut off";
  interrupt(Code::kPeerLost, text, lost, now, effects);
  return true;
}

// True: this is the first time. A wait that outlives the links over which the bytes were lost is a disagreement.
bool TrackerMachine::doubt(const Wait& wait) {
  if (std::ranges::find(doubted_, wait) != doubted_.end()) return false;
  if (doubted_.size() == kMostDoubts) doubted_.pop_front();
  doubted_.push_back(wait);
  return true;
}

bool TrackerMachine::find_desync(TimeMs now, Effects& effects) {
  // Over a link that is broken ranks wait in vain for what they agree on.
  if (!evidence_.empty()) return false;
  std::vector<RankReport> reports;
  reports.reserve(members_.size());
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& m = members_[rank];
    reports.push_back({Rank(static_cast<std::int32_t>(rank)), m.state == MemberState::kFinalizing,
                       now < m.heard + 3 * interval_ms(), m.rounds_finished, m.rounds, now - m.finalizing_since,
                       now - m.told, m.activity ? &*m.activity : nullptr, m.blocked ? &*m.blocked : nullptr});
  }
  const std::vector<std::int64_t> awaited = awaited_outside(reports);
  for (std::size_t rank = 0; rank < members_.size(); ++rank) members_[rank].awaited_ms = awaited[rank];
  const auto name_of = [this](Rank rank) { return name(static_cast<std::size_t>(rank.value)); };
  if (const auto found = find_disagreement(reports, timeout_ms(), settings_.check_call_sites(), name_of)) {
    if (found->wait && logged() && doubt(*found->wait)) {
      count(Transition::bytes_missing);
      interrupt(Code::kPeerLost, found->text + ": what the one has sent is lost, or they call different things", {},
                now, effects);
      return true;
    }
    count(Transition::desync);
    interrupt(Code::kDesync, found->text, {}, now, effects);
    return true;
  }
  if (const auto circle = find_deadlock(reports, timeout_ms(), name_of)) {
    count(Transition::deadlock);
    interrupt(Code::kDesync, *circle, {}, now, effects);
    return true;
  }
  if (now < next_log_) return false;
  next_log_ = now + kWaitLogIntervalMs;
  for (const WaitLine& line : describe_waits(reports, kWaitLogIntervalMs)) {
    count(Transition::waits_logged);
    log(Severity::kInfo, "round_waits", line.text, effects,
        {{"rank", std::to_string(line.waiter.value)},
         {"version", std::to_string(line.round.version.value)},
         {"sequence", std::to_string(line.round.sequence.value)}});
  }
  log_finalize_wait(effects);
  log_vote_wait(now, effects);
  return false;
}

std::vector<Testimony> TrackerMachine::testimonies(TimeMs now) const {
  std::vector<Testimony> all;
  all.reserve(members_.size());
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& m = members_[rank];
    // Of who is absent nothing is expected.
    const bool done = m.state == MemberState::kFinalizing || absent(rank);
    all.push_back({Rank(static_cast<std::int32_t>(rank)), done, absent(rank) ? 0 : now - m.heard, m.longest_gap_ms,
                   m.rounds_finished, m.rounds, m.activity ? &*m.activity : nullptr,
                   plan_.members(static_cast<int>(rank)).host_id()});
  }
  return all;
}

// Says each finding, and then acts on it (replace.cc, rewire.cc).
void TrackerMachine::look_for_stragglers(TimeMs now, Effects& effects) {
  // A rank that lost a link waits in vain. A rank whose links never come up is not slow. Neither is judged.
  if (!evidence_.empty() || futile_.any_unusable() || now < judge_from_) return;
  const auto name_of = [this](Rank rank) { return name(static_cast<std::size_t>(rank.value)); };
  const auto found = find_stragglers(testimonies(now), straggler_limits(timeout_ms()), name_of);
  const auto changes = watch_.look(found, now);
  const auto standing = foresee(now);
  for (const StragglerWatch::Change& change : changes) {
    const Verdict& v = change.verdict;
    const std::string kind = to_string(v.blame);
    std::vector<std::pair<std::string, std::string>> fields = {{"kind", kind}, {"rank", std::to_string(v.rank.value)}};
    if (v.peer != kNoRank) fields.emplace_back("peer", std::to_string(v.peer.value));
    if (change.begins) {
      count(Transition::straggler_named);
      ++verdicts_ever_[static_cast<std::size_t>(v.blame)];
      const auto at = std::ranges::find_if(standing, [&](const auto& s) { return s.verdict.key() == v.key(); });
      const std::string& next = at->verdict.next;
      std::string text = kind;
      text.append(": ").append(v.reason).append(". Next: ").append(next);
      log(Severity::kWarning, "straggler", text, effects, std::move(fields));
    } else {
      count(Transition::straggler_cleared);
      log(Severity::kInfo, "straggler_cleared",
          kind + ": what was said of " + name(static_cast<std::size_t>(v.rank.value)) +
              (v.peer == kNoRank ? "" : " and " + name(static_cast<std::size_t>(v.peer.value))) +
              " holds no longer, after " + seconds(change.stood_ms),
          effects, std::move(fields));
    }
  }
  replace_stragglers(found, now, effects);
  rewire(found, now, effects);
}

void TrackerMachine::log_finalize_wait(Effects& effects) {
  std::size_t entered = 0, shown = 0;
  std::string others;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& m = members_[rank];
    if (m.state == MemberState::kFinalizing) {
      ++entered;
    } else if (!absent(rank) && shown++ < kNamesInText) {
      others += (others.empty() ? "" : ", ") + name(rank) + ", which has finished " + rounds_text(m.rounds_finished);
    }
  }
  if (entered == 0) return;
  count(Transition::finalize_wait_logged);
  log(Severity::kInfo, "finalize_waits",
      std::to_string(entered) + " of " + std::to_string(present()) + " ranks of job " + options_.job +
          " wait in finalize for " + others + (shown > kNamesInText ? " and others" : ""),
      effects);
}

void TrackerMachine::tick_running(TimeMs now, Effects& effects) {
  if (find_silent(now, effects)) return;
  if (!evidence_.empty()) {
    if (now >= evidence_due_) return interrupt_by_evidence(now, effects);
    arm(evidence_due_);
  }
  if (now >= next_repeat_) {
    next_repeat_ = now + interval_ms();
    plan_bytes_out_ = 0;
    plans_counted_from_ = now;
    announce(now, effects);
    if (find_desync(now, effects)) return;
    look_for_stragglers(now, effects);
  }
  arm(next_repeat_);
}

void TrackerMachine::tick_interrupted(TimeMs now, Effects& effects) {
  const bool over = now >= since_ + timeout_ms();
  const bool repeat = now >= next_repeat_;
  if (repeat) next_repeat_ = now + interval_ms();
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    Member& m = members_[rank];
    if (m.state != MemberState::kStopping) continue;
    if (over) {
      count(Transition::fenced);
      lose(rank);
      log(Severity::kWarning, "fenced",
          name(rank) + " did not answer the interrupt within " + seconds(timeout_ms()) +
              ": this life is fenced; its process has ended, hangs or is cut off",
          effects, {{"rank", std::to_string(rank)}});
      effects.emplace_back(Drop{Incarnation(plan_.members(static_cast<int>(rank)).incarnation())});
    } else if (repeat) {
      count(Transition::interrupt_repeated);
      send_interrupt(rank, effects);
    }
  }
  if (over) return maybe_gather(now, effects);
  arm(std::min(next_repeat_, since_ + timeout_ms()));
  fence_suspects(now, effects);
}

void TrackerMachine::tick_gathering(TimeMs now, Effects& effects) {
  if (rebuilding_) {
    if (now >= rebuild_deadline()) end_rebuilding(now, effects);
    if (state_ != State::kGathering) return;
    if (rebuilding_) arm(rebuild_deadline());
  }
  const std::vector<std::string> silent = waiting_.silent(now, timeout_ms());
  for (const std::string& worker : silent) {
    count(Transition::waiting_lost);
    const Waiting& w = waiting_.at(worker);
    const Incarnation life = w.id();
    log(Severity::kWarning, "worker_lost",
        "worker " + worker + " on host " + w.member.host_id() + " has not been heard for " + seconds(now - w.heard) +
            " while it waited to join",
        effects, {{"worker", worker}});
    // A spare says again that it is there, should it only have been cut off.
    const bool spare = w.called.value != 0;
    remove_waiting(worker);
    if (!spare) retire(life);
    effects.emplace_back(Drop{life});
  }
  if (!silent.empty()) forget_unused_settings();
  call_spares(now, effects);
  maybe_plan(now, effects);
  if (state_ != State::kGathering || waiting_.empty()) return;
  if (now >= next_log_) {
    count(Transition::gathering_logged);
    next_log_ = now + kWaitLogIntervalMs;
    std::string missing;
    for (const std::string& worker : missing_workers()) missing += (missing.empty() ? "" : ", ") + worker;
    const std::string beginning = describe_beginning(now);
    log(Severity::kInfo, "waiting_for_workers",
        "job " + options_.job + " waits for " + std::to_string(settings_.world_size() - waiting_.size()) + " of its " +
            std::to_string(settings_.world_size()) + " workers" + (missing.empty() ? "" : ": " + missing) +
            (beginning.empty() ? "" : "; " + beginning) + describe_spares(),
        effects);
  }
  arm(next_log_);
  for (const auto& [worker, w] : waiting_) arm(w.heard + timeout_ms());
}

}  // namespace warren
