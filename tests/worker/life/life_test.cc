// One life from its first plan to its end, and its way to a state.
#include "worker/life/life.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "tests/worker/light_transport.h"
#include "tests/worker/rounds/recovery_world.h"

namespace warren::worker::recovering {
namespace {

using Ending = Life::Ending;

// The newest effect of a kind.
template <class Effect>
std::optional<Effect> wanted(Life& life) {
  std::optional<Effect> found;
  for (const LifeEffect& effect : life.take_effects()) {
    if (const auto* e = std::get_if<Effect>(&effect)) found = *e;
  }
  return found;
}
// The newest of a kind that the worker's machine is to hear.
template <class Event>
std::optional<Event> told(Life& life) {
  std::optional<Event> found;
  for (const LifeEffect& effect : life.take_effects()) {
    const auto* event = std::get_if<MachineEvent>(&effect);
    if (event == nullptr) continue;
    if (const auto* e = std::get_if<Event>(event)) found = *e;
  }
  return found;
}

class LifeOfOne : public ::testing::Test {
 protected:
  Life life(bool ends_process) { return {transport_, board_, ends_process}; }
  static void keep_log(Life& life) {
    auto log = HostLog::create(Incarnation(1), heap_segment(std::size_t{1} << 20)).value();
    auto reader = log->reader();
    life.keep_log(
        Incarnation(1), std::move(log), std::move(reader), [] { return TimeMs{0}; }, [](Replayer::Send) {});
  }
  static void begin(Life& life) {
    Engine::Plan plan;
    plan.generation = Generation(1);
    plan.self = Rank(0);
    plan.replicas = life.logs() ? 1 : 0;
    plan.hosts = plan.domains = {0};
    plan.present = {Rank(0)};
    Replayer::Plan replay;
    replay.generation = plan.generation;
    replay.self = plan.self;
    replay.peers.push_back({Rank(0), Incarnation(1), "h", "h", false, Generation(1)});
    life.install(plan, replay);
    life.open(TimeMs{0});
  }

  const Status rolled_back_{Code::kRolledBack, "the job goes back"}, lost_{Code::kTimeout, "it was too slow"};
  testing::LightTransport transport_;
  RoundBoard board_;
};

TEST_F(LifeOfOne, ThatNobodyHasSeenBeginsAgain) {
  for (const bool ends_process : {false, true}) {
    Life one = life(ends_process);
    EXPECT_EQ(one.ending(lost_, true), Ending::kJoinsAgain);
    EXPECT_EQ(one.ending(lost_, false), Ending::kTellsProgram);
  }
}

TEST_F(LifeOfOne, EndsItsProcessWhereAnotherOneGoesOn) {
  Life one = life(true);
  keep_log(one);
  begin(one);
  EXPECT_EQ(one.ending(lost_, true), Ending::kFenced);
  EXPECT_EQ(one.ending(rolled_back_, false), Ending::kRolledBack);
  EXPECT_EQ(one.ending(lost_, false), Ending::kTellsProgram);
}

TEST_F(LifeOfOne, WithoutALogNoOtherLifeTakesItsPlace) {
  Life one = life(true);
  begin(one);
  EXPECT_EQ(one.ending(lost_, true), Ending::kTellsProgram);
}

TEST_F(LifeOfOne, TellsAProgramThatWantsToHear) {
  Life one = life(false);
  keep_log(one);
  begin(one);
  EXPECT_EQ(one.ending(rolled_back_, true), Ending::kTellsProgram);
  (void)one.stop({Generation(1), rolled_back_, false, true});
  EXPECT_TRUE(one.engine().stopped());
  EXPECT_EQ(one.failure().code(), Code::kRolledBack);
}

TEST_F(LifeOfOne, LeavesCallsAsTheyAreInAProcessThatEnds) {
  Life one = life(true);
  keep_log(one);
  begin(one);
  (void)one.stop({Generation(1), rolled_back_, false, true});
  EXPECT_FALSE(one.engine().stopped()) << "a call would return, and the program go on with what is no result";
  EXPECT_TRUE(one.failure().ok());
}

TEST_F(LifeOfOne, IsOverOnce) {
  Life one = life(true);
  begin(one);
  one.end({Code::kUnavailable, "the GPU has failed"}, Blame::kNobody);
  const auto end = wanted<life_effect::End>(one);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->why.describe(), Status(Code::kUnavailable, "the GPU has failed").describe());
  EXPECT_NE(one.failure().describe().find("its next life takes its place"), std::string::npos);
  one.end({Code::kInternal, "and more"}, Blame::kProgram);
  EXPECT_FALSE(one.has_effects());
}

TEST_F(LifeOfOne, IsNotOverWhereTheProgramHasLetGoOfIt) {
  Life one = life(true);
  begin(one);
  one.close();
  one.end({Code::kUnavailable, "the GPU has failed"}, Blame::kNobody);
  EXPECT_FALSE(one.has_effects());
  EXPECT_TRUE(one.failure().ok());
}

// A note on disk comes before what the next vote speaks of.
TEST_F(LifeOfOne, NotesACommitWithoutTheSetUpRoundsOfTheNextVote) {
  Life one = life(true);
  keep_log(one);
  one.vote_when_durable();
  begin(one);
  one.loading().begin();
  one.loading().start_from({});
  ASSERT_TRUE(one.loading().take());
  one.tracker_away(true);
  const std::vector<std::byte> state(100, std::byte{1});
  ASSERT_TRUE(one.checkpoints().take(state, nullptr).ok());
  one.taken({});
  const float in = 1;
  float out = 0;
  Call call;
  call.setup = "split after the first checkpoint";
  call.spec.collective = Collective::kAllreduce;
  call.spec.type = DataType::kF32;
  call.spec.op = ReduceOp::kSum;
  call.spec.input = &in;
  call.spec.output = &out;
  call.spec.count = 1;
  ASSERT_TRUE(one.engine().submit(kWorldGroup, call).ok());
  for (int i = 0; i < 100 && !call.finished; i++) (void)one.engine().progress();
  ASSERT_TRUE(call.finished && call.status.ok());
  ASSERT_TRUE(one.checkpoints().take(state, nullptr).ok());
  one.taken({});
  (void)one.take_effects();
  one.committed(version_of_program(1), Timeline(0), TimeMs{1});
  const auto note = wanted<life_effect::NoteCommit>(one);
  ASSERT_TRUE(note);
  EXPECT_EQ(note->known.committed_version(), version_of_program(1).value);
  EXPECT_EQ(note->known.setups_size(), 0);
  EXPECT_EQ(one.known().setups_size(), 1) << "the vote for the second version has been given meanwhile";
}

// A job of two hosts, none of which holds the checkpoint that its first rank is to start from.
class LostState : public ::testing::Test {
 protected:
  Life& life() { return world_.life(0); }
  void load() {
    life().loading().begin();
    EXPECT_TRUE(told<machine_event::Load>(life()));
    life().loading().start_from({true, version_of_program(3), Timeline(0)});
  }
  // The log has been asked: true where something has come of it.
  bool looks() {
    (void)life().take_effects();
    result_ = life().loading().take();
    return result_ || life().has_effects();
  }
  [[nodiscard]] static Checkpoints::State a_state() { return {0, 2, std::vector<std::byte>(1000, std::byte{7}), {}}; }

