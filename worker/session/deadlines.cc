#include "worker/session/deadlines.h"

#include <algorithm>
#include <utility>

namespace warren::worker {
namespace {

bool has_finished(const Deadlines::Deadline& deadline) {
  const auto call = deadline.call.lock();
  return call == nullptr || call->finished.load(std::memory_order_acquire);
}

}  // namespace

void Deadlines::add(const std::shared_ptr<const Call>& call, std::int64_t timeout_ms, TimeMs now) {
  std::erase_if(all_, has_finished);
  all_.push_back({now + timeout_ms, timeout_ms, call});
}

std::optional<Deadlines::Deadline> Deadlines::overdue(TimeMs now) {
  std::erase_if(all_, has_finished);
  const auto over = std::ranges::find_if(all_, [&](const Deadline& d) { return d.at <= now; });
  if (over == all_.end()) return std::nullopt;
  Deadline told = std::move(*over);
  all_.erase(over);
  return told;
}

std::optional<TimeMs> Deadlines::next() const {
  if (all_.empty()) return std::nullopt;
  return std::ranges::min_element(all_, {}, &Deadline::at)->at;
}

}  // namespace warren::worker
