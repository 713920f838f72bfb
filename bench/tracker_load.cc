// What many workers cost a tracker: WORKERS real worker machines, each with a connection of its own, join one job, send
// heartbeats for a while and finalize. Reads the tracker's processor time and memory from /proc.
//
//   tracker_load --tracker=127.0.0.1:9370 --tracker_pid=PID --secret_file=FILE [--workers=1000] [--seconds=20]
//
// Prints one JSON object.
#include <sys/resource.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <variant>
#include <vector>

#include "bench/harness.h"
#include "recovery/codec.h"
#include "recovery/worker_machine.h"
#include "storage/secret.h"

namespace {

using namespace warren;  // NOLINT(google-build-using-namespace): one program
using bench::fail;

constexpr int kRanksPerHost = 8;
constexpr std::int64_t kPhaseTimeoutMs = 120'000;
constexpr std::uint64_t kRoundTimeoutMs = 10'000;

TimeMs now() {
  return {static_cast<std::int64_t>(bench::now_us() / 1000)};
}

class Worker {
 public:
  Worker(void* context, const std::string& tracker, const storage::JobCredentials& credentials, const std::string& job,
         int index, int workers)
      : socket_(zmq_socket(context, ZMQ_DEALER)), machine_(options(tracker, job, index, workers)) {
    if (socket_ == nullptr) fail(std::string("cannot make a socket: ") + zmq_strerror(zmq_errno()));
    const int linger_ms = 0;
    bool ok = zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms) == 0;
    const auto set = [&](int option, const std::string& text) {
      ok = ok && zmq_setsockopt(socket_, option, text.data(), text.size()) == 0;
    };
    set(ZMQ_CURVE_SERVERKEY, credentials.tracker_public_z85);
    set(ZMQ_CURVE_PUBLICKEY, credentials.worker.public_z85);
    set(ZMQ_CURVE_SECRETKEY, credentials.worker.secret_z85);
    if (!ok || zmq_connect(socket_, ("tcp://" + tracker).c_str()) != 0) {
      fail("cannot connect to " + tracker + ": " + zmq_strerror(zmq_errno()));
    }
  }
  ~Worker() { zmq_close(socket_); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void start() {
    std::vector<WorkerEffect> effects;
    machine_.start(now(), effects);
    carry_out(effects);
  }
  void finalize() {
    std::vector<WorkerEffect> effects;
    machine_.leave(true, "", now(), effects);
    carry_out(effects);
  }
  void tick() {
    const auto deadline = machine_.next_deadline();
    if (!deadline || *deadline > now()) return;
    std::vector<WorkerEffect> effects;
    machine_.on_tick(now(), effects);
    carry_out(effects);
  }
  void receive() {
    zmq_msg_t message;
    zmq_msg_init(&message);
    while (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) >= 0) {
      const auto envelope = decode_envelope(
          {static_cast<const std::byte*>(zmq_msg_data(&message)), zmq_msg_size(&message)}, Side::kTracker);
      if (!envelope.ok()) fail("the tracker sent what cannot be read: " + envelope.status().describe());
      std::vector<WorkerEffect> effects;
      machine_.on_message(envelope.value(), now(), effects);
      carry_out(effects);
    }
    zmq_msg_close(&message);
  }
  [[nodiscard]] void* socket() const { return socket_; }
  [[nodiscard]] bool is_member() const { return machine_.state() == WorkerMachine::State::kMember; }
  [[nodiscard]] bool is_finished() const { return machine_.state() == WorkerMachine::State::kFinished; }
  [[nodiscard]] std::uint64_t sent() const { return sent_; }

 private:
  static WorkerMachine::Options options(const std::string& tracker, const std::string& job, int index, int workers) {
    WorkerMachine::Options options;
    options.job = job;
    options.self = Incarnation(static_cast<std::uint64_t>(index) + 1);
    options.join_timeout_ms = kPhaseTimeoutMs;
    options.tracker_name = tracker;
    options.join.set_worker_id("w" + std::to_string(index));
    options.join.set_host_id("host" + std::to_string(index / kRanksPerHost));
    options.join.set_domain_id(options.join.host_id());
    auto* endpoint = options.join.add_endpoints();
    endpoint->set_address("127.0.0.1");
    endpoint->set_port(static_cast<std::uint32_t>(10'000 + index));
    auto* settings = options.join.mutable_settings();
    settings->set_world_size(static_cast<std::uint32_t>(workers));
    settings->set_round_timeout_ms(kRoundTimeoutMs);
    settings->set_algorithm("auto");
    settings->set_chunk_bytes(limits::kDefaultChunkBytes);
    settings->set_streams(1);
    settings->set_checksums(true);
    settings->set_check_call_sites(true);
    return options;
  }

  void carry_out(const std::vector<WorkerEffect>& effects) {
    for (const auto& effect : effects) {
      if (const auto* send = std::get_if<worker_effect::Send>(&effect)) {
        const std::string bytes = encode(send->envelope, Side::kWorker);
        if (zmq_send(socket_, bytes.data(), bytes.size(), ZMQ_DONTWAIT) < 0) fail("a queue to the tracker is full");
        ++sent_;
      } else if (const auto* failed = std::get_if<worker_effect::Fail>(&effect)) {
        fail("a worker is out: " + failed->why.describe());
      } else if (const auto* stop = std::get_if<worker_effect::StopDataPath>(&effect)) {
        fail("the epoch ended: " + stop->why.describe());
      }
    }
  }

  void* socket_;
  WorkerMachine machine_;
  std::uint64_t sent_ = 0;
};

// Of another process: user and system time so far, and memory.
struct Usage {
  double cpu_s = 0;
  long rss_kib = 0, peak_kib = 0;
};
Usage usage_of(long pid) {
  Usage usage;
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  const auto after_name = text.rfind(')');
  if (after_name == std::string::npos) fail("there is no process " + std::to_string(pid));
  std::istringstream fields(text.substr(after_name + 2));
  std::string field;
  for (int i = 3; fields >> field; ++i) {  // proc(5): 14 is utime, 15 is stime
    if (i == 14 || i == 15) usage.cpu_s += std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
  }
  std::ifstream status("/proc/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) == 0) usage.rss_kib = std::strtol(line.c_str() + 6, nullptr, 10);
    if (line.rfind("VmHWM:", 0) == 0) usage.peak_kib = std::strtol(line.c_str() + 6, nullptr, 10);
  }
  return usage;
}

using Workers = std::vector<std::unique_ptr<Worker>>;

// Serves all connections until `done`, at most kPhaseTimeoutMs.
void serve_until(Workers& workers, const char* phase, const std::function<bool()>& done) {
  std::vector<zmq_pollitem_t> items;
  for (const auto& worker : workers) items.push_back({worker->socket(), 0, ZMQ_POLLIN, 0});
  const TimeMs give_up = now() + kPhaseTimeoutMs;
  while (!done()) {
    if (now() > give_up) fail(std::string(phase) + " takes longer than " + std::to_string(kPhaseTimeoutMs) + " ms");
    if (zmq_poll(items.data(), static_cast<int>(items.size()), 20) < 0) fail("zmq_poll failed");
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].revents != 0) workers[i]->receive();
      workers[i]->tick();
    }
  }
}

