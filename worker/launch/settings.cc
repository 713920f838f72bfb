#include "worker/launch/settings.h"

#include <limits.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "recovery/codec.h"
#include "recovery/limits.h"
#include "worker/launch/launcher_variables.h"
#include "worker/launch/memory.h"
#include "worker/launch/netinfo.h"
#include "worker/launch/text.h"

namespace warren::worker {
namespace {

// The settings by their names in the file; the variable is WARREN_ and the name in capitals.
constexpr std::array<std::string_view, 54> kNames = {"tracker",
                                                     "job",
                                                     "worker_id",
                                                     "world_size",
                                                     "max_workers",
                                                     "secret_file",
                                                     "insecure_no_auth",
                                                     "host_id",
                                                     "domain_id",
                                                     "bind_address",
                                                     "advertise_address",
                                                     "port_range",
                                                     "round_timeout_ms",
                                                     "join_timeout_ms",
                                                     "transport",
                                                     "algorithm",
                                                     "costs",
                                                     "chunk_bytes",
                                                     "streams",
                                                     "checksums",
                                                     "check_call_sites",
                                                     "rewire",
                                                     "deterministic",
                                                     "replicas",
                                                     "log",
                                                     "log_memory_bytes",
                                                     "data_dir",
                                                     "log_lag_ms",
                                                     "log_lag_bytes",
                                                     "log_disk_bytes",
                                                     "log_full",
                                                     "checkpoint_mirror",
                                                     "spares",
                                                     "spare",
                                                     "spare_follows",
                                                     "replace_after_ms",
                                                     "mode",
                                                     "min_workers",
                                                     "grace_ms",
                                                     "resize",
                                                     "on_rollback",
                                                     "on_sigterm",
                                                     "drain_ms",
                                                     "hang_timeout_ms",
                                                     "device_library",
                                                     "device_pinned_bytes",
                                                     "device_snapshot_bytes",
                                                     "device_shared_bytes",
                                                     "nccl",
                                                     "nccl_root",
                                                     "fusion_bytes",
                                                     "timeline",
                                                     "log_level",
                                                     "attempt"};

// Variables that are no settings of a worker: where the file is, what `warren` itself reads, and what `warren run`
// tells its workers besides.
constexpr std::array<std::string_view, 5> kOtherVariables = {"WARREN_CONFIG", "WARREN_HTTP", "WARREN_LOCAL_WORLD_SIZE",
                                                             "WARREN_LIFE_FD", "WARREN_SEGMENT_KEEPER"};

constexpr std::array<std::string_view, 6> kAlgorithms = {"auto", "star", "tree", "butterfly", "ring", "direct"};
constexpr std::array<std::string_view, 2> kTransports = {"auto", kTcpTransport};
constexpr std::array<std::string_view, 3> kLogModes = {"memory", "async", "sync"};  // as LogMode numbers them
constexpr std::array<std::string_view, 2> kLogFullActions = {"suspend", "error"};   // as LogFull numbers them
constexpr std::array<std::string_view, 2> kSigtermActions = {"default", "drain"};   // as OnSigterm numbers them
constexpr std::array<std::string_view, 2> kModes = {"wait", "shrink"};
constexpr std::array<std::string_view, 2> kRollbackActions = {"exit", "error"};  // as OnRollback numbers them

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kMaxLogBytes = 16'384 * kGiB;
constexpr std::int64_t kDefaultLogLagMs = 10'000;
constexpr std::int64_t kMaxLogLagMs = 24LL * 3600 * 1000;
constexpr std::uint64_t kDefaultLogLagBytes = 256 * kMiB;
constexpr std::uint64_t kDefaultFusionBytes = 64 * kMiB;
constexpr std::uint64_t kDefaultSnapshotBytes = 1024 * kMiB;
constexpr std::uint64_t kDefaultSharedBytes = 1024 * kMiB;
constexpr std::int64_t kDefaultGraceMs = 1000;
constexpr std::uint64_t kDefaultLogDiskBytes = 64 * kGiB;
constexpr std::string_view kDefaultJob = "default";
constexpr std::string_view kDefaultSource = "default";
constexpr std::string_view kOptionsSource = "options";
constexpr std::uint32_t kDefaultStreams = 1;

std::string variable_of(std::string_view name) {
  std::string out = "WARREN_";
  for (const char c : name) out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return out;
}

struct Raw {
  std::string text;
  std::string source;  // what Resolved shows
  std::string what;    // how an error calls it
};
using Layer = std::map<std::string, Raw, std::less<>>;

Result<Layer> from_options(const warren_options* options) {
  Layer out;
  if (options == nullptr) return out;
  if (options->struct_size != sizeof(warren_options)) {
    return Status(Code::kInvalidArgument,
                  "warren_options.struct_size is " + std::to_string(options->struct_size) + ", this library's is " +
                      std::to_string(sizeof(warren_options)) +
                      "; call warren_options_init first, and compile with the header of the library's version");
  }
  const auto put = [&](const char* name, std::string text, const char* field) {
    out[name] = {std::move(text), std::string(kOptionsSource), std::string("the option ") + field};
  };
  const auto text = [&](const char* name, const char* value) {
    if (value != nullptr) put(name, value, name);
  };
  const auto number = [&](const char* name, std::int64_t value) {
    if (value > 0) put(name, std::to_string(value), name);
  };
  text("tracker", options->tracker);
  text("job", options->job);
  text("worker_id", options->worker_id);
  number("world_size", options->world_size);
  text("secret_file", options->secret_file);
  if (options->insecure_no_auth > 0) put("insecure_no_auth", "1", "insecure_no_auth");
  text("host_id", options->host_id);
  text("bind_address", options->bind_address);
  text("advertise_address", options->advertise_address);
  number("round_timeout_ms", options->round_timeout_ms);
  number("join_timeout_ms", options->join_timeout_ms);
  text("transport", options->transport);
  text("algorithm", options->algorithm);
  number("chunk_bytes", options->chunk_bytes);
  number("streams", options->streams);
  if (options->no_checksums > 0) put("checksums", "0", "no_checksums");
  if (options->check_call_sites > 0) put("check_call_sites", "1", "check_call_sites");
  if (options->no_rewire > 0) put("rewire", "0", "no_rewire");
  if (options->nondeterministic > 0) put("deterministic", "0", "nondeterministic");
  text("domain_id", options->domain_id);
  if (options->replicas >= 0) put("replicas", std::to_string(options->replicas), "replicas");
  text("log", options->log);
  number("log_memory_bytes", options->log_memory_bytes);
  text("data_dir", options->data_dir);
  number("log_lag_ms", options->log_lag_ms);
  number("log_lag_bytes", options->log_lag_bytes);
  number("log_disk_bytes", options->log_disk_bytes);
  text("log_full", options->log_full);
  text("checkpoint_mirror", options->checkpoint_mirror);
  text("on_rollback", options->on_rollback);
  if (options->fusion_bytes >= 0) put("fusion_bytes", std::to_string(options->fusion_bytes), "fusion_bytes");
  text("timeline", options->timeline);
  if (options->replace_after_ms >= 0) {
    put("replace_after_ms", std::to_string(options->replace_after_ms), "replace_after_ms");
  }
  text("mode", options->mode);
  number("min_workers", options->min_workers);
  number("max_workers", options->max_workers);
  if (options->grace_ms >= 0) put("grace_ms", std::to_string(options->grace_ms), "grace_ms");
  if (options->log_level >= 0) put("log_level", std::to_string(options->log_level), "log_level");
  static_assert(kNames.size() <= WARREN_MOST_SETTINGS);
  for (std::size_t i = 0; i < std::min<std::size_t>(options->settings_count, WARREN_MOST_SETTINGS); ++i) {
    const warren_setting& setting = options->settings[i];
    if (const Status known = check_setting_name(setting.name); !known.ok()) return known;
    put(setting.name, setting.value, setting.name);
  }
  return out;
}

Layer from_variables(const Environment& env) {
  Layer out;
  for (const std::string_view name : kNames) {
    const std::string variable = variable_of(name);
    auto text = env(variable);
    if (text && !text->empty()) out.emplace(name, Raw{*std::move(text), variable, variable});
  }
  return out;
}

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

Result<Layer> read_file(const std::string& path) {
  constexpr std::size_t kMaxFileBytes = std::size_t{64} << 10;
  Layer out;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMaxFileBytes + 1, '\0');
  if (!file || !file.read(text.data(), static_cast<std::streamsize>(text.size())).eof()) {
    return Status(Code::kUnavailable, "WARREN_CONFIG names " + in_quotes(path) +
                                          (file ? ", which is longer than 64 KiB" : ", which cannot be read") +
                                          "; correct it or unset WARREN_CONFIG");
  }
  text.resize(static_cast<std::size_t>(file.gcount()));
  // Editors put a byte order mark in front, which says nothing in UTF-8.
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    return Status(Code::kInvalidArgument,
                  path + " is written in UTF-16, as its byte order mark says: save it as UTF-8 or ASCII");
  }
  std::istringstream lines(text);
  std::string line;
  for (std::size_t n = 1; std::getline(lines, line); ++n) {
    const std::string_view content = trim(std::string_view(line).substr(0, line.find('#')));
    if (content.empty()) continue;
    const std::string where = path + ":" + std::to_string(n);
    const std::size_t equals = content.find('=');
    if (equals == std::string_view::npos) {
      return Status(Code::kInvalidArgument, where + ": " + in_quotes(content) + " is not of the form name = value");
    }
    const std::string_view name = trim(content.substr(0, equals));
    const std::string_view value = trim(content.substr(equals + 1));
    if (const Status known = check_setting_name(name); !known.ok()) {
      return Status(Code::kInvalidArgument, where + ": " + known.describe());
    }
    if (value.empty()) {
      return Status(Code::kInvalidArgument,
                    where + ": " + std::string(name) + " has no value; remove the line to use the default");
    }
    const auto [at, fresh] = out.emplace(name, Raw{std::string(value), where, std::string(name) + " (" + where + ")"});
    if (!fresh) {
      return Status(Code::kInvalidArgument,
                    where + ": " + std::string(name) + " was given before, at " + at->second.source);
    }
  }
  return out;
}

