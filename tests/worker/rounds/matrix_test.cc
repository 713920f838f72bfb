// Every type and operation by every algorithm over every way that bytes go between ranks, with a log: results against
// those computed one by one. Small integers in all types, so that each result has one value whatever its bracketing.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "recovery/base/limits.h"
#include "tests/sanitized.h"
#include "tests/worker/mesh.h"

namespace warren::worker {
namespace {

using schedule::Algorithm;
using testing::Mesh;

constexpr int kRanks = 5;
constexpr DataType kTypes[] = {DataType::kI8,  DataType::kU8,  DataType::kI32,  DataType::kU32,   DataType::kI64,
                               DataType::kU64, DataType::kF16, DataType::kBF16, DataType::kF32,   DataType::kF64,
                               DataType::kI16, DataType::kU16, DataType::kBool, DataType::kCustom};
constexpr ReduceOp kOps[] = {ReduceOp::kSum,    ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax,    ReduceOp::kBitAnd,  ReduceOp::kBitOr,
                             ReduceOp::kBitXor, ReduceOp::kAverage, ReduceOp::kCustom};
// Of the program's type: three bytes, added up.
constexpr std::size_t kCustomBytes = 3;
constexpr std::size_t kRing = HostPipe::kLeastRingBytes;

struct Way {
  const char* name = "";
  std::vector<std::uint32_t> hosts;
  std::uint32_t streams = 1;
  bool lent = false;
};
std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.name;
}
const Way kWays[] = {
    {"sockets", {0, 1, 2, 3, 4}},   {"streams", {0, 1, 2, 3, 4}, 2},    {"pipes", {0, 0, 0, 0, 0}},
    {"mixed", {0, 0, 1, 1, 1}, 2},  {"lent", {0, 0, 0, 0, 0}, 1, true}, {"mixed_lent", {0, 0, 1, 1, 1}, 1, true},
    {"scattered", {0, 1, 0, 1, 0}},
};

bool takes(DataType type, ReduceOp op) {
  if ((type == DataType::kCustom) != (op == ReduceOp::kCustom)) return false;
  const bool is_float =
      type == DataType::kF16 || type == DataType::kBF16 || type == DataType::kF32 || type == DataType::kF64;
  const bool bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  if (type == DataType::kBool && op == ReduceOp::kAverage) return false;
  return !is_float || !bitwise;
}

// What a rank gives for element i. Sums of all ranks stay below 127 and are multiples of kRanks.
int value(ReduceOp op, int rank, std::uint64_t i) {
  switch (op) {
    case ReduceOp::kProduct: return 1 + static_cast<int>((i + static_cast<std::uint64_t>(rank)) % 3) % 2;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor: return static_cast<int>((i * 7 + static_cast<std::uint64_t>(rank) * 13) & 0x7f);
    default: return static_cast<int>(i * 3 % 7) + kRanks * (rank % 2);
  }
}

// A third of what ranks give is false.
constexpr int kTruths = 3;
bool combined_bools(ReduceOp op, std::uint64_t i) {
  int trues = 0;
  for (int r = 0; r < kRanks; r++) trues += value(op, r, i) % kTruths != 0 ? 1 : 0;
  switch (op) {
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd: return trues == kRanks;
    case ReduceOp::kBitXor: return trues % 2 != 0;
    default: return trues != 0;
  }
}

int combined(DataType type, ReduceOp op, std::uint64_t i) {
  if (type == DataType::kBool) return combined_bools(op, i) ? 1 : 0;
  int all = value(op, 0, i);
  for (int r = 1; r < kRanks; r++) {
    const int v = value(op, r, i);
    switch (op) {
      case ReduceOp::kProduct: all *= v; break;
      case ReduceOp::kMin: all = std::min(all, v); break;
      case ReduceOp::kMax: all = std::max(all, v); break;
      case ReduceOp::kBitAnd: all &= v; break;
      case ReduceOp::kBitOr: all |= v; break;
      case ReduceOp::kBitXor: all ^= v; break;
      default: all += v;
    }
  }
  return op == ReduceOp::kAverage ? all / kRanks : all;
}

// A small number in f16, exactly.
std::uint16_t half(int v) {
  int exponent = 0;
  while (v >> (exponent + 1) != 0) exponent++;
  if (v == 0) return 0;
  return static_cast<std::uint16_t>(((exponent + 15) << 10) | ((v << (10 - exponent)) & 0x3ff));
}

template <class T>
void put(std::byte* to, T v) {
  std::memcpy(to, &v, sizeof v);
}

void store(DataType type, std::byte* to, int v) {
  switch (type) {
    case DataType::kI8:
    case DataType::kU8: return put(to, static_cast<std::uint8_t>(v));
    case DataType::kBool: return put(to, static_cast<std::uint8_t>(v % kTruths));
    case DataType::kI16:
    case DataType::kU16: return put(to, static_cast<std::uint16_t>(v));
    case DataType::kI32:
    case DataType::kU32: return put(to, static_cast<std::uint32_t>(v));
    case DataType::kI64:
    case DataType::kU64: return put(to, static_cast<std::uint64_t>(v));
    case DataType::kF16: return put(to, half(v));
    case DataType::kBF16: {
      const auto f = static_cast<float>(v);
      std::uint32_t bits = 0;
      std::memcpy(&bits, &f, sizeof bits);
      return put(to, static_cast<std::uint16_t>(bits >> 16));
    }
    case DataType::kF32: return put(to, static_cast<float>(v));
    case DataType::kF64: return put(to, static_cast<double>(v));
    default:
      for (std::size_t k = 0; k < kCustomBytes; k++) put(to + k, static_cast<std::uint8_t>(v + static_cast<int>(k)));
  }
}

std::int32_t add_custom(const void* a, void* inout, std::size_t n, void*) {
  const auto* from = static_cast<const std::uint8_t*>(a);
  auto* to = static_cast<std::uint8_t*>(inout);
  for (std::size_t k = 0; k < n * kCustomBytes; k++) to[k] = static_cast<std::uint8_t>(to[k] + from[k]);
  return 0;
}

// Its combination of k + what store() has written of each rank.
void store_combined(DataType type, std::byte* to, int v) {
  if (type != DataType::kCustom) return store(type, to, v);
  for (std::size_t k = 0; k < kCustomBytes; k++)
    put(to + k, static_cast<std::uint8_t>(v + kRanks * static_cast<int>(k)));
}

class Matrix : public ::testing::TestWithParam<std::tuple<Way, Algorithm>> {
 protected:
  Matrix() {
    const auto& [way, algorithm] = GetParam();
    options_.size = kRanks;
    options_.algorithm = algorithm;
    options_.chunk_bytes = 2 * kRing;
    options_.streams = way.streams;
    options_.pipes = true;
    options_.hosts = way.hosts;
    options_.ring_bytes = kRing;
    options_.log_bytes = std::size_t{4} << 20;
  }

