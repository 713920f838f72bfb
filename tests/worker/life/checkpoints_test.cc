// Checkpoints of lives that are interrupted, lost and replaced: eager, lazy, in parts, and from a root.
#include "tests/worker/rounds/recovery_world.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace warren::worker::recovering {
namespace {

// Machine after machine is lost, each after the one before was filled up again: at the end no byte lies where it was
// first stored.
TEST(RecoveryOfCheckpoints, WhoTakesALostRanksPlaceHoldsItsShareAgain) {
  for (const std::string how : {"host", "process", "moves"}) {
    const bool moves = how == "moves";
    World world(on_hosts({0, 1, 2, 3}));
    const auto state_of = [](int rank, std::size_t bytes) {
      std::vector<std::byte> state(bytes);
      for (std::size_t i = 0; i < bytes; i++) {
        state[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(rank) * 7);
      }
      return state;
    };
    const auto global = state_of(-1, 1003);
    const auto local_of = [&](int rank) {
      return state_of(rank, rank == 3 ? 0 : 100 + static_cast<std::size_t>(rank));
    };
    load_all(world, {0, 1, 2, 3});
    for (int r = 0; r < 4; r++) {
      const auto local = local_of(r);
      const PlacedState local_state = local;
      ASSERT_TRUE(world.checkpoints(r).take(global, &local_state).ok());
    }
    const auto committed = [&](int r) { return world.checkpoints(r).newest_committed() == version_of_program(1); };
    ASSERT_TRUE(world.run([&] { return committed(0) && committed(1) && committed(2) && committed(3); }));
    const auto filled_up = [&] {
      const RoundId round{Timeline(0), kWorldGroup, version_of_program(1), Sequence(0)};
      if (world.copies({RecordKind::kGlobal, round}) < 2) return false;
      for (int r = 0; r < 4; r++) {
        RoundId of_rank = round;
        of_rank.sequence = Sequence(static_cast<std::uint64_t>(r));
        if (world.copies({RecordKind::kLocal, of_rank}) < 2) return false;
      }
      return true;
    };
    ASSERT_TRUE(filled_up());
    for (const int lost : {1, 2, 3, 0, 1}) {
      // Only its process, and what it has logged is there: it goes later, once nobody needs it.
      if (how == "process") {
        world.kill(lost);
      } else {
        world.kill_host(lost);
      }
      // A place of its own again, or beside a neighbour: then others get duties that they never had.
      world.move(lost, moves ? (lost + 1) % 4 : lost);
      world.next_generation({lost});
      const auto state = loaded_by(world, lost);
      EXPECT_EQ(state.global, global);
      EXPECT_EQ(state.local, local_of(lost));
      ASSERT_TRUE(world.run(filled_up)) << how << ", after rank " << lost;
      if (moves) {
        world.kill(lost);
        world.move(lost, lost);
        world.next_generation({lost});
        EXPECT_EQ(loaded_by(world, lost).local, local_of(lost));
        ASSERT_TRUE(world.run(filled_up)) << "after rank " << lost << " has come back";
      }
    }
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

// A rank's machine is lost, and a spare that has followed takes its place.
TEST(RecoveryOfCheckpoints, ASpareBeginsWithWhatItHasFollowed) {
  enum class What { kAll, kPart, kOtherRun };
  for (const What what : {What::kAll, What::kPart, What::kOtherRun}) {
    SCOPED_TRACE(static_cast<int>(what));
    World world(on_hosts({0, 1, 2}));
    for (int r = 0; r < 3; r++) {
      world.load(r);
      ASSERT_TRUE(world.run([&] { return world.checkpoints(r).loaded().has_value(); }));
    }
    // Longer than one reply, and of another content each time.
    const auto state_of = [](std::uint64_t version) {
      std::vector<std::byte> state(5'000'000);
      for (std::size_t i = 0; i < state.size(); i++) state[i] = static_cast<std::byte>(i * 31 / 7 + version);
      return state;
    };
    const auto commit = [&](std::uint64_t version) {
      const auto state = state_of(version);
      for (int r = 0; r < 3; r++) ASSERT_TRUE(world.checkpoints(r).take(state, nullptr).ok());
      ASSERT_TRUE(world.run([&] {
        for (int r = 0; r < 3; r++) {
          if (world.checkpoints(r).newest_committed() != version_of_program(version)) return false;
        }
        return true;
      }));
    };
    commit(1);
    commit(2);
    std::size_t asked = 0;
    world.before_plan = [&](int r) {
      // The plans of this world are of run 0.
      world.follow(r, what == What::kOtherRun ? 9 : 0, what == What::kPart ? 1 : 1000);
      ASSERT_EQ(world.followed[r].size(), what == What::kPart ? 0u : 1u);
      if (what != What::kPart) {
        EXPECT_EQ(world.followed[r][0].version, version_of_program(2));
        EXPECT_EQ(world.checkpoints(r).has_followed({true, version_of_program(2), Timeline(0)}), what == What::kAll);
        EXPECT_FALSE(world.checkpoints(r).has_followed({true, version_of_program(1), Timeline(0)}));
        EXPECT_FALSE(world.checkpoints(r).has_followed({true, version_of_program(2), Timeline(1)}));
        EXPECT_FALSE(world.checkpoints(r).has_followed({false, Version(), Timeline(0)}));
      }
      asked = world.asked_for_states(r);
      EXPECT_GT(asked, 1u);
    };
    world.kill_host(2);
    world.next_generation({2});
    const auto state = loaded_by(world, 2);
    EXPECT_EQ(state.version, 2u);
    EXPECT_TRUE(state.global == state_of(2));
    if (what == What::kAll) {
      EXPECT_EQ(world.asked_for_states(2), asked);
    } else {
      EXPECT_GT(world.asked_for_states(2), asked);
    }
    EXPECT_EQ(world.failures, std::vector<std::string>());
  }
}

// A verdict on a checkpoint that nobody holds is one on the hosts that were asked: those of a later plan may hold it.
TEST(RecoveryOfCheckpoints, WhoHasNotFoundItKnowsInWhichGeneration) {
  World world(on_hosts({0, 1}));
  load_all(world, {0, 1});
  take_all(world, 2);
  for (const int host : {0, 1}) world.kill_host(host);
  world.next_generation({0, 1});
  const Generation asked = world.engine(0).plan().generation;
  world.load(0);
  // Asked in this generation, looked at in the next.
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).loaded_in() == asked; }));
  world.next_generation({});
  EXPECT_GT(world.engine(0).plan().generation, asked);
  const auto state = world.checkpoints(0).loaded();
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->status().code(), Code::kUnavailable);
  EXPECT_EQ(world.checkpoints(0).loaded_in(), asked);
}

