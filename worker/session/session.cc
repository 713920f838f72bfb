#include "worker/session/session.h"

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
                 &lent_.memory()),
      life_(transport_, board_, settings.on_rollback == OnRollback::kExit) {}

// In a callback on the engine's own thread what called it comes back to the session, and that thread cannot wait for
// its own end: it frees it then.
void Session::release(Session* session) {
  session->end();
  session->frees_itself_ = session->driver_.on_engine_thread();
  if (!session->frees_itself_) delete session;
}

void Session::end() {
  close();
  driver_.join();
  states_.settle();
  gpus_.settle();
  // The writer's thread votes by way of control_, whose thread hands commits to the writer and the mirror: that thread
  // finds none from here on.
  {
    LifeStorage::Released released;
    {
      const auto lock = driver_.lock_before_callers();
      released = storage_.release();
    }
  }
  // Its thread uses control_ to the last.
  if (control_) control_->stop();
  control_.reset();
  fetch_.reset();
  trace_.reset();
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

std::vector<std::string> Session::hosts() {
  const std::lock_guard lock(driver_.mutex());
  return host_of_;
}

std::uint64_t Session::version() {
  const std::lock_guard lock(driver_.mutex());
  return engine().version() == kPreamble ? 0 : engine().version().value - 1;
}

std::uint64_t Session::committed_version() {
  const std::lock_guard lock(driver_.mutex());
  const Version committed = life_.logs() ? life_.checkpoints().newest_committed() : kPreamble;
  return committed == kPreamble ? 0 : committed.value - 1;
}

Status Session::finalize() {
  const TraceSpan span(trace_.get(), TraceFile::Row::kCheckpoints, "finalize");
  std::unique_lock lock(driver_.mutex());
  calls_.end_all(lock);
  if (!life_.failure().ok()) return life_.failure();
  if (life_.is_finished()) return {};
  if (const Status given = checkpoints_.give_all(lock); !given.ok()) return given;
  const Driver::AwaitsJob waits(driver_, lock, nullptr);
  engine().end_rounds();
  control_->finalize(engine().version());
  // A rank that was lost before it received them is sent this one's messages again.
  driver_.drive(lock, [&] { return life_.is_finished() || !life_.failure().ok(); });
  if (!life_.is_finished()) return life_.failure();
  const std::uint64_t run = life_.known().plan().run();
  // Their threads may be in the middle of a write that takes long.
  lock.unlock();
  storage_.finish_mirror(run);
  storage_.finish_disk();
  return {};
}

void Session::close() {
  std::unique_lock lock(driver_.mutex());
  if (life_.closed()) return;
  join_.unmark();
  gpus_.end();
  life_.close();
  driver_.notify();
  driver_.end_moves(lock);
  for (const auto& part : batches_.take()) engine().end_unsent(part, life_.gone());
  driver_.run_callbacks(lock);
  if (control_ && !life_.is_finished() && life_.failure().ok()) {
    control_->leave(std::string(kLeftWithoutFinalize));
  }
  driver_.wake_sleepers();
}

Result<void*> Session::allocate(std::uint64_t bytes) {
  return lent_.allocate(bytes, driver_.mutex());
}

Status Session::free(void* memory) {
  return lent_.free(memory, driver_.mutex());
}

}  // namespace warren::worker
