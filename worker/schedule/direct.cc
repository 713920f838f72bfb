// Direct: every rank talks to every other one. Peers are served in the order of their distance, so that no rank is
// everybody's first.
//
// Segment o is reduced at its owner o, in the order of ranks whoever the owner is: ((in[0] + in[1]) + in[2]) + ….
#include <algorithm>
#include <map>
#include <utility>

#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

// Of a peer, two messages may be on their way while a third is read.
constexpr std::size_t kSlotsPerPeer = 3;
constexpr std::size_t kPartialSlots = 2;

class DirectSchedule {
 public:
  DirectSchedule(const Request& request, Builder& builder, Copies& copies)
      : request_(request),
        builder_(builder),
        copies_(copies),
        rank_(request.rank),
        size_(request.size),
        segments_(segments_of(request)) {
    std::uint64_t largest = 0;
    for (const Range& segment : segments_) {
      chunks_.push_back(chunks_of(segment.count, request.chunk_elements));
      most_chunks_ = std::max(most_chunks_, chunks_.back());
      largest = std::max(largest, cut(segment, chunks_.back(), 0).count);
    }
    for (std::int32_t peer = 0; peer < size_; ++peer) {
      slots_.push_back(peer == rank_ ? SlotRing() : builder_.slots(kSlotsPerPeer, largest));
    }
    if (!gathers_only(request.collective)) {
      if (size_ > 2) partial_slots_ = builder_.slots(kPartialSlots, largest);
    }
  }

  void allreduce() {
    readers_.resize(segments_.size());
    readers_before_.resize(segments_.size());
    // The finals of a chunk travel after the inputs of the next one, so that no owner waits for the slowest rank.
    for (std::uint64_t c = 0; c <= most_chunks_; ++c) {
      const StepId final_before = std::exchange(final_, kNoStep);
      std::swap(readers_, readers_before_);
      if (c < most_chunks_) reduce_chunk(c, true);
      if (c > 0) gather_chunk(c - 1, final_before, readers_before_);
    }
  }

  void reduce_scatter() {
    readers_.resize(segments_.size());
    for (std::uint64_t c = 0; c < most_chunks_; ++c) {
      final_ = kNoStep;
      reduce_chunk(c, false);
      for (const std::int32_t owner : copies_.owners()) {
        if (c >= chunks_[index(owner)]) continue;
        const Range chunk = chunk_of(owner, c);
        copies_.back_up(owner, owner, chunk, chunk.at - segments_[index(owner)].at, final_);
      }
    }
  }

  void allgather() {
    const std::vector<StepId> none(segments_.size(), kNoStep);
    for (std::uint64_t c = 0; c < most_chunks_; ++c) {
      StepId placed = kNoStep;
      if (has(rank_, c)) {
        const Range chunk = chunk_of(rank_, c);
        placed = builder_.copy(output(chunk.at), input(chunk.at - segments_[index(rank_)].at), chunk.count, false);
        placed = keep(rank_, chunk, placed);
      }
      gather_chunk(c, placed, none);
    }
  }

