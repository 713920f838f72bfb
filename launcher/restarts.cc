#include "launcher/restarts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace warren::worker {

std::uint32_t world_size_of(const LaunchOptions& options) {
  return options.world_size != 0 ? options.world_size : options.workers;
}

Restarts::Verdict Restarts::on_loss(LaunchedWorker& w, std::string what) {
  const std::uint32_t most = w.lost ? options_.restarts : options_.failure_restarts;
  if (is_spare(w)) return on_end_of_spare(w, std::move(what), most);
  if (w.restarts < most && !w.repeats) {
    ++w.restarts;
    return {Act::kStartAgain, std::move(what), "restart " + std::to_string(w.restarts) + " of " + std::to_string(most),
            ""};
  }
  if (w.repeats) {
    what += "; its life before ended at the same place, and another one would";
  } else if (most > 0) {
    what += " and has used all of its " + std::to_string(most) + " restarts";
  }
  if (!w.lost || options_.min_workers == 0 || !enough_without(w)) return {Act::kEndJob, std::move(what), "", ""};
  w.given_up = true;
  return {Act::kGiveUp, std::move(what), "", ""};
}

Restarts::Verdict Restarts::on_end_of_spare(LaunchedWorker& w, std::string what, std::uint32_t most) {
  if (w.waiting_lives < most) {
    ++w.waiting_lives;
    return {Act::kStartAgain, std::move(what),
            "restart " + std::to_string(w.waiting_lives) + " of " + std::to_string(most) + " without a place", ""};
  }
  if (most > 0) what += " and has used all of its " + std::to_string(most) + " restarts without a place";
  w.given_up = true;
  return {Act::kGiveUpSpare, std::move(what), "", ""};
}

Restarts::Verdict Restarts::on_rollback(LaunchedWorker& w, std::string what) {
  what += " (rolled back)";
  ++w.rollbacks;
  std::string rollback;
  if (w.rollbacks > rollbacks_) {
    rolled_back_at_ms_ = now_ms();
    if (rollbacks_ == options_.restarts) {
      if (rollbacks_ > 0) what += ", and the job has used all of its " + std::to_string(rollbacks_) + " rollbacks";
      return {Act::kEndJob, std::move(what), "", ""};
    }
    ++rollbacks_;
    rollback = "rollback " + std::to_string(rollbacks_) + " of at most " + std::to_string(options_.restarts) +
               ": each worker goes back to the last checkpoint and is started again";
  }
  return {Act::kStartAgain, std::move(what), "rollback " + std::to_string(w.rollbacks), std::move(rollback)};
}

// A life that only hung has not been a long one, nor has one that had a rank and took part in no round.
void Restarts::forgive(LaunchedWorker& w) {
  const std::int64_t now = now_ms();
  const bool hung = w.killed_at_ms >= 0 || w.last_code == kExitHung;
  if (w.lost && !hung && (w.worked || !w.has_place) && now - w.started_at_ms >= options_.long_life_ms) {
    w.restarts = w.waiting_lives = 0;
  }
  if (now - rolled_back_at_ms_ < options_.long_life_ms) return;
  rollbacks_ = 0;
  for (LaunchedWorker& other : workers_) other.rollbacks = 0;
}

std::int64_t Restarts::schedule(LaunchedWorker& w) {
  const std::int64_t now = now_ms();
  // A life that ended at a kill point was meant to be short.
  if (w.worked || w.last_code == kExitKillPoint || now - w.started_at_ms >= options_.healthy_ms) w.short_lives = 0;
  std::int64_t pause_ms = 0;
  if (w.short_lives >= options_.immediate_restarts) {
    const std::uint32_t doublings = std::min<std::uint32_t>(w.short_lives - options_.immediate_restarts, 20);
    pause_ms = std::min(options_.first_backoff_ms << doublings, options_.max_backoff_ms);
  }
  ++w.short_lives;
  ++w.attempt;
  w.restart_at_ms = now + pause_ms;
  return pause_ms;
}

bool Restarts::others_go_on() const {
  return options_.min_workers != 0 || options_.spares != 0 || options_.spares_elsewhere;
}

// Whether the job has, or may have, as many workers as it needs if this one is not started again.
bool Restarts::enough_without(const LaunchedWorker& w) const {
  const auto others =
      std::ranges::count_if(workers_, [&](const LaunchedWorker& other) { return &other != &w && !other.given_up; });
  const std::uint32_t elsewhere = world_size_of(options_) - options_.workers;
  const std::uint32_t needed = options_.min_workers != 0 ? options_.min_workers : world_size_of(options_);
  return others + static_cast<std::ptrdiff_t>(elsewhere) >= static_cast<std::ptrdiff_t>(needed);
}

// Whether the job goes on if this worker, which has ended, is not started again.
bool Restarts::is_spare(const LaunchedWorker& w) const {
  if (w.placed || !others_go_on()) return false;
  // Spares elsewhere may have places of workers here.
  if (world_size_of(options_) != options_.workers) return !w.has_place;
  // A rank that had a place in an earlier life has perhaps lost it to a spare, and if not there is one that can have
  // it.
  if (w.has_place && w.attempt == options_.first_attempt) return false;
  return enough_without(w);
}

}  // namespace warren::worker
