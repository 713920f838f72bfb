// What many workers cost a tracker: WORKERS of them, each with a connection of its own, join one job, send heartbeats
// for a while, lose one of them a few times and get it back, and finalize. They are spread over PROCESSES, and speak
// the protocol without keeping a plan each: 10,000 machines with plans of 10,000 members would need 25 GB. Reads the
// tracker's processor time and memory from /proc.
//
//   tracker_load --tracker=127.0.0.1:9370 --tracker_pid=PID --secret_file=FILE [--workers=1000] [--processes=1]
//                [--seconds=20] [--losses=5]
//
// Prints one JSON object.
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "bench/harness.h"
#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/packed_members.h"
#include "storage/secret.h"

namespace {

using namespace warren;  // NOLINT(google-build-using-namespace): one program
using bench::fail;

constexpr int kRanksPerHost = 8;
constexpr std::int64_t kPhaseTimeoutMs = 300'000;
constexpr std::uint64_t kRoundTimeoutMs = 10'000;
constexpr std::int64_t kWelcomedIntervalMs = 2500;
constexpr std::int64_t kIntervalMs = 1000;  // between two heartbeats, or joins that were not answered

std::int64_t now_ms() {
  return static_cast<std::int64_t>(bench::now_us() / 1000);
}

// What the processes tell each other.
enum class Stage : int { kWait, kRun, kLose, kFinalize, kEnd };
struct Board {
  std::atomic<Stage> stage{Stage::kWait};
  std::atomic<int> losses{0};                // asked for
  std::atomic<int> members{0};               // in the newest generation that anybody is in
  std::atomic<std::uint64_t> generation{0};  // that one
  std::atomic<int> finished{0};
  std::atomic<std::uint64_t> sent{0}, plan_bytes{0};
  std::atomic<double> first_plan_us{0}, last_plan_us{0};
};

// The generation of a plan, without a look at its members.
struct PlanHead {
  std::uint64_t generation = 0, base_generation = 0;
};
std::optional<PlanHead> plan_head(const void* data, std::size_t size) {
  using google::protobuf::internal::WireFormatLite;
  google::protobuf::io::CodedInputStream in(static_cast<const std::uint8_t*>(data), static_cast<int>(size));
  PlanHead head;
  bool in_plan = false;
  for (std::uint32_t tag = in.ReadTag(); tag != 0; tag = in.ReadTag()) {
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    if (!in_plan && field == wire::Envelope::kPlanFieldNumber) {
      std::uint32_t length = 0;
      if (!in.ReadVarint32(&length)) return std::nullopt;
      in_plan = true;  // it is the last field
    } else if (in_plan &&
               (field == wire::Plan::kGenerationFieldNumber || field == wire::Plan::kBaseGenerationFieldNumber)) {
      std::uint64_t& to = field == wire::Plan::kGenerationFieldNumber ? head.generation : head.base_generation;
      if (!in.ReadVarint64(&to)) return std::nullopt;
    } else if (!WireFormatLite::SkipField(&in, tag)) {
      return std::nullopt;
    }
  }
  return in_plan ? std::optional(head) : std::nullopt;
}

class Worker {
 public:
  Worker(void* context, const std::string& tracker, const storage::JobCredentials& credentials, const std::string& job,
         int index, int workers, Board& board)
      : context_(context),
        tracker_(tracker),
        credentials_(credentials),
        job_(job),
        index_(index),
        board_(board),
        random_(static_cast<std::uint64_t>(index)) {
    wire::Join& join = join_;
    join.set_worker_id("w" + std::to_string(index));
    join.set_host_id("host" + std::to_string(index / kRanksPerHost));
    join.set_domain_id(join.host_id());
    auto* endpoint = join.add_endpoints();
    const int host = index / kRanksPerHost;
    endpoint->set_address("10.1." + std::to_string(host / 256) + "." + std::to_string(host % 256));
    begin_life();
    auto* settings = join.mutable_settings();
    settings->set_world_size(static_cast<std::uint32_t>(workers));
    settings->set_round_timeout_ms(kRoundTimeoutMs);
    settings->set_algorithm("auto");
    settings->set_chunk_bytes(limits::kDefaultChunkBytes);
    settings->set_streams(1);
    settings->set_checksums(true);
    settings->set_check_call_sites(true);
    settings->set_replicas(2);
    connect();
  }
  ~Worker() { zmq_close(socket_); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void start() {
    state_ = State::kJoining;
    say();
  }
  void finalize() {
    state_ = State::kLeaving;
    say();
  }
  // It goes without a word to its program, and its next life joins at once.
  void be_replaced() {
    wire::Envelope e = envelope();
    e.mutable_leave()->set_generation(generation_);
    e.mutable_leave()->set_reason("replaced by tracker_load");
    send(e);
    begin_life();
    join_.set_attempt(join_.attempt() + 1);
    generation_ = heard_of_ = 0;
    const int linger_ms = 1000;
    zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
    zmq_close(socket_);
    connect();
    start();
  }
  void tick() {
    if (state_ != State::kIdle && now_ms() >= next_) say();
  }
  void receive() {
    zmq_msg_t message;
    zmq_msg_init(&message);
    while (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) >= 0) {
      const std::size_t size = zmq_msg_size(&message);
      if (const auto head = plan_head(zmq_msg_data(&message), size)) {
        board_.plan_bytes += size;
        take(*head);
        continue;
      }
      const auto e = decode_envelope({static_cast<const std::byte*>(zmq_msg_data(&message)), size}, Side::kTracker);
      if (!e.ok()) fail("the tracker sent what cannot be read: " + e.status().describe());
      tracker_life_ = e.value().sender();
      term_ = std::max(term_, e.value().term());
      if (e.value().has_refused()) fail("a worker is out: " + e.value().refused().reason());
      if (e.value().has_welcome() && state_ == State::kJoining) next_ = now_ms() + kWelcomedIntervalMs;
      if (e.value().has_interrupt()) stop(e.value().interrupt());
      if (e.value().has_finished() && state_ != State::kIdle) {
        state_ = State::kIdle;
        ++board_.finished;
      }
    }
    zmq_msg_close(&message);
  }
  [[nodiscard]] void* socket() const { return socket_; }

