// One call of a program: what it asks for, checked, and how it ended.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "warren/c_api.h"
#include "worker/kernels/reduce.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class PreparedSchedule;

using PrepareInput = std::int32_t (*)(void* context);

struct CallSpec {
  Collective collective{};
  DataType type = DataType::kU8;
  DataType wire{};  // kF16, kBF16 or kI8: in which f32 is to travel (worker/rounds/narrowing.h); else none
  ReduceOp op = ReduceOp::kNone;
  const void* input = nullptr;
  void* output = nullptr;
  std::uint64_t count = 0;   // as the C interface defines it for the collective
  std::uint64_t values = 0;  // where `count` is of blocks of values: of these, as it was given; else 0
  // allgatherv, reduce_scatterv: by rank; all_to_allv: of what goes to each rank.
  std::span<const std::uint64_t> counts;
  // all_to_allv: of what comes from each rank; and what rank s sends to rank r, at s · size + r, once ranks have told
  // each other.
  std::span<const std::uint64_t> counts_from, all_counts;
  DataType counted{};       // of an allgather: what it gathers are the counts of an all_to_allv of this type; else none
  std::uint64_t parts = 0;  // a hash of the calls that this one stands for (worker/session/fusion.h); 0: of none
  std::uint8_t algorithm = 0;  // schedule::Algorithm; 0: the engine chooses
  std::int32_t root = -1;      // or the peer of a send or recv
  std::int32_t tag = -1;       // kPoint
  bool sends = false;          // kPoint: send, else recv
  std::uint64_t site = 0;
  CustomReduce custom = nullptr;
  void* custom_context = nullptr;
  std::size_t custom_bytes = 0;
  // Fills the input just before it is needed; not called where the result is taken from the log. Anything but 0 says
  // that there is no input: this life is over.
  PrepareInput prepare = nullptr;
  void* prepare_context = nullptr;
  void* stream = nullptr;  // the program's, whose work buffers on a GPU wait for
};

// What the group's ranks know alike and this one knows of itself.
struct GroupShape {
  std::int32_t rank = 0;
  std::int32_t size = 1;
};

// Checks everything that can be checked without the other ranks: root and peer in range, counts whose bytes fit
// (limits::kMaxBufferBytes), buffers that are there, aligned, and overlap only as documented, an operation that the
// type has. kInvalidArgument, naming the argument.
[[nodiscard]] Status validate(const CallSpec& spec, const GroupShape& group);

// Bytes of the buffers that this rank reads and writes in a call whose counts are in range. A broadcast's one buffer is
// an output.
struct BufferBytes {
  std::uint64_t input = 0, output = 0;
};
[[nodiscard]] BufferBytes buffer_bytes(const CallSpec& spec, const GroupShape& group);

// A call with a wire type is made on copies of its buffers in that type: both in one piece of memory, in place as the
// collective has it, with this rank's share where it belongs in the larger one. Where elements are blocks of values,
// each share begins with one, and its last one is filled up.
struct NarrowCopies {
  std::uint64_t bytes = 0;  // of all
  std::uint64_t input_at = 0, input_bytes = 0;
  std::uint64_t output_at = 0, output_bytes = 0;
};
[[nodiscard]] NarrowCopies narrow_copies(const CallSpec& spec, const GroupShape& group);
// The type of such a call.
[[nodiscard]] DataType narrow_type(DataType wire);
// Gives a call with a wire type that type, and its count in elements of it.
void count_narrow(CallSpec& spec);

// all_to_allv, once all counts are known: whether this rank's are those that others count on. kDesync, naming both.
[[nodiscard]] Status check_counts(const CallSpec& spec, const GroupShape& group, std::span<const Rank> members);

// What this rank says it is calling. `algorithm` is schedule::Algorithm.
[[nodiscard]] Fingerprint fingerprint_of(const CallSpec& spec, std::uint8_t algorithm);

// Which part of the round's whole result (worker/schedule/schedule.h) this rank's output is, in elements.
struct ResultShape {
  std::uint64_t total = 0;
  std::uint64_t begin = 0, count = 0;
};
[[nodiscard]] ResultShape result_shape(const CallSpec& spec, const GroupShape& group);

// Bytes of one element of the call's type.
[[nodiscard]] std::size_t element_bytes(const CallSpec& spec);

// The sequence of set-up rounds of this name: a hash.
[[nodiscard]] Sequence setup_sequence(std::string_view name);

// Bytes of a buffer.
struct ByteRange {
  std::uint64_t at = 0, bytes = 0;
};

