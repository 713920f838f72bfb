#include "chaos/sim/runner.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <mutex>
#include <string_view>
#include <thread>

#include "recovery/tracker/tracker_machine.h"
#include "recovery/worker/worker_machine.h"

namespace warren::chaos {
namespace {

thread_local std::uint64_t seed_of_thread = 0;

void on_abort(int) {
  char text[160];
  const int n = std::snprintf(text, sizeof text, "broken invariant under seed %llu\nreproduce: %s%llu\n",
                              static_cast<unsigned long long>(seed_of_thread),
                              "warren sim --verbose --seed=", static_cast<unsigned long long>(seed_of_thread));
  (void)!::write(STDERR_FILENO, text, static_cast<std::size_t>(n));
}

void add_to(std::vector<std::uint64_t>& sum, const std::vector<std::uint64_t>& more) {
  sum.resize(std::max(sum.size(), more.size()), 0);
  for (std::size_t i = 0; i < more.size(); ++i) sum[i] += more[i];
}

// What 3,000 seeds do not take; the machines' own tests do. The first needs 256 MiB of reports, the second a rank that
// does a round more than the others and meets nobody, the next ones are a matter of luck; the rest needs
// disks that say more than fits, or of another job, or a journal that is older than a change of ranks; the simulator's
// programs have one world size and change their ranks seldom between two checkpoints, and who is slow in a run on
// purpose neither recovers nor loses the word that it is to leave; slow links that are gone around are in
// tests/chaos/sim_stragglers_test.cc; a tracker seldom loses its journal, or hears an older word, while somebody serves
// (tests/chaos/sim_drain_test.cc, tests/recovery/tracker/servers_test.cc); what a tracker tells a spare to follow goes
// over one connection, in order, so nothing stale is heard there; a checkpoint that cannot be loaded is the newest,
// unless a journal is an older copy of which nobody knows (tests/recovery/tracker/rebuild_test.cc), and in mode shrink
// those who hold it seldom die while others, who have loaded, live; drawn programs do not deadlock
// (tests/chaos/sim_scenarios_test.cc), and links come up in the end (tests/recovery/tracker/unusable_test.cc); a plan
// that only a disk knows seldom meets a life that has installed it (tests/recovery/tracker/rebuild_test.cc).
constexpr std::string_view kOutOfReach[] = {"tracker.reports_too_large",     "tracker.commit_desync",
                                            "tracker.finalizing_left",       "worker.log_gap_repeated",
                                            "tracker.survivors_interrupted", "tracker.frontier_torn",
                                            "worker.ended_suspended",        "tracker.vote_voided_by_load",
                                            "tracker.held_too_large",        "tracker.disks_ignored",
                                            "tracker.promises_logged",       "tracker.resized",
                                            "tracker.resize_waits",          "tracker.resize_undone",
                                            "tracker.replace_withdrawn",     "worker.leave_request_repeated",
                                            "worker.leave_request_stale",    "tracker.too_many_absences",
                                            "tracker.timeline_ahead",        "tracker.rewired",
                                            "tracker.rewire_undone",         "tracker.rewire_obstructed",
                                            "tracker.detour_dropped",        "tracker.detour_broken",
                                            "tracker.exclude_asked",         "tracker.excluded",
                                            "tracker.server_unknown",        "tracker.server_out_of_turn",
                                            "tracker.replaced_waits",        "tracker.reordered",
                                            "worker.follow_stale",           "tracker.other_checkpoint_lost",
                                            "tracker.newcomer_cannot_load",  "tracker.deadlock",
                                            "tracker.unusable_ended",        "tracker.kept_rounds_forgotten"};

void name_unhit(const char* machine, std::span<const char* const> names, const std::vector<std::uint64_t>& counts,
                std::vector<std::string>& out) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const std::string name = std::string(machine) + "." + names[i];
    const bool reachable = std::find(std::begin(kOutOfReach), std::end(kOutOfReach), name) == std::end(kOutOfReach);
    if (reachable && (i >= counts.size() || counts[i] == 0)) out.push_back(name);
  }
}

}  // namespace

void name_seed_on_abort() {
  struct sigaction action {};
  action.sa_handler = on_abort;
  action.sa_flags = SA_RESETHAND;  // abort() goes on to end the process
  sigaction(SIGABRT, &action, nullptr);
}

std::string reproduce_command(std::uint64_t seed) {
  return "warren sim --verbose --seed=" + std::to_string(seed);
}

