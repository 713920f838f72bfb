// In which state a job is and each of its workers, as status and metrics name them. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "recovery/tracker/tracker_machine.h"

namespace warren::tracker {

// The states of jobs, for people and metrics: those of the machine, and `lost` for a job that cannot go on.
inline constexpr std::array kJobStates = {"gathering", "running", "interrupted", "finished", "lost"};
[[nodiscard]] const char* to_string(TrackerMachine::State state);
[[nodiscard]] const char* state_of(const TrackerMachine::View& view);

enum class MemberState : std::uint8_t {
  kRunning,    // a rank of the generation in force, and heard
  kStopping,   // a rank that has not answered the interrupt yet
  kGathering,  // has joined or stopped, and waits for the next generation
  kDraining,   // leaves as soon as no call is under way
  kSilent,     // not heard for longer than usual; lost after the round timeout
  kLost,       // its worker is waited for
  kLeft,       // has left, or was lost, after it was told to leave
  kAbsent,     // the job goes on without this rank
  kVacant,     // nobody has had this rank yet
  kWaiting,    // has no rank, and waits for that of a lost worker
  kSpare,
};
inline constexpr std::size_t kMemberStates = 11;
[[nodiscard]] const char* to_string(MemberState state);
[[nodiscard]] MemberState state_of(const TrackerMachine::View& view, const TrackerMachine::MemberView& member);

// How many workers or ranks are in each state. A worker that waits or is a spare is in addition to the world's ranks.
[[nodiscard]] std::array<std::uint32_t, kMemberStates> members_by_state(const TrackerMachine::View& view);
// Ranks whose workers are heard; never more than the world size.
[[nodiscard]] std::uint32_t members_alive(const TrackerMachine::View& view);
// Lives of ranks beyond the first ones.
[[nodiscard]] std::uint64_t restarts_of(const TrackerMachine::View& view);

}  // namespace warren::tracker
