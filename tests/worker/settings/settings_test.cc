#include "worker/settings/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "recovery/base/limits.h"
#include "worker/system/text.h"

namespace warren::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using Variables = std::map<std::string, std::string>;

Environment environment(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional<std::string>(at->second);
  };
}

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

const SystemFacts kFacts{.boot_id = "b00t",
                         .mount_namespace = "11",
                         .pid_namespace = "22",
                         .network_namespace = "33",
                         .user = "44",
                         .host_name = "node",
                         .memory_bytes = 1000 * kMiB};

const Variables kComplete = {{"WARREN_TRACKER", "10.0.0.1:7000"},
                             {"WARREN_JOB", "digits"},
                             {"WARREN_WORKER_ID", "w3"},
                             {"WARREN_WORLD_SIZE", "8"},
                             {"WARREN_SECRET_FILE", "/run/secret"}};

Variables with(Variables base, const Variables& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

warren_options no_options() {
  warren_options o{};
  o.struct_size = sizeof o;
  o.log_level = -1;
  o.replicas = -1;
  o.fusion_bytes = -1;
  o.replace_after_ms = -1;
  o.grace_ms = -1;
  return o;
}

// A file that is gone with the test.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& text) {
    char name[] = "/tmp/warren-settings-XXXXXX";
    const int fd = mkstemp(name);
    EXPECT_GE(fd, 0);
    path = name;
    std::ofstream(path) << text;
    ::close(fd);
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
  std::string path;
};

std::string source_of(const Settings& s, const std::string& name) {
  for (const Resolved& r : s.resolved) {
    if (r.name == name) return r.source;
  }
  return "absent";
}

