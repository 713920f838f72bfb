// The two checksums of a frame (I10). The header's is judged before what the header says, so that a flipped bit is
// never taken for a rank that calls something else; the other covers header and payload.
#pragma once

#include <cstddef>
#include <span>

#include "recovery/wire/frame.h"

namespace warren::worker {

// Fills in both checksums, or zeros where the job does without them, and encodes.
void seal(FrameHeader& header, std::span<const std::byte> payload, bool checksums, FrameBytes& out);

[[nodiscard]] bool header_holds(const FrameBytes& bytes);
[[nodiscard]] bool payload_holds(const FrameBytes& bytes, std::span<const std::byte> payload);

}  // namespace warren::worker
