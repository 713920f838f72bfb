// Tracker's and workers' machines together, over a network that loses, repeats and reorders messages, with crashes on
// both sides; from a seed. First faults, then none: then the job must finish (I7). What must never happen is asserted
// at every effect. Where results are logged, the programs count rounds, take checkpoints, and start again from what the
// tracker says is committed.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "recovery/wire/plan_changes.h"
#include "tests/recovery/script.h"
#include "tests/sanitized.h"

namespace warren::test {
namespace {

class World {
 public:
  World(std::uint64_t seed, bool foreign_ids, std::uint32_t replicas, bool resizes = false, bool spares = false)
      : random_(seed), foreign_ids_(foreign_ids), replicas_(replicas), resizes_(resizes), spares_(spares) {
    workers_.resize(1 + random_() % 4);
    world_size_ = static_cast<std::uint32_t>(workers_.size());
    if (spares_) workers_.resize(workers_.size() + 1 + random_() % 3);
    for (std::size_t i = 0; i < workers_.size(); ++i) workers_[i].id = "w" + std::to_string(i);
    boot_tracker();
  }
  ~World() {
    for (Worker& w : workers_) end_life(w);
    record_transitions("tracker", TrackerMachine::transition_names(), tracker_->transition_counts());
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void run() {
    faults_ = true;
    const std::int64_t safety_end = 20'000;
    while (now_ < safety_end && !begun_anew_ && !::testing::Test::HasFailure()) step();
    faults_ = false;
    history_.clear();
    const std::int64_t liveness_end = now_ + 60'000;
    while (!done() && !begun_anew_ && now_ < liveness_end && !::testing::Test::HasFailure()) step();
    EXPECT_TRUE(done() || begun_anew_) << "not finished 60 s after the last fault";
  }
  const std::string& transcript() const { return transcript_; }
  // Where results are logged: commits, and plans with survivors.
  std::uint64_t commits() const { return commits_; }
  std::uint64_t resumed() const { return resumed_; }
  std::uint64_t disks_lost() const { return disks_lost_; }
  bool begun_anew() const { return begun_anew_; }
  std::uint64_t spares_used() const { return tracker_->view(TimeMs{now_}).spares_used + spares_used_; }
  std::uint64_t resized() const { return resized_; }  // plans of another size than the one before

 private:
  struct Worker {
    std::string id;
    std::optional<WorkerMachine> machine;
    std::uint64_t life = 0;
    std::int64_t respawn_at = 0;
    std::int64_t stop_at = -1;  // the data path has stopped then
    Generation stop_generation;
    std::int64_t look_at = -1;  // a spare that was called has looked at its host then
    Generation called;
    bool done = false;
    std::uint64_t generation = 0;
    // The program, where results are logged.
    bool loading = false, loaded = false;
    std::uint32_t timeline = 0;
    std::uint64_t version = 0, rounds = 0;     // it is in round `rounds` of `version`
    std::uint64_t pending = 0, committed = 0;  // a checkpoint that is not committed yet; the newest that is
  };
  // What a life has said of what it holds; void once it asks where to start from.
  struct Said {
    std::uint64_t vote = 0, vote_generation = 0;
    std::vector<wire::Position> report;
  };
  struct Packet {
    std::int64_t at;
    std::uint64_t order;
    bool to_tracker;
    wire::Envelope envelope;
  };

  bool chance(int percent) { return static_cast<int>(random_() % 100) < percent; }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }
  bool done() const {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.done; });
  }

  // The tracker dies, and its disk with it. Those who know the job live on, for as long as it takes to tell.
  void lose_disk() {
    const bool all = std::all_of(workers_.begin(), workers_.end(), [&](const Worker& w) {
      return w.machine && w.generation == newest_plan_.generation() &&
             w.machine->generation() == Generation(w.generation) && w.machine->state() != WorkerMachine::State::kFailed;
    });
    if (!all || newest_plan_.generation() == 0 || finished_ || tracker_->state() != TrackerMachine::State::kRunning)
      return;
    disk_.clear();
    persisted_generation_ = 0;
    committed_ = 0;
    for (const Worker& w : workers_) committed_ = std::max(committed_, w.committed);
    boot_tracker();
    spared_until_ = now_ + 10'000;
    ++disks_lost_;
  }

