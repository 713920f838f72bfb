// Payloads that are read where they lie: what the executor owes a transport that gives views.
#include "worker/rounds/executor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "tests/worker/rounds/scripted_round.h"

namespace warren::worker {
namespace {

// For rank 0 of two.
schedule::Request request_of(Collective collective, schedule::Algorithm algorithm, std::uint64_t chunk_elements) {
  schedule::Request request;
  request.collective = collective;
  request.algorithm = algorithm;
  request.size = 2;
  request.count = kCount;
  request.chunk_elements = chunk_elements;
  return request;
}

// Rank 0 of two, on one host; the other one is the test. Its segment is the first half.
class InPlace : public ::testing::Test {
 protected:
  [[nodiscard]] PreparedSchedule schedule_of(const Ranges& final, std::uint64_t chunk_elements = kCount,
                                             std::int32_t rank = 0) const {
    schedule::Request request = request_of(Collective::kAllreduce, schedule::Algorithm::kRing, chunk_elements);
    request.rank = rank;
    request.replicas = 2;
    request.hosts = hosts_;
    request.domains = hosts_;
    request.element_bytes = schedule::kWholeBytes;  // so that the result is not small
    request.resumed = !final.empty();
    request.final = final;
    return PreparedSchedule(schedule::make(request).value());
  }
  void SetUp() override {
    prepared_ = std::make_unique<PreparedSchedule>(schedule_of({}));
    std::iota(input_.begin(), input_.end(), 1);
    std::iota(theirs_.begin(), theirs_.end(), 1000);
    round_.schedule = prepared_.get();
    round_.input = reinterpret_cast<const std::byte*>(input_.data());
    round_.output = reinterpret_cast<std::byte*>((over_its_input_ ? input_ : output_).data());
    round_.reducer = Reducer::make(DataType::kI64, ReduceOp::kSum, 2).value();
    round_.publisher = &log_;
    executor_.start(round_);
    ASSERT_EQ(transport_.receives.size(), 2u);
    EXPECT_TRUE(transport_.receives[0].in_place && transport_.receives[1].in_place);
  }
  // All of the other rank's input has come, and its final is read where something else is written by then.
  void read_a_final_that_is_no_more() {
    held_ = part(0);
    executor_.on_completion(transport_.receives[0].token, {}, {&held_});
    for (const Token token : transport_.sends) executor_.on_completion(token, {});
    const std::uint64_t stamp = 5;
    executor_.on_completion(transport_.receives[1].token, {}, {nullptr, part(kCount / 2), &stamp, 4});
    EXPECT_EQ(executor_.status().code(), Code::kPeerLost) << executor_.status().describe();
  }
  // The other rank's part from `first` on: an input, or a final.
  const std::byte* part(std::uint64_t first) { return reinterpret_cast<const std::byte*>(&theirs_[first]); }

