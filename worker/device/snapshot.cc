#include "worker/device/snapshot.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "worker/device/device_library.h"

namespace warren::worker {

SnapshotMemory::~SnapshotMemory() {
  free_idle();
}

Result<SnapshotMemory::Block> SnapshotMemory::take(std::int32_t device, std::uint64_t bytes) {
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

std::uint64_t SnapshotMemory::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void SnapshotMemory::give_back(std::int32_t device, std::byte* data, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  idle_.emplace(std::pair(device, bytes), data);
}

void SnapshotMemory::free_idle() {
  if (arena_.abandoned()) return;
  for (const auto& [key, data] : idle_) {
    (void)table_.release(key.first, data);
    bytes_ -= key.second;
  }
  idle_.clear();
}

std::vector<Snapshot::Piece> Snapshot::cut(std::span<const Kept> kept) {
  std::vector<Piece> pieces;
  std::uint64_t from = 0;
  for (const Kept& k : kept) {
    for (std::uint64_t at = 0; at < k.bytes; at += kDeviceChunkBytes) {
      const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kDeviceChunkBytes, k.bytes - at));
      pieces.push_back({k.state, k.at + at, from + at, bytes});
    }
    from += k.bytes;
  }
  return pieces;
}

namespace {

std::size_t largest(std::span<const Snapshot::Piece> pieces) {
  std::size_t bytes = 0;
  for (const Snapshot::Piece& piece : pieces) bytes = std::max(bytes, piece.bytes);
  return bytes;
}

}  // namespace

std::uint64_t Snapshot::slots_bytes(std::span<const Piece> pieces) {
  return std::min(kSlots, pieces.size()) * largest(pieces);
}

Snapshot::Snapshot(std::vector<Copied> copied, std::vector<Piece> pieces, DeviceCopies& copies,
                   std::unique_ptr<DeviceCopies::Event> after, SnapshotMemory::Block block, PinnedArena::Block slots)
    : copied_(std::move(copied)),
      pieces_(std::move(pieces)),
      slot_bytes_(largest(pieces_)),
      after_(std::move(after)),
      block_(std::move(block)),
      slots_(std::move(slots)) {
  flow_.emplace(copies, *after_);
}

Snapshot::~Snapshot() {
  if (!flow_ || flow_->under_way() == 0) return;
  block_.abandon();
  slots_.abandon();
}

std::byte* Snapshot::slot_of(std::size_t piece) const {
  return slots_.data() + piece % kSlots * slot_bytes_;
}

Result<bool> Snapshot::move() {
  if (!flow_) return false;
  const auto some = flow_->look();
  if (!some.ok()) return some;
  while (queued_ < pieces_.size() && queued_ - popped_ < kSlots && flow_->has_room()) {
    const Piece& piece = pieces_[queued_];
    const Status status = flow_->to_host(slot_of(queued_), block_.data() + piece.from, piece.bytes);
    queued_++;
    if (!status.ok()) return status;
  }
  return some;
}

std::optional<StatePiece> Snapshot::front() const {
  if (popped_copied_ < copied_.size()) {
    const Copied& c = copied_[popped_copied_];
    const std::size_t bytes = std::min(kDeviceChunkBytes, c.bytes.size() - popped_bytes_);
    return StatePiece{c.state, c.at + popped_bytes_, std::span(c.bytes).subspan(popped_bytes_, bytes)};
  }
  if (!flow_ || popped_ == flow_->arrived()) return std::nullopt;
  const Piece& piece = pieces_[popped_];
  return StatePiece{piece.state, piece.at, {slot_of(popped_), piece.bytes}};
}

void Snapshot::pop() {
  if (popped_copied_ == copied_.size()) {
    popped_++;
    return;
  }
  Copied& c = copied_[popped_copied_];
  popped_bytes_ += std::min(kDeviceChunkBytes, c.bytes.size() - popped_bytes_);
  if (popped_bytes_ < c.bytes.size()) return;
  std::vector<std::byte>().swap(c.bytes);
  popped_copied_++;
  popped_bytes_ = 0;
}

void Snapshot::settle() {
  while (flow_ && flow_->under_way() != 0) {
    const auto some = flow_->look();
    if (!some.ok()) return;
    if (!some.value()) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

}  // namespace warren::worker
