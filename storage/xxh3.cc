#include "storage/xxh3.h"

#include <xxhash.h>
#ifdef WARREN_XXHASH_DISPATCHES
#include <xxh_x86dispatch.h>
#endif

namespace warren {

// The second header, where there is one, gives this name to what chooses by the processor.
std::uint64_t xxh3(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

Hash128 xxh3_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace warren
