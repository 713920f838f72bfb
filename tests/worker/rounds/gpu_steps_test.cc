#include "worker/rounds/gpu_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "tests/worker/rounds/scripted_round.h"

namespace warren::worker {
namespace {

// The test carries out this work when it likes.
class Deferred final : public GpuWork {
 public:
  std::uint64_t begin(Work work) override {
    works.push_back(std::move(work));
    return works.size();
  }
  [[nodiscard]] bool busy() const override { return false; }
  std::optional<Done> take_done() override { return std::nullopt; }
  std::vector<Work> works;
};

// Rank 1 of a ring, whose input lies at addresses that the CPU cannot follow, and so may what others lend.
class OnGpu : public ::testing::Test {
 protected:
  static constexpr std::uint64_t kPart = 16;  // a rank's segment
  // What starts the executor then. `hosts`: of all ranks.
  void begin_round(DataType type, const std::vector<std::uint32_t>& hosts, std::byte* output) {
    schedule::Request request;
    request.collective = collective_;
    request.algorithm =
        collective_ == Collective::kAllgather ? schedule::Algorithm::kDirect : schedule::Algorithm::kRing;
    request.rank = 1;
    request.size = static_cast<std::int32_t>(hosts.size());
    request.chunk_elements = hosts.size() * kPart;
    request.count = collective_ == Collective::kAllreduce ? request.chunk_elements : kPart;
    request.replicas = 2;
    request.hosts = hosts;
    request.domains = hosts;
    request.element_bytes = schedule::kWholeBytes;
    prepared_ = std::make_unique<PreparedSchedule>(schedule::make(request).value());
    ASSERT_TRUE(prepared_->lends_all());
    round_.schedule = prepared_.get();
    round_.fingerprint.type = type;
    round_.fingerprint.op = ReduceOp::kSum;
    round_.input = nowhere(1);
    round_.input_on_gpu = true;
    round_.input_keeper = std::make_shared<int>();
    round_.output = output;
    round_.reducer = Reducer::make(type, ReduceOp::kSum, static_cast<std::uint32_t>(hosts.size())).value();
    round_.publisher = &log_;
    round_.gpu_work = &gpu_work_;
  }
  static const std::byte* nowhere(std::size_t rank) { return reinterpret_cast<const std::byte*>(rank << 20); }

  Collective collective_ = Collective::kAllreduce;
  std::unique_ptr<PreparedSchedule> prepared_;
  Scripted transport_;
  ScriptedLog log_;
  Deferred gpu_work_;
  Round round_;
  std::uint64_t left_ = 0;
};

// As above, but inputs lie at addresses that the CPU cannot follow: this rank's own, and that of rank 0. Rank 2's is on
// the CPU where the parameter says so.
class OwnerOnGpu : public OnGpu, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    begin_round(DataType::kI64, {0, 0, 0}, reinterpret_cast<std::byte*>(output_.data()));
    for (std::size_t i = 0; i < kCount; i++) on_cpu_[i] = static_cast<std::int64_t>(10'000 + i);
    executor_.start(round_);
    ASSERT_EQ(transport_.receives.size(), 4u);
    ASSERT_EQ(transport_.lent.size(), 2u);
  }
  View lent(std::size_t other) {
    View view;
    const bool on_cpu = other == 2 && GetParam();
    view.there = on_cpu ? reinterpret_cast<const std::byte*>(&on_cpu_[kPart]) : nowhere(other) + kPart * 8;
    view.on_gpu = !on_cpu;
    view.stamp = &left_;
    view.lent = std::make_shared<int>();
    return view;
  }
  void receive_inputs() {
    executor_.on_completion(transport_.receives[0].token, {}, lent(0));
    EXPECT_TRUE(gpu_work_.works.empty()) << "one input is still to come";
    executor_.on_completion(transport_.receives[2].token, {}, lent(2));
  }
  // What became of it: the sum, or the inputs that were not there.
  [[nodiscard]] GpuWork::Done done(std::uint64_t id = 1) const {
    GpuWork::Done done;
    done.id = id;
    if (!GetParam()) {
      done.made = reinterpret_cast<const std::byte*>(made_.data());
      return done;
    }
    for (const GpuWork::Operand& operand : gpu_work_.works[0].operands) {
      done.operands.push_back(operand.on_gpu ? reinterpret_cast<const std::byte*>(made_.data()) : nullptr);
    }
    return done;
  }

