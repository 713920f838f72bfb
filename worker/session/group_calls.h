// Groups of ranks, as the program makes and removes them, and the names of their rounds.
//
// Threads: from the program's threads. The functions take the session's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/life/life.h"
#include "worker/rounds/engine.h"
#include "worker/session/calls.h"
#include "worker/session/driver.h"
#include "worker/session/fused_calls.h"

namespace warren::worker {

class GroupCalls {
 public:
  // `self`: this rank, which no thread writes to once the first plan is here. All of these outlive this.
  GroupCalls(const Rank& self, Driver& driver, Life& life, FusedCalls& fused, Calls& calls)
      : self_(self), driver_(driver), life_(life), fused_(fused), calls_(calls) {}
  GroupCalls(const GroupCalls&) = delete;
  GroupCalls& operator=(const GroupCalls&) = delete;

  // As Engine::add_group() and Engine::used_channels().
  [[nodiscard]] Status add(GroupId id, std::vector<Rank> members, std::uint32_t channel);
  [[nodiscard]] Engine::Channels used_channels();
  // Makes a group whose members alone make it, this rank among them: in its first round they agree on its channel.
  // `site`: the program's call.
  [[nodiscard]] Status make(GroupId id, const std::vector<Rank>& members, std::uint64_t site);
  // Why a group cannot be made where ranks use all channels.
  [[nodiscard]] static Status no_channel();
  // Waits for the group's outstanding calls first.
  void remove(GroupId id);

  // As Engine::setup_known().
  [[nodiscard]] bool setup_known(GroupId group, const std::string& name);
  // Names what a group split here is called: the same in each life. The group's batch is sent before.
  [[nodiscard]] RoundId next_round(GroupId group);

 private:
  [[nodiscard]] Engine& engine() { return life_.engine(); }

  const Rank& self_;
  Driver& driver_;
  Life& life_;
  FusedCalls& fused_;
  Calls& calls_;
};

}  // namespace warren::worker