TEST(Settings, TakesVariablesAndFillsInDefaults) {
  const auto r = resolve(nullptr, environment(kComplete), kFacts);
  ASSERT_TRUE(r.ok()) << r.status().describe();
  const Settings& s = r.value();
  EXPECT_EQ(s.tracker_host, "10.0.0.1");
  EXPECT_EQ(s.tracker_port, 7000);
  EXPECT_EQ(s.job, "digits");
  EXPECT_EQ(s.worker_id, "w3");
  EXPECT_EQ(s.world_size, 8u);
  EXPECT_EQ(s.secret_file, "/run/secret");
  EXPECT_FALSE(s.no_auth);
  EXPECT_THAT(s.host_id, testing::MatchesRegex("node-[0-9a-f]{12}"));
  EXPECT_EQ(s.domain_id, "b00t");
  EXPECT_EQ(s.bind_address, "");
  EXPECT_EQ(s.round_timeout_ms, limits::kDefaultRoundTimeoutMs);
  EXPECT_EQ(s.join_timeout_ms, limits::kDefaultJoinTimeoutMs);
  EXPECT_EQ(s.algorithm, "auto");
  EXPECT_EQ(s.costs, "");
  EXPECT_EQ(s.chunk_bytes, limits::kDefaultChunkBytes);
  EXPECT_EQ(s.streams, 1u);
  EXPECT_TRUE(s.checksums);
  EXPECT_FALSE(s.check_call_sites);
  EXPECT_TRUE(s.rewire);
  EXPECT_TRUE(s.deterministic);
  EXPECT_EQ(s.replicas, 2u);
  EXPECT_EQ(s.log, LogMode::kMemory);
  EXPECT_EQ(s.log_memory_bytes, 250 * kMiB);
  EXPECT_EQ(s.data_dir, "");
  EXPECT_EQ(s.log_lag_ms, 10'000);
  EXPECT_EQ(s.log_lag_bytes, 256 * kMiB);
  EXPECT_EQ(s.log_disk_bytes, 65'536 * kMiB);
  EXPECT_EQ(s.log_full, LogFull::kSuspend);
  EXPECT_EQ(s.checkpoint_mirror, "");
  EXPECT_EQ(s.fusion_bytes, 64 * kMiB);
  EXPECT_EQ(s.timeline, "");
  EXPECT_TRUE(s.spare_follows);
  EXPECT_EQ(s.replace_after_ms, 0);
  EXPECT_EQ(s.min_workers, 0u) << "mode wait";
  EXPECT_EQ(s.grace_ms, 0);
  EXPECT_EQ(s.on_rollback, OnRollback::kExit);
  EXPECT_EQ(s.device_library, "");
  EXPECT_EQ(s.device_pinned_bytes, 250 * kMiB);
  EXPECT_EQ(s.hang_timeout_ms, 0);
  EXPECT_EQ(s.device_snapshot_bytes, 1024 * kMiB);
  EXPECT_EQ(s.device_shared_bytes, 1024 * kMiB);
  EXPECT_EQ(s.log_level, WARREN_LOG_INFO);
  EXPECT_EQ(s.attempt, 0u);
  EXPECT_EQ(s.resolved.size(), 54u);
  EXPECT_EQ(source_of(s, "tracker"), "WARREN_TRACKER");
  EXPECT_EQ(source_of(s, "streams"), "default");
  EXPECT_THAT(describe(s), HasSubstr("tracker=10.0.0.1:7000 (WARREN_TRACKER) job=digits (WARREN_JOB)"));
  EXPECT_THAT(describe(s), Not(HasSubstr("default"))) << "what nobody has given is not told";
  const std::string all = describe_all(s);
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 54);
  EXPECT_THAT(all, HasSubstr("\nstreams                "));
  EXPECT_THAT(all, HasSubstr(" (default)\n"));
}

TEST(Settings, OptionsBeatVariablesBeatFileBeatLauncherBeatDefaults) {
  const TemporaryFile file(
      "# five layers\n"
      "job = from-file\n"
      "streams=3   # trailing\n"
      "\n"
      "chunk_bytes = 64K\n"
      "world_size = 5\n");
  Variables variables = {{"WARREN_CONFIG", file.path},
                         {"SLURM_PROCID", "2"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_JOB_NODELIST", "n[08-09]"},
                         {"WARREN_STREAMS", "2"},
                         {"WARREN_CHUNK_BYTES", "32K"},
                         {"WARREN_ALGORITHM", ""},
                         {"WARREN_SECRET_FILE", "/s"}};
  warren_options o = no_options();
  o.chunk_bytes = 16384;
  const auto r = resolve(&o, environment(variables), kFacts);
  ASSERT_TRUE(r.ok()) << r.status().describe();
  const Settings& s = r.value();
  EXPECT_EQ(s.chunk_bytes, 16384u);
  EXPECT_EQ(source_of(s, "chunk_bytes"), "options");
  EXPECT_EQ(s.streams, 2u);
  EXPECT_EQ(source_of(s, "streams"), "WARREN_STREAMS");
  EXPECT_EQ(s.job, "from-file");
  EXPECT_EQ(source_of(s, "job"), file.path + ":2");
  EXPECT_EQ(s.world_size, 5u);
  EXPECT_EQ(s.worker_id, "2");
  EXPECT_EQ(source_of(s, "worker_id"), "SLURM_PROCID");
  EXPECT_EQ(s.tracker_host, "n08");
  EXPECT_EQ(s.tracker_port, kDefaultTrackerPort);
  EXPECT_EQ(s.algorithm, "auto");
  EXPECT_EQ(source_of(s, "algorithm"), "default");
}

TEST(Settings, EveryOptionReachesItsSetting) {
  warren_options o = no_options();
  o.tracker = "[fe80::1]:81";
  o.job = "j";
  o.worker_id = "w";
  o.world_size = 3;
  o.insecure_no_auth = 1;
  o.host_id = "h";
  o.bind_address = "eth0";
  o.advertise_address = "10.1.1.1";
  o.round_timeout_ms = 500;
  o.join_timeout_ms = 600;
  o.transport = "tcp";
  o.algorithm = "ring";
  o.chunk_bytes = 4096;
  o.streams = 4;
  o.no_checksums = 1;
  o.check_call_sites = 1;
  o.no_rewire = 1;
  o.nondeterministic = 1;
  o.domain_id = "rack1";
  o.replicas = 1;
  o.log = "sync";
  o.log_memory_bytes = 1 << 20;
  o.data_dir = "/data";
  o.log_lag_ms = 7;
  o.log_lag_bytes = 8;
  o.log_disk_bytes = 1 << 21;
  o.log_full = "error";
  o.checkpoint_mirror = "/mirror";
  o.on_rollback = "error";
  o.fusion_bytes = 0;
  o.timeline = "/trace.json";
  o.log_level = WARREN_LOG_ERROR;
  const auto r = resolve(&o, environment({{"WARREN_LOG_LEVEL", "info"}, {"WARREN_REPLICAS", "3"}}), kFacts);
  ASSERT_TRUE(r.ok()) << r.status().describe();
  const Settings& s = r.value();
  EXPECT_EQ(s.domain_id, "rack1");
  EXPECT_EQ(s.replicas, 1u);
  EXPECT_EQ(s.log, LogMode::kSync);
  EXPECT_EQ(s.log_memory_bytes, kMiB);
  EXPECT_EQ(s.data_dir, "/data");
  EXPECT_EQ(s.log_lag_ms, 7);
  EXPECT_EQ(s.log_lag_bytes, 8u);
  EXPECT_EQ(s.log_disk_bytes, 2 * kMiB);
  EXPECT_EQ(s.log_full, LogFull::kError);
  EXPECT_EQ(s.checkpoint_mirror, "/mirror");
  EXPECT_EQ(s.fusion_bytes, 0u);
  EXPECT_EQ(s.timeline, "/trace.json");
  o.replicas = 0;
  EXPECT_THAT(resolve(&o, environment({}), kFacts).status().describe(),
              HasSubstr("checkpoint_mirror needs replicas of 1 or more"));
  o.checkpoint_mirror = nullptr;
  o.replace_after_ms = 9000;
  EXPECT_THAT(resolve(&o, environment({}), kFacts).status().describe(),
              HasSubstr("replace_after_ms needs replicas of 1 or more"));
  o.replicas = 2;
  EXPECT_THAT(resolve(&o, environment({}), kFacts).status().describe(),
              HasSubstr("replace_after_ms needs on_rollback=exit"));
  o.on_rollback = "exit";
  EXPECT_EQ(resolve(&o, environment({}), kFacts).value().replace_after_ms, 9000);
  o.replace_after_ms = 86'400'001;
  EXPECT_THAT(resolve(&o, environment({}), kFacts).status().describe(), HasSubstr("replace_after_ms is '86400001'"));
  EXPECT_EQ(s.on_rollback, OnRollback::kError);
  EXPECT_EQ(s.tracker_host, "fe80::1");
  EXPECT_EQ(s.tracker_port, 81);
  EXPECT_EQ(s.job, "j");
  EXPECT_EQ(s.worker_id, "w");
  EXPECT_EQ(s.world_size, 3u);
  EXPECT_TRUE(s.no_auth);
  EXPECT_EQ(s.host_id, "h");
  EXPECT_EQ(s.bind_address, "eth0");
  EXPECT_EQ(s.advertise_address, "10.1.1.1");
  EXPECT_EQ(s.round_timeout_ms, 500);
  EXPECT_EQ(s.join_timeout_ms, 600);
  EXPECT_EQ(s.transport, "tcp");
  EXPECT_EQ(s.algorithm, "ring");
  EXPECT_EQ(s.chunk_bytes, 4096u);
  EXPECT_EQ(s.streams, 4u);
  EXPECT_FALSE(s.checksums);
  EXPECT_TRUE(s.check_call_sites);
  EXPECT_FALSE(s.rewire);
  EXPECT_FALSE(s.deterministic);
  EXPECT_EQ(s.log_level, WARREN_LOG_ERROR);
}

struct LauncherCase {
  const char* name;
  Variables variables;
  std::string worker_id;
  std::uint32_t world_size;
  std::string tracker_host;
  std::uint16_t tracker_port;
  std::string job;
  std::uint32_t attempt;
};

TEST(Settings, AnySettingCanBeGivenByItsName) {
  warren_options options = no_options();
  options.replicas = 1;
  options.no_rewire = 1;
  options.settings[0] = {"replicas", "3"};
  options.settings[1] = {"rewire", "1"};
  options.settings[2] = {"check_call_sites", "0"};
  options.settings[3] = {"attempt", "4"};
  options.settings_count = 4;
  const auto settings = resolve(&options, environment(with(kComplete, {{"WARREN_CHECK_CALL_SITES", "1"}})), kFacts);
  ASSERT_TRUE(settings.ok()) << settings.status().describe();
  EXPECT_EQ(settings.value().replicas, 3u);
  EXPECT_TRUE(settings.value().rewire);
  EXPECT_FALSE(settings.value().check_call_sites);
  EXPECT_EQ(settings.value().attempt, 4u);
  options.settings[0] = {"replica", "3"};
  EXPECT_THAT(resolve(&options, environment(kComplete), kFacts).status().describe(),
              HasSubstr("there is no setting 'replica'; did you mean replicas?"));
  options.settings[0] = {"replicas", "300"};
  EXPECT_THAT(resolve(&options, environment(kComplete), kFacts).status().describe(), HasSubstr("replicas"));
}

TEST(Settings, APortRangeHasRoomForAWorker) {
  const auto range = [](const Variables& more) {
    return resolve(nullptr, environment(with(kComplete, more)), kFacts).value().port_range;
  };
  EXPECT_FALSE(range({}).given());
  EXPECT_EQ(to_string(range({{"WARREN_PORT_RANGE", "9400:9401"}})), "9400:9401");
  EXPECT_EQ(range({{"WARREN_PORT_RANGE", "65535:65535"}, {"WARREN_REPLICAS", "0"}}).size(), 1u)
      << "without a log it has links alone";
}

TEST(Settings, UnderstandsLaunchers) {
  const Variables slurm = {{"SLURM_PROCID", "3"},
                           {"SLURM_NTASKS", "4"},
                           {"SLURM_JOB_ID", "12"},
                           {"SLURM_STEP_ID", "1"},
                           {"SLURM_JOB_NODELIST", "gpu[03-04,9],login"}};
  const LauncherCase cases[] = {
      {"Slurm", slurm, "3", 4, "gpu03", kDefaultTrackerPort, "slurm-12.1", 0},
      {"Slurm, a task of an array, requeued",
       with(slurm, {{"SLURM_ARRAY_JOB_ID", "10"}, {"SLURM_ARRAY_TASK_ID", "2"}, {"SLURM_RESTART_COUNT", "5"}}), "3", 4,
       "gpu03", kDefaultTrackerPort, "slurm-10_2.1", 5},
      {"Slurm, a step smaller than its allocation", with(slurm, {{"SLURM_NTASKS", "9"}, {"SLURM_STEP_NUM_TASKS", "4"}}),
       "3", 4, "gpu03", kDefaultTrackerPort, "slurm-12.1", 0},
      {"Open MPI",
       {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}, {"WARREN_TRACKER", "t"}},
       "1",
       2,
       "t",
       kDefaultTrackerPort,
       "default",
       0},
      {"mpirun inside of Slurm: its numbers, Slurm's tracker and job",
       with(slurm, {{"OMPI_COMM_WORLD_RANK", "9"}, {"OMPI_COMM_WORLD_SIZE", "16"}}), "9", 16, "gpu03",
       kDefaultTrackerPort, "slurm-12.1", 0},
      {"MPICH",
       {{"PMI_RANK", "0"}, {"PMI_SIZE", "3"}, {"WARREN_TRACKER", "::1"}},
       "0",
       3,
       "::1",
       kDefaultTrackerPort,
       "default",
       0},
      {"torchrun",
       {{"RANK", "5"},
        {"WORLD_SIZE", "6"},
        {"MASTER_ADDR", "m.example"},
        {"MASTER_PORT", "29500"},
        {"TORCHELASTIC_RUN_ID", "abc"},
        {"TORCHELASTIC_RESTART_COUNT", "2"}},
       "5",
       6,
       "m.example",
       kDefaultTrackerPort,
       "abc",
       2},
      {"torchrun without a run id",
       {{"RANK", "5"}, {"WORLD_SIZE", "6"}, {"MASTER_ADDR", "m"}, {"TORCHELASTIC_RUN_ID", "none"}},
       "5",
       6,
       "m",
       kDefaultTrackerPort,
       "default",
       0},
      {"Kubernetes",
       {{"JOB_COMPLETION_INDEX", "7"}, {"WARREN_WORLD_SIZE", "8"}, {"WARREN_TRACKER", "svc:99"}},
       "7",
       8,
       "svc",
       99,
       "default",
       0},
      {"dmlc-submit",
       {{"DMLC_ROLE", "worker"},
        {"DMLC_TRACKER_URI", "10.9.8.7"},
        {"DMLC_TRACKER_PORT", "9091"},
        {"DMLC_TASK_ID", "1"},
        {"DMLC_NUM_WORKER", "2"},
        {"DMLC_NUM_ATTEMPT", "3"}},
       "1",
       2,
       "10.9.8.7",
       9091,
       "default",
       3},
      {"dmlc-submit over IPv6 inside of Slurm",
       with(slurm, {{"DMLC_TRACKER_URI", "fd00::1"},
                    {"DMLC_TRACKER_PORT", "9091"},
                    {"DMLC_TASK_ID", "1"},
                    {"DMLC_NUM_WORKER", "2"}}),
       "1", 2, "fd00::1", 9091, "slurm-12.1", 0},
  };
  for (const LauncherCase& c : cases) {
    SCOPED_TRACE(c.name);
    const auto r = resolve(nullptr, environment(with(c.variables, {{"WARREN_SECRET_FILE", "/s"}})), kFacts);
    ASSERT_TRUE(r.ok()) << r.status().describe();
    EXPECT_EQ(r.value().worker_id, c.worker_id);
    EXPECT_EQ(r.value().world_size, c.world_size);
    EXPECT_EQ(r.value().tracker_host, c.tracker_host);
    EXPECT_EQ(r.value().tracker_port, c.tracker_port);
    EXPECT_EQ(r.value().job, c.job);
    EXPECT_EQ(r.value().attempt, c.attempt);
    EXPECT_EQ(r.value().tracker_may_be_rabits, c.variables.contains("DMLC_TRACKER_URI"));
    const auto named = resolve(
        nullptr, environment(with(c.variables, {{"WARREN_SECRET_FILE", "/s"}, {"WARREN_TRACKER", "own"}})), kFacts);
    ASSERT_TRUE(named.ok()) << named.status().describe();
    EXPECT_FALSE(named.value().tracker_may_be_rabits);
    warren_options options = no_options();
    options.tracker = "own";
    const auto given = resolve(&options, environment(with(c.variables, {{"WARREN_SECRET_FILE", "/s"}})), kFacts);
    ASSERT_TRUE(given.ok()) << given.status().describe();
    EXPECT_EQ(given.value().tracker_may_be_rabits, c.variables.contains("DMLC_TRACKER_URI"));
  }
}

TEST(Settings, RanksWithoutAMasterAreNotTorchrun) {
  const auto r = resolve(nullptr, environment({{"RANK", "1"}, {"WORLD_SIZE", "2"}}), kFacts);
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().describe(), HasSubstr("no worker id"));
}

