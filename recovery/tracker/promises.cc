#include "recovery/tracker/promises.h"

#include <algorithm>

namespace warren {

void Promises::renew(TimeMs now) {
  lives_.clear();
  resizers_.clear();
  asked_ = heard_ = now;
}

Promises Promises::of(const std::function<bool(Incarnation life)>& stays) const {
  Promises some;
  some.asked_ = asked_;
  some.heard_ = heard_;
  for (const auto& [worker, life] : lives_) {
    if (stays(life)) some.lives_.emplace(worker, life);
  }
  return some;
}

void Promises::take(const std::string& worker, Incarnation life, TimeMs now) {
  lives_.insert_or_assign(worker, life);
  heard_ = now;
}

void Promises::take_for_size(const std::string& worker, Incarnation life, std::uint32_t world_size) {
  if (world_size != resizers_size_) resizers_.clear();
  resizers_size_ = world_size;
  if (resizers_.size() < resizers_size_ || resizers_.contains(worker)) resizers_.insert_or_assign(worker, life);
}

bool Promises::suffice(const Members& members, TimeMs now, std::int64_t timeout_ms) const {
  const bool late = now >= asked_ + timeout_ms;
  std::size_t promised = 0, strangers = 0, free = members.absent;
  for (const auto& [worker, life] : lives_) {
    switch (members.from(worker)) {
      case From::kMember: ++promised; break;
      case From::kSilentMember: break;
      case From::kAbsentMember: --free; break;
      case From::kStranger: ++strangers; break;
    }
  }
  // A stranger that may have come for a free place stands for no member.
  if (late) promised += strangers - std::min(strangers, free);
  // A job that gets smaller may have no half left. A user who starts so many workers with another world size vouches
  // for the end of the others. None of these has come in all that time.
  const bool resized = late && now >= heard_ + timeout_ms && resizers_size_ != 0 && resizers_.size() == resizers_size_;
  return members.asked == 0 || 2 * promised > members.asked || resized;
}

}  // namespace warren
