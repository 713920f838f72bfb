// Engines that are interrupted in mid-round and go on: replay and resume. The tracker's part is
// recovery/decide/frontier.h.
#include "tests/worker/rounds/recovery_world.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace warren::worker::recovering {
namespace {

// What every rank runs: `rounds` collectives, each fed by what the one before gave.
struct Program {
  Collective collective = Collective::kAllreduce;
  std::uint64_t count = 5000;
  int rounds = 4;
  bool in_place = false;
  std::uint32_t blocking = 0;  // by rank, a bit each
  bool moves = false;          // an allreduce's buffers are elsewhere (Moving)
  std::uint32_t lends = 0;     // by rank, a bit each: its input may be lent where the CPU cannot read it
};

class Runner {
 public:
  // `expected`: what its calls must give, where it is known.
  Runner(const Program& program, int rank, int size, const std::vector<std::vector<std::byte>>* expected = nullptr)
      : program_(program), rank_(rank), size_(size), expected_(expected), random_(static_cast<unsigned>(rank)) {
    state_.assign(1, static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15u + 1);
  }
  // Issues the next call when the last is done; true while there is more.
  bool advance(Engine& engine, Gpu* gpu = nullptr) {
    if (program_.moves) move(engine);
    if (call_ && !call_->finished.load()) return true;
    if (call_) take();
    if (done_ == program_.rounds) return false;
    issue(engine, gpu);
    return true;
  }
  const std::vector<std::vector<std::byte>>& results() const { return results_; }
  bool finished() const { return done_ == program_.rounds; }

  // The same without any engine.
  static std::vector<std::vector<std::vector<std::byte>>> oracle(const Program& program, int size) {
    std::vector<Runner> all;
    for (int r = 0; r < size; r++) all.emplace_back(program, r, size);
    std::vector<std::vector<std::vector<std::byte>>> results(static_cast<std::size_t>(size));
    for (int round = 0; round < program.rounds; round++) {
      std::vector<std::vector<std::uint64_t>> inputs;
      for (auto& r : all) inputs.push_back(r.input());
      for (int r = 0; r < size; r++) {
        std::vector<std::uint64_t> out = combine(program, inputs, round, r, size);
        const auto bytes = std::as_bytes(std::span(out));
        results[static_cast<std::size_t>(r)].emplace_back(bytes.begin(), bytes.end());
        all[static_cast<std::size_t>(r)].mix(out);
      }
    }
    return results;
  }

 private:
  static std::vector<std::uint64_t> combine(const Program& p, const std::vector<std::vector<std::uint64_t>>& in,
                                            int round, int rank, int size) {
    std::vector<std::uint64_t> out;
    const auto k = static_cast<std::uint64_t>(size);
    switch (p.collective) {
      case Collective::kAllreduce:
      case Collective::kReduce:
        if (p.collective == Collective::kReduce && rank != round % size) return out;
        out.assign(p.count, 0);
        for (const auto& v : in) {
          for (std::uint64_t i = 0; i < p.count; i++) out[i] += v[i];
        }
        break;
      case Collective::kReduceScatter:
        out.assign(p.count, 0);
        for (const auto& v : in) {
          for (std::uint64_t i = 0; i < p.count; i++) out[i] += v[static_cast<std::uint64_t>(rank) * p.count + i];
        }
        break;
      case Collective::kReduceScatterv: {
        const std::uint64_t before = sum_of(row(p, 0, size, rank));
        out.assign(uneven(p, 0, rank), 0);
        for (const auto& v : in) {
          for (std::uint64_t i = 0; i < out.size(); i++) out[i] += v[before + i];
        }
        break;
      }
      case Collective::kAllToAllv:
        for (int from = 0; from < size; from++) {
          const auto* at = in[static_cast<std::size_t>(from)].data() + sum_of(row(p, from, size, rank));
          out.insert(out.end(), at, at + uneven(p, from, rank));
        }
        break;
      case Collective::kBroadcast: out = in[static_cast<std::size_t>(round % size)]; break;
      case Collective::kAllgather:
        for (const auto& v : in) out.insert(out.end(), v.begin(), v.end());
        break;
      case Collective::kAllToAll:
        for (const auto& v : in) {
          const auto* at = v.data() + static_cast<std::uint64_t>(rank) * p.count;
          out.insert(out.end(), at, at + p.count);
        }
        break;
      default: break;
    }
    (void)k;
    return out;
  }
  // Of uneven collectives: what goes from a rank to another; of a reduce_scatterv from rank 0.
  static std::uint64_t uneven(const Program& p, int from, int to) {
    return p.count * static_cast<std::uint64_t>((from + 2 * to + 1) % 3);
  }
  static std::vector<std::uint64_t> row(const Program& p, int from, int size, int below) {
    std::vector<std::uint64_t> counts;
    for (int to = 0; to < std::min(size, below); to++) counts.push_back(uneven(p, from, to));
    return counts;
  }
  static std::vector<std::uint64_t> column(const Program& p, int size, int to) {
    std::vector<std::uint64_t> counts;
    for (int from = 0; from < size; from++) counts.push_back(uneven(p, from, to));
    return counts;
  }
  static std::uint64_t sum_of(const std::vector<std::uint64_t>& counts) {
    return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
  }
  std::uint64_t in_count() const {
    if (program_.collective == Collective::kReduceScatterv) return sum_of(row(program_, 0, size_, size_));
    if (program_.collective == Collective::kAllToAllv) return sum_of(row(program_, rank_, size_, size_));
    const bool wide = program_.collective == Collective::kReduceScatter || program_.collective == Collective::kAllToAll;
    return program_.count * (wide ? static_cast<std::uint64_t>(size_) : 1);
  }
  std::vector<std::uint64_t> input() const {
    std::vector<std::uint64_t> v(in_count());
    std::mt19937_64 random(state_[0] ^ static_cast<std::uint64_t>(done_));
    for (auto& x : v) x = random();
    return v;
  }
  void mix(const std::vector<std::uint64_t>& out) {
    for (const std::uint64_t x : out) state_[0] = (state_[0] ^ x) * 0x100000001b3u;
    done_++;
  }
  void issue(Engine& engine, Gpu* gpu) {
    call_ = std::make_unique<Call>();
    call_->blocking = (program_.blocking >> rank_ & 1) != 0;
    in_ = input();
    CallSpec& s = call_->spec;
    s.collective = program_.collective;
    s.type = DataType::kU64;
    s.count = program_.count;
    const bool reduces = program_.collective == Collective::kAllreduce || program_.collective == Collective::kReduce ||
                         program_.collective == Collective::kReduceScatter ||
                         program_.collective == Collective::kReduceScatterv;
    s.op = reduces ? ReduceOp::kSum : ReduceOp::kNone;
    const int root = done_ % size_;
    if (program_.collective == Collective::kReduce || program_.collective == Collective::kBroadcast) s.root = root;
    const auto k = static_cast<std::uint64_t>(size_);
    std::uint64_t outs = program_.count;
    if (program_.collective == Collective::kAllgather || program_.collective == Collective::kAllToAll) outs *= k;
    if (program_.collective == Collective::kReduce && rank_ != root) outs = 0;
    std::vector<std::uint64_t> counts, from;
    if (program_.collective == Collective::kReduceScatterv) {
      counts = row(program_, 0, size_, size_);
      outs = uneven(program_, 0, rank_);
      s.count = 0;
    } else if (program_.collective == Collective::kAllToAllv) {
      counts = row(program_, rank_, size_, size_);
      from = column(program_, size_, rank_);
      outs = sum_of(from);
      s.count = 0;
    }
    s.counts = counts;
    s.counts_from = from;
    const bool exchanges = program_.collective == Collective::kAllToAllv;
    if (program_.collective == Collective::kBroadcast || (program_.in_place && outs == in_.size() && !exchanges)) {
      s.output = in_.data();
      s.input = program_.collective == Collective::kBroadcast ? nullptr : in_.data();
      out_size_ = outs;
      in_use_ = true;
    } else {
      out_.assign(outs, 0xdead);
      s.input = in_.data();
      s.output = out_.data();
      in_use_ = false;
    }
    if (program_.moves) {
      auto& out = in_use_ ? in_ : out_;
      auto moving = std::make_unique<Moving>(
          std::as_writable_bytes(std::span(in_)), std::as_writable_bytes(std::span(out)), state_[0],
          expected_ == nullptr ? nullptr : &(*expected_)[static_cast<std::size_t>(done_)],
          (program_.lends >> rank_ & 1) != 0 ? gpu : nullptr);
      s.input = moving->host_input();
      s.output = moving->host_output();
      s.prepare = &input_made_by<[](void* context) { static_cast<Moving*>(context)->begin(); }>;
      s.prepare_context = moving.get();
      call_->buffers = std::move(moving);
    }
    const Status status = engine.submit(kWorldGroup, *call_);
    EXPECT_TRUE(status.ok()) << status.describe();
  }
  // What its threads do outside the engine's lock, each as long as it likes.
  void move(Engine& engine) {
    if (prepares_ == nullptr) {
      prepares_ = engine.take_prepare();
    } else if (random_() % 8 == 0) {
      prepares_->spec.prepare(prepares_->spec.prepare_context);
      engine.prepared(*std::exchange(prepares_, nullptr));
    }
    if (moves_ == nullptr) {
      moves_ = engine.take_moving();
    } else if (random_() % 4 != 0) {
      const auto moved = moves_->buffers->stream()->move();
      ASSERT_TRUE(moved.ok());
      if (random_() % 2 == 0) engine.moved(*std::exchange(moves_, nullptr), {});
    }
  }
  void take() {
    EXPECT_TRUE(call_->status.ok()) << call_->status.describe();
    const std::vector<std::uint64_t>& out = in_use_ ? in_ : out_;
    const auto bytes = std::as_bytes(std::span(out));
    results_.emplace_back(bytes.begin(), bytes.end());
    std::vector<std::uint64_t> copy = out;
    // The program scribbles over its buffers: they are its own again.
    std::fill(in_.begin(), in_.end(), 0x5ca1ab1e);
    std::fill(out_.begin(), out_.end(), 0x5ca1ab1e);
    call_.reset();
    mix(copy);
  }

