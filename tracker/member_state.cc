#include "tracker/member_state.h"

namespace warren::tracker {

const char* to_string(TrackerMachine::State state) {
  switch (state) {
    case TrackerMachine::State::kGathering: return "gathering";
    case TrackerMachine::State::kRunning: return "running";
    case TrackerMachine::State::kInterrupted: return "interrupted";
    case TrackerMachine::State::kFinished: return "finished";
  }
  return "unknown";
}

const char* state_of(const TrackerMachine::View& view) {
  return view.lost ? "lost" : to_string(view.state);
}

const char* to_string(MemberState state) {
  switch (state) {
    case MemberState::kRunning: return "running";
    case MemberState::kStopping: return "stopping";
    case MemberState::kGathering: return "gathering";
    case MemberState::kDraining: return "draining";
    case MemberState::kSilent: return "silent";
    case MemberState::kLost: return "lost";
    case MemberState::kLeft: return "left";
    case MemberState::kAbsent: return "absent";
    case MemberState::kVacant: return "vacant";
    case MemberState::kWaiting: return "waiting";
    case MemberState::kSpare: return "spare";
  }
  return "unknown";
}

MemberState state_of(const TrackerMachine::View& view, const TrackerMachine::MemberView& m) {
  if (m.worker_id.empty()) return MemberState::kVacant;
  if (m.absent) return MemberState::kAbsent;
  if (!m.alive) return m.draining ? MemberState::kLeft : MemberState::kLost;
  if (m.candidate) return MemberState::kWaiting;
  if (m.suspect) return MemberState::kSilent;
  if (m.draining) return MemberState::kDraining;
  if (m.waits) return MemberState::kGathering;
  return view.state == TrackerMachine::State::kRunning ? MemberState::kRunning : MemberState::kStopping;
}

std::array<std::uint32_t, kMemberStates> members_by_state(const TrackerMachine::View& view) {
  std::array<std::uint32_t, kMemberStates> count{};
  for (const TrackerMachine::MemberView& m : view.members) ++count[static_cast<std::size_t>(state_of(view, m))];
  count[static_cast<std::size_t>(MemberState::kSpare)] = static_cast<std::uint32_t>(view.spares.size());
  return count;
}

std::uint32_t members_alive(const TrackerMachine::View& view) {
  const auto count = members_by_state(view);
  std::uint32_t alive = 0;
  for (const MemberState state :
       {MemberState::kRunning, MemberState::kStopping, MemberState::kGathering, MemberState::kDraining}) {
    alive += count[static_cast<std::size_t>(state)];
  }
  return alive;
}

std::uint64_t restarts_of(const TrackerMachine::View& view) {
  std::uint64_t restarts = 0;
  for (const TrackerMachine::MemberView& m : view.members) {
    if (m.rank != kNoRank && m.lives > 1) restarts += m.lives - 1;
  }
  return restarts;
}

}  // namespace warren::tracker
