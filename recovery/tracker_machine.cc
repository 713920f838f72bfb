// What messages do to a job. How epochs begin and end is in tracker_epochs.cc.
#include "recovery/tracker_machine.h"

#include <algorithm>
#include <iterator>

#include "recovery/codec.h"
#include "recovery/limits.h"
#include "recovery/tracker_transitions.h"

namespace warren {

using tracker_effect::Drop;
using tracker_effect::Send;

namespace {
// For what joins say, but for the short form of each, which always has room.
constexpr std::size_t kJoinRoomBytes = limits::kMaxJoinBytesPerJob - limits::kMaxWorldSize * limits::kMaxShortHeldBytes;
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

std::string list(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// Field by field, so that nothing but what was validated is kept.
wire::JobSettings copy_of(const wire::JobSettings& from) {
  wire::JobSettings s;
  s.set_world_size(from.world_size());
  s.set_round_timeout_ms(from.round_timeout_ms());
  s.set_algorithm(from.algorithm());
  s.set_chunk_bytes(from.chunk_bytes());
  s.set_streams(from.streams());
  s.set_checksums(from.checksums());
  s.set_check_call_sites(from.check_call_sites());
  s.set_replicas(from.replicas());
  s.set_costs(from.costs());
  s.set_replace_after_ms(from.replace_after_ms());
  s.set_min_workers(from.min_workers());
  s.set_grace_ms(from.grace_ms());
  s.set_rewire(from.rewire());
  s.set_elastic_start(from.elastic_start());
  s.set_reorders(from.reorders());
  s.set_nccl(from.nccl());
  return s;
}

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
  epoch_ = persisted_epoch_ = Epoch(record.epoch());
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
  told_ = told_changes_ = nullptr;
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
  begged_since_ = now;
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
    servers_[Incarnation(m.incarnation())] = {m, {}, {}, newest_begun(), now, now + timeout_ms(), false};
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
  if (const auto waiting = waiting_by_incarnation_.find(who); waiting != waiting_by_incarnation_.end()) {
    waiting_.at(waiting->second).heard = now;
  }
  if (const auto spare = spares_by_incarnation_.find(who); spare != spares_by_incarnation_.end()) {
    spares_.at(spare->second).heard = now;
  }
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
  if (servers_.contains(who) && !(e.has_leave() && !e.leave().finalize())) {
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
    default: return count(Transition::out_of_turn);
  }
}

bool TrackerMachine::promises_us(const wire::Envelope& e) const {
  return Term(e.term()) == term_ && e.receiver() == options_.self.value;
}

bool TrackerMachine::may_act(Incarnation who, const wire::Envelope& e, TimeMs now, Effects& effects) {
  const Term heard(e.term());
  const bool ours = promises_us(e);
  if (heard > term_ || (heard == term_ && !ours)) {
    // No job has come so far: who says so would use the numbers up. And a job that is finished here goes on elsewhere.
    const bool ended_here = retired_.contains(who);
    if (heard.value >= kMaxEpoch / 2 || (state_ == State::kFinished && !ended_here)) {
      count(Transition::out_of_turn);
      return false;
    }
    count(Transition::term_raised);
    if (state_ == State::kFinished) {
      // A plan had fenced it before the job was finished, and it obeys another tracker, which may be gone.
      term_ = heard.next();
      refuse_stale(who, effects);
      return false;
    }
    term_ = heard.next();
    promises_.clear();
    resizers_.clear();
    promised_at_ = now;
    if (rebuilding_) {
      for (auto& [life, answer] : rebuilding_->strangers) answer.Clear();  // of an older term: they are asked again
    }
    if (resized_) {
      // They ask again, and promise.
      clear_waiting();
      undo_resize();
    }
    acting_ = members_.empty();
    begged_since_ = now;
    arm(now + interval_ms());
  } else if (ours) {
    take_promise(who, e, now);
  }
  if (acting_) return true;
  if (ours && has_majority(now)) {
    count(Transition::promised);
    acting_ = true;
    // Before any of it is told.
    if (std::exchange(journal_is_older_, false)) persist(effects);
    // Nothing was looked at meanwhile. (Who wants another world size has waited for the members.)
    if (now < promised_at_ + timeout_ms()) {
      for (Member& m : members_) m.heard = std::max(m.heard, now);
    }
    for (auto& [worker, w] : waiting_) w.heard = std::max(w.heard, now);
    for (auto& [life, server] : servers_) {
      server.heard = std::max(server.heard, now);
      server.until = std::max(server.until, now + timeout_ms());
    }
    since_ = std::max(since_, now);
    arm(now + interval_ms());
    // What they have said meanwhile went by: they need not wait until it is time to say it again.
    for (const auto& [worker, life] : promises_) {
      if (life != who) ask_again(life, effects);
    }
    return true;
  }
  if (!rank_of(who) && !e.has_join()) {
    if (!asked_in_vain_.contains(who)) learn_newer_plan(who, e, now, effects);
    return false;
  }
  // That is no decision about the job. (A member's new life would have the settings of its last one.)
  if (e.has_join() && now >= begged_since_ + timeout_ms() &&
      (refuse_settings(who, e.join(), effects) || refuse_lost(who, e.join(), now, effects))) {
    return false;
  }
  if (ours) {
    // It waits, and hears that it does not wait for nothing.
    tell_heard(who, effects);
  } else {
    count(Transition::promise_asked);
    ask_again(who, effects);
  }
  return false;
}

void TrackerMachine::ask_again(Incarnation who, Effects& effects) const {
  wire::Envelope ask = envelope_to(who);
  ask.mutable_heartbeat_reply();
  effects.emplace_back(Send{who, std::move(ask)});
}

// It need not say at once again what it has said.
void TrackerMachine::tell_heard(Incarnation who, Effects& effects) const {
  wire::Envelope heard = envelope_to(who);
  heard.mutable_heartbeat_reply()->set_beat(1);
  effects.emplace_back(Send{who, std::move(heard)});
}

void TrackerMachine::take_promise(Incarnation who, const wire::Envelope& e, TimeMs now) {
  if (acting_ || promises_.size() >= 2 * members_.size()) return;
  // Also of a life that is fenced: it hears so from a tracker that acts, and its next one takes its place.
  if (const auto rank = rank_of(who)) {
    promises_.insert_or_assign(plan_.members(static_cast<int>(*rank)).worker_id(), who);
  } else if (e.has_join() && differing_setting(e.join().settings()).empty()) {
    // A spare is always there, whoever else is; and it may forget whom it has promised.
    if ((e.join().spare() || e.join().called() != 0) && !place_of(e.join().worker_id())) return;
    promises_.insert_or_assign(e.join().worker_id(), who);
  } else if (e.has_join() && wants_resize(e.join())) {
    if (e.join().settings().world_size() != resizers_size_) resizers_.clear();
    resizers_size_ = e.join().settings().world_size();
    if (resizers_.size() < resizers_size_ || resizers_.contains(e.join().worker_id())) {
      resizers_.insert_or_assign(e.join().worker_id(), who);
    }
    count(Transition::promise_taken);
    return;
  } else {
    return;
  }
  promised_at_ = now;
  count(Transition::promise_taken);
}

// Who has finalized where nothing is logged, and is silent, has nothing left to promise. Who joins for another's place
// counts once that other one has had the time to come.
bool TrackerMachine::has_majority(TimeMs now) const {
  // The members of a large job come one by one, and each asks: not before it can be.
  if (logged() && !members_.empty() && 2 * promises_.size() <= present() && resizers_.empty()) return false;
  const bool late = now >= begged_since_ + timeout_ms();
  const auto silent = static_cast<std::size_t>(
      std::count_if(members_.begin(), members_.end(), [](const Member& m) { return m.silent; }));
  const std::size_t asked = present() - silent;
  std::size_t promised = 0, others = 0, free = absent_;
  for (const auto& [worker, life] : promises_) {
    const auto place = place_of(worker);
    if (!place) {
      ++others;
    } else if (absent(*place)) {
      --free;
    } else if (!members_[*place].silent) {
      ++promised;
    }
  }
  // Who may have come for a place that is free stands for no member.
  if (late) promised += others - std::min(others, free);
  // A job that gets smaller may have no half left. Whoever starts so many workers anew with another world size vouches
  // for the end of the others, and none of these has come in all that time.
  const bool resized =
      late && now >= promised_at_ + timeout_ms() && resizers_size_ != 0 && resizers_.size() == resizers_size_;
  return asked == 0 || 2 * promised > asked || resized;
}

void TrackerMachine::log_promises(Effects& effects) {
  count(Transition::promises_logged);
  std::vector<std::string> missing;
  for (std::size_t rank = 0; rank < members_.size() && missing.size() < kMaxMissingNames; ++rank) {
    const std::string& worker = plan_.members(static_cast<int>(rank)).worker_id();
    if (!members_[rank].silent && !absent(rank) && !promises_.contains(worker)) missing.push_back(worker);
  }
  log(Severity::kWarning, "waiting_for_promises",
      "this tracker decides nothing for job " + options_.job + " before more than half of its " +
          std::to_string(present()) + " workers have come to it, and " + std::to_string(promises_.size()) +
          " have (if another tracker serves them, stop this one); not here: " + list(missing),
      effects);
}

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
  if (waiting_by_incarnation_.contains(who)) {
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
  const auto differ = [&](std::string_view what, const std::string& theirs, const std::string& ours) {
    return std::string(what) + " " + theirs + " is not the job's " + ours + ", which " + settings_from_ + " set";
  };
  const auto number = [](auto v) { return std::to_string(v); };
  const auto yes = [](bool v) { return std::string(v ? "on" : "off"); };
  if (s.world_size() != settings_.world_size()) {
    return differ("world size", number(s.world_size()), number(settings_.world_size()));
  }
  if (s.round_timeout_ms() != settings_.round_timeout_ms()) {
    return differ("round timeout in ms", number(s.round_timeout_ms()), number(settings_.round_timeout_ms()));
  }
  if (s.algorithm() != settings_.algorithm()) return differ("algorithm", s.algorithm(), settings_.algorithm());
  if (s.costs() != settings_.costs()) {
    // It begins with its name, of eight digits.
    const auto name = [](const std::string& costs) {
      constexpr std::size_t kNameBytes = 8;
      return costs.empty() ? "none" : costs.substr(0, std::min(kNameBytes, costs.find(' ')));
    };
    return differ("costs", name(s.costs()), name(settings_.costs()));
  }
  if (s.chunk_bytes() != settings_.chunk_bytes()) {
    return differ("chunk bytes", number(s.chunk_bytes()), number(settings_.chunk_bytes()));
  }
  if (s.streams() != settings_.streams()) return differ("streams", number(s.streams()), number(settings_.streams()));
  if (s.checksums() != settings_.checksums()) {
    return differ("checksums", yes(s.checksums()), yes(settings_.checksums()));
  }
  if (s.check_call_sites() != settings_.check_call_sites()) {
    return differ("check of call sites", yes(s.check_call_sites()), yes(settings_.check_call_sites()));
  }
  if (s.replicas() != settings_.replicas()) {
    return differ("replicas", number(s.replicas()), number(settings_.replicas()));
  }
  if (s.replace_after_ms() != settings_.replace_after_ms()) {
    return differ("time until a rank is replaced in ms", number(s.replace_after_ms()),
                  number(settings_.replace_after_ms()));
  }
  if (s.min_workers() != settings_.min_workers()) {
    return differ("least number of workers", number(s.min_workers()), number(settings_.min_workers()));
  }
  if (s.grace_ms() != settings_.grace_ms()) {
    return differ("grace in ms", number(s.grace_ms()), number(settings_.grace_ms()));
  }
  if (s.elastic_start() != settings_.elastic_start()) {
    return differ("beginning with fewer workers", yes(s.elastic_start()), yes(settings_.elastic_start()));
  }
  if (s.nccl() != settings_.nccl()) {
    const auto version = [&](std::uint32_t v) {
      return v == 0 ? "off" : number(v / 10000) + "." + number(v / 100 % 100) + "." + number(v % 100);
    };
    return differ("NCCL", version(s.nccl()), version(settings_.nccl()));
  }
  if (s.rewire() != settings_.rewire()) return differ("rewiring", yes(s.rewire()), yes(settings_.rewire()));
  if (s.reorders() != settings_.reorders()) {
    return differ("determinism", yes(!s.reorders()), yes(!settings_.reorders()));
  }
  return {};
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
    // It asks again. Whoever is silent is given up after a round timeout.
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
  keep_retired(limits::retired_lives(settings_.world_size()));
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
  settings_from_ = "the plan of epoch " + std::to_string(plan_.epoch());
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
  const auto waits = waiting_.find(worker);
  if (waits != waiting_.end() && waits->second.member.incarnation() != who.value) return true;
  const auto spare = spares_.find(worker);
  if (spare != spares_.end() && spare->second.life != who) return true;
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
  const Incarnation old_life(waiting_.at(worker).member.incarnation());
  remove_waiting(worker);
  retire(old_life);
  refuse_replaced(old_life, "worker " + worker, effects);
}

void TrackerMachine::join_gathering(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  const std::string& worker = join.worker_id();
  // A member's join to the tracker before this one, which is late.
  if (rebuilding_ && rebuilding_->strangers.contains(who)) return count(Transition::out_of_turn);
  // Who has a place is not known before the members have told; it asks again.
  if (rebuilding_ && waiting_.size() >= settings_.world_size() && !waiting_.contains(worker)) {
    return count(Transition::out_of_turn);
  }
  const auto place = place_of(worker);
  if (waiting_.contains(worker)) replace_waiting(worker, effects);
  std::optional<std::size_t> takes;
  if (const auto spare = spares_.find(worker); spare != spares_.end()) {
    if (spare->second.life != who) {
      replace_spare(worker, effects);
    } else {
      const Spare answers = take_spare(worker);
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
                                            : "others wait for the places of " + list(missing_workers())) +
                      "; start fewer workers, or use another job name",
                  effects);
  }
  join_timeout_ms_ = std::max(join_timeout_ms_, static_cast<std::int64_t>(join.join_timeout_ms()));
  Waiting w;
  w.member.set_incarnation(who.value);
  w.member.set_worker_id(worker);
  w.member.set_host_id(join.host_id());
  w.member.set_domain_id(join.domain_id());
  w.member.set_fetch_port(join.fetch_port());
  w.member.set_segment_socket(join.segment_socket());
  for (const wire::Endpoint& from : join.endpoints()) {
    wire::Endpoint& to = *w.member.add_endpoints();
    to.set_address(from.address());
    to.set_port(from.port());
  }
  if (join.has_traits()) *w.member.mutable_traits() = join.traits();
  take_held(w, join, effects);
  take_logged(w, join);
  look_for_what_is_out_of_reach(w);
  w.attempt = join.attempt();
  w.arrival = ++arrivals_;
  w.heard = arrived_ = now;
  w.candidate = candidate;
  w.called = Epoch(join.called());
  w.takes = takes;
  w.member.set_waits(join.waits());
  w.resize = join.resize();
  if (waiting_.empty()) next_log_ = std::max(next_log_, now + kWaitLogIntervalMs);
  waiting_.insert_or_assign(worker, std::move(w));
  waiting_by_incarnation_[who] = worker;
  if (place) free_places_.erase(*place);
  if (takes) takers_[*takes] = worker;
  ++joins_;
  if (place) {
    // It is there itself.
    end_call(*place);
    if (const auto taker = takers_.find(*place); taker != takers_.end()) displace(std::string(taker->second), effects);
  }
  if (join.called() == 0 && has_places() && logged()) give_places_back_to(join.host_id(), effects);
  refuse_surplus_candidates(effects);
  arm(now + interval_ms());
  count(candidate ? Transition::join_candidate : place ? Transition::join_returned : Transition::join_taken);
  log(Severity::kInfo, "worker_joined",
      worker_on_host(worker, join.host_id()) + " joined job " + options_.job + ", which has " +
          std::to_string(waiting_.size()) + " of " + std::to_string(settings_.world_size()) + " workers" +
          (takes       ? "; it was a spare, and takes the place of " + name(*takes)
           : candidate ? "; it waits for the place of a worker that does not come back"
                       : "") +
          (join.attempt() == 0 ? "" : " (started again " + std::to_string(join.attempt()) + " times)"),
      effects, {{"worker", worker}});
  send_welcome(who, effects);
  if (place && members_[*place].state == MemberState::kStopping) {
    // A new life of a worker says that the old one has stopped.
    count(Transition::join_while_stopping);
    lose(*place);
  }
  if (state_ == State::kInterrupted) maybe_gather(now, effects);
  if (state_ == State::kGathering) maybe_plan(now, effects);
}

// What is too long to keep shrinks to which job the disk is of, and what was committed there: its rounds count as not
// held, the disk as not empty.
void TrackerMachine::take_held(Waiting& w, const wire::Join& join, Effects& effects) {
  if (!join.has_held() || !logged() || (planned() && join.held().run() != plan_.run())) return;
  w.held = join.held();
  const bool learns = may_be_older_ && may_learn() && is_newer(w.held->known());
  if (planned() && !learns) w.held->mutable_known()->clear_plan();
  if (join_bytes_ + w.held->ByteSizeLong() > kJoinRoomBytes) {
    count(Transition::held_too_large);
    log(Severity::kWarning, "disk_report_dropped",
        "what the disks of job " + options_.job + " hold takes more than " + std::to_string(kJoinRoomBytes) +
            " bytes to say; the rounds of " + worker_on_host(join.worker_id(), join.host_id()) + " count as lost",
        effects, {{"worker", join.worker_id()}});
    w.held->clear_rounds();
    w.held->mutable_known()->clear_plan();
    w.held->mutable_known()->clear_setups();
  }
  join_bytes_ += w.held->ByteSizeLong();
}

// Without it rounds that only dead lives have seen are computed again: as if their memory had been lost too.
void TrackerMachine::take_logged(Waiting& w, const wire::Join& join) {
  if (!join.has_logged() || !logged()) return;
  const std::size_t bytes = join.logged().ByteSizeLong();
  if (join_bytes_ + bytes > kJoinRoomBytes) return;
  join_bytes_ += bytes;
  w.logged = join.logged();
}

void TrackerMachine::refuse_surplus_candidates(Effects& effects) {
  while (candidates() > free_places_.size()) {
    const Waiting* last = nullptr;
    for (const auto& [id, w] : waiting_) {
      if (w.candidate && (last == nullptr || w.arrival > last->arrival)) last = &w;
    }
    displace(std::string(last->member.worker_id()), effects);
  }
}

void TrackerMachine::erase_waiting(const std::string& worker_id) {
  const auto found = waiting_.find(worker_id);
  waiting_by_incarnation_.erase(Incarnation(found->second.member.incarnation()));
  if (found->second.report) position_bytes_ -= found->second.report->ByteSizeLong();
  if (found->second.held) join_bytes_ -= found->second.held->ByteSizeLong();
  join_bytes_ -= found->second.logged.ByteSizeLong();
  if (const auto place = place_of(worker_id)) free_places_.insert(*place);
  survivors_ -= found->second.report ? 1 : 0;
  if (found->second.takes) takers_.erase(*found->second.takes);
  waiting_.erase(found);
}

void TrackerMachine::clear_waiting() {
  waiting_.clear();
  waiting_by_incarnation_.clear();
  farewells_.clear();
  takers_.clear();
  survivors_ = position_bytes_ = join_bytes_ = 0;
}

void TrackerMachine::remove_waiting(const std::string& worker_id) {
  if (waiting_.at(worker_id).report) {
    count(Transition::survivor_lost);
    lose(*place_of(worker_id));
  }
  erase_waiting(worker_id);
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
  if (h.epoch() > epoch_.value) return catch_up(*rank, h.epoch(), now, effects);
  if (m.state != MemberState::kActive) return count(Transition::out_of_turn);
  if (h.epoch() < plan_.epoch()) {
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
    leave.set_epoch(plan_.epoch());
    leave.set_within_ms(settings_.round_timeout_ms());
    leave.set_reason(wire_text(leaves_->reason));
  }
  effects.emplace_back(Send{who, std::move(e)});
}

void TrackerMachine::on_link_broken(Incarnation who, const wire::LinkBroken& b, TimeMs now, Effects& effects) {
  if (state_ == State::kFinished && b.epoch() == epoch_.value) {
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
  if (!may_report || b.epoch() != plan_.epoch() || peer >= members_.size() || peer == *rank ||
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
    const bool waits_for_it = spares_.empty() && !shrinks();
    if (!noticed_) noticed_ = now;
    evidence_due_ = now + std::min(waits_for_it ? kEvidenceMs : kEvidenceWithSparesMs, interval_ms());
    arm(evidence_due_);
  }
  evidence_.push_back({*rank, peer, b.evidence()});
}

// All have closed their links: that somebody's process has gone is all that tells who will not answer, and was not
// known when the epoch was ended.
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
  if (state_ == State::kFinished && f.epoch() == epoch_.value) {
    count(Transition::finished_repeated);
    return send_finished(who, effects);
  }
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  const MemberState state = members_[*rank].state;
  const bool may_report = state == MemberState::kActive || (state == MemberState::kFinalizing && logged());
  if (!may_report || f.epoch() != plan_.epoch()) {
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
  if ((state != MemberState::kStopping && state != MemberState::kSurvivor) || s.epoch() != epoch_.value) {
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
  if (servers_.contains(who)) return on_server(who, l, now, effects);
  // Its job may be made up from what members tell, and name it.
  if (l.serves_ms() != 0 && knows_nothing() && !waiting_by_incarnation_.contains(who)) {
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
  if (const auto waiting = waiting_by_incarnation_.find(who); waiting != waiting_by_incarnation_.end()) {
    count(Transition::waiting_left);
    if (l.preempted()) ++preemptions_;
    const std::string worker = waiting->second;
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
  if (const auto spare = spares_by_incarnation_.find(who); spare != spares_by_incarnation_.end()) {
    count(Transition::spare_left);
    const std::string worker = spare->second;
    log(Severity::kInfo, "spare_left",
        "spare " + worker + " left job " + options_.job + (l.reason().empty() ? "" : ": " + l.reason()), effects,
        {{"worker", worker}});
    take_spare(worker);
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
    if (l.epoch() != epoch_.value) return refuse_stale(who, effects);
    count(Transition::finished_repeated);
    return send_finished(who, effects);
  }
  const auto rank = rank_of(who);
  if (!rank || members_[*rank].state == MemberState::kGone) return refuse_stale(who, effects);
  Member& m = members_[*rank];
  if (state_ != State::kRunning || l.epoch() != plan_.epoch()) return count(Transition::out_of_turn);
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
  if (!retired_.insert(who).second) return;
  const std::size_t limit = limits::retired_lives(settings_.world_size());
  if (retired_order_.size() < limit) {
    retired_order_.push_back(who);
    return;
  }
  retired_next_ %= retired_order_.size();
  retired_.erase(retired_order_[retired_next_]);
  retired_order_[retired_next_++] = who;
}

// The oldest go first.
void TrackerMachine::keep_retired(std::size_t most) {
  if (retired_order_.size() <= most) return;
  const auto oldest = static_cast<std::ptrdiff_t>(retired_next_ % retired_order_.size());
  std::rotate(retired_order_.begin(), retired_order_.begin() + oldest, retired_order_.end());
  const auto end = retired_order_.end() - static_cast<std::ptrdiff_t>(most);
  for (auto life = retired_order_.begin(); life != end; ++life) retired_.erase(*life);
  retired_order_.erase(retired_order_.begin(), end);
  retired_next_ = 0;
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
                   ": its epoch was ended, or it was silent for longer than the round timeout; join again",
         effects, true);
}

std::string TrackerMachine::worker_on_host(const std::string& worker_id, const std::string& host_id) {
  return "worker " + worker_id + " on host " + host_id;
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
