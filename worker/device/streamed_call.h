// A call whose buffers on a GPU move while its round runs (worker/rounds/buffer_moves.h): both directions have a stream
// of their own, and so have the block that peers read and what comes from theirs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "recovery/base/result.h"
#include "worker/device/device_copies.h"
#include "worker/device/device_shares.h"
#include "worker/device/pinned_arena.h"
#include "worker/rounds/buffer_moves.h"
#include "worker/rounds/call.h"

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

class StreamedCall final : public CallBuffers, public BufferStream {
 public:
  // The largest input piece, and the least. Each costs some 12 µs of this CPU. The first step waits for one of each
  // rank's segment, which ranks of a host may bring by one bus: 2.5 ms where eight bring 2 MiB of each.
  static constexpr std::size_t kPieceBytes = std::size_t{2} << 20;
  static constexpr std::size_t kLeastPieceBytes = std::size_t{256} << 10;
  static constexpr std::int32_t kPiecesOfASegment = 8;
  // What is final is told by the chunk, and leaves in pieces of such a part of the output while more is to come,
  // between kLeastPieceBytes and half of kPieceBytes. By way of the CPU 16 MiB between two ranks took 1.08 times as
  // long in chunks (16 cores, one H200).
  static constexpr std::size_t kPiecesOfTheOutput = 32;
  // Within the GPU, where that takes 2 µs; but no more than may come to the CPU, as pieces do that an interrupt finds
  // before they have begun.
  static constexpr std::size_t kLentPieceBytes = kDeviceChunkBytes;
  static_assert(place_on_gpu(WARREN_F16, kPieceBytes) <= kDeviceChunkBytes);
  // The most that comes from a peer's GPU by one copy: 40 µs from one GPU to another.
  static constexpr std::size_t kMostFromPeerBytes = std::size_t{16} << 20;

  // `after`: recorded where both buffers may be used, or recorded on `stream` when the program's prepare function has
  // returned. `memory`: what the copies lie in. A broadcast's root has one buffer, which is both.
  StreamedCall(DeviceCopies& copies, std::unique_ptr<DeviceCopies::Event> after, void* stream, const Staged& input,
               const Staged& output, std::vector<PinnedArena::Block> memory);
  ~StreamedCall() override;
  StreamedCall(const StreamedCall&) = delete;
  StreamedCall& operator=(const StreamedCall&) = delete;

  // The program's prepare function, if it has one; before begin_filling().
  void prepare_by(PrepareInput prepare, void* context) {
    prepare_ = prepare;
    prepare_context_ = context;
  }
  // Peers may read the input there; before the call is issued.
  void may_lend(DeviceShares& shares) { shares_ = &shares; }
  // As the call's prepare function.
  std::int32_t begin_filling();

  // CallBuffers.
  [[nodiscard]] Status filled() const override { return begun_; }
  [[nodiscard]] bool delivers() const override { return output_.bytes != 0; }
  [[nodiscard]] Status deliver() override;
  [[nodiscard]] BufferStream* stream() override { return this; }

  // BufferStream.
  [[nodiscard]] std::size_t most_bytes(std::int32_t size) const override;
  void order(std::vector<ByteRange> pieces) override { moves_.order(std::move(pieces)); }
  [[nodiscard]] const std::byte* lendable() const override;
  [[nodiscard]] bool lend() override;
  [[nodiscard]] std::shared_ptr<const std::byte> lent() const override { return moves_.lent(); }
  void bring_home() override { moves_.bring_home(); }
  [[nodiscard]] std::size_t arrived() const override { return moves_.arrived(); }
  [[nodiscard]] bool all_arrived() const override { return moves_.all_arrived(); }
  void landed(const ByteRange& bytes) override { moves_.landed(bytes); }
  [[nodiscard]] bool bring(const ByteRange& bytes, const std::shared_ptr<const FinalOnGpu>& from,
                           std::uint64_t number) override;
  [[nodiscard]] std::optional<Brought> take_brought() override { return moves_.take_brought(); }
  void result_is_there() override { moves_.result_is_there(); }
  [[nodiscard]] std::shared_ptr<const void> output_keeper() const override {
    return output_.bytes == 0 ? nullptr : memory_;
  }
  void conclude() override { moves_.conclude(); }
  void give_up() override { moves_.give_up(); }
  [[nodiscard]] bool moves() const override { return moves_.moves(); }
  [[nodiscard]] Result<bool> move() override;

 private:
  [[nodiscard]] Status fill();
  [[nodiscard]] Status bring_all();
  [[nodiscard]] Status bring_back();
  [[nodiscard]] Result<bool> look();
  [[nodiscard]] Status fail(const Status& why);

  DeviceCopies& copies_;
  const std::unique_ptr<DeviceCopies::Event> after_;
  void* const stream_;
  const Staged input_, output_;
  const std::shared_ptr<std::vector<PinnedArena::Block>> memory_;
  PrepareInput prepare_ = nullptr;
  void* prepare_context_ = nullptr;
  Status begun_;
  DeviceShares* shares_ = nullptr;  // null: nobody reads the input on the GPU
  BufferMoves moves_;
  Status failed_;  // of whoever moves

  // Of whoever moves.
  DeviceCopies::Flow in_, out_;
  DeviceCopies::Flow lent_;   // to the block, and from there
  DeviceCopies::Flow peers_;  // from peers' GPUs
};

}  // namespace warren::worker
