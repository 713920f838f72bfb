// A worker's side of the protocol: joining, being a member of a generation, stopping on an interrupt, leaving.
//
// States: joining → member → (interrupt) stopping → suspended → (plan) member …, or stopping → broken where the
// interrupt ends all lives, or member → leaving → finished; joining and member may fail. Who finds no place, or begins
// as a spare, waits (joining → spare) until it is called, and then joins again. Rules this machine keeps: it
// answers an interrupt only after the shell has said that the data path stopped (I6); it takes no plan or interrupt of
// a generation that is not newer than what it knows; messages that do not name its incarnation change nothing; the
// tracker's silence is reported in the log and is not an error while the data path moves, and a join that the tracker
// does not answer ends with an error after join_timeout_ms (never a worker that trains alone). Messages may be lost.
// Join, Leave(finalize), Report, Load, Vote and the reports of broken links, failed rounds and gaps in the log are
// repeated until they are answered; Interrupt is repeated by the tracker until it has Stopped or Report.
//
// Who is preempted, and whose log nobody would keep, may go on serving it (member or suspended → serving → failed): it
// has no part in the job then, repeats its Leave, and ends when it is told to, or when its time is over.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

namespace worker_effect {
// To the tracker, in order; lost if there is no connection (the machine repeats what matters).
struct Send {
  wire::Envelope envelope;
};
// The plan of a new generation is in force: open links, let calls run. Again after each interrupt that resumes.
struct Install {
  wire::Plan plan;
};
// Stop the data path of all generations before `generation`, then call on_stopped(generation, …). With `resume` no call
// returns and a plan follows; otherwise calls in flight fail with `why`.
struct StopDataPath {
  Generation generation;
  Status why;
  bool resume = false;
  bool fenced = false;  // as in Fail, which follows
};
// The answer to load(): where the program starts from.
struct Loaded {
  bool committed = false;  // false: the job begins
  Version version;
  Timeline timeline;  // in which it was committed
};
// This version is committed. Versions only rise.
struct Committed {
  Version version;
  Timeline timeline;
};
// This worker is out of the job: every later call fails with `why`. Comes once; after it only Log, and Send that
// answers a repeated Interrupt if the shell still passes messages on.
struct Fail {
  Status why;
  bool fenced = false;  // this life is over for no fault of its program's: another one may begin
};
// This worker waits as a spare. With `looked` it has said before what its host holds: what it has mapped for that is
// to go, by way of a new life where that is simpler.
struct Spare {
  bool looked = false;
};
// This version is committed: a spare that follows checkpoints fetches it, and says so with followed(). Maybe again.
struct Follow {
  Version version;
  Timeline timeline;
  std::optional<wire::Plan> plan;  // whose members are asked; not set: as before
};
// A spare's place has come: look at what the host holds, and say so with looked(). May take its time.
struct Called {
  Generation generation;
  bool stale = false;  // what dead lives have left in the host's memory is not to be used
};
// The tracker asks this life to leave its place to a spare: no other call begins, and the shell calls leave() when none
// is under way, before `by`. Comes once.
struct Drain {
  TimeMs by;
  std::string reason;
};
// This life, which has left, serves what its host has logged to the members of this plan, as far as the first such plan
// calls it done.
struct Serve {
  wire::Plan plan;
};
// It need not serve any more, or has no more time: the process may end. Comes once, last but for Log.
struct Left {};
// The tracker has not been heard for so long that it counts as away, or it is heard again: nothing is committed in
// between. Only of a life that is in a plan.
struct TrackerAway {
  bool away = false;
};
// finalize is complete everywhere. Comes once, last but for Log.
struct Finished {};
struct Log {
  LogEvent event;
};
}  // namespace worker_effect
using WorkerEffect =
    std::variant<worker_effect::Send, worker_effect::Install, worker_effect::StopDataPath, worker_effect::Loaded,
                 worker_effect::Committed, worker_effect::Fail, worker_effect::Spare, worker_effect::Follow,
                 worker_effect::Called, worker_effect::Drain, worker_effect::Serve, worker_effect::Left,
                 worker_effect::TrackerAway, worker_effect::Finished, worker_effect::Log>;

class WorkerMachine {
 public:
  enum class State : std::uint8_t {
    kIdle,
    kJoining,
    kSpare,
    kMember,
    kStopping,
    kSuspended,
    kBroken,
    kServing,
    kLeaving,
    kFinished,
    kFailed
  };

  enum class Transition : std::uint8_t;
  [[nodiscard]] static std::span<const char* const> transition_names();
  [[nodiscard]] std::span<const std::uint64_t> transition_counts() const { return transitions_; }