 private:
  [[nodiscard]] static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }
  // Whether there is such a chunk, and it has to be computed.
  [[nodiscard]] bool has(std::int32_t segment, std::uint64_t chunk) const {
    return chunk < chunks_[index(segment)] && !left_out(request_, chunk_of(segment, chunk));
  }
  [[nodiscard]] Range chunk_of(std::int32_t segment, std::uint64_t chunk) const {
    return cut(segments_[index(segment)], chunks_[index(segment)], chunk);
  }

  // Final values, which came straight from their owner and which `made` wrote to the output.
  StepId keep(std::int32_t owner, const Range& chunk, StepId made) {
    const bool keeps = owner == rank_ ? copies_.keeps_own() : copies_.keeps_from(owner);
    return keeps ? copies_.publish(output(chunk.at), chunk, made) : made;
  }

  Operand receive(std::int32_t from, std::uint64_t count) {
    const Operand received = slots_[index(from)].next().as(Form::kValue);
    builder_.recv(from, received, count);
    return received;
  }

  // Chunk c of every segment goes to its owner, which reduces its own.
  void reduce_chunk(std::uint64_t c, bool whole_output) {
    for (std::int32_t distance = 1; distance < size_; ++distance) {
      const std::int32_t to = modulo(rank_ + distance, size_);
      if (!has(to, c)) continue;
      const Range chunk = chunk_of(to, c);
      readers_[index(to)] = builder_.send(to, input(chunk.at), chunk.count);
    }
    if (!has(rank_, c)) return;
    const Range chunk = chunk_of(rank_, c);
    std::vector<Operand>& operands = operands_;
    operands.assign(segments_.size(), input(chunk.at));
    for (std::int32_t distance = 1; distance < size_; ++distance) {
      const std::int32_t from = modulo(rank_ - distance, size_);
      operands[index(from)] = receive(from, chunk.count);
    }
    Operand sum = operands[0];
    for (std::size_t i = 1; i + 1 < operands.size(); ++i) {
      // An accumulator is wider than a value: the first sum needs a place of its own.
      const Operand dst = i == 1 ? partial_slots_.next().as(Form::kPartial) : sum;
      builder_.reduce(dst, sum, operands[i], chunk.count);
      sum = dst;
    }
    const std::uint64_t output_at = whole_output ? chunk.at : chunk.at - segments_[index(rank_)].at;
    final_ = builder_.finish(output_at, sum, operands.back(), chunk.count);
    if (copies_.keeps_own()) final_ = copies_.publish(output(output_at), chunk, final_);
  }

  // Chunk c of the own segment, final once `placed` has run, goes to everybody, and theirs come here.
  void gather_chunk(std::uint64_t c, StepId placed, const std::vector<StepId>& readers) {
    if (has(rank_, c)) {
      const Range chunk = chunk_of(rank_, c);
      for (std::int32_t distance = 1; distance < size_; ++distance) {
        builder_.send(modulo(rank_ + distance, size_), output(chunk.at), chunk.count, {placed});
      }
    }
    for (std::int32_t distance = 1; distance < size_; ++distance) {
      const std::int32_t from = modulo(rank_ - distance, size_);
      if (!has(from, c)) continue;
      const Range chunk = chunk_of(from, c);
      const Operand received = receive(from, chunk.count);
      keep(from, chunk, builder_.copy(output(chunk.at), received, chunk.count, false, {readers[index(from)]}));
    }
  }

  const Request& request_;
  Builder& builder_;
  Copies& copies_;
  std::int32_t rank_;
  std::int32_t size_;
  std::vector<Range> segments_;
  std::vector<std::uint64_t> chunks_;  // of each segment
  std::uint64_t most_chunks_ = 0;
  std::vector<SlotRing> slots_;  // by peer
  SlotRing partial_slots_;
  std::vector<Operand> operands_;  // by rank
  std::vector<StepId> readers_;    // of this chunk of the input, by segment
  std::vector<StepId> readers_before_;
  StepId final_ = kNoStep;
};

// Blocks go straight from their sender to their receiver. Those without elements are left out, unless there are no
// others: ranks know all counts, and agree on them.
class DirectExchange {
 public:
  DirectExchange(const Request& request, Builder& builder, Copies& copies)
      : request_(request),
        builder_(builder),
        copies_(copies),
        rank_(request.rank),
        blocks_(request),
        sent_(blocks_.sent_by(rank_)) {
    for (const std::int32_t owner : copies_.owners()) got_[owner] = blocks_.got_by(owner);
    if (!got_.contains(rank_)) got_[rank_] = blocks_.got_by(rank_);
    for (const Range& block : sent_) look_at(block);
    for (const auto& [owner, blocks] : got_) {
      for (const Range& block : blocks) look_at(block);
    }
    output_at_ = got_[rank_].front().at;
    for (std::int32_t from = 0; from < request.size; ++from) {
      const std::uint64_t count = got_[rank_][index(from)].count;
      const bool comes = from != rank_ && has(count, 0);
      slots_.push_back(comes ? builder_.slots(kSlotsPerPeer, cut({0, count}, chunks(count), 0).count) : SlotRing());
    }
  }