// Of the file that WARREN_CONFIG names, if it does.
Result<Layer> from_file(const Environment& env) {
  const auto path = env("WARREN_CONFIG");
  return path && !path->empty() ? read_file(*path) : Layer();
}

Result<Layer> from_launcher(const Environment& env) {
  auto launcher = read_launcher(env);
  if (!launcher.ok()) return launcher.status();
  Layer out;
  const auto put = [&](const char* name, const std::optional<FromLauncher::Value>& value) {
    if (value) out[name] = {value->text, value->variable, value->variable};
  };
  put("tracker", launcher.value().tracker);
  put("job", launcher.value().job);
  put("worker_id", launcher.value().worker_id);
  put("world_size", launcher.value().world_size);
  put("attempt", launcher.value().attempt);
  if (const auto& port = launcher.value().tracker_port; port && out.contains("tracker")) {
    Raw& tracker = out["tracker"];
    auto number = parse_number(port->variable, port->text, 1, 65535);
    if (!number.ok()) return number.status();
    if (!is_numeric_address(tracker.text) || tracker.text.find(':') == std::string::npos) {
      tracker.text += ":" + port->text;
    } else {
      tracker.text = "[" + tracker.text + "]:" + port->text;
    }
  }
  return out;
}

// The layers in order of precedence, and what was taken from them.
class Resolver {
 public:
  explicit Resolver(std::vector<Layer> layers) : layers_(std::move(layers)) {}

