#include "tests/worker/schedule/layout.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "recovery/base/check.h"

namespace warren::schedule::symbolic {
namespace {

using Leaf = std::function<Expression(std::int32_t rank)>;

bool has_counts(const World& world) {
  return world.collective == Collective::kAllgatherv || world.collective == Collective::kReduceScatterv;
}

// What rank `from` sends to rank `to` in an all_to_allv, and to all below it.
std::uint64_t sent(const World& world, std::int32_t from, std::int32_t to) {
  return world.counts[static_cast<std::size_t>(from * world.size + to)];
}
std::uint64_t sent_below(const World& world, std::int32_t from, std::int32_t to) {
  std::uint64_t n = 0;
  for (std::int32_t rank = 0; rank < to; ++rank) n += sent(world, from, rank);
  return n;
}
std::uint64_t got_by(const World& world, std::int32_t rank) {
  std::uint64_t n = 0;
  for (std::int32_t from = 0; from < world.size; ++from) n += sent(world, from, rank);
  return n;
}

std::uint64_t offset_of(const World& world, std::int32_t rank) {
  if (world.collective == Collective::kAllToAllv) return 0;
  if (has_counts(world)) {
    return std::accumulate(world.counts.begin(), world.counts.begin() + rank, std::uint64_t{0});
  }
  return static_cast<std::uint64_t>(rank) * world.count;
}

std::uint64_t share_of(const World& world, std::int32_t rank) {
  return has_counts(world) ? world.counts[static_cast<std::size_t>(rank)] : world.count;
}

// Who owns an element when n elements are shared out evenly, the first n mod K ranks having one more.
std::int32_t owner_of(std::uint64_t element, std::uint64_t n, std::int32_t size) {
  std::uint64_t end = 0;
  for (std::int32_t rank = 0; rank < size; ++rank) {
    end += n / size + (static_cast<std::uint64_t>(rank) < n % size ? 1 : 0);
    if (element < end) return rank;
  }
  WARREN_UNREACHABLE("every element has an owner");
}

// A balanced binary tree over [first, first + width), cut off at `end`.
Expression balanced(std::int32_t first, std::int32_t width, std::int32_t end, const Leaf& leaf, Expressions& all) {
  if (width == 1) return leaf(first);
  const Expression left = balanced(first, width / 2, end, leaf, all);
  if (first + width / 2 >= end) return left;
  return all.combine(left, balanced(first + width / 2, width / 2, end, leaf, all));
}

// `last`: the owner of a ring's segment or the end of its chain; `root`: the tree's.
Expression bracketed(const World& world, std::int32_t last, const Leaf& leaf, Expressions& all) {
  const std::int32_t size = world.size;
  if (size == 1) return leaf(0);
  switch (world.algorithm) {
    case Algorithm::kRing: {
      const auto at = [&](std::int32_t i) {
        const std::int32_t position = (last + i) % size;
        return leaf(world.order.empty() ? position
                                        : static_cast<std::int32_t>(world.order[static_cast<std::size_t>(position)]));
      };
      Expression sum = at(1);
      for (std::int32_t i = 2; i <= size; ++i) sum = all.combine(sum, at(i));
      return sum;
    }
    case Algorithm::kStar:
    case Algorithm::kDirect: {
      const std::int32_t root = world.collective == Collective::kReduce ? world.root : 0;
      Expression sum = leaf(root);
      for (std::int32_t position = 1; position < size; ++position) {
        sum = all.combine(sum, leaf((root + position) % size));
      }
      return sum;
    }
    case Algorithm::kTree: {
      std::int32_t width = 1;
      while (width < size) width *= 2;
      const std::int32_t root = world.collective == Collective::kReduce ? world.root : 0;
      return balanced(
          0, width, size, [&](std::int32_t position) { return leaf((position + root) % size); }, all);
    }
    case Algorithm::kButterfly: {
      std::int32_t positions = 1;
      while (positions * 2 <= size) positions *= 2;
      const std::int32_t pairs = size - positions;
      const Leaf folded = [&](std::int32_t p) {
        return p < pairs ? all.combine(leaf(2 * p), leaf(2 * p + 1)) : leaf(p + pairs);
      };
      return balanced(0, positions, positions, folded, all);
    }
    case Algorithm::kAuto: break;
  }
  WARREN_UNREACHABLE("an algorithm that reduces");
}

Expression reduced(const World& world, std::int32_t last, std::uint64_t element, Expressions& all) {
  const Expression sum = bracketed(
      world, last, [&](std::int32_t rank) { return all.input(rank, element); }, all);
  std::vector<std::int32_t> ranks = all.contributors(sum);
  std::sort(ranks.begin(), ranks.end());
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    WARREN_CHECK(ranks.size() == static_cast<std::size_t>(world.size) && ranks[static_cast<std::size_t>(rank)] == rank,
                 "each contributor exactly once (I2)");
  }
  return all.finish(sum);
}

}  // namespace

