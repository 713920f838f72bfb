// The tracker's view of one job: who is in it, who has which rank, which generation is in force.
//
// States: gathering → running → (loss, desync, give-up) interrupted → gathering → … → finished. A worker is known by
// its worker id; each of its lives by an incarnation. Its rank is assigned when the job is first complete and is kept
// for all its lives. An interrupt ends the generation for all members, in one of two ways; who does not answer within a
// round timeout is fenced.
//  - It resumes (a rank or link was lost, and results are logged: settings.replicas > 0): each live member answers with
//    Report and waits in the same life for the plan of the next generation, with those that join to replace the lost.
//  - It rolls back (ranks disagree, the log has a gap, or nothing is logged): each answers Stopped and joins again in a
//    new life.
// When no life survives from one plan to the next, the timeline rises.
//
// Spares: who says that it waits, and finds no place, is no candidate but a spare (spares.cc). It repeats its
// join for as long as it waits; nothing of it is in the journal.
//
// Places: the newest plan gives each rank to a worker id, and that worker gets it back in its next life. A worker id
// that the plan does not know may wait for the place of a worker that is gone: it gets one (the lowest first) when the
// job has been gathering for a round timeout and still lacks it; nobody waits beyond the number of places that are
// free.
//
// Rules this machine keeps (docs/invariants.md, "Generations", "Trackers", I6, I7):
//  - A generation's plan is persisted before it is announced; generations only rise, also over restarts.
//  - A message of an incarnation that is not the worker's current one changes nothing and is answered with
//  Refused(closed).
//  - A join with the worker id of a live member replaces it: the newer life wins, and if the job was running it is
//    interrupted.
//  - Where nothing is logged, a member that has entered finalize cannot fail the others any more: its Leave stands,
//    dead or alive. Otherwise its inputs may still be needed: it is replaced like any other until all have entered.
//  - A version is committed when all members have voted for it with equal counts of rounds, and persisted before it is
//    announced. A load voids the vote of its rank; a vote lives no longer than the life that gave it, nor over a
//    rollback (I5).
//  - A journal that was lost is made up for by the members: once all of the newest plan have told what they know, or
//    after a round timeout more than half of them, the job goes on from there as if the journal had held it.
//  - If nothing of it is there, neither journal nor member, the newest plan that the disks of lives know serves as the
//    journal, where the disks of all but replicas − 1 failure domains belong to one run of the job.
//  - In a timeline, what a plan's frontier calls completed stays completed in all later plans (I1).
//  - When no life survives and nothing was rolled back, rounds that disks hold up to the first gap stay completed.
//  - A spare is called for a place when all members have stopped, and only then looks at what its host holds (I1). At
//    once if the job resumes and a member has survived; otherwise when the place's worker has not come back within a
//    round timeout. Never where the failure domains that are left could not be sure to hold what was logged.
//  - A rank that holds up the others is asked to leave its place to a spare only where one may take it, one rank at a
//    time, by the name of its life, and with long pauses (replace.cc). Its worker's next life waits in turn.
//  - The bytes of a slow link go by way of others (settings.rewire) from one plan to the next, as long as the lives at
//    its ends are the same; seldom, and never again where that did not help (rewire.cc).
//  - Where bits may change (settings.reorders), the ring visits hosts in another order around such a link: from a
//    version on that no rank can have begun, nor can before all have the plan that says so (I1, I2, I6).
//  - Where the job may shrink (settings.min_workers), it goes on without lost ranks once those that are left have
//    waited for the grace time, and takes in workers that wait once a version is committed. Ranks are absent from one
//    timeline to the next: what is computed with other inputs has other names (I2, I6). It may also begin so
//    (settings.elastic_start), with places that nobody has had.
//  - Where the committed version is lost, the job is: nobody waits for what cannot come. All members hear it, and so do
//    those who join later, until one of them holds something of the job, or its name is freed (lost.cc).
//  - Where full logs have given up results that a new life would need, no plan has a new life: what is not committed is
//    undone, or the job ends if nothing is; in a job that may shrink new lives wait (given_up.cc).
//  - Who is preempted and is the last of its host may go on serving what the host has logged (servers.cc): its
//    failure domain does not count as lost meanwhile, and nothing that is logged relies on it for longer than it takes
//    to log it again elsewhere.
//  - A loss of the job that the journal has is no new decision: a tracker that was started again repeats it.
//  - A tracker that knows a plan decides nothing before more than half of the job's places have promised it their
//    obedience: by a member of the plan, or a life that joins for it, or, after a round timeout, one that joins
//    for another's place. It asks for that with a term above all that it has heard of, and again when a worker has
//    heard of a higher one.
//  - Every wait has a deadline or a log event that says who is waited for, repeated at most every 10 s.
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
#include <variant>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/result.h"
#include "recovery/decide/detours.h"
#include "recovery/decide/given_up.h"
#include "recovery/decide/ring_order.h"
#include "recovery/decide/verdict.h"
#include "recovery/tracker/ballot.h"
#include "recovery/tracker/futile_links.h"
#include "recovery/tracker/job_view.h"
#include "recovery/tracker/last_versions.h"
#include "recovery/tracker/leavers.h"
#include "recovery/tracker/lost_job.h"
#include "recovery/tracker/plan_maker.h"
#include "recovery/tracker/plan_start.h"
#include "recovery/tracker/promises.h"
#include "recovery/tracker/retired_lives.h"
#include "recovery/tracker/rewiring.h"
#include "recovery/tracker/spare_bench.h"
#include "recovery/tracker/topology_planner.h"
#include "recovery/tracker/waiting_room.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

