#include "worker/session/session_parts.h"

#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "recovery/base/text.h"
#include "recovery/decide/verdict.h"

namespace warren::worker {

Session::Session(const Settings& settings, const Log& log, const Interrupt& interrupt)
    : settings_(settings),
      log_(log),
      interrupt_(interrupt),
      transport_([this](GroupId group, Rank peer) { control_->want_link(group, peer); },
                 [this](Rank peer) {
                   return life_.logs() ? life_.log().segment_of(lives_[static_cast<std::size_t>(peer.value)]) : nullptr;
                 },
                 &memory_),
      life_(transport_, board_, settings.on_rollback == OnRollback::kExit) {}

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

void Session::say_half_full() {
  // One that spills has room on its disk, which warns of its own end. Where versions are pending it is the tracker that
  // is missed, which is said elsewhere.
  if (life_.log().spills() || (life_.logs() && life_.checkpoints().pending() > 1)) return;
  const auto text = log_fill_.half_full(self_, now(), board_.rounds_finished.load(std::memory_order_relaxed),
                                        life_.log().budget_bytes());
  if (text) log_(WARREN_LOG_WARNING, *text);
}

void Session::say_given_up() {
  const std::optional<Version> committed =
      life_.known().committed() ? std::optional(Version(life_.known().committed_version())) : std::nullopt;
  const auto text = log_fill_.gives_up(self_, life_.log().gives_up()->version, committed);
  if (text) log_(WARREN_LOG_WARNING, *text);
}

TimeMs Session::now() {
  return {std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
              .count()};
}

std::string Session::describe(const Call& call) const {
  if (call.spec.collective == Collective::kPoint) {
    return "rank " + std::to_string(self_.value) + "'s message from rank " + std::to_string(call.spec.root);
  }
  return "rank " + std::to_string(self_.value) + "'s " + to_string(call.fingerprint) + ", " + to_string(call.round);
}

std::vector<std::string> Session::hosts() {
  const std::lock_guard lock(mutex_);
  return host_of_;
}

RoundId Session::next_round(GroupId group) {
  std::unique_lock lock(mutex_);
  // Not another group's, on whose account this one's next call is refused: it would end at some ranks alone.
  if (fusing_ == group) send_batch(lock);
  return engine().next_round(group);
}

std::uint64_t Session::version() {
  const std::lock_guard lock(mutex_);
  return engine().version() == kPreamble ? 0 : engine().version().value - 1;
}

std::uint64_t Session::committed_version() {
  const std::lock_guard lock(mutex_);
  const Version committed = life_.logs() ? life_.checkpoints().newest_committed() : kPreamble;
  return committed == kPreamble ? 0 : committed.value - 1;
}

Status Session::gone() const {
  return life_.failure().ok() ? Status(Code::kClosed, "the communicator has been closed") : life_.failure();
}

Status Session::finalize() {
  const Span span(trace_.get(), TraceFile::Row::kCheckpoints, "finalize");
  std::unique_lock lock(mutex_);
  send_batch(lock);
  drive(lock, [&] { return engine().outstanding() == 0; });
  run_callbacks(lock);
  if (!life_.failure().ok()) return life_.failure();
  if (life_.is_finished()) return {};
  if (const Status given = give_state(lock); !given.ok()) return given;
  waits_for_commit_ = states_move();
  const Counted waits(awaiting_job_);
  drive(lock, [&] { return !states_move() || engine().stopped(); });
  waits_for_commit_ = false;
  if (!life_.failure().ok()) return life_.failure();
  if (const Status given = give_state(lock); !given.ok()) return given;
  engine().end_rounds();
  control_->leave(true, "");
  // A rank that was lost before it received them is sent this one's messages again.
  drive(lock, [&] { return life_.is_finished() || !life_.failure().ok(); });
  if (!life_.is_finished()) return life_.failure();
  const std::uint64_t run = life_.known().plan().run();
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
  if (life_.closed()) return;
  joined_ = {};
  if (staging_) staging_->end();
  life_.close();
  changed_.notify_all();
  end_moves(lock);
  for (const auto& part : batch_.take()) engine().end_unsent(part, gone());
  run_callbacks(lock);
  if (control_ && !life_.is_finished() && life_.failure().ok()) {
    control_->leave(false, std::string(kLeftWithoutFinalize));
  }
  wake(engine_wake_);
  wake(caller_wake_);
}

}  // namespace warren::worker
