// f32 that travels as f16 or bf16: the bounds of docs/algorithms.md, the same bits on all ranks and in all lives, and
// what ranks that disagree are told.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <thread>

#include "tests/e2e/cluster.h"

namespace warren {
namespace {

using testing::Cluster;

struct Precision {
  Wire wire;
  double unit;  // u: half the distance from 1 to the next value
  double step;  // η: half the distance of the smallest values
  const char* name;
};
constexpr Precision kF16{Wire::f16, 0x1p-11, 0x1p-25, "f16"};
constexpr Precision kBF16{Wire::bf16, 0x1p-8, 0x1p-134, "bf16"};

float rounded(Wire wire, float value) {
  return wire == Wire::f16 ? static_cast<float>(float16(value)) : static_cast<float>(bfloat16(value));
}

// Of all scales, and with signs, so that sums cancel; K of them stay within f16.
float input(int rank, std::size_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) * 7919 + i + 1) * 0x9e3779b97f4a7c15u;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 29;
  const float fraction = 1.0f + static_cast<float>(x & 0x7fffff) * 0x1p-23f;
  const int exponent = static_cast<int>((x >> 23) % 40) - 28;
  return std::ldexp((x >> 40 & 1) != 0 ? -fraction : fraction, exponent);
}

std::vector<float> inputs(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; i++) values[i] = input(rank, i);
  return values;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// All ranks have the same bits, they are values of the wire type, and they are within the bound.
void check(Communicator& comm, const Precision& p, Op op, const std::vector<float>& got) {
  const int ranks = comm.world_size();
  const auto k = static_cast<double>(ranks);
  const std::vector<float> all = comm.allgather(got);
  for (int r = 0; r < ranks; r++) {
    const std::vector<float> theirs(all.begin() + static_cast<std::ptrdiff_t>(got.size()) * r,
                                    all.begin() + static_cast<std::ptrdiff_t>(got.size()) * (r + 1));
    ASSERT_TRUE(same_bits(theirs, got)) << "rank " << r;
  }
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); i++) {
    ASSERT_EQ(rounded(p.wire, got[i]), got[i]);
    double sum = 0, magnitude = 0;
    float least = std::numeric_limits<float>::infinity(), most = -least;
    for (int r = 0; r < ranks; r++) {
      const float x = input(r, i);
      sum += x;
      magnitude += std::fabs(x);
      least = std::min(least, x);
      most = std::max(most, x);
    }
    if (op == Op::min || op == Op::max) {
      ASSERT_EQ(got[i], rounded(p.wire, op == Op::min ? least : most)) << i;
      continue;
    }
    double bound = 1.01 * ((2 * p.unit + k * 0x1p-24) * magnitude + (k + 1) * p.step);
    if (op == Op::average) {
      sum /= k;
      bound = 1.01 * ((2 * p.unit + (k + 1) * 0x1p-24) * magnitude / k + 2 * p.step);
    }
    worst = std::max(worst, std::fabs(got[i] - sum) / bound);
    ASSERT_LE(std::fabs(got[i] - sum), bound) << i << ": " << got[i] << ", exactly " << sum;
  }
  // It is a bound that is nearly met: a wider type, or none, would show.
  if (ranks > 1 && (op == Op::sum || op == Op::average)) {
    EXPECT_GT(worst, 0.3);
  }
}

