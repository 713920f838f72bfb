#include "worker/life/loading.h"

#include <utility>

namespace warren::worker {

void Loading::begin() {
  step_ = Step::kLog;
  failed_.reset();
  tell(machine_event::Load{});
}

void Loading::start_from(const worker_effect::Loaded& what) {
  source_ = what;
  checkpoints_.load(what);
}

std::optional<Result<Checkpoints::State>> Loading::take() {
  if (engine_.stopped()) return std::nullopt;
  if (step_ == Step::kVerdict && engine_.plan().generation != asked_in_) begin();
  if (step_ != Step::kLog) return std::nullopt;
  std::optional<Result<Checkpoints::State>> result;
  if (failed_) {
    result = *std::exchange(failed_, std::nullopt);
  } else {
    result = checkpoints_.loaded();
    if (!result) return std::nullopt;
    if (result->status().code() == Code::kUnavailable) {
      lost_ = result->status();
      if (!has_mirror_) {
        lost(lost_);
      } else {
        step_ = Step::kMirror;
        wishes_ = true;
      }
      return std::nullopt;
    }
  }
  step_ = Step::kNone;
  if (result->status().code() == Code::kDesync) {
    tell(machine_event::RoundFailed{engine_.plan().generation, result->status()});
  }
  return result;
}

std::optional<worker_effect::Loaded> Loading::take_wish() {
  if (!std::exchange(wishes_, false)) return std::nullopt;
  return source_;
}

void Loading::mirror_read(const worker_effect::Loaded& wish, Result<std::optional<Mirrored>> found) {
  if (engine_.stopped()) return;
  step_ = Step::kLog;
  if (found.ok() && !found.value()) return lost(lost_.because_of_this("the mirror does not hold it either"));
  Status status = found.status();
  const bool damaged = status.code() == Code::kCorrupt;
  if (status.ok()) {
    Mirrored& from = *found.value();
    status = checkpoints_.restore(wish, std::move(from.state), from.has_local);
  }
  if (status.ok()) {
    effects_.emplace_back(life_effect::LoadedFromMirror{wish.version});
    return;
  }
  const Status why = lost_.because_of_this(damaged ? lost_.code() : status.code(), status.describe());
  if (damaged) return lost(why);
  failed_ = why;
}

// The hosts of this generation do not hold it, and without it nobody else goes on either: the tracker says so to all.
void Loading::lost(const Status& why) {
  asked_in_ = checkpoints_.loaded_in();
  if (engine_.plan().generation != asked_in_) return begin();
  WorkerMachine::Gap gap;
  gap.reason = why.describe();
  gap.checkpoint = source_;
  step_ = Step::kVerdict;
  lost_ = why;
  tell(machine_event::LogGap{asked_in_, std::move(gap)});
}

std::string Loading::describe_wait() const {
  switch (step_) {
    case Step::kNone: return "";
    case Step::kLog:
    case Step::kMirror:
      return "load_checkpoint waits for the tracker to say where the program starts, or for the copies of its state";
    case Step::kVerdict:
      return "load_checkpoint waits for the tracker to say what becomes of the job: " + lost_.describe();
  }
  return "";
}

}  // namespace warren::worker
