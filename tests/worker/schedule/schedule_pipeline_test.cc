// That schedules keep links busy, in a model with virtual time: every host has one way out and one way in, which carry
// a chunk in one unit of time each, and every rank one processor, and such ways within its host, which are faster. A
// send waits for its receive to be posted.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

#include "tests/worker/schedule/symbolic.h"

namespace warren::schedule::symbolic {
namespace {

// Per chunk, but for the latency.
struct Speeds {
  double latency = 0.5;
  double reduce = 0.25;
  double copy = 0.15;
  double within_host = 0.15;  // latency too
};

class Timed {
 public:
  Timed(const World& world, const std::vector<Schedule>& schedules, const Speeds& speeds)
      : world_(world), chunk_(static_cast<double>(world.chunk_elements)), speeds_(speeds) {
    for (std::int32_t rank = 0; rank < world.size; ++rank) host_ways_[world.host(rank)] = {};
    for (const Schedule& schedule : schedules) {
      order_.push_back(nodes_.size());
      Node& node = nodes_.emplace_back();
      node.schedule = &schedule;
      node.pending = schedule.pending;
      node.ready.assign(schedule.steps.size(), false);
      node.links.resize(schedules.size());
      for (std::uint32_t i = 0; i < schedule.steps.size(); ++i) {
        const Step& step = schedule.steps[i];
        if (step.kind == StepKind::kSend) node.links[static_cast<std::size_t>(step.peer)].sends.push_back(i);
        if (step.kind == StepKind::kRecv) node.links[static_cast<std::size_t>(step.peer)].receives.push_back(i);
      }
    }
  }

  // When the last step ends.
  double run() {
    for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
      for (std::uint32_t i = 0; i < nodes_[rank].pending.size(); ++i) {
        if (nodes_[rank].pending[i] == 0) becomes_ready(rank, i);
      }
    }
    double now = 0;
    start_what_can(now);
    while (!events_.empty()) {
      now = events_.top().at;
      const Event event = events_.top();
      events_.pop();
      if (event.step != kNone) finish(event.rank, event.step);
      start_what_can(now);
    }
    for (const Node& node : nodes_) EXPECT_EQ(node.finished, node.pending.size());
    return now;
  }

 private:
  static constexpr std::uint32_t kNone = UINT32_MAX;
  struct Event {
    double at = 0;
    std::size_t rank = 0;
    std::uint32_t step = kNone;  // which ends; none: only time to look again
    bool operator<(const Event& other) const { return at > other.at; }
  };
  struct Link {
    std::vector<std::uint32_t> sends, receives;
    std::size_t sent = 0;
  };
  struct Ways {
    double out_free = 0, in_free = 0;
  };
  struct Node {
    const Schedule* schedule = nullptr;
    std::vector<std::uint32_t> pending;
    std::vector<bool> ready;
    std::vector<Link> links;  // by peer
    std::deque<std::uint32_t> local;
    double processor_free = 0;
    Ways within_host;
    double carried = 0;  // by its host's way out
    std::size_t next_peer = 0;
    std::size_t finished = 0;
  };

  void becomes_ready(std::size_t rank, std::uint32_t step) {
    nodes_[rank].ready[step] = true;
    const StepKind kind = nodes_[rank].schedule->steps[step].kind;
    if (kind != StepKind::kSend && kind != StepKind::kRecv && kind != StepKind::kPublish)
      nodes_[rank].local.push_back(step);
  }

  void finish(std::size_t rank, std::uint32_t step) {
    Node& node = nodes_[rank];
    ++node.finished;
    const Schedule& s = *node.schedule;
    for (std::uint32_t e = s.first_successor[step]; e < s.first_successor[step + 1]; ++e) {
      if (--node.pending[s.successors[e]] == 0) becomes_ready(rank, s.successors[e]);
    }
  }

  void start_what_can(double now) {
    // Streams share a way: of a host's ranks that could have it, who has had it least has it next.
    std::ranges::sort(order_, {}, [&](std::size_t rank) {
      return std::tuple(world_.host(static_cast<std::int32_t>(rank)), nodes_[rank].carried, rank);
    });
    for (const std::size_t rank : order_) {
      Node& node = nodes_[rank];
      if (!node.local.empty() && node.processor_free <= now) {
        const Step& step = node.schedule->steps[node.local.front()];
        // What moves, in units of a sum of two: two operands and what is made of them.
        const double operands = step.kind == StepKind::kCombine ? step.operands : 2;
        const double work = step.kind == StepKind::kCopy ? speeds_.copy : speeds_.reduce * (operands + 1) / 3;
        node.processor_free = now + work * static_cast<double>(step.count) / chunk_;
        events_.push({node.processor_free, rank, node.local.front()});
        node.local.pop_front();
      }
      const std::size_t first = node.next_peer;
      for (std::size_t i = 0; i < nodes_.size(); ++i) {
        const std::size_t peer = (first + i) % nodes_.size();
        if (send_to(rank, peer, now)) node.next_peer = (peer + 1) % nodes_.size();
      }
    }
  }