// Seed 93000102: a rank computed for long before its checkpoint, others waited for the commit of theirs, and nothing
// said so.
TEST(Checkpoint, AWaitForItsCommitNamesWhatIsLacking) {
  World world(on_hosts({0, 1}));
  load_all(world, {0, 1});
  const std::uint64_t model = 5;
  const PlacedState state = std::as_bytes(std::span(&model, 1));
  ASSERT_TRUE(world.checkpoints(0).take(state, &state).ok());
  EXPECT_EQ(world.checkpoints(0).describe_wait(),
            "checkpoint waits until checkpoint 1 is committed: rank 0 lacks the local state of rank 1");
  ASSERT_TRUE(world.checkpoints(1).take(state, &state).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
}

// Rank 0 alone has a local state, so its vote waits for one of rank 1 that never comes: what they have given is told
// before.
TEST(Checkpoint, TheStateIsToldBeforeAVoteThatHasToWait) {
  World world(on_hosts({0, 1}));
  load_all(world, {0, 1});
  const std::uint64_t model = 5;
  const PlacedState state = std::as_bytes(std::span(&model, 1));
  ASSERT_TRUE(world.checkpoints(0).take(state, &state).ok());
  ASSERT_TRUE(world.checkpoints(1).take(state, nullptr).ok());
  EXPECT_FALSE(world.checkpoints(0).take_vote());
  const auto word = world.checkpoints(0).take_state_word();
  ASSERT_TRUE(word);
  EXPECT_EQ(word->version, version_of_program(1));
  EXPECT_TRUE(word->state.has_local());
  EXPECT_FALSE(world.checkpoints(0).take_state_word()) << "once a generation";
  EXPECT_FALSE(world.checkpoints(1).take_state_word()) << "it lacks nothing";
  const auto vote = world.checkpoints(1).take_vote();
  ASSERT_TRUE(vote);
  EXPECT_FALSE(vote->state.has_local());
  ASSERT_EQ(vote->state.hashes_size(), 1);
  EXPECT_EQ(vote->state.hashes(0), word->state.hashes(0));
  world.next_generation({});
  EXPECT_TRUE(world.newest_words.contains(0)) << "votes of a generation that is over count no more";
}

// Killed between a lazy checkpoint and the giving of its state: nothing is committed, and its next life gives it.
TEST(LazyCheckpoint, IsCommittedOnceAllHaveGivenTheirState) {
  World world(on_hosts({0, 1, 2}));
  load_all(world, {0, 1, 2});
  const auto model = [](std::uint64_t value) { return std::vector<std::uint64_t>(500, value); };
  for (int r = 0; r < 3; r++) ASSERT_TRUE(world.checkpoints(r).take_later().ok());
  const auto first = model(1);
  for (int r = 0; r < 2; r++) ASSERT_TRUE(world.checkpoints(r).give_state(std::as_bytes(std::span(first))).ok());
  (void)world.run([&] { return false; });
  EXPECT_FALSE(world.checkpoints(0).may_take()) << "rank 2 owes its state";
  EXPECT_FALSE(world.checkpoints(2).may_take());
  (void)next_life(world, 2);
  EXPECT_EQ(world.engine(2).version(), version_of_program(0)) << "it starts from the beginning";
  ASSERT_TRUE(world.checkpoints(2).take_later().ok());
  ASSERT_TRUE(world.checkpoints(2).give_state(std::as_bytes(std::span(first))).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(2).may_take(); }));
  const auto state = next_life(world, 1);
  EXPECT_EQ(state.version, 1u);
  const auto bytes = std::as_bytes(std::span(first));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), state.global.begin(), state.global.end()));
}