// Effects, in the order in which they must be carried out.
namespace tracker_effect {
// Store under the job's own key; durable before the next effect.
struct Persist {
  std::string bytes;
};
// Forget what was persisted for the job: it has finished.
struct Forget {};
// To the connection of this incarnation (the shell remembers where its last authenticated message came from).
struct Send {
  Incarnation to;
  wire::Envelope envelope;
  // A serialized wire::Plan, packed: the body that `envelope` lacks, or what its Welcome tells a spare. A plan goes to
  // many, and is made into bytes once.
  std::shared_ptr<const std::string> plan = nullptr;
};
// As it goes out: decode_envelope reads it.
[[nodiscard]] std::string encode(const Send& send);
[[nodiscard]] wire::Envelope envelope_of(const Send& send);
// The connection of this incarnation may be forgotten once what was sent has gone out.
struct Drop {
  Incarnation who;
};
struct Log {
  LogEvent event;
};
}  // namespace tracker_effect
using TrackerEffect = std::variant<tracker_effect::Persist, tracker_effect::Forget, tracker_effect::Send,
                                   tracker_effect::Drop, tracker_effect::Log>;

class TrackerMachine {
 public:
  using State = JobState;

  // Each transition that the machine can take; counted, so that the simulator can tell that all were exercised.
  enum class Transition : std::uint8_t;
  [[nodiscard]] static std::span<const char* const> transition_names();
  [[nodiscard]] std::span<const std::uint64_t> transition_counts() const { return transitions_; }

  struct Options {
    std::string job;
    Incarnation self;  // the tracker's own
    TopologyPlanner planner;
    // A plan names every member and goes to every member, 1.2 GB for 10,000 of them: so much is under way at once. What
    // is not heard to have arrived within an interval makes room all the same. When members travelled as a list, the
    // first plan of 10,000 workers took 167 s with 2 MiB, and 59 to 75 s with 32.
    std::size_t most_plan_bytes_out = std::size_t{32} << 20;
  };
  // `persisted`: what an earlier life of the tracker stored for this job; empty: a new job. A new job takes its
  // settings from the first valid Join. kCorrupt: the persisted bytes are not ours. kRefused: another version of Warren
  // has written them. The message says what to do.
  static Result<TrackerMachine> make(Options options, std::string_view persisted, TimeMs now);

  // A message that passed decode_envelope(Side::kWorker), for this job, from an authenticated connection.
  void on_message(const wire::Envelope& envelope, TimeMs now, std::vector<TrackerEffect>& effects);
  // Call when next_deadline() has come (calling early does nothing).
  void on_tick(TimeMs now, std::vector<TrackerEffect>& effects);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  // Whether the job's record may be removed: nobody is there. kRefused names who is. kUnavailable: not yet.
  [[nodiscard]] Status may_forget(TimeMs now) const;
  // The lives whose job is finished, as far as this tracker has finished it: those that ask again are told so, whatever
  // becomes of the name.
  [[nodiscard]] std::span<const Incarnation> finished_lives() const { return finished_lives_; }
  // That has been done: whoever is there is refused with `why`. The machine serves no more.
  void forget(const std::string& why, std::vector<TrackerEffect>& effects);

  // For /status and the simulator.
  using GpuCounts = JobView::GpuCounts;
  using MemberView = JobView::Member;
  using SpareView = JobView::Spare;
  using View = JobView;
  [[nodiscard]] View view(TimeMs now) const;
  // What the host of this life holds counts: it has a rank, or serves. For the simulator.
  [[nodiscard]] bool counts_on(Incarnation life) const;
  [[nodiscard]] State state() const;

 private:
  friend class TrackerInvariants;

  enum class MemberState : std::uint8_t {
    kActive,
    kFinalizing,  // its Leave(finalize) stands
    kStopping,    // has not answered the interrupt yet
    kSurvivor,    // has answered it with a report, and waits for the next plan
    kGone,        // stopped, left, replaced or fenced
  };
  // A life in the newest plan; its rank is its index.
  struct Member {
    MemberState state = MemberState::kActive;
    bool suspected = false;  // others have lost their links to it, which ended its plan; or its process has gone
    bool silent = false;     // finalizing, and not heard for a round timeout
    std::uint64_t beat = 0;  // of the newest heartbeat: what an older one says, delivered again, is over
    TimeMs finalizing_since;
    TimeMs heard;
    TimeMs told;                  // `rounds`
    std::int64_t awaited_ms = 0;  // as of the last look: awaited_outside()
    std::uint32_t attempt = 0;
    bool has_loaded = false;         // before this plan: it needs no checkpoint
    Generation plan_generation;      // of the plan that it had when it reported; 0: it is new
    std::size_t plan_bytes_out = 0;  // of the plan, sent and not heard to have arrived, in this interval:
    TimeMs plan_sent;
    std::int64_t longest_gap_ms = 0;  // between two heartbeats, slowly forgotten
    std::uint64_t rounds_finished = 0, bytes_moved = 0;
    GpuCounts gpu;
    std::vector<wire::CurrentRound> rounds;
    std::optional<wire::Activity> activity;
    std::optional<wire::Blocked> blocked;
    std::optional<wire::Draining> draining;  // as of `told`
    std::optional<wire::LogFill> log;        // as of `told`
    std::string disk_trouble;                // as of `told`; empty: none
    std::optional<GivenUp> given_up;         // stays for as long as the life counts
  };
  // Results that a new life would need, and that somebody's full log has given up.
  struct Lack {
    Version version;
    std::string who;
  };
  using Waiting = WaitingRoom::Life;
  using Spare = SpareBench::Spare;
  // A life that is asked to leave its place to a spare, or for good.
  struct Leaves {
    Incarnation life;
    std::string spare;   // that takes it, as things stand; empty: the job goes on without the rank
    std::string reason;  // as it is told
    bool heard = false;  // it drains
  };
  // Who would take a place, or nobody, where the job may go on without the rank; or why neither is so.
  struct Successor {
    std::string spare, obstacle;
    bool nobody = false;
  };
  struct Evidence {
    std::size_t reporter, peer;
    std::string text;
  };
  using Farewell = Leavers::Farewell;
  // What members tell of a job that the journal does not hold.
  struct Rebuilding {
    TimeMs since;
    wire::Plan plan;                               // the newest that was told; generation 0: none
    std::map<Incarnation, wire::Known> strangers;  // who was asked, with its answer but for the plan
  };
  using Effects = std::vector<TrackerEffect>;