struct Refusal {
  Variables variables;
  std::vector<std::string> words;
};

TEST(Settings, RefusesWhatIsWrongAndNamesIt) {
  const Refusal cases[] = {
      {{{"WARREN_TRACKER", "host:port"}}, {"WARREN_TRACKER", "'port'", "1 to 65535"}},
      {{{"WARREN_TRACKER", "a:b:1"}}, {"WARREN_TRACKER", "too many colons"}},
      {{{"WARREN_TRACKER", "[::1"}}, {"WARREN_TRACKER", "bracket"}},
      {{{"WARREN_TRACKER", ":80"}}, {"WARREN_TRACKER", "host is missing"}},
      {{{"WARREN_TRACKER", "10.0.0.256:1"}}, {"WARREN_TRACKER", "neither a name nor an address"}},
      {{{"WARREN_TRACKER", "h:65536"}}, {"WARREN_TRACKER", "'65536'"}},
      {{{"WARREN_WORLD_SIZE", "4x"}}, {"WARREN_WORLD_SIZE", "'4x'", "1 to 16384"}},
      {{{"WARREN_WORLD_SIZE", "0"}}, {"WARREN_WORLD_SIZE", "'0'"}},
      {{{"WARREN_WORLD_SIZE", "-1"}}, {"WARREN_WORLD_SIZE", "'-1'"}},
      {{{"WARREN_WORLD_SIZE", " 4"}}, {"WARREN_WORLD_SIZE"}},
      {{{"WARREN_WORLD_SIZE", "16385"}}, {"WARREN_WORLD_SIZE", "16384"}},
      {{{"WARREN_WORLD_SIZE", "99999999999999999999999"}}, {"WARREN_WORLD_SIZE"}},
      {{{"WARREN_JOB", "my job"}}, {"WARREN_JOB"}},
      {{{"WARREN_JOB", "-x"}}, {"WARREN_JOB"}},
      {{{"WARREN_WORKER_ID", std::string(129, 'w')}}, {"WARREN_WORKER_ID"}},
      {{{"WARREN_HOST_ID", "a b"}}, {"WARREN_HOST_ID"}},
      {{{"WARREN_DOMAIN_ID", "ä"}}, {"WARREN_DOMAIN_ID"}},
      {{{"WARREN_BIND_ADDRESS", "not an address"}}, {"WARREN_BIND_ADDRESS"}},
      {{{"WARREN_ADVERTISE_ADDRESS", "node7"}}, {"WARREN_ADVERTISE_ADDRESS", "numeric"}},
      {{{"WARREN_PORT_RANGE", "9400"}}, {"WARREN_PORT_RANGE is '9400'", "as 9400:9431"}},
      {{{"WARREN_PORT_RANGE", "9400:9399"}}, {"WARREN_PORT_RANGE", "as 9400:9431"}},
      {{{"WARREN_PORT_RANGE", "0:9399"}}, {"WARREN_PORT_RANGE"}},
      {{{"WARREN_PORT_RANGE", "9400:65536"}}, {"WARREN_PORT_RANGE"}},
      {{{"WARREN_PORT_RANGE", "9400:9400"}}, {"WARREN_PORT_RANGE has 1 port", "listens on 2: give a wider range"}},
      {{{"WARREN_ROUND_TIMEOUT_MS", "99"}}, {"WARREN_ROUND_TIMEOUT_MS", "100 to 86400000"}},
      {{{"WARREN_ROUND_TIMEOUT_MS", "1e3"}}, {"WARREN_ROUND_TIMEOUT_MS"}},
      {{{"WARREN_JOIN_TIMEOUT_MS", "10s"}}, {"WARREN_JOIN_TIMEOUT_MS"}},
      {{{"WARREN_ALGORITHM", "rings"}}, {"WARREN_ALGORITHM", "did you mean ring?"}},
      {{{"WARREN_CHUNK_BYTES", "1023"}}, {"WARREN_CHUNK_BYTES", "1024 to 4194304"}},
      {{{"WARREN_CHUNK_BYTES", "K"}}, {"WARREN_CHUNK_BYTES"}},
      {{{"WARREN_CHUNK_BYTES", "99999999999999999G"}}, {"WARREN_CHUNK_BYTES"}},
      {{{"WARREN_STREAMS", "17"}}, {"WARREN_STREAMS", "1 to 16"}},
      {{{"WARREN_CHECKSUMS", "maybe"}}, {"WARREN_CHECKSUMS", "give 1"}},
      {{{"WARREN_CHECK_CALL_SITES", "2"}}, {"WARREN_CHECK_CALL_SITES"}},
      {{{"WARREN_REPLICAS", "17"}}, {"WARREN_REPLICAS", "0 to 16"}},
      {{{"WARREN_REPLICAS", "-1"}}, {"WARREN_REPLICAS"}},
      {{{"WARREN_LOG", "asinc"}}, {"WARREN_LOG", "give memory, async or sync; did you mean async?"}},
      {{{"WARREN_LOG", "sync"}}, {"WARREN_LOG is 'sync'", "WARREN_DATA_DIR"}},
      {{{"WARREN_LOG", "async"}}, {"WARREN_LOG is 'async'", "WARREN_DATA_DIR"}},
      {{{"WARREN_LOG_MEMORY_BYTES", "1048575"}}, {"WARREN_LOG_MEMORY_BYTES", "1048576 to"}},
      {{{"WARREN_LOG_MEMORY_BYTES", "1.5G"}}, {"WARREN_LOG_MEMORY_BYTES"}},
      {{{"WARREN_DATA_DIR", std::string("/a\0b", 4)}}, {"WARREN_DATA_DIR", "no path"}},
      {{{"WARREN_DATA_DIR", std::string(4096, 'd')}}, {"WARREN_DATA_DIR", "no path"}},
      {{{"WARREN_CHECKPOINT_MIRROR", std::string(4096, 'd')}}, {"WARREN_CHECKPOINT_MIRROR", "no path"}},
      {{{"WARREN_LOG_LAG_MS", "0"}}, {"WARREN_LOG_LAG_MS", "1 to 86400000"}},
      {{{"WARREN_LOG_LAG_BYTES", "0"}}, {"WARREN_LOG_LAG_BYTES"}},
      {{{"WARREN_LOG_DISK_BYTES", "64K"}}, {"WARREN_LOG_DISK_BYTES"}},
      {{{"WARREN_MODE", "shrinks"}}, {"WARREN_MODE", "give wait or shrink; did you mean shrink?"}},
      {{{"WARREN_MIN_WORKERS", "2"}}, {"WARREN_MIN_WORKERS", "WARREN_MODE"}},
      {{{"WARREN_GRACE_MS", "0"}, {"WARREN_MODE", "wait"}}, {"WARREN_GRACE_MS", "WARREN_MODE"}},
      {{{"WARREN_MODE", "shrink"}, {"WARREN_MIN_WORKERS", "0"}}, {"WARREN_MIN_WORKERS", "1 to 8"}},
      {{{"WARREN_MODE", "shrink"}, {"WARREN_MIN_WORKERS", "9"}}, {"WARREN_MIN_WORKERS", "1 to 8"}},
      {{{"WARREN_MODE", "shrink"}, {"WARREN_GRACE_MS", "86400001"}}, {"WARREN_GRACE_MS", "0 to 86400000"}},
      {{{"WARREN_MODE", "shrink"}, {"WARREN_REPLICAS", "0"}}, {"mode=shrink needs replicas of 1 or more"}},
      {{{"WARREN_MODE", "shrink"}, {"WARREN_ON_ROLLBACK", "error"}}, {"mode=shrink needs on_rollback=exit"}},
      {{{"WARREN_MODE", "shrink"}, {"WARREN_RESIZE", "1"}}, {"mode=shrink", "leave resize out"}},
      {{{"WARREN_MODE", "shrink"}, {"WARREN_CHECKPOINT_MIRROR", "/m"}}, {"mode=shrink", "leave checkpoint_mirror out"}},
      {{{"WARREN_MODE", "shrink"}, {"WARREN_FUSION_BYTES", "1"}}, {"mode=shrink", "leave fusion_bytes out"}},
      {{{"WARREN_ON_ROLLBACK", "die"}}, {"WARREN_ON_ROLLBACK", "give exit or error"}},
      {{{"WARREN_LOCAL_WORLD_SIZE", "0"}}, {"WARREN_LOCAL_WORLD_SIZE", "1 to 16384"}},
      {{{"WARREN_LOG_LEVEL", "debug"}}, {"WARREN_LOG_LEVEL", "info, warning or error"}},
      {{{"WARREN_ATTEMPT", "4294967296"}}, {"WARREN_ATTEMPT"}},
      {{{"WARREN_DEVICE_PINNED_BYTES", "1023K"}}, {"WARREN_DEVICE_PINNED_BYTES"}},
      {{{"WARREN_DEVICE_SNAPSHOT_BYTES", "-1"}}, {"WARREN_DEVICE_SNAPSHOT_BYTES"}},
      {{{"WARREN_DEVICE_SHARED_BYTES", "x"}}, {"WARREN_DEVICE_SHARED_BYTES"}},
      {{{"WARREN_DEVICE_LIBRARY", std::string(5000, 'l')}}, {"WARREN_DEVICE_LIBRARY", "no path"}},
      {{{"WARREN_INSECURE_NO_AUTH", "1"}}, {"WARREN_SECRET_FILE", "WARREN_INSECURE_NO_AUTH", "contradict"}},
      {{{"WARREN_CONFIG", "/nowhere/warren.conf"}}, {"WARREN_CONFIG", "/nowhere/warren.conf", "cannot be read"}},
      {{{"WARREN_CONFIG", "/tmp"}}, {"WARREN_CONFIG", "cannot be read"}},
      {{{"DMLC_ROLE", "server"}, {"DMLC_TRACKER_URI", "h"}}, {"DMLC_ROLE", "'server'"}},
      {{{"DMLC_TRACKER_URI", "h"}, {"DMLC_TRACKER_PORT", "x"}}, {"DMLC_TRACKER_PORT", "'x'"}},
      {{{"SLURM_JOB_NODELIST", "gpu[1-"}}, {"SLURM_JOB_NODELIST", "WARREN_TRACKER", "not closed"}},
      {{{"WARREN_TRACKER", "a\nb"}}, {"'a?b'"}},
  };
  for (const Refusal& c : cases) {
    SCOPED_TRACE(c.variables.begin()->first + "=" + c.variables.begin()->second);
    const auto r = resolve(nullptr, environment(with(kComplete, c.variables)), kFacts);
    ASSERT_FALSE(r.ok());
    for (const std::string& word : c.words) EXPECT_THAT(r.status().describe(), HasSubstr(word));
  }
}

