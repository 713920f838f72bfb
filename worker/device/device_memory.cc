#include "worker/device/device_memory.h"

#include <string>

#include "worker/device/device_library.h"

namespace warren::worker {

DeviceMemory::~DeviceMemory() {
  (void)free_idle();
}

// Null: there is none that fits.
DeviceMemory::Block DeviceMemory::take_idle(std::int32_t device, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Block block;
  block.device_ = device;
  if (const auto it = idle_.lower_bound({device, bytes}); it != idle_.end() && it->first.first == device) {
    block.data_ = it->second;
    block.bytes_ = it->first.second;
    block.from_ = this;
    idle_.erase(it);
  }
  return block;
}

bool DeviceMemory::has_room(std::uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  return bytes <= budget_bytes_ && bytes_ <= budget_bytes_ - bytes;
}

Result<DeviceMemory::Block> DeviceMemory::take(std::int32_t device, std::uint64_t bytes) {
  Block block = take_idle(device, bytes);
  if (block.data_ != nullptr) return block;
  const std::lock_guard one(making_);
  // Of who was before.
  block = take_idle(device, bytes);
  if (block.data_ != nullptr) return block;
  if (!has_room(bytes)) (void)free_idle();
  if (!has_room(bytes)) return block;
  void* memory = nullptr;
  warren_device_code code = table_.allocate(device, bytes, &memory);
  if (code == WARREN_DEVICE_NO_MEMORY && free_idle()) code = table_.allocate(device, bytes, &memory);
  if (code == WARREN_DEVICE_NO_MEMORY) return block;
  if (code != WARREN_DEVICE_OK) return device_error(table_, code, "cannot allocate on GPU " + std::to_string(device));
  const std::lock_guard lock(mutex_);
  bytes_ += bytes;
  block.data_ = static_cast<std::byte*>(memory);
  block.bytes_ = bytes;
  block.from_ = this;
  return block;
}

std::uint64_t DeviceMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void DeviceMemory::give_back(std::int32_t device, std::byte* data, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  idle_.emplace(std::pair(device, bytes), data);
}

// What is being freed counts until it is. False: there was none.
bool DeviceMemory::free_idle() {
  if (arena_.abandoned()) return false;
  std::multimap<std::pair<std::int32_t, std::uint64_t>, std::byte*> idle;
  {
    const std::lock_guard lock(mutex_);
    idle.swap(idle_);
  }
  for (const auto& [key, data] : idle) {
    (void)table_.release(key.first, data);
    const std::lock_guard lock(mutex_);
    bytes_ -= key.second;
  }
  return !idle.empty();
}

}  // namespace warren::worker
