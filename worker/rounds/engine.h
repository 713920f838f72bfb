// The data path of one worker: groups, calls in order of issue, the executors and point-to-point channels that carry
// them out. It never waits and has no lock, thread or clock: its owner (worker/session/session.h, or the simulator)
// calls it from one thread at a time.
//
// Rounds of one group run one after the other in the order of issue; groups run side by side, on links of their own.
//
// A group that is removed after it has carried messages departs (worker/rounds/point.h): it keeps its channel and its
// slot until its links are clean and no life can ask for its messages.
//
// Generations: install() and open() begin one; suspend() ends it for a life that goes on with the next plan, with its
// calls kept; stop() ends it for good. What a call does in a new generation follows from the plan's frontier
// (docs/decisions/0006): its result is taken from the log, or finished from where it was, or computed.
//
// The groups and their rounds are in engine.cc. What the engine reports of itself is in standing.cc, and what it waits
// for in waits.cc. Two decisions have a source of their own: next_round.cc and exchange_vote.cc.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/limits.h"
#include "recovery/base/result.h"
#include "recovery/worker/worker_machine.h"
#include "worker/rounds/call.h"
#include "worker/rounds/executor.h"
#include "worker/rounds/known_rounds.h"
#include "worker/rounds/light_round.h"
#include "worker/rounds/point.h"
#include "worker/rounds/recall.h"
#include "worker/rounds/round_board.h"
#include "worker/rounds/rounds_plan.h"
#include "worker/rounds/schedule_cache.h"
#include "worker/rounds/trace.h"
#include "worker/schedule/costs.h"
#include "worker/transport/ring_queue.h"
#include "worker/transport/transport.h"

namespace warren::worker {

class Engine {
 public:
  using Plan = RoundsPlan;
  using Frontier = Plan::Frontier;
  using Setup = Plan::Setup;
  using Kept = Plan::Kept;
  using RingOrder = Plan::RingOrder;

  // Why the data path cannot go on by itself; the owner reports it to the tracker, once.
  struct Failure {
    Status status;
    Rank peer = kNoRank;  // the other end, where one link is to blame
    // A function of the program's has failed: this life is over, and nothing moves until the owner has called stop().
    bool by_program = false;
  };

  Engine(Transport& transport, RoundBoard& board) : transport_(transport), board_(board) {}
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Results are logged and recalled here. Before install(); without it, nothing is (replicas 0).
  void use(Recall& recall) {
    recall_ = &recall;
    board_.log = &recall.log();
  }

  // Where combining steps are carried out that read memory of GPUs; outlives this. Before the first call; without it,
  // nothing is lent there, and peers must not.
  void use(GpuWork& gpu_work) { gpu_work_ = &gpu_work; }
  // What was begun there is under way; whoever drives this moves it on, outside the lock.
  [[nodiscard]] bool has_gpu_work() const { return gpu_work_ != nullptr && gpu_work_->busy(); }
  // Goes on with what is done there; true if there was something.
  bool take_done_gpu_work();

  // What moves messages of the world's large allreduces from GPU to GPU; outlives this. Before the first plan, on all
  // ranks or on none.
  void use(GpuExchange& exchange) { exchange_ = &exchange; }
  // As of the other one.
  [[nodiscard]] bool has_exchange_under_way() const { return exchange_ != nullptr && exchange_->busy(); }
  bool take_done_exchanged();

  // Who hears of calls and rounds; outlives this. Before the first call.
  void use(Trace& trace) { trace_ = &trace; }

  // What an algorithm is chosen by where nobody names one; equal on all ranks and in all lives. Before the first call.
  void use(schedule::Costs costs) { costs_ = std::move(costs); }

