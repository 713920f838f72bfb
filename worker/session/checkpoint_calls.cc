// Checkpoints as the program calls them: load, checkpoint, restore, and the way of a state to the log.
#include "worker/session/session_parts.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "recovery/base/text.h"
#include "recovery/decide/verdict.h"

namespace warren::worker {
namespace {

// These bytes of a state that lies in `places`.
void add_pieces(std::vector<StatePiece>& pieces, StateKind state, Session::Places places, const Ranges& bytes) {
  std::uint64_t at = 0;
  for (const auto& place : places) {
    const Ranges here = bytes.intersect(at, at + place.size());
    for (const Interval& i : here.intervals()) {
      pieces.push_back({state, i.begin, place.subspan(i.begin - at, i.end - i.begin)});
    }
    at += place.size();
  }
}

// States of a checkpoint, of the global one these bytes.
std::vector<StatePiece> pieces_of(Session::Places global, const Session::Places* local, const Ranges& of_global) {
  std::vector<StatePiece> pieces;
  add_pieces(pieces, StateKind::kGlobal, global, of_global);
  if (local != nullptr) add_pieces(pieces, StateKind::kLocal, *local, Ranges(0, bytes_of(*local)));
  return pieces;
}

}  // namespace

std::string Session::describe_commit_wait() const {
  const Status disk = disk_ ? disk_->writer().health() : Status();
  if (disk.ok()) return life_.checkpoints().describe_wait();
  return "checkpoint waits: rank " + std::to_string(self_.value) +
         " cannot say that it has stored its part, as its disk does not take it: " + disk.describe();
}

// Brings states of a checkpoint from a GPU, outside the lock, and logs what has come, a piece at a time, so that rounds
// go on in between; true if there was something.
bool Session::move_states(std::unique_lock<std::mutex>& lock) {
  if (!states_move() || coming_->moves) return false;
  Snapshot& snapshot = *coming_->snapshot;
  coming_->moves = true;
  const bool wanted = !engine().stopped();
  lock.unlock();
  Result<bool> moved = false;
  if (wanted) {
    moved = snapshot.move();
  } else {
    snapshot.settle();
  }
  lock.lock();
  coming_->moves = false;
  if (!wanted) {
    coming_.reset();
    return false;
  }
  if (!moved.ok()) end_life(moved.status().because_of_this("cannot read the state for a checkpoint"));
  // Whoever comes next sees to the end of it.
  if (engine().stopped()) return true;
  const auto piece = snapshot.front();
  if (piece) {
    coming_->failure = life_.checkpoints().give_part(*piece);
    if (coming_->failure.ok()) {
      snapshot.pop();
    } else {
      log_(WARREN_LOG_WARNING, coming_->failure.describe());
    }
    if (snapshot.done()) {
      coming_.reset();
      look_at_checkpoints();
    }
  }
  if (!piece && !moved.value()) return false;
  move_pause_ = {};
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Serializes what a lazy checkpoint owes, outside the lock, and logs it; says that the log has no room for states that
// come from a GPU, after which they try again.
Status Session::give_state(std::unique_lock<std::mutex>& lock) {
  if (coming_ && !coming_->failure.ok()) [[unlikely]] {
    Status full = std::exchange(coming_->failure, Status());
    hand_over();
    return full;
  }
  if (serialize_ == nullptr) [[likely]]
    return {};
  if (!life_.failure().ok()) return life_.failure();
  const void* bytes = nullptr;
  std::size_t size = 0;
  lock.unlock();
  const Status called = call_program(*this, "the function that a lazy checkpoint calls",
                                     [&] { return serialize_(&bytes, &size, serialize_context_); });
  if (!called.ok()) {
    lock.lock();
    end_life(called, Blame::kProgram);
    return life_.failure().ok() ? called : life_.failure();
  }
  if (bytes == nullptr && size != 0) {
    lock.lock();
    return {Code::kInvalidArgument,
            "the function that a lazy checkpoint calls has given " + std::to_string(size) + " bytes at NULL"};
  }
  const auto state = read_state({static_cast<const std::byte*>(bytes), size}, serialize_stream_);
  lock.lock();
  if (!state.ok()) return state.status();
  if (engine().stopped()) return gone();
  StateHashes hashes = hash_unlogged(lock, state.value().bytes);
  if (engine().stopped()) return gone();
  const Status status = life_.checkpoints().give_state(state.value().bytes, std::move(hashes));
  if (!status.ok()) return status;
  serialize_ = nullptr;
  look_at_checkpoints();
  return {};
}

Result<Session::State> Session::load() {
  const Span span(trace_.get(), TraceFile::Row::kCheckpoints, "load_checkpoint");
  std::unique_lock lock(mutex_);
  send_batch(lock);
  if (engine().version() != kPreamble) {
    return Status(Code::kInvalidArgument,
                  "it was called before, or a checkpoint was taken: it is called once, at the beginning");
  }
  drive(lock, [&] { return engine().outstanding() == 0; });
  run_callbacks(lock);
  if (!life_.failure().ok()) return life_.failure();
  if (!life_.logs()) {
    const Status status = engine().begin_version(version_of_program(0));
    if (!status.ok()) return status;
    return State{};
  }
  life_.loading().begin();
  carry_out();
  std::optional<Result<State>> result;
  const Counted waits(awaiting_job_);
  waits_for_load_ = true;
  while (true) {
    std::optional<worker_effect::Loaded> wish;
    drive(lock, [&] {
      result = life_.loading().take();
      wish = life_.loading().take_wish();
      return result || wish || engine().stopped();
    });
    carry_out();
    if (!wish) break;
    read_mirror(lock, *wish);
  }
  waits_for_load_ = false;
  if (!result || (!result->ok() && engine().stopped())) return gone();
  return std::move(*result);
}

// Asks the mirror, outside the lock, for what the log has lost.
void Session::read_mirror(std::unique_lock<std::mutex>& lock, const worker_effect::Loaded& what) {
  const std::uint64_t run = life_.known().plan().run();
  const Rank self = self_;
  lock.unlock();
  auto found = mirror_->read(run, what.timeline, what.version, self);
  lock.lock();
  Result<std::optional<Loading::Mirrored>> mirrored = std::optional<Loading::Mirrored>();
  if (!found.ok()) {
    mirrored = found.status();
  } else if (found.value()) {
    Mirror::State& from = *found.value();
    mirrored = std::optional(
        Loading::Mirrored{{0, from.world_size, std::move(from.global), std::move(from.local)}, from.has_local});
  }
  life_.loading().mirror_read(what, std::move(mirrored));
  carry_out();
}

// Waits for the commit of the checkpoint before; while the tracker is away, for room for another one.
Status Session::await_commit(std::unique_lock<std::mutex>& lock) {
  waits_for_commit_ = true;
  const Counted waits(awaiting_job_);
  drive(lock,
        [&] { return life_.checkpoints().may_take() || engine().stopped() || (coming_ && !coming_->failure.ok()); });
  waits_for_commit_ = false;
  return engine().stopped() ? gone() : give_state(lock);
}

void Session::look_at_taken(const Status& status) {
  life_.taken(status);
  carry_out();
}

// A place of a state in memory of the CPU. Outside the lock.
Result<Staging::Copy> Session::read_state(std::span<const std::byte> state, void* stream) {
  if (staging_ == nullptr) return Staging::Copy{state, {}};
  auto copy = staging_->read(state, stream);
  if (!copy.ok()) return judge(copy.status().because_of_this("cannot read the state for a checkpoint"));
  return copy;
}

// Likewise of all of them. Copies of several places leave the pinned memory, whose budget may be less than all of them.
Result<Session::Readable> Session::read_places(Places places, void* stream) {
  if (places.size() == 1) {
    auto copy = read_state(places.front(), stream);
    if (!copy.ok()) return copy.status();
    const std::span<const std::byte> bytes = copy.value().bytes;
    return Readable{std::move(copy).value(), {}, bytes};
  }
  std::vector<std::vector<std::byte>> copies;
  std::vector<std::span<const std::byte>> readable;
  for (const std::span<const std::byte> place : places) {
    const auto copy = read_state(place, stream);
    if (!copy.ok()) return copy.status();
    std::span<const std::byte> bytes = copy.value().bytes;
    if (bytes.data() != place.data()) bytes = copies.emplace_back(bytes.begin(), bytes.end());
    readable.push_back(bytes);
  }
  return Readable{{}, std::move(copies), PlacedState(std::move(readable))};
}

Status Session::checkpoint(Places global, const Places* local, void* stream) {
  if (local != nullptr) {
    if (const Status status = needs_mode_wait("a checkpoint with local states"); !status.ok()) return status;
  }
  const Span span(trace_.get(), TraceFile::Row::kCheckpoints, "checkpoint");
  std::unique_lock lock(mutex_);
  Status status = end_calls(lock);
  if (!status.ok()) return status;
  if (!life_.logs()) return engine().begin_version(engine().version().next());
  const std::uint64_t global_bytes = bytes_of(global);
  const auto local_bytes = local == nullptr ? std::nullopt : std::optional(bytes_of(*local));
  status = Checkpoints::may_hold(std::max(global_bytes, local_bytes.value_or(0)));
  if (!status.ok()) return status;
  lock.unlock();
  // Where ranks may be lost for good, all of a state is kept on the CPU until it is committed.
  Result<bool> on_gpu = false;
  if (staging_ != nullptr && settings_.min_workers == 0) {
    // Also where what this rank logs of it is on the CPU alone: all ranks go one way.
    on_gpu = staging_->holds(pieces_of(global, local, Ranges(0, global_bytes)));
    if (!on_gpu.ok()) return judge(on_gpu.status().because_of_this("cannot read the state for a checkpoint"));
  }
  if (on_gpu.value()) return checkpoint_on_gpu(lock, global, local, stream);
  const auto global_state = read_places(global, stream);
  const auto local_state = read_places(local == nullptr ? Places() : *local, stream);
  lock.lock();
  if (!global_state.ok()) return global_state.status();
  if (!local_state.ok()) return local_state.status();
  // While the checkpoint before is still being committed.
  StateHashes hashes = hash_unlogged(lock, global_state.value().state);
  status = await_commit(lock);
  if (!status.ok()) return status;
  status = life_.checkpoints().take(global_state.value().state, local == nullptr ? nullptr : &local_state.value().state,
                                    std::move(hashes));
  look_at_taken(status);
  return status;
}

// Tells all ranks the hashes of a state that the root alone has: the same in each of their lives, also where the root's
// next life has another state. `state` null: this rank is not the root.
Result<StateHashes> Session::share_hashes(std::int32_t root, const PlacedState* state, std::uint64_t site) {
  const auto failed = [](const Status& status) { return status.because_of_this("checkpoint from a root"); };
  std::uint64_t bytes = state == nullptr ? 0 : state->size();
  if (Status told = broadcast_words(root, {&bytes, 1}, site); !told.ok()) return failed(told);
  // The root's earlier life may have told this size.
  if (Status may = Checkpoints::may_hold(bytes); !may.ok()) return may;
  // Where this life's state has another size than that of the life before, no hash of it counts: nor do these.
  std::vector<std::uint64_t> hashes(StateHashes(bytes).blocks(), 1);
  if (state != nullptr && state->size() == bytes) hashes = StateHashes(*state).hashes();
  if (Status told = broadcast_words(root, hashes, site); !told.ok()) return failed(told);
  return StateHashes::of(bytes, std::move(hashes));
}

Status Session::broadcast_words(std::int32_t root, std::span<std::uint64_t> words, std::uint64_t site) {
  CallSpec spec;
  spec.collective = Collective::kBroadcast;
  spec.type = DataType::kU64;
  spec.output = words.data();
  spec.count = words.size();
  spec.root = root;
  spec.site = site;
  std::shared_ptr<const std::vector<Rank>> contributors;
  return run(kWorldGroup, {self_.value, static_cast<std::int32_t>(world_size())}, spec, contributors);
}

Status Session::checkpoint_on_gpu(std::unique_lock<std::mutex>& lock, Places global, const Places* local,
                                  void* stream) {
  lock.lock();
  Status status = await_commit(lock);
  if (!status.ok()) return status;
  const std::uint64_t global_bytes = bytes_of(global);
  const auto local_bytes = local == nullptr ? std::nullopt : std::optional(bytes_of(*local));
  const Ranges share = life_.checkpoints().share_of(global_bytes);
  lock.unlock();
  auto snapshot = staging_->snapshot(pieces_of(global, local, share), stream);
  if (!snapshot.ok()) return judge(snapshot.status().because_of_this("cannot read the state for a checkpoint"));
  lock.lock();
  if (engine().stopped()) return gone();
  status = life_.checkpoints().take_in_parts(global_bytes, local_bytes, share, StateHashes(global_bytes));
  // Where there are more ranks than bytes, some log nothing of it.
  if (status.ok() && !snapshot.value()->done()) {
    coming_.emplace(std::move(snapshot).value());
    hand_over();
  }
  look_at_taken(status);
  return status;
}

// Hashes what this rank does not log, outside the lock; the rest is hashed as it is copied.
StateHashes Session::hash_unlogged(std::unique_lock<std::mutex>& lock, const PlacedState& state) {
  const Ranges share = life_.checkpoints().share_of(state.size());
  lock.unlock();
  StateHashes hashes(state.size());
  hashes.add_outside(share, state);
  lock.lock();
  return hashes;
}

Status Session::restore(std::span<const std::span<std::byte>> places, std::span<const std::byte> state, void* stream) {
  std::size_t at = 0;
  for (const std::span<std::byte> place : places) {
    const std::span<const std::byte> from = state.subspan(at, place.size());
    at += place.size();
    if (staging_ != nullptr) {
      const Status status = staging_->write(place, from, stream);
      if (!status.ok()) return judge(status.because_of_this("cannot write the state of a checkpoint"));
    } else if (!place.empty()) {
      std::memcpy(place.data(), from.data(), from.size());
    }
  }
  return {};
}

Status Session::lazy_checkpoint(warren_serialize serialize, void* context, void* stream) {
  if (const Status status = needs_mode_wait("lazy_checkpoint"); !status.ok()) return status;
  std::unique_lock lock(mutex_);
  Status status = end_calls(lock);
  if (!status.ok()) return status;
  if (!life_.logs()) return engine().begin_version(engine().version().next());
  status = await_commit(lock);
  if (!status.ok()) return status;
  status = life_.checkpoints().take_later();
  look_at_taken(status);
  if (!status.ok()) return status;
  serialize_ = serialize;
  serialize_context_ = context;
  serialize_stream_ = stream;
  return {};
}

// What has come for checkpoints, and what is to be said because of it.
void Session::look_at_checkpoints() {
  life_.look_at_checkpoints();
  carry_out();
}

}  // namespace warren::worker
