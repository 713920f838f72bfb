// What tests of single scenarios share: jobs of which nothing is drawn but the program.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chaos/sim/cluster.h"
#include "chaos/sim/setting.h"
#include "recovery/tracker/tracker_machine.h"
#include "tests/sanitized.h"

namespace warren::chaos {

// A sanitizer makes a run some fifteen times as long, and looks at the code more than at the draws: fewer seeds, of the
// same cases.
inline constexpr std::uint64_t kFewer = kAddressSanitized ? 20 : 1;
constexpr std::uint64_t seeds(std::uint64_t many) {
  return (many + kFewer - 1) / kFewer;
}

inline std::uint64_t taken(const std::vector<std::uint64_t>& counts, std::span<const char* const> names,
                           std::string_view name) {
  const auto at = std::find(names.begin(), names.end(), name);
  EXPECT_NE(at, names.end()) << name;
  return counts[static_cast<std::size_t>(at - names.begin())];
}
inline std::uint64_t tracker(const SimOutcome& o, std::string_view name) {
  return taken(o.tracker_transitions, TrackerMachine::transition_names(), name);
}

inline SimOptions calm(std::uint32_t world_size, std::uint64_t seed) {
  SimOptions options;
  options.seed = seed;
  options.world_size = world_size;
  options.faults.emplace();
  options.round_timeout_ms = 500;
  options.survivable = true;
  return options;
}

// Four ranks, one of which, or one link, is slow.
inline SimOptions straggling(std::uint64_t seed, Straggler::What what) {
  SimOptions options = calm(4, seed);
  options.algorithm = "ring";
  options.collective = Collective::kAllreduce;
  options.groups = false;
  options.rewires = false;
  // Ranks of such programs compute for so different times that some do hold up the others.
  options.inferred = false;
  Straggler s;
  s.what = what;
  s.rank = Rank(static_cast<std::int32_t>(seed % 4));
  switch (what) {
    case Straggler::What::kNobody: break;
    case Straggler::What::kProgram: s.drag_us = 170'000; break;
    case Straggler::What::kDataPath: s.drag_us = 40'000; break;
    case Straggler::What::kLink:
      s.drag_us = 40'000;
      s.peer = Rank((s.rank.value + 1) % 4);
      break;
    case Straggler::What::kHung:
      // Not long enough to be lost.
      s.on_us = 380'000;
      s.off_us = 120'000;
      break;
  }
  options.straggler = s;
  return options;
}

// A spare takes the place of a slow rank, and is not slow.
inline SimOptions replacing(std::uint64_t seed, Straggler::What what) {
  SimOptions options = straggling(seed, what);
  options.replicas = 1 + static_cast<std::uint32_t>(seed % 3);
  options.spares = 1 + static_cast<std::uint32_t>(seed % 2);
  options.replace_after_ms = seed % 5 * 100 + 1;
  options.straggler->goes = true;
  return options;
}

// A link is slow, and there are ways around it.
inline SimOptions rewiring(std::uint64_t seed, Straggler::What what) {
  SimOptions options = straggling(seed, what);
  options.replicas = 1 + static_cast<std::uint32_t>(seed % 3);
  options.hosts = {"a", "b", "c", "d"};
  options.rewires = true;
  return options;
}

// And the ring may go around it: of the two orders of the other hosts it takes one.
inline SimOptions reordering(std::uint64_t seed) {
  SimOptions options = rewiring(seed, Straggler::What::kLink);
  options.reorders = true;
  options.many_versions = true;
  // Once the link holds up nobody, whoever computes for longer in these programs does, and is named.
  options.straggler->judged = false;
  return options;
}

// Workers have GPUs, among which NCCL moves the bytes of large allreduces; each on a machine of its own.
inline SimOptions exchanging(std::uint32_t world_size, std::uint64_t seed) {
  SimOptions options = calm(world_size, seed);
  options.gpus = true;
  options.replicas = 2;
  options.disks = false;
  options.groups = false;
  options.hosts = {"a", "b", "c", "d"};
  options.hosts.resize(world_size);
  return options;
}

// They are on one host, and read inputs and results on each other's GPUs.
inline SimOptions lending(std::uint32_t world_size, std::uint64_t seed) {
  SimOptions options = exchanging(world_size, seed);
  options.nccl = false;
  options.hosts.assign(world_size, "a");
  options.algorithm = "auto";
  return options;
}

// Likewise three or four ranks on two hosts, of which one or both have two. The butterfly's blocks have to be large for
// that.
inline SimOptions lending_apart(std::uint64_t seed) {
  static const std::vector<std::vector<std::string>> kHosts = {
      {"a", "a", "b", "b"}, {"a", "a", "b"}, {"a", "b", "b"}, {"a", "b", "b", "a"}};
  SimOptions options = lending(4, seed);
  options.hosts = kHosts[seed % kHosts.size()];
  options.world_size = static_cast<std::uint32_t>(options.hosts.size());
  const bool butterfly = seed / kHosts.size() % 2 != 0;
  options.algorithm = butterfly ? "butterfly" : "ring";
  if (butterfly) options.chunk_bytes = std::uint64_t{64} << 10;
  return options;
}

// Each rank on a machine of its own, two copies; that of rank 0 is taken away in time, and a moment later that of
// another rank goes without a word.
inline SimOptions noticed(std::uint64_t seed) {
  SimOptions options = calm(3 + static_cast<std::uint32_t>(seed % 2), seed);
  options.replicas = 2;
  options.hosts = {"a", "b", "c", "d"};
  options.hosts.resize(*options.world_size);
  SimOptions::Notice notice;
  notice.worker = 0;
  notice.passage = seed / 3 % 12;
  notice.within_us = 8'000'000;
  notice.then = 1 + seed / 2 % (*options.world_size - 1);
  // While all stop, or while the next life replays.
  notice.then_us = static_cast<std::int64_t>(seed % 2 == 0 ? seed * 1733 % 60'000 : seed * 37 % 2'000);
  options.notices = {notice};
  return options;
}

// As soon as rank 1 has returned something its machine is lost, and rank 0 hears that its own is taken away.
inline SimOptions noticed_as_another_dies(std::uint64_t seed) {
  SimOptions options = noticed(seed);
  options.groups = false;  // what a group of one rank has done lies on its host alone
  SimOptions::Notice& notice = options.notices.front();
  notice.at = seed % 2 == 0 ? KillPoint::kSend : KillPoint::kCompletion;
  notice.passage = seed / 2 % 60;
  notice.then.reset();
  options.deaths.push_back({1, KillPoint::kReturn, seed / 3 % 12, true});
  return options;
}

// Rank 0 leaves in the middle of a round, which others make again with what its next life reads; and one of those who
// have made it is lost before a commit, and replays it.
inline SimOptions noticed_in_a_round(std::uint64_t seed) {
  SimOptions options = noticed(seed);
  options.collective = Collective::kBroadcast;
  options.algorithm = "tree";  // somebody passes it on
  SimOptions::Notice& notice = options.notices.front();
  notice.at = seed % 2 == 0 ? KillPoint::kSend : KillPoint::kCompletion;
  notice.passage = seed / 2 % 60;
  notice.then.reset();
  // Of the same moments, so that all are in the round that it ends.
  options.deaths.push_back({1, KillPoint::kSend, seed / 3 % 60});
  options.deaths.push_back({2, KillPoint::kRecall, 0});
  options.deaths.push_back({2, KillPoint::kReturn, 1 + seed / 5 % 20});
  return options;
}

}  // namespace warren::chaos
