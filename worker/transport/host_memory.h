// Memory that ranks of a host read in each other: what a program has allocated with us (warren_allocate) lies in memory
// files of its process, which the other ranks map read-only (worker/segments/exchange.h passes them on). A large input
// that lies there need not be sent: the peer is told where it is, and reads it while it reduces.
//
// What is told is a loan. The lender leaves the bytes as they are until they have been read, or its generation is over:
// then it says so in the link's memory before it changes anything (HostPipe::take_back), and who has read meanwhile
// throws away what came of it. A lender that was killed changes nothing any more.
//
// Some of it may be a GPU's (worker/device/device_shares.h): it has addresses that only a GPU can follow, and is told
// and found like the rest. What its life has made there, which it uses again when it likes, has numbers instead of
// places: beside the memory there is a page that says which of them stand.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/segment_memory.h"
#include "worker/system/memory.h"
#include "worker/transport/transport.h"

namespace warren::worker {

// Where bytes lie in what their rank lends.
struct MemoryPlace {
  std::uint32_t memory = 0;  // number among those of its life, from 1 on, never used again; 0: no place
  std::uint64_t at = 0;      // from its begin
  bool on_gpu = false;
  [[nodiscard]] bool known() const { return memory != 0; }
};

// In a page of its own: what peers must know of what was made on a life's GPU.
struct MadeThere {
  std::uint64_t first = 0;  // the first number that stands; atomic_ref
  // What is made lies at its number modulo this in the memory, from its begin on, in one piece.
  std::uint64_t bytes = 0;
  // To which that place is aligned.
  static constexpr std::uint64_t kAlignment = 256;
};

class HostMemory {
 public:
  // Of one life.
  static constexpr std::size_t kMost = 256;

  // A new memory file of at least `bytes`, each page of it touched, on huge pages where the system gives them for
  // memory files. No lock needed. `left` is asked again while it is touched. kInvalidArgument: of no byte, or more than
  // limits::kMaxBufferBytes. kUnavailable: the system, or the control group of this process, has not so much.
  using MemoryLeft = std::function<std::optional<std::uint64_t>()>;
  static Result<std::shared_ptr<MemfdSegment>> make(std::uint64_t bytes, const MemoryLeft& left = memory_left);

  // ---- this life's own

  // Its number. kExhausted: there are kMost.
  Result<std::uint32_t> add(std::shared_ptr<MemfdSegment> memory);
  // Likewise of memory of a GPU, once in a life, which has it to its end; the number before that is of the page that
  // says what was made there (MadeThere).
  std::uint32_t add_on_gpu(std::span<const std::byte> memory);
  // How many of the lives of the plan have mapped both.
  [[nodiscard]] std::size_t readers_on_gpu() const;
  // The one that begins at `address`, to be unmapped by the caller, outside the lock. No round reads it. nullopt: none.
  struct Removed {
    std::uint32_t memory = 0;
    std::shared_ptr<MemfdSegment> segment;
  };
  std::optional<Removed> remove(const void* address);
  // That life has mapped it.
  void mapped_by(Incarnation life, std::uint32_t memory);
  // Where `payload` lies, if that rank has it mapped; unknown otherwise.
  [[nodiscard]] MemoryPlace lend(Rank peer, std::span<const std::byte> payload) const;

  // ---- others'

  void attach(Incarnation life, std::uint32_t memory, MappedSegment segment, bool on_gpu = false);
  void detach(Incarnation life, std::uint32_t memory);
  struct Borrowed {
    const std::byte* bytes = nullptr;
    std::shared_ptr<const void> keeper;  // keeps it mapped
    bool on_gpu = false;
  };
  // nullopt: not there. `place` may be anything.
  [[nodiscard]] std::optional<Borrowed> borrow(Rank peer, const MemoryPlace& place, std::size_t bytes) const;

  // What was made on that rank's GPU, under this number. Null: it cannot be found. All of it may be anything.
  [[nodiscard]] std::shared_ptr<const FinalOnGpu> borrow_made(Rank peer, std::uint32_t memory, std::uint64_t number,
                                                              std::size_t bytes) const;

  // The lives of a plan, by rank. Those of others are over: their memory is let go of.
  void install(std::vector<Incarnation> lives);

 private:
  struct Own {
    std::uint32_t memory = 0;
    std::shared_ptr<MemfdSegment> segment;
    std::set<Incarnation> mapped_by;
  };
  struct OnGpu {
    std::uint32_t memory = 0;
    std::span<const std::byte> bytes;
    std::set<Incarnation> mapped_by;
    std::set<Incarnation> page_mapped_by;
  };
  struct Other {
    MappedSegment segment;
    bool on_gpu = false;
  };
  [[nodiscard]] Incarnation life_of(Rank rank) const;
  [[nodiscard]] MemoryPlace lend_on_gpu(Rank peer, std::span<const std::byte> payload) const;

  std::uint32_t newest_ = 0;
  std::map<const std::byte*, Own> own_;  // by address
  std::optional<OnGpu> own_on_gpu_;
  std::map<std::pair<Incarnation, std::uint32_t>, Other> others_;
  std::vector<Incarnation> lives_;
};

}  // namespace warren::worker
