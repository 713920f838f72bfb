#include "worker/session.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <thread>
#include <utility>

#include <sodium.h>

#include "recovery/check.h"
#include "recovery/limits.h"
#include "recovery/text.h"
#include "recovery/verdict.h"
#include "storage/fork_guard.h"
#include "storage/open_files.h"
#include "storage/segment_memory.h"
#include "storage/start_thread.h"
#include "worker/device/device_library.h"
#include "worker/disk/past.h"
#include "worker/launch/costs_file.h"
#include "worker/launch/netinfo.h"
#include "worker/launch/rabit_tracker.h"
#include "worker/logged.h"
#include "worker/plans.h"

namespace warren::worker {
namespace {

// Polls without success before sleeping, each followed by a yield: the scheduler likes to put both ends of a loopback
// connection on one core, and a spin without yield then keeps the peer from answering (measured: 55 µs instead of 8).
// They last over twice a round trip on loopback. Where others need the core one yield may last longer than that, and
// who sleeps is woken sooner than who yields.
constexpr auto kIdleTime = std::chrono::microseconds(60);
constexpr int kPollsBetweenLooksAtTheClock = 4;
// Where each rank of the host can have a core, and has it: some 0.5 µs, in which a peer that is not late has sent.
constexpr int kLooksAtOnce = 24;
// Descriptors of a worker without peers; each peer takes one to four more.
constexpr std::size_t kLeastFiles = 32;
constexpr auto kAskForName = std::chrono::milliseconds(200);
constexpr auto kWaitLogInterval = std::chrono::seconds(10);
constexpr int kSleepMs = 1000;
// A person who presses Ctrl-C notices a third of a second.
constexpr auto kAskInterval = std::chrono::milliseconds(100);
constexpr int kMovesBetweenLooksAtTheClock = 64;
// From one look at what calls wait for to the next, while nothing moves.
constexpr std::chrono::milliseconds kBlockedLookInterval(900);
// GPUs wake nobody: whoever sleeps looks at buffers that move after a while, which grows while nothing comes, to a
// fifth of the time since: what comes is found a fifth later at most.
constexpr auto kShortestMovePause = std::chrono::microseconds(20);
constexpr auto kLongestMovePause = std::chrono::microseconds(1000);
constexpr timespec kNoTime = {};
constexpr std::int64_t kTickAgainMs = 20;
// For rabit's tracker to say that it is one. Warren's ends such a connection at once.
constexpr std::int64_t kRabitsTrackerMs = 2000;
// A thread that must not only wait tries for the lock so often before it sleeps, and sleeps for so long between tries.
constexpr int kLockYields = 100;
constexpr auto kLockPause = std::chrono::microseconds(200);
// Between two slices of what is taken over from dead lives' segments.
constexpr std::int64_t kLookAgainMs = 50;
// An eighth of the smallest logs, 64 MiB of the large ones.
constexpr std::size_t kSpilledExtents = 4;

// While one lives the thread runs, or may run at any moment, a callback or a reduction that the program has given to
// this session: it must not enter it again.
class Inside {
 public:
  explicit Inside(const Session& session) : session_(session), outer_(std::exchange(innermost_, this)) {}
  ~Inside() { innermost_ = outer_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  [[nodiscard]] static bool any() { return innermost_ != nullptr; }
  [[nodiscard]] static bool of(const Session& session) {
    const Inside* at = innermost_;
    while (at != nullptr && &at->session_ != &session) at = at->outer_;
    return at != nullptr;
  }

 private:
  static thread_local const Inside* innermost_;
  const Session& session_;
  const Inside* const outer_;
};
thread_local const Inside* Inside::innermost_ = nullptr;

// Counts what it is for while it lives.
class Counted {
 public:
  explicit Counted(int& count) : count_(count) { count_++; }
  ~Counted() { count_--; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int& count_;
};

// Calls a function of the program's outside the lock; anything but 0 is its failure. What it throws goes no further
// than here: above are calls that the engine still knows, and a thread of the library.
template <class Function>
Status call_program(const Session& session, const char* what, Function function) {
  const Inside here(session);
  try {
    if (const std::int32_t failed = function(); failed != 0) {
      return {Code::kInternal, std::string(what) + " has failed, and returned " + std::to_string(failed)};
    }
  } catch (const std::exception& e) {
    return {Code::kInternal, std::string(what) + " has thrown: " + e.what()};
  } catch (...) {
    return {Code::kInternal, std::string(what) + " has thrown"};
  }
  return {};
}

std::uint64_t bytes_of(Session::Places places) {
  std::uint64_t bytes = 0;
  // Nonsense stays too large.
  for (const auto& place : places) bytes += std::min<std::uint64_t>(place.size(), ~bytes);
  return bytes;
}

// These bytes of a state that lies in `places`.
void add_pieces(std::vector<StatePiece>& pieces, StateKind state, Session::Places places, const Ranges& bytes) {
  std::uint64_t at = 0;
  for (const auto& place : places) {
    const Ranges here = bytes.intersect(at, at + place.size());
    for (const Interval& i : here.intervals()) {
      pieces.push_back({state, i.begin, place.subspan(i.begin - at, i.end - i.begin)});
    }
    at += place.size();
  }
}

// States of a checkpoint, of the global one these bytes.
std::vector<StatePiece> pieces_of(Session::Places global, const Session::Places* local, const Ranges& of_global) {
  std::vector<StatePiece> pieces;
  add_pieces(pieces, StateKind::kGlobal, global, of_global);
  if (local != nullptr) add_pieces(pieces, StateKind::kLocal, *local, Ranges(0, bytes_of(*local)));
  return pieces;
}

}  // namespace

class Session::Span {
 public:
  Span(TraceFile* trace, TraceFile::Row row, const char* name)
      : trace_(trace), row_(row), name_(name), began_ns_(trace == nullptr ? 0 : TraceFile::now_ns()) {}
  ~Span() {
    if (trace_ != nullptr) trace_->was(row_, began_ns_, name_);
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  TraceFile* const trace_;
  const TraceFile::Row row_;
  const char* const name_;
  const std::int64_t began_ns_;
};

Session::Session(const Settings& settings, const Log& log, const Interrupt& interrupt)
    : settings_(settings),
      log_(log),
      interrupt_(interrupt),
      transport_([this](GroupId group, Rank peer) { control_->want_link(group, peer); },
                 [this](Rank peer) {
                   return host_log_ ? host_log_->segment_of(lives_[static_cast<std::size_t>(peer.value)]) : nullptr;
                 },
                 &memory_),
      engine_(transport_, board_) {}

Result<std::shared_ptr<Session>> Session::create(const Settings& settings, const Log& log, const Interrupt& interrupt) {
  auto mark = JoinedMark::make(settings);
  if (!mark.ok()) return mark.status().because_of_this("cannot join job " + settings.job);
  (void)allow_many_connections();
  // ZeroMQ aborts where its first ones cannot be opened.
  if (Status s = has_room_for_files(kLeastFiles); !s.ok()) return s.because_of_this("cannot join job " + settings.job);
  const bool numbered = settings.worker_id.find_first_not_of("0123456789") == std::string::npos;
  if (settings.begins_as_spare && numbered) {
    // Who counts its workers from 1 would wait for ever for a job that has one too few.
    log(WARREN_LOG_INFO, "this worker begins as a spare: its number " + settings.worker_id +
                             " is not below the world size " + std::to_string(settings.world_size) +
                             "; those of the workers that the job begins with are 0 to " +
                             std::to_string(settings.world_size - 1));
  }
  if (settings.tracker_may_be_rabits) {
    const Status status = refuse_rabits_tracker({settings.tracker_host, settings.tracker_port}, settings.worker_id,
                                                settings.attempt, std::min(kRabitsTrackerMs, settings.join_timeout_ms));
    if (!status.ok()) return status.because_of_this("cannot join job " + settings.job);
  }
  Beginning beginning;
  beginning.spare = settings.begins_as_spare;
  beginning.join_by = std::chrono::steady_clock::now() + std::chrono::milliseconds(settings.join_timeout_ms);
  while (true) {
    auto session = join(settings, log, interrupt, beginning);
    if (!session.ok()) return session;
    if (session.value() != nullptr) {
      session.value()->keep(std::move(mark).value());
      return session;
    }
    if (std::chrono::steady_clock::now() < beginning.join_by) continue;
    return beginning.why.because_of_this(Code::kTimeout, "the join timeout is over");
  }
}

void Session::keep(JoinedMark mark) {
  const std::lock_guard lock(mutex_);
  if (failed_.ok() && !finished_) joined_ = std::move(mark);
}

// A name server may be away for as long as a tracker, and a tracker's name appear with it.
Status Session::await_tracker_name() const {
  if (is_numeric_address(settings_.tracker_host)) return {};
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(settings_.join_timeout_ms);
  const auto left = [&] {
    return std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  };
  for (bool told = false;; told = true) {
    const Status resolved = resolve_host(settings_.tracker_host, left()).status();
    if (resolved.ok() || left().count() <= 0) return resolved;
    if (!told) log_(WARREN_LOG_WARNING, resolved.describe() + "; it is asked for again until the join timeout is over");
    if (const Status told_to = ask(); !told_to.ok()) return told_to;
    std::this_thread::sleep_for(kAskForName);
  }
}

Result<std::shared_ptr<Session>> Session::join(const Settings& settings, const Log& log, const Interrupt& interrupt,
                                               Beginning& beginning) {
  std::shared_ptr<Session> session(new Session(settings, log, interrupt), &Session::release);
  session->spare_ = beginning.spare;
  session->begins_again_ = beginning.again;
  Status status = session->prepare(beginning);
  if (status.ok()) status = session->wait_for_plan();
  if (!status.ok()) return status;
  if (!session->begin_again_) return session;
  beginning.again = true;
  beginning.spare = session->spare_;
  beginning.why = session->over_;
  // A spare waits for as long as its job goes on.
  if (beginning.spare) {
    beginning.join_by = std::chrono::steady_clock::now() + std::chrono::milliseconds(settings.join_timeout_ms);
  }
  return std::shared_ptr<Session>();
}

Status Session::prepare(const Beginning& beginning) {
  const bool spare = beginning.spare;
  if (Status s = await_tracker_name(); !s.ok()) return s.because_of_this("cannot join job " + settings_.job);
  caller_wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  engine_wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (caller_wake_ < 0 || engine_wake_ < 0) {
    return {Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno)};
  }
  if (!settings_.timeline.empty()) {
    auto trace = TraceFile::open(settings_.timeline, log_);
    if (trace.ok()) {
      trace_ = std::move(trace).value();
      engine_.use(*trace_);
    } else if (settings_.attempt == 0 && !spare) {
      return trace.status();
    } else {
      // The job needs this life more than its trace.
      log_(WARREN_LOG_WARNING, trace.status().describe() + "; this life goes on without one");
    }
  }
  auto library = load_device_library(settings_.device_library);
  if (!library.ok()) return library.status();
  if (const std::string news = library.value().news(); !news.empty()) log_(WARREN_LOG_INFO, news);
  if (library.value().table != nullptr) {
    staging_ = std::make_unique<Staging>(*library.value().table, settings_.device_pinned_bytes,
                                         settings_.device_snapshot_bytes, settings_.device_shared_bytes,
                                         settings_.round_timeout_ms);
    engine_.use(staging_->combines());
  }
  Control::Services services;
  services.gpu = staging_ != nullptr && settings_.device_shared_bytes != 0 && settings_.replicas != 0;
  auto costs = read_costs(settings_.costs);
  if (!costs.ok()) return costs.status();
  if (settings_.nccl) {
    auto version = use_nccl(library.value());
    if (!version.ok()) return version.status();
    services.nccl = version.value();
  }
  services.costs = settings_text(costs.value());
  engine_.use(std::move(costs).value());
  services.spare = spare;
  const auto join_within = beginning.join_by - std::chrono::steady_clock::now();
  services.join_within_ms =
      std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(join_within).count());
  while (life_.value == 0) randombytes_buf(&life_, sizeof life_);
  services.self = life_;
  if (settings_.replicas != 0) {
    const Status status = start_log();
    if (!status.ok()) return status.because_of_this("cannot join job " + settings_.job);
    services.fetch_port = fetch_->port();
    services.segment = segment_;
    services.logged = [log = host_log_.get()] { return kept_in(*log); };
    services.disk_trouble = [this] { return disk_trouble_.text(); };
    if (!spare) {
      auto held = held_on_disk();
      if (!held.ok()) return held.status();
      services.held = std::move(held).value();
    }
  }
  auto control = Control::create(settings_, log_, board_, *this, services);
  if (!control.ok()) return control.status();
  control_ = std::move(control).value();
  // Now, when it is an error of nothing but this life's begin if the system allows no more: later calls rely on it.
  const auto run_engine = [this] {
    engine_loop();
    if (!frees_itself_) return;
    engine_thread_.detach();
    delete this;
  };
  if (const Status started = start_thread(engine_thread_, run_engine); !started.ok()) return started;
  return control_->start();
}

Result<std::uint32_t> Session::use_nccl(const DeviceLibrary& device) {
  const std::string what = "NCCL is to move what GPUs exchange (WARREN_NCCL), and ";
  if (device.table == nullptr) {
    return Status(Code::kUnavailable,
                  what + "this worker has no GPU" + (device.says.empty() ? "" : ": " + device.says));
  }
  const auto nccl = find_nccl(*device.table);
  if (!nccl.ok()) return nccl.status().because_of_this(what + "this worker has none");
  // Calls that wait for peers would hold up whoever makes them, also when the peers are gone.
  // NCCL reads numbers in any base.
  if (const char* blocks = getenv("NCCL_COMM_BLOCKING"); blocks != nullptr && std::strtoll(blocks, nullptr, 0) == 1) {
    return Status(Code::kInvalidArgument, what + "NCCL_COMM_BLOCKING=1 has its calls wait for peers; leave it out");
  }
  const std::string program = settings_.nccl_root.empty() ? beside_this(kNcclRoot) : settings_.nccl_root;
  engine_.use(staging_->exchange_by(
      settings_.checksums,
      [this, program, library = nccl.value()] {
        return NcclRoot::start(program, device_library_path(settings_.device_library), library,
                               settings_.round_timeout_ms);
      },
      [this](bool warns, const std::string& text) {
        log_(warns ? WARREN_LOG_WARNING : WARREN_LOG_INFO, text);
        if (trace_) trace_->instant(TraceFile::Row::kRecovery, warns ? "without NCCL" : "NCCL", text);
      }));
  return static_cast<std::uint32_t>(nccl.value().version);
}

Result<std::optional<wire::Held>> Session::held_on_disk() {
  std::optional<Past> past;
  if (disk_) past = past_on(disk_->writer().store());
  if (!mirror_ || (past && past->serves)) return with_mirror(std::move(past), std::nullopt);
  auto mirrored = mirror_->held();
  if (!mirrored.ok()) return mirrored.status().because_of_this("cannot use the mirror of checkpoints");
  return with_mirror(std::move(past), std::move(mirrored).value());
}

Result<std::optional<wire::Held>> Session::held_beside_stale(Epoch called) {
  if (disk_) {
    // Before anybody counts on this host: after a kill its next life does not know that it was left.
    const Status status = leave_out_stale(disk_->writer().store(), settings_.host_id, called);
    if (!status.ok()) {
      return status.because_of_this("cannot leave out what lives have left in " + settings_.data_dir +
                                    " before the job went on without this host");
    }
  }
  return held_on_disk();
}

// The machine ends this wait: with a plan, or with an error after the join timeout. A spare's has no end but the job's.
Status Session::wait_for_plan() {
  std::unique_lock lock(mutex_);
  while (true) {
    await(lock, [&] { return installed_ || !failed_.ok() || begin_again_ || called_; });
    // Not where the program has given up meanwhile.
    if (begin_again_ && failed_.ok()) {
      if (over_.ok()) control_->leave(false, "it begins again, as a spare that has looked at nothing");
      return {};
    }
    if (installed_ || !failed_.ok()) break;
    look(lock, *std::exchange(called_, std::nullopt));
  }
  if (failed_.code() != Code::kFinished) return failed_;
  lock.unlock();
  // This host may have no rank that would.
  finish_disk();
  if ((settings_.attempt > 0 || spare_ || begins_again_) && settings_.on_rollback == OnRollback::kExit) {
    // It was not needed, or its last life was lost after all ranks had called finalize.
    log_.before_process_ends();
    log_(WARREN_LOG_INFO, failed_.describe() + "; this worker" +
                              (spare_          ? ""
                               : begins_again_ ? ", which has joined again,"
                                               : ", started again,") +
                              " ends with exit code " + std::to_string(kExitFinished));
    _exit(kExitFinished);
  }
  return failed_;
}

// In the program's thread: what a host holds may take long to look at, and the control thread says meanwhile that this
// spare is there.
void Session::look(std::unique_lock<std::mutex>& lock, const worker_effect::Called& call) {
  mapped_ = false;
  wire::Logged logged;
  Result<std::optional<wire::Held>> held = std::optional<wire::Held>();
  if (settings_.replicas != 0) {
    lock.unlock();
    control_->map(call);
    lock.lock();
    await(lock, [&] { return mapped_ || !failed_.ok() || begin_again_; });
    if (!mapped_) return;
    lock.unlock();
    logged = kept_in(*host_log_);
    held = call.stale ? held_beside_stale(call.epoch) : held_on_disk();
    lock.lock();
  }
  if (!held.ok()) {
    failed_ = held.status();
    return control_->leave(false, held.status().describe());
  }
  control_->looked(call.epoch, std::move(held).value(), std::move(logged));
}

void Session::waits_as_spare(bool looked) {
  const auto lock = lock_for_control();
  spare_ = true;
  begin_again_ = looked;
  changed_.notify_all();
}

void Session::follow(const worker_effect::Follow& what) {
  const auto lock = lock_for_control();
  if (what.plan) {
    follows_run_ = what.plan->run();
    fetch_->install(*what.plan);
    recall_->follow(follow_plan(*what.plan, life_));
  }
  checkpoints_->follow(follows_run_, what.version, what.timeline);
  (void)engine_.drain_recalls();
  look_at_checkpoints();
}

void Session::called(const worker_effect::Called& call) {
  const auto lock = lock_for_control();
  called_ = call;
  changed_.notify_all();
}

void Session::mapped() {
  const auto lock = lock_for_control();
  mapped_ = true;
  changed_.notify_all();
}

// In a callback on the engine's own thread what called it comes back to the session, and that thread cannot wait for
// its own end: it frees it then.
void Session::release(Session* session) {
  session->end();
  session->frees_itself_ = session->on_engine_thread();
  if (!session->frees_itself_) delete session;
}

void Session::end() {
  close();
  if (engine_thread_.joinable() && !on_engine_thread()) engine_thread_.join();
  if (coming_) coming_->snapshot->settle();
  coming_.reset();
  if (staging_) staging_->combines().settle();
  // The writer's thread votes by way of control_, whose thread hands commits to the writer and the mirror: that thread
  // finds none from here on.
  std::unique_ptr<DiskLog> disk;
  std::unique_ptr<Mirror> mirror;
  {
    const auto lock = lock_before_callers();
    disk = std::move(disk_);
    mirror = std::move(mirror_);
  }
  disk.reset();
  mirror.reset();
  // Its thread uses control_ to the last.
  if (control_) control_->stop();
  control_.reset();
  fetch_.reset();
  trace_.reset();
}

Session::~Session() {
  if (caller_wake_ >= 0) ::close(caller_wake_);
  if (engine_wake_ >= 0) ::close(engine_wake_);
}

void Session::wake(int fd) {
  const std::uint64_t one = 1;
  (void)!::write(fd, &one, sizeof one);
}

// ---- from the control thread

// For the control thread, which heartbeats come from: they go on however long somebody else holds the lock (a program's
// reduction runs under it, states are copied, a full log waits for its disk).
std::unique_lock<std::mutex> Session::lock_for_control() {
  control_waits_.fetch_add(1);
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (int tries = 0; !lock.owns_lock(); tries++) {
    if (tries < kLockYields) {
      sched_yield();
    } else {
      std::this_thread::sleep_for(kLockPause);
      // Not yet there while Control::create() attaches what the launcher has kept.
      if (control_) control_->beat();
    }
    (void)lock.try_lock();
  }
  control_waits_.fetch_sub(1);
  return lock;
}

// For threads that come seldom: spinning callers hold the lock for long and let go of it when they see this.
std::unique_lock<std::mutex> Session::lock_before_callers() {
  control_waits_.fetch_add(1);
  std::unique_lock lock(mutex_);
  control_waits_.fetch_sub(1);
  return lock;
}

Status Session::start_log() {
  auto segment = memfd_segment(settings_.log_memory_bytes);
  if (!segment.ok()) return segment.status();
  segment_ = std::move(segment).value();
  not_for_children(segment_->bytes());
  // A core dump would be as long as the log, and this process not be seen to be dead until that was written.
  (void)::madvise(segment_->bytes().data(), segment_->bytes().size(), MADV_DONTDUMP);
  auto made = HostLog::create(life_, segment_);
  if (!made.ok()) return made.status();
  host_log_ = std::move(made).value();
  const bool on_disk = settings_.log != LogMode::kMemory && !settings_.data_dir.empty();
  const auto tell = [this](const LogEvent& event) {
    disk_trouble_.take(event);
    log_(event.severity == Severity::kInfo ? WARREN_LOG_INFO : WARREN_LOG_WARNING, event.text);
  };
  if (on_disk) {
    auto disk = DiskLog::open(settings_, life_, segment_, tell, [this] {
      wake(caller_wake_);
      wake(engine_wake_);
    });
    if (!disk.ok()) return disk.status();
    disk_ = std::move(disk).value();
    host_log_->spill_by([this]() -> Result<std::vector<ExtentUse>> {
      if (!disk_) return Status(Code::kClosed, "this life has ended");
      // Under the session's lock, which an interrupt waits for.
      std::int64_t timeout_ms = settings_.round_timeout_ms / 4;
      if (spill_until_) timeout_ms = std::clamp<std::int64_t>(*spill_until_ - now(), 0, timeout_ms);
      return disk_->writer().spill(kSpilledExtents, timeout_ms);
    });
  }
  gathers_ = {now(), 0};
  if (settings_.log_full == LogFull::kSuspend) {
    host_log_->give_up_but([this](const RecordKey& record) { return engine_.needs(record); });
  }
  host_log_->watch({[this] { say_half_full(); }, [this] { say_given_up(); }});
  const auto reader = [&] { return on_disk ? disk_->behind(host_log_->reader()) : host_log_->reader(); };
  auto fetch = FetchService::start(
      settings_, life_, reader(),
      [this](Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
        fetched(from, reply, payloads);
      },
      [this](const std::string& text) { log_(WARREN_LOG_WARNING, text); },
      [this](Epoch epoch, const RoundId& round, std::span<const std::uint64_t> sites) {
        const auto lock = lock_before_callers();
        return engine_.plan().epoch == epoch ? engine_.say(round, sites) : Inquiry::Answer();
      });
  if (!fetch.ok()) return fetch.status();
  fetch_ = std::move(fetch).value();
  recall_.emplace(
      *host_log_, reader(), [] { return now(); }, [this](Replayer::Send send) { fetch_->send(std::move(send)); });
  if (settings_.log == LogMode::kSync && on_disk) {
    sync_gate_.emplace(
        disk_->writer(), settings_.round_timeout_ms, [] { return now(); }, tell);
    recall_->seen_once_in(*sync_gate_);
  }
  if (!settings_.checkpoint_mirror.empty()) {
    auto mirror =
        Mirror::open(settings_, reader(), [this](const LogEvent& event) { log_(WARREN_LOG_WARNING, event.text); });
    if (mirror.ok()) {
      mirror_ = std::move(mirror).value();
    } else if (settings_.attempt == 0 && !spare_) {
      return mirror.status();
    } else {
      // It was there when the job began: the loss of a worker must not become the loss of the job.
      log_(WARREN_LOG_WARNING,
           "this life mirrors no checkpoint; give its directory back, and the worker's next life tries again: " +
               mirror.status().describe());
    }
  }
  engine_.use(*recall_);
  checkpoints_.emplace(engine_, *recall_);
  return {};
}

// One that spills has room on its disk, which warns of its own end.
void Session::say_half_full() {
  // Where versions are pending it is the tracker that is missed, which is said elsewhere.
  if (host_log_->spills() || (checkpoints_ && checkpoints_->pending() > 1) || std::exchange(said_half_full_, true)) {
    return;
  }
  const std::uint64_t rounds = board_.rounds_finished.load(std::memory_order_relaxed) - gathers_.rounds;
  const std::int64_t ms = std::max<std::int64_t>(1, now() - gathers_.since);
  log_(WARREN_LOG_WARNING, "rank " + std::to_string(self_.value) + "'s log is half full after " + rounds_text(rounds) +
                               " in " + seconds_text(ms) + " without a checkpoint: as many more, and its " +
                               std::to_string(host_log_->budget_bytes()) + " bytes (--log_memory_bytes) are full; " +
                               (settings_.log_full == LogFull::kError
                                    ? "then calls fail (--log_full=error)"
                                    : "then its oldest results go, and a loss undoes what is not committed") +
                               ". Take checkpoints, give it more room (--log_memory_bytes, or --data_dir, a disk), or "
                               "run with --replicas=0");
}

void Session::say_given_up() {
  const Version version = host_log_->gives_up()->version;
  if (std::exchange(said_given_up_, version) == version) return;
  const bool committed = known_.committed();
  log_(WARREN_LOG_WARNING,
       "rank " + std::to_string(self_.value) +
           "'s log is full, and gives up its oldest results (--log_full=suspend): " +
           (version == kPreamble ? "from now on" : "until the next checkpoint is committed") + " a loss " +
           (settings_.min_workers != 0 ? "keeps its worker out until a version is committed"
            : committed ? "takes all processes back to version " + std::to_string(known_.committed_version() - 1)
                        : "ends the job, as nothing is committed to go back to") +
           ". Take checkpoints, give it more room (--log_memory_bytes, or --data_dir, a disk), or run with "
           "--replicas=0");
}

TimeMs Session::now() {
  return {std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
              .count()};
}

void Session::fetched(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
  const auto lock = lock_before_callers();
  recall_->on_reply(from, reply, payloads);
  for (const std::string& warning : recall_->take_warnings()) log_(WARREN_LOG_WARNING, warning);
  (void)engine_.drain_recalls();
  look_at_checkpoints();
  wake(caller_wake_);
  wake(engine_wake_);
}

std::optional<TimeMs> Session::tick() {
  // Heartbeats do not wait for a program's function that runs under the lock.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return now() + kTickAgainMs;
  if (const auto over = deadlines_.overdue(now()); over && !exiting_) end_overdue(*over);
  const auto own = recall_ ? tick_of_log() : std::nullopt;
  const auto call = deadlines_.next();
  return call && (!own || *call < *own) ? call : own;
}

void Session::end_overdue(const Deadlines::Deadline& over) {
  const auto call = over.call.lock();
  if (call == nullptr) return;
  const std::vector<std::string> waits = engine_.describe_waits();
  end_life(Status(Code::kTimeout, describe(*call) + " has not finished within the " + std::to_string(over.timeout_ms) +
                                      " ms that its timeout_ms gives it" +
                                      (waits.empty() ? "" : "; " + waits.front())));
}

std::optional<TimeMs> Session::tick_of_log() {
  look_at_exchange();
  if (engine_.stopped() && moves_exchanged_) return now() + kTickAgainMs;
  if (exiting_) return std::nullopt;
  if (look_again_ && *look_again_ <= now()) look_at_dead_segments();
  if (const auto deadline = recall_->next_deadline(); deadline && *deadline <= now()) {
    recall_->on_tick();
    for (const std::string& warning : recall_->take_warnings()) log_(WARREN_LOG_WARNING, warning);
    (void)engine_.drain_recalls();
    look_at_checkpoints();
    wake(caller_wake_);
    wake(engine_wake_);
  }
  const auto deadline = recall_->next_deadline();
  return look_again_ && (!deadline || *look_again_ < *deadline) ? look_again_ : deadline;
}

// Whoever is at what GPUs exchange may never come back from NCCL, and may be the only thread that the program has, or
// the engine's, which ~Session() waits for. The control thread is never there, and sees to it that the process ends.
void Session::look_at_exchange() {
  const Status overdue = moves_exchanged_ ? staging_->exchange()->overdue() : Status();
  if (overdue.ok()) return hangs_since_.reset();
  if (!hangs_since_) hangs_since_ = now();
  end_life(overdue.because_of_this("cannot exchange what lies on GPUs"));
  // Without OnRollback::kExit the launcher ends it (may_hang()).
  if (settings_.on_rollback != OnRollback::kExit || now() - *hangs_since_ < settings_.round_timeout_ms / 4) return;
  log_.before_process_ends();
  log_(WARREN_LOG_ERROR, "a thread does not come back from NCCL; this process ends with exit code " +
                             std::to_string(kExitFenced) + " to be started again");
  if (trace_) trace_->flush();
  _exit(kExitFenced);
}

void Session::install(const wire::Plan& plan, Rank self) {
  const auto lock = lock_for_control();
  if (engine_.stopped()) return;  // closed; that word is on its way to the tracker
  const Engine::Plan p = engine_plan(plan, self);
  // self_ is read without the lock once create() has returned.
  if (!installed_) self_ = self;
  world_size_.store(static_cast<std::uint32_t>(plan.members_size()), std::memory_order_relaxed);
  host_of_.clear();
  lives_.clear();
  for (const wire::Member& member : plan.members()) {
    host_of_.push_back(member.host_id());
    lives_.emplace_back(member.absent() ? 0 : member.incarnation());
  }
  const auto mates = std::ranges::count(host_of_, host_of_[static_cast<std::size_t>(self.value)]);
  looks_ = mates <= sysconf(_SC_NPROCESSORS_ONLN) ? kLooksAtOnce : 0;
  memory_.install(lives_);
  board_.gpu_readers.store(memory_.readers_on_gpu(), std::memory_order_relaxed);
  if (staging_) {
    // Without a log nobody passes memory on.
    staging_->lend_inputs(mates > 1 && settings_.replicas != 0);
    staging_->shares().keep_offers_of(lives_);
  }
  std::vector<std::uint32_t> streams_to;
  for (const Way& way : ways_of(plan, self)) streams_to.push_back(way.streams);
  transport_.open(p.epoch, plan.settings().streams(), plan.settings().checksums(), std::move(streams_to));
  const wire::Known before = std::exchange(known_, known_of(plan));
  if (disk_) {
    leave_to_later_lives(plan);
    if (leaves_host(before.plan(), plan, self)) disk_->writer().store().refresh(lives_of(plan));
  }
  if (recall_) {
    fetch_->install(plan);
    recall_->install(replay_plan(plan, self));
  }
  if (trace_) {
    trace_->belongs_to(self, settings_.worker_id, settings_.attempt);
    trace_->instant(TraceFile::Row::kRecovery, "epoch " + std::to_string(p.epoch.value));
  }
  engine_.install(p);
  if (checkpoints_) {
    checkpoints_->install();
    look_at_checkpoints();
  }
}

// Before anything of this plan's is written.
void Session::leave_to_later_lives(const wire::Plan& plan) {
  storage::ResultStore& store = disk_->writer().store();
  store.belong(plan.run());
  for (const std::string& where : store.set_others_aside()) {
    log_(WARREN_LOG_WARNING, "another run of job " + settings_.job + " has left results in " + settings_.data_dir +
                                 "; they are not used, and lie in " + where + " until you remove them");
  }
  disk_->writer().note(note_of(known_));
}

void Session::open(Epoch) {
  const auto lock = lock_for_control();
  if (!engine_.stopped()) {
    // All that the host holds is mapped now, by all its ranks.
    if (recall_) look_at_dead_segments();
    engine_.open();
  }
  if (trace_ && std::exchange(recovers_, false)) trace_->end(TraceFile::Row::kRecovery);
  // A new life waits for what this one has sent, however long the program here computes.
  hand_over();
  installed_ = true;
  wake(caller_wake_);
  wake(engine_wake_);
  changed_.notify_all();
}

WorkerMachine::Standing Session::stop(const worker_effect::StopDataPath& what) {
  const auto lock = lock_for_control();
  WorkerMachine::Standing standing;
  look_again_.reset();
  if (trace_ && !std::exchange(recovers_, true)) {
    trace_->begin(TraceFile::Row::kRecovery, what.resume ? "recovery" : "the end of this life", what.why.describe());
  }
  if (what.resume || (ends_process(what.why, what.fenced) && !joins_again(what.fenced))) {
    // No call returns, also where failed() ends the process in a moment.
    spill_until_ = now() + settings_.round_timeout_ms / 4;
    standing = engine_.suspend();
    spill_until_.reset();
  } else {
    engine_.stop(what.why);
    // Who waits sees that it has stopped, and asks why, before failed() comes.
    if (failed_.ok() && !joins_again(what.fenced)) failed_ = what.why;
  }
  // The engine's thread runs callbacks: the program's may take as long as they like, and whoever asks for this life's
  // report, and counts its heartbeats, does not wait for them.
  wake(caller_wake_);
  wake(engine_wake_);
  changed_.notify_all();
  return standing;
}

Status Session::attach(Incarnation life, MappedSegment segment) {
  not_for_children(segment.bytes);
  const auto lock = lock_for_control();
  const Status status = host_log_->attach(life, segment.bytes, segment.keeper);
  if (status.ok()) dead_segments_.attached(life, segment.bytes, std::move(segment.keeper));
  return status;
}

void Session::borrowed(Incarnation life, std::uint32_t memory, MappedSegment segment) {
  not_for_children(segment.bytes);
  const auto lock = lock_for_control();
  memory_.attach(life, memory, std::move(segment));
}

void Session::returned(Incarnation life, std::uint32_t memory) {
  const auto lock = lock_for_control();
  memory_.detach(life, memory);
}

void Session::offered(Incarnation life, std::uint32_t memory, OwnedFd fd, std::uint64_t bytes) {
  if (!staging_ || !staging_->shares().offer(life, memory, std::move(fd), bytes)) control_->answer(life, memory, false);
}

void Session::lent(Incarnation life, std::uint32_t memory) {
  const auto lock = lock_for_control();
  memory_.mapped_by(life, memory);
  board_.gpu_readers.store(memory_.readers_on_gpu(), std::memory_order_relaxed);
}

void Session::loaded(const worker_effect::Loaded& loaded) {
  const auto lock = lock_for_control();
  load_from_ = loaded;
  if (checkpoints_->has_followed(loaded)) {
    log_(WARREN_LOG_INFO, "checkpoint " + std::to_string(loaded.version.value - 1) +
                              " is loaded from what this worker has fetched while it was a spare");
  }
  checkpoints_->load(loaded);
  wake(caller_wake_);
}

void Session::tracker_away(bool away) {
  const auto lock = lock_for_control();
  if (!checkpoints_) return;
  checkpoints_->tracker_away(away);
  wake(caller_wake_);
}

void Session::committed(Version version, Timeline timeline) {
  const auto lock = lock_for_control();
  if (!checkpoints_) return;
  checkpoints_->committed(version, timeline);
  gathers_ = {now(), board_.rounds_finished.load(std::memory_order_relaxed)};
  if (said_given_up_ && !host_log_->gives_up()) {
    said_given_up_.reset();
    log_(WARREN_LOG_INFO, "version " + std::to_string(version.value - 1) + " is committed, and all results since are " +
                              "logged: a loss undoes nothing");
  }
  if (trace_) {
    trace_->instant(TraceFile::Row::kCheckpoints, "version " + std::to_string(version.value - 1) + " is committed");
  }
  wake(caller_wake_);
  known_.set_committed(true);
  known_.set_committed_version(version.value);
  known_.set_committed_timeline(timeline.value);
  if (mirror_ && installed_) {
    wire::Known without_setups = known_;
    without_setups.clear_setups();
    without_setups.mutable_plan()->clear_setups();
    mirror_->copy(Epoch(known_.plan_epoch()), timeline, version, self_, note_of(without_setups));
  }
  if (disk_) {
    disk_->writer().note(note_of(known_));
    disk_->writer().drop({engine_.oldest_timeline(), version, {{timeline, version}}, engine_.setups_in_use()});
  }
  if (installed_) look_at_dead_segments();
  look_at_checkpoints();
}

// Lets go of what dead lives of this host have logged and nobody needs any more.
void Session::look_at_dead_segments() {
  const auto living = recall_->replayer().host_lives();
  const bool first = !living.empty() && living.front() == life_;
  const auto looked =
      dead_segments_.look(checkpoints_->horizon(), living, first,
                          board_.rounds_computed.load(std::memory_order_relaxed), *host_log_, recall_->reader());
  look_again_ = looked.more ? std::optional(now() + kLookAgainMs) : std::nullopt;
  for (const DeadSegments::Gone& gone : looked.gone) {
    host_log_->detach(gone.life);
    control_->forget_segment(gone.life, gone.over);
  }
  if (!looked.taken_over.ok()) {
    log_(WARREN_LOG_WARNING, looked.taken_over
                                 .because_of_this("the log segments of lives that are over stay open, at most 512 of "
                                                  "them: what they hold cannot be taken over")
                                 .describe());
  }
}

bool Session::adopt(Epoch epoch, GroupId group, Rank peer, std::uint16_t stream, int fd,
                    std::unique_ptr<HostPipe> pipe) {
  const auto lock = lock_for_control();
  const Status status = transport_.adopt(epoch, group, peer, stream, fd, std::move(pipe));
  if (!status.ok()) {
    log_(WARREN_LOG_WARNING,
         "a connection of rank " + std::to_string(peer.value) + " was dropped: " + status.describe());
    return false;
  }
  wake(caller_wake_);
  wake(engine_wake_);
  return true;
}

void Session::link_failed(GroupId group, Rank peer, const Status& why) {
  const auto lock = lock_for_control();
  transport_.fail_link(group, peer, why);
  wake(caller_wake_);
  wake(engine_wake_);
}

std::optional<int> Session::ends_process(const Status& why, bool fenced) const {
  if (settings_.on_rollback != OnRollback::kExit) return std::nullopt;
  if (why.code() == Code::kRolledBack) return kExitRolledBack;
  // The others go on, and another life can take its place.
  if (fenced && settings_.replicas != 0) return kExitFenced;
  return std::nullopt;
}

void Session::failed(const worker_effect::Fail& what) {
  const Status& why = what.why;
  if (joins_again(what.fenced)) {
    log_(WARREN_LOG_WARNING, why.describe() + "; this worker joins again");
    const auto lock = lock_for_control();
    over_ = why;
    begin_again_ = true;
    changed_.notify_all();
    return;
  }
  if (const auto code = ends_process(why, what.fenced)) {
    log_.before_process_ends();
    log_(WARREN_LOG_ERROR,
         why.describe() + "; this process ends with exit code " + std::to_string(*code) + " to be started again");
    if (trace_) trace_->flush();
    _exit(*code);
  }
  const auto lock = lock_for_control();
  if (failed_.ok()) failed_ = why;
  joined_ = {};
  engine_.stop(why);
  wake(caller_wake_);
  wake(engine_wake_);
  changed_.notify_all();
}

void Session::finished() {
  const auto lock = lock_for_control();
  finished_ = true;
  joined_ = {};
  wake(caller_wake_);
}

void Session::aborted(const std::string& reason) {
  const auto lock = lock_for_control();
  if (finished_) return;
  end_life(Status(Code::kClosed, "the program has aborted its communicator: " + reason), Blame::kProgram);
}

void Session::begin_nothing() {
  drains_.store(true, std::memory_order_relaxed);
}

bool Session::is_idle(const std::unique_lock<std::mutex>& lock) const {
  return lock && callers_ == 0 && engine_.outstanding() == 0 && !states_move();
}

bool Session::may_leave(bool at_once) {
  return at_once || is_idle(std::unique_lock(mutex_, std::try_to_lock));
}

// Calls stay stopped, and no other begins. A life of this host may have left at the same time: what it had spilled to
// the disk is read from here too.
void Session::serve(const wire::Plan& plan) {
  if (disk_) disk_->writer().store().refresh(lives_of(plan));
  fetch_->install(plan);
}

bool Session::leave(bool at_once, int exit_code, const std::function<void()>& say) {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!at_once && !is_idle(lock)) return false;
  if (settings_.on_rollback != OnRollback::kExit) return true;
  const bool preempted = exit_code == kExitPreempted;
  log_.before_process_ends();
  log_(WARREN_LOG_WARNING, "this worker leaves job " + settings_.job + " and ends with exit code " +
                               std::to_string(exit_code) +
                               (preempted ? ": its place is needed elsewhere" : ": a spare takes its place"));
  say();
  if (trace_) {
    trace_->instant(TraceFile::Row::kRecovery, preempted ? "leaves: preempted" : "leaves: replaced by a spare");
    trace_->flush();
  }
  _exit(exit_code);
}

// ---- driving

// Who drains begins nothing: it waits here, with nothing under way, until it has left.
void Session::stay_out(std::unique_lock<std::mutex>& lock) {
  if (!drains_.load(std::memory_order_relaxed)) [[likely]]
    return;
  drive(lock, [&] { return engine_.outstanding() == 0 || engine_.stopped(); });
  run_callbacks(lock);
  await(lock, [&] { return engine_.stopped(); });
}

template <class Done>
void Session::await(std::unique_lock<std::mutex>& lock, Done done) {
  if (interrupt_.asks == nullptr) return changed_.wait(lock, done);
  while (!changed_.wait_for(lock, kAskInterval, done)) ask(lock);
}

Status Session::ask() const {
  if (interrupt_.asks == nullptr) return {};
  const Status goes_on =
      call_program(*this, "the interrupt function", [&] { return interrupt_.asks(interrupt_.context); });
  return goes_on.ok() ? goes_on : Status(Code::kClosed, "the program has interrupted its wait");
}

void Session::ask(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const Status goes_on = ask();
  lock.lock();
  if (!goes_on.ok()) end_life(goes_on, Blame::kProgram);
}

// What is asked may take long (an interpreter's lock): the engine's thread drives meanwhile.
void Session::ask_while_driving(std::unique_lock<std::mutex>& lock) {
  callers_--;
  hand_over();
  ask(lock);
  callers_++;
}

int Session::sleep_ms(Clock::time_point until) const {
  const auto most = interrupt_.asks != nullptr ? kAskInterval : std::chrono::milliseconds(kSleepMs);
  if (until == Clock::time_point::max()) return static_cast<int>(most.count());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now());
  return static_cast<int>(std::clamp(left, std::chrono::milliseconds(0), most).count());
}

