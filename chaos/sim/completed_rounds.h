// The rounds that some life has completed in the newest timeline. I4: none of them is computed again in that timeline
// as long as all of its result is there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "chaos/sim/hosts.h"
#include "chaos/sim/world.h"
#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"

namespace warren::chaos {

class CompletedRounds {
 public:
  CompletedRounds(World& world, const Hosts& hosts) : world_(world), hosts_(hosts) {}

  void add(const RoundId& round);
  void clear() { rounds_.clear(); }
  // A new plan of the same timeline calls them completed, or final. `excused`: some may have been lost.
  void check(const wire::Plan& plan, bool excused);

 private:
  // How long a result is of which all lies in the memory of a plan's hosts.
  [[nodiscard]] std::optional<std::uint64_t> all_there(const wire::Plan& plan, const RoundId& round) const;

  World& world_;
  const Hosts& hosts_;
  std::map<std::pair<GroupId, Version>, std::uint64_t> rounds_;  // how many, by anybody
};

}  // namespace warren::chaos
