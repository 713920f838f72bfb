// How generations begin: when a plan is made, from what it starts, and with whom. The plan's contents are made by
// PlanMaker (plan_maker.h).
#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/decide/frontier.h"
#include "recovery/decide/held.h"
#include "recovery/tracker/plan_maker.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/packed_members.h"
#include "recovery/wire/plan_changes.h"

namespace warren {

void TrackerMachine::maybe_plan(TimeMs now, Effects& effects) {
  if (settings_.world_size() == 0 || rebuilding_) return;
  if (lose_if_too_few_have_loaded(now, effects)) return;
  const bool whole = waiting_.size() >= settings_.world_size();
  if (!whole) {
    auto from = goes_on_from();
    if (from && waits_for_called(*from, now)) return;
    from = goes_on_from();  // a spare that was passed over is not counted on
    if (!from) return;
    if (now < *from) return arm(*from);
  }
  if (waits_for_servers(now)) return;
  if (!planned() && logged() && adopt_from_disks(now, effects)) return;
  if (send_back_newcomers(effects)) return arm(now);
  Ranks ranks;
  PlanStart start;
  if (resized_) {
    frontier_inherited_ = distrust_inherited_ = false;
    if (logged()) go_back_to_mirror(effects);
  } else if (planned() && !follow_plan(whole, ranks, start, now, effects)) {
    return;
  }
  make_plan(ranks, std::move(start), now, effects);
}

// Where there is a plan before: finds what the next one starts from, and gives the places. False: none is made now.
bool TrackerMachine::follow_plan(bool whole, Ranks& ranks, PlanStart& start, TimeMs now, Effects& effects) {
  for (const auto& [worker, place] : place_by_worker_) {
    if (waiting_.contains(worker)) ranks[worker] = Rank(static_cast<std::int32_t>(place));
  }
  std::vector<std::size_t> free;
  for (const std::size_t place : free_places_) {
    if (!waiting_.takers().contains(place)) free.push_back(place);
  }
  if (whole && !free.empty() && now < since_ + timeout_ms()) {
    arm(since_ + timeout_ms());
    return false;
  }
  // Now that each has said what its host holds. The places' own workers may still come.
  if (!waiting_.takers().empty() && !spares_in_reach(hosts_there())) {
    send_back_takers(effects);
    return false;
  }
  const bool survived = waiting_.survivors() != 0;
  if (may_be_older_ && may_learn()) {
    if (const auto until = waits_for_newer_plan(survived, now)) {
      arm(*until);
      return false;
    }
    if (learn_from_disks(now, effects)) return false;
  }
  if (gives_way_to_new_lives(now, effects)) return false;
  if (!find_start(survived, start, now, effects)) return false;
  give_places(whole, free, ranks, effects);
  return name_rounds(ranks, survived, start, now, effects);
}

// False: what is known is contradictory, and it has rolled back.
bool TrackerMachine::find_start(bool survived, PlanStart& start, TimeMs now, Effects& effects) {
  const bool inherits = !std::exchange(distrust_inherited_, false);
  // (Without the plan's frontier nobody could say which rounds disks alone hold, and theirs would be others' names.)
  start.goes_on = survived || (inherits && !without_frontier_ && interrupt_.resume() && memory_survives());
  const auto torn = [&](const Status& status) {
    count(Transition::frontier_torn);
    roll_back(status.code(), status.describe(), now, effects);
    return false;
  };
  auto setups = next_setups(start.goes_on);
  if (!setups.ok()) return torn(setups.status());
  if (start.goes_on) {
    auto frontier = next_frontier(inherits);
    if (!frontier.ok()) return torn(frontier.status());
    const auto of_survivors = next_frontier(false);
    frontier_inherited_ =
        !of_survivors.ok() ||
        !std::equal(frontier.value().begin(), frontier.value().end(), of_survivors.value().begin(),
                    of_survivors.value().end(), [](const wire::Position& a, const wire::Position& b) {
                      return a.group() == b.group() && a.version() == b.version() && a.rounds() == b.rounds();
                    });
    start.frontier = std::move(frontier).value();
    for (const wire::Kept& k : plan_.kept()) {
      if (k.version() == kPreamble.value || !committed_ || k.version() >= committed_->value) start.kept.push_back(k);
    }
  } else {
    frontier_inherited_ = false;
    if (interrupt_.resume()) {
      const bool lost = go_back_to_mirror(effects);
      start = start_from_disks();
      if (lost) setups = std::vector<wire::Setup>();
    }
  }
  start.setups = std::move(setups).value();
  return true;
}

// Candidates get free places by their arrival, and spares the places for which they were called.
void TrackerMachine::give_places(bool whole, const std::vector<std::size_t>& free, Ranks& ranks, Effects& effects) {
  const std::vector<const Waiting*> by_arrival = waiting_.candidates();
  WARREN_CHECK(whole ? by_arrival.size() == free.size() : by_arrival.size() <= free.size(),
               "nobody waits beyond the free places");
  const auto give = [&](const std::string& who, const std::string& worker, std::size_t place) {
    log(Severity::kInfo, "place_taken", who + worker + " takes the place of " + name(place), effects,
        {{"worker", worker}, {"rank", std::to_string(place)}});
    ranks[worker] = Rank(static_cast<std::int32_t>(place));
  };
  for (std::size_t i = 0; i < by_arrival.size(); ++i) {
    count(Transition::candidate_placed);
    give("worker ", by_arrival[i]->member.worker_id(), free[i]);
  }
  for (const auto& [place, worker] : waiting_.takers()) {
    count(Transition::spare_placed);
    ++spares_used_;
    give("spare ", worker, place);
  }
}

// Ends the timeline where other ranks go on. False: a plan cannot say what has become of the rounds so far, and it has
// rolled back.
bool TrackerMachine::name_rounds(const Ranks& ranks, bool survived, PlanStart& start, TimeMs now, Effects& effects) {
  std::vector<bool> there(members_.size(), false);
  for (const auto& [worker, rank] : ranks) there[static_cast<std::size_t>(rank.value)] = true;
  bool others = false;
  for (std::size_t rank = 0; rank < there.size(); ++rank) others = others || there[rank] == absent(rank);
  // A round that is computed again after it had got the name of an older timeline gets another one.
  const bool forgets = start.goes_on && drop_forgotten(start);
  if (forgets && survived && !shrinks()) {
    // In mode wait a life goes on in its own timeline alone.
    count(Transition::kept_rounds_forgotten);
    roll_back(Code::kUnavailable,
              "the tracker does not know how many rounds that job " + options_.job +
                  " has taken from disks were done: it has learned the newest plan from a disk, and disks do "
                  "not keep that",
              now, effects);
    return false;
  }
  if (start.goes_on && (others || forgets)) {
    const EndedAttempts attempts = end_timeline(start, timeline_);
    for (std::size_t i = 0; i < attempts.finished; ++i) count(Transition::attempt_finished);
    for (std::size_t i = 0; i < attempts.dropped; ++i) count(Transition::attempt_dropped);
  }
  const std::size_t missing = members_.size() - ranks.size();
  if (start.kept.size() <= limits::kMaxKept && absences_of(start, plan_, missing) <= limits::kMaxAbsences) return true;
  count(Transition::too_many_absences);
  if (start.goes_on) {
    roll_back(Code::kUnavailable,
              "the workers of job " + options_.job + " have changed too often since " + program_version() +
                  " was committed for a plan to say who has taken part in which rounds; take checkpoints "
                  "more often",
              now, effects);
    return false;
  }
  start.frontier.clear();
  start.kept.clear();
  return true;
}

bool TrackerMachine::memory_survives() const {
  std::set<std::string> domains, lost;
  for (const wire::Member& m : plan_.members()) {
    if (m.absent()) continue;
    domains.insert(m.domain_id());
    // Only the worker's own new life has looked after its last one had ended.
    const Waiting* const successor = waiting_.find(m.worker_id());
    const bool kept = successor != nullptr &&
                      std::ranges::find(successor->logged.lives(), m.incarnation()) != successor->logged.lives().end();
    if (!kept && !is_served(m.host_id())) lost.insert(m.domain_id());
  }
  return lost.size() < std::min<std::size_t>(settings_.replicas(), domains.size());
}

bool TrackerMachine::go_back_to_mirror(Effects& effects) {
  std::set<std::string> domains, with_disk;
  const wire::Known* newest = nullptr;
  for (const auto& [worker, w] : waiting_) {
    domains.insert(w.member.domain_id());
    if (!w.held) continue;
    if (!w.held->mirrored()) {
      with_disk.insert(w.member.domain_id());
      continue;
    }
    const wire::Known& known = w.held->known();
    const bool newer = newest == nullptr || commit_order(known) > commit_order(*newest);
    if (newer && Timeline(known.committed_timeline()) <= timeline_) newest = &known;
  }
  // There are as many copies as domains, where these are fewer than asked for.
  const std::size_t copies = std::min<std::size_t>(settings_.replicas(), domains.size());
  if (newest == nullptr || domains.size() - with_disk.size() < copies) return false;
  if (committed_ && std::pair(committed_timeline_.value, committed_->value) < commit_order(*newest)) return false;
  count(Transition::mirror_used);
  const std::string was = program_version();
  committed_ = Version(newest->committed_version());
  committed_timeline_ = Timeline(newest->committed_timeline());
  log(Severity::kWarning, "mirror_used",
      "the disks of " + std::to_string(domains.size() - with_disk.size()) + " of the " +
          std::to_string(domains.size()) + " failure domains of job " + options_.job +
          " are empty: it goes on from the mirror of its checkpoints, and from " + program_version() +
          (was == program_version() ? "" : " where " + was + " was committed"),
      effects);
  return true;
}

// Rounds that were logged before all lives ended keep their names. All that is computed from here on gets the names of
// a new timeline, so that nothing behind the first gap can serve.
PlanStart TrackerMachine::start_from_disks() const {
  HeldReport disks;
  for (const auto& [worker, w] : waiting_) {
    if (w.held) disks = unite(disks, from_wire(*w.held));
  }
  std::vector<const wire::Kept*> before;
  for (const wire::Kept& k : plan_.kept()) before.push_back(&k);
  return start_from(keep_rounds(disks, before, timeline_, committed_));
}

void TrackerMachine::make_plan(const Ranks& ranks, PlanStart start, TimeMs now, Effects& effects) {
  set_apart(effects);
  PlanMaker maker(plan_, settings_, resized_);
  maker.seat(workers_with(ranks), options_.planner);
  if (!planned()) {
    log(Severity::kInfo, "limits", "job " + options_.job + ": " + describe(straggler_limits(timeout_ms())), effects);
  }
  drop_unaware_servers(effects);
  const bool reserved = planned() && generation_.value > plan_.generation();
  if (!reserved) generation_ = generation_.next();
  if (newer_spoken_of_ >= generation_) generation_ = newer_spoken_of_.next();
  WARREN_CHECK(generation_.value < kMaxGeneration, "generations do not run out");
  may_be_older_ = without_frontier_ = false;
  newer_spoken_of_ = {};
  asked_for_newer_.clear();
  note_who_is_asked();
  count_beginning(maker, start);
  timeline_ = maker.timeline(timeline_, start);
  PlanMaker::Facts facts{generation_, timeline_, committed_timeline_, committed_, {}};
  leavers_.name_in(generation_);
  for (const auto& [life, server] : leavers_.servers()) facts.servers.push_back(&server.member);
  std::vector<wire::Setup> setups = start.setups;
  const bool goes_on = start.goes_on;
  const std::uint64_t from_disks = start.rounds_from_disks();
  wire::Plan next = maker.make(facts, std::move(start));
  retire_old_lives();
  const bool other_world = std::exchange(resized_, false);
  const wire::Plan before = std::exchange(plan_, std::move(next));
  seat_members(maker, other_world, now);
  leave_hosts(before);
  count_new_domains(before);
  look_at_futile(before);
  choose_detours(before, now, effects);
  choose_order(before, effects);
  if (from_disks != 0) count(Transition::planned_from_disks);
  note_survivors_setups();
  keep(std::move(setups));
  const std::size_t survivors = waiting_.survivors();
  prepare_telling(before, now);
  enter_running(now);
  count(Transition::planned);
  persist(effects);
  log_planned(survivors, goes_on, from_disks, effects);
  if (before.generation() != 0 && !other_world) tell_recovered(Generation(before.generation()), now, effects);
  noticed_.reset();
  announce(now, effects);
  for (const wire::Member& server : plan_.servers()) tell_server(Incarnation(server.incarnation()), effects);
  arm(now + interval_ms());
}

std::vector<PlanMaker::Worker> TrackerMachine::workers_with(const Ranks& ranks) const {
  std::vector<PlanMaker::Worker> workers;
  for (const auto& [worker, w] : waiting_) {
    const auto rank = ranks.find(worker);
    workers.push_back({&w.member, w.report.has_value(), w.held ? &*w.held : nullptr, &w.logged,
                       rank == ranks.end() ? std::nullopt : std::optional(rank->second)});
  }
  return workers;
}

void TrackerMachine::count_beginning(const PlanMaker& maker, const PlanStart& start) {
  if (waiting_.survivors() > 0) {
    count(Transition::planned_with_survivors);
  } else if (start.goes_on) {
    count(Transition::planned_from_memory);
  } else if (logged() && planned()) {
    count(Transition::planned_new_timeline);
    WARREN_CHECK(ballot_.empty(), "no vote outlives the life that gave it (I5)");
  }
  if (maker.empty() != 0) count(planned() ? Transition::planned_without : Transition::begun_short);
}

// Of the plan before.
void TrackerMachine::retire_old_lives() {
  for (const auto& [life, rank] : rank_by_incarnation_) {
    if (members_[rank].state != MemberState::kSurvivor) retire(life);
  }
  rank_by_incarnation_.clear();
  place_by_worker_.clear();
  free_places_.clear();
}

// Of plan_, as `maker` has seated them.
void TrackerMachine::seat_members(const PlanMaker& maker, bool other_world, TimeMs now) {
  const std::vector<Member> before = std::exchange(members_, std::vector<Member>(maker.world_size()));
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const wire::Member& planned_member = plan_.members(static_cast<int>(rank));
    Member& m = members_[rank];
    free_places_.insert(rank);
    m.heard = now;
    if (maker.at(rank) == nullptr) m.state = MemberState::kGone;
    if (is_vacant(planned_member)) continue;
    rank_by_incarnation_[Incarnation(planned_member.incarnation())] = rank;
    place_by_worker_[planned_member.worker_id()] = rank;
    if (maker.at(rank) == nullptr) continue;
    const Waiting& w = waiting_.at(planned_member.worker_id());
    m.attempt = w.attempt;
    m.has_loaded = has_loaded(w);
    if (!w.report) continue;
    m.plan_generation = Generation(w.report->plan_generation());
    if (w.report->has_given_up()) {
      const wire::GivenUp& given_up = w.report->given_up();
      m.given_up = GivenUp{Timeline(given_up.timeline()), Version(given_up.version())};
    }
    // A life counts on through its generations, in which it keeps its rank.
    if (other_world) continue;
    m.rounds_finished = before.at(rank).rounds_finished;
    m.bytes_moved = before.at(rank).bytes_moved;
    m.gpu = before.at(rank).gpu;
  }
  absent_ = maker.empty();
}