  bool over_its_input_ = false;
  const std::byte* held_ = nullptr;  // what a view shows
  Round round_;
  std::vector<std::uint32_t> hosts_ = {0, 0};
  std::unique_ptr<PreparedSchedule> prepared_;
  Scripted transport_;
  ScriptedLog log_;
  Executor executor_{transport_, &transport_, kWorldGroup, {Rank(0), Rank(1)}, 0, nullptr};
  std::vector<std::int64_t> input_ = std::vector<std::int64_t>(kCount), theirs_ = input_, output_ = input_;
};

TEST_F(InPlace, OperandsAreReadWhereTheyLieAndReleasedOnce) {
  // It moves before it is read: the place is looked up then.
  const std::byte* held = nullptr;
  const View view{&held};
  held = part(0);
  executor_.on_completion(transport_.receives[0].token, {}, view);
  EXPECT_EQ(transport_.released, std::vector<const std::byte* const*>{&held});
  ASSERT_EQ(log_.pieces.size(), 1u);
  // The final is told by its place, the input was sent.
  ASSERT_EQ(transport_.sends.size(), 2u);
  EXPECT_FALSE(transport_.places[0].known());
  EXPECT_EQ(transport_.places[1].at, 1000u);
  const std::uint64_t stamp = 4;
  executor_.on_completion(transport_.receives[1].token, {}, {nullptr, part(kCount / 2), &stamp, 4});
  for (const Token token : transport_.sends) executor_.on_completion(token, {});
  EXPECT_TRUE(executor_.done() && executor_.status().ok());
  EXPECT_EQ(transport_.released.size(), 1u) << "what lies in a log is nobody's to release";
  for (std::uint64_t i = 0; i < kCount; i++) {
    ASSERT_EQ(output_[i], i < kCount / 2 ? input_[i] + theirs_[i] : theirs_[i]) << i;
  }
}

TEST_F(InPlace, WhatWasReadFromALogThatIsUsedAgainIsNotFinal) {
  read_a_final_that_is_no_more();
  EXPECT_EQ(executor_.failed_peer(), Rank(1));
  const auto finals = executor_.finals();
  ASSERT_EQ(finals.size(), 1u);
  EXPECT_EQ(finals[0].at, 0u);
  EXPECT_EQ(finals[0].count, kCount / 2);
}

class OverItsInput : public InPlace {
 protected:
  OverItsInput() { over_its_input_ = true; }
};

// In place: the other rank's final, which was no more when it was read, stands where an input was. If that rank is lost
// as well, nobody has either.
TEST_F(OverItsInput, ARoundWhoseInputIsLostIsNotComputedAgain) {
  read_a_final_that_is_no_more();
  const auto again = [&](const Round& round) {
    executor_.abandon();
    transport_.sends.clear();
    transport_.receives.clear();
    executor_.start(round);
    return executor_.status().code();
  };
  // With all that was final here, and with all but an element of what was not.
  Ranges final(0, kCount / 2);
  final.add(kCount / 2 + 1, kCount);
  for (const Ranges& known : {Ranges(0, kCount / 2), final}) {
    const PreparedSchedule rest = schedule_of(known, 1);
    Round round = round_;
    round.schedule = &rest;
    EXPECT_EQ(again(round), Code::kExhausted);
    EXPECT_TRUE(executor_.done() && transport_.sends.empty() && transport_.receives.empty());
    EXPECT_TRUE(executor_.finals().empty());
  }
  // Also where it is an operand of what this rank makes, and is sent to nobody.
  const PreparedSchedule owners = schedule_of(Ranges(0, kCount / 2), kCount / 2, 1);
  Round own = round_;
  own.schedule = &owners;
  EXPECT_EQ(again(own), Code::kExhausted);
  // Somebody has the final: nothing is missing.
  const PreparedSchedule rest = schedule_of(Ranges(kCount / 2, kCount), kCount);
  Round round = round_;
  round.schedule = &rest;
  EXPECT_EQ(again(round), Code::kOk);
  EXPECT_FALSE(transport_.receives.empty());
  // Nor is anything of another round.
  round = round_;
  round.id.sequence = Sequence(round.id.sequence.value + 1);
  EXPECT_EQ(again(round), Code::kOk);
}

// Rank 1 of two that share a host and do not die together: it keeps a copy of what rank 0, the root, has made. What it
// reads in rank 0's log may be another use's by then, and a record, once it is published, is one.
TEST(Executor, NothingIsPublishedFromALogThatWasUsedAgain) {
  const std::vector<std::uint32_t> hosts = {0, 0}, domains = {0, 1};
  schedule::Request request = request_of(Collective::kReduce, schedule::Algorithm::kTree, kCount);
  request.rank = 1;
  request.replicas = 2;
  request.hosts = hosts;
  request.domains = domains;
  request.element_bytes = sizeof(std::int64_t);
  const PreparedSchedule prepared(schedule::make(request).value());
  Scripted transport;
  ScriptedLog log;
  Executor executor(transport, &transport, kWorldGroup, {Rank(0), Rank(1)}, 0, nullptr);
  const std::vector<std::int64_t> input(kCount), other_use(kCount, -1);
  Round round;
  round.schedule = &prepared;
  round.input = reinterpret_cast<const std::byte*>(input.data());
  round.reducer = Reducer::make(DataType::kI64, ReduceOp::kSum, 2).value();
  round.publisher = &log;
  executor.start(round);
  for (std::size_t i = 0; i < transport.sends.size(); i++) executor.on_completion(transport.sends[i], {});
  const auto final = std::ranges::find_if(transport.receives, [](const auto& r) { return !r.payload.empty(); });
  ASSERT_NE(final, transport.receives.end());
  EXPECT_FALSE(final->in_place);
  const std::uint64_t stamp = 5;
  if (final->in_place) {
    executor.on_completion(final->token, {},
                           {nullptr, reinterpret_cast<const std::byte*>(other_use.data()), &stamp, 4});
  } else {
    // The transport has looked before.
    executor.on_completion(final->token, Status(Code::kPeerLost, "no final lies there"));
  }
  EXPECT_EQ(executor.status().code(), Code::kPeerLost) << executor.status().describe();
  EXPECT_TRUE(log.pieces.empty());
}

// The board shows a few of those that a round waits for. Rank 0 of 12 gathers parts of four messages, and rank 11 is
// behind.
TEST(Executor, OfManyPeersThoseBehindAreNamed) {
  constexpr std::int32_t kSize = 12;
  schedule::Request request = request_of(Collective::kGather, schedule::Algorithm::kStar, 1);
  request.size = kSize;
  request.count = 4;
  const PreparedSchedule prepared(schedule::make(request).value());
  Scripted transport;
  std::vector<Rank> members;
  for (std::int32_t rank = 0; rank < kSize; rank++) members.emplace_back(rank);
  Executor executor(transport, &transport, kWorldGroup, members, 0, nullptr);
  const std::vector<std::int64_t> input(4);
  std::vector<std::int64_t> output(std::size_t{kSize} * 4);
  Round round;
  round.schedule = &prepared;
  round.input = reinterpret_cast<const std::byte*>(input.data());
  round.output = reinterpret_cast<std::byte*>(output.data());
  round.reducer = Reducer::make(DataType::kI64, ReduceOp::kSum, kSize).value();
  executor.start(round);
  EXPECT_EQ(executor.waiting_for(SIZE_MAX).size(), std::size_t{kSize} - 1);
  const std::vector<Scripted::Receive> posted = transport.receives;
  for (const Scripted::Receive& receive : posted) {
    const schedule::Step& step = prepared.step(static_cast<std::uint32_t>(receive.token));
    if (step.peer != kSize - 1 && step.message == 0) executor.on_completion(receive.token, {});
  }
  const auto waited = executor.waiting_for(8);
  EXPECT_EQ(waited.size(), 8u);
  EXPECT_EQ(std::ranges::count(waited, Rank(kSize - 1), &RoundBoard::Waited::rank), 1);
}

TEST_F(InPlace, WhatIsPublishedGoesOnWhenItMayBeSeen) {
  log_.slow = true;
  const std::byte* held = part(0);
  executor_.on_completion(transport_.receives[0].token, {}, {&held});
  ASSERT_EQ(log_.pieces.size(), 1u);
  ASSERT_EQ(transport_.sends.size(), 1u) << "the input; the final is not on disk yet";
  EXPECT_TRUE(executor_.settling());
  EXPECT_FALSE(executor_.settle());
  EXPECT_EQ(transport_.sends.size(), 1u);
  log_.seen = 1;
  EXPECT_TRUE(executor_.settle());
  EXPECT_FALSE(executor_.settling() || executor_.settle());
  ASSERT_EQ(transport_.sends.size(), 2u);
  EXPECT_EQ(transport_.places[1].at, 1000u);
  // Once more, and the round is interrupted: the next one knows nothing of it.
  const std::uint64_t stamp = 4;
  executor_.on_completion(transport_.receives[1].token, {}, {nullptr, part(kCount / 2), &stamp, 4});
  EXPECT_EQ(executor_.settling(), log_.pieces.size() == 2);
  executor_.abandon();
  log_.seen = 2;
  EXPECT_FALSE(executor_.settling() || executor_.settle());
  EXPECT_EQ(transport_.sends.size(), 2u);
}

struct Landed final : Landing {
  void landed(std::uint64_t at, std::uint64_t count) override { pieces.push_back({at, count}); }
  std::vector<InputPiece> pieces;
};

// Rank 0 of two hosts: its segment is the first half, and it sends the second one first.
class Arriving : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPiece = kCount / 4;
  Arriving() {
    const auto request = request_of(Collective::kAllreduce, schedule::Algorithm::kRing, kPiece);
    prepared_ = std::make_unique<PreparedSchedule>(schedule::make(request).value());
    pieces_ = input_order(prepared_->schedule(), kCount, kPiece);
    std::iota(theirs_.begin(), theirs_.end(), 1000);
    round_.schedule = prepared_.get();
    round_.input = reinterpret_cast<const std::byte*>(input_.data());
    round_.output = reinterpret_cast<std::byte*>(output_.data());
    round_.reducer = Reducer::make(DataType::kI64, ReduceOp::kSum, 2).value();
    round_.pieces = pieces_;
    round_.landing = &landed_;
  }
  void come(std::size_t piece) {
    for (std::uint64_t i = 0; i < pieces_[piece].count; i++) input_[pieces_[piece].at + i] = 1;
  }
  void receive(std::size_t n, std::uint64_t at) {
    const Scripted::Receive& r = transport_.receives.at(n);
    std::memcpy(r.payload.data(), &theirs_[at], r.payload.size());
    executor_.on_completion(r.token, {});
  }

