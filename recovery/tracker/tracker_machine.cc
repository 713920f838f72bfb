// The effects of messages on a job. Joins are in joins.cc; how generations begin and end is in
// planning.cc and generations.cc.
#include "recovery/tracker/tracker_machine.h"

#include <algorithm>
#include <iterator>

#include "recovery/base/limits.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"

namespace warren {

using tracker_effect::Drop;
using tracker_effect::Send;

namespace {
constexpr const char* kTransitionNames[] = {
#define WARREN_X(name) #name,
    WARREN_TRACKER_TRANSITIONS(WARREN_X)
#undef WARREN_X
};

// Links break at both ends and in numbers when a process dies, and its Leave may be on its way: evidence is collected
// for this long before a rank is named.
constexpr std::int64_t kEvidenceMs = 50;
// Where a spare stands by, or the job goes on without, that wait is most of what a loss costs. Who is named matters
// less: who has failed shows by what it does not answer.
constexpr std::int64_t kEvidenceWithSparesMs = 10;
constexpr std::size_t kMaxEvidence = 256;
// A gap between two heartbeats counts less with each that follows, and little after so many.
constexpr std::int64_t kGapsRemembered = 64;

// A world of heartbeats that are as long as they may be would fill the tracker's memory, for all its jobs.
constexpr int kWaitedForKept = 64;

wire::CurrentRound copy_of(const wire::CurrentRound& from) {
  wire::CurrentRound r;
  r.set_timeline(from.timeline());
  r.set_group(from.group());
  r.set_version(from.version());
  r.set_sequence(from.sequence());
  r.set_collective(from.collective());
  r.set_type(from.type());
  r.set_op(from.op());
  r.set_root(from.root());
  r.set_count(from.count());
  r.set_shape(from.shape());
  r.set_site(from.site());
  for (int i = 0; i < std::min(from.waiting_for_size(), kWaitedForKept); ++i) r.add_waiting_for(from.waiting_for(i));
  r.set_waited_ms(from.waited_ms());
  r.set_algorithm(from.algorithm());
  return r;
}

wire::Blocked copy_of(const wire::Blocked& from) {
  wire::Blocked b;
  b.set_blocked_ms(from.blocked_ms());
  b.set_complete(from.complete());
  for (const wire::CurrentRound& r : from.calls()) *b.add_calls() = copy_of(r);
  for (const wire::BegunRounds& g : from.begun()) {
    wire::BegunRounds& to = *b.add_begun();
    to.set_group(g.group());
    to.set_version(g.version());
    to.set_rounds(g.rounds());
  }
  for (const wire::SentMessages& s : from.sent()) {
    wire::SentMessages& to = *b.add_sent();
    to.set_group(s.group());
    to.set_peer(s.peer());
    to.set_messages(s.messages());
    to.set_leaving(s.leaving());
  }
  return b;
}
}  // namespace

std::span<const char* const> TrackerMachine::transition_names() {
  return kTransitionNames;
}

TrackerMachine::TrackerMachine(Options options)
    : options_(std::move(options)), transitions_(std::size(kTransitionNames), 0) {
  WARREN_CHECK(options_.planner != nullptr && options_.self.value != 0, "planner and incarnation are given");
}

Result<TrackerMachine> TrackerMachine::make(Options options, std::string_view persisted, TimeMs now) {
  TrackerMachine machine(std::move(options));
  machine.since_ = machine.next_log_ = machine.last_round_ = machine.last_commit_ = now;
  if (persisted.empty()) return machine;
  const std::string what = "the journal's record of job " + machine.options_.job;
  const std::string remedy =
      "; use the journal that belongs to it, or remove the record: the job then goes on from what its workers' disks "
      "know, or begins anew where they know nothing";
  wire::JobRecord record;
  if (persisted.size() > limits::kMaxControlMessageBytes ||
      !record.ParseFromArray(persisted.data(), static_cast<int>(persisted.size()))) {
    return Status(Code::kCorrupt, what + " cannot be read" + remedy);
  }
  const Status valid = validate(record);
  if (valid.code() == Code::kRefused) {
    return valid.because_of_this(what +
                                 " was written by another version of Warren; finish the job with that version, "
                                 "or remove the tracker's data directory");
  }
  if (!valid.ok()) return valid.because_of_this(Code::kCorrupt, what + " is damaged" + remedy);
  if (record.job() != machine.options_.job) {
    return Status(Code::kCorrupt, what + " is that of job " + record.job() + remedy);
  }
  machine.term_ = Term(record.term()).next();
  machine.restore(record, now);
  machine.may_be_older_ = true;
  return machine;
}

void TrackerMachine::restore(const wire::JobRecord& record, TimeMs now) {
  generation_ = persisted_generation_ = Generation(record.generation());
  settings_ = record.settings();
  settings_from_ = record.settings_from();
  arm(now + interval_ms());
  next_repeat_ = now + (record.finished() ? timeout_ms() : interval_ms());
  next_log_ = now + kWaitLogIntervalMs;
  if (record.finished()) {
    count(Transition::restored_finished);
    state_ = State::kFinished;
    return;
  }
  timeline_ = Timeline(record.timeline());
  if (record.committed()) committed_ = persisted_commit_ = Version(record.committed_version());
  committed_timeline_ = Timeline(record.committed_timeline());
  setups_ = record.setups();
  plan_ = record.plan();
  told_ = told_changes_ = followed_ = nullptr;
  // Whose word it was is not in the journal. A gap is then mended first, and a second one rolls back.
  frontier_inherited_ = plan_.frontier_size() != 0;
  without_frontier_ = record.without_frontier();
  join_timeout_ms_ = static_cast<std::int64_t>(record.join_timeout_ms());
  interrupt_ = record.interrupt();
  last_interrupt_ = interrupt_.reason();
  state_ = record.has_interrupt() ? State::kInterrupted : State::kRunning;
  count(record.has_interrupt() ? Transition::restored_interrupted : Transition::restored_running);
  members_.resize(static_cast<std::size_t>(plan_.members_size()));
  absent_ = count_absent();
  interrupted_at_ = now + interval_ms();  // when it is said again: nobody may have heard of it
  acting_ = false;
  promises_.ask(now);
  unannounced_ = members_.size();
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const wire::Member& m = plan_.members(static_cast<int>(rank));
    members_[rank].state = m.absent()               ? MemberState::kGone
                           : record.has_interrupt() ? MemberState::kStopping
                                                    : MemberState::kActive;
    members_[rank].heard = now;
    free_places_.insert(rank);
    if (is_vacant(m)) continue;
    rank_by_incarnation_[Incarnation(m.incarnation())] = rank;
    place_by_worker_[m.worker_id()] = rank;
  }
  for (const std::uint32_t rank : record.finalized()) {
    Member& m = members_[rank];
    // It was silent already; after an interrupt nothing is to be expected of it either.
    m.state = record.has_interrupt() ? MemberState::kGone : MemberState::kFinalizing;
    m.finalizing_since = now;
    m.silent = true;
  }
  left_domains_.insert(record.left_domains().begin(), record.left_domains().end());
  // Since a later commit they have gone, or are told to when they say that they serve.
  const bool serve = record.committed_version() == plan_.committed_version() &&
                     record.committed_timeline() == plan_.committed_timeline();
  for (const wire::Member& m : plan_.servers()) {
    if (!serve) break;
    // How far it has gone, which is not in the journal, may be as far as anybody has.
    leavers_.restore(m, newest_begun(), now, now + timeout_ms());
  }
  for (const std::uint64_t life : record.retired()) retire(Incarnation(life));
}

