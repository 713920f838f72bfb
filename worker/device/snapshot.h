// The states of a checkpoint that lie on a GPU: copied there, which takes this GPU moments, and from that copy to the
// CPU, piece by piece, while the program goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "recovery/base/result.h"
#include "worker/device/device_copies.h"
#include "worker/device/device_memory.h"
#include "worker/device/pinned_arena.h"
#include "worker/life/state_piece.h"

namespace warren::worker {

// States as they were when they were taken (Staging::snapshot). One thread at a time; nothing here waits but settle().
class Snapshot {
 public:
  // What lies on the CPU already.
  struct Copied {
    StateKind state = StateKind::kGlobal;
    std::uint64_t at = 0;
    std::vector<std::byte> bytes;
  };
  // What lies in memory of a GPU that is this snapshot's, the next one behind it.
  struct Kept {
    StateKind state = StateKind::kGlobal;
    std::uint64_t at = 0, bytes = 0;
  };
  // How many pieces are in pinned memory at once.
  static constexpr std::size_t kSlots = 4;
  struct Piece {
    StateKind state = StateKind::kGlobal;
    std::uint64_t at = 0, from = 0;  // in the state, in the block
    std::size_t bytes = 0;
  };
  // What is kept in pieces of up to kDeviceChunkBytes, which is how it comes.
  [[nodiscard]] static std::vector<Piece> cut(std::span<const Kept> kept);
  // Of the pinned memory in which they come.
  [[nodiscard]] static std::uint64_t slots_bytes(std::span<const Piece> pieces);

  explicit Snapshot(std::vector<Copied> copied) : copied_(std::move(copied)) {}
  // `block` holds what is kept; `after` has been reached. `slots`: slots_bytes().
  Snapshot(std::vector<Copied> copied, std::vector<Piece> pieces, DeviceCopies& copies,
           std::unique_ptr<DeviceCopies::Event> after, DeviceMemory::Block block, PinnedArena::Block slots);
  ~Snapshot();
  Snapshot(const Snapshot&) = delete;
  Snapshot& operator=(const Snapshot&) = delete;

  // Moves pieces as far as they go; true if some have come. kUnavailable, kTimeout: as of copies; there is no more.
  [[nodiscard]] Result<bool> move();
  // The next piece that is on the CPU, if it is, until pop().
  [[nodiscard]] std::optional<StatePiece> front() const;
  void pop();
  // All has been popped.
  [[nodiscard]] bool done() const { return popped_copied_ == copied_.size() && popped_ == pieces_.size(); }
  // What comes is not wanted any more: returns when nothing is under way, or when the GPU has failed.
  void settle();

 private:
  [[nodiscard]] std::byte* slot_of(std::size_t piece) const;

  std::vector<Copied> copied_;
  std::size_t popped_copied_ = 0, popped_bytes_ = 0;  // of the first that has not been popped
  std::vector<Piece> pieces_;
  std::size_t slot_bytes_ = 0;
  std::size_t queued_ = 0, popped_ = 0;  // of the pieces
  std::unique_ptr<DeviceCopies::Event> after_;
  DeviceMemory::Block block_;
  PinnedArena::Block slots_;
  std::optional<DeviceCopies::Flow> flow_;  // nothing: no piece comes from a GPU
};

}  // namespace warren::worker
