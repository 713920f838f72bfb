#include "recovery/tracker/spare_bench.h"

#include <algorithm>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"

namespace warren {

namespace {
// Of plans that spares are told, in a millisecond.
constexpr std::size_t kSparePlanBytesAMs = std::size_t{32} << 10;
}  // namespace

void SpareBench::add(const std::string& worker, Spare spare) {
  WARREN_CHECK(!spare.call, "a spare is called once it waits");
  workers_[spare.life] = worker;
  const bool added = spares_.emplace(worker, std::move(spare)).second;
  WARREN_CHECK(added, "a spare waits in one life");
}

SpareBench::Spare SpareBench::take(const std::string& worker) {
  const auto found = spares_.find(worker);
  WARREN_CHECK(found != spares_.end(), "only a spare is taken off the bench");
  Spare spare = std::move(found->second);
  spares_.erase(found);
  workers_.erase(spare.life);
  if (spare.call) calls_.erase(spare.call->place);
  return spare;
}

void SpareBench::clear() {
  spares_.clear();
  workers_.clear();
  calls_.clear();
}

void SpareBench::hear(Incarnation life, TimeMs now) {
  if (const auto worker = workers_.find(life); worker != workers_.end()) spares_.at(worker->second).heard = now;
}

void SpareBench::excuse(TimeMs at) {
  for (auto& [worker, spare] : spares_) spare.heard = std::max(spare.heard, at);
}

bool SpareBench::follow(const std::string& worker, Version version) {
  const Version before = std::exchange(spares_.at(worker).followed, version);
  return version != kPreamble && before == kPreamble;
}

bool SpareBench::full() const {
  return spares_.size() == limits::kMaxSpares;
}

const SpareBench::Spare* SpareBench::find(const std::string& worker) const {
  const auto found = spares_.find(worker);
  return found == spares_.end() ? nullptr : &found->second;
}

const std::string* SpareBench::worker_of(Incarnation life) const {
  const auto found = workers_.find(life);
  return found == workers_.end() ? nullptr : &found->second;
}

SpareBench::Idle SpareBench::those(const std::function<bool(const std::string&, const Spare&)>& are_idle) const {
  Idle idle;
  for (const auto& [worker, spare] : spares_) {
    if (!are_idle(worker, spare)) continue;
    idle.workers.push_back(worker);
    idle.spares.push_back({spare.host_id, spare.domain_id, spare.arrival});
  }
  return idle;
}

void SpareBench::call(const std::string& worker, std::size_t place, TimeMs now) {
  const bool called = calls_.emplace(place, worker).second;
  WARREN_CHECK(called, "one spare is called for a rank");
  spares_.at(worker).call = {place, now};
}

bool SpareBench::end_call(std::size_t place) {
  const auto called = calls_.find(place);
  if (called == calls_.end()) return false;
  spares_.at(called->second).call.reset();
  calls_.erase(called);
  return true;
}

void SpareBench::pass_over(std::size_t place, std::uint64_t arrival) {
  spares_.at(calls_.at(place)).arrival = arrival;
  (void)end_call(place);
}

TimeMs SpareBench::answer_due(const Spare& called, std::int64_t patience_ms) {
  return std::max(called.call->at, called.heard) + patience_ms;
}

std::vector<std::size_t> SpareBench::overdue(TimeMs now, std::int64_t patience_ms) const {
  std::vector<std::size_t> places;
  for (const auto& [place, worker] : calls_) {
    if (now >= answer_due(spares_.at(worker), patience_ms)) places.push_back(place);
  }
  return places;
}

std::set<std::string> SpareBench::hosts_called() const {
  std::set<std::string> hosts;
  for (const auto& [place, worker] : calls_) {
    const std::string& host = spares_.at(worker).host_id;
    if (counts_on(host)) hosts.insert(host);
  }
  return hosts;
}

std::size_t SpareBench::forget_interrupt() {
  const std::size_t calls = calls_.size();
  while (!calls_.empty()) (void)end_call(calls_.begin()->first);
  found_nothing_.clear();
  silent_.clear();
  held_back_ = false;
  return calls;
}

bool SpareBench::may_tell_plan(const std::string& worker, Generation generation, TimeMs now,
                               std::int64_t timeout_ms) const {
  const Spare& spare = spares_.at(worker);
  return now >= next_plan_ && (spare.told != generation || now >= spare.told_at + timeout_ms);
}

void SpareBench::note_told(const std::string& worker, Generation generation, TimeMs now, std::size_t plan_bytes) {
  Spare& spare = spares_.at(worker);
  spare.told = generation;
  spare.told_at = now;
  next_plan_ = now + static_cast<std::int64_t>(plan_bytes / kSparePlanBytesAMs);
}

void SpareBench::check() const {
  WARREN_CHECK(spares_.size() <= limits::kMaxSpares && spares_.size() == workers_.size(),
               "spares are bounded, and wait in one life (I8)");
  std::size_t calls = 0;
  for (const auto& [worker, spare] : spares_) {
    const auto named = workers_.find(spare.life);
    WARREN_CHECK(named != workers_.end() && named->second == worker, "indexes agree");
    if (!spare.call) continue;
    ++calls;
    const auto called = calls_.find(spare.call->place);
    WARREN_CHECK(called != calls_.end() && called->second == worker, "one spare is called for a rank");
  }
  WARREN_CHECK(calls == calls_.size(), "indexes agree");
}

}  // namespace warren
