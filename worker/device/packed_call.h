// A call that stands for several whose buffers lie on one GPU (worker/session/fusion.h): they are packed into one piece
// of its memory, which is staged as a call's one buffer is, and unpacked from there.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "recovery/base/result.h"
#include "worker/device/device_copies.h"
#include "worker/device/device_memory.h"
#include "worker/rounds/call.h"

namespace warren::worker {

class PackedCall final : public CallBuffers {
 public:
  using Pieces = std::vector<warren_device_piece>;

  // `stream`: what is on it now is the program's work that is waited for before buffers are read or written.
  PackedCall(DeviceCopies& copies, std::unique_ptr<DeviceCopies::Stream> stream, DeviceMemory::Block block,
             Pieces inputs, Pieces outputs)
      : copies_(copies),
        stream_(std::move(stream)),
        block_(std::move(block)),
        inputs_(std::move(inputs)),
        outputs_(std::move(outputs)) {}
  ~PackedCall() override;
  PackedCall(const PackedCall&) = delete;
  PackedCall& operator=(const PackedCall&) = delete;

  // Before the block is staged. As in Staging::stage().
  [[nodiscard]] Status prepare();
  // As the staged call's prepare function.
  void pack();
  // What brings the block to the CPU, with pack() before it, and back.
  void around(std::unique_ptr<CallBuffers> staged) { staged_ = std::move(staged); }
  [[nodiscard]] void* lane() const { return stream_->get(); }

  // CallBuffers.
  [[nodiscard]] Status filled() const override { return packed_.ok() ? staged_->filled() : packed_; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override;

 private:
  DeviceCopies& copies_;
  const std::unique_ptr<DeviceCopies::Stream> stream_;
  DeviceMemory::Block block_;
  const Pieces inputs_, outputs_;
  std::unique_ptr<DeviceCopies::Event> ready_;  // behind the program's work, then behind what packs
  std::unique_ptr<CallBuffers> staged_;
  Status packed_;
  bool used_ = false;  // something of ours is on the stream
};

}  // namespace warren::worker
