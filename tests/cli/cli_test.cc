// The program `warren`, as people and scripts meet it.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "storage/secret.h"
#include "tests/full_pipe.h"

namespace warren {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

std::string whole_file(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// What each thread of a process and of its descendants waits for, a line each.
std::string tell_waits(pid_t pid) {
  std::string out;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  std::error_code gone;
  for (const auto& task : std::filesystem::directory_iterator(tasks, gone)) {
    std::string stat = whole_file(task.path() / "stat"), system_call = whole_file(task.path() / "syscall");
    std::erase(system_call, '\n');
    out += stat.substr(0, 40) + " waits in " + whole_file(task.path() / "wchan") + ", call " + system_call + "\n";
    std::istringstream children(whole_file(task.path() / "children"));
    for (pid_t child = 0; children >> child;) out += tell_waits(child);
  }
  return out;
}

// `warren` with arguments, its two outputs in one stream unless told apart. `ignored`: the signal that it is started to
// ignore; nothing else of that kind is inherited from who runs the tests. `errors_full`: the pipe to which its standard
// error goes takes nothing until it is read.
class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {},
                   int ignored = 0, bool errors_full = false) {
    EXPECT_EQ(pipe2(out_, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err_, O_CLOEXEC), 0);
    std::vector<std::string> words = {WARREN_PROGRAM};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<std::string> environment = {"PATH=/usr/bin:/bin", "HOME=/tmp"};
    environment.insert(environment.end(), variables.begin(), variables.end());
    std::vector<char*> argv, envp;
    for (std::string& w : words) argv.push_back(w.data());
    for (std::string& e : environment) envp.push_back(e.data());
    argv.push_back(nullptr);
    envp.push_back(nullptr);
    if (errors_full) fill(err_[1]);
    pid_ = fork();
    if (pid_ == 0) {
      for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGCHLD})
        std::signal(signal, signal == ignored ? SIG_IGN : SIG_DFL);
      dup2(out_[1], 1);
      dup2(err_[1], 2);
      execve(WARREN_PROGRAM, argv.data(), envp.data());
      _exit(126);
    }
    close(out_[1]);
    close(err_[1]);
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    close(out_[0]);
    close(err_[0]);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Reads until the standard error (or, with `output`, the standard output) contains `text`; fails after a minute.
  std::string wait_for(const std::string& text, bool output = false) {
    std::string& so_far = output ? output_ : error_;
    while (so_far.find(text) == std::string::npos) {
      if (!read_more(60'000)) {
        ADD_FAILURE() << "never said '" << text << "':\n" << output_ << error_;
        break;
      }
    }
    return so_far;
  }
  // From here on wait_for() and wait() read no standard error, or do again.
  void read_errors(bool read) { err_open_ = read; }
  void signal(int number) const { kill(pid_, number); }
  [[nodiscard]] pid_t pid() const { return pid_; }

  // Waits for the end; the exit code, or 128 + signal. Who does not end within three minutes is killed, and what it and
  // those that it started wait for is told.
  int wait() {
    using Clock = std::chrono::steady_clock;
    const auto until = Clock::now() + std::chrono::minutes(3);
    const auto left_ms = [&] {
      return static_cast<int>(std::max<std::int64_t>(
          0, std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count()));
    };
    while (left_ms() > 0 && read_more(left_ms())) {
    }
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
    pollfd ended{.fd = fd, .events = POLLIN, .revents = 0};
    if (poll(&ended, 1, left_ms()) != 1) {
      ADD_FAILURE() << "does not end:\n" << tell_waits(pid_) << output_ << error_;
      kill(pid_, SIGKILL);
    }
    close(fd);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  [[nodiscard]] const std::string& output() const { return output_; }
  [[nodiscard]] const std::string& error() const { return error_; }

 private:
  // False: both streams have ended, or nothing came in time.
  bool read_more(int patience_ms) {
    std::array<pollfd, 2> fds = {{{out_open_ ? out_[0] : -1, POLLIN, 0}, {err_open_ ? err_[0] : -1, POLLIN, 0}}};
    if ((!out_open_ && !err_open_) || poll(fds.data(), fds.size(), patience_ms) <= 0) return false;
    std::array<char, 4096> bytes;
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      const ssize_t n = read(fds[i].fd, bytes.data(), bytes.size());
      if (n > 0) (i == 0 ? output_ : error_).append(bytes.data(), static_cast<std::size_t>(n));
      if (n <= 0) (i == 0 ? out_open_ : err_open_) = false;
    }
    return true;
  }

  pid_t pid_;
  int out_[2], err_[2];
  bool out_open_ = true, err_open_ = true;
  std::string output_, error_;
};