void Session::yield_to_control(std::unique_lock<std::mutex>& lock) {
  if (control_waits_.load(std::memory_order_relaxed) == 0) return;
  lock.unlock();
  while (control_waits_.load() != 0) sched_yield();
  lock.lock();
}

void Session::report_failure() {
  if (!engine_.has_trouble()) return;
  if (const auto gap = engine_.take_gap()) control_->log_gap(transport_.epoch(), *gap);
  if (auto failure = engine_.take_failure()) {
    if (failure->by_program) return end_life(failure->status, Blame::kProgram);
    if (failure->status.code() == Code::kPeerLost && failure->peer != kNoRank) {
      control_->link_broken(transport_.epoch(), failure->peer, failure->status.describe());
    }
    // Also of a lost link: one to a rank that has called finalize ends the epoch only if a round needs it.
    control_->round_failed(transport_.epoch(), failure->status);
  }
}

void Session::run_callbacks(std::unique_lock<std::mutex>& lock) {
  while (!engine_.finished_calls().empty()) {
    // Those without a callback now are called by on_complete() itself, which also holds the lock when it looks.
    std::vector<std::shared_ptr<Call>> calls;
    calls.swap(engine_.finished_calls());
    std::erase_if(calls, [](const auto& call) { return call->callback == nullptr; });
    const Counted calls_back(calling_back_);
    lock.unlock();
    for (const auto& call : calls) call_back(*call);
    lock.lock();
    changed_.notify_all();
  }
}

