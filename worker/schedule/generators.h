// The generators behind make(): one file each. Requests are valid here and have size ≥ 2.
#pragma once

#include "worker/schedule/builder.h"
#include "worker/schedule/copies.h"
#include "worker/schedule/schedule.h"

namespace warren::schedule {

// The butterfly sends everything at each level up to this part of a chunk: there another log2 P latencies cost more.
inline constexpr std::uint64_t kDoublingPartOfChunk = 16;
// Within a host each rank writes to every other one: more than so many are better served by partners.
inline constexpr std::int32_t kMostRanksWithinHost = 16;
// Likewise where hosts do not map memory: what goes by TCP costs the same to any rank, and more messages cost more.
// 8 ranks on 2 cores: 1 MiB by owners took 4.5 ms, by partners 3.2; 4 ranks gain by owners.
inline constexpr std::int32_t kMostRanksByTcp = 4;
// Each message wakes a rank where cores are shared, and these are more messages than partners send each other.
inline constexpr std::uint64_t kLeastPieceBytes = std::uint64_t{16} << 10;
// Up to so many bytes times the square of the ranks that share a core, one owner serves them. The messages that owners
// send each other, and all their waking, are carried out by all cores; the one owner's by one. Measured on 2 cores, 4
// and 8 ranks; see docs/decisions/0021-who-is-on-a-host.md.
inline constexpr std::uint64_t kOneOwnerBytes = std::uint64_t{16} << 10;

// ring.cc
void ring_exchange(const Request& request, Builder& builder,
                   Copies& copies);  // allreduce, reduce_scatter and allgather, equal and unequal
void ring_reduce(const Request& request, Builder& builder, Copies& copies);
void ring_broadcast(const Request& request, Builder& builder, Copies& copies);

// tree.cc: binomial and star-shaped
void tree_reduce(const Request& request, Builder& builder, Copies& copies);
void tree_broadcast(const Request& request, Builder& builder, Copies& copies);
void tree_allreduce(const Request& request, Builder& builder, Copies& copies);  // a barrier is an allreduce of nothing

// butterfly.cc
void butterfly_allreduce(const Request& request, Builder& builder, Copies& copies);
// Instead of all else.
[[nodiscard]] bool doubles(const Request& request);
// The piece with element `at` of the result, as the butterfly publishes it.
[[nodiscard]] Range butterfly_piece_at(const Request& request, std::uint64_t at);
// By block, then by rank: the piece that it computes, of no element where it computes none.
[[nodiscard]] std::vector<std::vector<Range>> butterfly_pieces(const Request& request);

// direct.cc
void direct_allreduce(const Request& request, Builder& builder, Copies& copies);
// Equal and unequal.
void direct_reduce_scatter(const Request& request, Builder& builder, Copies& copies);
void direct_allgather(const Request& request, Builder& builder, Copies& copies);
void direct_all_to_all(const Request& request, Builder& builder, Copies& copies);

// host.cc: of the ring, or the butterfly where it halves
[[nodiscard]] bool on_one_host(const Request& request);
// Few enough on a host that maps memory: nothing is gained where one hands on what another one could read itself.
[[nodiscard]] bool read_each_other(const Request& request);
// Whether all ranks get a broadcast from its root, which they can read in its log.
[[nodiscard]] inline bool read_the_root(const Request& request) {
  return request.collective == Collective::kBroadcast && request.replicas > 0 && read_each_other(request);
}
void host_allreduce(const Request& request, Builder& builder, Copies& copies);
// Of the ring, or direct.
void host_reduce_scatter(const Request& request, Builder& builder, Copies& copies);
// Of the butterfly where it halves: whether one rank makes all finals for ranks of one host.
[[nodiscard]] inline bool one_owner_serves(std::int32_t size, std::uint64_t bytes, std::uint32_t cores) {
  const auto k = static_cast<std::uint64_t>(size), c = static_cast<std::uint64_t>(cores);
  return size <= kMostRanksWithinHost && c != 0 && k >= 2 * c && bytes <= kOneOwnerBytes * k * k / (c * c);
}
void one_owner_allreduce(const Request& request, Builder& builder, Copies& copies);
// By unit, then by owner: its piece of what is moved at once, where it has one.
[[nodiscard]] std::vector<std::vector<Range>> units_of(const Request& request);
// Whether it has one. A share without elements, of a collective that has counts, has a piece without elements, whose
// header travels, so that ranks that disagree meet; elsewhere that is so where the whole result has none.
inline constexpr Range kNoPiece{UINT64_MAX, 0};
[[nodiscard]] inline bool is_piece(const Request& request, const Range& piece) {
  if (piece.count > 0) return true;
  return request.counts.empty() ? request.count == 0 : piece.at != kNoPiece.at;
}
// Whether a rank's share is worth a message to each other rank of the host.
[[nodiscard]] bool pieces_are_large(const Request& request);

// host.cc: of the ring, or the butterfly where it halves, from GPU to GPU, wherever ranks sit
void exchange_allreduce(const Request& request, Builder& builder, Copies& copies);

// hierarchical.cc: likewise; also a reduce_scatter of the ring, or direct, and an allgather, equal or unequal
[[nodiscard]] bool on_several_hosts(const Request& request);
void hierarchical(const Request& request, Builder& builder, Copies& copies);

// star.cc
void star_gather(const Request& request, Builder& builder, Copies& copies);
void star_scatter(const Request& request, Builder& builder, Copies& copies);

// The ranks' shares of the buffer that a collective cuts or joins. Not of an all_to_allv.
[[nodiscard]] std::vector<Range> segments_of(const Request& request);

// The blocks of an all_to_all, equal or not.
class Blocks {
 public:
  explicit Blocks(const Request& request);
  [[nodiscard]] std::uint64_t count(std::int32_t from, std::int32_t to) const {
    return counts_.empty() ? equal_
                           : counts_[static_cast<std::size_t>(from) * static_cast<std::size_t>(size_) +
                                     static_cast<std::size_t>(to)];
  }
  // The whole result has no element.
  [[nodiscard]] bool nothing() const { return begins_.back() == 0; }
  // By receiver, the blocks in the input of `from`; by sender, those in the output of `to`, as the whole result has it.
  [[nodiscard]] std::vector<Range> sent_by(std::int32_t from) const;
  [[nodiscard]] std::vector<Range> got_by(std::int32_t to) const;
  // The block with element `at` of the whole result.
  [[nodiscard]] Range with(std::uint64_t at) const;

 private:
  std::int32_t size_;
  std::uint64_t equal_;
  std::span<const std::uint64_t> counts_;
  std::vector<std::uint64_t> begins_;  // of ranks' outputs in the whole result, and its end
};

[[nodiscard]] inline bool scatters_only(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kReduceScatterv;
}

[[nodiscard]] inline bool gathers_only(Collective collective) {
  return collective == Collective::kAllgather || collective == Collective::kAllgatherv;
}

[[nodiscard]] inline std::int32_t modulo(std::int32_t rank, std::int32_t size) {
  return rank < 0 ? rank + size : rank < size ? rank : rank - size;
}

}  // namespace warren::schedule
