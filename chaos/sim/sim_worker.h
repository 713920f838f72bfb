// One life of a worker in virtual time: the machine, the engine, the executors and the schedules that run in
// production, a shell that carries out effects as worker/session/control.cc and worker/session/data_path.cc do, and a
// program that makes calls.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "chaos/sim/hosts.h"
#include "chaos/sim/judge.h"
#include "chaos/sim/kill_point.h"
#include "chaos/sim/program.h"
#include "chaos/sim/sim_gpu.h"
#include "chaos/sim/sim_mirror.h"
#include "chaos/sim/sim_transport.h"
#include "chaos/sim/world.h"
#include "recovery/worker/worker_machine.h"
#include "storage/fake_result_store.h"
#include "storage/segment.h"
#include "worker/life/life.h"
#include "worker/replay/done_reader.h"
#include "worker/rounds/progress.h"

namespace warren::chaos {

class SimWorker final : private SimTransport::Owner {
 public:
  // kBeginsAgain: the process goes on, and begins another life as a spare.
  enum class End : std::uint8_t { kFinished, kFailed, kDied, kBeginsAgain };
  struct Links {
    std::function<void(std::string bytes)> send;  // to the tracker
    std::function<void(End, const Status& why)> ended;
    std::function<void(const worker::Replayer::Send&)> fetch;  // to the rank's fetch service
    std::function<SimWorker*(Incarnation)> mate;
    // It passes a place where it may be killed; true: it dies here, by whatever the owner does afterwards.
    std::function<bool(KillPoint, std::uint64_t passage)> killed_at;
    std::function<void()> doomed;    // carries the killing out
    std::function<void()> recovers;  // it has been suspended, or begins to replay
    std::function<void()> serves;    // it has left its rank, and serves what its host has logged
  };
  struct Options {
    std::size_t life = 0;  // its number in the run
    std::string job;
    wire::Join join;
    std::int64_t join_timeout_ms = 0;
    std::size_t log_bytes = 0;
    bool ends_process = true;  // as on_rollback=exit, which is the default; else the program hears why
    bool launcher_keeps_log = true;
    bool follows = false;                           // as a spare it holds the newest checkpoint
    std::shared_ptr<storage::FakeResultDisk> disk;  // of its host; null: there is none
    bool disk_takes_states_alone = false;           // it has no room for results
    SimMirror* mirror = nullptr;                    // of the job, where it has disks
    bool has_gpu = false, gpu_stalls = false;
    SimNccl* nccl = nullptr;  // of the job, where there are GPUs and it moves bytes among them
    bool nccl_fails = false;
  };
  SimWorker(World& world, Judge& judge, DataNetwork& network, Hosts& hosts, const Program& program, Links links,
            Options options);
  ~SimWorker() override;
  SimWorker(const SimWorker&) = delete;
  SimWorker& operator=(const SimWorker&) = delete;

  void start();
  void receive(const std::string& bytes);
  void connection_trouble(const std::string& what);
  // What its fetch service answers, as worker/replay/fetch_service does.
  [[nodiscard]] wire::FetchReply serve(const wire::FetchRequest& request);
  void fetched(Rank from, const wire::FetchReply& reply);
  // Faults of its process.
  void die(bool silently);
  void stand_still(Micros for_us);
  void give_up();
  // Its place is needed elsewhere. `serves`: nobody keeps its log when it goes, and it may stay until then.
  void drain(Micros within_us, bool serves);

  [[nodiscard]] bool alive() const { return alive_; }
  // Its launcher outlives it, with its log.
  [[nodiscard]] bool kept() const { return options_.launcher_keeps_log; }
  // It is up, and waits for the tracker or another rank.
  [[nodiscard]] bool waits() const;
  [[nodiscard]] Incarnation self() const { return self_; }
  [[nodiscard]] const std::string& worker_id() const { return options_.join.worker_id(); }
  [[nodiscard]] const std::string& domain() const { return options_.join.domain_id(); }
  [[nodiscard]] std::uint32_t attempt() const { return options_.join.attempt(); }
  [[nodiscard]] bool runs() const { return alive_ && opened_ && !stopped_; }
  [[nodiscard]] bool has_loaded() const { return life_.engine().version() != kPreamble || !program_.loads(); }
  [[nodiscard]] const std::string& host() const { return options_.join.host_id(); }
  [[nodiscard]] std::uint64_t passages(KillPoint point) const { return passages_[static_cast<std::size_t>(point)]; }
  [[nodiscard]] std::span<const std::uint64_t> transition_counts() const { return machine_.transition_counts(); }
  [[nodiscard]] std::string describe() const;

