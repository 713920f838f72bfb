#include "worker/session/group_calls.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include "recovery/base/limits.h"

namespace warren::worker {

Engine::Channels GroupCalls::used_channels() {
  const std::lock_guard lock(driver_.mutex());
  return engine().used_channels();
}

Status GroupCalls::add(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  const std::lock_guard lock(driver_.mutex());
  if (!life_.failure().ok()) return life_.failure();
  return engine().add_group(id, std::move(members), channel);
}

Status GroupCalls::make(GroupId id, const std::vector<Rank>& members, std::uint64_t site) {
  const auto rank = static_cast<std::int32_t>(std::ranges::find(members, self_) - members.begin());
  if (Status added = add(id, members, Engine::kMeetingChannel); !added.ok()) return added;
  auto used = used_channels();
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = DataType::kU64;
  spec.op = ReduceOp::kBitOr;
  spec.input = spec.output = used.data();
  spec.count = used.size();
  spec.site = site;
  std::shared_ptr<const std::vector<Rank>> contributors;
  Status status = calls_.run(id, {rank, static_cast<std::int32_t>(members.size())}, spec, contributors);
  const auto channel = Engine::free_channel(used);
  if (status.ok() && !channel) status = no_channel();
  if (!status.ok()) {
    remove(id);
    return status;
  }
  const std::lock_guard lock(driver_.mutex());
  engine().move_group(id, *channel);
  return {};
}

Status GroupCalls::no_channel() {
  return {Code::kExhausted, "over " + std::to_string(limits::kMaxGroups) +
                                " groups at once: destroy communicators that are no longer needed"};
}

void GroupCalls::remove(GroupId id) {
  std::unique_lock lock(driver_.mutex());
  if (!engine().has_group(id)) return;
  fused_.end(lock, id);
  // Where the engine has stopped, all calls have finished but one whose prepare function runs.
  driver_.drive(lock, [&] { return engine().idle(id); });
  driver_.run_callbacks(lock);
  engine().remove_group(id);
  driver_.hand_over();
}

bool GroupCalls::setup_known(GroupId group, const std::string& name) {
  const std::lock_guard lock(driver_.mutex());
  return engine().setup_known(group, setup_sequence(name));
}

RoundId GroupCalls::next_round(GroupId group) {
  std::unique_lock lock(driver_.mutex());
  // A batch of another group would end at some ranks alone. That group's fusion refuses this group's next call.
  if (fused_.fuses(group)) fused_.send(lock);
  return engine().next_round(group);
}

}  // namespace warren::worker