TEST(Settings, ModeShrinkSaysWithHowFewAndAfterHowLong) {
  const auto by_default = resolve(nullptr, environment(with(kComplete, {{"WARREN_MODE", "shrink"}})), kFacts);
  ASSERT_TRUE(by_default.ok()) << by_default.status().describe();
  EXPECT_EQ(by_default.value().min_workers, 1u);
  EXPECT_EQ(by_default.value().grace_ms, 1000);
  EXPECT_EQ(by_default.value().fusion_bytes, 0u);
  EXPECT_EQ(by_default.value().resolved.size(), 54u);
  EXPECT_THAT(describe(by_default.value()), HasSubstr("mode=shrink (WARREN_MODE)"));
  EXPECT_THAT(describe_all(by_default.value()),
              testing::ContainsRegex("\nmin_workers +1 \\(default\\)\ngrace_ms +1000 \\(default\\)\n"));
  warren_options o = no_options();
  o.mode = "shrink";
  o.min_workers = 8;
  o.grace_ms = 0;
  o.fusion_bytes = 0;
  const Variables spares = {{"WARREN_SPARES", "2"}, {"WARREN_MIN_WORKERS", "3"}, {"WARREN_MODE", "wait"}};
  const auto given = resolve(&o, environment(with(kComplete, spares)), kFacts);
  ASSERT_TRUE(given.ok()) << given.status().describe();
  EXPECT_EQ(given.value().min_workers, 8u) << "of 8: it waits for all, and those whose place is taken wait";
  EXPECT_EQ(given.value().grace_ms, 0);
  EXPECT_EQ(given.value().spares, 2u);
  o.mode = "wait";
  const auto contradicts = resolve(&o, environment(kComplete), kFacts);
  ASSERT_FALSE(contradicts.ok());
  EXPECT_THAT(contradicts.status().describe(), HasSubstr("the option min_workers says how a job goes on without"));
  EXPECT_THAT(contradicts.status().describe(), HasSubstr("the option grace_ms says how a job goes on without"));
}

