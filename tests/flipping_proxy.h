// A TCP proxy on loopback that flips one bit of what passes, as a faulty switch would, or lets nothing pass for a
// while, as a cut does.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace warren {

class FlippingProxy {
 public:
  // Passes each connection on to this port of the machine.
  explicit FlippingProxy(std::uint16_t target) : target_(target) {
    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in at = loopback(0);
    socklen_t size = sizeof at;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
    EXPECT_EQ(::listen(listener_, 16), 0);
    EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &size), 0);
    port_ = ntohs(at.sin_port);
    wake_ = ::eventfd(0, EFD_CLOEXEC);
    thread_ = std::thread([this] { loop(); });
  }
  ~FlippingProxy() {
    ends_ = true;
    wake();
    thread_.join();
    for (const Pair& p : pairs_) close(p);
    ::close(listener_);
    ::close(wake_);
  }
  FlippingProxy(const FlippingProxy&) = delete;
  FlippingProxy& operator=(const FlippingProxy&) = delete;

  [[nodiscard]] std::uint16_t port() const { return port_; }

  // Flips a bit in the last byte of what passes next towards the target, or from it.
  void flip_next_to_target() { flip_to_ = true; }
  void flip_next_from_target() { flip_from_ = true; }
  // Holds what comes from either side, until it passes it on again.
  void cut() { cut_ = true; }
  void mend() {
    cut_ = false;
    wake();
  }
  // Whether all that was asked for has been done.
  [[nodiscard]] bool has_flipped() const { return !flip_to_ && !flip_from_; }

  // Whether so many connections have been closed by the target within `patience`.
  bool await_closed_by_target(int times, std::chrono::milliseconds patience) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, patience, [&] { return closed_by_target_ >= times; });
  }

 private:
  struct Pair {
    int from, to;
  };
  static void close(const Pair& p) {
    ::close(p.from);
    ::close(p.to);
  }
  static sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
  }

  void wake() {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(wake_, &one, sizeof one), ssize_t{sizeof one});
  }

  void loop() {
    while (!ends_) {
      const bool cut = cut_;
      std::vector<pollfd> fds = {{wake_, POLLIN, 0}};
      if (!cut) {
        fds.push_back({listener_, POLLIN, 0});
        for (const Pair& p : pairs_) {
          fds.push_back({p.from, POLLIN, 0});
          fds.push_back({p.to, POLLIN, 0});
        }
      }
      if (::poll(fds.data(), fds.size(), -1) < 0) continue;
      if (fds[0].revents != 0) {
        std::uint64_t woken = 0;
        EXPECT_EQ(::read(wake_, &woken, sizeof woken), ssize_t{sizeof woken});
        continue;
      }
      if (cut || cut_) continue;
      std::vector<Pair> open;
      for (std::size_t i = 0; i < pairs_.size(); ++i) {
        const Pair& p = pairs_[i];
        const bool asks = fds[2 + 2 * i].revents == 0 || pass(p.from, p.to, flip_to_);
        const bool answers = fds[3 + 2 * i].revents == 0 || pass(p.to, p.from, flip_from_);
        if (!answers) {
          const std::lock_guard lock(mutex_);
          ++closed_by_target_;
          changed_.notify_all();
        }
        if (asks && answers) {
          open.push_back(p);
        } else {
          close(p);
        }
      }
      pairs_ = std::move(open);
      if (fds[1].revents != 0) begin();
    }
  }

  void begin() {
    Pair p{::accept(listener_, nullptr, nullptr), ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    const sockaddr_in at = loopback(target_);
    if (p.from >= 0 && ::connect(p.to, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) {
      pairs_.push_back(p);
    } else {
      close(p);
    }
  }

  static bool pass(int from, int to, std::atomic<bool>& flip) {
    char bytes[65536];
    const ssize_t n = ::recv(from, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    if (flip.exchange(false)) bytes[n - 1] ^= 1;
    for (ssize_t sent = 0, more = 0; sent < n; sent += more) {
      more = ::send(to, bytes + sent, static_cast<std::size_t>(n - sent), MSG_NOSIGNAL);
      if (more <= 0) return false;
    }
    return true;
  }

  const std::uint16_t target_;
  int listener_ = -1, wake_ = -1;
  std::uint16_t port_ = 0;
  std::vector<Pair> pairs_;  // the thread's
  std::atomic<bool> flip_to_{false}, flip_from_{false}, cut_{false}, ends_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  int closed_by_target_ = 0;
  std::thread thread_;
};

}  // namespace warren
