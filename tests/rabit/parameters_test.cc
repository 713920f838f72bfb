// What arguments and variables mean, and which comes first.
#include "rabit/parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace rabit::layer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;
using Variables = std::map<std::string, std::string>;

struct Read {
  Parameters parameters;
  Outcome outcome;
};
Read read(const std::vector<const char*>& arguments, const Variables& variables = {}, bool kill_points = true) {
  Read out;
  out.outcome = read_parameters(
      arguments,
      [&](const std::string& name) -> std::optional<std::string> {
        const auto at = variables.find(name);
        return at != variables.end() ? std::optional(at->second) : std::nullopt;
      },
      kill_points, out.parameters);
  return out;
}
Parameters good(const std::vector<const char*>& arguments, const Variables& variables = {}) {
  Read r = read(arguments, variables);
  EXPECT_TRUE(r.outcome.ok()) << r.outcome.why();
  return r.parameters;
}
std::string refused(const std::vector<const char*>& arguments, const Variables& variables = {}) {
  return read(arguments, variables).outcome.why();
}

TEST(Parameters, WithoutAnyThisProcessIsTheWorld) {
  const Parameters p = good({"program", "eta=0.3", "=", "data=", "x=y=z", nullptr});
  EXPECT_TRUE(p.alone);
  EXPECT_TRUE(p.notes.empty());
  EXPECT_EQ(p.trial, 0);
  EXPECT_TRUE(p.infer_setup_rounds);
  EXPECT_FALSE(p.report_stats);
}

TEST(Parameters, WhatNamesATrackerOrMoreThanOneIsNoWorldOfOne) {
  EXPECT_FALSE(good({"rabit_tracker_uri=host"}).alone);
  EXPECT_FALSE(good({"DMLC_TRACKER_URI=host"}).alone);
  EXPECT_FALSE(good({"rabit_world_size=2"}).alone);
  for (const char* name : {"rabit_tracker_uri", "DMLC_TRACKER_URI", "WARREN_TRACKER", "WARREN_CONFIG"}) {
    EXPECT_FALSE(good({}, {{name, "x"}}).alone) << name;
  }
  for (const char* name : {"rabit_world_size", "WARREN_WORLD_SIZE", "DMLC_NUM_WORKER", "OMPI_COMM_WORLD_SIZE",
                           "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    EXPECT_FALSE(good({}, {{name, "3"}}).alone) << name;
    EXPECT_TRUE(good({}, {{name, "1"}}).alone) << name;
  }
  EXPECT_TRUE(good({}, {{"WORLD_SIZE", "8"}}).alone) << "a word that anybody may use";
  EXPECT_FALSE(good({}, {{"WORLD_SIZE", "8"}, {"MASTER_ADDR", "host"}}).alone);
  EXPECT_TRUE(good({"rabit_tracker_uri=NULL"}, {{"WARREN_TRACKER", "host"}}).alone) << "said by an argument";
  EXPECT_FALSE(good({}, {{"rabit_tracker_uri", "NULL"}, {"WARREN_TRACKER", "host"}}).alone);
}

TEST(Parameters, OneOfAnUnknownNumberIsNoWorldOfOne) {
  const std::vector<Variables> identities = {{{"DMLC_TASK_ID", "1"}},
                                             {{"JOB_COMPLETION_INDEX", "1"}},
                                             {{"WARREN_WORKER_ID", "1"}},
                                             {{"rabit_task_id", "1"}},
                                             {{"OMPI_COMM_WORLD_RANK", "1"}},
                                             {{"PMI_RANK", "1"}},
                                             {{"MASTER_ADDR", "host"}, {"RANK", "1"}}};
  for (Variables identity : identities) {
    const std::string name = identity.rbegin()->first;
    EXPECT_THAT(refused({}, identity),
                HasSubstr(name + " is '1', and nothing says how many workers the job has: set WARREN_WORLD_SIZE"));
    EXPECT_TRUE(good({"rabit_tracker_uri=NULL"}, identity).alone) << "said by an argument";
    EXPECT_FALSE(good({"rabit_tracker_uri=host"}, identity).alone) << "Warren asks for what is missing";
    identity["WARREN_WORLD_SIZE"] = "1";
    EXPECT_TRUE(good({}, identity).alone) << name;
    identity["WARREN_WORLD_SIZE"] = "2";
    EXPECT_FALSE(good({}, identity).alone) << name;
  }
  EXPECT_THAT(refused({"rabit_task_id=a"}), HasSubstr("the argument rabit_task_id is 'a', and nothing says how many"));
  EXPECT_THAT(refused({"rabit_task_id=a", "rabit_world_size=-1"}), HasSubstr("and nothing says how many"));
  EXPECT_TRUE(good({"rabit_task_id=a", "rabit_world_size=1"}).alone);
  EXPECT_TRUE(good({}, {{"RANK", "1"}}).alone) << "a word that anybody may use";
  EXPECT_TRUE(good({}, {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}}).alone) << "a batch script, outside of srun";
  EXPECT_FALSE(good({}, {{"WARREN_MAX_WORKERS", "2"}}).alone);
}

