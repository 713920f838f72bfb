// Workers that are killed in the middle of each kind of round: every result of every life is the oracle's.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/recovery_job.h"

namespace warren {
namespace {

using chaos::process::Mix;
using chaos::process::name_of;
using chaos::process::Phase;
using chaos::process::RecordEvent;
using testing::Job;
using testing::kMiB;
using testing::shape;
using testing::two_hosts;

TEST(Recovery, NothingHappens) {
  for (const Mix mix : {Mix::kBig, Mix::kInPlace, Mix::kAllocated, Mix::kInFlight, Mix::kGroups, Mix::kOneSided,
                        Mix::kSmall, Mix::kNarrow, Mix::kFused, Mix::kMessages, Mix::kLarge}) {
    SCOPED_TRACE(name_of(mix));
    Job job(shape(3, mix, 4 * kMiB, 6, 2), two_hosts(3));
    job.run();
    EXPECT_EQ(job.judge().progress(0).lives, 1u);
  }
}

// At moments from the first bytes to about the last.
void kill_in_64_mib(std::uint32_t ranks, const std::vector<std::uint64_t>& delays_us) {
  for (const std::uint64_t delay_us : delays_us) {
    SCOPED_TRACE("killed after " + std::to_string(delay_us) + " us");
    Job job(shape(ranks, Mix::kBig, 64 * kMiB, 4, 2), two_hosts(ranks));
    job.order(1, 0, Phase::kBigRound, 2, delay_us);
    job.run();
    EXPECT_EQ(job.judge().progress(1).lives, 2u);
    if (::testing::Test::HasFailure()) return;
  }
}
TEST(Recovery, KilledInTheMiddleOf64MiBWithThreeRanks) {
  kill_in_64_mib(3, {1'000, 60'000, 150'000});
}
TEST(Recovery, KilledInTheMiddleOf64MiBWithFourRanks) {
  kill_in_64_mib(4, {0, 30'000, 200'000});
}

TEST(Recovery, InPlaceInFlightInGroupsAndOneSided) {
  const std::pair<Mix, std::uint64_t> cases[] = {
      {Mix::kInPlace, 2'000},   {Mix::kInPlace, 15'000}, {Mix::kInFlight, 1'000},  {Mix::kInFlight, 20'000},
      {Mix::kGroups, 5'000},    {Mix::kOneSided, 0},     {Mix::kOneSided, 10'000}, {Mix::kMessages, 3'000},
      {Mix::kMessages, 12'000}, {Mix::kMixed, 5'000}};
  for (const auto& [mix, delay_us] : cases) {
    SCOPED_TRACE(std::string(name_of(mix)) + ", killed after " + std::to_string(delay_us) + " us");
    Job job(shape(4, mix, 12 * kMiB, 5, 2), two_hosts(4));
    job.order(2, 0, Phase::kBigRound, 3, delay_us);
    job.run();
    if (HasFailure()) return;
  }
}

// What travels as bf16: results that are replayed, finished and computed are the same bits, also those that a rank has
// made itself.
TEST(Recovery, NarrowedCallsWithOneAndTwoHosts) {
  for (const std::uint64_t delay_us : {0, 1'000, 4'000, 12'000}) {
    for (const bool one : {true, false}) {
      SCOPED_TRACE(std::string(one ? "one host" : "two hosts") + ", killed after " + std::to_string(delay_us) + " us");
      Job job(shape(4, Mix::kNarrow, 8 * kMiB, 5, 2), one ? std::vector<std::string>(4, "a") : two_hosts(4),
              one ? 1 : 2);
      job.order(2, 0, Phase::kBigRound, 2, delay_us);
      job.order(1, 0, Phase::kBigRound, 3, delay_us / 2);
      job.run();
      if (HasFailure()) return;
    }
  }
}

// Calls that were put together: a new life puts the same ones together, wherever the one before was killed.
TEST(Recovery, FusedCallsWithOneAndTwoHosts) {
  for (const std::uint64_t delay_us : {0, 300, 1'000, 5'000}) {
    for (const bool one : {true, false}) {
      SCOPED_TRACE(std::string(one ? "one host" : "two hosts") + ", killed after " + std::to_string(delay_us) + " us");
      Job job(shape(3, Mix::kFused, kMiB, 8, 3), one ? std::vector<std::string>(3, "a") : two_hosts(3), one ? 1 : 2);
      job.order(2, 0, Phase::kSmallRound, 2, delay_us);
      job.order(1, 0, Phase::kSmallRound, 4, delay_us / 2);
      job.order(2, 1, Phase::kSmallRound, 5, delay_us);
      job.run();
      if (HasFailure()) return;
    }
  }
}

// Ranks of one host reduce from each other's inputs where they lie, those that are in place too; each rank draws which
// of its buffers lie there.
TEST(Recovery, AllocatedBuffersWithOneAndTwoHosts) {
  for (const std::uint64_t delay_us : {0, 700, 2'000, 4'000, 9'000, 20'000}) {
    for (const bool one : {true, false}) {
      SCOPED_TRACE(std::string(one ? "one host" : "two hosts") + ", killed after " + std::to_string(delay_us) + " us");
      Job job(shape(4, Mix::kAllocated, 8 * kMiB, 5, 2), one ? std::vector<std::string>(4, "a") : two_hosts(4),
              one ? 1 : 2);
      job.order(2, 0, Phase::kBigRound, 2, delay_us);
      job.order(2, 1, Phase::kBigRound, 3, delay_us / 2);
      job.run();
      if (HasFailure()) return;
    }
  }
}

TEST(Recovery, AllocatedBuffersWithTwoRanks) {
  for (const std::uint64_t delay_us : {0, 1'000, 3'000, 8'000}) {
    SCOPED_TRACE("killed after " + std::to_string(delay_us) + " us");
    Job job(shape(2, Mix::kAllocated, 8 * kMiB, 6, 2), {"a", "a"}, 1);
    job.order(1, 0, Phase::kBigRound, 2, delay_us);
    job.run();
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace warren
