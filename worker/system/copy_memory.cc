#include "worker/system/copy_memory.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

namespace warren::worker {
namespace {

constexpr std::align_val_t kAlignment{64};

}  // namespace

void CopyMemory::Free::operator()(std::byte* data) const {
  ::operator delete(data, kAlignment);
}

Result<CopyMemory::Taken> CopyMemory::take(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    // Not one that is much too large: another call may want it.
    if (const auto it = idle_.lower_bound(bytes); it != idle_.end() && it->first / 2 <= bytes) {
      Taken taken{std::move(it->second), it->first};
      idle_bytes_ -= it->first;
      idle_.erase(it);
      return taken;
    }
  }
  const std::size_t size = std::max<std::size_t>(bytes, 64);
  auto* const data = static_cast<std::byte*>(::operator new(size, kAlignment, std::nothrow));
  if (data == nullptr) return Status(Code::kExhausted, "no memory for " + std::to_string(size) + " bytes");
  return Taken{Block(data), size};
}

void CopyMemory::give_back(Taken taken) {
  const std::lock_guard lock(mutex_);
  if (taken.bytes > kMostIdleBytes - idle_bytes_) return;
  idle_bytes_ += taken.bytes;
  idle_.emplace(taken.bytes, std::move(taken.data));
}

std::size_t CopyMemory::idle_bytes() const {
  const std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace warren::worker
