#include "worker/rounds/gpu_exchange.h"

#include <algorithm>
#include <string>

namespace warren::worker {
namespace {

constexpr std::uint8_t kReady = 1, kTakesPart = 2, kHasId = 4;

}  // namespace

std::array<std::byte, GpuExchange::Word::kBytes> GpuExchange::encode(const Word& word) {
  std::array<std::byte, Word::kBytes> bytes{};
  const int flags = (word.ready ? kReady : 0) | (word.takes_part ? kTakesPart : 0) | (word.id ? kHasId : 0);
  bytes[0] = static_cast<std::byte>(flags);
  if (word.id) std::ranges::copy(*word.id, bytes.begin() + 1);
  return bytes;
}

Result<GpuExchange::Word> GpuExchange::decode(std::span<const std::byte, Word::kBytes> bytes) {
  const auto flags = static_cast<std::uint8_t>(bytes[0]);
  if (flags > (kReady | kTakesPart | kHasId)) {
    return Status(Code::kCorrupt, "a word on how to make a round has the flags " + std::to_string(flags));
  }
  Word word;
  word.ready = (flags & kReady) != 0;
  word.takes_part = (flags & kTakesPart) != 0;
  if ((flags & kHasId) != 0) std::ranges::copy(bytes.subspan<1>(), word.id.emplace().begin());
  return word;
}

}  // namespace warren::worker