 private:
  enum class State { kIdle, kJoining, kMember, kStopped, kLeaving };

  // Real workers have random ids and ports too, and plans are as long as these make them.
  void begin_life() {
    life_ = random_();
    std::uniform_int_distribution<std::uint32_t> ephemeral(32'768, 60'999);
    join_.mutable_endpoints(0)->set_port(ephemeral(random_));
    join_.set_fetch_port(ephemeral(random_));
    join_.set_segment_socket(segment_socket_of(Incarnation(life_)));
  }
  void connect() {
    socket_ = zmq_socket(context_, ZMQ_DEALER);
    if (socket_ == nullptr) fail(std::string("cannot make a socket: ") + zmq_strerror(zmq_errno()));
    const int linger_ms = 0;
    const int least_ms = 50, most_ms = 1000;  // as workers do
    bool ok = zmq_setsockopt(socket_, ZMQ_LINGER, &linger_ms, sizeof linger_ms) == 0 &&
              zmq_setsockopt(socket_, ZMQ_RECONNECT_IVL, &least_ms, sizeof least_ms) == 0 &&
              zmq_setsockopt(socket_, ZMQ_RECONNECT_IVL_MAX, &most_ms, sizeof most_ms) == 0;
    const auto set = [&](int option, const std::string& text) {
      ok = ok && zmq_setsockopt(socket_, option, text.data(), text.size()) == 0;
    };
    set(ZMQ_CURVE_SERVERKEY, credentials_.tracker_public_z85);
    set(ZMQ_CURVE_PUBLICKEY, credentials_.worker.public_z85);
    set(ZMQ_CURVE_SECRETKEY, credentials_.worker.secret_z85);
    if (!ok || zmq_connect(socket_, ("tcp://" + tracker_).c_str()) != 0) {
      fail("cannot connect to " + tracker_ + ": " + zmq_strerror(zmq_errno()));
    }
  }
  [[nodiscard]] wire::Envelope envelope() const {
    wire::Envelope e;
    e.set_protocol(kProtocolVersion);
    e.set_job(job_);
    e.set_sender(life_);
    e.set_receiver(tracker_life_);
    e.set_term(term_);
    return e;
  }
  void send(const wire::Envelope& e) {
    const std::string bytes = encode(e, Side::kWorker);
    if (zmq_send(socket_, bytes.data(), bytes.size(), ZMQ_DONTWAIT) < 0) fail("a queue to the tracker is full");
    ++board_.sent;
  }
  // What this state repeats.
  void say() {
    next_ = now_ms() + kIntervalMs;
    wire::Envelope e = envelope();
    switch (state_) {
      case State::kIdle: return;
      case State::kJoining: *e.mutable_join() = join_; break;
      case State::kMember:
        e.mutable_heartbeat()->set_generation(generation_);
        e.mutable_heartbeat()->set_beat(++beat_);
        break;
      case State::kStopped:
        e.mutable_report()->set_generation(heard_of_);
        e.mutable_report()->set_plan_generation(generation_);
        break;
      case State::kLeaving:
        e.mutable_leave()->set_generation(generation_);
        e.mutable_leave()->set_finalize(true);
        break;
    }
    send(e);
  }
  void stop(const wire::Interrupt& interrupt) {
    if (!interrupt.resume()) fail("the generation ended: " + interrupt.reason());
    if (interrupt.generation() <= heard_of_ || state_ == State::kJoining) return;
    heard_of_ = interrupt.generation();
    state_ = State::kStopped;
    say();
  }
  void take(const PlanHead& head) {
    if (head.generation <= generation_ || (state_ != State::kJoining && state_ != State::kStopped)) return;
    if (head.base_generation != 0 && head.base_generation != generation_)
      fail("a plan was told by changes to another one");
    generation_ = heard_of_ = head.generation;
    state_ = State::kMember;
    const double now = bench::now_us();
    std::uint64_t newest = board_.generation.load();
    while (newest < head.generation) {
      if (!board_.generation.compare_exchange_weak(newest, head.generation)) continue;
      board_.members = 0;
      board_.first_plan_us = now;
      newest = head.generation;
    }
    ++board_.members;
    board_.last_plan_us = now;
    say();
  }

