// `warren run`: a tracker and N workers on this machine.
#include <gflags/gflags.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <thread>

#include "cli/embedded_tracker.h"
#include "cli/preemption_notice.h"
#include "cli/setting_flags.h"
#include "cli/table.h"
#include "launcher/launcher.h"
#include "launcher/output.h"
#include "recovery/base/limits.h"
#include "storage/open_files.h"
#include "storage/secret.h"
#include "worker/segments/keeper.h"
#include "worker/settings/costs_file.h"
#include "worker/settings/settings.h"
#include "worker/settings/table.h"
#include "worker/system/netinfo.h"
#include "worker/system/text.h"

DEFINE_int32(n, -1, "how many workers to start; 0: only --spares");
DEFINE_uint32(world_size, 0, "how many workers the job has, where several launchers share it (default: those of -n)");
DEFINE_uint32(first_worker, 0, "the id of the first worker here, where several launchers share a job");
DEFINE_int32(spares, -1, "how many more workers to start, which wait and take the rank of a lost one");
DEFINE_string(tracker, "", "HOST:PORT of a running tracker, or \"embedded\": one of its own, on this machine alone");
DEFINE_string(restarts, "", "how often each worker is started again (default: 10 times if it is lost, else never)");
DEFINE_bool(prefix, true, "mark each line of output with the worker that wrote it: \"[3] \"");
DEFINE_bool(bind_to_core, false, "each worker runs on a core of its own; for programs of one thread");
DEFINE_string(preemption_notice, "", "ask this cloud whether the machine is taken away: aws, google or azure");
DEFINE_string(preemption_url, "",
              "the cloud's metadata service, as http://HOST:PORT (default: where the cloud has it)");

namespace warren::cli {
namespace {

constexpr std::int64_t kAskForPreemptionMs = 1000;

using Variables = std::map<std::string, std::optional<std::string>>;

// The flag --max_workers; 0: it is not given, or is no number.
std::uint32_t max_workers() {
  const auto number = worker::parse_number("", given_setting("max_workers"), 0, limits::kMaxWorldSize);
  return number.ok() ? static_cast<std::uint32_t>(number.value()) : 0;
}

std::uint32_t world_size() {
  if (max_workers() != 0) return max_workers();
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
  // A set of strings has the same order in each life.
  put("PYTHONHASHSEED", "0");
}

// The variables that the flags set for the workers.
Variables from_flags() {
  Variables out;
  for (const auto& [setting, value] : given_settings()) out[worker::variable_of(setting)] = value;
  if (max_workers() == 0) out.erase("WARREN_MAX_WORKERS");
  // 0: they are elsewhere, and may take the ranks of workers here all the same.
  if (FLAGS_spares >= 0) out["WARREN_SPARES"] = std::to_string(std::max(1, FLAGS_spares));
  if (is_given_on("insecure_no_auth")) {
    out["WARREN_SECRET_FILE"] = std::nullopt;
  } else if (out.contains("WARREN_SECRET_FILE")) {
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
  if (!given_setting("secret_file").empty()) {
    return Status(
        Code::kInvalidArgument,
        "--secret_file is for a running tracker, named by --tracker; an embedded one makes a secret of its own");
  }
  // Stands in until the tracker has an address and a secret; the rest is judged, and the job's name is learned.
  Variables trial = variables;
  trial["WARREN_TRACKER"] = "127.0.0.1";
  if (!is_given_on("insecure_no_auth")) {
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
  auto tracker = EmbeddedTracker::start(settings.value().job, !is_given_on("insecure_no_auth"), lines,
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

// The exit code that a signal to a launcher without workers asks for; nothing: it is one for workers.
std::optional<int> exit_code_of(int signal) {
  if (signal == SIGTERM) return worker::kExitPreempted;
  if (signal == SIGINT || signal == SIGHUP) return 128 + signal;
  return std::nullopt;
}

// A launcher that a supervisor starts again on a machine that is being taken must start no worker there: the workers of
// the next machine may be up, and would be replaced. Waits while the notice stands. Returns the exit code where a
// signal ends that; nothing: the machine stays, or nobody says that it goes.
std::optional<int> await_withdrawal(PreemptionSource& source, const worker::LauncherSignals& signals) {
  const Notice notice = [](const char* event, const std::string& text) {
    std::fprintf(stderr, "%s warren: %s: %s\n", worker::utc_now().c_str(), event, text.c_str());
  };
  for (bool said = false;;) {
    const std::int64_t now_ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
            .count();
    const auto found = source.look(now_ms);
    // Once a notice stands, silence withdraws nothing: the service may go before the machine does.
    if (found.ok() ? !found.value() : !said) return std::nullopt;
    if (!said) notice("machine_goes", found.value()->what + "; no worker is started here while the notice stands");
    said = true;
    pollfd ready{signals.fd(), POLLIN, 0};
    if (poll(&ready, 1, kAskForPreemptionMs) <= 0) continue;
    signalfd_siginfo info{};
    if (read(signals.fd(), &info, sizeof info) != static_cast<ssize_t>(sizeof info)) continue;
    if (const auto code = exit_code_of(static_cast<int>(info.ssi_signo))) return code;
  }
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
  if (const std::string most = given_setting("max_workers"); !most.empty()) {
    const auto number = worker::parse_number("--max_workers", most, 0, limits::kMaxWorldSize);
    if (!number.ok()) return std::string(number.status().message());
  }
  if (FLAGS_n == 0 && FLAGS_spares < 1) return "-n 0 starts no workers: give the number of --spares";
  if (max_workers() != 0 && FLAGS_world_size != 0) return "--max_workers is the world size: leave --world_size out";
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
           " of them, are not all below " + (max_workers() != 0 ? "--max_workers" : "--world_size") + ", which is " +
           std::to_string(world_size()) + most;
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
  if (source.value()) {
    if (const auto code = await_withdrawal(*source.value(), signals)) return *code;
  }
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
  if (const std::string timeline = given_setting("timeline"); !timeline.empty() && options.first_attempt == 0) {
    // One of a run before is no part of this one.
    if (!std::ofstream(timeline, std::ios::trunc)) return failure("cannot write the timeline " + timeline);
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
        "Starts N copies of the program with the WARREN_* variables that they need, and a tracker, unless --tracker, "
        "WARREN_TRACKER or the file of WARREN_CONFIG names one. Lost workers are started again. Each line of output is "
        "marked with its worker. The exit code is 0 if every worker ended with 0, else that of the worker that ended "
        "the job: 128 + N if signal N killed it.\n"
        "\n"
        "  warren run -n 4 -- ./train                                 one machine, no disk\n"
        "  warren run -n 4 --data_dir=/data/digits -- ./train         run again after a crash, it continues\n"
        "  warren run -n 4 --spares=1 -- ./train                      a fifth worker takes a lost rank\n"
        "  warren run -n 4 --mode=shrink --min_workers=2 -- ./train   continues with fewer workers\n"
        "\n"
        "SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on; a second SIGINT kills. At SIGTERM workers finish the calls "
        "under way, leave within --drain_ms, and the launcher ends with 75. docs/commands.md tells all of restarts, "
        "several machines, spares, slow ranks, fewer workers and preemption.\n"
        "Flags that are settings of the workers come before WARREN_* variables, the file of WARREN_CONFIG and what "
        "another launcher set. docs/settings.md says when to change them.",
    .flags = {"n", "world_size", "first_worker", "spares", "tracker", "restarts", "prefix", "bind_to_core",
              "preemption_notice", "preemption_url"},
    .settings = settings_of_run(),
    .takes_words = true,
    .run = run,
};

}  // namespace warren::cli
