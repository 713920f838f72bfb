// The program that the workers of a chaos run execute, as data: which collectives each iteration makes, of which sizes,
// and what each rank puts into them. A pure function of a seed; workers run it through Warren, the oracle with plain
// loops.
//
//   preamble:  split into two groups, an allreduce
//   set-up:    after load, in each life: rounds that give what they have given in the first
//   iteration: [the decision whether to go on], calls, and a checkpoint after every few
//
// Inputs depend on the state, and the state on every result so far: a wrong bit shows in all that comes after it. In
// mode shrink there are neither groups nor set-up rounds, calls are allreduces and barriers, and the state is the same
// on all ranks; it depends on whose inputs are in each result, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace warren::chaos::process {

enum class CallKind : std::uint8_t {
  kAllreduce,
  kBroadcast,
  kAllgather,
  kReduceScatter,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kReduceScatterv,
  kAllToAllv,
  kBarrier,
  kExchange,  // each rank sends to the next one and receives from the one before
};
enum class ElementType : std::uint8_t { kU8, kI32, kI64, kU64, kF32, kF64 };
enum class CallOp : std::uint8_t { kSum, kMax, kAverage };  // averages are of floats
enum class CallWire : std::uint8_t { kNone, kBF16, kI8 };   // in what f32 travels; no maxima as i8

struct Call {
  CallKind kind = CallKind::kAllreduce;
  ElementType type = ElementType::kF32;
  CallOp op = CallOp::kSum;
  bool in_place = false;
  bool in_flight = false;     // issued without waiting; the calls in flight are awaited before the next that is not
  bool on_group = false;      // on the group of the rank's color
  bool on_own_group = false;  // likewise, split for this call and destroyed after it
  bool prepares = false;      // an allreduce in place whose input is made by a prepare function
  CallWire wire = CallWire::kNone;
  bool allocated = false;  // ranks draw whether each buffer lies in memory of warren::allocate
  bool decision = false;   // of one number that is no function of the seed: whether to stop; root says so, or the
                           // greatest of an allreduce
  std::uint32_t root = 0;
  std::size_t count = 0;  // elements, as in the interface: of a share, where there are shares
};

// The elements that rank `from` sends to rank `to` in an all_to_allv. Of a reduce_scatterv: those of `to`'s share, for
// `from` 0.
[[nodiscard]] constexpr std::size_t uneven_count(const Call& call, std::size_t from, std::size_t to) {
  return call.count * ((from + 2 * to) % 3);
}
// All of it: by rank.
[[nodiscard]] std::vector<std::size_t> counts_to(const Call& call, std::size_t size, std::size_t from);
[[nodiscard]] std::vector<std::size_t> counts_from(const Call& call, std::size_t size, std::size_t to);
[[nodiscard]] std::size_t element_bytes(ElementType type);
// Of the larger of a rank's two buffers.
[[nodiscard]] std::size_t call_bytes(const Call& call, std::uint32_t ranks);
inline constexpr std::size_t kBigBytes = std::size_t{1} << 20;

enum class Mix : std::uint8_t {
  kMixed,      // of everything: what `warren chaos` runs
  kBig,        // allreduce of `bytes`
  kInPlace,    // the same, in place
  kAllocated,  // allreduces, each other one in place; ranks draw which of their buffers lie in allocated memory
  kInFlight,   // eight allreduces in flight
  kGroups,     // allreduces of the groups, between those of all
  kOneSided,   // results differ by rank
  kSmall,      // many small rounds
  kNarrow,     // f32 that travels as bf16 or i8: in place and not, in flight, with prepare functions, shares
  kFused,      // bursts of small allreduces in flight that are put together
  kMessages,   // messages, on all ranks and on groups that go with their call
  kLarge,      // allreduces of f32 of `bytes`, in each way in which GPUs reduce them
};
[[nodiscard]] std::optional<Mix> mix_named(std::string_view name);
[[nodiscard]] std::string_view name_of(Mix mix);
// "mixed, big, …": all of them.
[[nodiscard]] std::string mix_names();
// Of calls that mode shrink has.
[[nodiscard]] bool may_shrink(Mix mix);

