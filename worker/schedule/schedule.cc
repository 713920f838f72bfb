#include "worker/schedule/schedule.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

using Generator = void (*)(const Request&, Builder&, Copies&);

struct Service {
  Algorithm algorithm{};
  Generator generate = nullptr;
};

constexpr std::string_view kNames[] = {"auto", "star", "tree", "butterfly", "ring", "direct"};

// The table of docs/algorithms.md: who serves what, best for large buffers first.
struct Row {
  std::array<Algorithm, 5> algorithms{};
  std::array<Generator, 5> generators{};
  std::size_t size = 0;
};

template <std::size_t N>
constexpr Row row(const Service (&services)[N]) {
  Row made;
  for (const Service& service : services) {
    made.algorithms[made.size] = service.algorithm;
    made.generators[made.size++] = service.generate;
  }
  return made;
}

constexpr Row kAllreduce = row({{Algorithm::kRing, ring_exchange},
                                {Algorithm::kDirect, direct_allreduce},
                                {Algorithm::kButterfly, butterfly_allreduce},
                                {Algorithm::kTree, tree_allreduce},
                                {Algorithm::kStar, tree_allreduce}});
constexpr Row kReduce =
    row({{Algorithm::kRing, ring_reduce}, {Algorithm::kTree, tree_reduce}, {Algorithm::kStar, tree_reduce}});
constexpr Row kBroadcast =
    row({{Algorithm::kRing, ring_broadcast}, {Algorithm::kTree, tree_broadcast}, {Algorithm::kStar, tree_broadcast}});
constexpr Row kBarrier = row({{Algorithm::kButterfly, butterfly_allreduce}, {Algorithm::kStar, tree_allreduce}});
constexpr Row kAllgather = row({{Algorithm::kRing, ring_exchange}, {Algorithm::kDirect, direct_allgather}});
constexpr Row kReduceScatter = row({{Algorithm::kRing, ring_exchange}, {Algorithm::kDirect, direct_reduce_scatter}});
constexpr Row kGather = row({{Algorithm::kStar, star_gather}});
constexpr Row kScatter = row({{Algorithm::kStar, star_scatter}});
constexpr Row kAllToAll = row({{Algorithm::kDirect, direct_all_to_all}});
constexpr Row kNobody{};

const Row& row_of(Collective collective) {
  switch (collective) {
    case Collective::kAllreduce: return kAllreduce;
    case Collective::kReduce: return kReduce;
    case Collective::kBroadcast: return kBroadcast;
    case Collective::kBarrier: return kBarrier;
    case Collective::kAllgather:
    case Collective::kAllgatherv: return kAllgather;
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv: return kReduceScatter;
    case Collective::kGather: return kGather;
    case Collective::kScatter: return kScatter;
    case Collective::kAllToAll:
    case Collective::kAllToAllv: return kAllToAll;
    case Collective::kPoint: return kNobody;
  }
  return kNobody;
}

bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast ||
         collective == Collective::kGather || collective == Collective::kScatter;
}

std::string join(std::span<const Algorithm> algorithms) {
  std::string text;
  for (const Algorithm algorithm : algorithms) {
    if (!text.empty()) text += ", ";
    text += to_string(algorithm);
  }
  return text;
}

Status refuse(const Request& request, const std::string& why) {
  return {Code::kInvalidArgument, std::string("no schedule for ") + to_string(request.collective) + ": " + why};
}

bool has_counts(Collective collective) {
  return collective == Collective::kAllgatherv || collective == Collective::kReduceScatterv ||
         collective == Collective::kAllToAllv;
}

std::size_t counts_needed(const Request& request) {
  const auto size = static_cast<std::size_t>(request.size);
  return request.collective == Collective::kAllToAllv ? size * size : size;
}

