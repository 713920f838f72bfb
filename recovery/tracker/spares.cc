// Workers beyond the world's size: who waits, who is called for the place of a rank that was lost, and when
// (docs/decisions/0015-spares.md). Which of them is chosen is in spares.h.
#include <algorithm>
#include <functional>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/decide/spares.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"

namespace warren {

using tracker_effect::Drop;
using tracker_effect::Send;

namespace {
// All others have answered: so much later whoever others have lost their links to, and who has not, is taken for dead.
constexpr std::int64_t kSuspectMs = 20;
// A spare that was called and is silent for so many heartbeat intervals is passed over.
constexpr std::int64_t kIntervalsToAnswer = 2;
}  // namespace

bool TrackerMachine::is_spare(Incarnation who, const wire::Join& join, TimeMs now) const {
  if (join.spare()) return true;
  if (join.called() != 0) return !answers_call(who, join);
  if (!join.waits() || !has_places()) return false;
  const auto place = place_of(join.worker_id());
  // The job has gone on without it, and goes on.
  if (place && state_ == State::kRunning && absent(*place)) return true;
  return !place || given_away(*place, now);
}

bool TrackerMachine::answers_call(Incarnation who, const wire::Join& join) const {
  const Spare* const spare = spares_.find(join.worker_id());
  if (state_ != State::kGathering || !has_places() || spare == nullptr || spare->life != who || !spare->call ||
      Generation(join.called()) != generation_) {
    return false;
  }
  // Its own place needs no room among those who wait for others'.
  return spare->call->place == place_of(join.worker_id()) || candidates() < free_places_.size();
}

void TrackerMachine::on_spare(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects) {
  const std::string& worker = join.worker_id();
  const auto place = place_of(worker);
  if (!spares_.contains(worker) && spares_.full()) {
    count(Transition::join_refused_no_place);
    return refuse(who, Code::kRefused,
                  std::to_string(limits::kMaxSpares) + " spares of job " + options_.job +
                      " wait already, which is the limit; start fewer",
                  effects);
  }
  if (place && state_ == State::kRunning && absent(*place)) {
    count(Transition::waits_to_come_in);
  } else if (place && state_ == State::kRunning) {
    if (refuse_finalized(*place, who, effects)) return;
    replace_member(*place, join.attempt(), now, effects);
  }
  if (waiting_.contains(worker)) replace_waiting(worker, effects);
  if (spares_.contains(worker) && spares_.at(worker).life != who) replace_spare(worker, effects);
  const bool repeated = spares_.contains(worker);
  if (repeated) {
    count(Transition::spare_repeated);
  } else {
    count(Transition::spare_waits);
    ++joins_;
    spares_.add(worker, {who, join.host_id(), join.domain_id(), ++arrivals_, now, {}});
    spares_.forgive(join.host_id());  // the spare that did not answer may be gone: this one has not been asked
    log(Severity::kInfo, "spare_waits",
        "worker " + worker + " on host " + join.host_id() +
            (absent_ != 0 ? " waits until a version is committed, to come into job " : " waits as a spare of job ") +
            options_.job + ", which has " + std::to_string(spares_.size()) + (absent_ != 0 ? " that wait" : "") +
            (join.attempt() == 0 ? "" : " (started again " + std::to_string(join.attempt()) + " times)"),
        effects, {{"worker", worker}});
  }
  arm(now + timeout_ms());
  const Version followed(join.followed().version());
  if (spares_.follow(worker, followed)) {
    log(Severity::kInfo, "spare_follows",
        "spare " + worker + " on host " + join.host_id() + " holds version " +
            std::to_string(followed.value - version_of_program(0).value) + " of job " + options_.job +
            ", and those to come",
        effects, {{"worker", worker}});
  }
  if (const Spare& spare = spares_.at(worker); spare.call && join.called() == 0) {
    count(Transition::spare_call_repeated);
    send_called(spare, effects);
  } else {
    send_spare_welcome(who, Generation(join.called()), join.has_followed() ? &join.followed() : nullptr, now, effects);
  }
  if (place && members_[*place].state == MemberState::kStopping) {
    // A new life of a worker says that the old one has stopped.
    count(Transition::join_while_stopping);
    lose(*place);
    return maybe_gather(now, effects);
  }
  // Whether it can be of use now is not looked at for each word of each spare: that costs as much as there are ranks.
  if (repeated) {
    // Nobody is called but to a place, and while it is free.
    if (state_ == State::kGathering && has_places()) arm(std::max(now, looked_for_spares_ + interval_ms()));
    return;
  }
  call_spares(now, effects);
}

void TrackerMachine::replace_spare(const std::string& worker, Effects& effects) {
  count(Transition::spare_replaced);
  const Incarnation old_life = spares_.take(worker).life;
  retire(old_life);
  refuse_replaced(old_life, "worker " + worker, effects);
}

void TrackerMachine::displace(const std::string& worker, Effects& effects) {
  const Waiting& w = waiting_.at(worker);
  const Incarnation who = w.id();
  if (!w.member.waits() || spares_.full()) {
    count(Transition::candidate_displaced);
    remove_waiting(worker);
    retire(who);
    return refuse(
        who, Code::kRefused,
        "no place in job " + options_.job + " for worker " + worker + ": the workers it waited to replace are back",
        effects);
  }
  count(Transition::spare_displaced);
  const Generation called = w.called;
  // Called in vain, it is not called again for this interrupt.
  if (called.value != 0 && !w.holds()) spares_.note_nothing_on(w.member.host_id());
  Spare spare{who, w.member.host_id(), w.member.domain_id(), w.arrival, w.heard, {}};
  remove_waiting(worker);
  spares_.add(worker, std::move(spare));
  send_spare_welcome(who, called, nullptr, {}, effects);
}

// A life of this host has joined that looked at its memory before all members had stopped. What ranks of the host may
// have completed since is not in what it said: who takes such a rank's place must have looked later, at the same memory
// (I1). Its own worker does.
void TrackerMachine::give_places_back_to(const std::string& host_id, Effects& effects) {
  const auto of_host = [&](std::size_t place) { return plan_.members(static_cast<int>(place)).host_id() == host_id; };
  std::vector<std::string> strangers;
  for (const auto& [place, worker] : waiting_.takers()) {
    if (of_host(place) && waiting_.at(worker).member.host_id() != host_id) strangers.push_back(worker);
  }
  for (const std::string& worker : strangers) displace(worker, effects);
  std::vector<std::size_t> called;
  for (const auto& [place, worker] : spares_.calls()) {
    if (of_host(place) && spares_.at(worker).host_id != host_id) called.push_back(place);
  }
  for (const std::size_t place : called) end_call(place);
}

void TrackerMachine::call_spares(TimeMs now, Effects& effects) {
  if (state_ != State::kGathering || !has_places() || spares_.empty()) return;
  looked_for_spares_ = now;
  pass_over_silent(now);
  call_owners(now, effects);
  const auto& calls = spares_.calls();
  for (const auto& [place, worker] : calls) {
    arm(SpareBench::answer_due(spares_.at(worker), patience_with_called_ms()));
  }
  const std::size_t spoken_for = candidates() + calls.size();
  if (spoken_for >= free_places_.size() || calls.size() == spares_.size()) return;
  const bool late = now >= since_ + timeout_ms();
  if (!late) arm(since_ + timeout_ms());
  // All start again after a rollback, and when none has survived: their places are theirs.
  const bool at_once = interrupt_.resume() && waiting_.survivors() != 0;
  if (!at_once && !late) return;

  const std::set<std::string> looked_early = waiting_.hosts_looked_at_early();
  // Where there are places that nobody has had, those come last without whose workers the job goes on: they may return.
  std::vector<std::size_t> free(free_places_.begin(), free_places_.end());
  const auto may_return = [this](std::size_t rank) { return absent(rank) && !vacant(rank); };
  const bool vacancies = count_vacant() != 0;
  if (vacancies) std::stable_partition(free.begin(), free.end(), std::not_fn(may_return));
  std::vector<std::size_t> ranks;
  std::vector<FreePlace> places;
  for (const std::size_t rank : free) {
    const wire::Member& m = plan_.members(static_cast<int>(rank));
    if (waiting_.takers().contains(rank) || calls.contains(rank) || (!late && !m.waits() && !is_vacant(m))) continue;
    if (places.size() == free_places_.size() - spoken_for) break;
    ranks.push_back(rank);
    const bool replaced = leaves_ && rank_of(leaves_->life) == rank;
    places.push_back({m.host_id(), m.domain_id(), logged() && looked_early.contains(m.host_id()), replaced});
  }
  const SpareBench::Idle idle = spares_.those([&](const std::string& worker, const Spare& spare) {
    const auto own = place_of(worker);
    // A spare whose own rank is free is called for that another time (call_owners).
    return !spare.call && !(own && (given_away(*own, now) || free_places_.contains(*own)));
  });
  while (vacancies && places.size() > idle.spares.size() && may_return(ranks.back())) {
    places.pop_back();
    ranks.pop_back();
  }
  auto chosen = choose_spares(places, idle.spares);
  const auto in_reach = [&] {
    std::set<std::string> there = hosts_there();
    for (const auto& spare : chosen) {
      if (!spare) continue;
      const std::string host(idle.spares[*spare].host_id);
      if (spares_.counts_on(host)) there.insert(host);
    }
    return spares_in_reach(there);
  };
  if (leaves_ && !in_reach()) {
    for (FreePlace& place : places) place.rather_elsewhere = false;
    chosen = choose_spares(places, idle.spares);
  }
  if (late && send_back_early_lookers(places, chosen, effects)) {
    // Their own places are free now, and they are called for them.
    return call_owners(now, effects);
  }
  spares_.hold_back(!in_reach() || (comes_in_vain() && goes_on_alone()));
  if (spares_.held_back()) return count(Transition::spares_out_of_reach);
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (chosen[i]) call_spare(idle.workers[*chosen[i]], ranks[i], now, effects);
  }
}

