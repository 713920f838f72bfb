// A journal that was lost: the job is made up from what its members know; or one that is an older copy: what it lacks
// is learned from them, or from their disks.
//
// A plan is known to all its members, verbatim, and a number names one plan for ever; so the newest plan that anybody
// has installed, and the newest generation that anybody has heard of, are what the journal held, or what it held and
// nobody heard of. What only the lost journal knew was never announced. A version that it had committed without a word
// to anyone is voted for again.
#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/decide/frontier.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"

namespace warren {

using tracker_effect::Send;

namespace {
// Lives of one job that are asked: its members, and zombies.
constexpr std::size_t kMaxStrangers = 4 * std::size_t{limits::kMaxWorldSize};
// No job has come so far: who says so would use the numbers up.
constexpr std::uint64_t kNoGenerationYet = kMaxGeneration / 2;

// What else the journal would hold with this plan, by those who have installed it. What others know beyond it was taken
// back before it was made: a committed version falls with the fall back to a mirror.
wire::Known newest_of(const wire::Plan& plan, const std::vector<const wire::Known*>& told) {
  wire::Known newest;
  newest.set_committed(plan.committed());
  newest.set_committed_version(plan.committed_version());
  newest.set_committed_timeline(plan.committed_timeline());
  std::vector<const google::protobuf::RepeatedPtrField<wire::Setup>*> lists{&plan.setups()};
  for (const wire::Known* k : told) {
    const bool installed = k->plan_generation() == plan.generation();
    // A rollback between the two may have undone them.
    const bool of_timeline = k->has_plan() && k->plan().timeline() == plan.timeline();
    if (installed || of_timeline) lists.push_back(&k->setups());
    // A mirror keeps the same plan without its set-up rounds.
    if (of_timeline) lists.push_back(&k->plan().setups());
    if (!installed || !k->committed() || commit_order(*k) <= commit_order(newest) ||
        k->committed_timeline() > plan.timeline()) {
      continue;
    }
    newest.set_committed(true);
    newest.set_committed_version(k->committed_version());
    newest.set_committed_timeline(k->committed_timeline());
  }
  if (auto setups = merge_setups(lists, {}, Timeline(plan.timeline())); setups.ok()) {
    for (wire::Setup& s : setups.value()) {
      if (s.done()) *newest.add_setups() = std::move(s);
    }
  }
  return newest;
}

// Of the plan that a life has, as it says with this; 0: it does not say. An interrupt's may be a later one.
std::uint64_t plan_said(const wire::Envelope& e) {
  switch (e.body_case()) {
    case wire::Envelope::kHeartbeat: return e.heartbeat().generation();
    case wire::Envelope::kLinkBroken: return e.link_broken().generation();
    case wire::Envelope::kRoundFailed: return e.round_failed().generation();
    case wire::Envelope::kReport: return e.report().plan_generation();
    case wire::Envelope::kVote: return e.vote().generation();
    case wire::Envelope::kLogGap: return e.log_gap().generation();
    case wire::Envelope::kLeave: return e.leave().generation();
    case wire::Envelope::kJoin:
    case wire::Envelope::kStopped:
    case wire::Envelope::kLoad:
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
    case wire::Envelope::BODY_NOT_SET: return 0;
  }
  return 0;
}

// As a member, or as who has left and serves.
const wire::Member* find_in(const wire::Plan& plan, Incarnation who) {
  for (const auto* all : {&plan.members(), &plan.servers()}) {
    const auto m = std::ranges::find(*all, who.value, &wire::Member::incarnation);
    if (m != all->end()) return &*m;
  }
  return nullptr;
}

bool credible(Incarnation who, const wire::Known& known) {
  if (known.generation() >= kNoGenerationYet) return false;
  return !known.has_plan() || find_in(known.plan(), who) != nullptr;
}
}  // namespace

bool TrackerMachine::knows_nothing() const {
  return state_ == State::kGathering && generation_.value == 0;
}

bool TrackerMachine::is_stranger(Incarnation who, const wire::Envelope& e) const {
  if (!knows_nothing() || waiting_.contains(who) || retired_.contains(who)) return false;
  // Who joins has no plan, and who ends has nothing to go on with.
  return !e.has_join() && !e.has_stopped() && !(e.has_leave() && !e.leave().finalize());
}

void TrackerMachine::on_stranger(Incarnation who, const wire::Envelope& e, TimeMs now, Effects& effects) {
  if (e.has_known() && !credible(who, e.known())) return count(Transition::out_of_turn);
  if (!rebuilding_) {
    rebuilding_.emplace();
    rebuilding_->since = now;
    log(Severity::kWarning, "rebuilding",
        "the journal does not hold job " + options_.job +
            ", and a worker is a member of it: asking its members what "
            "they know",
        effects);
  }
  const auto found = rebuilding_->strangers.find(who);
  if (found == rebuilding_->strangers.end() && rebuilding_->strangers.size() == kMaxStrangers) {
    return count(Transition::out_of_turn);
  }
  wire::Known& answer = rebuilding_->strangers[who];
  if (e.has_known() && promises_us(e)) {
    count(Transition::stranger_answered);
    answer = e.known();
    if (answer.has_plan() && answer.plan().generation() > rebuilding_->plan.generation()) {
      rebuilding_->plan = answer.plan();
    }
    answer.clear_plan();
  }
  if (answer.generation() == 0 || answer.plan_generation() > rebuilding_->plan.generation()) {
    count(Transition::stranger_asked);
    wire::Envelope ask = envelope_to(who);
    ask.mutable_tell()->set_generation(rebuilding_->plan.generation());
    effects.emplace_back(Send{who, std::move(ask)});
  }
  const std::size_t members = members_asked();
  if (members != 0 && told() == members) return end_rebuilding(now, effects);
  arm(rebuild_deadline());
}

TimeMs TrackerMachine::rebuild_deadline() const {
  const wire::Plan& plan = rebuilding_->plan;
  return rebuilding_->since + (plan.generation() == 0 ? limits::kDefaultRoundTimeoutMs
                                                      : static_cast<std::int64_t>(plan.settings().round_timeout_ms()));
}

std::size_t TrackerMachine::members_asked() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(rebuilding_->plan.members(), [](const wire::Member& m) { return !m.absent(); }));
}

