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
//
// What becomes final at once, and is published and left out as a whole, is a piece: the part of a block that one
// position computes. A block's pieces are numbered in the order in which they lie; the position that computes piece i
// is i with its bits reversed, because level 0 halves the block. In a resumed round a block of which some pieces are
// final goes piece by piece, up a binomial tree to the position that computes it and down again: the same partners at
// the same levels, and so the same bracketing.
#include <algorithm>
#include <bit>
#include <utility>

#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

// Blocks whose way in is written before a block's way out. The third block's scratch lets a receive be posted while the
// slot before it is still read.
constexpr std::uint64_t kBlocksAhead = 1;
constexpr std::size_t kBlocksInFlight = kBlocksAhead + 2;
constexpr std::size_t kPieceSlots = 3;

// What remains of the ranks when pairs are folded.
std::int32_t positions_of(const Request& request) {
  return static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(request.size)));
}

std::uint64_t blocks_of(const Request& request) {
  return chunks_of(request.count, 2 * request.chunk_elements);
}

// Above this, two ranks of one host lend each other their inputs, without which GPUs would have no part in it: calls of
// more than 4 MiB are reduced there, f32 that travels as half of that too. On the CPU it takes 1.04, 1.07, 1.02 and
// 1.04 of the time at 2, 4, 8 and 16 MiB, where the choice is the ring (medians of 7 pairs of jobs, private buffers;
// single pairs from 0.6 to 1.3).
constexpr std::uint64_t kLeastLentBytes = std::uint64_t{2} << 20;

class Butterfly {
 public:
  Butterfly(const Request& request, Builder& builder, Copies& copies)
      : request_(request),
        builder_(builder),
        copies_(copies),
        rank_(request.rank),
        positions_(positions_of(request)),
        pairs_(request.size - positions_),
        levels_(static_cast<std::size_t>(std::countr_zero(static_cast<std::uint32_t>(positions_)))),
        folded_(rank_ < 2 * pairs_),
        away_(folded_ && rank_ % 2 == 1),
        position_(folded_ ? rank_ / 2 : rank_ - pairs_),
        lends_(request.size == 2 && on_one_host(request) && request.count > kLeastLentBytes / request.element_bytes) {}

