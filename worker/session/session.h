// A worker's life in one job: the control thread, the engine under its lock, and the threads that drive it. A blocking
// call drives the engine in the caller's thread; asynchronous calls, and messages whose calls have returned, are driven
// by the engine's thread while nobody blocks.
//
// Its sources: join.cc (the way to the first plan), data_path.cc (what the control thread asks), driving.cc (who drives
// the engine), calls.cc, checkpoint_calls.cc, session.cc (how it begins and ends).
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "worker/device/device_library.h"
#include "worker/device/staging.h"
#include "worker/disk/disk_log.h"
#include "worker/disk/disk_trouble.h"
#include "worker/disk/mirror.h"
#include "worker/disk/sync_gate.h"
#include "worker/launch/joined_mark.h"
#include "worker/life/life.h"
#include "worker/replay/fetch_service.h"
#include "worker/rounds/call.h"
#include "worker/rounds/narrowing.h"
#include "worker/rounds/round_board.h"
#include "worker/session/control.h"
#include "worker/session/deadlines.h"
#include "worker/session/fusion.h"
#include "worker/session/interrupt.h"
#include "worker/session/log.h"
#include "worker/session/log_fill.h"
#include "worker/session/spare_core.h"
#include "worker/session/trace_file.h"
#include "worker/settings/settings.h"
#include "worker/transport/host_memory.h"
#include "worker/transport/link_transport.h"

namespace warren::worker {

class Session final : private DataPath {
 public:
  // Joins the job and waits until its first plan is here: as a spare, until a rank is lost. kFinished: the job has
  // ended, and this worker was not needed; with OnRollback::kExit the process ends instead, with kExitFinished.
  // The last owner may let go of it on any thread, also in a callback: when it has, nothing of the session logs, or
  // calls the program, any more.
  // `interrupt` is asked by threads that wait in calls, and by the one that waits in here.
  static Result<std::shared_ptr<Session>> create(const Settings& settings, const Log& log,
                                                 const Interrupt& interrupt = {});
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Whether the calling thread runs a callback of some session: it must not wait then.
  static bool inside_callback();
  // Likewise of this one, which it must not wait for: it may be what would finish the call.
  [[nodiscard]] bool calls_back_here() const;

  // What the plan says; fixed once create() has returned.
  [[nodiscard]] Rank rank() const { return self_; }
  [[nodiscard]] std::uint32_t world_size() const { return world_size_.load(std::memory_order_relaxed); }
  // By rank, as the newest plan has them.
  [[nodiscard]] std::vector<std::string> hosts();
  [[nodiscard]] const RoundBoard& board() const { return board_; }
  // null: nobody wants it. From any thread.
  [[nodiscard]] TraceFile* trace() { return trace_.get(); }

  // Before run() or submit(), for a validated call: buffers on a GPU get copies that the engine works on, and so do
  // those of a call that has a wire type. Outside of any lock; a send's buffer is read here.
  [[nodiscard]] Status stage(Call& call, const GroupShape& shape);
  // A validated call. Blocks until it has finished and returns its result.
  Status run(GroupId group, Call& call);
  // The same of one that is neither staged nor a set-up round; small ones that repeat others take the shortest way.
  // `contributors`: as Call's.
  Status run(GroupId group, const GroupShape& shape, const CallSpec& spec,
             std::shared_ptr<const std::vector<Rank>>& contributors);
  // A validated call that lives until it has finished (call->self is set here).
  Status submit(GroupId group, const std::shared_ptr<Call>& call);
  // A validated asynchronous call, not staged, that may be put together with those before and after it, of up to so
  // many bytes. What was put together is sent when a call does not fit, before any other call, and when one of it is
  // waited or asked for.
  Status fuse(GroupId group, const GroupShape& shape, const std::shared_ptr<Call>& call, std::uint64_t most_bytes);
  // Sends what was put together.
  void send_fused();
  // Puts asynchronous allreduces of this group together until end_fusion(). kInvalidArgument: another group's are, or
  // mode shrink.
  Status begin_fusion(GroupId group);
  void end_fusion();
  [[nodiscard]] std::uint64_t fusion_bytes() const { return settings_.fusion_bytes; }
  // With how few workers the job goes on; 0: it waits for all.
  [[nodiscard]] std::uint32_t min_workers() const { return settings_.min_workers; }
  // For what mode shrink does not have. kInvalidArgument: this is it.
  [[nodiscard]] Status needs_mode_wait(std::string_view what) const;
  // A call that was submitted is to finish within so long from now; else this life is over, with kTimeout.
  void finish_within(const std::shared_ptr<Call>& call, std::int64_t timeout_ms);
  // Safe beside a thread that is inside another call.
  Status wait(Call& call);
  // Waits for the call for `timeout_ms` at most. Returns whether the call has finished.
  bool wait_for(Call& call, std::int64_t timeout_ms);
  bool test(Call& call);
  // `callback` is called once, outside the lock; at once if the call has finished. wait() and test() see the call as
  // finished only when its callback has returned.
  Status on_complete(Call& call, warren_callback callback, void* context);

