#include "worker/rounds/scratch.h"

#include <sys/mman.h>

#include <algorithm>

#include "recovery/base/check.h"

namespace warren::worker {

Scratch::~Scratch() {
  give_back();
}

void Scratch::give_back() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

std::byte* Scratch::reserve(std::size_t bytes) {
  std::byte* const data = try_reserve(bytes);
  WARREN_CHECK(data != nullptr || bytes == 0, "a few chunks of scratch can be mapped");
  return data;
}

std::byte* Scratch::try_reserve(std::size_t bytes) {
  if (bytes <= bytes_) return data_;
  give_back();
  constexpr std::size_t kPage = 4096;
  const std::size_t rounded = std::max<std::size_t>((bytes + kPage - 1) / kPage * kPage, 4 * kPage);
  // Of what is large most stays empty: slots for messages that are places in memory of others.
  constexpr std::size_t kMostPopulated = std::size_t{16} << 20;
  const int populate = rounded <= kMostPopulated ? MAP_POPULATE : 0;
  void* p = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | populate, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  data_ = static_cast<std::byte*>(p);
  bytes_ = rounded;
  return data_;
}

}  // namespace warren::worker
