// Waits of a rank, as the board, the tracker's search for circles, and the log are told of them.
#include "worker/rounds/engine.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "worker/rounds/progress.h"
#include "worker/schedule/copies.h"

namespace warren::worker {

void Engine::publish_waits() {
  board_.replaying.store(recall_ != nullptr && !recall_->replayer().idle(), std::memory_order_relaxed);
  for (const auto& [id, group] : groups_) {
    const std::size_t slot = group->slot / 2;
    if (group->active != nullptr) {
      board_.waits(slot, group->executor.waiting_for(RoundBoard::kRanks));
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
      board_.begin(slot, round_of(group->id, group->next_sequence), point);
      board_.waits(slot, peers);
      group->point_shown = true;
    }
  }
}

std::optional<wire::Blocked> Engine::blocked() const {
  const bool goes_on = light_ != nullptr || question_ || !wanted_.empty() || has_work_outside() || has_gpu_work() ||
                       has_exchange_under_way() || has_trouble() || (recall_ != nullptr && !recall_->replayer().idle());
  if (!open_ || failed_ || stopped() || goes_on || groups_.size() > limits::kMaxBlockedGroups) return std::nullopt;
  wire::Blocked blocked;
  for (const auto& [id, group] : groups_) {
    if (!describe_blocked(*group, blocked)) return std::nullopt;
  }
  add_destroyed(blocked);
  // What a group that was destroyed here has sent may still be on its way.
  for (const auto& [id, group] : departed_) {
    if (!group->points.describe_blocked(id, blocked)) return std::nullopt;
  }
  std::ranges::sort(*blocked.mutable_sent(), {},
                    [](const wire::SentMessages& s) { return std::pair(s.group(), s.peer()); });
  return blocked;
}

std::vector<Rank> Engine::end_waiting_sends() {
  std::vector<Rank> ranks;
  if (!open_ || failed_ || stopped()) return ranks;
  for (const auto& [id, group] : groups_) {
    const std::vector<Rank> ended = group->points.end_waiting_sends();
    if (ended.empty()) continue;
    ranks.insert(ranks.end(), ended.begin(), ended.end());
    check(*group);
  }
  return ranks;
}

// The groups that were destroyed in this version, if there is room for all of them: then a group that is not listed has
// not been made.
void Engine::add_destroyed(wire::Blocked& blocked) const {
  if (!closed_is_complete_) return;
  std::vector<wire::BegunRounds> destroyed;
  for (const auto& [key, rounds] : closed_) {
    if (key.second != version_ || groups_.contains(key.first)) continue;
    if (groups_.size() + destroyed.size() == limits::kMaxBlockedGroups) return;
    wire::BegunRounds& begun = destroyed.emplace_back();
    begun.set_group(key.first.value);
    begun.set_version(version_.value);
    begun.set_rounds(rounds);
  }
  for (wire::BegunRounds& begun : destroyed) *blocked.add_begun() = std::move(begun);
  std::ranges::sort(*blocked.mutable_begun(), {}, &wire::BegunRounds::group);
  blocked.set_complete(true);
}

bool Engine::describe_blocked(const Group& group, wire::Blocked& blocked) const {
  wire::BegunRounds& begun = *blocked.add_begun();
  begun.set_group(group.id.value);
  begun.set_version(version_.value);
  begun.set_rounds(group.rounds_done + (group.active != nullptr ? 1 : 0));
  if (group.active != nullptr) {
    const Call& call = *group.active;
    // A set-up round has a name and no place among the others; and of what is final somewhere a part may be on its way.
    if (group.phase != Phase::kRuns || is_setup(call.round) || !group.final.empty() || group.executor.done() ||
        group.executor.awaits_input() || group.executor.awaits_gpu_work() || group.executor.settling() ||
        static_cast<std::size_t>(blocked.calls_size()) == limits::kMaxBlockedCalls) {
      return false;
    }
    wire::CurrentRound& told = *blocked.add_calls();
    tell(call.round, call.fingerprint, told);
    std::set<Rank> needed;
    for (const RoundBoard::Waited& w : group.executor.waiting_for(RoundBoard::kRanks)) {
      if (w.receives) needed.insert(w.rank);
    }
    const Collective collective = call.spec.collective;
    const bool from_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
    if (from_root && call.spec.count != 0 && call.spec.root != group.rank) {
      needed.insert(group.members[static_cast<std::size_t>(call.spec.root)]);
    }
    for (const Rank rank : needed) told.add_waiting_for(static_cast<std::uint32_t>(rank.value));
  }
  return group.points.describe_blocked(group.id, blocked);
}

std::vector<std::string> Engine::describe_waits() const {
  std::vector<std::string> lines;
  const auto ranks = [](const std::vector<Rank>& list) {
    std::string text;
    for (const Rank r : list) text += (text.empty() ? "" : ", ") + std::to_string(r.value);
    return text;
  };
  const std::string rank = "rank " + std::to_string(plan_.self.value);
  if (recall_ != nullptr && !recall_->replayer().idle()) lines.push_back(rank + " " + recall_->replayer().describe());
  if (question_ && recall_ != nullptr) {
    lines.push_back(rank + " waits for " + recall_->inquiry().describe() + " to say which round " +
                    to_string(question_->round) + " is");
  }
  for (const auto& [id, group] : groups_) {
    const std::string self = rank + " waits for rank ";
    if (group->active != nullptr && group->phase == Phase::kPrepares &&
        group->active->prepare == Call::Prepare::kDone) {
      lines.push_back(rank + " waits for its own input, which is on its way, in " + to_string(group->active->round) +
                      ", " + to_string(group->active->fingerprint));
    } else if (group->active != nullptr && group->phase == Phase::kPrepares) {
      lines.push_back(rank + " waits for its own prepare function in " + to_string(group->active->round) + ", " +
                      to_string(group->active->fingerprint));
    } else if (group->active != nullptr && group->phase == Phase::kWaits) {
      lines.push_back(rank + " waits for the next plan in " + to_string(group->active->round) + ", " +
                      to_string(group->active->fingerprint));
    } else if (group->active != nullptr) {
      std::vector<Rank> waiting;
      if (const Rank peer = group->light.waits_for(); peer != kNoRank) waiting.push_back(peer);
      for (const auto& w : group->executor.waiting_for(RoundBoard::kRanks)) waiting.push_back(w.rank);
      if (!waiting.empty()) {
        lines.push_back(self + ranks(waiting) + " in " + to_string(group->active->round) + ", " +
                        to_string(group->active->fingerprint));
      } else if (group->executor.awaits_gpu_work()) {
        lines.push_back(rank + " waits for its GPU, which combines inputs or brings finals, in " +
                        to_string(group->active->round) + ", " + to_string(group->active->fingerprint));
      } else if (group->executor.awaits_input()) {
        lines.push_back(rank + " waits for its own input, which is on its way, in " + to_string(group->active->round) +
                        ", " + to_string(group->active->fingerprint));
      } else if (group->executor.settling() ||
                 (group->phase == Phase::kRuns && !group->light.runs() && group->executor.done())) {
        lines.push_back(rank + " waits for its disk in " + to_string(group->active->round) + ", " +
                        to_string(group->active->fingerprint));
      }
    }
    const auto senders = group->points.senders(), receivers = group->points.receivers();
    if (!senders.empty()) lines.push_back(self + ranks(senders) + " to send");
    if (!receivers.empty()) lines.push_back(self + ranks(receivers) + " to receive");
  }
  for (const Call* call : moving_) {
    if (!call->concluded) continue;
    lines.push_back(rank + " waits for its own buffers of " + to_string(call->round) + ", " +
                    to_string(call->fingerprint) + ", to be brought back");
  }
  return lines;
}

}  // namespace warren::worker
