// Whether NCCL moves what GPUs exchange in a round: all ranks have to be able to, and say so in a word each.
#include "worker/rounds/engine_parts.h"

#include <algorithm>
#include <utility>

#include "recovery/base/check.h"
#include "worker/rounds/progress.h"
#include "worker/schedule/copies.h"

namespace warren::worker {

// Whether GPUs may exchange the round, as far as all ranks know it alike. Nobody has begun it in an earlier generation:
// who has would be told of in the plan, or says that it could not (could_exchange()).
bool Engine::may_exchange(const Group& group, const Known& known) const {
  const Call& call = *group.active;
  if (exchange_ == nullptr || recall_ == nullptr || plan_.shrinks || group.id != kWorldGroup || known.done ||
      known.beyond || !known.final.empty() || is_setup(call.round) || call.spec.parts != 0 ||
      call.spec.collective != Collective::kAllreduce ||
      call.spec.count * element_bytes(call.spec) <= exchange_->least_bytes()) {
    return false;
  }
  const Frontier* const others = known_.frontier_of(call.round.group, call.round.version);
  if (others != nullptr && call.round.sequence.value <= others->rounds) return false;
  return exchange_->serves(call.spec.type, call.spec.op, static_cast<std::int32_t>(group.members.size())) &&
         schedule::can_exchange(request_for(group, call));
}

// Takes what this rank needs for that. Only in a first attempt, as may_lend(), and with both buffers on the GPU.
bool Engine::could_exchange(Group& group) {
  const Call& call = *group.active;
  BufferStream* const stream = stream_of(call);
  if (stream == nullptr || gpu_work_ == nullptr || !exchange_->ready() || group.interrupted ||
      call.prepare != Call::Prepare::kNot || stream->lendable() == nullptr) {
    return false;
  }
  auto made = schedule_for(group, call, true);
  if (!made.ok() || !made.value()->exchanges()) return false;
  const PreparedSchedule& prepared = *made.value();
  group.gpu_scratch = exchange_->take_scratch(prepared.schedule().scratch_elements * call.reducer.bytes(Form::kPartial),
                                              prepared.largest() * call.reducer.bytes(Form::kValue));
  if (group.gpu_scratch == nullptr || !stream->lend()) {
    group.gpu_scratch = nullptr;
    return false;
  }
  group.exchange_schedule = std::move(made).value();
  return true;
}

void Engine::forget_exchange(Group& group) {
  group.asked = group.agreed = group.comes_home = false;
  group.exchange_schedule = nullptr;
  group.gpu_scratch = nullptr;
}

// All ranks tell each other whether they could; then all do, or none. A rank that could says so when its input is
// there: what is exchanged then waits for no program's work.
bool Engine::waits_for_words(Group& group, const Known& known) {
  if (group.agreed || !may_exchange(group, known)) return false;
  const Call& call = *group.active;
  const bool could = std::exchange(group.asked, true) ? group.exchange_schedule != nullptr : could_exchange(group);
  if (could && (waits_for_prepare(group, true) || waits_for_input(group, false))) return true;
  const std::size_t ranks = group.members.size();
  if (group.words_schedule == nullptr) {
    schedule::Request request;
    request.collective = Collective::kAllgather;
    request.algorithm = schedule::Algorithm::kDirect;
    request.rank = group.rank;
    request.size = static_cast<std::int32_t>(ranks);
    request.count = request.chunk_elements = GpuExchange::Word::kBytes;
    auto made = schedule::make(request);
    WARREN_CHECK(made.ok(), "few bytes are told to each rank");
    group.words_schedule = std::make_shared<const PreparedSchedule>(std::move(made).value());
  }
  const auto own = GpuExchange::encode(exchange_->word(could));
  group.words.assign((ranks + 1) * own.size(), std::byte{});
  std::ranges::copy(own, group.words.end() - static_cast<std::ptrdiff_t>(own.size()));
  enter(group, Phase::kAgrees);
  Round round;
  round.schedule = group.words_schedule.get();
  round.generation = plan_.generation;
  round.id = call.round;
  round.fingerprint = call.fingerprint;
  round.input = group.words.data() + ranks * own.size();
  round.output = group.words.data();
  auto reducer = Reducer::make(DataType::kU8, ReduceOp::kNone, 1);
  WARREN_CHECK(reducer.ok(), "bytes are copied");
  round.reducer = std::move(reducer).value();
  group.executor.start(round);
  return true;
}

void Engine::hear_words(Group& group) {
  std::vector<GpuExchange::Word> words;
  bool all = true;
  for (std::size_t i = 0; i < group.members.size(); i++) {
    const auto word = GpuExchange::decode(std::span<const std::byte>(group.words)
                                              .subspan(i * GpuExchange::Word::kBytes)
                                              .first<GpuExchange::Word::kBytes>());
    if (!word.ok()) return fail(word.status().because_of_this(to_string(group.active->round)), group.members[i]);
    words.push_back(word.value());
    all = all && words.back().ready;
  }
  exchange_->heard(words);
  Call& call = *group.active;
  group.agreed = true;
  if (all) {
    call.schedule = group.exchange_schedule;
    call.schedule_generation = plan_.generation;
    RoundBoard::add(board_.rounds_exchanged, 1);
  } else if (group.exchange_schedule != nullptr) {
    // Its input goes where it would have gone.
    group.comes_home = true;
    stream_of(call)->bring_home();
    move_on(call);
    group.exchange_schedule = nullptr;
    group.gpu_scratch = nullptr;
  }
}

}  // namespace warren::worker
