// Places of payloads that are read without a copy of one's own: in a pipe, in the sender's log, in memory that the
// sender lends, or on the sender's GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace warren::worker {

// A final that was made on a life's GPU, in memory there that peers may have mapped. It has a number among all such
// finals, and stands until the memory is used again, which its owner says before (worker/device/device_shares.h).
struct MadeOnGpu {
  const std::byte* at = nullptr;  // null: it was not made there
  std::uint64_t number = 0;
};

// Such a final of a peer, as far as this life can read it.
struct FinalOnGpu {
  const std::byte* at = nullptr;  // at addresses of the GPU
  std::uint64_t number = 0;
  const std::uint64_t* first = nullptr;                          // the first number that stands, as its owner says
  std::shared_ptr<const void> memory = nullptr, says = nullptr;  // keep both mapped
  // After reading: what was read counts.
  [[nodiscard]] bool stands() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return std::atomic_ref(*const_cast<std::uint64_t*>(first)).load(std::memory_order_relaxed) <= number;
  }
};

// A received payload that is to be read in place: in the link's memory, in the sender's log, or in memory that the
// sender lends.
struct View {
  // In the link's memory, until release(). Looked up at each read: the transport moves the bytes to the buffer that was
  // posted when others need the room.
  const std::byte* const* held = nullptr;
  const std::byte* there = nullptr;      // in memory of the sender
  const std::uint64_t* stamp = nullptr;  // of that
  std::uint64_t expected = 0;
  std::shared_ptr<const void> lent = nullptr;  // keeps it mapped, where it is lent
  bool on_gpu = false;                         // and only a GPU can read it
  // Of what is in the sender's log: where it lies on its GPU, too. Null: nowhere.
  std::shared_ptr<const FinalOnGpu> beside = nullptr;
  // False: the bytes are in the buffer that was posted.
  [[nodiscard]] bool in_place() const { return held != nullptr || there != nullptr; }
  [[nodiscard]] const std::byte* bytes() const { return held != nullptr ? *held : there; }
  // After reading from the sender's memory: what was read counts.
  [[nodiscard]] bool stands() const {
    if (stamp == nullptr) return true;
    std::atomic_thread_fence(std::memory_order_acquire);
    // C++20 has no atomic_ref of const; the memory is mapped read-only.
    return std::atomic_ref(*const_cast<std::uint64_t*>(stamp)).load(std::memory_order_relaxed) == expected;
  }
};

}  // namespace warren::worker