TEST(Parameters, AnArgumentComesBeforeWarrensVariableAndThatBeforeRabits) {
  const Variables rabits = {
      {"rabit_tracker_uri", "r"}, {"rabit_task_id", "r"}, {"rabit_world_size", "4"}, {"rabit_global_replica", "4"}};
  Parameters p = good({}, rabits);
  EXPECT_EQ(p.tracker, "r");
  EXPECT_EQ(p.worker_id, "r");
  EXPECT_EQ(p.world_size, 4);
  EXPECT_EQ(p.replicas, 4);
  Variables both = rabits;
  for (const char* name : {"WARREN_TRACKER", "WARREN_WORKER_ID", "WARREN_WORLD_SIZE", "WARREN_REPLICAS"}) {
    both[name] = "9";
  }
  p = good({}, both);
  EXPECT_EQ(p.tracker, "");
  EXPECT_EQ(p.worker_id, "");
  EXPECT_EQ(p.world_size, 0);
  EXPECT_EQ(p.replicas, 0);
  EXPECT_FALSE(p.alone);
  p = good({"rabit_tracker_uri=a", "rabit_task_id=a", "rabit_world_size=5", "rabit_global_replica=5"}, both);
  EXPECT_EQ(p.tracker, "a");
  EXPECT_EQ(p.worker_id, "a");
  EXPECT_EQ(p.world_size, 5);
  EXPECT_EQ(p.replicas, 5);
  EXPECT_EQ(good({"DMLC_TASK_ID=d"}, both).worker_id, "d");
  EXPECT_EQ(good({}, {{"DMLC_TASK_ID", "d"}, {"DMLC_NUM_WORKER", "3"}}).worker_id, "")
      << "Warren reads dmlc-submit's variables itself";
}

TEST(Parameters, TheTrackersAddress) {
  EXPECT_EQ(good({"rabit_tracker_uri=host", "rabit_tracker_port=91"}).tracker, "host:91");
  EXPECT_EQ(good({"rabit_tracker_uri=fe80::1", "rabit_tracker_port=91"}).tracker, "[fe80::1]:91");
  EXPECT_EQ(good({"DMLC_TRACKER_URI=host", "DMLC_TRACKER_PORT=92"}).tracker, "host:92");
  EXPECT_THAT(refused({"rabit_tracker_uri=host", "rabit_tracker_port=0"}),
              HasSubstr("the argument rabit_tracker_port is '0'"));
  EXPECT_THAT(refused({}, {{"rabit_tracker_uri", "host"}, {"rabit_tracker_port", "x"}}),
              HasSubstr("rabit_tracker_port is 'x'"));
}

