// Which round a life that comes back is to call next: what it asks others, and what it tells them.
#include "worker/rounds/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "worker/schedule/copies.h"

namespace warren::worker {

void Engine::ask_next(std::vector<std::uint64_t> sites) {
  const auto world = groups_.find(kWorldGroup);
  WARREN_CHECK(world != groups_.end() && idle(kWorldGroup) && !question_, "one question, between two calls");
  met_.reset();
  if (recall_ == nullptr) {
    // Nobody goes on without the others.
    met_ = true;
    return;
  }
  question_ = {round_of(kWorldGroup, world->second->next_sequence), std::move(sites)};
  if (open_) begin_question();
}

void Engine::begin_question() {
  if (!question_) return;
  // What this life was told of the round, and its host's log, need no others.
  const Inquiry::Answer own = say(question_->round, question_->sites);
  if (own.word == RoundWord::kRound || own.word == RoundWord::kOver) return answered(own);
  // Lives that are over have ended the version there, and no life that is left has been in it.
  if (known_.known_of(question_->round).beyond) return answered({RoundWord::kOver, {}});
  recall_->ask(question_->round, question_->sites);
  look_at_question();
}

void Engine::look_at_question() {
  if (!question_ || !open_ || gap_) return;
  const auto answer = recall_->inquiry().answer();
  if (!answer) return;
  if (answer->word == RoundWord::kAsks || answer->word == RoundWord::kGone) {
    const Known known = known_.known_of(question_->round);
    if (answer->word == RoundWord::kGone || known.done || !known.final.empty()) {
      // Whether it was, or will be, the round that is asked for nobody knows, and what follows has its number from
      // that.
      const bool begun = known.done || !known.final.empty();
      const std::string round = to_string(question_->round);
      gap_ = Gap{begun ? "no host holds anything of " + round + ", which ranks have begun"
                       : "no rank knows which call is " + round,
                 {},
                 true};
      return recall_->end_question();
    }
  }
  answered(*answer);
}

void Engine::answered(const Inquiry::Answer& answer) {
  const Question question = *std::exchange(question_, std::nullopt);
  recall_->end_question();
  if (answer.word != RoundWord::kAsks) heard_ = {question.round, answer};
  const std::uint64_t site = answer.round.site & ~kSiteCompared;
  met_ = answer.word == RoundWord::kAsks ||
         (answer.word == RoundWord::kRound && std::ranges::find(question.sites, site) != question.sites.end());
}

Inquiry::Answer Engine::say(const RoundId& round, std::span<const std::uint64_t> sites) const {
  const auto it = groups_.find(round.group);
  if (!open_ || it == groups_.end() || recall_ == nullptr) return {};
  const Group& group = *it->second;
  const auto& begun = group.begun[round.sequence.value % Group::kNewestRounds];
  if (begun && begun->round == round) return {RoundWord::kRound, begun->fingerprint};
  // Whoever is further ahead than that has logged it.
  const auto logged = recall_->reader().info(result_key(round));
  if (logged.ok() && logged.value()) return {RoundWord::kRound, logged.value()->fingerprint};
  if (version_ == round.version) {
    if (heard_ && heard_->round == round) return heard_->answer;
    if (question_ && question_->round == round) {
      const bool same = std::ranges::find_first_of(question_->sites, sites) != question_->sites.end();
      return {same ? RoundWord::kAsks : RoundWord::kOther, {}};
    }
    if (round.sequence.value < group.rounds_done) return {RoundWord::kGone, {}};
    return {rounds_over_ && group.next_sequence <= round.sequence ? RoundWord::kOver : RoundWord::kLater, {}};
  }
  const auto over = closed_.find({round.group, round.version});
  if (over == closed_.end()) return {};
  return {over->second <= round.sequence.value ? RoundWord::kOver : RoundWord::kGone, {}};
}

}  // namespace warren::worker
