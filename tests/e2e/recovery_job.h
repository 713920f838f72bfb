// Jobs of real processes that are killed, stopped and started again: every result of every life is compared with the
// oracle's. The workers run the program of `warren chaos`; they tell each step through a pipe, which is what the tests
// wait for, and kill themselves at points that a test names.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "chaos/process/free_port.h"
#include "chaos/process/judge.h"
#include "chaos/process/records.h"
#include "chaos/process/worker.h"
#include "warren/warren.h"

namespace warren::testing {

using chaos::process::Judge;
using chaos::process::map_page;
using chaos::process::Mix;
using chaos::process::name_of;
using chaos::process::Order;
using chaos::process::Page;
using chaos::process::page_path;
using chaos::process::Phase;
using chaos::process::Program;
using chaos::process::ProgramShape;
using chaos::process::Record;
using chaos::process::RecordEvent;
using chaos::process::records_path;
using chaos::process::write_shape;
using Clock = std::chrono::steady_clock;

inline constexpr int kRoundTimeoutMs = 2000;
// A job that stands still for so long hangs.
inline constexpr std::chrono::seconds kPatience(60);

// What processes say on standard error is of use only where a test fails.
inline bool verbose() {
  return getenv("RECOVERY_TEST_VERBOSE") != nullptr;
}

// A child of this test, which kills what is left of it.
class Child {
 public:
  // `errors`: where its standard error goes, at the end of what is there.
  Child(const std::vector<std::string>& arguments, const std::vector<std::string>& variables,
        const std::string& errors = "/dev/null") {
    std::vector<char*> argv, env;
    for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
    for (const std::string& v : variables) env.push_back(const_cast<char*>(v.c_str()));
    for (char** e = environ; *e != nullptr; ++e) {
      if (std::strncmp(*e, "WARREN_", 7) != 0) env.push_back(*e);
    }
    argv.push_back(nullptr);
    env.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    if (!verbose() || errors != "/dev/null") {
      posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    }
    EXPECT_EQ(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), env.data()), 0) << argv[0];
    posix_spawn_file_actions_destroy(&actions);
    pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  }
  ~Child() {
    signal(SIGKILL);
    if (!status_) reap();
    ::close(pidfd_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  void signal(int number) const {
    if (!status_) ::kill(pid_, number);
  }
  [[nodiscard]] int pidfd() const { return pidfd_; }
  [[nodiscard]] pid_t pid() const { return pid_; }
  // The wait status of an ended process.
  int reap() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    status_ = status;
    return status;
  }

 private:
  pid_t pid_ = -1;
  int pidfd_ = -1;
  std::optional<int> status_;
};

