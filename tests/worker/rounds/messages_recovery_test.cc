// Messages that are sent again, or not, after an interrupt.
#include "tests/worker/rounds/recovery_world.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace warren::worker::recovering {
namespace {

// Messages around the ring, two a round, received in the other order than they were sent; a checkpoint every second
// round.
class Messages {
 public:
  Messages(int rank, int size, int rounds, std::uint64_t count)
      : rank_(rank), size_(size), rounds_(rounds), count_(count) {
    state_ = static_cast<std::uint64_t>(rank) + 1;
  }
  bool advance(Engine& engine, Checkpoints& checkpoints, bool loaded) {
    if (!loaded) return true;
    if (engine.version() == kPreamble) return true;
    for (const auto& c : calls_) {
      if (!c->finished.load()) return true;
    }
    if (!calls_.empty()) take();
    if (round_ == rounds_) return false;
    if (round_ % 2 == 0 && round_ != checkpointed_) {
      if (!checkpoints.may_take()) return true;
      const PlacedState mine = std::as_bytes(std::span(&state_, 1));
      const std::uint64_t at = static_cast<std::uint64_t>(round_);
      const Status status = checkpoints.take(std::as_bytes(std::span(&at, 1)), &mine);
      EXPECT_TRUE(status.ok()) << status.describe();
      checkpointed_ = round_;
    }
    issue(engine);
    return true;
  }
  void restore(const Checkpoints::State& from) {
    if (from.version == 0) return;
    std::uint64_t at = 0;
    std::memcpy(&at, from.global.data(), sizeof at);
    std::memcpy(&state_, from.local.data(), sizeof state_);
    round_ = checkpointed_ = static_cast<int>(at);
  }
  std::uint64_t state() const { return state_; }
  int round() const { return round_; }

  static std::vector<std::uint64_t> oracle(int size, int rounds, std::uint64_t count) {
    std::vector<Messages> all;
    for (int r = 0; r < size; r++) all.emplace_back(r, size, rounds, count);
    for (int n = 0; n < rounds; n++) {
      std::vector<std::vector<std::uint64_t>> sent;
      for (auto& m : all) sent.push_back(m.payload());
      for (int r = 0; r < size; r++)
        all[static_cast<std::size_t>(r)].mix(sent[static_cast<std::size_t>((r + size - 1) % size)]);
    }
    std::vector<std::uint64_t> states;
    for (auto& m : all) states.push_back(m.state_);
    return states;
  }

 private:
  std::vector<std::uint64_t> payload() const {
    std::vector<std::uint64_t> v(count_ + 1);
    std::mt19937_64 random(state_ ^ static_cast<std::uint64_t>(round_));
    for (auto& x : v) x = random();
    return v;
  }
  void mix(const std::vector<std::uint64_t>& got) {
    for (const std::uint64_t x : got) state_ = (state_ ^ x) * 0x100000001b3u;
    round_++;
  }
  void issue(Engine& engine) {
    out_ = payload();
    in_.assign(count_ + 1, 0);
    const auto add = [&](bool sends, std::uint64_t at, std::uint64_t count, int tag) {
      auto call = std::make_unique<Call>();
      CallSpec& s = call->spec;
      s.collective = Collective::kPoint;
      s.type = DataType::kU64;
      s.count = count;
      s.sends = sends;
      s.tag = tag;
      s.root = sends ? (rank_ + 1) % size_ : (rank_ + size_ - 1) % size_;
      if (sends) s.input = out_.data() + at;
      if (!sends) s.output = in_.data() + at;
      const Status status = engine.submit(kWorldGroup, *call);
      EXPECT_TRUE(status.ok()) << status.describe();
      calls_.push_back(std::move(call));
    };
    add(true, 0, count_, 7);
    add(true, count_, 1, 8);
    add(false, count_, 1, 8);
    add(false, 0, count_, 7);
  }
  void take() {
    for (const auto& c : calls_) EXPECT_TRUE(c->status.ok()) << c->status.describe();
    calls_.clear();
    const auto got = in_;
    std::fill(in_.begin(), in_.end(), 0x5ca1ab1e);
    std::fill(out_.begin(), out_.end(), 0x5ca1ab1e);
    mix(got);
  }

