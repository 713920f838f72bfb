// The ring: every rank talks to its two neighbours only. Who is whose neighbour may be told (Request::order): what is
// called a rank here is then its position.
//
// Segment o starts at rank o + 1 as raw input, gathers one contributor a turn and is final at its owner o, so that its
// bracketing is ((in[o+1] + in[o+2]) + …) + in[o]; then it goes round once more. In a turn a link carries some chunks
// of one segment, in the next as many of the next segment: what is sent was received a turn ago, as many messages
// earlier, which is the time that a chunk has to arrive and be reduced while the link is busy with others. Ranks that
// share cores, or whose machines pause, run in slices of milliseconds: 100 MiB among 4 ranks in network namespaces on 2
// cores took a tenth less time in turns of 16 chunks than in turns of 4, a twentieth less in turns of 8, and no less in
// turns of 32. Where a segment has few chunks long turns would be most of the call, and links would rest by turns,
// which looks as if they were slow. Longer ones need as many slots as a segment has chunks.
#include <algorithm>

#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

constexpr std::uint64_t kLeastTurn = 4, kMostTurn = 16, kTurnsOfSegment = 12;
constexpr std::size_t kReceiveSlots = 4;

std::uint64_t largest_chunk(const std::vector<Range>& segments, std::uint64_t chunk_elements) {
  std::uint64_t largest = 0;
  for (const Range& segment : segments) {
    largest = std::max(largest, cut(segment, chunks_of(segment.count, chunk_elements), 0).count);
  }
  return largest;
}

class RingExchange {
 public:
  RingExchange(const Request& request, Builder& builder, Copies& copies)
      : request_(request),
        builder_(builder),
        copies_(copies),
        rank_(request.rank),
        size_(request.size),
        previous_(modulo(rank_ - 1, size_)),
        next_(modulo(rank_ + 1, size_)),
        reduces_(!gathers_only(request.collective)),
        gathers_(!scatters_only(request.collective)),
        segments_(segments_of(request)) {
    for (const Range& segment : segments_) chunks_.push_back(chunks_of(segment.count, request.chunk_elements));
    turn_ = std::clamp(*std::max_element(chunks_.begin(), chunks_.end()) / kTurnsOfSegment, kLeastTurn, kMostTurn);
    const std::uint64_t elements = largest_chunk(segments_, request.chunk_elements);
    receive_slots_ = builder_.slots(kReceiveSlots, elements);
    // A partial waits for its turn and then until it has left; two more let the reduction run ahead of the link.
    if (reduces_ && size_ > 2) partial_slots_ = builder_.slots(turn_ + 2, elements);
    readers_.assign(segments_.size() * turn_, kNoStep);
    std::vector<std::int32_t> path;
    for (std::int32_t i = 1; i <= size_; ++i) path.push_back(modulo(rank_ - size_ + i, size_));
    while (kept_owners_ < path.size() && copies_.keeps(std::span(path).last(kept_owners_ + 1))) ++kept_owners_;
  }

  void run() {
    const std::uint64_t chunks = *std::max_element(chunks_.begin(), chunks_.end());
    for (std::uint64_t first = 0; first < chunks; first += turn_) {
      final_.fill(kNoStep);
      if (reduces_) {
        for (std::int32_t turn = 0; turn + 1 < size_; ++turn) reduce_turn(first, turn);
      } else {
        place_own(first);
      }
      if (gathers_) {
        for (std::int32_t turn = 0; turn + 1 < size_; ++turn) gather_turn(first, turn);
      }
      back_up(first);
    }
  }

 private:
  // Whether there is such a chunk, and it has to be computed.
  [[nodiscard]] bool has(std::int32_t segment, std::uint64_t chunk) const {
    return chunk < chunks_[index(segment)] && !left_out(request_, chunk_of(segment, chunk));
  }
  [[nodiscard]] Range chunk_of(std::int32_t segment, std::uint64_t chunk) const {
    return cut(segments_[index(segment)], chunks_[index(segment)], chunk);
  }
  [[nodiscard]] static std::size_t index(std::int32_t segment) { return static_cast<std::size_t>(segment); }
  // Who reads this chunk of the input: the only step that does.
  [[nodiscard]] StepId& reader(std::int32_t segment, std::uint64_t lane) {
    return readers_[index(segment) * turn_ + lane];
  }
  // A chunk in the output, which in a reduce_scatter is the rank's own segment.
  [[nodiscard]] std::uint64_t own_output(const Range& chunk) const {
    return gathers_ ? chunk.at : chunk.at - segments_[index(rank_)].at;
  }