  // A plan is there: the first, or the next one after suspend(). The world group exists from the first on. Nothing
  // moves before open().
  void install(const Plan& plan);
  void open();
  // The generation is over and another will follow: closes the transport, publishes what is final in the outputs of
  // calls under way, and keeps all calls. Says how far this life is; again, the same.
  [[nodiscard]] WorkerMachine::Standing suspend();
  // How far this life is.
  [[nodiscard]] WorkerMachine::Standing standing() const;
  // Rounds that it has completed; nullopt: it has not made the group, or not begun the version.
  [[nodiscard]] std::optional<std::uint64_t> rounds_done(GroupId group, Version version) const;
  // What the owner wants from the log, and how it ended.
  [[nodiscard]] std::uint64_t fetch(Replayer::Want want);
  [[nodiscard]] std::optional<Replayer::Done> take_recalled(std::uint64_t id);
  void cancel(std::uint64_t id);
  // Takes what the log has given since the last look; true if something came. Part of progress().
  bool drain_recalls();
  // What the group's next call will be.
  [[nodiscard]] RoundId next_round(GroupId group) const;
  // Which round of this version the world's next one is, as far as others know: for a process that is new in its
  // version and meets a call that it might make alone (docs/decisions/0010). No call of the world is outstanding. Then
  // take_answer(): whether that round was, or is being, called from one of these sites; true too where nobody knows,
  // since all other ranks ask the same for the same call.
  void ask_next(std::vector<std::uint64_t> sites);
  [[nodiscard]] bool asking() const { return question_.has_value(); }
  [[nodiscard]] std::optional<bool> take_answer() { return std::exchange(met_, std::nullopt); }
  // What this life says when another one asks.
  [[nodiscard]] Inquiry::Answer say(const RoundId& round, std::span<const std::uint64_t> sites) const;
  // The program has called finalize.
  void end_rounds() { rounds_over_ = true; }
  // A call whose prepare function is to be called now, outside the owner's lock: it may take as long as it likes. Then
  // prepared(). null: none.
  [[nodiscard]] Call* take_prepare();
  void prepared(Call& call);
  // A call whose round is over, and whose results are to be brought back now (Call::buffers), outside the owner's lock.
  // It is outstanding until delivered(). null: none.
  [[nodiscard]] Call* take_delivery();
  void delivered(Call& call, const Status& status) { finish(call, status); }
  // A call whose buffers are to be moved now (BufferStream::move), outside the owner's lock, in one thread; then
  // moved(), with a failure after stop(). Those that move are given in turn, after stop() too: until then they are
  // outstanding. null: none.
  [[nodiscard]] Call* take_moving();
  void moved(Call& call, const Status& status);
  [[nodiscard]] bool has_moving() const { return !moving_.empty(); }
  // take_prepare(), take_delivery() or take_moving() has one.
  [[nodiscard]] bool has_work_outside() const { return !prepares_.empty() || !deliveries_.empty() || !moving_.empty(); }
  // A round of the log that is missing; taken once by the owner, who reports it.
  using Gap = WorkerMachine::Gap;
  [[nodiscard]] std::optional<Gap> take_gap() { return std::exchange(gap_, std::nullopt); }

  // Versions. No call is outstanding when one begins. kDesync: other ranks have done more rounds in the one that ends.
  [[nodiscard]] Version version() const { return version_; }
  [[nodiscard]] Timeline timeline() const { return plan_.timeline; }
  // What older ones have logged is obsolete.
  [[nodiscard]] Timeline oldest_timeline() const { return known_.oldest_timeline(); }
  [[nodiscard]] Status begin_version(Version version);
  // That this rank is in, the world's among them.
  [[nodiscard]] std::size_t groups() const { return groups_.size(); }
  // A report can hold how many rounds each group has done, with one version more.
  [[nodiscard]] bool has_room_for_version() const;
  // Rounds done in `version`, closed, by group.
  [[nodiscard]] std::vector<wire::Position> positions_of(Version version) const;
  // Set-up rounds that this life has completed, by (group, name).
  [[nodiscard]] std::vector<wire::Setup> setups_done() const { return known_.setups_done(); }
  // The plan or this life knows a set-up round of this name.
  [[nodiscard]] bool setup_known(GroupId group, Sequence name) const { return known_.knows_setup(group, name); }
  // Whether this life has something under way for which the log has to keep this record.
  [[nodiscard]] bool needs(const RecordKey& record) const;
  // That the log keeps, as far as this life and the plan know.
  [[nodiscard]] SetupsInUse setups_in_use() const { return known_.setups_in_use(); }
  // Rounds of versions below are obsolete.
  void committed(Version version);
  [[nodiscard]] const Plan& plan() const { return plan_; }
  // A group of ranks of the job, in group-rank order, this one among them. All members call it at the same point of
  // their order of issue and have agreed on its channel: one that none of them uses. Links belong to channels, so that
  // a program may make and destroy groups for ever. kExhausted: limits::kMaxGroups. kInvalidArgument: the group exists.
  Status add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel);
  // The channel of groups whose members are about to agree on one, in their first round, which no other rank hears of.
  // A rank is in one such group at a time: so two of its members meet in the same groups in the same order.
  static constexpr std::uint32_t kMeetingChannel = limits::kMaxGroups;
  // The members of a group on the meeting channel have agreed. It has made collectives alone, and none is outstanding.
  void move_group(GroupId id, std::uint32_t channel);
  // A bit for each channel, set where it is in use here, also by a group that has departed. Channel 0 is the world's.
  using Channels = std::array<std::uint64_t, limits::kMaxGroups / 64>;
  [[nodiscard]] Channels used_channels() const;
  // The first one that has no bit; nothing: all have.
  [[nodiscard]] static std::optional<std::uint32_t> free_channel(const Channels& used);
  void remove_group(GroupId id);
  [[nodiscard]] bool has_group(GroupId id) const { return groups_.contains(id); }
  // No call of the group is outstanding.
  [[nodiscard]] bool idle(GroupId id) const;
  // Messages move, or may at any moment, for which no call waits: what was sent and has not left, or what another
  // rank's new life may ask for.
  [[nodiscard]] bool unsettled() const { return unsettled_groups_ != 0; }

