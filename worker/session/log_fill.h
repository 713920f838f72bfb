// What a worker says of a memory log that fills up while no checkpoint is committed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "worker/settings/settings.h"

namespace warren::worker {

// Chooses what is said, and says nothing twice. No thread, clock or log of its own; the caller holds the session's
// lock.
class LogFill {
 public:
  // `full`: what the log does when it is full. `shrinks`: mode shrink, where a loss undoes nothing.
  LogFill(LogFull full, bool shrinks) : full_(full), shrinks_(shrinks) {}

  // The life begins, or a version is committed: all results from now on are needed.
  void gathers_from(TimeMs now, std::uint64_t rounds_finished);

  // The log is half full. Nothing, where this life has said so.
  [[nodiscard]] std::optional<std::string> half_full(Rank self, TimeMs now, std::uint64_t rounds_finished,
                                                     std::uint64_t budget_bytes);

  // The log has given up results of `version`. Nothing, where that was said of this version. `committed`: the version
  // to which a loss takes all processes back; null: none is committed.
  [[nodiscard]] std::optional<std::string> gives_up(Rank self, Version version, std::optional<Version> committed);

  // `version` is committed. Nothing, unless results had been given up, and none that were are needed any more.
  [[nodiscard]] std::optional<std::string> whole_again(Version version, bool gives_up);

 private:
  const LogFull full_;
  const bool shrinks_;
  TimeMs gathers_since_;
  std::uint64_t rounds_before_ = 0;
  bool said_half_full_ = false;
  std::optional<Version> said_given_up_;
};

}  // namespace warren::worker
