#include "chaos/sim/program_step.h"

#include <numeric>

#include "chaos/sim/elements.h"

namespace warren::chaos {
namespace {

// The number of elements in one row of counts. A collective in which ranks exchange shares has several rows.
std::uint64_t sum_of(std::span<const std::uint64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}

}  // namespace

std::size_t width_of(const ProgramStep& step) {
  return step.type == DataType::kCustom ? sizeof(Affine) : element_bytes(step.type);
}

bool shared_result(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kBroadcast ||
         collective == Collective::kAllgather || collective == Collective::kAllgatherv;
}

bool reduces(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter || collective == Collective::kReduceScatterv;
}

std::uint64_t below(std::span<const std::uint64_t> counts, std::size_t place) {
  return sum_of(counts.first(place));
}

std::vector<std::uint64_t> sent_by(const ProgramStep& step, std::size_t size, std::int32_t place) {
  const auto row = std::span(step.counts).subspan(static_cast<std::size_t>(place) * size, size);
  return {row.begin(), row.end()};
}

std::vector<std::uint64_t> got_by(const ProgramStep& step, std::size_t size, std::int32_t place) {
  std::vector<std::uint64_t> column;
  for (std::size_t r = 0; r < size; ++r) column.push_back(step.counts[r * size + static_cast<std::size_t>(place)]);
  return column;
}

std::uint64_t first_of(const ProgramStep& step, std::int32_t place) {
  if (step.collective == Collective::kReduceScatter) return static_cast<std::uint64_t>(place) * step.count;
  return step.collective == Collective::kReduceScatterv ? below(step.counts, static_cast<std::size_t>(place)) : 0;
}

std::uint64_t in_count(const ProgramStep& step, std::size_t size, std::int32_t place) {
  switch (step.collective) {
    case Collective::kBroadcast:
    case Collective::kBarrier: return 0;
    case Collective::kAllgatherv: return step.counts[static_cast<std::size_t>(place)];
    case Collective::kReduceScatterv: return sum_of(step.counts);
    case Collective::kAllToAllv: return sum_of(sent_by(step, size, place));
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return step.count * size;
    case Collective::kScatter: return place == step.root ? step.count * size : 0;
    case Collective::kPoint: return place == step.root ? step.count : 0;
    default: return step.count;
  }
}

std::uint64_t out_count(const ProgramStep& step, std::size_t size, std::int32_t place) {
  switch (step.collective) {
    case Collective::kBarrier: return 0;
    case Collective::kReduce: return place == step.root ? step.count : 0;
    case Collective::kAllgather:
    case Collective::kAllToAll: return step.count * size;
    case Collective::kAllgatherv: return sum_of(step.counts);
    case Collective::kReduceScatterv: return step.counts[static_cast<std::size_t>(place)];
    case Collective::kAllToAllv: return sum_of(got_by(step, size, place));
    case Collective::kGather: return place == step.root ? step.count * size : 0;
    case Collective::kPoint: return place == step.receiver ? step.count : 0;
    default: return step.count;
  }
}

std::int64_t in_place_at(const ProgramStep& step, std::int32_t place) {
  const auto offset = place * static_cast<std::int64_t>(step.count);
  switch (step.collective) {
    case Collective::kAllgather:
    case Collective::kGather: return offset;
    case Collective::kReduceScatter:
    case Collective::kScatter: return -offset;
    case Collective::kAllgatherv: return static_cast<std::int64_t>(below(step.counts, static_cast<std::size_t>(place)));
    case Collective::kReduceScatterv:
      return -static_cast<std::int64_t>(below(step.counts, static_cast<std::size_t>(place)));
    default: return 0;
  }
}

}  // namespace warren::chaos
