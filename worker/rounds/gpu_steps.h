// Steps of a round whose values are on a GPU, or are wanted there: they combine, copy and exchange values. Finals that
// a GPU has may go past the output. The executor begins such steps here, and hears from here what may go on when
// something is done (docs/decisions/0023-device-loans.md, 0024-nccl.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/rounds/gpu_exchange.h"
#include "worker/rounds/gpu_work.h"
#include "worker/rounds/prepared_schedule.h"
#include "worker/rounds/round.h"
#include "worker/rounds/round_board.h"

namespace warren::worker {

class GpuSteps {
 public:
  using Index = PreparedSchedule::Index;

  // `round`, `members` and `board` are the executor's, and outlive this. `board` may be null.
  GpuSteps(RoundUnderWay& round, const std::vector<Rank>& members, RoundBoard* board)
      : round_(round), members_(members), board_(board) {}

  // A round has begun.
  void begin();
  // All steps of the round have finished.
  void end();
  // The round is forgotten: what is under way is nobody's.
  void abandon();
  // A step waits for a GPU.
  [[nodiscard]] bool busy() const { return !works_.empty() || !bringing_.empty() || !own_.empty(); }

  // Steps that are carried out on a GPU. Whether this local step reads what is there.
  [[nodiscard]] bool reads(Index step) const;
  // Begins such a step; on_done() says when it may go on.
  void combine(Index step);
  // Whether a send reads the input on the GPU, from where its link takes nothing.
  [[nodiscard]] bool comes_first(const schedule::Step& step) const;
  // Begins to bring what such a send sends to the CPU. The send waits for that as for a step before it.
  void bring_to_cpu(Index send);
  // Whether a send tells a rank of this host of a final that is to lie on this rank's GPU before. The other rank may
  // have its output on a GPU, too.
  [[nodiscard]] bool goes_by_gpu(Index send) const;
  // Begins to bring that final to the GPU, once for all such sends. The send waits for that as for a step before it.
  // Later sends to the same rank wait, too; few of them may begin (Builder::send_window()).
  void bring_to_gpu(Index send);
  // The steps that go on when a piece of work is done: sends, or one whose values were combined or copied.
  struct Outcome {
    std::vector<Index> sends;
    Index makes = PreparedSchedule::kNone;
  };
  // `well`: the round has not failed; if it has, nothing goes on. Nothing: the work is none of this round's.
  [[nodiscard]] std::optional<Outcome> on_done(const GpuWork::Done& done, bool well);

  // Sends. Where the bytes of a send lie on the CPU if they came from the GPU, until sent(); null: they did not.
  [[nodiscard]] const std::byte* sent_from(Index send) const;
  void sent(Index send) { sent_from_.erase(send); }
  // Where what this step has published lies on the GPU, too.
  [[nodiscard]] const MadeOnGpu& made(Index publish) const { return made_[publish]; }
  void made(Index publish, const GpuWork::Done& done);

  // Finals that bypass the output (Landing::bring). Begins to bring one that lies on a peer's GPU, which this copy
  // would bring to the output. False: the copy is to be carried out. An error: neither can be done.
  [[nodiscard]] Result<bool> bring(Index copy);
  // Begins to bring a final that this step has made on this rank's GPU. False: it has to come by way of the output.
  [[nodiscard]] bool bring_own(Index step, const GpuWork::Done& done);
  // How something ended that bring() or bring_own() had begun:
  // - kOwn: the round has one thing less to wait for.
  // - kCame: the copy `step` is done.
  // - kCopy: `step` is to be carried out after all.
  struct Brought {
    enum class What : std::uint8_t { kNothing, kOwn, kCame, kCopy } what = What::kNothing;
    Index step = PreparedSchedule::kNone;
  };
  [[nodiscard]] Brought on_brought(std::uint64_t number, bool stood, bool well);
  // This step's final has bypassed the output.
  [[nodiscard]] bool brought(Index step) const { return brought_[step]; }

  // Turns. A step of one may begin: begins the turns that waited for it, in their order, which is that of all ranks.
  // Returns the payload bytes that they send.
  [[nodiscard]] std::uint64_t may_begin(const schedule::Step& step);
  // A turn that was begun is under way no more; nothing: it is none of this round's.
  [[nodiscard]] std::optional<std::size_t> take_turn(std::uint64_t id);
  // All messages of a turn have moved: notes where what came lies.
  void on_exchanged(std::size_t turn, const GpuExchange::Done& done);
  // The word of a message of a turn: the checksum of what the step before has moved.
  [[nodiscard]] std::span<const std::byte> word_to_send(Index word);
  [[nodiscard]] std::span<std::byte> word_to_receive(Index word);
  // A word has come well, so that its link and its sender are not to blame. kCorrupt: its checksum is not that of the
  // bytes before it.
  [[nodiscard]] Status check_word(Index word, Rank peer);
  // Adds the peers of the turn that is under way; at most `limit` ranks in all.
  void add_waited(std::vector<RoundBoard::Waited>& ranks, std::size_t limit) const;

 private:
  // A step that waits for the work, or the bringing, of this number.
  struct Begun {
    std::uint64_t id;
    Index step;
  };
  // A turn that is under way.
  struct BegunTurn {
    std::uint64_t id;
    std::size_t turn;
  };
  struct OnCpu {
    const std::byte* at = nullptr;
    std::shared_ptr<const void> memory;
  };
  // A final that was made on this rank's GPU, and goes past the output.
  struct Own {
    std::uint64_t id;
    Index step;
    OnCpu made;
  };
  static constexpr std::uint64_t kUploaded = UINT64_MAX;

  [[nodiscard]] bool on_gpu(const schedule::Place& place, Index source) const;
  [[nodiscard]] GpuWork::Work work_of(const schedule::Step& step) const;
  void gather(const schedule::Step& step, GpuWork::Work& work) const;
  void start(GpuWork::Work work, Index step);
  [[nodiscard]] std::uint64_t begin_turn(std::size_t turn);
  [[nodiscard]] bool delivered_on_gpu(Index receive) const;

  RoundUnderWay& round_;
  const std::vector<Rank>& members_;
  RoundBoard* const board_;
  std::vector<Begun> works_;
  std::vector<MadeOnGpu> made_;  // by step that publishes
  // By step that publishes: the number of what brings that to the GPU, too. 0: nothing yet. kUploaded: it is over.
  std::vector<std::uint64_t> uploads_;
  std::unordered_map<Index, OnCpu> sent_from_;  // by send of what came from the GPU
  std::vector<Begun> bringing_;                 // copies of finals that bypass the output
  std::vector<Own> own_;
  std::vector<bool> brought_;                           // by step: its final has bypassed the output
  std::uint64_t newest_bringing_ = 0;                   // of all rounds: no two have the same number
  std::vector<std::size_t> turn_waits_;                 // by turn: how many of its steps may not begin yet
  std::size_t next_turn_ = 0;                           // to be begun
  std::vector<BegunTurn> turns_;                        // under way
  std::vector<std::uint64_t> checksums_;                // by step of a turn, and by word
  std::vector<std::shared_ptr<const void>> made_stay_;  // by step that publishes: what keeps `made_` where it is
};

}  // namespace warren::worker