struct ProgramShape {
  std::uint64_t seed = 1;
  std::uint32_t ranks = 1;
  Mix mix = Mix::kMixed;
  std::size_t bytes = 4 << 20;         // of the biggest call
  std::uint64_t iterations = 0;        // 0: until the decision is to stop
  std::uint64_t checkpoint_every = 3;  // iterations
  std::size_t state_bytes = 64 << 10;  // of the global state that is checkpointed, and of the local one
  std::uint32_t compute_ms = 0;        // before each iteration: the caller waits, as for a device that computes
  std::uint32_t min_workers = 0;       // mode shrink: the job goes on with so many; 0: mode wait
  bool on_gpus = false;                // the buffers of most calls, and the states of each other checkpoint
  [[nodiscard]] bool shrinks() const { return min_workers != 0; }
};

// A bit for each rank whose input is in a result.
using Contributors = std::uint64_t;

// What a rank knows. `shared` is equal on all ranks.
struct ProgramState {
  std::uint64_t shared = 0, own = 0;
};

inline constexpr std::uint32_t kPreambleCall = 4095;
inline constexpr std::uint32_t kFirstSetupCall = 4000;

class Program {
 public:
  explicit Program(const ProgramShape& shape) : shape_(shape) {}

  [[nodiscard]] const ProgramShape& shape() const { return shape_; }
  [[nodiscard]] ProgramState initial(std::uint32_t rank) const;
  [[nodiscard]] Call preamble() const;
  // Set-up rounds, of the world; their inputs are made of the initial state.
  [[nodiscard]] std::vector<Call> setups() const;
  [[nodiscard]] std::vector<Call> iteration(std::uint64_t index) const;
  [[nodiscard]] bool checkpoint_after(std::uint64_t index) const { return (index + 1) % shape_.checkpoint_every == 0; }
  // The iteration that a life begins with that has loaded this version.
  [[nodiscard]] std::uint64_t first_iteration(std::uint64_t version) const { return version * shape_.checkpoint_every; }

  // Which of a rank's two buffers lie on its GPU: of most calls both, on all ranks; of some each rank draws for each.
  struct Places {
    bool in = false, out = false;
  };
  [[nodiscard]] Places places(std::uint64_t iteration, std::uint32_t call, std::uint32_t rank) const;

  // Groups: ranks with rank % 2 equal, ordered by rank.
  [[nodiscard]] std::uint32_t color(std::uint32_t rank) const { return rank % 2; }
  [[nodiscard]] std::vector<std::uint32_t> members(std::uint32_t color) const;

  // The input of `rank` to a call: element j is input_at<T>(call, base, j).
  [[nodiscard]] std::uint64_t input_base(std::uint64_t iteration, std::uint32_t call, std::uint32_t rank,
                                         const ProgramState& state) const;
  // After a call, with the digest of the rank's output; `contributors`: in mode shrink.
  void fold(const Call& call, std::uint64_t digest, Contributors contributors, ProgramState& state) const;

  // What checkpoint() is given, and what load gives back.
  [[nodiscard]] std::vector<std::byte> global_state(std::uint64_t version, const ProgramState& state) const;
  [[nodiscard]] std::vector<std::byte> local_state(std::uint64_t version, std::uint32_t rank,
                                                   const ProgramState& state) const;
  // Of what load returned; false: too short for a state. In mode shrink there is no local state.
  [[nodiscard]] bool restore(std::span<const std::byte> global, std::span<const std::byte> local,
                             ProgramState& state) const;

 private:
  ProgramShape shape_;
};

[[nodiscard]] std::uint64_t mixed(std::uint64_t x);
[[nodiscard]] std::uint64_t digest_of(std::span<const std::byte> bytes);

// Floats are whole numbers below 2^20, so sums over up to 16 ranks are exact in any order.
template <class T>
[[nodiscard]] T element_at(std::uint64_t base, std::size_t j) {
  std::uint64_t x = (base + j) * 0x9e3779b97f4a7c15u;
  x ^= x >> 29;
  if constexpr (std::is_floating_point_v<T>) return static_cast<T>(static_cast<std::int32_t>(x & 0xfffffu));
  return static_cast<T>(x);
}

// As i8 each 256 values of a share have a scale of 1, told by the first one: so inputs are not rounded, and sums are
// exact in any order here too.
inline constexpr std::size_t kBlockValues = 256;
template <class T>
[[nodiscard]] T input_at(const Call& call, std::uint64_t base, std::size_t j) {
  const T value = element_at<T>(base, j);
  if constexpr (std::is_same_v<T, float>) {
    if (call.wire == CallWire::kI8) {
      const bool first = j % call.count % kBlockValues == 0;
      return static_cast<float>(first ? 127 : static_cast<std::int32_t>(value) & 127);
    }
  }
  return value;
}

}  // namespace warren::chaos::process
