#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/worker/schedule/worlds.h"

namespace warren::schedule::symbolic {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Request allreduce(std::int32_t rank, std::int32_t size, std::uint64_t count) {
  Request request;
  request.collective = Collective::kAllreduce;
  request.algorithm = Algorithm::kRing;
  request.rank = rank;
  request.size = size;
  request.count = count;
  request.chunk_elements = 65536;
  return request;
}

std::string refusal(const Request& request) {
  const Result<Schedule> made = make(request);
  if (made.ok()) return "accepted";
  EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
  return made.status().describe();
}

std::vector<StepKind> kinds(const Schedule& schedule) {
  std::vector<StepKind> kinds;
  for (const Step& step : schedule.steps) kinds.push_back(step.kind);
  return kinds;
}

TEST(Make, NamesTheAlgorithmsThatServeACollective) {
  Request request = allreduce(0, 4, 10);
  request.collective = Collective::kAllToAll;
  EXPECT_THAT(refusal(request), HasSubstr("algorithm ring does not serve it; use direct"));
  request.collective = Collective::kBroadcast;
  request.algorithm = Algorithm::kDirect;
  EXPECT_THAT(refusal(request), HasSubstr("use ring, tree"));
  request.algorithm = Algorithm::kAuto;
  EXPECT_THAT(refusal(request), HasSubstr("use ring, tree"));
  request.collective = Collective::kPoint;
  EXPECT_THAT(refusal(request), HasSubstr("between two ranks"));
}

TEST(Make, RefusesOrdersThatAreNone) {
  Request request = allreduce(0, 3, 10);
  const auto with = [&](const std::vector<std::uint32_t>& order) {
    request.order = order;
    return refusal(request);
  };
  EXPECT_THAT(with({0, 1}), HasSubstr("its order does not have each of 3 ranks once"));
  EXPECT_THAT(with({0, 1, 1}), HasSubstr("its order does not have each of 3 ranks once"));
  EXPECT_THAT(with({0, 1, 3}), HasSubstr("its order does not have each of 3 ranks once"));
  request.algorithm = Algorithm::kTree;
  EXPECT_THAT(with({0, 2, 1}), HasSubstr("by algorithm tree it has no order of ranks"));
}

TEST(Make, RefusesWhatIsOutOfRange) {
  EXPECT_THAT(refusal(allreduce(0, 0, 1)), HasSubstr("size 0"));
  EXPECT_THAT(refusal(allreduce(0, 1 << 20, 1)), HasSubstr("size 1048576"));
  EXPECT_THAT(refusal(allreduce(4, 4, 1)), HasSubstr("rank 4"));
  EXPECT_THAT(refusal(allreduce(-1, 4, 1)), HasSubstr("rank -1"));
  EXPECT_THAT(refusal(allreduce(0, 4, UINT64_MAX)), HasSubstr("too large"));
  Request request = allreduce(0, 4, 1);
  request.chunk_elements = 0;
  EXPECT_THAT(refusal(request), HasSubstr("at least one element"));
  request = allreduce(0, 4, 1);
  request.collective = Collective::kReduce;
  for (const std::int32_t root : {-1, 4}) {
    request.root = root;
    EXPECT_THAT(refusal(request), HasSubstr("root " + std::to_string(root)));
  }
  request = allreduce(0, 3, 1);
  request.collective = Collective::kAllgatherv;
  const std::vector<std::uint64_t> counts{1, UINT64_MAX, 1};
  request.counts = counts;
  EXPECT_THAT(refusal(request), HasSubstr("sum of counts"));
  request.counts = std::span(counts).first(2);
  EXPECT_THAT(refusal(request), HasSubstr("2 counts were given for 3 ranks"));
}

TEST(Make, RefusesPlacementsThatAreNotOneARank) {
  Request request = allreduce(0, 3, 8);
  const std::vector<std::uint32_t> two{0, 1};
  request.hosts = two;
  EXPECT_THAT(refusal(request), HasSubstr("2 hosts were given for 3 ranks"));
  request.hosts = {};
  request.domains = two;
  EXPECT_THAT(refusal(request), HasSubstr("2 domains were given for 3 ranks"));
  for (const std::int32_t owner : {-1, 3}) {
    request = allreduce(0, 3, 8);
    request.owner = owner;
    EXPECT_THAT(refusal(request), HasSubstr("owner " + std::to_string(owner) + " is not in 0 … 2"));
  }
  request = allreduce(0, 3, 8);
  request.element_bytes = 0;
  EXPECT_THAT(refusal(request), HasSubstr("at least one byte"));
}

// What schedules publish at once, and nothing else, can be left out.
TEST(Make, RefusesFinalsThatWereCutDifferently) {
  std::uint64_t inside = 0;
  for (const Collective collective : kCollectives) {
    if (collective == Collective::kBarrier) continue;
    for (const Algorithm algorithm : algorithms_for(collective)) {
      for (const std::int32_t size : {1, 2, 5, 8}) {
        World world = world_of(collective, algorithm, size, {90, 7});
        world.replicas = 1;
        std::set<std::uint64_t> begins;
        std::uint64_t end = 0;
        for (const Schedule& schedule : make_all(world)) {
          for (const Step& step : schedule.steps) {
            if (step.kind != StepKind::kPublish) continue;
            begins.insert(step.result_at);
            end = std::max(end, step.result_at + step.count);
          }
        }
        for (std::uint64_t at = 1; at < end; ++at) {
          for (const Ranges& final : {Ranges(0, at), Ranges(at, end)}) {
            // Of a piece that is there in part, nothing is.
            const Ranges whole = whole_pieces(world.request(0), final);
            begins.insert(end);
            const bool low = final.intervals().front().begin == 0;
            EXPECT_EQ(whole, low ? Ranges(0, *std::prev(begins.upper_bound(at))) : Ranges(*begins.lower_bound(at), end))
                << at << " of " << world.describe();
            begins.erase(end);
            world.final = final;
            const Result<Schedule> made = make(world.request(0));
            ASSERT_EQ(made.ok(), begins.contains(at)) << at << " of " << world.describe();
            if (!made.ok()) {
              ++inside;
              EXPECT_EQ(made.status().code(), Code::kInvalidArgument);
              EXPECT_THAT(made.status().describe(), HasSubstr("cut differently"));
            }
          }
        }
        world.final = Ranges(0, end + 1);
        EXPECT_FALSE(make(world.request(0)).ok());
      }
    }
  }
  EXPECT_GT(inside, 1000U);
}

// A result that is there already takes no message, unless copies must be made again.
TEST(Make, EverythingFinalLeavesNothingToDo) {
  for (const Collective collective : kCollectives) {
    if (collective == Collective::kBarrier) continue;
    for (const Algorithm algorithm : algorithms_for(collective)) {
      for (const std::int32_t size : {1, 5}) {
        World world = world_of(collective, algorithm, size, {90, 7});
        world.replicas = 1;
        world.resumed = true;
        std::uint64_t total = 0;
        for (const Schedule& schedule : make_all(world)) {
          for (const Step& step : schedule.steps) {
            if (step.kind == StepKind::kPublish) total = std::max(total, step.result_at + step.count);
          }
        }
        if (total == 0) continue;  // an allgatherv of nothing
        world.final = Ranges(0, total);
        const Schedule schedule = make(world.request(0)).value();
        const Cost after = cost(schedule);
        EXPECT_GT(schedule.steps.size(), 0U);
        EXPECT_EQ(after.sent_elements + after.reduced_elements + after.publishes, 0U) << world.describe();
      }
    }
  }
}

TEST(Make, NothingIsPublishedWithoutALog) {
  for (const Collective collective : kCollectives) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      const World world = world_of(collective, algorithm, 5, {collective == Collective::kBarrier ? 0U : 90U, 7});
      World everywhere = world;
      everywhere.resumed = true;
      for (const World& w : {world, everywhere}) {
        for (const Schedule& schedule : make_all(w)) EXPECT_EQ(cost(schedule).publishes, 0U) << w.describe();
      }
    }
  }
}

