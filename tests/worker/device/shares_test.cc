// Memory of a GPU that ranks read in each other, what is combined there, and inputs that are lent, against the fake
// device with faults in every call.
#include "worker/device/device_shares.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/worker/device/gpu_tests.h"
#include "worker/device/device_combines.h"
#include "worker/device/staging.h"
#include "worker/kernels/reduce.h"

namespace warren::worker {
namespace {

constexpr std::int64_t kShortMs = 150;
// For what is not to wait at all.
constexpr auto kPatience = std::chrono::seconds(10);

std::vector<float> values_of(std::size_t count, int rank) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; i++) {
    values[i] = 1.0f / static_cast<float>(i % 1013 + 3 * static_cast<std::size_t>(rank) + 1);
  }
  return values;
}

// One rank's GPU.
struct OneRank {
  explicit OneRank(std::uint64_t shared = 64 * kMiB, std::uint64_t pinned = 256 * kMiB,
                   std::int64_t stall = kPatienceMs)
      : staging(fake_gpu().table, pinned, 0, shared, stall) {}
  // What it has made, as others are given it.
  DeviceShares::Made make() {
    staging.shares().prepare(0);
    auto news = staging.shares().take_news();
    EXPECT_TRUE(news && news->made && news->trouble.ok());
    return std::move(*news->made);
  }
  Staging staging;
};

class Shares : public ::testing::Test {
 protected:
  ~Shares() override { fake_gpu().controls.release(); }
  const std::size_t before_ = fake_gpu().controls.shared();
};

TEST_F(Shares, AreMadeOnceAndGivenInBlocks) {
  {
    OneRank one(13 * kMiB);
    DeviceShares& shares = one.staging.shares();
    EXPECT_EQ(shares.device(), WARREN_DEVICE_HOST);
    EXPECT_EQ(shares.take(1), nullptr);
    const auto made = one.make();
    EXPECT_TRUE(made.fd.open());
    EXPECT_EQ(made.memory.size(), 14 * kMiB) << "as the device gives it";
    EXPECT_EQ(shares.device(), 0);
    EXPECT_EQ(shares.own_on(0), made.memory.data());
    EXPECT_EQ(shares.own_on(1), nullptr);
    shares.prepare(0);
    shares.prepare(1);
    EXPECT_FALSE(shares.take_news());
    EXPECT_EQ(fake_gpu().controls.shared(), before_ + 1);
    auto first = shares.take(4 * kMiB), second = shares.take(5 * kMiB + 1);
    ASSERT_TRUE(first && second);
    EXPECT_GE(second.get(), first.get() + 4 * kMiB);
    EXPECT_EQ(shares.take(kMiB + kMiB / 2), nullptr) << "what is left is a little less";
    EXPECT_GE(first.get(), made.memory.data() + 3 * kMiB + kMiB / 2) << "a quarter is for results";
    {
      std::uint64_t number = 7;
      const auto result = shares.take_result(3 * kMiB, number);
      EXPECT_EQ(result.get(), made.memory.data());
      EXPECT_EQ(number, 0u);
      EXPECT_EQ(shares.take_result(kMiB, number), nullptr);
      EXPECT_NE(shares.take_result(kMiB / 2, number), nullptr);
      EXPECT_EQ(number, 3 * kMiB);
    }
    EXPECT_EQ(shares.take(UINT64_MAX), nullptr);
    const std::byte* const at = first.get();
    first.reset();
    auto third = shares.take(kMiB), fourth = shares.take(3 * kMiB);
    EXPECT_EQ(third.get(), at);
    EXPECT_EQ(fourth.get(), at + kMiB);
    EXPECT_EQ(shares.take(2 * kMiB), nullptr);
  }
  EXPECT_EQ(fake_gpu().controls.shared(), before_);
}

// Others see that before the GPU is given the memory again; what is still being made is not overtaken.
TEST_F(Shares, ResultsStandUntilTheirPlaceIsUsedAgain) {
  OneRank one(16 * kMiB);
  DeviceShares& shares = one.staging.shares();
  const auto made = one.make();
  const auto* const says = reinterpret_cast<const MadeThere*>(made.page->bytes().data());
  EXPECT_EQ(says->bytes, 4 * kMiB);
  std::uint64_t number = 7;
  EXPECT_EQ(shares.take_result(3 * kMiB, number).get(), made.memory.data());
  EXPECT_EQ(number, 0u);
  EXPECT_EQ(shares.take_result(kMiB, number).get(), made.memory.data() + 3 * kMiB);
  EXPECT_EQ(number, 3 * kMiB);
  EXPECT_EQ(says->first, 0u);
  EXPECT_EQ(shares.take_result(3 * kMiB, number).get(), made.memory.data());
  EXPECT_EQ(number, 4 * kMiB);
  EXPECT_EQ(says->first, 3 * kMiB) << "the first is gone, the second stands";
  // In one piece.
  const auto held = shares.take_result(2 * kMiB, number);
  EXPECT_EQ(held.get(), made.memory.data());
  EXPECT_EQ(number, 8 * kMiB);
  EXPECT_EQ(says->first, 6 * kMiB);
  EXPECT_EQ(shares.take_result(3 * kMiB, number), nullptr);
  EXPECT_EQ(says->first, 6 * kMiB);
  EXPECT_NE(shares.take_result(2 * kMiB, number), nullptr);
  EXPECT_EQ(shares.take_result(5 * kMiB, number), nullptr) << "more than there ever is";
}

TEST_F(Shares, AreNotMadeWhereNobodyWantsThem) {
  OneRank none(0);
  none.staging.shares().prepare(0);
  EXPECT_FALSE(none.staging.shares().take_news());
  EXPECT_FALSE(none.staging.shares().offer(Incarnation(7), 1, OwnedFd(), kMiB));
  EXPECT_EQ(fake_gpu().controls.shared(), before_);
}

TEST_F(Shares, OfOthersAreMappedAndLetGoOf) {
  OneRank one, two;
  const auto made = one.make();
  const int fd = ::dup(made.fd.get());
  ASSERT_TRUE(two.staging.shares().offer(Incarnation(7), 3, OwnedFd(fd), made.memory.size()));
  // And one that is none; and one of a life that is over by then.
  ASSERT_TRUE(two.staging.shares().offer(Incarnation(8), 4, OwnedFd(::dup(0)), 2 * kMiB));
  ASSERT_TRUE(two.staging.shares().offer(Incarnation(9), 5, OwnedFd(::dup(made.fd.get())), made.memory.size()));
  two.staging.shares().keep_offers_of(std::vector{Incarnation(7), Incarnation(8)});
  EXPECT_FALSE(two.staging.shares().take_news()) << "nobody has used the GPU";
  two.staging.shares().prepare(0);
  auto news = two.staging.shares().take_news();
  ASSERT_TRUE(news);
  ASSERT_EQ(news->answers.size(), 2u);
  ASSERT_TRUE(news->answers[0].mapped);
  EXPECT_EQ(news->answers[0].life, Incarnation(7));
  EXPECT_EQ(news->answers[0].memory, 3u);
  EXPECT_FALSE(news->answers[1].mapped);
  EXPECT_THAT(news->trouble.describe(), HasSubstr("GPU 0 cannot read the memory of another rank's GPU"));
  // It is the same memory.
  const auto block = one.staging.shares().take(64);
  const MappedSegment& mapped = *news->answers[0].mapped;
  const int value = 123;
  int seen = 0;
  fake_gpu().controls.write(block.get(), &value, sizeof value);
  fake_gpu().controls.read(&seen, mapped.bytes.data() + (block.get() - made.memory.data()), sizeof seen);
  EXPECT_EQ(seen, value);
  // The next one that cannot be mapped is not worth a word.
  ASSERT_TRUE(two.staging.shares().offer(Incarnation(8), 6, OwnedFd(::dup(0)), 2 * kMiB));
  two.staging.shares().prepare(0);
  const auto more = two.staging.shares().take_news();
  ASSERT_TRUE(more);
  EXPECT_TRUE(more->trouble.ok());
  EXPECT_EQ(fake_gpu().controls.shared(), before_ + 3);
  EXPECT_FALSE(two.staging.shares().has_gone());
  news.reset();
  EXPECT_EQ(fake_gpu().controls.shared(), before_ + 3) << "that may wait for the GPU";
  EXPECT_TRUE(two.staging.shares().has_gone());
  two.staging.shares().release_gone();
  EXPECT_FALSE(two.staging.shares().has_gone());
  EXPECT_EQ(fake_gpu().controls.shared(), before_ + 2);
}

