#include "worker/replay/replayer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "storage/xxh3.h"
#include "tests/worker/replay/net.h"

namespace warren::worker::replaytest {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::byte kBefore{0xee};

std::vector<std::byte> buffer_of(std::uint64_t size) {
  return std::vector<std::byte>(size, kBefore);
}
bool untouched(const std::vector<std::byte>& buffer) {
  return std::all_of(buffer.begin(), buffer.end(), [](std::byte b) { return b == kBefore; });
}

// Waits for the end of a want.
Replayer::Done fetch(Net& net, Replayer::Want want) {
  net.want(std::move(want));
  auto done = net.run();
  EXPECT_TRUE(done) << "the want has no end";
  return done ? std::move(*done) : Replayer::Done();
}
// Wants a result of unknown length.
Replayer::Done fetch(Net& net, const RecordKey& key) {
  Replayer::Want w;
  w.key = key;
  return fetch(net, std::move(w));
}

// These bytes of a result of so many.
Replayer::Want part_of(const RecordKey& key, std::uint64_t total_bytes, Ranges bytes, std::vector<std::byte>& buffer) {
  Replayer::Want w;
  w.key = key;
  w.fingerprint = info_of(total_bytes).fingerprint;
  w.total_bytes = total_bytes;
  w.bytes = std::move(bytes);
  w.base = buffer.data();
  return w;
}

// Wants all of a result.
Replayer::Done fetch(Net& net, const RecordKey& key, std::vector<std::byte>& buffer) {
  return fetch(net, part_of(key, buffer.size(), Ranges(0, buffer.size()), buffer));
}
// Installs the plan, and wants all of a result of which the log lacks something.
Replayer::Done gap_in(Net& net, const RecordKey& key, std::uint64_t total_bytes) {
  net.install();
  auto buffer = buffer_of(total_bytes);
  auto done = fetch(net, key, buffer);
  EXPECT_EQ(done.status.code(), Code::kUnavailable);
  return done;
}

constexpr std::uint64_t kLargeBytes = std::uint64_t{20} << 20;

// Ranks 1 and so on have all of a result that is fetched in many pieces.
struct LargeResult : Net {
  explicit LargeResult(const std::vector<std::string>& hosts) : Net(hosts, 1, std::size_t{24} << 20) {
    for (std::size_t rank = 1; rank <= hosts.size(); ++rank) lives[rank].publish(key, kLargeBytes);
  }
  const RecordKey key = round_key(0);
};

TEST(Replayer, OwnHostServesWithoutAsking) {
  Net net({"host-0", "host-1"});
  const RecordKey key = round_key(17);
  net.life(0).publish(key, 3000, 0, 1000);
  net.life(1).publish(key, 3000, 1000, 3000);
  net.install();
  auto buffer = buffer_of(3000);
  const std::uint64_t id = net.want(key, buffer);
  const auto done = net.run(0);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->id, id);
  EXPECT_TRUE(done->status.ok()) << done->status.describe();
  EXPECT_TRUE(done->log_again.empty());
  EXPECT_EQ(done->info, info_of(3000));
  EXPECT_EQ(buffer, bytes_of(key, 0, 3000));
  EXPECT_EQ(net.listings, 0U);
  EXPECT_TRUE(net.replayer->idle());
  EXPECT_EQ(net.replayer->next_deadline(), std::nullopt);
}

TEST(Replayer, FetchesWhatTheOwnHostLacks) {
  Net net({"host-1", "host-2"});
  const RecordKey key = round_key(17);
  net.life(0).publish(key, 9000, 2000, 3000);
  net.life(1).publish(key, 9000, 0, 5000);
  net.life(2).publish(key, 9000, 4000, 9000);
  net.install();
  auto buffer = buffer_of(9000);
  net.want(key, buffer, 1000, 8000);
  EXPECT_EQ(net.replayer->describe(), "asks ranks 1, 2 who holds " + to_string(key.round));
  const auto done = net.run();
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->status.ok()) << done->status.describe();
  auto expected = buffer_of(9000);
  const auto bytes = bytes_of(key, 1000, 8000);
  std::copy(bytes.begin(), bytes.end(), expected.begin() + 1000);
  EXPECT_EQ(buffer, expected);
  // Nothing twice: 2000-3000 was here, the rest came once.
  EXPECT_EQ(net.payload_of[1] + net.payload_of[2], 6000U);
  EXPECT_EQ(net.replayer->describe(), "");
}

// A host whose segment is dropped while it is read.
class Dropping : public HostLogReader {
 public:
  explicit Dropping(HostLogReader& of) : of_(of) {}
  Result<std::optional<RecordInfo>> info(const RecordKey& key) override { return of_.info(key); }
  Ranges held(const RecordKey& key) override { return of_.held(key); }
  Ranges held_by(const RecordKey& key, std::span<const Incarnation> live) override { return of_.held_by(key, live); }
  bool recorded_by(const RecordKey& key, std::span<const Incarnation> live) override {
    return of_.recorded_by(key, live);
  }
  bool read(const RecordKey&, std::uint64_t, std::span<std::byte> out) override {
    std::fill(out.begin(), out.end(), std::byte{0xdd});
    return false;
  }
  std::vector<RecordKey> list(RecordKind kind, Timeline timeline, GroupId group, Version version, Sequence first,
                              Sequence end, std::size_t limit) override {
    return of_.list(kind, timeline, group, version, first, end, limit);
  }
  std::vector<RecordKey> newest_rounds() override { return of_.newest_rounds(); }
  std::vector<RecordKey> setup_rounds(std::size_t limit) override { return of_.setup_rounds(limit); }

 private:
  HostLogReader& of_;
};

TEST(Replayer, WhatIsDroppedWhileItIsReadDoesNotReachTheBuffer) {
  Net net({"host-1"});
  const RecordKey key = round_key(17);
  net.life(0).publish(key, 1000);
  Dropping dropping(*net.life(0).reader);
  net.replayer = std::make_unique<Replayer>(dropping);
  net.install();
  auto buffer = buffer_of(1000);
  net.want(key, buffer);
  EXPECT_TRUE(untouched(buffer));
  EXPECT_EQ(net.run()->status.code(), Code::kUnavailable);
  EXPECT_TRUE(untouched(buffer));
  net.life(1).publish(key, 1000);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
}

TEST(Replayer, BufferMayBeginInTheMiddleOfTheResult) {
  Net net({"host-1"});
  const RecordKey key = round_key(2);
  net.life(1).publish(key, 900);
  net.install();
  auto buffer = buffer_of(300);
  Replayer::Want w = part_of(key, 900, Ranges(400, 600), buffer);
  w.base_at = 350;
  net.want(std::move(w));
  ASSERT_TRUE(net.run()->status.ok());
  const auto expected = bytes_of(key, 400, 600);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), buffer.begin() + 50));
  EXPECT_TRUE(std::all_of(buffer.begin(), buffer.begin() + 50, [](std::byte b) { return b == kBefore; }));
  EXPECT_TRUE(std::all_of(buffer.begin() + 250, buffer.end(), [](std::byte b) { return b == kBefore; }));
}

