// Mutants: rules that a simulated shell breaks on purpose, and never production code. The simulator must catch each
// (docs/invariants.md, docs/testing.md).
#pragma once

#include <cstdint>

namespace warren::chaos {

// NAME, what it does.
#define WARREN_MUTANTS(X)                                                                                             \
  X(none, "nothing is broken")                                                                                        \
  X(asks_nobody, "a new life takes what it might make alone for a set-up round, whatever the others do")              \
  X(takes_any_question, "a new life that waits with another call counts as one that asks for the same")               \
  X(announce_before_persist, "the tracker sends before it stores")                                                    \
  X(journal_lies, "the tracker takes a write for durable that is not")                                                \
  X(accept_old_generation, "frames of a generation that has ended are delivered in the next one")                     \
  X(accept_zombie, "what an old life says counts as said by the new one")                                             \
  X(stopped_before_stop, "a worker answers an interrupt before its data path has stopped")                            \
  X(send_completes_early, "a send is complete before its bytes have been read")                                       \
  X(skip_checksum, "chunks are taken without a look at their checksums")                                              \
  X(operands_swapped, "one rank combines in the wrong order")                                                         \
  X(publishes_late, "a queue stands between a final and its copy: it is handed on, or returned, before it is stable") \
  X(one_copy_short, "schedules and checkpoints keep one copy less than the job asks for")                             \
  X(commits_without_one, "the tracker counts a vote that one rank has not given")                                     \
  X(keeps_vote_after_load, "a vote outlives the life that gave it, and its rank's load")                              \
  X(compares_no_states, "the tracker commits without a look at what ranks have told of their states")                 \
  X(votes_without_its_state, "a rank votes while its states are still on their way from its GPU")                     \
  X(reuses_names, "a rollback does not raise the timeline in the names of rounds")                                    \
  X(replays_stale_timeline, "logs answer with what a rollback has undone")                                            \
  X(finals_of_own_host, "what is final of an interrupted round is looked up anew, by who sits where now")             \
  X(replay_ignores_prepare, "a result comes from the log while the call's prepare function still runs")               \
  X(acts_without_promises, "a tracker counts promises that nobody has given")                                         \
  X(overwrites_input, "an input in place is overwritten before its elements are final")                               \
  X(idle_told_as_work, "one rank tells the time for which it waited as its program's")                                \
  X(ends_swapped, "who waits for bytes tells that it cannot get rid of some, and the other way round")                \
  X(stays_when_asked, "who is asked to leave its place to a spare goes on as if it had not heard")                    \
  X(loans_without_end,                                                                                                \
    "who leaves a generation changes its inputs, and does not tell those who read them where they lie")               \
  X(trusts_nccl, "what NCCL says has come is taken for it, and not compared with what was sent")                      \
  X(trusts_made, "what was read on another rank's GPU counts, although other results may have taken its place")       \
  X(told_too_early, "ranks are told where a final lies on another one's GPU before it has come there")                \
  X(mixes_attempts, "a survivor takes finals of an attempt along into the next one, with other contributors")         \
  X(forgets_whole_results, "a result of which survivors hold all is computed again with other contributors")          \
  X(works_in_place, "inputs in place are not kept where a round may be run again with other contributors")            \
  X(server_is_a_copy, "what lies with a life that has left and serves counts as a copy like another host's")          \
  X(server_not_heard, "how far a life that has left and serves has come is not looked at")                            \
  X(serves_what_was_begun, "a life that has left serves all that its host holds, and not only what is done")          \
  X(order_at_once, "the ring has its new order with the plan that names it, and not from its version on")

enum class Mutant : std::uint8_t {
#define WARREN_X(name, what) name,
  WARREN_MUTANTS(WARREN_X)
#undef WARREN_X
};

}  // namespace warren::chaos
