#include "worker/schedule/costs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "recovery/base/check.h"
#include "worker/kernels/float_mode.h"
#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

// A reduction reads two operands and writes one.
constexpr double kReduceTouches = 3;
// From so many bytes on, what is nearly as good as the best is as good: rates are known no better.
constexpr std::uint64_t kMuch = std::uint64_t{16} << 20;
constexpr double kNearly = 1.05;
constexpr double kEqual = 1 + 1e-9;

// What closed forms are made of.
struct Parts {
  double k = 1, n = 0;   // ranks; bytes of a rank's larger buffer
  double share = 0;      // n / k
  double children = 0;   // ⌈log2 k⌉: of a binomial tree's root
  double positions = 1;  // P, the largest power of two up to k
  double exchanges = 0;  // log2 P; the depth of a binomial tree, too
  bool folds = false;    // k is no power of two
  double chunk = 1;      // bytes
  double replicas = 0;   // copies: min(R, k)
  bool whole = false;    // so little that it is published whole by every host
  bool one_host = false;
  Host host;  // of one_host
};

double chunks(double bytes, double chunk) {
  return static_cast<double>(
      chunks_of(static_cast<std::uint64_t>(bytes), std::max<std::uint64_t>(1, static_cast<std::uint64_t>(chunk))));
}

Parts parts_of(const Case& what, Algorithm algorithm, const Host* host) {
  Parts p;
  const auto size = static_cast<std::uint32_t>(what.size);
  p.k = what.size;
  p.n = what.collective == Collective::kBarrier ? 0 : static_cast<double>(what.bytes);
  p.share = p.n / p.k;
  p.children = std::bit_width(size - 1);
  p.positions = std::bit_floor(size);
  p.exchanges = std::bit_width(size) - 1;
  p.folds = !std::has_single_bit(size);
  p.chunk = static_cast<double>(chunk_bytes_of(algorithm, what.size, what.chunk_bytes));
  p.replicas = std::min<double>(what.replicas, p.k);
  p.one_host = host != nullptr;
  if (host != nullptr) p.host = *host;
  p.whole = p.n <= static_cast<double>(kWholeBytes);
  return p;
}

// Copies of a result whose finals go down a binomial tree of so many ranks, each a host: of those who have fewer than R
// before them, which are the numbers below `ranks` with fewer than R bits.
double tree_copies(std::uint32_t ranks, double replicas) {
  double copies = 0, bits_before = 0;
  for (int bit = std::bit_width(ranks) - 1; bit >= 0; --bit) {
    if ((ranks >> bit & 1) == 0) continue;
    double choices = 1;  // of i among the `bit` lower bits
    for (int i = 0; i <= bit && bits_before + i < replicas; ++i) {
      copies += choices;
      choices = choices * (bit - i) / (i + 1);
    }
    ++bits_before;
  }
  return copies;
}

// Every rank does as much.
void everybody(const Parts& p, double messages, double bytes, double reduced, Load& load) {
  load.busiest.messages = messages;
  load.busiest.bytes = bytes;
  load.busiest.reduced = reduced;
  load.all.messages = p.k * messages;
  load.all.bytes = p.k * bytes;
  load.all.reduced = p.k * reduced;
}

// Segments go to their owners, who reduce them (`reduces`), and from there to everybody (`gathers`); whether around or
// directly, each rank moves every other one's share.
Load exchange(const Parts& p, double hops_each_way, bool reduces, bool gathers) {
  Load load;
  const double ways = (reduces ? 1 : 0) + (gathers ? 1 : 0);
  const double others = p.k - 1;
  load.hops = ways * hops_each_way;
  everybody(p, ways * 2 * others * chunks(p.share, p.chunk), ways * 2 * others * p.share,
            reduces ? kReduceTouches * others * p.share : 0, load);
  return load;
}

// Down or up a binomial tree, or both, chunk by chunk.
Load tree(const Parts& p, double ways, bool reduces, double levels, double most_children) {
  Load load;
  const double messages = chunks(p.n, p.chunk);
  const double others = p.k - 1;
  load.hops = ways * levels;
  load.all.messages = ways * 2 * others * messages;
  load.all.bytes = ways * 2 * others * p.n;
  load.all.reduced = reduces ? kReduceTouches * others * p.n : 0;
  load.busiest.messages = ways * most_children * messages;
  load.busiest.bytes = ways * most_children * p.n;
  load.busiest.reduced = reduces ? kReduceTouches * most_children * p.n : 0;
  return load;
}