  void* context_;
  const std::string& tracker_;
  const storage::JobCredentials& credentials_;
  const std::string& job_;
  int index_;
  Board& board_;
  void* socket_ = nullptr;
  wire::Join join_;
  State state_ = State::kIdle;
  std::mt19937_64 random_;
  std::uint64_t life_ = 0, tracker_life_ = 0, term_ = 0, generation_ = 0, heard_of_ = 0, beat_ = 0;
  std::int64_t next_ = 0;
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

// One process of the load: serves its share of the connections.
void serve(Workers& workers, Board& board, bool loses) {
  std::vector<zmq_pollitem_t> items(workers.size());
  Stage done = Stage::kWait;
  int lost = 0;
  while (true) {
    const Stage stage = board.stage.load();
    if (stage == Stage::kEnd) return;
    if (stage == Stage::kRun && done == Stage::kWait) {
      for (const auto& worker : workers) worker->start();
      done = Stage::kRun;
    } else if (stage == Stage::kFinalize && done != Stage::kFinalize) {
      for (const auto& worker : workers) worker->finalize();
      done = Stage::kFinalize;
    } else if (stage == Stage::kLose && loses && lost < board.losses.load()) {
      ++lost;
      workers[static_cast<std::size_t>(lost) % workers.size()]->be_replaced();
    }
    for (std::size_t i = 0; i < items.size(); ++i) items[i] = {workers[i]->socket(), 0, ZMQ_POLLIN, 0};
    if (zmq_poll(items.data(), static_cast<int>(items.size()), 5) < 0) fail("zmq_poll failed");
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (items[i].revents != 0) workers[i]->receive();
      workers[i]->tick();
    }
  }
}

void wait_for(const char* phase, const std::function<bool()>& done) {
  const std::int64_t give_up = now_ms() + kPhaseTimeoutMs;
  while (!done()) {
    int status = 0;
    if (waitpid(-1, &status, WNOHANG) > 0) fail(std::string("a process of the load has ended while ") + phase);
    if (now_ms() > give_up) fail(std::string(phase) + " takes longer than " + std::to_string(kPhaseTimeoutMs) + " ms");
    usleep(1000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bench::Arguments arguments(argc, argv);
  const int count = static_cast<int>(arguments.number("workers", 1000));
  const int processes = static_cast<int>(arguments.number("processes", 1));
  const long pid = arguments.number("tracker_pid", 0);
  const std::int64_t seconds = arguments.number("seconds", 20);
  const int losses = static_cast<int>(arguments.number("losses", 5));
  const std::string tracker = arguments.text("tracker", "");
  const std::string job = "load";
  if (processes < 1 || count < processes || seconds < 1 || losses < 1) fail("bad arguments: see the file's head");

  // A connection takes a socket's descriptor and one to wake its owner.
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < static_cast<rlim_t>(4 * count / processes)) fail("too few file descriptors: raise `ulimit -n`");

  const auto secret = storage::Secret::load(arguments.text("secret_file", ""));
  if (!secret.ok()) fail(secret.status().describe());
  const auto credentials = secret.value().for_job(job);
  if (!credentials.ok()) fail(credentials.status().describe());
  void* shared = mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail("no shared memory");
  Board& board = *new (shared) Board;

  std::vector<pid_t> children;
  for (int p = 0; p < processes; ++p) {
    const pid_t child = fork();
    if (child < 0) fail("cannot fork");
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);                           // whoever fails ends the rest
    if (nice(10) == -1) fail("cannot be nice to the tracker");  // in life they run on other machines
    void* context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_MAX_SOCKETS, count / processes + 64);
    {
      Workers workers;
      for (int i = p; i < count; i += processes) {
        workers.push_back(std::make_unique<Worker>(context, tracker, credentials.value(), job, i, count, board));
      }
      serve(workers, board, p == 0);
    }
    zmq_ctx_term(context);
    _exit(0);
  }

