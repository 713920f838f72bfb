// Virtual time, chance, the record of what happened, and the verdict of one simulated run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "chaos/sim/bad_link.h"
#include "chaos/sim/deadlock.h"
#include "chaos/sim/faults.h"
#include "chaos/sim/mutant.h"
#include "chaos/sim/random.h"
#include "chaos/sim/straggler.h"
#include "recovery/base/machine.h"
#include "recovery/wire/messages.pb.h"

namespace warren::chaos {

using Micros = std::int64_t;

class World {
 public:
  World(std::uint64_t seed, FaultPlan faults, Mutant broken, bool keep_transcript)
      : random(seed), faults_(faults), mutant_(broken), keep_transcript_(keep_transcript) {}
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Random random;

  [[nodiscard]] Micros now_us() const { return now_us_; }
  [[nodiscard]] TimeMs now() const { return {now_us_ / 1000}; }
  // Events of one instant happen in the order in which they were asked for.
  void after(Micros delay_us, std::function<void()> what) { at(now_us_ + delay_us, std::move(what)); }
  void at(Micros when_us, std::function<void()> what);
  // The next event; false: there is none, or the run is over.
  bool step();

  // Whether this fault happens now; counts it. Never after calm().
  bool strikes(Fault fault) { return strikes(fault, faults_.rate(fault)); }
  bool strikes(Fault fault, double probability) {
    if (calm_ || probability <= 0 || !random.chance(probability)) return false;
    count(fault);
    return true;
  }
  void count(Fault fault) { ++counts_[static_cast<std::size_t>(fault)]; }
  [[nodiscard]] double rate(Fault fault) const { return calm_ ? 0 : faults_.rate(fault); }
  [[nodiscard]] const FaultCounts& fault_counts() const { return counts_; }
  // So far, what keeps members from being heard in time.
  [[nodiscard]] std::uint64_t message_faults() const;
  // Fault::desync, for one worker of a job: two that left the program's way alike would agree on it.
  bool strays(const std::string& worker_id) {
    if ((!stray_.empty() && stray_ != worker_id) || !strikes(Fault::desync)) return false;
    stray_ = worker_id;
    return true;
  }
  // Fault::other_state, for one worker of a job: two that gave the same other state would agree on it. All its lives of
  // a timeline do so alike, or the first one alone that comes to the version.
  bool gives_other_state(const std::string& worker_id, std::uint32_t attempt, Timeline timeline, Version version) {
    if (!other_.empty() && other_ != worker_id) return false;
    const auto place = std::pair(timeline, version);
    if (const auto other = other_places_.find(place); other != other_places_.end()) {
      return !other->second || *other->second == attempt;
    }
    if (!strikes(Fault::other_state)) return false;
    other_ = worker_id;
    other_places_.emplace(place, random.chance(0.3) ? std::optional(attempt) : std::nullopt);
    return true;
  }
  // This worker's first life will, at this version of the first timeline.
  void give_other_state_once(const std::string& worker_id, Version version) {
    other_ = worker_id;
    other_places_.emplace(std::pair(Timeline(0), version), 0);
  }
  // Faults stop: the liveness phase.
  void calm() { calm_ = true; }
  [[nodiscard]] bool is_calm() const { return calm_; }
  [[nodiscard]] bool is(Mutant mutant) const { return mutant_ == mutant; }

  // Somebody is slow from now on, whether it is calm or not.
  void hold_up(const Straggler& straggler) { straggler_ = straggler; }
  [[nodiscard]] const std::optional<Straggler>& straggler() const { return straggler_; }
  // Whether this worker, which has the rank, is the one, or would be if it is a link.
  [[nodiscard]] bool is_straggler(Rank rank, const std::string& worker_id);
  // How long this takes more than it would, now: for that worker, or over that link.
  [[nodiscard]] Micros drag_us(Straggler::What what, Rank rank, const std::string& worker_id);
  [[nodiscard]] Micros drag_us(Rank rank, Rank peer) const;

  // From now on, whether it is calm or not.
  void cut_off(const BadLink& link) { bad_link_ = link; }
  [[nodiscard]] bool is_bad(BadLink::What what, Rank rank, Rank peer) const {
    return bad_link_ && bad_link_->what == what && bad_link_->is_between(rank, peer);
  }

  // The program of the workers' first lives has this fault.
  void program_deadlocks(const Deadlock& deadlock) { deadlock_ = deadlock; }
  [[nodiscard]] const std::optional<Deadlock>& deadlock() const { return deadlock_; }

  // Everything that happens is noted; two runs of a seed must give the same digest.
  void note(std::uint64_t what);
  void note(std::string_view bytes);
  [[nodiscard]] std::uint64_t digest() const { return digest_; }
  [[nodiscard]] bool keeps_transcript() const { return keep_transcript_; }
  // For people; build the text only if keeps_transcript().
  void tell(const std::string& text);
  [[nodiscard]] const std::vector<std::string>& transcript() const { return transcript_; }

  // An invariant is broken: the run ends after this event. The first one counts.
  void violated(std::string_view invariant, const std::string& how);
  // From here on violated() means nothing; fail() still does.
  void stop_judging() { judged_ = false; }
  void fail(std::string_view invariant, const std::string& how);
  [[nodiscard]] bool failed() const { return !verdict_.empty(); }
  [[nodiscard]] const std::string& verdict() const { return verdict_; }

  [[nodiscard]] std::uint64_t events() const { return events_; }
  // How many events have waited at once, at the most.
  [[nodiscard]] std::size_t most_waiting() const { return most_waiting_; }

 private:
  struct Event {
    Micros at_us;
    std::uint64_t order;
    std::function<void()> what;
  };
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at_us != b.at_us ? a.at_us > b.at_us : a.order > b.order;
    }
  };

  FaultPlan faults_;
  Mutant mutant_;
  bool keep_transcript_;
  bool calm_ = false, judged_ = true;
  Micros now_us_ = 0;
  std::uint64_t order_ = 0, events_ = 0;
  std::vector<Event> queue_;  // a heap
  std::size_t most_waiting_ = 0;
  FaultCounts counts_{};
  std::uint64_t digest_ = 0;
  std::vector<std::string> transcript_;
  std::string verdict_, stray_, other_;
  std::map<std::pair<Timeline, Version>, std::optional<std::uint32_t>> other_places_;  // which attempt; nullopt: all
  std::optional<Straggler> straggler_;
  std::optional<Deadlock> deadlock_;
  std::optional<BadLink> bad_link_;
  std::string slow_worker_;  // where the straggler goes with it, once it is known

  [[nodiscard]] Micros drag_now_us() const;
};

// " 2.17[0-512]": version, rounds, and what is final of the next, for people.
[[nodiscard]] std::string describe_positions(const google::protobuf::RepeatedPtrField<wire::Position>& positions);

}  // namespace warren::chaos
