// Schedules: one rank's list of steps for one collective, as plain data.
//
// A schedule is a pure function of (collective, algorithm, rank, size, counts, chunk size). It knows no transport, no
// type and no clock; worker/rounds/executor.h runs it over any transport. How ranks work together follows from five
// rules:
//
//  1. A step may begin when the steps it depends on have finished.
//  2. Between two ranks messages arrive in the order of their ordinals `message`, which count from 0 for each
//     (sender, receiver) pair of a schedule. Sends to one peer are posted in that order, receives from one peer too: a
//     send that is ready waits for the send to the same peer that has the ordinal before it.
//  3. A receive lands in scratch, never in the user's buffer: bytes reach the output by a kCopy or kReduce step, after
//     the executor has checked their checksum, generation and source. (A transport may have that step read them
//     elsewhere.)
//  4. Input and output may be the same memory (in place; see `Request`). An element of the input is overwritten only by
//     its final value, and only when no step that is not finished can still read it.
//  5. Where the round is logged (Request::replicas > 0), a final value that this rank's host must hold is published by
//     a kPublish step before any step that sends it, and before the schedule ends (docs/invariants.md, "Finals"). See
//     publishes().
//
// The whole result of a round is one sequence of elements, of which a rank's output is a part:
//   allreduce, reduce, broadcast     [0, count)
//   allgather, allgatherv, gather    [0, total)
//   reduce_scatter, scatter          [0, size · count), rank r's output is [r · count, (r + 1) · count)
//   reduce_scatterv                  [0, total), ranks' outputs one after the other
//   all_to_all                       [0, size² · count), rank r's output is [r · size · count, (r + 1) · size · count)
//   all_to_allv                      [0, total of all counts), likewise one after the other
//   barrier                          nothing
// What is published, resumed and replayed is named by positions in it. Where results differ by rank (reduce,
// reduce_scatter, gather, scatter, all_to_all, equal or not) and the round is logged, the schedule also sees to copies
// of each final in min(replicas, domains) − 1 other domains than the owner's (the rank that sends it to its owner
// publishes it, or the owner sends it to ranks that do), and ends with an exchange after which every rank knows that
// all finals are published, or with pieces that say so (Copies::pieces_say_all): so for every collective, once one rank
// has finished, the host copies hold the whole result.
//
// Scratch is small (a few chunks a peer), whatever the size of the buffers; a slot is used again once the steps that
// read it have finished, which the schedule states as dependencies. Partial results never stand in the user's buffers.
// Operands are ordered: `a` holds the contributors that stand first in the bracketing, so that every rank that computes
// an element computes the same bits (I1), NaN payloads included.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "worker/kernels/form.h"

