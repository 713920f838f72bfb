// Links under bad input: damaged, cut, foreign and stale bytes end in an error that names the peer, never in a buffer.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <map>
#include <thread>

#include "recovery/limits.h"
#include "worker/transport/frame_checksum.h"
#include "worker/transport/handshake.h"
#include "worker/transport/link_transport.h"

namespace warren::worker {
namespace {

FrameHeader header(std::uint32_t message = 0) {
  FrameHeader h;
  h.epoch = Epoch(1);
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
    transport_.open(Epoch(1), streams, checksums);
    link_ = transport_.link(kWorldGroup, Rank(1));
    for (std::uint16_t s = 0; s < streams; s++) {
      int fds[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
      ASSERT_TRUE(transport_.adopt(Epoch(1), kWorldGroup, Rank(1), s, fds[0]).ok());
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
    sender.open(Epoch(1), 1, true);
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    EXPECT_TRUE(sender.adopt(Epoch(1), kWorldGroup, Rank(0), 0, fds[0]).ok());
    sender.post_send(sender.link(kWorldGroup, Rank(0)), h, payload, 1);
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

TEST_F(OneEnd, AnOldEpochChangesNothing) {
  transport_.post_recv(link_, header(), buffer_, 5);
  FrameHeader old = header();
  old.epoch = Epoch(0);
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
  transport_.post_send(link_, header(), payload_, 7);
  EXPECT_EQ(next().status.code(), Code::kPeerLost);
}

TEST_F(OneEnd, SendingToAClosedPeerIsAnErrorNotASignal) {
  ::close(std::exchange(peer_[0], -1));
  transport_.post_send(link_, header(), payload_, 7);
  EXPECT_EQ(next().status.code(), Code::kPeerLost);
}

TEST_F(OneEnd, ChunksAreStripedOverTheStreams) {
  for (const int fd : peer_) ::close(fd);
  peer_.clear();
  open(3, true);
  for (std::uint32_t m = 0; m < 6; m++) transport_.post_send(link_, header(m), payload_, m);
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

TEST_F(OneEnd, AdoptRefusesWhatIsNotOfThisEpoch) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  EXPECT_EQ(transport_.adopt(Epoch(2), kWorldGroup, Rank(2), 0, fds[0]).code(), Code::kRefused);
  EXPECT_EQ(transport_.adopt(Epoch(1), kWorldGroup, Rank(1), 0, fds[1]).code(), Code::kRefused);  // there already
  char byte = 0;
  EXPECT_EQ(::recv(fds[0], &byte, 1, 0), -1);  // closed by adopt
}

TEST_F(OneEnd, CloseForgetsEverything) {
  transport_.post_recv(link_, header(), buffer_, 5);
  transport_.close_all();
  Completion c[4];
  EXPECT_EQ(transport_.poll(c), 0u);
  char byte = 0;
  EXPECT_EQ(::recv(peer_[0], &byte, 1, 0), 0);
  transport_.open(Epoch(2), 1, true);
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
  h.epoch = Epoch(3);
  h.from = Rank(1);
  h.to = Rank(2);
  h.from_incarnation = Incarnation(11);
  h.to_incarnation = Incarnation(22);
  h.nonce.fill(std::byte{9});
  return h;
}

TEST(Handshake, BothEndsProveTheKey) {
  const HelloBytes hello = encode(a_hello());
  const auto decoded = decode_hello(hello);
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value().from_incarnation, Incarnation(11));
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
}

TEST(Handshake, VerdictsSurviveTheWire) {
  for (const Verdict v :
       {Verdict::kWelcome, Verdict::kBadProof, Verdict::kStaleEpoch, Verdict::kNotMe, Verdict::kBusy}) {
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
  void SetUp() override {
    int fds[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    const OwnedFd memory = std::move(HostPipe::create()).value();
    for (const int e : {0, 1}) {
      end_[e].open(Epoch(1), 1, true);
      link_[e] = end_[e].link(kWorldGroup, Rank(1 - e));
      auto pipe = std::move(HostPipe::map(memory.get(), e == 0)).value();
      ASSERT_TRUE(end_[e].adopt(Epoch(1), kWorldGroup, Rank(1 - e), 0, fds[e], std::move(pipe)).ok());
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
  LinkTransport end_[2] = {LinkTransport([](GroupId, Rank) {}), LinkTransport([](GroupId, Rank) {})};
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
      if (e == 0) end_[e].post_send(link_[e], header(i), std::span(mine).first(n), 1);
      // One end answers the other.
      for (int done = 0; done < 2; done++) {
        const Completion c = next(end_[e]);
        ASSERT_TRUE(c.status.ok()) << c.status.describe();
        if (c.token != 2) continue;
        ASSERT_EQ(theirs[0], static_cast<std::byte>(i));
        if (e == 1) end_[e].post_send(link_[e], header(i), std::span(mine).first(n), 1);
      }
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
}

TEST_F(Piped, WhatCameBeforeTheEndIsTaken) {
  std::vector<std::byte> bytes(1000, std::byte{5}), got(1000);
  end_[0].post_send(link_[0], header(0), bytes, 1);
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

// A thread polls, without success, what another sleeps on.
TEST_F(Piped, AnotherThreadsLookDoesNotTakeTheWakeUp) {
  std::vector<std::byte> bytes(8, std::byte{5}), got(8);
  end_[1].post_recv(link_[1], header(0), got, 2);
  std::vector<pollfd> fds;
  end_[1].collect_pollfds(fds);
  Completion c[1];
  EXPECT_EQ(end_[1].poll(c), 0u);
  EXPECT_EQ(end_[1].poll(c), 0u);
  end_[0].post_send(link_[0], header(0), bytes, 1);
  EXPECT_EQ(::poll(fds.data(), fds.size(), 60'000), 1);
  end_[1].woken();
  EXPECT_TRUE(next(end_[1]).status.ok());
}

}  // namespace
}  // namespace warren::worker