  struct Options {
    std::string job;
    Incarnation self;
    wire::Join join;  // complete and valid; with `spare`, it says nothing of what the host holds
    std::int64_t join_timeout_ms = 0;
    std::string tracker_name;         // "10.0.0.1:9100", for messages
    bool follows = false;             // as a spare it holds the newest checkpoint before it is called
    std::int64_t join_within_ms = 0;  // what is left of join_timeout_ms for this life's join; 0: all of it
  };
  explicit WorkerMachine(Options options);

  void start(TimeMs now, std::vector<WorkerEffect>& effects);
  // A message that passed decode_envelope(Side::kTracker).
  void on_message(const wire::Envelope& envelope, TimeMs now, std::vector<WorkerEffect>& effects);
  // The control connection reports that the tracker refused the key, or that there is nobody: goes into join's error
  // text.
  void on_connection_trouble(const std::string& what, TimeMs now, std::vector<WorkerEffect>& effects);
  // A data link of the current generation broke (reported once per peer and generation).
  void on_link_broken(Generation generation, Rank peer, const std::string& evidence, TimeMs now,
                      std::vector<WorkerEffect>& effects);
  // The process of a peer in the newest plan has gone. Told while this life is suspended, too: nothing else shows then
  // who will not answer.
  void on_peer_gone(Generation generation, Rank peer, const std::string& evidence, TimeMs now,
                    std::vector<WorkerEffect>& effects);
  // A round failed here with a desync or corrupt frames: ends the generation for all.
  void on_round_failed(Generation generation, const Status& why, TimeMs now, std::vector<WorkerEffect>& effects);
  // How far the data path came. Positions are valid (recovery/wire/codec.h) and sorted by (group, version).
  struct Standing {
    Version version;
    std::vector<wire::Position> positions;
    std::vector<wire::Setup> setups;  // sorted by (group, name)
    wire::Logged logged;              // where lives of this host have been further
    // The newest results that full logs of this host have given up.
    std::optional<wire::GivenUp> given_up = {};
  };
  // The shell has stopped the data path as StopDataPath asked.
  void on_stopped(Generation generation, Standing standing, TimeMs now, std::vector<WorkerEffect>& effects);
  // A spare has all of this checkpoint's global state.
  void followed(Version version, Timeline timeline);
  // A spare that was called has looked at what its host holds.
  void looked(Generation generation, std::optional<wire::Held> held, wire::Logged logged, TimeMs now,
              std::vector<WorkerEffect>& effects);
  // The program asks where it starts from: Loaded follows once the tracker answers.
  void load(TimeMs now, std::vector<WorkerEffect>& effects);
  // Says that all is durable which the plan of `generation` makes this rank hold of the checkpoint that begins
  // `version`.
  struct Vote {
    Generation generation;
    Timeline timeline;
    Version version;
    wire::StateDigest state;                   // what this rank has given
    std::vector<wire::Position> positions;     // those of the version before
    std::vector<wire::Setup> setups;           // set-up rounds that this life has completed
    std::uint64_t local_hash = 0;              // of its local state; 0: none, or it was not hashed
    std::vector<wire::LocalCopy> copies = {};  // that it has taken of other ranks' ones, by rank
  };
  // Repeated until it is committed or the generation ends.
  void vote(const Vote& vote, TimeMs now, std::vector<WorkerEffect>& effects);
  // Says what a vote will say of the state, while something that this rank is to hold is not here yet. Until the vote.
  struct StateWord {
    Generation generation;
    Timeline timeline;
    Version version;
    wire::StateDigest state;
  };
  void tell_state(const StateWord& word, TimeMs now, std::vector<WorkerEffect>& effects);
  // A round that others have completed and that is not in the log any more.
  struct Gap {
    std::string reason;
    std::optional<wire::Setup> setup;  // it is a set-up round that was done
    bool renumbers = false;            // computed again, rounds might get other numbers than those that the log has
    // It is no round, but the checkpoint that load() was to start from: nothing goes on without it. The tracker answers
    // that, as any gap, by ending the generation; or it refuses this life, where others need not load it.
    std::optional<worker_effect::Loaded> checkpoint = {};
  };
  void on_log_gap(Generation generation, const Gap& gap, TimeMs now, std::vector<WorkerEffect>& effects);
  // The program called finalize: all its rounds are done, and its newest checkpoint is the one that begins `last`.
  void finalize(Version last, TimeMs now, std::vector<WorkerEffect>& effects);
  // The program gives up: it destroys its communicator without finalize.
  void leave(const std::string& reason, TimeMs now, std::vector<WorkerEffect>& effects);
  // The machine that this worker has is needed elsewhere: it will leave() before `by`. The tracker is told with each
  // heartbeat, and by the Leave that it is no failure. Again, or after the tracker's request: the earlier time counts.
  // `serves`: nobody would keep what it has logged, and it can stay until then: leave() may begin to serve that instead
  // of ending this life.
  void drain(TimeMs by, const std::string& reason, bool serves, TimeMs now, std::vector<WorkerEffect>& effects);
  [[nodiscard]] bool draining() const { return drain_.has_value(); }
  // leave() would not end this life now: it stops the data path, as for an interrupt that resumes, and serves. Not of
  // one that has called finalize, or waits to join.
  [[nodiscard]] bool may_serve(TimeMs now) const;
  void on_tick(TimeMs now, std::vector<WorkerEffect>& effects);
  // What is due of that as far as it only says again that this life is there, and what it wants: heartbeats, and what
  // is repeated until it is answered. Nothing but Send; for a shell that is held up while it carries out effects.
  void keep_alive(TimeMs now, std::vector<WorkerEffect>& effects);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  // What the next heartbeat reports; the shell sets it just before on_tick, from atomics.
  struct Progress {
    std::uint64_t rounds_finished = 0, bytes_moved = 0;
    std::vector<wire::CurrentRound> rounds;       // at most limits::kMaxRoundsPerHeartbeat
    std::optional<wire::Activity> activity = {};  // of this generation
    wire::GpuCounters gpu = {};
    std::optional<wire::LogFill> log = {};      // none: nothing is logged
    std::string disk_trouble = {};              // why the disk takes no results at present; empty: nothing is wrong
    std::optional<wire::Blocked> blocked = {};  // likewise
  };
  void set_progress(Progress progress);
  // For how long another rank has waited for this one, which was in no call, as the tracker has said lately; 0: none.
  [[nodiscard]] std::int64_t awaited_ms(TimeMs now) const;

