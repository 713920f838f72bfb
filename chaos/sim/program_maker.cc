#include "chaos/sim/program_maker.h"

#include <algorithm>
#include <utility>

#include "chaos/sim/elements.h"
#include "recovery/base/check.h"

namespace warren::chaos {
namespace {

constexpr std::uint64_t kMostRepeated = 33;  // elements of a call that is made several times in a row

constexpr ReduceOp kIntegerOps[] = {ReduceOp::kSum,    ReduceOp::kProduct, ReduceOp::kMin,    ReduceOp::kMax,
                                    ReduceOp::kBitAnd, ReduceOp::kBitOr,   ReduceOp::kBitXor, ReduceOp::kAverage};
constexpr ReduceOp kFloatOps[] = {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax,
                                  ReduceOp::kAverage};
constexpr std::uint64_t kCounts[] = {0, 1, 2, 3, 7, 16, 33, 100, 257, 600, 1500, 4000};

}  // namespace

Program::Made ProgramMaker::make() {
  WARREN_CHECK(shape_.world_size > 0, "a program has ranks");
  ProgramGroup world{kWorldGroup, {}};
  for (std::uint32_t r = 0; r < shape_.world_size; ++r) world.members.emplace_back(static_cast<std::int32_t>(r));
  made_.groups.push_back(world);
  // Now and then a program that knows no checkpoints.
  if (!shape_.many_versions && random_.chance(0.1)) {
    draw_version(kPreamble, 1 + length(shape_.long_versions ? 100 : 20));
    return std::move(made_);
  }
  draw_version(kPreamble, random_.chance(0.5) ? length(5) : 0);
  ProgramStep load;
  load.kind = StepKind::kLoad;
  append(load);
  if (shape_.setups && random_.chance(0.6)) {
    for (std::uint64_t n = 1 + random_.below(3); n > 0; --n) draw_setup(version_of_program(0));
  }
  made_.setup_end = made_.steps.size();
  draw_versions();
  return std::move(made_);
}

std::size_t ProgramMaker::length(std::int64_t most) {
  return shape_.least ? std::size_t{1} : static_cast<std::size_t>(random_.between(0, most));
}

void ProgramMaker::draw_versions() {
  // A rank that comes back where ranks were given up enters with a commit.
  const std::int64_t versions =
      shape_.least           ? 2
      : shape_.many_versions ? random_.between(10, 14)
                             : random_.between(shape_.inferred || shape_.shrinks ? 2 : 1, shape_.shrinks ? 9 : 5);
  const std::int64_t period = shape_.inferred ? random_.between(2, 3) : 0;
  if (shape_.inferred && random_.chance(0.6)) {
    made_.versions_an_iteration = 1 + random_.below(3);
    made_.once_in = std::min(random_.below(made_.versions_an_iteration + 1), static_cast<std::uint64_t>(versions - 1));
  }
  const bool local = shape_.local && random_.chance(0.4);
  // Now and then so many rounds that nobody remembers the first of a version.
  const std::int64_t rounds = shape_.long_versions ? 150 : shape_.many_versions ? 80 : shape_.shrinks ? 50 : 30;
  const std::int64_t most = shape_.inferred && random_.chance(0.25) ? 80 : rounds / versions;
  for (std::int64_t v = 0; v < versions; ++v) {
    draw_rounds_of(v, period, most);
    // A program may end with a checkpoint, or without.
    if (v + 1 == versions && random_.chance(0.5)) break;
    draw_checkpoint(version_of_program(static_cast<std::uint64_t>(v)), local);
  }
}

// `period`: in how many versions rounds recur. `most`: rounds in one go.
void ProgramMaker::draw_rounds_of(std::int64_t v, std::int64_t period, std::int64_t most) {
  const Version version = version_of_program(static_cast<std::uint64_t>(v));
  const bool has_once = shape_.inferred && static_cast<std::uint64_t>(v) == made_.once_in;
  if (has_once) {
    for (std::uint64_t n = random_.below(3); n > 0; --n) draw_inferred(version, ProgramStep::Inferred::kOnceFirst);
  }
  const bool recurs = shape_.inferred && v % period == 0;
  // Where a new process makes what the others make no more.
  const bool comes_first = recurs && random_.chance(0.5);
  if (comes_first) draw_inferred(version, ProgramStep::Inferred::kRecurs);
  if (shape_.inferred && random_.chance(0.4)) draw_empty(version);
  draw_version(version, length(most));
  if (recurs && !comes_first) {
    draw_inferred(version, ProgramStep::Inferred::kRecurs);
    if (random_.chance(0.3)) draw_empty(version);
    draw_version(version, length(most));
  }
  if (has_once && random_.chance(0.6)) draw_inferred(version, ProgramStep::Inferred::kOnceLast);
}

// At the end of a version.
void ProgramMaker::draw_checkpoint(Version version, bool local) {
  ProgramStep checkpoint;
  checkpoint.kind = StepKind::kCheckpoint;
  checkpoint.version = version.next();
  checkpoint.local = local && random_.chance(0.8);
  checkpoint.lazy = !checkpoint.local && random_.chance(0.3);
  // Not drawn in turn: seeds stay what they were.
  Random root(Random::mix(seed_ + version.value));
  if (!checkpoint.lazy && !shape_.shrinks && root.chance(0.3)) {
    checkpoint.state_from = Rank(static_cast<std::int32_t>(root.below(shape_.world_size)));
  }
  append(checkpoint);
}

void ProgramMaker::append(ProgramStep step) {
  step.index = made_.steps.size();
  step.site = Random::mix(step.index) | 1;
  made_.steps.push_back(std::move(step));
}

// Groups that are used among the next `length` steps.
void ProgramMaker::draw_groups(std::size_t first, std::size_t length) {
  const std::size_t splits =
      shape_.least || !shape_.groups || shape_.world_size < 2 || length == 0 ? 0 : random_.below(3);
  for (std::size_t s = 0; s < splits; ++s) {
    // Two groups from one split, as colours make them; members in any order.
    std::vector<Rank> ranks = made_.groups[0].members;
    for (std::size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random_.below(i)]);
    const std::size_t cut = 1 + random_.below(ranks.size());
    const std::size_t made_at = first + random_.below(length);
    const auto middle = ranks.begin() + static_cast<std::ptrdiff_t>(cut);
    // Destroyed at once when nothing uses it any more, or with its version.
    const auto end = [&] {
      return random_.chance(0.5) ? made_at + 1 + random_.below(first + length - made_at) : SIZE_MAX;
    };
    const std::size_t split = made_.groups.size();
    made_.groups.push_back({GroupId(random_.next() | 1), {ranks.begin(), middle}, made_at, end(), split});
    if (cut < ranks.size()) {
      made_.groups.push_back({GroupId(random_.next() | 1), {middle, ranks.end()}, made_at, end(), split});
    }
    // Not drawn: seeds stay what they were.
    for (std::size_t g = split; g < made_.groups.size(); ++g) {
      made_.groups[g].by_members = Random::mix(made_.groups[split].id.value) % 2 == 0;
    }
  }
}