  explicit TrackerMachine(Options options);
  void restore(const wire::JobRecord& record, TimeMs now);

  // Whether what `who` says may be acted on: notes what it has promised, and asks for its promise.
  bool may_act(Incarnation who, const wire::Envelope& envelope, TimeMs now, Effects& effects);
  void take_promise(Incarnation who, const wire::Envelope& envelope, TimeMs now);
  void tell_heard(Incarnation who, Effects& effects) const;
  void ask_again(Incarnation who, Effects& effects) const;
  [[nodiscard]] bool has_majority(TimeMs now) const;
  void log_promises(Effects& effects);
  [[nodiscard]] bool promises_us(const wire::Envelope& envelope) const;

  void on_join(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects);
  // What passed on_message()'s looks at who sends it.
  void take(Incarnation who, const wire::Envelope& envelope, TimeMs now, Effects& effects);
  // Votes commit a version, and members tell of one.
  void note_commit(TimeMs now);
  void take_disk_trouble(std::size_t rank, const std::string& trouble, Effects& effects);
  // One line for each host whose disk takes no results, at most kMaxMissingNames.
  [[nodiscard]] std::vector<std::string> disk_troubles() const;
  // Parts of view().
  void add_missing_ranks(TimeMs now, std::vector<std::string>& waits) const;
  void add_what_is_awaited(const std::vector<std::string>& missing, TimeMs now, std::vector<std::string>& waits) const;
  [[nodiscard]] MemberView waiting_view(Rank rank, const Waiting& w, const StragglerLimits& limits, TimeMs now) const;
  [[nodiscard]] MemberView member_view(std::size_t rank, const StragglerLimits& limits, TimeMs now) const;
  void on_heartbeat(Incarnation who, const wire::Heartbeat& heartbeat, TimeMs now, Effects& effects);
  void on_link_broken(Incarnation who, const wire::LinkBroken& broken, TimeMs now, Effects& effects);
  void suspect(std::size_t rank, std::size_t peer, const wire::LinkBroken& broken, TimeMs now, Effects& effects);
  void on_round_failed(Incarnation who, const wire::RoundFailed& failed, TimeMs now, Effects& effects);
  void on_stopped(Incarnation who, const wire::Stopped& stopped, TimeMs now, Effects& effects);
  void on_leave(Incarnation who, const wire::Leave& leave, TimeMs now, Effects& effects);
  void let_go(Incarnation who, const wire::Leave& leave, Effects& effects);
  void on_finalize(Incarnation who, const wire::Leave& leave, TimeMs now, Effects& effects);
  void on_report(Incarnation who, const wire::Report& report, TimeMs now, Effects& effects);
  void on_load(Incarnation who, Effects& effects);
  void on_vote(Incarnation who, const wire::Vote& vote, TimeMs now, Effects& effects);
  void on_log_gap(Incarnation who, const wire::LogGap& gap, TimeMs now, Effects& effects);

  // Results that full logs have given up (given_up.cc).
  [[nodiscard]] bool counts(const GivenUp& given_up) const;
  // Of which anybody has told; nothing: a new life finds all that it needs, as far as is known.
  [[nodiscard]] std::optional<Lack> lack() const;
  [[nodiscard]] static std::string lack_text(const Lack& lack);
  [[nodiscard]] std::string loss_would() const;
  void take_log_fill(std::size_t rank, const wire::Heartbeat& heartbeat, Effects& effects);
  void look_at_protection(Effects& effects);
  // Whether the next plan cannot be made, as a new life would need such results; then what they belong to is undone.
  bool gives_way_to_new_lives(TimeMs now, Effects& effects);
  void undo_unprotected(const std::string& what, TimeMs now, Effects& effects);

