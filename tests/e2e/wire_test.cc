// f32 that travels as f16, bf16 or i8: the bounds of docs/algorithms.md, the same bits on all ranks and in all lives,
// and what ranks that disagree are told.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <future>
#include <limits>
#include <thread>

#include "tests/e2e/cluster.h"
#include "tests/sanitized.h"

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
constexpr Precision kI8{Wire::i8, 1.0 / 253, 0x1p-127, "i8"};  // relative to the largest of a block
constexpr std::size_t kBlock = 256;

float rounded(Wire wire, float value) {
  return wire == Wire::f16 ? static_cast<float>(float16(value)) : static_cast<float>(bfloat16(value));
}

// Of all scales, and with signs, so that sums cancel; K of them stay within f16. For blocks, of all scales from block
// to block: what is small beside the largest of its block would show nothing.
float input(const Precision& p, int rank, std::size_t i) {
  std::uint64_t x = (static_cast<std::uint64_t>(rank) * 7919 + i + 1) * 0x9e3779b97f4a7c15u;
  x ^= x >> 31;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 29;
  if (p.wire == Wire::i8) {
    const int exponent = static_cast<int>((i / kBlock + static_cast<std::size_t>(rank) * 3) % 40) - 28;
    return std::ldexp(static_cast<float>(x & 0xffffff) * 0x1p-23f - 1.0f, exponent);
  }
  const float fraction = 1.0f + static_cast<float>(x & 0x7fffff) * 0x1p-23f;
  const int exponent = static_cast<int>((x >> 23) % 40) - 28;
  return std::ldexp((x >> 40 & 1) != 0 ? -fraction : fraction, exponent);
}

std::vector<float> inputs(const Precision& p, int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; i++) values[i] = input(p, rank, i);
  return values;
}

