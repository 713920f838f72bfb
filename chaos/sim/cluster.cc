#include "chaos/sim/cluster.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "chaos/sim/claims.h"
#include "chaos/sim/control_network.h"
#include "chaos/sim/copies.h"
#include "chaos/sim/fetch_network.h"
#include "chaos/sim/launchers.h"
#include "chaos/sim/run.h"
#include "chaos/sim/second_tracker.h"
#include "chaos/sim/sim_tracker.h"
#include "chaos/sim/sim_transport.h"
#include "chaos/sim/strikes.h"
#include "chaos/sim/tracker_faults.h"

namespace warren::chaos {
namespace {

constexpr std::int64_t kMostEvents = 6'000'000;

// The parts of a run, joined, and its two phases.
class Cluster {
 public:
  explicit Cluster(const SimOptions& options)
      : run_(options),
        data_(run_.world),
        fetch_(run_.world,
               {[this](Incarnation server, const wire::FetchRequest& request, auto& answer) {
                  return launchers_.serve(server, request, answer);
                },
                [this](std::size_t life, Rank from, const auto& reply) { launchers_.life(life).fetched(from, reply); }},
               timeout_ms()),
        control_(
            run_.world,
            {[this](std::size_t life, const std::string& bytes) { to_tracker(life, bytes); },
             [this](std::size_t life, const std::string& bytes) { launchers_.life(life).receive(bytes); },
             [this](std::size_t life, const std::string& what) { launchers_.life(life).connection_trouble(what); }},
            timeout_ms()),
        tracker_(
            run_.world, run_.judge,
            {[this](std::size_t life, const std::string& bytes) { send_down(life, bytes); },
             [this] { control_.drop_all(); }, [this](const wire::Envelope& e) { check_claim(run_, launchers_, e); },
             [this](const std::string& record) { tracker_faults_.stored(record); },
             [this] { tracker_faults_.tracker_died(); }},
            kJob, timeout_ms()),
        launchers_(run_, {data_, fetch_, control_},
                   {[this](std::size_t life, KillPoint point, std::uint64_t passage) {
                      return strikes_.killed_at(life, point, passage);
                    },
                    [this](std::size_t life) { strikes_.doomed(life); }, [this] { strikes_.on_recovery(); },
                    [this](const SimWorker& life) { log_lost(life); },
                    [this](const std::string& host) { return strikes_.is_taken(host); }}),
        tracker_faults_(run_, launchers_, tracker_, control_),
        second_tracker_(run_, launchers_, tracker_, control_,
                        [this](std::size_t life, const std::string& bytes) { send_down(life, bytes); }),
        copies_(run_, launchers_, tracker_faults_),
        strikes_(run_, launchers_, {data_, control_, tracker_, tracker_faults_, second_tracker_, copies_}),
        safety_us_(run_.setting.safety_us) {}

  SimOutcome run();

 private:
  [[nodiscard]] std::int64_t timeout_ms() const { return run_.setting.timeout_ms(); }
  void to_tracker(std::size_t life, std::string bytes);
  void send_down(std::size_t life, const std::string& bytes) {
    if (!tracker_faults_.withholds(life, bytes)) control_.send_down(life, bytes);
  }
  void log_lost(const SimWorker& life);
  void begin();
  void become_live();
  void look_at_progress(Micros most_us);
  [[nodiscard]] bool all_know_it_is_lost();
  [[nodiscard]] bool over() const;
  [[nodiscard]] std::string unfinished() const;
  [[nodiscard]] SimOutcome outcome() const;

