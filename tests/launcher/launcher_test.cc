#include "launcher/launcher.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "launcher/last_lines.h"
#include "launcher/output.h"
#include "tests/full_pipe.h"
#include "worker/settings/settings.h"

namespace warren::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

// Runs a launch and collects what it writes.
struct Finished {
  Result<int> code;
  std::string output, error;
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> all;
    std::istringstream in(output);
    for (std::string line; std::getline(in, line);) all.push_back(line);
    return all;
  }
};

std::string read_all(int fd) {
  std::string out;
  std::array<char, 4096> bytes;
  ssize_t n;
  while ((n = read(fd, bytes.data(), bytes.size())) > 0) out.append(bytes.data(), static_cast<std::size_t>(n));
  return out;
}

Finished run(LaunchOptions options) {
  int out[2], err[2];
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err, O_CLOEXEC), 0);
  options.output_fd = out[1];
  options.error_fd = err[1];
  const LauncherSignals signals;
  std::string output, error;
  std::thread read_output([&] { output = read_all(out[0]); });
  std::thread read_error([&] { error = read_all(err[0]); });
  Result<int> code = launch(options, signals);
  close(out[1]);
  close(err[1]);
  read_output.join();
  read_error.join();
  close(out[0]);
  close(err[0]);
  return {std::move(code), std::move(output), std::move(error)};
}

// Runs a launch whose exit code is to be `code`. A failure names the caller's line.
Finished finished_with(int code, const LaunchOptions& options, int line = __builtin_LINE()) {
  const testing::ScopedTrace caller(__FILE__, line, "");
  Finished f = run(options);
  EXPECT_TRUE(f.code.ok()) << f.code.status().describe();
  if (f.code.ok()) {
    EXPECT_EQ(f.code.value(), code) << f.error;
  }
  return f;
}

LaunchOptions shell(std::uint32_t workers, const std::string& script) {
  LaunchOptions o;
  o.workers = workers;
  o.program = {"/bin/sh", "-c", script};
  o.first_backoff_ms = 1;
  return o;
}

LaunchOptions with_restarts(std::uint32_t restarts, LaunchOptions o) {
  o.restarts = restarts;
  return o;
}

LaunchOptions with_spares(std::uint32_t spares, LaunchOptions o) {
  o.spares = spares;
  return o;
}

// Pauses before each restart, for longer than a test takes.
void restarts_in_an_hour(LaunchOptions& o) {
  o.immediate_restarts = 0;
  o.first_backoff_ms = o.max_backoff_ms = 3'600'000;
}

std::ptrdiff_t count(const std::string& text, const std::string& word) {
  std::ptrdiff_t n = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
  return n;
}

TEST(LineSplitter, PrefixesWholeLines) {
  LineSplitter lines("[1] ");
  std::string out;
  lines.take("ab", out);
  EXPECT_EQ(out, "");
  lines.take("c\n\nd", out);
  EXPECT_EQ(out, "[1] abc\n[1] \n");
  lines.finish(out);
  EXPECT_EQ(out, "[1] abc\n[1] \n[1] d\n");
  lines.finish(out);
  EXPECT_EQ(out, "[1] abc\n[1] \n[1] d\n");
}

TEST(LineSplitter, ALineWithoutEndIsCut) {
  LineSplitter lines(">");
  std::string out;
  const std::string whole(LineSplitter::kMaxLineBytes, 'x');
  lines.take(whole, out);
  EXPECT_EQ(out, "");
  lines.take("y\n", out);
  EXPECT_EQ(out, ">" + whole + "\n>y\n");
}

TEST(OutputQueue, WritesOnlyWhatThePipeTakes) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  OutputQueue queue(ends[1]);
  std::string expected;
  for (int i = 0; queue.has_room(); ++i) queue.buffer() += "line " + std::to_string(i) + "\n";
  expected = queue.buffer();
  queue.write_some();  // returns although nobody reads
  EXPECT_FALSE(queue.empty());
  std::string got;
  std::array<char, 65536> bytes;
  while (got.size() < expected.size()) {
    const ssize_t n = read(ends[0], bytes.data(), bytes.size());
    ASSERT_GT(n, 0);
    got.append(bytes.data(), static_cast<std::size_t>(n));
    queue.write_some();
  }
  EXPECT_EQ(got, expected);
  EXPECT_TRUE(queue.empty());
  close(ends[0]);
  close(ends[1]);
}

TEST(OutputQueue, DropsWhatNobodyWillRead) {
  const LauncherSignals blocks_sigpipe;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  close(ends[0]);
  OutputQueue queue(ends[1]);
  queue.buffer() = "lost";
  queue.write_some();
  EXPECT_TRUE(queue.empty());
  close(ends[1]);
}

TEST(OtherLines, AreTakenOnceAndDroppedBeyondTheirRoom) {
  OtherLines lines;
  std::string out;
  EXPECT_EQ(lines.take(out), 0u);
  pollfd ready{.fd = lines.fd(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ready, 1, 0), 0);
  lines.add("one");
  lines.add(std::string(OtherLines::kRoomBytes, 'x'));
  lines.add("two");
  EXPECT_EQ(poll(&ready, 1, 0), 1);
  EXPECT_EQ(lines.take(out), 1u);
  EXPECT_EQ(out, "one\ntwo\n");
  EXPECT_EQ(poll(&ready, 1, 0), 0);
  EXPECT_EQ(lines.take(out), 0u);
  EXPECT_EQ(out, "one\ntwo\n");
}

TEST(OtherLines, GoToTheLaunchersErrorStream) {
  OtherLines lines;
  lines.add("before");
  lines.add(std::string(OtherLines::kRoomBytes, 'x'));
  LaunchOptions o = shell(1, "true");
  o.other_lines = &lines;
  const Finished f = run(o);
  EXPECT_TRUE(f.code.ok());
  EXPECT_THAT(f.error, StartsWith("before\n"));
  EXPECT_THAT(f.error, HasSubstr("lines_dropped: 1 lines"));
}

TEST(OtherLines, AreSaidBeforeALaunchFails) {
  OtherLines lines;
  lines.add("before");
  LaunchOptions o = shell(1, "");
  o.program = {"/no/such/program"};
  o.other_lines = &lines;
  const Finished f = run(o);
  EXPECT_FALSE(f.code.ok());
  EXPECT_EQ(f.error, "before\n");
}

TEST(Launch, EachWorkerKnowsWhoItIsAndIsMarked) {
  auto o = shell(3, "echo $WARREN_WORKER_ID/$WARREN_WORLD_SIZE/$WARREN_ATTEMPT/$EXTRA/$GONE; echo oops >&2");
  setenv("GONE", "still here", 1);
  o.variables = {{"EXTRA", "x"}, {"GONE", std::nullopt}};
  const Finished f = run(o);
  unsetenv("GONE");
  ASSERT_TRUE(f.code.ok()) << f.code.status().describe();
  EXPECT_EQ(f.code.value(), 0);
  EXPECT_THAT(f.lines(), UnorderedElementsAre("[0] 0/3/0/x/", "[1] 1/3/0/x/", "[2] 2/3/0/x/"));
  EXPECT_THAT(f.error, HasSubstr("[2] oops\n"));
}

