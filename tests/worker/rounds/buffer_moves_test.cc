#include "worker/rounds/buffer_moves.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

namespace warren::worker {
namespace {

constexpr std::uint64_t kBytes = 100;

bool room() {
  return true;
}
bool room_for(bool) {
  return true;
}

std::vector<ByteRange> finals(BufferMoves& moves, std::uint64_t most_bytes = kBytes) {
  std::vector<ByteRange> all;
  while (const auto next = moves.next_final(most_bytes, room)) all.push_back(*next);
  return all;
}

// Of another rank, which says the first number that stands.
struct Peer {
  std::uint64_t first = 0;
  std::byte memory[kBytes]{};
  [[nodiscard]] std::shared_ptr<const FinalOnGpu> made(std::uint64_t number, std::size_t at = 0) const {
    return std::make_shared<const FinalOnGpu>(FinalOnGpu{memory + at, number, &first});
  }
};

struct BufferMovesTest : ::testing::Test {
  void begin(bool in_block) {
    moves.order({{60, 40}, {0, 60}});
    if (in_block) moves.lend(block);
    moves.begin();
  }
  // All of the input, to where it comes.
  void fill() {
    while (const auto next = moves.next_input(kBytes, room_for))
      moves.came({next->block == nullptr, next->block != nullptr});
  }
  // In place.
  const std::vector<std::byte> on_cpu = std::vector<std::byte>(2 * kBytes);
  BufferMoves moves{std::span(on_cpu).first(kBytes), std::span(on_cpu).first(kBytes)};
  const std::shared_ptr<std::byte> block{new std::byte[kBytes], std::default_delete<std::byte[]>()};
  Peer peer;
};

TEST_F(BufferMovesTest, TheInputComesInItsOrderAndFinalsLeaveAsTheyLand) {
  moves.order({{60, 40}, {0, 60}});
  EXPECT_FALSE(moves.next_input(kBytes, room_for)) << "it may not be read yet";
  EXPECT_FALSE(moves.moves());
  moves.begin();
  EXPECT_TRUE(moves.moves());
  const auto first = moves.next_input(kBytes, room_for);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->bytes.at, 60u);
  EXPECT_EQ(first->block, nullptr);
  EXPECT_EQ(moves.arrived(), 0u);
  moves.came({1, 0, 0, 0});
  EXPECT_EQ(moves.arrived(), 1u);
  EXPECT_FALSE(moves.all_arrived());
  EXPECT_EQ(moves.next_input(kBytes, room_for)->bytes.bytes, 60u);
  moves.came({1, 0, 0, 0});
  EXPECT_TRUE(moves.all_arrived());
  EXPECT_FALSE(moves.moves());
  moves.landed({10, 20});
  moves.landed({20, 30});
  const auto some = finals(moves, 30);
  ASSERT_EQ(some.size(), 2u);
  EXPECT_EQ(some[0].at, 10u);
  EXPECT_EQ(some[0].bytes, 30u);
  EXPECT_EQ(some[1].bytes, 10u);
  moves.landed({10, 20});
  EXPECT_TRUE(finals(moves).empty()) << "told again, as after an interrupt";
  moves.came({0, 0, 2, 0});
  moves.conclude();
  EXPECT_EQ(finals(moves).size(), 2u) << "what was told to nobody";
  moves.came({0, 0, 2, 0});
  EXPECT_FALSE(moves.moves());
}

// Each copy costs a call: what is small waits for what comes beside it, and at the end for nothing.
TEST_F(BufferMovesTest, FinalsWaitForThoseBesideThem) {
  BufferMoves patient({}, std::span(on_cpu).first(kBytes), 20);
  patient.landed({0, 10});
  patient.landed({50, 19});
  EXPECT_TRUE(finals(patient).empty());
  EXPECT_FALSE(patient.moves()) << "nobody has to look";
  patient.landed({10, 10});
  EXPECT_TRUE(patient.moves());
  auto some = finals(patient);
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0].at, 0u);
  EXPECT_EQ(some[0].bytes, 20u);
  patient.came({0, 0, 1, 0});
  patient.landed({20, 5});
  EXPECT_FALSE(patient.moves());
  patient.conclude();
  EXPECT_TRUE(patient.moves());
  some = finals(patient);
  ASSERT_EQ(some.size(), 1u);
  EXPECT_EQ(some[0].at, 20u);
  EXPECT_EQ(some[0].bytes, 80u);
  patient.came({0, 0, 1, 0});
  EXPECT_FALSE(patient.moves());
}

