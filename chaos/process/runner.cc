#include "chaos/process/runner.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <thread>

#include "chaos/process/cluster.h"
#include "chaos/process/judge_thread.h"
#include "chaos/process/logs.h"
#include "chaos/process/network.h"
#include "chaos/process/watch.h"
#include "warren/c_api.h"

namespace warren::chaos::process {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
// An order that no worker has come to obey for so long is withdrawn.
constexpr std::uint64_t kOrderPatienceNs = 3'000 * kMs;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : state_(mixed(mixed(seed))) {}  // seeds in a row: sequences far apart
  std::uint64_t below(std::uint64_t limit) { return mixed(state_++) % limit; }
  double unit() { return static_cast<double>(mixed(state_++) >> 11) * 0x1p-53; }
  bool chance(double p) { return unit() < p; }
  template <class T, std::size_t N>
  T of(const std::array<T, N>& choices) {
    return choices[below(N)];
  }

 private:
  std::uint64_t state_;
};

class Run {
 public:
  Run(const ChaosOptions& options, const std::vector<FaultKind>& faults, Network* network,
      const std::atomic<bool>& interrupt)
      : options_(options), faults_(faults), network_(network), interrupt_(interrupt), draw_(options.seed) {
    shape_.seed = options.seed;
    shape_.ranks = options.ranks;
    shape_.mix = options.mix;
    shape_.bytes = options.round_bytes;
    shape_.compute_ms = options.compute_ms;
    shape_.min_workers = options.min_workers;
    shape_.on_gpus = options.on_gpus;
    planned_for_ = options.ranks;
    program_.emplace(shape_);
  }
  ~Run() {
    cluster_.reset();
    judge_.reset();
    if (folder_.empty()) return;
    if (report_.good()) {
      std::error_code ignored;
      std::filesystem::remove_all(folder_, ignored);
    } else {
      show_logs(folder_, options_.hosts);
      for (const std::string& why : blamed_) std::fprintf(stderr, "FAILED: %s\n", why.c_str());
      std::fprintf(stderr, "what the processes said is in %s\n", folder_.c_str());
    }
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  Result<ChaosReport> run(double seconds) {
    if (Status s = start(); !s.ok()) return s;
    while (going() && watch_->last_progress_ns() == 0) tick();
    const std::uint64_t begin_ns = monotonic_ns(), first_round = watch_->rounds();
    const std::uint64_t end_ns = begin_ns + static_cast<std::uint64_t>(seconds * 1e9);
    if (faults_.empty()) {
      while (going() && monotonic_ns() < end_ns) tick();
    } else if (options_.planned) {
      planned_faults(begin_ns, end_ns);
    } else {
      while (going() && monotonic_ns() < end_ns) {
        pause(std::min(end_ns, monotonic_ns() + pause_ns()));
        if (going() && monotonic_ns() < end_ns) fault_and_recovery();
      }
    }
    const double took = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    report_.rounds_per_second = static_cast<double>(watch_->rounds() - first_round) / took;
    finish();
    return conclude();
  }

 private:
  struct Fault {
    FaultKind kind;
    std::optional<std::size_t> stall;  // none where the victim was not there, in mode shrink: it stops nobody
    std::uint32_t victim, life;
    std::optional<Phase> phase;  // nothing: that in which the life ended
    std::uint64_t at_ns;
    bool alone;  // no other was being recovered from
    std::string text;
    std::uint64_t noticed_ns = 0;  // 0: not yet
  };

  Status start() {
    const std::string parent = std::filesystem::temp_directory_path().string();
    std::string name = parent + "/warren-chaos-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) {
      return {Code::kUnavailable, "cannot make a folder in " + parent + ": " + std::strerror(errno)};
    }
    folder_ = name;
    ClusterOptions c;
    c.program = options_.program;
    c.folder = folder_;
    c.shape = shape_;
    c.hosts = options_.hosts;
    c.spares = options_.spares;
    c.replicas = options_.replicas;
    c.round_timeout_ms = options_.round_timeout_ms;
    c.grace_ms = options_.grace_ms;
    c.disk_log = report_.disk_log = options_.disk_log;
    c.timeline = options_.timeline;
    c.drains = has(FaultKind::kDrain);
    c.network = network_;
    auto cluster = Cluster::create(c);
    if (!cluster.ok()) return cluster.status();
    cluster_ = std::move(cluster).value();
    auto watch = Watch::open(folder_, shape_.ranks, shape_.shrinks());
    if (!watch.ok()) return watch.status();
    watch_.emplace(std::move(watch).value());
    if (Status s = cluster_->start_tracker(); !s.ok()) return s;
    for (std::uint32_t h = 0; h < options_.hosts; h++) {
      if (Status s = cluster_->start_host(h); !s.ok()) return s;
    }
    auto judge = JudgeThread::start(*program_, folder_, has(FaultKind::kAll));
    if (!judge.ok()) return judge.status();
    judge_ = std::move(judge).value();
    started_ns_ = calm_since_ns_ = monotonic_ns();
    return {};
  }

