// `warren run`: a tracker and N workers on this machine.
#include <gflags/gflags.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string_view>
#include <thread>

#include "cli/embedded_tracker.h"
#include "cli/preemption_notice.h"
#include "cli/table.h"
#include "recovery/limits.h"
#include "storage/open_files.h"
#include "storage/secret.h"
#include "worker/launch/costs_file.h"
#include "worker/launch/launcher.h"
#include "worker/launch/netinfo.h"
#include "worker/launch/output.h"
#include "worker/launch/settings.h"
#include "worker/launch/text.h"
#include "worker/segments/keeper.h"

DEFINE_int32(n, -1, "how many workers to start; 0: only --spares");
DEFINE_uint32(world_size, 0, "how many workers the job has, where more launchers share it (default: those of -n)");
DEFINE_uint32(first_worker, 0, "the id of the first worker here, where more launchers share a job");
DEFINE_int32(spares, -1,
             "how many workers to start beyond those, which wait warm and take the place of one that is lost at once");
DEFINE_string(spare_follows, "", "0: spares fetch no checkpoints before they are called (default 1)");
DEFINE_string(
    replace_after_ms, "",
    "for how long a rank may hold up the others until a spare takes its place, in milliseconds (default 0: for "
    "ever)");
DEFINE_string(mode, "",
              "wait: the job waits for workers that were lost (the default); shrink: it goes on without them");
DEFINE_string(min_workers, "", "mode shrink: with how few workers the job goes on (default 1)");
DEFINE_uint32(max_workers, 0,
              "mode shrink: how many workers the job may have, those that other launchers start sooner or later among "
              "them; it begins with fewer if no more come (default: it begins with all)");
DEFINE_string(grace_ms, "",
              "mode shrink: for how long it waits for workers that were lost before, in milliseconds (default 1000)");
DEFINE_string(tracker, "", "HOST:PORT of a running tracker, or \"embedded\": one of its own, on this machine alone");
DEFINE_string(restarts, "",
              "how often each worker is started again (default: 10 times when it is lost, never when it ends with a "
              "failure of its own)");
DEFINE_bool(prefix, true, "mark each line of output with the worker that wrote it: \"[3] \"");
DEFINE_bool(bind_to_core, false, "each worker runs on a core of its own; for programs of one thread");
DEFINE_bool(insecure_no_auth, false, "no authentication: only where nobody else can connect");
DEFINE_string(round_timeout_ms, "", "how long a collective waits for a silent peer, in milliseconds");
DEFINE_string(join_timeout_ms, "", "how long workers wait until all are there, in milliseconds");
DEFINE_string(transport, "", "auto (shared memory within a host) or tcp");
DEFINE_string(algorithm, "", "auto, star, tree, butterfly, ring or direct");
DEFINE_string(costs, "", "a file that warren bench --fit made: what --algorithm=auto chooses by");
DEFINE_string(chunk_bytes, "", "how many bytes travel in one piece; 256K and the like are understood");
DEFINE_string(streams, "", "TCP connections between each two workers of different hosts");
DEFINE_string(rewire, "", "0: bytes never go by way of other workers around a slow link (default 1)");
DEFINE_string(deterministic, "",
              "0: the ring may go around a slow link in another order, which rounds otherwise (default 1)");
DEFINE_string(timeline, "", "a file that gets a Chrome trace of what the workers do; one that is there is replaced");
DEFINE_string(hang_timeout_ms, "",
              "how long a worker's program may be outside of calls while others wait for it, in milliseconds, before "
              "the worker is ended and started again (default 0: as long as it likes)");
DEFINE_string(drain_ms, "", "how long workers may take to leave after SIGTERM, in milliseconds (default 10000)");
DEFINE_string(preemption_notice, "", "ask this cloud whether the machine is taken away: aws, google or azure");
DEFINE_string(preemption_url, "",
              "where its metadata service is, as http://HOST:PORT; default: where the cloud has it");
DECLARE_string(job);
DECLARE_string(secret_file);
DECLARE_string(data_dir);
DECLARE_string(host_id);
DECLARE_string(domain_id);
DECLARE_string(port_range);
DECLARE_string(replicas);
DECLARE_string(log);
DECLARE_string(log_memory_bytes);
DECLARE_string(log_lag_ms);
DECLARE_string(log_lag_bytes);
DECLARE_string(log_disk_bytes);
DECLARE_string(log_full);
DECLARE_string(checkpoint_mirror);
DECLARE_string(on_rollback);
DEFINE_bool(resize, false,
            "go on from the job's newest checkpoint although its last run had another number of workers");