TEST(Launch, StartsItsShareOfAJob) {
  auto o = shell(2,
                 "echo $WARREN_WORKER_ID/$WARREN_WORLD_SIZE/$WARREN_LOCAL_WORLD_SIZE/$WARREN_ATTEMPT; "
                 "[ $WARREN_WORKER_ID = 4 ] || [ $WARREN_ATTEMPT = 4 ] || exit 75");
  o.first_worker = 4;
  o.world_size = 8;
  o.first_attempt = 3;  // a scheduler has started this launcher before
  o.restarts = 1;
  const Finished f = finished_with(0, o);
  EXPECT_THAT(f.lines(), UnorderedElementsAre("[4] 4/8/2/3", "[5] 5/8/2/3", "[5] 5/8/2/4"));
  EXPECT_THAT(f.error,
              HasSubstr("worker 5 ended with exit code 75 (preempted); starting it again at once (restart 1 of 1"));
}

TEST(Launch, LinesAreNeverTorn) {
  const Finished f =
      run(shell(4, "i=0; while [ $i -lt 500 ]; do echo abcdefghij $i klmnopqrstuvwxyz; i=$((i+1)); done"));
  ASSERT_TRUE(f.code.ok());
  std::array<int, 4> next{};
  for (const std::string& line : f.lines()) {
    const auto worker = static_cast<std::size_t>(line.at(1) - '0');
    ASSERT_LT(worker, 4u) << line;
    ASSERT_EQ(line,
              "[" + std::to_string(worker) + "] abcdefghij " + std::to_string(next[worker]++) + " klmnopqrstuvwxyz");
  }
  EXPECT_THAT(next, testing::Each(500));
}

TEST(Launch, StandardInputIsEmptyAndPrefixesCanBeOff) {
  auto o = shell(1, "cat; echo done; printf 'no newline'");
  o.prefix = false;
  const Finished f = run(o);
  EXPECT_THAT(f.lines(), ElementsAre("done", "no newline"));
}

TEST(Launch, TheFirstFailureGivesTheExitCode) {
  // Worker 1 fails; the others would wait for ever and get SIGTERM.
  const Finished f = finished_with(7, shell(3, "if [ $WARREN_WORKER_ID = 1 ]; then exit 7; fi; exec sleep 1000"));
  EXPECT_THAT(f.error, HasSubstr("worker 1 ended with exit code 7; ending the others"));
}

TEST(Launch, ASignalGivesTheShellsExitCode) {
  const Finished f =
      finished_with(128 + SIGKILL, shell(2, "if [ $WARREN_WORKER_ID = 0 ]; then kill -9 $$; fi; exec sleep 1000"));
  EXPECT_THAT(f.error, HasSubstr("worker 0 was killed by signal 9"));
}

TEST(Launch, WorkersThatIgnoreTheEndAreKilled) {
  auto o =
      shell(2,
            "if [ $WARREN_WORKER_ID = 0 ]; then read x < $FIFO; exit 3; fi; trap '' TERM; echo x > $FIFO; while :; "
            "do sleep 1000; done");
  char folder[] = "/tmp/warren-launcher-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string fifo = std::string(folder) + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  o.variables["FIFO"] = fifo;
  o.grace_ms = 50;
  const Finished f = finished_with(3, o);
  EXPECT_THAT(f.error, HasSubstr("did not end within 50 ms; killing them"));
  unlink(fifo.c_str());
  rmdir(folder);
}

TEST(Launch, RestartsWithTheAttemptRaised) {
  auto o = shell(2, "echo attempt $WARREN_ATTEMPT; [ $WARREN_WORKER_ID = 0 ] || [ $WARREN_ATTEMPT = 2 ] || kill -9 $$");
  o.restarts = 2;
  const Finished f = finished_with(0, o);
  EXPECT_THAT(f.lines(), UnorderedElementsAre("[0] attempt 0", "[1] attempt 0", "[1] attempt 1", "[1] attempt 2"));
  EXPECT_THAT(f.error,
              HasSubstr("warren: worker_restarted: worker 1 was killed by signal 9 (Killed); starting it again "
                        "at once (restart 2 of 2, attempt 2)\n"));
}

TEST(Launch, EachWorkerMayHaveACoreOfItsOwn) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof allowed, &allowed), 0);
  const auto cores = static_cast<std::uint32_t>(CPU_COUNT(&allowed));
  auto o = shell(cores, "taskset -cp $$ | sed 's/.*: //'");
  o.bind_to_core = true;
  o.prefix = false;
  const Finished f = run(o);
  ASSERT_TRUE(f.code.ok()) << f.code.status().describe();
  std::vector<std::string> own;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &allowed)) own.push_back(std::to_string(cpu));
  }
  EXPECT_THAT(f.lines(), testing::UnorderedElementsAreArray(own));
  o.workers = cores + 1;
  EXPECT_EQ(run(o).code.status().describe(),
            "cannot give each of " + std::to_string(cores + 1) + " workers a core of its own: this process may use " +
                std::to_string(cores) + "; start fewer workers, or leave --bind_to_core out");
}

TEST(Launch, OneThatWasPreemptedIsLostToo) {
  const Finished f = finished_with(0, with_restarts(1, shell(1, "[ $WARREN_ATTEMPT = 1 ] || exit 75")));
  EXPECT_THAT(f.error, HasSubstr("worker_restarted: worker 0 ended with exit code 75 (preempted); starting it again"));
}

TEST(Launch, OneThatEndedAtAKillPointIsLostToo) {
  const Finished f = finished_with(0, with_restarts(1, shell(1, "[ $WARREN_ATTEMPT = 1 ] || exit 254")));
  EXPECT_THAT(f.error,
              HasSubstr("worker_restarted: worker 0 ended with exit code 254 (kill point); starting it again"));
}

TEST(Launch, AProgramsOwnFailureIsNotRepeatedUnlessAsked) {
  const Finished once = finished_with(9, with_restarts(3, shell(1, "echo $WARREN_ATTEMPT; exit 9")));
  EXPECT_THAT(once.lines(), ElementsAre("[0] 0"));
  EXPECT_THAT(once.error, HasSubstr("warren: worker_failed: worker 0 ended with exit code 9\n"));
}

TEST(Launch, AnErrorOfAPythonProgramIsNamedWithItsFileAndLine) {
  const std::string trace =
      "Traceback (most recent call last):\n"
      "  File \"/home/me/train.py\", line 31, in <module>\n    main()\n"
      "  File \"/home/me/my_model.py\", line 7, in main\n    numpy.ones(-1)\n    ^^^^^^^^^^^^^^\n"
      "  File \"/v/lib/python3.11/site-packages/numpy/core/numeric.py\", line 191, in ones\n    a = empty()\n"
      "ValueError: negative dimensions\n";
  auto o = shell(1, "printf '%s' \"$TRACE\" >&2; exit 1");
  o.variables["TRACE"] = trace;
  EXPECT_THAT(run(o).error, HasSubstr("warren: worker_failed: worker 0 ended with exit code 1 (ValueError: negative "
                                      "dimensions, at /home/me/my_model.py:7)\n"));
  // Of a program that has caught one and ended otherwise, too; but not of one that a signal has ended.
  auto killed = shell(1, "printf '%s' \"$TRACE\" >&2; kill -9 $$");
  killed.variables["TRACE"] = trace;
  EXPECT_THAT(run(killed).error, Not(HasSubstr("my_model.py:7)")));
}

