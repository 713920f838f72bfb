// The session's calls about checkpoints: they end outstanding calls first (worker/session/checkpoint_calls.h).
#include <algorithm>
#include <utility>

#include "worker/session/session.h"

namespace warren::worker {

Result<Session::State> Session::load() {
  const TraceSpan span(trace_.get(), TraceFile::Row::kCheckpoints, "load_checkpoint");
  std::unique_lock lock(driver_.mutex());
  fused_.send(lock);
  return checkpoints_.load(lock);
}

// Completes outstanding calls; whether the program may take a checkpoint then.
Status Session::end_calls(std::unique_lock<std::mutex>& lock) {
  if (engine().version() == kPreamble) {
    return {Code::kInvalidArgument, "checkpoint comes after load_checkpoint, which says where the program starts"};
  }
  calls_.end_all(lock);
  admission_.stay_out(lock);
  return checkpoints_.may_take(lock);
}

Status Session::checkpoint(Places global, const Places* local, void* stream) {
  if (local != nullptr) {
    if (const Status status = admission_.needs_mode_wait("a checkpoint with local states"); !status.ok()) return status;
  }
  const TraceSpan span(trace_.get(), TraceFile::Row::kCheckpoints, "checkpoint");
  std::unique_lock lock(driver_.mutex());
  const Status may_take = end_calls(lock);
  return may_take.ok() ? checkpoints_.take(lock, global, local, stream) : may_take;
}

Status Session::lazy_checkpoint(warren_serialize serialize, void* context, void* stream) {
  if (const Status status = admission_.needs_mode_wait("lazy_checkpoint"); !status.ok()) return status;
  std::unique_lock lock(driver_.mutex());
  const Status may_take = end_calls(lock);
  return may_take.ok() ? checkpoints_.take_later(lock, serialize, context, stream) : may_take;
}

Status Session::checkpoint_from(std::int32_t root, Places global, const Places* local, void* stream,
                                std::uint64_t site) {
  if (const Status status = admission_.needs_mode_wait("a checkpoint from a root"); !status.ok()) return status;
  if (root < 0 || root >= static_cast<std::int32_t>(world_size())) {
    return {Code::kInvalidArgument, "the root of a checkpoint is rank " + std::to_string(root) + ", and the job has " +
                                        std::to_string(world_size()) + " ranks"};
  }
  const TraceSpan span(trace_.get(), TraceFile::Row::kCheckpoints, "checkpoint");
  std::unique_lock lock(driver_.mutex());
  if (const Status may_take = end_calls(lock); !may_take.ok()) return may_take;
  return checkpoints_.take_from_root(lock, self_.value == root ? &global : nullptr, local, stream,
                                     [&](const PlacedState* state) { return share_hashes(root, state, site); });
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
  return calls_.run(kWorldGroup, {self_.value, static_cast<std::int32_t>(world_size())}, spec, contributors);
}

}  // namespace warren::worker
