// Schedules of logged rounds: what they publish, what survives when they stop anywhere, and how the rest is computed
// (I1, I2, I3, I9).
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

#include "tests/worker/schedule/layout.h"
#include "tests/worker/schedule/worlds.h"

namespace warren::schedule::symbolic {
namespace {

constexpr Order kOrders[] = {Order::kInOrder,   Order::kRandom,      Order::kLateSends,
                             Order::kLateLocal, Order::kLatePublish, Order::kEagerSends};
// Wide elements, so that no result is small.
constexpr std::uint64_t kWide = kWholeBytes + 1;

class EveryLoggedSchedule : public testing::TestWithParam<std::int32_t> {
 protected:
  void check_one(const World& world, Order order) {
    const std::vector<Schedule> schedules = make_all(world);
    World in_place = world;
    in_place.in_place = true;
    ASSERT_EQ(check_form(in_place, schedules), "") << world.describe();
    ASSERT_EQ(check_races(in_place, schedules), "") << world.describe();
    // The results of others are as long as there are pairs of ranks, which takes too long.
    const bool is_short = world.collective == Collective::kAllreduce || world.collective == Collective::kReduce ||
                          world.collective == Collective::kBroadcast || world.collective == Collective::kBarrier;
    if (world.size <= 16 || is_short) {
      ASSERT_EQ(check_publication(world, schedules), "") << world.describe();
    }
    ++seed_;
    ASSERT_EQ(check_run(seed_ % 2 == 0 ? in_place : world, schedules, order, seed_), "")
        << world.describe() << ", order " << static_cast<int>(order) << ", seed " << seed_;
  }

  std::uint64_t seed_ = 0;
};

// Everything that the symbolic test proves of schedules without a log, and the rule of publication.
TEST_P(EveryLoggedSchedule, PublishesBeforeAnybodySees) {
  const std::int32_t size = GetParam();
  const auto k = static_cast<std::uint64_t>(size);
  const bool few = size <= 9;
  const std::vector<Sizes> sizes = few ? std::vector<Sizes>{{0, 64}, {1, 1}, {k + 1, 256}, {9 * k + 5, 3}, {130, 64}}
                                       : std::vector<Sizes>{{2 * k + 3, 3}};
  std::size_t turn = static_cast<std::size_t>(size), pair = turn / 2;
  for (const Collective collective : kCollectives) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      // Above 32 ranks, which take 0.87 of the time, at half of the sizes, even and odd ones, and at 64.
      if (++pair % 2 == 0 && size > 32 && size != 64) continue;
      for (const Sizes& s : sizes) {
        if (collective == Collective::kBarrier && s.count != 0 && few) continue;
        World world = world_of(collective, algorithm, size, s);
        const std::vector<Placement> places = placements(size);
        for (std::size_t i = 0; i < places.size(); ++i) {
          if (!few && i != turn % places.size()) continue;
          places[i].put(world);
          for (std::uint32_t replicas = 1; replicas <= 3; ++replicas) {
            ++turn;
            if (!few && replicas != 1 + turn / 2 % 3) continue;
            world.replicas = replicas;
            world.root = has_root(collective) ? static_cast<std::int32_t>(turn) % size : 0;
            world.element_bytes = turn / 3 % 2 == 0 ? kWide : 1;
            check_one(world, kOrders[turn % std::size(kOrders)]);
            if (HasFatalFailure()) return;
            if (size > 16 || !can_exchange(world.request(0))) continue;
            world.exchanges = true;
            check_one(world, kOrders[(turn + 1) % std::size(kOrders)]);
            world.exchanges = false;
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Size, EveryLoggedSchedule, testing::Range(1, 65));

// --- What is left when they stop

// Hosts' copies, in domains that are not lost.
std::vector<bool> published(const World& world, const State& state, const std::set<std::uint32_t>& lost_domains) {
  std::vector<bool> all(state.logs.begin()->second.size(), false);
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    if (lost_domains.contains(world.domain(rank))) continue;
    const std::vector<bool>& log = state.logs.at(world.host(rank));
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = all[i] || log[i];
  }
  return all;
}

// An unfinished rank publishes what stands final in its output when it stops.
void publish_finals(const World& world, State& state, std::int32_t rank) {
  const std::uint64_t at = layout_of(world, rank).result_at;
  const std::vector<bool>& final = state.final[static_cast<std::size_t>(rank)];
  std::vector<bool>& log = state.logs[world.host(rank)];
  for (std::size_t i = 0; i < final.size(); ++i) log[at + i] = log[at + i] || final[i];
}

// What these ranks and domains leave behind. Empty, or what is wrong.
std::string check_loss(const World& world, const State& state, const std::set<std::uint32_t>& lost_domains,
                       const std::set<std::int32_t>& lost_ranks) {
  const std::vector<bool> held = published(world, state, lost_domains);
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    if (lost_domains.contains(world.domain(rank)) || lost_ranks.contains(rank)) continue;
    if (!state.finished[static_cast<std::size_t>(rank)]) continue;
    const auto gap = std::find(held.begin(), held.end(), false);
    if (gap != held.end()) {
      return "rank " + std::to_string(rank) + " has returned, element " + std::to_string(gap - held.begin()) +
             " is lost";
    }
  }
  return "";
}

// Input is gone only where a final stands.
std::string check_inputs(const World& world, State& state) {
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    const auto r = static_cast<std::size_t>(rank);
    const Layout layout = layout_of(world, rank);
    const std::vector<Expression> before = initial_cells(world, rank, state.expressions);
    for (std::uint64_t cell = layout.input_at; cell < layout.input_at + layout.input_count; ++cell) {
      if (state.user[r][cell] == before[cell]) continue;
      const std::uint64_t element = cell - layout.output_at;  // wraps around below the output
      if (element < layout.output_count && state.final[r][element]) continue;
      return "rank " + std::to_string(rank) + " has lost its input " + std::to_string(cell - layout.input_at);
    }
  }
  return "";
}

std::vector<std::set<std::uint32_t>> subsets(const std::set<std::uint32_t>& domains, std::size_t most) {
  std::vector<std::set<std::uint32_t>> all{{}};
  for (const std::uint32_t domain : domains) {
    for (std::size_t i = all.size(); i-- > 0;) {
      if (all[i].size() == most) continue;
      all.push_back(all[i]);
      all.back().insert(domain);
    }
  }
  return all;
}

// One round that is interrupted again and again.
class Story {
 public:
  Story(const World& world, std::uint64_t seed) : world_(world), seed_(seed), random_(seed), state_(start_of(world)) {}

