#include "storage/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>

#include "storage/fake_journal.h"
#include "storage/rocks_journal.h"
#include "storage/store_trial.h"
#include "tests/storage/file_size_limit.h"
#include "tests/storage/permissions.h"

namespace warren::storage {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
namespace fs = std::filesystem;
using Records = std::map<std::string, std::string>;

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    std::string pattern = fs::temp_directory_path() / "warren-journal-XXXXXX";
    base_ = ::mkdtemp(pattern.data());
    dir_ = base_ / "a" / "journal";
  }
  ~JournalTest() override { fs::remove_all(base_); }

  std::unique_ptr<RocksJournal> open() {
    auto journal = RocksJournal::open(dir_);
    EXPECT_TRUE(journal.ok()) << journal.status().describe();
    return std::move(journal).value();
  }
  // The directory as RocksDB alone sees it.
  std::unique_ptr<rocksdb::DB> raw() {
    rocksdb::Options options;
    options.create_if_missing = true;
    rocksdb::DB* db = nullptr;
    EXPECT_TRUE(rocksdb::DB::Open(options, dir_, &db).ok());
    return std::unique_ptr<rocksdb::DB>(db);
  }
  Status refused() { return RocksJournal::open(dir_).status(); }

  fs::path base_, dir_;
};

TEST_F(JournalTest, RecordsOutliveTheProcessThatWroteThem) {
  const std::string binary("\0\xff\n plan", 8);
  {
    auto journal = open();
    EXPECT_EQ(journal->load().value(), Records());
    ASSERT_TRUE(journal->put("a", "1").ok());
    ASSERT_TRUE(journal->put("b", binary).ok());
    ASSERT_TRUE(journal->put("c", "3").ok());
    ASSERT_TRUE(journal->put("a", "2").ok());
    ASSERT_TRUE(journal->erase("c").ok());
    ASSERT_TRUE(journal->erase("never-there").ok());
  }
  auto journal = open();
  EXPECT_EQ(journal->load().value(), (Records{{"a", "2"}, {"b", binary}}));
  EXPECT_EQ(journal->get("b").value(), binary);
  EXPECT_EQ(journal->get("c").value(), std::nullopt);
}

TEST_F(JournalTest, JobNamesDoNotMeetTheJournalsOwnKeys) {
  auto journal = open();
  ASSERT_TRUE(journal->put("format", "x").ok());
  ASSERT_TRUE(journal->put("job/format", "y").ok());
  journal.reset();
  EXPECT_EQ(open()->load().value(), (Records{{"format", "x"}, {"job/format", "y"}}));
}

TEST_F(JournalTest, IsItsOwnersAloneWhateverTheUmask) {
  for (const mode_t mask : {0, 022, 0277}) {
    const Umask umask(mask);
    dir_ = base_ / std::to_string(mask) / "journal";
    auto journal = open();
    ASSERT_TRUE(journal->put("a", "1").ok());
    EXPECT_THAT(open_to_others(dir_.parent_path()), IsEmpty());
    EXPECT_EQ(journal->made_private(), "");
  }
}

TEST_F(JournalTest, ThatOthersCouldReadIsCorrected) {
  open().reset();
  fs::permissions(dir_, fs::perms(0755));
  for (const auto& entry : fs::directory_iterator(dir_)) fs::permissions(entry, fs::perms(0644));
  auto journal = open();
  EXPECT_THAT(journal->made_private(), HasSubstr("permissions corrected: other users could read the directory"));
  EXPECT_THAT(journal->made_private(), HasSubstr(dir_.string()));
  EXPECT_THAT(journal->made_private(), HasSubstr(" files in it"));
  EXPECT_THAT(open_to_others(dir_), IsEmpty());
}

// RocksDB makes its files with mode 0644 at each open. Nobody reaches them in a directory of mode 0700.
TEST_F(JournalTest, FilesThatNobodyElseCouldReachAreCorrectedWithoutAWord) {
  open().reset();
  std::ofstream(dir_ / "secret") << "text";
  for (const auto& entry : fs::directory_iterator(dir_)) fs::permissions(entry, fs::perms(0644));
  auto journal = open();
  EXPECT_EQ(journal->made_private(), "");
  EXPECT_THAT(open_to_others(dir_ / "secret"), IsEmpty());
}

TEST_F(JournalTest, ASecondOpenerIsToldWhoHasIt) {
  auto journal = open();
  const Status s = refused();
  EXPECT_EQ(s.code(), Code::kUnavailable);
  EXPECT_THAT(s.describe(), HasSubstr("another tracker (process " + std::to_string(::getpid()) + ")"));
  EXPECT_THAT(s.describe(), HasSubstr(dir_.string()));
  journal.reset();
  open();
}

TEST_F(JournalTest, AnUnknownFormatIsRefusedAndLeftAlone) {
  ASSERT_TRUE(open()->put("a", "1").ok());
  ASSERT_TRUE(raw()->Put({}, "format", "warren-journal-99").ok());
  const Status s = refused();
  EXPECT_EQ(s.code(), Code::kRefused);
  EXPECT_THAT(s.describe(), HasSubstr("was written by another version of Warren (format \"warren-journal-99\""));
  EXPECT_THAT(s.describe(), HasSubstr("or remove " + dir_.string()));
  std::string record;
  ASSERT_TRUE(raw()->Get({}, "job/a", &record).ok());
  EXPECT_EQ(record, "1");
}

