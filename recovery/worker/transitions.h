// The transitions of a worker's machine; for its own sources.
#pragma once

#include "recovery/worker/worker_machine.h"

namespace warren {

// NAME, in the order of transition_names().
#define WARREN_WORKER_TRANSITIONS(X) \
  X(started)                         \
  X(join_repeated)                   \
  X(welcomed)                        \
  X(refused_joining)                 \
  X(join_timed_out_unheard)          \
  X(join_timed_out_incomplete)       \
  X(interrupted_joining)             \
  X(installed)                       \
  X(plan_for_other)                  \
  X(plan_stale)                      \
  X(heartbeat)                       \
  X(link_broken_reported)            \
  X(link_broken_repeated)            \
  X(peer_gone_reported)              \
  X(peer_gone_reported_suspended)    \
  X(peer_gone_repeated_suspended)    \
  X(round_failed_reported)           \
  X(round_failed_repeated)           \
  X(report_timed_out)                \
  X(report_stale)                    \
  X(interrupted)                     \
  X(interrupted_leaving)             \
  X(interrupted_stopping)            \
  X(interrupt_stale)                 \
  X(stopped_repeated)                \
  X(stopped)                         \
  X(stopped_stale)                   \
  X(fenced_member)                   \
  X(fenced_leaving)                  \
  X(fenced_stopped)                  \
  X(leaving)                         \
  X(leave_repeated)                  \
  X(leave_timed_out)                 \
  X(gave_up_joining)                 \
  X(gave_up_member)                  \
  X(gave_up_leaving)                 \
  X(finished)                        \
  X(not_for_us)                      \
  X(out_of_turn)                     \
  X(tracker_away)                    \
  X(tracker_silent)                  \
  X(tracker_back)                    \
  X(tracker_changed)                 \
  X(connection_trouble)              \
  X(suspended)                       \
  X(suspended_joining)               \
  X(reinstalled)                     \
  X(report_repeated)                 \
  X(welcomed_suspended)              \
  X(interrupted_suspended)           \
  X(ended_suspended)                 \
  X(loading)                         \
  X(load_repeated)                   \
  X(loaded)                          \
  X(voted)                           \
  X(state_told)                      \
  X(vote_repeated)                   \
  X(commit_voted_again)              \
  X(committed)                       \
  X(log_gap_reported)                \
  X(log_gap_repeated)                \
  X(gave_up_suspended)               \
  X(finalize_deferred)               \
  X(fenced_suspended)                \
  X(suspend_timed_out)               \
  X(told)                            \
  X(promised)                        \
  X(term_refused)                    \
  X(draining)                        \
  X(spare)                           \
  X(spare_returned)                  \
  X(spare_repeated)                  \
  X(spare_welcomed)                  \
  X(spare_unneeded)                  \
  X(spare_refused)                   \
  X(called)                          \
  X(called_repeated)                 \
  X(called_again)                    \
  X(looked)                          \
  X(looked_stale)                    \
  X(gave_up_spare)                   \
  X(plan_for_spare)                  \
  X(spare_forgot)                    \
  X(follows)                         \
  X(follow_stale)                    \
  X(leave_requested)                 \
  X(leave_request_repeated)          \
  X(leave_request_stale)             \
  X(serving)                         \
  X(serving_suspended)               \
  X(serves_repeated)                 \
  X(serves_plan)                     \
  X(serves_plan_stale)               \
  X(served_until_told)               \
  X(served_its_time)

enum class WorkerMachine::Transition : std::uint8_t {
#define WARREN_X(name) name,
  WARREN_WORKER_TRANSITIONS(WARREN_X)
#undef WARREN_X
};

}  // namespace warren
