// Workers as processes that are killed and stopped.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "tests/e2e/cluster.h"

namespace warren {
namespace {

using testing::Cluster;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments) {
    int pipe_fds[2];
    EXPECT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], 1);
    std::vector<char*> argv;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(pipe_fds[1]);
    out_ = pipe_fds[0];
  }
  ~Process() {
    kill(SIGKILL);
    int status = 0;
    if (pid_ > 0) waitpid(pid_, &status, 0);
    ::close(out_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  void kill(int signal) const { ::kill(pid_, signal); }
  // The next line of output; "" when it ends or 20 s have passed.
  std::string line() {
    while (true) {
      const auto end = buffer_.find('\n');
      if (end != std::string::npos) {
        std::string text = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return text;
      }
      pollfd p{out_, POLLIN, 0};
      if (::poll(&p, 1, 20000) <= 0) return "";
      char chunk[4096];
      const ssize_t n = ::read(out_, chunk, sizeof chunk);
      if (n <= 0) return "";
      buffer_.append(chunk, static_cast<std::size_t>(n));
    }
  }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
  std::string buffer_;
};

std::vector<std::unique_ptr<Process>> start(Cluster& cluster, int size, int elements) {
  std::vector<std::unique_ptr<Process>> workers;
  for (int r = 0; r < size; r++) {
    workers.push_back(std::make_unique<Process>(
        std::vector<std::string>{WARREN_LOOPER, cluster.address(), cluster.root_file(), std::to_string(r),
                                 std::to_string(size), std::to_string(elements)}));
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

TEST(Processes, AStoppedRankIsNoticedFencedAndFindsOut) {
  Cluster cluster;
  auto workers = start(cluster, 3, 100000);
  workers[1]->kill(SIGSTOP);
  for (const std::size_t r : {0u, 2u}) {
    const std::string said = workers[r]->line();
    EXPECT_THAT(said, StartsWith("failed 5 "));
    EXPECT_THAT(said, HasSubstr("rank 1"));
  }
  // The others form the next epoch while it sleeps; awake again it harms nobody.
  workers[0].reset();
  workers[2].reset();
  std::vector<std::unique_ptr<Process>> next = start(cluster, 3, 100000);
  workers[1]->kill(SIGCONT);
  EXPECT_THAT(workers[1]->line(), StartsWith("failed "));
  next[0]->kill(SIGKILL);
  EXPECT_THAT(next[1]->line(), HasSubstr("rank 0"));
}

}  // namespace
}  // namespace warren
