#include "worker/rounds/outstanding_calls.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace warren::worker {
namespace {

// Buffers that move while `moving` says so.
struct Moving final : CallBuffers, BufferStream {
  [[nodiscard]] Status filled() const override { return {}; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override { return {}; }
  [[nodiscard]] BufferStream* stream() override { return streams ? this : nullptr; }

  [[nodiscard]] std::size_t most_bytes(std::int32_t /*size*/) const override { return 64; }
  void order(std::vector<ByteRange> /*pieces*/) override {}
  [[nodiscard]] std::size_t arrived() const override { return 0; }
  [[nodiscard]] bool all_arrived() const override { return true; }
  void landed(const ByteRange& /*bytes*/) override {}
  void conclude() override { concluded = true; }
  void give_up() override { given_up = true; }
  [[nodiscard]] bool moves() const override { return moving; }
  [[nodiscard]] Result<bool> move() override { return true; }

  bool streams = true, moving = true, concluded = false, given_up = false;
};

struct OutstandingCallsTest : testing::Test {
  OutstandingCallsTest() { calls.accept(call); }
  Moving& move_buffers(bool streams) {
    auto made = std::make_unique<Moving>();
    Moving& buffers = *made;
    buffers.streams = streams;
    call.buffers = std::move(made);
    return buffers;
  }

  OutstandingCalls calls;
  Call call;
};

TEST_F(OutstandingCallsTest, ACallOfTheProgramsBuffersFinishesWithItsRound) {
  EXPECT_EQ(calls.count(), 1);
  calls.conclude(call, {});
  EXPECT_TRUE(call.finished && call.settled);
  EXPECT_EQ(calls.count(), 0);
  EXPECT_TRUE(calls.finished().empty()) << "its caller waits in it";
}

TEST_F(OutstandingCallsTest, AnAsynchronousCallIsAmongTheFinishedOnesWithItsParts) {
  const auto made = std::make_shared<Call>(), part = std::make_shared<Call>();
  made->self = made;
  made->parts = {part};
  made->setup = "sketch";
  calls.accept(*made);
  calls.conclude(*made, Status(Code::kExhausted, "no room"));
  EXPECT_EQ(made->self, nullptr);
  EXPECT_EQ(calls.finished(), (std::vector<std::shared_ptr<Call>>{part, made}));
  EXPECT_EQ(part->status.code(), Code::kExhausted);
  EXPECT_NE(made->status.describe().find("set-up round \"sketch\""), std::string::npos) << made->status.describe();
}

TEST_F(OutstandingCallsTest, PrepareFunctionsThatNobodyTookAreForgotten) {
  calls.ask_prepare(call);
  EXPECT_EQ(call.prepare, Call::Prepare::kAsked);
  EXPECT_TRUE(calls.has_work_outside());
  EXPECT_EQ(calls.take_prepare(), &call);
  EXPECT_EQ(call.prepare, Call::Prepare::kRuns);
  EXPECT_EQ(calls.take_prepare(), nullptr);
  calls.ask_prepare(call);
  calls.forget_prepares();
  EXPECT_FALSE(calls.has_work_outside());
}

TEST_F(OutstandingCallsTest, ResultsAreBroughtBackBeforeTheCallFinishes) {
  move_buffers(false);
  calls.conclude(call, {});
  EXPECT_FALSE(call.finished);
  EXPECT_EQ(calls.take_delivery(), &call);
  EXPECT_EQ(calls.count(), 1);
  calls.finish(call, {});
  EXPECT_TRUE(call.finished);
}

TEST_F(OutstandingCallsTest, NoResultIsBroughtBackAfterAStop) {
  move_buffers(false);
  calls.conclude(call, {});
  calls.stop(Status(Code::kClosed, "it is over"));
  EXPECT_EQ(calls.take_delivery(), nullptr);
  EXPECT_EQ(call.status.code(), Code::kClosed);
  EXPECT_EQ(calls.count(), 0);
}

TEST_F(OutstandingCallsTest, ACallFinishesWhenItsBuffersMoveNoMore) {
  Moving& buffers = move_buffers(true);
  calls.move_on(call);
  calls.move_on(call);
  EXPECT_EQ(calls.moving(), std::vector<Call*>{&call}) << "it is listed once";
  EXPECT_EQ(calls.take_moving(), &call);
  EXPECT_TRUE(calls.moved(call, {})) << "its round goes on";
  EXPECT_EQ(calls.take_moving(), &call);
  calls.conclude(call, {});
  EXPECT_TRUE(buffers.concluded);
  EXPECT_FALSE(call.finished);
  buffers.moving = false;
  EXPECT_FALSE(calls.moved(call, {}));
  EXPECT_TRUE(call.finished && call.status.ok());
}

TEST_F(OutstandingCallsTest, AFailedMoveIsTheCallsEnd) {
  Moving& buffers = move_buffers(true);
  calls.conclude(call, {});
  EXPECT_EQ(calls.take_moving(), &call);
  buffers.moving = false;
  EXPECT_FALSE(calls.moved(call, Status(Code::kUnavailable, "the GPU has gone")));
  EXPECT_TRUE(buffers.given_up);
  EXPECT_EQ(call.status.code(), Code::kUnavailable);
}

TEST_F(OutstandingCallsTest, WhatWasListedAndMovesNoMoreIsTakenFromTheList) {
  Moving& buffers = move_buffers(true);
  calls.move_on(call);
  buffers.moving = false;
  calls.end(call, Status(Code::kClosed, "it is over"));
  EXPECT_TRUE(call.finished);
  EXPECT_FALSE(calls.has_work_outside());
}

}  // namespace
}  // namespace warren::worker