  // The value of `name`, from the first layer that has it.
  [[nodiscard]] const Raw* find(std::string_view name) const {
    for (const Layer& layer : layers_) {
      if (const auto at = layer.find(name); at != layer.end()) return &at->second;
    }
    return nullptr;
  }

  void text(std::string_view name, std::string& into, const std::string& by_default,
            const std::function<Status(const Raw&)>& check) {
    const Raw* raw = find(name);
    if (raw != nullptr) keep(check(*raw));
    into = raw != nullptr ? raw->text : by_default;
    show(name, into.empty() ? "(none)" : into, raw);
  }

  template <class Int>
  void number(std::string_view name, Int& into, Int least, Int most, Int by_default) {
    integer(name, into, by_default, [&](const Raw& raw) {
      return parse_number(raw.what, raw.text, static_cast<std::uint64_t>(least), static_cast<std::uint64_t>(most));
    });
  }
  template <class Int>
  void bytes(std::string_view name, Int& into, Int least, Int most, Int by_default) {
    integer(name, into, by_default, [&](const Raw& raw) {
      return parse_bytes(raw.what, raw.text, static_cast<std::uint64_t>(least), static_cast<std::uint64_t>(most));
    });
  }

  void on_off(std::string_view name, bool& into, bool by_default) {
    const Raw* raw = find(name);
    into = by_default;
    if (raw != nullptr) {
      auto parsed = parse_switch(raw->what, raw->text);
      keep(parsed.status());
      if (parsed.ok()) into = parsed.value();
    }
    show(name, into ? "1" : "0", raw);
  }

  // The index of the word that was given.
  template <std::size_t N>
  std::size_t word(std::string_view name, const std::array<std::string_view, N>& words, std::size_t by_default) {
    const Raw* raw = find(name);
    std::size_t chosen = by_default;
    if (raw != nullptr) {
      const auto at = std::ranges::find(words, raw->text);
      if (at != words.end()) {
        chosen = static_cast<std::size_t>(at - words.begin());
      } else {
        std::string all;
        for (std::size_t i = 0; i < N; ++i) all += (i == 0 ? "" : i + 1 == N ? " or " : ", ") + std::string(words[i]);
        keep({Code::kInvalidArgument,
              raw->what + " is " + in_quotes(raw->text) + ": give " + all + did_you_mean(raw->text, words)});
      }
    }
    show(name, std::string(words[chosen]), raw);
    return chosen;
  }