  // As in Engine.
  Status add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel);
  Engine::Channels used_channels();
  // A group that its members alone make, this rank among them: in its first round they agree on its channel. `site`:
  // the program's call.
  Status make_group(GroupId id, const std::vector<Rank>& members, std::uint64_t site);
  // Why a group cannot be made where ranks use all channels.
  [[nodiscard]] static Status no_channel();
  // Waits for the group's outstanding calls first.
  void remove_group(GroupId id);

  // Memory that the ranks of this host read where it lies (worker/transport/host_memory.h), until it is freed or the
  // session ends.
  Result<void*> allocate(std::uint64_t bytes);
  // kInvalidArgument: not an address that allocate() has given. No outstanding call uses it.
  Status free(void* memory);

  // What the program starts from. Before the first call of a version; outstanding calls are completed first.
  using State = Checkpoints::State;
  Result<State> load();
  // A state of a checkpoint: its bytes lie in these places, one after the other.
  using Places = std::span<const std::span<const std::byte>>;
  // Completes outstanding calls, takes a snapshot, and returns; waits for the commit of the one before. `local` null:
  // this program has no local state, as in mode shrink. `stream`: the program's, on which states that lie on a GPU are
  // ready.
  Status checkpoint(Places global, const Places* local, void* stream);
  // As checkpoint(), of a global state that the root alone has: `global` is read there alone. Two rounds before it tell
  // all ranks its hashes. `site`: the program's call.
  Status checkpoint_from(std::int32_t root, Places global, const Places* local, void* stream, std::uint64_t site);
  // Copies what load() has given to memory of the program, which may be written to after the work on `stream`.
  Status restore(std::span<const std::span<std::byte>> places, std::span<const std::byte> state, void* stream);
  // As warren_lazy_checkpoint.
  Status lazy_checkpoint(warren_serialize serialize, void* context, void* stream);
  // The program's count of checkpoints; 0 before the first.
  std::uint64_t version();
  // The version of the newest checkpoint that is safe to start from.
  std::uint64_t committed_version();
  // Whether the world's next round was, or is being, called from one of these sites (Engine::ask_next). Waits for
  // outstanding calls, and until somebody can tell.
  Result<bool> meets(std::vector<std::uint64_t> sites);
  // As in Engine.
  bool setup_known(GroupId group, const std::string& name);
  // Names what a group split here is called: the same in each life. What was put together is sent before.
  RoundId next_round(GroupId group);

  // Waits for outstanding calls, then for all ranks to enter.
  Status finalize();
  // This worker's place is needed elsewhere: calls under way are finished, no other begins, and it leaves, at the
  // latest in so long. Its process ends with kExitPreempted; with OnRollback::kError calls fail with kClosed instead.
  void drain(std::int64_t within_ms, const std::string& reason) {
    begin_nothing();
    control_->drain(within_ms, reason);
  }
  // The program gives this life up: every outstanding and later call fails with kClosed and this reason, soon. From any
  // thread, also in a callback.
  void abort(const std::string& reason) { control_->abort(reason); }
  // Every outstanding and later call fails with kClosed; the other ranks hear that this one has gone, unless it has
  // finalized.
  void close();

