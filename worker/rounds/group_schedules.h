// Where the members of one group sit, and what their calls are made by: algorithms and schedules, of which it keeps
// those of earlier calls. They hold for one placement of ranks, which place() takes from the plan.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "worker/rounds/call.h"
#include "worker/rounds/rounds_plan.h"
#include "worker/rounds/schedule_cache.h"
#include "worker/schedule/costs.h"
#include "worker/schedule/schedule.h"

namespace warren::worker {

class GroupSchedules {
 public:
  using Prepared = std::shared_ptr<const PreparedSchedule>;

  // `plan` and `costs` are the engine's; the plan changes with each generation. `rank`: this one's among `members`.
  GroupSchedules(const RoundsPlan& plan, const schedule::Costs& costs, std::vector<Rank> members, std::int32_t rank)
      : plan_(plan), costs_(costs), members_(std::move(members)), rank_(rank) {}
  GroupSchedules(const GroupSchedules&) = delete;
  GroupSchedules& operator=(const GroupSchedules&) = delete;

  [[nodiscard]] const std::vector<Rank>& members() const { return members_; }
  [[nodiscard]] std::int32_t rank() const { return rank_; }
  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(members_.size()); }
  [[nodiscard]] GroupShape shape() const { return {rank_, size()}; }
  [[nodiscard]] ResultShape result_of(const CallSpec& spec) const { return result_shape(spec, shape()); }

  // The group has other members: those that the plan calls present. Then place().
  void reseat();
  // A plan has come, or another version: the ring visits ranks in this order. null: in the order of ranks.
  void place(const RoundsPlan::RingOrder* ring);
  // Others of this host read its log, for all that is known.
  [[nodiscard]] bool read_here() const { return read_here_; }
  // A set-up round is made by the schedule of a round of its version: the ring has no order, and finals have no owner.
  [[nodiscard]] bool serves_setups_alike() const { return order_.empty() && host_.cores == 0; }

  // By which `size` ranks of the group make this collective.
  [[nodiscard]] schedule::Algorithm algorithm_for(const CallSpec& spec, std::int32_t size);
  [[nodiscard]] schedule::Request request_for(const Call& call) const;
  // `exchanges`: messages are to move from GPU to GPU.
  [[nodiscard]] Result<Prepared> schedule_for(const Call& call, bool exchanges = false);
  // The rest of an interrupted round, of whose result the log has these bytes.
  [[nodiscard]] Result<Prepared> rest_of(const Call& call, const Ranges& final) const;
  // The part of these bytes of the call's whole result that nobody needs to compute: all ranks leave out the same
  // pieces. A piece that is there in part was sent to nobody. Its owner died, or its log was full, before the rest was
  // published. kDesync: the result is shorter.
  [[nodiscard]] Result<Ranges> whole_pieces(const Call& call, const Ranges& final) const;

  // An earlier call of the group that serves one of this spec, too, which would be this round; null: there is none.
  [[nodiscard]] ScheduleCache::Repeated* repeats(const CallSpec& spec, const RoundId& round, std::int32_t size) {
    ScheduleCache::Repeated* const r = kept_.repeated(spec, size);
    if (r == nullptr || r->owner < 0) return r;
    return r->owner == owner_of(round, this->size()) ? r : nullptr;
  }
  // Keeps what this call is run by, which has a schedule. `publisher` is told the finals of calls that repeat it.
  void repeat(const Call& call, std::int32_t size, Publisher* publisher);

 private:
  // Ranks take turns, since who makes finals logs them; seldom, so that schedules are found in the cache. Set-up rounds
  // have no number that counts.
  [[nodiscard]] static std::int32_t owner_of(const RoundId& round, std::int32_t size) {
    constexpr std::uint64_t kRoundsOfAnOwner = 16;
    if (is_setup(round)) return 0;
    return static_cast<std::int32_t>(round.sequence.value / kRoundsOfAnOwner % static_cast<std::uint64_t>(size));
  }

  const RoundsPlan& plan_;
  const schedule::Costs& costs_;
  std::vector<Rank> members_;
  std::int32_t rank_;
  std::vector<std::uint32_t> hosts_, domains_;  // of the members, in this generation
  schedule::Host host_;                         // of those of which several members are
  std::vector<std::uint32_t> order_;            // of the ring in this version; empty: that of the members
  bool read_here_ = true;
  ScheduleCache kept_;
};

}  // namespace warren::worker