void TrackerMachine::on_message(const wire::Envelope& e, TimeMs now, Effects& effects) {
  const Incarnation who(e.sender());
  if (e.job() != options_.job || who.value == 0) return count(Transition::out_of_turn);
  // It was refused, with too few others, before its job was made up from disks.
  const bool fenced = rank_of(who) && retired_.contains(who);
  if (const auto rank = rank_of(who); rank && !fenced) {
    Member& m = members_[*rank];
    if (m.state != MemberState::kGone) m.heard = now;
  }
  waiting_.hear(who, now);
  spares_.hear(who, now);
  if (!may_act(who, e, now, effects)) return;
  // Not before its term was looked at: it heeds no word of a lower one, and would ask for ever.
  if (fenced) return refuse_stale(who, effects);
  if (is_stranger(who, e)) return on_stranger(who, e, now, effects);
  if (may_know_newer_plan(who, e, now)) return learn_newer_plan(who, e, now, effects);
  // The plan that answers this report may have come to it from the tracker before, and lie unread.
  if (may_be_older_ && e.has_report() && !promises_us(e)) {
    count(Transition::promise_asked);
    return ask_again(who, effects);
  }
  // It has left: what it said before is over.
  if (leavers_.serves(who) && !(e.has_leave() && !e.leave().finalize())) {
    return count(Transition::server_out_of_turn);
  }
  take(who, e, now, effects);
  note_commit(now);
}

