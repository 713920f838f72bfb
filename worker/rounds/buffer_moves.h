// Which bytes of a call's buffers on a GPU are to be copied next, and which have come: for who carries the copies out,
// on a GPU (worker/device/streamed_call.h) or in virtual time. No clock, no copy.
//
// Pieces of the input arrive in memory of the CPU, one after the other, and finals leave for the GPU as they stand in
// the output. Where peers read the input on the GPU (lend()), it comes to a block of the memory that this life shares
// with them, and no further, unless the round is interrupted: then what is not final by then comes from the block to
// memory of the CPU.
//
// What is final on a peer's GPU comes from there (bring()), past memory of the CPU. Until that has come, and is known
// to have stood meanwhile, nothing else is written over it: whatever comes later by way of the CPU counts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "recovery/base/ranges.h"
#include "worker/rounds/call.h"

namespace warren::worker {

// No byte of the output that is one of the input, too, is final before that has been read, and so has arrived (rule 4
// of worker/schedule/schedule.h). What is on the GPU is overwritten by finals alone. Whoever copies may do so while the
// engine calls: the one and the other are one thread at a time.
class BufferMoves {
 public:
  // Where the two lie in memory of the CPU; only the addresses matter. What is final waits until so many bytes of it
  // lie side by side, or all of it stands.
  BufferMoves(std::span<const std::byte> input, std::span<const std::byte> output, std::uint64_t least_final_bytes = 1);

  // What BufferStream says of the functions of these names; lend() is given the block.
  void order(std::vector<ByteRange> pieces);
  void lend(std::shared_ptr<std::byte> block);
  [[nodiscard]] std::shared_ptr<const std::byte> lent() const;
  void bring_home();
  [[nodiscard]] std::size_t arrived() const { return arrived_.load(std::memory_order_acquire); }
  [[nodiscard]] bool all_arrived() const;
  void landed(const ByteRange& bytes);
  [[nodiscard]] bool bring(const ByteRange& bytes, const std::shared_ptr<const FinalOnGpu>& from, std::uint64_t number);
  [[nodiscard]] std::optional<BufferStream::Brought> take_brought();
  void result_is_there();
  void conclude();
  void give_up();
  [[nodiscard]] bool moves() const;

  // Of whoever copies. The input may be read.
  void begin();
  // What is to be copied next, and is under way from then on; nothing: none, for now. `most_bytes`: of what may come in
  // any pieces. `has_room` is asked under this one's lock, once there is something, for which it may take what the copy
  // needs; of the input, whether by the block.
  using HasRoom = std::function<bool()>;
  struct Input {
    ByteRange bytes;
    std::shared_ptr<std::byte> block;  // to there; null: to memory of the CPU
    bool home = false;                 // from the block there
  };
  [[nodiscard]] std::optional<Input> next_input(std::uint64_t most_bytes,
                                                const std::function<bool(bool by_block)>& has_room);
  struct FromPeer {
    std::uint64_t number = 0;
    ByteRange bytes;
    std::shared_ptr<const FinalOnGpu> from;
  };
  // Those that lie side by side, there and in the output, are one copy; of the first of them `number` and `from`.
  [[nodiscard]] std::optional<FromPeer> next_from_peer(std::uint64_t most_bytes, const HasRoom& has_room);
  [[nodiscard]] std::optional<ByteRange> next_final(std::uint64_t most_bytes, const HasRoom& has_room);
  // So many more of each have ended, in their order.
  struct Ended {
    std::size_t inputs = 0, by_block = 0, finals = 0, from_peers = 0;
  };
  void came(const Ended& ended);
  // Nothing is under way any more, nor will be; what has not arrived never does.
  void abandon();

 private:
  void drop();
  [[nodiscard]] Ranges in_the_input(const Ranges& of_output) const;
  [[nodiscard]] const Interval* large_enough(const Ranges& finals) const;

  const std::uint64_t input_bytes_, output_bytes_, least_final_bytes_;
  std::optional<std::int64_t> output_at_;  // in place: where the output begins, from the beginning of the input
  std::atomic<std::size_t> arrived_{0};    // pieces

  mutable std::mutex mutex_;                            // guards what follows
  std::vector<ByteRange> pieces_;                       // of the input
  std::size_t filling_ = 0;                             // so many of them are under way, or there
  bool fills_ = false;                                  // the others are to follow
  Ranges landed_, waiting_;                             // bytes of the output: final; of those, on no way yet
  std::shared_ptr<std::byte> block_;                    // where the input comes to; null: to memory of the CPU
  bool comes_home_ = false;                             // from there
  Ranges home_;                                         // of the input: what is still to be begun of that
  std::size_t under_way_ = 0, by_block_under_way_ = 0;  // copies; of those, to the block and from there
  std::size_t inputs_came_ = 0;                         // copies
  std::deque<FromPeer> to_bring_, bringing_;            // to be begun; under way
  std::deque<std::size_t> brought_by_;                  // how many of bringing_ each copy brings
  std::deque<BufferStream::Brought> brought_;           // not taken yet
  Ranges beside_;       // of landed_: those that have come so, and are not in memory of the CPU
  bool ended_ = false;  // nothing more is to be moved
  bool abandoned_ = false;
};

}  // namespace warren::worker
