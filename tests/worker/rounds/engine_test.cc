// All collectives, algorithms and a few types over real sockets, against results computed one by one.
#include "worker/rounds/engine.h"
#include "recovery/base/limits.h"
#include "tests/worker/input_made_by.h"
#include "worker/rounds/progress.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "tests/sanitized.h"
#include "tests/worker/mesh.h"

namespace warren::worker {
namespace {

using schedule::Algorithm;
using testing::Mesh;

constexpr Collective kAll[] = {Collective::kAllreduce,     Collective::kReduce,         Collective::kBroadcast,
                               Collective::kBarrier,       Collective::kAllgather,      Collective::kAllgatherv,
                               Collective::kReduceScatter, Collective::kGather,         Collective::kScatter,
                               Collective::kAllToAll,      Collective::kReduceScatterv, Collective::kAllToAllv};

// By pipes within a host for odd counts, by sockets for even ones.
Mesh::Options options_by_count(int size, Algorithm algorithm, std::uint64_t count) {
  Mesh::Options o;
  o.size = size;
  o.algorithm = algorithm;
  o.pipes = o.one_host = count % 2 == 1;
  o.cores = count % 2;
  return o;
}

// By pipes or sockets, with and without a log.
void with_each_link_and_log(const std::function<void(const Mesh::Options&)>& body) {
  for (const bool pipes : {false, true}) {
    for (const std::size_t log_bytes : {std::size_t{0}, std::size_t{1} << 20}) {
      SCOPED_TRACE((pipes ? "pipes, log of " : "sockets, log of ") + std::to_string(log_bytes));
      Mesh::Options o;
      o.pipes = o.one_host = pipes;
      o.log_bytes = log_bytes;
      body(o);
    }
  }
}

std::int64_t value(int rank, std::uint64_t i) {
  return rank * 1000003 + static_cast<std::int64_t>(i) * 7 + 1;
}

// One call of every rank with i64 buffers, its expected outputs, and whether buffers are shared in place.
struct Case {
  Collective collective{};
  int size = 1, root = 0;
  std::uint64_t count = 0;
  bool in_place = false;
  std::vector<std::uint64_t> counts;  // of an all_to_allv: what rank s sends to rank r, at s · size + r

  [[nodiscard]] std::vector<std::uint64_t> sent_by(int rank) const {
    const auto row = std::span(counts).subspan(static_cast<std::size_t>(rank * size), static_cast<std::size_t>(size));
    return {row.begin(), row.end()};
  }
  [[nodiscard]] std::vector<std::uint64_t> got_by(int rank) const {
    std::vector<std::uint64_t> column;
    for (int r = 0; r < size; r++) column.push_back(counts[static_cast<std::size_t>(r * size + rank)]);
    return column;
  }
  [[nodiscard]] static std::uint64_t below(const std::vector<std::uint64_t>& all, int rank) {
    return std::accumulate(all.begin(), all.begin() + rank, std::uint64_t{0});
  }
  // Of which some are none.
  void make_uneven(std::uint64_t most) {
    if (collective != Collective::kAllgatherv && collective != Collective::kReduceScatterv &&
        collective != Collective::kAllToAllv) {
      return;
    }
    const int n = collective == Collective::kAllToAllv ? size * size : size;
    counts.clear();
    for (int i = 0; i < n; i++) counts.push_back((most + static_cast<std::uint64_t>(i) * 3) % (most + 2));
    count = 0;
  }