// Nobody of another host can take these places, and the spares of theirs do not suffice: who has looked at its host
// before all had stopped, and would wait as a spare, looks again.
bool TrackerMachine::send_back_early_lookers(const std::vector<FreePlace>& places,
                                             const std::vector<std::optional<std::size_t>>& chosen, Effects& effects) {
  std::set<std::string_view> hosts;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (places[i].for_its_host && !chosen[i]) hosts.insert(places[i].host_id);
  }
  std::vector<std::string> early;
  for (const auto& [worker, w] : waiting_) {
    if (w.looked_early() && w.member.waits() && hosts.contains(w.member.host_id())) early.push_back(worker);
  }
  for (const std::string& worker : early) displace(worker, effects);
  return !early.empty();
}

// A process that began as a spare may have a place: it is called at once, for it has not said yet what its host holds.
void TrackerMachine::call_owners(TimeMs now, Effects& effects) {
  for (const auto& [worker, spare] : spares_) {
    const auto place = place_of(worker);
    if (!place || !free_places_.contains(*place) || (spare.call && spare.call->place == *place)) continue;
    // It was sent back, or passed over; or would be.
    if ((!spares_.counts_on(spare.host_id) || comes_in_vain()) && goes_on_alone()) continue;
    if (given_away(*place, now)) {
      count(Transition::replaced_waits);
      continue;
    }
    end_call(*place);
    if (spare.call) end_call(spare.call->place);
    call_spare(worker, *place, now, effects);
  }
  // Those in whose places others wait are done with: the spares are not gone through any more.
  std::vector<std::string> displaced;
  for (const auto& [place, worker] : waiting_.takers()) {
    if (spares_.calls().contains(place)) displaced.push_back(worker);
  }
  for (const std::string& worker : displaced) displace(worker, effects);
}

