// Going on without ranks that were lost, and taking in those that come (docs/decisions/0020-shrink.md): when, and what
// becomes of the rounds that were under way.
#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/tracker/tracker_machine.h"
#include "recovery/tracker/transitions.h"
#include "recovery/wire/codec.h"

namespace warren {

bool TrackerMachine::absent(std::size_t rank) const {
  return plan_.members(static_cast<int>(rank)).absent();
}

std::size_t TrackerMachine::count_absent() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(plan_.members(), [](const wire::Member& m) { return m.absent(); }));
}

bool TrackerMachine::vacant(std::size_t rank) const {
  return is_vacant(plan_.members(static_cast<int>(rank)));
}

std::size_t TrackerMachine::count_vacant() const {
  return static_cast<std::size_t>(std::ranges::count_if(plan_.members(), is_vacant));
}

// Once no more have come for the grace time. Not before a round timeout: should this tracker's journal have been lost,
// its job's members are heard by then, and with them it goes on (rebuild.cc). And what disks know of a job is
// not left behind with the machines of those who have not come yet.
std::optional<TimeMs> TrackerMachine::begins_from() const {
  const bool known = std::ranges::any_of(waiting_, [](const auto& w) { return w.second.held.has_value(); });
  if (!settings_.elastic_start() || rebuilding_ || known) return std::nullopt;
  const auto grace_ms = static_cast<std::int64_t>(settings_.grace_ms());
  return std::max({since_ + timeout_ms(), arrived_ + grace_ms, judge_from_});
}

std::string TrackerMachine::describe_beginning(TimeMs now) const {
  if (!settings_.elastic_start() || state_ != State::kGathering || planned()) return {};
  if (waiting_.size() < settings_.min_workers()) {
    return "it begins with " + std::to_string(settings_.min_workers()) + " at least";
  }
  const auto from = begins_from();
  if (!from) return "it begins with all of them: disks know of an earlier run, or members of one are heard";
  return "it begins with those that are there in " + std::to_string(std::max<std::int64_t>(0, *from - now)) +
         " ms, if no more come";
}

std::optional<TimeMs> TrackerMachine::goes_on_from() const {
  if (!shrinks() || state_ != State::kGathering || waiting_.size() < settings_.min_workers()) return std::nullopt;
  if (!planned()) return begins_from();
  if (!has_places()) return std::nullopt;
  const auto grace_ms = static_cast<std::int64_t>(settings_.grace_ms());
  // Nobody else holds anything, and nobody else is waited for: who comes for such a place waits until it is called.
  const bool all_back = std::ranges::all_of(free_places_, [this](std::size_t place) { return vacant(place); });
  if (interrupt_.resume() && waiting_.survivors() != 0) {
    // Those who are lost may hold what others have to load. (Who need not go on without these, and would have gone on
    // had none of them come.)
    const bool loads = committed_ && waiting_.size() != loaded_survivors();
    if (loads && !goes_on_alone() && !all_back && !comes_in_vain() && !spares_in_reach(hosts_there())) {
      return std::nullopt;
    }
    // Where it has ended for those that come, nobody else is waited for.
    const bool lost = std::ranges::any_of(
        free_places_, [this](std::size_t place) { return !absent(place) && !leaves_for_good(place); });
    return interrupted_at_ + (lost ? grace_ms : 0);
  }
  // All start again, from what their hosts hold together.
  if (all_back) return since_;
  if (!spares_in_reach(hosts_there())) return std::nullopt;
  return since_ + timeout_ms() + grace_ms;
}

// Nobody has to load anything for it.
bool TrackerMachine::has_loaded(const Waiting& w) const {
  return w.report && (!committed_ || w.report->version() != kPreamble.value);
}

std::size_t TrackerMachine::loaded_survivors() const {
  return static_cast<std::size_t>(
      std::ranges::count_if(waiting_, [this](const auto& w) { return has_loaded(w.second); }));
}

bool TrackerMachine::goes_on_alone() const {
  return shrinks() && has_places() && interrupt_.resume() && loaded_survivors() >= settings_.min_workers();
}