  [[nodiscard]] std::uint64_t in_count(int rank) const {
    const auto k = static_cast<std::uint64_t>(size);
    switch (collective) {
      case Collective::kBroadcast:
      case Collective::kBarrier: return 0;
      case Collective::kAllgatherv: return counts[static_cast<std::size_t>(rank)];
      case Collective::kReduceScatterv: return below(counts, size);
      case Collective::kAllToAllv: return below(sent_by(rank), size);
      case Collective::kReduceScatter:
      case Collective::kAllToAll: return count * k;
      case Collective::kScatter: return rank == root ? count * k : 0;
      default: return count;
    }
  }
  [[nodiscard]] std::uint64_t out_count(int rank) const {
    const auto k = static_cast<std::uint64_t>(size);
    switch (collective) {
      case Collective::kBarrier: return 0;
      case Collective::kReduce: return rank == root ? count : 0;
      case Collective::kAllgather:
      case Collective::kAllToAll: return count * k;
      case Collective::kAllgatherv: return below(counts, size);
      case Collective::kReduceScatterv: return counts[static_cast<std::size_t>(rank)];
      case Collective::kAllToAllv: return below(got_by(rank), size);
      case Collective::kGather: return rank == root ? count * k : 0;
      default: return count;
    }
  }
  [[nodiscard]] std::int64_t in_place_at(int rank) const {
    const auto c = static_cast<std::int64_t>(count);
    switch (collective) {
      case Collective::kAllgather: return rank * c;
      case Collective::kGather: return rank * c;
      case Collective::kReduceScatter:
      case Collective::kScatter: return -rank * c;
      case Collective::kAllgatherv: return static_cast<std::int64_t>(below(counts, rank));
      case Collective::kReduceScatterv: return -static_cast<std::int64_t>(below(counts, rank));
      default: return 0;
    }
  }
  [[nodiscard]] std::int64_t expected(int rank, std::uint64_t i) const {
    const auto sum = [&](std::uint64_t at) {
      std::int64_t s = 0;
      for (int r = 0; r < size; r++) s += value(r, at);
      return s;
    };
    switch (collective) {
      case Collective::kAllreduce:
      case Collective::kReduce: return sum(i);
      case Collective::kReduceScatter: return sum(static_cast<std::uint64_t>(rank) * count + i);
      case Collective::kReduceScatterv: return sum(below(counts, rank) + i);
      case Collective::kAllToAllv: {
        int from = 0;
        while (i >= sent_by(from)[static_cast<std::size_t>(rank)]) i -= sent_by(from++)[static_cast<std::size_t>(rank)];
        return value(from, below(sent_by(from), rank) + i);
      }
      case Collective::kBroadcast: return value(root, i);
      case Collective::kAllgather:
      case Collective::kGather: return value(static_cast<int>(i / count), i % count);
      case Collective::kAllgatherv: {
        int r = 0;
        while (i >= counts[static_cast<std::size_t>(r)]) i -= counts[static_cast<std::size_t>(r++)];
        return value(r, i);
      }
      case Collective::kScatter: return value(root, static_cast<std::uint64_t>(rank) * count + i);
      case Collective::kAllToAll: {
        const auto from = static_cast<int>(i / count);
        return value(from, static_cast<std::uint64_t>(rank) * count + i % count);
      }
      default: return 0;
    }
  }
};

struct Buffers {
  std::vector<std::int64_t> memory;
  std::int64_t* in = nullptr;
  std::int64_t* out = nullptr;
};

Buffers make_buffers(const Case& c, int rank) {
  Buffers b;
  const std::uint64_t in = c.in_count(rank), out = c.out_count(rank);
  const std::int64_t offset = c.in_place_at(rank);
  b.memory.assign(in + out + static_cast<std::uint64_t>(offset < 0 ? -offset : offset) + 1, -1);
  b.in = b.memory.data();
  b.out = b.memory.data() + in;
  if (c.in_place) {
    b.out = b.memory.data() + (offset < 0 ? -offset : 0);
    b.in = b.memory.data() + (offset > 0 ? offset : 0);
  }
  for (std::uint64_t i = 0; i < in; i++) b.in[i] = value(rank, i);
  if (c.collective == Collective::kBroadcast && rank == c.root) {
    for (std::uint64_t i = 0; i < out; i++) b.out[i] = value(rank, i);
  }
  return b;
}

CallSpec spec_of(const Case& c, const Buffers& b) {
  CallSpec spec;
  spec.collective = c.collective;
  spec.type = c.collective == Collective::kBarrier ? DataType::kU8 : DataType::kI64;
  const bool reduces = c.collective == Collective::kAllreduce || c.collective == Collective::kReduce ||
                       c.collective == Collective::kReduceScatter || c.collective == Collective::kReduceScatterv;
  spec.op = reduces ? ReduceOp::kSum : ReduceOp::kNone;
  spec.input = c.collective == Collective::kBroadcast || c.collective == Collective::kBarrier ? nullptr : b.in;
  spec.output = c.collective == Collective::kBarrier ? nullptr : b.out;
  spec.count = c.count;
  spec.counts = c.counts;
  spec.root = c.root;
  return spec;
}

// Those ranks whose bit is set in `blocking` block in the call. Counts ranks that were seen to run it light.
void run_case(Mesh& mesh, const Case& c, std::uint32_t blocking = 0, int* light = nullptr) {
  std::vector<Buffers> buffers;
  std::vector<std::unique_ptr<Call>> calls;
  for (int r = 0; r < c.size; r++) {
    buffers.push_back(make_buffers(c, r));
    calls.push_back(std::make_unique<Call>());
    calls.back()->spec = spec_of(c, buffers.back());
    const bool exchanges = c.collective == Collective::kAllToAllv;
    const std::vector<std::uint64_t> sent = exchanges ? c.sent_by(r) : c.counts, got = exchanges ? c.got_by(r) : sent;
    calls.back()->spec.counts = sent;
    if (exchanges) calls.back()->spec.counts_from = got;
    ASSERT_TRUE(validate(calls.back()->spec, {r, c.size}).ok()) << validate(calls.back()->spec, {r, c.size}).describe();
    calls.back()->blocking = (blocking >> r & 1) != 0;
    ASSERT_TRUE(mesh.engine(r).submit(kWorldGroup, *calls.back()).ok());
    if (light != nullptr && mesh.engine(r).has_unposted()) ++*light;
  }
  ASSERT_TRUE(mesh.run([&] {
    for (const auto& call : calls) {
      if (!call->finished) return false;
    }
    return true;
  })) << "stuck: "
      << mesh.engine(0).describe_waits().size();
  for (int r = 0; r < c.size; r++) {
    ASSERT_TRUE(calls[static_cast<std::size_t>(r)]->status.ok())
        << calls[static_cast<std::size_t>(r)]->status.describe();
    for (std::uint64_t i = 0; i < c.out_count(r); i++) {
      ASSERT_EQ(buffers[static_cast<std::size_t>(r)].out[i], c.expected(r, i)) << "rank " << r << " element " << i;
    }
  }
}

void run_all(const Mesh::Options& options, std::uint64_t count) {
  Mesh mesh(options);
  for (const Collective collective : kAll) {
    for (const int root : {0, options.size - 1}) {
      for (const bool in_place : {false, true}) {
        if (in_place && (collective == Collective::kAllToAll || collective == Collective::kAllToAllv)) continue;
        Case c;
        c.collective = collective;
        c.size = options.size;
        c.root = root;
        c.count = count;
        c.in_place = in_place;
        c.make_uneven(count);
        SCOPED_TRACE(std::string(to_string(collective)) + " K=" + std::to_string(options.size) +
                     " n=" + std::to_string(count) + " root=" + std::to_string(root) + (in_place ? " in place" : ""));
        run_case(mesh, c);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(Engine, AllCollectivesWithEveryAlgorithm) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kStar, Algorithm::kTree, Algorithm::kButterfly,
                                    Algorithm::kRing, Algorithm::kDirect}) {
    SCOPED_TRACE(std::string(schedule::to_string(algorithm)));
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      for (const std::uint64_t count : {0u, 1u, 7u, 600u, 5000u}) {
        Mesh::Options o;
        o.size = size;
        o.algorithm = algorithm;
        run_all(o, count);
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(Engine, SmallSocketBuffersAndManyStreams) {
  for (const std::uint32_t streams : {1u, 3u}) {
    Mesh::Options o;
    o.size = 4;
    o.streams = streams;
    o.chunk_bytes = 65536;
    o.socket_buffer_bytes = 4608;
    run_all(o, 30000);
    if (HasFatalFailure()) return;
  }
}

// Within a host. The largest results do not fit into a pipe's ring.
TEST(Engine, PipesOfSharedMemoryWithEveryAlgorithm) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kStar, Algorithm::kTree, Algorithm::kButterfly,
                                    Algorithm::kRing, Algorithm::kDirect}) {
    SCOPED_TRACE(std::string(schedule::to_string(algorithm)));
    for (const int size : {2, 3, 5, 8}) {
      for (const std::uint64_t count : {0u, 7u, 600u, 20'000u, 400'000u}) {
        if (count > 100'000 && size != 5) continue;
        // Minutes, of threads that wait for a core.
        if (kAddressSanitized && count == 20'000 && size != 3) continue;
        Mesh::Options o;
        o.size = size;
        o.algorithm = algorithm;
        o.pipes = true;
        o.one_host = true;
        o.cores = size == 5 ? 0 : 2;
        o.chunk_bytes = count > 100'000 ? limits::kMaxChunkBytes : 4096;
        o.streams = size == 3 ? 2 : 1;
        run_all(o, count);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Ranks that block run small rounds step by step, beside others that do not.
TEST(Engine, LightRoundsWithEveryAlgorithm) {
  for (const Algorithm algorithm : {Algorithm::kAuto, Algorithm::kStar, Algorithm::kTree, Algorithm::kButterfly,
                                    Algorithm::kRing, Algorithm::kDirect}) {
    for (const bool pipes : {false, true}) {
      std::map<Collective, int> light;
      for (const int size : {2, 3, 5, 8}) {
        for (const std::uint64_t count : {0u, 1u, 60u, 600u}) {
          Mesh::Options o;
          o.size = size;
          o.algorithm = algorithm;
          o.pipes = o.one_host = pipes;
          o.streams = size == 3 ? 2 : 1;
          Mesh mesh(o);
          int root = size - 1;
          for (const std::uint32_t blocking : {0xffu, 0xffu, 0x55u, 0xaau}) {
            root = size - 1 - root;  // ranks call one after the other: the last one finds what a gather needs there
            for (const Collective collective : kAll) {
              Case c;
              c.collective = collective;
              c.size = size;
              c.root = root;
              c.count = count;
              c.in_place =
                  blocking == 0x55 && collective != Collective::kAllToAll && collective != Collective::kAllToAllv;
              c.make_uneven(count);
              SCOPED_TRACE(std::string(to_string(collective)) + " " + std::string(schedule::to_string(algorithm)) +
                           " K=" + std::to_string(size) + " n=" + std::to_string(count));
              run_case(mesh, c, blocking, &light[collective]);
              if (HasFatalFailure()) return;
            }
          }
        }
      }
      for (const Collective collective : kAll) {
        EXPECT_GT(light[collective], 10) << schedule::to_string(algorithm) << " " << to_string(collective);
      }
    }
  }
}

TEST(Engine, WithoutChecksums) {
  Mesh::Options o;
  o.size = 3;
  o.checksums = false;
  run_all(o, 1000);
}

// Types whose accumulators are wider than they: small integers, so that every sum is exact.
TEST(Engine, HalfPrecisionWithEveryAlgorithm) {
  const auto bf16 = [](int v) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(v)) >> 16);
  };
  for (const Algorithm algorithm :
       {Algorithm::kStar, Algorithm::kTree, Algorithm::kButterfly, Algorithm::kRing, Algorithm::kDirect}) {
    for (const Collective collective : {Collective::kAllreduce, Collective::kReduce, Collective::kReduceScatter}) {
      for (const int size : {2, 3, 4, 5, 7, 8}) {
        for (const std::uint64_t count : {1u, 600u, 5000u, 20001u}) {
          SCOPED_TRACE(std::string(schedule::to_string(algorithm)) + " " + to_string(collective) +
                       " K=" + std::to_string(size) + " n=" + std::to_string(count));
          Mesh mesh(options_by_count(size, algorithm, count));
          const auto value = [](int rank, std::uint64_t i) { return rank + static_cast<int>(i * 7 % 19); };
          const std::uint64_t in_count =
              collective == Collective::kReduceScatter ? count * static_cast<std::uint64_t>(size) : count;
          std::vector<std::vector<std::uint16_t>> in(static_cast<std::size_t>(size)),
              out(static_cast<std::size_t>(size));
          std::vector<std::unique_ptr<Call>> calls;
          for (int r = 0; r < size; r++) {
            auto& mine = in[static_cast<std::size_t>(r)];
            for (std::uint64_t i = 0; i < in_count; i++) mine.push_back(bf16(value(r, i)));
            out[static_cast<std::size_t>(r)].assign(count, 0xffff);
            calls.push_back(std::make_unique<Call>());
            CallSpec& spec = calls.back()->spec;
            spec.collective = collective;
            spec.type = DataType::kBF16;
            spec.op = ReduceOp::kSum;
            spec.input = mine.data();
            spec.output = out[static_cast<std::size_t>(r)].data();
            spec.count = count;
            spec.root = collective == Collective::kReduce ? 0 : -1;
            ASSERT_TRUE(mesh.engine(r).submit(kWorldGroup, *calls.back()).ok());
          }
          ASSERT_TRUE(mesh.run([&] {
            return std::all_of(calls.begin(), calls.end(), [](const auto& c) { return c->finished.load(); });
          }));
          for (int r = 0; r < size; r++) {
            if (collective == Collective::kReduce && r != 0) continue;
            for (std::uint64_t i = 0; i < count; i++) {
              const std::uint64_t at =
                  collective == Collective::kReduceScatter ? static_cast<std::uint64_t>(r) * count + i : i;
              int sum = 0;
              for (int p = 0; p < size; p++) sum += value(p, at);
              ASSERT_EQ(out[static_cast<std::size_t>(r)][i], bf16(sum)) << "rank " << r << " element " << i;
            }
          }
        }
      }
    }
  }
}

// Elements of 260 bytes, and of 1,024 on the way. The first value of a block tells the scale, 1 in the inputs and the
// number of ranks in the sum, of which the others are multiples: so every sum is exact.
TEST(Engine, BlocksWithEveryAlgorithm) {
  struct Block {
    float scale = 1;
    std::array<std::int8_t, kI8BlockValues> values{};
  };
  static_assert(sizeof(Block) == kI8BlockBytes);
  const auto value = [](int size, int rank, std::uint64_t i, std::size_t v) {
    return v == 0 ? 127 : size * (static_cast<int>((i * 31 + v * 7 + static_cast<std::uint64_t>(rank) * 5) % 3) - 1);
  };
  for (const Algorithm algorithm :
       {Algorithm::kStar, Algorithm::kTree, Algorithm::kButterfly, Algorithm::kRing, Algorithm::kDirect}) {
    for (const Collective collective : {Collective::kAllreduce, Collective::kReduceScatter}) {
      const auto served = schedule::algorithms_for(collective);
      if (std::ranges::find(served, algorithm) == served.end()) continue;
      for (const int size : {2, 3, 5, 8}) {
        for (const std::uint64_t count : {1u, 40u, 1601u}) {
          SCOPED_TRACE(std::string(schedule::to_string(algorithm)) + " " + to_string(collective) +
                       " K=" + std::to_string(size) + " n=" + std::to_string(count));
          Mesh mesh(options_by_count(size, algorithm, count));
          const bool scatters = collective == Collective::kReduceScatter;
          const std::uint64_t in_count = scatters ? count * static_cast<std::uint64_t>(size) : count;
          std::vector<std::vector<Block>> in(static_cast<std::size_t>(size)), out(static_cast<std::size_t>(size));
          std::vector<std::unique_ptr<Call>> calls;
          for (int r = 0; r < size; r++) {
            auto& mine = in[static_cast<std::size_t>(r)];
            mine.resize(in_count);
            for (std::uint64_t i = 0; i < in_count; i++) {
              for (std::size_t v = 0; v < kI8BlockValues; v++) {
                mine[i].values[v] = static_cast<std::int8_t>(value(size, r, i, v));
              }
            }
            out[static_cast<std::size_t>(r)].resize(count);
            calls.push_back(std::make_unique<Call>());
            CallSpec& spec = calls.back()->spec;
            spec.collective = collective;
            spec.type = DataType::kF32AsI8;
            spec.op = ReduceOp::kSum;
            spec.input = mine.data();
            spec.output = out[static_cast<std::size_t>(r)].data();
            spec.count = count;
            spec.values = count * kI8BlockValues;
            ASSERT_TRUE(mesh.engine(r).submit(kWorldGroup, *calls.back()).ok());
          }
          ASSERT_TRUE(mesh.run([&] {
            return std::all_of(calls.begin(), calls.end(), [](const auto& c) { return c->finished.load(); });
          }));
          for (int r = 0; r < size; r++) {
            for (std::uint64_t i = 0; i < count; i++) {
              const std::uint64_t at = scatters ? static_cast<std::uint64_t>(r) * count + i : i;
              Block want;
              want.scale = static_cast<float>(size);
              for (std::size_t v = 0; v < kI8BlockValues; v++) {
                int sum = 0;
                for (int p = 0; p < size; p++) sum += value(size, p, at, v);
                want.values[v] = static_cast<std::int8_t>(sum / size);
              }
              ASSERT_EQ(std::memcmp(&out[static_cast<std::size_t>(r)][i], &want, sizeof want), 0)
                  << "rank " << r << " block " << i;
            }
          }
        }
      }
    }
  }
}

std::uint64_t mapped_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t pages = 0;
  file >> pages;
  return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

// In mode shrink, of an input that its result takes the place of.
TEST(Engine, AnInputThatCannotBeKeptIsAnErrorAndAKeptOneIsGivenBack) {
  Mesh::Options o;
  o.size = 1;
  o.shrinks = true;
  o.chunk_bytes = limits::kMaxChunkBytes;
  std::vector<float> values(std::size_t{20} << 20, 3.0f);  // more than is kept for the next round
  const auto submit = [&](Mesh& mesh, Call& call) {
    call.spec.collective = Collective::kAllreduce;
    call.spec.type = DataType::kF32;
    call.spec.op = ReduceOp::kSum;
    call.spec.input = call.spec.output = values.data();
    call.spec.count = values.size();
    return mesh.engine(0).submit(kWorldGroup, call);
  };
  {
    Mesh mesh(o);
    Call call;
    const std::uint64_t before = mapped_bytes();
    ASSERT_TRUE(submit(mesh, call).ok());
    ASSERT_TRUE(mesh.run([&] { return call.finished.load(); }));
    EXPECT_TRUE(call.status.ok()) << call.status.describe();
    EXPECT_LT(mapped_bytes(), before + values.size() * sizeof(float));
  }
  Mesh mesh(o);
  Call call;
  rlimit all{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &all), 0);
  const rlimit no_more{mapped_bytes() + (std::uint64_t{16} << 20), all.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &no_more), 0);
  const Status submitted = submit(mesh, call);
  ASSERT_EQ(setrlimit(RLIMIT_AS, &all), 0);
  ASSERT_TRUE(submitted.ok()) << submitted.describe();
  const auto failure = mesh.engine(0).take_failure();
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->status.code(), Code::kExhausted);
  EXPECT_NE(failure->status.describe().find("another buffer"), std::string::npos) << failure->status.describe();
  EXPECT_EQ(values[0], 3.0f);
}

CallSpec sum_of(std::vector<float>& v, std::uint64_t site = 0) {
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = DataType::kF32;
  spec.op = ReduceOp::kSum;
  spec.input = spec.output = v.data();
  spec.count = v.size();
  spec.site = site;
  return spec;
}

TEST(Engine, AsynchronousCallsRunInOrderOfIssue) {
  Mesh::Options o;
  o.size = 3;
  Mesh mesh(o);
  constexpr int kCalls = 40;
  std::vector<std::vector<std::vector<float>>> data(3);
  std::vector<std::shared_ptr<Call>> calls;
  for (int r = 0; r < 3; r++) {
    for (int i = 0; i < kCalls; i++) {
      data[static_cast<std::size_t>(r)].emplace_back(static_cast<std::size_t>(i * 37 % 3000 + 1),
                                                     static_cast<float>(i + r));
    }
    for (int i = 0; i < kCalls; i++) {
      auto call = std::make_shared<Call>();
      call->spec = sum_of(data[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)]);
      call->self = call;
      ASSERT_TRUE(mesh.engine(r).submit(kWorldGroup, *call).ok());
      calls.push_back(call);
    }
  }
  ASSERT_TRUE(mesh.run(
      [&] { return mesh.engine(0).outstanding() + mesh.engine(1).outstanding() + mesh.engine(2).outstanding() == 0; }));
  for (int r = 0; r < 3; r++) {
    ASSERT_EQ(mesh.engine(r).finished_calls().size(), static_cast<std::size_t>(kCalls));
    for (int i = 0; i < kCalls; i++) {
      EXPECT_EQ(mesh.engine(r).finished_calls()[static_cast<std::size_t>(i)]->round.sequence,
                Sequence(static_cast<unsigned>(i)));
      for (const float f : data[static_cast<std::size_t>(r)][static_cast<std::size_t>(i)]) {
        ASSERT_EQ(f, static_cast<float>(3 * i + 3));
      }
    }
  }
}

TEST(Engine, GroupsRunSideBySideInAnyOrder) {
  Mesh::Options o;
  o.size = 4;
  Mesh mesh(o);
  const GroupId even(7), all(9);
  for (int r = 0; r < 4; r++) {
    ASSERT_TRUE(mesh.engine(r).add_group(all, {Rank(3), Rank(2), Rank(1), Rank(0)}, 1).ok());
    if (r % 2 == 0) {
      ASSERT_TRUE(mesh.engine(r).add_group(even, {Rank(0), Rank(2)}, 2).ok());
    }
    EXPECT_FALSE(mesh.engine(r).add_group(all, {Rank(r)}, 3).ok());
  }
  std::vector<std::vector<float>> a(4), b(4);
  std::vector<std::unique_ptr<Call>> calls;
  const auto submit = [&](int r, GroupId g, std::vector<float>& v) {
    v.assign(500, static_cast<float>(r + 1));
    calls.push_back(std::make_unique<Call>());
    calls.back()->spec = sum_of(v);
    ASSERT_TRUE(mesh.engine(r).submit(g, *calls.back()).ok());
  };
  // Rank 0 calls the groups in one order, rank 2 in the other.
  submit(0, even, a[0]);
  submit(0, all, b[0]);
  submit(2, all, b[2]);
  submit(2, even, a[2]);
  submit(1, all, b[1]);
  submit(3, all, b[3]);
  ASSERT_TRUE(mesh.run([&] {
    for (const auto& c : calls) {
      if (!c->finished) return false;
    }
    return true;
  }));
  EXPECT_EQ(a[0], std::vector<float>(500, 4.0f));
  EXPECT_EQ(a[2], a[0]);
  EXPECT_EQ(b[3], std::vector<float>(500, 10.0f));
  for (int r = 0; r < 4; r++) mesh.engine(r).remove_group(all);
  EXPECT_FALSE(mesh.engine(0).has_group(all));
}

// Ranks that disagree: an error on the rank that sees it, naming both calls; no output is touched.
TEST(Engine, DisagreeingRanksFindOut) {
  struct Variant {
    const char* what;
    std::function<void(CallSpec&)> change;
  };
  static std::vector<float> other(99);
  const Variant variants[] = {
      {"count", [](CallSpec& s) { s.count = 3; }},
      {"type", [](CallSpec& s) { s.type = DataType::kI32; }},
      {"operation", [](CallSpec& s) { s.op = ReduceOp::kMax; }},
      {"site", [](CallSpec& s) { s.site = 0x200; }},
      {"zero count", [](CallSpec& s) { s.count = 0; }},
  };
  for (std::size_t i = 0; i < 4 * std::size(variants); i++) {
    const Variant& variant = variants[i / 4];
    const bool light = i % 4 != 0;
    SCOPED_TRACE(variant.what);
    Mesh::Options o;
    o.check_call_sites = true;
    o.pipes = i % 4 == 3;
    Mesh mesh(o);
    std::vector<float> x(4, 1.0f), y(4, 2.0f);
    Call a, b, before[2];
    a.blocking = b.blocking = light;
    for (int r = 0; r < 2 && light; r++) {
      before[r].spec.collective = Collective::kBarrier;
      ASSERT_TRUE(mesh.engine(r).submit(kWorldGroup, before[r]).ok());
    }
    if (light) {
      ASSERT_TRUE(mesh.run([&] { return before[0].finished && before[1].finished; }));
    }
    a.spec = sum_of(x, 0x100);
    b.spec = sum_of(y, 0x100);
    variant.change(b.spec);
    ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
    ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, b).ok());
    std::optional<Engine::Failure> failure;
    ASSERT_TRUE(mesh.run([&] {
      for (int r = 0; r < 2 && !failure; r++) failure = mesh.engine(r).take_failure();
      return failure.has_value();
    }));
    EXPECT_EQ(failure->status.code(), Code::kDesync) << failure->status.describe();
    EXPECT_NE(failure->status.describe().find(light ? "round p.1" : "round p.0"), std::string::npos)
        << failure->status.describe();
    EXPECT_EQ(x, std::vector<float>(4, 1.0f));
    EXPECT_EQ(y, std::vector<float>(4, 2.0f));
    for (int r = 0; r < 2; r++) mesh.engine(r).stop(Status(Code::kDesync, "told"));
    EXPECT_EQ(a.status.code(), Code::kDesync);
    EXPECT_EQ(b.status.code(), Code::kDesync);
    for (const Call* call : {&a, &b}) EXPECT_EQ(call->status.describe(), "told") << "that names both calls; once";
  }
}

