// A call whose buffers on a GPU move while its round runs: pieces of the input arrive in pinned memory, one after the
// other, and finals leave for the GPU as they stand in the output. Both directions have a stream of their own.
//
// Where peers read the input on the GPU (lend()), it comes to a block of the memory that this life shares with them,
// and no further, unless the round is interrupted: then what is not final by then comes from the block to pinned
// memory.
//
// What is final on a peer's GPU comes from there (bring()), past pinned memory. Until that has come, and is known to
// have stood meanwhile, nothing else is written over it: whatever comes later by way of pinned memory counts.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "recovery/ranges.h"
#include "recovery/result.h"
#include "worker/call.h"
#include "worker/device/device_copies.h"
#include "worker/device/device_shares.h"
#include "worker/device/pinned_arena.h"

namespace warren::worker {

// A buffer of the program on the GPU, of `device_bytes`, and where the engine finds it, in `bytes` bytes. Without
// bytes: there is none, or it is not on a GPU.
struct Staged {
  std::byte* device = nullptr;
  std::byte* host = nullptr;
  std::size_t device_bytes = 0, bytes = 0;
  warren_type wire = WARREN_F32;  // as what f32 on the GPU lies there, as of DeviceCopies

  // Of what lies there for the engine.
  [[nodiscard]] std::span<std::byte> on_gpu(const ByteRange& piece) const {
    const std::size_t begin = place_on_gpu(wire, piece.at);
    const std::size_t end = std::min(place_on_gpu(wire, piece.at + piece.bytes), device_bytes);
    return {device + begin, end - begin};
  }
};

// In place or not: no byte of the output is final before that of the input has been read, and so has arrived. What
// is on the GPU is overwritten by finals alone.
class StreamedCall final : public CallBuffers, public BufferStream {
 public:
  // The largest input piece. Each costs some microseconds of this CPU, and the first one, and the last final, are what
  // the round waits for.
  static constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
  static_assert(place_on_gpu(WARREN_F16, kPieceBytes) <= kDeviceChunkBytes);

  // `after`: recorded where both buffers may be used, or recorded on `stream` when the program's prepare function has
  // returned. `memory`: what the copies lie in.
  StreamedCall(DeviceCopies& copies, std::unique_ptr<DeviceCopies::Event> after, void* stream, const Staged& input,
               const Staged& output, std::vector<PinnedArena::Block> memory);
  ~StreamedCall() override;
  StreamedCall(const StreamedCall&) = delete;
  StreamedCall& operator=(const StreamedCall&) = delete;

  // The program's prepare function, if it has one; before begin_filling().
  void prepare_by(void (*prepare)(void* context), void* context) {
    prepare_ = prepare;
    prepare_context_ = context;
  }
  // Peers may read the input there; before the call is issued.
  void may_lend(DeviceShares& shares) { shares_ = &shares; }
  // As the call's prepare function.
  void begin_filling();

  // CallBuffers.
  [[nodiscard]] Status filled() const override { return begun_; }
  [[nodiscard]] bool delivers() const override { return output_.bytes != 0; }
  [[nodiscard]] Status deliver() override;
  [[nodiscard]] BufferStream* stream() override { return this; }

  // BufferStream.
  [[nodiscard]] std::size_t most_bytes() const override {
    return std::min(kPieceBytes, bytes_on_cpu(input_.wire, kDeviceChunkBytes));
  }
  void order(std::vector<ByteRange> pieces) override;
  [[nodiscard]] const std::byte* lendable() const override;
  [[nodiscard]] bool lend() override;
  [[nodiscard]] std::shared_ptr<const std::byte> lent() const override;
  void bring_home() override;
  [[nodiscard]] std::size_t arrived() const override { return arrived_.load(std::memory_order_acquire); }
  [[nodiscard]] bool all_arrived() const override;
  void landed(const ByteRange& bytes) override;
  [[nodiscard]] bool bring(const ByteRange& bytes, const std::shared_ptr<const FinalOnGpu>& from,
                           std::uint64_t number) override;
  [[nodiscard]] std::optional<Brought> take_brought() override;
  void conclude() override;
  void give_up() override;
  [[nodiscard]] bool moves() const override;
  [[nodiscard]] Result<bool> move() override;

 private:
  // What is to be copied next of the input; nothing: none, or there is no room.
  struct Next {
    ByteRange bytes;
    std::shared_ptr<std::byte> block;  // null: to pinned memory
    bool home = false;                 // from the block there
  };
  [[nodiscard]] std::optional<Next> next_piece();
  [[nodiscard]] Status fill();
  void drop();
  [[nodiscard]] Status bring_all();
  void conclude_brought();
  [[nodiscard]] Status bring_back();
  [[nodiscard]] Result<bool> look();
  [[nodiscard]] Status fail(const Status& why);

  DeviceCopies& copies_;
  const std::unique_ptr<DeviceCopies::Event> after_;
  void* const stream_;
  const Staged input_, output_;
  std::vector<PinnedArena::Block> memory_;
  void (*prepare_)(void* context) = nullptr;
  void* prepare_context_ = nullptr;
  Status begun_;
  DeviceShares* shares_ = nullptr;       // null: nobody reads the input on the GPU
  std::atomic<std::size_t> arrived_{0};  // pieces

  // Of whoever moves.
  DeviceCopies::Flow in_, out_;
  DeviceCopies::Flow lent_;   // to the block, and from there
  DeviceCopies::Flow peers_;  // from peers' GPUs

  mutable std::mutex mutex_;          // guards what follows, between whoever moves and the engine
  std::vector<ByteRange> pieces_;     // of the input
  std::size_t filling_ = 0;           // so many of them are under way, or there
  bool fills_ = false;                // the others are to follow
  Ranges landed_, waiting_;           // bytes of the output: final; of those, on no way yet
  std::shared_ptr<std::byte> block_;  // where the input comes to; null: to pinned memory
  bool comes_home_ = false;           // from there
  Ranges home_;                       // of the input: what is still to be begun of that
  std::size_t under_way_ = 0;         // copies
  std::size_t lent_under_way_ = 0;    // likewise, those of lent_
  // From a peer's GPU.
  struct Bringing {
    std::uint64_t number = 0;
    ByteRange bytes;
    std::shared_ptr<const FinalOnGpu> from;
  };
  std::deque<Bringing> to_bring_, bringing_;  // to be begun; under way
  std::deque<Brought> brought_;               // not taken yet
  Ranges beside_;                             // of landed_: those that have come so, and are not in pinned memory
  bool ended_ = false;                        // nothing more is to be moved
};

}  // namespace warren::worker