  Program program_;
  int rank_, size_;
  const std::vector<std::vector<std::byte>>* expected_;
  std::minstd_rand random_;
  Call *prepares_ = nullptr, *moves_ = nullptr;
  int done_ = 0;
  std::vector<std::uint64_t> state_, in_, out_;
  std::size_t out_size_ = 0;
  bool in_use_ = false;
  std::unique_ptr<Call> call_;
  std::vector<std::vector<std::byte>> results_;
};

// All ranks of a world, which run one program.
class Runners {
 public:
  Runners(World& world, const Program& program, int size)
      : world_(world), program_(program), expected_(Runner::oracle(program, size)) {
    for (int r = 0; r < size; r++) runners_.push_back(std::make_unique<Runner>(program, r, size));
  }
  Runner& operator[](int rank) { return *runners_[static_cast<std::size_t>(rank)]; }
  // Issues the calls that may come next; true while there are more.
  bool advance() {
    bool more = false;
    for (std::size_t r = 0; r < runners_.size(); r++) {
      more = runners_[r]->advance(world_.engine(static_cast<int>(r))) || more;
    }
    return more;
  }
  // True: all calls have ended.
  bool finish() {
    return world_.run([&] { return !advance(); });
  }
  // The programs of these ranks begin anew.
  void start_again(const std::vector<int>& ranks) {
    for (const int r : ranks) {
      runners_[static_cast<std::size_t>(r)] = std::make_unique<Runner>(program_, r, static_cast<int>(runners_.size()));
    }
  }
  void expect_results() const {
    for (std::size_t r = 0; r < runners_.size(); r++) EXPECT_EQ(runners_[r]->results(), expected_[r]) << "rank " << r;
  }

