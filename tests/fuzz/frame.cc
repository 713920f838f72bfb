// The header of a data frame: whatever decodes, encodes to the bytes that it came from, and agrees with itself.
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  warren::FrameBytes bytes{};
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(size, bytes.size()), bytes.begin());
  const auto header = warren::decode(bytes);
  if (!header.ok()) {
    WARREN_CHECK(!header.status().message().empty(), "a refusal has a reason");
    return 0;
  }
  WARREN_CHECK(header.value().payload_bytes <= warren::limits::kMaxChunkBytes, "a payload is within its limit");
  warren::FrameBytes again{};
  warren::encode(header.value(), again);
  WARREN_CHECK(again == bytes, "a header that was accepted encodes to its own bytes");
  WARREN_CHECK(warren::match(header.value(), header.value()).ok(), "a header is the one that it is");
  WARREN_CHECK(!warren::to_string(header.value().fingerprint).empty(), "a fingerprint can be named");
  return 0;
}
