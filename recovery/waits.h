// Who waits for whom: what the heartbeats of one epoch's members say together. Pure functions; each verdict carries its
// reason.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/frame.h"
#include "recovery/ids.h"
#include "recovery/messages.pb.h"

namespace warren {

// The newest heartbeat of one member, as far as it matters here.
struct RankReport {
  Rank rank;
  bool finalizing = false;  // all its rounds are done and none will follow
  bool heard_lately = true;
  std::uint64_t rounds_finished = 0;
  std::span<const wire::CurrentRound> rounds;
  std::int64_t finalizing_ms = 0;  // since it is
  std::int64_t age_ms = 0;         // since `rounds` was told: it may have gone on, or died, meanwhile
};
using RankName = std::function<std::string(Rank)>;  // "rank 2 (worker w2 on host h)"

[[nodiscard]] RoundId round_of(const wire::CurrentRound& round);
[[nodiscard]] Fingerprint fingerprint_of(const wire::CurrentRound& round);

struct Disagreement {
  Rank a, b;
  std::string text;  // names both ranks and both calls
};
// Two ranks that can never agree: they are in one round with different calls; or each has waited for the other for the
// whole round timeout in different rounds of a group, at the time of the older of their reports; or one has waited for
// the whole round timeout, and so long ago the other has called finalize (whoever was late for its last round may
// finalize before the word of those who waited is renewed), for a message twice as long, as it may be sent again.
// `reports` by rank, all of them. A rank that merely is not in the round yet is no disagreement, however long it takes.
[[nodiscard]] std::optional<Disagreement> find_disagreement(std::span<const RankReport> reports,
                                                            std::int64_t round_timeout_ms, bool check_call_sites,
                                                            const RankName& name);

struct WaitLine {
  Rank waiter;
  RoundId round;
  std::string text;  // "rank 0 waits for rank 3 in round 0.17 since 20 s; rank 3 is alive and has finished 12 rounds"
};
// One line for each round in which somebody has waited for at least `least_ms`, at most limits::kMaxRoundsPerHeartbeat.
// Of the waiters it names one whose wait leads out of the round, to a rank that has not entered it, where there is one.
[[nodiscard]] std::vector<WaitLine> describe_waits(std::span<const RankReport> reports, std::int64_t least_ms);

}  // namespace warren
