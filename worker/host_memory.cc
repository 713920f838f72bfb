#include "worker/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>

#include "recovery/limits.h"

namespace warren::worker {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// What the system could give without ending somebody; 0: it does not say.
std::uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    constexpr std::string_view kName = "MemAvailable:";
    if (line.rfind(kName, 0) == 0) return std::strtoull(line.c_str() + kName.size(), nullptr, 10) * 1024;
  }
  return 0;
}

}  // namespace

Result<std::shared_ptr<MemfdSegment>> HostMemory::make(std::uint64_t bytes) {
  if (bytes == 0 || bytes > limits::kMaxBufferBytes) {
    return Status(Code::kInvalidArgument, "memory of 1 to " + std::to_string(limits::kMaxBufferBytes) +
                                              " bytes can be allocated, not of " + std::to_string(bytes));
  }
  // It is touched here and now: more than there is would end a process, this one or another.
  if (const std::uint64_t available = available_bytes(); available != 0 && bytes > available) {
    return Status(Code::kUnavailable, "the system has " + std::to_string(available) + " bytes of memory left, and " +
                                          std::to_string(bytes) + " were to be allocated");
  }
  const std::size_t unit = bytes < kHugePage ? kPage : kHugePage;
  auto made = memfd_segment((bytes + unit - 1) / unit * unit, "warren-memory");
  if (!made.ok()) return made.status();
  const std::span<std::byte> all = made.value()->bytes();
  // Advice: where the system has no huge pages for memory files, others do.
  (void)::madvise(all.data(), all.size(), MADV_HUGEPAGE);
  // What a child of a fork wrote would be this rank's input.
  (void)::madvise(all.data(), all.size(), MADV_DONTFORK);
  // Now, and with an error instead of a signal where there is not so much memory.
  if (::madvise(all.data(), all.size(), MADV_POPULATE_WRITE) == 0) return made;
  const int error = errno;
  if (error == EINVAL) {  // before Linux 5.14
    for (std::size_t at = 0; at < all.size(); at += kPage) const_cast<volatile std::byte&>(all[at]) = std::byte{};
    return made;
  }
  return Status(Code::kUnavailable,
                "the system has no memory of " + std::to_string(bytes) + " bytes: " + std::strerror(error));
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
}

Incarnation HostMemory::life_of(Rank rank) const {
  const auto index = static_cast<std::size_t>(rank.value);
  return index < lives_.size() ? lives_[index] : Incarnation();
}

MemoryPlace HostMemory::lend(Rank peer, std::span<const std::byte> payload) const {
  auto own = own_.upper_bound(payload.data());
  if (own == own_.begin()) return {};
  --own;
  const std::span<const std::byte> all = own->second.segment->bytes();
  const auto at = static_cast<std::size_t>(payload.data() - all.data());
  if (at >= all.size() || payload.size() > all.size() - at) return {};
  if (!own->second.mapped_by.contains(life_of(peer))) return {};
  return {own->second.memory, at};
}

void HostMemory::attach(Incarnation life, std::uint32_t memory, MappedSegment segment) {
  others_[{life, memory}] = std::move(segment);
}

void HostMemory::detach(Incarnation life, std::uint32_t memory) {
  others_.erase({life, memory});
}

std::optional<HostMemory::Borrowed> HostMemory::borrow(Rank peer, const MemoryPlace& place, std::size_t bytes) const {
  const auto other = others_.find({life_of(peer), place.memory});
  if (other == others_.end()) return std::nullopt;
  const MappedSegment& segment = other->second;
  if (place.at > segment.bytes.size() || bytes > segment.bytes.size() - place.at) return std::nullopt;
  return Borrowed{segment.bytes.data() + place.at, segment.keeper};
}

void HostMemory::install(std::vector<Incarnation> lives) {
  lives_ = std::move(lives);
  const auto over = [this](Incarnation life) { return std::ranges::find(lives_, life) == lives_.end(); };
  std::erase_if(others_, [&](const auto& entry) { return over(entry.first.first); });
  for (auto& [at, own] : own_) std::erase_if(own.mapped_by, over);
}

}  // namespace warren::worker
