#include "storage/checkpoint_mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <span>

#include "recovery/base/limits.h"
#include "storage/result_format.h"
#include "tests/storage/file_size_limit.h"
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
  static std::string manifest(std::uint64_t world_size, std::uint64_t global, std::uint64_t locals) {
    const std::string text = "warren-checkpoint-2\njob job\nworld_size " + std::to_string(world_size) + "\nglobal " +
                             std::to_string(global) + "\nlocals " + std::to_string(locals) + "\n";
    char sum[18];
    std::snprintf(sum, sizeof sum, "%016llx\n",
                  static_cast<unsigned long long>(checksum_of(std::as_bytes(std::span(text)))));
    return text + sum;
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
  EXPECT_THAT(m.list().complete, IsEmpty());
  write_all(m, 1);
  EXPECT_THAT(mirror().list().complete, ElementsAre(checkpoint(1)));
  EXPECT_TRUE(read(mirror(), 1).ok());
}

TEST_F(CheckpointMirrorTest, WhatIsNotCompleteIsNotListed) {
  auto m = mirror();
  write_all(m, 1);
  ASSERT_TRUE(write_share(m, 2, 0).ok());
  ASSERT_TRUE(write_share(m, 2, 2).ok());
  EXPECT_FALSE(m.complete(checkpoint(2)).value());
  EXPECT_THAT(m.list().complete, ElementsAre(checkpoint(1)));
}

TEST_F(CheckpointMirrorTest, TheLastTwoAreKeptAndNothingOfOthersGoes) {
  auto m = mirror();
  write_all(m, 1);
  std::ofstream(place(1) / "notes.txt") << "mine";
  fs::create_directories(base_ / "mirror" / "job" / "v0-old");
  ASSERT_TRUE(write_share(m, 2, 1).ok());  // never complete
  write_all(m, 3);
  EXPECT_THAT(m.list().complete, ElementsAre(checkpoint(3), checkpoint(1)));
  write_all(m, 4);
  EXPECT_THAT(m.list().complete, ElementsAre(checkpoint(4), checkpoint(3)));
  EXPECT_FALSE(fs::exists(place(2)));
  EXPECT_TRUE(fs::exists(place(1) / "notes.txt"));
  EXPECT_FALSE(fs::exists(place(1) / "local-0"));
  EXPECT_TRUE(fs::exists(base_ / "mirror" / "job" / "v0-old"));
  EXPECT_TRUE(read(m, 3).ok());
}

// After the fall back to a version before those that are there.
TEST_F(CheckpointMirrorTest, TheNewestOfANewerTimelineIsNewerThanWhatWasUndone) {
  auto m = mirror();
  const auto empty = [](std::uint32_t timeline, std::uint64_t version) {
    return Checkpoint{Timeline(timeline), Version(version), 1, 0, 0};
  };
  for (const Checkpoint& c : {empty(1, 7), empty(1, 8), empty(2, 7)}) ASSERT_TRUE(m.complete(c).value());
  EXPECT_THAT(m.list().complete, ElementsAre(empty(2, 7), empty(1, 8)));
}