void TrackerMachine::take(Incarnation who, const wire::Envelope& e, TimeMs now, Effects& effects) {
  switch (e.body_case()) {
    case wire::Envelope::kJoin: return on_join(who, e.join(), now, effects);
    case wire::Envelope::kHeartbeat: return on_heartbeat(who, e.heartbeat(), now, effects);
    case wire::Envelope::kLinkBroken: return on_link_broken(who, e.link_broken(), now, effects);
    case wire::Envelope::kRoundFailed: return on_round_failed(who, e.round_failed(), now, effects);
    case wire::Envelope::kStopped: return on_stopped(who, e.stopped(), now, effects);
    case wire::Envelope::kLeave: return on_leave(who, e.leave(), now, effects);
    case wire::Envelope::kReport: return on_report(who, e.report(), now, effects);
    case wire::Envelope::kLoad: return on_load(who, effects);
    case wire::Envelope::kVote: return on_vote(who, e.vote(), now, effects);
    case wire::Envelope::kLogGap: return on_log_gap(who, e.log_gap(), now, effects);
    case wire::Envelope::kKnown:
    case wire::Envelope::kForget:
    case wire::Envelope::kWelcome:
    case wire::Envelope::kRefused:
    case wire::Envelope::kPlan:
    case wire::Envelope::kInterrupt:
    case wire::Envelope::kFinished:
    case wire::Envelope::kHeartbeatReply:
    case wire::Envelope::kLoaded:
    case wire::Envelope::kCommitted:
    case wire::Envelope::kTell:
    case wire::Envelope::kCalled:
    case wire::Envelope::kForgotten:
    case wire::Envelope::BODY_NOT_SET: return count(Transition::out_of_turn);
  }
}

void TrackerMachine::lose(std::size_t rank) {
  members_[rank].state = MemberState::kGone;
}

void TrackerMachine::forget_unused_settings() {
  if (!waiting_.empty()) return;
  // Nobody is left who wanted them.
  if (resized_) return undo_resize();
  if (planned() || !spares_.empty() || settings_.world_size() == 0) return;
  count(Transition::settings_forgotten);
  settings_.Clear();
  settings_from_.clear();
}

// A member's counters end with its life: the sums keep what they have risen by.
void TrackerMachine::count_on(Member& member, const wire::GpuCounters& told) {
  const GpuCounts now{told.readers(), told.inputs_lent(), told.finals_from_gpus(), told.rounds_exchanged()};
  const GpuCounts before = std::exchange(member.gpu, now);
  const auto rise = [](std::uint64_t from, std::uint64_t to) { return to - std::min(from, to); };
  gpu_.inputs_lent += rise(before.inputs_lent, now.inputs_lent);
  gpu_.finals_from_gpus += rise(before.finals_from_gpus, now.finals_from_gpus);
  gpu_.rounds_exchanged += rise(before.rounds_exchanged, now.rounds_exchanged);
}

