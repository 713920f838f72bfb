// The connections of the data plane in virtual time, between all lives: how slow they are, and what breaks them.
// sim_transport.h has a life's end of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "chaos/sim/world.h"
#include "worker/transport/transport.h"

namespace warren::chaos {

class SimTransport;

// An input that others read where it lies.
struct Loan {
  const std::byte* at = nullptr;
  std::size_t bytes = 0;
  std::uint64_t taken_back = 0;
  std::vector<std::byte> left;  // what lies there once the lender has gone
  // On a GPU, in a block: what becomes of it is the block's owner's. Keeps it mapped.
  std::shared_ptr<const void> on_gpu = nullptr;
  [[nodiscard]] bool holds(std::span<const std::byte> payload) const;
};

// One frame on its way, with what only the simulation knows of it.
struct Frame {
  FrameBytes header{};
  std::vector<std::byte> payload;
  Generation generation;  // of the sender's plan
  Incarnation sender;     // the life that sent it
  bool flipped = false;
  LogPlace place;  // where the payload is published, if it is
  std::shared_ptr<Loan> loan;
  std::shared_ptr<const worker::FinalOnGpu> beside;  // what is published lies there, too
};

// A connection between two lives. Side 0 is the lower rank.
struct Wire {
  struct Lane {  // one stream, one direction
    std::deque<Frame> flying;
    std::deque<Frame> inbox;
    std::size_t bytes = 0;  // not taken by the receiver yet
    Micros last_arrival_us = 0;
  };
  struct End {
    SimTransport* transport = nullptr;  // null: closed
    worker::LinkId link = 0;
  };
  End ends[2];
  std::vector<Lane> lanes[2];          // by sending side
  Micros silent_until_us[2] = {0, 0};  // likewise; nothing arrives before
  std::vector<SimTransport*> relays;   // by stream; none: it goes straight
  bool dead = false;                   // nothing arrives any more
};

class DataNetwork {
 public:
  explicit DataNetwork(World& world);

  // Draws how links behave in this run.
  [[nodiscard]] World& world() { return world_; }
  [[nodiscard]] std::size_t window_bytes() const { return window_bytes_; }
  [[nodiscard]] Micros latency_us();
  [[nodiscard]] Micros transfer_us(std::size_t bytes);

  void attach(Incarnation life, SimTransport* transport) { lives_[life] = transport; }
  // `silently`: with its machine.
  void detach(Incarnation life, bool silently);
  // Its process has gone, and its machine is there to say so.
  [[nodiscard]] bool refuses(Incarnation life) const { return !lives_.contains(life) && !unheard_.contains(life); }
  [[nodiscard]] SimTransport* find(Incarnation life) const;

  void add(const std::shared_ptr<Wire>& wire) {
    wires_.push_back(wire);
    any_relayed_ = any_relayed_ || !wire->relays.empty();
  }
  // Nothing goes by way of this one any more. Silently: who is at the ends of such wires hears nothing.
  void end_relays(SimTransport* relay, bool silently);
  // Breaks one connection, at both ends or at one of them.
  void cut_one();
  // For so long nothing arrives over one connection, one way or both; then all of it does. Neither end is told.
  void silence_one(Micros for_us);

  // For Mutant::accept_old_generation: what was not taken in a generation that has ended.
  struct StaleKey {
    GroupId group;
    Rank from, to;
    std::uint16_t stream;
    friend auto operator<=>(const StaleKey&, const StaleKey&) = default;
  };
  std::map<StaleKey, std::deque<Frame>> stale;

 private:
  [[nodiscard]] std::shared_ptr<Wire> some_wire();

  World& world_;
  std::size_t window_bytes_;
  Micros latency_base_us_;
  std::int64_t bytes_per_us_;
  std::map<Incarnation, SimTransport*> lives_;
  std::set<Incarnation> unheard_;  // of those that are gone
  std::vector<std::weak_ptr<Wire>> wires_;
  bool any_relayed_ = false;
};

}  // namespace warren::chaos
