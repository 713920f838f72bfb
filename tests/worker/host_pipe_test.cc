#include "worker/transport/host_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

namespace warren::worker {
namespace {

struct Pipe {
  Pipe() {
    memory = std::move(HostPipe::create()).value();
    first = std::move(HostPipe::map(memory.get(), true)).value();
    second = std::move(HostPipe::map(memory.get(), false)).value();
  }
  OwnedFd memory;
  std::unique_ptr<HostPipe> first, second;
};

std::byte byte_at(std::uint64_t i) {
  return static_cast<std::byte>((i * 0x9e3779b97f4a7c15) >> 56);
}

TEST(HostPipe, BytesArriveInOrderBothWays) {
  Pipe pipe;
  std::mt19937 random(7);
  for (auto [from, to] : {std::pair(pipe.first.get(), pipe.second.get()), {pipe.second.get(), pipe.first.get()}}) {
    std::uint64_t written = 0, taken = 0;
    std::vector<std::byte> bytes(HostPipe::kRingBytes);
    while (taken < 20 * HostPipe::kRingBytes) {
      const std::size_t n = random() % bytes.size(), cut = random() % (n + 1);
      for (std::size_t i = 0; i < n; i++) bytes[i] = byte_at(written + i);
      const auto put = from->write(std::span(bytes).first(cut), std::span(bytes).subspan(cut, n - cut));
      ASSERT_TRUE(put);
      ASSERT_EQ(*put, std::min<std::uint64_t>({n, HostPipe::kPieceBytes, HostPipe::kRingBytes - (written - taken)}));
      written += *put;
      const std::size_t m = random() % bytes.size(), second_cut = random() % (m + 1);
      const auto got =
          to->read(std::span(bytes).first(second_cut), std::span(bytes).subspan(second_cut, m - second_cut));
      ASSERT_TRUE(got);
      ASSERT_EQ(*got, std::min<std::uint64_t>({m, HostPipe::kPieceBytes, written - taken}));
      for (std::size_t i = 0; i < *got; i++) ASSERT_EQ(bytes[i], byte_at(taken + i));
      taken += *got;
    }
  }
}

TEST(HostPipe, WhoSleepsIsToldOnce) {
  Pipe pipe;
  std::array<std::byte, 8> bytes{};
  EXPECT_FALSE(pipe.first->must_wake_reader()) << "nobody sleeps";
  EXPECT_TRUE(pipe.second->wait_to_read());
  EXPECT_EQ(pipe.first->write(bytes, {}), 8u);
  EXPECT_TRUE(pipe.first->must_wake_reader());
  EXPECT_FALSE(pipe.first->must_wake_reader());
  EXPECT_FALSE(pipe.second->wait_to_read()) << "there is something already";
  EXPECT_FALSE(pipe.second->must_wake_reader()) << "the other way is another ring";

  EXPECT_FALSE(pipe.first->wait_to_write()) << "there is room";
  const std::vector<std::byte> full(HostPipe::kRingBytes);
  std::size_t written = 8;
  for (std::size_t n = 1; n != 0; written += n) n = *pipe.first->write(full, {});
  EXPECT_EQ(written, HostPipe::kRingBytes);
  EXPECT_TRUE(pipe.first->wait_to_write());
  EXPECT_EQ(pipe.second->read(bytes, {}), 8u);
  EXPECT_TRUE(pipe.second->must_wake_writer());
  EXPECT_FALSE(pipe.second->must_wake_writer());
}

// Both ends sleep whenever they can, on a socket each: what is lost is waited for until CTest ends it.
TEST(HostPipe, NoWakeUpIsLost) {
  Pipe pipe;
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
  constexpr std::uint64_t kBytes = 40 * HostPipe::kRingBytes;
  const auto ring = [](int fd) { EXPECT_EQ(send(fd, "", 1, MSG_NOSIGNAL), 1); };
  const auto sleep = [](int fd) {
    pollfd p{fd, POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, -1), 1);
    std::array<char, 64> rung;
    while (recv(fd, rung.data(), rung.size(), MSG_DONTWAIT) > 0) {
    }
  };
  std::thread writer([&] {
    std::mt19937 random(1);
    std::vector<std::byte> bytes(70'000);
    for (std::uint64_t at = 0; at < kBytes;) {
      const std::size_t n = std::min<std::uint64_t>(random() % bytes.size() + 1, kBytes - at);
      for (std::size_t i = 0; i < n; i++) bytes[i] = byte_at(at + i);
      for (std::size_t done = 0; done < n;) {
        const auto put = pipe.first->write(std::span(bytes).subspan(done, n - done), {});
        ASSERT_TRUE(put);
        done += *put;
        if (*put != 0 && pipe.first->must_wake_reader()) ring(sockets[0]);
        if (*put == 0 && pipe.first->wait_to_write()) sleep(sockets[0]);
      }
      at += n;
    }
  });
  std::mt19937 random(2);
  std::vector<std::byte> bytes(70'000);
  bool right = true;
  for (std::uint64_t at = 0; at < kBytes;) {
    const auto got = pipe.second->read(std::span(bytes).first(random() % bytes.size() + 1), {});
    ASSERT_TRUE(got);
    for (std::size_t i = 0; i < *got; i++) right = right && bytes[i] == byte_at(at + i);
    at += *got;
    if (*got != 0 && pipe.second->must_wake_writer()) ring(sockets[1]);
    if (*got == 0 && pipe.second->wait_to_read()) sleep(sockets[1]);
  }
  writer.join();
  EXPECT_TRUE(right);
  close(sockets[0]);
  close(sockets[1]);
}

TEST(HostPipe, CountersThatCannotBeAreFound) {
  Pipe pipe;
  auto* raw = static_cast<std::byte*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, pipe.memory.get(), 0));
  ASSERT_NE(raw, MAP_FAILED);
  std::array<std::byte, 8> bytes{};
  const std::uint64_t rubbish = HostPipe::kRingBytes + 1;
  std::memcpy(raw, &rubbish, sizeof rubbish);  // first's "written"
  EXPECT_FALSE(pipe.second->read(bytes, {}).has_value());
  const std::uint64_t taken = 1;
  std::memcpy(raw + 128, &taken, sizeof taken);  // and what of it second has taken
  EXPECT_FALSE(pipe.first->write(bytes, {}).has_value());
  munmap(raw, 4096);
}

TEST(HostPipe, OtherMemoryIsRefused) {
  const OwnedFd unsealed(memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096 + 2 * static_cast<off_t>(HostPipe::kRingBytes)), 0);
  EXPECT_EQ(HostPipe::map(unsealed.get(), true).status().code(), Code::kRefused) << "it could shrink under us";
  const OwnedFd small(memfd_create("small", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(small.get(), 4096), 0);
  for (const int fd : {unsealed.get(), small.get()}) {
    ASSERT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  }
  EXPECT_EQ(HostPipe::map(small.get(), true).status().code(), Code::kRefused);
  EXPECT_TRUE(HostPipe::map(unsealed.get(), true).ok()) << "the seals were all that it lacked";
  const OwnedFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(HostPipe::map(file.get(), true).status().code(), Code::kRefused);
}

}  // namespace
}  // namespace warren::worker
