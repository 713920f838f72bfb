#include "worker/rounds/round_input.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace warren::worker {
namespace {

// An input that comes in pieces of at most 16 bytes.
struct Piecewise final : CallBuffers, BufferStream {
  [[nodiscard]] Status filled() const override { return {}; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override { return {}; }
  [[nodiscard]] BufferStream* stream() override { return this; }

  [[nodiscard]] std::size_t most_bytes(std::int32_t /*size*/) const override { return 16; }
  void order(std::vector<ByteRange> pieces) override { ordered = std::move(pieces); }
  [[nodiscard]] std::size_t arrived() const override { return 0; }
  [[nodiscard]] bool all_arrived() const override { return false; }
  void landed(const ByteRange& /*bytes*/) override {}
  void conclude() override {}
  void give_up() override {}
  [[nodiscard]] bool moves() const override { return false; }
  [[nodiscard]] Result<bool> move() override { return true; }

  std::vector<ByteRange> ordered;
};

struct RoundInputTest : testing::Test {
  RoundInputTest() {
    call.spec.collective = Collective::kAllreduce;
    call.spec.type = DataType::kU32;
    call.spec.input = call.spec.output = values.data();
    call.spec.count = values.size();
  }
  std::array<std::uint32_t, 10> values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  Call call;
  RoundInput input;
};

TEST_F(RoundInputTest, IsKeptWhereTheResultTakesItsPlace) {
  const auto before = values;
  EXPECT_EQ(input.kept(), nullptr);
  ASSERT_TRUE(input.keep(call).ok());
  values.fill(0);
  ASSERT_TRUE(input.keep(call).ok());
  ASSERT_NE(input.kept(), nullptr);
  EXPECT_EQ(std::memcmp(input.kept(), before.data(), sizeof before), 0) << "the copy stays";
  input.forget();
  EXPECT_EQ(input.kept(), nullptr);
}

TEST_F(RoundInputTest, IsNotKeptWhereItStaysWhole) {
  std::array<std::uint32_t, 10> result{};
  call.spec.output = result.data();
  ASSERT_TRUE(input.keep(call).ok());
  EXPECT_EQ(input.kept(), nullptr);
}

TEST_F(RoundInputTest, ComesInPiecesThatCoverIt) {
  auto made = std::make_unique<Piecewise>();
  Piecewise& stream = *made;
  call.buffers = std::move(made);
  input.order(call, {0, 2}, nullptr);
  ASSERT_EQ(stream.ordered.size(), input.pieces().size());
  Ranges all;
  for (std::size_t i = 0; i < stream.ordered.size(); i++) {
    const ByteRange& piece = stream.ordered[i];
    EXPECT_LE(piece.bytes, 16);
    EXPECT_EQ(piece.at, input.pieces()[i].at * sizeof(std::uint32_t));
    all.add(piece.at, piece.at + piece.bytes);
  }
  EXPECT_EQ(all, Ranges(0, sizeof values));
}

TEST_F(RoundInputTest, OfABroadcastIsTheRootsOneBuffer) {
  auto made = std::make_unique<Piecewise>();
  Piecewise& stream = *made;
  call.buffers = std::move(made);
  call.spec.collective = Collective::kBroadcast;
  call.spec.input = nullptr;
  call.spec.root = 1;
  input.order(call, {0, 2}, nullptr);
  EXPECT_TRUE(stream.ordered.empty());
  input.order(call, {1, 2}, nullptr);
  EXPECT_FALSE(stream.ordered.empty());
}

}  // namespace
}  // namespace warren::worker
