// Links under bad input: damaged, cut, foreign and stale bytes end in an error that names the peer, never in a buffer.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>
#include <tuple>

#include "recovery/base/limits.h"
#include "storage/segment.h"
#include "worker/transport/frame_checksum.h"
#include "worker/transport/handshake.h"
#include "worker/transport/link_transport.h"

namespace warren::worker {
namespace {

FrameHeader header(std::uint32_t message = 0) {
  FrameHeader h;
  h.generation = Generation(1);
  h.round = {Timeline(0), kWorldGroup, Version(0), Sequence(4)};
  h.message = message;
  h.fingerprint.collective = Collective::kAllreduce;
  h.fingerprint.type = DataType::kF32;
  h.fingerprint.op = ReduceOp::kSum;
  h.fingerprint.count = 8;
  return h;
}

// One transport whose peer's end of the connection is in the test's hands.
class OneEnd : public ::testing::Test {
 protected:
  void SetUp() override { open(1, true); }
  void open(std::uint32_t streams, bool checksums) {
    transport_.close_all();
    transport_.open(Generation(1), streams, checksums);
    link_ = transport_.link(kWorldGroup, Rank(1));
    for (std::uint16_t s = 0; s < streams; s++) {
      int fds[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
      ASSERT_TRUE(transport_.adopt(Generation(1), kWorldGroup, Rank(1), s, fds[0]).ok());
      peer_.push_back(fds[1]);
    }
  }
  void TearDown() override {
    for (const int fd : peer_) {
      if (fd >= 0) ::close(fd);
    }
  }
  // What a correct peer would send, to be damaged.
  static std::vector<std::byte> frame(const FrameHeader& h, std::span<const std::byte> payload) {
    LinkTransport sender([](GroupId, Rank) {});
    sender.open(Generation(1), 1, true);
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    EXPECT_TRUE(sender.adopt(Generation(1), kWorldGroup, Rank(0), 0, fds[0]).ok());
    sender.post_send(sender.link(kWorldGroup, Rank(0)), h, {payload}, 1);
    std::vector<std::byte> bytes(FrameHeader::kWireBytes + payload.size());
    EXPECT_EQ(::recv(fds[1], bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
    ::close(fds[1]);
    return bytes;
  }
  void deliver(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(peer_[0], bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  Completion next() {
    Completion c[1];
    for (int i = 0; i < 100; i++) {
      if (transport_.poll(c) == 1) return c[0];
    }
    ADD_FAILURE() << "nothing completed";
    return {};
  }
  bool nothing_completes() {
    Completion c[1];
    for (int i = 0; i < 100; i++) {
      if (transport_.poll(c) != 0) return false;
    }
    return true;
  }

  std::vector<std::pair<GroupId, Rank>> wanted_;
  LinkTransport transport_{[this](GroupId g, Rank r) { wanted_.emplace_back(g, r); }};
  LinkId link_ = 0;
  std::vector<int> peer_;
  std::vector<std::byte> payload_ = std::vector<std::byte>(32, std::byte{7});
  std::vector<std::byte> buffer_ = std::vector<std::byte>(32);
};

TEST_F(OneEnd, AFrameArrivesInPiecesOfOneByte) {
  transport_.post_recv(link_, header(), buffer_, 5);
  const auto bytes = frame(header(), payload_);
  for (std::size_t i = 0; i + 1 < bytes.size(); i++) {
    deliver(std::span(bytes).subspan(i, 1));
    EXPECT_TRUE(nothing_completes());
  }
  deliver(std::span(bytes).last(1));
  const Completion c = next();
  EXPECT_TRUE(c.status.ok()) << c.status.describe();
  EXPECT_EQ(c.token, 5u);
  EXPECT_EQ(buffer_, payload_);
}

// I10: whichever bit flips, the frame does not complete well.
TEST_F(OneEnd, EveryFlippedBitIsFound) {
  const auto bytes = frame(header(), payload_);
  for (std::size_t bit = 0; bit < bytes.size() * 8; bit++) {
    for (const int fd : peer_) ::close(fd);
    peer_.clear();
    open(1, true);
    auto damaged = bytes;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    transport_.post_recv(link_, header(), buffer_, 5);
    deliver(damaged);
    const Completion c = next();
    // Never a desync: nobody's program is wrong.
    ASSERT_EQ(c.status.code(), Code::kCorrupt) << "bit " << bit << ": " << c.status.describe();
    EXPECT_NE(c.status.describe().find("rank 1"), std::string::npos) << c.status.describe();
  }
}

// A connection over loopback: the transport's end, the test's.
std::pair<int, int> tcp_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(::listen(listener, 1), 0);
  EXPECT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const int one = ::socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(::connect(one, reinterpret_cast<sockaddr*>(&address), length), 0);
  const int other = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  return {one, other};
}

// A part of a big chunk wakes nobody; the rest does, also where another thread has taken a part meanwhile.
TEST_F(OneEnd, WhoSleepsForABigChunkIsWokenByMuchOfIt) {
  for (const bool another_looks : {false, true}) {
    TearDown();
    peer_.clear();
    transport_.close_all();
    transport_.open(Generation(1), 1, true);
    link_ = transport_.link(kWorldGroup, Rank(1));
    const auto ends = tcp_pair();
    const int mine = ends.first, peers = ends.second;
    ASSERT_TRUE(transport_.adopt(Generation(1), kWorldGroup, Rank(1), 0, mine).ok());
    peer_.push_back(peers);

    payload_.assign(100'000, std::byte{7});
    buffer_.assign(payload_.size(), std::byte{});
    const std::vector<std::byte> bytes = frame(header(), payload_);
    std::vector<std::byte> small(8), got(8);
    transport_.post_recv(link_, header(0), buffer_, 5);
    transport_.post_recv(link_, header(1), got, 6);
    std::vector<pollfd> fds;
    transport_.collect_pollfds(fds);
    ASSERT_EQ(fds.size(), 1u);
    const auto come = [&](std::size_t n) {
      int waiting = 0;
      while (::ioctl(mine, FIONREAD, &waiting) == 0 && static_cast<std::size_t>(waiting) < n) std::this_thread::yield();
    };
    deliver(std::span(bytes).first(50'000));
    come(50'000);
    EXPECT_EQ(::poll(fds.data(), fds.size(), 0), 0);
    if (another_looks) {
      EXPECT_TRUE(nothing_completes());
    }
    deliver(std::span(bytes).subspan(50'000));
    EXPECT_EQ(::poll(fds.data(), fds.size(), 60'000), 1);
    EXPECT_EQ(next().token, 5u);
    EXPECT_EQ(buffer_, payload_);
    // Another thread has taken all of the chunk, and the first still sleeps: for what comes next.
    deliver(frame(header(1), small));
    EXPECT_EQ(::poll(fds.data(), fds.size(), 60'000), 1);
    EXPECT_EQ(next().token, 6u);
    transport_.woken();
  }
}

TEST_F(OneEnd, AFrameThatClaimsTooMuchIsRefusedAtItsHeader) {
  transport_.post_recv(link_, header(), buffer_, 5);
  FrameHeader h = header();
  h.payload_bytes = 0xffffffffu;
  FrameBytes bytes;
  seal(h, {}, true, bytes);
  deliver(bytes);
  const Completion c = next();
  EXPECT_EQ(c.status.code(), Code::kCorrupt) << c.status.describe();
  EXPECT_NE(c.status.describe().find("4294967295"), std::string::npos) << c.status.describe();
}

TEST_F(OneEnd, AnOldGenerationChangesNothing) {
  transport_.post_recv(link_, header(), buffer_, 5);
  FrameHeader old = header();
  old.generation = Generation(0);
  deliver(frame(old, payload_));
  EXPECT_EQ(next().status.code(), Code::kCorrupt);
}

TEST_F(OneEnd, AnotherRoundIsADesyncThatNamesBoth) {
  transport_.post_recv(link_, header(), buffer_, 5);
  FrameHeader other = header();
  other.round.sequence = Sequence(5);
  other.fingerprint.collective = Collective::kBroadcast;
  deliver(frame(other, payload_));
  const Completion c = next();
  EXPECT_EQ(c.status.code(), Code::kDesync);
  EXPECT_NE(c.status.describe().find("allreduce"), std::string::npos);
  EXPECT_NE(c.status.describe().find("broadcast"), std::string::npos);
}

TEST_F(OneEnd, APeerThatClosesInTheMiddleOfAFrame) {
  transport_.post_recv(link_, header(), buffer_, 5);
  transport_.post_recv(link_, header(1), buffer_, 6);
  const auto bytes = frame(header(), payload_);
  deliver(std::span(bytes).first(100));
  ::close(std::exchange(peer_[0], -1));
  EXPECT_EQ(next().status.code(), Code::kPeerLost);
  EXPECT_EQ(next().token, 6u);
  // Posts on the broken link fail at once; sending raises no signal.
  transport_.post_send(link_, header(), {payload_}, 7);
  EXPECT_EQ(next().status.code(), Code::kPeerLost);
}

TEST_F(OneEnd, SendingToAClosedPeerIsAnErrorNotASignal) {
  ::close(std::exchange(peer_[0], -1));
  transport_.post_send(link_, header(), {payload_}, 7);
  EXPECT_EQ(next().status.code(), Code::kPeerLost);
}

TEST_F(OneEnd, ChunksAreStripedOverTheStreams) {
  for (const int fd : peer_) ::close(fd);
  peer_.clear();
  open(3, true);
  for (std::uint32_t m = 0; m < 6; m++) transport_.post_send(link_, header(m), {payload_}, m);
  for (int i = 0; i < 6; i++) EXPECT_TRUE(next().status.ok());
  for (std::size_t s = 0; s < 3; s++) {
    for (std::uint32_t m = 0; m < 2; m++) {
      FrameBytes bytes;
      ASSERT_EQ(::recv(peer_[s], bytes.data(), bytes.size(), MSG_WAITALL), static_cast<ssize_t>(bytes.size()));
      const auto h = decode(bytes);
      ASSERT_TRUE(h.ok());
      EXPECT_EQ(h.value().message, s + m * 3);
      EXPECT_EQ(h.value().stream, s);
      std::vector<std::byte> rest(32);
      ASSERT_EQ(::recv(peer_[s], rest.data(), rest.size(), MSG_WAITALL), 32);
    }
  }
}

TEST_F(OneEnd, LinksMayDifferInTheirStreams) {
  transport_.close_all();
  transport_.open(Generation(1), 3, true, {3, 1});
  for (const auto& [peer, stream, takes] : {std::tuple(1, 0, true), {1, 1, false}, {2, 1, true}, {2, 3, false}}) {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    const Status status =
        transport_.adopt(Generation(1), kWorldGroup, Rank(peer), static_cast<std::uint16_t>(stream), fds[0]);
    EXPECT_EQ(status.ok(), takes) << peer << " " << stream << ": " << status.describe();
    peer_.push_back(fds[1]);
  }
  // All frames go there.
  link_ = transport_.link(kWorldGroup, Rank(1));
  for (std::uint32_t m = 0; m < 4; m++) {
    transport_.post_send(link_, header(m), {payload_}, m);
    EXPECT_TRUE(next().status.ok());
  }
}

TEST_F(OneEnd, AdoptRefusesWhatIsNotOfThisGeneration) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  EXPECT_EQ(transport_.adopt(Generation(2), kWorldGroup, Rank(2), 0, fds[0]).code(), Code::kRefused);
  EXPECT_EQ(transport_.adopt(Generation(1), kWorldGroup, Rank(1), 0, fds[1]).code(), Code::kRefused);  // there already
  char byte = 0;
  EXPECT_EQ(::recv(fds[0], &byte, 1, 0), -1);  // closed by adopt
}

// ---- small frames at once

TEST_F(OneEnd, AFrameThatIsLookedForMayComeInPiecesOfOneByte) {
  FrameHeader due = header();
  EXPECT_EQ(transport_.recv_now(link_, due, buffer_), FramesAtOnce::Now::kLater);
  const auto bytes = frame(header(), payload_);
  for (const std::byte& byte : bytes) {
    EXPECT_EQ(transport_.recv_now(link_, due, buffer_), FramesAtOnce::Now::kLater);
    deliver(std::span(&byte, 1));
  }
  EXPECT_EQ(transport_.recv_now(link_, due, buffer_), FramesAtOnce::Now::kDone);
  EXPECT_EQ(buffer_, payload_);
  EXPECT_TRUE(nothing_completes());
}

TEST_F(OneEnd, WhoPostsGoesOnWithAFrameThatWasLookedFor) {
  const auto bytes = frame(header(), payload_);
  for (std::size_t cut = 1; cut < bytes.size(); cut++) {
    FrameHeader due = header();
    std::ranges::fill(buffer_, std::byte{});
    deliver(std::span(bytes).first(cut));
    ASSERT_EQ(transport_.recv_now(link_, due, buffer_), FramesAtOnce::Now::kLater);
    transport_.post_recv(link_, header(), buffer_, 5);
    // While it is posted nobody else looks.
    ASSERT_EQ(transport_.recv_now(link_, due, buffer_), FramesAtOnce::Now::kPost);
    deliver(std::span(bytes).subspan(cut));
    const Completion c = next();
    ASSERT_EQ(c.token, 5u);
    ASSERT_TRUE(c.status.ok()) << c.status.describe();
    ASSERT_EQ(buffer_, payload_);
  }
}

// I10, I6: the same checks as for what is posted, and whoever posts next hears of it.
TEST_F(OneEnd, WhatIsNotDueIsNotTaken) {
  const auto refused = [&](std::vector<std::byte> bytes, Code code) {
    for (const int fd : peer_) ::close(fd);
    peer_.clear();
    open(1, true);
    deliver(bytes);
    FrameHeader due = header();
    EXPECT_EQ(transport_.recv_now(link_, due, buffer_), FramesAtOnce::Now::kPost);
    EXPECT_TRUE(nothing_completes());
    transport_.post_recv(link_, header(), buffer_, 5);
    EXPECT_EQ(next().status.code(), code);
    EXPECT_EQ(transport_.send_now(link_, due, payload_, 6), FramesAtOnce::Now::kPost);
  };
  const auto good = frame(header(), payload_);
  for (std::size_t bit = 0; bit < good.size() * 8; bit += 5) {
    auto damaged = good;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    refused(damaged, Code::kCorrupt);
  }
  FrameHeader other = header();
  other.generation = Generation(2);
  refused(frame(other, payload_), Code::kCorrupt);
  other = header();
  other.round.sequence = Sequence(5);
  refused(frame(other, payload_), Code::kDesync);
}

TEST_F(OneEnd, WhatDoesNotFitIntoASocketIsUnderWay) {
  std::vector<std::byte> large(std::size_t{1} << 20, std::byte{3});
  FrameHeader out = header();
  ASSERT_EQ(transport_.send_now(link_, out, large, 9), FramesAtOnce::Now::kPosted);
  EXPECT_EQ(transport_.send_now(link_, out, payload_, 10), FramesAtOnce::Now::kPost);
  std::vector<std::byte> got(FrameHeader::kWireBytes + large.size());
  std::size_t n = 0;
  Completion c[1];
  std::size_t completed = 0;
  while (n < got.size()) {
    completed += transport_.poll(c);
    const ssize_t some = ::recv(peer_[0], got.data() + n, got.size() - n, MSG_DONTWAIT);
    if (some > 0) n += static_cast<std::size_t>(some);
  }
  if (completed == 0) completed += transport_.poll(c);
  ASSERT_EQ(completed, 1u);
  EXPECT_EQ(c[0].token, 9u);
  EXPECT_TRUE(std::equal(large.begin(), large.end(), got.begin() + FrameHeader::kWireBytes));
  EXPECT_EQ(transport_.send_now(link_, out, payload_, 11), FramesAtOnce::Now::kDone);
}

// Its sender's buffer goes when part of the frame has left.
TEST_F(OneEnd, AFrameThatIsUnderWayGoesOnFromOtherMemory) {
  std::vector<std::byte> large(std::size_t{1} << 20);
  for (std::size_t i = 0; i < large.size(); i++) large[i] = static_cast<std::byte>(i * 7 + i / 256);
  const std::vector<std::byte> copy = large;
  transport_.post_send(link_, header(), {std::span(large).subspan(16)}, 9);
  transport_.post_send(link_, header(), {payload_}, 10);  // lies elsewhere, and stays
  Completion c[2];
  ASSERT_EQ(transport_.poll(c), 0u);
  transport_.move_payloads(link_, 9, large, copy.data());
  std::ranges::fill(large, std::byte{0xee});
  std::vector<std::byte> got(FrameHeader::kWireBytes + large.size() - 16);
  std::size_t n = 0, completed = 0;
  while (n < got.size()) {
    completed += transport_.poll(c);
    const ssize_t some = ::recv(peer_[0], got.data() + n, got.size() - n, MSG_DONTWAIT);
    if (some > 0) n += static_cast<std::size_t>(some);
  }
  while (completed < 2) completed += transport_.poll(c);
  EXPECT_TRUE(std::equal(copy.begin() + 16, copy.end(), got.begin() + FrameHeader::kWireBytes));
  std::vector<std::byte> rest(FrameHeader::kWireBytes + payload_.size());
  ASSERT_EQ(::recv(peer_[0], rest.data(), rest.size(), MSG_WAITALL), static_cast<ssize_t>(rest.size()));
  EXPECT_TRUE(std::equal(payload_.begin(), payload_.end(), rest.begin() + FrameHeader::kWireBytes));
}

// It outlives the copy that the first one goes on from.
TEST_F(OneEnd, AnotherFrameOfTheSameMemoryStaysThere) {
  std::vector<std::byte> large(std::size_t{1} << 20, std::byte{3});
  transport_.post_send(link_, header(), {large}, 9);
  transport_.post_send(link_, header(), {std::span(large).first(100)}, 10);
  Completion c[2];
  ASSERT_EQ(transport_.poll(c), 0u);
  const std::vector<std::byte> copy(large.size(), std::byte{7});
  transport_.move_payloads(link_, 9, large, copy.data());
  std::vector<std::byte> got(2 * FrameHeader::kWireBytes + large.size() + 100);
  std::size_t n = 0, completed = 0;
  while (n < got.size()) {
    completed += transport_.poll(c);
    const ssize_t some = ::recv(peer_[0], got.data() + n, got.size() - n, MSG_DONTWAIT);
    if (some > 0) n += static_cast<std::size_t>(some);
  }
  while (completed < 2) completed += transport_.poll(c);
  EXPECT_EQ(got[got.size() - 101 - FrameHeader::kWireBytes], std::byte{7})
      << "the end of the first goes on from the copy";
  EXPECT_TRUE(std::equal(got.end() - 100, got.end(), large.begin()));
}

TEST_F(OneEnd, AtOnceOrNotAtAllWhereTheLinkIsNotUpOrItsPeerGone) {
  FrameHeader h = header();
  const LinkId other = transport_.link(kWorldGroup, Rank(2));
  EXPECT_EQ(transport_.send_now(other, h, payload_, 1), FramesAtOnce::Now::kPost);
  EXPECT_EQ(transport_.recv_now(other, h, buffer_), FramesAtOnce::Now::kPost);
  ::close(std::exchange(peer_[0], -1));
  EXPECT_EQ(transport_.recv_now(link_, h, buffer_), FramesAtOnce::Now::kPost);
  EXPECT_TRUE(nothing_completes());
  transport_.post_recv(link_, header(), buffer_, 5);
  EXPECT_EQ(next().status.code(), Code::kPeerLost);
}

TEST_F(OneEnd, SmallFramesAreStripedAsPostedOnesAre) {
  for (const int fd : peer_) ::close(fd);
  peer_.clear();
  open(3, true);
  for (std::uint32_t m = 0; m < 7; m++) {
    FrameHeader h = header(m);
    if (m % 2 == 0) {
      ASSERT_EQ(transport_.send_now(link_, h, payload_, 1), FramesAtOnce::Now::kDone);
    } else {
      transport_.post_send(link_, h, {payload_}, 1);
      EXPECT_TRUE(next().status.ok());
    }
    std::vector<std::byte> got(FrameHeader::kWireBytes + payload_.size());
    ASSERT_EQ(::recv(peer_[m % 3], got.data(), got.size(), MSG_DONTWAIT), static_cast<ssize_t>(got.size()));
  }
}

TEST_F(OneEnd, CloseForgetsEverything) {
  transport_.post_recv(link_, header(), buffer_, 5);
  transport_.close_all();
  Completion c[4];
  EXPECT_EQ(transport_.poll(c), 0u);
  char byte = 0;
  EXPECT_EQ(::recv(peer_[0], &byte, 1, 0), 0);
  transport_.open(Generation(2), 1, true);
  transport_.link(kWorldGroup, Rank(1));
  EXPECT_EQ(wanted_.size(), 2u);
}

// ---- handshake

using namespace handshake;

LinkKey key_of(int seed) {
  LinkKey k;
  k.fill(static_cast<std::byte>(seed));
  return k;
}

Hello a_hello() {
  Hello h;
  h.job_hash = job_hash("job");
  h.generation = Generation(3);
  h.from = Rank(1);
  h.to = Rank(2);
  h.from_incarnation = Incarnation(11);
  h.to_incarnation = Incarnation(22);
  h.relay_to = Rank(3);
  h.nonce.fill(std::byte{9});
  return h;
}

TEST(Handshake, BothEndsProveTheKey) {
  const HelloBytes hello = encode(a_hello());
  const auto decoded = decode_hello(hello);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().from_incarnation, Incarnation(11));
  EXPECT_EQ(decoded.value().relay_to, Rank(3));
  Nonce nonce;
  nonce.fill(std::byte{4});
  const ChallengeBytes challenge = make_challenge(key_of(1), hello, nonce);
  EXPECT_TRUE(check_challenge(key_of(1), hello, challenge).ok());
  EXPECT_EQ(check_challenge(key_of(2), hello, challenge).code(), Code::kRefused);
  const ProofBytes proof = make_proof(key_of(1), hello, challenge);
  EXPECT_TRUE(check_proof(key_of(1), hello, challenge, proof).ok());
  EXPECT_EQ(check_proof(key_of(2), hello, challenge, proof).code(), Code::kRefused);
  // A proof is good for its own conversation alone.
  nonce.fill(std::byte{5});
  EXPECT_FALSE(check_proof(key_of(1), hello, make_challenge(key_of(1), hello, nonce), proof).ok());
}

TEST(Handshake, EveryChangedByteOfTheGreetingIsRefusedOrProvenWrong) {
  const HelloBytes hello = encode(a_hello());
  const ChallengeBytes challenge = make_challenge(key_of(1), hello, {});
  for (std::size_t i = 0; i < hello.size(); i++) {
    HelloBytes changed = hello;
    changed[i] ^= std::byte{0x10};
    EXPECT_FALSE(decode_hello(changed).ok() && check_challenge(key_of(1), changed, challenge).ok()) << "byte " << i;
  }
}

TEST(Handshake, GreetingsOutOfRangeAreRefused) {
  const auto refused = [](auto change) {
    Hello h = a_hello();
    change(h);
    return !decode_hello(encode(h)).ok();
  };
  EXPECT_TRUE(refused([](Hello& h) { h.from = Rank(-1); }));
  EXPECT_TRUE(refused([](Hello& h) { h.to = Rank(limits::kMaxWorldSize); }));
  EXPECT_TRUE(refused([](Hello& h) { h.to = h.from; }));
  EXPECT_TRUE(refused([](Hello& h) { h.streams = 0; }));
  EXPECT_TRUE(refused([](Hello& h) { h.stream = h.streams; }));
  EXPECT_TRUE(refused([](Hello& h) { h.streams = limits::kMaxStreams + 1; }));
  EXPECT_TRUE(refused([](Hello& h) { h.relay_to = Rank(-2); }));
  EXPECT_TRUE(refused([](Hello& h) { h.relay_to = Rank(limits::kMaxWorldSize); }));
  EXPECT_TRUE(refused([](Hello& h) { h.relay_to = h.from; }));
  EXPECT_TRUE(refused([](Hello& h) { h.relay_to = h.to; }));
}

TEST(Handshake, VerdictsSurviveTheWire) {
  for (const Verdict v :
       {Verdict::kWelcome, Verdict::kBadProof, Verdict::kStaleGeneration, Verdict::kNotMe, Verdict::kBusy}) {
    const auto back = decode_verdict(make_verdict(v));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(back.value(), v);
  }
  VerdictBytes bytes = make_verdict(Verdict::kWelcome);
  bytes[4] = std::byte{9};
  EXPECT_FALSE(decode_verdict(bytes).ok());
}

// Two ends of one connection with a pipe of shared memory.
class Piped : public ::testing::Test {
 protected:
  void SetUp() override { connect(); }
  void connect() {
    for (LinkTransport& end : end_) end.close_all();
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const OwnedFd memory = std::move(HostPipe::create()).value();
    for (const int e : {0, 1}) {
      end_[e].open(Generation(1), 1, true);
      link_[e] = end_[e].link(kWorldGroup, Rank(1 - e));
      auto pipe = std::move(HostPipe::map(memory.get(), e == 0)).value();
      ASSERT_TRUE(end_[e].adopt(Generation(1), kWorldGroup, Rank(1 - e), 0, fds[e], std::move(pipe)).ok());
    }
  }
  // Sleeps as a session does until something completes.
  static Completion next(LinkTransport& transport) {
    Completion c[1];
    while (transport.poll(c) == 0) {
      std::vector<pollfd> fds;
      transport.collect_pollfds(fds);
      EXPECT_GE(::poll(fds.data(), fds.size(), -1), 0);
      transport.woken();
    }
    return c[0];
  }
  std::shared_ptr<const SegmentView> log_of_0_;  // as mapped at end 1
  HostMemory host_[2];
  LinkTransport end_[2] = {LinkTransport([](GroupId, Rank) {}, nullptr, &host_[0]),
                           LinkTransport([](GroupId, Rank) {}, [this](Rank) { return log_of_0_; }, &host_[1])};
  LinkId link_[2] = {};
};

TEST_F(Piped, SleepersAreWokenByTheOtherEnd) {
  constexpr std::uint32_t kRounds = 3000;
  const auto play = [&](int e) {
    std::vector<std::byte> mine(e == 0 ? 600'000 : 40), theirs(e == 0 ? 40 : 600'000);
    for (std::uint32_t i = 0; i < kRounds; i++) {
      const std::size_t n = i % 100 == 0 ? mine.size() : 16, m = i % 100 == 0 ? theirs.size() : 16;
      mine[0] = static_cast<std::byte>(i);
      end_[e].post_recv(link_[e], header(i), std::span(theirs).first(m), 2);
      if (e == 0) end_[e].post_send(link_[e], header(i), {std::span(mine).first(n)}, 1);
      // One end answers the other.
      for (int done = 0; done < 2; done++) {
        const Completion c = next(end_[e]);
        ASSERT_TRUE(c.status.ok()) << c.status.describe();
        if (c.token != 2) continue;
        ASSERT_EQ(theirs[0], static_cast<std::byte>(i));
        if (e == 1) end_[e].post_send(link_[e], header(i), {std::span(mine).first(n)}, 1);
      }
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
}

// Small frames at once, between posted ones and sleeps.
TEST_F(Piped, FramesAtOnceKeepTheirOrderWithPostedOnes) {
  constexpr std::uint32_t kRounds = 20'000;
  const auto play = [&](int e) {
    LinkTransport& t = end_[e];
    std::vector<std::byte> mine(100), theirs(100);
    const auto send = [&](std::uint32_t i) {
      FrameHeader h = header(i);
      mine[0] = static_cast<std::byte>(i), mine[99] = static_cast<std::byte>(i >> 8);
      if (i % 7 != 0 && t.send_now(link_[e], h, mine, 1) == FramesAtOnce::Now::kDone) return;
      t.post_send(link_[e], header(i), {mine}, 1);
      ASSERT_EQ(next(t).token, 1u);
    };
    for (std::uint32_t i = 0; i < kRounds; i++) {
      if (e == 0) send(i);
      FrameHeader due = header(i);
      auto came = FramesAtOnce::Now::kLater;
      for (int looks = 0; looks < 100 && came == FramesAtOnce::Now::kLater; looks++) {
        came = t.recv_now(link_[e], due, theirs);
        std::this_thread::yield();
      }
      if (came != FramesAtOnce::Now::kDone) {
        t.post_recv(link_[e], header(i), theirs, 2);
        const Completion c = next(t);
        ASSERT_TRUE(c.status.ok()) << c.status.describe();
        ASSERT_EQ(c.token, 2u);
      }
      ASSERT_EQ(theirs[0], static_cast<std::byte>(i));
      ASSERT_EQ(theirs[99], static_cast<std::byte>(i >> 8));
      if (e == 1) send(i);
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
}

TEST_F(Piped, WhatIsNotDueStaysForWhoPosts) {
  std::vector<std::byte> bytes(100, std::byte{5}), got(100);
  FrameHeader sent = header(0), due = header(0);
  EXPECT_EQ(end_[1].recv_now(link_[1], due, got), FramesAtOnce::Now::kLater);
  // Another site is as good, as long as sites are not compared.
  sent.fingerprint.site = 17;
  ASSERT_EQ(end_[0].send_now(link_[0], sent, bytes, 1), FramesAtOnce::Now::kDone);
  EXPECT_EQ(end_[1].recv_now(link_[1], due, got), FramesAtOnce::Now::kDone);
  EXPECT_EQ(got, bytes);
  const auto refused = [&](FrameHeader wrong, std::size_t size, Code code) {
    connect();
    ASSERT_EQ(end_[0].send_now(link_[0], wrong, std::span(bytes).first(size), 1), FramesAtOnce::Now::kDone);
    got.assign(100, std::byte{});
    due = header(0);
    EXPECT_EQ(end_[1].recv_now(link_[1], due, got), FramesAtOnce::Now::kPost);
    EXPECT_EQ(got, std::vector<std::byte>(100));
    end_[1].post_recv(link_[1], header(0), got, 2);
    EXPECT_EQ(next(end_[1]).status.code(), code);
  };
  FrameHeader wrong = header(0);
  wrong.generation = Generation(2);
  refused(wrong, 100, Code::kCorrupt);
  wrong = header(0);
  wrong.round.sequence = Sequence(5);
  refused(wrong, 100, Code::kDesync);
  refused(header(0), 50, Code::kCorrupt);
}

// What goes as a note, because its header was said before, is checked as all are.
TEST_F(Piped, WhatRepeatsAHeaderIsCheckedAsWell) {
  std::vector<std::byte> bytes(100, std::byte{5}), got(100);
  const auto of = [](std::uint64_t sequence, std::uint32_t message, std::uint64_t site) {
    FrameHeader h = header(message);
    h.round.sequence = Sequence(sequence);
    h.fingerprint.site = site;
    return h;
  };
  const auto repeat = [&](FrameHeader sent, FrameHeader due, std::size_t size, Code code) {
    connect();
    for (const bool first : {true, false}) {
      FrameHeader h = of(1, first ? 0 : 1, sent.fingerprint.site), d = of(1, first ? 0 : 1, 0);
      ASSERT_EQ(end_[0].send_now(link_[0], h, bytes, 1), FramesAtOnce::Now::kDone);
      ASSERT_EQ(end_[1].recv_now(link_[1], d, got), FramesAtOnce::Now::kDone);
    }
    bytes[7] = std::byte{8};
    got.assign(100, std::byte{});
    ASSERT_EQ(end_[0].send_now(link_[0], sent, std::span(bytes).first(size), 1), FramesAtOnce::Now::kDone);
    if (code == Code::kOk) {
      EXPECT_EQ(end_[1].recv_now(link_[1], due, got), FramesAtOnce::Now::kDone);
      EXPECT_EQ(got, bytes);
      return;
    }
    EXPECT_EQ(end_[1].recv_now(link_[1], due, got), FramesAtOnce::Now::kPost);
    EXPECT_EQ(got, std::vector<std::byte>(100));
    end_[1].post_recv(link_[1], due, got, 2);
    const Completion c = next(end_[1]);
    EXPECT_EQ(c.status.code(), code) << c.status.describe();
    const char* const says =
        code == Code::kDesync ? "rank 0 calls something else: here " : "rank 0 sent what is not due";
    EXPECT_EQ(c.status.describe().find(says), 0) << c.status.describe();
    EXPECT_EQ(got, std::vector<std::byte>(100));
  };
  repeat(of(2, 0, 0), of(2, 0, 0), 100, Code::kOk);
  repeat(of(2, 0, 17), of(2, 0, 18), 100, Code::kOk);
  repeat(of(2, 0, 17 | kSiteCompared), of(2, 0, 18 | kSiteCompared), 100, Code::kDesync);
  repeat(of(2, 0, 0), of(3, 0, 0), 100, Code::kDesync);
  repeat(of(2, 1, 0), of(2, 0, 0), 100, Code::kCorrupt);
  repeat(of(2, 0, 0), of(2, 0, 0), 50, Code::kCorrupt);
  FrameHeader other = of(2, 0, 0);
  other.fingerprint.count++;
  repeat(of(2, 0, 0), other, 100, Code::kDesync);
  other = of(2, 0, 0);
  other.generation = Generation(7);
  repeat(of(2, 0, 0), other, 100, Code::kCorrupt);
}

// More of them than there are slots go on through the ring, in their order.
TEST_F(Piped, ManySmallFramesAtOnceKeepTheirOrder) {
  std::uint32_t sent = 0, come = 0;
  for (int turn = 0; turn < 200; turn++) {
    std::vector<std::byte> bytes(static_cast<std::size_t>(turn * 11));
    for (int i = 0; i < turn % 9; i++, sent++) {
      FrameHeader h = header(sent);
      std::ranges::fill(bytes, static_cast<std::byte>(sent));
      ASSERT_EQ(end_[0].send_now(link_[0], h, bytes, 1), FramesAtOnce::Now::kDone);
    }
    for (; come < sent; come++) {
      std::vector<std::byte> got(bytes.size());
      FrameHeader due = header(come);
      if (come % 2 == 0) {
        ASSERT_EQ(end_[1].recv_now(link_[1], due, got), FramesAtOnce::Now::kDone) << come;
      } else {
        end_[1].post_recv(link_[1], due, got, 2);
        const Completion c = next(end_[1]);
        ASSERT_TRUE(c.status.ok()) << c.status.describe();
      }
      ASSERT_EQ(got, std::vector<std::byte>(bytes.size(), static_cast<std::byte>(come)));
    }
  }
  EXPECT_GT(come, 700u);
}

TEST_F(Piped, AFullRingTakesNothingAtOnce) {
  std::vector<std::byte> bytes(4000, std::byte{5}), got(4000);
  std::uint32_t sent = 0;
  FrameHeader h = header(0);
  while (end_[0].send_now(link_[0], h, bytes, 1) == FramesAtOnce::Now::kDone) h.message = ++sent;
  EXPECT_GT(sent, 50u);
  for (std::uint32_t m = 0; m < sent; m++) {
    FrameHeader due = header(m);
    ASSERT_EQ(end_[1].recv_now(link_[1], due, got), FramesAtOnce::Now::kDone) << m;
  }
  EXPECT_EQ(end_[0].send_now(link_[0], h, bytes, 1), FramesAtOnce::Now::kDone);
}

TEST_F(Piped, WhatCameBeforeTheEndIsTaken) {
  std::vector<std::byte> bytes(1000, std::byte{5}), got(1000);
  end_[0].post_send(link_[0], header(0), {bytes}, 1);
  EXPECT_TRUE(next(end_[0]).status.ok());
  end_[0].close_all();
  std::vector<pollfd> fds;
  end_[1].post_recv(link_[1], header(0), got, 2);
  end_[1].collect_pollfds(fds);
  end_[1].woken();
  end_[1].post_recv(link_[1], header(1), got, 3);
  const Completion first = next(end_[1]), second = next(end_[1]);
  EXPECT_TRUE(first.status.ok()) << first.status.describe();
  EXPECT_EQ(got, bytes);
  EXPECT_EQ(second.status.code(), Code::kPeerLost);
  EXPECT_NE(second.status.describe().find("rank 0 broke: closed by the other end"), std::string::npos);
}

// Notes lie between frames: in the middle of one it would be taken for what is due there.
TEST_F(Piped, ANoteInsideAFrameIsDamage) {
  const OwnedFd memory = std::move(HostPipe::create()).value();
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  for (const int e : {0, 1}) {
    end_[e].close_all();
    end_[e].open(Generation(1), 1, true);
    link_[e] = end_[e].link(kWorldGroup, Rank(1 - e));
    auto pipe = std::move(HostPipe::map(memory.get(), e == 0)).value();
    ASSERT_TRUE(end_[e].adopt(Generation(1), kWorldGroup, Rank(1 - e), 0, fds[e], std::move(pipe)).ok());
  }
  // More than the ring holds: a part comes.
  std::vector<std::byte> bytes(HostPipe::kRingBytes + 100'000, std::byte{5}), got(bytes.size());
  end_[0].post_send(link_[0], header(0), {bytes}, 1);
  end_[1].post_recv(link_[1], header(0), got, 2);
  Completion c[1];
  EXPECT_EQ(end_[0].poll(c), 0u);
  for (int i = 0; i < 1000; i++) ASSERT_EQ(end_[1].poll(c), 0u);
  // Its sender's memory goes mad.
  std::uint64_t written = 0;
  void* const raw = mmap(nullptr, 4096, PROT_READ, MAP_SHARED, memory.get(), 0);
  ASSERT_NE(raw, MAP_FAILED);
  std::memcpy(&written, raw, sizeof written);
  munmap(raw, 4096);
  ASSERT_GT(written, 0u);
  const auto mad = std::move(HostPipe::map(memory.get(), true)).value();
  mad->put(written);
  ASSERT_FALSE(mad->note_room().empty());
  mad->put_note();
  const Completion damaged = next(end_[1]);
  EXPECT_EQ(damaged.token, 2u);
  EXPECT_EQ(damaged.status.code(), Code::kPeerLost) << damaged.status.describe();
}

// A thread polls, without success, what another sleeps on.
TEST_F(Piped, AnotherThreadsLookDoesNotTakeTheWakeUp) {
  std::vector<std::byte> bytes(8, std::byte{5}), got(8);
  end_[1].post_recv(link_[1], header(0), got, 2);
  std::vector<pollfd> fds;
  end_[1].collect_pollfds(fds);
  Completion c[1];
  EXPECT_EQ(end_[1].poll(c), 0u);
  EXPECT_EQ(end_[1].poll(c), 0u);
  end_[0].post_send(link_[0], header(0), {bytes}, 1);
  EXPECT_EQ(::poll(fds.data(), fds.size(), 60'000), 1);
  end_[1].woken();
  EXPECT_TRUE(next(end_[1]).status.ok());
}

std::vector<std::byte> noise(std::size_t n, unsigned seed) {
  std::vector<std::byte> bytes(n);
  std::uint32_t x = seed * 2654435761u + 1;
  for (std::byte& b : bytes) b = static_cast<std::byte>((x = x * 1664525u + 1013904223u) >> 24);
  return bytes;
}

// A receiver that reads in place gets what it releases late; the sender goes on as far as the ring has room, and the
// bytes under a view stay.
TEST_F(Piped, WhatIsReadInPlaceStaysUntilItIsReleased) {
  constexpr std::size_t kBytes = HostPipe::kRingBytes / 4;
  constexpr std::uint32_t kFrames = 12;
  std::vector<std::vector<std::byte>> sent;
  std::vector<std::vector<std::byte>> scratch(kFrames, std::vector<std::byte>(kBytes));
  for (std::uint32_t i = 0; i < kFrames; i++) {
    sent.push_back(noise(kBytes - i * 100, i));
    end_[0].post_send(link_[0], header(i), {sent[i]}, 1);
    end_[1].post_recv_in_place(link_[1], header(i), std::span(scratch[i]).first(sent[i].size()), 100 + i);
  }
  std::vector<std::pair<std::uint32_t, View>> held;
  std::uint32_t come = 0, in_place = 0;
  Completion c[4];
  while (come < kFrames) {
    (void)end_[0].poll(c);
    const std::size_t n = end_[1].poll(c);
    for (std::size_t k = 0; k < n; k++) {
      ASSERT_TRUE(c[k].status.ok()) << c[k].status.describe();
      ASSERT_EQ(c[k].token, 100 + come);
      if (!c[k].view.in_place()) {
        EXPECT_TRUE(std::ranges::equal(std::span(scratch[come]).first(sent[come].size()), sent[come])) << come;
      } else {
        held.emplace_back(come, c[k].view);
        in_place++;
      }
      come++;
    }
    for (const auto& [i, view] : held) {
      ASSERT_EQ(std::memcmp(view.bytes(), sent[i].data(), sent[i].size()), 0) << i;
    }
    // The newest first, once nothing else can come in place.
    if (held.size() == 3) {
      for (std::size_t k = held.size(); k-- > 0;) end_[1].release(link_[1], held[k].second);
      held.clear();
    }
  }
  EXPECT_GE(in_place, 6u);
}

// What a receiver holds never keeps what it waits for from coming: it moves.
TEST_F(Piped, WhatIsHeldMakesRoomForWhatIsWaitedFor) {
  constexpr std::size_t kBytes = HostPipe::kRingBytes / 4;
  constexpr std::uint32_t kFrames = 20;
  std::vector<std::vector<std::byte>> scratch(kFrames, std::vector<std::byte>(kBytes)), sent;
  for (std::uint32_t i = 0; i < kFrames; i++) {
    sent.push_back(noise(kBytes, i));
    end_[0].post_send(link_[0], header(i), {sent[i]}, 1);
    end_[1].post_recv_in_place(link_[1], header(i), scratch[i], i);
  }
  Completion c[4];
  std::vector<View> views;
  for (int look = 0; look < 10'000 && views.size() < kFrames; look++) {
    (void)end_[0].poll(c);
    const std::size_t n = end_[1].poll(c);
    for (std::size_t k = 0; k < n; k++) {
      ASSERT_TRUE(c[k].status.ok());
      ASSERT_EQ(c[k].token, views.size());
      views.push_back(c[k].view);
    }
  }
  ASSERT_EQ(views.size(), kFrames) << "nothing was ever released";
  std::size_t in_place = 0;
  for (std::uint32_t i = 0; i < kFrames; i++) {
    const std::byte* at = views[i].in_place() ? views[i].bytes() : scratch[i].data();
    EXPECT_EQ(std::memcmp(at, sent[i].data(), kBytes), 0) << i;
    if (!views[i].in_place()) continue;
    in_place++;
    end_[1].release(link_[1], views[i]);
  }
  EXPECT_GE(in_place, 3u);
}

// Finals that are told by their place in the sender's log.
class Logged : public Piped {
 protected:
  static constexpr std::size_t kBytes = 10'000;
  void SetUp() override {
    Piped::SetUp();
    log_ = HostLog::create(Incarnation(7), memory_).value();
    reader_ = HostLog::create(Incarnation(8), heap_segment(std::size_t{1} << 20)).value();
    ASSERT_TRUE(reader_->attach(Incarnation(7), memory_->bytes(), memory_).ok());
    log_of_0_ = reader_->segment_of(Incarnation(7));
    ASSERT_NE(log_of_0_, nullptr);
  }
  static FrameHeader of(Version version) {
    FrameHeader h = header();
    h.round.version = version;
    return h;
  }
  LogPlace publish(std::span<const std::byte> bytes, Version version = Version(0)) {
    LogPlace place;
    const RecordInfo info{header().fingerprint, 10 * kBytes};
    EXPECT_TRUE(log_->publish(result_key(of(version).round), info, 0, bytes, &place).ok());
    EXPECT_TRUE(place.known());
    return place;
  }
  Completion exchange(const LogPlace& place, std::span<const std::byte> payload, std::span<std::byte> into,
                      bool in_place, Version version = Version(0)) {
    end_[0].post_send(link_[0], of(version), {payload, place}, 1);
    if (in_place) {
      end_[1].post_recv_in_place(link_[1], of(version), into, 2);
    } else {
      end_[1].post_recv(link_[1], of(version), into, 2);
    }
    return next(end_[1]);
  }

  std::shared_ptr<SegmentMemory> memory_ = heap_segment(std::size_t{1} << 20);
  std::unique_ptr<HostLog> log_, reader_;
  std::vector<std::byte> bytes_ = noise(kBytes, 3), got_ = std::vector<std::byte>(kBytes);
};

TEST_F(Logged, FinalsAreReadWhereTheyArePublished) {
  const LogPlace place = publish(bytes_);
  // What the sender's buffer holds by then does not matter.
  const std::vector<std::byte> overwritten(kBytes);
  const Completion c = exchange(place, overwritten, got_, true);
  ASSERT_TRUE(c.status.ok()) << c.status.describe();
  ASSERT_NE(c.view.there, nullptr);
  EXPECT_EQ(std::memcmp(c.view.bytes(), bytes_.data(), kBytes), 0);
  EXPECT_TRUE(c.view.stands());
  // Its owner goes on without this life: what is read from here on does not count.
  log_->drop_below(Version(5));
  EXPECT_TRUE(c.view.stands()) << "a preamble's rounds are never dropped";
}

TEST_F(Logged, WhatWasReadFromMemoryThatIsUsedAgainDoesNotCount) {
  const Completion c = exchange(publish(bytes_, Version(3)), bytes_, got_, true, Version(3));
  ASSERT_TRUE(c.status.ok()) << c.status.describe();
  EXPECT_TRUE(c.view.stands());
  log_->drop_below(Version(4));
  EXPECT_FALSE(c.view.stands());
}

// A place is told when the ring has room: what lies there by then may be another round's, and the payload is whole.
TEST_F(Logged, APlaceThatIsGoneBeforeItIsToldTravelsAsBytes) {
  const LogPlace place = publish(bytes_, Version(3));
  const std::vector<std::byte> before = noise(HostPipe::kRingBytes + 1, 4);
  std::vector<std::byte> into(before.size());
  FrameHeader first = of(Version(3)), second = first;
  second.message = 1;
  end_[0].post_send(link_[0], first, {before}, 1);
  end_[0].post_send(link_[0], second, {bytes_, place}, 2);
  log_->drop_below(Version(4));
  EXPECT_FALSE(place.stands());
  end_[1].post_recv(link_[1], first, into, 3);
  end_[1].post_recv(link_[1], second, got_, 4);
  Completion c[4];
  std::vector<Completion> come;
  for (int look = 0; look < 10'000 && come.size() < 2; look++) {
    (void)end_[0].poll(c);
    const std::size_t n = end_[1].poll(c);
    come.insert(come.end(), c, c + n);
  }
  ASSERT_EQ(come.size(), 2u);
  for (const Completion& completion : come) EXPECT_TRUE(completion.status.ok()) << completion.status.describe();
  EXPECT_EQ(into, before);
  EXPECT_EQ(got_, bytes_);
}

TEST_F(Logged, WhoDoesNotReadInPlaceGetsACopy) {
  const Completion c = exchange(publish(bytes_), bytes_, got_, false);
  ASSERT_TRUE(c.status.ok()) << c.status.describe();
  EXPECT_FALSE(c.view.in_place());
  EXPECT_EQ(got_, bytes_);
}

// A peer may name anything. What is not a record of this round with these bytes, published and not dropped, breaks the
// link; nothing outside of the segment is touched.
TEST_F(Logged, PlacesWhereNoSuchFinalLiesAreRefused) {
  const LogPlace good = publish(bytes_);
  const LogPlace of_another_round = publish(bytes_, Version(3));
  const LogPlace shorter = publish(std::span(bytes_).first(kBytes - 8));
  std::vector<LogPlace> bad = {of_another_round, shorter};
  for (const std::uint64_t at : {std::uint64_t{0}, good.at - 64, good.at + 1, good.at + 64, good.at + (1u << 20),
                                 UINT64_MAX, UINT64_MAX - 95, std::uint64_t{1} << 63}) {
    bad.push_back({good.extent, good.stamp, at});
  }
  for (const std::uint64_t stamp : {good.stamp - 2, good.stamp + 1, good.stamp + 2, UINT64_MAX}) {
    if (stamp != 0) bad.push_back({good.extent, stamp, good.at});
  }
  for (const std::uint32_t extent : {good.extent + 1, 1u << 20, UINT32_MAX}) {
    bad.push_back({extent, good.stamp, good.at});
  }
  for (const LogPlace& place : bad) {
    connect();
    const Completion c = exchange(place, bytes_, got_, true);
    EXPECT_EQ(c.status.code(), Code::kPeerLost) << place.extent << " " << place.stamp << " " << place.at;
    EXPECT_FALSE(c.view.in_place());
    EXPECT_NE(c.status.describe().find("rank 0 named a place in its log"), std::string::npos) << c.status.describe();
  }
  // Torn: the flag that is stored last is not there.
  connect();
  std::memset(memory_->bytes().data() + good.at - kRecordHeaderBytes, 0, 8);
  EXPECT_EQ(exchange(good, bytes_, got_, true).status.code(), Code::kPeerLost);
  // And who has not mapped the log at all.
  log_of_0_ = nullptr;
  connect();
  EXPECT_EQ(exchange(good, bytes_, got_, true).status.code(), Code::kPeerLost);
}

// A final that lies on its owner's GPU, too: who has that mapped, and the page that says what stands there, is told.
TEST_F(Logged, WhatAlsoLiesOnAGpuIsToldBesideItsPlace) {
  for (HostMemory& host : host_) host.install({Incarnation(7), Incarnation(8)});
  constexpr std::size_t kAll = std::size_t{1} << 20, kRing = 65536;
  std::span<const std::byte> there[2];
  for (auto& t : there) {
    void* const at = mmap(nullptr, kAll, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(at, MAP_FAILED);
    t = {static_cast<std::byte*>(at), kAll};
  }
  const auto page = memfd_segment(4096).value();
  auto* const says = new (page->bytes().data()) MadeThere{0, kRing};
  const std::uint32_t gpu = host_[0].add_on_gpu(there[0]);
  const LogPlace place = publish(bytes_);
  const auto come = [&](std::uint64_t number) {
    connect();
    end_[0].post_send(link_[0], of(Version(0)), {bytes_, place, {there[0].data() + number % kRing, number}}, 1);
    end_[1].post_recv_in_place(link_[1], of(Version(0)), got_, 2);
    const Completion c = next(end_[1]);
    EXPECT_TRUE(c.status.ok()) << c.status.describe();
    EXPECT_EQ(std::memcmp(c.view.bytes(), bytes_.data(), kBytes), 0) << "the log has it in any case";
    EXPECT_FALSE(c.view.on_gpu);
    return c.view.beside;
  };
  EXPECT_EQ(come(256), nullptr) << "nobody has mapped it";
  host_[0].mapped_by(Incarnation(8), gpu);
  EXPECT_EQ(come(256), nullptr) << "nor has this end";
  host_[1].attach(Incarnation(7), gpu, {there[1], std::make_shared<int>()}, true);
  EXPECT_EQ(come(256), nullptr) << "what stands there it does not know";
  EXPECT_EQ(host_[0].readers_on_gpu(), 0u);
  host_[0].mapped_by(Incarnation(8), gpu - 1);
  EXPECT_EQ(host_[0].readers_on_gpu(), 1u);
  host_[1].attach(Incarnation(7), gpu - 1, map_segment(page->fd(), 4096).value());
  const auto beside = come(kRing + 256);
  ASSERT_NE(beside, nullptr);
  EXPECT_EQ(beside->at, there[1].data() + 256);
  EXPECT_TRUE(beside->stands());
  says->first = kRing + 256;
  EXPECT_TRUE(beside->stands());
  says->first = kRing + 257;
  EXPECT_FALSE(beside->stands());
  // A peer may say anything.
  EXPECT_EQ(come(kRing - 256), nullptr) << "beyond the end";
  for (const std::uint64_t ring : {std::uint64_t{0}, std::uint64_t{kAll + 1}, std::uint64_t{kBytes - 1}, UINT64_MAX}) {
    says->bytes = ring;
    EXPECT_EQ(come(0), nullptr) << ring;
  }
  says->bytes = kRing;
  EXPECT_NE(come(0), nullptr);
  host_[0].install({Incarnation(7), Incarnation(9)});
  EXPECT_EQ(host_[0].readers_on_gpu(), 0u);
  for (const auto& t : there) munmap(const_cast<std::byte*>(t.data()), kAll);
}

// Inputs in memory that the sender, life 7 at rank 0, lends to life 8 at rank 1.
class Lent : public Piped {
 protected:
  static constexpr std::size_t kBytes = 100'000;
  void SetUp() override {
    Piped::SetUp();
    for (HostMemory& host : host_) host.install({Incarnation(7), Incarnation(8)});
    memory_ = HostMemory::make(kBytes).value();
    number_ = host_[0].add(memory_).value();
    const auto bytes = noise(kBytes, 5);
    std::memcpy(memory_->bytes().data(), bytes.data(), kBytes);
    input_ = memory_->bytes().subspan(kSkipped, kInput);
  }
  void map(std::uint32_t number) {
    host_[1].attach(Incarnation(7), number, map_segment(memory_->fd(), memory_->bytes().size()).value());
  }
  void lend() {
    map(number_);
    host_[0].mapped_by(Incarnation(8), number_);
  }
  Completion exchange(std::span<const std::byte> payload, bool in_place = true) {
    end_[0].post_send(link_[0], header(), {.bytes = payload, .lent = true}, 1);
    if (in_place) {
      end_[1].post_recv_in_place(link_[1], header(), got_, 2);
    } else {
      end_[1].post_recv(link_[1], header(), got_, 2);
    }
    return next(end_[1]);
  }

  static constexpr std::size_t kSkipped = 4000, kInput = 64'000;
  std::shared_ptr<MemfdSegment> memory_;
  std::uint32_t number_ = 0;
  std::span<std::byte> input_;
  std::vector<std::byte> got_ = std::vector<std::byte>(kInput);
};

TEST_F(Lent, InputsAreReadWhereTheyLie) {
  lend();
  const Completion c = exchange(input_);
  ASSERT_TRUE(c.status.ok()) << c.status.describe();
  ASSERT_NE(c.view.there, nullptr);
  EXPECT_EQ(std::memcmp(c.view.bytes(), input_.data(), kInput), 0);
  // It is the same memory.
  input_[5] = ~input_[5];
  EXPECT_EQ(std::memcmp(c.view.bytes(), input_.data(), kInput), 0);
  EXPECT_TRUE(c.view.stands());
  // The lender's generation is over, and its memory may change.
  end_[0].close_all();
  EXPECT_FALSE(c.view.stands());
}

TEST_F(Lent, WhatThePeerHasNotMappedIsSent) {
  const auto sent = [&](std::span<const std::byte> payload) {
    connect();
    const Completion c = exchange(payload);
    EXPECT_TRUE(c.status.ok()) << c.status.describe();
    EXPECT_EQ(c.view.there, nullptr);
    const std::byte* bytes = c.view.in_place() ? c.view.bytes() : got_.data();
    EXPECT_EQ(std::memcmp(bytes, payload.data(), payload.size()), 0);
    if (c.view.held != nullptr) end_[1].release(link_[1], c.view);
  };
  map(number_);
  sent(input_);  // it has not said so
  host_[0].mapped_by(Incarnation(9), number_);
  sent(input_);  // another life has
  host_[0].mapped_by(Incarnation(8), number_);
  sent(noise(kInput, 6));  // another memory
  const std::span<const std::byte> all = memory_->bytes();
  EXPECT_FALSE(host_[0].lend(Rank(1), {all.data() + all.size() - kInput + 1, kInput}).known()) << "beyond its end";
  EXPECT_FALSE(host_[0].lend(Rank(1), {all.data() - 64, kInput}).known()) << "before its begin";
  EXPECT_TRUE(host_[0].lend(Rank(1), all).known());
}

TEST_F(Lent, WhoDoesNotReadInPlaceGetsACopy) {
  lend();
  const Completion c = exchange(input_, false);
  ASSERT_TRUE(c.status.ok()) << c.status.describe();
  EXPECT_FALSE(c.view.in_place());
  EXPECT_TRUE(std::ranges::equal(got_, input_));
}

// A peer may name anything.
TEST_F(Lent, PlacesThatAreNotLentAreRefused) {
  host_[0].mapped_by(Incarnation(8), number_);
  const auto refused = [&] {
    connect();
    const Completion c = exchange(input_);
    EXPECT_EQ(c.status.code(), Code::kPeerLost);
    EXPECT_FALSE(c.view.in_place());
    EXPECT_NE(c.status.describe().find("rank 0 named a place in memory that it does not lend"), std::string::npos)
        << c.status.describe();
  };
  refused();  // nothing is mapped
  map(number_ + 1);
  refused();
  map(number_);
  host_[1].detach(Incarnation(7), number_);
  refused();
  // A smaller one.
  const auto small = HostMemory::make(kSkipped).value();
  ASSERT_LT(small->bytes().size(), kSkipped + kInput);
  host_[1].attach(Incarnation(7), number_, map_segment(small->fd(), small->bytes().size()).value());
  refused();
  EXPECT_FALSE(host_[1].borrow(Rank(0), {number_, UINT64_MAX}, 1));
  EXPECT_FALSE(host_[1].borrow(Rank(0), {number_, small->bytes().size()}, 1));
  EXPECT_FALSE(host_[1].borrow(Rank(0), {number_, 1}, small->bytes().size()));
  EXPECT_TRUE(host_[1].borrow(Rank(0), {number_, 1}, small->bytes().size() - 1));
  // Of a life that is over.
  host_[1].install({Incarnation(70), Incarnation(8)});
  EXPECT_FALSE(host_[1].borrow(Rank(0), {number_, 0}, 1));
}

TEST_F(Lent, WhatIsReadStaysMappedUntilThen) {
  lend();
  const Completion c = exchange(input_);
  ASSERT_NE(c.view.there, nullptr);
  const std::vector<std::byte> before(input_.begin(), input_.end());
  host_[1].detach(Incarnation(7), number_);
  auto removed = host_[0].remove(memory_->bytes().data());
  ASSERT_TRUE(removed);
  EXPECT_FALSE(host_[0].remove(memory_->bytes().data()));
  removed.reset();
  memory_.reset();
  EXPECT_EQ(std::memcmp(c.view.bytes(), before.data(), kInput), 0);
}

// Memory of a GPU: at neither end can the CPU read it.
class LentOnGpu : public Lent {
 protected:
  void SetUp() override {
    Lent::SetUp();
    for (auto& there : there_) {
      void* const at = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      ASSERT_NE(at, MAP_FAILED);
      there = {static_cast<std::byte*>(at), kBytes};
    }
    gpu_ = host_[0].add_on_gpu(there_[0]);
  }
  ~LentOnGpu() override {
    for (const auto& there : there_) munmap(const_cast<std::byte*>(there.data()), kBytes);
  }
  void attach() { host_[1].attach(Incarnation(7), gpu_, {there_[1], std::make_shared<int>()}, true); }
  [[nodiscard]] bool lends(const std::byte* at) const { return end_[0].lends(kWorldGroup, Rank(1), at); }

  std::uint32_t gpu_ = 0;
  std::span<const std::byte> there_[2];
};

TEST_F(LentOnGpu, ItsPlacesAreToldAndNothingIsRead) {
  EXPECT_FALSE(lends(there_[0].data())) << "the peer has not mapped it";
  EXPECT_FALSE(host_[0].lend(Rank(1), there_[0]).known());
  attach();
  host_[0].mapped_by(Incarnation(8), gpu_);
  EXPECT_TRUE(lends(there_[0].data()));
  EXPECT_FALSE(lends(there_[0].data() + kBytes));
  EXPECT_FALSE(end_[0].lends(GroupId(5), Rank(1), there_[0].data())) << "a link that is still to come";
  for (const std::size_t bytes : {kInput, std::size_t{40}}) {
    got_.resize(bytes);
    const Completion c = exchange(there_[0].subspan(kSkipped, bytes));
    ASSERT_TRUE(c.status.ok()) << c.status.describe();
    EXPECT_TRUE(c.view.on_gpu);
    EXPECT_EQ(c.view.bytes(), there_[1].data() + kSkipped);
    EXPECT_NE(c.view.lent, nullptr);
    EXPECT_TRUE(c.view.stands());
    if (bytes != kInput) {
      end_[0].close_all();
      EXPECT_FALSE(c.view.stands());
    } else {
      connect();
    }
  }
  // Memory of the CPU beside it is lent as ever.
  connect();
  got_.resize(kInput);
  lend();
  const Completion c = exchange(input_);
  EXPECT_FALSE(c.view.on_gpu);
  EXPECT_EQ(std::memcmp(c.view.bytes(), input_.data(), kInput), 0);
  // The next life of the peer has not mapped it.
  for (HostMemory& host : host_) host.install({Incarnation(7), Incarnation(80)});
  EXPECT_FALSE(lends(there_[0].data()));
  EXPECT_FALSE(host_[0].remove(there_[0].data())) << "no memory of the program's";
}

// Whoever has no way to read it on the GPU gets no copy of it.
TEST_F(LentOnGpu, WhoReadsOnTheCpuRefusesIt) {
  attach();
  host_[0].mapped_by(Incarnation(8), gpu_);
  const Completion c = exchange(there_[0].subspan(kSkipped, kInput), false);
  EXPECT_EQ(c.status.code(), Code::kPeerLost);
}

// Bytes would be read for a link that is a socket alone.
TEST(LentOverSockets, MemoryOfAGpuIsNotLent) {
  HostMemory host;
  host.install({Incarnation(7), Incarnation(8)});
  const std::span<const std::byte> there{reinterpret_cast<const std::byte*>(1 << 20), 4096};
  host.mapped_by(Incarnation(8), host.add_on_gpu(there));
  LinkTransport end([](GroupId, Rank) {}, nullptr, &host);
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  end.open(Generation(1), 1, true);
  (void)end.link(kWorldGroup, Rank(1));
  EXPECT_FALSE(end.lends(kWorldGroup, Rank(1), there.data()));
  ASSERT_TRUE(end.adopt(Generation(1), kWorldGroup, Rank(1), 0, fds[0]).ok());
  EXPECT_FALSE(end.lends(kWorldGroup, Rank(1), there.data()));
  ::close(fds[1]);
}

// In a container more than it is allowed is no error that the system gives: it ends a process. Ranks that ask at once
// all find room for themselves.
TEST(HostMemory, WhatIsLeftIsLookedAtAgainWhileItIsTaken) {
  constexpr std::uint64_t kMany = std::uint64_t{200} << 20, kMiB = 1 << 20;
  const auto make = [&](std::vector<std::optional<std::uint64_t>> said) {
    std::size_t asked = 0;
    const Status status = HostMemory::make(kMany, [&] { return said[std::min(asked++, said.size() - 1)]; }).status();
    EXPECT_EQ(asked, said.size()) << status.describe();
    return status;
  };
  const Status none = make({kMany - 1});
  EXPECT_EQ(none.code(), Code::kUnavailable);
  EXPECT_NE(none.describe().find("control group"), std::string::npos) << none.describe();
  EXPECT_EQ(make({kMany, 64 * kMiB, 63 * kMiB}).code(), Code::kUnavailable);
  EXPECT_TRUE(make({kMany, 64 * kMiB, 64 * kMiB, 8 * kMiB}).ok()) << "the last slice is what is left";
  EXPECT_TRUE(make({std::nullopt, std::nullopt, std::nullopt, std::nullopt}).ok());
}

// Kernels and copies read 16 bytes at once: a number that a peer says may be any.
TEST(HostMemory, WhatWasMadeOnAGpuLiesAsResultsDo) {
  HostMemory host;
  host.install({Incarnation(7), Incarnation(8)});
  constexpr std::size_t kThere = 1 << 20;
  const std::span<const std::byte> there{reinterpret_cast<const std::byte*>(std::size_t{1} << 30), kThere};
  MadeThere says{0, kThere / 4};
  const std::span<const std::byte> page{reinterpret_cast<const std::byte*>(&says), sizeof says};
  host.attach(Incarnation(7), 3, {page, std::make_shared<int>()});
  host.attach(Incarnation(7), 4, {there, std::make_shared<int>()}, true);
  const auto at = [&](std::uint64_t number) -> const std::byte* {
    const auto made = host.borrow_made(Rank(0), 4, number, 1000);
    return made == nullptr ? nullptr : made->at;
  };
  EXPECT_EQ(at(0), there.data());
  EXPECT_EQ(at(kThere / 4 + 512), there.data() + 512) << "the next turn";
  for (const std::uint64_t askew : {1, 4, 128, 255, 257}) EXPECT_EQ(at(askew), nullptr) << askew;
  EXPECT_EQ(at(kThere / 4 - 256), nullptr) << "it would not be in one piece";
  // A ring that no life has.
  says.bytes = kThere / 4 + 4;
  EXPECT_EQ(at(kThere / 4 + 4 + 512), there.data() + 512);
  EXPECT_EQ(at(kThere / 4 + 512), nullptr);
}

TEST(HostMemory, HasLimits) {
  EXPECT_EQ(HostMemory::make(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(HostMemory::make(UINT64_MAX).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(HostMemory::make(limits::kMaxBufferBytes).status().code(), Code::kUnavailable);
  HostMemory host;
  std::vector<void*> addresses;
  for (std::size_t i = 0; i < HostMemory::kMost; i++) {
    auto made = HostMemory::make(1).value();
    addresses.push_back(made->bytes().data());
    ASSERT_EQ(host.add(std::move(made)).value(), i + 1);
  }
  EXPECT_EQ(host.add(HostMemory::make(1).value()).status().code(), Code::kExhausted);
  ASSERT_TRUE(host.remove(addresses[3]));
  EXPECT_EQ(host.add(HostMemory::make(1).value()).value(), HostMemory::kMost + 1) << "numbers are not used again";
}

}  // namespace
}  // namespace warren::worker
