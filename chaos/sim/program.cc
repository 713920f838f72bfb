#include "chaos/sim/program.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "recovery/base/check.h"

namespace warren::chaos {
namespace {

constexpr std::uint64_t kMostStateBytes = 3000;
constexpr std::uint64_t kMostRepeated = 33;  // elements of a call that is made several times in a row

// A whole number that f16 and bf16 hold exactly, as their bits.
std::uint16_t half_bits(double v, int exponent_bits, int fraction_bits) {
  if (v == 0) return 0;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = std::ilogb(v);
  const auto fraction =
      static_cast<std::uint32_t>(std::ldexp(std::fabs(v), fraction_bits - exponent)) - (1u << fraction_bits);
  const std::uint32_t sign = v < 0 ? 1u << 15 : 0u;
  return static_cast<std::uint16_t>(sign | static_cast<std::uint32_t>(exponent + bias) << fraction_bits | fraction);
}
double half_value(std::uint16_t bits, int exponent_bits, int fraction_bits) {
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  if (exponent == 0 && fraction == 0) return 0;
  const double v = std::ldexp(static_cast<double>(fraction + (1 << fraction_bits)),
                              exponent - ((1 << (exponent_bits - 1)) - 1) - fraction_bits);
  return (bits >> 15) != 0 ? -v : v;
}

bool is_float(DataType type) {
  return type == DataType::kF16 || type == DataType::kBF16 || type == DataType::kF32 || type == DataType::kF64;
}

double read_float(DataType type, const std::byte* from) {
  if (type == DataType::kF64) {
    double v = 0;
    std::memcpy(&v, from, sizeof v);
    return v;
  }
  if (type == DataType::kF32) {
    float v = 0;
    std::memcpy(&v, from, sizeof v);
    return static_cast<double>(v);
  }
  std::uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof bits);
  return type == DataType::kF16 ? half_value(bits, 5, 10) : half_value(bits, 8, 7);
}

void write_float(DataType type, double v, std::byte* to) {
  if (type == DataType::kF64) {
    std::memcpy(to, &v, sizeof v);
  } else if (type == DataType::kF32) {
    const auto f = static_cast<float>(v);
    std::memcpy(to, &f, sizeof f);
  } else {
    const std::uint16_t bits = type == DataType::kF16 ? half_bits(v, 5, 10) : half_bits(v, 8, 7);
    std::memcpy(to, &bits, sizeof bits);
  }
}

// An element of kF32AsI8. The first value is the largest in size, and what the scale is told by; the others are
// multiples of the number of ranks. So sums and averages are exact.
struct Block {
  float scale = 1;
  std::array<std::int8_t, kI8BlockValues> values{};
};
static_assert(sizeof(Block) == kI8BlockBytes);
constexpr int kLargest = 127;

double combine_floats(ReduceOp op, double a, double b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: return a + b;
    case ReduceOp::kProduct: return a * b;
    case ReduceOp::kMin: return std::min(a, b);
    default: return std::max(a, b);
  }
}

// Integers of any width as 64 bits that are cut to it in the end; min and max need the sign.
template <class T>
void combine_integers(ReduceOp op, const std::byte* a, std::byte* inout) {
  T x, y;
  std::memcpy(&x, a, sizeof x);
  std::memcpy(&y, inout, sizeof y);
  // Sign-extended on purpose: what wraps at 64 bits wraps at fewer too.
  const auto u = static_cast<std::uint64_t>(static_cast<std::int64_t>(x));
  const auto v = static_cast<std::uint64_t>(static_cast<std::int64_t>(y));
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: y = static_cast<T>(u + v); break;
    case ReduceOp::kProduct: y = static_cast<T>(u * v); break;
    case ReduceOp::kMin: y = std::min(x, y); break;
    case ReduceOp::kMax: y = std::max(x, y); break;
    case ReduceOp::kBitAnd: y = static_cast<T>(u & v); break;
    case ReduceOp::kBitOr: y = static_cast<T>(u | v); break;
    default: y = static_cast<T>(u ^ v); break;
  }
  std::memcpy(inout, &y, sizeof y);
}
template <class T>
void divide(std::byte* inout, std::size_t by) {
  WARREN_CHECK(by > 0, "an average has contributors");
  T v;
  std::memcpy(&v, inout, sizeof v);
  // In 64 bits: a narrow type does not hold every world size.
  using Wide = std::conditional_t<std::is_signed_v<T>, std::int64_t, std::uint64_t>;
  v = static_cast<T>(static_cast<Wide>(v) / static_cast<Wide>(by));
  std::memcpy(inout, &v, sizeof v);
}

template <class Do>
void with_integer(DataType type, Do what) {
  switch (type) {
    case DataType::kI8: return what(std::int8_t{});
    case DataType::kU8: return what(std::uint8_t{});
    case DataType::kI16: return what(std::int16_t{});
    case DataType::kU16: return what(std::uint16_t{});
    case DataType::kI32: return what(std::int32_t{});
    case DataType::kU32: return what(std::uint32_t{});
    case DataType::kI64: return what(std::int64_t{});
    default: return what(std::uint64_t{});
  }
}

bool reduces(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter || collective == Collective::kReduceScatterv;
}