TEST_F(Shares, OnAGpuThatCannotAreDoneWithout) {
  OneRank one;
  DeviceShares& shares = one.staging.shares();
  ASSERT_TRUE(shares.offer(Incarnation(7), 3, OwnedFd(::dup(0)), kMiB));
  fake_gpu().controls.arm("allocate_shared", 0, FakeFault::kError);
  shares.prepare(0);
  const auto news = shares.take_news();
  ASSERT_TRUE(news);
  EXPECT_FALSE(news->made);
  EXPECT_THAT(news->trouble.describe(), HasSubstr("injected into allocate_shared"));
  ASSERT_EQ(news->answers.size(), 1u);
  EXPECT_FALSE(news->answers[0].mapped);
  EXPECT_EQ(shares.own_on(0), nullptr);
  EXPECT_FALSE(shares.offer(Incarnation(8), 3, OwnedFd(::dup(0)), kMiB));
  shares.prepare(0);
  EXPECT_FALSE(shares.take_news()) << "it is asked once";
}

// A life that is over may leave its memory to those that have it mapped, for a moment: there is room later. What others
// have offered waits for that.
TEST_F(Shares, OnAGpuThatIsFullAreMadeWhenItHasRoom) {
  for (const char* where : {"allocate_shared", "allocate_pinned"}) {
    SCOPED_TRACE(where);
    OneRank one, two;
    const auto made = one.make();
    DeviceShares& shares = two.staging.shares();
    ASSERT_TRUE(shares.offer(Incarnation(7), 3, OwnedFd(::dup(made.fd.get())), made.memory.size()));
    fake_gpu().controls.arm(where, 0, FakeFault::kNoMemory);
    shares.prepare(0);
    auto news = shares.take_news();
    ASSERT_TRUE(news);
    EXPECT_FALSE(news->made);
    EXPECT_TRUE(news->answers.empty());
    EXPECT_THAT(news->trouble.describe(), HasSubstr(std::string("injected into ") + where));
    EXPECT_EQ(shares.own_on(0), nullptr);
    fake_gpu().controls.arm(where, 0, FakeFault::kNoMemory);
    shares.prepare(0);
    EXPECT_FALSE(shares.take_news()) << "once";
    shares.prepare(0);
    news = shares.take_news();
    ASSERT_TRUE(news);
    EXPECT_TRUE(news->made);
    EXPECT_TRUE(news->trouble.ok());
    ASSERT_EQ(news->answers.size(), 1u);
    EXPECT_TRUE(news->answers[0].mapped);
  }
}

TEST_F(Shares, OnAGpuThatStaysFullAreGivenUp) {
  OneRank one;
  DeviceShares& shares = one.staging.shares();
  ASSERT_TRUE(shares.offer(Incarnation(7), 3, OwnedFd(::dup(0)), kMiB));
  const std::uint64_t calls = fake_gpu().controls.calls("allocate_shared");
  int lines = 0;
  std::vector<DeviceShares::Answer> answers;
  for (int i = 0; i < 100; i++) {
    fake_gpu().controls.arm("allocate_shared", 0, FakeFault::kNoMemory);
    shares.prepare(0);
    auto news = shares.take_news();
    if (!news) continue;
    EXPECT_FALSE(news->made);
    if (!news->trouble.ok()) lines++;
    std::ranges::move(news->answers, std::back_inserter(answers));
  }
  fake_gpu().controls.release();
  EXPECT_EQ(lines, 1);
  EXPECT_GT(fake_gpu().controls.calls("allocate_shared"), calls + 1);
  EXPECT_LT(fake_gpu().controls.calls("allocate_shared"), calls + 50);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_FALSE(answers[0].mapped);
  shares.prepare(0);
  EXPECT_FALSE(shares.take_news());
}

// Ranks make theirs at the same time, and offers come meanwhile.
TEST_F(Shares, OfOthersThatAreOfferedWhileTheOwnIsMadeAreMapped) {
  OneRank one, two;
  const auto made = one.make();
  fake_gpu().controls.arm("allocate_shared", 0, FakeFault::kHang);
  const std::uint64_t calls = fake_gpu().controls.calls("allocate_shared");
  std::thread makes([&] { two.staging.shares().prepare(0); });
  while (fake_gpu().controls.calls("allocate_shared") == calls) std::this_thread::yield();
  const bool taken = two.staging.shares().offer(Incarnation(7), 3, OwnedFd(::dup(made.fd.get())), made.memory.size());
  fake_gpu().controls.release();
  makes.join();
  ASSERT_TRUE(taken);
  two.staging.shares().prepare(0);
  const auto news = two.staging.shares().take_news();
  ASSERT_TRUE(news);
  ASSERT_EQ(news->answers.size(), 1u);
  EXPECT_TRUE(news->answers[0].mapped);
}

// ---- what is combined

class Combines : public Shares {
 protected:
  static constexpr std::size_t kCount = 300'007;
  static constexpr std::size_t kBytes = kCount * sizeof(float);
  void make(std::uint64_t shared = 64 * kMiB, std::uint64_t pinned = 256 * kMiB, std::int64_t stall = kPatienceMs) {
    one_ = std::make_unique<OneRank>(shared, pinned, stall);
    (void)one_->make();
    for (int rank = 0; rank < 5; rank++) {
      values_[rank] = values_of(kCount, rank);
      gpu_[rank] = std::make_unique<DeviceArray<float>>(values_[rank]);
    }
  }
  DeviceCombines& combines() { return one_->staging.combines(); }
  // Of five ranks; those in `on_cpu` are not on the GPU.
  GpuWork::Work work(ReduceOp op, Bracketing bracketing, unsigned on_cpu = 0, std::size_t skip = 0) {
    GpuWork::Work work;
    for (unsigned rank = 0; rank < 5; rank++) {
      if ((on_cpu >> rank & 1) != 0) {
        work.operands.emplace_back();
      } else {
        work.operands.push_back({reinterpret_cast<const std::byte*>(gpu_[rank]->data()) + skip, true, keeper_});
      }
    }
    work.op = op;
    work.bracketing = bracketing;
    work.type = DataType::kF32;
    work.count = kCount - 1;
    work.bytes = work.first_bytes = work.made_bytes = work.count * sizeof(float);
    work.contributors = 5;
    return work;
  }
  std::vector<float> by_cpu(ReduceOp op, Bracketing bracketing, const std::vector<const void*>& operands) {
    std::vector<float> out(kCount - 1);
    const Reducer reducer = Reducer::make(DataType::kF32, op, 5).value();
    EXPECT_TRUE(reducer.combine(out.data(), Form::kValue, operands, Form::kValue, bracketing, out.size()).ok());
    return out;
  }
  std::vector<const void*> all() {
    std::vector<const void*> operands;
    for (const auto& values : values_) operands.push_back(values.data());
    return operands;
  }
  Status move_until_done() {
    return move_all(combines(), [&] { return combines().busy(); });
  }
  // Waits for work that the CPU has to combine: kernels have run as often as before.
  GpuWork::Done left_to_the_cpu(const char* kernel, std::uint64_t before) {
    EXPECT_TRUE(move_until_done().ok());
    EXPECT_EQ(fake_gpu().controls.calls(kernel), before);
    auto done = combines().take_done();
    EXPECT_TRUE(done);
    if (!done) return {};
    EXPECT_EQ(done->made, nullptr);
    return std::move(*done);
  }