void SimReport::add(std::uint64_t seed, const SimOutcome& o) {
  ++seeds;
  under_faults += o.under_faults;
  rounds += o.rounds;
  events += o.events;
  lives += o.lives;
  commits += o.commits;
  rollbacks += o.rollbacks;
  struck_again += o.second_faults > 0;
  lost_for_good += o.lost_for_good;
  rebuilt += o.rebuilt;
  exchanged += o.exchanged;
  lent += o.lent;
  from_gpus += o.from_gpus;
  from_mirror += o.from_mirror;
  virtual_ms += o.virtual_ms;
  if (o.liveness_ms > longest_liveness_ms) {
    longest_liveness_ms = o.liveness_ms;
    longest_liveness_seed = seed;
  }
  if (!o.verdict.empty()) failed.push_back({seed, o.verdict, o.setting});
  for (std::size_t i = 0; i < kFaults; ++i) faults[i] += o.faults[i];
  add_to(tracker_transitions, o.tracker_transitions);
  add_to(worker_transitions, o.worker_transitions);
}

void SimReport::add(const SimReport& o) {
  seeds += o.seeds;
  under_faults += o.under_faults;
  rounds += o.rounds;
  events += o.events;
  lives += o.lives;
  commits += o.commits;
  rollbacks += o.rollbacks;
  struck_again += o.struck_again;
  lost_for_good += o.lost_for_good;
  rebuilt += o.rebuilt;
  exchanged += o.exchanged;
  lent += o.lent;
  from_gpus += o.from_gpus;
  from_mirror += o.from_mirror;
  virtual_ms += o.virtual_ms;
  if (o.longest_liveness_ms > longest_liveness_ms) {
    longest_liveness_ms = o.longest_liveness_ms;
    longest_liveness_seed = o.longest_liveness_seed;
  }
  failed.insert(failed.end(), o.failed.begin(), o.failed.end());
  std::sort(failed.begin(), failed.end(), [](const auto& a, const auto& b) { return a.seed < b.seed; });
  for (std::size_t i = 0; i < kFaults; ++i) faults[i] += o.faults[i];
  add_to(tracker_transitions, o.tracker_transitions);
  add_to(worker_transitions, o.worker_transitions);
}

std::vector<std::string> SimReport::transitions_unhit() const {
  std::vector<std::string> names;
  name_unhit("tracker", TrackerMachine::transition_names(), tracker_transitions, names);
  name_unhit("worker", WorkerMachine::transition_names(), worker_transitions, names);
  return names;
}

std::string SimReport::json() const {
  std::string text = "{\"seeds\": " + std::to_string(seeds) + ", \"failed\": [";
  for (std::size_t i = 0; i < failed.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(failed[i].seed);
  text += "], \"under_faults\": " + std::to_string(under_faults) +
          ", \"second_faults\": " + std::to_string(struck_again) + ", \"commits\": " + std::to_string(commits) +
          ", \"rollbacks\": " + std::to_string(rollbacks) + ", \"rebuilt\": " + std::to_string(rebuilt) +
          ", \"exchanged\": " + std::to_string(exchanged) + ", \"lent\": " + std::to_string(lent) +
          ", \"from_gpus\": " + std::to_string(from_gpus) + ", \"from_mirror\": " + std::to_string(from_mirror) +
          ", \"lost_for_good\": " + std::to_string(lost_for_good) + ", \"faults\": {";
  for (std::size_t i = 0; i < kFaults; ++i) {
    text +=
        (i == 0 ? "\"" : ", \"") + std::string(info(static_cast<Fault>(i)).name) + "\": " + std::to_string(faults[i]);
  }
  text += "}, \"rounds\": " + std::to_string(rounds) + ", \"lives\": " + std::to_string(lives) +
          ", \"events\": " + std::to_string(events) + ", \"virtual_seconds\": " + std::to_string(virtual_ms / 1000) +
          ", \"longest_liveness_ms\": " + std::to_string(longest_liveness_ms) +
          ", \"longest_liveness_seed\": " + std::to_string(longest_liveness_seed) + ", \"transitions_unhit\": [";
  const std::vector<std::string> unhit = transitions_unhit();
  for (std::size_t i = 0; i < unhit.size(); ++i) text += (i == 0 ? "\"" : ", \"") + unhit[i] + "\"";
  return text + "]}";
}

SimReport run_seeds(std::uint64_t first, std::uint64_t last, Mutant mutant, unsigned threads,
                    const std::function<void(const SeedFailure&)>& on_failure) {
  std::atomic<std::uint64_t> next{first};
  std::mutex mutex;
  SimReport all;
  const auto work = [&] {
    SimReport mine;
    for (std::uint64_t seed = next++; seed <= last; seed = next++) {
      seed_of_thread = seed;
      SimOptions options;
      options.seed = seed;
      options.mutant = mutant;
      const SimOutcome outcome = simulate(options);
      mine.add(seed, outcome);
      if (!outcome.verdict.empty() && on_failure) {
        const std::lock_guard lock(mutex);
        on_failure({seed, outcome.verdict, outcome.setting});
      }
    }
    const std::lock_guard lock(mutex);
    all.add(mine);
  };
  std::vector<std::thread> pool;
  for (unsigned i = 1; i < threads; ++i) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  return all;
}

}  // namespace warren::chaos
