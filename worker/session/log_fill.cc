#include "worker/session/log_fill.h"

#include <algorithm>
#include <utility>

#include "recovery/base/text.h"
#include "recovery/decide/verdict.h"

namespace warren::worker {
namespace {

constexpr const char* kAdvice =
    "Take checkpoints, give it more room (--log_memory_bytes, or --data_dir, a disk), or run with --replicas=0";

}  // namespace

void LogFill::gathers_from(TimeMs now, std::uint64_t rounds_finished) {
  gathers_since_ = now;
  rounds_before_ = rounds_finished;
}

std::optional<std::string> LogFill::half_full(Rank self, TimeMs now, std::uint64_t rounds_finished,
                                              std::uint64_t budget_bytes) {
  if (std::exchange(said_half_full_, true)) return std::nullopt;
  const std::int64_t ms = std::max<std::int64_t>(1, now - gathers_since_);
  return "rank " + std::to_string(self.value) + "'s log is half full after " +
         rounds_text(rounds_finished - rounds_before_) + " in " + seconds_text(ms) +
         " without a checkpoint: as many more, and its " + std::to_string(budget_bytes) +
         " bytes (--log_memory_bytes) are full; " +
         (full_ == LogFull::kError ? "then calls fail (--log_full=error)"
                                   : "then its oldest results go, and a loss undoes what is not committed") +
         ". " + kAdvice;
}

std::optional<std::string> LogFill::gives_up(Rank self, Version version, std::optional<Version> committed) {
  if (std::exchange(said_given_up_, version) == version) return std::nullopt;
  return "rank " + std::to_string(self.value) +
         "'s log is full, and gives up its oldest results (--log_full=suspend): " +
         (version == kPreamble ? "from now on" : "until the next checkpoint is committed") + " a loss " +
         (shrinks_    ? "keeps its worker out until a version is committed"
          : committed ? "takes all processes back to " + of_program(*committed)
                      : "ends the job, as nothing is committed to go back to") +
         ". " + kAdvice;
}

std::optional<std::string> LogFill::whole_again(Version version, bool gives_up) {
  if (!said_given_up_ || gives_up) return std::nullopt;
  said_given_up_.reset();
  return of_program(version) + " is committed, and all results since are logged: a loss undoes nothing";
}

}  // namespace warren::worker
