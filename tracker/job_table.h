// All jobs of a tracker: takes messages in, has the job's machine judge them, and carries out its effects strictly in
// their order. No socket, clock or thread: time and connections come from outside, so tests run it in virtual time.
//
// What one job does never reaches another: each has a machine, routes, a queue and limits of its own.
//
// A journal that cannot be written holds up the job concerned: what follows the failed Persist waits in its order while
// the write is tried again (kPersistTries times, 43 s in all). Then the job's workers are fenced and the job is
// forgotten; the next Join takes it up from what the journal has.
//
// A finished job stays for those who come late: a worker that its launcher starts again hears that the job is finished.
// It gives way to a new run of its name: to lives that were never started before (attempt 0), once those of more than
// half of the world have come. Fewer of them hear that the job is finished after kNewRunRoundTimeouts.
//
// A person may have a job forgotten (`warren forget`): its record is removed, and then who is there is refused. The run
// that was forgotten is noted in the journal under a name that no job has, the newest kMostForgottenRuns of all jobs:
// what its workers have left on disks is not used by a new job of the name.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/tracker/tracker_machine.h"
#include "storage/journal.h"
#include "storage/secret.h"
#include "tracker/events.h"
#include "tracker/log_limit.h"
#include "tracker/routes.h"
#include "tracker/status.h"

namespace warren::tracker {

// Where a message came from, as far as the transport vouches for it.
struct Sender {
  std::string_view connection;  // the ROUTER's routing id
  std::string_view key_z85;     // the CURVE key that the connection proved to have; empty: none
  std::string_view address;     // for people
};

enum class SendOutcome { kSent, kGone, kFull };

// What the table counts; the shell adds them to its metrics.
struct TableCounts {
  std::uint64_t bad_messages = 0;       // malformed, or of another protocol version
  std::uint64_t wrong_secrets = 0;      // well-formed, for a job whose key the connection has not
  std::uint64_t failed_handshakes = 0;  // connections that have no key of this tracker's jobs
  std::uint64_t refused_by_table = 0;   // answered with Refused before any machine saw it
  std::uint64_t unsent = 0;             // answers that found no connection, or a full one
  std::uint64_t persist_failures = 0;
};

class JobTable {
 public:
  static constexpr std::int64_t kFinishedLingerMs = 10LL * 60 * 1000;  // latecomers hear that the job is finished
  static constexpr std::int64_t kLonelyMs = 60LL * 60 * 1000;          // a job in which nobody is alive
  static constexpr std::int64_t kSweepIntervalMs = std::int64_t{60} * 1000;
  static constexpr int kPersistTries = 12;
  static constexpr std::size_t kMostForgottenRuns = 1024;
  static constexpr std::int64_t kNewRunRoundTimeouts = 3;

  struct Options {
    Incarnation self;
    std::shared_ptr<const storage::Secret> secret;  // a root; null: nobody is authenticated
    storage::Journal* journal = nullptr;            // outlives the table
    EventSink sink;                                 // may be empty
    std::function<SendOutcome(std::string_view connection, const std::string& bytes)> send;
  };
  explicit JobTable(Options options);
  ~JobTable();
  JobTable(const JobTable&) = delete;
  JobTable& operator=(const JobTable&) = delete;

  // Takes up the journal's jobs; once, before anything else. A record that cannot be read costs its job alone.
  Status restore(TimeMs now);

  void on_message(const Sender& from, std::span<const std::byte> bytes, TimeMs now);
  // A message that is none already by its frames.
  void on_malformed(const Sender& from, std::string_view why, TimeMs now);
  // A connection from `address` (empty: not known) that cannot say anything.
  void on_failed_handshake(std::string_view address, TimeMs now);
  void on_tick(TimeMs now);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  [[nodiscard]] std::vector<JobStatus> status(TimeMs now) const;
  [[nodiscard]] const TableCounts& counts() const { return counts_; }
  // Routes held for all jobs, for tests of their bounds.
  [[nodiscard]] std::size_t routes() const;

 private:
  struct Job;
  using Jobs = std::map<std::string, std::unique_ptr<Job>, std::less<>>;

