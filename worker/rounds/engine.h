// The data path of one worker: groups, calls in order of issue, the executors and point-to-point channels that carry
// them out. It never waits and has no lock, thread or clock: its owner (worker/session/session.h, or the simulator)
// calls it from one thread at a time.
//
// Rounds of one group run one after the other in the order of issue; groups run side by side, on links of their own.
//
// A group that is removed after it has carried messages departs (worker/rounds/groups.h).
//
// Generations: install() and open() begin one. suspend() ends it for a life that continues with the next plan, and
// keeps its calls. stop() ends it for good. In a new generation the plan's frontier decides how a call gets its result
// (docs/decisions/0006). The result is taken from the log, finished from where it was, or computed.
//
// The engine has the groups (groups.h), whose rounds are group_rounds.h, and gives them the events that are theirs. Its
// reports of itself are in standing.cc, and its waits in waits.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/worker/worker_machine.h"
#include "worker/rounds/call.h"
#include "worker/rounds/closed_rounds.h"
#include "worker/rounds/groups.h"
#include "worker/rounds/next_round.h"
#include "worker/rounds/recall.h"
#include "worker/rounds/round_board.h"
#include "worker/rounds/rounds_plan.h"
#include "worker/rounds/shared_by_groups.h"
#include "worker/rounds/trace.h"
#include "worker/schedule/costs.h"
#include "worker/transport/round_transport.h"

namespace warren::worker {

class Engine {
 public:
  using Plan = RoundsPlan;
  using Frontier = Plan::Frontier;
  using Setup = Plan::Setup;
  using Kept = Plan::Kept;
  using RingOrder = Plan::RingOrder;

  using Failure = Trouble::Failure;
  using Gap = Trouble::Gap;
  using Channels = Groups::Channels;

  Engine(RoundTransport& transport, RoundBoard& board) : shared_(transport, board) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Results are logged and recalled here. Before install(); without it, nothing is (replicas 0).
  void use(Recall& recall) {
    shared_.recall = &recall;
    shared_.board.log = &recall.log();
  }

  // Where combining steps are carried out that read memory of GPUs; outlives this. Before the first call; without it,
  // nothing is lent there, and peers must not.
  void use(GpuWork& gpu_work) { shared_.gpu_work = &gpu_work; }
  // Work that was begun there is under way. The thread that drives this moves it on, outside the lock.
  [[nodiscard]] bool has_gpu_work() const { return shared_.gpu_work != nullptr && shared_.gpu_work->busy(); }
  // Goes on with what is done there; true if there was something.
  bool take_done_gpu_work();

  // Moves messages of the world's large allreduces from GPU to GPU; outlives this. Before the first plan, on all ranks
  // or on none.
  void use(GpuExchange& exchange) { shared_.exchange = &exchange; }
  // A turn of an exchange is under way.
  [[nodiscard]] bool has_exchange_under_way() const { return shared_.exchange != nullptr && shared_.exchange->busy(); }
  bool take_done_exchanged();

  // Hears of calls and rounds; outlives this. Before the first call.
  void use(Trace& trace) {
    shared_.trace = &trace;
    shared_.calls.use(trace);
  }

  // Costs decide which algorithm is chosen where nobody names one. They are equal on all ranks and in all lives. Before
  // the first call.
  void use(schedule::Costs costs) { shared_.costs = std::move(costs); }