  Executor executor_{transport_, &transport_, kWorldGroup, {Rank(0), Rank(1), Rank(2)}, 0, nullptr};
  std::vector<std::int64_t> on_cpu_ = std::vector<std::int64_t>(kCount);
  std::vector<std::int64_t> made_ = std::vector<std::int64_t>(kPart, 7);
  std::vector<std::int64_t> output_ = std::vector<std::int64_t>(3 * kPart, -1);
};

TEST_P(OwnerOnGpu, MakesItsFinalWhenThatWasCarriedOutElsewhere) {
  // Where the others' pieces of it lie.
  EXPECT_EQ(transport_.lent[0].data(), nowhere(1));
  EXPECT_EQ(transport_.lent[1].data(), nowhere(1) + 2 * kPart * 8);
  receive_inputs();
  ASSERT_EQ(gpu_work_.works.size(), 1u);
  const GpuWork::Work& work = gpu_work_.works[0];
  // The ring's order begins after the owner.
  ASSERT_EQ(work.operands.size(), 3u);
  EXPECT_EQ(work.operands[0].on_gpu, !GetParam());
  EXPECT_EQ(work.operands[1].at, nowhere(0) + kPart * 8);
  EXPECT_EQ(work.operands[2].at, nowhere(1) + kPart * 8);
  EXPECT_TRUE(work.operands[1].keeper != nullptr && work.operands[2].keeper == round_.input_keeper);
  EXPECT_EQ(work.bytes, kPart * 8);
  EXPECT_TRUE(executor_.awaits_gpu_work());
  EXPECT_TRUE(executor_.waiting_for(8).empty()) << "others wait for this rank";
  EXPECT_TRUE(log_.pieces.empty() && executor_.finals().empty());
  EXPECT_FALSE(executor_.on_done(done(2))) << "somebody else's";
  EXPECT_TRUE(executor_.on_done(done()));
  ASSERT_TRUE(executor_.status().ok()) << executor_.status().describe();
  EXPECT_FALSE(executor_.awaits_gpu_work());
  EXPECT_FALSE(executor_.on_done(done())) << "once";
  ASSERT_EQ(log_.pieces.size(), 1u);
  EXPECT_EQ(log_.pieces[0], std::pair(kPart, kPart));
  EXPECT_EQ(executor_.finals().size(), 1u);
  EXPECT_EQ(transport_.sends.size(), 4u) << "it goes to both";
  for (std::size_t i = 0; i < kPart; i++) {
    ASSERT_EQ(output_[kPart + i], GetParam() ? 14 + on_cpu_[kPart + i] : 7) << i;
  }
}

TEST_P(OwnerOnGpu, WhatWasLentAndTakenBackMeanwhileIsNotFinal) {
  receive_inputs();
  left_ = 1;
  EXPECT_TRUE(executor_.on_done(done()));
  EXPECT_EQ(executor_.status().code(), Code::kPeerLost) << executor_.status().describe();
  EXPECT_TRUE(log_.pieces.empty() && executor_.finals().empty());
  EXPECT_EQ(output_, std::vector<std::int64_t>(3 * kPart, -1));
}

// It goes on elsewhere, with all that it reads; nothing of it counts in a later attempt.
TEST_P(OwnerOnGpu, WhatAnInterruptHasCutOffIsNobodys) {
  receive_inputs();
  executor_.abandon();
  EXPECT_FALSE(executor_.awaits_gpu_work());
  EXPECT_EQ(gpu_work_.works[0].operands[1].keeper.use_count(), 1);
  EXPECT_FALSE(executor_.on_done(done()));
  EXPECT_TRUE(log_.pieces.empty());
  // The next one may be carried out elsewhere too.
  transport_.receives.clear();
  executor_.start(round_);
  EXPECT_FALSE(executor_.on_done(done()));
  executor_.on_completion(transport_.receives[0].token, {}, lent(0));
  executor_.on_completion(transport_.receives[2].token, {}, lent(2));
  ASSERT_EQ(gpu_work_.works.size(), 2u);
  EXPECT_TRUE(executor_.on_done(done(2)));
  EXPECT_EQ(log_.pieces.size(), 1u);
}

TEST_P(OwnerOnGpu, WhatIsDoneInARoundThatHasFailedChangesNothing) {
  receive_inputs();
  executor_.on_completion(transport_.receives[1].token, Status(Code::kPeerLost, "gone"));
  EXPECT_TRUE(executor_.on_done(done()));
  EXPECT_TRUE(log_.pieces.empty());
  EXPECT_EQ(output_, std::vector<std::int64_t>(3 * kPart, -1));
}

// What was made on the GPU comes to the program's buffer there, past the output on the CPU. Sends do not wait for that,
// and the round's end does.
class OwnFinal : public OwnerOnGpu {
 protected:
  void SetUp() override {
    round_.landing = &landing_;
    landing_.brings = true;
    OwnerOnGpu::SetUp();
    receive_inputs();
    GpuWork::Done done = this->done();
    done.here = std::make_shared<const FinalOnGpu>();
    done.memory = pinned_;
    EXPECT_TRUE(executor_.on_done(done));
    ASSERT_TRUE(executor_.status().ok()) << executor_.status().describe();
    ASSERT_EQ(landing_.begun.size(), 1u);
  }
  // All but the own final.
  void go_on() {
    for (const std::uint64_t send : transport_.sends) executor_.on_completion(send, {});
    for (const std::size_t i : {1u, 3u}) {
      View view;
      view.there = reinterpret_cast<const std::byte*>(on_cpu_.data());
      view.stamp = &left_;
      executor_.on_completion(transport_.receives[i].token, {}, std::move(view));
    }
  }
  Bringer landing_;
  std::shared_ptr<int> pinned_ = std::make_shared<int>();
};

TEST_P(OwnFinal, GoesPastTheOutput) {
  EXPECT_EQ(landing_.begun[0].at, kPart);
  EXPECT_EQ(landing_.begun[0].count, kPart);
  EXPECT_EQ(transport_.sends.size(), 4u) << "it goes to both";
  EXPECT_EQ(log_.pieces.size(), 1u);
  EXPECT_TRUE(executor_.finals().empty()) << "not in the output";
  EXPECT_TRUE(executor_.awaits_gpu_work());
  // Who sends what cannot be told by its place reads it where it came to the CPU.
  ASSERT_EQ(transport_.logged.size(), 2u);
  for (const auto& payload : transport_.logged) EXPECT_EQ(payload.data(), reinterpret_cast<std::byte*>(made_.data()));
  go_on();
  EXPECT_FALSE(executor_.done());
  executor_.on_brought(landing_.begun[0].number, true);
  EXPECT_TRUE(executor_.done());
  EXPECT_EQ(pinned_.use_count(), 1);
  EXPECT_EQ(output_[kPart], -1);
  for (const Bringer::Piece& piece : landing_.landed_pieces) EXPECT_NE(piece.at, kPart);
}

TEST_P(OwnFinal, ThatDidNotStandComesFromTheCpu) {
  executor_.on_brought(landing_.begun[0].number, false);
  EXPECT_FALSE(executor_.awaits_gpu_work());
  EXPECT_EQ(output_[kPart], 7);
  EXPECT_EQ(executor_.finals().size(), 1u);
  ASSERT_EQ(landing_.landed_pieces.size(), 1u);
  EXPECT_EQ(landing_.landed_pieces[0].at, kPart);
  EXPECT_FALSE(executor_.done());
  go_on();
  EXPECT_TRUE(executor_.done());
}

TEST_P(OwnFinal, OfAnEarlierAttemptIsNobodys) {
  executor_.abandon();
  EXPECT_EQ(pinned_.use_count(), 1);
  executor_.on_brought(landing_.begun[0].number, false);
  EXPECT_EQ(output_[kPart], -1);
  EXPECT_TRUE(executor_.finals().empty());
}

INSTANTIATE_TEST_SUITE_P(All, OwnFinal, testing::Values(false));

// A peer that is wrong must not make this process read what it cannot.
TEST_P(OwnerOnGpu, MemoryOfAGpuWhereTheCpuMustReadEndsTheRound) {
  View view;
  view.there = nowhere(0);
  view.on_gpu = true;
  view.stamp = &left_;
  executor_.on_completion(transport_.receives[1].token, {}, view);
  EXPECT_EQ(executor_.status().code(), Code::kPeerLost);
  EXPECT_NE(executor_.status().describe().find("memory of a GPU"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Mixed, OwnerOnGpu, testing::Bool());

// Rank 1 of a ring of four, of which it has rank 0 beside it; what comes from the other host the CPU has.
class LeaderOnGpu : public OnGpu {
 protected:
  static constexpr std::size_t kValues = kPart * 2, kPartials = kPart * 4;  // bytes
  void SetUp() override {
    begin_round(DataType::kBF16, {0, 0, 1, 1}, output_.data());
    executor_.start(round_);
  }
  [[nodiscard]] const schedule::Step& step(Token token) const {
    return prepared_->schedule().steps[static_cast<std::uint32_t>(token)];
  }
  [[nodiscard]] Token receive(std::int32_t peer, std::uint32_t message) const {
    for (const Scripted::Receive& receive : transport_.receives) {
      if (step(receive.token).peer == peer && step(receive.token).message == message) return receive.token;
    }
    ADD_FAILURE() << "nothing is received from rank " << peer;
    return 0;
  }
  // Of rank 0's input: for rank 3's segment, which begins on this host, and then for this rank's own.
  [[nodiscard]] Token input_of_mate(std::int32_t owner) const { return receive(0, owner == 3 ? 0 : 1); }
  View lent(std::int32_t owner) {
    View view;
    view.there = nowhere(0) + static_cast<std::size_t>(owner) * kValues;
    view.on_gpu = true;
    view.stamp = &left_;
    view.lent = std::make_shared<int>();
    return view;
  }
  [[nodiscard]] GpuWork::Done made(std::uint64_t id, const void* at) const {
    GpuWork::Done done;
    done.id = id;
    done.made = static_cast<const std::byte*>(at);
    return done;
  }

  Executor executor_{transport_, &transport_, kWorldGroup, {Rank(0), Rank(1), Rank(2), Rank(3)}, 0, nullptr};
  std::vector<std::byte> made_ = std::vector<std::byte>(kPartials, std::byte{7});
  std::vector<std::byte> output_ = std::vector<std::byte>(4 * kValues, std::byte{0xff});
};

// Rank 1 of three on a host.
class PartOnGpu : public OnGpu {
 protected:
  void begin(Collective collective, std::size_t parts) {
    collective_ = collective;
    output_.assign(parts * kPart, -1);
    begin_round(DataType::kI64, {0, 0, 0}, reinterpret_cast<std::byte*>(output_.data()));
    executor_.start(round_);
  }
  Executor executor_{transport_, &transport_, kWorldGroup, {Rank(0), Rank(1), Rank(2)}, 0, nullptr};
  const std::vector<std::int64_t> made_ = std::vector<std::int64_t>(kPart, 7);
  std::vector<std::int64_t> output_;
};

// Of an allgather: all others get it from this rank.
TEST_F(PartOnGpu, OfAResultIsCopiedToWhereOthersReadIt) {
  for (const bool has_room : {true, false}) {
    begin(Collective::kAllgather, 3);
    EXPECT_TRUE(std::ranges::equal(prepared_->readers(), std::vector<std::int32_t>{0, 2}));
    const GpuWork::Work& work = gpu_work_.works.back();
    const std::uint64_t id = gpu_work_.works.size();
    ASSERT_EQ(work.operands.size(), 1u);
    EXPECT_TRUE(work.copies && work.operands[0].on_gpu && work.operands[0].at == nowhere(1));
    EXPECT_EQ(work.operands[0].keeper, round_.input_keeper);
    EXPECT_EQ(work.made_bytes, kPart * 8);
    EXPECT_TRUE(transport_.sends.empty() && log_.pieces.empty()) << "it is not published yet";
    GpuWork::Done done;
    done.id = id;
    const auto* const at = reinterpret_cast<const std::byte*>(made_.data());
    if (has_room) {
      done.made = at;
      done.on_gpu = {nowhere(9), 5};
    } else {
      done.operands = {at};
    }
    EXPECT_TRUE(executor_.on_done(done));
    ASSERT_TRUE(executor_.status().ok()) << executor_.status().describe();
    EXPECT_EQ(log_.pieces, (decltype(log_.pieces){{kPart, kPart}})) << "once";
    EXPECT_EQ(transport_.sends.size(), 2u);
    EXPECT_EQ(transport_.numbers, std::vector<std::uint64_t>(has_room ? 2 : 0, 5));
    for (std::size_t i = 0; i < output_.size(); i++) EXPECT_EQ(output_[i], i / kPart == 1 ? 7 : -1) << i;
    EXPECT_EQ(executor_.finals().size(), 1u);
    executor_.abandon();
    transport_.sends.clear(), transport_.numbers.clear(), log_.pieces.clear();
  }
}

// Of a reduce_scatter it is combined by its owner, who alone gets it.
TEST_F(PartOnGpu, ThatIsScatteredIsLentToItsOwner) {
  begin(Collective::kReduceScatter, 1);
  EXPECT_TRUE(std::ranges::equal(prepared_->readers(), std::vector<std::int32_t>{0, 2}));
  ASSERT_EQ(transport_.lent.size(), 2u);
  EXPECT_EQ(transport_.lent[0].data(), nowhere(1));
  EXPECT_EQ(transport_.lent[1].data(), nowhere(1) + 2 * kPart * 8);
  for (const Scripted::Receive& receive : std::vector(transport_.receives)) {
    const std::int32_t peer = prepared_->schedule().steps[static_cast<std::uint32_t>(receive.token)].peer;
    if (receive.payload.empty()) continue;
    View view;
    view.there = nowhere(static_cast<std::size_t>(peer)) + kPart * 8;
    view.on_gpu = true;
    view.stamp = &left_;
    view.lent = std::make_shared<int>();
    executor_.on_completion(receive.token, {}, view);
  }
  ASSERT_EQ(gpu_work_.works.size(), 1u);
  EXPECT_EQ(gpu_work_.works[0].operands.size(), 3u);
  GpuWork::Done done;
  done.id = 1;
  done.made = reinterpret_cast<const std::byte*>(made_.data());
  EXPECT_TRUE(executor_.on_done(done));
  EXPECT_EQ(log_.pieces, (decltype(log_.pieces){{kPart, kPart}}));
  EXPECT_EQ(output_, made_);
}

// Rank 1 of four, three of which are on its host. What comes from the other host comes to it first.
class HandsOnGpu : public OnGpu {
 protected:
  void begin(bool wanted_on_gpu) {
    collective_ = Collective::kAllgather;
    begin_round(DataType::kI64, {1, 0, 0, 0}, reinterpret_cast<std::byte*>(output_.data()));
    if (wanted_on_gpu) round_.output_keeper = std::make_shared<int>();
    executor_.start(round_);
    ASSERT_EQ(gpu_work_.works.size(), 1u) << "its own part";
    GpuWork::Done done;
    done.id = 1;
    done.made = reinterpret_cast<const std::byte*>(own_.data());
    EXPECT_TRUE(executor_.on_done(done));
    EXPECT_EQ(transport_.sends.size(), 3u);
    transport_.sends.clear();
    log_.pieces.clear();
    for (const Scripted::Receive& receive : std::vector(transport_.receives)) {
      if (prepared_->schedule().steps[static_cast<std::uint32_t>(receive.token)].peer != 0) continue;
      std::fill_n(reinterpret_cast<std::int64_t*>(receive.payload.data()), kPart, 7);
      executor_.on_completion(receive.token, {});
    }
    EXPECT_EQ(log_.pieces, (decltype(log_.pieces){{0, kPart}}));
    EXPECT_EQ(output_[kPart - 1], 7);
  }
  [[nodiscard]] std::vector<std::int32_t> told() const {
    std::vector<std::int32_t> peers;
    for (const Token token : transport_.sends) {
      peers.push_back(prepared_->schedule().steps[static_cast<std::uint32_t>(token)].peer);
    }
    std::ranges::sort(peers);
    return peers;
  }
  Executor executor_{transport_, &transport_, kWorldGroup, {Rank(0), Rank(1), Rank(2), Rank(3)}, 0, nullptr};
  const std::vector<std::int64_t> own_ = std::vector<std::int64_t>(kPart, 8);
  std::vector<std::int64_t> output_ = std::vector<std::int64_t>(4 * kPart, -1);
};

TEST_F(HandsOnGpu, AFinalFromAnotherHostLiesThereBeforeItsMatesAreTold) {
  begin(true);
  EXPECT_TRUE(told().empty());
  ASSERT_EQ(gpu_work_.works.size(), 2u) << "once for both";
  const GpuWork::Work& work = gpu_work_.works[1];
  ASSERT_EQ(work.operands.size(), 1u);
  EXPECT_TRUE(work.copies && !work.operands[0].on_gpu);
  EXPECT_EQ(work.operands[0].at, round_.output);
  EXPECT_EQ(work.operands[0].keeper, round_.output_keeper);
  EXPECT_EQ(work.made_bytes, kPart * 8);
  EXPECT_TRUE(executor_.awaits_gpu_work());
  GpuWork::Done done;
  done.id = 2;
  done.on_gpu = {nowhere(9), 5};
  EXPECT_TRUE(executor_.on_done(done));
  EXPECT_EQ(told(), (std::vector<std::int32_t>{2, 3}));
  EXPECT_EQ(transport_.numbers, (std::vector<std::uint64_t>{5, 5}));
  EXPECT_FALSE(executor_.on_done(done)) << "once";
  EXPECT_EQ(told().size(), 2u);
}

TEST_F(HandsOnGpu, WhereThereIsNoRoomItIsInTheLog) {
  begin(true);
  GpuWork::Done done;
  done.id = 2;
  EXPECT_TRUE(executor_.on_done(done));
  EXPECT_EQ(told(), (std::vector<std::int32_t>{2, 3}));
  EXPECT_TRUE(transport_.numbers.empty());
}

TEST_F(HandsOnGpu, WhoseOutputIsNotOnOneTellsThemAtOnce) {
  begin(false);
  EXPECT_EQ(gpu_work_.works.size(), 1u);
  EXPECT_EQ(told(), (std::vector<std::int32_t>{2, 3}));
}

TEST_F(HandsOnGpu, WhatAnInterruptHasCutOffIsNobodys) {
  begin(true);
  const std::weak_ptr<const void> kept = round_.output_keeper;
  executor_.abandon();
  round_.output_keeper.reset();
  EXPECT_FALSE(kept.expired()) << "the GPU may read it";
  GpuWork::Done done;
  done.id = 2;
  EXPECT_FALSE(executor_.on_done(done));
  gpu_work_.works.clear();
  EXPECT_TRUE(kept.expired());
  EXPECT_TRUE(told().empty());
}

TEST_F(HandsOnGpu, WhatIsDoneInARoundThatHasFailedTellsNobody) {
  begin(true);
  for (const Scripted::Receive& receive : std::vector(transport_.receives)) {
    const std::int32_t peer = prepared_->schedule().steps[static_cast<std::uint32_t>(receive.token)].peer;
    if (peer == 2) executor_.on_completion(receive.token, Status(Code::kPeerLost, "gone"));
  }
  GpuWork::Done done;
  done.id = 2;
  EXPECT_TRUE(executor_.on_done(done));
  EXPECT_TRUE(told().empty());
}

// Rank 0's segment begins with this input, and goes on at the other host.
TEST_F(LeaderOnGpu, WhatIsSentToAnotherHostComesToTheCpuBefore) {
  ASSERT_EQ(gpu_work_.works.size(), 1u);
  EXPECT_TRUE(transport_.plain.empty());
  ASSERT_EQ(transport_.lent.size(), 1u) << "what its mate reads goes at once";
  const GpuWork::Work& work = gpu_work_.works[0];
  ASSERT_EQ(work.operands.size(), 1u);
  EXPECT_TRUE(work.operands[0].on_gpu && work.operands[0].at == nowhere(1));
  EXPECT_EQ(work.operands[0].keeper, round_.input_keeper);
  EXPECT_EQ(work.bytes, kValues);
  EXPECT_TRUE(executor_.awaits_gpu_work());
  GpuWork::Done done;
  done.id = 1;
  done.operands = {made_.data()};
  done.memory = std::make_shared<int>();
  const std::weak_ptr<const void> memory = done.memory;
  EXPECT_TRUE(executor_.on_done(done));
  done.memory.reset();
  EXPECT_FALSE(executor_.awaits_gpu_work());
  ASSERT_EQ(transport_.plain.size(), 1u);
  const auto& [token, payload] = *transport_.plain.begin();
  EXPECT_EQ(step(token).peer, 2);
  EXPECT_EQ(payload.data(), made_.data());
  EXPECT_EQ(payload.size(), kValues);
  EXPECT_FALSE(memory.expired()) << "it is being sent";
  executor_.on_completion(token, {});
  EXPECT_TRUE(memory.expired());
}

// Rank 1's segment ends here: after what the other host has made of its inputs.
TEST_F(LeaderOnGpu, AFinalBeginsWithWhatCameFromAnotherHost) {
  const Token partial = receive(3, 0);
  ASSERT_EQ(step(partial).dst.form, Form::kPartial);
  std::byte* const at = std::ranges::find(transport_.receives, partial, &Scripted::Receive::token)->payload.data();
  for (std::size_t i = 0; i < kPartials; i++) at[i] = static_cast<std::byte>(100 + i);
  executor_.on_completion(partial, {});
  executor_.on_completion(input_of_mate(1), {}, lent(1));
  const auto final = std::ranges::find_if(gpu_work_.works, [](const auto& work) { return work.operands.size() == 3; });
  ASSERT_NE(final, gpu_work_.works.end());
  EXPECT_EQ(final->first_form, Form::kPartial);
  EXPECT_EQ(final->made_form, Form::kValue);
  EXPECT_EQ(final->first_bytes, kPartials);
  EXPECT_EQ(final->bytes, kValues);
  EXPECT_EQ(final->made_bytes, kValues);
  EXPECT_FALSE(final->operands[0].on_gpu);
  ASSERT_NE(final->operands[0].at, nullptr);
  EXPECT_NE(final->operands[0].at, at) << "the next round may use that again while this is read";
  EXPECT_EQ(std::memcmp(final->operands[0].at, at, kPartials), 0);
  EXPECT_TRUE(final->operands[1].on_gpu && final->operands[2].at == nowhere(1) + kValues);
  EXPECT_TRUE(executor_.on_done(made(static_cast<std::uint64_t>(final - gpu_work_.works.begin()) + 1, made_.data())));
  ASSERT_EQ(log_.pieces.size(), 1u);
  EXPECT_EQ(log_.pieces[0], std::pair(kPart, kPart));
  EXPECT_EQ(output_[kValues - 1], std::byte{0xff});
  EXPECT_EQ(std::memcmp(&output_[kValues], made_.data(), kValues), 0);
  EXPECT_EQ(output_[2 * kValues], std::byte{0xff});
}

// A peer of this host could send it: no kernel reads those there.
TEST_F(LeaderOnGpu, APartialResultOnAGpuEndsTheRound) {
  View view;
  view.there = nowhere(3);
  view.on_gpu = true;
  view.stamp = &left_;
  executor_.on_completion(receive(3, 0), {}, view);
  EXPECT_EQ(executor_.status().code(), Code::kPeerLost);
  EXPECT_NE(executor_.status().describe().find("memory of a GPU"), std::string::npos);
}

// Of rank 3's segment this host has the first two, which are lost with the one who lends.
TEST_F(LeaderOnGpu, APartialResultGoesOnFromTheCpu) {
  for (const bool stands : {true, false}) {
    if (!stands) {
      executor_.abandon();
      transport_.receives.clear();
      gpu_work_.works.clear();
      executor_.start(round_);
    }
    const std::size_t sent = transport_.plain.size();
    executor_.on_completion(input_of_mate(3), {}, lent(3));
    const auto sum = std::ranges::find_if(gpu_work_.works, [](const auto& work) { return work.operands.size() == 2; });
    ASSERT_NE(sum, gpu_work_.works.end());
    EXPECT_EQ(sum->made_form, Form::kPartial);
    EXPECT_EQ(sum->made_bytes, kPartials);
    EXPECT_EQ(sum->bytes, kValues);
    EXPECT_TRUE(sum->operands[0].on_gpu && sum->operands[1].on_gpu);
    left_ = stands ? 0 : 1;
    const auto id = static_cast<std::uint64_t>(sum - gpu_work_.works.begin()) + 1;
    EXPECT_TRUE(executor_.on_done(made(id, made_.data())));
    EXPECT_EQ(executor_.status().ok(), stands);
    ASSERT_EQ(transport_.plain.size(), sent + (stands ? 1 : 0));
    if (!stands) continue;
    const auto to_owner =
        std::ranges::find_if(transport_.plain, [&](const auto& s) { return step(s.first).peer == 3; });
    ASSERT_NE(to_owner, transport_.plain.end());
    EXPECT_NE(to_owner->second.data(), made_.data());
    ASSERT_EQ(to_owner->second.size(), kPartials);
    EXPECT_EQ(std::memcmp(to_owner->second.data(), made_.data(), kPartials), 0);
    EXPECT_TRUE(log_.pieces.empty());
  }
}

}  // namespace
}  // namespace warren::worker
