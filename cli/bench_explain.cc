#include "cli/bench_explain.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace warren::cli {
namespace {

using schedule::Algorithm;
using schedule::Case;
using schedule::Costs;
using schedule::Estimate;
using schedule::Network;

template <class... Values>
std::string print(const char* format, Values... values) {
  std::array<char, 256> line{};
  std::snprintf(line.data(), line.size(), format, values...);
  return line.data();
}

std::string name(Algorithm algorithm) {
  return std::string(schedule::to_string(algorithm));
}

double us(double ns) {
  return ns * 1e-3;
}

// The one that all would take if there were this network alone.
double best_of(const Case& what, const Network& network) {
  double best = -1;
  for (const Algorithm algorithm : schedule::algorithms_for(what.collective)) {
    if (!considered(what, algorithm)) continue;
    const double total = estimate(what, algorithm, network).total();
    if (best < 0 || total < best) best = total;
  }
  return best;
}

std::string reason(const Case& what, const Costs& costs, Algorithm chosen) {
  if (schedule::algorithms_for(what.collective).size() == 1)
    return std::string("it alone serves ") + to_string(what.collective);
  if (schedule::measured_best(what, costs) != Algorithm::kAuto) return "it was measured to be the best";
  const double r = regret(what, chosen, costs);
  std::string why = r < 1.005 ? "the least time" : print("%.2f times the best one's time, at most", r);
  for (const Algorithm other : schedule::algorithms_for(what.collective)) {
    const double theirs = regret(what, other, costs);
    if (other != chosen && considered(what, other)) why += print("; %s %.2f", name(other).c_str(), theirs);
  }
  return why;
}

}  // namespace

std::string describe(const Network& network) {
  std::string out = network.one_host ? "all ranks on one host" : "each rank on a host of its own";
  if (network.cores != 0) out += ", " + std::to_string(network.cores) + " cores for all";
  return out;
}

std::string explain(const Case& what, const Costs& costs) {
  std::string out = print("\n# %s, %d ranks, %llu bytes, in microseconds\n", to_string(what.collective), what.size,
                          static_cast<unsigned long long>(what.bytes));
  for (const Network& network : costs.networks) {
    if (!holds(network, what.size)) continue;
    out += "# " + describe(network) + "\n";
    out += print("# %10s %12s %12s %12s %12s %12s %12s\n", "algorithm", "total", "hops", "messages", "bytes", "reduced",
                 "logged");
    const double best = best_of(what, network);
    for (const Algorithm algorithm : schedule::algorithms_for(what.collective)) {
      const Estimate e = estimate(what, algorithm, network);
      out += print("%12s %12.1f %12.1f %12.1f %12.1f %12.1f %12.1f%s\n", name(algorithm).c_str(), us(e.total()),
                   us(e.hops), us(e.messages), us(e.bytes), us(e.reduced), us(e.logged),
                   !considered(what, algorithm) ? "  only where measured"
                   : e.total() <= best          ? "  least"
                                                : "");
    }
  }
  const Algorithm chosen = choose(what, costs);
  return out + "chosen: " + name(chosen) + ": " + reason(what, costs, chosen) + "\n";
}

nlohmann::ordered_json explain_json(const Case& what, const Costs& costs) {
  const Algorithm chosen = choose(what, costs);
  nlohmann::ordered_json out = {{"collective", to_string(what.collective)},
                                {"ranks", what.size},
                                {"bytes", what.bytes},
                                {"chosen", name(chosen)},
                                {"measured", schedule::measured_best(what, costs) != Algorithm::kAuto},
                                {"estimates", nlohmann::ordered_json::array()}};
  for (const Network& network : costs.networks) {
    if (!holds(network, what.size)) continue;
    for (const Algorithm algorithm : schedule::algorithms_for(what.collective)) {
      const Estimate e = estimate(what, algorithm, network);
      out["estimates"].push_back({{"network", describe(network)},
                                  {"algorithm", name(algorithm)},
                                  {"total_us", us(e.total())},
                                  {"hops_us", us(e.hops)},
                                  {"messages_us", us(e.messages)},
                                  {"bytes_us", us(e.bytes)},
                                  {"reduced_us", us(e.reduced)},
                                  {"logged_us", us(e.logged)}});
    }
  }
  return out;
}

}  // namespace warren::cli
