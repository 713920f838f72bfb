// Rules broken on purpose: the simulator must find each within so many seeds. A run whose machine stops at a broken
// WARREN_CHECK counts as found, so each mutant runs in a process of its own.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "tests/chaos/sim_scenarios.h"

namespace warren::chaos {
namespace {

struct Verdict {
  std::uint64_t seeds = 0;  // until the first failure; 0: it lives
  std::string how;
};

// `breaks`: or else the same jobs, and no rule is broken.
Verdict run_until_found(Mutant mutant, std::uint64_t most, bool breaks = true, std::uint64_t first = 1) {
  int channel[2];
  EXPECT_EQ(pipe(channel), 0);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    close(channel[0]);
    for (std::uint64_t seed = first; seed < first + most; ++seed) {
      // Nothing is logged there, little goes wrong, and one takes longer than all that is needed of the others. Without
      // a mutant sim_test has such a world.
      if (has_large_world(seed)) continue;
      std::string line = "seed " + std::to_string(seed) + "\n";
      (void)!write(channel[1], line.data(), line.size());
      SimOptions options;
      options.seed = seed;
      if (mutant == Mutant::asks_nobody) options.inferred = true;
      // Reports that blame the victim are lies where there is one.
      if (mutant == Mutant::idle_told_as_work) options = straggling(seed, Straggler::What::kProgram);
      if (mutant == Mutant::ends_swapped) options = straggling(seed, Straggler::What::kLink);
      if (mutant == Mutant::stays_when_asked) options = replacing(seed, Straggler::What::kProgram);
      if (mutant == Mutant::order_at_once) options = reordering(seed);
      if (mutant == Mutant::trusts_nccl) {
        options = exchanging(3, seed);
        options.gpus_fail = true;
      }
      if (mutant == Mutant::trusts_made) options = lending(5, seed);
      if (mutant == Mutant::told_too_early) options = lending_apart(seed);
      if (mutant == Mutant::publishes_late) {
        // Who has returned, or handed on, dies at once. (Where ranks wait long for what is lost a seed takes a minute.)
        options.world_size = 3;
        options.replicas = 2;
        options.survivable = true;
        options.faults.emplace();
        options.faults->set(Fault::death_at_return, 0.1);
        options.faults->set(Fault::death_at_completion, 0.02);
        options.faults->set(Fault::death_at_send, 0.02);
      }
      if (mutant == Mutant::compares_no_states) {
        options.faults.emplace();
        options.faults->set(Fault::other_state, 0.3);
        options.faults->set(Fault::death, 2.0);
      }
      if (mutant == Mutant::loans_without_end) {
        options.lends = true;
        options.collective = Collective::kAllreduce;
        options.world_size = 3;
        options.hosts = {"a", "a", "a"};
        // What was lent has to be read late, and to go into a result that survives: generations end while all live, not
        // all hear of it at once, and somebody is behind, in a schedule of many steps.
        options.algorithm = "ring";
        options.replicas = 1;
        options.faults.emplace();
        options.faults->set(Fault::gave_up, 20.0);
        options.faults->set(Fault::link_cut, 10.0);
        options.faults->set(Fault::link_late, 0.9);
        options.faults->set(Fault::message_late, 0.9);
      }
      if (mutant == Mutant::mixes_attempts || mutant == Mutant::forgets_whole_results ||
          mutant == Mutant::works_in_place) {
        options.shrinks = true;
      }
      if (mutant == Mutant::server_is_a_copy) options = noticed(seed);
      if (mutant == Mutant::server_not_heard) {
        // What it alone has returned, and nobody else reads again.
        options = noticed(seed);
        options.collective = Collective::kBroadcast;
      }
      if (mutant == Mutant::serves_what_was_begun) options = noticed_in_a_round(seed);
      // Somebody has to return before it is lost, and everybody else be left.
      if (mutant == Mutant::forgets_whole_results) options.world_size = 2;
      options.mutant = breaks ? mutant : Mutant::none;
      const SimOutcome outcome = simulate(options);
      if (outcome.verdict.empty()) continue;
      line = "found " + outcome.verdict + "\n";
      (void)!write(channel[1], line.data(), line.size());
      _exit(1);
    }
    _exit(0);
  }
  close(channel[1]);
  std::string said;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(channel[0], buffer, sizeof buffer)) > 0;)
    said.append(buffer, static_cast<std::size_t>(n));
  close(channel[0]);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return {};
  Verdict v;
  const std::size_t last = said.rfind("seed ");
  v.seeds = std::stoull(said.substr(last + 5));
  const std::size_t found = said.find("found ");
  v.how = found == std::string::npos ? "a broken WARREN_CHECK" : said.substr(found + 6);
  return v;
}

