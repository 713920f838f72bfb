// The slow links of a job, and the ways that their bytes take: by way of other ranks, or straight. Also which ways were
// tried in vain (docs/decisions/0012-stragglers.md, Rewire).
//
// The machine decides when to look, ends generations and writes plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/decide/detours.h"
#include "recovery/decide/verdict.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

class Rewiring {
 public:
  // A link that has been slow for long enough.
  struct SlowLink {
    RankPair pair;
    TimeMs since;
  };
  // Result of one look. Links of `changes` change their way with the next plan.
  struct Look {
    struct Obstructed {
      SlowLink link;
      std::string why;
    };
    struct Change {
      SlowLink link;
      bool undone;  // its bytes go straight again
    };
    std::vector<Obstructed> obstructed;  // for another reason than the one said before
    std::vector<Change> changes;
  };
  // Decision of a new plan about one link.
  struct Choice {
    enum class Kind : std::uint8_t {
      kBroke,   // the connections by way of others broke: straight, for now or for ever
      kNoWay,   // straight: there is no other way any more
      kRewired  // by way of `relays`
    };
    Kind kind;
    RankPair pair;
    std::vector<std::uint32_t> relays;
    std::string why;      // it goes straight; empty for kRewired
    bool is_new = false;  // kRewired: the plan before had the link go straight
  };

  // Whether `plan` has the bytes of this link go by way of others.
  [[nodiscard]] static bool takes_detour(const wire::Plan& plan, const RankPair& pair);
  // The links that go by way of others in `plan`, and those that a standing verdict calls slow.
  [[nodiscard]] static std::set<RankPair> slow_links(const wire::Plan& plan,
                                                     const std::vector<StragglerWatch::Standing>& standing);

  // Why the bytes of this link take no other way. Empty: they may take one.
  [[nodiscard]] std::string obstacle(const wire::Plan& plan, const RankPair& pair,
                                     const std::set<RankPair>& slow) const;
  // Why another way is of no use, by link. An entry stays for as long as the lives at its ends.
  [[nodiscard]] const std::map<RankPair, std::string>& hopeless() const { return hopeless_; }
  // No link is sent another way before this time, but straight again at any time.
  [[nodiscard]] TimeMs not_before() const { return not_before_; }

  // Decides about all links that `found` names again and whose verdict has stood for `after_ms`. Changes keep other
  // links waiting for `pause_ms`.
  [[nodiscard]] Look look(const wire::Plan& plan, const std::vector<StragglerWatch::Standing>& standing,
                          const std::vector<Verdict>& found, TimeMs now, std::int64_t after_ms, std::int64_t pause_ms);
  // The link is unusable as it is: its bytes change their way with the next plan.
  void change_with_next_plan(const RankPair& pair) { changing_.insert(pair); }
  // The connections of this detour broke in the generation that ends.
  void note_broken(const RankPair& pair) { broken_.insert(pair); }

  // Decides about all links of `plan`, which follows `before`, and forgets what was known of lives that are over.
  // `plan` has members, and no detours yet.
  [[nodiscard]] std::vector<Choice> choose(const wire::Plan& before, const wire::Plan& plan, TimeMs now,
                                           std::int64_t pause_ms);

 private:
  std::set<RankPair> changing_;                // with the next plan
  std::map<RankPair, std::string> hopeless_;   // why; between lives that are there
  std::set<RankPair> broken_;                  // detours of the generation that ends
  std::set<RankPair> broken_before_;           // and of one before, between these lives
  std::map<RankPair, std::string> obstacles_;  // by slow link, as was said
  TimeMs not_before_;
};

// "rank 3", "ranks 3, 4 and 17 more"
[[nodiscard]] std::string text_of_ranks(const std::vector<std::uint32_t>& ranks);

}  // namespace warren
