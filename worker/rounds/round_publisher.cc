#include "worker/rounds/round_publisher.h"

namespace warren::worker {

Status RoundPublisher::publish(std::uint64_t first, std::uint64_t count, const std::byte* values, LogPlace& place) {
  if (!resumed_ || count == 0) {
    return recall_->publish(key_, info_, first * width_, {values, count * width_}, read_here_ ? &place : nullptr);
  }
  // Each attempt copies an owner's finals to their keepers again, and this host may be the keeper that has them.
  const Ranges missing = Ranges(first * width_, (first + count) * width_).minus(recall_->reader().held(key_));
  for (const Interval& i : missing.intervals()) {
    const std::byte* const from = values + (i.begin - first * width_);
    const Status status = recall_->publish(key_, info_, i.begin, {from, i.end - i.begin});
    if (!status.ok()) return status;
  }
  return {};
}

std::span<std::byte> RoundPublisher::room(std::uint64_t count) {
  // This host may have a part of a resumed round, which is not published again: publish() looks. A program's function
  // may want its elements better aligned than the log's records lie.
  if (resumed_ || count == 0 || custom_) return {};
  return recall_->room(key_, count * width_);
}

void RoundPublisher::publish_room(std::uint64_t first, std::uint64_t count, LogPlace& place) {
  recall_->publish_room(key_, info_, first * width_, count * width_, &place);
}

}  // namespace warren::worker
