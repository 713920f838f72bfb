#include "cli/bench_hosts.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "worker/schedule/generators.h"

namespace warren::cli {
namespace {

using schedule::Algorithm;
using schedule::Case;
using schedule::Request;
using schedule::Step;
using schedule::StepKind;

constexpr std::uint64_t kElementBytes = 4;

// The messages of the ranks of one host to other hosts.
struct Traffic {
  std::uint64_t bytes = 0, messages = 0;
};

class Placement {
 public:
  Placement(const Case& what, Algorithm algorithm, std::int32_t hosts) {
    const auto ranks = static_cast<std::int64_t>(what.size);
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      hosts_.push_back(static_cast<std::uint32_t>(rank * hosts / ranks));
    }
    request_.collective = what.collective;
    request_.algorithm = algorithm;
    request_.size = what.size;
    request_.count = what.bytes / kElementBytes;
    const bool of_parts = what.collective != Collective::kAllreduce;
    if (of_parts) request_.count /= static_cast<std::uint64_t>(what.size);
    request_.chunk_elements =
        std::max<std::uint64_t>(1, schedule::chunk_bytes_of(algorithm, what.size, what.chunk_bytes) / kElementBytes);
    request_.replicas = what.replicas;
    request_.element_bytes = request_.partial_bytes = kElementBytes;
    request_.host.maps = true;
    request_.hosts = request_.domains = hosts_;
  }
  Placement(const Placement&) = delete;
  Placement& operator=(const Placement&) = delete;

  [[nodiscard]] bool goes_by_hosts() const { return schedule::on_several_hosts(request_); }

  // The traffic of the host in the middle, whose ranks know that they sit together (`by_hosts`) or do not.
  [[nodiscard]] std::optional<Traffic> traffic(bool by_hosts) const {
    Request request = request_;
    if (!by_hosts) request.hosts = request.domains = {};
    const std::uint32_t host = hosts_[hosts_.size() / 2];
    Traffic sum;
    for (request.rank = 0; request.rank < request.size; ++request.rank) {
      if (hosts_[static_cast<std::size_t>(request.rank)] != host) continue;
      const auto made = schedule::make(request);
      if (!made.ok()) return std::nullopt;
      for (const Step& step : made.value().steps) {
        if (step.kind != StepKind::kSend || hosts_[static_cast<std::size_t>(step.peer)] == host) continue;
        sum.bytes += step.count * kElementBytes;
        ++sum.messages;
      }
    }
    return sum;
  }

 private:
  std::vector<std::uint32_t> hosts_;  // by rank
  Request request_;
};

struct AlgorithmTraffic {
  Algorithm algorithm{};
  Traffic by_hosts, apart;
  std::int32_t hops_by_hosts = 0, hops_apart = 0;  // at most
};

bool moves_by_hosts(Collective collective, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kRing:
    case Algorithm::kDirect: {
      const bool allreduce = collective == Collective::kAllreduce && algorithm == Algorithm::kRing;
      return allreduce || schedule::scatters_only(collective) || schedule::gathers_only(collective);
    }
    case Algorithm::kButterfly: return collective == Collective::kAllreduce;
    default: return false;
  }
}

// Partial results walk from host to host, finals do so by ring (worker/schedule/hierarchical.cc; the symbolic tests
// count these hops).
std::int32_t hops_by_hosts(Collective collective, Algorithm algorithm, std::int32_t hosts) {
  if (collective == Collective::kAllreduce) return algorithm == Algorithm::kRing ? 2 * hosts + 1 : hosts + 2;
  if (schedule::scatters_only(collective)) return hosts + 1;
  return algorithm == Algorithm::kRing ? hosts : 2;
}

std::vector<AlgorithmTraffic> rows(const Case& what, std::int32_t hosts) {
  std::vector<AlgorithmTraffic> rows;
  for (const Algorithm algorithm : schedule::algorithms_for(what.collective)) {
    if (!moves_by_hosts(what.collective, algorithm)) continue;
    const Placement placement(what, algorithm, hosts);
    if (!placement.goes_by_hosts()) continue;
    const auto together = placement.traffic(true), apart = placement.traffic(false);
    if (!together || !apart) continue;
    const double hops = schedule::load_of(what, algorithm, nullptr).hops;
    rows.push_back({algorithm, *together, *apart, hops_by_hosts(what.collective, algorithm, hosts),
                    static_cast<std::int32_t>(hops)});
  }
  return rows;
}

}  // namespace

std::string explain_hosts(const Case& what, std::int32_t hosts) {
  std::string out;
  for (const AlgorithmTraffic& row : rows(what, hosts)) {
    std::array<char, 256> line{};
    if (out.empty()) {
      std::snprintf(line.data(), line.size(),
                    "# what a host of %d sends to the others, by hosts and as if each rank had a host of its own\n"
                    "# %10s %8s %14s %10s %10s %14s %10s\n",
                    hosts, "algorithm", "hops", "bytes", "messages", "hops", "bytes", "messages");
      out += line.data();
    }
    std::snprintf(line.data(), line.size(), "%12s %8d %14llu %10llu %10d %14llu %10llu\n",
                  std::string(schedule::to_string(row.algorithm)).c_str(), row.hops_by_hosts,
                  static_cast<unsigned long long>(row.by_hosts.bytes),
                  static_cast<unsigned long long>(row.by_hosts.messages), row.hops_apart,
                  static_cast<unsigned long long>(row.apart.bytes),
                  static_cast<unsigned long long>(row.apart.messages));
    out += line.data();
  }
  if (!out.empty()) return out;
  return "# by hosts: no algorithm moves the bytes of this call so; see docs/algorithms.md, \"Not hierarchical are\"\n";
}

nlohmann::ordered_json explain_hosts_json(const Case& what, std::int32_t hosts) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const AlgorithmTraffic& row : rows(what, hosts)) {
    out.push_back({{"algorithm", schedule::to_string(row.algorithm)},
                   {"hops", row.hops_by_hosts},
                   {"host_sends_bytes", row.by_hosts.bytes},
                   {"host_sends_messages", row.by_hosts.messages},
                   {"apart_hops", row.hops_apart},
                   {"apart_sends_bytes", row.apart.bytes},
                   {"apart_sends_messages", row.apart.messages}});
  }
  return out;
}

}  // namespace warren::cli
