// The waits of a group's rounds, as the tracker's search for circles and the log are told of them.
#include <set>
#include <string>
#include <vector>

#include "recovery/base/limits.h"
#include "worker/rounds/group_rounds.h"
#include "worker/rounds/progress.h"
#include "worker/rounds/rank_list.h"

namespace warren::worker {

bool GroupRounds::describe_blocked(wire::Blocked& blocked) const {
  wire::BegunRounds& begun = *blocked.add_begun();
  begun.set_group(id_.value);
  begun.set_version(shared_.version.value);
  begun.set_rounds(done_ + (active_ != nullptr ? 1 : 0));
  if (active_ == nullptr) return true;
  const Call& call = *active_;
  // A set-up round has a name and no place among the others; and of what is final somewhere a part may be on its way.
  if (phase_ != Phase::kRuns || is_setup(call.round) || parts_.resumed() || executor_.done() ||
      executor_.awaits_input() || executor_.awaits_gpu_work() || executor_.settling() ||
      static_cast<std::size_t>(blocked.calls_size()) == limits::kMaxBlockedCalls) {
    return false;
  }
  wire::CurrentRound& told = *blocked.add_calls();
  tell(call.round, call.fingerprint, told);
  std::set<Rank> needed;
  for (const RoundBoard::Waited& w : waiting_for()) {
    if (w.receives) needed.insert(w.rank);
  }
  const Collective collective = call.spec.collective;
  const bool from_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
  if (from_root && call.spec.count != 0 && call.spec.root != schedules_.rank()) {
    needed.insert(schedules_.members()[static_cast<std::size_t>(call.spec.root)]);
  }
  for (const Rank rank : needed) told.add_waiting_for(static_cast<std::uint32_t>(rank.value));
  return true;
}

std::optional<std::string> GroupRounds::describe_wait(const std::string& rank) const {
  if (active_ == nullptr) return std::nullopt;
  const std::string round = to_string(active_->round) + ", " + to_string(active_->fingerprint);
  const std::string own_input = rank + " waits for its own input, which is on its way, in " + round;
  if (phase_ == Phase::kPrepares && active_->prepare == Call::Prepare::kDone) return own_input;
  if (phase_ == Phase::kPrepares) return rank + " waits for its own prepare function in " + round;
  if (phase_ == Phase::kWaits) return rank + " waits for the next plan in " + round;
  std::vector<Rank> waiting;
  if (const Rank peer = light_.waits_for(); peer != kNoRank) waiting.push_back(peer);
  for (const auto& w : waiting_for()) waiting.push_back(w.rank);
  if (!waiting.empty()) return rank + " waits for rank " + list_of(waiting) + " in " + round;
  if (executor_.awaits_gpu_work()) {
    return rank + " waits for its GPU, which combines inputs or brings finals, in " + round;
  }
  if (executor_.awaits_input()) return own_input;
  if (executor_.settling() || (phase_ == Phase::kRuns && !light_.runs() && executor_.done())) {
    return rank + " waits for its disk in " + round;
  }
  return std::nullopt;
}

}  // namespace warren::worker
