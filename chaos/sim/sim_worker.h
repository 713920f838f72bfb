// One life of a worker in virtual time: the machine, the engine, the executors and the schedules that run in
// production, a shell that carries out effects as worker/control.cc and worker/session.cc do, and a program that makes
// calls.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/judge.h"
#include "chaos/sim/program.h"
#include "chaos/sim/sim_transport.h"
#include "chaos/sim/world.h"
#include "recovery/worker_machine.h"
#include "worker/engine.h"
#include "worker/progress.h"

namespace warren::chaos {

class SimWorker final : private SimTransport::Owner {
 public:
  enum class End : std::uint8_t { kFinished, kFailed, kDied };
  struct Links {
    std::function<void(std::string bytes)> send;  // to the tracker
    std::function<void(End, const Status& why)> ended;
  };
  struct Options {
    std::size_t life = 0;  // its number in the run
    std::string job;
    wire::Join join;
    std::int64_t join_timeout_ms = 0;
    std::optional<std::uint64_t> die_before_effect;
  };
  SimWorker(World& world, Judge& judge, DataNetwork& network, const Program& program, Links links, Options options);
  ~SimWorker() override;
  SimWorker(const SimWorker&) = delete;
  SimWorker& operator=(const SimWorker&) = delete;

  void start();
  void receive(const std::string& bytes);
  void connection_trouble(const std::string& what);
  // Faults of its process.
  void die(bool silently);
  void stand_still(Micros for_us);
  void give_up();

  [[nodiscard]] bool alive() const { return alive_; }
  // It is up, and waits for the tracker or another rank.
  [[nodiscard]] bool waits() const;
  [[nodiscard]] Incarnation self() const { return self_; }
  [[nodiscard]] const std::string& worker_id() const { return options_.join.worker_id(); }
  [[nodiscard]] std::uint64_t effects() const { return effects_; }
  [[nodiscard]] std::span<const std::uint64_t> transition_counts() const { return machine_.transition_counts(); }
  [[nodiscard]] std::string describe() const;

  // Facts that messages of this life speak of; each stays true once it is.
  [[nodiscard]] bool desynced() const { return desynced_; }
  [[nodiscard]] bool installed() const { return installed_; }
  [[nodiscard]] bool data_path_stopped() const { return stopped_; }
  [[nodiscard]] bool program_done() const { return program_done_ || desynced_; }
  [[nodiscard]] bool was_member_of(Epoch epoch) const { return installed_ && plan_epoch_ == epoch; }
  [[nodiscard]] std::uint64_t rounds_finished() const { return board_.rounds_finished.load(); }

 private:
  struct ActiveCall {
    ProgramStep step;
    std::int32_t place = 0;
    bool altered = false;  // a desync on purpose: nobody knows what it must give
    std::vector<std::uint64_t> memory;
    std::vector<std::byte> before;  // the memory when the call was made
    std::size_t out_at = 0, out_bytes = 0;
    std::shared_ptr<worker::Call> call;
    bool reaped = false;
    std::vector<std::byte> after;  // the memory when the call returned
    [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(memory)); }
  };

  // SimTransport::Owner
  void data_moved() override;
  void link_closed(Rank peer, const std::string& evidence) override;
  [[nodiscard]] Micros stands_still_until_us() const override { return stands_still_until_us_; }

  void later(Micros delay_us, std::function<void()> what);
  void arm();
  void on_timer();
  void set_progress();
  void run_effects(std::vector<WorkerEffect> effects);
  void carry_out(const WorkerEffect& effect, bool last, std::vector<WorkerEffect>& more);
  void install(const wire::Plan& plan);
  void stop_engine(const Status& why);
  void fail(const Status& why);

  void pump();
  void report_failure();
  void watch_waits();
  void advance();
  void issue(std::size_t position);
  bool alter(ProgramStep& step);
  void submit(ProgramStep step, std::int32_t place, bool altered);
  void reap(ActiveCall& call);
  void finalize();
  void leave(bool finalize, const std::string& reason);
  void program_fails(const Status& why);
  void exit(End end, const Status& why);
  void check_memory();

  World& world_;
  Judge& judge_;
  const Program& program_;
  Links links_;
  Options options_;
  Incarnation self_;
  WorkerMachine machine_;
  SimTransport transport_;
  worker::RoundBoard board_;
  worker::Engine engine_;
  bool alive_ = false, installed_ = false, stopped_ = false, finished_ = false, pumping_ = false;
  bool program_done_ = false, desynced_ = false, leaving_ = false, exiting_ = false, watching_ = false;
  Micros stands_still_until_us_ = 0;
  std::optional<Micros> armed_us_;
  std::uint64_t effects_ = 0;
  Status failed_;
  Epoch plan_epoch_;
  Rank rank_;
  wire::JobSettings settings_;
  worker::ProgressReporter progress_;

  std::vector<std::size_t> order_;
  std::size_t position_ = 0;
  std::vector<bool> group_made_;
  bool computing_ = false, waits_for_all_ = false;
  std::vector<std::unique_ptr<ActiveCall>> calls_;
};

}  // namespace warren::chaos