// The larger buffer of any rank, in elements: checked before that all of them together do not overflow.
std::uint64_t most_exchanged(const Request& request) {
  const auto size = static_cast<std::size_t>(request.size);
  std::vector<std::uint64_t> in(size), out(size);
  for (std::size_t i = 0; i < size * size; ++i) {
    out[i / size] += request.counts[i];
    in[i % size] += request.counts[i];
  }
  return std::max(*std::ranges::max_element(in), *std::ranges::max_element(out));
}

// Elements of all ranks' shares together, or of what any rank exchanges, checked against overflow. Offsets stay below
// this.
Status add_up(const Request& request, std::uint64_t& total) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 62;
  if (!has_counts(request.collective)) {
    const auto size = static_cast<std::uint64_t>(request.size);
    if (request.count > kMost / size)
      return refuse(request, "count " + std::to_string(request.count) + " is too large");
    total = request.count * size;
    if (request.collective == Collective::kAllToAll && total > kMost / size) {
      return refuse(request, "count " + std::to_string(request.count) + " is too large");
    }
    return {};
  }
  total = 0;
  for (const std::uint64_t count : request.counts) {
    if (count > kMost - total) return refuse(request, "the sum of counts is too large");
    total += count;
  }
  if (request.collective == Collective::kAllToAllv) total = most_exchanged(request);
  return {};
}

// A bound on the steps of the schedule, so that it is refused before it fills the memory: a message costs its rank at
// most four steps, all ranks' shares come and go once, and each of 2·K turns may end with a message that is not full.
Status bound_steps(const Request& request, std::uint64_t total) {
  constexpr std::uint64_t kMostMessages = std::uint64_t{1} << 24;
  const auto size = static_cast<std::uint64_t>(request.size);
  // Only a root of a star, or a rank that holds all shares, sees them all; the others see two buffers.
  const bool everything = request.algorithm == Algorithm::kStar || request.collective == Collective::kAllgather ||
                          request.collective == Collective::kReduceScatter ||
                          request.collective == Collective::kAllToAll || has_counts(request.collective);
  // A root may send a broadcast to each rank, wherever they sit in this attempt.
  const bool flat = request.collective == Collective::kBroadcast &&
                    (request.algorithm == Algorithm::kStar || request.size <= kMostRanksWithinHost);
  const std::uint64_t elements = (everything ? total : request.count) * (flat ? size - 1 : 1);
  const std::uint64_t kept = most_kept_for_others(request);
  std::uint64_t messages = 2 * (elements / request.chunk_elements + 2 * size);
  if (request.exchanges) messages *= 2;  // each has a word
  // What comes from one owner that this rank keeps copies for, and what leaves for those that keep its own.
  const std::uint64_t result = request.collective == Collective::kReduce ||
                                       request.collective == Collective::kReduceScatter ||
                                       request.collective == Collective::kScatter
                                   ? request.count
                                   : total;  // of unequal ones, more than enough
  if (kept > 0)
    messages += (kept + std::min<std::uint64_t>(request.replicas, size)) * (result / request.chunk_elements + size);
  if (messages <= kMostMessages) return {};
  return {Code::kExhausted, std::string("no schedule for ") + to_string(request.collective) + ": it would take about " +
                                std::to_string(messages) + " messages a rank, the limit is " +
                                std::to_string(kMostMessages) + "; raise the chunk size or split the buffer"};
}

Status check_order(const Request& request) {
  if (request.order.empty()) return {};
  if (request.collective != Collective::kAllreduce || request.algorithm != Algorithm::kRing) {
    return refuse(request, "by algorithm " + std::string(to_string(request.algorithm)) + " it has no order of ranks");
  }
  std::vector<std::uint32_t> ranks(request.order.begin(), request.order.end());
  std::ranges::sort(ranks);
  bool all = ranks.size() == static_cast<std::size_t>(request.size);
  for (std::size_t i = 0; i < ranks.size(); ++i) all = all && ranks[i] == i;
  if (all) return {};
  return refuse(request, "its order does not have each of " + std::to_string(request.size) + " ranks once");
}

