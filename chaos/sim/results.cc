#include "chaos/sim/results.h"

#include <cmath>
#include <cstring>

#include "chaos/sim/elements.h"
#include "chaos/sim/random.h"
#include "recovery/base/check.h"

namespace warren::chaos {
namespace {

using Keys = std::span<const std::uint64_t>;
constexpr int kLargest = 127;  // the first value of each Block

void write_element(const ProgramStep& step, std::size_t size, std::uint64_t key, std::uint64_t i, std::byte* to) {
  const std::uint64_t bits = Random::mix(key ^ Random::mix(i));
  if (step.type == DataType::kCustom) {
    const Affine map{bits | 1, Random::mix(bits)};
    std::memcpy(to, &map, sizeof map);
    return;
  }
  if (step.type == DataType::kF32AsI8) {
    const auto ranks = static_cast<int>(size);
    Block block;
    block.values[0] = kLargest;
    for (std::size_t v = 1; v < block.values.size(); ++v) {
      block.values[v] = static_cast<std::int8_t>(ranks * (static_cast<int>(Random::mix(bits + v) % 3) - 1));
    }
    std::memcpy(to, &block, sizeof block);
    return;
  }
  if (!is_float(step.type)) {
    std::memcpy(to, &bits, element_bytes(step.type));
    return;
  }
  double v = 0;
  if (step.values == Values::kRough) {
    v = static_cast<double>(static_cast<std::int64_t>(bits >> 12)) * 0x1p-52 - 0.3;
  } else if (step.op == ReduceOp::kProduct) {
    v = (bits & 1) != 0 ? 1 : -1;
  } else if (step.op == ReduceOp::kAverage) {
    // A multiple of the number of ranks, so that dividing is exact too.
    v = static_cast<double>(size) * static_cast<double>(bits % 3) - static_cast<double>(size);
  } else {
    v = static_cast<double>(bits % 17) - 8;
  }
  write_float(step.type, v, to);
}

// Fills the results of calls that move elements; false: the call combines them.
bool copy_expected(const ProgramStep& step, std::size_t size, std::int32_t place, Keys keys,
                   std::vector<std::byte>& out) {
  const std::size_t width = width_of(step);
  const std::uint64_t count = out_count(step, size, place);
  const auto ranks = static_cast<std::int32_t>(keys.size());
  const auto key = [&](std::int32_t of) { return keys[static_cast<std::size_t>(of)]; };
  const auto copy = [&](std::int32_t from, std::uint64_t at, std::uint64_t n, std::uint64_t to) {
    for (std::uint64_t i = 0; i < n; ++i) write_element(step, size, key(from), at + i, out.data() + (to + i) * width);
  };
  const auto mine = static_cast<std::uint64_t>(place) * step.count;
  switch (step.collective) {
    case Collective::kBroadcast:
    case Collective::kPoint: copy(step.root, 0, count, 0); return true;
    case Collective::kScatter: copy(step.root, mine, count, 0); return true;
    case Collective::kBarrier: return true;
    case Collective::kAllgather:
    case Collective::kGather:
      for (std::int32_t r = 0; r < ranks && count != 0; ++r) {
        copy(r, 0, step.count, static_cast<std::uint64_t>(r) * step.count);
      }
      return true;
    case Collective::kAllgatherv: {
      std::uint64_t at = 0;
      for (std::int32_t r = 0; r < ranks; at += step.counts[static_cast<std::size_t>(r++)]) {
        copy(r, 0, step.counts[static_cast<std::size_t>(r)], at);
      }
      return true;
    }
    case Collective::kAllToAll:
      for (std::int32_t r = 0; r < ranks; ++r) copy(r, mine, step.count, static_cast<std::uint64_t>(r) * step.count);
      return true;
    case Collective::kAllToAllv: {
      std::uint64_t at = 0;
      for (std::int32_t r = 0; r < ranks; ++r) {
        const std::vector<std::uint64_t> row = sent_by(step, size, r);
        copy(r, below(row, static_cast<std::size_t>(place)), row[static_cast<std::size_t>(place)], at);
        at += row[static_cast<std::size_t>(place)];
      }
      return true;
    }
    default: return false;
  }
}

// `first`: the element of the whole with which this rank's begin.
void combine_blocks(const ProgramStep& step, std::size_t size, std::uint64_t first, Keys keys,
                    std::vector<std::byte>& out) {
  const std::size_t width = width_of(step);
  const std::uint64_t count = out.size() / width;
  const auto ranks = static_cast<std::int32_t>(keys.size());
  WARREN_CHECK(ranks > 0, "a sum has contributors");
  for (std::uint64_t i = 0; i < count; ++i) {
    std::array<int, kI8BlockValues> sums{};
    for (std::int32_t r = 0; r < ranks; ++r) {
      Block block;
      write_element(step, size, keys[static_cast<std::size_t>(r)], first + i, reinterpret_cast<std::byte*>(&block));
      for (std::size_t v = 0; v < sums.size(); ++v) sums[v] += block.values[v];
    }
    // The scale is the first value / 127: of a sum the number of ranks, by which all others can be divided; of an
    // average 1.
    Block made;
    if (step.op == ReduceOp::kSum) made.scale = static_cast<float>(ranks);
    for (std::size_t v = 0; v < sums.size(); ++v) made.values[v] = static_cast<std::int8_t>(sums[v] / ranks);
    std::memcpy(out.data() + i * width, &made, sizeof made);
  }
}

void combine_elements(const ProgramStep& step, std::size_t size, std::uint64_t first, Keys keys,
                      std::vector<std::byte>& out) {
  const std::size_t width = width_of(step);
  const std::uint64_t count = out.size() / width;
  const auto ranks = static_cast<std::int32_t>(keys.size());
  alignas(16) std::byte element[sizeof(Affine)];
  for (std::uint64_t i = 0; i < count; ++i) {
    std::byte* to = out.data() + i * width;
    double sum = 0;
    for (std::int32_t r = 0; r < ranks; ++r) {
      write_element(step, size, keys[static_cast<std::size_t>(r)], first + i, element);
      if (is_float(step.type)) {
        const double v = read_float(step.type, element);
        sum = r == 0 ? v : combine_floats(step.op, sum, v);
      } else if (r == 0) {
        std::memcpy(to, element, width);
      } else if (step.type == DataType::kCustom) {
        (void)chain_affine(element, to, 1, nullptr);
      } else {
        combine_integers(step.type, step.op, element, to);
      }
    }
    if (is_float(step.type)) {
      write_float(step.type, step.op == ReduceOp::kAverage ? sum / ranks : sum, to);
    } else if (step.op == ReduceOp::kAverage) {
      divide_integer(step.type, to, keys.size());
    }
  }
}

// Whether an element combines the ranks in their order, begun at any of them.
bool chained_in_order(const ProgramStep& step, std::size_t size, std::uint64_t i, Keys keys, const std::byte* got) {
  const auto ranks = static_cast<std::int32_t>(keys.size());
  const auto key = [&](std::int32_t of) { return keys[static_cast<std::size_t>(of)]; };
  alignas(16) std::byte element[sizeof(Affine)], chain[sizeof(Affine)];
  for (std::int32_t first = 0; first < ranks; ++first) {
    write_element(step, size, key((first + ranks - 1) % ranks), i, chain);
    for (std::int32_t r = ranks - 2; r >= 0; --r) {
      write_element(step, size, key((first + r) % ranks), i, element);
      (void)chain_affine(element, chain, 1, nullptr);
    }
    if (std::memcmp(chain, got, sizeof chain) == 0) return true;
  }
  return false;
}

}  // namespace

std::vector<std::byte> input_of(const ProgramStep& step, std::size_t size, std::int32_t place, std::uint64_t key) {
  const std::size_t width = width_of(step);
  // A broadcast's data stands in the root's output.
  const std::uint64_t count =
      step.collective == Collective::kBroadcast && place == step.root ? step.count : in_count(step, size, place);
  std::vector<std::byte> bytes(count * width);
  for (std::uint64_t i = 0; i < count; ++i) write_element(step, size, key, i, bytes.data() + i * width);
  return bytes;
}

std::vector<std::byte> expected_of(const ProgramStep& step, std::size_t size, std::int32_t place, Keys keys) {
  std::vector<std::byte> out(out_count(step, size, place) * width_of(step));
  if (copy_expected(step, size, place, keys, out)) return out;
  if (step.type == DataType::kF32AsI8) {
    combine_blocks(step, size, first_of(step, place), keys, out);
  } else {
    combine_elements(step, size, first_of(step, place), keys, out);
  }
  return out;
}

std::string judge_result(const ProgramStep& step, std::size_t size, std::int32_t place, Keys keys,
                         std::span<const std::byte> got, std::span<const std::byte> expected) {
  const std::uint64_t first = first_of(step, place);
  if (step.values == Values::kFresh) return "";
  const std::size_t width = width_of(step);
  for (std::size_t at = 0; at < expected.size(); at += width) {
    bool right = std::memcmp(got.data() + at, expected.data() + at, width) == 0;
    if (!right && step.values == Values::kAffine) {
      right = chained_in_order(step, size, first + at / width, keys, got.data() + at);
    } else if (!right && step.values == Values::kRough) {
      const double tolerance = (step.type == DataType::kF32 ? 1e-5 : 1e-12) * static_cast<double>(size);
      right =
          std::fabs(read_float(step.type, got.data() + at) - read_float(step.type, expected.data() + at)) <= tolerance;
    }
    if (!right) {
      const auto hex = [&](std::span<const std::byte> bytes) {
        std::string text;
        for (std::size_t i = width; i-- > 0;) {
          for (const int shift : {4, 0}) {
            text += "0123456789abcdef"[std::to_integer<unsigned>(bytes[at + i]) >> shift & 15u];
          }
        }
        return text;
      };
      return "element " + std::to_string(at / width) + " of " + std::to_string(expected.size() / width) + " is " +
             hex(got) + " and not " + hex(expected);
    }
  }
  return {};
}

}  // namespace warren::chaos