struct Ended {
  int code;
  std::string output, error;
};
Ended warren(const std::vector<std::string>& arguments, const std::vector<std::string>& variables = {}) {
  Program p(arguments, variables);
  const int code = p.wait();
  return {code, p.output(), p.error()};
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    char name[] = "/tmp/warren-cli-XXXXXX";
    EXPECT_NE(mkdtemp(name), nullptr);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void wait_until_dead(pid_t pid) {
  const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (fd < 0) return;
  pollfd ended{.fd = fd, .events = POLLIN, .revents = 0};
  EXPECT_EQ(poll(&ended, 1, 60'000), 1) << "process " << pid << " is still alive";
  close(fd);
}

// What stands between `before` and the next of `ends`.
std::string between(const std::string& text, const std::string& before, const std::string& ends) {
  const std::size_t begin = text.find(before);
  if (begin == std::string::npos) return {};
  const std::size_t from = begin + before.size();
  return text.substr(from, text.find_first_of(ends, from) - from);
}

TEST(Help, IsThereForEverything) {
  const Ended alone = warren({});
  EXPECT_EQ(alone.code, 0);
  EXPECT_THAT(alone.output, HasSubstr("WARREN_* variables"));
  EXPECT_EQ(warren({"help"}).output, alone.output);
  EXPECT_EQ(warren({"--help"}).output, alone.output);
  for (const char* command : {"run", "tracker", "status", "forget", "doctor", "settings", "keygen", "bench"}) {
    EXPECT_THAT(alone.output, HasSubstr(std::string("\n  ") + command + " "));
    const Ended page = warren({"help", command});
    EXPECT_EQ(page.code, 0);
    EXPECT_THAT(page.output, StartsWith(std::string("warren ") + command + ": "));
    EXPECT_EQ(warren({command, "--help"}).output, page.output);
  }
  EXPECT_THAT(warren({"--version"}).output, testing::MatchesRegex("warren [0-9]+\\.[0-9]+\\.[0-9]+\n"));
}

TEST(Help, ShowsOnlyTheCommandsOwnFlags) {
  const std::string page = warren({"help", "keygen"}).output;
  EXPECT_THAT(page, HasSubstr("--out=TEXT"));
  for (const char* other : {"--port", "--logtostderr", "--flagfile", "--ranks"})
    EXPECT_THAT(page, Not(HasSubstr(other)));
}

// cron and some supervisors leave it so: every failure counted as success, and nobody was started again.
TEST(Run, KnowsHowItsWorkersEndWhereItWasStartedToIgnoreThat) {
  Program failed({"run", "-n", "2", "--", "/bin/sh", "-c", "exit 3"}, {}, SIGCHLD);
  EXPECT_EQ(failed.wait(), 3) << failed.error();
  Program killed({"run", "-n", "1", "--restarts=1", "--", "/bin/sh", "-c", "[ $WARREN_ATTEMPT = 1 ] || kill -9 $$"}, {},
                 SIGCHLD);
  EXPECT_EQ(killed.wait(), 0) << killed.error();
  EXPECT_THAT(killed.error(), HasSubstr("worker_restarted"));
}

TEST(Usage, WhatIsWrongIsNamedWithTheNearestMatch) {
  struct Case {
    std::vector<std::string> arguments;
    std::string says;
  };
  const Case cases[] = {
      {{"stauts"}, "there is no command 'stauts'; did you mean status?"},
      {{"help", "nothing"}, "there is no command 'nothing'"},
      {{"run", "--restart=1", "true"}, "there is no flag --restart; did you mean --restarts?"},
      {{"run", "-n", "x", "true"}, "-n cannot be 'x'"},
      {{"run", "-n"}, "-n needs a value"},
      {{"run", "-n", "2"}, "give the program to run"},
      {{"run", "true"}, "give the number of workers"},
      {{"run", "-n", "16385", "true"}, "from 1 to 16384"},
      {{"run", "-n", "1", "--restarts=-1", "true"}, "--restarts is '-1': not a whole number from 0"},
      {{"status", "now"}, "it takes no word 'now'"},
      {{"status", "--http=a:b:c"}, "too many colons"},
      {{"doctor", "--port=70000"}, "--port is 70000"},
      {{"tracker", "--port=-2"}, "--port is -2"},
      {{"tracker", "--secret_file=x"}, "give --data_dir"},
      {{"tracker", "--data_dir=x"}, "give either --secret_file"},
      {{"tracker", "--logtostderr"}, "there is no flag --logtostderr"},
      {{"keygen"}, "give --out"},
      {{"forget"}, "give --job"},
      {{"forget", "--job=-x"}, "job '-x' starts with"},
      {{"forget", "--job=j"}, "give --tracker"},
      {{"forget", "--job=j", "--tracker=t"}, "give --secret_file"},
      {{"keygen", "--out=x", "--job=j"}, "--job and --from belong together"},
      {{"bench", "--collective=allreduces"}, "did you mean allreduce?"},
      {{"bench", "--sizes=4,x"}, "a size in --sizes is 'x'"},
      {{"bench", "--sizes=1M..1K"}, "it must rise"},
      {{"bench", "--iters=0"}, "--iters goes from 1"},
      {{"bench", "--nocheck=1"}, "--nocheck takes no value"},
  };
  for (const Case& c : cases) {
    const Ended e = warren(c.arguments);
    EXPECT_EQ(e.code, 2) << c.says;
    EXPECT_THAT(e.error, HasSubstr(c.says));
    EXPECT_THAT(e.error, HasSubstr("`warren help"));
    EXPECT_THAT(e.output, IsEmpty());
  }
}

// Before anything is started, and without a tracker that answers.
TEST(Run, ASecretOfAnotherJobIsRefusedBeforeWorkersAreStarted) {
  const TemporaryFolder folder;
  const std::string root = folder / "root", job = folder / "job", ran = folder / "ran";
  ASSERT_EQ(warren({"keygen", "--out", root}).code, 0);
  ASSERT_EQ(warren({"keygen", "--job=digits", "--from=" + root, "--out=" + job}).code, 0);
  const auto run = [&](const std::string& name, const std::string& file) {
    return warren(
        {"run", "-n", "1", "--tracker=127.0.0.1:1", "--job=" + name, "--secret_file=" + file, "--", "touch", ran});
  };
  const Ended other = run("letters", job);
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.error, HasSubstr("no worker could join job letters with " + job));
  EXPECT_THAT(other.error, HasSubstr("the secret file is that of job digits"));
  EXPECT_FALSE(std::filesystem::exists(ran));
  // What may be right is for the workers to find out.
  for (const std::string& file : {job, root}) {
    EXPECT_EQ(run("digits", file).code, 0);
    EXPECT_TRUE(std::filesystem::remove(ran)) << file;
  }
}

TEST(Keygen, MakesATrackersSecretAndAJobsFromIt) {
  const TemporaryFolder folder;
  const std::string root = folder / "root", job = folder / "job";
  const Ended first = warren({"keygen", "--out", root});
  ASSERT_EQ(first.code, 0) << first.error;
  struct stat info {};
  ASSERT_EQ(stat(root.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto secret = storage::Secret::load(root);
  ASSERT_TRUE(secret.ok());
  EXPECT_TRUE(secret.value().is_root());

  ASSERT_EQ(warren({"keygen", "--job=digits", "--from=" + root, "--out=" + job}).code, 0);
  const auto of_job = storage::Secret::load(job);
  ASSERT_TRUE(of_job.ok());
  EXPECT_TRUE(of_job.value().for_job("digits").ok());
  EXPECT_FALSE(of_job.value().for_job("others").ok());

  const Ended again = warren({"keygen", "--out", root});
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.error, HasSubstr(root));
  const Ended from_job = warren({"keygen", "--job=x", "--from=" + job, "--out=" + (folder / "x")});
  EXPECT_EQ(from_job.code, 1);
  EXPECT_THAT(from_job.error, HasSubstr("is the secret of one job"));
  EXPECT_THAT(first.output, Not(HasSubstr("key ")));
}

TEST(Run, WorkersGetWhatTheyNeedAndLeaveNothing) {
  const TemporaryFolder folder;
  const Ended e =
      warren({"run", "-n", "2", "--job=digits", "--streams=3", "sh", "-c",
              "echo $WARREN_WORKER_ID $WARREN_WORLD_SIZE $WARREN_JOB $WARREN_STREAMS $WARREN_ATTEMPT; "
              "stat -c %a $WARREN_SECRET_FILE; head -2 $WARREN_SECRET_FILE | tail -1; echo $WARREN_TRACKER"},
             {"TMPDIR=" + folder.path(), "WARREN_INSECURE_NO_AUTH=", "WARREN_STREAMS=2"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_THAT(e.output, HasSubstr("[0] 0 2 digits 3 0\n"));
  EXPECT_THAT(e.output, HasSubstr("[1] 1 2 digits 3 0\n"));
  EXPECT_THAT(e.output, HasSubstr("[1] 600\n"));
  EXPECT_THAT(e.output, HasSubstr("[0] job digits\n"));  // the job's secret, not the tracker's
  EXPECT_THAT(e.output, HasSubstr("[0] 127.0.0.1:"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Run, LaunchersShareAJob) {
  const std::vector<std::string> share = {"run", "-n", "2", "--first_worker=4", "--world_size=6"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), share.begin(), share.end());
    return more;
  };
  const std::vector<std::string> elsewhere = {"--tracker=127.0.0.1:1", "--insecure_no_auth", "sh", "-c",
                                              "echo $WARREN_WORKER_ID $WARREN_WORLD_SIZE $WARREN_ATTEMPT"};
  // What a scheduler that started the launcher again has told it holds for its workers.
  const Ended good = warren(with(elsewhere), {"SLURM_JOB_ID=7", "SLURM_RESTART_COUNT=2"});
  EXPECT_EQ(good.code, 0) << good.error;
  EXPECT_THAT(good.output, HasSubstr("[4] 4 6 2\n"));
  EXPECT_THAT(good.output, HasSubstr("[5] 5 6 2\n"));

  const Ended alone = warren(with({"sh", "-c", "echo started"}));
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.error, HasSubstr("--world_size is for a running tracker"));
  EXPECT_THAT(alone.output, IsEmpty());
  for (const char* world_size : {"--world_size=5", "--world_size=4", "--world_size=3", "--world_size=4294967295"}) {
    std::vector<std::string> wrong = with(elsewhere);
    wrong[4] = world_size;
    const Ended e = warren(wrong);
    EXPECT_EQ(e.code, 2) << world_size;
    EXPECT_THAT(e.error, HasSubstr("--world_size")) << world_size;
  }
}

TEST(Run, ANumberOfSparesThatIsNoneIsRefused) {
  for (const char* spares : {"--spares=-5", "--spares=-2", "--spares=1025"}) {
    const Ended e = warren({"run", "-n", "1", spares, "--", "sh", "-c", "echo started"});
    EXPECT_EQ(e.code, 2) << spares;
    EXPECT_THAT(e.error, HasSubstr(std::string(spares + 2).replace(6, 1, " is "))) << spares;
    EXPECT_THAT(e.output, IsEmpty()) << spares;
  }
  const Ended chaos = warren({"chaos", "--spares=-5", "--seconds=1"});
  EXPECT_EQ(chaos.code, 2);
  EXPECT_THAT(chaos.error, HasSubstr("--spares is 0"));
}

// They wait on machines that have no workers yet.
TEST(Run, ALauncherMayStartSparesAlone) {
  const std::vector<std::string> program = {"--", "sh", "-c",
                                            "echo $WARREN_WORKER_ID of $WARREN_WORLD_SIZE, spares $WARREN_SPARES"};
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), program.begin(), program.end());
    return warren(arguments);
  };
  const std::vector<std::string> elsewhere = {"-n", "0", "--tracker=127.0.0.1:1", "--insecure_no_auth"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), elsewhere.begin(), elsewhere.end());
    return run(more);
  };
  // Numbers that no launcher with workers gives to its spares.
  const Ended good = with({"--spares=2", "--world_size=3"});
  EXPECT_EQ(good.code, 0) << good.error;
  EXPECT_THAT(good.output, AllOf(HasSubstr("[6] 6 of 3, spares 2\n"), HasSubstr("[7] 7 of 3, spares 2\n")));
  const Ended second = with({"--spares=1", "--world_size=3", "--first_worker=5"});
  EXPECT_THAT(second.output, HasSubstr("[8] 8 of 3, spares 1\n")) << second.error;
  EXPECT_THAT(with({"--spares=1"}).error, HasSubstr("give --world_size, or --max_workers"));
  EXPECT_THAT(with({"--world_size=3"}).error, HasSubstr("give the number of --spares"));
  const Ended alone = run({"-n", "0", "--spares=2", "--world_size=3"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.error, HasSubstr("name its running tracker by --tracker"));
}

