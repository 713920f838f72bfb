// `warren bench`: collectives timed and checked, over real links.
#include <gflags/gflags.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/bench_cell.h"
#include "cli/bench_compare.h"
#include "cli/bench_explain.h"
#include "cli/bench_hosts.h"
#include "cli/embedded_tracker.h"
#include "cli/setting_flags.h"
#include "cli/table.h"
#include "cli/values.h"
#include "launcher/launcher.h"
#include "recovery/base/limits.h"
#include "worker/settings/costs_file.h"
#include "worker/settings/launcher_variables.h"
#include "worker/settings/settings.h"
#include "worker/settings/table.h"
#include "worker/system/text.h"

DEFINE_int32(ranks, 0, "how many local ranks to start; 0: join the job that the environment names, else start 2");
DEFINE_string(collective, "allreduce", "a list, or all");
DEFINE_string(sizes, "4,1K,64K,1M,16M",
              "bytes of the larger buffer of a rank: a list; 1K..1M doubles from one to the other");
DEFINE_string(type, "f32", "a list of i8, u8, i16, u16, i32, u32, i64, u64, f16, bf16, f32, f64, bool, or all");
DEFINE_string(op, "sum", "a list of sum, product, min, max, and, or, xor, average, or all");
DEFINE_int32(iters, 20, "timed calls a cell");
DEFINE_int32(warmup, 5, "calls before them");
DEFINE_bool(check, true, "check every element of every result");
DEFINE_bool(inplace, false, "results over the inputs");
DECLARE_string(memory);
DEFINE_bool(explain, false,
            "say what each algorithm is estimated to cost, and which is chosen and why; nothing is run");
DEFINE_int32(explain_hosts, 0,
             "with --explain: the number of hosts that the ranks sit on, side by side; 0: says nothing of hosts");
DEFINE_bool(compare, false, "let the algorithms that serve a collective take turns in one job; --iters turns each");
DEFINE_string(fit, "", "compare, and write the costs that explain it to this file, for --costs");
DECLARE_bool(json);
DECLARE_bool(insecure_no_auth);
DEFINE_string(algorithm, "", "a list of auto, star, tree, butterfly, ring, direct, or all");

