// The way of a life to the state that its program starts from. The tracker says which checkpoint it is. The log has it,
// or else the mirror. Where neither has it, the tracker says what becomes of the job. A new generation that begins
// before that starts all of this again, as hosts may have come that were not asked.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/worker/worker_machine.h"
#include "worker/life/checkpoints.h"
#include "worker/life/life_effect.h"

namespace warren::worker {

class Loading {
 public:
  // `effects` is where this says what is to be done. All outlive this.
  Loading(Engine& engine, Checkpoints& checkpoints, std::vector<LifeEffect>& effects)
      : engine_(engine), checkpoints_(checkpoints), effects_(effects) {}
  Loading(const Loading&) = delete;
  Loading& operator=(const Loading&) = delete;

  // There is a mirror of checkpoints, which is asked for what the log has lost.
  void use_mirror() { has_mirror_ = true; }

  // The program asks where it starts.
  void begin();
  // The tracker has said it.
  void start_from(const worker_effect::Loaded& what);
  // Once: the state, or why there is none. To be asked again whenever something has come, and until the engine stops.
  [[nodiscard]] std::optional<Result<Checkpoints::State>> take();

  // The mirror is to be asked for this, once; mirror_read() tells what it has said.
  [[nodiscard]] std::optional<worker_effect::Loaded> take_wish();
  struct Mirrored {
    Checkpoints::State state;
    bool has_local = false;  // the checkpoint has local states
  };
  // `wish`: as take_wish() has said. Nothing: it is not there. kCorrupt: it is damaged, so that another life will not
  // find it either. Any other failure is this worker's own, and another life of it may read what this one cannot.
  void mirror_read(const worker_effect::Loaded& wish, Result<std::optional<Mirrored>> found);

  // For people; empty: the program does not wait for a state.
  [[nodiscard]] std::string describe_wait() const;

 private:
  enum class Step : std::uint8_t { kNone, kLog, kMirror, kVerdict };
  void tell(MachineEvent event) { effects_.emplace_back(std::move(event)); }
  void lost(const Status& why);

  Engine& engine_;
  Checkpoints& checkpoints_;
  std::vector<LifeEffect>& effects_;
  bool has_mirror_ = false;
  Step step_ = Step::kNone;
  worker_effect::Loaded source_;
  Status lost_;            // by the log
  bool wishes_ = false;    // the mirror has not been asked yet
  Generation asked_in_{};  // for the verdict
  std::optional<Status> failed_;
};

}  // namespace warren::worker
