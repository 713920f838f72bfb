#include "chaos/sim/cluster.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <set>
#include <utility>

#include "chaos/sim/control_network.h"
#include "chaos/sim/fetch_network.h"
#include "chaos/sim/hosts.h"
#include "chaos/sim/judge.h"
#include "chaos/sim/program.h"
#include "chaos/sim/sim_mirror.h"
#include "chaos/sim/sim_tracker.h"
#include "chaos/sim/sim_transport.h"
#include "chaos/sim/sim_worker.h"
#include "chaos/sim/twin_tracker.h"
#include "chaos/sim/world.h"
#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"

namespace warren::chaos {
namespace {

constexpr const char* kJob = "sim";
// One in so many runs follows a recipe; recipes take turns.
constexpr std::uint64_t kRecipeEvery = 3;
// One in so many has disks, and may lose all its processes at once.
constexpr std::uint64_t kDisksEvery = 5, kDisksAt = 2;
// One in so many has a program with set-up rounds that nobody names, and no disks.
constexpr std::uint64_t kInferredEvery = 20, kInferredAt = 8;
// In one in so many ranks of a host have allreduces that are long enough to lend each other their inputs, half of them
// on one host alone.
constexpr std::uint64_t kLendsEvery = 7, kLendsAt = 3;
// In one in so many workers have GPUs, and NCCL moves what those exchange.
constexpr std::uint64_t kGpusEvery = 13, kGpusAt = 9;
// One in so many has workers beyond the world size that wait as spares.
constexpr std::uint64_t kSparesEvery = 4, kSparesAt = 3;
// One in so many has logs that are soon full of results, and no room for those on disks.
constexpr std::uint64_t kFullLogsEvery = 6, kFullLogsAt = 4;
// One in so many goes on without ranks that were lost.
constexpr std::uint64_t kShrinksEvery = 10, kShrinksAt = 9;
// More calls than a simulated program has outstanding (sim_worker.cc): where these had no room, a job could not end.
constexpr std::size_t kFullLogsUnderWay = 10;
constexpr std::int64_t kMostEvents = 6'000'000;
constexpr std::size_t kMostLivesPerWorker = 400;

struct Setting {
  std::uint32_t world_size = 2;
  std::optional<Recipe> recipe;
  bool large = false;
  wire::JobSettings job;
  std::int64_t join_timeout_ms = 0;
  Micros safety_us = 0;
  Program::Shape program;
  bool salted = false;
  bool disks = false, mirror = false;
  bool full_logs = false;  // which give up their oldest results
  bool gpus = false, nccl = false;
  std::size_t together = 0;  // all ranks, on so many hosts; 0: as is drawn
  std::uint32_t spares = 0;
  bool follows = false;      // these hold the newest checkpoint
  bool ends_process = true;  // of workers whose life is over: the program does not hear why
  std::uint32_t late = 0;    // workers that come some time, if the job may begin without them
  bool survivable = true;    // no more failure domains are lost than there are copies to spare
};

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
  s.disks = options.disks.value_or(options.seed / kShrinksEvery % 3 == 1);
  s.mirror = false;
  const bool may_begin_short = !staged && random.chance(0.4);
  const auto late = static_cast<std::uint32_t>(random.below(s.world_size));
  s.late = options.late.value_or(may_begin_short ? late : 0);
  job.set_elastic_start(options.late ? s.late != 0 : may_begin_short);
}

Setting draw_setting(Random& random, const SimOptions& options) {
  static constexpr std::int64_t kTimeouts[] = {100, 200, 300, 500, 1000};
  static constexpr std::uint64_t kChunks[] = {1024, 1024, 2048, 4096, 65536};
  static constexpr const char* kAlgorithms[] = {"auto", "auto", "star", "tree", "butterfly", "ring", "direct"};
  Setting s;
  s.large = has_large_world(options.seed) && !options.world_size;
  if (options.seed % kRecipeEvery == 0 && !s.large && !options.faults) {
    s.recipe = recipe(options.seed / kRecipeEvery % kRecipes);
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
  if (!s.large && options.lends.value_or(options.seed % kLendsEvery == kLendsAt)) {
    s.program.long_allreduces = true;
    // Shares of which are worth reducing by owners (worker/schedule/host.cc).
    s.program.most_bytes = (std::uint64_t{16} << 10) * std::clamp<std::uint32_t>(s.world_size, 3, 6);
  }
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
  s.disks = s.job.replicas() > 0 && options.disks.value_or(!s.large && options.seed % kDisksEvery == kDisksAt);
  s.program.inferred = s.job.replicas() > 0 && !s.large && !s.disks &&
                       options.inferred.value_or(!s.recipe && options.seed % kInferredEvery == kInferredAt);
  // rabit's programs have neither. Who asks would wait for ranks that wait for a message of its own.
  if (s.program.inferred) s.program.messages = s.program.groups = false;
  // Tests that say what happens to whom have the ranks that they know.
  const bool staged = !options.deaths.empty() || !options.notices.empty() || !options.hosts.empty() || options.faults ||
                      options.straggler || options.lone_commit || options.tracker_dies_before_effect ||
                      options.mutant != Mutant::none;
  s.program.repeats = !staged && options.seed % 2 == 0;
  const std::uint64_t some = options.seed % kSparesEvery == kSparesAt ? 1 + options.seed / kSparesEvery % 3 : 0;
  s.spares = options.spares.value_or(staged || s.large ? 0 : static_cast<std::uint32_t>(some));
  s.ends_process = Random::mix(options.seed ^ 0xe1d) % 4 != 0;
  s.follows = s.spares != 0 && s.job.replicas() > 0 && options.follows.value_or(options.seed / 48 % 2 == 0);
  // Half of those replace whoever is slow, sooner or later.
  const bool replaces = s.spares != 0 && s.job.replicas() > 0 && options.seed / 24 % 2 == 0;
  s.job.set_replace_after_ms(options.replace_after_ms.value_or(replaces ? s.job.round_timeout_ms() : 0));
  s.job.set_rewire(options.rewires.value_or(options.seed % 3 != 0));
  s.job.set_reorders(s.job.rewire() && options.reorders.value_or(options.seed % 2 == 0));
  s.full_logs = s.job.replicas() > 0 && !s.large &&
                options.full_logs.value_or(!staged && options.seed % kFullLogsEvery == kFullLogsAt);
  s.program.long_versions = s.full_logs;
  s.mirror = s.disks && options.mirror.value_or(options.seed / kDisksEvery % 2 == 0);
  const bool by_chance = !staged && !options.inferred && options.seed % kShrinksEvery == kShrinksAt;
  if (s.world_size > 1 && !s.large && options.shrinks.value_or(by_chance)) draw_shrinking(s, options, staged);
  s.gpus = s.job.replicas() > 0 && !s.large && !s.program.shrinks &&
           options.gpus.value_or(!staged && options.seed % kGpusEvery == kGpusAt);
  if (s.gpus) {
    s.program.long_allreduces = s.program.on_gpus = true;
    s.program.most_bytes = std::uint64_t{80} << 10;  // more than what is published whole
    // Those that NCCL can be asked for, and mostly in few messages.
    static constexpr const char* kInPieces[] = {"auto", "ring", "butterfly"};
    const std::uint64_t which = options.seed / kGpusEvery;
    // On one host, or two, they read each other's memory.
    if (which % 3 == 1 && options.hosts.empty()) s.together = 1 + which / 6 % 2;
    const bool together = s.together != 0;
    s.nccl = options.nccl.value_or(!together || which % 2 == 0);
    if (!options.algorithm) s.job.set_algorithm(together ? "auto" : kInPieces[which % 3]);
    if (which % 4 != 0) s.job.set_chunk_bytes(std::max<std::uint64_t>(s.job.chunk_bytes(), 8192));
    if (options.chunk_bytes) s.job.set_chunk_bytes(*options.chunk_bytes);
  }
  return s;
}

class Cluster {
 public:
  explicit Cluster(const SimOptions& options)
      : options_(options),
        draws_(options.seed * 0x10001 + 7),
        setting_(draw_setting(draws_, options)),
        faults_(options.faults ? *options.faults : draw_faults()),
        world_(Random::mix(options.seed), faults_, options.mutant, options.transcript),
        program_(draws_, setting_.program),
        judge_(world_, program_, hosts_, setting_.job, setting_.salted),
        data_(world_),
        fetch_(world_,
               {[this](Incarnation server, const wire::FetchRequest& request, auto& answer) {
                  return serve(server, request, answer);
                },
                [this](std::size_t life, Rank from, const auto& reply) { lives_[life]->fetched(from, reply); }},
               timeout_ms()),
        control_(world_,
                 {[this](std::size_t life, const std::string& bytes) { to_tracker(life, bytes); },
                  [this](std::size_t life, const std::string& bytes) { lives_[life]->receive(bytes); },
                  [this](std::size_t life, const std::string& what) { lives_[life]->connection_trouble(what); }},
                 timeout_ms()),
        tracker_(world_, judge_,
                 {[this](std::size_t life, const std::string& bytes) {
                    if (!withholds(life, bytes)) control_.send_down(life, bytes);
                  },
                  [this] { control_.drop_all(); }, [this](const wire::Envelope& e) { check_claim(e); },
                  [this](const std::string& record) { stored(record); }, [this] { tracker_died(); }},
                 kJob, timeout_ms()) {}

  SimOutcome run();

 private:
  // A launcher: it starts a worker, and again when it ends badly.
  struct Slot {
    std::string worker_id, host_id, domain_id;
    bool begins_as_spare = false;
    bool begins_again = false;  // as a spare, in the process of the life before
    bool spare = false, started = false, done = false, absent = false;
    bool heard_lost = false;  // one of its lives was told that the job cannot go on
    bool ended = false;       // its launcher starts nobody again
    std::optional<std::size_t> life;
    std::uint32_t attempt = 0;
    std::uint64_t starts_due = 0;  // counts requests, so that only the last one starts a life
  };

  FaultPlan draw_faults() {
    FaultPlan plan = setting_.recipe ? setting_.recipe->faults : FaultPlan();
    if (!setting_.recipe && !setting_.large) plan = FaultPlan::draw(draws_, setting_.job.replicas() > 0);
    if (setting_.disks && options_.seed % 3 != 0) {
      plan.add(Fault::cluster_loss);
      plan.add(Fault::journal_loss);
      if (setting_.mirror) plan.add(Fault::disks_loss);
    }
    if (!setting_.recipe && setting_.job.replicas() > 0 && options_.seed % 4 == 1) plan.add(Fault::all_die);
    if (!setting_.recipe && !setting_.large && options_.seed % 7 == 3) plan.add(Fault::preempted);
    if (!setting_.recipe && setting_.job.replicas() > 0 && (options_.seed % 7 == 4 || options_.seed % 7 == 5)) {
      plan.add(Fault::machine_taken);
    }
    if (!setting_.recipe && !setting_.large && options_.seed % 9 == 5) plan.add(Fault::link_silent);
    if (!setting_.recipe && !setting_.large && (options_.seed % 11 == 1 || options_.seed % 11 == 2) && plan.any())
      plan.add(Fault::first_plan_lost);
    if (!setting_.recipe && !setting_.large && (options_.seed % 13 == 5 || options_.seed % 13 == 7) && plan.any() &&
        setting_.job.replicas() > 0 && !shrinks()) {
      plan.add(Fault::older_journal);
    }
    // Not where lives leave and serve: few seeds take all that can happen there.
    if (!setting_.recipe && !setting_.large && options_.seed % 17 == 6 && options_.seed % 7 < 3 &&
        setting_.world_size > 1 && setting_.job.replicas() > 0 && !shrinks()) {
      plan.add(Fault::other_state);
    }
    if (shrinks() && plan.any()) {
      plan.add(Fault::stays_away);
      // Few calls fit between two of the usual deaths of a short job, and none of those is needed.
      if (options_.seed / kShrinksEvery / 2 % 2 == 0) plan.set(Fault::death, std::max(plan.rate(Fault::death), 8.0));
    }
    // Somebody has to be lost once results were given up.
    if (setting_.full_logs && plan.any()) plan.set(Fault::death, std::max(plan.rate(Fault::death), 3.0));
    if (setting_.recipe || !setting_.large) return plan;
    FaultPlan few;
    few.add(Fault::slow_start);
    return few;
  }
  // Room for all results of a program and its checkpoints, also where each version begins a new part.
  [[nodiscard]] std::size_t log_bytes() const {
    // Or for what has to stay there and the calls that are under way at once.
    if (setting_.full_logs) {
      // Beside the calls, parts of the log that hold little else.
      const std::uint64_t under_way = program_.most_result_bytes(kFullLogsUnderWay) + 2 * program_.most_result_bytes(1);
      return kMinSegmentBytes + static_cast<std::size_t>(program_.result_bytes(true) + under_way) / 4096 * 4096;
    }
    // Or for little more than what has to stay there: the rest spills.
    if (setting_.disks && options_.seed % 5 == 2) {
      return kMinSegmentBytes + static_cast<std::size_t>(4 * program_.result_bytes(true)) / 4096 * 4096;
    }
    return (std::size_t{1} << 20) + static_cast<std::size_t>(2 * program_.result_bytes()) / 4096 * 4096;
  }
  [[nodiscard]] std::int64_t timeout_ms() const { return static_cast<std::int64_t>(setting_.job.round_timeout_ms()); }
  [[nodiscard]] bool shrinks() const { return setting_.job.min_workers() > 0; }
  void make_slots();
  void start_later(std::size_t slot, Micros delay_us);
  void see_host(wire::Join& join, std::size_t life) const;
  std::size_t start_life(std::size_t slot, bool supervised);
  void on_end(std::size_t slot, std::size_t life, SimWorker::End end, const Status& why);
  void end_launcher(std::size_t slot, std::size_t life, const Status& why);
  void give_up(std::size_t slot);
  SimWorker::Links links_of(std::size_t life, std::size_t slot);
  void to_tracker(std::size_t life, std::string bytes);
  FetchNetwork::Reach serve(Incarnation server, const wire::FetchRequest& request,
                            std::optional<wire::FetchReply>& answer);
  [[nodiscard]] bool killed_at(std::size_t life, KillPoint point, std::uint64_t passage);
  void doomed(std::size_t life);
  void kill(SimWorker& life, bool silently);
  void lose_host(const std::string& host);
  void take_machine(const SimWorker& life, Micros within_us);
  void lose_machine(const std::string& host);
  void look_at_taken();
  void no_copy_left(const std::string& host, const std::string& domain);
  void forget_losses();
  void lose_domain(const std::string& domain);
  [[nodiscard]] std::size_t least_copies() const;
  [[nodiscard]] bool may_lose(const std::string& domain);
  void domain_lost(const std::string& domain);
  void all_die();
  void lose_cluster(bool gently, bool with_disks = false);
  void lose_disks();
  void lose_journal();
  void crash_tracker(bool with_journal, Micros most_us);
  void tracker_died();
  void lose_record();
  void restore_journal();
  [[nodiscard]] std::uint64_t newest_plan() const;
  [[nodiscard]] bool members_can_tell() const;
  void watch_rebuilding();
  [[nodiscard]] bool withholds(std::size_t life, const std::string& bytes) const;
  void watch_lone_commit();
  void stored(const std::string& record);
  void rebuilt(const std::string& record);
  [[nodiscard]] std::vector<SimWorker*> caught_up() const;
  [[nodiscard]] std::size_t copies(const std::vector<SimWorker*>& members, std::span<const Rank> ranks) const;
  [[nodiscard]] static bool lies(const std::vector<SimWorker*>& members, const RecordKey& key, std::size_t needed);
  [[nodiscard]] std::optional<RoundId> short_of_copies(const std::vector<SimWorker*>& members) const;
  [[nodiscard]] bool refilled() const;
  void check_refill();
  void leave_hosts();
  [[nodiscard]] bool recovering() const;
  void struck() { second_faults_ += recovering() ? 1 : 0; }
  void on_recovery();
  void strike_again();
  [[nodiscard]] std::string some_domain();
  void check_claim(const wire::Envelope& e);
  void inject(Fault fault, std::function<void()> strike);
  void schedule_faults();
  void hang_now_and_then();
  SimWorker* any_alive();
  void start_stranger();
  void start_twin();
  void end_twin();
  void reconnect_with_twin();
  void become_live();
  void look_at_progress(Micros most_us);
  [[nodiscard]] bool all_know_it_is_lost();
  [[nodiscard]] bool over() const;
  [[nodiscard]] std::string unfinished() const;
  [[nodiscard]] std::string describe_setting() const;

  SimOptions options_;
  Random draws_;
  Setting setting_;
  FaultPlan faults_;
  World world_;
  Program program_;
  Hosts hosts_;
  Judge judge_;
  DataNetwork data_;
  SimNccl nccl_{world_, setting_.job.checksums()};
  FetchNetwork fetch_;
  std::set<std::string> lost_domains_;                   // and not refilled yet
  std::size_t least_copies_ = SIZE_MAX;                  // in any plan since
  std::map<std::string, std::string> hosts_of_plan_;     // with their domains
  std::map<std::uint32_t, std::string> domain_of_rank_;  // in the last plan that has it
  std::optional<Version> followed_in_;  // the newest version when a rank went where another had gone before
  std::uint64_t second_faults_ = 0, counted_generation_ = 0;
  bool crowded_ = false;              // ranks of a lost host have gone to another, or spares wait to
  std::uint64_t checked_refill_ = 0;  // in this generation
  std::uint64_t new_hosts_ = 0;
  std::map<std::string, std::string> taken_;  // machines that are being taken away, with their domains
  std::set<std::string> taken_domains_;       // also those that are gone
  bool journal_lost_ = false;
  // The journal was lost and members live; from then until the tracker has made it up again.
  struct Rebuilding {
    std::uint64_t message_faults = 0;  // when it was lost
    bool hopeless = false;             // at some time too few could tell what they know
  };
  std::optional<Rebuilding> rebuilding_;
  std::uint64_t rebuilt_ = 0;
  bool lone_commit_done_ = false;
  enum class Doom : std::uint8_t { kAlone, kHost, kCluster, kDisks };
  std::map<std::size_t, Doom> doom_;                                       // by life: what goes with it
  std::optional<Micros> away_us_;                                          // of who dies now
  std::optional<bool> silently_;                                           // likewise
  std::map<std::string, std::shared_ptr<storage::FakeResultDisk>> disks_;  // by host
  std::optional<SimMirror> mirror_;
  std::vector<std::unique_ptr<SimWorker>> lives_;
  std::map<Incarnation, std::size_t> life_of_;
  std::vector<std::size_t> slot_of_life_;  // kStranger: of none
  static constexpr std::size_t kStranger = SIZE_MAX;
  std::vector<Slot> slots_;
  ControlNetwork control_;
  SimTracker tracker_;
  std::unique_ptr<TwinTracker> twin_;
  std::vector<std::unique_ptr<TwinTracker>> retired_twins_;  // events may still name them
  std::set<std::size_t> with_twin_;                          // slots whose lives it answers
  bool live_ = false;
  Micros live_since_us_ = 0;
  std::uint64_t rounds_seen_ = 0;
  Micros progress_us_ = 0;  // when the last of them came
  std::optional<Micros> finished_at_us_;
  std::optional<Micros> lost_at_us_;  // a life has found that what it would load is lost
};

void Cluster::make_slots() {
  const std::uint32_t hosts = 1 + static_cast<std::uint32_t>(draws_.below(setting_.world_size));
  // Often each rank on a machine of its own.
  const bool apart = draws_.chance(0.4);
  // Now and then machines that die together, two by two.
  const bool racks = draws_.chance(0.2);
  for (std::uint32_t w = 0; w < setting_.world_size; ++w) {
    Slot& slot = slots_.emplace_back();
    slot.worker_id = "w" + std::to_string(w);
    std::uint64_t host = apart ? w : draws_.below(hosts);
    if (setting_.program.long_allreduces && options_.seed / kLendsEvery % 2 == 0) host = 0;
    if (setting_.together != 0) host %= setting_.together;
    slot.host_id = "h" + std::to_string(host);
    slot.domain_id = racks ? "d" + std::to_string(host / 2) : slot.host_id;
    if (w < options_.hosts.size()) slot.host_id = slot.domain_id = options_.hosts[w];
  }
  for (std::uint32_t i = 0; i < setting_.spares; ++i) {
    // On a host of the job, or on one of its own.
    const Slot& other = slots_[(options_.seed / 12 + i) % setting_.world_size];
    const bool elsewhere = (options_.seed / 12 + i) % 3 == 0;
    Slot slot;
    slot.worker_id = "w" + std::to_string(setting_.world_size + i);
    slot.host_id = elsewhere ? "s" + std::to_string(i) : other.host_id;
    slot.domain_id = elsewhere ? slot.host_id : other.domain_id;
    slot.spare = slot.begins_as_spare = crowded_ = true;
    slots_.push_back(std::move(slot));
  }
  for (int spare = 0; spare < 3 && world_.strikes(Fault::spare_worker); ++spare) {
    Slot& slot = slots_.emplace_back();
    slot.worker_id = "x" + std::to_string(spare);
    slot.host_id = slot.domain_id = "hx";
    slot.spare = crowded_ = true;
  }
}

void Cluster::start_later(std::size_t slot, Micros delay_us) {
  const std::uint64_t due = ++slots_[slot].starts_due;
  world_.after(delay_us, [this, slot, due] {
    Slot& s = slots_[slot];
    if (due != s.starts_due || s.done || s.ended || judge_.finished()) return;
    if (s.life && lives_[*s.life]->alive()) return;
    // The same process.
    if (s.begins_again && s.attempt > 0) --s.attempt;
    s.life = start_life(slot, true);
    ++s.attempt;
    s.begins_again = false;
  });
}

// Nobody can tell what ranks of a host share; all see the same two cores; or each life something else.
void Cluster::see_host(wire::Join& join, std::size_t life) const {
  const std::uint64_t kind = options_.seed / 2 % 3;
  // Now and then none of them says so, though they have.
  if (setting_.gpus) join.mutable_traits()->set_gpu(options_.seed / 6 % 8 != 0);
  if (kind == 0) {
    if (join.has_traits()) join.mutable_traits()->set_maps(true);
    return;
  }
  const std::uint64_t seen = kind == 1 ? 0 : Random::mix(options_.seed * kMostLivesPerWorker + life);
  wire::Traits& traits = *join.mutable_traits();
  traits.set_cores(kind == 1 ? 2 : static_cast<std::uint32_t>(seen % 4));
  traits.set_first_core(static_cast<std::uint32_t>(seen / 4 % 2));
  traits.set_maps(seen / 8 % 4 != 1);
}

std::size_t Cluster::start_life(std::size_t slot, bool supervised) {
  const Slot& s = slots_[slot];
  const std::size_t life = lives_.size();
  if (life >= kMostLivesPerWorker * slots_.size()) {
    world_.violated("I7", std::to_string(life) + " lives did not finish the job");
  }
  SimWorker::Options o;
  o.life = life;
  o.job = kJob;
  o.join.set_worker_id(s.worker_id);
  o.join.set_host_id(s.host_id);
  o.join.set_domain_id(s.domain_id);
  wire::Endpoint& endpoint = *o.join.add_endpoints();
  endpoint.set_address("10.0.0." + std::to_string(1 + slot % 250));
  endpoint.set_port(static_cast<std::uint32_t>(1024 + life % 60000));
  *o.join.mutable_settings() = setting_.job;
  see_host(o.join, life);
  o.join.set_attempt(s.attempt);
  o.join.set_waits(setting_.spares != 0 || shrinks());
  const bool spare = s.begins_as_spare || s.begins_again;
  o.join.set_spare(spare);
  o.follows = setting_.follows;
  if (o.follows && spare) *o.join.mutable_followed() = {};
  o.join.set_software("simulated");
  o.join_timeout_ms = setting_.join_timeout_ms;
  if (setting_.job.replicas() > 0) o.join.set_fetch_port(static_cast<std::uint32_t>(1024 + life % 60000));
  o.log_bytes = log_bytes();
  o.ends_process = setting_.ends_process;
  o.launcher_keeps_log = !world_.strikes(Fault::no_launcher);
  if (setting_.disks) {
    auto& disk = disks_[s.host_id];
    if (!disk) disk = std::make_shared<storage::FakeResultDisk>();
    o.disk = disk;
    o.disk_takes_states_alone = setting_.full_logs;
    if (mirror_) o.mirror = &*mirror_;
  }
  if (setting_.gpus) {
    o.has_gpu = true;
    if (setting_.nccl) o.nccl = &nccl_;
    o.nccl_fails = o.gpu_stalls = options_.seed / kGpusEvery % 2 == 0;
  }
  slots_[slot].started = true;
  control_.add_life();
  slot_of_life_.push_back(slot);
  lives_.push_back(
      std::make_unique<SimWorker>(world_, judge_, data_, hosts_, program_, links_of(life, slot), std::move(o)));
  life_of_[lives_.back()->self()] = life;
  if (supervised) slots_[slot].life = life;
  lives_.back()->start();
  return life;
}

SimWorker::Links Cluster::links_of(std::size_t life, std::size_t slot) {
  SimWorker::Links links;
  links.send = [this, life](const std::string& bytes) { control_.send_up(life, bytes); };
  links.ended = [this, slot, life](SimWorker::End end, const Status& why) {
    SimWorker& worker = *lives_[life];
    const bool lost = hosts_.ended(worker.self());
    if (lost) judge_.memory_lost(worker.host());
    if (lost && worker.installed()) {
      // The last process that held a part of its host's log, and no launcher.
      if (world_.keeps_transcript()) world_.tell(worker.describe() + " takes a part of its host's log with it");
      if (worker.serving()) {
        no_copy_left(worker.host(), worker.domain());
      } else {
        domain_lost(worker.domain());
      }
    }
    if (slot != kStranger) on_end(slot, life, end, why);
  };
  links.fetch = [this, life](const worker::Replayer::Send& request) { fetch_.send(life, request); };
  links.mate = [this](Incarnation who) -> SimWorker* {
    const auto found = life_of_.find(who);
    return found == life_of_.end() ? nullptr : lives_[found->second].get();
  };
  links.killed_at = [this, life](KillPoint point, std::uint64_t passage) { return killed_at(life, point, passage); };
  links.doomed = [this, life] { doomed(life); };
  links.recovers = [this] { on_recovery(); };
  links.serves = [this, life, slot] {
    // Who starts its next life elsewhere does not wait for its end. (One that joins before the Leave has arrived would
    // replace a member.)
    if (slot == kStranger || slots_[slot].life != life || !taken_.contains(lives_[life]->host())) return;
    slots_[slot].life.reset();
    // Or does, or has no machine for it.
    const bool late = world_.rate(Fault::machine_taken) > 0 && world_.random.chance(0.3);
    start_later(slot, late ? world_.random.between(1'000, 3'000) * timeout_ms()
                           : world_.random.between(20'000, world_.random.chance(0.7) ? 60'000 : 300'000));
  };
  return links;
}

FetchNetwork::Reach Cluster::serve(Incarnation server, const wire::FetchRequest& request,
                                   std::optional<wire::FetchReply>& answer) {
  const auto found = life_of_.find(server);
  if (found == life_of_.end() || !lives_[found->second]->alive()) return FetchNetwork::Reach::kGone;
  SimWorker& life = *lives_[found->second];
  if (life.log() == nullptr) return FetchNetwork::Reach::kGone;
  const bool early = !request.follows() && life.generation().value < request.generation();
  if (early || life.stands_still_until() > world_.now_us()) return FetchNetwork::Reach::kNotYet;
  if (!request.follows() && request.generation() < life.generation().value)
    return FetchNetwork::Reach::kServed;  // dropped
  answer = life.serve(request);
  return FetchNetwork::Reach::kServed;
}

bool Cluster::killed_at(std::size_t life, KillPoint point, std::uint64_t passage) {
  for (const SimOptions::Death& d : options_.deaths) {
    if (slot_of_life_[life] != d.worker || d.at != point || d.passage != passage) continue;
    if (lives_.size() <= life || lives_[life]->attempt() != d.attempt) continue;
    away_us_ = d.away_us;
    silently_ = d.silently;
    doom_[life] = d.with_disks     ? Doom::kDisks
                  : d.with_cluster ? Doom::kCluster
                  : d.with_host    ? Doom::kHost
                                   : Doom::kAlone;
    return true;
  }
  for (const SimOptions::Notice& n : options_.notices) {
    if (slot_of_life_[life] != n.worker || n.at != point || n.passage != passage) continue;
    if (lives_.size() <= life || lives_[life]->attempt() != 0) continue;
    take_machine(*lives_[life], n.within_us);
    if (n.then) world_.after(n.then_us, [this, then = *n.then] { lose_host(std::string(slots_[then].host_id)); });
  }
  static constexpr Fault kFaults[] = {Fault::death_between_effects, Fault::death_at_completion,
                                      Fault::death_at_send,         Fault::death_at_return,
                                      Fault::death_at_recall,       Fault::death_at_checkpoint};
  if (!world_.strikes(kFaults[static_cast<std::size_t>(point)])) return false;
  doom_[life] = Doom::kAlone;
  return true;
}

void Cluster::doomed(std::size_t life) {
  SimWorker& worker = *lives_[life];
  switch (doom_[life]) {
    case Doom::kAlone: {
      const bool drawn = world_.random.chance(0.3);
      kill(worker, silently_.value_or(drawn));
      break;
    }
    case Doom::kHost: lose_host(worker.host()); break;
    case Doom::kCluster: lose_cluster(true); break;
    case Doom::kDisks: lose_cluster(true, true); break;
  }
  away_us_.reset();
  silently_.reset();
}

void Cluster::kill(SimWorker& life, bool silently) {
  const bool again = recovering();
  life.die(silently);
  second_faults_ += again ? 1 : 0;
}

void Cluster::lose_host(const std::string& host) {
  struck();
  std::string domain;
  if (world_.keeps_transcript()) world_.tell("host " + host + " is lost");
  for (auto& life : lives_) {
    if (life->alive() && life->host() == host) life->die(world_.random.chance(0.8));
  }
  hosts_.lose(host);
  judge_.memory_lost(host);
  disks_.erase(host);
  const std::uint64_t where = world_.random.below(3);
  const std::string fresh = "n" + std::to_string(++new_hosts_);
  for (Slot& slot : slots_) {
    if (slot.host_id != host) continue;
    domain = slot.domain_id;
    if (where == 0) continue;  // it comes back, empty
    if (where == 1) {
      crowded_ = crowded_ || slot.domain_id != host;  // the rest of the domain has it no more
      slot.host_id = slot.domain_id = fresh;
    } else {
      const Slot& other = slots_[world_.random.below(slots_.size())];
      crowded_ = true;
      slot.host_id = std::string(other.host_id);
      slot.domain_id = std::string(other.domain_id);
    }
  }
  if (!domain.empty()) domain_lost(domain);
}

// A cloud's notice: the machine is there for so long, its launcher goes with it, and its workers' next lives begin
// elsewhere.
void Cluster::take_machine(const SimWorker& life, Micros within_us) {
  const std::string& host = life.host();
  if (!taken_.emplace(host, life.domain()).second) return;
  taken_domains_.insert(life.domain());
  struck();
  if (world_.keeps_transcript()) world_.tell("host " + host + " is taken in " + std::to_string(within_us) + " us");
  const std::string fresh = "n" + std::to_string(++new_hosts_);
  for (Slot& slot : slots_) {
    if (slot.host_id != host) continue;
    crowded_ = crowded_ || slot.domain_id != host;  // the rest of the domain has it no more
    slot.host_id = slot.domain_id = fresh;
  }
  for (auto& other : lives_) {
    if (other->alive() && other->host() == host) other->drain(within_us, true);
  }
  // They are given a moment more: it is theirs to go in time.
  world_.after(within_us + 50'000, [this, host] { lose_machine(host); });
}

void Cluster::lose_machine(const std::string& host) {
  for (auto& life : lives_) {
    if (life->alive() && life->host() == host) life->die(true);
  }
  look_at_taken();
  taken_.erase(host);
  hosts_.lose(host);
  disks_.erase(host);
}

// What lies on a machine that is being taken away counts as long as somebody there answers for it: a rank, or a life
// that serves.
void Cluster::look_at_taken() {
  for (const auto& taken : taken_) {
    const std::string &host = taken.first, &domain = taken.second;
    if (!hosts_of_plan_.contains(host)) continue;
    const bool answers = std::ranges::any_of(lives_, [&](const auto& life) {
      return life->alive() && life->host() == host && (!tracker_.running() || tracker_.counts_on(life->self()));
    });
    if (!answers) no_copy_left(host, domain);
  }
}

// Nobody answers any more for what this host holds. That is a loss as far as others do not hold enough of it.
void Cluster::no_copy_left(const std::string& host, const std::string& domain) {
  hosts_of_plan_.erase(host);
  judge_.memory_lost(host);
  if (refilled()) return forget_losses();
  if (world_.keeps_transcript()) world_.tell("host " + host + " counts as lost");
  domain_lost(domain);
}

void Cluster::forget_losses() {
  lost_domains_.clear();
  least_copies_ = least_copies();
}

// Every worker's process, and sometimes the tracker's: launchers live on, and what they keep.
void Cluster::all_die() {
  struck();
  if (world_.keeps_transcript()) world_.tell("all workers die");
  for (auto& life : lives_) {
    if (life->alive()) life->die(world_.random.chance(0.5));
  }
  if (tracker_.running() && world_.random.chance(0.3)) crash_tracker(false, 2000 * timeout_ms());
}

// Every process of the job and its tracker, at once. `gently`: disks keep what was written.
void Cluster::lose_cluster(bool gently, bool with_disks) {
  struck();
  if (world_.keeps_transcript()) world_.tell("all processes are lost");
  // What is not durable may be on one disk only, and a second fault takes that.
  judge_.excuse_rollback();
  for (auto& life : lives_) {
    if (life->alive()) life->die(true);
  }
  std::set<std::string> lost;
  while (!gently && world_.random.chance(0.5)) {
    const std::string domain = some_domain();
    if (may_lose(domain)) {
      lost.insert(domain);
      domain_lost(domain);
    }
  }
  for (const Slot& slot : slots_) {
    hosts_.lose(slot.host_id);
    judge_.memory_lost(slot.host_id);
    if (lost.contains(slot.domain_id)) disks_.erase(slot.host_id);
  }
  for (auto& [host, disk] : disks_) {
    disk->crash([&] { return gently || world_.random.chance(0.5); });
  }
  tracker_.crash();
  if (with_disks || (!gently && tracker_.has_journal() && world_.strikes(Fault::disks_loss))) lose_disks();
  if (!gently && world_.strikes(Fault::journal_loss)) lose_journal();
  if (!gently && world_.rate(Fault::older_journal) > 0 && world_.random.chance(0.5)) restore_journal();
  world_.after(world_.random.between(1000, 2000 * timeout_ms()), [this] { tracker_.start(); });
}

// All but the tracker's: the mirror is what is left.
void Cluster::lose_disks() {
  if (world_.keeps_transcript()) world_.tell("all disks of workers are lost");
  disks_.clear();
  judge_.disks_lost(mirror_ ? mirror_->held() : std::nullopt, tracker_.may_resume());
}

void Cluster::lose_journal() {
  if (judge_.plan().generation() == 0 || judge_.finished()) return;
  wire::Known newest;
  std::set<std::string> domains, told;
  for (const Slot& slot : slots_) {
    if (slot.spare) continue;
    domains.insert(slot.domain_id);
    const auto disk = disks_.find(slot.host_id);
    if (disk == disks_.end()) continue;
    for (const auto& [number, life] : disk->second->lives) {
      wire::Known known;
      if (life.run == 0 || !known.ParseFromString(life.note)) continue;
      told.insert(slot.domain_id);
      if (known.plan_generation() > newest.plan_generation()) {
        newest.set_plan_generation(known.plan_generation());
        *newest.mutable_plan() = known.plan();
      }
      if (known.committed_version() > newest.committed_version()) {
        newest.set_committed_version(known.committed_version());
        newest.set_committed_timeline(known.committed_timeline());
      }
    }
  }
  if (const auto held = mirror_ ? mirror_->held() : std::nullopt; held && told.empty()) {
    newest = held->known();
    told = domains;
  }
  // Otherwise the job begins anew, which this run does not know how to judge; so it does when a spare comes before the
  // worker whose disk knows the job, or one whose disk was left out when it was called.
  const bool spares = shrinks() || std::any_of(slots_.begin(), slots_.end(), [](const Slot& s) { return s.spare; });
  if (spares || domains.size() - told.size() >= setting_.job.replicas() || newest.plan_generation() == 0) return;
  if (world_.keeps_transcript()) world_.tell("the journal is lost");
  tracker_.lose_journal();
  control_.forget();
  journal_lost_ = true;
  std::optional<Version> committed;
  if (newest.committed_version() != 0) committed = Version(newest.committed_version());
  judge_.journal_lost(Generation(newest.plan_generation()), Timeline(newest.plan().timeline()), committed,
                      Timeline(newest.committed_timeline()));
}

void Cluster::crash_tracker(bool with_journal, Micros most_us) {
  struck();
  tracker_.crash();
  if (with_journal) lose_record();
  world_.after(world_.random.between(1000, most_us), [this] { tracker_.start(); });
}

// The tracker is down, and an older copy of its disk is put in its place: of the same timeline, as another one must not
// be used (decision 0006).
void Cluster::restore_journal() {
  if (rebuilding_ || journal_lost_ || judge_.journal_lacks_something() || !tracker_.may_resume()) return;
  wire::JobRecord newest;
  WARREN_CHECK(newest.ParseFromString(*tracker_.durable()), "the tracker stores records");
  std::vector<std::size_t> copies;
  for (std::size_t i = 0; i < tracker_.records().size(); ++i) {
    wire::JobRecord r;
    WARREN_CHECK(r.ParseFromString(tracker_.records()[i]), "the tracker stores records");
    const bool goes_on = !r.has_interrupt() || r.interrupt().resume();
    if (r.has_plan() && !r.finished() && goes_on && r.plan().run() == newest.plan().run() &&
        r.timeline() == newest.timeline() && tracker_.records()[i] != *tracker_.durable()) {
      copies.push_back(i);
    }
  }
  if (copies.empty()) return;
  world_.count(Fault::older_journal);
  const std::size_t copy = copies[world_.random.below(copies.size())];
  wire::JobRecord record;
  WARREN_CHECK(record.ParseFromString(tracker_.records()[copy]), "the tracker stores records");
  if (world_.keeps_transcript()) {
    world_.tell("the tracker's disk is an older copy, of generation " + std::to_string(record.generation()) +
                ", version " + std::to_string(record.committed_version()));
  }
  tracker_.restore(copy);
  control_.forget();
  judge_.journal_restored();
}

// Between two of its effects.
void Cluster::tracker_died() {
  if (options_.journal_dies_too || (world_.rate(Fault::tracker_loss) > 0 && world_.random.chance(0.3))) lose_record();
}

// The tracker is down, and its disk goes. Not of a job that has finished: members that have heard it are gone, and the
// others would wait for them. Nor where spares wait: with them and lives that are started again the world may be full
// before a member has said that there is a job, and it begins anew (seed 851001281).
void Cluster::lose_record() {
  const bool spares = std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.spare; });
  if (spares || !tracker_.has_plan() || judge_.plan().generation() == 0) return;
  world_.count(Fault::tracker_loss);
  if (world_.keeps_transcript()) world_.tell("the tracker's disk is lost");
  tracker_.lose_journal();
  control_.forget();
  judge_.journal_lost();
  rebuilding_.emplace(Rebuilding{world_.message_faults(), false});
  watch_rebuilding();
}

// The newest that a living rank has in force.
std::uint64_t Cluster::newest_plan() const {
  std::uint64_t newest = 0;
  for (const auto& life : lives_) {
    if (life->can_tell() && life->installed()) newest = std::max(newest, life->generation().value);
  }
  return newest;
}

// More than half of the members of that plan; who has not heard of any knows none.
bool Cluster::members_can_tell() const {
  const wire::Plan plan = judge_.plan_of(Generation(newest_plan()));
  const auto tells = [this](const wire::Member& m) {
    const auto found = life_of_.find(Incarnation(m.incarnation()));
    return found != life_of_.end() && lives_[found->second]->can_tell() && lives_[found->second]->installed();
  };
  const auto present = [](const wire::Member& m) { return !m.absent(); };
  return 2 * std::count_if(plan.members().begin(), plan.members().end(), tells) >
         std::count_if(plan.members().begin(), plan.members().end(), present);
}

// SimOptions::lone_commit.
bool Cluster::withholds(std::size_t life, const std::string& bytes) const {
  if (!options_.lone_commit || lone_commit_done_ || judge_.commits() < options_.lone_commit->commit) return false;
  wire::Envelope e;
  return slot_of_life_[life] != options_.lone_commit->worker && e.ParseFromString(bytes) && e.has_committed();
}

void Cluster::watch_lone_commit() {
  if (!options_.lone_commit || lone_commit_done_ || judge_.commits() < options_.lone_commit->commit) return;
  const std::optional<std::size_t> life = slots_[options_.lone_commit->worker].life;
  if (!life || lives_[*life]->committed().version < *judge_.committed()) return;
  lone_commit_done_ = true;
  crash_tracker(true, 10'000);
  lives_[*life]->stand_still(1600 * timeout_ms());
}

void Cluster::watch_rebuilding() {
  if (rebuilding_ && !rebuilding_->hopeless) rebuilding_->hopeless = !members_can_tell();
}

void Cluster::stored(const std::string& bytes) {
  if (rebuilding_) rebuilt(bytes);
  std::vector<OlderJournal::Life> lives;
  for (const auto& life : lives_) {
    if (!life->alive()) continue;
    const bool says_so = life->generation() == life->told_generation() && tracker_.has_heard(life->self());
    lives.push_back({life->self(), life->told_generation(), life->told_commit(), says_so});
  }
  judge_.stored(bytes, lives);
}

// The tracker has a journal again.
void Cluster::rebuilt(const std::string& bytes) {
  wire::JobRecord record;
  WARREN_CHECK(record.ParseFromString(bytes), "the tracker stores records");
  watch_rebuilding();
  const bool excused = rebuilding_->hopeless || rebuilding_->message_faults != world_.message_faults();
  rebuilding_.reset();
  Version told;
  for (const wire::Member& m : record.plan().members()) {
    const auto found = life_of_.find(Incarnation(m.incarnation()));
    if (found == life_of_.end()) continue;
    const SimWorker& life = *lives_[found->second];
    if (life.can_tell()) told = std::max(told, life.committed().version);
  }
  if (judge_.rebuilt(record, Generation(newest_plan()), told, excused)) ++rebuilt_;
}

void Cluster::lose_domain(const std::string& domain) {
  std::set<std::string> hosts;
  for (const Slot& slot : slots_) {
    if (slot.domain_id == domain) hosts.insert(slot.host_id);
  }
  for (const std::string& host : hosts) lose_host(host);
}

std::string Cluster::some_domain() {
  return slots_[world_.random.below(slots_.size())].domain_id;
}

// The members of the newest plan, by rank, but for those without which the job goes on, if all run in it and have what
// it says that the job has done; otherwise none.
std::vector<SimWorker*> Cluster::caught_up() const {
  const wire::Plan& plan = judge_.plan();
  std::vector<SimWorker*> members;
  for (const wire::Member& m : plan.members()) {
    if (m.absent()) continue;
    const auto found = life_of_.find(Incarnation(m.incarnation()));
    if (found == life_of_.end()) return {};
    SimWorker& life = *lives_[found->second];
    if (!life.alive() || !life.runs() || life.generation().value != plan.generation() || life.behind()) return {};
    if (judge_.committed() && !life.has_loaded()) return {};
    members.push_back(&life);
  }
  return members;
}

// In how many domains what these ranks log is to lie.
std::size_t Cluster::copies(const std::vector<SimWorker*>& members, std::span<const Rank> ranks) const {
  std::set<std::string> domains;
  for (const SimWorker* member : members) {
    if (std::ranges::find(ranks, member->rank()) != ranks.end()) domains.insert(member->domain());
  }
  return std::min<std::size_t>(domains.size(), judge_.plan().settings().replicas());
}

// Whether each byte lies in so many domains.
bool Cluster::lies(const std::vector<SimWorker*>& members, const RecordKey& key, std::size_t needed) {
  std::optional<RecordInfo> info;
  std::map<std::string, Ranges> by_domain;
  for (SimWorker* member : members) {
    const auto here = member->log()->info(key);
    if (!here.ok() || !here.value()) continue;
    info = here.value();
    by_domain[member->domain()].add(member->log()->held(key));
  }
  if (!info) return false;
  // Which domains hold a byte changes only where a range begins or ends.
  std::set<std::uint64_t> bytes{0};
  for (const auto& [domain, ranges] : by_domain) {
    for (const Interval& i : ranges.intervals()) bytes.insert({i.begin, i.end});
  }
  for (const std::uint64_t byte : bytes) {
    const auto holds = [byte](const auto& domain) { return domain.second.covers(byte, byte + 1); };
    if (byte >= info->total_bytes) break;
    if (static_cast<std::size_t>(std::ranges::count_if(by_domain, holds)) < needed) return false;
  }
  return by_domain.size() >= needed;
}

// A round that all its ranks have done, and that is not obsolete, of which something lies in fewer domains than it
// should.
std::optional<RoundId> Cluster::short_of_copies(const std::vector<SimWorker*>& members) const {
  const wire::Plan& plan = judge_.plan();
  Version newest = kPreamble;
  for (SimWorker* member : members) newest = std::max(newest, member->engine().version());
  for (const ProgramGroup& group : program_.groups()) {
    for (Version v = kPreamble; v <= newest; v = v.next()) {
      if (v != kPreamble && judge_.committed() && v < *judge_.committed()) continue;
      std::uint64_t rounds = UINT64_MAX;
      for (const SimWorker* member : members) {
        if (std::ranges::find(group.members, member->rank()) == group.members.end()) continue;
        rounds = std::min(rounds, member->engine().rounds_done(group.id, v).value_or(0));
      }
      for (std::uint64_t s = 0; s < rounds; ++s) {
        const auto kept = std::ranges::find_if(plan.kept(), [&](const wire::Kept& k) {
          return k.group() == group.id.value && k.version() == v.value && s < k.rounds();
        });
        const Timeline timeline(kept == plan.kept().end() ? plan.timeline() : kept->timeline());
        const RoundId round{timeline, group.id, v, Sequence(s)};
        if (!lies(members, {RecordKind::kRound, round}, copies(members, group.members))) return round;
      }
    }
  }
  return std::nullopt;
}

// Whether everything that is logged and not obsolete lies in as many failure domains again as it should, on hosts that
// a rank of the plan answers for: then what was lost before does not count any more.
bool Cluster::refilled() const {
  const wire::Plan& plan = judge_.plan();
  const std::vector<SimWorker*> members = caught_up();
  if (members.empty() || judge_.unprotected()) return false;
  if (!std::ranges::all_of(members, [](const SimWorker* member) { return member->disk_is_current(); })) return false;
  const std::vector<Rank>& all = program_.groups().front().members;
  if (judge_.committed()) {
    const RoundId round{judge_.committed_timeline(), kWorldGroup, *judge_.committed(), Sequence(0)};
    if (!lies(members, {RecordKind::kGlobal, round}, copies(members, all))) return false;
    const bool local = members.front()->log()->info({RecordKind::kGlobal, round}).value()->fingerprint.shape != 0;
    for (const Rank r : all) {
      RoundId of_rank = round;
      of_rank.sequence = Sequence(static_cast<std::uint64_t>(r.value));
      if (local && !lies(members, {RecordKind::kLocal, of_rank}, copies(members, all))) return false;
    }
  }
  if (short_of_copies(members)) return false;
  // Also those of earlier timelines.
  std::vector<wire::Setup> setups(plan.setups().begin(), plan.setups().end());
  for (SimWorker* member : members) std::ranges::copy(member->engine().setups_done(), std::back_inserter(setups));
  for (const wire::Setup& s : setups) {
    const auto group = std::ranges::find(program_.groups(), GroupId(s.group()), &ProgramGroup::id);
    const RoundId round{Timeline(s.timeline()), group->id, kPreamble, Sequence(s.name())};
    if (s.done() && !lies(members, result_key(round), copies(members, group->members))) return false;
  }
  return true;
}

// I4: who has caught up has logged again what was lost, however often all were interrupted on the way. Not where a rank
// went to a host that has it already: another domain has none then. Nor where the job goes on without lost ranks: what
// these held the others do not fill up.
void Cluster::check_refill() {
  const bool followed = followed_in_ && (!judge_.committed() || *judge_.committed() <= *followed_in_);
  if (shrinks() || !setting_.survivable || crowded_ || followed || judge_.loss_excused() || judge_.unprotected() ||
      checked_refill_ == judge_.plan().generation())
    return;
  const std::vector<SimWorker*> members = caught_up();
  // Who calls something else logs something else.
  if (members.empty() || std::ranges::any_of(members, &SimWorker::desynced)) return;
  checked_refill_ = judge_.plan().generation();
  if (const auto round = short_of_copies(members)) {
    world_.violated("I4", "all ranks have caught up in generation " + std::to_string(checked_refill_) + ", and of " +
                              to_string(*round) + " there are too few copies");
  }
}

// A host that had ranks in the plan before and has none in this one: nobody answers for what it holds any more.
void Cluster::leave_hosts() {
  std::map<std::string, std::string> hosts;
  std::set<std::string> domains;  // of the plan before
  for (const auto& [host, domain] : hosts_of_plan_) domains.insert(domain);
  for (const wire::Member& m : judge_.plan().members()) {
    if (m.absent()) continue;
    hosts[m.host_id()] = m.domain_id();
    // Of the ranks of a machine that is taken one may die early, log elsewhere what the machine has, and the others
    // follow.
    std::string& of_rank = domain_of_rank_[m.rank()];
    const bool moves = of_rank != m.domain_id() && domains.contains(m.domain_id());
    if (moves && taken_domains_.contains(of_rank)) {
      followed_in_ = kPreamble;
      for (const auto& life : lives_) followed_in_ = std::max(*followed_in_, life->engine().version());
    }
    of_rank = m.domain_id();
  }
  for (const wire::Member& m : judge_.plan().servers()) {
    const auto life = life_of_.find(Incarnation(m.incarnation()));
    if (life != life_of_.end() && lives_[life->second]->alive()) hosts[m.host_id()] = m.domain_id();
  }
  for (const auto& [host, domain] : hosts_of_plan_) {
    if (hosts.contains(host)) continue;
    domain_lost(domain);
    // What a worker finds there, should one come one day, is out of date.
    judge_.memory_lost(host);
  }
  hosts_of_plan_ = std::move(hosts);
}

// How many failure domains hold what is logged least often: a group that has fewer of them than replicas has one copy
// in each.
std::size_t Cluster::least_copies() const {
  std::size_t least = setting_.job.replicas();
  for (const ProgramGroup& group : program_.groups()) {
    std::set<std::string> domains;
    for (const Rank r : group.members) {
      const wire::Plan& plan = judge_.plan();
      if (r.value < plan.members_size() && plan.members(r.value).absent()) continue;
      domains.insert(r.value < plan.members_size() ? plan.members(r.value).domain_id() : "");
    }
    least = std::min(least, domains.size());
  }
  return least;
}

bool Cluster::may_lose(const std::string& domain) {
  // What disks know serves as the journal then, if there are enough of them.
  if ((journal_lost_ || rebuilding_) && !tracker_.has_journal()) return false;
  if (judge_.journal_lacks_something()) return false;
  if (!setting_.survivable) return true;
  if (judge_.plan().members().empty()) return false;
  if (refilled()) forget_losses();
  std::set<std::string> lost = lost_domains_;
  lost.insert(domain);
  return lost.size() < std::min(least_copies_, least_copies());
}

void Cluster::domain_lost(const std::string& domain) {
  if (judge_.plan().members().empty()) return;
  lost_domains_.insert(domain);
  if (lost_domains_.size() >= std::min(least_copies_, least_copies())) judge_.excuse_loss();
}

bool Cluster::recovering() const {
  return std::any_of(lives_.begin(), lives_.end(), [](const auto& life) {
    return life->alive() && !life->serving() && (life->suspended() || (life->installed() && life->behind()));
  });
}

void Cluster::on_recovery() {
  if (!world_.strikes(Fault::second_strike)) return;
  const Micros most = world_.random.chance(0.5) ? 1000 : 20'000;
  world_.after(world_.random.between(0, most), [this] {
    if (!world_.is_calm()) strike_again();
  });
}

void Cluster::strike_again() {
  const std::uint64_t at = world_.random.below(10);
  if (at == 0) {
    const std::string domain = some_domain();
    if (may_lose(domain)) return lose_domain(domain);
  }
  if (at == 1 && tracker_.running()) {
    return crash_tracker(world_.rate(Fault::tracker_loss) > 0, 2000 * timeout_ms());
  }
  SimWorker* life = any_alive();
  if (life == nullptr) return;
  if (at == 2) {
    struck();
    return life->stand_still(world_.random.between(1000, 3000 * timeout_ms()));
  }
  kill(*life, world_.random.chance(0.3));
}

void Cluster::on_end(std::size_t slot, std::size_t life, SimWorker::End end, const Status& why) {
  Slot& s = slots_[slot];
  if (s.life != life) return;  // nobody's any more
  const std::string reason = why.describe();
  const auto says = [&](const char* text) { return reason.find(text) != std::string::npos; };
  const bool lost = says("what it would go on from is lost") || says("no version is committed to which the job could");
  s.heard_lost = s.heard_lost || (lost_at_us_ && lost && !says("the job goes on without this worker"));
  if (end == SimWorker::End::kFinished || judge_.finished()) {
    s.done = true;
    return;
  }
  if (s.ended) return;
  if (end == SimWorker::End::kFailed && why.code() == Code::kExhausted) return end_launcher(slot, life, why);
  if (end == SimWorker::End::kBeginsAgain) {
    s.begins_again = true;
    return start_later(slot, world_.random.between(100, 5000));
  }
  const bool refused = why.code() == Code::kRefused || why.code() == Code::kClosed;
  Micros delay = world_.random.between(1000, refused ? 1'000'000 : 300'000);
  if (away_us_) {
    delay = *away_us_;
  } else if (shrinks() && world_.strikes(Fault::stays_away)) {
    // For ever, as far as faults go, or so that it returns about when it is given up, or soon after.
    if (world_.random.chance(0.2)) return;
    const Micros grace_us = static_cast<Micros>(setting_.job.grace_ms()) * 1000;
    delay = grace_us + world_.random.between(1000, world_.random.chance(0.7) ? 20'000 : 2000 * timeout_ms());
  }
  start_later(slot, delay);
}

// As launcher/launcher.cc: what a job has exhausted would be exhausted again. The launcher starts this worker no
// more, and where the worker had a place it ends its other workers too. In every second run each worker has a launcher
// of its own.
void Cluster::end_launcher(std::size_t slot, std::size_t life, const Status& why) {
  if (!judge_.load_has_failed()) {
    return world_.violated("I7", lives_[life]->describe() + " ends a job that could go on: " + why.describe());
  }
  const bool alone = options_.seed % 2 == 0 || !lives_[life]->installed();
  for (std::size_t other = 0; other < slots_.size(); ++other) {
    if (other == slot) {
      give_up(other);
    } else if (!alone && slots_[other].host_id == slots_[slot].host_id) {
      world_.after(world_.random.between(0, 5000), [this, other] { give_up(other); });
    }
  }
}

void Cluster::give_up(std::size_t slot) {
  Slot& s = slots_[slot];
  s.ended = s.heard_lost = true;
  if (s.life && lives_[*s.life]->alive()) lives_[*s.life]->die(false);
}

void Cluster::to_tracker(std::size_t life, std::string bytes) {
  if (world_.is(Mutant::accept_zombie) && slot_of_life_[life] != kStranger) {
    const Slot& slot = slots_[slot_of_life_[life]];
    wire::Envelope e;
    if (slot.life && *slot.life != life && e.ParseFromString(bytes)) {
      e.set_sender(lives_[*slot.life]->self().value);
      bytes = e.SerializeAsString();
    }
  }
  if (twin_ && slot_of_life_[life] != kStranger && with_twin_.contains(slot_of_life_[life])) {
    return twin_->receive(life, bytes);
  }
  tracker_.receive(life, bytes);
}

// Another tracker, on a copy of the journal, is there for a while, and answers so few that it has no majority: at most
// half of the members that are there, where a worker that the plan does not know may have come for any of them unless a
// place is free. Those who have finalized and are silent have nothing left to promise, and are asked for nothing.
void Cluster::start_twin() {
  if (twin_ || !tracker_.has_plan()) return;
  wire::JobRecord record;
  WARREN_CHECK(record.ParseFromString(*tracker_.durable()), "the tracker stores records");
  const auto& members = record.plan().members();
  const auto absent = static_cast<std::size_t>(std::ranges::count_if(members, &wire::Member::absent));
  const std::size_t present = static_cast<std::size_t>(members.size()) - absent - record.finalized().size();
  std::size_t reached = 0, outsiders = 0, free = absent;
  for (std::size_t tries = 1 + world_.random.below(setting_.world_size); tries > 0; --tries) {
    const std::size_t slot = world_.random.below(setting_.world_size);
    const auto place = std::ranges::find(members, slots_[slot].worker_id, &wire::Member::worker_id);
    const bool outsider = place == members.end();
    const bool takes = !outsider && place->absent();
    const bool member = !outsider && !takes && std::ranges::count(record.finalized(), place->rank()) == 0;
    const std::size_t r = reached + member, o = outsiders + outsider, f = free - takes;
    if (with_twin_.contains(slot) || 2 * (r + o - std::min(o, f)) > present) continue;
    reached = r;
    outsiders = o;
    free = f;
    with_twin_.insert(slot);
  }
  if (with_twin_.empty()) return;
  world_.count(Fault::second_tracker);
  struck();
  twin_ = std::make_unique<TwinTracker>(world_, kJob, *tracker_.durable(),
                                        [this](std::size_t life, const std::string& bytes) {
                                          if (!withholds(life, bytes)) control_.send_down(life, bytes);
                                        });
  reconnect_with_twin();
  world_.after(world_.random.between(1000, 3000 * timeout_ms()), [this] { end_twin(); });
}

void Cluster::end_twin() {
  if (!twin_) return;
  retired_twins_.push_back(std::move(twin_));
  retired_twins_.back()->end();
  reconnect_with_twin();
  with_twin_.clear();
}

void Cluster::reconnect_with_twin() {
  for (std::size_t life = 0; life < lives_.size(); ++life) {
    if (lives_[life]->alive() && slot_of_life_[life] != kStranger && with_twin_.contains(slot_of_life_[life])) {
      control_.drop_connection(life);
    }
  }
}

void Cluster::check_claim(const wire::Envelope& e) {
  const auto found = life_of_.find(Incarnation(e.sender()));
  if (found == life_of_.end()) return world_.violated("I6", "a message came from a life that never was");
  const SimWorker& life = *lives_[found->second];
  if (e.has_stopped() && life.installed() && !life.data_path_stopped()) {
    world_.violated("I6", life.describe() + " has said that it stopped, and its data path runs");
  }
  if (e.has_log_gap()) judge_.gap_told(Generation(e.log_gap().generation()), e.log_gap().renumbers());
  // One that is delivered again was true once.
  if (e.has_report() && Generation(e.report().generation()) > life.generation()) {
    for (const wire::Position& p : e.report().positions()) {
      const auto done = life.engine().rounds_done(GroupId(p.group()), Version(p.version()));
      const bool true_to_life = done && *done >= p.rounds();
      if (!true_to_life && life.alive() && (!judge_.committed() || p.version() >= judge_.committed()->value)) {
        return world_.violated(
            "I6", life.describe() + " counts as further than it is in version " + std::to_string(p.version()));
      }
    }
  }
  if (e.has_leave() && e.leave().finalize() && !life.program_done()) {
    world_.violated("I6", life.describe() + " counts as finalized, and its program runs");
  }
  if (e.has_heartbeat() && !life.was_member_of(Generation(e.heartbeat().generation()))) {
    world_.violated("I6",
                    life.describe() + " counts as heard in generation " + std::to_string(e.heartbeat().generation()));
  }
  if (e.has_heartbeat() && e.heartbeat().rounds_finished() > life.rounds_finished()) {
    world_.violated("I6", life.describe() + " counts as further than it is");
  }
}

SimWorker* Cluster::any_alive() {
  std::vector<SimWorker*> alive;
  for (auto& life : lives_) {
    if (life->alive()) alive.push_back(life.get());
  }
  return alive.empty() ? nullptr : alive[world_.random.below(alive.size())];
}

void Cluster::inject(Fault fault, std::function<void()> strike) {
  const double rate = world_.rate(fault);
  if (rate <= 0) return;
  const auto mean = static_cast<Micros>(1e6 / rate);
  world_.after(world_.random.between(0, 2 * mean), [this, fault, strike = std::move(strike)] {
    if (world_.is_calm()) return;
    strike();
    inject(fault, strike);
  });
}

void Cluster::start_stranger() {
  // Somebody else's worker, or ours with settings that nobody else has. It comes once.
  world_.count(Fault::wrong_settings);
  const std::size_t life = lives_.size();
  SimWorker::Options o;
  o.life = life;
  o.job = kJob;
  o.join.set_worker_id("stranger");
  o.join.set_host_id("hs");
  o.join.set_domain_id("hs");
  wire::Endpoint& endpoint = *o.join.add_endpoints();
  endpoint.set_address("10.9.9.9");
  endpoint.set_port(1);
  *o.join.mutable_settings() = setting_.job;
  wire::JobSettings& j = *o.join.mutable_settings();
  switch (world_.random.below(7)) {
    case 0: j.set_round_timeout_ms(j.round_timeout_ms() + 1); break;
    case 1: j.set_algorithm(j.algorithm() == "ring" ? "tree" : "ring"); break;
    case 2: j.set_chunk_bytes(j.chunk_bytes() + 1); break;
    case 3: j.set_streams(j.streams() + 1); break;
    case 4: j.set_checksums(!j.checksums()); break;
    case 5: j.set_check_call_sites(!j.check_call_sites()); break;
    default: break;
  }
  j.set_world_size(j.world_size() + 1);  // alone it can never be a job
  if (shrinks()) j.set_min_workers(j.world_size());
  if (j.replicas() > 0) o.join.set_fetch_port(1);
  o.join.set_waits(shrinks());
  o.log_bytes = log_bytes();
  o.join_timeout_ms = 500;
  control_.add_life();
  slot_of_life_.push_back(kStranger);
  lives_.push_back(
      std::make_unique<SimWorker>(world_, judge_, data_, hosts_, program_, links_of(life, kStranger), std::move(o)));
  life_of_[lives_.back()->self()] = life;
  lives_.back()->start();
}

void Cluster::schedule_faults() {
  const Micros timeout_us = timeout_ms() * 1000;
  const auto with_any = [this](Fault fault, std::function<void(SimWorker&)> what) {
    inject(fault, [this, fault, what = std::move(what)] {
      SimWorker* life = any_alive();
      if (life == nullptr) return;
      world_.count(fault);
      what(*life);
    });
  };
  with_any(Fault::death, [this](SimWorker& life) { kill(life, false); });
  with_any(Fault::silent_death, [this](SimWorker& life) { kill(life, true); });
  if (setting_.job.replicas() > 0) {
    inject(Fault::host_loss, [this] {
      const Slot& slot = slots_[world_.random.below(slots_.size())];
      if (!may_lose(slot.domain_id)) return;
      world_.count(Fault::host_loss);
      lose_host(std::string(slot.host_id));
    });
    inject(Fault::domain_loss, [this] {
      const std::string domain = some_domain();
      if (!may_lose(domain)) return;
      world_.count(Fault::domain_loss);
      lose_domain(domain);
    });
  }
  inject(Fault::all_die, [this] {
    world_.count(Fault::all_die);
    all_die();
  });
  inject(Fault::cluster_loss, [this] {
    world_.count(Fault::cluster_loss);
    lose_cluster(false);
  });
  with_any(Fault::gave_up, [this](SimWorker& life) {
    if (world_.random.chance(0.7)) return life.give_up();
    for (auto& other : lives_) {
      if (other->alive()) other->give_up();
    }
  });
  with_any(Fault::preempted, [this, timeout_us](SimWorker& life) {
    struck();
    const Micros most = world_.random.chance(0.3) ? 10'000 : 3 * timeout_us;
    if (world_.random.chance(0.7)) return life.drain(world_.random.between(0, most), !life.kept());
    for (auto& other : lives_) {
      if (!other->alive() || !world_.random.chance(0.5)) continue;
      other->drain(world_.random.between(0, most), !other->kept());
    }
  });
  inject(Fault::machine_taken, [this, timeout_us] {
    const SimWorker* life = any_alive();
    if (life == nullptr || !may_lose(life->domain())) return;
    world_.count(Fault::machine_taken);
    take_machine(*life, world_.random.between(0, (world_.random.chance(0.4) ? 2 : 10) * timeout_us));
    // And another goes without a word.
    world_.after(world_.random.between(0, world_.random.chance(0.7) ? 20'000 : timeout_us), [this] {
      const std::string domain = some_domain();
      if (!world_.is_calm() && may_lose(domain)) lose_domain(domain);
    });
  });
  with_any(Fault::pause, [this, timeout_us](SimWorker& life) {
    struck();
    life.stand_still(world_.random.between(1000, 3 * timeout_us));
  });
  with_any(Fault::connection_drop, [this](SimWorker& life) { control_.drop_connection(life_of_.at(life.self())); });
  with_any(Fault::twin_life, [this, timeout_us](SimWorker& life) {
    // Its launcher takes it for dead and starts another, while it runs or stands still and comes back.
    const std::size_t number = life_of_.at(life.self());
    const std::size_t slot = slot_of_life_[number];
    if (slot == kStranger || slots_[slot].life != number) return;
    if (world_.random.chance(0.6)) life.stand_still(world_.random.between(1000, 4 * timeout_us));
    slots_[slot].life.reset();
    judge_.given_up(life.self());
    start_later(slot, world_.random.between(0, 2 * timeout_us));
  });
  inject(Fault::link_cut, [this] { data_.cut_one(); });
  inject(Fault::link_silent, [this, timeout_us] { data_.silence_one(world_.random.between(1000, 3 * timeout_us)); });
  inject(Fault::message_replayed, [this] { control_.replay(); });
  inject(Fault::message_misdirected, [this] {
    if (SimWorker* life = any_alive()) control_.misdirect(life_of_.at(life->self()), life->self());
  });
  inject(Fault::garbage, [this] {
    if (SimWorker* life = any_alive()) control_.garbage(life_of_.at(life->self()));
  });
  inject(Fault::wrong_settings, [this] { start_stranger(); });
  inject(Fault::tracker_crash, [this, timeout_us] {
    if (!tracker_.running()) return;
    world_.count(Fault::tracker_crash);
    // Now and then for longer than a worker waits for an answer.
    const Micros most = world_.random.chance(0.3) ? setting_.join_timeout_ms * 1500 : 3 * timeout_us;
    crash_tracker(false, most);
  });
  inject(Fault::tracker_loss, [this, timeout_us] {
    if (tracker_.running()) crash_tracker(true, world_.random.chance(0.5) ? 100'000 : 2 * timeout_us);
  });
  inject(Fault::older_journal, [this, timeout_us] {
    if (!tracker_.running()) return;
    crash_tracker(false, world_.random.chance(0.5) ? 100'000 : 2 * timeout_us);
    restore_journal();
  });
  inject(Fault::tracker_pause, [this, timeout_us] {
    world_.count(Fault::tracker_pause);
    tracker_.stand_still(world_.random.between(1000, 2 * timeout_us));
  });
  inject(Fault::second_tracker, [this] { start_twin(); });
  inject(Fault::disk_failure, [this] {
    world_.count(Fault::disk_failure);
    tracker_.fail_writes(1 + world_.random.below(3));
  });
}

void Cluster::hang_now_and_then() {
  const Straggler& s = *options_.straggler;
  world_.after(s.off_us + s.on_us, [this, &s] {
    for (auto& life : lives_) {
      if (life->runs() && life->rank() == s.rank) life->stand_still(s.on_us);
    }
    hang_now_and_then();
  });
}

void Cluster::become_live() {
  live_ = true;
  live_since_us_ = world_.now_us();
  world_.calm();
  if (world_.keeps_transcript()) world_.tell("-------- faults stop");
  end_twin();
  tracker_.start();
  tracker_.mend_disk();
  for (std::size_t i = 0; i < lives_.size(); ++i) {
    // Strangers and lives that their launchers have given up go. So does a rank that has left a call out where ranks
    // may wait for each other in different groups, or for messages: that no heartbeat can tell from a slow rank.
    const std::size_t slot = slot_of_life_[i];
    const bool nobodys = slot == kStranger || slots_[slot].life != i;
    if (lives_[i]->alive() && !lives_[i]->serving() && (nobodys || (lives_[i]->desynced() && !program_.one_group())))
      lives_[i]->die(false);
  }
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    slots_[slot].absent = false;
    if (!slots_[slot].life || !lives_[*slots_[slot].life]->alive()) start_later(slot, world_.random.between(0, 1000));
  }
}

// A life has found that the checkpoint is lost: no worker waits for the others for ever (I7), be it there already or
// come later. Nothing else is judged of such a job.
bool Cluster::all_know_it_is_lost() {
  if (!lost_at_us_) {
    lost_at_us_ = world_.now_us();
    world_.stop_judging();
    if (!live_) become_live();
  }
  return std::ranges::all_of(slots_, [](const Slot& s) { return s.heard_lost; });
}

bool Cluster::over() const {
  return judge_.finished() && std::none_of(lives_.begin(), lives_.end(), [](const auto& l) { return l->alive(); });
}

std::string Cluster::unfinished() const {
  std::string text;
  std::size_t named = 0;
  for (const auto& life : lives_) {
    if (life->alive() && named++ < 8) text += (text.empty() ? "" : ", ") + life->describe();
  }
  return std::string(judge_.finished() ? "the job is finished" : "the job is not finished") +
         (text.empty() ? ", nobody is up" : ", up are: " + text);
}

std::string Cluster::describe_setting() const {
  std::string text =
      "K=" + std::to_string(setting_.world_size) + " round timeout " + std::to_string(timeout_ms()) +
      " ms, algorithm " + setting_.job.algorithm() + ", chunks of " + std::to_string(setting_.job.chunk_bytes()) +
      ", streams " + std::to_string(setting_.job.streams()) + ", replicas " + std::to_string(setting_.job.replicas()) +
      (setting_.spares == 0
           ? ""
           : ", spares " + std::to_string(setting_.spares) + (setting_.follows ? " that follow checkpoints" : "")) +
      (shrinks() ? ", goes on with " + std::to_string(setting_.job.min_workers()) + " after " +
                       std::to_string(setting_.job.grace_ms()) + " ms"
                 : "") +
      (setting_.job.elastic_start() ? ", may begin with as many, " + std::to_string(setting_.late) + " come late"
                                    : "") +
      (setting_.job.replace_after_ms() == 0
           ? ""
           : ", replaced after " + std::to_string(setting_.job.replace_after_ms()) + " ms") +
      (setting_.full_logs ? ", full logs" : "") + (setting_.gpus ? ", GPUs" : "") + (setting_.nccl ? " and NCCL" : "") +
      ", steps " + std::to_string(program_.steps().size());
  for (std::size_t f = 0; f < kFaults; ++f) {
    if (faults_.rates[f] > 0) text += std::string(", ") + info(static_cast<Fault>(f)).name;
  }
  return text;
}

// I7. A long program over slow links takes its time: as long as new results come it goes on, but not for ever, for who
// rolls back again and again computes results too.
void Cluster::look_at_progress(Micros most_us) {
  constexpr Micros kMostOfThem = 10;
  if (judge_.rounds() != rounds_seen_) {
    rounds_seen_ = judge_.rounds();
    progress_us_ = world_.now_us();
  }
  const Micros since_live = world_.now_us() - live_since_us_;
  const Micros since_progress = world_.now_us() - std::max(progress_us_, live_since_us_);
  if (since_progress <= most_us && since_live <= kMostOfThem * most_us) return;
  world_.violated("I7", std::to_string(since_live / 1'000'000) + " s after faults stopped, and " +
                            std::to_string(since_progress / 1'000'000) + " s after the last result, " + unfinished());
}

SimOutcome Cluster::run() {
  if (setting_.mirror) judge_.mirrored();
  if (options_.straggler) world_.hold_up(*options_.straggler);
  if (options_.bad_link) world_.cut_off(*options_.bad_link);
  if (options_.deadlock) world_.program_deadlocks(*options_.deadlock);
  make_slots();
  if (const auto& other = options_.other_state) {
    world_.give_other_state_once(slots_[other->worker].worker_id, version_of_program(other->checkpoint));
  }
  if (setting_.mirror) mirror_.emplace(setting_.world_size);
  if (options_.tracker_dies_before_effect) {
    tracker_.crash_before_effect(*options_.tracker_dies_before_effect, options_.tracker_away_us);
  }
  world_.after(world_.random.chance(0.2) ? world_.random.between(0, 200'000) : 0, [this] { tracker_.start(); });
  for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
    if (world_.strikes(Fault::absent_worker)) {
      slots_[slot].absent = true;
      continue;
    }
    Micros delay = world_.random.between(0, 20'000);
    if (world_.strikes(Fault::slow_start)) {
      delay = world_.random.between(0, world_.random.chance(0.05) ? 14'000'000 : 3000 * timeout_ms());
    }
    const bool late = slot < setting_.world_size && slot + setting_.late >= setting_.world_size;
    if (late) {
      // Often soon after the beginning: most programs are short.
      const Micros begun_us = (timeout_ms() + static_cast<std::int64_t>(setting_.job.grace_ms())) * 1000;
      delay = world_.random.chance(0.3) ? world_.random.between(0, setting_.safety_us)
                                        : begun_us + world_.random.between(0, 60'000);
    }
    start_later(slot, delay);
  }
  schedule_faults();
  if (options_.straggler && options_.straggler->what == Straggler::What::kHung) hang_now_and_then();
  world_.at(setting_.safety_us, [] {});  // so that time goes on when everybody is down

  // After the end a late worker may still ask, and the tracker forgets the job.
  const Micros after_end_us = (2 * timeout_ms() + 1000) * 1000;
  const Micros most_us = (60'000 + 2 * setting_.join_timeout_ms + 100 * timeout_ms()) * 1000;
  while (world_.step()) {
    if (judge_.load_has_failed()) {
      // Or one of them had what was missing, and they went on; or, where they may, without who cannot load.
      if (all_know_it_is_lost() || over()) break;
      if (world_.now_us() - *lost_at_us_ <= most_us) continue;
      world_.fail("I7",
                  "a checkpoint is lost, and " + std::to_string(most_us / 1'000'000) + " s later " + unfinished());
      break;
    }
    if (judge_.plan().generation() != counted_generation_ && setting_.job.replicas() > 0) {
      counted_generation_ = judge_.plan().generation();
      least_copies_ = std::min(least_copies_, least_copies());
      leave_hosts();
      judge_.check_kept();
    }
    // The newest first: most of the others are over.
    judge_.check_silence(std::any_of(lives_.rbegin(), lives_.rend(), [](const auto& life) { return life->waits(); }));
    judge_.check_replaced();
    look_at_taken();
    watch_rebuilding();
    watch_lone_commit();
    if (!live_ && world_.now_us() >= setting_.safety_us) become_live();
    if (setting_.job.replicas() > 0) check_refill();
    if (judge_.finished() && !finished_at_us_) {
      finished_at_us_ = world_.now_us();
      setting_.safety_us = std::min(setting_.safety_us, world_.now_us() + after_end_us / 2);
    }
    if (judge_.lost_for_good()) break;
    if (over() && live_ && world_.now_us() >= *finished_at_us_ + after_end_us) break;
    if (live_ && !over()) look_at_progress(most_us);
    if (static_cast<std::int64_t>(world_.events()) > kMostEvents) {
      world_.violated("I8", "over " + std::to_string(kMostEvents) + " events; " + unfinished());
    }
  }
  if (!world_.failed() && !over() && !judge_.lost_for_good())
    world_.violated("I7", "nothing more happens, and " + unfinished());
  if (!world_.failed() && lost_at_us_ && !over() && !all_know_it_is_lost())
    world_.fail("I7", "a checkpoint is lost, nothing more happens, and " + unfinished());

  SimOutcome out;
  out.verdict = world_.verdict();
  out.digest = world_.digest();
  out.faults = world_.fault_counts();
  out.under_faults =
      faults_.any() || options_.tracker_dies_before_effect || !options_.deaths.empty() || !options_.notices.empty();
  out.commits = judge_.commits();
  out.rollbacks = judge_.rollbacks();
  out.kept_rounds = judge_.kept_rounds();
  out.spills = judge_.spills();
  out.most_pending = judge_.most_pending();
  out.given_up = judge_.times_given_up();
  out.met = judge_.met();
  out.unmet = judge_.unmet();
  out.followed = judge_.times_followed();
  out.loaded_followed = judge_.times_loaded_followed();
  out.rebuilt = rebuilt_;
  out.from_mirror = judge_.from_mirror();
  out.stragglers_named = judge_.stragglers_named();
  out.reordered_rounds = judge_.reordered_rounds();
  for (const auto& life : lives_) {
    out.exchanged += life->rounds_exchanged();
    out.lent += life->inputs_lent();
    out.from_gpus += life->finals_from_gpus();
    out.came_home += life->inputs_came_home();
    out.fell += life->finals_fell();
    out.taken_up += life->partials_taken_up();
    out.sent_on += life->inputs_sent_on();
    out.copied += life->inputs_copied();
    out.handed_on += life->finals_handed_on();
    out.gpus_failed += life->ended_by_itself();
  }
  out.replaced = judge_.replaced();
  out.shrunk = judge_.shrunk();
  out.grown = judge_.grown();
  out.second_faults = second_faults_;
  out.lost_for_good = judge_.lost_for_good();
  out.rounds = judge_.rounds();
  out.events = world_.events();
  out.most_events_waiting = world_.most_waiting();
  out.lives = lives_.size();
  out.virtual_ms = world_.now().value;
  out.liveness_ms = finished_at_us_ && live_ ? std::max<Micros>(0, *finished_at_us_ - live_since_us_) / 1000 : 0;
  out.setting = describe_setting();
  out.tracker_effects = tracker_.effects();
  out.tracker_transitions = tracker_.transition_counts();
  out.worker_transitions.assign(WorkerMachine::transition_names().size(), 0);
  for (const auto& life : lives_) {
    const auto counts = life->transition_counts();
    for (std::size_t i = 0; i < counts.size(); ++i) out.worker_transitions[i] += counts[i];
  }
  out.passages.resize(slots_.size());
  for (std::size_t i = lives_.size(); i-- > 0;) {
    if (slot_of_life_[i] == kStranger) continue;
    for (std::size_t p = 0; p < kKillPoints; ++p) {
      out.passages[slot_of_life_[i]][p] = lives_[i]->passages(static_cast<KillPoint>(p));
    }
  }
  out.transcript = world_.transcript();
  return out;
}

}  // namespace

SimOutcome simulate(const SimOptions& options) {
  return Cluster(options).run();
}

}  // namespace warren::chaos
