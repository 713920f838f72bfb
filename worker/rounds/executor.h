// Runs one schedule at a time over a transport, without ever waiting: its owner feeds completions in and asks
// whether it is done. The same object runs in workers and in the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "recovery/wire/frame.h"
#include "worker/rounds/gpu_steps.h"
#include "worker/rounds/round.h"
#include "worker/rounds/round_board.h"
#include "worker/rounds/scratch.h"
#include "worker/schedule/schedule.h"
#include "worker/transport/reads_in_place.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class Executor {
 public:
  // `in_place` null: payloads are always received into buffers. `links`: under which name the transport knows the
  // group's links. `members`: group rank → rank of the job. `slot` stands in the upper half of every token that this
  // executor posts. `board` counts what each link moves; may be null.
  Executor(Transport& transport, ReadsInPlace* in_place, GroupId links, std::vector<Rank> members, std::uint32_t slot,
           RoundBoard* board);

  // The group has other members, after abandon().
  void reseat(std::vector<Rank> members);
  // Begins a round; the one before must be done. Completions may follow from the next transport.poll() on. kExhausted:
  // it was begun before, and a part of this rank's input that it needs was overwritten then, with what was no final.
  void start(const Round& round);
  // Goes on with a round whose first `finished` steps were carried out elsewhere, in their order, with scratch() and
  // nothing posted. `posted`: the step after those is a send that is under way, with the token that it has here.
  void take_over(const Round& round, std::uint32_t finished, bool posted);
  // Of at least so many bytes, for who begins a round that is taken over: they stay.
  [[nodiscard]] std::byte* scratch(std::size_t bytes) { return scratch_.reserve(bytes); }
  // A completion whose token carries this executor's slot.
  void on_completion(Token token, const Status& status, View view = {});
  // So many of Round::pieces are there by now.
  void arrive(std::size_t pieces);
  // Some step waits for a piece of the input.
  [[nodiscard]] bool awaits_input() const { return !done() && !awaiting_.empty(); }
  // A step that was carried out elsewhere. False: it is none of this round's.
  [[nodiscard]] bool on_done(const GpuWork::Done& done);
  // A turn that was begun, likewise.
  [[nodiscard]] bool on_exchanged(const GpuExchange::Done& done);
  // What Landing::bring() was given is where it is wanted, and `stood` until then; or it did not, and comes by way of
  // the output. Of whatever round.
  void on_brought(std::uint64_t number, bool stood);
  // Some step is being carried out elsewhere.
  [[nodiscard]] bool awaits_gpu_work() const { return !done() && gpu_ != nullptr && gpu_->busy(); }
  // Goes on with what was published and may be seen by now; true if there was something.
  bool settle();
  // Something is published that may not be seen yet.
  [[nodiscard]] bool settling() const { return !unsettled_.empty(); }
  // Finished, or failed. After a failure the executor posts nothing more; the generation has to end before it can start
  // again.
  [[nodiscard]] bool done() const { return remaining_ == 0 || !status_.ok(); }
  [[nodiscard]] const Status& status() const { return status_; }
  // The failure is that of a function of the program's, which no other generation mends.
  [[nodiscard]] bool program_failed() const { return program_failed_; }
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
  // most `limit`; none while awaits_input() or awaits_gpu_work().
  [[nodiscard]] std::vector<RoundBoard::Waited> waiting_for(std::size_t limit) const;
  // Payload bytes that the current or last round sends.
  [[nodiscard]] std::uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Cursor {
    LinkId link = 0;
    std::uint32_t send = 0, recv = 0;
  };
  // Of a channel: posted and not completed.
  struct Outstanding {
    std::uint32_t sends = 0, recvs = 0;
  };

  static constexpr std::uint32_t kFinished = UINT32_MAX;

  struct Unsettled {
    std::uint32_t step;
    std::uint64_t number;  // of the publisher's
  };

  // A step that reads a part of the input that is still to come.
  struct Awaiting {
    std::size_t pieces;  // by then it is there
    std::uint32_t step;
  };

  void prepare(const Round& round);
  void use_gpu_steps();
  void await_input();
  void run(std::uint32_t finished, bool posted);
  void finish(std::uint32_t step);
  void may_begin(std::uint32_t step);
  [[nodiscard]] bool goes_by_gpu(const schedule::Step& step, std::uint32_t index);
  [[nodiscard]] bool runs_on_gpu(std::uint32_t step);
  // The step's final is not in the output.
  [[nodiscard]] bool bypassed(std::uint32_t step) const { return gpu_ != nullptr && gpu_->brought(step); }
  void run_ready();
  void advance(std::uint32_t channel);
  // The step of the first message that was posted on this channel, which waits, and has not completed.
  [[nodiscard]] std::uint32_t earliest_outstanding(std::uint32_t channel) const;
  void compute(std::uint32_t index);
  void combine(std::uint32_t index);
  void make_of(const GpuWork::Done& done, std::uint32_t index);
  void made_of_operands(std::uint32_t index, const GpuWork::Done* done, bool lent);
  void make_final(std::uint32_t index, std::span<const std::uint32_t> sources, const GpuWork::Done* done, bool lent);
  [[nodiscard]] Status combine_to(std::byte* to, const schedule::Step& step);
  void fail_by_program(const Status& why);
  void one_less();
  void done_reading(std::uint32_t source);
  void let_go(std::uint32_t source);
  // Whatever `step` has written over the input is no final value.
  void lose_input(const schedule::Step& step);
  [[nodiscard]] bool needs_lost_input() const;
  void post(const schedule::Step& step, std::uint32_t index, LinkId link);

  Transport& transport_;
  ReadsInPlace* const in_place_;
  const GroupId link_group_;
  std::vector<Rank> members_;
  const std::uint32_t slot_;
  RoundBoard* const board_;
  std::vector<LinkId> links_;  // by group rank, once known
  RoundUnderWay round_;
  FrameHeader header_;
  Scratch scratch_;
  Scratch unchecked_;  // a value that was made of lent operands, until they are known to have been whole
  std::vector<std::uint32_t> pending_;  // by step: what it waits for; kFinished once it is done
  std::vector<Cursor> cursors_;
  std::vector<std::uint32_t> ready_;       // compute steps
  std::vector<Outstanding> outstanding_;   // by channel
  std::vector<std::uint32_t> reads_left_;  // by receive
  std::vector<bool> published_;            // by step that publishes: by the step that made it
  std::vector<const void*> operands_;      // of the combining step at hand
  std::vector<Unsettled> unsettled_;       // published, in that order
  std::unique_ptr<GpuSteps> gpu_steps_;    // from the first round on that may touch GPUs
  GpuSteps* gpu_ = nullptr;                // that, if this round may
  std::vector<Awaiting> awaiting_;         // those that may begin first, last
  bool streams_ = false;                   // finals go to the output past the cache
  // Of the newest round's input, elements that are no more.
  Ranges lost_input_;
  std::size_t remaining_ = 0;
  std::uint64_t bytes_sent_ = 0;
  Status status_;
  bool program_failed_ = false;  // why status_ is what it is
  Rank failed_peer_ = kNoRank;
};

}  // namespace warren::worker