std::size_t TrackerMachine::told() const {
  // Whoever has a newer plan has not told it yet: the one at hand is over.
  const auto& strangers = rebuilding_->strangers;
  if (std::any_of(strangers.begin(), strangers.end(),
                  [this](const auto& s) { return s.second.plan_generation() > rebuilding_->plan.generation(); })) {
    return 0;
  }
  const auto& members = rebuilding_->plan.members();
  return static_cast<std::size_t>(std::count_if(members.begin(), members.end(), [this](const wire::Member& m) {
    if (m.absent()) return false;
    const auto stranger = rebuilding_->strangers.find(Incarnation(m.incarnation()));
    if (stranger != rebuilding_->strangers.end()) return stranger->second.generation() != 0;
    return waiting_.contains(Incarnation(m.incarnation()));  // its plan has not reached it
  }));
}

void TrackerMachine::end_rebuilding(TimeMs now, Effects& effects) {
  const std::size_t members = members_asked();
  if (2 * told() > members) return rebuild(now, effects);
  count(Transition::rebuild_failed);
  const std::string why = "the tracker has lost what it knew of job " + options_.job + ", and " +
                          (members == 0 ? "no member has told its plan"
                                        : "only " + std::to_string(told()) + " of the " + std::to_string(members) +
                                              " members of its newest generation have told what they know");
  log(Severity::kError, "rebuild_failed", why + "; the job begins anew", effects);
  const auto strangers = std::move(rebuilding_->strangers);
  rebuilding_.reset();
  since_ = now;  // those who are refused join again
  for (const auto& [who, answer] : strangers) {
    retire(who);
    refuse(who, Code::kClosed, why + "; join again", effects, true);
  }
  if (settings_.world_size() != 0) maybe_plan(now, effects);
}

wire::JobRecord TrackerMachine::record_of(const wire::Plan& plan, const wire::Known& known) const {
  wire::JobRecord record;
  record.set_format(kJobRecordFormat);
  record.set_job(options_.job);
  record.set_generation(plan.generation());
  record.set_term(term_.value);
  record.set_timeline(plan.timeline());
  *record.mutable_settings() = plan.settings();
  record.set_settings_from("the plan of generation " + std::to_string(plan.generation()));
  *record.mutable_plan() = plan;
  record.set_committed(known.committed());
  record.set_committed_version(known.committed_version());
  record.set_committed_timeline(known.committed_timeline());
  *record.mutable_setups() = known.setups();
  return record;
}

void TrackerMachine::take_over(const wire::Plan& plan, const wire::Known& known, TimeMs now) {
  // Who has joined meanwhile joins again, and is then judged by the plan.
  clear_waiting();
  restore(record_of(plan, known), now);
  acting_ = true;  // more than half have told it, or all have joined
}