struct Expectation {
  Mutant mutant;
  const char* name;
  std::uint64_t seeds;      // it must be found within
  const char* invariant;    // by this one; empty: whichever comes first
  std::uint64_t first = 1;  // seeds before this one find nothing, and take up to a minute
};

class Mutants : public ::testing::TestWithParam<Expectation> {};

TEST_P(Mutants, AreFound) {
  const Expectation& e = GetParam();
  const Verdict v = run_until_found(e.mutant, e.seeds, true, e.first);
  ASSERT_NE(v.seeds, 0u) << e.name << " lives after " << e.seeds << " seeds";
  EXPECT_EQ(v.how.rfind(e.invariant, 0), 0u) << v.how;
  std::printf("%s: found by seed %llu: %s\n", e.name, static_cast<unsigned long long>(v.seeds), v.how.c_str());
}

INSTANTIATE_TEST_SUITE_P(
    Sim, Mutants,
    ::testing::Values(Expectation{Mutant::asks_nobody, "asks_nobody", 400, "I"},
                      Expectation{Mutant::announce_before_persist, "announce_before_persist", 3, "I6"},
                      Expectation{Mutant::journal_lies, "journal_lies", 10, "I"},
                      Expectation{Mutant::accept_old_generation, "accept_old_generation", 200, "I"},
                      Expectation{Mutant::accept_zombie, "accept_zombie", 100, ""},
                      Expectation{Mutant::stopped_before_stop, "stopped_before_stop", 100, ""},
                      Expectation{Mutant::send_completes_early, "send_completes_early", 20, ""},
                      Expectation{Mutant::skip_checksum, "skip_checksum", 1000, "I"},
                      Expectation{Mutant::operands_swapped, "operands_swapped", 200, "I"},
                      Expectation{Mutant::publishes_late, "publishes_late", 40, "I"},
                      Expectation{Mutant::one_copy_short, "one_copy_short", 1500, "I"},
                      Expectation{Mutant::commits_without_one, "commits_without_one", 200, "I"},
                      Expectation{Mutant::keeps_vote_after_load, "keeps_vote_after_load", 1000, "I"},
                      Expectation{Mutant::compares_no_states, "compares_no_states", 100, "I"},
                      Expectation{Mutant::votes_without_its_state, "votes_without_its_state", 300, "I"},
                      Expectation{Mutant::reuses_names, "reuses_names", 300, "I"},
                      Expectation{Mutant::replays_stale_timeline, "replays_stale_timeline", 3000, "I", 2200},
                      Expectation{Mutant::finals_of_own_host, "finals_of_own_host", 200, "I"},
                      Expectation{Mutant::replay_ignores_prepare, "replay_ignores_prepare", 3000, ""},
                      Expectation{Mutant::acts_without_promises, "acts_without_promises", 200, "I6"},
                      Expectation{Mutant::overwrites_input, "overwrites_input", 20, ""},
                      Expectation{Mutant::idle_told_as_work, "idle_told_as_work", 40, "Blame"},
                      Expectation{Mutant::ends_swapped, "ends_swapped", 40, "Blame"},
                      Expectation{Mutant::stays_when_asked, "stays_when_asked", 20, "Replace"},
                      Expectation{Mutant::loans_without_end, "loans_without_end", 1500, "I"},
                      Expectation{Mutant::trusts_nccl, "trusts_nccl", 100, "I2"},
                      Expectation{Mutant::trusts_made, "trusts_made", 100, "I2"},
                      Expectation{Mutant::told_too_early, "told_too_early", 20, "I2"},
                      Expectation{Mutant::mixes_attempts, "mixes_attempts", 1000, "I", 900},
                      Expectation{Mutant::forgets_whole_results, "forgets_whole_results", 1000, "I1"},
                      Expectation{Mutant::works_in_place, "works_in_place", 1000, "I", 600},
                      Expectation{Mutant::server_is_a_copy, "server_is_a_copy", 1000, "I"},
                      Expectation{Mutant::server_not_heard, "server_not_heard", 1000, "I"},
                      Expectation{Mutant::serves_what_was_begun, "serves_what_was_begun", 6000, "I", 5301},
                      Expectation{Mutant::order_at_once, "order_at_once", 100, "I2"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(WithoutMutant, NothingIsFound) {
  EXPECT_EQ(run_until_found(Mutant::none, 100).seeds, 0u);
}
TEST(WithoutMutant, NothingIsFoundUnderItsFaults) {
  for (const Mutant mutant : {Mutant::publishes_late, Mutant::compares_no_states, Mutant::loans_without_end}) {
    const Verdict verdict = run_until_found(mutant, 40, false);
    EXPECT_EQ(verdict.seeds, 0u) << static_cast<int>(mutant) << ": " << verdict.how;
  }
}

}  // namespace
}  // namespace warren::chaos