  std::unique_ptr<OneRank> one_;
  std::vector<float> values_[5];
  std::unique_ptr<DeviceArray<float>> gpu_[5];
  std::shared_ptr<int> keeper_ = std::make_shared<int>();
};

TEST_F(Combines, OnTheGpuGiveTheBitsOfTheCpu) {
  make();
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kAverage, ReduceOp::kProduct}) {
    for (const Bracketing bracketing : {Bracketing::kChain, Bracketing::kBalanced}) {
      const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
      // More than are under way at once.
      std::vector<std::uint64_t> ids;
      for (int i = 0; i < 7; i++) ids.push_back(combines().begin(work(op, bracketing)));
      EXPECT_TRUE(combines().busy());
      EXPECT_FALSE(combines().take_done());
      ASSERT_TRUE(move_until_done().ok());
      EXPECT_EQ(fake_gpu().controls.calls("stream.reduce"), kernels + 7);
      const auto want = by_cpu(op, bracketing, all());
      for (const std::uint64_t id : ids) {
        const auto done = combines().take_done();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->id, id);
        ASSERT_NE(done->made, nullptr);
        std::vector<float> on_gpu(kCount - 1);
        fake_gpu().controls.read(on_gpu.data(), done->on_gpu.at, kBytes - 4);
        EXPECT_EQ(on_gpu, want) << "it stays there for others";
        EXPECT_EQ(std::memcmp(done->made, want.data(), kBytes - 4), 0);
      }
      EXPECT_FALSE(combines().take_done());
      EXPECT_EQ(keeper_.use_count(), 1) << "nothing is kept";
    }
  }
}

// One launch makes what lies side by side in all operands, and each is told by itself. Not where no kernel makes it.
TEST_F(Combines, WhatLiesSideBySideIsOneLaunch) {
  make();
  constexpr std::size_t kPart = 64'000 * sizeof(float);
  const auto part = [&](std::size_t at, std::size_t bytes, ReduceOp op, DataType type) {
    auto one = work(op, Bracketing::kChain, 0, at);
    one.type = type;
    one.bytes = one.first_bytes = one.made_bytes = bytes;
    one.count = bytes / sizeof(float);
    return one;
  };
  const auto want = by_cpu(ReduceOp::kSum, Bracketing::kChain, all());
  for (const DataType type : {DataType::kF32, DataType::kI32}) {
    const bool on_gpu = type == DataType::kF32;
    const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
    const std::uint64_t copies = fake_gpu().controls.calls("stream.to_host");
    const std::pair<std::size_t, std::size_t> parts[] = {
        {0, kPart}, {kPart, kPart}, {2 * kPart, 1'000}, {2 * kPart + 1'000, kPart}, {0, kPart}};
    for (const auto& [at, bytes] : parts) (void)combines().begin(part(at, bytes, ReduceOp::kSum, type));
    (void)combines().begin(part(kPart, kPart, ReduceOp::kMax, type));
    ASSERT_TRUE(move_until_done().ok());
    // The fourth begins where what is made before it is not aligned; the fifth elsewhere; the sixth is something else.
    EXPECT_EQ(fake_gpu().controls.calls("stream.reduce"), kernels + (on_gpu ? 4 : 0));
    EXPECT_EQ(fake_gpu().controls.calls("stream.to_host"), copies + (on_gpu ? 4 : 6 * 5))
        << "nothing is joined for the CPU";
    for (const auto& [at, bytes] : parts) {
      const auto done = combines().take_done();
      ASSERT_TRUE(done);
      if (!on_gpu) {
        ASSERT_EQ(done->operands.size(), 5u);
        for (int rank = 0; rank < 5; rank++) {
          EXPECT_EQ(std::memcmp(done->operands[rank], values_[rank].data() + at / sizeof(float), bytes), 0);
        }
        continue;
      }
      ASSERT_NE(done->made, nullptr);
      EXPECT_EQ(std::memcmp(done->made, want.data() + at / sizeof(float), bytes), 0);
      std::vector<float> there(bytes / sizeof(float));
      fake_gpu().controls.read(there.data(), done->on_gpu.at, bytes);
      EXPECT_EQ(std::memcmp(there.data(), want.data() + at / sizeof(float), bytes), 0);
      ASSERT_NE(done->here, nullptr);
      EXPECT_EQ(done->here->at, done->on_gpu.at);
      EXPECT_TRUE(done->here->stands());
      EXPECT_EQ(done->on_gpu.number % MadeThere::kAlignment, 0u);
    }
    EXPECT_TRUE(combines().take_done());
    EXPECT_FALSE(combines().take_done());
    EXPECT_EQ(keeper_.use_count(), 1) << "nothing is kept";
  }
}

// What is not all on the GPU, what it does not combine, where it has no room, and what lies askew there.
TEST_F(Combines, BringTheOthersToTheCpu) {
  make();
  struct Case {
    ReduceOp op;
    DataType type;
    unsigned on_cpu;
    std::size_t skip;
    bool full;
  };
  for (const Case& c :
       {Case{ReduceOp::kSum, DataType::kF32, 0b01010, 0, false}, Case{ReduceOp::kSum, DataType::kI32, 0, 0, false},
        Case{ReduceOp::kSum, DataType::kF32, 0, 2, false}, Case{ReduceOp::kSum, DataType::kF32, 0, 0, true}}) {
    std::uint64_t number = 0;
    const auto taken = c.full ? one_->staging.shares().take_result(16 * kMiB, number) : nullptr;
    ASSERT_EQ(taken != nullptr, c.full);
    const std::uint64_t kernels = fake_gpu().controls.calls("reduce");
    auto what = work(c.op, Bracketing::kChain, c.on_cpu, c.skip);
    what.type = c.type;
    (void)combines().begin(std::move(what));
    const auto done = left_to_the_cpu("reduce", kernels);
    ASSERT_EQ(done.operands.size(), 5u);
    for (std::size_t rank = 0; rank < 5; rank++) {
      if ((c.on_cpu >> rank & 1) != 0) {
        EXPECT_EQ(done.operands[rank], nullptr);
      } else {
        const auto* from = reinterpret_cast<const std::byte*>(values_[rank].data()) + c.skip;
        EXPECT_EQ(std::memcmp(done.operands[rank], from, kBytes - 4), 0);
      }
    }
  }
}