// Whoever disagrees, and where; also where all that differs is who gets what, and where many get nothing.
TEST(Engine, DisagreeingCountsAreFoundOut) {
  struct Variant {
    const char* what;
    Collective collective;
    std::vector<std::uint64_t> here, there;  // of ranks 0 and 1 of 2
    std::vector<std::uint64_t> from_here = {}, from_there = {};
  };
  const Variant variants[] = {
      {"shares", Collective::kReduceScatterv, {3, 4}, {4, 3}},
      {"all for one, or for the other", Collective::kReduceScatterv, {7, 0}, {0, 7}},
      {"nothing, or something", Collective::kReduceScatterv, {0, 0}, {0, 7}},
      {"all for one, or for the other, gathered", Collective::kAllgatherv, {7, 0}, {0, 7}},
      {"more is sent than taken", Collective::kAllToAllv, {1, 5}, {2, 1}, {1, 2}, {4, 1}},
      {"less is sent than taken", Collective::kAllToAllv, {1, 0}, {2, 1}, {1, 2}, {4, 1}},
      {"what is sent is not wanted", Collective::kAllToAllv, {1, 5}, {2, 1}, {1, 2}, {0, 1}},
  };
  for (const Variant& variant : variants) {
    for (const bool pipes : {false, true}) {
      for (const std::uint64_t times : {1u, 8000u}) {
        SCOPED_TRACE(variant.what);
        Mesh::Options o;
        o.pipes = o.one_host = pipes;
        Mesh mesh(o);
        const auto scaled = [&](std::vector<std::uint64_t> counts) {
          for (std::uint64_t& c : counts) c *= times;
          return counts;
        };
        std::vector<std::int64_t> in(10 * times, 5), out[2];
        Call calls[2];
        for (int r = 0; r < 2; r++) {
          out[r].assign(10 * times, -1);
          const auto counts = scaled(r == 0 ? variant.here : variant.there);
          const auto from = scaled(r == 0 ? variant.from_here : variant.from_there);
          CallSpec& spec = calls[r].spec;
          spec.collective = variant.collective;
          spec.type = DataType::kI64;
          spec.op = variant.collective == Collective::kReduceScatterv ? ReduceOp::kSum : ReduceOp::kNone;
          spec.input = in.data();
          spec.output = out[r].data();
          spec.counts = counts;
          spec.counts_from = from;
          ASSERT_TRUE(validate(spec, {r, 2}).ok()) << validate(spec, {r, 2}).describe();
          ASSERT_TRUE(mesh.engine(r).submit(kWorldGroup, calls[r]).ok());
        }
        std::optional<Engine::Failure> failure;
        ASSERT_TRUE(mesh.run([&] {
          for (int r = 0; r < 2 && !failure; r++) failure = mesh.engine(r).take_failure();
          return failure.has_value();
        }));
        EXPECT_EQ(failure->status.code(), Code::kDesync) << failure->status.describe();
        if (variant.collective == Collective::kAllToAllv) {
          EXPECT_NE(failure->status.describe().find("elements to rank 1, which takes"), std::string::npos)
              << failure->status.describe();
        }
        for (int r = 0; r < 2; r++) mesh.engine(r).stop(Status(Code::kDesync, "told"));
        // The rank that has found it out, and whoever needs it.
        EXPECT_TRUE(!calls[0].status.ok() || !calls[1].status.ok());
      }
    }
  }
}