TEST(Launch, TheLastLinesOfAWorkerThatFailedComeAgainUnderThoseOfOthers) {
  std::string folder = testing::TempDir() + "last_lines-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const std::string fifo = folder + "/ready";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string others = "trap 'echo farewell; exit 0' TERM; echo > " + fifo + "; sleep 1000 & wait";
  const std::string failing = "read ready < " + fifo + "; for i in $(seq 30); do echo line $i; done; exit 3";
  auto o = shell(2, "if [ $WARREN_WORKER_ID = 1 ]; then " + failing + "; else " + others + "; fi");
  const Finished f = finished_with(3, o);
  std::string expected;
  for (int i = 11; i <= 30; ++i) expected += "[1] line " + std::to_string(i) + "\n";
  EXPECT_THAT(f.error,
              testing::EndsWith("warren: last_lines: the output of the worker that failed ended with:\n" + expected));
  EXPECT_THAT(f.output, HasSubstr("[0] farewell"));
  std::filesystem::remove_all(folder);
}

TEST(Launch, LastLinesThatAreTheLastAnywayAreNotRepeated) {
  EXPECT_EQ(count(run(shell(1, "echo why; exit 3")).error, "last_lines"), 0);
  EXPECT_EQ(count(run(shell(2, "exit 3")).error, "last_lines"), 0);
}

