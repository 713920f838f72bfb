#include "worker/checkpoints.h"

#include <string>
#include <utility>

#include "recovery/check.h"
#include "recovery/shards.h"

namespace warren::worker {
namespace {

// In the fingerprint of the global state's records: the program has a local state too.
constexpr std::uint64_t kHasLocalState = 1;

RecordInfo info_of(std::uint64_t bytes, bool has_local) {
  RecordInfo info;
  info.fingerprint.collective = Collective::kBroadcast;
  info.fingerprint.type = DataType::kU8;
  info.fingerprint.count = bytes;
  // All ranks have one or none has: shards that say otherwise contradict each other.
  info.fingerprint.shape = has_local ? kHasLocalState : 0;
  info.total_bytes = bytes;
  return info;
}

std::string name_of(Version version) {
  return "checkpoint " + std::to_string(version.value - 1);
}

}  // namespace

// ---- load

void Checkpoints::want_whole(const RecordKey& key) {
  Replayer::Want want;
  want.key = key;
  want_ = engine_.fetch(std::move(want));
}

void Checkpoints::end_load(Result<State> result) {
  source_.reset();
  if (result.ok()) {
    const Status status = engine_.begin_version(version_of_program(result.value().version));
    if (!status.ok()) result = status;
  }
  loaded_ = std::move(result);
}

void Checkpoints::load(const worker_effect::Loaded& what) {
  state_ = {};
  global_here_ = false;
  loaded_.reset();
  if (!what.committed) return end_load(State{});
  source_ = what;
  state_.version = what.version.value - 1;
  committed(what.version);
  want_whole({RecordKind::kGlobal, {what.timeline, kWorldGroup, what.version, Sequence(0)}});
}

std::optional<Result<Checkpoints::State>> Checkpoints::loaded() {
  return std::exchange(loaded_, std::nullopt);
}

// ---- take

RecordKey Checkpoints::key_of(RecordKind kind, Sequence sequence) const {
  return {kind, {pending_timeline_, kWorldGroup, pending_, sequence}};
}

Status Checkpoints::log(RecordKind kind, Sequence sequence, std::span<const std::byte> state, const Ranges& bytes,
                        bool has_local) {
  const RecordKey key = key_of(kind, sequence);
  const RecordInfo info = info_of(state.size(), has_local);
  if (state.empty()) return recall_.log().publish(key, info, 0, {});
  for (const Interval& i : bytes.intervals()) {
    const Status status = recall_.log().publish(key, info, i.begin, state.subspan(i.begin, i.end - i.begin));
    if (!status.ok()) return status;
  }
  return {};
}

Status Checkpoints::take(std::span<const std::byte> global, const std::span<const std::byte>* local) {
  WARREN_CHECK(may_take(), "one checkpoint is pending at a time");
  const Engine::Plan& plan = engine_.plan();
  const auto self = static_cast<std::uint32_t>(plan.self.value);
  const Version before = std::exchange(pending_, engine_.version().next());
  pending_timeline_ = engine_.timeline();
  global_bytes_ = global.size();
  has_local_ = local != nullptr;
  Status status = log(RecordKind::kGlobal, Sequence(0), global,
                      shard_duty(self, global.size(), plan.domains, plan.replicas), has_local_);
  if (status.ok() && local != nullptr) {
    status = log(RecordKind::kLocal, Sequence(self), *local, Ranges(0, local->size()), true);
  }
  if (!status.ok()) {
    const Version wanted = std::exchange(pending_, before);
    return status.because_of_this("cannot take " + name_of(wanted));
  }
  status = engine_.begin_version(pending_);
  if (!status.ok()) return status;
  voted_ = false;
  pull_duties();
  return {};
}

// What this rank has to hold of the pending checkpoint and does not: shards that the plan in force gives to it, and
// other ranks' local states.
void Checkpoints::pull_duties() {
  const Engine::Plan& plan = engine_.plan();
  const auto self = static_cast<std::uint32_t>(plan.self.value);
  const RecordKey global = key_of(RecordKind::kGlobal, Sequence(0));
  const Ranges missing =
      shard_duty(self, global_bytes_, plan.domains, plan.replicas).minus(recall_.reader().held(global));
  for (const Interval& i : missing.intervals()) {
    Pull pull{global, std::vector<std::byte>(i.end - i.begin), i.begin, false};
    Replayer::Want want;
    want.key = global;
    want.fingerprint = info_of(global_bytes_, has_local_).fingerprint;
    want.total_bytes = global_bytes_;
    want.bytes = Ranges(i.begin, i.end);
    want.base = pull.bytes.data();
    want.base_at = i.begin;
    want.wait = true;
    pulls_.emplace(engine_.fetch(std::move(want)), std::move(pull));
  }
  if (!has_local_) return;
  for (std::uint32_t rank = 0; rank < plan.world_size; ++rank) {
    const auto holders = shard_holders(rank, plan.domains, plan.replicas);
    if (rank == self || std::find(holders.begin(), holders.end(), self) == holders.end()) continue;
    const RecordKey key = key_of(RecordKind::kLocal, Sequence(rank));
    const auto here = recall_.reader().info(key);
    if (here.ok() && here.value() && recall_.reader().held(key).covers(0, here.value()->total_bytes)) continue;
    Replayer::Want want;
    want.key = key;
    want.wait = true;
    pulls_.emplace(engine_.fetch(std::move(want)), Pull{key, {}, 0, true});
  }
}

void Checkpoints::install() {
  if (pending_ <= committed_) return;
  for (const auto& [id, pull] : pulls_) engine_.cancel(id);
  pulls_.clear();
  voted_ = false;
  pull_duties();
}

void Checkpoints::committed(Version version) {
  if (version <= committed_) return;
  committed_ = version;
  engine_.committed(version);
  if (pending_ > committed_) return;
  for (const auto& [id, pull] : pulls_) engine_.cancel(id);
  pulls_.clear();
}

void Checkpoints::advance() {
  for (auto it = pulls_.begin(); it != pulls_.end();) {
    auto done = engine_.take_recalled(it->first);
    if (!done) {
      ++it;
      continue;
    }
    const Pull& pull = it->second;
    Status status = done->status;
    if (status.ok()) {
      status = pull.local ? recall_.log().publish(pull.key, *done->info, 0, done->bytes)
                          : recall_.log().publish(pull.key, info_of(global_bytes_, has_local_), pull.begin, pull.bytes);
    }
    if (!status.ok() && failure_.ok()) failure_ = status.because_of_this("cannot hold " + name_of(pending_));
    it = pulls_.erase(it);
  }
  if (!source_) return;
  auto done = engine_.take_recalled(want_);
  if (!done) return;
  const auto self = static_cast<std::uint32_t>(engine_.plan().self.value);
  const RecordKey local{RecordKind::kLocal, {source_->timeline, kWorldGroup, source_->version, Sequence(self)}};
  if (!done->status.ok()) {
    return end_load(done->status.because_of_this(
        (global_here_ ? "the local state of rank " + std::to_string(self) + " in " : "") + name_of(source_->version) +
        " is committed and cannot be loaded; its copies are lost: give the hosts or disks that held them back, or "
        "start a job of another name"));
  }
  // This host's share, where the log has fewer copies than it should.
  const RecordKey key =
      global_here_ ? local : RecordKey{RecordKind::kGlobal, {source_->timeline, kWorldGroup, source_->version, {}}};
  for (const Interval& i : done->log_again.intervals()) {
    const Status status =
        recall_.log().publish(key, *done->info, i.begin, std::span(done->bytes).subspan(i.begin, i.end - i.begin));
    if (!status.ok()) return end_load(status.because_of_this("cannot log " + name_of(source_->version) + " again"));
  }
  if (global_here_) {
    state_.local = std::move(done->bytes);
    return end_load(std::move(state_));
  }
  global_here_ = true;
  state_.global = std::move(done->bytes);
  if (done->info->fingerprint.shape != kHasLocalState) return end_load(std::move(state_));
  want_whole(local);
}

std::optional<Checkpoints::Vote> Checkpoints::take_vote() {
  if (voted_ || pending_ <= committed_ || !pulls_.empty()) return std::nullopt;
  voted_ = true;
  return Vote{engine_.plan().epoch, pending_timeline_, pending_, engine_.positions_of(Version(pending_.value - 1))};
}

}  // namespace warren::worker
