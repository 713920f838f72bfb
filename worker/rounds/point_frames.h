// The frames and records of messages: what an announcement and a greeting look like on a link, and by which keys the
// log has messages. Integers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "recovery/base/ids.h"
#include "recovery/wire/frame.h"
#include "storage/host_log.h"
#include "worker/rounds/call.h"

namespace warren::worker {

// Links for point-to-point messages carry a group id of their own.
inline constexpr std::uint64_t kPointGroupMark = 0x706f696e74000000u;
// In place of a type: nothing follows on this link.
inline constexpr std::uint32_t kEndOfMessages = UINT32_MAX;
// A message is a part of its announcement up to so many bytes.
inline constexpr std::size_t kInlineBytes = 200;

struct WireAnnouncement {
  std::uint32_t tag;
  std::uint32_t type;
  std::uint64_t count, bytes, site, version, number, reserved;
  std::array<std::byte, kInlineBytes> payload;  // of a message that fits; otherwise 0
};
static_assert(sizeof(WireAnnouncement) == 256);

// The messages that an end has received: of `version`, all numbers below `prefix` and `ranges` pairs [begin, end) that
// follow.
struct WireGreeting {
  std::uint64_t version, prefix, ranges, reserved;
};
static_assert(sizeof(WireGreeting) == 32);
inline constexpr std::uint64_t kGreetingSequence = UINT64_MAX;
inline constexpr std::size_t kMaxGreetingRanges = 65536;

// Names the messages from one rank of a group to another.
[[nodiscard]] GroupId pair_of(std::uint64_t group, std::int32_t from, std::int32_t to);

// Without bytes, version, number and payload. `logged`: the fingerprint of record_of().
[[nodiscard]] WireAnnouncement announcement_of(const CallSpec& spec);
[[nodiscard]] WireAnnouncement announcement_of(const Fingerprint& logged);

// The log's record of a message of so many bytes.
[[nodiscard]] RecordInfo record_of(const CallSpec& spec, std::uint64_t bytes);

}  // namespace warren::worker
