// Random jobs: who holds what, what gets lost, copied, late or damaged, who dies, when generations change. Whatever
// happens, what is delivered is right; and once faults stop, every want ends: with its bytes if anybody holds them,
// with a gap if nobody does.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/replay/net.h"

namespace warren::worker::replaytest {
namespace {

struct Draw {
  std::mt19937_64 random;
  std::uint64_t below(std::uint64_t n) { return std::uniform_int_distribution<std::uint64_t>(0, n - 1)(random); }
  bool one_in(std::uint64_t n) { return below(n) == 0; }
};

struct Job {
  explicit Job(std::uint64_t s) : seed(s), draw{std::mt19937_64(s)}, net(hosts(), s, std::size_t{6} << 20) {}

  std::vector<std::string> hosts() {
    std::vector<std::string> out;
    const std::uint64_t ranks = 1 + draw.below(7);
    for (std::uint64_t i = 0; i < ranks; ++i) out.push_back("host-" + std::to_string(draw.below(4)));
    return out;
  }

  void publish() {
    rounds = 1 + draw.below(40);
    sizes.resize(rounds);
    held.resize(rounds);
    for (std::uint64_t s = 0; s < rounds; ++s) {
      sizes[s] = draw.one_in(6) ? 0 : 1 + draw.below(draw.one_in(8) ? 400'000 : 3000);
      const std::uint64_t cuts = 1 + draw.below(5);
      for (std::uint64_t c = 0; c < cuts; ++c) {
        const std::uint64_t begin = sizes[s] * c / cuts, end = sizes[s] * (c + 1) / cuts;
        const std::uint64_t copies = draw.one_in(gaps ? 12 : 1'000'000) ? 0 : 1 + draw.below(3);
        for (std::uint64_t n = 0; n < copies; ++n) {
          const auto rank = static_cast<std::int32_t>(draw.below(net.lives.size()));
          net.life(rank).publish(round_key(s), sizes[s], begin, end);
          held[s].add(begin, end);
          exists[s] = true;
        }
      }
    }
  }

  void trouble() {
    net.faults.lose = draw.one_in(2) ? 0.1 : 0;
    net.faults.copy = draw.one_in(2) ? 0.2 : 0;
    net.faults.damage = draw.one_in(2) ? 0.1 : 0;
    net.faults.most_delay_ms = draw.one_in(2) ? 300 : 3;
  }

  // Between generations: some rank's process is another one; its host keeps the old segment.
  void lose_a_rank() {
    if (net.lives.size() < 2) return;
    const auto rank = static_cast<std::int32_t>(1 + draw.below(net.lives.size() - 1));
    net.replace(rank);
    Life& old = net.dead.back();
    net.life(rank).fresh = true;
    for (const Life& l : net.lives) {
      if (l.host != old.host) continue;
      // The new life maps what its host still has.
      for (const Life& d : net.dead) {
        if (d.host != l.host || l.rank != Rank(rank)) continue;
        EXPECT_TRUE(l.log->attach(d.self, d.memory->bytes(), d.memory).ok());
      }
      if (l.rank == Rank(rank)) {
        for (const Life& m : net.lives) {
          if (m.rank != l.rank && m.host == l.host) net.attach(rank, m.rank.value);
        }
      } else {
        net.attach(l.rank.value, rank);
      }
    }
  }

  void run() {
    net.plan.replicas = static_cast<std::uint32_t>(1 + draw.below(3));
    net.plan.timeout_ms = 1000;
    publish();
    trouble();
    net.install();
    std::uint64_t next = 0;
    while (next < rounds || !active.empty()) {
      const bool calm = next == rounds;
      if (calm) net.faults = {};
      if (next < rounds && active.size() < 1 + draw.below(6)) {
        Wish& w = active[begin(next)];
        w.sequence = next++;
        continue;
      }
      if (draw.one_in(12) && !calm) {
        net.suspend();
        if (draw.one_in(2)) lose_a_rank();
        net.run_for(static_cast<std::int64_t>(draw.below(400)));
        net.install();
        continue;
      }
      const auto done = net.run(calm ? 10'000'000 : static_cast<std::int64_t>(1 + draw.below(2000)));
      if (done) check(*done);
      ASSERT_TRUE(done || !calm) << "seed " << seed << ": a want never ended: " << net.replayer->describe();
      if (testing::Test::HasFailure()) return;
    }
  }

  struct Wish {
    std::uint64_t sequence = 0;
  };

  std::uint64_t begin(std::uint64_t sequence) {
    auto& buffer = buffers[sequence];
    buffer.assign(sizes[sequence], std::byte{0xee});
    std::uint64_t from = 0, to = sizes[sequence];
    if (to > 0 && draw.one_in(3)) {
      from = draw.below(to);
      to = from + draw.below(to - from) + 1;
    }
    wanted[sequence] = Ranges(from, to);
    return net.want(round_key(sequence), buffer, from, to);
  }

  void check(const Replayer::Done& done) {
    ASSERT_TRUE(active.contains(done.id)) << "seed " << seed;
    const std::uint64_t s = active.at(done.id).sequence;
    active.erase(done.id);
    const Ranges lacking = wanted[s].minus(held[s]);
    // Damage that repeats looks like a gap; without it, only what nobody holds is one.
    if (!done.status.ok()) {
      ASSERT_EQ(done.status.code(), Code::kUnavailable) << "seed " << seed << ": " << done.status.describe();
      ASSERT_TRUE(!exists[s] || !lacking.empty() || damaged())
          << "seed " << seed << " round " << s << ": " << done.status.describe();
      return;
    }
    ASSERT_TRUE(exists[s] && lacking.empty()) << "seed " << seed;
    std::vector<std::byte> expected(sizes[s], std::byte{0xee});
    for (const Interval& i : wanted[s].intervals()) {
      for (std::uint64_t at = i.begin; at < i.end; ++at) expected[at] = byte_of(round_key(s), at);
    }
    ASSERT_TRUE(buffers[s] == expected) << "seed " << seed << " round " << s;
    ASSERT_EQ(done.log_again.minus(wanted[s]), Ranges()) << "seed " << seed;
  }
  [[nodiscard]] bool damaged() const {
    return std::any_of(net.warnings.begin(), net.warnings.end(),
                       [](const std::string& w) { return w.find("damaged") != std::string::npos; });
  }

  std::uint64_t seed;
  Draw draw;
  Net net;
  bool gaps = draw.one_in(3);
  std::uint64_t rounds = 0;
  std::vector<std::uint64_t> sizes;
  std::vector<Ranges> held;
  std::map<std::uint64_t, bool> exists;
  std::map<std::uint64_t, Ranges> wanted;
  std::map<std::uint64_t, std::vector<std::byte>> buffers;
  std::map<std::uint64_t, Wish> active;
};

TEST(ReplayerRandom, DeliversWhatIsHeldWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    Job job(seed);
    job.run();
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace warren::worker::replaytest
