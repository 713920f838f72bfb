#include "worker/session/checkpoint_calls.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"

namespace warren::worker {
namespace {

std::uint64_t bytes_of(CheckpointCalls::Places places) {
  std::uint64_t bytes = 0;
  // Nonsense stays too large.
  for (const auto& place : places) bytes += std::min<std::uint64_t>(place.size(), ~bytes);
  return bytes;
}

// These bytes of a state that lies in `places`.
void add_pieces(std::vector<StatePiece>& pieces, StateKind state, CheckpointCalls::Places places, const Ranges& bytes) {
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
std::vector<StatePiece> pieces_of(CheckpointCalls::Places global, const CheckpointCalls::Places* local,
                                  const Ranges& of_global) {
  std::vector<StatePiece> pieces;
  add_pieces(pieces, StateKind::kGlobal, global, of_global);
  if (local != nullptr) add_pieces(pieces, StateKind::kLocal, *local, Ranges(0, bytes_of(*local)));
  return pieces;
}

}  // namespace

std::string CheckpointCalls::describe_wait() const {
  const Status disk = storage_.health();
  if (disk.ok()) return life_.checkpoints().describe_wait();
  return "checkpoint waits: rank " + std::to_string(life_.engine().plan().self.value) +
         " cannot say that it has stored its part, as its disk does not take it: " + disk.describe();
}

Status CheckpointCalls::give_state(std::unique_lock<std::mutex>& lock) {
  if (states_.failed()) [[unlikely]] {
    Status full = states_.take_failure();
    driver_.hand_over();
    return full;
  }
  if (serialize_ == nullptr) [[likely]]
    return {};
  if (!life_.failure().ok()) return life_.failure();
  const void* bytes = nullptr;
  std::size_t size = 0;
  lock.unlock();
  const Status called = call_program(session_, "the function that a lazy checkpoint calls",
                                     [&] { return serialize_(&bytes, &size, serialize_context_); });
  if (!called.ok()) {
    lock.lock();
    driver_.end_life(called, Blame::kProgram);
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
  if (engine().stopped()) return life_.gone();
  StateHashes hashes = hash_unlogged(lock, state.value().bytes);
  if (engine().stopped()) return life_.gone();
  const Status status = life_.checkpoints().give_state(state.value().bytes, std::move(hashes));
  if (!status.ok()) return status;
  serialize_ = nullptr;
  driver_.look_at_checkpoints();
  return {};
}

Status CheckpointCalls::give_all(std::unique_lock<std::mutex>& lock) {
  if (Status given = give_state(lock); !given.ok()) return given;
  {
    const Driver::AwaitsJob waits(driver_, lock, [this] { return describe_wait(); });
    driver_.drive(lock, [&] { return !states_.any() || engine().stopped(); });
  }
  return life_.failure().ok() ? give_state(lock) : life_.failure();
}

Result<CheckpointCalls::State> CheckpointCalls::load(std::unique_lock<std::mutex>& lock) {
  if (engine().version() != kPreamble) {
    return Status(Code::kInvalidArgument,
                  "it was called before, or a checkpoint was taken: it is called once, at the beginning");
  }
  driver_.drive(lock, [&] { return engine().outstanding() == 0; });
  driver_.run_callbacks(lock);
  if (!life_.failure().ok()) return life_.failure();
  if (!life_.logs()) {
    const Status status = engine().begin_version(version_of_program(0));
    if (!status.ok()) return status;
    return State{};
  }
  life_.loading().begin();
  driver_.carry_out();
  std::optional<Result<State>> result;
  const Driver::AwaitsJob waits(driver_, lock, [this] { return life_.loading().describe_wait(); });
  while (true) {
    std::optional<worker_effect::Loaded> wish;
    driver_.drive(lock, [&] {
      result = life_.loading().take();
      wish = life_.loading().take_wish();
      return result || wish || engine().stopped();
    });
    driver_.carry_out();
    if (!wish) break;
    read_mirror(lock, *wish);
  }
  if (!result || (!result->ok() && engine().stopped())) return life_.gone();
  return std::move(*result);
}

// Asks the mirror, outside the lock, for what the log has lost.
void CheckpointCalls::read_mirror(std::unique_lock<std::mutex>& lock, const worker_effect::Loaded& what) {
  const std::uint64_t run = life_.known().plan().run();
  const Rank self = engine().plan().self;
  lock.unlock();
  auto found = storage_.read_mirror(run, what.timeline, what.version, self);
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
  driver_.carry_out();
}

// Waits for the commit of the checkpoint before; while the tracker is away, for room for another one.
Status CheckpointCalls::await_commit(std::unique_lock<std::mutex>& lock) {
  Driver::AwaitsJob waits(driver_, lock, [this] { return describe_wait(); });
  driver_.drive(lock, [&] { return life_.checkpoints().may_take() || engine().stopped() || states_.failed(); });
  waits.has_come();
  return engine().stopped() ? life_.gone() : give_state(lock);
}

Status CheckpointCalls::taken(Status status) {
  life_.taken(status);
  driver_.carry_out();
  return status;
}

// A place of a state in memory of the CPU. Outside the lock.
Result<Staging::Copy> CheckpointCalls::read_state(std::span<const std::byte> state, void* stream) {
  if (gpus_.staging() == nullptr) return Staging::Copy{state, {}};
  auto copy = gpus_.staging()->read(state, stream);
  if (!copy.ok()) return driver_.judge(copy.status().because_of_this("cannot read the state for a checkpoint"));
  return copy;
}

// Likewise of all of them. Copies of several places leave the pinned memory, whose budget may be less than all of them.
Result<CheckpointCalls::Readable> CheckpointCalls::read_places(Places places, void* stream) {
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

Status CheckpointCalls::may_take(std::unique_lock<std::mutex>& lock) {
  if (!life_.failure().ok()) return life_.failure();
  if (!life_.logs()) return {};
  if (Status takes = storage_.takes_checkpoints(); !takes.ok()) return takes;
  return give_state(lock);
}

Status CheckpointCalls::take(std::unique_lock<std::mutex>& lock, Places global, const Places* local, void* stream) {
  if (!life_.logs()) return engine().begin_version(engine().version().next());
  const std::uint64_t global_bytes = bytes_of(global);
  const auto local_bytes = local == nullptr ? std::nullopt : std::optional(bytes_of(*local));
  Status status = Checkpoints::may_hold(std::max(global_bytes, local_bytes.value_or(0)));
  if (!status.ok()) return status;
  lock.unlock();
  // Where ranks may be lost for good, all of a state is kept on the CPU until it is committed.
  Result<bool> on_gpu = false;
  if (gpus_.staging() != nullptr && !loses_ranks_) {
    // Also where what this rank logs of it is on the CPU alone: all ranks go one way.
    on_gpu = gpus_.staging()->holds(pieces_of(global, local, Ranges(0, global_bytes)));
    if (!on_gpu.ok()) return driver_.judge(on_gpu.status().because_of_this("cannot read the state for a checkpoint"));
  }
  if (on_gpu.value()) {
    lock.lock();
    return take_on_gpu(lock, global, local, stream);
  }
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
  return taken(std::move(status));
}

Status CheckpointCalls::take_from_root(std::unique_lock<std::mutex>& lock, const Places* global, const Places* local,
                                       void* stream, const Agree& agree) {
  if (!life_.logs()) return engine().begin_version(engine().version().next());
  // Before the others have heard of the call.
  const std::uint64_t bytes = global == nullptr ? 0 : bytes_of(*global);
  const std::uint64_t local_bytes = local == nullptr ? 0 : bytes_of(*local);
  Status status = Checkpoints::may_hold(std::max(bytes, local_bytes));
  if (!status.ok()) return status;
  lock.unlock();
  const auto global_state = read_places(global == nullptr ? Places() : *global, stream);
  if (!global_state.ok()) return global_state.status();
  const auto local_state = read_places(local == nullptr ? Places() : *local, stream);
  if (!local_state.ok()) return local_state.status();
  const PlacedState* const roots = global == nullptr ? nullptr : &global_state.value().state;
  auto agreed = agree(roots);
  if (!agreed.ok()) return agreed.status();
  lock.lock();
  status = await_commit(lock);
  if (!status.ok()) return status;
  status = life_.checkpoints().take_from_root(roots, local == nullptr ? nullptr : &local_state.value().state,
                                              std::move(agreed).value());
  return taken(std::move(status));
}

Status CheckpointCalls::take_on_gpu(std::unique_lock<std::mutex>& lock, Places global, const Places* local,
                                    void* stream) {
  Status status = await_commit(lock);
  if (!status.ok()) return status;
  const std::uint64_t global_bytes = bytes_of(global);
  const auto local_bytes = local == nullptr ? std::nullopt : std::optional(bytes_of(*local));
  const Ranges share = life_.checkpoints().share_of(global_bytes);
  lock.unlock();
  auto snapshot = gpus_.staging()->snapshot(pieces_of(global, local, share), stream);
  if (!snapshot.ok()) return driver_.judge(snapshot.status().because_of_this("cannot read the state for a checkpoint"));
  lock.lock();
  if (engine().stopped()) return life_.gone();
  status = life_.checkpoints().take_in_parts(global_bytes, local_bytes, share, StateHashes(global_bytes));
  // Where there are more ranks than bytes, some log nothing of it.
  if (status.ok() && !snapshot.value()->done()) {
    states_.begin(std::move(snapshot).value());
    driver_.hand_over();
  }
  return taken(std::move(status));
}

// Hashes what this rank does not log, outside the lock; the rest is hashed as it is copied.
StateHashes CheckpointCalls::hash_unlogged(std::unique_lock<std::mutex>& lock, const PlacedState& state) {
  const Ranges share = life_.checkpoints().share_of(state.size());
  lock.unlock();
  StateHashes hashes(state.size());
  hashes.add_outside(share, state);
  lock.lock();
  return hashes;
}

Status CheckpointCalls::restore(std::span<const std::span<std::byte>> places, std::span<const std::byte> state,
                                void* stream) {
  std::size_t at = 0;
  for (const std::span<std::byte> place : places) {
    const std::span<const std::byte> from = state.subspan(at, place.size());
    at += place.size();
    if (gpus_.staging() != nullptr) {
      const Status status = gpus_.staging()->write(place, from, stream);
      if (!status.ok()) return driver_.judge(status.because_of_this("cannot write the state of a checkpoint"));
    } else if (!place.empty()) {
      std::memcpy(place.data(), from.data(), from.size());
    }
  }
  return {};
}

Status CheckpointCalls::take_later(std::unique_lock<std::mutex>& lock, warren_serialize serialize, void* context,
                                   void* stream) {
  if (!life_.logs()) return engine().begin_version(engine().version().next());
  Status status = await_commit(lock);
  if (!status.ok()) return status;
  status = taken(life_.checkpoints().take_later());
  if (!status.ok()) return status;
  serialize_ = serialize;
  serialize_context_ = context;
  serialize_stream_ = stream;
  return {};
}

}  // namespace warren::worker