void TrackerMachine::call_spare(const std::string& worker, std::size_t place, TimeMs now, Effects& effects) {
  count(Transition::spare_called);
  spares_.call(worker, place, now);
  const Spare& spare = spares_.at(worker);
  log(Severity::kInfo, "spare_called",
      "spare " + worker + " on host " + spare.host_id + " is called to take the place of " + name(place), effects,
      {{"worker", worker}, {"rank", std::to_string(place)}});
  send_called(spare, effects);
  arm(SpareBench::answer_due(spare, patience_with_called_ms()));
}

void TrackerMachine::end_call(std::size_t place) {
  if (spares_.end_call(place)) count(Transition::spare_call_ended);
}

std::int64_t TrackerMachine::patience_with_called_ms() const {
  return kIntervalsToAnswer * interval_ms();
}

void TrackerMachine::pass_over_silent(TimeMs now) {
  for (const std::size_t place : spares_.overdue(now, patience_with_called_ms())) {
    count(Transition::spare_passed_over);
    if (shrinks()) spares_.note_silent(spares_.called_for(place).host_id);
    spares_.pass_over(place, ++arrivals_);
  }
}

void TrackerMachine::end_calls() {
  for (std::size_t calls = spares_.forget_interrupt(); calls > 0; --calls) count(Transition::spare_call_ended);
}

