// Records of the logs in words, for the errors and log lines of the replayer, and the streams that they stand in.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "recovery/base/ranges.h"
#include "storage/host_log.h"

namespace warren::worker::replay {

// Rounds and messages come one after the other; other records have no neighbours.
[[nodiscard]] bool windowed(RecordKind kind);
// The name of the stream that a record stands in: its own key, without the sequence where records have neighbours.
[[nodiscard]] RecordKey stream_key(const RecordKey& key);

[[nodiscard]] std::string name_of(const RecordKey& key);
// "ranks 2, 5": a few of them, and how many more there are. The set is not empty.
[[nodiscard]] std::string ranks_text(const std::set<std::int32_t>& ranks);
// "bytes 0-64, 128-192": the first of them, and how many more ranges there are.
[[nodiscard]] std::string ranges_text(const Ranges& ranges);
// Two logs, `a` and `b`, that say different things about one record.
[[nodiscard]] std::string contradiction(const std::string& a, const RecordInfo& one, const std::string& b,
                                        const RecordInfo& other);

}  // namespace warren::worker::replay