  [[nodiscard]] bool has(FaultKind kind) const { return std::ranges::find(faults_, kind) != faults_.end(); }
  [[nodiscard]] bool going() const { return !over_ && !interrupt_.load(); }

  // ---- the loop ---------------------------------------------------------------------------------------------------

  void tick() {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    watch_->look();
    look_at_tracker();
    const std::uint64_t now = monotonic_ns();
    for (auto* actions : {&later_, &returns_}) {
      for (std::size_t i = 0; i < actions->size();) {
        if ((*actions)[i].first > now) {
          i++;
          continue;
        }
        const auto action = std::move((*actions)[i].second);
        actions->erase(actions->begin() + static_cast<std::ptrdiff_t>(i));
        action();
        calm_since_ns_ = monotonic_ns();
      }
    }
    for (std::uint32_t h = 0; h < options_.hosts; h++) {
      const auto status = cluster_->ended(h);
      if (status && !finishing_) give_up("the launcher of host " + std::to_string(h) + " has ended");
    }
    const std::uint64_t since = std::max({watch_->last_progress_ns(), calm_since_ns_});
    if (!watch_->all_finished() && later_.empty() && returns_.empty() && now > since + hang_ns()) {
      report_.hangs++;
      give_up("the job hangs");
    }
  }
  // Far above what a recovery may take.
  [[nodiscard]] std::uint64_t hang_ns() const {
    return std::max<std::uint64_t>(30'000, static_cast<std::uint64_t>(options_.round_timeout_ms) * 10) * kMs;
  }
  // Nobody is away. (In mode wait, without spares, all are there where no stall is open.)
  [[nodiscard]] bool all_there() const { return returns_.empty() && (!shape_.shrinks() || watch_->all_there()); }
  // A fault is noticed when the tracker says that the generation is over. (It writes a line at once.)
  void look_at_tracker() {
    if (!tracker_log_.is_open()) tracker_log_.open(cluster_->log_file("tracker"));
    tracker_log_.clear();
    for (std::string line; std::getline(tracker_log_, line);) {
      if (shape_.shrinks()) look_at_plan(line);
      if (line.find("interrupted: generation ") == std::string::npos || struck_.empty()) continue;
      Fault& f = struck_.back();
      if (f.noticed_ns == 0) f.noticed_ns = monotonic_ns();
    }
  }
  void look_at_plan(const std::string& line) {
    static const std::string kRunsWith = " runs with ";
    const std::size_t at = line.find(kRunsWith);
    if (at == std::string::npos) return;
    const auto workers = static_cast<std::uint32_t>(std::atoi(line.c_str() + at + kRunsWith.size()));
    report_.shrinks += workers < planned_for_ ? 1 : 0;
    report_.growths += workers > planned_for_ ? 1 : 0;
    planned_for_ = workers;
  }
  void pause(std::uint64_t until_ns) {
    while (going() && monotonic_ns() < until_ns) tick();
  }
  std::uint64_t pause_ns() {
    const double mean = static_cast<double>(options_.interval_ms);
    return static_cast<std::uint64_t>(std::min(-std::log(1 - draw_.unit()) * mean, 5 * mean) * 1e6);
  }
  void in(std::uint64_t delay_ns, std::function<void()> action) {
    later_.emplace_back(monotonic_ns() + delay_ns, std::move(action));
  }
  void give_up(const std::string& why) {
    over_ = true;
    failed_ = true;
    blame("GIVING UP: " + why);
    for (std::uint32_t w = 0; w < shape_.ranks; w++) say("  " + where(w));
  }

  // Said again after the logs, which are long.
  void blame(const std::string& why) {
    say(why);
    blamed_.push_back(why);
  }
  void say(const std::string& text) const {
    std::fprintf(stderr, "%8.3f  %s\n", static_cast<double>(monotonic_ns() - started_ns_) / 1e9, text.c_str());
  }
  [[nodiscard]] std::string where(std::uint32_t worker) const {
    const Page& p = cluster_->page(worker);
    return "worker " + std::to_string(worker) + ": life " + std::to_string(p.lives.load() - 1) + ", " +
           name_of(static_cast<Phase>(p.phase.load())) + ", iteration " + std::to_string(p.iteration.load()) +
           ", call " + std::to_string(p.call.load());
  }

  // ---- faults -----------------------------------------------------------------------------------------------------

  void fault_and_recovery() {
    const FaultKind kind = faults_.size() > 1 && has(FaultKind::kKill) && draw_.chance(0.4)
                               ? FaultKind::kKill
                               : faults_[draw_.below(faults_.size())];
    const std::uint32_t victim = static_cast<std::uint32_t>(draw_.below(shape_.ranks));
    if (!strike(kind, victim)) return;
    if (draw_.chance(0.5)) second_fault(kind, victim);
    while (going() && (watch_->recovering() || !later_.empty())) tick();
    // The next one may strike while workers are away.
    if (shape_.shrinks() && draw_.chance(0.5)) {
      while (going() && !all_there()) tick();
    }
  }

  void planned_faults(std::uint64_t begin_ns, std::uint64_t end_ns) {
    std::vector<FaultKind> order = faults_;
    for (std::size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[draw_.below(i)]);
    const double share = static_cast<double>(end_ns - begin_ns) / static_cast<double>(order.size());
    for (std::size_t i = 0; going() && i < order.size(); i++) {
      pause(begin_ns + static_cast<std::uint64_t>((static_cast<double>(i) + draw_.unit()) * share));
      // Where no life survives, what was decided since the checkpoint is decided anew.
      while (going() && (watch_->recovering() || !later_.empty() || !all_there())) tick();
      // A worker that is not there at this moment is there soon.
      const auto victim = static_cast<std::uint32_t>(draw_.below(shape_.ranks));
      while (going() && !(order[i] == FaultKind::kKill ? kill_now(victim) : strike(order[i], victim))) tick();
    }
    pause(end_ns);
  }

  // Strikes while the first fault is not over, if it lasts long enough.
  void second_fault(FaultKind first, std::uint32_t victim) {
    const std::uint32_t life = cluster_->page(victim).lives.load();
    const bool kills = has(FaultKind::kKill);
    if (kills && first == FaultKind::kKill && draw_.chance(0.6) && cluster_->gate(victim).away.load() == 0) {
      constexpr std::array kEarly = {Phase::kStarting, Phase::kPreamble, Phase::kLoad, Phase::kReplay, Phase::kReplay};
      (void)obey(victim, draw_.of(kEarly), life - 1 + (life == lives_at_fault_ ? 1 : 0), draw_.below(3000));
      return;
    }
    pause(monotonic_ns() + draw_.below(100) * kMs);
    if (!going() || !watch_->recovering()) return;
    if (has(FaultKind::kTracker) && first != FaultKind::kTracker && (!kills || draw_.chance(0.3))) {
      strike(FaultKind::kTracker, victim);
    } else if (kills && shape_.ranks > 1) {
      const auto other = (victim + 1 + draw_.below(shape_.ranks - 1)) % shape_.ranks;
      kill_now(static_cast<std::uint32_t>(other));
    }
  }

  bool strike(FaultKind kind, std::uint32_t victim) {
    switch (kind) {
      case FaultKind::kKill: return kill_somewhere(victim);
      case FaultKind::kStop: return stop(victim);
      case FaultKind::kCut: return cut(victim);
      case FaultKind::kTracker: return kill_tracker();
      case FaultKind::kDisk: return lose_disk(victim);
      case FaultKind::kAll: return kill_all();
      case FaultKind::kPair: return kill_pair(victim);
      case FaultKind::kDrain: return drain(victim);
    }
    return false;
  }

  void note(FaultKind kind, std::uint32_t victim, std::uint32_t life, std::uint64_t at_ns, std::optional<Phase> phase,
            const std::string& text) {
    const bool second = watch_->recovering();
    say(text + (second ? " (during a recovery)" : ""));
    report_.fault_count++;
    report_.during_recovery += second ? 1 : 0;
    const bool kill = kind == FaultKind::kKill || kind == FaultKind::kPair;
    const bool away = kill && shape_.shrinks() && (watch_->there() >> victim & 1) == 0;
    std::optional<std::size_t> stall;
    if (!away) stall = watch_->fault(at_ns, kill ? std::optional(Watch::Life{victim, life}) : std::nullopt);
    // Of a drain the generation has ended by then.
    const bool alone = !second && kind != FaultKind::kDrain;
    struck_.push_back({kind, stall, victim, life, phase, at_ns, alone, text});
  }
  [[nodiscard]] Phase phase_of(std::uint32_t worker) const {
    return static_cast<Phase>(cluster_->page(worker).phase.load());
  }

  bool kill_somewhere(std::uint32_t victim) {
    if (draw_.chance(0.3)) return kill_now(victim);
    constexpr std::array kPoints = {Phase::kBigRound,   Phase::kBigRound,     Phase::kBigRound, Phase::kSmallRound,
                                    Phase::kCheckpoint, Phase::kCheckpointed, Phase::kIdle};
    const Phase phase = draw_.of(kPoints);
    const std::uint64_t most_us = phase == Phase::kBigRound ? 20'000 : 2'000;
    return obey(victim, phase, kAnyLife, draw_.chance(0.2) ? 0 : draw_.below(most_us));
  }

  // Where others go on without a killed worker, or take its place: how long it takes until its next life begins. A
  // spare is called some 30 ms after a kill, if nobody is there then.
  std::uint64_t away_ns() {
    switch (draw_.below(3)) {
      case 0: return 0;
      case 1:
        return shape_.shrinks() ? (static_cast<std::uint64_t>(options_.grace_ms) + draw_.below(300)) * kMs
                                : draw_.below(100) * kMs;
      default: return draw_.below(3000) * kMs;
    }
  }
  // Before a worker is killed; whoever calls this calls comes_back after that.
  struct Away {
    Page* gate = nullptr;  // null: it may come back at once
    std::uint64_t ns = 0;
  };
  Away stays_away(std::uint32_t victim) {
    Page& gate = cluster_->gate(victim);
    if ((!shape_.shrinks() && options_.spares == 0) || gate.away.load() != 0) return {};
    const std::uint64_t ns = away_ns();
    if (ns == 0) return {};
    keep_away(gate);
    return {&gate, ns};
  }
  void comes_back(std::uint32_t victim, Away away, bool killed) {
    if (away.gate == nullptr) return;
    if (!killed) return let_in(*away.gate);
    returns_.emplace_back(monotonic_ns() + away.ns, [this, victim, gate = away.gate] {
      say("worker " + std::to_string(victim) + " may come back");
      let_in(*gate);
    });
  }

  bool kill_now(std::uint32_t victim, FaultKind kind = FaultKind::kKill) {
    const std::uint32_t life = cluster_->page(victim).lives.load() - 1;
    const std::string at = where(victim);
    lives_at_fault_ = life + 1;
    const Away away = stays_away(victim);
    const std::uint64_t now = monotonic_ns();
    const bool killed = cluster_->signal_worker(victim, SIGKILL);
    comes_back(victim, away, killed);
    if (!killed) return false;
    note(kind, victim, life, now, std::nullopt, "kill " + at);
    return true;
  }

  // Orders the worker to die in this phase, and waits until it has.
  bool obey(std::uint32_t victim, Phase phase, std::uint32_t life, std::uint64_t delay_us) {
    Page& page = cluster_->page(victim);
    // A life that is named may have to pass the gate still.
    const Away away = life == kAnyLife ? stays_away(victim) : Away{};
    Order& order = page.orders[0];
    order.life.store(life);
    order.iteration.store(0);
    order.delay_us.store(delay_us);
    order.phase.store(static_cast<std::uint32_t>(phase));
    const std::uint64_t until = monotonic_ns() + kOrderPatienceNs;
    while (going() && order.phase.load() != 0 && monotonic_ns() < until) tick();
    const bool killed = order.phase.exchange(0) == 0;
    comes_back(victim, away, killed);
    if (!killed) return false;
    const std::uint64_t dies_at_ns = page.dies_at_ns.load();
    lives_at_fault_ = page.lives.load();
    note(FaultKind::kKill, victim, lives_at_fault_ - 1, dies_at_ns, std::nullopt,
         "kill " + where(victim) + ", " + std::to_string(delay_us) + " us after it entered " + name_of(phase));
    pause(dies_at_ns + kMs);
    return true;
  }

  bool kill_pair(std::uint32_t victim) {
    const auto other = static_cast<std::uint32_t>((victim + 1 + draw_.below(shape_.ranks - 1)) % shape_.ranks);
    if (!kill_now(victim, FaultKind::kPair)) return false;
    (void)kill_now(other, FaultKind::kPair);
    return true;
  }

  // What it had begun goes on until it leaves: the others stop when it has, not when it is told to.
  bool drain(std::uint32_t victim) {
    const std::uint32_t life = cluster_->page(victim).lives.load() - 1;
    const Phase phase = phase_of(victim);
    const std::string at = where(victim);
    const std::uint64_t told_ns = monotonic_ns();
    if (!cluster_->signal_worker(victim, SIGTERM)) return false;
    constexpr int kIsThere = 0;
    while (going() && cluster_->page(victim).lives.load() == life + 1 && cluster_->signal_worker(victim, kIsThere)) {
      tick();
    }
    const std::uint64_t now = monotonic_ns();
    report_.drains_ms.push_back(static_cast<double>(now - told_ns) / 1e6);
    note(FaultKind::kDrain, victim, life, now, phase, "drain " + at);
    return true;
  }

  // A part of the round timeout, after which nothing may have happened, or more than all of it.
  std::uint64_t absence_ns() {
    const double timeouts = !options_.planned && draw_.chance(0.4) ? 0.1 + 0.4 * draw_.unit() : 1.3 + draw_.unit();
    return static_cast<std::uint64_t>(timeouts * static_cast<double>(options_.round_timeout_ms) * 1e6);
  }

  bool stop(std::uint32_t victim) {
    const pid_t pid = cluster_->page(victim).pid.load();
    if (!cluster_->signal_worker(victim, SIGSTOP)) return false;
    const std::uint64_t ns = absence_ns();
    note(FaultKind::kStop, victim, 0, monotonic_ns(), phase_of(victim),
         "stop " + where(victim) + ", for " + std::to_string(ns / kMs) + " ms");
    in(ns, [this, victim, pid] {
      // Another life is not stopped.
      if (cluster_->page(victim).pid.load() == pid) (void)cluster_->signal_worker(victim, SIGCONT);
      say("worker " + std::to_string(victim) + " may go on");
    });
    return true;
  }

  bool cut(std::uint32_t victim) {
    const std::uint32_t host = cluster_->host_of(victim);
    if (Status s = network_->set_cut(host, true); !s.ok()) {
      give_up(s.describe());
      return false;
    }
    const std::uint64_t ns = absence_ns();
    note(FaultKind::kCut, victim, 0, monotonic_ns(), phase_of(victim),
         "cut host " + std::to_string(host) + " off, for " + std::to_string(ns / kMs) + " ms; " + where(victim));
    in(ns, [this, host] {
      if (Status s = network_->set_cut(host, false); !s.ok()) give_up(s.describe());
      say("host " + std::to_string(host) + " is on the network again");
    });
    return true;
  }

  bool kill_tracker() {
    if (!cluster_->tracker_runs()) return false;
    note(FaultKind::kTracker, 0, 0, monotonic_ns(), phase_of(0), "kill the tracker; " + where(0));
    cluster_->kill_tracker();
    in(draw_.below(3000) * kMs, [this] {
      if (Status s = cluster_->start_tracker(); !s.ok()) give_up(s.describe());
      say("the tracker is started again");
    });
    return true;
  }

  bool lose_disk(std::uint32_t victim) {
    const std::uint32_t host = cluster_->host_of(victim);
    const Phase phase = phase_of(victim);
    const std::string at = where(victim);
    cluster_->kill_host(host);
    cluster_->remove_data(host);
    // From here on: what a worker had done before its death is not taken for its recovery.
    note(FaultKind::kDisk, victim, 0, monotonic_ns(), phase,
         "host " + std::to_string(host) + " dies and loses its disk; " + at);
    in(draw_.below(2000) * kMs, [this, host] {
      if (Status s = cluster_->start_host(host); !s.ok()) give_up(s.describe());
      say("host " + std::to_string(host) + " is started again");
    });
    return true;
  }

  bool kill_all() {
    const Phase phase = phase_of(0);
    const std::string at = where(0);
    cluster_->kill_tracker();
    for (std::uint32_t h = 0; h < options_.hosts; h++) cluster_->kill_host(h);
    note(FaultKind::kAll, 0, 0, monotonic_ns(), phase, "everything dies; " + at);
    in(draw_.below(1000) * kMs, [this] {
      Status s = cluster_->start_tracker();
      for (std::uint32_t h = 0; h < options_.hosts && s.ok(); h++) s = cluster_->start_host(h);
      if (!s.ok()) give_up(s.describe());
      say("everything is started again");
    });
    return true;
  }

  // ---- the end ----------------------------------------------------------------------------------------------------

  void finish() {
    while (going() && (!later_.empty() || !all_there())) tick();
    if (!going()) return;
    const auto victim = static_cast<std::uint32_t>(draw_.below(shape_.ranks));
    finishing_ = true;
    calm_since_ns_ = monotonic_ns();
    std::ofstream(stop_path(folder_)) << "stop\n";
    // The launcher hears from who was killed then that the job has finished; with spares nobody else says so for its
    // rank.
    if (has(FaultKind::kKill) && options_.spares == 0 && draw_.chance(0.5)) {
      (void)obey(victim, Phase::kFinalize, kAnyLife, draw_.below(2000));
    }
    while (going() && !all_ended()) tick();
  }
  [[nodiscard]] bool all_ended() {
    bool ended = watch_->all_finished();
    for (std::uint32_t h = 0; h < options_.hosts; h++) ended = cluster_->ended(h).has_value() && ended;
    return ended;
  }

  ChaosReport conclude() {
    watch_->look();
    for (std::uint32_t h = 0; h < options_.hosts; h++) {
      const auto status = cluster_->ended(h);
      if (!failed_ && !interrupt_.load() && (!status || *status != 0)) {
        blame("the launcher of host " + std::to_string(h) + " ended with wait status " +
              std::to_string(status.value_or(-1)));
        failed_ = true;
      }
      for (const std::string& line :
           lines_of(cluster_->log_file("host-" + std::to_string(h)), " was killed by signal ")) {
        if (line.find(" was killed by signal 9 ") != std::string::npos) continue;
        blame(line + ", which no fault explains");
        report_.failures++;
      }
      report_.rollbacks = std::max(report_.rollbacks,
                                   lines_of(cluster_->log_file("host-" + std::to_string(h)), "job_rolled_back").size());
      report_.drained +=
          lines_of(cluster_->log_file("host-" + std::to_string(h)), "its place was needed elsewhere").size();
    }
    const std::vector<std::string> reasons = lines_of(cluster_->log_file("tracker"), "start again from ");
    for (std::size_t i = 0; i < std::min(reasons.size(), kMostPrinted); i++) blame(reasons[i]);
    report_.interrupted = interrupt_.load();
    // What did not die yet must not write any more.
    cluster_->kill_tracker();
    for (std::uint32_t h = 0; h < options_.hosts; h++) cluster_->kill_host(h);
    judge_->finish();
    if (!failed_ && !report_.interrupted) judge_->conclude();
    report_.divergences = judge_->divergences();
    for (const std::string& wrong : judge_->first()) blamed_.push_back("DIVERGENCE: " + wrong);
    for (std::uint32_t w = 0; w < shape_.ranks; w++) {
      report_.replayed += judge_->judge().progress(w).replayed;
      const Page& page = cluster_->page(w);
      report_.inputs_lent += page.inputs_lent;
      report_.finals_from_gpus += page.finals_from_gpus;
      report_.rounds_exchanged += page.rounds_exchanged;
    }
    if (!failed_ && !report_.interrupted && !judge_->judge().all_finished()) {
      report_.hangs++;
      blame("a worker has not finished");
    }
    report_.rounds = watch_->rounds();
    report_.lives = watch_->lives();
    report_.big_share = watch_->big_share();
    report_failures();
    if (failed_ && report_.hangs == 0) report_.failures++;
    for (const Fault& f : struck_) report_fault(f);
    std::ranges::sort(report_.stalls_ms);
    std::ranges::sort(report_.shrink_stalls_ms);
    std::ranges::sort(report_.takeovers_ms);
    std::ranges::sort(report_.takeovers_without_replay_ms);
    std::ranges::sort(report_.drains_ms);
    say_longest_stalls();
    for (auto& times : report_.noticed_ms) std::ranges::sort(times);
    return report_;
  }

  // Lives that ended with errors, and whether a fault explains them.
  void report_failures() {
    for (const auto& [code, count] : watch_->failures()) {
      report_.failed_lives += count;
      const bool expected = code == WARREN_CLOSED || code == WARREN_UNAVAILABLE || code == WARREN_PEER_LOST;
      const std::string what = std::to_string(count) + " lives ended with error code " + std::to_string(code);
      if (expected) {
        say(what);
        continue;
      }
      blame(what + ", which no fault explains");
      report_.failures += count;
    }
  }

  // Adds the cost of one fault to the report: the stall, and the replay.
  void report_fault(const Fault& f) {
    const std::optional<Phase> phase = f.phase ? f.phase : watch_->ended_in(f.victim, f.life);
    report_.faults[static_cast<std::size_t>(f.kind)][phase ? name_of(*phase) : "unknown"]++;
    if (const auto ms = f.stall ? watch_->stall_ms(*f.stall) : std::nullopt) {
      report_.stalls_ms.push_back(*ms);
      const bool without = (watch_->ended_with(*f.stall) >> f.victim & 1) == 0;
      const bool killed = f.kind == FaultKind::kKill || f.kind == FaultKind::kPair;
      if (shape_.shrinks() && killed && without) report_.shrink_stalls_ms.push_back(*ms);
      const auto before = watch_->process_of(f.victim, f.life), after = watch_->process_of(f.victim, f.life + 1);
      if (f.kind == FaultKind::kKill && before && after && *before != *after) {
        report_.takeovers_ms.push_back(*ms);
        // Of another fault, too, the stall would be, and the replay of one life alone.
        if (watch_->alone(*f.stall)) {
          report_.takeovers_without_replay_ms.push_back(*ms - watch_->replay_ms(f.victim, f.life + 1));
        }
      }
    }
    if (f.alone && f.noticed_ns != 0) {
      report_.noticed_ms[static_cast<std::size_t>(f.kind)].push_back(static_cast<double>(f.noticed_ns - f.at_ns) / 1e6);
    }
  }

  void say_longest_stalls() const {
    static constexpr std::size_t kMost = 8;
    std::vector<std::pair<double, const Fault*>> stalls;
    for (const Fault& f : struck_) {
      if (const auto ms = f.stall ? watch_->stall_ms(*f.stall) : std::nullopt) stalls.emplace_back(*ms, &f);
    }
    std::ranges::sort(stalls, std::ranges::greater(), &std::pair<double, const Fault*>::first);
    for (std::size_t i = 0; i < std::min(stalls.size(), kMost); i++) {
      const auto& [ms, fault] = stalls[i];
      const double replay_ms = fault->kind == FaultKind::kKill ? watch_->replay_ms(fault->victim, fault->life + 1) : 0;
      say("a stall of " + std::to_string(static_cast<std::uint64_t>(ms)) + " ms, of it replay " +
          std::to_string(static_cast<std::uint64_t>(replay_ms)) + ", after, at " +
          std::to_string((fault->at_ns - started_ns_) / kMs) + " ms: " + fault->text);
    }
  }

  const ChaosOptions& options_;
  const std::vector<FaultKind> faults_;
  Network* const network_;
  const std::atomic<bool>& interrupt_;
  Draw draw_;
  ProgramShape shape_;
  std::optional<Program> program_;
  std::string folder_;
  std::ifstream tracker_log_;
  std::unique_ptr<Cluster> cluster_;
  std::optional<Watch> watch_;
  std::unique_ptr<JudgeThread> judge_;
  using Actions = std::vector<std::pair<std::uint64_t, std::function<void()>>>;
  Actions later_;
  Actions returns_;  // mode shrink: of killed workers, which nobody waits for
  std::vector<Fault> struck_;
  std::vector<std::string> blamed_;  // why the run has failed
  ChaosReport report_;
  std::uint64_t started_ns_ = 0, calm_since_ns_ = 0;
  std::uint32_t lives_at_fault_ = 0;
  std::uint32_t planned_for_;  // how many workers the newest plan has
  bool over_ = false, failed_ = false, finishing_ = false;
};

}  // namespace