TEST(Engine, CountsAreCheckedBeforeAnythingIsSent) {
  std::vector<std::int64_t> memory(100);
  const auto refusal = [&](Collective collective, std::vector<std::uint64_t> to, std::vector<std::uint64_t> from) {
    CallSpec spec;
    spec.collective = collective;
    spec.type = DataType::kI64;
    spec.op = collective == Collective::kReduceScatterv ? ReduceOp::kSum : ReduceOp::kNone;
    spec.input = memory.data();
    spec.output = memory.data() + 50;
    spec.counts = to;
    spec.counts_from = from;
    const Status status = validate(spec, {1, 3});
    return status.ok() ? std::string() : status.describe();
  };
  const std::uint64_t most = limits::kMaxBufferBytes / sizeof(std::int64_t);
  for (const Collective c : {Collective::kReduceScatterv, Collective::kAllToAllv}) {
    EXPECT_EQ(refusal(c, {1, 2, 0}, {0, 2, 3}), "");
    EXPECT_NE(refusal(c, {1, 2}, {0, 2, 3}).find("one count a rank is needed"), std::string::npos);
    EXPECT_NE(refusal(c, {most, 1, 0}, {0, 1, 3}).find("the counts add up to more than"), std::string::npos);
    EXPECT_NE(refusal(c, {UINT64_MAX, 2, UINT64_MAX}, {0, 2, 3}).find("the counts add up to more than"),
              std::string::npos);
    EXPECT_NE(refusal(c, {30, 22, 0}, {0, 22, 3}).find("overlap"), std::string::npos);
  }
  EXPECT_NE(refusal(Collective::kAllToAllv, {1, 2, 0}, {0, 2}).find("one count a rank is needed"), std::string::npos);
  EXPECT_NE(refusal(Collective::kAllToAllv, {1, 2, 0}, {0, 2, most}).find("the counts add up"), std::string::npos);
  EXPECT_NE(refusal(Collective::kAllToAllv, {1, 2, 0}, {0, 1, 3}).find("sends 2 elements to itself and takes 1"),
            std::string::npos);
}

