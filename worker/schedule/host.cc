// An allreduce or reduce_scatter among ranks of one host, who read each other's memory: everybody's input of a piece
// goes straight to the piece's owner, which reduces all of them, and the final goes from there to everybody. Pieces,
// owners and bracketing are those of the ring or the butterfly, so the bits are the same wherever ranks sit, and a
// round that was interrupted on one host is finished on two.
//
// An owner reads all inputs of its piece before it makes the final, and nobody else makes it: inputs are lent.
//
// A reduce_scatter is the first half of that. Nobody hears of the finals of others, so inputs are lent only where the
// round is logged: then it ends with an exchange after which all finals are known to be published, and so all inputs to
// have been read.
//
// Where ranks share cores and the buffer is small, it is messages that cost, since each wakes a rank that has to be
// given a core: there one rank owns all pieces of the butterfly, and 2·(K − 1) messages a chunk are enough.
//
// Where GPUs move the bytes, on one host or several (docs/decisions/0024-nccl.md), it is the same, but that inputs of a
// unit are one turn and its finals another, and who publishes a final beside its owner is few.
//
// A unit is what is cut into one piece for each owner: of the ring, one chunk of each segment, or some side by side
// where there are GPUs; of the butterfly, a block. The finals of a unit travel after the inputs of the next one, or of
// more where there are GPUs, so that no owner waits for the slowest rank.
#include <algorithm>
#include <limits>
#include <utility>

#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

// Of a peer, two messages may be on their way while a third is read.
constexpr std::size_t kSlotsPerPeer = 3;

// How many units the inputs are ahead of the finals. One is enough for CPUs, which find a final in their cache then (16
// cost four of them up to a quarter of the time). A GPU takes longer, and one that ranks share takes turns among them,
// of a millisecond where there are eight, and does what is there by then: 64 MiB among them took 45 ms with one, and 15
// with 16.
constexpr std::uint64_t kMostAhead = 16;
// Of fewer chunks there is no use; what lends on GPUs has more (of 256 KiB).
constexpr std::uint64_t kLeastChunks = 8;
// Chunks that are joined have so many bytes at most, and leave so many units, whose copies and kernels overlap. With
// 512 KiB an allreduce among 4 ranks that share a GPU takes 2.9 ms instead of 4.8 (16 MiB), 5.9 instead of 11.4 (64
// MiB) and 21 instead of 50 (256 MiB); with 1 MiB it is no faster, and those of buffers on the CPU, which are cut
// alike, are slower. NCCL has a launch for each turn: 64 MiB took 27 ms with 1 MiB, and 49 by the chunk (H200).
constexpr std::uint64_t kMostJoinedBytes = std::uint64_t{512} << 10;
constexpr std::uint64_t kMostExchangedBytes = std::uint64_t{1} << 20;
constexpr std::size_t kLeastJoinedUnits = 4;
// Of all peers together. Messages that are places in memory of others leave them empty.
constexpr std::uint64_t kMostSlotBytes = std::uint64_t{64} << 20;

// Whether owners combine on GPUs what they read of others there, or may do so.
bool by_gpus(const Request& request) {
  const bool many = chunks_of(request.count, request.chunk_elements) >= kLeastChunks;
  return request.host.maps && request.host.gpus && many && !request.exchanges;
}

std::uint64_t units_ahead(const Request& request, std::uint64_t largest) {
  if (!by_gpus(request)) return 1;
  const std::uint64_t bytes = std::max<std::uint64_t>(largest, 1) * request.partial_bytes;
  return std::clamp<std::uint64_t>(kMostSlotBytes / bytes / (2 * static_cast<std::uint64_t>(request.size)), 1,
                                   kMostAhead);
}