// Host and port are two pieces, each of which an argument may override.
TEST(Parameters, ATrackerOfPieces) {
  EXPECT_EQ(good({"rabit_tracker_port=91"}, {{"DMLC_TRACKER_URI", "host"}, {"DMLC_TRACKER_PORT", "92"}}).tracker,
            "host:91");
  EXPECT_EQ(good({"rabit_tracker_port=91"}, {{"WARREN_TRACKER", "host:93"}}).tracker, "host:91");
  EXPECT_EQ(good({"DMLC_TRACKER_PORT=91"}, {{"WARREN_TRACKER", "[fe80::1]:93"}, {"DMLC_TRACKER_URI", "x"}}).tracker,
            "[fe80::1]:91");
  EXPECT_EQ(good({"rabit_tracker_uri=a"}, {{"DMLC_TRACKER_PORT", "92"}}).tracker, "a:92");
  EXPECT_EQ(good({"rabit_tracker_uri=a"}, {{"rabit_tracker_port", "94"}, {"DMLC_TRACKER_PORT", "92"}}).tracker, "a:94");
  EXPECT_EQ(good({"rabit_tracker_uri=a"}, {{"WARREN_TRACKER", "host:93"}, {"DMLC_TRACKER_PORT", "92"}}).tracker,
            "a:93");
  EXPECT_EQ(good({"rabit_tracker_uri=a:95"}, {{"DMLC_TRACKER_PORT", "92"}}).tracker, "a:95");
  EXPECT_EQ(good({"rabit_tracker_uri=a:95", "rabit_tracker_port=91"}).tracker, "a:91");
  EXPECT_EQ(good({}, {{"rabit_tracker_uri", "r"}, {"DMLC_TRACKER_PORT", "92"}}).tracker, "r:92");
  EXPECT_EQ(good({}, {{"DMLC_TRACKER_URI", "host"}, {"DMLC_TRACKER_PORT", "92"}}).tracker, "")
      << "Warren reads dmlc-submit's variables itself";
  const Parameters alone = good({"rabit_tracker_port=91"});
  EXPECT_EQ(alone.tracker, "");
  EXPECT_THAT(alone.notes, ElementsAre(HasSubstr("rabit_tracker_port: without a tracker's host")));
  EXPECT_THAT(refused({"rabit_tracker_uri=a:b"}), HasSubstr("the port in the argument rabit_tracker_uri is 'b'"));
}

TEST(Parameters, KillPoints) {
  EXPECT_THAT(good({"mock=0,1,2,3", "mock=4,5,6,7"}).kill_points,
              ElementsAre(KillPoint{0, 1, 2, 3}, KillPoint{4, 5, 6, 7}));
  for (const char* bad : {"mock=0,1,2", "mock=0,1,2,3,4", "mock=a,1,2,3", "mock=0,1,2,", "mock=0,-1,2,3", "mock=,,,"}) {
    EXPECT_THAT(refused({bad}), HasSubstr("rank,version,sequence,trial")) << bad;
  }
  const Read without = read({"mock=0,1,2,3"}, {}, false);
  EXPECT_TRUE(without.parameters.kill_points.empty());
  EXPECT_THAT(without.parameters.notes, ElementsAre(HasSubstr("rabit_mock_static")));
}

TEST(Parameters, TheTrialIsTheInnermostLaunchers) {
  EXPECT_EQ(good({}, {{"DMLC_NUM_ATTEMPT", "1"}}).trial, 1);
  EXPECT_EQ(good({}, {{"DMLC_NUM_ATTEMPT", "1"}, {"WARREN_ATTEMPT", "2"}}).trial, 2);
  EXPECT_EQ(good({"DMLC_NUM_ATTEMPT=3"}, {{"WARREN_ATTEMPT", "2"}}).trial, 3);
  EXPECT_EQ(good({}, {{"rabit_num_trial", "4"}, {"WARREN_ATTEMPT", "2"}}).trial, 4);
  EXPECT_EQ(good({"rabit_num_trial=5"}, {{"rabit_num_trial", "4"}}).trial, 5);
  EXPECT_THAT(refused({"rabit_num_trial=-1"}), HasSubstr("rabit_num_trial"));
}

TEST(Parameters, ReplicasAreTheMostThatIsAskedFor) {
  EXPECT_EQ(good({"rabit_global_replica=3", "rabit_local_replica=1"}).replicas, 3);
  EXPECT_EQ(good({"rabit_global_replica=1", "rabit_local_replica=3"}).replicas, 4);
  EXPECT_THAT(refused({"rabit_global_replica=-1"}), HasSubstr("rabit_global_replica is '-1'"));
  EXPECT_THAT(refused({"rabit_world_size=0"}), HasSubstr("from 1 to 16384"));
}