  void show(std::string_view name, const std::string& value, const Raw* raw) {
    resolved_.push_back({std::string(name), value, raw != nullptr ? raw->source : std::string(kDefaultSource)});
  }
  // Remembers the failures; all of them are told at once.
  void keep(const Status& status) {
    if (!status.ok()) failures_.push_back(status.describe());
  }
  [[nodiscard]] Status status() const {
    if (failures_.empty()) return {};
    std::string all;
    for (const std::string& failure : failures_) all += (all.empty() ? "" : "\n") + failure;
    return {Code::kInvalidArgument, all};
  }
  [[nodiscard]] std::vector<Resolved> resolved() && { return std::move(resolved_); }

 private:
  template <class Int, class Parse>
  void integer(std::string_view name, Int& into, Int by_default, Parse parse) {
    const Raw* raw = find(name);
    into = by_default;
    if (raw != nullptr) {
      auto parsed = parse(*raw);
      keep(parsed.status());
      if (parsed.ok()) into = static_cast<Int>(parsed.value());
    }
    show(name, std::to_string(into), raw);
  }

  std::vector<Layer> layers_;
  std::vector<std::string> failures_;
  std::vector<Resolved> resolved_;
};

Status named(const Raw& raw, std::size_t limit_bytes) {
  return validate_name(raw.what, raw.text, limit_bytes);
}

std::function<Status(const Raw&)> name_of_at_most(std::size_t limit_bytes) {
  return [limit_bytes](const Raw& raw) { return named(raw, limit_bytes); };
}

void resolve_tracker(Resolver& r, const Layer& launcher, Settings& s) {
  const Raw* raw = r.find("tracker");
  if (raw == nullptr) {
    r.show("tracker", "(missing)", nullptr);
    r.keep({Code::kInvalidArgument,
            "no tracker is given: set the option tracker, WARREN_TRACKER=host:port, or 'tracker = host:port' in the "
            "file that WARREN_CONFIG names, or start under a launcher that names a host (Slurm, torchrun, "
            "dmlc-submit); `warren run -n N program` starts a tracker and N workers on this machine"});
    return;
  }
  auto parsed = parse_host_port(raw->what, raw->text, kDefaultTrackerPort);
  r.keep(parsed.status());
  if (!parsed.ok()) return r.show("tracker", in_quotes(raw->text) + ", which is wrong", raw);
  s.tracker_host = parsed.value().host;
  s.tracker_port = parsed.value().port;
  // A program under dmlc-submit may have its option from there, as rabit's interface has. Any other program's option
  // names Warren's tracker, which would take the question in rabit's protocol for a stranger's.
  const auto variable = launcher.find("tracker");
  const bool under_dmlc_submit = variable != launcher.end() && variable->second.source == "DMLC_TRACKER_URI";
  s.tracker_may_be_rabits =
      under_dmlc_submit && (raw->source == kOptionsSource || raw->source == variable->second.source);
  r.show("tracker", to_string(parsed.value()), raw);
}

void resolve_identity(Resolver& r, const Layer& launcher, Settings& s) {
  r.text("worker_id", s.worker_id, "", name_of_at_most(limits::kMaxWorkerIdBytes));
  if (s.worker_id.empty()) {
    r.keep({Code::kInvalidArgument,
            "no worker id is given, the name that this worker keeps over its lives, unique in the job: set the option "
            "worker_id or WARREN_WORKER_ID, or start under a launcher that numbers its processes (Slurm, torchrun, "
            "Open MPI, MPICH, a Kubernetes indexed job, dmlc-submit, `warren run`)"});
  }
  r.number("world_size", s.world_size, std::uint32_t{1}, limits::kMaxWorldSize, std::uint32_t{0});
  const Raw* size = r.find("world_size");
  const Raw* most = r.find("max_workers");
  r.number("max_workers", s.max_workers, std::uint32_t{1}, limits::kMaxWorldSize, std::uint32_t{0});
  if (size == nullptr && most == nullptr) {
    r.keep(
        {Code::kInvalidArgument,
         "no world size is given, the number of workers in the job: set the option world_size, WARREN_WORLD_SIZE, or "
         "'world_size = N' in the file that WARREN_CONFIG names, or start under a launcher that tells it (Slurm, "
         "torchrun, Open MPI, MPICH, dmlc-submit, `warren run`; a Kubernetes indexed job does not)"});
    return;
  }
  const std::uint32_t started = s.world_size;
  if (s.max_workers != 0) {
    s.world_size = s.max_workers;
    if (started > s.max_workers) {
      r.keep({Code::kInvalidArgument, most->what + " is " + most->text + ", and " + size->what + " says that " +
                                          size->text + " workers are started: give as many at least"});
    }
  }
  // A launcher numbers its processes from 0; anything else means that its variables are not what they seem.
  const Raw* id = r.find("worker_id");
  const auto theirs = [&](const char* name, const Raw* raw) {
    const auto at = launcher.find(name);
    return raw != nullptr && at != launcher.end() && at->second.source == raw->source;
  };
  if (started == 0 || !theirs("worker_id", id) || !theirs("world_size", size)) return;
  r.keep(parse_number(id->what, id->text, 0, started - 1).status());
}

