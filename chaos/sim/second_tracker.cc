#include "chaos/sim/second_tracker.h"

#include <algorithm>
#include <utility>

#include "recovery/base/check.h"

namespace warren::chaos {

// The second tracker must have no majority, so it answers at most half of the members that are there. A worker that the
// plan does not know may have come for any of them, unless a place is free. Members that have finalized and are silent
// have nothing left to promise, and are asked for nothing.
void SecondTracker::start() {
  if (twin_ || !tracker_.has_plan()) return;
  wire::JobRecord record;
  WARREN_CHECK(record.ParseFromString(*tracker_.durable()), "the tracker stores records");
  const auto& members = record.plan().members();
  const auto absent = static_cast<std::size_t>(std::ranges::count_if(members, &wire::Member::absent));
  const std::size_t present = static_cast<std::size_t>(members.size()) - absent - record.finalized().size();
  std::size_t reached = 0, outsiders = 0, free = absent;
  for (std::size_t tries = 1 + run_.world.random.below(run_.setting.world_size); tries > 0; --tries) {
    const std::size_t slot = run_.world.random.below(run_.setting.world_size);
    const auto place = std::ranges::find(members, launchers_.slots()[slot].worker_id, &wire::Member::worker_id);
    const bool outsider = place == members.end();
    const bool takes = !outsider && place->absent();
    const bool member = !outsider && !takes && std::ranges::count(record.finalized(), place->rank()) == 0;
    const std::size_t r = reached + member, o = outsiders + outsider, f = free - takes;
    if (slots_.contains(slot) || 2 * (r + o - std::min(o, f)) > present) continue;
    reached = r;
    outsiders = o;
    free = f;
    slots_.insert(slot);
  }
  if (slots_.empty()) return;
  run_.world.count(Fault::second_tracker);
  launchers_.struck();
  twin_ = std::make_unique<TwinTracker>(run_.world, kJob, *tracker_.durable(), send_);
  reconnect();
  run_.world.after(run_.world.random.between(1000, 3000 * run_.setting.timeout_ms()), [this] { end(); });
}

void SecondTracker::end() {
  if (!twin_) return;
  retired_.push_back(std::move(twin_));
  retired_.back()->end();
  reconnect();
  slots_.clear();
}

void SecondTracker::reconnect() {
  for (std::size_t life = 0; life < launchers_.lives().size(); ++life) {
    if (launchers_.life(life).alive() && reaches(life)) control_.drop_connection(life);
  }
}

bool SecondTracker::reaches(std::size_t life) const {
  const std::size_t slot = launchers_.slot_of(life);
  return slot != Launchers::kStranger && slots_.contains(slot);
}

bool SecondTracker::receive(std::size_t life, const std::string& bytes) {
  if (!twin_ || !reaches(life)) return false;
  twin_->receive(life, bytes);
  return true;
}

}  // namespace warren::chaos
