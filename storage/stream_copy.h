// Copies that nobody will read from this core's cache soon.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace warren {

// memcpy() past the cache: what was in the destination is not fetched first, and nothing else is pushed out. Worth it
// for destinations that are in no cache. Other threads see the bytes after a release store of this one, as ever.
inline void stream_copy(std::byte* to, const std::byte* from, std::size_t bytes) {
#if defined(__SSE2__)
  constexpr std::size_t kLine = 64;
  const std::size_t misaligned = (kLine - reinterpret_cast<std::uintptr_t>(to) % kLine) % kLine;
  if (bytes >= misaligned + kLine) {
    std::memcpy(to, from, misaligned);
    to += misaligned;
    from += misaligned;
    bytes -= misaligned;
    for (; bytes >= kLine; bytes -= kLine, to += kLine, from += kLine) {
      const auto* in = reinterpret_cast<const __m128i*>(from);
      auto* out = reinterpret_cast<__m128i*>(to);
      const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
      const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    _mm_sfence();
  }
#endif
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace warren
