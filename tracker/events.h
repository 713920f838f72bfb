// Where the tracker's log events go. docs/events.md lists them.
#pragma once

#include <cstdio>
#include <functional>
#include <string>
#include <string_view>

#include "recovery/base/machine.h"
#include "recovery/base/result.h"

namespace warren::tracker {

// `job` is empty for events that belong to none. Must not block for long: it runs on the tracker's loop thread.
using EventSink = std::function<void(std::string_view job, const LogEvent& event)>;

// For people, through glog, which the program must have initialized.
EventSink glog_sink();

// For machines: one JSON object a line, flushed, to `out`, which must outlive the sink. See json_line().
EventSink json_line_sink(std::FILE* out);

// Passes on the events of severity `least` and above.
[[nodiscard]] EventSink from_level(Severity least, EventSink sink);

// debug, info, warning or error; InvalidArgument for any other name.
[[nodiscard]] Result<Severity> parse_severity(std::string_view name);

// {"time":"2026-11-21T01:02:03.004Z","severity":"info","event":"worker_joined","job":"train","rank":3,"generation":7,
//  "version":null,"sequence":null,"text":"…", and the event's further fields as strings}, without the newline.
// job, rank, generation, version and sequence are always there, null where unknown. `time_ms`: since 1970, UTC.
[[nodiscard]] std::string json_line(std::int64_t time_ms, std::string_view job, const LogEvent& event);

}  // namespace warren::tracker
