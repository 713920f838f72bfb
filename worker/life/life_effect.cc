#include "worker/life/life_effect.h"

#include "recovery/base/overloaded.h"

namespace warren::worker {

void tell(WorkerMachine& machine, const MachineEvent& event, TimeMs now, std::vector<WorkerEffect>& effects) {
  std::visit(
      Overloaded{
          [&](const machine_event::LinkBroken& e) {
            machine.on_link_broken(e.generation, e.peer, e.evidence, now, effects);
          },
          [&](const machine_event::RoundFailed& e) { machine.on_round_failed(e.generation, e.why, now, effects); },
          [&](const machine_event::LogGap& e) { machine.on_log_gap(e.generation, e.gap, now, effects); },
          [&](const machine_event::Load&) { machine.load(now, effects); },
          [&](const machine_event::Followed& e) { machine.followed(e.version, e.timeline); },
          [&](const machine_event::StateWord& e) { machine.tell_state(e.word, now, effects); },
      },
      event);
}

}  // namespace warren::worker