// What can be the path of a file or folder; whether it exists is seen by who opens it.
Status path(const Raw& raw) {
  if (raw.text.find('\0') == std::string::npos && raw.text.size() < PATH_MAX) return {};
  return {Code::kInvalidArgument,
          raw.what + " is no path: it contains a zero byte, or has " + std::to_string(PATH_MAX) + " bytes or more"};
}

void resolve_secret(Resolver& r, Settings& s) {
  r.text("secret_file", s.secret_file, "", path);
  r.on_off("insecure_no_auth", s.no_auth, false);
  if (s.no_auth && !s.secret_file.empty()) {
    r.keep({Code::kInvalidArgument, r.find("secret_file")->what + " and " + r.find("insecure_no_auth")->what +
                                        " contradict each other; give one of them"});
  } else if (!s.no_auth && s.secret_file.empty()) {
    r.keep(
        {Code::kInvalidArgument,
         "no secret is given: make one with `warren keygen --out=FILE` and name its file by the option secret_file or "
         "WARREN_SECRET_FILE; where nobody else can connect, WARREN_INSECURE_NO_AUTH=1 goes without"});
  }
}

void resolve_addresses(Resolver& r, Settings& s) {
  r.text("bind_address", s.bind_address, "", [](const Raw& raw) -> Status {
    if (is_numeric_address(raw.text) && raw.text.size() <= limits::kMaxAddressBytes) return {};
    return named(raw, limits::kMaxAddressBytes);
  });
  r.text("advertise_address", s.advertise_address, "", [](const Raw& raw) -> Status {
    if (is_numeric_address(raw.text) && raw.text.size() <= limits::kMaxAddressBytes) return {};
    return {Code::kInvalidArgument, raw.what + " is " + in_quotes(raw.text) + ": give a numeric IPv4 or IPv6 address"};
  });
  std::string ports;
  r.text("port_range", ports, "", [&s](const Raw& raw) -> Status {
    const auto range = parse_port_range(raw.what, raw.text);
    if (!range.ok()) return range.status();
    s.port_range = range.value();
    return {};
  });
}

// A quarter of what this machine or container has for the logs of all ranks here, and another for copies of GPU
// buffers. A log's segment is sparse, and memory is pinned on demand: what is never used costs nothing.
std::uint64_t quarter_of_memory(const SystemFacts& facts, std::uint64_t local_world_size) {
  constexpr std::uint64_t kLeast = 4 * kMiB, kMost = 64 * kGiB, kOfUnknown = 256 * kMiB;
  const std::uint64_t memory_bytes = facts.memory_bytes != 0 ? facts.memory_bytes : kOfUnknown;
  return std::clamp(memory_bytes / 4 / local_world_size / kMiB * kMiB, kLeast, kMost);
}

// With how few workers the job goes on, and after how long.
void resolve_mode(Resolver& r, Settings& s) {
  if (kModes[r.word("mode", kModes, 0)] == "shrink") {
    r.number("min_workers", s.min_workers, std::uint32_t{1}, s.world_size != 0 ? s.world_size : limits::kMaxWorldSize,
             std::uint32_t{1});
    r.number("grace_ms", s.grace_ms, std::int64_t{0}, limits::kMaxGraceMs, kDefaultGraceMs);
    return;
  }
  for (const char* name : {"min_workers", "grace_ms"}) {
    const Raw* raw = r.find(name);
    if (raw != nullptr) {
      r.keep({Code::kInvalidArgument,
              raw->what + " says how a job goes on without lost workers, and this one waits for them: give " +
                  "mode=shrink (WARREN_MODE) too, or leave it out"});
    }
    r.show(name, "(none)", raw);
  }
  if (const Raw* raw = r.find("max_workers"); raw != nullptr) {
    r.keep({Code::kInvalidArgument,
            raw->what + " says how many workers a job may have that begins with fewer, and this one begins with all: " +
                "give mode=shrink (WARREN_MODE) too, or leave it out"});
  }
}

