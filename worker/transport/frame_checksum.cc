#include "worker/transport/frame_checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <cstring>

#include "storage/xxh3.h"

namespace warren::worker {
namespace {

constexpr std::size_t kHeaderSumAt = FrameHeader::kHeaderChecksumAt;
constexpr std::size_t kSumAt = FrameHeader::kChecksumAt;

std::uint64_t over_payload(std::uint64_t header_hash, std::span<const std::byte> payload) {
  return payload.empty() ? header_hash : xxh3(payload, header_hash);
}

}  // namespace

void seal(FrameHeader& header, std::span<const std::byte> payload, bool checksums, FrameBytes& out) {
  header.header_checksum = 0;
  header.checksum = 0;
  encode(header, out);
  if (!checksums) return;
  const std::uint64_t hash = XXH3_64bits(out.data(), kHeaderSumAt);
  header.header_checksum = static_cast<std::uint32_t>(hash);
  header.checksum = over_payload(hash, payload);
  std::memcpy(out.data() + kHeaderSumAt, &header.header_checksum, sizeof header.header_checksum);
  std::memcpy(out.data() + kSumAt, &header.checksum, sizeof header.checksum);
}

bool header_holds(const FrameBytes& bytes) {
  std::uint32_t sum = 0;
  std::memcpy(&sum, bytes.data() + kHeaderSumAt, sizeof sum);
  return sum == static_cast<std::uint32_t>(XXH3_64bits(bytes.data(), kHeaderSumAt));
}

bool payload_holds(const FrameBytes& bytes, std::span<const std::byte> payload) {
  std::uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + kSumAt, sizeof sum);
  return sum == over_payload(XXH3_64bits(bytes.data(), kHeaderSumAt), payload);
}

}  // namespace warren::worker