  // All end, and so many others start: they say that they want a world of their own size.
  void resize() {
    for (Worker& w : workers_) end_life(w);
    workers_.clear();
    workers_.resize(1 + random_() % 6);
    world_size_ = static_cast<std::uint32_t>(workers_.size());
    for (std::size_t i = 0; i < workers_.size(); ++i) {
      workers_[i].id = "w" + std::to_string(i);
      workers_[i].respawn_at = now_ + below(4000);
    }
    resize_ = true;
  }

  void boot_tracker() {
    if (tracker_) {
      record_transitions("tracker", TrackerMachine::transition_names(), tracker_->transition_counts());
      spares_used_ = spares_used();
    }
    auto made = TrackerMachine::make({"j", Incarnation(++tracker_lives_), plan_simply}, disk_, TimeMs{now_});
    ASSERT_TRUE(made.ok()) << made.status().describe();
    tracker_.emplace(std::move(made).value());
    invariants_ = {};
    // Its connections died with it, and what was under way on them.
    network_.clear();
    history_.clear();
  }

  void post(bool to_tracker, const wire::Envelope& e) {
    if (faults_ && chance(10)) return;
    const int copies = faults_ && chance(5) ? 2 : 1;
    for (int i = 0; i < copies; ++i) {
      const std::int64_t delay = faults_ ? (chance(3) ? below(3000) : below(20)) : 1;
      network_.push_back({now_ + delay, ++order_, to_tracker, e});
    }
    if (faults_ && history_.size() < 500) history_.push_back({0, 0, to_tracker, e});
  }

  void carry_out(const std::vector<TrackerEffect>& effects) {
    transcript_ += render(effects);
    for (const TrackerEffect& effect : effects) {
      if (const auto* p = std::get_if<tracker_effect::Persist>(&effect)) {
        wire::JobRecord r;
        ASSERT_TRUE(r.ParseFromString(p->bytes));
        ASSERT_GE(r.generation(), persisted_generation_) << "generations only rise (I6)";
        check_record(r);
        persisted_generation_ = r.generation();
        disk_ = p->bytes;
        // A crash between two effects: what comes after them has not happened.
        if (faults_ && chance(2)) {
          boot_tracker();
          return;
        }
      } else if (const auto* log = std::get_if<tracker_effect::Log>(&effect)) {
        // As rare as a worker that loses every message for a round timeout. The job begins anew, and what it names is
        // named again.
        if (log->event.name == "rebuild_failed") begun_anew_ = true;
        if (log->event.name == "rebuilt") spared_until_ = now_;
      } else if (std::holds_alternative<tracker_effect::Forget>(effect)) {
        disk_.clear();
      } else if (const auto* s = std::get_if<tracker_effect::Send>(&effect)) {
        check_announcement(envelope_of(*s));
        post(false, envelope_of(*s));
      }
    }
    invariants_.look(*tracker_);
  }

  void check_record(const wire::JobRecord& r) {
    if (r.finished()) {
      finished_ = true;
      return;
    }
    ASSERT_GE(r.timeline(), timeline_) << "timelines only rise";
    timeline_ = r.timeline();
    ASSERT_GE(r.committed_version(), committed_) << "versions only grow (I5)";
    if (r.plan().generation() > newest_plan_.generation()) check_new_plan(r.plan());
    if (r.committed_version() == committed_) return;
    committed_ = r.committed_version();
    ++commits_;
    ASSERT_EQ(r.committed_timeline(), r.timeline());
    for (const wire::Member& m : r.plan().members()) {
      const Said& said = said_[m.incarnation()];
      ASSERT_EQ(said.vote, committed_) << "all have voted (I5)";
      ASSERT_EQ(said.vote_generation, r.plan().generation()) << "in the generation whose plan is in force";
    }
  }

