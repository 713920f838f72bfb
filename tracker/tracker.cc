#include "tracker/tracker.h"

#include <google/protobuf/stubs/logging.h>
#include <sodium.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "recovery/base/check.h"
#include "tracker/control_socket.h"
#include "tracker/http_server.h"
#include "tracker/job_table.h"
#include "tracker/metrics.h"

namespace warren::tracker {
namespace {

using Clock = std::chrono::steady_clock;

// Messages handled before timers and snapshots have their turn.
constexpr std::size_t kMessagesAtOnce = 256;
constexpr std::int64_t kSnapshotFreshMs = 100;
constexpr auto kSnapshotWait = std::chrono::seconds(2);

TimeMs now() {
  return {std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch()).count()};
}

Status check(const TrackerOptions& options) {
  const auto wrong = [](const char* why) { return Status(Code::kInvalidArgument, why); };
  if (options.journal == nullptr) return wrong("a tracker needs a journal");
  if (options.http_port < -1 || options.http_port > 65535) return wrong("the HTTP port is outside -1 to 65535");
  if (options.insecure && options.secret) return wrong("a secret and no authentication contradict each other");
  if (options.insecure) return {};
  if (!options.secret)
    return wrong("a tracker needs a secret: make one with `warren keygen --out=FILE`, or switch authentication off");
  if (!options.secret->is_root()) {
    return wrong("this is the secret of one job; a tracker needs the root secret from which those of its jobs derive");
  }
  return {};
}

Incarnation new_incarnation() {
  WARREN_CHECK(sodium_init() >= 0, "libsodium starts");
  Incarnation self;
  while (self.value == 0) randombytes_buf(&self.value, sizeof self.value);
  return self;
}

}  // namespace

class Tracker::Impl {
 public:
  explicit Impl(TrackerOptions options)
      : options_(std::move(options)),
        metrics_(WARREN_VERSION),
        journal_(*options_.journal, metrics_),
        table_({new_incarnation(), options_.secret, &journal_, options_.sink,
                [this](std::string_view connection, const std::string& bytes) { return send(connection, bytes); }}) {}
  ~Impl() {
    stop();
    if (wake_fd_ >= 0) ::close(wake_fd_);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  Status start() {
    wake_fd_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_fd_ < 0) return {Code::kInternal, std::string("no event descriptor: ") + std::strerror(errno)};
    std::optional<storage::CurveKeys> keys;
    if (options_.secret) keys = options_.secret->tracker_keys();
    auto socket = ControlSocket::bind(options_.bind_address, options_.port, keys);
    if (!socket.ok()) return socket.status();
    socket_ = std::move(socket).value();
    if (Status s = table_.restore(now()); !s.ok()) return s;
    if (options_.http_port >= 0) {
      auto http = HttpServer::start(options_.http_address, options_.http_port,
                                    [this](const std::string& path) { return page(path); });
      if (!http.ok()) return http.status();
      http_ = std::move(http).value();
      http_port_ = http_->port();
    }
    port_ = socket_->port();
    log(options_.insecure ? Severity::kWarning : Severity::kInfo, "tracker_started",
        "serving workers on " + options_.bind_address + " port " + std::to_string(port_) +
            (http_ ? ", HTTP on " + options_.http_address + " port " + std::to_string(http_port_) : ", without HTTP") +
            (options_.insecure ? "; authentication is off: anybody who reaches the port can join" : ""));
    thread_ = std::thread([this] { loop(); });
    return {};
  }