class Job {
 public:
  // `hosts`: of each worker. Every host is a failure domain.
  Job(const ProgramShape& shape, std::vector<std::string> hosts, int replicas = 2)
      : program_(shape),
        judge_(program_),
        hosts_(std::move(hosts)),
        replicas_(replicas),
        port_(chaos::process::free_port().value()) {
    char name[] = "/tmp/warren-recovery-XXXXXX";
    folder_ = mkdtemp(name);
    EXPECT_TRUE(write_shape(folder_, shape).ok());
    for (std::uint32_t w = 0; w < shape.ranks; w++) {
      EXPECT_EQ(mkfifo(records_path(folder_, w).c_str(), 0600), 0);
      const int fd = open(records_path(folder_, w).c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
      EXPECT_GE(fd, 0);
      EXPECT_GE(fcntl(fd, F_SETPIPE_SZ, 1 << 20), 0);
      pipes_.push_back(fd);
      pages_.push_back(map_page(page_path(folder_, w)).value());
    }
    lives_.resize(shape.ranks);
    attempts_.resize(shape.ranks);
  }
  ~Job() {
    lives_.clear();
    zombies_.clear();
    tracker_.reset();
    for (const int fd : pipes_) ::close(fd);
    std::filesystem::remove_all(folder_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  void start_tracker() {
    tracker_ = std::make_unique<Child>(
        std::vector<std::string>{WARREN_CLI, "tracker", "--data_dir=" + folder_ + "/tracker", "--bind=127.0.0.1",
                                 "--port=" + std::to_string(port_), "--http_port=-1", "--insecure_no_auth"},
        std::vector<std::string>{}, tracker_log());
  }
  // Rounds that plans took from disks after no life had survived.
  [[nodiscard]] std::uint64_t rounds_kept() const {
    std::ifstream log(tracker_log());
    std::uint64_t rounds = 0;
    for (std::string line; std::getline(log, line);) {
      const std::size_t at = line.find(" logged rounds are on their disks");
      if (at == std::string::npos) continue;
      rounds += std::strtoull(line.c_str() + line.rfind(' ', at - 1) + 1, nullptr, 10);
    }
    return rounds;
  }
  void kill_tracker() { tracker_.reset(); }

  // Worker `w` kills itself `delay_us` after it has entered `phase` in life `life`, from `iteration` on.
  void order(std::uint32_t w, std::uint32_t life, Phase phase, std::uint64_t iteration, std::uint64_t delay_us) {
    for (Order& o : pages_[w]->orders) {
      if (o.phase.load() != 0) continue;
      o.life.store(life);
      o.iteration.store(iteration);
      o.delay_us.store(delay_us);
      o.phase.store(static_cast<std::uint32_t>(phase));
      deaths_ordered_++;
      return;
    }
    FAIL() << "no room for another order";
  }
  // When a worker has made such a record, once.
  struct Cue {
    std::uint32_t worker = 0;
    RecordEvent event{};
    std::uint64_t iteration = 0;
    std::uint32_t life = 0;
  };
  void when(const Cue& cue, std::function<void()> action) { cues_.emplace_back(cue, std::move(action)); }

  void kill(std::uint32_t w) {
    if (!lives_[w]) return;
    lives_[w]->signal(SIGKILL);
    deaths_ordered_++;
  }
  // Log segments, its own among them, that a worker's process maps.
  [[nodiscard]] std::size_t mapped_segments(std::uint32_t w) const {
    std::set<std::string> inodes;
    std::ifstream maps("/proc/" + std::to_string(lives_[w]->pid()) + "/maps");
    for (std::string line; std::getline(maps, line);) {
      std::istringstream fields(line);
      std::string addresses, rights, offset, device, inode;
      fields >> addresses >> rights >> offset >> device >> inode;
      if (line.find("memfd:warren-log") != std::string::npos) inodes.insert(inode);
    }
    return inodes.size();
  }
  // Every process of the job at once; then `between`, while nobody runs. All is started again as its records end.
  void kill_all(const std::function<void()>& between) {
    tracker_.reset();
    for (std::uint32_t w = 0; w < lives_.size(); w++) kill(w);
    for (std::uint32_t w = 0; w < lives_.size(); w++) {
      if (!lives_[w]) continue;
      (void)lives_[w]->reap();
      lives_[w].reset();
      deaths_++;
      read_records(w);
    }
    between();
    start_tracker();
    for (std::uint32_t w = 0; w < lives_.size(); w++) start_worker(w);
  }
  // Each host has a disk. `mode`: of the log.
  void use_disks(const std::string& mode) { log_mode_ = mode; }
  void use_mirror() { mirror_ = folder_ + "/mirror"; }
  // Until so many checkpoints are complete there.
  void await_mirror(int checkpoints = 1) const {
    const auto complete = [&] {
      int found = 0;
      std::error_code error;
      for (std::filesystem::recursive_directory_iterator it(mirror_, error), end; !error && it != end;
           it.increment(error)) {
        found += it->path().filename() == "COMPLETE" ? 1 : 0;
      }
      return found >= checkpoints;
    };
    // The folder may not be there yet: it is looked at again and again.
    for (const auto end = Clock::now() + kPatience; !complete();) {
      if (Clock::now() > end) FAIL() << "the mirror has no " << checkpoints << " complete checkpoints";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  // A program may fail; it is started again after that, and all may begin again from a checkpoint.
  void on_failure(std::function<void()> action) { on_failure_ = std::move(action); }
  // Folders stand in the places of the mirror's shards of global states, which even root cannot read; or not any more.
  void hide_mirrored_shards(bool hide) const {
    std::vector<std::filesystem::path> found;
    const std::string first = hide ? "global-" : "aside-";
    for (const auto& entry : std::filesystem::recursive_directory_iterator(mirror_)) {
      if (entry.path().filename().string().starts_with(first)) found.push_back(entry.path());
    }
    for (const auto& path : found) {
      const std::string name = path.filename();
      const auto other = path.parent_path() / (hide ? "aside-" + name : name.substr(first.size()));
      if (!hide) std::filesystem::remove(other);
      std::filesystem::rename(path, other);
      if (hide) std::filesystem::create_directory(path);
    }
  }
  // The mirror is an empty folder, as where it is not mounted; or what it was, without all versions but the oldest.
  void take_mirror_away() const {
    std::filesystem::rename(mirror_, mirror_ + "-aside");
    std::filesystem::create_directory(mirror_);
  }
  void give_back_oldest_of_mirror() const {
    std::filesystem::remove_all(mirror_);
    std::filesystem::rename(mirror_ + "-aside", mirror_);
    std::set<std::filesystem::path> complete;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(mirror_)) {
      if (entry.path().filename() == "COMPLETE") complete.insert(entry.path());
    }
    for (const auto& path : complete) {
      if (path != *complete.begin()) std::filesystem::remove(path);
    }
  }
  void lose_disk(const std::string& host) { std::filesystem::remove_all(disk_of(host)); }
  void lose_journal() { std::filesystem::remove_all(folder_ + "/tracker"); }
  [[nodiscard]] std::string disk_of(const std::string& host) const { return folder_ + "/disk-" + host; }
  // The life goes on as a zombie; another takes its place.
  void replace_stopped(std::uint32_t w) {
    lives_[w]->signal(SIGSTOP);
    zombies_.push_back(std::move(lives_[w]));
    start_worker(w);
  }
  void wake_zombies() {
    for (auto& z : zombies_) z->signal(SIGCONT);
  }
  // Exit codes of the zombies, which have ended.
  std::vector<int> zombies_end() {
    std::vector<int> out;
    for (auto& z : zombies_) {
      pollfd p{z->pidfd(), POLLIN, 0};
      EXPECT_EQ(poll(&p, 1, 60'000), 1) << "the zombie goes on";
      z->signal(SIGKILL);
      out.push_back(z->reap());
    }
    zombies_.clear();
    return out;
  }

  // Starts everything, and starts again whatever is killed, until all have finished.
  void run() {
    start_tracker();
    for (std::uint32_t w = 0; w < lives_.size(); w++) start_worker(w);
    last_progress_ = Clock::now();
    while (!judge_.all_finished() || std::ranges::any_of(lives_, [](const auto& l) { return l != nullptr; })) {
      step();
      if (::testing::Test::HasFailure()) return tell_where();
      if (Clock::now() - last_progress_ > kPatience) {
        ADD_FAILURE() << "the job hangs";
        return tell_where();
      }
    }
    EXPECT_EQ(deaths_, deaths_ordered_) << "faults that were ordered did not strike";
    EXPECT_TRUE(on_failure_ || rollbacks_ == 0) << "rounds were lost: " << rollbacks_;
    EXPECT_TRUE(cues_.empty());
  }

  [[nodiscard]] std::string tracker_log() const { return folder_ + "/tracker.log"; }
  [[nodiscard]] const Judge& judge() const { return judge_; }
  [[nodiscard]] int deaths() const { return deaths_; }
  [[nodiscard]] const std::vector<Record>& failures() const { return failures_; }

 private:
  void start_worker(std::uint32_t w) {
    lives_[w] = std::make_unique<Child>(
        std::vector<std::string>{WARREN_CLI, "chaos", "--worker_of=" + folder_},
        std::vector<std::string>{
            "WARREN_TRACKER=127.0.0.1:" + std::to_string(port_), "WARREN_JOB=recovery", "WARREN_INSECURE_NO_AUTH=1",
            "WARREN_WORLD_SIZE=" + std::to_string(lives_.size()), "WARREN_WORKER_ID=" + std::to_string(w),
            "WARREN_ATTEMPT=" + std::to_string(attempts_[w]++), "WARREN_HOST_ID=" + hosts_[w],
            "WARREN_DOMAIN_ID=" + hosts_[w], "WARREN_REPLICAS=" + std::to_string(replicas_),
            "WARREN_LOG_MEMORY_BYTES=2G", "WARREN_ROUND_TIMEOUT_MS=" + std::to_string(kRoundTimeoutMs),
            "WARREN_JOIN_TIMEOUT_MS=60000", "WARREN_LOG_LEVEL=" + std::string(verbose() ? "info" : "error"),
            log_mode_.empty() ? "X=" : "WARREN_LOG=" + log_mode_,
            mirror_.empty() ? "Z=" : "WARREN_CHECKPOINT_MIRROR=" + mirror_,
            log_mode_.empty() ? "Y=" : "WARREN_DATA_DIR=" + disk_of(hosts_[w])});
  }

  void step() {
    std::vector<pollfd> fds;
    for (const int fd : pipes_) fds.push_back({fd, POLLIN, 0});
    std::vector<std::uint32_t> who;
    for (std::uint32_t w = 0; w < lives_.size(); w++) {
      if (!lives_[w]) continue;
      fds.push_back({lives_[w]->pidfd(), POLLIN, 0});
      who.push_back(w);
    }
    if (poll(fds.data(), fds.size(), 1000) <= 0) return;
    // Records first: an ended worker has written them before.
    for (std::uint32_t w = 0; w < pipes_.size(); w++) read_records(w);
    for (std::size_t i = 0; i < who.size(); i++) {
      if (fds[pipes_.size() + i].revents != 0) on_end(who[i]);
    }
  }

  void read_records(std::uint32_t w) {
    Record r;
    ssize_t n;
    while ((n = read(pipes_[w], &r, sizeof r)) > 0) {
      ASSERT_EQ(n, static_cast<ssize_t>(sizeof r));
      last_progress_ = Clock::now();
      if (const auto why = judge_.take(w, r)) ADD_FAILURE() << *why;
      if (r.event == static_cast<std::uint32_t>(RecordEvent::kFailed)) failures_.push_back(r);
      for (auto cue = cues_.begin(); cue != cues_.end(); ++cue) {
        const Cue& c = cue->first;
        if (c.worker != w || static_cast<std::uint32_t>(c.event) != r.event || c.iteration != r.iteration ||
            c.life != r.life) {
          continue;
        }
        const auto action = std::move(cue->second);
        cues_.erase(cue);
        action();
        break;
      }
    }
  }

  void on_end(std::uint32_t w) {
    read_records(w);
    const int status = lives_[w]->reap();
    lives_[w].reset();
    last_progress_ = Clock::now();
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
      deaths_++;
    } else if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
      rollbacks_++;
      judge_.forgive_rollback();
    } else if (on_failure_) {
      on_failure_();
    } else {
      ADD_FAILURE() << "worker " << w << " ended with wait status " << status;
      return;
    }
    start_worker(w);
  }

  static std::string last_line(const std::string& path) {
    std::ifstream file(path);
    std::string last = "(says nothing)";
    for (std::string line; std::getline(file, line);) last = line;
    return last;
  }
  void tell_where() {
    for (std::uint32_t w = 0; w < pages_.size(); w++) {
      const Page& p = *pages_[w];
      std::fprintf(stderr, "worker %u: life %u, %s, iteration %llu, call %u\n", w, p.lives.load() - 1,
                   name_of(static_cast<Phase>(p.phase.load())), static_cast<unsigned long long>(p.iteration.load()),
                   p.call.load());
    }
    std::fprintf(stderr, "tracker: %s\n", last_line(tracker_log()).c_str());
  }

  const Program program_;
  Judge judge_;
  const std::vector<std::string> hosts_;
  const int replicas_;
  const std::uint16_t port_;
  std::string folder_;
  std::vector<int> pipes_;
  std::vector<std::shared_ptr<Page>> pages_;
  std::unique_ptr<Child> tracker_;
  std::vector<std::unique_ptr<Child>> lives_, zombies_;
  std::vector<int> attempts_;
  std::vector<std::pair<Cue, std::function<void()>>> cues_;
  std::vector<Record> failures_;
  std::string log_mode_;  // empty: nothing is on disk
  std::string mirror_;    // empty: there is none
  std::function<void()> on_failure_;
  int deaths_ordered_ = 0, deaths_ = 0, rollbacks_ = 0;
  Clock::time_point last_progress_;
};

// Worker w is on host w % 2.
inline std::vector<std::string> two_hosts(std::uint32_t ranks) {
  std::vector<std::string> out;
  for (std::uint32_t w = 0; w < ranks; w++) out.push_back(w % 2 == 0 ? "a" : "b");
  return out;
}

inline ProgramShape shape(std::uint32_t ranks, Mix mix, std::size_t bytes, std::uint64_t iterations,
                          std::uint64_t every) {
  ProgramShape s;
  s.seed = 7;
  s.ranks = ranks;
  s.mix = mix;
  s.bytes = bytes;
  s.iterations = iterations;
  s.checkpoint_every = every;
  return s;
}

inline constexpr std::size_t kMiB = 1 << 20;

}  // namespace warren::testing
