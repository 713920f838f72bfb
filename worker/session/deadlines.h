// Calls that have a time within which they are to finish (warren_call_options.timeout_ms).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "recovery/base/machine.h"
#include "worker/rounds/call.h"

namespace warren::worker {

// Threads: one at a time.
class Deadlines {
 public:
  struct Deadline {
    TimeMs at;
    std::int64_t timeout_ms = 0;
    std::weak_ptr<const Call> call;
  };
  void add(const std::shared_ptr<const Call>& call, std::int64_t timeout_ms, TimeMs now);
  // One that is over, of a call that has not finished; once. What has finished is forgotten.
  [[nodiscard]] std::optional<Deadline> overdue(TimeMs now);
  // The next time at which one may be.
  [[nodiscard]] std::optional<TimeMs> next() const;

 private:
  std::vector<Deadline> all_;  // at most as many as calls are outstanding, and those that finished since a look
};

}  // namespace warren::worker
