#include "worker/life/checkpoints.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/decide/shards.h"

namespace warren::worker {
namespace {

// In the fingerprint of the global state's records: the program has a local state too; above that bit, the world size.
constexpr std::uint64_t kHasLocalState = 1;
constexpr unsigned kWorldSizeShift = 1;

RecordInfo info_of(std::uint64_t bytes, bool has_local, std::uint32_t world_size) {
  RecordInfo info;
  info.fingerprint.collective = Collective::kBroadcast;
  info.fingerprint.type = DataType::kU8;
  info.fingerprint.count = bytes;
  // All ranks have one or none has: shards that say otherwise contradict each other.
  info.fingerprint.shape = (has_local ? kHasLocalState : 0) | std::uint64_t{world_size} << kWorldSizeShift;
  info.total_bytes = bytes;
  return info;
}

RecordKey global_key(Version version, Timeline timeline) {
  return {RecordKind::kGlobal, {timeline, kWorldGroup, version, Sequence(0)}};
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
  global_here_ = adopted_ = false;
  loaded_.reset();
  if (!has_followed(what)) forget_followed();
  if (!what.committed) return end_load(State{});
  source_ = what;
  state_.version = what.version.value - 1;
  committed(what.version, what.timeline);
  if (!follow_) return want_whole(global_key(what.version, what.timeline));
  Follow followed = *std::exchange(follow_, std::nullopt);
  want_ = followed.want;
  adopted_ = true;
  // Logging a share of it takes time, which whoever calls this may not have.
  ready_ = std::move(followed.done);
}

void Checkpoints::follow(std::uint64_t run, Version version, Timeline timeline) {
  const RecordKey key = global_key(version, timeline);
  if (follow_ && follow_->run == run && follow_->key == key) {
    follow_->told = false;
    return;
  }
  // First: there is room for one.
  forget_followed();
  Replayer::Want want;
  want.key = key;
  follow_ = Follow{run, key, engine_.fetch(std::move(want)), {}};
}

std::optional<machine_event::Followed> Checkpoints::take_followed() {
  if (!follow_ || !follow_->done || follow_->told) return std::nullopt;
  follow_->told = true;
  return machine_event::Followed{follow_->key.round.version, follow_->key.round.timeline};
}

bool Checkpoints::has_followed(const worker_effect::Loaded& what) const {
  return what.committed && follow_ && follow_->run == engine_.plan().run &&
         follow_->key == global_key(what.version, what.timeline);
}

void Checkpoints::forget_followed() {
  if (follow_ && !follow_->done) engine_.cancel(follow_->want);
  follow_.reset();
}

bool Checkpoints::has_local(const RecordInfo& global) {
  return (global.fingerprint.shape & kHasLocalState) != 0;
}

std::uint32_t Checkpoints::world_size(const RecordInfo& global) {
  return static_cast<std::uint32_t>(global.fingerprint.shape >> kWorldSizeShift);
}

bool Checkpoints::has_our_locals(const Known& of) const {
  return of.has_local && of.world_size == engine_.plan().world_size;
}

Status Checkpoints::restore(const worker_effect::Loaded& what, State state, bool has_local) {
  const auto self = static_cast<std::uint32_t>(engine_.plan().self.value);
  const Known found{what.version, what.timeline, state.global.size(), has_local, state.world_size};
  const RecordKey global = found.key(RecordKind::kGlobal, 0), local = found.key(RecordKind::kLocal, self);
  Status status = log(global, info_of(state.global.size(), has_local, state.world_size), state.global,
                      duty(found).minus(held_by_living(global)));
  if (status.ok() && has_our_locals(found)) {
    status = log(local, info_of(state.local.size(), true, state.world_size), state.local,
                 Ranges(0, state.local.size()).minus(held_by_living(local)));
  }
  if (!status.ok()) return status.because_of_this("cannot log " + name_of(what.version) + " again");
  base_ = found;
  pull_duties(base_);
  state.version = what.version.value - 1;
  end_load(std::move(state));
  return {};
}

std::optional<Result<Checkpoints::State>> Checkpoints::loaded() {
  return std::exchange(loaded_, std::nullopt);
}

// ---- take

Status Checkpoints::log_empty(const RecordKey& key, const Known& taken) {
  return recall_.log().publish(key, info_of(0, taken.has_local, taken.world_size), 0, {});
}

// What lies in several places is copied a block at a time.
Status Checkpoints::log(const RecordKey& key, const RecordInfo& info, const PlacedState& state, const Ranges& bytes) {
  if (state.empty()) return recall_.log().publish(key, info, 0, {});
  const std::uint64_t most = state.places().size() == 1 ? state.size() : StateHashes::kBlockBytes;
  std::vector<std::byte> scratch;
  for (const Interval& i : bytes.intervals()) {
    for (std::uint64_t at = i.begin; at < i.end; at += most) {
      const Status status = recall_.log().publish(key, info, at, state.bytes(at, std::min(i.end, at + most), scratch));
      if (!status.ok()) return status;
    }
  }
  return {};
}

// Not to be mixed with what this life knows: it votes for nothing any more.
void Checkpoints::contradict(const RecordKey& key, const std::string& how) {
  if (!contradiction_.ok()) return;
  const bool local = key.kind == RecordKind::kLocal;
  contradiction_ = {Code::kUnavailable,
                    "an earlier life of a worker has logged another " +
                        (local ? "local state of rank " + std::to_string(key.round.sequence.value) : "global state") +
                        " of " + name_of(key.round.version) + ", which is not committed: " + how +
                        "; the two must not be mixed, so all ranks go back to the checkpoint before"};
  if (failure_.ok()) failure_ = contradiction_;
}

// It may come from a life that is over, and whose next one has made something else.
void Checkpoints::look_at_pulled(const Pull& pull, const RecordInfo& info, std::span<const std::byte> bytes) {
  compare_with_the_dead(pull.key, info, pull.begin, bytes);
  const auto pending =
      std::ranges::find(pending_, pull.key.round.version, [](const Pending& p) { return p.known.version; });
  if (pending == pending_.end()) return;
  if (pull.key.kind == RecordKind::kLocal) {
    pending->copies[static_cast<std::uint32_t>(pull.key.round.sequence.value)] = hash_of_state(bytes);
  } else if (pending->hashes.contradicts(pull.begin, bytes)) {
    contradict(pull.key, "what has come from another rank differs from what this rank has given");
  }
}

// What a dead life of the host has logged of a version before it was committed may serve whoever loads it. Its next
// life may have made something else, which nobody may mix with that.
void Checkpoints::compare_with_the_dead(const RecordKey& key, const RecordInfo& info, std::uint64_t at,
                                        std::span<const std::byte> bytes) {
  HostLogReader& reader = recall_.reader();
  // What the living say of it their votes tell.
  if (!reader.recorded_by_others(key, recall_.replayer().host_lives())) return;
  const auto known = reader.info(key);
  if (!known.ok()) return contradict(key, known.status().describe());
  if (!known.value()) return;
  if (known.value()->total_bytes != info.total_bytes) {
    return contradict(
        key, std::to_string(known.value()->total_bytes) + " bytes, and now " + std::to_string(info.total_bytes));
  }
  if (*known.value() != info) return contradict(key, "with a local state in one of them");
  const std::uint64_t end = at + bytes.size();
  std::vector<std::byte> theirs;
  const Ranges dead = reader.held_within(key, at, end).minus(held_by_living(key));
  for (const Interval& i : dead.intervals()) {
    theirs.resize(i.end - i.begin);
    if (!reader.read(key, i.begin, theirs)) continue;  // dropped meanwhile
    if (std::ranges::equal(theirs, bytes.subspan(i.begin - at, theirs.size()))) continue;
    return contradict(key, "bytes " + std::to_string(i.begin) + " to " + std::to_string(i.end) + " differ");
  }
}

void Checkpoints::compare_with_the_dead(const RecordKey& key, const RecordInfo& info, const PlacedState& state) {
  std::uint64_t at = 0;
  for (const auto& place : state.places()) {
    compare_with_the_dead(key, info, at, place);
    at += place.size();
  }
}

Status Checkpoints::may_hold(std::uint64_t state_bytes) {
  if (state_bytes <= limits::kMaxStateBytes) return {};
  return {Code::kInvalidArgument, "a checkpoint's state has " + std::to_string(state_bytes) + " bytes, and may have " +
                                      std::to_string(limits::kMaxStateBytes)};
}

// This rank's share of a global state, a block at a time: it is in the processor's cache when it is copied.
Status Checkpoints::log_and_hash(const Known& taken, const PlacedState& state, StateHashes& hashes) {
  const RecordKey key = taken.key(RecordKind::kGlobal, 0);
  const RecordInfo info = info_of(state.size(), taken.has_local, taken.world_size);
  if (state.empty()) return log(key, info, state, {});
  if (hashes.blocks() == 0) hashes = StateHashes(state.size());
  const Ranges share = duty(taken);
  std::vector<std::byte> scratch;
  for (std::uint64_t i = 0; i < hashes.blocks(); ++i) {
    const Interval b = hashes.block(i);
    if (!hashes.has(i)) hashes.add(i, state.bytes(b.begin, b.end, scratch));
    if (Status status = log(key, info, state, share.intersect(b.begin, b.end)); !status.ok()) return status;
  }
  return {};
}

Status Checkpoints::log_local(const Known& taken, const PlacedState& state) {
  const RecordKey key = taken.key(RecordKind::kLocal, static_cast<std::uint64_t>(engine_.plan().self.value));
  const RecordInfo info = info_of(state.size(), true, taken.world_size);
  compare_with_the_dead(key, info, state);
  return log(key, info, state, Ranges(0, state.size()));
}

// Logs this rank's part of the checkpoint that begins `version`.
Result<Checkpoints::Pending> Checkpoints::log_state(Version version, const PlacedState& global,
                                                    const PlacedState* local, StateHashes hashes) {
  if (const Status may = may_hold(std::max(global.size(), local == nullptr ? 0 : local->size())); !may.ok()) return may;
  const Known taken{version, engine_.timeline(), global.size(), local != nullptr, engine_.plan().world_size};
  compare_with_the_dead(taken.key(RecordKind::kGlobal, 0), info_of(global.size(), taken.has_local, taken.world_size),
                        global);
  Status status = log_and_hash(taken, global, hashes);
  if (status.ok() && local != nullptr) status = log_local(taken, *local);
  if (!status.ok()) return status.because_of_this("cannot take " + name_of(version));
  Pending pending{taken, std::move(hashes)};
  if (engine_.plan().shrinks) {
    pending.state.reserve(global.size());
    for (const auto& place : global.places()) pending.state.insert(pending.state.end(), place.begin(), place.end());
  }
  if (local != nullptr) pending.local_hash = hash_of_placed(*local);
  return pending;
}

// Under the name that it has in this plan's timeline, and with the shares that this plan gives.
void Checkpoints::log_again(Pending& pending) {
  Known& known = pending.known;
  known.timeline = engine_.timeline();
  const RecordKey key = known.key(RecordKind::kGlobal, 0);
  const Status status = log(key, info_of(known.global_bytes, false, known.world_size), pending.state,
                            duty(known).minus(held_by_living(key)));
  if (!status.ok() && failure_.ok()) failure_ = status.because_of_this("cannot hold " + name_of(known.version));
}

bool Checkpoints::may_take() const {
  return !owes_state_ && (pending_.empty() || (tracker_away_ && has_room_for_another()));
}

// How many versions may be pending, so that reports of all ranks, and a plan's frontier, can say where they are. A rank
// knows the groups that it is in: as if all others were in as many others.
std::size_t Checkpoints::most_pending() const {
  const std::uint64_t ranks = engine_.plan().world_size, groups = engine_.groups();
  const std::uint64_t in_frontier = 1 + (groups - 1) * ranks;
  const std::uint64_t in_reports = groups * ranks * limits::kMaxPositionBytes;
  const std::uint64_t most =
      std::min(limits::kMaxLoggedPositions / in_frontier, limits::kMaxPositionBytesPerJob / 2 / in_reports);
  // Those that are committed or begun have positions too.
  return std::min<std::uint64_t>(limits::kMaxPendingVersions, most < 3 ? 0 : most - 3);
}

// A log that is full gives up results, which only a commit makes good again: so the next version should fit, and the
// one that then waits.
bool Checkpoints::has_room_for_another() const {
  std::uint64_t held = recall_.log().bytes_held();
  for (const Pending& pending : pending_) held += pending.state.size();
  const std::uint64_t a_version = held / (pending_.size() + 1);
  return pending_.size() < most_pending() && engine_.has_room_for_version() &&
         held + 2 * a_version <= recall_.log().budget_bytes();
}

Status Checkpoints::take(const PlacedState& global, const PlacedState* local, StateHashes hashes) {
  WARREN_CHECK(!owes_state_, "the state of the checkpoint before is there");
  WARREN_CHECK(local == nullptr || !engine_.plan().shrinks, "the owner refuses local states where ranks may be lost");
  auto taken = log_state(engine_.version().next(), global, local, std::move(hashes));
  if (!taken.ok()) return taken.status();
  if (const Status status = engine_.begin_version(taken.value().known.version); !status.ok()) return status;
  hold(std::move(taken).value());
  return {};
}

// What this rank has logged itself is here.
void Checkpoints::hold(Pending taken) {
  pending_.push_back(std::move(taken));
  owes_state_ = false;
  if (pending_.size() == 1) work_for_vote();
}

// This rank votes for the oldest that is pending, once it holds all that the plan in force wants it to.
void Checkpoints::work_for_vote() {
  voted_ = told_ = false;
  pull_duties(pending_.front().known);
}

Status Checkpoints::take_from_root(const PlacedState* global, const PlacedState* local, StateHashes agreed) {
  WARREN_CHECK(!owes_state_, "the state of the checkpoint before is there");
  WARREN_CHECK(!engine_.plan().shrinks, "where ranks may be lost all of a state is kept by all");
  const std::uint64_t bytes = agreed.state_bytes();
  if (const Status may = may_hold(std::max(bytes, local == nullptr ? 0 : local->size())); !may.ok()) return may;
  const Known taken{engine_.version().next(), engine_.timeline(), bytes, local != nullptr, engine_.plan().world_size};
  const RecordKey key = taken.key(RecordKind::kGlobal, 0);
  Status status;
  if (global != nullptr && StateHashes(*global) != agreed) {
    contradict(key, "its root has given another state than the one whose hashes all ranks have");
  } else if (bytes == 0) {
    status = log_empty(key, taken);
  } else if (global != nullptr) {
    const RecordInfo info = info_of(bytes, taken.has_local, taken.world_size);
    compare_with_the_dead(key, info, *global);
    status = log(key, info, *global, Ranges(0, bytes));
  }
  if (status.ok() && local != nullptr) status = log_local(taken, *local);
  if (!status.ok()) return status.because_of_this("cannot take " + name_of(taken.version));
  if (Status begun = engine_.begin_version(taken.version); !begun.ok()) return begun;
  Pending pending{taken, std::move(agreed)};
  if (local != nullptr) pending.local_hash = hash_of_placed(*local);
  hold(std::move(pending));
  return {};
}

Status Checkpoints::take_later() {
  WARREN_CHECK(!owes_state_, "the state of the checkpoint before is there");
  const Status status = engine_.begin_version(engine_.version().next());
  if (status.ok()) owes_state_ = true;
  return status;
}

Status Checkpoints::give_state(const PlacedState& global, StateHashes hashes) {
  WARREN_CHECK(owes_state_, "a state is given once");
  auto taken = log_state(engine_.version(), global, nullptr, std::move(hashes));
  if (!taken.ok()) return taken.status();
  hold(std::move(taken).value());
  return {};
}

Ranges Checkpoints::share_of(std::uint64_t global_bytes) const {
  Known taken;
  taken.global_bytes = global_bytes;
  return duty(taken);
}

Status Checkpoints::take_in_parts(std::uint64_t global_bytes, std::optional<std::uint64_t> local_bytes,
                                  const Ranges& share, StateHashes hashes) {
  WARREN_CHECK(!owes_state_, "the state of the checkpoint before is there");
  WARREN_CHECK(!engine_.plan().shrinks, "where ranks may be lost all of a state is kept");
  for (const std::uint64_t bytes : {global_bytes, local_bytes.value_or(0)}) {
    if (const Status may = may_hold(bytes); !may.ok()) return may;
  }
  const auto self = static_cast<std::uint32_t>(engine_.plan().self.value);
  const Known taken{engine_.version().next(), engine_.timeline(), global_bytes, local_bytes.has_value(),
                    engine_.plan().world_size};
  // Of what has no bytes a record says so.
  Status status;
  if (global_bytes == 0) {
    status = log_empty(taken.key(RecordKind::kGlobal, 0), taken);
  }
  if (status.ok() && local_bytes == std::uint64_t{0}) {
    status = log_empty(taken.key(RecordKind::kLocal, self), taken);
  }
  if (!status.ok()) return status.because_of_this("cannot take " + name_of(taken.version));
  status = engine_.begin_version(taken.version);
  if (!status.ok()) return status;
  coming_ = {taken, std::move(hashes)};
  coming_local_bytes_ = local_bytes.value_or(0);
  owes_state_ = true;
  global_comes_ = share;
  local_comes_ = Ranges(0, local_bytes.value_or(0));
  if (global_comes_.empty() && local_comes_.empty()) hold(std::move(coming_));
  return {};
}

Status Checkpoints::give_part(const StatePiece& part) {
  const bool global = part.state == StateKind::kGlobal;
  Ranges& comes = global ? global_comes_ : local_comes_;
  const std::uint64_t end = part.at + part.bytes.size();
  WARREN_CHECK(owes_state_ && !part.bytes.empty() && comes.covers(part.at, end), "each byte of a state is given once");
  const auto self = static_cast<std::uint32_t>(engine_.plan().self.value);
  const RecordKey key =
      global ? coming_.known.key(RecordKind::kGlobal, 0) : coming_.known.key(RecordKind::kLocal, self);
  const std::uint64_t bytes = global ? coming_.known.global_bytes : coming_local_bytes_;
  const RecordInfo info = info_of(bytes, coming_.known.has_local, coming_.known.world_size);
  compare_with_the_dead(key, info, part.at, part.bytes);
  const Status status = recall_.log().publish(key, info, part.at, part.bytes);
  if (!status.ok()) return status.because_of_this("cannot take " + name_of(coming_.known.version));
  comes = comes.minus(Ranges(part.at, end));
  if (global_comes_.empty() && local_comes_.empty()) hold(std::move(coming_));
  return {};
}

Ranges Checkpoints::duty(const Known& of) const {
  const Engine::Plan& plan = engine_.plan();
  // Among those who are there.
  std::vector<std::uint32_t> domains;
  for (const Rank r : plan.present) domains.push_back(plan.domains[static_cast<std::size_t>(r.value)]);
  const auto self = static_cast<std::uint32_t>(std::ranges::find(plan.present, plan.self) - plan.present.begin());
  return ShardHolders(domains, plan.replicas).duty(self, of.global_bytes);
}

Ranges Checkpoints::held_by_living(const RecordKey& key) {
  return recall_.reader().held_by(key, recall_.replayer().host_lives());
}

// What this rank has to hold of a checkpoint and its host does not: shards that the plan in force gives to it, and
// other ranks' local states.
void Checkpoints::pull_duties(const Known& of) {
  const Engine::Plan& plan = engine_.plan();
  const auto self = static_cast<std::uint32_t>(plan.self.value);
  const RecordKey global = of.key(RecordKind::kGlobal, 0);
  const Ranges missing = duty(of).minus(held_by_living(global));
  for (const Interval& i : missing.intervals()) {
    Pull pull{global, std::vector<std::byte>(i.end - i.begin), i.begin};
    Replayer::Want want;
    want.key = global;
    want.fingerprint = info_of(of.global_bytes, of.has_local, of.world_size).fingerprint;
    want.total_bytes = of.global_bytes;
    want.bytes = Ranges(i.begin, i.end);
    want.base = pull.bytes.data();
    want.base_at = i.begin;
    want.wait = true;
    pulls_.emplace(engine_.fetch(std::move(want)), std::move(pull));
  }
  if (!has_our_locals(of)) return;
  const ShardHolders holders(plan.domains, plan.replicas);
  for (std::uint32_t rank = 0; rank < plan.world_size; ++rank) {
    if (rank == self || !holders.holds(self, rank)) continue;
    const RecordKey key = of.key(RecordKind::kLocal, rank);
    const auto here = recall_.reader().info(key);
    if (here.ok() && here.value() && held_by_living(key).covers(0, here.value()->total_bytes)) continue;
    Replayer::Want want;
    want.key = key;
    want.wait = true;
    pulls_.emplace(engine_.fetch(std::move(want)), Pull{key, {}, 0});
  }
}

void Checkpoints::cancel_pulls_below(Version version) {
  std::erase_if(pulls_, [&](const auto& pull) {
    const bool obsolete = pull.second.key.round.version < version;
    if (obsolete) engine_.cancel(pull.first);
    return obsolete;
  });
}

void Checkpoints::install() {
  for (const auto& [id, pull] : pulls_) engine_.cancel(id);
  pulls_.clear();
  if (base_.version.value != 0) pull_duties(base_);
  if (engine_.plan().shrinks) {
    for (Pending& pending : pending_) log_again(pending);
  }
  if (!pending_.empty()) work_for_vote();
  // It was told to a generation that was ending.
  if (!contradiction_.ok()) failure_ = contradiction_;
}

void Checkpoints::committed(Version version, Timeline timeline) {
  if (version <= committed_) return;
  committed_ = version;
  committed_timeline_ = timeline;
  engine_.committed(version);
  // What is still being pulled of it is what a plan has made this rank's duty since it voted.
  cancel_pulls_below(version);
  base_ = {};
  const bool any_before = !pending_.empty();
  while (!pending_.empty() && pending_.front().known.version <= version) {
    if (pending_.front().known.version == version) base_ = pending_.front().known;
    pending_.pop_front();
  }
  // It may have been committed before the newest plan was made, after which it was logged under another name.
  const bool renamed = base_.version == version && base_.timeline != timeline;
  if (renamed) base_.timeline = timeline;
  if (renamed) pull_duties(base_);
  if (any_before && !pending_.empty()) work_for_vote();
}

DeadSegments::Horizon Checkpoints::horizon() const {
  const bool any = committed_ != Version();
  return {engine_.oldest_timeline(), any ? std::optional(committed_) : std::nullopt, committed_timeline_,
          engine_.setups_in_use()};
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
      const std::vector<std::byte>& bytes = pull.key.kind == RecordKind::kLocal ? done->bytes : pull.bytes;
      // What is committed the dead have held too.
      if (pull.key.round.version > committed_) look_at_pulled(pull, *done->info, bytes);
      status = recall_.log().publish(pull.key, *done->info, pull.begin, bytes);
    }
    if (!status.ok()) {
      status = status.because_of_this("cannot hold " + name_of(pull.key.round.version));
      // Of a committed one there are copies enough to go on with.
      if (pull.key.round.version == base_.version) {
        if (warning_.empty()) warning_ = status.describe() + "; it has a copy less than it should";
      } else if (failure_.ok()) {
        failure_ = status;
      }
    }
    it = pulls_.erase(it);
  }
  if (follow_ && !follow_->done) {
    auto done = engine_.take_recalled(follow_->want);
    // What cannot be had now is asked for again with the tracker's next word.
    if (done && !done->status.ok()) {
      follow_.reset();
    } else {
      follow_->done = std::move(done);
    }
  }
  if (!source_) return;
  auto done = ready_ ? std::exchange(ready_, std::nullopt) : engine_.take_recalled(want_);
  if (!done) return;
  if (std::exchange(adopted_, false) && !done->status.ok()) {
    // That was another generation, and other holders.
    return want_whole(global_key(source_->version, source_->timeline));
  }
  take_loaded(*std::move(done));
}