  // Queues a call whose spec has passed validate(). `call` stays where it is until call.finished. kExhausted: too many
  // outstanding, or set-up rounds; otherwise the status of the job if it is not well.
  //
  // A set-up round (call.setup) takes no number of its version. Once it is done, whoever calls it again, in this life
  // or another, gets its result from the log. Without a log it is a round like any other.
  Status submit(GroupId group, Call& call);

  // A blocking call of this spec, which has passed validate() and has no prepare function, no wire type, no name and no
  // buffers of its own: carries out its round here, without a Call, if the group has run one that asked for the same
  // and nothing else is under way. A message that has not come is looked for at most `looks` times more.
  //
  // True: the round is over, and well. False: submit() the call before anything else; what has been done of its round
  // is gone on with.
  [[nodiscard]] bool run_at_once(GroupId group, const CallSpec& spec, int looks);

  // Ends a call that was not submitted, as others end.
  void end_unsent(const std::shared_ptr<Call>& call, const Status& status);

  // Moves what can be moved; true if a completion was handled. Afterwards finished_calls() may have something.
  bool progress();
  // Calls that have finished since the last look, for callbacks. The owner clears it.
  [[nodiscard]] std::vector<std::shared_ptr<Call>>& finished_calls() { return finished_calls_; }

  // The generation is over: closes the transport, fails every outstanding call and all later ones with `why`. A call
  // that had failed by itself keeps its own reason, with `why` before it.
  void stop(const Status& why);
  [[nodiscard]] bool stopped() const { return !broken_.ok(); }

  // Taken once by the owner.
  [[nodiscard]] std::optional<Failure> take_failure();
  // take_gap() or take_failure() has one.
  [[nodiscard]] bool has_trouble() const { return gap_.has_value() || failure_.has_value(); }

  [[nodiscard]] std::size_t outstanding() const { return outstanding_; }
  // Before the owner sleeps, or looks at what is waited for: what was not posted so far is.
  // True: it was something, and may have come already.
  bool post_all();
  [[nodiscard]] bool has_unposted() const { return light_ != nullptr; }
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
  enum class Phase : std::uint8_t { kIdle, kWaits, kAgrees, kPrepares, kRecalls, kRuns, kDone };
  struct Group final : Publisher, Landing {
    Group(Transport& transport, GroupId group_id, std::uint32_t group_channel, std::vector<Rank> ranks,
          std::int32_t self, std::uint32_t slot_index, std::uint64_t chunk_bytes, Recall* logged, Version version,
          RoundBoard& board)
        : id(group_id),
          channel(group_channel),
          members(std::move(ranks)),
          rank(self),
          slot(slot_index),
          executor(transport, GroupId(group_channel), members, slot_index, &board),
          light(transport, executor, GroupId(group_channel), members, slot_index, &board),
          points(transport, group_id, group_channel, members, self, slot_index + 1, chunk_bytes, logged, version,
                 board) {}
    // Publisher: of the round under way.
    [[nodiscard]] Status publish(std::uint64_t first, std::uint64_t count, const std::byte* values,
                                 LogPlace& place) override;
    [[nodiscard]] std::uint64_t newest() const override { return recall->newest(); }
    [[nodiscard]] bool may_be_seen(std::uint64_t number) const override { return recall->may_be_seen(number); }
    [[nodiscard]] std::span<std::byte> room(std::uint64_t count) override;
    void publish_room(std::uint64_t first, std::uint64_t count, LogPlace& place) override;
    // Landing: likewise.
    void landed(std::uint64_t at, std::uint64_t count) override;
    [[nodiscard]] bool bring(std::uint64_t at, std::uint64_t count, const std::shared_ptr<const FinalOnGpu>& from,
                             std::uint64_t number) override;

