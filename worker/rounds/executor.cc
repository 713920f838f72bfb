#include "worker/rounds/executor.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "recovery/base/check.h"
#include "storage/stream_copy.h"
#include "worker/rounds/steps.h"

namespace warren::worker {

using schedule::Place;
using schedule::Space;
using schedule::Step;
using schedule::StepKind;

namespace {

// Finals of larger results go to the output past the cache, which they would not fit in (L2 of 1 to 2 MiB).
constexpr std::size_t kStreamedBytes = std::size_t{4} << 20;

}  // namespace

Executor::Executor(Transport& transport, GroupId links, std::vector<Rank> members, std::uint32_t slot,
                   RoundBoard* board)
    : transport_(transport), link_group_(links), members_(std::move(members)), slot_(slot), board_(board) {
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
  round_ = round;
  const PreparedSchedule& prepared = *round.schedule;
  const auto& s = prepared.schedule();
  value_bytes_ = round.reducer.bytes(Form::kValue);
  partial_bytes_ = round.reducer.bytes(Form::kPartial);
  WARREN_CHECK(!prepared.exchanges() || (round.exchange != nullptr && round.gpu_scratch != nullptr &&
                                         round.input_on_gpu && round.gpu_work != nullptr && round.landing != nullptr),
               "GPUs exchange what is there");
  scratch_base_ = s.scratch_elements == 0 ? nullptr
                  : prepared.exchanges()  ? round.gpu_scratch.get()
                                          : scratch_.reserve(s.scratch_elements * partial_bytes_);
  header_ = FrameHeader{};
  header_.kind = FrameKind::kCollective;
  header_.generation = round.generation;
  header_.round = round.id;
  header_.fingerprint = round.fingerprint;
  status_ = Status();
  program_failed_ = false;
  bytes_sent_ = 0;
  streams_ = round.fingerprint.count / element_values(round.fingerprint.type) >= kStreamedBytes / value_bytes_;
  remaining_ = s.steps.size();
  pending_.assign(s.pending.begin(), s.pending.end());
  cursors_.resize(prepared.channels().size());
  outstanding_.assign(prepared.channels().size(), {});
  ready_.clear();
  views_.assign(s.steps.size(), {});
  reads_left_ = prepared.reads();
  places_.assign(s.steps.size(), {});
  made_.assign(s.steps.size(), {});
  published_.assign(s.steps.size(), false);
  unsettled_.clear();
  gpu_work_.clear();
  uploads_.assign(round.input_on_gpu ? s.steps.size() : 0, 0);
  bringing_.clear();
  own_.clear();
  sent_from_.clear();
  brought_.assign(s.steps.size(), false);
  next_turn_ = 0;
  turns_begun_.clear();
  turn_waits_.clear();
  for (const auto& steps : prepared.turns()) turn_waits_.push_back(steps.size());
  made_stay_.assign(prepared.exchanges() ? s.steps.size() : 0, nullptr);
  checksums_.assign(made_stay_.size(), 0);
  await_input();
  if (needs_lost_input()) {
    status_ = Status(Code::kExhausted,
                     "a part of this rank's input of " + to_string(round.id) +
                         " is lost: a final took its place whose owner, lost since, used its log's memory again "
                         "while it was read; --log_memory_bytes is too small");
  }
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
    if (pending_[i] == 0 && comes_first(s.steps[i])) bring_to_cpu(i);
  }
  for (std::uint32_t c = 0; c < cursors_.size(); c++) advance(c);
  for (std::uint32_t i = finished; i < s.steps.size(); i++) {
    if (pending_[i] == 0 && (is_local(s.steps[i].kind) || s.steps[i].turn != 0)) may_begin(i);
  }
  run_ready();
}

std::byte* Executor::address(const Place& place) const {
  switch (place.space) {
    case Space::kInput: return const_cast<std::byte*>(round_.input) + place.at * value_bytes_;
    case Space::kOutput: return round_.output + place.at * value_bytes_;
    case Space::kScratch:
      return scratch_base_ + place.at * partial_bytes_ + place.skip * round_.reducer.bytes(place.form);
  }
  WARREN_UNREACHABLE("a place is input, output or scratch");
}