TEST(Settings, MaxWorkersIsTheWorldSizeOfAJobThatMayBeginWithFewer) {
  const Variables shrinks = with(kComplete, {{"WARREN_MODE", "shrink"}});
  const auto none = resolve(nullptr, environment(shrinks), kFacts);
  ASSERT_TRUE(none.ok()) << none.status().describe();
  EXPECT_EQ(none.value().max_workers, 0u);
  EXPECT_EQ(none.value().world_size, 8u);
  const auto more = resolve(
      nullptr, environment(with(shrinks, {{"WARREN_MAX_WORKERS", "12"}, {"WARREN_MIN_WORKERS", "10"}})), kFacts);
  ASSERT_TRUE(more.ok()) << more.status().describe();
  EXPECT_EQ(more.value().max_workers, 12u);
  EXPECT_EQ(more.value().world_size, 12u);
  EXPECT_EQ(more.value().min_workers, 10u) << "of 12";
  EXPECT_THAT(describe(more.value()),
              HasSubstr("world_size=8 (WARREN_WORLD_SIZE) max_workers=12 (WARREN_MAX_WORKERS)"));
  Variables alone = with(shrinks, {{"WARREN_MAX_WORKERS", "12"}});
  alone.erase("WARREN_WORLD_SIZE");
  const auto instead = resolve(nullptr, environment(alone), kFacts);
  ASSERT_TRUE(instead.ok()) << instead.status().describe();
  EXPECT_EQ(instead.value().world_size, 12u);
  const auto fewer = resolve(nullptr, environment(with(shrinks, {{"WARREN_MAX_WORKERS", "7"}})), kFacts);
  ASSERT_FALSE(fewer.ok());
  EXPECT_THAT(fewer.status().describe(),
              HasSubstr("WARREN_MAX_WORKERS is 7, and WARREN_WORLD_SIZE says that 8 workers"));
  const auto waits = resolve(nullptr, environment(with(kComplete, {{"WARREN_MAX_WORKERS", "9"}})), kFacts);
  ASSERT_FALSE(waits.ok());
  EXPECT_THAT(waits.status().describe(), HasSubstr("WARREN_MAX_WORKERS says how many workers a job may have"));
}

