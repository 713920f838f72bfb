// `warren sim`: whole jobs in virtual time, each from one seed.
#include <gflags/gflags.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <optional>
#include <thread>
#include <utility>

#include "chaos/sim/runner.h"
#include "cli/table.h"

DEFINE_string(seeds, "200", "the seeds to run: FIRST:LAST, or a number of them from 1 on");
DEFINE_uint64(seed, 0, "run this seed alone");
DEFINE_bool(verbose, false, "with --seed: print what happened, line by line");
DEFINE_int32(jobs, 0, "threads; 0: one for each core");
DECLARE_bool(json);

namespace warren::cli {
namespace {

using chaos::SeedFailure;
using chaos::SimOutcome;
using chaos::SimReport;

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return v;
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> range(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) {
    const auto n = number(text);
    if (!n || *n == 0) return std::nullopt;
    return std::pair<std::uint64_t, std::uint64_t>(1, *n);
  }
  const auto first = number(text.substr(0, colon)), last = number(text.substr(colon + 1));
  if (!first || !last || *first > *last || *last == UINT64_MAX) return std::nullopt;
  return std::pair(*first, *last);
}

void print_failure(const SeedFailure& failure) {
  std::printf("seed %llu: %s\n  %s\n  reproduce: %s\n", static_cast<unsigned long long>(failure.seed),
              failure.verdict.c_str(), failure.setting.c_str(), chaos::reproduce_command(failure.seed).c_str());
  std::fflush(stdout);
}

int run_one() {
  chaos::SimOptions options;
  options.seed = FLAGS_seed;
  options.transcript = FLAGS_verbose;
  const SimOutcome outcome = chaos::simulate(options);
  for (const std::string& line : outcome.transcript) std::printf("%s\n", line.c_str());
  std::printf("seed %llu: %s\n", static_cast<unsigned long long>(FLAGS_seed), outcome.setting.c_str());
  std::printf("%llu rounds, %llu lives, %llu events in %.3f virtual seconds, digest %016llx\n",
              static_cast<unsigned long long>(outcome.rounds), static_cast<unsigned long long>(outcome.lives),
              static_cast<unsigned long long>(outcome.events), static_cast<double>(outcome.virtual_ms) / 1000,
              static_cast<unsigned long long>(outcome.digest));
  if (outcome.verdict.empty()) {
    std::printf("every invariant held\n");
  } else {
    print_failure({FLAGS_seed, outcome.verdict, outcome.setting});
  }
  if (FLAGS_json) {
    SimReport report;
    report.add(FLAGS_seed, outcome);
    std::printf("%s\n", report.json().c_str());
  }
  return outcome.verdict.empty() ? kExitOk : kExitFailed;
}

int sim(const std::vector<std::string>&) {
  chaos::name_seed_on_abort();
  if (FLAGS_seed != 0) return run_one();
  if (FLAGS_verbose) return usage_error(kSimCommand, "--verbose needs one --seed");
  const auto seeds = range(FLAGS_seeds);
  if (!seeds) return usage_error(kSimCommand, "--seeds is FIRST:LAST with FIRST not above LAST, or a number of seeds");
  if (FLAGS_jobs < 0 || FLAGS_jobs > 1024) return usage_error(kSimCommand, "--jobs is 0 … 1024");
  const unsigned threads =
      FLAGS_jobs == 0 ? std::max(1u, std::thread::hardware_concurrency()) : static_cast<unsigned>(FLAGS_jobs);
  const auto begin = std::chrono::steady_clock::now();
  const SimReport report = chaos::run_seeds(seeds->first, seeds->second, chaos::Mutant::none, threads, print_failure);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const std::vector<std::string> unhit = report.transitions_unhit();
  std::printf("%llu seeds, %llu under faults, %zu failed; %llu rounds in %lld virtual and %.1f real seconds\n",
              static_cast<unsigned long long>(report.seeds), static_cast<unsigned long long>(report.under_faults),
              report.failed.size(), static_cast<unsigned long long>(report.rounds),
              static_cast<long long>(report.virtual_ms / 1000), seconds);
  for (const std::string& name : unhit) std::printf("never taken: %s\n", name.c_str());
  if (FLAGS_json) std::printf("%s\n", report.json().c_str());
  const bool judged = report.seeds >= chaos::kSeedsForAllTransitions;
  return !report.failed.empty() || (judged && !unhit.empty()) ? kExitFailed : kExitOk;
}

}  // namespace

const Command kSimCommand = {
    .name = "sim",
    .summary = "runs whole jobs under faults in virtual time, each from one seed",
    .usage = "[--seeds=FIRST:LAST] [--jobs=N] [--json] | --seed=N [--verbose]",
    .text =
        "Each seed is a job: a tracker, up to 16 workers (a few hundred now and then) and a program of collectives, "
        "under faults that the seed draws. The machines, encoders, schedules and executors are those of production. "
        "After every event the invariants of the design are checked; a seed that breaks one is printed with the line "
        "that replays it.\nWith --json the last line is one object: seeds, failed, faults by kind, rounds, and "
        "second_faults (seeds in which a fault struck while a rank recovered), and transitions_unhit, which must be "
        "empty from "
        "3,000 seeds on.",
    .flags = {"seeds", "seed", "verbose", "jobs", "json"},
    .run = sim,
};

}  // namespace warren::cli