TEST(Replayer, StripesALongResultOverItsHolders) {
  constexpr std::uint64_t kBytes = std::uint64_t{24} << 20;
  Net net({"host-1", "host-2", "host-3"}, 1, std::size_t{40} << 20);
  const RecordKey key = round_key(0);
  for (std::int32_t rank = 1; rank <= 3; ++rank) net.life(rank).publish(key, kBytes);
  net.install();
  auto buffer = buffer_of(kBytes);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  EXPECT_TRUE(buffer == bytes_of(key, 0, kBytes));
  for (std::int32_t rank = 1; rank <= 3; ++rank) EXPECT_GE(net.payload_of[rank], kBytes / 5) << rank;
  EXPECT_EQ(net.payload_of[1] + net.payload_of[2] + net.payload_of[3], kBytes);
}

TEST(Replayer, AlsoAShortResultIsStriped) {
  constexpr std::uint64_t kBytes = std::uint64_t{3} << 20;
  Net net({"host-1", "host-2", "host-3"});
  const RecordKey key = round_key(0);
  for (std::int32_t rank = 1; rank <= 3; ++rank) net.life(rank).publish(key, kBytes);
  net.install();
  auto buffer = buffer_of(kBytes);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  for (std::int32_t rank = 1; rank <= 3; ++rank) EXPECT_GE(net.payload_of[rank], kBytes / 6) << rank;
}

TEST(Replayer, AGenerationLaterNothingIsFetchedTwice) {
  constexpr std::uint64_t kRounds = 12, kBytes = std::uint64_t{1} << 20;
  Net net({"host-1"}, 1, std::size_t{16} << 20);
  for (std::uint64_t s = 0; s < kRounds; ++s) net.life(1).publish(round_key(s), kBytes);
  net.install();
  auto buffer = buffer_of(kBytes);
  for (std::uint64_t s = 0; s < kRounds; ++s) {
    net.want(round_key(s), buffer);
    ASSERT_TRUE(net.run()->status.ok()) << s;
    ASSERT_TRUE(buffer == bytes_of(round_key(s), 0, kBytes)) << s;
    if (s != 2) continue;
    net.run_for(100);
    net.suspend();
    net.install();
  }
  EXPECT_EQ(net.payload_of[1], kRounds * kBytes);
}

TEST(Replayer, TenThousandSmallRoundsTakeFewRoundTrips) {
  constexpr std::uint64_t kRounds = 10'000, kBytes = 1024;
  Net net({"host-1", "host-2", "host-3"}, 1, std::size_t{24} << 20);
  net.faults.least_delay_ms = net.faults.most_delay_ms = 5;
  // As a ring leaves them: each host holds two thirds.
  for (std::uint64_t s = 0; s < kRounds; ++s) {
    net.life(1).publish(round_key(s), kBytes, 0, 683);
    net.life(2).publish(round_key(s), kBytes, 341, 1024);
    net.life(3).publish(round_key(s), kBytes, 683, 1024);
    net.life(3).publish(round_key(s), kBytes, 0, 341);
  }
  net.install();
  const TimeMs began = net.now;
  auto buffer = buffer_of(kBytes);
  for (std::uint64_t s = 0; s < kRounds; ++s) {
    net.want(round_key(s), buffer);
    const auto done = net.run();
    ASSERT_TRUE(done && done->status.ok()) << s;
    ASSERT_EQ(buffer, bytes_of(round_key(s), 0, kBytes)) << s;
  }
  EXPECT_LE(net.now - began, 20 * 10) << "round trips of 10 ms";
  EXPECT_LE(net.listings + net.data_requests, 120U);
  EXPECT_EQ(net.payload_of[1] + net.payload_of[2] + net.payload_of[3], kRounds * kBytes);
}

TEST(Replayer, FetchesAheadWithinABound) {
  constexpr std::uint64_t kRounds = 48, kBytes = std::uint64_t{1} << 20;
  Net net({"host-1", "host-2", "host-3"}, 1, std::size_t{64} << 20);
  for (std::uint64_t s = 0; s < kRounds; ++s) {
    for (std::int32_t rank = 1; rank <= 3; ++rank) net.life(rank).publish(round_key(s), kBytes);
  }
  net.install();
  auto buffer = buffer_of(kBytes);
  const auto fetched = [&] { return net.payload_of[1] + net.payload_of[2] + net.payload_of[3]; };
  for (std::uint64_t s = 0; s < kRounds; ++s) {
    net.want(round_key(s), buffer);
    ASSERT_TRUE(net.run()->status.ok()) << s;
    ASSERT_TRUE(buffer == bytes_of(round_key(s), 0, kBytes)) << s;
    net.run_for(100);
    // Sixteen MiB ahead, and no more.
    EXPECT_LE(fetched(), (s + 1 + 16) * kBytes);
    EXPECT_GE(fetched(), std::min<std::uint64_t>(kRounds * kBytes, (s + 1 + 7) * kBytes));
  }
  EXPECT_EQ(fetched(), kRounds * kBytes) << "nothing twice";
}

TEST(Replayer, AsksForNoMoreAtOnceThanItsBounds) {
  std::vector<std::string> hosts;
  for (int i = 1; i <= 12; ++i) hosts.push_back("host-" + std::to_string(i));
  constexpr std::uint64_t kBytes = std::uint64_t{160} << 20;
  Net net(hosts, 1, std::size_t{24} << 20);
  const RecordKey key = round_key(0);
  constexpr std::uint64_t kShare = kBytes / 12;
  for (std::int32_t rank = 1; rank <= 12; ++rank) {
    const std::uint64_t begin = static_cast<std::uint64_t>(rank - 1) * kShare;
    net.life(rank).publish(key, kBytes, begin, rank == 12 ? kBytes : begin + kShare);
  }
  net.install();
  std::vector<std::byte> buffer(kBytes);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  EXPECT_LE(net.most_asked_at_once, (std::uint64_t{64} << 20) + (std::uint64_t{2} << 20));
  EXPECT_GE(net.most_asked_at_once, std::uint64_t{48} << 20);
  EXPECT_TRUE(buffer == bytes_of(key, 0, kBytes));
}

TEST(Replayer, GapNamesRoundAndBytesAfterAskingMoreThanOnce) {
  Net net({"host-1", "host-2"});
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 9000, 0, 5000);
  net.life(2).publish(key, 9000, 6000, 9000);
  const auto done = gap_in(net, key, 9000);
  EXPECT_THAT(done.status.describe(), HasSubstr("bytes 5000-6000 of 9000 of " + to_string(key.round)));
  EXPECT_THAT(done.status.describe(), HasSubstr("ranks 1, 2"));
  EXPECT_GE(net.listings, 2U * 3U);
  EXPECT_LE(net.listings, 2U * 6U);
  EXPECT_TRUE(net.replayer->idle());
}

// It may stand where an input was.
TEST(Replayer, AGapSaysWhatItHasWritten) {
  Net net({"host-1"});
  const RecordKey key = round_key(17);
  net.life(0).publish(key, 9000, 0, 1000);
  net.life(1).publish(key, 9000, 4000, 5000);
  const auto done = gap_in(net, key, 9000);
  Ranges written(0, 1000);
  written.add(4000, 5000);
  EXPECT_EQ(done.written, written);
}