 private:
  World& world_;
  const Program program_;
  const std::vector<std::vector<std::vector<std::byte>>> expected_;
  std::vector<std::unique_ptr<Runner>> runners_;
};

std::vector<int> ranks_on(int host, const std::vector<int>& hosts) {
  std::vector<int> ranks;
  for (std::size_t r = 0; r < hosts.size(); r++) {
    if (hosts[r] == host) ranks.push_back(static_cast<int>(r));
  }
  return ranks;
}

// Each of the first `rounds` rounds is kept on two hosts.
void expect_copies(World& world, std::uint64_t rounds, int lost_host) {
  for (std::uint64_t s = 0; s < rounds; s++) {
    const RoundId round{Timeline(0), kWorldGroup, Version(0), Sequence(s)};
    EXPECT_GE(world.copies({RecordKind::kRound, round}), 2u) << "round " << s << " after host " << lost_host;
  }
}

struct Case {
  Program program;
  World::Options world;
  std::vector<int> lost;  // ranks; empty: only a link
  int host_lost = -1;
  unsigned most_steps = 400;            // between two interrupts
  std::size_t* sent_at_once = nullptr;  // counts
};

void survive(const Case& c, std::uint64_t seed, int interrupts) {
  std::mt19937 random(static_cast<unsigned>(seed));
  World world(c.world);
  const auto expected = Runner::oracle(c.program, c.world.size);
  std::vector<std::unique_ptr<Runner>> runners;
  const auto runner = [&](int r) {
    return std::make_unique<Runner>(c.program, r, c.world.size, &expected[static_cast<std::size_t>(r)]);
  };
  for (int r = 0; r < c.world.size; r++) runners.push_back(runner(r));
  const auto advance_all = [&] {
    bool more = false;
    for (int r = 0; r < c.world.size; r++)
      more = runners[static_cast<std::size_t>(r)]->advance(world.engine(r), world.gpu(r)) || more;
    return more;
  };
  const auto check = [&] {
    for (int r = 0; r < c.world.size; r++) {
      const auto& got = runners[static_cast<std::size_t>(r)]->results();
      for (std::size_t i = 0; i < got.size(); i++) {
        ASSERT_EQ(got[i], expected[static_cast<std::size_t>(r)][i])
            << "rank " << r << " round " << i << " seed " << seed;
      }
    }
  };
  for (int n = 0; n < interrupts; n++) {
    // Rounds stand somewhere in their middle.
    for (std::uint64_t steps = random() % c.most_steps; steps > 0; steps--) {
      (void)advance_all();
      (void)world.step();
    }
    check();
    std::vector<int> lost = c.lost;
    if (c.host_lost >= 0) {
      for (int r = 0; r < c.world.size; r++) {
        if (c.world.hosts[static_cast<std::size_t>(r)] == c.host_lost) lost.push_back(r);
      }
      world.kill_host(c.host_lost);
    } else {
      for (const int r : lost) world.kill(r);
    }
    for (const int r : lost) runners[static_cast<std::size_t>(r)] = runner(r);
    world.next_generation(lost);
    if (::testing::Test::HasFatalFailure()) return;
  }
  ASSERT_TRUE(world.run([&] { return !advance_all(); })) << "seed " << seed;
  if (c.sent_at_once != nullptr) *c.sent_at_once += world.sent_at_once();
  check();
  EXPECT_EQ(world.gaps, std::vector<std::string>()) << "seed " << seed;
  EXPECT_EQ(world.failures, std::vector<std::string>()) << "seed " << seed;
}

// A sum by a function of the program's, which fails when it is called for the `fails_at`-th time; 0: never.
struct Adding {
  int fails_at = 0, calls = 0;
  static std::int32_t run(const void* a, void* inout, std::size_t n, void* context) {
    Adding& self = *static_cast<Adding*>(context);
    const bool fails = ++self.calls == self.fails_at;
    for (std::size_t i = 0; i < n; i++) {
      std::uint64_t x, y;
      std::memcpy(&x, static_cast<const std::byte*>(a) + i * sizeof x, sizeof x);
      std::memcpy(&y, static_cast<std::byte*>(inout) + i * sizeof y, sizeof y);
      y = fails ? 0xbadbadbad : x + y;
      std::memcpy(static_cast<std::byte*>(inout) + i * sizeof y, &y, sizeof y);
    }
    return fails ? 7 : 0;
  }
};

class FailingReduction : public ::testing::Test {
 protected:
  struct Setup {
    World::Options world;
    std::uint64_t count = 5;
    bool in_place = false, blocking = false;
    int fails = 0;  // which rank's, at which call
    int fails_at = 1;
  };
  struct Life {
    Adding adding;
    std::vector<std::uint64_t> in, out;
    Call call;
  };
  static void begin(World& world, const Setup& s, int rank, std::unique_ptr<Life>& life, int fails_at) {
    life = std::make_unique<Life>();
    life->adding.fails_at = fails_at;
    for (std::uint64_t i = 0; i < s.count; i++) life->in.push_back(static_cast<std::uint64_t>(rank) * 1000 + i);
    life->out.resize(s.count);
    CallSpec& spec = life->call.spec;
    spec.collective = Collective::kAllreduce;
    spec.type = DataType::kCustom;
    spec.op = ReduceOp::kCustom;
    spec.custom = &Adding::run;
    spec.custom_context = &life->adding;
    spec.custom_bytes = sizeof(std::uint64_t);
    spec.count = s.count;
    spec.input = life->in.data();
    spec.output = s.in_place ? life->in.data() : life->out.data();
    life->call.blocking = s.blocking;
    ASSERT_TRUE(world.engine(rank).submit(kWorldGroup, life->call).ok());
  }
  static void expect_sum(const Setup& s, const Life& life) {
    EXPECT_TRUE(life.call.status.ok()) << life.call.status.describe();
    const auto k = static_cast<std::uint64_t>(s.world.size);
    const auto& got = s.in_place ? life.in : life.out;
    for (std::uint64_t i = 0; i < s.count; i++) ASSERT_EQ(got[i], k * (k - 1) / 2 * 1000 + k * i) << i;
  }
  // False: the function was not called so often.
  static bool survives(const Setup& s) {
    World world(s.world);
    world.takes_failures = false;
    std::vector<std::unique_ptr<Life>> lives(static_cast<std::size_t>(s.world.size));
    for (int r = 0; r < s.world.size; r++) {
      begin(world, s, r, lives[static_cast<std::size_t>(r)], r == s.fails ? s.fails_at : 0);
    }
    const auto all_finished = [&] {
      return std::ranges::all_of(lives, [](const auto& life) { return life->call.finished.load(); });
    };
    const auto& failing = lives[static_cast<std::size_t>(s.fails)];
    EXPECT_TRUE(world.run([&] { return all_finished() || world.engine(s.fails).has_trouble(); }));
    if (all_finished()) {
      EXPECT_LT(failing->adding.calls, s.fails_at);
      for (const auto& life : lives) expect_sum(s, *life);
      return false;
    }
    const int calls = failing->adding.calls;
    // An interrupt comes before the owner has heard of it.
    world.next_generation({});
    for (int n = 0; n < 100; n++) (void)world.step();
    const auto failure = world.engine(s.fails).take_failure();
    EXPECT_TRUE(failure && failure->by_program);
    if (!failure) return true;
    EXPECT_EQ(failure->status.code(), Code::kInternal);
    EXPECT_EQ(failure->peer, kNoRank);
    EXPECT_NE(failure->status.describe().find("the reduction has failed, and returned 7"), std::string::npos)
        << failure->status.describe();
    EXPECT_EQ(failing->adding.calls, calls) << "the function is not called again";
    EXPECT_FALSE(failing->call.finished);
    for (const auto& life : lives) {
      if (life->call.finished) expect_sum(s, *life);
    }
    world.kill(s.fails);
    EXPECT_TRUE(failing->call.finished);
    world.next_generation({s.fails});
    begin(world, s, s.fails, lives[static_cast<std::size_t>(s.fails)], 0);
    EXPECT_TRUE(world.run(all_finished));
    for (const auto& life : lives) expect_sum(s, *life);
    return true;
  }
};

// Small and large, light and not, wherever ranks sit, and whichever rank's fails in the middle of what.
TEST_F(FailingReduction, EndsItsLifeAndReachesNobody) {
  for (const auto algorithm :
       {schedule::Algorithm::kRing, schedule::Algorithm::kDirect, schedule::Algorithm::kButterfly,
        schedule::Algorithm::kTree, schedule::Algorithm::kStar}) {
    int failures = 0;
    for (const std::vector<int>& hosts : {std::vector{0, 0, 0}, std::vector{0, 1, 2}, std::vector{0, 0, 1, 1}}) {
      for (const std::uint64_t count : {5u, 5000u}) {
        for (int variant = 0; variant < 4; variant++) {
          for (int fails = 0; fails < static_cast<int>(hosts.size()); fails++) {
            for (const int fails_at : {1, 6}) {
              Setup s;
              s.world.size = static_cast<int>(hosts.size());
              s.world.hosts = hosts;
              s.world.algorithm = algorithm;
              s.world.segment_bytes = std::size_t{1} << 20;
              s.count = count;
              s.in_place = variant % 2 == 0;
              s.blocking = variant < 2;
              s.fails = fails;
              s.fails_at = fails_at;
              SCOPED_TRACE(std::string(schedule::to_string(algorithm)) + ", count " + std::to_string(count) +
                           ", variant " + std::to_string(variant) + ", rank " + std::to_string(fails) + " at call " +
                           std::to_string(fails_at) + " of " + std::to_string(hosts.size()));
              failures += survives(s) ? 1 : 0;
              if (HasFailure()) return;
            }
          }
        }
      }
    }
    EXPECT_GT(failures, 10) << schedule::to_string(algorithm);
  }
}

// In mode sync no call returns, anywhere, while disks do not take what was published; and none waits once they have.
TEST(RecoveryInModeSync, NothingIsSeenBeforeItIsOnDisk) {
  for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter, Collective::kAllToAll}) {
    for (const std::vector<int>& hosts : {std::vector{0, 0, 0}, std::vector{0, 1, 2}}) {
      World::Options options;
      options.hosts = hosts;
      options.sync = true;
      World world(options);
      const Program program{collective, 5000, 3, false};
      Runners runners(world, program, 3);
      world.disks_take = false;
      for (int n = 0; n < 3000; n++) {
        (void)runners.advance();
        (void)world.step();
      }
      for (int r = 0; r < 3; r++) EXPECT_TRUE(runners[r].results().empty());
      const auto waits = world.engine(0).describe_waits();
      EXPECT_FALSE(waits.empty()) << "it is said what is waited for";
      world.disks_take = true;
      ASSERT_TRUE(runners.finish());
      runners.expect_results();
      EXPECT_EQ(world.failures, std::vector<std::string>());
    }
  }
}