// The same of positions in the order: the rank at the first one counts as 0.
class ByPosition {
 public:
  explicit ByPosition(const Request& by_rank) : request_(by_rank) {
    if (by_rank.order.empty()) return;
    const auto self = static_cast<std::uint32_t>(by_rank.rank);
    request_.rank = static_cast<std::int32_t>(std::ranges::find(by_rank.order, self) - by_rank.order.begin());
    for (const std::uint32_t rank : by_rank.order) {
      if (!by_rank.hosts.empty()) hosts_.push_back(by_rank.hosts[rank]);
      if (!by_rank.domains.empty()) domains_.push_back(by_rank.domains[rank]);
    }
    request_.hosts = hosts_;
    request_.domains = domains_;
  }
  ByPosition(const ByPosition&) = delete;
  ByPosition& operator=(const ByPosition&) = delete;

  [[nodiscard]] Request& request() { return request_; }
  [[nodiscard]] Schedule by_rank(Schedule schedule) const {
    for (Step& step : schedule.steps) {
      if (step.peer >= 0 && !request_.order.empty()) {
        step.peer = static_cast<std::int32_t>(request_.order[static_cast<std::size_t>(step.peer)]);
      }
    }
    return schedule;
  }

 private:
  Request request_;
  std::vector<std::uint32_t> hosts_, domains_;
};

Status validate(const Request& request, std::uint64_t& total) {
  if (request.size < 1 || static_cast<std::uint32_t>(request.size) > limits::kMaxWorldSize) {
    return refuse(request,
                  "size " + std::to_string(request.size) + " is not in 1 … " + std::to_string(limits::kMaxWorldSize));
  }
  if (request.rank < 0 || request.rank >= request.size) {
    return refuse(request,
                  "rank " + std::to_string(request.rank) + " is not in 0 … " + std::to_string(request.size - 1));
  }
  if (has_root(request.collective) && (request.root < 0 || request.root >= request.size)) {
    return refuse(request,
                  "root " + std::to_string(request.root) + " is not in 0 … " + std::to_string(request.size - 1));
  }
  if (request.owner < 0 || request.owner >= request.size) {
    return refuse(request,
                  "owner " + std::to_string(request.owner) + " is not in 0 … " + std::to_string(request.size - 1));
  }
  if (request.chunk_elements < 1) return refuse(request, "a chunk has at least one element");
  if (has_counts(request.collective) && request.counts.size() != counts_needed(request)) {
    return refuse(request, std::to_string(request.counts.size()) + " counts were given for " +
                               std::to_string(request.size) + " ranks");
  }
  for (const auto& [places, what] : {std::pair{request.hosts, "hosts"}, std::pair{request.domains, "domains"}}) {
    if (places.empty() || places.size() == static_cast<std::size_t>(request.size)) continue;
    return refuse(request, std::to_string(places.size()) + " " + what + " were given for " +
                               std::to_string(request.size) + " ranks");
  }
  if (Status status = check_order(request); !status.ok()) return status;
  if (request.element_bytes < 1) return refuse(request, "an element has at least one byte");
  if (request.exchanges && !can_exchange(request)) return refuse(request, "it is none that GPUs exchange");
  return add_up(request, total);
}

// The piece with element `at` of the whole result, as schedules publish it or leave it out.
Range piece_at(const Request& request, const std::vector<Range>& segments, std::uint64_t at) {
  const Collective collective = request.collective;
  if (request.size > 1 && request.algorithm == Algorithm::kButterfly) return butterfly_piece_at(request, at);
  const bool whole = collective == Collective::kReduce || collective == Collective::kBroadcast ||
                     request.algorithm == Algorithm::kTree ||
                     (collective == Collective::kAllreduce && request.algorithm == Algorithm::kStar);
  Range unit{0, request.count};
  if (collective == Collective::kAllToAll) {
    unit.at = at / request.count * request.count;
  } else if (collective == Collective::kAllToAllv) {
    unit = Blocks(request).with(at);
  } else if (!whole) {
    const auto after = [](std::uint64_t value, const Range& segment) { return value < segment.at; };
    unit = *(std::upper_bound(segments.begin(), segments.end(), at, after) - 1);
  }
  const std::uint64_t chunks = chunks_of(unit.count, request.chunk_elements);
  return cut(unit, chunks, part_of(unit, chunks, at));
}

