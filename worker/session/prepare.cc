// How a session begins: it finds the tracker, prepares its log, its disk and its GPUs, and waits for a plan.
#include "worker/session/session.h"

#include <fcntl.h>
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
#include "worker/device/device_library.h"
#include "worker/launch/rabit_tracker.h"
#include "worker/rounds/logged.h"
#include "worker/settings/costs_file.h"
#include "worker/settings/settings.h"
#include "worker/system/netinfo.h"

namespace warren::worker {
namespace {

// Descriptors of a worker without peers; each peer takes one to four more.
constexpr std::size_t kLeastFiles = 32;
// For rabit's tracker to say that it is one. Warren's ends such a connection at once.
constexpr std::int64_t kRabitsTrackerMs = 2000;

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
  const std::lock_guard lock(driver_.mutex());
  if (life_.failure().ok() && !life_.is_finished()) join_.keep(std::move(mark));
}

Result<std::shared_ptr<Session>> Session::join(const Settings& settings, const Log& log, const Interrupt& interrupt,
                                               Beginning& beginning) {
  std::shared_ptr<Session> session(new Session(settings, log, interrupt), &Session::release);
  session->join_.begin(beginning.spare, beginning.again);
  Status status = session->prepare(beginning);
  if (status.ok()) status = session->join_.await_plan(*session->control_);
  if (!status.ok()) return status;
  if (!session->join_.is_to_begin_again()) return session;
  beginning.again = true;
  beginning.spare = session->join_.is_spare();
  beginning.why = session->join_.over();
  // A spare waits for as long as its job goes on.
  if (beginning.spare) {
    beginning.join_by = std::chrono::steady_clock::now() + std::chrono::milliseconds(settings.join_timeout_ms);
  }
  return std::shared_ptr<Session>();
}

Status Session::prepare(const Beginning& beginning) {
  const bool spare = beginning.spare;
  if (Status s = join_.await_tracker_name(); !s.ok()) return s.because_of_this("cannot join job " + settings_.job);
  if (Status opened = driver_.open(); !opened.ok()) return opened;
  if (Status traced = open_trace(spare); !traced.ok()) return traced;
  auto library = load_device_library(settings_.device_library);
  if (!library.ok()) return library.status();
  if (const std::string news = library.value().news(); !news.empty()) log_(WARREN_LOG_INFO, news);
  if (library.value().table != nullptr) gpus_.serve(*library.value().table, engine());
  Control::Services services;
  services.gpu = gpus_.staging() != nullptr && settings_.device_shared_bytes != 0 && settings_.replicas != 0;
  auto costs = read_costs(settings_.costs);
  if (!costs.ok()) return costs.status();
  if (settings_.nccl) {
    auto version = gpus_.use_nccl(
        library.value(),
        [this](bool warns, const std::string& text) {
          log_(warns ? WARREN_LOG_WARNING : WARREN_LOG_INFO, text);
          if (trace_) trace_->instant(TraceFile::Row::kRecovery, warns ? "without NCCL" : "NCCL", text);
        },
        engine());
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
    services.disk_trouble = [this] { return storage_.trouble(); };
    if (!spare) {
      auto held = storage_.held();
      if (!held.ok()) return held.status();
      services.held = std::move(held).value();
    }
  }
  auto control = Control::create(settings_, log_, board_, *this, services);
  if (!control.ok()) return control.status();
  control_ = std::move(control).value();
  lent_.use(*control_);
  calls_.use(*control_);
  // Now, when it is an error of nothing but this life's begin if the system allows no more: later calls rely on it.
  const auto ended = [this] {
    if (!frees_itself_) return;
    driver_.detach();
    delete this;
  };
  if (const Status started = driver_.start(ended); !started.ok()) return started;
  return control_->start();
}

// Opens the timeline, if there is to be one.
Status Session::open_trace(bool spare) {
  if (settings_.timeline.empty()) return {};
  auto trace = TraceFile::open(settings_.timeline, log_);
  if (trace.ok()) {
    trace_ = std::move(trace).value();
    engine().use(*trace_);
    driver_.use(*trace_);
    outside_.use(*trace_);
    fused_.use(*trace_);
  } else if (settings_.attempt == 0 && !spare) {
    return trace.status();
  } else {
    // The job needs this life more than its trace.
    log_(WARREN_LOG_WARNING, trace.status().describe() + "; this life goes on without one");
  }
  return {};
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
  if (Status opened = storage_.open_disk(incarnation_, segment_, [this] { driver_.wake_sleepers(); }); !opened.ok()) {
    return opened;
  }
  if (storage_.has_disk()) log.spill_by([this] { return storage_.spill(now()); });
  log_fill_.gathers_from(now(), 0);
  if (settings_.log_full == LogFull::kSuspend) {
    log.give_up_but([this](const RecordKey& record) { return engine().needs(record); });
  }
  log.watch({[this] { say_half_full(); }, [this] { say_given_up(); }});
  const auto reader = [&] { return storage_.behind(log.reader()); };
  auto fetch = FetchService::start(
      settings_, incarnation_, reader(),
      [this](Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
        fetched(from, reply, payloads);
      },
      [this](const std::string& text) { log_(WARREN_LOG_WARNING, text); },
      [this](Generation generation, const RoundId& round, std::span<const std::uint64_t> sites) {
        const auto lock = driver_.lock_before_callers();
        return engine().plan().generation == generation ? engine().say(round, sites) : Inquiry::Answer();
      });
  if (!fetch.ok()) return fetch.status();
  fetch_ = std::move(fetch).value();
  life_.keep_log(
      incarnation_, std::move(made).value(), reader(), [] { return now(); },
      [this](Replayer::Send send) { fetch_->send(std::move(send)); });
  if (storage_.has_disk()) life_.vote_when_durable();
  if (SyncGate* const gate = storage_.open_gate([] { return now(); })) life_.recall().seen_once_in(*gate);
  if (Status opened = storage_.open_mirror(reader(), settings_.attempt != 0 || join_.is_spare()); !opened.ok())
    return opened;
  if (storage_.has_mirror()) life_.use_mirror();
  return {};
}

}  // namespace warren::worker
