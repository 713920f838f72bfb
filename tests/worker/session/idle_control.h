// A control thread that is not started. Its sockets are open, and no work that is posted to it is done.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "worker/session/control.h"

namespace warren::worker::testing {

// A data path that the control thread never calls.
class IdleDataPath final : public DataPath {
 public:
  void install(const wire::Plan&, Rank) override {}
  void open(Generation) override {}
  WorkerMachine::Standing stop(const worker_effect::StopDataPath&) override { return {}; }
  void carry_out(const WorkerEffect&) override {}
  void mapped() override {}
  std::optional<TimeMs> tick() override { return std::nullopt; }
  [[nodiscard]] bool may_hang() const override { return false; }
  bool adopt(Generation, GroupId, Rank, std::uint16_t, int, std::unique_ptr<HostPipe>) override { return false; }
  void link_failed(GroupId, Rank, const Status&) override {}
  void aborted(const std::string&) override {}
  void begin_nothing() override {}
  bool may_leave(bool) override { return true; }
  bool leave(bool, int, const std::function<void()>&) override { return true; }
};

// Settings of a worker that logs nothing. The tracker's address is one that nobody answers at.
inline Settings settings_of_one() {
  warren_options o{};
  o.struct_size = sizeof o;
  o.log_level = WARREN_LOG_ERROR;
  o.grace_ms = -1;
  o.tracker = "127.0.0.1:9";
  o.job = "j";
  o.worker_id = "w0";
  o.world_size = 1;
  o.insecure_no_auth = 1;
  auto settings = resolve(&o, [](const std::string&) { return std::nullopt; });
  EXPECT_TRUE(settings.ok()) << settings.status().describe();
  return std::move(settings).value();
}

struct IdleControl {
  explicit IdleControl(const Settings& settings, const Log& log) {
    Control::Services services;
    services.self = Incarnation(1);
    services.join_within_ms = 1000;
    auto made = Control::create(settings, log, board, path, services);
    EXPECT_TRUE(made.ok()) << made.status().describe();
    control = std::move(made).value();
  }

  RoundBoard board;
  IdleDataPath path;
  std::unique_ptr<Control> control;
};

}  // namespace warren::worker::testing