// The pieces that are left out were published by schedules with this same cut, in this or another attempt.
Status check_cut(const Request& request) {
  if (request.final.empty()) return {};
  const std::uint64_t total = result_elements(request);
  const std::vector<Range> segments = segments_of(request);
  for (const Interval& i : request.final.intervals()) {
    for (const std::uint64_t at : {i.begin, i.end}) {
      if (at == total || (at < total && piece_at(request, segments, at).at == at)) continue;
      return refuse(request, "elements " + std::to_string(i.begin) + " to " + std::to_string(i.end) + " of " +
                                 std::to_string(total) + " are final, which was cut differently: no piece begins at " +
                                 std::to_string(at));
    }
  }
  return {};
}

// One rank alone: the input is the result.
void alone(const Request& request, Builder& builder, Copies& copies) {
  const bool finish = request.collective == Collective::kAllreduce || request.collective == Collective::kReduce ||
                      scatters_only(request.collective);
  const Range whole = request.collective == Collective::kBarrier ? Range{} : segments_of(request)[0];
  const std::uint64_t chunks = chunks_of(whole.count, request.chunk_elements);
  for (std::uint64_t c = 0; c < chunks; ++c) {
    const Range chunk = cut(whole, chunks, c);
    if (left_out(request, chunk)) continue;
    const StepId placed = builder.copy(output(chunk.at), input(chunk.at), chunk.count, finish);
    if (copies.keeps_own()) copies.publish(output(chunk.at), chunk, placed);
  }
}

}  // namespace

std::string_view to_string(Algorithm algorithm) {
  const auto i = static_cast<std::size_t>(algorithm);
  return i < std::size(kNames) ? kNames[i] : "unknown";
}

Result<Algorithm> parse_algorithm(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kNames); ++i) {
    if (name == kNames[i]) return static_cast<Algorithm>(i);
  }
  return Status(Code::kInvalidArgument, "no algorithm is called \"" + std::string(name) +
                                            "\": use auto, star, tree, butterfly, ring or direct");
}

std::vector<Range> segments_of(const Request& request) {
  const auto size = static_cast<std::size_t>(request.size);
  std::vector<Range> segments;
  segments.reserve(size);
  std::uint64_t at = 0;
  for (std::size_t i = 0; i < size; ++i) {
    if (request.collective == Collective::kAllreduce || request.collective == Collective::kReduce ||
        request.collective == Collective::kBroadcast) {
      segments.push_back(cut({0, request.count}, size, i));
      continue;
    }
    const std::uint64_t count = request.counts.empty() ? request.count : request.counts[i];
    segments.push_back({at, count});
    at += count;
  }
  return segments;
}

Blocks::Blocks(const Request& request)
    : size_(request.size), equal_(request.count), begins_(static_cast<std::size_t>(request.size) + 1) {
  if (request.collective == Collective::kAllToAllv) counts_ = request.counts;
  const auto size = static_cast<std::size_t>(size_);
  for (std::size_t i = 0; i < counts_.size(); ++i) begins_[i % size + 1] += counts_[i];
  for (std::size_t to = 0; to < size; ++to) {
    if (counts_.empty()) begins_[to + 1] = size * equal_;
    begins_[to + 1] += begins_[to];
  }
}

