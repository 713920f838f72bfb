// Which rounds a program makes once a process, and what they gave: found out by watching it (docs/decisions/0010).
// Pure.
//
// A round from a place of the source that no process is known to have called in two versions is *kept*, with its
// result, from the version that makes it on: it may be a set-up round. Once one process has called a place in two
// versions the place is *regular*, and what was kept of it is dropped. All ranks have the same table of kept rounds and
// regular places; each checkpoint carries it.
//
// A process that has loaded a version and meets a call of a kept round, from a place that it has called in no earlier
// version, asks which round comes next (warren_meets_round): it makes that round, or is given what the kept one gave.
// Where processes make a kept round again, all together, its result is the new one's.
//
// Places are file, line and function: compilers make several call instructions of one call (a loop whose first
// iteration is peeled off), so return addresses would tell rounds apart that are one. A round is found again by its
// place and the number of the call from there in its version; whether two calls are one round is told by places alone.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
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
  enum class Result : std::uint8_t {
    kHere = 0,    // in `result`
    kLogged = 1,  // in the job's log, as a set-up round with a name
    kNone = 2,    // too large to be kept
  };
  std::uint64_t version = 0, index = 0;  // that made it; the number of the operation in it
  // Over all ranks, the least and the greatest: at most two places call one round, as a root and the others do.
  std::array<std::uint64_t, 2> keys{}, sites{};
  std::uint64_t bytes = 0;
  Result where = Result::kHere;
  std::uint64_t digest = 0;  // of the result; kLogged
  std::vector<std::byte> result;
  bool operator==(const SetupRound&) const = default;
};

// What is known when a version begins: the same on all ranks.
struct SetupTable {
  std::vector<SetupRound> kept;  // in the order in which they were made
  std::set<std::uint64_t> regular;
  std::uint64_t logged_rounds = 0, logged_bytes = 0;  // ever
  bool operator==(const SetupTable&) const = default;
};

class SetupRounds {
 public:
  // Of a process that watches nothing.
  SetupRounds() = default;
  // Of one that begins the job's first version, or one whose set-up rounds the job has lost.
  static SetupRounds first(std::uint64_t version);
  // Of one that has loaded a later one, with what its checkpoint knew.
  static SetupRounds loaded(std::uint64_t version, SetupTable table);

  // What a call from `place` is: a round like any other (null), or one that this process may be alone with. Valid
  // until the version ends.
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

  // The end of a version. Where any rank has news: match() with the MAX over all ranks of names(), learn() with the OR
  // of facts(). Then the results of due() are logged, and next_version().
  [[nodiscard]] bool watches() const { return watches_; }
  [[nodiscard]] bool has_news() const { return news_; }
  [[nodiscard]] std::vector<std::uint64_t> names() const;
  void match(std::span<const std::uint64_t> greatest);
  [[nodiscard]] std::vector<std::uint64_t> facts() const;
  void learn(std::span<const std::uint64_t> facts);
  // Rounds whose results the log takes, so that checkpoints carry them no longer: large ones that have been kept for
  // some versions, so that those which recur soon are gone. Each rank of a job names the same.
  [[nodiscard]] std::vector<SetupRound> due() const;
  // They are in the log, all of due().
  void logged();
  void next_version();

  [[nodiscard]] const SetupTable& table() const { return table_; }
  // Rounds whose results were too large to be kept, since the last look.
  [[nodiscard]] std::size_t take_left_out();

  // Of one version: so many rounds are looked at. Of the table: places, rounds, and bytes of results that are in it.
  // What the log may get of it is less than a process may have there (limits::kMaxSetups).
  static constexpr std::size_t kMaxRounds = 65'536;
  static constexpr std::size_t kMaxKeptBytes = std::size_t{64} << 20;
  static constexpr std::size_t kMaxLogged = 1'000;
  static constexpr std::uint64_t kMaxLoggedBytes = std::uint64_t{512} << 20;
  // So many versions a round is kept in checkpoints: of an iteration with as many, the rounds that recur are gone.
  static constexpr std::uint64_t kVersionsKept = 4;
  // Up to this size a result stays in checkpoints, beside the words that its round has there anyway. Each vote names
  // each round that the log has, which costs more time than to store so many bytes again.
  static constexpr std::uint64_t kMaxSmallBytes = 1024;

 private:
  // A round of this version. Programs make thousands of regular ones: these are two numbers.
  struct Seen {
    std::uint64_t key = 0, site = 0;  // key: 0 if from nowhere, or from a regular place
  };
  // What match() has found out about it.
  struct Matched {
    std::array<std::uint64_t, 2> keys{}, sites{};
    bool elsewhere = false;
  };
  // Of one that is not regular here.
  struct Gave {
    std::uint64_t bytes = 0;
    bool remembered = false;
    std::vector<std::byte> result;
  };
  // A place that is regular, found by its pointers: a hash of its text costs as much as a small round.
  struct Regular {
    CallPlace place;
    std::uint64_t site = 0;
  };
  static constexpr std::size_t kRegularsAtHand = 64;
  Regular& at_hand(const CallPlace& place);
  void count_kept_bytes();

  bool watches_ = false;
  bool loaded_ = false;  // this process has loaded a version: others may have made what it meets
  std::uint64_t version_ = 0;
  SetupTable table_;
  std::map<std::uint64_t, std::uint64_t> calls_;  // by site, in this version
  std::set<std::uint64_t> called_before_;         // sites that this process has called in earlier versions
  std::set<std::uint64_t> made_;                  // sites of rounds that it has made in this version
  std::uint64_t site_ = 0, key_ = 0;              // of the newest call
  std::vector<Seen> seen_;
  std::vector<Matched> matched_;
  std::map<std::size_t, Gave> gave_;  // by index in seen_
  std::array<Regular, kRegularsAtHand> regulars_{};
  std::size_t kept_bytes_ = 0;  // of the table, and of what was remembered in this version
  bool news_ = false;           // a round of this version came from a site that is not regular
  std::size_t left_out_ = 0;
};

// What Warren stores as the global state: the program's version, what is known of set-up rounds, whether the checkpoint
// is one without local models, the model.
struct StateHead {
  std::uint64_t version = 0;
  SetupTable table;
  bool no_local = false;
};
// Appends it; the model's bytes follow.
void write_head(std::uint64_t version, const SetupTable& table, bool no_local, std::string& to);
// How many bytes of `state` the head takes; 0: this is no such state.
[[nodiscard]] std::size_t read_head(std::string_view state, StateHead& head);

}  // namespace rabit::layer
