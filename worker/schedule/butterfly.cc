// The butterfly: partners at distance 1, 2, 4, … exchange what they have.
//
// With P the largest power of two up to K, the first 2·(K − P) ranks are folded in pairs: the odd one gives its input
// to the even one before, and gets the result after. What remains are P positions in the order of ranks, combined as a
// balanced binary tree over positions, whichever of the two forms runs:
//   doubling, for little data: partners exchange everything they have, log2 P times;
//   halving, for more: at each level partners split the range they share, each takes the other's half of it and keeps
//   on with that; then the final parts are joined in the reverse order.
// Halving runs in blocks of two chunks, so that its scratch is a few chunks a level whatever the size of the buffer.
// The next block's way in is written before a block's way out, so that links are busy while a block is between the two.
#include <bit>

#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

// Up to this part of a chunk, another log2 P latencies cost more than sending everything at each level does.
constexpr std::uint64_t kDoublingPartOfChunk = 16;
// Blocks whose way in is written before a block's way out. The third block's scratch lets a receive be posted while the
// slot before it is still read.
constexpr std::uint64_t kBlocksAhead = 1;
constexpr std::size_t kBlocksInFlight = kBlocksAhead + 2;

class Butterfly {
 public:
  Butterfly(const Request& request, Builder& builder)
      : request_(request),
        builder_(builder),
        rank_(request.rank),
        positions_(static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(request.size)))),
        pairs_(request.size - positions_),
        levels_(static_cast<std::size_t>(std::countr_zero(static_cast<std::uint32_t>(positions_)))),
        folded_(rank_ < 2 * pairs_),
        away_(folded_ && rank_ % 2 == 1),
        position_(folded_ ? rank_ / 2 : rank_ - pairs_) {}

  void run() {
    const bool little = request_.count <= request_.chunk_elements / kDoublingPartOfChunk;
    // Halves of next to nothing would be empty.
    const bool few =
        request_.count < static_cast<std::uint64_t>(positions_) && request_.count <= request_.chunk_elements;
    if (little || few) {
      doubling();
    } else {
      halving();
    }
  }

 private:
  struct Halves {
    Range keep, give;
  };

  // One block on its way through the levels.
  struct Block {
    std::vector<Slot> received;    // by level; on the way out the other half's final lands where its inputs did
    std::vector<Slot> keep, give;  // by level: the sums that the next level keeps and gives away
    Slot folded_in[2], folded[2];  // of the two halves, the one that is given away first
    Slot folded_out[2];
    std::vector<Halves> halves;  // by level
    // By level: who reads the input where the range lies that is given away there. None where this rank's final follows
    // from that step anyway.
    std::vector<StepId> readers;
    StepId folded_reader[2] = {kNoStep, kNoStep};
    StepId final = kNoStep;
  };

  [[nodiscard]] std::int32_t partner(std::size_t level) const { return position_ ^ (1 << level); }
  [[nodiscard]] std::int32_t rank_of(std::int32_t position) const {
    return position < pairs_ ? 2 * position : position + pairs_;
  }
  // In which form the partner at this level sends.
  [[nodiscard]] Form form_from(std::size_t level) const {
    return level == 0 && partner(0) >= pairs_ ? Form::kValue : Form::kPartial;
  }
  [[nodiscard]] bool upper(std::size_t level) const { return (position_ >> level & 1) != 0; }
  [[nodiscard]] Halves split(const Range& range, std::size_t level) const {
    const Range low = cut(range, 2, 0);
    const Range high = cut(range, 2, 1);
    return upper(level) ? Halves{high, low} : Halves{low, high};
  }

  void doubling() {
    const std::uint64_t n = request_.count;
    if (away_) {
      const StepId sent = builder_.send(rank_ - 1, input(0), n);
      Slot slot = builder_.slot(n);
      builder_.recv(rank_ - 1, slot.as(Form::kValue), n);
      builder_.copy(output(0), slot.as(Form::kValue), n, false, {sent});
      return;
    }
    std::vector<Slot> received(levels_ + 1);
    std::vector<Slot> sums(levels_ + 1);
    Operand sum = input(0);
    if (folded_) {
      received[levels_] = builder_.slot(n);
      sums[levels_] = builder_.slot(n);
      builder_.recv(rank_ + 1, received[levels_].as(Form::kValue), n);
      sum = sums[levels_].as(Form::kPartial);
      builder_.reduce(sum, input(0), received[levels_].as(Form::kValue), n);
    }
    StepId input_sent = kNoStep;
    StepId final = kNoStep;
    for (std::size_t level = 0; level < levels_; ++level) {
      const std::int32_t peer = rank_of(partner(level));
      const StepId sent = builder_.send(peer, sum, n);
      if (level == 0 && !folded_) input_sent = sent;
      received[level] = builder_.slot(n);
      const Operand other = received[level].as(form_from(level));
      builder_.recv(peer, other, n);
      const Operand a = upper(level) ? other : sum;
      const Operand b = upper(level) ? sum : other;
      if (level + 1 == levels_) {
        final = builder_.finish(0, a, b, n, {input_sent});
      } else {
        sums[level] = builder_.slot(n);
        const Operand dst = sums[level].as(Form::kPartial);
        builder_.reduce(dst, a, b, n);
        sum = dst;
      }
    }
    if (folded_) builder_.send(rank_ + 1, output(0), n, {final});
  }

  void halving() {
    const std::uint64_t blocks = chunks_of(request_.count, 2 * request_.chunk_elements);
    const Range whole{0, request_.count};
    std::array<Block, kBlocksInFlight> in_flight;
    for (std::uint64_t b = 0; b < std::min<std::uint64_t>(blocks, kBlocksInFlight); ++b) {
      reserve(in_flight[b], cut(whole, blocks, 0).count);
    }
    for (std::uint64_t b = 0; b < blocks + kBlocksAhead; ++b) {
      if (b < blocks) way_in(in_flight[b % kBlocksInFlight], cut(whole, blocks, b));
      if (b >= kBlocksAhead) way_out(in_flight[(b - kBlocksAhead) % kBlocksInFlight]);
    }
  }

  void reserve(Block& block, std::uint64_t elements) {
    std::uint64_t half = elements / 2 + elements % 2;
    if (folded_) {
      for (std::size_t i = 0; i < 2; ++i) {
        if (away_) {
          block.folded_out[i] = builder_.slot(half);
        } else {
          block.folded_in[i] = builder_.slot(half);
          block.folded[i] = builder_.slot(half);
        }
      }
    }
    block.halves.resize(levels_);
    block.readers.assign(levels_, kNoStep);
    block.received.resize(levels_);
    block.keep.resize(levels_);
    block.give.resize(levels_);
    if (away_) return;
    for (std::size_t level = 0; level < levels_; ++level) {
      block.received[level] = builder_.slot(half);
      half = half / 2 + half % 2;
      if (level + 1 == levels_) break;
      block.keep[level] = builder_.slot(half);
      block.give[level] = builder_.slot(half);
    }
  }

  void way_in(Block& block, const Range& range) {
    Halves now = split(range, 0);
    block.halves[0] = now;
    if (away_) {
      block.folded_reader[0] = builder_.send(rank_ - 1, input(now.give.at), now.give.count);
      block.folded_reader[1] = builder_.send(rank_ - 1, input(now.keep.at), now.keep.count);
      return;
    }
    Operand give = input(now.give.at);
    Operand keep = input(now.keep.at);
    if (folded_) {
      block.readers[0] = fold(block, 0, now.give);
      fold(block, 1, now.keep);
      give = block.folded[0].as(Form::kPartial);
      keep = block.folded[1].as(Form::kPartial);
    }
    for (std::size_t level = 0; level < levels_; ++level) {
      const std::int32_t peer = rank_of(partner(level));
      const StepId sent = builder_.send(peer, give, now.give.count);
      if (level == 0 && !folded_) block.readers[0] = sent;
      builder_.recv(peer, block.received[level].as(form_from(level)), now.keep.count);
      if (level + 1 == levels_) {
        block.final = combine(block, level, output(now.keep.at), keep, now.keep, now.keep, true);
        return;
      }
      // What the next level gives away first, so that it leaves while the rest is reduced.
      const Halves next = split(now.keep, level + 1);
      give = block.give[level].as(Form::kPartial);
      const StepId given = combine(block, level, give, keep, now.keep, next.give, false);
      if (level == 0 && !folded_) block.readers[1] = given;
      const Operand kept = block.keep[level].as(Form::kPartial);
      combine(block, level, kept, keep, now.keep, next.keep, false);
      keep = kept;
      now = block.halves[level + 1] = next;
    }
  }

  // Adds the odd rank's input to the own one; returns who read the input.
  StepId fold(Block& block, std::size_t half, const Range& range) {
    const Operand received = block.folded_in[half].as(Form::kValue);
    builder_.recv(rank_ + 1, received, range.count);
    return builder_.reduce(block.folded[half].as(Form::kPartial), input(range.at), received, range.count);
  }

  // dst = the part `part` of (`own` ⊕ what the partner sent), both of which cover `range`.
  StepId combine(Block& block, std::size_t level, const Operand& dst, Operand own, const Range& range,
                 const Range& part, bool finish) {
    const std::uint64_t offset = part.at - range.at;
    own.place.at += offset;
    const Operand other = block.received[level].as(form_from(level), offset);
    const Operand& a = upper(level) ? other : own;
    const Operand& b = upper(level) ? own : other;
    return finish ? builder_.finish(dst.place.at, a, b, part.count) : builder_.reduce(dst, a, b, part.count);
  }

  void way_out(Block& block) {
    if (away_) {
      for (const std::size_t half : {std::size_t{1}, std::size_t{0}}) {
        const Range& range = half == 0 ? block.halves[0].give : block.halves[0].keep;
        const Operand received = block.folded_out[half].as(Form::kValue);
        builder_.recv(rank_ - 1, received, range.count);
        builder_.copy(output(range.at), received, range.count, false, {block.folded_reader[half]});
      }
      return;
    }
    std::vector<StepId> placed{block.final};
    for (std::size_t level = levels_; level-- > 0;) {
      const std::int32_t peer = rank_of(partner(level));
      const auto [have, missing] = block.halves[level];
      builder_.send(peer, output(have.at), have.count, placed);
      if (folded_ && level == 0) builder_.send(rank_ + 1, output(have.at), have.count, placed);
      const Operand received = block.received[level].as(Form::kValue);
      builder_.recv(peer, received, missing.count);
      placed.push_back(builder_.copy(output(missing.at), received, missing.count, false, {block.readers[level]}));
      if (folded_ && level == 0) builder_.send(rank_ + 1, output(missing.at), missing.count, {placed.back()});
    }
  }

  const Request& request_;
  Builder& builder_;
  std::int32_t rank_;
  std::int32_t positions_;  // P
  std::int32_t pairs_;      // K − P
  std::size_t levels_;
  bool folded_;  // in a pair
  bool away_;    // the odd one of a pair
  std::int32_t position_;
};

}  // namespace

void butterfly_allreduce(const Request& request, Builder& builder) {
  Butterfly(request, builder).run();
}

}  // namespace warren::schedule