void Session::call_back(Call& call) const {
  const std::string text = call.status.describe();
  const Inside here(*this);
  call.callback(static_cast<warren_code>(call.status.code()), call.status.ok() ? nullptr : text.c_str(),
                call.callback_context);
  call.settled.store(true, std::memory_order_release);
}

bool Session::inside_callback() {
  return Inside::any();
}

bool Session::calls_back_here() const {
  return Inside::of(*this);
}

void Session::log_waits(std::chrono::steady_clock::time_point& next) {
  const auto now = std::chrono::steady_clock::now();
  if (now < next) return;
  // The first look only starts the clock.
  if (next != std::chrono::steady_clock::time_point()) {
    for (const std::string& line : engine_.describe_waits()) log_(WARREN_LOG_INFO, line);
    if (!waits_for_.empty()) log_(WARREN_LOG_INFO, waits_for_);
    if (waits_for_commit_) log_(WARREN_LOG_INFO, describe_commit_wait());
  }
  next = now + kWaitLogInterval;
}

std::string Session::describe_commit_wait() const {
  const Status disk = disk_ ? disk_->writer().health() : Status();
  if (disk.ok()) return checkpoints_->describe_wait();
  return "checkpoint waits: rank " + std::to_string(self_.value) +
         " cannot say that it has stored its part, as its disk does not take it: " + disk.describe();
}