// The first chunk goes through all levels before the last rank has something to do; the others follow it.
void fill_pipeline(const Parts& p, Load& load) {
  const double messages = chunks(p.n, p.chunk);
  const double rest = (messages - 1) / messages;
  load.path.messages = 2 * load.hops + rest * load.busiest.messages;
  load.path.bytes = 2 * load.hops * p.n / messages + rest * load.busiest.bytes;
}

bool doubles_here(const Parts& p) {
  return p.n <= p.chunk / kDoublingPartOfChunk || (p.n < p.positions && p.n <= p.chunk);
}

Load butterfly(const Parts& p) {
  Load load;
  const double pairs = p.k - p.positions;
  const bool doubles = doubles_here(p);
  const double blocks = doubles ? 1 : chunks(p.n, 2 * p.chunk);
  const double ways = doubles ? 1 : 2;
  const double moved = doubles ? p.n * p.exchanges : 2 * p.n * (p.positions - 1) / p.positions;
  const double reduced = kReduceTouches * (doubles ? p.n * p.exchanges : p.n * (p.positions - 1) / p.positions);
  // Where halves are exchanged, a pair's input and its result go in two.
  const double folded_messages = p.folds ? 2 * ways * blocks : 0;
  // An input that came from the other one of a pair reaches every position, but only of many pairs another pair's.
  const double folded_hops = !p.folds ? 0 : doubles && pairs <= p.positions / 2 ? 1 : 2;
  load.hops = ways * p.exchanges + folded_hops;
  load.busiest.messages = 2 * ways * p.exchanges * blocks + folded_messages;
  load.busiest.bytes = 2 * moved + (p.folds ? 2 * p.n : 0);
  load.busiest.reduced = reduced + (p.folds ? kReduceTouches * p.n : 0);
  load.all.messages = p.positions * 2 * ways * p.exchanges * blocks + 2 * pairs * folded_messages;
  load.all.bytes = p.positions * 2 * moved + pairs * 4 * p.n;
  load.all.reduced = p.positions * reduced + kReduceTouches * pairs * p.n;
  return load;
}

// By owners who read all inputs themselves: worker/schedule/host.cc.
Load within_host(const Parts& p, Algorithm algorithm) {
  Load load;
  const bool ring = algorithm == Algorithm::kRing;
  const double owners = ring ? p.k : p.positions;
  const double units = ring ? chunks(p.share, p.chunk) : chunks(p.n, 2 * p.chunk);
  const double piece = p.n / owners;
  load.hops = 2;
  load.busiest.messages = 2 * (owners - 1 + p.k - 1) * units;
  load.busiest.bytes = 2 * (owners - 1 + p.k - 1) * piece;
  load.busiest.reduced = (p.k + 1) * piece;  // all operands in one pass
  load.all.messages = 4 * owners * (p.k - 1) * units;
  load.all.bytes = 4 * (p.k - 1) * p.n;
  load.all.reduced = (p.k + 1) * p.n;
  return load;
}

// The same of a reduce_scatter, whose inputs alone travel.
Load scatter_within_host(const Parts& p) {
  Load load;
  const double units = chunks(p.share, p.chunk);
  load.hops = 1;
  load.busiest.messages = 2 * (p.k - 1) * units;
  load.busiest.bytes = 2 * (p.k - 1) * p.share;
  load.busiest.reduced = (p.k + 1) * p.share;
  load.all.messages = 2 * p.k * (p.k - 1) * units;
  load.all.bytes = 2 * (p.k - 1) * p.n;
  load.all.reduced = (p.k + 1) * p.n;
  return load;
}

bool goes_within_host(const Parts& p, const Case& what, Algorithm algorithm) {
  const bool scatters = scatters_only(what.collective);
  if (!p.one_host || (!scatters && what.collective != Collective::kAllreduce) ||
      p.share < static_cast<double>(kLeastPieceBytes) ||
      what.size > (p.host.maps ? kMostRanksWithinHost : kMostRanksByTcp)) {
    return false;
  }
  return scatters || algorithm == Algorithm::kRing ||
         (algorithm == Algorithm::kButterfly && what.size > 2 && !doubles_here(p));
}

// By one owner of everything: likewise.
Load one_owner(const Parts& p) {
  Load load;
  const double others = p.k - 1;
  // Blocks of two chunks, of which some have an element more; in two messages, or in one.
  const double blocks = chunks(p.n, 2 * p.chunk);
  const double least = std::floor(p.n / blocks), longer = p.n - blocks * least;
  const auto parts = [&](double bytes) { return bytes > p.chunk ? 2.0 : 1.0; };
  const double messages = 2 * others * (longer * parts(least + 1) + (blocks - longer) * parts(least));
  load.hops = 2;
  load.busiest.messages = messages;
  load.busiest.bytes = 2 * others * p.n;
  load.busiest.reduced = (p.k + 1) * p.n;
  load.all.messages = 2 * messages;
  load.all.bytes = 4 * others * p.n;
  load.all.reduced = (p.k + 1) * p.n;
  return load;
}

