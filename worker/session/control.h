// The control thread of a worker: carries out what the worker's machine (recovery/worker/worker_machine.h) decides,
// talks to the tracker over ZeroMQ, connects data links, and watches them for peers that go. The data path never waits
// for it.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "recovery/worker/worker_machine.h"
#include "worker/launch/life_sign.h"
#include "worker/launch/sigterm.h"
#include "worker/rounds/progress.h"
#include "worker/rounds/round_board.h"
#include "worker/segments/exchange.h"
#include "worker/segments/keeper.h"
#include "worker/session/log.h"
#include "worker/session/tracker_socket.h"
#include "worker/settings/settings.h"
#include "worker/system/run_delay.h"
#include "worker/transport/connector.h"

namespace warren::worker {

// The data path, as the control thread calls it.
class DataPath {
 public:
  virtual ~DataPath() = default;
  // A plan is in force. Calls move from open() on, when every rank of the host can read this life's log.
  virtual void install(const wire::Plan& plan, Rank self) = 0;
  virtual void open(Generation generation) = 0;
  // Returns when nothing of a generation before `what.generation` can move any more; with `resume` calls stay and a
  // plan follows.
  virtual WorkerMachine::Standing stop(const worker_effect::StopDataPath& what) = 0;
  // Every other effect of the worker's machine that is the data path's.
  virtual void carry_out(const WorkerEffect& effect) = 0;
  // All that a call of Control::map() was given is attached.
  virtual void mapped() = 0;
  // Called often, for what has deadlines of its own; returns the next one.
  virtual std::optional<TimeMs> tick() = 0;
  // A thread is where it may never come back from.
  [[nodiscard]] virtual bool may_hang() const = 0;
  // Takes the descriptor; false if it was refused (and closed).
  virtual bool adopt(Generation generation, GroupId group, Rank peer, std::uint16_t stream, int fd,
                     std::unique_ptr<HostPipe> pipe) = 0;
  virtual void link_failed(GroupId group, Rank peer, const Status& why) = 0;
  // The program gives this life up.
  virtual void aborted(const std::string& reason) = 0;
  // This worker drains: no call begins any more.
  virtual void begin_nothing() = 0;
  // Whether no call is under way, or it does not matter.
  virtual bool may_leave(bool at_once) = 0;
  // Likewise; where that ends the process, with `exit_code`, this does not return, and calls `say` before.
  virtual bool leave(bool at_once, int exit_code, const std::function<void()>& say) = 0;
};

class Control {
 public:
  // What other workers reach this life by, beside its data links.
  struct Services {
    Incarnation self;
    std::uint16_t fetch_port = 0;
    std::uint32_t nccl = 0;                 // its version; 0: it is not used
    bool gpu = false;                       // as of wire::Traits
    std::shared_ptr<MemfdSegment> segment;  // null: nothing is logged
    // With memory of the host's other ranks, where something is logged. The control thread adds `complete`, `failed`
    // and `warning`.
    SegmentExchange::Events mates;
    std::optional<wire::Held> held;   // by the disk
    bool spare = false;               // it begins as one: nothing is said of what the host holds, or mapped
    std::int64_t join_within_ms = 0;  // as of WorkerMachine::Options
    // What the memory of the host holds, asked once when earlier lives' segments have been attached. Not set: nothing
    // is logged.
    std::function<wire::Logged()> logged;
    // Why this life's disk takes no results at present, for heartbeats; empty: it does. From the control's thread, must
    // not wait. Not set: nothing is logged.
    std::function<std::string()> disk_trouble;
    std::string costs;  // that this life chooses algorithms by, as the job's settings keep them
  };
  // Opens sockets. kUnavailable, kRefused, kInvalidArgument as what failed.
  static Result<std::unique_ptr<Control>> create(const Settings& settings, const Log& log, const RoundBoard& board,
                                                 DataPath& data_path, const Services& services);
  // Starts the thread, which joins the job. Once; apart, so that the data path has this object before it is called.
  // kUnavailable: the system allows no more threads.
  Status start();
  // Ends the thread: the data path is not called any more.
  void stop();
  // As stop(). What was said before (leave) is sent, within half a second.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  // From within a call of the data path that is held up: the tracker and the launcher hear that this life goes on.
  void beat();

