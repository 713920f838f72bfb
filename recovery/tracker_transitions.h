// The transitions of the tracker's machine; for its own sources.
#pragma once

#include "recovery/tracker_machine.h"

namespace warren {

// NAME, in the order of transition_names().
#define WARREN_TRACKER_TRANSITIONS(X) \
  X(restored_running)                 \
  X(restored_interrupted)             \
  X(restored_finished)                \
  X(settings_taken)                   \
  X(settings_forgotten)               \
  X(settings_refused)                 \
  X(resized)                          \
  X(resize_waits)                     \
  X(resize_undone)                    \
  X(join_taken)                       \
  X(join_returned)                    \
  X(join_candidate)                   \
  X(join_repeated)                    \
  X(join_replaced_waiting)            \
  X(join_replaced_member)             \
  X(join_while_stopping)              \
  X(join_refused_full)                \
  X(join_refused_no_place)            \
  X(join_refused_finalizing)          \
  X(join_refused_finished)            \
  X(candidate_displaced)              \
  X(candidate_placed)                 \
  X(waiting_lost)                     \
  X(waiting_left)                     \
  X(planned)                          \
  X(plan_repeated)                    \
  X(plan_told_by_changes)             \
  X(plan_paced)                       \
  X(heartbeat)                        \
  X(member_silent)                    \
  X(member_left)                      \
  X(finalized_silent)                 \
  X(link_broken)                      \
  X(link_broken_repeated)             \
  X(link_broken_to_finalizing)        \
  X(suspect_told)                     \
  X(evidence_of_one_link)             \
  X(evidence_against_one_rank)        \
  X(round_failed)                     \
  X(desync)                           \
  X(bytes_missing)                    \
  X(interrupted)                      \
  X(interrupt_repeated)               \
  X(stopped)                          \
  X(stopped_by_leave)                 \
  X(fenced)                           \
  X(gathering_again)                  \
  X(finalize_entered)                 \
  X(finalize_repeated)                \
  X(finished)                         \
  X(finished_repeated)                \
  X(forgotten)                        \
  X(stale_life)                       \
  X(out_of_turn)                      \
  X(slept)                            \
  X(waits_logged)                     \
  X(finalize_wait_logged)             \
  X(gathering_logged)                 \
  X(report_taken)                     \
  X(report_repeated)                  \
  X(reports_too_large)                \
  X(survivor_lost)                    \
  X(survivors_interrupted)            \
  X(planned_with_survivors)           \
  X(planned_new_timeline)             \
  X(frontier_torn)                    \
  X(rolled_back)                      \
  X(epoch_ahead)                      \
  X(finalizing_left)                  \
  X(log_gap)                          \
  X(log_gap_of_inherited)             \
  X(log_gap_of_setup)                 \
  X(load_answered)                    \
  X(vote_voided_by_load)              \
  X(vote_taken)                       \
  X(vote_repeated)                    \
  X(vote_of_committed)                \
  X(vote_wait_logged)                 \
  X(committed)                        \
  X(commit_desync)                    \
  X(stranger_asked)                   \
  X(stranger_answered)                \
  X(rebuilt)                          \
  X(rebuilt_interrupted)              \
  X(rebuild_failed)                   \
  X(commit_learned)                   \
  X(held_too_large)                   \
  X(planned_from_memory)              \
  X(planned_from_disks)               \
  X(adopted_from_disks)               \
  X(disks_ignored)                    \
  X(mirror_used)                      \
  X(term_raised)                      \
  X(promise_taken)                    \
  X(promise_asked)                    \
  X(promises_logged)                  \
  X(promised)                         \
  X(spare_waits)                      \
  X(spare_repeated)                   \
  X(spare_replaced)                   \
  X(spare_called)                     \
  X(spare_call_repeated)              \
  X(spare_passed_over)                \
  X(spare_call_ended)                 \
  X(spare_answered)                   \
  X(spare_displaced)                  \
  X(spare_placed)                     \
  X(spare_silent)                     \
  X(spare_left)                       \
  X(spare_unneeded)                   \
  X(spares_out_of_reach)              \
  X(takers_sent_back)                 \
  X(suspect_fenced)                   \
  X(straggler_named)                  \
  X(straggler_cleared)                \
  X(replace_asked)                    \
  X(replace_told)                     \
  X(replace_withdrawn)                \
  X(replace_obstructed)               \
  X(replaced_waits)                   \
  X(replaced_left)                    \
  X(exclude_asked)                    \
  X(excluded)                         \
  X(rewired)                          \
  X(rewire_undone)                    \
  X(rewire_obstructed)                \
  X(detour_dropped)                   \
  X(detour_broken)                    \
  X(drain_told)                       \
  X(planned_without)                  \
  X(begun_short)                      \
  X(attempt_finished)                 \
  X(attempt_dropped)                  \
  X(too_many_absences)                \
  X(grows)                            \
  X(newcomers_sent_back)              \
  X(waits_to_come_in)                 \
  X(timeline_ahead)                   \
  X(member_preempted)

enum class TrackerMachine::Transition : std::uint8_t {
#define WARREN_X(name) name,
  WARREN_TRACKER_TRANSITIONS(WARREN_X)
#undef WARREN_X
};

}  // namespace warren
