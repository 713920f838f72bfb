#include "chaos/process/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace warren::chaos::process {
namespace {

double percentile(const std::vector<double>& sorted, double p) {
  if (sorted.empty()) return 0;
  const auto at = static_cast<std::size_t>(std::ceil(p * static_cast<double>(sorted.size())));
  return sorted[std::clamp<std::size_t>(at, 1, sorted.size()) - 1];
}

}  // namespace

bool ChaosReport::good() const {
  return divergences == 0 && hangs == 0 && failures == 0 && unexplained_rollbacks() == 0 && !interrupted;
}

std::uint64_t ChaosReport::unexplained_rollbacks() const {
  return faults[static_cast<std::size_t>(FaultKind::kAll)].empty() ? rollbacks : 0;
}

// One idea: the list of what is reported, in its order.
std::string ChaosReport::json(const ChaosOptions& options) const {
  nlohmann::ordered_json j;
  j["ranks"] = options.ranks;
  j["hosts"] = options.hosts;
  j["spares"] = options.spares;
  j["mode"] = options.min_workers == 0 ? "wait" : "shrink";
  if (options.min_workers != 0) {
    j["min_workers"] = options.min_workers;
    j["grace_ms"] = options.grace_ms;
  }
  j["replicas"] = options.replicas;
  j["seconds"] = options.seconds;
  j["seed"] = options.seed;
  j["round_timeout_ms"] = options.round_timeout_ms;
  j["mix"] = name_of(options.mix);
  j["round_bytes"] = options.round_bytes;
  j["compute_ms"] = options.compute_ms;
  j["memory"] = options.on_gpus ? "gpu" : "cpu";
  j["disk_log"] = disk_log;
  j["faults"] = nlohmann::ordered_json::object();
  for (std::size_t k = 0; k < faults.size(); k++) {
    if (!faults[k].empty()) j["faults"][std::string(kFaultNames[k])] = faults[k];
  }
  j["fault_count"] = fault_count;
  j["during_recovery"] = during_recovery;
  j["unavailable"] = unavailable;
  j["rounds"] = rounds;
  j["rounds_per_second"] = rounds_per_second;
  j["replayed"] = replayed;
  j["lives"] = lives;
  j["rollbacks"] = rollbacks;
  if (options.min_workers != 0) {
    j["shrinks"] = shrinks;
    j["growths"] = growths;
  }
  j["big_round_share"] = big_share;
  if (options.on_gpus) {
    j["inputs_lent"] = inputs_lent;
    j["finals_from_gpus"] = finals_from_gpus;
    j["rounds_exchanged"] = rounds_exchanged;
  }
  j["divergences"] = divergences;
  j["hangs"] = hangs;
  j["failures"] = failures;
  j["failed_lives"] = failed_lives;
  if (goodput >= 0) {
    j["goodput"] = goodput;
  } else {
    j["goodput"] = nullptr;
  }
  const auto spread = [](const std::vector<double>& sorted) {
    return nlohmann::ordered_json{{"n", sorted.size()},
                                  {"p50", percentile(sorted, 0.5)},
                                  {"p99", percentile(sorted, 0.99)},
                                  {"max", sorted.empty() ? 0 : sorted.back()}};
  };
  if (!options.weather.fine()) {
    j["weather"] = {{"delay_ms", options.weather.delay_ms},
                    {"jitter_ms", options.weather.jitter_ms},
                    {"loss_permille", options.weather.loss_permille},
                    {"by", "a relay of frames in user space"}};
  }
  j["stall_ms"] = spread(stalls_ms);
  if (options.min_workers != 0) j["shrink_stall_ms"] = spread(shrink_stalls_ms);
  if (options.spares != 0) {
    j["takeover_ms"] = spread(takeovers_ms);
    j["takeover_without_replay_ms"] = spread(takeovers_without_replay_ms);
  }
  if (!drains_ms.empty()) {
    j["drained"] = drained;
    j["drain_ms"] = spread(drains_ms);
  }
  j["noticed_ms"] = nlohmann::ordered_json::object();
  for (std::size_t k = 0; k < faults.size(); k++) {
    if (!noticed_ms[k].empty()) j["noticed_ms"][std::string(kFaultNames[k])] = spread(noticed_ms[k]);
  }
  return j.dump();
}

}  // namespace warren::chaos::process