TEST_F(CheckpointMirrorTest, OtherJobsAreApart) {
  auto m = mirror(), other = mirror("../job");
  write_all(m, 1);
  EXPECT_THAT(other.list().complete, IsEmpty());
  EXPECT_TRUE(fs::exists(base_ / "mirror" / "%2E.%2Fjob"));
  fs::copy(base_ / "mirror" / "job", base_ / "mirror" / "%2E.%2Fjob", fs::copy_options::recursive);
  EXPECT_THAT(other.list().complete, IsEmpty());
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

// A folder in the place of a file, which even root cannot read.
TEST_F(CheckpointMirrorTest, WhatCannotBeReadIsToldFromWhatIsDamaged) {
  auto m = mirror();
  write_all(m, 1);
  const fs::path file = place(1) / "global-0000000000000000";
  fs::remove(file);
  fs::create_directory(file);
  const Status s = read(m, 1);
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_THAT(s.describe(), HasSubstr("cannot read " + file.string()));
  EXPECT_EQ(m.check(checkpoint(1), 0).code(), Code::kUnavailable);
}

TEST_F(CheckpointMirrorTest, AManifestOfAnotherVersionIsToldFromADamagedOne) {
  auto m = mirror();
  write_all(m, 1);
  const fs::path file = place(1) / "COMPLETE";
  const auto left_out = [&] {
    const auto listing = m.list();
    EXPECT_THAT(listing.complete, IsEmpty());
    EXPECT_EQ(listing.left_out.size(), 1u);
    return listing.left_out.empty() ? Status() : listing.left_out[0];
  };
  std::ofstream(file) << "warren-checkpoint-1\njob job\nworld_size 3\nglobal 1\nlocals 3\nend\n";
  EXPECT_EQ(left_out().code(), Code::kRefused);
  EXPECT_THAT(left_out().describe(), HasSubstr("was written by another version of Warren"));
  EXPECT_THAT(left_out().describe(), HasSubstr("or remove " + (base_ / "mirror" / "job").string()));
  EXPECT_TRUE(fs::exists(file)) << "it is left alone";
  const std::string text = manifest(3, 10'000'001, 3);
  for (std::size_t at = 0; at < text.size(); ++at) {
    std::string flipped = text;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    std::ofstream(file) << flipped;
    EXPECT_EQ(left_out().code(), Code::kCorrupt) << at;
  }
  std::ofstream(file) << text.substr(0, text.size() - 1);
  EXPECT_EQ(left_out().code(), Code::kCorrupt) << "cut short";
  EXPECT_THAT(left_out().describe(), HasSubstr(file.string()));
  std::ofstream(file) << std::string(5000, 'x');
  EXPECT_EQ(left_out().code(), Code::kCorrupt) << "too long";
  fs::remove(file);
  fs::create_directory(file);
  EXPECT_EQ(left_out().code(), Code::kUnavailable) << "it cannot be read";
  fs::remove(file);
  std::ofstream(file) << text;
  EXPECT_THAT(m.list().complete, ElementsAre(checkpoint(1)));
}

TEST_F(CheckpointMirrorTest, AManifestOfAStateThatNoJobHasIsDamaged) {
  auto m = mirror();
  write_all(m, 1);
  const auto code_of = [&](std::uint64_t world_size, std::uint64_t global, std::uint64_t locals) {
    std::ofstream(place(1) / "COMPLETE") << manifest(world_size, global, locals);
    const auto listing = m.list();
    return listing.left_out.empty() ? Code::kOk : listing.left_out[0].code();
  };
  EXPECT_EQ(code_of(3, limits::kMaxStateBytes, 3), Code::kOk);
  EXPECT_EQ(code_of(3, limits::kMaxStateBytes + 1, 3), Code::kCorrupt);
  EXPECT_EQ(code_of(3, 1, 2), Code::kCorrupt) << "all ranks have a local state, or none";
  EXPECT_EQ(code_of(0, 1, 0), Code::kCorrupt);
  EXPECT_EQ(code_of(limits::kMaxWorldSize + 1, 1, 0), Code::kCorrupt);
}

TEST_F(CheckpointMirrorTest, ACheckFindsWhatIsMissingOrDamaged) {
  auto m = mirror();
  write_all(m, 1);
  EXPECT_TRUE(m.check(checkpoint(1), UINT64_MAX).ok());
  constexpr std::uint64_t kAllBytes = kGlobal + kRanks * kLocal;
  const fs::path global = place(1) / "global-0000000000000000", local = place(1) / "local-1", saved = base_ / "saved";
  const auto told = [&](std::uint64_t most_bytes = 0) {
    const Status s = m.check(checkpoint(1), most_bytes);
    EXPECT_TRUE(s.ok() || s.code() == Code::kCorrupt);
    return s.describe();
  };
  fs::copy(local, saved);
  for (const std::int64_t at : {40, 100}) {
    std::fstream f(local, std::ios::in | std::ios::out | std::ios::binary);
    f.seekg(at);
    const int c = f.get();
    f.seekp(at);
    f.put(static_cast<char>(c ^ 0x10));
    f.close();
    // What is too much to be read is found out when it is loaded.
    EXPECT_THAT(told(kAllBytes - 1), at == 40 ? HasSubstr(local.string()) : HasSubstr("")) << at;
    EXPECT_EQ(told(kAllBytes - 1).empty(), at == 100) << at;
    EXPECT_THAT(told(kAllBytes), HasSubstr(local.string())) << at;
    fs::copy(saved, local, fs::copy_options::overwrite_existing);
  }
  fs::resize_file(local, 200);
  EXPECT_THAT(told(), HasSubstr(local.string() + " is cut short"));
  fs::remove(local);
  EXPECT_THAT(told(), HasSubstr(place(1).string() + " lacks the local state of rank 1"));
  fs::copy(place(1) / "local-2", local);
  EXPECT_THAT(told(), HasSubstr(local.string() + " holds something else than its name says"));
  fs::copy(saved, local, fs::copy_options::overwrite_existing);
  fs::remove(global);
  EXPECT_THAT(told(), HasSubstr(place(1).string() + " lacks byte 0 of the global state"));
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
  {
    const FileSizeLimit full(1 << 20);
    EXPECT_FALSE(write_share(m, 1, 0).ok());
  }
  EXPECT_TRUE(fs::is_empty(place(1)));
  write_all(m, 1);
  EXPECT_TRUE(read(m, 1).ok());
}

TEST_F(CheckpointMirrorTest, AnEmptyStateIsAState) {
  auto m = mirror();
  const Checkpoint empty{Timeline(1), Version(1), 1, 0, 0};
  EXPECT_TRUE(m.complete(empty).value());
  EXPECT_THAT(m.list().complete, ElementsAre(empty));
  EXPECT_TRUE(m.read_global(empty, [](std::uint64_t, std::span<const std::byte>) { FAIL(); }).ok());
}

}  // namespace
}  // namespace warren::storage