TEST(LastLines, AreFewAndShort) {
  LastLines last("[7] ");
  for (int i = 0; i < 100; ++i) last.add("[7] a" + std::to_string(i) + "\n[7] " + std::string(100'000, 'b') + "\n");
  ASSERT_EQ(last.lines().size(), LastLines::kMostLines);
  EXPECT_EQ(last.lines().front(), "a90");
  EXPECT_LE(last.lines().back().size(), LastLines::kMostLineBytes + 3);
  EXPECT_THAT(last.text(), StartsWith("[7] a90\n[7] bbb"));
}

TEST(PythonErrorOf, ReadsTheNewestTraceback) {
  const auto of = [](const std::deque<std::string>& lines) {
    const auto error = python_error(lines);
    return error ? error->place + " | " + error->exception : "none";
  };
  EXPECT_EQ(of({}), "none");
  EXPECT_EQ(of({"all is well", "Error: of another kind"}), "none");
  // The beginning may be cut off, and frames may be repeated.
  EXPECT_EQ(of({"    f(n)", "  File \"r.py\", line 2, in f", "    f(n)", "  [Previous line repeated 990 more times]",
                "RecursionError: maximum recursion depth exceeded"}),
            "r.py:2 | RecursionError: maximum recursion depth exceeded");
  EXPECT_EQ(of({"  File \"a.py\", line 1, in <module>", "KeyError: 1", "",
                "During handling of the above exception, another exception occurred:", "",
                "Traceback (most recent call last):", "  File \"a.py\", line 3, in <module>", "SystemError"}),
            "a.py:3 | SystemError");
  EXPECT_EQ(of({"  File \"a.py\", line 3", "    x = = 1", "        ^", "SyntaxError: invalid syntax"}),
            "a.py:3 | SyntaxError: invalid syntax");
  EXPECT_EQ(of({"  File \"/v/site-packages/x.py\", line 3, in f"}), "/v/site-packages/x.py:3 | ");
  EXPECT_EQ(of({"  File \"a.py\", line 3 in f", "Fatal Python error"}), "none");  // of faulthandler
}

TEST(Launch, LostAndFailedCountTogether) {
  auto o = shell(1, "echo $WARREN_ATTEMPT; if [ $WARREN_ATTEMPT -lt 2 ]; then kill -9 $$; else exit 9; fi");
  o.restarts = 5;
  o.failure_restarts = 3;
  const Finished f = finished_with(9, o);
  EXPECT_THAT(f.lines(), ElementsAre("[0] 0", "[0] 1", "[0] 2", "[0] 3"));
}

// The program of each worker rolls back as often as it is told to, all of them in each of the first two lives.
TEST(Launch, ARollbackOfAllCountsOnce) {
  auto o = shell(4, "[ $WARREN_ATTEMPT = 2 ] || exit 77");
  o.restarts = 2;
  const Finished f = finished_with(0, o);
  EXPECT_THAT(f.error, HasSubstr("warren: job_rolled_back: rollback 1 of at most 2"));
  EXPECT_THAT(f.error, HasSubstr("warren: job_rolled_back: rollback 2 of at most 2"));
  EXPECT_EQ(count(f.error, "job_rolled_back"), 2);
  EXPECT_EQ(count(f.error, "worker_restarted"), 8);
  EXPECT_THAT(f.error, HasSubstr("worker 3 ended with exit code 77 (rolled back); starting it again at once "
                                 "(rollback 2, attempt 2)"));
}

TEST(Launch, RollbacksAreBounded) {
  const Finished f = finished_with(77, with_restarts(2, shell(1, "echo $WARREN_ATTEMPT; exit 77")));
  EXPECT_THAT(f.lines(), ElementsAre("[0] 0", "[0] 1", "[0] 2"));
  EXPECT_THAT(f.error, HasSubstr("and the job has used all of its 2 rollbacks"));
  finished_with(77, shell(1, "exit 77"));
}

TEST(Launch, ARollbackIsNoRestartOfAWorker) {
  // Worker 0 is rolled back in two lives and killed in two; each has a count of its own.
  finished_with(0, with_restarts(2, shell(1, "case $WARREN_ATTEMPT in 0|2) exit 77;; 1|3) kill -9 $$;; esac")));
}

TEST(Launch, PausesGrowWithShortLives) {
  auto o = shell(1, "[ $WARREN_ATTEMPT = 7 ] || kill -9 $$");
  o.restarts = 7;
  o.first_backoff_ms = 1;
  o.max_backoff_ms = 4;
  o.healthy_ms = 3'600'000;
  const Finished f = finished_with(0, o);
  const char* const when[] = {"at once", "at once", "at once", "in 1 ms", "in 2 ms", "in 4 ms", "in 4 ms"};
  for (int i = 0; i < 7; ++i) {
    EXPECT_THAT(f.error, HasSubstr("starting it again " + std::string(when[i]) + " (restart " + std::to_string(i + 1)));
  }
  o.healthy_ms = 0;  // each life was long enough
  const Finished healthy = run(o);
  EXPECT_EQ(count(healthy.error, "at once"), 7);
}

// A child that shows life (life_child.cc), and a FIFO at which one of them can wait for another.
LaunchOptions alive(std::uint32_t workers, const std::string& script) {
  LaunchOptions o = shell(workers, script);
  o.variables["CHILD"] = LIFE_CHILD;
  o.restarts = 1;
  o.hung_after_ms = 100;
  return o;
}

// Worker 0 does `deed`; worker 1 would wait for ever.
LaunchOptions beside_one_that_waits(const std::string& deed) {
  return alive(2, "if [ $WARREN_WORKER_ID = 0 ]; then exec $CHILD " + deed + "; fi; exec sleep 1000");
}

class Fifo {
 public:
  Fifo() {
    char name[] = "/tmp/warren-launcher-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    folder_ = name;
    EXPECT_EQ(mkfifo(path().c_str(), 0600), 0);
  }
  ~Fifo() {
    unlink(path().c_str());
    rmdir(folder_.c_str());
  }
  Fifo(const Fifo&) = delete;
  Fifo& operator=(const Fifo&) = delete;
  [[nodiscard]] std::string path() const { return folder_ + "/fifo"; }

 private:
  std::string folder_;
};

TEST(Launch, AWorkerThatWorkedIsStartedAgainAtOnce) {
  LaunchOptions o = alive(1, "exec $CHILD works");
  o.restarts = 5;
  o.healthy_ms = 3'600'000;
  const Finished f = finished_with(0, o);
  EXPECT_EQ(count(f.error, "at once"), 5) << f.error;
}

TEST(Launch, AnAbortBeforeTheFirstRoundIsTheProgramsOwnFailure) {
  const Finished f = finished_with(128 + SIGABRT, alive(1, "kill -ABRT $$"));
  EXPECT_EQ(count(f.error, "worker_restarted"), 0) << f.error;
  const Finished later = finished_with(0, alive(1, "exec $CHILD aborts"));
  EXPECT_EQ(count(later.error, "worker_restarted"), 1) << later.error;
}

// The others would wait for it for ever: it is not killed, and has not finished either.
TEST(Launch, AWorkerThatEndsWithoutFinalizeEndsTheJob) {
  const Finished f = finished_with(kExitDeserted, with_restarts(5, beside_one_that_waits("deserts")));
  EXPECT_THAT(f.error, HasSubstr("warren: worker_failed: worker 0 ended with exit code 0 without finalize, which a "
                                 "program calls at its end (in Python: with warren.init() as comm); ending the "
                                 "others\n"));
}

TEST(Launch, RanksThatDisagreeAreNotStartedAgain) {
  const Finished f = finished_with(128 + SIGABRT, with_restarts(5, beside_one_that_waits("disagrees")));
  EXPECT_EQ(count(f.error, "worker_restarted"), 0) << f.error;
  EXPECT_THAT(f.error, HasSubstr("worker 0 was killed by signal 6 (Aborted) after: rank 1 calls something else; ending "
                                 "the others\n"));
}

TEST(Launch, RanksThatDisagreeInTheSameRoundInTwoLivesAreNotStartedAThirdTime) {
  LaunchOptions o = beside_one_that_waits("disagrees_always");
  o.restarts = o.failure_restarts = 5;
  const Finished f = finished_with(128 + SIGABRT, o);
  EXPECT_EQ(count(f.error, "worker_restarted"), 1) << f.error;
  EXPECT_THAT(f.error,
              HasSubstr("after: round 0.7 on timeline 1: rank 1 calls something else; its life before ended at "
                        "the same place, and another one would; ending the others\n"));
}

// However its program takes it: the next life would fail at the same place.
TEST(Launch, AWorkerWhoseJobWasEndedByALimitIsNotStartedAgain) {
  const Finished f = finished_with(128 + SIGABRT, with_restarts(5, beside_one_that_waits("full")));
  EXPECT_EQ(count(f.error, "worker_restarted"), 0) << f.error;
  EXPECT_THAT(f.error,
              HasSubstr("worker 0 was killed by signal 6 (Aborted) after: the log is full; ending the others\n"));
}

TEST(LaunchHung, AStoppedOrStuckWorkerIsKilledAndStartedAgain) {
  for (const char* how : {"stop", "stuck"}) {
    SCOPED_TRACE(how);
    const Finished f = finished_with(0, alive(1, std::string("exec $CHILD ") + how));
    EXPECT_THAT(f.error, HasSubstr("warren: worker_killed_hung: worker 0 (process "));
    EXPECT_THAT(f.error, HasSubstr(") has shown no life for 100 ms; killing it\n"));
    EXPECT_THAT(f.error, HasSubstr("warren: worker_restarted: worker 0 hung and was killed; starting it again at once "
                                   "(restart 1 of 1, attempt 1)\n"));
  }
}

TEST(LaunchHung, AWorkerThatDumpsCoreIsDeadAndMayFinish) {
  char folder[] = "/tmp/warren-launcher-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  LaunchOptions o = alive(1, "exec $CHILD crashes");
  o.proc = folder;
  o.variables["PROC"] = o.proc;
  const Finished f = run(o);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(f.code.ok()) << f.code.status().describe();
  EXPECT_EQ(f.code.value(), 0) << f.error;
  EXPECT_EQ(count(f.error, "worker_killed_hung"), 0) << f.error;
  EXPECT_EQ(count(f.error, "warren: worker_dumps_core: worker 0 (process "), 1) << f.error;
  EXPECT_THAT(f.error, HasSubstr("worker 0 was killed by signal 11 (Segmentation fault); starting it again at once"));
}

// The round timeout that the program has set, whatever the launcher was told.
TEST(LaunchHung, AWorkerSaysHowLongItMayBeSilent) {
  LaunchOptions o = alive(1, "exec $CHILD soon");
  o.hung_after_ms = 3'600'000;
  const Finished f = finished_with(0, o);
  EXPECT_THAT(f.error, HasSubstr(") has shown no life for 150 ms; killing it\n"));
}

TEST(LaunchHung, WhatItStartedDoesNotHideIt) {
  // The worker is a child of the shell that the launcher started.
  const Finished f = finished_with(0, alive(1, "$CHILD stop || exit 5"));
  EXPECT_THAT(f.error, HasSubstr("worker_killed_hung"));
}

// Worker 0 waits, silent, until worker 1 has hung for the limit, was killed and came back.
TEST(LaunchHung, WhoIsInNoJobIsLeftAlone) {
  for (const char* how : {"never", "left", "beat"}) {
    SCOPED_TRACE(how);
    const Fifo fifo;
    auto o = alive(2, std::string("if [ $WARREN_WORKER_ID = 0 ]; then exec $CHILD ") + how + "; fi; exec $CHILD stuck");
    if (how == std::string("beat")) o.hung_after_ms = 1000;  // ample for one beat, however busy the machine is
    o.variables["FIFO"] = fifo.path();
    const Finished f = finished_with(0, o);
    EXPECT_EQ(count(f.error, "worker_killed_hung"), 1) << f.error;
    EXPECT_THAT(f.error, HasSubstr("worker 1 hung and was killed"));
  }
}

TEST(LaunchHung, WithoutARestartItEndsTheJob) {
  const Finished f = finished_with(128 + SIGKILL, with_restarts(0, beside_one_that_waits("stop")));
  EXPECT_THAT(f.error, HasSubstr("warren: worker_failed: worker 0 hung and was killed; ending the others\n"));
}

// Of the launcher's descriptors a worker has its own streams and the page on which it shows life: no other worker's
// page, no process descriptor, no socket of the guard's.
TEST(LaunchHung, WorkersInheritNothingElse) {
  auto o = alive(3, "exec ls -l /proc/self/fd");
  const Finished f = finished_with(0, o);
  EXPECT_EQ(count(f.output, "memfd:warren-life"), 3) << f.output;
  for (const char* what : {"anon_inode", "socket"}) EXPECT_EQ(count(f.output, what), 0) << f.output;
  o.hung_after_ms = 0;
  EXPECT_EQ(count(run(o).output, "memfd"), 0);
}

// One that its parent has blocked by mistake would not end a worker that it is passed on to.
TEST(LaunchSignals, WorkersStartWithNoneBlocked) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigaddset(&blocked, SIGCHLD);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &blocked, &before), 0);
  const Finished f = run(shell(1, "grep SigBlk /proc/self/status"));
  ASSERT_EQ(pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  EXPECT_THAT(f.output, HasSubstr("SigBlk:\t0000000000000000\n"));
}

