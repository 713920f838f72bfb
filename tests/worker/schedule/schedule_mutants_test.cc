// The checker must be able to say no: schedules that are broken on purpose are refused, with the reason that fits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "tests/worker/schedule/layout.h"
#include "tests/worker/schedule/worlds.h"

namespace warren::schedule::symbolic {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// Ranks that share cores, and one of them makes all finals.
World one_owner_world() {
  World world = world_of(Collective::kAllreduce, Algorithm::kButterfly, 5, {60, 2});
  world.hosts.assign(5, 3);
  world.on.cores = 2;
  world.in_place = true;
  return world;
}

// Hosts of which some have several ranks.
std::vector<World> hierarchical_worlds() {
  std::vector<World> all;
  for (const auto& [collective, algorithm] : {std::pair{Collective::kAllreduce, Algorithm::kRing},
                                              {Collective::kAllreduce, Algorithm::kButterfly},
                                              {Collective::kReduceScatter, Algorithm::kRing},
                                              {Collective::kReduceScatter, Algorithm::kDirect},
                                              {Collective::kAllgather, Algorithm::kRing}}) {
    for (const std::vector<std::uint32_t>& hosts : {std::vector<std::uint32_t>{0, 0, 1, 1}, {0, 0, 0, 1, 2}}) {
      World world = world_of(collective, algorithm, static_cast<std::int32_t>(hosts.size()), {24, 2});
      world.hosts = hosts;
      world.element_bytes = kWholeBytes + 1;
      world.in_place = true;
      all.push_back(world);
    }
  }
  return all;
}

std::vector<World> worlds() {
  std::vector<World> all;
  for (const Collective collective :
       {Collective::kAllreduce, Collective::kReduce, Collective::kBroadcast, Collective::kAllgather,
        Collective::kAllgatherv, Collective::kReduceScatter, Collective::kGather, Collective::kScatter,
        Collective::kAllToAll, Collective::kReduceScatterv, Collective::kAllToAllv}) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      for (const std::int32_t size : {2, 3, 5}) {
        World world{.collective = collective, .algorithm = algorithm, .size = size, .count = 60, .counts = {}};
        world.root = collective == Collective::kReduce || collective == Collective::kBroadcast ? 1 : 0;
        world.chunk_elements = 2;
        world.in_place = true;
        world.counts = equal_counts(collective, size, 7);
        for (std::size_t i = 0; i < world.counts.size(); ++i)
          world.counts[i] += 10 * (i % static_cast<std::size_t>(size));
        all.push_back(world);
      }
      // All of it in one message: the short forms.
      World small{.collective = collective, .algorithm = algorithm, .size = 3, .count = 3, .counts = {}};
      small.chunk_elements = 100;
      small.in_place = true;
      small.counts = equal_counts(collective, 3, 1);
      for (std::size_t i = 0; i < small.counts.size(); ++i) small.counts[i] += i % 3;
      all.push_back(small);
    }
  }
  for (const World& world : hierarchical_worlds()) all.push_back(world);
  all.push_back(one_owner_world());
  return all;
}

std::string verdict(const World& world, const std::vector<Schedule>& schedules) {
  return check(world, schedules, Order::kInOrder, 1);
}

// The steps of a kind in all ranks' schedules, each broken on its own.
void break_each(StepKind kind, const testing::Matcher<std::string>& reason,
                const std::function<bool(const World&, Schedule&, Step&)>& mutate) {
  std::uint64_t broken = 0;
  for (const World& world : worlds()) {
    std::vector<Schedule> schedules = make_all(world);
    ASSERT_EQ(verdict(world, schedules), "") << world.describe();
    for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
      for (std::size_t i = 0; i < schedules[rank].steps.size(); ++i) {
        if (schedules[rank].steps[i].kind != kind) continue;
        const Schedule intact = schedules[rank];
        if (mutate(world, schedules[rank], schedules[rank].steps[i])) {
          ++broken;
          ASSERT_THAT(verdict(world, schedules), reason)
              << world.describe() << ": rank " << rank << " step " << i << " was broken";
        }
        schedules[rank] = intact;
      }
    }
  }
  EXPECT_GT(broken, 100U);
}

bool reaches(const Schedule& schedule, std::uint32_t from, std::uint32_t to) {
  std::vector<bool> seen(schedule.steps.size(), false);
  seen[from] = true;
  for (std::uint32_t i = from; i < to; ++i) {
    if (!seen[i]) continue;
    for (std::uint32_t e = schedule.first_successor[i]; e < schedule.first_successor[i + 1]; ++e) {
      seen[schedule.successors[e]] = true;
    }
  }
  return seen[to];
}

