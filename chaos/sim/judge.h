// The judge of a run: it checks those invariants of docs/invariants.md that can be seen from outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "chaos/sim/completed_rounds.h"
#include "chaos/sim/contributors.h"
#include "chaos/sim/hosts.h"
#include "chaos/sim/older_journal.h"
#include "chaos/sim/oracle.h"
#include "chaos/sim/program.h"
#include "chaos/sim/straggler_judge.h"
#include "chaos/sim/world.h"
#include "recovery/decide/given_up.h"
#include "recovery/wire/messages.pb.h"

namespace warren::chaos {

class Judge {
 public:
  // `salted`: the program reads something from outside that is another thing in each timeline that no life has lived to
  // see.
  Judge(World& world, const Program& program, const Hosts& hosts, const wire::JobSettings& job, bool salted)
      : world_(world),
        program_(program),
        hosts_(hosts),
        job_(job),
        salted_(salted),
        older_journal_(world),
        completed_(world, hosts),
        stragglers_(world),
        contributors_(world, job_) {}

  // The tracker hands a message to the network; `durable` is what its journal would hold after a crash now.
  void announced(const wire::Envelope& envelope, const std::string* durable);
  // A tracker starts with what its journal has.
  void tracker_started(const std::string* durable);
  // All processes have gone, and the journal too. The newest that the disks know: plans after it were seen by nobody
  // who left anything.
  void journal_lost(Generation generation, Timeline timeline, std::optional<Version> committed,
                    Timeline committed_timeline);
  // The journal has gone, and members live.
  void journal_lost() { journal_lost_ = true; }
  // An older copy is in the journal's place.
  void journal_restored() { older_journal_.restored(Generation(plan_.generation())); }
  // A record is in the journal, before anything of it is announced; with what those who live know.
  void stored(const std::string& record, const std::vector<OlderJournal::Life>& lives);
  // What somebody may have been told, and may tell.
  [[nodiscard]] bool journal_lacks_something() const {
    return older_journal_.lacks_plans() || older_journal_.lacks_commit();
  }
  // The tracker has made it up again. `newest`: the newest plan that a living life has in force; `committed`: the
  // newest version that members who live were told of. `excused`: too few of them could tell what they know, and
  // anything may have come of that. False: the job begins anew, and that is the end of the run.
  bool rebuilt(const wire::JobRecord& record, Generation newest, Version committed, bool excused);
  // As it was announced; empty: there is none.
  [[nodiscard]] wire::Plan plan_of(Generation generation) const;
  // All processes have gone, and all disks of workers. The next timeline begins from the newest checkpoint that the
  // mirror has; `must`: nothing else may come of it.
  void disks_lost(const std::optional<wire::Held>& mirrored, bool must);
  // The job's record was erased on purpose: another job may use the name.
  void job_forgotten();

  // A life takes a plan into force.
  void installed(const wire::Plan& plan, Incarnation life, const std::string& worker_id);
  // A life that has left serves what its host has logged to the members of a plan.
  void serves(const wire::Plan& plan, Incarnation life);
  // A call returned with success; `output` is what stands in the program's buffer.
  struct Return {
    std::int32_t place = 0;
    Timeline timeline;        // of the plan that the life has
    const std::string& host;  // where
    Incarnation life;
    const std::vector<Rank>* contributors = nullptr;  // as the call says; null: all ranks
  };
  void returned(const ProgramStep& step, std::span<const std::byte> output, const Return& how);
  // Its launcher has started another life in its place, which has looked at what its host holds while this one runs on.
  void given_up(Incarnation life) { given_up_.insert(life); }
  // A life has completed a round.
  void completed(const RoundId& round, Incarnation life);
  // A message is about to be logged on its sender's host, and there alone: what its receiver gets stays the same for as
  // long as it lies there.
  void sends(const ProgramStep& step, Timeline timeline, const std::string& host);
  // Memory of this host has gone: what a root had read, and nobody elsewhere has returned, may have gone with it.
  void memory_lost(const std::string& host);
  // A call failed; an output element is as it was or final (docs/invariants.md, "Inputs").
  void interrupted(const ProgramStep& step, std::int32_t place, std::span<const std::byte> before,
                   std::span<const std::byte> output, Timeline timeline);
  [[nodiscard]] Oracle& oracle(Timeline timeline);

  // A life was told what to start from; has it; or cannot have it.
  void loaded(std::optional<Version> version, Timeline timeline);
  void restored(const std::string& who, Timeline timeline, Version version, Rank rank, const ProgramState& state);
  void load_failed(const std::string& who, const Status& why);
  void told_committed(Version version, Timeline timeline);

