// Throughput of the reduction kernels beside the same accesses to memory with next to no computing, in turns with them
// in one process; and the cost of small calls.
//
// Usage: kernels_bench [--json]. Bandwidth counts what is read and written, each operand and the result once. Medians.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bench/access_patterns.h"
#include "worker/kernels/reduce.h"

namespace {

using warren::DataType;
using warren::ReduceOp;
using warren::bench::Pattern;
using warren::worker::Bracketing;
using warren::worker::Form;
using warren::worker::Reducer;
using Clock = std::chrono::steady_clock;

constexpr Form kValue = Form::kValue, kPartial = Form::kPartial;

enum class Kind { kReduce, kChain, kBalanced, kConvert };

struct Case {
  Kind kind;
  DataType type;
  ReduceOp op;
  std::size_t operands;
  Pattern pattern;
  // Of two operands and of conversions.
  Form dst = kValue, a = kValue, b = kValue;
  bool finish = true;
};

// What one rank does with what comes from another, in place.
constexpr Case two(DataType type, ReduceOp op, bool finish = false) {
  return {Kind::kReduce, type, op, 2, Pattern::kTwo, kValue, kValue, kValue, finish};
}
constexpr Case into_partials(DataType type) {
  return {Kind::kReduce, type, ReduceOp::kSum, 2, Pattern::kTwoToWide, kPartial, kPartial, kValue, false};
}
constexpr Case many(Kind kind, DataType type, ReduceOp op, std::size_t operands, Pattern pattern) {
  return {kind, type, op, operands, pattern};
}
constexpr Case convert(DataType type, Form dst, Form from) {
  return {Kind::kConvert, type,   ReduceOp::kSum, 1, dst == kPartial ? Pattern::kWiden : Pattern::kNarrow, dst,
          from,           kValue, false};
}

constexpr Case kCases[] = {
    two(DataType::kF32, ReduceOp::kSum),
    two(DataType::kF32, ReduceOp::kMax),
    two(DataType::kF32, ReduceOp::kAverage, true),
    two(DataType::kF64, ReduceOp::kSum),
    two(DataType::kI32, ReduceOp::kSum),
    two(DataType::kI64, ReduceOp::kProduct),
    two(DataType::kI64, ReduceOp::kAverage, true),
    two(DataType::kU8, ReduceOp::kProduct),
    two(DataType::kI8, ReduceOp::kAverage, true),
    two(DataType::kU8, ReduceOp::kBitXor),
    two(DataType::kF16, ReduceOp::kSum, true),
    two(DataType::kBF16, ReduceOp::kSum, true),
    into_partials(DataType::kF16),
    into_partials(DataType::kBF16),
    many(Kind::kChain, DataType::kF32, ReduceOp::kSum, 3, Pattern::kThree),
    many(Kind::kChain, DataType::kF32, ReduceOp::kSum, 4, Pattern::kFour),
    many(Kind::kChain, DataType::kF32, ReduceOp::kSum, 8, Pattern::kEight),
    many(Kind::kChain, DataType::kF32, ReduceOp::kSum, 16, Pattern::kSixteen),
    many(Kind::kBalanced, DataType::kF32, ReduceOp::kSum, 4, Pattern::kFour),
    many(Kind::kBalanced, DataType::kF32, ReduceOp::kSum, 8, Pattern::kEight),
    many(Kind::kBalanced, DataType::kF32, ReduceOp::kSum, 16, Pattern::kSixteen),
    many(Kind::kBalanced, DataType::kI64, ReduceOp::kSum, 4, Pattern::kFour),
    many(Kind::kChain, DataType::kBF16, ReduceOp::kSum, 4, Pattern::kFour),
    many(Kind::kBalanced, DataType::kBF16, ReduceOp::kSum, 4, Pattern::kFour),
    many(Kind::kBalanced, DataType::kBF16, ReduceOp::kSum, 8, Pattern::kEight),
    many(Kind::kBalanced, DataType::kF16, ReduceOp::kSum, 4, Pattern::kFour),
    convert(DataType::kF16, kPartial, kValue),
    convert(DataType::kF16, kValue, kPartial),
    convert(DataType::kBF16, kPartial, kValue),
    convert(DataType::kBF16, kValue, kPartial),
};

constexpr std::size_t kMostOperands = 16;
constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of an operand of values
constexpr std::size_t kLeastCompared = 8192;               // bytes; below, the cost of a call is what counts
constexpr std::size_t kBytes[] = {4, 64, 256, 1024, kLeastCompared, std::size_t{256} << 10, kMostBytes};
constexpr int kRounds = 9;

// Zeros, which are neither NaNs nor denormals however often they are combined.
std::byte* zeros(std::size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, bytes) != 0) {
    std::fprintf(stderr, "out of memory\n");
    std::exit(1);
  }
  std::memset(memory, 0, bytes);
  return static_cast<std::byte*>(memory);
}

// Seconds of one call, over enough calls to be measurable.
template <class Call>
double seconds(Call call, std::size_t repeat) {
  const auto start = Clock::now();
  for (std::size_t i = 0; i < repeat; ++i) {
    call();
    asm volatile("" ::: "memory");
  }
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(repeat);
}