  [[nodiscard]] State state() const;
  [[nodiscard]] Generation generation() const;
  void check_invariants() const;

 private:
  // More broken links than this say nothing new.
  static constexpr std::size_t kMaxBrokenLinks = 64;
  struct BrokenLink {
    Rank peer;
    std::string evidence;
    bool gone = false;
  };
  struct Draining {
    TimeMs by;
    std::string reason;
  };

  void count(Transition transition);
  [[nodiscard]] wire::Envelope envelope() const;
  [[nodiscard]] std::int64_t interval_ms() const;
  [[nodiscard]] std::int64_t welcomed_interval_ms() const;
  void log(Severity severity, std::string name, std::string text, std::vector<WorkerEffect>& effects) const;
  void send_join(std::vector<WorkerEffect>& effects);
  void send_heartbeat(TimeMs now, std::vector<WorkerEffect>& effects);
  void send_finalize(std::vector<WorkerEffect>& effects);
  void send_leave(const std::string& reason, std::vector<WorkerEffect>& effects);
  void send_link_broken(const BrokenLink& broken, std::vector<WorkerEffect>& effects);
  void report_broken(BrokenLink broken, TimeMs now, std::vector<WorkerEffect>& effects);
  void send_round_failed(std::vector<WorkerEffect>& effects);
  [[nodiscard]] Status said_by(const wire::Interrupt& interrupt) const;
  void send_stopped(std::vector<WorkerEffect>& effects);
  void send_report(std::vector<WorkerEffect>& effects);
  void send_load(std::vector<WorkerEffect>& effects);
  [[nodiscard]] bool may_vote(Generation generation, Version version);
  void send_vote(std::vector<WorkerEffect>& effects);
  void send_log_gap(std::vector<WorkerEffect>& effects);
  void suspend(TimeMs now, std::vector<WorkerEffect>& effects);
  [[nodiscard]] bool obeys(const wire::Envelope& envelope, TimeMs now, std::vector<WorkerEffect>& effects);
  [[nodiscard]] bool knows_newer_commit() const;
  void repeat_wishes(std::vector<WorkerEffect>& effects);
  void committed(Version version, Timeline timeline, std::vector<WorkerEffect>& effects);
  void fail(State state, Status why, std::vector<WorkerEffect>& effects, bool fenced = false);
  void stop(Generation generation, Status why, bool resume, std::vector<WorkerEffect>& effects);
  void wait_as_spare(TimeMs now, std::vector<WorkerEffect>& effects);
  void follow(const wire::Follow& what, std::vector<WorkerEffect>& effects);
  void on_tell(const wire::Tell& tell, std::vector<WorkerEffect>& effects);
  void on_welcome(const wire::Welcome& welcome, TimeMs now, std::vector<WorkerEffect>& effects);
  void on_called(const wire::Called& called, TimeMs now, std::vector<WorkerEffect>& effects);
  void on_refused(const wire::Refused& refused, std::vector<WorkerEffect>& effects);
  void on_plan(const wire::Plan& told, TimeMs now, std::vector<WorkerEffect>& effects);
  void on_interrupt(const wire::Interrupt& interrupt, TimeMs now, std::vector<WorkerEffect>& effects);
  void on_loaded(const wire::Loaded& loaded, std::vector<WorkerEffect>& effects);
  void on_finished(const wire::Finished& finished, std::vector<WorkerEffect>& effects);
  void on_leave_request(const wire::LeaveRequest& request, TimeMs now, std::vector<WorkerEffect>& effects);
  void begin_drain(TimeMs by, const std::string& reason, TimeMs now, std::vector<WorkerEffect>& effects);
  void begin_to_serve(TimeMs now, std::vector<WorkerEffect>& effects);
  void send_serves(std::uint64_t left_ms, std::vector<WorkerEffect>& effects);
  void on_served_plan(const wire::Plan& plan, TimeMs now, std::vector<WorkerEffect>& effects);
  void end_serving(const std::string& why, std::vector<WorkerEffect>& effects);
  void join_timed_out(TimeMs now, std::vector<WorkerEffect>& effects);
  [[nodiscard]] std::string missing_ranks() const;
  void complain_about_silence(TimeMs now, std::vector<WorkerEffect>& effects);
  // When a tracker that is not heard until then counts as away.
  [[nodiscard]] TimeMs away_from() const { return heard_ + limits::kSuspectHeartbeats * interval_ms(); }
  [[nodiscard]] std::string who() const;
  // The job goes on without lost ranks, and takes in those that come.
  [[nodiscard]] bool shrinks() const { return options_.join.settings().min_workers() != 0; }
  [[nodiscard]] bool reports() const;
  void repeat_reports(std::vector<WorkerEffect>& effects);
  // When a report that a silent tracker does not answer ends this life; nothing is reported: never.
  [[nodiscard]] std::optional<TimeMs> report_deadline() const;
  // When it gives up to be admitted. Who was called is counted on.
  [[nodiscard]] std::optional<TimeMs> join_deadline() const;