namespace warren::schedule {

using worker::Bracketing;
using worker::Form;

// The values are in Fingerprint::algorithm.
enum class Algorithm : std::uint8_t { kAuto = 0, kStar = 1, kTree = 2, kButterfly = 3, kRing = 4, kDirect = 5 };
[[nodiscard]] std::string_view to_string(Algorithm algorithm);
[[nodiscard]] Result<Algorithm> parse_algorithm(std::string_view name);  // "auto", "star", "tree", …; kInvalidArgument

enum class Space : std::uint8_t { kInput, kOutput, kScratch };

// Where elements lie. `at` is an element index: of the input, of the output, or of scratch, whose elements are as wide
// as an accumulator (a value in scratch takes an accumulator's room). What one step writes lies packed from `at` on:
// who reads a part of it leaves out `skip` elements of its form.
struct Place {
  Space space = Space::kScratch;
  Form form = Form::kValue;
  std::uint64_t at = 0;
  std::uint64_t skip = 0;  // scratch only
  friend bool operator==(const Place&, const Place&) = default;
};

enum class StepKind : std::uint8_t {
  kSend,     // a → peer
  kRecv,     // peer → dst, which is scratch
  kReduce,   // dst = a ⊕ b; dst may be the same place as a or b
  kCombine,  // dst = all operands in their order, bracketed: finished in the output, not in scratch. dst may be one
  kCopy,     // dst = a
  kPublish,  // a, final values, goes to this host's log as elements [result_at, result_at + count) of the whole result
};

struct Step {
  StepKind kind{};
  // kReduce, kCombine, kCopy: this makes a final value out of partial ones: average divides by the number of
  // contributors, an accumulator is rounded to the user's type. dst.form is then kValue. With size 1 a kCopy from the
  // input finishes too.
  bool finish = false;
  // kSend of the input: no final of these elements is made before the receiver has read them. So they stay as they are
  // until then, and the transport may tell where they lie instead of moving them.
  bool lent = false;
  Bracketing bracketing = Bracketing::kChain;  // kCombine
  std::int32_t peer = -1;                      // rank in the group; kSend and kRecv
  std::uint32_t message = 0;                   // kSend and kRecv: see rule 2
  // kSend and kRecv: 0: by the link to the peer. Otherwise it is moved from GPU to GPU, together with all other steps
  // of this turn, when the last of them may begin, and after the turns before it; all ranks take their turns in the
  // same order. What comes so lies on the GPU, and nobody reads it before its word has come.
  std::uint32_t turn = 0;
  // kSend and kRecv by a link, of no elements: the word of the step before it in `steps`, which is one of a turn. It is
  // sent when that has finished, and received when that has: it says that the sender did so, too, and what it sent.
  bool is_word = false;
  // kCombine: of Schedule::operands, two or more: values, but that the first one of a chain may be a partial result.
  std::uint32_t operands = 0, first_operand = 0;
  std::uint64_t count = 0;      // elements; 0 is allowed (a header travels, no payload; a record without bytes)
  std::uint64_t result_at = 0;  // kPublish
  Place a, b, dst;
};

// Steps with their dependencies as compressed rows: step i is followed by successors[first_successor[i] …
// first_successor[i + 1]), and may begin when `pending[i]` steps that name it as successor have finished. Successors
// come later in `steps`. There is at least one step; one of zero elements is only there for its dependencies.
struct Schedule {
  std::vector<Step> steps;
  std::vector<std::uint32_t> pending;
  std::vector<std::uint32_t> first_successor;  // steps.size() + 1 entries
  std::vector<std::uint32_t> successors;
  std::vector<Place> operands;  // of kCombine steps
  std::uint64_t scratch_elements = 0;
  std::int32_t size = 0;            // ranks in the group
  std::vector<std::int32_t> mates;  // the other ranks of this one's host
};

// What ranks of one host share, as far as it decides how bytes move among them. Equal on all ranks of a group.
struct Host {
  bool maps = true;         // they read each other's memory; else they send each other bytes by TCP
  std::uint32_t cores = 0;  // that they may run on; 0: not known
  bool gpus = false;        // all of them may have their buffers on GPUs, and read each other's there
  friend bool operator==(const Host&, const Host&) = default;
};

// What is wanted. Counts are elements; what they and the buffers mean, by collective (K = size):
//   allreduce       input count, output count, in place: the same memory
//   reduce          input count, output count at the root (unused elsewhere), in place at the root: the same memory
//   broadcast       output count at every rank; the root's holds the data (input and output are the same memory)
//   barrier         none
//   allgather       input count, output K·count, in place: input = output + rank·count
//   allgatherv      input counts[rank], output sum(counts), blocks in rank order, in place likewise
//   reduce_scatter  input K·count, output count, in place: output = input + rank·count
//   gather          input count, output K·count at the root, in place at the root: input = output + root·count
//   scatter         input K·count at the root, output count, in place at the root: output = input + root·count
//   all_to_all      input K·count, output K·count, never in place
//   reduce_scatterv input sum(counts), output counts[rank], in place: output = input + the counts of lower ranks
//   all_to_allv     input the sum of what this rank sends to each, output the sum of what it gets, in the order of
//                   ranks both; never in place
struct Request {
  Collective collective{};
  Algorithm algorithm{};  // not kAuto: see costs.h
  std::int32_t rank = 0;
  std::int32_t size = 1;
  std::int32_t root = 0;  // reduce, broadcast, gather, scatter
  std::uint64_t count = 0;
  // allgatherv, reduce_scatterv: size entries. all_to_allv: size², what rank s sends to rank r at s · size + r.
  std::span<const std::uint64_t> counts;
  // What a step carries at most; but for those of a host's GPUs, which may carry several such chunks of a segment.
  std::uint64_t chunk_elements = 1;