TEST(WireTypes, StayWithinTheirBoundsWithTheSameBitsEverywhere) {
  for (const std::string algorithm : {"auto", "ring", "tree", "star", "butterfly", "direct"}) {
    for (const int size : {1, 2, 3, 5}) {
      SCOPED_TRACE(algorithm + " on " + std::to_string(size));
      Cluster cluster;
      cluster.run_well(
          size,
          [&](Communicator& comm) {
            for (const Precision& p : {kF16, kBF16}) {
              for (const std::size_t count : {std::size_t{1000}, std::size_t{50'001}}) {
                for (const Op op : {Op::sum, Op::average, Op::min, Op::max}) {
                  SCOPED_TRACE(std::string(p.name) + ", " + std::to_string(count) + " by " +
                               std::to_string(static_cast<int>(op)));
                  std::vector<float> in = inputs(comm.rank(), count), out(count);
                  comm.wire(p.wire).allreduce(in, out, op);
                  EXPECT_EQ(in, inputs(comm.rank(), count)) << "the input stays";
                  check(comm, p, op, out);
                  Handle handle = comm.wire(p.wire).allreduce_async(std::span(in), op);
                  handle.wait();
                  EXPECT_TRUE(same_bits(in, out)) << "in place, asynchronous";
                }
              }
            }
          },
          [&](int r, Options& o) {
            o.algorithm = algorithm;
            o.host_id = o.domain_id = "host-" + std::to_string(r % 2);
          });
    }
  }
}

TEST(WireTypes, SharesAreThoseOfTheWhole) {
  Cluster cluster;
  cluster.run_well(3, [](Communicator& comm) {
    constexpr std::size_t kShare = 20'000;
    for (const Precision& p : {kF16, kBF16}) {
      const std::vector<float> in = inputs(comm.rank(), 3 * kShare);
      const std::vector<float> part = comm.wire(p.wire).reduce_scatter(in);
      const std::vector<float> whole = comm.allgather(part);
      check(comm, p, Op::sum, whole);
      // The shares have been rounded already.
      EXPECT_TRUE(same_bits(comm.wire(p.wire).allgather(part), whole));
      std::vector<float> got(3 * kShare), own = inputs(comm.rank(), kShare);
      comm.wire(p.wire).allgather(own, got);
      for (std::size_t i = 0; i < got.size(); i++) {
        ASSERT_EQ(got[i], rounded(p.wire, input(static_cast<int>(i / kShare), i % kShare))) << i;
      }
    }
  });
}

TEST(WireTypes, SendHalfTheBytes) {
  Cluster cluster;
  cluster.run_well(
      2,
      [](Communicator& comm) {
        std::vector<float> v(1 << 20, 1.0f);
        const std::uint64_t before = comm.bytes_sent();
        comm.allreduce(std::span(v));
        const std::uint64_t wide = comm.bytes_sent() - before;
        comm.wire(Wire::bf16).allreduce(std::span(v));
        EXPECT_EQ(2 * (comm.bytes_sent() - before - wide), wide);
        EXPECT_EQ(v[77], 4.0f);
      },
      [](int, Options& o) { o.transport = "tcp"; });
}

TEST(WireTypes, WhatIsBeyondF16IsInfiniteOnAllRanks) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> mine{40'000.0f, 65'504.0f, 70'000.0f, comm.rank() == 0 ? nan : 1.0f, 1e-9f, -0.0f};
    const std::vector<float> sum = comm.wire(Wire::f16).allreduce(mine);
    EXPECT_EQ(sum[0], infinity);
    EXPECT_EQ(comm.wire(Wire::f16).allreduce(mine, Op::average)[1], 65'504.0f) << "summed in f32";
    EXPECT_EQ(sum[2], infinity);
    EXPECT_TRUE(std::isnan(sum[3]));
    EXPECT_EQ(sum[4], 0.0f);
    EXPECT_TRUE(std::signbit(sum[5]));
    EXPECT_EQ(comm.wire(Wire::bf16).allreduce(std::vector<float>{}), std::vector<float>{});
  });
}

TEST(WireTypes, ArePartOfTheCall) {
  const std::pair<Wire, Wire> differ[] = {{Wire::bf16, Wire::f32}, {Wire::bf16, Wire::f16}};
  for (const auto& [one, other] : differ) {
    Cluster cluster;
    const auto errors = cluster.run(
        2, [&](Communicator& comm) { (void)comm.wire(comm.rank() == 0 ? one : other).allreduce(1.0f); }, {}, false);
    for (const auto& e : errors) {
      ASSERT_TRUE(e.has_value());
      EXPECT_EQ(e->code(), ErrorCode::desync);
      const std::string text = e->what();
      EXPECT_NE(text.find("allreduce(f32 as bf16, sum, count 1"), std::string::npos) << text;
      EXPECT_NE(text.find(other == Wire::f32 ? "allreduce(f32, sum" : "allreduce(f32 as f16, sum"), std::string::npos)
          << text;
    }
  }
  // bf16 of the program's own is another call than f32 that travels as bf16.
  Cluster cluster;
  const auto errors = cluster.run(
      2,
      [&](Communicator& comm) {
        if (comm.rank() == 0) {
          (void)comm.wire(Wire::bf16).allreduce(1.0f);
        } else {
          (void)comm.allreduce(bfloat16(1.0f));
        }
      },
      {}, false);
  EXPECT_EQ(errors[0]->code(), ErrorCode::desync);
}

TEST(WireTypes, AreForOneCallAndRefusedElsewhere) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    const auto refused = [&](auto call) {
      try {
        call();
        ADD_FAILURE() << "was accepted";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << e.what();
      }
      // The one after it has no wire type.
      EXPECT_EQ(comm.allreduce(1.00390625f), 2.0078125f);
    };
    refused([&] { (void)comm.wire(Wire::bf16).allreduce(1); });
    refused([&] { (void)comm.wire(Wire::bf16).allreduce(1.0); });
    refused([&] { (void)comm.wire(Wire::bf16).allreduce(1.0f, Op::product); });
    refused([&] { (void)comm.wire(Wire::bf16).broadcast(1.0f, 0); });
    refused([&] { comm.wire(Wire::bf16).barrier(); });
    refused([&] { (void)comm.wire(static_cast<Wire>(WARREN_F64)); });
    EXPECT_EQ(comm.wire(Wire::bf16).allreduce(1.00390625f), 2.0f);
    EXPECT_EQ(comm.wire(Wire::bf16).wire(Wire::f32).allreduce(1.00390625f), 2.0078125f);
    comm.wire(Wire::bf16);
    std::vector<float> message{1.00390625f};
    if (comm.rank() == 0) comm.send(message, 1);
    if (comm.rank() == 1) comm.recv(message, 0);
    EXPECT_EQ(message[0], 1.00390625f) << "a message is no collective";
    EXPECT_EQ(comm.allreduce(1.00390625f), 2.0f);
    std::optional<Communicator> group = comm.split(0);
    EXPECT_EQ(group->wire(Wire::f16).once("scale").allreduce(2049.0f), 4096.0f);
    EXPECT_EQ(comm.wire(Wire::f16).once("sketch").allreduce(2049.0f), 4096.0f);
    EXPECT_EQ(comm.wire(Wire::f16).once("sketch").allreduce(0.0f), 4096.0f) << "replayed";
    float prepared = 0;
    comm.wire(Wire::bf16).allreduce(std::span(&prepared, 1), Op::sum, [&] { prepared = 1.00390625f; });
    EXPECT_EQ(prepared, 2.0f);
  });
}

