#include "launcher/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <utility>

#include "launcher/guard.h"
#include "launcher/last_lines.h"
#include "launcher/output.h"
#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "worker/launch/life_sign.h"
#include "worker/system/text.h"

extern char** environ;

namespace warren::worker {
namespace {

// What does not die within so long after SIGKILL (it is stuck in the kernel) is complained of, as often.
constexpr std::int64_t kUndeadMs = 10'000;
// A dead worker may write its core file for so long.
constexpr std::int64_t kLongestDumpMs = 60'000;
// Who has not left by the time that it was given gets SIGTERM so much later.
constexpr std::int64_t kDrainMarginMs = 1000;
// For what is still to be written when the launcher gives up.
constexpr std::int64_t kLastWordsMs = 1000;
constexpr int kExitNotStarted = 127;  // as shells have it
constexpr std::array<int, 5> kPassedOn = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};

Status system_failure(const std::string& what) {
  return {Code::kInternal, what + ": " + std::strerror(errno)};
}

std::int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// glibc 2.36 declares pidfd_open without C linkage.
int open_pidfd(pid_t pid) {
  return static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
}

// Whether the process is dead, and the kernel writes its memory to a core file. Its descriptor tells the end of that.
// `proc`: where the system tells of processes.
bool is_dumping_core(const std::string& proc, pid_t pid) {
  std::ifstream status(proc + "/" + std::to_string(pid) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("CoreDumping:")) return line.ends_with('1');
  }
  return false;
}

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read_end, write_end;
};
Result<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return system_failure("cannot make a pipe");
  return Pipe{Fd(ends[0]), Fd(ends[1])};
}

// One output stream of one worker.
struct Stream {
  Fd pipe;
  LineSplitter lines{""};
  OutputQueue* queue = nullptr;
};

// How the output of a worker ends, and how much all workers had written by then.
struct Ending {
  LastLines lines{""};
  std::uint64_t written = 0;
};

struct Worker {
  std::uint32_t id = 0;
  pid_t pid = 0;  // 0: not running
  Fd pidfd;
  cpu_set_t core{};               // with bind_to_core
  std::array<Stream, 2> streams;  // stdout, stderr
  Ending ending;                  // of this life
  LifeView life;
  LifeWatch watch;
  std::int64_t started_at_ms = 0;
  std::int64_t killed_at_ms = -1;     // because it hung; -1: it was not
  std::int64_t complained_at_ms = 0;  // of that
  std::int64_t dumps_since_ms = -1;   // its core; -1: it does not

  std::uint32_t attempt = 0;        // lives before this one, those of earlier launchers included
  std::uint32_t restarts = 0;       // of them, lost or failed
  std::uint32_t rollbacks = 0;      // of them, rolled back
  std::uint32_t short_lives = 0;    // in a row
  std::uint32_t waiting_lives = 0;  // of those before this one, lost or failed while it had no place
  bool has_place = false;           // in the job, as far as is known
  bool placed = false;              // the last life had it
  bool given_up = false;            // it is not started again, and the others go on
  bool worked = false;              // the last life took part in computing a round
  bool unfinished = false;          // it was in a job that had not finished
  Status cause;                     // what it said had ended its job
  std::string last_end;             // place_of() what has ended the job for good in the life before; empty: nothing has
  bool repeats = false;             // the last two lives have ended the job for good at the same place
  bool fenced = false;              // for which its program was not to blame
  bool drained = false;             // the last life left because it was told to
  bool lost = false;                // it ended otherwise than by the program's own failure, or with success
  int last_code = 0;                // how the last life ended
  std::int64_t restart_at_ms = -1;  // -1: no restart is due
};

// Where a life has ended its job: the code, and the round that the text names; the whole text if it names none. The
// rest of the text differs between lives that disagree in the same round, as either rank may be the one that tells.
std::string place_of(const Status& cause) {
  constexpr std::string_view kRound = "round ";
  const std::string_view text = cause.message();
  const std::size_t begin = text.find(kRound);
  const std::size_t end = begin == text.npos ? text.npos : text.find_first_of(" :,", begin + kRound.size());
  const std::string_view place = begin == text.npos ? text : text.substr(begin, end - begin);
  return std::to_string(static_cast<int>(cause.code())) + " " + std::string(place);
}

bool same_file(int a, int b) {
  struct stat x {
  }, y{};
  return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// NAME=value strings and the pointers that exec takes.
class ChildEnvironment {
 public:
  explicit ChildEnvironment(const std::map<std::string, std::optional<std::string>>& changes) {
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      if (!changes.contains(std::string(text.substr(0, text.find('='))))) strings_.emplace_back(text);
    }
    for (const auto& [name, value] : changes) {
      if (value) strings_.push_back(name + "=" + *value);
    }
    for (std::string& s : strings_) pointers_.push_back(s.data());
    pointers_.push_back(nullptr);
  }
  [[nodiscard]] char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> strings_;
  std::vector<char*> pointers_;
};

