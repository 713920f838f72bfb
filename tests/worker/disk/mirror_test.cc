#include "worker/disk/mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>

#include "tests/worker/await_file.h"
#include "tests/worker/one_rank_plan.h"
#include "worker/disk/past.h"

namespace warren::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
namespace fs = std::filesystem;

// A job of one rank, whose lives write to one mirror.
class MirrorTest : public testing::Test {
 protected:
  MirrorTest() {
    std::string pattern = fs::temp_directory_path() / "warren-mirror-XXXXXX";
    base_ = ::mkdtemp(pattern.data());
    log_ = std::move(HostLog::create(Incarnation(1), heap_segment(1 << 20))).value();
    settings_.job = "job";
    settings_.world_size = 1;
    settings_.checkpoint_mirror = base_ / "mirror";
  }
  ~MirrorTest() override { fs::remove_all(base_); }

  std::unique_ptr<Mirror> open() {
    auto mirror = Mirror::open(settings_, log_->reader(), [this](const LogEvent& event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(event.name + ": " + event.text);
    });
    EXPECT_TRUE(mirror.ok()) << mirror.status().describe();
    return std::move(mirror).value();
  }
  std::vector<std::string> take_events() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }
  [[nodiscard]] fs::path run_folder(std::uint64_t run = kRun) const {
    char name[32];
    std::snprintf(name, sizeof name, "run-%016llx", static_cast<unsigned long long>(run));
    return base_ / "mirror" / "job" / name;
  }
  [[nodiscard]] fs::path place(std::uint64_t version, std::uint32_t timeline, std::uint64_t run = kRun) const {
    return run_folder(run) / ("v" + std::to_string(version) + "-t" + std::to_string(timeline));
  }
  // Its thread has written the checkpoint that is committed in this plan.
  void write(Mirror& mirror, std::uint64_t generation, std::uint32_t timeline, std::uint64_t version,
             std::uint64_t run = kRun) {
    const std::vector<std::byte> state(1000 + version, static_cast<std::byte>(version));
    RecordInfo info;
    info.total_bytes = state.size();
    info.fingerprint.shape = std::uint64_t{settings_.world_size} << 1;
    const RecordKey key{RecordKind::kGlobal, {Timeline(timeline), kWorldGroup, Version(version), Sequence(0)}};
    ASSERT_TRUE(log_->publish(key, info, 0, state).ok());
    wire::Known known = known_of(plan_of(generation, timeline, run));
    known.set_committed(true);
    known.set_committed_version(version);
    known.set_committed_timeline(timeline);
    mirror.copy(Generation(generation), Timeline(timeline), Version(version), Rank(0), note_of(known));
    await_file(place(version, timeline, run) / "COMPLETE");
  }
  // "generation 3 version 5 of timeline 1", or why there is nothing.
  static std::string held(const Mirror& mirror) {
    const auto offer = mirror.held();
    if (!offer.ok()) return offer.status().describe();
    if (!offer.value()) return "nothing";
    const wire::Known& known = offer.value()->known();
    EXPECT_TRUE(offer.value()->mirrored());
    EXPECT_EQ(offer.value()->run(), known.plan().run());
    return "generation " + std::to_string(known.plan_generation()) + " version " +
           std::to_string(known.committed_version()) + " of timeline " + std::to_string(known.committed_timeline());
  }
  static void flip(const fs::path& file, std::streamoff at) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(at);
    const int c = f.get();
    f.seekp(at);
    f.put(static_cast<char>(c ^ 1));
    ASSERT_TRUE(f.good());
  }

  fs::path base_;
  Settings settings_;
  std::unique_ptr<HostLog> log_;
  std::mutex mutex_;
  std::vector<std::string> events_;
};

TEST_F(MirrorTest, WhatWasWrittenIsOfferedAndReadUntilTheJobHasFinished) {
  auto mirror = open();
  EXPECT_EQ(held(*mirror), "nothing");
  write(*mirror, 3, 1, 5);
  write(*mirror, 3, 1, 6);
  EXPECT_EQ(held(*open()), "generation 3 version 6 of timeline 1");
  const auto state = open()->read(kRun, Timeline(1), Version(6), Rank(0));
  ASSERT_TRUE(state.ok() && state.value()) << state.status().describe();
  EXPECT_EQ(state.value()->global, std::vector<std::byte>(1006, std::byte{6}));
  EXPECT_FALSE(state.value()->has_local);
  const auto other = open()->read(kRun, Timeline(1), Version(7), Rank(0));
  ASSERT_TRUE(other.ok()) << other.status().describe();
  EXPECT_FALSE(other.value()) << "nobody has written it";
  ASSERT_TRUE(mirror->finish(kRun).ok());
  EXPECT_EQ(held(*open()), "nothing");
  EXPECT_THAT(take_events(), IsEmpty());
}