  // What may make a job with a log start again from its newest checkpoint.
  void excuse_rollback() { rollback_excused_ = true; }
  // Commits are mirrored: what is committed may fall with a timeline.
  void mirrored() { with_mirror_ = true; }
  // More failure domains were lost than there are copies: the job may never finish.
  // A life has told the tracker that the log lacks what its plan says it holds: who had seen it is gone. Should the
  // others end as well before the next plan, nobody knows what else is lacking, and the timeline rises.
  // `renumbers`: all records of a round are gone, and a new process asks in vain which it was (decision 0010).
  void gap_told(Generation generation, bool renumbers) {
    gap_in_ = generation;
    rollback_excused_ = rollback_excused_ || renumbers;
  }
  void excuse_loss() { rollback_excused_ = loss_excused_ = true; }
  [[nodiscard]] bool loss_excused() const { return loss_excused_; }
  // A committed checkpoint was lost, and may have been.
  [[nodiscard]] bool lost_for_good() const { return lost_for_good_; }
  // And a life has found so, which the others do not know yet.
  [[nodiscard]] bool load_has_failed() const { return load_failed_; }
  [[nodiscard]] std::uint64_t commits() const { return commits_; }
  [[nodiscard]] std::uint64_t rollbacks() const { return rollbacks_; }
  // That plans took from disks after no life had survived.
  [[nodiscard]] std::uint64_t kept_rounds() const { return kept_rounds_; }
  // A new life has asked whether the job's next round is the one that it calls.
  void asked(bool met) { ++(met ? met_ : unmet_); }
  [[nodiscard]] std::uint64_t met() const { return met_; }
  [[nodiscard]] std::uint64_t unmet() const { return unmet_; }
  // A spare holds a checkpoint, or has begun with the one that it held.
  void followed() { ++followed_; }
  void loaded_followed() { ++loaded_followed_; }
  [[nodiscard]] std::uint64_t times_followed() const { return followed_; }
  [[nodiscard]] std::uint64_t times_loaded_followed() const { return loaded_followed_; }
  // What the tracker says of stragglers, and whom it asks to leave, against who really is one.
  void heard(const LogEvent& event);
  [[nodiscard]] std::uint64_t stragglers_named() const { return stragglers_.named(); }
  // Calls that returned a result for which the ring had another order than that of ranks.
  [[nodiscard]] std::uint64_t reordered_rounds() const { return reordered_rounds_; }
  // Who was asked to leave its place to a spare has left it in time.
  void check_replaced() {
    if (!finished_) stragglers_.check_replaced(plan_);
  }
  [[nodiscard]] std::uint64_t replaced() const { return stragglers_.replaced(); }
  // A life's full log has given up results.
  void gives_up(const GivenUp& what) {
    ++times_given_up_;
    std::optional<GivenUp>& newest = gone_from_logs_[what.timeline];
    if (!newest || newest->order() < what.order()) newest = what;
  }
  [[nodiscard]] std::uint64_t times_given_up() const { return times_given_up_; }
  // Of them some that a new life would need: a loss undoes what is not committed, or ends the job.
  [[nodiscard]] bool unprotected() const;
  void pending(std::size_t versions) { most_pending_ = std::max(most_pending_, std::uint64_t{versions}); }
  [[nodiscard]] std::uint64_t most_pending() const { return most_pending_; }
  void spilled() { ++spills_; }
  [[nodiscard]] std::uint64_t spills() const { return spills_; }
  // How many timelines began from the mirror.
  [[nodiscard]] std::uint64_t from_mirror() const { return from_mirror_; }
  // I1 where the job goes on without lost ranks: what anybody has returned keeps its name, and so its bytes and
  // contributors, in a timeline that lives have come to from an older one. Once losses of the newest plan are counted.
  void check_kept();
  // How many plans go on without ranks that the ones before had, and with ones that those had not.
  [[nodiscard]] std::uint64_t shrunk() const { return contributors_.shrunk(); }
  [[nodiscard]] std::uint64_t grown() const { return contributors_.grown(); }

  // The newest plan that was announced, and what is committed.
  [[nodiscard]] const wire::Plan& plan() const { return plan_; }
  [[nodiscard]] std::optional<Version> committed() const { return committed_; }
  [[nodiscard]] Timeline committed_timeline() const { return committed_timeline_; }

  // Something happened that a person could see: a log line, a round, a plan.
  void sign() { last_sign_us_ = world_.now_us(); }
  // I7: a wait is explained in bounded time. Called after every event.
  void check_silence(bool anybody_waits);

  [[nodiscard]] bool finished() const { return finished_; }
  [[nodiscard]] std::uint64_t rounds() const { return rounds_; }