  Options options_;
  std::vector<std::uint64_t> transitions_;
  State state_ = State::kIdle;
  wire::Plan plan_;                // installed; generation 0: none was
  bool needs_whole_plan_ = false;  // what was told as changes does not fit
  Incarnation tracker_;            // who is obeyed: sent the last message that was meant for this life; 0: none yet
  Term term_;                      // the highest that was heard of, of that tracker
  Incarnation refused_by_;         // another one, whose refusal was logged
  TimeMs since_;                   // when this state began
  TimeMs heard_;                   // when the tracker was last heard in this state
  TimeMs next_send_;               // the next Join, Heartbeat or Leave
  TimeMs next_complaint_;          // the next log line about the tracker's silence or about a wait
  bool complained_ = false;        // of silence; its end is logged too
  bool away_ = false;              // the tracker counts as that
  wire::Welcome welcome_;          // the newest; world size 0: none came
  std::string trouble_;            // what the connection last complained of
  Progress progress_;
  std::uint64_t beat_ = 0;
  std::vector<BrokenLink> broken_links_;  // reported, and not yet answered by an interrupt; or by a plan, if gone
  Status failed_round_;                   // likewise
  TimeMs reported_;                       // when the first of them was
  Generation stop_generation_;            // the data path of all generations before it stops
  Status stop_why_;
  std::int64_t awaited_ms_ = 0;  // as the tracker said in answer to the newest heartbeat, and when
  TimeMs awaited_at_;
  std::optional<TimeMs> unbegun_since_;  // the job of which it is a spare has no plan
  Timeline follows_timeline_;
  Version follows_;        // the newest that it was told of with the plan that it has
  Generation called_;      // as a spare, and has not looked yet; 0: it was not
  bool given_up_ = false;  // this life is over for no fault of its program's
  bool fenced_ = false;    // it stops because the tracker disowned this life, or is gone: nobody waits for an answer
  bool resume_ = false;    // this life goes on with the next plan
  Standing standing_;      // of the answer to the last interrupt
  std::optional<Draining> drain_;
  bool preempted_ = false;               // not only the tracker has asked for it
  bool serves_ = false;                  // it may serve until then
  bool leaves_to_serve_ = false;         // once its data path has stopped
  wire::Plan served_;                    // the newest that names it as one that serves; generation 0: none
  std::optional<Version> last_version_;  // the program has called finalize in it
  bool loading_ = false;                 // Load is not answered
  wire::Vote vote_;                      // not committed yet; version 0: none
  bool vote_again_ = false;              // for what is committed: another tracker is there, and may not know
  std::vector<wire::Setup> setups_;      // of the newest vote, whatever became of it
  std::string log_gap_;                  // reported and not yet answered by an interrupt
  std::optional<wire::Setup> setup_gap_;
  std::optional<worker_effect::Loaded> checkpoint_gap_;
  bool gap_renumbers_ = false;
  Version committed_;  // the newest that was told; 0: none
  Timeline committed_timeline_;
};

}  // namespace warren