TEST(Replayer, ARoundThatNobodyHasIsAGap) {
  Net net({"host-1"});
  net.install();
  auto buffer = buffer_of(100);
  net.want(round_key(5), buffer);
  const auto done = net.run();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->status.code(), Code::kUnavailable);
  EXPECT_THAT(done->status.describe(), HasSubstr("anything of " + to_string(round_key(5).round)));
  Net alone({});
  alone.install();
  alone.want(round_key(5), buffer);
  EXPECT_EQ(alone.run()->status.code(), Code::kUnavailable);
}

// On a mate's disk, say, which has taken it over from a dead life's: others of the host do not see it there.
TEST(Replayer, WhatOnlyAMateCanReadComesFromItOnceAGapWasSeen) {
  Net net({"host-0", "host-1"});
  const RecordKey here = round_key(16), key = round_key(17);
  net.life(2).publish(here, 1000);
  net.life(1).publish(key, 1000);
  net.life(0).log->detach(net.life(1).self);
  net.install();
  auto buffer = buffer_of(1000);
  net.want(here, buffer);
  ASSERT_TRUE(net.run()->status.ok());
  EXPECT_EQ(net.payload_of[1], 0u);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
  EXPECT_EQ(net.payload_of[1], 1000u);
}

// Seed 184578537: on the disk of the last of many mates, after a full log had spilled there.
TEST(Replayer, AGapIsNotBelievedBeforeEachRankOfAHostWasAsked) {
  for (const std::string host : {"host-0", "host-1"}) {
    Net net(std::vector<std::string>(30, host));
    const RecordKey key = round_key(17);
    net.life(30).publish(key, 1000);
    for (std::int32_t rank = 0; rank < 30; ++rank) net.life(rank).log->detach(net.life(30).self);
    net.install();
    auto buffer = buffer_of(1000);
    const auto done = fetch(net, key, buffer);
    EXPECT_TRUE(done.status.ok()) << done.status.describe();
    EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
    auto nobodys = buffer_of(1000);
    net.want(round_key(18), nobodys);
    EXPECT_EQ(net.run()->status.code(), Code::kUnavailable);
  }
}

// Simulated seed 774907227: a round and a state were looked for at the same time, each on a host of fourteen ranks, and
// took turns: the round was asked for at every second rank, and its bytes at the rank after the one that had listed it.
TEST(Replayer, WhatOneRankAloneCanReadIsFoundWhileSomethingElseIsLookedFor) {
  constexpr std::int32_t kRanks = 6;
  for (std::int32_t holder = 1; holder <= kRanks; ++holder) {
    for (const std::string host : {"host-0", "host-1"}) {
      Net net(std::vector<std::string>(kRanks, host));
      const RecordKey key = round_key(17);
      RecordKey nobodys = round_key(3);
      nobodys.round.group = GroupId(5);
      net.life(holder).publish(key, 1000);
      for (std::int32_t rank = 0; rank <= kRanks; ++rank) {
        if (rank != holder) net.life(rank).log->detach(net.life(holder).self);
      }
      net.install();
      auto buffer = buffer_of(1000), other = buffer_of(1000);
      net.want(key, buffer);
      net.want(nobodys, other);
      auto done = net.run();
      ASSERT_TRUE(done);
      if (done->status.code() == Code::kUnavailable) done = net.run();  // the other's gap was believed first
      ASSERT_TRUE(done);
      EXPECT_TRUE(done->status.ok()) << holder << " of " << host << ": " << done->status.describe();
      EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
    }
  }
}

TEST(Replayer, ASegmentAttachedLaterFillsTheGap) {
  for (const bool own : {false, true}) {
    Net net({"host-1", "host-1"});
    const RecordKey key = round_key(17);
    net.life(1).publish(key, 1000);
    net.replace(1);
    net.life(2).log->detach(net.dead.back().self);
    net.install();
    auto buffer = buffer_of(1000);
    net.want(key, buffer);
    ASSERT_FALSE(net.run(20));
    Life& holder = net.dead.back();
    for (const std::int32_t at : own ? std::vector{0} : std::vector{2}) {
      ASSERT_TRUE(net.life(at).log->attach(holder.self, holder.memory->bytes(), holder.memory).ok());
    }
    const auto done = net.run();
    ASSERT_TRUE(done);
    EXPECT_TRUE(done->status.ok()) << done->status.describe();
    EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
  }
}

