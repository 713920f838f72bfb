// Turns of schedules whose inputs and finals move from GPU to GPU: the same on both ends, in one order, and nobody
// waits for ever. What the steps do is proved where all schedules' is (schedule_stability_test.cc).
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "tests/worker/schedule/worlds.h"

namespace warren::schedule::symbolic {
namespace {

constexpr std::uint64_t kWide = kWholeBytes + 1;

World exchange_world(Algorithm algorithm, std::int32_t size, const Sizes& sizes, std::uint32_t replicas = 2) {
  World world = world_of(Collective::kAllreduce, algorithm, size, sizes);
  world.replicas = replicas;
  world.element_bytes = kWide;
  world.exchanges = true;
  return world;
}

// Runs all ranks, where a turn of a rank begins when all of its steps may and the turn before has begun, turns of a
// rank are carried out one after the other, as on one stream, and a turn ends when everybody whom it concerns has come
// to it. Messages by links take their order alone.
class Turns {
 public:
  explicit Turns(const std::vector<Schedule>& schedules) : schedules_(schedules) {
    for (const Schedule& s : schedules) {
      Node& node = nodes_.emplace_back();
      node.pending = s.pending;
      for (std::uint32_t i = 0; i < s.steps.size(); ++i) {
        if (s.steps[i].turn != 0) node.turns[s.steps[i].turn].push_back(i);
        if (s.pending[i] == 0) node.ready.push_back(i);
      }
    }
  }

  // How many steps are left over.
  std::size_t run() {
    for (bool some = true; some;) {
      some = false;
      for (std::size_t rank = 0; rank < nodes_.size(); ++rank) some = step(rank) || some;
      some = links() || some;
      for (std::size_t rank = 0; rank < nodes_.size(); ++rank) some = end_turn(rank) || some;
    }
    std::size_t left = 0;
    for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
      left += schedules_[rank].steps.size() - nodes_[rank].finished;
    }
    return left;
  }

 private:
  struct Node {
    std::vector<std::uint32_t> pending;
    std::deque<std::uint32_t> ready;
    std::map<std::uint32_t, std::vector<std::uint32_t>> turns;  // those that have not ended
    std::set<std::uint32_t> may;                                // steps of turns that may begin
    std::set<std::uint32_t> posted;                             // on links
    std::set<std::uint32_t> over;                               // turns
    std::size_t finished = 0;
  };

  void finish(std::size_t rank, std::uint32_t i) {
    const Schedule& s = schedules_[rank];
    nodes_[rank].finished++;
    for (std::uint32_t e = s.first_successor[i]; e < s.first_successor[i + 1]; ++e) {
      if (--nodes_[rank].pending[s.successors[e]] == 0) nodes_[rank].ready.push_back(s.successors[e]);
    }
  }
  bool step(std::size_t rank) {
    Node& node = nodes_[rank];
    const bool some = !node.ready.empty();
    while (!node.ready.empty()) {
      const std::uint32_t i = node.ready.front();
      node.ready.pop_front();
      const Step& s = schedules_[rank].steps[i];
      if (s.turn != 0) {
        node.may.insert(i);
      } else if (s.kind == StepKind::kSend || s.kind == StepKind::kRecv) {
        node.posted.insert(i);
      } else {
        finish(rank, i);
      }
    }
    return some;
  }
  // The one that the stream is at, if it has begun.
  [[nodiscard]] std::uint32_t current(std::size_t rank) const {
    const Node& node = nodes_[rank];
    if (node.turns.empty()) return 0;
    const auto& [turn, steps] = *node.turns.begin();
    return std::ranges::all_of(steps, [&](std::uint32_t i) { return node.may.contains(i); }) ? turn : 0;
  }
  bool end_turn(std::size_t rank) {
    const std::uint32_t turn = current(rank);
    if (turn == 0) return false;
    const std::vector<std::uint32_t> steps = nodes_[rank].turns.begin()->second;
    for (const std::uint32_t i : steps) {
      const auto peer = static_cast<std::size_t>(schedules_[rank].steps[i].peer);
      if (current(peer) != turn && !nodes_[peer].over.contains(turn)) return false;
    }
    nodes_[rank].turns.erase(turn);
    nodes_[rank].over.insert(turn);
    for (const std::uint32_t i : steps) finish(rank, i);
    return true;
  }
  bool links() {
    for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
      for (const std::uint32_t i : nodes_[rank].posted) {
        const Step& s = schedules_[rank].steps[i];
        if (s.kind != StepKind::kSend) continue;
        const auto peer = static_cast<std::size_t>(s.peer);
        for (const std::uint32_t k : nodes_[peer].posted) {
          const Step& r = schedules_[peer].steps[k];
          if (r.kind != StepKind::kRecv || r.peer != static_cast<std::int32_t>(rank) || r.message != s.message)
            continue;
          nodes_[rank].posted.erase(i);
          nodes_[peer].posted.erase(k);
          finish(rank, i);
          finish(peer, k);
          return true;
        }
      }
    }
    return false;
  }

