// What others see of a job, and the consistency of what the machine holds.
#include <algorithm>
#include <iterator>

#include "recovery/codec.h"
#include "recovery/limits.h"
#include "recovery/tracker_machine.h"

namespace warren {

namespace {
constexpr std::size_t kMaxRetired = limits::retired_lives(limits::kMaxWorldSize);
}  // namespace

void TrackerMachine::note_commit(TimeMs now) {
  if (committed_ == noted_commit_) return;
  noted_commit_ = committed_;
  last_commit_ = now;
}

std::vector<std::string> TrackerMachine::disk_troubles() const {
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> ranks;  // by host and text
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const std::string& trouble = members_[rank].disk_trouble;
    if (members_[rank].state == MemberState::kGone || trouble.empty()) continue;
    ranks[{plan_.members(static_cast<int>(rank)).host_id(), trouble}].push_back(rank);
  }
  std::vector<std::string> lines;
  for (const auto& [disk, whose] : ranks) {
    if (lines.size() == kMaxMissingNames) break;
    std::string names;
    for (std::size_t i = 0; i < std::min(whose.size(), kMaxMissingNames); ++i) {
      names += (i == 0 ? " " : ", ") + std::to_string(whose[i]);
    }
    if (whose.size() > kMaxMissingNames) names += " and others";
    lines.push_back("the disk of rank" + std::string(whose.size() > 1 ? "s" : "") + names + " on host " + disk.first +
                    " takes no results: " + disk.second);
  }
  return lines;
}

