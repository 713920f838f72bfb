// The parts of a session that stand below its driver, for tests of the driver and of parts above it: a life of one
// rank, without links, log and GPU.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "worker/session/batches.h"
#include "worker/session/driver.h"
#include "worker/session/gpus.h"
#include "worker/session/outside_work.h"
#include "worker/session/states_under_way.h"

namespace warren::worker::testing {

// After this a test fails that waits for an event.
inline constexpr auto kPatience = std::chrono::seconds(30);

// Keeps what is logged. From any thread.
class LogLines {
 public:
  [[nodiscard]] Log log() { return {&LogLines::put, this, WARREN_LOG_INFO}; }
  [[nodiscard]] std::vector<std::string> lines() const {
    const std::lock_guard lock(mutex_);
    return lines_;
  }

 private:
  static void put(warren_log_level, const char* text, void* context) {
    auto& self = *static_cast<LogLines*>(context);
    const std::lock_guard lock(self.mutex_);
    self.lines_.emplace_back(text);
  }

  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

struct SessionParts {
  explicit SessionParts(const Interrupt& asked = {}) : interrupt(asked) { EXPECT_TRUE(driver.open().ok()); }

  // The life has its first plan, as the only rank, and calls move.
  void begin() {
    Engine::Plan plan;
    plan.generation = Generation(1);
    plan.self = Rank(0);
    plan.hosts = plan.domains = {0};
    plan.present = {Rank(0)};
    transport.open(plan.generation, 1, true, {});
    life.install(plan, {});
    life.open(TimeMs{0});
  }

  const SessionMark mark;
  LogLines logged;
  const Log log = logged.log();
  const Interrupt interrupt;
  Settings settings;
  RoundBoard board;
  Gpus gpus{settings};
  LinkTransport transport{[](GroupId, Rank) {}};
  Life life{transport, board, false};
  StatesUnderWay states{life, log};
  Batches batches;
  OutsideWork outside{mark, life, gpus, states};
  std::vector<LifeEffect> carried_out;  // in their order; under the driver's lock
  Driver driver{mark, log, interrupt, board, life, transport, outside, batches, [this] {
                  for (LifeEffect& effect : life.take_effects()) carried_out.push_back(std::move(effect));
                }};
};

}  // namespace warren::worker::testing