  Scripted transport_;
  Landed landed_;
  std::unique_ptr<PreparedSchedule> prepared_;
  std::vector<InputPiece> pieces_;
  Round round_;
  Executor executor_{transport_, &transport_, kWorldGroup, {Rank(0), Rank(1)}, 0, nullptr};
  std::vector<std::int64_t> input_ = std::vector<std::int64_t>(kCount, -1), theirs_ = input_, output_ = input_;
};

TEST_F(Arriving, StepsBeginWhenWhatTheyReadIsThere) {
  EXPECT_EQ(pieces_, (std::vector<InputPiece>{{32, 16}, {0, 16}, {48, 16}, {16, 16}}));
  executor_.start(round_);
  ASSERT_EQ(transport_.receives.size(), 4u) << "what comes needs no input";
  EXPECT_TRUE(transport_.sends.empty());
  EXPECT_TRUE(executor_.awaits_input());
  EXPECT_TRUE(executor_.waiting_for(8).empty()) << "others wait for it";
  receive(0, 0);
  EXPECT_TRUE(landed_.pieces.empty());
  come(0);
  executor_.arrive(1);
  EXPECT_EQ(transport_.sends.size(), 1u);
  EXPECT_TRUE(landed_.pieces.empty());
  come(1);
  executor_.arrive(2);
  // The first final stands, and goes on.
  EXPECT_EQ(landed_.pieces, (std::vector<InputPiece>{{0, 16}}));
  EXPECT_EQ(output_[5], 1 + 1005);
  EXPECT_EQ(transport_.sends.size(), 1u) << "in its turn: the second input comes before it";
  come(2), come(3);
  executor_.arrive(4);
  EXPECT_FALSE(executor_.awaits_input());
  EXPECT_EQ(executor_.waiting_for(8).size(), 1u);
  EXPECT_EQ(transport_.sends.size(), 3u);
  receive(1, 16);
  receive(2, 32);
  receive(3, 48);
  for (std::size_t i = 0; i < transport_.sends.size(); i++) executor_.on_completion(transport_.sends[i], {});
  EXPECT_TRUE(executor_.done() && executor_.status().ok());
  EXPECT_EQ(landed_.pieces.size(), 4u);
  for (std::uint64_t i = 0; i < kCount; i++) EXPECT_EQ(output_[i], theirs_[i] + (i < kCount / 2 ? 1 : 0)) << i;
}

TEST_F(Arriving, WhatIsThereAtTheBeginningIsNotWaitedFor) {
  for (std::size_t i = 0; i < 4; i++) come(i);
  round_.arrived = 3;
  executor_.start(round_);
  EXPECT_EQ(transport_.sends.size(), 2u);
  EXPECT_TRUE(executor_.awaits_input());
  executor_.arrive(4);
  EXPECT_FALSE(executor_.awaits_input());
}

TEST_F(Arriving, NothingBeginsInARoundThatHasFailed) {
  executor_.start(round_);
  executor_.on_completion(transport_.receives[0].token, Status(Code::kPeerLost, "gone"));
  executor_.arrive(4);
  EXPECT_TRUE(transport_.sends.empty() && landed_.pieces.empty());
  EXPECT_FALSE(executor_.awaits_input());
  // Nor is any of it left in the next one.
  executor_.abandon();
  round_.pieces = {};
  executor_.start(round_);
  EXPECT_EQ(transport_.sends.size(), 2u);
}

// Its one buffer is the output, which no step has written.
TEST_F(Arriving, ABroadcastsRootSendsWhatHasCome) {
  const auto request = request_of(Collective::kBroadcast, schedule::Algorithm::kRing, kPiece);
  const PreparedSchedule prepared(schedule::make(request).value());
  pieces_ = input_order(prepared.schedule(), kCount, kPiece);
  EXPECT_EQ(pieces_, (std::vector<InputPiece>{{0, 16}, {16, 16}, {32, 16}, {48, 16}}));
  round_.schedule = &prepared;
  round_.pieces = pieces_;
  round_.input = round_.output;
  round_.arrived = 1;
  executor_.start(round_);
  EXPECT_EQ(transport_.sends.size(), 1u);
  executor_.arrive(3);
  EXPECT_EQ(transport_.sends.size(), 3u);
  executor_.arrive(4);
  for (std::size_t i = 0; i < 4; i++) executor_.on_completion(transport_.sends.at(i), {});
  EXPECT_TRUE(executor_.done());
}

// Rank 1 of three, on one host; the others, who lend their inputs, are the test. In place.
class Owner : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::uint64_t kPart = kCount / 4;
  void SetUp() override {
    schedule::Request request;
    request.collective = Collective::kAllreduce;
    request.algorithm = schedule::Algorithm::kRing;
    request.rank = 1;
    request.size = 3;
    request.count = 3 * kPart;
    request.chunk_elements = kCount;
    request.replicas = 2;
    request.hosts = hosts_;
    request.domains = hosts_;
    request.element_bytes = schedule::kWholeBytes;
    prepared_ = std::make_unique<PreparedSchedule>(schedule::make(request).value());
    for (std::size_t i = 0; i < kCount; i++) inputs_[1][i] = static_cast<std::int64_t>(100 + i);
    for (std::size_t i = 0; i < kCount; i++) inputs_[2][i] = static_cast<std::int64_t>(10'000 + i);
    std::iota(buffer_.begin(), buffer_.end(), 1);
    before_ = buffer_;
    log_.has_room = GetParam();
    Round round;
    round.landing = &landing_;
    round.schedule = prepared_.get();
    round.input = reinterpret_cast<const std::byte*>(buffer_.data());
    round.output = reinterpret_cast<std::byte*>(buffer_.data());
    round.reducer = Reducer::make(DataType::kI64, ReduceOp::kSum, 3).value();
    round.publisher = &log_;
    executor_.start(round);
    // From the two others: their inputs, then their finals.
    ASSERT_EQ(transport_.receives.size(), 4u);
    ASSERT_EQ(transport_.lent.size(), 2u);
  }
  // An input of another rank that came in place.
  View lent(std::size_t other) {
    View view;
    view.there = reinterpret_cast<const std::byte*>(&inputs_[other][kPart]);
    view.stamp = &left_;
    view.lent = std::make_shared<int>();
    return view;
  }
  // Both inputs, whichever came first.
  void receive_inputs() {
    for (std::size_t i = 0; i < 2; i++) executor_.on_completion(transport_.receives[2 * i].token, {}, lent(i + 1));
  }

  std::vector<std::uint32_t> hosts_ = {0, 0, 0};
  // A final of another rank that came in place, and lies on its GPU too.
  View beside(std::size_t other) {
    View view;
    view.there = reinterpret_cast<const std::byte*>(inputs_[other].data());
    view.stamp = &left_;
    view.beside = std::make_shared<const FinalOnGpu>();
    return view;
  }

  std::unique_ptr<PreparedSchedule> prepared_;
  Scripted transport_;
  ScriptedLog log_;
  Bringer landing_;
  Executor executor_{transport_, &transport_, kWorldGroup, {Rank(0), Rank(1), Rank(2)}, 0, nullptr};
  std::uint64_t left_ = 0;
  std::vector<std::int64_t> inputs_[3] = {{}, std::vector<std::int64_t>(kCount), std::vector<std::int64_t>(kCount)};
  std::vector<std::int64_t> buffer_ = std::vector<std::int64_t>(kCount), before_;
};

TEST_P(Owner, MakesTheFinalOfAllInputsAndPublishesItBeforeItOverwritesItsOwn) {
  receive_inputs();
  ASSERT_TRUE(executor_.status().ok()) << executor_.status().describe();
  ASSERT_EQ(log_.pieces.size(), 1u);
  EXPECT_EQ(log_.pieces[0], std::pair(kPart, kPart));
  for (std::size_t i = 0; i < kPart; i++) {
    const std::int64_t sum = before_[kPart + i] + inputs_[1][kPart + i] + inputs_[2][kPart + i];
    ASSERT_EQ(buffer_[kPart + i], sum) << i;
    if (GetParam()) {
      ASSERT_EQ(log_.published[i], sum) << i;
    }
  }
  // Two inputs, two finals that are told by their place.
  ASSERT_EQ(transport_.sends.size(), 4u);
  EXPECT_EQ(transport_.places.back().at, (GetParam() ? 2000u : 1000u) + kPart);
  const auto finals = executor_.finals();
  ASSERT_EQ(finals.size(), 1u);
  EXPECT_EQ(finals[0].at, kPart);
}

// What was read may have changed by then: nothing of it is published, and this rank's own input stays whole, so that
// the round can be computed again.
TEST_P(Owner, WhatWasLentAndTakenBackIsNotFinal) {
  left_ = 1;
  receive_inputs();
  EXPECT_EQ(executor_.status().code(), Code::kPeerLost) << executor_.status().describe();
  EXPECT_NE(executor_.status().describe().find("has left the generation"), std::string::npos);
  EXPECT_TRUE(log_.pieces.empty());
  EXPECT_EQ(buffer_, before_);
  EXPECT_TRUE(executor_.finals().empty());
}

// Those that have come from a peer's GPU leave the output as it was, and are not reported to stand there; those that
// did not stand come from the log.
TEST_P(Owner, FinalsThatLieOnAPeersGpuGoPastTheOutput) {
  // Its own inputs have left: finals may take their place.
  for (std::size_t i = 0; i < 2; i++) executor_.on_completion(transport_.sends[i], {});
  receive_inputs();
  landing_.brings = true;
  View first = beside(1);
  const std::weak_ptr<const FinalOnGpu> kept = first.beside;
  executor_.on_completion(transport_.receives[1].token, {}, std::move(first));
  executor_.on_completion(transport_.receives[3].token, {}, beside(2));
  ASSERT_EQ(landing_.begun.size(), 2u);
  EXPECT_EQ(landing_.begun[0].at, 0u);
  EXPECT_EQ(landing_.begun[0].count, kPart);
  EXPECT_EQ(landing_.begun[1].at, 2 * kPart);
  EXPECT_TRUE(executor_.awaits_gpu_work());
  EXPECT_EQ(executor_.finals().size(), 1u);
  executor_.on_brought(landing_.begun[1].number + 1, true);
  EXPECT_EQ(executor_.finals().size(), 1u) << "nobody's";
  executor_.on_brought(landing_.begun[0].number, true);
  EXPECT_TRUE(kept.expired());
  EXPECT_TRUE(std::equal(before_.begin(), before_.begin() + kPart, buffer_.begin()));
  EXPECT_EQ(executor_.finals().size(), 1u) << "not in the output";
  EXPECT_EQ(landing_.landed_pieces.size(), 1u);
  executor_.on_brought(landing_.begun[1].number, false);
  EXPECT_FALSE(executor_.awaits_gpu_work());
  EXPECT_EQ(landing_.begun.size(), 2u) << "once";
  EXPECT_TRUE(std::equal(inputs_[2].begin(), inputs_[2].begin() + kPart, buffer_.begin() + 2 * kPart));
  EXPECT_EQ(executor_.finals().size(), 2u);
  EXPECT_EQ(landing_.landed_pieces.size(), 2u);
  ASSERT_TRUE(executor_.status().ok()) << executor_.status().describe();
  for (std::size_t i = 2; i < transport_.sends.size(); i++) executor_.on_completion(transport_.sends[i], {});
  EXPECT_TRUE(executor_.done());
}

// Of an earlier attempt nothing counts that comes later.
TEST_P(Owner, WhatAnInterruptHasCutOffIsBroughtForNobody) {
  // Its own inputs have left: finals may take their place.
  for (std::size_t i = 0; i < 2; i++) executor_.on_completion(transport_.sends[i], {});
  receive_inputs();
  landing_.brings = true;
  executor_.on_completion(transport_.receives[1].token, {}, beside(1));
  ASSERT_EQ(landing_.begun.size(), 1u);
  executor_.abandon();
  executor_.on_brought(landing_.begun[0].number, true);
  executor_.on_brought(landing_.begun[0].number, false);
  EXPECT_TRUE(std::equal(before_.begin(), before_.begin() + kPart, buffer_.begin()));
  EXPECT_TRUE(executor_.finals().empty());
}

TEST_P(Owner, KeepsLentMemoryMappedNoLongerThanTheRound) {
  View view = lent(1);
  const std::weak_ptr<const void> keeper = view.lent;
  executor_.on_completion(transport_.receives[0].token, {}, std::move(view));
  EXPECT_FALSE(keeper.expired());
  executor_.abandon();
  EXPECT_TRUE(keeper.expired());
}

INSTANTIATE_TEST_SUITE_P(Room, Owner, testing::Bool());

}  // namespace
}  // namespace warren::worker
