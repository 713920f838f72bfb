// Memory that the program allocates: the ranks of this host that have mapped it read it where it lies, until it is
// freed.
#include "worker/session/lent_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <mutex>
#include <span>
#include <vector>

#include "tests/worker/session/idle_control.h"
#include "tests/worker/session/parts.h"

namespace warren::worker {
namespace {

constexpr Incarnation kSelf{1}, kMate{2}, kNewMate{3};
constexpr std::uint32_t kFirst = 1;  // the number of the memory that is allocated first

class LentMemoryTest : public ::testing::Test {
 protected:
  LentMemoryTest() {
    lent_.use(*control_.control);
    lent_.install({kSelf, kMate});
  }
  [[nodiscard]] bool reads(const void* memory) {
    return lent_.memory().lend(Rank(1), {static_cast<const std::byte*>(memory), 64}).known();
  }

  testing::LogLines logged_;
  const Log log_ = logged_.log();
  Settings settings_ = testing::settings_of_one();
  testing::IdleControl control_{settings_, log_};
  RoundBoard board_;
  Gpus gpus_{settings_};
  std::mutex mutex_;
  LentMemory lent_{gpus_, board_, log_};
};

TEST_F(LentMemoryTest, AMateReadsWhatItHasMapped) {
  const auto memory = lent_.allocate(4096, mutex_);
  ASSERT_TRUE(memory.ok()) << memory.status().describe();
  EXPECT_FALSE(reads(memory.value())) << "its bytes are to be sent until it has mapped them";
  lent_.lent(kMate, kFirst);
  EXPECT_TRUE(reads(memory.value()));
  std::vector<std::byte> other(64);
  EXPECT_FALSE(reads(other.data()));
}

TEST_F(LentMemoryTest, ANewLifeOfTheMateHasNothingMapped) {
  const auto memory = lent_.allocate(4096, mutex_);
  ASSERT_TRUE(memory.ok()) << memory.status().describe();
  lent_.lent(kMate, kFirst);
  lent_.install({kSelf, kNewMate});
  EXPECT_FALSE(reads(memory.value()));
}

TEST_F(LentMemoryTest, MemoryIsFreedOnce) {
  const auto memory = lent_.allocate(4096, mutex_);
  ASSERT_TRUE(memory.ok()) << memory.status().describe();
  lent_.lent(kMate, kFirst);
  EXPECT_TRUE(lent_.free(memory.value(), mutex_).ok());
  EXPECT_FALSE(reads(memory.value()));
  EXPECT_EQ(lent_.free(memory.value(), mutex_).code(), Code::kInvalidArgument);
  EXPECT_EQ(lent_.free(this, mutex_).code(), Code::kInvalidArgument);
}

TEST_F(LentMemoryTest, WithoutAGpuNothingIsToldOfOne) {
  lent_.tell_of_shares(mutex_);
  lent_.lent(kMate, kFirst);
  EXPECT_EQ(board_.gpu_readers.load(), 0u);
  EXPECT_THAT(logged_.lines(), ::testing::IsEmpty());
}

}  // namespace
}  // namespace warren::worker
