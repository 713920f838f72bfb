#include "recovery/tracker/lost_job.h"

#include <algorithm>

namespace warren {

LostJob::Sources LostJob::brought_by(const std::string& host_id, const wire::Held* held, const wire::Logged& logged,
                                     std::uint64_t run) {
  Sources brought;
  if (held != nullptr && held->run() == run) {
    brought.insert(held->mirrored() ? Source{"", From::kMirror} : Source{host_id, From::kDisk});
  }
  if (logged.run() == run) brought.emplace(host_id, From::kLauncher);
  return brought;
}

void LostJob::ask(Sources brought, const std::set<std::string>& hosts) {
  asked_ = std::move(brought);
  std::erase_if(taken_up_by_, [&](const Source& source) {
    const bool asked = source.first.empty() || hosts.contains(source.first);
    if (asked) asked_.insert(source);
    return asked;
  });
}

void LostJob::note_in_vain(TimeMs now, TimeMs until, std::size_t most_remembered) {
  std::erase_if(looked_at_, [&](const auto& l) { return now >= l.second; });
  for (const Source& source : std::exchange(taken_up_by_, {})) {
    if (missed_.size() >= most_remembered || !missed_.insert(source).second) asked_.insert(source);
  }
  for (const Source& source : asked_) {
    missed_.erase(source);
    looked_at_.insert_or_assign(source, until);
  }
}

bool LostJob::may_take_up(const Sources& brought, TimeMs now) const {
  return std::ranges::any_of(brought, [&](const Source& source) {
    const auto looked_at = looked_at_.find(source);
    return looked_at == looked_at_.end() || now >= looked_at->second;
  });
}

TimeMs LostJob::looks_again_at(const Sources& brought) const {
  TimeMs again;
  for (const Source& source : brought) {
    const auto looked_at = looked_at_.find(source);
    if (looked_at != looked_at_.end()) again = std::max(again, looked_at->second);
  }
  return again;
}

void LostJob::take_up(Sources brought) {
  taken_up_by_ = std::move(brought);
  hopes_.clear();
}

LostJob::Hope LostJob::hope(Incarnation life, TimeMs now, std::int64_t patience_ms, std::size_t most) {
  std::erase_if(hopes_, [&](const auto& h) { return now >= h.second + patience_ms; });
  const bool known = hopes_.contains(life);
  if (!known && hopes_.size() >= most) return Hope::kNone;
  const TimeMs until = hopes_.try_emplace(life, now + patience_ms).first->second;
  if (now >= until) {
    hopes_.erase(life);
    return Hope::kNone;
  }
  return known ? Hope::kStays : Hope::kBegins;
}

}  // namespace warren