  void check_new_plan(const wire::Plan& plan) {
    if (newest_plan_.generation() != 0 && plan.members_size() != newest_plan_.members_size()) {
      ++resized_;
      rank_of_.clear();
      for (const wire::Member& m : plan.members()) ASSERT_TRUE(m.fresh()) << "nobody goes on in another world";
      ASSERT_EQ(plan.committed_version(), committed_) << "what was committed is kept (I5)";
    }
    ASSERT_EQ(plan.members_size(), static_cast<int>(plan.settings().world_size()));
    if (replicas_ != 0) check_recovery(plan, newest_plan_);
    std::map<std::uint64_t, std::uint64_t> before;  // since when, by life
    for (const wire::Member& m : newest_plan_.members()) before[m.incarnation()] = m.since();
    newest_plan_ = plan;
    for (const wire::Member& m : plan.members()) {
      const bool first_plan = planned_lives_.insert(m.incarnation()).second;
      ASSERT_EQ(m.fresh(), first_plan) << "a life is in one plan, unless it survives";
      ASSERT_TRUE(m.fresh() || before.contains(m.incarnation())) << "who survives was there before";
      ASSERT_EQ(m.since(), first_plan ? plan.generation() : before[m.incarnation()]) << "of its first plan, for good";
    }
  }

  void check_recovery(const wire::Plan& plan, const wire::Plan& before) {
    std::size_t survivors = 0;
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::uint64_t> frontier;
    for (const wire::Position& p : plan.frontier()) frontier[{p.group(), p.version()}] = p.rounds();
    const auto covers = [&](const wire::Position& p) {
      const bool matters = p.version() == 0 || p.version() >= plan.committed_version();
      return !matters || p.rounds() <= frontier[{p.group(), p.version()}];
    };
    for (const wire::Member& m : plan.members()) {
      if (m.fresh()) continue;
      ++survivors;
      for (const wire::Position& p : said_[m.incarnation()].report) {
        ASSERT_TRUE(covers(p)) << render(p) << " is missing in " << render_frontier(plan);
      }
    }
    if (before.generation() == 0) return;
    ASSERT_EQ(plan.timeline(), before.timeline() + (survivors == 0 ? 1 : 0));
    if (survivors == 0) {
      ASSERT_EQ(plan.frontier_size(), 0);
    }
    // What only lives that are gone had seen, and the log proved not to hold, does not count as completed any more.
    const bool distrusted = std::exchange(distrusted_, false);
    if (survivors != 0) {
      ++resumed_;
      if (distrusted) return;
      for (const wire::Position& p : before.frontier()) {
        ASSERT_TRUE(covers(p)) << render(p) << " was completed (I1), and is missing in " << render_frontier(plan);
      }
    }
  }
  bool distrusted_ = false;
  static std::string render_frontier(const wire::Plan& plan) {
    std::string text = "the frontier";
    for (const wire::Position& p : plan.frontier()) text += " " + render(p);
    return text;
  }

  void check_announcement(const wire::Envelope& e) {
    if (e.has_committed()) {
      ASSERT_LE(e.committed().version(), committed_) << "persisted before announced";
    }
    if (e.has_loaded()) {
      ASSERT_EQ(e.loaded().version(), committed_) << "all load the same (I5)";
    }
    if (e.has_interrupt()) {
      if (e.interrupt().reason().find("only ranks which are gone have seen") != std::string::npos) distrusted_ = true;
      ASSERT_LE(e.interrupt().generation(), persisted_generation_) << "persisted before announced";
    }
    if (!e.has_plan()) return;
    ASSERT_LE(e.plan().generation(), persisted_generation_) << "persisted before announced";
    wire::Plan plan = e.plan();
    if (plan.base_generation() != 0) {
      wire::Plan base;
      ASSERT_TRUE(plans_.contains(plan.base_generation()) && base.ParseFromString(plans_[plan.base_generation()]))
          << "somebody has it";
      auto whole = with_changes(base, plan);
      ASSERT_TRUE(whole.ok()) << whole.status().describe();
      plan = std::move(whole).value();
    }
    const std::string bytes = plan.SerializeAsString();
    const auto [known, added] = plans_.emplace(plan.generation(), bytes);
    ASSERT_EQ(known->second, bytes) << "a number names one plan for ever";
    if (!added) return;
    ASSERT_EQ(plans_.rbegin()->first, e.plan().generation()) << "generations only rise (I6)";
    for (const wire::Member& m : plan.members()) {
      const auto [rank, first] = rank_of_.emplace(m.worker_id(), m.rank());
      if (!foreign_ids_ && !spares_) {
        ASSERT_EQ(rank->second, m.rank()) << "a worker keeps its rank over its lives";
      }
    }
  }