TEST(Engine, SitesMayDifferUnlessTheyAreCompared) {
  Mesh mesh({});
  std::vector<float> x(4, 1.0f), y(4, 2.0f);
  Call a, b;
  a.spec = sum_of(x, 0x100);
  b.spec = sum_of(y, 0x200);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, b).ok());
  ASSERT_TRUE(mesh.run([&] { return a.finished && b.finished; }));
  EXPECT_EQ(x, std::vector<float>(4, 3.0f));
}

TEST(Engine, StopFailsWhatIsOutstandingAndWhatComesLater) {
  Mesh mesh({});
  std::vector<float> x(4, 1.0f), y(4), z(4);
  Call a, b, c;
  a.spec = sum_of(x);
  b.spec = sum_of(y);
  c.spec = sum_of(z);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, b).ok());
  mesh.engine(0).stop(Status(Code::kPeerLost, "rank 1 is gone"));
  EXPECT_TRUE(a.finished && b.finished);
  EXPECT_EQ(a.status.code(), Code::kPeerLost);
  EXPECT_EQ(b.status.describe(), "rank 1 is gone");
  EXPECT_EQ(mesh.engine(0).submit(kWorldGroup, c).code(), Code::kPeerLost);
  EXPECT_EQ(mesh.engine(0).outstanding(), 0u);
}

TEST(Engine, ABrokenLinkIsReportedWithItsPeer) {
  Mesh::Options o;
  o.size = 3;
  o.algorithm = Algorithm::kRing;
  Mesh mesh(o);
  std::vector<float> x(40, 1.0f), y(40, 1.0f);
  Call a, b;
  a.spec = sum_of(x);
  b.spec = sum_of(y);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, b).ok());
  mesh.connect();
  mesh.transport(2).close_all();
  std::optional<Engine::Failure> failure;
  ASSERT_TRUE(mesh.run([&] { return (failure = mesh.engine(0).take_failure()).has_value(); }));
  EXPECT_EQ(failure->status.code(), Code::kPeerLost);
  EXPECT_EQ(failure->peer, Rank(2)) << failure->status.describe();
}

TEST(Engine, ALightRoundThatIsPostedBeforeASleepGoesOn) {
  Mesh mesh({});
  for (int round = 0; round < 3; round++) {
    std::vector<float> x(4, 1.0f), y(4, 2.0f);
    Call a, b;
    a.spec = sum_of(x);
    b.spec = sum_of(y);
    a.blocking = b.blocking = true;
    ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
    if (round > 0) {
      ASSERT_TRUE(mesh.engine(0).has_unposted());
      EXPECT_EQ(mesh.engine(0).describe_waits().size(), 1u);
      ASSERT_TRUE(mesh.engine(0).post_all());
      EXPECT_EQ(mesh.engine(0).describe_waits().size(), 1u);
    }
    EXPECT_FALSE(mesh.engine(0).has_unposted());
    ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, b).ok());
    ASSERT_TRUE(mesh.run([&] { return a.finished && b.finished; }));
    EXPECT_EQ(x, std::vector<float>(4, 3.0f));
    EXPECT_EQ(y, x);
  }
}

// A call is run by what served the one before only where both ask for the same.
TEST(Engine, ACallThatDiffersInOneThingIsNotTakenForTheOneBefore) {
  Mesh mesh({});
  std::vector<std::int32_t> x[2];
  const auto call = [&](const std::function<void(CallSpec&)>& change) {
    Call calls[2];
    for (int r = 0; r < 2; r++) {
      x[r] = {r + 1, -3, 5, 1 << r};
      CallSpec& s = calls[r].spec;
      s.collective = Collective::kAllreduce;
      s.type = DataType::kI32;
      s.op = ReduceOp::kSum;
      s.input = s.output = x[r].data();
      s.count = 4;
      change(s);
      EXPECT_TRUE(mesh.engine(r).submit(kWorldGroup, calls[r]).ok());
    }
    EXPECT_TRUE(mesh.run([&] { return calls[0].finished && calls[1].finished; }));
    EXPECT_TRUE(calls[0].status.ok()) << calls[0].status.describe();
    return calls[0].fingerprint;
  };
  const std::vector<std::int32_t> sum{3, -6, 10, 3};
  const auto sums = [&] { return x[0] == sum && x[1] == sum; };
  for (int again = 0; again < 2; again++) {
    const Fingerprint plain = call([](CallSpec&) {});
    EXPECT_TRUE(sums());
    call([](CallSpec& s) { s.op = ReduceOp::kMax; });
    EXPECT_EQ(x[0], (std::vector<std::int32_t>{2, -3, 5, 2}));
    call([](CallSpec&) {});
    EXPECT_TRUE(sums());
    // Four bytes, which are the first element.
    call([](CallSpec& s) { s.type = DataType::kI8; });
    EXPECT_EQ(x[0], (std::vector<std::int32_t>{3, -3, 5, 1}));
    call([](CallSpec&) {});
    call([](CallSpec& s) { s.count = 2; });
    EXPECT_EQ(x[1], (std::vector<std::int32_t>{3, -6, 5, 2}));
    for (const int root : {0, 1}) {
      call([root](CallSpec& s) {
        s.collective = Collective::kBroadcast;
        s.op = ReduceOp::kNone;
        s.input = nullptr;
        s.root = root;
      });
      EXPECT_EQ(x[1 - root], (std::vector<std::int32_t>{root + 1, -3, 5, 1 << root}));
    }
    call([](CallSpec&) {});
    EXPECT_EQ(call([](CallSpec& s) { s.algorithm = static_cast<std::uint8_t>(Algorithm::kRing); }).algorithm,
              static_cast<std::uint8_t>(Algorithm::kRing));
    EXPECT_TRUE(sums());
    EXPECT_EQ(call([](CallSpec&) {}), plain);
    EXPECT_TRUE(sums());
  }
}

// Who makes all finals logs them: one rank's log alone would be full before they have made as many calls.
TEST(Engine, OwnersTakeTurns) {
  Mesh::Options o;
  o.size = 4;
  o.algorithm = Algorithm::kButterfly;
  o.pipes = o.one_host = true;
  o.cores = 2;
  o.chunk_bytes = 64 << 10;
  o.log_bytes = 6 << 20;
  Mesh mesh(o);
  for (int round = 0; round < 128; round++) {
    std::vector<std::vector<float>> data(4, std::vector<float>(16 << 10, static_cast<float>(round)));
    std::vector<std::unique_ptr<Call>> calls;
    for (int r = 0; r < 4; r++) {
      calls.push_back(std::make_unique<Call>());
      calls.back()->spec = sum_of(data[static_cast<std::size_t>(r)]);
      ASSERT_TRUE(mesh.engine(r).submit(kWorldGroup, *calls.back()).ok());
    }
    ASSERT_TRUE(mesh.run([&] { return std::ranges::all_of(calls, [](const auto& c) { return c->finished.load(); }); }))
        << "round " << round;
    for (int r = 0; r < 4; r++) {
      const auto at = static_cast<std::size_t>(r);
      ASSERT_TRUE(calls[at]->status.ok()) << "round " << round << ": " << calls[at]->status.describe();
      ASSERT_EQ(data[at], std::vector<float>(16 << 10, 4.0f * static_cast<float>(round)));
    }
  }
}