TEST_F(JournalTest, SomebodyElsesDirectoryIsRefusedAndLeftAlone) {
  fs::create_directories(dir_);
  std::ofstream(dir_ / "thesis.tex") << "x";
  EXPECT_EQ(refused().code(), Code::kInvalidArgument);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_), fs::directory_iterator()), 1);
  fs::remove(dir_ / "thesis.tex");
  ASSERT_TRUE(raw()->Put({}, "their-key", "x").ok());
  EXPECT_EQ(refused().code(), Code::kInvalidArgument);
  std::ofstream(dir_ / "LOCK-warren") << "";
  EXPECT_EQ(refused().code(), Code::kCorrupt);
}

TEST_F(JournalTest, ACrashWhileTheJournalIsMadeLeavesANewOne) {
  fs::create_directories(dir_);
  std::ofstream(dir_ / "LOCK-warren") << "";
  ASSERT_TRUE(open()->put("a", "1").ok());
  EXPECT_EQ(open()->load().value(), (Records{{"a", "1"}}));
  fs::remove_all(dir_);
  fs::create_directories(dir_);
  std::ofstream(dir_ / "LOCK-warren") << "";
  raw().reset();  // a RocksDB without a key
  EXPECT_EQ(open()->load().value(), Records());
}

fs::path newest_log(const fs::path& dir) {
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.path().extension() == ".log" && entry.path().filename() > newest.filename()) newest = entry.path();
  }
  return newest;
}

TEST_F(JournalTest, ALogThatIsCutShortLosesOnlyItsTail) {
  {
    auto journal = open();
    ASSERT_TRUE(journal->put("a", std::string(1000, 'a')).ok());
    ASSERT_TRUE(journal->put("b", std::string(1000, 'b')).ok());
  }
  const fs::path log = newest_log(dir_);
  fs::resize_file(log, fs::file_size(log) - 10);
  EXPECT_EQ(open()->load().value(), (Records{{"a", std::string(1000, 'a')}}));
}

TEST_F(JournalTest, DamageInTheMiddleOfALogIsAnError) {
  {
    auto journal = open();
    ASSERT_TRUE(journal->put("a", std::string(1000, 'a')).ok());
    ASSERT_TRUE(journal->put("b", std::string(1000, 'b')).ok());
  }
  const fs::path log = newest_log(dir_);
  std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(600);
  file.put('X');
  file.close();
  const Status s = refused();
  EXPECT_EQ(s.code(), Code::kCorrupt) << s.describe();
  EXPECT_THAT(s.describe(), HasSubstr(dir_.string()));
}

// RocksDB 7.8 ends a process that reads a table whose properties have one bit flipped, at every start of a tracker.
TEST_F(JournalTest, DamageThatEndsWhoOpensItIsAnError) {
  ASSERT_TRUE(open()->put("a", "1").ok());
  open();  // the record is in a table now
  const fs::path copy = base_ / "copy";
  fs::copy(dir_, copy);
  fs::path table;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir_)) {
    if (entry.path().extension() == ".sst") table = entry.path();
  }
  ASSERT_FALSE(table.empty());
  for (std::uint64_t back = 80; back < 140; ++back) {
    fs::remove_all(dir_);
    fs::copy(copy, dir_);
    std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(fs::file_size(table) - back);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 0x80));
    file.close();
    if (try_to_open(WARREN_STORE_TRIAL_PROGRAM, dir_) != Trial::kDies) continue;
    const Status status = refused();
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_THAT(status.describe(), HasSubstr("Move it away"));
    return;
  }
  // This RocksDB has no assertions.
}

TEST_F(JournalTest, ADirectoryThatCannotBeMadeIsAnError) {
  std::ofstream(base_ / "file") << "x";
  dir_ = base_ / "file" / "journal";
  EXPECT_EQ(refused().code(), Code::kUnavailable);
}

TEST_F(JournalTest, AFailedWriteIsAStatusAndTheNextOneWorks) {
  auto journal = open();
  ASSERT_TRUE(journal->put("a", "1").ok());
  {
    const FileSizeLimit full(64 << 10);
    const Status s = journal->put("a", std::string(1 << 20, 'x'));
    ASSERT_FALSE(s.ok());
    EXPECT_THAT(s.describe(), HasSubstr("job a"));
    EXPECT_THAT(s.describe(), HasSubstr(dir_.string()));
  }
  EXPECT_EQ(journal->get("a").value(), "1");
  const Status again = journal->put("a", "2");
  ASSERT_TRUE(again.ok()) << again.describe();
  journal.reset();
  EXPECT_EQ(open()->load().value(), (Records{{"a", "2"}}));
}

TEST(FakeJournalTest, UnconfirmedWritesMayOrMayNotSurvive) {
  auto disk = std::make_shared<FakeDisk>();
  FakeJournal journal(disk);
  ASSERT_TRUE(journal.put("a", "1").ok());
  ASSERT_TRUE(journal.put("b", "1").ok());
  for (const auto how : {FakeDisk::Crash::kLosesUnconfirmed, FakeDisk::Crash::kKeepsUnconfirmed}) {
    disk->fail_writes = 2;
    EXPECT_EQ(journal.put("a", "2").code(), Code::kExhausted);
    EXPECT_EQ(journal.erase("b").code(), Code::kExhausted);
    EXPECT_EQ(journal.get("a").value(), "1");
    disk->crash(how);
    const bool kept = how == FakeDisk::Crash::kKeepsUnconfirmed;
    EXPECT_EQ(FakeJournal(disk).load().value(), kept ? (Records{{"a", "2"}}) : (Records{{"a", "1"}, {"b", "1"}}));
  }
  disk->fail_writes = 1;
  EXPECT_FALSE(journal.put("a", "3").ok());
  ASSERT_TRUE(journal.put("a", "4").ok());
  disk->crash(FakeDisk::Crash::kKeepsUnconfirmed);
  EXPECT_EQ(journal.get("a").value(), "4") << "a later write decides";
  EXPECT_EQ(disk->writes, 3u);
}

}  // namespace
}  // namespace warren::storage
