// XXH3 with 64 bits by the widest vectors that this processor has. What is hashed inline elsewhere (headers of fixed
// size) comes to the same values, by the vectors that the compiler may assume: 5 to 11 GB/s in a default build for
// x86-64, where this has 35 to 44 (EPYC with AVX-512, 4 KiB to 1 MiB in cache).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace warren {

[[nodiscard]] std::uint64_t xxh3(std::span<const std::byte> bytes, std::uint64_t seed = 0);

// The hash of these pieces one after the other: xxh3() of one piece with the same bytes.
[[nodiscard]] std::uint64_t xxh3_of_pieces(std::span<const std::span<const std::byte>> pieces);

struct Hash128 {
  std::uint64_t low = 0, high = 0;
  friend bool operator==(const Hash128&, const Hash128&) = default;
};
[[nodiscard]] Hash128 xxh3_128(std::span<const std::byte> bytes);

}  // namespace warren
