// How epochs begin and end, and what time does to a job. What messages do is in tracker_machine.cc.
#include <algorithm>
#include <set>
#include <utility>

#include "recovery/codec.h"
#include "recovery/deadlock.h"
#include "recovery/frontier.h"
#include "recovery/held.h"
#include "recovery/limits.h"
#include "recovery/plan_changes.h"
#include "recovery/text.h"
#include "recovery/tracker_machine.h"
#include "recovery/tracker_transitions.h"
#include "recovery/waits.h"

namespace warren {

using tracker_effect::Drop;
using tracker_effect::Forget;
using tracker_effect::Log;
using tracker_effect::Persist;
using tracker_effect::Send;

namespace {
// A plan names every member and goes to every member, 7 GB for 10,000 of them: so much is under way at once. What is
// not heard to have arrived within an interval makes room all the same.
constexpr std::size_t kMostPlanBytesOut = std::size_t{2} << 20;
constexpr std::size_t kMostDoubts = 256;
// Of Envelope.plan: its number, and that bytes of a given length follow.
constexpr std::uint32_t kPlanTag = (wire::Envelope::kPlanFieldNumber << 3) | 2;
static_assert(kPlanTag >= 0x80 && kPlanTag < 0x4000, "two bytes");
// With a short round timeout a busy machine's ordinary delays count as sleep: excused, and not worth a line.
constexpr std::int64_t kSleepWorthTellingMs = 1000;

std::string seconds(std::int64_t ms) {
  return ms >= 10'000 || ms % 1000 == 0 ? std::to_string(ms / 1000) + " s" : std::to_string(ms) + " ms";
}

bool digit(char c) {
  return c >= '0' && c <= '9';
}

// Worker 9 before worker 10: numbers in names are compared by value.
bool natural_less(std::string_view a, std::string_view b) {
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (digit(a[0]) && digit(b[0])) {
      const auto take = [](std::string_view& text) {
        std::size_t n = 0;
        while (n < text.size() && digit(text[n])) ++n;
        std::string_view number = text.substr(0, n);
        text.remove_prefix(n);
        while (number.size() > 1 && number[0] == '0') number.remove_prefix(1);
        return number;
      };
      const std::string_view x = take(a), y = take(b);
      if (x.size() != y.size()) return x.size() < y.size();
      if (x != y) return x < y;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  if (a.empty() != b.empty()) return a.empty();
  return whole_a < whole_b;
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
  if (epoch_.value != 0) fields.emplace_back("epoch", std::to_string(epoch_.value));
  effects.emplace_back(Log{LogEvent{severity, std::move(name), std::move(text), std::move(fields)}});
}

void TrackerMachine::persist(Effects& effects) {
  wire::JobRecord record;
  record.set_format(kJobRecordFormat);
  record.set_job(options_.job);
  record.set_epoch(epoch_.value);
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
    if (interrupt_.epoch() != 0) *record.mutable_interrupt() = interrupt_;
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      if (members_[rank].silent) record.add_finalized(static_cast<std::uint32_t>(rank));
    }
    for (const std::string& domain : left_domains_) record.add_left_domains(domain);
    for (std::size_t i = 0; i < retired_order_.size(); ++i) {
      record.add_retired(retired_order_[(retired_next_ + i) % retired_order_.size()].value);
    }
  }
  const Status valid = validate(record);
  WARREN_CHECK(valid.ok(), valid.describe().c_str());
  persisted_epoch_ = epoch_;
  persisted_commit_ = committed_;
  effects.emplace_back(Persist{record.SerializeAsString()});
}

std::string tracker_effect::encode(const Send& send) {
  if (send.plan == nullptr) return warren::encode(send.envelope, Side::kTracker);
  // Fields may come in any order: the body is the last one.
  std::string bytes = send.envelope.SerializeAsString();
  bytes += static_cast<char>((kPlanTag & 0x7f) | 0x80);
  bytes += static_cast<char>(kPlanTag >> 7);
  for (std::size_t rest = send.plan->size(); true; rest >>= 7) {
    if (rest < 0x80) {
      bytes += static_cast<char>(rest);
      break;
    }
    bytes += static_cast<char>((rest & 0x7f) | 0x80);
  }
  return bytes += *send.plan;
}

wire::Envelope tracker_effect::envelope_of(const Send& send) {
  wire::Envelope e = send.envelope;
  if (send.plan != nullptr) WARREN_CHECK(e.mutable_plan()->ParseFromString(*send.plan), "we have serialized it");
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
  WARREN_CHECK(Epoch(plan_.epoch()) <= persisted_epoch_, "a plan is persisted before it is announced");
  WARREN_CHECK(acting_, "who decides has the promise of most");
  const Incarnation who(plan_.members(static_cast<int>(rank)).incarnation());
  Member& m = members_[rank];
  const bool has_base = told_changes_ != nullptr && m.plan_epoch == told_base_;
  const auto& plan = has_base ? told_changes_ : whole_plan();
  if (plan_bytes_out_ != 0 && plan_bytes_out_ + plan->size() > kMostPlanBytesOut) {
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
  if (told_ == nullptr) told_ = std::make_shared<const std::string>(plan_.SerializeAsString());
  return told_;
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
  WARREN_CHECK(Epoch(interrupt_.epoch()) <= persisted_epoch_, "an epoch is persisted before it is announced");
  WARREN_CHECK(acting_, "who decides has the promise of most");
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
  e.mutable_finished()->set_epoch(epoch_.value);
  effects.emplace_back(Send{who, std::move(e)});
  effects.emplace_back(Drop{who});
}

void TrackerMachine::maybe_plan(TimeMs now, Effects& effects) {
  if (settings_.world_size() == 0 || rebuilding_) return;
  if (lose_if_too_few_have_loaded(now, effects)) return;
  const bool whole = waiting_.size() >= settings_.world_size();
  if (!whole) {
    auto from = goes_on_from();
    if (from && waits_for_called(*from, now)) return;
    from = goes_on_from();  // who was passed over is not counted on
    if (!from) return;
    if (now < *from) return arm(*from);
  }
  if (waits_for_servers(now)) return;
  if (!planned() && logged() && adopt_from_disks(now, effects)) return;
  if (send_back_newcomers(effects)) return arm(now);
  std::map<std::string, Rank> ranks;
  Start start;
  if (resized_) {
    frontier_inherited_ = distrust_inherited_ = false;
    if (logged()) go_back_to_mirror(effects);
  } else if (planned()) {
    for (const auto& [worker, place] : place_by_worker_) {
      if (waiting_.contains(worker)) ranks[worker] = Rank(static_cast<std::int32_t>(place));
    }
    std::vector<std::size_t> free;
    for (const std::size_t place : free_places_) {
      if (!takers_.contains(place)) free.push_back(place);
    }
    if (whole && !free.empty() && now < since_ + timeout_ms()) return arm(since_ + timeout_ms());
    // Now that each has said what its host holds. Who belongs here may still come.
    if (!takers_.empty() && !spares_in_reach(hosts_there())) return send_back_takers(effects);
    const bool survived =
        std::any_of(waiting_.begin(), waiting_.end(), [](const auto& w) { return w.second.report.has_value(); });
    if (may_be_older_ && may_learn()) {
      if (const auto until = waits_for_newer_plan(survived, now)) return arm(*until);
      if (learn_from_disks(now, effects)) return;
    }
    if (gives_way_to_new_lives(now, effects)) return;
    const bool inherits = !std::exchange(distrust_inherited_, false);
    // (Without the plan's frontier nobody could say which rounds disks alone hold, and theirs would be others' names.)
    start.goes_on = survived || (inherits && !without_frontier_ && interrupt_.resume() && memory_survives());
    auto setups = next_setups(start.goes_on);
    if (!setups.ok()) {
      count(Transition::frontier_torn);
      return roll_back(setups.status().code(), setups.status().describe(), now, effects);
    }
    if (start.goes_on) {
      auto frontier = next_frontier(inherits);
      if (!frontier.ok()) {
        count(Transition::frontier_torn);
        return roll_back(frontier.status().code(), frontier.status().describe(), now, effects);
      }
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
    std::vector<const Waiting*> by_arrival;
    for (const auto& [worker, w] : waiting_) {
      if (w.candidate && !w.takes) by_arrival.push_back(&w);
    }
    std::sort(by_arrival.begin(), by_arrival.end(),
              [](const Waiting* a, const Waiting* b) { return a->arrival < b->arrival; });
    WARREN_CHECK(whole ? by_arrival.size() == free.size() : by_arrival.size() <= free.size(),
                 "nobody waits beyond the free places");
    for (std::size_t i = 0; i < by_arrival.size(); ++i) {
      count(Transition::candidate_placed);
      const std::string& worker = by_arrival[i]->member.worker_id();
      log(Severity::kInfo, "place_taken", "worker " + worker + " takes the place of " + name(free[i]), effects,
          {{"worker", worker}, {"rank", std::to_string(free[i])}});
      ranks[worker] = Rank(static_cast<std::int32_t>(free[i]));
    }
    for (const auto& [place, worker] : takers_) {
      count(Transition::spare_placed);
      ++spares_used_;
      log(Severity::kInfo, "place_taken", "spare " + worker + " takes the place of " + name(place), effects,
          {{"worker", worker}, {"rank", std::to_string(place)}});
      ranks[worker] = Rank(static_cast<std::int32_t>(place));
    }
    std::vector<bool> there(members_.size(), false);
    for (const auto& [worker, rank] : ranks) there[static_cast<std::size_t>(rank.value)] = true;
    bool others = false;
    for (std::size_t rank = 0; rank < there.size(); ++rank) others = others || there[rank] == absent(rank);
    // What is computed again after it had got the name of an older timeline gets another one.
    const bool forgets = start.goes_on && drop_forgotten(start);
    if (start.goes_on && (others || forgets)) end_timeline(start);
    if (start.kept.size() > limits::kMaxKept || absences_of(start, ranks.size()) > limits::kMaxAbsences) {
      count(Transition::too_many_absences);
      if (start.goes_on) {
        return roll_back(Code::kUnavailable,
                         "the workers of job " + options_.job + " have changed too often since " + program_version() +
                             " was committed for a plan to say who has taken part in which rounds; take checkpoints "
                             "more often",
                         now, effects);
      }
      start.frontier.clear();
      start.kept.clear();
    }
  }
  make_plan(ranks, std::move(start), now, effects);
}

bool TrackerMachine::memory_survives() const {
  std::set<std::string> domains, lost;
  for (const wire::Member& m : plan_.members()) {
    if (m.absent()) continue;
    domains.insert(m.domain_id());
    // Only the worker's own new life has looked after its last one had ended.
    const auto successor = waiting_.find(m.worker_id());
    const bool kept =
        successor != waiting_.end() &&
        std::ranges::find(successor->second.logged.lives(), m.incarnation()) != successor->second.logged.lives().end();
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

// What was logged before all lives ended keeps its names; what is computed from here on gets those of a new timeline,
// so that nothing of what lies behind the first gap can serve.
TrackerMachine::Start TrackerMachine::start_from_disks() const {
  HeldReport disks;
  for (const auto& [worker, w] : waiting_) {
    if (w.held) disks = unite(disks, from_wire(*w.held));
  }
  std::vector<const wire::Kept*> before;
  for (const wire::Kept& k : plan_.kept()) before.push_back(&k);
  Start start;
  start.kept = keep_rounds(disks, before, timeline_, committed_);
  for (const wire::Kept& k : start.kept) {
    wire::Position* last = start.frontier.empty() ? nullptr : &start.frontier.back();
    if (last == nullptr || last->group() != k.group() || last->version() != k.version()) {
      last = &start.frontier.emplace_back();
      last->set_group(k.group());
      last->set_version(k.version());
    }
    last->set_rounds(k.rounds());
  }
  if (start.frontier.size() > limits::kMaxPositions) return {};
  return start;
}

void TrackerMachine::make_plan(const std::map<std::string, Rank>& ranks, Start start, TimeMs now, Effects& effects) {
  set_apart(effects);
  std::vector<const Waiting*> workers;
  for (const auto& [id, w] : waiting_) workers.push_back(&w);
  std::sort(workers.begin(), workers.end(), [](const Waiting* a, const Waiting* b) {
    return natural_less(a->member.worker_id(), b->member.worker_id());
  });
  std::vector<PlannerInput> inputs;
  for (const Waiting* w : workers) {
    const auto kept = ranks.find(w->member.worker_id());
    inputs.push_back({w->member.worker_id(), w->member.host_id(), w->member.domain_id(),
                      kept == ranks.end() ? std::nullopt : std::optional(kept->second)});
  }
  // Which places stay empty: of a job that begins, the last ones.
  std::set<std::size_t> empty;
  if (workers.size() < settings_.world_size()) {
    for (std::size_t rank = planned() ? 0 : workers.size(); rank < settings_.world_size(); ++rank) empty.insert(rank);
    for (const auto& [worker, rank] : ranks) empty.erase(static_cast<std::size_t>(rank.value));
  }
  for (const std::size_t rank : empty) {
    const wire::Member& m = planned() ? plan_.members(static_cast<int>(rank)) : wire::Member::default_instance();
    inputs.push_back({m.worker_id(), m.host_id(), m.domain_id(), Rank(static_cast<std::int32_t>(rank))});
  }
  const PlannerOutput out = options_.planner(inputs);
  const std::size_t n = inputs.size();
  WARREN_CHECK(out.rank.size() == n && out.local_rank.size() == n && out.local_size.size() == n,
               "the planner plans for everybody");

  std::vector<const Waiting*> by_rank(n, nullptr);
  for (std::size_t i = 0; i < n; ++i) {
    const std::int32_t rank = out.rank[i].value;
    WARREN_CHECK(rank >= 0 && static_cast<std::size_t>(rank) < n &&
                     by_rank[static_cast<std::size_t>(rank)] == nullptr &&
                     (i >= workers.size() || !empty.contains(static_cast<std::size_t>(rank))),
                 "ranks are a permutation");
    WARREN_CHECK(!inputs[i].rank || *inputs[i].rank == out.rank[i], "a worker keeps its rank over its lives");
    if (i < workers.size()) by_rank[static_cast<std::size_t>(rank)] = workers[i];
  }
  if (!planned()) {
    log(Severity::kInfo, "limits", "job " + options_.job + ": " + describe(straggler_limits(timeout_ms())), effects);
  }
  drop_unaware_servers(effects);
  const bool reserved = planned() && epoch_.value > plan_.epoch();
  if (!reserved) epoch_ = epoch_.next();
  if (newer_spoken_of_ >= epoch_) epoch_ = newer_spoken_of_.next();
  WARREN_CHECK(epoch_.value < kMaxEpoch, "epochs do not run out");
  const auto survivors = static_cast<std::size_t>(
      std::count_if(workers.begin(), workers.end(), [](const Waiting* w) { return w->report.has_value(); }));
  may_be_older_ = without_frontier_ = false;
  newer_spoken_of_ = {};
  asked_for_newer_.clear();
  note_who_is_asked();
  if (start.ends_timeline) timeline_ = timeline_.next();
  if (survivors > 0) {
    count(Transition::planned_with_survivors);
  } else if (start.goes_on) {
    count(Transition::planned_from_memory);
  } else if (logged() && planned()) {
    count(Transition::planned_new_timeline);
    WARREN_CHECK(votes_.empty() && states_.empty(), "no vote outlives the life that gave it (I5)");
    // Of an older journal than the job's members had: what they have left must not pass for what comes.
    for (const Waiting* w : workers) {
      if (w->logged.run() == plan_.run()) timeline_ = std::max(timeline_, Timeline(w->logged.timeline()));
      if (!w->held) continue;
      for (const wire::HeldRounds& r : w->held->rounds()) {
        if (r.timeline() < UINT32_MAX / 2) timeline_ = std::max(timeline_, Timeline(r.timeline()));
      }
    }
    timeline_ = timeline_.next();
  } else if (logged()) {
    // A job that begins anew, because its journal was lost and too few of its members have told what they know: what
    // launchers have kept of it must not pass for this one's.
    for (const Waiting* w : workers) {
      if (w->logged.positions_size() == 0 && w->logged.setups_size() == 0) continue;
      timeline_ = std::max(timeline_, Timeline(w->logged.timeline()).next());
    }
  }
  for (const auto& [life, rank] : rank_by_incarnation_) {
    if (members_[rank].state != MemberState::kSurvivor) retire(life);
  }
  rank_by_incarnation_.clear();
  place_by_worker_.clear();
  free_places_.clear();
  const bool other_world = std::exchange(resized_, false);
  const std::vector<Member> members_before = std::exchange(members_, std::vector<Member>(n));
  // The first plan's first life names the run.
  const std::uint64_t run = planned() ? plan_.run() : by_rank.front()->member.incarnation();
  if (!empty.empty()) count(planned() ? Transition::planned_without : Transition::begun_short);
  const wire::Plan before = std::exchange(plan_, wire::Plan());
  plan_.set_run(run);
  plan_.set_epoch(epoch_.value);
  *plan_.mutable_settings() = settings_;
  for (std::size_t rank = 0; rank < n; ++rank) {
    const Waiting* const w = by_rank[rank];
    wire::Member& m = *plan_.add_members();
    if (w != nullptr) {
      m = w->member;
    } else if (before.epoch() != 0) {
      m = before.members(static_cast<int>(rank));
    }
    m.set_rank(static_cast<std::uint32_t>(rank));
    m.set_absent(w == nullptr);
    free_places_.insert(rank);
    members_[rank].heard = now;
    if (w == nullptr) members_[rank].state = MemberState::kGone;
    if (is_vacant(m)) continue;
    m.set_local_rank(out.local_rank[rank]);
    m.set_local_size(out.local_size[rank]);
    m.set_fresh(w != nullptr && !w->report);
    if (m.fresh()) m.set_since(epoch_.value);
    // Of a world of another size other ranks are told.
    if (!other_world && before.epoch() != 0) m.set_lives(before.members(static_cast<int>(rank)).lives());
    if (m.fresh()) m.set_lives(m.lives() + 1);
    if (w != nullptr) members_[rank].attempt = w->attempt;
    members_[rank].has_loaded = w != nullptr && has_loaded(*w);
    if (w != nullptr && w->report) {
      members_[rank].plan_epoch = Epoch(w->report->plan_epoch());
      if (w->report->has_given_up()) {
        const wire::GivenUp& given_up = w->report->given_up();
        members_[rank].given_up = GivenUp{Timeline(given_up.timeline()), Version(given_up.version())};
      }
      // A life counts on through its epochs, in which it keeps its rank.
      if (!other_world) {
        members_[rank].rounds_finished = members_before.at(rank).rounds_finished;
        members_[rank].bytes_moved = members_before.at(rank).bytes_moved;
        members_[rank].gpu = members_before.at(rank).gpu;
      }
    }
    rank_by_incarnation_[Incarnation(m.incarnation())] = rank;
    place_by_worker_[m.worker_id()] = rank;
  }
  absent_ = empty.size();
  for (auto& [life, server] : servers_) {
    if (server.member.since() == 0) server.member.set_since(epoch_.value);
    *plan_.add_servers() = server.member;
  }
  leave_hosts(before);
  count_new_domains(before);
  plan_.set_timeline(timeline_.value);
  std::uint64_t kept_rounds = 0;
  for (wire::Position& p : start.frontier) {
    if (!start.goes_on) kept_rounds += p.rounds();
    p.clear_total_bytes();
    p.clear_empty();
    if (p.rounds() != 0 || p.final_size() != 0 || p.closed()) *plan_.add_frontier() = std::move(p);
  }
  for (wire::Kept& k : start.kept) *plan_.add_kept() = std::move(k);
  plan_.mutable_setups()->Add(start.setups.begin(), start.setups.end());
  look_at_futile(before);
  name_absences(before);
  choose_detours(before, now, effects);
  choose_order(before, effects);
  if (kept_rounds != 0) count(Transition::planned_from_disks);
  survivors_setups_.clear();
  for (const auto& [worker, w] : waiting_) {
    if (!w.report) continue;
    for (const wire::Setup& s : w.report->setups()) {
      if (s.done()) survivors_setups_.emplace(s.group(), s.name());
    }
  }
  keep(std::move(start.setups));
  plan_.set_committed(committed_.has_value());
  plan_.set_committed_version(committed_.value_or(Version()).value);
  plan_.set_committed_timeline(committed_timeline_.value);
  told_ = told_changes_ = nullptr;
  plan_bytes_out_ = 0;
  plans_counted_from_ = now;
  if (survivors > 0) {
    const wire::Plan changes = changes_between(before, plan_);
    told_base_ = Epoch(changes.base_epoch());
    if (changes.base_epoch() != 0) told_changes_ = std::make_shared<const std::string>(changes.SerializeAsString());
  }
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
  unannounced_ = 0;
  count(Transition::planned);
  persist(effects);
  log(Severity::kInfo, "planned",
      "job " + options_.job + " runs with " + std::to_string(workers.size()) +
          (empty.empty() ? "" : " of its " + std::to_string(n)) + " workers in epoch " + std::to_string(epoch_.value) +
          (survivors == 0 ? "" : ", " + std::to_string(survivors) + " of which go on where they were") +
          (start.goes_on && survivors == 0 ? "; none has survived, and their launchers have kept what they had logged"
                                           : "") +
          (start.goes_on || !committed_ ? "" : "; it goes on from " + program_version()) +
          (kept_rounds == 0 ? "" : "; " + std::to_string(kept_rounds) + " logged rounds are on their disks"),
      effects);
  if (before.epoch() != 0 && !other_world) tell_recovered(Epoch(before.epoch()), now, effects);
  noticed_.reset();
  announce(now, effects);
  for (const wire::Member& server : plan_.servers()) tell_server(Incarnation(server.incarnation()), effects);
  arm(now + interval_ms());
}

// What was said when the epoch before ended has its other half: who has followed that need not search for who is back.
void TrackerMachine::tell_recovered(Epoch before, TimeMs now, Effects& effects) {
  std::string back;
  std::size_t fresh = 0;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (absent(rank) || !plan_.members(static_cast<int>(rank)).fresh()) continue;
    if (fresh++ < kNamesInText) back += (fresh == 1 ? "" : ", ") + name(rank);
  }
  if (fresh > kNamesInText) back += " and " + std::to_string(fresh - kNamesInText) + " more";
  std::string text = "job " + options_.job;
  text += absent_ == 0 ? " is whole again in epoch " : " goes on in epoch ";
  text += std::to_string(epoch_.value);
  if (absent_ != 0)
    text += " without " + std::to_string(absent_) + " of its " + std::to_string(members_.size()) + " ranks";
  // A tracker that was started meanwhile has not seen it.
  if (noticed_) {
    text += ", " + std::to_string(now - *noticed_) + " ms after what ended epoch " + std::to_string(before.value) +
            " was noticed";
  }
  text += fresh == 0 ? "; all of them are the processes of before" : "; with new processes: " + back;
  // A link may end this epoch as the one before, in which nothing got done.
  if (!futile_.empty()) {
    recovery_to_tell_ = text;
    return;
  }
  recovery_to_tell_.reset();
  log_recovered(text, effects);
}

void TrackerMachine::log_recovered(const std::string& text, Effects& effects) const {
  log(Severity::kInfo, "recovered", text, effects, {{"epoch", std::to_string(epoch_.value)}});
}

void TrackerMachine::announce(TimeMs now, Effects& effects) {
  while (unannounced_ < members_.size() && (absent(unannounced_) || send_plan(unannounced_, now, effects))) {
    ++unannounced_;
  }
}

void TrackerMachine::interrupt(Code code, const std::string& what, const std::vector<std::uint32_t>& lost, TimeMs now,
                               Effects& effects, const wire::About& about) {
  if (logged() && (code == Code::kPeerLost || code == Code::kCorrupt)) {
    return end_epoch(code, what, lost, Ending::kResumes, now, effects, about);
  }
  if (logged()) return roll_back(code, what, now, effects, about);
  end_epoch(code, what, lost, Ending::kRollsBack, now, effects, about);
}

void TrackerMachine::roll_back(Code code, const std::string& what, TimeMs now, Effects& effects,
                               const wire::About& about) {
  count(Transition::rolled_back);
  doubted_.clear();
  forget_what_leavers_say();
  if (code == Code::kDesync) forget_uncommitted_setups();
  end_epoch(code, what, {}, Ending::kRollsBack, now, effects, about);
}

void TrackerMachine::end_epoch(Code code, const std::string& what, const std::vector<std::uint32_t>& lost,
                               Ending ending, TimeMs now, Effects& effects, wire::About about) {
  WARREN_CHECK(planned() && state_ != State::kFinished, "only a plan is interrupted");
  count(Transition::interrupted);
  ++interrupts_;
  epoch_ = epoch_.next();
  WARREN_CHECK(epoch_.value < kMaxEpoch, "epochs do not run out");
  const bool resume = ending == Ending::kResumes;
  std::string next;
  if (ending == Ending::kEndsJob && code == Code::kExhausted) {
    next =
        "; take checkpoints, or give the logs more room (log_memory_bytes, data_dir), and start the job anew: under "
        "another name, or this one once it is free, by `warren forget --job=" +
        options_.job + "`";
  } else if (ending == Ending::kEndsJob) {
    next =
        "; if what the workers had on disk still exists, start all of them again with it (data_dir); otherwise start "
        "the job anew: under another name, or this one once it is free, by `warren forget --job=" +
        options_.job + "`";
  } else if (resume) {
    next = lost.empty() ? "; the ranks stop, connect again and go on"
           : shrinks()  ? "; the other ranks wait for it for " +
                             seconds(static_cast<std::int64_t>(settings_.grace_ms())) + " at most, and go on"
                       : "; the other ranks wait until it is started again, and go on";
  } else if (code == Code::kDesync) {
    next = "; make all ranks call the same things in the same order";
    next += ", then start the job again";
    if (logged()) next += ": it goes on from " + program_version();
  } else if (logged()) {
    next = "; all processes start again from " + program_version();
  } else if (lost.empty()) {
    next = "; all ranks have to join again";
  } else {
    next = "; restart it and all ranks join again, or start the job again";
  }
  // What to do comes last and must survive a long reason.
  const std::string reason = wire_text(what).substr(0, limits::kMaxReasonBytes - next.size());
  interrupt_.Clear();
  interrupt_.set_epoch(epoch_.value);
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
  drop_all_votes();
  unannounced_ = members_.size();
  persist(effects);
  if (ending == Ending::kEndsJob) {
    log(Severity::kError, "job_lost", "job " + options_.job + " cannot go on: " + interrupt_.reason(), effects);
  } else {
    log(code == Code::kDesync ? Severity::kError : Severity::kWarning, "interrupted",
        "epoch " + std::to_string(plan_.epoch()) + " of job " + options_.job + " is over: " + interrupt_.reason(),
        effects);
  }
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
  arm(next_repeat_);
  maybe_gather(now, effects);
}

void TrackerMachine::interrupt_by_evidence(TimeMs now, Effects& effects) {
  std::vector<std::size_t> named(members_.size(), 0);
  for (const Evidence& e : evidence_) note_futile(e);
  if (end_for_unusable(now, effects)) return;
  for (const Evidence& e : evidence_) {
    // Where a relay has died, both ends lose the link.
    const RankPair pair = pair_of(static_cast<std::uint32_t>(e.reporter), static_cast<std::uint32_t>(e.peer));
    if (takes_detour(pair)) {
      broken_detours_.insert(pair);
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
  const std::string epoch = "epoch " + std::to_string(plan_.epoch()) + " of job " + options_.job;
  if (lost()) {
    return log(Severity::kInfo, "gathering", "all members of " + epoch + " have stopped; it cannot go on", effects);
  }
  log(Severity::kInfo, "gathering",
      !logged() ? "no member of " + epoch + " runs any more; waiting for all workers to join again"
                : "all members of " + epoch + " have stopped; " + std::to_string(waiting_.size()) + " of " +
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
  spares_by_incarnation_.clear();
  calls_.clear();
  dismiss_servers(Code::kFinished, "the job is finished", effects);
  members_.clear();
  absent_ = 0;
  rank_by_incarnation_.clear();
  place_by_worker_.clear();
  free_places_.clear();
  evidence_.clear();
  leaves_.reset();
  drop_all_votes();
  plan_.Clear();
  told_ = told_changes_ = nullptr;
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
  for (auto& [worker, w] : waiting_) w.heard = std::max(w.heard, excused);
  for (auto& [worker, spare] : spares_) spare.heard = std::max(spare.heard, excused);
  for (auto& [life, server] : servers_) server.heard = std::max(server.heard, excused);
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

// What is found is said, and then what is done about it (tracker_replace.cc, tracker_rewire.cc).
void TrackerMachine::look_for_stragglers(TimeMs now, Effects& effects) {
  // Who has lost a link waits for what will not come.
  // Nor is a program slow whose links never come up.
  const bool futile = std::ranges::any_of(futile_, [](const auto& f) { return is_unusable(f.second); });
  if (!evidence_.empty() || futile || now < judge_from_) return;
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
              ": it is fenced, and it is probably what has failed",
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
  std::vector<std::string> silent;
  for (const auto& [worker, w] : waiting_) {
    if (now >= w.heard + timeout_ms()) silent.push_back(worker);
  }
  for (const std::string& worker : silent) {
    count(Transition::waiting_lost);
    const Waiting& w = waiting_.at(worker);
    const Incarnation life(w.member.incarnation());
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
