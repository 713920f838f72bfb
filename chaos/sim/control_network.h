// The control plane in virtual time: one connection from each life to the tracker. Messages of a live connection keep
// their order; a connection that drops loses what is on its way.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "chaos/sim/world.h"
#include "recovery/base/ids.h"

namespace warren::chaos {

class ControlNetwork {
 public:
  struct Ends {
    std::function<void(std::size_t life, const std::string&bytes)> to_tracker, to_worker;
    std::function<void(std::size_t life, const std::string& what)> trouble;  // at the worker's end
  };
  ControlNetwork(World& world, Ends ends, std::int64_t round_timeout_ms);

  // The lives are numbered in the order in which they are added.
  void add_life() { connections_.emplace_back(); }
  void send_up(std::size_t life, const std::string& bytes) { send(life, bytes, true); }
  void send_down(std::size_t life, const std::string& bytes) { send(life, bytes, false); }

  // Faults.
  void drop_connection(std::size_t life);
  void drop_all();  // the tracker's process has gone
  void replay();    // a message that was delivered once is delivered again
  void forget();    // but for those so far: no connection outlives two trackers, the second of which knows of no life
  // One is delivered to a life that it was not meant for; a plan now and then in an envelope with that life's name.
  void misdirect(std::size_t life, Incarnation its_incarnation);
  void garbage(std::size_t life);

 private:
  struct Message {
    std::size_t life;
    std::string bytes;
    bool up;
  };
  struct Connection {
    Micros last_us[2] = {0, 0};  // arrivals: down, up
    std::uint64_t use = 0;
    Micros broken_until_us = 0;
    std::size_t in_flight = 0;
  };
  static constexpr std::size_t kRemembered = 64;
  static constexpr std::size_t kMostInFlight = 4096;

  void send(std::size_t life, const std::string& bytes, bool up);
  void deliver(const Message& message);

  World& world_;
  Ends ends_;
  std::int64_t round_timeout_ms_;
  Micros latency_us_;
  std::vector<Connection> connections_;
  std::deque<Message> remembered_;
  std::deque<Message> decisions_;  // plans and interrupts
};

}  // namespace warren::chaos
