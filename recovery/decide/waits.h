// The ranks that others wait for, by what the heartbeats of one generation's members say together. Pure functions; each
// verdict carries its reason.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/wire/frame.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

// The newest heartbeat of one member, as far as it matters here.
struct RankReport {
  Rank rank;
  bool finalizing = false;  // all its rounds are done and none will follow
  bool heard_lately = true;
  std::uint64_t rounds_finished = 0;
  std::span<const wire::CurrentRound> rounds;
  std::int64_t finalizing_ms = 0;            // since it is
  std::int64_t age_ms = 0;                   // since `rounds` was told: it may have gone on, or died, meanwhile
  const wire::Activity* activity = nullptr;  // null: it has told none
  const wire::Blocked* blocked = nullptr;    // null: it has not said that it is
};
using RankName = std::function<std::string(Rank)>;  // "rank 2 (worker w2 on host h)"

[[nodiscard]] RoundId round_of(const wire::CurrentRound& round);
[[nodiscard]] Fingerprint fingerprint_of(const wire::CurrentRound& round);

// What is waited for: the bytes of a round, by any of its ranks; or, after that round, messages, by one rank.
struct Wait {
  RoundId round;
  Rank of_messages = kNoRank;
  friend bool operator==(const Wait&, const Wait&) = default;
};

struct Disagreement {
  Rank a, b;
  std::string text;  // names both ranks and both calls
  // Of `a`, where lost bytes would look the same: the next generation, with new links and what is in the log, settles
  // it. Nothing: the calls themselves are known to differ.
  std::optional<Wait> wait;
};
// Two ranks that can never agree, or whose bytes for each other are lost. They are in one round with different calls;
// or one has waited for the whole round timeout, in which nothing has come to it from the other, and for so long the
// other has waited in a later round of the group (for anybody: it has done what the first one waits for, or has called
// something else), or has called finalize. For a message twice as long, as it may be sent again. All times are those of
// the older of the two reports: whoever was late for its last round may have gone on before the word of those who
// waited is renewed. `reports` by rank, all of them. A rank that merely is not in the round yet is no disagreement,
// however long it takes.
[[nodiscard]] std::optional<Disagreement> find_disagreement(std::span<const RankReport> reports,
                                                            std::int64_t round_timeout_ms, bool check_call_sites,
                                                            const RankName& name);

// By rank: for how long another rank has waited for this one, which has said that it is in no call; 0: none does.
[[nodiscard]] std::vector<std::int64_t> awaited_outside(std::span<const RankReport> reports);

struct WaitLine {
  Rank waiter;
  RoundId round;
  std::string text;  // "rank 0 waits for rank 3 in round 0.17 since 20 s; rank 3 is alive and has finished 12 rounds"
};
// One line for each round in which somebody has waited for at least `least_ms`, at most limits::kMaxRoundsPerHeartbeat.
// Of the waiters it names one whose wait leads out of the round, to a rank that has not entered it, where there is one.
[[nodiscard]] std::vector<WaitLine> describe_waits(std::span<const RankReport> reports, std::int64_t least_ms);

}  // namespace warren
