#include "launcher/launcher.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "launcher/guard.h"
#include "launcher/hang_watch.h"
#include "launcher/process.h"
#include "launcher/restarts.h"
#include "launcher/worker.h"
#include "launcher/worker_output.h"
#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "worker/launch/life_sign.h"
#include "worker/system/text.h"

namespace warren::worker {
namespace {

// A worker that has not left by the time that it was given gets SIGTERM so much later.
constexpr std::int64_t kDrainMarginMs = 1000;
constexpr int kExitNotStarted = 127;  // as shells have it

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

class Launch {
 public:
  Launch(const LaunchOptions& options, const LauncherSignals& signals, Guard guard)
      : options_(options),
        signals_(signals),
        guard_(std::move(guard)),
        output_(options),
        watch_(options, output_),
        restarts_(options, workers_) {
    for (const std::string& word : options_.program) program_.push_back(word.c_str());
    program_.push_back(nullptr);
    workers_.resize(options.workers + options.spares);
    for (std::uint32_t i = 0; i < workers_.size(); ++i) {
      workers_[i].id = options.first_worker + (i < options.workers ? i : world_size() + i - options.workers);
      workers_[i].attempt = options.first_attempt;
      workers_[i].has_place = i < options.workers;
    }
  }

  Result<int> run() {
    if (Status s = choose_cores(); !s.ok()) return s;
    for (LaunchedWorker& w : workers_) {
      Status s = start(w);
      if (s.code() == Code::kUnavailable) {
        s = {s.code(), s.describe() + "; give the path of a program, after -- if it has flags of its own"};
      }
      if (!s.ok()) return give_up(std::move(s));
    }
    while (true) {
      output_.take_other_lines();
      output_.write_some();
      if (!running() && !restart_due()) {
        output_.repeat_last_lines();
        if (output_.empty()) return exit_code();
        if (asked_to_end_ && abandon_at_ms_ < 0) abandon_at_ms_ = now_ms() + options_.grace_ms;
      }
      if (Status s = wait_for_something(); !s.ok()) return give_up(std::move(s));
    }
  }

 private:
  [[nodiscard]] std::uint32_t world_size() const { return world_size_of(options_); }

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
    for (LaunchedWorker& w : workers_) output_.drain(w);
    output_.take_other_lines();
    output_.write_last_words();
    return why;
  }