TrackerMachine::View TrackerMachine::view(TimeMs now) const {
  View v;
  v.state = state_;
  v.lost = lost();
  v.epoch = epoch_;
  v.world_size = settings_.world_size();
  v.replicas = settings_.replicas();
  v.min_workers = settings_.min_workers();
  v.timeline = timeline_;
  v.committed = committed_;
  if (const auto lacks = lack(); lacks && !lost()) v.unprotected = lack_text(*lacks) + "; " + loss_would();
  v.frontier.assign(plan_.frontier().begin(), plan_.frontier().end());
  v.detours.assign(plan_.detours().begin(), plan_.detours().end());
  v.orders.assign(plan_.orders().begin(), plan_.orders().end());
  v.votes = votes_.size();
  if (state_ == State::kGathering && !lost()) v.waiting_for = missing_workers();
  for (std::size_t i = 0; i < members_.size() && v.waiting_for.size() < kMaxMissingNames; ++i) {
    if (members_[i].state != MemberState::kStopping) continue;
    v.waiting_for.push_back(plan_.members(static_cast<int>(i)).worker_id());
  }
  v.last_interrupt = last_interrupt_;
  v.interrupts = interrupts_;
  v.joins = joins_;
  v.refusals = refusals_;
  v.preemptions = preemptions_;
  v.spares_used = spares_used_;
  v.gpu = gpu_;
  v.last_round_ms_ago = now - last_round_;
  v.last_commit_ms_ago = now - last_commit_;
  v.now = now;
  v.limits = straggler_limits(timeout_ms());
  v.verdicts = foresee(now);
  v.verdicts_ever = verdicts_ever_;
  if (state_ == State::kRunning) v.waits = explain_waits(testimonies(now), v.limits);
  std::ranges::move(disk_troubles(), std::back_inserter(v.waits));
  if (state_ == State::kGathering && out_of_reach_) {
    v.waits.push_back(
        "spares are not used: without the machines of those who are missing, what was logged and committed "
        "might be out of reach");
  }
  for (std::size_t i = 0; state_ == State::kRunning && absent_ != 0 && i < members_.size(); ++i) {
    if (!absent(i) || vacant(i)) continue;
    if (v.waits.size() >= kMaxMissingNames) break;
    const auto kept_out = excluded_.find(plan_.members(static_cast<int>(i)).worker_id());
    const bool excluded = kept_out != excluded_.end() && now < kept_out->second;
    v.waits.push_back("the job goes on without " + name(i) +
                      (excluded
                           ? ", which held up the others; its worker comes in with the first version committed in " +
                                 seconds_text(kept_out->second - now) + " or later"
                           : "; a worker that waits for its place comes in once the next version is committed"));
  }
  if (const std::size_t vacancies = count_vacant(); state_ == State::kRunning && vacancies != 0) {
    v.waits.push_back(
        std::to_string(vacancies) + " of the job's " + std::to_string(members_.size()) +
        " places nobody has had yet: workers that wait for one come in once the next version is committed");
  }
  if (const std::string beginning = describe_beginning(now); !beginning.empty() && !waiting_.empty()) {
    v.waits.push_back("the job has " + std::to_string(waiting_.size()) + " of its " +
                      std::to_string(settings_.world_size()) + " workers; " + beginning);
  } else if (!planned() && !waiting_.empty() && waiting_.size() < settings_.world_size()) {
    v.waits.push_back("the job waits for " + std::to_string(settings_.world_size() - waiting_.size()) +
                      " more of its " + std::to_string(settings_.world_size()) +
                      " workers to be started; those that are there give up after their join timeouts");
  }
  for (const wire::Detour& d : plan_.detours()) {
    if (state_ != State::kRunning || v.waits.size() >= kMaxMissingNames) break;
    v.waits.push_back("the bytes between " + name(d.a()) + " and " + name(d.b()) + " go by way of " +
                      std::to_string(d.relays_size()) + " other ranks: their link was slow");
  }
  for (const auto& [life, server] : servers_) {
    v.waits.push_back("worker " + server.member.worker_id() + " has left, and serves what host " +
                      server.member.host_id() + " has logged: until a version newer than that is committed, for " +
                      seconds_text(server.until - now) + " at most");
  }
  const auto from = goes_on_from();
  for (const std::string& worker : v.waiting_for) {
    if (from && state_ == State::kGathering) {
      v.waits.push_back("the job waits for worker " + worker + ", and goes on without it in " +
                        std::to_string(std::max<std::int64_t>(0, *from - now)) + " ms");
      continue;
    }
    v.waits.push_back(state_ == State::kGathering ? "the job waits for worker " + worker + " to be started again"
                                                  : "the job waits for worker " + worker + " to answer the interrupt");
  }
  const auto add_waiting = [&](Rank rank, const Waiting& w) {
    MemberView& m = v.members.emplace_back();
    m.rank = rank;
    m.worker_id = w.member.worker_id();
    m.host_id = w.member.host_id();
    m.incarnation = Incarnation(w.member.incarnation());
    m.alive = true;
    m.last_heard_ms_ago = now - w.heard;
    m.attempt = w.attempt;
    m.waits = true;
    m.candidate = w.candidate;
    const bool had = rank != kNoRank && has_places();
    const auto index = static_cast<std::size_t>(rank.value);
    if (had && w.report) {
      // In this very life, until its first heartbeat of the next epoch says more.
      m.rounds_finished = members_[index].rounds_finished;
      m.bytes_moved = members_[index].bytes_moved;
      m.gpu = members_[index].gpu;
      m.log = members_[index].log;
      m.disk_trouble = members_[index].disk_trouble;
    }
    m.lives = (had ? plan_.members(rank.value).lives() : 0) + (w.report ? 0 : 1);
    // Who has joined says so again more seldom than others beat.
    m.suspect = w.report && now - w.heard >= suspect_after_ms(v.limits, members_[index].longest_gap_ms);
  };
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const Rank rank(static_cast<std::int32_t>(i));
    const wire::Member& planned_member = plan_.members(static_cast<int>(i));
    if (const auto w = waiting_.find(planned_member.worker_id()); w != waiting_.end()) {
      add_waiting(rank, w->second);
      continue;
    }
    const Member& m = members_[i];
    std::optional<wire::Draining> draining = m.draining;
    if (draining) {
      const auto since_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(0, now - m.told));
      draining->set_left_ms(draining->left_ms() - std::min(draining->left_ms(), since_ms));
    }
    const bool alive = m.state != MemberState::kGone && !m.silent;
    v.members.push_back({rank,
                         planned_member.worker_id(),
                         planned_member.host_id(),
                         Incarnation(alive ? planned_member.incarnation() : 0),
                         alive,
                         now - m.heard,
                         m.rounds_finished,
                         m.bytes_moved,
                         m.gpu,
                         m.attempt,
                         m.rounds,
                         m.activity,
                         draining,
                         draining && leaves_ && !leaves_->spare.empty() && rank_of(leaves_->life) == i,
                         draining && leaves_for_good(i),
                         planned_member.absent(),
                         alive && now - m.heard >= suspect_after_ms(v.limits, m.longest_gap_ms),
                         planned_member.lives(),
                         false,
                         false,
                         m.log,
                         m.disk_trouble});
  }
  for (const auto& [worker, w] : waiting_) {
    if (!has_places() || w.candidate) add_waiting(kNoRank, w);
  }
  for (const MemberView& m : v.members) v.gpu.readers += m.alive ? m.gpu.readers : 0;
  for (const auto& [worker, spare] : spares_) {
    v.spares.push_back({worker, spare.host_id, spare.life, now - spare.heard,
                        spare.call ? Rank(static_cast<std::int32_t>(spare.call->place)) : kNoRank,
                        spare.followed.value != 0 ? std::optional(spare.followed) : std::nullopt});
  }
  return v;
}

