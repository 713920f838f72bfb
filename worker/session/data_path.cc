// What the control thread asks of a worker's data path: plans, interrupts, segments, commits, and the end of the life.
#include "worker/session/session.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/overloaded.h"
#include "recovery/base/text.h"
#include "recovery/decide/verdict.h"
#include "storage/segment_memory.h"
#include "worker/disk/past.h"
#include "worker/life/plans.h"
#include "worker/settings/settings.h"

namespace warren::worker {
namespace {

// Where each rank of the host can have a core, and has it: some 0.5 µs, in which a peer that is not late has sent.
constexpr int kLooksAtOnce = 24;
constexpr std::int64_t kTickAgainMs = 20;

// Of an effect that the control thread carries out by itself.
[[noreturn]] void not_here() {
  WARREN_CHECK(false, "the control thread carries out this effect");
  std::abort();
}

}  // namespace

void Session::carry_out(const WorkerEffect& effect) {
  std::visit(Overloaded{
                 [this](const worker_effect::Spare& e) {
                   const auto lock = lock_for_control();
                   join_.waits_as_spare(e.looked);
                 },
                 [this](const worker_effect::Follow& e) { follow(e); },
                 [this](const worker_effect::Called& e) {
                   const auto lock = lock_for_control();
                   join_.called(e);
                 },
                 [this](const worker_effect::Loaded& e) { loaded(e); },
                 [this](const worker_effect::Committed& e) { committed(e.version, e.timeline); },
                 [this](const worker_effect::TrackerAway& e) { tracker_away(e.away); },
                 [this](const worker_effect::Fail& e) { failed(e); },
                 [this](const worker_effect::Finished&) { finished(); },
                 [this](const worker_effect::Serve& e) { serve(e.plan); },
                 [](const worker_effect::Send&) { not_here(); },
                 [](const worker_effect::Install&) { not_here(); },
                 [](const worker_effect::StopDataPath&) { not_here(); },
                 [](const worker_effect::Drain&) { not_here(); },
                 [](const worker_effect::Left&) { not_here(); },
                 [](const worker_effect::Log&) { not_here(); },
             },
             effect);
}

SegmentExchange::Events Session::mates() {
  SegmentExchange::Events events;
  events.attached = [this](Incarnation life, MappedSegment segment) { return attach(life, std::move(segment)); };
  events.borrowed = [this](Incarnation life, std::uint32_t memory, MappedSegment segment) {
    not_for_children(segment.bytes);
    const auto lock = lock_for_control();
    lent_.borrowed(life, memory, std::move(segment));
  };
  events.returned = [this](Incarnation life, std::uint32_t memory) {
    const auto lock = lock_for_control();
    lent_.returned(life, memory);
  };
  events.offered = [this](Incarnation life, std::uint32_t memory, OwnedFd fd, std::uint64_t bytes) {
    lent_.offered(life, memory, std::move(fd), bytes);
  };
  events.lent = [this](Incarnation life, std::uint32_t memory) {
    const auto lock = lock_for_control();
    lent_.lent(life, memory);
  };
  return events;
}

void Session::follow(const worker_effect::Follow& what) {
  const auto lock = lock_for_control();
  if (what.plan) fetch_->install(*what.plan);
  life_.follow(what, what.plan ? std::optional(follow_plan(*what.plan, incarnation_)) : std::nullopt);
  driver_.carry_out();
}

void Session::mapped() {
  const auto lock = lock_for_control();
  join_.mapped();
}

std::unique_lock<std::mutex> Session::lock_for_control() {
  return driver_.lock_for_control([this] {
    // Not yet there while Control::create() attaches what the launcher has kept.
    if (control_) control_->beat();
  });
}

void Session::fetched(Rank from, const wire::FetchReply& reply, std::span<const std::byte> payloads) {
  const auto lock = driver_.lock_before_callers();
  life_.fetched(from, reply, payloads);
  driver_.carry_out();
}

std::optional<TimeMs> Session::tick() {
  // Heartbeats do not wait for a program's function that runs under the lock.
  const std::unique_lock lock(driver_.mutex(), std::try_to_lock);
  if (!lock) return now() + kTickAgainMs;
  const auto call = calls_.end_overdue(now());
  const auto own = life_.logs() ? tick_of_log() : std::nullopt;
  return call && (!own || *call < *own) ? call : own;
}

std::optional<TimeMs> Session::tick_of_log() {
  look_at_exchange();
  if (engine().stopped() && gpus_.may_hang()) return now() + kTickAgainMs;
  if (life_.closed()) return std::nullopt;
  life_.tick(now());
  driver_.carry_out();
  return life_.next_deadline();
}

// Whoever is at what GPUs exchange may never come back from NCCL, and may be the only thread that the program has, or
// the engine's, which ~Session() waits for. The control thread is never there, and sees to it that the process ends.
void Session::look_at_exchange() {
  const auto overdue = gpus_.overdue(now());
  if (!overdue) return;
  driver_.end_life(overdue->why);
  // Without OnRollback::kExit the launcher ends it (may_hang()).
  if (settings_.on_rollback != OnRollback::kExit || overdue->for_ms < settings_.round_timeout_ms / 4) return;
  log_.before_process_ends();
  log_(WARREN_LOG_ERROR, "a thread does not come back from NCCL; this process ends with exit code " +
                             std::to_string(kExitFenced) + " to be started again");
  if (trace_) trace_->flush();
  _exit(kExitFenced);
}

void Session::install(const wire::Plan& plan, Rank self) {
  const auto lock = lock_for_control();
  if (engine().stopped()) return;  // closed; that word is on its way to the tracker
  const Engine::Plan p = engine_plan(plan, self);
  // self_ is read without the lock once create() has returned.
  if (!life_.opened()) self_ = self;
  world_size_.store(static_cast<std::uint32_t>(plan.members_size()), std::memory_order_relaxed);
  host_of_.clear();
  lives_.clear();
  for (const wire::Member& member : plan.members()) {
    host_of_.push_back(member.host_id());
    lives_.emplace_back(member.absent() ? 0 : member.incarnation());
  }
  const auto mates = std::ranges::count(host_of_, host_of_[static_cast<std::size_t>(self.value)]);
  driver_.look_at_once(mates <= sysconf(_SC_NPROCESSORS_ONLN) ? kLooksAtOnce : 0);
  lent_.install(lives_);
  gpus_.install(lives_, mates);
  std::vector<std::uint32_t> streams_to;
  for (const Way& way : ways_of(plan, self)) streams_to.push_back(way.streams);
  transport_.open(p.generation, plan.settings().streams(), plan.settings().checksums(), std::move(streams_to));
  const wire::Known before = life_.know(known_of(plan));
  storage_.install(before.plan(), plan, self, life_.known());
  if (life_.logs()) fetch_->install(plan);
  if (trace_) {
    trace_->belongs_to(self, settings_.worker_id, settings_.attempt);
    trace_->instant(TraceFile::Row::kRecovery, "generation " + std::to_string(p.generation.value));
  }
  life_.install(p, replay_plan(plan, self));
  driver_.carry_out();
}

void Session::open(Generation) {
  const auto lock = lock_for_control();
  life_.open(now());
  driver_.carry_out();
  if (trace_ && std::exchange(recovers_, false)) trace_->end(TraceFile::Row::kRecovery);
  // A new life waits for what this one has sent, however long the program here computes.
  driver_.hand_over();
  driver_.wake_all();
}

WorkerMachine::Standing Session::stop(const worker_effect::StopDataPath& what) {
  const auto lock = lock_for_control();
  if (trace_ && !std::exchange(recovers_, true)) {
    trace_->begin(TraceFile::Row::kRecovery, what.resume ? "recovery" : "the end of this life", what.why.describe());
  }
  storage_.spill_until(now() + settings_.round_timeout_ms / 4);
  WorkerMachine::Standing standing = life_.stop(what);
  storage_.spill_until(std::nullopt);
  // The engine's thread runs callbacks: the program's may take as long as they like, and whoever asks for this life's
  // report, and counts its heartbeats, does not wait for them.
  driver_.wake_all();
  return standing;
}

Status Session::attach(Incarnation life, MappedSegment segment) {
  not_for_children(segment.bytes);
  const auto lock = lock_for_control();
  return life_.attach(life, segment.bytes, std::move(segment.keeper));
}

void Session::loaded(const worker_effect::Loaded& loaded) {
  const auto lock = lock_for_control();
  if (life_.checkpoints().has_followed(loaded)) {
    log_(WARREN_LOG_INFO, "checkpoint " + std::to_string(loaded.version.value - 1) +
                              " is loaded from what this worker has fetched while it was a spare");
  }
  life_.loading().start_from(loaded);
  driver_.wake_callers();
}

void Session::tracker_away(bool away) {
  const auto lock = lock_for_control();
  life_.tracker_away(away);
  driver_.carry_out();
}

void Session::committed(Version version, Timeline timeline) {
  const auto lock = lock_for_control();
  if (!life_.logs()) return;
  log_fill_.gathers_from(now(), board_.rounds_finished.load(std::memory_order_relaxed));
  life_.committed(version, timeline, now());
  if (const auto text = log_fill_.whole_again(version, life_.log().gives_up().has_value())) {
    log_(WARREN_LOG_INFO, *text);
  }
  if (trace_) {
    trace_->instant(TraceFile::Row::kCheckpoints, "version " + std::to_string(version.value - 1) + " is committed");
  }
  driver_.carry_out();
}

bool Session::adopt(Generation generation, GroupId group, Rank peer, std::uint16_t stream, int fd,
                    std::unique_ptr<HostPipe> pipe) {
  const auto lock = lock_for_control();
  const Status status = transport_.adopt(generation, group, peer, stream, fd, std::move(pipe));
  if (!status.ok()) {
    log_(WARREN_LOG_WARNING,
         "a connection of rank " + std::to_string(peer.value) + " was dropped: " + status.describe());
    return false;
  }
  driver_.wake_sleepers();
  return true;
}

void Session::link_failed(GroupId group, Rank peer, const Status& why) {
  const auto lock = lock_for_control();
  transport_.fail_link(group, peer, why);
  driver_.wake_sleepers();
}

void Session::failed(const worker_effect::Fail& what) {
  switch (life_.ending(what.why, what.fenced)) {
    case Life::Ending::kTellsProgram: break;
    case Life::Ending::kJoinsAgain: return join_again(what.why);
    case Life::Ending::kRolledBack: end_process(what.why, kExitRolledBack);
    case Life::Ending::kFenced: end_process(what.why, kExitFenced);
  }
  const auto lock = lock_for_control();
  life_.failed(what.why);
  join_.unmark();
  driver_.wake_all();
}

void Session::join_again(const Status& why) {
  log_(WARREN_LOG_WARNING, why.describe() + "; this worker joins again");
  const auto lock = lock_for_control();
  join_.begin_again(why);
}

void Session::end_process(const Status& why, int exit_code) {
  log_.before_process_ends();
  log_(WARREN_LOG_ERROR,
       why.describe() + "; this process ends with exit code " + std::to_string(exit_code) + " to be started again");
  if (trace_) trace_->flush();
  _exit(exit_code);
}

void Session::finished() {
  const auto lock = lock_for_control();
  life_.finished();
  join_.unmark();
  driver_.wake_callers();
  driver_.notify();
}

void Session::aborted(const std::string& reason) {
  const auto lock = lock_for_control();
  if (life_.is_finished()) return;
  driver_.end_life(Status(Code::kClosed, "the program has aborted its communicator: " + reason), Blame::kProgram);
}

void Session::begin_nothing() {
  admission_.begin_nothing();
}

bool Session::is_idle(const std::unique_lock<std::mutex>& lock) const {
  return lock && !driver_.has_callers() && engine().outstanding() == 0 && !states_.any();
}

bool Session::may_leave(bool at_once) {
  return at_once || is_idle(std::unique_lock(driver_.mutex(), std::try_to_lock));
}

// Calls stay stopped, and no other begins. A life of this host may have left at the same time: what it had spilled to
// the disk is read from here too.
void Session::serve(const wire::Plan& plan) {
  storage_.refresh(plan);
  fetch_->install(plan);
}

bool Session::leave(bool at_once, int exit_code, const std::function<void()>& say) {
  const std::unique_lock lock(driver_.mutex(), std::try_to_lock);
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

}  // namespace warren::worker
