// The part of a generation's plan that rounds need. All ranks of the job have agreed on it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "worker/schedule/schedule.h"

namespace warren::worker {

struct RoundsPlan {
  // How far the job is in one group's rounds of one version.
  struct Frontier {
    GroupId group;
    Version version;
    std::uint64_t rounds = 0;  // below: in the log
    bool closed = false;       // there are no more
    Ranges final;              // bytes of the whole result of round `rounds`
  };

  // A set-up round that the job knows.
  struct Setup {
    GroupId group;
    Sequence name;
    Timeline timeline;  // in which it was first called
    bool done = false;  // in the log
    Ranges final;       // else: bytes of the whole result
  };

  // Rounds that were logged in an older timeline and keep its name: those below `rounds`, and not below the entry
  // before of this group and version.
  struct Kept {
    GroupId group;
    Version version;
    Timeline timeline;
    std::uint64_t rounds = 0;
  };

  // In which order the ring of an allreduce visits ranks, in this version and later ones.
  struct RingOrder {
    Version from;
    std::vector<Rank> ranks;
  };

  Generation generation;
  std::uint64_t run = 0;
  Timeline timeline;
  Rank self;
  std::uint32_t world_size = 1;
  schedule::Algorithm algorithm = schedule::Algorithm::kAuto;
  std::uint64_t chunk_bytes = 0;
  bool check_call_sites = false;
  std::uint32_t replicas = 0;
  std::vector<std::uint32_t> hosts, domains;  // by rank of the job
  std::vector<schedule::Host> shared;         // by host: what its ranks share; empty: nothing is known
  std::vector<Frontier> frontier;
  std::vector<Setup> setups;
  std::vector<Kept> kept;         // by (group, version, rounds)
  std::vector<RingOrder> orders;  // by `from`; before the first: in the order of ranks
  bool resumes = false;           // some lives have come from an earlier generation
  bool shrinks = false;           // the job goes on without ranks that were lost (docs/decisions/0020-shrink.md)
  std::vector<Rank> present;      // whose inputs are in the rounds that are computed in this generation, rising
  // Likewise for those of older timelines that `kept` names; where one is missing, all ranks'.
  std::map<Timeline, std::shared_ptr<const std::vector<Rank>>> contributors;
};

}  // namespace warren::worker
