// The collectives of one group. They run one after the other in the order of issue. In each generation the one under
// way comes to its result anew: from the log, from where it was, or by being computed (docs/decisions/0006).
//
// submit(), run_at_once() and the engine's events begin and move rounds; after an event, check() ends those that are
// over and begins the next. Nothing waits here.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "worker/rounds/call.h"
#include "worker/rounds/exchange_vote.h"
#include "worker/rounds/executor.h"
#include "worker/rounds/final_parts.h"
#include "worker/rounds/group_schedules.h"
#include "worker/rounds/light_round.h"
#include "worker/rounds/round_input.h"
#include "worker/rounds/round_publisher.h"
#include "worker/rounds/shared_by_groups.h"
#include "worker/transport/ring_queue.h"

namespace warren::worker {

class GroupRounds {
 public:
  // `channel`: the transport's name of the group's links. `slot`: of the tokens; the board's is half of it. `rank`:
  // this one's among `members`.
  GroupRounds(SharedByGroups& shared, GroupId id, std::uint32_t channel, std::vector<Rank> members, std::int32_t rank,
              std::uint32_t slot);
  GroupRounds(const GroupRounds&) = delete;
  GroupRounds& operator=(const GroupRounds&) = delete;

  // A plan has come; before resume(). Where the job goes on without lost ranks, members may be others.
  void install();
  // The generation begins: the round under way goes on, or the next one begins.
  void resume();
  // The generation is over, after Transport::close_all(). Publishes what is final in the active call's output, and
  // keeps all calls.
  void suspend();
  // The life is over, after Transport::close_all(). Ends all calls, the active one for a reason of its own. If its
  // prepare function runs, drop() ends that call later.
  void stop(const Status& why, const Status& reason_of_active);
  void drop(const Status& why);
  // A version begins, between two calls. It has no round yet.
  void begin_version();
  // The ring may have another order.
  void place();
  // This object takes the place of another one of the group, which has issued and done so many rounds of this version.
  void count_from(Sequence next, std::uint64_t done) {
    next_ = next;
    done_ = done;
  }

  // Queues a call of a collective, and begins its round if none is under way. An error is that of this call alone.
  [[nodiscard]] Status submit(Call& call);
  // Engine::run_at_once(), where nothing else is under way. After an exception a part of the round may have left.
  [[nodiscard]] bool run_at_once(const CallSpec& spec, int looks);

  // Ends rounds that are over, and begins the next one.
  void check();
  void on_completion(Completion& c) { executor_.on_completion(c.token, c.status, std::move(c.view)); }
  // False: it is none of this group's.
  [[nodiscard]] bool on_done(const GpuWork::Done& done) { return executor_.on_done(done); }
  [[nodiscard]] bool on_exchanged(const GpuExchange::Done& done) { return executor_.on_exchanged(done); }
  // The prepare function of the active call has returned. False: nothing follows from that yet.
  [[nodiscard]] bool prepared();
  // Buffers of the active call have moved.
  void moved();
  // The active call waits for what the log has, under this number.
  [[nodiscard]] bool wants(std::uint64_t recall) const {
    return active_ != nullptr && phase_ == Phase::kRecalls && recall_id_ == recall;
  }
  // The log's part of the active call's result has come, or will not. False: there is trouble, and check() has nothing
  // to do.
  [[nodiscard]] bool recalled(const Replayer::Done& done);
  // Goes on with what a disk has by now of what the active call's round has published. True: there was something.
  [[nodiscard]] bool settle() { return runs() && executor_.settle(); }
  [[nodiscard]] bool awaits_disk() const { return runs() && awaited_ != 0; }
  // The active call's round runs light. True: it is over, or the executor's.
  [[nodiscard]] bool go_light();
  // The executor takes over a round that runs light.
  void hand_over();

  [[nodiscard]] std::uint32_t slot() const { return slot_; }
  [[nodiscard]] const GroupSchedules& seats() const { return schedules_; }
  // The call whose round is under way; null: none.
  [[nodiscard]] const Call* active() const { return active_; }
  [[nodiscard]] bool idle() const { return active_ == nullptr && queue_.empty(); }
  [[nodiscard]] Sequence next() const { return next_; }
  [[nodiscard]] RoundId next_round() const { return round_of(next_); }
  // Rounds of this version that are done.
  [[nodiscard]] std::uint64_t done() const { return done_; }
  // Bytes of the active call's whole result that stand final in its output.
  [[nodiscard]] const Ranges& have() const { return parts_.in_output(); }
  // This round, if it is one of the newest that this life has begun; null: it is not.
  [[nodiscard]] const Fingerprint* begun(const RoundId& round) const {
    const auto& begun = begun_[round.sequence.value % kNewestRounds];
    return begun && begun->round == round ? &begun->fingerprint : nullptr;
  }
  // Why the newest round has failed by itself.
  [[nodiscard]] const Status& status() const { return executor_.status(); }
  [[nodiscard]] bool program_failed() const { return executor_.program_failed(); }

