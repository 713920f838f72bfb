#include "worker/transport/host_pipe.h"

#include <fcntl.h>
#include <linux/membarrier.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "recovery/base/check.h"

namespace warren::worker {

// What the two ends write lies on cache lines of its own; two lines apart, because lines are fetched in pairs.
struct HostPipe::Ring {
  alignas(128) std::atomic<std::uint64_t> written{0};
  alignas(128) std::atomic<std::uint64_t> taken{0};
  alignas(128) std::atomic<std::uint32_t> reader_waits{0};
  std::atomic<std::uint32_t> reader_fences{0};  // for both ends, when it waits
  alignas(128) std::atomic<std::uint32_t> writer_waits{0};
  std::atomic<std::uint32_t> writer_fences{0};
  alignas(128) std::uint64_t taken_back = 0;  // atomic_ref
  alignas(128) std::atomic<std::uint64_t> notes_taken{0};
};

// Stamps of a slot only grow: none is taken for one that comes later.
struct HostPipe::Note {
  alignas(128) std::atomic<std::uint64_t> stamp{0};  // bytes put before it, and notes up to it
  std::uint64_t taken = 0;                           // notes of the other direction
  std::byte bytes[kNoteBytes] = {};
};

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "two processes share them");

// Rings are mapped in whole pages, which have 64 KiB on some systems.
std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}
// What lies before the rings: what both ends count, and the notes.
constexpr std::size_t kNotesAt = 2048, kHeadBytes = 12288;
std::size_t head_bytes() {
  return (kHeadBytes + page_bytes() - 1) / page_bytes() * page_bytes();
}
std::size_t mapped_bytes(std::size_t ring_bytes) {
  return head_bytes() + 4 * ring_bytes;
}
// Places follow from counters.
bool is_ring(std::size_t bytes) {
  return std::has_single_bit(bytes) && bytes >= HostPipe::kLeastRingBytes && bytes <= HostPipe::kRingBytes &&
         bytes % page_bytes() == 0;
}

// Whether other processes that have said the same can fence this one, and, until the system refuses it, it them.
bool is_fenced_by_all() {
  static const bool can = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
  return can;
}
std::atomic<bool> fencing_refused{false};

// After a store of this end, and before it looks whether the other end waits.
void fence_before_look(const std::atomic<std::uint32_t>& other_fences) {
  if (is_fenced_by_all() && other_fences.load(std::memory_order_relaxed) != 0) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
}

Status unavailable(const char* what) {
  return {Code::kUnavailable, std::string("no shared memory for a link: ") + what + ": " + std::strerror(errno)};
}

}  // namespace

std::size_t HostPipe::memory_bytes(std::size_t ring_bytes) {
  return head_bytes() + 2 * ring_bytes;
}

