#include "worker/settings/settings.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include "recovery/base/limits.h"
#include "worker/settings/launcher_variables.h"
#include "worker/settings/layers.h"
#include "worker/settings/resolver.h"
#include "worker/settings/table.h"
#include "worker/system/text.h"

namespace warren::worker {
namespace {

// Variables that are no settings of a worker: where the file is, what `warren` itself reads, and what `warren run`
// tells its workers besides.
constexpr std::array<std::string_view, 5> kOtherVariables = {"WARREN_CONFIG", "WARREN_HTTP", "WARREN_LOCAL_WORLD_SIZE",
                                                             "WARREN_LIFE_FD", "WARREN_SEGMENT_KEEPER"};

// In quotes, with bytes that are not ASCII as \xNN: a name that only looks right would be told from itself otherwise.
std::string shown_bytes(std::string_view name) {
  std::string out;
  for (const char c : name) {
    if (static_cast<unsigned char>(c) < 0x80) {
      out += c;
      continue;
    }
    std::array<char, 5> hex{};
    (void)std::snprintf(hex.data(), hex.size(), "\\x%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
    out += hex.data();
  }
  return in_quotes(out);
}

// Rules between settings. Each looks at settings that have been read.

void check_worker_id(Resolver& r, const Settings& s) {
  if (!s.worker_id.empty()) return;
  r.refuse(
      "no worker id is given, the name that this worker keeps over its lives, unique in the job: set the option "
      "worker_id or WARREN_WORKER_ID, or start under a launcher that numbers its processes (Slurm, torchrun, "
      "Open MPI, MPICH, a Kubernetes indexed job, dmlc-submit, `warren run`)");
}

void check_secret(Resolver& r, const Settings& s) {
  if (s.no_auth && !s.secret_file.empty()) {
    r.refuse(r.find("secret_file")->what + " and " + r.find("insecure_no_auth")->what +
             " contradict each other; give one of them");
  } else if (!s.no_auth && s.secret_file.empty()) {
    r.refuse(
        "no secret is given: make one with `warren keygen --out=FILE` and name its file by the option secret_file or "
        "WARREN_SECRET_FILE; where nobody else can connect, WARREN_INSECURE_NO_AUTH=1 goes without");
  }
}

// Nobody can listen twice on one port.
void check_ports(Resolver& r, const Settings& s) {
  const std::uint32_t needed = s.replicas == 0 ? 1 : kPortsOfWorker;
  if (!s.port_range.given() || s.port_range.size() >= needed) return;
  r.refuse(r.find("port_range")->what + " has " + std::to_string(s.port_range.size()) +
           " port, and each worker of a machine listens on " + std::to_string(needed) + ": give a wider range");
}

void check_log(Resolver& r, const Settings& s) {
  if (s.log != LogMode::kMemory && r.find("data_dir") == nullptr) {
    const Raw* log = r.find("log");
    r.refuse(log->what + " is " + in_quotes(log->text) +
             ", but there is no folder to write to: give one on a local disk by the option data_dir or "
             "WARREN_DATA_DIR, or keep the log in memory");
  }
  if (!s.checkpoint_mirror.empty() && s.replicas == 0) {
    r.refuse("checkpoint_mirror needs replicas of 1 or more: what it gets comes from the log");
  }
}

void check_spare(Resolver& r, const Settings& s) {
  if (!s.begins_as_spare || s.spares != 0) return;
  r.refuse(r.find("spare")->what + " says that this worker waits as a spare, and " + r.find("spares")->what +
           " that the job has none; leave one of them out");
}

void check_replaced(Resolver& r, const Settings& s) {
  if (s.replace_after_ms == 0) return;
  if (s.replicas == 0) {
    r.refuse("replace_after_ms needs replicas of 1 or more: who takes a rank's place gets its results from the log");
  }
  if (s.on_rollback != OnRollback::kExit) {
    r.refuse("replace_after_ms needs on_rollback=exit: a rank that leaves its place to a spare ends its process");
  }
}

void check_shrink(Resolver& r, const Settings& s) {
  if (s.mode == Mode::kWait) {
    if (const Raw* most = r.find("max_workers"); most != nullptr) {
      r.refuse(most->what +
               " says how many workers a job may have that begins with fewer, and this one begins with all: give "
               "mode=shrink (WARREN_MODE) too, or leave it out");
    }
    return;
  }
  const auto refuse = [&](const char* why) { r.refuse(std::string("mode=shrink ") + why); };
  if (s.replicas == 0) refuse("needs replicas of 1 or more: whoever comes back gets what it has missed from the log");
  if (s.on_rollback != OnRollback::kExit) {
    refuse("needs on_rollback=exit: a worker that the job has gone on without ends its process");
  }
  if (s.resize) {
    refuse("goes on with fewer workers by itself, and with as many as world_size again: leave resize out");
  }
  if (!s.checkpoint_mirror.empty()) refuse("has no mirror of checkpoints: leave checkpoint_mirror out");
  if (s.fusion_bytes != 0) refuse("puts no calls together: leave fusion_bytes out, or give 0");
}

constexpr std::array kRules = {check_worker_id, check_secret,   check_ports, check_log,
                               check_spare,     check_replaced, check_shrink};

// All that is wrong; `s` is as far as it can be told.
Status resolve_into(Settings& s, const warren_options* options, const Environment& env, const SystemFacts& facts) {
  auto given = from_options(options);
  if (!given.ok()) return given.status();
  auto file = from_file(env);
  if (!file.ok()) return file.status();
  auto launcher = from_launcher(env);
  if (!launcher.ok()) return launcher.status();
  const auto local_world_size = read_local_world_size(env);
  if (!local_world_size.ok()) return local_world_size.status();

  Resolver r({std::move(given).value(), from_variables(env), std::move(file).value()}, std::move(launcher).value(),
             facts, local_world_size.value());
  for (const Setting& setting : settings_table()) r.read(setting, s);
  for (const auto rule : kRules) rule(r, s);
  Status status = r.status();
  s.resolved = std::move(r).resolved();
  return status;
}

std::vector<std::string_view> names() {
  std::vector<std::string_view> out;
  for (const Setting& setting : settings_table()) out.push_back(setting.name);
  return out;
}

}  // namespace

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): the caller's duty, see the header
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
}