namespace warren::cli {
namespace {

using worker::in_quotes;

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> out;
  std::size_t begin = 0;
  while (true) {
    const std::size_t comma = list.find(',', begin);
    out.emplace_back(worker::trim(std::string_view(list).substr(begin, comma - begin)));
    if (comma == std::string::npos) return out;
    begin = comma + 1;
  }
}

// The entries of a table of names that a flag lists.
template <class Entry, std::size_t N>
Result<std::vector<Entry>> chosen(const char* flag, const std::string& list, const std::array<Entry, N>& table) {
  if (list == "all") return std::vector<Entry>(table.begin(), table.end());
  std::vector<std::string_view> names;
  for (const Entry& e : table) names.push_back(e.name);
  std::vector<Entry> out;
  for (const std::string& word : split(list)) {
    const auto at = std::ranges::find(table, word, &Entry::name);
    if (at == table.end()) {
      std::string all;
      for (const std::string_view n : names) all += (all.empty() ? "" : ", ") + std::string(n);
      return Status(Code::kInvalidArgument, std::string(flag) + " has " + in_quotes(word) + ": give a list of " + all +
                                                ", or all" + worker::did_you_mean(word, names));
    }
    out.push_back(*at);
  }
  return out;
}

// Where buffers lie; nothing: on the CPU. Before any thread.
Result<std::unique_ptr<worker::ProgramGpu>> chosen_memory(const worker::Settings& settings) {
  if (FLAGS_memory == "cpu") return std::unique_ptr<worker::ProgramGpu>();
  const auto number = worker::parse_number("WARREN_WORKER_ID, by which ranks share GPUs,", settings.worker_id, 0,
                                           limits::kMaxWorldSize);
  if (!number.ok()) return number.status();
  // Nobody on another host reaches such a tracker.
  const bool all_here = settings.tracker_host.starts_with("127.");
  return worker::ProgramGpu::open(static_cast<std::uint32_t>(number.value()), all_here ? settings.world_size : 0);
}

Result<std::vector<std::uint64_t>> chosen_sizes() {
  std::vector<std::uint64_t> out;
  for (const std::string& word : split(FLAGS_sizes)) {
    const std::size_t dots = word.find("..");
    const auto first = worker::parse_bytes("a size in --sizes", word.substr(0, dots), 0, limits::kMaxBufferBytes);
    if (!first.ok()) return first.status();
    if (dots == std::string::npos) {
      out.push_back(first.value());
      continue;
    }
    const auto last = worker::parse_bytes("a size in --sizes", word.substr(dots + 2), 0, limits::kMaxBufferBytes);
    if (!last.ok()) return last.status();
    if (first.value() == 0 || last.value() < first.value()) {
      return Status(Code::kInvalidArgument,
                    "--sizes has the range " + in_quotes(word) + ": it must rise, and not from 0");
    }
    for (std::uint64_t size = first.value(); size <= last.value(); size *= 2) out.push_back(size);
  }
  return out;
}

Result<std::vector<std::string>> chosen_algorithms() {
  struct Algorithm {
    std::string_view name;
  };
  static constexpr std::array<Algorithm, 6> kAll = {
      {{"auto"}, {"star"}, {"tree"}, {"butterfly"}, {"ring"}, {"direct"}}};
  const auto entries = chosen("--algorithm", FLAGS_algorithm.empty() ? "auto" : FLAGS_algorithm, kAll);
  if (!entries.ok()) return entries.status();
  std::vector<std::string> out;
  for (const Algorithm& a : entries.value()) out.emplace_back(a.name);
  return out;
}

struct Plan {
  std::vector<CollectiveName> collectives;
  std::vector<TypeName> types;
  std::vector<OpName> ops;
  std::vector<std::uint64_t> sizes;
  std::vector<std::string> algorithms;
};

Result<Plan> plan_from_flags() {
  auto collectives = chosen("--collective", FLAGS_collective, kCollectives);
  if (!collectives.ok()) return collectives.status();
  auto types = chosen("--type", FLAGS_type, kTypes);
  if (!types.ok()) return types.status();
  auto ops = chosen("--op", FLAGS_op, kOps);
  if (!ops.ok()) return ops.status();
  auto sizes = chosen_sizes();
  if (!sizes.ok()) return sizes.status();
  auto algorithms = chosen_algorithms();
  if (!algorithms.ok()) return algorithms.status();
  constexpr int kMaxIterations = 1'000'000;
  if (FLAGS_iters < 1 || FLAGS_iters > kMaxIterations || FLAGS_warmup < 0 || FLAGS_warmup > kMaxIterations) {
    return Status(Code::kInvalidArgument,
                  "--iters goes from 1 and --warmup from 0 to " + std::to_string(kMaxIterations));
  }
  return Plan{std::move(collectives).value(), std::move(types).value(), std::move(ops).value(),
              std::move(sizes).value(), std::move(algorithms).value()};
}

// The cells of a plan in the order in which they run. A barrier has no size, type or operation, and what does not
// reduce no operation.
std::vector<Cell> cells_of(const Plan& plan, worker::ProgramGpu* gpu) {
  std::vector<Cell> out;
  for (const CollectiveName& collective : plan.collectives) {
    const bool barrier = collective.collective == BenchCollective::kBarrier;
    for (const TypeName& type : plan.types) {
      for (const OpName& op : plan.ops) {
        const bool undefined = (op.bitwise && !type.whole) || (op.op == WARREN_AVERAGE && type.type == WARREN_BOOL);
        const bool pointless = collective.reduces && undefined;
        if (pointless && (plan.types.size() > 1 || plan.ops.size() > 1)) continue;
        for (const std::uint64_t size : plan.sizes) {
          out.push_back({collective, type, op, size, FLAGS_inplace, FLAGS_warmup, FLAGS_iters, FLAGS_check, gpu});
          if (barrier) break;
        }
        if (!collective.reduces) break;
      }
      if (barrier) break;
    }
  }
  return out;
}

void print_header(const Cell& cell, int ranks, const worker::Settings& settings) {
  const std::string on = cell.gpu == nullptr ? "" : "memory of GPUs, ";
  std::printf("\n# %s, %d ranks, %stransport %s, algorithm %s, %s, %d iterations after %d\n",
              std::string(cell.collective.name).c_str(), ranks, on.c_str(), settings.transport.c_str(),
              settings.algorithm.c_str(), cell.in_place && cell.collective.in_place ? "in place" : "out of place",
              cell.iterations, cell.warmup);
  std::printf("# %10s %11s %5s %8s %11s %11s %11s %9s %9s %7s\n", "bytes", "count", "type", "op", "time us", "min us",
              "max us", "algbw", "busbw", "errors");
}

void print_row(const Cell& cell, const CellResult& r) {
  std::string errors = "-";
  if (cell.check) errors = std::to_string(r.errors);
  const std::string op = cell.collective.reduces ? std::string(cell.op.name) : "none";
  std::printf("%12llu %11llu %5s %8s %11.1f %11.1f %11.1f %9.3f %9.3f %7s\n", static_cast<unsigned long long>(r.bytes),
              static_cast<unsigned long long>(r.count), std::string(cell.type.name).c_str(), op.c_str(), r.median_us,
              r.min_us, r.max_us, r.algbw_gbs, r.busbw_gbs, errors.c_str());
}

void print_json(const Cell& cell, const CellResult& r, int ranks, const worker::Settings& settings) {
  nlohmann::ordered_json line = {{"collective", cell.collective.name},
                                 {"bytes", r.bytes},
                                 {"count", r.count},
                                 {"type", cell.type.name},
                                 {"op", cell.collective.reduces ? cell.op.name : "none"},
                                 {"ranks", ranks},
                                 {"transport", settings.transport},
                                 {"algorithm", settings.algorithm},
                                 {"streams", settings.streams},
                                 {"chunk_bytes", settings.chunk_bytes},
                                 {"checksums", settings.checksums},
                                 {"in_place", cell.in_place && cell.collective.in_place},
                                 {"iterations", cell.iterations},
                                 {"warmup", cell.warmup},
                                 {"min_us", r.min_us},
                                 {"median_us", r.median_us},
                                 {"max_us", r.max_us},
                                 {"algbw_gbs", r.algbw_gbs},
                                 {"busbw_gbs", r.busbw_gbs},
                                 {"errors", nullptr}};
  if (cell.check) line["errors"] = r.errors;
  line["memory"] = FLAGS_memory;
  if (cell.gpu != nullptr) {
    line["inputs_lent"] = r.inputs_lent;
    line["rounds_exchanged"] = r.rounds_exchanged;
  }
  std::printf("%s\n", line.dump().c_str());
}

Status run_cells(warren_comm* comm, const std::vector<Cell>& cells, const worker::Settings& settings,
                 std::uint64_t& errors) {
  const bool speaks = warren_rank(comm) == 0;
  const int ranks = warren_world_size(comm);
  std::string_view shown;
  for (const Cell& cell : cells) {
    const auto result = run_cell(comm, cell);
    if (!result.ok()) return result.status();
    errors += result.value().errors;
    if (!speaks) continue;
    if (FLAGS_json) {
      print_json(cell, result.value(), ranks, settings);
    } else {
      if (shown != cell.collective.name) print_header(cell, ranks, settings);
      shown = cell.collective.name;
      print_row(cell, result.value());
    }
    std::fflush(stdout);
  }
  return {};
}

// This process is one rank of a job.
int be_a_rank(const Plan& plan) {
  const auto settings = worker::resolve(nullptr, worker::process_environment());
  if (!settings.ok()) return failure(settings.status().describe());
  if (FLAGS_ranks > 0 && static_cast<std::uint32_t>(FLAGS_ranks) != settings.value().world_size) {
    return usage_error(kBenchCommand, "--ranks is " + std::to_string(FLAGS_ranks) +
                                          ", but the job that this process was "
                                          "started in has " +
                                          std::to_string(settings.value().world_size) + " workers");
  }
  const auto gpu = chosen_memory(settings.value());
  if (!gpu.ok()) return failure(gpu.status().because_of_this("--memory=gpu has no GPU to use").describe());
  warren_comm* comm = nullptr;
  if (warren_create(nullptr, &comm) != WARREN_OK) return failure(warren_last_error());
  if (warren_load_checkpoint(comm, nullptr, nullptr, nullptr, nullptr, nullptr) != WARREN_OK) {
    const std::string why = warren_last_error();
    warren_destroy(comm);
    return failure(why);
  }
  if (gpu.value() && warren_use_stream(comm, gpu.value()->stream()) != WARREN_OK) {
    const std::string why = warren_last_error();
    warren_destroy(comm);
    return failure(why);
  }
  std::uint64_t errors = 0;
  const std::vector<Cell> cells = cells_of(plan, gpu.value().get());
  const bool compares = FLAGS_compare || !FLAGS_fit.empty();
  const Status status = compares ? compare(comm, {cells, FLAGS_fit, FLAGS_json}, settings.value(), errors)
                                 : run_cells(comm, cells, settings.value(), errors);
  const bool finalized = status.ok() && warren_finalize(comm) == WARREN_OK;
  const std::string why = status.ok() ? warren_last_error() : status.describe();
  warren_destroy(comm);
  if (!finalized) return failure(why);
  return errors == 0 ? kExitOk : kExitFailed;
}

// This program with the same flags, for one algorithm.
Result<std::vector<std::string>> command_line_for(const std::string& algorithm) {
  std::array<char, PATH_MAX> self{};
  if (readlink("/proc/self/exe", self.data(), self.size() - 1) <= 0) {
    return Status(Code::kInternal, "cannot find this program's own file in /proc/self/exe");
  }
  std::vector<std::string> out = {self.data(), "bench", "--algorithm=" + algorithm};
  for (const std::string_view flag : kBenchCommand.flags) {
    const auto info = gflags::GetCommandLineFlagInfoOrDie(std::string(flag).c_str());
    if (info.is_default || flag == "algorithm" || flag == "ranks") continue;
    out.push_back("--" + std::string(flag) + "=" + info.current_value);
  }
  return out;
}

// Starts local ranks, one job for each algorithm.
int spawn_ranks(const Plan& plan) {
  const worker::LauncherSignals signals;  // before the tracker's threads
  for (const std::string& algorithm : plan.algorithms) {
    worker::OtherLines lines;
    const auto tracker = EmbeddedTracker::start("bench", !FLAGS_insecure_no_auth, lines);
    if (!tracker.ok()) return failure(tracker.status().describe());
    auto program = command_line_for(algorithm);
    if (!program.ok()) return failure(program.status().describe());
    worker::LaunchOptions options;
    options.program = std::move(program).value();
    options.workers = FLAGS_ranks > 0 ? static_cast<std::uint32_t>(FLAGS_ranks) : 2;
    options.prefix = false;
    options.other_lines = &lines;
    options.variables = tracker.value()->variables();
    if (!worker::process_environment()("WARREN_LOG_LEVEL")) options.variables["WARREN_LOG_LEVEL"] = "warning";
    const auto code = worker::launch(options, signals);
    if (!code.ok()) return failure(code.status().describe());
    if (code.value() != kExitOk) return code.value();
  }
  return kExitOk;
}

// Flags stand above variables: what they say, the worker's settings find there.
void flags_to_variables(const Plan& plan) {
  const auto set = [](std::string_view setting, const std::string& value) {
    setenv(worker::variable_of(setting).c_str(), value.c_str(), 1);  // NOLINT(concurrency-mt-unsafe): one thread yet
  };
  if (plan.algorithms.size() == 1 && !FLAGS_algorithm.empty()) set("algorithm", plan.algorithms[0]);
  for (const auto& [setting, value] : given_settings()) set(setting, value);
}

int explain_choices(const Plan& plan) {
  const auto read =
      worker::read_costs(given_setting("costs", worker::process_environment()("WARREN_COSTS").value_or("")));
  if (!read.ok()) return failure(read.status().describe());
  const schedule::Costs& costs = read.value();
  const auto chunk_bytes = worker::parse_bytes("--chunk_bytes", given_setting("chunk_bytes", "256K"),
                                               limits::kMinChunkBytes, limits::kMaxChunkBytes);
  if (!chunk_bytes.ok()) return usage_error(kBenchCommand, chunk_bytes.status().describe());
  const auto replicas = worker::parse_number("--replicas", given_setting("replicas", "2"), 0, limits::kMaxReplicas);
  if (!replicas.ok()) return usage_error(kBenchCommand, replicas.status().describe());
  const int ranks = FLAGS_ranks > 0 ? FLAGS_ranks : 2;
  if (ranks == 1) return usage_error(kBenchCommand, "one rank alone has nothing to choose: give --ranks");
  if (FLAGS_explain_hosts != 0 && (FLAGS_explain_hosts < 2 || FLAGS_explain_hosts >= ranks)) {
    return usage_error(kBenchCommand, "--explain_hosts is 0, or from 2 to " + std::to_string(ranks - 1) +
                                          ": some of the --ranks " + std::to_string(ranks) + " share a host");
  }
  if (!FLAGS_json) std::printf("# costs %s\n", worker::name_of(costs).c_str());
  for (const CollectiveName& named : plan.collectives) {
    const Collective collective = named.scheduled;
    if (collective == Collective::kPoint) continue;
    for (const std::uint64_t bytes : plan.sizes) {
      const schedule::Case what{collective, ranks, bytes, chunk_bytes.value(),
                                static_cast<std::uint32_t>(replicas.value())};
      const bool by_hosts = FLAGS_explain_hosts != 0 && collective != Collective::kBarrier;
      std::string text;
      if (FLAGS_json) {
        nlohmann::ordered_json cell = explain_json(what, costs);
        if (by_hosts) cell["hosts"] = explain_hosts_json(what, FLAGS_explain_hosts);
        text = cell.dump() + "\n";
      } else {
        text = explain(what, costs) + (by_hosts ? explain_hosts(what, FLAGS_explain_hosts) : "");
      }
      std::fputs(text.c_str(), stdout);
      if (collective == Collective::kBarrier) break;
    }
  }
  return kExitOk;
}

int bench(const std::vector<std::string>&) {
  const auto plan = plan_from_flags();
  if (!plan.ok()) return usage_error(kBenchCommand, plan.status().describe());
  if (FLAGS_ranks < 0 || static_cast<std::uint32_t>(FLAGS_ranks) > limits::kMaxWorldSize) {
    return usage_error(kBenchCommand, "--ranks goes from 0 to " + std::to_string(limits::kMaxWorldSize));
  }
  if (!is_memory(FLAGS_memory)) return usage_error(kBenchCommand, "--memory is cpu or gpu");
  if (FLAGS_explain) return explain_choices(plan.value());
  if (FLAGS_explain_hosts != 0) return usage_error(kBenchCommand, "--explain_hosts comes with --explain");
  const worker::Environment env = worker::process_environment();
  const auto launcher = worker::read_launcher(env);
  if (!launcher.ok()) return failure(launcher.status().describe());
  flags_to_variables(plan.value());
  const bool started_by_us_or_run = env("WARREN_WORKER_ID").has_value();
  const bool is_rank = started_by_us_or_run || (FLAGS_ranks == 0 && launcher.value().worker_id.has_value());
  if (!is_rank) return spawn_ranks(plan.value());
  if (plan.value().algorithms.size() > 1) {
    return usage_error(kBenchCommand, "a job has one algorithm: give several only where bench starts the ranks itself");
  }
  return be_a_rank(plan.value());
}

}  // namespace