    GroupId id;
    std::uint32_t channel;
    std::vector<Rank> members;
    std::vector<std::uint32_t> hosts, domains;  // of the members, in this generation
    schedule::Host host;                        // of those of which several members are
    bool read_here = true;                      // others of this host read its log, for all that is known
    std::vector<std::uint32_t> order;           // of the ring in this version; empty: that of the members
    std::int32_t rank;
    std::uint32_t slot;
    Sequence next_sequence;
    std::uint64_t rounds_done = 0;  // of this version
    RingQueue<Call*> queue;
    Call* active = nullptr;
    Phase phase = Phase::kIdle;
    Recall* recall = nullptr;
    std::uint64_t recall_id = 0;  // kRecalls: the want
    bool resumed = false;  // the log has a part of the active call's round; the rest is computed when it has come
    Ranges final;          // that part, in bytes of the whole result: whole pieces
    Ranges have;           // bytes of the whole result that stand final in the active call's output
    Status unlogged;       // why some of them could not be logged
    Scratch kept_input;    // of the active call, where that stays whole until the round is stable
    bool input_kept = false;
    std::vector<InputPiece> pieces;  // of the active call's input, where it is a stream's, in the order of coming
    std::uint64_t awaited = 0;       // resumed: the call returns when this may be seen (Recall::newest)
    bool ran_light = false;          // the active call's round is, or was, carried out by `light` alone
    bool interrupted = false;        // the active call's round was begun in an earlier generation
    // In this generation, of the active call: this rank has asked itself whether GPUs could exchange its round, ranks
    // have agreed on that; they do not, and the input comes from the GPU after all.
    bool asked = false, agreed = false, comes_home = false;
    std::shared_ptr<const PreparedSchedule> exchange_schedule;  // if this rank could
    std::shared_ptr<std::byte> gpu_scratch;                     // likewise
    std::shared_ptr<const PreparedSchedule> words_schedule;     // all ranks tell each other; of this generation
    std::vector<std::byte> words;                               // by rank, and behind them this one's
    bool point_shown = false;                                   // the board shows a receive
    bool departed = false;                                      // removed
    bool unsettled = false;                                     // counted
    Executor executor;
    LightRound light;  // while it runs, the executor does not
    // Of the round that runs: under what its finals are published.
    RecordKey key;
    RecordInfo info;
    std::uint64_t width = 0;
    PointChannels points;
    ScheduleCache schedules;
    // The newest rounds that this life has begun, by number modulo their count: whoever comes new may ask.
    static constexpr std::size_t kNewestRounds = 32;
    struct Begun {
      RoundId round;
      Fingerprint fingerprint;
    };
    std::array<std::optional<Begun>, kNewestRounds> begun;
  };