// The number of elements in one row of counts. A collective in which ranks exchange shares has several rows.
std::uint64_t sum_of(std::span<const std::uint64_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
}
std::uint64_t below(std::span<const std::uint64_t> counts, std::size_t place) {
  return sum_of(counts.first(place));
}

}  // namespace

std::int32_t chain_affine(const void* a, void* inout, std::size_t n, void* context) {
  for (std::size_t i = 0; i < n; ++i) {
    Affine x, y;
    std::memcpy(&x, static_cast<const std::byte*>(a) + i * sizeof x, sizeof x);
    std::memcpy(&y, static_cast<std::byte*>(inout) + i * sizeof y, sizeof y);
    if (context != nullptr) std::swap(x, y);
    const Affine both{x.m * y.m, x.m * y.c + x.c};
    std::memcpy(static_cast<std::byte*>(inout) + i * sizeof both, &both, sizeof both);
  }
  return 0;
}

std::size_t width_of(const ProgramStep& step) {
  return step.type == DataType::kCustom ? sizeof(Affine) : element_bytes(step.type);
}

bool Program::shared_result(Collective collective) {
  return collective == Collective::kAllreduce || collective == Collective::kBroadcast ||
         collective == Collective::kAllgather || collective == Collective::kAllgatherv;
}

void Program::append(ProgramStep step) {
  step.index = steps_.size();
  step.site = Random::mix(step.index) | 1;
  steps_.push_back(std::move(step));
}

// Groups that are used among the next `length` steps.
void Program::draw_groups(Random& random, const Shape& shape, std::size_t first, std::size_t length) {
  const std::size_t splits = shape.least || !shape.groups || shape.world_size < 2 || length == 0 ? 0 : random.below(3);
  for (std::size_t s = 0; s < splits; ++s) {
    // Two groups from one split, as colours make them; members in any order.
    std::vector<Rank> ranks = groups_[0].members;
    for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random.below(i)]);
    const std::size_t cut = 1 + random.below(ranks.size());
    const std::size_t made_at = first + random.below(length);
    const auto middle = ranks.begin() + static_cast<std::ptrdiff_t>(cut);
    // Destroyed at once when nothing uses it any more, or with its version.
    const auto end = [&] {
      return random.chance(0.5) ? made_at + 1 + random.below(first + length - made_at) : SIZE_MAX;
    };
    const std::size_t split = groups_.size();
    groups_.push_back({GroupId(random.next() | 1), {ranks.begin(), middle}, made_at, end(), split});
    if (cut < ranks.size()) {
      groups_.push_back({GroupId(random.next() | 1), {middle, ranks.end()}, made_at, end(), split});
    }
    // Not drawn: seeds stay what they were.
    for (std::size_t g = split; g < groups_.size(); ++g) {
      groups_[g].by_members = Random::mix(groups_[split].id.value) % 2 == 0;
    }
  }
}

void Program::draw_version(Random& random, const Shape& shape, Version version, std::size_t length) {
  const std::size_t first_group = groups_.size(), end = steps_.size() + length;
  draw_groups(random, shape, steps_.size(), length);
  while (steps_.size() < end) {
    std::size_t group = random.below(groups_.size());
    if (groups_[group].made_at > steps_.size() || groups_[group].end <= steps_.size()) group = 0;
    if (shape.on_gpus && random.chance(0.7)) group = 0;
    if (shape.messages && !shape.collective && groups_[group].members.size() > 1 && random.chance(0.15)) {
      draw_messages(random, shape, group, version);
      continue;
    }
    if (random.chance(0.1) && draw_repeat(random, version)) continue;
    if (version == kPreamble && shape.setups && random.chance(0.2)) {
      draw_setup(random, shape, version);
      continue;
    }
    ProgramStep step = draw_step(random, shape, group);
    step.version = version;
    // Small ones run at once then (Engine::run_at_once).
    const bool again = shape.repeats && step.blocking && !step.prepares && step.values != Values::kFresh &&
                       step.count <= kMostRepeated;
    const std::size_t times = again ? step.count % 3 + 1 : 0;
    append(step);
    for (std::size_t i = 0; i < times && steps_.size() < end && steps_.size() < groups_[group].end; ++i) append(step);
  }
  // Groups of the preamble may last; a program that is started again makes the others anew.
  if (version == kPreamble) return;
  for (std::size_t g = first_group; g < groups_.size(); ++g) {
    groups_[g].end = std::min(groups_[g].end, steps_.size());
  }
}

// Of the world, and for all ranks alike. What recurs has one place in the source.
void Program::draw_inferred(Random& random, const Shape& shape, Version version, ProgramStep::Inferred what) {
  const auto before = std::find_if(steps_.begin(), steps_.end(), [&](const ProgramStep& s) {
    return what == ProgramStep::Inferred::kRecurs && s.inferred == what;
  });
  ProgramStep step;
  if (before != steps_.end()) {
    step = *before;
  } else {
    Shape plain = shape;
    plain.fresh = false;
    do {
      step = draw_step(random, plain, 0);
    } while (!shared_result(step.collective) || step.values != Values::kExact || step.count == 0);
    step.blocking = step.wait_before = true;
    step.prepares = false;
    step.inferred = what;
  }
  const std::uint64_t site = step.site;
  step.version = version;
  append(std::move(step));
  if (site != 0) steps_.back().site = site;
}

