#include "worker/rounds/schedule_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace warren::worker {
namespace {

schedule::Request request_of(std::uint64_t count) {
  schedule::Request request;
  request.collective = Collective::kAllreduce;
  request.algorithm = schedule::Algorithm::kRing;
  request.size = 2;
  request.count = count;
  request.chunk_elements = 16;
  return request;
}

TEST(ScheduleCache, MakesAScheduleOnceForEqualRequests) {
  ScheduleCache cache;
  const auto first = cache.schedule_for(request_of(64)).value();
  EXPECT_EQ(cache.schedule_for(request_of(64)).value(), first);
  EXPECT_NE(cache.schedule_for(request_of(65)).value(), first);
  const std::vector<std::uint32_t> order{1, 0};
  schedule::Request ordered = request_of(64);
  ordered.order = order;
  const auto other = cache.schedule_for(ordered).value();
  EXPECT_NE(other, first);
  EXPECT_EQ(cache.schedule_for(ordered).value(), other);
  cache.clear();
  EXPECT_NE(cache.schedule_for(request_of(64)).value(), first) << "ranks may sit elsewhere";
}

TEST(ScheduleCache, DropsTheScheduleThatWasUsedLongestAgo) {
  ScheduleCache cache;
  std::vector<std::shared_ptr<const PreparedSchedule>> made;
  for (std::uint64_t i = 0; i < ScheduleCache::kSchedules; i++)
    made.push_back(cache.schedule_for(request_of(64 + i)).value());
  EXPECT_EQ(cache.schedule_for(request_of(64)).value(), made[0]);
  (void)cache.schedule_for(request_of(1000)).value();
  EXPECT_EQ(cache.schedule_for(request_of(64)).value(), made[0]);
  EXPECT_EQ(cache.schedule_for(request_of(66)).value(), made[2]);
  EXPECT_NE(cache.schedule_for(request_of(65)).value(), made[1]);
}

TEST(ScheduleCache, KeepsNoScheduleOfUnequalCountsAndNoError) {
  ScheduleCache cache;
  const std::vector<std::uint64_t> counts{3, 4};
  schedule::Request request = request_of(0);
  request.collective = Collective::kAllgatherv;
  request.counts = counts;
  const auto first = cache.schedule_for(request).value();
  EXPECT_NE(cache.schedule_for(request).value(), first);
  schedule::Request wrong = request_of(64);
  wrong.rank = 2;
  EXPECT_EQ(cache.schedule_for(wrong).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(cache.schedule_for(request_of(64)).ok());
}

TEST(ScheduleCache, ChoosesAsTheCostsSay) {
  ScheduleCache cache;
  const schedule::Costs costs = schedule::default_costs();
  for (int again = 0; again < 2; again++) {
    for (const std::uint64_t bytes : {4u, 1u << 12, 1u << 24}) {
      for (const std::int32_t size : {2, 8}) {
        const schedule::Case what{Collective::kAllreduce, size, bytes, 1 << 18, 2};
        EXPECT_EQ(cache.choose(what, costs), schedule::choose(what, costs)) << bytes << " bytes, " << size << " ranks";
      }
    }
  }
}

TEST(ScheduleCache, RepeatsACallThatAsksForTheSame) {
  ScheduleCache cache;
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = DataType::kF32;
  spec.op = ReduceOp::kSum;
  spec.count = 64;
  EXPECT_EQ(cache.repeated(spec, 2), nullptr);
  ScheduleCache::Repeated what;
  what.schedule = cache.schedule_for(request_of(64)).value();
  what.total_bytes = 256;
  cache.repeat(spec, 2, what);
  ScheduleCache::Repeated* const kept = cache.repeated(spec, 2);
  ASSERT_NE(kept, nullptr);
  EXPECT_EQ(kept->schedule, what.schedule);
  EXPECT_EQ(kept->total_bytes, 256u);
  EXPECT_EQ(cache.repeated(spec, 3), nullptr) << "among other ranks";
  CallSpec other = spec;
  other.type = DataType::kI32;
  EXPECT_EQ(cache.repeated(other, 2), nullptr);
  other = spec;
  other.algorithm = 1;
  EXPECT_EQ(cache.repeated(other, 2), nullptr);
  other = spec;
  other.site = 17;
  EXPECT_EQ(cache.repeated(other, 2), kept) << "wherever the program calls it";
  cache.clear();
  EXPECT_EQ(cache.repeated(spec, 2), nullptr);
}

TEST(ScheduleCache, RepeatsNoCallThatDiffersInMoreThanItsSpecSays) {
  CallSpec spec;
  EXPECT_TRUE(ScheduleCache::may_repeat(spec));
  spec.parts = 1;
  EXPECT_FALSE(ScheduleCache::may_repeat(spec)) << "a batch";
  spec = {};
  spec.type = DataType::kCustom;
  EXPECT_FALSE(ScheduleCache::may_repeat(spec));
  spec = {};
  const std::vector<std::uint64_t> counts{1, 2};
  spec.counts = counts;
  EXPECT_FALSE(ScheduleCache::may_repeat(spec));
  spec = {};
  spec.counted = DataType::kF32;
  EXPECT_FALSE(ScheduleCache::may_repeat(spec)) << "what tells counts";
}

}  // namespace
}  // namespace warren::worker
