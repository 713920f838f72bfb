#include "worker/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/check.h"
#include "recovery/limits.h"

namespace warren::worker {
namespace {

constexpr std::size_t kCachedSchedules = 32;

// Bytes of the larger of one rank's two buffers: what the choice of an algorithm goes by.
std::uint64_t larger_buffer(const CallSpec& spec, std::uint64_t size) {
  const std::uint64_t width = element_bytes(spec);
  switch (spec.collective) {
    case Collective::kAllgather:
    case Collective::kReduceScatter:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll: return spec.count * size * width;
    case Collective::kAllgatherv: {
      std::uint64_t total = 0;
      for (const std::uint64_t c : spec.counts) total += c;
      return total * width;
    }
    default: return spec.count * width;
  }
}

}  // namespace

void Engine::install(const Plan& plan) {
  WARREN_CHECK(!installed_ && broken_.ok(), "an engine serves one epoch (I6)");
  plan_ = plan;
  installed_ = true;
  std::vector<Rank> world;
  for (std::uint32_t r = 0; r < plan.world_size; r++) world.emplace_back(static_cast<std::int32_t>(r));
  const Status status = add_group(kWorldGroup, std::move(world), 0);
  WARREN_CHECK(status.ok(), "the first group fits");
}

Engine::Channels Engine::used_channels() const {
  Channels used{};
  for (const auto& [id, group] : groups_) used[group->channel / 64] |= std::uint64_t{1} << group->channel % 64;
  return used;
}

Status Engine::add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  if (groups_.contains(id)) return {Code::kInvalidArgument, "this group exists already"};
  if (groups_.size() >= limits::kMaxGroups) {
    return {Code::kExhausted, "over " + std::to_string(limits::kMaxGroups) +
                                  " groups at once: destroy communicators that are no longer needed"};
  }
  WARREN_CHECK(channel < limits::kMaxGroups, "channels are those of Channels");
  const auto self = std::find(members.begin(), members.end(), plan_.self);
  WARREN_CHECK(self != members.end(), "a rank is a member of its groups");
  const auto rank = static_cast<std::int32_t>(self - members.begin());
  std::uint32_t slot = 0;
  while (slot < by_slot_.size() && by_slot_[slot] != nullptr) slot += 2;
  auto group =
      std::make_unique<Group>(transport_, id, channel, std::move(members), rank, slot, plan_.epoch, plan_.chunk_bytes);
  if (slot >= by_slot_.size()) by_slot_.resize(slot + 2, nullptr);
  by_slot_[slot] = by_slot_[slot + 1] = group.get();
  groups_.emplace(id, std::move(group));
  return {};
}

void Engine::remove_group(GroupId id) {
  const auto it = groups_.find(id);
  if (it == groups_.end()) return;
  Group& group = *it->second;
  WARREN_CHECK(group.active == nullptr && group.queue.empty(), "a group is removed when its calls have finished");
  by_slot_[group.slot] = by_slot_[group.slot + 1] = nullptr;
  groups_.erase(it);
}

bool Engine::idle(GroupId id) const {
  const auto it = groups_.find(id);
  return it == groups_.end() ||
         (it->second->active == nullptr && it->second->queue.empty() && !it->second->points.busy());
}

schedule::Algorithm Engine::algorithm_for(const CallSpec& spec, std::int32_t size) const {
  const auto serving = schedule::algorithms_for(spec.collective);
  if (std::find(serving.begin(), serving.end(), plan_.algorithm) != serving.end()) return plan_.algorithm;
  return schedule::choose(spec.collective, size, larger_buffer(spec, static_cast<std::uint64_t>(size)));
}

