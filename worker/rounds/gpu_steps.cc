#include "worker/rounds/gpu_steps.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "worker/rounds/steps.h"

namespace warren::worker {

using schedule::Place;
using schedule::Space;
using schedule::Step;
using schedule::StepKind;

void GpuSteps::begin() {
  const PreparedSchedule& prepared = *round_.schedule;
  WARREN_CHECK(
      !prepared.exchanges() || (round_.exchange != nullptr && round_.gpu_scratch != nullptr && round_.input_on_gpu &&
                                round_.gpu_work != nullptr && round_.landing != nullptr),
      "GPUs exchange what is there");
  const std::size_t steps = prepared.steps().size();
  works_.clear();
  made_.assign(steps, {});
  uploads_.assign(round_.input_on_gpu ? steps : 0, 0);
  sent_from_.clear();
  bringing_.clear();
  own_.clear();
  brought_.assign(steps, false);
  next_turn_ = 0;
  turns_.clear();
  turn_waits_.clear();
  for (const auto& turn : prepared.turns()) turn_waits_.push_back(turn.size());
  made_stay_.assign(prepared.exchanges() ? steps : 0, nullptr);
  checksums_.assign(made_stay_.size(), 0);
}

void GpuSteps::end() {
  round_.let_go();
  WARREN_CHECK(sent_from_.empty(), "memory that sends have read is given back with them");
}

void GpuSteps::abandon() {
  works_.clear();
  bringing_.clear();
  own_.clear();
  turns_.clear();
  made_stay_.clear();
  sent_from_.clear();
}

bool GpuSteps::on_gpu(const Place& place, Index source) const {
  return source != PreparedSchedule::kNone ? round_.views[source].on_gpu
                                           : place.space == Space::kInput && round_.input_on_gpu;
}

bool GpuSteps::reads(Index index) const {
  if (round_.gpu_work == nullptr) return false;
  const Step& step = round_.schedule->step(index);
  if (copies_input(step)) return round_.input_on_gpu;
  const auto places = round_.schedule->operands(step);
  const auto sources = round_.schedule->operand_sources(step);
  for (std::size_t k = 0; k < places.size(); k++) {
    if (on_gpu(places[k], sources[k])) return true;
  }
  return false;
}

GpuWork::Work GpuSteps::work_of(const Step& step) const {
  GpuWork::Work work;
  work.type = round_.fingerprint.type;
  work.op = round_.fingerprint.op;
  work.count = step.count;
  work.bytes = step.count * round_.value_bytes;
  work.contributors = static_cast<std::uint32_t>(round_.schedule->schedule().size);
  return work;
}

void GpuSteps::start(GpuWork::Work work, Index step) {
  works_.push_back({round_.gpu_work->begin(std::move(work)), step});
}

// The work keeps all memory that it reads until it is done, even if the round has ended by then.
void GpuSteps::combine(Index index) {
  const PreparedSchedule& prepared = *round_.schedule;
  const Step& step = prepared.step(index);
  GpuWork::Work work = work_of(step);
  if (copies_input(step)) {
    WARREN_CHECK(prepared.published_by(index) != PreparedSchedule::kNone, "what others get is published");
    work.operands.push_back({round_.address(step.a), true, round_.input_keeper});
    work.copies = true;
    work.first_bytes = work.made_bytes = work.bytes;
  } else {
    gather(step, work);
    work.made_form = step.dst.form;
    work.made_bytes = step.count * round_.reducer.bytes(step.dst.form);
    work.bracketing = step.bracketing;
    work.stays = prepared.exchanges();
  }
  start(std::move(work), index);
}

// The operands of a combining step that are on a GPU, and the first one.
void GpuSteps::gather(const Step& step, GpuWork::Work& work) const {
  const auto places = round_.schedule->operands(step);
  const auto sources = round_.schedule->operand_sources(step);
  std::size_t there = 0;
  for (std::size_t k = 0; k < places.size(); k++) {
    const Index source = sources[k];
    if (!on_gpu(places[k], source)) {
      work.operands.emplace_back();
    } else {
      there++;
      work.operands.push_back({round_.operand(places[k], source), true,
                               source == PreparedSchedule::kNone ? round_.input_keeper : round_.views[source].lent});
    }
  }
  const Place& first = places.front();
  work.first_form = first.form;
  work.first_bytes = step.count * round_.reducer.bytes(first.form);
  if (work.operands.front().on_gpu || there + 1 != places.size()) return;
  // Where it lies now, something else may lie when this round is no more. Without memory for it, it stays here, and
  // the others come.
  const std::shared_ptr<std::byte[]> copy(new (std::nothrow) std::byte[work.first_bytes]);
  if (copy == nullptr) return;
  std::memcpy(copy.get(), round_.operand(first, sources.front()), work.first_bytes);
  work.operands.front() = {copy.get(), false, copy};
}

bool GpuSteps::comes_first(const Step& step) const {
  return step.kind == StepKind::kSend && step.turn == 0 && !step.lent && step.count != 0 && round_.input_on_gpu &&
         step.a.space == Space::kInput;
}

void GpuSteps::bring_to_cpu(Index send) {
  const Step& step = round_.schedule->step(send);
  GpuWork::Work work = work_of(step);
  work.operands.push_back({round_.address(step.a), true, round_.input_keeper});
  start(std::move(work), send);
}

bool GpuSteps::goes_by_gpu(Index send) const {
  if (!round_.schedule->hands_on(send) || !round_.input_on_gpu || round_.output_keeper == nullptr) return false;
  const Index by = round_.schedule->published_by(send);
  return round_.places[by].known() && uploads_[by] != kUploaded;
}

void GpuSteps::bring_to_gpu(Index send) {
  const Step& step = round_.schedule->step(send);
  std::uint64_t& upload = uploads_[round_.schedule->published_by(send)];
  if (upload == 0) {
    GpuWork::Work work = work_of(step);
    work.operands.push_back({round_.address(step.a), false, round_.output_keeper});
    work.copies = true;
    work.first_bytes = work.made_bytes = work.bytes;
    upload = round_.gpu_work->begin(std::move(work));
  }
  works_.push_back({upload, send});
}

std::optional<GpuSteps::Outcome> GpuSteps::on_done(const GpuWork::Done& done, bool well) {
  const auto begun = std::ranges::find(works_, done.id, &Begun::id);
  if (begun == works_.end()) return std::nullopt;
  const Index index = begun->step;
  const PreparedSchedule& prepared = *round_.schedule;
  Outcome outcome;
  if (well && prepared.hands_on(index)) {
    const Index publish = prepared.published_by(index);
    made_[publish] = done.on_gpu;
    uploads_[publish] = kUploaded;
    for (const Begun& one : works_) {
      if (one.id == done.id) outcome.sends.push_back(one.step);
    }
    std::erase_if(works_, [&](const Begun& one) { return one.id == done.id; });
    return outcome;
  }
  works_.erase(begun);
  if (!well) return outcome;
  if (prepared.step(index).kind == StepKind::kSend) {
    sent_from_[index] = {done.operands.front(), done.memory};
    outcome.sends.push_back(index);
  } else {
    outcome.makes = index;
  }
  return outcome;
}

const std::byte* GpuSteps::sent_from(Index send) const {
  const auto found = sent_from_.find(send);
  return found == sent_from_.end() ? nullptr : found->second.at;
}

void GpuSteps::made(Index publish, const GpuWork::Done& done) {
  made_[publish] = done.on_gpu;
  if (!made_stay_.empty()) made_stay_[publish] = done.stays;
}

// A final that was made on this rank's GPU is there already. Its copy on the CPU stays until the program's buffer has
// it, and for ranks that cannot be told its place in the log. Only the end of the round waits for that.
bool GpuSteps::bring_own(Index index, const GpuWork::Done& done) {
  const PreparedSchedule& prepared = *round_.schedule;
  const Index by = prepared.published_by(index);
  if (round_.landing == nullptr || done.here == nullptr || !prepared.bypasses(index) || !round_.places[by].known()) {
    return false;
  }
  const Step& step = prepared.step(index);
  if (!round_.landing->bring(step.dst.at, step.count, done.here, ++newest_bringing_)) return false;
  own_.push_back({newest_bringing_, index, {done.made, done.memory}});
  for (const Index send : prepared.tells(by)) sent_from_[send] = {done.made, done.memory};
  brought_[index] = true;
  return true;
}

// The CPU copies nothing of what goes from one GPU to the other.
Result<bool> GpuSteps::bring(Index copy) {
  if (round_.landing == nullptr || !round_.schedule->delivers(copy)) return false;
  const View& view = round_.views[round_.schedule->sources(copy).a];
  if (view.beside == nullptr) return false;
  const Step& step = round_.schedule->step(copy);
  if (!round_.landing->bring(step.dst.at, step.count, view.beside, ++newest_bringing_)) {
    if (!view.on_gpu) return false;
    // The CPU could not read it.
    return Status(Code::kClosed, "nobody takes the result of " + to_string(round_.id) + " from the GPU");
  }
  bringing_.push_back({newest_bringing_, copy});
  return true;
}

GpuSteps::Brought GpuSteps::on_brought(std::uint64_t number, bool stood, bool well) {
  if (const auto own = std::ranges::find(own_, number, &Own::id); own != own_.end()) {
    const Own one = *own;
    own_.erase(own);
    if (!well) return {};
    if (!stood) {
      const Step& step = round_.schedule->step(one.step);
      std::memcpy(round_.address(step.dst), one.made.at, step.count * round_.value_bytes);
      brought_[one.step] = false;
      round_.landing->landed(step.dst.at, step.count);
    }
    return {Brought::What::kOwn, one.step};
  }
  const auto begun = std::ranges::find(bringing_, number, &Begun::id);
  if (begun == bringing_.end()) return {};
  const Index copy = begun->step;
  bringing_.erase(begun);
  if (!well) return {};
  if (!stood) return {Brought::What::kCopy, copy};
  brought_[copy] = true;
  if (board_ != nullptr) RoundBoard::add(board_->finals_from_gpus, 1);
  return {Brought::What::kCame, copy};
}

std::uint64_t GpuSteps::may_begin(const Step& step) {
  turn_waits_[step.turn - 1]--;
  std::uint64_t bytes = 0;
  while (next_turn_ < turn_waits_.size() && turn_waits_[next_turn_] == 0) bytes += begin_turn(next_turn_++);
  return bytes;
}

std::uint64_t GpuSteps::begin_turn(std::size_t turn) {
  const PreparedSchedule& prepared = *round_.schedule;
  GpuExchange::Turn messages;
  std::uint64_t bytes_sent = 0;
  for (const Index i : prepared.turns()[turn]) {
    const Step& step = prepared.step(i);
    GpuExchange::Message& m = messages.emplace_back();
    m.peer = step.peer;
    m.sends = step.kind == StepKind::kSend;
    m.bytes = step.count * round_.reducer.bytes(m.sends ? step.a.form : step.dst.form);
    if (!m.sends) {
      m.at = round_.address(step.dst);
      m.keeper = round_.gpu_scratch;
      m.to_cpu = !delivered_on_gpu(i);
      continue;
    }
    bytes_sent += m.bytes;
    if (step.a.space == Space::kInput) {
      m.at = round_.address(step.a);
      m.keeper = round_.input_keeper;
    } else {
      const Index by = prepared.published_by(i);
      WARREN_CHECK(by != PreparedSchedule::kNone && made_stay_[by] != nullptr,
                   "a final that is exchanged was made there");
      m.at = const_cast<std::byte*>(made_[by].at);
      m.keeper = made_stay_[by];
    }
  }
  if (!messages.empty()) turns_.push_back({round_.exchange->begin(std::move(messages)), turn});
  return bytes_sent;
}

// Only the GPU reads the bytes that a receive brings.
bool GpuSteps::delivered_on_gpu(Index receive) const {
  const PreparedSchedule& prepared = *round_.schedule;
  return prepared.delivered(receive) || (prepared.combined(receive) && prepared.reads()[receive] != 0);
}

std::optional<std::size_t> GpuSteps::take_turn(std::uint64_t id) {
  const auto begun = std::ranges::find(turns_, id, &BegunTurn::id);
  if (begun == turns_.end()) return std::nullopt;
  const std::size_t turn = begun->turn;
  turns_.erase(begun);
  return turn;
}

void GpuSteps::on_exchanged(std::size_t turn, const GpuExchange::Done& done) {
  static constexpr std::uint64_t kStands = 0;
  const PreparedSchedule& prepared = *round_.schedule;
  const std::vector<Index>& steps = prepared.turns()[turn];
  for (std::size_t m = 0; m < steps.size(); m++) {
    const Step& step = prepared.step(steps[m]);
    checksums_[steps[m]] = done.checksums[m];
    const Rank peer = members_[static_cast<std::size_t>(step.peer)];
    if (step.kind == StepKind::kSend) {
      if (const Index by = prepared.published_by(steps[m]); by != PreparedSchedule::kNone) made_stay_[by] = nullptr;
      if (board_ != nullptr) board_->sent(peer, step.count * round_.reducer.bytes(step.a.form));
      continue;
    }
    if (board_ != nullptr) board_->received(peer, step.count * round_.reducer.bytes(step.dst.form));
    View& view = round_.views[steps[m]];
    if (done.on_cpu[m] != nullptr) {
      view.there = done.on_cpu[m];
      view.lent = done.memory;
      continue;
    }
    view.there = round_.address(step.dst);
    view.on_gpu = true;
    view.lent = round_.gpu_scratch;
    if (prepared.delivered(steps[m])) {
      view.beside =
          std::make_shared<const FinalOnGpu>(FinalOnGpu{view.there, 0, &kStands, round_.gpu_scratch, nullptr});
    }
  }
}

std::span<const std::byte> GpuSteps::word_to_send(Index word) {
  checksums_[word] = checksums_[word - 1];
  return word_to_receive(word);
}

std::span<std::byte> GpuSteps::word_to_receive(Index word) {
  return std::as_writable_bytes(std::span(checksums_).subspan(word, 1));
}

Status GpuSteps::check_word(Index word, Rank peer) {
  if (checksums_[word] == checksums_[word - 1]) return {};
  const Status status(Code::kCorrupt, "what came from the GPU of rank " + std::to_string(peer.value) + " in " +
                                          to_string(round_.id) + " has another checksum than what was sent");
  round_.exchange->distrust(std::string(status.message()));
  return status;
}

// NCCL does not say for whom a turn waits.
void GpuSteps::add_waited(std::vector<RoundBoard::Waited>& ranks, std::size_t limit) const {
  if (turns_.empty()) return;
  std::map<std::int32_t, RoundBoard::Waited> peers;
  for (const Index i : round_.schedule->turns()[turns_.front().turn]) {
    const Step& step = round_.schedule->step(i);
    RoundBoard::Waited& waited = peers[step.peer];
    waited.rank = members_[static_cast<std::size_t>(step.peer)];
    (step.kind == StepKind::kSend ? waited.sends : waited.receives) = true;
  }
  for (const auto& [peer, waited] : peers) {
    if (ranks.size() < limit) ranks.push_back(waited);
  }
}

}  // namespace warren::worker
