// Where a life may be ended on purpose.
#pragma once

#include <cstddef>
#include <cstdint>

namespace warren::chaos {

// Each place counts its own passages.
enum class KillPoint : std::uint8_t {
  kEffect,      // before an effect of its machine
  kCompletion,  // before a transport completion is handled
  kSend,        // before a frame is given to the transport, in the middle of what a completion brings about
  kReturn,      // after a call has returned
  kRecall,      // before something that was fetched from a log is used
  kCheckpoint,  // after its part of a checkpoint was logged, before it votes
};
inline constexpr std::size_t kKillPoints = 6;

}  // namespace warren::chaos