  // Nothing to go on from (lost.cc).
  void on_checkpoint_lost(std::size_t rank, const wire::LogGap& gap, TimeMs now, Effects& effects);
  void lose_job(Code code, const std::string& what, TimeMs now, Effects& effects);
  [[nodiscard]] bool lost() const { return interrupt_.ends_job(); }
  // Whatever a host has kept: it is what nobody has any more that is needed.
  [[nodiscard]] bool ended_for_good() const { return lost() && Code(interrupt_.code()) == Code::kExhausted; }
  // Whether this join was answered: the job is lost, and it brings nothing that might change that.
  bool refuse_lost(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects);
  // Sources of this job on a host.
  [[nodiscard]] LostJob::Sources brought_by(const std::string& host_id, const wire::Held* held,
                                            const wire::Logged& logged) const;
  void note_who_is_asked();
  void note_asked_in_vain(TimeMs now);
  // Likewise: for a round timeout another may come that does.
  bool may_hope(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects);
  // Where the job may shrink: what is committed cannot be loaded from the hosts that have been asked.
  [[nodiscard]] bool comes_in_vain() const;
  // Unless this one's host has not been asked, and has kept something.
  void look_for_what_is_out_of_reach(const Waiting& w);
  // Whether it did: those that need not load it are too few, and nobody can come to make up their number.
  bool lose_if_too_few_have_loaded(TimeMs now, Effects& effects);

  [[nodiscard]] bool knows_nothing() const;  // of any job
  // Whether `who` seems to be a member of a job that the journal does not hold.
  [[nodiscard]] bool is_stranger(Incarnation who, const wire::Envelope& envelope) const;
  void on_stranger(Incarnation who, const wire::Envelope& envelope, TimeMs now, Effects& effects);

  void join_running(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects);
  void join_gathering(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects);
  // Keeps a join without the part that says what its host holds.
  [[nodiscard]] static Waiting waiting_from(Incarnation who, const wire::Join& join);
  void log_joined(const wire::Join& join, bool candidate, std::optional<std::size_t> takes, Effects& effects) const;
  [[nodiscard]] std::string differing_setting(const wire::JobSettings& settings) const;
  // Whether it had to be: its settings are not the job's.
  bool refuse_settings(Incarnation who, const wire::Join& join, Effects& effects);
  [[nodiscard]] bool wants_resize(const wire::Join& join) const;
  void resize(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects);
  [[nodiscard]] std::string whom_heard(TimeMs now) const;
  void undo_resize();
  // Whether it was refused.
  bool refuse_finalized(std::size_t place, Incarnation who, Effects& effects);
  [[nodiscard]] bool has_other_life(const std::string& worker, Incarnation who) const;
  void refuse_over(Incarnation who, const std::string& worker, Effects& effects);
  void refuse_replaced(Incarnation old_life, const std::string& whose, Effects& effects);
  void replace_member(std::size_t place, std::uint32_t attempt, TimeMs now, Effects& effects);
  void replace_spare(const std::string& worker, Effects& effects);
  void replace_waiting(const std::string& worker_id, Effects& effects);

  [[nodiscard]] bool is_spare(Incarnation who, const wire::Join& join, TimeMs now) const;
  // Whether this spare says what it was called to say, and its place is free still.
  [[nodiscard]] bool answers_call(Incarnation who, const wire::Join& join) const;
  void on_spare(Incarnation who, const wire::Join& join, TimeMs now, Effects& effects);
  // Who waited to take a place waits on, as a spare or not at all.
  void displace(const std::string& worker_id, Effects& effects);
  // The places of this host's lost ranks, but for those that its own spares take.
  void give_places_back_to(const std::string& host_id, Effects& effects);
  void call_spares(TimeMs now, Effects& effects);
  void call_owners(TimeMs now, Effects& effects);
  void call_spare(const std::string& worker_id, std::size_t place, TimeMs now, Effects& effects);
  void pass_over_silent(TimeMs now);
  void end_call(std::size_t place);
  void end_calls();
  bool send_back_early_lookers(const std::vector<FreePlace>& places,
                               const std::vector<std::optional<std::size_t>>& chosen, Effects& effects);
  // They have found too little: others are waited for.
  void send_back_takers(Effects& effects);
  // The plan has no rank on these hosts of the one before.
  void leave_hosts(const wire::Plan& before);
  [[nodiscard]] std::int64_t patience_with_called_ms() const;
  void drop_silent_spares(TimeMs now, Effects& effects);
  // Of those who wait for the next plan and hold something, and the spares that were called.
  [[nodiscard]] std::set<std::string> hosts_there() const;
  [[nodiscard]] bool spares_in_reach(const std::set<std::string>& there) const;
  // Members that others have lost their links to, and that alone have not answered an interrupt which the others have,
  // are taken for dead at once where spares can replace them.
  void fence_suspects(TimeMs now, Effects& effects);
  void send_called(const Spare& spare, Effects& effects) const;
  // `has`: what a spare of spares_ has said that it follows. Null: it has not said it, or follows nothing.
  void send_spare_welcome(Incarnation who, Generation called, const wire::Followed* has, TimeMs now, Effects& effects);
  // Returns the plan that goes with it, or null.
  [[nodiscard]] std::shared_ptr<const std::string> tell_what_to_follow(const wire::Followed& has,
                                                                       const std::string& spare, TimeMs now,
                                                                       wire::Welcome& welcome);
  [[nodiscard]] std::string describe_spares() const;  // for the log of who is waited for

