// One round as it is given to whoever carries it out, and where what it reads and writes lies meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "recovery/base/check.h"
#include "recovery/base/ids.h"
#include "recovery/wire/frame.h"
#include "worker/kernels/reduce.h"
#include "worker/rounds/gpu_exchange.h"
#include "worker/rounds/gpu_work.h"
#include "worker/rounds/prepared_schedule.h"
#include "worker/rounds/publisher.h"
#include "worker/transport/transport.h"

namespace warren::worker {

struct Round {
  const PreparedSchedule* schedule = nullptr;  // outlives the round
  Generation generation;
  RoundId id;
  Fingerprint fingerprint;
  const std::byte* input = nullptr;  // may be null where the schedule does not touch it
  std::byte* output = nullptr;
  Reducer reducer;
  Publisher* publisher = nullptr;  // of schedules that publish
  // An input that comes while the round runs: its pieces in the order in which they come, read by start(), and how many
  // of them are there. None: all is there.
  std::span<const InputPiece> pieces;
  std::size_t arrived = 0;
  Landing* landing = nullptr;  // may be null
  // Carries out combining steps whose operands are on a GPU: peers' loans, or `input`. Brings such an input to the CPU
  // where it is sent. Null: no peer lends such memory.
  GpuWork* gpu_work = nullptr;
  bool input_on_gpu = false;                           // PreparedSchedule::lends_all()
  std::shared_ptr<const void> input_keeper = nullptr;  // of that
  // Of `output`, from where a GPU may read it; null: it is not wanted on one.
  std::shared_ptr<const void> output_keeper = nullptr;
  // PreparedSchedule::exchanges(): what carries turns, and memory of the GPU that is scratch there. Then the input is
  // on the GPU, and finals are brought from there (Landing).
  GpuExchange* exchange = nullptr;
  std::shared_ptr<std::byte> gpu_scratch = nullptr;

  // Some of its values may be on a GPU, or be wanted there.
  [[nodiscard]] bool may_touch_gpus() const { return gpu_work != nullptr || landing != nullptr; }
};

// The executor's round and its GPU steps share this.
struct RoundUnderWay final : Round {
  std::byte* scratch = nullptr;
  std::size_t value_bytes = 1, partial_bytes = 1;
  std::vector<View> views;       // by receive: where its bytes are to be read
  std::vector<LogPlace> places;  // by step that publishes

  void begin(const Round& round) {
    static_cast<Round&>(*this) = round;
    value_bytes = reducer.bytes(Form::kValue);
    partial_bytes = reducer.bytes(Form::kPartial);
    views.assign(schedule->steps().size(), {});
    places.assign(schedule->steps().size(), {});
  }
  // Memory of GPUs is held no longer.
  void let_go() { input_keeper = output_keeper = gpu_scratch = nullptr; }

  [[nodiscard]] std::byte* address(const schedule::Place& place) const {
    switch (place.space) {
      case schedule::Space::kInput: return const_cast<std::byte*>(input) + place.at * value_bytes;
      case schedule::Space::kOutput: return output + place.at * value_bytes;
      case schedule::Space::kScratch:
        return scratch + place.at * partial_bytes + place.skip * reducer.bytes(place.form);
    }
    WARREN_UNREACHABLE("a place is input, output or scratch");
  }
  // The operand `place`, which comes from the receive `source`, if from any.
  [[nodiscard]] const std::byte* operand(const schedule::Place& place, PreparedSchedule::Index source) const {
    if (source == PreparedSchedule::kNone || !views[source].in_place()) return address(place);
    return views[source].bytes() + place.skip * reducer.bytes(place.form);
  }
};

}  // namespace warren::worker
