// `warren chaos`: real processes under faults.
#include <gflags/gflags.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "chaos/process/runner.h"
#include "chaos/process/worker.h"
#include "cli/setting_flags.h"
#include "cli/table.h"
#include "cli/values.h"
#include "launcher/launcher.h"
#include "recovery/base/limits.h"
#include "worker/device/program_gpu.h"
#include "worker/system/text.h"

DECLARE_int32(spares);
DEFINE_double(seconds, 60, "how long faults strike");
DEFINE_string(
    faults, "kill,stop,cut,tracker",
    "a list of kill, stop, cut, tracker, disk, all, pair, drain; or none. kill:40,stop:11: so many of each, spread "
    "over the run");
DEFINE_int32(hosts, 2, "failure domains that the ranks are spread over");
DEFINE_int32(interval_ms, 1000, "mean time from the end of a recovery to the next fault");
DEFINE_string(mix, "mixed",
              "what the workers run: mixed, big, inplace, allocated, inflight, groups, onesided, small, narrow, fused, "
              "messages or large");
DEFINE_string(round_bytes, "4M", "bytes of the biggest call");
DEFINE_int32(compute_ms, 0, "how long a worker waits before each iteration, as for a device that computes");
DEFINE_int32(delay_ms, 0, "what each frame between hosts takes, each way; hosts are network namespaces then");
DEFINE_int32(jitter_ms, 0, "what it may take more; frames keep their order");
DEFINE_int32(loss_permille, 0, "of a thousand frames so many are lost");
DEFINE_bool(disk_log, false, "keep the log on disk too; faults of kind disk and all do in any case");
DEFINE_bool(goodput, false, "run without faults first, and compare");
DEFINE_string(worker_of, "", "be a worker of the run in this folder; `warren chaos` itself starts these");
DECLARE_int32(ranks);
DECLARE_uint64(seed);
DECLARE_bool(json);
DECLARE_string(memory);

namespace warren::cli {
namespace {

using chaos::process::ChaosOptions;
using chaos::process::FaultKind;
using chaos::process::kFaultNames;

std::atomic<bool> interrupted{false};

struct Faults {
  std::vector<FaultKind> kinds;
  bool planned = false;
};

// What is wrong is said; then nothing.
std::optional<Faults> faults_of(std::string_view list) {
  constexpr std::uint64_t kMostOfAKind = 100'000;
  const auto wrong = [](const std::string& why) {
    usage_error(kChaosCommand, "--faults: " + why);
    return std::nullopt;
  };
  Faults out;
  std::size_t words = 0, counted = 0;
  while (!list.empty() && list != "none") {
    const std::string_view word = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), word.size() + 1));
    const std::string_view name = word.substr(0, word.find(':'));
    const auto at = std::ranges::find(kFaultNames, name);
    if (at == kFaultNames.end()) return wrong("there is no fault " + worker::in_quotes(name));
    std::uint64_t count = 1;
    words++;
    if (name.size() < word.size()) {
      const auto number =
          worker::parse_number("the number of " + std::string(name), word.substr(name.size() + 1), 1, kMostOfAKind);
      if (!number.ok()) return wrong(std::string(number.status().message()));
      count = number.value();
      counted++;
    }
    out.kinds.insert(out.kinds.end(), count, static_cast<FaultKind>(at - kFaultNames.begin()));
  }
  if (counted != 0 && counted != words) return wrong("a number for each kind, or for none");
  out.planned = counted != 0;
  return out;
}

// Mode shrink, where it is asked for. What is wrong is said; then false.
bool shrinks(ChaosOptions& options) {
  const auto wrong = [](std::string_view why) {
    usage_error(kChaosCommand, why);
    return false;
  };
  const std::string mode = given_setting("mode");
  if (mode.empty() || mode == "wait") {
    if (given_setting("min_workers").empty() && given_setting("grace_ms").empty()) return true;
    return wrong("--min_workers and --grace_ms are for --mode=shrink");
  }
  if (mode != "shrink") return wrong("--mode is wait or shrink");
  const auto least = worker::parse_number("--min_workers", given_setting("min_workers", "1"), 1, options.ranks);
  const auto grace = worker::parse_number("--grace_ms", given_setting("grace_ms", "1000"), 0,
                                          static_cast<std::uint64_t>(limits::kMaxGraceMs));
  for (const auto* number : {&least, &grace}) {
    if (!number->ok()) return wrong(number->status().message());
  }
  if (options.replicas == 0) return wrong("--mode=shrink needs --replicas above 0");
  if (options.spares != 0) return wrong("--mode=shrink comes without --spares: workers keep their ranks");
  if (std::ranges::find(options.faults, FaultKind::kAll) != options.faults.end()) {
    return wrong(
        "with --mode=shrink --faults are kill, pair, stop, cut, tracker and disk: where everything dies, others may "
        "contribute to what is computed again");
  }
  if (std::ranges::find(options.faults, FaultKind::kDrain) != options.faults.end()) {
    return wrong(
        "with --mode=shrink --faults come without drain: a drained rank is replaced by a spare, of which "
        "there are none");
  }
  if (!chaos::process::may_shrink(options.mix)) {
    return wrong(
        "--mode=shrink has allreduce and barrier on all ranks: --mix is mixed, big, inplace, allocated, "
        "inflight or small");
  }
  options.min_workers = static_cast<std::uint32_t>(least.value());
  options.grace_ms = static_cast<std::int64_t>(grace.value());
  return true;
}