  // Facts that messages of this life speak of; each stays true once it is.
  [[nodiscard]] bool desynced() const { return desynced_; }
  [[nodiscard]] bool installed() const { return installed_; }
  [[nodiscard]] bool data_path_stopped() const { return stopped_; }
  [[nodiscard]] bool program_done() const { return program_done_ || desynced_; }
  [[nodiscard]] bool was_member_of(Generation generation) const { return generations_.contains(generation); }
  [[nodiscard]] std::uint64_t rounds_finished() const { return board_.rounds_finished.load(); }
  [[nodiscard]] std::uint64_t inputs_lent() const { return board_.inputs_lent; }
  [[nodiscard]] std::uint64_t finals_from_gpus() const { return board_.finals_from_gpus; }
  [[nodiscard]] std::uint64_t inputs_came_home() const { return gpu_ ? gpu_->came_home : 0; }
  [[nodiscard]] std::uint64_t finals_fell() const { return gpu_ ? gpu_->fell : 0; }
  [[nodiscard]] std::uint64_t partials_taken_up() const { return gpu_ ? gpu_->taken_up : 0; }
  [[nodiscard]] std::uint64_t inputs_sent_on() const { return gpu_ ? gpu_->sent_on : 0; }
  [[nodiscard]] std::uint64_t inputs_copied() const { return gpu_ ? gpu_->copied : 0; }
  [[nodiscard]] std::uint64_t finals_handed_on() const { return gpu_ ? gpu_->handed_on : 0; }
  [[nodiscard]] bool ended_by_itself() const { return !ended_.ok(); }
  // Rounds that its GPU had a part in from the first turn to the last.
  [[nodiscard]] std::uint64_t rounds_exchanged() const { return exchange_ ? exchange_->rounds_proved() : 0; }

  [[nodiscard]] Rank rank() const { return rank_; }
  [[nodiscard]] Generation generation() const { return plan_generation_; }
  [[nodiscard]] const worker::Engine& engine() const { return life_.engine(); }
  // All that it has published is durable.
  [[nodiscard]] bool disk_is_current() const;
  [[nodiscard]] HostLogReader* log() { return life_.logs() ? &life_.recall().reader() : nullptr; }
  [[nodiscard]] Micros stands_still_until() const { return stands_still_until_us_; }
  // It has stopped for an interrupt, and waits for a plan.
  [[nodiscard]] bool suspended() const {
    return alive_ && installed_ && stopped_ && !serving_ && !life_.engine().stopped();
  }
  // It has left its rank.
  [[nodiscard]] bool serving() const { return serving_; }
  // It would tell a tracker whose journal was lost what it knows, or waits to join.
  [[nodiscard]] bool can_tell() const;
  // The newest version that it was told is committed; none: version 0.
  [[nodiscard]] const worker_effect::Committed& committed() const { return committed_; }
  // Of the newest plan that it was told, or has not read yet.
  [[nodiscard]] Generation told_generation() const { return told_generation_; }
  // Of the newest commit, likewise.
  [[nodiscard]] Version told_commit() const { return told_commit_; }
  // What its plan says that the job has done, and this life has not.
  [[nodiscard]] bool behind() const;

 private:
  struct ActiveCall {
    ProgramStep step;
    std::int32_t place = 0;
    bool altered = false;          // a desync on purpose: nobody knows what it must give
    std::vector<std::byte> input;  // what a prepare function writes
    std::size_t input_at = 0;
    int prepared = 0;
    bool to_be_run = false;  // in some generation it was no replay
    std::vector<std::uint64_t> memory;
    std::vector<std::byte> shadow;  // Mutant::works_in_place: read in the input's place
    std::vector<std::byte> before;  // the memory when the call was made
    // Of one whose memory lies on the GPU: where the engine finds it.
    std::shared_ptr<std::vector<std::uint64_t>> host;
    std::size_t in_at = 0, in_bytes = 0;  // as the call is told; of a broadcast nothing
    std::size_t out_at = 0, out_bytes = 0;
    std::shared_ptr<worker::Call> call;
    bool reaped = false;
    std::vector<std::byte> after;  // the memory when the call returned
    [[nodiscard]] std::span<std::byte> bytes() { return std::as_writable_bytes(std::span(memory)); }
  };