TEST(Settings, SaysAllThatIsMissingAtOnceAndHowToGiveIt) {
  const auto r = resolve(nullptr, environment({}), kFacts);
  ASSERT_FALSE(r.ok());
  EXPECT_EQ(r.status().code(), Code::kInvalidArgument);
  for (const char* word : {"no tracker", "WARREN_TRACKER", "no worker id", "WARREN_WORKER_ID", "no world size",
                           "WARREN_WORLD_SIZE", "no secret", "warren keygen", "warren run -n", "Slurm"}) {
    EXPECT_THAT(r.status().describe(), HasSubstr(word));
  }
}

TEST(Settings, ARankBeyondItsLaunchersWorldIsRefused) {
  const Variables base = {{"WARREN_TRACKER", "t"}, {"WARREN_SECRET_FILE", "/s"}, {"PMI_RANK", "4"}};
  const auto r = resolve(nullptr, environment(with(base, {{"PMI_SIZE", "4"}})), kFacts);
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().describe(), HasSubstr("PMI_RANK is '4': not a whole number from 0 to 3"));
  EXPECT_TRUE(resolve(nullptr, environment(with(base, {{"PMI_SIZE", "5"}})), kFacts).ok());
  EXPECT_TRUE(resolve(nullptr, environment(with(base, {{"WARREN_WORLD_SIZE", "3"}})), kFacts).ok());
}

TEST(Settings, WhoseNumberIsBeyondTheWorldBeginsAsASpare) {
  const auto of = [](const std::string& worker, const std::string& spares) {
    auto env = kComplete;
    env["WARREN_WORKER_ID"] = worker;
    env["WARREN_WORLD_SIZE"] = "4";
    env["WARREN_SPARES"] = spares;
    auto resolved = resolve(nullptr, environment(env), kFacts);
    EXPECT_TRUE(resolved.ok()) << resolved.status().describe();
    return resolved.value();
  };
  EXPECT_TRUE(of("4", "1").begins_as_spare);
  EXPECT_FALSE(of("3", "1").begins_as_spare);
  EXPECT_EQ(of("3", "1").spares, 1U);
  EXPECT_FALSE(of("4", "0").begins_as_spare) << "it is refused, as one too many";
  EXPECT_FALSE(of("node-7", "1").begins_as_spare) << "a name: the first to come have the places";
}