TEST(Replayer, AHostThatDoesNotAnswerIsNoGap) {
  Net net({"host-1", "host-2"});
  const RecordKey key = round_key(17);
  net.life(2).publish(key, 1000);
  net.life(2).alive = false;
  net.install();
  auto buffer = buffer_of(1000);
  net.want(key, buffer);
  EXPECT_FALSE(net.run(60'000));
  EXPECT_THAT(net.warnings, Contains(HasSubstr("rank 2 has not said for 1000 ms")));
  EXPECT_THAT(net.warnings, Contains(HasSubstr("no rank of host host-2 says")));
  const std::size_t listings = net.listings;
  EXPECT_LE(listings, 400U);
  net.life(2).alive = true;
  const auto done = net.run();
  ASSERT_TRUE(done);
  EXPECT_TRUE(done->status.ok());
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
}

// What is to be refilled may lie there alone.
TEST(Replayer, ARefillWaitsForAHostThatDoesNotAnswer) {
  for (const std::uint64_t wanted : {100u, 0u}) {
    Net net({"host-1", "host-2"});
    net.plan.replicas = 2;
    const RecordKey key = round_key(17);
    if (wanted != 0) net.life(1).publish(key, 1000, 0, wanted);
    net.life(2).publish(key, 1000, 100, 1000);
    net.life(2).alive = false;
    net.install();
    auto buffer = buffer_of(1000);
    Replayer::Want w = part_of(key, 1000, wanted == 0 ? Ranges() : Ranges(0, wanted), buffer);
    w.refill = true;
    net.want(std::move(w));
    EXPECT_FALSE(net.run(60'000));
    EXPECT_LE(net.listings, 400U);
    net.life(2).alive = true;
    const auto done = net.run();
    ASSERT_TRUE(done && done->status.ok());
    EXPECT_EQ(done->written, Ranges(0, wanted));
    ASSERT_EQ(done->refill.size(), 1U);
    EXPECT_EQ(done->refill[0].begin, 100U);
    EXPECT_EQ(done->refill[0].bytes, bytes_of(key, 100, 1000));
  }
}

TEST(Replayer, AnotherRankOfTheHostIsAsked) {
  Net net({"host-1", "host-1", "host-1"});
  net.life(1).fresh = true;
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000);
  net.install();
  std::vector<std::int32_t> asked;
  net.on_request = [&](const Replayer::Send& s) {
    asked.push_back(s.to.value);
    return s.to != Rank(2);
  };
  auto buffer = buffer_of(1000);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  // The lowest that is not fresh, and after a second of silence the next.
  EXPECT_THAT(asked, ElementsAre(2, 3, 3));
  EXPECT_EQ(net.now - TimeMs{1000}, 1000 + 4);
}

// Simulated seed 826011312: it alone could read what had spilled to its disk, and its plan came late.
TEST(Replayer, AGapIsNotBelievedWhileARankOfAHostIsSilent) {
  for (const std::string host : {"host-0", "host-1"}) {
    Net net({host, host, host});
    const RecordKey key = round_key(17);
    net.life(2).publish(key, 1000);
    for (const std::int32_t rank : {0, 1, 3}) net.life(rank).log->detach(net.life(2).self);
    net.install();
    bool silent = true;
    std::set<std::int32_t> asked;
    net.on_request = [&](const Replayer::Send& s) {
      asked.insert(s.to.value);
      return !silent || s.to != Rank(2);
    };
    auto buffer = buffer_of(1000);
    net.want(key, buffer);
    EXPECT_FALSE(net.run(20'000)) << "its loss would be noticed, and end the generation";
    EXPECT_THAT(asked, ElementsAre(1, 2, 3));
    silent = false;
    ASSERT_TRUE(net.run()->status.ok());
    EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
    net.want(round_key(18), buffer);
    EXPECT_EQ(net.run()->status.code(), Code::kUnavailable) << "all have answered";
  }
}

TEST(Replayer, AHolderThatDiesInTheMiddleIsReplaced) {
  LargeResult net({"host-1", "host-2"});
  int replies = 0;
  net.on_reply = [&](Rank from, wire::FetchReply& reply) {
    if (from == Rank(1) && reply.data() && ++replies == 2) net.life(1).alive = false;
    return net.life(from.value).alive;
  };
  net.install();
  std::vector<std::byte> buffer(kLargeBytes);
  ASSERT_TRUE(fetch(net, net.key, buffer).status.ok());
  EXPECT_TRUE(buffer == bytes_of(net.key, 0, kLargeBytes));
  EXPECT_EQ(replies, 2);
}

TEST(Replayer, LostRequestsAreMadeAgain) {
  LargeResult net({"host-1"});
  int replies = 0;
  net.on_reply = [&](Rank, wire::FetchReply& reply) { return !reply.data() || ++replies != 2; };
  net.faults.most_delay_ms = 9;
  net.install();
  std::vector<std::byte> buffer(kLargeBytes);
  ASSERT_TRUE(fetch(net, net.key, buffer).status.ok());
  EXPECT_TRUE(buffer == bytes_of(net.key, 0, kLargeBytes));
  EXPECT_THAT(net.warnings, IsEmpty()) << "one loss does not make a host silent";
}

TEST(Replayer, ASlowHolderIsWaitedForAsLongAsItAnswers) {
  LargeResult net({"host-1"});
  net.service_ms[1] = 600;  // four requests are under way at once, and the time is one second
  net.install();
  std::vector<std::byte> buffer(kLargeBytes);
  ASSERT_TRUE(fetch(net, net.key, buffer).status.ok());
  EXPECT_TRUE(buffer == bytes_of(net.key, 0, kLargeBytes));
  EXPECT_THAT(net.warnings, IsEmpty());
  EXPECT_EQ(net.payload_of[1], kLargeBytes) << "nothing was asked for twice";
  EXPECT_LE(net.now - TimeMs{1000}, 600 * 12);
}

TEST(Replayer, WhatAProgramDoesNotComeBackForMakesRoom) {
  constexpr std::uint64_t kLong = std::uint64_t{1} << 20;
  Net net({"host-1"}, 1, std::size_t{80} << 20);
  for (std::uint64_t s = 0; s < 30; ++s) {
    net.life(1).publish(round_key(s, 4, 1), kLong);
    net.life(1).publish(round_key(s, 4, 3), kLong);
  }
  for (std::uint64_t s = 0; s < 1100; ++s) net.life(1).publish(round_key(s, 4, 2), 64);
  net.install();
  std::vector<std::byte> buffer(kLong), small(64);
  net.want(round_key(0, 4, 1), buffer);
  ASSERT_TRUE(net.run()->status.ok());
  net.run_for(100);
  EXPECT_GE(net.payload_of[1], 8 * kLong);
  for (std::uint64_t s = 0; s < 1100; ++s) {
    net.want(round_key(s, 4, 2), small);
    ASSERT_TRUE(net.run()->status.ok()) << s;
  }
  const std::uint64_t before = net.payload_of[1];
  net.want(round_key(0, 4, 3), buffer);
  ASSERT_TRUE(net.run()->status.ok());
  net.run_for(100);
  EXPECT_GE(net.payload_of[1], before + 8 * kLong);
}

TEST(Replayer, WaitsUntilSomebodyHoldsIt) {
  Net net({"host-1", "host-2"});
  const RecordKey key{RecordKind::kLocal, {Timeline(1), kWorldGroup, Version(4), Sequence(2)}};
  net.install();
  Replayer::Want w;
  w.key = key;
  w.wait = true;
  net.want(std::move(w));
  EXPECT_EQ(net.run(100'000), std::nullopt);
  EXPECT_LE(net.listings, 2U * 70U) << "more and more seldom";
  net.life(2).publish(key, 5000, 0, 4000);
  EXPECT_EQ(net.run(10'000), std::nullopt);
  net.life(2).publish(key, 5000, 4000, 5000);
  const auto done = net.run();
  ASSERT_TRUE(done);
  ASSERT_TRUE(done->status.ok()) << done->status.describe();
  EXPECT_EQ(done->bytes, bytes_of(key, 0, 5000));
}

// A commit waits for it: one rank takes its checkpoint some milliseconds before another.
TEST(Replayer, WhoWaitsForAStateHasItSoonAfterItIsThere) {
  Net net({"host-1", "host-2"});
  const RecordKey key{RecordKind::kLocal, {Timeline(1), kWorldGroup, Version(4), Sequence(2)}};
  net.plan.timeout_ms = 10'000;
  net.install();
  Replayer::Want w;
  w.key = key;
  w.wait = true;
  net.want(std::move(w));
  EXPECT_EQ(net.run(10), std::nullopt);
  net.life(2).publish(key, 5000, 0, 5000);
  EXPECT_TRUE(net.run(12)) << "asked again much later than it had been missed";
}

// A checkpoint of K ranks is not to cost K² requests.
TEST(Replayer, ALocalStateIsAskedForAtItsRanksHostFirst) {
  Net net({"host-1", "host-2", "host-3", "host-4"});
  std::set<std::int32_t> asked;
  net.on_request = [&](const Replayer::Send& send) {
    asked.insert(send.to.value);
    return true;
  };
  net.install();
  const auto local = [](std::uint64_t rank) {
    return RecordKey{RecordKind::kLocal, {Timeline(1), kWorldGroup, Version(4), Sequence(rank)}};
  };
  const auto want = [&](std::uint64_t rank) {
    Replayer::Want w;
    w.key = local(rank);
    w.wait = true;
    net.want(std::move(w));
  };
  net.life(2).publish(local(2), 5000);
  want(2);
  ASSERT_TRUE(net.run());
  EXPECT_EQ(asked, std::set<std::int32_t>{2});
  // So is another one's, after it and beside it.
  net.life(4).publish(local(4), 300);
  want(4);
  want(3);
  ASSERT_TRUE(net.run());
  EXPECT_EQ(asked, (std::set<std::int32_t>{2, 3, 4}));
  // Its rank's host does not have it: somebody else may.
  net.life(1).publish(local(3), 700);
  const auto done = net.run(10'000);
  ASSERT_TRUE(done);
  EXPECT_EQ(done->bytes, bytes_of(local(3), 0, 700));
}

// However soon, and however often, it asks at first.
TEST(Replayer, ALocalStatesHostIsAskedAloneForASeventhOfTheTimeout) {
  for (const std::int64_t timeout_ms : {700, 10'000, 140'000}) {
    Net net({"host-1", "host-2", "host-3"});
    std::set<std::int32_t> asked;
    net.on_request = [&](const Replayer::Send& send) {
      asked.insert(send.to.value);
      return true;
    };
    net.plan.timeout_ms = timeout_ms;
    net.install();
    Replayer::Want w;
    w.key = {RecordKind::kLocal, {Timeline(1), kWorldGroup, Version(4), Sequence(3)}};
    w.wait = true;
    net.want(std::move(w));
    EXPECT_EQ(net.run(timeout_ms / 7 - 20), std::nullopt);
    EXPECT_EQ(asked, std::set<std::int32_t>{3}) << timeout_ms;
    EXPECT_EQ(net.run(40), std::nullopt);
    EXPECT_THAT(asked, testing::IsSupersetOf({1, 2, 3})) << timeout_ms;
    // Another plan: somebody else may be on that host now.
    asked.clear();
    net.suspend();
    net.install();
    EXPECT_EQ(net.run(timeout_ms / 7 - 20), std::nullopt);
    EXPECT_EQ(asked, std::set<std::int32_t>{3}) << timeout_ms;
  }
}

// All hosts are asked for it each time.
TEST(Replayer, APartOfAGlobalStateIsNotAskedForAgainAsSoon) {
  Net net({"host-1", "host-2"});
  net.plan.timeout_ms = 10'000;
  net.install();
  std::vector<std::byte> buffer(1000);
  Replayer::Want w;
  w.key = {RecordKind::kGlobal, {Timeline(1), kWorldGroup, Version(4), Sequence(0)}};
  w.fingerprint = info_of(1000).fingerprint;
  w.total_bytes = 1000;
  w.bytes = Ranges(0, 1000);
  w.base = buffer.data();
  w.wait = true;
  net.want(std::move(w));
  EXPECT_EQ(net.run(99), std::nullopt);
  EXPECT_EQ(net.listings, 2U);
}

TEST(Replayer, UnknownLengthComesFromTheLog) {
  for (const std::uint64_t total : {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{3'000'000}}) {
    Net net({"host-1", "host-2"});
    const RecordKey key{RecordKind::kGlobal, {Timeline(1), kWorldGroup, Version(4), Sequence(0)}};
    net.life(1).publish(key, total, 0, total / 2);
    net.life(2).publish(key, total, total / 2, total);
    net.install();
    const auto done = fetch(net, key);
    ASSERT_TRUE(done.status.ok()) << done.status.describe();
    EXPECT_TRUE(done.bytes == bytes_of(key, 0, total));
    EXPECT_EQ(done.info, info_of(total));
  }
}

TEST(Replayer, AnUnbelievableLengthIsAnErrorAndNoAllocation) {
  Net net({"host-1"});
  const RecordKey key{RecordKind::kGlobal, {Timeline(1), kWorldGroup, Version(4), Sequence(0)}};
  net.life(1).publish(key, std::uint64_t{1} << 60, 0, 100);
  net.install();
  const auto done = fetch(net, key);
  EXPECT_EQ(done.status.describe(),
            "the log of rank 1's host gives the global state of version 3 1152921504606846976 bytes, and no state has "
            "more than 274877906944");
  EXPECT_EQ(done.status.code(), Code::kCorrupt);
}

TEST(Replayer, AWantWithoutBytesNeedsARecordAllTheSame) {
  Net net({"host-1"});
  net.life(1).publish(round_key(1), 100);
  net.life(1).publish(round_key(2), 0);
  net.install();
  Replayer::Want w;
  w.fingerprint = info_of(0).fingerprint;
  w.key = round_key(1);
  w.total_bytes = 100;
  net.want(w);
  EXPECT_TRUE(net.run()->status.ok());
  w.key = round_key(2);
  w.total_bytes = 0;
  net.want(w);
  EXPECT_TRUE(net.run()->status.ok());
  w.key = round_key(3);
  net.want(w);
  EXPECT_EQ(net.run()->status.code(), Code::kUnavailable);
}

TEST(Replayer, DamagedBytesAreDroppedLoudlyAndComeFromAnother) {
  Net net({"host-1", "host-2"});
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000);
  net.life(2).publish(key, 1000);
  net.install();
  auto buffer = buffer_of(1000);
  int damaged = 0;
  bool clean = true;
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    if (reply.data() && ++damaged == 1) (*reply.mutable_entries(0)->mutable_payload())[999] ^= 0x40;
    clean = clean && (damaged > 1 || untouched(buffer));
    return true;
  };
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
  EXPECT_TRUE(clean);
  EXPECT_EQ(net.data_requests, 2U);
  EXPECT_EQ(net.payload_of.size(), 2U) << "the second time another holder was asked";
  EXPECT_THAT(net.warnings, ElementsAre(HasSubstr("bytes of " + to_string(key.round) + " from rank ")));
}

// Simulated seed 9324644: the only holder was slow to have the bytes, and then they arrived damaged.
TEST(Replayer, DamageAfterManyLooksIsNoGap) {
  Net net({"host-1"});
  const RecordKey key = round_key(17);
  net.install();
  bool damaged = false;
  int looks = 0;
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    if (!reply.data() && reply.entries().empty() && ++looks == 3) net.life(1).publish(key, 1000);
    if (reply.data() && !std::exchange(damaged, true)) (*reply.mutable_entries(0)->mutable_payload())[0] ^= 1;
    return true;
  };
  auto buffer = buffer_of(1000);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
  EXPECT_TRUE(damaged);
}

TEST(Replayer, TheOnlyHolderIsAskedAgainAfterDamageButNotForEver) {
  Net net({"host-1"});
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000);
  net.install();
  int damage = 1;
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    if (reply.data() && damage-- > 0) (*reply.mutable_entries(0)->mutable_payload())[0] ^= 1;
    return true;
  };
  auto buffer = buffer_of(1000);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000));

  damage = 1'000'000;
  buffer = buffer_of(1000);
  net.life(1).publish(round_key(18), 1000);
  net.want(round_key(18), buffer);
  EXPECT_EQ(net.run()->status.code(), Code::kUnavailable);
  EXPECT_TRUE(untouched(buffer));
}

// What is fetched in many pieces may see many damaged, as long as others arrive.
TEST(Replayer, PiecesOfALargeResultThatArriveDamagedAreAskedForAgainEach) {
  constexpr std::uint64_t kBytes = std::uint64_t{24} << 20;
  Net net({"host-1"}, 1, std::size_t{40} << 20);
  const RecordKey key = round_key(17);
  net.life(1).publish(key, kBytes);
  net.install();
  int damaged = 0;
  bool clean = false;
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    if (!reply.data()) return true;
    if (!clean) {
      (*reply.mutable_entries(0)->mutable_payload())[0] ^= 1;
      ++damaged;
    }
    clean = !clean;
    return true;
  };
  auto buffer = buffer_of(kBytes);
  net.want(key, buffer);
  const auto run = net.run();
  ASSERT_TRUE(run->status.ok()) << run->status.describe();
  EXPECT_EQ(buffer, bytes_of(key, 0, kBytes));
  EXPECT_GT(damaged, 4) << "more than are asked for again in a row";
}

// Simulated seed 812008721: a copy for other ranks arrived damaged from its only holder, and was not made.
TEST(Replayer, WhatIsRefilledIsAskedForAgainAfterDamageButNotForEver) {
  for (const int times : {1, 1'000'000}) {
    Net net({"host-1"});
    net.plan.replicas = 2;
    const RecordKey key = round_key(17);
    net.life(1).publish(key, 1000);
    net.install();
    int damage = times;
    net.on_reply = [&](Rank, wire::FetchReply& reply) {
      const bool extra = reply.data() && reply.entries(0).held(0).begin() >= 100;
      if (extra && damage-- > 0) (*reply.mutable_entries(0)->mutable_payload())[0] ^= 1;
      return true;
    };
    auto buffer = buffer_of(1000);
    Replayer::Want w = part_of(key, 1000, Ranges(0, 100), buffer);
    w.refill = true;
    net.want(std::move(w));
    const auto done = net.run();
    ASSERT_TRUE(done && done->status.ok());
    EXPECT_EQ(done->written, Ranges(0, 100));
    ASSERT_EQ(done->refill.size(), times == 1 ? 1U : 0U);
    if (times == 1) {
      EXPECT_EQ(done->refill[0].bytes, bytes_of(key, 100, 1000));
    } else {
      EXPECT_LE(times - damage, 5);
    }
  }
}

// It was taken for whole as soon as another piece of it had come.
TEST(Replayer, WhatIsRefilledInPiecesIsAskedForAgainAfterDamageOfOne) {
  constexpr std::uint64_t kBytes = std::uint64_t{24} << 20;
  Net net({"host-1"}, 1, std::size_t{40} << 20);
  net.plan.replicas = 2;
  const RecordKey key = round_key(17);
  net.life(1).publish(key, kBytes);
  net.install();
  bool damaged = false;
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    const bool extra = reply.data() && reply.entries(0).held(0).begin() >= 100;
    if (extra && !std::exchange(damaged, true)) (*reply.mutable_entries(0)->mutable_payload())[0] ^= 1;
    return true;
  };
  auto buffer = buffer_of(kBytes);
  Replayer::Want w = part_of(key, kBytes, Ranges(0, 100), buffer);
  w.refill = true;
  net.want(std::move(w));
  const auto done = net.run();
  ASSERT_TRUE(done && done->status.ok());
  Ranges refilled;
  for (const auto& piece : done->refill) {
    refilled.add(piece.begin, piece.begin + piece.bytes.size());
    EXPECT_TRUE(piece.bytes == bytes_of(key, piece.begin, piece.begin + piece.bytes.size()));
  }
  EXPECT_EQ(refilled, Ranges(100, kBytes));
}

// Only bytes that are of use show that it gets on.
TEST(Replayer, EmptyEntriesBetweenDamagedOnesDoNotKeepItAskingForEver) {
  constexpr std::uint64_t kBytes = std::uint64_t{4} << 20;
  Net net({"host-1"}, 1, std::size_t{40} << 20);
  const RecordKey key = round_key(17);
  net.life(1).publish(key, kBytes);
  net.install();
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    if (!reply.data()) return true;
    wire::FetchEntry& e = *reply.mutable_entries(0);
    if (e.held(0).begin() == 0) {
      e.clear_held();
      e.clear_payload();
      e.set_checksum(xxh3({}));
    } else {
      (*e.mutable_payload())[0] ^= 1;
    }
    return true;
  };
  auto buffer = buffer_of(kBytes);
  const auto done = fetch(net, key, buffer);
  EXPECT_EQ(done.status.code(), Code::kUnavailable);
}

