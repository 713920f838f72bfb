// Waits of a rank, as the board, the tracker's search for circles, and the log are told of them.
#include "worker/rounds/engine.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/base/limits.h"
#include "worker/rounds/rank_list.h"

namespace warren::worker {

void Engine::publish_waits() {
  shared_.board.replaying.store(shared_.recall != nullptr && !shared_.recall->replayer().idle(),
                                std::memory_order_relaxed);
  for (const auto& [id, group] : groups_.present()) {
    const std::size_t slot = group->rounds.slot() / 2;
    if (group->rounds.active() != nullptr) {
      shared_.board.waits(slot, group->rounds.waiting_for());
    } else if (group->points.busy()) {
      // Point to point shows as a round of its own kind; the next collective, or its end, takes the slot. Its shape
      // says how much has moved.
      std::vector<RoundBoard::Waited> peers;
      for (const Rank rank : group->points.senders()) peers.push_back({rank, true, false});
      for (const Rank rank : group->points.receivers()) peers.push_back({rank, false, true});
      Fingerprint point;
      point.collective = Collective::kPoint;
      point.type = DataType::kU8;
      point.shape = group->points.moves();
      shared_.board.begin(slot, group->rounds.next_round(), point);
      shared_.board.waits(slot, peers);
      group->point_shown = true;
    }
  }
}

std::optional<wire::Blocked> Engine::blocked() const {
  const bool goes_on = shared_.light != nullptr || asking() || !wanted_.empty() || has_work_outside() ||
                       has_gpu_work() || has_exchange_under_way() || has_trouble() ||
                       (shared_.recall != nullptr && !shared_.recall->replayer().idle());
  if (!shared_.open || shared_.trouble.failed() || stopped() || goes_on || groups() > limits::kMaxBlockedGroups)
    return std::nullopt;
  wire::Blocked blocked;
  for (const auto& [id, group] : groups_.present()) {
    if (!group->rounds.describe_blocked(blocked) || !group->points.describe_blocked(id, blocked)) return std::nullopt;
  }
  add_destroyed(blocked);
  // Messages of a group that was destroyed here may still be on their way.
  for (const auto& [id, group] : groups_.departed()) {
    if (!group->points.describe_blocked(id, blocked)) return std::nullopt;
  }
  std::ranges::sort(*blocked.mutable_sent(), {},
                    [](const wire::SentMessages& s) { return std::pair(s.group(), s.peer()); });
  return blocked;
}

std::vector<Rank> Engine::end_waiting_sends() {
  std::vector<Rank> ranks;
  if (!shared_.open || shared_.trouble.failed() || stopped()) return ranks;
  for (const auto& [id, group] : groups_.present()) {
    const std::vector<Rank> ended = group->points.end_waiting_sends();
    if (ended.empty()) continue;
    ranks.insert(ranks.end(), ended.begin(), ended.end());
    check(*group);
  }
  return ranks;
}

// Adds the groups that were destroyed in this version, if there is room for all of them. Then a group that is not
// listed has not been made.
void Engine::add_destroyed(wire::Blocked& blocked) const {
  if (!closed_.complete()) return;
  std::vector<wire::BegunRounds> destroyed;
  for (const auto& [key, rounds] : closed_.all()) {
    if (key.second != shared_.version || has_group(key.first)) continue;
    if (groups() + destroyed.size() == limits::kMaxBlockedGroups) return;
    wire::BegunRounds& begun = destroyed.emplace_back();
    begun.set_group(key.first.value);
    begun.set_version(shared_.version.value);
    begun.set_rounds(rounds);
  }
  for (wire::BegunRounds& begun : destroyed) *blocked.add_begun() = std::move(begun);
  std::ranges::sort(*blocked.mutable_begun(), {}, &wire::BegunRounds::group);
  blocked.set_complete(true);
}

std::vector<std::string> Engine::describe_waits() const {
  std::vector<std::string> lines;
  const std::string rank = "rank " + std::to_string(plan().self.value);
  if (shared_.recall != nullptr && !shared_.recall->replayer().idle())
    lines.push_back(rank + " " + shared_.recall->replayer().describe());
  if (asking() && shared_.recall != nullptr) {
    lines.push_back(rank + " waits for " + shared_.recall->inquiry().describe() + " to say which round " +
                    to_string(next_round_.question()->round) + " is");
  }
  for (const auto& [id, group] : groups_.present()) {
    if (auto wait = group->rounds.describe_wait(rank)) lines.push_back(*std::move(wait));
    const auto senders = group->points.senders(), receivers = group->points.receivers();
    if (!senders.empty()) lines.push_back(rank + " waits for rank " + list_of(senders) + " to send");
    if (!receivers.empty()) lines.push_back(rank + " waits for rank " + list_of(receivers) + " to receive");
  }
  for (const Call* call : shared_.calls.moving()) {
    if (!call->concluded) continue;
    lines.push_back(rank + " waits for its own buffers of " + to_string(call->round) + ", " +
                    to_string(call->fingerprint) + ", to be brought back");
  }
  return lines;
}

}  // namespace warren::worker
