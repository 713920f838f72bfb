// A group's memory of the calls that it has made, since programs repeat their calls. It has the algorithms that were
// chosen, the schedules, and all that a call was run by. They hold for one placement of ranks: clear() when ranks sit
// elsewhere, or a ring visits them in another order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "worker/kernels/reduce.h"
#include "worker/rounds/call.h"
#include "worker/rounds/prepared_schedule.h"
#include "worker/rounds/round.h"
#include "worker/schedule/costs.h"
#include "worker/schedule/schedule.h"

namespace warren::worker {

class ScheduleCache {
 public:
  // How many schedules are kept: the one that was used longest ago goes first.
  static constexpr std::size_t kSchedules = 32;
  // All that a call was run by, for the next one that asks for the same.
  struct Repeated {
    schedule::Algorithm algorithm{};
    Reducer reducer;
    std::shared_ptr<const PreparedSchedule> schedule;  // null: nothing is kept
    std::uint64_t width = 0, total_bytes = 0;          // of an element; of the whole result
    bool light = false;                                // LightRound serves it
    std::int32_t owner = -1;                           // of the schedule, where there is one
    Round round;                                       // but for its name, site and buffers
  };

  void clear();

  // schedule::choose(), which takes as long as a small call within a host. All cases of a group have the same chunks
  // and replicas until clear(), and `costs` are always the same.
  [[nodiscard]] schedule::Algorithm choose(const schedule::Case& what, const schedule::Costs& costs);

  // The schedule of this request, kept or made. Schedules of unequal counts are not kept. As to what is not compared,
  // all requests of a group are equal until clear(): ranks, replicas and hosts. An error is that of schedule::make().
  [[nodiscard]] Result<std::shared_ptr<const PreparedSchedule>> schedule_for(const schedule::Request& request);

  // All that a call of this spec was run by among `size` ranks; null: nothing of it is kept. The schedule may have
  // another owner than the round.
  [[nodiscard]] Repeated* repeated(const CallSpec& spec, std::int32_t size) {
    RepeatedCall& kept = calls_[place_of(spec)];
    const bool same = kept.what.schedule != nullptr && kept.size == size && kept.count == spec.count &&
                      kept.values == spec.values && kept.collective == spec.collective && kept.type == spec.type &&
                      kept.op == spec.op && kept.root == spec.root && kept.asked == spec.algorithm;
    return same ? &kept.what : nullptr;
  }
  // Keeps all that a call was run by, in the place of another one. may_repeat(): calls of this kind differ in nothing
  // but what repeated() compares. Others have a program's own type or unequal counts, are a batch, or tell counts.
  void repeat(const CallSpec& spec, std::int32_t size, Repeated what);
  [[nodiscard]] static bool may_repeat(const CallSpec& spec) {
    return spec.type != DataType::kCustom && spec.counts.empty() && spec.parts == 0 && spec.counted == DataType{};
  }

 private:
  struct Choice {
    Collective collective{};
    std::int32_t size = 0;  // 0: nothing
    std::uint64_t bytes = 0;
    schedule::Algorithm algorithm{};
  };
  struct Key {
    Collective collective{};
    schedule::Algorithm algorithm{};
    std::int32_t root = 0;
    std::uint64_t count = 0, chunk_elements = 0, element_bytes = 0, partial_bytes = 0;
    bool ordered = false;     // by Request::order
    std::int32_t owner = -1;  // where there is one
    bool exchanges = false;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct Entry {
    Key key;
    std::uint64_t used = 0;
    std::shared_ptr<const PreparedSchedule> schedule;
  };
  struct RepeatedCall {
    Collective collective{};
    DataType type{};
    ReduceOp op{};
    std::uint8_t asked = 0;  // CallSpec::algorithm
    std::int32_t root = 0;
    std::uint64_t count = 0, values = 0;
    std::int32_t size = 0;
    Repeated what;
  };
  static constexpr std::size_t kCalls = 8;
  [[nodiscard]] static std::size_t place_of(const CallSpec& spec) {
    const std::uint64_t h = spec.count ^ spec.count >> 3 ^ spec.count >> 8;
    return (h + static_cast<std::size_t>(spec.collective) * 3 + static_cast<std::size_t>(spec.op)) % kCalls;
  }

  std::array<Choice, 16> choices_{};
  std::vector<Entry> schedules_;
  std::uint64_t uses_ = 0;
  std::array<RepeatedCall, kCalls> calls_;
};

}  // namespace warren::worker