void TrackerMachine::take_disk_trouble(std::size_t rank, const std::string& trouble, Effects& effects) {
  Member& m = members_[rank];
  const bool had = !m.disk_trouble.empty();
  m.disk_trouble = trouble;
  if (had == !trouble.empty()) return;
  const std::vector<std::pair<std::string, std::string>> fields = {{"rank", std::to_string(rank)}};
  if (had)
    return log(Severity::kInfo, "disk_recovered", "the disk of " + name(rank) + " takes results again", effects,
               fields);
  log(Severity::kWarning, "disk_trouble", "the disk of " + name(rank) + " takes no results: " + trouble, effects,
      fields);
}

void TrackerMachine::on_heartbeat(Incarnation who, const wire::Heartbeat& h, TimeMs now, Effects& effects) {
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  Member& m = members_[*rank];
  if (h.generation() > generation_.value) return catch_up(*rank, h.generation(), now, effects);
  if (m.state != MemberState::kActive) return count(Transition::out_of_turn);
  if (h.generation() < plan_.generation()) {
    return repeat_plan(*rank, now, effects);
  }
  plan_arrived(*rank, now, effects);
  if (h.beat() < m.beat) return count(Transition::out_of_turn);
  count(Transition::heartbeat);
  m.beat = h.beat();
  if (h.rounds_finished() > m.rounds_finished) {
    last_round_ = now;
    futile_.clear();
    if (recovery_to_tell_) log_recovered(*std::exchange(recovery_to_tell_, std::nullopt), effects);
  }
  m.rounds_finished = h.rounds_finished();
  m.bytes_moved = h.bytes_moved();
  count_on(m, h.gpu());
  take_log_fill(*rank, h, effects);
  take_disk_trouble(*rank, h.disk_trouble(), effects);
  if (m.told.value != 0) {
    const std::int64_t gap_ms = now - m.told;
    m.longest_gap_ms = std::max(gap_ms, m.longest_gap_ms - m.longest_gap_ms / kGapsRemembered);
  }
  m.activity.reset();
  if (h.has_activity()) m.activity = h.activity();
  m.blocked.reset();
  if (h.has_blocked()) m.blocked = copy_of(h.blocked());
  const bool asked = leaves_ && leaves_->life == who;
  if (h.has_draining() && !m.draining) {
    count(Transition::drain_told);
    if (asked) leaves_->heard = true;
    log(Severity::kInfo, "rank_drains",
        name(*rank) + " has been told to leave (" + h.draining().reason() + ") and does so within " +
            std::to_string(h.draining().left_ms()) + " ms; " +
            (asked ? followed_by(leaves_->spare) : "its place is kept"),
        effects, {{"rank", std::to_string(*rank)}});
  }
  m.draining.reset();
  if (h.has_draining()) m.draining = h.draining();
  m.told = now;
  m.rounds.clear();
  for (const wire::CurrentRound& r : h.rounds()) m.rounds.push_back(copy_of(r));
  wire::Envelope e = envelope_to(who);
  e.mutable_heartbeat_reply()->set_beat(h.beat());
  if (m.rounds.empty()) e.mutable_heartbeat_reply()->set_awaited_ms(static_cast<std::uint64_t>(m.awaited_ms));
  if (asked && !leaves_->heard) {
    count(Transition::replace_told);
    wire::LeaveRequest& leave = *e.mutable_heartbeat_reply()->mutable_leave();
    leave.set_generation(plan_.generation());
    leave.set_within_ms(settings_.round_timeout_ms());
    leave.set_reason(wire_text(leaves_->reason));
  }
  effects.emplace_back(Send{who, std::move(e)});
}

