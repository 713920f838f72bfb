// Jobs of real processes that are killed, stopped and started again: every result of every life is compared with the
// oracle's. The workers run the program of `warren chaos`; they tell each step through a pipe, which is what the tests
// wait for, and kill themselves at points that a test names.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
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

#include "chaos/process/judge.h"
#include "chaos/process/records.h"
#include "chaos/process/worker.h"
#include "warren/warren.h"

namespace warren {
namespace {

using namespace chaos::process;
using Clock = std::chrono::steady_clock;

constexpr int kRoundTimeoutMs = 2000;
// A job that stands still for so long hangs.
constexpr std::chrono::seconds kPatience(60);

// What processes say on standard error is of use only where a test fails.
bool verbose() {
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

std::uint16_t free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

class Job {
 public:
  // `hosts`: of each worker. Every host is a failure domain.
  Job(const ProgramShape& shape, std::vector<std::string> hosts, int replicas = 2)
      : program_(shape), judge_(program_), hosts_(std::move(hosts)), replicas_(replicas), port_(free_port()) {
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
    while (!complete()) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // CTest ends what never comes
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

  void tell_where() {
    for (std::uint32_t w = 0; w < pages_.size(); w++) {
      const Page& p = *pages_[w];
      std::fprintf(stderr, "worker %u: life %u, %s, iteration %llu, call %u\n", w, p.lives.load() - 1,
                   name_of(static_cast<Phase>(p.phase.load())), static_cast<unsigned long long>(p.iteration.load()),
                   p.call.load());
    }
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
std::vector<std::string> two_hosts(std::uint32_t ranks) {
  std::vector<std::string> out;
  for (std::uint32_t w = 0; w < ranks; w++) out.push_back(w % 2 == 0 ? "a" : "b");
  return out;
}

ProgramShape shape(std::uint32_t ranks, Mix mix, std::size_t bytes, std::uint64_t iterations, std::uint64_t every) {
  ProgramShape s;
  s.seed = 7;
  s.ranks = ranks;
  s.mix = mix;
  s.bytes = bytes;
  s.iterations = iterations;
  s.checkpoint_every = every;
  return s;
}

constexpr std::size_t kMiB = 1 << 20;

TEST(Recovery, NothingHappens) {
  for (const Mix mix : {Mix::kBig, Mix::kInPlace, Mix::kAllocated, Mix::kInFlight, Mix::kGroups, Mix::kOneSided,
                        Mix::kSmall, Mix::kNarrow, Mix::kFused, Mix::kMessages}) {
    SCOPED_TRACE(name_of(mix));
    Job job(shape(3, mix, 4 * kMiB, 6, 2), two_hosts(3));
    job.run();
    EXPECT_EQ(job.judge().progress(0).lives, 1u);
  }
}

// At moments from the first bytes to about the last.
void kill_in_64_mib(std::uint32_t ranks, const std::vector<std::uint64_t>& delays_us) {
  for (const std::uint64_t delay_us : delays_us) {
    SCOPED_TRACE("killed after " + std::to_string(delay_us) + " us");
    Job job(shape(ranks, Mix::kBig, 64 * kMiB, 4, 2), two_hosts(ranks));
    job.order(1, 0, Phase::kBigRound, 2, delay_us);
    job.run();
    EXPECT_EQ(job.judge().progress(1).lives, 2u);
    if (::testing::Test::HasFailure()) return;
  }
}
TEST(Recovery, KilledInTheMiddleOf64MiBWithThreeRanks) {
  kill_in_64_mib(3, {1'000, 60'000, 150'000});
}
TEST(Recovery, KilledInTheMiddleOf64MiBWithFourRanks) {
  kill_in_64_mib(4, {0, 30'000, 200'000});
}

TEST(Recovery, InPlaceInFlightInGroupsAndOneSided) {
  const std::pair<Mix, std::uint64_t> cases[] = {
      {Mix::kInPlace, 2'000},   {Mix::kInPlace, 15'000}, {Mix::kInFlight, 1'000},  {Mix::kInFlight, 20'000},
      {Mix::kGroups, 5'000},    {Mix::kOneSided, 0},     {Mix::kOneSided, 10'000}, {Mix::kMessages, 3'000},
      {Mix::kMessages, 12'000}, {Mix::kMixed, 5'000}};
  for (const auto& [mix, delay_us] : cases) {
    SCOPED_TRACE(std::string(name_of(mix)) + ", killed after " + std::to_string(delay_us) + " us");
    Job job(shape(4, mix, 12 * kMiB, 5, 2), two_hosts(4));
    job.order(2, 0, Phase::kBigRound, 3, delay_us);
    job.run();
    if (HasFailure()) return;
  }
}

// What travels as bf16: results that are replayed, finished and computed are the same bits, also those that a rank has
// made itself.
TEST(Recovery, NarrowedCallsWithOneAndTwoHosts) {
  for (const std::uint64_t delay_us : {0, 1'000, 4'000, 12'000}) {
    for (const bool one : {true, false}) {
      SCOPED_TRACE(std::string(one ? "one host" : "two hosts") + ", killed after " + std::to_string(delay_us) + " us");
      Job job(shape(4, Mix::kNarrow, 8 * kMiB, 5, 2), one ? std::vector<std::string>(4, "a") : two_hosts(4),
              one ? 1 : 2);
      job.order(2, 0, Phase::kBigRound, 2, delay_us);
      job.order(1, 0, Phase::kBigRound, 3, delay_us / 2);
      job.run();
      if (HasFailure()) return;
    }
  }
}

// Calls that were put together: a new life puts the same ones together, wherever the one before was killed.
TEST(Recovery, FusedCallsWithOneAndTwoHosts) {
  for (const std::uint64_t delay_us : {0, 300, 1'000, 5'000}) {
    for (const bool one : {true, false}) {
      SCOPED_TRACE(std::string(one ? "one host" : "two hosts") + ", killed after " + std::to_string(delay_us) + " us");
      Job job(shape(3, Mix::kFused, kMiB, 8, 3), one ? std::vector<std::string>(3, "a") : two_hosts(3), one ? 1 : 2);
      job.order(2, 0, Phase::kSmallRound, 2, delay_us);
      job.order(1, 0, Phase::kSmallRound, 4, delay_us / 2);
      job.order(2, 1, Phase::kSmallRound, 5, delay_us);
      job.run();
      if (HasFailure()) return;
    }
  }
}

// Ranks of one host reduce from each other's inputs where they lie, those that are in place too; each rank draws which
// of its buffers lie there.
TEST(Recovery, AllocatedBuffersWithOneAndTwoHosts) {
  for (const std::uint64_t delay_us : {0, 700, 2'000, 4'000, 9'000, 20'000}) {
    for (const bool one : {true, false}) {
      SCOPED_TRACE(std::string(one ? "one host" : "two hosts") + ", killed after " + std::to_string(delay_us) + " us");
      Job job(shape(4, Mix::kAllocated, 8 * kMiB, 5, 2), one ? std::vector<std::string>(4, "a") : two_hosts(4),
              one ? 1 : 2);
      job.order(2, 0, Phase::kBigRound, 2, delay_us);
      job.order(2, 1, Phase::kBigRound, 3, delay_us / 2);
      job.run();
      if (HasFailure()) return;
    }
  }
}

TEST(Recovery, AllocatedBuffersWithTwoRanks) {
  for (const std::uint64_t delay_us : {0, 1'000, 3'000, 8'000}) {
    SCOPED_TRACE("killed after " + std::to_string(delay_us) + " us");
    Job job(shape(2, Mix::kAllocated, 8 * kMiB, 6, 2), {"a", "a"}, 1);
    job.order(1, 0, Phase::kBigRound, 2, delay_us);
    job.run();
    if (HasFailure()) return;
  }
}

TEST(Recovery, KilledTwice) {
  Job job(shape(3, Mix::kBig, 16 * kMiB, 8, 3), two_hosts(3));
  job.order(1, 0, Phase::kBigRound, 2, 5'000);
  job.order(1, 1, Phase::kBigRound, 5, 5'000);
  job.run();
}

// No checkpoint makes anything obsolete: segments of lives that are over go all the same.
TEST(Recovery, ManyLivesWithoutACheckpoint) {
  // So many more iterations that no life is at the end before it is killed, however late this process comes to it.
  constexpr std::uint32_t kDeaths = 16, kMore = 200;
  Job job(shape(2, Mix::kSmall, 256 << 10, kDeaths + kMore, 1000), {"a", "a"}, 1);
  std::size_t most = 0;
  for (std::uint32_t life = 0; life < kDeaths; life++) {
    job.when({1, RecordEvent::kBegin, life + 1, life}, [&] {
      most = std::max(most, job.mapped_segments(0));
      job.kill(1);
    });
  }
  job.run();
  EXPECT_EQ(job.judge().progress(1).lives, kDeaths + 1);
  EXPECT_GE(most, 2u);
  EXPECT_LE(most, 8u) << "two that live, four that may stay, one that has died since the last look, the last one's";
}

TEST(Recovery, TwoAtOnce) {
  for (const std::uint32_t other : {1u, 2u}) {  // of the other host, of the same
    SCOPED_TRACE("workers 0 and " + std::to_string(other));
    Job job(shape(4, Mix::kBig, 16 * kMiB, 6, 2), two_hosts(4));
    job.when({0, RecordEvent::kBegin, 3, 0}, [&] {
      job.kill(0);
      job.kill(other);
    });
    job.run();
    if (HasFailure()) return;
  }
}

TEST(Recovery, KilledDuringReplayAndLoad) {
  Job job(shape(3, Mix::kBig, 16 * kMiB, 7, 100), two_hosts(3));
  job.order(2, 0, Phase::kBigRound, 5, 5'000);
  job.order(2, 1, Phase::kReplay, 2, 3'000);
  job.order(2, 2, Phase::kLoad, 0, 0);
  job.order(2, 3, Phase::kReplay, 3, 0);
  job.run();
  EXPECT_EQ(job.judge().progress(2).lives, 5u);
}

TEST(Recovery, ManySmallRoundsAreReplayed) {
  Job job(shape(3, Mix::kSmall, 4096, 30, 1000), two_hosts(3));
  job.order(1, 0, Phase::kSmallRound, 28, 0);
  job.run();
  EXPECT_GE(job.judge().progress(1).replayed, 2800u);
}

TEST(Recovery, KilledAroundACheckpoint) {
  for (const Phase phase : {Phase::kCheckpoint, Phase::kCheckpointed}) {
    for (const std::uint64_t delay_us : {0u, 500u, 5'000u}) {
      SCOPED_TRACE(std::string(name_of(phase)) + ", killed after " + std::to_string(delay_us) + " us");
      ProgramShape s = shape(3, Mix::kSmall, 4096, 8, 2);
      s.state_bytes = 8 * kMiB;
      Job job(s, two_hosts(3));
      job.order(1, 0, phase, 3, delay_us);
      job.run();
      if (HasFailure()) return;
    }
  }
}

// Segments of dead lives go after two commits. What of the preamble only they held has been logged again by then.
TEST(Recovery, ThePreambleOutlivesAllThatWroteIt) {
  for (const bool one_host : {true, false}) {
    SCOPED_TRACE(one_host ? "one host" : "two hosts");
    Job job(shape(4, Mix::kSmall, 4096, 28, 1),
            one_host ? std::vector<std::string>(4, "a") : std::vector<std::string>{"a", "a", "b", "b"});
    for (std::uint32_t life = 0; life < 2; life++) {
      for (std::uint32_t w = 0; w < 4; w++) job.order(w, life, Phase::kSmallRound, 3 * (4 * life + w) + 2, 0);
    }
    job.run();
    if (HasFailure()) return;
  }
}

TEST(Recovery, KilledInFinalize) {
  Job job(shape(3, Mix::kSmall, 4096, 3, 2), two_hosts(3));
  job.order(1, 0, Phase::kFinalize, 0, 0);
  job.run();
}

// The one that returned may be the only one that knows the result.
void kill_the_owner(const std::vector<std::string>& hosts) {
  Job job(shape(2, Mix::kBig, 4 * kMiB, 8, 3), hosts);
  job.when({1, RecordEvent::kResult, 1, 0}, [&] { job.kill(0); });
  job.when({1, RecordEvent::kResult, 4, 0}, [&] { job.kill(0); });
  job.run();
}
TEST(Recovery, TheOwnerIsKilledAfterItsPeerHasReturnedOnOneHost) {
  kill_the_owner({"a", "a"});
}
TEST(Recovery, TheOwnerIsKilledAfterItsPeerHasReturnedOnTwoHosts) {
  kill_the_owner({"a", "b"});
}

TEST(Recovery, AStoppedWorkerIsReplacedAndFindsItselfFenced) {
  Job job(shape(3, Mix::kBig, 16 * kMiB, 8, 2), two_hosts(3));
  job.when({1, RecordEvent::kBegin, 3, 0}, [&] { job.replace_stopped(1); });
  // The others have gone on without it.
  job.when({0, RecordEvent::kResult, 4, 0}, [&] { job.wake_zombies(); });
  job.run();
  const std::vector<int> ends = job.zombies_end();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(WIFEXITED(ends[0]) && WEXITSTATUS(ends[0]) == 1) << "wait status " << ends[0];
  ASSERT_EQ(job.failures().size(), 1u);
  EXPECT_EQ(job.failures()[0].life, 0u);
  EXPECT_EQ(job.failures()[0].value, static_cast<std::uint64_t>(ErrorCode::closed));
}

TEST(Recovery, TheTrackerIsKilledWhileRoundsGoOn) {
  Job job(shape(3, Mix::kBig, 4 * kMiB, 12, 4), two_hosts(3));
  job.when({0, RecordEvent::kBegin, 2, 0}, [&] { job.kill_tracker(); });
  // Rounds go on; the commit of the next version waits for it.
  job.when({0, RecordEvent::kResult, 6, 0}, [&] { job.start_tracker(); });
  job.run();
}

TEST(Recovery, TheTrackerIsKilledThenAWorker) {
  Job job(shape(3, Mix::kBig, 4 * kMiB, 12, 4), two_hosts(3));
  job.when({0, RecordEvent::kBegin, 2, 0}, [&] {
    job.kill_tracker();
    job.kill(1);
  });
  job.when({1, RecordEvent::kStarted, 0, 1}, [&] { job.start_tracker(); });
  job.run();
}

// A job with a checkpoint after every fourth iteration, of which all processes are killed when worker 0 has begun the
// last call but one of iteration `at`. Returns how many rounds are not run again: they are on disks.
std::uint64_t kept_after_the_loss_of_all(const std::string& mode, std::uint64_t at,
                                         const std::function<void(Job&)>& between) {
  Job job(shape(4, Mix::kBig, kMiB, 9, 4), two_hosts(4));
  job.use_disks(mode);
  job.when({0, RecordEvent::kBegin, at, 0}, [&] { job.kill_all([&] { between(job); }); });
  job.run();
  EXPECT_EQ(job.judge().progress(0).lives, 2u);
  return job.rounds_kept();
}

// One round an iteration, and worker 0 is at most one ahead of those that it waits for.
TEST(Recovery, AfterTheLossOfAllProcessesLoggedRoundsAreNotRunAgain) {
  EXPECT_GE(kept_after_the_loss_of_all("sync", 7, [](Job&) {}), 3u);
}
TEST(Recovery, AfterTheLossOfAllProcessesAndADiskLoggedRoundsAreNotRunAgain) {
  for (const char* host : {"a", "b"}) {
    SCOPED_TRACE(host);
    EXPECT_GE(kept_after_the_loss_of_all("sync", 7, [&](Job& job) { job.lose_disk(host); }), 3u);
  }
}
TEST(Recovery, AfterTheLossOfAllProcessesWhatWasNotWrittenIsRunAgain) {
  (void)kept_after_the_loss_of_all("async", 7, [](Job&) {});
}
TEST(Recovery, AfterTheLossOfAllProcessesAndTheJournalTheDisksKnowTheJob) {
  EXPECT_GE(kept_after_the_loss_of_all("sync", 7, [](Job& job) { job.lose_journal(); }), 3u);
  SCOPED_TRACE("and a disk");
  const auto lose_both = [](Job& job) {
    job.lose_journal();
    job.lose_disk("a");
  };
  EXPECT_GE(kept_after_the_loss_of_all("sync", 7, lose_both), 3u);
}
// Everything but the mirror is lost, with a checkpoint that is there.
TEST(Recovery, AfterTheLossOfAllDisksTheMirrorHasTheCheckpoints) {
  for (const bool journal : {true, false}) {
    SCOPED_TRACE(journal);
    Job job(shape(4, Mix::kBig, 64 << 10, 300, 4), two_hosts(4));
    job.use_disks("async");
    job.use_mirror();
    job.when({0, RecordEvent::kBegin, 10, 0}, [&] {
      job.await_mirror();
      job.kill_all([&] {
        for (const char* host : {"a", "b"}) job.lose_disk(host);
        if (!journal) job.lose_journal();
      });
    });
    job.run();
    EXPECT_EQ(job.judge().progress(0).lives, 2u);
    EXPECT_GE(job.judge().progress(0).loaded, 1u) << "it did not begin anew";
  }
}

// It may be whole: the worker fails, and the job waits for its next life. It ended for all of them.
TEST(Recovery, WhoCannotReadTheMirrorDoesNotEndTheJob) {
  // The next checkpoint comes long after the mirror has the first.
  Job job(shape(4, Mix::kBig, kMiB, 600, 200), two_hosts(4));
  job.use_disks("async");
  job.use_mirror();
  bool hidden = false;
  job.when({0, RecordEvent::kBegin, 202, 0}, [&] {
    job.await_mirror();
    job.kill_all([&] {
      for (const char* host : {"a", "b"}) job.lose_disk(host);
      job.hide_mirrored_shards(true);
      hidden = true;
    });
  });
  job.on_failure([&] {
    if (std::exchange(hidden, false)) job.hide_mirrored_shards(false);
  });
  job.run();
  EXPECT_FALSE(job.failures().empty());
  for (const Record& r : job.failures()) {
    EXPECT_EQ(r.value, static_cast<std::uint64_t>(ErrorCode::unavailable)) << "worker of life " << r.life;
  }
  EXPECT_GE(job.judge().progress(0).loaded, 1u) << "it did not begin anew";
  std::ifstream log(job.tracker_log());
  const std::string said{std::istreambuf_iterator<char>(log), {}};
  EXPECT_NE(said.find("interrupted: "), std::string::npos);
  EXPECT_EQ(said.find("job_lost: "), std::string::npos);
}

// What disks have after that is notes of lives that had found nothing: the job was taken up because of them, and lost
// again, without end.
TEST(Recovery, AnOlderVersionThatTheMirrorHasServesAlsoAfterTheJobWasCalledLost) {
  Job job(shape(4, Mix::kBig, 64 << 10, 600, 200), two_hosts(4));
  job.use_disks("async");
  job.use_mirror();
  bool away = false;
  job.when({0, RecordEvent::kBegin, 550, 0}, [&] {
    job.await_mirror(2);
    job.kill_all([&] {
      for (const char* host : {"a", "b"}) job.lose_disk(host);
      job.take_mirror_away();
      away = true;
    });
  });
  job.on_failure([&] {
    if (std::exchange(away, false)) job.give_back_oldest_of_mirror();
  });
  job.run();
  EXPECT_GE(job.judge().progress(0).loaded, 1u) << "it did not begin anew";
  std::ifstream log(job.tracker_log());
  const std::string said{std::istreambuf_iterator<char>(log), {}};
  EXPECT_NE(said.find("job_lost: "), std::string::npos);
  EXPECT_NE(said.find("mirror_used: "), std::string::npos);
}

TEST(Recovery, TheLossOfAllProcessesBeforeTheFirstCheckpoint) {
  EXPECT_GE(kept_after_the_loss_of_all("sync", 2, [](Job&) {}), 2u);
}

}  // namespace
}  // namespace warren