  int rank_, size_, rounds_;
  std::uint64_t count_, state_ = 0;
  int round_ = 0, checkpointed_ = 0;
  std::vector<std::uint64_t> out_, in_;
  std::vector<std::unique_ptr<Call>> calls_;
};

TEST(RecoveryOfMessages, EndsWithTheSameStates) {
  for (std::uint64_t seed = 1; seed <= 60; seed++) {
    std::mt19937 random(static_cast<unsigned>(seed));
    World::Options options;
    options.size = 2 + static_cast<int>(seed % 3);
    options.replicas = 2;
    if (seed % 2 == 0) {
      for (int r = 0; r < options.size; r++) options.hosts.push_back(r);
    }
    const int rounds = 15;
    const std::uint64_t count = seed % 4 == 0 ? 3 : 2000;
    World world(options);
    const auto expected = Messages::oracle(options.size, rounds, count);
    std::vector<std::unique_ptr<Messages>> programs;
    std::vector<bool> loaded(static_cast<std::size_t>(options.size), false);
    for (int r = 0; r < options.size; r++) {
      programs.push_back(std::make_unique<Messages>(r, options.size, rounds, count));
      world.load(r);
    }
    const auto advance_all = [&] {
      bool more = false;
      for (int r = 0; r < options.size; r++) {
        const auto i = static_cast<std::size_t>(r);
        if (auto state = world.checkpoints(r).loaded()) {
          EXPECT_TRUE(state->ok()) << state->status().describe();
          if (state->ok()) programs[i]->restore(state->value());
          loaded[i] = true;
        }
        more = programs[i]->advance(world.engine(r), world.checkpoints(r), loaded[i]) || more;
      }
      return more;
    };
    for (int n = 0; n < 3; n++) {
      for (std::uint64_t steps = random() % 40; steps > 0; steps--) {
        (void)advance_all();
        (void)world.step();
      }
      const int lost = static_cast<int>(random() % static_cast<unsigned>(options.size));
      const auto i = static_cast<std::size_t>(lost);
      world.kill(lost);
      programs[i] = std::make_unique<Messages>(lost, options.size, rounds, count);
      loaded[i] = false;
      world.next_generation({lost});
      world.load(lost);
    }
    ASSERT_TRUE(world.run([&] { return !advance_all(); })) << "seed " << seed;
    for (int r = 0; r < options.size; r++) {
      EXPECT_EQ(programs[static_cast<std::size_t>(r)]->state(), expected[static_cast<std::size_t>(r)])
          << "rank " << r << " seed " << seed;
    }
    EXPECT_EQ(world.gaps, std::vector<std::string>()) << "seed " << seed;
    EXPECT_EQ(world.failures, std::vector<std::string>()) << "seed " << seed;
    if (HasFailure()) return;
  }
}

CallSpec message(std::vector<std::uint64_t>& v, int peer, bool sends) {
  CallSpec spec;
  spec.collective = Collective::kPoint;
  spec.type = DataType::kU64;
  spec.count = v.size();
  spec.root = peer;
  spec.tag = 7;
  spec.sends = sends;
  if (sends) spec.input = v.data();
  if (!sends) spec.output = v.data();
  return spec;
}

constexpr GroupId kPair{5};

TEST(RecoveryOfMessages, OfAGroupThatItsSenderHasDestroyedAreSentAgain) {
  World world(two_hosts());
  for (int r = 0; r < 2; r++) make_pair_group(world, r, kPair);
  std::vector<std::uint64_t> out(3000), in(3000), back(2, 0x77), got(2);
  for (std::size_t i = 0; i < out.size(); i++) out[i] = i * 0x9e3779b97f4a7c15u;
  Call calls[4];
  calls[0].spec = message(out, 1, true);
  calls[1].spec = message(in, 0, false);
  calls[2].spec = message(back, 0, true);
  calls[3].spec = message(got, 1, false);
  for (int i = 0; i < 4; i++) ASSERT_TRUE(world.engine(i == 0 || i == 3 ? 0 : 1).submit(kPair, calls[i]).ok());
  ASSERT_TRUE(
      world.run([&] { return calls[0].finished && calls[1].finished && calls[2].finished && calls[3].finished; }));
  EXPECT_EQ(in, out);
  // The sender scribbles and destroys; then the receiver is lost, twice.
  const auto right = out;
  std::fill(out.begin(), out.end(), 0x5ca1ab1e);
  world.engine(0).remove_group(kPair);
  for (int n = 0; n < 2; n++) {
    world.kill(1);
    world.next_generation({1});
    EXPECT_EQ(world.engine(0).used_channels()[0], 3u);
    EXPECT_TRUE(world.engine(0).unsettled());
    make_pair_group(world, 1, kPair);
    std::fill(in.begin(), in.end(), 0);
    Call again[2];
    again[0].spec = message(in, 0, false);
    again[1].spec = message(back, 0, true);  // has arrived long ago
    for (Call& call : again) ASSERT_TRUE(world.engine(1).submit(kPair, call).ok());
    ASSERT_TRUE(world.run([&] { return again[0].finished && again[1].finished; })) << n;
    EXPECT_EQ(in, right) << n;
  }
  // Of the preamble, which any later life runs again: kept.
  world.engine(1).remove_group(kPair);
  ASSERT_TRUE(world.run([&] { return !world.engine(0).unsettled() && !world.engine(1).unsettled(); }));
  for (int r = 0; r < 2; r++) EXPECT_EQ(world.engine(r).used_channels()[0], 3u);
  EXPECT_EQ(world.failures, std::vector<std::string>());
  EXPECT_EQ(world.gaps, std::vector<std::string>());
}

// A sender's new life may have other data, and what the old one logged it may have sent: both are what the log says,
// the first, whose arrival is not known yet, and the second, which the greeting has said is missing.
void sends_what_was_logged(std::size_t values) {
  World world(two_hosts());
  for (int r = 0; r < 2; r++) make_pair_group(world, r, kPair);
  std::vector<std::uint64_t> out[2], in[2];
  for (std::uint64_t i = 0; i < 2; i++) {
    out[i].assign(values, i + 1);
    in[i].assign(values, 0);
  }
  const auto right = std::vector(std::begin(out), std::end(out));
  Call first[2];
  for (int i = 0; i < 2; i++) {
    first[i].spec = message(out[i], 1, true);
    ASSERT_TRUE(world.engine(0).submit(kPair, first[i]).ok());
  }
  // Nothing has left. The new life reads something else.
  world.kill(0);
  world.next_generation({0});
  make_pair_group(world, 0, kPair);
  for (auto& message : out) std::fill(message.begin(), message.end(), 0x5ca1ab1e);
  Call again[2], receives[2];
  again[0].spec = message(out[0], 1, true);
  receives[0].spec = message(in[0], 0, false);
  ASSERT_TRUE(world.engine(0).submit(kPair, again[0]).ok());
  ASSERT_TRUE(world.engine(1).submit(kPair, receives[0]).ok());
  ASSERT_TRUE(world.run([&] { return again[0].finished && receives[0].finished; }));
  again[1].spec = message(out[1], 1, true);
  receives[1].spec = message(in[1], 0, false);
  ASSERT_TRUE(world.engine(1).submit(kPair, receives[1]).ok());
  ASSERT_TRUE(world.engine(0).submit(kPair, again[1]).ok());
  ASSERT_TRUE(world.run([&] { return again[1].finished && receives[1].finished; }));
  for (int i = 0; i < 2; i++) EXPECT_EQ(in[i], right[static_cast<std::size_t>(i)]) << i;
  EXPECT_EQ(world.failures, std::vector<std::string>());
  EXPECT_EQ(world.gaps, std::vector<std::string>());
}

TEST(RecoveryOfMessages, ANewLifeSendsWhatItsHostHasLogged) {
  sends_what_was_logged(3000);
  sends_what_was_logged(3);  // in one frame
}

TEST(RecoveryOfMessages, OfADestroyedGroupKeepItsChannelUntilTheNextCommit) {
  World world(two_hosts());
  for (int r = 0; r < 2; r++) world.load(r);
  bool loaded[2] = {};
  ASSERT_TRUE(world.run([&] {
    for (int r = 0; r < 2; r++) loaded[r] = loaded[r] || world.checkpoints(r).loaded().has_value();
    return loaded[0] && loaded[1];
  }));
  for (std::uint64_t n = 1; n <= 3; n++) {
    for (int r = 0; r < 2; r++) make_pair_group(world, r, GroupId(n));
    std::vector<std::uint64_t> out(3, n), in(3);
    Call calls[2];
    calls[0].spec = message(out, 1, true);
    calls[1].spec = message(in, 0, false);
    for (int r = 0; r < 2; r++) ASSERT_TRUE(world.engine(r).submit(GroupId(n), calls[r]).ok());
    ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished; }));
    EXPECT_EQ(in, out);
    for (int r = 0; r < 2; r++) world.engine(r).remove_group(GroupId(n));
    if (n == 2) world.next_generation({});
    ASSERT_TRUE(world.run([&] { return !world.engine(0).unsettled() && !world.engine(1).unsettled(); }));
    for (int r = 0; r < 2; r++) {
      EXPECT_EQ(world.engine(r).used_channels()[0], 3u);
      ASSERT_TRUE(world.checkpoints(r).take(std::as_bytes(std::span(&n, 1)), nullptr).ok());
    }
    ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
    for (int r = 0; r < 2; r++) EXPECT_EQ(world.engine(r).used_channels()[0], 1u) << n;
  }
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// I8: a link that one end alone knows of would never be done with, and its channel never free.
TEST(RecoveryOfMessages, WhatIsObsoleteWaitsForNoNewLife) {
  World world(two_hosts());
  const auto load = [&](std::vector<int> ranks) {
    for (const int r : ranks) world.load(r);
    return world.run([&] {
      std::erase_if(ranks, [&](int r) { return world.checkpoints(r).loaded().has_value(); });
      return ranks.empty();
    });
  };
  for (int r = 0; r < 2; r++) make_pair_group(world, r, kPair);
  ASSERT_TRUE(load({0, 1}));
  std::vector<std::uint64_t> out(3, 7), in(3);
  for (const GroupId group : {kWorldGroup, kPair}) {
    Call calls[2];
    calls[0].spec = message(out, 1, true);
    calls[1].spec = message(in, 0, false);
    for (int r = 0; r < 2; r++) ASSERT_TRUE(world.engine(r).submit(group, calls[r]).ok());
    ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished; }));
  }
  const std::uint64_t state = 1;
  for (int r = 0; r < 2; r++) ASSERT_TRUE(world.checkpoints(r).take(std::as_bytes(std::span(&state, 1)), nullptr).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
  world.kill(1);
  world.next_generation({1});
  make_pair_group(world, 1, kPair);
  ASSERT_TRUE(load({1}));
  EXPECT_TRUE(world.run([&] { return !world.engine(0).unsettled() && !world.engine(1).unsettled(); }));
  for (int r = 0; r < 2; r++) world.engine(r).remove_group(kPair);
  EXPECT_TRUE(world.run([&] { return !world.engine(0).unsettled() && !world.engine(1).unsettled(); }));
  for (int r = 0; r < 2; r++) EXPECT_EQ(world.engine(r).used_channels()[0], 1u) << r;
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

}  // namespace
}  // namespace warren::worker::recovering