// What goes together with mode shrink.
void check_shrink(Resolver& r, const Settings& s) {
  const auto refuse = [&](const char* why) { r.keep({Code::kInvalidArgument, std::string("mode=shrink ") + why}); };
  if (s.replicas == 0) {
    refuse("needs replicas of 1 or more: whoever comes back gets what it has missed from the log");
  }
  if (s.on_rollback != OnRollback::kExit) {
    refuse("needs on_rollback=exit: a worker that the job has gone on without ends its process");
  }
  if (s.resize) {
    refuse("goes on with fewer workers by itself, and with as many as world_size again: leave resize out");
  }
  if (!s.checkpoint_mirror.empty()) refuse("has no mirror of checkpoints: leave checkpoint_mirror out");
  if (s.fusion_bytes != 0) refuse("puts no calls together: leave fusion_bytes out, or give 0");
}

// Nobody can listen twice on one port.
void check_ports(Resolver& r, const Settings& s) {
  const std::uint32_t needed = s.replicas == 0 ? 1 : kPortsOfWorker;
  if (!s.port_range.given() || s.port_range.size() >= needed) return;
  r.keep({Code::kInvalidArgument, r.find("port_range")->what + " has " + std::to_string(s.port_range.size()) +
                                      " port, and each worker of a machine listens on " + std::to_string(needed) +
                                      ": give a wider range"});
}

// Whether the job has spares, and whether this worker begins as one of them.
void resolve_spares(Resolver& r, Settings& s) {
  const Raw* spare = r.find("spare");
  const Result<bool> given = spare != nullptr ? parse_switch(spare->what, spare->text) : false;
  const bool is_spare = given.ok() && given.value();
  r.number("spares", s.spares, std::uint32_t{0}, static_cast<std::uint32_t>(limits::kMaxSpares),
           std::uint32_t{is_spare ? 1U : 0U});
  // As a launcher numbers them, behind the workers.
  const auto number = parse_number("worker_id", s.worker_id, s.world_size, std::numeric_limits<std::uint32_t>::max());
  r.on_off("spare", s.begins_as_spare, s.spares != 0 && s.world_size != 0 && number.ok());
  if (s.begins_as_spare && s.spares == 0) {
    r.keep({Code::kInvalidArgument, spare->what + " says that this worker waits as a spare, and " +
                                        r.find("spares")->what + " that the job has none; leave one of them out"});
  }
}

void resolve_log(Resolver& r, const SystemFacts& facts, std::uint64_t local_world_size, Settings& s) {
  r.number("replicas", s.replicas, std::uint32_t{0}, kMaxReplicas, kDefaultReplicas);
  const Raw* mode = r.find("log");
  const Raw* folder = r.find("data_dir");
  s.log = static_cast<LogMode>(
      r.word("log", kLogModes, static_cast<std::size_t>(folder != nullptr ? LogMode::kAsync : LogMode::kMemory)));
  r.bytes("log_memory_bytes", s.log_memory_bytes, kMiB, kMaxLogBytes, quarter_of_memory(facts, local_world_size));
  r.text("data_dir", s.data_dir, "", path);
  if (s.log != LogMode::kMemory && folder == nullptr) {
    r.keep({Code::kInvalidArgument, mode->what + " is " + in_quotes(mode->text) +
                                        ", but there is no folder to write to: give one on a local disk by the option "
                                        "data_dir or WARREN_DATA_DIR, or keep the log in memory"});
  }
  r.number("log_lag_ms", s.log_lag_ms, std::int64_t{1}, kMaxLogLagMs, kDefaultLogLagMs);
  r.bytes("log_lag_bytes", s.log_lag_bytes, std::uint64_t{1}, kMaxLogBytes, kDefaultLogLagBytes);
  r.bytes("log_disk_bytes", s.log_disk_bytes, kMiB, kMaxLogBytes, kDefaultLogDiskBytes);
  s.log_full = static_cast<LogFull>(r.word("log_full", kLogFullActions, static_cast<std::size_t>(LogFull::kSuspend)));
  r.text("checkpoint_mirror", s.checkpoint_mirror, "", path);
  if (!s.checkpoint_mirror.empty() && s.replicas == 0) {
    r.keep({Code::kInvalidArgument, "checkpoint_mirror needs replicas of 1 or more: what it gets comes from the log"});
  }
  resolve_spares(r, s);
  r.on_off("spare_follows", s.spare_follows, true);
  r.number("replace_after_ms", s.replace_after_ms, std::int64_t{0}, limits::kMaxReplaceAfterMs, std::int64_t{0});
  if (s.replace_after_ms != 0 && s.replicas == 0) {
    r.keep({Code::kInvalidArgument,
            "replace_after_ms needs replicas of 1 or more: who takes a rank's place gets its results from the log"});
  }
  resolve_mode(r, s);
  r.on_off("resize", s.resize, false);
  s.on_rollback =
      static_cast<OnRollback>(r.word("on_rollback", kRollbackActions, static_cast<std::size_t>(OnRollback::kExit)));
  if (s.replace_after_ms != 0 && s.on_rollback != OnRollback::kExit) {
    r.keep({Code::kInvalidArgument,
            "replace_after_ms needs on_rollback=exit: a rank that leaves its place to a spare ends its process"});
  }
  s.on_sigterm =
      static_cast<OnSigterm>(r.word("on_sigterm", kSigtermActions, static_cast<std::size_t>(OnSigterm::kDefault)));
  r.number("drain_ms", s.drain_ms, std::int64_t{0}, limits::kMaxDrainMs, limits::kDefaultDrainMs);
  r.number("hang_timeout_ms", s.hang_timeout_ms, std::int64_t{0}, limits::kMaxRoundTimeoutMs, std::int64_t{0});
}

