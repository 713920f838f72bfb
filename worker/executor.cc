#include "worker/executor.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <utility>

#include "recovery/check.h"

namespace warren::worker {

using schedule::Place;
using schedule::Space;
using schedule::Step;
using schedule::StepKind;

namespace {
// Carried out here and now, without a peer.
bool is_local(StepKind kind) {
  return kind != StepKind::kSend && kind != StepKind::kRecv;
}
}  // namespace

PreparedSchedule::PreparedSchedule(schedule::Schedule schedule) : schedule_(std::move(schedule)) {
  const auto& steps = schedule_.steps;
  std::map<std::int32_t, std::pair<std::vector<std::uint32_t>, std::vector<std::uint32_t>>> by_peer;
  for (std::uint32_t i = 0; i < steps.size(); i++) {
    if (steps[i].kind == StepKind::kSend) by_peer[steps[i].peer].first.push_back(i);
    if (steps[i].kind == StepKind::kRecv) by_peer[steps[i].peer].second.push_back(i);
  }
  channel_.assign(steps.size(), 0);
  for (auto& [peer, queues] : by_peer) {
    Channel channel;
    channel.peer = peer;
    const auto append = [&](std::vector<std::uint32_t>& queue) {
      std::sort(queue.begin(), queue.end(),
                [&](std::uint32_t a, std::uint32_t b) { return steps[a].message < steps[b].message; });
      for (std::uint32_t ordinal = 0; ordinal < queue.size(); ordinal++) {
        WARREN_CHECK(steps[queue[ordinal]].message == ordinal, "messages to a peer are numbered without gaps");
        channel_[queue[ordinal]] = static_cast<std::uint32_t>(channels_.size());
        order_.push_back(queue[ordinal]);
      }
    };
    channel.first_send = static_cast<std::uint32_t>(order_.size());
    append(queues.first);
    channel.end_send = channel.first_recv = static_cast<std::uint32_t>(order_.size());
    append(queues.second);
    channel.end_recv = static_cast<std::uint32_t>(order_.size());
    channels_.push_back(channel);
  }
}

Scratch::~Scratch() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

std::byte* Scratch::reserve(std::size_t bytes) {
  if (bytes <= bytes_) return data_;
  if (data_ != nullptr) munmap(data_, bytes_);
  constexpr std::size_t kPage = 4096;
  const std::size_t rounded = std::max<std::size_t>((bytes + kPage - 1) / kPage * kPage, 4 * kPage);
  void* p = mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  WARREN_CHECK(p != MAP_FAILED, "a few chunks of scratch can be mapped");
  data_ = static_cast<std::byte*>(p);
  bytes_ = rounded;
  return data_;
}

Executor::Executor(Transport& transport, GroupId links, std::vector<Rank> members, std::uint32_t slot)
    : transport_(transport), link_group_(links), members_(std::move(members)), slot_(slot) {
  links_.assign(members_.size(), 0);
}

void Executor::start(const Round& round) {
  WARREN_CHECK(done(), "one round at a time");
  round_ = round;
  const PreparedSchedule& prepared = *round.schedule;
  const auto& s = prepared.schedule_;
  value_bytes_ = round.reducer.bytes(Form::kValue);
  partial_bytes_ = round.reducer.bytes(Form::kPartial);
  scratch_base_ = s.scratch_elements == 0 ? nullptr : scratch_.reserve(s.scratch_elements * partial_bytes_);
  header_ = FrameHeader{};
  header_.kind = FrameKind::kCollective;
  header_.epoch = round.epoch;
  header_.round = round.id;
  header_.fingerprint = round.fingerprint;
  status_ = Status();
  bytes_sent_ = 0;
  remaining_ = s.steps.size();
  pending_.assign(s.pending.begin(), s.pending.end());
  cursors_.resize(prepared.channels_.size());
  outstanding_.assign(prepared.channels_.size(), 0);
  ready_.clear();
  for (std::uint32_t c = 0; c < cursors_.size(); c++) {
    const auto& channel = prepared.channels_[c];
    LinkId& link = links_[static_cast<std::size_t>(channel.peer)];
    if (link == 0) link = transport_.link(link_group_, members_[static_cast<std::size_t>(channel.peer)]) + 1;
    cursors_[c] = {link - 1, channel.first_send, channel.first_recv};
  }
  for (std::uint32_t c = 0; c < cursors_.size(); c++) advance(c);
  for (std::uint32_t i = 0; i < s.steps.size(); i++) {
    const StepKind kind = s.steps[i].kind;
    if (s.pending[i] == 0 && is_local(kind)) ready_.push_back(i);
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
  WARREN_CHECK(false, "a place is input, output or scratch");
}

void Executor::post(const Step& step, std::uint32_t index, LinkId link) {
  const Token token = (static_cast<Token>(slot_) << 32) | index;
  header_.message = step.message;
  if (step.kind == StepKind::kSend) {
    const std::size_t bytes = step.count * round_.reducer.bytes(step.a.form);
    bytes_sent_ += bytes;
    transport_.post_send(link, header_, {bytes == 0 ? nullptr : address(step.a), bytes}, token);
  } else {
    const std::size_t bytes = step.count * round_.reducer.bytes(step.dst.form);
    transport_.post_recv(link, header_, {bytes == 0 ? nullptr : address(step.dst), bytes}, token);
  }
}

void Executor::advance(std::uint32_t c) {
  const auto& channel = round_.schedule->channels_[c];
  const auto& order = round_.schedule->order_;
  const auto& steps = round_.schedule->schedule_.steps;
  Cursor& cursor = cursors_[c];
  // Receives first: a peer that waits to send is served by them.
  for (; cursor.recv < channel.end_recv && pending_[order[cursor.recv]] == 0; cursor.recv++) {
    outstanding_[c]++;
    post(steps[order[cursor.recv]], order[cursor.recv], cursor.link);
  }
  for (; cursor.send < channel.end_send && pending_[order[cursor.send]] == 0; cursor.send++) {
    outstanding_[c]++;
    post(steps[order[cursor.send]], order[cursor.send], cursor.link);
  }
}

void Executor::compute(const Step& step) {
  if (step.kind == StepKind::kPublish) {
    WARREN_CHECK(round_.publisher != nullptr, "a schedule that publishes has a log");
    const Status status = round_.publisher->publish(step.result_at, step.count, address(step.a));
    if (!status.ok()) status_ = status.because_of_this("cannot log " + to_string(round_.id));
    return;
  }
  if (step.count == 0) return;
  if (step.kind == StepKind::kReduce) {
    round_.reducer.reduce(address(step.dst), step.dst.form, address(step.a), step.a.form, address(step.b), step.b.form,
                          step.count, step.finish);
  } else {
    round_.reducer.copy(address(step.dst), step.dst.form, address(step.a), step.a.form, step.count, step.finish);
  }
}

void Executor::finish(std::uint32_t step) {
  remaining_--;
  pending_[step] = kFinished;
  const auto& s = round_.schedule->schedule_;
  for (std::uint32_t i = s.first_successor[step]; i < s.first_successor[step + 1]; i++) {
    const std::uint32_t next = s.successors[i];
    if (--pending_[next] != 0) continue;
    const StepKind kind = s.steps[next].kind;
    if (is_local(kind)) {
      ready_.push_back(next);
    } else {
      advance(round_.schedule->channel_[next]);
    }
  }
}

void Executor::run_ready() {
  // Last in, first out: what has just arrived is reduced and sent on while it is in the cache.
  while (!ready_.empty()) {
    const std::uint32_t step = ready_.back();
    ready_.pop_back();
    compute(round_.schedule->schedule_.steps[step]);
    if (!status_.ok()) return;  // what is not published is seen by nobody
    finish(step);
  }
}

void Executor::on_completion(Token token, const Status& status) {
  if (!status_.ok()) return;
  const auto step = static_cast<std::uint32_t>(token);
  WARREN_CHECK((token >> 32) == slot_ && step < pending_.size(), "completions are for steps that were posted");
  const auto& s = round_.schedule->schedule_;
  outstanding_[round_.schedule->channel_[step]]--;
  if (!status.ok()) {
    failed_peer_ = members_[static_cast<std::size_t>(s.steps[step].peer)];
    status_ = status.because_of_this(to_string(round_.id) + " with rank " + std::to_string(failed_peer_.value));
    return;
  }
  finish(step);
  run_ready();
}

std::vector<Executor::Final> Executor::finals() const {
  std::vector<Final> finals;
  if (round_.schedule == nullptr) return finals;
  const auto& steps = round_.schedule->schedule_.steps;
  for (std::size_t i = 0; i < steps.size(); i++) {
    const Step& step = steps[i];
    const bool writes = step.kind == StepKind::kReduce || step.kind == StepKind::kCopy;
    if (writes && step.dst.space == Space::kOutput && pending_[i] == kFinished && step.count != 0) {
      finals.push_back({step.dst.at, step.count});
    }
  }
  return finals;
}

void Executor::abandon() {
  remaining_ = 0;
  status_ = Status();
  failed_peer_ = kNoRank;
  ready_.clear();
  round_.schedule = nullptr;
  std::fill(links_.begin(), links_.end(), 0);
}

std::vector<Rank> Executor::waiting_for(std::size_t limit) const {
  std::vector<Rank> ranks;
  if (failed_peer_ != kNoRank) ranks.push_back(failed_peer_);  // until the epoch ends
  if (done()) return ranks;
  for (std::size_t c = 0; c < outstanding_.size() && ranks.size() < limit; c++) {
    if (outstanding_[c] == 0) continue;
    ranks.push_back(members_[static_cast<std::size_t>(round_.schedule->channels_[c].peer)]);
  }
  return ranks;
}

}  // namespace warren::worker