// Without a Call, where what was asked for before is asked for again; what is begun so is gone on with by submit().
void rounds_run_at_once(const Mesh::Options& o) {
  Mesh mesh(o);
  std::vector<float> x(4), y(4);
  std::uint64_t rounds = 0;
  const auto fill = [&] {
    x.assign(4, 1.0f);
    y.assign(4, 2.0f);
  };
  const auto expect_sum = [&] {
    EXPECT_EQ(x, std::vector<float>(4, 3.0f));
    EXPECT_EQ(y, x);
    rounds++;
    for (const int r : {0, 1}) {
      EXPECT_EQ(mesh.engine(r).outstanding(), 0u);
      EXPECT_EQ(mesh.engine(r).rounds_done(kWorldGroup, kPreamble), rounds);
      EXPECT_EQ(mesh.engine(r).next_round(kWorldGroup).sequence, Sequence(rounds));
    }
  };
  const auto both_submit = [&] {
    fill();
    Call a, b;
    a.spec = sum_of(x);
    b.spec = sum_of(y);
    a.blocking = b.blocking = true;
    ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
    ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, b).ok());
    ASSERT_TRUE(mesh.run([&] { return a.finished && b.finished; }));
    expect_sum();
  };
  EXPECT_FALSE(mesh.engine(0).run_at_once(kWorldGroup, sum_of(x), 0)) << "there was none before";
  both_submit();
  for (int turn = 0; turn < 5; turn++) {
    // The first finds nothing of the other's, the second all.
    fill();
    ASSERT_FALSE(mesh.engine(0).run_at_once(kWorldGroup, sum_of(x), 3));
    Call a;
    a.spec = sum_of(x);
    a.blocking = true;
    ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
    EXPECT_EQ(mesh.engine(0).describe_waits().size(), 1u);
    ASSERT_TRUE(mesh.engine(1).run_at_once(kWorldGroup, sum_of(y), 1000));
    ASSERT_TRUE(mesh.run([&] { return a.finished.load(); }));
    EXPECT_TRUE(a.status.ok());
    expect_sum();
    EXPECT_EQ(mesh.engine(1).finished_calls().size(), 0u);
    // Posted before a sleep.
    fill();
    ASSERT_FALSE(mesh.engine(1).run_at_once(kWorldGroup, sum_of(y), 0));
    Call b;
    b.spec = sum_of(y);
    b.blocking = true;
    ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, b).ok());
    ASSERT_TRUE(mesh.engine(1).post_all());
    ASSERT_TRUE(mesh.engine(0).run_at_once(kWorldGroup, sum_of(x), 1000));
    ASSERT_TRUE(mesh.run([&] { return b.finished.load(); }));
    expect_sum();
  }
  // Not while something else is under way, nor for another call.
  std::vector<float> u(4, 1.0f), v(4, 2.0f);
  Call first;
  first.spec = sum_of(u);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, first).ok());
  EXPECT_FALSE(mesh.engine(0).run_at_once(kWorldGroup, sum_of(x), 0));
  EXPECT_EQ(mesh.engine(0).describe_waits().size(), 1u);
  Call second;
  second.spec = sum_of(v);
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, second).ok());
  ASSERT_TRUE(mesh.run([&] { return first.finished && second.finished; }));
  EXPECT_EQ(u, std::vector<float>(4, 3.0f));
  rounds++;
  CallSpec other = sum_of(x);
  other.op = ReduceOp::kMax;
  EXPECT_FALSE(mesh.engine(0).run_at_once(kWorldGroup, other, 0));
  both_submit();
  mesh.engine(0).stop(Status(Code::kClosed, "over"));
  EXPECT_FALSE(mesh.engine(0).run_at_once(kWorldGroup, sum_of(x), 0));
}

TEST(Engine, ARoundThatRepeatsAnotherRunsAtOnce) {
  with_each_link_and_log(rounds_run_at_once);
}

// Sites are told, and compared, as in any round.
TEST(Engine, ARoundAtOnceHasTheSiteOfItsOwnCall) {
  Mesh::Options o;
  o.check_call_sites = true;
  Mesh mesh(o);
  std::vector<float> x(4, 1.0f), y(4, 2.0f);
  const auto at = [](std::vector<float>& v, std::uint64_t site) {
    CallSpec s = sum_of(v);
    s.site = site;
    return s;
  };
  Call a, b;
  a.spec = at(x, 5);
  b.spec = at(y, 5);
  a.blocking = b.blocking = true;
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, b).ok());
  ASSERT_TRUE(mesh.run([&] { return a.finished && b.finished; }));
  ASSERT_FALSE(mesh.engine(0).run_at_once(kWorldGroup, at(x, 6), 0));
  Call c, d;
  c.spec = at(x, 6);
  c.blocking = true;
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, c).ok());
  ASSERT_FALSE(mesh.engine(1).run_at_once(kWorldGroup, at(y, 7), 1000));
  d.spec = at(y, 7);
  d.blocking = true;
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, d).ok());
  std::optional<Engine::Failure> failure;
  ASSERT_TRUE(mesh.run([&] { return (failure = mesh.engine(1).take_failure()).has_value(); }));
  EXPECT_EQ(failure->status.code(), Code::kDesync) << failure->status.describe();
  EXPECT_NE(failure->status.describe().find("+0x7"), std::string::npos) << failure->status.describe();
  EXPECT_NE(failure->status.describe().find("+0x6"), std::string::npos) << failure->status.describe();
}

// A batch of fused calls is an allreduce of as many elements, whose fingerprint is of its parts: no call of the
// program's own repeats it.
TEST(Engine, NothingRepeatsABatch) {
  Mesh mesh(Mesh::Options{});
  std::vector<float> x(4, 1.0f), y(4, 2.0f);
  Call a, b;
  a.spec = sum_of(x);
  b.spec = sum_of(y);
  a.spec.parts = b.spec.parts = 7;
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, a).ok());
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, b).ok());
  ASSERT_TRUE(mesh.run([&] { return a.finished && b.finished; }));
  Call c, d;
  c.spec = sum_of(x);
  d.spec = sum_of(y);
  EXPECT_FALSE(mesh.engine(0).run_at_once(kWorldGroup, c.spec, 0));
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, c).ok());
  EXPECT_EQ(c.fingerprint.shape, 0u);
  EXPECT_FALSE(mesh.engine(1).run_at_once(kWorldGroup, d.spec, 1000));
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, d).ok());
  ASSERT_TRUE(mesh.run([&] { return c.finished && d.finished; }));
  EXPECT_TRUE(c.status.ok() && d.status.ok()) << c.status.describe() << d.status.describe();
  EXPECT_EQ(x, std::vector<float>(4, 6.0f));
}

// Both ways: on a link that has just broken, and while a frame is looked for.
TEST(Engine, ALightRoundWhosePeerHasGoneIsReported) {
  for (const bool looks : {false, true}) {
    Mesh mesh({});
    std::vector<float> x(4, 1.0f), y(4, 2.0f);
    const auto submit = [&](int rank, Call& call, std::vector<float>& v) {
      call.spec = sum_of(v);
      call.blocking = true;
      ASSERT_TRUE(mesh.engine(rank).submit(kWorldGroup, call).ok());
    };
    Call first[2], last;
    submit(0, first[0], x);
    submit(1, first[1], y);
    ASSERT_TRUE(mesh.run([&] { return first[0].finished && first[1].finished; }));
    if (looks) {
      submit(0, last, x);
      ASSERT_TRUE(mesh.engine(0).has_unposted());
    }
    mesh.engine(1).stop(Status(Code::kClosed, "killed"));
    if (!looks) submit(0, last, x);
    std::optional<Engine::Failure> failure;
    ASSERT_TRUE(mesh.run([&] { return (failure = mesh.engine(0).take_failure()).has_value(); }));
    EXPECT_EQ(failure->status.code(), Code::kPeerLost);
    EXPECT_EQ(failure->peer, Rank(1)) << failure->status.describe();
    EXPECT_FALSE(last.finished);
    mesh.engine(0).stop(Status(Code::kPeerLost, "told"));
    EXPECT_TRUE(last.finished);
    EXPECT_FALSE(mesh.engine(0).has_unposted());
  }
}

CallSpec point(std::vector<std::int32_t>& v, int peer, int tag, bool sends) {
  CallSpec spec;
  spec.collective = Collective::kPoint;
  spec.type = DataType::kI32;
  if (sends) {
    spec.input = v.data();
  } else {
    spec.output = v.data();
  }
  spec.count = v.size();
  spec.root = peer;
  spec.tag = tag;
  spec.sends = sends;
  return spec;
}

// Sends and receives of rank 0 and rank 1, at once where that is possible and by a Call otherwise.
class Messages {
 public:
  explicit Messages(const Mesh::Options& options) : mesh_(options) {}

  [[nodiscard]] bool at_once(int rank, std::vector<std::int32_t>& v, int tag, bool sends, int looks = 1000) {
    return mesh_.engine(rank).run_at_once(kWorldGroup, point(v, 1 - rank, tag, sends), looks);
  }
  Call& submit(int rank, std::vector<std::int32_t>& v, int tag, bool sends) {
    calls_.push_back(std::make_unique<Call>());
    calls_.back()->spec = point(v, 1 - rank, tag, sends);
    EXPECT_TRUE(mesh_.engine(rank).submit(kWorldGroup, *calls_.back()).ok());
    return *calls_.back();
  }
  void finish(const Call& call) {
    ASSERT_TRUE(mesh_.run([&] { return call.finished.load(); }));
  }
  // The first message on a link, and of a version, takes the books.
  void begin() {
    for (const int from : {0, 1}) {
      std::vector<std::int32_t> out{from}, in{-1};
      // Rank 1 has a link by then, and without a log needs nothing else.
      const bool sent = at_once(from, out, 0, true);
      EXPECT_TRUE(from == 1 || !sent) << "no link is there";
      const Call* const call = sent ? nullptr : &submit(from, out, 0, true);
      finish(submit(1 - from, in, 0, false));
      if (call != nullptr) finish(*call);
      EXPECT_EQ(in, out);
    }
  }
  Mesh& mesh() { return mesh_; }

 private:
  Mesh mesh_;
  std::vector<std::unique_ptr<Call>> calls_;
};

