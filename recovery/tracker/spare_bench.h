// The spares of a job: which of them wait, which is called for which rank, and on whose hosts none was of use.
//
// The machine decides when a spare is called, for which rank, and whether spares are used at all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/decide/spares.h"

namespace warren {

class SpareBench {
 public:
  struct Spare {
    struct Call {
      std::size_t place;  // the rank
      TimeMs at;
    };
    Incarnation life;
    std::string host_id, domain_id;
    std::uint64_t arrival = 0;
    TimeMs heard;
    std::optional<Call> call;
    Version followed{};  // the checkpoint that it holds
    // Of the newest plan that it was told for that.
    Generation told{};
    TimeMs told_at{};
  };
  using Spares = std::map<std::string, Spare>;  // by worker id
  // Spares for choose_spares() to choose from. `workers[i]` is the worker id of `spares[i]`.
  struct Idle {
    std::vector<std::string> workers;
    std::vector<IdleSpare> spares;  // views of what is on the bench
  };

  // A worker waits in one life, and is not called yet.
  void add(const std::string& worker, Spare spare);
  // Takes the worker off the bench. Its call ends.
  Spare take(const std::string& worker);
  // Takes all of them off. Hosts stay noted.
  void clear();
  // `life` was heard. Nothing happens if the life is none of a spare.
  void hear(Incarnation life, TimeMs now);
  // The tracker could hear nobody before `at`.
  void excuse(TimeMs at);
  // The spare says which checkpoint it holds; kPreamble: none. Returns whether it is the spare's first one.
  bool follow(const std::string& worker, Version version);

  [[nodiscard]] Spares::const_iterator begin() const { return spares_.begin(); }
  [[nodiscard]] Spares::const_iterator end() const { return spares_.end(); }
  [[nodiscard]] bool empty() const { return spares_.empty(); }
  [[nodiscard]] bool full() const;
  [[nodiscard]] std::size_t size() const { return spares_.size(); }
  [[nodiscard]] bool contains(const std::string& worker) const { return spares_.contains(worker); }
  [[nodiscard]] bool contains(Incarnation life) const { return workers_.contains(life); }
  [[nodiscard]] const Spare& at(const std::string& worker) const { return spares_.at(worker); }
  // Null: the worker, or the life, is no spare.
  [[nodiscard]] const Spare* find(const std::string& worker) const;
  [[nodiscard]] const std::string* worker_of(Incarnation life) const;
  // By life.
  [[nodiscard]] const std::map<Incarnation, std::string>& workers() const { return workers_; }
  [[nodiscard]] Idle those(const std::function<bool(const std::string& worker, const Spare& spare)>& are_idle) const;

  // By rank: the spare that is called for it, and has not answered.
  [[nodiscard]] const std::map<std::size_t, std::string>& calls() const { return calls_; }
  // The spare that is called for this rank. There must be one.
  [[nodiscard]] const Spare& called_for(std::size_t place) const { return spares_.at(calls_.at(place)); }
  void call(const std::string& worker, std::size_t place, TimeMs now);
  // Returns whether a spare was called for this rank.
  bool end_call(std::size_t place);
  // The spare is silent: its call ends, and it waits as if it had come with this arrival.
  void pass_over(std::size_t place, std::uint64_t arrival);
  // By when a spare that is called answers or is heard, if it has so long for that.
  [[nodiscard]] static TimeMs answer_due(const Spare& called, std::int64_t patience_ms);
  [[nodiscard]] std::vector<std::size_t> overdue(TimeMs now, std::int64_t patience_ms) const;  // ranks

  // Notes on hosts, which hold until forget_interrupt().
  // The spares of this host hold nothing that the job needs.
  void note_nothing_on(const std::string& host) { found_nothing_.insert(host); }
  // A spare of this host was called, and has not answered in time.
  void note_silent(const std::string& host) { silent_.insert(host); }
  // Another spare of this host has come.
  void forgive(const std::string& host) { silent_.erase(host); }
  [[nodiscard]] bool was_silent(const std::string& host) const { return silent_.contains(host); }
  // Whether a spare of this host may bring something yet.
  [[nodiscard]] bool counts_on(const std::string& host) const {
    return !found_nothing_.contains(host) && !silent_.contains(host);
  }
  // The hosts of spares that are called, and may bring something.
  [[nodiscard]] std::set<std::string> hosts_called() const;
  // Whether spares are not used, so that nothing that was logged is lost.
  void hold_back(bool held_back) { held_back_ = held_back; }
  [[nodiscard]] bool held_back() const { return held_back_; }
  // All calls end. Returns how many they were.
  std::size_t forget_interrupt();

  // Whether this spare may be told the plan of `generation` now. A plan of thousands of ranks is long, and spares have
  // time. A spare that was told it is told again after `timeout_ms`.
  [[nodiscard]] bool may_tell_plan(const std::string& worker, Generation generation, TimeMs now,
                                   std::int64_t timeout_ms) const;
  void note_told(const std::string& worker, Generation generation, TimeMs now, std::size_t plan_bytes);

  // Checks that indexes agree with what is kept, and that it is bounded.
  void check() const;

 private:
  Spares spares_;
  std::map<Incarnation, std::string> workers_;
  std::map<std::size_t, std::string> calls_;
  std::set<std::string> found_nothing_, silent_;  // hosts
  bool held_back_ = false;
  TimeMs next_plan_{};  // when the next spare may be told a plan
};

}  // namespace warren