// A round of the world that moves no bytes, beside calls that a process makes once: its number counts like any other.
void Program::draw_empty(Random& random, Version version) {
  ProgramStep step;
  step.version = version;
  step.collective = random.chance(0.5) ? Collective::kBarrier : Collective::kBroadcast;
  if (step.collective == Collective::kBroadcast)
    step.root = static_cast<std::int32_t>(random.below(groups_[0].members.size()));
  step.wait_before = true;
  append(std::move(step));
}

std::vector<std::size_t> Program::made_again(ProgramStep::Inferred when) const {
  std::vector<std::size_t> steps;
  for (const ProgramStep& s : steps_) {
    if (s.inferred == when) steps.push_back(s.index);
  }
  return steps;
}

bool Program::infers() const {
  return std::ranges::any_of(steps_, [](const ProgramStep& s) { return s.inferred != ProgramStep::Inferred::kNot; });
}

bool Program::makes_once_rounds(Version version) const {
  const std::uint64_t v = version.value - version_of_program(0).value;
  return v >= once_in_ && (v - once_in_) % versions_an_iteration_ == 0;
}

bool Program::has_made_once_rounds_before(Version loaded) const {
  return loaded > version_of_program(once_in_);
}

// On a group that every life makes before.
void Program::draw_setup(Random& random, const Shape& shape, Version version) {
  std::size_t group = random.below(groups_.size());
  if (groups_[group].made_at > steps_.size() || groups_[group].end <= steps_.size()) group = 0;
  ProgramStep step = draw_step(random, shape, group);
  if (step.collective == Collective::kAllToAllv) {  // which is no set-up round
    step.collective = Collective::kAllToAll;
    step.count = step.counts.front();
    step.counts.clear();
  }
  if (step.values == Values::kFresh) step.values = Values::kExact;
  // Whoever has received it has done it. While all who have are on one machine, and others prepare, a loss of that
  // machine is a rollback (seed 97501679).
  if (step.collective == Collective::kBroadcast) step.prepares = false;
  step.version = version;
  step.setup = steps_.size();
  append(std::move(step));
}

// A set-up round again, by a life that has its result already.
bool Program::draw_repeat(Random& random, Version version) {
  std::vector<std::size_t> named;
  for (const ProgramStep& s : steps_) {
    if (s.setup == s.index && groups_[s.group].end > steps_.size()) named.push_back(s.index);
  }
  if (named.empty()) return false;
  ProgramStep step = steps_[named[random.below(named.size())]];
  const std::uint64_t site = step.site;
  step.version = version;
  step.blocking = random.chance(0.6);
  append(std::move(step));
  steps_.back().site = site;
  return true;
}

Program::Program(Random& random, const Shape& shape) : seed_(random.next()) {
  WARREN_CHECK(shape.world_size > 0, "a program has ranks");
  ProgramGroup world{kWorldGroup, {}};
  for (std::uint32_t r = 0; r < shape.world_size; ++r) world.members.emplace_back(static_cast<std::int32_t>(r));
  groups_.push_back(world);
  const auto length = [&](std::int64_t most) {
    return shape.least ? std::size_t{1} : static_cast<std::size_t>(random.between(0, most));
  };
  // Now and then a program that knows no checkpoints.
  if (!shape.many_versions && random.chance(0.1)) {
    draw_version(random, shape, kPreamble, 1 + length(shape.long_versions ? 100 : 20));
    return;
  }
  draw_version(random, shape, kPreamble, random.chance(0.5) ? length(5) : 0);
  ProgramStep load;
  load.kind = StepKind::kLoad;
  append(load);
  if (shape.setups && random.chance(0.6)) {
    for (std::uint64_t n = 1 + random.below(3); n > 0; --n) draw_setup(random, shape, version_of_program(0));
  }
  setup_end_ = steps_.size();
  // Who comes back where ranks were given up enters with a commit.
  const std::int64_t versions = shape.least ? 2
                                : shape.many_versions
                                    ? random.between(10, 14)
                                    : random.between(shape.inferred || shape.shrinks ? 2 : 1, shape.shrinks ? 9 : 5);
  const std::int64_t period = shape.inferred ? random.between(2, 3) : 0;
  if (shape.inferred && random.chance(0.6)) {
    versions_an_iteration_ = 1 + random.below(3);
    once_in_ = std::min(random.below(versions_an_iteration_ + 1), static_cast<std::uint64_t>(versions - 1));
  }
  const bool local = shape.local && random.chance(0.4);
  // Now and then so many rounds that nobody remembers the first of a version.
  const std::int64_t rounds = shape.long_versions ? 150 : shape.many_versions ? 80 : shape.shrinks ? 50 : 30;
  const std::int64_t most = shape.inferred && random.chance(0.25) ? 80 : rounds / versions;
  for (std::int64_t v = 0; v < versions; ++v) {
    const Version version = version_of_program(static_cast<std::uint64_t>(v));
    const bool has_once = shape.inferred && static_cast<std::uint64_t>(v) == once_in_;
    if (has_once) {
      for (std::uint64_t n = random.below(3); n > 0; --n) {
        draw_inferred(random, shape, version, ProgramStep::Inferred::kOnceFirst);
      }
    }
    const bool recurs = shape.inferred && v % period == 0;
    // Where a new process makes what the others make no more.
    const bool comes_first = recurs && random.chance(0.5);
    if (comes_first) draw_inferred(random, shape, version, ProgramStep::Inferred::kRecurs);
    if (shape.inferred && random.chance(0.4)) draw_empty(random, version);
    draw_version(random, shape, version, length(most));
    if (recurs && !comes_first) {
      draw_inferred(random, shape, version, ProgramStep::Inferred::kRecurs);
      if (random.chance(0.3)) draw_empty(random, version);
      draw_version(random, shape, version, length(most));
    }
    if (has_once && random.chance(0.6)) {
      draw_inferred(random, shape, version, ProgramStep::Inferred::kOnceLast);
    }
    // A program may end with a checkpoint, or without.
    if (v + 1 == versions && random.chance(0.5)) break;
    ProgramStep checkpoint;
    checkpoint.kind = StepKind::kCheckpoint;
    checkpoint.version = version.next();
    checkpoint.local = local && random.chance(0.8);
    checkpoint.lazy = !checkpoint.local && random.chance(0.3);
    // Not drawn in turn: seeds stay what they were.
    Random root(Random::mix(seed_ + version.value));
    if (!checkpoint.lazy && !shape.shrinks && root.chance(0.3)) {
      checkpoint.state_from = Rank(static_cast<std::int32_t>(root.below(shape.world_size)));
    }
    append(checkpoint);
  }
}