void ProgramMaker::draw_version(Version version, std::size_t length) {
  const std::size_t first_group = made_.groups.size(), end = made_.steps.size() + length;
  draw_groups(made_.steps.size(), length);
  while (made_.steps.size() < end) {
    std::size_t group = random_.below(made_.groups.size());
    if (made_.groups[group].made_at > made_.steps.size() || made_.groups[group].end <= made_.steps.size()) group = 0;
    if (shape_.on_gpus && random_.chance(0.7)) group = 0;
    if (shape_.messages && !shape_.collective && made_.groups[group].members.size() > 1 && random_.chance(0.15)) {
      draw_messages(group, version);
      continue;
    }
    if (random_.chance(0.1) && draw_repeat(version)) continue;
    if (version == kPreamble && shape_.setups && random_.chance(0.2)) {
      draw_setup(version);
      continue;
    }
    ProgramStep step = draw_step(shape_, group);
    step.version = version;
    // Small ones run at once then (Engine::run_at_once).
    const bool again = shape_.repeats && step.blocking && !step.prepares && step.values != Values::kFresh &&
                       step.count <= kMostRepeated;
    const std::size_t times = again ? step.count % 3 + 1 : 0;
    append(step);
    for (std::size_t i = 0; i < times && made_.steps.size() < end && made_.steps.size() < made_.groups[group].end; ++i)
      append(step);
  }
  // Groups of the preamble may last; a program that is started again makes the others anew.
  if (version == kPreamble) return;
  for (std::size_t g = first_group; g < made_.groups.size(); ++g) {
    made_.groups[g].end = std::min(made_.groups[g].end, made_.steps.size());
  }
}

// Of the world, and for all ranks alike. What recurs has one place in the source.
void ProgramMaker::draw_inferred(Version version, ProgramStep::Inferred what) {
  const auto before = std::find_if(made_.steps.begin(), made_.steps.end(), [&](const ProgramStep& s) {
    return what == ProgramStep::Inferred::kRecurs && s.inferred == what;
  });
  ProgramStep step;
  if (before != made_.steps.end()) {
    step = *before;
  } else {
    Program::Shape plain = shape_;
    plain.fresh = false;
    do {
      step = draw_step(plain, 0);
    } while (!shared_result(step.collective) || step.values != Values::kExact || step.count == 0);
    step.blocking = step.wait_before = true;
    step.prepares = false;
    step.inferred = what;
  }
  const std::uint64_t site = step.site;
  step.version = version;
  append(std::move(step));
  if (site != 0) made_.steps.back().site = site;
}