void TrackerMachine::on_link_broken(Incarnation who, const wire::LinkBroken& b, TimeMs now, Effects& effects) {
  if (state_ == State::kFinished && b.generation() == generation_.value) {
    // Its peer has heard before it that all is over, and has closed the link.
    count(Transition::finished_repeated);
    return send_finished(who, effects);
  }
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  const std::size_t peer = b.peer();
  const MemberState state = members_[*rank].state;
  const bool survives = state == MemberState::kSurvivor && b.gone();
  const bool may_report = survives || state == MemberState::kActive || (state == MemberState::kFinalizing && logged());
  if (!may_report || b.generation() != plan_.generation() || peer >= members_.size() || peer == *rank ||
      plan_.members(static_cast<int>(peer)).incarnation() != b.peer_incarnation()) {
    return count(Transition::out_of_turn);
  }
  if (survives) return suspect(*rank, peer, b, now, effects);
  if (members_[peer].state == MemberState::kFinalizing && !logged()) {
    return count(Transition::link_broken_to_finalizing);
  }
  const bool known = std::any_of(evidence_.begin(), evidence_.end(),
                                 [&](const Evidence& e) { return e.reporter == *rank && e.peer == peer; });
  if (known || evidence_.size() == kMaxEvidence) return count(Transition::link_broken_repeated);
  count(Transition::link_broken);
  log(Severity::kWarning, "link_broken", name(*rank) + " lost its link to " + name(peer) + ": " + b.evidence(), effects,
      {{"rank", std::to_string(*rank)}, {"peer", std::to_string(peer)}});
  if (evidence_.empty()) {
    // A lost rank's own next life is waited for: nobody stands by.
    const bool nobody_stands_by = spares_.empty() && !shrinks();
    if (!noticed_) noticed_ = now;
    evidence_due_ = now + std::min(nobody_stands_by ? kEvidenceMs : kEvidenceWithSparesMs, interval_ms());
    arm(evidence_due_);
  }
  evidence_.push_back({*rank, peer, b.evidence()});
}

// All have closed their links: that somebody's process has gone is all that tells who will not answer, and was not
// known when the generation was ended.
void TrackerMachine::suspect(std::size_t rank, std::size_t peer, const wire::LinkBroken& b, TimeMs now,
                             Effects& effects) {
  Member& m = members_[peer];
  if (m.state != MemberState::kStopping || m.suspected) return count(Transition::link_broken_repeated);
  count(Transition::suspect_told);
  m.suspected = true;
  log(Severity::kWarning, "link_broken", name(rank) + " has looked for " + name(peer) + ": " + b.evidence(), effects,
      {{"rank", std::to_string(rank)}, {"peer", std::to_string(peer)}});
  fence_suspects(now, effects);
}

void TrackerMachine::on_round_failed(Incarnation who, const wire::RoundFailed& f, TimeMs now, Effects& effects) {
  if (state_ == State::kFinished && f.generation() == generation_.value) {
    count(Transition::finished_repeated);
    return send_finished(who, effects);
  }
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  const MemberState state = members_[*rank].state;
  const bool may_report = state == MemberState::kActive || (state == MemberState::kFinalizing && logged());
  if (!may_report || f.generation() != plan_.generation()) {
    return count(Transition::out_of_turn);
  }
  count(Transition::round_failed);
  const auto code = static_cast<Code>(f.code());
  // A round that lost a link: who is to blame is being found out.
  if (code == Code::kPeerLost && !evidence_.empty()) return;
  wire::About about = f.about();
  about.set_rank(static_cast<std::uint32_t>(*rank));
  interrupt(code, name(*rank) + " reports: " + f.reason(), {}, now, effects, about);
}

void TrackerMachine::on_stopped(Incarnation who, const wire::Stopped& s, TimeMs now, Effects& effects) {
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  const MemberState state = members_[*rank].state;
  if ((state != MemberState::kStopping && state != MemberState::kSurvivor) || s.generation() != generation_.value) {
    return count(Transition::out_of_turn);
  }
  count(Transition::stopped);
  if (state == MemberState::kSurvivor) {
    remove_waiting(plan_.members(static_cast<int>(*rank)).worker_id());
  } else {
    lose(*rank);
  }
  answered_ = now;
  log(Severity::kInfo, "worker_stopped", name(*rank) + " has stopped", effects, {{"rank", std::to_string(*rank)}});
  effects.emplace_back(Drop{who});
  maybe_gather(now, effects);
}