void messages_run_at_once(const Mesh::Options& options) {
  Messages messages(options);
  messages.begin();
  std::vector<std::int32_t> out(3), in(3);
  const std::uint64_t finished = messages.mesh().board(1).rounds_finished;
  for (int turn = 0; turn < 5; turn++) {
    for (const int from : {0, 1}) {
      out.assign(3, 10 * turn + from);
      ASSERT_TRUE(messages.at_once(from, out, turn, true));
      const std::vector<std::int32_t> sent = std::exchange(out, {7, 7, 7});
      ASSERT_TRUE(messages.at_once(1 - from, in, turn, false));
      EXPECT_EQ(in, sent);
    }
  }
  EXPECT_EQ(messages.mesh().board(1).rounds_finished, finished + 10);
  EXPECT_EQ(messages.mesh().engine(0).outstanding() + messages.mesh().engine(1).outstanding(), 0u);
  // A message that has not come is waited for by a Call.
  EXPECT_FALSE(messages.at_once(1, in, 4, false, 3));
  const Call& waits = messages.submit(1, in, 4, false);
  EXPECT_EQ(messages.mesh().engine(1).describe_waits().size(), 1u);
  out = {1, 2, 3};
  ASSERT_TRUE(messages.at_once(0, out, 4, true));
  messages.finish(waits);
  EXPECT_EQ(in, out);
  // A message of another tag is kept for its own receive.
  out = {4, 4, 4};
  ASSERT_TRUE(messages.at_once(0, out, 1, true));
  out = {5, 5, 5};
  ASSERT_TRUE(messages.at_once(0, out, 2, true));
  EXPECT_FALSE(messages.at_once(1, in, 2, false));
  messages.finish(messages.submit(1, in, 2, false));
  EXPECT_EQ(in, out);
  EXPECT_FALSE(messages.at_once(1, in, 1, false));
  messages.finish(messages.submit(1, in, 1, false));
  EXPECT_EQ(in, (std::vector<std::int32_t>{4, 4, 4}));
  // After that at once again; of more than 200 bytes never.
  ASSERT_TRUE(messages.at_once(0, out, 3, true));
  ASSERT_TRUE(messages.at_once(1, in, 3, false));
  std::vector<std::int32_t> much(51);
  EXPECT_FALSE(messages.at_once(0, much, 3, true));
  // Ranks that disagree hear of both calls.
  ASSERT_TRUE(messages.at_once(0, out, 3, true));
  std::vector<std::int32_t> fewer(2);
  EXPECT_FALSE(messages.at_once(1, fewer, 3, false));
  (void)messages.submit(1, fewer, 3, false);
  std::optional<Engine::Failure> failure;
  ASSERT_TRUE(messages.mesh().run([&] { return (failure = messages.mesh().engine(1).take_failure()).has_value(); }));
  const Status why = failure->status;
  EXPECT_EQ(why.code(), Code::kDesync);
  EXPECT_NE(why.describe().find("sent 3 × i32 with tag 3"), std::string::npos) << why.describe();
  messages.mesh().engine(1).stop(why);
}

TEST(Engine, ASmallMessageRunsAtOnce) {
  with_each_link_and_log(messages_run_at_once);
}

// A full link takes a part of a message, or nothing: the message leaves when there is room, and in order.
TEST(Engine, MessagesAtOnceThatALinkHasNoRoomForLeaveLater) {
  with_each_link_and_log([](Mesh::Options o) {
    o.socket_buffer_bytes = 4096;
    o.ring_bytes = HostPipe::kLeastRingBytes;
    Messages messages(o);
    messages.begin();
    constexpr int kMessages = 400;
    int at_once = 0, waiting = 0;
    std::vector<const Call*> sends;
    std::deque<std::vector<std::int32_t>> buffers;
    for (int i = 0; i < kMessages; i++) {
      std::vector<std::int32_t> out(50, i);
      if (messages.at_once(0, out, 0, true)) {
        out.assign(50, -1);  // the buffer is the program's again
        at_once++;
        // The message that has not left is seen to by the engine's thread, and the next one takes a Call.
        if (messages.mesh().engine(0).unsettled()) waiting++;
        continue;
      }
      sends.push_back(&messages.submit(0, buffers.emplace_back(50, i), 0, true));
    }
    EXPECT_GT(at_once, 0);
    EXPECT_LT(at_once, kMessages) << "the link had room for all";
    EXPECT_LE(waiting, 1);
    // Only a log keeps a message that the link has no room for.
    if (o.log_bytes != 0) {
      EXPECT_EQ(waiting, 1) << (o.pipes ? "pipes" : "sockets");
    }
    for (int i = 0; i < kMessages; i++) {
      std::vector<std::int32_t> in(50, -2);
      if (!messages.at_once(1, in, 0, false)) messages.finish(messages.submit(1, in, 0, false));
      ASSERT_EQ(in, std::vector<std::int32_t>(50, i)) << i << (o.pipes ? ", by pipes" : "");
    }
    for (const Call* call : sends) messages.finish(*call);
  });
}

// Of 192 to 212 bytes the first three are a part of their announcements, the others come in chunks.
TEST(Engine, PointToPointInAnyOrderOfTags) {
  for (const std::uint64_t bytes : {4u, 192u, 100000u}) {
    Mesh mesh({});
    std::vector<std::vector<std::int32_t>> out, in;
    std::vector<std::unique_ptr<Call>> calls;
    constexpr int kMessages = 6;
    for (int i = 0; i < kMessages; i++) {
      out.emplace_back(bytes / 4 + static_cast<std::size_t>(i), i * 11);
      in.emplace_back(bytes / 4 + static_cast<std::size_t>(i), -1);
    }
    for (int i = 0; i < kMessages; i++) {
      calls.push_back(std::make_unique<Call>());
      calls.back()->spec = point(out[static_cast<std::size_t>(i)], 1, i, true);
      ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, *calls.back()).ok());
    }
    for (const int i : {3, 0, 5, 1, 2, 4}) {
      calls.push_back(std::make_unique<Call>());
      calls.back()->spec = point(in[static_cast<std::size_t>(i)], 0, i, false);
      ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, *calls.back()).ok());
    }
    ASSERT_TRUE(mesh.run([&] {
      for (const auto& c : calls) {
        if (!c->finished) return false;
      }
      return true;
    }));
    EXPECT_EQ(in, out);
    std::uint64_t all = 0;
    for (const auto& message : out) all += message.size() * 4;
    EXPECT_EQ(mesh.board(0).moved(1).sent, all);
    EXPECT_EQ(mesh.board(1).moved(0).received, all);
    EXPECT_EQ(mesh.board(1).moved(0).sent, 0u);
  }
}

TEST(Engine, PointToPointOfOneTagKeepsItsOrder) {
  Mesh mesh({});
  std::vector<std::int32_t> first(3, 1), second(3, 2), a(3), b(3);
  Call s1, s2, r1, r2;
  s1.spec = point(first, 1, 5, true);
  s2.spec = point(second, 1, 5, true);
  r1.spec = point(a, 0, 5, false);
  r2.spec = point(b, 0, 5, false);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, s1).ok());
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, s2).ok());
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, r1).ok());
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, r2).ok());
  ASSERT_TRUE(mesh.run([&] { return s1.finished && s2.finished && r1.finished && r2.finished; }));
  EXPECT_EQ(a, first);
  EXPECT_EQ(b, second);
}

// I7, found by the simulator: a message that nobody takes is a wait that is told, as one that nobody sends is.
TEST(Engine, WhoeverWaitsPointToPointSaysForWhom) {
  Mesh mesh({});
  std::vector<std::int32_t> big(1 << 20), in(1);
  Call s, r;
  s.spec = point(big, 1, 5, true);
  r.spec = point(in, 1, 6, false);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, s).ok());
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, r).ok());
  EXPECT_EQ(mesh.engine(0).describe_waits(),
            (std::vector<std::string>{"rank 0 waits for rank 1 to send", "rank 0 waits for rank 1 to receive"}));
}

TEST(Engine, PointToPointThatDisagreesNamesBoth) {
  Mesh mesh({});
  std::vector<std::int32_t> out(3), in(4);
  Call s, r;
  s.spec = point(out, 1, 5, true);
  r.spec = point(in, 0, 5, false);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, s).ok());
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, r).ok());
  std::optional<Engine::Failure> failure;
  ASSERT_TRUE(mesh.run([&] { return (failure = mesh.engine(1).take_failure()).has_value(); }));
  EXPECT_EQ(failure->status.code(), Code::kDesync);
  EXPECT_NE(failure->status.describe().find("3 × i32"), std::string::npos) << failure->status.describe();
}

constexpr GroupId kPair{5};

void make_pair_group(Mesh& mesh, GroupId id) {
  for (int r = 0; r < 2; r++) ASSERT_TRUE(mesh.engine(r).add_group(id, {Rank(0), Rank(1)}, 1).ok());
}

