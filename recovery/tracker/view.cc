// The view of a job, for its status page and its metrics.
#include <algorithm>
#include <iterator>

#include "recovery/base/limits.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/wire/codec.h"

namespace warren {

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
  v.generation = generation_;
  v.world_size = settings_.world_size();
  v.replicas = settings_.replicas();
  v.min_workers = settings_.min_workers();
  v.timeline = timeline_;
  v.committed = committed_;
  if (const auto lacks = lack(); lacks && !lost()) v.unprotected = lack_text(*lacks) + "; " + loss_would();
  v.frontier.assign(plan_.frontier().begin(), plan_.frontier().end());
  v.detours.assign(plan_.detours().begin(), plan_.detours().end());
  v.orders.assign(plan_.orders().begin(), plan_.orders().end());
  v.votes = ballot_.votes();
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
  add_missing_ranks(now, v.waits);
  add_what_is_awaited(v.waiting_for, now, v.waits);
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    const Waiting* const w = waiting_.find(plan_.members(static_cast<int>(rank)).worker_id());
    const Rank id(static_cast<std::int32_t>(rank));
    v.members.push_back(w != nullptr ? waiting_view(id, *w, v.limits, now) : member_view(rank, v.limits, now));
  }
  for (const auto& [worker, w] : waiting_) {
    if (!has_places() || w.candidate) v.members.push_back(waiting_view(kNoRank, w, v.limits, now));
  }
  for (const MemberView& m : v.members) v.gpu.readers += m.alive ? m.gpu.readers : 0;
  for (const auto& [worker, spare] : spares_) {
    v.spares.push_back({worker, spare.host_id, spare.life, now - spare.heard,
                        spare.call ? Rank(static_cast<std::int32_t>(spare.call->place)) : kNoRank,
                        spare.followed.value != 0 ? std::optional(spare.followed) : std::nullopt});
  }
  return v;
}

// For people: which ranks the job has to do without, and why.
void TrackerMachine::add_missing_ranks(TimeMs now, std::vector<std::string>& waits) const {
  if (state_ == State::kGathering && spares_.held_back()) {
    waits.push_back(
        "spares are not used: without the machines of those who are missing, what was logged and committed "
        "might be out of reach");
  }
  for (std::size_t i = 0; state_ == State::kRunning && absent_ != 0 && i < members_.size(); ++i) {
    if (!absent(i) || vacant(i)) continue;
    if (waits.size() >= kMaxMissingNames) break;
    const auto kept_out = excluded_.find(plan_.members(static_cast<int>(i)).worker_id());
    const bool excluded = kept_out != excluded_.end() && now < kept_out->second;
    waits.push_back("the job goes on without " + name(i) +
                    (excluded ? ", which held up the others; its worker comes in with the first version committed in " +
                                    seconds_text(kept_out->second - now) + " or later"
                              : "; a worker that waits for its place comes in once the next version is committed"));
  }
  if (const std::size_t vacancies = count_vacant(); state_ == State::kRunning && vacancies != 0) {
    waits.push_back(std::to_string(vacancies) + " of the job's " + std::to_string(members_.size()) +
                    " places nobody has had yet: workers that wait for one come in once the next version is committed");
  }
}

// For people: what keeps the job from being whole.
void TrackerMachine::add_what_is_awaited(const std::vector<std::string>& missing, TimeMs now,
                                         std::vector<std::string>& waits) const {
  if (const std::string beginning = describe_beginning(now); !beginning.empty() && !waiting_.empty()) {
    waits.push_back("the job has " + std::to_string(waiting_.size()) + " of its " +
                    std::to_string(settings_.world_size()) + " workers; " + beginning);
  } else if (!planned() && !waiting_.empty() && waiting_.size() < settings_.world_size()) {
    waits.push_back("the job waits for " + std::to_string(settings_.world_size() - waiting_.size()) + " more of its " +
                    std::to_string(settings_.world_size()) +
                    " workers to be started; those that are there give up after their join timeouts");
  }
  for (const wire::Detour& d : plan_.detours()) {
    if (state_ != State::kRunning || waits.size() >= kMaxMissingNames) break;
    waits.push_back("the bytes between " + name(d.a()) + " and " + name(d.b()) + " go by way of " +
                    std::to_string(d.relays_size()) + " other ranks: their link was slow");
  }
  for (const auto& [life, server] : leavers_.servers()) {
    waits.push_back("worker " + server.member.worker_id() + " has left, and serves what host " +
                    server.member.host_id() + " has logged: until a version newer than that is committed, for " +
                    seconds_text(server.until - now) + " at most");
  }
  const auto from = goes_on_from();
  for (const std::string& worker : missing) {
    if (from && state_ == State::kGathering) {
      waits.push_back("the job waits for worker " + worker + ", and goes on without it in " +
                      std::to_string(std::max<std::int64_t>(0, *from - now)) + " ms");
      continue;
    }
    waits.push_back(state_ == State::kGathering ? "the job waits for worker " + worker + " to be started again"
                                                : "the job waits for worker " + worker + " to answer the interrupt");
  }
}

// A life that waits for the next plan; `rank`: that its worker has had, or none.
TrackerMachine::MemberView TrackerMachine::waiting_view(Rank rank, const Waiting& w, const StragglerLimits& limits,
                                                        TimeMs now) const {
  MemberView m;
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
    // In this very life, until its first heartbeat of the next generation says more.
    m.rounds_finished = members_[index].rounds_finished;
    m.bytes_moved = members_[index].bytes_moved;
    m.gpu = members_[index].gpu;
    m.log = members_[index].log;
    m.disk_trouble = members_[index].disk_trouble;
  }
  m.lives = (had ? plan_.members(rank.value).lives() : 0) + (w.report ? 0 : 1);
  // A worker that has joined repeats that more seldom than others beat.
  m.suspect = w.report && now - w.heard >= suspect_after_ms(limits, members_[index].longest_gap_ms);
  return m;
}

// A life of the plan that does not wait for the next one.
TrackerMachine::MemberView TrackerMachine::member_view(std::size_t rank, const StragglerLimits& limits,
                                                       TimeMs now) const {
  const wire::Member& planned_member = plan_.members(static_cast<int>(rank));
  const Member& m = members_[rank];
  std::optional<wire::Draining> draining = m.draining;
  if (draining) {
    const auto since_ms = static_cast<std::uint64_t>(std::max<std::int64_t>(0, now - m.told));
    draining->set_left_ms(draining->left_ms() - std::min(draining->left_ms(), since_ms));
  }
  const bool alive = m.state != MemberState::kGone && !m.silent;
  return {Rank(static_cast<std::int32_t>(rank)),
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
          draining && leaves_ && !leaves_->spare.empty() && rank_of(leaves_->life) == rank,
          draining && leaves_for_good(rank),
          planned_member.absent(),
          alive && now - m.heard >= suspect_after_ms(limits, m.longest_gap_ms),
          planned_member.lives(),
          false,
          false,
          m.log,
          m.disk_trouble};
}

}  // namespace warren