TEST(Replayer, BytesThatWereNotAskedForAreDroppedLoudly) {
  Net net({"host-1"});
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 2000);
  net.install();
  int replies = 0;
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    if (!reply.data() || ++replies > 1) return true;
    wire::ByteRange& range = *reply.mutable_entries(0)->mutable_held(0);
    range.set_begin(500);
    range.set_end(1500);
    return true;
  };
  auto buffer = buffer_of(2000);
  net.want(key, buffer, 0, 1000);
  ASSERT_TRUE(net.run()->status.ok());
  EXPECT_THAT(net.warnings, Contains(HasSubstr("was not asked for")));
  auto expected = bytes_of(key, 0, 1000);
  expected.resize(2000, kBefore);
  EXPECT_EQ(buffer, expected);
}

TEST(Replayer, OtherCallsInTheLogAreADesync) {
  for (const bool own : {false, true}) {
    Net net({"host-1"});
    const RecordKey key = round_key(17);
    net.life(own ? 0 : 1).publish(key, 1000);
    net.install();
    auto buffer = buffer_of(1000);
    Replayer::Want w;
    w.key = key;
    w.fingerprint = info_of(1000, 8).fingerprint;
    w.total_bytes = 1000;
    w.bytes = Ranges(0, 1000);
    w.base = buffer.data();
    net.want(w);
    auto done = net.run();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status.code(), Code::kDesync);
    EXPECT_THAT(done->status.describe(), HasSubstr(to_string(key.round)));
    EXPECT_THAT(done->status.describe(), HasSubstr("count 8"));
    EXPECT_THAT(done->status.describe(), HasSubstr("count 7"));

    w.fingerprint = info_of(1000).fingerprint;
    w.total_bytes = 1001;
    net.want(w);
    done = net.run();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->status.code(), Code::kDesync);
    EXPECT_THAT(done->status.describe(), HasSubstr("1001 bytes"));
    EXPECT_TRUE(untouched(buffer));
  }
}

