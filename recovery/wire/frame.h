// The header in front of every chunk on a data link, and the fingerprint of a collective call.
//
// On the wire: 96 bytes, little-endian, in the order of the members of FrameHeader. The transport computes and verifies
// the two checksums (worker/transport/frame_checksum.h): one over the header before it, one over that and the payload.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"

namespace warren {

// The values of these three enums are on the wire and in the C ABI.
enum class Collective : std::uint8_t {
  kAllreduce = 1,
  kReduce = 2,
  kBroadcast = 3,
  kBarrier = 4,
  kAllgather = 5,
  kAllgatherv = 6,
  kReduceScatter = 7,
  kGather = 8,
  kScatter = 9,
  kAllToAll = 10,
  kPoint = 11,  // send and recv
  kReduceScatterv = 12,
  kAllToAllv = 13,
};
inline constexpr Collective kLastCollective = Collective::kAllToAllv;
enum class DataType : std::uint8_t {
  kI8 = 1,
  kU8 = 2,
  kI32 = 3,
  kU32 = 4,
  kI64 = 5,
  kU64 = 6,
  kF16 = 7,
  kBF16 = 8,
  kF32 = 9,
  kF64 = 10,
  kCustom = 11,  // a user's trivially-copyable type with a user's function
  // f32 in the program's buffers; f16, bf16 or blocks of 8-bit integers wherever the round's values lie or travel.
  kF32AsF16 = 12,
  kF32AsBF16 = 13,
  kF32AsI8 = 14,
  kI16 = 15,
  kU16 = 16,
  kBool = 17,  // a byte, true where it is not 0
};
inline constexpr DataType kLastDataType = DataType::kBool;
// The types of the C ABI: what lies in a program's buffers, but for elements of its own.
[[nodiscard]] constexpr bool is_public(DataType type) {
  return (type >= DataType::kI8 && type <= DataType::kF64) || (type >= DataType::kI16 && type <= DataType::kBool);
}
// An element of kF32AsI8 is a block of so many values: an f32, their scale, and behind it an 8-bit integer for each,
// which stands for itself times the scale.
inline constexpr std::size_t kI8BlockValues = 256;
inline constexpr std::size_t kI8BlockBytes = sizeof(float) + kI8BlockValues;
enum class ReduceOp : std::uint8_t {
  kNone = 0,
  kSum = 1,
  kProduct = 2,
  kMin = 3,
  kMax = 4,
  kBitAnd = 5,
  kBitOr = 6,
  kBitXor = 7,
  kAverage = 8,
  kCustom = 9,
};

[[nodiscard]] const char* to_string(Collective collective);
[[nodiscard]] const char* to_string(DataType type);
[[nodiscard]] const char* to_string(ReduceOp op);
// Bytes of one element in a round; 0 for kCustom, whose size the caller gives.
[[nodiscard]] std::size_t element_bytes(DataType type);
// What the program counts as one, in one element of a round.
[[nodiscard]] constexpr std::size_t element_values(DataType type) {
  return type == DataType::kF32AsI8 ? kI8BlockValues : 1;
}

// In a call site: the job wants sites compared. Otherwise they only tell people where a call was made.
inline constexpr std::uint64_t kSiteCompared = std::uint64_t{1} << 63;

// What a rank says it is calling. Ranks of a round must agree on all of it, on the site only if both have it compared.
struct Fingerprint {
  Collective collective{};
  DataType type{};
  ReduceOp op{};
  std::uint8_t algorithm = 0;  // schedule::Algorithm, so that a rank with another plan is found out
  std::int32_t root = -1;      // -1: the collective has none. For kPoint: the tag
  std::uint64_t count = 0;     // elements, as the call was given them; of unequal ones that ranks know, all
  // A hash of unequal counts or of calls put together, or a custom type's element size; else 0. Of a kAllToAllv 0: its
  // ranks tell each other their counts, which a round of its own does.
  std::uint64_t shape = 0;
  std::uint64_t site = 0;  // kSiteCompared; 23 bits: hash of the module's name; lower 40: offset in it. 0: unknown
  friend bool operator==(const Fingerprint&, const Fingerprint&) = default;
};

// "allreduce(f32, sum, count 1024) at 5f3a21+0x1234", for error messages.
[[nodiscard]] std::string to_string(const Fingerprint& fingerprint);
// Whether two ranks' fingerprints of one round agree.
[[nodiscard]] bool agree(const Fingerprint& a, const Fingerprint& b);

enum class FrameKind : std::uint8_t { kCollective = 1, kPoint = 2 };

struct FrameHeader {
  static constexpr std::uint32_t kMagic = 0x4e525257;  // "WRRN"
  static constexpr std::uint8_t kVersion = 1;
  static constexpr std::size_t kWireBytes = 96;
  static constexpr std::size_t kHeaderChecksumAt = 84;
  static constexpr std::size_t kChecksumAt = 88;

  FrameKind kind = FrameKind::kCollective;
  std::uint16_t stream = 0;
  Generation generation;
  RoundId round;
  std::uint32_t message = 0;  // ordinal among the messages of this round from this sender to this receiver
  Fingerprint fingerprint;
  std::uint32_t payload_bytes = 0;
  std::uint32_t header_checksum = 0;
  std::uint64_t checksum = 0;
};

using FrameBytes = std::array<std::byte, FrameHeader::kWireBytes>;

void encode(const FrameHeader& header, std::span<std::byte, FrameHeader::kWireBytes> out);

// Reads a header that a peer sent. Refuses, with a reason: wrong magic or version, unknown enum values, a payload over
// limits::kMaxChunkBytes. Checks nothing that needs context: see match().
[[nodiscard]] Result<FrameHeader> decode(std::span<const std::byte, FrameHeader::kWireBytes> bytes);

// Whether `got` is the frame that the receiver waits for: kind, stream, generation, round, message, fingerprint,
// payload size. A stale generation and another stream are kCorrupt (the link broke its promise); a different round, of
// whatever group, or fingerprint is kDesync and the message names both calls.
[[nodiscard]] Status match(const FrameHeader& expected, const FrameHeader& got);

}  // namespace warren