void TrackerMachine::check_invariants() const {
  const bool has_plan = state_ != State::kFinished && has_places();
  WARREN_CHECK(epoch_ == persisted_epoch_, "no epoch exists that the journal does not hold");
  WARREN_CHECK(Epoch(plan_.epoch()) <= epoch_ && Epoch(interrupt_.epoch()) <= epoch_, "epochs only rise (I6)");
  WARREN_CHECK(members_.size() == (has_plan ? settings_.world_size() : 0), "a plan has every member");
  const std::size_t had = members_.size() - (members_.empty() ? 0 : count_vacant());
  WARREN_CHECK(rank_by_incarnation_.size() == had, "a rank that anybody has had has one life (I6)");
  WARREN_CHECK(!leaves_ || (settings_.replace_after_ms() != 0 && rank_of(leaves_->life)),
               "who is asked to leave is a life of the plan (I6)");
  WARREN_CHECK(place_by_worker_.size() == had, "a worker has one place");
  WARREN_CHECK(waiting_.size() == waiting_by_incarnation_.size(), "a worker waits in one life");
  WARREN_CHECK(waiting_.size() <= settings_.world_size(), "nobody waits beyond the world's size (I8)");
  WARREN_CHECK(spares_.size() <= limits::kMaxSpares && spares_.size() == spares_by_incarnation_.size(),
               "spares are bounded, and wait in one life (I8)");
  std::size_t calls = 0, takers = 0;
  for (const auto& [worker, spare] : spares_) {
    WARREN_CHECK(
        !waiting_.contains(worker) && !retired_.contains(spare.life) && spares_by_incarnation_.at(spare.life) == worker,
        "a spare waits for a place, not for the next plan");
    if (!spare.call) continue;
    ++calls;
    const auto called = calls_.find(spare.call->place);
    WARREN_CHECK(called != calls_.end() && called->second == worker && state_ == State::kGathering &&
                     free_places_.contains(spare.call->place) && !takers_.contains(spare.call->place),
                 "who is called is called for a free place, once all have stopped (I1)");
  }
  for (const auto& [worker, w] : waiting_) {
    if (!w.takes) continue;
    ++takers;
    const auto taker = takers_.find(*w.takes);
    WARREN_CHECK(taker != takers_.end() && taker->second == worker && w.candidate && w.called.value != 0 &&
                     free_places_.contains(*w.takes),
                 "a place is taken by one spare, and by none whose worker is there");
  }
  WARREN_CHECK(calls == calls_.size() && takers == takers_.size(), "indexes agree");
  for (const auto& [life, worker] : waiting_by_incarnation_) {
    const auto found = waiting_.find(worker);
    WARREN_CHECK(found != waiting_.end() && found->second.member.incarnation() == life.value, "indexes agree");
    const auto member = rank_by_incarnation_.find(life);
    const bool survivor = member != rank_by_incarnation_.end();
    WARREN_CHECK(survivor == found->second.report.has_value(), "no life joins twice (I6)");
    WARREN_CHECK(!survivor || (members_[member->second].state == MemberState::kSurvivor &&
                               place_of(worker) == member->second && interrupt_.resume()),
                 "who survives keeps its rank");
    WARREN_CHECK(!retired_.contains(life), "no life comes back (I6)");
    WARREN_CHECK(found->second.candidate == (has_places() && !place_by_worker_.contains(worker)),
                 "candidates have no place");
  }
  for (const auto& [worker, rank] : place_by_worker_) {
    WARREN_CHECK(free_places_.contains(rank) != waiting_.contains(worker), "a place is free until its worker is back");
  }
  for (const auto& [life, rank] : rank_by_incarnation_) {
    WARREN_CHECK(plan_.members(static_cast<int>(rank)).incarnation() == life.value, "indexes agree");
  }
  WARREN_CHECK(servers_.empty() || (!shrinks() && servers_.size() < settings_.replicas()),
               "fewer serve than there are copies");
  for (const auto& [life, server] : servers_) {
    WARREN_CHECK(!waiting_by_incarnation_.contains(life) && !spares_by_incarnation_.contains(life) &&
                     server.member.incarnation() == life.value,
                 "who serves has left for good (I6)");
    const auto rank = rank_of(life);
    WARREN_CHECK(!rank || members_[*rank].state == MemberState::kGone, "who serves has no rank (I6)");
    WARREN_CHECK(state_ != State::kRunning || is_named(life), "a plan in force names who serves");
  }
  WARREN_CHECK(!resized_ || (state_ == State::kGathering && !waiting_.empty() &&
                             settings_.world_size() != plan_.settings().world_size()),
               "another world size is wanted by those who wait");
  WARREN_CHECK(!planned() || candidates() <= free_places_.size(), "nobody waits for a place that is taken");
  WARREN_CHECK(absent_ == (members_.empty() ? 0 : count_absent()), "who is absent is counted");
  WARREN_CHECK(absent_ == 0 || present() >= settings_.min_workers(), "the job has as many workers as it needs");
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const Member& m = members_[rank];
    WARREN_CHECK(!absent(rank) || m.state == MemberState::kGone, "who is absent is no member (I6)");
    switch (state_) {
      case State::kRunning:
        WARREN_CHECK(absent(rank) || m.state == MemberState::kActive || m.state == MemberState::kFinalizing,
                     "an epoch in force is whole");
        break;
      case State::kInterrupted:
        WARREN_CHECK(m.state != MemberState::kActive && m.state != MemberState::kFinalizing, "all stop");
        break;
      default:
        WARREN_CHECK(m.state == MemberState::kGone || m.state == MemberState::kSurvivor,
                     "who gathers has nobody running");
    }
    WARREN_CHECK(!m.silent || !logged(), "where results are logged, who is silent is lost");
  }
  WARREN_CHECK(!rebuilding_ || (state_ == State::kGathering && epoch_.value == 0 && deadline_),
               "only what is not known is asked for, and not for ever (I7)");
  std::size_t survivors = 0, position_bytes = 0, join_bytes = 0;
  for (const auto& [worker, w] : waiting_) {
    survivors += w.report ? 1 : 0;
    position_bytes += w.report ? w.report->ByteSizeLong() : 0;
    join_bytes += (w.held ? w.held->ByteSizeLong() : 0) + w.logged.ByteSizeLong();
  }
  WARREN_CHECK(survivors == static_cast<std::size_t>(
                                std::count_if(members_.begin(), members_.end(),
                                              [](const Member& m) { return m.state == MemberState::kSurvivor; })),
               "who has reported waits");
  WARREN_CHECK(survivors == survivors_, "who has reported is counted");
  WARREN_CHECK(committed_ == persisted_commit_, "no version is committed that the journal does not hold (I5)");
  WARREN_CHECK(votes_.empty() || votes_.size() < present(), "who is voted for by all is committed (I5)");
  for (const auto& [rank, vote] : votes_) {
    WARREN_CHECK(members_[rank].state != MemberState::kGone, "a vote lives no longer than who gave it (I5)");
    WARREN_CHECK(Version(vote.version()) == next_version() && vote.timeline() == timeline_.value,
                 "votes are for the next version, in this timeline (I5)");
    position_bytes += vote.ByteSizeLong();
  }
  for (const auto& [rank, state] : states_) {
    WARREN_CHECK(members_[rank].state != MemberState::kGone, "what a life has said lives no longer than it (I5)");
    position_bytes += state.ByteSizeLong();
  }
  for (const Farewell& f : farewells_) position_bytes += f.said.ByteSizeLong();
  WARREN_CHECK(position_bytes == position_bytes_ && position_bytes_ <= limits::kMaxPositionBytesPerJob,
               "what is kept of reports and votes is bounded (I8)");
  WARREN_CHECK(join_bytes == join_bytes_ && join_bytes_ <= limits::kMaxJoinBytesPerJob,
               "what is kept of joins is bounded (I8)");
  WARREN_CHECK(logged() || (votes_.empty() && states_.empty() && !committed_ && timeline_ == Timeline()),
               "nothing is logged");
  WARREN_CHECK(!has_plan || Timeline(plan_.timeline()) == timeline_, "a timeline begins with a plan");
  WARREN_CHECK(
      state_ != State::kRunning || (Epoch(plan_.epoch()) == epoch_ && waiting_.empty() && interrupt_.epoch() == 0),
      "a plan in force is the newest epoch's");
  WARREN_CHECK(state_ == State::kFinished || deadline_.has_value() || (state_ == State::kGathering && waiting_.empty()),
               "every wait has a deadline (I7)");
  WARREN_CHECK(retired_.size() == retired_order_.size() && retired_.size() <= kMaxRetired,
               "what is remembered is bounded (I8)");
}

}  // namespace warren