  // SimTransport::Owner
  void data_moved() override;
  [[nodiscard]] bool dies_at_completion() override { return passes(KillPoint::kCompletion); }
  [[nodiscard]] bool dies_at_send() override;
  [[nodiscard]] std::shared_ptr<const SegmentView> log_of(Rank rank) override;
  [[nodiscard]] SimShares* shares() override { return shares_ ? &*shares_ : nullptr; }
  void link_closed(Rank peer, const std::string& evidence) override;
  void process_gone(Rank peer) override;
  [[nodiscard]] Micros stands_still_until_us() const override { return stands_still_until_us_; }

  void later(Micros delay_us, std::function<void()> what);
  void arm();
  void on_timer();
  void set_progress();
  void sample();
  void rest();
  void show_blocked();
  void spin();
  void run_effects(std::vector<WorkerEffect> effects);
  void carry_out(const WorkerEffect& effect, bool last, std::vector<WorkerEffect>& more);
  void post(std::function<void(std::vector<WorkerEffect>&)> command);
  void install(const wire::Plan& plan);
  void mutate(worker::Engine::Plan& plan);
  void mix_attempts(Timeline before, Timeline now);
  void follow(const worker_effect::Follow& what);
  void look(const worker_effect::Called& call);
  void serve(const wire::Plan& plan);
  void show_segment();
  void give_segment();
  // As worker/transport/connector.h: where no link tells.
  void look_for_mates(std::shared_ptr<std::set<Rank>> waiting, Micros until_us);
  void look_for_linked(std::set<Rank> peers, Micros until_us);
  void map_segment(Incarnation life, const std::shared_ptr<SegmentMemory>& memory);
  void open();
  WorkerMachine::Standing stop_data_path(const worker_effect::StopDataPath& what);
  void fail(const worker_effect::Fail& what);
  void look_at_checkpoints();
  void carry_out_life();
  void carry_out(const worker::LifeEffect& effect);
  void tell(const worker::MachineEvent& event);
  void make_durable(const WorkerMachine::Vote& vote);
  void look_at_segments();
  void say(const WorkerMachine::Vote& vote);
  [[nodiscard]] std::unique_ptr<HostLogReader> reader(const HostLog& log) const;
  void leave_to_later_lives(const wire::Plan& plan);
  void write_behind();
  void write_to_disk();
  Result<std::vector<ExtentUse>> spill();
  void close_disk();
  void mirror(const worker::life_effect::CopyToMirror& what);
  void read_mirror(const worker_effect::Loaded& what);
  [[nodiscard]] bool passes(KillPoint point);
  [[nodiscard]] std::uint64_t frontier_rounds(GroupId group, Version version) const;
  // Its result comes from there, as far as the plan and this life know.
  [[nodiscard]] bool in_log(const RoundId& round) const;
  [[nodiscard]] bool give_state();
  void vote_early(wire::StateDigest state);
  void bring_part();

  void pump();
  bool prepare();
  bool move_on_gpu();
  void gpu_fails(const Status& why);
  void end_prepares();
  void report_failure();
  void watch_waits();
  void advance();
  void run_program();
  void begin_program_version(Version version);
  [[nodiscard]] bool load();
  void begin_from(const worker::Checkpoints::State& state);
  [[nodiscard]] bool checkpoint(const ProgramStep& step);
  [[nodiscard]] std::optional<Status> take_logged(const ProgramStep& step);
  [[nodiscard]] Status take_state(const ProgramStep& step, const std::vector<std::byte>& global,
                                  const std::vector<std::byte>* local, const worker::StateHashes& agreed);
  [[nodiscard]] Status take_on_gpu(const std::vector<std::byte>& global, const std::vector<std::byte>* local);
  [[nodiscard]] bool make_groups(std::size_t position);
  [[nodiscard]] bool split(std::size_t first);
  [[nodiscard]] bool meet(std::size_t g);
  [[nodiscard]] std::optional<std::uint32_t> agree_on_channel(GroupId among);
  [[nodiscard]] bool remove_groups(std::size_t position);
  void settle();
  [[nodiscard]] std::optional<bool> meets(const ProgramStep& step);
  [[nodiscard]] bool make_again();
  void issue(std::size_t position);
  [[nodiscard]] bool waits_in_circle(const ProgramStep& next);
  bool alter(ProgramStep& step);
  void alter(std::vector<std::byte>& state, Random& draws);
  void submit(ProgramStep step, std::int32_t place, bool altered);
  void lay_out(ActiveCall& a, const ProgramStep& step);
  void specify(ActiveCall& a, const ProgramStep& step, const std::vector<std::uint64_t>& sent,
               const std::vector<std::uint64_t>& got);
  static int prepare(void* call);
  [[nodiscard]] bool put_on_gpu(ActiveCall& a, const ProgramStep& step);
  void begin_call(ActiveCall& a, GroupId group, bool on_gpu);
  void reap(ActiveCall& call);
  void leave_by(Micros by_us);
  void look_at_drain();
  void begin_again();
  void leave_place();
  void finalize();
  void say_finalized();
  [[nodiscard]] bool finalizes_early(const ProgramStep& checkpoint);
  void program_fails(const Status& why);
  void exit(End end, const Status& why);
  void check_memory();

