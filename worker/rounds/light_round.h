// A small round of a blocking call, without the executor's books: its steps run in the order in which they stand in the
// schedule, each whole before the next one begins. What has been done is a number: that of the steps that are finished.
//
// In that order no schedule deadlocks (worker/schedule/builder.h), and nothing is posted: frames go straight to links
// and come straight from them (FramesAtOnce). Where that does not work, or somebody is about to sleep,
// the executor takes the round over where it stands, and reports, waits and fails as ever.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "worker/rounds/executor.h"
#include "worker/transport/frames_at_once.h"

namespace warren::worker {

class LightRound {
 public:
  // Larger messages gain nothing: copies and reductions take longer than books, and are worth overlapping.
  static constexpr std::size_t kMostBytes = std::size_t{4} << 10;  // of one message
  static constexpr std::size_t kMostSteps = 64;

  enum class Outcome : std::uint8_t {
    kDone,
    kWaits,          // for a frame: go() again
    kStuck,          // Executor::take_over() goes on, or says what is wrong
    kProgramFailed,  // a function of the program's, as status() says: nobody goes on
  };

  // `executor` is the group's, and idle while this runs; `links`, `members`, `slot` and `board` are those that it was
  // given.
  LightRound(Transport& transport, FramesAtOnce& frames, Executor& executor, GroupId links,
             const std::vector<Rank>& members, std::uint32_t slot, RoundBoard* board);

  // Whether the round can be run here at all.
  [[nodiscard]] static bool serves(const PreparedSchedule& schedule, const Reducer& reducer);

  void begin(const Round& round);
  // Does what can be done without waiting.
  [[nodiscard]] Outcome go();
  // kProgramFailed: why.
  [[nodiscard]] const Status& status() const { return status_; }
  // Begun, and not over or handed over.
  [[nodiscard]] bool runs() const { return runs_; }
  // The newest one.
  [[nodiscard]] const RoundId& round() const { return round_.id; }
  // The executor takes the round over.
  void hand_over();
  // As in Executor: what stands final in the output, after close_all() and before abandon().
  [[nodiscard]] std::vector<Executor::Final> finals() const;
  // Forget the round, and all links, after Transport::close_all().
  void abandon();
  // `members` are others than before, after abandon().
  void reseat() { links_.assign(members_.size(), 0); }
  // Whose message is looked for; kNoRank: nobody's.
  [[nodiscard]] Rank waits_for() const;
  // Payload bytes that the current or last round sent.
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  [[nodiscard]] LinkId link_to(std::int32_t peer);
  [[nodiscard]] std::byte* address(const schedule::Place& place) const;

  Transport& transport_;
  FramesAtOnce& frames_;
  Executor& executor_;
  const GroupId link_group_;
  const std::vector<Rank>& members_;
  const std::uint32_t slot_;
  RoundBoard* const board_;
  std::vector<LinkId> links_;  // by group rank; 0: not known, else one more
  Round round_;
  FrameHeader header_;
  std::byte* scratch_ = nullptr;
  std::size_t value_bytes_ = 1, partial_bytes_ = 1;
  std::uint32_t done_ = 0;
  bool posted_ = false;  // the step after those: a part of it has left
  bool runs_ = false;
  Status status_;
  std::uint64_t bytes_sent_ = 0;
};

}  // namespace warren::worker