// The weather between hosts. Says which flag is wrong, and returns false then.
bool weathers(ChaosOptions& options) {
  if (FLAGS_delay_ms < 0 || FLAGS_delay_ms > 10'000 || FLAGS_jitter_ms < 0 || FLAGS_jitter_ms > 10'000) {
    usage_error(kChaosCommand, "--delay_ms and --jitter_ms are 0 … 10000");
    return false;
  }
  if (FLAGS_loss_permille < 0 || FLAGS_loss_permille > 500) {
    usage_error(kChaosCommand, "--loss_permille is 0 … 500");
    return false;
  }
  options.weather = {FLAGS_delay_ms, FLAGS_jitter_ms, FLAGS_loss_permille, options.seed};
  return true;
}

// Reads the flags. Returns the exit code if one is wrong, and has said so then.
int read(ChaosOptions& options) {
  const auto faults = faults_of(FLAGS_faults);
  if (!faults) return kExitUsage;
  const auto has = [&](FaultKind kind) { return std::ranges::find(faults->kinds, kind) != faults->kinds.end(); };
  if (FLAGS_ranks < 0 || FLAGS_ranks > 16) return usage_error(kChaosCommand, "--ranks is 1 … 16");
  const int ranks = FLAGS_ranks == 0 ? 4 : FLAGS_ranks;
  if (FLAGS_hosts < 1 || FLAGS_hosts > ranks) return usage_error(kChaosCommand, "--hosts is 1 … the number of ranks");
  if (!(FLAGS_seconds > 0 && FLAGS_seconds < 1e6)) return usage_error(kChaosCommand, "--seconds is above 0");
  if (FLAGS_interval_ms < 0) return usage_error(kChaosCommand, "--interval_ms is not below 0");
  const auto replicas = worker::parse_number("--replicas", given_setting("replicas", "2"), 0, 16);
  const auto timeout =
      worker::parse_number("--round_timeout_ms", given_setting("round_timeout_ms", "10000"), 100, 86'400'000);
  const auto round_bytes = worker::parse_bytes("--round_bytes", FLAGS_round_bytes, 8, std::uint64_t{1} << 32);
  const auto mix = chaos::process::mix_named(FLAGS_mix);
  if (!mix) return usage_error(kChaosCommand, "--mix is one of " + chaos::process::mix_names());
  if (FLAGS_compute_ms < 0 || FLAGS_compute_ms > 1'000'000) {
    return usage_error(kChaosCommand, "--compute_ms is 0 … 1000000");
  }
  if (!is_memory(FLAGS_memory)) return usage_error(kChaosCommand, "--memory is cpu or gpu");
  const int spares = std::max(0, FLAGS_spares);
  if (FLAGS_spares < -1 || spares > FLAGS_hosts * (ranks / FLAGS_hosts)) {
    return usage_error(kChaosCommand, "--spares is 0 … as many as each host has ranks");
  }
  for (const auto* number : {&replicas, &timeout, &round_bytes}) {
    if (!number->ok()) return usage_error(kChaosCommand, number->status().message());
  }
  if (!faults->kinds.empty() && replicas.value() == 0)
    return usage_error(kChaosCommand, "faults need --replicas above 0");
  if (spares > 0 && (has(FaultKind::kCut) || has(FaultKind::kDisk) || has(FaultKind::kAll))) {
    return usage_error(kChaosCommand,
                       "with --spares ranks move between hosts: --faults are kill, pair, drain, stop and tracker");
  }
  if (has(FaultKind::kPair) && ranks < 2) return usage_error(kChaosCommand, "a pair is two of --ranks");
  if (has(FaultKind::kDisk) && (FLAGS_hosts < 2 || replicas.value() < 2)) {
    return usage_error(kChaosCommand,
                       "a host loses its disk only where another has a copy: --hosts and --replicas of 2");
  }
  std::error_code error;
  options.program = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return failure("cannot find this program: " + error.message());
  options.ranks = static_cast<std::uint32_t>(ranks);
  options.hosts = static_cast<std::uint32_t>(FLAGS_hosts);
  options.spares = static_cast<std::uint32_t>(spares);
  options.replicas = static_cast<int>(replicas.value());
  options.seconds = FLAGS_seconds;
  options.faults = faults->kinds;
  options.planned = faults->planned;
  options.mix = *mix;
  options.round_bytes = static_cast<std::size_t>(round_bytes.value());
  options.compute_ms = static_cast<std::uint32_t>(FLAGS_compute_ms);
  options.on_gpus = FLAGS_memory == "gpu";
  options.disk_log = FLAGS_disk_log;
  options.timeline = given_setting("timeline");
  options.seed = FLAGS_seed == 0 ? 1 : FLAGS_seed;
  options.round_timeout_ms = static_cast<std::int64_t>(timeout.value());
  options.interval_ms = FLAGS_interval_ms;
  options.goodput = FLAGS_goodput;
  if (!weathers(options) || !shrinks(options)) return kExitUsage;
  if (options.on_gpus) {
    if (const Status s = worker::ProgramGpu::look(); !s.ok()) return failure("--memory=gpu: " + s.describe());
  }
  return kExitOk;
}