 private:
  Session(const Settings& settings, const Log& log, const Interrupt& interrupt);
  ~Session() override;
  // For its last owner.
  static void release(Session* session);
  void end();
  [[nodiscard]] bool on_engine_thread() const { return std::this_thread::get_id() == engine_thread_.get_id(); }
  // Shows what the calling thread does, until it has done it.
  class Span;
  // How a life begins: the first one of create(), or one after another that has had no place.
  struct Beginning {
    bool spare = false;
    std::chrono::steady_clock::time_point join_by;
    bool again = false;
    Status why;  // the life before was over, where it was no spare that has looked at something
  };
  // Null: another life is to begin, as `beginning` says now.
  static Result<std::shared_ptr<Session>> join(const Settings& settings, const Log& log, const Interrupt& interrupt,
                                               Beginning& beginning);
  void keep(JoinedMark mark);
  // Waits until the tracker's name resolves, for at most the join timeout.
  [[nodiscard]] Status await_tracker_name() const;
  Status prepare(const Beginning& beginning);
  Status wait_for_plan();
  void look(std::unique_lock<std::mutex>& lock, const worker_effect::Called& call);
  [[nodiscard]] Result<std::optional<wire::Held>> held_on_disk();
  // The same on a host that had no rank when it was called, for the interrupt of this generation.
  [[nodiscard]] Result<std::optional<wire::Held>> held_beside_stale(Generation called);
  // The job is finished: nothing of it is to be found on this host's disk. Outside the lock.
  void finish_disk();

  // From the control thread, by mates of this host (SegmentExchange::Events).
  [[nodiscard]] SegmentExchange::Events mates();
  Status attach(Incarnation life, MappedSegment segment);
  void borrowed(Incarnation life, std::uint32_t memory, MappedSegment segment);
  void returned(Incarnation life, std::uint32_t memory);
  void offered(Incarnation life, std::uint32_t memory, OwnedFd fd, std::uint64_t bytes);
  void lent(Incarnation life, std::uint32_t memory);

  // DataPath, from the control thread, and the effects of the worker's machine that it carries out.
  void install(const wire::Plan& plan, Rank self) override;
  void open(Generation generation) override;
  WorkerMachine::Standing stop(const worker_effect::StopDataPath& what) override;
  void carry_out(const WorkerEffect& effect) override;
  void waits_as_spare(bool looked);
  void follow(const worker_effect::Follow& what);
  void called(const worker_effect::Called& call);
  void loaded(const worker_effect::Loaded& loaded);
  void committed(Version version, Timeline timeline);
  void tracker_away(bool away);
  void failed(const worker_effect::Fail& what);
  void finished();
  void serve(const wire::Plan& plan);
  void mapped() override;
  std::optional<TimeMs> tick() override;
  std::optional<TimeMs> tick_of_log();
  void end_overdue(const Deadlines::Deadline& over);
  bool may_hang() const override { return moves_exchanged_; }
  bool adopt(Generation generation, GroupId group, Rank peer, std::uint16_t stream, int fd,
             std::unique_ptr<HostPipe> pipe) override;
  void link_failed(GroupId group, Rank peer, const Status& why) override;
  void aborted(const std::string& reason) override;
  void begin_nothing() override;
  bool may_leave(bool at_once) override;
  bool leave(bool at_once, int exit_code, const std::function<void()>& say) override;

