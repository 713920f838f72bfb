#include "cli/bench_compare.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "cli/bench_explain.h"
#include "cli/costs_fit.h"
#include "worker/settings/costs_file.h"

namespace warren::cli {
namespace {

using schedule::Algorithm;
using schedule::Case;
using schedule::Costs;

double median(std::vector<double> of) {
  std::ranges::sort(of);
  return of[of.size() / 2];
}

// How far two come apart, either way up.
double apart(double a, double b) {
  return std::max(a / b, b / a);
}

// What was measured of one cell: the algorithms that serve it, in their order, and auto after them.
struct Row {
  Case what;
  std::vector<Algorithm> algorithms;
  Turns turns;
  Algorithm chosen{};  // by auto

  [[nodiscard]] const std::vector<double>& times_us(Algorithm algorithm) const {
    const auto at = std::ranges::find(algorithms, algorithm) - algorithms.begin();
    return turns.times_us[static_cast<std::size_t>(at)];
  }
  [[nodiscard]] double time_us(Algorithm algorithm) const { return median(times_us(algorithm)); }
  [[nodiscard]] double auto_us() const { return median(turns.times_us.back()); }
  [[nodiscard]] Algorithm best() const {
    return *std::ranges::min_element(algorithms, {}, [this](Algorithm a) { return time_us(a); });
  }
  // How far the same thing came apart from itself. What is chosen ran under two names; the best one's turns are dealt
  // out by twos, a cycle and the one backwards, to two runs.
  [[nodiscard]] double spread() const { return apart(auto_us(), time_us(chosen)); }
  [[nodiscard]] double best_spread() const {
    const std::vector<double>& all_us = times_us(best());
    std::array<std::vector<double>, 2> runs_us;
    for (std::size_t i = 0; i < all_us.size(); ++i) runs_us[i / 2 % 2].push_back(all_us[i]);
    return runs_us[1].empty() ? 1 : apart(median(runs_us[0]), median(runs_us[1]));
  }
};

std::vector<std::string> names_of(const Row& row) {
  std::vector<std::string> names;
  for (const Algorithm a : row.algorithms) names.emplace_back(schedule::to_string(a));
  names.emplace_back("auto");
  return names;
}

void print_head(const Row& row, const Cell& cell, const std::string& transport) {
  std::printf("\n# %s, %d ranks, transport %s, median of %d turns in us\n# %10s", to_string(row.what.collective),
              row.what.size, transport.c_str(), cell.iterations, "bytes");
  for (const std::string& name : names_of(row)) std::printf(" %11s", name.c_str());
  std::printf(" %11s %9s %7s %11s %7s\n", "chosen", "auto/best", "spread", "best spread", "errors");
}

void print_row(const Row& row) {
  std::printf("%12llu", static_cast<unsigned long long>(row.what.bytes));
  for (const auto& times_us : row.turns.times_us) std::printf(" %11.1f", median(times_us));
  std::printf(" %11s %9.2f %7.2f %11.2f %7llu\n", std::string(schedule::to_string(row.chosen)).c_str(),
              row.auto_us() / row.time_us(row.best()), row.spread(), row.best_spread(),
              static_cast<unsigned long long>(row.turns.errors));
}

void print_json(const Row& row, const Cell& cell, const std::string& transport) {
  nlohmann::ordered_json line = {{"collective", to_string(row.what.collective)},
                                 {"bytes", row.what.bytes},
                                 {"ranks", row.what.size},
                                 {"transport", transport},
                                 {"turns", cell.iterations},
                                 {"chosen", schedule::to_string(row.chosen)},
                                 {"best", schedule::to_string(row.best())},
                                 {"auto_by_best", row.auto_us() / row.time_us(row.best())},
                                 {"spread", row.spread()},
                                 {"best_spread", row.best_spread()},
                                 {"errors", row.turns.errors}};
  const auto names = names_of(row);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto& times_us = row.turns.times_us[i];
    line["algorithms"][names[i]] = {{"min_us", std::ranges::min(times_us)},
                                    {"median_us", median(times_us)},
                                    {"max_us", std::ranges::max(times_us)}};
  }
  std::printf("%s\n", line.dump().c_str());
}

// How the ranks of this job sit. All ranks get the same.
Result<schedule::Network> where_ranks_sit(warren_comm* comm) {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int cores = sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  // A host's cores are counted once, by all its ranks together; those that it has beyond its ranks help nobody.
  const double local = warren_local_size(comm);
  std::array<double, 2> sums{std::min(static_cast<double>(cores), local) / local, 1 / local};
  if (warren_allreduce(comm, sums.data(), sums.data(), sums.size(), WARREN_F64, WARREN_SUM, nullptr, nullptr) !=
      WARREN_OK) {
    return Status(Code::kUnavailable, warren_last_error());
  }
  schedule::Network where = schedule::default_costs().networks.back();
  constexpr double kHalf = 0.5;
  const auto all_cores = static_cast<int>(sums[0] + kHalf);
  where.one_host = sums[1] < 1 + kHalf;
  where.cores = all_cores < warren_world_size(comm) ? static_cast<std::uint32_t>(std::max(all_cores, 1)) : 0;
  where.most_ranks = 0;
  return where;
}

std::vector<Timing> timings_of(const std::vector<Row>& rows) {
  std::vector<Timing> timings;
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.algorithms.size(); ++i) {
      std::vector<double> t = row.turns.times_us[i];
      std::ranges::sort(t);
      timings.push_back({row.what, row.algorithms[i], median(t), t[t.size() / 4], t[t.size() - 1 - t.size() / 4]});
    }
  }
  std::ranges::stable_sort(timings, {},
                           [](const Timing& t) { return std::tuple(t.what.collective, t.what.size, t.what.bytes); });
  return timings;
}