namespace warren::cli {
namespace {

constexpr std::int64_t kAskForPreemptionMs = 1000;

using Variables = std::map<std::string, std::optional<std::string>>;

std::uint32_t world_size() {
  if (FLAGS_max_workers != 0) return FLAGS_max_workers;
  return FLAGS_world_size != 0 ? FLAGS_world_size : static_cast<std::uint32_t>(FLAGS_n);
}

// Of a launcher that starts spares alone: where it says no other number, ids that no other launcher gives to its own.
std::uint32_t first_worker() {
  const bool given = !google::GetCommandLineFlagInfoOrDie("first_worker").is_default;
  return FLAGS_n == 0 && !given ? world_size() : FLAGS_first_worker;
}
std::uint32_t first_spare() {
  return world_size() + first_worker();
}

// Adds variables for programs that know nothing of the other workers, where the user has set none. Threads of OpenMP,
// BLAS and the like get a fair share of the cores. Python writes its output at once: a killed process loses the rest.
void add_defaults_for_programs(Variables& variables, std::uint32_t workers) {
  const auto put = [&](const char* name, const std::string& value) {
    if (getenv(name) == nullptr) variables[name] = value;
  };
  const std::uint32_t cores = FLAGS_bind_to_core ? 1 : std::thread::hardware_concurrency() / std::max(workers, 1u);
  put("OMP_NUM_THREADS", std::to_string(std::max(cores, 1u)));
  put("PYTHONUNBUFFERED", "1");
}

// What the flags set for the workers.
Variables from_flags() {
  Variables out;
  const auto put = [&](const char* name, const std::string& value) {
    if (!value.empty()) out[name] = value;
  };
  put("WARREN_JOB", FLAGS_job);
  put("WARREN_SECRET_FILE", FLAGS_secret_file);
  put("WARREN_ROUND_TIMEOUT_MS", FLAGS_round_timeout_ms);
  put("WARREN_JOIN_TIMEOUT_MS", FLAGS_join_timeout_ms);
  put("WARREN_PORT_RANGE", FLAGS_port_range);
  put("WARREN_TRANSPORT", FLAGS_transport);
  put("WARREN_ALGORITHM", FLAGS_algorithm);
  put("WARREN_COSTS", FLAGS_costs);
  put("WARREN_CHUNK_BYTES", FLAGS_chunk_bytes);
  put("WARREN_STREAMS", FLAGS_streams);
  put("WARREN_REWIRE", FLAGS_rewire);
  put("WARREN_DETERMINISTIC", FLAGS_deterministic);
  put("WARREN_HOST_ID", FLAGS_host_id);
  put("WARREN_DOMAIN_ID", FLAGS_domain_id);
  put("WARREN_REPLICAS", FLAGS_replicas);
  put("WARREN_LOG", FLAGS_log);
  put("WARREN_LOG_MEMORY_BYTES", FLAGS_log_memory_bytes);
  put("WARREN_DATA_DIR", FLAGS_data_dir);
  put("WARREN_LOG_LAG_MS", FLAGS_log_lag_ms);
  put("WARREN_LOG_LAG_BYTES", FLAGS_log_lag_bytes);
  put("WARREN_LOG_DISK_BYTES", FLAGS_log_disk_bytes);
  put("WARREN_LOG_FULL", FLAGS_log_full);
  put("WARREN_CHECKPOINT_MIRROR", FLAGS_checkpoint_mirror);
  put("WARREN_ON_ROLLBACK", FLAGS_on_rollback);
  put("WARREN_SPARE_FOLLOWS", FLAGS_spare_follows);
  put("WARREN_REPLACE_AFTER_MS", FLAGS_replace_after_ms);
  put("WARREN_MODE", FLAGS_mode);
  put("WARREN_MIN_WORKERS", FLAGS_min_workers);
  if (FLAGS_max_workers != 0) out["WARREN_MAX_WORKERS"] = std::to_string(FLAGS_max_workers);
  put("WARREN_GRACE_MS", FLAGS_grace_ms);
  put("WARREN_DRAIN_MS", FLAGS_drain_ms);
  put("WARREN_HANG_TIMEOUT_MS", FLAGS_hang_timeout_ms);
  put("WARREN_TIMELINE", FLAGS_timeline);
  // 0: they are elsewhere, and may take the places of workers here all the same.
  if (FLAGS_spares >= 0) out["WARREN_SPARES"] = std::to_string(std::max(1, FLAGS_spares));
  if (FLAGS_resize) out["WARREN_RESIZE"] = "1";
  if (FLAGS_insecure_no_auth) {
    out["WARREN_INSECURE_NO_AUTH"] = "1";
    out["WARREN_SECRET_FILE"] = std::nullopt;
  } else if (!FLAGS_secret_file.empty()) {
    out["WARREN_INSECURE_NO_AUTH"] = "0";  // above the file of settings, too
  }
  return out;
}

// The settings that the first worker will come to, so that what is wrong is said once and before anything starts. The
// attempt is this launcher's own.
Result<worker::Settings> settings_of_first_worker(const Variables& variables) {
  const worker::Environment inherited = worker::process_environment();
  auto settings = worker::resolve(nullptr, [&](const std::string& name) -> std::optional<std::string> {
    if (name == "WARREN_WORKER_ID") return std::to_string(FLAGS_n != 0 ? FLAGS_first_worker : first_spare());
    if (name == "WARREN_WORLD_SIZE") return std::to_string(world_size());
    const auto at = variables.find(name);
    return at != variables.end() ? at->second : inherited(name);
  });
  if (!settings.ok()) return settings;
  const auto costs = worker::read_costs(settings.value().costs);
  if (!costs.ok()) return costs.status();
  return settings;
}

// Of a file that is surely not this job's: each worker would find that out by itself. One that cannot be read here may
// be for whoever the program is run as.
Status check_secret(const worker::Settings& settings) {
  if (settings.no_auth) return {};
  const auto secret = storage::Secret::load(settings.secret_file);
  if (!secret.ok()) return {};
  const auto keys = secret.value().for_job(settings.job);
  if (keys.ok()) return {};
  return keys.status().because_of_this(
      "no worker could join job " + settings.job + " with " + settings.secret_file +
      ", so none was started; give the file that was made for this job (`warren keygen "
      "--job=" +
      settings.job + "`), or name its job by --job");
}

// A setting that a flag has given is the flag's to whoever is told of it.
std::string named_by_flags(std::string text, const Variables& from_flags) {
  for (const auto& [variable, value] : from_flags) {
    constexpr std::string_view kPrefix = "WARREN_";
    std::string flag = "--" + variable.substr(kPrefix.size());
    std::ranges::transform(flag, flag.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    for (std::size_t at = 0; (at = text.find(variable, at)) != std::string::npos; at += flag.size()) {
      const char next = at + variable.size() < text.size() ? text[at + variable.size()] : ' ';
      if (next != '_' && std::isalnum(static_cast<unsigned char>(next)) == 0) text.replace(at, variable.size(), flag);
    }
  }
  return text;
}

struct Provided {
  std::unique_ptr<EmbeddedTracker> tracker;  // null: one that runs elsewhere
  worker::Settings settings;                 // of the first worker
};

// Starts a tracker of our own unless the flag, a variable or the file of settings names one, and completes `variables`.
Result<Provided> provide_tracker(Variables& variables, worker::OtherLines& lines) {
  const auto named = worker::names_tracker(worker::process_environment());
  if (!named.ok()) return named.status();
  const bool embedded = FLAGS_tracker == "embedded" || (FLAGS_tracker.empty() && !named.value());
  if (!embedded) {
    if (!FLAGS_tracker.empty()) variables["WARREN_TRACKER"] = FLAGS_tracker;
    auto settings = settings_of_first_worker(variables);
    if (!settings.ok()) return settings.status();
    if (Status s = check_secret(settings.value()); !s.ok()) return s;
    return Provided{nullptr, std::move(settings).value()};
  }
  if (!FLAGS_secret_file.empty()) {
    return Status(
        Code::kInvalidArgument,
        "--secret_file is for a running tracker, named by --tracker; an embedded one makes a secret of its own");
  }
  // Stands in until the tracker has an address and a secret; the rest is judged, and the job's name is learned.
  Variables trial = variables;
  trial["WARREN_TRACKER"] = "127.0.0.1";
  if (!FLAGS_insecure_no_auth) {
    trial["WARREN_SECRET_FILE"] = "/";
    trial["WARREN_INSECURE_NO_AUTH"] = "0";
  }
  auto settings = settings_of_first_worker(trial);
  if (!settings.ok()) return settings.status();
  if (FLAGS_n == 0) {
    return Status(Code::kInvalidArgument,
                  "-n 0 starts spares for a job that others run: name its running tracker by --tracker");
  }
  if (settings.value().world_size != static_cast<std::uint32_t>(FLAGS_n)) {
    return Status(Code::kInvalidArgument,
                  std::string(settings.value().max_workers != 0 ? "--max_workers above -n" : "--world_size") +
                      " is for a running tracker, named by --tracker: other launchers could not reach an embedded one");
  }
  const std::string& data_dir = settings.value().data_dir;
  auto tracker = EmbeddedTracker::start(settings.value().job, !FLAGS_insecure_no_auth, lines,
                                        data_dir.empty() ? std::string() : data_dir + "/tracker");
  if (!tracker.ok()) return tracker.status();
  for (auto& [name, value] : tracker.value()->variables()) variables[name] = value;
  return Provided{std::move(tracker).value(), std::move(settings).value()};
}

// How often workers are started again; nothing: what was given is no number, which has been said.
struct Restarts {
  std::uint32_t lost = 10, failed = 0;
};
std::optional<Restarts> restarts_from_flag() {
  if (FLAGS_restarts.empty()) return Restarts{};
  constexpr std::uint64_t kMost = 1'000'000;
  const auto number = worker::parse_number("--restarts", FLAGS_restarts, 0, kMost);
  if (!number.ok()) {
    usage_error(kRunCommand, number.status().message());
    return std::nullopt;
  }
  const auto n = static_cast<std::uint32_t>(number.value());
  return Restarts{n, n};
}

// Says an event, from any thread.
using Notice = std::function<void(const char* event, const std::string& text)>;

// What --preemption_notice names; null: nothing. kInvalidArgument: a cloud that there is not, or no address of one.
Result<std::unique_ptr<PreemptionSource>> preemption_source() {
  if (FLAGS_preemption_notice.empty()) {
    if (FLAGS_preemption_url.empty()) return std::unique_ptr<PreemptionSource>();
    return Status(Code::kInvalidArgument, "--preemption_url names no cloud; give --preemption_notice too");
  }
  const auto cloud = parse_cloud(FLAGS_preemption_notice);
  if (!cloud.ok()) return cloud.status().because_of_this(Code::kInvalidArgument, "--preemption_notice");
  if (worker::is_ignored(SIGTERM)) {
    return Status(Code::kInvalidArgument,
                  "--preemption_notice acts by SIGTERM, which this process was started to ignore: leave out "
                  "what makes it so (trap '' TERM), or the flag");
  }
  constexpr std::string_view kScheme = "http://";
  if (!FLAGS_preemption_url.empty() &&
      (!FLAGS_preemption_url.starts_with(kScheme) ||
       !worker::parse_host_port("", std::string_view(FLAGS_preemption_url).substr(kScheme.size()), 80).ok())) {
    return Status(Code::kInvalidArgument, "--preemption_url is " + worker::in_quotes(FLAGS_preemption_url) +
                                              ": give http://HOST or http://HOST:PORT");
  }
  return std::make_unique<PreemptionSource>(cloud.value(), FLAGS_preemption_url);
}

std::unique_ptr<PreemptionWatch> watch_for_preemption(std::unique_ptr<PreemptionSource> source, const Notice& notice) {
  // As if SIGTERM had come, with the time that is left.
  const auto pass_on = [notice](const PreemptionNotice& said) {
    notice("preemption_notice", said.what + "; the workers are told to leave");
    const sigval within{.sival_int = static_cast<int>(std::min<std::int64_t>(said.within_ms, limits::kMaxDrainMs))};
    (void)sigqueue(getpid(), SIGTERM, within);
  };
  return std::make_unique<PreemptionWatch>(
      std::move(source), kAskForPreemptionMs, pass_on,
      [notice](const Status& why) { notice("preemption_unheard", why.describe() + "; it is asked again"); });
}

// The fault in -n, --world_size, --max_workers, --first_worker and --spares; empty: there is none.
std::string wrong_numbers() {
  if (FLAGS_n < 0 || static_cast<std::uint32_t>(FLAGS_n) > limits::kMaxWorldSize) {
    return "give the number of workers: -n, from 1 to " + std::to_string(limits::kMaxWorldSize) +
           ", or 0 where only --spares are to be started";
  }
  if (FLAGS_n == 0 && FLAGS_spares < 1) return "-n 0 starts no workers: give the number of --spares";
  if (FLAGS_max_workers != 0 && FLAGS_world_size != 0) return "--max_workers is the world size: leave --world_size out";
  if (FLAGS_n == 0 && world_size() == 0) {
    return "-n 0 does not tell how many workers the job has: give --world_size, or --max_workers";
  }
  const std::string most = " (" + std::to_string(limits::kMaxWorldSize) + " at most)";
  if (FLAGS_n == 0 && (world_size() > limits::kMaxWorldSize || FLAGS_first_worker > limits::kMaxWorldSize)) {
    return "--world_size or --first_worker is too large" + most;
  }
  if (FLAGS_n != 0 && (world_size() > limits::kMaxWorldSize || FLAGS_first_worker > world_size() ||
                       static_cast<std::uint32_t>(FLAGS_n) > world_size() - FLAGS_first_worker)) {
    return "the workers " + std::to_string(FLAGS_first_worker) + " and up, " + std::to_string(FLAGS_n) +
           " of them, are not all below " + (FLAGS_max_workers != 0 ? "--max_workers" : "--world_size") +
           ", which is " + std::to_string(world_size()) + most;
  }
  const bool shared = FLAGS_n != 0 && world_size() != static_cast<std::uint32_t>(FLAGS_n);
  if (FLAGS_spares < -1 || FLAGS_spares > static_cast<std::int32_t>(limits::kMaxSpares) ||
      (shared && FLAGS_spares > FLAGS_n)) {
    return "--spares is " + std::to_string(FLAGS_spares) + ": give 0 to " + std::to_string(limits::kMaxSpares) +
           ", and, where more launchers share a job, no more than -n (a launcher with -n 0 starts more)";
  }
  return "";
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) return usage_error(kRunCommand, "give the program to run, after the flags");
  if (const std::string wrong = wrong_numbers(); !wrong.empty()) return usage_error(kRunCommand, wrong);
  const auto restarts = restarts_from_flag();
  if (!restarts) return kExitUsage;
  auto source = preemption_source();
  if (!source.ok()) return usage_error(kRunCommand, source.status().describe());

  const worker::LauncherSignals signals;  // before the tracker's threads
  worker::OtherLines lines;
  const Notice notice = [&lines](const char* event, const std::string& text) {
    lines.add(worker::utc_now() + " warren: " + event + ": " + text);
  };
  worker::LaunchOptions options;
  options.other_lines = &lines;
  // Programs may call select(); those that make a communicator have the limit raised again by it.
  options.open_files = allow_many_connections();
  options.program = words;
  options.workers = static_cast<std::uint32_t>(FLAGS_n);
  options.first_worker = first_worker();
  options.spares = static_cast<std::uint32_t>(std::max(0, FLAGS_spares));
  options.restarts = restarts->lost;
  options.failure_restarts = restarts->failed;
  options.prefix = FLAGS_prefix;
  options.bind_to_core = FLAGS_bind_to_core;
  options.variables = from_flags();
  add_defaults_for_programs(options.variables, options.workers);
  const auto provided = provide_tracker(options.variables, lines);
  if (provided.status().code() == Code::kInvalidArgument) {
    return usage_error(kRunCommand, named_by_flags(provided.status().describe(), from_flags()));
  }
  if (!provided.ok()) return failure(provided.status().describe());
  options.hung_after_ms = provided.value().settings.round_timeout_ms;
  options.drain_ms = provided.value().settings.drain_ms;
  options.world_size = provided.value().settings.world_size;
  options.min_workers = provided.value().settings.min_workers;
  options.spares_elsewhere = provided.value().settings.spares != 0;
  const auto keeper = worker::SegmentKeeper::start(options.workers + options.spares,
                                                   [&](const std::string& text) { notice("segment_keeper", text); });
  if (!keeper.ok()) return failure(keeper.status().because_of_this("cannot keep the workers' logs").describe());
  options.variables[worker::kKeeperVariable] = keeper.value()->environment();
  const auto& tracker = provided.value().tracker;
  // A scheduler that has started this launcher again has started its workers again.
  if (!tracker) options.first_attempt = provided.value().settings.attempt;
  if (tracker) {
    lines.add("warren: tracker at " + tracker->address() + ", status at http://" + tracker->status_page() + "/");
  }
  if (!FLAGS_timeline.empty() && options.first_attempt == 0) {
    // One of a run before is no part of this one.
    if (!std::ofstream(FLAGS_timeline, std::ios::trunc)) return failure("cannot write the timeline " + FLAGS_timeline);
  }
  std::unique_ptr<PreemptionWatch> preemption;
  if (source.value()) preemption = watch_for_preemption(std::move(source).value(), notice);
  const auto code = worker::launch(options, signals);
  // A job that was done is not to be taken up by the next one with this folder.
  if (tracker && code.ok() && code.value() == kExitOk) tracker->forget();
  return code.ok() ? code.value() : failure(code.status().describe());
}

}  // namespace

const Command kRunCommand = {
    .name = "run",
    .summary = "runs a program as N workers on this machine, with a tracker",
    .usage = "-n N [flags] [--] PROGRAM [ARGUMENT...]",
    .text =
        "Starts a tracker on a free port of 127.0.0.1 with a fresh secret, unless --tracker, WARREN_TRACKER or the "
        "file named by WARREN_CONFIG names a "
        "running one, and N copies of the program with the WARREN_* variables that they need. Worker ids are 0 to "
        "N-1. Launchers on several machines share a job of a running tracker: each says with --first_worker and "
        "--world_size which of its workers it starts.\n"
        "Each line of output is marked with its worker. SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are passed on; a "
        "second SIGINT kills. Nothing that a worker started survives it. At SIGTERM, or a notice of the cloud "
        "(--preemption_notice), workers that are in a job finish the calls under way, leave within --drain_ms and end "
        "with 75; the job keeps their places. At a second one they leave at once.\n"
        "A worker that is lost is started again, with WARREN_ATTEMPT counted up: one that a signal killed, that ended "
        "with 75 (preempted), 76 (its place has gone on without it), 77 (rolled back) or 254 (a kill point of "
        "rabit's), or that showed no life for the round "
        "timeout and was killed for it. "
        "One that ends with another exit code than 0 is started again only if --restarts is given. When a worker may "
        "not be started again, the others are ended.\n"
        "With -n 0 --spares=S --world_size=N, a launcher starts spares alone, for a job that other launchers run.\n"
        "With --spares=S, S more copies wait in create, with the ids above: when a worker is lost, one of them takes "
        "its place at once, unless it is back itself before, and then waits in turn. Who waits fetches the "
        "newest checkpoint's global state and keeps it in memory (--spare_follows=0: not). Who is not needed ends with "
        "the job, and its create does not return. With --replace_after_ms=N a rank that holds up the others for N "
        "milliseconds, because it is slow or cut off, leaves its place to a spare too, and waits in turn.\n"
        "With --mode=shrink the job goes on without workers that were lost, --grace_ms after that, as long as "
        "--min_workers are left, and takes them in again after a checkpoint when they are back. Programs are told "
        "whose inputs are in a result. With --max_workers=M too it has M places and begins with those workers that are "
        "there, --min_workers at least, when for --grace_ms no more have come (and a round timeout after the first); "
        "launchers that start more of them later, with --first_worker, make it grow.\n"
        "With --data_dir a job that was ended before it was done goes on when it is started again; with "
        "--resize also with another N: from its newest checkpoint, without local states.\n"
        "The exit code is 0 if every worker ended with 0, else that of the worker that ended the job: 128 + N if "
        "signal N "
        "killed it.\n"
        "Each setting of a worker comes from the first of these that has it: these flags, WARREN_* variables, the file "
        "named by WARREN_CONFIG, what a launcher set, the default.",
    .flags = {"n",
              "world_size",
              "first_worker",
              "tracker",
              "job",
              "spares",
              "spare_follows",
              "replace_after_ms",
              "mode",
              "min_workers",
              "max_workers",
              "grace_ms",
              "restarts",
              "prefix",
              "bind_to_core",
              "secret_file",
              "insecure_no_auth",
              "round_timeout_ms",
              "join_timeout_ms",
              "port_range",
              "transport",
              "algorithm",
              "costs",
              "chunk_bytes",
              "streams",
              "rewire",
              "deterministic",
              "host_id",
              "domain_id",
              "replicas",
              "log",
              "log_memory_bytes",
              "data_dir",
              "log_lag_ms",
              "log_lag_bytes",
              "log_disk_bytes",
              "log_full",
              "checkpoint_mirror",
              "resize",
              "on_rollback",
              "drain_ms",
              "hang_timeout_ms",
              "timeline",
              "preemption_notice",
              "preemption_url"},
    .takes_words = true,
    .run = run,
};

}  // namespace warren::cli