Result<ChaosReport> run_chaos(const ChaosOptions& asked, const std::atomic<bool>& interrupt) {
  ChaosOptions options = asked;
  std::vector<FaultKind> faults = options.faults;
  // Also in the run that is compared with.
  if (std::ranges::any_of(faults, [](FaultKind k) { return k == FaultKind::kDisk || k == FaultKind::kAll; })) {
    options.disk_log = true;
  }
  std::vector<std::string> unavailable;
  std::optional<Network> network;
  const bool cuts = std::ranges::find(faults, FaultKind::kCut) != faults.end();
  if (cuts || !options.weather.fine()) {
    auto made = Network::create(options.hosts, options.weather);
    if (made.ok()) {
      network.emplace(std::move(made).value());
    } else if (!options.weather.fine()) {
      return made.status().because_of_this(Code::kUnavailable,
                                           "hosts need networks of their own, with cables that delay");
    } else {
      std::fprintf(stderr, "WARNING: no host can be cut off on this system, so there are no faults of kind cut: %s\n",
                   made.status().describe().c_str());
      std::erase(faults, FaultKind::kCut);
      unavailable.emplace_back("cut");
      if (faults.empty()) return Status(Code::kUnavailable, "no fault is left to make");
    }
  }
  Network* const wires = network ? &*network : nullptr;
  double calm_rate = -1;
  if (options.goodput) {
    Run calm(options, {}, wires, interrupt);
    auto report = calm.run(std::clamp(options.seconds / 3, 2.0, 20.0));
    if (!report.ok() || !report.value().good()) return report;
    calm_rate = report.value().rounds_per_second;
    std::fprintf(stderr, "%.1f rounds a second without faults\n", calm_rate);
  }
  Run run(options, faults, wires, interrupt);
  auto report = run.run(options.seconds);
  if (!report.ok()) return report;
  report.value().unavailable = unavailable;
  if (calm_rate > 0) report.value().goodput = report.value().rounds_per_second / calm_rate;
  return report;
}

}  // namespace warren::chaos::process