  void run() {
    std::vector<StepId> finals(index(request_.size));
    for (std::uint64_t c = 0; c < most_chunks_; ++c) {
      std::fill(finals.begin(), finals.end(), kNoStep);
      for (std::int32_t distance = 0; distance < request_.size; ++distance)
        send(modulo(rank_ + distance, request_.size), c, finals);
      for (std::int32_t distance = 1; distance < request_.size; ++distance) {
        const std::int32_t from = modulo(rank_ - distance, request_.size);
        const Range& block = got_[rank_][index(from)];
        if (!has(block.count, c)) continue;
        const Range result = part(block, c);
        if (left_out(request_, result)) continue;
        const Operand received = slots_[index(from)].next().as(Form::kValue);
        builder_.recv(from, received, result.count);
        finals[index(from)] = place(from, received, result);
      }
      for (const std::int32_t owner : copies_.owners()) {
        const std::vector<Range>& blocks = got_[owner];
        for (std::int32_t from = 0; from < request_.size; ++from) {
          if (!has(blocks[index(from)].count, c)) continue;
          const Range result = part(blocks[index(from)], c);
          copies_.back_up(owner, from, result, result.at - blocks.front().at, finals[index(from)]);
        }
      }
    }
  }

 private:
  [[nodiscard]] static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] std::uint64_t chunks(std::uint64_t count) const { return chunks_of(count, request_.chunk_elements); }
  // Whether a block of so many elements has such a chunk.
  [[nodiscard]] bool has(std::uint64_t count, std::uint64_t chunk) const {
    return chunk < chunks(count) && (count > 0 || blocks_.nothing());
  }
  [[nodiscard]] Range part(const Range& block, std::uint64_t chunk) const {
    return cut(block, chunks(block.count), chunk);
  }
  void look_at(const Range& block) { most_chunks_ = std::max(most_chunks_, chunks(block.count)); }

  // Chunk c of what this rank sends to `to`, or keeps.
  void send(std::int32_t to, std::uint64_t c, std::vector<StepId>& finals) {
    const Range& block = sent_[index(to)];
    if (!has(block.count, c)) return;
    const Range chunk = part(block, c);
    // Where it stands in the whole result.
    const Range result{result_of(to).at + (chunk.at - block.at), chunk.count};
    if (left_out(request_, result)) return;
    if (to == rank_) {
      finals[index(rank_)] = place(rank_, input(chunk.at), result);
      return;
    }
    const StepId kept = copies_.publish_sent(to, input(chunk.at), result);
    builder_.send(to, input(chunk.at), chunk.count, {kept});
  }
  [[nodiscard]] Range result_of(std::int32_t to) {
    if (results_.empty()) results_.resize(index(request_.size), kNoPiece);
    Range& result = results_[index(to)];
    if (result.at == kNoPiece.at) result = blocks_.got_by(to)[index(rank_)];
    return result;
  }

  // Final values come from `source` to this rank's output.
  StepId place(std::int32_t source, const Operand& from, const Range& result) {
    const Operand to = output(result.at - output_at_);
    const StepId made = builder_.copy(to, from, result.count, false);
    return copies_.publish_received(source, to, result, made);
  }

  const Request& request_;
  Builder& builder_;
  Copies& copies_;
  std::int32_t rank_;
  Blocks blocks_;
  std::vector<Range> sent_;                         // by receiver, in the input
  std::map<std::int32_t, std::vector<Range>> got_;  // by owner that concerns this rank, then by sender
  std::vector<Range> results_;                      // of sent_, in the whole result; kNoPiece: not looked for yet
  std::vector<SlotRing> slots_;                     // by peer
  std::uint64_t output_at_ = 0, most_chunks_ = 1;
};

}  // namespace

void direct_allreduce(const Request& request, Builder& builder, Copies& copies) {
  DirectSchedule(request, builder, copies).allreduce();
}
void direct_reduce_scatter(const Request& request, Builder& builder, Copies& copies) {
  if (on_one_host(request)) return host_reduce_scatter(request, builder, copies);
  if (on_several_hosts(request)) return hierarchical(request, builder, copies);
  DirectSchedule(request, builder, copies).reduce_scatter();
}
void direct_allgather(const Request& request, Builder& builder, Copies& copies) {
  if (on_several_hosts(request)) return hierarchical(request, builder, copies);
  DirectSchedule(request, builder, copies).allgather();
}
void direct_all_to_all(const Request& request, Builder& builder, Copies& copies) {
  DirectExchange(request, builder, copies).run();
}

}  // namespace warren::schedule