TEST(Replayer, HoldersThatDisagreeAreADesync) {
  Net net({"host-1", "host-2"});
  const RecordKey key{RecordKind::kGlobal, {Timeline(1), kWorldGroup, Version(4), Sequence(0)}};
  net.life(1).publish(key, 1000);
  net.life(2).publish(key, 1002);
  net.install();
  const auto done = fetch(net, key);
  EXPECT_EQ(done.status.code(), Code::kDesync);
  EXPECT_THAT(done.status.describe(), HasSubstr("1000 bytes"));
  EXPECT_THAT(done.status.describe(), HasSubstr("1002 bytes"));
  EXPECT_TRUE(done.bytes.empty());
}

TEST(Replayer, LogAgainWhatTooFewDomainsHold) {
  Net net({"host-1", "host-2", "host-0"});
  net.plan.replicas = 2;
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000, 0, 500);
  net.life(2).publish(key, 1000, 300, 1000);
  net.life(3).publish(key, 1000, 900, 1000);
  net.install();
  auto buffer = buffer_of(1000);
  net.want(key, buffer, 100, 1000);
  auto done = net.run();
  ASSERT_TRUE(done && done->status.ok());
  Ranges expected(100, 300);
  expected.add(500, 900);
  EXPECT_EQ(done->log_again, expected);

  // Two hosts of one domain are one copy.
  net.life(2).domain = net.life(1).domain;
  net.install();
  net.want(key, buffer);
  done = net.run();
  ASSERT_TRUE(done && done->status.ok());
  EXPECT_EQ(done->log_again, Ranges(0, 900));

  // With fewer domains than copies, one each.
  net.plan.replicas = 3;
  net.install();
  net.want(key, buffer);
  done = net.run();
  ASSERT_TRUE(done && done->status.ok());
  EXPECT_EQ(done->log_again, Ranges(0, 900));
}