// Exchanges one message each way, so that both ends know the link.
void exchange(Mesh& mesh, GroupId group, std::int32_t value) {
  std::vector<std::int32_t> out(5, value), in(5);
  Call calls[2];
  calls[0].spec = point(out, 1, 1, true);
  calls[1].spec = point(in, 0, 1, false);
  for (int r = 0; r < 2; r++) ASSERT_TRUE(mesh.engine(r).submit(group, calls[r]).ok());
  ASSERT_TRUE(mesh.run([&] { return calls[0].finished && calls[1].finished; }));
  ASSERT_EQ(in, out);
}

TEST(Engine, WhoeverIsBlockedSaysInWhatAndHowFarItIs) {
  Mesh mesh({});
  exchange(mesh, kWorldGroup, 7);
  std::vector<std::int32_t> in(5);
  std::vector<float> x(4, 1.0f);
  Call receive, sum;
  receive.spec = point(in, 0, 6, false);
  sum.spec = sum_of(x);
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, receive).ok());
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, sum).ok());
  std::optional<wire::Blocked> a, b;
  ASSERT_TRUE(mesh.run([&] {
    a = mesh.engine(0).blocked();
    b = mesh.engine(1).blocked();
    return a && a->calls_size() == 1 && b && b->sent_size() == 1;
  }));
  EXPECT_EQ(a->calls(0).collective(), static_cast<std::uint32_t>(Collective::kAllreduce));
  EXPECT_EQ(a->calls(0).sequence(), 0u);
  ASSERT_EQ(a->begun_size(), 1);
  EXPECT_EQ(a->begun(0).rounds(), 1u) << "the round that it is in";
  ASSERT_EQ(a->sent_size(), 1);
  EXPECT_EQ(a->sent(0).messages(), 1u);
  EXPECT_FALSE(a->sent(0).leaving());
  ASSERT_EQ(b->calls_size(), 1);
  EXPECT_EQ(b->calls(0).collective(), static_cast<std::uint32_t>(Collective::kPoint));
  EXPECT_EQ(b->calls(0).root(), 6) << "its tag";
  EXPECT_EQ(b->calls(0).count(), 1u) << "one message has come";
  EXPECT_EQ(b->calls(0).waiting_for(0), 0u);
  EXPECT_EQ(b->begun(0).rounds(), 0u);
}

// It may be on its way to a rank that waits for it.
TEST(Engine, WhoeverIsBlockedTellsWhatADestroyedGroupHasSent) {
  Mesh mesh({});
  make_pair_group(mesh, kPair);
  std::vector<std::int32_t> out(5), in(5);
  Call send, receive;
  send.spec = point(out, 1, 1, true);
  receive.spec = point(in, 1, 1, false);
  ASSERT_TRUE(mesh.engine(0).submit(kPair, send).ok());
  ASSERT_TRUE(mesh.run([&] { return send.finished.load(); }));
  mesh.engine(0).remove_group(kPair);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, receive).ok());
  const auto blocked = mesh.engine(0).blocked();
  ASSERT_TRUE(blocked);
  ASSERT_EQ(blocked->sent_size(), 2);
  EXPECT_EQ(blocked->sent(1).group(), kPair.value);
  EXPECT_GE(blocked->sent(1).messages(), 1u);
}

// Its message may leave as soon as there is room for it.
TEST(Engine, WhoeverSendsIsNotBlocked) {
  Mesh mesh({});
  std::vector<std::int32_t> big(1 << 20);
  Call send;
  send.spec = point(big, 1, 5, true);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, send).ok());
  EXPECT_EQ(mesh.engine(0).blocked(), std::nullopt);
}

TEST(Engine, WhatADestroyedGroupHasNotReceivedHoldsNobodyUp) {
  for (const std::uint32_t streams : {1u, 3u}) {
    Mesh::Options options;
    options.streams = streams;
    Mesh mesh(options);
    make_pair_group(mesh, kPair);
    exchange(mesh, kPair, 3);
    std::vector<std::int32_t> big(1 << 20, 7), small(3, 8);
    Call a, b;
    a.spec = point(big, 1, 5, true);
    b.spec = point(small, 1, 6, true);
    ASSERT_TRUE(mesh.engine(0).submit(kPair, a).ok());
    ASSERT_TRUE(mesh.engine(0).submit(kPair, b).ok());
    EXPECT_FALSE(mesh.run([&] { return a.finished.load(); }));  // more than the kernel takes
    mesh.engine(1).remove_group(kPair);
    EXPECT_TRUE(mesh.engine(1).unsettled());
    ASSERT_TRUE(mesh.run([&] { return a.finished && b.finished; }));
    EXPECT_TRUE(a.status.ok() && b.status.ok());
    // The channel is free when both have said that nothing follows.
    EXPECT_EQ(mesh.engine(1).used_channels()[0], 3u);
    mesh.engine(0).remove_group(kPair);
    ASSERT_TRUE(mesh.run([&] { return !mesh.engine(0).unsettled() && !mesh.engine(1).unsettled(); }));
    for (int r = 0; r < 2; r++) EXPECT_EQ(mesh.engine(r).used_channels()[0], 1u) << r;
    // Its links serve the next group.
    make_pair_group(mesh, GroupId(6));
    exchange(mesh, GroupId(6), 4);
    for (int r = 0; r < 2; r++) EXPECT_EQ(mesh.engine(r).take_failure(), std::nullopt);
  }
}

TEST(Engine, WhoWaitsForAMessageOfADestroyedGroupIsTold) {
  Mesh mesh({});
  make_pair_group(mesh, kPair);
  exchange(mesh, kPair, 3);
  std::vector<std::int32_t> in(5);
  Call r;
  r.spec = point(in, 0, 9, false);
  ASSERT_TRUE(mesh.engine(1).submit(kPair, r).ok());
  mesh.engine(0).remove_group(kPair);
  std::optional<Engine::Failure> failure;
  ASSERT_TRUE(mesh.run([&] { return (failure = mesh.engine(1).take_failure()).has_value(); }));
  EXPECT_EQ(failure->status.code(), Code::kDesync);
  EXPECT_NE(failure->status.describe().find("rank 0 has destroyed the communicator, and a message with tag 9"),
            std::string::npos)
      << failure->status.describe();
}

// I7: a wait for messages is as old as the last that moved, not as the round beside which they run.
TEST(Engine, MessagesThatMoveAreNoLongWait) {
  Mesh mesh({});
  ProgressReporter reporter(100);
  std::vector<std::int32_t> out(3, 1), in(3);
  const auto waited = [&](std::int64_t now) {
    mesh.engine(1).publish_waits();
    const auto progress = reporter.read(mesh.board(1), TimeMs{now});
    return progress.rounds.empty() ? std::uint64_t{0} : progress.rounds[0].waited_ms();
  };
  Call r[2], s;
  for (Call& call : r) {
    call.spec = point(in, 0, 5, false);
    ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, call).ok());
  }
  EXPECT_EQ(waited(1000), 0u);
  EXPECT_EQ(waited(4000), 3000u);
  s.spec = point(out, 1, 5, true);
  ASSERT_TRUE(mesh.engine(0).submit(kWorldGroup, s).ok());
  ASSERT_TRUE(mesh.run([&] { return r[0].finished.load(); }));
  EXPECT_EQ(waited(5000), 0u);
  EXPECT_EQ(waited(6000), 1000u);
}

// A rank that makes its input waits for nobody: two ranks that wait for each other in different rounds are a desync,
// and one of them has only just come to its round.
TEST(Engine, WhoPreparesItsInputDoesNotWait) {
  Mesh mesh({});
  ProgressReporter reporter(100);
  std::vector<std::int32_t> data(3);
  Call call;
  call.spec.collective = Collective::kBroadcast;
  call.spec.type = DataType::kI32;
  call.spec.count = data.size();
  call.spec.output = data.data();
  call.spec.root = 0;
  call.spec.prepare = &input_made_by<[](void*) {}>;
  ASSERT_TRUE(mesh.engine(1).submit(kWorldGroup, call).ok());
  const auto read = [&](std::int64_t now) {
    mesh.engine(1).publish_waits();
    const auto progress = reporter.read(mesh.board(1), TimeMs{now});
    EXPECT_EQ(progress.rounds.size(), 1u);
    return std::pair(progress.rounds[0].waiting_for_size(), progress.rounds[0].waited_ms());
  };
  EXPECT_EQ(read(1000), std::pair(0, std::uint64_t{0}));
  EXPECT_EQ(read(9000), std::pair(0, std::uint64_t{8000}));
  Call* prepared = mesh.engine(1).take_prepare();
  ASSERT_EQ(prepared, &call);
  mesh.engine(1).prepared(call);
  EXPECT_EQ(read(20'000), std::pair(1, std::uint64_t{0}));
  EXPECT_EQ(read(20'500), std::pair(1, std::uint64_t{500}));
  mesh.engine(1).stop(Status(Code::kClosed, "the test ends"));
}

}  // namespace
}  // namespace warren::worker