// However the launcher was told that the job has them.
TEST(Run, SparesElsewhereLetOneWithoutAPlaceFailAlone) {
  const TemporaryFolder folder;
  const std::string file = folder / "warren.conf";
  std::ofstream(file) << "spares = 1\n";
  const std::vector<std::string> arguments = {
      "run", "-n", "1", "--world_size=2", "--tracker=127.0.0.1:1", "--insecure_no_auth", LIFE_CHILD, "waits"};
  for (const std::string& variable : {std::string("WARREN_SPARES=1"), "WARREN_CONFIG=" + file}) {
    EXPECT_THAT(warren(arguments, {variable}).error, HasSubstr("spare_given_up: worker 0")) << variable;
  }
  EXPECT_THAT(warren(arguments).error, HasSubstr("worker_failed: worker 0"));
}

TEST(Run, TheExitCodeIsTheProgramsOwn) {
  EXPECT_EQ(warren({"run", "-n2=", "x"}).code, 2);
  EXPECT_EQ(warren({"run", "-n", "2", "--", "sh", "-c", "exit 42"}).code, 42);
  EXPECT_EQ(warren({"run", "-n", "1", "--restarts=0", "sh", "-c", "kill -SEGV $$"}).code, 128 + SIGSEGV);
  const Ended missing = warren({"run", "-n", "1", "no-such-program"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.error, HasSubstr("cannot start 'no-such-program': No such file"));
}

TEST(Run, WorkersShareTheCoresAndPythonIsSetForRestartsUnlessTheUserSaysSo) {
  const std::vector<std::string> show = {"--", "sh", "-c",
                                         "echo \"$OMP_NUM_THREADS,$PYTHONUNBUFFERED,$PYTHONHASHSEED\""};
  const auto run = [&](std::vector<std::string> arguments, const std::vector<std::string>& variables = {}) {
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), show.begin(), show.end());
    return warren(arguments, variables).output;
  };
  const unsigned cores = std::thread::hardware_concurrency();
  EXPECT_EQ(run({"-n", "1"}), "[0] " + std::to_string(cores) + ",1,0\n");
  EXPECT_EQ(run({"-n", "1", "--bind_to_core"}), "[0] 1,1,0\n");
  const std::string share = std::to_string(std::max(1u, cores / 2));
  EXPECT_THAT(run({"-n", "2"}), HasSubstr("[1] " + share + ",1,0\n"));
  // A variable that is empty is one that the user has set.
  EXPECT_EQ(run({"-n", "1"}, {"OMP_NUM_THREADS=3", "PYTHONUNBUFFERED="}), "[0] 3,,0\n");
}

TEST(Run, WrongSettingsAreSaidOnceBeforeAnythingStarts) {
  const Ended e = warren({"run", "-n", "4", "--algorithm=rings", "sh", "-c", "echo started"});
  EXPECT_EQ(e.code, 2);
  EXPECT_THAT(e.error, HasSubstr("--algorithm is 'rings'"));
  EXPECT_THAT(e.output, IsEmpty());
  // One that no flag has given has its own name.
  const Ended variable = warren({"run", "-n", "4", "--log=async", "true"}, {"WARREN_ALGORITHM=rings"});
  EXPECT_THAT(variable.error, HasSubstr("WARREN_ALGORITHM is 'rings'"));
  const Ended costs = warren({"run", "-n", "4", "--costs=/none", "sh", "-c", "echo started"});
  EXPECT_EQ(costs.code, 1);
  EXPECT_THAT(costs.error, HasSubstr("cannot read the costs in /none"));
  EXPECT_THAT(costs.output, IsEmpty());
}

TEST(Run, TheFileOfSettingsMayNameTheTracker) {
  const TemporaryFolder folder;
  const std::string file = folder / "warren.conf";
  const std::vector<std::string> variables = {"WARREN_CONFIG=" + file};
  std::ofstream(file) << "tracker = 127.0.0.1:1\ninsecure_no_auth = 1\n";
  const Ended named = warren({"run", "-n", "1", "--noprefix", "--", WARREN_PROGRAM, "settings"}, variables);
  EXPECT_EQ(named.code, 0) << named.error;
  EXPECT_THAT(named.output, AllOf(HasSubstr(" 127.0.0.1:1 (" + file + ":1)"), HasSubstr(" 1 (" + file + ":2)")));
  EXPECT_THAT(named.error, Not(HasSubstr("tracker at")));
  // The launcher's own tracker has a secret, whatever the file says of others.
  for (const char* of_others : {"insecure_no_auth = 1\n", "secret_file = /none\n"}) {
    std::ofstream(file) << "tracker = 127.0.0.1:1\n" << of_others;
    const Ended own = warren({"run", "-n", "1", "--tracker=embedded", "--restarts=0", RESIZE_WORKER, "99"}, variables);
    EXPECT_EQ(own.code, 0) << own.error;
  }
}

TEST(Run, SignalsReachTheWorkers) {
  Program p({"run", "-n", "2", "sh", "-c",
             "trap 'echo stopping; exit 9' TERM; echo ready; while :; do sleep 1000 & wait; done"});
  p.wait_for("[0] ready", true);
  p.wait_for("[1] ready", true);
  p.signal(SIGTERM);
  EXPECT_EQ(p.wait(), 9);
  EXPECT_THAT(p.output(), HasSubstr("[0] stopping"));
  EXPECT_THAT(p.output(), HasSubstr("[1] stopping"));
}

TEST(Run, WhatIsWrongWithTheNoticeOfTheCloudIsSaidBeforeAnythingIsTouched) {
  const TemporaryFolder folder;
  const std::string timeline = folder / "t.json";
  std::ofstream(timeline) << "of a run before";
  for (const char* wrong : {"--preemption_notice=azur", "--preemption_url=http://", "--preemption_url=http://:80",
                            "--preemption_url=https://a", "--preemption_url=http://a:b"}) {
    std::vector<std::string> arguments = {"run", "-n", "1", "--timeline=" + timeline, wrong};
    if (std::string_view(wrong).starts_with("--preemption_url")) arguments.emplace_back("--preemption_notice=aws");
    arguments.insert(arguments.end(), {"sh", "-c", "echo started"});
    const Ended e = warren(arguments);
    EXPECT_EQ(e.code, 2) << wrong;
    EXPECT_THAT(e.error, AllOf(HasSubstr("--preemption_"), Not(HasSubstr("tracker at")))) << wrong;
    EXPECT_THAT(e.output, IsEmpty()) << wrong;
  }
  EXPECT_EQ(whole_file(timeline), "of a run before");
}

TEST(Run, ANoticeOfTheCloudNeedsTheSignalThatItComesBy) {
  Program p({"run", "-n", "1", "--preemption_notice=aws", "sh", "-c", "echo started"}, {}, SIGTERM);
  EXPECT_EQ(p.wait(), 2);
  EXPECT_THAT(p.error(), HasSubstr("was started to ignore"));
  EXPECT_THAT(p.output(), IsEmpty());
}