bool TrackerMachine::send_back_newcomers(Effects& effects) {
  if (!goes_on_alone() || loaded_survivors() == waiting_.size()) return false;
  if (!comes_in_vain() && !lack() && spares_in_reach(hosts_there())) return false;
  count(Transition::newcomers_sent_back);
  spares_.hold_back(true);
  std::vector<std::string> newcomers;
  for (const auto& [worker, w] : waiting_) {
    if (!has_loaded(w)) newcomers.push_back(worker);
  }
  for (const std::string& worker : newcomers) {
    const Waiting& w = waiting_.at(worker);
    const std::string host = w.member.host_id();
    if (w.report) {
      // It was about to load: its next life waits.
      const Incarnation life = w.id();
      remove_waiting(worker);
      retire(life);
      refuse(life, Code::kClosed,
             "the job goes on without this worker, which would have to load what may be on machines that are lost",
             effects, true);
    } else {
      displace(worker, effects);
    }
    spares_.note_nothing_on(host);
  }
  return true;
}

// Who was called to come in, and looks for longer than a round timeout at what its host holds, comes another time.
// (Once more it is not given that time.)
bool TrackerMachine::waits_for_called(TimeMs from, TimeMs now) {
  std::optional<TimeMs> next;
  std::vector<std::size_t> over;
  for (const auto& [place, worker] : spares_.calls()) {
    const Spare& spare = spares_.at(worker);
    const TimeMs due = (spares_.was_silent(spare.host_id) ? from : std::max(from, spare.call->at)) + timeout_ms();
    if (now >= due) {
      over.push_back(place);
    } else if (!next || due < *next) {
      next = due;
    }
  }
  for (const std::size_t place : over) {
    count(Transition::spare_passed_over);
    spares_.note_silent(spares_.called_for(place).host_id);
    end_call(place);
  }
  if (next) arm(*next);
  return next.has_value();
}

// Of what was committed there are as many copies as domains had a rank: those that are missing from the usual number
// count as lost (0006, "What counts as lost").
void TrackerMachine::count_missing_copies() {
  std::set<std::string> present;
  for (const wire::Member& m : plan_.members()) {
    if (!m.absent()) present.insert(m.domain_id());
  }
  for (const wire::Member& m : plan_.members()) {
    if (present.size() + left_domains_.size() >= settings_.replicas()) return;
    if (m.absent() && !is_vacant(m) && !present.contains(m.domain_id())) left_domains_.insert(m.domain_id());
  }
}

// Nor are there copies in domains that had no rank before this plan: so they count until the next commit, as far as
// those that had some were fewer than there should be copies.
void TrackerMachine::count_new_domains(const wire::Plan& before) {
  if (!shrinks() || before.generation() == 0) return;
  std::set<std::string> known = left_domains_;
  for (const wire::Member& m : before.members()) {
    if (!m.absent()) known.insert(m.domain_id());
  }
  for (const wire::Member& m : plan_.members()) {
    if (known.size() >= settings_.replicas()) return;
    if (!m.absent() && known.insert(m.domain_id()).second) left_domains_.insert(m.domain_id());
  }
}

// A version is committed: what it needs to come in is that, and little else.
void TrackerMachine::take_in(TimeMs now, Effects& effects) {
  if (absent_ == 0 || spares_.empty()) return;
  const auto ready = std::ranges::find_if(spares_, [&](const auto& s) {
    return now < s.second.heard + limits::kSuspectHeartbeats * interval_ms() && !excluded(s.first, now);
  });
  if (ready == spares_.end()) return;
  count(Transition::grows);
  end_generation(Code::kPeerLost,
                 "worker " + ready->first + " comes in" +
                     (spares_.size() == 1 ? "" : " with " + std::to_string(spares_.size() - 1) + " more that wait") +
                     ", now that " + program_version() + " is committed",
                 {}, Ending::kResumes, now, effects);
}

// The journal is older than a plan after which rounds have other names. What was decided since then nobody can tell.
void TrackerMachine::fall_behind(std::size_t rank, const wire::Report& r, TimeMs now, Effects& effects) {
  count(Transition::timeline_ahead);
  for (wire::Absence& a : *plan_.mutable_absences()) {
    if (a.timeline() == timeline_.value) a.set_timeline(r.timeline());
  }
  timeline_ = Timeline(r.timeline());
  plan_.set_timeline(timeline_.value);
  told_ = told_changes_ = followed_ = nullptr;
  if (r.committed_version() != 0) {
    learn_commit(Version(r.committed_version()), Timeline(r.committed_timeline()), effects);
  }
  roll_back(Code::kPeerLost,
            name(rank) + " has gone on with a plan of timeline " + std::to_string(r.timeline()) +
                ", of which the tracker's journal does not know: it is an older copy",
            now, effects);
}

}  // namespace warren