bool goes_to_one_owner(const Parts& p, const Case& what, Algorithm algorithm) {
  return p.one_host && what.collective == Collective::kAllreduce && algorithm == Algorithm::kButterfly &&
         what.size > 2 && !doubles_here(p) && one_owner_serves(what.size, what.bytes, p.host.cores);
}

// What is published of an allreduce, broadcast or allgather; of the others all algorithms publish as much.
void log_result(const Parts& p, const Case& what, Algorithm algorithm, Load& load) {
  const bool butterfly = algorithm == Algorithm::kButterfly;
  // All compute all of it, or pass it on.
  const bool doubles = butterfly && doubles_here(p);
  const bool passes =
      algorithm == Algorithm::kTree || algorithm == Algorithm::kStar || what.collective == Collective::kBroadcast;
  double copies = 1;
  if (results_differ(what.collective)) {
    copies = p.one_host ? 1 : p.replicas;
  } else if (p.one_host) {
    copies = doubles ? p.positions : 1;
  } else if (p.whole || doubles) {
    copies = p.k;
  } else if (p.replicas >= 2 && algorithm == Algorithm::kRing) {
    copies = p.replicas;
  } else if (p.replicas >= 2) {
    const auto ranks = static_cast<std::uint32_t>(butterfly ? p.positions : p.k);
    copies = algorithm == Algorithm::kTree || butterfly ? tree_copies(ranks, p.replicas) : p.k;
  }
  load.all.logged = copies * p.n;
  load.busiest.logged = doubles || passes || goes_to_one_owner(p, what, algorithm)
                            ? p.n
                            : std::min(p.n, copies * p.n / (butterfly ? p.positions : p.k));
}

Load load_without_log(const Parts& p, const Case& what, Algorithm algorithm) {
  if (goes_to_one_owner(p, what, algorithm)) return one_owner(p);
  if (goes_within_host(p, what, algorithm)) {
    return scatters_only(what.collective) ? scatter_within_host(p) : within_host(p, algorithm);
  }
  const double around = p.k - 1;
  switch (what.collective) {
    case Collective::kAllreduce:
    case Collective::kBarrier:
      switch (algorithm) {
        case Algorithm::kRing: return exchange(p, around, true, true);
        case Algorithm::kDirect: return exchange(p, 1, true, true);
        case Algorithm::kButterfly: return butterfly(p);
        case Algorithm::kStar: return tree(p, 2, true, 1, p.k - 1);
        default: break;
      }
      break;
    case Collective::kAllgather:
    case Collective::kAllgatherv: {
      const bool directly =
          algorithm == Algorithm::kDirect || (p.one_host && p.host.maps && what.size <= kMostRanksWithinHost);
      return exchange(p, directly ? 1 : around, false, true);
    }
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv: return exchange(p, algorithm == Algorithm::kRing ? around : 1, true, false);
    case Collective::kAllToAll:
    case Collective::kAllToAllv: return exchange(p, 1, false, true);
    case Collective::kGather:
    case Collective::kScatter: {
      Load load;
      load.hops = 1;
      load.busiest.messages = around * chunks(p.share, p.chunk);
      load.busiest.bytes = around * p.share;
      load.all.messages = 2 * load.busiest.messages;
      load.all.bytes = 2 * load.busiest.bytes;
      return load;
    }
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kPoint: break;
  }
  // A binomial tree, a chain, or a star.
  const bool both_ways = what.collective == Collective::kAllreduce;
  const bool reduces = what.collective != Collective::kBroadcast;
  const bool flat_here = what.collective == Collective::kBroadcast && what.replicas > 0 && p.one_host && p.host.maps &&
                         what.size <= kMostRanksWithinHost;  // read_the_root()
  const bool star = algorithm == Algorithm::kStar || flat_here;
  const bool chain = algorithm == Algorithm::kRing && !star;
  const double levels = chain ? around : star ? 1 : p.exchanges;
  const double most_children = chain ? std::min(2.0, around) : star ? around : p.children;
  Load load = tree(p, both_ways ? 2 : 1, reduces, levels, most_children);
  if (chain && reduces) load.busiest.reduced = kReduceTouches * p.n;
  fill_pipeline(p, load);
  return load;
}

}  // namespace