void drop_edge(Schedule& schedule, std::uint32_t edge) {
  --schedule.pending[schedule.successors[edge]];
  schedule.successors.erase(schedule.successors.begin() + edge);
  for (std::uint32_t& first : schedule.first_successor) first -= first > edge ? 1 : 0;
}

// No dependency is there for nothing, and the checker misses none of them.
TEST(Mutant, ADroppedDependencyIsARace) {
  std::uint64_t dropped = 0;
  std::uint64_t implied = 0;
  for (const World& world : worlds()) {
    std::vector<Schedule> schedules = make_all(world);
    for (Schedule& schedule : schedules) {
      const Schedule intact = schedule;
      for (std::uint32_t from = 0; from < intact.steps.size(); ++from) {
        for (std::uint32_t e = intact.first_successor[from]; e < intact.first_successor[from + 1]; ++e) {
          const std::uint32_t to = intact.successors[e];
          // The window of sends bounds a queue; it keeps nothing apart.
          if (intact.steps[from].kind == StepKind::kSend && intact.steps[to].kind == StepKind::kSend) continue;
          drop_edge(schedule, e);
          if (reaches(schedule, from, to)) {
            ++implied;
          } else {
            ++dropped;
            ASSERT_THAT(check_races(world, schedules), HasSubstr("does not wait for"))
                << world.describe() << ": step " << to << " after " << from;
          }
          schedule = intact;
        }
      }
    }
  }
  EXPECT_GT(dropped, 10000U);
  RecordProperty("implied", static_cast<int>(implied));
}

// What the races mean when they happen: with sends that complete late, a run sees them too.
TEST(Mutant, ARaceIsSeenInARun) {
  World world{
      .collective = Collective::kAllreduce, .algorithm = Algorithm::kRing, .size = 3, .count = 60, .counts = {}};
  world.chunk_elements = 2;
  world.in_place = true;
  std::vector<Schedule> schedules = make_all(world);
  std::uint64_t seen = 0;
  const Schedule intact = schedules[0];
  for (std::uint32_t from = 0; from < intact.steps.size(); ++from) {
    for (std::uint32_t e = intact.first_successor[from]; e < intact.first_successor[from + 1]; ++e) {
      if (intact.steps[from].kind != StepKind::kSend || intact.steps[intact.successors[e]].kind == StepKind::kSend)
        continue;
      drop_edge(schedules[0], e);
      seen += check_run(world, schedules, Order::kLateSends, e).empty() ? 0 : 1;
      schedules[0] = intact;
    }
  }
  EXPECT_GT(seen, 0U);
}

TEST(Mutant, SwappedOperandsAreAnotherBracketing) {
  break_each(StepKind::kReduce, HasSubstr("whose final value is"), [](const World&, Schedule&, Step& step) {
    std::swap(step.a, step.b);
    return true;
  });
}

// The ranks of one host.
std::vector<World> host_worlds() {
  std::vector<World> all;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kButterfly}) {
    for (const std::int32_t size : {2, 3, 4, 6, 8}) {
      World world = world_of(Collective::kAllreduce, algorithm, size, {60, 16});
      world.element_bytes = kWholeBytes + 1;
      world.in_place = true;
      world.replicas = 1;
      world.hosts.assign(static_cast<std::size_t>(size), 0);
      all.push_back(world);
    }
  }
  return all;
}

// What moves from GPU to GPU.
std::vector<World> exchange_worlds() {
  std::vector<World> all;
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kButterfly}) {
    for (const std::int32_t size : {2, 3, 5}) {
      World world = world_of(Collective::kAllreduce, algorithm, size, {60, 7});
      world.element_bytes = kWholeBytes + 1;
      world.in_place = true;
      world.replicas = 2;
      world.exchanges = true;
      all.push_back(world);
    }
  }
  return all;
}