void TrackerMachine::drop_silent_spares(TimeMs now, Effects& effects) {
  std::vector<std::string> silent;
  for (const auto& [worker, spare] : spares_) {
    if (now >= spare.heard + timeout_ms()) {
      silent.push_back(worker);
    } else {
      arm(spare.heard + timeout_ms());
    }
  }
  for (const std::string& worker : silent) {
    count(Transition::spare_silent);
    const Spare spare = spares_.take(worker);
    log(Severity::kWarning, "spare_lost",
        "spare " + worker + " on host " + spare.host_id + " has not been heard for " +
            std::to_string(now - spare.heard) + " ms; it is not counted on until it is",
        effects, {{"worker", worker}});
    effects.emplace_back(Drop{spare.life});
  }
  if (!silent.empty()) forget_unused_settings();
}

std::set<std::string> TrackerMachine::hosts_there() const {
  std::set<std::string> there = waiting_.hosts_that_hold();
  // Hosts of called spares count until they have said what they hold.
  there.merge(spares_.hosts_called());
  for (const auto& [life, server] : leavers_.servers()) {
    if (is_served(server.member.host_id())) there.insert(server.member.host_id());
  }
  return there;
}

// What was logged on a host where no rank is left, and nobody serves, nobody answers for; it counts until all that is
// not obsolete was logged without it (0006, "What counts as lost").
void TrackerMachine::leave_hosts(const wire::Plan& before) {
  std::set<std::string> hosts;
  for (const wire::Member& m : plan_.members()) {
    if (!m.absent()) hosts.insert(m.host_id());
  }
  for (const wire::Member& m : plan_.servers()) hosts.insert(m.host_id());
  for (const wire::Member& m : before.members()) {
    if (left_domains_.size() >= settings_.replicas()) return;  // as many as can be lost already
    if (!m.absent() && !hosts.contains(m.host_id())) left_domains_.insert(m.domain_id());
  }
}

void TrackerMachine::send_back_takers(Effects& effects) {
  count(Transition::takers_sent_back);
  spares_.hold_back(true);
  std::vector<std::string> takers;
  for (const auto& [place, worker] : waiting_.takers()) takers.push_back(worker);
  for (const std::string& worker : takers) displace(worker, effects);
}

bool TrackerMachine::spares_in_reach(const std::set<std::string>& there) const {
  std::map<std::string, std::string> domain_of;
  for (const wire::Member& m : plan_.members()) {
    if (!m.absent()) domain_of.emplace(m.host_id(), m.domain_id());
  }
  return within_reach(domain_of, there, left_domains_, settings_.replicas());
}

