#include "tracker/http_server.h"

#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace warren::tracker {
namespace {

using Clock = std::chrono::steady_clock;

// How often a thread that waits for its client looks whether others wait for the thread.
constexpr std::int64_t kLookMs = 50;

// A fixed number of threads behind a short queue. A full queue makes the accepting thread wait: the rest is the
// kernel's backlog.
class BoundedPool final : public httplib::TaskQueue {
 public:
  // `waiting`: how many connections no thread has taken yet.
  explicit BoundedPool(std::atomic<int>& waiting) : waiting_(waiting) {
    for (std::size_t i = 0; i < HttpServer::kThreads; ++i) threads_.emplace_back([this] { work(); });
  }
  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return tasks_.size() < HttpServer::kMaxWaiting; });
    tasks_.push_back(std::move(task));
    ++waiting_;
    changed_.notify_all();
  }
  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
      if (tasks_.empty()) return;  // what was accepted is served, or cut off, before the end
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      --waiting_;
      changed_.notify_all();
      lock.unlock();
      task();
      lock.lock();
    }
  }

  std::atomic<int>& waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

// A connection that ends after some time, which is shorter while others wait, after so many bytes read, or when
// `stop_fd` becomes readable.
class BoundedStream final : public httplib::Stream {
 public:
  BoundedStream(socket_t socket, int stop_fd, const std::atomic<int>& waiting)
      : socket_(socket), stop_fd_(stop_fd), waiting_(waiting) {}

  using Stream::write;
  bool is_readable() const override { return wait(POLLIN); }
  bool is_writable() const override { return wait(POLLOUT); }
  ssize_t read(char* to, size_t size) override {
    if (next_ == filled_) {
      const std::size_t room = std::min(sizeof buffer_, HttpServer::kMaxRequestBytes - read_);
      if (room == 0) return -1;
      const ssize_t n = transfer(POLLIN, [&] { return ::recv(socket_, buffer_, room, MSG_DONTWAIT); });
      if (n <= 0) return n;
      next_ = 0;
      filled_ = static_cast<std::size_t>(n);
      read_ += filled_;
    }
    // httplib asks byte by byte.
    const std::size_t n = std::min(size, filled_ - next_);
    std::memcpy(to, buffer_ + next_, n);
    next_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t size) override {
    return transfer(POLLOUT, [&] { return ::send(socket_, from, size, MSG_DONTWAIT | MSG_NOSIGNAL); });
  }
  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    ip.clear();
    port = 0;
  }
  socket_t socket() const override { return socket_; }

 private:
  // False: the connection's time is up, or the server ends.
  bool wait(short event) const {
    while (true) {
      const std::int64_t limit_ms = waiting_ > 0 ? HttpServer::kHurriedMs : HttpServer::kConnectionMs;
      const auto lived = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun_).count();
      if (lived >= limit_ms) return false;
      pollfd fds[] = {{socket_, event, 0}, {stop_fd_, POLLIN, 0}};
      const int n = ::poll(fds, 2, static_cast<int>(std::min(limit_ms - lived, kLookMs)));
      if (n == 0 || (n < 0 && errno == EINTR)) continue;
      return n > 0 && fds[1].revents == 0;
    }
  }
  template <class Call>
  ssize_t transfer(short event, Call&& call) {
    while (wait(event)) {
      const ssize_t n = call();
      if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n;
    }
    return -1;
  }

  socket_t socket_;
  int stop_fd_;
  const std::atomic<int>& waiting_;
  const Clock::time_point begun_ = Clock::now();
  char buffer_[4096];
  std::size_t next_ = 0, filled_ = 0, read_ = 0;
};

class BoundedServer final : public httplib::Server {
 public:
  explicit BoundedServer(int stop_fd) : stop_fd_(stop_fd) {}

  std::atomic<int> waiting{0};

 private:
  bool process_and_close_socket(socket_t socket) override {
    BoundedStream stream(socket, stop_fd_, waiting);
    bool closed = false;
    const bool ok = process_request(stream, true, closed, [](httplib::Request&) {});
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    return ok;
  }
  int stop_fd_;
};

}  // namespace

class HttpServer::Impl {
 public:
  Impl() : stop_fd(::eventfd(0, EFD_CLOEXEC)), server(stop_fd) {}
  ~Impl() {
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(stop_fd, &one, sizeof one);
    server.stop();
    if (thread.joinable()) thread.join();
    ::close(stop_fd);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  int stop_fd;
  BoundedServer server;
  int port = 0;
  std::atomic<bool> ended = false;
  std::thread thread;
};

HttpServer::HttpServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpServer::~HttpServer() = default;
int HttpServer::port() const {
  return impl_->port;
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(const std::string& address, int port,
                                                      std::function<HttpReply(const std::string& path)> reply) {
  auto impl = std::make_unique<Impl>();
  if (impl->stop_fd < 0) return Status(Code::kInternal, std::string("no event descriptor: ") + std::strerror(errno));
  httplib::Server& server = impl->server;
  server.new_task_queue = [&waiting = impl->server.waiting] { return new BoundedPool(waiting); };
  server.set_payload_max_length(kMaxRequestBytes);
  // Without SO_REUSEPORT, which httplib sets by itself: a second server on the port must fail.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  server.set_default_headers({{"X-Content-Type-Options", "nosniff"},
                              {"Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"},
                              {"Cache-Control", "no-store"}});
  server.Get(".*", [reply = std::move(reply)](const httplib::Request& request, httplib::Response& response) {
    HttpReply r = reply(request.path);
    response.status = r.status;
    response.set_content(r.body, r.type.c_str());
  });
  impl->port = port;
  bool bound = true;
  if (port == 0) {
    impl->port = server.bind_to_any_port(address);
    bound = impl->port > 0;
  } else {
    bound = server.bind_to_port(address, port);
  }
  if (!bound) {
    return Status(Code::kUnavailable, "cannot serve HTTP on " + address + " port " + std::to_string(port) + ": " +
                                          std::strerror(errno) + "; choose another port (0: any, -1: no HTTP)");
  }
  impl->thread = std::thread([&i = *impl] {
    i.server.listen_after_bind();
    i.ended = true;
  });
  // httplib's stop() has no effect on a server that does not run yet.
  while (!server.is_running() && !impl->ended) std::this_thread::yield();
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(impl)));
}

}  // namespace warren::tracker