  World world_{two_hosts()};
  std::optional<Result<Checkpoints::State>> result_;
};

TEST_F(LostState, IsToldToTheTrackerOnceInAGeneration) {
  load();
  ASSERT_TRUE(world_.run([&] { return looks(); }));
  const auto gap = told<machine_event::LogGap>(life());
  ASSERT_TRUE(gap);
  ASSERT_TRUE(gap->gap.checkpoint);
  EXPECT_EQ(gap->gap.checkpoint->version, version_of_program(3));
  EXPECT_NE(life().loading().describe_wait().find("what becomes of the job"), std::string::npos);
  for (int i = 0; i < 100; i++) (void)world_.step();
  EXPECT_FALSE(looks());
}

TEST_F(LostState, IsAskedForAgainWhereOtherHostsHaveCome) {
  load();
  ASSERT_TRUE(world_.run([&] { return looks(); }));
  ASSERT_TRUE(told<machine_event::LogGap>(life()));
  world_.next_generation({1});
  ASSERT_TRUE(looks());
  EXPECT_TRUE(told<machine_event::Load>(life())) << "the tracker says again where the program starts";
}

// A program that has only gone away is no reason to end the job.
TEST_F(LostState, IsNotToldOnceTheLifeIsOver) {
  load();
  for (int i = 0; i < 1000; i++) (void)world_.step();
  life().close();
  EXPECT_FALSE(looks());
}

TEST_F(LostState, ComesFromTheMirror) {
  life().use_mirror();
  load();
  std::optional<worker_effect::Loaded> wish;
  ASSERT_TRUE(world_.run([&] { return looks() || (wish = life().loading().take_wish()); }));
  ASSERT_TRUE(wish);
  EXPECT_EQ(wish->version, version_of_program(3));
  EXPECT_FALSE(life().loading().take_wish()) << "it is asked once";
  life().loading().mirror_read(*wish, std::optional(Loading::Mirrored{a_state(), false}));
  EXPECT_TRUE(wanted<life_effect::LoadedFromMirror>(life()));
  ASSERT_TRUE(world_.run([&] { return looks(); }));
  ASSERT_TRUE(result_ && result_->ok());
  EXPECT_EQ(result_->value().global, a_state().global);
  EXPECT_EQ(result_->value().version, 3u);
}

TEST_F(LostState, IsLostWhereTheMirrorLacksItOrHoldsItDamaged) {
  for (const bool damaged : {false, true}) {
    World world(two_hosts());
    Life& one = world.life(0);
    one.use_mirror();
    one.loading().begin();
    one.loading().start_from({true, version_of_program(3), Timeline(0)});
    std::optional<worker_effect::Loaded> wish;
    ASSERT_TRUE(world.run([&] {
      EXPECT_FALSE(one.loading().take());
      return (wish = one.loading().take_wish()).has_value();
    }));
    (void)one.take_effects();
    if (damaged) {
      one.loading().mirror_read(*wish, Status(Code::kCorrupt, "its checksum is wrong"));
    } else {
      one.loading().mirror_read(*wish, std::optional<Loading::Mirrored>());
    }
    const auto gap = told<machine_event::LogGap>(one);
    ASSERT_TRUE(gap);
    EXPECT_NE(gap->gap.reason.find(damaged ? "checksum" : "mirror does not hold it either"), std::string::npos)
        << gap->gap.reason;
  }
}

// Another life of this worker, or one on another machine, may read it.
TEST_F(LostState, IsNotLostWhereThisWorkerAloneCannotReadTheMirror) {
  life().use_mirror();
  load();
  std::optional<worker_effect::Loaded> wish;
  ASSERT_TRUE(world_.run([&] { return looks() || (wish = life().loading().take_wish()); }));
  ASSERT_TRUE(wish);
  life().loading().mirror_read(*wish, Status(Code::kUnavailable, "permission denied"));
  EXPECT_FALSE(life().has_effects());
  ASSERT_TRUE(looks() && result_);
  EXPECT_NE(result_->status().describe().find("permission denied"), std::string::npos);
  EXPECT_FALSE(told<machine_event::LogGap>(life()));
}

}  // namespace
}  // namespace warren::worker::recovering
