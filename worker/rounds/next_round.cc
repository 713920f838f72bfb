#include "worker/rounds/next_round.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/base/check.h"

namespace warren::worker {

void NextRound::ask(Question question) {
  WARREN_CHECK(!question_, "one question at a time");
  met_.reset();
  question_ = std::move(question);
}

bool NextRound::answer_here(const Answer& own, const KnownRounds::Known& known) {
  // No others are needed where this life or its host's log knows the round.
  if (own.word == RoundWord::kRound || own.word == RoundWord::kOver) {
    answered(own);
    return true;
  }
  // Lives that are over have ended the version there, and no life that is left has been in it.
  if (known.beyond) answered({RoundWord::kOver, {}});
  return known.beyond;
}

std::optional<NextRound::Gap> NextRound::hear(const Answer& answer, const KnownRounds::Known& known) {
  if (answer.word == RoundWord::kAsks || answer.word == RoundWord::kGone) {
    // Nobody knows whether it was, or will be, the round that is asked for, and what follows has its number from that.
    const bool begun = known.done || !known.final.empty();
    if (answer.word == RoundWord::kGone || begun) {
      const std::string round = to_string(question_->round);
      return Gap{begun ? "no host holds anything of " + round + ", which ranks have begun"
                       : "no rank knows which call is " + round,
                 {},
                 true};
    }
  }
  answered(answer);
  return std::nullopt;
}

void NextRound::answered(const Answer& answer) {
  const Question question = *std::exchange(question_, std::nullopt);
  if (answer.word != RoundWord::kAsks) heard_ = {question.round, answer};
  const std::uint64_t site = answer.round.site & ~kSiteCompared;
  met_ = answer.word == RoundWord::kAsks ||
         (answer.word == RoundWord::kRound && std::ranges::find(question.sites, site) != question.sites.end());
}

std::optional<NextRound::Answer> NextRound::say(const RoundId& round, std::span<const std::uint64_t> sites) const {
  if (heard_ && heard_->round == round) return heard_->answer;
  if (!question_ || question_->round != round) return std::nullopt;
  const bool same = std::ranges::find_first_of(question_->sites, sites) != question_->sites.end();
  return Answer{same ? RoundWord::kAsks : RoundWord::kOther, {}};
}

}  // namespace warren::worker
