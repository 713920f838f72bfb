// Runs one schedule at a time over a transport, without ever waiting: whoever owns it feeds completions in and asks
// whether it is done. The same object runs in workers and in the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "recovery/frame.h"
#include "recovery/ids.h"
#include "recovery/result.h"
#include "worker/kernels/reduce.h"
#include "worker/schedule/schedule.h"
#include "worker/transport/transport.h"

namespace warren::worker {

// A schedule with its sends and receives sorted by peer, ready to run any number of times.
class PreparedSchedule {
 public:
  explicit PreparedSchedule(schedule::Schedule schedule);
  [[nodiscard]] const schedule::Schedule& schedule() const { return schedule_; }

 private:
  friend class Executor;
  struct Channel {
    std::int32_t peer = -1;
    std::uint32_t first_send = 0, end_send = 0;  // ranges of order_
    std::uint32_t first_recv = 0, end_recv = 0;
  };
  schedule::Schedule schedule_;
  std::vector<Channel> channels_;
  std::vector<std::uint32_t> order_;    // step indices by channel and ordinal
  std::vector<std::uint32_t> channel_;  // by step: its channel, for sends and receives
};

// Memory that survives from round to round, faulted in once. Aligned to 64 bytes.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch();
  // At least `bytes`; what was in it is lost when it grows.
  [[nodiscard]] std::byte* reserve(std::size_t bytes);

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Where final values go before anybody sees them.
class Publisher {
 public:
  virtual ~Publisher() = default;
  // Values [first, first + count) of the whole result, published when it returns.
  [[nodiscard]] virtual Status publish(std::uint64_t first, std::uint64_t count, const std::byte* values) = 0;
};

class Executor {
 public:
  struct Round {
    const PreparedSchedule* schedule = nullptr;  // outlives the round
    Epoch epoch;
    RoundId id;
    Fingerprint fingerprint;
    const std::byte* input = nullptr;  // may be null where the schedule does not touch it
    std::byte* output = nullptr;
    Reducer reducer;
    Publisher* publisher = nullptr;  // of schedules that publish
  };

  // `links`: under which name the transport knows the group's links. `members`: group rank → rank of the job. `slot`
  // stands in the upper half of every token that this executor posts.
  Executor(Transport& transport, GroupId links, std::vector<Rank> members, std::uint32_t slot);

  // Begins a round; the one before must be done. Completions may follow from the next transport.poll() on.
  void start(const Round& round);
  // A completion whose token carries this executor's slot.
  void on_completion(Token token, const Status& status);
  // Finished, or failed. After a failure the executor posts nothing more; the epoch has to end before it can start
  // again.
  [[nodiscard]] bool done() const { return remaining_ == 0 || !status_.ok(); }
  [[nodiscard]] const Status& status() const { return status_; }
  // The rank of the job at the other end of the link that failed; kNoRank while status() is ok.
  [[nodiscard]] Rank failed_peer() const { return failed_peer_; }
  // After Transport::close_all(), before abandon(): what stands final in the output, as elements of it. In the order of
  // the schedule.
  struct Final {
    std::uint64_t at = 0, count = 0;
  };
  [[nodiscard]] std::vector<Final> finals() const;
  // Forget the round after Transport::close_all().
  void abandon();
  // Ranks of the job from which a message is due or that have not taken one, for people who ask who waits for whom. At
  // most `limit`.
  [[nodiscard]] std::vector<Rank> waiting_for(std::size_t limit) const;
  // Payload bytes that the current or last round sends.
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Cursor {
    LinkId link = 0;
    std::uint32_t send = 0, recv = 0;
  };

  static constexpr std::uint32_t kFinished = UINT32_MAX;

  void finish(std::uint32_t step);
  void run_ready();
  void advance(std::uint32_t channel);
  void compute(const schedule::Step& step);
  void post(const schedule::Step& step, std::uint32_t index, LinkId link);
  [[nodiscard]] std::byte* address(const schedule::Place& place) const;

  Transport& transport_;
  const GroupId link_group_;
  const std::vector<Rank> members_;
  const std::uint32_t slot_;
  std::vector<LinkId> links_;  // by group rank, once known
  Round round_;
  FrameHeader header_;
  Scratch scratch_;
  std::byte* scratch_base_ = nullptr;
  std::size_t value_bytes_ = 1, partial_bytes_ = 1;
  std::vector<std::uint32_t> pending_;  // by step: what it waits for; kFinished once it is done
  std::vector<Cursor> cursors_;
  std::vector<std::uint32_t> ready_;        // compute steps
  std::vector<std::uint32_t> outstanding_;  // by channel: sends and receives posted and not completed
  std::size_t remaining_ = 0;
  std::uint64_t bytes_sent_ = 0;
  Status status_;
  Rank failed_peer_ = kNoRank;
};

}  // namespace warren::worker