// A peer that aborts says that all of a turn has come.
TEST(Mutant, WhatIsReadBeforeItsWordMayBeAnything) {
  std::uint64_t broken = 0, seen = 0;
  for (const World& world : exchange_worlds()) {
    std::vector<Schedule> schedules = make_all(world);
    ASSERT_EQ(check(world, schedules, Order::kRandom, 1), "") << world.describe();
    for (Schedule& schedule : schedules) {
      const Schedule intact = schedule;
      for (std::uint32_t word = 1; word < intact.steps.size(); ++word) {
        if (!intact.steps[word].is_word || intact.steps[word].kind != StepKind::kRecv) continue;
        for (std::uint32_t e = intact.first_successor[word]; e < intact.first_successor[word + 1]; ++e) {
          // That one waits for what has come alone, which is the step before.
          std::swap(schedule.successors[e], schedule.successors[intact.first_successor[word]]);
          ++schedule.first_successor[word];
          ++broken;
          ASSERT_THAT(check_races(world, schedules), HasSubstr("does not wait for step " + std::to_string(word)))
              << world.describe();
          seen += check_run(world, schedules, Order::kRandom, e).empty() ? 0 : 1;
          schedule = intact;
        }
      }
    }
  }
  EXPECT_GT(broken, 300U);
  EXPECT_GT(seen, 100U);
}

TEST(Mutant, AWordThatIsSentTooEarlySaysNothing) {
  std::uint64_t broken = 0, seen = 0;
  for (const World& world : exchange_worlds()) {
    std::vector<Schedule> schedules = make_all(world);
    for (Schedule& schedule : schedules) {
      const Schedule intact = schedule;
      for (std::uint32_t word = 1; word < intact.steps.size(); ++word) {
        if (!intact.steps[word].is_word || intact.steps[word].kind != StepKind::kSend) continue;
        for (std::uint32_t e = intact.first_successor[word - 1]; e < intact.first_successor[word]; ++e) {
          if (intact.successors[e] != word) continue;
          drop_edge(schedule, e);
          ++broken;
          const std::string verdict = check_run(world, schedules, Order::kLateSends, e);
          if (!verdict.empty()) {
            ++seen;
            ASSERT_THAT(verdict, HasSubstr("it is the word of what has not been moved")) << world.describe();
          }
          schedule = intact;
          break;
        }
      }
    }
  }
  EXPECT_GT(broken, 300U);
  EXPECT_GT(seen, broken / 2);
}

TEST(Mutant, OperandsOutOfOrderAreAnotherBracketing) {
  std::uint64_t broken = 0;
  for (const World& world : host_worlds()) {
    std::vector<Schedule> schedules = make_all(world);
    ASSERT_EQ(check(world, schedules, Order::kRandom, 1), "") << world.describe();
    for (Schedule& schedule : schedules) {
      const Schedule intact = schedule;
      for (const Step& step : intact.steps) {
        if (step.kind != StepKind::kCombine) continue;
        for (std::uint32_t k = 0; k + 1 < step.operands; ++k) {
          std::swap(schedule.operands[step.first_operand + k], schedule.operands[step.first_operand + k + 1]);
          EXPECT_THAT(check_run(world, schedules, Order::kInOrder, 1), HasSubstr("whose final value is"))
              << world.describe();
          schedule = intact;
          ++broken;
        }
      }
    }
  }
  EXPECT_GT(broken, 100U);
}

