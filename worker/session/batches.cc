#include "worker/session/batches.h"

#include <string>
#include <utility>

namespace warren::worker {

Status Batches::begin(GroupId group) {
  if (fusing_) return {Code::kInvalidArgument, "fusion_begin: the one before, of any communicator, has not ended"};
  fusing_ = group;
  return {};
}

Status Batches::may_call(GroupId group, const Call& call) const {
  if (!fusing_ || (group == *fusing_ && call.spec.collective != Collective::kPoint)) [[likely]]
    return {};
  return {Code::kInvalidArgument, std::string(to_string(call.spec.collective)) +
                                      ": messages, and calls of other communicators, come before fusion_begin or "
                                      "after fusion_end"};
}

void Batches::add(GroupId group, const GroupShape& shape, const std::shared_ptr<Call>& call,
                  const std::optional<Staging::Lies>& on_gpu, std::unique_ptr<DeviceCopies::Event> after) {
  if (on_gpu) Staging::add(*on_gpu, std::move(after), batch_.on_gpu());
  batch_.add(group, shape, call);
}

bool Batches::await_turn(std::unique_lock<std::mutex>& lock) {
  turn_ended_.wait(lock, [&] { return !sends_; });
  return !batch_.empty();
}

Batches::Turn::Turn(Batches& batches, std::unique_lock<std::mutex>& lock) : batches_(batches), lock_(lock) {
  batches_.sends_ = true;
}

Batches::Turn::~Turn() {
  if (!lock_.owns_lock()) lock_.lock();
  batches_.sends_ = false;
  batches_.turn_ended_.notify_all();
}

}  // namespace warren::worker