void Checkpoints::take_loaded(Replayer::Done done) {
  const auto self = static_cast<std::uint32_t>(engine_.plan().self.value);
  if (!done.status.ok()) {
    loaded_in_ = done.generation;
    return end_load(
        done.status.because_of_this((global_here_ ? "the local state of rank " + std::to_string(self) + " in " : "") +
                                    name_of(source_->version) + " is committed and cannot be loaded" +
                                    (done.status.code() == Code::kUnavailable ? "; its copies are lost" : "")));
  }
  // This host's share of it.
  const Known loaded{source_->version, source_->timeline, done.bytes.size(), has_local(*done.info),
                     world_size(*done.info)};
  const RecordKey key = global_here_ ? loaded.key(RecordKind::kLocal, self) : loaded.key(RecordKind::kGlobal, 0);
  const Ranges share = global_here_ ? Ranges(0, done.bytes.size()) : duty(loaded);
  const Status logged = log(key, *done.info, done.bytes, share.minus(held_by_living(key)));
  if (!logged.ok()) return end_load(logged.because_of_this("cannot log " + name_of(source_->version) + " again"));
  if (!global_here_) state_.world_size = loaded.world_size;
  if (!global_here_ && has_our_locals(loaded)) {
    global_here_ = true;
    state_.global = std::move(done.bytes);
    loading_ = loaded;
    return want_whole(loaded.key(RecordKind::kLocal, self));
  }
  (global_here_ ? state_.local : state_.global) = std::move(done.bytes);
  base_ = global_here_ ? loading_ : loaded;
  pull_duties(base_);
  end_load(std::move(state_));
}