Result<Settings> resolve(const warren_options* options, const Environment& env, const SystemFacts& facts) {
  Settings s;
  if (Status status = resolve_into(s, options, env, facts); !status.ok()) return status;
  return s;
}

Preview preview(const Environment& env) {
  Preview out;
  out.wrong = resolve_into(out.settings, nullptr, env, read_system_facts());
  return out;
}

Result<Settings> resolve(const warren_options* options, const Environment& env) {
  return resolve(options, env, read_system_facts());
}

Result<bool> names_tracker(const Environment& env) {
  if (from_variables(env).contains("tracker")) return true;
  const auto file = from_file(env);
  if (!file.ok()) return file.status();
  return file.value().contains("tracker");
}

std::string describe(const Settings& settings) {
  std::string out;
  for (const Resolved& r : settings.resolved) {
    if (r.source != kDefaultSource) out += (out.empty() ? "" : " ") + r.name + "=" + r.value + " (" + r.source + ")";
  }
  return out;
}

std::string describe_all(const Settings& settings) {
  std::size_t width = 0;
  for (const Resolved& r : settings.resolved) width = std::max(width, r.name.size());
  std::string out;
  for (const Resolved& r : settings.resolved) {
    out += r.name + std::string(width - r.name.size() + 2, ' ') + r.value + " (" + r.source + ")\n";
  }
  return out;
}

Status check_setting_name(std::string_view name) {
  if (find_setting(name) != nullptr) return {};
  return {Code::kInvalidArgument, "there is no setting " + shown_bytes(name) + did_you_mean(name, names())};
}

std::vector<std::string> misspelled_variables(std::span<const std::string_view> environment) {
  std::vector<std::string> known(kOtherVariables.begin(), kOtherVariables.end());
  for (const std::string_view name : names()) known.push_back(variable_of(name));
  const std::vector<std::string_view> candidates(known.begin(), known.end());
  std::vector<std::string> out;
  for (const std::string_view entry : environment) {
    const std::string_view name = entry.substr(0, entry.find('='));
    if (!name.starts_with("WARREN_") || std::ranges::find(candidates, name) != candidates.end()) continue;
    out.push_back(std::string(name) + " is not a variable of Warren" + did_you_mean(name, candidates));
  }
  return out;
}

}  // namespace warren::worker
