#include "worker/rounds/executor.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "recovery/base/check.h"
#include "storage/stream_copy.h"
#include "worker/rounds/steps.h"

namespace warren::worker {

using schedule::Space;
using schedule::Step;
using schedule::StepKind;

namespace {

// Finals of larger results go to the output past the cache, which they would not fit in (L2 of 1 to 2 MiB).
constexpr std::size_t kStreamedBytes = std::size_t{4} << 20;

}  // namespace

Executor::Executor(Transport& transport, ReadsInPlace* in_place, GroupId links, std::vector<Rank> members,
                   std::uint32_t slot, RoundBoard* board)
    : transport_(transport),
      in_place_(in_place),
      link_group_(links),
      members_(std::move(members)),
      slot_(slot),
      board_(board) {
  links_.assign(members_.size(), 0);
}

void Executor::start(const Round& round) {
  prepare(round);
  if (status_.ok()) run(0, false);
}

void Executor::take_over(const Round& round, std::uint32_t finished, bool posted) {
  prepare(round);
  if (status_.ok()) run(finished, posted);
}

void Executor::prepare(const Round& round) {
  WARREN_CHECK(done(), "one round at a time");
  if (header_.round != round.id) lost_input_ = {};
  round_.begin(round);
  const PreparedSchedule& prepared = *round.schedule;
  const auto& s = prepared.schedule();
  round_.scratch = s.scratch_elements == 0 ? nullptr
                   : prepared.exchanges()  ? round.gpu_scratch.get()
                                           : scratch_.reserve(s.scratch_elements * round_.partial_bytes);
  header_ = FrameHeader{};
  header_.kind = FrameKind::kCollective;
  header_.generation = round.generation;
  header_.round = round.id;
  header_.fingerprint = round.fingerprint;
  status_ = Status();
  program_failed_ = false;
  bytes_sent_ = 0;
  streams_ = round.fingerprint.count / element_values(round.fingerprint.type) >= kStreamedBytes / round_.value_bytes;
  remaining_ = s.steps.size();
  pending_.assign(s.pending.begin(), s.pending.end());
  cursors_.resize(prepared.channels().size());
  outstanding_.assign(prepared.channels().size(), {});
  ready_.clear();
  reads_left_ = prepared.reads();
  published_.assign(s.steps.size(), false);
  unsettled_.clear();
  use_gpu_steps();
  await_input();
  if (needs_lost_input()) {
    status_ = Status(Code::kExhausted,
                     "a part of this rank's input of " + to_string(round.id) +
                         " is lost: a final took its place whose owner, lost since, used its log's memory again "
                         "while it was read; --log_memory_bytes is too small");
  }
}

// A round that may touch GPUs has steps there; others pay for the question alone.
void Executor::use_gpu_steps() {
  gpu_ = nullptr;
  if (!round_.may_touch_gpus()) return;
  if (gpu_steps_ == nullptr) gpu_steps_ = std::make_unique<GpuSteps>(round_, members_, board_);
  gpu_ = gpu_steps_.get();
  gpu_->begin();
}

// From where its first `finished` steps are done. Those of a channel are then the first of it.
void Executor::run(std::uint32_t finished, bool posted) {
  const PreparedSchedule& prepared = *round_.schedule;
  const auto& s = prepared.schedule();
  for (std::uint32_t c = 0; c < cursors_.size(); c++) {
    const auto& channel = prepared.channels()[c];
    LinkId& link = links_[static_cast<std::size_t>(channel.peer)];
    if (link == 0) link = transport_.link(link_group_, members_[static_cast<std::size_t>(channel.peer)]) + 1;
    cursors_[c] = {link - 1, channel.first_send, channel.first_recv};
  }
  for (std::uint32_t i = 0; i < finished; i++) {
    const Step& step = s.steps[i];
    remaining_--;
    pending_[i] = kFinished;
    for (std::uint32_t k = s.first_successor[i]; k < s.first_successor[i + 1]; k++) pending_[s.successors[k]]--;
    if (step.kind == StepKind::kRecv) cursors_[prepared.channel_of(i)].recv++;
    if (step.kind != StepKind::kSend) continue;
    cursors_[prepared.channel_of(i)].send++;
    bytes_sent_ += step.count * round_.reducer.bytes(step.a.form);
  }
  if (posted) {
    const Step& step = s.steps[finished];
    WARREN_CHECK(step.kind == StepKind::kSend && pending_[finished] == 0, "what is under way could begin");
    cursors_[prepared.channel_of(finished)].send++;
    outstanding_[prepared.channel_of(finished)].sends++;
    bytes_sent_ += step.count * round_.reducer.bytes(step.a.form);
  }
  for (std::uint32_t i = finished; i < s.steps.size(); i++) {
    if (gpu_ != nullptr && pending_[i] == 0 && gpu_->comes_first(s.steps[i])) may_begin(i);
  }
  for (std::uint32_t c = 0; c < cursors_.size(); c++) advance(c);
  for (std::uint32_t i = finished; i < s.steps.size(); i++) {
    if (pending_[i] == 0 && (is_local(s.steps[i].kind) || s.steps[i].turn != 0)) may_begin(i);
  }
  run_ready();
}

void Executor::post(const Step& step, std::uint32_t index, LinkId link) {
  const Token token = (static_cast<Token>(slot_) << 32) | index;
  header_.message = step.message;
  if (step.is_word && step.kind == StepKind::kSend) {
    transport_.post_send(link, header_, {gpu_->word_to_send(index)}, token);
  } else if (step.is_word) {
    transport_.post_recv(link, header_, gpu_->word_to_receive(index), token);
  } else if (step.kind == StepKind::kSend) {
    const std::size_t bytes = step.count * round_.reducer.bytes(step.a.form);
    bytes_sent_ += bytes;
    const std::byte* const from_gpu = gpu_ == nullptr ? nullptr : gpu_->sent_from(index);
    const std::byte* const at = from_gpu != nullptr ? from_gpu : round_.address(step.a);
    Payload payload{{bytes == 0 ? nullptr : at, bytes}};
    const std::uint32_t by = round_.schedule->published_by(index);
    if (by != PreparedSchedule::kNone && round_.places[by].known()) {
      payload.logged = round_.places[by];
      if (gpu_ != nullptr) payload.made = gpu_->made(by);
    } else {
      // A rank that leaves may change it while others read. That is noticed afterwards, but a program's function might
      // not survive it.
      payload.lent = step.lent && !round_.reducer.custom();
    }
    transport_.post_send(link, header_, payload, token);
  } else {
    const std::size_t bytes = step.count * round_.reducer.bytes(step.dst.form);
    const std::span<std::byte> payload{bytes == 0 ? nullptr : round_.address(step.dst), bytes};
    if (in_place_ != nullptr && round_.schedule->reads()[index] != 0) {
      in_place_->post_recv_in_place(link, header_, payload, token);
    } else {
      transport_.post_recv(link, header_, payload, token);
    }
  }
}

void Executor::advance(std::uint32_t c) {
  const auto& channel = round_.schedule->channels()[c];
  const auto& order = round_.schedule->order();
  const auto& steps = round_.schedule->steps();
  Cursor& cursor = cursors_[c];
  // Receives first: a peer that waits to send is served by them.
  for (; cursor.recv < channel.end_recv && pending_[order[cursor.recv]] == 0; cursor.recv++) {
    outstanding_[c].recvs++;
    post(steps[order[cursor.recv]], order[cursor.recv], cursor.link);
  }
  for (; cursor.send < channel.end_send && pending_[order[cursor.send]] == 0; cursor.send++) {
    outstanding_[c].sends++;
    post(steps[order[cursor.send]], order[cursor.send], cursor.link);
  }
}

void Executor::done_reading(std::uint32_t source) {
  if (source == PreparedSchedule::kNone || !round_.views[source].in_place()) return;
  const std::uint32_t channel = round_.schedule->channel_of(source);
  if (!round_.views[source].stands()) {
    failed_peer_ = members_[static_cast<std::size_t>(round_.schedule->channels()[channel].peer)];
    const std::string rank = "rank " + std::to_string(failed_peer_.value);
    status_ = Status(Code::kPeerLost,
                     round_.views[source].lent
                         ? rank + " has left the generation while its input of " + to_string(round_.id) + " was read"
                         : rank + " has used its log's memory again while a final of " + to_string(round_.id) +
                               " was read there: it goes on without this life, or its log is too small");
    return;
  }
  let_go(source);
}

void Executor::let_go(std::uint32_t source) {
  if (--reads_left_[source] != 0) return;
  const std::uint32_t channel = round_.schedule->channel_of(source);
  if (round_.views[source].held != nullptr) in_place_->release(cursors_[channel].link, round_.views[source]);
  round_.views[source] = {};
}

void Executor::lose_input(const Step& step) {
  if (round_.input == nullptr || step.dst.space != Space::kOutput) return;
  const auto input = reinterpret_cast<std::uintptr_t>(round_.input);
  const auto begin = reinterpret_cast<std::uintptr_t>(round_.address(step.dst));
  const std::uintptr_t end = begin + step.count * round_.value_bytes;
  if (end <= input) return;
  lost_input_.add((std::max(begin, input) - input) / round_.value_bytes,
                  (end - input + round_.value_bytes - 1) / round_.value_bytes);
}

// The plan leaves out finals. Nobody can compute a value whose input is lost and that is not final.
bool Executor::needs_lost_input() const {
  if (lost_input_.empty()) return false;
  const schedule::Schedule& s = round_.schedule->schedule();
  bool needs = false;
  for (const Step& step : s.steps) {
    each_input(s, Space::kInput, step,
               [&](std::uint64_t at, std::uint64_t count) { needs = needs || lost_input_.meets(at, at + count); });
  }
  return needs;
}

// Steps that read what is still to come have one thing more to wait for.
void Executor::await_input() {
  awaiting_.clear();
  if (round_.arrived >= round_.pieces.size()) return;
  struct Begin {
    std::uint64_t at;
    std::size_t index;
  };
  std::vector<Begin> begins;
  for (std::size_t i = 0; i < round_.pieces.size(); i++) begins.push_back({round_.pieces[i].at, i});
  std::ranges::sort(begins, {}, &Begin::at);
  const schedule::Schedule& s = round_.schedule->schedule();
  const Space space = input_space(s);
  for (std::uint32_t i = 0; i < s.steps.size(); i++) {
    std::size_t needs = 0;
    each_input(s, space, s.steps[i], [&](std::uint64_t at, std::uint64_t count) {
      auto piece = std::ranges::upper_bound(begins, at, {}, &Begin::at);
      WARREN_CHECK(piece != begins.begin(), "the pieces are the whole input");
      for (--piece; piece != begins.end() && piece->at < at + count; ++piece) needs = std::max(needs, piece->index + 1);
    });
    if (needs <= round_.arrived) continue;
    pending_[i]++;
    awaiting_.push_back({needs, i});
  }
  std::ranges::sort(awaiting_, [](const Awaiting& a, const Awaiting& b) {
    return std::pair(a.pieces, a.step) > std::pair(b.pieces, b.step);
  });
}

void Executor::arrive(std::size_t pieces) {
  if (!status_.ok()) return;
  while (!awaiting_.empty() && awaiting_.back().pieces <= pieces) {
    const std::uint32_t step = awaiting_.back().step;
    awaiting_.pop_back();
    if (--pending_[step] != 0) continue;
    may_begin(step);
    run_ready();
    if (!status_.ok()) return;
  }
}

// A final is made where it will be published, if the log has room. It comes to the output, which may be the input, when
// its operands are known to have been whole. A rank that lends one may have left the generation, and then this rank's
// own input must still be whole.
void Executor::combine(std::uint32_t index) {
  const PreparedSchedule& prepared = *round_.schedule;
  const Step& step = prepared.step(index);
  const auto places = prepared.operands(step);
  const auto sources = prepared.operand_sources(step);
  bool lent = false;
  operands_.clear();
  for (std::size_t k = 0; k < places.size(); k++) {
    operands_.push_back(round_.operand(places[k], sources[k]));
    lent = lent || (sources[k] != PreparedSchedule::kNone && round_.views[sources[k]].stamp != nullptr);
  }
  made_of_operands(index, nullptr, lent);
}

bool Executor::on_done(const GpuWork::Done& done) {
  if (gpu_ == nullptr) return false;
  const auto outcome = gpu_->on_done(done, status_.ok());
  if (!outcome) return false;
  for (const std::uint32_t send : outcome->sends) {
    pending_[send] = 0;
    advance(round_.schedule->channel_of(send));
  }
  if (outcome->makes == PreparedSchedule::kNone) return true;
  make_of(done, outcome->makes);
  if (!status_.ok()) return true;
  finish(outcome->makes);
  run_ready();
  return true;
}

// Takes a value that was combined or copied on a GPU, or makes it of operands that have come from there.
void Executor::make_of(const GpuWork::Done& done, std::uint32_t index) {
  const PreparedSchedule& prepared = *round_.schedule;
  const Step& step = prepared.step(index);
  if (copies_input(step)) {
    GpuWork::Done copied = done;
    if (copied.made == nullptr) copied.made = done.operands.front();
    return make_final(index, {}, &copied, false);
  }
  operands_.clear();
  const auto places = prepared.operands(step);
  const auto sources = prepared.operand_sources(step);
  for (std::size_t k = 0; k < places.size() && done.made == nullptr; k++) {
    operands_.push_back(done.operands[k] != nullptr ? done.operands[k] : round_.operand(places[k], sources[k]));
  }
  made_of_operands(index, &done, true);
}

// Out of operands_, unless it is `done`.
void Executor::made_of_operands(std::uint32_t index, const GpuWork::Done* done, bool lent) {
  const PreparedSchedule& prepared = *round_.schedule;
  const Step& step = prepared.step(index);
  const auto sources = prepared.operand_sources(step);
  const std::byte* const ready = done == nullptr ? nullptr : done->made;
  if (step.dst.space == Space::kOutput) return make_final(index, sources, done, lent);
  // Nobody reads it before this step has finished.
  if (ready != nullptr) {
    std::memcpy(round_.address(step.dst), ready, step.count * round_.partial_bytes);
  } else if (const Status combined = combine_to(round_.address(step.dst), step); !combined.ok()) {
    return fail_by_program(combined);
  }
  for (const std::uint32_t source : sources) {
    done_reading(source);
    if (!status_.ok()) return;
  }
}

// operands_, of the step.
Status Executor::combine_to(std::byte* to, const Step& step) {
  const Form first = round_.schedule->operands(step).front().form;
  return round_.reducer.combine(to, step.dst.form, operands_, first, step.bracketing, step.count);
}

// The kernels never fail.
void Executor::fail_by_program(const Status& why) {
  status_ = why.because_of_this("cannot combine the inputs of " + to_string(round_.fingerprint) + ", " +
                                to_string(round_.id));
  program_failed_ = true;
}

void Executor::make_final(std::uint32_t index, std::span<const std::uint32_t> sources, const GpuWork::Done* done,
                          bool lent) {
  const PreparedSchedule& prepared = *round_.schedule;
  const Step& step = prepared.step(index);
  const std::byte* const ready = done == nullptr ? nullptr : done->made;
  const std::size_t bytes = step.count * round_.value_bytes;
  std::byte* const output = round_.address(step.dst);
  const std::uint32_t by = prepared.published_by(index);
  const std::span<std::byte> room =
      by != PreparedSchedule::kNone && ready == nullptr ? round_.publisher->room(step.count) : std::span<std::byte>();
  // Not in the output, which may be the input: that stays until what replaces it is published.
  const bool aside = lent || by != PreparedSchedule::kNone;
  const std::byte* made = ready;
  if (ready == nullptr) {
    std::byte* const to = !room.empty() ? room.data() : aside ? unchecked_.reserve(bytes) : output;
    if (const Status combined = combine_to(to, step); !combined.ok()) return fail_by_program(combined);
    made = to;
  }
  for (const std::uint32_t source : sources) {
    done_reading(source);
    if (!status_.ok()) return;
  }
  if (!room.empty()) {
    round_.publisher->publish_room(prepared.step(by).result_at, step.count, round_.places[by]);
    published_[by] = true;
  } else if (by != PreparedSchedule::kNone) {
    const Status status = round_.publisher->publish(prepared.step(by).result_at, step.count, made, round_.places[by]);
    if (!status.ok()) {
      status_ = status.because_of_this("cannot log " + to_string(round_.id));
      return;
    }
    published_[by] = true;
    if (ready != nullptr) gpu_->made(by, *done);
  }
  if (made == output) return;
  if (done != nullptr && gpu_->bring_own(index, *done)) {
    remaining_++;
    return;
  }
  if (streams_) {
    stream_copy(output, made, bytes);
  } else {
    std::memcpy(output, made, bytes);
  }
}

void Executor::on_brought(std::uint64_t number, bool stood) {
  if (gpu_ == nullptr) return;
  const GpuSteps::Brought brought = gpu_->on_brought(number, stood, status_.ok());
  switch (brought.what) {
    case GpuSteps::Brought::What::kNothing: return;
    case GpuSteps::Brought::What::kOwn: return one_less();
    case GpuSteps::Brought::What::kCame: let_go(round_.schedule->sources(brought.step).a); break;
    case GpuSteps::Brought::What::kCopy:
      compute(brought.step);
      if (!status_.ok()) return;
      break;
  }
  finish(brought.step);
  run_ready();
}

void Executor::compute(std::uint32_t index) {
  const Step& step = round_.schedule->step(index);
  if (step.kind == StepKind::kCombine) return combine(index);
  if (step.kind == StepKind::kPublish && published_[index]) return;
  const PreparedSchedule::Sources& from = round_.schedule->sources(index);
  if (step.kind == StepKind::kPublish) {
    WARREN_CHECK(round_.publisher != nullptr, "a schedule that publishes has a log");
    const Status status =
        round_.publisher->publish(step.result_at, step.count, round_.operand(step.a, from.a), round_.places[index]);
    if (!status.ok()) status_ = status.because_of_this("cannot log " + to_string(round_.id));
  } else if (step.count == 0) {
    // Only the order matters.
  } else if (step.kind == StepKind::kReduce) {
    const Status reduced =
        round_.reducer.reduce(round_.address(step.dst), step.dst.form, round_.operand(step.a, from.a), step.a.form,
                              round_.operand(step.b, from.b), step.b.form, step.count, step.finish);
    if (!reduced.ok()) return fail_by_program(reduced);
  } else if (streams_ && !step.finish && step.dst.space == Space::kOutput && step.a.form == Form::kValue) {
    stream_copy(round_.address(step.dst), round_.operand(step.a, from.a), step.count * round_.value_bytes);
  } else {
    round_.reducer.copy(round_.address(step.dst), step.dst.form, round_.operand(step.a, from.a), step.a.form,
                        step.count, step.finish);
  }
  if (status_.ok()) done_reading(from.a);
  if (status_.ok()) done_reading(from.b);
  if (!status_.ok()) lose_input(step);
}

void Executor::one_less() {
  if (--remaining_ == 0 && gpu_ != nullptr) gpu_->end();
}

void Executor::finish(std::uint32_t step) {
  one_less();
  pending_[step] = kFinished;
  const auto& s = round_.schedule->schedule();
  if (round_.landing != nullptr && writes_final(s.steps[step]) && !bypassed(step)) {
    round_.landing->landed(s.steps[step].dst.at, s.steps[step].count);
  }
  for (std::uint32_t i = s.first_successor[step]; i < s.first_successor[step + 1]; i++) {
    const std::uint32_t next = s.successors[i];
    if (--pending_[next] == 0) may_begin(next);
  }
}

// All that it waits for is done.
void Executor::may_begin(std::uint32_t step) {
  const Step& s = round_.schedule->step(step);
  if (is_local(s.kind)) {
    ready_.push_back(step);
  } else if (gpu_ != nullptr && goes_by_gpu(s, step)) {
    // on_done() posts it, or its turn moves it.
  } else {
    advance(round_.schedule->channel_of(step));
  }
}

// Whether a send or a receive is for the GPU to carry out, or to begin; then that is under way.
bool Executor::goes_by_gpu(const Step& step, std::uint32_t index) {
  if (step.turn != 0) {
    bytes_sent_ += gpu_->may_begin(step);
  } else if (gpu_->comes_first(step)) {
    pending_[index] = 1;
    gpu_->bring_to_cpu(index);
  } else if (gpu_->goes_by_gpu(index)) {
    pending_[index] = 1;
    gpu_->bring_to_gpu(index);
  } else {
    return false;
  }
  return true;
}

bool Executor::on_exchanged(const GpuExchange::Done& done) {
  const auto turn = gpu_ == nullptr ? std::nullopt : gpu_->take_turn(done.id);
  if (!turn) return false;
  if (!status_.ok()) return true;
  if (!done.status.ok()) {
    status_ = done.status.because_of_this(to_string(round_.id));
    return true;
  }
  gpu_->on_exchanged(*turn, done);
  for (const std::uint32_t step : round_.schedule->turns()[*turn]) finish(step);
  run_ready();
  return true;
}

// Whether a local step is carried out on the GPU, or its final goes past the output; or neither can be, as status_
// says.
bool Executor::runs_on_gpu(std::uint32_t step) {
  if (gpu_->reads(step)) {
    gpu_->combine(step);
    return true;
  }
  const Result<bool> brought = gpu_->bring(step);
  if (!brought.ok()) status_ = brought.status();
  return !brought.ok() || brought.value();
}

void Executor::run_ready() {
  // Last in, first out: what has just arrived is reduced and sent on while it is in the cache.
  while (!ready_.empty()) {
    const std::uint32_t step = ready_.back();
    ready_.pop_back();
    if (gpu_ != nullptr && runs_on_gpu(step)) {
      if (!status_.ok()) return;
      continue;
    }
    compute(step);
    if (!status_.ok()) return;  // what is not published is seen by nobody
    if (round_.schedule->step(step).kind == StepKind::kPublish) {
      const std::uint64_t number = round_.publisher->newest();
      if (number != 0 && !round_.publisher->may_be_seen(number)) {
        unsettled_.push_back({step, number});
        continue;
      }
    }
    finish(step);
  }
}

bool Executor::settle() {
  const auto end =
      std::ranges::find_if(unsettled_, [this](const Unsettled& u) { return !round_.publisher->may_be_seen(u.number); });
  if (end == unsettled_.begin()) return false;
  const std::vector<Unsettled> now(unsettled_.begin(), end);
  unsettled_.erase(unsettled_.begin(), end);
  for (const Unsettled& u : now) {
    if (!status_.ok()) break;
    finish(u.step);
    run_ready();
  }
  return true;
}

void Executor::on_completion(Token token, const Status& status, View view) {
  if (!status_.ok()) return;
  const auto step = static_cast<std::uint32_t>(token);
  WARREN_CHECK((token >> 32) == slot_ && step < pending_.size(), "completions are for steps that were posted");
  const auto& s = round_.schedule->schedule();
  const Step& moved = s.steps[step];
  const Rank peer = members_[static_cast<std::size_t>(moved.peer)];
  Outstanding& outstanding = outstanding_[round_.schedule->channel_of(step)];
  (moved.kind == StepKind::kSend ? outstanding.sends : outstanding.recvs)--;
  if (!status.ok()) {
    failed_peer_ = peer;
    status_ = status.because_of_this(to_string(round_.id) + " with rank " + std::to_string(failed_peer_.value));
    return;
  }
  if (board_ != nullptr && moved.kind == StepKind::kSend) {
    board_->sent(peer, moved.count * round_.reducer.bytes(moved.a.form));
  } else if (board_ != nullptr) {
    board_->received(peer, moved.count * round_.reducer.bytes(moved.dst.form));
  }
  const bool may_be_there =
      round_.gpu_work != nullptr && round_.schedule->combined(step) && moved.dst.form == Form::kValue;
  if (view.on_gpu && !may_be_there) {
    failed_peer_ = peer;
    status_ =
        Status(Code::kPeerLost, "rank " + std::to_string(peer.value) + " has lent memory of a GPU where the CPU " +
                                    "must read it, in " + to_string(round_.id));
    return;
  }
  if (moved.is_word && moved.kind == StepKind::kRecv) {
    status_ = gpu_->check_word(step, peer);
    if (!status_.ok()) return;
  }
  if (view.in_place()) round_.views[step] = std::move(view);
  if (gpu_ != nullptr && moved.kind == StepKind::kSend) gpu_->sent(step);
  finish(step);
  run_ready();
}

std::vector<Executor::Final> Executor::finals() const {
  std::vector<Final> finals;
  if (round_.schedule == nullptr) return finals;
  const auto& steps = round_.schedule->steps();
  for (std::uint32_t i = 0; i < steps.size(); i++) {
    // A final that has bypassed the output has left it, which may be an input, as it was.
    if (pending_[i] == kFinished && writes_final(steps[i]) && !bypassed(i))
      finals.push_back({steps[i].dst.at, steps[i].count});
  }
  return finals;
}

void Executor::abandon() {
  remaining_ = 0;
  status_ = Status();
  program_failed_ = false;
  failed_peer_ = kNoRank;
  ready_.clear();
  unsettled_.clear();
  awaiting_.clear();
  if (gpu_ != nullptr) gpu_->abandon();
  gpu_ = nullptr;
  round_.views.clear();
  round_.schedule = nullptr;
  round_.let_go();
  std::fill(links_.begin(), links_.end(), 0);
}

void Executor::reseat(std::vector<Rank> members) {
  WARREN_CHECK(round_.schedule == nullptr, "members change between two generations");
  members_ = std::move(members);
  links_.assign(members_.size(), 0);
}

// Messages of a channel complete in their order.
std::uint32_t Executor::earliest_outstanding(std::uint32_t channel) const {
  const auto& order = round_.schedule->order();
  const Outstanding& o = outstanding_[channel];
  std::uint32_t earliest = kFinished;
  if (o.recvs != 0) earliest = order[cursors_[channel].recv - o.recvs];
  if (o.sends != 0) earliest = std::min(earliest, order[cursors_[channel].send - o.sends]);
  return earliest;
}

std::vector<RoundBoard::Waited> Executor::waiting_for(std::size_t limit) const {
  std::vector<RoundBoard::Waited> ranks;
  if (failed_peer_ != kNoRank) ranks.push_back({failed_peer_});  // until the generation ends
  // A rank that waits for its own input, or GPU, holds others up.
  if (done() || awaits_input() || awaits_gpu_work()) return ranks;
  std::vector<std::uint32_t> waiting;  // channels
  for (std::uint32_t c = 0; c < outstanding_.size(); c++) {
    if (outstanding_[c].sends != 0 || outstanding_[c].recvs != 0) waiting.push_back(c);
  }
  if (waiting.size() > limit) {
    // Of a rank that is behind others, the message of an earlier step has not come, or has not left.
    std::ranges::nth_element(waiting, waiting.begin() + static_cast<std::ptrdiff_t>(limit), {},
                             [&](std::uint32_t c) { return earliest_outstanding(c); });
    waiting.resize(limit);
    std::ranges::sort(waiting);
  }
  for (const std::uint32_t c : waiting) {
    const Outstanding& o = outstanding_[c];
    ranks.push_back(
        {members_[static_cast<std::size_t>(round_.schedule->channels()[c].peer)], o.recvs != 0, o.sends != 0});
  }
  if (gpu_ != nullptr) gpu_->add_waited(ranks, limit);
  return ranks;
}

}  // namespace warren::worker