// Between fork and exec of a process that may have threads: only calls that are safe in a signal handler.
[[noreturn]] void become_worker(const char* const* program, char* const* environment, pid_t launcher,
                                const cpu_set_t* core, const rlimit* open_files, int output, int error, int life,
                                int failed) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  sigset_t none;  // a signal that the launcher was started with blocked would end no worker
  sigemptyset(&none);
  // The launcher may have died before the death signal was asked for.
  if (getppid() == launcher && nothing >= 0 && dup2(nothing, 0) >= 0 && dup2(output, 1) >= 0 && dup2(error, 2) >= 0 &&
      (life < 0 || fcntl(life, F_SETFD, 0) == 0) &&
      (core == nullptr || sched_setaffinity(0, sizeof *core, core) == 0) &&
      (open_files == nullptr || setrlimit(RLIMIT_NOFILE, open_files) == 0) &&
      sigprocmask(SIG_SETMASK, &none, nullptr) == 0) {
    execvpe(program[0], const_cast<char* const*>(program), environment);
  }
  const int why = errno;
  // If nobody reads this any more, nobody waits for it either.
  [[maybe_unused]] const ssize_t told = write(failed, &why, sizeof why);
  _exit(127);
}

class Launch {
 public:
  Launch(const LaunchOptions& options, const LauncherSignals& signals, Guard guard)
      : options_(options),
        signals_(signals),
        guard_(std::move(guard)),
        output_(options.output_fd),
        separate_error_(options.error_fd),
        error_(same_file(options.output_fd, options.error_fd) ? &output_ : &separate_error_) {
    for (const std::string& word : options_.program) program_.push_back(word.c_str());
    program_.push_back(nullptr);
    workers_.resize(options.workers + options.spares);
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      workers_[i].id = options.first_worker + (i < options.workers ? i : world_size() + i - options.workers);
      workers_[i].attempt = options.first_attempt;
      workers_[i].has_place = i < options.workers;
    }
    last_look_ms_ = now_ms();
  }

  Result<int> run() {
    if (Status s = choose_cores(); !s.ok()) return s;
    for (Worker& w : workers_) {
      Status s = start(w);
      if (s.code() == Code::kUnavailable) {
        s = {s.code(), s.describe() + "; give the path of a program, after -- if it has flags of its own"};
      }
      if (!s.ok()) return give_up(std::move(s));
    }
    while (true) {
      take_other_lines();
      output_.write_some();
      error_->write_some();
      if (!running() && !restart_due()) {
        repeat_last_lines();
        if (output_.empty() && error_->empty()) return exit_code();
        if (asked_to_end_ && abandon_at_ms_ < 0) abandon_at_ms_ = now_ms() + options_.grace_ms;
      }
      if (Status s = wait_for_something(); !s.ok()) return give_up(std::move(s));
    }
  }

 private:
  [[nodiscard]] std::uint32_t world_size() const {
    return options_.world_size != 0 ? options_.world_size : options_.workers;
  }

  Status choose_cores() {
    if (!options_.bind_to_core) return {};
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return system_failure("cannot tell which cores there are");
    std::size_t next = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE && next < workers_.size(); ++cpu) {
      if (!CPU_ISSET(cpu, &allowed)) continue;
      cpu_set_t& core = workers_[next++].core;
      CPU_ZERO(&core);
      CPU_SET(cpu, &core);
    }
    if (next == workers_.size()) return {};
    return {Code::kInvalidArgument, "cannot give each of " + std::to_string(workers_.size()) +
                                        " workers a core of its own: this process may use " + std::to_string(next) +
                                        "; start fewer workers, or leave --bind_to_core out"};
  }

  // Ends everything, says what can be said within a moment, and returns `why`.
  Status give_up(Status why) {
    kill_all();
    reap_all();
    for (Worker& w : workers_) {
      for (Stream& s : w.streams) drain(w, s);
    }
    take_other_lines();
    const std::int64_t until_ms = now_ms() + kLastWordsMs;
    while (true) {
      output_.write_some();
      error_->write_some();
      std::vector<pollfd> fds;
      for (const OutputQueue* q : {&output_, error_}) {
        if (!q->empty()) fds.push_back({q->fd(), POLLOUT, 0});
      }
      const std::int64_t left_ms = until_ms - now_ms();
      if (fds.empty() || left_ms <= 0 || poll(fds.data(), fds.size(), static_cast<int>(left_ms)) < 0) return why;
    }
  }

  // kUnavailable: not such a program, or not now. On every failure nothing of the worker is left but, perhaps, a
  // process that bury() ends.
  Status start(Worker& w) {
    // Until it lives, nothing of the life before counts for this one.
    w.worked = w.placed = w.unfinished = w.drained = w.fenced = false;
    w.cause = Status();
    w.started_at_ms = now_ms();
    w.killed_at_ms = w.dumps_since_ms = -1;
    const std::string prefix = options_.prefix ? "[" + std::to_string(w.id) + "] " : "";
    w.ending = {LastLines(prefix), written_};
    auto output = make_pipe();
    auto error = make_pipe();
    auto failed = make_pipe();  // closed by a successful exec, else tells errno
    for (const auto* p : {&output, &error, &failed}) {
      if (!p->ok()) return p->status().because_of_this("cannot start worker " + std::to_string(w.id));
    }
    LifeView life;
    if (watching()) {
      auto made = LifeView::create();
      if (!made.ok()) return made.status().because_of_this("cannot start worker " + std::to_string(w.id));
      life = std::move(made).value();
    }
    auto changes = options_.variables;
    changes["WARREN_WORKER_ID"] = std::to_string(w.id);
    changes["WARREN_WORLD_SIZE"] = std::to_string(world_size());
    changes["WARREN_LOCAL_WORLD_SIZE"] = std::to_string(workers_.size());
    changes["WARREN_ATTEMPT"] = std::to_string(w.attempt);
    changes[kLifeVariable] = watching() ? std::optional(std::to_string(life.fd())) : std::nullopt;
    const ChildEnvironment environment(changes);
    const pid_t launcher = getpid();
    const pid_t pid = fork();
    if (pid == 0) {
      become_worker(program_.data(), environment.get(), launcher, options_.bind_to_core ? &w.core : nullptr,
                    options_.open_files ? &*options_.open_files : nullptr, output.value().write_end.get(),
                    error.value().write_end.get(), life.fd(), failed.value().write_end.get());
    }
    if (pid < 0) return system_failure("cannot start worker " + std::to_string(w.id));
    setpgid(pid, pid);  // the child does the same; whoever is first, the group is there before anyone needs it
    guard_.add(pid);
    w.pid = pid;
    failed.value().write_end = Fd();
    int why = 0;
    ssize_t n;
    do {
      n = read(failed.value().read_end.get(), &why, sizeof why);
    } while (n < 0 && errno == EINTR);
    if (n == sizeof why) {
      bury(w);
      return {Code::kUnavailable,
              "cannot start " + in_quotes(options_.program[0]) + ": " + std::strerror(why) + what_was_meant(why)};
    }
    life.close_descriptor();
    w.life = std::move(life);
    w.watch = LifeWatch();
    w.pidfd = Fd(open_pidfd(pid));
    if (!w.pidfd.open()) {
      Status refused = system_failure("cannot watch worker " + std::to_string(w.id) + ": pidfd_open");
      return {refused.code(), refused.describe() +
                                  "; the launcher needs this call: Linux 5.3 or newer, and a container whose seccomp "
                                  "profile allows it"};
    }
    w.streams[0] = {std::move(output.value().read_end), LineSplitter(prefix), &output_};
    w.streams[1] = {std::move(error.value().read_end), LineSplitter(prefix), error_};
    for (const Stream& s : w.streams) {
      if (fcntl(s.pipe.get(), F_SETFL, O_NONBLOCK) != 0) return system_failure("cannot read a worker's output");
    }
    return {};
  }

  // Kills what is left of the worker's group and reaps the worker; returns its wait status. The worker has ended or is
  // killed by this.
  int bury(Worker& w) {
    // The group's number stays ours until the worker is reaped.
    kill(-w.pid, SIGKILL);
    guard_.remove(w.pid);
    int status = 0;
    pid_t collected;
    do {
      collected = waitpid(w.pid, &status, 0);
    } while (collected < 0 && errno == EINTR);
    WARREN_CHECK(collected == w.pid, "nobody but the launcher collects its workers, whose SIGCHLD is not ignored");
    w.pid = 0;
    w.pidfd = Fd();
    w.worked = w.life.has_worked();
    w.unfinished = w.life.in_unfinished_job();
    w.cause = w.life.cause();
    w.fenced = w.life.fenced();
    w.drained = w.life.has_drained();
    const auto place = w.life.has_place();
    w.placed = place.value_or(false);
    w.has_place = place.value_or(w.has_place);
    w.life = LifeView();
    return status;
  }

  void take_other_lines() {
    if (options_.other_lines == nullptr || !error_->has_room()) return;
    const std::uint64_t dropped = options_.other_lines->take(error_->buffer());
    if (dropped == 0) return;
    notice("lines_dropped", std::to_string(dropped) +
                                " lines of this launcher's own threads were dropped: nobody read "
                                "the standard error meanwhile");
  }

  Status wait_for_something() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<Worker*> ended_of;  // by index in fds, from 1 on
    for (Worker& w : workers_) {
      if (w.pid != 0) {
        fds.push_back({w.pidfd.get(), POLLIN, 0});
        ended_of.push_back(&w);
      }
    }
    const std::size_t first_stream = fds.size();
    std::vector<std::pair<Worker*, Stream*>> stream_of;
    for (Worker& w : workers_) {
      for (Stream& s : w.streams) {
        if (!s.pipe.open() || !s.queue->has_room()) continue;
        fds.push_back({s.pipe.get(), POLLIN, 0});
        stream_of.emplace_back(&w, &s);
      }
    }
    for (const OutputQueue* q : {&output_, error_}) {
      if (!q->empty()) fds.push_back({q->fd(), POLLOUT, 0});
    }
    // take_other_lines() sees to them.
    if (options_.other_lines != nullptr && error_->has_room()) fds.push_back({options_.other_lines->fd(), POLLIN, 0});
    if (poll(fds.data(), fds.size(), timeout_ms()) < 0 && errno != EINTR) return system_failure("cannot wait");
    for (std::size_t i = 0; i < stream_of.size(); ++i) {
      if (fds[first_stream + i].revents != 0) read_some(*stream_of[i].first, *stream_of[i].second);
    }
    // A worker that failed comes before the signal that ends the others, else its code would be lost.
    for (std::size_t i = 0; i < ended_of.size(); ++i) {
      if (fds[1 + i].revents != 0) on_end(*ended_of[i]);
    }
    if (fds[0].revents != 0) take_signal();
    on_time();
    return {};
  }

  [[nodiscard]] int timeout_ms() const {
    std::int64_t next = kill_at_ms_;
    if (term_at_ms_ >= 0 && (next < 0 || term_at_ms_ < next)) next = term_at_ms_;
    if (abandon_at_ms_ >= 0 && (next < 0 || abandon_at_ms_ < next)) next = abandon_at_ms_;
    for (const Worker& w : workers_) {
      if (w.restart_at_ms >= 0 && (next < 0 || w.restart_at_ms < next)) next = w.restart_at_ms;
    }
    if (watching() && running()) {
      const std::int64_t look_at_ms = last_look_ms_ + look_interval_ms();
      if (next < 0 || look_at_ms < next) next = look_at_ms;
    }
    if (next < 0) return -1;
    return static_cast<int>(std::clamp<std::int64_t>(next - now_ms(), 0, 60'000));
  }

  void on_time() {
    const std::int64_t now = now_ms();
    if (term_at_ms_ >= 0 && now >= term_at_ms_) {
      term_at_ms_ = -1;
      if (!draining_ && running()) {
        notice("workers_terminated", "a worker has ended and is not started again, and others are still there " +
                                         std::to_string(options_.grace_ms) + " ms later; they get SIGTERM");
      }
      signal_all(SIGTERM);
    }
    if (kill_at_ms_ >= 0 && now >= kill_at_ms_) {
      kill_at_ms_ = -1;
      if (running()) {
        notice("workers_killed",
               "the workers did not end within " + std::to_string(options_.grace_ms) + " ms; killing them");
        kill_all();
      }
    }
    if (abandon_at_ms_ >= 0 && now >= abandon_at_ms_) abandon_output();
    for (Worker& w : workers_) {
      if (w.restart_at_ms < 0 || now < w.restart_at_ms) continue;
      w.restart_at_ms = -1;
      if (const Status s = start(w); !s.ok()) on_failed_restart(w, s);
    }
    if (watching() && now >= last_look_ms_ + look_interval_ms()) look_for_life(now);
  }

  [[nodiscard]] bool watching() const { return options_.hung_after_ms > 0; }
  // Often enough that a worker is killed soon after the limit, at little cost.
  [[nodiscard]] std::int64_t look_interval_ms() const {
    std::int64_t least_ms = options_.hung_after_ms;
    for (const Worker& w : workers_) {
      if (w.pid != 0) least_ms = std::min(least_ms, hung_after_ms(w));
    }
    return std::clamp<std::int64_t>(least_ms / 20, 1, 500);
  }
  // The program may have set another round timeout than the launcher was told.
  [[nodiscard]] std::int64_t hung_after_ms(const Worker& w) const {
    const std::int64_t said = w.life.limit_ms();
    return said != 0 ? said : options_.hung_after_ms;
  }

  void look_for_life(std::int64_t now) {
    const std::int64_t elapsed_ms = now - std::exchange(last_look_ms_, now), interval_ms = look_interval_ms();
    for (Worker& w : workers_) {
      if (w.pid == 0) continue;
      const std::string who = "worker " + std::to_string(w.id);
      if (w.killed_at_ms < 0) {
        const bool hangs = w.watch.look(w.life.beats(), elapsed_ms, hung_after_ms(w), interval_ms);
        if (dumps_core(w, now) || !hangs) continue;
        notice("worker_killed_hung", who + " (process " + std::to_string(w.pid) + ") has shown no life for " +
                                         std::to_string(hung_after_ms(w)) + " ms; killing it");
        w.killed_at_ms = w.complained_at_ms = now;
        kill(-w.pid, SIGKILL);
      } else if (now - w.complained_at_ms >= kUndeadMs) {
        notice("worker_undead", who + " (process " + std::to_string(w.pid) + ") was killed " +
                                    std::to_string((now - w.killed_at_ms) / 1000) +
                                    " s ago and is still there; it can be started again only when it is gone");
        w.complained_at_ms = now;
      }
    }
  }

  // Whether the worker is dead and may go on writing its core file. It shows no life, and its end is not seen
  // meanwhile.
  bool dumps_core(Worker& w, std::int64_t now) {
    if (!is_dumping_core(options_.proc, w.pid)) return false;
    if (w.dumps_since_ms < 0) {
      w.dumps_since_ms = now;
      notice("worker_dumps_core", "worker " + std::to_string(w.id) + " (process " + std::to_string(w.pid) +
                                      ") has crashed, and its core file is being written; that may take " +
                                      std::to_string(kLongestDumpMs / 1000) + " s");
    }
    return now - w.dumps_since_ms < kLongestDumpMs;
  }

  void read_some(Worker& w, Stream& s) {
    std::array<char, 16384> bytes;
    const ssize_t n = read(s.pipe.get(), bytes.data(), bytes.size());
    if (n > 0) {
      show(w, s, std::string_view(bytes.data(), static_cast<std::size_t>(n)));
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      show_rest(w, s);
    }
  }

  void show(Worker& w, Stream& s, std::string_view bytes) {
    const std::size_t before = s.queue->buffer().size();
    s.lines.take(bytes, s.queue->buffer());
    note_lines(w, *s.queue, before);
  }

  // The stream has ended.
  void show_rest(Worker& w, Stream& s) {
    if (s.queue != nullptr) {
      const std::size_t before = s.queue->buffer().size();
      s.lines.finish(s.queue->buffer());
      note_lines(w, *s.queue, before);
    }
    s.pipe = Fd();
  }

  // The worker's lines that the queue has from `begin` on.
  void note_lines(Worker& w, OutputQueue& queue, std::size_t begin) {
    const std::string_view lines = std::string_view(queue.buffer()).substr(begin);
    if (lines.empty()) return;
    w.ending.lines.add(lines);
    w.ending.written = written_ += lines.size();
  }

  // What an ended worker left in its pipes: at most what a pipe holds. A process that fled from the group may hold the
  // pipe open for ever; it is not waited for.
  void drain(Worker& w, Stream& s) {
    const int most = s.pipe.open() ? fcntl(s.pipe.get(), F_GETPIPE_SZ) : 0;
    int taken = 0;
    std::array<char, 16384> bytes;
    while (s.pipe.open() && taken < most) {
      const ssize_t n = read(s.pipe.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      show(w, s, std::string_view(bytes.data(), static_cast<std::size_t>(n)));
      taken += static_cast<int>(n);
    }
    show_rest(w, s);
  }

  // The job is done, and so is the launcher's exit code. But the program did not come to its end in any life.
  void notice_too_late(const Worker& w) {
    notice("worker_too_late", "worker " + std::to_string(w.id) +
                                  " was started again after its job had finished, and did not run; what its program "
                                  "does after finalize is not done: let it write its results before");
  }

  void on_end(Worker& w) {
    const int status = bury(w);
    for (Stream& s : w.streams) drain(w, s);
    const bool killed = WIFSIGNALED(status);
    int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // The others would wait for it for ever.
    const bool deserted = code == 0 && w.unfinished;
    if (deserted) code = kExitDeserted;
    if (code == kExitFinished && w.has_place && w.attempt != options_.first_attempt) notice_too_late(w);
    if (code == 0 || code == kExitFinished) return;
    w.last_code = code;
    std::string what = "worker " + std::to_string(w.id);
    if (w.killed_at_ms >= 0) {
      what += " hung and was killed";
    } else if (killed) {
      what += " was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
    } else if (deserted) {
      what +=
          " ended with exit code 0 without finalize, which a program calls at its end (in Python: with warren.init() "
          "as comm)";
    } else {
      what += " ended with exit code " + std::to_string(code) + python_error_of(w);
    }
    if (!w.cause.ok() && code != kExitRolledBack) what += " after: " + std::string(w.cause.message());
    // A program that aborts before its first round (a setting that is wrong, nobody caught the exception) will again.
    const bool aborted =
        killed && WTERMSIG(status) == SIGABRT && !w.worked && now_ms() - w.started_at_ms < options_.healthy_ms;
    // However the program takes that.
    const bool permanent = recurs(w.cause.code());
    const std::string end = permanent ? place_of(w.cause) : "";
    w.repeats = permanent && end == w.last_end;
    w.last_end = end;
    w.lost = ((killed && !aborted) || code == kExitPreempted || code == kExitFenced || code == kExitHung ||
              code == kExitKillPoint || code == kExitRolledBack || w.fenced) &&
             !permanent;
    forgive(w);
    if (ending_) return on_late_end(w, what);
    if (code == kExitRolledBack) {
      on_rollback(w, what);
    } else {
      if (code == kExitPreempted) what += " (preempted)";
      if (code == kExitFenced || w.fenced) what += " (for no fault of its program's)";
      if (code == kExitHung) what += " (its program hung outside of calls)";
      if (code == kExitKillPoint) what += " (kill point)";
      // A program that leaves before it has done anything would do so for ever.
      if (code == kExitPreempted && w.drained && w.worked) {
        restart(w, what, "its place was needed elsewhere, which counts as no restart");
      } else if (code == kExitFenced && w.worked && others_go_on()) {
        restart(w, what,
                options_.min_workers != 0 ? "the job could go on without it, which counts as no restart"
                                          : "a spare could take its place, which counts as no restart");
      } else {
        on_loss(w, what);
      }
    }
  }

  // A file of the current folder that was given without one is looked for in PATH alone.
  [[nodiscard]] std::string what_was_meant(int error) const {
    const std::string& program = options_.program[0];
    if (error != ENOENT || program.find('/') != std::string::npos || access(program.c_str(), F_OK) != 0) return "";
    return program.ends_with(".py") ? "; it is in this folder, not in PATH: python " + program
                                    : "; it is in this folder, not in PATH: ./" + program;
  }

  // The place in a Python program that an uncaught exception has ended, for a sentence. The exception, too, unless it
  // is the library's, which has told why the job ended.
  [[nodiscard]] static std::string python_error_of(const Worker& w) {
    const auto error = python_error(w.ending.lines.lines());
    if (!error) return "";
    const bool left = w.cause.message().find(kLeftWithoutFinalize) != std::string_view::npos;  // and no more is told
    const bool told = !w.cause.ok() && !left && error->exception.starts_with("warren.");
    if (error->exception.empty() || told) return " (at " + error->place + ")";
    return " (" + error->exception + ", at " + error->place + ")";
  }

  // The last lines of the worker that ended the job, where others have written something since.
  void repeat_last_lines() {
    if (!failed_ || failed_->written == written_ || failed_->lines.lines().empty()) return;
    notice("last_lines", "the output of the worker that failed ended with:");
    error_->buffer() += failed_->lines.text();
    failed_.reset();
  }

  // A file that is being replaced, or a machine that is short of processes or memory, may be back in a moment: that the
  // worker could not be started is a lost life. Others may hold what the job needs to go on.
  void on_failed_restart(Worker& w, const Status& why) {
    if (w.pid != 0) bury(w);
    w.last_code = kExitNotStarted;
    w.lost = true;
    on_loss(w, "worker " + std::to_string(w.id) + " could not be started again (" + why.describe() + ")");
  }

  // A life that was lost, or ended with a failure of the program's own, and counts.
  void on_loss(Worker& w, std::string what) {
    const std::uint32_t most = w.lost ? options_.restarts : options_.failure_restarts;
    if (is_spare(w)) {
      on_end_of_spare(w, what, most);
    } else if (w.restarts < most && !w.repeats) {
      ++w.restarts;
      restart(w, what, "restart " + std::to_string(w.restarts) + " of " + std::to_string(most));
    } else {
      if (w.repeats) {
        what += "; its life before ended at the same place, and another one would";
      } else if (most > 0) {
        what += " and has used all of its " + std::to_string(most) + " restarts";
      }
      if (!w.lost || options_.min_workers == 0 || !enough_without(w)) return fail(w, what);
      w.given_up = true;
      notice("worker_given_up", what + "; the job goes on without it");
    }
  }

  // Of the ends after which nobody is started again, the first that is no success stands for all. It is told, unless it
  // is how those end that are asked to.
  void on_late_end(const Worker& w, const std::string& what) {
    if (exit_code_) return;
    const int code = w.last_code;
    exit_code_ = code;
    stopped_ = w.lost && (code == kExitRolledBack ? w.rollbacks : w.restarts) < options_.restarts;
    if (code != 128 + SIGINT && code != 128 + SIGHUP && code != 128 + SIGTERM && code != kExitPreempted) {
      notice("worker_failed", what);
      failed_ = w.ending;
    }
    end_the_rest_in_time();
  }

  // Workers to which a signal was passed on need not end by it, and who goes on may wait for ever for one that has
  // ended. A drain has limits of its own.
  void end_the_rest_in_time() {
    if (draining_ || kill_at_ms_ >= 0 || !running()) return;
    term_at_ms_ = now_ms() + options_.grace_ms;
    kill_at_ms_ = term_at_ms_ + options_.grace_ms;
    ends_the_rest_ = true;
  }

  // When a worker is lost: with a spare in its place, which waits here or elsewhere, or with fewer workers.
  [[nodiscard]] bool others_go_on() const {
    return options_.min_workers != 0 || options_.spares != 0 || options_.spares_elsewhere;
  }

  // Whether the job has, or may have, as many workers as it needs if this one is not started again.
  [[nodiscard]] bool enough_without(const Worker& w) const {
    const auto others =
        std::ranges::count_if(workers_, [&](const Worker& other) { return &other != &w && !other.given_up; });
    const std::uint32_t elsewhere = world_size() - options_.workers;
    const std::uint32_t needed = options_.min_workers != 0 ? options_.min_workers : world_size();
    return others + static_cast<std::ptrdiff_t>(elsewhere) >= static_cast<std::ptrdiff_t>(needed);
  }

  // Whether the job goes on if this worker, which has ended, is not started again.
  [[nodiscard]] bool is_spare(const Worker& w) const {
    if (w.placed || !others_go_on()) return false;
    // Spares elsewhere may have places of workers here.
    if (world_size() != options_.workers) return !w.has_place;
    // A rank that had a place in an earlier life has perhaps lost it to a spare, and if not there is one that can have
    // it.
    if (w.has_place && w.attempt == options_.first_attempt) return false;
    return enough_without(w);
  }

  void on_end_of_spare(Worker& w, std::string what, std::uint32_t most) {
    if (w.waiting_lives < most) {
      ++w.waiting_lives;
      return restart(w, what,
                     "restart " + std::to_string(w.waiting_lives) + " of " + std::to_string(most) + " without a place");
    }
    if (most > 0) what += " and has used all of its " + std::to_string(most) + " restarts without a place";
    w.given_up = true;
    notice("spare_given_up", what + "; the job goes on without this spare");
  }

  // Begins counts anew (LaunchOptions::long_life_ms). A life that only hung has not been a long one, nor has one that
  // had a rank and took part in no round.
  void forgive(Worker& w) {
    const std::int64_t now = now_ms();
    const bool hung = w.killed_at_ms >= 0 || w.last_code == kExitHung;
    if (w.lost && !hung && (w.worked || !w.has_place) && now - w.started_at_ms >= options_.long_life_ms) {
      w.restarts = w.waiting_lives = 0;
    }
    if (now - rolled_back_at_ms_ < options_.long_life_ms) return;
    rollbacks_ = 0;
    for (Worker& other : workers_) other.rollbacks = 0;
  }

  // A rollback ends every worker, and counts once: as often as the worker that was rolled back most often. (One that
  // was being started when a rollback came has not seen it.)
  void on_rollback(Worker& w, std::string what) {
    what += " (rolled back)";
    ++w.rollbacks;
    if (w.rollbacks > rollbacks_) {
      rolled_back_at_ms_ = now_ms();
      if (rollbacks_ == options_.restarts) {
        if (rollbacks_ > 0) what += ", and the job has used all of its " + std::to_string(rollbacks_) + " rollbacks";
        return fail(w, what);
      }
      ++rollbacks_;
      notice("job_rolled_back", "rollback " + std::to_string(rollbacks_) + " of at most " +
                                    std::to_string(options_.restarts) +
                                    ": each worker goes back to the last checkpoint and is started again");
    }
    restart(w, what, "rollback " + std::to_string(w.rollbacks));
  }

  void restart(Worker& w, const std::string& what, const std::string& count) {
    const std::int64_t now = now_ms();
    // A life that ended at a kill point was meant to be short.
    if (w.worked || w.last_code == kExitKillPoint || now - w.started_at_ms >= options_.healthy_ms) w.short_lives = 0;
    std::int64_t pause_ms = 0;
    if (w.short_lives >= options_.immediate_restarts) {
      const std::uint32_t doublings = std::min<std::uint32_t>(w.short_lives - options_.immediate_restarts, 20);
      pause_ms = std::min(options_.first_backoff_ms << doublings, options_.max_backoff_ms);
    }
    ++w.short_lives;
    ++w.attempt;
    w.restart_at_ms = now + pause_ms;
    notice("worker_restarted", what + "; starting it again " +
                                   (pause_ms == 0 ? "at once" : "in " + std::to_string(pause_ms) + " ms") + " (" +
                                   count + ", attempt " + std::to_string(w.attempt) + ")");
  }

  // The worker is not started again, and its failure ends the job.
  void fail(const Worker& w, const std::string& what) {
    exit_code_ = w.last_code;
    failed_ = w.ending;
    end_job();
    const bool others = running();
    notice("worker_failed", what + (others ? "; ending the others" : ""));
    if (others) {
      signal_all(SIGTERM);
      kill_at_ms_ = now_ms() + options_.grace_ms;
    }
  }

  // Whom SIGTERM ended when the launcher got it, too, was preempted: it was in no job yet, or did not leave in time, or
  // whoever wants the machine signals every process, in whatever order. So was who would have been started again.
  [[nodiscard]] int exit_code() const {
    // A launcher of whose workers none has been in the job to its end.
    const bool none = std::ranges::all_of(workers_, [](const Worker& w) { return w.given_up; });
    const int code = exit_code_.value_or(none ? workers_.front().last_code : 0);
    return draining_ && (stopped_ || code == 128 + SIGTERM) ? kExitPreempted : code;
  }

  // No worker is started from now on.
  void end_job() {
    ending_ = true;
    for (Worker& w : workers_) {
      // It failed and will not come back: its failure stands, if no other ended the job.
      if (w.restart_at_ms >= 0 && w.has_place && !exit_code_) {
        exit_code_ = w.last_code;
        stopped_ = w.lost;
      }
      w.restart_at_ms = -1;
    }
  }

  void take_signal() {
    signalfd_siginfo info{};
    if (read(signals_.fd(), &info, sizeof info) != sizeof info) return;
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGINT && interrupted_) {
      notice("workers_killed", "interrupted again; killing the workers");
      kill_all();
      return;
    }
    interrupted_ = interrupted_ || signal == SIGINT;
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      asked_to_end_ = true;
      end_job();
      // Asked to end with nothing left to end: what could not be written is given up.
      if (!running()) abandon_output();
      // Some wait for one that would have been started again.
      if (exit_code_ && signal != SIGTERM) end_the_rest_in_time();
    }
    if (signal != SIGTERM) return signal_all(signal);
    // Only what this process has sent itself tells a time.
    const bool notice_of_ours = info.ssi_code == SI_QUEUE && info.ssi_pid == static_cast<std::uint32_t>(getpid());
    drain(draining_ ? 0 : notice_of_ours ? std::max(0, info.ssi_int) : options_.drain_ms);
  }

  // Workers that are in a job leave it between two rounds; the others get the signal.
  void drain(std::int64_t within_ms) {
    const std::int64_t by_ms = within_ms == 0 ? 1 : now_ms() + within_ms;
    int told = 0;
    for (const Worker& w : workers_) {
      if (w.pid == 0) continue;
      if (w.life.beats() == 0) {
        signal_one(w, SIGTERM);
        continue;
      }
      ++told;
      w.life.ask_to_leave(by_ms);
      kill(-w.pid, SIGCONT);
    }
    draining_ = true;
    if (told == 0) return;
    term_at_ms_ = now_ms() + within_ms + kDrainMarginMs;
    if (std::exchange(ends_the_rest_, false)) kill_at_ms_ = -1;
    notice("workers_drain", std::to_string(told) + (told == 1 ? " worker is" : " workers are") + " told to leave " +
                                (within_ms == 0 ? std::string("at once")
                                                : "between two rounds, within " + std::to_string(within_ms) + " ms"));
  }

  void abandon_output() {
    output_.buffer().clear();
    error_->buffer().clear();
  }

  void signal_all(int signal) const {
    for (const Worker& w : workers_) {
      if (w.pid != 0) signal_one(w, signal);
    }
  }
  static void signal_one(const Worker& w, int signal) {
    kill(-w.pid, signal);
    if (signal != SIGUSR1 && signal != SIGUSR2) kill(-w.pid, SIGCONT);  // a stopped process ends only when it runs
  }
  void kill_all() const { signal_all(SIGKILL); }
  void reap_all() {
    for (Worker& w : workers_) {
      if (w.pid != 0) bury(w);
    }
  }
  [[nodiscard]] bool running() const {
    return std::ranges::any_of(workers_, [](const Worker& w) { return w.pid != 0; });
  }
  [[nodiscard]] bool restart_due() const {
    return std::ranges::any_of(workers_, [](const Worker& w) { return w.restart_at_ms >= 0; });
  }
  void notice(const char* event, const std::string& text) {
    error_->buffer() += utc_now() + " warren: " + std::string(event) + ": " + text + "\n";
  }

  const LaunchOptions& options_;
  const LauncherSignals& signals_;
  Guard guard_;
  OutputQueue output_, separate_error_;
  OutputQueue* error_;  // &output_ if both are one file: then no line of one cuts a line of the other
  std::vector<const char*> program_;
  std::vector<Worker> workers_;
  std::optional<int> exit_code_;
  std::optional<Ending> failed_;  // whose it is
  std::uint64_t written_ = 0;     // bytes of lines, by all workers
  bool stopped_ = false;          // whose it is was lost, and is not started again because the job ends
  bool ending_ = false;
  bool asked_to_end_ = false;  // by a signal
  bool interrupted_ = false;
  bool draining_ = false;
  bool ends_the_rest_ = false;    // by kill_at_ms_
  std::int64_t term_at_ms_ = -1;  // workers that are to leave, and have not
  std::int64_t kill_at_ms_ = -1;
  std::int64_t abandon_at_ms_ = -1;  // output that nobody reads, when nothing runs any more
  std::int64_t last_look_ms_ = 0;    // at the workers' lives
  std::uint32_t rollbacks_ = 0;
  std::int64_t rolled_back_at_ms_ = 0;
};

}  // namespace