// What came from another host begins the chain: in the place of what is made of it, or, where that is less wide,
// behind.
TEST_F(Combines, BeginWithWhatCameFromAnotherHost) {
  make();
  const std::vector<float> partial = values_of(2 * kCount, 77);
  std::uint64_t finals = 0;
  struct Forms {
    Form first, made;
  };
  for (const DataType type : {DataType::kF32, DataType::kBF16}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage}) {
      for (const Forms forms : {Forms{Form::kPartial, Form::kValue}, Forms{Form::kPartial, Form::kPartial},
                                Forms{Form::kValue, Form::kPartial}, Forms{Form::kValue, Form::kValue}}) {
        SCOPED_TRACE(testing::Message() << to_string(type) << ' ' << to_string(op) << ' ' << int(forms.first)
                                        << int(forms.made));
        // As values of this type: the bytes are anything.
        const std::uint64_t count = (kCount - 1) * sizeof(float) / element_bytes(type);
        const Reducer reducer = Reducer::make(type, op, 9).value();
        const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
        auto what = work(op, Bracketing::kChain, 1);
        what.type = type;
        what.count = count;
        what.bytes = count * reducer.bytes(Form::kValue);
        what.first_form = forms.first;
        what.first_bytes = count * reducer.bytes(forms.first);
        what.made_form = forms.made;
        what.made_bytes = count * reducer.bytes(forms.made);
        what.contributors = 9;
        what.operands[0] = {reinterpret_cast<const std::byte*>(partial.data()), false, keeper_};
        (void)combines().begin(std::move(what));
        ASSERT_TRUE(move_until_done().ok());
        EXPECT_EQ(fake_gpu().controls.calls("stream.reduce"), kernels + 1);
        const auto done = combines().take_done();
        ASSERT_TRUE(done);
        ASSERT_NE(done->made, nullptr);
        auto operands = all();
        operands[0] = partial.data();
        std::vector<std::byte> want(count * reducer.bytes(forms.made)), there(want.size());
        EXPECT_TRUE(reducer.combine(want.data(), forms.made, operands, forms.first, Bracketing::kChain, count).ok());
        EXPECT_EQ(std::memcmp(done->made, want.data(), want.size()), 0);
        if (forms.made == Form::kPartial) {
          EXPECT_EQ(done->on_gpu.at, nullptr) << "nobody reads it there";
          continue;
        }
        // Nothing but finals has taken a place among those that others read.
        EXPECT_EQ(done->on_gpu.number, finals);
        finals += (want.size() + 255) / 256 * 256;
        fake_gpu().controls.read(there.data(), done->on_gpu.at, there.size());
        EXPECT_EQ(there, want) << "it stays there for others";
      }
    }
  }
  EXPECT_EQ(keeper_.use_count(), 1) << "nothing is kept";
}

// Then the CPU combines, which has it.
TEST_F(Combines, WithoutPinnedMemoryWhatCameFromAnotherHostStaysWhereItIs) {
  make(64 * kMiB, kMiB);
  const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
  auto what = work(ReduceOp::kSum, Bracketing::kChain, 1);
  what.operands[0] = {reinterpret_cast<const std::byte*>(values_[0].data()), false, keeper_};
  (void)combines().begin(std::move(what));
  const auto done = left_to_the_cpu("stream.reduce", kernels);
  ASSERT_EQ(done.operands.size(), 5u);
  EXPECT_EQ(done.operands[0], nullptr);
  for (std::size_t rank = 1; rank < 5; rank++) {
    EXPECT_EQ(std::memcmp(done.operands[rank], values_[rank].data(), kBytes - 4), 0) << rank;
  }
}

// Likewise, where the GPU has no room for what comes, or for what is made of it; nothing of it is held meanwhile.
TEST_F(Combines, WithoutRoomOnTheGpuWhatCameFromAnotherHostStaysWhereItIs) {
  const std::vector<float> partial = values_of(2 * kCount, 77);
  for (const bool result : {false, true}) {
    SCOPED_TRACE(result);
    make(16 * kMiB);
    DeviceShares& shares = one_->staging.shares();
    std::uint64_t number = 0;
    const auto taken = result ? shares.take_result(4 * kMiB, number) : shares.take(11 * kMiB);
    ASSERT_NE(taken, nullptr);
    auto what = work(ReduceOp::kSum, Bracketing::kChain, 1);
    what.type = DataType::kBF16;
    what.count = what.bytes / 2;
    what.first_form = Form::kPartial;
    what.first_bytes = what.count * sizeof(float);
    what.operands[0] = {reinterpret_cast<const std::byte*>(partial.data()), false, keeper_};
    const std::uint64_t kernels = fake_gpu().controls.calls("reduce");
    // It stops at the first copy to the CPU.
    fake_gpu().controls.arm("stream.to_host", 0, FakeFault::kHang);
    (void)combines().begin(std::move(what));
    const std::uint64_t copies = fake_gpu().controls.calls("to_host");
    while (fake_gpu().controls.calls("to_host") == copies) ASSERT_TRUE(combines().move().ok());
    EXPECT_NE(shares.take(result ? 12 * kMiB : kMiB), nullptr);
    fake_gpu().controls.release();
    const auto done = left_to_the_cpu("reduce", kernels);
    ASSERT_EQ(done.operands.size(), 5u);
    EXPECT_EQ(done.operands[0], nullptr);
    EXPECT_EQ(std::memcmp(done.operands[4], values_[4].data(), kBytes - 4), 0);
  }
}

// What is only to be sent.
TEST_F(Combines, OneAloneComesToTheCpu) {
  for (const std::uint64_t pinned : {256 * kMiB, kMiB}) {
    make(64 * kMiB, pinned);
    auto what = work(ReduceOp::kSum, Bracketing::kChain);
    what.operands.resize(1);
    const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
    (void)combines().begin(std::move(what));
    ASSERT_TRUE(move_until_done().ok());
    const auto done = combines().take_done();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->made, nullptr);
    ASSERT_EQ(done->operands.size(), 1u);
    EXPECT_EQ(std::memcmp(done->operands[0], values_[0].data(), kBytes - 4), 0);
    EXPECT_EQ(fake_gpu().controls.calls("stream.reduce"), kernels);
  }
}

// A part of the result as it is: of any type, to the bit, also where pinned memory or the ring has no room.
TEST_F(Combines, OneThatIsWhatIsMadeIsCopiedToWhereOthersReadIt) {
  for (const std::uint64_t shared : {64 * kMiB, 2 * kMiB}) {
    for (const std::uint64_t pinned : {256 * kMiB, kMiB}) {
      make(shared, pinned);
      auto what = work(ReduceOp::kNone, Bracketing::kChain);
      what.type = DataType::kCustom;
      what.operands.resize(1);
      what.copies = true;
      const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
      (void)combines().begin(std::move(what));
      ASSERT_TRUE(move_until_done().ok());
      const auto done = combines().take_done();
      ASSERT_TRUE(done);
      const bool fits = shared > 2 * kMiB;
      ASSERT_EQ(done->made != nullptr, fits);
      EXPECT_EQ(std::memcmp(fits ? done->made : done->operands.at(0), values_[0].data(), kBytes - 4), 0);
      EXPECT_EQ(done->on_gpu.at != nullptr, fits);
      if (fits) {
        std::vector<float> on_gpu(kCount - 1);
        fake_gpu().controls.read(on_gpu.data(), done->on_gpu.at, kBytes - 4);
        EXPECT_EQ(std::memcmp(on_gpu.data(), values_[0].data(), kBytes - 4), 0);
      }
      EXPECT_EQ(fake_gpu().controls.calls("stream.reduce"), kernels);
      EXPECT_EQ(keeper_.use_count(), 1);
    }
  }
}