  // After each look at stragglers, of which it found these.
  void replace_stragglers(const std::vector<Verdict>& found, TimeMs now, Effects& effects);
  void ask_to_leave(std::size_t rank, const StragglerWatch::Standing& why, const std::string& spare, TimeMs now,
                    Effects& effects);
  // Standing verdicts, with what is done next.
  [[nodiscard]] std::vector<StragglerWatch::Standing> foresee(TimeMs now) const;
  [[nodiscard]] const StragglerWatch::Standing* first_to_replace(
      const std::vector<StragglerWatch::Standing>& standing) const;
  // Why this rank is replaced by no spare; empty: it may be.
  [[nodiscard]] std::string excuse(std::size_t rank) const;
  [[nodiscard]] Successor successor_of(std::size_t rank, TimeMs now) const;
  // A plan was made.
  void forget_replaced(TimeMs now);
  // Who is to follow, for people.
  [[nodiscard]] std::string followed_by(const std::string& spare) const;
  // Whether the next life of this worker is kept out of the job, which goes on without its rank.
  [[nodiscard]] bool excluded(const std::string& worker, TimeMs now) const;
  // The rank that was asked to leave for good.
  [[nodiscard]] bool leaves_for_good(std::size_t rank) const;
  // Whether the place is for a spare, or for nobody, and not for the next life of its own worker, which was asked to
  // leave: until a round timeout has passed, or no spare could have it.
  [[nodiscard]] bool given_away(std::size_t place, TimeMs now) const;
  [[nodiscard]] std::int64_t replace_after_ms() const {
    return static_cast<std::int64_t>(settings_.replace_after_ms());
  }
  [[nodiscard]] std::int64_t replacement_pause_ms() const;

  // After each look at stragglers (rewire.cc).
  void rewire(const std::vector<Verdict>& found, TimeMs now, Effects& effects);
  void foresee_ways(std::vector<StragglerWatch::Standing>& standing, TimeMs now) const;
  [[nodiscard]] std::string ends_of(const RankPair& pair) const;  // "rank 2 (…) and rank 5 (…)"
  void log_not_rewired(const std::string& text, const RankPair& pair, Effects& effects) const;
  // Of plan_, whose members are known.
  void choose_detours(const wire::Plan& before, TimeMs now, Effects& effects);
  // Likewise; detours are chosen.
  void choose_order(const wire::Plan& before, Effects& effects);
  // Links of plan_ around which the ring should go, by how slow they are.
  [[nodiscard]] std::map<RankPair, std::uint32_t> links_to_avoid() const;
  // How, from the newest order of plan_.
  [[nodiscard]] RingProblem ring_around(const std::map<RankPair, std::uint32_t>& slow) const;
  // Whether plan_ may name another one: all that it names are in force.
  [[nodiscard]] bool may_reorder() const;
  // In which no rank has begun a round, as all who are there have told: while a tracker is away, ranks go on beyond
  // what is committed.
  [[nodiscard]] Version first_unbegun() const { return newest_begun().next(); }
  [[nodiscard]] Version newest_begun() const;
  [[nodiscard]] bool rewires() const { return settings_.rewire() && logged(); }
  [[nodiscard]] bool reorders() const { return settings_.reorders() && rewires(); }
  [[nodiscard]] std::int64_t rewire_after_ms() const;

  // Links that end one generation after the other, in which nothing gets done (unusable.cc).
  void note_futile(const Evidence& e);
  [[nodiscard]] bool has_untried_way(const RankPair& pair) const;
  [[nodiscard]] bool end_for_unusable(TimeMs now, Effects& effects);
  void set_apart(Effects& effects);
  void look_at_futile(const wire::Plan& before);

  // Going on without lost ranks, and with those that come (shrink.cc).
  [[nodiscard]] bool shrinks() const { return settings_.min_workers() != 0; }
  [[nodiscard]] bool absent(std::size_t rank) const;
  [[nodiscard]] std::size_t count_absent() const;
  [[nodiscard]] bool vacant(std::size_t rank) const;  // nobody has had the place
  [[nodiscard]] std::size_t count_vacant() const;
  [[nodiscard]] std::size_t present() const { return members_.size() - absent_; }
  // From when on a job that is not complete goes on with those who wait, or begins with them; nullopt: not with these.
  [[nodiscard]] std::optional<TimeMs> goes_on_from() const;
  [[nodiscard]] std::optional<TimeMs> begins_from() const;
  // When it begins, for people; empty: it has begun, or begins with all.
  [[nodiscard]] std::string describe_beginning(TimeMs now) const;
  [[nodiscard]] bool has_loaded(const Waiting& w) const;
  [[nodiscard]] std::size_t loaded_survivors() const;
  // Those who need nothing from the log or a checkpoint suffice for the job.
  [[nodiscard]] bool goes_on_alone() const;
  // Who is new would have to load and replay what may be out of reach, where those who are left could go on without it.
  bool send_back_newcomers(Effects& effects);
  [[nodiscard]] bool waits_for_called(TimeMs from, TimeMs now);
  void count_missing_copies();
  void count_new_domains(const wire::Plan& before);
  void take_in(TimeMs now, Effects& effects);
  void fall_behind(std::size_t rank, const wire::Report& r, TimeMs now, Effects& effects);