ProgramStep Program::draw_step(Random& random, const Shape& shape, std::size_t group) const {
  static constexpr Collective kCollectives[] = {
      Collective::kAllreduce,     Collective::kAllreduce, Collective::kAllreduce, Collective::kReduce,
      Collective::kBroadcast,     Collective::kBarrier,   Collective::kAllgather, Collective::kAllgatherv,
      Collective::kReduceScatter, Collective::kGather,    Collective::kScatter,   Collective::kAllToAll};
  static constexpr DataType kTypes[] = {DataType::kI8,  DataType::kU8,  DataType::kI32, DataType::kU32,
                                        DataType::kI64, DataType::kU64, DataType::kF16, DataType::kBF16,
                                        DataType::kF32, DataType::kF64};
  static constexpr ReduceOp kIntegerOps[] = {ReduceOp::kSum,    ReduceOp::kProduct, ReduceOp::kMin,
                                             ReduceOp::kMax,    ReduceOp::kBitAnd,  ReduceOp::kBitOr,
                                             ReduceOp::kBitXor, ReduceOp::kAverage};
  static constexpr ReduceOp kFloatOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                                           ReduceOp::kAverage};
  static constexpr std::uint64_t kCounts[] = {0, 1, 2, 3, 7, 16, 33, 100, 257, 600, 1500, 4000};
  const auto size = static_cast<std::uint64_t>(groups_[group].members.size());
  ProgramStep step;
  step.group = group;
  step.collective = random.pick(kCollectives);
  if (shape.collective) step.collective = *shape.collective;
  if (shape.shrinks && step.collective != Collective::kBarrier) step.collective = Collective::kAllreduce;
  step.blocking = random.chance(0.6);
  // Others can have finished a broadcast while one of its receivers prepares.
  step.prepares = random.chance(step.collective == Collective::kBroadcast ? 0.6 : 0.3);
  step.wait_before = random.chance(0.15);
  if (shape.shrinks) step.prepares = false;
  if (shape.on_gpus && group == 0 && size <= 16 && random.chance(0.7)) {
    static constexpr DataType kOnGpus[] = {DataType::kF32, DataType::kF32, DataType::kF16, DataType::kBF16};
    step.collective = Collective::kAllreduce;
    step.type = random.pick(kOnGpus);
    step.op = random.pick(kFloatOps);
    if (step.type == DataType::kF32 && step.op == ReduceOp::kSum && random.chance(0.5)) step.values = Values::kRough;
    step.count = shape.most_bytes / width_of(step) - random.below(100);
    step.in_place = random.chance(0.4);
    return step;
  }
  if (step.collective == Collective::kBarrier) return step;
  step.type = random.pick(kTypes);
  // A group of one needs nobody: a life that stood still ends its round before it hears that it has been replaced, and
  // no other life is bound by what it has read (seed 97511913).
  if (shape.fresh && size > 1 && step.collective == Collective::kBroadcast && random.chance(0.4)) {
    step.values = Values::kFresh;
  }
  if (reduces(step.collective)) {
    step.op = is_float(step.type) ? random.pick(kFloatOps) : random.pick(kIntegerOps);
    if (random.chance(0.12)) {
      step.type = DataType::kCustom;
      step.op = ReduceOp::kCustom;
      step.values = Values::kAffine;
    } else if ((step.type == DataType::kF32 || step.type == DataType::kF64) && step.op == ReduceOp::kSum &&
               random.chance(0.5)) {
      step.values = Values::kRough;
    } else if (is_float(step.type) && size > 16) {
      step.type = DataType::kI64;  // so many would not add up exactly
    }
    // What divides by any number of contributors is rounded.
    if (shape.shrinks && step.op == ReduceOp::kAverage && is_float(step.type)) {
      step.type = random.chance(0.5) ? DataType::kF32 : DataType::kF64;
      step.values = Values::kRough;
    }
    // f32 that travels as i8 is a round of blocks. What comes after it is drawn as if this had not been.
    const bool adds = step.op == ReduceOp::kSum || step.op == ReduceOp::kAverage;
    if (step.collective != Collective::kReduce && is_float(step.type) && adds && step.values == Values::kExact &&
        !shape.shrinks && Random(random).chance(0.4)) {
      step.type = DataType::kF32AsI8;
    }
  }
  const std::uint64_t most = shape.most_bytes / (width_of(step) * size);
  const std::uint64_t count = random.pick(kCounts);
  const bool whole = shape.long_allreduces && step.collective == Collective::kAllreduce && count >= 100;
  // What is large comes from GPUs, and goes there, piece by piece.
  const bool large = shape.on_gpus && count >= 100;
  step.count = whole ? shape.most_bytes / width_of(step) : large ? most : std::min(count, most);
  step.in_place = step.collective != Collective::kAllToAll && random.chance(0.4);
  switch (step.collective) {
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kGather:
    case Collective::kScatter: step.root = static_cast<std::int32_t>(random.below(size)); break;
    case Collective::kAllgatherv:
      step.count = 0;
      for (std::uint64_t r = 0; r < size; ++r) {
        const std::uint64_t some = random.pick(kCounts);
        step.counts.push_back(shape.on_gpus && some >= 100 ? most : std::min(some, most));
      }
      break;
    default: break;
  }
  vary(random, shape, size, most, step);
  return step;
}

