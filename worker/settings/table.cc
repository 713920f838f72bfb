#include "worker/settings/table.h"

#include <limits.h>

#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/job_settings.h"
#include "worker/settings/resolver.h"
#include "worker/settings/system_facts.h"
#include "worker/system/netinfo.h"
#include "worker/system/text.h"

namespace warren::worker {
namespace {

constexpr std::uint64_t kKiB = std::uint64_t{1} << 10, kMiB = kKiB << 10, kGiB = kMiB << 10;
constexpr std::uint64_t kMaxLogBytes = 16'384 * kGiB;
constexpr std::uint64_t kDayMs = std::uint64_t{24} * 3600 * 1000;

constexpr std::array<std::string_view, 2> kTransports = {"auto", kTcpTransport};
// In the order of their enumerators.
constexpr std::array<std::string_view, 3> kLogModes = {"memory", "async", "sync"};
constexpr std::array<std::string_view, 2> kLogFullActions = {"suspend", "error"};
constexpr std::array<std::string_view, 2> kModes = {"wait", "shrink"};
constexpr std::array<std::string_view, 2> kRollbackActions = {"exit", "error"};
constexpr std::array<std::string_view, 2> kSigtermActions = {"default", "drain"};
constexpr std::array<std::string_view, 3> kLogLevels = {"info", "warning", "error"};

// The parts of rows.

template <auto kMember>
using TypeOf = std::remove_cvref_t<decltype(std::declval<Settings>().*kMember)>;

struct Range {
  std::uint64_t least, most;
};
// The values that the tracker accepts for a setting that all workers agree on.
Range agreed(std::string_view name) {
  const JobSetting* setting = find_job_setting(name);
  WARREN_CHECK(setting != nullptr, "a setting that workers agree on is one of the job's");
  return {setting->least, setting->most};
}

template <auto kMember>
Number number(Range range, std::uint64_t by_default, Unit unit = Unit::kNone) {
  Number out;
  out.get = [](const Settings& s) { return static_cast<std::uint64_t>(s.*kMember); };
  out.set = [](Settings& s, std::uint64_t value) { s.*kMember = static_cast<TypeOf<kMember>>(value); };
  out.least = range.least;
  out.most = range.most;
  out.by_default = by_default;
  out.unit = unit;
  return out;
}
template <auto kMember>
Number bytes(Range range, std::uint64_t by_default) {
  return number<kMember>(range, by_default, Unit::kBytes);
}
template <auto kMember>
Number ms(Range range, std::uint64_t by_default) {
  return number<kMember>(range, by_default, Unit::kMs);
}
// `number`, with a default that is computed.
Number computed(Number number, std::uint64_t (*by_default)(const Resolver&, const Settings&)) {
  number.computed = by_default;
  return number;
}
Number at_most(Number number, std::uint64_t (*most)(const Settings&)) {
  number.most_here = most;
  return number;
}

// The member is an enumeration, an int, or the word itself.
template <auto kMember, const auto& kWords>
Word word(std::size_t by_default = 0) {
  Word out;
  out.get = [](const Settings& s) -> std::string_view {
    if constexpr (std::is_same_v<TypeOf<kMember>, std::string>) {
      return s.*kMember;
    } else {
      return kWords[static_cast<std::size_t>(s.*kMember)];
    }
  };
  out.set = [](Settings& s, std::size_t i) {
    if constexpr (std::is_same_v<TypeOf<kMember>, std::string>) {
      s.*kMember = kWords[i];
    } else {
      s.*kMember = static_cast<TypeOf<kMember>>(i);
    }
  };
  out.words = kWords;
  out.by_default = by_default;
  return out;
}

Option option(const char* warren_options::*member) {
  return {member, Option::Given::kNotNull, {}};
}
template <class Int>
Option option(Int warren_options::*member, Option::Given given = Option::Given::kAbove0, std::string_view name = {}) {
  return {member, given, name};
}
constexpr auto kFrom0 = Option::Given::kFrom0;
constexpr auto kOn = Option::Given::kOn;
constexpr auto kOff = Option::Given::kOff;

// Checks of texts, and defaults that are computed.

template <std::size_t kMostBytes>
Status name(const Raw& raw) {
  return validate_name(raw.what, raw.text, kMostBytes);
}

// Whether this can be the path of a file or folder; whether one is there is seen where it is opened.
Status path(const Raw& raw) {
  if (raw.text.find('\0') == std::string::npos && raw.text.size() < PATH_MAX) return {};
  return {Code::kInvalidArgument,
          raw.what + " is no path: it contains a zero byte, or has " + std::to_string(PATH_MAX) + " bytes or more"};
}

bool is_short_address(const Raw& raw) {
  return is_numeric_address(raw.text) && raw.text.size() <= limits::kMaxAddressBytes;
}
Status address_or_interface(const Raw& raw) {
  return is_short_address(raw) ? Status() : name<limits::kMaxAddressBytes>(raw);
}
Status address(const Raw& raw) {
  if (is_short_address(raw)) return {};
  return {Code::kInvalidArgument, raw.what + " is " + in_quotes(raw.text) + ": give a numeric IPv4 or IPv6 address"};
}

// A quarter of what this machine or container has for the logs of all ranks here, and another for copies of GPU
// buffers. A log's segment is sparse, and memory is pinned on demand: what is never used costs nothing.
std::uint64_t quarter_of_memory(const Resolver& r, const Settings&) {
  constexpr std::uint64_t kLeast = 4 * kMiB, kMost = 64 * kGiB, kOfUnknown = 256 * kMiB;
  const std::uint64_t memory_bytes = r.facts().memory_bytes != 0 ? r.facts().memory_bytes : kOfUnknown;
  return std::clamp(memory_bytes / 4 / r.local_world_size() / kMiB * kMiB, kLeast, kMost);
}

// A worker that says that it begins as a spare says that there are some.
std::uint64_t spares_by_default(const Resolver& r, const Settings&) {
  const Raw* spare = r.find("spare");
  const auto given = spare != nullptr ? parse_switch(spare->what, spare->text) : Result<bool>(false);
  return given.ok() && given.value() ? 1 : 0;
}

// A launcher numbers spares behind the workers.
bool is_spare_by_number(const Resolver&, const Settings& s) {
  const auto number = parse_number("worker_id", s.worker_id, s.world_size, std::numeric_limits<std::uint32_t>::max());
  return s.spares != 0 && s.world_size != 0 && number.ok();
}

// Calls of a job that may shrink are never put together.
std::uint64_t fusion_by_default(const Resolver&, const Settings& s) {
  return s.mode == Mode::kShrink ? 0 : 64 * kMiB;
}

std::uint64_t most_that_shrink(const Settings& s) {
  return s.world_size != 0 ? s.world_size : limits::kMaxWorldSize;
}

// Settings that are read by functions of their own.

void read_tracker(Resolver& r, Settings& s) {
  const Raw* raw = r.find("tracker");
  if (raw == nullptr) {
    r.refuse(
        "no tracker is given: set the option tracker, WARREN_TRACKER=host:port, or 'tracker = host:port' in the "
        "file that WARREN_CONFIG names, or start under a launcher that names a host (Slurm, torchrun, "
        "dmlc-submit); `warren run -n N program` starts a tracker and N workers on this machine");
    return r.show("tracker", "(missing)", nullptr);
  }
  auto parsed = parse_host_port(raw->what, raw->text, kDefaultTrackerPort);
  r.keep(parsed.status());
  if (!parsed.ok()) return r.show("tracker", in_quotes(raw->text) + ", which is wrong", raw);
  s.tracker_host = parsed.value().host;
  s.tracker_port = parsed.value().port;
  // A program under dmlc-submit may have its option from there, as rabit's interface has. Any other program's option
  // names Warren's tracker, which would take the question in rabit's protocol for a stranger's.
  const auto variable = r.launcher().find("tracker");
  const bool under_dmlc_submit = variable != r.launcher().end() && variable->second.source == "DMLC_TRACKER_URI";
  s.tracker_may_be_rabits =
      under_dmlc_submit && (raw->source == kOptionsSource || raw->source == variable->second.source);
  r.show("tracker", to_string(parsed.value()), raw);
}

void read_port_range(Resolver& r, Settings& s) {
  const Raw* raw = r.find("port_range");
  if (raw != nullptr) {
    const auto range = parse_port_range(raw->what, raw->text);
    r.keep(range.status());
    if (range.ok()) s.port_range = range.value();
  }
  r.show("port_range", raw != nullptr ? raw->text : "(none)", raw);
}

// The world size of a job that may begin with fewer workers is the most that it may have.
void settle_world_size(Resolver& r, Settings& s) {
  const Raw* size = r.find("world_size");
  const Raw* most = r.find("max_workers");
  if (size == nullptr && most == nullptr) {
    return r.refuse(
        "no world size is given, the number of workers in the job: set the option world_size, WARREN_WORLD_SIZE, or "
        "'world_size = N' in the file that WARREN_CONFIG names, or start under a launcher that tells it (Slurm, "
        "torchrun, Open MPI, MPICH, dmlc-submit, `warren run`; a Kubernetes indexed job does not)");
  }
  const std::uint32_t started = s.world_size;
  if (s.max_workers != 0) {
    s.world_size = s.max_workers;
    if (most != nullptr && size != nullptr && started > s.max_workers) {
      r.refuse(most->what + " is " + most->text + ", and " + size->what + " says that " + size->text +
               " workers are started: give as many at least");
    }
  }
  // A launcher numbers its processes from 0; anything else means that its variables are not what they seem.
  const Raw* id = r.find("worker_id");
  const auto theirs = [&](const char* name, const Raw* raw) {
    const auto at = r.launcher().find(name);
    return raw != nullptr && at != r.launcher().end() && at->second.source == raw->source;
  };
  if (started == 0 || !theirs("worker_id", id) || !theirs("world_size", size)) return;
  r.keep(parse_number(id->what, id->text, 0, started - 1).status());
}

// Results go to disk where there is a folder.
std::size_t log_by_default(const Resolver& r, const Settings&) {
  return static_cast<std::size_t>(r.find("data_dir") != nullptr ? LogMode::kAsync : LogMode::kMemory);
}
Word log_word() {
  Word out = word<&Settings::log, kLogModes>();
  out.computed = log_by_default;
  return out;
}
Word log_level_word() {
  Word out = word<&Settings::log_level, kLogLevels>();
  out.numbered = true;
  return out;
}

std::string host_by_default(const Resolver& r, const Settings&) {
  return host_of(r.facts());
}
std::string domain_by_default(const Resolver& r, const Settings&) {
  return domain_of(r.facts());
}

}  // namespace

// One idea: the table, one row a setting.
std::span<const Setting> settings_table() {
  using S = Settings;
  using O = warren_options;
  using enum Section;
  using enum Agreed;
  constexpr std::size_t kJobBytes = limits::kMaxJobNameBytes, kWorkerBytes = limits::kMaxWorkerIdBytes;
  constexpr std::size_t kHostBytes = limits::kMaxHostIdBytes;
  constexpr std::string_view kNone = "none";
  static const Setting kTable[] = {
      // The job.
      {.name = "tracker",
       .section = kJob,
       .value = Special{read_tracker},
       .option = option(&O::tracker),
       .help = "where the tracker is; its port is 9370 if none is given",
       .values = "`host`, `host:port` or `[v6]:port`",
       .otherwise = "required"},
      {.name = "job",
       .section = kJob,
       .value = Text{&S::job, name<kJobBytes>, "default"},
       .option = option(&O::job),
       .flag = true,
       .help = "name of the job",
       .values = "up to 128 characters of `A-Za-z0-9._:/@-`"},
      {.name = "worker_id",
       .section = kJob,
       .value = Text{&S::worker_id, name<kWorkerBytes>},
       .option = option(&O::worker_id),
       .help = "name of this worker in all its lives, unique in the job",
       .values = "as `job`",
       .otherwise = "required"},
      {.name = "world_size",
       .section = kJob,
       .value = number<&S::world_size>(agreed("world_size"), 0),
       .option = option(&O::world_size),
       .agreed = kAsItIs,
       .help = "how many workers the job has",
       .otherwise = "required, unless `max_workers` is given"},
      {.name = "max_workers",
       .section = kJob,
       .value = number<&S::max_workers>(agreed("world_size"), 0),
       .option = option(&O::max_workers),
       .agreed = kDerived,
       .flag = true,
       .help = "mode `shrink` only: the most workers of a job that may [begin with "
               "fewer](elasticity.md#beginning-with-fewer-and-growing)",
       .otherwise = "none: the job begins with `world_size`",
       .then = settle_world_size},
      {.name = "secret_file",
       .section = kJob,
       .value = Text{&S::secret_file, path},
       .option = option(&O::secret_file),
       .flag = true,
       .help = "file of mode 0600 with the job's secret, made by [`warren keygen`](commands.md#warren-keygen)",
       .values = "a path",
       .otherwise = "required, unless `insecure_no_auth` is 1"},
      {.name = "insecure_no_auth",
       .section = kJob,
       .value = Switch{&S::no_auth, false},
       .option = option(&O::insecure_no_auth, kOn),
       .flag = true,
       .help = "1: no authentication, where nobody else can connect"},

      // Where a worker is.
      {.name = "host_id",
       .section = kPlace,
       .value = Text{&S::host_id, name<kHostBytes>, {}, host_by_default},
       .option = option(&O::host_id),
       .flag = true,
       .help = "equal for ranks that can share memory",
       .values = "as `job`",
       .otherwise = "the machine's name, and a hash of boot id, namespaces and user"},
      {.name = "domain_id",
       .section = kPlace,
       .value = Text{&S::domain_id, name<kHostBytes>, {}, domain_by_default},
       .option = option(&O::domain_id),
       .flag = true,
       .help = "the failure domain: equal for ranks that are lost together",
       .values = "as `job`",
       .otherwise = "the machine's boot id"},
      {.name = "bind_address",
       .section = kPlace,
       .value = Text{&S::bind_address, address_or_interface},
       .option = option(&O::bind_address),
       .help = "where data links are accepted",
       .values = "a numeric address, or an interface's name",
       .otherwise = "the address of the route to the tracker"},
      {.name = "advertise_address",
       .section = kPlace,
       .value = Text{&S::advertise_address, address},
       .option = option(&O::advertise_address),
       .help = "the address that peers connect to",
       .values = "a numeric address",
       .otherwise = "the bind address"},
      {.name = "port_range",
       .section = kPlace,
       .value = Special{read_port_range},
       .flag = true,
       .help = "the [ports](#ports-and-firewalls) that workers listen on, two for each worker of a machine",
       .values = "`LOW:HIGH`",
       .otherwise = "any free ports"},

      // How long to wait.
      {.name = "round_timeout_ms",
       .section = kPatience,
       .value = ms<&S::round_timeout_ms>(agreed("round_timeout_ms"), limits::kDefaultRoundTimeoutMs),
       .option = option(&O::round_timeout_ms),
       .agreed = kAsItIs,
       .flag = true,
       .help = "how long a silent peer is waited for"},
      {.name = "join_timeout_ms",
       .section = kPatience,
       .value = ms<&S::join_timeout_ms>(agreed("round_timeout_ms"), limits::kDefaultJoinTimeoutMs),
       .option = option(&O::join_timeout_ms),
       .flag = true,
       .help = "how long workers wait until all are there"},

      // How bytes move.
      {.name = "transport",
       .section = kBytes,
       .value = word<&S::transport, kTransports>(),
       .option = option(&O::transport),
       .flag = true,
       .help = "how bytes move between ranks of one host; `auto`: by shared memory, where there is any"},
      {.name = "algorithm",
       .section = kBytes,
       .value = word<&S::algorithm, kAlgorithmNames>(),
       .option = option(&O::algorithm),
       .agreed = kAsItIs,
       .flag = true,
       .help = "the [algorithm](algorithms.md) of collectives"},
      {.name = "costs",
       .section = kBytes,
       .value = Text{&S::costs, path},
       .agreed = kDerived,
       .flag = true,
       .help = "file of [costs](algorithms.md#what-is-chosen) that algorithm `auto` chooses by",
       .values = "a path",
       .otherwise = "those of this version"},
      {.name = "chunk_bytes",
       .section = kBytes,
       .value = bytes<&S::chunk_bytes>(agreed("chunk_bytes"), limits::kDefaultChunkBytes),
       .option = option(&O::chunk_bytes),
       .agreed = kAsItIs,
       .flag = true,
       .help = "the most bytes that travel in one piece"},
      {.name = "streams",
       .section = kBytes,
       .value = number<&S::streams>(agreed("streams"), 1),
       .option = option(&O::streams),
       .agreed = kAsItIs,
       .flag = true,
       .help = "TCP connections of each link between hosts"},
      {.name = "checksums",
       .section = kBytes,
       .value = Switch{&S::checksums, true},
       .option = option(&O::no_checksums, kOff, "no_checksums"),
       .agreed = kAsItIs,
       .help = "0: no checksums of payload on TCP links and of [NCCL's](gpu.md#ranks-of-several-hosts) bytes"},
      {.name = "check_call_sites",
       .section = kBytes,
       .value = Switch{&S::check_call_sites, false},
       .option = option(&O::check_call_sites, kOn),
       .agreed = kAsItIs,
       .help = "1: ranks must make a collective from the same place of the program ([why not by "
               "default](decisions/0003-call-sites.md))"},
      {.name = "rewire",
       .section = kBytes,
       .value = Switch{&S::rewire, true},
       .option = option(&O::no_rewire, kOff, "no_rewire"),
       .agreed = kDerived,
       .flag = true,
       .help = "0: bytes never go by way of other workers [around a slow link](commands.md#slow-ranks-and-links)"},
      {.name = "deterministic",
       .section = kBytes,
       .value = Switch{&S::deterministic, true},
       .option = option(&O::nondeterministic, kOff, "nondeterministic"),
       .agreed = kDerived,
       .flag = true,
       .help = "0: [around a slow link](commands.md#slow-ranks-and-links) the ring may get another order, which rounds "
               "differently"},

      // Results and checkpoints that are kept.
      {.name = "replicas",
       .section = kKept,
       .value = number<&S::replicas>(agreed("replicas"), kDefaultReplicas),
       .option = option(&O::replicas, kFrom0),
       .agreed = kAsItIs,
       .flag = true,
       .help = "replicas of each logged result and checkpoint, in distinct failure domains; 0: no fault tolerance"},
      {.name = "log",
       .section = kKept,
       .value = log_word(),
       .option = option(&O::log),
       .flag = true,
       .help = "when logged results are written to `data_dir`",
       .otherwise = "`async` if there is a `data_dir`, else `memory`"},
      {.name = "log_memory_bytes",
       .section = kKept,
       .value = computed(bytes<&S::log_memory_bytes>({kMiB, kMaxLogBytes}, 0), quarter_of_memory),
       .option = option(&O::log_memory_bytes),
       .flag = true,
       .help = "the most memory for a rank's part of the log",
       .otherwise = "a quarter of the memory, shared by the workers of the machine; 4M to 64G"},
      {.name = "data_dir",
       .section = kKept,
       .value = Text{&S::data_dir, path},
       .option = option(&O::data_dir),
       .flag = true,
       .help = "folder on a local disk for a host's log and checkpoints",
       .values = "a path",
       .otherwise = "none: memory alone"},
      {.name = "log_lag_ms",
       .section = kKept,
       .value = ms<&S::log_lag_ms>({1, kDayMs}, 10'000),
       .option = option(&O::log_lag_ms),
       .flag = true,
       .help = "log `async` writes results that are older than this"},
      {.name = "log_lag_bytes",
       .section = kKept,
       .value = bytes<&S::log_lag_bytes>({1, kMaxLogBytes}, 256 * kMiB),
       .option = option(&O::log_lag_bytes),
       .flag = true,
       .help = "log `async` writes results beyond this many bytes"},
      {.name = "log_disk_bytes",
       .section = kKept,
       .value = bytes<&S::log_disk_bytes>({kMiB, kMaxLogBytes}, 64 * kGiB),
       .option = option(&O::log_disk_bytes),
       .flag = true,
       .help = "the most disk for one worker's log in `data_dir`"},
      {.name = "log_full",
       .section = kKept,
       .value = word<&S::log_full, kLogFullActions>(),
       .option = option(&O::log_full),
       .flag = true,
       .help = "what a [full log](storage.md#a-full-log) does: give up its oldest results, or fail calls"},
      {.name = "checkpoint_mirror",
       .section = kKept,
       .value = Text{&S::checkpoint_mirror, path},
       .option = option(&O::checkpoint_mirror),
       .flag = true,
       .help = "folder that gets a copy of each committed checkpoint, for disks that are lost with their machines",
       .values = "a path",
       .otherwise = kNone},

      // Lost and slow workers.
      {.name = "spares",
       .section = kLost,
       .value = computed(number<&S::spares>({0, limits::kMaxSpares}, 0), spares_by_default),
       .help = "above 0: the job has spares, and a [spare](commands.md#spares) may take this worker's rank",
       .otherwise = "0; 1 where `spare` is 1"},
      {.name = "spare",
       .section = kLost,
       .value = Switch{&S::begins_as_spare, false, is_spare_by_number},
       .help = "1: this worker begins as a spare, whatever its `worker_id`; 0: it does not",
       .otherwise = "1 if there are `spares` and `worker_id` is a number from `world_size` up"},
      {.name = "spare_follows",
       .section = kLost,
       .value = Switch{&S::spare_follows, true},
       .flag = true,
       .help = "0: a spare fetches no checkpoints before it is called"},
      {.name = "replace_after_ms",
       .section = kLost,
       .value = ms<&S::replace_after_ms>(agreed("replace_after_ms"), 0),
       .option = option(&O::replace_after_ms, kFrom0),
       .agreed = kAsItIs,
       .flag = true,
       .help = "how long a slow rank may hold up the others before [a spare replaces "
               "it](commands.md#slow-ranks-and-links); 0: never replaced"},
      {.name = "mode",
       .section = kLost,
       .value = word<&S::mode, kModes>(),
       .option = option(&O::mode),
       .agreed = kDerived,
       .flag = true,
       .help = "whether the job waits for lost workers or [continues without them](elasticity.md)"},
      {.name = "min_workers",
       .section = kLost,
       .value = at_most(number<&S::min_workers>({1, agreed("min_workers").most}, 1), most_that_shrink),
       .option = option(&O::min_workers),
       .agreed = kAsItIs,
       .shrink_only = true,
       .flag = true,
       .help = "mode `shrink` only: the fewest workers with which the job continues",
       .values = "1 to `world_size`"},
      {.name = "grace_ms",
       .section = kLost,
       .value = ms<&S::grace_ms>(agreed("grace_ms"), 1000),
       .option = option(&O::grace_ms, kFrom0),
       .agreed = kAsItIs,
       .shrink_only = true,
       .flag = true,
       .help = "mode `shrink` only: how long the job waits for lost workers before it continues without them"},
      {.name = "resize",
       .section = kLost,
       .value = Switch{&S::resize, false},
       .flag = true,
       .help = "1: continue from the newest checkpoint of a run with [another number of "
               "workers](commands.md#another-number-of-workers)"},
      {.name = "on_rollback",
       .section = kLost,
       .value = word<&S::on_rollback, kRollbackActions>(),
       .option = option(&O::on_rollback),
       .flag = true,
       .help = "what a worker does when rounds since the last commit are lost: end, or fail its calls"},

      // How a worker ends.
      {.name = "on_sigterm",
       .section = kEnds,
       .value = word<&S::on_sigterm, kSigtermActions>(),
       .help = "what SIGTERM does: what the program says, or the worker leaves and exits with 75"},
      {.name = "drain_ms",
       .section = kEnds,
       .value = ms<&S::drain_ms>({0, limits::kMaxDrainMs}, limits::kDefaultDrainMs),
       .flag = true,
       .help = "how long a worker may take to leave after SIGTERM; a cloud's notice brings a time of its own"},
      {.name = "hang_timeout_ms",
       .section = kEnds,
       .value = ms<&S::hang_timeout_ms>({0, limits::kMaxRoundTimeoutMs}, 0),
       .flag = true,
       .help = "how long a program may be outside of calls while others wait for it; 0: for ever"},

      // GPUs.
      {.name = "device_library",
       .section = kGpus,
       .value = Text{&S::device_library, path},
       .help = "the library that serves [GPU buffers](gpu.md)",
       .values = "a path, or `none`",
       .otherwise = "`libwarren_cuda.so` beside `libwarren.so`, if it is there"},
      {.name = "device_pinned_bytes",
       .section = kGpus,
       .value = computed(bytes<&S::device_pinned_bytes>({kMiB, kMaxLogBytes}, 0), quarter_of_memory),
       .help = "the most pinned memory for copies of GPU buffers",
       .otherwise = "as `log_memory_bytes`"},
      {.name = "device_snapshot_bytes",
       .section = kGpus,
       .value = bytes<&S::device_snapshot_bytes>({0, kMaxLogBytes}, kGiB),
       .help =
           "the most memory of GPUs for [snapshots](gpu.md#how-checkpoints-work) of states, and for small allreduces "
           "that share rounds"},
      {.name = "device_shared_bytes",
       .section = kGpus,
       .value = bytes<&S::device_shared_bytes>({0, kMaxLogBytes}, kGiB),
       .help =
           "memory of its GPU in which a rank lends its inputs to [other ranks of its host](gpu.md#ranks-of-one-host); "
           "0: none"},
      {.name = "nccl",
       .section = kGpus,
       .value = Switch{&S::nccl, false},
       .agreed = kDerived,
       .help = "1: NCCL moves the bytes of [large allreduces among GPUs](gpu.md#ranks-of-several-hosts)"},
      {.name = "nccl_root",
       .section = kGpus,
       .value = Text{&S::nccl_root, path},
       .help = "the program that rank 0 starts for NCCL",
       .values = "a path",
       .otherwise = "`warren_nccl_root` beside `libwarren.so`"},

      // The rest.
      {.name = "fusion_bytes",
       .section = kRest,
       .value = computed(bytes<&S::fusion_bytes>({0, limits::kMaxBufferBytes}, 0), fusion_by_default),
       .option = option(&O::fusion_bytes, kFrom0),
       .help = "the most bytes of a round that small asynchronous allreduces [share](algorithms.md#fusion); 0: none do",
       .otherwise = "64M; 0 in mode `shrink`"},
      {.name = "timeline",
       .section = kRest,
       .value = Text{&S::timeline, path},
       .option = option(&O::timeline),
       .flag = true,
       .help = "file that gets a [Chrome trace](timeline.md) of calls, rounds and recoveries",
       .values = "a path",
       .otherwise = kNone},
      {.name = "log_level",
       .section = kRest,
       .value = log_level_word(),
       .option = option(&O::log_level, kFrom0),
       .help = "the least severity that is logged"},
      {.name = "attempt",
       .section = kRest,
       .value = number<&S::attempt>({0, std::numeric_limits<std::uint32_t>::max()}, 0),
       .help = "how often the launcher has started this worker before"},
  };
  return kTable;
}

const Setting* find_setting(std::string_view name) {
  const auto all = settings_table();
  const auto at = std::ranges::find(all, name, &Setting::name);
  return at == all.end() ? nullptr : &*at;
}

std::string variable_of(std::string_view name) {
  std::string out = "WARREN_";
  for (const char c : name) out += static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return out;
}

std::string_view title_of(Section section) {
  switch (section) {
    case Section::kJob: return "The job";
    case Section::kPlace: return "Where a worker is";
    case Section::kPatience: return "How long to wait";
    case Section::kBytes: return "How bytes move";
    case Section::kKept: return "What is kept";
    case Section::kLost: return "Lost and slow workers";
    case Section::kEnds: return "How a worker ends";
    case Section::kGpus: return "GPUs";
    case Section::kRest: return "The rest";
  }
  return "";
}

}  // namespace warren::worker