// (In mode shrink a newer plan may have fewer members than the journal's, of whom one half may be with another
// tracker.)
bool TrackerMachine::may_learn() const {
  return logged() && !shrinks() && has_places() && !lost();
}

// A plan of this very job, that a tracker may have made.
bool TrackerMachine::is_newer(const wire::Known& known) const {
  const wire::Plan& plan = known.plan();
  return known.has_plan() && plan.generation() > plan_.generation() && plan.run() == plan_.run() &&
         plan.timeline() >= plan_.timeline() && plan.members_size() == plan_.members_size() &&
         plan.settings().SerializeAsString() == settings_.SerializeAsString() &&
         known.generation() - plan_.generation() <= kMostGenerationsBehind &&
         validate(record_of(plan, newest_of(plan, {&known}))).ok();
}

// A life whose place has another one, unless it serves, or did when this plan was made: that one hears of each plan.
bool TrackerMachine::is_over(Incarnation who) const {
  return retired_.contains(who) && !leavers_.serves(who) && !is_named(who);
}

// Also once most of the older plan's workers are there, in lives that know as little as the journal. Who is cut off for
// longer than a round timeout is late. Who does not answer is heeded as ever then.
bool TrackerMachine::may_know_newer_plan(Incarnation who, const wire::Envelope& e, TimeMs now) const {
  if (!may_be_older_ || !may_learn() || now >= promises_.heard() + timeout_ms()) return false;
  if (is_over(who) || asked_in_vain_.contains(who)) return false;
  const auto asked = asked_for_newer_.find(who);
  if (e.has_known()) return asked != asked_for_newer_.end();
  if (e.has_leave() && !e.leave().finalize() && e.leave().serves_ms() == 0) return false;
  return plan_said(e) > plan_.generation() && (asked == asked_for_newer_.end() ? asked_for_newer_.size() < kMaxStrangers
                                                                               : now < asked->second + timeout_ms());
}

// A member of a plan that an older copy of the journal does not hold would wait, without a word, for a tracker that
// waits for it: what the journal lacks is taken from such members, and decided by those of the newest plan.
void TrackerMachine::learn_newer_plan(Incarnation who, const wire::Envelope& e, TimeMs now, Effects& effects) {
  if (!may_learn() || is_over(who)) return;
  if (!e.has_known()) {
    count(Transition::newer_plan_asked);
    const std::uint64_t said = plan_said(e);
    if (said > plan_.generation()) {
      // It may be gone before it answers. What it was told of then was in force: no other plan gets that number.
      if (said - plan_.generation() <= kMostGenerationsBehind)
        newer_spoken_of_ = std::max(newer_spoken_of_, Generation(said));
      if (asked_for_newer_.size() < kMaxStrangers) asked_for_newer_.try_emplace(who, now);
    }
    wire::Envelope ask = envelope_to(who);
    ask.mutable_tell()->set_generation(plan_.generation());
    effects.emplace_back(Send{who, std::move(ask)});
    return;
  }
  if (!promises_us(e)) return count(Transition::out_of_turn);
  asked_for_newer_.erase(who);
  const wire::Member* m = find_in(e.known().plan(), who);
  if (m == nullptr || !is_newer(e.known())) {
    // It may have lost its place, and must not wait here for ever because it is answered; or its first plan was lost on
    // the way to it, and others have it; or its plan is too long to be told.
    count(Transition::newer_plan_refused);
    if (asked_in_vain_.size() < kMaxStrangers) asked_in_vain_.insert(who);
    return;
  }
  count(Transition::newer_plan_learned);
  learn(e.known(), worker_on_host(m->worker_id(), m->host_id()), now, effects);
  ask_again(who, effects);
}

// When whoever may know a newer plan has had the time to say so; none: now. `survived`: a life that has.
std::optional<TimeMs> TrackerMachine::waits_for_newer_plan(bool survived, TimeMs now) const {
  const TimeMs heard = promises_.asked() + limits::kSuspectHeartbeats * interval_ms();
  if (!survived && now < heard) return heard;
  for (const auto& [life, asked] : asked_for_newer_) {
    const TimeMs answered = std::min(asked + interval_ms(), promises_.asked() + timeout_ms());
    if (now < answered) return answered;
  }
  return std::nullopt;
}