  const Usage before = usage_of(pid);
  const double start_us = bench::now_us();
  board.stage = Stage::kRun;
  wait_for("joining", [&] { return board.members.load() == count; });
  const double first_plan_ms = (board.first_plan_us - start_us) / 1000;
  const double last_plan_ms = (board.last_plan_us - start_us) / 1000;
  const std::uint64_t plan_bytes = board.plan_bytes;
  const Usage joined = usage_of(pid);

  const std::uint64_t sent_before = board.sent;
  sleep(static_cast<unsigned>(seconds));
  const auto beats = static_cast<double>(board.sent - sent_before);
  const Usage beaten = usage_of(pid);

  std::vector<double> reconfigured_ms;
  board.stage = Stage::kLose;
  for (int i = 0; i < losses; ++i) {
    const std::uint64_t generation = board.generation;
    const double from_us = bench::now_us();
    ++board.losses;
    wait_for("reconfiguring", [&] { return board.generation.load() > generation && board.members.load() == count; });
    reconfigured_ms.push_back((board.last_plan_us - from_us) / 1000);
  }
  std::sort(reconfigured_ms.begin(), reconfigured_ms.end());
  const Usage reconfigured = usage_of(pid);

  const double finalize_us = bench::now_us();
  board.stage = Stage::kFinalize;
  wait_for("finalizing", [&] { return board.finished.load() == count; });
  const double finalized_ms = (bench::now_us() - finalize_us) / 1000;
  board.stage = Stage::kEnd;
  double load_cpu_s = 0;
  for (const pid_t child : children) waitpid(child, nullptr, 0);
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  load_cpu_s = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec);

  std::printf(
      "{\"workers\":%d,\"processes\":%d,\"first_plan_ms\":%.0f,\"last_plan_ms\":%.0f,\"plan_mb\":%.1f,"
      "\"plan_cpu_s\":%.2f,\"load_cpu_s\":%.0f,\"heartbeats_per_s\":%.0f,\"heartbeat_cpu_percent\":%.1f,"
      "\"reconfigured_ms\":[%.0f,%.0f,%.0f],\"reconfigured_cpu_s\":%.3f,"
      "\"rss_before_mib\":%.1f,\"rss_mib\":%.1f,\"peak_mib\":%.1f,\"finalize_ms\":%.0f}\n",
      count, processes, first_plan_ms, last_plan_ms, static_cast<double>(plan_bytes) / 1e6, joined.cpu_s - before.cpu_s,
      load_cpu_s, beats / static_cast<double>(seconds),
      (beaten.cpu_s - joined.cpu_s) / static_cast<double>(seconds) * 100, reconfigured_ms.front(),
      reconfigured_ms[reconfigured_ms.size() / 2], reconfigured_ms.back(),
      (reconfigured.cpu_s - beaten.cpu_s) / static_cast<double>(losses), static_cast<double>(before.rss_kib) / 1024,
      static_cast<double>(beaten.rss_kib) / 1024, static_cast<double>(reconfigured.peak_kib) / 1024, finalized_ms);
  return 0;
}
