// The processes of one chaos run: a tracker, and a launcher for each host.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chaos/process/child.h"
#include "chaos/process/network.h"
#include "chaos/process/program.h"
#include "chaos/process/records.h"
#include "recovery/base/result.h"

namespace warren::chaos::process {

struct ClusterOptions {
  std::string program;  // the path of `warren`
  std::string folder;   // exists; everything of the run is in it
  ProgramShape shape;
  std::uint32_t hosts = 1;
  std::uint32_t spares = 0;  // a worker is who has this rank then
  int replicas = 2;
  std::int64_t round_timeout_ms = 10'000;
  std::int64_t grace_ms = 0;   // of a shape in mode shrink
  bool disk_log = false;       // hosts have a data directory
  std::string timeline;        // a file for a Chrome trace of all workers; empty: none
  bool drains = false;         // at SIGTERM a worker finishes its calls and leaves
  Network* network = nullptr;  // null: all on the loopback interface
};

class Cluster {
 public:
  // Writes what the processes need; starts nothing.
  static Result<std::unique_ptr<Cluster>> create(const ClusterOptions& options);

  [[nodiscard]] Status start_tracker();
  void kill_tracker() { tracker_.reset(); }
  [[nodiscard]] bool tracker_runs() const { return tracker_ != nullptr; }

  [[nodiscard]] Status start_host(std::uint32_t host);
  // Kills launcher and workers, and returns when none is left.
  void kill_host(std::uint32_t host);
  void remove_data(std::uint32_t host) const;
  // The wait status of a launcher that has ended.
  [[nodiscard]] std::optional<int> ended(std::uint32_t host);

  // Of the newest life that has joined. False: there is none any more.
  [[nodiscard]] bool signal_worker(std::uint32_t worker, int signal) const;
  [[nodiscard]] std::uint32_t host_of(std::uint32_t worker) const;
  [[nodiscard]] Page& page(std::uint32_t worker) const { return *pages_[worker]; }
  // Where the next life of a worker's process is kept away: of a job with spares, whoever's life that will be.
  [[nodiscard]] Page& gate(std::uint32_t worker) const;
  [[nodiscard]] const ClusterOptions& options() const { return options_; }
  [[nodiscard]] std::string log_file(const std::string& who) const { return options_.folder + "/" + who + ".log"; }

 private:
  explicit Cluster(const ClusterOptions& options) : options_(options), launchers_(options.hosts) {}
  [[nodiscard]] std::uint32_t first_worker(std::uint32_t host) const;
  [[nodiscard]] std::string data_dir(std::uint32_t host) const;
  [[nodiscard]] std::string mark() const { return "--worker_of=" + options_.folder; }

  const ClusterOptions options_;
  std::uint16_t port_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;
  std::vector<std::shared_ptr<Page>> gates_;  // by process; none without spares
  std::unique_ptr<Child> tracker_;
  std::vector<std::unique_ptr<Child>> launchers_;
};

}  // namespace warren::chaos::process
