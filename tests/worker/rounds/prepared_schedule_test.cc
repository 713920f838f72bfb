#include "worker/rounds/prepared_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "recovery/base/ranges.h"

namespace warren::worker {
namespace {

// Whatever the algorithm, all of the input comes, once, in the order of the steps.
TEST(InputOrder, IsThatOfTheSteps) {
  using schedule::Algorithm;
  for (const Algorithm algorithm :
       {Algorithm::kRing, Algorithm::kDirect, Algorithm::kButterfly, Algorithm::kTree, Algorithm::kStar}) {
    for (const std::int32_t size : {1, 2, 3, 8}) {
      for (std::int32_t rank = 0; rank < size; rank++) {
        for (const std::uint64_t most : {std::uint64_t{7}, std::uint64_t{64}, std::uint64_t{10'000}}) {
          schedule::Request request;
          request.collective = Collective::kAllreduce;
          request.algorithm = algorithm;
          request.rank = rank;
          request.size = size;
          request.count = 1001;
          request.chunk_elements = 16;
          const auto made = schedule::make(request);
          ASSERT_TRUE(made.ok());
          const auto pieces = input_order(made.value(), request.count, most);
          Ranges all;
          std::uint64_t elements = 0;
          for (const InputPiece& piece : pieces) {
            EXPECT_LE(piece.count, most);
            elements += piece.count;
            all.add(piece.at, piece.at + piece.count);
          }
          EXPECT_EQ(elements, request.count);
          EXPECT_EQ(pieces.size(), (request.count + most - 1) / most);
          EXPECT_EQ(all, Ranges(0, request.count));
        }
      }
    }
  }
  EXPECT_EQ(input_order({}, 10, 4), (std::vector<InputPiece>{{0, 4}, {4, 4}, {8, 2}}));
}

TEST(Readers, AreThoseThatReadTheInputWhereItLies) {
  const auto readers = [](Collective collective, schedule::Algorithm algorithm, std::int32_t size,
                          std::vector<std::uint32_t> hosts) {
    schedule::Request request;
    request.collective = collective;
    request.algorithm = algorithm;
    request.rank = 1;
    request.size = size;
    request.count = 1000;
    request.chunk_elements = 100;
    request.replicas = 2;
    request.hosts = hosts;
    request.element_bytes = schedule::kWholeBytes;
    auto made = schedule::make(request);
    EXPECT_TRUE(made.ok()) << made.status().describe();
    const PreparedSchedule prepared(std::move(made).value());
    EXPECT_EQ(prepared.lends_all(), !prepared.readers().empty());
    return std::vector<std::int32_t>(prepared.readers().begin(), prepared.readers().end());
  };
  using schedule::Algorithm;
  const std::vector<std::int32_t> nobody, others{0, 2};
  EXPECT_EQ(readers(Collective::kAllreduce, Algorithm::kRing, 3, {0, 0, 0}), others);
  EXPECT_EQ(readers(Collective::kAllreduce, Algorithm::kRing, 3, {1, 0, 0}), std::vector<std::int32_t>{2});
  EXPECT_EQ(readers(Collective::kAllreduce, Algorithm::kTree, 3, {0, 0, 0}), nobody);
  EXPECT_EQ(readers(Collective::kReduceScatter, Algorithm::kRing, 3, {0, 0, 0}), others);
  EXPECT_EQ(readers(Collective::kReduceScatter, Algorithm::kRing, 3, {1, 0, 0}), std::vector<std::int32_t>{2});
  EXPECT_EQ(readers(Collective::kReduceScatter, Algorithm::kDirect, 3, {0, 1, 0}), nobody) << "none is on its host";
  EXPECT_EQ(readers(Collective::kAllgather, Algorithm::kDirect, 3, {0, 0, 0}), others);
  EXPECT_EQ(readers(Collective::kAllgather, Algorithm::kRing, 3, {0, 0, 0}), others);
  EXPECT_EQ(readers(Collective::kAllgather, Algorithm::kRing, 3, {0, 0, 1}), std::vector<std::int32_t>{0});
  EXPECT_EQ(readers(Collective::kAllgather, Algorithm::kDirect, 3, {0, 0, 1}), std::vector<std::int32_t>{0});
  EXPECT_EQ(readers(Collective::kAllgather, Algorithm::kRing, 3, {0, 1, 0}), nobody);
  const std::vector<std::uint32_t> crowd(17, 0);
  EXPECT_EQ(readers(Collective::kAllgather, Algorithm::kRing, 17, crowd), nobody) << "one gets it from another";
  EXPECT_EQ(readers(Collective::kAllgather, Algorithm::kRing, 2, {0, 0}), std::vector<std::int32_t>{0});
  EXPECT_EQ(readers(Collective::kBroadcast, Algorithm::kTree, 3, {0, 0, 0}), nobody);
  EXPECT_EQ(readers(Collective::kAllToAll, Algorithm::kDirect, 3, {0, 0, 0}), nobody);
  EXPECT_EQ(readers(Collective::kGather, Algorithm::kStar, 3, {0, 0, 0}), nobody);
}

}  // namespace
}  // namespace warren::worker
