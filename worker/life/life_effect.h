// The effects of a life (worker/life/life.h). Its owner carries them out in their order.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "recovery/worker/worker_machine.h"
#include "storage/result_store.h"

namespace warren::worker {

// Whose fault the end of a life is: its next life goes on, unless it is the program's.
enum class Blame : std::uint8_t { kNobody, kProgram };

// The worker's machine is to hear these, for the generation that they name.
namespace machine_event {

struct LinkBroken {
  Generation generation;
  Rank peer;
  std::string evidence;
};
struct RoundFailed {
  Generation generation;
  Status why;
};
struct LogGap {
  Generation generation;
  WorkerMachine::Gap gap;
};
// And these.
struct Load {};
struct Followed {
  Version version;
  Timeline timeline;
};
struct StateWord {
  WorkerMachine::StateWord word;
};

}  // namespace machine_event

using MachineEvent = std::variant<machine_event::LinkBroken, machine_event::RoundFailed, machine_event::LogGap,
                                  machine_event::Load, machine_event::Followed, machine_event::StateWord>;
// Adds what the machine wants done then.
void tell(WorkerMachine& machine, const MachineEvent& event, TimeMs now, std::vector<WorkerEffect>& effects);

namespace life_effect {

// Where there is a disk, once all that the vote speaks of is durable on it.
struct Vote {
  WorkerMachine::Vote vote;
};
// This life is over (Life::failure() says so to the program); `why` is for the tracker.
struct End {
  Status why;
  Blame blame;
};

// A life's segment serves nobody any more. `over`: the life is, and the launcher may close the segment too.
struct ForgetSegment {
  Incarnation life;
  bool over;
};
// Segments of dead lives stay, as this life's log has no room for what they hold.
struct SegmentsStay {
  Status why;
};
// A version is committed: the disk is to know it, and may drop what is obsolete. `known` has no set-up round of a later
// vote: these are not durable yet.
struct NoteCommit {
  wire::Known known;
  storage::Horizon horizon;
};
// The mirror of checkpoints is to have it.
struct CopyToMirror {
  wire::Known known;  // without set-up rounds
  Timeline timeline;
  Version version;
};
// The log has lost this version, and the mirror has given it.
struct LoadedFromMirror {
  Version version;
};

// For the log of the process.
struct Warn {
  std::string text;
};
// Something has come that a waiting thread may have waited for.
struct Wake {};

}  // namespace life_effect

using LifeEffect = std::variant<MachineEvent, life_effect::Vote, life_effect::End, life_effect::ForgetSegment,
                                life_effect::SegmentsStay, life_effect::NoteCommit, life_effect::CopyToMirror,
                                life_effect::LoadedFromMirror, life_effect::Warn, life_effect::Wake>;

}  // namespace warren::worker
