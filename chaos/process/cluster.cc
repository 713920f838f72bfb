#include "chaos/process/cluster.h"

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "chaos/process/free_port.h"
#include "chaos/process/worker.h"
#include "storage/secret.h"

namespace warren::chaos::process {

Result<std::unique_ptr<Cluster>> Cluster::create(const ClusterOptions& options) {
  if (Status s = write_shape(options.folder, options.shape); !s.ok()) return s;
  if (Status s = storage::Secret::generate(options.folder + "/secret"); !s.ok()) return s;
  // A launcher that is given the flag begins the file anew, and there are many, some of them started again.
  if (!options.timeline.empty() && !std::ofstream(options.timeline, std::ios::trunc)) {
    return Status(Code::kUnavailable, "cannot write the timeline " + options.timeline);
  }
  const auto port = free_port();
  if (!port.ok()) return port.status();
  std::unique_ptr<Cluster> cluster(new Cluster(options));
  cluster->port_ = port.value();
  for (std::uint32_t w = 0; w < options.shape.ranks; w++) {
    auto page = map_page(page_path(options.folder, w));
    if (!page.ok()) return page.status();
    cluster->pages_.push_back(std::move(page).value());
  }
  // A launcher's spares are numbered from the world size and its first worker on.
  for (std::uint32_t p = 0; options.spares != 0 && p < 2 * options.shape.ranks + options.spares; p++) {
    auto gate = map_page(gate_path(options.folder, p));
    if (!gate.ok()) return gate.status();
    cluster->gates_.push_back(std::move(gate).value());
  }
  return cluster;
}

std::uint32_t Cluster::first_worker(std::uint32_t host) const {
  return host * options_.shape.ranks / options_.hosts;
}

std::uint32_t Cluster::host_of(std::uint32_t worker) const {
  std::uint32_t host = 0;
  while (first_worker(host + 1) <= worker) host++;
  return host;
}

std::string Cluster::data_dir(std::uint32_t host) const {
  return options_.folder + "/data-" + std::to_string(host);
}

Status Cluster::start_tracker() {
  const std::string address = options_.network != nullptr ? Network::tracker_address() : "127.0.0.1";
  auto started = Child::start({{options_.program, "tracker", "--data_dir=" + options_.folder + "/tracker",
                                "--secret_file=" + options_.folder + "/secret", "--bind=" + address,
                                "--port=" + std::to_string(port_), "--http_port=-1"},
                               log_file("tracker"),
                               nullptr});
  if (!started.ok()) return started.status();
  tracker_ = std::move(started).value();
  return {};
}

Status Cluster::start_host(std::uint32_t host) {
  const std::uint32_t first = first_worker(host), workers = first_worker(host + 1) - first;
  const std::string name = "host-" + std::to_string(host);
  const std::string tracker =
      (options_.network != nullptr ? Network::tracker_address() : "127.0.0.1") + ":" + std::to_string(port_);
  Child::Setup setup;
  setup.log_file = log_file(name);
  if (options_.network != nullptr) {
    setup.arguments = Network::prefix(host);
    setup.wire = [this, host](pid_t pid) { return options_.network->wire(host, pid); };
  }
  const std::vector<std::string> launcher = {options_.program,
                                             "run",
                                             "-n",
                                             std::to_string(workers),
                                             "--first_worker=" + std::to_string(first),
                                             "--world_size=" + std::to_string(options_.shape.ranks),
                                             "--tracker=" + tracker,
                                             "--job=chaos",
                                             "--secret_file=" + options_.folder + "/secret",
                                             "--restarts=1000000",
                                             "--host_id=" + name,
                                             "--domain_id=" + name,
                                             "--replicas=" + std::to_string(options_.replicas),
                                             "--round_timeout_ms=" + std::to_string(options_.round_timeout_ms),
                                             "--join_timeout_ms=600000",
                                             "--log_memory_bytes=1G"};
  setup.arguments.emplace_back("/usr/bin/env");
  if (options_.drains) setup.arguments.emplace_back("WARREN_ON_SIGTERM=drain");
  if (!options_.timeline.empty()) setup.arguments.push_back("WARREN_TIMELINE=" + options_.timeline);
  setup.arguments.insert(setup.arguments.end(), launcher.begin(), launcher.end());
  if (options_.spares != 0) {
    const std::uint32_t here = options_.spares / options_.hosts + (host < options_.spares % options_.hosts ? 1 : 0);
    setup.arguments.push_back("--spares=" + std::to_string(here));
  }
  if (options_.shape.shrinks()) {
    for (const std::string& word :
         {std::string("--mode=shrink"), "--min_workers=" + std::to_string(options_.shape.min_workers),
          "--grace_ms=" + std::to_string(options_.grace_ms)}) {
      setup.arguments.push_back(word);
    }
  }
  if (options_.disk_log) setup.arguments.push_back("--data_dir=" + data_dir(host));
  for (const std::string& word : {std::string("--"), options_.program, std::string("chaos"), mark()}) {
    setup.arguments.push_back(word);
  }
  auto started = Child::start(setup);
  if (!started.ok()) return started.status().because_of_this("cannot start " + name);
  launchers_[host] = std::move(started).value();
  return {};
}

Page& Cluster::gate(std::uint32_t worker) const {
  const std::uint32_t process = pages_[worker]->process.load();
  return process < gates_.size() ? *gates_[process] : *pages_[worker];
}

void Cluster::kill_host(std::uint32_t host) {
  launchers_[host].reset();
  // The workers die with their launcher; nobody tells when they have.
  for (std::uint32_t w = first_worker(host); w < first_worker(host + 1); w++) {
    while (signal_worker(w, SIGKILL)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Cluster::remove_data(std::uint32_t host) const {
  std::error_code ignored;
  std::filesystem::remove_all(data_dir(host), ignored);
}

std::optional<int> Cluster::ended(std::uint32_t host) {
  return launchers_[host] == nullptr ? std::nullopt : launchers_[host]->ended();
}

bool Cluster::signal_worker(std::uint32_t worker, int signal) const {
  return signal_marked(pages_[worker]->pid.load(), mark(), signal);
}

}  // namespace warren::chaos::process