void print(const ChaosOptions& options, const chaos::process::ChaosReport& r) {
  std::fprintf(stderr,
               "seed %llu: %llu faults, %llu of them during a recovery; %llu rounds; %llu divergences, %llu hangs, "
               "%llu rollbacks%s%s\n",
               static_cast<unsigned long long>(options.seed), static_cast<unsigned long long>(r.fault_count),
               static_cast<unsigned long long>(r.during_recovery), static_cast<unsigned long long>(r.rounds),
               static_cast<unsigned long long>(r.divergences), static_cast<unsigned long long>(r.hangs),
               static_cast<unsigned long long>(r.rollbacks),
               options.min_workers == 0 ? ""
                                        : ("; " + std::to_string(r.shrinks) + " plans with fewer workers, " +
                                           std::to_string(r.growths) + " with more")
                                              .c_str(),
               r.interrupted ? "; interrupted" : "");
  if (FLAGS_json) std::printf("%s\n", r.json(options).c_str());
}

int run(const std::vector<std::string>&) {
  if (!FLAGS_worker_of.empty()) return chaos::process::run_worker(FLAGS_worker_of);
  ChaosOptions options;
  if (const int wrong = read(options); wrong != kExitOk) return wrong;
  // The processes end with the run, however it ends.
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted.store(true); };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    if (!worker::is_ignored(signal)) sigaction(signal, &action, nullptr);
  }
  const auto report = chaos::process::run_chaos(options, interrupted);
  if (!report.ok()) return failure(report.status().describe());
  print(options, report.value());
  return report.value().good() ? kExitOk : kExitFailed;
}

}  // namespace

const Command kChaosCommand = {
    .name = "chaos",
    .summary = "runs a job of real processes under faults, and judges every result",
    .usage = "[--ranks=K] [--seconds=S] [--faults=LIST] [--seed=N] [--json] …",
    .text =
        "Starts a tracker and a launcher for each host, whose workers make rounds of all kinds and sizes and take "
        "checkpoints. Faults strike at random times and at named points: kill (SIGKILL of a worker), stop (SIGSTOP and "
        "SIGCONT), cut (a host is off the network for a while; takes root), tracker (killed, started again later), "
        "disk (a host dies and comes back with an empty data directory), all (everything dies and is started again), "
        "pair (SIGKILL of two workers at once), drain (SIGTERM of a worker, which finishes its calls and leaves; "
        "failed_lives counts those whose calls failed). "
        "Each result of each life is compared with what plain loops over the same inputs give.\n"
        "What is stopped or cut off may be so for twice the round timeout: a short run wants a short one.\n"
        "With --mode=shrink, --min_workers and --grace_ms the job goes on without workers that are lost. Those that "
        "are killed come back at once, after the grace time or much later. All lives of all ranks must have the same "
        "contributors to each call and the same result, and that is compared with what plain loops over the inputs of "
        "these contributors give. Calls are allreduces and barriers; no --spares, no fault all.\n"
        "With --spares workers that are killed come back at once, or while a spare is called, or up to 3 s later; "
        "takeover_ms is the stall of those kills after which a spare took the place, takeover_without_replay_ms that "
        "less its replay, from the end of its load to the last result that the victim had had.\n"
        "With --memory=gpu the buffers of most calls lie on GPUs, which workers take in turn, and so do the states of "
        "every other checkpoint. Ranks of a host reduce there in allreduces of more than 4 MiB (--hosts=1 --mix=large "
        "--round_bytes=8M), NCCL moves bytes with WARREN_NCCL=1; inputs_lent, finals_from_gpus and rounds_exchanged of "
        "--json say how much of either there was.\n"
        "With --json the last line is one object: faults by kind and phase, rounds, divergences, hangs, goodput, "
        "stall_ms (from the last new result before a fault to the first after it on all ranks that are there), "
        "noticed_ms (until the tracker has ended the generation, where no other fault was being recovered from). The "
        "exit code is 0 only without divergences, hangs, lives that end as no fault explains, and rollbacks that no "
        "fault calls for.",
    .flags = {"ranks", "hosts", "spares", "seconds", "faults", "interval_ms", "seed", "goodput", "mix", "round_bytes",
              "compute_ms", "delay_ms", "jitter_ms", "loss_permille", "disk_log", "memory", "json", "worker_of"},
    .settings = {"round_timeout_ms", "replicas", "mode", "min_workers", "grace_ms", "timeline"},
    .run = run,
};

}  // namespace warren::cli
