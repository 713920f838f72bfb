#include "worker/device/device_memory.h"

#include <string>

#include "worker/device/device_library.h"

namespace warren::worker {

DeviceMemory::~DeviceMemory() {
  free_idle();
}

Result<DeviceMemory::Block> DeviceMemory::take(std::int32_t device, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  Block block;
  block.device_ = device;
  if (const auto it = idle_.lower_bound({device, bytes}); it != idle_.end() && it->first.first == device) {
    block.data_ = it->second;
    block.bytes_ = it->first.second;
    block.from_ = this;
    idle_.erase(it);
    return block;
  }
  if (bytes > budget_bytes_ || bytes_ > budget_bytes_ - bytes) free_idle();
  if (bytes > budget_bytes_ || bytes_ > budget_bytes_ - bytes) return block;
  void* memory = nullptr;
  warren_device_code code = table_.allocate(device, bytes, &memory);
  if (code == WARREN_DEVICE_NO_MEMORY && !idle_.empty()) {
    free_idle();
    code = table_.allocate(device, bytes, &memory);
  }
  if (code == WARREN_DEVICE_NO_MEMORY) return block;
  if (code != WARREN_DEVICE_OK) return device_error(table_, code, "cannot allocate on GPU " + std::to_string(device));
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

void DeviceMemory::free_idle() {
  if (arena_.abandoned()) return;
  for (const auto& [key, data] : idle_) {
    (void)table_.release(key.first, data);
    bytes_ -= key.second;
  }
  idle_.clear();
}

}  // namespace warren::worker
