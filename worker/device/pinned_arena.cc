#include "worker/device/pinned_arena.h"

#include <algorithm>
#include <bit>
#include <string>

#include "worker/device/device_library.h"

namespace warren::worker {
namespace {

constexpr std::uint64_t kLeastBytes = std::uint64_t{64} << 10;

// Four sizes to each doubling, so that buffers of about one size share blocks and a quarter at most is lost.
std::uint64_t block_bytes(std::uint64_t bytes) {
  const std::uint64_t step = std::max(kLeastBytes, std::bit_floor(bytes) / 4);
  return (bytes + step - 1) / step * step;
}

}  // namespace

PinnedArena::~PinnedArena() {
  free_idle();
}

// Null: there is none that fits.
PinnedArena::Block PinnedArena::take_idle(std::size_t size) {
  const std::lock_guard lock(mutex_);
  Block block;
  // Not one of more than twice the size: the next large buffer wants it.
  if (const auto it = idle_.lower_bound(size); it != idle_.end() && it->first <= 2 * size) {
    block.data_ = it->second;
    block.bytes_ = it->first;
    block.arena_ = this;
    idle_.erase(it);
  }
  return block;
}

bool PinnedArena::has_room(std::uint64_t size) const {
  const std::lock_guard lock(mutex_);
  return size <= budget_bytes_ && pinned_bytes_ <= budget_bytes_ - size;
}

Result<PinnedArena::Block> PinnedArena::take(std::uint64_t bytes) {
  const std::uint64_t size = std::max(kLeastBytes, block_bytes(bytes));
  Block block = take_idle(size);
  if (block.data_ != nullptr) return block;
  const std::lock_guard one(pinning_);
  // Of who was before.
  block = take_idle(size);
  if (block.data_ != nullptr) return block;
  if (!has_room(size)) free_idle();
  if (!has_room(size)) {
    return Status(Code::kExhausted, std::to_string(bytes) + " bytes of pinned memory are needed, " +
                                        std::to_string(pinned_bytes()) + " are in use, and device_pinned_bytes is " +
                                        std::to_string(budget_bytes_) +
                                        ": raise it, or wait for some of the asynchronous calls");
  }
  void* memory = nullptr;
  const warren_device_code code = table_.allocate_pinned(size, &memory);
  if (code != WARREN_DEVICE_OK) {
    return device_error(table_, code, "cannot pin " + std::to_string(size) + " bytes");
  }
  const std::lock_guard lock(mutex_);
  pinned_bytes_ += size;
  block.data_ = static_cast<std::byte*>(memory);
  block.bytes_ = size;
  block.arena_ = this;
  return block;
}

std::uint64_t PinnedArena::pinned_bytes() const {
  const std::lock_guard lock(mutex_);
  return pinned_bytes_;
}

void PinnedArena::give_back(std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  idle_.emplace(bytes, data);
}

// What is being freed counts until it is.
void PinnedArena::free_idle() {
  if (abandoned()) return;
  std::multimap<std::size_t, std::byte*> idle;
  {
    const std::lock_guard lock(mutex_);
    idle.swap(idle_);
  }
  for (const auto& [bytes, data] : idle) {
    (void)table_.free_pinned(data);
    const std::lock_guard lock(mutex_);
    pinned_bytes_ -= bytes;
  }
}

}  // namespace warren::worker
