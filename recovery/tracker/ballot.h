// The ballot on the next version: which ranks have voted for it, and what they say of their states.
//
// One ballot belongs to one generation and one version. The machine decides which messages are votes for them, and
// clears the ballot when the generation ends or the version is committed (I5).
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

class Ballot {
 public:
  using Name = std::function<std::string(std::size_t rank)>;  // says who a rank is, for people
  using Setups = google::protobuf::RepeatedPtrField<wire::Setup>;

  // Whether this rank has said all of this before.
  [[nodiscard]] bool repeats(std::size_t rank, const wire::Vote& vote) const;
  // How many bytes take() would keep of it.
  [[nodiscard]] std::size_t bytes_of(std::size_t rank, const wire::Vote& vote) const;
  // Takes the vote, or of a rank that lacks something (Vote.lacks) its state alone. Returns whether it is the first
  // word of this rank's state.
  bool take(std::size_t rank, const wire::Vote& vote, TimeMs now);
  // A rank has loaded: what it has said is void. Returns whether it had voted.
  bool drop(std::size_t rank);
  void clear();

  [[nodiscard]] bool has_voted(std::size_t rank) const { return votes_.contains(rank); }
  [[nodiscard]] std::size_t votes() const { return votes_.size(); }
  [[nodiscard]] std::size_t states() const { return states_.size(); }
  [[nodiscard]] bool empty() const { return votes_.empty() && states_.empty(); }
  [[nodiscard]] std::size_t any_rank() const;            // that has said something; somebody has
  [[nodiscard]] TimeMs since() const { return since_; }  // the first vote, if there is one
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

  // The set-up rounds that each vote names.
  [[nodiscard]] std::vector<const Setups*> setups() const;
  // Each names two ranks, and how they contradict each other. Empty: nobody contradicts anybody.
  [[nodiscard]] std::string differing_counts(const Name& name) const;  // of rounds
  [[nodiscard]] std::string differing_states(const Name& name) const;
  [[nodiscard]] std::string stale_copy(const Name& name) const;  // of a local state

  // Checks that every vote is for this version of this timeline, and of a rank for which `stands` is true.
  void check(Version version, Timeline timeline, const std::function<bool(std::size_t rank)>& stands) const;

 private:
  std::map<std::size_t, wire::Vote> votes_;          // by rank; without their states
  std::map<std::size_t, wire::StateDigest> states_;  // by rank; also of ranks that have not voted yet
  TimeMs since_;
  std::size_t bytes_ = 0;  // of both
};

}  // namespace warren
