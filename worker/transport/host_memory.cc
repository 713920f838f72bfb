#include "worker/transport/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"

namespace warren::worker {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Touched at once: the other ranks of the host may ask for as much at the same time, and each looks again before the
// next slice.
constexpr std::size_t kSlice = std::size_t{64} << 20;

}  // namespace

Result<std::shared_ptr<MemfdSegment>> HostMemory::make(std::uint64_t bytes, const MemoryLeft& left) {
  if (bytes == 0 || bytes > limits::kMaxBufferBytes) {
    return Status(Code::kInvalidArgument, "memory of 1 to " + std::to_string(limits::kMaxBufferBytes) +
                                              " bytes can be allocated, not of " + std::to_string(bytes));
  }
  // It is touched here and now: more than there is would end a process, this one or another.
  const auto has_room = [&](std::uint64_t more) -> Status {
    const auto there = left();
    if (!there || more <= *there) return {};
    return {Code::kUnavailable, "the system, or this process's control group, has " + std::to_string(*there) +
                                    " bytes of memory left, and " + std::to_string(bytes) + " were to be allocated"};
  };
  if (const Status room = has_room(bytes); !room.ok()) return room;
  const std::size_t unit = bytes < kHugePage ? kPage : kHugePage;
  auto made = memfd_segment((bytes + unit - 1) / unit * unit, "warren-memory");
  if (!made.ok()) return made.status();
  const std::span<std::byte> all = made.value()->bytes();
  // Advice: where the system has no huge pages for memory files, others do.
  (void)::madvise(all.data(), all.size(), MADV_HUGEPAGE);
  // What a child of a fork wrote would be this rank's input.
  (void)::madvise(all.data(), all.size(), MADV_DONTFORK);
  // Now, and with an error instead of a signal where there is not so much memory.
  for (std::size_t at = 0; at < all.size(); at += kSlice) {
    const std::span<std::byte> slice = all.subspan(at, std::min(kSlice, all.size() - at));
    if (at != 0) {
      if (const Status room = has_room(slice.size()); !room.ok()) return room;
    }
    if (::madvise(slice.data(), slice.size(), MADV_POPULATE_WRITE) == 0) continue;
    if (errno != EINVAL) {
      return Status(Code::kUnavailable,
                    "the system has no memory of " + std::to_string(bytes) + " bytes: " + std::strerror(errno));
    }
    // Before Linux 5.14.
    for (std::size_t i = 0; i < slice.size(); i += kPage) const_cast<volatile std::byte&>(slice[i]) = std::byte{};
  }
  return made;
}

Result<std::uint32_t> HostMemory::add(std::shared_ptr<MemfdSegment> memory) {
  if (own_.size() >= kMost) {
    return Status(Code::kExhausted, "memory was allocated " + std::to_string(kMost) +
                                        " times and not freed, which is the limit: allocate more at once");
  }
  const std::byte* const at = memory->bytes().data();
  own_[at] = {++newest_, std::move(memory), {}};
  return newest_;
}

std::uint32_t HostMemory::add_on_gpu(std::span<const std::byte> memory) {
  WARREN_CHECK(!own_on_gpu_, "a life lends memory of one GPU, in one piece");
  newest_ += 2;
  own_on_gpu_ = {newest_, memory, {}, {}};
  return newest_;
}

std::size_t HostMemory::readers_on_gpu() const {
  if (!own_on_gpu_) return 0;
  return static_cast<std::size_t>(std::ranges::count_if(
      own_on_gpu_->mapped_by, [&](Incarnation life) { return own_on_gpu_->page_mapped_by.contains(life); }));
}

std::optional<HostMemory::Removed> HostMemory::remove(const void* address) {
  const auto own = own_.find(static_cast<const std::byte*>(address));
  if (own == own_.end()) return std::nullopt;
  Removed removed{own->second.memory, std::move(own->second.segment)};
  own_.erase(own);
  return removed;
}

void HostMemory::mapped_by(Incarnation life, std::uint32_t memory) {
  const auto own = std::ranges::find(own_, memory, [](const auto& entry) { return entry.second.memory; });
  if (own != own_.end()) own->second.mapped_by.insert(life);
  if (own_on_gpu_ && own_on_gpu_->memory == memory) own_on_gpu_->mapped_by.insert(life);
  if (own_on_gpu_ && own_on_gpu_->memory == memory + 1) own_on_gpu_->page_mapped_by.insert(life);
}

