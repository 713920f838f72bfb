// Copies between pinned memory and one GPU, in chunks, each with an event behind it: on streams of their own, which
// wait for the caller's stream by events and for nothing else.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "recovery/base/result.h"
#include "worker/device/device_memory.h"
#include "worker/device/device_table.h"

namespace warren::worker {

inline constexpr std::size_t kDeviceChunkBytes = std::size_t{4} << 20;

// What an I8 block is made of.
inline constexpr std::size_t kWideBlockBytes = WARREN_DEVICE_I8_VALUES * sizeof(float);
// In which type f32 on a GPU lies in memory of the CPU, WARREN_F16, WARREN_BF16 or WARREN_I8, which stands for blocks:
// it is converted on the GPU, on its way. WARREN_F32: whatever it is, it is copied as it is. Bytes on the CPU of so
// many on the GPU; the last block is filled up.
[[nodiscard]] constexpr std::size_t bytes_on_cpu(warren_type wire, std::size_t bytes) {
  if (wire == WARREN_F32) return bytes;
  if (wire == WARREN_I8) return (bytes + kWideBlockBytes - 1) / kWideBlockBytes * sizeof(warren_device_i8_block);
  return bytes / 2;
}
// Where on the GPU lies what begins at `at` on the CPU; blocks are whole before it.
[[nodiscard]] constexpr std::size_t place_on_gpu(warren_type wire, std::size_t at) {
  if (wire == WARREN_F32) return at;
  if (wire == WARREN_I8) return at / sizeof(warren_device_i8_block) * kWideBlockBytes;
  return 2 * at;
}

// Any thread may call. Events and flows end before what made them.
class DeviceCopies {
 public:
  // Flows that convert at once. A call's copies in and out are two, and the calls whose copies are under way few.
  static constexpr std::size_t kScratches = 8;
  // Of a GPU's memory: each of them converts a chunk at a time.
  static constexpr std::size_t kNarrowChunkBytes = bytes_on_cpu(WARREN_F16, kDeviceChunkBytes);
  static_assert(bytes_on_cpu(WARREN_I8, kDeviceChunkBytes) <= kNarrowChunkBytes);
  static constexpr std::size_t kScratchBytes = kScratches * kNarrowChunkBytes;

 private:
  // A stream and the events behind its newest chunks.
  struct Lane {
    static constexpr std::size_t kChunks = 32;
    void* stream = nullptr;
    void* reached[kChunks] = {};
  };

 public:
  // How many copies of a flow are in flight. By the bus few keep it busy, and what waits meanwhile may leave as one.
  static constexpr std::size_t kWindow = 4;
  // What multiprocessors do, who also copy within a GPU, they do for one process at a time: where several share a GPU,
  // each turn costs some 140 µs (H200), and whatever is queued by then is done in it.
  static constexpr std::size_t kWindowOnGpu = Lane::kChunks;

  // Marks a place on the caller's stream.
  class Event {
   public:
    Event(DeviceCopies& copies, void* event) : copies_(copies), event_(event) {}
    ~Event() { copies_.keep(event_); }
    Event(const Event&) = delete;
    Event& operator=(const Event&) = delete;
    [[nodiscard]] void* get() const { return event_; }

   private:
    DeviceCopies& copies_;
    void* const event_;
  };

  // Copies in one direction that are carried out in their order, when `after` has been reached: until then they wait
  // for as long as the program's work takes. After a failure, and if it ends with copies under way, the memory may
  // still be read or written by the GPU. One thread at a time; nothing here waits.
  //
  // What is converted goes by way of memory of the GPU of which there is little, for all flows together. A flow has
  // some while it has copies under way, and begins none before `after` has been reached: so none waits for a program's
  // work with memory that others wait for.
  class Flow {
   public:
    // `wire` other than WARREN_F32: where converts() has said true.
    Flow(DeviceCopies& copies, const Event& after, warren_type wire = WARREN_F32, std::size_t window = kWindow)
        : copies_(copies), after_(&after), wire_(wire), window_(window) {}
    // After nothing.
    explicit Flow(DeviceCopies& copies, std::size_t window = kWindow)
        : copies_(copies), after_(nullptr), wire_(WARREN_F32), window_(window), began_(true) {}
    ~Flow();
    Flow(const Flow&) = delete;
    Flow& operator=(const Flow&) = delete;

    // One more can be under way, and is to be: this takes what it needs.
    [[nodiscard]] bool has_room();
    [[nodiscard]] std::size_t under_way() const { return queued_ - arrived_; }
    [[nodiscard]] std::size_t arrived() const { return arrived_; }
    // `after` has been reached, as far as look() has seen.
    [[nodiscard]] bool began() const { return began_; }
    // has_room(); up to kDeviceChunkBytes of the GPU's memory. kUnavailable: the GPU reports an error.
    [[nodiscard]] Status to_host(std::byte* to, const void* from, std::size_t bytes);
    [[nodiscard]] Status to_device(void* to, const std::byte* from, std::size_t bytes);
    // On the GPU; of any size. `wire`: as which `from`, if that is f32, is to lie there.
    [[nodiscard]] Status within(void* to, const void* from, std::size_t bytes, warren_type wire = WARREN_F32);
    // The other way round: `bytes` are those of `to`.
    [[nodiscard]] Status widened(void* to, const void* from, std::size_t bytes, warren_type wire);
    // By way of `on_gpu`, which is as large as what is made: what these operands give, and of that the first `bytes`.
    // It is made on a stream of its own, so that nothing waits there for the bus.
    // `upload`: to where the first of them is then brought before, from pinned memory, which may be `to`.
    struct Reduction {
      std::vector<const void*> operands;
      std::size_t count = 0, bytes = 0;
      warren_device_reduction how{};
      struct Upload {
        void* to = nullptr;
        const std::byte* from = nullptr;
        std::size_t bytes = 0;
      } upload{};
    };
    [[nodiscard]] Status reduced(std::byte* to, void* on_gpu, const Reduction& reduction);
    // Likewise by way of `on_gpu`: all `of_all` bytes come there, and the first `bytes` go on.
    [[nodiscard]] Status copied(std::byte* to, void* on_gpu, const void* from, std::size_t of_all, std::size_t bytes);
    [[nodiscard]] Status unpack(const void* packed, std::span<const warren_device_piece> pieces);
    // True: some have arrived since the last look. kUnavailable. kTimeout: for stall_ms none has.
    [[nodiscard]] Result<bool> look();
    // Waits until nothing is under way, or something fails.
    void settle();

