// Which rounds a program makes once a process, inside the first version that it goes through, and what they gave: found
// out by watching it (docs/decisions/0010). Pure.
//
// Candidates are the rounds of the job's first version. One from a place of the source that is called again in the
// next version is dropped, by whoever sees it first; what remains is *kept*: set-up rounds, and rounds that recur
// later. A process that has loaded a version and meets a call of a kept round in it, or of a candidate, asks which
// round comes next (warren_meets_round): it makes that round, or is given what the kept one gave.
//
// Places are file, line and function: compilers make several call instructions of one call (a loop whose first
// iteration is peeled off), so return addresses would tell rounds apart that are one. A round is found again by its
// place and the number of the call from there in its version; whether two calls are one round is told by places alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace rabit::layer {

// Where a call is made. A file of null or "" is nowhere: such a round is never taken for a set-up round.
struct CallPlace {
  const char* file = nullptr;
  int line = 0;
  const char* caller = nullptr;
};

struct SetupRound {
  std::uint64_t index = 0;  // of the operation, in the version in which it was made
  // Over all ranks, the least and the greatest: at most two places call one round, as a root and the others do.
  std::array<std::uint64_t, 2> keys{}, sites{};
  std::uint64_t bytes = 0;
  std::vector<std::byte> result;  // of a candidate; empty: too large to be kept
  bool operator==(const SetupRound&) const = default;
};

// What is known of them when a version begins: the same on all ranks.
struct SetupTable {
  enum class Phase : std::uint8_t { kOff = 0, kCandidates = 1, kDecided = 2 };
  Phase phase = Phase::kOff;
  std::uint64_t first = 0;  // the version in which they were made
  std::vector<SetupRound> rounds;
  bool operator==(const SetupTable&) const = default;
};

class SetupRounds {
 public:
  // Of a process that watches nothing.
  SetupRounds() = default;
  // Of one that begins the job's first version, or one whose set-up rounds the job has lost.
  static SetupRounds first(std::uint64_t version);
  // Of one that has loaded a later one, with what its checkpoint knew.
  static SetupRounds loaded(std::shared_ptr<const SetupTable> table);

  // What a call from `place` is: a round like any other (null), or one that this new process may be alone with.
  struct Call {
    const SetupRound* kept = nullptr;
    std::uint64_t site = 0;
  };
  Call call(const CallPlace& place);
  // How such a call was decided. False: from this place the others have made a round before in this version, and now
  // they make none: it is called for both kinds, and the one before may have been taken for the other.
  [[nodiscard]] bool decided(const Call& call, bool met);
  // What a round gave; not for those that were given to this process.
  void gave(std::span<const std::byte> result);

  // The end of the first version: match() with the MAX over all ranks of names(), then keep() with the OR of against().
  [[nodiscard]] bool gathering() const { return gathering_; }
  [[nodiscard]] std::vector<std::uint64_t> names() const;
  void match(std::span<const std::uint64_t> greatest);
  void keep(std::span<const std::uint64_t> against);
  // The end of a later one: decide() with the OR over all ranks of against(); true: it is decided, by `kept` among
  // the table's rounds. Not where all processes were new in the version: nothing was seen.
  [[nodiscard]] bool watching() const { return !gathering_ && table_->phase == SetupTable::Phase::kCandidates; }
  [[nodiscard]] bool decide(std::span<const std::uint64_t> against, std::vector<SetupRound>& kept);
  // A bit for each round that is no set-up round as far as this rank knows; the same number of words on all ranks.
  [[nodiscard]] std::vector<std::uint64_t> against() const;
  void next_version();

  [[nodiscard]] const std::shared_ptr<const SetupTable>& table() const { return table_; }
  // Rounds that remained and whose results were too large, or too many, to be kept.
  [[nodiscard]] std::size_t left_out() const { return left_out_; }

  // What is remembered of the first version: rounds, and bytes of results.
  static constexpr std::size_t kMaxRounds = 65'536;
  static constexpr std::size_t kMaxKept = 1'000;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{64} << 20;

 private:
  bool gathering_ = false;
  bool new_ = false;  // this is the first version that the process goes through, and not the one that is gathered
  std::uint64_t first_ = 0;
  std::map<std::uint64_t, std::uint64_t> calls_;  // by site, in this version
  std::set<std::uint64_t> made_;                  // sites of rounds that this new process has made in this version
  std::uint64_t site_ = 0, key_ = 0;              // of the newest call
  std::vector<SetupRound> rounds_;                // gathered; keys and sites are this rank's twice, until match()
  std::vector<bool> against_;                     // rounds_, or the table's
  std::size_t remembered_bytes_ = 0, left_out_ = 0;
  std::shared_ptr<const SetupTable> table_ = std::make_shared<SetupTable>();
};

// What Warren stores as the global state: the program's version, what is known of set-up rounds, whether the checkpoint
// is one without local models, the model.
struct StateHead {
  std::uint64_t version = 0;
  std::shared_ptr<const SetupTable> table = std::make_shared<SetupTable>();
  bool no_local = false;
};
// Appends it; the model's bytes follow.
void write_head(const StateHead& head, std::string& to);
// How many bytes of `state` the head takes; 0: this is no such state.
[[nodiscard]] std::size_t read_head(std::string_view state, StateHead& head);

}  // namespace rabit::layer
