// `warren doctor`: is this machine fit for a tracker or a worker?
#include <gflags/gflags.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/doctor_checks.h"
#include "cli/setting_flags.h"
#include "cli/table.h"
#include "cli/values.h"

DECLARE_bool(json);
DECLARE_string(data_dir);
DECLARE_string(tracker);
DECLARE_string(secret_file);
DECLARE_string(job);
DECLARE_int32(port);
DECLARE_int32(http_port);

namespace warren::cli {
namespace {

const char* word(Health health) {
  switch (health) {
    case Health::kOk: return "ok";
    case Health::kWarn: return "warn";
    case Health::kBad: return "bad";
  }
  return "?";
}

void print_text(const std::vector<Finding>& findings) {
  for (const Finding& f : findings) {
    std::printf("%-5s %-13s %s\n", word(f.health), f.name.c_str(), f.text.c_str());
    if (!f.advice.empty()) std::printf("%-5s %-13s -> %s\n", "", "", f.advice.c_str());
  }
}

void print_json(const std::vector<Finding>& findings, bool fit) {
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const Finding& f : findings) {
    checks.push_back({{"name", f.name}, {"level", word(f.health)}, {"text", f.text}, {"advice", f.advice}});
  }
  const nlohmann::ordered_json page = {{"fit", fit}, {"checks", checks}};
  std::printf("%s\n", page.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

// The flag, else the variable, else `otherwise`.
std::string given(const std::string& flag, const char* variable, const char* otherwise) {
  if (!flag.empty()) return flag;
  const char* value = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): one thread
  return value != nullptr && *value != '\0' ? value : otherwise;
}

int doctor(const std::vector<std::string>&) {
  DoctorOptions options;
  const auto port = port_of("--port", FLAGS_port, 1);
  const auto http_port = port_of("--http_port", FLAGS_http_port, 1);
  for (const auto* p : {&port, &http_port}) {
    if (!p->ok()) return usage_error(kDoctorCommand, p->status().describe());
  }
  options.port = port.value();
  options.http_port = http_port.value();
  const std::string ports = given_setting("port_range");
  if (const std::string text = given(ports, "WARREN_PORT_RANGE", ""); !text.empty()) {
    const auto range = worker::parse_port_range(ports.empty() ? "WARREN_PORT_RANGE" : "--port_range", text);
    if (!range.ok()) return usage_error(kDoctorCommand, range.status().describe());
    options.port_range = range.value();
  }
  options.data_dir = FLAGS_data_dir.empty() ? "." : FLAGS_data_dir;
  options.tracker = given(FLAGS_tracker, "WARREN_TRACKER", "");
  options.secret_file = given(FLAGS_secret_file, "WARREN_SECRET_FILE", "");
  options.job = given(FLAGS_job, "WARREN_JOB", "default");
  const std::vector<Finding> findings = examine(options);
  const bool fit = std::ranges::none_of(findings, [](const Finding& f) { return f.health == Health::kBad; });
  if (FLAGS_json) {
    print_json(findings, fit);
  } else {
    print_text(findings);
  }
  return fit ? kExitOk : kExitFailed;
}

}  // namespace

const Command kDoctorCommand = {
    .name = "doctor",
    .summary = "examines this machine: ports, interfaces, disk, clocks, limits",
    .usage =
        "[--tracker=HOST:PORT [--secret_file=FILE] [--job=NAME]] [--data_dir=DIR] [--port=N] [--http_port=N] "
        "[--port_range=LOW:HIGH] [--json]",
    .text =
        "Each line is ok, warn or bad, and says what to do. The exit code is 1 if one is bad. The tracker is looked "
        "for "
        "at --tracker, else at WARREN_TRACKER, else not at all; the secret of --secret_file, else of "
        "WARREN_SECRET_FILE, "
        "is tried at it. Without --data_dir the current folder's disk is "
        "measured. The ports of workers are those of --port_range, else of WARREN_PORT_RANGE. Nothing is changed.",
    .flags = {"tracker", "secret_file", "job", "data_dir", "port", "http_port", "json"},
    .settings = {"port_range"},
    .run = doctor,
};

}  // namespace warren::cli