// Numbers that rabit takes and Warren has no use for.
TEST(Parameters, NumbersOutOfWarrensRangeAreTakenWithAWord) {
  Parameters p = good({"rabit_global_replica=17"});
  EXPECT_EQ(p.replicas, 16);
  EXPECT_THAT(p.notes, ElementsAre(HasSubstr("rabit_global_replica: Warren keeps at most 16 copies")));
  p = good({"rabit_global_replica=0"});
  EXPECT_EQ(p.replicas, 0);
  EXPECT_THAT(p.notes, ElementsAre(HasSubstr("WARREN_REPLICAS or its default")));
  p = good({"rabit_local_replica=16"});
  EXPECT_EQ(p.replicas, 16);
  EXPECT_THAT(p.notes, ElementsAre(HasSubstr("rabit_local_replica: Warren keeps at most 16 copies")));
  EXPECT_EQ(good({"rabit_local_replica=15"}).replicas, 16);
  EXPECT_TRUE(good({"rabit_local_replica=15"}).notes.empty());
  p = good({"rabit_world_size=-1"});
  EXPECT_EQ(p.world_size, 0);
  EXPECT_TRUE(p.alone);
  EXPECT_THAT(p.notes, ElementsAre(HasSubstr("WARREN_WORLD_SIZE or what a launcher says")));
  EXPECT_FALSE(good({"rabit_world_size=-1"}, {{"DMLC_NUM_WORKER", "3"}}).alone);
}

TEST(Parameters, ErrorsMayBeThrown) {
  EXPECT_TRUE(good({}).stop_process_on_error);
  EXPECT_TRUE(good({"DMLC_WORKER_STOP_PROCESS_ON_ERROR=true"}).notes.empty());
  const Parameters p = good({}, {{"DMLC_WORKER_STOP_PROCESS_ON_ERROR", "false"}});
  EXPECT_FALSE(p.stop_process_on_error);
  EXPECT_THAT(p.notes, ElementsAre(HasSubstr("errors are thrown as std::runtime_error")));
}

TEST(Parameters, WhatMeansNothingHereIsSaidOnce) {
  const Parameters p =
      good({"rabit_timeout=1", "rabit_timeout_sec=60", "rabit_reduce_ring_mincount=1", "rabit_tree_reduce_minsize=1",
            "rabit_reduce_buffer=256MB", "rabit_enable_tcp_no_delay=1", "force_local=1", "rabit_debug=1", "rabit_x=1"},
           {{"DMLC_WORKER_CONNECT_RETRY", "5"}});
  const char* const lost = "a lost worker is waited for until it is started again; whoever starts it can set an end";
  const char* const algorithm = "the size decides; WARREN_ALGORITHM chooses another algorithm";
  EXPECT_THAT(p.notes, UnorderedElementsAre(
                           std::string("rabit_timeout: ") + lost, std::string("rabit_timeout_sec: ") + lost,
                           std::string("rabit_reduce_ring_mincount: ") + algorithm,
                           std::string("rabit_tree_reduce_minsize: ") + algorithm,
                           "rabit_reduce_buffer: data moves in chunks of WARREN_CHUNK_BYTES",
                           "rabit_enable_tcp_no_delay: links never wait to fill a packet",
                           "force_local: global models are always in shards with copies",
                           "DMLC_WORKER_CONNECT_RETRY: joining is tried for WARREN_JOIN_TIMEOUT_MS",
                           "rabit_debug: Warren says what it does at WARREN_LOG_LEVEL=info, which is the default",
                           "rabit_x: there is no such parameter"));
  EXPECT_TRUE(good({"report_stats=1"}).report_stats);
  EXPECT_FALSE(good({"report_stats=0"}).report_stats);
  EXPECT_TRUE(good({}).infer_setup_rounds);
  EXPECT_FALSE(good({}, {{"rabit_bootstrap_cache", "0"}}).infer_setup_rounds);
  EXPECT_TRUE(good({"rabit_bootstrap_cache=true"}, {{"rabit_bootstrap_cache", "0"}}).infer_setup_rounds);
}

TEST(Parameters, AnotherRoleHasNothingToDo) {
  EXPECT_TRUE(good({}, {{"DMLC_ROLE", "server"}}).not_a_worker);
  EXPECT_FALSE(good({}, {{"DMLC_ROLE", "worker"}}).not_a_worker);
}

}  // namespace
}  // namespace rabit::layer
