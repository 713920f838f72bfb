#include "tracker/events.h"

#include <glog/logging.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>

namespace warren::tracker {
namespace {

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::kDebug: return "debug";
    case Severity::kInfo: return "info";
    case Severity::kWarning: return "warning";
    case Severity::kError: return "error";
  }
  return "error";
}

std::string utc(std::int64_t time_ms) {
  const auto seconds = static_cast<std::time_t>(time_ms / 1000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[80];
  const std::size_t n = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + n, sizeof text - n, ".%03dZ", static_cast<int>(time_ms % 1000));
  return text;
}

nlohmann::ordered_json number_or_text(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return value;
  return text;
}

}  // namespace

std::string json_line(std::int64_t time_ms, std::string_view job, const LogEvent& event) {
  nlohmann::ordered_json line;
  line["time"] = utc(time_ms);
  line["severity"] = name_of(event.severity);
  line["event"] = event.name;
  line["job"] = nullptr;
  if (!job.empty()) line["job"] = job;
  for (const char* name : {"rank", "generation", "version", "sequence"}) line[name] = nullptr;
  line["text"] = event.text;
  for (const auto& [name, value] : event.fields) {
    const bool standing = name == "rank" || name == "generation" || name == "version" || name == "sequence";
    // A field never takes the place of what stands in every line.
    if (standing) {
      line[name] = number_or_text(value);
    } else if (!line.contains(name)) {
      line[name] = value;
    }
  }
  return line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

EventSink json_line_sink(std::FILE* out) {
  return [out](std::string_view job, const LogEvent& event) {
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    const std::string line =
        json_line(std::chrono::duration_cast<std::chrono::milliseconds>(now).count(), job, event) + "\n";
    // A log that cannot be written must not stop the tracker.
    (void)std::fwrite(line.data(), 1, line.size(), out);
    (void)std::fflush(out);
  };
}

EventSink glog_sink() {
  return [](std::string_view, const LogEvent& event) {
    const std::string line = event.name + ": " + event.text;
    switch (event.severity) {
      case Severity::kDebug:
      case Severity::kInfo: LOG(INFO) << line; return;
      case Severity::kWarning: LOG(WARNING) << line; return;
      case Severity::kError: LOG(ERROR) << line; return;
    }
  };
}

EventSink from_level(Severity least, EventSink sink) {
  return [least, sink = std::move(sink)](std::string_view job, const LogEvent& event) {
    if (event.severity >= least) sink(job, event);
  };
}

Result<Severity> parse_severity(std::string_view name) {
  for (const Severity s : {Severity::kDebug, Severity::kInfo, Severity::kWarning, Severity::kError}) {
    if (name == name_of(s)) return s;
  }
  return Status(Code::kInvalidArgument,
                "'" + std::string(name) + "' is not a log level: give debug, info, warning or error");
}

}  // namespace warren::tracker
