// A device for tests, in a library of its own that workers load like the real one: two GPUs whose memory the program
// holds at addresses that it cannot touch (touching is a crash), whose streams are threads and whose kernels are the
// CPU twins. Copies accept only memory that is the device's, and only memory that is pinned. Its NCCL moves bytes by
// sockets, among processes too, and says nothing of peers that are gone.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/device/device_table.h"

namespace warren::test {

enum class FakeFault : std::uint8_t {
  kError,     // the call fails
  kNoMemory,  // likewise, with that code
  kNone,      // init: there is no GPU
  kHang,      // it does not go on before release()
  kKill,      // the process dies by SIGKILL
  kStop,      // the process stands still for eight seconds
  // Of "stream.nccl_exchange" alone, of all ranks, or "stream.nccl_exchange.2", of rank 2 of its communicator:
  kAbort,   // it is aborted, which nobody here hears of, and peers take it for all that was to come; until it is ended
  kFlip,    // a bit of what it receives is another one
  kNoticed  // of "query.reached", an event that has been: NCCL has noticed an error since then
};

struct FakeControls {
  // The `after`-th call from now on (0: the next one) of a function of the table meets a fault; "stream.to_host",
  // "stream.to_device", "stream.reduce", …: what was queued, when the stream comes to it; "nccl_exchange.1": of rank 1
  // of its communicator. One at a time.
  void (*arm)(const char* where, int after, FakeFault fault);
  // No fault any more; what hangs goes on, and all streams have come to their ends when it returns. Streams that have
  // failed stay so.
  void (*release)();
  // Calls so far of a function of the table, or runs on streams.
  std::uint64_t (*calls)(const char* where);
  // Pieces of memory that processes share and that are mapped here.
  std::size_t (*shared)();
  // Which NCCL it says that it has from now on; 22809 before.
  void (*say_nccl)(int version);
  // The next kernel is launched, or loaded, for the first time, and waits for all that is on streams.
  void (*unload)();
  // Frees memory of a device at once; the table's release() and free_pinned() wait for all that is on streams.
  void (*drop)(int device, void* memory);
  // Copies between any memory of the CPU and the device's, at once.
  void (*write)(void* device_memory, const void* from, std::size_t bytes);
  void (*read)(void* to, const void* device_memory, std::size_t bytes);
};

// Exported by the library: `const FakeControls* fake_device_controls()`.
using FakeControlsFunction = const FakeControls* (*)();
inline constexpr const char* kFakeControls = "fake_device_controls";

}  // namespace warren::test
