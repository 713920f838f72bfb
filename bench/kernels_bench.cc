// Throughput of the reduction kernels beside memcpy in the same run, and the cost of small calls.
//
// Usage: kernels_bench [--json]. Bandwidth counts what is read and written: memcpy moves 2 bytes a byte, dst = a ⊕ b in
// place 3. The memcpy of a row runs over the same total of bytes, alternating with the kernel; medians.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "worker/kernels/reduce.h"

namespace {

using warren::DataType;
using warren::ReduceOp;
using warren::worker::Form;
using warren::worker::Reducer;
using Clock = std::chrono::steady_clock;

struct Case {
  DataType type;
  ReduceOp op;
  Form dst, a, b;
  bool finish;
};

constexpr Case kCases[] = {
    {DataType::kF32, ReduceOp::kSum, Form::kValue, Form::kValue, Form::kValue, false},
    {DataType::kF32, ReduceOp::kMax, Form::kValue, Form::kValue, Form::kValue, false},
    {DataType::kF32, ReduceOp::kAverage, Form::kValue, Form::kValue, Form::kValue, true},
    {DataType::kF64, ReduceOp::kSum, Form::kValue, Form::kValue, Form::kValue, false},
    {DataType::kI32, ReduceOp::kSum, Form::kValue, Form::kValue, Form::kValue, false},
    {DataType::kI64, ReduceOp::kProduct, Form::kValue, Form::kValue, Form::kValue, false},
    {DataType::kI64, ReduceOp::kAverage, Form::kValue, Form::kValue, Form::kValue, true},
    {DataType::kU8, ReduceOp::kProduct, Form::kValue, Form::kValue, Form::kValue, false},
    {DataType::kI8, ReduceOp::kAverage, Form::kValue, Form::kValue, Form::kValue, true},
    {DataType::kU8, ReduceOp::kBitXor, Form::kValue, Form::kValue, Form::kValue, false},
    {DataType::kF16, ReduceOp::kSum, Form::kPartial, Form::kPartial, Form::kValue, false},
    {DataType::kF16, ReduceOp::kSum, Form::kValue, Form::kValue, Form::kValue, true},
    {DataType::kBF16, ReduceOp::kSum, Form::kPartial, Form::kPartial, Form::kValue, false},
    {DataType::kBF16, ReduceOp::kSum, Form::kValue, Form::kValue, Form::kValue, true},
};

// Seconds of one call, over enough calls to be measurable.
template <class Call>
double seconds(Call call, std::size_t repeat) {
  const auto start = Clock::now();
  for (std::size_t i = 0; i < repeat; ++i) call();
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(repeat);
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

char form_name(Form form) {
  return form == Form::kValue ? 'v' : 'p';
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string_view(argv[1]) == "--json";
  constexpr std::size_t kMaxElements = std::size_t{32} << 20;
  // Small positive numbers in every type, so that repeated sums and products meet neither NaNs nor denormals.
  std::vector<std::byte> a(kMaxElements * 8 + 64), b(kMaxElements * 8 + 64);
  if (!json) {
    std::printf("%-5s %-8s %-5s %10s %12s %10s %12s %7s\n", "type", "op", "forms", "elements", "time ns", "GB/s",
                "memcpy GB/s", "ratio");
  }
  for (const Case& c : kCases) {
    auto made = Reducer::make(c.type, c.op, 3);
    if (!made.ok()) {
      std::fprintf(stderr, "%s\n", made.status().describe().c_str());
      return 1;
    }
    const Reducer& reducer = made.value();
    const std::size_t moved = reducer.bytes(c.dst) + reducer.bytes(c.a) + reducer.bytes(c.b);
    for (const std::size_t bytes : {std::size_t{4}, std::size_t{64}, std::size_t{256}, std::size_t{1024},
                                    std::size_t{8192}, std::size_t{262144}, std::size_t{64} << 20}) {
      const std::size_t n = std::min(kMaxElements, std::max<std::size_t>(1, bytes / reducer.bytes(Form::kValue)));
      std::memset(a.data(), 0, a.size());
      std::memset(b.data(), 0, b.size());
      const std::size_t total = n * moved, copied = total / 2;
      const std::size_t repeat = std::max<std::size_t>(1, (std::size_t{64} << 20) / std::max<std::size_t>(total, 512));
      std::vector<double> ours, copies;
      for (int round = 0; round < 9; ++round) {
        ours.push_back(
            seconds([&] { reducer.reduce(a.data(), c.dst, a.data(), c.a, b.data(), c.b, n, c.finish); }, repeat));
        copies.push_back(seconds(
            [&] {
              std::memcpy(a.data(), b.data(), copied);
              asm volatile("" ::: "memory");
            },
            repeat));
      }
      const double t = median(ours), gbs = static_cast<double>(total) / t * 1e-9;
      const double copy_gbs = static_cast<double>(2 * copied) / median(copies) * 1e-9;
      const char forms[] = {form_name(c.dst), form_name(c.a), form_name(c.b), '\0'};
      std::printf(json ? "{\"type\": \"%s\", \"op\": \"%s\", \"forms\": \"%s\", \"elements\": %zu, \"ns\": %.1f, "
                         "\"gb_s\": %.2f, \"memcpy_gb_s\": %.2f, \"ratio\": %.2f}\n"
                       : "%-5s %-8s %-5s %10zu %12.1f %10.2f %12.2f %7.2f\n",
                  to_string(c.type), to_string(c.op), forms, n, t * 1e9, gbs, copy_gbs, gbs / copy_gbs);
      std::fflush(stdout);
    }
  }
  return 0;
}