TEST(Settings, ASpareMayHaveAnyName) {
  const auto of = [](const Variables& more) { return resolve(nullptr, environment(with(kComplete, more)), kFacts); };
  const auto named = of({{"WARREN_SPARE", "1"}, {"WARREN_WORKER_ID", "w8"}});
  ASSERT_TRUE(named.ok()) << named.status().describe();
  EXPECT_TRUE(named.value().begins_as_spare);
  EXPECT_EQ(named.value().spares, 1U);
  EXPECT_TRUE(of({{"WARREN_SPARE", "1"}, {"WARREN_WORKER_ID", "3"}}).value().begins_as_spare);
  // A number beyond the world says nothing against what is said in words.
  EXPECT_FALSE(of({{"WARREN_SPARE", "0"}, {"WARREN_SPARES", "2"}, {"WARREN_WORKER_ID", "9"}}).value().begins_as_spare);
  EXPECT_EQ(of({{"WARREN_SPARE", "0"}}).value().spares, 0U);
  const auto both = of({{"WARREN_SPARE", "1"}, {"WARREN_SPARES", "0"}});
  ASSERT_FALSE(both.ok());
  EXPECT_THAT(both.status().describe(), HasSubstr("WARREN_SPARE says that this worker waits as a spare, and "
                                                  "WARREN_SPARES that the job has none"));
  EXPECT_THAT(of({{"WARREN_SPARE", "maybe"}}).status().describe(), HasSubstr("WARREN_SPARE is 'maybe'"));
}

TEST(Settings, AByteOrderMarkIsNoPartOfAName) {
  const auto of = [](const std::string& text) {
    const TemporaryFile file(text);
    return resolve(nullptr, environment({{"WARREN_CONFIG", file.path}}), kFacts);
  };
  const std::string good = "tracker = t\r\nworker_id = w0\r\nworld_size = 2\r\ninsecure_no_auth = 1\r\n";
  const auto marked = of("\xEF\xBB\xBF" + good);
  ASSERT_TRUE(marked.ok()) << marked.status().describe();
  EXPECT_EQ(marked.value().tracker_host, "t");
  for (const std::string mark : {"\xFF\xFE", "\xFE\xFF"}) {
    EXPECT_THAT(of(mark + good).status().describe(), HasSubstr("is written in UTF-16"));
  }
  // A mark elsewhere, a space that does not break, a letter that looks like another: they are shown.
  EXPECT_THAT(of(good + "\xEF\xBB\xBFjob = j\n").status().describe(),
              HasSubstr(":5: there is no setting '\\xEF\\xBB\\xBFjob'"));
  EXPECT_THAT(of("\xC2\xA0tracker = t\n").status().describe(),
              HasSubstr("no setting '\\xC2\\xA0tracker'; did you mean tracker?"));
}

TEST(Settings, WhereSomethingIsMissingTheOthersAreShown) {
  const Preview bare = preview(environment({}));
  EXPECT_THAT(bare.wrong.describe(), HasSubstr("no tracker is given"));
  EXPECT_THAT(bare.wrong.describe(), HasSubstr("no world size is given"));
  const std::string all = describe_all(bare.settings);
  EXPECT_THAT(all, HasSubstr("tracker                (missing) (default)\n"));
  EXPECT_THAT(all, HasSubstr("replicas               2 (default)\n"));
  const Preview whole = preview(environment(kComplete));
  EXPECT_TRUE(whole.wrong.ok()) << whole.wrong.describe();
  EXPECT_EQ(bare.settings.resolved.size(), whole.settings.resolved.size());
  const Preview wrong = preview(environment(with(kComplete, {{"WARREN_TRACKER", "t:x"}, {"WARREN_STREAMS", "3"}})));
  EXPECT_FALSE(wrong.wrong.ok());
  EXPECT_THAT(describe_all(wrong.settings), HasSubstr("streams                3 (WARREN_STREAMS)\n"));
}

TEST(Settings, KubernetesDoesNotTellTheWorldSize) {
  const auto r = resolve(
      nullptr, environment({{"JOB_COMPLETION_INDEX", "0"}, {"WARREN_TRACKER", "t"}, {"WARREN_SECRET_FILE", "/s"}}),
      kFacts);
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().describe(), HasSubstr("no world size"));
}

TEST(Settings, TheFileIsReadStrictly) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"\nworldsize = 4\n", {":2: there is no setting 'worldsize'; did you mean world_size?"}},
      {"flux_capacitor = 1\n", {":1: there is no setting 'flux_capacitor'"}},
      {"streams\n", {":1: 'streams' is not of the form name = value"}},
      {"streams =   # none\n", {":1: streams has no value"}},
      {"job = a\nstreams = 1\njob = b\n", {":3: job was given before, at ", ":1"}},
      {"streams = 0\n", {"streams (", ":1) is '0'"}},
  };
  for (const auto& [text, words] : cases) {
    SCOPED_TRACE(text);
    const TemporaryFile file(text);
    Variables v = kComplete;
    v["WARREN_CONFIG"] = file.path;
    const auto r = resolve(nullptr, environment(v), kFacts);
    ASSERT_FALSE(r.ok());
    for (const std::string& word : words) EXPECT_THAT(r.status().describe(), HasSubstr(word));
  }
  const TemporaryFile large(std::string((std::size_t{64} << 10) + 1, '\n'));
  const auto r = resolve(nullptr, environment(with(kComplete, {{"WARREN_CONFIG", large.path}})), kFacts);
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().describe(), HasSubstr("longer than 64 KiB"));
}

TEST(Settings, OptionsOfAnotherVersionAreRefused) {
  warren_options o = no_options();
  o.struct_size = 0;
  const auto r = resolve(&o, environment(kComplete), kFacts);
  ASSERT_FALSE(r.ok());
  EXPECT_THAT(r.status().describe(), HasSubstr("warren_options_init"));
}

TEST(Settings, AHostWithoutFactsStillHasAName) {
  const auto r = resolve(nullptr, environment(kComplete), SystemFacts{});
  ASSERT_TRUE(r.ok()) << r.status().describe();
  EXPECT_EQ(r.value().domain_id, "unknown");
  EXPECT_THAT(r.value().host_id, testing::MatchesRegex("host-[0-9a-f]{12}"));
  EXPECT_EQ(r.value().log_memory_bytes, 64 * kMiB);
  const auto real = resolve(nullptr, environment(kComplete));
  ASSERT_TRUE(real.ok()) << real.status().describe();
}