// A supervisor starts a launcher again that has ended with 75. On a machine that is being taken it once started its
// workers, which threw out those of the next machine.
TEST(Run, WhileAMachineIsBeingTakenNoWorkerIsStartedThere) {
  std::atomic<const char*> said = "TRUE";
  std::atomic<int> looks = 0;
  httplib::Server cloud;
  cloud.Get(".*", [&](const httplib::Request&, httplib::Response& a) {
    a.set_header("Metadata-Flavor", "Google");
    a.set_content(said.load(), "text/plain");
    ++looks;
    looks.notify_all();
  });
  const int port = cloud.bind_to_any_port("127.0.0.1");
  std::thread serves([&cloud] { cloud.listen_after_bind(); });
  const std::string url = "--preemption_url=http://127.0.0.1:" + std::to_string(port);
  const std::vector<std::string> arguments = {"run", "-n", "1",  "--preemption_notice=google",
                                              url,   "sh", "-c", "echo started"};
  for (const auto& [signal, code] : {std::pair(SIGTERM, 75), std::pair(SIGINT, 128 + SIGINT)}) {
    Program told(arguments);
    told.wait_for("machine_goes: Google preempts this machine");
    told.signal(SIGUSR1);  // is for workers
    told.signal(signal);
    EXPECT_EQ(told.wait(), code);
    EXPECT_THAT(told.output(), IsEmpty());
  }
  Program spared(arguments);
  spared.wait_for("machine_goes");
  said = "a service that goes before the machine does";  // withdraws nothing
  for (int seen = looks, enough = seen + 2; seen < enough; seen = looks) looks.wait(seen);
  EXPECT_THAT(spared.output(), IsEmpty());
  said = "FALSE";
  spared.wait_for("started", true);
  EXPECT_EQ(spared.wait(), 0);
  cloud.stop();
  serves.join();
}

TEST(Run, NoOrphanSurvivesAKilledLauncher) {
  const TemporaryFolder folder;  // a killed launcher cannot take its secret away
  Program p({"run", "-n", "1", "sh", "-c", "sleep 1000 & echo pids $$ $! end; wait"}, {"TMPDIR=" + folder.path()});
  const std::string text = p.wait_for(" end", true);
  p.signal(SIGKILL);
  EXPECT_EQ(p.wait(), 128 + SIGKILL);
  std::istringstream pids(between(text, "pids ", "e"));
  pid_t worker = 0, started = 0;
  pids >> worker >> started;
  ASSERT_GT(started, 1);
  wait_until_dead(worker);
  wait_until_dead(started);
}

TEST(Run, RestartsWhatDies) {
  const Ended e =
      warren({"run", "-n", "1", "--restarts=1", "sh", "-c", "echo life $WARREN_ATTEMPT; [ $WARREN_ATTEMPT = 1 ]"});
  EXPECT_EQ(e.code, 0);
  EXPECT_EQ(e.output, "[0] life 0\n[0] life 1\n");
  EXPECT_THAT(e.error, HasSubstr("restart 1 of 1"));
}

