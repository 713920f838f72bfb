// Tracker's and workers' machines together, over a network that loses, repeats and reorders messages, with crashes on
// both sides; from a seed. First faults, then none: then the job must finish (I7). What must never happen is asserted
// at every effect.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

class World {
 public:
  World(std::uint64_t seed, bool foreign_ids) : random_(seed), foreign_ids_(foreign_ids) {
    workers_.resize(1 + random_() % 4);
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
    while (now_ < safety_end && !::testing::Test::HasFailure()) step();
    faults_ = false;
    history_.clear();
    const std::int64_t liveness_end = now_ + 60'000;
    while (!done() && now_ < liveness_end && !::testing::Test::HasFailure()) step();
    EXPECT_TRUE(done()) << "not finished 60 s after the last fault";
  }
  const std::string& transcript() const { return transcript_; }

 private:
  struct Worker {
    std::string id;
    std::optional<WorkerMachine> machine;
    std::uint64_t life = 0;
    std::int64_t respawn_at = 0;
    std::int64_t stop_at = -1;  // the data path has stopped then
    Epoch stop_epoch;
    bool done = false;
    std::uint64_t epoch = 0;
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

  void boot_tracker() {
    if (tracker_) {
      record_transitions("tracker", TrackerMachine::transition_names(), tracker_->transition_counts());
    }
    auto made = TrackerMachine::make({"j", Incarnation(++tracker_lives_), plan_simply}, disk_, TimeMs{now_});
    ASSERT_TRUE(made.ok()) << made.status().describe();
    tracker_.emplace(std::move(made).value());
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
        ASSERT_GE(r.epoch(), persisted_epoch_) << "epochs only rise (I6)";
        persisted_epoch_ = r.epoch();
        disk_ = p->bytes;
        // A crash between two effects: what comes after them has not happened.
        if (faults_ && chance(2)) {
          boot_tracker();
          return;
        }
      } else if (std::holds_alternative<tracker_effect::Forget>(effect)) {
        disk_.clear();
      } else if (const auto* s = std::get_if<tracker_effect::Send>(&effect)) {
        check_announcement(s->envelope);
        post(false, s->envelope);
      }
    }
    tracker_->check_invariants();
  }

  void check_announcement(const wire::Envelope& e) {
    if (e.has_interrupt()) {
      ASSERT_LE(e.interrupt().epoch(), persisted_epoch_) << "persisted before announced";
    }
    if (!e.has_plan()) return;
    ASSERT_LE(e.plan().epoch(), persisted_epoch_) << "persisted before announced";
    const std::string bytes = e.plan().SerializeAsString();
    const auto [known, added] = plans_.emplace(e.plan().epoch(), bytes);
    ASSERT_EQ(known->second, bytes) << "a number names one plan for ever";
    if (!added) return;
    ASSERT_EQ(plans_.rbegin()->first, e.plan().epoch()) << "epochs only rise (I6)";
    for (const wire::Member& m : e.plan().members()) {
      ASSERT_TRUE(planned_lives_.insert(m.incarnation()).second) << "a life is in one plan";
      const auto [rank, first] = rank_of_.emplace(m.worker_id(), m.rank());
      if (!foreign_ids_) {
        ASSERT_EQ(rank->second, m.rank()) << "a worker keeps its rank over its lives";
      }
    }
  }

  void end_life(Worker& w) {
    if (!w.machine) return;
    record_transitions("worker", WorkerMachine::transition_names(), w.machine->transition_counts());
    w.machine.reset();
    w.stop_at = -1;
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
        post(true, s->envelope);
      } else if (const auto* i = std::get_if<worker_effect::Install>(&effect)) {
        ASSERT_TRUE(plans_.contains(i->plan.epoch()));
        ASSERT_GT(i->plan.epoch(), w.epoch) << "a worker's epochs only rise (I6)";
        w.epoch = i->plan.epoch();
      } else if (const auto* stop = std::get_if<worker_effect::StopDataPath>(&effect)) {
        w.stop_at = now_ + (faults_ ? below(1500) : 1);
        w.stop_epoch = stop->epoch;
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
      WorkerMachine::Options options;
      options.job = "j";
      options.self = Incarnation(w.life = ++lives_);
      options.join = join(w.id, "h", static_cast<std::uint32_t>(workers_.size()));
      options.join.mutable_settings()->set_round_timeout_ms(1000);
      options.join_timeout_ms = 8000;
      w.machine.emplace(std::move(options));
      w.epoch = 0;
      w.machine->start(TimeMs{now_}, effects);
      return carry_out(w, effects);
    }
    if (w.stop_at >= 0 && now_ >= w.stop_at) {
      w.stop_at = -1;
      w.machine->on_stopped(w.stop_epoch, {}, TimeMs{now_}, effects);
    } else {
      w.machine->on_tick(TimeMs{now_}, effects);
      if (!faults_ && w.machine->state() == WorkerMachine::State::kMember) {
        w.machine->leave(true, {}, TimeMs{now_}, effects);
      }
    }
    carry_out(w, effects);
  }

  void misbehave() {
    if (chance(1) && chance(30)) boot_tracker();
    if (!history_.empty() && chance(5)) {
      Packet old = history_[static_cast<std::size_t>(below(static_cast<std::int64_t>(history_.size())))];
      old.at = now_ + below(50);
      old.order = ++order_;
      network_.push_back(old);
    }
    Worker& w = workers_[static_cast<std::size_t>(below(static_cast<std::int64_t>(workers_.size())))];
    if (!w.machine || !chance(4)) return;
    std::vector<WorkerEffect> effects;
    const Rank peer(static_cast<std::int32_t>(below(static_cast<std::int64_t>(workers_.size()))));
    switch (random_() % 5) {
      case 0: return end_life(w);  // killed
      case 1: w.machine->leave(false, "tired", TimeMs{now_}, effects); break;
      case 2: w.machine->on_link_broken(w.machine->epoch(), peer, "reset", TimeMs{now_}, effects); break;
      case 3:
        w.machine->on_round_failed(w.machine->epoch(), Status(Code::kCorrupt, "damaged"), TimeMs{now_}, effects);
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
  bool faults_ = true;
  std::int64_t now_ = 0;
  std::uint64_t order_ = 0, lives_ = 0, foreigners_ = 0, tracker_lives_ = 1'000'000;
  std::vector<Worker> workers_;
  std::optional<TrackerMachine> tracker_;
  std::vector<Packet> network_, history_;
  std::string disk_, transcript_;
  std::uint64_t persisted_epoch_ = 0;
  std::map<std::uint64_t, std::string> plans_;
  std::set<std::uint64_t> planned_lives_;
  std::map<std::string, std::uint32_t> rank_of_;
};

TEST(Random, FaultsBreakNoRuleAndTheJobFinishesOnceTheyStop) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    World world(seed, seed % 2 == 0);
    world.run();
    ASSERT_FALSE(HasFailure()) << "seed " << seed << "\n"
                               << world.transcript().substr(world.transcript().size() -
                                                            std::min<std::size_t>(6000, world.transcript().size()));
  }
}

TEST(Random, TheSameSeedGivesTheSameEffects) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    World a(seed, true), b(seed, true);
    a.run();
    b.run();
    ASSERT_EQ(a.transcript(), b.transcript()) << "seed " << seed;
    ASSERT_FALSE(a.transcript().empty());
  }
}

}  // namespace
}  // namespace warren::test
