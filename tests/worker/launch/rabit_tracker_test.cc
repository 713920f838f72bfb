// A tracker of rabit's is told apart from anything else that may listen at an address.
#include "worker/launch/rabit_tracker.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

namespace warren::worker {
namespace {

using testing::HasSubstr;
constexpr std::int64_t kLongMs = 60'000;

// Listens on loopback, and does with the first connections as told.
class Listener {
 public:
  explicit Listener(std::function<void(int fd)> serve, int connections = 1)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(fd_, 1), 0);
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve = std::move(serve), connections] {
      for (int i = 0; i < connections; ++i) {
        const int connection = accept(fd_, nullptr, nullptr);
        serve(connection);
        close(connection);
      }
    });
  }
  ~Listener() {
    thread_.join();
    close(fd_);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  [[nodiscard]] HostPort address() const { return {"127.0.0.1", port_}; }

 private:
  int fd_;
  std::uint16_t port_ = 0;
  std::thread thread_;
};

std::int32_t receive_number(int fd) {
  std::int32_t value = 0;
  EXPECT_EQ(recv(fd, &value, sizeof value, MSG_WAITALL), ssize_t{sizeof value});
  return value;
}
std::string receive_text(int fd) {
  std::string value(static_cast<std::size_t>(receive_number(fd)), '\0');
  EXPECT_EQ(recv(fd, value.data(), value.size(), MSG_WAITALL), static_cast<ssize_t>(value.size()));
  return value;
}
void send_number(int fd, std::int32_t value) {
  EXPECT_EQ(send(fd, &value, sizeof value, MSG_NOSIGNAL), ssize_t{sizeof value});
}

// As dmlc-core's tracker.py reads a client, which waits for ever for what a client leaves out.
TEST(RabitTracker, IsRefusedAndHearsAWholeMessageOfItsOwnProtocol) {
  std::string said;
  Status status;
  {
    const Listener tracker([&](int fd) {
      EXPECT_EQ(receive_number(fd), 0xff99);
      send_number(fd, 0xff99);
      EXPECT_EQ(receive_number(fd), -1);
      EXPECT_EQ(receive_number(fd), -1);
      EXPECT_EQ(receive_text(fd), "NULL");
      EXPECT_EQ(receive_text(fd), "print");
      said = receive_text(fd);
    });
    status = refuse_rabits_tracker(tracker.address(), "w7", 0, kLongMs);
    EXPECT_THAT(status.describe(), HasSubstr("what answers at " + to_string(tracker.address()) + " is rabit's own"));
  }
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_THAT(said, HasSubstr("worker w7 is one of Warren's"));
}

// dmlc-submit waits until all ranks have said it, and takes a second word of one for an error.
TEST(RabitTracker, HearsOnceThatANumberedWorkerShutsDown) {
  for (const std::uint32_t attempt : {0u, 1u}) {
    std::string said;
    {
      const Listener tracker(
          [&](int fd) {
            EXPECT_EQ(receive_number(fd), 0xff99);
            send_number(fd, 0xff99);
            said += std::to_string(receive_number(fd)) + " ";
            EXPECT_EQ(receive_number(fd), -1);
            EXPECT_EQ(receive_text(fd), "NULL");
            const std::string command = receive_text(fd);
            said += command + " ";
            if (command == "print") receive_text(fd);
          },
          attempt == 0 ? 2 : 1);
      EXPECT_EQ(refuse_rabits_tracker(tracker.address(), "3", attempt, kLongMs).code(), Code::kRefused);
    }
    EXPECT_EQ(said, attempt == 0 ? "-1 print 3 shutdown " : "-1 print ");
  }
}

TEST(RabitTracker, AnythingElseIsNot) {
  const std::vector<std::function<void(int)>> others = {
      [](int) {},  // as Warren's tracker does with what is not ZeroMQ's protocol
      [](int fd) { send_number(fd, 0x99ff); },
      [](int fd) { EXPECT_EQ(send(fd, "\x99\xff", 2, MSG_NOSIGNAL), 2); },
      [](int fd) {
        const linger at_once{1, 0};  // a reset
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
      },
  };
  for (const auto& serve : others) {
    const Listener other(serve);
    EXPECT_TRUE(refuse_rabits_tracker(other.address(), "w", 0, kLongMs).ok());
  }
}

TEST(RabitTracker, WhatIsSilentOrNotThereEndsTheWait) {
  {
    // Until the client has gone.
    const Listener silent([](int fd) {
      EXPECT_EQ(receive_number(fd), 0xff99);
      char end;
      EXPECT_EQ(recv(fd, &end, 1, 0), 0);
    });
    EXPECT_TRUE(refuse_rabits_tracker(silent.address(), "w", 0, 50).ok());
  }
  HostPort nobody;
  {
    const Listener listener([](int) {});
    nobody = listener.address();
    EXPECT_TRUE(refuse_rabits_tracker(nobody, "w", 0, kLongMs).ok());
  }
  EXPECT_TRUE(refuse_rabits_tracker(nobody, "w", 0, kLongMs).ok());
  EXPECT_TRUE(refuse_rabits_tracker({"name.invalid", 1}, "w", 0, kLongMs).ok());
}

}  // namespace
}  // namespace warren::worker
