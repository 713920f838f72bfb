#include "recovery/tracker/ballot.h"

#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/text.h"
#include "recovery/wire/state_digest.h"

namespace warren {

namespace {
// A state is kept apart from its vote: a load may void the one, and a rank may tell the other before it votes.
wire::Vote without_state(const wire::Vote& vote) {
  wire::Vote v = vote;
  v.clear_state();
  return v;
}
}  // namespace

bool Ballot::repeats(std::size_t rank, const wire::Vote& vote) const {
  return votes_.contains(rank) || (vote.lacks() && states_.contains(rank));
}

std::size_t Ballot::bytes_of(std::size_t rank, const wire::Vote& vote) const {
  const std::size_t of_vote = vote.lacks() ? 0 : without_state(vote).ByteSizeLong();
  const bool first_word = vote.has_state() && !states_.contains(rank);
  return of_vote + (first_word ? vote.state().ByteSizeLong() : 0);
}

bool Ballot::take(std::size_t rank, const wire::Vote& vote, TimeMs now) {
  WARREN_CHECK(!repeats(rank, vote), "a rank votes once");
  bytes_ += bytes_of(rank, vote);
  const bool first_word = vote.has_state() && states_.emplace(rank, vote.state()).second;
  if (!vote.lacks()) {
    if (votes_.empty()) since_ = now;
    votes_.emplace(rank, without_state(vote));
  }
  return first_word;
}

bool Ballot::drop(std::size_t rank) {
  if (const auto state = states_.find(rank); state != states_.end()) {
    bytes_ -= state->second.ByteSizeLong();
    states_.erase(state);
  }
  const auto vote = votes_.find(rank);
  if (vote == votes_.end()) return false;
  bytes_ -= vote->second.ByteSizeLong();
  votes_.erase(vote);
  return true;
}

std::size_t Ballot::any_rank() const {
  WARREN_CHECK(!empty(), "somebody has said something");
  return votes_.empty() ? states_.begin()->first : votes_.begin()->first;
}

void Ballot::clear() {
  votes_.clear();
  states_.clear();
  bytes_ = 0;
}

std::vector<const Ballot::Setups*> Ballot::setups() const {
  std::vector<const Setups*> lists;
  for (const auto& [rank, vote] : votes_) lists.push_back(&vote.setups());
  return lists;
}

std::string Ballot::differing_counts(const Name& name) const {
  struct Count {
    std::size_t rank;
    std::uint64_t rounds;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Count> counts;  // by (group, version): of the first that names it
  for (const auto& [rank, vote] : votes_) {
    for (const wire::Position& p : vote.positions()) {
      const auto [first, added] = counts.try_emplace({p.group(), p.version()}, Count{rank, p.rounds()});
      if (added || first->second.rounds == p.rounds()) continue;
      return name(first->second.rank) + " has done " + std::to_string(first->second.rounds) + " rounds in " +
             of_program(Version(p.version())) + (p.group() == kWorldGroup.value ? "" : " of a group") + ", " +
             name(rank) + " has done " + std::to_string(p.rounds());
    }
  }
  return {};
}

std::string Ballot::differing_states(const Name& name) const {
  return difference_of_states(states_, name);
}

std::string Ballot::stale_copy(const Name& name) const {
  return warren::stale_copy(votes_, name);
}

void Ballot::check(Version version, Timeline timeline, const std::function<bool(std::size_t rank)>& stands) const {
  std::size_t bytes = 0;
  for (const auto& [rank, vote] : votes_) {
    WARREN_CHECK(stands(rank), "a vote lives no longer than the life that gave it (I5)");
    WARREN_CHECK(Version(vote.version()) == version && Timeline(vote.timeline()) == timeline,
                 "votes are for the next version, in this timeline (I5)");
    bytes += vote.ByteSizeLong();
  }
  for (const auto& [rank, state] : states_) {
    WARREN_CHECK(stands(rank), "a state lives no longer than the life that told it (I5)");
    bytes += state.ByteSizeLong();
  }
  WARREN_CHECK(bytes == bytes_, "the bytes of votes are counted (I8)");
}

}  // namespace warren
