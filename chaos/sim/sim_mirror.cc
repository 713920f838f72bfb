#include "chaos/sim/sim_mirror.h"

#include <algorithm>

#include "recovery/decide/shards.h"
#include "storage/checkpoint_mirror.h"
#include "worker/life/checkpoints.h"

namespace warren::chaos {
namespace {

std::vector<std::byte> read(HostLogReader& log, const RecordKey& key, const Interval& bytes) {
  std::vector<std::byte> out(bytes.end - bytes.begin);
  if (!out.empty() && !log.read(key, bytes.begin, out)) out.clear();
  return out;
}

}  // namespace

void SimMirror::write(const storage::ResultStore::Note& note, Timeline timeline, Version version, Rank rank,
                      HostLogReader& log) {
  // First, so that no checkpoint is complete of which the note does not know the timeline.
  if (rank.value == 0) note_ = note;
  const auto of = static_cast<std::uint32_t>(rank.value);
  const RecordKey global{RecordKind::kGlobal, {timeline, kWorldGroup, version, Sequence(0)}};
  const RecordKey local{RecordKind::kLocal, {timeline, kWorldGroup, version, Sequence(of)}};
  const auto info = log.info(global);
  if (!info.ok() || !info.value()) return;
  const Interval mine = shard_of(of, info.value()->total_bytes, world_size_);
  const auto bytes = read(log, global, mine);
  if (bytes.size() != mine.end - mine.begin) return;
  State& state = states_[{version, timeline}];
  state.has_local = worker::Checkpoints::has_local(*info.value());
  if (state.has_local) {
    const auto local_info = log.info(local);
    if (!local_info.ok() || !local_info.value()) return;
    auto whole = read(log, local, {0, local_info.value()->total_bytes});
    if (whole.size() != local_info.value()->total_bytes) return;
    state.locals[of] = std::move(whole);
  }
  state.global.resize(info.value()->total_bytes);
  std::copy(bytes.begin(), bytes.end(), state.global.begin() + static_cast<std::ptrdiff_t>(mine.begin));
  state.ranks.insert(of);
  std::size_t kept = 0;
  for (auto it = states_.end(); it != states_.begin();) {
    --it;
    if (kept == storage::CheckpointMirror::kKept) {
      it = states_.erase(it);
    } else {
      kept += complete(it->second) ? 1 : 0;
    }
  }
}

std::optional<wire::Held> SimMirror::held() const {
  wire::Known known;
  if (finished_ || note_.run == 0 || !known.ParseFromString(note_.text)) return std::nullopt;
  const Timeline timeline(known.has_plan() ? known.plan().timeline() : known.committed_timeline());
  const auto newest = std::find_if(states_.rbegin(), states_.rend(), [&](const auto& state) {
    return complete(state.second) && state.first.second <= timeline;
  });
  if (newest == states_.rend()) return std::nullopt;
  known.set_committed(true);
  known.set_committed_version(newest->first.first.value);
  known.set_committed_timeline(newest->first.second.value);
  wire::Held held;
  held.set_run(note_.run);
  held.set_mirrored(true);
  *held.mutable_known() = std::move(known);
  return held;
}

const SimMirror::State* SimMirror::find(Timeline timeline, Version version) const {
  const auto found = states_.find({version, timeline});
  return found == states_.end() || !complete(found->second) ? nullptr : &found->second;
}

}  // namespace warren::chaos