// All of it may stand before the round is over.
TEST_F(BufferMovesTest, TheLastFinalsWaitForNothing) {
  BufferMoves patient({}, std::span(on_cpu).first(kBytes), 20);
  patient.landed({0, 95});
  EXPECT_EQ(finals(patient).size(), 1u);
  patient.landed({95, 5});
  EXPECT_EQ(finals(patient).size(), 1u);
}

// What a copy needs is taken when it is asked for, and others want it: calls that waited for memory that nobody used
// waited for ever.
TEST_F(BufferMovesTest, NobodyAsksForRoomWhereNothingIsToBeCopied) {
  std::size_t asked = 0;
  const auto asks = [&] { return ++asked != 0; };
  const auto asks_for = [&](bool) { return ++asked != 0; };
  EXPECT_FALSE(moves.next_input(kBytes, asks_for));
  EXPECT_FALSE(moves.next_from_peer(kBytes, asks));
  EXPECT_FALSE(moves.next_final(kBytes, asks));
  begin(false);
  fill();
  EXPECT_FALSE(moves.next_input(kBytes, asks_for));
  EXPECT_EQ(asked, 0u);
  moves.landed({0, 10});
  EXPECT_FALSE(moves.next_final(kBytes, [] { return false; }));
  EXPECT_TRUE(moves.next_final(kBytes, asks)) << "there was none before";
  EXPECT_EQ(asked, 1u);
}

TEST_F(BufferMovesTest, ALentInputComesHomeWhereItIsNotFinal) {
  begin(true);
  EXPECT_EQ(moves.next_input(kBytes, [](bool by_block) { return by_block; })->block, block);
  EXPECT_EQ(moves.lent(), block);
  moves.landed({0, 10});
  ASSERT_TRUE(moves.bring({10, 20}, peer.made(1), 7));
  ASSERT_TRUE(moves.next_from_peer(kBytes, room));
  moves.came({0, 1, 0, 1});
  ASSERT_TRUE(moves.take_brought());
  moves.bring_home();
  EXPECT_EQ(moves.lent(), nullptr);
  EXPECT_FALSE(moves.all_arrived());
  // The rest of it comes to the block first. What a peer has given is not in memory of the CPU.
  const auto last = moves.next_input(kBytes, room_for);
  ASSERT_TRUE(last);
  EXPECT_FALSE(last->home);
  EXPECT_EQ(last->bytes.bytes, 60u);
  const auto home = moves.next_input(kBytes, room_for);
  ASSERT_TRUE(home);
  EXPECT_TRUE(home->home);
  EXPECT_EQ(home->bytes.at, 10u);
  EXPECT_EQ(home->bytes.bytes, 90u);
  EXPECT_FALSE(moves.next_input(kBytes, room_for));
  moves.came({0, 1, 0, 0});
  EXPECT_FALSE(moves.all_arrived()) << "a part of it is still under way";
  moves.came({0, 1, 0, 0});
  EXPECT_TRUE(moves.all_arrived());
  EXPECT_EQ(moves.arrived(), 2u) << "what comes from the block is no piece";
}

// Of a reduce_scatter the output is a part of the input, in place; of an allgather it is the other way round.
TEST_F(BufferMovesTest, AnInputComesHomeAroundWhatIsFinalInItsPlace) {
  const auto comes_home = [&](std::size_t input_at, std::uint64_t input_bytes, std::size_t output_at,
                              std::uint64_t output_bytes) {
    BufferMoves some{std::span(on_cpu).subspan(input_at, input_bytes),
                     std::span(on_cpu).subspan(output_at, output_bytes)};
    some.order({{0, input_bytes}});
    some.lend(block);
    some.begin();
    EXPECT_TRUE(some.next_input(kBytes, room_for));
    some.came({0, 1, 0, 0});
    some.landed({5, 10});
    some.bring_home();
    Ranges home;
    while (const auto next = some.next_input(kBytes, room_for))
      home.add(next->bytes.at, next->bytes.at + next->bytes.bytes);
    return Ranges(0, input_bytes).minus(home);
  };
  EXPECT_EQ(comes_home(0, kBytes, 50, 25), Ranges(55, 65));
  EXPECT_EQ(comes_home(8, 25, 0, kBytes), Ranges(0, 7));
  EXPECT_EQ(comes_home(50, 25, 0, kBytes), Ranges()) << "what is final is elsewhere";
  EXPECT_EQ(comes_home(0, kBytes, kBytes, 25), Ranges()) << "not in place";
}

