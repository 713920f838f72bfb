// Who holds the job up: verdicts on dead, hung, slow and cut off ranks and on slow links, from what both ends of each
// wait have told (docs/decisions/0012). Pure: testimonies in, verdicts with their reasons out.
//
// A wait has two ends. Whoever waits is idle, and says for whose bytes; a rank is blamed only if somebody waits for it
// while it waits for nobody itself, a link only if one end waits for bytes that the other end cannot get rid of. So the
// victim of a slow peer, which waits as long as everybody else, is never named.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/decide/waits.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

// Every time that decides about stragglers, from the one number that the user gives.
struct StragglerLimits {
  std::int64_t round_timeout_ms = 0;  // who is silent for so long is lost
  std::int64_t heartbeat_ms = 0;
  std::int64_t sample_ms = 0;   // between two looks of a rank at its own data path
  std::int64_t window_ms = 0;   // over which it is judged
  std::int64_t suspect_ms = 0;  // of silence, where the rank's own history knows no longer gaps
};
[[nodiscard]] StragglerLimits straggler_limits(std::int64_t round_timeout_ms);
// Of silence, for a rank whose heartbeats have lately been at most `longest_gap_ms` apart.
[[nodiscard]] std::int64_t suspect_after_ms(const StragglerLimits& limits, std::int64_t longest_gap_ms);
// One sentence with all that was derived.
[[nodiscard]] std::string describe(const StragglerLimits& limits);

// One member's newest heartbeat of this generation, and how long ago it was heard.
struct Testimony {
  Rank rank;
  bool finalizing = false;          // all its rounds are done
  std::int64_t silent_ms = 0;       // since anything was heard of it
  std::int64_t longest_gap_ms = 0;  // lately, between two of its heartbeats; 0: unknown
  std::uint64_t rounds_finished = 0;
  std::span<const wire::CurrentRound> rounds;
  const wire::Activity* activity = nullptr;  // null: it has told none
  std::string_view host = {};                // empty: unknown
};

enum class Blame : std::uint8_t { kHung, kCutOff, kSlowRank, kSlowLink };
inline constexpr std::size_t kBlames = 4;
[[nodiscard]] const char* to_string(Blame blame);         // "slow_rank"
[[nodiscard]] std::string seconds_text(std::int64_t ms);  // "1.5 s"

struct Verdict {
  Blame blame{};
  Rank rank;                     // who is to blame; of a link: whose bytes come too slowly
  Rank peer = kNoRank;           // of a link: to whom
  std::size_t victims = 0;       // ranks that wait for it themselves
  std::int64_t waited_ms = 0;    // of the window, by the one that has waited longest
  std::optional<RoundId> round;  // in which that one is
  bool silent = false;           // the rank is not heard by the tracker
  std::string reason;            // what was told, in numbers
  std::string next;              // what is done about it, or will be

  [[nodiscard]] std::tuple<Blame, Rank, Rank> key() const { return {blame, rank, peer}; }
};

// `all` by rank, all members of the generation. At most limits::kMaxVerdicts, in the order of their kinds and ranks.
[[nodiscard]] std::vector<Verdict> find_stragglers(std::span<const Testimony> all, const StragglerLimits& limits,
                                                   const RankName& name);

// One line for each round in which somebody waits, as far as one wait leads: "round 3.17: rank 0 has waited 2.3 s for
// rank 1, which waits for rank 4, which has not entered it (its program computes; 41 rounds finished)". At most
// limits::kMaxRoundsPerHeartbeat.
[[nodiscard]] std::vector<std::string> explain_waits(std::span<const Testimony> all, const StragglerLimits& limits);

// Verdicts with hysteresis. A slow rank or link stands after it was found in 3 looks in a row, and falls after 5 looks
// without it. Hung and cut off stand at once, as each was found by a time: a silence, or a window in which nothing
// moved. Hung also falls at once, by the first heartbeat; cut off falls after 5 looks.
class StragglerWatch {
 public:
  struct Standing {
    Verdict verdict;  // as found last
    TimeMs since;
  };
  struct Change {
    bool begins = false;
    Verdict verdict;
    std::int64_t stood_ms = 0;  // what has ended
  };
  // Once a heartbeat interval. Returns what changes by this look.
  [[nodiscard]] std::vector<Change> look(const std::vector<Verdict>& found, TimeMs now);
  // In the order of keys.
  [[nodiscard]] std::vector<Standing> standing() const;
  [[nodiscard]] const Verdict* against(Rank rank) const;  // a standing one that is no link's; null: there is none
  // The generation is over.
  void forget() { cases_.clear(); }

 private:
  struct Case {
    Verdict verdict;
    TimeMs since;    // it stands; or was found first
    int found = 0;   // looks in a row
    int missed = 0;  // likewise
    bool stands = false;
  };
  std::map<std::tuple<Blame, Rank, Rank>, Case> cases_;
};

}  // namespace warren