void TrackerMachine::fence_suspects(TimeMs now, Effects& effects) {
  if (state_ != State::kInterrupted || !interrupt_.resume() || waiting_.survivors() == 0) return;
  std::vector<std::size_t> suspects;
  TimeMs due = answered_ + kSuspectMs;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& m = members_[rank];
    if (m.state != MemberState::kStopping) continue;
    const bool replaceable = m.suspected && plan_.members(static_cast<int>(rank)).waits();
    if (!replaceable || (suspects.size() == spares_.size() && !shrinks())) return;
    suspects.push_back(rank);
    due = std::max(due, m.heard + kSuspectMs);
  }
  if (suspects.empty()) return;
  if (now < due) return arm(due);
  for (const std::size_t rank : suspects) {
    count(Transition::suspect_fenced);
    lose(rank);
    log(Severity::kWarning, "fenced",
        name(rank) +
            " is taken for dead: others have lost their links to it, and it alone has not answered the "
            "interrupt; a spare can take its place, or the job goes on without it",
        effects, {{"rank", std::to_string(rank)}});
    effects.emplace_back(Drop{Incarnation(plan_.members(static_cast<int>(rank)).incarnation())});
  }
  maybe_gather(now, effects);
}

void TrackerMachine::send_called(const Spare& spare, Effects& effects) const {
  wire::Envelope e = envelope_to(spare.life);
  e.mutable_called()->set_generation(generation_.value);
  const bool has_rank = std::ranges::any_of(
      plan_.members(), [&](const wire::Member& m) { return m.host_id() == spare.host_id && !m.absent(); });
  e.mutable_called()->set_stale(!has_rank);
  effects.emplace_back(Send{spare.life, std::move(e)});
}

void TrackerMachine::send_spare_welcome(Incarnation who, Generation called, const wire::Followed* has, TimeMs now,
                                        Effects& effects) {
  wire::Envelope e = envelope_to(who);
  wire::Welcome& w = *e.mutable_welcome();
  if (!planned()) {
    w.set_joined(std::min(static_cast<std::uint32_t>(waiting_.size()) + 1, settings_.world_size()));
  }
  w.set_world_size(settings_.world_size());
  w.set_spare(true);
  w.set_called(called.value);
  std::shared_ptr<const std::string> plan;
  if (has != nullptr) plan = tell_what_to_follow(*has, *spares_.worker_of(who), now, w);
  effects.emplace_back(Send{who, std::move(e), std::move(plan)});
}

// The members of the newest plan hold what is committed: nobody else may be asked, as a life that was given up since
// may have logged other bytes under that name. Where ranks may be lost for good nobody is called before a commit, whose
// checkpoint then is another one.
std::shared_ptr<const std::string> TrackerMachine::tell_what_to_follow(const wire::Followed& has,
                                                                       const std::string& spare, TimeMs now,
                                                                       wire::Welcome& welcome) {
  if (state_ != State::kRunning || !committed_ || shrinks()) return nullptr;
  const bool same_run = has.run() == plan_.run();
  if (same_run && Version(has.version()) == *committed_ && Timeline(has.timeline()) == committed_timeline_)
    return nullptr;
  const bool whole = !same_run || has.generation() != plan_.generation();
  // Until a plan has come, what a spare says does not ask for another.
  if (whole && !spares_.may_tell_plan(spare, generation_, now, timeout_ms())) return nullptr;
  wire::Follow& follow = *welcome.mutable_follow();
  follow.set_version(committed_->value);
  follow.set_timeline(committed_timeline_.value);
  follow.set_generation(plan_.generation());
  follow.set_run(plan_.run());
  if (!whole) return nullptr;
  const auto& plan = followed_plan();
  spares_.note_told(spare, generation_, now, plan->size());
  return plan;
}

std::string TrackerMachine::describe_spares() const {
  const std::size_t waiting = spares_.size() + waiting_.takers().size();
  if (waiting == 0) return {};
  const std::string count = std::to_string(waiting);
  if (spares_.held_back()) {
    return "; " + count +
           " spares wait, and are not used: with them alone, what was logged and committed might be out of reach on "
           "the machines of those who are missing";
  }
  return "; " + count + " spares wait" +
         (waiting_.survivors() == 0 || !interrupt_.resume() ? " for those who do not come back" : "");
}

}  // namespace warren