void resolve_log_level(Resolver& r, Settings& s) {
  constexpr std::array<std::string_view, 3> kLevels = {"info", "warning", "error"};
  const Raw* raw = r.find("log_level");
  s.log_level = WARREN_LOG_INFO;
  if (raw != nullptr) {
    const auto word = std::ranges::find(kLevels, raw->text);
    const bool digit = raw->text.size() == 1 && raw->text[0] >= '0' && raw->text[0] <= '2';
    if (word != kLevels.end()) {
      s.log_level = static_cast<int>(word - kLevels.begin());
    } else if (digit) {
      s.log_level = raw->text[0] - '0';
    } else {
      r.keep({Code::kInvalidArgument,
              raw->what + " is " + in_quotes(raw->text) + ": give info, warning or error (0, 1, 2)"});
    }
  }
  r.show("log_level", std::string(kLevels[static_cast<std::size_t>(s.log_level)]), raw);
}

std::string first_line_of(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "mnt:[4026531841]" -> "4026531841"
std::string namespace_inode(const char* path) {
  std::array<char, 64> target{};
  const ssize_t n = readlink(path, target.data(), target.size());
  if (n <= 0) return {};
  std::string out;
  for (const char c : std::string_view(target.data(), static_cast<std::size_t>(n))) {
    if (c >= '0' && c <= '9') out += c;
  }
  return out;
}

std::string domain_of(const SystemFacts& facts) {
  if (!facts.boot_id.empty()) return facts.boot_id;
  return facts.host_name.empty() ? "unknown" : facts.host_name;
}

// "node7-8c1f03d2a96b": for people the machine's name; what follows is unique to this start of the machine, to these
// namespaces and to this user. Processes share memory through /proc and Unix sockets: they must see each other's
// processes and files, and be the same user's.
std::string host_of(const SystemFacts& facts) {
  constexpr std::size_t kMostOfName = 64;
  std::string out;
  for (const char c : facts.host_name.substr(0, kMostOfName)) {
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter || (!out.empty() && (c == '.' || c == '-' || c == '_'))) out += c;
  }
  const std::string unique = facts.boot_id + "/" + facts.mount_namespace + "/" + facts.pid_namespace + "/" +
                             facts.network_namespace + "/" + facts.user;
  std::array<char, 16> digits{};
  (void)std::snprintf(digits.data(), digits.size(), "%012llx",
                      static_cast<unsigned long long>(XXH3_64bits(unique.data(), unique.size()) >> 16));
  return (out.empty() ? "host" : out) + "-" + digits.data();
}

}  // namespace

SystemFacts read_system_facts() {
  SystemFacts out;
  out.boot_id = first_line_of("/proc/sys/kernel/random/boot_id");
  out.mount_namespace = namespace_inode("/proc/self/ns/mnt");
  out.pid_namespace = namespace_inode("/proc/self/ns/pid");
  out.network_namespace = namespace_inode("/proc/self/ns/net");
  out.user = std::to_string(geteuid());
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) == 0) out.host_name = name.data();
  const long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
  if (pages > 0 && page_bytes > 0) {
    out.memory_bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
  }
  const auto allowed = control_group_memory();
  if (allowed && (out.memory_bytes == 0 || *allowed < out.memory_bytes)) out.memory_bytes = *allowed;
  return out;
}

