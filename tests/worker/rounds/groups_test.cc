#include "worker/rounds/groups.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/worker/rounds/scripted_round.h"

namespace warren::worker {
namespace {

class GroupsTest : public testing::Test {
 protected:
  GroupsTest() {
    shared_.plan.generation = Generation(1);
    shared_.plan.self = Rank(1);
    shared_.plan.world_size = 3;
    shared_.plan.chunk_bytes = 4096;
  }
  const std::vector<Rank> members_{Rank(0), Rank(1), Rank(2)};
  Scripted transport_;
  RoundBoard board_;
  SharedByGroups shared_{transport_, board_};
  Groups groups_{shared_};
};

TEST_F(GroupsTest, AreFoundByIdSlotAndActiveCall) {
  Group& world = groups_.add(kWorldGroup, members_, 0);
  Group& pair = groups_.add(GroupId(7), {Rank(1), Rank(2)}, 1);
  EXPECT_EQ(groups_.find(kWorldGroup), &world);
  EXPECT_EQ(groups_.find(GroupId(7)), &pair);
  EXPECT_EQ(groups_.find(GroupId(8)), nullptr);
  EXPECT_EQ(pair.rounds.seats().rank(), 0);
  for (Group* group : {&world, &pair}) {
    const std::uint32_t slot = group->rounds.slot();
    EXPECT_EQ(groups_.at_slot(slot), group);
    EXPECT_EQ(groups_.at_slot(slot + 1), group) << "of its messages";
  }
  EXPECT_EQ(groups_.group_of(Call()), nullptr);
}

TEST_F(GroupsTest, AnIdIsTakenOnceAndGroupsAreBounded) {
  EXPECT_TRUE(groups_.may_add(kWorldGroup).ok());
  groups_.add(kWorldGroup, members_, 0);
  EXPECT_EQ(groups_.may_add(kWorldGroup).code(), Code::kInvalidArgument);
  for (std::uint32_t i = 1; i < limits::kMaxGroups; i++) groups_.add(GroupId(100 + i), {Rank(1)}, i);
  EXPECT_EQ(groups_.may_add(GroupId(5)).code(), Code::kExhausted);
  EXPECT_FALSE(Groups::free_channel(groups_.used_channels()));
  groups_.remove(*groups_.find(GroupId(170)));
  EXPECT_TRUE(groups_.may_add(GroupId(5)).ok());
  EXPECT_EQ(Groups::free_channel(groups_.used_channels()), 70);
}

TEST_F(GroupsTest, ARemovedGroupThatHasSentNothingLeavesItsSlotsAndItsChannel) {
  groups_.add(kWorldGroup, members_, 0);
  Group& pair = groups_.add(GroupId(7), {Rank(1), Rank(2)}, 1);
  const std::uint32_t slot = pair.rounds.slot();
  EXPECT_EQ(groups_.used_channels()[0], 3);
  groups_.remove(pair);
  EXPECT_EQ(groups_.find(GroupId(7)), nullptr);
  EXPECT_TRUE(groups_.departed().empty()) << "between two generations there are no links";
  EXPECT_EQ(groups_.at_slot(slot), nullptr);
  EXPECT_EQ(groups_.used_channels()[0], 1);
  EXPECT_EQ(groups_.add(GroupId(8), {Rank(1), Rank(2)}, 1).rounds.slot(), slot);
}

TEST_F(GroupsTest, AGroupThatMeetsIsMovedWithItsRounds) {
  groups_.add(kWorldGroup, members_, 0);
  Group& meeting = groups_.add(GroupId(7), {Rank(0), Rank(1)}, Groups::kMeetingChannel);
  meeting.rounds.count_from(Sequence(4), 4);
  EXPECT_EQ(groups_.used_channels()[0], 1) << "the meeting channel is nobody's";
  Group& moved = groups_.move(*groups_.find(GroupId(7)), 9);
  EXPECT_EQ(groups_.find(GroupId(7)), &moved);
  EXPECT_EQ(moved.channel, 9);
  EXPECT_EQ(moved.rounds.next(), Sequence(4));
  EXPECT_EQ(moved.rounds.done(), 4);
  EXPECT_EQ(moved.rounds.seats().members(), (std::vector<Rank>{Rank(0), Rank(1)}));
  EXPECT_EQ(groups_.used_channels()[0], 1 | 1 << 9);
}

}  // namespace
}  // namespace warren::worker
