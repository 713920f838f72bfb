// Which round a life that comes back calls next: what it asks the others, and what it has heard
// (docs/decisions/0010). The class keeps the question and the answers, and sends nothing: worker/replay/inquiry.h asks
// the other ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/worker/worker_machine.h"
#include "worker/replay/inquiry.h"
#include "worker/rounds/known_rounds.h"

namespace warren::worker {

class NextRound {
 public:
  using Answer = Inquiry::Answer;
  using Gap = WorkerMachine::Gap;
  // Whether this round was, or is being, called from one of these sites.
  struct Question {
    RoundId round;
    std::vector<std::uint64_t> sites;
  };

  // There is one question at a time.
  void ask(Question question);
  // Nothing is logged, so that no rank goes on without the others: the answer is yes.
  void ask_nobody() { met_ = true; }
  // null: nothing is asked.
  [[nodiscard]] const Question* question() const { return question_ ? &*question_ : nullptr; }
  // Yes too where nobody knows, since all other ranks ask the same for the same call. Once.
  [[nodiscard]] std::optional<bool> take_answer() { return std::exchange(met_, std::nullopt); }

  // Answers the question from what this life and its host's log say, and from what the plan knows of the round. False:
  // the other ranks have to be asked.
  [[nodiscard]] bool answer_here(const Answer& own, const KnownRounds::Known& known);
  // The last word of the other ranks. A gap: nobody knows the round any more, and the question stays.
  [[nodiscard]] std::optional<Gap> hear(const Answer& answer, const KnownRounds::Known& known);

  // The question, or its answer, as a word for another life that asks for this round of this version. Nothing: no word.
  [[nodiscard]] std::optional<Answer> say(const RoundId& round, std::span<const std::uint64_t> sites) const;
  void begin_version() { heard_.reset(); }

 private:
  void answered(const Answer& answer);

  std::optional<Question> question_;
  std::optional<bool> met_;
  // An answer for a round that this life has not begun. It stays true, whoever gave it.
  struct Heard {
    RoundId round;
    Answer answer;
  };
  std::optional<Heard> heard_;
};

}  // namespace warren::worker