Environment process_environment() {
  return [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): the caller's duty, see the header
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
}

namespace {

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

  Resolver r({std::move(given).value(), from_variables(env), std::move(file).value(), launcher.value()});
  resolve_tracker(r, launcher.value(), s);
  r.text("job", s.job, std::string(kDefaultJob), name_of_at_most(limits::kMaxJobNameBytes));
  resolve_identity(r, launcher.value(), s);
  resolve_secret(r, s);
  r.text("host_id", s.host_id, host_of(facts), name_of_at_most(limits::kMaxHostIdBytes));
  r.text("domain_id", s.domain_id, domain_of(facts), name_of_at_most(limits::kMaxHostIdBytes));
  resolve_addresses(r, s);
  r.number("round_timeout_ms", s.round_timeout_ms, limits::kMinRoundTimeoutMs, limits::kMaxRoundTimeoutMs,
           limits::kDefaultRoundTimeoutMs);
  r.number("join_timeout_ms", s.join_timeout_ms, limits::kMinRoundTimeoutMs, limits::kMaxRoundTimeoutMs,
           limits::kDefaultJoinTimeoutMs);
  r.text("transport", s.transport, "auto", [](const Raw& raw) -> Status {
    if (std::ranges::find(kTransports, raw.text) != kTransports.end()) return {};
    return {Code::kInvalidArgument,
            raw.what + " is " + in_quotes(raw.text) + ": give auto or tcp" + did_you_mean(raw.text, kTransports)};
  });
  r.text("algorithm", s.algorithm, "auto", [](const Raw& raw) -> Status {
    if (std::ranges::find(kAlgorithms, raw.text) != kAlgorithms.end()) return {};
    return {Code::kInvalidArgument, raw.what + " is " + in_quotes(raw.text) +
                                        ": give auto, star, tree, butterfly, ring or direct" +
                                        did_you_mean(raw.text, kAlgorithms)};
  });
  r.text("costs", s.costs, "", path);
  r.bytes("chunk_bytes", s.chunk_bytes, std::uint64_t{limits::kMinChunkBytes}, std::uint64_t{limits::kMaxChunkBytes},
          std::uint64_t{limits::kDefaultChunkBytes});
  r.number("streams", s.streams, std::uint32_t{1}, limits::kMaxStreams, kDefaultStreams);
  r.on_off("checksums", s.checksums, true);
  r.on_off("check_call_sites", s.check_call_sites, false);
  r.on_off("rewire", s.rewire, true);
  r.on_off("deterministic", s.deterministic, true);
  resolve_log(r, facts, local_world_size.value(), s);
  r.text("device_library", s.device_library, "", path);
  r.bytes("device_pinned_bytes", s.device_pinned_bytes, kMiB, kMaxLogBytes,
          quarter_of_memory(facts, local_world_size.value()));
  r.bytes("device_snapshot_bytes", s.device_snapshot_bytes, std::uint64_t{0}, kMaxLogBytes, kDefaultSnapshotBytes);
  r.bytes("device_shared_bytes", s.device_shared_bytes, std::uint64_t{0}, kMaxLogBytes, kDefaultSharedBytes);
  r.on_off("nccl", s.nccl, false);
  r.text("nccl_root", s.nccl_root, "", path);
  r.bytes("fusion_bytes", s.fusion_bytes, std::uint64_t{0}, limits::kMaxBufferBytes,
          s.min_workers != 0 ? 0 : kDefaultFusionBytes);
  if (s.min_workers != 0) check_shrink(r, s);
  check_ports(r, s);
  r.text("timeline", s.timeline, "", path);
  resolve_log_level(r, s);
  r.number("attempt", s.attempt, std::uint32_t{0}, std::numeric_limits<std::uint32_t>::max(), std::uint32_t{0});
  Status status = r.status();
  s.resolved = std::move(r).resolved();
  return status;
}

}  // namespace

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
  if (std::ranges::find(kNames, name) != kNames.end()) return {};
  return {Code::kInvalidArgument, "there is no setting " + shown_bytes(name) + did_you_mean(name, kNames)};
}

std::vector<std::string> misspelled_variables(std::span<const std::string_view> environment) {
  std::vector<std::string> known(kOtherVariables.begin(), kOtherVariables.end());
  for (const std::string_view name : kNames) known.push_back(variable_of(name));
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