// While the tracker is away a rank takes one version after the other, as long as its log has room. What all have taken
// is committed when it is back, one after the other, and then one alone may be pending again.
TEST(PendingCheckpoints, WaitForATrackerThatIsAway) {
  World::Options options = on_hosts({0, 1, 2});
  options.segment_bytes = std::size_t{1} << 20;
  World world(options);
  load_all(world, {0, 1, 2});
  const auto model = [](std::uint64_t value) { return std::vector<std::uint64_t>(15'000, value); };
  const auto take = [&](int r) {
    const auto state = model(world.engine(r).version().value);
    return world.checkpoints(r).take(std::as_bytes(std::span(state)), nullptr);
  };
  ASSERT_TRUE(take(0).ok());
  EXPECT_FALSE(world.checkpoints(0).may_take());
  for (int r = 0; r < 3; r++) world.checkpoints(r).tracker_away(true);
  for (int r = 0; r < 2; r++) {
    while (world.checkpoints(r).may_take()) ASSERT_TRUE(take(r).ok());
    EXPECT_GT(world.checkpoints(r).pending(), 5u);
    EXPECT_GT(world.log(r).bytes_held(), options.segment_bytes / 2);
  }
  // Rank 2 comes later, and does not get so far.
  for (int i = 0; i < 4; i++) ASSERT_TRUE(take(2).ok());
  for (int r = 0; r < 3; r++) world.checkpoints(r).tracker_away(false);
  EXPECT_FALSE(world.checkpoints(2).may_take());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).newest_committed() == version_of_program(4); }));
  EXPECT_TRUE(world.checkpoints(2).may_take());
  EXPECT_FALSE(world.checkpoints(0).may_take());
  const auto state = next_life(world, 1);
  EXPECT_EQ(state.version, 4u);
  const auto saved = model(version_of_program(3).value);
  const auto bytes = std::as_bytes(std::span(saved));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), state.global.begin(), state.global.end()));
  // The versions that rank 0 has taken are committed as the others come to them.
  for (const int r : {1, 2}) ASSERT_TRUE(take(r).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).newest_committed() == version_of_program(5); }));
}

// Rank 0's machine is lost when rank 1 has a copy of its local state, and its next life gives another one: their votes
// tell, and nobody who has both may mix them.
TEST(StateOfADeadLife, AVoteTellsOfWhichLocalStateARankHasACopy) {
  World world(on_hosts({0, 1, 2}));
  load_all(world, {0, 1, 2});
  const std::vector<std::byte> global(1000, std::byte{1}), first(5000, std::byte{2}), second(5000, std::byte{3});
  const auto take = [&](int r, const std::vector<std::byte>& mine) {
    const PlacedState local = mine;
    ASSERT_TRUE(world.checkpoints(r).take(global, &local).ok());
  };
  for (const int r : {0, 1}) take(r, first);
  for (int i = 0; i < 3000; i++) (void)world.step();
  world.kill(0);
  world.move(0, 3);
  world.next_generation({0});
  load_all(world, {0});
  take(0, second);
  const auto& votes = world.newest_votes;
  take(2, first);
  ASSERT_TRUE(world.run([&] { return votes.size() == 3; }));
  std::size_t copies = 0;
  for (const auto& [rank, vote] : votes) {
    for (const wire::LocalCopy& copy : vote.copies) {
      if (copy.rank() != 0) continue;
      ++copies;
      EXPECT_EQ(copy.hash(), hash_of_state(first));
    }
  }
  EXPECT_EQ(votes.at(0).local_hash, hash_of_state(second));
  EXPECT_EQ(copies, 1u);
}