std::uint64_t total_sent(const Workers& workers) {
  std::uint64_t sum = 0;
  for (const auto& worker : workers) sum += worker->sent();
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv);
  const int count = static_cast<int>(arguments.number("workers", 1000));
  const long pid = arguments.number("tracker_pid", 0);
  const std::int64_t seconds = arguments.number("seconds", 20);
  const std::string tracker = arguments.text("tracker", "");
  const std::string job = "load";

  // A connection takes a socket's descriptor and one to wake its owner.
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < static_cast<rlim_t>(4 * count)) fail("too few file descriptors: raise `ulimit -n`");

  const auto secret = storage::Secret::load(arguments.text("secret_file", ""));
  if (!secret.ok()) fail(secret.status().describe());
  const auto credentials = secret.value().for_job(job);
  if (!credentials.ok()) fail(credentials.status().describe());
  void* context = zmq_ctx_new();
  zmq_ctx_set(context, ZMQ_MAX_SOCKETS, count + 16);
  Workers workers;
  for (int i = 0; i < count; ++i) {
    workers.push_back(std::make_unique<Worker>(context, tracker, credentials.value(), job, i, count));
  }

  const Usage before = usage_of(pid);
  const double start_us = bench::now_us();
  const double own_cpu_before_us = bench::cpu_us();
  for (const auto& worker : workers) worker->start();
  double first_plan_ms = 0;
  serve_until(workers, "joining", [&] {
    if (first_plan_ms == 0 &&
        std::any_of(workers.begin(), workers.end(), [](const auto& w) { return w->is_member(); })) {
      first_plan_ms = (bench::now_us() - start_us) / 1000;
    }
    return std::all_of(workers.begin(), workers.end(), [](const auto& worker) { return worker->is_member(); });
  });
  const double last_plan_ms = (bench::now_us() - start_us) / 1000;
  const double own_cpu_s = (bench::cpu_us() - own_cpu_before_us) / 1e6;
  const Usage joined = usage_of(pid);

  const std::uint64_t sent_before = total_sent(workers);
  const TimeMs end = now() + seconds * 1000;
  serve_until(workers, "heartbeats", [&] { return now() >= end; });
  const auto beats = static_cast<double>(total_sent(workers) - sent_before);
  const Usage beaten = usage_of(pid);

  const double finalize_us = bench::now_us();
  for (const auto& worker : workers) worker->finalize();
  serve_until(workers, "finalize", [&] {
    return std::all_of(workers.begin(), workers.end(), [](const auto& worker) { return worker->is_finished(); });
  });
  const double finalized_ms = (bench::now_us() - finalize_us) / 1000;

  std::printf(
      "{\"workers\":%d,\"first_plan_ms\":%.0f,\"last_plan_ms\":%.0f,\"plan_cpu_s\":%.2f,\"own_cpu_s\":%.2f,"
      "\"heartbeats_per_s\":%.0f,\"heartbeat_cpu_percent\":%.1f,"
      "\"rss_before_mib\":%.1f,\"rss_mib\":%.1f,\"peak_mib\":%.1f,\"finalize_ms\":%.0f}\n",
      count, first_plan_ms, last_plan_ms, joined.cpu_s - before.cpu_s, own_cpu_s, beats / static_cast<double>(seconds),
      (beaten.cpu_s - joined.cpu_s) / static_cast<double>(seconds) * 100, static_cast<double>(before.rss_kib) / 1024,
      static_cast<double>(beaten.rss_kib) / 1024, static_cast<double>(beaten.peak_kib) / 1024, finalized_ms);
  workers.clear();
  zmq_ctx_term(context);
  return 0;
}