// Finals that came from another host lie on the CPU, and go to where others read them.
class Uploads : public Combines {
 protected:
  GpuWork::Work upload(int rank) {
    auto what = work(ReduceOp::kNone, Bracketing::kChain);
    what.type = DataType::kCustom;
    what.operands = {{pinned(values_[rank]), false, keeper_}};
    what.copies = true;
    return what;
  }
  // A copy of these.
  const std::byte* pinned(const std::vector<float>& values) {
    void* at = nullptr;
    EXPECT_EQ(fake_gpu().table.allocate_pinned(values.size() * sizeof(float), &at), WARREN_DEVICE_OK);
    std::memcpy(at, values.data(), values.size() * sizeof(float));
    pinned_.emplace_back(at, fake_gpu().table.free_pinned);
    return static_cast<const std::byte*>(at);
  }
  ~Uploads() override {
    fake_gpu().controls.release();
    one_.reset();
  }
  void expect_there(const GpuWork::Done& done, int rank) {
    ASSERT_NE(done.on_gpu.at, nullptr);
    EXPECT_EQ(done.made, nullptr);
    std::vector<float> on_gpu(kCount - 1);
    fake_gpu().controls.read(on_gpu.data(), done.on_gpu.at, kBytes - 4);
    EXPECT_EQ(std::memcmp(on_gpu.data(), values_[rank].data(), kBytes - 4), 0);
  }

 private:
  std::vector<std::unique_ptr<void, warren_device_code (*)(void*)>> pinned_;
};

TEST_F(Uploads, LieWhereOthersReadThem) {
  make();
  std::vector<std::uint64_t> ids;
  const std::uint64_t to_host = fake_gpu().controls.calls("to_host");
  for (int rank = 0; rank < 5; rank++) ids.push_back(combines().begin(upload(rank)));
  ASSERT_TRUE(move_until_done().ok());
  std::vector<std::uint64_t> numbers;
  for (int rank = 0; rank < 5; rank++) {
    const auto done = combines().take_done();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->id, ids[static_cast<std::size_t>(rank)]);
    expect_there(*done, rank);
    numbers.push_back(done->on_gpu.number);
  }
  EXPECT_TRUE(std::ranges::is_sorted(numbers, std::less_equal<>()) && !combines().take_done());
  EXPECT_EQ(keeper_.use_count(), 1);
  EXPECT_EQ(fake_gpu().controls.calls("to_host"), to_host) << "nothing comes back";
}

// In pieces that the GPU's streams take.
TEST_F(Uploads, OfAnySizeAreCopiedInChunks) {
  make();
  values_[0] = values_of(2'500'000, 3);
  auto what = upload(0);
  what.count = values_[0].size();
  what.bytes = what.first_bytes = what.made_bytes = what.count * sizeof(float);
  const std::uint64_t copies = fake_gpu().controls.calls("to_device");
  (void)combines().begin(std::move(what));
  ASSERT_TRUE(move_until_done().ok());
  EXPECT_EQ(fake_gpu().controls.calls("to_device"), copies + 3);
  const auto done = combines().take_done();
  ASSERT_TRUE(done && done->on_gpu.at != nullptr);
  std::vector<float> on_gpu(values_[0].size());
  fake_gpu().controls.read(on_gpu.data(), done->on_gpu.at, on_gpu.size() * sizeof(float));
  EXPECT_EQ(on_gpu, values_[0]);
}

TEST_F(Uploads, WithoutRoomAreDoneAtOnce) {
  make(2 * kMiB);
  for (int i = 0; i < 2; i++) {
    const std::uint64_t id = combines().begin(upload(i));
    ASSERT_TRUE(move_until_done().ok());
    const auto done = combines().take_done();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->id, id);
    EXPECT_EQ(done->on_gpu.at, nullptr);
  }
  EXPECT_EQ(keeper_.use_count(), 1);
}

// They pass by what the GPU combines, and what it combines by them.
TEST_F(Uploads, WaitForNoKernelAndHoldUpNone) {
  make();
  for (const char* where : {"stream.reduce", "stream.to_device"}) {
    fake_gpu().controls.arm(where, 0, FakeFault::kHang);
    const bool kernel_hangs = std::string(where) == "stream.reduce";
    const std::uint64_t kernel = combines().begin(work(ReduceOp::kSum, Bracketing::kChain));
    const std::uint64_t id = combines().begin(upload(1));
    std::optional<GpuWork::Done> done;
    while (!done) {
      ASSERT_TRUE(combines().move().ok());
      done = combines().take_done();
      std::this_thread::yield();
    }
    EXPECT_EQ(done->id, kernel_hangs ? id : kernel);
    EXPECT_TRUE(combines().busy());
    fake_gpu().controls.release();
    ASSERT_TRUE(move_until_done().ok());
    done = combines().take_done();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->id, kernel_hangs ? kernel : id);
  }
}

TEST_F(Uploads, FailWithTheReasonOfAnyCall) {
  for (const char* where : {"make_event", "make_stream", "to_device", "record", "query", "stream.to_device"}) {
    SCOPED_TRACE(where);
    fake_gpu().controls.release();
    make();
    fake_gpu().controls.arm(where, 0, FakeFault::kError);
    (void)combines().begin(upload(0));
    const Status status = move_until_done();
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
    EXPECT_FALSE(combines().busy());
  }
}

