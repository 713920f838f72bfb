#include "chaos/sim/world.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>

namespace warren::chaos {

void World::at(Micros when_us, std::function<void()> what) {
  queue_.push_back({std::max(when_us, now_us_), order_++, std::move(what)});
  std::push_heap(queue_.begin(), queue_.end(), Later());
  most_waiting_ = std::max(most_waiting_, queue_.size());
}

bool World::step() {
  if (failed() || queue_.empty()) return false;
  std::pop_heap(queue_.begin(), queue_.end(), Later());
  const Event event = std::move(queue_.back());
  queue_.pop_back();
  now_us_ = event.at_us;
  ++events_;
  note(static_cast<std::uint64_t>(now_us_));
  event.what();
  return true;
}

std::uint64_t World::message_faults() const {
  std::uint64_t sum = 0;
  for (const Fault f : {Fault::message_lost, Fault::message_late, Fault::connection_drop, Fault::tracker_pause,
                        Fault::second_tracker}) {
    sum += counts_[static_cast<std::size_t>(f)];
  }
  return sum;
}

bool World::is_straggler(Rank rank, const std::string& worker_id) {
  if (!straggler_) return false;
  if (!straggler_->goes) return straggler_->rank == rank;
  if (slow_worker_.empty() && straggler_->rank == rank) slow_worker_ = worker_id;
  return slow_worker_ == worker_id;
}

Micros World::drag_us(Straggler::What what, Rank rank, const std::string& worker_id) {
  if (!straggler_ || straggler_->what != what || !is_straggler(rank, worker_id)) return 0;
  return drag_now_us();
}

Micros World::drag_us(Rank rank, Rank peer) const {
  const bool slow = straggler_ && straggler_->what == Straggler::What::kLink && straggler_->rank == rank;
  return slow && straggler_->peer == peer ? drag_now_us() : 0;
}

Micros World::drag_now_us() const {
  const Micros period_us = straggler_->on_us + straggler_->off_us;
  return period_us == 0 || now_us_ % period_us < straggler_->on_us ? straggler_->drag_us : 0;
}

void World::note(std::uint64_t what) {
  digest_ = Random::mix(digest_ ^ what);
}

void World::note(std::string_view bytes) {
  note(XXH3_64bits(bytes.data(), bytes.size()));
}

void World::tell(const std::string& text) {
  char stamp[32];
  std::snprintf(stamp, sizeof stamp, "%12.6f  ", static_cast<double>(now_us_) / 1e6);
  transcript_.push_back(stamp + text);
}

void World::violated(std::string_view invariant, const std::string& how) {
  if (judged_) fail(invariant, how);
}

void World::fail(std::string_view invariant, const std::string& how) {
  if (failed()) return;
  verdict_ = std::string(invariant) + ": " + how;
  if (keep_transcript_) tell("VIOLATED " + verdict_);
}

std::string describe_positions(const google::protobuf::RepeatedPtrField<wire::Position>& positions) {
  std::string text;
  char group[24];
  for (const wire::Position& p : positions) {
    std::snprintf(group, sizeof group, ":%llx", static_cast<unsigned long long>(p.group() >> 48));
    text += " " + std::to_string(p.version()) + "." + std::to_string(p.rounds()) + (p.group() == 0 ? "" : group) +
            (p.closed() ? "|" : "");
    for (const wire::ByteRange& r : p.final()) {
      text += "[" + std::to_string(r.begin()) + "-" + std::to_string(r.end()) + "]";
    }
  }
  return text;
}

}  // namespace warren::chaos
