#include "worker/disk/past.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "recovery/ids.h"
#include "storage/fake_result_store.h"

namespace warren::worker {
namespace {

constexpr std::uint64_t kRun = 11;

wire::Plan plan_of(std::uint64_t epoch, std::uint32_t timeline, std::uint64_t run = kRun) {
  wire::Plan p;
  p.set_run(run);
  p.set_epoch(epoch);
  p.set_timeline(timeline);
  wire::JobSettings& settings = *p.mutable_settings();
  settings.set_world_size(1);
  settings.set_round_timeout_ms(10'000);
  settings.set_algorithm("auto");
  settings.set_chunk_bytes(1 << 18);
  settings.set_streams(1);
  settings.set_replicas(1);
  wire::Member& m = *p.add_members();
  m.set_incarnation(run + epoch);
  m.set_worker_id("w0");
  m.set_host_id("a");
  m.set_domain_id("a");
  m.set_local_size(1);
  m.set_fetch_port(6000);
  m.add_endpoints()->set_address("127.0.0.1");
  m.mutable_endpoints(0)->set_port(5000);
  p.add_ring(0);
  p.add_tree_parent(-1);
  return p;
}

class PastTest : public testing::Test {
 protected:
  // A life that has ended, and its note.
  void leave(const wire::Known& known) {
    storage::FakeResultStore store(disk_, "w0", Incarnation(++lives_));
    ASSERT_TRUE(store.note(note_of(known)).ok());
  }
  std::optional<wire::Held> held() {
    storage::FakeResultStore store(disk_, "w0", Incarnation(++lives_));
    return held_on(store);
  }
  static wire::Known commit(wire::Known known, std::uint64_t version, std::uint32_t timeline) {
    known.set_committed(true);
    known.set_committed_version(version);
    known.set_committed_timeline(timeline);
    return known;
  }
  static void add_setup(wire::Known& known, std::uint64_t name, std::uint32_t timeline) {
    wire::Setup& s = *known.add_setups();
    s.set_name(kSetupBit | name);
    s.set_timeline(timeline);
    s.set_done(true);
  }

  std::shared_ptr<storage::FakeResultDisk> disk_ = std::make_shared<storage::FakeResultDisk>();
  std::uint64_t lives_ = 0;
};

TEST_F(PastTest, AnEmptyDiskSaysNothing) {
  EXPECT_FALSE(held().has_value());
}

TEST_F(PastTest, TheNewestPlanAndCommitOfTheRunThatMostEpochsName) {
  leave(commit(known_of(plan_of(3, 1)), 4, 1));
  leave(commit(known_of(plan_of(4, 1)), 4, 1));
  leave(commit(known_of(plan_of(4, 1)), 5, 1));
  leave(known_of(plan_of(9, 7, 99)));
  const auto h = held();
  ASSERT_TRUE(h.has_value());
  EXPECT_EQ(h->run(), kRun);
  EXPECT_EQ(h->known().plan_epoch(), 4u);
  EXPECT_EQ(h->known().plan().epoch(), 4u);
  EXPECT_EQ(h->known().committed_version(), 5u);
}

// The mirror served: what was committed after what it held is lost.
TEST_F(PastTest, ACommitThatTheNewestPlanHasTakenBackIsNone) {
  leave(commit(known_of(plan_of(3, 1)), 9, 1));
  leave(commit(known_of(plan_of(5, 2)), 6, 1));
  leave(commit(known_of(plan_of(4, 1)), 9, 1));
  const auto h = held();
  ASSERT_TRUE(h.has_value());
  EXPECT_EQ(h->known().plan_epoch(), 5u);
  EXPECT_EQ(h->known().committed_version(), 6u);
}

TEST_F(PastTest, SetUpRoundsOfTheNewestTimelineAreDone) {
  wire::Known older = known_of(plan_of(3, 1)), newer = known_of(plan_of(4, 2)), newest = known_of(plan_of(5, 2));
  add_setup(older, 7, 1);  // undone by a rollback since: it was begun again
  add_setup(newer, 7, 2);
  add_setup(newest, 9, 2);
  for (const wire::Known& known : {newest, older, newer}) leave(known);
  const auto h = held();
  ASSERT_TRUE(h.has_value());
  ASSERT_EQ(h->known().setups_size(), 2);
  EXPECT_EQ(h->known().setups(0).timeline(), 2u);
  EXPECT_EQ(h->known().setups(1).name(), kSetupBit | 9);
}

TEST_F(PastTest, ANoteThatCannotBeReadIsLeftOut) {
  {
    storage::FakeResultStore store(disk_, "w0", Incarnation(++lives_));
    ASSERT_TRUE(store.note({kRun, "rubbish"}).ok());
  }
  EXPECT_FALSE(held().has_value());
  leave(known_of(plan_of(3, 1)));
  EXPECT_TRUE(held().has_value());
}

}  // namespace
}  // namespace warren::worker