TEST(Settings, AHostIdIsReadableAndUnique) {
  const auto host_of = [](const SystemFacts& facts) {
    const auto r = resolve(nullptr, environment(kComplete), facts);
    EXPECT_TRUE(r.ok()) << r.status().describe();
    return r.ok() ? r.value().host_id : "";
  };
  EXPECT_EQ(host_of(kFacts), host_of(kFacts));
  std::set<std::string> ids;
  SystemFacts other = kFacts;
  ids.insert(host_of(other));
  other.boot_id = "b00t2";
  ids.insert(host_of(other));
  other.mount_namespace = "1";
  ids.insert(host_of(other));
  other.pid_namespace = "122";
  ids.insert(host_of(other));
  other.network_namespace = "133";
  ids.insert(host_of(other));
  other.user = "1044";  // processes of two users share no memory
  ids.insert(host_of(other));
  other.host_name = "node2";
  ids.insert(host_of(other));
  EXPECT_EQ(ids.size(), 7u);
  other.host_name = "-a b\n/ä.c" + std::string(300, 'x');
  EXPECT_THAT(host_of(other), testing::StartsWith("ab.cxxx"));
  // What anybody can tell apart by these facts alone goes into the id: "1" + "22" is not "12" + "2".
  SystemFacts a = kFacts, b = kFacts;
  a.mount_namespace = "1", a.pid_namespace = "22";
  b.mount_namespace = "12", b.pid_namespace = "2";
  EXPECT_NE(host_of(a), host_of(b));
}

TEST(Settings, TheLogGoesToDiskWhereThereIsAFolder) {
  const auto log_with = [](const Variables& more) {
    const auto r = resolve(nullptr, environment(with(kComplete, more)), kFacts);
    EXPECT_TRUE(r.ok()) << r.status().describe();
    return r.value().log;
  };
  EXPECT_EQ(log_with({{"WARREN_DATA_DIR", "/d"}}), LogMode::kAsync);
  EXPECT_EQ(log_with({{"WARREN_DATA_DIR", "/d"}, {"WARREN_LOG", "sync"}}), LogMode::kSync);
  EXPECT_EQ(log_with({{"WARREN_DATA_DIR", "/d"}, {"WARREN_LOG", "memory"}}), LogMode::kMemory);
  EXPECT_EQ(log_with({}), LogMode::kMemory);
}

TEST(Settings, WorkersOfOneMachineShareTheMemoryOfTheLog) {
  const auto memory_with = [](const Variables& more, std::uint64_t machine) {
    SystemFacts facts = kFacts;
    facts.memory_bytes = machine;
    const auto r = resolve(nullptr, environment(with(kComplete, more)), facts);
    EXPECT_TRUE(r.ok()) << r.status().describe();
    return r.value().log_memory_bytes / kMiB;
  };
  EXPECT_EQ(memory_with({}, 8000 * kMiB), 2000u);
  EXPECT_EQ(memory_with({{"WARREN_LOCAL_WORLD_SIZE", "3"}}, 8000 * kMiB), 666u);
  EXPECT_EQ(memory_with({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}, 8000 * kMiB), 500u);
  EXPECT_EQ(memory_with({{"MPI_LOCALNRANKS", "5"}}, 8000 * kMiB), 400u);
  EXPECT_EQ(memory_with({{"LOCAL_WORLD_SIZE", "8"}}, 8000 * kMiB), 2000u) << "anybody may use that word";
  EXPECT_EQ(memory_with({{"LOCAL_WORLD_SIZE", "8"}, {"MASTER_ADDR", "m"}}, 8000 * kMiB), 250u);
  EXPECT_EQ(memory_with({}, 100 * kMiB), 25u);
  EXPECT_EQ(memory_with({{"WARREN_LOCAL_WORLD_SIZE", "3"}}, 256 * kMiB), 21u) << "a small container's";
  EXPECT_EQ(memory_with({{"WARREN_LOCAL_WORLD_SIZE", "100"}}, 256 * kMiB), 4u) << "the least that a log can be";
  EXPECT_EQ(memory_with({}, 2'000'000 * kMiB), 65'536u);
  EXPECT_EQ(memory_with({{"WARREN_LOG_MEMORY_BYTES", "5M"}}, 8000 * kMiB), 5u);
}

TEST(Settings, TellsMisspelledVariables) {
  const std::string_view entries[] = {"PATH=/bin", "WARREN_TRAKER=x", "WARREN_JOB=j", "WARREN_CONFIG=c",
                                      "WARREN_ZZZZZZZZ="};
  EXPECT_THAT(misspelled_variables(entries),
              ElementsAre("WARREN_TRAKER is not a variable of Warren; did you mean WARREN_TRACKER?",
                          "WARREN_ZZZZZZZZ is not a variable of Warren"));
}

TEST(NodeList, Expands) {
  const std::pair<const char*, std::vector<std::string>> cases[] = {
      {"node1", {"node1"}},
      {"a,b", {"a", "b"}},
      {"node[01-03,7]", {"node01", "node02", "node03", "node7"}},
      {"node[098-101]", {"node098", "node099", "node100", "node101"}},
      {"login,gpu[1-2]-ib,x", {"login", "gpu1-ib", "gpu2-ib", "x"}},
      {"r[1-2]n[1-2]", {"r1n1", "r1n2", "r2n1", "r2n2"}},
  };
  for (const auto& [list, names] : cases) {
    const auto r = expand_node_list(list);
    ASSERT_TRUE(r.ok()) << r.status().describe();
    EXPECT_EQ(r.value(), names) << list;
  }
}

TEST(NodeList, RefusesWhatIsNone) {
  for (const char* list : {"", ",", "a,,b", "a[", "a[1", "a]", "a[1]]", "a[3-1]", "a[x]", "a[1-]", "a[]",
                           "a[0-99999999]", "a[1-200]b[1-200]", "a[1--2]", "a[1,,2]"}) {
    EXPECT_FALSE(expand_node_list(list).ok()) << list;
  }
}

TEST(Text, TheTimeIsThatOfTheTrackersLog) {
  EXPECT_THAT(utc_now(), testing::MatchesRegex("20[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9][0-9][0-9]Z"));
}

}  // namespace
}  // namespace warren::worker
