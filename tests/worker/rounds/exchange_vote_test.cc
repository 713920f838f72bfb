#include "worker/rounds/exchange_vote.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace warren::worker {
namespace {

// Carries nothing: it says whether it could.
struct Carrier final : GpuExchange {
  void open(Generation /*generation*/, std::int32_t /*rank*/, std::int32_t /*size*/) override {}
  void close() override {}
  [[nodiscard]] std::uint64_t least_bytes() const override { return 64; }
  [[nodiscard]] bool serves(DataType type, ReduceOp /*op*/, std::int32_t /*size*/) const override {
    return type == DataType::kF32;
  }
  [[nodiscard]] std::shared_ptr<std::byte> take_scratch(std::uint64_t /*bytes*/, std::uint64_t /*piece*/) override {
    return room ? std::shared_ptr<std::byte>(new std::byte[1], std::default_delete<std::byte[]>()) : nullptr;
  }
  [[nodiscard]] bool ready() const override { return true; }
  [[nodiscard]] Word word(bool could) override { return {could, true, std::nullopt}; }
  void heard(std::span<const Word> words) override { told.assign(words.begin(), words.end()); }
  void proved() override {}
  void distrust(const std::string& /*why*/) override {}
  [[nodiscard]] std::uint64_t begin(Turn /*turn*/) override { return 0; }
  [[nodiscard]] bool busy() const override { return false; }
  [[nodiscard]] std::optional<Done> take_done() override { return std::nullopt; }

  bool room = true;
  std::vector<Word> told;
};

// Buffers on a GPU.
struct OnAGpu final : CallBuffers, BufferStream {
  [[nodiscard]] Status filled() const override { return {}; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override { return {}; }
  [[nodiscard]] BufferStream* stream() override { return this; }

  [[nodiscard]] std::size_t most_bytes(std::int32_t /*size*/) const override { return 4096; }
  void order(std::vector<ByteRange> /*pieces*/) override {}
  [[nodiscard]] const std::byte* lendable() const override { return &memory; }
  [[nodiscard]] bool lend() override { return stays_there = true; }
  void bring_home() override { stays_there = false; }
  [[nodiscard]] std::size_t arrived() const override { return 0; }
  [[nodiscard]] bool all_arrived() const override { return true; }
  void landed(const ByteRange& /*bytes*/) override {}
  void conclude() override {}
  void give_up() override {}
  [[nodiscard]] bool moves() const override { return false; }
  [[nodiscard]] Result<bool> move() override { return true; }

  std::byte memory{};
  bool stays_there = false;
};

class Vote : public testing::Test {
 protected:
  Vote() {
    plan_.generation = Generation(1);
    plan_.self = Rank(0);
    plan_.world_size = 2;
    plan_.chunk_bytes = std::uint64_t{1} << 20;
    plan_.replicas = 2;
    plan_.present = {Rank(0), Rank(1)};
    plan_.hosts = plan_.domains = {0, 1};
    plan_.shared = {{.gpus = true}, {.gpus = true}};
    seats_.place(nullptr);
    call_.spec.collective = Collective::kAllreduce;
    call_.spec.type = DataType::kF32;
    call_.spec.op = ReduceOp::kSum;
    call_.spec.count = std::uint64_t{1} << 20;
    call_.reducer = Reducer::make(DataType::kF32, ReduceOp::kSum, 2).value();
    call_.fingerprint = fingerprint_of(call_.spec, static_cast<std::uint8_t>(schedule::Algorithm::kRing));
    auto buffers = std::make_unique<OnAGpu>();
    buffers_ = buffers.get();
    call_.buffers = std::move(buffers);
  }
  // Both ranks' words come, the other one's being this.
  [[nodiscard]] Result<bool> hear(bool could, bool other_could) {
    const Round round = vote_.ask(call_, seats_, Generation(1), could);
    EXPECT_EQ(round.schedule->schedule().size, 2);
    const auto own = GpuExchange::encode({could, true, std::nullopt});
    EXPECT_TRUE(std::ranges::equal(own, std::span(round.input, own.size())));
    std::ranges::copy(own, round.output);
    std::ranges::copy(GpuExchange::encode({other_could, true, std::nullopt}), round.output + own.size());
    return vote_.hear(call_, seats_.members(), Generation(1));
  }

  RoundsPlan plan_;
  schedule::Costs costs_ = schedule::default_costs();
  GroupSchedules seats_{plan_, costs_, {Rank(0), Rank(1)}, 0};
  Carrier carrier_;
  ExchangeVote vote_{&carrier_};
  Call call_;
  OnAGpu* buffers_ = nullptr;
};

TEST_F(Vote, ServesLargeSumsThatGpusCanCombine) {
  EXPECT_EQ(vote_.serves(call_, seats_), schedule::can_exchange(seats_.request_for(call_)));
  call_.spec.type = DataType::kF64;
  EXPECT_FALSE(vote_.serves(call_, seats_));
  call_.spec.type = DataType::kF32;
  call_.spec.count = 16;
  EXPECT_FALSE(vote_.serves(call_, seats_)) << "no more than the least";
  call_.spec.count = std::uint64_t{1} << 20;
  call_.spec.parts = 1;
  EXPECT_FALSE(vote_.serves(call_, seats_)) << "a batch";
  EXPECT_FALSE(ExchangeVote(nullptr).serves(call_, seats_));
}

TEST_F(Vote, AllDoWhereAllCould) {
  ASSERT_TRUE(vote_.could(call_, seats_, true));
  EXPECT_TRUE(buffers_->stays_there);
  const auto all = hear(true, true);
  ASSERT_TRUE(all.ok() && all.value());
  EXPECT_TRUE(vote_.agreed() && !vote_.comes_home());
  EXPECT_EQ(call_.schedule.get(), vote_.schedule());
  EXPECT_EQ(carrier_.told.size(), 2);
  EXPECT_NE(vote_.take_scratch(), nullptr);
}

TEST_F(Vote, NoneDoesWhereOneCouldNot) {
  ASSERT_TRUE(vote_.could(call_, seats_, true));
  const auto all = hear(true, false);
  ASSERT_TRUE(all.ok() && !all.value());
  EXPECT_TRUE(vote_.agreed() && vote_.comes_home());
  EXPECT_FALSE(buffers_->stays_there) << "the input goes where it would have gone";
  EXPECT_EQ(call_.schedule, nullptr);
  EXPECT_EQ(vote_.take_scratch(), nullptr);
}

TEST_F(Vote, ARankIsAskedOnce) {
  carrier_.room = false;
  EXPECT_FALSE(vote_.could(call_, seats_, true));
  carrier_.room = true;
  EXPECT_FALSE(vote_.could(call_, seats_, true));
  vote_.forget();
  EXPECT_FALSE(vote_.could(call_, seats_, false)) << "something of the round speaks against it";
  vote_.forget();
  EXPECT_TRUE(vote_.could(call_, seats_, true));
}

TEST_F(Vote, WhatIsNoWordNamesItsRank) {
  const Round round = vote_.ask(call_, seats_, Generation(1), false);
  std::fill_n(round.output + GpuExchange::Word::kBytes, GpuExchange::Word::kBytes, std::byte{255});
  const auto all = vote_.hear(call_, seats_.members(), Generation(1));
  ASSERT_FALSE(all.ok());
  EXPECT_EQ(all.status().code(), Code::kCorrupt);
  EXPECT_EQ(all.status().peer(), Rank(1));
  EXPECT_FALSE(vote_.agreed());
}

}  // namespace
}  // namespace warren::worker
