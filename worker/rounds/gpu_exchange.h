// Messages of a round that move from GPU to GPU without a link, in turns that all ranks take in the same order
// (docs/decisions/0024-nccl.md): what carries them, and what ranks tell each other before a round that may be made so.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/wire/frame.h"

namespace warren::worker {

class GpuExchange {
 public:
  // What a rank says to all others, itself included, before it makes a round. A round is exchanged if all are ready.
  struct Word {
    static constexpr std::size_t kIdBytes = 128, kBytes = 1 + kIdBytes;
    using Id = std::array<std::byte, kIdBytes>;
    bool ready = false;       // for this round
    bool takes_part = false;  // it has memory on a GPU and nothing against this generation's communicator
    std::optional<Id> id;     // of rank 0: by which all are to find each other in this generation
    friend bool operator==(const Word&, const Word&) = default;
  };
  [[nodiscard]] static std::array<std::byte, Word::kBytes> encode(const Word& word);
  // kCorrupt: it is none.
  [[nodiscard]] static Result<Word> decode(std::span<const std::byte, Word::kBytes> bytes);

  struct Message {
    std::int32_t peer = 0;
    bool sends = false;
    bool to_cpu = false;      // what is received is wanted there
    std::byte* at = nullptr;  // on this rank's GPU
    std::size_t bytes = 0;
    std::shared_ptr<const void> keeper = nullptr;  // of that
  };
  using Turn = std::vector<Message>;
  struct Done {
    std::uint64_t id = 0;
    Status status;
    std::vector<const std::byte*> on_cpu{};  // by message, where it was wanted; as long as `memory` lives
    std::shared_ptr<const void> memory = nullptr;
    // By message, when the turn had ended: a checksum of what was sent, or of what lies where it was received. 0 where
    // the job does without them.
    std::vector<std::uint64_t> checksums{};
  };

  virtual ~GpuExchange() = default;
  // A generation of so many ranks begins, and ends: what was begun in it is nobody's any more. close() may be called
  // again.
  virtual void open(Generation generation, std::int32_t rank, std::int32_t size) = 0;
  virtual void close() = 0;
  // Rounds of no more bytes than that are not exchanged: they are made before ranks had agreed. The same on all ranks.
  [[nodiscard]] virtual std::uint64_t least_bytes() const = 0;
  // Whether values of this type can be combined by this operation on a GPU, for so many ranks. The same on all ranks.
  [[nodiscard]] virtual bool serves(DataType type, ReduceOp op, std::int32_t size) const = 0;
  // Memory of the GPU for what a round receives, of which no piece is larger than that; null: there is no room.
  [[nodiscard]] virtual std::shared_ptr<std::byte> take_scratch(std::uint64_t bytes, std::uint64_t piece_bytes) = 0;
  // Turns could be taken, as far as this rank knows.
  [[nodiscard]] virtual bool ready() const = 0;
  // `could`: this rank could make the round so. heard(): all words, by rank.
  [[nodiscard]] virtual Word word(bool could) = 0;
  virtual void heard(std::span<const Word> words) = 0;
  // A whole round was made so: all that its ranks told each other, to the end, agrees.
  virtual void proved() = 0;
  // What came was not what was sent: the generation ends, and what has moved it has failed in it.
  virtual void distrust(const std::string& why) = 0;

  // After the turns before. Returns its number, which no other has. That it is done says that nothing here has ended it
  // before all was moved. What was received may be anything all the same: a peer that aborts says that all has come, so
  // that it counts only when the peer, by a link, has said that its turn is done, and the same checksum.
  [[nodiscard]] virtual std::uint64_t begin(Turn turn) = 0;
  // Something was begun that is not done, or has failed, which its owner hears.
  [[nodiscard]] virtual bool busy() const = 0;
  [[nodiscard]] virtual std::optional<Done> take_done() = 0;
};

}  // namespace warren::worker