void Executor::post(const Step& step, std::uint32_t index, LinkId link) {
  const Token token = (static_cast<Token>(slot_) << 32) | index;
  header_.message = step.message;
  if (step.is_word && step.kind == StepKind::kSend) {
    checksums_[index] = checksums_[index - 1];
    transport_.post_send(link, header_, word_at(index), token);
  } else if (step.is_word) {
    transport_.post_recv(link, header_, word_at(index), token);
  } else if (step.kind == StepKind::kSend) {
    const std::size_t bytes = step.count * round_.reducer.bytes(step.a.form);
    bytes_sent_ += bytes;
    const auto brought = sent_from_.find(index);
    const std::byte* const at = brought != sent_from_.end() ? brought->second.at : address(step.a);
    const std::span<const std::byte> payload{bytes == 0 ? nullptr : at, bytes};
    const std::uint32_t by = round_.schedule->published_by(index);
    if (by != PreparedSchedule::kNone && places_[by].known()) {
      transport_.post_send_made(link, header_, payload, places_[by], made_[by], token);
    } else if (step.lent && !round_.reducer.custom()) {
      // Whoever leaves may change it while others read: that is noticed afterwards, and a program's function might not
      // survive it.
      transport_.post_send_lent(link, header_, payload, token);
    } else {
      transport_.post_send(link, header_, payload, token);
    }
  } else {
    const std::size_t bytes = step.count * round_.reducer.bytes(step.dst.form);
    const std::span<std::byte> payload{bytes == 0 ? nullptr : address(step.dst), bytes};
    if (round_.schedule->reads()[index] != 0) {
      transport_.post_recv_in_place(link, header_, payload, token);
    } else {
      transport_.post_recv(link, header_, payload, token);
    }
  }
}

// What the word says: the checksum of what the step before it has moved.
std::span<std::byte> Executor::word_at(std::uint32_t index) {
  return std::as_writable_bytes(std::span(checksums_).subspan(index, 1));
}