  // Whom the active call's round waits for.
  [[nodiscard]] std::vector<RoundBoard::Waited> waiting_for() const {
    return executor_.waiting_for(RoundBoard::kRanks);
  }
  // Adds how many rounds have begun, and what the active call waits for. False: it may go on, or there is no room.
  [[nodiscard]] bool describe_blocked(wire::Blocked& blocked) const;
  // "rank 0 waits for rank 3 in round 0.17: allreduce(…)", where `rank` is "rank 0"; nothing: it waits for nothing.
  [[nodiscard]] std::optional<std::string> describe_wait(const std::string& rank) const;

 private:
  enum class Phase : std::uint8_t { kIdle, kWaits, kAgrees, kPrepares, kRecalls, kRuns, kDone };
  using Known = KnownRounds::Known;
  using Prepared = GroupSchedules::Prepared;

  // Calls that become rounds.
  [[nodiscard]] RoundId round_of(Sequence sequence) const {
    return shared_.known.round_of(id_, shared_.version, sequence);
  }
  [[nodiscard]] std::int32_t size_of(const RoundId& round) const;
  [[nodiscard]] std::uint64_t told_site(std::uint64_t site) const;
  [[nodiscard]] static Status make_reducer(Call& call, std::int32_t size);
  [[nodiscard]] Status name_setup(Call& call);
  [[nodiscard]] Status tell_counts(Call& call);
  void hear_counts(Call& call) const;
  void remember_begun(const RoundId& round, const Fingerprint& fingerprint) {
    begun_[round.sequence.value % kNewestRounds] = {round, fingerprint};
  }
  void rename(Call& call);
  void resize(Call& call);

  // The active call.
  void start_next();
  void enter(Phase phase);
  void begin();
  [[nodiscard]] bool runs() const { return active_ != nullptr && phase_ == Phase::kRuns; }
  [[nodiscard]] bool may_exchange(const Known& known) const;
  [[nodiscard]] bool waits_for_words(const Known& known);
  void hear_words();
  [[nodiscard]] bool waits_for_prepare(bool runs);
  [[nodiscard]] bool waits_for_input(bool begins);
  [[nodiscard]] bool may_lend(const std::byte* memory) const;
  void order_input();
  void take_from_log();
  void take_nothing(const Replayer::Want& want);
  [[nodiscard]] Ranges fresh_finals();
  void run(Prepared prepared);
  void run_rest();
  [[nodiscard]] Round round_for(const Call& call);
  void complete();
  void leave();
  void fail(const Status& why, Rank peer = kNoRank) { shared_.trouble.fail(why, peer); }
  void fail_in_round(const Status& why) { fail(why.about(active_->round)); }
  [[nodiscard]] std::uint32_t lane() const { return slot_ / 2; }

  SharedByGroups& shared_;
  const GroupId id_;
  const std::uint32_t channel_;
  const std::uint32_t slot_;
  GroupSchedules schedules_;
  Executor executor_;
  LightRound light_;  // while it runs, the executor does not
  RoundPublisher publisher_;
  ExchangeVote vote_;  // of the active call in this generation
  RoundInput input_;   // of the active call
  FinalParts parts_;   // of the active call

  Sequence next_;
  std::uint64_t done_ = 0;  // of this version
  RingQueue<Call*> queue_;
  Call* active_ = nullptr;
  Phase phase_ = Phase::kIdle;
  std::uint64_t recall_id_ = 0;  // kRecalls: the want
  std::uint64_t awaited_ = 0;    // resumed: the call returns when this may be seen (Recall::newest)
  bool ran_light_ = false;       // the active call's round is, or was, carried out by `light_` alone
  bool interrupted_ = false;     // the active call's round was begun in an earlier generation
  // The newest rounds that this life has begun, by number modulo their count: whoever comes new may ask.
  static constexpr std::size_t kNewestRounds = 32;
  struct Begun {
    RoundId round;
    Fingerprint fingerprint;
  };
  std::array<std::optional<Begun>, kNewestRounds> begun_;
};

}  // namespace warren::worker