  Run run_;
  DataNetwork data_;
  FetchNetwork fetch_;
  ControlNetwork control_;
  SimTracker tracker_;
  Launchers launchers_;
  TrackerFaults tracker_faults_;
  SecondTracker second_tracker_;
  Copies copies_;
  Strikes strikes_;
  Micros safety_us_;  // as drawn, or shorter where the job has finished
  std::uint64_t generation_ = 0;
  bool live_ = false;
  Micros live_since_us_ = 0;
  std::uint64_t rounds_seen_ = 0;
  Micros progress_us_ = 0;  // when the last of them came
  std::optional<Micros> finished_at_us_;
  std::optional<Micros> lost_at_us_;  // a life has found that what it would load is lost
};

void Cluster::to_tracker(std::size_t life, std::string bytes) {
  const std::size_t slot = launchers_.slot_of(life);
  if (run_.world.is(Mutant::accept_zombie) && slot != Launchers::kStranger) {
    const std::optional<std::size_t> current = launchers_.slots()[slot].life;
    wire::Envelope e;
    if (current && *current != life && e.ParseFromString(bytes)) {
      e.set_sender(launchers_.life(*current).self().value);
      bytes = e.SerializeAsString();
    }
  }
  if (!second_tracker_.receive(life, bytes)) tracker_.receive(life, bytes);
}

void Cluster::log_lost(const SimWorker& life) {
  if (life.serving()) {
    copies_.no_copy_left(life.host(), life.domain());
  } else {
    copies_.domain_lost(life.domain());
  }
}

void Cluster::begin() {
  if (run_.setting.mirror) run_.judge.mirrored();
  if (run_.options.straggler) run_.world.hold_up(*run_.options.straggler);
  if (run_.options.bad_link) run_.world.cut_off(*run_.options.bad_link);
  if (run_.options.deadlock) run_.world.program_deadlocks(*run_.options.deadlock);
  launchers_.make_slots();
  if (const auto& other = run_.options.other_state) {
    run_.world.give_other_state_once(launchers_.slots()[other->worker].worker_id,
                                     version_of_program(other->checkpoint));
  }
  if (run_.setting.mirror) run_.mirror.emplace(run_.setting.world_size);
  if (run_.options.tracker_dies_before_effect) {
    tracker_.crash_before_effect(*run_.options.tracker_dies_before_effect, run_.options.tracker_away_us);
  }
  run_.world.after(run_.world.random.chance(0.2) ? run_.world.random.between(0, 200'000) : 0,
                   [this] { tracker_.start(); });
  launchers_.start_all();
  strikes_.schedule();
  run_.world.at(run_.setting.safety_us, [] {});  // so that time goes on when everybody is down
}

SimOutcome Cluster::run() {
  begin();
  // After the end a late worker may still ask, and the tracker forgets the job.
  const Micros after_end_us = (2 * run_.setting.timeout_ms() + 1000) * 1000;
  const Micros most_us = (60'000 + 2 * run_.setting.join_timeout_ms + 100 * run_.setting.timeout_ms()) * 1000;
  while (run_.world.step()) {
    if (run_.judge.load_has_failed()) {
      // Or one of them had what was missing, and they went on; or, where they may, without who cannot load.
      if (all_know_it_is_lost() || over()) break;
      if (run_.world.now_us() - *lost_at_us_ <= most_us) continue;
      run_.world.fail("I7",
                      "a checkpoint is lost, and " + std::to_string(most_us / 1'000'000) + " s later " + unfinished());
      break;
    }
    if (run_.judge.plan().generation() != generation_ && run_.setting.job.replicas() > 0) {
      generation_ = run_.judge.plan().generation();
      copies_.plan_changed();
      run_.judge.check_kept();
    }
    // The newest first: most of the others are over.
    run_.judge.check_silence(std::any_of(launchers_.lives().rbegin(), launchers_.lives().rend(),
                                         [](const auto& life) { return life->waits(); }));
    run_.judge.check_replaced();
    strikes_.look_at_taken();
    tracker_faults_.watch();
    if (!live_ && run_.world.now_us() >= safety_us_) become_live();
    if (run_.setting.job.replicas() > 0) copies_.check_refill();
    if (run_.judge.finished() && !finished_at_us_) {
      finished_at_us_ = run_.world.now_us();
      safety_us_ = std::min(safety_us_, run_.world.now_us() + after_end_us / 2);
    }
    if (run_.judge.lost_for_good()) break;
    if (over() && live_ && run_.world.now_us() >= *finished_at_us_ + after_end_us) break;
    if (live_ && !over()) look_at_progress(most_us);
    if (static_cast<std::int64_t>(run_.world.events()) > kMostEvents) {
      run_.world.violated("I8", "over " + std::to_string(kMostEvents) + " events; " + unfinished());
    }
  }
  if (!run_.world.failed() && !over() && !run_.judge.lost_for_good())
    run_.world.violated("I7", "nothing more happens, and " + unfinished());
  if (!run_.world.failed() && lost_at_us_ && !over() && !all_know_it_is_lost())
    run_.world.fail("I7", "a checkpoint is lost, nothing more happens, and " + unfinished());
  return outcome();
}

void Cluster::become_live() {
  live_ = true;
  live_since_us_ = run_.world.now_us();
  run_.world.calm();
  if (run_.world.keeps_transcript()) run_.world.tell("-------- faults stop");
  second_tracker_.end();
  tracker_.start();
  tracker_.mend_disk();
  launchers_.become_live();
}

// A life has found that the checkpoint is lost: no worker waits for the others for ever (I7), be it there already or
// come later. Nothing else is judged of such a job.
bool Cluster::all_know_it_is_lost() {
  if (!lost_at_us_) {
    lost_at_us_ = run_.world.now_us();
    launchers_.loss_found();
    run_.world.stop_judging();
    if (!live_) become_live();
  }
  return launchers_.all_heard_of_loss();
}

bool Cluster::over() const {
  return run_.judge.finished() &&
         std::none_of(launchers_.lives().begin(), launchers_.lives().end(), [](const auto& l) { return l->alive(); });
}

std::string Cluster::unfinished() const {
  std::string text;
  std::size_t named = 0;
  for (const auto& life : launchers_.lives()) {
    if (life->alive() && named++ < 8) text += (text.empty() ? "" : ", ") + life->describe();
  }
  return std::string(run_.judge.finished() ? "the job is finished" : "the job is not finished") +
         (text.empty() ? ", nobody is up" : ", up are: " + text);
}

// I7. A long program over slow links takes its time: as long as new results come it goes on, but not for ever, for who
// rolls back again and again computes results too.
void Cluster::look_at_progress(Micros most_us) {
  constexpr Micros kMostOfThem = 10;
  if (run_.judge.rounds() != rounds_seen_) {
    rounds_seen_ = run_.judge.rounds();
    progress_us_ = run_.world.now_us();
  }
  const Micros since_live = run_.world.now_us() - live_since_us_;
  const Micros since_progress = run_.world.now_us() - std::max(progress_us_, live_since_us_);
  if (since_progress <= most_us && since_live <= kMostOfThem * most_us) return;
  run_.world.violated("I7", std::to_string(since_live / 1'000'000) + " s after faults stopped, and " +
                                std::to_string(since_progress / 1'000'000) + " s after the last result, " +
                                unfinished());
}

SimOutcome Cluster::outcome() const {
  SimOutcome out;
  out.verdict = run_.world.verdict();
  out.digest = run_.world.digest();
  out.faults = run_.world.fault_counts();
  out.under_faults = run_.setting.faults.any() || run_.options.tracker_dies_before_effect ||
                     !run_.options.deaths.empty() || !run_.options.notices.empty();
  out.commits = run_.judge.commits();
  out.rollbacks = run_.judge.rollbacks();
  out.kept_rounds = run_.judge.kept_rounds();
  out.spills = run_.judge.spills();
  out.most_pending = run_.judge.most_pending();
  out.given_up = run_.judge.times_given_up();
  out.met = run_.judge.met();
  out.unmet = run_.judge.unmet();
  out.followed = run_.judge.times_followed();
  out.loaded_followed = run_.judge.times_loaded_followed();
  out.rebuilt = tracker_faults_.rebuilt();
  out.from_mirror = run_.judge.from_mirror();
  out.stragglers_named = run_.judge.stragglers_named();
  out.reordered_rounds = run_.judge.reordered_rounds();
  for (const auto& life : launchers_.lives()) {
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
  out.replaced = run_.judge.replaced();
  out.shrunk = run_.judge.shrunk();
  out.grown = run_.judge.grown();
  out.second_faults = launchers_.second_faults();
  out.lost_for_good = run_.judge.lost_for_good();
  out.rounds = run_.judge.rounds();
  out.events = run_.world.events();
  out.most_events_waiting = run_.world.most_waiting();
  out.lives = launchers_.lives().size();
  out.virtual_ms = run_.world.now().value;
  out.liveness_ms = finished_at_us_ && live_ ? std::max<Micros>(0, *finished_at_us_ - live_since_us_) / 1000 : 0;
  out.setting = describe(run_.setting, run_.program.steps().size());
  out.tracker_effects = tracker_.effects();
  out.tracker_transitions = tracker_.transition_counts();
  out.worker_transitions.assign(WorkerMachine::transition_names().size(), 0);
  for (const auto& life : launchers_.lives()) {
    const auto counts = life->transition_counts();
    for (std::size_t i = 0; i < counts.size(); ++i) out.worker_transitions[i] += counts[i];
  }
  out.passages.resize(launchers_.slots().size());
  for (std::size_t i = launchers_.lives().size(); i-- > 0;) {
    const std::size_t slot = launchers_.slot_of(i);
    if (slot == Launchers::kStranger) continue;
    for (std::size_t p = 0; p < kKillPoints; ++p) {
      out.passages[slot][p] = launchers_.life(i).passages(static_cast<KillPoint>(p));
    }
  }
  out.transcript = run_.world.transcript();
  return out;
}

}  // namespace

SimOutcome simulate(const SimOptions& options) {
  return Cluster(options).run();
}

}  // namespace warren::chaos