TEST(Run, WhatIsLostIsRestartedWithoutBeingAsked) {
  const Ended e = warren({"run", "-n", "2", "sh", "-c",
                          "case $WARREN_ATTEMPT in 0) kill -9 $$;; 1) exit 75;; 2) exit 77;; esac; echo done"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_THAT(e.output, HasSubstr("[1] done\n"));
  EXPECT_THAT(e.error,
              HasSubstr("worker 0 was killed by signal 9 (Killed); starting it again at once (restart 1 of 10"));
  EXPECT_THAT(e.error, HasSubstr("job_rolled_back: rollback 1 of at most 10"));
}

TEST(Run, RecoversWhereNobodyReadsItsErrors) {
  const std::string worker = RESIZE_WORKER;
  Program p({"run", "-n", "2", "--restarts=1", "sh", "-c",
             "[ $WARREN_WORKER_ID$WARREN_ATTEMPT = 10 ] && exec " + worker + " 3; exec " + worker + " 99"},
            {}, 0, true);
  p.read_errors(false);
  p.wait_for("[0] 3 6 9 12 15 18 21 24 27 ", true);
  p.wait_for("[1] 3 6 9 12 15 18 21 24 27 ", true);
  p.read_errors(true);
  EXPECT_EQ(p.wait(), 0);
  std::string error = p.error();
  std::erase(error, '\0');  // what filled the pipe
  EXPECT_THAT(error, HasSubstr(" warren: tracker: job default is whole again"));
  EXPECT_THAT(error, HasSubstr("worker_restarted: worker 1 ended with exit code 4"));
}

TEST(Run, WorkersFindTheKeeperOfTheirLogs) {
  // The name of its socket and the key are in the file that the variable names; no variable holds the key.
  const char* script =
      "echo $WARREN_SEGMENT_KEEPER; said=$(cat $WARREN_SEGMENT_KEEPER); grep -c ${said%%:*} /proc/net/unix; "
      "echo ${said##*:} | grep -cE '^[0-9a-f]{64}$'; env | grep -c ${said##*:}";
  const Ended e = warren({"run", "-n", "1", "--noprefix", "sh", "-c", std::string(script) + "; true"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_THAT(e.output, testing::MatchesRegex("/proc/[0-9]+/fd/[0-9]+\n1\n1\n0\n"));
  const Ended other = warren({"run", "-n", "1", "--noprefix", "sh", "-c", script}, {"WARREN_SEGMENT_KEEPER=mine"});
  EXPECT_THAT(other.output, testing::MatchesRegex("/proc/[0-9]+/fd/[0-9]+\n1\n1\n0\n"));
  EXPECT_NE(e.output, other.output);
}

TEST(Run, TheLauncherMayHaveAllDescriptorsAndWorkersWhatTheyHad) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 200;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  const Ended e = warren({"run", "-n", "1", "--noprefix", "sh", "-c",
                          "ulimit -Sn; ulimit -Hn; awk '/open files/ { print $4 }' /proc/$PPID/limits"});
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  const std::string most = std::to_string(before.rlim_max);
  EXPECT_EQ(e.output, "200\n" + most + "\n" + most + "\n") << e.error;
}

TEST(Run, AHungWorkerIsRestartedAfterTheRoundTimeout) {
  const Ended e = warren({"run", "-n", "1", "--round_timeout_ms=200", LIFE_CHILD, "stop"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_THAT(e.error, HasSubstr("has shown no life for 200 ms; killing it"));
  EXPECT_THAT(warren({"run", "-n", "1", LIFE_CHILD, "stop"}, {"WARREN_ROUND_TIMEOUT_MS=100"}).error,
              HasSubstr("has shown no life for 100 ms; killing it"));
}

TEST(Run, EverySettingOfTheLogHasAFlag) {
  const TemporaryFolder folder;
  const Ended e = warren(
      {"run",
       "-n",
       "1",
       "--noprefix",
       "--host_id=h",
       "--domain_id=d",
       "--replicas=1",
       "--log=sync",
       "--log_memory_bytes=5M",
       "--data_dir=" + folder.path(),
       "--log_lag_ms=3",
       "--log_lag_bytes=4K",
       "--log_disk_bytes=6M",
       "--log_full=error",
       "--checkpoint_mirror=/m",
       "--on_rollback=error",
       "--timeline=" + (folder / "t.json"),
       "sh",
       "-c",
       "echo $WARREN_HOST_ID $WARREN_DOMAIN_ID $WARREN_REPLICAS $WARREN_LOG $WARREN_LOG_MEMORY_BYTES $WARREN_DATA_DIR "
       "$WARREN_LOG_LAG_MS $WARREN_LOG_LAG_BYTES $WARREN_LOG_DISK_BYTES $WARREN_LOG_FULL $WARREN_CHECKPOINT_MIRROR "
       "$WARREN_ON_ROLLBACK "
       "$WARREN_LOCAL_WORLD_SIZE $WARREN_TIMELINE"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_EQ(e.output, "h d 1 sync 5M " + folder.path() + " 3 4K 6M error /m error 1 " + (folder / "t.json") + "\n");
  const Ended wrong = warren({"run", "-n", "1", "--log=sync", "true"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.error, HasSubstr("--log is 'sync', but there is no folder to write to"));
}

TEST(Run, ModeShrinkHasFlagsAndTheLauncherKnowsIt) {
  const Ended e = warren({"run", "-n", "2", "--noprefix", "--mode=shrink", "--min_workers=1", "--grace_ms=70",
                          "--restarts=0", "sh", "-c",
                          "[ $WARREN_WORKER_ID = 0 ] || kill -9 $$; echo $WARREN_MODE $WARREN_MIN_WORKERS "
                          "$WARREN_GRACE_MS"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_EQ(e.output, "shrink 1 70\n");
  EXPECT_THAT(e.error, HasSubstr("worker_given_up: worker 1"));
  const Ended wrong = warren({"run", "-n", "2", "--min_workers=1", "true"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.error, HasSubstr("--min_workers says how a job goes on without lost workers"));
}

TEST(Run, MaxWorkersIsTheWorldSizeOfAJobThatOthersMayJoin) {
  const std::vector<std::string> share = {"run",
                                          "-n",
                                          "2",
                                          "--first_worker=4",
                                          "--noprefix",
                                          "--mode=shrink",
                                          "--max_workers=6",
                                          "--tracker=127.0.0.1:9",
                                          "--insecure_no_auth"};
  std::vector<std::string> arguments = share;
  for (const char* word : {"sh", "-c", "echo $WARREN_WORLD_SIZE $WARREN_MAX_WORKERS"}) arguments.emplace_back(word);
  const Ended e = warren(arguments);
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_EQ(e.output, "6 6\n6 6\n");
  arguments = share;
  arguments[6] = "--max_workers=5";
  arguments.emplace_back("true");
  const Ended beyond = warren(arguments);
  EXPECT_EQ(beyond.code, 2);
  EXPECT_THAT(beyond.error, HasSubstr("are not all below --max_workers, which is 5"));
  arguments[6] = "--max_workers=6";
  arguments.insert(arguments.begin() + 1, "--world_size=6");
  EXPECT_THAT(warren(arguments).error, HasSubstr("--max_workers is the world size: leave --world_size out"));
  const Ended alone = warren({"run", "-n", "2", "--mode=shrink", "--max_workers=3", "true"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.error, HasSubstr("--max_workers above -n is for a running tracker"));
}

// A control group of its own with so much memory, as a container has; gone with the test.
class SmallContainer {
 public:
  explicit SmallContainer(std::uint64_t bytes) {
    const std::string name = "warren-test-" + std::to_string(getpid());
    for (const bool old : {true, false}) {
      folder_ = std::string(old ? "/sys/fs/cgroup/memory/" : "/sys/fs/cgroup/") + name;
      if (mkdir(folder_.c_str(), 0755) != 0) continue;
      limits_ = static_cast<bool>(std::ofstream(folder_ + (old ? "/memory.limit_in_bytes" : "/memory.max"))
                                  << bytes << std::flush);
      events_ = folder_ + (old ? "/memory.oom_control" : "/memory.events");
      if (limits_) return;
      rmdir(folder_.c_str());
    }
  }
  ~SmallContainer() {
    if (limits_) rmdir(folder_.c_str());
  }
  SmallContainer(const SmallContainer&) = delete;
  SmallContainer& operator=(const SmallContainer&) = delete;
  // False: this system lets the test make none.
  [[nodiscard]] bool limits() const { return limits_; }
  // For a shell that is to be in it.
  [[nodiscard]] std::string enter() const { return "echo $$ >" + folder_ + "/cgroup.procs && "; }
  [[nodiscard]] std::string killed() const { return between(whole_file(events_), "oom_kill ", "\n"); }

 private:
  std::string folder_, events_;
  bool limits_ = false;
};

// Each took 64 MiB at least for its log, and more than half of that again to write it to disk.
TEST(Run, WorkersTakeNoMoreMemoryThanTheirContainerHas) {
  const SmallContainer container(std::uint64_t{256} << 20);
  if (!container.limits()) GTEST_SKIP() << "this system lets the test make no control group";
  const TemporaryFolder folder;
  const std::string command = "sh -c '" + container.enter() + "exec " + WARREN_PROGRAM +
                              " run -n 3 --data_dir=" + (folder / "data") + " " + RESIZE_WORKER + " 99 400' >" +
                              (folder / "log") + " 2>&1";
  EXPECT_EQ(std::system(command.c_str()), 0) << whole_file(folder / "log");
  EXPECT_EQ(container.killed(), "0") << whole_file(folder / "log");
}

TEST(Run, TheJournalStaysUntilTheJobIsDone) {
  const TemporaryFolder folder;
  const std::string data = folder / "data";
  EXPECT_EQ(warren({"run", "-n", "1", "--data_dir=" + data, "sh", "-c", "exit 4"}).code, 4);
  EXPECT_TRUE(std::filesystem::exists(data + "/tracker/CURRENT"));
  const Ended e = warren({"run", "-n", "1", "--data_dir=" + data, "true"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_FALSE(std::filesystem::exists(data + "/tracker"));
  std::ofstream(folder / "file") << "x";
  const Ended none = warren({"run", "-n", "1", "--data_dir=" + (folder / "file"), "true"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.error, HasSubstr("cannot make the directory"));
}

TEST(Run, TheJournalKeepsJobsThatHaveNotFinished) {
  const TemporaryFolder folder;
  const auto run = [&](const std::string& job, const std::vector<std::string>& program) {
    std::vector<std::string> arguments = {"run", "-n", "2", "--job=" + job, "--data_dir=" + (folder / "data")};
    arguments.insert(arguments.end(), program.begin(), program.end());
    return warren(arguments);
  };
  ASSERT_EQ(run("a", {RESIZE_WORKER, "5"}).code, 4);
  // Neither a program that takes no part in it nor another job that finishes makes the tracker forget it.
  EXPECT_EQ(run("a", {"--", WARREN_PROGRAM, "settings"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "data/tracker/CURRENT"));
  EXPECT_EQ(run("b", {RESIZE_WORKER, "99"}).code, 0);
  EXPECT_TRUE(std::filesystem::exists(folder / "data/tracker/CURRENT"));
  const Ended again = run("a", {RESIZE_WORKER, "99"});
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_GE(std::stoull("0" + between(again.output, "loaded version ", " ")), 4u) << again.output;
  EXPECT_FALSE(std::filesystem::exists(folder / "data/tracker"));
}

TEST(Run, GoesOnFromItsCheckpointWithAnotherNumberOfWorkers) {
  const TemporaryFolder folder;
  const auto run = [&](std::uint64_t n, int until, bool resize) {
    std::vector<std::string> arguments = {"run", "-n", std::to_string(n), "--data_dir=" + (folder / "data"),
                                          "--round_timeout_ms=1000"};
    if (resize) arguments.emplace_back("--resize");
    arguments.insert(arguments.end(), {RESIZE_WORKER, std::to_string(until)});
    return warren(arguments);
  };
  const auto loaded = [](const Ended& e) { return std::stoull(between(e.output, "loaded version ", " ")); };
  const Ended first = run(3, 3, false);
  ASSERT_EQ(first.code, 4) << first.error;
  const Ended refused = run(2, 6, false);
  EXPECT_NE(refused.code, 0);
  EXPECT_THAT(refused.error, HasSubstr("world_size 2 is not the job's 3"));
  EXPECT_THAT(refused.error, HasSubstr("start them all with --resize"));
  const Ended smaller = run(2, 6, true);
  ASSERT_EQ(smaller.code, 4) << smaller.error;
  EXPECT_THAT(smaller.output, HasSubstr(" of 3 ranks, local state 0\n"));
  EXPECT_GE(loaded(smaller), 2u);
  const Ended again = run(2, 8, true);
  ASSERT_EQ(again.code, 4) << again.error;
  EXPECT_THAT(again.output, HasSubstr(" of 2 ranks, local state 101\n"));
  EXPECT_GE(loaded(again), 5u);
  const Ended larger = run(4, 99, true);
  ASSERT_EQ(larger.code, 0) << larger.error;
  EXPECT_THAT(larger.output, HasSubstr(" of 2 ranks, local state 0\n"));
  EXPECT_GE(loaded(larger), 7u);
  std::string state;
  for (std::uint64_t v = 0; v < 9; ++v) {
    state += std::to_string((v + 1) * (v < loaded(smaller)  ? 1 + 2 + 3
                                       : v < loaded(larger) ? 1 + 2
                                                            : 1 + 2 + 3 + 4)) +
             " ";
  }
  for (int rank = 0; rank < 4; ++rank) EXPECT_THAT(larger.output, HasSubstr("[" + std::to_string(rank) + "] " + state));
}

// A tracker on free ports with a secret of its own.
class LiveTracker {
 public:
  explicit LiveTracker(std::vector<std::string> more = {}, int ignored = 0) {
    EXPECT_EQ(warren({"keygen", "--out", secret()}).code, 0);
    std::vector<std::string> arguments = {"tracker",
                                          "--bind=127.0.0.1",
                                          "--port=0",
                                          "--http_port=0",
                                          "--data_dir=" + (folder_ / "data"),
                                          "--secret_file=" + secret()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    program_ = std::make_unique<Program>(arguments, std::vector<std::string>(), ignored);
    const std::string log = program_->wait_for("status at http://");
    address = between(log, "WARREN_TRACKER=", "; \"");
    page = between(log, "status at http://", "/");
  }
  std::string secret() const { return folder_ / "secret"; }
  Program& program() { return *program_; }
  std::string address, page;

 private:
  TemporaryFolder folder_;
  std::unique_ptr<Program> program_;
};

TEST(Tracker, ServesShowsItselfAndStops) {
  LiveTracker tracker;
  EXPECT_THAT(tracker.address, StartsWith("127.0.0.1:"));
  const Ended table = warren({"status", "--http=" + tracker.page});
  EXPECT_EQ(table.code, 0) << table.error;
  EXPECT_THAT(table.output, HasSubstr("no jobs"));
  EXPECT_THAT(table.output, HasSubstr("port " + tracker.address.substr(10)));
  const Ended raw = warren({"status", "--json"}, {"WARREN_HTTP=" + tracker.page});
  EXPECT_EQ(raw.code, 0) << raw.error;
  EXPECT_TRUE(json::parse(raw.output).at("jobs").empty());
  const Ended as_logged = warren({"status", "--http=http://" + tracker.page + "/"});
  EXPECT_EQ(as_logged.code, 0) << as_logged.error;
  const Ended none = warren({"status", "--http=" + tracker.page, "--job=x"});
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.error, HasSubstr("no job 'x'"));
  tracker.program().signal(SIGTERM);
  EXPECT_EQ(tracker.program().wait(), 0);
  EXPECT_THAT(tracker.program().error(), HasSubstr("stopping on signal Terminated"));
}

TEST(Tracker, WithoutARouteTellsAnAddressThatCanBeReached) {
  if (std::system("unshare -rn ip link add d0 type veth peer name d1 2>/dev/null") != 0) {
    GTEST_SKIP() << "unshare makes no network namespace here";
  }
  const TemporaryFolder folder;
  const auto address = [&](const std::string& name, const std::string& network) {
    const std::string log = folder / (name + ".log");
    const std::string tracker = std::string(WARREN_PROGRAM) + " tracker --insecure_no_auth --port=0 --http_port=-1 " +
                                "--data_dir=" + (folder / name) + " 2>" + log;
    const std::string command = "unshare -rn sh -c 'ip link set lo up; " + network + tracker + " & p=$!; " +
                                "until grep -q WARREN_TRACKER= " + log + " || ! kill -0 $p; do sleep 0.02; done; " +
                                "kill $p; wait $p'";
    EXPECT_EQ(std::system(command.c_str()), 0) << whole_file(log);
    return between(whole_file(log), "WARREN_TRACKER=", ":");
  };
  EXPECT_EQ(address("alone", ""), "127.0.0.1");
  EXPECT_EQ(address("cabled",
                    "ip link add d0 type veth peer name d1; ip address add 198.18.0.7/32 dev d0; "
                    "ip link set d0 up; "),
            "198.18.0.7");
}

TEST(Descriptors, ThatAreTooFewForAWorkerAreAnErrorThatNamesTheLimit) {
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  for (const char* limit : {"12", "20", "24", "28", "32"}) {
    const std::string command = std::string(WARREN_PROGRAM) + " run -n 1 -- sh -c \"ulimit -n " + limit +
                                " && exec " RESIZE_WORKER " 9\" >" + log + " 2>&1";
    const int status = std::system(command.c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) != 0) << limit;
    EXPECT_THAT(whole_file(log), HasSubstr("raise the limit of this process (`ulimit -n`)")) << limit;
  }
}

// The resolver waits for them for 10 s and more, whatever its caller can spare.
TEST(NameServers, ThatAreSilentAreWaitedForNoLongerThanTheCallerWants) {
  if (std::system("unshare -rmn ip link add d0 type veth peer name d1 2>/dev/null") != 0) {
    GTEST_SKIP() << "unshare makes no mount and network namespaces here";
  }
  const TemporaryFolder folder;
  std::ofstream(folder / "resolv.conf") << "nameserver 198.18.0.1\n";
  const std::string command =
      "unshare -rmn sh -c 'ip link set lo up && ip link add d0 type veth peer name d1 && "
      "ip address add 198.18.0.7/24 dev d0 && ip link set d0 up && ip link set d1 up && "
      "ip neighbour add 198.18.0.1 lladdr 02:00:00:00:00:01 nud permanent dev d0 && mount --bind " +
      (folder / "resolv.conf") + " /etc/resolv.conf && exec " LIFE_CHILD " resolves tracker.test' >" +
      (folder / "said");
  EXPECT_EQ(std::system(command.c_str()), 0);
  EXPECT_THAT(whole_file(folder / "said"), HasSubstr("'tracker.test': no name server has answered within 300 ms"));
}

// ZeroMQ aborts where its threads cannot be started. (No stack of this size fits into a process.)
TEST(NoThreads, AreAnErrorOfForgetAndDoctor) {
  LiveTracker tracker;
  const TemporaryFolder folder;
  const std::string log = folder / "log";
  const auto run = [&](const std::string& command) {
    return std::system(("ulimit -s 100000000000000 && exec " WARREN_PROGRAM " " + command + " --job=j --tracker=" +
                        tracker.address + " --secret_file=" + tracker.secret() + " >" + log + " 2>&1")
                           .c_str());
  };
  for (const char* command : {"forget", "doctor"}) {
    const int status = run(command);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << command << ": " << status;
    EXPECT_THAT(whole_file(log), HasSubstr("ulimit -u")) << command;
  }
}

TEST(Tracker, OutlivesAHangUpThatItWasStartedToIgnore) {
  LiveTracker tracker({}, SIGHUP);  // as nohup does
  tracker.program().signal(SIGHUP);
  tracker.program().signal(SIGTERM);  // is taken after it
  EXPECT_EQ(tracker.program().wait(), 0);
  EXPECT_THAT(tracker.program().error(), HasSubstr("stopping on signal Terminated"));
}

TEST(Tracker, LogsJsonOnRequest) {
  LiveTracker tracker({"--log_json"});
  tracker.program().signal(SIGINT);
  EXPECT_EQ(tracker.program().wait(), 0);
  std::istringstream lines(tracker.program().error());
  std::vector<std::string> events;
  for (std::string line; std::getline(lines, line);) events.push_back(json::parse(line).at("event"));
  EXPECT_THAT(events, testing::Contains("tracker_ready"));
  EXPECT_THAT(events, testing::Contains("tracker_stopping"));
}

TEST(Tracker, APortInUseIsAnErrorThatNamesIt) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  ASSERT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const TemporaryFolder folder;
  const Ended e = warren({"tracker", "--bind=127.0.0.1", "--port=" + port, "--http_port=-1", "--insecure_no_auth",
                          "--data_dir=" + (folder / "data")});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.error, HasSubstr(port));
  close(fd);
}

TEST(Tracker, AJobsSecretIsNotATrackers) {
  const TemporaryFolder folder;
  const std::string root = folder / "root", job = folder / "job";
  ASSERT_EQ(warren({"keygen", "--out", root}).code, 0);
  ASSERT_EQ(warren({"keygen", "--job=j", "--from", root, "--out", job}).code, 0);
  const Ended e = warren({"tracker", "--data_dir=" + (folder / "data"), "--secret_file=" + job});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.error, HasSubstr("is the secret of one job"));
}

// Without a data_dir nothing is left of what a launcher's workers have logged, once it has ended.
TEST(Forget, FreesTheNameOfAJobThatCannotGoOn) {
  LiveTracker tracker;
  const TemporaryFolder folder;
  const std::string job = folder / "job", others = folder / "others";
  ASSERT_EQ(warren({"keygen", "--job=j", "--from=" + tracker.secret(), "--out=" + job}).code, 0);
  ASSERT_EQ(warren({"keygen", "--job=k", "--from=" + tracker.secret(), "--out=" + others}).code, 0);
  const auto run = [&](const std::string& until) {
    return warren({"run", "-n", "2", "--job=j", "--tracker=" + tracker.address, "--secret_file=" + job,
                   "--round_timeout_ms=1000", RESIZE_WORKER, until});
  };
  const auto forget = [&](const std::string& secret, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"forget", "--job=j", "--tracker=" + tracker.address,
                                          "--secret_file=" + secret};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return warren(arguments);
  };
  ASSERT_EQ(run("3").code, 4);
  const Ended lost = run("99");
  EXPECT_NE(lost.code, 0);
  EXPECT_THAT(lost.error, HasSubstr("what it would go on from is lost"));
  EXPECT_THAT(lost.error, HasSubstr("`warren forget --job=j`"));
  EXPECT_THAT(warren({"status", "--http=" + tracker.page}).output, HasSubstr("job j: lost, "));
  const Ended wrong = forget(others);
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.error, HasSubstr("cannot forget job j: "));
  const Ended done = forget(job);
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_THAT(done.output, HasSubstr("its name is free"));
  const Ended again = forget(tracker.secret());
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.error, HasSubstr("knows no job j"));
  const Ended anew = run("99");
  EXPECT_EQ(anew.code, 0) << anew.error;
  EXPECT_THAT(anew.output, HasSubstr("loaded version 0 "));
}

TEST(Run, SparesOfALauncherOfTheirOwnTakeALostPlace) {
  LiveTracker tracker;
  const std::vector<std::string> shared = {"--job=j", "--tracker=" + tracker.address,
                                           "--secret_file=" + tracker.secret(), "--round_timeout_ms=3000"};
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "run");
    arguments.insert(arguments.end(), shared.begin(), shared.end());
    arguments.insert(arguments.end(), {RESIZE_WORKER, "99"});
    return arguments;
  };
  Program spares(run({"-n", "0", "--spares=1", "--world_size=2"}));
  tracker.program().wait_for("spare_waits");
  const Ended workers = warren(run({"-n", "2", "--spares=0"}));
  EXPECT_EQ(workers.code, 0) << workers.error;
  EXPECT_EQ(spares.wait(), 0) << spares.error();  // it was not needed
}

TEST(Run, ANameThatHasFinishedIsFreeForANewRun) {
  LiveTracker tracker;
  const auto run = [&] {
    return warren({"run", "-n", "2", "--job=j", "--tracker=" + tracker.address, "--secret_file=" + tracker.secret(),
                   RESIZE_WORKER, "99"});
  };
  for (int times = 0; times < 2; ++times) {
    const Ended e = run();
    EXPECT_EQ(e.code, 0) << e.error;
    EXPECT_THAT(e.output, HasSubstr("loaded version 0 "));
  }
  const Ended forgotten =
      warren({"forget", "--job=j", "--tracker=" + tracker.address, "--secret_file=" + tracker.secret()});
  EXPECT_EQ(forgotten.code, 0) << forgotten.error;
}

TEST(Forget, AJobThatLivesNeedsForce) {
  LiveTracker tracker;
  Program worker({"run", "-n", "1", "--world_size=2", "--job=j", "--tracker=" + tracker.address,
                  "--secret_file=" + tracker.secret(), RESIZE_WORKER, "99"});
  tracker.program().wait_for("worker 0 on host");
  const std::vector<std::string> arguments = {"forget", "--job=j", "--tracker=" + tracker.address};
  const std::vector<std::string> variables = {"WARREN_SECRET_FILE=" + tracker.secret()};
  const Ended refused = warren(arguments, variables);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.error, HasSubstr("job j lives: worker 0"));
  std::vector<std::string> forced = arguments;
  forced.emplace_back("--force");
  const Ended done = warren(forced, variables);
  EXPECT_EQ(done.code, 0) << done.error;
  EXPECT_NE(worker.wait(), 0);
  EXPECT_THAT(worker.error(), HasSubstr("job j was ended by `warren forget`"));
}

TEST(Status, NobodyThereIsSaid) {
  const Ended e = warren({"status", "--http=127.0.0.1:1"});
  EXPECT_EQ(e.code, 1);
  EXPECT_THAT(e.error, HasSubstr("no tracker answers at http://127.0.0.1:1/status"));
}

TEST(Status, AWatchThatWasStartedToIgnoreASignalGoesOn) {
  LiveTracker tracker;
  Program watch({"status", "--watch", "--http=" + tracker.page}, {}, SIGINT);  // as a shell's & does
  (void)watch.wait_for("no jobs", true);
  watch.signal(SIGINT);
  tracker.program().signal(SIGTERM);
  EXPECT_EQ(tracker.program().wait(), 0);
  (void)watch.wait_for("no tracker answers");
  watch.signal(SIGTERM);
  EXPECT_EQ(watch.wait(), 0);
}

TEST(Settings, AreAllShownWithWhereTheyComeFrom) {
  const Ended e = warren({"run", "-n", "1", "--noprefix", "--streams=3", "--", WARREN_PROGRAM, "settings"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_THAT(e.output, testing::ContainsRegex("\nstreams +3 \\(WARREN_STREAMS\\)\n"));
  EXPECT_THAT(e.output, testing::ContainsRegex("\nchunk_bytes +262144 \\(default\\)\n"));
  const Ended missing = warren({"settings"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.error, HasSubstr("WARREN_TRACKER"));
  // What a bare machine has is shown all the same.
  EXPECT_THAT(missing.output, testing::ContainsRegex("\nhost_id +[^ ]+ \\(default\\)\n"));
  EXPECT_THAT(missing.output, testing::ContainsRegex("\nchunk_bytes +262144 \\(default\\)\n"));
}

TEST(Doctor, LooksAtEverything) {
  const TemporaryFolder folder;
  const Ended e = warren({"doctor", "--json", "--data_dir=" + folder.path()}, {"WARREN_TRAKER=x"});
  EXPECT_EQ(e.code, 0) << e.output;
  const json page = json::parse(e.output);
  EXPECT_TRUE(page.at("fit").get<bool>());
  std::vector<std::string> names;
  for (const json& check : page.at("checks")) {
    names.push_back(check.at("name"));
    EXPECT_THAT(check.at("level"), testing::AnyOf("ok", "warn"));
    EXPECT_EQ(check.at("level") == "ok", check.at("advice") == "") << check;
  }
  EXPECT_THAT(
      names, testing::ElementsAre("cores", "nofile", "memlock", "shm", "ptrace_scope", "somaxconn", "port", "http_port",
                                  "worker_ports", "interfaces", "disk", "fsync", "clock", "time", "variables"));
  EXPECT_THAT(e.output, HasSubstr("did you mean WARREN_TRACKER?"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Doctor, ABadLineIsAFailure) {
  const Ended disk = warren({"doctor", "--data_dir=/no/such/folder"});
  EXPECT_EQ(disk.code, 1);
  EXPECT_THAT(disk.output, HasSubstr("\nbad   disk"));
  const Ended tracker = warren({"doctor", "--tracker=127.0.0.1:1"});
  EXPECT_EQ(tracker.code, 1);
  EXPECT_THAT(tracker.output, HasSubstr("127.0.0.1:1: Connection refused"));
}

TEST(Doctor, CountsThePortsOfWorkers) {
  const LiveTracker tracker;
  const std::string port = tracker.address.substr(tracker.address.rfind(':') + 1);
  const Ended taken = warren({"doctor", "--port_range=" + port + ":" + port});
  EXPECT_EQ(taken.code, 1);
  EXPECT_THAT(taken.output, HasSubstr("\nbad   worker_ports  0 of the 1 ports of " + port + ":" + port + " are free"));
  EXPECT_THAT(warren({"doctor"}, {"WARREN_PORT_RANGE=1:4"}).output, HasSubstr(" of the 4 ports of 1:4 are free"));
  EXPECT_THAT(warren({"doctor", "--port_range=4:1"}).error, HasSubstr("--port_range is '4:1'"));
}

TEST(Doctor, TriesTheSecretAtTheTracker) {
  LiveTracker tracker;
  const TemporaryFolder folder;
  const std::string job = folder / "job", others = folder / "others";
  ASSERT_EQ(warren({"keygen", "--job=j", "--from=" + tracker.secret(), "--out=" + job}).code, 0);
  ASSERT_EQ(warren({"keygen", "--out=" + others}).code, 0);
  const auto doctor = [&](const std::string& secret, const std::string& name) {
    return warren({"doctor", "--tracker=" + tracker.address, "--secret_file=" + secret, "--job=" + name});
  };
  const Ended root = doctor(tracker.secret(), "any");
  EXPECT_EQ(root.code, 0) << root.output;
  EXPECT_THAT(root.output, HasSubstr("opens job any of this tracker"));
  EXPECT_EQ(doctor(job, "j").code, 0);
  const Ended of_variables = warren({"doctor"}, {"WARREN_TRACKER=" + tracker.address, "WARREN_SECRET_FILE=" + job});
  EXPECT_EQ(of_variables.code, 1) << "the job's name is not given";
  EXPECT_THAT(of_variables.output, HasSubstr("--job or WARREN_JOB"));
  const Ended wrong = doctor(others, "j");
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.output, HasSubstr("\nbad   secret        " + others + ": the tracker did not accept it"));
  EXPECT_THAT(doctor(folder / "none", "j").output, HasSubstr("\nbad   secret"));
}

TEST(Bench, EveryCellIsChecked) {
  const Ended e = warren({"bench", "--ranks=3", "--collective=all", "--sizes=0,4,1000..2000", "--type=f32,bf16,i8",
                          "--op=all", "--iters=2", "--warmup=1", "--json"});
  EXPECT_EQ(e.code, 0) << e.error;
  std::istringstream lines(e.output);
  std::size_t cells = 0;
  for (std::string line; std::getline(lines, line); ++cells) {
    const json cell = json::parse(line);
    EXPECT_EQ(cell.at("errors"), 0) << line;
    EXPECT_EQ(cell.at("ranks"), 3);
    EXPECT_LE(cell.at("min_us").get<double>(), cell.at("median_us").get<double>());
  }
  // 3 reductions × (5 operations on each float type + 8 on i8) × 3 sizes, 7 others × 3 types × 3 sizes, and the
  // barrier.
  EXPECT_EQ(cells, 3u * 18 * 4 + 7 * 3 * 4 + 1);
}

TEST(Bench, InPlaceAndEveryAlgorithm) {
  const Ended e = warren({"bench", "--ranks=2", "--algorithm=all", "--inplace", "--sizes=64K", "--iters=2"});
  EXPECT_EQ(e.code, 0) << e.error;
  for (const char* name : {"auto", "star", "tree", "butterfly", "ring", "direct"}) {
    EXPECT_THAT(e.output,
                HasSubstr(std::string("# allreduce, 2 ranks, transport auto, algorithm ") + name + ", in place"));
  }
  EXPECT_THAT(e.output, HasSubstr("time us"));
}

TEST(Bench, ExplainsItsChoiceWithoutRunning) {
  const Ended e = warren({"bench", "--explain", "--ranks=8", "--sizes=4,64K", "--collective=allreduce,barrier,gather"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_THAT(e.output, AllOf(HasSubstr("# allreduce, 8 ranks, 65536 bytes"),
                              HasSubstr("all ranks on one host, 2 cores"), HasSubstr("each rank on a host of its own"),
                              HasSubstr("\nchosen: "), HasSubstr("chosen: star: it alone serves gather")));
  const Ended lines = warren({"bench", "--explain", "--json", "--ranks=64", "--sizes=1K"});
  EXPECT_EQ(lines.code, 0) << lines.error;
  const json cell = json::parse(lines.output);
  EXPECT_EQ(cell.at("ranks"), 64);
  double least_us = 1e12, chosen_us = 0;
  for (const json& estimate : cell.at("estimates")) {
    const auto total_us = estimate.at("total_us").get<double>();
    least_us = std::min(least_us, total_us);
    if (estimate.at("algorithm") == cell.at("chosen")) chosen_us = total_us;
  }
  EXPECT_LE(chosen_us, 1.05 * least_us) << "more than eight ranks know one network";
  EXPECT_EQ(warren({"bench", "--explain", "--ranks=1"}).code, 2);
  EXPECT_EQ(warren({"bench", "--explain", "--costs=/none"}).code, 1);
}

// A ring on equal hosts: each final crosses to each other host. So does a partial result, and most cross once more,
// back to the owner's host.
TEST(Bench, ExplainsWhatHostsSend) {
  const Ended e = warren({"bench", "--explain", "--json", "--ranks=512", "--explain_hosts=64", "--sizes=64M"});
  ASSERT_EQ(e.code, 0) << e.error;
  const json ring = json::parse(e.output).at("hosts").at(0);
  EXPECT_EQ(ring.at("algorithm"), "ring");
  EXPECT_EQ(ring.at("host_sends_bytes").get<std::uint64_t>(), (std::uint64_t{64} << 20) / 512 * (2 * 512 - 8 - 1));
  EXPECT_EQ(ring.at("hops"), 2 * 64 + 1);
  EXPECT_EQ(ring.at("apart_hops"), 2 * 511);
  const Ended text = warren({"bench", "--explain", "--ranks=8", "--explain_hosts=2", "--sizes=64M"});
  EXPECT_THAT(text.output, HasSubstr("# what a host of 2 sends to the others"));
  const Ended little = warren({"bench", "--explain", "--ranks=8", "--explain_hosts=2", "--sizes=4"});
  EXPECT_THAT(little.output, HasSubstr("no algorithm moves the bytes of this call so"));
  EXPECT_EQ(warren({"bench", "--explain", "--ranks=8", "--explain_hosts=8"}).code, 2) << "a host for each";
  EXPECT_EQ(warren({"bench", "--ranks=2", "--explain_hosts=2"}).code, 2) << "nothing is explained";
}

TEST(Bench, FitsCostsThatJobsTake) {
  const TemporaryFolder folder;
  const std::string file = folder / "costs.json";
  const Ended fit = warren({"bench", "--fit=" + file, "--ranks=3", "--collective=allreduce,barrier,gather", "--json",
                            "--sizes=4,64K", "--iters=3"});
  EXPECT_EQ(fit.code, 0) << fit.error;
  EXPECT_THAT(fit.error, HasSubstr("are in " + file));
  std::istringstream lines(fit.output);
  std::size_t cells = 0;
  for (std::string line; std::getline(lines, line); ++cells) {
    const json cell = json::parse(line);
    EXPECT_EQ(cell.at("errors"), 0) << line;
    EXPECT_GE(cell.at("best_spread"), 1) << line;
    EXPECT_EQ(cell.at("algorithms").size(), cell.at("collective") == "barrier" ? 3u : 6u) << line;
  }
  EXPECT_EQ(cells, 3u) << "nothing to compare of a gather";
  const Ended used = warren({"bench", "--costs=" + file, "--compare", "--ranks=3", "--sizes=4K", "--iters=2"});
  EXPECT_EQ(used.code, 0) << used.error;
  EXPECT_THAT(used.output, AllOf(HasSubstr("# allreduce, 3 ranks"), HasSubstr("auto/best")));
  EXPECT_EQ(warren({"bench", "--costs=" + file, "--explain", "--ranks=3", "--sizes=4"}).code, 0);
  std::ofstream(file) << "{}";
  const Ended bad = warren({"bench", "--costs=" + file, "--ranks=2", "--sizes=4", "--iters=1"});
  EXPECT_NE(bad.code, 0);
  EXPECT_THAT(bad.error + bad.output, HasSubstr("the costs in " + file + " cannot be used"));
}

TEST(Bench, IsAProgramForALauncher) {
  LiveTracker tracker;
  const Ended e = warren({"run", "-n", "2", "--tracker=" + tracker.address, "--secret_file=" + tracker.secret(),
                          "--job=b", "--noprefix", "--", WARREN_PROGRAM, "bench", "--json", "--sizes=4", "--iters=1"});
  EXPECT_EQ(e.code, 0) << e.error;
  EXPECT_EQ(json::parse(e.output).at("errors"), 0);
  const Ended status = warren({"status", "--http=" + tracker.page, "--job=b"});
  EXPECT_EQ(status.code, 0);
  EXPECT_THAT(status.output, HasSubstr("job b: finished"));
}

}  // namespace
}  // namespace warren
