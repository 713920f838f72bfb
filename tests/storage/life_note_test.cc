#include "storage/life_note.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace warren::storage {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

class LifeNoteTest : public testing::Test {
 protected:
  LifeNoteTest() {
    std::string pattern = fs::temp_directory_path() / "warren-note-XXXXXX";
    base_ = ::mkdtemp(pattern.data());
  }
  ~LifeNoteTest() override { fs::remove_all(base_); }
  [[nodiscard]] std::string path() const { return base_ / "note"; }
  void put(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  [[nodiscard]] std::string bytes() const {
    std::ifstream in(path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  [[nodiscard]] Status status() const { return read_note(path()).status(); }

  fs::path base_;
};

TEST_F(LifeNoteTest, IsReadAsItWasWritten) {
  EXPECT_FALSE(read_note(path()).value().has_value()) << "there is none";
  for (const std::string& text : {std::string(), std::string("a\n\0b", 4), std::string(100'000, 'x')}) {
    ASSERT_TRUE(write_note(path(), {0xfedc'ba98'0000'0001, text}).ok());
    const auto note = read_note(path());
    ASSERT_TRUE(note.ok() && note.value()) << note.status().describe();
    EXPECT_EQ(note.value()->run, 0xfedc'ba98'0000'0001u);
    EXPECT_EQ(note.value()->text, text);
  }
}

// The run too: a place that names another run is put aside with all that it holds.
TEST_F(LifeNoteTest, EveryFlippedBitBehindTheFormatIsFoundOut) {
  ASSERT_TRUE(write_note(path(), {77, "text"}).ok());
  const std::string whole = bytes();
  for (std::size_t at = sizeof "warren-note-4"; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      put(flipped);
      EXPECT_EQ(status().code(), Code::kCorrupt) << at << " " << bit;
    }
  }
  for (std::size_t size = 0; size < whole.size(); ++size) {
    put(whole.substr(0, size));
    EXPECT_FALSE(status().ok()) << size;
  }
  put(std::string((1 << 20) + 1, 'x'));
  EXPECT_EQ(status().code(), Code::kCorrupt);
}

TEST_F(LifeNoteTest, AFlippedBitInTheFormatIsNotAnotherVersion) {
  ASSERT_TRUE(write_note(path(), {77, "text"}).ok());
  const std::string whole = bytes();
  for (std::size_t at = 0; at < sizeof "warren-note-4"; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      put(flipped);
      const auto note = read_note(path());
      ASSERT_TRUE(note.ok() && note.value()) << note.status().describe();
      EXPECT_EQ(note.value()->run, 77u);
      EXPECT_EQ(note.value()->text, "text");
    }
  }
}

TEST_F(LifeNoteTest, AnotherVersionIsToldFromDamage) {
  put("warren-note-1\n0000000000000001\n0000000000000002\ntext");
  EXPECT_EQ(status().code(), Code::kRefused);
  EXPECT_EQ(status().describe(), path() +
                                     " was written by another version of Warren (format \"warren-note-1\", this build "
                                     "knows \"warren-note-4\"): finish the job with that version, or remove " +
                                     base_.string());
}

TEST_F(LifeNoteTest, WhatCannotBeReadIsNotTakenForMissing) {
  fs::create_directory(path());
  EXPECT_EQ(status().code(), Code::kUnavailable);
  EXPECT_THAT(status().describe(), HasSubstr(path()));
}

}  // namespace
}  // namespace warren::storage