// A life that is over has left results; its next one reads them, whatever its inputs are.
TEST(WireTypes, AreReplayedToTheSameBits) {
  constexpr std::size_t kCount = 60'000;
  Cluster cluster;
  const auto options = [&](int r) {
    Options o = cluster.options(r, 2);
    o.host_id = o.domain_id = "host-" + std::to_string(r);
    o.replicas = 2;
    return o;
  };
  const auto rounds = [](Communicator& comm, std::vector<float>& all, std::vector<float> in) {
    std::vector<float> sum(kCount), part(kCount / 2), whole(kCount);
    comm.wire(Wire::bf16).allreduce(in, sum);
    comm.wire(Wire::f16).reduce_scatter(in, part);
    comm.wire(Wire::bf16).allgather(part, whole);
    for (const auto* v : {&sum, &part, &whole}) all.insert(all.end(), v->begin(), v->end());
  };
  std::promise<void> done;
  std::thread other([&] {
    try {
      Communicator comm = Communicator::create(options(0));
      std::vector<float> all;
      rounds(comm, all, inputs(0, kCount));
      done.get_future().wait();
      EXPECT_EQ(comm.allreduce(1), 2);
      comm.finalize();
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
  });
  std::vector<float> first, second;
  {
    Communicator comm = Communicator::create(options(1));
    rounds(comm, first, inputs(1, kCount));
    EXPECT_EQ(first[0], rounded(Wire::bf16, first[0]));
  }
  done.set_value();
  Communicator comm = Communicator::create(options(1));
  rounds(comm, second, std::vector<float>(kCount, 3.0f));
  EXPECT_TRUE(same_bits(first, second));
  EXPECT_EQ(comm.allreduce(1), 2);
  comm.finalize();
  other.join();
}

}  // namespace
}  // namespace warren