  // A plan is there: the first, or the next one after suspend(). The world group exists from the first on. Nothing
  // moves before open().
  void install(const Plan& plan);
  void open();
  // The generation is over and another will follow. Closes the transport, publishes what is final in the outputs of
  // calls under way, and keeps all calls. Says how far this life is; again, the same.
  [[nodiscard]] WorkerMachine::Standing suspend();
  // How far this life is.
  [[nodiscard]] WorkerMachine::Standing standing() const;
  // Rounds that it has completed; nullopt: it has not made the group, or not begun the version.
  [[nodiscard]] std::optional<std::uint64_t> rounds_done(GroupId group, Version version) const;
  // A result that the owner wants from the log, and how that ended.
  [[nodiscard]] std::uint64_t fetch(Replayer::Want want);
  [[nodiscard]] std::optional<Replayer::Done> take_recalled(std::uint64_t id);
  void cancel(std::uint64_t id);
  // Takes what the log has given since the last look; true if something came. Part of progress().
  bool drain_recalls();
  // The round that the group's next call will be.
  [[nodiscard]] RoundId next_round(GroupId group) const;
  // Which round of this version the world's next one is, as far as others know: for a process that is new in its
  // version and meets a call that it might make alone (docs/decisions/0010). No call of the world is outstanding. Then
  // take_answer(): whether that round was, or is being, called from one of these sites; true too where nobody knows,
  // since all other ranks ask the same for the same call.
  void ask_next(std::vector<std::uint64_t> sites);
  [[nodiscard]] bool asking() const { return next_round_.question() != nullptr; }
  [[nodiscard]] std::optional<bool> take_answer() { return next_round_.take_answer(); }
  // The answer of this life when another one asks.
  [[nodiscard]] Inquiry::Answer say(const RoundId& round, std::span<const std::uint64_t> sites) const;
  // The program has called finalize.
  void end_rounds() { rounds_over_ = true; }
  // A call whose prepare function is to be called now, outside the owner's lock: it may take as long as it likes. Then
  // prepared(). null: none.
  [[nodiscard]] Call* take_prepare() { return shared_.calls.take_prepare(); }
  void prepared(Call& call);
  // A call whose round is over, and whose results are to be brought back now (Call::buffers), outside the owner's lock.
  // It is outstanding until delivered(). null: none.
  [[nodiscard]] Call* take_delivery() { return shared_.calls.take_delivery(); }
  void delivered(Call& call, const Status& status) { shared_.calls.finish(call, status); }
  // A call whose buffers are to be moved now (BufferStream::move), outside the owner's lock, in one thread; then
  // moved(), with a failure after stop(). Those that move are given in turn, after stop() too: until then they are
  // outstanding. null: none.
  [[nodiscard]] Call* take_moving() { return shared_.calls.take_moving(); }
  void moved(Call& call, const Status& status);
  [[nodiscard]] bool has_moving() const { return !shared_.calls.moving().empty(); }
  // take_prepare(), take_delivery() or take_moving() has one.
  [[nodiscard]] bool has_work_outside() const { return shared_.calls.has_work_outside(); }
  // A round of the log that is missing; taken once by the owner, who reports it.
  [[nodiscard]] std::optional<Gap> take_gap() { return shared_.trouble.take_gap(); }

  // Versions. No call is outstanding when one begins. kDesync: other ranks have done more rounds in the one that ends.
  [[nodiscard]] Version version() const { return shared_.version; }
  [[nodiscard]] Timeline timeline() const { return shared_.plan.timeline; }
  // Results of older timelines are obsolete.
  [[nodiscard]] Timeline oldest_timeline() const { return shared_.known.oldest_timeline(); }
  [[nodiscard]] Status begin_version(Version version);
  // How many groups this rank is in, the world's among them.
  [[nodiscard]] std::size_t groups() const { return groups_.present().size(); }
  // A report can hold how many rounds each group has done, with one version more.
  [[nodiscard]] bool has_room_for_version() const;
  // Rounds done in `version`, closed, by group.
  [[nodiscard]] std::vector<wire::Position> positions_of(Version version) const {
    return closed_.positions_of(version);
  }
  // Set-up rounds that this life has completed, by (group, name).
  [[nodiscard]] std::vector<wire::Setup> setups_done() const { return shared_.known.setups_done(); }
  // The plan or this life knows a set-up round of this name.
  [[nodiscard]] bool setup_known(GroupId group, Sequence name) const { return shared_.known.knows_setup(group, name); }
  // Whether this life has something under way for which the log has to keep this record.
  [[nodiscard]] bool needs(const RecordKey& record) const;
  // Set-up rounds that the log keeps, as far as this life and the plan know.
  [[nodiscard]] SetupsInUse setups_in_use() const { return shared_.known.setups_in_use(); }
  // Rounds of versions below are obsolete.
  void committed(Version version);
  [[nodiscard]] const Plan& plan() const { return shared_.plan; }
  // A group of ranks of the job, in group-rank order, this one among them. All members call it at the same point of
  // their order of issue and have agreed on its channel: one that none of them uses. Links belong to channels, so that
  // a program may make and destroy groups for ever. kExhausted: limits::kMaxGroups. kInvalidArgument: the group exists.
  Status add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel);
  static constexpr std::uint32_t kMeetingChannel = Groups::kMeetingChannel;
  // The members of a group on the meeting channel have agreed. It has made collectives alone, and none is outstanding.
  void move_group(GroupId id, std::uint32_t channel);
  // Those in use here, also by groups that have departed.
  [[nodiscard]] Channels used_channels() const { return groups_.used_channels(); }
  [[nodiscard]] static std::optional<std::uint32_t> free_channel(const Channels& used) {
    return Groups::free_channel(used);
  }
  void remove_group(GroupId id);
  [[nodiscard]] bool has_group(GroupId id) const { return groups_.find(id) != nullptr; }
  // No call of the group is outstanding.
  [[nodiscard]] bool idle(GroupId id) const;
  // Messages move, or may at any moment, for which no call waits: what was sent and has not left, or what another
  // rank's new life may ask for.
  [[nodiscard]] bool unsettled() const { return groups_.unsettled(); }