// The word that has come, with what has come before it. The word has come well, so that its link and its sender are not
// to blame.
bool Executor::word_agrees(std::uint32_t index, Rank peer) {
  if (checksums_[index] == checksums_[index - 1]) return true;
  status_ = Status(Code::kCorrupt, "what came from the GPU of rank " + std::to_string(peer.value) + " in " +
                                       to_string(round_.id) + " has another checksum than what was sent");
  round_.exchange->distrust(std::string(status_.message()));
  return false;
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

const std::byte* Executor::operand(const Place& place, std::uint32_t source) const {
  if (source == PreparedSchedule::kNone || !views_[source].in_place()) return address(place);
  return views_[source].bytes() + place.skip * round_.reducer.bytes(place.form);
}

void Executor::done_reading(std::uint32_t source) {
  if (source == PreparedSchedule::kNone || !views_[source].in_place()) return;
  const std::uint32_t channel = round_.schedule->channel_of(source);
  if (!views_[source].stands()) {
    failed_peer_ = members_[static_cast<std::size_t>(round_.schedule->channels()[channel].peer)];
    const std::string rank = "rank " + std::to_string(failed_peer_.value);
    status_ = Status(Code::kPeerLost,
                     views_[source].lent
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
  if (views_[source].held != nullptr) transport_.release(cursors_[channel].link, views_[source]);
  views_[source] = {};
}

void Executor::lose_input(const Step& step) {
  if (round_.input == nullptr || step.dst.space != Space::kOutput) return;
  const auto input = reinterpret_cast<std::uintptr_t>(round_.input);
  const auto begin = reinterpret_cast<std::uintptr_t>(address(step.dst));
  const std::uintptr_t end = begin + step.count * value_bytes_;
  if (end <= input) return;
  lost_input_.add((std::max(begin, input) - input) / value_bytes_, (end - input + value_bytes_ - 1) / value_bytes_);
}

// The plan leaves out what is final. What is lost and not final can be computed by nobody.
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

// A final is made where it will be published, if the log has room, and comes to the output, which may be the input,
// when it is known that its operands were whole: who lends them may have left the generation, and this rank's own input
// must then be whole too.
void Executor::combine(std::uint32_t index) {
  const PreparedSchedule& prepared = *round_.schedule;
  const Step& step = prepared.step(index);
  const auto places = prepared.operands(step);
  const auto sources = prepared.operand_sources(step);
  bool lent = false;
  operands_.clear();
  for (std::size_t k = 0; k < places.size(); k++) {
    operands_.push_back(operand(places[k], sources[k]));
    lent = lent || (sources[k] != PreparedSchedule::kNone && views_[sources[k]].stamp != nullptr);
  }
  made_of_operands(index, nullptr, lent);
}

bool Executor::on_gpu(const Place& place, std::uint32_t source) const {
  return source != PreparedSchedule::kNone ? views_[source].on_gpu
                                           : place.space == Space::kInput && round_.input_on_gpu;
}

bool Executor::reads_gpu(std::uint32_t index) const {
  const Step& step = round_.schedule->step(index);
  if (copies_input(step)) return round_.input_on_gpu;
  const auto operands = round_.schedule->operands(step);
  const auto sources = round_.schedule->operand_sources(step);
  for (std::size_t k = 0; k < operands.size(); k++) {
    if (on_gpu(operands[k], sources[k])) return true;
  }
  return false;
}

// Something holds all that it reads until it is done, also where this round is no more by then.
void Executor::combine_on_gpu(std::uint32_t index) {
  const PreparedSchedule& prepared = *round_.schedule;
  const Step& step = prepared.step(index);
  GpuWork::Work work = work_of(step);
  if (copies_input(step)) {
    WARREN_CHECK(prepared.published_by(index) != PreparedSchedule::kNone, "what others get is published");
    work.operands.push_back({address(step.a), true, round_.input_keeper});
    work.copies = true;
    work.first_bytes = work.made_bytes = work.bytes;
    gpu_work_.push_back({round_.gpu_work->begin(std::move(work)), index});
    return;
  }
  std::size_t there = 0;
  const auto places = prepared.operands(step);
  const auto sources = prepared.operand_sources(step);
  for (std::size_t k = 0; k < places.size(); k++) {
    const Place& place = places[k];
    const std::uint32_t source = sources[k];
    if (!on_gpu(place, source)) {
      work.operands.emplace_back();
    } else {
      there++;
      work.operands.push_back({operand(place, source), true,
                               source == PreparedSchedule::kNone ? round_.input_keeper : views_[source].lent});
    }
  }
  const Place& first = places.front();
  work.first_form = first.form;
  work.first_bytes = step.count * round_.reducer.bytes(first.form);
  if (!work.operands.front().on_gpu && there + 1 == step.operands) {
    // Where it lies now, something else may lie when this round is no more. Without memory for it, it stays here, and
    // the others come.
    const std::shared_ptr<std::byte[]> copy(new (std::nothrow) std::byte[work.first_bytes]);
    if (copy != nullptr) {
      std::memcpy(copy.get(), operand(first, sources.front()), work.first_bytes);
      work.operands.front() = {copy.get(), false, copy};
    }
  }
  work.made_form = step.dst.form;
  work.made_bytes = step.count * round_.reducer.bytes(step.dst.form);
  work.bracketing = step.bracketing;
  work.stays = prepared.exchanges();
  gpu_work_.push_back({round_.gpu_work->begin(std::move(work)), index});
}

GpuWork::Work Executor::work_of(const Step& step) const {
  GpuWork::Work work;
  work.type = round_.fingerprint.type;
  work.op = round_.fingerprint.op;
  work.count = step.count;
  work.bytes = step.count * value_bytes_;
  work.contributors = static_cast<std::uint32_t>(round_.schedule->schedule().size);
  return work;
}

// Whether a send reads the input on the GPU, from where its link takes nothing.
bool Executor::comes_first(const Step& step) const {
  return step.kind == StepKind::kSend && step.turn == 0 && !step.lent && step.count != 0 && round_.input_on_gpu &&
         step.a.space == Space::kInput;
}

// It waits for that as for a step before it.
void Executor::bring_to_cpu(std::uint32_t send) {
  const Step& step = round_.schedule->step(send);
  GpuWork::Work work = work_of(step);
  work.operands.push_back({address(step.a), true, round_.input_keeper});
  pending_[send] = 1;
  gpu_work_.push_back({round_.gpu_work->begin(std::move(work)), send});
}

// Whether a send tells a rank of this host, which may have its output on a GPU, too, of a final that is to lie on this
// one's before.
bool Executor::goes_by_gpu(std::uint32_t send) const {
  if (!round_.schedule->hands_on(send) || !round_.input_on_gpu || round_.output_keeper == nullptr) return false;
  const std::uint32_t by = round_.schedule->published_by(send);
  return places_[by].known() && uploads_[by] != kUploaded;
}

// Once for all such sends, each of which waits for that as for a step before it, and so do later ones to the same rank,
// of which few may begin (Builder::send_window()).
void Executor::bring_to_gpu(std::uint32_t send) {
  const Step& step = round_.schedule->step(send);
  std::uint64_t& upload = uploads_[round_.schedule->published_by(send)];
  if (upload == 0) {
    GpuWork::Work work = work_of(step);
    work.operands.push_back({address(step.a), false, round_.output_keeper});
    work.copies = true;
    work.first_bytes = work.made_bytes = work.bytes;
    upload = round_.gpu_work->begin(std::move(work));
  }
  pending_[send] = 1;
  gpu_work_.push_back({upload, send});
}

void Executor::uploaded(std::uint32_t publish, const GpuWork::Done& done) {
  const PreparedSchedule& prepared = *round_.schedule;
  made_[publish] = done.on_gpu;
  uploads_[publish] = kUploaded;
  std::vector<std::uint32_t> sends;
  for (const Begun& begun : gpu_work_) {
    if (begun.id == done.id) sends.push_back(begun.step);
  }
  std::erase_if(gpu_work_, [&](const Begun& begun) { return begun.id == done.id; });
  for (const std::uint32_t send : sends) {
    pending_[send] = 0;
    advance(prepared.channel_of(send));
  }
}

bool Executor::on_done(const GpuWork::Done& done) {
  const auto begun = std::ranges::find(gpu_work_, done.id, &Begun::id);
  if (begun == gpu_work_.end()) return false;
  const std::uint32_t index = begun->step;
  const PreparedSchedule& prepared = *round_.schedule;
  const Step& step = prepared.step(index);
  if (status_.ok() && prepared.hands_on(index)) {
    uploaded(prepared.published_by(index), done);
    return true;
  }
  gpu_work_.erase(begun);
  if (!status_.ok()) return true;
  if (step.kind == StepKind::kSend) {
    sent_from_[index] = {done.operands.front(), done.memory};
    pending_[index] = 0;
    advance(prepared.channel_of(index));
    return true;
  }
  if (copies_input(step)) {
    GpuWork::Done copied = done;
    if (copied.made == nullptr) copied.made = done.operands.front();
    make_final(index, {}, &copied, false);
    if (!status_.ok()) return true;
    finish(index);
    run_ready();
    return true;
  }
  operands_.clear();
  const auto places = prepared.operands(step);
  const auto sources = prepared.operand_sources(step);
  for (std::size_t k = 0; k < places.size() && done.made == nullptr; k++) {
    operands_.push_back(done.operands[k] != nullptr ? done.operands[k] : operand(places[k], sources[k]));
  }
  made_of_operands(index, &done, true);
  if (!status_.ok()) return true;
  finish(index);
  run_ready();
  return true;
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
    std::memcpy(address(step.dst), ready, step.count * partial_bytes_);
  } else if (const Status combined = combine_to(address(step.dst), step); !combined.ok()) {
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
  const std::size_t bytes = step.count * value_bytes_;
  std::byte* const output = address(step.dst);
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
    round_.publisher->publish_room(prepared.step(by).result_at, step.count, places_[by]);
    published_[by] = true;
  } else if (by != PreparedSchedule::kNone) {
    const Status status = round_.publisher->publish(prepared.step(by).result_at, step.count, made, places_[by]);
    if (!status.ok()) {
      status_ = status.because_of_this("cannot log " + to_string(round_.id));
      return;
    }
    published_[by] = true;
    if (ready != nullptr) made_[by] = done->on_gpu;
    if (ready != nullptr && !made_stay_.empty()) made_stay_[by] = done->stays;
  }
  if (made == output || (done != nullptr && bring_own(index, *done))) return;
  if (streams_) {
    stream_copy(output, made, bytes);
  } else {
    std::memcpy(output, made, bytes);
  }
}

// What was made on this rank's GPU is there already. It stays on the CPU until it has come to the program's buffer, and
// for those who cannot be told its place in the log. Nobody waits for that but the end of the round.
bool Executor::bring_own(std::uint32_t index, const GpuWork::Done& done) {
  const PreparedSchedule& prepared = *round_.schedule;
  const std::uint32_t by = prepared.published_by(index);
  if (round_.landing == nullptr || done.here == nullptr || !prepared.bypasses(index) || !places_[by].known()) {
    return false;
  }
  const Step& step = prepared.step(index);
  if (!round_.landing->bring(step.dst.at, step.count, done.here, ++newest_bringing_)) return false;
  own_.push_back({newest_bringing_, index, {done.made, done.memory}});
  for (const std::uint32_t send : prepared.tells(by)) sent_from_[send] = {done.made, done.memory};
  brought_[index] = true;
  remaining_++;
  return true;
}

// The CPU copies nothing of what goes from one GPU to the other.
bool Executor::bring(std::uint32_t index) {
  if (round_.landing == nullptr || !round_.schedule->delivers(index)) return false;
  const View& view = views_[round_.schedule->sources(index).a];
  if (view.beside == nullptr) return false;
  const Step& step = round_.schedule->step(index);
  if (!round_.landing->bring(step.dst.at, step.count, view.beside, ++newest_bringing_)) {
    if (!view.on_gpu) return false;
    // The CPU could not read it.
    status_ = Status(Code::kClosed, "nobody takes the result of " + to_string(round_.id) + " from the GPU");
    return true;
  }
  bringing_.push_back({newest_bringing_, index});
  return true;
}

void Executor::on_brought(std::uint64_t number, bool stood) {
  if (const auto own = std::ranges::find(own_, number, &Own::id); own != own_.end()) {
    const Own one = *own;
    own_.erase(own);
    if (!status_.ok()) return;
    if (!stood) {
      const Step& step = round_.schedule->step(one.step);
      std::memcpy(address(step.dst), one.made.at, step.count * value_bytes_);
      brought_[one.step] = false;
      round_.landing->landed(step.dst.at, step.count);
    }
    one_less();
    return;
  }
  const auto begun = std::ranges::find(bringing_, number, &Begun::id);
  if (begun == bringing_.end()) return;
  const std::uint32_t index = begun->step;
  bringing_.erase(begun);
  if (!status_.ok()) return;
  if (stood) {
    brought_[index] = true;
    let_go(round_.schedule->sources(index).a);
    if (board_ != nullptr) RoundBoard::add(board_->finals_from_gpus, 1);
  } else {
    compute(index);
    if (!status_.ok()) return;
  }
  finish(index);
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
        round_.publisher->publish(step.result_at, step.count, operand(step.a, from.a), places_[index]);
    if (!status.ok()) status_ = status.because_of_this("cannot log " + to_string(round_.id));
  } else if (step.count == 0) {
    // Only the order matters.
  } else if (step.kind == StepKind::kReduce) {
    const Status reduced = round_.reducer.reduce(address(step.dst), step.dst.form, operand(step.a, from.a), step.a.form,
                                                 operand(step.b, from.b), step.b.form, step.count, step.finish);
    if (!reduced.ok()) return fail_by_program(reduced);
  } else if (streams_ && !step.finish && step.dst.space == Space::kOutput && step.a.form == Form::kValue) {
    stream_copy(address(step.dst), operand(step.a, from.a), step.count * value_bytes_);
  } else {
    round_.reducer.copy(address(step.dst), step.dst.form, operand(step.a, from.a), step.a.form, step.count,
                        step.finish);
  }
  if (status_.ok()) done_reading(from.a);
  if (status_.ok()) done_reading(from.b);
  if (!status_.ok()) lose_input(step);
}

void Executor::one_less() {
  if (--remaining_ != 0) return;
  round_.input_keeper = round_.output_keeper = round_.gpu_scratch = nullptr;
  WARREN_CHECK(sent_from_.empty(), "memory that sends have read is given back with them");
}

void Executor::finish(std::uint32_t step) {
  one_less();
  pending_[step] = kFinished;
  const auto& s = round_.schedule->schedule();
  if (round_.landing != nullptr && writes_final(s.steps[step]) && !brought_[step]) {
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
  if (s.turn != 0) {
    turn_waits_[s.turn - 1]--;
    begin_turns();
  } else if (is_local(s.kind)) {
    ready_.push_back(step);
  } else if (comes_first(s)) {
    bring_to_cpu(step);
  } else if (goes_by_gpu(step)) {
    bring_to_gpu(step);
  } else {
    advance(round_.schedule->channel_of(step));
  }
}

// One after the other: all ranks begin them in the same order.
void Executor::begin_turns() {
  while (status_.ok() && next_turn_ < turn_waits_.size() && turn_waits_[next_turn_] == 0) begin_turn(next_turn_++);
}

void Executor::begin_turn(std::size_t turn) {
  const PreparedSchedule& prepared = *round_.schedule;
  GpuExchange::Turn messages;
  for (const std::uint32_t i : prepared.turns()[turn]) {
    const Step& step = prepared.step(i);
    GpuExchange::Message& m = messages.emplace_back();
    m.peer = step.peer;
    m.sends = step.kind == StepKind::kSend;
    m.bytes = step.count * round_.reducer.bytes(m.sends ? step.a.form : step.dst.form);
    if (!m.sends) {
      m.at = address(step.dst);
      m.keeper = round_.gpu_scratch;
      m.to_cpu = !delivered_on_gpu(i);
    } else if (step.a.space == Space::kInput) {
      m.at = address(step.a);
      m.keeper = round_.input_keeper;
      bytes_sent_ += m.bytes;
    } else {
      const std::uint32_t by = prepared.published_by(i);
      WARREN_CHECK(by != PreparedSchedule::kNone && made_stay_[by] != nullptr,
                   "a final that is exchanged was made there");
      m.at = const_cast<std::byte*>(made_[by].at);
      m.keeper = made_stay_[by];
      bytes_sent_ += m.bytes;
    }
  }
  if (!messages.empty()) turns_begun_.push_back({round_.exchange->begin(std::move(messages)), turn});
}

// What a receive brings is read on the GPU alone.
bool Executor::delivered_on_gpu(std::uint32_t receive) const {
  const PreparedSchedule& prepared = *round_.schedule;
  return prepared.delivered(receive) || (prepared.combined(receive) && prepared.reads()[receive] != 0);
}

bool Executor::on_exchanged(const GpuExchange::Done& done) {
  static constexpr std::uint64_t kStands = 0;
  const auto begun = std::ranges::find(turns_begun_, done.id, &BegunTurn::id);
  if (begun == turns_begun_.end()) return false;
  const std::size_t turn = begun->turn;
  turns_begun_.erase(begun);
  if (!status_.ok()) return true;
  if (!done.status.ok()) {
    status_ = done.status.because_of_this(to_string(round_.id));
    return true;
  }
  const PreparedSchedule& prepared = *round_.schedule;
  const std::vector<std::uint32_t>& steps = prepared.turns()[turn];
  for (std::size_t m = 0; m < steps.size(); m++) {
    const Step& step = prepared.step(steps[m]);
    checksums_[steps[m]] = done.checksums[m];
    const Rank peer = members_[static_cast<std::size_t>(step.peer)];
    if (step.kind == StepKind::kSend) {
      if (const std::uint32_t by = prepared.published_by(steps[m]); by != PreparedSchedule::kNone)
        made_stay_[by] = nullptr;
      if (board_ != nullptr) board_->sent(peer, step.count * round_.reducer.bytes(step.a.form));
      continue;
    }
    if (board_ != nullptr) board_->received(peer, step.count * round_.reducer.bytes(step.dst.form));
    View& view = views_[steps[m]];
    if (done.on_cpu[m] != nullptr) {
      view.there = done.on_cpu[m];
      view.lent = done.memory;
      continue;
    }
    view.there = address(step.dst);
    view.on_gpu = true;
    view.lent = round_.gpu_scratch;
    if (prepared.delivered(steps[m])) {
      view.beside =
          std::make_shared<const FinalOnGpu>(FinalOnGpu{view.there, 0, &kStands, round_.gpu_scratch, nullptr});
    }
  }
  for (const std::uint32_t step : steps) finish(step);
  run_ready();
  return true;
}

void Executor::run_ready() {
  // Last in, first out: what has just arrived is reduced and sent on while it is in the cache.
  while (!ready_.empty()) {
    const std::uint32_t step = ready_.back();
    ready_.pop_back();
    if (round_.gpu_work != nullptr && reads_gpu(step)) {
      combine_on_gpu(step);
      continue;
    }
    if (bring(step)) {
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
  if (moved.is_word && moved.kind == StepKind::kRecv && !word_agrees(step, peer)) return;
  if (view.in_place()) views_[step] = std::move(view);
  if (moved.kind == StepKind::kSend) sent_from_.erase(step);
  finish(step);
  run_ready();
}

std::vector<Executor::Final> Executor::finals() const {
  std::vector<Final> finals;
  if (round_.schedule == nullptr) return finals;
  const auto& steps = round_.schedule->steps();
  for (std::size_t i = 0; i < steps.size(); i++) {
    // What has bypassed the output has left what was there, which may be an input, as it was.
    if (pending_[i] == kFinished && writes_final(steps[i]) && !brought_[i])
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
  gpu_work_.clear();
  bringing_.clear();
  own_.clear();
  turns_begun_.clear();
  made_stay_.clear();
  sent_from_.clear();
  views_.clear();
  round_.schedule = nullptr;
  round_.input_keeper = round_.output_keeper = round_.gpu_scratch = nullptr;
  std::fill(links_.begin(), links_.end(), 0);
}

void Executor::reseat(std::vector<Rank> members) {
  WARREN_CHECK(round_.schedule == nullptr, "members change between two generations");
  members_ = std::move(members);
  links_.assign(members_.size(), 0);
}

std::vector<RoundBoard::Waited> Executor::waiting_for(std::size_t limit) const {
  std::vector<RoundBoard::Waited> ranks;
  if (failed_peer_ != kNoRank) ranks.push_back({failed_peer_});  // until the generation ends
  // Whoever waits for its own input, or GPU, holds others up.
  if (done() || awaits_input() || awaits_gpu_work()) return ranks;
  for (std::size_t c = 0; c < outstanding_.size() && ranks.size() < limit; c++) {
    const Outstanding& o = outstanding_[c];
    if (o.sends == 0 && o.recvs == 0) continue;
    ranks.push_back(
        {members_[static_cast<std::size_t>(round_.schedule->channels()[c].peer)], o.recvs != 0, o.sends != 0});
  }
  // NCCL does not say for whom.
  if (!turns_begun_.empty()) {
    std::map<std::int32_t, RoundBoard::Waited> peers;
    for (const std::uint32_t i : round_.schedule->turns()[turns_begun_.front().turn]) {
      const Step& step = round_.schedule->step(i);
      RoundBoard::Waited& waited = peers[step.peer];
      waited.rank = members_[static_cast<std::size_t>(step.peer)];
      (step.kind == StepKind::kSend ? waited.sends : waited.receives) = true;
    }
    for (const auto& [peer, waited] : peers) {
      if (ranks.size() < limit) ranks.push_back(waited);
    }
  }
  return ranks;
}

}  // namespace warren::worker