TEST_F(BufferMovesTest, AResultThatIsThereNeedNotGoBack) {
  begin(false);
  fill();
  moves.result_is_there();
  moves.conclude();
  EXPECT_FALSE(moves.moves());
}

TEST_F(BufferMovesTest, AnInputThatHasNotBegunToComeNeedsNoBlockAfterAnInterrupt) {
  moves.order({{0, 100}});
  moves.lend(block);
  moves.bring_home();
  moves.begin();
  EXPECT_EQ(moves.next_input(kBytes, [](bool by_block) { return !by_block; })->block, nullptr);
}

TEST_F(BufferMovesTest, WhatIsReadOnAPeersGpuCountsIfItStood) {
  begin(true);
  fill();
  ASSERT_TRUE(moves.bring({0, 30}, peer.made(1), 7));
  ASSERT_TRUE(moves.bring({30, 30}, peer.made(2), 8));
  EXPECT_TRUE(moves.moves());
  ASSERT_TRUE(moves.next_from_peer(kBytes, room));
  ASSERT_TRUE(moves.next_from_peer(kBytes, room));
  peer.first = 2;
  moves.came({0, 0, 0, 2});
  const auto one = moves.take_brought(), other = moves.take_brought();
  ASSERT_TRUE(one && other);
  EXPECT_EQ(one->number, 7u);
  EXPECT_FALSE(one->stood);
  EXPECT_EQ(other->number, 8u);
  EXPECT_TRUE(other->stood);
  // From the log then.
  moves.landed({0, 30});
  moves.landed({30, 30});
  const auto back = finals(moves);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(back[0].at, 0u);
  EXPECT_EQ(back[0].bytes, 30u);
}

TEST_F(BufferMovesTest, WhatLiesSideBySideOnAPeersGpuIsOneCopy) {
  begin(true);
  fill();
  ASSERT_TRUE(moves.bring({0, 10}, peer.made(1, 40), 7));
  ASSERT_TRUE(moves.bring({60, 10}, peer.made(9, 0), 8)) << "elsewhere";
  ASSERT_TRUE(moves.bring({10, 10}, peer.made(2, 50), 9));
  ASSERT_TRUE(moves.bring({20, 10}, peer.made(3, 70), 10)) << "not beside it there";
  ASSERT_TRUE(moves.bring({30, 10}, peer.made(4, 60), 11)) << "nor in the output";
  ASSERT_TRUE(moves.bring({70, 20}, peer.made(10, 10), 12));
  const auto one = moves.next_from_peer(kBytes, room), other = moves.next_from_peer(29, room);
  ASSERT_TRUE(one && other);
  EXPECT_EQ(one->bytes.at, 0u);
  EXPECT_EQ(one->bytes.bytes, 20u);
  EXPECT_EQ(one->from->at, peer.memory + 40);
  EXPECT_EQ(other->bytes.at, 60u);
  EXPECT_EQ(other->bytes.bytes, 10u) << "both are more than goes by one copy";
  // Each counts by its own number.
  peer.first = 2;
  moves.came({0, 0, 0, 2});
  const std::pair<std::uint64_t, bool> want[] = {{7, false}, {9, true}, {8, true}};
  for (const auto& [number, stood] : want) {
    const auto brought = moves.take_brought();
    ASSERT_TRUE(brought);
    EXPECT_EQ(brought->number, number);
    EXPECT_EQ(brought->stood, stood);
  }
  EXPECT_FALSE(moves.take_brought());
  for (int copies = 0; copies < 3; copies++) ASSERT_TRUE(moves.next_from_peer(kBytes, room));
  EXPECT_FALSE(moves.next_from_peer(kBytes, room));
  moves.came({0, 0, 0, 3});
  EXPECT_FALSE(moves.moves());
}

