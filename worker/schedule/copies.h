// What a logged round adds to a schedule: finals that are published before anybody sees them, and, where results differ
// by rank, copies of them in other failure domains and the exchange after which all know that they are there (rule 5 of
// schedule.h). With replicas 0 nothing of this writes a step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/schedule/builder.h"
#include "worker/schedule/schedule.h"

namespace warren::schedule {

// Elements of the whole result.
[[nodiscard]] std::uint64_t result_elements(const Request& request);

// Reduce, reduce_scatter, gather, scatter, all_to_all, equal or not.
[[nodiscard]] bool results_differ(Collective collective);

// Whether this piece of the whole result need not be computed. A piece without elements never is left out: its header
// travels, so that ranks that disagree meet.
[[nodiscard]] inline bool left_out(const Request& request, const Range& result) {
  return result.count > 0 && !request.final.empty() && request.final.covers(result.at, result.at + result.count);
}

// The most that the logging of one-sided results makes of any rank: how many owners' finals it keeps for them.
[[nodiscard]] std::uint64_t most_kept_for_others(const Request& request);

class Copies {
 public:
  Copies(const Request& request, Builder& builder);

  // Whether this rank publishes a final that came to it along `path`, which it ends.
  [[nodiscard]] bool keeps(std::span<const std::int32_t> path) const;
  [[nodiscard]] bool keeps_own() const;
  // For a final that `owner` computed and sent straight to this rank.
  [[nodiscard]] bool keeps_from(std::int32_t owner) const;

  // Where finals move from GPU to GPU: likewise, for one that `owner` sent to all ranks. Few do, in min(replicas,
  // domains) - 1 other domains than the owner's, and close() sees to it that nobody returns before they have.
  [[nodiscard]] bool keeps_for(std::int32_t owner) const;

  // Publishes elements `result` of the whole result, which `made` wrote at `a`. Returns the step that whoever shows
  // them to others waits for.
  StepId publish(const Operand& a, const Range& result, StepId made);

  // Where results differ by rank. The ranks whose finals concern this rank, its own or those it keeps a copy of:
  [[nodiscard]] const std::vector<std::int32_t>& owners() const { return owners_; }
  // This rank sends its input `a`, elements `result`, to their owner. It publishes them if the owner sits on this host,
  // which then reads them in the log, or in another domain. Returns the step that the send has to wait for: the piece
  // is then the owner's only word that it is published. kNoStep: the send need not wait.
  StepId publish_sent(std::int32_t owner, const Operand& a, const Range& result);
  // Elements `result` came unchanged from `source` to this rank, their owner. `made` wrote them at `a`. Publishes them,
  // unless the source has on this host. Returns the step that whoever shows them to others waits for.
  StepId publish_received(std::int32_t source, const Operand& a, const Range& result, StepId made);
  // The root of a scatter publishes all pieces before it sends one. So each piece says that the whole result is
  // published, and nothing closes the round.
  [[nodiscard]] bool pieces_say_all() const;
  // Elements `result`, which stand at `output_at` in the owner's output once `published` has run, go to the ranks that
  // keep copies for the owner, which publish them. They came from `source`, which may have kept one. All ranks that are
  // concerned call it in the same order.
  void back_up(std::int32_t owner, std::int32_t source, const Range& result, std::uint64_t output_at, StepId published);
  // After everything else: nobody gets past this before every rank has published what it had to.
  void close();

 private:
  [[nodiscard]] bool closes_around() const;  // the root, or rank 0; else all tell all
  [[nodiscard]] bool tells_center(std::int32_t rank, std::int32_t center) const;
  [[nodiscard]] std::vector<StepId> joined(const std::vector<StepId>& steps);  // at most one step, after all of these
  void close_around(std::int32_t center, const std::vector<StepId>& published);
  void disseminate(const std::vector<StepId>& published);
  // Whether the rank that sends final values to their owner publishes them too.
  [[nodiscard]] bool source_keeps(std::int32_t owner, std::int32_t source) const;
  // Whether it does so in the owner's place, in the log of the host that both share.
  [[nodiscard]] bool source_publishes(std::int32_t owner, std::int32_t source) const;

  const Request& request_;
  Builder& builder_;
  bool one_sided_;
  std::uint64_t total_;
  bool settles_;
  bool everywhere_;
  bool published_nothing_ = false;                  // the record of a result without elements
  std::vector<StepId> published_;                   // where an exchange follows
  std::vector<std::vector<std::int32_t>> keepers_;  // likewise, by owner
  std::vector<std::int32_t> owners_;
  SlotRing slots_;
};

}  // namespace warren::schedule