void TrackerMachine::on_leave(Incarnation who, const wire::Leave& l, TimeMs now, Effects& effects) {
  if (l.finalize()) return on_finalize(who, l, now, effects);
  if (leavers_.serves(who)) return on_server(who, l, now, effects);
  // Its job may be made up from what members tell, and name it.
  if (l.serves_ms() != 0 && knows_nothing() && !waiting_.contains(who)) {
    return count(Transition::server_unknown);
  }
  const auto rank = rank_of(who);
  const bool stands = rank && members_[*rank].state != MemberState::kGone;
  const bool serves = l.serves_ms() != 0 && stands && may_serve(*rank);
  if (serves) {
    take_server(*rank, l, now, effects);
  } else if (l.serves_ms() != 0 && stands) {
    take_farewell(*rank, l);
  }
  if (const Waiting* const waiting = waiting_.find(who)) {
    count(Transition::waiting_left);
    if (l.preempted()) ++preemptions_;
    const std::string worker = waiting->member.worker_id();
    if (!serves) {
      log(Severity::kWarning, "worker_left",
          "worker " + worker + (l.preempted() ? " was preempted" : " left") + " before the job was complete" +
              (l.reason().empty() ? "" : ": " + l.reason()),
          effects, {{"worker", worker}});
    }
    remove_waiting(worker);
    forget_unused_settings();
    if (serves) {
      arm(now);  // its place is free
      return tell_heard(who, effects);
    }
    retire(who);
    return let_go(who, l, effects);
  }
  if (const std::string* const spare = spares_.worker_of(who)) {
    count(Transition::spare_left);
    const std::string worker = *spare;
    log(Severity::kInfo, "spare_left",
        "spare " + worker + " left job " + options_.job + (l.reason().empty() ? "" : ": " + l.reason()), effects,
        {{"worker", worker}});
    (void)spares_.take(worker);
    retire(who);
    effects.emplace_back(Drop{who});
    return forget_unused_settings();
  }
  if (!stands) return refuse_stale(who, effects);
  const MemberState state = members_[*rank].state;
  if (state == MemberState::kFinalizing && !logged()) return count(Transition::out_of_turn);
  const bool stopping = state == MemberState::kStopping;
  count(stopping                            ? Transition::stopped_by_leave
        : state == MemberState::kFinalizing ? Transition::finalizing_left
                                            : Transition::member_left);
  lose(*rank);
  if (l.preempted()) {
    count(Transition::member_preempted);
    ++preemptions_;
  }
  const bool replaced = leaves_ && leaves_->life == who;
  if (replaced) count(Transition::replaced_left);
  if (stopping) {
    maybe_gather(now, effects);
  } else {
    interrupt(Code::kPeerLost,
              name(*rank) +
                  (l.preempted() ? " was preempted"
                   : replaced    ? " has left as it was asked to"
                                 : " left without finalizing") +
                  (l.reason().empty() ? "" : " (" + l.reason() + ")"),
              {static_cast<std::uint32_t>(*rank)}, now, effects);
  }
  if (serves) return tell_heard(who, effects);
  let_go(who, l, effects);
}

// It goes by itself, unless it serves.
void TrackerMachine::let_go(Incarnation who, const wire::Leave& l, Effects& effects) {
  if (l.serves_ms() == 0) {
    effects.emplace_back(Drop{who});
    return;
  }
  count(Transition::server_refused);
  send_refused(who, Code::kClosed, "others answer for its host, or as many serve as may", effects);
}