TEST(Launch, RestartsAreBounded) {
  auto o = shell(1, "echo $WARREN_ATTEMPT; exit 9");
  o.failure_restarts = 3;  // and no restarts of a worker that was lost
  const Finished f = finished_with(9, o);
  EXPECT_THAT(f.lines(), ElementsAre("[0] 0", "[0] 1", "[0] 2", "[0] 3"));
  EXPECT_THAT(f.error, HasSubstr("has used all of its 3 restarts"));
}

// A failure that recurs by itself is never tried for ever.
TEST(Launch, FailuresOfTheProgramAreNotForgivenByALongLife) {
  auto o = shell(1, "exit 9");
  o.restarts = o.failure_restarts = 1;
  o.long_life_ms = 0;
  EXPECT_EQ(run(o).code.value(), 9);
}

TEST(Launch, AProgramThatIsNotThereIsSaid) {
  LaunchOptions o;
  o.workers = 2;
  o.program = {"/no/such/program"};
  const Finished f = run(o);
  ASSERT_FALSE(f.code.ok());
  EXPECT_EQ(f.code.status().code(), Code::kUnavailable);
  EXPECT_THAT(f.code.status().describe(), HasSubstr("cannot start '/no/such/program': No such file"));
  EXPECT_FALSE(run({}).code.ok());
}

// A launcher in a process of its own, so that it can be signalled and killed.
class LauncherProcess {
 public:
  // `ignored`: what it is started to ignore; nothing else of that kind is inherited from who runs the tests. `full`:
  // its output takes nothing until it is read.
  explicit LauncherProcess(LaunchOptions options, int ignored = 0, bool full = false) {
    EXPECT_EQ(pipe2(output_, O_CLOEXEC), 0);
    // The test's own reaper: what the launcher leaves behind becomes our child, and can be waited for.
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (full) fill(output_[1]);
    pid = fork();
    if (pid == 0) {
      prctl(PR_SET_CHILD_SUBREAPER, 0);
      for (const int signal : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal, signal == ignored ? SIG_IGN : SIG_DFL);
      options.output_fd = options.error_fd = output_[1];
      const LauncherSignals signals;
      const auto code = launch(options, signals);
      _exit(code.ok() ? code.value() : 99);
    }
    close(output_[1]);
  }
  ~LauncherProcess() {
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    close(output_[0]);
  }

  // Waits until the workers' output has `count` lines, and returns all that came.
  std::string wait_for_lines(std::ptrdiff_t count) {
    char c = 0;
    while (std::count(text_.begin(), text_.end(), '\n') < count && read(output_[0], &c, 1) == 1) text_ += c;
    return text_;
  }
  std::string rest() { return text_ + read_all(output_[0]); }
  int wait() {
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Waits for the end, which must have this exit code, and returns all output. A failure names the caller's line.
  std::string ends_with(int code, int line = __builtin_LINE()) {
    const testing::ScopedTrace caller(__FILE__, line, "");
    std::string text = rest();
    EXPECT_EQ(wait(), code) << text;
    return text;
  }

  pid_t pid;

 private:
  int output_[2];
  std::string text_;
};

int open_pidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

// Waits until the process is gone or a zombie of ours.
void wait_until_dead(pid_t pid) {
  const int fd = open_pidfd(pid);
  if (fd < 0) return;  // gone already
  pollfd ended{.fd = fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 60'000), 1) << "process " << pid << " is still alive";
  close(fd);
}

TEST(LaunchSignals, ArePassedOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2}) {
    const std::string name = signal == SIGINT    ? "INT"
                             : signal == SIGTERM ? "TERM"
                             : signal == SIGHUP  ? "HUP"
                             : signal == SIGUSR1 ? "USR1"
                                                 : "USR2";
    SCOPED_TRACE(name);
    // An end that was asked for is no success; SIGUSR1 and SIGUSR2 ask for nothing.
    const int code = signal == SIGUSR1 || signal == SIGUSR2 ? 0 : 4;
    auto o = shell(2, "trap 'echo got; exit " + std::to_string(code) + "' " + name +
                          "; echo ready; while :; do sleep 1000 & wait; done");
    o.restarts = o.failure_restarts = 5;
    LauncherProcess launcher(o);
    launcher.wait_for_lines(2);
    kill(launcher.pid, signal);
    const std::string text = launcher.ends_with(code);
    EXPECT_THAT(text, HasSubstr("[0] got"));
    EXPECT_THAT(text, HasSubstr("[1] got"));
  }
}

TEST(LaunchSignals, OneThatItWasStartedToIgnoreEndsNothing) {
  auto o = shell(1,
                 "[ $WARREN_ATTEMPT = 0 ] || exit 0; trap 'kill -9 $$' USR1; echo ready; "
                 "while :; do sleep 1000 & wait; done");
  o.restarts = 1;
  LauncherProcess launcher(o, SIGHUP);
  launcher.wait_for_lines(1);
  kill(launcher.pid, SIGHUP);
  kill(launcher.pid, SIGUSR1);  // is taken after it
  launcher.ends_with(0);
}

// They may wait for it for ever.
TEST(LaunchSignals, WhoIsLeftAfterOneHasFailedIsEnded) {
  auto o = shell(2,
                 "[ $WARREN_WORKER_ID = 0 ] && trap 'exit 5' INT || trap '' INT TERM; echo ready; "
                 "while :; do sleep 1000 & wait; done");
  o.grace_ms = 50;
  LauncherProcess launcher(o);
  launcher.wait_for_lines(2);
  kill(launcher.pid, SIGINT);
  const std::string text = launcher.ends_with(5);
  EXPECT_THAT(text, HasSubstr("worker_failed: worker 0 ended with exit code 5\n"));
  EXPECT_THAT(text, HasSubstr("still there 50 ms later; they get SIGTERM"));
  EXPECT_THAT(text, HasSubstr("did not end within 50 ms; killing them"));
}