// All of a state's bytes that this rank is to give, `step` at a time.
void give_parts(Checkpoints& checkpoints, StateKind kind, std::span<const std::byte> state, const Ranges& bytes,
                std::uint64_t step) {
  for (const Interval& i : bytes.intervals()) {
    for (std::uint64_t at = i.begin; at < i.end; at += step) {
      const Status status = checkpoints.give_part({kind, at, state.subspan(at, std::min(step, i.end - at))});
      ASSERT_TRUE(status.ok()) << status.describe();
    }
  }
}

// The states of all ranks come in parts, while the ranks are at the rounds of the next version.
TEST(CheckpointInParts, IsCommittedOnceAllPartsHaveCome) {
  World world(on_hosts({0, 1, 2}));
  load_all(world, {0, 1, 2});
  const std::vector<std::uint64_t> model(5000, 7);
  const auto state = std::as_bytes(std::span(model));
  const auto local_of = [](int rank) { return std::vector<std::byte>(100, static_cast<std::byte>(rank + 1)); };
  Ranges shares[3];
  for (int r = 0; r < 3; r++) {
    shares[r] = world.checkpoints(r).share_of(state.size());
    EXPECT_LT(shares[r].size(), state.size());
    ASSERT_TRUE(world.checkpoints(r).take_in_parts(state.size(), 100, shares[r], StateHashes(state)).ok());
    EXPECT_EQ(world.engine(r).version(), version_of_program(1));
  }
  for (int r = 0; r < 2; r++) {
    give_parts(world.checkpoints(r), StateKind::kGlobal, state, shares[r], 4096);
    give_parts(world.checkpoints(r), StateKind::kLocal, local_of(r), Ranges(0, 100), 64);
  }
  give_parts(world.checkpoints(2), StateKind::kGlobal, state, shares[2], 1000);
  EXPECT_EQ(world.checkpoints(2).describe_wait(),
            "rank 2 waits for 100 bytes of checkpoint 1, which are on their way from a GPU to its log");
  Call calls[3];
  std::vector<std::uint64_t> buffers[3];
  for (int r = 0; r < 3; r++) submit_sum(world, r, calls[r], buffers[r], 1000);
  ASSERT_TRUE(world.run([&] { return calls[0].finished && calls[1].finished && calls[2].finished; }));
  EXPECT_EQ(buffers[2], std::vector<std::uint64_t>(1000, 6));
  // A rank that lacks a part asks for it again and again.
  for (int i = 0; i < 10000; i++) (void)world.step();
  EXPECT_FALSE(world.checkpoints(0).may_take()) << "rank 2 has not given all";
  EXPECT_FALSE(world.checkpoints(2).may_take());
  give_parts(world.checkpoints(2), StateKind::kLocal, local_of(2), Ranges(0, 100), 100);
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(2).may_take(); }));
  const auto loaded = next_life(world, 1);
  EXPECT_TRUE(std::equal(state.begin(), state.end(), loaded.global.begin(), loaded.global.end()));
  EXPECT_EQ(loaded.local, local_of(1));
}

// Rank 1 took its share under one plan and gives it under another, which wants all of the state from it.
TEST(CheckpointInParts, WhatAPlanWantsMoreIsPulled) {
  World world(on_hosts({0, 0, 1}));
  load_all(world, {0, 1, 2});
  const std::vector<std::uint64_t> model(5000, 7);
  const auto state = std::as_bytes(std::span(model));
  const Ranges share = world.checkpoints(1).share_of(state.size());
  ASSERT_TRUE(world.checkpoints(1).take_in_parts(state.size(), std::nullopt, share, StateHashes(state)).ok());
  ASSERT_TRUE(world.checkpoints(2).take(state, nullptr).ok());
  world.kill(0);
  world.move(0, 1);
  world.next_generation({0});
  EXPECT_EQ(world.checkpoints(1).share_of(state.size()), Ranges(0, state.size()));
  EXPECT_LT(share.size(), state.size());
  load_all(world, {0});
  ASSERT_TRUE(world.checkpoints(0).take(state, nullptr).ok());
  for (int i = 0; i < 10000; i++) (void)world.step();
  EXPECT_FALSE(world.checkpoints(0).may_take());
  give_parts(world.checkpoints(1), StateKind::kGlobal, state, share, 4096);
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
  EXPECT_EQ(world.copies({RecordKind::kGlobal, {Timeline(0), kWorldGroup, version_of_program(1), Sequence(0)}}), 2u);
}