  // Empty, or what went wrong.
  std::string tell(int interrupts) {
    for (; interrupts > 0; --interrupts) {
      std::string wrong = attempt(true);
      if (wrong.empty()) wrong = check_stability();
      if (!wrong.empty()) return wrong + " (" + world_.describe() + ")";
      if (!lose()) return "";
      go_on();
    }
    const std::string wrong = attempt(false);
    return wrong.empty() ? "" : wrong + " (" + world_.describe() + ")";
  }

  [[nodiscard]] bool resumed() const { return resumed_; }
  [[nodiscard]] bool replayed() const { return replayed_; }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  std::string attempt(bool stops) {
    const std::vector<Schedule> schedules = make_all(world_);
    if (std::string wrong = check_publication(world_, schedules); !wrong.empty()) return wrong;
    const Order order = kOrders[below(std::size(kOrders))];
    const std::uint64_t seed = random_();
    std::uint64_t events = UINT64_MAX;
    if (stops) {
      State all = state_;
      if (std::string wrong = run_from(world_, schedules, order, seed, all, events); !wrong.empty()) return wrong;
      // Near the end half of the time, where some ranks have returned.
      events = below(2) == 0 ? below(events + 1) : events - std::min(events, below(events / 8 + 2));
    }
    return run_from(world_, schedules, order, seed, state_, events);
  }

  std::string check_stability() {
    if (std::string wrong = check_inputs(world_, state_); !wrong.empty()) return wrong;
    std::set<std::uint32_t> domains;
    for (std::int32_t rank = 0; rank < world_.size; ++rank) domains.insert(world_.domain(rank));
    for (const auto& lost : subsets(domains, world_.replicas - 1)) {
      if (std::string wrong = check_loss(world_, state_, lost, {}); !wrong.empty()) return wrong;
    }
    return "";
  }