// A round of the world that moves no bytes, beside calls that a process makes once: its number counts like any other.
void ProgramMaker::draw_empty(Version version) {
  ProgramStep step;
  step.version = version;
  step.collective = random_.chance(0.5) ? Collective::kBarrier : Collective::kBroadcast;
  if (step.collective == Collective::kBroadcast)
    step.root = static_cast<std::int32_t>(random_.below(made_.groups[0].members.size()));
  step.wait_before = true;
  append(std::move(step));
}

// On a group that every life makes before.
void ProgramMaker::draw_setup(Version version) {
  std::size_t group = random_.below(made_.groups.size());
  if (made_.groups[group].made_at > made_.steps.size() || made_.groups[group].end <= made_.steps.size()) group = 0;
  ProgramStep step = draw_step(shape_, group);
  if (step.collective == Collective::kAllToAllv) {  // which is no set-up round
    step.collective = Collective::kAllToAll;
    step.count = step.counts.front();
    step.counts.clear();
  }
  if (step.values == Values::kFresh) step.values = Values::kExact;
  // A rank that has received it has done it. While all who have are on one machine, and others prepare, a loss of that
  // machine is a rollback (seed 97501679).
  if (step.collective == Collective::kBroadcast) step.prepares = false;
  step.version = version;
  step.setup = made_.steps.size();
  append(std::move(step));
}

// A set-up round again, by a life that has its result already.
bool ProgramMaker::draw_repeat(Version version) {
  std::vector<std::size_t> named;
  for (const ProgramStep& s : made_.steps) {
    if (s.setup == s.index && made_.groups[s.group].end > made_.steps.size()) named.push_back(s.index);
  }
  if (named.empty()) return false;
  ProgramStep step = made_.steps[named[random_.below(named.size())]];
  const std::uint64_t site = step.site;
  step.version = version;
  step.blocking = random_.chance(0.6);
  append(std::move(step));
  made_.steps.back().site = site;
  return true;
}

ProgramStep ProgramMaker::draw_step(const Program::Shape& shape, std::size_t group) {
  static constexpr Collective kCollectives[] = {
      Collective::kAllreduce,     Collective::kAllreduce, Collective::kAllreduce, Collective::kReduce,
      Collective::kBroadcast,     Collective::kBarrier,   Collective::kAllgather, Collective::kAllgatherv,
      Collective::kReduceScatter, Collective::kGather,    Collective::kScatter,   Collective::kAllToAll};
  static constexpr DataType kTypes[] = {DataType::kI8,  DataType::kU8,  DataType::kI32, DataType::kU32,
                                        DataType::kI64, DataType::kU64, DataType::kF16, DataType::kBF16,
                                        DataType::kF32, DataType::kF64};
  const auto size = static_cast<std::uint64_t>(made_.groups[group].members.size());
  ProgramStep step;
  step.group = group;
  step.collective = random_.pick(kCollectives);
  if (shape.collective) step.collective = *shape.collective;
  if (shape.shrinks && step.collective != Collective::kBarrier) step.collective = Collective::kAllreduce;
  step.blocking = random_.chance(0.6);
  // Others can have finished a broadcast while one of its receivers prepares.
  step.prepares = random_.chance(step.collective == Collective::kBroadcast ? 0.6 : 0.3);
  step.wait_before = random_.chance(0.15);
  if (shape.shrinks) step.prepares = false;
  if (shape.on_gpus && group == 0 && size <= 16 && random_.chance(0.7)) {
    draw_on_gpus(shape, step);
    return step;
  }
  if (step.collective == Collective::kBarrier) return step;
  step.type = random_.pick(kTypes);
  // A group of one needs nobody: a life that stood still ends its round before it hears that it has been replaced, and
  // no other life is bound by what it has read (seed 97511913).
  if (shape.fresh && size > 1 && step.collective == Collective::kBroadcast && random_.chance(0.4)) {
    step.values = Values::kFresh;
  }
  if (reduces(step.collective)) draw_reduction(shape, size, step);
  draw_sizes(shape, size, step);
  return step;
}