Result<std::shared_ptr<const PreparedSchedule>> Engine::schedule_for(Group& group, const Call& call) {
  schedule::Request request;
  request.collective = call.spec.collective;
  request.algorithm = static_cast<schedule::Algorithm>(call.fingerprint.algorithm);
  request.rank = group.rank;
  request.size = static_cast<std::int32_t>(group.members.size());
  request.root = std::max(call.spec.root, 0);
  request.count = call.spec.count;
  request.counts = call.counts;
  // The ring keeps ten chunks in scratch and fills its pipeline with small ones; halving wants few and large ones. TCP
  // on loopback, 8 ranks on 2 cores, 100 MiB by ring: 329 ms in chunks of 128 KiB, 378 in 256; 4 ranks, 1 MiB by
  // halving: 1,100 and 830 µs.
  const std::uint64_t chunk_bytes =
      request.algorithm == schedule::Algorithm::kRing ? plan_.chunk_bytes / 2 : plan_.chunk_bytes;
  request.chunk_elements = std::max<std::uint64_t>(1, chunk_bytes / call.reducer.bytes(Form::kPartial));
  const bool worth_keeping = request.counts.empty();
  if (worth_keeping) {
    for (CacheEntry& e : group.cache) {
      if (e.count == request.count && e.collective == request.collective && e.algorithm == request.algorithm &&
          e.root == request.root && e.chunk_elements == request.chunk_elements) {
        e.used = ++uses_;
        return e.schedule;
      }
    }
  }
  auto made = schedule::make(request);
  if (!made.ok()) return made.status();
  auto prepared = std::make_shared<const PreparedSchedule>(std::move(made).value());
  if (!worth_keeping) return prepared;
  if (group.cache.size() == kCachedSchedules) {
    group.cache.erase(std::min_element(group.cache.begin(), group.cache.end(),
                                       [](const auto& a, const auto& b) { return a.used < b.used; }));
  }
  group.cache.push_back(
      {request.collective, request.algorithm, request.root, request.count, request.chunk_elements, ++uses_, prepared});
  return prepared;
}

Status Engine::submit(GroupId id, Call& call) {
  if (!broken_.ok()) return broken_;
  WARREN_CHECK(installed_, "calls come after the plan");
  const auto it = groups_.find(id);
  if (it == groups_.end()) return {Code::kClosed, "this communicator has been destroyed"};
  Group& group = *it->second;
  if (outstanding_ >= limits::kMaxOutstandingRounds) {
    return {Code::kExhausted, "over " + std::to_string(limits::kMaxOutstandingRounds) +
                                  " asynchronous calls are outstanding: wait for some of them"};
  }
  const auto size = static_cast<std::int32_t>(group.members.size());
  if (call.spec.collective == Collective::kPoint) {
    if (call.spec.sends) {
      const Status status = group.points.send(call);
      if (!status.ok()) return status;
    } else {
      group.points.recv(call);
    }
    outstanding_++;
    check(group);
    return {};
  }
  if (call.spec.collective != Collective::kBarrier) {
    auto reducer = Reducer::make(call.spec.type, call.spec.op, static_cast<std::uint32_t>(size), call.spec.custom_bytes,
                                 call.spec.custom, call.spec.custom_context);
    if (!reducer.ok()) return reducer.status();
    call.reducer = std::move(reducer).value();
  }
  call.counts.assign(call.spec.counts.begin(), call.spec.counts.end());
  call.spec.counts = call.counts;
  call.fingerprint = fingerprint_of(call.spec, static_cast<std::uint8_t>(algorithm_for(call.spec, size)));
  call.fingerprint.site &= ~kSiteCompared;
  if (plan_.check_call_sites && call.fingerprint.site != 0) call.fingerprint.site |= kSiteCompared;
  // Here, where a schedule that cannot be made is still an error of this call alone.
  auto prepared = schedule_for(group, call);
  if (!prepared.ok()) return prepared.status();
  call.schedule = std::move(prepared).value();
  call.round = {plan_.timeline, group.id, Version(0), group.next_sequence};
  group.next_sequence = group.next_sequence.next();
  group.queue.push() = &call;
  outstanding_++;
  if (group.active == nullptr) {
    start_next(group);
    check(group);
  }
  return {};
}

void Engine::start_next(Group& group) {
  if (group.queue.empty() || failed_) return;
  Call& call = *group.queue.front();
  group.queue.pop();
  group.active = &call;
  board_.begin(group.slot / 2, call.round, call.fingerprint);
  Executor::Round round;
  round.schedule = call.schedule.get();
  round.epoch = plan_.epoch;
  round.id = call.round;
  round.fingerprint = call.fingerprint;
  round.input = static_cast<const std::byte*>(call.spec.input);
  round.output = static_cast<std::byte*>(call.spec.output);
  // A broadcast's data stands in the one buffer that the call names.
  if (round.input == nullptr) round.input = round.output;
  round.reducer = call.reducer;
  group.executor.start(round);
}

void Engine::finish(Call& call, const Status& status) {
  outstanding_--;
  call.status = status;
  std::shared_ptr<Call> self = std::move(call.self);
  // The caller may free a blocking call as soon as it sees this.
  if (call.callback == nullptr) call.settled.store(true, std::memory_order_release);
  call.finished.store(true, std::memory_order_release);
  if (self) finished_calls_.push_back(std::move(self));
}

void Engine::fail(const Status& status, Rank peer) {
  if (failed_) return;
  failed_ = true;
  failure_ = Failure{status, peer};
}