// Rank 3 has none any more.
TEST(Replayer, WhoHasLeftAndServesIsAskedAndIsNoCopy) {
  for (const char* host : {"host-3", "host-0"}) {
    Net net({"host-1", "host-2", host});
    net.plan.replicas = 2;
    net.life(3).server = true;
    const RecordKey key = round_key(17);
    net.life(1).publish(key, 1000, 0, 500);
    net.life(2).publish(key, 1000, 0, 200);
    net.life(3).publish(key, 1000, 400, 1000);
    net.lives[0].log->detach(net.life(3).self);
    net.install();
    auto buffer = buffer_of(1000);
    net.want(key, buffer);
    auto done = net.run();
    ASSERT_TRUE(done && done->status.ok()) << host;
    EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
    EXPECT_EQ(done->log_again, Ranges(200, 1000));
    // Others' parts come from it, too, whatever its domain.
    Replayer::Want w;
    w.key = key;
    w.fingerprint = info_of(1000).fingerprint;
    w.total_bytes = 1000;
    w.refill = true;
    net.install();
    net.want(std::move(w));
    done = net.run();
    ASSERT_TRUE(done && done->status.ok());
    ASSERT_EQ(done->refill.size(), 1U);
    EXPECT_EQ(done->refill[0].begin, 200U);
    EXPECT_EQ(done->refill[0].bytes, bytes_of(key, 200, 1000));
    // It is none of its host's lives.
    EXPECT_EQ(net.replayer->host_lives().size(), 1U);
    const Rank both[] = {Rank(0), Rank(3)};
    EXPECT_TRUE(net.replayer->refills(both));
  }
}

TEST(Replayer, ASpareAsksForAGlobalStateAlsoOnItsOwnHost) {
  // Rank 0 is the spare, and beside it, on its host, rank 1.
  Net net({"host-0", "host-1"});
  net.life(0).server = true;
  net.life(0).host.clear();
  net.plan.follows = true;
  const RecordKey key{RecordKind::kGlobal, {Timeline(1), GroupId(0), Version(4), Sequence(0)}};
  net.life(1).publish(key, 3000, 0, 1500);
  net.life(2).publish(key, 3000, 1500, 3000);
  net.lives[0].log->detach(net.life(1).self);
  net.lives[1].log->detach(net.life(0).self);
  // What its own disk holds may be of another run of the job, or of a life that was given up.
  net.life(0).publish(key, 2000);
  std::set<bool> follows;
  std::set<std::int32_t> asked;
  net.on_request = [&](const Replayer::Send& s) {
    follows.insert(s.request.follows());
    asked.insert(s.to.value);
    return true;
  };
  net.install();
  Replayer::Want want;
  want.key = key;
  net.want(std::move(want));
  const auto done = net.run();
  ASSERT_TRUE(done && done->status.ok());
  EXPECT_EQ(done->bytes, bytes_of(key, 0, 3000));
  EXPECT_EQ(follows, std::set<bool>{true});
  EXPECT_EQ(asked, (std::set<std::int32_t>{1, 2})) << "and not itself";
  // With a place it is one of them, and reads what it has.
  net.life(0).server = false;
  net.life(0).host = "host-2";
  net.plan.follows = false;
  follows.clear();
  auto buffer = buffer_of(100);
  net.life(2).publish(round_key(3), 100);
  net.install();
  ASSERT_TRUE(fetch(net, round_key(3), buffer).status.ok());
  EXPECT_EQ(follows, std::set<bool>{false});
}

TEST(Replayer, WhoServesAndIsGoneIsNotWaitedFor) {
  Net net({"host-1", "host-2"});
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000, 0, 500);
  net.life(2).publish(key, 1000, 500, 1000);
  net.life(2).server = true;
  net.life(2).alive = false;
  const auto done = gap_in(net, key, 1000);
  EXPECT_THAT(std::string(done.status.message()), HasSubstr("bytes 500-1000 of 1000 of"));
  EXPECT_THAT(std::string(done.status.message()), HasSubstr("(asked rank 1 and this host)"));
  EXPECT_THAT(net.warnings, Contains(HasSubstr("who has left host host-2 has not said for 1000 ms")));
}

TEST(Replayer, WhatALateHostHoldsCountsForLogAgain) {
  Net net({"host-1", "host-2"});
  net.plan.replicas = 2;
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000);
  net.life(2).publish(key, 1000, 0, 700);
  net.service_ms[2] = 500;
  net.install();
  auto buffer = buffer_of(1000);
  net.want(key, buffer);
  EXPECT_FALSE(net.run(400));
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000)) << "the bytes themselves need not wait";
  const auto done = net.run();
  ASSERT_TRUE(done && done->status.ok());
  EXPECT_EQ(done->log_again, Ranges(700, 1000));
}

TEST(Replayer, LogAgainWhatOnlyDeadLivesOfTheHostHold) {
  Net net({"host-0", "host-1"});
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000, 0, 600);
  net.life(2).publish(key, 1000);
  net.replace(1);
  net.attach(0, 1);
  net.life(1).publish(key, 1000, 0, 200);
  net.install();
  auto buffer = buffer_of(1000);
  net.want(key, buffer);
  const auto done = net.run();
  ASSERT_TRUE(done && done->status.ok());
  EXPECT_EQ(done->log_again, Ranges(200, 600));
}

TEST(Replayer, RepliesOfOlderGenerationsAreIgnored) {
  Net net({"host-1"});
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000);
  wire::FetchReply old;
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    old = reply;
    return false;
  };
  net.install();
  auto buffer = buffer_of(1000);
  net.want(key, buffer);
  net.run_for(10);
  ASSERT_EQ(old.generation(), 1U);
  std::vector<Replayer::Send> out;
  net.suspend();
  net.replayer->on_reply(Rank(1), old, net.now, out);
  net.replayer->on_tick(net.now + 100'000, out);
  EXPECT_TRUE(out.empty()) << "nothing is sent before the next plan";
  EXPECT_EQ(net.replayer->next_deadline(), std::nullopt);
  EXPECT_EQ(net.replayer->describe(), "waits for the next plan to replay " + to_string(key.round));
  net.install();
  net.replayer->on_reply(Rank(1), old, net.now, out);
  old.set_generation(2);
  net.replayer->on_reply(Rank(1), old, net.now, out);
  EXPECT_TRUE(out.empty()) << "an id of the older generation";
  net.on_reply = nullptr;
  ASSERT_TRUE(net.run()->status.ok());
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
}

TEST(Replayer, RepliesOfOtherLivesAndGenerationsAreIgnored) {
  Net net({"host-1", "host-2"});
  const RecordKey key = round_key(17);
  net.life(1).publish(key, 1000);
  net.install();
  int data = 0;
  net.on_reply = [&](Rank from, wire::FetchReply& reply) {
    wire::FetchReply forged = reply;
    std::vector<Replayer::Send> out;
    forged.set_sender(reply.sender() + 77);
    net.replayer->on_reply(from, forged, net.now, out);
    forged = reply;
    forged.set_receiver(reply.receiver() + 77);
    net.replayer->on_reply(from, forged, net.now, out);
    net.replayer->on_reply(from == Rank(1) ? Rank(2) : Rank(1), reply, net.now, out);
    forged = reply;
    forged.set_generation(reply.generation() + 1);
    net.replayer->on_reply(from, forged, net.now, out);
    EXPECT_TRUE(out.empty());
    data += reply.data();
    return true;
  };
  auto buffer = buffer_of(1000);
  ASSERT_TRUE(fetch(net, key, buffer).status.ok());
  EXPECT_EQ(buffer, bytes_of(key, 0, 1000));
  EXPECT_EQ(data, 1);
}