void Session::sleep(std::unique_lock<std::mutex>& lock, int wake_fd, int timeout_ms, bool watch_links) {
  std::vector<pollfd> fds;
  const bool moves = watch_links && (engine_.has_moving() || engine_.has_work_elsewhere() ||
                                     engine_.has_exchange_under_way() || states_move());
  if (watch_links && recall_) {
    if (const auto deadline = recall_->next_deadline()) {
      timeout_ms = static_cast<int>(std::clamp<std::int64_t>(*deadline - now(), 0, timeout_ms));
    }
  }
  if (watch_links) {
    engine_.publish_waits();
    fds.swap(pollfds_);  // keeps its memory; one sleeper at a time uses it
    fds.clear();
    transport_.collect_pollfds(fds);
  }
  fds.push_back({wake_fd, POLLIN, 0});
  // A program that computes while messages may be asked for does not wait.
  const bool waits = watch_links && (callers_ != 0 || engine_.outstanding() > 0);
  if (waits) board_.asleep.fetch_add(1, std::memory_order_relaxed);
  // Looks at buffers that move are too many to be drawn.
  const std::int64_t asleep_ns = waits && trace_ && !moves ? TraceFile::now_ns() : 0;
  std::vector<std::string> waits_for;
  if (asleep_ns != 0) waits_for = engine_.describe_waits();
  if (moves) {
    move_pause_ =
        std::clamp<std::chrono::microseconds>(move_pause_ + move_pause_ / 4, kShortestMovePause, kLongestMovePause);
    const timespec pause = {0, std::chrono::nanoseconds(move_pause_).count()};
    lock.unlock();
    (void)::ppoll(fds.data(), fds.size(), timeout_ms == 0 ? &kNoTime : &pause, nullptr);
  } else {
    lock.unlock();
    (void)::poll(fds.data(), fds.size(), timeout_ms);
  }
  if (waits) board_.asleep.fetch_sub(1, std::memory_order_relaxed);
  if (asleep_ns != 0) {
    trace_->was(TraceFile::Row::kWaits, asleep_ns, "waits",
                waits_for.empty() ? std::string_view() : std::string_view(waits_for.front()));
  }
  std::uint64_t count = 0;
  if (fds.back().revents != 0) (void)!::read(wake_fd, &count, sizeof count);
  lock.lock();
  if (!watch_links) return;
  transport_.woken();
  pollfds_.swap(fds);
  if (recall_) {
    if (const auto deadline = recall_->next_deadline(); deadline && *deadline <= now()) recall_->on_tick();
  }
}

