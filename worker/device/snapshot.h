// The states of a checkpoint that lie on a GPU: copied there, which takes this GPU moments, and from that copy to the
// CPU, piece by piece, while the program goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "recovery/result.h"
#include "worker/device/device_copies.h"
#include "worker/device/device_table.h"
#include "worker/device/pinned_arena.h"
#include "worker/state_piece.h"

namespace warren::worker {

// Memory of GPUs for such copies, within a budget over all of them, kept for the next ones: to make or to free some may
// wait for the GPU. Any thread may call; blocks end before what made them.
class SnapshotMemory {
 public:
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept {
      give_back();
      from_ = std::exchange(other.from_, nullptr);
      device_ = other.device_;
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = other.bytes_;
      return *this;
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() { give_back(); }
    [[nodiscard]] std::byte* data() const { return data_; }
    // The GPU has failed, and may still use it: it stays what it is.
    void abandon() { from_ = nullptr; }

   private:
    friend class SnapshotMemory;
    void give_back() {
      if (from_ != nullptr) from_->give_back(device_, data_, bytes_);
      from_ = nullptr;
    }
    SnapshotMemory* from_ = nullptr;
    std::int32_t device_ = 0;
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
  };

  // `arena` knows whether a GPU has failed: then nothing is freed.
  SnapshotMemory(const warren_device_table& table, std::uint64_t budget_bytes, const PinnedArena& arena)
      : table_(table), budget_bytes_(budget_bytes), arena_(arena) {}
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  // At least so many bytes, with anything in them. data() null: the budget, or the GPU, has no room. kUnavailable: the
  // GPU reports an error.
  [[nodiscard]] Result<Block> take(std::int32_t device, std::uint64_t bytes);
  // In use or kept.
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  void give_back(std::int32_t device, std::byte* data, std::uint64_t bytes);
  void free_idle();

  const warren_device_table& table_;
  const std::uint64_t budget_bytes_;
  const PinnedArena& arena_;
  mutable std::mutex mutex_;
  std::uint64_t bytes_ = 0;
  std::multimap<std::pair<std::int32_t, std::uint64_t>, std::byte*> idle_;  // by device and size
};

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
           std::unique_ptr<DeviceCopies::Event> after, SnapshotMemory::Block block, PinnedArena::Block slots);
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
  SnapshotMemory::Block block_;
  PinnedArena::Block slots_;
  std::optional<DeviceCopies::Flow> flow_;  // nothing: no piece comes from a GPU
};

}  // namespace warren::worker
