#include "storage/checkpoint_mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>

#include "tests/storage/result_batch.h"

namespace warren::storage {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;
using Checkpoint = CheckpointMirror::Checkpoint;

constexpr std::uint64_t kGlobal = 10'000'001, kLocal = 5000;
constexpr std::uint32_t kRanks = 3;

class CheckpointMirrorTest : public testing::Test {
 protected:
  CheckpointMirrorTest() {
    std::string pattern = fs::temp_directory_path() / "warren-mirror-XXXXXX";
    base_ = ::mkdtemp(pattern.data());
    log_ = std::move(HostLog::create(Incarnation(1), heap_segment(96 << 20))).value();
    reader_ = log_->reader();
    for (std::uint64_t v = 1; v <= 4; ++v) publish(v);
  }
  ~CheckpointMirrorTest() override { fs::remove_all(base_); }

  void publish(std::uint64_t version) {
    ASSERT_TRUE(log_->publish(state_key(version), info_of(kGlobal), 0, bytes_of(state_key(version), 0, kGlobal)).ok());
    for (std::uint32_t r = 0; r < kRanks; ++r) {
      const RecordKey key = local_key(version, r);
      ASSERT_TRUE(log_->publish(key, info_of(kLocal), 0, bytes_of(key, 0, kLocal)).ok());
    }
  }
  static RecordKey local_key(std::uint64_t version, std::uint32_t rank) {
    RecordKey key = state_key(version);
    key.kind = RecordKind::kLocal;
    key.round.sequence = Sequence(rank);
    return key;
  }
  static Checkpoint checkpoint(std::uint64_t version) {
    return {Timeline(1), Version(version), kRanks, kGlobal, kRanks};
  }
  CheckpointMirror mirror(const std::string& job = "job") {
    auto opened = CheckpointMirror::open(base_ / "mirror", job);
    EXPECT_TRUE(opened.ok()) << opened.status().describe();
    return std::move(opened).value();
  }
  Status write_share(CheckpointMirror& m, std::uint64_t version, std::uint32_t rank) {
    const std::uint64_t begin = kGlobal * rank / kRanks, end = kGlobal * (rank + 1) / kRanks;
    Status s = m.write_global(checkpoint(version), *reader_, state_key(version), begin, end);
    return s.ok() ? m.write_local(checkpoint(version), Rank(static_cast<std::int32_t>(rank)), *reader_,
                                  local_key(version, rank), kLocal)
                  : s;
  }
  void write_all(CheckpointMirror& m, std::uint64_t version) {
    for (std::uint32_t r = 0; r < kRanks; ++r) {
      ASSERT_TRUE(write_share(m, version, r).ok());
      ASSERT_EQ(m.complete(checkpoint(version)).value(), r + 1 == kRanks);
    }
  }
  static Status read(const CheckpointMirror& m, std::uint64_t version) {
    std::vector<std::byte> got;
    const auto sink = [&](std::uint64_t first, std::span<const std::byte> bytes) {
      EXPECT_EQ(first, got.size());
      got.insert(got.end(), bytes.begin(), bytes.end());
    };
    if (Status s = m.read_global(checkpoint(version), sink); !s.ok()) return s;
    EXPECT_EQ(got, bytes_of(state_key(version), 0, kGlobal));
    for (std::uint32_t r = 0; r < kRanks; ++r) {
      got.clear();
      if (Status s = m.read_local(checkpoint(version), Rank(static_cast<std::int32_t>(r)), sink); !s.ok()) return s;
      EXPECT_EQ(got, bytes_of(local_key(version, r), 0, kLocal));
    }
    return {};
  }
  [[nodiscard]] fs::path place(std::uint64_t version) const {
    return base_ / "mirror" / "job" / ("v" + std::to_string(version) + "-t1");
  }