// A rank 0 that was fenced writes what it had heard of when it comes to it; also after a fall back, with which versions
// have fallen.
TEST_F(MirrorTest, WhoIsBehindTakesNothingAwayFromWhatIsKnown) {
  auto mirror = open(), fenced = open();
  write(*fenced, 4, 1, 8);
  write(*mirror, 6, 2, 7);
  EXPECT_EQ(held(*mirror), "generation 6 version 7 of timeline 2");
  write(*fenced, 4, 1, 9);
  EXPECT_EQ(held(*mirror), "generation 6 version 7 of timeline 2");
  for (std::uint64_t version = 10; version < 20; ++version) write(*mirror, 6, 2, version);
  std::size_t notes = 0;
  for (const auto& entry : fs::directory_iterator(run_folder())) {
    notes += entry.path().filename().string().starts_with("NOTE-");
  }
  EXPECT_EQ(notes, 2u) << "however many commits";
  EXPECT_EQ(held(*mirror), "generation 6 version 19 of timeline 2");
}

TEST_F(MirrorTest, OfADamagedCheckpointTheOneBeforeIsTaken) {
  auto mirror = open();
  write(*mirror, 3, 1, 5);
  write(*mirror, 3, 1, 6);
  flip(place(6, 1) / "global-0000000000000000", 200);
  EXPECT_EQ(held(*mirror), "generation 3 version 5 of timeline 1");
  EXPECT_THAT(take_events(), ElementsAre(HasSubstr("mirror_unreadable: the mirror of checkpoints is damaged, or cannot "
                                                   "be read: " +
                                                   (place(6, 1) / "global-0000000000000000").string())));
  // Whoever was told of it before hears which file it is, and what to do.
  const Status s = mirror->read(kRun, Timeline(1), Version(6), Rank(0)).status();
  EXPECT_EQ(s.code(), Code::kCorrupt);
  EXPECT_THAT(s.describe(), HasSubstr("global-0000000000000000 is damaged"));
  EXPECT_THAT(s.describe(), HasSubstr("remove its folder " + place(6, 1).string()));
  flip(place(5, 1) / "COMPLETE", 30);
  EXPECT_EQ(held(*mirror), "nothing");
  EXPECT_THAT(take_events(), SizeIs(2));
  EXPECT_THAT(mirror->read(kRun, Timeline(1), Version(5), Rank(0)).status().describe(),
              HasSubstr((place(5, 1) / "COMPLETE").string() + " is damaged"));
}

TEST_F(MirrorTest, OfADamagedNoteTheOneBeforeIsTaken) {
  auto mirror = open();
  write(*mirror, 3, 1, 5);
  write(*mirror, 3, 1, 6);
  const fs::path newest = run_folder() / "NOTE-0000000000000003-0000000000000006";
  flip(newest, 40);
  EXPECT_EQ(held(*mirror), "generation 3 version 6 of timeline 1")
      << "it is there, and of a timeline that the note knows";
  EXPECT_THAT(take_events(), ElementsAre(HasSubstr(newest.string())));
}

TEST_F(MirrorTest, WhatCannotBeReadIsSaid) {
  auto mirror = open();
  write(*mirror, 3, 1, 5);
  std::ofstream(run_folder(12)) << "no folder";
  EXPECT_EQ(held(*mirror), "generation 3 version 5 of timeline 1");
  EXPECT_THAT(take_events(), ElementsAre(HasSubstr("cannot read the directory " + run_folder(12).string())));
}

// Only that it is not there, or is damaged, says something about the job.
TEST_F(MirrorTest, WhoCannotReadItDoesNotSayThatItIsNotThere) {
  auto mirror = open();
  write(*mirror, 3, 1, 5);
  const auto code = [&] { return mirror->read(kRun, Timeline(1), Version(5), Rank(0)).status().code(); };
  // A folder in the place of a file, which even root cannot read.
  for (const char* name : {"global-0000000000000000", "COMPLETE"}) {
    const fs::path file = place(5, 1) / name;
    fs::rename(file, base_ / "aside");
    fs::create_directory(file);
    EXPECT_EQ(code(), Code::kUnavailable) << name;
    fs::remove(file);
    fs::rename(base_ / "aside", file);
  }
  EXPECT_EQ(code(), Code::kOk);
  fs::rename(run_folder(), base_ / "aside");
  std::ofstream(run_folder()) << "no folder";
  EXPECT_EQ(code(), Code::kUnavailable);
}

TEST_F(MirrorTest, WhatAnotherVersionHasWrittenIsRefusedAndLeftAlone) {
  auto mirror = open();
  write(*mirror, 3, 1, 5);
  const fs::path manifest = place(5, 1) / "COMPLETE";
  std::ofstream(manifest) << "warren-checkpoint-1\njob job\nworld_size 1\nglobal 1\nlocals 0\nend\n";
  EXPECT_EQ(mirror->held().status().code(), Code::kRefused);
  EXPECT_THAT(held(*mirror), HasSubstr("was written by another version of Warren"));
  EXPECT_THAT(held(*mirror), HasSubstr("or remove " + run_folder().string()));
  EXPECT_TRUE(fs::exists(manifest));
}

TEST_F(MirrorTest, TheRunThatWasWrittenLastIsTaken) {
  auto mirror = open();
  write(*mirror, 3, 1, 5, 12);
  write(*mirror, 1, 0, 2, 11);
  const auto older = fs::last_write_time(run_folder(11) / "NOTE-0000000000000001-0000000000000002");
  fs::last_write_time(run_folder(12) / "NOTE-0000000000000003-0000000000000005", older - std::chrono::hours(1));
  EXPECT_EQ(held(*mirror), "generation 1 version 2 of timeline 0");
}

}  // namespace
}  // namespace warren::worker