   private:
    template <class Copy>
    [[nodiscard]] Status queue(Copy copy);
    template <class Make>
    [[nodiscard]] Status made(std::byte* to, const void* on_gpu, std::size_t bytes, Make make);
    [[nodiscard]] Status take(std::optional<Lane>& lane);

    DeviceCopies& copies_;
    const Event* const after_;  // null: began_
    const warren_type wire_;
    const std::size_t window_;
    std::byte* scratch_ = nullptr;  // of the GPU, for what is converted
    std::optional<Lane> lane_;
    std::optional<Lane> makes_;  // what lane_ copies
    std::size_t queued_ = 0, arrived_ = 0;
    bool began_ = false;
    std::chrono::steady_clock::time_point since_;  // the oldest that is under way has been the next one
  };

  // A stream for what is to run before a copy.
  class Stream {
   public:
    Stream(DeviceCopies& copies, const Lane& lane) : copies_(copies), lane_(lane) {}
    ~Stream() {
      if (!abandoned_) copies_.keep(lane_);
    }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    [[nodiscard]] void* get() const { return lane_.stream; }
    // Something on it has failed, or has not ended: it is not used again.
    void abandon() { abandoned_ = true; }

   private:
    DeviceCopies& copies_;
    const Lane lane_;
    bool abandoned_ = false;
  };

  // `stall_ms`: how long a chunk may take once it may begin. `ends`: set when nobody wants the results any more.
  DeviceCopies(const warren_device_table& table, std::int32_t device, std::int64_t stall_ms,
               const std::atomic<bool>& ends)
      : table_(table), device_(device), stall_ms_(stall_ms), ends_(ends) {}
  ~DeviceCopies();
  DeviceCopies(const DeviceCopies&) = delete;
  DeviceCopies& operator=(const DeviceCopies&) = delete;

  [[nodiscard]] std::int32_t device() const { return device_; }
  // Nobody wants the results any more.
  [[nodiscard]] bool ended() const { return ends_.load(std::memory_order_relaxed); }
  [[nodiscard]] Result<std::unique_ptr<Event>> make_event();
  // The event stands behind what is on the caller's stream now.
  [[nodiscard]] Status record(const Event& event, void* stream);
  // That has come, and everything before it.
  [[nodiscard]] bool reached(const Event& event) const;
  [[nodiscard]] Result<std::unique_ptr<Stream>> make_stream();
  // What is queued on it from now on runs when the event has been reached.
  [[nodiscard]] Status follow(const Stream& stream, const Event& event);
  // Queues it there: pieces of the GPU's memory, one behind the other, to `packed`.
  [[nodiscard]] Status pack(const Stream& stream, void* packed, std::span<const warren_device_piece> pieces);

  // Whether what is f32 on the GPU can be converted there: asks for memory for that once, and keeps it. False: the GPU
  // has none. kUnavailable: it reports an error.
  [[nodiscard]] Result<bool> converts(DeviceMemory& memory);

  // A flow of chunks, waited for until all is there; `bytes` of the GPU's memory. As of a flow; and kClosed: `ends`.
  [[nodiscard]] Status to_host(std::byte* to, const void* from, std::size_t bytes, const Event& after,
                               warren_type wire = WARREN_F32);
  [[nodiscard]] Status to_device(void* to, const std::byte* from, std::size_t bytes, const Event& after,
                                 warren_type wire = WARREN_F32);
  // On the GPU, likewise, one after the other.
  struct Within {
    void* to = nullptr;
    const void* from = nullptr;
    std::size_t bytes = 0;
  };
  [[nodiscard]] Status within(std::span<const Within> copies, const Event& after);
  // The other way round than pack().
  [[nodiscard]] Status unpack(const void* packed, std::span<const warren_device_piece> pieces, const Event& after);

 private:
  [[nodiscard]] Status error(warren_device_code code, const char* what) const;
  [[nodiscard]] Result<Lane> take_lane();
  [[nodiscard]] Status wait(Flow& flow);
  // So many, each queued on the flow when there is room, until all have arrived.
  template <class Queue>
  [[nodiscard]] Status all(std::size_t count, const Event& after, Queue queue);
  template <class Copy>
  [[nodiscard]] Status copy(std::size_t bytes, const Event& after, warren_type wire, Copy copy_chunk);
  void keep(void* event);
  void keep(const Lane& lane);
  // Null: all of it is in use.
  [[nodiscard]] std::byte* take_scratch();
  void keep_scratch(std::byte* scratch);

  const warren_device_table& table_;
  const std::int32_t device_;
  const std::int64_t stall_ms_;
  const std::atomic<bool>& ends_;
  std::mutex mutex_;
  std::vector<Lane> lanes_;    // idle
  std::vector<void*> events_;  // idle
  std::mutex scratch_mutex_;   // guards what follows
  bool asked_ = false;         // for memory
  DeviceMemory::Block scratch_;
  std::vector<std::byte*> idle_scratch_;
};

}  // namespace warren::worker
