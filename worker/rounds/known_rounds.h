// This generation's rounds, as far as the plan and this life know them. That is their names, which of them are in the
// log, who takes part, and which set-up rounds there are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"
#include "worker/rounds/rounds_plan.h"

namespace warren::worker {

// A member says this of a set-up round that it has completed.
[[nodiscard]] wire::Setup done_setup(const RoundId& round);

class KnownRounds {
 public:
  // Knowledge of one round.
  struct Known {
    bool done = false;    // in the log
    Ranges final;         // else: bytes of the whole result that are
    bool beyond = false;  // the version has ended before it
  };

  // `plan` is the engine's, and changes with each generation.
  explicit KnownRounds(const RoundsPlan& plan) : plan_(plan) {}
  // The plan is another one. A set-up round that was done and is lost is no more, unless this life has what it gave.
  void install();

  // Rounds of versions. The name of a group's round: that of the timeline in which it is, or was, computed.
  [[nodiscard]] RoundId round_of(GroupId group, Version version, Sequence sequence) const {
    for (const RoundsPlan::Kept& k : plan_.kept) {
      if (k.group == group && k.version == version && sequence.value < k.rounds) {
        return {k.timeline, group, version, sequence};
      }
    }
    return {plan_.timeline, group, version, sequence};
  }
  // Timelines before this one are obsolete.
  [[nodiscard]] Timeline oldest_timeline() const;
  // null: nobody has done a round of these.
  [[nodiscard]] const RoundsPlan::Frontier* frontier_of(GroupId group, Version version) const {
    for (const RoundsPlan::Frontier& f : plan_.frontier) {
      if (f.group == group && f.version == version) return &f;
    }
    return nullptr;
  }
  // Also of a set-up round.
  [[nodiscard]] Known known_of(const RoundId& round) const;
  // Whose inputs are in a round; null: those of all members.
  [[nodiscard]] std::shared_ptr<const std::vector<Rank>> contributors_to(const RoundId& round) const;
  // The order of a ring in this version; null: that of ranks.
  [[nodiscard]] const RoundsPlan::RingOrder* ring_order(Version version) const;

  // Set-up rounds. Whether the plan or this life knows one of this name.
  [[nodiscard]] bool knows_setup(GroupId group, Sequence name) const { return setups_.contains({group, name}); }
  // The round that a call of this name is.
  [[nodiscard]] RoundId setup_round(GroupId group, Sequence name) const;
  // This life calls a set-up round whose result has so many bytes. False: with this new one it would call more of them,
  // or more bytes, than limits.h allows.
  [[nodiscard]] bool call_setup(GroupId group, Sequence name, std::uint64_t bytes);
  // This life has the result of a set-up round that it has called.
  void complete_setup(GroupId group, Sequence name);
  [[nodiscard]] bool completed_setup(GroupId group, Sequence name) const;
  // All that this life has completed, by (group, name).
  [[nodiscard]] std::vector<wire::Setup> setups_done() const;
  // All that the log keeps, as far as this life and the plan know.
  [[nodiscard]] SetupsInUse setups_in_use() const;

 private:
  struct Setup {
    Timeline timeline;
    bool done = false;       // as the plan says, or this life
    bool called = false;     // by this life
    bool completed = false;  // by this life: it has what it gave
  };

  const RoundsPlan& plan_;
  std::map<std::pair<GroupId, Sequence>, Setup> setups_;
  std::size_t setups_called_ = 0;
  std::uint64_t setup_bytes_ = 0;  // results of those
};

}  // namespace warren::worker