TEST_F(Uploads, OnAGpuThatHangsAreGivenUpOrSettled) {
  make(64 * kMiB, 256 * kMiB, kShortMs);
  fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
  (void)combines().begin(upload(0));
  EXPECT_EQ(move_until_done().code(), Code::kTimeout);
  one_.reset();
  fake_gpu().controls.release();

  make();
  fake_gpu().controls.arm("stream.to_device", 0, FakeFault::kHang);
  (void)combines().begin(upload(0));
  ASSERT_TRUE(combines().move().ok());
  EXPECT_EQ(keeper_.use_count(), 2) << "the GPU reads it";
  auto settled = std::async(std::launch::async, [&] { combines().settle(); });
  EXPECT_EQ(settled.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  fake_gpu().controls.release();
  settled.get();
  one_.reset();
  EXPECT_EQ(keeper_.use_count(), 1);
}

// What is to be sent from the GPU keeps its place there for as long as it is wanted, and holds up what finds none.
TEST_F(Combines, ThatStayOnTheGpuWaitForRoomThere) {
  make(16 * kMiB);
  for (int i = 0; i < 5; i++) {
    auto stays = work(ReduceOp::kSum, Bracketing::kChain);
    stays.stays = true;
    (void)combines().begin(std::move(stays));
  }
  const auto want = by_cpu(ReduceOp::kSum, Bracketing::kChain, all());
  std::vector<GpuWork::Done> done;
  // Until as many are done, and some turns more, in which another one could be.
  const auto move = [&](std::size_t count) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    for (int more = 100; more > 0 && std::chrono::steady_clock::now() < deadline;
         more -= done.size() >= count ? 1 : 0) {
      ASSERT_TRUE(combines().move().ok());
      while (auto next = combines().take_done()) done.push_back(std::move(*next));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  move(3);
  ASSERT_EQ(done.size(), 3u) << "a quarter of the memory has room for three";
  done.front().stays.reset();
  move(4);
  ASSERT_EQ(done.size(), 4u);
  for (std::size_t i = 1; i < done.size(); i++) {
    std::vector<float> on_gpu(kCount - 1);
    fake_gpu().controls.read(on_gpu.data(), done[i].on_gpu.at, kBytes - 4);
    EXPECT_EQ(on_gpu, want);
    for (std::size_t k = 1; k < i; k++) EXPECT_NE(done[i].on_gpu.at, done[k].on_gpu.at);
  }
  done.clear();
  move(1);
  EXPECT_EQ(done.size(), 1u);
  done.clear();
  // Where there never is any, that is an error.
  make(2 * kMiB);
  auto stays = work(ReduceOp::kSum, Bracketing::kChain);
  stays.stays = true;
  (void)combines().begin(std::move(stays));
  EXPECT_EQ(move_until_done().code(), Code::kExhausted);
}

// One after the other, where pinned memory is for one alone.
TEST_F(Combines, WaitForPinnedMemory) {
  make(64 * kMiB, 8 * kMiB);
  for (int i = 0; i < 4; i++) (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain, 1));
  std::size_t done = 0;
  while (combines().busy()) {
    ASSERT_TRUE(combines().move().ok());
    while (combines().take_done()) done++;
  }
  EXPECT_EQ(done, 4u);
}

// Where calls have all of the budget there is none for a single one, and nothing that ends gives some back: results,
// and operands, come piece by piece by way of memory that was taken when inputs were first lent.
TEST_F(Combines, WithoutPinnedMemoryComeInPieces) {
  make(64 * kMiB, kMiB);
  const auto want = by_cpu(ReduceOp::kSum, Bracketing::kChain, all());
  const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
  for (int i = 0; i < 3; i++) {
    (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain));
    (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain, 0b00010));
  }
  std::vector<GpuWork::Done> done;
  while (combines().busy()) {
    const auto moved = combines().move();
    ASSERT_TRUE(moved.ok()) << moved.status().describe();
    while (auto one = combines().take_done()) done.push_back(std::move(*one));
    std::this_thread::yield();
  }
  ASSERT_EQ(done.size(), 6u);
  EXPECT_EQ(fake_gpu().controls.calls("stream.reduce"), kernels + 3);
  for (std::size_t i = 0; i < done.size(); i++) {
    if (i % 2 == 0) {
      ASSERT_NE(done[i].made, nullptr);
      EXPECT_EQ(std::memcmp(done[i].made, want.data(), kBytes - 4), 0) << i;
      std::vector<float> on_gpu(kCount - 1);
      fake_gpu().controls.read(on_gpu.data(), done[i].on_gpu.at, kBytes - 4);
      EXPECT_EQ(on_gpu, want) << "it stays there for others";
      continue;
    }
    ASSERT_EQ(done[i].operands.size(), 5u);
    for (std::size_t rank = 0; rank < 5; rank++) {
      if (rank == 1) {
        EXPECT_EQ(done[i].operands[rank], nullptr);
      } else {
        EXPECT_EQ(std::memcmp(done[i].operands[rank], values_[rank].data(), kBytes - 4), 0) << i << " of " << rank;
      }
    }
  }
  EXPECT_EQ(keeper_.use_count(), 1) << "nothing is kept";
}

// Who waits for pinned memory has not taken a place in the ring yet, and takes one: results that stand there stay
// readable, and one of more than half of the ring is made there, too.
TEST_F(Combines, ThatWaitForPinnedMemoryPushNoResultsOut) {
  make(8 * kMiB, 2 * kMiB);  // each for one of them
  const std::uint64_t kernels = fake_gpu().controls.calls("stream.reduce");
  fake_gpu().controls.arm("stream.reduce", 0, FakeFault::kHang);
  (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain));
  (void)combines().begin(work(ReduceOp::kMax, Bracketing::kChain));
  for (int i = 0; i < 6; i++) ASSERT_TRUE(combines().move().ok());
  fake_gpu().controls.release();
  std::vector<GpuWork::Done> done;
  while (combines().busy()) {
    ASSERT_TRUE(combines().move().ok());
    while (auto one = combines().take_done()) {
      one->memory.reset();
      done.push_back(std::move(*one));
    }
    std::this_thread::yield();
  }
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(fake_gpu().controls.calls("stream.reduce"), kernels + 2);
  EXPECT_EQ(done[0].on_gpu.number, 0u);
  EXPECT_EQ(done[1].on_gpu.number, 2 * kMiB) << "the next turn";
  const auto want = by_cpu(ReduceOp::kMax, Bracketing::kChain, all());
  std::vector<float> on_gpu(kCount - 1);
  ASSERT_NE(done[1].on_gpu.at, nullptr);
  fake_gpu().controls.read(on_gpu.data(), done[1].on_gpu.at, kBytes - 4);
  EXPECT_EQ(on_gpu, want);
}

// Events are kept and used again: one of a call that was refused stands on a stream that computes for ever.
TEST_F(Combines, WaitForNothingOfThePrograms) {
  make();
  void* stream = nullptr;
  ASSERT_EQ(fake_gpu().table.make_stream(0, &stream), WARREN_DEVICE_OK);
  const DeviceArray<float> large(100'000'000), a(16), b(16);
  fake_gpu().controls.arm("stream.copy", 0, FakeFault::kHang);
  ASSERT_EQ(fake_gpu().table.copy(0, a.data(), b.data(), 64, stream), WARREN_DEVICE_OK);
  Call call;
  call.spec.collective = Collective::kAllreduce;
  call.spec.type = DataType::kF32;
  call.spec.op = ReduceOp::kSum;
  call.spec.input = call.spec.output = large.data();
  call.spec.count = 100'000'000;
  call.spec.stream = stream;
  ASSERT_EQ(one_->staging.stage(call, {0, 2}).code(), Code::kExhausted);
  (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain));
  ASSERT_TRUE(combines().move().ok());
  // Behind whatever it waits for.
  std::promise<void> made;
  std::thread moves([&] {
    EXPECT_TRUE(move_until_done().ok());
    made.set_value();
  });
  EXPECT_EQ(made.get_future().wait_for(kPatience), std::future_status::ready) << "it waits for the program's stream";
  fake_gpu().controls.release();
  moves.join();
  const auto done = combines().take_done();
  ASSERT_TRUE(done);
  const auto want = by_cpu(ReduceOp::kSum, Bracketing::kChain, all());
  EXPECT_EQ(std::memcmp(done->made, want.data(), kBytes - 4), 0);
  ASSERT_EQ(fake_gpu().table.end_stream(0, stream), WARREN_DEVICE_OK);
}

TEST_F(Combines, FailWithTheReasonOfAnyCallAndKeepTheMemory) {
  for (const char* where :
       {"make_event", "make_stream", "reduce", "to_host", "record", "query", "stream.reduce", "stream.to_host"}) {
    for (const std::uint64_t pinned : {256 * kMiB, kMiB}) {
      SCOPED_TRACE(where);
      fake_gpu().controls.release();  // what the one before has left under way is no longer
      make(64 * kMiB, pinned);
      fake_gpu().controls.arm(where, 0, FakeFault::kError);
      (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain));
      const Status status = move_until_done();
      EXPECT_EQ(status.code(), Code::kUnavailable);
      EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
      EXPECT_FALSE(combines().busy());
      (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain));
      EXPECT_FALSE(combines().busy()) << "nothing moves any more";
    }
  }
}

TEST_F(Combines, OnAGpuThatHangsAreGivenUp) {
  for (const char* where : {"stream.reduce", "stream.to_host"}) {
    for (const std::uint64_t pinned : {256 * kMiB, kMiB}) {
      make(64 * kMiB, pinned, kShortMs);
      fake_gpu().controls.arm(where, 0, FakeFault::kHang);
      (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain));
      EXPECT_EQ(move_until_done().code(), Code::kTimeout);
      const std::uint64_t freed = fake_gpu().controls.calls("free_pinned");
      one_.reset();
      EXPECT_EQ(fake_gpu().controls.calls("free_pinned"), freed) << "the GPU may still write to it";
      fake_gpu().controls.release();
    }
  }
}