TEST(CheckpointInParts, WithoutRoomForAPartItIsStillOwed) {
  World::Options options;
  options.size = 1;
  options.replicas = 1;
  options.segment_bytes = std::size_t{1} << 20;
  World world(options);
  load_all(world, {0});
  const std::vector<std::byte> state(std::size_t{2} << 20);
  ASSERT_TRUE(
      world.checkpoints(0).take_in_parts(state.size(), std::nullopt, Ranges(0, state.size()), StateHashes(state)).ok());
  const Status status = world.checkpoints(0).give_part({StateKind::kGlobal, 0, state});
  EXPECT_EQ(status.code(), Code::kExhausted);
  EXPECT_NE(status.describe().find("cannot take checkpoint 1"), std::string::npos) << status.describe();
  EXPECT_TRUE(world.checkpoints(0).owes_state());
  EXPECT_FALSE(world.checkpoints(0).may_take());
}

// Each form of a checkpoint tells the same of equal states.
TEST(CheckpointInParts, EqualStatesHaveEqualHashesHoweverTheyAreGiven) {
  World::Options options;
  options.size = 4;
  options.replicas = 1;
  World world(options);
  load_all(world, {0, 1, 2, 3});
  std::vector<std::byte> state((std::size_t{2} << 20) + 1000);
  for (std::size_t i = 0; i < state.size(); i++) state[i] = static_cast<std::byte>(i * 7 + i / 1000);
  const Ranges share = world.checkpoints(0).share_of(state.size());
  ASSERT_TRUE(world.checkpoints(0).take_in_parts(state.size(), std::nullopt, share, StateHashes(state)).ok());
  give_parts(world.checkpoints(0), StateKind::kGlobal, state, share, 4096);
  ASSERT_TRUE(world.checkpoints(1).take_later().ok());
  ASSERT_TRUE(world.checkpoints(1).give_state(state).ok());
  StateHashes begun(state.size());
  begun.add_outside(Ranges(1000, std::size_t{1} << 20), state);
  ASSERT_TRUE(world.checkpoints(2).take(state, nullptr, begun).ok());
  state[(std::size_t{2} << 20) + 10] ^= std::byte{1};
  ASSERT_TRUE(world.checkpoints(3).take(state, nullptr).ok());
  std::vector<wire::StateDigest> told;
  for (int r = 0; r < 4; r++) told.push_back(world.checkpoints(r).take_vote()->state);
  for (int r = 0; r < 4; r++) {
    ASSERT_EQ(told[static_cast<std::size_t>(r)].hashes_size(), 3) << r;
    EXPECT_EQ(told[static_cast<std::size_t>(r)].global_bytes(), state.size());
    EXPECT_EQ(told[static_cast<std::size_t>(r)].SerializeAsString() == told[0].SerializeAsString(), r != 3) << r;
  }
  EXPECT_EQ(told[3].hashes(1), told[0].hashes(1)) << "the first difference is in the last MiB";
  EXPECT_NE(told[3].hashes(2), told[0].hashes(2));
}

// Nothing comes of states that have no bytes, and they are committed.
TEST(CheckpointInParts, OfNothingIsCommittedAtOnce) {
  World world(on_hosts({0, 1}));
  load_all(world, {0, 1});
  for (int r = 0; r < 2; r++) ASSERT_TRUE(world.checkpoints(r).take_in_parts(0, 0, {}, StateHashes()).ok());
  ASSERT_TRUE(world.run([&] { return world.checkpoints(0).may_take() && world.checkpoints(1).may_take(); }));
}