// Where there are GPUs, a message, a launch and a record in the log take longer than a chunk's bytes do, and in a first
// attempt neighbouring chunks of a segment are one piece. A later one leaves out, and cuts, single chunks.
std::vector<std::vector<Range>> joined_units(const Request& request) {
  std::vector<std::vector<Range>> units = units_of(request);
  const bool first = !request.resumed && request.final.empty();
  if (request.algorithm != Algorithm::kRing || !first || (!request.exchanges && !by_gpus(request))) return units;
  // Ranks that keep copies for other failure domains have slots of a chunk for them (copies.cc).
  const auto& domains = request.domains;
  const bool several = !domains.empty() && std::ranges::count(domains, domains.front()) != request.size;
  if (several && scatters_only(request.collective)) return units;
  std::uint64_t largest = 1;
  for (const Range& piece : units.front()) largest = std::max(largest, piece.count * request.partial_bytes);
  // What is exchanged lies in slots of every peer, on the GPU.
  const std::uint64_t slots = kSlotsPerPeer * static_cast<std::uint64_t>(request.size - 1);
  const std::uint64_t most_bytes =
      request.exchanges ? std::min(kMostExchangedBytes, kMostSlotBytes / slots) : kMostJoinedBytes;
  const std::uint64_t most = most_bytes / largest;
  const std::size_t together = std::min(units.size() / kLeastJoinedUnits, static_cast<std::size_t>(most));
  if (together < 2) return units;
  std::vector<std::vector<Range>> joined;
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (i % together == 0) {
      joined.push_back(std::move(units[i]));
      continue;
    }
    for (std::size_t owner = 0; owner < units[i].size(); ++owner) joined.back()[owner].count += units[i][owner].count;
  }
  return joined;
}

class ByOwners {
 public:
  ByOwners(const Request& request, Builder& builder, Copies& copies)
      : request_(request),
        builder_(builder),
        copies_(copies),
        rank_(request.rank),
        size_(request.size),
        ring_(request.algorithm == Algorithm::kRing),
        scatters_(scatters_only(request.collective)),
        pieces_(joined_units(request)) {
    if (scatters_) output_at_ = segments_of(request)[index(rank_)].at;
    std::uint64_t largest = 0;
    for (const std::vector<Range>& unit : pieces_) {
      for (const Range& piece : unit) largest = std::max(largest, piece.count);
    }
    ahead_ = scatters_ ? 1 : units_ahead(request, largest);
    const std::size_t slots = kSlotsPerPeer + 2 * (ahead_ - 1);
    // An input and a final of each unit.
    if (ahead_ != 1) builder_.send_window(static_cast<std::uint32_t>(4 * ahead_));
    for (std::int32_t peer = 0; peer < size_; ++peer) {
      slots_.push_back(peer == rank_ ? SlotRing() : builder_.slots(slots, largest));
    }
    readers_.resize(ahead_ + 1, std::vector<StepId>(index(size_), kNoStep));
    finals_.resize(ahead_ + 1, kNoStep);
  }

  void reduce_scatter() {
    for (const std::vector<Range>& unit : pieces_) {
      finals_[0] = kNoStep;
      reduce(unit, 0);
      for (const std::int32_t owner : copies_.owners()) {
        const Range& piece = unit[index(owner)];
        if (is_piece(request_, piece)) {
          // Where it stands in the output matters to the owner alone.
          copies_.back_up(owner, owner, piece, piece.at - output_at_, finals_[0]);
        }
      }
    }
  }

  void allreduce() {
    for (std::size_t unit = 0; unit < pieces_.size() + ahead_; ++unit) {
      if (unit < pieces_.size()) {
        begin_turn();
        finals_[unit % finals_.size()] = kNoStep;
        reduce(pieces_[unit], unit % finals_.size());
      }
      if (unit >= ahead_ && unit - ahead_ < pieces_.size()) {
        begin_turn();
        spread(pieces_[unit - ahead_], (unit - ahead_) % finals_.size());
      }
    }
    builder_.in_turn(0);
  }

 private:
  [[nodiscard]] static std::size_t index(std::int32_t rank) { return static_cast<std::size_t>(rank); }

  void begin_turn() {
    if (request_.exchanges) builder_.in_turn(++turn_);
  }

  [[nodiscard]] bool has(const std::vector<Range>& unit, std::int32_t owner) const {
    const Range& piece = unit[index(owner)];
    return is_piece(request_, piece) && !left_out(request_, piece);
  }

