#include "recovery/result.h"

#include "recovery/ids.h"
#include "recovery/text.h"

namespace warren {

std::string_view to_string(Code code) {
  switch (code) {
    case Code::kOk: return "ok";
    case Code::kInvalidArgument: return "invalid argument";
    case Code::kUnavailable: return "unavailable";
    case Code::kRefused: return "refused";
    case Code::kTimeout: return "timeout";
    case Code::kPeerLost: return "peer lost";
    case Code::kDesync: return "desync";
    case Code::kClosed: return "closed";
    case Code::kExhausted: return "exhausted";
    case Code::kCorrupt: return "corrupt";
    case Code::kInternal: return "internal";
    case Code::kRolledBack: return "rolled back";
    case Code::kFinished: return "finished";
  }
  return "unknown";
}

std::string Status::describe() const {
  std::string text;
  for (const Failure* f = failure_.get(); f != nullptr; f = f->cause.get()) {
    if (!text.empty()) text += ": ";
    text += f->message;
  }
  return text;
}

std::string to_string(const RoundId& round) {
  std::string text = is_setup(round)
                         ? "set-up round " + hex(round.sequence.value)
                         : "round " + (round.version == kPreamble ? "p" : std::to_string(round.version.value - 1)) +
                               "." + std::to_string(round.sequence.value);
  if (round.group != kWorldGroup) text += " of group " + hex(round.group.value);
  if (round.timeline.value != 0) text += " on timeline " + std::to_string(round.timeline.value);
  return text;
}

}  // namespace warren
