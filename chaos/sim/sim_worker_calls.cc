// Calls of a simulated program: their buffers, and what is looked at when they have returned.
#include "chaos/sim/sim_worker.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "chaos/sim/elements.h"
#include "recovery/base/limits.h"

namespace warren::chaos {
namespace {

constexpr std::byte kUntouched{0xa5}, kScribbled{0x5c};
constexpr std::size_t kLeastOnGpu = 16 << 10;  // bytes of a call's larger buffer

}  // namespace

// Another byte, or another length.
void SimWorker::alter(std::vector<std::byte>& state, Random& draws) {
  if (draws.chance(0.6)) {
    state[draws.below(state.size())] ^= std::byte{1};
  } else if (draws.chance(0.5)) {
    state.resize(state.size() + static_cast<std::size_t>(draws.between(1, 100)));
  } else {
    state.pop_back();
  }
}

// Makes another call of it; false: it is to be left out.
bool SimWorker::alter(ProgramStep& step) {
  if (world_.random.chance(0.3)) return false;
  if (step.op == ReduceOp::kSum && world_.random.chance(0.5)) {
    step.op = step.type == DataType::kF32AsI8 ? ReduceOp::kAverage : ReduceOp::kMax;
  } else if (step.collective == Collective::kBarrier || !step.counts.empty()) {
    step.collective = Collective::kAllreduce;
    step.type = DataType::kI32;
    step.op = ReduceOp::kSum;
    step.count = 5;
    step.counts.clear();
    step.in_place = false;
  } else {
    step.count += 1;
  }
  return true;
}

void SimWorker::submit(ProgramStep step, std::int32_t place, bool altered) {
  auto active = std::make_unique<ActiveCall>();
  ActiveCall& a = *active;
  a.place = place;
  a.altered = altered;
  lay_out(a, step);
  a.call = std::make_shared<worker::Call>();
  a.call->blocking = step.blocking;
  if (step.setup) a.call->setup = Program::setup_name(*step.setup);
  std::vector<std::uint64_t> sent, got;  // the call refers to them until it is submitted
  if (step.collective == Collective::kAllToAllv) {
    sent = program_.sent_by(step, place);
    got = program_.got_by(step, place);
  }
  specify(a, step, sent, got);
  const bool on_gpu = put_on_gpu(a, step);
  const auto size = static_cast<std::int32_t>(program_.members(step).size());
  const GroupId group = program_.groups()[step.group].id;
  // A round of blocks is what narrow() makes of a call that was valid.
  const bool narrowed = step.type == DataType::kF32AsI8;
  const Status valid = narrowed ? Status() : worker::validate(a.call->spec, {place, size});
  a.step = std::move(step);
  if (!valid.ok()) return world_.violated("Program", valid.describe());
  calls_.push_back(std::move(active));
  begin_call(a, group, on_gpu);
}

// Makes the memory of a call, with its input unless that is prepared.
void SimWorker::lay_out(ActiveCall& a, const ProgramStep& step) {
  const std::size_t width = width_of(step);
  const std::uint64_t in = program_.in_count(step, a.place), out = program_.out_count(step, a.place);
  const std::int64_t offset = program_.in_place_at(step, a.place);
  const std::uint64_t shift = static_cast<std::uint64_t>(offset < 0 ? -offset : offset);
  a.memory.assign((in + out + shift + 2) * width / sizeof(std::uint64_t) + 4, 0);
  std::fill(a.bytes().begin(), a.bytes().end(), kUntouched);
  a.in_at = 16;
  a.in_bytes = in * width;
  a.out_at = 16 + (in * width + 7) / 8 * 8;
  if (step.in_place) {
    a.in_at = 16 + (offset > 0 ? shift * width : 0);
    a.out_at = 16 + (offset < 0 ? shift * width : 0);
  }
  a.out_bytes = out * width;
  const bool holds_data = step.collective == Collective::kBroadcast && a.place == step.root;
  // A rank that makes other calls goes on with the right results: only its calls are wrong.
  const auto* right = desynced_ ? judge_.oracle(timeline_).expected(step.index) : nullptr;
  const std::uint64_t key = right != nullptr ? right->keys[static_cast<std::size_t>(a.place)]
                            : step.values == Values::kFresh
                                ? world_.random.next()
                                : program_.input_key(step, a.place, state_, judge_.oracle(timeline_).salt());
  a.input = program_.input(step, a.place, key);
  a.input_at = holds_data ? a.out_at : a.in_at;
  if (!a.input.empty() && !step.prepares) std::memcpy(a.bytes().data() + a.input_at, a.input.data(), a.input.size());
  a.before.assign(a.bytes().begin(), a.bytes().end());
}

// `sent`, `got`: of an all_to_allv, by rank.
void SimWorker::specify(ActiveCall& a, const ProgramStep& step, const std::vector<std::uint64_t>& sent,
                        const std::vector<std::uint64_t>& got) {
  worker::CallSpec& spec = a.call->spec;
  spec.collective = step.collective;
  spec.type = step.type;
  spec.op = step.op;
  const bool bufferless = step.collective == Collective::kBroadcast || step.collective == Collective::kBarrier;
  spec.input = bufferless ? nullptr : a.bytes().data() + a.in_at;
  spec.output = step.collective == Collective::kBarrier ? nullptr : a.bytes().data() + a.out_at;
  if (world_.is(Mutant::works_in_place) && step.in_place && !a.input.empty()) {
    a.shadow = a.input;
    spec.input = a.shadow.data();
  }
  spec.count = step.count;
  if (step.type == DataType::kF32AsI8) spec.values = step.count * kI8BlockValues;
  if (step.collective == Collective::kAllToAllv) {
    spec.counts = sent;
    spec.counts_from = got;
  } else {
    spec.counts = step.counts;
  }
  spec.root = step.root;
  spec.site = step.site;
  if (step.collective == Collective::kPoint) {
    spec.sends = a.place == step.root;
    spec.root = spec.sends ? step.receiver : step.root;
    spec.tag = step.tag;
  }
  if (step.type == DataType::kCustom) {
    spec.custom = chain_affine;
    spec.custom_bytes = sizeof(Affine);
    // Any address says "swapped".
    if (world_.is(Mutant::operands_swapped) && rank_ == Rank(1)) spec.custom_context = &world_;
  }
  if (step.prepares) {
    spec.prepare = prepare;
    spec.prepare_context = &a;
  }
}

// The function that prepares an input, of `call`.
int SimWorker::prepare(void* call) {
  ActiveCall& a = *static_cast<ActiveCall*>(call);
  ++a.prepared;
  // A rank without input runs the same function, which may write where the result will stand.
  const auto output = a.bytes().subspan(a.out_at, a.out_bytes);
  if (a.input.empty()) std::fill(output.begin(), output.end(), kScribbled);
  if (!a.input.empty()) std::memcpy(a.bytes().data() + a.input_at, a.input.data(), a.input.size());
  a.before.assign(a.bytes().begin(), a.bytes().end());
  return 0;
}

// Most large calls of a rank that has a GPU have their memory there. True: this one does.
bool SimWorker::put_on_gpu(ActiveCall& a, const ProgramStep& step) {
  const bool on_gpu = gpu_ && step.collective != Collective::kPoint && !step.setup &&
                      std::max(a.in_bytes, a.out_bytes) > kLeastOnGpu && world_.random.chance(0.95);
  if (!on_gpu) return false;
  worker::CallSpec& spec = a.call->spec;
  a.host = std::make_shared<std::vector<std::uint64_t>>(a.memory.size());
  std::byte* const host = reinterpret_cast<std::byte*>(a.host->data());
  const bool reduces = step.collective == Collective::kAllreduce || step.collective == Collective::kReduceScatter ||
                       step.collective == Collective::kReduceScatterv;
  const bool gathers = step.collective == Collective::kAllgather || step.collective == Collective::kAllgatherv;
  const bool may_lend = gathers || (reduces && combined_on_gpus(step.type, step.op));
  auto buffers = std::make_unique<SimGpuCall>(
      *gpu_, may_lend ? &*shares_ : nullptr,
      SimGpuCall::Buffer{a.bytes().data() + a.input_at, host + a.input_at, a.input.size()},
      SimGpuCall::Buffer{a.bytes().data() + a.out_at, host + a.out_at, a.out_bytes, a.host},
      step.prepares ? std::function<void()>([&a] { prepare(&a); }) : nullptr);
  if (spec.input != nullptr) spec.input = host + a.in_at;
  spec.output = host + a.out_at;
  if (step.prepares || !a.input.empty()) {
    spec.prepare = [](void* call) {
      static_cast<SimGpuCall*>(call)->begin_filling();
      return 0;
    };
    spec.prepare_context = buffers.get();
  }
  a.call->buffers = std::move(buffers);
  return true;
}

// Gives the engine a call, which is valid.
void SimWorker::begin_call(ActiveCall& a, GroupId group, bool on_gpu) {
  worker::CallSpec& spec = a.call->spec;
  a.call->self = a.call;
  if (a.step.values == Values::kFresh && spec.sends) judge_.sends(a.step, timeline_, host());
  const bool repeats = a.step.blocking && !a.step.setup && !a.step.prepares && !on_gpu;
  const RoundId round = life_.engine().next_round(group);
  const bool at_once = repeats && life_.engine().run_at_once(group, spec, 1);
  if (at_once) {
    if (spec.collective != Collective::kPoint) a.call->round = round;
    a.call->self.reset();
    a.call->settled = a.call->finished = true;
  }
  const Status taken = at_once ? Status() : life_.engine().submit(group, *a.call);
  if (doomed_) return links_.doomed();
  if (!taken.ok()) {
    a.call->self.reset();
    a.reaped = true;
    a.after.assign(a.bytes().begin(), a.bytes().end());
    if (taken.code() == Code::kInvalidArgument) return world_.violated("Program", taken.describe());
    return program_fails(taken);
  }
  if (life_.engine().outstanding() > limits::kMaxOutstandingRounds)
    world_.violated("I8", "too many calls are outstanding");
  a.to_be_run = a.step.collective == Collective::kPoint || !in_log(a.call->round);
  if (world_.is(Mutant::overwrites_input) && a.step.in_place && a.out_bytes > 0) {
    later(world_.random.between(1, 50), [&a] {
      if (!a.call->finished) a.bytes()[a.out_at] ^= std::byte{1};
    });
  }
  watch_waits();
  data_moved();
}

void SimWorker::reap(ActiveCall& a) {
  a.reaped = true;
  // As a program's call ends: what it has lent is used again.
  a.call->buffers.reset();
  a.after.assign(a.bytes().begin(), a.bytes().end());
  const auto memory = a.bytes();
  const std::size_t end = a.out_at + a.out_bytes;
  if (!std::equal(memory.begin(), memory.begin() + static_cast<std::ptrdiff_t>(a.out_at), a.before.begin()) ||
      !std::equal(memory.begin() + static_cast<std::ptrdiff_t>(end), memory.end(),
                  a.before.begin() + static_cast<std::ptrdiff_t>(end))) {
    return world_.violated("Input",
                           describe() + ": step " + std::to_string(a.step.index) + " wrote outside its output");
  }
  const auto output = memory.subspan(a.out_at, a.out_bytes);
  if (a.call->status.ok()) {
    if (is_setup(a.call->round)) setups_completed_.emplace(a.call->round.group, a.call->round.sequence);
    if (world_.keeps_transcript()) {
      world_.tell(describe() + " finished step " + std::to_string(a.step.index) + ", " +
                  (a.step.collective == Collective::kPoint
                       ? "message " + std::to_string(a.step.root) + " → " + std::to_string(a.step.receiver) + " tag " +
                             std::to_string(a.step.tag) + " in group " + std::to_string(a.step.group)
                       : to_string(a.call->fingerprint)) +
                  (a.step.in_place ? ", in place" : "") + (a.prepared > 0 ? ", prepared" : ""));
    }
    if (a.step.prepares && !a.altered && a.prepared != (a.to_be_run ? 1 : 0)) {
      // It may have been prepared in one generation, and replayed in the next; or the other way round.
      const bool replayed = a.step.collective != Collective::kPoint && in_log(a.call->round);
      if (a.prepared > 1 || (a.prepared == 1 && !a.to_be_run) || (a.prepared == 0 && !replayed)) {
        return world_.violated("Prepare", describe() + ": the input of step " + std::to_string(a.step.index) + " was " +
                                              "prepared " + std::to_string(a.prepared) + " times, and it was " +
                                              (replayed ? "" : "not ") + "replayed");
      }
    }
    if (a.step.once()) {
      std::vector<std::uint64_t> keys;
      for (std::int32_t place = 0; place < static_cast<std::int32_t>(program_.members(a.step).size()); ++place) {
        keys.push_back(program_.input_key(a.step, place, {}, 0));
      }
      const auto right = program_.expected(a.step, a.place, keys);
      if (!a.altered && !std::equal(output.begin(), output.end(), right.begin(), right.end())) {
        return world_.violated("I2", describe() + ": step " + std::to_string(a.step.index) +
                                         ", which each process makes once, has given something else");
      }
      judge_.sign();
    } else if (!a.altered) {
      judge_.returned(a.step, output, {a.place, timeline_, host(), self_, a.call->contributors.get()});
      if (life_.logs() && a.step.collective != Collective::kPoint && !is_setup(a.call->round)) {
        judge_.completed(a.call->round, self_);
      }
    }
    if (!a.altered && !desynced_) Program::fold(a.step, output, a.step.blocking ? state_ : deferred_);
    // They are the program's own again: it scribbles over them.
    std::fill(memory.begin(), memory.end(), kScribbled);
    a.after.assign(memory.begin(), memory.end());
    if (passes(KillPoint::kReturn)) links_.doomed();
    return;
  }
  if (!a.altered && !a.step.once())
    judge_.interrupted(a.step, a.place, std::span(a.before).subspan(a.out_at, a.out_bytes), output, timeline_);
  program_fails(a.call->status);
}

}  // namespace warren::chaos