double median(std::vector<double> v) {
  std::ranges::nth_element(v, v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2));
  return v[v.size() / 2];
}

std::string name_of(const Case& c) {
  const auto form = [](Form f) { return f == kValue ? 'v' : 'p'; };
  switch (c.kind) {
    case Kind::kReduce: return {'2', ' ', form(c.dst), form(c.a), form(c.b)};
    case Kind::kChain: return std::to_string(c.operands) + " chain";
    case Kind::kBalanced: return std::to_string(c.operands) + " tree";
    case Kind::kConvert: return {'1', ' ', form(c.dst), form(c.a)};
  }
  return "";
}

// Of one case and size.
struct Row {
  std::size_t elements = 0;
  double ns = 0, gb_s = 0;
  double access_gb_s = 0, streaming_gb_s = 0;  // 0: not compared
};

Row measure(const Case& c, const Reducer& reducer, std::size_t bytes, std::byte* result,
            std::span<std::byte* const> operands) {
  Row row;
  const std::size_t n = row.elements = std::max<std::size_t>(1, bytes / reducer.bytes(kValue));
  std::size_t moved = n * reducer.bytes(c.dst) + n * reducer.bytes(c.a);
  if (c.kind != Kind::kConvert) moved += n * reducer.bytes(c.b) + (c.operands - 2) * n * reducer.bytes(kValue);
  const std::size_t repeat = std::max<std::size_t>(1, (std::size_t{64} << 20) / std::max<std::size_t>(moved, 512));
  // Two are combined in place.
  std::byte* const to = c.kind == Kind::kReduce ? operands[0] : result;
  const void* from[kMostOperands];
  std::ranges::copy(operands, from);
  // Operations of the library's own do not fail.
  const auto kernel = [&] {
    switch (c.kind) {
      case Kind::kReduce: return (void)reducer.reduce(to, c.dst, from[0], c.a, from[1], c.b, n, c.finish);
      case Kind::kChain:
        return (void)reducer.combine(to, Form::kValue, {from, c.operands}, Form::kValue, Bracketing::kChain, n);
      case Kind::kBalanced:
        return (void)reducer.combine(to, Form::kValue, {from, c.operands}, Form::kValue, Bracketing::kBalanced, n);
      case Kind::kConvert: return reducer.copy(to, c.dst, from[0], c.a, n, c.finish);
    }
  };
  const bool compares = bytes >= kLeastCompared;
  const auto plain = warren::bench::access(c.pattern, false);
  const auto streaming = warren::bench::access(c.pattern, true);
  std::vector<double> kernel_s, plain_s, streaming_s;
  for (int round = 0; round < kRounds; ++round) {
    kernel_s.push_back(seconds(kernel, repeat));
    if (!compares) continue;
    plain_s.push_back(seconds([&] { plain(to, operands.data(), n * reducer.bytes(kValue)); }, repeat));
    streaming_s.push_back(seconds([&] { streaming(to, operands.data(), n * reducer.bytes(kValue)); }, repeat));
  }
  const auto rate = [&](const std::vector<double>& times_s) {
    return times_s.empty() ? 0 : static_cast<double>(moved) / median(times_s) * 1e-9;
  };
  row.ns = median(kernel_s) * 1e9;
  row.gb_s = rate(kernel_s);
  row.access_gb_s = rate(plain_s);
  row.streaming_gb_s = rate(streaming_s);
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string_view(argv[1]) == "--json";
  // Partials are twice as large.
  std::vector<std::byte*> operands;
  for (std::size_t k = 0; k < kMostOperands; ++k) operands.push_back(zeros(k == 0 ? 2 * kMostBytes : kMostBytes));
  std::byte* const result = zeros(2 * kMostBytes);
  if (!json) {
    std::printf("%-5s %-8s %-8s %10s %10s %12s %10s %12s %15s %7s\n", "type", "op", "operands", "bytes", "elements",
                "time ns", "GB/s", "access GB/s", "streaming GB/s", "ratio");
  }
  for (const Case& c : kCases) {
    auto made = Reducer::make(c.type, c.op, 3);
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.status().describe().c_str());
      return 1;
    }
    for (const std::size_t bytes : kBytes) {
      const Row row = measure(c, made.value(), bytes, result, operands);
      const double ratio = row.access_gb_s == 0 ? 0 : row.gb_s / row.access_gb_s;
      std::printf(
          json ? "{\"type\": \"%s\", \"op\": \"%s\", \"operands\": \"%s\", \"bytes\": %zu, \"elements\": %zu, "
                 "\"ns\": %.1f, \"gb_s\": %.2f, \"access_gb_s\": %.2f, \"streaming_gb_s\": %.2f, \"ratio\": %.3f}\n"
               : "%-5s %-8s %-8s %10zu %10zu %12.1f %10.2f %12.2f %15.2f %7.2f\n",
          to_string(c.type), to_string(c.op), name_of(c).c_str(), bytes, row.elements, row.ns, row.gb_s,
          row.access_gb_s, row.streaming_gb_s, ratio);
      std::fflush(stdout);
    }
  }
  for (std::byte* memory : operands) std::free(memory);
  std::free(result);
  return 0;
}