  // kUnavailable: not such a program, or not now. On every failure nothing of the worker is left but, perhaps, a
  // process that bury() ends.
  Status start(LaunchedWorker& w) {
    // Until it lives, nothing of the life before counts for this one.
    w.worked = w.placed = w.unfinished = w.drained = w.fenced = false;
    w.cause = Status();
    w.started_at_ms = now_ms();
    w.killed_at_ms = w.dumps_since_ms = -1;
    output_.begin(w);
    auto output = make_pipe();
    auto error = make_pipe();
    auto failed = make_pipe();  // closed by a successful exec, else tells errno
    for (const auto* p : {&output, &error, &failed}) {
      if (!p->ok()) return p->status().because_of_this("cannot start worker " + std::to_string(w.id));
    }
    LifeView life;
    if (watch_.watching()) {
      auto made = LifeView::create();
      if (!made.ok()) return made.status().because_of_this("cannot start worker " + std::to_string(w.id));
      life = std::move(made).value();
    }
    const ChildEnvironment environment(variables_of(w, life));
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
    if (Status s = await_exec(failed.value().read_end); !s.ok()) {
      bury(w);
      return s;
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
    return output_.attach(w, std::move(output.value().read_end), std::move(error.value().read_end));
  }

  [[nodiscard]] std::map<std::string, std::optional<std::string>> variables_of(const LaunchedWorker& w,
                                                                               const LifeView& life) const {
    auto changes = options_.variables;
    changes["WARREN_WORKER_ID"] = std::to_string(w.id);
    changes["WARREN_WORLD_SIZE"] = std::to_string(world_size());
    changes["WARREN_LOCAL_WORLD_SIZE"] = std::to_string(workers_.size());
    changes["WARREN_ATTEMPT"] = std::to_string(w.attempt);
    changes[kLifeVariable] = watch_.watching() ? std::optional(std::to_string(life.fd())) : std::nullopt;
    return changes;
  }

  // `failed`: where the child writes errno if it cannot become the program, and which ends if it has.
  [[nodiscard]] Status await_exec(const Fd& failed) const {
    int why = 0;
    ssize_t n;
    do {
      n = read(failed.get(), &why, sizeof why);
    } while (n < 0 && errno == EINTR);
    if (n != sizeof why) return {};
    return {Code::kUnavailable,
            "cannot start " + in_quotes(options_.program[0]) + ": " + std::strerror(why) + what_was_meant(why)};
  }

  // Kills what is left of the worker's group and reaps the worker; returns its wait status. The worker has ended or is
  // killed by this.
  int bury(LaunchedWorker& w) {
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

  Status wait_for_something() {
    std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
    std::vector<LaunchedWorker*> ended_of;  // by index in fds, from 1 on
    for (LaunchedWorker& w : workers_) {
      if (w.pid != 0) {
        fds.push_back({w.pidfd.get(), POLLIN, 0});
        ended_of.push_back(&w);
      }
    }
    const std::size_t first_stream = fds.size();
    std::vector<std::pair<LaunchedWorker*, WorkerStream*>> stream_of;
    for (LaunchedWorker& w : workers_) {
      for (WorkerStream& s : w.streams) {
        if (!s.pipe.open() || !s.queue->has_room()) continue;
        fds.push_back({s.pipe.get(), POLLIN, 0});
        stream_of.emplace_back(&w, &s);
      }
    }
    output_.add_writable(fds);
    output_.add_other_lines(fds);
    if (poll(fds.data(), fds.size(), timeout_ms()) < 0 && errno != EINTR) return system_failure("cannot wait");
    for (std::size_t i = 0; i < stream_of.size(); ++i) {
      if (fds[first_stream + i].revents != 0) output_.read_some(*stream_of[i].first, *stream_of[i].second);
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
    for (const LaunchedWorker& w : workers_) {
      if (w.restart_at_ms >= 0 && (next < 0 || w.restart_at_ms < next)) next = w.restart_at_ms;
    }
    if (watch_.watching() && running()) {
      const std::int64_t look_at_ms = watch_.next_look_ms(workers_);
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
        output_.notice("workers_terminated",
                       "a worker has ended and is not started again, and others are still there " +
                           std::to_string(options_.grace_ms) + " ms later; they get SIGTERM");
      }
      signal_all(SIGTERM);
    }
    if (kill_at_ms_ >= 0 && now >= kill_at_ms_) {
      kill_at_ms_ = -1;
      if (running()) {
        output_.notice("workers_killed",
                       "the workers did not end within " + std::to_string(options_.grace_ms) + " ms; killing them");
        kill_all();
      }
    }
    if (abandon_at_ms_ >= 0 && now >= abandon_at_ms_) output_.abandon();
    for (LaunchedWorker& w : workers_) {
      if (w.restart_at_ms < 0 || now < w.restart_at_ms) continue;
      w.restart_at_ms = -1;
      if (const Status s = start(w); !s.ok()) on_failed_restart(w, s);
    }
    if (watch_.watching() && now >= watch_.next_look_ms(workers_)) watch_.look(workers_, now);
  }

  // The job is done, and so is the launcher's exit code. But the program did not come to its end in any life.
  void notice_too_late(const LaunchedWorker& w) {
    output_.notice("worker_too_late",
                   "worker " + std::to_string(w.id) +
                       " was started again after its job had finished, and did not run; what its program "
                       "does after finalize is not done: let it write its results before");
  }

  void on_end(LaunchedWorker& w) {
    const int status = bury(w);
    output_.drain(w);
    const bool killed = WIFSIGNALED(status);
    int code = killed ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    // The others would wait for it for ever.
    const bool deserted = code == 0 && w.unfinished;
    if (deserted) code = kExitDeserted;
    if (code == kExitFinished && w.has_place && w.attempt != options_.first_attempt) notice_too_late(w);
    if (code == 0 || code == kExitFinished) return;
    w.last_code = code;
    std::string what = describe_end(w, status, deserted);
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
    restarts_.forgive(w);
    if (ending_) return on_late_end(w, what);
    if (code == kExitRolledBack) return carry_out(w, restarts_.on_rollback(w, std::move(what)));
    if (code == kExitPreempted) what += " (preempted)";
    if (code == kExitFenced || w.fenced) what += " (for no fault of its program's)";
    if (code == kExitHung) what += " (its program hung outside of calls)";
    if (code == kExitKillPoint) what += " (kill point)";
    // A program that leaves before it has done anything would do so for ever.
    if (code == kExitPreempted && w.drained && w.worked) {
      restart(w, what, "its place was needed elsewhere, which counts as no restart");
    } else if (code == kExitFenced && w.worked && restarts_.others_go_on()) {
      restart(w, what,
              options_.min_workers != 0 ? "the job could go on without it, which counts as no restart"
                                        : "a spare could take its place, which counts as no restart");
    } else {
      carry_out(w, restarts_.on_loss(w, std::move(what)));
    }
  }

  // `deserted`: it ended with success in a job that goes on.
  [[nodiscard]] static std::string describe_end(const LaunchedWorker& w, int status, bool deserted) {
    std::string what = "worker " + std::to_string(w.id);
    if (w.killed_at_ms >= 0) {
      what += " hung and was killed";
    } else if (WIFSIGNALED(status)) {
      what += " was killed by signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
    } else if (deserted) {
      what +=
          " ended with exit code 0 without finalize, which a program calls at its end (in Python: with warren.init() "
          "as comm)";
    } else {
      what += " ended with exit code " + std::to_string(w.last_code) + python_error_of(w);
    }
    if (!w.cause.ok() && w.last_code != kExitRolledBack) what += " after: " + std::string(w.cause.message());
    return what;
  }

  void carry_out(LaunchedWorker& w, const Restarts::Verdict& verdict) {
    if (!verdict.rollback.empty()) output_.notice("job_rolled_back", verdict.rollback);
    switch (verdict.act) {
      case Restarts::Act::kStartAgain: return restart(w, verdict.what, verdict.count);
      case Restarts::Act::kGiveUp:
        return output_.notice("worker_given_up", verdict.what + "; the job goes on without it");
      case Restarts::Act::kGiveUpSpare:
        return output_.notice("spare_given_up", verdict.what + "; the job goes on without this spare");
      case Restarts::Act::kEndJob: return fail(w, verdict.what);
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
  [[nodiscard]] static std::string python_error_of(const LaunchedWorker& w) {
    const auto error = python_error(w.ending.lines.lines());
    if (!error) return "";
    const bool left = w.cause.message().find(kLeftWithoutFinalize) != std::string_view::npos;  // and no more is told
    const bool told = !w.cause.ok() && !left && error->exception.starts_with("warren.");
    if (error->exception.empty() || told) return " (at " + error->place + ")";
    return " (" + error->exception + ", at " + error->place + ")";
  }

  // A file that is being replaced, or a machine that is short of processes or memory, may be back in a moment: that the
  // worker could not be started is a lost life. Others may hold what the job needs to go on.
  void on_failed_restart(LaunchedWorker& w, const Status& why) {
    if (w.pid != 0) bury(w);
    w.last_code = kExitNotStarted;
    w.lost = true;
    carry_out(w, restarts_.on_loss(
                     w, "worker " + std::to_string(w.id) + " could not be started again (" + why.describe() + ")"));
  }

  // Of the ends after which nobody is started again, the first that is no success stands for all. It is told, unless it
  // is how those end that are asked to.
  void on_late_end(const LaunchedWorker& w, const std::string& what) {
    if (exit_code_) return;
    const int code = w.last_code;
    exit_code_ = code;
    stopped_ = w.lost && (code == kExitRolledBack ? w.rollbacks : w.restarts) < options_.restarts;
    if (code != 128 + SIGINT && code != 128 + SIGHUP && code != 128 + SIGTERM && code != kExitPreempted) {
      output_.notice("worker_failed", what);
      output_.set_failed(w);
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

  void restart(LaunchedWorker& w, const std::string& what, const std::string& count) {
    const std::int64_t pause_ms = restarts_.schedule(w);
    output_.notice("worker_restarted", what + "; starting it again " +
                                           (pause_ms == 0 ? "at once" : "in " + std::to_string(pause_ms) + " ms") +
                                           " (" + count + ", attempt " + std::to_string(w.attempt) + ")");
  }

  // The worker is not started again, and its failure ends the job.
  void fail(const LaunchedWorker& w, const std::string& what) {
    exit_code_ = w.last_code;
    output_.set_failed(w);
    end_job();
    const bool others = running();
    output_.notice("worker_failed", what + (others ? "; ending the others" : ""));
    if (others) {
      signal_all(SIGTERM);
      kill_at_ms_ = now_ms() + options_.grace_ms;
    }
  }

  // Whom SIGTERM ended when the launcher got it, too, was preempted: it was in no job yet, or did not leave in time, or
  // whoever wants the machine signals every process, in whatever order. So was who would have been started again.
  [[nodiscard]] int exit_code() const {
    // A launcher of whose workers none has been in the job to its end.
    const bool none = std::ranges::all_of(workers_, [](const LaunchedWorker& w) { return w.given_up; });
    const int code = exit_code_.value_or(none ? workers_.front().last_code : 0);
    return draining_ && (stopped_ || code == 128 + SIGTERM) ? kExitPreempted : code;
  }

  // No worker is started from now on.
  void end_job() {
    ending_ = true;
    for (LaunchedWorker& w : workers_) {
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
      output_.notice("workers_killed", "interrupted again; killing the workers");
      kill_all();
      return;
    }
    interrupted_ = interrupted_ || signal == SIGINT;
    if (signal == SIGINT || signal == SIGTERM || signal == SIGHUP) {
      asked_to_end_ = true;
      end_job();
      // Asked to end with nothing left to end: what could not be written is given up.
      if (!running()) output_.abandon();
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
    for (const LaunchedWorker& w : workers_) {
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
    output_.notice("workers_drain",
                   std::to_string(told) + (told == 1 ? " worker is" : " workers are") + " told to leave " +
                       (within_ms == 0 ? std::string("at once")
                                       : "between two rounds, within " + std::to_string(within_ms) + " ms"));
  }

  void signal_all(int signal) const {
    for (const LaunchedWorker& w : workers_) {
      if (w.pid != 0) signal_one(w, signal);
    }
  }
  static void signal_one(const LaunchedWorker& w, int signal) {
    kill(-w.pid, signal);
    if (signal != SIGUSR1 && signal != SIGUSR2) kill(-w.pid, SIGCONT);  // a stopped process ends only when it runs
  }
  void kill_all() const { signal_all(SIGKILL); }
  void reap_all() {
    for (LaunchedWorker& w : workers_) {
      if (w.pid != 0) bury(w);
    }
  }
  [[nodiscard]] bool running() const {
    return std::ranges::any_of(workers_, [](const LaunchedWorker& w) { return w.pid != 0; });
  }
  [[nodiscard]] bool restart_due() const {
    return std::ranges::any_of(workers_, [](const LaunchedWorker& w) { return w.restart_at_ms >= 0; });
  }
  const LaunchOptions& options_;
  const LauncherSignals& signals_;
  Guard guard_;
  WorkerOutput output_;
  HangWatch watch_;
  Restarts restarts_;
  std::vector<const char*> program_;
  std::vector<LaunchedWorker> workers_;
  std::optional<int> exit_code_;
  bool stopped_ = false;  // whose it is was lost, and is not started again because the job ends
  bool ending_ = false;
  bool asked_to_end_ = false;  // by a signal
  bool interrupted_ = false;
  bool draining_ = false;
  bool ends_the_rest_ = false;    // by kill_at_ms_
  std::int64_t term_at_ms_ = -1;  // workers that are to leave, and have not
  std::int64_t kill_at_ms_ = -1;
  std::int64_t abandon_at_ms_ = -1;  // output that nobody reads, when nothing runs any more
};

}  // namespace

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