  // A final chunk of `owner`'s segment, which `made` wrote to the output.
  StepId keep(std::int32_t owner, const Range& chunk, StepId made) {
    const bool keeps = index(modulo(rank_ - owner, size_)) < kept_owners_;
    return keeps ? copies_.publish(output(own_output(chunk)), chunk, made) : made;
  }

  void back_up(std::uint64_t first) {
    for (const std::int32_t owner : copies_.owners()) {
      for (std::uint64_t lane = 0; lane < turn_ && first + lane < chunks_[index(owner)]; ++lane) {
        const Range chunk = chunk_of(owner, first + lane);
        copies_.back_up(owner, owner, chunk, chunk.at - segments_[index(owner)].at, final_[lane]);
      }
    }
  }

  void place_own(std::uint64_t first) {
    for (std::uint64_t lane = 0; lane < turn_; ++lane) {
      if (!has(rank_, first + lane)) continue;
      const Range chunk = chunk_of(rank_, first + lane);
      const std::uint64_t input_at = chunk.at - segments_[index(rank_)].at;
      final_[lane] = keep(rank_, chunk, builder_.copy(output(chunk.at), input(input_at), chunk.count, false));
    }
  }

  void reduce_turn(std::uint64_t first, std::int32_t turn) {
    const std::int32_t out = modulo(rank_ - 1 - turn, size_);
    const std::int32_t in = modulo(rank_ - 2 - turn, size_);
    const Form form_in = turn == 0 ? Form::kValue : Form::kPartial;
    for (std::uint64_t lane = 0; lane < turn_; ++lane) {
      if (has(out, first + lane)) {
        const Range chunk = chunk_of(out, first + lane);
        if (turn == 0) {
          reader(out, lane) = builder_.send(next_, input(chunk.at), chunk.count);
        } else {
          builder_.send(next_, partial_[lane]->as(Form::kPartial), chunk.count);
        }
      }
      if (has(in, first + lane)) {
        const Range chunk = chunk_of(in, first + lane);
        const Operand received = receive_slots_.next().as(form_in);
        builder_.recv(previous_, received, chunk.count);
        if (in == rank_) {
          const StepId made = builder_.finish(own_output(chunk), received, input(chunk.at), chunk.count);
          final_[lane] = keep(rank_, chunk, made);
        } else {
          partial_[lane] = &partial_slots_.next();
          reader(in, lane) =
              builder_.reduce(partial_[lane]->as(Form::kPartial), received, input(chunk.at), chunk.count);
        }
      }
    }
  }

  void gather_turn(std::uint64_t first, std::int32_t turn) {
    const std::int32_t out = modulo(rank_ - turn, size_);
    const std::int32_t in = modulo(rank_ - 1 - turn, size_);
    for (std::uint64_t lane = 0; lane < turn_; ++lane) {
      if (has(out, first + lane)) {
        const Range chunk = chunk_of(out, first + lane);
        builder_.send(next_, output(chunk.at), chunk.count, {final_[lane]});
      }
      if (has(in, first + lane)) {
        const Range chunk = chunk_of(in, first + lane);
        const Operand received = receive_slots_.next().as(Form::kValue);
        builder_.recv(previous_, received, chunk.count);
        const StepId made = builder_.copy(output(chunk.at), received, chunk.count, false, {reader(in, lane)});
        final_[lane] = keep(in, chunk, made);
      }
    }
  }

  const Request& request_;
  Builder& builder_;
  Copies& copies_;
  std::int32_t rank_;
  std::int32_t size_;
  std::int32_t previous_;
  std::int32_t next_;
  bool reduces_;
  bool gathers_;
  std::vector<Range> segments_;
  std::vector<std::uint64_t> chunks_;  // of each segment
  std::uint64_t turn_ = kLeastTurn;    // chunks
  SlotRing receive_slots_;
  SlotRing partial_slots_;
  std::array<Slot*, kMostTurn> partial_{};  // to be sent in the next turn, by chunk of the turn
  std::array<StepId, kMostTurn> final_{};   // likewise: who wrote the final value to the output, or published it
  std::size_t kept_owners_ = 0;             // so many ranks up to this one have their segments published here
  std::vector<StepId> readers_;
};

}  // namespace