  // From any thread; they return at once, and the control thread does the work, in their order.
  using Machine = std::function<void(WorkerMachine& machine, TimeMs now, std::vector<WorkerEffect>& effects)>;
  // Something that the worker's machine is to hear.
  void tell(Machine what);
  void want_link(GroupId group, Rank peer);
  void finalize(Version last);
  void leave(const std::string& reason);
  // Likewise without finalize, where this life cannot go on, for no fault of its program's: its next one does.
  void end_life(const Status& why);
  // The program gives this life up: DataPath::aborted() comes from the control thread, so also from a callback's
  // thread.
  void abort(const std::string& reason);
  // DataPath::tick() has an earlier deadline than it said.
  void tick();
  // This worker's place is needed elsewhere: it leaves when no call is under way, at the latest in so long.
  void drain(std::int64_t within_ms, const std::string& reason);
  // For a spare that was called: offers its segment to the launcher's keeper, and maps what that has kept, unless it is
  // stale: then the keeper closes it. Blocks, for at most a round timeout; DataPath::mapped() follows.
  void map(const worker_effect::Called& call);
  // A life's segment serves nobody any more. `over`: the life is, and the launcher may close it too.
  void forget_segment(Incarnation life, bool over);
  // The ranks of this host may read memory of this life's program; it is no more. Without a log they map nothing.
  void lend(std::uint32_t memory, std::shared_ptr<const OwnedFd> fd, std::uint64_t bytes, bool on_gpu = false);
  void take_back(std::uint32_t memory);
  // Whether this life has mapped what it was offered.
  void answer(Incarnation life, std::uint32_t memory, bool mapped);

 private:
  // Of the control thread. Its effects are carried out before the next one begins.
  using Work = std::function<void(std::vector<WorkerEffect>& effects)>;

  Control(const Settings& settings, const Log& log, const RoundBoard& board, DataPath& data_path,
          const Services& services);
  Status open(const Settings& settings);
  // How other workers reach this life's data links.
  struct Reach {
    std::string address;
    std::uint16_t port = 0;
    bool maps = false;  // links to ranks of this host go through shared memory
  };
  Result<Reach> open_links(const Settings& settings, const handshake::LinkKey& link_key);
  Connector::Events link_events();
  Status make_machine(const Settings& settings, const Reach& reach);
  Status open_segments(const Settings& settings, const handshake::LinkKey& link_key);
  // `called`: as in KeeperLink::Offer.
  std::shared_ptr<KeeperLink> offer_segment(Generation called) const;
  void map_kept(std::shared_ptr<KeeperLink> keeper);
  void install(const wire::Plan& plan);
  void post(Work work);
  void link_broken(Generation generation, Rank peer, const std::string& evidence);
  void loop();
  std::optional<TimeMs> next_deadline();
  void show_life();
  void do_posted();
  void receive();
  void watch_connection();
  void renew_silent_connection();
  void on_connection_trouble(const std::string& what);
  // In which round this rank waits for that one, for people; empty: in none.
  [[nodiscard]] std::string waits_for(Rank peer) const;
  void watch_links();
  void forget_kept();
  void run_effects(std::vector<WorkerEffect> effects);
  void look_at_run_delay();
  void set_progress();
  // The machine is needed elsewhere. `with_launcher`: and its launcher goes, too.
  void begin_drain(TimeMs by, const std::string& reason, bool with_launcher);
  // Begins no call, and leaves by then.
  void begin_to_leave(TimeMs by, const std::string& reason);
  void look_at_drain();
  void look_whether_hung();
  // With the places of the program by their names.
  [[nodiscard]] std::string readable(std::string text) const;
  [[nodiscard]] Status readable(const Status& why) const;
  // As DataPath::leave().
  bool end_process(bool at_once, const std::function<void()>& say);
  [[nodiscard]] bool drains() const;
  [[nodiscard]] TimeMs now() const;

  const Log log_;
  const RoundBoard& board_;
  DataPath& data_path_;
  std::string tracker_name_;
  const std::string job_, host_id_, worker_id_;
  const std::int64_t round_timeout_ms_;
  const Services services_;
  const Incarnation self_;
  std::unique_ptr<TrackerSocket> tracker_;
  std::optional<WorkerMachine> machine_;
  std::unique_ptr<Connector> connector_;
  bool looks_for_dead_ = false;  // the job need not wait for a worker that has not answered an interrupt
  std::shared_ptr<KeeperLink> keeper_;
  std::unique_ptr<SegmentExchange> segments_;
  LifeSign life_sign_;
  const std::int64_t drain_ms_, hang_timeout_ms_;
  const bool ends_process_;                // where this life is over, and the program need not hear why
  const bool logs_;                        // what it has done, so that its next life can go on
  std::unique_ptr<SigtermCount> sigterm_;  // null: the signal is the program's
  int sigterms_ = 0;                       // that were looked at
  std::optional<TimeMs> leave_by_;         // it drains
  std::string leave_why_;
  bool preempted_ = false;  // not only because the tracker has asked for it
  std::mutex mutex_;
  std::vector<Work> posted_;
  bool ends_ = false;  // the thread
  int wake_fd_ = -1;
  int watch_fd_ = -1;  // epoll: links whose other end has gone
  const std::int64_t sample_ms_;
  TimeMs next_sample_;
  ProgressReporter progress_;
  RunDelay run_delay_;
  std::uint64_t yielded_ns_ = 0;  // that were subtracted from it
  std::thread thread_;
};

}  // namespace warren::worker