  // What of an earlier call of the group serves this one too; null: nothing.
  [[nodiscard]] static ScheduleCache::Repeated* repeats(Group& group, const CallSpec& spec, const RoundId& round,
                                                        std::int32_t size);
  // By which `size` ranks of the group make this collective.
  [[nodiscard]] schedule::Algorithm algorithm_for(Group& group, const CallSpec& spec, std::int32_t size);
  [[nodiscard]] static std::int32_t owner_of(const RoundId& round, std::int32_t size);
  void repeat(Group& group, const Call& call, std::int32_t size) const;
  [[nodiscard]] Group* group_of(GroupId id);
  [[nodiscard]] std::uint64_t told_site(std::uint64_t site) const;
  static void publish_as(Group& group, const RoundId& round, const Fingerprint& fingerprint, std::uint64_t width,
                         std::uint64_t total_bytes);
  Result<std::shared_ptr<const PreparedSchedule>> schedule_for(Group& group, const Call& call, bool exchanges = false);
  [[nodiscard]] schedule::Request request_for(const Group& group, const Call& call) const;
  [[nodiscard]] Result<Ranges> whole_pieces(const Group& group, const Call& call, const Ranges& final) const;
  using Known = KnownRounds::Known;
  [[nodiscard]] Status name_setup(const Group& group, Call& call);
  [[nodiscard]] Status submit_point(Group& group, Call& call);
  [[nodiscard]] Status tell_counts(GroupId id, Call& call);
  void hear_counts(Call& call) const;
  [[nodiscard]] wire::Logged logged_further(const WorkerMachine::Standing& standing) const;
  void add_setups_in_flight(std::vector<wire::Setup>& setups) const;
  [[nodiscard]] RoundId round_of(GroupId group, Sequence sequence) const {  // of a round of this version
    return known_.round_of(group, version_, sequence);
  }
  [[nodiscard]] Status log_pieces(Group& group, const Ranges& bytes);
  void place(Group& group);
  // How many members take part, or took, in a round.
  [[nodiscard]] std::int32_t size_of(const Group& group, const RoundId& round) const;
  void reseat(Group& group);
  void rename(Group& group, Call& call);
  void resize(Group& group, Call& call);
  [[nodiscard]] Status keep_input(Group& group);
  static void forget_input(Group& group);
  void recalled(Replayer::Done done);
  void begin(Group& group);
  void take_from_log(Group& group);
  void enter(Group& group, Phase phase);
  [[nodiscard]] bool may_exchange(const Group& group, const Known& known) const;
  [[nodiscard]] bool could_exchange(Group& group);
  [[nodiscard]] bool waits_for_words(Group& group, const Known& known);
  void hear_words(Group& group);
  static void forget_exchange(Group& group);
  [[nodiscard]] bool waits_for_prepare(Group& group, bool runs);
  [[nodiscard]] bool waits_for_input(Group& group, bool begins);
  void order_input(Group& group, BufferStream& stream) const;
  [[nodiscard]] bool may_lend(const Group& group, const std::byte* memory) const;
  void move_on(Call& call);
  void end(Call& call, const Status& status);
  void run(Group& group, std::shared_ptr<const PreparedSchedule> prepared);
  void run_rest(Group& group);
  bool go_light(Group& group);
  void hand_over(Group& group);
  void complete(Group& group);
  [[nodiscard]] wire::Position position_of(const Group& group, bool own) const;
  void remember(const Group& group);
  void start_next(Group& group);
  void conclude(Call& call, const Status& status);
  void finish(Call& call, const Status& status);
  void check(Group& group);
  void settle(Group& group);
  bool settle_published();
  [[nodiscard]] bool describe_blocked(const Group& group, wire::Blocked& blocked) const;
  void add_destroyed(wire::Blocked& blocked) const;
  void begin_question();
  void look_at_question();
  void answered(const Inquiry::Answer& answer);
  void release_departed();
  void insert_group(GroupId id, std::vector<Rank> members, std::uint32_t channel);
  void fail(const Status& status, Rank peer);
  void fail_by_program(const Status& status);

  Transport& transport_;
  RoundBoard& board_;
  Plan plan_;
  KnownRounds known_{plan_};
  schedule::Costs costs_ = schedule::default_costs();
  bool installed_ = false;
  bool open_ = false;  // calls may move
  Recall* recall_ = nullptr;
  GpuWork* gpu_work_ = nullptr;
  GpuExchange* exchange_ = nullptr;
  Trace* trace_ = nullptr;
  Version version_ = kPreamble;
  std::map<std::pair<GroupId, Version>, std::uint64_t> closed_;    // rounds of versions that are over, not yet obsolete
  bool closed_is_complete_ = true;                                 // it has all groups destroyed in this version
  std::map<std::uint64_t, std::optional<Replayer::Done>> wanted_;  // by the owner
  std::optional<Gap> gap_;
  // What ask_next() wants to know.
  struct Question {
    RoundId round;
    std::vector<std::uint64_t> sites;
  };
  std::optional<Question> question_;
  std::optional<bool> met_;
  // What was heard of a round that this life has not begun: what it said then stays true, whoever said it.
  struct Heard {
    RoundId round;
    Inquiry::Answer answer;
  };
  std::optional<Heard> heard_;
  bool rounds_over_ = false;
  std::vector<Call*> prepares_;    // asked for
  std::vector<Call*> deliveries_;  // likewise
  std::vector<Call*> moving_;      // whose buffers move, but for those that were taken
  std::map<GroupId, std::unique_ptr<Group>> groups_, departed_;
  std::size_t unsettled_groups_ = 0;
  Group* light_ = nullptr;       // whose round runs light
  Group* called_ = nullptr;      // the newest call's, while it exists
  std::vector<Group*> by_slot_;  // a group has two slots: rounds, then point-to-point
  std::vector<Completion> completions_;
  std::vector<std::shared_ptr<Call>> finished_calls_;
  std::size_t outstanding_ = 0;
  Status broken_;  // set by stop()
  std::optional<Failure> failure_;
  bool failed_ = false;
};

}  // namespace warren::worker