Result<OwnedFd> HostPipe::create(std::size_t ring_bytes) {
  ring_bytes = std::max(ring_bytes, page_bytes());
  WARREN_CHECK(is_ring(ring_bytes), "rings have a size that the other end takes");
  OwnedFd fd(memfd_create("warren-link", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.open()) return unavailable("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(memory_bytes(ring_bytes))) != 0) return unavailable("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return unavailable("F_ADD_SEALS");
  return fd;
}

Result<std::unique_ptr<HostPipe>> HostPipe::map(int fd, bool first) {
  // Only a memfd has seals.
  const int seals = fcntl(fd, F_GET_SEALS);
  struct stat about {};
  if (seals < 0 || (seals & kSeals) != kSeals || fstat(fd, &about) != 0 ||
      about.st_size < static_cast<off_t>(head_bytes())) {
    return Status(Code::kRefused, "this is not the memory of a link");
  }
  const std::size_t head = head_bytes(), ring_bytes = (static_cast<std::size_t>(about.st_size) - head) / 2;
  if (!is_ring(ring_bytes) || about.st_size != static_cast<off_t>(memory_bytes(ring_bytes))) {
    return Status(Code::kRefused, "memory of " + std::to_string(about.st_size) + " bytes is not that of a link");
  }
  void* at = mmap(nullptr, mapped_bytes(ring_bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return unavailable("mmap");
  std::unique_ptr<HostPipe> pipe(new HostPipe(at, ring_bytes, first));
  const auto place = [&](std::size_t to, std::size_t from, std::size_t bytes) {
    return mmap(static_cast<std::byte*>(at) + to, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                static_cast<off_t>(from)) != MAP_FAILED;
  };
  bool mapped = place(0, 0, head);
  for (std::size_t ring = 0; ring < 2; ring++) {
    const std::size_t from = head + ring * ring_bytes, to = head + 2 * ring * ring_bytes;
    mapped = mapped && place(to, from, ring_bytes) && place(to + ring_bytes, from, ring_bytes);
  }
  if (!mapped) return unavailable("mmap");
  (void)madvise(at, mapped_bytes(ring_bytes), MADV_DONTDUMP);
  pipe->say_who_fences();
  return pipe;
}

HostPipe::HostPipe(void* at, std::size_t ring_bytes, bool first) : at_(at), ring_bytes_(ring_bytes) {
  static_assert(2 * sizeof(Ring) <= kNotesAt && kNotesAt + 2 * kNotes * sizeof(Note) <= kHeadBytes &&
                kNotesAt % alignof(Note) == 0);
  static_assert(sizeof(Note) == 16 + kNoteBytes);
  // New memory reads as zeros, which is what a ring begins with.
  auto* rings = static_cast<Ring*>(at);
  auto* notes = reinterpret_cast<Note*>(static_cast<std::byte*>(at) + kNotesAt);
  auto* bytes = static_cast<std::byte*>(at) + head_bytes();
  const End ends[2] = {{&rings[0], bytes, notes, 0, 0}, {&rings[1], bytes + 2 * ring_bytes, notes + kNotes, 0, 0}};
  out_ = ends[first ? 0 : 1];
  in_ = ends[first ? 1 : 0];
}

void HostPipe::say_who_fences() {
  fences_ = is_fenced_by_all() && !fencing_refused.load(std::memory_order_relaxed);
  if (!fences_) return;
  in_.ring->reader_fences.store(1, std::memory_order_relaxed);
  out_.ring->writer_fences.store(1, std::memory_order_relaxed);
}

HostPipe::~HostPipe() {
  munmap(at_, mapped_bytes(ring_bytes_));
}

std::optional<std::span<std::byte>> HostPipe::room() {
  const std::uint64_t used = out_.count - out_.ring->taken.load(std::memory_order_acquire);
  if (used > ring_bytes_) return std::nullopt;
  return std::span(address_of(out_), ring_bytes_ - static_cast<std::size_t>(used));
}

void HostPipe::put(std::size_t bytes) {
  out_.ring->written.store(out_.count += bytes, std::memory_order_release);
}

std::optional<std::span<const std::byte>> HostPipe::come() {
  const std::uint64_t written = in_.ring->written.load(std::memory_order_acquire);
  if (written - freed() > ring_bytes_ || written - in_.count > ring_bytes_) return std::nullopt;
  // Who sees bytes sees the notes that were put before them, and takes those first.
  if (written != in_.count && !note().empty()) return std::span<const std::byte>();
  return std::span<const std::byte>(address_of(in_), static_cast<std::size_t>(written - in_.count));
}

void HostPipe::take(std::size_t bytes) {
  in_.count += bytes;
  if (held_.empty()) in_.ring->taken.store(in_.count, std::memory_order_release);
}

std::size_t HostPipe::free_bytes() const {
  const std::uint64_t used = in_.ring->written.load(std::memory_order_relaxed) - freed();
  return used >= ring_bytes_ ? 0 : ring_bytes_ - static_cast<std::size_t>(used);
}

bool HostPipe::can_hold(std::size_t bytes) const {
  return in_.count + bytes - freed() <= ring_bytes_;
}

void HostPipe::hold(std::size_t bytes) {
  held_.push_back({address_of(in_), in_.count, false});
  in_.count += bytes;
}

void HostPipe::release(const std::byte* place) {
  const auto held = std::ranges::find(held_, place, &Held::place);
  WARREN_CHECK(held != held_.end(), "what is released was held");
  held->released = true;
  const auto first = std::ranges::find(held_, false, &Held::released);
  if (first == held_.begin()) return;
  held_.erase(held_.begin(), first);
  in_.ring->taken.store(freed(), std::memory_order_release);
}

std::span<std::byte> HostPipe::note_room() {
  if (out_.note_count - notes_taken_ >= kNotes) {
    // Acquire: the other end has read what is written over.
    notes_taken_ = out_.ring->notes_taken.load(std::memory_order_acquire);
    if (out_.note_count - notes_taken_ >= kNotes) return {};
  }
  return out_.notes[out_.note_count % kNotes].bytes;
}

void HostPipe::put_note() {
  Note& note = out_.notes[out_.note_count++ % kNotes];
  note.taken = in_.note_count;
  // Release: who sees the stamp sees the note, and the bytes before it; and this end no longer reads the notes that it
  // says it has taken.
  note.stamp.store(out_.count + out_.note_count, std::memory_order_release);
}

std::span<const std::byte> HostPipe::note() const {
  const Note& note = in_.notes[in_.note_count % kNotes];
  if (note.stamp.load(std::memory_order_acquire) != in_.count + in_.note_count + 1) return {};
  return note.bytes;
}

void HostPipe::take_note() {
  // Newer than what the counter has said, if the other end answers. Whatever it says leads nowhere but to these slots.
  notes_taken_ = in_.notes[in_.note_count % kNotes].taken;
  in_.ring->notes_taken.store(++in_.note_count, std::memory_order_release);
}

bool HostPipe::must_wake_reader() {
  fence_before_look(out_.ring->reader_fences);
  return out_.ring->reader_waits.load(std::memory_order_relaxed) != 0 && out_.ring->reader_waits.exchange(0) != 0;
}

bool HostPipe::must_wake_writer() {
  fence_before_look(in_.ring->writer_fences);
  return in_.ring->writer_waits.load(std::memory_order_relaxed) != 0 && in_.ring->writer_waits.exchange(0) != 0;
}

void HostPipe::take_back() {
  std::atomic_ref(out_.ring->taken_back).store(1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

const std::uint64_t* HostPipe::taken_back() const {
  return &in_.ring->taken_back;
}

void HostPipe::will_wait_to_read() {
  in_.ring->reader_waits.store(1, std::memory_order_relaxed);
}

void HostPipe::will_wait_to_write() {
  out_.ring->writer_waits.store(1, std::memory_order_relaxed);
}

bool HostPipe::fence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!is_fenced_by_all()) return true;
  if (!fencing_refused.load(std::memory_order_relaxed) &&
      syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0) {
    return true;
  }
  fencing_refused.store(true, std::memory_order_relaxed);
  return false;
}

bool HostPipe::fence_no_more() {
  if (!std::exchange(fences_, false)) return false;
  in_.ring->reader_fences.store(0, std::memory_order_relaxed);
  out_.ring->writer_fences.store(0, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return true;
}

bool HostPipe::can_read(std::size_t bytes) const {
  return in_.ring->written.load(std::memory_order_acquire) - in_.count >= bytes || !note().empty();
}

bool HostPipe::can_write(std::size_t bytes) const {
  return out_.count + bytes - out_.ring->taken.load(std::memory_order_acquire) <= ring_bytes_;
}

}  // namespace warren::worker
