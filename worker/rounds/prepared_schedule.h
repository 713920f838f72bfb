// A schedule with all that the executor wants to know of it, worked out once. That is which steps go to which peer,
// where operands come from, and which values may take a shorter way than through the program's buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "worker/schedule/schedule.h"

namespace warren::worker {

// Elements of a round's input.
struct InputPiece {
  std::uint64_t at = 0, count = 0;
  friend bool operator==(const InputPiece&, const InputPiece&) = default;
};

// The whole input, of `count` elements, cut into pieces of `most` and in the order in which the schedule first reads
// them.
[[nodiscard]] std::vector<InputPiece> input_order(const schedule::Schedule& schedule, std::uint64_t count,
                                                  std::uint64_t most);

// A schedule that is ready to run any number of times. It never changes.
class PreparedSchedule {
 public:
  using Index = std::uint32_t;  // of a step
  static constexpr Index kNone = UINT32_MAX;

  // The sends to one peer and the receives from it, but for those of turns: ranges of order().
  struct Channel {
    std::int32_t peer = -1;
    std::uint32_t first_send = 0, end_send = 0;
    std::uint32_t first_recv = 0, end_recv = 0;
  };
  // The receives that a step's operands come from.
  struct Sources {
    Index a = kNone, b = kNone;
  };

  explicit PreparedSchedule(schedule::Schedule schedule);

  // The whole.
  [[nodiscard]] const schedule::Schedule& schedule() const { return schedule_; }
  [[nodiscard]] const std::vector<schedule::Step>& steps() const { return schedule_.steps; }
  [[nodiscard]] const schedule::Step& step(Index index) const { return schedule_.steps[index]; }
  // Its steps can be carried out one by one (worker/rounds/light_round.h): nothing is read in place, and what is
  // published is so where it stands.
  [[nodiscard]] bool in_order() const { return in_order_; }
  // Elements of the step that has most.
  [[nodiscard]] std::uint64_t largest() const { return largest_; }
  // The input may lie where the CPU cannot read it. Then it is lent to some ranks, or is a part of the result that all
  // others of this host get from this rank. Only combining steps, sends and copies of such parts read it. A rank that
  // is alone on its host lends nothing.
  [[nodiscard]] bool lends_all() const { return !read_by_.empty(); }
  // If lends_all(): the ranks that read it, or a copy of it, where it lies.
  [[nodiscard]] std::span<const std::int32_t> readers() const { return read_by_; }

  // Peers. channel_of(): of a send or a receive by a link, its channel.
  [[nodiscard]] const std::vector<Channel>& channels() const { return channels_; }
  [[nodiscard]] const std::vector<Index>& order() const { return order_; }
  [[nodiscard]] std::uint32_t channel_of(Index step) const { return channel_[step]; }

  // Operands. Of a combining step: where they lie, and the receives that they come from.
  [[nodiscard]] std::span<const schedule::Place> operands(const schedule::Step& combining) const {
    return std::span(schedule_.operands).subspan(combining.first_operand, combining.operands);
  }
  [[nodiscard]] std::span<const Index> operand_sources(const schedule::Step& combining) const {
    return std::span(operand_sources_).subspan(combining.first_operand, combining.operands);
  }
  // By step, of any other kind.
  [[nodiscard]] const Sources& sources(Index step) const { return sources_[step]; }
  // By step. Of a receive: how many operands come from it. 0: it must land in scratch, as not only steps that are
  // carried out here read it.
  [[nodiscard]] const std::vector<std::uint32_t>& reads() const { return reads_; }
  // The receive is read by combining steps alone.
  [[nodiscard]] bool combined(Index receive) const { return combined_[receive]; }

  // Finals. The publishing step of just what this send sends, or what this combining step or copy of the input makes.
  [[nodiscard]] Index published_by(Index step) const { return published_by_[step]; }
  // This copies a final that was received to the output, and no other step reads it there, or from the receive.
  [[nodiscard]] bool delivers(Index copy) const { return delivers_[copy]; }
  // Of such a copy, its receive.
  [[nodiscard]] bool delivered(Index receive) const { return delivered_[receive]; }
  // This combining step, or copy of the input, makes a final that is published, and only steps that send it read it in
  // the output.
  [[nodiscard]] bool bypasses(Index step) const { return bypasses_[step]; }
  // The sends by links of what this step publishes, if such a step has made it.
  [[nodiscard]] std::span<const Index> tells(Index publish) const;
  // This sends a final that was published to a rank of this host, and neither of the two has made it. It came from
  // another rank, or is a sum of two, so that neither has it on its GPU yet.
  [[nodiscard]] bool hands_on(Index send) const { return hands_on_[send]; }

  // Turns. Messages move from GPU to GPU, if there are any.
  [[nodiscard]] bool exchanges() const { return !turns_.empty(); }
  [[nodiscard]] const std::vector<std::vector<Index>>& turns() const { return turns_; }

 private:
  void find_channels();
  void find_sources();
  void find_loans();
  void find_deliveries();
  void find_bypasses();

  schedule::Schedule schedule_;
  bool in_order_ = true;
  std::uint64_t largest_ = 0;
  std::vector<std::int32_t> read_by_;  // see readers()
  std::vector<Channel> channels_;
  std::vector<Index> order_;            // by channel and ordinal
  std::vector<std::uint32_t> channel_;  // by step
  std::vector<Sources> sources_;        // by step
  std::vector<Index> operand_sources_;  // by Schedule::operands
  // By step, as their accessors say.
  std::vector<std::uint32_t> reads_;
  std::vector<bool> combined_;
  std::vector<Index> published_by_;
  std::vector<bool> delivers_, delivered_, bypasses_, hands_on_;
  std::unordered_map<Index, std::vector<Index>> tells_;
  std::vector<std::vector<Index>> turns_;  // the steps of each
};

}  // namespace warren::worker