const Command kBenchCommand = {
    .name = "bench",
    .summary = "times collectives and checks every result",
    .usage = "[--ranks=N] [--collective=LIST] [--sizes=LIST] [--algorithm=LIST] [flags]",
    .text =
        "Started alone, it starts a tracker and --ranks copies of itself on this machine, one job for each algorithm. "
        "Started by a launcher (`warren run`, Slurm and the others), each process is one rank of that job.\n"
        "The columns are those of nccl-tests: time is the median over the iterations of the slowest rank's time; algbw "
        "is bytes by time in 10^9 bytes a second, busbw that times the share that must cross a rank's link (allreduce: "
        "2(n-1)/n; all_to_all, the gathers, the scatters: (n-1)/n; else 1); errors are wrong elements over all ranks "
        "and iterations. With --json there is one object a line and cell. The exit code is 1 if there were errors.\n"
        "With --explain nothing is run: it says what each algorithm is estimated to cost --ranks ranks (see --costs), "
        "and which is chosen and why. With --explain_hosts it also says what a host sends to others, where bytes move "
        "by hosts.\n"
        "With --compare each cell is run by all algorithms that serve it and by auto, which take turns in one job; "
        "--fit writes the costs that explain these times to a file, by which jobs with --costs choose.\n"
        "With --memory=gpu buffers lie on GPUs, which the ranks of a host take in turn; where they are on the same, "
        "or NCCL moves their bytes (WARREN_NCCL=1), inputs_lent and rounds_exchanged of --json say how many of rank "
        "0's timed calls were made so; the first ones of a job, for which --warmup is, are not.\n"
        "Collectives: allreduce, reduce, broadcast, barrier, allgather, allgatherv, reduce_scatter, gather, scatter, "
        "all_to_all, sendrecv.",
    .flags = {"ranks", "collective", "sizes", "algorithm", "type", "op", "iters", "warmup", "check", "inplace",
              "memory", "explain", "explain_hosts", "compare", "fit", "json", "insecure_no_auth"},
    .settings = {"transport", "costs", "chunk_bytes", "streams", "replicas", "round_timeout_ms"},
    .run = bench,
};

}  // namespace warren::cli