  // One call of every rank, in place by turns; the ranks whose turn it is block.
  void run(Mesh& mesh, Collective collective, DataType type, ReduceOp op, std::uint64_t count) {
    const bool uneven = collective == Collective::kReduceScatterv;
    const bool scatters = uneven || collective == Collective::kReduceScatter;
    // Of which a rank has none, one or two shares, or each has one.
    std::vector<std::uint64_t> shares(kRanks, count), before(kRanks, 0);
    for (std::size_t r = 0; r < kRanks; r++) {
      if (uneven) shares[r] = count * (r % 3);
      if (r > 0) before[r] = before[r - 1] + shares[r - 1];
    }
    const std::uint64_t in_count = scatters ? before.back() + shares.back() : count;
    CallSpec spec;
    spec.collective = collective;
    spec.type = type;
    spec.op = op;
    spec.count = uneven ? 0 : count;
    if (uneven) spec.counts = shares;
    spec.root = collective == Collective::kReduce ? turn_ % kRanks : -1;
    if (type == DataType::kCustom) {
      spec.custom = add_custom;
      spec.custom_bytes = kCustomBytes;
    }
    const std::size_t width = element_bytes(spec);
    const bool in_place = turn_++ % 2 == 0 && !scatters;
    std::vector<std::unique_ptr<Call>> calls;
    for (int r = 0; r < kRanks; r++) {
      calls.push_back(std::make_unique<Call>());
      calls.back()->spec = spec;
      std::byte* const in = in_[static_cast<std::size_t>(r)].data();
      std::byte* const out = in_place ? in : out_[static_cast<std::size_t>(r)].data();
      if (!in_place) std::fill_n(out, shares[static_cast<std::size_t>(r)] * width, std::byte{0xa5});
      for (std::uint64_t i = 0; i < in_count; i++) store(type, in + i * width, value(op, r, i));
      calls.back()->spec.input = in;
      calls.back()->spec.output = out;
      calls.back()->blocking = (r + turn_) % 3 != 0;
      const Status valid = validate(calls.back()->spec, {r, kRanks});
      ASSERT_TRUE(valid.ok()) << valid.describe();
      const Status submitted = mesh.engine(r).submit(kWorldGroup, *calls.back());
      ASSERT_TRUE(submitted.ok()) << submitted.describe();
    }
    ASSERT_TRUE(mesh.run([&] {
      return std::ranges::all_of(calls, [](const auto& call) { return call->finished.load(); });
    })) << "stuck";
    std::vector<std::byte> expected(in_count * width);
    for (std::uint64_t i = 0; i < in_count; i++)
      store_combined(type, expected.data() + i * width, combined(type, op, i));
    for (int r = 0; r < kRanks; r++) {
      const Call& call = *calls[static_cast<std::size_t>(r)];
      ASSERT_TRUE(call.status.ok()) << call.status.describe();
      if (collective == Collective::kReduce && r != spec.root) continue;
      const auto rank = static_cast<std::size_t>(r);
      const std::byte* const wanted = expected.data() + (scatters ? before[rank] * width : 0);
      ASSERT_EQ(std::memcmp(call.spec.output, wanted, shares[rank] * width), 0) << "rank " << r;
    }
  }

