#include "worker/rounds/groups.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/base/check.h"

namespace warren::worker {

Group* Groups::group_of(const Call& call) {
  for (auto& [id, group] : present_) {
    if (group->rounds.active() == &call) return group.get();
  }
  return nullptr;
}

Group* Groups::at_slot(std::uint32_t slot) {
  WARREN_CHECK(slot < by_slot_.size(), "tokens carry a slot of this engine");
  return by_slot_[slot];
}

Status Groups::may_add(GroupId id) const {
  if (present_.contains(id) || departed_.contains(id)) return {Code::kInvalidArgument, "this group exists already"};
  if (present_.size() + departed_.size() < limits::kMaxGroups) return {};
  return {Code::kExhausted, "over " + std::to_string(limits::kMaxGroups) + " groups at once, " +
                                std::to_string(departed_.size()) +
                                " of which are destroyed and have messages that are not obsolete: destroy "
                                "communicators that are no longer needed, and take a checkpoint"};
}

Group& Groups::add(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  WARREN_CHECK(channel <= kMeetingChannel, "channels are those of Channels, and the one for meeting");
  const auto self = std::ranges::find(members, shared_.plan.self);
  WARREN_CHECK(self != members.end(), "a rank is a member of its groups");
  const auto rank = static_cast<std::int32_t>(self - members.begin());
  std::uint32_t slot = 0;
  while (slot < by_slot_.size() && by_slot_[slot] != nullptr) slot += 2;
  auto group = std::make_unique<Group>(shared_, id, channel, std::move(members), rank, slot);
  if (slot >= by_slot_.size()) by_slot_.resize(slot + 2, nullptr);
  by_slot_[slot] = by_slot_[slot + 1] = group.get();
  if (shared_.open) group->points.open(shared_.plan.generation, shared_.plan.timeline, shared_.plan.resumes);
  return *present_.emplace(id, std::move(group)).first->second;
}

Group& Groups::move(Group& group, std::uint32_t channel) {
  WARREN_CHECK(
      group.channel == kMeetingChannel && group.rounds.idle() && !group.points.busy() && !group.points.unsettled(),
      "a group that meets is moved, once, when it has made collectives alone");
  const GroupId id = group.id;
  const Sequence next = group.rounds.next();
  const std::uint64_t done = group.rounds.done();
  std::vector<Rank> members = group.rounds.seats().members();
  free_slots(group);
  if (called_ == &group) called_ = nullptr;
  present_.erase(id);
  Group& moved = add(id, std::move(members), channel);
  moved.rounds.count_from(next, done);
  return moved;
}

void Groups::remove(Group& group) {
  WARREN_CHECK(group.rounds.idle(), "a group is removed when its calls have finished");
  group.departed = true;
  group.points.depart();
  settle(group);
  if (called_ == &group) called_ = nullptr;
  departed_.insert(present_.extract(group.id));
  release_departed();
}

void Groups::release_departed() {
  std::erase_if(departed_, [&](const auto& entry) {
    const Group& group = *entry.second;
    if ((shared_.open && !group.points.clean()) || !group.points.obsolete()) return false;
    free_slots(group);
    return true;
  });
}

void Groups::free_slots(const Group& group) {
  by_slot_[group.rounds.slot()] = by_slot_[group.rounds.slot() + 1] = nullptr;
}

Groups::Channels Groups::used_channels() const {
  Channels used{};
  for (const ById* groups : {&present_, &departed_}) {
    for (const auto& [id, group] : *groups) {
      if (group->channel == kMeetingChannel) continue;
      used[group->channel / 64] |= std::uint64_t{1} << group->channel % 64;
    }
  }
  return used;
}

std::optional<std::uint32_t> Groups::free_channel(const Channels& used) {
  for (std::uint32_t channel = 0; channel < limits::kMaxGroups; channel++) {
    if ((used[channel / 64] >> channel % 64 & 1) == 0) return channel;
  }
  return std::nullopt;
}

}  // namespace warren::worker