  // `slot`: of readers_ and finals_.
  void reduce(const std::vector<Range>& unit, std::size_t slot) {
    for (std::int32_t distance = 1; distance < size_; ++distance) {
      const std::int32_t to = modulo(rank_ + distance, size_);
      readers_[slot][index(to)] = kNoStep;
      if (!has(unit, to)) continue;
      const Range& piece = unit[index(to)];
      const bool lends = !scatters_ || request_.replicas > 0;
      readers_[slot][index(to)] =
          lends ? builder_.lend(to, piece.at, piece.count) : builder_.send(to, input(piece.at), piece.count);
    }
    if (!has(unit, rank_)) return;
    const Range& piece = unit[index(rank_)];
    inputs_.assign(index(size_), input(piece.at));
    // The ring's order begins after the owner and ends with it, the others' is that of ranks.
    const auto place = [this](std::int32_t rank) { return index(ring_ ? modulo(rank - rank_ - 1, size_) : rank); };
    for (std::int32_t distance = 1; distance < size_; ++distance) {
      const std::int32_t from = modulo(rank_ - distance, size_);
      inputs_[place(from)] = receive(from, piece.count);
    }
    const bool balanced = request_.algorithm == Algorithm::kButterfly;
    const Operand to = output(piece.at - output_at_);
    finals_[slot] = builder_.combine(to, inputs_, balanced ? Bracketing::kBalanced : Bracketing::kChain, piece.count);
    if (copies_.keeps_own()) finals_[slot] = copies_.publish(to, piece, finals_[slot]);
  }

  // The own piece, once that is final, goes to everybody, and theirs come here. `slot`: as of reduce().
  void spread(const std::vector<Range>& unit, std::size_t slot) {
    if (has(unit, rank_)) {
      const Range& piece = unit[index(rank_)];
      for (std::int32_t distance = 1; distance < size_; ++distance) {
        builder_.send(modulo(rank_ + distance, size_), output(piece.at), piece.count, {finals_[slot]});
      }
    }
    for (std::int32_t distance = 1; distance < size_; ++distance) {
      const std::int32_t from = modulo(rank_ - distance, size_);
      if (!has(unit, from)) continue;
      const Range& piece = unit[index(from)];
      const Operand received = receive(from, piece.count);
      const StepId placed =
          builder_.copy(output(piece.at), received, piece.count, false, {readers_[slot][index(from)]});
      const bool keeps = request_.exchanges ? copies_.keeps_for(from) : copies_.keeps_from(from);
      if (keeps) copies_.publish(output(piece.at), piece, placed);
    }
  }

  Operand receive(std::int32_t from, std::uint64_t count) {
    const Operand received = slots_[index(from)].next().as(Form::kValue);
    builder_.recv(from, received, count);
    return received;
  }

  const Request& request_;
  Builder& builder_;
  Copies& copies_;
  std::int32_t rank_;
  std::int32_t size_;
  bool ring_;
  bool scatters_;
  std::uint64_t output_at_ = 0;             // where the output begins in the whole result
  std::vector<std::vector<Range>> pieces_;  // by unit, then by owner
  std::vector<SlotRing> slots_;             // by peer
  std::vector<Operand> inputs_;             // in the bracketing's order: of the unit at hand
  std::uint64_t ahead_ = 1;
  // Of the newest units, in turn. By owner: who reads the input of its piece; and what makes the own final.
  std::vector<std::vector<StepId>> readers_;
  std::vector<StepId> finals_;
  std::uint32_t turn_ = 0;
};

// One rank makes everybody's finals. Pieces of a block are bracketed alike, so what is not left out goes as a whole.
class OneOwner {
 public:
  OneOwner(const Request& request, Builder& builder, Copies& copies)
      : request_(request), builder_(builder), copies_(copies), inputs_(static_cast<std::size_t>(request.size)) {}

  void run() {
    const std::vector<Range> parts = wanted();
    std::uint64_t largest = 0;
    for (const Range& part : parts) largest = std::max(largest, part.count);
    for (std::int32_t peer = 0; peer < request_.size; ++peer) {
      const bool talks = (request_.rank == request_.owner) != (peer == request_.owner);
      slots_.push_back(talks ? builder_.slots(kSlotsPerPeer, largest) : SlotRing());
    }
    for (const Range& part : parts) request_.rank == request_.owner ? own(part) : take(part);
  }

 private:
  // Neighbouring pieces of a block together, as far as a message carries them.
  [[nodiscard]] std::vector<Range> wanted() const {
    std::vector<Range> parts;
    for (std::vector<Range> block : butterfly_pieces(request_)) {
      std::ranges::sort(block, {}, &Range::at);
      bool joins = false;
      for (const Range& piece : block) {
        if (piece.count == 0) continue;
        const bool wanted = !left_out(request_, piece);
        if (wanted && joins && parts.back().count + piece.count <= request_.chunk_elements) {
          parts.back().count += piece.count;
        } else if (wanted) {
          parts.push_back(piece);
        }
        joins = wanted;
      }
    }
    return parts;
  }