// A loan ends when the borrower has read: where finals do not wait for that, a run sees it.
TEST(Mutant, ALoanThatNobodyWaitsForIsSeen) {
  std::uint64_t seen = 0;
  for (const World& world : host_worlds()) {
    // Every rank computes every element: nobody learns when others have read.
    World apart = world;
    apart.hosts.clear();
    apart.count = 3;
    apart.algorithm = Algorithm::kButterfly;
    apart.chunk_elements = 48;
    if (apart.size == 6) apart.size = 4;
    std::vector<Schedule> schedules = make_all(apart);
    ASSERT_EQ(check_run(apart, schedules, Order::kRandom, 1), "") << apart.describe();
    for (Schedule& schedule : schedules) {
      for (Step& step : schedule.steps) step.lent = step.kind == StepKind::kSend && step.a.space == Space::kInput;
    }
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
      seen += check_run(apart, schedules, Order::kRandom, seed).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(seen, 0U);
}

TEST(Mutant, AContributorTwiceIsRefused) {
  break_each(StepKind::kReduce, AnyOf(HasSubstr("whose final value is"), HasSubstr("another form")),
             [](const World&, Schedule&, Step& step) {
               step.b = step.a;
               return true;
             });
}

TEST(Mutant, AResultThatIsNotFinishedIsRefused) {
  break_each(StepKind::kReduce, HasSubstr("a value only when it finishes"), [](const World&, Schedule&, Step& step) {
    step.finish = !step.finish;
    return true;
  });
}

TEST(Mutant, AnotherElementIsRefused) {
  break_each(StepKind::kCopy, testing::Not(""), [](const World&, Schedule&, Step& step) {
    step.dst.at += 1;
    return true;
  });
  break_each(StepKind::kSend, testing::Not(""), [](const World&, Schedule&, Step& step) {
    step.a.at += 1;
    return step.count > 0;
  });
}

TEST(Mutant, AMessageOutOfTurnIsRefused) {
  break_each(StepKind::kSend, HasSubstr("not the same on both ends"), [](const World&, Schedule&, Step& step) {
    step.message += 1;
    return true;
  });
  break_each(StepKind::kRecv, HasSubstr("not the same on both ends"), [](const World&, Schedule&, Step& step) {
    step.dst.form = step.dst.form == Form::kValue ? Form::kPartial : Form::kValue;
    return true;
  });
  break_each(StepKind::kSend, AnyOf(HasSubstr("which expects"), HasSubstr("talks to itself")),
             [](const World& world, Schedule&, Step& step) {
               step.peer = (step.peer + 1) % world.size;
               return true;
             });
}

TEST(Mutant, AReceiveIntoTheUsersBufferIsRefused) {
  break_each(StepKind::kRecv, AnyOf(HasSubstr("rule 3"), HasSubstr("outside its buffer")),
             [](const World&, Schedule&, Step& step) {
               step.dst.space = Space::kOutput;
               step.dst.at = 0;
               return true;
             });
}

TEST(Mutant, ALongMessageIsRefused) {
  break_each(StepKind::kSend, HasSubstr("larger than a chunk"), [](const World& world, Schedule&, Step& step) {
    step.count = world.chunk_elements + 1;
    return true;
  });
}

// --- Logged rounds

std::vector<World> logged_worlds() {
  std::vector<World> all;
  for (const Collective collective : kCollectives) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      for (const std::int32_t size : {2, 3, 4}) {
        World world = world_of(collective, algorithm, size, {collective == Collective::kBarrier ? 0U : 24U, 2});
        world.root = has_root(collective) ? 1 : 0;
        world.in_place = true;
        world.replicas = size == 4 ? 3 : 2;
        world.element_bytes = kWholeBytes + 1;
        // Nobody keeps anything for a rank that gets nothing, and waits for nobody.
        const bool one_sided = collective == Collective::kReduceScatterv || collective == Collective::kAllToAllv;
        for (std::size_t i = 0; one_sided && i < world.counts.size(); ++i) {
          world.counts[i] = 3 + 2 * (i % static_cast<std::size_t>(size));
        }
        all.push_back(world);
      }
    }
  }
  for (World world : hierarchical_worlds()) {
    world.replicas = 2;
    all.push_back(world);
  }
  return all;
}

void empty_step(Step& step) {
  step = {.kind = StepKind::kCopy, .a = {Space::kOutput}, .b = {}, .dst = {Space::kOutput}};
}

// Whether this dependency keeps something from being seen too early; those of data have their own test.
bool is_needed(const World& world, const Step& from, const Step& to) {
  const bool joins = to.kind == StepKind::kCopy && to.count == 0;
  // What an owner publishes is also known from those that keep copies for it.
  if (from.kind == StepKind::kPublish) return joins ? from.a.space != Space::kOutput : to.count > 0;
  // The closing exchange: where everybody keeps copies, and, with four ranks, hears of some from a third. The five are
  // on hosts of different sizes, where one keeps them for several.
  const bool all_keep = world.collective == Collective::kReduceScatter || world.collective == Collective::kScatter ||
                        world.collective == Collective::kAllToAll || world.collective == Collective::kReduceScatterv ||
                        world.collective == Collective::kAllToAllv;
  if (!all_keep || world.size > 4 || to.kind != StepKind::kSend || to.count > 0) return false;
  return from.kind == StepKind::kCopy || (from.kind == StepKind::kRecv && world.size == 4);
}

// One copy short, and so a return before the result is stable.
TEST(Mutant, AMissingCopyIsSeen) {
  std::uint64_t missing = 0;
  for (const World& world : logged_worlds()) {
    std::vector<Schedule> schedules = make_all(world);
    ASSERT_EQ(check_publication(world, schedules), "") << world.describe();
    for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
      for (std::size_t i = 0; i < schedules[rank].steps.size(); ++i) {
        const Step intact = schedules[rank].steps[i];
        if (intact.kind != StepKind::kPublish) continue;
        empty_step(schedules[rank].steps[i]);
        ++missing;
        ASSERT_THAT(check_publication(world, schedules),
                    AnyOf(HasSubstr("before the copy that its host"), HasSubstr("is not stable")))
            << world.describe() << ": rank " << rank << " step " << i << " does not publish";
        schedules[rank].steps[i] = intact;
      }
    }
  }
  EXPECT_GT(missing, 300U);
}

