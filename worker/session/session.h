// A worker's life in one job: the control thread, the engine under its lock, and the threads that drive it. A blocking
// call drives the engine in the caller's thread; asynchronous calls, and messages whose calls have returned, are driven
// by the engine's thread while nobody blocks.
//
// The session holds its parts together. The program reaches some of them by its functions: Calls, FusedCalls and
// GroupCalls. The lock, and who drives, are Driver's. Sources of the session itself:
//
// - prepare.cc: how it begins
// - data_path.cc: what the control thread asks of it
// - session_checkpoints.cc: checkpoints, as the program calls them
// - effects.cc: what its life wants done
// - session.cc: how it ends
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "worker/launch/joined_mark.h"
#include "worker/life/life.h"
#include "worker/replay/fetch_service.h"
#include "worker/rounds/round_board.h"
#include "worker/session/admission.h"
#include "worker/session/batches.h"
#include "worker/session/calls.h"
#include "worker/session/checkpoint_calls.h"
#include "worker/session/control.h"
#include "worker/session/driver.h"
#include "worker/session/fused_calls.h"
#include "worker/session/gpus.h"
#include "worker/session/group_calls.h"
#include "worker/session/inside.h"
#include "worker/session/interrupt.h"
#include "worker/session/join.h"
#include "worker/session/lent_memory.h"
#include "worker/session/life_storage.h"
#include "worker/session/log.h"
#include "worker/session/log_fill.h"
#include "worker/session/outside_work.h"
#include "worker/session/states_under_way.h"
#include "worker/session/trace_file.h"
#include "worker/settings/settings.h"
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
  static bool inside_callback() { return Inside::any(); }
  // Likewise of this one, which it must not wait for: it may be what would finish the call.
  [[nodiscard]] bool calls_back_here() const { return Inside::of(mark_); }

  // What the plan says; fixed once create() has returned.
  [[nodiscard]] Rank rank() const { return self_; }
  [[nodiscard]] std::uint32_t world_size() const { return world_size_.load(std::memory_order_relaxed); }
  // By rank, as the newest plan has them.
  [[nodiscard]] std::vector<std::string> hosts();
  [[nodiscard]] const RoundBoard& board() const { return board_; }
  // null: nobody wants it. From any thread.
  [[nodiscard]] TraceFile* trace() { return trace_.get(); }

  // With how few workers the job continues; 0: the job waits for all.
  [[nodiscard]] std::uint32_t min_workers() const { return settings_.min_workers; }

  // The program's calls, those that are put together, and its groups.
  [[nodiscard]] Calls& calls() { return calls_; }
  [[nodiscard]] FusedCalls& fused() { return fused_; }
  [[nodiscard]] GroupCalls& groups() { return groups_; }

  // Memory that the ranks of this host read where it lies (worker/transport/host_memory.h), until it is freed or the
  // session ends.
  Result<void*> allocate(std::uint64_t bytes);
  // kInvalidArgument: not an address that allocate() has given. No outstanding call uses it.
  Status free(void* memory);

  // What the program starts from. Before the first call of a version; outstanding calls are completed first.
  using State = Checkpoints::State;
  Result<State> load();
  // A state of a checkpoint: its bytes lie in these places, one after the other.
  using Places = CheckpointCalls::Places;
  // Completes outstanding calls, takes a snapshot, and returns; waits for the commit of the one before. `local` null:
  // this program has no local state, as in mode shrink. `stream`: the program's, on which states that lie on a GPU are
  // ready.
  Status checkpoint(Places global, const Places* local, void* stream);
  // As checkpoint(), of a global state that the root alone has: `global` is read there alone. Two rounds before it tell
  // all ranks its hashes. `site`: the program's call.
  Status checkpoint_from(std::int32_t root, Places global, const Places* local, void* stream, std::uint64_t site);
  // Copies what load() has given to memory of the program, which may be written to after the work on `stream`.
  Status restore(std::span<const std::span<std::byte>> places, std::span<const std::byte> state, void* stream) {
    return checkpoints_.restore(places, state, stream);
  }
  // As warren_lazy_checkpoint.
  Status lazy_checkpoint(warren_serialize serialize, void* context, void* stream);
  // The program's count of checkpoints; 0 before the first.
  std::uint64_t version();
  // The version of the newest checkpoint that is safe to start from.
  std::uint64_t committed_version();

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
  ~Session() override = default;
  // For its last owner.
  static void release(Session* session);
  void end();
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
  Status prepare(const Beginning& beginning);

  // From the control thread, by mates of this host (SegmentExchange::Events).
  [[nodiscard]] SegmentExchange::Events mates();
  Status attach(Incarnation life, MappedSegment segment);

  // DataPath, from the control thread, and the effects of the worker's machine that it carries out.
  void install(const wire::Plan& plan, Rank self) override;
  void open(Generation generation) override;
  WorkerMachine::Standing stop(const worker_effect::StopDataPath& what) override;
  void carry_out(const WorkerEffect& effect) override;
  void follow(const worker_effect::Follow& what);
  void loaded(const worker_effect::Loaded& loaded);
  void committed(Version version, Timeline timeline);
  void tracker_away(bool away);
  void failed(const worker_effect::Fail& what);
  void finished();
  void serve(const wire::Plan& plan);
  void mapped() override;
  std::optional<TimeMs> tick() override;
  std::optional<TimeMs> tick_of_log();
  bool may_hang() const override { return gpus_.may_hang(); }
  bool adopt(Generation generation, GroupId group, Rank peer, std::uint16_t stream, int fd,
             std::unique_ptr<HostPipe> pipe) override;
  void link_failed(GroupId group, Rank peer, const Status& why) override;
  void aborted(const std::string& reason) override;
  void begin_nothing() override;
  bool may_leave(bool at_once) override;
  bool leave(bool at_once, int exit_code, const std::function<void()>& say) override;

  void look_at_exchange();
  [[nodiscard]] Status end_calls(std::unique_lock<std::mutex>& lock);
  [[nodiscard]] Result<StateHashes> share_hashes(std::int32_t root, const PlacedState* state, std::uint64_t site);
  [[nodiscard]] Status broadcast_words(std::int32_t root, std::span<std::uint64_t> words, std::uint64_t site);
  Status open_trace(bool spare);
  Status start_log();
  void fetched(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads);
  void carry_out_effects();
  void say(const WorkerMachine::Vote& vote);
  void life_has_ended(const life_effect::End& what);
  void join_again(const Status& why);
  [[noreturn]] void end_process(const Status& why, int exit_code);
  [[nodiscard]] Engine& engine() { return life_.engine(); }
  [[nodiscard]] const Engine& engine() const { return life_.engine(); }
  // No call is under way, and `lock` is held: a thread that drives holds it, or sleeps in it.
  [[nodiscard]] bool is_idle(const std::unique_lock<std::mutex>& lock) const;
  static TimeMs now() { return Driver::now(); }
  void say_half_full();
  void say_given_up();
  std::unique_lock<std::mutex> lock_for_control();

  const SessionMark mark_;
  const Settings settings_;
  const Log log_;
  const Interrupt interrupt_;
  RoundBoard board_;
  std::unique_ptr<TraceFile> trace_;          // outlives the engine
  bool recovers_ = false;                     // the timeline shows a recovery
  Rank self_;                                 // not written to once create() has returned
  std::atomic<std::uint32_t> world_size_{0};  // of any thread
  std::vector<std::string> host_of_;
  std::vector<Incarnation> lives_;  // by rank, of the newest plan; under the lock
  Gpus gpus_{settings_};            // outlives the calls in the engine
  const std::shared_ptr<CopyMemory> copy_memory_ = std::make_shared<CopyMemory>();

  // Under the driver's lock:
  LentMemory lent_{gpus_, board_, log_};
  LinkTransport transport_;
  Life life_;
  StatesUnderWay states_{life_, log_};
  Batches batches_;
  OutsideWork outside_{mark_, life_, gpus_, states_};
  Driver driver_{
      mark_, log_, interrupt_, board_, life_, transport_, outside_, batches_, [this] { carry_out_effects(); }};
  LifeStorage storage_{settings_, log_};  // its threads end before control_
  Join join_{settings_, log_, driver_, life_, storage_};
  CheckpointCalls checkpoints_{mark_, settings_.min_workers != 0, life_, gpus_, states_, driver_, storage_};
  Admission admission_{settings_, driver_, life_, gpus_, lent_, batches_, checkpoints_};
  FusedCalls fused_{settings_, driver_, life_, gpus_, lent_, batches_, admission_, copy_memory_};
  Calls calls_{driver_, life_, gpus_, batches_, checkpoints_, admission_, fused_, copy_memory_};
  GroupCalls groups_{self_, driver_, life_, fused_, calls_};
  Incarnation incarnation_;  // of this life
  std::shared_ptr<MemfdSegment> segment_;
  LogFill log_fill_{settings_.log_full, settings_.min_workers != 0};

  bool frees_itself_ = false;  // the engine's thread does, for an owner that was in a callback on it
  std::unique_ptr<FetchService> fetch_;
  std::unique_ptr<Control> control_;
};

}  // namespace warren::worker