TEST(RecoveryInModeSync, InterruptsComeWhileDisksAreWaitedFor) {
  for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter, Collective::kBroadcast}) {
    for (const bool in_place : {false, true}) {
      for (std::uint64_t seed = 0; seed < 12; seed++) {
        Case c;
        c.program = {collective, 5000, 6, in_place};
        c.world.hosts = {0, 0, 1};
        c.world.sync = true;
        c.lost = seed % 3 == 0 ? std::vector<int>{} : std::vector{static_cast<int>(seed % 3)};
        survive(c, seed, 4);
        if (::testing::Test::HasFailure()) return;
      }
    }
  }
}

// Buffers move in pieces while their rounds run, and through interrupts and plans.
TEST(RecoveryOfMovingBuffers, EveryAlgorithmGivesTheSameBits) {
  for (const auto algorithm :
       {schedule::Algorithm::kRing, schedule::Algorithm::kDirect, schedule::Algorithm::kButterfly,
        schedule::Algorithm::kTree, schedule::Algorithm::kStar}) {
    for (const std::vector<int>& hosts : {std::vector{0, 0, 0}, std::vector{0, 1, 2}, std::vector{0, 0, 1}}) {
      for (const bool in_place : {false, true}) {
        for (std::uint64_t seed = 0; seed < 6; seed += kAddressSanitized ? 5 : 1) {
          SCOPED_TRACE(std::string(schedule::to_string(algorithm)) + (in_place ? ", in place, " : ", ") +
                       std::to_string(hosts[1]) + std::to_string(hosts[2]));
          Case c;
          c.program = {Collective::kAllreduce, 5000, 4, in_place};
          c.program.moves = true;
          c.world.algorithm = algorithm;
          c.world.hosts = hosts;
          c.world.sync = seed == 5;
          c.lost = seed % 3 == 0 ? std::vector<int>{} : std::vector{static_cast<int>(seed % 3)};
          survive(c, seed, 4);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// Inputs that peers read where the CPU cannot, and finals that are made of them at some later time: some ranks', or
// all. What was lent is overwritten as soon as its rank needs it no more.
TEST(RecoveryOfLentBuffers, GivesTheSameBits) {
  constexpr std::uint64_t kFewer = kAddressSanitized ? 4 : 1;
  Gpu::begun = Gpu::made = Gpu::brought = 0;
  for (const auto algorithm : {schedule::Algorithm::kRing, schedule::Algorithm::kButterfly}) {
    for (const std::uint32_t lends : {0b111u, 0b101u, 0b010u}) {
      for (const bool in_place : {false, true}) {
        for (std::uint64_t seed = 0; seed < 20 / kFewer; seed++) {
          SCOPED_TRACE(std::string(schedule::to_string(algorithm)) + (in_place ? ", in place, " : ", ") +
                       std::to_string(lends) + ", seed " + std::to_string(seed));
          Case c;
          c.program = {Collective::kAllreduce, 9000, 5, in_place};
          c.program.moves = true;
          c.program.lends = lends;
          c.world.algorithm = algorithm;
          c.world.hosts = {0, 0, 0};
          c.world.gpus = true;
          c.world.sync = seed % 7 == 5;
          c.lost = seed % 3 == 0 ? std::vector<int>{} : std::vector{static_cast<int>(seed % 3)};
          c.most_steps = 1500;
          survive(c, seed, 4);
          if (::testing::Test::HasFailure()) return;
        }
      }
    }
  }
  // It was about something.
  EXPECT_GT(Gpu::made, 300u / kFewer);
  EXPECT_GT(Gpu::brought, 300u / kFewer);
}

// I7: who replays says from whom.
TEST(Recovery, WhoReplaysSaysFromWhom) {
  World world(two_hosts());
  std::vector<std::uint64_t> buffers[3];
  Call calls[3];
  const auto issue = [&](int rank, int i) {
    buffers[i].assign(100, 1);
    make_sum(calls[i].spec, buffers[i].data(), buffers[i].size());
    ASSERT_TRUE(world.engine(rank).submit(kWorldGroup, calls[i]).ok());
  };
  issue(0, 0);
  issue(1, 1);
  ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished; }));
  world.kill_host(1);
  world.next_generation({1});
  issue(1, 2);
  const auto lines = world.engine(1).describe_waits();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0], "rank 1 asks rank 0 who holds round p.0");
  ASSERT_TRUE(world.run([&] { return calls[2].finished.load(); }));
  EXPECT_EQ(world.engine(1).describe_waits(), std::vector<std::string>());
  EXPECT_EQ(buffers[2], buffers[0]);
}

