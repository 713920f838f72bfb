// Pinned memory for copies to and from GPUs. Pinning is slow, so blocks are kept for the next call; all of them
// together stay within a budget.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "recovery/base/result.h"
#include "worker/device/device_table.h"

namespace warren::worker {

// Any thread may call; blocks end before their arena. Who takes one may wait for the system, and for others who do; who
// gives one back does not.
class PinnedArena {
 public:
  class Block {
   public:
    Block() = default;
    Block(Block&& other) noexcept { *this = std::move(other); }
    Block& operator=(Block&& other) noexcept {
      give_back();
      arena_ = std::exchange(other.arena_, nullptr);
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
      return *this;
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    ~Block() { give_back(); }

    [[nodiscard]] std::byte* data() const { return data_; }
    // A GPU that has failed may still write to it: it stays what it is until the process ends, and so does all that is
    // pinned, because freeing may wait for the GPU.
    void abandon() {
      if (arena_ != nullptr) arena_->abandon();
      arena_ = nullptr;
    }

   private:
    friend class PinnedArena;
    void give_back() {
      if (arena_ != nullptr) arena_->give_back(data_, bytes_);
      arena_ = nullptr;
    }
    PinnedArena* arena_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t bytes_ = 0;
  };

  PinnedArena(const warren_device_table& table, std::uint64_t budget_bytes)
      : table_(table), budget_bytes_(budget_bytes) {}
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  // At least `bytes`, aligned to a page, with anything in it. kExhausted: over the budget, which the text names, or the
  // machine has no more.
  [[nodiscard]] Result<Block> take(std::uint64_t bytes);
  // In use or kept.
  [[nodiscard]] std::uint64_t pinned_bytes() const;
  // A GPU has failed: nothing of it is freed any more, as Block::abandon() says.
  void abandon() { frees_.store(false, std::memory_order_relaxed); }
  // A GPU has failed: what waits for it may wait for ever.
  [[nodiscard]] bool abandoned() const { return !frees_.load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] Block take_idle(std::size_t size);
  [[nodiscard]] bool has_room(std::uint64_t size) const;
  void give_back(std::byte* data, std::size_t bytes);
  void free_idle();

  const warren_device_table& table_;
  const std::uint64_t budget_bytes_;
  std::atomic<bool> frees_{true};
  std::mutex pinning_;        // one at a time pins, and frees, within the budget
  mutable std::mutex mutex_;  // guards what follows
  std::uint64_t pinned_bytes_ = 0;
  std::multimap<std::size_t, std::byte*> idle_;  // by size
};

}  // namespace warren::worker
