// Control messages, as a worker and as the tracker would send them: whatever is accepted, encodes again to something
// that is accepted and means the same.
#include <cstdint>
#include <span>
#include <string>

#include "recovery/base/check.h"
#include "recovery/wire/codec.h"

namespace {

void decode_as(std::span<const std::byte> bytes, warren::Side from) {
  const auto envelope = warren::decode_envelope(bytes, from);
  if (!envelope.ok()) {
    WARREN_CHECK(!envelope.status().message().empty(), "a refusal has a reason");
    return;
  }
  const std::string text = warren::encode(envelope.value(), from);
  const auto again = warren::decode_envelope(std::as_bytes(std::span(text)), from);
  WARREN_CHECK(again.ok(), "what was accepted once is accepted again");
  WARREN_CHECK(warren::encode(again.value(), from) == text, "decoding and encoding loses nothing");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  decode_as(bytes, warren::Side::kWorker);
  decode_as(bytes, warren::Side::kTracker);
  return 0;
}