Incarnation HostMemory::life_of(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank.value);
  return index < lives_.size() ? lives_[index] : Incarnation();
}

MemoryPlace HostMemory::lend(Rank peer, std::span<const std::byte> payload) const {
  auto own = own_.upper_bound(payload.data());
  if (own == own_.begin()) return lend_on_gpu(peer, payload);
  --own;
  const std::span<const std::byte> all = own->second.segment->bytes();
  const auto at = static_cast<std::size_t>(payload.data() - all.data());
  if (at >= all.size() || payload.size() > all.size() - at) return lend_on_gpu(peer, payload);
  if (!own->second.mapped_by.contains(life_of(peer))) return {};
  return {own->second.memory, at};
}

MemoryPlace HostMemory::lend_on_gpu(Rank peer, std::span<const std::byte> payload) const {
  if (!own_on_gpu_) return {};
  const std::span<const std::byte> all = own_on_gpu_->bytes;
  const auto at = reinterpret_cast<std::uintptr_t>(payload.data()) - reinterpret_cast<std::uintptr_t>(all.data());
  if (at >= all.size() || payload.size() > all.size() - at) return {};
  if (!own_on_gpu_->mapped_by.contains(life_of(peer))) return {};
  return {own_on_gpu_->memory, at, true};
}

void HostMemory::attach(Incarnation life, std::uint32_t memory, MappedSegment segment, bool on_gpu) {
  others_[{life, memory}] = {std::move(segment), on_gpu};
}

void HostMemory::detach(Incarnation life, std::uint32_t memory) {
  others_.erase({life, memory});
}

std::optional<HostMemory::Borrowed> HostMemory::borrow(Rank peer, const MemoryPlace& place, std::size_t bytes) const {
  const auto other = others_.find({life_of(peer), place.memory});
  if (other == others_.end()) return std::nullopt;
  const MappedSegment& segment = other->second.segment;
  if (place.at > segment.bytes.size() || bytes > segment.bytes.size() - place.at) return std::nullopt;
  return Borrowed{segment.bytes.data() + place.at, segment.keeper, other->second.on_gpu};
}

std::shared_ptr<const FinalOnGpu> HostMemory::borrow_made(Rank peer, std::uint32_t memory, std::uint64_t number,
                                                          std::size_t bytes) const {
  const auto there = others_.find({life_of(peer), memory}), page = others_.find({life_of(peer), memory - 1});
  if (there == others_.end() || !there->second.on_gpu || page == others_.end() || page->second.on_gpu ||
      page->second.segment.bytes.size() < sizeof(MadeThere)) {
    return nullptr;
  }
  const auto* const says = reinterpret_cast<const MadeThere*>(page->second.segment.bytes.data());
  const std::uint64_t all = std::atomic_ref(const_cast<std::uint64_t&>(says->bytes)).load(std::memory_order_relaxed);
  const MappedSegment& segment = there->second.segment;
  if (all == 0 || all > segment.bytes.size()) return nullptr;
  const std::uint64_t at = number % all;
  // Who copies it on a GPU need not look at where it lies.
  if (bytes > all - at || at % MadeThere::kAlignment != 0) return nullptr;
  return std::make_shared<const FinalOnGpu>(
      FinalOnGpu{segment.bytes.data() + at, number, &says->first, segment.keeper, page->second.segment.keeper});
}

void HostMemory::install(std::vector<Incarnation> lives) {
  lives_ = std::move(lives);
  const auto over = [this](Incarnation life) { return std::ranges::find(lives_, life) == lives_.end(); };
  std::erase_if(others_, [&](const auto& entry) { return over(entry.first.first); });
  for (auto& [at, own] : own_) std::erase_if(own.mapped_by, over);
  if (!own_on_gpu_) return;
  std::erase_if(own_on_gpu_->mapped_by, over);
  std::erase_if(own_on_gpu_->page_mapped_by, over);
}

}  // namespace warren::worker
