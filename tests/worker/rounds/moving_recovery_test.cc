// Rounds that are interrupted while their buffers are still on the way to or from a GPU.
#include "tests/worker/rounds/recovery_world.h"

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace warren::worker::recovering {
namespace {

// One rank's buffers, of two, as they are moved by hand.
class ByHand : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::uint64_t kCount = 5000;
  ByHand() {
    options_.size = 2;
    options_.hosts = {0, 1};
    options_.algorithm = schedule::Algorithm::kRing;
    world_ = std::make_unique<World>(options_);
    for (std::size_t i = 0; i < kCount; i++) ours_[i] = i, theirs_[i] = 1'000'000 + 7 * i;
    spec(call_, ours_);
    auto moving = std::make_unique<Moving>(std::as_writable_bytes(std::span(ours_)),
                                           std::as_writable_bytes(std::span(GetParam() ? ours_ : result_)), 1, nullptr);
    moving_ = moving.get();
    call_.spec.input = moving->host_input();
    call_.spec.output = moving->host_output();
    call_.spec.prepare = &input_made_by<[](void* context) { static_cast<Moving*>(context)->begin(); }>;
    call_.spec.prepare_context = moving_;
    call_.buffers = std::move(moving);
    spec(other_, theirs_);
  }
  ~ByHand() override {
    for (int r = 0; r < 2; r++) world_->engine(r).stop(Status(Code::kClosed, "the test ends"));
    while (engine().has_moving()) move();
  }
  static void spec(Call& call, std::vector<std::uint64_t>& data) { make_sum(call.spec, data.data(), kCount); }
  void begin() {
    ASSERT_TRUE(world_->engine(1).submit(kWorldGroup, other_).ok());
    ASSERT_TRUE(engine().submit(kWorldGroup, call_).ok());
    ASSERT_EQ(engine().take_prepare(), &call_);
    call_.spec.prepare(call_.spec.prepare_context);
    engine().prepared(call_);
  }
  void move() {
    Call* const taken = engine().take_moving();
    ASSERT_EQ(taken, &call_);
    const auto moved = moving_->move();
    engine().moved(call_, moved.status());
  }
  // All that can move does, until nothing has for long.
  void run() {
    for (int idle = 0; idle < 2000; idle++) {
      if (engine().has_moving()) move();
      if (world_->step()) idle = 0;
    }
  }
  void expect_result() {
    ASSERT_TRUE(call_.finished.load());
    ASSERT_TRUE(call_.status.ok()) << call_.status.describe();
    const auto& out = GetParam() ? ours_ : result_;
    for (std::size_t i = 0; i < kCount; i++) ASSERT_EQ(out[i], 1'000'000 + 8 * i);
  }
  Engine& engine() { return world_->engine(0); }

  World::Options options_;
  std::unique_ptr<World> world_;
  std::vector<std::uint64_t> ours_ = std::vector<std::uint64_t>(kCount), theirs_ = ours_, result_ = ours_;
  Call call_, other_;
  Moving* moving_ = nullptr;
};

TEST_P(ByHand, ResultsComeBackWhileTheInputIsStillComing) {
  moving_->pieces_let = 6;
  begin();
  run();
  EXPECT_FALSE(call_.finished.load() || other_.finished.load());
  EXPECT_EQ(moving_->arrived(), 6u);
  EXPECT_GE(moving_->brought_back(), 6'000u) << "as far as it was there";
  const auto waits = engine().describe_waits();
  ASSERT_FALSE(waits.empty());
  EXPECT_NE(waits[0].find("waits for its own input"), std::string::npos) << waits[0];
  moving_->pieces_let = SIZE_MAX;
  run();
  expect_result();
}

TEST_P(ByHand, ACallEndsWhenItsResultHasComeBack) {
  moving_->finals_let = 0;
  begin();
  run();
  EXPECT_TRUE(other_.finished.load());
  EXPECT_FALSE(call_.finished.load());
  EXPECT_EQ(engine().outstanding(), 1u);
  const auto waits = engine().describe_waits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_NE(waits[0].find("to be brought back"), std::string::npos) << waits[0];
  moving_->finals_let = SIZE_MAX;
  run();
  expect_result();
  EXPECT_FALSE(engine().has_work_outside());
}

// The other rank is lost when a part is final; the rest of the input comes before the log, which would come over it.
TEST_P(ByHand, AResumedRoundWaitsForItsInput) {
  moving_->pieces_let = 6;
  begin();
  run();
  world_->kill(1);
  world_->next_generation({1});
  Call again;
  spec(again, theirs_);
  for (std::size_t i = 0; i < kCount; i++) theirs_[i] = 1'000'000 + 7 * i;
  ASSERT_TRUE(world_->engine(1).submit(kWorldGroup, again).ok());
  run();
  EXPECT_FALSE(call_.finished.load());
  const auto waits = engine().describe_waits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_NE(waits[0].find("waits for its own input"), std::string::npos) << waits[0];
  moving_->pieces_let = SIZE_MAX;
  run();
  expect_result();
  EXPECT_TRUE(again.finished.load());
}

// What is under way ends before the call does, because it is the program's memory.
TEST_P(ByHand, AStoppedCallEndsWhenNothingMoves) {
  moving_->pieces_let = 2;
  begin();
  Call* const taken = engine().take_moving();
  ASSERT_EQ(taken, &call_);
  engine().stop(Status(Code::kClosed, "over"));
  EXPECT_FALSE(call_.finished.load());
  engine().moved(call_, {});
  EXPECT_TRUE(call_.finished.load());
  EXPECT_EQ(call_.status.code(), Code::kClosed);
  EXPECT_EQ(engine().outstanding(), 0u);
  EXPECT_FALSE(engine().has_moving());
}

TEST_P(ByHand, AFailureIsTheCallsReason) {
  moving_->finals_let = 1;
  begin();
  run();
  ASSERT_EQ(engine().take_moving(), &call_);
  moving_->fails = Status(Code::kUnavailable, "it broke");
  engine().stop(Status(Code::kClosed, "over"));
  engine().moved(call_, moving_->fails);
  EXPECT_TRUE(call_.finished.load());
  EXPECT_EQ(call_.status.code(), Code::kUnavailable) << "the round was over: " << call_.status.describe();
}

INSTANTIATE_TEST_SUITE_P(InPlace, ByHand, testing::Bool());

}  // namespace
}  // namespace warren::worker::recovering
