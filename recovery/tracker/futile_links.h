// Links that end one generation after the other, in none of which anything gets done.
//
// A link is unusable once it has ended several generations in a row: a firewall drops its traffic, or one rank of a
// host cannot map memory of another one. The machine decides what to do about it (unusable.cc).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/decide/detours.h"

namespace warren {

class FutileLinks {
 public:
  struct Link {
    int generations = 0;          // that it has ended, since it changed its way
    std::optional<TimeMs> since;  // the first of these generations began
    Generation newest{};          // that it has ended
    std::string why_a, why_b;     // what its ends have said last; empty: nothing

    [[nodiscard]] bool is_unusable() const;
  };
  using Links = std::map<RankPair, Link>;

  // `reporter` has lost its link to `peer` in `generation`, which began at `began`. Links beyond a limit are not noted.
  void note(std::uint32_t reporter, std::uint32_t peer, const std::string& why, Generation generation, TimeMs began);
  // Something got done: no link is futile.
  void clear() { links_.clear(); }
  // Forgets the links that `gone` names.
  void forget_if(const std::function<bool(const RankPair&)>& gone);
  // Counts generations of this rank's links from 0, as they take another way.
  void judge_anew(std::uint32_t rank);
  // Counts generations of this link from 0, as it takes another way.
  void judge_anew(const RankPair& pair) { links_.at(pair).generations = 0; }

  [[nodiscard]] bool empty() const { return links_.empty(); }
  [[nodiscard]] bool any_unusable() const;
  [[nodiscard]] const Links& all() const { return links_; }
  // The rank that has the most of the unusable links that `counts` names, and how many ranks these links have.
  struct Worst {
    std::uint32_t rank;
    int links;
    std::size_t ranks;
  };
  [[nodiscard]] std::optional<Worst> worst_rank(const std::function<bool(const RankPair&)>& counts) const;

 private:
  Links links_;
};

}  // namespace warren