// Three hosts, of which each byte of a state is on two.
class CheckpointFromRoot : public ::testing::Test {
 protected:
  CheckpointFromRoot() {
    world_.emplace(on_hosts({0, 1, 2}));
    load_all(*world_, {0, 1, 2});
    for (std::size_t i = 0; i < state_.size(); i++) state_[i] = static_cast<std::byte>(i * 7 + i / 1000);
  }
  // `given`: what the rank gives; null: it is not the root.
  void take(int rank, const std::vector<std::byte>* given) {
    const std::vector<std::byte> mine(100, static_cast<std::byte>(rank + 1));
    const PlacedState local(mine), global(given != nullptr ? *given : mine);
    const Status status =
        world_->checkpoints(rank).take_from_root(given != nullptr ? &global : nullptr, &local, StateHashes(state_));
    ASSERT_TRUE(status.ok()) << status.describe();
    EXPECT_EQ(world_->engine(rank).version(), version_of_program(1));
  }
  bool committed() {
    return world_->run([&] {
      return std::ranges::all_of(std::array{0, 1, 2}, [&](int r) { return world_->checkpoints(r).may_take(); });
    });
  }
  Checkpoints::State next_life(int rank) { return recovering::next_life(*world_, rank); }

  std::optional<World> world_;
  std::vector<std::byte> state_ = std::vector<std::byte>(300'000);
  const RecordKey key_{RecordKind::kGlobal, {Timeline(0), kWorldGroup, version_of_program(1), Sequence(0)}};
};

TEST_F(CheckpointFromRoot, TheRootsBytesAreTheStateOfAll) {
  for (const int rank : {2, 0, 1}) take(rank, rank == 1 ? &state_ : nullptr);
  ASSERT_TRUE(committed());
  EXPECT_EQ(world_->log(1).reader()->held(key_), Ranges(0, state_.size()));
  for (const int rank : {0, 2}) EXPECT_LT(world_->log(rank).reader()->held(key_).size(), state_.size()) << rank;
  const auto loaded = next_life(1);
  EXPECT_EQ(loaded.version, 1u);
  EXPECT_EQ(loaded.global, state_) << "from the others' copies";
  EXPECT_EQ(loaded.local, std::vector<std::byte>(100, std::byte{2}));
}

TEST_F(CheckpointFromRoot, ARootThatIsKilledBeforeTheCommitGivesItAgain) {
  for (const int rank : {0, 2}) take(rank, nullptr);
  for (int i = 0; i < 10000; i++) (void)world_->step();
  EXPECT_FALSE(world_->checkpoints(0).may_take());
  EXPECT_EQ(next_life(1).version, 0u);
  take(1, &state_);
  ASSERT_TRUE(committed());
  EXPECT_EQ(next_life(0).global, state_);
}

// As a pickle of a set is, whose order is another one in each process.
TEST_F(CheckpointFromRoot, ARootWhoseNextLifeHasAnotherStateTakesTheJobBack) {
  for (const int rank : {0, 1, 2}) take(rank, rank == 1 ? &state_ : nullptr);
  EXPECT_EQ(next_life(1).version, 0u);
  std::vector<std::byte> other = state_;
  other[200'000] ^= std::byte{1};
  take(1, &other);
  const auto reader = world_->log(1).reader();
  const Ranges there = reader->held(key_);
  for (const Interval& i : there.intervals()) {
    std::vector<std::byte> held(i.end - i.begin);
    ASSERT_TRUE(reader->read(key_, i.begin, held));
    EXPECT_TRUE(std::ranges::equal(held, std::span(state_).subspan(i.begin, held.size())))
        << "what others had of the first state may come; nothing of the other one may be mixed with it";
  }
  const Status failure = world_->checkpoints(1).take_failure();
  EXPECT_EQ(failure.code(), Code::kUnavailable);
  EXPECT_NE(failure.describe().find("all ranks go back to the checkpoint before"), std::string::npos)
      << failure.describe();
  EXPECT_FALSE(world_->checkpoints(1).take_vote());
}

TEST_F(CheckpointFromRoot, AStateWithoutBytesIsCommitted) {
  state_.clear();
  for (const int rank : {0, 1, 2}) take(rank, rank == 1 ? &state_ : nullptr);
  ASSERT_TRUE(committed());
}

TEST_F(CheckpointFromRoot, ARootWhoseNextLifeHasAStateWhereTheOneBeforeHadNoneTakesTheJobBack) {
  const std::vector<std::byte> other = std::exchange(state_, {});
  for (const int rank : {0, 2}) take(rank, nullptr);
  take(1, &other);
  EXPECT_EQ(world_->checkpoints(1).take_failure().code(), Code::kUnavailable);
  EXPECT_FALSE(world_->checkpoints(1).take_vote());
}

}  // namespace
}  // namespace warren::worker::recovering