// The session ends with something under way: what it reads stays until it has been read.
TEST_F(Combines, AreSettledBeforeTheirMemoryGoes) {
  make();
  fake_gpu().controls.arm("stream.reduce", 0, FakeFault::kHang);
  (void)combines().begin(work(ReduceOp::kSum, Bracketing::kChain));
  ASSERT_TRUE(combines().move().ok());
  std::thread later([] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    fake_gpu().controls.release();
  });
  EXPECT_GE(keeper_.use_count(), 5);
  combines().settle();
  later.join();
  one_.reset();
  EXPECT_EQ(keeper_.use_count(), 1);
}

// ---- inputs that are lent

// A large allreduce, in place or not, with a wire type or not.
class LentStreams : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  static constexpr std::size_t kCount = 3'000'017;
  [[nodiscard]] static bool in_place() { return std::get<0>(GetParam()); }
  [[nodiscard]] static bool wire() { return std::get<1>(GetParam()); }
  void SetUp() override { stage(); }
  ~LentStreams() override {
    fake_gpu().controls.release();
    call_.reset();
    one_.reset();
  }
  void stage(std::uint64_t shared = 64 * kMiB, std::int64_t stall = kPatienceMs) {
    call_.reset();
    one_ = std::make_unique<OneRank>(shared, 256 * kMiB, stall);
    one_->staging.lend_inputs(true);
    in_.write(values_);
    call_ = std::make_unique<Call>();
    CallSpec& spec = call_->spec;
    spec.collective = Collective::kAllreduce;
    spec.type = DataType::kF32;
    spec.op = ReduceOp::kSum;
    if (wire()) spec.wire = DataType::kBF16;
    spec.input = in_.data();
    spec.output = in_place() ? in_.data() : out_.data();
    spec.count = kCount;
    ASSERT_TRUE(one_->staging.stage(*call_, {1, 4}).ok());
    bytes_ = kCount * (wire() ? 2 : 4);
  }
  BufferStream& stream() { return *call_->buffers->stream(); }
  void order() {
    std::vector<ByteRange> pieces;
    for (std::uint64_t at = 0; at < bytes_; at += stream().most_bytes(2)) {
      pieces.push_back({at, std::min<std::uint64_t>(stream().most_bytes(2), bytes_ - at)});
    }
    pieces_ = pieces.size();
    stream().order(std::move(pieces));
  }
  void begin() { call_->spec.prepare(call_->spec.prepare_context); }
  Status move() { return move_all(stream()); }
  // The input as the engine has it.
  [[nodiscard]] std::vector<std::byte> expected() const { return as_engine(values_); }
  [[nodiscard]] std::vector<std::byte> as_engine(const std::vector<float>& values) const {
    std::vector<std::byte> out(bytes_);
    if (!wire()) {
      std::memcpy(out.data(), values.data(), bytes_);
    } else {
      Reducer::make(DataType::kBF16, ReduceOp::kSum, 1)
          .value()
          .copy(out.data(), Form::kValue, values.data(), Form::kPartial, kCount, false);
    }
    return out;
  }
  [[nodiscard]] std::vector<std::byte> result() const { return as_engine((in_place() ? in_ : out_).read()); }
  // What a peer has made, which stands as long as first_ says so.
  [[nodiscard]] std::shared_ptr<const FinalOnGpu> made_there(std::uint64_t number) {
    return std::make_shared<const FinalOnGpu>(
        FinalOnGpu{reinterpret_cast<const std::byte*>(there_.data()), number, &first_, keeper_, nullptr});
  }
  void lend_all() {
    ASSERT_TRUE(stream().lend());
    order();
    begin();
    ASSERT_TRUE(move().ok());
  }
  [[nodiscard]] std::vector<std::byte> in_block() {
    std::vector<std::byte> out(bytes_);
    fake_gpu().controls.read(out.data(), stream().lent().get(), bytes_);
    return out;
  }
  [[nodiscard]] bool shares_memory() const { return call_->spec.input == call_->spec.output; }

  const std::vector<float> values_ = values_of(kCount, 1);
  const DeviceArray<float> in_{values_}, out_{kCount};
  std::unique_ptr<OneRank> one_;
  std::unique_ptr<Call> call_;
  std::uint64_t bytes_ = 0;
  std::size_t pieces_ = 0;
  static constexpr std::uint64_t kAt = kMiB, kPiece = 600'000;
  const std::vector<float> sums_ = std::vector<float>(kPiece, 1.5f);
  const DeviceArray<float> there_{sums_};
  std::uint64_t first_ = 5;
  const std::shared_ptr<int> keeper_ = std::make_shared<int>();
};

// Past pinned memory; what did not stand until it had come, comes by way of that.
TEST_P(LentStreams, FinalsComeFromAPeersGpu) {
  lend_all();
  std::vector<std::byte> peers(kPiece);
  fake_gpu().controls.read(peers.data(), there_.data(), kPiece);
  const std::uint64_t copies = fake_gpu().controls.calls("to_device");
  ASSERT_TRUE(stream().bring({kAt, kPiece}, made_there(5), 11));
  EXPECT_TRUE(stream().moves());
  EXPECT_FALSE(stream().take_brought());
  ASSERT_TRUE(move().ok());
  auto brought = stream().take_brought();
  ASSERT_TRUE(brought);
  EXPECT_EQ(brought->number, 11u);
  EXPECT_TRUE(brought->stood);
  EXPECT_FALSE(stream().take_brought());
  EXPECT_EQ(fake_gpu().controls.calls("to_device"), copies);
  EXPECT_EQ(std::memcmp(result().data() + kAt, peers.data(), kPiece), 0);
  // While it came its owner has used the memory again.
  first_ = 6;
  ASSERT_TRUE(stream().bring({kAt + kPiece, kPiece}, made_there(5), 12));
  ASSERT_TRUE(move().ok());
  brought = stream().take_brought();
  ASSERT_TRUE(brought);
  EXPECT_EQ(brought->number, 12u);
  EXPECT_FALSE(brought->stood);
  EXPECT_EQ(keeper_.use_count(), 1) << "nothing is kept";
  std::memset(call_->spec.output, 0x40, bytes_);
  stream().landed({kAt + kPiece, kPiece});
  ASSERT_TRUE(move().ok());
  const std::vector<std::byte> sum(bytes_, std::byte{0x40});
  EXPECT_EQ(std::memcmp(result().data() + kAt + kPiece, sum.data(), kPiece), 0);
  // The rest, and not what has come.
  stream().conclude();
  ASSERT_TRUE(move().ok());
  const auto all = result();
  EXPECT_EQ(std::memcmp(all.data() + kAt, peers.data(), kPiece), 0);
  EXPECT_EQ(std::memcmp(all.data(), sum.data(), kAt), 0);
  EXPECT_EQ(std::memcmp(all.data() + kAt + kPiece, sum.data(), bytes_ - kAt - kPiece), 0);
}