std::vector<Range> Blocks::sent_by(std::int32_t from) const {
  std::vector<Range> blocks;
  std::uint64_t at = 0;
  for (std::int32_t to = 0; to < size_; ++to) {
    blocks.push_back({at, count(from, to)});
    at += blocks.back().count;
  }
  return blocks;
}

std::vector<Range> Blocks::got_by(std::int32_t to) const {
  std::vector<Range> blocks;
  std::uint64_t at = begins_[static_cast<std::size_t>(to)];
  for (std::int32_t from = 0; from < size_; ++from) {
    blocks.push_back({at, count(from, to)});
    at += blocks.back().count;
  }
  return blocks;
}

Range Blocks::with(std::uint64_t at) const {
  const auto owner = std::ranges::upper_bound(begins_, at) - begins_.begin() - 1;
  for (const Range& block : got_by(static_cast<std::int32_t>(owner))) {
    if (at < block.at + block.count) return block;
  }
  WARREN_UNREACHABLE("the element is one of the result");
}

std::span<const Algorithm> algorithms_for(Collective collective) {
  const Row& row = row_of(collective);
  return {row.algorithms.data(), row.size};
}

Ranges whole_pieces(const Request& request, const Ranges& final) {
  Ranges whole;
  const std::uint64_t total = result_elements(request);
  const std::vector<Range> segments = segments_of(request);
  const Ranges known = final.intersect(0, total);
  for (auto [begin, end] : known.intervals()) {
    if (const Range piece = piece_at(request, segments, begin); piece.at != begin) begin = piece.at + piece.count;
    if (end != total) end = piece_at(request, segments, end).at;
    whole.add(begin, end);
  }
  return whole;
}

Result<Schedule> make(const Request& request) {
  std::uint64_t total = 0;
  if (Status status = validate(request, total); !status.ok()) return status;
  const Row& row = row_of(request.collective);
  if (row.size == 0) return refuse(request, "messages between two ranks have none");
  Generator generate = nullptr;
  for (std::size_t i = 0; i < row.size; ++i) {
    if (row.algorithms[i] == request.algorithm) generate = row.generators[i];
  }
  if (generate == nullptr) {
    return refuse(request, "algorithm " + std::string(to_string(request.algorithm)) + " does not serve it; use " +
                               join(algorithms_for(request.collective)));
  }
  if (Status status = bound_steps(request, total); !status.ok()) return status;

  ByPosition positions(request);
  Request& exact = positions.request();
  if (!has_root(exact.collective)) exact.root = 0;
  if (exact.collective == Collective::kBarrier) exact.count = 0;
  if (Status status = check_cut(exact); !status.ok()) return status;
  Builder builder(exact.size);
  Copies copies(exact, builder);
  if (exact.size == 1) {
    alone(exact, builder, copies);
  } else {
    generate(exact, builder, copies);
    copies.close();
  }
  Schedule schedule = positions.by_rank(std::move(builder).build());
  for (std::int32_t rank = 0; rank < request.size && !request.hosts.empty(); ++rank) {
    const auto host = [&](std::int32_t of) { return request.hosts[static_cast<std::size_t>(of)]; };
    if (rank != request.rank && host(rank) == host(request.rank)) schedule.mates.push_back(rank);
  }
  return schedule;
}

Cost cost(const Schedule& schedule) {
  Cost cost;
  for (const Step& step : schedule.steps) {
    switch (step.kind) {
      case StepKind::kSend:
        ++cost.sends;
        cost.sent_elements += step.count;
        break;
      case StepKind::kRecv:
        ++cost.receives;
        cost.received_elements += step.count;
        break;
      case StepKind::kReduce: cost.reduced_elements += step.count; break;
      case StepKind::kCombine: cost.reduced_elements += (step.operands - 1) * step.count; break;
      case StepKind::kCopy: cost.copied_elements += step.count; break;
      case StepKind::kPublish:
        ++cost.publishes;
        cost.published_elements += step.count;
        break;
    }
  }
  return cost;
}

}  // namespace warren::schedule