TEST(Replayer, WantsStayOverAGeneration) {
  LargeResult net({"host-1", "host-2"});
  int replies = 0;
  net.on_reply = [&](Rank, wire::FetchReply& reply) {
    replies += reply.data();
    return replies <= 3;
  };
  net.install();
  std::vector<std::byte> buffer(kLargeBytes);
  net.want(net.key, buffer);
  net.run_for(100);
  net.suspend();
  net.on_reply = nullptr;
  net.payload_of.clear();
  net.life(1).alive = false;
  net.replace(1);
  net.install();
  ASSERT_TRUE(net.run()->status.ok());
  EXPECT_TRUE(buffer == bytes_of(net.key, 0, kLargeBytes));
  EXPECT_LT(net.payload_of[2], kLargeBytes) << "what had come was kept";
}

TEST(Replayer, ACancelledWantIsNotWrittenToAnyMore) {
  LargeResult net({"host-1"});
  net.life(0).publish(net.key, kLargeBytes, 100, 300);
  int replies = 0;
  net.on_reply = [&](Rank, wire::FetchReply& reply) { return !reply.data() || ++replies <= 2; };
  net.install();
  auto buffer = buffer_of(kLargeBytes);
  const std::uint64_t id = net.want(net.key, buffer);
  net.run_for(100);
  const Ranges written = net.replayer->cancel(id);
  EXPECT_TRUE(written.covers(100, 300));
  EXPECT_GT(written.size(), 200U);
  EXPECT_LT(written.size(), kLargeBytes);
  const auto expected = bytes_of(net.key, 0, kLargeBytes);
  for (const Interval& i : written.intervals()) {
    EXPECT_TRUE(std::equal(buffer.begin() + static_cast<std::ptrdiff_t>(i.begin),
                           buffer.begin() + static_cast<std::ptrdiff_t>(i.end),
                           expected.begin() + static_cast<std::ptrdiff_t>(i.begin)));
  }
  buffer.assign(kLargeBytes, kBefore);
  net.on_reply = nullptr;
  net.run_for(10'000);
  EXPECT_TRUE(untouched(buffer));
  EXPECT_TRUE(net.replayer->idle());
  EXPECT_EQ(net.replayer->cancel(id), Ranges());
  EXPECT_TRUE(net.replayer->take_done().empty());
}

// An interrupt that comes between the last byte and the look at what has ended.
TEST(Replayer, AWantThatHasEndedIsCancelledAsLongAsNobodyHasTakenItsEnd) {
  Net net({"host-1"});
  const RecordKey key = round_key(17);
  net.life(0).publish(key, 1000);
  net.install();
  auto buffer = buffer_of(1000);
  const std::uint64_t id = net.want(key, buffer, 100, 900);
  ASSERT_TRUE(net.replayer->idle());
  EXPECT_EQ(net.replayer->cancel(id), Ranges(100, 900));
  EXPECT_TRUE(net.replayer->take_done().empty());
  EXPECT_EQ(net.replayer->cancel(id), Ranges());
}

TEST(Replayer, TheNewestLifeOfAHostRefills) {
  Net net({"host-0", "host-0", "host-1"});
  net.plan.replicas = 2;
  const auto refills = [&](std::vector<Rank> members) { return net.replayer->refills(members); };
  const std::vector<Rank> all{Rank(0), Rank(1), Rank(2), Rank(3)};
  net.install();
  EXPECT_TRUE(refills(all)) << "the first of equals";
  EXPECT_FALSE(refills({Rank(1), Rank(2), Rank(3)})) << "it is none of them";
  net.life(2).since = net.life(3).since = Generation(5);
  net.install();
  EXPECT_FALSE(refills(all)) << "rank 2 has everything before it";
  EXPECT_TRUE(refills({Rank(0), Rank(1), Rank(3)})) << "rank 3 is elsewhere";
  net.life(0).since = Generation(6);
  net.install();
  EXPECT_TRUE(refills(all));
  net.plan.replicas = 1;
  net.install();
  EXPECT_FALSE(refills(all)) << "nothing is copied";
}

TEST(Replayer, ManyWantsAtOnceAreServedInAnyOrder) {
  Net net({"host-1", "host-2"});
  constexpr std::uint64_t kWants = 4096;
  std::vector<std::vector<std::byte>> buffers(kWants, buffer_of(64));
  for (std::uint64_t s = 0; s < kWants; ++s) net.life(1 + static_cast<std::int32_t>(s % 2)).publish(round_key(s), 64);
  net.install();
  std::map<std::uint64_t, std::uint64_t> sequence_of;
  for (std::uint64_t s = 0; s < kWants; ++s) sequence_of[net.want(round_key(s), buffers[s])] = s;
  for (std::uint64_t n = 0; n < kWants; ++n) {
    const auto done = net.run();
    ASSERT_TRUE(done && done->status.ok());
    const std::uint64_t s = sequence_of.at(done->id);
    ASSERT_EQ(buffers[s], bytes_of(round_key(s), 0, 64));
  }
  EXPECT_LE(net.listings + net.data_requests, 40U);
}

TEST(Replayer, AWantAfterTheListingIsLookedForAnew) {
  Net net({"host-1"});
  net.life(1).publish(round_key(0), 100);
  net.install();
  auto buffer = buffer_of(100);
  ASSERT_TRUE(fetch(net, round_key(0), buffer).status.ok());
  net.run_for(100);
  net.life(1).publish(round_key(1), 100);
  const TimeMs began = net.now;
  ASSERT_TRUE(fetch(net, round_key(1), buffer).status.ok());
  EXPECT_EQ(buffer, bytes_of(round_key(1), 0, 100));
  EXPECT_LE(net.now - began, 4) << "the old listing said that nobody has it: no reason to wait";
}

TEST(Replayer, ResultsThatDifferByRankAreNotFetchedAheadInWhole) {
  Net net({"host-1"});
  RecordInfo info = info_of(200'000);
  info.fingerprint.collective = Collective::kReduceScatter;
  for (std::uint64_t s = 0; s < 5; ++s) {
    ASSERT_TRUE(net.life(1).log->publish(round_key(s), info, 0, bytes_of(round_key(s), 0, 200'000)).ok());
  }
  net.install();
  auto buffer = buffer_of(200'000);
  Replayer::Want w;
  w.key = round_key(0);
  w.fingerprint = info.fingerprint;
  w.total_bytes = 200'000;
  w.bytes = Ranges(1000, 2000);
  w.base = buffer.data();
  net.want(w);
  ASSERT_TRUE(net.run()->status.ok());
  net.run_for(100);
  EXPECT_EQ(net.payload_of[1], 1000U);
}

}  // namespace
}  // namespace warren::worker::replaytest