TEST(LaunchSignals, WhoWaitsForOneThatIsNotStartedAgainIsEnded) {
  auto o = shell(2,
                 "[ $WARREN_WORKER_ID = 0 ] && { read x <$FIFO; kill -9 $$; }; trap '' HUP TERM; echo x >$FIFO; "
                 "while :; do sleep 1000 & wait; done");
  o.grace_ms = 50;
  o.restarts = 5;
  restarts_in_an_hour(o);
  const Fifo fifo;
  o.variables["FIFO"] = fifo.path();
  LauncherProcess launcher(o);
  EXPECT_THAT(launcher.wait_for_lines(1), HasSubstr("worker_restarted"));
  kill(launcher.pid, SIGHUP);
  const std::string text = launcher.ends_with(128 + SIGKILL);
  EXPECT_THAT(text, HasSubstr("they get SIGTERM"));
}

// It would take the place of the exit code.
TEST(LaunchSignals, OneThatComesAfterTheLaunchIsDropped) {
  const auto end = [] {
    {
      const LauncherSignals signals;
      kill(getpid(), SIGTERM);
    }
    _exit(7);
  };
  EXPECT_EXIT(end(), testing::ExitedWithCode(7), "");
}

TEST(LaunchSignals, ASecondInterruptKills) {
  LauncherProcess launcher(shell(1, "trap 'echo ignored' INT; echo ready; while :; do sleep 1000 & wait; done"));
  launcher.wait_for_lines(1);
  kill(launcher.pid, SIGINT);
  EXPECT_THAT(launcher.wait_for_lines(2), HasSubstr("[0] ignored"));
  kill(launcher.pid, SIGINT);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
}

// What two workers, each of which says a line first, and their launcher say once it gets SIGTERM: a drain.
std::string drained(const std::string& script) {
  LaunchOptions o = alive(2, script);
  o.hung_after_ms = 60'000;
  LauncherProcess launcher(o);
  launcher.wait_for_lines(2);
  kill(launcher.pid, SIGTERM);
  return launcher.ends_with(kExitPreempted);
}

TEST(LaunchSignals, WorkersThatShowLifeAreToldToDrain) {
  EXPECT_THAT(drained("exec $CHILD drains"),
              HasSubstr("workers_drain: 2 workers are told to leave between two rounds, within 10000 ms"));
}

// It would be the exit code of a job that a scheduler does not start again.
TEST(LaunchSignals, WhoWasInNoJobYetEndsADrainAsPreempted) {
  EXPECT_THAT(drained("[ $WARREN_WORKER_ID = 0 ] && exec $CHILD drains; echo ready; exec sleep 1000"),
              HasSubstr("workers_drain: 1 worker is told to leave"));
}

TEST(LaunchSignals, WhoDoesNotDrainGetsTheSignal) {
  LaunchOptions o = alive(1, "exec $CHILD deaf");
  o.hung_after_ms = 60'000;
  o.drain_ms = 100;
  LauncherProcess launcher(o);
  launcher.wait_for_lines(1);
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(launcher.wait(), kExitPreempted);
}

TEST(LaunchSignals, WhomOthersSignalFirstWasPreemptedToo) {
  LaunchOptions o = shell(1, "echo $$; exec sleep 1000");
  o.prefix = false;
  o.restarts = 5;
  restarts_in_an_hour(o);
  LauncherProcess launcher(o);
  kill(std::stoi(launcher.wait_for_lines(1)), SIGTERM);
  EXPECT_THAT(launcher.wait_for_lines(2), HasSubstr("worker_restarted"));
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(launcher.wait(), kExitPreempted);
}

// It would be the exit code of a job that a scheduler does not start again, and the launcher would have.
TEST(LaunchSignals, WhoWaitedToBeStartedAgainWasPreemptedToo) {
  for (const char* end : {"kill -9 $$", "exit 76", "exit 77", "exit 254"}) {
    LaunchOptions o = shell(1, end);
    o.restarts = 5;
    restarts_in_an_hour(o);
    LauncherProcess launcher(o);
    // A rollback is a line of its own.
    launcher.wait_for_lines(std::string(end) == "exit 77" ? 2 : 1);
    kill(launcher.pid, SIGTERM);
    EXPECT_EQ(launcher.wait(), kExitPreempted) << end;
  }
}

TEST(LaunchSignals, WhoIsLostInADrainWasPreemptedIfItWouldHaveBeenStartedAgain) {
  for (const bool again : {true, false}) {
    LaunchOptions o = shell(1, "trap 'kill -9 $$' TERM; echo ready; while :; do sleep 1000 & wait; done");
    o.restarts = again ? 5 : 0;
    LauncherProcess launcher(o);
    launcher.wait_for_lines(1);
    kill(launcher.pid, SIGTERM);
    EXPECT_EQ(launcher.wait(), again ? kExitPreempted : 128 + SIGKILL);
  }
}

TEST(LaunchSignals, WhatNobodyReadsIsGivenUpOnceAllHaveEnded) {
  const Fifo fifo;
  LaunchOptions o = shell(1, "echo unread; echo x >$FIFO; exec sleep 1000");
  o.variables["FIFO"] = fifo.path();
  o.grace_ms = 50;
  LauncherProcess launcher(o, 0, true);
  std::ifstream(fifo.path()).get();
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(launcher.wait(), kExitPreempted);
}

TEST(LaunchSignals, ASecondTermLeavesNoTime) {
  LaunchOptions o = alive(1, "exec $CHILD deaf");
  o.hung_after_ms = 60'000;
  o.drain_ms = 3'600'000;
  LauncherProcess launcher(o);
  launcher.wait_for_lines(1);
  kill(launcher.pid, SIGTERM);
  EXPECT_THAT(launcher.wait_for_lines(2), HasSubstr("within 3600000 ms"));
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(launcher.wait(), kExitPreempted);
}

// A program that takes itself away in worker 1's first life, once worker 0 has it open. Worker 0 lives until a later
// one comes.
class Vanishing {
 public:
  Vanishing() {
    std::ofstream(path_) << "#!/bin/sh\n"
                            "[ $WARREN_WORKER_ID = 0 ] && echo x >$FIFO && read x <$FIFO && exit 0\n"
                            "[ $WARREN_ATTEMPT = 0 ] && read x <$FIFO && mv $0 $0-away && kill -9 $$\n"
                            "echo x >$FIFO\n";
    EXPECT_EQ(chmod(path_.c_str(), 0700), 0);
  }
  ~Vanishing() {
    unlink(path_.c_str());
    unlink(away_.c_str());
  }
  Vanishing(const Vanishing&) = delete;
  Vanishing& operator=(const Vanishing&) = delete;
  [[nodiscard]] LaunchOptions options() const {
    LaunchOptions o;
    o.workers = 2;
    o.program = {path_};
    o.variables["FIFO"] = fifo_.path();
    o.immediate_restarts = 1;
    o.first_backoff_ms = o.max_backoff_ms = 1;
    return o;
  }
  void comes_back() const { EXPECT_EQ(rename(away_.c_str(), path_.c_str()), 0); }

 private:
  Fifo fifo_;
  std::string path_ = fifo_.path() + "-program", away_ = path_ + "-away";
};