  // Loses up to R − 1 domains and some processes; survivors publish. False: nothing is left to do.
  bool lose() {
    std::set<std::uint32_t> domains;
    for (std::uint64_t i = below(world_.replicas); i > 0; --i) {
      domains.insert(world_.domain(static_cast<std::int32_t>(below(static_cast<std::uint64_t>(world_.size)))));
    }
    std::set<std::int32_t> lost;
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      if (domains.contains(world_.domain(rank)) || below(4) == 0) lost.insert(rank);
    }
    // A link alone, sometimes.
    if (domains.empty() && below(4) == 0) lost.clear();
    if (lost.size() == static_cast<std::size_t>(world_.size)) return false;  // a rollback
    bool returned = false;
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (domains.contains(world_.domain(rank))) {
        std::vector<bool>& log = state_.logs[world_.host(rank)];
        std::fill(log.begin(), log.end(), false);
      }
      if (lost.contains(rank)) continue;
      returned |= state_.finished[r];
      if (!state_.finished[r]) publish_finals(world_, state_, rank);
    }
    if (returned) {  // everybody else replays, from what check_stability() has found
      replayed_ = true;
      return false;
    }
    // Positions come from live ranks; segments of dead ones on hosts where nobody lives may be found or not.
    const bool found = below(2) == 0;
    std::set<std::uint32_t> heard;
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      if (found || !lost.contains(rank)) heard.insert(world_.host(rank));
    }
    const std::uint64_t elements = start_of(world_).final.empty() ? 0 : result_count();
    world_.final = {};
    for (const std::uint32_t host : heard) {
      const std::vector<bool>& log = state_.logs[host];
      for (std::uint64_t i = 0; i < elements; ++i) {
        if (log[i]) world_.final.add(i, i + 1);
      }
    }
    const State fresh = start_of(world_);
    for (const std::int32_t rank : lost) {
      const auto r = static_cast<std::size_t>(rank);
      state_.user[r] = initial_cells(world_, rank, state_.expressions);
      state_.final[r] = fresh.final[r];
      state_.finished[r] = false;
      if (below(3) == 0) move(rank);
    }
    return true;
  }

  [[nodiscard]] std::uint64_t result_count() const {
    std::uint64_t total = 0;
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      const Layout layout = layout_of(world_, rank);
      total = std::max(total, layout.result_at + layout.output_count);
    }
    return total;
  }

  // The replacement sits elsewhere: on a new host, or with another rank.
  void move(std::int32_t rank) {
    if (world_.hosts.empty()) {
      for (std::int32_t i = 0; i < world_.size; ++i) world_.hosts.push_back(static_cast<std::uint32_t>(i));
    }
    if (world_.domains.empty()) world_.domains = world_.hosts;
    const auto r = static_cast<std::size_t>(rank);
    if (below(2) == 0) {
      world_.hosts[r] = world_.domains[r] = 1000 + static_cast<std::uint32_t>(state_.logs.size());
    } else {
      const auto other = static_cast<std::size_t>(below(static_cast<std::uint64_t>(world_.size)));
      world_.hosts[r] = world_.hosts[other];
      world_.domains[r] = world_.domains[other];
    }
    world_.owner = static_cast<std::int32_t>(below(static_cast<std::uint64_t>(world_.size)));
    world_.on = {.maps = below(2) == 0, .cores = static_cast<std::uint32_t>(below(3)), .gpus = below(2) == 0};
    state_.logs[world_.hosts[r]].resize(std::max<std::uint64_t>(1, result_count()));
  }

  // As the engine does: nothing final means from the start; otherwise every rank takes from the log what is final of
  // its output, and logs it, before its schedule runs.
  void go_on() {
    world_.exchanges = false;
    world_.resumed = !world_.final.empty();
    resumed_ |= world_.resumed;
    for (std::int32_t rank = 0; rank < world_.size; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      const Layout layout = layout_of(world_, rank);
      const std::vector<Expression> expected = expected_output(world_, rank, state_.expressions);
      for (std::uint64_t i = 0; i < layout.output_count; ++i) {
        const std::uint64_t at = layout.result_at + i;
        if (!world_.final.covers(at, at + 1)) continue;
        state_.user[r][layout.output_at + i] = expected[i];
        state_.final[r][i] = true;
        state_.logs[world_.host(rank)][at] = true;
      }
    }
  }

  World world_;
  std::uint64_t seed_;
  std::mt19937_64 random_;
  State state_;
  bool resumed_ = false, replayed_ = false;
};

class EveryStop : public testing::TestWithParam<std::int32_t> {};

TEST_P(EveryStop, LeavesTheResultOrTheInputs) {
  const std::int32_t size = GetParam();
  const auto k = static_cast<std::uint64_t>(size);
  const std::vector<Sizes> sizes = {{0, 64}, {k + 1, 256}, {3 * k + 2, 2}, {7 * k + 5, 3}, {40, 64}, {9 * k + 2, 1}};
  const std::vector<Placement> places = placements(size);
  std::uint64_t seed = 1000 * k;
  int resumed = 0, replayed = 0, stories = 0, exchanged = 0;
  for (const Collective collective : kCollectives) {
    for (const Algorithm algorithm : algorithms_for(collective)) {
      for (const Sizes& s : sizes) {
        if (collective == Collective::kBarrier && s.count != 0) continue;
        for (int i = 0; i < 20; ++i) {
          World world = world_of(collective, algorithm, size, s);
          std::mt19937_64 random(++seed);
          const Placement& place = places[random() % places.size()];
          place.put(world);
          world.replicas = 1 + static_cast<std::uint32_t>(random() % 3);
          world.root = has_root(collective) ? static_cast<std::int32_t>(random() % k) : 0;
          world.element_bytes = random() % 4 == 0 ? 1 : kWide;
          world.in_place = random() % 2 == 0;
          const bool ring = collective == Collective::kAllreduce && algorithm == Algorithm::kRing;
          if (ring && random() % 2 == 0) world.order = any_order(size, seed);
          world.exchanges = seed % 2 == 0 && can_exchange(world.request(0));
          Story story(world, seed);
          ASSERT_EQ(story.tell(3), "") << "seed " << seed << " of " << world.describe();
          ++stories;
          exchanged += world.exchanges ? 1 : 0;
          resumed += story.resumed() ? 1 : 0;
          replayed += story.replayed() ? 1 : 0;
        }
      }
    }
  }
  RecordProperty("stories", stories);
  RecordProperty("resumed", resumed);
  RecordProperty("replayed", replayed);
  RecordProperty("exchanged", exchanged);
  if (size > 1) {
    EXPECT_GT(resumed, stories / 10);
    EXPECT_GT(replayed, stories / 20);
    EXPECT_GT(exchanged, 20);
  }
}
INSTANTIATE_TEST_SUITE_P(Size, EveryStop, testing::Range(1, 10));

}  // namespace
}  // namespace warren::schedule::symbolic
