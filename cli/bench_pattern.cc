#include "cli/bench_pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>

namespace warren::cli {
namespace {

constexpr std::size_t kLeastPatternElements = 4096;

// Of a whole number from −2048 to 2048, which f16 holds exactly.
std::uint16_t half_bits(std::int64_t value) {
  if (value == 0) return 0;
  const auto magnitude = static_cast<std::uint32_t>(value < 0 ? -value : value);
  const int exponent = std::bit_width(magnitude) - 1;
  const std::uint32_t fraction = (magnitude << (10 - exponent)) & 0x3ffu;
  const std::uint32_t sign = value < 0 ? 0x8000u : 0u;
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(exponent + 15) << 10 | fraction);
}

template <class T>
void put(std::array<std::byte, 8>& to, T value) {
  std::memcpy(to.data(), &value, sizeof value);
}

// Rank r's element i. Sums stay below 4 for each rank; a product has one factor of 2; an average is exact.
std::int64_t element(warren_op op, int ranks, std::int64_t modulus, int rank, std::size_t i) {
  const auto n = static_cast<std::int64_t>(i);
  if (op == WARREN_PRODUCT) return (n + rank) % ranks == 0 ? 2 : 1;
  if (op == WARREN_AVERAGE) {
    // One above and one below the average by turns; the last of an odd number is the average itself.
    const bool paired = (rank ^ 1) < ranks;
    return 2 + n % 4 + (paired ? (rank % 2 == 0 ? 1 : -1) : 0);
  }
  return (n + rank) % modulus;
}

std::int64_t combine(warren_op op, std::int64_t a, std::int64_t b) {
  switch (op) {
    case WARREN_PRODUCT: return a * b;
    case WARREN_MIN: return std::min(a, b);
    case WARREN_MAX: return std::max(a, b);
    case WARREN_BIT_AND: return a & b;
    case WARREN_BIT_OR: return a | b;
    case WARREN_BIT_XOR: return a ^ b;
    case WARREN_SUM:
    case WARREN_AVERAGE: break;
  }
  return a + b;
}

}  // namespace

std::array<std::byte, 8> encode_element(warren_type type, std::int64_t value) {
  std::array<std::byte, 8> out{};
  switch (type) {
    case WARREN_I8:
    case WARREN_U8: put(out, static_cast<std::uint8_t>(value)); break;
    case WARREN_I16:
    case WARREN_U16: put(out, static_cast<std::uint16_t>(value)); break;
    case WARREN_BOOL: put(out, static_cast<std::uint8_t>(value != 0)); break;
    case WARREN_I32:
    case WARREN_U32: put(out, static_cast<std::uint32_t>(value)); break;
    case WARREN_I64:
    case WARREN_U64: put(out, static_cast<std::uint64_t>(value)); break;
    case WARREN_F16: put(out, half_bits(value)); break;
    case WARREN_BF16:
      put(out, static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16));
      break;
    case WARREN_F32: put(out, static_cast<float>(value)); break;
    case WARREN_F64: put(out, static_cast<double>(value)); break;
  }
  return out;
}

Pattern::Pattern(const TypeName& type, std::size_t period, const std::function<std::int64_t(std::size_t)>& element)
    : element_bytes_(type.bytes), period_(period) {
  const std::size_t elements = (kLeastPatternElements + period - 1) / period * period;
  bytes_.resize(elements * element_bytes_);
  for (std::size_t i = 0; i < elements; ++i) {
    const auto encoded = encode_element(type.type, element(i % period));
    std::memcpy(bytes_.data() + i * element_bytes_, encoded.data(), element_bytes_);
  }
}

void Pattern::fill(std::span<std::byte> to, std::size_t offset) const {
  std::size_t at = offset % period_ * element_bytes_;
  while (!to.empty()) {
    const std::size_t n = std::min(to.size(), bytes_.size() - at);
    std::memcpy(to.data(), bytes_.data() + at, n);
    to = to.subspan(n);
    at = 0;
  }
}

std::uint64_t Pattern::errors(std::span<const std::byte> found, std::size_t offset) const {
  std::uint64_t wrong = 0;
  std::size_t at = offset % period_ * element_bytes_;
  while (!found.empty()) {
    const std::size_t n = std::min(found.size(), bytes_.size() - at);
    if (std::memcmp(found.data(), bytes_.data() + at, n) != 0) {
      for (std::size_t i = 0; i < n; i += element_bytes_) {
        wrong += std::memcmp(found.data() + i, bytes_.data() + at + i, element_bytes_) != 0 ? 1 : 0;
      }
    }
    found = found.subspan(n);
    at = 0;
  }
  return wrong;
}

Result<BenchData> BenchData::make(const TypeName& type, const OpName& op, int ranks) {
  if (op.bitwise && !type.whole) {
    return Status(Code::kInvalidArgument,
                  std::string(op.name) + " works on integers, not on " + std::string(type.name));
  }
  if (op.op == WARREN_AVERAGE && type.type == WARREN_BOOL) {
    return Status(Code::kInvalidArgument, "bools have no average");
  }
  // Whole numbers up to 256 are exact in bf16, up to 2048 in f16.
  const std::int64_t exact = type.type == WARREN_BF16 ? 256 : type.type == WARREN_F16 ? 2048 : INT64_MAX;
  // Of 0 and 1 the numbers' results are those of bools, but for what encode_element() makes of them.
  std::int64_t modulus = type.type == WARREN_BOOL ? 2 : 4;
  while (modulus > 2 && (modulus - 1) * ranks > exact) modulus /= 2;
  if (op.op == WARREN_SUM && (modulus - 1) * ranks > exact) {
    return Status(Code::kInvalidArgument, "the sums of " + std::to_string(ranks) + " ranks are not exact in " +
                                              std::string(type.name) + ", so they cannot be checked; use another type");
  }
  const std::size_t period = op.op == WARREN_PRODUCT ? static_cast<std::size_t>(ranks) : 4;
  const auto of = [&](int rank) {
    return [&, rank](std::size_t i) { return element(op.op, ranks, modulus, rank, i); };
  };
  std::vector<Pattern> inputs;
  for (int r = 0; r < ranks; ++r) inputs.emplace_back(type, period, of(r));
  Pattern reduced(type, period, [&](std::size_t i) {
    std::int64_t all = of(0)(i);
    for (int r = 1; r < ranks; ++r) all = combine(op.op, all, of(r)(i));
    return op.op == WARREN_AVERAGE ? all / ranks : all;
  });
  return BenchData(std::move(inputs), std::move(reduced));
}

}  // namespace warren::cli
