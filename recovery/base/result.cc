#include "recovery/base/result.h"

#include "recovery/base/text.h"

namespace warren {
namespace {

constexpr std::string_view kRound = "round ";

}  // namespace

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

Status Status::about(Rank peer) const {
  WARREN_CHECK(!ok(), "success is about nobody");
  auto same = std::make_shared<Failure>(*failure_);
  same->peer = peer;
  Status s;
  s.failure_ = std::move(same);
  return s;
}

Status Status::about(const RoundId& round) const {
  const std::string text = to_string(round);
  return about(text.starts_with(kRound) ? text.substr(kRound.size()) : text);
}

Status Status::about(std::string round) const {
  WARREN_CHECK(!ok(), "success happens in no round");
  auto same = std::make_shared<Failure>(*failure_);
  same->round = std::move(round);
  Status s;
  s.failure_ = std::move(same);
  return s;
}

Rank Status::peer() const {
  const Failure* f = failure_.get();
  while (f != nullptr && f->peer == kNoRank) f = f->cause.get();
  return f == nullptr ? kNoRank : f->peer;
}

std::string_view Status::round() const {
  const Failure* f = failure_.get();
  while (f != nullptr && f->round.empty()) f = f->cause.get();
  return f == nullptr ? std::string_view() : std::string_view(f->round);
}

std::string to_string(const RoundId& round) {
  std::string text = is_setup(round)
                         ? "set-up round " + hex(round.sequence.value)
                         : std::string(kRound) +
                               (round.version == kPreamble ? "p" : std::to_string(round.version.value - 1)) + "." +
                               std::to_string(round.sequence.value);
  if (round.group != kWorldGroup) text += " of group " + hex(round.group.value);
  if (round.timeline.value != 0) text += " on timeline " + std::to_string(round.timeline.value);
  return text;
}

}  // namespace warren