const Costs& default_costs() {
  // 2026-11-22, two cores of an Intel Xeon: times of 2, 4 and 8 ranks in docs/measurements/allreduce.md. Of the network
  // between hosts, what the two cores take for TCP on loopback, and 10 µs on the way, which is usual for Ethernet.
  static const Costs kCosts{{{.one_host = true,
                              .cores = 2,
                              .most_ranks = 8,
                              .hop_ns = 300,
                              .message_ns = 250,
                              .shared_message_ns = 1'200,
                              .byte_ps = 45,
                              .reduced_byte_ps = 45,
                              .logged_byte_ps = 45},
                             {.hop_ns = 10'000,
                              .message_ns = 1'600,
                              .shared_message_ns = 4'000,
                              .byte_ps = 160,
                              .reduced_byte_ps = 45,
                              .logged_byte_ps = 45}},
                            {}};
  return kCosts;
}

std::uint64_t chunk_bytes_of(Algorithm algorithm, std::int32_t size, std::uint64_t chunk_bytes) {
  return algorithm == Algorithm::kRing && size > 2 ? chunk_bytes / 2 : chunk_bytes;
}

Load load_of(const Case& what, Algorithm algorithm, const Host* host) {
  WARREN_CHECK(what.size > 1, "one rank alone sends nothing");
  const Parts p = parts_of(what, algorithm, host);
  Load load = load_without_log(p, what, algorithm);
  if (what.replicas > 0) log_result(p, what, algorithm, load);
  return load;
}

bool considered(const Case& what, Algorithm algorithm) {
  return what.collective != Collective::kAllreduce || algorithm != Algorithm::kDirect;
}

bool holds(const Network& network, std::int32_t size) {
  return network.most_ranks == 0 || static_cast<std::uint32_t>(size) <= network.most_ranks;
}

Estimate estimate(const Case& what, Algorithm algorithm, const Network& network) {
  const Host host{.maps = true, .cores = network.cores};
  const Load load = load_of(what, algorithm, network.one_host ? &host : nullptr);
  const bool shared = network.cores != 0 && static_cast<std::uint32_t>(what.size) > network.cores;
  const double cores = shared ? network.cores : what.size;
  const auto most = [&](double Work::*of) { return std::max({load.busiest.*of, load.path.*of, load.all.*of / cores}); };
  constexpr double kNsPerPs = 1e-3;
  Estimate e;
  e.hops = load.hops * network.hop_ns;
  e.messages = most(&Work::messages) * (shared ? network.shared_message_ns : network.message_ns);
  e.bytes = most(&Work::bytes) * network.byte_ps * kNsPerPs;
  e.reduced = most(&Work::reduced) * network.reduced_byte_ps * kNsPerPs;
  e.logged = most(&Work::logged) * network.logged_byte_ps * kNsPerPs;
  return e;
}

double regret(const Case& what, Algorithm algorithm, const Costs& costs) {
  double most = 1;
  for (const Network& network : costs.networks) {
    if (!holds(network, what.size)) continue;
    double best = std::numeric_limits<double>::infinity();
    for (const Algorithm other : algorithms_for(what.collective)) {
      if (considered(what, other)) best = std::min(best, estimate(what, other, network).total());
    }
    if (best > 0) most = std::max(most, estimate(what, algorithm, network).total() / best);
  }
  return most;
}

Algorithm measured_best(const Case& what, const Costs& costs) {
  Algorithm best = Algorithm::kAuto;
  for (const Measured& m : costs.measured) {
    if (m.collective == what.collective && m.size == what.size && m.from_bytes <= what.bytes) best = m.algorithm;
  }
  return best;
}

Algorithm choose(const Case& what, const Costs& costs) {
  const auto serving = algorithms_for(what.collective);
  if (serving.empty()) return Algorithm::kDirect;  // messages need none
  // Of one rank alone, what can be put together with others (worker/session/fusion.h).
  if (serving.size() == 1 || what.size < 2) return serving.back();
  if (const Algorithm measured = measured_best(what, costs); measured != Algorithm::kAuto) return measured;
  // Ranks whose programs round otherwise choose alike.
  const worker::kernels::DefaultFloatMode mode;
  std::array<double, 5> regrets{};
  WARREN_CHECK(serving.size() <= regrets.size(), "one for each algorithm");
  constexpr double kNever = std::numeric_limits<double>::infinity();
  double least = kNever;
  for (std::size_t i = 0; i < serving.size(); ++i) {
    regrets[i] = considered(what, serving[i]) ? regret(what, serving[i], costs) : kNever;
    least = std::min(least, regrets[i]);
  }
  // In the order of the table, which has the best for large buffers first.
  const bool much = what.bytes >= kMuch;
  Algorithm chosen = serving.front();
  for (std::size_t i = 0; i < serving.size(); ++i) {
    if (regrets[i] > (much ? kNearly : kEqual) * least) continue;
    chosen = serving[i];
    if (much) break;
  }
  return chosen;
}

}  // namespace warren::schedule
