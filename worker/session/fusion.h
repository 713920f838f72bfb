// Small asynchronous allreduces that become one round. Calls that a program makes one after the other are put together
// as long as they are alike and fit; what is put together is sent when the next one does not, when the program makes
// any other call, when it waits or asks for one of these, or says that there are no more. So where a batch ends follows
// from the program's calls alone, which are the same on all ranks and in all lives: no agreement, no clock, and a round
// like any other, whose name, algorithm, bits, log and replay are those of one call of all their elements
// (docs/decisions/0013-fusion.md).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/device/staging.h"
#include "worker/rounds/call.h"
#include "worker/schedule/schedule.h"
#include "worker/system/copy_memory.h"

namespace warren::worker {

// The calls that are put together and not yet sent. Under its owner's lock, but for close(), which may wait for a GPU:
// its owner takes the batch before, and nobody else has it.
class Batch {
 public:
  static constexpr std::size_t kMostParts = 1024;

  // Whether a validated call may be a part of any batch of up to so many bytes: an allreduce, without prepare function
  // and name. Wherever its buffers lie, which other ranks do not know.
  [[nodiscard]] static bool takes(const Call& call, std::uint64_t most_bytes);
  // Whether it may be the next part of this one, which has parts.
  [[nodiscard]] bool fits(GroupId group, const Call& call, std::uint64_t most_bytes) const;
  void add(GroupId group, const GroupShape& shape, std::shared_ptr<Call> part);
  // No further call would fit that has more than no element.
  [[nodiscard]] bool full(std::uint64_t most_bytes) const {
    return bytes_ >= most_bytes || parts_.size() == kMostParts;
  }
  [[nodiscard]] bool empty() const { return parts_.empty(); }
  [[nodiscard]] GroupId group() const { return group_; }
  // Of those that are parts, or are about to be.
  [[nodiscard]] PartsOnGpu& on_gpu() { return on_gpu_; }

  // Ends it unsent.
  [[nodiscard]] std::vector<std::shared_ptr<Call>> take();
  // Ends it: the one part, or a call that stands for all parts (Call::parts), each with its copies if it has a wire
  // type, or buffers on a GPU. `staging`: null where there is none. kExhausted: no memory; kUnavailable: the GPU. The
  // parts are in `lost` then.
  [[nodiscard]] Result<std::shared_ptr<Call>> close(const std::shared_ptr<CopyMemory>& memory, Staging* staging,
                                                    std::vector<std::shared_ptr<Call>>& lost);

 private:
  GroupId group_;
  GroupShape shape_;
  std::vector<std::shared_ptr<Call>> parts_;
  PartsOnGpu on_gpu_;
  std::uint64_t elements_ = 0, bytes_ = 0;
};

}  // namespace warren::worker
