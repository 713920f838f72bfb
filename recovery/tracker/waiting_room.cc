#include "recovery/tracker/waiting_room.h"

#include <algorithm>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"

namespace warren {

namespace {
std::size_t bytes_of(const std::optional<wire::Report>& report) {
  return report ? report->ByteSizeLong() : 0;
}
}  // namespace

bool WaitingRoom::Life::holds() const {
  return report || (held && !held->mirrored()) || logged.lives_size() != 0;
}

std::size_t WaitingRoom::Life::join_bytes() const {
  return (held ? held->ByteSizeLong() : 0) + logged.ByteSizeLong();
}

void WaitingRoom::add(Life life) {
  const std::string worker = life.member.worker_id();
  WARREN_CHECK(!lives_.contains(worker), "a worker waits in one life");
  workers_[life.id()] = worker;
  if (life.takes) takers_[*life.takes] = worker;
  survivors_ += life.report ? 1 : 0;
  report_bytes_ += bytes_of(life.report);
  join_bytes_ += life.join_bytes();
  lives_.emplace(worker, std::move(life));
}

void WaitingRoom::remove(const std::string& worker) {
  const auto found = lives_.find(worker);
  WARREN_CHECK(found != lives_.end(), "only a worker that waits can cease to");
  const Life& life = found->second;
  join_bytes_ -= life.join_bytes();
  report_bytes_ -= bytes_of(life.report);
  survivors_ -= life.report ? 1 : 0;
  if (life.takes) takers_.erase(*life.takes);
  workers_.erase(life.id());
  lives_.erase(found);
}

void WaitingRoom::clear() {
  *this = {};
}

void WaitingRoom::hear(Incarnation life, TimeMs now) {
  if (const auto worker = workers_.find(life); worker != workers_.end()) lives_.at(worker->second).heard = now;
}

void WaitingRoom::excuse(TimeMs at) {
  for (auto& [worker, life] : lives_) life.heard = std::max(life.heard, at);
}

void WaitingRoom::move_to_host(const std::string& worker, const std::string& host_id) {
  lives_.at(worker).member.set_host_id(host_id);
}

const WaitingRoom::Life* WaitingRoom::find(const std::string& worker) const {
  const auto found = lives_.find(worker);
  return found == lives_.end() ? nullptr : &found->second;
}

const WaitingRoom::Life* WaitingRoom::find(Incarnation life) const {
  const auto worker = workers_.find(life);
  return worker == workers_.end() ? nullptr : &lives_.at(worker->second);
}

bool WaitingRoom::has_survivor_on(const std::string& host_id) const {
  return std::ranges::any_of(
      lives_, [&](const auto& l) { return l.second.report.has_value() && l.second.member.host_id() == host_id; });
}

std::set<std::string> WaitingRoom::hosts_that_hold() const {
  std::set<std::string> hosts;
  for (const auto& [worker, life] : lives_) {
    if (life.holds()) hosts.insert(life.member.host_id());
  }
  return hosts;
}

std::set<std::string> WaitingRoom::hosts_looked_at_early() const {
  std::set<std::string> hosts;
  for (const auto& [worker, life] : lives_) {
    if (life.looked_early()) hosts.insert(life.member.host_id());
  }
  return hosts;
}

std::vector<const WaitingRoom::Life*> WaitingRoom::candidates() const {
  std::vector<const Life*> by_arrival;
  for (const auto& [worker, life] : lives_) {
    if (life.candidate && !life.takes) by_arrival.push_back(&life);
  }
  std::ranges::sort(by_arrival, {}, &Life::arrival);
  return by_arrival;
}

const WaitingRoom::Life& WaitingRoom::last_candidate() const {
  const Life* last = nullptr;
  for (const auto& [worker, life] : lives_) {
    if (life.candidate && (last == nullptr || life.arrival > last->arrival)) last = &life;
  }
  WARREN_CHECK(last != nullptr, "a candidate waits");
  return *last;
}

std::vector<std::string> WaitingRoom::silent(TimeMs now, std::int64_t timeout_ms) const {
  std::vector<std::string> workers;
  for (const auto& [worker, life] : lives_) {
    if (now >= life.heard + timeout_ms) workers.push_back(worker);
  }
  return workers;
}

bool WaitingRoom::has_room_for(std::size_t join_bytes) const {
  return join_bytes_ + join_bytes <= kJoinRoomBytes;
}

void WaitingRoom::check() const {
  WARREN_CHECK(lives_.size() == workers_.size(), "a worker waits in one life");
  std::size_t takers = 0, survivors = 0, report_bytes = 0, join_bytes = 0;
  for (const auto& [worker, life] : lives_) {
    const auto named = workers_.find(life.id());
    WARREN_CHECK(named != workers_.end() && named->second == worker, "indexes agree");
    survivors += life.report ? 1 : 0;
    report_bytes += bytes_of(life.report);
    join_bytes += life.join_bytes();
    if (!life.takes) continue;
    ++takers;
    const auto taker = takers_.find(*life.takes);
    WARREN_CHECK(taker != takers_.end() && taker->second == worker, "a rank is taken by one spare");
  }
  WARREN_CHECK(takers == takers_.size(), "indexes agree");
  WARREN_CHECK(survivors == survivors_ && report_bytes == report_bytes_, "who has reported is counted");
  WARREN_CHECK(join_bytes == join_bytes_ && join_bytes <= limits::kMaxJoinBytesPerJob,
               "what is kept of joins is bounded (I8)");
}

}  // namespace warren