  void end_life(Worker& w) {
    if (!w.machine) return;
    record_transitions("worker", WorkerMachine::transition_names(), w.machine->transition_counts());
    w.machine.reset();
    w.loading = w.loaded = false;
    w.version = w.rounds = w.pending = w.committed = 0;
    w.stop_at = w.look_at = -1;
    w.respawn_at = now_ + (faults_ ? below(4000) : 100);
    // Its scheduler may give the next process another name.
    if (foreign_ids_ && faults_ && chance(30)) w.id = "x" + std::to_string(++foreigners_);
  }

  void carry_out(Worker& w, const std::vector<WorkerEffect>& effects) {
    transcript_ += render(effects);
    w.machine->check_invariants();
    bool ended = false;
    for (const WorkerEffect& effect : effects) {
      if (const auto* s = std::get_if<worker_effect::Send>(&effect)) {
        Said& said = said_[w.life];
        // What is committed already, and said again to another tracker, takes nothing back.
        const auto& vote = s->envelope.vote();
        if (s->envelope.has_vote() &&
            std::pair(vote.generation(), vote.version()) >= std::pair(said.vote_generation, said.vote)) {
          said.vote = vote.version();
          said.vote_generation = vote.generation();
        }
        if (s->envelope.has_load()) said.vote = 0;
        if (s->envelope.has_report()) {
          said.report.assign(s->envelope.report().positions().begin(), s->envelope.report().positions().end());
        }
        post(true, s->envelope);
      } else if (const auto* i = std::get_if<worker_effect::Install>(&effect)) {
        ASSERT_TRUE(plans_.contains(i->plan.generation()));
        ASSERT_GT(i->plan.generation(), w.generation) << "a worker's generations only rise (I6)";
        w.generation = i->plan.generation();
        if (w.loaded) {
          ASSERT_EQ(w.timeline, i->plan.timeline()) << "who goes on does so in its timeline";
        }
        w.timeline = i->plan.timeline();
      } else if (const auto* l = std::get_if<worker_effect::Loaded>(&effect)) {
        w.loaded = true;
        w.version = l->committed ? l->version.value : 1;
        w.rounds = 0;
        w.committed = std::max(w.committed, l->version.value);
      } else if (const auto* c = std::get_if<worker_effect::Committed>(&effect)) {
        w.committed = c->version.value;
        if (w.pending <= w.committed) w.pending = 0;
      } else if (const auto* stop = std::get_if<worker_effect::StopDataPath>(&effect)) {
        w.stop_at = now_ + (faults_ ? below(1500) : 1);
        w.stop_generation = stop->generation;
      } else if (const auto* call = std::get_if<worker_effect::Called>(&effect)) {
        w.look_at = now_ + (faults_ ? below(300) : 1);
        w.called = call->generation;
      } else if (std::holds_alternative<worker_effect::Fail>(effect)) {
        ended = true;
      } else if (std::holds_alternative<worker_effect::Finished>(effect)) {
        w.done = true;
      }
    }
    if (ended || w.done) end_life(w);
  }