// I1: what the log gave before its gap was found stands where an input was. Only a plan's word stood for the round;
// it is finished from what was overwritten and what was not, never from all as if it were input.
TEST(Recovery, WhatAGapHasOverwrittenIsNotComputedAgain) {
  World::Options options;
  options.size = 3;
  options.hosts = {0, 1, 2};
  World world(options);
  constexpr std::size_t kCount = 1000;
  std::vector<std::uint64_t> buffers[3];
  std::unique_ptr<Call> calls[3];
  const auto issue = [&](int rank) {
    buffers[rank].assign(kCount, std::uint64_t{1} << rank);
    calls[rank] = std::make_unique<Call>();
    make_sum(calls[rank]->spec, buffers[rank].data(), kCount);
    ASSERT_TRUE(world.engine(rank).submit(kWorldGroup, *calls[rank]).ok());
  };
  const auto finished = [&](std::initializer_list<int> ranks) {
    return std::all_of(ranks.begin(), ranks.end(), [&](int r) { return calls[r]->finished.load(); });
  };
  const auto sums = [&](int rank) { return std::count(buffers[rank].begin(), buffers[rank].end(), 7u); };
  for (int r = 0; r < 3; r++) issue(r);
  ASSERT_TRUE(world.run([&] { return finished({0, 1, 2}); }));
  // Somebody has completed the next round, and is gone with its host. Half of it lies where rank 2 has died.
  issue(0);
  issue(1);
  const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(0), Sequence(1)}};
  const std::vector<std::uint64_t> half(kCount / 2, 7);
  ASSERT_TRUE(world.log(2).publish(key, {calls[0]->fingerprint, kCount * 8}, 0, std::as_bytes(std::span(half))).ok());
  world.kill(2);
  wire::Position done;
  done.set_rounds(2);
  world.next_generation({2}, {done});
  ASSERT_TRUE(world.run([&] { return world.gaps.size() == 2; }));
  for (int r = 0; r < 2; r++) ASSERT_EQ(sums(r), std::ssize(half)) << "rank " << r;
  // Survivors alone count now, and rank 2 is too far behind to speak of that round.
  world.next_generation({});
  issue(2);
  ASSERT_TRUE(world.run([&] { return finished({2}); }));
  issue(2);
  ASSERT_TRUE(world.run([&] { return finished({0, 1, 2}); }));
  for (int r = 0; r < 3; r++) {
    EXPECT_TRUE(calls[r]->status.ok()) << calls[r]->status.describe();
    EXPECT_EQ(sums(r), std::ssize(buffers[r])) << "rank " << r;
  }
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// Parts of results that a lost machine kept for other ranks are kept again: at the end none lies where it was first.
TEST(RecoveryOfOneSidedRounds, CopiesForOtherRanksAreFilledUp) {
  for (const Collective collective : {Collective::kReduceScatter, Collective::kReduce, Collective::kAllToAll}) {
    const std::vector<int> hosts = {0, 1, 2, 0};
    World world(on_hosts(hosts));
    const Program program{collective, 700, 5, false};
    Runners runners(world, program, 4);
    ASSERT_TRUE(runners.finish());
    for (const int host : {1, 0, 2, 1}) {
      const std::vector<int> lost = ranks_on(host, hosts);
      world.kill_host(host);
      runners.start_again(lost);
      world.next_generation(lost);
      ASSERT_TRUE(runners.finish()) << "after host " << host;
      expect_copies(world, 5, host);
      runners.expect_results();
    }
    EXPECT_EQ(world.gaps, std::vector<std::string>());
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

// However often those who replay are interrupted on their way, also before the first plan has reached them.
TEST(RecoveryOfOneSidedRounds, AnInterruptInTheMiddleOfAReplayFillsUpToo) {
  for (const Collective collective : {Collective::kReduceScatter, Collective::kReduce, Collective::kAllToAll}) {
    for (const int steps : {0, 1, 2, 4}) {
      if (kAddressSanitized && steps != 0 && steps != 2) continue;
      SCOPED_TRACE(steps);
      const std::vector<int> hosts = {0, 1, 2, 1};
      World world(on_hosts(hosts));
      const Program program{collective, 700, 12, false};
      Runners runners(world, program, 4);
      ASSERT_TRUE(runners.finish());
      for (const int host : {1, 0, 2}) {
        const std::vector<int> lost = ranks_on(host, hosts);
        world.kill_host(host);
        runners.start_again(lost);
        world.next_generation(lost);
        for (int n = 0; n < 2; n++) {
          for (int i = 0; i < steps; i++) {
            (void)runners.advance();
            (void)world.step();
          }
          ASSERT_FALSE(runners[lost.back()].finished());
          world.next_generation({});
        }
        ASSERT_TRUE(runners.finish()) << "after host " << host;
        expect_copies(world, 12, host);
        runners.expect_results();
      }
      EXPECT_EQ(world.gaps, std::vector<std::string>());
      EXPECT_EQ(world.failures, std::vector<std::string>());
    }
  }
}

// The same of rounds in which a machine was lost: what was final in them then is not computed again.
TEST(RecoveryOfOneSidedRounds, CopiesInRoundsThatAreResumedAreFilledUp) {
  for (const Collective collective : {Collective::kReduceScatter, Collective::kAllToAll}) {
    for (int steps = 1; steps < 100; steps += kAddressSanitized ? 33 : 11) {
      SCOPED_TRACE(steps);
      World world(on_hosts({0, 1, 2}));
      const Program program{collective, 2000, 2, false};
      Runners runners(world, program, 3);
      int left = steps;
      ASSERT_TRUE(world.run([&] { return !runners.advance() || left-- == 0; }));
      for (const int host : {1, 0, 2}) {
        world.kill_host(host);
        runners.start_again({host});
        world.next_generation({host});
        ASSERT_TRUE(runners.finish()) << "after host " << host;
        expect_copies(world, 2, host);
      }
      EXPECT_EQ(world.gaps, std::vector<std::string>());
      EXPECT_EQ(world.failures, std::vector<std::string>());
    }
  }
}

// A program that takes no checkpoint, and whose processes end again and again: the log segments that they leave have a
// bound, and what they hold is never lost.
TEST(RecoveryWithoutCheckpoints, HundredsOfLivesLeaveFewSegments) {
  for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter}) {
    for (const int hosts : {1, 2}) {
      World::Options options;
      options.size = 3;
      options.replicas = static_cast<std::uint32_t>(hosts);
      for (int r = 0; r < 3; r++) options.hosts.push_back(r * hosts / 3);
      World world(options);
      const Program program{collective, 1500, 8, false};
      Runners runners(world, program, 3);
      std::mt19937 random(7);
      for (int n = 0; n < 300; n++) {
        for (std::uint64_t steps = random() % 60; steps > 0; steps--) {
          (void)runners.advance();
          (void)world.step();
        }
        const int lost = static_cast<int>(random() % 3);
        world.kill(lost);
        runners.start_again({lost});
        world.next_generation({lost});
      }
      EXPECT_LE(world.most_segments, 2 + DeadSegments::most_waiting(3));
      ASSERT_TRUE(runners.finish());
      EXPECT_EQ(world.gaps, std::vector<std::string>());
      EXPECT_EQ(world.failures, std::vector<std::string>());
      runners.expect_results();
    }
  }
}