TEST(LaunchRestarts, OneThatCannotBeStartedForAMomentIsALostLife) {
  const Vanishing program;
  LaunchOptions o = program.options();
  o.restarts = 1'000'000;
  LauncherProcess launcher(o);
  EXPECT_THAT(launcher.wait_for_lines(2),
              HasSubstr("worker 1 could not be started again (cannot start '" + o.program[0] +
                        "': No such file or directory); starting it again in 1 ms (restart 2 of 1000000, attempt 2)"));
  program.comes_back();
  launcher.ends_with(0);
}

TEST(LaunchRestarts, OneThatCannotBeStartedAnyMoreEndsTheJobAsALostOneDoes) {
  const Vanishing program;
  LaunchOptions o = program.options();
  o.restarts = 2;
  const std::string text = LauncherProcess(o).ends_with(127);
  EXPECT_THAT(text, HasSubstr("and has used all of its 2 restarts; ending the others"));
}

TEST(LaunchRestarts, ADrainCountsNowhere) {
  LaunchOptions o = alive(1, "exec $CHILD preempted");
  o.restarts = 0;
  const std::string text = LauncherProcess(o).ends_with(0);
  EXPECT_THAT(text, HasSubstr("its place was needed elsewhere, which counts as no restart, attempt 3"));
}

// A program that runs for weeks would otherwise end with the eleventh machine that is taken.
TEST(LaunchRestarts, LossesAndRollbacksAreCountedAnewAfterALongLife) {
  for (const char* script : {"exec $CHILD works", "[ $WARREN_ATTEMPT = 5 ] || exit 77"}) {
    auto o = alive(2, script);
    SCOPED_TRACE(script);
    o.long_life_ms = 0;  // each life was long enough
    const Finished f = finished_with(0, o);
    EXPECT_EQ(count(f.error, "starting it again"), 10);
    o.long_life_ms = 3'600'000;
    EXPECT_NE(run(o).code.value(), 0);
  }
}

// Lives without any work are not worth more for having been long: such a program would be tried for ever.
TEST(LaunchRestarts, ALongLifeInWhichNothingWasDoneIsNotForgiven) {
  auto o = shell(1, "kill -9 $$");
  o.restarts = 2;
  o.long_life_ms = 0;
  const Finished f = finished_with(128 + SIGKILL, o);
  EXPECT_EQ(count(f.error, "starting it again"), 2);
}

TEST(LaunchRestarts, WhomItsJobHasGivenUpIsLostAndNotFailed) {
  LaunchOptions o = shell(1, "[ $WARREN_ATTEMPT = 1 ] || exit 76");
  o.restarts = 1;
  o.failure_restarts = 0;
  const std::string text = LauncherProcess(o).ends_with(0);
  EXPECT_THAT(text,
              HasSubstr("ended with exit code 76 (for no fault of its program's); starting it again at once (restart 1 "
                        "of 1"));
}

// Such as on_rollback=error, where the program hears of it, and a GPU that fails.
TEST(LaunchRestarts, WhoIsNotToBlameForItsEndIsStartedAgainHoweverItEnds) {
  for (const char* how : {"fails", "aborts", "leaves"}) {
    SCOPED_TRACE(how);
    LaunchOptions o = alive(1, "exec $CHILD over");
    o.variables["HOW"] = how;
    o.restarts = 1;
    o.failure_restarts = 0;
    const std::string text = LauncherProcess(o).ends_with(0);
    EXPECT_THAT(text, HasSubstr("after: out of the job (for no fault of its program's); starting it again at once"));
  }
  LaunchOptions o = alive(1, "exec $CHILD blamed");
  o.restarts = 1;
  o.failure_restarts = 0;
  LauncherProcess(o).ends_with(5);
}

TEST(LaunchRestarts, AProgramThatHungOutsideOfCallsIsStartedAgain) {
  LaunchOptions o = shell(1, "[ $WARREN_ATTEMPT = 1 ] || exit 79");
  o.restarts = 1;
  o.failure_restarts = 0;
  const std::string text = LauncherProcess(o).ends_with(0);
  EXPECT_THAT(text, HasSubstr("ended with exit code 79 (its program hung outside of calls); starting it again"));
}

TEST(LaunchSpares, HaveTheIdsBeyondTheWorldAndEndWellWhereTheyAreNotNeeded) {
  LaunchOptions o = shell(2, "echo id $WARREN_WORKER_ID of $WARREN_WORLD_SIZE; [ $WARREN_WORKER_ID -lt 8 ] || exit 78");
  o.prefix = false;
  o.first_worker = 4;
  o.world_size = 8;
  o.spares = 2;
  const std::string text = LauncherProcess(o).ends_with(0);
  for (const char* line : {"id 4 of 8", "id 5 of 8", "id 12 of 8", "id 13 of 8"}) EXPECT_THAT(text, HasSubstr(line));
  o.spares = 1025;
  LauncherProcess too_many(o);
  EXPECT_NE(too_many.wait(), 0);
}

TEST(LaunchSpares, OneThatFailsIsGivenUpAlone) {
  const Finished f = finished_with(0, with_spares(1, shell(2, "[ $WARREN_WORKER_ID -lt 2 ] || exit 9")));
  EXPECT_THAT(f.error,
              HasSubstr("warren: spare_given_up: worker 2 ended with exit code 9; the job goes on without this "
                        "spare\n"));
  EXPECT_EQ(count(f.error, "worker_failed"), 0) << f.error;
}

TEST(LaunchSpares, OneThatIsLostIsStartedAgainSoOftenAndGivenUpAlone) {
  for (const char* end : {"kill -9 $$", "exit 76"}) {
    LaunchOptions o = with_spares(1, shell(1, std::string("[ $WARREN_WORKER_ID = 0 ] || ") + end));
    const Finished f = finished_with(0, with_restarts(2, o));
    EXPECT_EQ(count(f.error, "worker_restarted"), 2) << f.error;
    EXPECT_THAT(f.error, HasSubstr("restart 2 of 2 without a place, attempt 2)"));
    EXPECT_THAT(f.error,
                HasSubstr("has used all of its 2 restarts without a place; the job goes on without this spare"));
  }
}

// Whatever it was when it was started.
TEST(LaunchSpares, AWorkerThatLostItsPlaceIsGivenUpAlone) {
  const std::string waits = "if [ $WARREN_WORKER_ID = 0 ]; then exec $CHILD waits; fi";
  const Finished f = finished_with(0, with_spares(1, alive(2, waits)));
  EXPECT_THAT(f.error, HasSubstr("spare_given_up: worker 0 ended with exit code 5;"));
  // Also where it has not come so far as to hear that it has none.
  LaunchOptions again =
      shell(2, "if [ $WARREN_WORKER_ID = 0 ]; then [ $WARREN_ATTEMPT = 1 ] && exit 8; kill -9 $$; fi");
  const Finished g = finished_with(0, with_restarts(1, with_spares(1, again)));
  EXPECT_THAT(g.error, HasSubstr("spare_given_up: worker 0 ended with exit code 8;"));
}

// Its place was taken by a spare of another launcher.
TEST(LaunchSpares, AWorkerOfASharedJobThatWaitsIsGivenUpAlone) {
  LaunchOptions o = alive(2, "if [ $WARREN_WORKER_ID = 0 ]; then exec $CHILD waits; fi");
  o.world_size = 4;
  o.spares_elsewhere = true;
  const Finished f = finished_with(0, o);
  EXPECT_EQ(count(f.error, "spare_given_up"), 1) << f.error;
  o.workers = 1;
  EXPECT_EQ(run(o).code.value(), 5) << "nobody here was in the job";
}

