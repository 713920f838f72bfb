// How a worker joins its job: it finds the tracker, prepares its log, its disk and its GPUs, and waits for a plan.
#include "worker/session/session_parts.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include <sodium.h>

#include "recovery/base/text.h"
#include "recovery/decide/verdict.h"
#include "storage/fork_guard.h"
#include "storage/open_files.h"
#include "storage/segment_memory.h"
#include "storage/start_thread.h"
#include "worker/device/device_library.h"
#include "worker/disk/past.h"
#include "worker/launch/rabit_tracker.h"
#include "worker/rounds/logged.h"
#include "worker/settings/costs_file.h"
#include "worker/settings/settings.h"
#include "worker/system/netinfo.h"

namespace warren::worker {
namespace {

// Descriptors of a worker without peers; each peer takes one to four more.
constexpr std::size_t kLeastFiles = 32;
constexpr auto kAskForName = std::chrono::milliseconds(200);
// For rabit's tracker to say that it is one. Warren's ends such a connection at once.
constexpr std::int64_t kRabitsTrackerMs = 2000;
// An eighth of the smallest logs, 64 MiB of the large ones.
constexpr std::size_t kSpilledExtents = 4;

}  // namespace

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
  if (life_.failure().ok() && !life_.is_finished()) joined_ = std::move(mark);
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
      engine().use(*trace_);
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
    engine().use(staging_->combines());
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
  engine().use(std::move(costs).value());
  services.spare = spare;
  const auto join_within = beginning.join_by - std::chrono::steady_clock::now();
  services.join_within_ms =
      std::max<std::int64_t>(1, std::chrono::duration_cast<std::chrono::milliseconds>(join_within).count());
  while (incarnation_.value == 0) randombytes_buf(&incarnation_, sizeof incarnation_);
  services.self = incarnation_;
  if (settings_.replicas != 0) {
    const Status status = start_log();
    if (!status.ok()) return status.because_of_this("cannot join job " + settings_.job);
    services.fetch_port = fetch_->port();
    services.segment = segment_;
    services.mates = mates();
    services.logged = [this] { return kept_in(life_.log()); };
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
  engine().use(staging_->exchange_by(
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

Result<std::optional<wire::Held>> Session::held_beside_stale(Generation called) {
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
    await(lock, [&] { return life_.opened() || !life_.failure().ok() || begin_again_ || called_; });
    // Not where the program has given up meanwhile.
    if (begin_again_ && life_.failure().ok()) {
      if (over_.ok()) control_->leave(false, "it begins again, as a spare that has looked at nothing");
      return {};
    }
    if (life_.opened() || !life_.failure().ok()) break;
    look(lock, *std::exchange(called_, std::nullopt));
  }
  if (life_.failure().code() != Code::kFinished) return life_.failure();
  lock.unlock();
  // This host may have no rank that would.
  finish_disk();
  if ((settings_.attempt > 0 || spare_ || begins_again_) && settings_.on_rollback == OnRollback::kExit) {
    // It was not needed, or its last life was lost after all ranks had called finalize.
    log_.before_process_ends();
    log_(WARREN_LOG_INFO, life_.failure().describe() + "; this worker" +
                              (spare_          ? ""
                               : begins_again_ ? ", which has joined again,"
                                               : ", started again,") +
                              " ends with exit code " + std::to_string(kExitFinished));
    _exit(kExitFinished);
  }
  return life_.failure();
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
    await(lock, [&] { return mapped_ || !life_.failure().ok() || begin_again_; });
    if (!mapped_) return;
    lock.unlock();
    logged = kept_in(life_.log());
    held = call.stale ? held_beside_stale(call.generation) : held_on_disk();
    lock.lock();
  }
  if (!held.ok()) {
    life_.failed(held.status());
    return control_->leave(false, held.status().describe());
  }
  control_->tell(
      [generation = call.generation, held = std::move(held).value(), logged = std::move(logged)](
          auto& machine, TimeMs now, auto& effects) { machine.looked(generation, held, logged, now, effects); });
}

Status Session::start_log() {
  auto segment = memfd_segment(settings_.log_memory_bytes);
  if (!segment.ok()) return segment.status();
  segment_ = std::move(segment).value();
  not_for_children(segment_->bytes());
  // A core dump would be as long as the log, and this process not be seen to be dead until that was written.
  (void)::madvise(segment_->bytes().data(), segment_->bytes().size(), MADV_DONTDUMP);
  auto made = HostLog::create(incarnation_, segment_);
  if (!made.ok()) return made.status();
  HostLog& log = *made.value();
  const bool on_disk = settings_.log != LogMode::kMemory && !settings_.data_dir.empty();
  const auto tell = [this](const LogEvent& event) {
    disk_trouble_.take(event);
    log_(event.severity == Severity::kInfo ? WARREN_LOG_INFO : WARREN_LOG_WARNING, event.text);
  };
  if (on_disk) {
    auto disk = DiskLog::open(settings_, incarnation_, segment_, tell, [this] {
      wake(caller_wake_);
      wake(engine_wake_);
    });
    if (!disk.ok()) return disk.status();
    disk_ = std::move(disk).value();
    log.spill_by([this]() -> Result<std::vector<ExtentUse>> {
      if (!disk_) return Status(Code::kClosed, "this life has ended");
      // Under the session's lock, which an interrupt waits for.
      std::int64_t timeout_ms = settings_.round_timeout_ms / 4;
      if (spill_until_) timeout_ms = std::clamp<std::int64_t>(*spill_until_ - now(), 0, timeout_ms);
      return disk_->writer().spill(kSpilledExtents, timeout_ms);
    });
  }
  log_fill_.gathers_from(now(), 0);
  if (settings_.log_full == LogFull::kSuspend) {
    log.give_up_but([this](const RecordKey& record) { return engine().needs(record); });
  }
  log.watch({[this] { say_half_full(); }, [this] { say_given_up(); }});
  const auto reader = [&] { return on_disk ? disk_->behind(log.reader()) : log.reader(); };
  auto fetch = FetchService::start(
      settings_, incarnation_, reader(),
      [this](Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
        fetched(from, reply, payloads);
      },
      [this](const std::string& text) { log_(WARREN_LOG_WARNING, text); },
      [this](Generation generation, const RoundId& round, std::span<const std::uint64_t> sites) {
        const auto lock = lock_before_callers();
        return engine().plan().generation == generation ? engine().say(round, sites) : Inquiry::Answer();
      });
  if (!fetch.ok()) return fetch.status();
  fetch_ = std::move(fetch).value();
  life_.keep_log(
      incarnation_, std::move(made).value(), reader(), [] { return now(); },
      [this](Replayer::Send send) { fetch_->send(std::move(send)); });
  votes_from_disk_ = on_disk;
  if (on_disk) life_.votes_when_durable();
  if (settings_.log == LogMode::kSync && on_disk) {
    sync_gate_.emplace(
        disk_->writer(), settings_.round_timeout_ms, [] { return now(); }, tell);
    life_.recall().seen_once_in(*sync_gate_);
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
  if (mirror_) life_.use_mirror();
  return {};
}

}  // namespace warren::worker