// Some shares are unequal, many of them none, or all of one rank. What is drawn after it is as if this had not been.
void Program::vary(Random random, const Shape& shape, std::uint64_t size, std::uint64_t most, ProgramStep& step) {
  static constexpr std::uint64_t kCounts[] = {0, 0, 1, 3, 33, 257, 1500};
  if (!shape.collective && step.type != DataType::kF32AsI8 && random.chance(0.4)) {
    if (step.collective == Collective::kReduceScatter) step.collective = Collective::kReduceScatterv;
    if (step.collective == Collective::kAllToAll) step.collective = Collective::kAllToAllv;
  }
  const bool exchanges = step.collective == Collective::kAllToAllv;
  if (!exchanges && step.collective != Collective::kReduceScatterv) return;
  const std::uint64_t counts = exchanges ? size * size : size;
  const std::uint64_t alone = random.chance(0.2) ? random.below(counts) : counts;
  step.count = 0;
  if (exchanges) step.in_place = false;
  for (std::uint64_t i = 0; i < counts; ++i) {
    const std::uint64_t some = std::min(random.pick(kCounts), most);
    step.counts.push_back(alone == counts ? some : alone == i ? most : 0);
  }
}

// A burst of messages from one rank to another, with tags; the receiver may ask for them in another order.
void Program::draw_messages(Random& random, const Shape& shape, std::size_t group, Version version) {
  const std::size_t size = groups_[group].members.size();
  const auto from = static_cast<std::int32_t>(random.below(size));
  auto to = static_cast<std::int32_t>(random.below(size - 1));
  if (to >= from) ++to;
  const std::size_t burst = 1 + random.below(3);
  groups_[group].end = std::max(groups_[group].end, steps_.size() + burst);
  // Messages of one tag are received in their order.
  const bool distinct_tags = random.chance(0.5);
  if (distinct_tags && random.chance(0.6)) {
    reversed_.push_back({steps_.size(), steps_.size() + burst, groups_[group].members[static_cast<std::size_t>(to)]});
  }
  for (std::size_t i = 0; i < burst; ++i) {
    ProgramStep step = draw_step(random, shape, group);
    while (step.collective != Collective::kAllgather) step = draw_step(random, shape, group);
    step.collective = Collective::kPoint;
    step.version = version;
    step.prepares = false;
    if (shape.fresh && random.chance(0.4)) step.values = Values::kFresh;
    step.root = from;
    step.receiver = to;
    step.tag = static_cast<std::int32_t>(distinct_tags ? i : random.below(2));
    step.in_place = false;
    step.blocking = false;
    step.wait_before = false;
    append(std::move(step));
  }
}

bool Program::has_messages() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const ProgramStep& step) {
    return step.kind == StepKind::kRound && step.collective == Collective::kPoint;
  });
}

bool Program::loads() const {
  return std::any_of(steps_.begin(), steps_.end(),
                     [](const ProgramStep& step) { return step.kind == StepKind::kLoad; });
}

bool Program::one_group() const {
  return groups_.size() == 1 && !has_messages();
}

std::size_t Program::position_after_load(Version version) const {
  for (const ProgramStep& step : steps_) {
    if (step.kind == StepKind::kCheckpoint && step.version == version) return step.index + 1;
    if (step.kind == StepKind::kLoad && version == version_of_program(0)) return step.index + 1;
  }
  WARREN_UNREACHABLE("no version is loaded that the program does not have");
}

std::uint64_t Program::result_bytes(bool lasting) const {
  std::uint64_t bytes = 0;
  for (const ProgramStep& step : steps_) {
    if (step.kind == StepKind::kCheckpoint) bytes += 2 * kMostStateBytes;
    if (!lasting || step.setup) bytes += result_bytes(step);
  }
  return bytes;
}