  const std::vector<Schedule>& schedules_;
  std::vector<Node> nodes_;
};

TEST(Exchange, TurnsAreTheSameOnBothEndsAndEnd) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kButterfly}) {
    for (std::int32_t size = 2; size <= 9; ++size) {
      const auto k = static_cast<std::uint64_t>(size);
      for (const Sizes& sizes : {Sizes{k + 1, 64}, Sizes{7 * k + 5, 1}, Sizes{200, 3}, Sizes{40, 64}, Sizes{2, 1}}) {
        World world = exchange_world(algorithm, size, sizes);
        if (algorithm == Algorithm::kRing && sizes.count % 2 == 0) world.order = any_order(size, sizes.count);
        if (!can_exchange(world.request(0))) continue;
        const std::vector<Schedule> schedules = make_all(world);
        for (std::int32_t rank = 0; rank < size; ++rank) {
          for (const Step& send : schedules[static_cast<std::size_t>(rank)].steps) {
            if (send.kind != StepKind::kSend) continue;
            EXPECT_EQ(send.turn == 0, send.count == 0) << "nothing but words go by links, " << world.describe();
            for (const Step& receive : schedules[static_cast<std::size_t>(send.peer)].steps) {
              if (receive.kind != StepKind::kRecv || receive.peer != rank || receive.message != send.message) continue;
              EXPECT_EQ(send.turn, receive.turn) << world.describe();
            }
          }
        }
        EXPECT_EQ(Turns(schedules).run(), 0u) << world.describe();
      }
    }
  }
}

// Who has heard from all knows that all of what has come, anywhere, was what was sent.
TEST(Exchange, NobodyClosesBeforeAllWordsHaveCome) {
  for (const Algorithm algorithm : {Algorithm::kRing, Algorithm::kButterfly}) {
    for (std::uint32_t replicas = 1; replicas <= 2; ++replicas) {
      for (const Schedule& schedule : make_all(exchange_world(algorithm, 5, {200, 3}, replicas))) {
        for (std::uint32_t word = 0; word < schedule.steps.size(); ++word) {
          if (!schedule.steps[word].is_word || schedule.steps[word].kind != StepKind::kRecv) continue;
          std::vector<bool> follows(schedule.steps.size());
          follows[word] = true;
          for (std::uint32_t i = word; i < schedule.steps.size(); ++i) {
            for (std::uint32_t e = schedule.first_successor[i]; follows[i] && e < schedule.first_successor[i + 1];
                 ++e) {
              follows[schedule.successors[e]] = true;
            }
            const Step& step = schedule.steps[i];
            const bool closes = i > word && step.kind == StepKind::kSend && step.turn == 0 && !step.is_word;
            EXPECT_TRUE(follows[i] || !closes);
          }
        }
      }
    }
  }
}

// The log has what it must have, and not what each rank has received.
TEST(Exchange, FewKeepAFinal) {
  World world = exchange_world(Algorithm::kRing, 6, {60, 5});
  world.hosts = world.domains = {0, 0, 1, 1, 2, 2};
  for (std::uint32_t replicas = 1; replicas <= 4; ++replicas) {
    world.replicas = replicas;
    std::uint64_t published = 0;
    for (const Schedule& schedule : make_all(world)) published += cost(schedule).published_elements;
    EXPECT_EQ(published, std::min<std::uint64_t>(replicas, 3) * 60);
  }
}

TEST(Exchange, IsForFirstAttemptsOfLargeLoggedAllreducesInPieces) {
  const auto can = [](auto change) {
    Request request = exchange_world(Algorithm::kRing, 4, {100, 4}).request(1);
    change(request);
    return can_exchange(request) && make(request).ok();
  };
  EXPECT_TRUE(can([](Request&) {}));
  EXPECT_TRUE(can([](Request& r) { r.algorithm = Algorithm::kButterfly; }));
  EXPECT_FALSE(can([](Request& r) { r.algorithm = Algorithm::kDirect; }));
  EXPECT_FALSE(can([](Request& r) { r.collective = Collective::kReduceScatter; }));
  EXPECT_FALSE(can([](Request& r) { r.replicas = 0; }));
  EXPECT_FALSE(can([](Request& r) { r.settles = true; }));
  EXPECT_FALSE(can([](Request& r) { r.resumed = true; }));
  EXPECT_FALSE(can([](Request& r) { r.final.add(0, 4); }));
  EXPECT_FALSE(can([](Request& r) { r.element_bytes = 4; }));
  EXPECT_FALSE(can([](Request& r) { r.size = 1, r.rank = 0; }));
  Request refused = exchange_world(Algorithm::kDirect, 4, {100, 4}).request(1);
  EXPECT_FALSE(make(refused).ok());
}

}  // namespace
}  // namespace warren::schedule::symbolic