  // An allreduce by ring: the rank at each position of it. Empty: in the order of ranks.
  std::span<const std::uint32_t> order;

  // What follows serves the log; all ranks give the same. Cuts belong to the round: count, chunk and algorithm are
  // those of its first attempt. Hosts and domains are where the ranks sit in this attempt.
  std::uint32_t replicas = 0;              // R; 0: nothing is published
  std::span<const std::uint32_t> hosts;    // by group rank: its host, any numbers; empty: each rank a host of its own
  std::span<const std::uint32_t> domains;  // likewise: its failure domain; empty: as hosts
  Host host;                               // those of which several ranks are: what holds on all of them
  std::int32_t owner = 0;                  // where has_owner(): the rank that makes all finals
  // Every host publishes the whole result, whatever its size, and no rank is done before all have it: so that it is
  // known that whatever is lost then, what is left has all of it or nobody has returned it (docs/invariants.md,
  // "Attempts").
  bool settles = false;
  std::uint64_t element_bytes = 1;  // of a value: results up to kWholeBytes are published whole in every host
  std::uint64_t partial_bytes = 1;  // of a partial result
  // Inputs and finals move from GPU to GPU, in turns (docs/decisions/0024-nccl.md); where can_exchange().
  bool exchanges = false;
  // An interrupted round that is finished: elements of the whole result that need not be computed any more, because the
  // log has them. Each rank has taken from it what is in its own output, and logged it, before its schedule runs.
  // `final` is a union of the pieces that the schedules of earlier attempts publish, or write to an output in one step;
  // they are left out by all ranks alike, their inputs are not read. With `resumed`, every rank publishes every final
  // of its result that it does not get from a rank of its own host; an owner's finals in `final` are copied to other
  // domains again.
  bool resumed = false;
  Ranges final;
};

// Results of up to so many bytes that every rank receives are published whole in every host.
inline constexpr std::uint64_t kWholeBytes = std::uint64_t{64} << 10;

// Whether the rank at the end of `path` publishes a final that came to it along these ranks, the owner, who computed
// it, first: it is the first of its host on the path, and fewer than `replicas` domains stand before it (or
// `everywhere`: the result is small, or resumed).
[[nodiscard]] bool publishes(const Request& request, std::span<const std::int32_t> path, bool everywhere);

// Whether one rank makes all finals of such a call, and logs them: any one, as long as all name the same.
[[nodiscard]] bool has_owner(const Request& request);

// Whether a first attempt of this call, an allreduce, may be made so: by Request::exchanges, which is not looked at.
[[nodiscard]] bool can_exchange(const Request& request);

// What of these elements of the whole result is whole pieces, as schedules publish them: what `Request::final` may be.
// A piece that a log's extent had no room for is two records, and who wrote it may have died between them. `request` is
// one that make() takes, its `final` apart.
[[nodiscard]] Ranges whole_pieces(const Request& request, const Ranges& final);

// The schedule of one rank. kInvalidArgument: rank, size, root, counts, order or chunk_elements out of range, or this
// algorithm does not serve this collective (the message names those that do), or `final` was cut differently.
// kExhausted: the buffer is so many chunks that the steps would fill the memory.
[[nodiscard]] Result<Schedule> make(const Request& request);

// The algorithms that serve a collective, best for large buffers first. Empty for kPoint alone, which needs none.
[[nodiscard]] std::span<const Algorithm> algorithms_for(Collective collective);

// What a schedule costs at its rank, as counted from its steps.
struct Cost {
  std::uint64_t sent_elements = 0, received_elements = 0, reduced_elements = 0, copied_elements = 0;
  std::uint64_t published_elements = 0;
  std::uint32_t sends = 0, receives = 0, publishes = 0;
};
[[nodiscard]] Cost cost(const Schedule& schedule);

}  // namespace warren::schedule
