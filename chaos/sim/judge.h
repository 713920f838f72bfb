// What must be true of a run, whoever is at fault: the invariants of DESIGN section 11 that can be seen from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chaos/sim/program.h"
#include "chaos/sim/world.h"
#include "recovery/messages.pb.h"

namespace warren::chaos {

class Judge {
 public:
  Judge(World& world, const Program& program, std::int64_t round_timeout_ms)
      : world_(world), program_(program), round_timeout_ms_(round_timeout_ms) {}

  // The tracker hands a message to the network; `durable` is what its journal would hold after a crash now.
  void announced(const wire::Envelope& envelope, const std::string* durable);
  // A tracker starts with what its journal has.
  void tracker_started(const std::string* durable);
  // The job's record was erased on purpose: another job may use the name.
  void job_forgotten();

  // A life takes a plan into force.
  void installed(const wire::Plan& plan, Incarnation life, const std::string& worker_id);
  // A call returned with success; `output` is what stands in the program's buffer.
  void returned(const ProgramStep& step, std::int32_t place, std::span<const std::byte> output);
  // A call failed; an output element is as it was or final (DESIGN, Input).
  void interrupted(const ProgramStep& step, std::int32_t place, std::span<const std::byte> before,
                   std::span<const std::byte> output);

  // Something happened that a person could see: a log line, a round, a plan.
  void sign() { last_sign_us_ = world_.now_us(); }
  // I7: a wait is explained in bounded time. Called after every event.
  void check_silence(bool anybody_waits);

  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] std::uint64_t rounds() const { return rounds_; }

 private:
  const std::vector<std::byte>& expected(const ProgramStep& step, std::int32_t place);

  World& world_;
  const Program& program_;
  const std::int64_t round_timeout_ms_;
  std::map<std::uint64_t, std::string> plans_;  // by epoch, as announced
  std::map<std::string, std::uint32_t> ranks_;  // by worker id, of the newest plan
  std::map<std::uint64_t, std::uint64_t> epoch_of_life_;
  std::uint64_t newest_epoch_ = 0;  // ever announced
  std::uint64_t rounds_ = 0;
  bool finished_ = false;
  bool forgotten_ = false;  // on purpose, after the end
  Micros last_sign_us_ = 0;
  std::map<std::pair<std::size_t, std::int32_t>, std::vector<std::byte>> expected_;
  std::map<std::pair<std::size_t, std::int32_t>, std::vector<std::byte>> golden_;  // the first result that was returned
};

}  // namespace warren::chaos