// What errors are relative to, for each of these values, which are shares: its magnitude, or as i8 that of the largest
// of its block.
std::vector<double> magnitudes(const Precision& p, const std::vector<float>& values, std::size_t share) {
  std::vector<double> out(values.size());
  for (std::size_t i = 0; i < values.size(); i++) out[i] = std::fabs(values[i]);
  if (p.wire != Wire::i8) return out;
  for (std::size_t begin = 0, end = 0; begin < out.size(); begin = end) {
    end = std::min({begin + kBlock, (begin / share + 1) * share, out.size()});
    const auto first = out.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = out.begin() + static_cast<std::ptrdiff_t>(end);
    std::fill(first, last, *std::max_element(first, last));
  }
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// All ranks have the same bits, they are values of the wire type, and they are within the bound.
void check(Communicator& comm, const Precision& p, Op op, const std::vector<float>& got, std::size_t share) {
  const int ranks = comm.world_size();
  const auto k = static_cast<double>(ranks);
  const std::vector<float> all = comm.allgather(got);
  for (int r = 0; r < ranks; r++) {
    const std::vector<float> theirs(all.begin() + static_cast<std::ptrdiff_t>(got.size()) * r,
                                    all.begin() + static_cast<std::ptrdiff_t>(got.size()) * (r + 1));
    ASSERT_TRUE(same_bits(theirs, got)) << "rank " << r;
  }
  std::vector<double> magnitude_of(got.size());
  for (int r = 0; r < ranks; r++) {
    const auto of_rank = magnitudes(p, inputs(p, r, got.size()), share);
    for (std::size_t i = 0; i < got.size(); i++) magnitude_of[i] += of_rank[i];
  }
  const std::vector<double> largest = magnitudes(p, got, share);
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); i++) {
    if (p.wire == Wire::i8) {
      const double steps = got[i] / largest[i] * 127;
      ASSERT_NEAR(steps, std::nearbyint(steps), 1e-4) << i;
    } else {
      ASSERT_EQ(rounded(p.wire, got[i]), got[i]);
    }
    const double magnitude = magnitude_of[i];
    double sum = 0;
    float least = std::numeric_limits<float>::infinity(), most = -least;
    for (int r = 0; r < ranks; r++) {
      const float x = input(p, r, i);
      sum += x;
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
            for (const Precision& p : {kF16, kBF16, kI8}) {
              for (const std::size_t count : {std::size_t{1000}, std::size_t{50'001}}) {
                if (kAddressSanitized && count > 1000 && size != 3) continue;
                for (const Op op : {Op::sum, Op::average, Op::min, Op::max}) {
                  if (p.wire == Wire::i8 && op != Op::sum && op != Op::average) continue;
                  SCOPED_TRACE(std::string(p.name) + ", " + std::to_string(count) + " by " +
                               std::to_string(static_cast<int>(op)));
                  std::vector<float> in = inputs(p, comm.rank(), count), out(count);
                  comm.wire(p.wire).allreduce(in, out, op);
                  EXPECT_EQ(in, inputs(p, comm.rank(), count)) << "the input stays";
                  check(comm, p, op, out, count);
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
    for (const std::size_t share : {std::size_t{20'000}, 80 * kBlock}) {
      for (const Precision& p : {kF16, kBF16, kI8}) {
        SCOPED_TRACE(std::string(p.name) + ", " + std::to_string(share));
        const std::vector<float> in = inputs(p, comm.rank(), 3 * share);
        const std::vector<float> part = comm.wire(p.wire).reduce_scatter(in);
        const std::vector<float> whole = comm.allgather(part);
        check(comm, p, Op::sum, whole, share);
        std::vector<float> got(3 * share), own = inputs(p, comm.rank(), share), all;
        comm.wire(p.wire).allgather(own, got);
        for (int r = 0; r < 3; r++) {
          const auto theirs = inputs(p, r, share);
          all.insert(all.end(), theirs.begin(), theirs.end());
        }
        const auto magnitude = magnitudes(p, all, share);
        for (std::size_t i = 0; i < got.size(); i++) {
          ASSERT_LE(std::fabs(static_cast<double>(got[i]) - all[i]), std::max(p.unit * magnitude[i], p.step)) << i;
          if (p.wire != Wire::i8) {
            ASSERT_EQ(got[i], rounded(p.wire, all[i])) << i;
          }
        }
        // What has been rounded already; the scale of a block may be rounded anew.
        if (p.wire != Wire::i8) {
          EXPECT_TRUE(same_bits(comm.wire(p.wire).allgather(part), whole));
        }
      }
    }
  });
}

TEST(WireTypes, SendHalfTheBytesOrAQuarter) {
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
        const std::uint64_t at = comm.bytes_sent();
        comm.wire(Wire::i8).allreduce(std::span(v));
        EXPECT_EQ((comm.bytes_sent() - at) * kBlock * sizeof(float), wide * (kBlock + sizeof(float)));
        EXPECT_NEAR(v[77], 8.0f, 1e-5);
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

TEST(WireTypes, ANanOrInfinityMakesNansOfItsBlockOnAllRanks) {
  Cluster cluster;
  cluster.run_well(3, [](Communicator& comm) {
    constexpr std::size_t kCount = 5 * kBlock + 10;
    const float largest = std::numeric_limits<float>::max();
    std::vector<float> mine(kCount, 1.0f);
    if (comm.rank() == 0) mine[5] = std::numeric_limits<float>::quiet_NaN();
    if (comm.rank() == 1) mine[3 * kBlock - 1] = -std::numeric_limits<float>::infinity();
    if (comm.rank() != 2) mine[3 * kBlock] = largest;  // the sum is beyond f32
    mine[kCount - 1] = -0.0f;
    for (const char* algorithm : {"ring", "tree", "star", "butterfly", "direct"}) {
      const std::vector<float> sum = comm.algorithm(algorithm).wire(Wire::i8).allreduce(mine);
      for (std::size_t i = 0; i < kCount; i++) {
        const std::size_t block = i / kBlock;
        const bool broken = block == 0 || block == 2 || block == 3;
        ASSERT_EQ(std::isnan(sum[i]), broken) << algorithm << " " << i;
        if (!broken) {
          ASSERT_NEAR(sum[i], i == kCount - 1 ? 0.0f : 3.0f, 1e-5) << i;
        }
      }
      EXPECT_FALSE(std::signbit(sum[kCount - 1])) << "an integer has one zero";
    }
    EXPECT_EQ(comm.wire(Wire::i8).allreduce(std::vector<float>{}), std::vector<float>{});
    EXPECT_EQ(comm.wire(Wire::i8).allreduce(std::vector<float>(3, 0.0f)), std::vector<float>(3, 0.0f));
  });
}

TEST(WireTypes, ArePartOfTheCall) {
  const std::pair<Wire, Wire> differ[] = {
      {Wire::bf16, Wire::f32}, {Wire::bf16, Wire::f16}, {Wire::bf16, Wire::i8}, {Wire::i8, Wire::f32}};
  const auto name = [](Wire wire) {
    return wire == Wire::bf16  ? "allreduce(f32 as bf16, sum, count 1"
           : wire == Wire::f16 ? "allreduce(f32 as f16, sum, count 1"
           : wire == Wire::i8  ? "allreduce(f32 as i8, sum, count 1"
                               : "allreduce(f32, sum, count 1";
  };
  for (const auto& pair : differ) {
    const Wire one = pair.first, other = pair.second;
    Cluster cluster;
    const auto errors = cluster.run(
        2, [&](Communicator& comm) { (void)comm.wire(comm.rank() == 0 ? one : other).allreduce(1.0f); }, {}, false);
    for (const auto& e : errors) {
      ASSERT_TRUE(e.has_value());
      EXPECT_EQ(e->code(), ErrorCode::desync);
      const std::string text = e->what();
      EXPECT_NE(text.find(name(one)), std::string::npos) << text;
      EXPECT_NE(text.find(name(other)), std::string::npos) << text;
    }
  }
  // As many blocks, of other values.
  {
    Cluster cluster;
    const auto errors = cluster.run(
        2,
        [](Communicator& comm) {
          (void)comm.wire(Wire::i8).allreduce(std::vector<float>(comm.rank() == 0 ? 300 : 301, 1.0f));
        },
        {}, false);
    for (const auto& e : errors) {
      ASSERT_TRUE(e.has_value());
      EXPECT_EQ(e->code(), ErrorCode::desync);
      const std::string text = e->what();
      EXPECT_NE(text.find("allreduce(f32 as i8, sum, count 300"), std::string::npos) << text;
      EXPECT_NE(text.find("allreduce(f32 as i8, sum, count 301"), std::string::npos) << text;
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
    refused([&] { (void)comm.wire(Wire::i8).allreduce(1.0f, Op::min); });
    refused([&] { (void)comm.wire(Wire::i8).allreduce(1.0f, Op::max); });
    refused([&] { (void)comm.wire(Wire::i8).allreduce(1.0f, Op::product); });
    refused([&] { (void)comm.wire(Wire::i8).reduce_scatter(std::vector<float>(2), Op::max); });
    std::vector<float> one(1);
    refused([&] { comm.wire(Wire::i8).reduce(std::span(one), 0); });
    refused([&] { (void)comm.wire(Wire::i8).allreduce(std::int8_t{1}); });
    refused([&] { (void)comm.wire(static_cast<Wire>(WARREN_U8)).allreduce(1.0f); });
    refused([&] { (void)comm.wire(static_cast<Wire>(WARREN_F64)).allreduce(1.0f); });
    EXPECT_EQ(comm.wire(Wire::bf16).allreduce(1.00390625f), 2.0f);
    EXPECT_EQ(comm.wire(Wire::bf16).wire(Wire::f32).allreduce(1.00390625f), 2.0078125f);
    Calls narrow = comm.wire(Wire::bf16);
    EXPECT_EQ(comm.allreduce(1.00390625f), 2.0078125f) << "it is said of the other's calls alone";
    EXPECT_EQ(narrow.allreduce(1.00390625f), 2.0f);
    std::optional<Communicator> group = comm.split(0);
    EXPECT_EQ(group->wire(Wire::f16).once("scale").allreduce(2049.0f), 4096.0f);
    EXPECT_EQ(comm.wire(Wire::f16).once("sketch").allreduce(2049.0f), 4096.0f);
    EXPECT_EQ(comm.wire(Wire::f16).once("sketch").allreduce(0.0f), 4096.0f) << "replayed";
    EXPECT_EQ(group->wire(Wire::i8).once("quarter").allreduce(127.0f), 254.0f);
    EXPECT_EQ(comm.wire(Wire::i8).once("eighth").allreduce(127.0f), 254.0f);
    EXPECT_EQ(comm.wire(Wire::i8).once("eighth").allreduce(0.0f), 254.0f) << "replayed";
    EXPECT_EQ(comm.wire(Wire::i8).wire(Wire::f32).allreduce(1.00390625f), 2.0078125f);
    float prepared = 0;
    comm.wire(Wire::bf16).allreduce(std::span(&prepared, 1), Op::sum, [&] { prepared = 1.00390625f; });
    EXPECT_EQ(prepared, 2.0f);
  });
}

// A life that is over has left results; its next one reads them, whatever its inputs are.
TEST(WireTypes, GoWithACallThatIsRefused) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    const std::vector<float> in{0.1f, 0.2f, 0.3f};
    std::vector<float> exact(3), out(3), too_few(2);
    comm.allreduce(in, exact);
    EXPECT_THROW(comm.wire(Wire::bf16).allreduce(in, too_few), Error);
    comm.allreduce(in, out);
    EXPECT_EQ(out, exact);
    EXPECT_THROW((void)comm.wire(Wire::bf16).once("").allreduce(1.0f), Error);
    comm.allreduce(in, out);
    EXPECT_EQ(out, exact);
  });
}

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
    for (const auto& [one, other] : {std::pair(Wire::bf16, Wire::f16), std::pair(Wire::i8, Wire::i8)}) {
      comm.wire(one).allreduce(in, sum);
      comm.wire(other).reduce_scatter(in, part);
      comm.wire(one).allgather(part, whole);
      for (const auto* v : {&sum, &part, &whole}) all.insert(all.end(), v->begin(), v->end());
    }
  };
  std::promise<void> done;
  std::thread other([&] {
    try {
      Communicator comm = Communicator::create(options(0));
      std::vector<float> all;
      rounds(comm, all, inputs(kBF16, 0, kCount));
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
    rounds(comm, first, inputs(kBF16, 1, kCount));
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
