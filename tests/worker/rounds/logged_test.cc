// What a host's memory says of rounds, in a join: of one run, or nothing.
#include "worker/rounds/logged.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace warren::worker {
namespace {

struct Life {
  Life(std::uint64_t id, std::uint64_t run) : self(id), memory(heap_segment(std::size_t{64} << 10)) {
    log = std::move(HostLog::create(self, memory)).value();
    if (run != 0) log->belong(run);
  }
  void publish(std::uint64_t sequence) const {
    const std::vector<std::byte> bytes(8);
    const RecordKey key{RecordKind::kRound, {Timeline(2), kWorldGroup, Version(1), Sequence(sequence)}};
    RecordInfo info;
    info.fingerprint.collective = Collective::kAllreduce;
    info.total_bytes = bytes.size();
    ASSERT_TRUE(log->publish(key, info, 0, bytes).ok());
  }

  Incarnation self;
  std::shared_ptr<SegmentMemory> memory;
  std::unique_ptr<HostLog> log;
};

class KeptIn : public testing::Test {
 protected:
  void attach(const Life& dead) { ASSERT_TRUE(new_.log->attach(dead.self, dead.memory->bytes(), dead.memory).ok()); }
  Life new_{1, 0};
};

TEST_F(KeptIn, AnEmptyHostSaysNothing) {
  EXPECT_TRUE(says_nothing(kept_in(*new_.log)));
}

TEST_F(KeptIn, TheNewestRoundsTheLivesAndTheirRun) {
  const Life a(11, 70), b(12, 70), unplanned(13, 0);
  a.publish(3);
  b.publish(4);
  for (const Life* dead : {&a, &b, &unplanned}) attach(*dead);
  const wire::Logged logged = kept_in(*new_.log);
  EXPECT_EQ(logged.run(), 70u);
  EXPECT_EQ(logged.timeline(), 2u);
  ASSERT_EQ(logged.positions_size(), 1);
  EXPECT_EQ(logged.positions(0).rounds(), 4u);
  EXPECT_EQ(logged.lives_size(), 3);
}

TEST_F(KeptIn, LivesThatHaveKnownNoRunAreNamed) {
  const Life unplanned(13, 0);
  attach(unplanned);
  const wire::Logged logged = kept_in(*new_.log);
  EXPECT_EQ(logged.run(), 0u);
  EXPECT_EQ(logged.lives_size(), 1);
}

TEST_F(KeptIn, OfTwoRunsNothingIsSaid) {
  const Life old(11, 60), newer(12, 70);
  old.publish(9);
  attach(old);
  attach(newer);
  EXPECT_TRUE(says_nothing(kept_in(*new_.log)));
}

}  // namespace
}  // namespace warren::worker