// All processes of a host end at once, with logs that are together more than one of them can hold: nobody takes over
// what the others will replay, and nobody replays more into its log than there is room for.
TEST(RecoveryWithoutCheckpoints, AHostOfEightDiesAtOnce) {
  World::Options options;
  options.size = 9;
  options.replicas = 1;
  options.hosts = {0, 0, 0, 0, 0, 0, 0, 0, 1};
  options.segment_bytes = std::size_t{1} << 20;
  options.algorithm = schedule::Algorithm::kRing;
  World world(options);
  const Program program{Collective::kAllreduce, 36'000, 8, false};
  Runners runners(world, program, options.size);
  const auto rounds = [&] { return world.engine(8).rounds_done(kWorldGroup, kPreamble).value_or(0); };
  const auto die = [&](const std::vector<int>& lost) {
    for (const int r : lost) world.kill(r);
    runners.start_again(lost);
    world.next_generation(lost);
  };
  ASSERT_TRUE(world.run([&] {
    (void)runners.advance();
    return rounds() == 6;
  }));
  std::uint64_t held = 0;
  for (int r = 0; r < 8; r++) held += world.log(r).bytes_held();
  EXPECT_GT(held, options.segment_bytes);
  die({0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_LT(world.log(0).bytes_held(), options.segment_bytes / 8) << "it has replayed nothing yet";
  // Again, in the middle of the replay.
  ASSERT_TRUE(world.run([&] {
    (void)runners.advance();
    return world.engine(3).rounds_done(kWorldGroup, kPreamble).value_or(0) == 3;
  }));
  die({0, 1, 2, 3, 4, 5, 6, 7});
  ASSERT_TRUE(runners.finish());
  EXPECT_EQ(world.gaps, std::vector<std::string>());
  EXPECT_EQ(world.failures, std::vector<std::string>());
  runners.expect_results();
}

// One rank's call of a sum of floats, whose bits show in which order it was made.
struct FloatSum {
  static constexpr std::size_t kCount = 4001;
  static std::vector<float> input(int rank) {
    std::vector<float> values(kCount);
    for (std::size_t i = 0; i < kCount; i++) values[i] = 1.0f / static_cast<float>(i * 16 + index(rank) * 3 + 1);
    return values;
  }
  // As the ring brackets it: a segment begins after its owner and ends with it.
  static std::vector<float> by(const std::vector<int>& order) {
    const std::size_t k = order.size();
    std::vector<std::vector<float>> in;
    for (const int rank : order) in.push_back(input(rank));
    std::vector<float> out;
    for (std::size_t owner = 0; owner < k; owner++) {
      const std::size_t end = out.size() + kCount / k + (owner < kCount % k ? 1 : 0);
      for (std::size_t i = out.size(); i < end; i++) {
        float sum = in[(owner + 1) % k][i];
        for (std::size_t next = 2; next <= k; next++) sum += in[(owner + next) % k][i];
        out.push_back(sum);
      }
    }
    return out;
  }
  FloatSum(World& world, int rank, GroupId group = kWorldGroup, const std::string& setup = "")
      : in(input(rank)), out(kCount, 0) {
    call.setup = setup;
    make_sum(call.spec, in.data(), out.data(), kCount);
    submitted = world.engine(rank).submit(group, call);
  }
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::vector<float> in, out;
  Call call;
  Status submitted;
};

class RingOrder : public testing::Test {
 protected:
  static World::Options options() {
    World::Options options;
    options.size = 4;
    options.hosts = {0, 1, 2, 3};
    options.algorithm = schedule::Algorithm::kRing;
    return options;
  }
  // From program's version 1 on.
  static std::vector<Engine::RingOrder> order() {
    return {{version_of_program(1), {Rank(0), Rank(2), Rank(1), Rank(3)}}};
  }
  bool finish(const std::vector<std::unique_ptr<FloatSum>>& sums) {
    return world_.run([&] {
      return std::ranges::all_of(sums, [](const auto& s) { return s->call.finished && s->call.status.ok(); });
    });
  }
  std::vector<float> sum(const std::string& setup = "", GroupId group = kWorldGroup,
                         const std::vector<int>& ranks = {0, 1, 2, 3}) {
    std::vector<std::unique_ptr<FloatSum>> sums;
    for (const int r : ranks) sums.push_back(std::make_unique<FloatSum>(world_, r, group, setup));
    EXPECT_TRUE(finish(sums));
    for (const auto& s : sums) EXPECT_EQ(s->out, sums.front()->out);
    return sums.front()->out;
  }
  const std::vector<float> by_rank_ = FloatSum::by({0, 1, 2, 3}), by_order_ = FloatSum::by({0, 2, 1, 3});
  World world_{options()};
};

TEST_F(RingOrder, BeginsWithItsVersion) {
  ASSERT_NE(by_rank_, by_order_);
  world_.order(order());
  world_.next_generation({});
  EXPECT_EQ(sum(), by_rank_) << "in the preamble";
  load_all(world_, {0, 1, 2, 3});
  EXPECT_EQ(sum(), by_rank_);
  EXPECT_EQ(sum(), by_rank_) << "by the schedule that was kept";
  take_all(world_, 4);
  EXPECT_EQ(sum(), by_order_) << "which is not kept over a version";
  EXPECT_EQ(sum("sketch"), by_rank_) << "set-up rounds are of no version";
  EXPECT_EQ(sum(), by_order_);
  for (int r = 1; r < 4; r++) ASSERT_TRUE(world_.engine(r).add_group(GroupId(7), {Rank(1), Rank(2), Rank(3)}, 1).ok());
  EXPECT_EQ(sum("", GroupId(7), {1, 2, 3}), FloatSum::by({2, 1, 3})) << "of those who are in a group";
  take_all(world_, 4);
  EXPECT_EQ(sum(), by_order_);
}

// A round that is interrupted, in the version before and in the first one that has the order.
TEST_F(RingOrder, IsTheSameInEveryAttemptOfARound) {
  load_all(world_, {0, 1, 2, 3});
  for (const bool in_force : {false, true}) {
    for (int steps = 5; steps < 60; steps += 7) {
      std::vector<std::unique_ptr<FloatSum>> sums;
      for (int r = 0; r < 4; r++) sums.push_back(std::make_unique<FloatSum>(world_, r));
      for (int i = 0; i < steps; i++) (void)world_.step();
      // The first of these plans is the one that names it.
      world_.order(order());
      world_.next_generation({});
      ASSERT_TRUE(finish(sums));
      for (const auto& s : sums) ASSERT_EQ(s->out, in_force ? by_order_ : by_rank_) << steps;
    }
    if (!in_force) take_all(world_, 4);
  }
  EXPECT_EQ(world_.failures, std::vector<std::string>());
}

// So that a group which is not among them has not been made (recovery/decide/deadlock.h).
TEST(Blocked, TellsOfGroupsThatWereDestroyedInTheVersion) {
  World world(two_hosts());
  const auto destroy = [&](std::uint64_t id) {
    make_pair_group(world, 0, GroupId(id));
    world.engine(0).remove_group(GroupId(id));
  };
  make_pair_group(world, 0, GroupId(9));
  destroy(7);
  std::vector<std::uint64_t> buffer;
  Call call;
  submit_sum(world, 0, call, buffer, 1);
  std::optional<wire::Blocked> blocked;
  ASSERT_TRUE(world.run([&] { return (blocked = world.engine(0).blocked()).has_value(); }));
  EXPECT_TRUE(blocked->complete());
  std::vector<std::uint64_t> groups;
  for (const wire::BegunRounds& begun : blocked->begun()) groups.push_back(begun.group());
  EXPECT_EQ(groups, (std::vector<std::uint64_t>{0, 7, 9}));
  for (std::uint64_t id = 100; id < 100 + limits::kMaxBlockedGroups; id++) destroy(id);
  blocked = world.engine(0).blocked();
  ASSERT_TRUE(blocked);
  EXPECT_FALSE(blocked->complete()) << "there is no room for all of them";
  EXPECT_EQ(blocked->begun_size(), 2);
}

// The rest would be computed from an input that the final part has overwritten: no number then, but an error.
TEST(RecoveryAtItsLimits, WhatIsFinalAndNotLoggedIsNotComputedAgain) {
  World::Options options;
  options.size = 2;
  options.replicas = 1;
  options.hosts = {0, 1};
  options.algorithm = schedule::Algorithm::kTree;
  World world(options);
  std::vector<std::uint64_t> buffers[2];
  Call calls[3];
  const auto issue = [&](int rank, Call& call) { submit_sum(world, rank, call, buffers[rank], 100'000); };
  issue(0, calls[0]);
  issue(1, calls[1]);
  // Nothing fits into the log of the rank that gets the result from the other.
  const auto has_final = [&](int rank) { return std::count(buffers[rank].begin(), buffers[rank].end(), 3u) != 0; };
  ASSERT_TRUE(world.run([&] { return has_final(0) && has_final(1); }));
  const RecordKey sum{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(0), Sequence(0)}};
  const int owner = world.log(0).reader()->held(sum).empty() ? 1 : 0, other = 1 - owner;
  ASSERT_TRUE(world.log(other).reader()->held(sum).empty());
  ASSERT_FALSE(calls[other].finished);
  std::uint64_t filled = 0;
  for (const std::size_t size : {100'000, 1000, 1}) {
    const std::vector<std::byte> filling(size);
    RecordInfo info;
    info.fingerprint.collective = Collective::kPoint;
    info.fingerprint.type = DataType::kU8;
    info.total_bytes = size;
    const auto key = [&] {
      return RecordKey{RecordKind::kMessage, {Timeline(0), GroupId(1), Version(0), Sequence(filled++)}};
    };
    while (world.log(other).publish(key(), info, 0, filling).ok()) {
    }
  }
  world.kill_host(owner);
  world.next_generation({owner});
  issue(owner, calls[2]);
  EXPECT_FALSE(world.run([&] { return calls[other].finished || calls[2].finished; }));
  ASSERT_FALSE(world.failures.empty());
  EXPECT_NE(world.failures[0].find("known here alone"), std::string::npos) << world.failures[0];
  EXPECT_NE(world.failures[0].find("cannot log round"), std::string::npos) << world.failures[0];
}

// A piece that an extent has no room for is two records, and its owner is killed between them: what is there of it is
// no piece, and nobody was sent anything of it.
TEST(RecoveryAtItsLimits, HalfAPieceInTheLogIsComputedAgain) {
  for (const auto algorithm : {schedule::Algorithm::kRing, schedule::Algorithm::kButterfly}) {
    for (const std::size_t half : {std::size_t{8}, std::size_t{1000}, std::size_t{1004}}) {
      World::Options options;
      options.algorithm = algorithm;
      World world(options);
      std::vector<std::uint64_t> buffers[3];
      Call calls[4];
      const auto issue = [&](int rank, Call& call) { submit_sum(world, rank, call, buffers[rank], 5000); };
      for (int r = 0; r < 3; r++) issue(r, calls[r]);
      const std::vector<std::uint64_t> sums(5000, 6);
      const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(0), Sequence(0)}};
      const RecordInfo info{calls[0].fingerprint, 40'000};
      ASSERT_TRUE(world.log(0).publish(key, info, 0, std::as_bytes(std::span(sums)).first(half)).ok());
      world.kill(0);
      world.next_generation({0});
      issue(0, calls[3]);
      ASSERT_TRUE(world.run([&] { return calls[1].finished && calls[2].finished && calls[3].finished; }));
      for (const auto& buffer : buffers) EXPECT_EQ(buffer, sums);
      EXPECT_EQ(world.failures, std::vector<std::string>());
    }
  }
}

// The next round is one like any other.
TEST(RecoveryAtItsLimits, ARoundAfterAResumedOneTellsPlacesAgain) {
  World world({});
  std::vector<std::uint64_t> buffers[3];
  Call calls[7];
  const auto issue = [&](int rank, Call& call) { submit_sum(world, rank, call, buffers[rank], 5000); };
  for (int r = 0; r < 3; r++) issue(r, calls[r]);
  const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(0), Sequence(0)}};
  ASSERT_TRUE(world.run([&] { return !world.log(0).reader()->held(key).empty(); }));
  ASSERT_FALSE(calls[0].finished || calls[1].finished || calls[2].finished);
  world.kill(0);
  world.next_generation({0});
  issue(0, calls[3]);
  ASSERT_TRUE(world.run([&] { return calls[1].finished && calls[2].finished && calls[3].finished; }));
  const std::size_t before = world.places_told();
  for (int r = 0; r < 3; r++) issue(r, calls[4 + r]);
  ASSERT_TRUE(world.run([&] { return calls[4].finished && calls[5].finished && calls[6].finished; }));
  EXPECT_GT(world.places_told(), before);
  for (const auto& buffer : buffers) EXPECT_EQ(buffer, std::vector<std::uint64_t>(5000, 6));
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// More pieces of results than a report may hold: what stands in this life's buffers is told, the rest computed again.
TEST(RecoveryAtItsLimits, AReportIsNeverTooLong) {
  World::Options options;
  options.size = 2;
  options.hosts = {0, 1};
  options.algorithm = schedule::Algorithm::kRing;
  World world(options);
  constexpr std::size_t kCount = 100'000;
  std::vector<std::uint64_t> buffers[2];
  Call calls[2];
  for (int r = 0; r < 2; r++) {
    buffers[r].assign(kCount, static_cast<std::uint64_t>(r) + 1);
    make_sum(calls[r].spec, buffers[r].data(), kCount);
    ASSERT_TRUE(world.engine(r).submit(kWorldGroup, calls[r]).ok());
  }
  const auto finals = [&](int r) { return std::count(buffers[r].begin(), buffers[r].end(), 3u); };
  ASSERT_TRUE(world.run([&] { return finals(0) > 0 && finals(1) > 0; }));
  ASSERT_FALSE(calls[0].finished || calls[1].finished);
  // What another rank of the host has published of a round that this one has not entered.
  const GroupId other(77);
  for (int r = 0; r < 2; r++) ASSERT_TRUE(world.engine(r).add_group(other, {Rank(0), Rank(1)}, 1).ok());
  const RecordKey key{RecordKind::kRound, {Timeline(0), other, Version(0), Sequence(0)}};
  const std::vector<std::byte> piece(8);
  for (std::uint64_t i = 0; i < 20'000; i++) {
    ASSERT_TRUE(world.log(0).publish(key, {calls[0].fingerprint, 320'000}, 16 * i, piece).ok());
  }
  const auto ranges = [](const WorkerMachine::Standing& standing, GroupId group) {
    std::size_t n = 0;
    for (const wire::Position& p : standing.positions) n += GroupId(p.group()) == group ? p.final_size() : 0;
    return n;
  };
  const auto standing = world.engine(0).suspend();
  EXPECT_EQ(ranges(standing, other), 0u);
  EXPECT_GT(ranges(standing, kWorldGroup), 0u);
  world.next_generation({});
  ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished; }));
  EXPECT_EQ(finals(0), static_cast<std::ptrdiff_t>(kCount));
  EXPECT_EQ(finals(1), static_cast<std::ptrdiff_t>(kCount));
  EXPECT_EQ(world.failures, std::vector<std::string>());
}

// Some ranks run small rounds step by step, others by the executor, and interrupts meet them anywhere.
class RecoveryOfLightRounds : public ::testing::TestWithParam<Collective> {};

TEST_P(RecoveryOfLightRounds, InterruptedOnesEndWithTheSameBytes) {
  std::size_t sent_at_once = 0;
  constexpr std::uint64_t kSeeds = kAddressSanitized ? 5 : 16;
  for (const int size : {2, 3, 5}) {
    for (std::uint64_t seed = 1; seed <= kSeeds; seed++) {
      Case c;
      c.program = {GetParam(), seed % 5, 200, seed % 2 == 0 && GetParam() != Collective::kAllToAll};
      c.program.blocking = seed % 4 == 0 ? 0x15 : seed % 4 == 1 ? 0x0a : 0xff;
      c.world.size = size;
      const int hosts = seed % 3 == 0 ? 2 : 1;
      for (int r = 0; r < size; r++) c.world.hosts.push_back(r * hosts / size);
      c.world.pipes = seed % 5 != 0;
      c.most_steps = 60;
      c.sent_at_once = &sent_at_once;
      survive(c, seed, 6);  // a link
      c.lost = {static_cast<int>(seed) % size};
      survive(c, seed + 100, 6);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_GT(sent_at_once, kAddressSanitized ? 300u : 3000u);
}

INSTANTIATE_TEST_SUITE_P(All, RecoveryOfLightRounds,
                         ::testing::Values(Collective::kAllreduce, Collective::kReduce, Collective::kBroadcast,
                                           Collective::kAllgather, Collective::kReduceScatter, Collective::kAllToAll,
                                           Collective::kReduceScatterv, Collective::kAllToAllv),
                         [](const auto& p) { return std::string(to_string(p.param)); });

class Recovery : public ::testing::TestWithParam<std::tuple<Collective, int, bool>> {};

TEST_P(Recovery, InterruptedRoundsEndWithTheSameBytes) {
  const auto [collective, hosts, in_place] = GetParam();
  if (in_place && collective == Collective::kAllToAll) return;  // is never in place
  for (const int size : {2, 3, 4}) {
    for (std::uint64_t seed = 1; seed <= 6; seed++) {
      Case c;
      c.program = {collective, seed % 2 == 0 ? 40u : 5000u, 3, in_place};
      c.world.size = size;
      for (int r = 0; r < size; r++) c.world.hosts.push_back(hosts == 1 ? 0 : r * hosts / size);
      c.world.pipes = seed % 3 != 0;
      survive(c, seed, 2);  // a link
      c.lost = {static_cast<int>(seed) % size};
      survive(c, seed + 100, 3);
      if (hosts > 1 && size >= hosts) {
        c.lost.clear();
        c.host_lost = static_cast<int>(seed) % hosts;
        survive(c, seed + 200, 1);
      }
      if (HasFatalFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, Recovery,
                         ::testing::Combine(::testing::Values(Collective::kAllreduce, Collective::kReduce,
                                                              Collective::kBroadcast, Collective::kAllgather,
                                                              Collective::kReduceScatter, Collective::kAllToAll),
                                            ::testing::Values(1, 2), ::testing::Bool()),
                         [](const auto& p) {
                           return std::string(to_string(std::get<0>(p.param))) + "_hosts" +
                                  std::to_string(std::get<1>(p.param)) + (std::get<2>(p.param) ? "_in_place" : "");
                         });

}  // namespace
}  // namespace warren::worker::recovering
