// Memory that the ranks of this host read where it lies (worker/transport/host_memory.h): what the program has
// allocated, what this life shares on a GPU, and what other ranks lend to this one. The control thread passes it on
// between the processes.
//
// Threads: under the session's lock. Functions that take the mutex lock it themselves.
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/segment_memory.h"
#include "worker/rounds/round_board.h"
#include "worker/session/control.h"
#include "worker/session/gpus.h"
#include "worker/session/log.h"
#include "worker/transport/host_memory.h"

namespace warren::worker {

class LentMemory {
 public:
  LentMemory(Gpus& gpus, RoundBoard& board, const Log& log) : gpus_(gpus), board_(board), log_(log) {}
  LentMemory(const LentMemory&) = delete;
  LentMemory& operator=(const LentMemory&) = delete;
  // Passes memory on; outlives all calls. Before the first of them.
  void use(Control& control) { control_ = &control; }

  // Finds memory for links.
  [[nodiscard]] HostMemory& memory() { return memory_; }
  // As Session::allocate() and Session::free().
  [[nodiscard]] Result<void*> allocate(std::uint64_t bytes, std::mutex& mutex);
  [[nodiscard]] Status free(void* memory, std::mutex& mutex);
  // Tells the host's ranks of memory of GPUs that staging a call has made or mapped.
  void tell_of_shares(std::mutex& mutex);

  // A plan has these lives, by rank.
  void install(std::vector<Incarnation> lives);
  // From the control thread: another rank lends this memory, or has taken it back.
  void borrowed(Incarnation life, std::uint32_t memory, MappedSegment segment);
  void returned(Incarnation life, std::uint32_t memory) { memory_.detach(life, memory); }
  // From the control thread: another rank has mapped memory of this life.
  void lent(Incarnation life, std::uint32_t memory);
  // From the control thread, without the lock: another rank offers memory of its GPU.
  void offered(Incarnation life, std::uint32_t memory, OwnedFd fd, std::uint64_t bytes);

 private:
  void show_readers();

  Gpus& gpus_;
  RoundBoard& board_;
  const Log& log_;
  Control* control_ = nullptr;
  HostMemory memory_;
};

}  // namespace warren::worker
