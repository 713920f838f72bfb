// What a call costs by each algorithm, and the choice among them: pure, so that all ranks choose alike.
//
// A call's load is counted from the structure of its schedules, by closed forms that a test holds to the schedules
// themselves. A network's rates make a time of it:
//
//   hops · hop  +  messages · message  +  bytes moved · byte  +  bytes reduced · byte reduced  +  bytes logged · byte
//   logged
//
// where each of the last four is the most of: what the busiest rank has, what the longest chain of ranks has one after
// the other, and what all ranks have together by the cores that they share. The choice may not look at where ranks sit,
// which changes with generations while a round's algorithm must not: costs may therefore name several networks, and
// what is chosen is the algorithm that is, in the network where it fares worst, least beyond the best one there.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "worker/schedule/schedule.h"

namespace warren::schedule {

struct Network {
  bool one_host = false;         // all ranks sit on one host, and map its memory; else each on a host of its own
  std::uint32_t cores = 0;       // that all ranks share; 0: each has one of its own
  std::uint32_t most_ranks = 0;  // larger groups are not of this network; 0: all are
  std::uint32_t hop_ns = 0;
  std::uint32_t message_ns = 0;         // to send one, or to receive one
  std::uint32_t shared_message_ns = 0;  // likewise, where ranks share cores: somebody has to be woken
  std::uint32_t byte_ps = 0;            // to send one, or to receive one
  std::uint32_t reduced_byte_ps = 0;
  std::uint32_t logged_byte_ps = 0;
  friend bool operator==(const Network&, const Network&) = default;
};

// Which algorithm was measured to be best for groups of `size`, from so many bytes on, up to the next one of the
// collective and size. kAuto: the rates tell.
struct Measured {
  Collective collective{};
  std::int32_t size = 0;
  std::uint64_t from_bytes = 0;
  Algorithm algorithm{};
  friend bool operator==(const Measured&, const Measured&) = default;
};

struct Costs {
  std::vector<Network> networks;   // one at least holds groups of any size
  std::vector<Measured> measured;  // in rising order of (collective, size, from_bytes)
  friend bool operator==(const Costs&, const Costs&) = default;
};

// What is used when the job has no costs of its own: two cores that up to eight ranks share, and TCP between hosts.
[[nodiscard]] const Costs& default_costs();

// A call, as far as its cost goes. Equal on all ranks.
struct Case {
  Collective collective{};
  std::int32_t size = 1;          // ranks in the group
  std::uint64_t bytes = 0;        // of a rank's larger buffer
  std::uint64_t chunk_bytes = 1;  // the setting
  std::uint32_t replicas = 0;     // R
};

// What one rank does, or all do.
struct Work {
  double messages = 0;  // sent and received
  double bytes = 0;     // likewise
  double reduced = 0;   // bytes that reductions read and write
  double logged = 0;    // bytes that are published
};

struct Load {
  double hops = 0;  // messages that somebody waits for before sending on
  Work busiest;     // of the rank that has most of each
  Work path;        // of the longest chain of ranks, where a pipeline has to fill first
  Work all;         // of all ranks
};

// The load of a call of two ranks or more by an algorithm that serves it, where all ranks sit on such a host, or each
// on one of its own (null).
[[nodiscard]] Load load_of(const Case& what, Algorithm algorithm, const Host* host);

// In nanoseconds, by term.
struct Estimate {
  double hops = 0, messages = 0, bytes = 0, reduced = 0, logged = 0;
  [[nodiscard]] double total() const { return hops + messages + bytes + reduced + logged; }
};
[[nodiscard]] Estimate estimate(const Case& what, Algorithm algorithm, const Network& network);

// Whether rates may choose this algorithm. By direct exchange every rank has a link to every other one, and networks
// that all of them fill at once are not what rates tell of: an allreduce, which others serve as well, goes by it only
// where that was measured to be best.
[[nodiscard]] bool considered(const Case& what, Algorithm algorithm);

// Whether groups of this size are of this network.
[[nodiscard]] bool holds(const Network& network, std::int32_t size);

// How far an algorithm is beyond the best one, in the network where it fares worst: 1 for one that is best in all.
[[nodiscard]] double regret(const Case& what, Algorithm algorithm, const Costs& costs);

// What was measured for such a call; kAuto: nothing.
[[nodiscard]] Algorithm measured_best(const Case& what, const Costs& costs);

// The algorithm for a call whose user names none: what was measured; else that of the least regret, of equals the last
// in algorithms_for(). From 16 MiB on, of those within 5 % of it the first there. Whatever the calling thread's
// floating-point mode.
[[nodiscard]] Algorithm choose(const Case& what, const Costs& costs);

// How much of the setting `chunk_bytes` a message by this algorithm carries at most among `size` ranks. The ring keeps
// ten chunks in scratch and fills its pipeline with small ones; halving wants few and large ones. TCP on loopback, 8
// ranks on 2 cores, 100 MiB by ring: 329 ms in chunks of 128 KiB, 378 in 256; 4 ranks, 1 MiB by halving: 1,100 and 830
// µs. A ring of two has no pipeline to fill, and does what owners do who exchange: of their time for 100 MiB over TCP
// it took 1.32 in chunks of 128 KiB, and 1.08 in 256 (medians of three jobs).
[[nodiscard]] std::uint64_t chunk_bytes_of(Algorithm algorithm, std::int32_t size, std::uint64_t chunk_bytes);

}  // namespace warren::schedule