std::string Checkpoints::describe_wait() const {
  if (const std::uint64_t come = global_comes_.size() + local_comes_.size(); come != 0) {
    return "rank " + std::to_string(engine_.plan().self.value) + " waits for " + std::to_string(come) + " bytes of " +
           name_of(coming_.known.version) + ", which are on their way from a GPU to its log";
  }
  if (!contradiction_.ok()) return "checkpoint waits until the job goes back: " + contradiction_.describe();
  const Version oldest = pending_.empty() ? engine_.version() : pending_.front().known.version;
  std::string lacks;
  for (const auto& [id, pull] : pulls_) {
    if (pull.key.round.version != oldest) continue;
    lacks += lacks.empty() ? " lacks " : ", ";
    if (pull.key.kind == RecordKind::kLocal) {
      lacks += "the local state of rank " + std::to_string(pull.key.round.sequence.value);
    } else {
      lacks += "bytes " + std::to_string(pull.begin) + " to " + std::to_string(pull.begin + pull.bytes.size()) +
               " of the global state";
    }
  }
  return "checkpoint waits until " + name_of(oldest) + " is committed: rank " +
         std::to_string(engine_.plan().self.value) +
         (lacks.empty()
              ? " holds its part of it; the tracker commits it when all have said so, and its log says who has not"
              : lacks);
}