Status write_costs(const std::string& path, const Costs& costs) {
  if (const auto again = worker::parse_costs(worker::to_json(costs, false)); !again.ok()) {
    return again.status().because_of_this("these costs would not be read again: measure fewer sizes or collectives");
  }
  std::ofstream file(path, std::ios::trunc);
  file << worker::to_json(costs, true) << '\n';
  file.close();
  if (!file) return {Code::kUnavailable, "cannot write the costs to " + path};
  return {};
}

Status fit(warren_comm* comm, const std::vector<Row>& rows, const std::string& path) {
  const auto where = where_ranks_sit(comm);
  if (!where.ok()) return where.status();
  if (warren_rank(comm) != 0) return {};
  const std::vector<Timing> timings = timings_of(rows);
  Costs costs;
  costs.networks = {fit_rates(timings, where.value())};
  costs.measured = measured_better(timings, costs);
  double most = 1;
  for (const Row& row : rows) most = std::max(most, row.time_us(choose(row.what, costs)) / row.time_us(row.best()));
  const Status written = write_costs(path, costs);
  if (!written.ok()) return written;
  std::fprintf(stderr,
               "costs %s (%s) are in %s; in these measurements, what they choose takes at most %.2f times the best "
               "one's time, with %zu choices by measurement alone\n",
               worker::name_of(costs).c_str(), describe(costs.networks[0]).c_str(), path.c_str(), most,
               costs.measured.size());
  return {};
}

}  // namespace

Status compare(warren_comm* comm, const Comparison& comparison, const worker::Settings& settings,
               std::uint64_t& errors) {
  const auto costs = worker::read_costs(settings.costs);
  if (!costs.ok()) return costs.status();
  std::vector<Row> rows;
  std::string_view shown;
  for (const Cell& cell : comparison.cells) {
    const auto serving = schedule::algorithms_for(cell.collective.scheduled);
    if (serving.size() < 2) continue;
    Row row;
    row.algorithms.assign(serving.begin(), serving.end());
    auto turns = run_in_turns(comm, cell, names_of(row));
    if (!turns.ok()) return turns.status();
    row.turns = std::move(turns).value();
    row.what = {cell.collective.scheduled, warren_world_size(comm), row.turns.bytes, settings.chunk_bytes,
                settings.replicas};
    // The setting is for all calls that name none.
    const auto set = schedule::parse_algorithm(settings.algorithm);
    const bool sets = set.ok() && std::ranges::find(row.algorithms, set.value()) != row.algorithms.end();
    row.chosen = sets ? set.value() : choose(row.what, costs.value());
    errors += row.turns.errors;
    if (warren_rank(comm) == 0) {
      if (comparison.json) {
        print_json(row, cell, settings.transport);
      } else {
        if (shown != cell.collective.name) print_head(row, cell, settings.transport);
        shown = cell.collective.name;
        print_row(row);
      }
      std::fflush(stdout);
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) return {Code::kInvalidArgument, "one algorithm alone serves these collectives: nothing to compare"};
  return comparison.fit_file.empty() ? Status() : fit(comm, rows, comparison.fit_file);
}

}  // namespace warren::cli