void TrackerMachine::note_survivors_setups() {
  survivors_setups_.clear();
  for (const auto& [worker, w] : waiting_) {
    if (!w.report) continue;
    for (const wire::Setup& s : w.report->setups()) {
      if (s.done()) survivors_setups_.emplace(s.group(), s.name());
    }
  }
}

// Survivors of `before` are told plan_ by its changes.
void TrackerMachine::prepare_telling(const wire::Plan& before, TimeMs now) {
  told_ = told_changes_ = followed_ = nullptr;
  plan_bytes_out_ = 0;
  plans_counted_from_ = now;
  unannounced_ = 0;
  if (waiting_.survivors() == 0) return;
  const wire::Plan changes = changes_between(before, plan_);
  told_base_ = Generation(changes.base_generation());
  if (changes.base_generation() != 0) {
    told_changes_ = std::make_shared<const std::string>(packed(changes).SerializeAsString());
  }
}

// Forgets all that belongs to the time before plan_.
void TrackerMachine::enter_running(TimeMs now) {
  interrupt_.Clear();
  clear_waiting();  // the reports have served
  end_calls();
  evidence_.clear();
  watch_.forget();
  forget_replaced(now);
  state_ = State::kRunning;
  since_ = now;
  next_repeat_ = now + interval_ms();
  next_log_ = now + kWaitLogIntervalMs;
}