void ring_exchange(const Request& request, Builder& builder, Copies& copies) {
  if (request.exchanges) return exchange_allreduce(request, builder, copies);
  if (gathers_only(request.collective)) {
    if (read_each_other(request)) return direct_allgather(request, builder, copies);
  } else if (on_one_host(request)) {
    if (request.collective == Collective::kAllreduce) return host_allreduce(request, builder, copies);
    return host_reduce_scatter(request, builder, copies);
  }
  if (on_several_hosts(request)) return hierarchical(request, builder, copies);
  RingExchange(request, builder, copies).run();
}

// A chain that ends at the root: ((in[root+1] + in[root+2]) + …) + in[root].
void ring_reduce(const Request& request, Builder& builder, Copies& copies) {
  const std::int32_t position = modulo(request.rank - request.root, request.size);  // 0 is last
  const std::int32_t previous = modulo(request.rank - 1, request.size);
  const std::int32_t next = modulo(request.rank + 1, request.size);
  const Form form_in = modulo(position - 1, request.size) == 1 ? Form::kValue : Form::kPartial;
  const Range whole{0, request.count};
  const std::uint64_t chunks = chunks_of(request.count, request.chunk_elements);
  SlotRing receive_slots;
  SlotRing partial_slots;
  if (position != 1) receive_slots = builder.slots(kReceiveSlots, cut(whole, chunks, 0).count);
  if (position > 1) partial_slots = builder.slots(kReceiveSlots, cut(whole, chunks, 0).count);
  const bool keeps = copies.keeps_own();
  for (std::uint64_t c = 0; c < chunks; ++c) {
    const Range chunk = cut(whole, chunks, c);
    StepId final = kNoStep;
    if (left_out(request, chunk)) {
      // Nobody sends it.
    } else if (position == 1) {
      builder.send(next, input(chunk.at), chunk.count);
    } else {
      const Operand received = receive_slots.next().as(form_in);
      builder.recv(previous, received, chunk.count);
      if (position == 0) {
        final = builder.finish(chunk.at, received, input(chunk.at), chunk.count);
        if (keeps) final = copies.publish(output(chunk.at), chunk, final);
      } else {
        const Operand partial = partial_slots.next().as(Form::kPartial);
        builder.reduce(partial, received, input(chunk.at), chunk.count);
        builder.send(next, partial, chunk.count);
      }
    }
    copies.back_up(request.root, request.root, chunk, chunk.at, final);
  }
}

// A chain that starts at the root.
void ring_broadcast(const Request& request, Builder& builder, Copies& copies) {
  if (read_the_root(request)) return tree_broadcast(request, builder, copies);  // nobody passes anything on
  const std::int32_t position = modulo(request.rank - request.root, request.size);
  const std::int32_t previous = modulo(request.rank - 1, request.size);
  const std::int32_t next = modulo(request.rank + 1, request.size);
  const Range whole{0, request.count};
  const std::uint64_t chunks = chunks_of(request.count, request.chunk_elements);
  SlotRing receive_slots;
  if (position != 0) receive_slots = builder.slots(kReceiveSlots, cut(whole, chunks, 0).count);
  std::vector<std::int32_t> path;
  for (std::int32_t i = 0; i <= position; ++i) path.push_back(modulo(request.root + i, request.size));
  const bool keeps = copies.keeps(path);
  for (std::uint64_t c = 0; c < chunks; ++c) {
    const Range chunk = cut(whole, chunks, c);
    if (left_out(request, chunk)) continue;
    StepId placed = kNoStep;
    if (position != 0) {
      const Operand received = receive_slots.next().as(Form::kValue);
      builder.recv(previous, received, chunk.count);
      placed = builder.copy(output(chunk.at), received, chunk.count, false);
    }
    if (keeps) placed = copies.publish(output(chunk.at), chunk, placed);
    if (position + 1 < request.size) builder.send(next, output(chunk.at), chunk.count, {placed});
  }
}

}  // namespace warren::schedule
