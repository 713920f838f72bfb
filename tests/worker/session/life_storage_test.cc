// The storage of a life. Without a directory nothing is kept. A later life that does not find the mirror warns, and
// goes on.
#include "worker/session/life_storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/worker/session/parts.h"

namespace warren::worker {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

class LifeStorageTest : public ::testing::Test {
 protected:
  LifeStorageTest() {
    std::string pattern = fs::temp_directory_path() / "warren-life-storage-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    settings_.job = "j";
    settings_.world_size = 1;
  }
  ~LifeStorageTest() override { fs::remove_all(folder_); }
  std::unique_ptr<HostLogReader> reader() { return memory_->reader(); }

  fs::path folder_;
  testing::LogLines logged_;
  const Log log_ = logged_.log();
  Settings settings_;
  std::unique_ptr<HostLog> memory_ = HostLog::create(Incarnation(1), heap_segment(std::size_t{1} << 20)).value();
  LifeStorage storage_{settings_, log_};
};

TEST_F(LifeStorageTest, WithoutADirectoryNothingIsKeptAndNothingIsMissing) {
  ASSERT_TRUE(storage_.open_disk(Incarnation(1), heap_segment(1 << 20), [] {}).ok());
  ASSERT_TRUE(storage_.open_mirror(reader(), false).ok());
  EXPECT_FALSE(storage_.has_disk());
  EXPECT_FALSE(storage_.has_mirror());
  EXPECT_EQ(storage_.open_gate([] { return TimeMs{0}; }), nullptr) << "a round would wait for a disk that is not there";
  EXPECT_TRUE(storage_.takes_checkpoints().ok());
  EXPECT_TRUE(storage_.health().ok());
  const auto held = storage_.held();
  ASSERT_TRUE(held.ok()) << held.status().describe();
  EXPECT_FALSE(held.value().has_value());
  EXPECT_EQ(storage_.spill(TimeMs{0}).status().code(), Code::kClosed);
  storage_.finish_disk();
  storage_.finish_mirror(1);
  EXPECT_THAT(logged_.lines(), IsEmpty());
}

TEST_F(LifeStorageTest, AMirrorIsOpenUntilTheLifeEnds) {
  settings_.checkpoint_mirror = folder_ / "mirror";
  ASSERT_TRUE(storage_.open_mirror(reader(), false).ok());
  EXPECT_TRUE(storage_.has_mirror());
  const auto held = storage_.held();
  ASSERT_TRUE(held.ok()) << held.status().describe();
  const LifeStorage::Released released = storage_.release();
  EXPECT_NE(released.mirror, nullptr);
  EXPECT_FALSE(storage_.has_mirror());
}

TEST_F(LifeStorageTest, TheJobsFirstLivesNeedTheMirrorAndLaterOnesDoWithout) {
  // A file stands where the directory should be.
  settings_.checkpoint_mirror = folder_ / "mirror";
  std::ofstream(settings_.checkpoint_mirror) << "no directory";
  EXPECT_FALSE(storage_.open_mirror(reader(), false).ok());
  EXPECT_THAT(logged_.lines(), IsEmpty());
  EXPECT_TRUE(storage_.open_mirror(reader(), true).ok()) << "the loss of a worker would be the loss of the job";
  EXPECT_FALSE(storage_.has_mirror());
  EXPECT_THAT(logged_.lines(), Contains(HasSubstr("this life mirrors no checkpoint")));
}

}  // namespace
}  // namespace warren::worker