  // Lives that have left and serve (servers.cc).
  [[nodiscard]] bool may_serve(std::size_t rank) const;
  // Others are there, or serve, that have mapped what this rank has logged.
  [[nodiscard]] bool others_answer_for(std::size_t rank) const;
  void take_server(std::size_t rank, const wire::Leave& leave, TimeMs now, Effects& effects);
  // It need not serve, but has been as far as it says.
  void take_farewell(std::size_t rank, const wire::Leave& leave);
  [[nodiscard]] bool is_there_still(const Farewell& farewell) const;
  void on_server(Incarnation who, const wire::Leave& leave, TimeMs now, Effects& effects);
  [[nodiscard]] bool is_named(Incarnation server) const;  // by plan_
  // One on this host serves that was in plan_: it has what all its lives have logged.
  [[nodiscard]] bool is_served(const std::string& host_id) const;
  void tell_server(Incarnation server, Effects& effects);  // plan_
  // It answers for its host no more.
  void drop_server(Incarnation server, const std::string& why, Effects& effects);
  // Does not persist; true if there is something to persist.
  [[nodiscard]] bool lose_server(Incarnation server, const std::string& why, Effects& effects);
  void drop_late_servers(TimeMs now, Effects& effects);
  // The generation may have ended in the moment in which its plan was on the way to one that serves: it has time to say
  // that it has come.
  [[nodiscard]] bool waits_for_servers(TimeMs now);
  // A plan is made: those that have not heard of the first one that named them do not know what they may serve.
  void drop_unaware_servers(Effects& effects);
  // All, or those that plan_ names.
  void dismiss_servers(Code code, const std::string& why, Effects& effects);
  // Those that have nothing of what comes after what is committed.
  void dismiss_unneeded_servers(Effects& effects);
  void dismiss_server(Incarnation server, Code code, const std::string& why, Effects& effects);

  void take_held(Waiting& w, const wire::Join& join, Effects& effects);
  void take_logged(Waiting& w, const wire::Join& join) const;
  void refuse_surplus_candidates(Effects& effects);
  void erase_waiting(const std::string& worker_id);
  void clear_waiting();
  void remove_waiting(const std::string& worker_id);  // for good
  void lose(std::size_t rank);                        // its life is over
  void forget_unused_settings();                      // whose workers are all gone
  void maybe_plan(TimeMs now, Effects& effects);
  // Beginning a generation (planning.cc). Ranks are by worker id.
  using Ranks = std::map<std::string, Rank>;
  bool follow_plan(bool whole, Ranks& ranks, PlanStart& start, TimeMs now, Effects& effects);
  bool find_start(bool survived, PlanStart& start, TimeMs now, Effects& effects);
  void give_places(bool whole, const std::vector<std::size_t>& free, Ranks& ranks, Effects& effects);
  bool name_rounds(const Ranks& ranks, bool survived, PlanStart& start, TimeMs now, Effects& effects);
  void make_plan(const Ranks& ranks, PlanStart start, TimeMs now, Effects& effects);
  [[nodiscard]] std::vector<PlanMaker::Worker> workers_with(const Ranks& ranks) const;
  void count_beginning(const PlanMaker& maker, const PlanStart& start);
  void retire_old_lives();
  void seat_members(const PlanMaker& maker, bool other_world, TimeMs now);
  void note_survivors_setups();
  void prepare_telling(const wire::Plan& before, TimeMs now);
  void enter_running(TimeMs now);
  void log_planned(std::size_t survivors, bool goes_on, std::uint64_t from_disks, Effects& effects) const;
  // Whether the launchers of all but R - 1 failure domains have kept what the lives of the newest plan have logged, and
  // those lives are over.
  [[nodiscard]] bool memory_survives() const;
  [[nodiscard]] PlanStart start_from_disks() const;
  // Where more disks are lost than there are copies to spare, what the mirror holds is what is committed. Whether so.
  bool go_back_to_mirror(Effects& effects);
  // Where the journal holds nothing: whether the disks of those who have joined do. They join again then.
  bool adopt_from_disks(TimeMs now, Effects& effects);
  // Whether it is of this run and timeline.
  [[nodiscard]] bool continues(const wire::Logged& logged) const;
  [[nodiscard]] Result<std::vector<wire::Position>> next_frontier(bool with_inherited) const;
  // In flight only where this timeline goes on.
  [[nodiscard]] Result<std::vector<wire::Setup>> next_setups(bool goes_on) const;
  void keep(std::vector<wire::Setup> setups);
  void forget_uncommitted_setups();
  void tell_recovered(Generation before, TimeMs now, Effects& effects);
  void log_recovered(const std::string& text, Effects& effects) const;
  void announce(TimeMs now, Effects& effects);
  void repeat_plan(std::size_t rank, TimeMs now, Effects& effects);
  void plan_arrived(std::size_t rank, TimeMs now, Effects& effects);  // as far as is known
  void count_on(Member& member, const wire::GpuCounters& told);
  // Ends the newest plan, or its interrupt with another one. Resumes if that is possible after `code`. `about`: what is
  // known beside the lost ranks.
  void interrupt(Code code, const std::string& what, const std::vector<std::uint32_t>& lost, TimeMs now,
                 Effects& effects, const wire::About& about = {});
  void roll_back(Code code, const std::string& what, TimeMs now, Effects& effects, const wire::About& about = {});
  // What comes after it: its lives go on; all begin anew; nothing.
  enum class Ending : std::uint8_t { kResumes, kRollsBack, kEndsJob };
  void end_generation(Code code, const std::string& what, const std::vector<std::uint32_t>& lost, Ending ending,
                      TimeMs now, Effects& effects, wire::About about = {});
  [[nodiscard]] std::string what_comes_next(Code code, const std::vector<std::uint32_t>& lost, Ending ending) const;
  void stop_members(TimeMs now, Effects& effects);  // those that are there still hear the interrupt
  void catch_up(std::size_t rank, std::uint64_t generation, TimeMs now, Effects& effects);
  void commit(TimeMs now, Effects& effects);
  // A member was told of it by a tracker whose journal is not this one: it is lost, or this one is an older copy.
  void learn_commit(Version version, Timeline timeline, Effects& effects);
  // Whether the states that ranks have told differ; then it has rolled back.
  bool states_differ(TimeMs now, Effects& effects);
  [[nodiscard]] bool has_room_for(std::size_t bytes) const;
  void interrupt_by_evidence(TimeMs now, Effects& effects);
  void maybe_gather(TimeMs now, Effects& effects);
  void finish(TimeMs now, Effects& effects);
  [[nodiscard]] TimeMs rebuild_deadline() const;
  // Members of the newest plan who have told what they know; 0 while somebody has a newer one than was told.
  [[nodiscard]] std::size_t told() const;
  [[nodiscard]] std::size_t members_asked() const;  // that the newest plan has
  void end_rebuilding(TimeMs now, Effects& effects);
  void rebuild(TimeMs now, Effects& effects);
  // An older copy of the journal is behind by some interrupts. Whoever claims more than this is wrong, and would use
  // the numbers up.
  static constexpr std::uint64_t kMostGenerationsBehind = std::uint64_t{1} << 32;
  [[nodiscard]] bool may_learn() const;
  [[nodiscard]] bool is_newer(const wire::Known& known) const;
  [[nodiscard]] bool learn_from_disks(TimeMs now, Effects& effects);
  [[nodiscard]] wire::JobRecord record_of(const wire::Plan& plan, const wire::Known& known) const;
  [[nodiscard]] std::optional<TimeMs> waits_for_newer_plan(bool survived, TimeMs now) const;
  void learn(const wire::Known& known, const std::string& from, TimeMs now, Effects& effects, bool interrupted = false);
  [[nodiscard]] bool is_over(Incarnation who) const;
  // From a life that the plan does not know, or that speaks of a later one.
  [[nodiscard]] bool may_know_newer_plan(Incarnation who, const wire::Envelope& envelope, TimeMs now) const;
  void learn_newer_plan(Incarnation who, const wire::Envelope& envelope, TimeMs now, Effects& effects);
  // As if the journal had held this plan, and what else is known. To be persisted.
  void take_over(const wire::Plan& plan, const wire::Known& known, TimeMs now);
  void tick_running(TimeMs now, Effects& effects);
  void tick_interrupted(TimeMs now, Effects& effects);
  void tick_gathering(TimeMs now, Effects& effects);
  void excuse_own_sleep(TimeMs now, Effects& effects);
  bool find_silent(TimeMs now, Effects& effects);         // whether it interrupted
  bool find_desync(TimeMs now, Effects& effects);         // likewise
  bool checkpoints_differ(TimeMs now, Effects& effects);  // likewise
  [[nodiscard]] bool doubt(const Wait& wait);
  [[nodiscard]] std::vector<Testimony> testimonies(TimeMs now) const;
  void look_for_stragglers(TimeMs now, Effects& effects);
  void log_finalize_wait(Effects& effects);
  void log_vote_wait(TimeMs now, Effects& effects);