 private:
  void take_up(const wire::Plan& plan);
  void look_at_end(const wire::JobRecord& record);
  // What a journal's record says, or an empty one; until another is read.
  const wire::JobRecord& read(const std::string* durable);
  void fall_back(const wire::Plan& plan);
  // What came after them was seen by nobody who left anything.
  void forget_after(Generation generation, Timeline timeline);
  void begin_timeline(const wire::Plan& plan);
  [[nodiscard]] bool remembered(const wire::Plan& plan) const;
  void check_completed(const wire::Plan& before, const wire::Plan& plan);
  void made(const wire::Plan& plan);
  [[nodiscard]] Oracle::Kept kept_setups(const wire::Plan& plan);
  void keep_rounds(const wire::Plan& plan, Oracle::Kept& kept);
  void announce_commit(Version version, Timeline timeline);
  [[nodiscard]] Timeline naming(Timeline timeline, const ProgramStep& step) const;
  // The ranks of a step of the world in the order that a plan has told for its ring; empty: none has.
  [[nodiscard]] std::vector<Rank> ring_order(Timeline timeline, const ProgramStep& step) const;
  // What is wrong with a result by its inputs; empty: nothing.
  [[nodiscard]] std::string judge(const ProgramStep& step, const Return& how, const Oracle::Expected& expected,
                                  const std::vector<Rank>& order, std::span<const std::byte> output) const;
  // Mode shrink.
  [[nodiscard]] bool shrinks() const { return job_.min_workers() > 0; }
  [[nodiscard]] bool obsolete(const ProgramStep& step) const;
  [[nodiscard]] bool lives_on_elsewhere(const Return& how) const;

  World& world_;
  const Program& program_;
  const Hosts& hosts_;
  const wire::JobSettings job_;
  const bool salted_;
  std::string record_bytes_;                    // what was read last
  wire::JobRecord record_;                      // and what it says
  std::map<std::uint64_t, std::string> plans_;  // by generation, as announced
  std::map<std::string, std::uint32_t> ranks_;  // by worker id, of the newest plan
  std::map<std::uint64_t, Timeline> life_timelines_;
  std::set<Timeline> setups_made_again_;  // from here on: the log had lost those that a checkpoint builds on
  std::uint64_t newest_generation_ = 0;   // ever announced
  std::uint64_t rounds_ = 0;
  bool finished_ = false;
  bool forgotten_ = false;  // on purpose, after the end
  Micros last_sign_us_ = 0;
  std::map<Timeline, std::unique_ptr<Oracle>> oracles_;
  // The first result that was returned, by timeline where that matters, step and place.
  struct Golden {
    std::optional<std::vector<std::byte>> bytes;
    std::set<std::string> hosts;  // Values::kFresh: where it was returned; of a message, where its sender has logged it
  };
  // And the order of the ring, which makes other bits of what is rounded.
  std::map<std::tuple<Timeline, std::size_t, std::int32_t, std::vector<Rank>>, Golden> golden_;
  std::map<Timeline, wire::Plan> ring_orders_;  // of a timeline's newest plan, which says nothing else
  std::map<std::pair<Timeline, Version>, std::vector<Rank>> ring_orders_used_;
  std::uint64_t reordered_rounds_ = 0;
  wire::Plan plan_;
  std::optional<Version> committed_;  // the newest that was announced
  Timeline committed_timeline_, newest_timeline_;
  std::set<Incarnation> given_up_;
  std::set<std::string> unheard_plans_;  // announced, and not known to a tracker on an older journal when it went on
  bool journal_lost_ = false;
  OlderJournal older_journal_;
  CompletedRounds completed_;
  StragglerJudge stragglers_;
  Contributors contributors_;
  bool mirror_used_ = false;  // for the next plan, as the tracker has said
  bool with_mirror_ = false;
  bool rolled_back_ = false;       // since the newest plan was made
  bool without_frontier_ = false;  // likewise: the tracker has learned the plan from a disk
  // After disks_lost(), until a timeline begins after `lost`.
  struct Fallback {
    Version version;
    Timeline timeline, lost;
    bool must = false;
  };
  std::optional<Fallback> fallback_;
  bool mirror_serves_ = false;  // what is committed is in the mirror
  std::uint64_t from_mirror_ = 0;
  Generation gap_in_;
  bool rollback_excused_ = false, loss_excused_ = false, lost_for_good_ = false, load_failed_ = false;
  std::uint64_t most_pending_ = 0;
  std::uint64_t commits_ = 0, rollbacks_ = 0, kept_rounds_ = 0, spills_ = 0, met_ = 0, unmet_ = 0;
  std::map<Timeline, std::optional<GivenUp>> gone_from_logs_;
  std::uint64_t times_given_up_ = 0;
  std::uint64_t followed_ = 0, loaded_followed_ = 0;
  std::map<std::pair<Timeline, std::size_t>, Timeline> kept_;  // under which a step's result was logged
  std::optional<Timeline> came_from_;  // lives came from it to the newest timeline: to be checked
  Timeline all_new_;                   // the newest timeline that no life came to from an older one
};

}  // namespace warren::chaos