  // Queues a call whose spec has passed validate(). `call` stays where it is until call.finished. kExhausted: too many
  // outstanding, or set-up rounds; otherwise the status of the job if it is not well.
  //
  // A set-up round (call.setup) takes no number of its version. Once it is done, whoever calls it again, in this life
  // or another, gets its result from the log. Without a log it is a round like any other.
  Status submit(GroupId group, Call& call);

  // A blocking call of this spec, which has passed validate() and has no prepare function, no wire type, no name and no
  // buffers of its own: carries out its round here, without a Call, if the group has run one that asked for the same
  // and nothing else is under way. A small message is carried out here, too. A frame that has not come is looked for at
  // most `looks` times more.
  //
  // True: the round is over, and well. False: submit() the call before anything else; what has been done of its round
  // is gone on with.
  [[nodiscard]] bool run_at_once(GroupId group, const CallSpec& spec, int looks);

  // Ends a call that was not submitted, as others end.
  void end_unsent(const std::shared_ptr<Call>& call, const Status& status) { shared_.calls.end_unsent(call, status); }

  // Moves what can be moved; true if a completion was handled. Afterwards finished_calls() may have something.
  bool progress();
  // Calls that have finished since the last look, for callbacks. The owner clears it.
  [[nodiscard]] std::vector<std::shared_ptr<Call>>& finished_calls() { return shared_.calls.finished(); }

  // The generation is over: closes the transport, fails every outstanding call and all later ones with `why`. A call
  // that had failed by itself keeps its own reason, with `why` before it.
  void stop(const Status& why);
  [[nodiscard]] bool stopped() const { return !broken_.ok(); }

  // Taken once by the owner.
  [[nodiscard]] std::optional<Failure> take_failure() { return shared_.trouble.take_failure(); }
  // take_gap() or take_failure() has one.
  [[nodiscard]] bool has_trouble() const { return shared_.trouble.has_gap() || shared_.trouble.failure() != nullptr; }

  [[nodiscard]] std::size_t outstanding() const { return shared_.calls.count(); }
  // Before the owner sleeps, or looks at what is waited for: what was not posted so far is.
  // True: it was something, and may have come already.
  bool post_all();
  [[nodiscard]] bool has_unposted() const { return shared_.light != nullptr; }
  // Writes to the board whom the rounds under way wait for. For the owner's slow path, before it sleeps.
  void publish_waits();
  // All calls under way, if none of them can go on before another rank begins something: nothing of them is on its way,
  // and nothing is to be done here. Says nothing of the program, and leaves the time open. Nothing: one may go on.
  [[nodiscard]] std::optional<wire::Blocked> blocked() const;
  // Ends sends that wait for their receives, in all groups (PointChannels::end_waiting_sends). Their calls are among
  // finished_calls(). The ranks that they go to.
  [[nodiscard]] std::vector<Rank> end_waiting_sends();
  // "rank 0 waits for rank 3 in round 0.17: allreduce(…)", one entry a round under way, and one for what is replayed:
  // "rank 0 replays round 3.17 from rank 2".
  [[nodiscard]] std::vector<std::string> describe_waits() const;

 private:
  [[nodiscard]] bool run_point_at_once(Group& group, const CallSpec& spec, int looks);
  [[nodiscard]] Status submit_point(Group& group, Call& call);
  void check(Group& group);
  void close(const Group& group);
  bool settle_published();
  void recalled(Replayer::Done done);
  void begin_question();
  void look_at_question();
  [[nodiscard]] wire::Logged logged_further(const WorkerMachine::Standing& standing) const;
  void add_setups_in_flight(std::vector<wire::Setup>& setups) const;
  [[nodiscard]] wire::Position position_of(const Group& group, bool own) const;
  void add_destroyed(wire::Blocked& blocked) const;

  SharedByGroups shared_;
  Groups groups_{shared_};
  bool installed_ = false;
  ClosedRounds closed_;
  std::map<std::uint64_t, std::optional<Replayer::Done>> wanted_;  // by the owner
  NextRound next_round_;
  bool rounds_over_ = false;
  std::vector<Completion> completions_;
  Status broken_;  // set by stop()
};

}  // namespace warren::worker