  void count(Transition transition);
  void arm(TimeMs at);
  void persist(Effects& effects);
  [[nodiscard]] wire::Envelope envelope_to(Incarnation who) const;
  // False: so many plans are on their way that this one has to wait.
  bool send_plan(std::size_t rank, TimeMs now, Effects& effects);
  void send_interrupt(std::size_t rank, Effects& effects) const;
  void send_welcome(Incarnation who, Effects& effects) const;
  void send_finished(Incarnation who, Effects& effects) const;
  void send_committed(Incarnation who, Effects& effects) const;
  void refuse(Incarnation who, Code code, const std::string& reason, Effects& effects, bool fenced = false);
  void send_refused(Incarnation who, Code code, const std::string& reason, Effects& effects, bool fenced = false) const;
  void refuse_stale(Incarnation who, Effects& effects);
  void retire(Incarnation who);
  void log(Severity severity, std::string name, std::string text, Effects& effects,
           std::vector<std::pair<std::string, std::string>> fields = {}) const;

  [[nodiscard]] std::int64_t timeout_ms() const;
  [[nodiscard]] std::int64_t interval_ms() const;
  [[nodiscard]] bool planned() const { return plan_.generation() != 0; }
  [[nodiscard]] bool has_places() const { return planned() && !resized_; }  // those of plan_
  [[nodiscard]] bool logged() const { return settings_.replicas() != 0; }
  [[nodiscard]] Version next_version() const;         // the only one that can be voted for
  [[nodiscard]] std::string program_version() const;  // "version 3", "the beginning": where a rollback leads
  // To who has none, or serves.
  [[nodiscard]] const std::shared_ptr<const std::string>& whole_plan();
  // To a spare that follows: who has its checkpoint.
  [[nodiscard]] const std::shared_ptr<const std::string>& followed_plan();
  [[nodiscard]] std::optional<std::size_t> rank_of(Incarnation who) const;
  [[nodiscard]] std::optional<std::size_t> place_of(const std::string& worker_id) const;
  [[nodiscard]] std::size_t candidates() const;
  [[nodiscard]] std::string name(std::size_t rank) const;  // "rank 2 (worker w2 on host h)"
  [[nodiscard]] static std::string worker_on_host(const std::string& worker_id, const std::string& host_id);
  [[nodiscard]] static std::string comma_list(const std::vector<std::string>& names);
  [[nodiscard]] std::vector<std::string> missing_workers() const;