  fs::path base_;
  std::unique_ptr<HostLog> log_;
  std::unique_ptr<HostLogReader> reader_;
};

TEST_F(CheckpointMirrorTest, WhatAllRanksHaveWrittenIsReadBack) {
  auto m = mirror();
  EXPECT_THAT(m.list(), IsEmpty());
  write_all(m, 1);
  EXPECT_THAT(mirror().list(), ElementsAre(checkpoint(1)));
  EXPECT_TRUE(read(mirror(), 1).ok());
}

TEST_F(CheckpointMirrorTest, WhatIsNotCompleteIsNotListed) {
  auto m = mirror();
  write_all(m, 1);
  ASSERT_TRUE(write_share(m, 2, 0).ok());
  ASSERT_TRUE(write_share(m, 2, 2).ok());
  EXPECT_FALSE(m.complete(checkpoint(2)).value());
  EXPECT_THAT(m.list(), ElementsAre(checkpoint(1)));
}

TEST_F(CheckpointMirrorTest, TheLastTwoAreKeptAndNothingOfOthersGoes) {
  auto m = mirror();
  write_all(m, 1);
  std::ofstream(place(1) / "notes.txt") << "mine";
  fs::create_directories(base_ / "mirror" / "job" / "v0-old");
  ASSERT_TRUE(write_share(m, 2, 1).ok());  // never complete
  write_all(m, 3);
  EXPECT_THAT(m.list(), ElementsAre(checkpoint(3), checkpoint(1)));
  write_all(m, 4);
  EXPECT_THAT(m.list(), ElementsAre(checkpoint(4), checkpoint(3)));
  EXPECT_FALSE(fs::exists(place(2)));
  EXPECT_TRUE(fs::exists(place(1) / "notes.txt"));
  EXPECT_FALSE(fs::exists(place(1) / "local-0"));
  EXPECT_TRUE(fs::exists(base_ / "mirror" / "job" / "v0-old"));
  EXPECT_TRUE(read(m, 3).ok());
}

TEST_F(CheckpointMirrorTest, OtherJobsAreApart) {
  auto m = mirror(), other = mirror("../job");
  write_all(m, 1);
  EXPECT_THAT(other.list(), IsEmpty());
  EXPECT_TRUE(fs::exists(base_ / "mirror" / "%2E.%2Fjob"));
  fs::copy(base_ / "mirror" / "job", base_ / "mirror" / "%2E.%2Fjob", fs::copy_options::recursive);
  EXPECT_THAT(other.list(), IsEmpty());
  EXPECT_THAT(read(other, 1).describe(), HasSubstr("is of another job"));
}

TEST_F(CheckpointMirrorTest, EveryKindOfDamageIsFoundBeforeItIsGiven) {
  auto m = mirror();
  write_all(m, 1);
  write_all(m, 2);
  const fs::path file = place(2) / "global-0000000000000000", saved = base_ / "saved";
  fs::copy(file, saved);
  const auto size = static_cast<std::int64_t>(fs::file_size(file));
  for (const std::int64_t at : {std::int64_t{0}, std::int64_t{8}, std::int64_t{40}, std::int64_t{87}, std::int64_t{88},
                                size / 2, size - 9, size - 1}) {
    std::fstream f(file, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(at);
    const int c = f.get();
    f.seekp(at);
    f.put(static_cast<char>(c ^ 0x10));
    f.close();
    bool given = false;
    const Status s = m.read_global(checkpoint(2), [&](std::uint64_t, std::span<const std::byte>) { given = true; });
    EXPECT_EQ(s.code(), Code::kCorrupt) << at;
    EXPECT_THAT(s.describe(), HasSubstr(file.string())) << at;
    EXPECT_FALSE(given) << at;
    fs::copy(saved, file, fs::copy_options::overwrite_existing);
  }
  EXPECT_TRUE(read(m, 2).ok());
  fs::resize_file(file, static_cast<std::uintmax_t>(size - 1));
  EXPECT_EQ(read(m, 2).code(), Code::kCorrupt);
  fs::remove(file);
  EXPECT_EQ(read(m, 2).code(), Code::kCorrupt);
  fs::remove(place(2) / "local-1");
  EXPECT_TRUE(read(m, 1).ok()) << "the version before is untouched";
}

TEST_F(CheckpointMirrorTest, AManifestOfAnotherFormatIsNone) {
  auto m = mirror();
  write_all(m, 1);
  std::ofstream(place(1) / "COMPLETE") << "warren-checkpoint-2\njob job\nworld_size 3\nglobal 1\nlocals 3\nend\n";
  EXPECT_THAT(m.list(), IsEmpty());
  std::ofstream(place(1) / "COMPLETE") << "warren-checkpoint-1\njob job\nworld_size 3\nglobal 1\nlocals 3\n";
  EXPECT_THAT(m.list(), IsEmpty()) << "cut short";
}

TEST_F(CheckpointMirrorTest, WhatTheLogDoesNotHoldIsAnError) {
  auto m = mirror();
  const Status s = m.write_global(checkpoint(9), *reader_, state_key(9), 0, kGlobal);
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_THAT(s.describe(), HasSubstr("not held here"));
  EXPECT_TRUE(fs::is_empty(place(9)));
}

TEST_F(CheckpointMirrorTest, AFullDiskIsAStatusAndLeavesNothingHalf) {
  auto m = mirror();
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const rlimit full{1 << 20, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &full);
  const Status s = write_share(m, 1, 0);
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_FALSE(s.ok());
  EXPECT_TRUE(fs::is_empty(place(1)));
  write_all(m, 1);
  EXPECT_TRUE(read(m, 1).ok());
}

TEST_F(CheckpointMirrorTest, AnEmptyStateIsAState) {
  auto m = mirror();
  const Checkpoint empty{Timeline(1), Version(1), 1, 0, 0};
  EXPECT_TRUE(m.complete(empty).value());
  EXPECT_THAT(m.list(), ElementsAre(empty));
  EXPECT_TRUE(m.read_global(empty, [](std::uint64_t, std::span<const std::byte>) { FAIL(); }).ok());
}

}  // namespace
}  // namespace warren::storage