  [[nodiscard]] Result<TrackerMachine> make_machine(const std::string& job, std::string_view persisted, TimeMs now);
  void tell_restored(Job& job, TimeMs now);
  Job& add(std::string name, TrackerMachine machine, TimeMs now);
  void remove(Job& job);
  // Finds the job or makes it, if the message may; else answers and returns null.
  Job* find_or_create(const Sender& from, const wire::Envelope& envelope, TimeMs now);
  [[nodiscard]] bool has_the_secret(const Sender& from, const std::string& job);
  // Of a join to a job that is finished.
  enum class NewRun { kNone, kWaits, kBegins };
  [[nodiscard]] NewRun look_for_new_run(Job& job, const wire::Envelope& envelope, TimeMs now);
  // Whether `who` is a life of a finished job that has given way; then it was told that the job is finished.
  void tell_waiting(const Sender& from, const Job& job, const wire::Envelope& join);
  bool tell_finished(const Sender& from, const wire::Envelope& envelope);
  void remember_finished(const Job& job);
  void on_forget(const Sender& from, const wire::Envelope& envelope, TimeMs now);
  void remember_lives(const Job& job, TimeMs now);
  [[nodiscard]] bool was_forgotten(const std::string& job, std::uint64_t run) const;
  void take_forgotten_runs(const std::string& text);
  [[nodiscard]] Status note_forgotten_run(const std::string& job, std::uint64_t run);
  // Takes out of a join what a forgotten run has left.
  void leave_out_forgotten(wire::Envelope& envelope);
  void tell_left_out(const std::string& job, Incarnation life, const wire::Join& join);

  void carry_out(Job& job, std::vector<TrackerEffect>& effects, TimeMs now);
  // Carries out job.pending from its front; stops at a Persist that fails.
  void drain(Job& job, TimeMs now);
  void on_persist_failed(Job& job, const Status& why, TimeMs now);
  void tick(Job& job, TimeMs now);
  // The following two remove the job, sweep() if it returns true.
  void give_up(Job& job);
  bool sweep(Job& job, TimeMs now);
  // Erases the job from the journal too; false: that failed.
  bool evict(Job& job, const std::string& why);
  // Where the table is full the finished job that has been silent for longest goes before its time.
  enum class Room : std::uint8_t {
    kMade,
    kSoon,  // a job finished in this tracker's life before, and its workers may still ask
    kNone   // no job has finished
  };
  Room make_room(TimeMs now);
  void reschedule(Job& job);

  void send(Job& job, const tracker_effect::Send& effect);
  // Of no machine's: without a term.
  [[nodiscard]] wire::Envelope reply_to(const std::string& job, std::uint64_t receiver) const;
  [[nodiscard]] wire::Envelope refusal_to(const std::string& job, std::uint64_t receiver, const Status& why) const;
  void send_refusal(std::string_view connection, const wire::Envelope& refusal);
  void refuse(const Sender& from, const std::string& job, std::uint64_t receiver, const Status& why);
  void log(std::string_view job, Severity severity, std::string name, std::string text,
           std::vector<std::pair<std::string, std::string>> fields = {});

  Options options_;
  Jobs jobs_;
  std::uint64_t last_serial_ = 0;
  std::map<std::string, Status, std::less<>> unreadable_;            // jobs whose records cannot be read
  std::set<std::pair<TimeMs, std::string_view>> deadlines_;          // names live in jobs_
  std::map<std::string, std::string, std::less<>> worker_keys_;      // derived ones, by job; bounded
  std::set<std::pair<std::string, Incarnation>> forgotten_lives_;    // of jobs, forgotten while they spoke; bounded
  std::deque<std::pair<std::string, Incarnation>> forgotten_order_;  // the oldest first
  // Lives of finished jobs that have given way, with the generation that they are told; bounded.
  std::map<std::pair<std::string, Incarnation>, Generation> finished_lives_;
  std::deque<std::pair<std::string, Incarnation>> finished_order_;    // the oldest first
  std::deque<std::pair<std::string, std::uint64_t>> forgotten_runs_;  // by job, the oldest first
  std::set<std::pair<std::string, Incarnation>> told_left_out_;       // by job: lives repeat their joins; bounded
  std::vector<TrackerEffect> effects_;                                // of the call under way
  LogLimit bad_message_log_{10, 10'000}, wrong_secret_log_{10, 10'000};
  LogLimit failed_handshake_log_{3, 60'000};  // anybody may cause them, and a worker tries again each second
  TableCounts counts_;
};

}  // namespace warren::tracker
