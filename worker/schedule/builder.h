// Writes a schedule down step by step and finds the dependencies that scratch needs.
//
// Scratch is handed out as slots. A slot remembers who wrote it last and who read it since, so that a step that reads
// it waits for its writer, and one that writes it waits for its readers. Reads and writes of the user's buffers are the
// generator's to order: it names the steps to wait for in `after`.
//
// Why no schedule deadlocks, even if every send blocks until its receive is posted: a generator writes its steps in an
// order in which both ends of a message have the same key (block, phase, turn, …), keys only grow, and every step waits
// only for steps written before it. So the send and the receive with the least key that are not done can always
// proceed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <vector>

#include "recovery/base/check.h"
#include "worker/schedule/schedule.h"

namespace warren::schedule {

using StepId = std::uint32_t;
inline constexpr StepId kNoStep = UINT32_MAX;

struct Range {
  std::uint64_t at = 0;
  std::uint64_t count = 0;
};

// Part `index` of `whole`, cut into `parts` that differ by at most one element, the longer ones first.
[[nodiscard]] inline Range cut(Range whole, std::uint64_t parts, std::uint64_t index) {
  const std::uint64_t least = whole.count / parts;
  const std::uint64_t longer = whole.count % parts;
  return {whole.at + index * least + std::min(index, longer), least + (index < longer ? 1 : 0)};
}

// Which of these parts element `at` is in.
[[nodiscard]] inline std::uint64_t part_of(Range whole, std::uint64_t parts, std::uint64_t at) {
  const std::uint64_t least = whole.count / parts;
  const std::uint64_t longer = whole.count % parts;
  const std::uint64_t in_longer = longer * (least + 1);
  const std::uint64_t offset = at - whole.at;
  if (offset < in_longer || least == 0) return offset / (least + 1);
  return longer + (offset - in_longer) / least;
}

// How many messages carry `count` elements. Never 0: nothing travels as a header, so that ranks that disagree meet.
[[nodiscard]] inline std::uint64_t chunks_of(std::uint64_t count, std::uint64_t chunk_elements) {
  return count == 0 ? 1 : (count - 1) / chunk_elements + 1;
}

class Slot;

struct Operand {
  Place place;
  Slot* slot = nullptr;  // scratch only
};

[[nodiscard]] inline Operand input(std::uint64_t at) {
  return {{Space::kInput, Form::kValue, at}, nullptr};
}
[[nodiscard]] inline Operand output(std::uint64_t at) {
  return {{Space::kOutput, Form::kValue, at}, nullptr};
}

// A piece of scratch that is written as a whole. It must not move or end while a Builder's operands point to it.
class Slot {
 public:
  [[nodiscard]] Operand as(Form form, std::uint64_t offset = 0) & {
    return {{Space::kScratch, form, at_, offset}, this};
  }

 private:
  friend class Builder;
  std::uint64_t at_ = 0;
  StepId writer_ = kNoStep;
  std::array<StepId, 2> readers_{};  // since writer_
  std::uint32_t reader_count_ = 0;
};

// Slots of one size that are used in turn.
class SlotRing {
 public:
  [[nodiscard]] Slot& next() {
    Slot& slot = slots_[next_];
    next_ = next_ + 1 == slots_.size() ? 0 : next_ + 1;
    return slot;
  }
  [[nodiscard]] bool empty() const { return slots_.empty(); }

 private:
  friend class Builder;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

// The steps that a step waits for, beside those that its slots imply. kNoStep is skipped.
class After {
 public:
  After(std::initializer_list<StepId> steps) : steps_(steps.begin(), steps.size()) {}
  After(const std::vector<StepId>& steps) : steps_(steps) {}  // NOLINT(google-explicit-constructor)
  [[nodiscard]] auto begin() const { return steps_.begin(); }
  [[nodiscard]] auto end() const { return steps_.end(); }

 private:
  std::span<const StepId> steps_;
};

class Builder {
 public:
  explicit Builder(std::int32_t size);

  // So many sends to one peer may be posted and not complete; before the first one. It bounds the transport's queue
  // where nothing else does, such as for a leaf that sends all of its input.
  void send_window(std::uint32_t sends) { send_window_ = sends; }

  [[nodiscard]] Slot slot(std::uint64_t elements);
  [[nodiscard]] SlotRing slots(std::size_t how_many, std::uint64_t elements);

  // Sends and receives from here on are of this turn (Step::turn), and followed by their words (Step::is_word): who
  // waits for a slot's writer waits for the word, too.
  void in_turn(std::uint32_t turn) { turn_ = turn; }

  StepId send(std::int32_t peer, const Operand& a, std::uint64_t count, After after = {});
  // Of elements of the input that no final is made of before the peer has read them.
  StepId lend(std::int32_t peer, std::uint64_t input_at, std::uint64_t count);
  StepId recv(std::int32_t peer, const Operand& dst, std::uint64_t count);
  // dst = a ⊕ b. Where dst is the slot of a or b it has the same form: an accumulator is wider than a value.
  StepId reduce(const Operand& dst, const Operand& a, const Operand& b, std::uint64_t count, After after = {});
  // The last one: writes the final value to the output.
  StepId finish(std::uint64_t output_at, const Operand& a, const Operand& b, std::uint64_t count, After after = {});
  // All in one pass: values, but that the first one of a chain may be a partial result. Writes the final value to the
  // output, or a partial result to a slot, which may be that of the first one then.
  StepId combine(const Operand& dst, std::span<const Operand> operands, Bracketing bracketing, std::uint64_t count,
                 After after = {});
  StepId copy(const Operand& dst, const Operand& a, std::uint64_t count, bool finish, After after = {});
  // Final values at `a`, which `made` wrote, are elements from `result_at` on of the whole result.
  StepId publish(const Operand& a, std::uint64_t result_at, std::uint64_t count, StepId made);
  // Nothing, once all of these have finished. They are distinct.
  StepId join(const std::vector<StepId>& steps);

  // Steps so far that leave final values in the output.
  [[nodiscard]] std::vector<StepId> finals() const;

  [[nodiscard]] Schedule build() &&;

 private:
  struct Link {
    std::uint32_t sent = 0;
    std::uint32_t received = 0;
    std::vector<StepId> sends;  // the newest, as many as the window has
  };

  StepId add_send(std::int32_t peer, const Operand& a, std::uint64_t count, std::uint32_t turn, const After& after);
  StepId add_recv(std::int32_t peer, const Operand& dst, std::uint64_t count, std::uint32_t turn);
  StepId add(const Step& step, std::initializer_list<const Operand*> reads, const Operand* write, const After& after);
  StepId add(const Step& step, std::span<const Operand* const> reads, const Operand* write, const After& after);
  StepId reduction(const Operand& dst, const Operand& a, const Operand& b, std::uint64_t count, bool finish,
                   const After& after);
  void wait_for(StepId step);

  Schedule schedule_;
  std::uint32_t turn_ = 0;
  std::uint32_t send_window_ = 8;
  std::vector<StepId> predecessors_;              // of all steps, one after the other
  std::vector<std::uint32_t> first_predecessor_;  // of each step
  std::vector<Link> links_;                       // by peer
};

}  // namespace warren::schedule
