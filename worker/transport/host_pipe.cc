#include "worker/transport/host_pipe.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>

namespace warren::worker {

// What the two ends write lies on cache lines of its own; two lines apart, because lines are fetched in pairs.
struct HostPipe::Ring {
  alignas(128) std::atomic<std::uint64_t> written{0};
  alignas(128) std::atomic<std::uint64_t> taken{0};
  alignas(128) std::atomic<std::uint32_t> reader_waits{0};
  alignas(128) std::atomic<std::uint32_t> writer_waits{0};
};

namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kBytes = kPage + 2 * HostPipe::kRingBytes;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "two processes share them");
static_assert((HostPipe::kRingBytes & (HostPipe::kRingBytes - 1)) == 0, "places follow from counters");

Status unavailable(const char* what) {
  return {Code::kUnavailable, std::string("no shared memory for a link: ") + what + ": " + std::strerror(errno)};
}

// Bytes [at, at + size) of the ring's stream, in at most two pieces.
template <class Copy>
void in_ring(std::uint64_t at, std::size_t size, Copy copy) {
  const std::size_t place = at & (HostPipe::kRingBytes - 1);
  const std::size_t first = std::min(size, HostPipe::kRingBytes - place);
  if (first != 0) copy(place, std::size_t{0}, first);
  if (first < size) copy(std::size_t{0}, first, size - first);
}

}  // namespace

Result<OwnedFd> HostPipe::create() {
  OwnedFd fd(memfd_create("warren-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.open()) return unavailable("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(kBytes)) != 0) return unavailable("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return unavailable("F_ADD_SEALS");
  return fd;
}

Result<std::unique_ptr<HostPipe>> HostPipe::map(int fd, bool first) {
  // Only a memfd has seals.
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat about {};
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd, &about) != 0 ||
      about.st_size != static_cast<off_t>(kBytes)) {
    return Status(Code::kRefused, "this is not the memory of a link");
  }
  void* at = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return unavailable("mmap");
  return std::unique_ptr<HostPipe>(new HostPipe(at, first));
}

HostPipe::HostPipe(void* at, bool first) : at_(at) {
  static_assert(2 * sizeof(Ring) <= kPage);
  // New memory reads as zeros, which is what a ring begins with.
  auto* rings = static_cast<Ring*>(at);
  auto* bytes = static_cast<std::byte*>(at) + kPage;
  const End ends[2] = {{&rings[0], bytes, 0}, {&rings[1], bytes + kRingBytes, 0}};
  out_ = ends[first ? 0 : 1];
  in_ = ends[first ? 1 : 0];
}

HostPipe::~HostPipe() {
  munmap(at_, kBytes);
}

std::optional<std::size_t> HostPipe::write(std::span<const std::byte> a, std::span<const std::byte> b) {
  const std::uint64_t held = out_.count - out_.ring->taken.load(std::memory_order_acquire);
  if (held > kRingBytes) return std::nullopt;
  const std::size_t room = std::min(kPieceBytes, kRingBytes - static_cast<std::size_t>(held));
  std::size_t done = 0;
  for (std::span<const std::byte> part : {a, b}) {
    part = part.first(std::min(part.size(), room - done));
    in_ring(out_.count + done, part.size(), [&](std::size_t place, std::size_t from, std::size_t n) {
      std::memcpy(out_.bytes + place, part.data() + from, n);
    });
    done += part.size();
  }
  if (done != 0) out_.ring->written.store(out_.count += done, std::memory_order_release);
  return done;
}

std::optional<std::size_t> HostPipe::read(std::span<std::byte> a, std::span<std::byte> b) {
  const std::uint64_t held = in_.ring->written.load(std::memory_order_acquire) - in_.count;
  if (held > kRingBytes) return std::nullopt;
  const std::size_t come = std::min(kPieceBytes, static_cast<std::size_t>(held));
  std::size_t done = 0;
  for (std::span<std::byte> part : {a, b}) {
    part = part.first(std::min(part.size(), come - done));
    in_ring(in_.count + done, part.size(), [&](std::size_t place, std::size_t to, std::size_t n) {
      std::memcpy(part.data() + to, in_.bytes + place, n);
    });
    done += part.size();
  }
  if (done != 0) in_.ring->taken.store(in_.count += done, std::memory_order_release);
  return done;
}

bool HostPipe::must_wake_reader() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return out_.ring->reader_waits.load(std::memory_order_relaxed) != 0 && out_.ring->reader_waits.exchange(0) != 0;
}

bool HostPipe::must_wake_writer() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return in_.ring->writer_waits.load(std::memory_order_relaxed) != 0 && in_.ring->writer_waits.exchange(0) != 0;
}

bool HostPipe::wait_to_read() {
  in_.ring->reader_waits.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return in_.ring->written.load(std::memory_order_acquire) == in_.count;
}

bool HostPipe::wait_to_write() {
  out_.ring->writer_waits.store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return out_.count - out_.ring->taken.load(std::memory_order_acquire) >= kRingBytes;
}

}  // namespace warren::worker
