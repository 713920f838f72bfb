// How a session carries out what its life wants done.
#include "worker/session/session.h"

#include <utility>
#include <variant>

#include "recovery/base/overloaded.h"

namespace warren::worker {

void Session::carry_out_effects() {
  const auto one = Overloaded{
      [this](const MachineEvent& e) {
        control_->tell([e](auto& machine, TimeMs now, auto& effects) { worker::tell(machine, e, now, effects); });
      },
      [this](const life_effect::Vote& e) {
        if (!life_.votes_when_durable()) return say(e.vote);
        // The disk's thread calls back.
        storage_.make_durable(e.vote, [this, vote = e.vote](const Status& status) {
          if (status.ok()) return say(vote);
          // This process's memory cannot be relied on. Its next life takes from other hosts what it lacks.
          if (status.code() == Code::kCorrupt) control_->end_life(status);
        });
      },
      [this](const life_effect::End& e) { life_has_ended(e); },
      [this](const life_effect::ForgetSegment& e) { control_->forget_segment(e.life, e.over); },
      [this](const life_effect::SegmentsStay& e) {
        const Status stay = e.why.because_of_this(
            "the log segments of lives that are over stay open, at most 512 of them: what they hold cannot be taken "
            "over");
        log_(WARREN_LOG_WARNING, stay.describe());
      },
      [this](const life_effect::NoteCommit& e) { storage_.note_commit(e); },
      [this](const life_effect::CopyToMirror& e) { storage_.copy_to_mirror(e, self_); },
      [this](const life_effect::LoadedFromMirror& e) {
        log_(WARREN_LOG_WARNING, "version " + std::to_string(e.version.value - 1) + " of job " + settings_.job +
                                     " was loaded from " + settings_.checkpoint_mirror + ": the log has lost it");
      },
      [this](const life_effect::Warn& e) { log_(WARREN_LOG_WARNING, e.text); },
      [this](const life_effect::Wake&) { driver_.wake_sleepers(); },
  };
  for (const LifeEffect& effect : life_.take_effects()) std::visit(one, effect);
}

void Session::say(const WorkerMachine::Vote& vote) {
  control_->tell([vote](auto& machine, TimeMs now, auto& effects) { machine.vote(vote, now, effects); });
}

void Session::life_has_ended(const life_effect::End& what) {
  log_(WARREN_LOG_ERROR, life_.failure().describe());
  join_.unmark();
  if (what.blame == Blame::kProgram) {
    control_->leave(what.why.describe());
  } else {
    control_->end_life(what.why);
  }
  driver_.wake_all();
}

}  // namespace warren::worker
