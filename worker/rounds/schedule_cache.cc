#include "worker/rounds/schedule_cache.h"

#include <algorithm>
#include <utility>

namespace warren::worker {

void ScheduleCache::clear() {
  choices_.fill({});
  schedules_.clear();
  calls_.fill({});
}

schedule::Algorithm ScheduleCache::choose(const schedule::Case& what, const schedule::Costs& costs) {
  const std::uint64_t bytes = what.bytes;
  Choice& kept = choices_[(bytes ^ bytes >> 12 ^ static_cast<std::uint64_t>(what.collective)) % choices_.size()];
  if (kept.collective != what.collective || kept.size != what.size || kept.bytes != bytes) {
    kept = {what.collective, what.size, bytes, schedule::choose(what, costs)};
  }
  return kept.algorithm;
}

Result<std::shared_ptr<const PreparedSchedule>> ScheduleCache::schedule_for(const schedule::Request& request) {
  const Key key{request.collective,    request.algorithm,      request.root,
                request.count,         request.chunk_elements, request.element_bytes,
                request.partial_bytes, !request.order.empty(), schedule::has_owner(request) ? request.owner : -1,
                request.exchanges};
  const bool worth_keeping = request.counts.empty();
  if (worth_keeping) {
    if (const auto kept = std::ranges::find(schedules_, key, &Entry::key); kept != schedules_.end()) {
      kept->used = ++uses_;
      return kept->schedule;
    }
  }
  auto made = schedule::make(request);
  if (!made.ok()) return made.status();
  auto prepared = std::make_shared<const PreparedSchedule>(std::move(made).value());
  if (!worth_keeping) return prepared;
  if (schedules_.size() == kSchedules) schedules_.erase(std::ranges::min_element(schedules_, {}, &Entry::used));
  schedules_.push_back({key, ++uses_, prepared});
  return prepared;
}

void ScheduleCache::repeat(const CallSpec& spec, std::int32_t size, Repeated what) {
  calls_[place_of(spec)] = {spec.collective, spec.type,   spec.op, spec.algorithm, spec.root,
                            spec.count,      spec.values, size,    std::move(what)};
}

}  // namespace warren::worker
