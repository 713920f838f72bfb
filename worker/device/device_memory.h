// Memory of GPUs for what Warren keeps or converts there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "recovery/base/result.h"
#include "worker/device/device_table.h"
#include "worker/device/pinned_arena.h"

namespace warren::worker {

// Memory of GPUs that is Warren's, within a budget over all of them, kept for the next who wants some: to make or to
// free it may wait for the GPU, and so may who takes some; who gives it back does not. Any thread may call; blocks end
// before what made them.
class DeviceMemory {
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
    // The GPU has failed, and may still use it: it stays what it is, and so does all other memory that freeing might
    // wait for.
    void abandon() {
      if (from_ != nullptr) from_->arena_.abandon();
      from_ = nullptr;
    }

   private:
    friend class DeviceMemory;
    void give_back() {
      if (from_ != nullptr) from_->give_back(device_, data_, bytes_);
      from_ = nullptr;
    }
    DeviceMemory* from_ = nullptr;
    std::int32_t device_ = 0;
    std::byte* data_ = nullptr;
    std::uint64_t bytes_ = 0;
  };

  // `arena` knows whether a GPU has failed: then nothing is freed.
  DeviceMemory(const warren_device_table& table, std::uint64_t budget_bytes, PinnedArena& arena)
      : table_(table), budget_bytes_(budget_bytes), arena_(arena) {}
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  // At least so many bytes, with anything in them. data() null: the budget, or the GPU, has no room. kUnavailable: the
  // GPU reports an error.
  [[nodiscard]] Result<Block> take(std::int32_t device, std::uint64_t bytes);
  // In use or kept.
  [[nodiscard]] std::uint64_t bytes() const;

 private:
  [[nodiscard]] Block take_idle(std::int32_t device, std::uint64_t bytes);
  [[nodiscard]] bool has_room(std::uint64_t bytes) const;
  void give_back(std::int32_t device, std::byte* data, std::uint64_t bytes);
  [[nodiscard]] bool free_idle();

  const warren_device_table& table_;
  const std::uint64_t budget_bytes_;
  PinnedArena& arena_;
  std::mutex making_;         // one at a time makes, and frees, within the budget
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t bytes_ = 0;
  std::multimap<std::pair<std::int32_t, std::uint64_t>, std::byte*> idle_;  // by device and size
};

}  // namespace warren::worker
