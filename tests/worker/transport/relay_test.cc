// Connections between others, over loopback: all that is sent arrives, and nobody waits for who does not read.
#include "worker/transport/relay.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <vector>

#include "worker/transport/link_transport.h"

namespace {

// So many calls of splice() work; later ones fail as where the kernel has none.
std::atomic<int> splices_left{INT32_MAX};
std::atomic<int> sleeps{0};  // or looks: calls of epoll_wait()

}  // namespace

extern "C" ssize_t splice(int in, off64_t* in_offset, int out, off64_t* out_offset, size_t bytes, unsigned flags) {
  if (splices_left.fetch_sub(1) <= 0) {
    splices_left = 0;
    errno = EINVAL;
    return -1;
  }
  return ::syscall(SYS_splice, in, in_offset, out, out_offset, bytes, flags);
}

extern "C" int epoll_wait(int epoll, epoll_event* events, int most, int timeout_ms) {
  sleeps++;
  return static_cast<int>(::syscall(SYS_epoll_pwait, epoll, events, most, timeout_ms, nullptr, 0));
}

namespace warren::worker {
namespace {

constexpr int kPatienceMs = 10'000;  // after this a test fails
constexpr int kStandsStillMs = 200;  // nothing moves for so long: nothing will
constexpr int kSocketBytes = 64 << 10;

// Two connected TCP sockets, non-blocking, with small buffers.
std::array<OwnedFd, 2> connected() {
  const OwnedFd listener(::socket(AF_INET, SOCK_STREAM, 0));
  for (const int option : {SO_SNDBUF, SO_RCVBUF}) {
    EXPECT_EQ(::setsockopt(listener.get(), SOL_SOCKET, option, &kSocketBytes, sizeof kSocketBytes), 0);
  }
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof a;
  EXPECT_EQ(::bind(listener.get(), reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  EXPECT_EQ(::listen(listener.get(), 1), 0);
  EXPECT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&a), &length), 0);
  OwnedFd one(::socket(AF_INET, SOCK_STREAM, 0));
  for (const int option : {SO_SNDBUF, SO_RCVBUF}) {
    EXPECT_EQ(::setsockopt(one.get(), SOL_SOCKET, option, &kSocketBytes, sizeof kSocketBytes), 0);
  }
  EXPECT_EQ(::connect(one.get(), reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
  OwnedFd other(::accept(listener.get(), nullptr, nullptr));
  for (const int fd : {one.get(), other.get()}) EXPECT_EQ(::fcntl(fd, F_SETFL, O_NONBLOCK), 0);
  return {std::move(one), std::move(other)};
}

bool ready(int fd, short events, int timeout_ms) {
  pollfd p{fd, events, 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

// Bytes that tell where they stand.
std::vector<std::byte> pattern(std::size_t bytes, std::size_t from = 0) {
  std::vector<std::byte> out(bytes);
  for (std::size_t i = 0; i < bytes; i++) out[i] = static_cast<std::byte>((from + i) * 2654435761u >> 13);
  return out;
}

// One connection that is passed on, and its two ends.
struct Passed {
  explicit Passed(Relay& relay) {
    auto first = connected(), second = connected();
    ends = {std::move(first[0]), std::move(second[0])};
    const Status status = relay.join(std::move(first[1]), std::move(second[1]));
    EXPECT_TRUE(status.ok()) << status.describe();
  }
  [[nodiscard]] int end(int i) const { return ends[static_cast<std::size_t>(i)].get(); }
  std::array<OwnedFd, 2> ends;
};

// How many bytes a socket takes until it takes none for so long.
std::size_t fill(int fd, std::size_t most, int stands_still_ms) {
  const auto bytes = pattern(most);
  std::size_t sent = 0;
  while (sent < most && ready(fd, POLLOUT, stands_still_ms)) {
    const ssize_t n = ::send(fd, bytes.data() + sent, most - sent, MSG_NOSIGNAL);
    if (n > 0) sent += static_cast<std::size_t>(n);
  }
  return sent;
}

// What comes until the end, or until there are so many.
std::vector<std::byte> read_all(int fd, std::size_t most = SIZE_MAX) {
  std::vector<std::byte> out;
  std::array<std::byte, 65536> part;
  while (out.size() < most && ready(fd, POLLIN, kPatienceMs)) {
    const ssize_t n = ::recv(fd, part.data(), std::min(part.size(), most - out.size()), 0);
    if (n == 0) return out;
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      ADD_FAILURE() << std::strerror(errno);
      return out;
    }
    if (n > 0) out.insert(out.end(), part.begin(), part.begin() + n);
  }
  EXPECT_EQ(out.size(), most) << "nothing more comes";
  return out;
}

bool ended(int fd) {
  char byte = 0;
  return ready(fd, POLLIN, kPatienceMs) && ::recv(fd, &byte, 1, 0) <= 0;
}

// With splice() for so many calls.
class RelayTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { splices_left = GetParam(); }
  void TearDown() override { splices_left = INT32_MAX; }
  // Sends all of it while the other end reads.
  static void send_through(const Passed& p, int from, std::size_t bytes) {
    const auto sent = pattern(bytes);
    std::vector<std::byte> got;
    std::array<std::byte, 65536> part;
    for (std::size_t at = 0; got.size() < bytes;) {
      pollfd fds[2] = {{p.end(1 - from), POLLIN, 0}, {p.end(from), POLLOUT, 0}};
      ASSERT_GT(::poll(fds, at < bytes ? 2 : 1, kPatienceMs), 0);
      if (at < bytes && fds[1].revents != 0) {
        const ssize_t n = ::send(p.end(from), sent.data() + at, bytes - at, MSG_NOSIGNAL);
        if (n > 0) at += static_cast<std::size_t>(n);
      }
      const ssize_t n = ::recv(p.end(1 - from), part.data(), part.size(), 0);
      ASSERT_NE(n, 0);
      if (n > 0) got.insert(got.end(), part.begin(), part.begin() + n);
    }
    EXPECT_TRUE(got == sent);
  }
  static bool over(const Relay& relay) {
    for (int i = 0; i < kPatienceMs && relay.connections() != 0; i++) ::poll(nullptr, 0, 1);
    return relay.connections() == 0;
  }
  Relay relay_;
};

TEST_P(RelayTest, AllBytesArriveBothWays) {
  const Passed p(relay_);
  constexpr std::size_t kBytes = std::size_t{3} << 20;
  send_through(p, 0, kBytes);
  send_through(p, 1, kBytes);
  EXPECT_EQ(relay_.stop(), 2 * kBytes);
  EXPECT_EQ(relay_.stop(), 0u);
}

TEST_P(RelayTest, AnEndIsToldWhenAllBeforeItHasArrived) {
  const Passed p(relay_);
  const auto sent = pattern(200'000);
  ASSERT_EQ(fill(p.end(0), sent.size(), kPatienceMs), sent.size());
  ASSERT_EQ(::shutdown(p.end(0), SHUT_WR), 0);
  EXPECT_TRUE(read_all(p.end(1)) == sent);
  // The other direction goes on.
  send_through(p, 1, 300'000);
  EXPECT_EQ(relay_.connections(), 1u);
  ASSERT_EQ(::shutdown(p.end(1), SHUT_WR), 0);
  EXPECT_TRUE(ended(p.end(0)));
  EXPECT_TRUE(over(relay_));
}

// I8; and others do not wait for it.
TEST_P(RelayTest, WhoDoesNotReadHoldsUpItsSenderAlone) {
  const Passed slow(relay_);
  constexpr std::size_t kMost = std::size_t{64} << 20;
  const std::size_t taken = fill(slow.end(0), kMost, kStandsStillMs);
  // The kernel doubles what is asked for, and there are four sockets on the way.
  EXPECT_LE(taken, Relay::kWindowBytes + 4 * 2 * std::size_t{kSocketBytes} + (std::size_t{512} << 10));
  EXPECT_GE(taken, Relay::kWindowBytes / 2);
  const Passed other(relay_);
  send_through(other, 0, 1'000'000);
  send_through(slow, 1, 1'000'000);
  EXPECT_TRUE(read_all(slow.end(1), taken) == pattern(taken));
}

// Many small pieces fill a pipe long before their bytes do.
TEST_P(RelayTest, SmallPiecesThatNobodyReadsYetArrive) {
  const Passed p(relay_);
  const int at_once = 1;
  ASSERT_EQ(::setsockopt(p.end(0), IPPROTO_TCP, TCP_NODELAY, &at_once, sizeof at_once), 0);
  constexpr std::size_t kPiece = 100, kMost = 60'000;
  const auto bytes = pattern(kPiece * kMost);
  std::size_t sent = 0;
  while (sent < bytes.size() && ready(p.end(0), POLLOUT, kStandsStillMs)) {
    const int before = sleeps;
    const ssize_t n = ::send(p.end(0), bytes.data() + sent, std::min(kPiece, bytes.size() - sent), MSG_NOSIGNAL);
    if (n > 0) sent += static_cast<std::size_t>(n);
    // Each is to be taken on its own.
    for (int i = 0; i < 200 && sleeps == before; i++) std::this_thread::yield();
  }
  EXPECT_LT(sent, bytes.size());
  EXPECT_TRUE(read_all(p.end(1), sent) == pattern(sent));
}

// What is held then is not lost.
TEST_P(RelayTest, TheKernelMayCeaseToSplice) {
  const Passed p(relay_);
  const std::size_t taken = fill(p.end(0), std::size_t{64} << 20, kStandsStillMs);
  splices_left = 0;
  ASSERT_EQ(::shutdown(p.end(0), SHUT_WR), 0);
  EXPECT_TRUE(read_all(p.end(1)) == pattern(taken));
}

TEST_P(RelayTest, AResetEndsBoth) {
  Passed p(relay_);
  send_through(p, 0, 1000);
  const linger at_once{1, 0};
  ASSERT_EQ(::setsockopt(p.end(0), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  p.ends[0] = OwnedFd();
  EXPECT_TRUE(ended(p.end(1)));
  EXPECT_TRUE(over(relay_));
}

TEST_P(RelayTest, WritingToWhoHasGoneEndsBothAndNothingElse) {
  Passed p(relay_);
  const Passed other(relay_);
  p.ends[1] = OwnedFd();
  // SIGPIPE would end the process.
  std::array<std::byte, 1000> bytes{};
  while (::send(p.end(0), bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0 || errno == EAGAIN) {
    (void)ready(p.end(0), POLLOUT, 1);
  }
  EXPECT_TRUE(errno == EPIPE || errno == ECONNRESET) << std::strerror(errno);
  send_through(other, 0, 1000);
  EXPECT_EQ(relay_.connections(), 1u);
}

// I6.
TEST_P(RelayTest, NothingMovesAfterTheStop) {
  const Passed p(relay_);
  const std::size_t taken = fill(p.end(0), std::size_t{64} << 20, kStandsStillMs);
  const std::uint64_t passed = relay_.stop();
  EXPECT_LT(passed, taken) << "some of it was held";
  EXPECT_EQ(relay_.connections(), 0u);
  EXPECT_EQ(read_all(p.end(1)).size(), passed);
  // Begun again, it knows nothing of them.
  const Passed fresh(relay_);
  send_through(fresh, 0, 1000);
  EXPECT_EQ(relay_.stop(), 1000u);
}

// Neither a stream that has ended nor one that is stuck is looked at again and again.
TEST_P(RelayTest, WhereNothingCanMoveItSleeps) {
  const Passed half(relay_), stuck(relay_);
  ASSERT_EQ(::shutdown(half.end(0), SHUT_WR), 0);
  ASSERT_TRUE(ended(half.end(1)));
  (void)fill(stuck.end(0), std::size_t{64} << 20, kStandsStillMs);
  ASSERT_EQ(::shutdown(stuck.end(0), SHUT_WR), 0);
  ASSERT_EQ(::shutdown(stuck.end(1), SHUT_WR), 0);
  ASSERT_TRUE(ended(stuck.end(0)));
  const int before = sleeps;
  ::poll(nullptr, 0, kStandsStillMs);
  EXPECT_LT(sleeps - before, 20);
}

// A link whose streams go by way of two relays, in its two processes' transports.
TEST_P(RelayTest, FramesOfALinkGoByWayOfSeveral) {
  Relay second;
  std::array<Relay*, 2> relays = {&relay_, &second};
  LinkTransport low([](GroupId, Rank) {}), high([](GroupId, Rank) {});
  low.open(Generation(1), 1, true, {1, 2});
  high.open(Generation(1), 1, true, {2, 1});
  for (std::uint16_t i = 0; i < 2; i++) {
    Passed p(*relays[i]);
    ASSERT_TRUE(low.adopt(Generation(1), kWorldGroup, Rank(1), i, p.ends[0].release()).ok());
    ASSERT_TRUE(high.adopt(Generation(1), kWorldGroup, Rank(0), i, p.ends[1].release()).ok());
  }
  constexpr std::uint32_t kFrames = 64;
  constexpr std::size_t kBytes = 50'000;
  const auto header = [](std::uint32_t message) {
    FrameHeader h;
    h.generation = Generation(1);
    h.round = {Timeline(0), kWorldGroup, Version(0), Sequence(4)};
    h.message = message;
    h.fingerprint.collective = Collective::kAllreduce;
    h.fingerprint.type = DataType::kF32;
    h.fingerprint.op = ReduceOp::kSum;
    h.fingerprint.count = kBytes / sizeof(float);
    return h;
  };
  const auto sent = pattern(kFrames * kBytes);
  std::vector<std::byte> got(sent.size());
  const LinkId to = low.link(kWorldGroup, Rank(1)), from = high.link(kWorldGroup, Rank(0));
  for (std::uint32_t m = 0; m < kFrames; m++) {
    high.post_recv(from, header(m), std::span(got).subspan(m * kBytes, kBytes), m);
    low.post_send(to, header(m), {std::span(sent).subspan(m * kBytes, kBytes)}, m);
  }
  std::uint32_t completed = 0;
  Status status;
  // Until so many have been received, or one has failed.
  const auto receive = [&](std::uint32_t frames) {
    std::array<Completion, 16> c;
    std::vector<pollfd> fds;
    while (completed < frames && status.ok()) {
      const std::size_t moved = low.poll(c);
      const std::size_t n = high.poll(c);
      for (std::size_t i = 0; i < n; i++) {
        if (!c[i].status.ok()) status = c[i].status;
      }
      completed += static_cast<std::uint32_t>(n);
      if (moved + n != 0) continue;
      fds.clear();
      low.collect_pollfds(fds);
      high.collect_pollfds(fds);
      const int woken = ::poll(fds.data(), fds.size(), kPatienceMs);
      low.woken();
      high.woken();
      ASSERT_GT(woken, 0) << completed << " frames have come";
    }
  };
  receive(kFrames);
  EXPECT_TRUE(status.ok()) << status.describe();
  EXPECT_TRUE(got == sent);
  // A relay that goes takes the link with it.
  high.post_recv(from, header(0), std::span(got).first(kBytes), 0);
  high.post_recv(from, header(1), std::span(got).first(kBytes), 1);
  EXPECT_GE(second.stop(), sent.size() / 2);
  receive(kFrames + 1);
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.describe();
  EXPECT_GE(relay_.stop(), sent.size() / 2);
}

INSTANTIATE_TEST_SUITE_P(Ways, RelayTest, ::testing::Values(INT32_MAX, 0),
                         [](const auto& spliced) { return spliced.param == 0 ? "Copied" : "Spliced"; });

}  // namespace
}  // namespace warren::worker
