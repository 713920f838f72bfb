// The data of `warren bench`: small whole numbers, whose sums, products and so on are exact in every type, so that
// every element of every result can be checked whatever the order of the arithmetic.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "recovery/base/result.h"
#include "warren/c_api.h"

namespace warren::cli {

struct TypeName {
  std::string_view name;
  warren_type type;
  std::size_t bytes;
  bool whole;  // integers and bool: bitwise operations work on them
};
inline constexpr std::array<TypeName, 13> kTypes = {{{"i8", WARREN_I8, 1, true},
                                                     {"u8", WARREN_U8, 1, true},
                                                     {"i32", WARREN_I32, 4, true},
                                                     {"u32", WARREN_U32, 4, true},
                                                     {"i64", WARREN_I64, 8, true},
                                                     {"u64", WARREN_U64, 8, true},
                                                     {"f16", WARREN_F16, 2, false},
                                                     {"bf16", WARREN_BF16, 2, false},
                                                     {"f32", WARREN_F32, 4, false},
                                                     {"f64", WARREN_F64, 8, false},
                                                     {"i16", WARREN_I16, 2, true},
                                                     {"u16", WARREN_U16, 2, true},
                                                     {"bool", WARREN_BOOL, 1, true}}};

struct OpName {
  std::string_view name;
  warren_op op;
  bool bitwise;
};
inline constexpr std::array<OpName, 8> kOps = {{{"sum", WARREN_SUM, false},
                                                {"product", WARREN_PRODUCT, false},
                                                {"min", WARREN_MIN, false},
                                                {"max", WARREN_MAX, false},
                                                {"and", WARREN_BIT_AND, true},
                                                {"or", WARREN_BIT_OR, true},
                                                {"xor", WARREN_BIT_XOR, true},
                                                {"average", WARREN_AVERAGE, false}}};

// One element in its type's bytes, of which the first `bytes` count. Exact for whole numbers from −256 to 256; integers
// wrap, and of bool all but 0 are true.
[[nodiscard]] std::array<std::byte, 8> encode_element(warren_type type, std::int64_t value);

// A buffer in which element i is `element(i)`, for a function that repeats with a period.
class Pattern {
 public:
  Pattern(const TypeName& type, std::size_t period, const std::function<std::int64_t(std::size_t)>& element);

  // Writes elements offset, offset + 1, … into `to`.
  void fill(std::span<std::byte> to, std::size_t offset) const;
  // How many elements of `found` are not elements offset, offset + 1, …
  [[nodiscard]] std::uint64_t errors(std::span<const std::byte> found, std::size_t offset) const;

 private:
  std::size_t element_bytes_;
  std::size_t period_;
  std::vector<std::byte> bytes_;  // many periods, so that fill and errors work on long pieces
};

// What each rank puts in, and what comes out of the reduction of all ranks.
class BenchData {
 public:
  // kInvalidArgument: `op` does not work on `type`, or so many ranks cannot be checked exactly in it.
  static Result<BenchData> make(const TypeName& type, const OpName& op, int ranks);

  [[nodiscard]] const Pattern& input(int rank) const { return inputs_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] const Pattern& reduced() const { return reduced_; }

 private:
  BenchData(std::vector<Pattern> inputs, Pattern reduced) : inputs_(std::move(inputs)), reduced_(std::move(reduced)) {}
  std::vector<Pattern> inputs_;
  Pattern reduced_;
};

}  // namespace warren::cli