// Calls what fills a call's input, outside the lock; true if there was something.
bool Session::prepare(std::unique_lock<std::mutex>& lock) {
  Call* call = engine_.take_prepare();
  if (call == nullptr) return false;
  lock.unlock();
  Status filled;
  {
    const Span span(trace_.get(), TraceFile::Row::kBuffers, "prepare");
    filled =
        call_program(*this, "the prepare function", [&] { return call->spec.prepare(call->spec.prepare_context); });
  }
  lock.lock();
  const Blame blame = filled.ok() ? Blame::kNobody : Blame::kProgram;
  if (filled.ok() && call->buffers != nullptr) filled = call->buffers->filled();
  // What lies in the buffer must not become part of a result.
  if (!filled.ok()) end_life(filled.because_of_this("cannot read the input of " + describe(*call)), blame);
  engine_.prepared(*call);
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Brings a call's results to where the program wants them, outside the lock; true if there was something.
bool Session::deliver(std::unique_lock<std::mutex>& lock) {
  Call* call = engine_.take_delivery();
  if (call == nullptr) return false;
  lock.unlock();
  Status status;
  {
    const Span span(trace_.get(), TraceFile::Row::kBuffers, "deliver");
    status = call->buffers->deliver();
  }
  lock.lock();
  if (!status.ok()) {
    status = status.because_of_this("cannot write the result of " + describe(*call));
    end_life(status);
  }
  engine_.delivered(*call, status);
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Moves a call's buffers as far as they go, outside the lock; true if something came.
bool Session::move(std::unique_lock<std::mutex>& lock) {
  Call* call = engine_.take_moving();
  if (call == nullptr) return false;
  BufferStream& stream = *call->buffers->stream();
  const auto move_on = [&]() -> Result<bool> {
    try {
      return stream.move();
    } catch (const std::bad_alloc&) {
      return Status(Code::kExhausted, "no memory");  // the engine is to have the call back
    }
  };
  lock.unlock();
  auto moved = move_on();
  lock.lock();
  while (moved.ok() && engine_.stopped() && stream.moves()) {
    // Nobody may come again for what is still under way.
    lock.unlock();
    std::this_thread::sleep_for(kShortestMovePause);
    moved = move_on();
    lock.lock();
  }
  Status status = moved.status();
  if (!status.ok()) {
    try {
      status = status.because_of_this("cannot move the buffers of " + describe(*call));
    } catch (const std::bad_alloc&) {  // the engine is to have the call back
    }
    end_life(status);
  }
  engine_.moved(*call, status);
  if (status.ok() && !moved.value()) return false;
  move_pause_ = {};
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Sees to the end of what moves when the engine has stopped.
void Session::end_moves(std::unique_lock<std::mutex>& lock) {
  while (engine_.has_moving()) (void)move(lock);
}

// Moves what GPUs combine as far as it goes, outside the lock; true if something is done.
bool Session::move_elsewhere(std::unique_lock<std::mutex>& lock) {
  if (std::exchange(moves_elsewhere_, true)) return false;
  lock.unlock();
  const auto moved = staging_->combines().move();
  lock.lock();
  moves_elsewhere_ = false;
  if (!moved.ok()) end_life(moved.status().because_of_this("cannot combine inputs that ranks of this host lend"));
  if (!engine_.take_done_elsewhere()) return false;
  move_pause_ = {};
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// The same of what GPUs exchange.
bool Session::move_exchanged(std::unique_lock<std::mutex>& lock) {
  if (moves_exchanged_.exchange(true)) return false;
  lock.unlock();
  const auto moved = staging_->exchange()->move();
  lock.lock();
  moves_exchanged_ = false;
  if (!moved.ok()) end_life(moved.status().because_of_this("cannot exchange what lies on GPUs"));
  if (!engine_.take_done_exchanged()) return false;
  move_pause_ = {};
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Memory of GPUs that was made, or mapped, by a call of stage().
void Session::tell_of_shares() {
  auto news = staging_->shares().take_news();
  if (!news) return;
  if (!news->trouble.ok()) {
    log_(WARREN_LOG_WARNING,
         news->trouble.describe() + "; large collectives among the GPUs of this host go by way of the CPU");
  }
  const std::lock_guard lock(mutex_);
  if (news->made) {
    const std::span<const std::byte> memory = news->made->memory;
    const std::uint32_t number = memory_.add_on_gpu(memory);
    MemfdSegment& page = *news->made->page;
    OwnedFd fd(::fcntl(page.fd(), F_DUPFD_CLOEXEC, 0));
    // Without it finals come by way of the CPU.
    if (fd.open()) control_->lend(number - 1, std::make_shared<const OwnedFd>(std::move(fd)), page.bytes().size());
    control_->lend(number, std::make_shared<const OwnedFd>(std::move(news->made->fd)), memory.size(), true);
  }
  for (DeviceShares::Answer& answer : news->answers) {
    const bool mapped = answer.mapped.has_value();
    // Of a life that is over meanwhile it goes with the next plan.
    if (mapped) memory_.attach(answer.life, answer.memory, std::move(*answer.mapped), true);
    control_->answer(answer.life, answer.memory, mapped);
  }
}

// Brings states of a checkpoint from a GPU, outside the lock, and logs what has come, a piece at a time, so that rounds
// go on in between; true if there was something.
bool Session::move_states(std::unique_lock<std::mutex>& lock) {
  if (!states_move() || coming_->moves) return false;
  Snapshot& snapshot = *coming_->snapshot;
  coming_->moves = true;
  const bool wanted = !engine_.stopped();
  lock.unlock();
  Result<bool> moved = false;
  if (wanted) {
    moved = snapshot.move();
  } else {
    snapshot.settle();
  }
  lock.lock();
  coming_->moves = false;
  if (!wanted) {
    coming_.reset();
    return false;
  }
  if (!moved.ok()) end_life(moved.status().because_of_this("cannot read the state for a checkpoint"));
  // Whoever comes next sees to the end of it.
  if (engine_.stopped()) return true;
  const auto piece = snapshot.front();
  if (piece) {
    coming_->failure = checkpoints_->give_part(*piece);
    if (coming_->failure.ok()) {
      snapshot.pop();
    } else {
      log_(WARREN_LOG_WARNING, coming_->failure.describe());
    }
    if (snapshot.done()) {
      coming_.reset();
      look_at_checkpoints();
    }
  }
  if (!piece && !moved.value()) return false;
  move_pause_ = {};
  // Whoever waits for it may sleep.
  wake(caller_wake_);
  return true;
}

// Runs what an engine's call owes its program or a GPU; true if there was something.
bool Session::work_outside(std::unique_lock<std::mutex>& lock) {
  if (has_gone_shares()) {
    lock.unlock();
    staging_->shares().release_gone();
    lock.lock();
  }
  if (engine_.has_work_outside() && (prepare(lock) || deliver(lock) || move(lock))) return true;
  if (engine_.has_work_elsewhere() && move_elsewhere(lock)) return true;
  if (engine_.has_exchange_under_way() && move_exchanged(lock)) return true;
  return coming_ && move_states(lock);
}

std::string Session::describe(const Call& call) const {
  if (call.spec.collective == Collective::kPoint) {
    return "rank " + std::to_string(self_.value) + "'s message from rank " + std::to_string(call.spec.root);
  }
  return "rank " + std::to_string(self_.value) + "'s " + to_string(call.fingerprint) + ", " + to_string(call.round);
}

// This life cannot go on, and the others need not wait for it: as after its death, another life takes its place.
void Session::end_life(const Status& why, Blame blame) {
  if (exiting_ || !failed_.ok()) return;
  failed_ =
      why.because_of_this("this worker's life in the job is over; end the process, and its next life takes its place");
  log_(WARREN_LOG_ERROR, failed_.describe());
  joined_ = {};
  engine_.stop(failed_);
  if (blame == Blame::kProgram) {
    control_->leave(false, why.describe());
  } else {
    control_->end_life(why);
  }
  wake(caller_wake_);
  wake(engine_wake_);
  changed_.notify_all();
}

// For handlers of exceptions: the call goes with its caller, and the engine has it, and lets go of it but for what
// moves.
void Session::abandon_call(std::unique_lock<std::mutex>& lock) {
  if (!lock.owns_lock()) lock.lock();
  end_life(Status(Code::kExhausted, "a call of rank " + std::to_string(self_.value) +
                                        " ended with an exception, most likely for want of memory"));
}

// Ends sends that wait for their receives, and else shows on the board that this rank's calls wait for what other ranks
// have not begun, or that they do not. While a thread waits in a call, no other begins one (c_api.cc). True: a call has
// ended.
bool Session::look_whether_blocked(std::unique_lock<std::mutex>& lock) {
  const auto time = std::chrono::steady_clock::now();
  if (time < next_blocked_look_) return false;
  next_blocked_look_ = time + kBlockedLookInterval;
  if (end_waiting_sends(lock)) return true;
  const bool may_call = awaiting_job_ != 0 || calling_back_ != 0 || !batch_.empty() || sends_batch_ || states_move();
  std::optional<wire::Blocked> blocked = may_call ? std::nullopt : engine_.blocked();
  if (!blocked) {
    show_unblocked();
    return false;
  }
  if (shown_blocked_ != nullptr && shown_blocked_->SerializeAsString() == blocked->SerializeAsString()) return false;
  shown_blocked_ = std::make_shared<const wire::Blocked>(std::move(*blocked));
  board_.show_blocked(shown_blocked_);
  return false;
}

// True: a call has ended.
bool Session::end_waiting_sends(std::unique_lock<std::mutex>& lock) {
  const std::vector<Rank> ranks = engine_.end_waiting_sends();
  if (ranks.empty()) return false;
  if (!std::exchange(told_of_waiting_sends_, true)) {
    log_(WARREN_LOG_WARNING,
         "a send of rank " + std::to_string(self_.value) + " to rank " + std::to_string(ranks[0].value) +
             " has returned after a second in which that rank received nothing: the log has the message, which "
             "follows. Ranks that send to each other before they receive wait so each time: receive first, or send "
             "asynchronously (this is said once)");
  }
  if (!engine_.finished_calls().empty()) run_callbacks(lock);
  return true;
}

void Session::show_unblocked() {
  if (shown_blocked_ == nullptr) return;
  shown_blocked_ = nullptr;
  board_.show_blocked(nullptr);
}

template <class Done>
void Session::drive(std::unique_lock<std::mutex>& lock, Done done, Clock::time_point until) {
  if (done()) {
    // The lock is free for a moment only until the next call.
    yield_to_control(lock);
    return hand_over();
  }
  struct Unwatch {
    ~Unwatch() { watched = false; }
    bool& watched;
  };
  std::optional<Counted> caller(callers_);
  bool slept = false;  // and nothing has moved since
  show_unblocked();
  const Inside here(*this);  // reductions run in here
  int idle = 0, moves = 0;
  Clock::time_point idle_since, next_log, next_ask;
  const auto ask_now_and_then = [&] {
    const auto time = Clock::now();
    if (time < next_ask) return;
    // The first look only starts the clock.
    if (next_ask != Clock::time_point()) ask_while_driving(lock);
    next_ask = time + kAskInterval;
  };
  while (!done()) {
    const bool outside = work_outside(lock);
    // States that are logged piece by piece hold up no round.
    const bool moved = engine_.progress() || outside;
    if (outside) report_failure();
    // Also of calls that another thread has finished: with a plan, or with what was fetched.
    if (!engine_.finished_calls().empty()) run_callbacks(lock);
    if (moved) {
      idle = 0;
      slept = false;
      show_unblocked();
      if (callers_ > 1) changed_.notify_all();
      yield_to_control(lock);
      if (interrupt_.asks != nullptr && ++moves % kMovesBetweenLooksAtTheClock == 0) ask_now_and_then();
      continue;
    }
    report_failure();
    look_at_checkpoints();
    yield_to_control(lock);
    bool idles = true;
    if (++idle % kPollsBetweenLooksAtTheClock == 0) {
      const auto time = std::chrono::steady_clock::now();
      if (idle == kPollsBetweenLooksAtTheClock) idle_since = time;
      idles = time - idle_since < kIdleTime;
    }
    if (idles) {
      lock.unlock();
      const auto before = std::chrono::steady_clock::now();
      sched_yield();
      const auto yielded = std::chrono::steady_clock::now() - before;
      lock.lock();
      core_.yielded(yielded);
      continue;
    }
    // Another look at what is posted comes before the sleep.
    if (engine_.post_all()) continue;
    log_waits(next_log);
    if (std::exchange(slept, true)) {
      if (look_whether_blocked(lock)) continue;
    } else {
      next_blocked_look_ = std::chrono::steady_clock::now() + kBlockedLookInterval;
    }
    if (watched_) {
      // Both would sleep on the same descriptors, and who is sooner takes away what wakes the other.
      changed_.wait_for(lock, std::chrono::milliseconds(sleep_ms(until)));
    } else {
      watched_ = true;
      {
        const Unwatch at_end{watched_};
        sleep(lock, caller_wake_, sleep_ms(until), true);
      }
      if (callers_ > 1) changed_.notify_all();
    }
    if (interrupt_.asks != nullptr) ask_now_and_then();
    idle = 0;
  }
  caller.reset();
  show_unblocked();
  hand_over();
}

// Also what GPUs are at for a round that is no more: it holds memory that the next calls may need.
bool Session::has_to_go_on() const {
  return engine_.outstanding() > 0 || engine_.unsettled() || engine_.has_work_elsewhere() || states_move() ||
         has_gone_shares();
}

// What goes on while nobody blocks is the engine's thread's.
void Session::hand_over() {
  // What has come for another caller may have been taken off its link here; and one of them watches from here on.
  if (callers_ != 0) {
    changed_.notify_all();
    return wake(caller_wake_);
  }
  if (has_to_go_on()) wake(engine_wake_);
}

void Session::engine_loop() {
  const Inside here(*this);
  std::unique_lock lock(mutex_);
  std::chrono::steady_clock::time_point next_log;
  while (true) {
    // Other threads finish calls too: with a plan, or with what was fetched.
    run_callbacks(lock);
    if (exiting_) return;
    const bool mine = callers_ == 0 && has_to_go_on();
    if (!mine) next_log = {};  // a caller that waits logs it
    if (mine) {
      const bool outside = work_outside(lock);
      const bool moved = engine_.progress() || outside;
      // Who has come meanwhile may sleep for a call that this has finished.
      if (moved && callers_ != 0) wake(caller_wake_);
      run_callbacks(lock);
      if (exiting_) return;
      report_failure();
      look_at_checkpoints();
      yield_to_control(lock);
      if (moved) {
        next_log = {};
        continue;
      }
      log_waits(next_log);
    }
    sleep(lock, engine_wake_, mine ? kSleepMs : -1, mine);
  }
}

// ---- calls

Status Session::stage(Call& call, const GroupShape& shape) {
  if (const Status staged = stage_on_gpu(call, shape); !staged.ok()) return staged;
  return call.spec.wire == DataType{} ? Status() : narrow(call, shape, copy_memory_);
}

Status Session::stage_on_gpu(Call& call, const GroupShape& shape) {
  if (staging_ == nullptr) return {};
  Status staged = judge(staging_->stage(call, shape));
  tell_of_shares();
  return staged;
}

// What a GPU has said outside of the lock: one that fails ends this life.
Status Session::judge(const Status& status) {
  if (status.code() == Code::kUnavailable || status.code() == Code::kTimeout) {
    const std::lock_guard lock(mutex_);
    end_life(status);
  }
  return status;
}

// Serializes what a lazy checkpoint owes, outside the lock, and logs it; says that the log has no room for states that
// come from a GPU, after which they try again.
Status Session::give_state(std::unique_lock<std::mutex>& lock) {
  if (coming_ && !coming_->failure.ok()) [[unlikely]] {
    Status full = std::exchange(coming_->failure, Status());
    hand_over();
    return full;
  }
  if (serialize_ == nullptr) [[likely]]
    return {};
  if (!failed_.ok()) return failed_;
  const void* bytes = nullptr;
  std::size_t size = 0;
  lock.unlock();
  const Status called = call_program(*this, "the function that a lazy checkpoint calls",
                                     [&] { return serialize_(&bytes, &size, serialize_context_); });
  if (!called.ok()) {
    lock.lock();
    end_life(called, Blame::kProgram);
    return failed_.ok() ? called : failed_;
  }
  if (bytes == nullptr && size != 0) {
    lock.lock();
    return {Code::kInvalidArgument,
            "the function that a lazy checkpoint calls has given " + std::to_string(size) + " bytes at NULL"};
  }
  const auto state = read_state({static_cast<const std::byte*>(bytes), size}, serialize_stream_);
  lock.lock();
  if (!state.ok()) return state.status();
  if (engine_.stopped()) return gone();
  StateHashes hashes = hash_unlogged(lock, state.value().bytes);
  if (engine_.stopped()) return gone();
  const Status status = checkpoints_->give_state(state.value().bytes, std::move(hashes));
  if (!status.ok()) return status;
  serialize_ = nullptr;
  look_at_checkpoints();
  return {};
}

Status Session::run(GroupId group, Call& call) {
  std::unique_lock lock(mutex_);
  const Status status = clear_way(lock, group, call);
  return status.ok() ? drive_through(lock, group, call) : status;
}

Status Session::run(GroupId group, const GroupShape& shape, const CallSpec& spec,
                    std::shared_ptr<const std::vector<Rank>>& contributors) {
  const bool plain = staging_ == nullptr && spec.wire == DataType{} && spec.prepare == nullptr;
  std::unique_lock lock(mutex_, std::defer_lock);
  if (plain) lock.lock();
  const bool clear = plain && way_is_clear();
  bool done = false;
  try {
    if (clear) {  // and so the lock is held
      core_.called();
      done = engine_.run_at_once(group, spec, core_.free() ? looks_ : 0);
    }
  } catch (...) {
    abandon_call(lock);
    throw;
  }
  if (!done) return run_by_call(lock, group, shape, spec, clear, contributors);
  if (!engine_.finished_calls().empty()) run_callbacks(lock);
  yield_to_control(lock);
  contributors = nullptr;
  return {};
}

// `lock` is held, unless the buffers may have to be staged. `clear`: the way is, and a round that may have begun is
// gone on with before anything else.
Status Session::run_by_call(std::unique_lock<std::mutex>& lock, GroupId group, const GroupShape& shape,
                            const CallSpec& spec, bool clear, std::shared_ptr<const std::vector<Rank>>& contributors) {
  Call call;
  call.spec = spec;
  Status status;
  if (!lock.owns_lock()) {
    status = stage(call, shape);
    if (!status.ok()) return status;
    lock.lock();
  }
  if (!clear) status = clear_way(lock, group, call);
  if (status.ok()) status = drive_through(lock, group, call);
  contributors = std::move(call.contributors);
  return status;
}

// Nothing of what clear_way() does would be to do.
bool Session::way_is_clear() const {
  return callers_ == 0 && !fusing_ && batch_.empty() && !sends_batch_ && serialize_ == nullptr &&
         settings_.min_workers == 0 && !drains_.load(std::memory_order_relaxed);
}

Status Session::clear_way(std::unique_lock<std::mutex>& lock, GroupId group, const Call& call) {
  if (Status status = may_call(group, call); !status.ok()) return status;
  // A set-up round may be made by one life alone, and ends no batch: it has no number among the others.
  if (call.setup.empty()) send_batch(lock);
  stay_out(lock);
  return give_state(lock);
}

Status Session::drive_through(std::unique_lock<std::mutex>& lock, GroupId group, Call& call) {
  call.blocking = true;
  bool submitted = false;
  try {
    if (Status status = engine_.submit(group, call); !status.ok()) return status;
    submitted = true;
    drive(lock, [&] { return call.finished.load(std::memory_order_relaxed); });
  } catch (...) {
    abandon_call(lock);
    // What a GPU has under way for it comes to its end, and so does what another thread prepares or delivers; until
    // then the engine has the call. Its own thread takes what is left.
    end_moves(lock);
    while (submitted && !call.finished.load(std::memory_order_relaxed)) {
      lock.unlock();
      std::this_thread::sleep_for(kShortestMovePause);
      lock.lock();
    }
    throw;
  }
  if (!engine_.finished_calls().empty()) run_callbacks(lock);
  return call.status;
}

Status Session::submit(GroupId group, const std::shared_ptr<Call>& call) {
  std::unique_lock lock(mutex_);
  if (Status status = may_call(group, *call); !status.ok()) return status;
  if (call->setup.empty()) send_batch(lock);
  return submit(lock, group, call);
}

Status Session::needs_mode_wait(std::string_view what) const {
  if (settings_.min_workers == 0) [[likely]]
    return {};
  return {Code::kInvalidArgument,
          std::string(what) +
              ": mode shrink does not have this. It has allreduce and barrier on all ranks, with inputs that stand in "
              "memory of the CPU, and checkpoints of a global state; mode=wait has everything"};
}

// Not all ranks exchange messages or call what another group calls, and so a batch would end at some of them alone.
Status Session::may_call(GroupId group, const Call& call) const {
  if (settings_.min_workers != 0) [[unlikely]] {
    const Collective c = call.spec.collective;
    if (group != kWorldGroup) return needs_mode_wait("a call on a group");
    if (!call.setup.empty()) return needs_mode_wait("the set-up round \"" + call.setup + "\"");
    if (c != Collective::kAllreduce && c != Collective::kBarrier) return needs_mode_wait(to_string(c));
    // Both fill the input when the round begins: too late for what is kept for another attempt at it.
    if (call.buffers != nullptr) return needs_mode_wait("a wire type, or a buffer on a GPU");
    if (call.spec.prepare != nullptr) return needs_mode_wait("a prepare function");
  }
  if (!fusing_ || (group == *fusing_ && call.spec.collective != Collective::kPoint)) [[likely]]
    return {};
  return {Code::kInvalidArgument, std::string(to_string(call.spec.collective)) +
                                      ": messages, and calls of other communicators, come before fusion_begin or "
                                      "after fusion_end"};
}

Status Session::begin_fusion(GroupId group) {
  if (const Status status = needs_mode_wait("fusion_begin"); !status.ok()) return status;
  const std::lock_guard lock(mutex_);
  if (fusing_) return {Code::kInvalidArgument, "fusion_begin: the one before, of any communicator, has not ended"};
  fusing_ = group;
  return {};
}

void Session::end_fusion() {
  std::unique_lock lock(mutex_);
  send_batch(lock);
  fusing_.reset();
}

Status Session::submit(std::unique_lock<std::mutex>& lock, GroupId group, const std::shared_ptr<Call>& call) {
  stay_out(lock);
  Status status = give_state(lock);
  if (!status.ok()) return status;
  call->self = call;
  status = engine_.submit(group, *call);
  if (!status.ok()) {
    call->self.reset();
    return status;
  }
  if (!call->finished.load(std::memory_order_relaxed)) wake(engine_wake_);
  run_callbacks(lock);
  return {};
}

// Whether it is sent or not may hang on what was said of earlier calls alone (worker/fusion.h).
Status Session::fuse(GroupId group, const GroupShape& shape, const std::shared_ptr<Call>& call,
                     std::uint64_t most_bytes) {
  const CallSpec& spec = call->spec;
  const bool takes = Batch::takes(*call, most_bytes);
  Staging::Lies lies;
  std::unique_ptr<DeviceCopies::Event> after;
  if (staging_ != nullptr && takes) {
    const auto found = staging_->find(spec, shape);
    if (!found.ok()) return judge(found.status());
    lies = found.value();
    auto marked = staging_->mark(lies, spec.stream);
    if (!marked.ok()) {
      const std::lock_guard lock(mutex_);
      end_life(marked.status());
      return marked.status();
    }
    after = std::move(marked).value();
  } else if (const Status staged = stage_on_gpu(*call, shape); !staged.ok()) {
    return staged;
  }
  if (const auto reducer = Reducer::make(spec.type, spec.op, static_cast<std::uint32_t>(shape.size), spec.custom_bytes,
                                         spec.custom, spec.custom_context);
      !reducer.ok()) {
    return reducer.status();
  }
  std::unique_lock lock(mutex_);
  if (!takes) {
    if (call->setup.empty()) send_batch(lock);
    if (call->spec.wire != DataType{}) {
      if (const Status narrowed = narrow(*call, shape, copy_memory_); !narrowed.ok()) return narrowed;
    }
    return submit(lock, group, call);
  }
  if (!batch_.empty() && !batch_.fits(group, *call, most_bytes)) send_batch(lock);
  stay_out(lock);
  if (const Status given = give_state(lock); !given.ok()) return given;
  if (engine_.stopped()) return gone();
  call->fingerprint = fingerprint_of(call->spec, 0);
  if (trace_) {
    trace_->issued(*call);
    call->traced = true;
  }
  try {
    if (staging_ != nullptr) Staging::add(lies, std::move(after), batch_.on_gpu());
    batch_.add(group, shape, call);
  } catch (...) {  // one knows of it, the other perhaps not
    abandon_call(lock);
    throw;
  }
  if (batch_.full(most_bytes)) send_batch(lock);
  return {};
}

void Session::send_fused() {
  std::unique_lock lock(mutex_);
  send_batch(lock);
}

// Its parts' failures are told to those who wait for them. Another thread may be at it, for whom a part was waited for
// or freed, and has let go of the lock: whatever comes next comes after that batch on all ranks, and waits for it.
void Session::send_batch(std::unique_lock<std::mutex>& lock) {
  if (batch_.empty() && !sends_batch_) [[likely]]
    return;
  changed_.wait(lock, [&] { return !sends_batch_; });
  if (batch_.empty()) return;
  struct Sending {
    Sending(Session& session, std::unique_lock<std::mutex>& held) : session_(session), lock_(held) {
      session_.sends_batch_ = true;
    }
    ~Sending() {
      if (!lock_.owns_lock()) lock_.lock();  // after an exception
      session_.sends_batch_ = false;
      session_.changed_.notify_all();
    }
    Sending(const Sending&) = delete;
    Sending& operator=(const Sending&) = delete;
    Session& session_;
    std::unique_lock<std::mutex>& lock_;
  };
  std::optional<Sending> sending(std::in_place, *this, lock);
  // As many calls as there may be at once are under way on one rank and not on another: what was taken is not refused.
  drive(lock, [&] { return engine_.outstanding() < limits::kMaxOutstandingRounds || engine_.stopped(); });
  std::vector<std::shared_ptr<Call>> lost;
  Batch batch = std::exchange(batch_, {});
  Result<std::shared_ptr<Call>> call = Status(Code::kExhausted, "no memory to put allreduces together");
  // What it takes for them may wait for a GPU. No other call of the program's comes in between.
  lock.unlock();
  try {
    call = batch.close(copy_memory_, staging_.get(), lost);
    if (staging_ != nullptr) tell_of_shares();
  } catch (const std::bad_alloc&) {
    // As if it had said so; its parts are among those that are lost.
  }
  lock.lock();
  Status status = call.status();
  // The others will make this round, and nobody else can make this rank's part in it.
  if (!call.ok()) end_life(status);
  if (call.ok()) {
    status = submit(lock, batch.group(), call.value());
    if (!status.ok())
      lost = call.value()->parts.empty() ? std::vector{call.value()} : std::exchange(call.value()->parts, {});
  }
  sending.reset();
  for (const auto& part : lost) engine_.end_unsent(part, status);
  run_callbacks(lock);
}

Status Session::wait(Call& call) {
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (!call.settled.load(std::memory_order_acquire)) {
    std::unique_lock lock(mutex_);
    drive(lock, [&] { return call.finished.load(std::memory_order_relaxed); });
    run_callbacks(lock);
    // Another thread may be inside the callback.
    changed_.wait(lock, [&] { return call.settled.load(std::memory_order_relaxed); });
  }
  return call.status;
}

bool Session::wait_for(Call& call, std::int64_t timeout_ms) {
  const auto until = Clock::now() + std::chrono::milliseconds(timeout_ms);
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (call.settled.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(mutex_);
  drive(
      lock, [&] { return call.finished.load(std::memory_order_relaxed) || Clock::now() >= until; }, until);
  run_callbacks(lock);
  return changed_.wait_until(lock, until, [&] { return call.settled.load(std::memory_order_relaxed); });
}

void Session::finish_within(const std::shared_ptr<Call>& call, std::int64_t timeout_ms) {
  {
    const std::lock_guard lock(mutex_);
    deadlines_.add(call, timeout_ms, now());
  }
  control_->tick();
}

bool Session::test(Call& call) {
  if (call.in_batch.load(std::memory_order_relaxed)) send_fused();
  if (call.settled.load(std::memory_order_acquire)) return true;
  std::unique_lock lock(mutex_);
  yield_to_control(lock);  // a program may call this again and again, and leave the lock free for moments only
  const Inside here(*this);
  const bool moved = engine_.progress();
  report_failure();
  run_callbacks(lock);
  // What this has posted is not among the descriptors that the engine's thread sleeps on.
  if (moved && engine_.outstanding() > 0) wake(engine_wake_);
  // Nor those that another caller does, whose call this may have finished, as the last one too.
  if (moved && callers_ != 0) wake(caller_wake_);
  return call.settled.load(std::memory_order_relaxed);
}

Status Session::on_complete(Call& call, warren_callback callback, void* context) {
  {
    const std::lock_guard lock(mutex_);
    if (call.callback != nullptr) return {Code::kInvalidArgument, "this handle has a callback already"};
    call.callback = callback;
    call.callback_context = context;
    if (!call.finished.load(std::memory_order_relaxed)) return {};
    const auto& waiting = engine_.finished_calls();
    const bool will_be_called =
        std::any_of(waiting.begin(), waiting.end(), [&](const auto& c) { return c.get() == &call; });
    call.settled.store(false, std::memory_order_relaxed);
    if (will_be_called) return {};
  }
  call_back(call);
  const std::lock_guard lock(mutex_);
  changed_.notify_all();
  return {};
}

Result<bool> Session::meets(std::vector<std::uint64_t> sites) {
  if (const Status status = needs_mode_wait("meets_round"); !status.ok()) return status;
  std::unique_lock lock(mutex_);
  if (fusing_) return Status(Code::kInvalidArgument, "meets_round comes before fusion_begin or after fusion_end");
  drive(lock, [&] { return engine_.idle(kWorldGroup) || engine_.stopped(); });
  run_callbacks(lock);
  if (engine_.stopped()) return gone();
  if (engine_.version() == kPreamble) {
    return Status(Code::kInvalidArgument, "meets_round comes after load_checkpoint");
  }
  if (const Status given = give_state(lock); !given.ok()) return given;
  engine_.ask_next(std::move(sites));
  std::optional<bool> met;
  drive(lock, [&] { return (met = engine_.take_answer()) || engine_.stopped(); });
  if (!met) return gone();
  return *met;
}

Engine::Channels Session::used_channels() {
  const std::lock_guard lock(mutex_);
  return engine_.used_channels();
}

Status Session::add_group(GroupId id, std::vector<Rank> members, std::uint32_t channel) {
  const std::lock_guard lock(mutex_);
  if (!failed_.ok()) return failed_;
  return engine_.add_group(id, std::move(members), channel);
}

Status Session::make_group(GroupId id, const std::vector<Rank>& members, std::uint64_t site) {
  const auto rank = static_cast<std::int32_t>(std::ranges::find(members, self_) - members.begin());
  if (Status added = add_group(id, members, Engine::kMeetingChannel); !added.ok()) return added;
  auto used = used_channels();
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = DataType::kU64;
  spec.op = ReduceOp::kBitOr;
  spec.input = spec.output = used.data();
  spec.count = used.size();
  spec.site = site;
  std::shared_ptr<const std::vector<Rank>> contributors;
  Status status = run(id, {rank, static_cast<std::int32_t>(members.size())}, spec, contributors);
  const auto channel = Engine::free_channel(used);
  if (status.ok() && !channel) status = no_channel();
  if (!status.ok()) {
    remove_group(id);
    return status;
  }
  const std::lock_guard lock(mutex_);
  engine_.move_group(id, *channel);
  return {};
}

Status Session::no_channel() {
  return {Code::kExhausted, "over " + std::to_string(limits::kMaxGroups) +
                                " groups at once: destroy communicators that are no longer needed"};
}

void Session::remove_group(GroupId id) {
  std::unique_lock lock(mutex_);
  if (!engine_.has_group(id)) return;
  if (fusing_ == id) {
    send_batch(lock);
    fusing_.reset();
  }
  // Where the engine has stopped, all calls have finished but one whose prepare function runs.
  drive(lock, [&] { return engine_.idle(id); });
  run_callbacks(lock);
  engine_.remove_group(id);
  hand_over();
}

bool Session::setup_known(GroupId group, const std::string& name) {
  const std::lock_guard lock(mutex_);
  return engine_.setup_known(group, setup_sequence(name));
}

Result<void*> Session::allocate(std::uint64_t bytes) {
  auto made = HostMemory::make(bytes);
  if (!made.ok()) return made.status();
  const std::span<std::byte> all = made.value()->bytes();
  OwnedFd fd(::fcntl(made.value()->fd(), F_DUPFD_CLOEXEC, 0));
  if (!fd.open()) return Status(Code::kUnavailable, std::string("cannot make a descriptor: ") + std::strerror(errno));
  const std::lock_guard lock(mutex_);
  const auto number = memory_.add(std::move(made).value());
  if (!number.ok()) return number.status();
  control_->lend(number.value(), std::make_shared<const OwnedFd>(std::move(fd)), all.size());
  return static_cast<void*>(all.data());
}

Status Session::free(void* memory) {
  std::optional<HostMemory::Removed> removed;  // unmapped outside the lock
  const std::lock_guard lock(mutex_);
  removed = memory_.remove(memory);
  if (!removed) {
    return {Code::kInvalidArgument, "this is no memory that was allocated with this communicator's job, or was freed"};
  }
  control_->take_back(removed->memory);
  return {};
}

std::vector<std::string> Session::hosts() {
  const std::lock_guard lock(mutex_);
  return host_of_;
}

RoundId Session::next_round(GroupId group) {
  std::unique_lock lock(mutex_);
  // Not another group's, on whose account this one's next call is refused: it would end at some ranks alone.
  if (fusing_ == group) send_batch(lock);
  return engine_.next_round(group);
}

std::uint64_t Session::version() {
  const std::lock_guard lock(mutex_);
  return engine_.version() == kPreamble ? 0 : engine_.version().value - 1;
}

std::uint64_t Session::committed_version() {
  const std::lock_guard lock(mutex_);
  const Version committed = checkpoints_ ? checkpoints_->newest_committed() : kPreamble;
  return committed == kPreamble ? 0 : committed.value - 1;
}

Status Session::gone() const {
  return failed_.ok() ? Status(Code::kClosed, "the communicator has been closed") : failed_;
}

Result<Session::State> Session::load() {
  const Span span(trace_.get(), TraceFile::Row::kCheckpoints, "load_checkpoint");
  std::unique_lock lock(mutex_);
  send_batch(lock);
  if (engine_.version() != kPreamble) {
    return Status(Code::kInvalidArgument, "load_checkpoint is called once, before the first checkpoint");
  }
  drive(lock, [&] { return engine_.outstanding() == 0; });
  run_callbacks(lock);
  if (!failed_.ok()) return failed_;
  if (!checkpoints_) {
    const Status status = engine_.begin_version(version_of_program(0));
    if (!status.ok()) return status;
    return State{};
  }
  std::optional<Result<State>> result;
  bool lost = false;
  do {
    control_->load();
    result.reset();
    waits_for_ =
        "load_checkpoint waits for the tracker to say where the program starts, or for the copies of its state";
    const Counted waits(awaiting_job_);
    drive(lock, [&] {
      if (!result) result = checkpoints_->loaded();
      return result || engine_.stopped();
    });
    lost = result && result->status().code() == Code::kUnavailable;
    if (lost && mirror_) lost = load_from_mirror(lock, result);
    waits_for_.clear();
  } while (lost && await_verdict(lock, checkpoints_->loaded_in(), result->status()));
  if (!result || (!result->ok() && engine_.stopped())) return gone();
  if (result->status().code() == Code::kDesync) control_->round_failed(transport_.epoch(), result->status());
  return std::move(*result);
}

// The hosts of this epoch do not hold it, and without it nobody else goes on either: the tracker says so to all.
// Whether there is something to be loaded now: another epoch has begun instead, with hosts that have not been asked.
bool Session::await_verdict(std::unique_lock<std::mutex>& lock, Epoch asked_in, const Status& lost) {
  if (engine_.stopped() || transport_.epoch() != asked_in) return !engine_.stopped();
  WorkerMachine::Gap gap;
  gap.reason = lost.describe();
  gap.checkpoint = load_from_;
  control_->log_gap(asked_in, std::move(gap));
  waits_for_ = "load_checkpoint waits for the tracker to say what becomes of the job: " + lost.describe();
  const Counted waits(awaiting_job_);
  drive(lock, [&] { return engine_.stopped() || transport_.epoch() != asked_in; });
  waits_for_.clear();
  return !engine_.stopped();
}

// The log has lost it. Whether the mirror has too: it is not there, or damaged. What keeps this worker alone from
// reading it, or from holding it, is no word about the job: another life of it, or on another machine, may.
bool Session::load_from_mirror(std::unique_lock<std::mutex>& lock, std::optional<Result<State>>& result) {
  const worker_effect::Loaded what = load_from_;
  const std::uint64_t run = known_.plan().run();
  const Rank self = self_;
  lock.unlock();
  auto found = mirror_->read(run, what.timeline, what.version, self);
  lock.lock();
  if (engine_.stopped()) {
    result.reset();
    return false;
  }
  const Status lost = result->status();
  if (found.ok() && !found.value()) {
    result = lost.because_of_this("the mirror does not hold it either");
    return true;
  }
  Status status = found.status();
  const bool damaged = status.code() == Code::kCorrupt;
  if (status.ok()) {
    Mirror::State& from = *found.value();
    status = checkpoints_->restore(what, {0, from.world_size, std::move(from.global), std::move(from.local)},
                                   from.has_local);
  }
  if (!status.ok()) {
    result = lost.because_of_this(damaged ? lost.code() : status.code(), status.describe());
    return damaged;
  }
  log_(WARREN_LOG_WARNING, "version " + std::to_string(what.version.value - 1) + " of job " + settings_.job +
                               " was loaded from " + settings_.checkpoint_mirror + ": the log has lost it");
  result = checkpoints_->loaded();
  return false;
}

// Completes outstanding calls; a checkpoint may be taken once await_commit() has returned, too.
Status Session::end_calls(std::unique_lock<std::mutex>& lock) {
  if (engine_.version() == kPreamble) {
    return {Code::kInvalidArgument, "checkpoint comes after load_checkpoint, which says where the program starts"};
  }
  send_batch(lock);
  drive(lock, [&] { return engine_.outstanding() == 0; });
  run_callbacks(lock);
  stay_out(lock);
  if (!failed_.ok()) return failed_;
  if (!checkpoints_) return {};
  if (disk_) {
    if (Status s = disk_->writer().takes_checkpoints(); !s.ok()) return s;
  }
  return give_state(lock);
}

// Waits for the commit of the checkpoint before; while the tracker is away, for room for another one.
Status Session::await_commit(std::unique_lock<std::mutex>& lock) {
  waits_for_commit_ = true;
  const Counted waits(awaiting_job_);
  drive(lock, [&] { return checkpoints_->may_take() || engine_.stopped() || (coming_ && !coming_->failure.ok()); });
  waits_for_commit_ = false;
  return engine_.stopped() ? gone() : give_state(lock);
}

void Session::look_at_taken(const Status& status) {
  if (status.code() == Code::kDesync) control_->round_failed(transport_.epoch(), status);
  look_at_checkpoints();
}

// A place of a state in memory of the CPU. Outside the lock.
Result<Staging::Copy> Session::read_state(std::span<const std::byte> state, void* stream) {
  if (staging_ == nullptr) return Staging::Copy{state, {}};
  auto copy = staging_->read(state, stream);
  if (!copy.ok()) return judge(copy.status().because_of_this("cannot read the state for a checkpoint"));
  return copy;
}

// Likewise of all of them. Copies of several places leave the pinned memory, whose budget may be less than all of them.
Result<Session::Readable> Session::read_places(Places places, void* stream) {
  if (places.size() == 1) {
    auto copy = read_state(places.front(), stream);
    if (!copy.ok()) return copy.status();
    const std::span<const std::byte> bytes = copy.value().bytes;
    return Readable{std::move(copy).value(), {}, bytes};
  }
  std::vector<std::vector<std::byte>> copies;
  std::vector<std::span<const std::byte>> readable;
  for (const std::span<const std::byte> place : places) {
    const auto copy = read_state(place, stream);
    if (!copy.ok()) return copy.status();
    std::span<const std::byte> bytes = copy.value().bytes;
    if (bytes.data() != place.data()) bytes = copies.emplace_back(bytes.begin(), bytes.end());
    readable.push_back(bytes);
  }
  return Readable{{}, std::move(copies), PlacedState(std::move(readable))};
}

Status Session::checkpoint(Places global, const Places* local, void* stream) {
  if (local != nullptr) {
    if (const Status status = needs_mode_wait("a checkpoint with local states"); !status.ok()) return status;
  }
  const Span span(trace_.get(), TraceFile::Row::kCheckpoints, "checkpoint");
  std::unique_lock lock(mutex_);
  Status status = end_calls(lock);
  if (!status.ok()) return status;
  if (!checkpoints_) return engine_.begin_version(engine_.version().next());
  const std::uint64_t global_bytes = bytes_of(global);
  const auto local_bytes = local == nullptr ? std::nullopt : std::optional(bytes_of(*local));
  status = Checkpoints::may_hold(std::max(global_bytes, local_bytes.value_or(0)));
  if (!status.ok()) return status;
  lock.unlock();
  // Where ranks may be lost for good, all of a state is kept on the CPU until it is committed.
  Result<bool> on_gpu = false;
  if (staging_ != nullptr && settings_.min_workers == 0) {
    // Also where what this rank logs of it is on the CPU alone: all ranks go one way.
    on_gpu = staging_->holds(pieces_of(global, local, Ranges(0, global_bytes)));
    if (!on_gpu.ok()) return judge(on_gpu.status().because_of_this("cannot read the state for a checkpoint"));
  }
  if (on_gpu.value()) return checkpoint_on_gpu(lock, global, local, stream);
  const auto global_state = read_places(global, stream);
  const auto local_state = read_places(local == nullptr ? Places() : *local, stream);
  lock.lock();
  if (!global_state.ok()) return global_state.status();
  if (!local_state.ok()) return local_state.status();
  // While the checkpoint before is still being committed.
  StateHashes hashes = hash_unlogged(lock, global_state.value().state);
  status = await_commit(lock);
  if (!status.ok()) return status;
  status = checkpoints_->take(global_state.value().state, local == nullptr ? nullptr : &local_state.value().state,
                              std::move(hashes));
  look_at_taken(status);
  return status;
}

Status Session::checkpoint_from(std::int32_t root, Places global, const Places* local, void* stream,
                                std::uint64_t site) {
  if (const Status status = needs_mode_wait("a checkpoint from a root"); !status.ok()) return status;
  if (root < 0 || root >= static_cast<std::int32_t>(world_size())) {
    return {Code::kInvalidArgument, "the root of a checkpoint is rank " + std::to_string(root) + ", and the job has " +
                                        std::to_string(world_size()) + " ranks"};
  }
  const Span span(trace_.get(), TraceFile::Row::kCheckpoints, "checkpoint");
  std::unique_lock lock(mutex_);
  Status status = end_calls(lock);
  if (!status.ok()) return status;
  if (!checkpoints_) return engine_.begin_version(engine_.version().next());
  const bool is_root = self_.value == root;
  // Before the others have heard of the call.
  const std::uint64_t bytes = is_root ? bytes_of(global) : 0;
  const std::uint64_t local_bytes = local == nullptr ? 0 : bytes_of(*local);
  status = Checkpoints::may_hold(std::max(bytes, local_bytes));
  if (!status.ok()) return status;
  lock.unlock();
  const auto global_state = read_places(is_root ? global : Places(), stream);
  if (!global_state.ok()) return global_state.status();
  const auto local_state = read_places(local == nullptr ? Places() : *local, stream);
  if (!local_state.ok()) return local_state.status();
  const PlacedState* const roots = is_root ? &global_state.value().state : nullptr;
  auto agreed = share_hashes(root, roots, site);
  if (!agreed.ok()) return agreed.status();
  lock.lock();
  status = await_commit(lock);
  if (!status.ok()) return status;
  status = checkpoints_->take_from_root(roots, local == nullptr ? nullptr : &local_state.value().state,
                                        std::move(agreed).value());
  look_at_taken(status);
  return status;
}

// Tells all ranks the hashes of a state that the root alone has: the same in each of their lives, also where the root's
// next life has another state. `state` null: this rank is not the root.
Result<StateHashes> Session::share_hashes(std::int32_t root, const PlacedState* state, std::uint64_t site) {
  const auto failed = [](const Status& status) { return status.because_of_this("checkpoint from a root"); };
  std::uint64_t bytes = state == nullptr ? 0 : state->size();
  if (Status told = broadcast_words(root, {&bytes, 1}, site); !told.ok()) return failed(told);
  // The root's earlier life may have told this size.
  if (Status may = Checkpoints::may_hold(bytes); !may.ok()) return may;
  // Where this life's state has another size than that of the life before, no hash of it counts: nor do these.
  std::vector<std::uint64_t> hashes(StateHashes(bytes).blocks(), 1);
  if (state != nullptr && state->size() == bytes) hashes = StateHashes(*state).hashes();
  if (Status told = broadcast_words(root, hashes, site); !told.ok()) return failed(told);
  return StateHashes::of(bytes, std::move(hashes));
}

Status Session::broadcast_words(std::int32_t root, std::span<std::uint64_t> words, std::uint64_t site) {
  CallSpec spec;
  spec.collective = Collective::kBroadcast;
  spec.type = DataType::kU64;
  spec.output = words.data();
  spec.count = words.size();
  spec.root = root;
  spec.site = site;
  std::shared_ptr<const std::vector<Rank>> contributors;
  return run(kWorldGroup, {self_.value, static_cast<std::int32_t>(world_size())}, spec, contributors);
}

Status Session::checkpoint_on_gpu(std::unique_lock<std::mutex>& lock, Places global, const Places* local,
                                  void* stream) {
  lock.lock();
  Status status = await_commit(lock);
  if (!status.ok()) return status;
  const std::uint64_t global_bytes = bytes_of(global);
  const auto local_bytes = local == nullptr ? std::nullopt : std::optional(bytes_of(*local));
  const Ranges share = checkpoints_->share_of(global_bytes);
  lock.unlock();
  auto snapshot = staging_->snapshot(pieces_of(global, local, share), stream);
  if (!snapshot.ok()) return judge(snapshot.status().because_of_this("cannot read the state for a checkpoint"));
  lock.lock();
  if (engine_.stopped()) return gone();
  status = checkpoints_->take_in_parts(global_bytes, local_bytes, share, StateHashes(global_bytes));
  // Where there are more ranks than bytes, some log nothing of it.
  if (status.ok() && !snapshot.value()->done()) {
    coming_.emplace(std::move(snapshot).value());
    hand_over();
  }
  look_at_taken(status);
  return status;
}

// Hashes what this rank does not log, outside the lock; the rest is hashed as it is copied.
StateHashes Session::hash_unlogged(std::unique_lock<std::mutex>& lock, const PlacedState& state) {
  const Ranges share = checkpoints_->share_of(state.size());
  lock.unlock();
  StateHashes hashes(state.size());
  hashes.add_outside(share, state);
  lock.lock();
  return hashes;
}

Status Session::restore(std::span<const std::span<std::byte>> places, std::span<const std::byte> state, void* stream) {
  std::size_t at = 0;
  for (const std::span<std::byte> place : places) {
    const std::span<const std::byte> from = state.subspan(at, place.size());
    at += place.size();
    if (staging_ != nullptr) {
      const Status status = staging_->write(place, from, stream);
      if (!status.ok()) return judge(status.because_of_this("cannot write the state of a checkpoint"));
    } else if (!place.empty()) {
      std::memcpy(place.data(), from.data(), from.size());
    }
  }
  return {};
}

Status Session::lazy_checkpoint(warren_serialize serialize, void* context, void* stream) {
  if (const Status status = needs_mode_wait("lazy_checkpoint"); !status.ok()) return status;
  std::unique_lock lock(mutex_);
  Status status = end_calls(lock);
  if (!status.ok()) return status;
  if (!checkpoints_) return engine_.begin_version(engine_.version().next());
  status = await_commit(lock);
  if (!status.ok()) return status;
  status = checkpoints_->take_later();
  look_at_taken(status);
  if (!status.ok()) return status;
  serialize_ = serialize;
  serialize_context_ = context;
  serialize_stream_ = stream;
  return {};
}

// What has come for checkpoints, and what is to be said because of it.
void Session::look_at_checkpoints() {
  if (!checkpoints_ || engine_.stopped()) return;
  checkpoints_->advance();
  // What the own host holds of a state is found at once, and nobody may come by for it before the next call.
  while (engine_.drain_recalls()) {
    checkpoints_->advance();
    wake(caller_wake_);
    wake(engine_wake_);
  }
  if (const auto followed = checkpoints_->take_followed()) control_->followed(followed->version, followed->timeline);
  if (checkpoints_->has_trouble()) {
    if (const std::string warning = checkpoints_->take_warning(); !warning.empty()) log_(WARREN_LOG_WARNING, warning);
    if (const Status failure = checkpoints_->take_failure(); !failure.ok()) {
      control_->round_failed(transport_.epoch(), failure);
    }
  }
  if (auto word = checkpoints_->take_state_word()) control_->tell_state(*std::move(word));
  auto vote = checkpoints_->take_vote();
  if (!vote) return;
  const auto say = [this](const WorkerMachine::Vote& v) { control_->vote(v); };
  if (!disk_) return say(*vote);
  const auto living = recall_->replayer().host_lives();
  if (!living.empty() && living.front() == life_) {
    const Status taken = dead_segments_.take_over_setups(living, *host_log_, recall_->reader());
    if (!taken.ok()) {
      // Whoever waited for this vote would wait for ever; after a rollback the log has room.
      control_->round_failed(
          transport_.epoch(),
          taken.because_of_this("a checkpoint cannot be committed: set-up rounds that lives which are "
                                "over have logged do not fit into this rank's log"));
      return;
    }
  }
  known_.mutable_setups()->Assign(vote->setups.begin(), vote->setups.end());
  // A vote says that what this rank must hold survives the loss of power. An epoch that ends meanwhile makes it void,
  // and another is given then.
  disk_->writer().make_durable(vote->timeline, vote->version, [this, say, v = *vote](const Status& status) {
    if (status.ok()) return say(v);
    // What this process has in memory is not to be relied on: its next life takes from others what it has lost.
    if (status.code() == Code::kCorrupt) control_->end_life(status);
  });
}

Status Session::finalize() {
  const Span span(trace_.get(), TraceFile::Row::kCheckpoints, "finalize");
  std::unique_lock lock(mutex_);
  send_batch(lock);
  drive(lock, [&] { return engine_.outstanding() == 0; });
  run_callbacks(lock);
  if (!failed_.ok()) return failed_;
  if (finished_) return {};
  if (const Status given = give_state(lock); !given.ok()) return given;
  waits_for_commit_ = states_move();
  const Counted waits(awaiting_job_);
  drive(lock, [&] { return !states_move() || engine_.stopped(); });
  waits_for_commit_ = false;
  if (!failed_.ok()) return failed_;
  if (const Status given = give_state(lock); !given.ok()) return given;
  engine_.end_rounds();
  control_->leave(true, "");
  // A rank that was lost before it received them is sent this one's messages again.
  drive(lock, [&] { return finished_ || !failed_.ok(); });
  if (!finished_) return failed_;
  engine_.stop(Status(Code::kClosed, "the communicator has been finalized"));
  changed_.notify_all();
  const std::uint64_t run = known_.plan().run();
  // Their threads may be in the middle of a write that takes long.
  lock.unlock();
  if (mirror_) {
    const Status status = mirror_->finish(run);
    if (!status.ok())
      log_(WARREN_LOG_WARNING, "the mirror does not know that the job is finished: " + status.describe());
  }
  finish_disk();
  return {};
}

void Session::finish_disk() {
  if (!disk_) return;
  const Status status = disk_->writer().finish();
  if (!status.ok()) log_(WARREN_LOG_WARNING, "the log of the finished job stays on disk: " + status.describe());
}

void Session::close() {
  std::unique_lock lock(mutex_);
  if (exiting_) return;
  exiting_ = true;
  joined_ = {};
  if (staging_) staging_->end();
  engine_.stop(Status(Code::kClosed, "the communicator has been destroyed"));
  changed_.notify_all();
  end_moves(lock);
  for (const auto& part : batch_.take()) engine_.end_unsent(part, gone());
  run_callbacks(lock);
  if (control_ && !finished_ && failed_.ok()) {
    control_->leave(false, "its communicator was destroyed without finalize");
  }
  wake(engine_wake_);
  wake(caller_wake_);
}

}  // namespace warren::worker