// Buffers that are filled, and brought back, piece by piece while the round runs. All but move() is called under the
// lock of the engine's owner, also while move() runs.
class BufferStream {
 public:
  virtual ~BufferStream() = default;
  // Of a piece, in a round among so many ranks.
  [[nodiscard]] virtual std::size_t most_bytes(std::int32_t size) const = 0;
  // In which order the input is wanted: all of it. Before spec.prepare, with which the filling begins.
  virtual void order(std::vector<ByteRange> pieces) = 0;
  // An address in the memory of a GPU in which the input could lie, to be lent to peers; null: it cannot.
  [[nodiscard]] virtual const std::byte* lendable() const { return nullptr; }
  // Before order(): the input is to come there, and not to memory of the CPU. False: there is no room.
  [[nodiscard]] virtual bool lend() { return false; }
  // Where it is then; null: in memory of the CPU.
  [[nodiscard]] virtual std::shared_ptr<const std::byte> lent() const { return nullptr; }
  // The generation has ended, and all loans with it, and nobody waits for what was to be brought: what of the input is
  // not final in the output, if that is the same memory, comes to memory of the CPU after all, and none of it has
  // arrived before all of it has.
  virtual void bring_home() {}
  // So many of these pieces are there.
  [[nodiscard]] virtual std::size_t arrived() const = 0;
  [[nodiscard]] virtual bool all_arrived() const = 0;
  // These bytes of the output are final, and may be brought back.
  virtual void landed(const ByteRange& bytes) = 0;
  // These bytes of the output are final on a peer's GPU, and may come from there alone: take_brought() says this number
  // when they have, or it turns out that they did not stand. They are not landed(). False: they cannot come so.
  [[nodiscard]] virtual bool bring(const ByteRange& bytes, const std::shared_ptr<const FinalOnGpu>& from,
                                   std::uint64_t number) {
    (void)bytes, (void)from, (void)number;
    return false;
  }
  struct Brought {
    std::uint64_t number = 0;
    bool stood = false;
  };
  [[nodiscard]] virtual std::optional<Brought> take_brought() { return std::nullopt; }
  // The input was the result, and stands in the program's output already; before conclude().
  virtual void result_is_there() {}
  // What keeps the output in memory of the CPU, from where a GPU may read it; null: it is not brought to one.
  [[nodiscard]] virtual std::shared_ptr<const void> output_keeper() const { return nullptr; }
  // The round is over, and all of the output is final: nothing more is filled, and what was not is brought back.
  virtual void conclude() = 0;
  // Nobody wants the result: nothing more begins to move.
  virtual void give_up() = 0;
  // Something is under way, or move() would begin it.
  [[nodiscard]] virtual bool moves() const = 0;
  // Moves what can be moved without waiting; true if something has come to where it belongs. Outside the lock, in one
  // thread at a time. After a failure nothing moves any more.
  [[nodiscard]] virtual Result<bool> move() = 0;
};

// A call's buffers where the program's are out of the engine's reach: the call's spec names others, which are filled by
// spec.prepare (or were before the call was submitted), and from which the results are brought back. Called outside the
// lock of the engine's owner.
class CallBuffers {
 public:
  virtual ~CallBuffers() = default;
  // How the filling went; of a stream, how it began.
  [[nodiscard]] virtual Status filled() const = 0;
  // Whether there are results to be brought back.
  [[nodiscard]] virtual bool delivers() const = 0;
  // Brings them back, once the round is over and before the call has finished. Not of a stream.
  [[nodiscard]] virtual Status deliver() = 0;
  // Null: the buffers are filled, and brought back, as a whole.
  [[nodiscard]] virtual BufferStream* stream() { return nullptr; }
};

// A call under way. Made by the engine's owner, touched under its lock, except `finished`.
struct Call {
  CallSpec spec;
  std::string setup;  // a set-up round's name; empty: a round of its version
  RoundId round;
  Fingerprint fingerprint;
  Reducer reducer;
  std::shared_ptr<const PreparedSchedule> schedule;  // collectives
  Generation schedule_generation;                    // whose placement it knows
  std::vector<std::uint64_t> counts;                 // what spec.counts and spec.counts_from point to
  std::vector<std::uint64_t> all_counts;             // likewise
  std::unique_ptr<Call> telling;                     // all_to_allv: the round before its own, which gathers all counts
  enum class Prepare : std::uint8_t { kNot, kAsked, kRuns, kDone };
  Prepare prepare = Prepare::kNot;  // how far spec.prepare is
  enum class Moves : std::uint8_t { kNot, kListed, kTaken };
  Moves moves = Moves::kNot;  // what its buffers' stream does (OutstandingCalls::take_moving)
  bool concluded = false;     // the round is over, or will not be: `status` says how; it ends when nothing moves
  std::atomic<bool> finished{false};  // set last; `status` does not change afterwards
  std::atomic<bool> settled{false};   // finished, and no callback is owed or running
  Status status;
  warren_callback callback = nullptr;  // called once, outside the lock
  void* callback_context = nullptr;
  std::unique_ptr<CallBuffers> buffers;      // null: those of the program
  std::shared_ptr<Call> self;                // keeps an asynchronous call alive until it has finished
  std::vector<std::shared_ptr<Call>> parts;  // that it stands for, and that end with it (worker/session/fusion.h)
  bool blocking = false;                     // its caller waits in it
  std::atomic<bool> in_batch{false};         // put together with others, and not yet sent
  bool traced = false;                       // Trace::issued() was called
  // Set with `finished`, where the job goes on without lost ranks: whose inputs are in the result, rising. Null: all
  // ranks'.
  std::shared_ptr<const std::vector<Rank>> contributors;
};

// Its round, or its set-up round's name, as errors say it.
[[nodiscard]] std::string name_of(const Call& call);
// null: its buffers do not move while its round runs.
[[nodiscard]] inline BufferStream* stream_of(const Call& call) {
  return call.buffers == nullptr ? nullptr : call.buffers->stream();
}

}  // namespace warren::worker