  bool send_to(std::size_t rank, std::size_t peer, double now) {
    Node& from = nodes_[rank];
    Node& to = nodes_[peer];
    Link& link = from.links[peer];
    const std::uint32_t host = world_.host(static_cast<std::int32_t>(rank));
    const std::uint32_t other = world_.host(static_cast<std::int32_t>(peer));
    Ways& out = host == other ? from.within_host : host_ways_[host];
    Ways& in = host == other ? to.within_host : host_ways_[other];
    if (link.sent == link.sends.size() || out.out_free > now || in.in_free > now) return false;
    const std::uint32_t send = link.sends[link.sent];
    const std::uint32_t receive = to.links[rank].receives[link.sent];
    if (!from.ready[send] || !to.ready[receive]) return false;
    const double speed = host == other ? speeds_.within_host : 1;
    const double done = now + speed * static_cast<double>(from.schedule->steps[send].count) / chunk_;
    out.out_free = in.in_free = done;
    if (host != other) from.carried += done - now;
    ++link.sent;
    events_.push({done, rank, send});
    events_.push({done + speed * speeds_.latency, peer, receive});
    return true;
  }

  const World& world_;
  double chunk_;
  Speeds speeds_;
  std::vector<Node> nodes_;
  std::map<std::uint32_t, Ways> host_ways_;
  std::priority_queue<Event> events_;
  std::vector<std::size_t> order_;  // ranks
};

// Time of a collective over many chunks, as a multiple of the time that the busiest link needs for its bytes.
double over_ideal(const World& world, std::uint64_t busiest_elements) {
  const std::vector<Schedule> schedules = make_all(world);
  const double ideal = static_cast<double>(busiest_elements) / static_cast<double>(world.chunk_elements);
  return Timed(world, schedules, {}).run() / ideal;
}

World large(Collective collective, Algorithm algorithm, std::int32_t size) {
  World world{.collective = collective, .algorithm = algorithm, .size = size, .counts = {}};
  world.chunk_elements = 64;
  world.count = 64 * 40 * static_cast<std::uint64_t>(size);
  return world;
}

TEST(Pipeline, TheRingKeepsItsLinksBusy) {
  for (const std::int32_t size : {2, 4, 8}) {
    const World world = large(Collective::kAllreduce, Algorithm::kRing, size);
    const auto k = static_cast<std::uint64_t>(size);
    EXPECT_LT(over_ideal(world, 2 * world.count * (k - 1) / k), 1.05) << size;
  }
}

TEST(Pipeline, DirectKeepsItsLinksBusy) {
  for (const std::int32_t size : {2, 4, 8}) {
    const World world = large(Collective::kAllreduce, Algorithm::kDirect, size);
    const auto k = static_cast<std::uint64_t>(size);
    EXPECT_LT(over_ideal(world, 2 * world.count * (k - 1) / k), 1.05) << size;
  }
}

TEST(Pipeline, ButterfliesOverlapTheirBlocks) {
  for (const std::int32_t size : {2, 4, 8}) {
    const World world = large(Collective::kAllreduce, Algorithm::kButterfly, size);
    const auto k = static_cast<std::uint64_t>(size);
    // The parts get smaller from level to level, and each level waits for the one before.
    EXPECT_LT(over_ideal(world, 2 * world.count * (k - 1) / k), size == 2 ? 1.05 : 1.75) << size;
  }
}

// Hosts of several ranks, side by side: their ways out are busy with what must cross, and done before a flat ring is.
TEST(Pipeline, HierarchiesKeepTheWaysBetweenHostsBusy) {
  for (const std::int32_t hosts : {2, 4}) {
    for (const std::int32_t of_each : {2, 4}) {
      const std::int32_t size = hosts * of_each;
      World world = large(Collective::kAllreduce, Algorithm::kRing, size);
      const std::vector<Schedule> flat = make_all(world);
      for (std::int32_t rank = 0; rank < size; ++rank)
        world.hosts.push_back(static_cast<std::uint32_t>(rank / of_each));
      world.element_bytes = kWholeBytes;
      const auto k = static_cast<std::uint64_t>(size), h = static_cast<std::uint64_t>(hosts);
      EXPECT_LT(over_ideal(world, world.count * (k - 1) / k + world.count * (h - 1) / h), 1.05) << hosts;
      EXPECT_LT(Timed(world, make_all(world), {}).run(), 0.95 * Timed(world, flat, {}).run()) << hosts;
      world.algorithm = Algorithm::kButterfly;
      // Of more than two hosts, several send to one at the same time while others are sent nothing.
      EXPECT_LT(over_ideal(world, 2 * world.count * (h - 1) / h), hosts == 2 ? 1.05 : 1.15) << hosts;
    }
  }
}

TEST(Pipeline, ChainsAndTreesWorkOnAllLevelsAtOnce) {
  for (const std::int32_t size : {4, 8}) {
    const auto levels = size == 4 ? std::uint64_t{2} : std::uint64_t{3};
    World world = large(Collective::kBroadcast, Algorithm::kRing, size);
    EXPECT_LT(over_ideal(world, world.count), 1.1) << size;
    world.algorithm = Algorithm::kTree;
    EXPECT_LT(over_ideal(world, world.count * levels), 1.1) << size;
    world = large(Collective::kReduce, Algorithm::kRing, size);
    EXPECT_LT(over_ideal(world, world.count), 1.1) << size;
    world.algorithm = Algorithm::kTree;
    EXPECT_LT(over_ideal(world, world.count * levels), 1.1) << size;
    world = large(Collective::kAllreduce, Algorithm::kTree, size);
    EXPECT_LT(over_ideal(world, world.count * levels), 1.2) << size;
  }
}

}  // namespace
}  // namespace warren::schedule::symbolic
