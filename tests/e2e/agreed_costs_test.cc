// What algorithms are chosen by is agreed on by all workers and by all lives of a job.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <cstring>
#include <fstream>
#include <future>
#include <thread>
#include <vector>

#include "tests/e2e/cluster.h"
#include "worker/settings/costs_file.h"

namespace warren {
namespace {

using ::testing::AllOf;
using testing::Cluster;
using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr std::size_t kCount = 40'000;

// A file by which this algorithm makes all allreduces of three ranks. Returns its name.
std::string write_costs(const std::string& path, schedule::Algorithm algorithm) {
  schedule::Costs costs = schedule::default_costs();
  costs.measured = {{Collective::kAllreduce, kRanks, 0, algorithm}};
  std::ofstream(path) << worker::to_json(costs, true);
  return worker::name_of(costs);
}

// For all communicators that are made from here on. Between lives, when no thread reads the environment.
void use_costs(const std::string& path) {
  ASSERT_EQ(setenv("WARREN_COSTS", path.c_str(), 1), 0);
}

// No two orders of adding these have the same bits everywhere.
float input(int rank, std::size_t i) {
  return static_cast<float>(rank * rank + 1) / 3 + static_cast<float>(i % 977) * (rank == 1 ? -0.37F : 0.123F);
}

std::vector<float> inputs(int rank) {
  std::vector<float> v(kCount);
  for (std::size_t i = 0; i < kCount; ++i) v[i] = input(rank, i);
  return v;
}

// As a star adds them; and as the owner of the last segment in a ring does.
std::vector<float> by_star() {
  std::vector<float> v(kCount);
  for (std::size_t i = 0; i < kCount; ++i) v[i] = (input(0, i) + input(1, i)) + input(2, i);
  return v;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), kCount * sizeof(float)) == 0;
}

std::vector<float> sum(Communicator& comm) {
  std::vector<float> v = inputs(comm.rank());
  comm.allreduce(std::span(v));
  return v;
}

class AgreedCosts : public ::testing::Test {
 protected:
  void TearDown() override { unsetenv("WARREN_COSTS"); }
  Cluster cluster_;
};

TEST_F(AgreedCosts, DecideHowACallIsMade) {
  write_costs(cluster_.file("star"), schedule::Algorithm::kStar);
  use_costs(cluster_.file("star"));
  cluster_.run_well(kRanks, [](Communicator& comm) {
    EXPECT_TRUE(same_bits(sum(comm), by_star()));
    std::vector<float> ring = inputs(comm.rank());
    comm.algorithm("ring").allreduce(std::span(ring));
    EXPECT_FALSE(same_bits(ring, by_star())) << "what names its algorithm goes by no costs";
    EXPECT_TRUE(same_bits(sum(comm), by_star())) << "and only the next call";
    std::vector<float> v = inputs(comm.rank());
    EXPECT_THROW((void)comm.algorithm("tree").allgather(v), Error);
    EXPECT_THROW(comm.algorithm("rings").allreduce(std::span(v)), Error);
    EXPECT_TRUE(same_bits(sum(comm), by_star()));
  });
}

TEST_F(AgreedCosts, ACallThatNamesItsAlgorithmIsMadeByItAlsoWhereCallsArePutTogether) {
  write_costs(cluster_.file("ring"), schedule::Algorithm::kRing);
  use_costs(cluster_.file("ring"));
  cluster_.run_well(kRanks, [](Communicator& comm) {
    std::vector<float> alone = inputs(comm.rank()), one = alone, two = alone;
    auto fusion = comm.fuse();
    Handle first = comm.algorithm("star").allreduce_async(std::span(alone));
    first.wait();
    EXPECT_TRUE(same_bits(alone, by_star()));
    Handle second = comm.algorithm("star").allreduce_async(std::span(one));
    Handle third = comm.algorithm("star").allreduce_async(std::span(two));
    second.wait();
    third.wait();
    EXPECT_TRUE(same_bits(one, by_star()) && same_bits(two, by_star()));
  });
}

TEST_F(AgreedCosts, RanksThatNameDifferentAlgorithmsHearOfIt) {
  const auto errors = cluster_.run(kRanks, [](Communicator& comm) {
    std::vector<float> v = inputs(comm.rank());
    comm.algorithm(comm.rank() == 1 ? "ring" : "star").allreduce(std::span(v));
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::desync) << error->what();
  }
}

TEST_F(AgreedCosts, AreThoseOfAllLives) {
  const std::string star = write_costs(cluster_.file("star"), schedule::Algorithm::kStar);
  const std::string ring = write_costs(cluster_.file("ring"), schedule::Algorithm::kRing);
  use_costs(cluster_.file("star"));
  std::promise<void> gone;
  std::shared_future<void> is_gone = gone.get_future().share();
  const auto apart = [&](int rank) {
    Options o = cluster_.options(rank, kRanks);
    o.host_id = o.domain_id = "host-" + std::to_string(rank);
    return o;
  };
  std::vector<std::thread> others;
  for (const int rank : {0, 1}) {
    others.emplace_back([&, rank] {
      try {
        Communicator comm = Communicator::create(apart(rank));
        EXPECT_TRUE(same_bits(sum(comm), by_star()));
        is_gone.wait();
        EXPECT_TRUE(same_bits(sum(comm), by_star()));
        comm.finalize();
      } catch (const Error& e) {
        ADD_FAILURE() << e.what();
      }
    });
  }
  {
    Communicator first = Communicator::create(apart(2));
    EXPECT_TRUE(same_bits(sum(first), by_star()));
  }
  use_costs(cluster_.file("ring"));
  gone.set_value();
  try {
    (void)Communicator::create(apart(2));
    ADD_FAILURE() << "a life with other costs was let in";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::refused);
    EXPECT_THAT(e.what(), AllOf(HasSubstr("costs " + ring + " is not the job's " + star), HasSubstr("worker")));
  }
  use_costs(cluster_.file("star"));
  Communicator third = Communicator::create(apart(2));
  EXPECT_TRUE(same_bits(sum(third), by_star())) << "replayed";
  EXPECT_TRUE(same_bits(sum(third), by_star()));
  third.finalize();
  for (std::thread& other : others) other.join();
}

TEST_F(AgreedCosts, AFileThatCannotBeReadIsAnErrorOfTheFirstCall) {
  use_costs(cluster_.file("none"));
  const auto errors = cluster_.run(1, [](Communicator&) {});
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_THAT(errors[0]->what(), HasSubstr("cannot read the costs in " + cluster_.file("none")));
}

}  // namespace
}  // namespace warren