TEST(LaunchSpares, AMembersFailureEndsTheJob) {
  const std::string fails = "[ $WARREN_WORKER_ID = 0 ] && exit 7; exec sleep 1000";
  const Finished first = finished_with(7, with_spares(1, shell(2, fails)));
  EXPECT_THAT(first.error, HasSubstr("worker_failed: worker 0 ended with exit code 7; ending the others"));
  // One that was started as a spare.
  const std::string member = "if [ $WARREN_WORKER_ID = 2 ]; then exec $CHILD member; fi; exec sleep 1000";
  const Finished spare = finished_with(6, with_spares(1, alive(2, member)));
  EXPECT_THAT(spare.error, HasSubstr("worker_failed: worker 2 ended with exit code 6; ending the others"));
}

TEST(LaunchSpares, WhereTooFewAreLeftTheJobEnds) {
  LaunchOptions o = shell(2,
                          "case $WARREN_WORKER_ID in 0) exec sleep 1000;; 1) [ $WARREN_ATTEMPT = 1 ] || kill -9 $$;; "
                          "esac; exit 9");
  const Finished f = finished_with(9, with_restarts(1, with_spares(2, o)));
  EXPECT_EQ(count(f.error, "spare_given_up"), 2) << f.error;
  EXPECT_EQ(count(f.error, "worker_failed"), 1) << f.error;
}

TEST(LaunchRestarts, WhomItsJobHasGivenUpWronglyCountsNowhereWhereThereAreSpares) {
  LaunchOptions o = alive(1, "[ $WARREN_WORKER_ID = 0 ] || exit 78; exec $CHILD fenced");
  const Finished f = finished_with(0, with_restarts(0, with_spares(1, o)));
  EXPECT_THAT(f.error, HasSubstr("a spare could take its place, which counts as no restart, attempt 3"));
}

TEST(LaunchShrink, WhoIsLostForGoodIsGivenUpAlone) {
  LaunchOptions o = shell(3, "[ $WARREN_WORKER_ID != 1 ] || kill -9 $$");
  o.min_workers = 2;
  o.restarts = 0;
  const Finished f = finished_with(0, o);
  EXPECT_THAT(f.error, HasSubstr("warren: worker_given_up: worker 1 was killed by signal 9 (Killed); the job goes on "
                                 "without it\n"));
  // A later life that was not heard to be in the job counts as one that waits.
  o.restarts = 1;
  const Finished again = finished_with(0, o);
  EXPECT_EQ(count(again.error, "worker_restarted"), 2) << again.error;
}

TEST(LaunchShrink, WhereTooFewAreLeftTheJobEnds) {
  LaunchOptions o = shell(3, "[ $WARREN_WORKER_ID = 0 ] && exec sleep 1000; kill -9 $$");
  o.min_workers = 2;
  o.restarts = 0;
  const Finished f = finished_with(128 + SIGKILL, o);
  EXPECT_EQ(count(f.error, "worker_given_up"), 1) << f.error;
  EXPECT_EQ(count(f.error, "worker_failed"), 1) << f.error;
  // Elsewhere there may be enough.
  LaunchOptions share = shell(2, "kill -9 $$");
  share.min_workers = 2;
  share.world_size = 4;
  share.restarts = 0;
  const Finished g = run(share);
  EXPECT_EQ(g.code.value(), 128 + SIGKILL) << "nobody here was in the job to its end";
  EXPECT_EQ(count(g.error, "worker_given_up"), 2) << g.error;
}

TEST(LaunchShrink, AProgramsOwnFailureEndsTheJob) {
  LaunchOptions o = shell(3, "[ $WARREN_WORKER_ID = 1 ] && exit 7; exec sleep 1000");
  o.min_workers = 1;
  const Finished f = finished_with(7, o);
  EXPECT_EQ(count(f.error, "worker_failed"), 1) << f.error;
}

TEST(LaunchShrink, WhomItsJobHasGoneOnWithoutIsStartedAgainAndNotCounted) {
  LaunchOptions o = alive(1, "exec $CHILD fenced");
  o.restarts = 0;
  o.min_workers = 1;
  const Finished f = finished_with(0, o);
  EXPECT_THAT(f.error, HasSubstr("the job could go on without it, which counts as no restart, attempt 3"));
}

TEST(LaunchRestarts, ADrainBeforeAnythingWasDoneCounts) {
  LaunchOptions o = alive(1, "exec $CHILD unwilling");
  o.restarts = 2;
  EXPECT_THAT(LauncherProcess(o).ends_with(kExitPreempted), HasSubstr("has used all of its 2 restarts"));
}

TEST(LaunchSignals, NothingIsRestartedAfterwards) {
  auto o = shell(1, "[ $WARREN_ATTEMPT = 0 ] || { echo again; exit 0; }; echo first; exit 5");
  o.failure_restarts = 5;
  restarts_in_an_hour(o);
  LauncherProcess launcher(o);
  EXPECT_THAT(launcher.wait_for_lines(2), HasSubstr("starting it again"));
  kill(launcher.pid, SIGTERM);
  EXPECT_EQ(launcher.wait(), 5);
}

// What workers started dies with them, and with the launcher even if that is killed.
TEST(LaunchOrphans, NoneSurvivesItsWorker) {
  LauncherProcess launcher(shell(1, "sleep 1000 & echo $!"));
  const std::string text = launcher.wait_for_lines(1);
  EXPECT_EQ(launcher.wait(), 0);
  wait_until_dead(std::stoi(text.substr(4)));
}

// As on Linux before 5.9.
TEST(LaunchOrphans, WithoutCloseRangeTheGuardEndsToo) {
  const pid_t pid = fork();
  if (pid == 0) {
    sock_filter steps[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program = {.len = std::size(steps), .filter = steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      _exit(77);
    }
    const LauncherSignals signals;
    const LaunchOptions options = shell(1, "exit 6");
    const auto code = launch(options, signals);
    _exit(code.ok() ? code.value() : 99);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFEXITED(status));
  ASSERT_NE(WEXITSTATUS(status), 77) << "the system takes no filter of calls";
  EXPECT_EQ(WEXITSTATUS(status), 6);
}

TEST(LaunchOrphans, NoneSurvivesAKilledLauncher) {
  LauncherProcess launcher(shell(2, "sleep 1000 & echo $$ $!; wait"));
  std::istringstream text(launcher.wait_for_lines(2));
  std::vector<pid_t> pids;
  for (std::string prefix; text >> prefix;) {
    pid_t worker = 0, started = 0;
    text >> worker >> started;
    pids.push_back(worker);
    pids.push_back(started);
  }
  ASSERT_EQ(pids.size(), 4u);
  kill(launcher.pid, SIGKILL);
  EXPECT_EQ(launcher.wait(), 128 + SIGKILL);
  for (const pid_t pid : pids) wait_until_dead(pid);
}

}  // namespace
}  // namespace warren::worker
