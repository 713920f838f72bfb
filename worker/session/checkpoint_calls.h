// Checkpoints as the program calls them: where it starts, and how a state that it gives comes to the log.
// worker/life/checkpoints.h decides which part of a state this rank logs, and when it votes.
//
// A state may still be owed when the program continues. The state of a lazy checkpoint is serialized by the program's
// next call; one that lies on a GPU comes piece by piece (StatesUnderWay).
//
// Threads: functions that take the lock are called under it, and let go of it while they read states, wait, or call the
// program. At most one thread of the program is in one of them. After an error the lock may be free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/result.h"
#include "warren/c_api.h"
#include "worker/device/staging.h"
#include "worker/life/checkpoints.h"
#include "worker/life/life.h"
#include "worker/life/placed_state.h"
#include "worker/life/state_hashes.h"
#include "worker/session/driver.h"
#include "worker/session/gpus.h"
#include "worker/session/inside.h"
#include "worker/session/life_storage.h"
#include "worker/session/states_under_way.h"

namespace warren::worker {

class CheckpointCalls {
 public:
  using State = Checkpoints::State;
  // A state of a checkpoint: its bytes lie in these places, one after the other.
  using Places = std::span<const std::span<const std::byte>>;

  // `loses_ranks`: ranks may be lost for good, so that all of a state is kept on the CPU until it is committed. All
  // others outlive this.
  CheckpointCalls(const SessionMark& session, bool loses_ranks, Life& life, Gpus& gpus, StatesUnderWay& states,
                  Driver& driver, LifeStorage& storage)
      : session_(session),
        loses_ranks_(loses_ranks),
        life_(life),
        gpus_(gpus),
        states_(states),
        driver_(driver),
        storage_(storage) {}
  CheckpointCalls(const CheckpointCalls&) = delete;
  CheckpointCalls& operator=(const CheckpointCalls&) = delete;

  // The state that the program starts from. No call is outstanding.
  [[nodiscard]] Result<State> load(std::unique_lock<std::mutex>& lock);
  // Whether a checkpoint may begin: pays what is owed. No call is outstanding.
  [[nodiscard]] Status may_take(std::unique_lock<std::mutex>& lock);
  // Takes a checkpoint of a global state that is equal on all ranks, and of this rank's local state, unless it is null.
  // After may_take(). Waits for the commit of the checkpoint before.
  [[nodiscard]] Status take(std::unique_lock<std::mutex>& lock, Places global, const Places* local, void* stream);
  // The same of a global state that one rank has; `global` null: this rank is not that one. `agree`, called without the
  // lock, tells all ranks the hashes of the state, or returns what the root has told.
  using Agree = std::function<Result<StateHashes>(const PlacedState* state)>;
  [[nodiscard]] Status take_from_root(std::unique_lock<std::mutex>& lock, const Places* global, const Places* local,
                                      void* stream, const Agree& agree);
  // The same of a state that `serialize` gives when the program makes its next call.
  [[nodiscard]] Status take_later(std::unique_lock<std::mutex>& lock, warren_serialize serialize, void* context,
                                  void* stream);
  // As Session::restore(). Without the lock.
  [[nodiscard]] Status restore(std::span<const std::span<std::byte>> places, std::span<const std::byte> state,
                               void* stream);

  // A lazy checkpoint has its state to come.
  [[nodiscard]] bool owes_state() const { return serialize_ != nullptr; }
  // Serializes what a lazy checkpoint owes, and logs it. Also says that the log has no room for states that come from a
  // GPU, after which they try again. Before each call of the program's.
  [[nodiscard]] Status give_state(std::unique_lock<std::mutex>& lock);
  // No state is owed when this returns, unless it fails.
  [[nodiscard]] Status give_all(std::unique_lock<std::mutex>& lock);

 private:
  // A state that can be read on the CPU.
  struct Readable {
    Staging::Copy copy;                          // of the only place, if it is not there
    std::vector<std::vector<std::byte>> copies;  // of several places, those that are not there
    PlacedState state;
  };
  [[nodiscard]] Result<Staging::Copy> read_state(std::span<const std::byte> state, void* stream);
  [[nodiscard]] Result<Readable> read_places(Places places, void* stream);
  [[nodiscard]] Status take_on_gpu(std::unique_lock<std::mutex>& lock, Places global, const Places* local,
                                   void* stream);
  [[nodiscard]] Status await_commit(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] StateHashes hash_unlogged(std::unique_lock<std::mutex>& lock, const PlacedState& state);
  void read_mirror(std::unique_lock<std::mutex>& lock, const worker_effect::Loaded& what);
  // The life has taken a checkpoint, or has not. Returns the status.
  [[nodiscard]] Status taken(Status status);
  // For the log: what a commit waits for.
  [[nodiscard]] std::string describe_wait() const;
  [[nodiscard]] Engine& engine() { return life_.engine(); }

  const SessionMark& session_;
  const bool loses_ranks_;
  Life& life_;
  Gpus& gpus_;
  StatesUnderWay& states_;
  Driver& driver_;
  LifeStorage& storage_;
  warren_serialize serialize_ = nullptr;  // null: no state is owed
  void* serialize_context_ = nullptr;
  void* serialize_stream_ = nullptr;
};

}  // namespace warren::worker