  void stop() {
    if (!thread_.joinable()) {
      http_.reset();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    published_.notify_all();
    wake();
    http_.reset();
    thread_.join();
    log(Severity::kInfo, "tracker_stopped", "the tracker has stopped; workers go on and wait for it to come back");
  }

  [[nodiscard]] std::uint16_t port() const { return port_; }
  [[nodiscard]] int http_port() const { return http_port_; }

  Result<std::shared_ptr<const Snapshot>> snapshot() {
    std::unique_lock lock(mutex_);
    if (!snapshot_ || now() - taken_ > kSnapshotFreshMs) {
      const std::uint64_t before = generation_;
      wanted_ = true;
      wake();
      const bool came = published_.wait_for(lock, kSnapshotWait, [&] { return stopping_ || generation_ != before; });
      if (stopping_) return Status(Code::kClosed, "the tracker has been stopped");
      if (!came) return Status(Code::kTimeout, "the tracker is too busy to show its state");
    }
    return snapshot_;
  }

 private:
  void loop() {
    while (true) {
      std::int64_t wait_ms = -1;
      if (const auto deadline = table_.next_deadline()) wait_ms = std::max<std::int64_t>(*deadline - now(), 0);
      socket_->wait(wake_fd_, wait_ms);
      std::uint64_t wakes = 0;
      (void)!::read(wake_fd_, &wakes, sizeof wakes);
      socket_->receive(
          kMessagesAtOnce,
          [this](const Sender& from, std::span<const std::byte> bytes) {
            const auto begin = Clock::now();
            metrics_.message_in(bytes.size());
            table_.on_message(from, bytes, now());
            metrics_.message_handled(std::chrono::duration<double>(Clock::now() - begin).count());
          },
          [this](const Sender& from, std::string_view why) {
            metrics_.message_in(0);
            table_.on_malformed(from, why, now());
          });
      socket_->look_after_strangers(now(),
                                    [this](std::string_view address) { table_.on_failed_handshake(address, now()); });
      table_.on_tick(now());
      if (!publish()) break;
    }
    socket_.reset();
  }

  // Makes a snapshot if somebody wants one. False: the tracker is to stop.
  bool publish() {
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return false;
      if (!wanted_) return true;
      wanted_ = false;
    }
    auto made = std::make_shared<Snapshot>();
    const TimeMs at = now();
    made->uptime_ms = at - began_;
    made->version = WARREN_VERSION;
    made->port = port_;
    made->insecure = options_.insecure;
    made->jobs = table_.status(at);
    metrics_.update(table_.counts(), *made);
    {
      const std::lock_guard lock(mutex_);
      snapshot_ = std::move(made);
      taken_ = at;
      ++generation_;
    }
    published_.notify_all();
    return true;
  }

  HttpReply page(const std::string& path) {
    if (path == "/healthz" || path == "/status" || path == "/metrics" || path == "/") {
      const auto now_seen = snapshot();
      // Also what makes /healthz true: the loop thread has just answered.
      if (!now_seen.ok()) return {503, "text/plain; charset=utf-8", now_seen.status().describe() + "\n"};
      if (path == "/healthz") return {200, "text/plain; charset=utf-8", "ok\n"};
      if (path == "/status") return {200, "application/json", to_json(*now_seen.value())};
      if (path == "/metrics") return {200, "text/plain; version=0.0.4; charset=utf-8", metrics_.text()};
      return {200, "text/html; charset=utf-8", to_html(*now_seen.value())};
    }
    return {404, "text/plain; charset=utf-8", "there are /, /status, /metrics and /healthz\n"};
  }

  SendOutcome send(std::string_view connection, const std::string& bytes) {
    const SendOutcome outcome = socket_->send(connection, bytes);
    if (outcome == SendOutcome::kSent) metrics_.message_out(bytes.size());
    return outcome;
  }

  void wake() {
    const std::uint64_t one = 1;
    (void)!::write(wake_fd_, &one, sizeof one);
  }

  void log(Severity severity, std::string name, std::string text) {
    if (options_.sink) options_.sink("", {severity, std::move(name), std::move(text), {}});
  }

  TrackerOptions options_;
  Metrics metrics_;
  TimedJournal journal_;
  JobTable table_;  // the loop thread's, once it runs
  std::unique_ptr<ControlSocket> socket_;
  std::unique_ptr<HttpServer> http_;
  const TimeMs began_ = now();
  int wake_fd_ = -1;
  std::uint16_t port_ = 0;
  int http_port_ = -1;
  std::thread thread_;

  std::mutex mutex_;
  std::condition_variable published_;
  bool wanted_ = false, stopping_ = false;
  std::uint64_t generation_ = 0;
  TimeMs taken_;
  std::shared_ptr<const Snapshot> snapshot_;
};

Tracker::Tracker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tracker::~Tracker() = default;

Result<std::unique_ptr<Tracker>> Tracker::start(TrackerOptions options) {
  if (Status s = check(options); !s.ok()) return s.because_of_this("cannot start the tracker");
  // Protobuf writes a line to stderr for every damaged message; the table's own log of them is limited.
  google::protobuf::SetLogHandler(nullptr);
  auto impl = std::make_unique<Impl>(std::move(options));
  if (Status s = impl->start(); !s.ok()) return s.because_of_this("cannot start the tracker");
  return std::unique_ptr<Tracker>(new Tracker(std::move(impl)));
}

void Tracker::stop() {
  impl_->stop();
}
std::uint16_t Tracker::port() const {
  return impl_->port();
}
int Tracker::http_port() const {
  return impl_->http_port();
}
Result<std::shared_ptr<const Snapshot>> Tracker::snapshot() {
  return impl_->snapshot();
}

}  // namespace warren::tracker