// What only disks know any more. A plan that a disk knows lacks its frontier: nothing but its number is used where one
// of its members lives, which did not get it.
bool TrackerMachine::learn_from_disks(TimeMs now, Effects& effects) {
  const Waiting* newest = nullptr;
  const Waiting* committed = nullptr;
  for (const auto& [worker, w] : waiting_) {
    if (!w.held || w.held->run() != plan_.run()) continue;
    const wire::Known& known = w.held->known();
    const bool newer = newest == nullptr || known.plan().generation() > newest->held->known().plan().generation();
    if (newer && is_newer(known)) newest = &w;
    // In the timeline that goes on, or of which nothing is left but the commit.
    const bool later = known.plan_generation() == plan_.generation() && known.committed() &&
                       known.committed_timeline() <= timeline_.value &&
                       (!committed_ || commit_order(known) > std::pair(committed_timeline_.value, committed_->value));
    if (later && (committed == nullptr || commit_order(known) > commit_order(committed->held->known()))) committed = &w;
  }
  if (newest != nullptr) {
    wire::Known known = newest->held->known();
    std::vector<const wire::Known*> told;
    for (const auto& [worker, w] : waiting_) {
      if (w.held && w.held->run() == plan_.run()) told.push_back(&w.held->known());
    }
    *known.mutable_setups() = newest_of(known.plan(), told).setups();
    const bool survived = std::ranges::any_of(
        waiting_, [&](const auto& w) { return w.second.report && find_in(known.plan(), w.second.id()) != nullptr; });
    if (survived) {
      generation_ = std::max(generation_, Generation(known.generation()).next());
      return false;
    }
    count(Transition::newer_plan_on_disk);
    learn(known, "the disk of host " + newest->member.host_id(), now, effects, true);
    return true;
  }
  if (committed != nullptr) {
    const wire::Known& known = committed->held->known();
    learn_commit(Version(known.committed_version()), Timeline(known.committed_timeline()), effects);
  }
  return false;
}

// `interrupted`: nobody has it in force.
void TrackerMachine::learn(const wire::Known& known, const std::string& from, TimeMs now, Effects& effects,
                           bool interrupted) {
  const wire::Plan& plan = known.plan();
  const std::uint64_t journal = plan_.generation();
  TrackerMachine newer(options_);
  newer.term_ = term_;
  wire::JobRecord record = newer.record_of(plan, newest_of(plan, {&known}));
  // Whoever has heard of this tracker's own interrupts waits for a later one.
  if (interrupted || generation_.value > plan.generation()) {
    record.set_generation(std::max({plan.generation(), known.generation(), generation_.value}) + 1);
    wire::Interrupt& i = *record.mutable_interrupt();
    i.set_generation(record.generation());
    i.set_code(static_cast<std::uint32_t>(Code::kPeerLost));
    i.set_reason("the tracker's journal ended at generation " + std::to_string(journal) + ", and " + from +
                 " knows that of generation " + std::to_string(plan.generation()) +
                 "; the ranks stop, connect again and go on");
    i.set_resume(true);
  }
  record.set_without_frontier(interrupted);
  newer.transitions_ = std::move(transitions_);
  newer.since_ = newer.next_log_ = now;
  newer.last_round_ = last_round_, newer.last_commit_ = last_commit_;
  newer.newer_spoken_of_ = newer_spoken_of_;
  newer.restore(record, now);
  for (const Incarnation life : retired_.oldest_first()) newer.retire(life);
  newer.journal_is_older_ = newer.may_be_older_ = true;
  newer.interrupts_ = interrupts_, newer.joins_ = joins_, newer.refusals_ = refusals_;
  newer.preemptions_ = preemptions_, newer.spares_used_ = spares_used_;
  // Lives that are over in the newer plan stand for nobody there. A life that joins promises again.
  newer.promises_ = promises_.of([&newer](Incarnation life) { return newer.rank_of(life).has_value(); });
  if (!interrupted) newer.promises_.ask(now);
  std::set<Incarnation> again;
  for (const auto& [worker, life] : promises_.lives()) again.insert(life);
  for (const auto* lives : {&waiting_.workers(), &spares_.workers()}) {
    for (const auto& [life, worker] : *lives) again.insert(life);
  }
  *this = std::move(newer);
  log(Severity::kWarning, "journal_older",
      "the journal ends at the plan of generation " + std::to_string(journal) + " of job " + options_.job + ", and " +
          from + " knows that of generation " + std::to_string(plan_.generation()) +
          ": it is an older copy; the tracker goes by the newer plan",
      effects, {{"generation", std::to_string(plan_.generation())}});
  for (const Incarnation life : again) ask_again(life, effects);
}