  Mesh::Options options_;
  int turn_ = 0;
  std::vector<std::span<std::byte>> in_;
  std::vector<std::vector<std::byte>> out_;
};

TEST_P(Matrix, EveryTypeAndOperation) {
  const auto& [way, algorithm] = GetParam();
  // Pieces of over 16 KiB a rank, and more than a ring in all.
  constexpr std::size_t kLarge = 3 * kRing + 24;
  for (const DataType type : kTypes) {
    Mesh mesh(options_);
    std::vector<std::vector<std::byte>> own(kRanks);
    in_.clear();
    out_.assign(kRanks, std::vector<std::byte>(kLarge));
    for (int r = 0; r < kRanks; r++) {
      auto& memory = own[static_cast<std::size_t>(r)];
      if (!way.lent) memory.resize(kLarge);
      in_.push_back(way.lent ? mesh.allocate(r, kLarge) : std::span(memory));
    }
    CallSpec spec;
    spec.type = type;
    spec.custom_bytes = kCustomBytes;
    const std::size_t width = element_bytes(spec);
    for (const ReduceOp op : kOps) {
      if (!takes(type, op)) continue;
      for (const std::uint64_t count : {std::uint64_t{1}, std::uint64_t{601}, std::uint64_t{kLarge / width}}) {
        // Where a sanitizer looks at every access, one operation of a type is as long.
        if (kAddressSanitized && count > 601 && op != ReduceOp::kSum && op != ReduceOp::kCustom) continue;
        SCOPED_TRACE(std::string(to_string(type)) + " " + to_string(op) + " n=" + std::to_string(count));
        run(mesh, Collective::kAllreduce, type, op, count);
        if (HasFatalFailure()) return;
        if (count != 601) continue;
        for (const Collective collective :
             {Collective::kReduce, Collective::kReduceScatter, Collective::kReduceScatterv}) {
          // A function of the program's combines uneven shares by direct alone.
          const bool by_direct = algorithm == Algorithm::kAuto || algorithm == Algorithm::kDirect;
          if (collective == Collective::kReduceScatterv && type == DataType::kCustom && !by_direct) continue;
          SCOPED_TRACE(to_string(collective));
          run(mesh, collective, type, op, count);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Matrix,
                         ::testing::Combine(::testing::ValuesIn(kWays),
                                            ::testing::Values(Algorithm::kAuto, Algorithm::kStar, Algorithm::kTree,
                                                              Algorithm::kButterfly, Algorithm::kRing,
                                                              Algorithm::kDirect)),
                         [](const auto& tested) {
                           return std::string(std::get<0>(tested.param).name) + "_" +
                                  std::string(schedule::to_string(std::get<1>(tested.param)));
                         });

}  // namespace
}  // namespace warren::worker