Layout layout_of(const World& world, std::int32_t rank) {
  const std::uint64_t own = share_of(world, rank);
  const std::uint64_t all = offset_of(world, world.size - 1) + share_of(world, world.size - 1);
  const bool at_root = rank == world.root;
  Layout layout;
  std::uint64_t in_place_input = 0;
  std::uint64_t in_place_output = 0;
  bool in_place = world.in_place;
  switch (world.collective) {
    case Collective::kAllreduce: layout.input_count = layout.output_count = world.count; break;
    case Collective::kReduce:
      layout.input_count = world.count;
      layout.output_count = at_root ? world.count : 0;
      break;
    case Collective::kBroadcast:
      layout.input_count = layout.output_count = world.count;
      in_place = true;
      break;
    case Collective::kAllgather:
    case Collective::kAllgatherv:
      layout.input_count = own;
      layout.output_count = all;
      in_place_input = offset_of(world, rank);
      break;
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv:
      layout.input_count = all;
      layout.output_count = own;
      in_place_output = layout.result_at = offset_of(world, rank);
      break;
    case Collective::kGather:
      layout.input_count = own;
      layout.output_count = at_root ? all : 0;
      in_place_input = at_root ? offset_of(world, rank) : 0;
      break;
    case Collective::kScatter:
      layout.input_count = at_root ? all : 0;
      layout.output_count = own;
      in_place_output = at_root ? offset_of(world, rank) : 0;
      layout.result_at = offset_of(world, rank);
      break;
    case Collective::kAllToAll:
      layout.input_count = layout.output_count = all;
      layout.result_at = static_cast<std::uint64_t>(rank) * all;
      in_place = false;
      break;
    case Collective::kAllToAllv:
      layout.input_count = sent_below(world, rank, world.size);
      layout.output_count = got_by(world, rank);
      for (std::int32_t before = 0; before < rank; ++before) layout.result_at += got_by(world, before);
      in_place = false;
      break;
    case Collective::kBarrier:
    case Collective::kPoint: break;
  }
  if (in_place) {
    layout.input_at = in_place_input;
    layout.output_at = in_place_output;
    layout.user_cells = std::max(layout.input_at + layout.input_count, layout.output_at + layout.output_count);
  } else {
    layout.output_at = layout.input_count;
    layout.user_cells = layout.input_count + layout.output_count;
  }
  return layout;
}

std::vector<Expression> expected_output(const World& world, std::int32_t rank, Expressions& all) {
  const Layout layout = layout_of(world, rank);
  std::vector<Expression> expected;
  expected.reserve(layout.output_count);
  for (std::uint64_t i = 0; i < layout.output_count; ++i) {
    switch (world.collective) {
      case Collective::kAllreduce:
        expected.push_back(reduced(world, owner_of(i, world.count, world.size), i, all));
        break;
      case Collective::kReduce: expected.push_back(reduced(world, world.root, i, all)); break;
      case Collective::kReduceScatter:
      case Collective::kReduceScatterv:
        expected.push_back(reduced(world, rank, offset_of(world, rank) + i, all));
        break;
      case Collective::kBroadcast: expected.push_back(all.input(world.root, i)); break;
      case Collective::kAllgather:
      case Collective::kAllgatherv:
      case Collective::kGather: {
        std::int32_t source = 0;
        while (i >= offset_of(world, source) + share_of(world, source)) ++source;
        expected.push_back(all.input(source, i - offset_of(world, source)));
        break;
      }
      case Collective::kScatter: expected.push_back(all.input(world.root, offset_of(world, rank) + i)); break;
      case Collective::kAllToAll:
        expected.push_back(all.input(static_cast<std::int32_t>(i / world.count),
                                     static_cast<std::uint64_t>(rank) * world.count + i % world.count));
        break;
      case Collective::kAllToAllv: {
        std::int32_t from = 0;
        std::uint64_t at = i;
        while (at >= sent(world, from, rank)) at -= sent(world, from++, rank);
        expected.push_back(all.input(from, sent_below(world, from, rank) + at));
        break;
      }
      case Collective::kBarrier:
      case Collective::kPoint: break;
    }
  }
  return expected;
}

bool all_receive(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kBroadcast ||
         collective == Collective::kBarrier || collective == Collective::kAllgather ||
         collective == Collective::kAllgatherv;
}

std::vector<Expression> expected_result(const World& world, Expressions& all) {
  if (all_receive(world.collective)) return expected_output(world, 0, all);
  std::vector<Expression> result;
  for (std::int32_t rank = 0; rank < world.size; ++rank) {
    const std::vector<Expression> part = expected_output(world, rank, all);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

std::vector<Expression> initial_cells(const World& world, std::int32_t rank, Expressions& all) {
  const Layout layout = layout_of(world, rank);
  std::vector<Expression> cells(layout.user_cells, kNothing);
  if (world.collective == Collective::kBroadcast && rank != world.root) return cells;
  for (std::uint64_t i = 0; i < layout.input_count; ++i) cells[layout.input_at + i] = all.input(rank, i);
  return cells;
}

}  // namespace warren::schedule::symbolic