  void run() {
    if (!doubles(request_)) {
      halving();
    } else if (!left_out(request_, {0, request_.count})) {
      doubling();
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
    bool halved = false;  // as opposed to left out, or done by pieces
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
      const StepId placed = builder_.copy(output(0), slot.as(Form::kValue), n, false, {sent});
      if (copies_.keeps_from(rank_ - 1)) copies_.publish(output(0), {0, n}, placed);
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
    // Everybody computes it.
    if (copies_.keeps_own()) final = copies_.publish(output(0), {0, n}, final);
    if (folded_) builder_.send(rank_ + 1, output(0), n, {final});
  }

  void halving() {
    const std::uint64_t blocks = blocks_of(request_);
    const Range whole{0, request_.count};
    find_kept();
    std::array<Block, kBlocksInFlight> in_flight;
    for (std::uint64_t b = 0; b < std::min<std::uint64_t>(blocks, kBlocksInFlight); ++b) {
      reserve(in_flight[b], cut(whole, blocks, 0).count);
    }
    for (std::uint64_t b = 0; b < blocks + kBlocksAhead; ++b) {
      if (b < blocks) {
        const Range range = cut(whole, blocks, b);
        Block& block = in_flight[b % kBlocksInFlight];
        block.halved = request_.final.empty() || !request_.final.meets(range.at, range.at + range.count);
        if (block.halved) {
          way_in(block, range);
        } else if (!left_out(request_, range)) {
          by_pieces(range);
        }
      }
      if (b < kBlocksAhead) continue;
      Block& block = in_flight[(b - kBlocksAhead) % kBlocksInFlight];
      if (block.halved) way_out(block, cut(whole, blocks, b - kBlocksAhead));
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
    if (lends_) return exchange_halves(block, range, now);
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
        block.final = publish_pieces(range, piece(position_), piece(position_) + 1, block.final);
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

  // Two ranks of one host: each half has an owner, as where there are more (host.cc).
  void exchange_halves(Block& block, const Range& range, const Halves& now) {
    const std::int32_t peer = 1 - rank_;
    block.readers[0] = builder_.lend(peer, now.give.at, now.give.count);
    const Operand other = block.received[0].as(Form::kValue), own = input(now.keep.at);
    builder_.recv(peer, other, now.keep.count);
    const std::array<Operand, 2> inputs{upper(0) ? other : own, upper(0) ? own : other};
    block.final = builder_.combine(output(now.keep.at), inputs, Bracketing::kBalanced, now.keep.count);
    block.final = publish_pieces(range, piece(position_), piece(position_) + 1, block.final);
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

  void way_out(Block& block, const Range& range) {
    const auto pieces = static_cast<std::uint32_t>(positions_);
    // Pieces of the half of the block that the position keeps at level 0.
    const std::uint32_t kept_at = upper(0) ? pieces / 2 : 0;
    if (away_) {
      for (const std::size_t half : {std::size_t{1}, std::size_t{0}}) {
        const Range& part = half == 0 ? block.halves[0].give : block.halves[0].keep;
        const Operand received = block.folded_out[half].as(Form::kValue);
        builder_.recv(rank_ - 1, received, part.count);
        const StepId placed = builder_.copy(output(part.at), received, part.count, false, {block.folded_reader[half]});
        const std::uint32_t first = half == 0 ? pieces / 2 - kept_at : kept_at;
        publish_pieces(range, first, first + pieces / 2, placed);
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
      const StepId copied = builder_.copy(output(missing.at), received, missing.count, false, {block.readers[level]});
      const std::uint32_t count = pieces >> (level + 1);
      const std::uint32_t first = piece(partner(level)) / count * count;
      placed.push_back(publish_pieces(range, first, first + count, copied));
      if (folded_ && level == 0) builder_.send(rank_ + 1, output(missing.at), missing.count, {placed.back()});
    }
  }

  // --- Pieces

  // The piece that a position computes, and the other way round.
  [[nodiscard]] std::uint32_t piece(std::int32_t position) const {
    std::uint32_t reversed = 0;
    for (std::size_t level = 0; level < levels_; ++level) {
      reversed |= (static_cast<std::uint32_t>(position) >> level & 1) << (levels_ - 1 - level);
    }
    return reversed;
  }
  // Where a block's piece begins; its end for the piece after the last.
  [[nodiscard]] std::uint64_t begin_of(Range block, std::uint32_t piece) const {
    if (piece == static_cast<std::uint32_t>(positions_)) return block.at + block.count;
    for (std::size_t level = 0; level < levels_; ++level) block = cut(block, 2, piece >> (levels_ - 1 - level) & 1);
    return block.at;
  }
  // Levels are left from the last to the first: the ranks from the one that computes a piece to this one.
  [[nodiscard]] std::vector<std::int32_t> path_from(std::int32_t computes) const {
    std::vector<std::int32_t> path{rank_of(computes)};
    std::int32_t at = computes;
    for (std::size_t level = levels_; level-- > 0;) {
      const std::int32_t bit = 1 << level;
      if (((at ^ position_) & bit) == 0) continue;
      at ^= bit;
      path.push_back(rank_of(at));
    }
    if (away_) path.push_back(rank_);
    return path;
  }

  void find_kept() {
    if (request_.replicas == 0) return;
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(positions_); ++i) {
      keeps_.push_back(copies_.keeps(path_from(static_cast<std::int32_t>(piece(static_cast<std::int32_t>(i))))));
    }
  }

  // Publishes what this rank keeps of the pieces [first, end) of a block, which `made` wrote to the output.
  StepId publish_pieces(const Range& block, std::uint32_t first, std::uint32_t end, StepId made) {
    if (keeps_.empty()) return made;
    while (first < end) {
      const auto at = keeps_.begin() + first;
      const auto run_end = std::find(at, keeps_.begin() + end, !*at);
      const auto next = static_cast<std::uint32_t>(run_end - keeps_.begin());
      if (*at) {
        const std::uint64_t begin = begin_of(block, first);
        made = copies_.publish(output(begin), {begin, begin_of(block, next) - begin}, made);
      }
      first = next;
    }
    return made;
  }

  void by_pieces(const Range& block) {
    if (piece_partials_.empty()) {
      const std::uint64_t most = block.count / static_cast<std::uint64_t>(positions_) + 1;
      piece_received_ = builder_.slots(kPieceSlots, most);
      piece_partials_ = builder_.slots(kPieceSlots, most);
    }
    for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(positions_); ++i) {
      const std::uint64_t begin = begin_of(block, i);
      const Range range{begin, begin_of(block, i + 1) - begin};
      if (range.count == 0 || left_out(request_, range)) continue;
      one_piece(range, static_cast<std::int32_t>(piece(static_cast<std::int32_t>(i))), !keeps_.empty() && keeps_[i]);
    }
  }

  void one_piece(const Range& range, std::int32_t computes, bool keeps) {
    if (away_) {
      const StepId sent = builder_.send(rank_ - 1, input(range.at), range.count);
      place_piece(range, rank_ - 1, sent, keeps);
      return;
    }
    Operand sum = input(range.at);
    StepId reader = kNoStep;
    StepId final = kNoStep;
    const auto add = [&](const Operand& a, const Operand& b, bool last) {
      if (last) {
        final = builder_.finish(range.at, a, b, range.count);
        return;
      }
      const bool first = sum.slot == nullptr;
      const Operand dst = first ? piece_partials_.next().as(Form::kPartial) : sum;
      const StepId step = builder_.reduce(dst, a, b, range.count);
      if (first) reader = step;
      sum = dst;
    };
    if (folded_) add(sum, receive_piece(rank_ + 1, Form::kValue, range), false);
    // At a level, those that agree with `computes` below it still hold a sum.
    const auto agreed = static_cast<std::size_t>(std::countr_zero(static_cast<std::uint32_t>(position_ ^ computes)));
    const std::size_t joins = std::min(agreed, levels_);
    for (std::size_t level = 0; level < joins; ++level) {
      const Operand other = receive_piece(rank_of(partner(level)), form_from(level), range);
      add(upper(level) ? other : sum, upper(level) ? sum : other, level + 1 == levels_);
    }
    if (joins < levels_) {
      const StepId sent = builder_.send(rank_of(partner(joins)), sum, range.count);
      if (sum.slot == nullptr) reader = sent;
      final = place_piece(range, rank_of(partner(joins)), reader, keeps);
    } else if (keeps) {
      final = copies_.publish(output(range.at), range, final);
    }
    for (std::size_t level = joins; level-- > 0;) {
      builder_.send(rank_of(partner(level)), output(range.at), range.count, {final});
    }
    if (folded_) builder_.send(rank_ + 1, output(range.at), range.count, {final});
  }

  Operand receive_piece(std::int32_t peer, Form form, const Range& range) {
    const Operand received = piece_received_.next().as(form);
    builder_.recv(peer, received, range.count);
    return received;
  }

  StepId place_piece(const Range& range, std::int32_t peer, StepId reader, bool keeps) {
    const Operand received = receive_piece(peer, Form::kValue, range);
    const StepId placed = builder_.copy(output(range.at), received, range.count, false, {reader});
    return keeps ? copies_.publish(output(range.at), range, placed) : placed;
  }

  const Request& request_;
  Builder& builder_;
  Copies& copies_;
  std::int32_t rank_;
  std::int32_t positions_;  // P
  std::int32_t pairs_;      // K − P
  std::size_t levels_;
  bool folded_;  // in a pair
  bool away_;    // the odd one of a pair
  std::int32_t position_;
  bool lends_;               // raw inputs, to the only other rank
  std::vector<bool> keeps_;  // by piece: whether this rank publishes it; empty where nothing is logged
  SlotRing piece_received_, piece_partials_;
};

}  // namespace

bool doubles(const Request& request) {
  const bool little = request.count <= request.chunk_elements / kDoublingPartOfChunk;
  // Halves of next to nothing would be empty.
  const bool few =
      request.count < static_cast<std::uint64_t>(positions_of(request)) && request.count <= request.chunk_elements;
  return little || few;
}

void butterfly_allreduce(const Request& request, Builder& builder, Copies& copies) {
  if (request.exchanges) return exchange_allreduce(request, builder, copies);
  // Two ranks have one partner each in any case. Measured at K = 2, private buffers, with the log: owners take 1.09 of
  // the time of halves exchanged at 1 and 16 MiB, and 0.87 from 32 MiB on, where the choice is the ring, which they
  // replace.
  if (request.size > 2 && !doubles(request)) {
    if (has_owner(request)) return one_owner_allreduce(request, builder, copies);
    if (on_one_host(request)) return host_allreduce(request, builder, copies);
    if (on_several_hosts(request)) return hierarchical(request, builder, copies);
  }
  Butterfly(request, builder, copies).run();
}

std::vector<std::vector<Range>> butterfly_pieces(const Request& request) {
  const auto positions = static_cast<std::uint32_t>(positions_of(request));
  const std::int32_t pairs = request.size - static_cast<std::int32_t>(positions);
  const std::uint64_t blocks = blocks_of(request);
  std::vector<std::vector<Range>> pieces(blocks, std::vector<Range>(static_cast<std::size_t>(request.size)));
  for (std::uint64_t b = 0; b < blocks; ++b) {
    for (std::uint32_t p = 0; p < positions; ++p) {
      Range range = cut({0, request.count}, blocks, b);
      for (std::uint32_t bit = 1; bit < positions; bit *= 2) range = cut(range, 2, (p & bit) != 0 ? 1 : 0);
      const std::int32_t position = static_cast<std::int32_t>(p);
      pieces[b][static_cast<std::size_t>(position < pairs ? 2 * position : position + pairs)] = range;
    }
  }
  return pieces;
}

Range butterfly_piece_at(const Request& request, std::uint64_t at) {
  if (doubles(request)) return {0, request.count};
  const std::uint64_t blocks = blocks_of(request);
  Range range = cut({0, request.count}, blocks, part_of({0, request.count}, blocks, at));
  for (std::int32_t halves = positions_of(request); halves > 1; halves /= 2) {
    const Range low = cut(range, 2, 0);
    range = at < low.at + low.count ? low : cut(range, 2, 1);
  }
  return range;
}

}  // namespace warren::schedule
