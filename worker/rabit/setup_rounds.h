// Which rounds a program runs once a process, inside its first version, and what they gave: found out by watching it.
// Pure.
//
// A round that is called from a place of the source in the job's first version, and from there by no rank in the second
// one, is a *set-up round*. Its result is kept, and served to a process that comes back later when it calls from that
// place in the first version it lives through. A program that makes such a round again later, by a process that is not
// new, was misunderstood: nobody could tell a process that is new then whether it is to take part. That is an error, in
// the first run in which it happens, with faults or without.
//
// Until the second version has ended nobody can tell, so that no checkpoint is taken at the end of the first one: who
// is lost before starts again from the beginning, and takes all rounds from the log.
//
// Places are file, line and function: compilers make several call instructions of one call (a loop whose first
// iteration is peeled off), so return addresses would tell rounds apart that are one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
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

class SetupRounds {
 public:
  // By the hash of a place and the number of the call from there in its version: the number of the round.
  using Table = std::map<std::uint64_t, std::uint32_t>;

  // Of a process that watches nothing.
  SetupRounds() = default;
  // Of one that begins the job's first version.
  static SetupRounds first();
  // Of one that has loaded a later one, with what its checkpoint knew.
  static SetupRounds loaded(Table table);

  // What a call from `place` is: a round like any other; one that is served by the kept round of this number; one that
  // was kept, and is made again by a process that is not new.
  struct Call {
    enum { kRound, kServed, kAgain } kind = kRound;
    std::uint32_t round = 0;
    bool operator==(const Call&) const = default;
  };
  Call call(const CallPlace& place);
  // What that round gave; not for those that were kept.
  void gave(std::span<const std::byte> result);

  // The end of a version: where deciding(), decide() with the OR over all ranks of against(), then adopt() with the
  // keys() of all ranks. Then next_version().
  [[nodiscard]] bool skips_checkpoint() const { return phase_ == Phase::kFirst; }
  [[nodiscard]] bool deciding() const { return phase_ == Phase::kSecond; }
  // A bit for each round that is no set-up round as far as this rank knows. The same number of words on all ranks.
  [[nodiscard]] std::vector<std::uint64_t> against() const;
  void decide(std::span<const std::uint64_t> against);
  struct Kept {
    std::uint32_t round;
    std::span<std::byte> result;
  };
  // Those that were decided on, in order; until next_version().
  [[nodiscard]] std::vector<Kept> kept();
  // Of kept(), in its order: this rank's keys.
  [[nodiscard]] std::vector<std::uint64_t> keys() const;
  // `keys`: those of all ranks, rank by rank.
  void adopt(std::span<const std::uint64_t> keys);
  void next_version();

  [[nodiscard]] const Table& table() const { return table_; }
  // Rounds whose results were too large to be remembered.
  [[nodiscard]] std::size_t left_out() const { return left_out_; }

  // What is remembered of the first version: rounds, and bytes of results.
  static constexpr std::size_t kMaxRounds = 65'536;
  static constexpr std::size_t kMaxKept = 1'000;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{256} << 20;

 private:
  enum class Phase { kOff, kFirst, kSecond, kDecided };
  struct Round {
    std::uint64_t key = 0, place = 0;
    std::vector<std::byte> result;
    bool candidate = false;
  };
  std::uint64_t key_of(const CallPlace& place);

  Phase phase_ = Phase::kOff;
  bool new_ = false;  // this is the first version that the process lives through, and not the job's
  std::map<std::uint64_t, std::uint32_t> calls_;  // by place, in this version
  std::uint64_t place_ = 0, key_ = 0;             // of the newest call
  std::vector<Round> rounds_;                     // of the first version
  std::size_t remembered_bytes_ = 0, left_out_ = 0;
  std::vector<std::uint32_t> decided_;
  Table table_;
};

// What Warren stores as the global state: the program's version, what is known of set-up rounds, the model.
struct StateHead {
  std::uint64_t version = 0;
  SetupRounds::Table table;
};
// Appends it; the model's bytes follow.
void write_head(const StateHead& head, std::string& to);
// How many bytes of `state` the head takes; 0: this is no such state.
[[nodiscard]] std::size_t read_head(std::string_view state, StateHead& head);

}  // namespace rabit::layer