// An interrupt: nobody hears of it, and what a later attempt has made comes after what is still under way.
TEST_P(LentStreams, NothingOvertakesWhatComesFromAPeersGpu) {
  lend_all();
  const auto input = expected();
  fake_gpu().controls.arm(wire() ? "stream.convert" : "stream.copy", 0, FakeFault::kHang);
  ASSERT_TRUE(stream().bring({kAt, kPiece}, made_there(5), 11));
  ASSERT_TRUE(stream().bring({0, 8}, made_there(5), 12));
  ASSERT_TRUE(stream().move().ok());
  ASSERT_TRUE(stream().bring({16, 8}, made_there(5), 13));
  const char* const what = wire() ? "convert" : "copy";
  const std::uint64_t begun = fake_gpu().controls.calls(what);
  stream().bring_home();
  while (!stream().all_arrived()) ASSERT_TRUE(stream().move().ok());
  EXPECT_EQ(std::memcmp(call_->spec.input, input.data(), bytes_), 0) << "the input is whole";
  EXPECT_EQ(fake_gpu().controls.calls(what), begun) << "nobody waits for it";
  std::memset(call_->spec.output, 0x33, bytes_);
  const std::uint64_t copies = fake_gpu().controls.calls("to_device");
  stream().landed({kAt, kPiece});
  ASSERT_TRUE(stream().move().ok());
  EXPECT_EQ(fake_gpu().controls.calls("to_device"), copies) << "not before that has come";
  first_ = 6;
  fake_gpu().controls.release();
  stream().conclude();
  ASSERT_TRUE(move().ok());
  EXPECT_EQ(result(), std::vector<std::byte>(bytes_, std::byte{0x33}));
}

// What has come so has left the input in pinned memory, or in the block, as it was: a later attempt may want it.
TEST_P(LentStreams, AnInterruptBringsAllOfTheInputHomeThatPinnedMemoryHasNoFinalOf) {
  lend_all();
  const auto input = expected();
  ASSERT_TRUE(stream().bring({kAt, kPiece}, made_there(5), 11));
  ASSERT_TRUE(move().ok());
  stream().bring_home();
  ASSERT_TRUE(move().ok());
  EXPECT_TRUE(stream().all_arrived());
  EXPECT_EQ(std::memcmp(call_->spec.input, input.data(), bytes_), 0);
}

TEST_P(LentStreams, TheInputStaysOnTheGpu) {
  const std::byte* const own = one_->staging.shares().own_on(0);
  ASSERT_NE(own, nullptr) << "stage() has made it";
  EXPECT_EQ(stream().lendable(), own);
  EXPECT_EQ(stream().lent(), nullptr);
  ASSERT_TRUE(stream().lend());
  order();
  ASSERT_NE(stream().lent(), nullptr);
  const std::uint64_t copies = fake_gpu().controls.calls("to_host");
  begin();
  ASSERT_TRUE(move().ok());
  EXPECT_TRUE(stream().all_arrived());
  EXPECT_EQ(stream().arrived(), pieces_);
  EXPECT_EQ(fake_gpu().controls.calls("to_host"), copies);
  EXPECT_EQ(in_block(), expected());
  // Finals come back as ever.
  const std::vector<std::byte> sum(bytes_, std::byte{0x40});
  std::memcpy(call_->spec.output, sum.data(), bytes_);
  stream().conclude();
  ASSERT_TRUE(move().ok());
  EXPECT_NE((in_place() ? in_ : out_).read()[kCount - 1], values_[kCount - 1]);
  EXPECT_FALSE(stream().moves());
}

// An interrupt in the middle: all of the input comes to the CPU, but for what is final there; the block is read for
// that, since what is final is on the GPU's buffer by then.
TEST_P(LentStreams, TheInputComesHomeAfterAnInterrupt) {
  const auto input = expected();
  for (const int moves : {0, 3, -1}) {
    if (moves != 0) stage();
    ASSERT_TRUE(stream().lend());
    order();
    begin();
    ASSERT_TRUE(call_->buffers->filled().ok());
    for (int i = 0; i < moves; i++) ASSERT_TRUE(stream().move().ok());
    const std::uint64_t kFinal = 3 * kMiB + 2;
    if (moves < 0) {
      ASSERT_TRUE(move().ok());
      std::memset(call_->spec.output, 0x33, kFinal);
      stream().landed({0, kFinal});
      ASSERT_TRUE(move().ok());
    }
    stream().bring_home();
    EXPECT_EQ(stream().lent(), nullptr) << "not for another attempt";
    EXPECT_FALSE(stream().all_arrived());
    EXPECT_TRUE(stream().moves());
    while (!stream().all_arrived()) {
      ASSERT_TRUE(stream().moves());
      ASSERT_TRUE(stream().move().ok());
    }
    auto want = input;
    if (moves < 0 && shares_memory()) std::memset(want.data(), 0x33, kFinal);
    EXPECT_EQ(std::memcmp(call_->spec.input, want.data(), bytes_), 0) << moves;
    stream().bring_home();
    EXPECT_TRUE(stream().all_arrived()) << "once";
    stream().conclude();
    ASSERT_TRUE(move().ok());
  }
}

TEST_P(LentStreams, AnInterruptBeforeTheInputIsThereSendsItToTheCpu) {
  ASSERT_TRUE(stream().lend());
  order();
  stream().bring_home();
  EXPECT_EQ(stream().lent(), nullptr);
  order();
  begin();
  ASSERT_TRUE(move().ok());
  EXPECT_TRUE(stream().all_arrived());
  const auto want = expected();
  EXPECT_EQ(std::memcmp(call_->spec.input, want.data(), bytes_), 0);
}

// Its pieces are as they were for the GPU; found by a reader, who saw them too large for a copy to the CPU.
TEST_P(LentStreams, AnInterruptWhileTheProgramPreparesSendsItToTheCpuAsItWasCut) {
  stage();
  ASSERT_TRUE(stream().lend());
  order();
  stream().bring_home();
  begin();
  ASSERT_TRUE(move().ok());
  EXPECT_TRUE(stream().all_arrived());
}

TEST_P(LentStreams, WithoutRoomItIsAsEver) {
  stage(4 * kMiB);
  EXPECT_NE(stream().lendable(), nullptr);
  EXPECT_FALSE(stream().lend());
  order();
  EXPECT_EQ(stream().lent(), nullptr);
  begin();
  ASSERT_TRUE(move().ok());
  const auto want = expected();
  EXPECT_EQ(std::memcmp(call_->spec.input, want.data(), bytes_), 0);
  stage(0);
  EXPECT_EQ(stream().lendable(), nullptr);
}

TEST_P(LentStreams, FailWithTheReasonOfAnyCallAndKeepTheMemory) {
  for (const char* where : {"make_stream", "wait_for", wire() ? "convert" : "copy", "record", "query",
                            wire() ? "stream.convert" : "stream.copy", "to_host", "stream.to_host"}) {
    SCOPED_TRACE(where);
    fake_gpu().controls.release();  // what the one before has left under way is no longer
    stage();
    ASSERT_TRUE(stream().lend());
    order();
    fake_gpu().controls.arm(where, 0, FakeFault::kError);
    begin();
    stream().bring_home();
    Status status = call_->buffers->filled();
    if (status.ok()) status = move();
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_THAT(status.describe(), HasSubstr(std::string("injected into ") + where));
    EXPECT_FALSE(stream().moves());
    call_.reset();
    EXPECT_EQ(one_->staging.shares().take(44 * kMiB), nullptr) << "the GPU may still use it";
  }
}

TEST_P(LentStreams, OnAGpuThatHangsAreGivenUp) {
  stage(64 * kMiB, kShortMs);
  ASSERT_TRUE(stream().lend());
  order();
  fake_gpu().controls.arm(wire() ? "stream.convert" : "stream.copy", 0, FakeFault::kHang);
  begin();
  EXPECT_EQ(move().code(), Code::kTimeout);
}

INSTANTIATE_TEST_SUITE_P(InPlaceAndWire, LentStreams, ::testing::Combine(::testing::Bool(), ::testing::Bool()));

}  // namespace
}  // namespace warren::worker
