// A GPU as programs use it, for those of Warren's own that make calls on its memory (`warren bench`, `warren chaos`):
// buffers there, and how they are filled and looked at from the CPU. The core knows nothing of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "recovery/base/result.h"
#include "worker/device/device_table.h"

namespace warren::worker {

// One thread at a time.
class ProgramGpu {
 public:
  // Memory of the GPU, and pinned memory of the same size in which the CPU writes what is sent there, and reads what
  // has been fetched.
  struct Buffer {
    std::byte* host = nullptr;
    std::byte* device = nullptr;
    std::size_t bytes = 0;
  };

  // A GPU of the library that workers load: what the setting `device_library` names, or libwarren_cuda.so beside
  // libwarren.so. Processes, `number` from 0 on, take the host's GPUs in turn. `here`: so many of them are all there
  // are, on this host; where that is more than it has GPUs each has an NCCL_HOSTID of its own from here on, if it has
  // none yet, as NCCL refuses two ranks of one host on one GPU. 0: there may be other hosts. Before any other thread.
  // kUnavailable: there is no GPU, or it does not serve.
  static Result<std::unique_ptr<ProgramGpu>> open(std::uint32_t number, std::uint32_t here);
  // Whether there is one, for who starts others that open() it: nothing is made on it. kUnavailable: as open().
  [[nodiscard]] static Status look();
  ~ProgramGpu();
  ProgramGpu(const ProgramGpu&) = delete;
  ProgramGpu& operator=(const ProgramGpu&) = delete;

  // On which send() queues: for warren_use_stream.
  [[nodiscard]] void* stream() const { return stream_; }
  // At least as large; what was given back before, if that fits. kExhausted: there is no room.
  [[nodiscard]] Result<Buffer> take(std::size_t bytes);
  // No call uses it any more, and nothing is queued that does.
  void give_back(Buffer buffer);
  // The first `bytes` of it to the GPU; on the stream, so that the CPU's part is not to be touched before a call that
  // was made afterwards has ended.
  [[nodiscard]] Status send(const Buffer& buffer, std::size_t bytes);
  // From there, and waits until they have come. kTimeout: they do not.
  [[nodiscard]] Status fetch(const Buffer& buffer, std::size_t bytes);
  // Until what was sent is there. kTimeout: it does not come.
  [[nodiscard]] Status wait();

 private:
  // A GPU that does not answer for so long has failed, whatever it is at.
  static constexpr std::int64_t kPatienceMs = 30'000;
  ProgramGpu(const warren_device_table& table, std::int32_t device) : table_(table), device_(device) {}

  const warren_device_table& table_;
  const std::int32_t device_;
  void* stream_ = nullptr;
  void* reached_ = nullptr;  // an event
  std::vector<Buffer> all_;
  std::multimap<std::size_t, Buffer> free_;  // by size
};

}  // namespace warren::worker