void Engine::check(Group& group) {
  while (group.active != nullptr && group.executor.done()) {
    if (!group.executor.status().ok()) {
      // The call ends with the epoch: the tracker's word says who is to blame.
      fail(group.executor.status(), group.executor.failed_peer());
      break;
    }
    Call& call = *group.active;
    group.active = nullptr;
    board_.end(group.slot / 2);
    board_.rounds_finished.fetch_add(1, std::memory_order_relaxed);
    board_.bytes_moved.fetch_add(group.executor.bytes_sent(), std::memory_order_relaxed);
    finish(call, Status());
    start_next(group);
  }
  for (auto& [call, status] : group.points.finished()) {
    board_.rounds_finished.fetch_add(1, std::memory_order_relaxed);
    if (call->spec.sends) {
      board_.bytes_moved.fetch_add(call->spec.count * element_bytes(call->spec), std::memory_order_relaxed);
    }
    finish(*call, status);
  }
  group.points.finished().clear();
  if (group.point_shown && group.active == nullptr && !group.points.busy()) {
    board_.end(group.slot / 2);
    group.point_shown = false;
  }
  if (!group.points.status().ok()) fail(group.points.status(), group.points.failed_peer());
}

bool Engine::progress() {
  if (stopped()) return false;
  completions_.resize(64);
  const std::size_t n = transport_.poll(completions_);
  for (std::size_t i = 0; i < n; i++) {
    const Completion& c = completions_[i];
    const auto slot = static_cast<std::uint32_t>(c.token >> 32);
    WARREN_CHECK(slot < by_slot_.size(), "tokens carry a slot of this engine");
    Group* group = by_slot_[slot];
    if (group == nullptr) continue;  // a send of a group that was removed when its bytes had been taken
    if (slot == group->slot) {
      group->executor.on_completion(c.token, c.status);
    } else {
      group->points.on_completion(c.token, c.status);
    }
    check(*group);
  }
  return n != 0;
}

void Engine::stop(const Status& why) {
  WARREN_CHECK(!why.ok(), "an epoch ends for a reason");
  if (stopped()) return;
  broken_ = why;
  transport_.close_all();
  for (auto& [id, group] : groups_) {
    const auto reason = [&](const Status& own) {
      return own.ok() ? why : own.because_of_this(why.code(), std::string(why.describe()));
    };
    if (group->active != nullptr) {
      finish(*group->active, reason(group->executor.status()));
      group->active = nullptr;
      board_.end(group->slot / 2);
    }
    group->executor.abandon();
    for (; !group->queue.empty(); group->queue.pop()) finish(*group->queue.front(), why);
    const Status point_reason = reason(group->points.status());
    for (Call* call : group->points.abandon()) finish(*call, point_reason);
  }
}

std::optional<Engine::Failure> Engine::take_failure() {
  return std::exchange(failure_, std::nullopt);
}

void Engine::publish_waits() {
  for (const auto& [id, group] : groups_) {
    const std::size_t slot = group->slot / 2;
    if (group->active != nullptr) {
      board_.waits(slot, group->executor.waiting_for(RoundBoard::kRanks));
    } else if (group->points.busy()) {
      // Point to point shows as a round of its own kind; the next collective, or its end, takes the slot.
      auto peers = group->points.senders();
      const auto receivers = group->points.receivers();
      peers.insert(peers.end(), receivers.begin(), receivers.end());
      Fingerprint point;
      point.collective = Collective::kPoint;
      point.type = DataType::kU8;
      board_.begin(slot, {plan_.timeline, group->id, Version(0), group->next_sequence}, point);
      board_.waits(slot, peers);
      group->point_shown = true;
    }
  }
}

std::vector<std::string> Engine::describe_waits() const {
  std::vector<std::string> lines;
  const auto ranks = [](const std::vector<Rank>& list) {
    std::string text;
    for (const Rank r : list) text += (text.empty() ? "" : ", ") + std::to_string(r.value);
    return text;
  };
  for (const auto& [id, group] : groups_) {
    const std::string self = "rank " + std::to_string(plan_.self.value) + " waits for rank ";
    if (group->active != nullptr) {
      const auto waiting = group->executor.waiting_for(RoundBoard::kRanks);
      if (!waiting.empty()) {
        lines.push_back(self + ranks(waiting) + " in " + to_string(group->active->round) + ", " +
                        to_string(group->active->fingerprint));
      }
    }
    const auto senders = group->points.senders(), receivers = group->points.receivers();
    if (!senders.empty()) lines.push_back(self + ranks(senders) + " to send");
    if (!receivers.empty()) lines.push_back(self + ranks(receivers) + " to receive");
  }
  return lines;
}

}  // namespace warren::worker
