// Two streams of bytes between two processes of one host, one each way, through memory that both have mapped: what a
// socket does, without a system call a piece and with one copy less.
//
// Each stream is a ring. Its writer counts the bytes that it has put in, its reader those that it is done with; each
// counter is written by one end alone, and nobody relies on the other end's beyond what memory safety needs. A ring is
// mapped twice in a row, so that any part of it lies in one piece. What has come may be used where it lies: it is held
// until it is released, and what comes after it is taken meanwhile.
//
// Beside the bytes a stream has notes, which are small and come whole, in their order among the bytes. A note lies in
// one of a few slots, and with it its stamp, which its reader knows beforehand: who waits for it looks where it will
// lie, and one that fits into the slot's first cache line costs the move of that line and nothing else. What a reader
// has taken goes back with the notes that it puts itself.
//
// Who has nothing to do says so in the ring before it sleeps on the socket that the pipe belongs to (will_wait_…()),
// and the other end then sends a byte there when that changes (must_wake_…()): both store first and look at the other's
// word after a fence, so one of them sees it. Where the system has it, who is about to sleep fences both ends
// (membarrier), so that who moves bytes need not: a fence there waits for the stores of what it has just copied.
//
// The memory has no name and goes with the processes that have mapped it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "recovery/base/result.h"
#include "storage/segment_memory.h"

namespace warren::worker {

class HostPipe {
 public:
  // Of each ring, at most: a chunk of the default size that is read while the next one is written. With 1 MiB eight
  // ranks on two cores took a fifth more processor time for 1 MiB and above, because rings leave the cache. At least:
  // less than what the system gives a socket.
  static constexpr std::size_t kRingBytes = std::size_t{512} << 10, kLeastRingBytes = std::size_t{64} << 10;
  // Of a note: 48 lie in the slot's first line. Two ranks that answer each other have at most two notes under way.
  static constexpr std::size_t kNoteBytes = 1136, kNotes = 4;

  // Of the memory of a pipe with such rings.
  static std::size_t memory_bytes(std::size_t ring_bytes);
  // The memory of a new pipe; `ring_bytes` is a power of two between these two. kUnavailable: the system gives none.
  static Result<OwnedFd> create(std::size_t ring_bytes = kRingBytes);
  // One end of it, with rings as large as its maker has chosen; the descriptor is not needed afterwards. `first`: the
  // end of the process that has made it. kRefused: not such memory (it could shrink under us). kUnavailable: it cannot
  // be mapped.
  static Result<std::unique_ptr<HostPipe>> map(int fd, bool first);
  ~HostPipe();
  HostPipe(const HostPipe&) = delete;
  HostPipe& operator=(const HostPipe&) = delete;

  [[nodiscard]] std::size_t ring_bytes() const { return ring_bytes_; }

  // Where the next bytes go, as many as there is room for; nullopt: the other end's counter cannot be.
  [[nodiscard]] std::optional<std::span<std::byte>> room();
  // The first `bytes` of room() have been written.
  void put(std::size_t bytes);

  // What has come and was neither taken nor held; nullopt: the other end's counter cannot be.
  [[nodiscard]] std::optional<std::span<const std::byte>> come();
  // The first `bytes` of come() are done with.
  void take(std::size_t bytes);
  // What the other end can put in before anything is taken or released; after come() has looked.
  [[nodiscard]] std::size_t free_bytes() const;
  // Whether come() can get as long as this before anything is released.
  [[nodiscard]] bool can_hold(std::size_t bytes) const;
  // The first `bytes` of come(), at least one, stay as they are until release() with the same place.
  void hold(std::size_t bytes);
  void release(const std::byte* place);
  [[nodiscard]] bool holds() const { return !held_.empty(); }

  // Where the next note goes, kNoteBytes; empty: all slots are full, as far as this end knows.
  [[nodiscard]] std::span<std::byte> note_room();
  // What was written to note_room() goes behind all that was put.
  void put_note();
  // The note that comes next; empty: none, or bytes come before it. come() shows nothing that comes behind it.
  [[nodiscard]] std::span<const std::byte> note() const;
  void take_note();

  // After put() and put_note(), and after take() or release(): the other end sleeps until there is one. It is told
  // once.
  [[nodiscard]] bool must_wake_reader();
  [[nodiscard]] bool must_wake_writer();

  // What this end has told the other one to read in its memory may change from here on: the last thing that it says.
  // Before it changes.
  void take_back();
  // 0 as long as the other end has not; to be read as in View::stands(). Valid as long as this pipe.
  [[nodiscard]] const std::uint64_t* taken_back() const;

  // Before sleeping: says so in the ring, until the other end has told, which it does when there is anything new. Then
  // fence(), once for any number of pipes, and then a look whether come(), or room(), has so many bytes already, or
  // there is a note.
  void will_wait_to_read();
  void will_wait_to_write();
  // False: the system has allowed it before, and does no longer (a filter of system calls that the program has set up
  // since). What the other ends of pipes have stored by then may not be seen, and fence_no_more() tells them.
  [[nodiscard]] static bool fence();
  // From now on the other end fences for itself. Whether it was told before that it need not.
  [[nodiscard]] bool fence_no_more();
  [[nodiscard]] bool can_read(std::size_t bytes) const;
  [[nodiscard]] bool can_write(std::size_t bytes) const;

 private:
  struct Ring;
  struct Note;
  struct End {
    Ring* ring = nullptr;
    std::byte* bytes = nullptr;
    Note* notes = nullptr;
    std::uint64_t count = 0;       // of this end: put, or taken or held
    std::uint64_t note_count = 0;  // likewise
  };
  struct Held {
    const std::byte* place = nullptr;
    std::uint64_t begin = 0;
    bool released = false;
  };
  HostPipe(void* at, std::size_t ring_bytes, bool first);
  void say_who_fences();
  [[nodiscard]] std::byte* address_of(const End& end) const { return end.bytes + (end.count & (ring_bytes_ - 1)); }
  // What is done with: everything up to the first that is held.
  [[nodiscard]] std::uint64_t freed() const { return held_.empty() ? in_.count : held_.front().begin; }

  void* at_;
  const std::size_t ring_bytes_;
  bool fences_ = false;  // as the other end was told
  End out_, in_;
  std::uint64_t notes_taken_ = 0;  // of those that this end has put, as far as it knows
  std::vector<Held> held_;         // in the order of the stream
};

}  // namespace warren::worker