  using Clock = std::chrono::steady_clock;
  // Drives the engine until `done`, which holds at the latest at `until`.
  template <class Done>
  void drive(std::unique_lock<std::mutex>& lock, Done done, Clock::time_point until = Clock::time_point::max());
  // Waits for what other threads do.
  template <class Done>
  void await(std::unique_lock<std::mutex>& lock, Done done);
  // Asks the program, outside the lock, whether the calling thread is to go on waiting. kClosed: it is not.
  [[nodiscard]] Status ask() const;
  // Asks the program, with the lock released meanwhile. If the thread is not to go on waiting, this life is over.
  void ask(std::unique_lock<std::mutex>& lock);
  void ask_while_driving(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] int sleep_ms(Clock::time_point until) const;
  void yield_to_control(std::unique_lock<std::mutex>& lock);
  bool look_whether_blocked(std::unique_lock<std::mutex>& lock);
  bool end_waiting_sends(std::unique_lock<std::mutex>& lock);
  void show_unblocked();
  void sleep(std::unique_lock<std::mutex>& lock, int wake_fd, int timeout_ms, bool watch_links);
  void stay_out(std::unique_lock<std::mutex>& lock);
  bool work_outside(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool way_is_clear() const;
  Status clear_way(std::unique_lock<std::mutex>& lock, GroupId group, const Call& call);
  Status drive_through(std::unique_lock<std::mutex>& lock, GroupId group, Call& call);
  Status run_by_call(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape, const CallSpec& spec,
                     bool clear, std::shared_ptr<const std::vector<Rank>>& contributors);
  Status submit(std::unique_lock<std::mutex>& lock, GroupId group, const std::shared_ptr<Call>& call);
  void send_batch(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Status may_call(GroupId group, const Call& call) const;
  bool prepare(std::unique_lock<std::mutex>& lock);
  bool deliver(std::unique_lock<std::mutex>& lock);
  bool move(std::unique_lock<std::mutex>& lock);
  void end_moves(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] std::string describe(const Call& call) const;
  void end_life(const Status& why, Blame blame = Blame::kNobody);
  void abandon_call(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Result<Staging::Copy> read_state(std::span<const std::byte> state, void* stream);
  // A state that can be read on the CPU.
  struct Readable {
    Staging::Copy copy;                          // of the only place, if it is not there
    std::vector<std::vector<std::byte>> copies;  // of several places, those that are not there
    PlacedState state;
  };
  [[nodiscard]] Result<Readable> read_places(Places places, void* stream);
  // The engine has work that goes on by itself, whether or not anybody waits for it.
  [[nodiscard]] bool has_to_go_on() const;
  // A GPU has mapped memory of ranks of this host that have gone.
  [[nodiscard]] bool has_gone_shares() const { return staging_ != nullptr && staging_->shares().has_gone(); }
  bool move_gpu_work(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Status stage_on_gpu(Call& call, const GroupShape& shape);
  // NCCL is to move what GPUs exchange. Returns its version.
  [[nodiscard]] Result<std::uint32_t> use_nccl(const DeviceLibrary& device);
  bool move_exchanged(std::unique_lock<std::mutex>& lock);
  void look_at_exchange();
  void tell_of_shares();
  bool move_states(std::unique_lock<std::mutex>& lock);
  // States are on their way to the log.
  [[nodiscard]] bool states_move() const { return coming_ && coming_->failure.ok(); }
  [[nodiscard]] Status judge(const Status& status);
  void report_failure();
  [[nodiscard]] Status end_calls(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Status await_commit(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Status checkpoint_on_gpu(std::unique_lock<std::mutex>& lock, Places global, const Places* local,
                                         void* stream);
  [[nodiscard]] Result<StateHashes> share_hashes(std::int32_t root, const PlacedState* state, std::uint64_t site);
  [[nodiscard]] Status broadcast_words(std::int32_t root, std::span<std::uint64_t> words, std::uint64_t site);
  [[nodiscard]] StateHashes hash_unlogged(std::unique_lock<std::mutex>& lock, const PlacedState& state);
  [[nodiscard]] Status give_state(std::unique_lock<std::mutex>& lock);
  void look_at_taken(const Status& status);
  Status start_log();
  void leave_to_later_lives(const wire::Plan& plan);
  void read_mirror(std::unique_lock<std::mutex>& lock, const worker_effect::Loaded& what);
  void fetched(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads);
  void look_at_checkpoints();
  // Carries out the effects of the life. Any thread that holds the lock may.
  void carry_out();
  void make_durable(const WorkerMachine::Vote& vote);
  void say(const WorkerMachine::Vote& vote);
  void copy_to_mirror(const life_effect::CopyToMirror& what);
  void life_has_ended(const life_effect::End& what);
  void join_again(const Status& why);
  [[noreturn]] void end_process(const Status& why, int exit_code);
  [[nodiscard]] Engine& engine() { return life_.engine(); }
  [[nodiscard]] const Engine& engine() const { return life_.engine(); }
  [[nodiscard]] Status gone() const;
  // Whoever drives a call holds the lock, or sleeps in it; who has left its last one does neither.
  [[nodiscard]] bool is_idle(const std::unique_lock<std::mutex>& lock) const;
  static TimeMs now();
  void say_half_full();
  void say_given_up();
  void log_waits(std::chrono::steady_clock::time_point& next);
  [[nodiscard]] std::string describe_commit_wait() const;
  void call_back(Call& call) const;
  void run_callbacks(std::unique_lock<std::mutex>& lock);
  void engine_loop();
  void hand_over();
  static void wake(int fd);
  std::unique_lock<std::mutex> lock_for_control();
  std::unique_lock<std::mutex> lock_before_callers();

  const Settings settings_;
  const Log log_;
  const Interrupt interrupt_;
  RoundBoard board_;
  Batch batch_;                               // under the lock
  bool sends_batch_ = false;                  // likewise: a thread is sending one, also while it has let go of the lock
  std::optional<GroupId> fusing_;             // whose calls are put together
  std::unique_ptr<TraceFile> trace_;          // outlives the engine
  bool recovers_ = false;                     // the timeline shows a recovery
  std::atomic<bool> drains_{false};           // no call begins any more
  Rank self_;                                 // not written to once create() has returned
  std::atomic<std::uint32_t> world_size_{0};  // of any thread
  std::vector<std::string> host_of_;
  std::vector<Incarnation> lives_;    // by rank, of the newest plan; under the lock
  std::unique_ptr<Staging> staging_;  // null: no GPU is served. Outlives the calls in the engine
  const std::shared_ptr<CopyMemory> copy_memory_ = std::make_shared<CopyMemory>();

  std::mutex mutex_;  // guards everything below
  std::condition_variable changed_;
  HostMemory memory_;
  LinkTransport transport_;
  Life life_;
  Incarnation incarnation_;  // of it
  std::shared_ptr<MemfdSegment> segment_;
  DiskTrouble disk_trouble_;
  std::unique_ptr<DiskLog> disk_;      // its thread ends before control_
  bool votes_from_disk_ = false;       // it has, or had, one
  std::optional<SyncGate> sync_gate_;  // of disk_'s writer
  std::unique_ptr<Mirror> mirror_;
  bool spare_ = false;         // it began as one, or has been told to wait
  bool begins_again_ = false;  // this life comes after another one of the same create()
  bool begin_again_ = false;   // another one is to come after it, with what it has mapped unmapped
  Status over_;                // why, unless it is to wait as a spare
  bool mapped_ = false;
  std::optional<worker_effect::Called> called_;
  warren_serialize serialize_ = nullptr;  // the state of a lazy checkpoint, which is owed
  void* serialize_context_ = nullptr;
  void* serialize_stream_ = nullptr;
  // The states of the pending checkpoint, until they are logged.
  struct Coming {
    explicit Coming(std::unique_ptr<Snapshot> taken) : snapshot(std::move(taken)) {}
    std::unique_ptr<Snapshot> snapshot;
    bool moves = false;  // a thread is at it, outside the lock
    Status failure;      // that the log has no room for them, for the program's next call
  };
  std::optional<Coming> coming_;
  bool moves_gpu_work_ = false;                // a thread is at what GPUs combine, outside the lock
  std::atomic<bool> moves_exchanged_ = false;  // likewise, at what they exchange; changes under the lock
  std::optional<TimeMs> hangs_since_;          // that thread: a generation's communicator does not end
  JoinedMark joined_;                          // until this life is over
  int callers_ = 0;                            // threads inside drive()
  int awaiting_job_ = 0;                       // of those, how many wait for something else than calls
  int calling_back_ = 0;                       // callbacks that run
  std::chrono::steady_clock::time_point next_blocked_look_;
  std::shared_ptr<const wire::Blocked> shown_blocked_;  // on the board
  bool told_of_waiting_sends_ = false;
  int looks_ = 0;  // for a message of a small round, before others get the core; none where they need it
  SpareCore core_;
  bool watched_ = false;  // one of them sleeps on the links, and the others until it tells
  bool waits_for_load_ = false, waits_for_commit_ = false;  // beside calls; for the log
  std::vector<pollfd> pollfds_;
  std::chrono::microseconds move_pause_{};  // how long a sleeper leaves buffers alone that move
  Deadlines deadlines_;
  LogFill log_fill_{settings_.log_full, settings_.min_workers != 0};
  std::optional<TimeMs> spill_until_;  // all together, while the control thread stops the engine

  std::atomic<int> control_waits_{0};  // the control thread, or that of the fetch service, wants the lock
  int caller_wake_ = -1, engine_wake_ = -1;
  std::thread engine_thread_;
  bool frees_itself_ = false;  // the engine's thread does, for an owner that was in a callback on it
  std::unique_ptr<FetchService> fetch_;
  std::unique_ptr<Control> control_;
};

}  // namespace warren::worker