  void own(const Range& part) {
    const std::int32_t self = request_.rank;
    inputs_[static_cast<std::size_t>(self)] = input(part.at);
    for (std::int32_t from = 0; from < request_.size; ++from) {
      if (from != self) inputs_[static_cast<std::size_t>(from)] = receive(from, part.count);
    }
    StepId final = builder_.combine(output(part.at), inputs_, Bracketing::kBalanced, part.count);
    if (copies_.keeps_own()) final = copies_.publish(output(part.at), part, final);
    for (std::int32_t to = 0; to < request_.size; ++to) {
      if (to != self) builder_.send(to, output(part.at), part.count, {final});
    }
  }

  void take(const Range& part) {
    const StepId lent = builder_.lend(request_.owner, part.at, part.count);
    const Operand received = receive(request_.owner, part.count);
    const StepId placed = builder_.copy(output(part.at), received, part.count, false, {lent});
    if (copies_.keeps_from(request_.owner)) copies_.publish(output(part.at), part, placed);
  }

  Operand receive(std::int32_t from, std::uint64_t count) {
    const Operand received = slots_[static_cast<std::size_t>(from)].next().as(Form::kValue);
    builder_.recv(from, received, count);
    return received;
  }

  const Request& request_;
  Builder& builder_;
  Copies& copies_;
  std::vector<SlotRing> slots_;  // by peer
  std::vector<Operand> inputs_;  // by rank
};

bool share_a_host(const Request& request) {
  return request.size > 1 && request.size <= kMostRanksWithinHost && !request.hosts.empty() &&
         std::ranges::count(request.hosts, request.hosts.front()) == request.size;
}

}  // namespace

std::vector<std::vector<Range>> units_of(const Request& request) {
  if (request.algorithm == Algorithm::kButterfly) return butterfly_pieces(request);
  std::vector<std::vector<Range>> units;
  const std::vector<Range> segments = segments_of(request);
  for (std::size_t owner = 0; owner < segments.size(); ++owner) {
    const std::uint64_t chunks = chunks_of(segments[owner].count, request.chunk_elements);
    if (units.size() < chunks) units.resize(chunks, std::vector<Range>(segments.size(), kNoPiece));
    for (std::uint64_t c = 0; c < chunks; ++c) units[c][owner] = cut(segments[owner], chunks, c);
  }
  return units;
}

bool pieces_are_large(const Request& request) {
  const std::uint64_t piece = result_elements(request) / static_cast<std::uint64_t>(std::max(request.size, 1));
  return piece >= kLeastPieceBytes / request.element_bytes;
}

bool on_one_host(const Request& request) {
  return share_a_host(request) && pieces_are_large(request) && (request.host.maps || request.size <= kMostRanksByTcp);
}

bool read_each_other(const Request& request) {
  return share_a_host(request) && request.host.maps;
}

bool has_owner(const Request& request) {
  return request.collective == Collective::kAllreduce && request.algorithm == Algorithm::kButterfly &&
         request.size > 2 && share_a_host(request) && !doubles(request) &&
         request.count <= std::numeric_limits<std::uint64_t>::max() / request.element_bytes &&
         one_owner_serves(request.size, request.count * request.element_bytes, request.host.cores);
}

bool can_exchange(const Request& request) {
  const bool in_pieces = request.algorithm == Algorithm::kRing ||
                         (request.algorithm == Algorithm::kButterfly && request.size > 1 && !doubles(request));
  return request.collective == Collective::kAllreduce && in_pieces && request.size > 1 && request.replicas > 0 &&
         request.count > kWholeBytes / request.element_bytes && !request.settles && !request.resumed &&
         request.final.empty();
}

void one_owner_allreduce(const Request& request, Builder& builder, Copies& copies) {
  OneOwner(request, builder, copies).run();
}

void host_allreduce(const Request& request, Builder& builder, Copies& copies) {
  ByOwners(request, builder, copies).allreduce();
}

void host_reduce_scatter(const Request& request, Builder& builder, Copies& copies) {
  ByOwners(request, builder, copies).reduce_scatter();
}

void exchange_allreduce(const Request& request, Builder& builder, Copies& copies) {
  ByOwners(request, builder, copies).allreduce();
}

}  // namespace warren::schedule