TEST(Make, PublishesIsTheFirstOfItsHostAndBeforeRDomains) {
  Request request = allreduce(0, 6, 8);
  const std::vector<std::uint32_t> hosts{0, 0, 1, 1, 2, 3};
  const std::vector<std::uint32_t> domains{0, 0, 0, 0, 1, 2};
  request.hosts = hosts;
  request.domains = domains;
  const auto is = [&](std::vector<std::int32_t> path, bool everywhere = false) {
    return publishes(request, path, everywhere);
  };
  EXPECT_FALSE(is({0}));  // nothing is logged
  request.replicas = 1;
  EXPECT_TRUE(is({0}));
  EXPECT_FALSE(is({0, 2}));
  EXPECT_TRUE(is({0, 2}, true));
  request.replicas = 2;
  EXPECT_FALSE(is({0, 1}));
  EXPECT_FALSE(is({0, 1}, true));
  EXPECT_TRUE(is({0, 1, 2}));
  EXPECT_FALSE(is({0, 2, 1}));
  EXPECT_TRUE(is({0, 2, 4}));  // two hosts, one domain
  EXPECT_FALSE(is({0, 4, 5}));
  EXPECT_TRUE(is({0, 4, 5}, true));
}

TEST(Make, RefusesAScheduleThatWouldFillTheMemory) {
  Request request = allreduce(0, 4, std::uint64_t{1} << 40);
  request.chunk_elements = 1;
  const Result<Schedule> made = make(request);
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), Code::kExhausted);
  EXPECT_THAT(made.status().describe(), HasSubstr("raise the chunk size"));
}