void TrackerMachine::log_planned(std::size_t survivors, bool goes_on, std::uint64_t from_disks,
                                 Effects& effects) const {
  std::string text = "job " + options_.job + " runs with " + std::to_string(present());
  if (absent_ != 0) text += " of its " + std::to_string(members_.size());
  text += " workers in generation " + std::to_string(generation_.value);
  if (survivors != 0) text += ", " + std::to_string(survivors) + " of which go on where they were";
  if (goes_on && survivors == 0) text += "; none has survived, and their launchers have kept what they had logged";
  if (!goes_on && committed_) text += "; it goes on from " + program_version();
  if (from_disks != 0) text += "; " + std::to_string(from_disks) + " logged rounds are on their disks";
  log(Severity::kInfo, "planned", text, effects);
}

// Tells how the job continues, where the end of the generation before was told: a reader need not search for the ranks
// that are back.
void TrackerMachine::tell_recovered(Generation before, TimeMs now, Effects& effects) {
  std::string back;
  std::size_t fresh = 0;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (absent(rank) || !plan_.members(static_cast<int>(rank)).fresh()) continue;
    if (fresh++ < kNamesInText) back += (fresh == 1 ? "" : ", ") + name(rank);
  }
  if (fresh > kNamesInText) back += " and " + std::to_string(fresh - kNamesInText) + " more";
  std::string text = "job " + options_.job;
  text += absent_ == 0 ? " is whole again in generation " : " goes on in generation ";
  text += std::to_string(generation_.value);
  if (absent_ != 0)
    text += " without " + std::to_string(absent_) + " of its " + std::to_string(members_.size()) + " ranks";
  // A tracker that was started meanwhile has not seen it.
  if (noticed_) {
    text += ", " + std::to_string(now - *noticed_) + " ms after the tracker noticed the end of generation " +
            std::to_string(before.value);
  }
  text += fresh == 0 ? "; all of them are the processes of before" : "; with new processes: " + back;
  // A link may end this generation as the one before, in which nothing got done.
  if (!futile_.empty()) {
    recovery_to_tell_ = text;
    return;
  }
  recovery_to_tell_.reset();
  log_recovered(text, effects);
}

void TrackerMachine::log_recovered(const std::string& text, Effects& effects) const {
  log(Severity::kInfo, "recovered", text, effects, {{"generation", std::to_string(generation_.value)}});
}

}  // namespace warren