  void step() {
    // To the next thing that happens.
    std::int64_t next = now_ + 200;
    for (const Packet& p : network_) next = std::min(next, p.at);
    if (const auto d = tracker_->next_deadline()) next = std::min(next, d->value);
    for (const Worker& w : workers_) {
      if (w.machine) {
        if (const auto d = w.machine->next_deadline()) next = std::min(next, d->value);
        if (w.stop_at >= 0) next = std::min(next, w.stop_at);
        if (w.look_at >= 0) next = std::min(next, w.look_at);
      } else if (!w.done) {
        next = std::min(next, w.respawn_at);
      }
    }
    now_ = std::max(now_, next);
    deliver();
    if (::testing::Test::HasFailure()) return;
    std::vector<TrackerEffect> effects;
    tracker_->on_tick(TimeMs{now_}, effects);
    carry_out(effects);
    for (Worker& w : workers_) live(w);
    if (faults_) misbehave();
  }

  void deliver() {
    std::vector<Packet> due;
    for (std::size_t i = 0; i < network_.size();) {
      if (network_[i].at > now_) {
        ++i;
        continue;
      }
      due.push_back(network_[i]);
      network_.erase(network_.begin() + static_cast<std::ptrdiff_t>(i));
    }
    std::sort(due.begin(), due.end(),
              [](const Packet& a, const Packet& b) { return std::tie(a.at, a.order) < std::tie(b.at, b.order); });
    for (const Packet& p : due) {
      const Side from = p.to_tracker ? Side::kWorker : Side::kTracker;
      const std::string bytes = encode(p.envelope, from);
      const auto decoded = decode_envelope(std::as_bytes(std::span(bytes)), from);
      ASSERT_TRUE(decoded.ok()) << decoded.status().describe();
      if (p.to_tracker) {
        std::vector<TrackerEffect> effects;
        tracker_->on_message(decoded.value(), TimeMs{now_}, effects);
        carry_out(effects);
        continue;
      }
      for (Worker& w : workers_) {
        if (!w.machine || w.life != p.envelope.receiver()) continue;
        std::vector<WorkerEffect> effects;
        w.machine->on_message(decoded.value(), TimeMs{now_}, effects);
        carry_out(w, effects);
      }
    }
  }

  void live(Worker& w) {
    std::vector<WorkerEffect> effects;
    if (!w.machine) {
      if (w.done || now_ < w.respawn_at) return;
      if (finished_) {
        // It had called finalize, and died before it heard that all have.
        w.done = true;
        return;
      }
      WorkerMachine::Options options;
      options.job = "j";
      options.self = Incarnation(w.life = ++lives_);
      const auto number = static_cast<std::size_t>(&w - workers_.data());
      const std::string host = !spares_ ? "h" : "h" + std::to_string(number % 3);
      options.join = join(w.id, host, world_size_, replicas_);
      options.join.set_waits(spares_);
      options.join.set_spare(number >= world_size_);
      options.join.mutable_settings()->set_round_timeout_ms(1000);
      options.join.set_resize(resize_);
      options.join_timeout_ms = 8000;
      w.machine.emplace(std::move(options));
      w.generation = 0;
      w.machine->start(TimeMs{now_}, effects);
      return carry_out(w, effects);
    }
    if (w.stop_at >= 0 && now_ >= w.stop_at) {
      w.stop_at = -1;
      w.machine->on_stopped(w.stop_generation, standing(w), TimeMs{now_}, effects);
    } else if (w.look_at >= 0 && now_ >= w.look_at) {
      w.look_at = -1;
      w.machine->looked(w.called, {}, {}, TimeMs{now_}, effects);
    } else {
      w.machine->on_tick(TimeMs{now_}, effects);
      if (w.machine->state() == WorkerMachine::State::kMember) compute(w, effects);
    }
    carry_out(w, effects);
  }

  static constexpr std::uint64_t kRounds = 3, kLastVersion = 5;  // of a program: rounds in each version