void TrackerMachine::on_finalize(Incarnation who, const wire::Leave& l, TimeMs now, Effects& effects) {
  if (state_ == State::kFinished) {
    if (l.generation() != generation_.value) return refuse_stale(who, effects);
    count(Transition::finished_repeated);
    return send_finished(who, effects);
  }
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  Member& m = members_[*rank];
  if (state_ != State::kRunning || l.generation() != plan_.generation()) return count(Transition::out_of_turn);
  plan_arrived(*rank, now, effects);
  const bool again = m.state == MemberState::kFinalizing;
  count(again ? Transition::finalize_repeated : Transition::finalize_entered);
  if (!again) {
    m.state = MemberState::kFinalizing;
    m.finalizing_since = now;
    m.rounds.clear();
    m.activity.reset();
    m.blocked.reset();
    log(Severity::kInfo, "finalizing", name(*rank) + " has called finalize", effects,
        {{"rank", std::to_string(*rank)}});
    last_versions_.note(*rank, Version(l.version()));
    if (checkpoints_differ(now, effects)) return;
  }
  if (std::all_of(members_.begin(), members_.end(), [](const Member& member) {
        return member.state == MemberState::kFinalizing || member.state == MemberState::kGone;
      })) {
    return finish(now, effects);
  }
  // So that it knows that somebody listens.
  wire::Envelope e = envelope_to(who);
  e.mutable_heartbeat_reply()->set_beat(0);
  effects.emplace_back(Send{who, std::move(e)});
}

void TrackerMachine::retire(Incarnation who) {
  retired_.add(who, limits::retired_lives(settings_.world_size()));
}

void TrackerMachine::refuse(Incarnation who, Code code, const std::string& reason, Effects& effects, bool fenced) {
  ++refusals_;
  send_refused(who, code, reason, effects, fenced);
}

void TrackerMachine::send_refused(Incarnation who, Code code, const std::string& reason, Effects& effects,
                                  bool fenced) const {
  wire::Envelope e = envelope_to(who);
  e.mutable_refused()->set_code(static_cast<std::uint32_t>(code));
  e.mutable_refused()->set_reason(wire_text(reason));
  e.mutable_refused()->set_fenced(fenced);
  effects.emplace_back(Send{who, std::move(e)});
  effects.emplace_back(Drop{who});
}

void TrackerMachine::refuse_stale(Incarnation who, Effects& effects) {
  count(Transition::stale_life);
  // Where the word of it was lost, it is said again.
  if (lost()) return refuse(who, Code(interrupt_.code()), interrupt_.reason(), effects);
  refuse(who, Code::kClosed,
         state_ == State::kFinished
             ? "job " + options_.job + " is finished"
             : "this life is not a member of job " + options_.job +
                   ": its generation was ended, or it was silent for longer than the round timeout; join again",
         effects, true);
}

std::string TrackerMachine::worker_on_host(const std::string& worker_id, const std::string& host_id) {
  return "worker " + worker_id + " on host " + host_id;
}

std::string TrackerMachine::comma_list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

std::optional<std::size_t> TrackerMachine::rank_of(Incarnation who) const {
  const auto found = rank_by_incarnation_.find(who);
  return found == rank_by_incarnation_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::size_t> TrackerMachine::place_of(const std::string& worker_id) const {
  const auto found = place_by_worker_.find(worker_id);
  return found == place_by_worker_.end() ? std::nullopt : std::optional(found->second);
}

std::size_t TrackerMachine::candidates() const {
  const std::size_t returned = members_.size() - free_places_.size();
  return has_places() ? waiting_.size() - returned : 0;
}

std::vector<std::string> TrackerMachine::missing_workers() const {
  std::vector<std::string> names;
  for (const std::size_t rank : free_places_) {
    if (names.size() == kMaxMissingNames) break;
    if (!vacant(rank)) names.push_back(plan_.members(static_cast<int>(rank)).worker_id());
  }
  return names;
}

std::string TrackerMachine::name(std::size_t rank) const {
  const wire::Member& m = plan_.members(static_cast<int>(rank));
  return "rank " + std::to_string(rank) + " (" +
         (is_vacant(m) ? "which nobody has had yet" : worker_on_host(m.worker_id(), m.host_id())) + ")";
}

}  // namespace warren
