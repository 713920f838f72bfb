// Memory of a GPU that the ranks of a host read in each other (docs/decisions/0023-device-loans.md): this life's own,
// in one piece, from which inputs get blocks, and that of others, as far as this GPU can read it.
//
// Its first part is a ring for results: what is made of inputs, and what came from other hosts. A result has the place
// in the ring, counted through all turns, for its number. Others may read it after it was made, for as long as the ring
// has not come there again: nobody waits for them. A page that they have mapped too says which numbers stand, and says
// it before the GPU is given the memory again; who has read looks there afterwards.
//
// Beside it there is a little pinned memory, so that who lends and combines can bring to the CPU what it must, however
// much of the budget for that calls have taken.
//
// Whoever calls with buffers there makes it and maps it, before the call is issued: both may wait for the GPU, which no
// thread that others wait for may do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/segment_memory.h"
#include "worker/device/device_table.h"
#include "worker/device/pinned_arena.h"
#include "worker/transport/host_memory.h"

namespace warren::worker {

// Any thread may call; what it gives ends before it.
class DeviceShares {
 public:
  // `budget_bytes`: of this life's own; 0: none is made, and none of others is mapped. `arena` knows whether the GPU
  // has failed: then nothing is released, or used again.
  DeviceShares(const warren_device_table& table, std::uint64_t budget_bytes, const PinnedArena& arena)
      : table_(table), budget_bytes_(budget_bytes), arena_(arena) {}
  ~DeviceShares();
  DeviceShares(const DeviceShares&) = delete;
  DeviceShares& operator=(const DeviceShares&) = delete;

  // Makes this life's own on `device`, if there is none, and maps what was offered since. Where there is no room for it
  // now, which lives that are over may have until nobody has mapped it, offers wait for the next times, which are few:
  // then there is none for good. No lock is held.
  void prepare(std::int32_t device);
  // Something of others that was mapped is used no more: release_gone() lets go of it, which may wait for the GPU.
  [[nodiscard]] bool has_gone() const { return has_gone_.load(std::memory_order_relaxed); }
  void release_gone();
  // What came of prepare(), to be told to the others.
  struct Made {
    OwnedFd fd;
    std::span<const std::byte> memory;
    std::shared_ptr<MemfdSegment> page;  // MadeThere
  };
  struct Answer {
    Incarnation life;
    std::uint32_t memory = 0;
    std::optional<MappedSegment> mapped;  // at addresses of the GPU
  };
  struct News {
    std::optional<Made> made;
    std::vector<Answer> answers;
    Status trouble;  // why something was not made, or mapped; only the first time
  };
  [[nodiscard]] std::optional<News> take_news();

  // Of a rank of this host. False: nothing of others is mapped here. Else it is answered, at the latest in the next
  // prepare() of the GPU that this life's own is on, once it is known whether there is any.
  [[nodiscard]] bool offer(Incarnation life, std::uint32_t memory, OwnedFd fd, std::uint64_t bytes);
  // Offers of others are over.
  void keep_offers_of(std::span<const Incarnation> lives);

  // On which GPU this life's own is; WARREN_DEVICE_HOST: there is none.
  [[nodiscard]] std::int32_t device() const;
  // Of this life's own; null: there is none on that GPU.
  [[nodiscard]] const std::byte* own_on(std::int32_t device) const;
  // Pinned, kLandingBytes, beside all budgets, for one user; null: there is nothing of this life's own.
  static constexpr std::size_t kLandingBytes = std::size_t{4} << 20;
  [[nodiscard]] std::byte* landing() const;
  // Some of it for an input; null: there is no room.
  [[nodiscard]] std::shared_ptr<std::byte> take(std::uint64_t bytes);
  // The most that can be there at once of results.
  [[nodiscard]] std::uint64_t most_results() const;
  // For a result, which has a part of its own: inputs that fill the rest do not hold that up. `number`:
  // the result's, with which peers find it from when it was made until others have taken its place. Not before the
  // block was given back.
  [[nodiscard]] std::shared_ptr<std::byte> take_result(std::uint64_t bytes, std::uint64_t& number);
  // A result, for who reads it here as peers do.
  [[nodiscard]] std::shared_ptr<const FinalOnGpu> find(const MadeOnGpu& made) const;

 private:
  static constexpr std::size_t kAlignment = MadeThere::kAlignment;
  static constexpr std::size_t kMostOffers = 4096;
  // At this life's own, while there is no room for it.
  static constexpr int kMostTries = 16;
  // A quarter of this life's own, and not more: few results are made at once.
  static constexpr std::uint64_t kMostResultBytes = std::uint64_t{64} << 20;

  struct Offer {
    Incarnation life;
    std::uint32_t memory = 0;
    OwnedFd fd;
    std::uint64_t bytes = 0;
  };
  struct Imported {
    std::byte* at = nullptr;
    std::uint64_t bytes = 0;
  };
  void make(std::int32_t device, News& news);
  void has_none(bool for_now, const Status& why, News& news);
  [[nodiscard]] Answer map(std::int32_t device, const Offer& offer, News& news);
  [[nodiscard]] std::uint64_t results_end() const;
  void give_back(std::byte* block);
  void give_back_result(std::uint64_t number);
  void release(std::int32_t device, const Imported& gone);
  void free(void* pinned);

  const warren_device_table& table_;
  const std::uint64_t budget_bytes_;
  const PinnedArena& arena_;
  std::mutex preparing_;   // one thread at a time makes and maps
  bool troubled_ = false;  // under it
  int tries_ = 0;          // likewise
  std::atomic<bool> has_gone_{false};

  mutable std::mutex mutex_;  // guards what follows
  bool none_ = false;         // this life's own cannot be made
  std::int32_t device_ = WARREN_DEVICE_HOST;
  std::byte* own_ = nullptr;
  std::uint64_t own_bytes_ = 0;
  std::byte* landing_ = nullptr;
  std::map<std::uint64_t, std::uint64_t> taken_;  // of it: bytes, by place
  std::shared_ptr<MemfdSegment> page_;
  MadeThere* says_ = nullptr;          // in it
  std::uint64_t next_result_ = 0;      // number
  std::set<std::uint64_t> in_making_;  // those whose blocks were not given back
  std::vector<Offer> offers_;
  std::vector<Imported> gone_;  // nobody uses it any more
  std::optional<News> news_;
};

}  // namespace warren::worker
