// One life's part in checkpoints: what it logs of them, when it may vote, and how it loads one. Never waits; the same
// object serves workers and the simulator.
//
// The global state is cut into as many shards as there are ranks (recovery/decide/shards.h); a rank logs those of its
// duty. Its local state it logs itself, and ranks of replicas − 1 other domains pull a copy of it. A rank votes once it
// holds all that the plan in force makes its duty; when the plan changes before the commit, duties and vote are looked
// at again. Where several are pending, it votes for the oldest alone: a vote says that the one before is committed.
//
// A committed checkpoint is filled up in the same way: whoever takes a lost rank's place holds its share once it has
// loaded, and when a plan gives a rank other duties, it pulls what its host lacks from those who have it. What only
// dead lives of the host hold counts as lacking: their segments are forgotten. Until then they may serve too, so a new
// life that gives other bytes than they hold has the job go back to the version before.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/worker/worker_machine.h"
#include "worker/life/dead_segments.h"
#include "worker/life/life_effect.h"
#include "worker/life/placed_state.h"
#include "worker/life/state_hashes.h"
#include "worker/life/state_piece.h"
#include "worker/rounds/engine.h"
#include "worker/rounds/recall.h"

namespace warren::worker {

class Checkpoints {
 public:
  Checkpoints(Engine& engine, Recall& recall) : engine_(engine), recall_(recall) {}

  struct State {
    std::uint64_t version = 0;     // the program's count of checkpoints; 0: the job begins
    std::uint32_t world_size = 0;  // when it was taken. Of a job of another size no local states are loaded
    std::vector<std::byte> global, local;
  };
  // The tracker has said what to start from; loaded() then says when it is here. Begins the version that follows.
  void load(const worker_effect::Loaded& what);
  // The state that load() has not found in the log, from somewhere else; loaded() says the same again. Logs this rank's
  // share. `has_local`: the checkpoint has local states. kExhausted: no room.
  [[nodiscard]] Status restore(const worker_effect::Loaded& what, State state, bool has_local);
  // By the record of a checkpoint's global state: whether it has local states, and of how many ranks it is.
  [[nodiscard]] static bool has_local(const RecordInfo& global);
  [[nodiscard]] static std::uint32_t world_size(const RecordInfo& global);
  // Once: the state, or why there is none.
  [[nodiscard]] std::optional<Result<State>> loaded();
  // Whose hosts do not hold it, if that is kUnavailable. Those of a later generation may.
  [[nodiscard]] Generation loaded_in() const { return loaded_in_; }

  // A spare's, which has no plan yet: fetches the global state of a checkpoint that is committed in this run of the
  // job, and keeps it in memory; load() begins with what is here then. What was followed before goes. May be repeated,
  // which is of use where it could not be had.
  void follow(std::uint64_t run, Version version, Timeline timeline);
  // Once: all of it is here.
  [[nodiscard]] std::optional<machine_event::Followed> take_followed();
  // Whether load() would find this one.
  [[nodiscard]] bool has_followed(const worker_effect::Loaded& what) const;

  // One may be taken when the one before is committed. While the tracker is away nothing is committed: then several
  // may be pending, as long as the log has room for what two more versions may take.
  [[nodiscard]] bool may_take() const;
  [[nodiscard]] std::size_t pending() const { return pending_.size(); }
  // Nobody hears the tracker, or it is back.
  void tracker_away(bool away) { tracker_away_ = away; }
  // Snapshots and ends the version. No call is outstanding. `local` null: the program has none. kExhausted: no room in
  // the log; nothing has changed.
  // `hashes`: of the global state, as far as they are known.
  [[nodiscard]] Status take(const PlacedState& global, const PlacedState* local, StateHashes hashes = {});

  // The same of a global state that one rank alone has, the root: it logs all of it, and each other rank pulls its duty
  // from there. `global` null: this rank is not the root. `agreed`: the hashes of the state, the same on all ranks and
  // in all lives, so that no two states are mixed: where a root's next life has another one, the job goes back to the
  // checkpoint before. Not where ranks may be lost for good.
  [[nodiscard]] Status take_from_root(const PlacedState* global, const PlacedState* local, StateHashes agreed);

  // The same in two steps, without a local state: ends the version; then the state, which is equal on all ranks, before
  // this rank's next call. Until then this rank cannot vote.
  [[nodiscard]] Status take_later();
  [[nodiscard]] bool owes_state() const { return owes_state_; }
  // kExhausted: no room in the log; it is still owed.
  [[nodiscard]] Status give_state(const PlacedState& global, StateHashes hashes = {});

  // The same where the states come to the CPU in parts, while the program goes on: ends the version. `share`: the
  // ranges of the global state that will come, as share_of() has said before. The local state comes whole. `hashes`: of
  // the global state, all known. Not where ranks may be lost for good. This rank always logs the shard of its own
  // number, in this life or the next. It pulls what else a plan that comes meanwhile asks of it.
  [[nodiscard]] Status take_in_parts(std::uint64_t global_bytes, std::optional<std::uint64_t> local_bytes,
                                     const Ranges& share, StateHashes hashes);
  // Which bytes of a global state of this size take() would log now.
  [[nodiscard]] Ranges share_of(std::uint64_t global_bytes) const;
  // Each byte once, in any order. With the last one this rank may vote. kExhausted: no room in the log; it is to be
  // given again.
  [[nodiscard]] Status give_part(const StatePiece& part);
  // kInvalidArgument: a state that no checkpoint takes.
  [[nodiscard]] static Status may_hold(std::uint64_t state_bytes);

