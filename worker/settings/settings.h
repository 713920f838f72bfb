// A worker's settings: what the program, the environment, a file and the launcher say, made into one validated whole.
// Each of them is a row of table.h.
//
// Precedence, per setting: the program's options (or flags) > WARREN_* variables > the file named by WARREN_CONFIG >
// what a launcher set (dmlc-submit, torchrun, Open MPI, PMI, Kubernetes indexed jobs, Slurm) > the default. An empty
// variable counts as not set. docs/settings.md lists every setting.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/result.h"
#include "warren/c_api.h"
#include "worker/settings/system_facts.h"
#include "worker/system/port_range.h"

namespace warren::worker {

// Not 9090, where Prometheus usually lives, and below the range of ephemeral ports.
inline constexpr std::uint16_t kDefaultTrackerPort = 9370;

inline constexpr std::uint32_t kDefaultReplicas = 2;
inline constexpr std::uint32_t kMaxReplicas = 16;

// When a result that is logged in memory is written to data_dir too.
enum class LogMode {
  kMemory,  // never
  kAsync,   // behind the call's back, once it is older or more than the lag allows
  kSync     // before the call returns
};

// What a log does that is full and cannot spill.
enum class LogFull {
  kSuspend,  // it gives up its oldest results: until the next commit a loss undoes what is not committed
  kError     // calls fail
};

// How a job goes on when workers are lost.
enum class Mode {
  kWait,   // it waits for them
  kShrink  // it goes on without them
};

// What a rollback to the committed version does to a process whose rounds are undone.
enum class OnRollback {
  kExit,  // it exits with kExitRolledBack, and whoever started it starts it again
  kError  // every call fails until the program makes a new communicator
};

// What SIGTERM does to a worker. Under `warren run` it does not get one at first: the launcher tells it to drain.
enum class OnSigterm {
  kDefault,  // what the program has made of it
  kDrain     // the worker finishes the calls under way and leaves; a second one, and it leaves at once
};

// Why a worker has left, as it tells the tracker and its launcher.
inline constexpr std::string_view kLeftWithoutFinalize = "its communicator was destroyed without finalize";

// What a worker's exit code tells its launcher, besides success and failure.
inline constexpr int kExitPreempted = 75;  // EX_TEMPFAIL: the machine is needed elsewhere, try again
inline constexpr int kExitFenced = 76;     // this life is over for no fault of its program's: another one goes on
inline constexpr int kExitRolledBack = 77;
// 78: kExitFinished (launcher.h).
inline constexpr int kExitHung = 79;      // the program was outside of calls for too long while others waited for it
inline constexpr int kExitDeserted = 70;  // EX_SOFTWARE: what the launcher makes of 0 without finalize
// A worker that was started again after its job had finished, or a spare that was not needed: its launcher takes it for
// done.
inline constexpr int kExitFinished = 78;
// A program of rabit's that ended itself at a kill point (mock=…), in the place of a signal.
inline constexpr int kExitKillPoint = 254;

// One setting as it came out, for people.
struct Resolved {
  std::string name;    // "round_timeout_ms"
  std::string value;   // "10000"; "(none)" where nothing was given and nothing is needed
  std::string source;  // "options", "WARREN_TRACKER", "/etc/warren.conf:3", "SLURM_PROCID", "default"
};

inline constexpr std::string_view kTcpTransport = "tcp";

struct Settings {
  std::string tracker_host;  // a name or a numeric address, without brackets
  std::uint16_t tracker_port = 0;
  bool tracker_may_be_rabits = false;  // dmlc-submit's variable names it, or the program's option under dmlc-submit
  std::string job;
  std::string worker_id;
  std::uint32_t world_size = 0;   // max_workers, where that is given
  std::uint32_t max_workers = 0;  // mode shrink: the job may begin with fewer; 0: it begins with all
  std::string secret_file;        // empty exactly if no_auth
  bool no_auth = false;
  std::string host_id;
  std::string domain_id;
  std::string bind_address;       // numeric, or the name of an interface; empty: that of the route to the tracker
  std::string advertise_address;  // numeric; empty: the bind address
  PortRange port_range;           // where it listens
  std::int64_t round_timeout_ms = 0;
  std::int64_t join_timeout_ms = 0;
  std::string transport;  // "auto", kTcpTransport
  std::string algorithm;  // "auto", "star", "tree", "butterfly", "ring", "direct"
  std::string costs;      // a file of costs that "auto" chooses by (costs_file.h); empty: the default ones
  std::uint64_t chunk_bytes = 0;
  std::uint32_t streams = 0;
  bool checksums = true;
  bool check_call_sites = false;
  bool rewire = true;          // bytes may go another way around a slow link
  bool deterministic = true;   // and bits stay; otherwise the ring may get another order then
  std::uint32_t replicas = 0;  // 0: nothing is logged
  LogMode log = LogMode::kMemory;
  std::uint64_t log_memory_bytes = 0;  // of this rank's segment, which is sparse
  std::string data_dir;                // empty exactly if log is kMemory and there are no checkpoints on disk
  std::int64_t log_lag_ms = 0;
  std::uint64_t log_lag_bytes = 0;
  std::uint64_t log_disk_bytes = 0;
  LogFull log_full = LogFull::kSuspend;
  std::string checkpoint_mirror;      // empty: none
  std::uint32_t spares = 0;           // 0: who finds no place is refused; else it waits for one
  bool begins_as_spare = false;       // as `spare` says; else its worker id is a number beyond the world size
  bool spare_follows = true;          // a spare holds the newest checkpoint's global state in its memory
  std::int64_t replace_after_ms = 0;  // that a rank may hold up the others until a spare has its place; 0: for ever
  Mode mode = Mode::kWait;
  std::uint32_t min_workers = 0;   // mode shrink: the job goes on with so many; 0: mode wait
  std::int64_t grace_ms = 0;       // mode shrink: for which it waits for those who were lost
  bool resize = false;             // world_size may be another than that of the job's last run
  std::uint64_t fusion_bytes = 0;  // 0: no calls are put together
  std::string timeline;            // a file that gets a Chrome trace; empty: none
  OnRollback on_rollback = OnRollback::kExit;
  OnSigterm on_sigterm = OnSigterm::kDefault;
  std::int64_t hang_timeout_ms = 0;         // of a program outside of calls for which others wait; 0: never ended
  std::int64_t drain_ms = 0;                // from a notice without a time of its own until the worker has left
  std::string device_library;               // a path, "none"; empty: beside libwarren, if it is there
  std::uint64_t device_pinned_bytes = 0;    // budget
  std::uint64_t device_snapshot_bytes = 0;  // likewise
  std::uint64_t device_shared_bytes = 0;    // likewise
  bool nccl = false;                        // NCCL moves the bytes of large allreduces among GPUs
  std::string nccl_root;                    // the program that makes its ids; empty: beside libwarren
  int log_level = 0;                        // a warren_log_level
  std::uint32_t attempt = 0;                // how often the launcher has started this worker before
  std::vector<Resolved> resolved;           // one entry a setting, in the order of docs/settings.md
};

// The value of an environment variable, or nothing.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// getenv. Thread rule of getenv: nobody may call setenv meanwhile.
[[nodiscard]] Environment process_environment();

// kInvalidArgument: a value is missing or wrong; the message names the option, variable or line of the file, and says
// what to do. kUnavailable: the file named by WARREN_CONFIG cannot be read. Reads that file and nothing else: whether
// secret_file exists is seen by who opens it. NULL options: everything from `env`.
[[nodiscard]] Result<Settings> resolve(const warren_options* options, const Environment& env, const SystemFacts& facts);
// The same with read_system_facts().
[[nodiscard]] Result<Settings> resolve(const warren_options* options, const Environment& env);

// What resolve() comes to, where something is missing or wrong too. `wrong`: the status of resolve(); no worker can
// be made of `settings` then. They lack what the environment cannot be read for, such as all of them where the file
// named by WARREN_CONFIG cannot be read.
struct Preview {
  Settings settings;
  Status wrong;
};
[[nodiscard]] Preview preview(const Environment& env);

// Whether a variable, or the file named by WARREN_CONFIG, gives a tracker; what a launcher set does not count. Errors
// as for resolve(), of that file.
[[nodiscard]] Result<bool> names_tracker(const Environment& env);

// "tracker=10.0.0.1:9370 (WARREN_TRACKER) job=digits (options) …": one line with those that somebody has given, for the
// log at the start.
[[nodiscard]] std::string describe(const Settings& settings);
// A line for each setting.
[[nodiscard]] std::string describe_all(const Settings& settings);

// kInvalidArgument: there is no setting of this name.
[[nodiscard]] Status check_setting_name(std::string_view name);

// The names among `environment` ("NAME=value" entries, as in environ) that begin with WARREN_ but that nothing reads,
// each as a sentence for the log: "WARREN_TRAKER is not a variable of Warren; did you mean WARREN_TRACKER?"
[[nodiscard]] std::vector<std::string> misspelled_variables(std::span<const std::string_view> environment);

// The nodes of a Slurm node list such as "gpu[01-03,7],login", in order. kInvalidArgument: not a node list, or one of
// more than limits::kMaxWorldSize nodes.
[[nodiscard]] Result<std::vector<std::string>> expand_node_list(std::string_view list);

}  // namespace warren::worker