  static WorkerMachine::Standing standing(const Worker& w) {
    WorkerMachine::Standing s;
    s.version = Version(w.version);
    if (!w.loaded) return s;
    for (std::uint64_t v = std::max<std::uint64_t>(w.committed, 1); v < w.version; ++v) {
      s.positions.push_back(position(v, kRounds, true));
    }
    s.positions.push_back(position(w.version, w.rounds));
    if (w.rounds < kRounds) {
      s.positions.back().add_final()->set_begin(w.life);
      s.positions.back().mutable_final(0)->set_end(w.life + 2);
    }
    return s;
  }

  // One step of the program.
  void compute(Worker& w, std::vector<WorkerEffect>& effects) {
    if (replicas_ == 0) {
      if (!faults_) w.machine->finalize(Version(w.version), TimeMs{now_}, effects);
      return;
    }
    if (!w.loading) {
      w.loading = true;
      w.machine->load(TimeMs{now_}, effects);
    } else if (w.loaded && w.rounds < kRounds && chance(faults_ ? 20 : 80)) {
      ++w.rounds;
    } else if (w.loaded && w.rounds == kRounds && w.pending == 0) {
      if (w.version < kLastVersion) {
        w.pending = ++w.version;
        w.rounds = 0;
      } else if (!faults_ || (!spares_ && &w != workers_.data() && chance(10))) {
        // Under faults one stays behind: a job that is finished takes nobody back.
        return w.machine->finalize(Version(w.version), TimeMs{now_}, effects);
      }
    }
    // Its duties become durable, in this generation anew.
    const Said& said = said_[w.life];
    if (w.pending != 0 && (said.vote != w.pending || said.vote_generation != w.generation) && chance(30)) {
      w.machine->vote({Generation(w.generation),
                       Timeline(w.timeline),
                       Version(w.pending),
                       {},
                       {position(w.pending - 1, kRounds, true)},
                       {}},
                      TimeMs{now_}, effects);
    }
  }

  void misbehave() {
    if (now_ < spared_until_) return;
    if (chance(1) && chance(30)) boot_tracker();
    if (resizes_ && chance(1) && chance(10)) return resize();
    if (replicas_ != 0 && chance(1) && chance(30)) return lose_disk();
    if (!history_.empty() && chance(5)) {
      Packet old = history_[static_cast<std::size_t>(below(static_cast<std::int64_t>(history_.size())))];
      old.at = now_ + below(50);
      old.order = ++order_;
      network_.push_back(old);
    }
    Worker& w = workers_[static_cast<std::size_t>(below(static_cast<std::int64_t>(workers_.size())))];
    if (!w.machine || !chance(4)) return;
    std::vector<WorkerEffect> effects;
    const Rank peer(static_cast<std::int32_t>(below(world_size_)));
    switch (random_() % (replicas_ == 0 ? 5 : 6)) {
      case 0: return end_life(w);  // killed
      case 1: w.machine->leave("tired", TimeMs{now_}, effects); break;
      case 2: w.machine->on_link_broken(w.machine->generation(), peer, "reset", TimeMs{now_}, effects); break;
      case 3:
        w.machine->on_round_failed(w.machine->generation(), Status(Code::kCorrupt, "damaged"), TimeMs{now_}, effects);
        break;
      case 5:
        if (chance(20)) {
          WorkerMachine::Gap gap{"gone", {}, chance(30)};
          if (chance(50)) gap.setup = setup(0, 7, true);
          w.machine->on_log_gap(w.machine->generation(), gap, TimeMs{now_}, effects);
        }
        break;
      default:
        WorkerMachine::Progress progress;
        progress.rounds.push_back(round(1, chance(95) ? 8 : 9, {}, 0));
        w.machine->set_progress(progress);
    }
    carry_out(w, effects);
  }

