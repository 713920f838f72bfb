// The lives that wait for the next plan: those that have joined, and survivors, which have answered an interrupt.
//
// The room keeps what each life has said, and counts what is kept. The machine decides who waits, and for which rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/limits.h"
#include "recovery/base/machine.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

class WaitingRoom {
 public:
  // For what joins say of disks and memory, but for the short form of each join, which always has room.
  static constexpr std::size_t kJoinRoomBytes =
      limits::kMaxJoinBytesPerJob - limits::kMaxWorldSize * limits::kMaxShortHeldBytes;

  struct Life {
    wire::Member member;                 // rank and local ranks are not set yet
    std::optional<wire::Report> report;  // a survivor's
    std::optional<wire::Held> held;      // what a new life's disk holds
    wire::Logged logged;                 // what the memory of a new life's host does
    std::uint32_t attempt = 0;
    std::uint64_t arrival = 0;
    TimeMs heard;
    bool candidate = false;            // for the rank of another worker id
    Generation called;                 // a spare's: as in its join
    std::optional<std::size_t> takes;  // the rank that it was called for, and that is another's
    bool resize = false;               // wire::Join

    [[nodiscard]] Incarnation id() const { return Incarnation(member.incarnation()); }
    // Whether the life has told of something that its host holds.
    [[nodiscard]] bool holds() const;
    // Whether the life looked at what its host holds before all members had stopped: it was not called.
    [[nodiscard]] bool looked_early() const { return !report && called.value == 0; }
    // The log in its host's memory, as a survivor reports or a new life has found it.
    [[nodiscard]] const wire::Logged& in_memory() const { return report ? report->logged() : logged; }
    // Bytes of what a new life's disk and its host's memory hold.
    [[nodiscard]] std::size_t join_bytes() const;
  };
  using Lives = std::map<std::string, Life>;  // by worker id

  // A worker waits in one life.
  void add(Life life);
  void remove(const std::string& worker);
  void clear();
  // `life` was heard. Nothing happens if the life does not wait.
  void hear(Incarnation life, TimeMs now);
  // The tracker could hear nobody before `at`.
  void excuse(TimeMs at);
  // The life counts as one of this host.
  void move_to_host(const std::string& worker, const std::string& host_id);

  [[nodiscard]] Lives::const_iterator begin() const { return lives_.begin(); }
  [[nodiscard]] Lives::const_iterator end() const { return lives_.end(); }
  [[nodiscard]] bool empty() const { return lives_.empty(); }
  [[nodiscard]] std::size_t size() const { return lives_.size(); }
  [[nodiscard]] bool contains(const std::string& worker) const { return lives_.contains(worker); }
  [[nodiscard]] bool contains(Incarnation life) const { return workers_.contains(life); }
  [[nodiscard]] const Life& at(const std::string& worker) const { return lives_.at(worker); }
  // Null: the worker, or the life, does not wait.
  [[nodiscard]] const Life* find(const std::string& worker) const;
  [[nodiscard]] const Life* find(Incarnation life) const;
  // By life.
  [[nodiscard]] const std::map<Incarnation, std::string>& workers() const { return workers_; }
  // By rank: the spare that was called for it, and has come.
  [[nodiscard]] const std::map<std::size_t, std::string>& takers() const { return takers_; }

  [[nodiscard]] std::size_t survivors() const { return survivors_; }
  [[nodiscard]] bool has_survivor_on(const std::string& host_id) const;
  [[nodiscard]] std::set<std::string> hosts_that_hold() const;
  [[nodiscard]] std::set<std::string> hosts_looked_at_early() const;
  // Candidates that were called for no rank, by their arrival.
  [[nodiscard]] std::vector<const Life*> candidates() const;
  // The candidate that has come last. There must be one.
  [[nodiscard]] const Life& last_candidate() const;
  // The workers whose lives have not been heard for `timeout_ms`.
  [[nodiscard]] std::vector<std::string> silent(TimeMs now, std::int64_t timeout_ms) const;

  // Bytes of what survivors have reported.
  [[nodiscard]] std::size_t report_bytes() const { return report_bytes_; }
  [[nodiscard]] std::size_t join_bytes() const { return join_bytes_; }
  // Whether joins may say so many bytes more.
  [[nodiscard]] bool has_room_for(std::size_t join_bytes) const;

  // Checks that indexes and counts agree with what is kept, and are bounded.
  void check() const;

 private:
  Lives lives_;
  std::map<Incarnation, std::string> workers_;
  std::map<std::size_t, std::string> takers_;
  std::size_t survivors_ = 0;
  std::size_t report_bytes_ = 0, join_bytes_ = 0;
};

}  // namespace warren
