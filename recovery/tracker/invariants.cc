#include "recovery/tracker/invariants.h"

#include <algorithm>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"

namespace warren {

namespace {
constexpr std::size_t kMaxRetired = limits::retired_lives(limits::kMaxWorldSize);
}  // namespace

void TrackerInvariants::look(const TrackerMachine& m) {
  check_generations(m);
  check_indexes(m);
  check_waiting(m);
  check_spares(m);
  check_servers(m);
  check_members(m);
  check_votes(m);
  check_bounds(m);
  if (seen_) check_change(m);
  if (!seen_ || plan_.generation.value != m.plan_.generation() || plan_.run != m.plan_.run()) plan_ = note(m);
  seen_ = see(m);
}

void TrackerInvariants::check_generations(const TrackerMachine& m) {
  using State = TrackerMachine::State;
  const bool has_plan = m.state_ != State::kFinished && m.has_places();
  WARREN_CHECK(m.generation_ == m.persisted_generation_, "no generation exists that the journal does not hold");
  WARREN_CHECK(
      Generation(m.plan_.generation()) <= m.generation_ && Generation(m.interrupt_.generation()) <= m.generation_,
      "generations only rise (I6)");
  WARREN_CHECK(m.members_.size() == (has_plan ? m.settings_.world_size() : 0), "a plan has every member");
  WARREN_CHECK(!m.leaves_ || (m.settings_.replace_after_ms() != 0 && m.rank_of(m.leaves_->life)),
               "who is asked to leave is a life of the plan (I6)");
  WARREN_CHECK(!m.resized_ || (m.state_ == State::kGathering && !m.waiting_.empty() &&
                               m.settings_.world_size() != m.plan_.settings().world_size()),
               "another world size is wanted by those who wait");
  WARREN_CHECK(!m.rebuilding_ || (m.state_ == State::kGathering && m.generation_.value == 0 && m.deadline_),
               "only what is not known is asked for, and not for ever (I7)");
  WARREN_CHECK(!has_plan || Timeline(m.plan_.timeline()) == m.timeline_, "a timeline begins with a plan");
  WARREN_CHECK(m.state_ != State::kRunning || (Generation(m.plan_.generation()) == m.generation_ &&
                                               m.waiting_.empty() && m.interrupt_.generation() == 0),
               "a plan in force is the newest generation's");
  WARREN_CHECK(
      m.state_ == State::kFinished || m.deadline_.has_value() || (m.state_ == State::kGathering && m.waiting_.empty()),
      "every wait has a deadline (I7)");
}

void TrackerInvariants::check_indexes(const TrackerMachine& m) {
  const std::size_t had = m.members_.size() - (m.members_.empty() ? 0 : m.count_vacant());
  WARREN_CHECK(m.rank_by_incarnation_.size() == had, "a rank that anybody has had has one life (I6)");
  WARREN_CHECK(m.place_by_worker_.size() == had, "a worker has one place");
  for (const auto& [worker, rank] : m.place_by_worker_) {
    WARREN_CHECK(m.free_places_.contains(rank) != m.waiting_.contains(worker),
                 "a place is free until its worker is back");
  }
  for (const auto& [life, rank] : m.rank_by_incarnation_) {
    WARREN_CHECK(m.plan_.members(static_cast<int>(rank)).incarnation() == life.value, "indexes agree");
  }
}

void TrackerInvariants::check_waiting(const TrackerMachine& m) {
  m.waiting_.check();
  WARREN_CHECK(m.waiting_.size() <= m.settings_.world_size(), "nobody waits beyond the world's size (I8)");
  WARREN_CHECK(!m.planned() || m.candidates() <= m.free_places_.size(), "nobody waits for a place that is taken");
  for (const auto& [worker, w] : m.waiting_) {
    const Incarnation life = w.id();
    const auto member = m.rank_by_incarnation_.find(life);
    const bool survivor = member != m.rank_by_incarnation_.end();
    WARREN_CHECK(survivor == w.report.has_value(), "no life joins twice (I6)");
    WARREN_CHECK(!survivor || (m.members_[member->second].state == TrackerMachine::MemberState::kSurvivor &&
                               m.place_of(worker) == member->second && m.interrupt_.resume()),
                 "who survives keeps its rank");
    WARREN_CHECK(!m.retired_.contains(life), "no life comes back (I6)");
    WARREN_CHECK(w.candidate == (m.has_places() && !m.place_by_worker_.contains(worker)), "candidates have no place");
  }
}

void TrackerInvariants::check_spares(const TrackerMachine& m) {
  m.spares_.check();
  for (const auto& [worker, spare] : m.spares_) {
    WARREN_CHECK(!m.waiting_.contains(worker) && !m.retired_.contains(spare.life),
                 "a spare waits for a place, not for the next plan");
    if (!spare.call) continue;
    WARREN_CHECK(m.state_ == TrackerMachine::State::kGathering && m.free_places_.contains(spare.call->place) &&
                     !m.waiting_.takers().contains(spare.call->place),
                 "who is called is called for a free place, once all have stopped (I1)");
  }
  for (const auto& [worker, w] : m.waiting_) {
    if (!w.takes) continue;
    WARREN_CHECK(w.candidate && w.called.value != 0 && m.free_places_.contains(*w.takes),
                 "a place is taken by no spare whose worker is there");
  }
}

void TrackerInvariants::check_servers(const TrackerMachine& m) {
  m.leavers_.check();
  const Leavers::Servers& servers = m.leavers_.servers();
  WARREN_CHECK(servers.empty() || (!m.shrinks() && servers.size() < m.settings_.replicas()),
               "fewer serve than there are copies");
  for (const auto& [life, server] : servers) {
    WARREN_CHECK(!m.waiting_.contains(life) && !m.spares_.contains(life), "who serves has left for good (I6)");
    const auto rank = m.rank_of(life);
    WARREN_CHECK(!rank || m.members_[*rank].state == TrackerMachine::MemberState::kGone, "who serves has no rank (I6)");
    WARREN_CHECK(m.state_ != TrackerMachine::State::kRunning || m.is_named(life), "a plan in force names who serves");
  }
}

void TrackerInvariants::check_members(const TrackerMachine& m) {
  using State = TrackerMachine::State;
  using MemberState = TrackerMachine::MemberState;
  WARREN_CHECK(m.absent_ == (m.members_.empty() ? 0 : m.count_absent()), "who is absent is counted");
  WARREN_CHECK(m.absent_ == 0 || m.present() >= m.settings_.min_workers(), "the job has as many workers as it needs");
  for (std::size_t rank = 0; rank < m.members_.size(); ++rank) {
    const TrackerMachine::Member& member = m.members_[rank];
    WARREN_CHECK(!m.absent(rank) || member.state == MemberState::kGone, "who is absent is no member (I6)");
    switch (m.state_) {
      case State::kRunning:
        WARREN_CHECK(m.absent(rank) || member.state == MemberState::kActive || member.state == MemberState::kFinalizing,
                     "a generation in force is whole");
        break;
      case State::kInterrupted:
        WARREN_CHECK(member.state != MemberState::kActive && member.state != MemberState::kFinalizing, "all stop");
        break;
      default:
        WARREN_CHECK(member.state == MemberState::kGone || member.state == MemberState::kSurvivor,
                     "who gathers has nobody running");
    }
    WARREN_CHECK(!member.silent || !m.logged(), "where results are logged, who is silent is lost");
  }
}

void TrackerInvariants::check_votes(const TrackerMachine& m) {
  WARREN_CHECK(m.committed_ == m.persisted_commit_, "no version is committed that the journal does not hold (I5)");
  WARREN_CHECK(m.state_ == TrackerMachine::State::kRunning || !m.last_versions_.oldest(),
               "who has called finalize has so in the generation that runs");
  WARREN_CHECK(m.ballot_.votes() == 0 || m.ballot_.votes() < m.present(), "who is voted for by all is committed (I5)");
  m.ballot_.check(m.next_version(), m.timeline_,
                  [&m](std::size_t rank) { return m.members_[rank].state != TrackerMachine::MemberState::kGone; });
  WARREN_CHECK(m.logged() || (m.ballot_.empty() && !m.committed_ && m.timeline_ == Timeline()), "nothing is logged");
}

void TrackerInvariants::check_bounds(const TrackerMachine& m) {
  const auto reported = static_cast<std::size_t>(
      std::ranges::count(m.members_, TrackerMachine::MemberState::kSurvivor, &TrackerMachine::Member::state));
  WARREN_CHECK(m.waiting_.survivors() == reported, "who has reported waits");
  WARREN_CHECK(m.has_room_for(0), "what is kept of reports and votes is bounded (I8)");
  WARREN_CHECK(m.retired_.size() <= kMaxRetired, "what is remembered is bounded (I8)");
}

TrackerInvariants::Seen TrackerInvariants::see(const TrackerMachine& m) {
  Seen seen{m.state_, m.term_, m.generation_, m.timeline_, m.committed_timeline_, m.committed_, m.distrust_inherited_,
            {}};
  for (const TrackerMachine::Member& member : m.members_) {
    seen.has_gone.push_back(member.state == TrackerMachine::MemberState::kGone);
  }
  return seen;
}

TrackerInvariants::Plan TrackerInvariants::note(const TrackerMachine& m) {
  Plan plan{Generation(m.plan_.generation()), m.plan_.run(), Timeline(m.plan_.timeline()), {}, {}};
  for (const wire::Member& member : m.plan_.members()) plan.lives.push_back(member.incarnation());
  for (const wire::Position& p : m.plan_.frontier()) plan.done[{p.group(), p.version()}] = p.rounds();
  return plan;
}

void TrackerInvariants::check_change(const TrackerMachine& m) const {
  WARREN_CHECK(m.term_ >= seen_->term, "a term never goes back (I6)");
  WARREN_CHECK(m.generation_ >= seen_->generation, "a generation never goes back (I6)");
  WARREN_CHECK(m.timeline_ >= seen_->timeline, "a timeline never goes back (I6)");
  if (seen_->state == TrackerMachine::State::kFinished) {
    WARREN_CHECK(m.state_ == TrackerMachine::State::kFinished, "a finished job stays finished");
    return;
  }
  const bool same_timeline = m.timeline_ == seen_->timeline;
  WARREN_CHECK(!same_timeline || m.committed_ >= seen_->committed,
               "the committed version falls only where a new timeline begins (I5)");
  WARREN_CHECK(!same_timeline || m.committed_ != seen_->committed || m.committed_timeline_ == seen_->committed_timeline,
               "a version is committed once in a timeline (I5)");
  if (m.state_ == TrackerMachine::State::kFinished) return;
  if (m.plan_.generation() == plan_.generation.value && m.plan_.run() == plan_.run) {
    check_same_plan(m);
  } else {
    check_next_plan(m);
  }
}

void TrackerInvariants::check_same_plan(const TrackerMachine& m) const {
  WARREN_CHECK(static_cast<std::size_t>(m.plan_.members_size()) == plan_.lives.size(),
               "a generation's number names one plan (I6)");
  for (std::size_t rank = 0; rank < plan_.lives.size(); ++rank) {
    WARREN_CHECK(m.plan_.members(static_cast<int>(rank)).incarnation() == plan_.lives[rank],
                 "a generation's number names one plan (I6)");
  }
  // None while another world size is asked for, or before it was.
  if (m.members_.size() != seen_->has_gone.size()) return;
  for (std::size_t rank = 0; rank < m.members_.size(); ++rank) {
    WARREN_CHECK(!seen_->has_gone[rank] || m.members_[rank].state == TrackerMachine::MemberState::kGone,
                 "a life that has gone does not come back in its plan (I6)");
  }
}

void TrackerInvariants::check_next_plan(const TrackerMachine& m) const {
  WARREN_CHECK(m.plan_.generation() > plan_.generation.value, "a plan follows only an older plan (I6)");
  WARREN_CHECK(plan_.generation.value == 0 || m.plan_.run() == plan_.run, "all plans of a job name its run");
  // A plan that the machine has learned was made by another tracker, and may have lost its frontier.
  const bool own = !m.may_be_older_;
  if (!own || seen_->distrusts || m.plan_.timeline() != plan_.timeline.value) return;
  std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> done;
  for (const wire::Position& p : m.plan_.frontier()) done[{p.group(), p.version()}] = p.rounds();
  for (const auto& [where, rounds] : plan_.done) {
    const Version version(where.second);
    const bool obsolete = version != kPreamble && m.committed_ && version < *m.committed_;
    if (obsolete || rounds == 0) continue;
    WARREN_CHECK(done[where] >= rounds, "what a plan calls completed stays so in its timeline (I1)");
  }
}

}  // namespace warren