  std::mt19937_64 random_;
  bool foreign_ids_;
  std::uint32_t replicas_;
  bool resizes_, resize_ = false;
  bool spares_;
  std::uint32_t world_size_ = 0;
  bool faults_ = true;
  std::int64_t now_ = 0;
  std::uint64_t order_ = 0, lives_ = 0, foreigners_ = 0, tracker_lives_ = 1'000'000;
  std::vector<Worker> workers_;
  std::optional<TrackerMachine> tracker_;
  TrackerInvariants invariants_;
  std::vector<Packet> network_, history_;
  std::string disk_, transcript_;
  std::uint64_t persisted_generation_ = 0;
  std::map<std::uint64_t, std::string> plans_;
  std::set<std::uint64_t> planned_lives_;
  std::map<std::string, std::uint32_t> rank_of_;
  std::map<std::uint64_t, Said> said_;  // by life
  wire::Plan newest_plan_;
  bool finished_ = false;
  std::int64_t spared_until_ = 0;
  bool begun_anew_ = false;
  std::uint64_t disks_lost_ = 0;
  std::uint64_t committed_ = 0;
  std::uint32_t timeline_ = 0;
  std::uint64_t commits_ = 0, resumed_ = 0, resized_ = 0, spares_used_ = 0;
};

// Each takes milliseconds, and under a sanitizer fifteen times as long.
constexpr std::uint64_t kSeeds = kAddressSanitized ? 100 : 1000;

std::string tail(const World& world) {
  const std::string& all = world.transcript();
  return all.substr(all.size() - std::min<std::size_t>(6000, all.size()));
}

TEST(Random, FaultsBreakNoRuleAndTheJobFinishesOnceTheyStop) {
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World world(seed, seed % 2 == 0, 0);
    world.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << tail(world);
  }
}

TEST(Random, NothingThatIsLoggedOrCommittedIsLost) {
  std::uint64_t commits = 0, resumed = 0, disks_lost = 0, begun_anew = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World world(seed, seed % 2 == 0, 2);
    world.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << tail(world);
    commits += world.commits();
    resumed += world.resumed();
    disks_lost += world.disks_lost();
    begun_anew += world.begun_anew() ? 1 : 0;
  }
  EXPECT_GT(commits, 3 * kSeeds);
  EXPECT_GT(resumed, 2 * kSeeds);
  EXPECT_GT(disks_lost, kSeeds * 3 / 10);
  EXPECT_LT(begun_anew, disks_lost / 20);
}

// All workers end now and then, and another number of them goes on.
TEST(Random, AJobOfAnotherSizeGoesOnFromWhatIsCommitted) {
  std::uint64_t commits = 0, resized = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    World world(seed, seed % 2 == 0, seed % 4 < 2 ? 2 : 0, true);
    world.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << tail(world);
    commits += world.commits();
    resized += world.resized();
  }
  EXPECT_GT(commits, kSeeds);
  EXPECT_GT(resized, kSeeds * 3 / 10);
}

// Workers beyond the world's size take the places of those that are lost, who wait in turn when they come back.
TEST(Random, SparesTakePlacesAndNothingThatIsLoggedIsLost) {
  std::uint64_t commits = 0, resumed = 0, used = 0;
  for (std::uint64_t seed = 1; seed <= kSeeds; ++seed) {
    // Under its old name, each: a job of spares alone, none of which has a place, waits for those who have one.
    World world(seed, false, seed % 8 == 7 ? 0 : 1 + seed % 2, false, true);
    world.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n" << tail(world);
    commits += world.commits();
    resumed += world.resumed();
    used += world.spares_used();
  }
  EXPECT_GT(commits, kSeeds);
  EXPECT_GT(resumed, kSeeds);
  EXPECT_GT(used, kSeeds * 4 / 5);
}

TEST(Random, TheSameSeedGivesTheSameEffects) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World a(seed, true, seed % 2 == 0 ? 2 : 0), b(seed, true, seed % 2 == 0 ? 2 : 0);
    a.run();
    b.run();
    ASSERT_EQ(a.transcript(), b.transcript()) << "seed " << seed;
    ASSERT_FALSE(a.transcript().empty());
  }
}

}  // namespace
}  // namespace warren::test