  Options options_;
  std::vector<std::uint64_t> transitions_;
  State state_ = State::kGathering;
  Generation generation_;            // the newest that was announced or reserved
  Generation persisted_generation_;  // the newest in the journal
  wire::JobSettings settings_;       // world size 0: nobody has set them
  std::string settings_from_;
  // The next plan has another world size than plan_, whose members are gone: nobody has a place, and nothing but the
  // newest checkpoint is kept.
  bool resized_ = false;
  wire::Plan plan_;  // the newest; generation 0: none was made
  // Of plan_, as it is told to who has none, and to who has the one before, that of told_base_. Null: not told yet; or
  // never by changes.
  std::shared_ptr<const std::string> told_, told_changes_;
  std::shared_ptr<const std::string> followed_;  // likewise, as spares are told it
  Generation told_base_;
  wire::Interrupt interrupt_;    // what ended it; generation 0: it is in force
  std::vector<Member> members_;  // by rank in plan_
  std::map<Incarnation, std::size_t> rank_by_incarnation_;
  std::map<std::string, std::size_t> place_by_worker_;
  WaitingRoom waiting_;
  std::size_t absent_ = 0;             // of members_: the plan goes on without them
  std::set<std::size_t> free_places_;  // ranks of plan_ whose worker has not come back
  SpareBench spares_;
  std::set<std::string> left_domains_;  // that plans have left since the newest commit, at most one a copy
  Leavers leavers_;
  TimeMs looked_for_spares_{};  // call_spares() last
  bool suspended_ = false;      // lack() has found something, as was said
  TimeMs answered_;             // the newest answer to the interrupt
  TimeMs arrived_;              // the newest of those who have joined
  std::uint64_t arrivals_ = 0;
  RetiredLives retired_;
  Timeline timeline_;  // of plan_
  std::optional<Version> committed_;
  Timeline committed_timeline_;
  std::optional<Version> persisted_commit_;  // the newest in the journal
  // Set-up rounds that are done: as far as survivors have told, or votes for what is committed.
  google::protobuf::RepeatedPtrField<wire::Setup> setups_;
  // Of those, by (group, name): what lives of plan_ have completed; what is no part of committed_. A tracker that is
  // started again knows of none.
  std::set<std::pair<std::uint64_t, std::uint64_t>> survivors_setups_, setups_since_commit_;
  bool commit_learned_ = false;  // committed_, from a member
  Ballot ballot_;                // on next_version(), in timeline_
  LastVersions last_versions_;   // of this generation
  // The plan's frontier calls rounds completed of which no survivor knows, but an earlier plan; and, from a gap in the
  // log until the next plan: it proved wrong, survivors alone count.
  bool frontier_inherited_ = false, distrust_inherited_ = false;
  Term term_{1};
  Promises promises_;
  std::set<Incarnation> asked_in_vain_;            // for a plan newer than the journal's
  bool journal_is_older_ = false;                  // than what such a life has told
  std::map<Incarnation, TimeMs> asked_for_newer_;  // that speak of one, since when; not answered
  Generation newer_spoken_of_;                     // the newest of which such a life has spoken, though it may be gone
  bool may_be_older_ = false;                      // it was read, and no plan made since
  bool acting_ = true;                             // more than half do, or no plan is known
  std::vector<Evidence> evidence_;                 // links that broke, until their time is up
  TimeMs evidence_due_;
  std::size_t unannounced_ = 0;     // the ranks from here on have not been sent their plan
  std::size_t plan_bytes_out_ = 0;  // since plans_counted_from_, to members that have not been heard since
  TimeMs plans_counted_from_;
  TimeMs since_;                   // when this state began
  TimeMs interrupted_at_;          // when interrupt_ was raised
  std::optional<TimeMs> noticed_;  // the first sign of what ended plan_, until the next one
  StragglerWatch watch_;           // of plan_, while it is in force
  std::deque<Wait> doubted_;       // what has ended a generation; the newest ones, bounded
  TimeMs judge_from_;              // this tracker was held up: what it should have heard comes first
  std::array<std::uint64_t, kBlames> verdicts_ever_{};
  std::optional<Leaves> leaves_;  // one at a time
  TimeMs no_replacement_before_;
  // A checkpoint that a newcomer could not load, and which hosts do not have it.
  struct OutOfReach {
    Version version;
    Timeline timeline;
    std::set<std::string> hosts;
    std::string why;
  };
  std::optional<OutOfReach> out_of_reach_of_all_;
  bool without_frontier_ = false;  // plan_ is as a disk knew it
  LostJob lost_job_;
  std::map<std::string, TimeMs> excluded_;        // workers without which the job goes on, until when at least
  std::map<std::size_t, std::string> obstacles_;  // by rank: why it is not replaced, as was said
  Rewiring rewiring_;
  FutileLinks futile_;                           // since anything got done
  std::optional<std::string> recovery_to_tell_;  // that the job is whole again, once a round is done
  std::int64_t join_timeout_ms_ = 0;             // the longest of those that have joined; 0: not known
  TimeMs next_repeat_;                           // interrupts again, or a look at who waits
  TimeMs next_log_;
  TimeMs next_resize_log_;  // that somebody wants another world size, and waits
  std::optional<TimeMs> deadline_;
  std::optional<Rebuilding> rebuilding_;
  bool forgotten_ = false;
  std::vector<Incarnation> finished_lives_;
  std::string last_interrupt_;
  TimeMs last_round_, last_commit_;      // as in a view
  std::optional<Version> noted_commit_;  // of last_commit_
  std::uint64_t interrupts_ = 0, joins_ = 0, refusals_ = 0, preemptions_ = 0, spares_used_ = 0;
  GpuCounts gpu_;  // but for readers, which come and go
};

}  // namespace warren
