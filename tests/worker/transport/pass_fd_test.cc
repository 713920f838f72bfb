// Descriptors over real sockets of both kinds that Warren uses: streams (data links) and packets (segments).
#include "worker/transport/pass_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string>

#include "tests/worker/segments/fixture.h"
#include "tests/worker/send_fds.h"

namespace warren::worker {
namespace {

struct Pair {
  explicit Pair(int type) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
    here = OwnedFd(ends[0]);
    there = OwnedFd(ends[1]);
  }
  OwnedFd here, there;
};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Another description of the same pipe: what is written to it can be read from `reader`.
bool leads_to(int writer, int reader) {
  const char said = 'x';
  char heard = 0;
  return ::write(writer, &said, 1) == 1 && ::read(reader, &heard, 1) == 1 && heard == said;
}

class PassFd : public testing::TestWithParam<int> {
 protected:
  Result<std::optional<Parcel>> receive() { return receive_with_fd(sockets_.there.get(), std::span(room_)); }
  [[nodiscard]] std::string text(std::size_t n) const { return {reinterpret_cast<const char*>(room_.data()), n}; }

  Pair sockets_{GetParam()};
  std::array<std::byte, 8> room_{};
};

TEST_P(PassFd, BytesArriveWithTheDescriptorThatWasSentWithThem) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  const OwnedFd reader(ends[0]), writer(ends[1]);
  const std::size_t before = open_descriptors();
  ASSERT_TRUE(send_with_fd(sockets_.here.get(), bytes_of("first"), writer.get()).value());
  auto came = receive();
  ASSERT_TRUE(came.ok() && came.value()) << came.status().describe();
  EXPECT_EQ(text(came.value()->bytes), "first");
  EXPECT_FALSE(came.value()->cut);
  ASSERT_TRUE(came.value()->fd.open());
  EXPECT_NE(came.value()->fd.get(), writer.get());
  EXPECT_TRUE(leads_to(came.value()->fd.get(), reader.get()));
  EXPECT_EQ(::fcntl(came.value()->fd.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC) << "children must not have it";
  EXPECT_TRUE(leads_to(writer.get(), reader.get())) << "the sender keeps its own";
  came = Status(Code::kUnavailable, "dropped");
  EXPECT_EQ(open_descriptors(), before);
}

TEST_P(PassFd, BytesArriveAlone) {
  ASSERT_TRUE(send_with_fd(sockets_.here.get(), bytes_of("alone"), -1).value());
  const auto came = receive();
  ASSERT_TRUE(came.ok() && came.value());
  EXPECT_EQ(text(came.value()->bytes), "alone");
  EXPECT_FALSE(came.value()->fd.open());
}

TEST_P(PassFd, NeitherEndWaits) {
  auto came = receive();
  ASSERT_TRUE(came.ok()) << came.status().describe();
  EXPECT_FALSE(came.value().has_value());
  bool taken = true;
  for (int i = 0; taken && i < 1'000'000; ++i) {
    const auto sent = send_with_fd(sockets_.here.get(), bytes_of("12345678"), STDIN_FILENO);
    ASSERT_TRUE(sent.ok() || sent.status().code() == Code::kUnavailable);
    taken = sent.ok() && sent.value();  // many descriptors on their way are refused before the socket is full
  }
  EXPECT_FALSE(taken);
}

TEST_P(PassFd, TheEndOfTheOtherEndIsSeen) {
  sockets_.here = OwnedFd();
  const auto came = receive();
  ASSERT_TRUE(came.ok() && came.value());
  EXPECT_EQ(came.value()->bytes, 0u);
  EXPECT_EQ(send_with_fd(sockets_.there.get(), bytes_of("x"), -1).status().code(), Code::kUnavailable);
}

TEST_P(PassFd, MoreThanOneIsRefusedAndClosed) {
  for (const int sent : {2, 9}) {
    const std::size_t before = open_descriptors();
    send_with_descriptors(sockets_.here.get(), "many", 4, sent);
    EXPECT_EQ(receive().status().code(), Code::kCorrupt);
    EXPECT_EQ(open_descriptors(), before);
  }
}

TEST_P(PassFd, OneThatThisProcessHasNoRoomForIsALossAndSaysSo) {
  ASSERT_TRUE(send_with_fd(sockets_.here.get(), bytes_of("x"), STDIN_FILENO).value());
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const OwnedFd lowest(::dup(STDIN_FILENO));  // no number below it is free
  rlimit full = usual;
  full.rlim_cur = static_cast<rlim_t>(lowest.get()) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &full), 0);
  const auto came = receive();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_EQ(came.status().code(), Code::kExhausted);
}

INSTANTIATE_TEST_SUITE_P(Sockets, PassFd, testing::Values(SOCK_STREAM, SOCK_SEQPACKET),
                         [](const auto& test) { return test.param == SOCK_STREAM ? "stream" : "packets"; });

TEST(PassFdPackets, OneThatDoesNotFitIsCutAndSaysSo) {
  const Pair sockets(SOCK_SEQPACKET);
  ASSERT_TRUE(send_with_fd(sockets.here.get(), bytes_of("123456789"), -1).value());
  std::array<std::byte, 8> room{};
  const auto came = receive_with_fd(sockets.there.get(), std::span(room));
  ASSERT_TRUE(came.ok() && came.value());
  EXPECT_EQ(came.value()->bytes, room.size());
  EXPECT_TRUE(came.value()->cut);
}

}  // namespace
}  // namespace warren::worker
