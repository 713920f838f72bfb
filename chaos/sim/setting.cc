#include "chaos/sim/setting.h"

#include <algorithm>
#include <iterator>

#include "chaos/sim/chance.h"
#include "recovery/base/limits.h"

namespace warren::chaos {
namespace {

std::uint32_t draw_world_size(Random& random) {
  const std::uint64_t at = random.below(100);
  if (at < 4) return 1;
  if (at < 28) return 2;
  if (at < 56) return 3;
  if (at < 74) return 4;
  if (at < 86) return 5;
  if (at < 96) return static_cast<std::uint32_t>(random.between(6, 8));
  return static_cast<std::uint32_t>(random.between(9, 16));
}

// Apart from what other jobs draw.
void draw_shrinking(Setting& s, const SimOptions& options, bool staged) {
  const Chances chances(options.seed, options.chances);
  Random random(Random::mix(options.seed ^ 0x5a5a));
  wire::JobSettings& job = s.job;
  const std::uint32_t most = s.world_size - 1;
  const auto drawn = random.chance(0.6) ? std::min(2u, most) : most;
  job.set_min_workers(options.min_workers.value_or(1 + static_cast<std::uint32_t>(random.below(drawn))));
  const auto timeout_ms = static_cast<std::int64_t>(job.round_timeout_ms());
  const std::uint64_t how = random.below(10);
  const std::int64_t grace_ms = how < 3 ? 0 : random.between(1, how < 7 ? 10 : 2 * timeout_ms);
  job.set_grace_ms(options.grace_ms.value_or(static_cast<std::uint64_t>(grace_ms)));
  if (job.replicas() == 0) job.set_replicas(1);
  s.program.messages = s.program.groups = s.program.fresh = s.program.local = false;
  s.program.setups = s.program.inferred = false;
  s.program.shrinks = true;
  s.disks = options.disks.value_or(chances.has(Chance::shrinks_on_disks));
  s.mirror = false;
  const bool may_begin_short = !staged && random.chance(0.4);
  const auto late = static_cast<std::uint32_t>(random.below(s.world_size));
  s.late = options.late.value_or(may_begin_short ? late : 0);
  job.set_elastic_start(options.late ? s.late != 0 : may_begin_short);
}

// The job's settings, and a recipe for its faults.
void draw_job(Setting& s, Random& random, const SimOptions& options, const Chances& chances) {
  static constexpr std::int64_t kTimeouts[] = {100, 200, 300, 500, 1000};
  static constexpr std::uint64_t kChunks[] = {1024, 1024, 2048, 4096, 65536};
  static constexpr const char* kAlgorithms[] = {"auto", "auto", "star", "tree", "butterfly", "ring", "direct"};
  s.large = chances.has(Chance::large_world) && !options.world_size;
  if (chances.has(Chance::recipe) && !s.large && !options.faults) {
    s.recipe = recipe(chances.pick(Chance::recipe_of, kRecipes));
  }
  s.world_size = s.large ? 257 + static_cast<std::uint32_t>(random.below(8)) : draw_world_size(random);
  if (options.world_size) s.world_size = *options.world_size;
  s.job.set_world_size(s.world_size);
  const std::int64_t drawn = random.pick(kTimeouts);
  s.job.set_round_timeout_ms(static_cast<std::uint64_t>(options.round_timeout_ms.value_or(s.large ? 2000 : drawn)));
  s.job.set_algorithm(options.algorithm ? *options.algorithm : random.pick(kAlgorithms));
  s.job.set_chunk_bytes(random.pick(kChunks));
  s.job.set_streams(static_cast<std::uint32_t>(random.chance(0.7) ? 1 : random.between(2, 3)));
  s.job.set_checksums(random.chance(0.85));
  s.job.set_check_call_sites(random.chance(0.8));
  const std::uint32_t replicas = random.chance(0.2) ? 0 : 1 + static_cast<std::uint32_t>(random.below(3));
  s.job.set_replicas(options.replicas.value_or(s.large ? 0 : replicas));
}

void draw_program(Setting& s, Random& random, const SimOptions& options, const Chances& chances) {
  s.program.world_size = s.world_size;
  s.program.least = s.large;
  s.program.messages = !s.large && random.chance(0.6);
  s.program.fresh = s.job.replicas() > 0;
  s.program.local = random.chance(0.5);
  // Where nothing is logged, nothing is kept.
  s.program.setups = s.job.replicas() > 0 && random.chance(0.6);
  s.program.groups = random.chance(0.6);
  if (options.groups) s.program.groups = *options.groups;
  s.program.collective = options.collective;
  s.program.many_versions = options.many_versions;
  if (random.chance(0.5)) s.program.most_bytes = 8 << 10;
  if (!s.large && options.lends.value_or(chances.has(Chance::lends))) {
    s.program.long_allreduces = true;
    // Shares of which are worth reducing by owners (worker/schedule/host.cc).
    s.program.most_bytes = (std::uint64_t{16} << 10) * std::clamp<std::uint32_t>(s.world_size, 3, 6);
  }
}

// How long ranks wait for each other to join, and when a run that has not ended is at fault.
void draw_times(Setting& s, Random& random, const SimOptions& options) {
  s.salted = random.chance(0.5);
  s.survivable = random.chance(0.75);
  if (s.recipe && s.recipe->beyond_copies) s.survivable = false;
  if (options.survivable) s.survivable = *options.survivable;
  s.join_timeout_ms = !s.large && random.chance(0.3) ? random.between(500, 2000) : random.between(3000, 15'000);
  if (s.recipe && s.recipe->short_join_timeout) s.join_timeout_ms = random.between(500, 2000);
  // Those who wait until another joins, and are started again a second later, must meet.
  s.join_timeout_ms = std::max(s.join_timeout_ms, 100 * std::int64_t{s.world_size});
  // So many are together only if each waits for the last.
  if (s.large) s.join_timeout_ms = 60'000;
  s.safety_us = random.chance(0.05) ? 20'000'000 : random.between(200'000, 4'000'000);
  if (s.recipe && s.recipe->long_safety) s.safety_us = random.between(12'000'000, 22'000'000);
}

// Tests that say what happens to whom have the ranks that they know.
bool is_staged(const SimOptions& options) {
  return !options.deaths.empty() || !options.notices.empty() || !options.hosts.empty() || options.faults ||
         options.straggler || options.lone_commit || options.tracker_dies_before_effect ||
         options.mutant != Mutant::none;
}

// Disks, spares, and a log that is full: drawn apart from what other jobs draw.
void draw_extras(Setting& s, const SimOptions& options, const Chances& chances, bool staged) {
  s.disks = s.job.replicas() > 0 && options.disks.value_or(!s.large && chances.has(Chance::disks));
  s.program.inferred = s.job.replicas() > 0 && !s.large && !s.disks &&
                       options.inferred.value_or(!s.recipe && chances.has(Chance::inferred));
  // rabit's programs have neither. Who asks would wait for ranks that wait for a message of its own.
  if (s.program.inferred) s.program.messages = s.program.groups = false;
  s.program.repeats = !staged && chances.has(Chance::repeats);
  const auto some = 1 + static_cast<std::uint32_t>(chances.pick(Chance::spares_more, 3));
  s.spares = options.spares.value_or(!staged && !s.large && chances.has(Chance::spares) ? some : 0);
  // Divisible by every small number of ranks.
  s.spares_at = chances.pick(Chance::spares_at, 720'720);
  s.ends_process = !chances.has(Chance::process_stays);
  s.follows = s.spares != 0 && s.job.replicas() > 0 && options.follows.value_or(chances.has(Chance::follows));
  // Half of those replace whoever is slow, sooner or later.
  const bool replaces = s.spares != 0 && s.job.replicas() > 0 && chances.has(Chance::replaces);
  s.job.set_replace_after_ms(options.replace_after_ms.value_or(replaces ? s.job.round_timeout_ms() : 0));
  s.job.set_rewire(options.rewires.value_or(!chances.has(Chance::stays_wired)));
  s.job.set_reorders(s.job.rewire() && options.reorders.value_or(chances.has(Chance::reorders)));
  s.full_logs =
      s.job.replicas() > 0 && !s.large && options.full_logs.value_or(!staged && chances.has(Chance::full_logs));
  s.program.long_versions = s.full_logs;
  s.mirror = s.disks && options.mirror.value_or(chances.has(Chance::mirror));
}

void draw_gpus(Setting& s, const SimOptions& options, const Chances& chances) {
  s.program.long_allreduces = s.program.on_gpus = true;
  s.program.most_bytes = std::uint64_t{80} << 10;  // more than what is published whole
  // Those that NCCL can be asked for, and mostly in few messages.
  static constexpr const char* kInPieces[] = {"auto", "ring", "butterfly"};
  // On one host, or two, they read each other's memory.
  const bool together = chances.has(Chance::gpus_together) && options.hosts.empty();
  if (together) s.together = chances.has(Chance::gpus_on_two) ? 2 : 1;
  s.nccl = options.nccl.value_or(!together || !chances.has(Chance::gpus_read));
  if (!options.algorithm) {
    s.job.set_algorithm(together ? "auto" : kInPieces[chances.pick(Chance::gpus_algorithm, std::size(kInPieces))]);
  }
  if (!chances.has(Chance::gpus_few_bytes)) s.job.set_chunk_bytes(std::max<std::uint64_t>(s.job.chunk_bytes(), 8192));
  if (options.chunk_bytes) s.job.set_chunk_bytes(*options.chunk_bytes);
}

Setting draw_parts(Random& random, const SimOptions& options) {
  const Chances chances(options.seed, options.chances);
  Setting s;
  draw_job(s, random, options, chances);
  draw_program(s, random, options, chances);
  draw_times(s, random, options);
  const bool staged = is_staged(options);
  draw_extras(s, options, chances, staged);
  const bool by_chance = !staged && !options.inferred && chances.has(Chance::shrinks);
  if (s.world_size > 1 && !s.large && options.shrinks.value_or(by_chance)) draw_shrinking(s, options, staged);
  s.gpus = s.job.replicas() > 0 && !s.large && !s.program.shrinks &&
           options.gpus.value_or(!staged && chances.has(Chance::gpus));
  if (s.gpus) draw_gpus(s, options, chances);
  s.spills = s.disks && options.spills.value_or(chances.has(Chance::spills));
  s.one_host = s.program.long_allreduces && chances.has(Chance::one_host);
  s.sees = static_cast<Setting::Sees>(chances.pick(Chance::sees, 3));
  s.says_gpu = !chances.has(Chance::gpus_unsaid);
  s.gpus_fail = options.gpus_fail.value_or(chances.has(Chance::gpus_fail));
  s.launcher_each = chances.has(Chance::launcher_each);
  return s;
}

// Faults beside those that are drawn in turn.
void add_apart(FaultPlan& plan, const Setting& s, const Chances& chances) {
  const bool logged = s.job.replicas() > 0;
  const bool waits = logged && !s.shrinks();
  if (logged && chances.has(Chance::all_die)) plan.add(Fault::all_die);
  const bool preempted = chances.has(Chance::preempted), taken = logged && chances.has(Chance::machine_taken);
  if (preempted) plan.add(Fault::preempted);
  if (taken) plan.add(Fault::machine_taken);
  if (chances.has(Chance::link_silent)) plan.add(Fault::link_silent);
  if (plan.any() && chances.has(Chance::first_plan_lost)) plan.add(Fault::first_plan_lost);
  if (plan.any() && waits && chances.has(Chance::older_journal)) plan.add(Fault::older_journal);
  // Not where lives leave and serve: few seeds take all that can happen there.
  if (waits && s.world_size > 1 && !preempted && !taken && chances.has(Chance::other_state)) {
    plan.add(Fault::other_state);
  }
}

FaultPlan draw_faults(Random& random, const Setting& s, const SimOptions& options) {
  const Chances chances(options.seed, options.chances);
  FaultPlan plan = s.recipe ? s.recipe->faults : FaultPlan();
  if (!s.recipe && !s.large) plan = FaultPlan::draw(random, s.job.replicas() > 0);
  if (s.disks && !chances.has(Chance::keeps_processes)) {
    plan.add(Fault::cluster_loss);
    plan.add(Fault::journal_loss);
    if (s.mirror) plan.add(Fault::disks_loss);
  }
  if (!s.recipe && !s.large) add_apart(plan, s, chances);
  if (s.shrinks() && plan.any()) {
    plan.add(Fault::stays_away);
    // Few calls fit between two of the usual deaths of a short job, and none of those is needed.
    if (chances.has(Chance::shrinks_often)) plan.set(Fault::death, std::max(plan.rate(Fault::death), 8.0));
  }
  // Somebody has to be lost once results were given up.
  if (s.full_logs && plan.any()) plan.set(Fault::death, std::max(plan.rate(Fault::death), 3.0));
  if (s.recipe || !s.large) return plan;
  FaultPlan few;
  few.add(Fault::slow_start);
  return few;
}

}  // namespace

bool has_large_world(std::uint64_t seed) {
  return Chances(seed).has(Chance::large_world);
}

Setting draw_setting(Random& random, const SimOptions& options) {
  Setting s = draw_parts(random, options);
  s.faults = options.faults ? *options.faults : draw_faults(random, s, options);
  return s;
}

std::string describe(const Setting& s, std::size_t steps) {
  std::string text =
      "K=" + std::to_string(s.world_size) + " round timeout " + std::to_string(s.timeout_ms()) + " ms, algorithm " +
      s.job.algorithm() + ", chunks of " + std::to_string(s.job.chunk_bytes()) + ", streams " +
      std::to_string(s.job.streams()) + ", replicas " + std::to_string(s.job.replicas()) +
      (s.spares == 0 ? "" : ", spares " + std::to_string(s.spares) + (s.follows ? " that follow checkpoints" : "")) +
      (s.shrinks() ? ", goes on with " + std::to_string(s.job.min_workers()) + " after " +
                         std::to_string(s.job.grace_ms()) + " ms"
                   : "") +
      (s.job.elastic_start() ? ", may begin with as many, " + std::to_string(s.late) + " come late" : "") +
      (s.job.replace_after_ms() == 0 ? "" : ", replaced after " + std::to_string(s.job.replace_after_ms()) + " ms") +
      (s.full_logs ? ", full logs" : "") + (s.gpus ? ", GPUs" : "") + (s.nccl ? " and NCCL" : "") + ", steps " +
      std::to_string(steps);
  for (std::size_t f = 0; f < kFaults; ++f) {
    if (s.faults.rates[f] > 0) text += std::string(", ") + info(static_cast<Fault>(f)).name;
  }
  return text;
}

}  // namespace warren::chaos
