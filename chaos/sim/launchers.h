// A run's workers: a launcher for each, which starts it, and again when it ends badly, and all lives so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/sim/control_network.h"
#include "chaos/sim/fetch_network.h"
#include "chaos/sim/kill_point.h"
#include "chaos/sim/run.h"
#include "chaos/sim/sim_transport.h"
#include "chaos/sim/sim_worker.h"

namespace warren::chaos {

class Launchers {
 public:
  struct Networks {
    DataNetwork& data;
    FetchNetwork& fetch;
    ControlNetwork& control;
  };
  // Called as lives run and end.
  struct Events {
    // As SimWorker::Links.
    std::function<bool(std::size_t life, KillPoint, std::uint64_t passage)> killed_at;
    std::function<void(std::size_t life)> doomed;
    std::function<void()> recovers;
    // The last process that held a part of its host's log has ended.
    std::function<void(const SimWorker&)> log_lost;
    // Whether this host is being taken away.
    std::function<bool(const std::string& host)> is_taken;
  };
  Launchers(Run& run, Networks networks, Events events) : run_(run), networks_(networks), events_(std::move(events)) {}
  Launchers(const Launchers&) = delete;
  Launchers& operator=(const Launchers&) = delete;

  struct Slot {
    std::string worker_id, host_id, domain_id;
    bool begins_as_spare = false;
    bool begins_again = false;  // as a spare, in the process of the life before
    bool spare = false, started = false, done = false, absent = false;
    bool heard_lost = false;  // one of its lives was told that the job cannot go on
    bool ended = false;       // its launcher starts nobody again
    std::optional<std::size_t> life;
    std::uint32_t attempt = 0;
    std::uint64_t starts_due = 0;  // counts requests, so that only the last one starts a life
  };
  // As the setting has drawn them.
  void make_slots();
  void start_later(std::size_t slot, Micros delay_us);
  // Some come late, and some not before faults stop.
  void start_all();
  // Somebody else's worker, or one of the job with settings that nobody else has. It comes once.
  void start_stranger();

  [[nodiscard]] const std::vector<Slot>& slots() const { return slots_; }
  [[nodiscard]] bool has_spares() const;
  [[nodiscard]] const std::vector<std::unique_ptr<SimWorker>>& lives() const { return lives_; }
  [[nodiscard]] SimWorker& life(std::size_t number) const { return *lives_[number]; }
  [[nodiscard]] std::size_t number_of(const SimWorker& life) const { return life_of_.at(life.self()); }
  // null: there was none.
  [[nodiscard]] SimWorker* find(Incarnation life) const;
  // Of a life; kStranger: of none.
  static constexpr std::size_t kStranger = SIZE_MAX;
  [[nodiscard]] std::size_t slot_of(std::size_t life) const { return slot_of_life_[life]; }
  // Whether this life is the one that its launcher has started last.
  [[nodiscard]] bool is_current(std::size_t life) const;
  // null: nobody is.
  [[nodiscard]] SimWorker* any_alive() const;
  // A fault strikes: counted if some rank is on its way back to where it was.
  void struck() { second_faults_ += recovering() ? 1 : 0; }
  [[nodiscard]] std::uint64_t second_faults() const { return second_faults_; }

  // Workers of this host are started on a new one from now on, or each beside some other.
  void move(const std::string& host, const std::string& to);
  void scatter(const std::string& host);
  // "": no worker is started there.
  [[nodiscard]] std::string domain_of(const std::string& host) const;
  // Ranks of a lost host have gone to another, or spares wait to.
  [[nodiscard]] bool crowded() const { return crowded_; }
  // The launcher takes its worker for dead and starts another, however that one goes on.
  void give_up_life(std::size_t slot);
  // Whose life ends next is started again so much later; nullopt: as is drawn.
  void delay_next_start(std::optional<Micros> delay_us) { away_us_ = delay_us; }
  // A life has found that what it would load is lost: all others are to hear of it.
  void loss_found() { loss_found_ = true; }
  [[nodiscard]] bool all_heard_of_loss() const;
  // Faults have stopped: strangers go, and lives that their launchers have given up; who is missing is started.
  void become_live();

  // Answers a request as the life's fetch service does.
  FetchNetwork::Reach serve(Incarnation server, const wire::FetchRequest& request,
                            std::optional<wire::FetchReply>& answer) const;

 private:
  [[nodiscard]] bool recovering() const;
  // Room for all results of a program and its checkpoints, also where each version begins a new part.
  [[nodiscard]] std::size_t log_bytes() const;
  void see_host(wire::Join& join, std::size_t life) const;
  void start_life(std::size_t slot);
  SimWorker::Options options_of(std::size_t slot, std::size_t life);
  void add_life(std::size_t slot, SimWorker::Options options);
  SimWorker::Links links_of(std::size_t life, std::size_t slot);
  void ended(std::size_t slot, std::size_t life, SimWorker::End end, const Status& why);
  void on_end(std::size_t slot, std::size_t life, SimWorker::End end, const Status& why);
  void end_launcher(std::size_t slot, std::size_t life, const Status& why);
  void give_up(std::size_t slot);
  void begin_elsewhere(std::size_t slot, std::size_t life);

  Run& run_;
  Networks networks_;
  Events events_;
  SimNccl nccl_{run_.world, run_.setting.job.checksums()};
  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<SimWorker>> lives_;
  std::map<Incarnation, std::size_t> life_of_;
  std::vector<std::size_t> slot_of_life_;
  bool crowded_ = false;
  std::optional<Micros> away_us_;
  bool loss_found_ = false;
  std::uint64_t second_faults_ = 0;
};

}  // namespace warren::chaos
