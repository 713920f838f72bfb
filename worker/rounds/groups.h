// The groups of one life: by id, by slot and by channel. A slot is the upper half of a group's tokens: each group has
// two, for rounds and for messages. A channel is the name of a group's links.
//
// A group that is removed departs. It keeps its slots and its channel while its links are not clean, or a life can ask
// for its messages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/limits.h"
#include "recovery/base/result.h"
#include "worker/rounds/group_rounds.h"
#include "worker/rounds/point.h"
#include "worker/rounds/shared_by_groups.h"

namespace warren::worker {

struct Group {
  Group(SharedByGroups& shared, GroupId group, std::uint32_t links, std::vector<Rank> members, std::int32_t rank,
        std::uint32_t slot)
      : id(group),
        channel(links),
        rounds(shared, group, links, members, rank, slot),
        points(shared.transport, shared.transport, group, links, std::move(members), rank, slot + 1,
               shared.plan.chunk_bytes, shared.recall, shared.version, shared.board) {}

  const GroupId id;
  const std::uint32_t channel;
  GroupRounds rounds;
  PointChannels points;
  bool point_shown = false;  // the board shows a message
  bool departed = false;
  bool unsettled = false;  // counted among the unsettled groups
};

class Groups {
 public:
  // The channel of groups whose members are about to agree on one, in their first round, which no other rank hears of.
  // A rank is in one such group at a time: so two of its members meet in the same groups in the same order.
  static constexpr std::uint32_t kMeetingChannel = limits::kMaxGroups;
  // A bit for each channel, set where it is in use. Channel 0 is the world's.
  using Channels = std::array<std::uint64_t, limits::kMaxGroups / 64>;
  using ById = std::map<GroupId, std::unique_ptr<Group>>;

  explicit Groups(SharedByGroups& shared) : shared_(shared) {}
  Groups(const Groups&) = delete;
  Groups& operator=(const Groups&) = delete;

  // null: there is none.
  [[nodiscard]] Group* find(GroupId id) {
    if (called_ != nullptr && called_->id == id) return called_;
    const auto it = present_.find(id);
    return called_ = it == present_.end() ? nullptr : it->second.get();
  }
  [[nodiscard]] const Group* find(GroupId id) const {
    const auto it = present_.find(id);
    return it == present_.end() ? nullptr : it->second.get();
  }
  // The group whose active call this is; null: its round is over.
  [[nodiscard]] Group* group_of(const Call& call);
  // null: nobody has the slot any more.
  [[nodiscard]] Group* at_slot(std::uint32_t slot);
  [[nodiscard]] const ById& present() const { return present_; }
  // Removed, and not released.
  [[nodiscard]] const ById& departed() const { return departed_; }

  // Whether a group of this name may be added. kInvalidArgument: it exists. kExhausted: limits::kMaxGroups.
  [[nodiscard]] Status may_add(GroupId id) const;
  // This rank is one of the members.
  Group& add(GroupId id, std::vector<Rank> members, std::uint32_t channel);
  // The group on the meeting channel, which is idle, becomes another one with the same counts of rounds.
  Group& move(Group& group, std::uint32_t channel);
  // The group departs. Its calls have finished.
  void remove(Group& group);
  // Releases channels and slots that nothing can come for any more. Between two generations there are no links.
  void release_departed();
  [[nodiscard]] Channels used_channels() const;
  // The first one that has no bit; nothing: all have.
  [[nodiscard]] static std::optional<std::uint32_t> free_channel(const Channels& used);

  // Messages of this group have begun to move for which no call waits, or move no more.
  void settle(Group& group) {
    const bool now = group.points.unsettled();
    if (now != group.unsettled) unsettled_ = now ? unsettled_ + 1 : unsettled_ - 1;
    group.unsettled = now;
  }
  [[nodiscard]] bool unsettled() const { return unsettled_ != 0; }

 private:
  void free_slots(const Group& group);

  SharedByGroups& shared_;
  ById present_, departed_;
  Group* called_ = nullptr;  // the newest one that was found, while it is present
  std::vector<Group*> by_slot_;
  std::size_t unsettled_ = 0;
};

}  // namespace warren::worker
