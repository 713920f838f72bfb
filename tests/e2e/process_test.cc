// Workers as processes that are killed and stopped.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "tests/e2e/cluster.h"
#include "tests/e2e/events.h"
#include "tests/e2e/process.h"
#include "tests/flipping_proxy.h"

namespace warren {
namespace {

using testing::Cluster;
using ::testing::HasSubstr;
using testing::Process;
using ::testing::StartsWith;

// `more`: arguments of all ranks; `last`: of the last one, after those.
std::vector<std::unique_ptr<Process>> start(Cluster& cluster, int size, int elements,
                                            const std::vector<std::string>& more = {}, const std::string& last = {}) {
  std::vector<std::unique_ptr<Process>> workers;
  for (int r = 0; r < size; r++) {
    std::vector<std::string> arguments{WARREN_LOOPER,     cluster.address(),    cluster.root_file(),
                                       std::to_string(r), std::to_string(size), std::to_string(elements)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    if (!last.empty() && r == size - 1) arguments.push_back(last);
    workers.push_back(std::make_unique<Process>(arguments));
  }
  for (int r = 0; r < size; r++) {
    EXPECT_EQ(workers[static_cast<std::size_t>(r)]->line(), "joined " + std::to_string(r));
  }
  return workers;
}

TEST(Processes, AKilledRankIsNamedByAllOthersAndTheJobGoesOnInNewLives) {
  for (const int elements : {1, 3000000}) {
    Cluster cluster;
    for (int life = 0; life < 2; life++) {
      auto workers = start(cluster, 4, elements);
      workers[2]->kill(SIGKILL);
      for (const std::size_t r : {0u, 1u, 3u}) {
        const std::string said = workers[r]->line();
        EXPECT_THAT(said, StartsWith("failed 5 "));
        EXPECT_THAT(said, HasSubstr("rank 2"));
      }
    }
  }
}

// The next descriptor that the worker opened was its standard error: its log's memory, into which its log lines went.
TEST(Processes, AWorkerWithoutStandardDescriptorsGivesTheirPlacesToNothingElse) {
  Cluster cluster;
  Process worker({"/bin/sh", "-c", "exec \"$@\" 0<&- 2<&-", "sh", WARREN_LOOPER, cluster.address(), cluster.root_file(),
                  "0", "1", "1000"});
  EXPECT_EQ(worker.line(), "joined 0");
  for (const char* descriptor : {"0", "2"}) {
    const std::filesystem::path link =
        std::filesystem::path("/proc") / std::to_string(worker.pid()) / "fd" / descriptor;
    EXPECT_EQ(std::filesystem::read_symlink(link), "/dev/null") << descriptor;
  }
}

// A child of its, which has a copy of every descriptor, does not keep its death from being seen: with heartbeats alone
// that would take longer than a test waits.
TEST(Processes, AKilledRankThatHasForkedIsSeenToBeDead) {
  Cluster cluster;
  auto workers = start(cluster, 2, 1000, {"600000"}, "forks");
  const std::string forked = workers[1]->line();
  ASSERT_THAT(forked, StartsWith("forked "));
  const pid_t child = std::atoi(forked.c_str() + std::string("forked ").size());
  workers[1]->kill(SIGKILL);
  const std::string said = workers[0]->line();
  EXPECT_EQ(::kill(child, 0), 0) << "it is still there";
  ::kill(child, SIGKILL);
  EXPECT_THAT(said, StartsWith("failed 5 "));
  EXPECT_THAT(said, HasSubstr("rank 1"));
}

// Lines of a file of the system's, such as /proc/net/unix.
std::vector<std::string> lines_of(const std::string& file_path) {
  std::ifstream file(file_path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

// Abstract names that sockets of this process have: those of its descriptors that /proc/net/unix names.
std::set<std::string> names_of(pid_t pid) {
  std::set<std::string> inodes, names;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/" + std::to_string(pid) + "/fd")) {
    std::error_code gone;
    const std::string to = std::filesystem::read_symlink(entry.path(), gone).string();
    if (to.starts_with("socket:[")) inodes.insert(to.substr(8, to.size() - 9));
  }
  for (const std::string& line : lines_of("/proc/net/unix")) {
    std::istringstream words(line);
    std::string number, count, protocol, flags, type, state, inode, path;
    if (words >> number >> count >> protocol >> flags >> type >> state >> inode >> path && inodes.contains(inode)) {
      names.insert(path);
    }
  }
  return names;
}

TEST(Processes, WhoIsKilledLeavesNoNames) {
  Cluster cluster;
  auto workers = start(cluster, 2, 300'000, {"1000", "logs"});
  std::set<std::string> names;
  for (const auto& worker : workers) {
    const std::set<std::string> mine = names_of(worker->pid());
    for (const char* of : {"@warren-link-", "@warren-segments-"}) {
      EXPECT_TRUE(std::ranges::any_of(mine, [&](const std::string& name) { return name.starts_with(of); })) << of;
    }
    names.insert(mine.begin(), mine.end());
    // All memory that it shares is such that has no name.
    bool shares = false;
    for (const std::string& line : lines_of("/proc/" + std::to_string(worker->pid()) + "/maps")) {
      EXPECT_EQ(line.find(" /dev/shm/"), std::string::npos) << line;
      shares = shares || line.find("/memfd:warren-log") != std::string::npos;
    }
    EXPECT_TRUE(shares);
  }
  for (const auto& worker : workers) worker->kill(SIGKILL);
  for (const auto& worker : workers) EXPECT_EQ(worker->wait(), 128 + SIGKILL);
  for (const std::string& line : lines_of("/proc/net/unix")) {
    EXPECT_FALSE(names.contains(line.substr(line.rfind(' ') + 1))) << line;
  }
}

// A dump of all that a host has logged takes long, and its process is not seen to be dead meanwhile.
TEST(Processes, LeaveWhatIsLoggedOutOfCoreDumps) {
  Cluster cluster;
  auto workers = start(cluster, 2, 300'000, {"1000", "logs"});
  for (const auto& worker : workers) {
    std::string name;
    std::multiset<std::string> left_out;
    for (const std::string& line : lines_of("/proc/" + std::to_string(worker->pid()) + "/smaps")) {
      if (const auto at = line.find("/memfd:"); at != std::string::npos) name = line.substr(at);
      if (!line.starts_with("VmFlags:")) continue;
      if (name.starts_with("/memfd:warren-log") || name.starts_with("/memfd:warren-link")) {
        EXPECT_NE(line.find(" dd"), std::string::npos) << name << " " << line;
        left_out.insert(name.substr(0, name.find(' ')));
      }
      name.clear();
    }
    EXPECT_EQ(left_out.count("/memfd:warren-log"), 2u) << "its own, and the other rank's";
  }
}

TEST(Processes, WhoseDiskIsFullNameItAndWhatFreesIt) {
  if (std::system("unshare -rm true 2>/dev/null") != 0) GTEST_SKIP() << "unshare makes no mount namespace here";
  Cluster cluster;
  const std::string disk = cluster.file("disk");
  std::filesystem::create_directory(disk);
  Process worker({"/bin/sh", "-c",
                  "exec unshare -rm /bin/sh -c 'mount -t tmpfs -o size=3M tmpfs " + disk +
                      " && exec " WARREN_LEAVER " " + cluster.address() + " " + cluster.root_file() + " 0 1 " + disk +
                      " full' 2>&1"});
  std::string line = worker.line();
  while (!line.empty() && line.find("stays in memory") == std::string::npos) line = worker.line();
  const std::string full =
      "the disk mounted at " + disk + ", where " + disk + "/parent lies, is full, or its quota is used up (";
  EXPECT_THAT(line, HasSubstr(full));
  EXPECT_THAT(line, HasSubstr(" bytes are free): remove files there"));
  EXPECT_THAT(line, HasSubstr("No space left on device"));
  // Whoever asks the tracker who waits hears it with the next heartbeat.
  std::string waits;
  const auto until = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (waits.find("takes no results") == std::string::npos && std::chrono::steady_clock::now() < until) {
    const auto seen = cluster.tracker().snapshot();
    ASSERT_TRUE(seen.ok());
    for (const tracker::JobStatus& job : seen.value()->jobs) {
      for (const std::string& wait : job.view.waits) waits += wait + "\n";
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_THAT(waits, HasSubstr("the disk of rank 0 on host "));
  EXPECT_THAT(waits, HasSubstr(" takes no results: " + full));
}

TEST(Processes, AStoppedRankIsNoticedFencedAndFindsOut) {
  Cluster cluster;
  auto workers = start(cluster, 3, 100000);
  workers[1]->kill(SIGSTOP);
  for (const std::size_t r : {0u, 2u}) {
    const std::string said = workers[r]->line();
    EXPECT_THAT(said, StartsWith("failed 5 "));
    EXPECT_THAT(said, HasSubstr("rank 1"));
  }
  // The others form the next generation while it sleeps; awake again it harms nobody.
  workers[0].reset();
  workers[2].reset();
  std::vector<std::unique_ptr<Process>> next = start(cluster, 3, 100000);
  workers[1]->kill(SIGCONT);
  EXPECT_THAT(workers[1]->line(), StartsWith("failed "));
  next[0]->kill(SIGKILL);
  EXPECT_THAT(next[1]->line(), HasSubstr("rank 0"));
}

// The tracker gives up who is silent for longer than the round timeout, also before it has a place: it joins again, in
// the same create().
TEST(Processes, AWorkerThatIsStoppedWhileItWaitsInCreateJoinsAgain) {
  for (const char* log : {"", "logs"}) {
    testing::Events events;
    Cluster cluster("127.0.0.1", false, events.sink());
    const auto looper = [&](const std::string& worker) {
      return std::vector<std::string>{
          WARREN_LOOPER, cluster.address(), cluster.root_file(), worker, "2", "1", "1000", log};
    };
    Process waiting(looper("1"));
    events.wait_for("job_created");
    waiting.kill(SIGSTOP);
    events.wait_for("worker_lost");
    waiting.kill(SIGCONT);
    Process other(looper("0"));
    EXPECT_EQ(other.line(), "joined 0");
    EXPECT_EQ(waiting.line(), "joined 1");
  }
}

TEST(Processes, AWorkerThatIsCutOffWhileItWaitsInCreateJoinsAgain) {
  testing::Events events;
  Cluster cluster("127.0.0.1", false, events.sink());
  FlippingProxy proxy(cluster.tracker().port());
  const auto looper = [&](const std::string& tracker, const std::string& worker) {
    return std::vector<std::string>{WARREN_LOOPER, tracker, cluster.root_file(), worker, "2", "1", "1000", "logs"};
  };
  Process waiting(looper("127.0.0.1:" + std::to_string(proxy.port()), "1"));
  events.wait_for("job_created");
  proxy.cut();
  events.wait_for("worker_lost");
  proxy.mend();
  Process other(looper(cluster.address(), "0"));
  EXPECT_EQ(other.line(), "joined 0");
  EXPECT_EQ(waiting.line(), "joined 1");
}

// RocksDB's static objects are destroyed by exit() before a program's older ones, and wait for threads that a child of
// a fork does not have.
TEST(Processes, ThatHaveALogOnDiskEndAsThoseWithoutOne) {
  // exit() ends threads that nobody joins, and a child of a fork makes new ones: ThreadSanitizer forbids both by
  // default.
  const char* given = std::getenv("TSAN_OPTIONS");
  const std::string options =
      "TSAN_OPTIONS=" + (given != nullptr ? std::string(given) + ":" : "") + "report_thread_leaks=0:die_after_fork=0";
  for (const std::string how : {"atexit", "checkpoint", "static", "exit", "global", "child", "child_job", "after"}) {
    SCOPED_TRACE(how);
    Cluster cluster;
    const bool fails = how == "exit" || how == "global";
    const int size = how == "atexit" || how == "checkpoint" || how == "static" || how == "child" ? 2 : 1;
    std::vector<std::unique_ptr<Process>> workers;
    for (int r = 0; r < size; r++) {
      workers.push_back(std::make_unique<Process>(
          std::vector<std::string>{WARREN_LEAVER, cluster.address(), cluster.root_file(), std::to_string(r),
                                   std::to_string(size), cluster.file("data"), how},
          std::vector<std::string>{options}));
    }
    for (const auto& worker : workers) {
      EXPECT_EQ(worker->line(), "");
      EXPECT_EQ(worker->wait(), fails ? 5 : 0);
    }
    // A finished job leaves nothing.
    if (!fails) {
      for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster.file("data"))) {
        EXPECT_EQ(entry.path().parent_path(), cluster.file("data")) << entry.path();
      }
    }
  }
}

std::vector<std::string> leaver(Cluster& cluster, const std::string& how) {
  return {WARREN_LEAVER, cluster.address(), cluster.root_file(), "0", "1", cluster.file("data"), how};
}

// As with a program's `multiprocessing` and system(): its variables say that it is the worker.
TEST(Processes, AChildOfAWorkerThatSaysToBeThatWorkerIsRefusedAndTheWorkerGoesOn) {
  Cluster cluster;
  Process worker(leaver(cluster, "spawns"));
  EXPECT_THAT(worker.line(), HasSubstr("would take the place of its parent: process " + std::to_string(worker.pid())));
  EXPECT_EQ(worker.line(), "");
  EXPECT_EQ(worker.wait(), 0);
}

TEST(Processes, AWorkerThatHasLeftBecomesItsNextLifeByExec) {
  Cluster cluster;
  Process worker(leaver(cluster, "replaces"));
  EXPECT_EQ(worker.line(), "");
  EXPECT_EQ(worker.wait(), 0);
}

// The program gets to none of them any more.
TEST(Processes, LogLinesThatWaitInAQueueWhenTheLibraryEndsTheProcessGoToStandardError) {
  Cluster cluster;
  std::vector<std::string> arguments = leaver(cluster, "drains");
  arguments.insert(arguments.begin(), {"/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"});
  Process worker(arguments);
  std::vector<std::string> lines;
  for (std::string line = worker.line(); !line.empty(); line = worker.line()) lines.push_back(line);
  EXPECT_EQ(worker.wait(), 75);
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines.front(), HasSubstr("info: warren 0.1.0: ")) << "what create() logs first";
  EXPECT_THAT(lines.back(), HasSubstr("this worker leaves job parent and ends with exit code 75"));
}

}  // namespace
}  // namespace warren