bool Checkpoints::lacks_of_oldest() const {
  const Version oldest = pending_.front().known.version;
  return std::ranges::any_of(pulls_, [&](const auto& p) { return p.second.key.round.version == oldest; });
}

std::optional<WorkerMachine::StateWord> Checkpoints::take_state_word() {
  if (told_ || voted_ || !contradiction_.ok() || pending_.empty() || !lacks_of_oldest()) return std::nullopt;
  told_ = true;
  const Known& oldest = pending_.front().known;
  return WorkerMachine::StateWord{engine_.plan().generation, oldest.timeline, oldest.version, state_digest()};
}

std::optional<WorkerMachine::Vote> Checkpoints::take_vote() {
  if (voted_ || !contradiction_.ok() || pending_.empty() || lacks_of_oldest()) return std::nullopt;
  voted_ = true;
  const Known& oldest = pending_.front().known;
  WorkerMachine::Vote vote{engine_.plan().generation,
                           oldest.timeline,
                           oldest.version,
                           state_digest(),
                           engine_.positions_of(Version(oldest.version.value - 1)),
                           engine_.setups_done()};
  vote.local_hash = pending_.front().local_hash;
  for (const auto& [rank, hash] : pending_.front().copies) {
    if (vote.copies.size() == limits::kMaxLocalCopies) break;
    wire::LocalCopy& copy = vote.copies.emplace_back();
    copy.set_rank(rank);
    copy.set_hash(hash);
  }
  return vote;
}

wire::StateDigest Checkpoints::state_digest() const {
  const Pending& oldest = pending_.front();
  return oldest.hashes.digest(oldest.known.has_local, oldest.known.world_size);
}

}  // namespace warren::worker