// A copy that nobody waits for any more, and which may bring anything, is not to end after one that counts.
TEST_F(BufferMovesTest, WhatComesFromTheLogWaitsForWhatAPeerWasToGive) {
  begin(true);
  fill();
  ASSERT_TRUE(moves.bring({20, 30}, peer.made(1), 7));
  ASSERT_TRUE(moves.next_from_peer(kBytes, room));
  moves.bring_home();
  moves.landed({0, 100});
  const auto around = finals(moves);
  ASSERT_EQ(around.size(), 2u);
  EXPECT_EQ(around[0].bytes, 20u);
  EXPECT_EQ(around[1].at, 50u);
  peer.first = 2;
  moves.came({0, 0, 2, 1});
  const auto last = finals(moves);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].at, 20u);
  EXPECT_EQ(last[0].bytes, 30u);
}

TEST_F(BufferMovesTest, NothingBeginsWhereNobodyWantsTheResult) {
  begin(true);
  ASSERT_TRUE(moves.next_input(kBytes, room_for));
  moves.landed({0, 10});
  ASSERT_TRUE(moves.bring({10, 20}, peer.made(1), 7));
  moves.give_up();
  EXPECT_TRUE(moves.moves()) << "one copy is under way";
  EXPECT_FALSE(moves.next_input(kBytes, room_for));
  EXPECT_FALSE(moves.next_from_peer(kBytes, room));
  EXPECT_TRUE(finals(moves).empty());
  EXPECT_FALSE(moves.bring({10, 20}, peer.made(1), 8));
  moves.landed({30, 10});
  moves.bring_home();
  moves.came({0, 1, 0, 0});
  EXPECT_FALSE(moves.moves());
}

TEST_F(BufferMovesTest, WhatWasAbandonedNeverArrives) {
  begin(true);
  ASSERT_TRUE(moves.next_input(kBytes, room_for));
  moves.bring_home();
  moves.abandon();
  EXPECT_FALSE(moves.moves());
  EXPECT_FALSE(moves.all_arrived());
  EXPECT_FALSE(moves.next_input(kBytes, room_for));
}

// The engine calls while the copies are moved on.
TEST_F(BufferMovesTest, TwoThreadsMoveAllOfIt) {
  constexpr std::uint64_t kMany = 4000;
  for (const bool interrupted : {false, true}) {
    const std::vector<std::byte> there(kMany);
    BufferMoves large(there, there);
    std::vector<ByteRange> pieces;
    for (std::uint64_t at = 0; at < kMany; at += 10) pieces.push_back({at, 10});
    large.order(pieces);
    large.lend({new std::byte[kMany], std::default_delete<std::byte[]>()});
    large.begin();
    std::atomic<bool> over{false};
    std::uint64_t copied = 0, home = 0, brought = 0;
    std::thread mover([&] {
      while (!over || large.moves()) {
        BufferMoves::Ended ended;
        while (const auto next = large.next_input(100, room_for)) {
          ended.by_block++;
          home += next->home ? next->bytes.bytes : 0;
        }
        while (large.next_from_peer(kBytes, room)) ended.from_peers++;
        while (const auto next = large.next_final(100, room)) {
          ended.finals++;
          copied += next->bytes;
        }
        large.came(ended);
        std::this_thread::yield();
      }
    });
    for (std::uint64_t at = 0; at < kMany; at += 20) {
      large.landed({at, 10});
      if (large.bring({at + 10, 10}, peer.made(1), at)) brought++;
      while (large.take_brought()) brought--;
      EXPECT_LE(large.arrived(), pieces.size());
    }
    if (interrupted) {
      large.bring_home();
      while (!large.all_arrived()) std::this_thread::yield();
    } else {
      while (brought != 0) {
        std::this_thread::yield();
        while (large.take_brought()) brought--;
      }
    }
    large.conclude();
    over = true;
    mover.join();
    EXPECT_FALSE(large.moves());
    // All of the output has come one way or the other: what a peer gave, and was known to stand, is not copied; nor
    // does the input come home beneath what is final.
    if (interrupted) {
      EXPECT_GE(copied, kMany / 2);
      EXPECT_EQ(home, kMany / 2);
    } else {
      EXPECT_EQ(copied, kMany / 2);
      EXPECT_EQ(home, 0u);
    }
  }
}

TEST_F(BufferMovesTest, WithoutAnOutputNothingGoesBack) {
  BufferMoves no_output(on_cpu, {});
  no_output.landed({0, 10});
  EXPECT_FALSE(no_output.bring({0, 10}, peer.made(1), 7));
  no_output.conclude();
  EXPECT_FALSE(no_output.moves());
  BufferMoves no_input({}, on_cpu);
  EXPECT_TRUE(no_input.all_arrived());
}

}  // namespace
}  // namespace warren::worker
