// Jobs that `warren run` starts. No sanitizer has them: the program `warren`, with all its commands and what tests kill
// with, would be a sixth of what is compiled there.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/events.h"
#include "tests/e2e/process.h"
#include "tests/flipping_proxy.h"

namespace warren {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using testing::Process;

constexpr int kRanks = 4;

std::string file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs a job whose buffers lie on the fake device by `warren run`, and returns what each of its workers wrote.
std::vector<std::string> run_processes(const std::string& folder, const std::string& arguments) {
  std::filesystem::create_directories(folder);
  const std::string command = "WARREN_DEVICE_LIBRARY=" WARREN_FAKE_DEVICE " " + std::string(WARREN_CLI) +
                              " run -n 4 --round_timeout_ms=5000 -- " + WARREN_DEVICE_WORKER + " " + arguments + " >" +
                              folder + "/log 2>&1";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << file_text(folder + "/log");
  std::vector<std::string> out;
  for (int worker = 0; worker < kRanks; worker++) out.push_back(file_text(folder + "/" + std::to_string(worker)));
  return out;
}

TEST(DeviceProcesses, AreKilledInARoundAndGiveTheBitsOfTheCpu) {
  const testing::TempDir folder;
  const std::string rounds = " 8 ";
  const auto expected = run_processes(folder / "cpu", "cpu" + rounds + (folder / "cpu") + " none none 0");
  for (const std::string& state : expected) {
    ASSERT_EQ(state.size(), 3'000 * sizeof(float));
    EXPECT_EQ(state, expected[0]);
  }
  const std::string whole = folder / "whole";
  EXPECT_EQ(run_processes(whole, "gpu" + rounds + whole + " none none 0"), expected);
  // The fourth and fifth while the buffers of a large allreduce move, the last ones at the second and first checkpoint.
  // Those of stream.convert: while the input of a large allreduce with a wire type is narrowed, while its result is
  // widened, and at one that does not move in pieces. The last ones in batches of several calls.
  for (const char* kill :
       {"2 stream.convert 1", "1 stream.convert 4", "3 stream.convert 8", "2 convert 7", "2 stream.to_host 17",
        "1 stream.to_device 22", "0 query 40", "2 stream.to_host 13", "1 stream.to_device 16", "3 stream.copy 1",
        "1 copy 0", "2 stream.pack 0", "0 stream.unpack 1", "3 unpack 2"}) {
    SCOPED_TRACE(kill);
    const std::string killed = folder / std::string(kill);
    std::string path = killed;
    std::replace(path.begin(), path.end(), ' ', '-');
    EXPECT_EQ(run_processes(path, "gpu" + rounds + path + " " + kill), expected);
    EXPECT_THAT(file_text(path + "/log"), HasSubstr("signal 9")) << "nobody was killed";
  }
}

// Calls that wait for each other end in an error that names them, and a program that only seems to stand still is left
// alone.
TEST(Deadlock, CallsThatCannotEndAreNamed) {
  const testing::TempDir folder;
  const auto run = [&](const std::string& how) {
    const std::string command = std::string(WARREN_CLI) + " run -n 2 --restarts=0 -- " + WARREN_CIRCLER + " " + how +
                                " >" + (folder / how) + " 2>&1";
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  };
  for (const std::string how : {"receives", "groups"}) {
    EXPECT_EQ(run(how), static_cast<int>(ErrorCode::desync)) << how << "\n" << file_text(folder / how);
    EXPECT_THAT(file_text(folder / how), HasSubstr("calls wait for each other in a circle and cannot end: rank 0"));
  }
  // The launcher does not know the process's modules.
  EXPECT_THAT(file_text(folder / "groups"), ContainsRegex("worker_failed: .* at circler\\+0x"));
  EXPECT_EQ(run("late"), 0) << file_text(folder / "late");
}

// Two workers whose results fill their logs several times.
struct Filled {
  int code = -1;
  std::string output, errors;
  [[nodiscard]] std::size_t count(const std::string& text) const {
    std::size_t n = 0;
    for (std::size_t at = 0; (at = errors.find(text, at)) != std::string::npos; ++at) ++n;
    return n;
  }
};
Filled fill(const std::string& flags, const std::string& arguments) {
  const testing::TempDir folder;
  const std::string command = std::string(WARREN_CLI) + " run -n 2 --prefix=false --log_memory_bytes=4M " + flags +
                              " -- " + WARREN_FILLER + " 60 65536 " + arguments + " >" + (folder / "out") + " 2>" +
                              (folder / "log");
  const int status = std::system(command.c_str());
  Filled f;
  if (WIFEXITED(status)) f.code = WEXITSTATUS(status);
  f.output = file_text(folder / "out");
  f.errors = file_text(folder / "log");
  return f;
}
// Of 60 steps with the last element of 65,536.
const std::string kEnds = "ends 5321812230\n";

TEST(FullLog, AProgramWithoutCheckpointsRunsToItsEndAndIsWarned) {
  const Filled f = fill("", "0 0");
  EXPECT_EQ(f.code, 0) << f.errors;
  EXPECT_EQ(f.output, "begins 0\nbegins 0\n" + kEnds + kEnds) << f.errors;
  EXPECT_EQ(f.count("'s log is half full after "), 2u) << f.errors;
  EXPECT_EQ(f.count("'s log is full, and gives up its oldest results (--log_full=suspend): "), 2u) << f.errors;
  EXPECT_EQ(f.count("worker_restarted"), 0u) << f.errors;
}

TEST(FullLog, ALossTakesAllBackToTheCheckpoint) {
  const Filled f = fill("", "10 50");
  EXPECT_EQ(f.code, 0) << f.errors;
  EXPECT_EQ(f.output, "begins 0\nbegins 0\nbegins 10\nbegins 10\n" + kEnds + kEnds) << f.errors;
  EXPECT_EQ(f.count("job_rolled_back"), 1u) << f.errors;
  EXPECT_THAT(f.errors, HasSubstr(", which a new life needs; all processes start again from version "));
}

TEST(FullLog, ALossBeforeTheLogIsFullUndoesNothing) {
  const Filled f = fill("", "10 12");
  EXPECT_EQ(f.code, 0) << f.errors;
  EXPECT_EQ(f.count("job_rolled_back"), 0u) << f.errors;
}

TEST(FullLog, ALossEndsAJobThatHasNoCheckpointAndNobodyIsStartedAgainForIt) {
  const Filled f = fill("", "0 50");
  EXPECT_NE(f.code, 0) << f.errors;
  EXPECT_THAT(f.errors, HasSubstr("no version is committed to which the job could go back; take checkpoints"));
  EXPECT_EQ(f.count("worker_restarted"), 1u) << "the one that was killed: " << f.errors;
}

TEST(FullLog, AnErrorByChoiceEndsTheJobOnce) {
  const Filled f = fill("--log_full=error", "0 0");
  EXPECT_NE(f.code, 0) << f.errors;
  EXPECT_THAT(f.errors, HasSubstr("a checkpoint is overdue, or --log_memory_bytes is too small"));
  EXPECT_EQ(f.count("worker_restarted"), 0u) << f.errors;
}

// The watchdog ends a program that others wait for outside of calls, says where it is, and its next life goes on.
TEST(Hang, AProgramOutsideOfCallsIsEndedByChoiceWithItsStackInTheLog) {
  const testing::TempDir folder;
  const std::string log = folder / "log";
  const std::string command =
      std::string(WARREN_CLI) + " run -n 2 --hang_timeout_ms=600 -- " + WARREN_CIRCLER + " hangs >" + log + " 2>&1";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << file_text(log);
  EXPECT_THAT(file_text(log), HasSubstr("worker 1 ended with exit code 79 after: the program has been outside"));
  EXPECT_THAT(file_text(log), HasSubstr("hang_timeout_ms allows 600"));
  EXPECT_THAT(file_text(log), HasSubstr("pause"));
}

// The launcher starts spares, and takes it for success that they were not needed.
TEST(Spares, TheLaunchersExitCodeIsThatOfTheRanks) {
  const testing::TempDir folder;
  std::ofstream(folder / "stop").put('!');
  const std::string drainer =
      std::string(WARREN_DRAINER) + " $WARREN_TRACKER $WARREN_SECRET_FILE $WARREN_WORKER_ID $WARREN_WORLD_SIZE ";
  Process launcher({WARREN_CLI, "run", "-n", "2", "--spares=2", "--job=drain", "--round_timeout_ms=3000",
                    "--prefix=false", "--", "/bin/sh", "-c", "exec " + drainer + (folder / "stop")});
  std::multiset<std::string> lines;
  for (int i = 0; i < 4; i++) lines.insert(launcher.line());
  EXPECT_EQ(lines, (std::multiset<std::string>{"done 1", "done 1", "joined 0 0", "joined 1 0"}));
  EXPECT_EQ(launcher.line(), "");
  EXPECT_EQ(launcher.wait(), 0);
}

// Two of four workers, in a job with a tracker elsewhere.
std::vector<std::string> half(const testing::Cluster& cluster, const std::string& tracker, int first,
                              const std::string& stop) {
  const std::string program = std::string("exec ") + WARREN_DRAINER + " " + tracker + " " + cluster.root_file() +
                              " $WARREN_WORKER_ID 4 " + stop;
  return {WARREN_CLI,
          "run",
          "-n",
          "2",
          "--first_worker=" + std::to_string(first),
          "--world_size=4",
          "--tracker=" + tracker,
          "--secret_file=" + cluster.root_file(),
          "--job=drain",
          "--round_timeout_ms=3000",
          "--",
          "/bin/sh",
          "-c",
          program};
}

// Of the others none knows enough, and the job begins anew: those that live are out of it, for no fault of theirs.
TEST(Launched, WhereTheJournalIsLostWithHalfOfTheWorkersTheOtherHalfBeginsAnew) {
  testing::Events events;
  testing::Cluster cluster("127.0.0.1", false, events.sink());
  const std::uint16_t port = cluster.tracker().port();
  Process stays(half(cluster, cluster.address(), 0, cluster.file("stop")));
  auto goes = std::make_unique<Process>(half(cluster, cluster.address(), 2, cluster.file("stop")));
  events.wait_for("committed");
  cluster.stop_tracker();
  goes.reset();
  cluster.lose_journal();
  cluster.start_tracker(port);
  events.wait_for("rebuild_failed");
  Process comes(half(cluster, cluster.address(), 2, cluster.file("stop")));
  events.wait_for_next("committed");
  std::ofstream(cluster.file("stop")).put('!');
  EXPECT_EQ(stays.wait(), 0);
  EXPECT_EQ(comes.wait(), 0);
}

TEST(Launched, WorkersThatAreCutOffWhileTheyWaitInCreateJoinAgain) {
  testing::Events events;
  testing::Cluster cluster("127.0.0.1", false, events.sink());
  FlippingProxy proxy(cluster.tracker().port());
  Process waits(half(cluster, "127.0.0.1:" + std::to_string(proxy.port()), 0, cluster.file("stop")));
  events.wait_for("job_created");
  proxy.cut();
  events.wait_for("worker_lost");
  proxy.mend();
  Process other(half(cluster, cluster.address(), 2, cluster.file("stop")));
  events.wait_for("committed");
  std::ofstream(cluster.file("stop")).put('!');
  EXPECT_EQ(waits.wait(), 0);
  EXPECT_EQ(other.wait(), 0);
}

// Whether each of these ports of the loopback is free.
bool are_free(int first, int last) {
  for (int port = first; port <= last; ++port) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_port = htons(static_cast<std::uint16_t>(port));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const bool free = bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0 && listen(fd, 1) == 0;
    close(fd);
    if (!free) return false;
  }
  return true;
}

// Each listens on two; one that is killed gives its own back to its next life.
TEST(Launched, ARangeOfTwoPortsAWorkerIsEnough) {
  const testing::TempDir folder;
  int first = 20'000 + getpid() % 1000 * 10;
  while (!are_free(first, first + 3)) first += 4;
  const std::string range = std::to_string(first) + ":" + std::to_string(first + 3);
  const auto run = [&](const std::string& workers, const std::string& program) {
    return std::vector<std::string>{
        WARREN_CLI,       "run", "-n",      workers, "--job=drain", "--port_range=" + range, "--round_timeout_ms=3000",
        "--prefix=false", "--",  "/bin/sh", "-c",    program};
  };
  const std::string drainer =
      std::string(WARREN_DRAINER) + " $WARREN_TRACKER $WARREN_SECRET_FILE $WARREN_WORKER_ID $WARREN_WORLD_SIZE ";
  Process launcher(run("2", "[ $WARREN_WORKER_ID = 0 ] || echo $$; exec " + drainer + (folder / "stop")));
  const pid_t killed = std::stoi(launcher.line());
  std::set<std::string> joined = {launcher.line(), launcher.line()};
  EXPECT_EQ(joined, (std::set<std::string>{"joined 0 0", "joined 1 0"}));
  for (int port = first; port < first + 4; ++port) EXPECT_FALSE(are_free(port, port)) << port;
  ::kill(killed, SIGKILL);
  EXPECT_NE(std::stoi(launcher.line()), killed);
  EXPECT_THAT(launcher.line(), HasSubstr("joined 1 "));
  // No more than the range has room for.
  Process third(run("1", "exec " + drainer + (folder / "stop")));
  EXPECT_THAT(third.line(), HasSubstr("all ports of the range " + range + " (port_range) are taken"));
  EXPECT_NE(third.wait(), 0);
  std::ofstream(folder / "stop").put('!');
  EXPECT_EQ(launcher.wait(), 0);
}

// `warren chaos` and `warren bench` on the fake device: what they find out with real GPUs is worth no more than they
// are.
nlohmann::json on_gpus(const std::string& folder, const std::string& variables, const std::string& arguments) {
  std::filesystem::create_directories(folder);
  const std::string command = "WARREN_DEVICE_LIBRARY=" WARREN_FAKE_DEVICE " " + variables + " " + WARREN_CLI + " " +
                              arguments + " --memory=gpu --json >" + folder + "/out 2>" + folder + "/log";
  const int status = std::system(command.c_str());
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << file_text(folder + "/log");
  const std::string output = file_text(folder + "/out");
  const auto line = output.find_last_of('\n', output.size() - 2) + 1;
  const auto report = nlohmann::json::parse(output.substr(output.size() < 2 ? 0 : line), nullptr, false);
  EXPECT_TRUE(report.is_object()) << output;
  return report.is_object() ? report : nlohmann::json::object();
}

TEST(OnGpus, FaultsStrikeCallsThatAreReducedThere) {
  const testing::TempDir folder;
  const auto report = on_gpus(folder / "loans", "",
                              "chaos --ranks=3 --hosts=1 --mix=large --round_bytes=5M --faults=kill:6 --seconds=6 "
                              "--round_timeout_ms=5000 --seed=11");
  EXPECT_EQ(report.value("memory", ""), "gpu");
  EXPECT_EQ(report.value("fault_count", 0), 6);
  EXPECT_GT(report.value("inputs_lent", 0), 0);
  EXPECT_GT(report.value("finals_from_gpus", 0), 0);
}

TEST(OnGpus, FaultsStrikeCallsWhoseBytesNcclMoves) {
  const testing::TempDir folder;
  const std::string trace = folder / "trace";
  const auto report = on_gpus(folder / "nccl", "WARREN_NCCL=1",
                              "chaos --ranks=2 --hosts=2 --mix=large --round_bytes=5M --faults=kill:3 --seconds=15 "
                              "--round_timeout_ms=5000 --seed=12 --timeline=" +
                                  trace);
  EXPECT_EQ(report.value("fault_count", 0), 3);
  EXPECT_GT(report.value("rounds_exchanged", 0), 0);
  EXPECT_THAT(file_text(trace), HasSubstr(" ms after the end of the generation that had one before"));
}

TEST(OnGpus, BenchChecksWhatComesFromThere) {
  const testing::TempDir folder;
  const auto cell = on_gpus(folder / "bench", "", "bench --ranks=2 --sizes=6M --iters=2 --warmup=200");
  EXPECT_EQ(cell.value("errors", -1), 0);
  EXPECT_EQ(cell.value("inputs_lent", 0), 2) << "all timed calls, and no other";
}

TEST(OnGpus, WithoutAGpuNothingIsStarted) {
  const testing::TempDir folder;
  for (const std::string command : {"chaos --seconds=1", "bench --ranks=2"}) {
    const std::string log = folder / "log";
    const int status = std::system(
        ("WARREN_DEVICE_LIBRARY=none " WARREN_CLI " " + command + " --memory=gpu >" + log + " 2>&1").c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
    EXPECT_THAT(file_text(log), HasSubstr("--memory=gpu"));
    EXPECT_THAT(file_text(log), HasSubstr("WARREN_DEVICE_LIBRARY is none"));
  }
}

}  // namespace
}  // namespace warren
