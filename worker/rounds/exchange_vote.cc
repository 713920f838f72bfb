#include "worker/rounds/exchange_vote.h"

#include <algorithm>
#include <span>
#include <utility>

#include "recovery/base/check.h"

namespace warren::worker {

bool ExchangeVote::serves(const Call& call, const GroupSchedules& schedules) const {
  const CallSpec& spec = call.spec;
  if (exchange_ == nullptr || spec.parts != 0 || spec.collective != Collective::kAllreduce ||
      spec.count * element_bytes(spec) <= exchange_->least_bytes()) {
    return false;
  }
  return exchange_->serves(spec.type, spec.op, schedules.size()) && schedule::can_exchange(schedules.request_for(call));
}

bool ExchangeVote::could(const Call& call, GroupSchedules& schedules, bool may) {
  if (!std::exchange(asked_, true) && may) (void)take(call, schedules);
  return schedule_ != nullptr;
}

// Takes what this rank needs. Both buffers are to be on the GPU.
bool ExchangeVote::take(const Call& call, GroupSchedules& schedules) {
  BufferStream* const stream = stream_of(call);
  if (stream == nullptr || !exchange_->ready() || stream->lendable() == nullptr) return false;
  auto made = schedules.schedule_for(call, true);
  if (!made.ok() || !made.value()->exchanges()) return false;
  const PreparedSchedule& prepared = *made.value();
  scratch_ = exchange_->take_scratch(prepared.schedule().scratch_elements * call.reducer.bytes(Form::kPartial),
                                     prepared.largest() * call.reducer.bytes(Form::kValue));
  if (scratch_ == nullptr || !stream->lend()) {
    scratch_ = nullptr;
    return false;
  }
  schedule_ = std::move(made).value();
  return true;
}

void ExchangeVote::forget() {
  asked_ = agreed_ = comes_home_ = false;
  schedule_ = nullptr;
  scratch_ = nullptr;
}

Round ExchangeVote::ask(const Call& call, const GroupSchedules& schedules, Generation generation, bool could) {
  const auto ranks = static_cast<std::size_t>(schedules.size());
  if (words_schedule_ == nullptr) {
    schedule::Request request;
    request.collective = Collective::kAllgather;
    request.algorithm = schedule::Algorithm::kDirect;
    request.rank = schedules.rank();
    request.size = schedules.size();
    request.count = request.chunk_elements = GpuExchange::Word::kBytes;
    auto made = schedule::make(request);
    WARREN_CHECK(made.ok(), "few bytes are told to each rank");
    words_schedule_ = std::make_shared<const PreparedSchedule>(std::move(made).value());
  }
  const auto own = GpuExchange::encode(exchange_->word(could));
  words_.assign((ranks + 1) * own.size(), std::byte{});
  std::ranges::copy(own, words_.end() - static_cast<std::ptrdiff_t>(own.size()));
  Round round;
  round.schedule = words_schedule_.get();
  round.generation = generation;
  round.id = call.round;
  round.fingerprint = call.fingerprint;
  round.input = words_.data() + ranks * own.size();
  round.output = words_.data();
  auto reducer = Reducer::make(DataType::kU8, ReduceOp::kNone, 1);
  WARREN_CHECK(reducer.ok(), "bytes are copied");
  round.reducer = std::move(reducer).value();
  return round;
}

Result<bool> ExchangeVote::hear(Call& call, const std::vector<Rank>& members, Generation generation) {
  std::vector<GpuExchange::Word> words;
  bool all = true;
  for (std::size_t i = 0; i < members.size(); i++) {
    const auto word = GpuExchange::decode(
        std::span<const std::byte>(words_).subspan(i * GpuExchange::Word::kBytes).first<GpuExchange::Word::kBytes>());
    if (!word.ok()) return word.status().because_of_this(to_string(call.round)).about(members[i]);
    words.push_back(word.value());
    all = all && words.back().ready;
  }
  exchange_->heard(words);
  agreed_ = true;
  if (all) {
    call.schedule = schedule_;
    call.schedule_generation = generation;
  } else if (schedule_ != nullptr) {
    comes_home_ = true;
    stream_of(call)->bring_home();
    schedule_ = nullptr;
    scratch_ = nullptr;
  }
  return all;
}

}  // namespace warren::worker