bool is_ignored(int signal) {
  struct sigaction now {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

LauncherSignals::LauncherSignals() {
  sigset_t passed_on;
  sigemptyset(&passed_on);
  for (const int signal : kPassedOn) {
    if (!is_ignored(signal)) sigaddset(&passed_on, signal);
  }
  blocked_ = passed_on;
  sigaddset(&blocked_, SIGPIPE);  // a reader of our output that goes away is an error of write
  pthread_sigmask(SIG_BLOCK, &blocked_, &before_);
  fd_ = signalfd(-1, &passed_on, SFD_CLOEXEC | SFD_NONBLOCK);
}

LauncherSignals::~LauncherSignals() {
  if (fd_ >= 0) close(fd_);
  // What has come since the launch ended would kill the process now, and take the place of its exit code.
  const timespec now{};
  while (sigtimedwait(&blocked_, nullptr, &now) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

Result<int> launch(const LaunchOptions& options, const LauncherSignals& signals) {
  if (options.program.empty()) return Status(Code::kInvalidArgument, "there is no program to start");
  if (options.spares > limits::kMaxSpares) {
    return Status(Code::kInvalidArgument, "the number of spares is " + std::to_string(options.spares) + ": give 0 to " +
                                              std::to_string(limits::kMaxSpares));
  }
  const std::uint32_t least = options.spares != 0 ? 0 : 1;
  if (options.workers < least || options.workers > limits::kMaxWorldSize) {
    return Status(Code::kInvalidArgument, "the number of workers is " + std::to_string(options.workers) + ": give " +
                                              std::to_string(least) + " to " + std::to_string(limits::kMaxWorldSize));
  }
  if (signals.fd() < 0) return Status(Code::kInternal, "the system gave no descriptor for signals");
  auto guard = Guard::start();
  if (!guard.ok()) return guard.status();
  return Launch(options, signals, std::move(guard).value()).run();
}

}  // namespace warren::worker
