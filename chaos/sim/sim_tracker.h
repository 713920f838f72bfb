// The tracker's shell in virtual time: the machine that runs in production, a journal on a disk that may fail, and a
// process that may die between any two effects.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/judge.h"
#include "chaos/sim/world.h"
#include "recovery/tracker/invariants.h"
#include "recovery/tracker/tracker_machine.h"
#include "storage/fake_journal.h"

namespace warren::chaos {

// Of TrackerMachine::Options. A 64th of production's: simulated jobs have a few hundred workers at most, and their
// plans take turns, too. A plan of 260 members takes some 4 KB, so half of such a job's plans find room at once.
inline constexpr std::size_t kMostPlanBytesOut = std::size_t{512} << 10;

class SimTracker {
 public:
  struct Links {
    std::function<void(std::size_t life, std::string bytes)> send;
    std::function<void()> connections_lost;
    // Whether what a message says of its sender is true; a violation otherwise.
    std::function<void(const wire::Envelope&)> check_claim;
    std::function<void(const std::string& record)> stored;
    std::function<void()> died;  // between two effects
  };
  SimTracker(World& world, Judge& judge, Links links, std::string job, std::int64_t round_timeout_ms);
  ~SimTracker();
  SimTracker(const SimTracker&) = delete;
  SimTracker& operator=(const SimTracker&) = delete;

  void start();
  void crash();
  // The disk with the journal has gone; the tracker must be down.
  void lose_journal() { disk_->durable.clear(); }
  // Its records so far, in the order of their writes; the newest of them is the journal's.
  [[nodiscard]] const std::deque<std::string>& records() const { return records_; }
  // A copy of the disk with the journal is put in its place, from when this was the newest; the tracker must be down.
  void restore(std::size_t record);
  [[nodiscard]] bool has_journal() const { return durable() != nullptr; }
  [[nodiscard]] const std::string* durable() const;  // the job's record
  // The journal holds a plan of a job that has not finished.
  [[nodiscard]] bool has_plan() const;
  // And it is in force, or interrupted so that it may go on.
  [[nodiscard]] bool may_resume() const;
  void stand_still(Micros for_us);
  [[nodiscard]] bool running() const { return running_; }
  // Whether it counts on what this life's host holds; as far as it is there to be asked.
  [[nodiscard]] bool counts_on(Incarnation life) const { return !machine_ || machine_->counts_on(life); }
  void receive(std::size_t life, const std::string& bytes);
  // Since it was started.
  [[nodiscard]] bool has_heard(Incarnation life) const { return routes_.contains(life); }
  void fail_writes(std::size_t count) { disk_->fail_writes += count; }
  void mend_disk() { disk_->fail_writes = 0; }

  // Dies before the effect of this number, counted over its lives, and comes back: soon, or after this time.
  void crash_before_effect(std::uint64_t number, std::optional<Micros> away_us) {
    crash_before_effect_ = number;
    away_us_ = away_us;
  }
  [[nodiscard]] std::uint64_t effects() const { return effects_; }
  [[nodiscard]] bool job_forgotten() const { return forgotten_; }
  // Over all its lives.
  [[nodiscard]] std::vector<std::uint64_t> transition_counts() const;

 private:
  void later(Micros delay_us, std::function<void()> what);
  void arm();
  void on_timer();
  void after_event(std::vector<TrackerEffect>& effects);
  void drain();
  // False: the process died, or the journal refused.
  bool carry_out(const TrackerEffect& effect);
  bool write(std::optional<std::string> record);
  void add_counts();
  void break_votes(const wire::Envelope& said);

  World& world_;
  Judge& judge_;
  Links links_;
  const std::string job_;
  const std::int64_t round_timeout_ms_;
  std::shared_ptr<storage::FakeDisk> disk_ = std::make_shared<storage::FakeDisk>();
  std::optional<TrackerMachine> machine_;  // none: nobody has asked for the job yet
  TrackerInvariants invariants_;           // of machine_
  std::optional<storage::FakeJournal> journal_;
  Incarnation self_;
  bool running_ = false, forgotten_ = false;
  std::uint64_t life_ = 0;
  Micros stands_still_until_us_ = 0;
  std::optional<Micros> armed_us_;
  std::uint64_t timer_ = 0;  // which one is armed: it has one, and those armed before it are void
  std::map<Incarnation, std::size_t> routes_;
  std::deque<TrackerEffect> pending_;  // held up by the journal
  bool retrying_ = false;
  std::deque<std::string> records_;
  std::map<std::uint32_t, wire::Envelope> votes_;  // by rank, for mutants
  std::uint64_t effects_ = 0;
  std::optional<std::uint64_t> crash_before_effect_;
  std::optional<Micros> away_us_;
  std::vector<std::uint64_t> counts_;
};

}  // namespace warren::chaos
