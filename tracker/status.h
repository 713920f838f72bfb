// What the tracker shows of itself, and its three forms. Pure: no socket, no clock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "recovery/tracker/tracker_machine.h"

namespace warren::tracker {

struct JobStatus {
  std::string name;
  TrackerMachine::View view;
  std::string trouble;  // why nothing is announced at present (the journal cannot be written); empty: nothing is wrong
  std::uint64_t serial = 0;  // another one when a job of that name was forgotten and is made anew
};

// One look at everything, made by the loop thread and never changed afterwards.
struct Snapshot {
  std::int64_t uptime_ms = 0;
  std::string version;
  std::uint16_t port = 0;
  bool insecure = false;
  std::vector<JobStatus> jobs;  // by name
};

// The label of metrics that names the job. Not `job`: that is Prometheus' name for what it scrapes.
inline constexpr const char* kJobLabel = "warren_job";

// GET /status. docs/metrics.md describes the fields. Whatever workers sent is escaped, also where it is not UTF-8.
[[nodiscard]] std::string to_json(const Snapshot& snapshot);
// GET /: for people, without scripts and without anything from elsewhere.
[[nodiscard]] std::string to_html(const Snapshot& snapshot);

}  // namespace warren::tracker
