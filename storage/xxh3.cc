#include "storage/xxh3.h"

#include <memory>
#include <new>

#include <xxhash.h>
#ifdef WARREN_XXHASH_DISPATCHES
#include <xxh_x86dispatch.h>
#endif

namespace warren {

// The second header, where there is one, gives this name to what chooses by the processor.
std::uint64_t xxh3(std::span<const std::byte> bytes, std::uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

std::uint64_t xxh3_of_pieces(std::span<const std::span<const std::byte>> pieces) {
  if (pieces.size() == 1) return xxh3(pieces.front());
  const std::unique_ptr<XXH3_state_t, XXH_errorcode (*)(XXH3_state_t*)> state(XXH3_createState(), XXH3_freeState);
  if (state == nullptr) throw std::bad_alloc();
  (void)XXH3_64bits_reset(state.get());
  for (const auto& piece : pieces) (void)XXH3_64bits_update(state.get(), piece.data(), piece.size());
  return XXH3_64bits_digest(state.get());
}

Hash128 xxh3_128(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.low64, hash.high64};
}

}  // namespace warren