// For each collective and algorithm there is a schedule or an error: never neither, for any rank.
TEST(Make, ServesWhatItSaysItServes) {
  const std::vector<std::uint64_t> counts{3, 1, 4}, exchanged{1, 2, 3, 0, 5, 6, 7, 8, 9};
  std::size_t served = 0;
  for (int c = static_cast<int>(Collective::kAllreduce); c <= static_cast<int>(kLastCollective); ++c) {
    for (int a = static_cast<int>(Algorithm::kStar); a <= static_cast<int>(Algorithm::kDirect); ++a) {
      Request request = allreduce(1, 3, 8);
      request.collective = static_cast<Collective>(c);
      request.algorithm = static_cast<Algorithm>(a);
      const bool per_rank =
          request.collective == Collective::kAllgatherv || request.collective == Collective::kReduceScatterv;
      if (per_rank) request.counts = counts;
      if (request.collective == Collective::kAllToAllv) request.counts = exchanged;
      const auto serving = algorithms_for(request.collective);
      const bool listed = std::find(serving.begin(), serving.end(), request.algorithm) != serving.end();
      EXPECT_EQ(make(request).ok(), listed);
      served += listed ? 1 : 0;
    }
  }
  EXPECT_EQ(served, 25U);
}

TEST(Make, TwoRanksExchangeLittleDataInThreeSteps) {
  Request request = allreduce(0, 2, 1);
  request.algorithm = Algorithm::kButterfly;
  const Schedule schedule = make(request).value();
  EXPECT_THAT(kinds(schedule), ElementsAre(StepKind::kSend, StepKind::kRecv, StepKind::kReduce));
  EXPECT_THAT(schedule.pending, ElementsAre(0, 0, 2));
  EXPECT_TRUE(schedule.steps[2].finish);
}

TEST(Make, OneRankCopies) {
  const Schedule schedule = make(allreduce(0, 1, 65537)).value();
  EXPECT_THAT(kinds(schedule), ElementsAre(StepKind::kCopy, StepKind::kCopy));
  EXPECT_TRUE(schedule.steps[0].finish);
  EXPECT_EQ(schedule.scratch_elements, 0U);
  Request request = allreduce(0, 1, 8);
  request.collective = Collective::kBroadcast;
  EXPECT_FALSE(make(request).value().steps[0].finish);
}

TEST(Make, OneRankPublishes) {
  Request request = allreduce(0, 1, 65537);
  request.replicas = 2;
  EXPECT_THAT(kinds(make(request).value()),
              ElementsAre(StepKind::kCopy, StepKind::kPublish, StepKind::kCopy, StepKind::kPublish));
  request.collective = Collective::kBarrier;
  request.algorithm = Algorithm::kStar;
  const Schedule barrier = make(request).value();
  EXPECT_THAT(kinds(barrier), ElementsAre(StepKind::kCopy, StepKind::kPublish));
  EXPECT_EQ(barrier.steps[1].count, 0U);
}

// Ranks that disagree find out from headers, so the pattern of messages stays.
TEST(Make, NothingTravelsAsAHeader) {
  for (const Algorithm algorithm : algorithms_for(Collective::kAllreduce)) {
    Request request = allreduce(1, 4, 0);
    request.algorithm = algorithm;
    const Cost cost_of_nothing = cost(make(request).value());
    EXPECT_EQ(cost_of_nothing.sent_elements, 0U);
    EXPECT_GT(cost_of_nothing.sends, 0U);
    EXPECT_GT(cost_of_nothing.receives, 0U);
    EXPECT_EQ(cost_of_nothing.reduced_elements, 0U);
  }
}

TEST(Make, TheScheduleOfAGibibyteIsSmall) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect, Algorithm::kButterfly, Algorithm::kTree}) {
    Request request = allreduce(0, 8, std::uint64_t{1} << 28);
    request.algorithm = algorithm;
    const Schedule schedule = make(request).value();
    EXPECT_LT(schedule.steps.size() * (sizeof(Step) + 2 * sizeof(std::uint32_t)) +
                  schedule.successors.size() * sizeof(std::uint32_t),
              8U << 20)
        << to_string(algorithm);
  }
}

TEST(Algorithm, NamesAreReadBack) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kStar, Algorithm::kTree, Algorithm::kButterfly,
                                    Algorithm::kRing, Algorithm::kDirect}) {
    EXPECT_EQ(parse_algorithm(to_string(algorithm)).value(), algorithm);
    // Messages about calls, which recovery/ writes, call it so too.
    Fingerprint call;
    call.algorithm = static_cast<std::uint8_t>(algorithm);
    const bool named = algorithm != Algorithm::kAuto;  // who has not chosen has nothing to be named
    EXPECT_EQ(to_string(call).find(", " + std::string(to_string(algorithm)) + ")") != std::string::npos, named);
  }
  const Result<Algorithm> none = parse_algorithm("rings");
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(none.status().describe(), HasSubstr("star, tree, butterfly, ring or direct"));
}

}  // namespace
}  // namespace warren::schedule::symbolic