  // After Engine::install(): duties change with who sits where.
  void install();
  void committed(Version version, Timeline timeline);
  [[nodiscard]] Version newest_committed() const { return committed_; }
  // Who calls the next checkpoint waits for this.
  [[nodiscard]] std::string describe_wait() const;
  // What the host's log need not keep any more is below.
  [[nodiscard]] DeadSegments::Horizon horizon() const;

  // Looks at what has come; call after Engine::drain_recalls().
  void advance();
  // Once a generation, where the vote has to wait for what other ranks hold: what it will say of the state.
  [[nodiscard]] std::optional<WorkerMachine::StateWord> take_state_word();
  // Once a generation, when all that this rank must hold is held.
  [[nodiscard]] std::optional<WorkerMachine::Vote> take_vote();
  // take_failure() or take_warning() has something.
  [[nodiscard]] bool has_trouble() const { return !failure_.ok() || !warning_.empty(); }
  // What cannot be held of a new one ends the job; once.
  [[nodiscard]] Status take_failure() { return std::exchange(failure_, Status()); }
  // What the process's log should say: a committed one that could not be filled up. Empty: nothing.
  [[nodiscard]] std::string take_warning() { return std::exchange(warning_, {}); }

 private:
  // A checkpoint that this life has taken or loaded. Version 0: none.
  struct Known {
    Version version;
    Timeline timeline;
    std::uint64_t global_bytes = 0;
    bool has_local = false;
    std::uint32_t world_size = 0;
    [[nodiscard]] RecordKey key(RecordKind kind, std::uint64_t sequence) const {
      return {kind, {timeline, kWorldGroup, version, Sequence(sequence)}};
    }
  };
  // One that is not committed.
  struct Pending {
    Known known;
    StateHashes hashes;
    // Its global state, where ranks may be lost for good before they have logged their share of it.
    std::vector<std::byte> state = {};
    std::uint64_t local_hash = 0;                     // of the local state; 0: none, or it came in parts
    std::map<std::uint32_t, std::uint64_t> copies{};  // of other ranks' local states that were pulled: hashes, by rank
  };
  struct Pull {
    RecordKey key;
    std::vector<std::byte> bytes;  // where a global shard goes
    std::uint64_t begin = 0;
  };
  [[nodiscard]] Status log(const RecordKey& key, const RecordInfo& info, const PlacedState& state, const Ranges& bytes);
  [[nodiscard]] Status log_empty(const RecordKey& key, const Known& taken);
  [[nodiscard]] Status log_local(const Known& taken, const PlacedState& state);
  void contradict(const RecordKey& key, const std::string& how);
  void look_at_pulled(const Pull& pull, const RecordInfo& info, std::span<const std::byte> bytes);
  void compare_with_the_dead(const RecordKey& key, const RecordInfo& info, std::uint64_t at,
                             std::span<const std::byte> bytes);
  void compare_with_the_dead(const RecordKey& key, const RecordInfo& info, const PlacedState& state);
  [[nodiscard]] Result<Pending> log_state(Version version, const PlacedState& global, const PlacedState* local,
                                          StateHashes hashes);
  [[nodiscard]] Status log_and_hash(const Known& taken, const PlacedState& state, StateHashes& hashes);
  [[nodiscard]] std::size_t most_pending() const;
  [[nodiscard]] bool has_room_for_another() const;
  [[nodiscard]] bool lacks_of_oldest() const;
  [[nodiscard]] wire::StateDigest state_digest() const;
  void hold(Pending taken);
  void work_for_vote();
  [[nodiscard]] Ranges duty(const Known& of) const;
  void log_again(Pending& pending);
  // Local states of a job of this size.
  [[nodiscard]] bool has_our_locals(const Known& of) const;
  [[nodiscard]] Ranges held_by_living(const RecordKey& key);
  void pull_duties(const Known& of);
  void cancel_pulls_below(Version version);
  void want_whole(const RecordKey& key);
  void take_loaded(Replayer::Done done);
  void end_load(Result<State> result);
  void forget_followed();

  Engine& engine_;
  Recall& recall_;
  // Loading.
  std::optional<worker_effect::Loaded> source_;
  std::uint64_t want_ = 0;
  bool global_here_ = false;
  State state_;
  std::optional<Result<State>> loaded_;
  Generation loaded_in_{};
  // Following.
  struct Follow {
    std::uint64_t run;
    RecordKey key;
    std::uint64_t want;
    std::optional<Replayer::Done> done;
    bool told = false;
  };
  std::optional<Follow> follow_;
  std::optional<Replayer::Done> ready_;  // what load() has found of it, until advance()
  bool adopted_ = false;                 // want_ is what was begun while following
  // Taking.
  Known loading_, base_;         // base_: the committed one, once this life has it
  std::deque<Pending> pending_;  // oldest first: that one is voted for
  bool tracker_away_ = false;
  Status contradiction_;  // by what a dead life has logged: this life votes for nothing any more
  Version committed_;
  Timeline committed_timeline_;
  bool owes_state_ = false;
  Pending coming_;  // the one whose states come in parts
  std::uint64_t coming_local_bytes_ = 0;
  Ranges global_comes_, local_comes_;    // what has not come yet
  std::map<std::uint64_t, Pull> pulls_;  // by want
  bool voted_ = true, told_ = true;      // in this generation, of the oldest that is pending
  Status failure_;
  std::string warning_;
};

}  // namespace warren::worker