std::uint64_t Program::most_result_bytes(std::size_t steps) const {
  std::uint64_t most = 0, sum = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    sum += result_bytes(steps_[i]);
    if (i >= steps) sum -= result_bytes(steps_[i - steps]);
    most = std::max(most, sum);
  }
  return most;
}

std::uint64_t Program::result_bytes(const ProgramStep& step) const {
  if (step.kind != StepKind::kRound || step.collective == Collective::kBarrier) return 0;
  std::uint64_t bytes = 0;
  const auto size = static_cast<std::int32_t>(members(step).size());
  const bool shared = shared_result(step.collective);
  for (std::int32_t place = 0; place < (shared ? 1 : size); ++place) bytes += out_count(step, place) * width_of(step);
  return bytes;
}

std::vector<std::size_t> Program::order_of(Rank rank) const {
  std::vector<std::size_t> order(steps_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (const Burst& burst : reversed_) {
    if (burst.receiver != rank) continue;
    std::reverse(order.begin() + static_cast<std::ptrdiff_t>(burst.first),
                 order.begin() + static_cast<std::ptrdiff_t>(burst.end));
  }
  return order;
}

std::optional<std::int32_t> Program::place(const ProgramStep& step, Rank rank) const {
  const auto& ranks = members(step);
  const auto at = std::find(ranks.begin(), ranks.end(), rank);
  if (at == ranks.end()) return std::nullopt;
  const auto place = static_cast<std::int32_t>(at - ranks.begin());
  if (step.collective == Collective::kPoint && place != step.root && place != step.receiver) return std::nullopt;
  return place;
}

std::vector<std::uint64_t> Program::sent_by(const ProgramStep& step, std::int32_t place) const {
  const std::size_t size = members(step).size();
  const auto row = std::span(step.counts).subspan(static_cast<std::size_t>(place) * size, size);
  return {row.begin(), row.end()};
}

std::vector<std::uint64_t> Program::got_by(const ProgramStep& step, std::int32_t place) const {
  const std::size_t size = members(step).size();
  std::vector<std::uint64_t> column;
  for (std::size_t r = 0; r < size; ++r) column.push_back(step.counts[r * size + static_cast<std::size_t>(place)]);
  return column;
}

std::uint64_t Program::first_of(const ProgramStep& step, std::int32_t place) {
  if (step.collective == Collective::kReduceScatter) return static_cast<std::uint64_t>(place) * step.count;
  return step.collective == Collective::kReduceScatterv ? below(step.counts, static_cast<std::size_t>(place)) : 0;
}

std::uint64_t Program::in_count(const ProgramStep& step, std::int32_t place) const {
  const std::uint64_t size = members(step).size();
  switch (step.collective) {
    case Collective::kBroadcast:
    case Collective::kBarrier: return 0;
    case Collective::kAllgatherv: return step.counts[static_cast<std::size_t>(place)];
    case Collective::kReduceScatterv: return sum_of(step.counts);
    case Collective::kAllToAllv: return sum_of(sent_by(step, place));
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return step.count * size;
    case Collective::kScatter: return place == step.root ? step.count * size : 0;
    case Collective::kPoint: return place == step.root ? step.count : 0;
    default: return step.count;
  }
}

std::uint64_t Program::out_count(const ProgramStep& step, std::int32_t place) const {
  const std::uint64_t size = members(step).size();
  switch (step.collective) {
    case Collective::kBarrier: return 0;
    case Collective::kReduce: return place == step.root ? step.count : 0;
    case Collective::kAllgather:
    case Collective::kAllToAll: return step.count * size;
    case Collective::kAllgatherv: return sum_of(step.counts);
    case Collective::kReduceScatterv: return step.counts[static_cast<std::size_t>(place)];
    case Collective::kAllToAllv: return sum_of(got_by(step, place));
    case Collective::kGather: return place == step.root ? step.count * size : 0;
    case Collective::kPoint: return place == step.receiver ? step.count : 0;
    default: return step.count;
  }
}

std::int64_t Program::in_place_at(const ProgramStep& step, std::int32_t place) const {
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

std::uint64_t Program::input_key(const ProgramStep& step, std::int32_t place, const ProgramState& state,
                                 std::uint64_t salt) const {
  const std::uint64_t name = Random::mix(step.index * 0x10001 + static_cast<std::uint64_t>(place));
  if (step.once()) return Random::mix(seed_ ^ name);
  return Random::mix(seed_ ^ name ^ Random::mix(state.global + 1) ^ Random::mix(state.local + 2) ^
                     Random::mix(salt + 3) ^ Random::mix(state.setup + 4));
}

void Program::write_element(const ProgramStep& step, std::uint64_t key, std::uint64_t i, std::byte* to) const {
  const std::uint64_t bits = Random::mix(key ^ Random::mix(i));
  if (step.type == DataType::kCustom) {
    const Affine map{bits | 1, Random::mix(bits)};
    std::memcpy(to, &map, sizeof map);
    return;
  }
  if (step.type == DataType::kF32AsI8) {
    const auto size = static_cast<int>(members(step).size());
    Block block;
    block.values[0] = kLargest;
    for (std::size_t v = 1; v < block.values.size(); ++v) {
      block.values[v] = static_cast<std::int8_t>(size * (static_cast<int>(Random::mix(bits + v) % 3) - 1));
    }
    std::memcpy(to, &block, sizeof block);
    return;
  }
  if (!is_float(step.type)) {
    std::memcpy(to, &bits, element_bytes(step.type));
    return;
  }
  double v = 0;
  if (step.values == Values::kRough) {
    v = static_cast<double>(static_cast<std::int64_t>(bits >> 12)) * 0x1p-52 - 0.3;
  } else if (step.op == ReduceOp::kProduct) {
    v = (bits & 1) != 0 ? 1 : -1;
  } else if (step.op == ReduceOp::kAverage) {
    // A multiple of the number of ranks, so that dividing is exact too.
    v = static_cast<double>(members(step).size()) * static_cast<double>(bits % 3) -
        static_cast<double>(members(step).size());
  } else {
    v = static_cast<double>(bits % 17) - 8;
  }
  write_float(step.type, v, to);
}

std::vector<std::byte> Program::input(const ProgramStep& step, std::int32_t place, std::uint64_t key) const {
  const std::size_t width = width_of(step);
  // A broadcast's data stands in the root's output.
  const std::uint64_t count =
      step.collective == Collective::kBroadcast && place == step.root ? step.count : in_count(step, place);
  std::vector<std::byte> bytes(count * width);
  for (std::uint64_t i = 0; i < count; ++i) write_element(step, key, i, bytes.data() + i * width);
  return bytes;
}

std::vector<std::byte> Program::expected(const ProgramStep& step, std::int32_t place, Keys keys) const {
  const std::size_t width = width_of(step);
  const std::uint64_t count = out_count(step, place);
  const auto size = static_cast<std::int32_t>(keys.size());
  std::vector<std::byte> out(count * width);
  const auto key = [&](std::int32_t of) { return keys[static_cast<std::size_t>(of)]; };
  const auto copy = [&](std::int32_t from, std::uint64_t at, std::uint64_t n, std::uint64_t to) {
    for (std::uint64_t i = 0; i < n; ++i) write_element(step, key(from), at + i, out.data() + (to + i) * width);
  };
  const auto mine = static_cast<std::uint64_t>(place) * step.count;
  switch (step.collective) {
    case Collective::kBroadcast:
    case Collective::kPoint: copy(step.root, 0, count, 0); return out;
    case Collective::kScatter: copy(step.root, mine, count, 0); return out;
    case Collective::kBarrier: return out;
    case Collective::kAllgather:
    case Collective::kGather:
      for (std::int32_t r = 0; r < size && count != 0; ++r) {
        copy(r, 0, step.count, static_cast<std::uint64_t>(r) * step.count);
      }
      return out;
    case Collective::kAllgatherv: {
      std::uint64_t at = 0;
      for (std::int32_t r = 0; r < size; at += step.counts[static_cast<std::size_t>(r++)]) {
        copy(r, 0, step.counts[static_cast<std::size_t>(r)], at);
      }
      return out;
    }
    case Collective::kAllToAll:
      for (std::int32_t r = 0; r < size; ++r) copy(r, mine, step.count, static_cast<std::uint64_t>(r) * step.count);
      return out;
    case Collective::kAllToAllv: {
      std::uint64_t at = 0;
      for (std::int32_t r = 0; r < size; ++r) {
        const std::vector<std::uint64_t> row = sent_by(step, r);
        copy(r, below(row, static_cast<std::size_t>(place)), row[static_cast<std::size_t>(place)], at);
        at += row[static_cast<std::size_t>(place)];
      }
      return out;
    }
    default: break;
  }
  const std::uint64_t first = first_of(step, place);
  if (step.type == DataType::kF32AsI8) {
    WARREN_CHECK(size > 0, "a sum has contributors");
    for (std::uint64_t i = 0; i < count; ++i) {
      std::array<int, kI8BlockValues> sums{};
      for (std::int32_t r = 0; r < size; ++r) {
        Block block;
        write_element(step, key(r), first + i, reinterpret_cast<std::byte*>(&block));
        for (std::size_t v = 0; v < sums.size(); ++v) sums[v] += block.values[v];
      }
      // The scale is the first value / 127: of a sum the number of ranks, by which all others can be divided; of an
      // average 1.
      Block made;
      if (step.op == ReduceOp::kSum) made.scale = static_cast<float>(size);
      for (std::size_t v = 0; v < sums.size(); ++v) made.values[v] = static_cast<std::int8_t>(sums[v] / size);
      std::memcpy(out.data() + i * width, &made, sizeof made);
    }
    return out;
  }
  alignas(16) std::byte element[sizeof(Affine)];
  for (std::uint64_t i = 0; i < count; ++i) {
    std::byte* to = out.data() + i * width;
    double sum = 0;
    for (std::int32_t r = 0; r < size; ++r) {
      write_element(step, key(r), first + i, element);
      if (is_float(step.type)) {
        const double v = read_float(step.type, element);
        sum = r == 0 ? v : combine_floats(step.op, sum, v);
      } else if (r == 0) {
        std::memcpy(to, element, width);
      } else if (step.type == DataType::kCustom) {
        (void)chain_affine(element, to, 1, nullptr);
      } else {
        with_integer(step.type, [&](auto zero) { combine_integers<decltype(zero)>(step.op, element, to); });
      }
    }
    if (is_float(step.type)) {
      write_float(step.type, step.op == ReduceOp::kAverage ? sum / size : sum, to);
    } else if (step.op == ReduceOp::kAverage) {
      with_integer(step.type, [&](auto zero) { divide<decltype(zero)>(to, static_cast<std::size_t>(size)); });
    }
  }
  return out;
}

// Whether an element combines the ranks in their order, begun at any of them.
bool Program::chained_in_order(const ProgramStep& step, std::uint64_t i, Keys keys, const std::byte* got) const {
  const auto size = static_cast<std::int32_t>(keys.size());
  const auto key = [&](std::int32_t of) { return keys[static_cast<std::size_t>(of)]; };
  alignas(16) std::byte element[sizeof(Affine)], chain[sizeof(Affine)];
  for (std::int32_t first = 0; first < size; ++first) {
    write_element(step, key((first + size - 1) % size), i, chain);
    for (std::int32_t r = size - 2; r >= 0; --r) {
      write_element(step, key((first + r) % size), i, element);
      (void)chain_affine(element, chain, 1, nullptr);
    }
    if (std::memcmp(chain, got, sizeof chain) == 0) return true;
  }
  return false;
}

std::string Program::judge(const ProgramStep& step, std::int32_t place, Keys keys, std::span<const std::byte> got,
                           std::span<const std::byte> expected) const {
  const std::uint64_t first = first_of(step, place);
  if (step.values == Values::kFresh) return "";
  const std::size_t width = width_of(step);
  for (std::size_t at = 0; at < expected.size(); at += width) {
    bool right = std::memcmp(got.data() + at, expected.data() + at, width) == 0;
    if (!right && step.values == Values::kAffine) {
      right = chained_in_order(step, first + at / width, keys, got.data() + at);
    } else if (!right && step.values == Values::kRough) {
      const double tolerance = (step.type == DataType::kF32 ? 1e-5 : 1e-12) * static_cast<double>(members(step).size());
      right =
          std::fabs(read_float(step.type, got.data() + at) - read_float(step.type, expected.data() + at)) <= tolerance;
    }
    if (!right) {
      const auto hex = [&](std::span<const std::byte> bytes) {
        std::string text;
        for (std::size_t i = width; i-- > 0;) {
          for (const int shift : {4, 0}) {
            text += "0123456789abcdef"[std::to_integer<unsigned>(bytes[at + i]) >> shift & 15u];
          }
        }
        return text;
      };
      return "element " + std::to_string(at / width) + " of " + std::to_string(expected.size() / width) + " is " +
             hex(got) + " and not " + hex(expected);
    }
  }
  return {};
}

void Program::fold(const ProgramStep& step, std::span<const std::byte> output, ProgramState& state) {
  // Rounded results are not known before somebody has computed them.
  if (step.values != Values::kExact || output.empty() || step.once()) return;
  const std::uint64_t hash = Random::mix(XXH3_64bits_withSeed(output.data(), output.size(), step.index));
  if (step.setup) {
    if (step.setup == step.index) state.setup += hash;
    return;
  }
  (step.group == 0 && shared_result(step.collective) ? state.global : state.local) += hash;
}

void Program::settle(const ProgramStep& checkpoint, ProgramState& state) {
  if (!checkpoint.local) state.local = 0;
}

namespace {
std::vector<std::byte> saved(std::uint64_t value, std::uint64_t draw) {
  // Short ones too, of less than a byte for each rank.
  const std::uint64_t size = draw % 4 == 0 ? 8 : 8 + draw / 4 % (kMostStateBytes - 8);
  std::vector<std::byte> bytes(size);
  std::memcpy(bytes.data(), &value, sizeof value);
  for (std::size_t i = sizeof value; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(Random::mix(value + i / 8) >> (i % 8 * 8));
  }
  return bytes;
}
}  // namespace

std::vector<std::byte> Program::saved_global(Version version, const ProgramState& state) const {
  return saved(state.global, Random::mix(seed_ ^ version.value));
}
std::vector<std::byte> Program::saved_local(Version version, Rank rank, const ProgramState& state) const {
  return saved(state.local, Random::mix(seed_ ^ version.value * 0x10001 ^ static_cast<std::uint64_t>(rank.value + 1)));
}

std::optional<ProgramState> Program::restored(Version version, Rank rank, std::span<const std::byte> global,
                                              std::span<const std::byte> local) const {
  ProgramState state;
  if (global.size() < sizeof state.global) return std::nullopt;
  std::memcpy(&state.global, global.data(), sizeof state.global);
  if (!local.empty()) {
    if (local.size() < sizeof state.local) return std::nullopt;
    std::memcpy(&state.local, local.data(), sizeof state.local);
    const auto right = saved_local(version, rank, state);
    if (!std::equal(right.begin(), right.end(), local.begin(), local.end())) return std::nullopt;
  }
  const auto right = saved_global(version, state);
  if (!std::equal(right.begin(), right.end(), global.begin(), global.end())) return std::nullopt;
  return state;
}

}  // namespace warren::chaos
