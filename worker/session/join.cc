#include "worker/session/join.h"

#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

#include "recovery/decide/verdict.h"
#include "worker/rounds/logged.h"
#include "worker/system/netinfo.h"

namespace warren::worker {
namespace {

constexpr auto kAskForName = std::chrono::milliseconds(200);

}  // namespace

// A name server may be away for as long as a tracker, and a tracker's name appear with it.
Status Join::await_tracker_name() const {
  if (is_numeric_address(settings_.tracker_host)) return {};
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(settings_.join_timeout_ms);
  const auto left = [&] {
    return std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  };
  for (bool told = false;; told = true) {
    const Status resolved = resolve_host(settings_.tracker_host, left()).status();
    if (resolved.ok() || left().count() <= 0) return resolved;
    if (!told) log_(WARREN_LOG_WARNING, resolved.describe() + "; it is asked for again until the join timeout is over");
    if (const Status told_to = driver_.ask(); !told_to.ok()) return told_to;
    std::this_thread::sleep_for(kAskForName);
  }
}

void Join::waits_as_spare(bool looked) {
  spare_ = true;
  begins_next_ = looked;
  driver_.notify();
}

void Join::called(const worker_effect::Called& call) {
  called_ = call;
  driver_.notify();
}

void Join::mapped() {
  mapped_ = true;
  driver_.notify();
}

void Join::begin_again(const Status& why) {
  over_ = why;
  begins_next_ = true;
  driver_.notify();
}

// The machine ends this wait: with a plan, or with an error after the join timeout. A spare's has no end but the job's.
Status Join::await_plan(Control& control) {
  std::unique_lock lock(driver_.mutex());
  while (true) {
    driver_.await(lock, [&] { return life_.opened() || !life_.failure().ok() || begins_next_ || called_; });
    // Not where the program has given up meanwhile.
    if (begins_next_ && life_.failure().ok()) {
      if (over_.ok()) control.leave("it begins again, as a spare that has looked at nothing");
      return {};
    }
    if (life_.opened() || !life_.failure().ok()) break;
    look(lock, *std::exchange(called_, std::nullopt), control);
  }
  if (life_.failure().code() != Code::kFinished) return life_.failure();
  lock.unlock();
  // This host may have no rank that would.
  storage_.finish_disk();
  if ((settings_.attempt > 0 || spare_ || begins_again_) && settings_.on_rollback == OnRollback::kExit) {
    // The worker was not needed, or its last life was lost after all ranks had called finalize.
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
void Join::look(std::unique_lock<std::mutex>& lock, const worker_effect::Called& call, Control& control) {
  mapped_ = false;
  wire::Logged logged;
  Result<std::optional<wire::Held>> held = std::optional<wire::Held>();
  if (settings_.replicas != 0) {
    lock.unlock();
    control.map(call);
    lock.lock();
    driver_.await(lock, [&] { return mapped_ || !life_.failure().ok() || begins_next_; });
    if (!mapped_) return;
    lock.unlock();
    logged = kept_in(life_.log());
    held = call.stale ? storage_.held_beside_stale(call.generation) : storage_.held();
    lock.lock();
  }
  if (!held.ok()) {
    life_.failed(held.status());
    return control.leave(held.status().describe());
  }
  control.tell(
      [generation = call.generation, held = std::move(held).value(), logged = std::move(logged)](
          auto& machine, TimeMs now, auto& effects) { machine.looked(generation, held, logged, now, effects); });
}

}  // namespace warren::worker