bool TrackerMachine::adopt_from_disks(TimeMs now, Effects& effects) {
  struct Run {
    std::set<std::string> domains;
    const wire::Plan* plan = nullptr;  // the newest
    std::uint64_t generation = 0;      // the newest that was heard of
  };
  std::map<std::uint64_t, Run> runs;
  std::set<std::string> domains;
  for (const auto& [worker, w] : waiting_) {
    domains.insert(w.member.domain_id());
    if (!w.held || w.held->known().generation() >= kNoGenerationYet) continue;
    Run& run = runs[w.held->run()];
    run.domains.insert(w.member.domain_id());
    run.generation = std::max(run.generation, w.held->known().generation());
    const wire::Plan& plan = w.held->known().plan();
    if (plan.generation() != 0 && (run.plan == nullptr || plan.generation() > run.plan->generation())) run.plan = &plan;
  }
  if (runs.empty()) return false;
  const auto most = std::max_element(runs.begin(), runs.end(), [](const auto& a, const auto& b) {
    return a.second.domains.size() < b.second.domains.size();
  });
  const Run& run = most->second;
  const std::size_t missing = domains.size() - run.domains.size();
  const bool resize = std::ranges::all_of(waiting_, [](const auto& w) { return w.second.resize; });
  wire::JobSettings wanted;
  if (run.plan != nullptr) wanted = run.plan->settings();
  if (resize) wanted.set_world_size(settings_.world_size());
  const bool same =
      run.plan != nullptr && run.plan->generation() == run.generation && differing_setting(wanted).empty();
  if (missing >= settings_.replicas() || !same) {
    count(Transition::disks_ignored);
    log(Severity::kWarning, "disks_ignored",
        "disks hold what another run of job " + options_.job +
            " has left, and the tracker's journal does not know it: " +
            (missing >= settings_.replicas()
                 ? "those of " + std::to_string(missing) + " of the " + std::to_string(domains.size()) +
                       " failure domains do not, so it is not all of it"
                 : std::string("its plan is too long to be told by disks, or its settings were others")) +
            "; the job begins anew",
        effects);
    return false;
  }
  count(Transition::adopted_from_disks);
  const wire::Plan plan = *run.plan;
  std::vector<const wire::Known*> told;
  for (const auto& [worker, w] : waiting_) {
    if (w.held && w.held->run() == most->first) told.push_back(&w.held->known());
  }
  take_over(plan, newest_of(plan, told), now);
  without_frontier_ = true;
  leavers_.remove_all();  // no process is left
  log(Severity::kWarning, "adopted_from_disks",
      "the journal does not hold job " + options_.job +
          "; it goes on from what the disks of its workers know, in generation " + std::to_string(generation_.value) +
          " and from " + program_version(),
      effects);
  end_generation(Code::kPeerLost,
                 "the tracker's journal does not hold this job: it was lost, or the job was forgotten (warren forget); "
                 "no worker has survived",
                 {}, Ending::kResumes, now, effects);
  return true;
}

void TrackerMachine::rebuild(TimeMs now, Effects& effects) {
  count(Transition::rebuilt);
  const Rebuilding known = *std::exchange(rebuilding_, std::nullopt);
  std::vector<const wire::Known*> told;
  std::uint64_t newest = 0;
  for (const wire::Member& m : known.plan.members()) {
    const auto stranger = known.strangers.find(Incarnation(m.incarnation()));
    if (m.absent() || stranger == known.strangers.end()) continue;
    told.push_back(&stranger->second);
    newest = std::max(newest, stranger->second.generation());
  }
  take_over(known.plan, newest_of(known.plan, told), now);
  // Otherwise with the generation that members have heard of: nothing stands in the journal that is older than they
  // are.
  const bool in_force = newest <= generation_.value;
  if (in_force) persist(effects);
  log(Severity::kWarning, "rebuilt",
      "job " + options_.job + " goes on in generation " + std::to_string(generation_.value) +
          ", as its members have told it",
      effects);
  if (in_force) return;
  count(Transition::rebuilt_interrupted);
  generation_ = Generation(newest);
  end_generation(
      Code::kPeerLost,
      "the tracker's journal did not hold this job, whose members have told what it was, while the job was interrupted",
      {}, logged() ? Ending::kResumes : Ending::kRollsBack, now, effects);
}

}  // namespace warren