void ProgramMaker::draw_on_gpus(const Program::Shape& shape, ProgramStep& step) {
  static constexpr DataType kOnGpus[] = {DataType::kF32, DataType::kF32, DataType::kF16, DataType::kBF16};
  step.collective = Collective::kAllreduce;
  step.type = random_.pick(kOnGpus);
  step.op = random_.pick(kFloatOps);
  if (step.type == DataType::kF32 && step.op == ReduceOp::kSum && random_.chance(0.5)) step.values = Values::kRough;
  step.count = shape.most_bytes / width_of(step) - random_.below(100);
  step.in_place = random_.chance(0.4);
}

void ProgramMaker::draw_reduction(const Program::Shape& shape, std::uint64_t size, ProgramStep& step) {
  step.op = is_float(step.type) ? random_.pick(kFloatOps) : random_.pick(kIntegerOps);
  if (random_.chance(0.12)) {
    step.type = DataType::kCustom;
    step.op = ReduceOp::kCustom;
    step.values = Values::kAffine;
  } else if ((step.type == DataType::kF32 || step.type == DataType::kF64) && step.op == ReduceOp::kSum &&
             random_.chance(0.5)) {
    step.values = Values::kRough;
  } else if (is_float(step.type) && size > 16) {
    step.type = DataType::kI64;  // so many would not add up exactly
  }
  // Averages over any number of contributors are rounded.
  if (shape.shrinks && step.op == ReduceOp::kAverage && is_float(step.type)) {
    step.type = random_.chance(0.5) ? DataType::kF32 : DataType::kF64;
    step.values = Values::kRough;
  }
  // f32 that travels as i8 is a round of blocks. What comes after it is drawn as if this had not been.
  const bool adds = step.op == ReduceOp::kSum || step.op == ReduceOp::kAverage;
  if (step.collective != Collective::kReduce && is_float(step.type) && adds && step.values == Values::kExact &&
      !shape.shrinks && Random(random_).chance(0.4)) {
    step.type = DataType::kF32AsI8;
  }
}

void ProgramMaker::draw_sizes(const Program::Shape& shape, std::uint64_t size, ProgramStep& step) {
  const std::uint64_t most = shape.most_bytes / (width_of(step) * size);
  const std::uint64_t count = random_.pick(kCounts);
  const bool whole = shape.long_allreduces && step.collective == Collective::kAllreduce && count >= 100;
  // Large buffers come from GPUs, and go there, piece by piece.
  const bool large = shape.on_gpus && count >= 100;
  step.count = whole ? shape.most_bytes / width_of(step) : large ? most : std::min(count, most);
  step.in_place = step.collective != Collective::kAllToAll && random_.chance(0.4);
  switch (step.collective) {
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kGather:
    case Collective::kScatter: step.root = static_cast<std::int32_t>(random_.below(size)); break;
    case Collective::kAllgatherv:
      step.count = 0;
      for (std::uint64_t r = 0; r < size; ++r) {
        const std::uint64_t some = random_.pick(kCounts);
        step.counts.push_back(shape.on_gpus && some >= 100 ? most : std::min(some, most));
      }
      break;
    default: break;
  }
  vary(random_, shape, size, most, step);
}

// Some shares are unequal, many of them none, or all of one rank. What is drawn after it is as if this had not been.
void ProgramMaker::vary(Random random, const Program::Shape& shape, std::uint64_t size, std::uint64_t most,
                        ProgramStep& step) {
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
void ProgramMaker::draw_messages(std::size_t group, Version version) {
  const std::size_t size = made_.groups[group].members.size();
  const auto from = static_cast<std::int32_t>(random_.below(size));
  auto to = static_cast<std::int32_t>(random_.below(size - 1));
  if (to >= from) ++to;
  const std::size_t burst = 1 + random_.below(3);
  made_.groups[group].end = std::max(made_.groups[group].end, made_.steps.size() + burst);
  // Messages of one tag are received in their order.
  const bool distinct_tags = random_.chance(0.5);
  if (distinct_tags && random_.chance(0.6)) {
    made_.reversed.push_back(
        {made_.steps.size(), made_.steps.size() + burst, made_.groups[group].members[static_cast<std::size_t>(to)]});
  }
  for (std::size_t i = 0; i < burst; ++i) {
    ProgramStep step = draw_step(shape_, group);
    while (step.collective != Collective::kAllgather) step = draw_step(shape_, group);
    step.collective = Collective::kPoint;
    step.version = version;
    step.prepares = false;
    if (shape_.fresh && random_.chance(0.4)) step.values = Values::kFresh;
    step.root = from;
    step.receiver = to;
    step.tag = static_cast<std::int32_t>(distinct_tags ? i : random_.below(2));
    step.in_place = false;
    step.blocking = false;
    step.wait_before = false;
    append(std::move(step));
  }
}

}  // namespace warren::chaos
