#include "cli/costs_fit.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace warren::cli {
namespace {

using schedule::Algorithm;
using schedule::Case;
using schedule::Costs;
using schedule::Measured;
using schedule::Network;

std::vector<Timing> timings_in(const Network& network) {
  std::vector<Timing> timings;
  for (const Collective collective : {Collective::kAllreduce, Collective::kBroadcast, Collective::kAllgather}) {
    for (std::uint64_t bytes = 64; bytes <= 1 << 26; bytes *= 8) {
      const Case what{collective, 8, bytes, 256 << 10, 2};
      for (const Algorithm algorithm : schedule::algorithms_for(collective)) {
        const double us = estimate(what, algorithm, network).total() * 1e-3;
        timings.push_back({what, algorithm, us, us, us});
      }
    }
  }
  return timings;
}

void expect_near(std::uint32_t fitted, std::uint32_t rate) {
  EXPECT_NEAR(fitted, rate, 1 + 0.03 * rate);
}

TEST(CostsFit, RatesAreFoundAgain) {
  Network network{.hop_ns = 5000, .message_ns = 900, .byte_ps = 300, .reduced_byte_ps = 80, .logged_byte_ps = 150};
  network.shared_message_ns = 900;
  const Network where;  // nothing is known of it but that no cores are shared
  const Network fitted = fit_rates(timings_in(network), where);
  expect_near(fitted.hop_ns, 5000);
  expect_near(fitted.message_ns, 900);
  expect_near(fitted.byte_ps, 300);
  expect_near(fitted.reduced_byte_ps, 80);
  expect_near(fitted.logged_byte_ps, 150);
  EXPECT_GE(fitted.shared_message_ns, fitted.message_ns);
}

TEST(CostsFit, WhereCoresAreSharedMessagesAre) {
  Network network{.one_host = true, .cores = 2, .hop_ns = 300, .shared_message_ns = 1200, .byte_ps = 50};
  Network where{.one_host = true, .cores = 2, .message_ns = 250};
  const Network fitted = fit_rates(timings_in(network), where);
  expect_near(fitted.shared_message_ns, 1200);
  EXPECT_EQ(fitted.message_ns, 250u);
  EXPECT_EQ(fitted.cores, 2u);
  EXPECT_TRUE(fitted.one_host);
}

TEST(CostsFit, WhatIsNotMeasuredStays) {
  const Network network{.hop_ns = 5000, .message_ns = 900, .shared_message_ns = 900};
  std::vector<Timing> barriers;
  for (const Algorithm algorithm : schedule::algorithms_for(Collective::kBarrier)) {
    const Case what{Collective::kBarrier, 8, 0, 256 << 10, 2};
    const double us = estimate(what, algorithm, network).total() * 1e-3;
    barriers.push_back({what, algorithm, us, us, us});
  }
  const Network fitted = fit_rates(barriers, {.byte_ps = 7, .reduced_byte_ps = 8, .logged_byte_ps = 9});
  EXPECT_EQ(fitted.byte_ps, 7u);
  EXPECT_EQ(fitted.reduced_byte_ps, 8u);
  EXPECT_EQ(fitted.logged_byte_ps, 9u);
  EXPECT_EQ(fit_rates({}, network), network);
}

// Timings of an allreduce of 8 ranks, in which `fast` takes `us` and all others 100.
void add_case(std::vector<Timing>& timings, std::uint64_t bytes, Algorithm fast, double us, double spread_us) {
  for (const Algorithm algorithm : schedule::algorithms_for(Collective::kAllreduce)) {
    const double median = algorithm == fast ? us : 100;
    timings.push_back(
        {{Collective::kAllreduce, 8, bytes, 256 << 10, 2}, algorithm, median, median - spread_us, median + spread_us});
  }
}

TEST(CostsFit, AnotherAlgorithmThatIsClearlyFasterIsTaken) {
  // Of those with two hops, the star.
  const Costs costs{{Network{.hop_ns = 1000}}, {}};
  ASSERT_EQ(choose({Collective::kAllreduce, 8, 4, 256 << 10, 2}, costs), Algorithm::kStar);
  std::vector<Timing> timings;
  add_case(timings, 1000, Algorithm::kStar, 50, 1);
  add_case(timings, 2000, Algorithm::kTree, 50, 1);
  add_case(timings, 3000, Algorithm::kTree, 60, 1);
  add_case(timings, 4000, Algorithm::kRing, 95, 1);  // by less than a tenth
  add_case(timings, 5000, Algorithm::kButterfly, 60, 1);
  add_case(timings, 6000, Algorithm::kRing, 80, 30);  // by less than the spread
  const std::vector<Measured> expected = {{Collective::kAllreduce, 8, 2000, Algorithm::kTree},
                                          {Collective::kAllreduce, 8, 4000, Algorithm::kAuto},
                                          {Collective::kAllreduce, 8, 5000, Algorithm::kButterfly},
                                          {Collective::kAllreduce, 8, 6000, Algorithm::kAuto}};
  EXPECT_EQ(measured_better(timings, costs), expected);
}

TEST(CostsFit, WhatWasMeasuredSaysNothingOfMuchLargerSizes) {
  const Costs costs{{Network{.hop_ns = 1000}}, {}};
  std::vector<Timing> timings;
  add_case(timings, 1000, Algorithm::kTree, 50, 1);
  add_case(timings, 2000, Algorithm::kTree, 50, 1);
  const std::vector<Measured> expected = {{Collective::kAllreduce, 8, 1000, Algorithm::kTree},
                                          {Collective::kAllreduce, 8, 8000, Algorithm::kAuto}};
  EXPECT_EQ(measured_better(timings, costs), expected);
}

}  // namespace
}  // namespace warren::cli
