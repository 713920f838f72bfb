#include "worker/device/snapshot.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace warren::worker {

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
                   std::unique_ptr<DeviceCopies::Event> after, DeviceMemory::Block block, PinnedArena::Block slots)
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
