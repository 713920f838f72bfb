// How a session carries out what its life wants done.
#include "worker/session/session_parts.h"

#include <utility>
#include <variant>

#include "recovery/base/overloaded.h"
#include "worker/disk/past.h"

namespace warren::worker {
void Session::carry_out() {
  if (!life_.has_effects()) [[likely]]
    return;
  const auto one = Overloaded{
      [this](const MachineEvent& e) {
        control_->tell([e](auto& machine, TimeMs now, auto& effects) { worker::tell(machine, e, now, effects); });
      },
      [this](const life_effect::Vote& e) { votes_from_disk_ ? make_durable(e.vote) : say(e.vote); },
      [this](const life_effect::End& e) { life_has_ended(e); },
      [this](const life_effect::ForgetSegment& e) { control_->forget_segment(e.life, e.over); },
      [this](const life_effect::SegmentsStay& e) {
        const Status stay = e.why.because_of_this(
            "the log segments of lives that are over stay open, at most 512 of them: what they hold cannot be taken "
            "over");
        log_(WARREN_LOG_WARNING, stay.describe());
      },
      [this](const life_effect::NoteCommit& e) {
        if (!disk_) return;  // this life ends
        disk_->writer().note(note_of(e.known));
        disk_->writer().drop(e.horizon);
      },
      [this](const life_effect::CopyToMirror& e) { copy_to_mirror(e); },
      [this](const life_effect::LoadedFromMirror& e) {
        log_(WARREN_LOG_WARNING, "version " + std::to_string(e.version.value - 1) + " of job " + settings_.job +
                                     " was loaded from " + settings_.checkpoint_mirror + ": the log has lost it");
      },
      [this](const life_effect::Warn& e) { log_(WARREN_LOG_WARNING, e.text); },
      [this](const life_effect::Wake&) {
        wake(caller_wake_);
        wake(engine_wake_);
      },
  };
  for (const LifeEffect& effect : life_.take_effects()) std::visit(one, effect);
}

void Session::say(const WorkerMachine::Vote& vote) {
  control_->tell([vote](auto& machine, TimeMs now, auto& effects) { machine.vote(vote, now, effects); });
}

// A vote says that what this rank must hold survives the loss of power. The writer's thread calls back.
void Session::make_durable(const WorkerMachine::Vote& vote) {
  if (!disk_) return;  // this life ends
  disk_->writer().make_durable(vote.timeline, vote.version, [this, vote](const Status& status) {
    if (status.ok()) return say(vote);
    // What this process has in memory is not to be relied on: its next life takes from others what it has lost.
    if (status.code() == Code::kCorrupt) control_->end_life(status);
  });
}

void Session::copy_to_mirror(const life_effect::CopyToMirror& what) {
  if (!mirror_) return;  // this life ends
  mirror_->copy(Generation(what.known.plan_generation()), what.timeline, what.version, self_, note_of(what.known));
}

void Session::life_has_ended(const life_effect::End& what) {
  log_(WARREN_LOG_ERROR, life_.failure().describe());
  joined_ = {};
  if (what.blame == Blame::kProgram) {
    control_->leave(false, what.why.describe());
  } else {
    control_->end_life(what.why);
  }
  wake(caller_wake_);
  wake(engine_wake_);
  changed_.notify_all();
}

}  // namespace warren::worker