  World& world_;
  Judge& judge_;
  const Program& program_;
  Links links_;
  Options options_;
  Incarnation self_;
  std::unique_ptr<storage::FakeResultStore> store_;
  WorkerMachine machine_;
  SimTransport transport_;
  worker::RoundBoard board_;
  Status ended_;                   // this life, by itself
  bool mirror_has_given_ = false;  // the state that it is to start from
  std::optional<SimGpu> gpu_;      // these end after the engine
  std::optional<SimShares> shares_;
  std::optional<SimCombines> combines_;
  std::optional<SimExchange> exchange_;
  worker::Life life_;
  Hosts& hosts_;
  std::shared_ptr<SegmentMemory> segment_;
  std::shared_ptr<SegmentMemory> shown_;  // what others map: the same, but for Mutant::publishes_late
  std::set<storage::KeyBytes> written_;   // to disk, whether it is durable or not
  bool unconfirmed_ = false;
  std::uint64_t mirrored_ = 0;  // counts commits, so that only the newest is written
  std::unique_ptr<HostLogReader> served_;
  std::optional<worker::DoneReader> done_;  // of it, what this life serves once it has left
  std::set<Incarnation> given_to_;          // lives that have mapped this one's segment
  std::set<Incarnation> mapped_;            // whose segments this one has mapped
  std::vector<std::byte> at_death_;         // what stood in the segment when it was killed within a step
  std::uint64_t passages_[kKillPoints] = {};
  bool doomed_ = false;
  std::deque<std::function<void(std::vector<WorkerEffect>&)>> commands_;
  bool opened_ = false, waits_for_commit_ = false, loading_ = false;
  bool alive_ = false, installed_ = false, stopped_ = false, pumping_ = false;
  Micros next_look_at_sends_us_ = 0;
  bool spins_ = false;  // before it posts what its round waits for
  bool serving_ = false;
  bool program_done_ = false, desynced_ = false, leaving_ = false, exiting_ = false, watching_ = false;
  bool begins_again_ = false;  // as a spare, with a new life
  Micros stands_still_until_us_ = 0;
  std::optional<Micros> leave_by_us_;  // it drains
  std::optional<Micros> armed_us_;
  Generation plan_generation_, told_generation_;
  Version told_commit_;
  worker_effect::Committed committed_;
  Timeline timeline_;
  std::vector<Incarnation> present_;         // lives of the plan that are not over, by rank
  std::vector<Incarnation> lives_;           // of the plan, by rank
  std::vector<std::string> hosts_of_ranks_;  // likewise
  std::set<Generation> generations_;
  std::vector<wire::Position> frontier_;
  std::set<std::pair<GroupId, Sequence>> setups_completed_, setups_done_;  // by this life; by the plan
  Rank rank_;
  wire::JobSettings settings_;
  worker::ProgressReporter progress_;

  std::vector<std::size_t> order_;
  std::size_t position_ = 0;
  std::uint64_t world_rounds_ = 0;          // blocking ones that it has come to; counted where the program deadlocks
  std::optional<std::size_t> after_setup_;  // a life that has loaded goes on there once it has set itself up
  Version program_version_;
  bool loaded_ = false;  // a later version than the first
  // Rounds that each process makes once, and the others have made before: this life owes them, and makes them in this
  // version. `again_`: those that come next.
  bool owes_once_rounds_ = false, makes_once_rounds_ = false, asks_ = false;
  std::uint64_t asked_site_ = 0;  // of the newest question
  bool made_recurring_ = false;   // the round that recurs, or was given what it gave
  std::deque<std::size_t> again_;
  std::vector<std::byte> owed_state_;  // of a lazy checkpoint
  struct Part {
    worker::StateKind state;
    std::uint64_t at;
    std::vector<std::byte> bytes;
  };
  std::deque<Part> parts_;  // of one whose states come from a GPU: on their way
  std::vector<bool> group_made_;
  std::shared_ptr<worker::Call> splitting_;
  std::uint64_t used_channels_ = 0, taken_channels_ = 0;
  ProgramState state_, deferred_;
  bool computing_ = false;
  std::vector<std::unique_ptr<ActiveCall>> calls_;
};

}  // namespace warren::chaos
