#include "worker/schedule/builder.h"

#include <utility>

namespace warren::schedule {
namespace {

// Slots begin on a cache line whatever the type: 16 elements of four bytes.
constexpr std::uint64_t kSlotAlignmentElements = 16;

}  // namespace

Builder::Builder(std::int32_t size) : links_(static_cast<std::size_t>(size)) {
  schedule_.size = size;
}

Slot Builder::slot(std::uint64_t elements) {
  Slot made;
  made.at_ = schedule_.scratch_elements;
  schedule_.scratch_elements +=
      (elements + kSlotAlignmentElements - 1) / kSlotAlignmentElements * kSlotAlignmentElements;
  return made;
}

SlotRing Builder::slots(std::size_t how_many, std::uint64_t elements) {
  SlotRing ring;
  ring.slots_.reserve(how_many);
  for (std::size_t i = 0; i < how_many; ++i) ring.slots_.push_back(slot(elements));
  return ring;
}

StepId Builder::send(std::int32_t peer, const Operand& a, std::uint64_t count, After after) {
  const StepId id = add_send(peer, a, count, turn_, after);
  if (turn_ != 0) schedule_.steps[add_send(peer, a, 0, 0, {id})].is_word = true;
  return id;
}

StepId Builder::add_send(std::int32_t peer, const Operand& a, std::uint64_t count, std::uint32_t turn,
                         const After& after) {
  Link& link = links_[static_cast<std::size_t>(peer)];
  if (link.sends.empty()) link.sends.resize(send_window_, kNoStep);
  StepId& place_in_window = link.sends[link.sent % send_window_];
  const StepId before = place_in_window;
  const Step step{.kind = StepKind::kSend,
                  .peer = peer,
                  .message = link.sent++,
                  .turn = turn,
                  .count = count,
                  .a = a.place,
                  .b = {},
                  .dst = {}};
  const StepId id = add(step, {&a}, nullptr, after);
  wait_for(before);
  place_in_window = id;
  return id;
}

StepId Builder::lend(std::int32_t peer, std::uint64_t input_at, std::uint64_t count) {
  const StepId id = send(peer, input(input_at), count);
  schedule_.steps[id].lent = true;
  return id;
}

StepId Builder::combine(const Operand& dst, std::span<const Operand> operands, Bracketing bracketing,
                        std::uint64_t count, After after) {
  std::vector<const Operand*> reads;
  for (const Operand& operand : operands) reads.push_back(&operand);
  const bool finish = dst.place.form == Form::kValue;
  Step step{.kind = StepKind::kCombine, .finish = finish, .count = count, .a = {}, .b = {}, .dst = dst.place};
  if (count == 0) {
    // As in reduction().
    step = {.kind = StepKind::kCopy, .count = 0, .a = dst.place, .b = {}, .dst = dst.place};
  } else {
    step.bracketing = bracketing;
    step.operands = static_cast<std::uint32_t>(operands.size());
    step.first_operand = static_cast<std::uint32_t>(schedule_.operands.size());
    for (const Operand& operand : operands) schedule_.operands.push_back(operand.place);
  }
  return add(step, reads, &dst, after);
}

StepId Builder::recv(std::int32_t peer, const Operand& dst, std::uint64_t count) {
  WARREN_CHECK(dst.place.space == Space::kScratch, "a receive lands in scratch (rule 3 of schedule.h)");
  StepId id = add_recv(peer, dst, count, turn_);
  if (turn_ != 0) {
    id = add_recv(peer, dst, 0, 0);
    schedule_.steps[id].is_word = true;
  }
  return id;
}

StepId Builder::add_recv(std::int32_t peer, const Operand& dst, std::uint64_t count, std::uint32_t turn) {
  Link& link = links_[static_cast<std::size_t>(peer)];
  const Step step{.kind = StepKind::kRecv,
                  .peer = peer,
                  .message = link.received++,
                  .turn = turn,
                  .count = count,
                  .a = {},
                  .b = {},
                  .dst = dst.place};
  return add(step, {}, &dst, {});
}

StepId Builder::reduce(const Operand& dst, const Operand& a, const Operand& b, std::uint64_t count, After after) {
  return reduction(dst, a, b, count, false, after);
}

StepId Builder::finish(std::uint64_t output_at, const Operand& a, const Operand& b, std::uint64_t count, After after) {
  return reduction(output(output_at), a, b, count, true, after);
}

StepId Builder::reduction(const Operand& dst, const Operand& a, const Operand& b, std::uint64_t count, bool finish,
                          const After& after) {
  Step step{.kind = StepKind::kReduce, .finish = finish, .count = count, .a = a.place, .b = b.place, .dst = dst.place};
  if (count == 0) {
    // Nothing to reduce: only the order matters, and a barrier has no operation to reduce with.
    step = {.kind = StepKind::kCopy, .count = 0, .a = dst.place, .b = {}, .dst = dst.place};
  }
  return add(step, {&a, &b}, &dst, after);
}

StepId Builder::copy(const Operand& dst, const Operand& a, std::uint64_t count, bool finish, After after) {
  const Step step{.kind = StepKind::kCopy, .finish = finish, .count = count, .a = a.place, .b = {}, .dst = dst.place};
  return add(step, {&a}, &dst, after);
}

StepId Builder::publish(const Operand& a, std::uint64_t result_at, std::uint64_t count, StepId made) {
  const Step step{.kind = StepKind::kPublish, .count = count, .result_at = result_at, .a = a.place, .b = {}, .dst = {}};
  return add(step, {&a}, nullptr, {made});
}

StepId Builder::join(const std::vector<StepId>& steps) {
  const Operand nothing = output(0);
  const StepId id = copy(nothing, nothing, 0, false);
  predecessors_.insert(predecessors_.end(), steps.begin(), steps.end());
  return id;
}

std::vector<StepId> Builder::finals() const {
  std::vector<StepId> finals;
  for (std::size_t i = 0; i < schedule_.steps.size(); ++i) {
    const Step& s = schedule_.steps[i];
    const bool writes = s.kind == StepKind::kReduce || s.kind == StepKind::kCombine || s.kind == StepKind::kCopy;
    if (writes && s.dst.space == Space::kOutput && s.count != 0) finals.push_back(static_cast<StepId>(i));
  }
  return finals;
}

StepId Builder::add(const Step& step, std::initializer_list<const Operand*> reads, const Operand* write,
                    const After& after) {
  return add(step, std::span(reads.begin(), reads.size()), write, after);
}

StepId Builder::add(const Step& step, std::span<const Operand* const> reads, const Operand* write, const After& after) {
  const auto id = static_cast<StepId>(schedule_.steps.size());
  schedule_.steps.push_back(step);
  first_predecessor_.push_back(static_cast<std::uint32_t>(predecessors_.size()));
  for (const Operand* read : reads) {
    if (read->slot != nullptr) wait_for(read->slot->writer_);
  }
  if (write != nullptr && write->slot != nullptr) {
    Slot& slot = *write->slot;
    for (std::uint32_t i = 0; i < slot.reader_count_; ++i) wait_for(slot.readers_[i]);
    if (slot.reader_count_ == 0) wait_for(slot.writer_);
  }
  for (const StepId step_before : after) wait_for(step_before);

  for (const Operand* read : reads) {
    if (read->slot == nullptr) continue;
    Slot& slot = *read->slot;
    WARREN_CHECK(slot.reader_count_ < slot.readers_.size(), "a slot is read at most twice before it is written again");
    slot.readers_[slot.reader_count_++] = id;
  }
  if (write != nullptr && write->slot != nullptr) {
    write->slot->writer_ = id;
    write->slot->reader_count_ = 0;
  }
  return id;
}

void Builder::wait_for(StepId step) {
  if (step == kNoStep) return;
  const auto own = predecessors_.begin() + first_predecessor_.back();
  if (std::find(own, predecessors_.end(), step) == predecessors_.end()) predecessors_.push_back(step);
}

Schedule Builder::build() && {
  if (schedule_.steps.empty()) join({});  // everything was left out
  const std::size_t n = schedule_.steps.size();
  WARREN_CHECK(n < kNoStep && predecessors_.size() < kNoStep, "make() bounds the number of steps");
  first_predecessor_.push_back(static_cast<std::uint32_t>(predecessors_.size()));
  schedule_.pending.resize(n);
  schedule_.first_successor.assign(n + 1, 0);
  schedule_.successors.resize(predecessors_.size());
  for (std::size_t i = 0; i < n; ++i) schedule_.pending[i] = first_predecessor_[i + 1] - first_predecessor_[i];
  // A counting sort: sums of the row lengths, then each edge to the next place of its row.
  for (const StepId before : predecessors_) ++schedule_.first_successor[before + 1];
  for (std::size_t i = 0; i < n; ++i) schedule_.first_successor[i + 1] += schedule_.first_successor[i];
  std::vector<std::uint32_t> next(schedule_.first_successor.begin(), schedule_.first_successor.end() - 1);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::uint32_t e = first_predecessor_[i]; e < first_predecessor_[i + 1]; ++e) {
      schedule_.successors[next[predecessors_[e]]++] = static_cast<StepId>(i);
    }
  }
  return std::move(schedule_);
}

}  // namespace warren::schedule
