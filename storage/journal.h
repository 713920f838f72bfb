// The tracker's memory over its own deaths: one record a job, which holds what the job's machine asked to persist.
//
// Each record is replaced as a whole. Legal states after a crash or a loss of power, for every implementation:
//  - a put() or erase() that returned success has happened;
//  - one that was under way, or that failed, has happened in full or not at all, and later ones on the same job decide;
//  - nothing else has changed.
// Who reads must therefore live with either outcome of a write that was not confirmed, which the tracker does by
// announcing nothing before put() has returned success.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "recovery/base/result.h"

namespace warren::storage {

// Not thread-safe: one thread at a time.
class Journal {
 public:
  virtual ~Journal() = default;

  // Every record, by job. kCorrupt: some record cannot be read.
  [[nodiscard]] virtual Result<std::map<std::string, std::string>> load() = 0;
  // The record of one job; none: it has no record.
  [[nodiscard]] virtual Result<std::optional<std::string>> get(std::string_view job) = 0;
  // Replaces the record of `job`, durably. kExhausted: no space left. kUnavailable: the disk refuses for another
  // reason. The call may be repeated: it works again once the cause is gone.
  [[nodiscard]] virtual Status put(std::string_view job, std::string_view bytes) = 0;
  // Removes the record of `job`, durably; fine if there is none. Errors as for put().
  [[nodiscard]] virtual Status erase(std::string_view job) = 0;
};

}  // namespace warren::storage