// Handing on before publishing; a closing exchange that waits for less. No dependency is there for nothing.
TEST(Mutant, ADroppedDependencyOfALoggedRoundIsSeen) {
  std::uint64_t unsafe = 0;
  for (const World& world : logged_worlds()) {
    std::vector<Schedule> schedules = make_all(world);
    for (std::size_t rank = 0; rank < schedules.size(); ++rank) {
      Schedule& schedule = schedules[rank];
      const Schedule intact = schedule;
      for (std::uint32_t from = 0; from < intact.steps.size(); ++from) {
        for (std::uint32_t e = intact.first_successor[from]; e < intact.first_successor[from + 1]; ++e) {
          const std::uint32_t to = intact.successors[e];
          if (!is_needed(world, intact.steps[from], intact.steps[to])) continue;
          drop_edge(schedule, e);
          if (!reaches(schedule, from, to) && check_races(world, schedules).empty()) {
            ++unsafe;
            ASSERT_THAT(check_publication(world, schedules),
                        AnyOf(HasSubstr("before the copy that its host"), HasSubstr("is not stable")))
                << world.describe() << ": rank " << rank << " step " << to << " after " << from;
          }
          schedule = intact;
        }
      }
    }
  }
  EXPECT_GT(unsafe, 200U);
}

// Nothing closes a little scatter within a host: its pieces leave after the whole result is published.
TEST(Mutant, APieceThatLeavesBeforeAllArePublishedIsSeen) {
  std::uint64_t early = 0;
  for (const std::int32_t size : {2, 3, 4, 8}) {
    World world = world_of(Collective::kScatter, Algorithm::kStar, size, {24, 32});
    world.replicas = 2;
    world.hosts.assign(static_cast<std::size_t>(size), 0);
    std::vector<Schedule> schedules = make_all(world);
    ASSERT_EQ(check_publication(world, schedules), "") << world.describe();
    for (const Step& step : schedules[1].steps) EXPECT_NE(step.kind, StepKind::kSend) << "a piece is its only message";
    Schedule& root = schedules[0];
    const Schedule intact = root;
    for (std::uint32_t from = 0; from < intact.steps.size(); ++from) {
      for (std::uint32_t e = intact.first_successor[from]; e < intact.first_successor[from + 1]; ++e) {
        if (intact.steps[from].kind == StepKind::kCopy && intact.steps[from].count > 0) continue;  // of data
        drop_edge(root, e);
        ++early;
        EXPECT_THAT(check_publication(world, schedules),
                    AnyOf(HasSubstr("before the copy that its host"), HasSubstr("is not stable")))
            << world.describe() << ": step " << intact.successors[e] << " after " << from;
        root = intact;
      }
    }
  }
  EXPECT_GT(early, 15U);
}

// The bracketing of a round belongs to its ranks, whatever became of them.
TEST(Mutant, OwnersOfANewRingAreSeen) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kDirect}) {
    World world = world_of(Collective::kAllreduce, algorithm, 3, {30, 2});
    world.replicas = 2;
    world.resumed = true;
    ASSERT_EQ(verdict(world, make_all(world)), "");
    std::vector<Schedule> schedules = make_all(world);
    std::rotate(schedules.begin(), schedules.begin() + 1, schedules.end());
    for (Schedule& schedule : schedules) {
      for (Step& step : schedule.steps) {
        if (step.peer >= 0) step.peer = (step.peer + 2) % 3;
      }
    }
    EXPECT_THAT(verdict(world, schedules), HasSubstr("whose final value is"));
  }
}

// Two ranks that each send first and receive after their send has completed.
TEST(Mutant, SendsThatWaitForEachOtherAreADeadlock) {
  World world{.collective = Collective::kAllgather, .algorithm = Algorithm::kRing, .size = 2, .count = 1, .counts = {}};
  std::vector<Schedule> schedules = make_all(world);
  for (Schedule& schedule : schedules) {
    std::uint32_t send = 0;
    while (schedule.steps[send].kind != StepKind::kSend) ++send;
    std::uint32_t receive = send;
    while (schedule.steps[receive].kind != StepKind::kRecv) ++receive;
    schedule.successors.insert(schedule.successors.begin() + schedule.first_successor[send], receive);
    for (std::uint32_t i = send + 1; i < schedule.first_successor.size(); ++i) ++schedule.first_successor[i];
    ++schedule.pending[receive];
  }
  EXPECT_THAT(verdict(world, schedules), HasSubstr("deadlock"));
}

}  // namespace
}  // namespace warren::schedule::symbolic
