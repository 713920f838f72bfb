// Segments that outlive their writer: real processes, killed at any instruction.
#include "storage/segment_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <new>
#include <random>
#include <vector>

#include "storage/segment.h"

namespace warren {
namespace {

using testing::HasSubstr;

constexpr std::size_t kBytes = std::size_t{4} << 20;

RecordKey round_key(std::uint64_t version, std::uint64_t sequence) {
  return {RecordKind::kRound, {Timeline(0), kWorldGroup, Version(version), Sequence(sequence)}};
}
RecordInfo info_of(std::uint64_t total) {
  RecordInfo info;
  info.fingerprint.collective = Collective::kAllreduce;
  info.total_bytes = total;
  return info;
}
// Sizes differ, so that a kill meets every part of a publication.
std::size_t words_of(std::uint64_t round) {
  return round % 3 == 0 ? round % 50 : 2000 + round * 977 % 9000;
}
std::uint64_t word_of(std::uint64_t round, std::size_t at) {
  return round * 1'000'003 + at;
}

std::uint64_t pages_of(int fd) {
  struct stat info {};
  EXPECT_EQ(::fstat(fd, &info), 0);
  return static_cast<std::uint64_t>(info.st_blocks) * 512 / 4096;
}

TEST(SegmentMemoryTest, OthersMapItReadOnlyAndOutliveIt) {
  auto memory = memfd_segment(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status().describe();
  EXPECT_EQ(memory.value()->bytes().size(), kBytes);
  auto log = HostLog::create(Incarnation(11), memory.value());
  ASSERT_TRUE(log.ok());
  const std::vector<std::byte> payload(1000, std::byte{7});
  ASSERT_TRUE(log.value()->publish(round_key(1, 0), info_of(1000), 0, payload).ok());

  EXPECT_EQ(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.value()->fd(), 0), MAP_FAILED);
  auto mapped = map_segment(memory.value()->fd(), kBytes);
  ASSERT_TRUE(mapped.ok()) << mapped.status().describe();
  log.value().reset();
  memory.value().reset();
  auto mate = HostLog::create(Incarnation(12), heap_segment(kMinSegmentBytes));
  ASSERT_TRUE(mate.value()->attach(Incarnation(11), mapped.value().bytes, mapped.value().keeper).ok());
  std::vector<std::byte> out(1000);
  EXPECT_TRUE(mate.value()->reader()->read(round_key(1, 0), 0, out));
  EXPECT_EQ(out, payload);
}

TEST(SegmentMemoryTest, WhatCouldKillTheReaderIsRefused) {
  const auto refused = [](int fd, std::size_t bytes, const char* why) {
    const auto mapped = map_segment(fd, bytes);
    ASSERT_FALSE(mapped.ok()) << why;
    EXPECT_EQ(mapped.status().code(), Code::kRefused) << why;
    EXPECT_THAT(mapped.status().describe(), HasSubstr(why));
  };
  const auto memory = memfd_segment(kBytes).value();
  refused(memory->fd(), kBytes * 2, "has 4194304");
  refused(memory->fd(), kBytes / 2, "has 4194304");
  refused(memory->fd(), 0, "has 4194304");
  const OwnedFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), kBytes), 0);
  refused(unsealed.get(), kBytes, "not sealed");
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const OwnedFd in(ends[0]), out(ends[1]);
  refused(in.get(), kBytes, "not a memory file");
  const OwnedFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  refused(file.get(), kBytes, "not a memory file");
  EXPECT_NE(::ftruncate(memory->fd(), 4096), 0) << "it cannot shrink";
}

// A job of many versions: so many pages stay as two versions need, whatever an earlier one had.
TEST(SegmentMemoryTest, PagesThatTheNextVersionsDoNotNeedGoBack) {
  const auto memory = memfd_segment(kBytes).value();
  const auto log = std::move(HostLog::create(Incarnation(11), memory)).value();
  const std::vector<std::byte> payload(std::size_t{128} << 10, std::byte{1});
  const auto version = [&](std::uint64_t v, std::uint64_t rounds) {
    for (std::uint64_t s = 0; s < rounds; ++s) {
      ASSERT_TRUE(log->publish(round_key(v, s), info_of(payload.size()), 0, payload).ok());
    }
    log->drop_below(Version(v));
  };
  version(1, 25);
  EXPECT_GT(pages_of(memory->fd()), 25 * 32);
  for (std::uint64_t v = 2; v < 6; ++v) version(v, 2);
  // Two versions of two rounds each, in extents of their own, and the tables.
  EXPECT_LT(pages_of(memory->fd()), 8 * 32);
  const std::uint64_t before = pages_of(memory->fd());
  for (std::uint64_t v = 6; v < 60; ++v) version(v, 2);
  EXPECT_EQ(pages_of(memory->fd()), before) << "the same pages serve again";
}

// What the writing process has got through, in memory that outlives it.
struct Progress {
  std::atomic<std::uint64_t> published{0}, dropped_below{0};
};

// Publishes rounds and drops versions of 20 of them until it is killed.
[[noreturn]] void write_until_killed(HostLog& log, Progress& progress) {
  std::vector<std::uint64_t> words;
  for (std::uint64_t round = 0;; ++round) {
    words.resize(words_of(round));
    for (std::size_t i = 0; i < words.size(); ++i) words[i] = word_of(round, i);
    const auto bytes = std::as_bytes(std::span(words));
    if (!log.publish(round_key(1 + round / 20, round), info_of(bytes.size()), 0, bytes).ok()) ::_exit(3);
    progress.published.store(round + 1);
    if (round % 20 == 19) {
      // Before it goes: what is below may be gone or not.
      progress.dropped_below.store(round / 20);
      log.drop_below(Version(round / 20));
    }
  }
}

TEST(SegmentMemoryTest, WhateverInstructionTheWriterDiesAtAllThatWasPublishedIsThere) {
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  std::mt19937_64 random(5);
  std::uint64_t checked = 0, beyond = 0;
  for (std::uint64_t life = 1; life <= 60; ++life) {
    auto* progress = new (shared) Progress;
    const auto memory = memfd_segment(kBytes).value();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      auto log = HostLog::create(Incarnation(life), memory);
      if (!log.ok()) ::_exit(2);
      write_until_killed(*log.value(), *progress);
    }
    // At a random point: after so many rounds, and a part of one.
    const std::uint64_t rounds = random() % 150 + 1;
    while (progress->published.load() < rounds && ::waitpid(child, nullptr, WNOHANG) == 0) ::sched_yield();
    for (std::uint64_t i = random() % 2000; i > 0; --i) std::atomic_signal_fence(std::memory_order_seq_cst);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << WEXITSTATUS(status);

    auto mate = HostLog::create(Incarnation(1000), heap_segment(kMinSegmentBytes));
    auto mapped = map_segment(memory->fd(), kBytes);
    ASSERT_TRUE(mapped.ok());
    ASSERT_TRUE(mate.value()->attach(Incarnation(life), mapped.value().bytes, mapped.value().keeper).ok());
    const auto reader = mate.value()->reader();
    const std::uint64_t published = progress->published.load(), first = 20 * (progress->dropped_below.load() - 1);
    std::vector<std::uint64_t> words;
    const auto right = [&](std::uint64_t round) {
      words.assign(words_of(round), 0);
      if (!reader->read(round_key(1 + round / 20, round), 0, std::as_writable_bytes(std::span(words)))) return false;
      for (std::size_t i = 0; i < words.size(); ++i) {
        if (words[i] != word_of(round, i)) return false;
      }
      return true;
    };
    for (std::uint64_t round = progress->dropped_below.load() == 0 ? 0 : first; round < published; ++round) {
      ASSERT_TRUE(right(round)) << round << " of " << published;
      ++checked;
    }
    // The round that it was at: whole or a part, but nothing else than its bytes.
    const RecordKey last = round_key(1 + published / 20, published);
    const Ranges held = reader->held(last);
    for (const Interval& i : held.intervals()) {
      words.assign(words_of(published), 0);
      ASSERT_TRUE(
          reader->read(last, i.begin, std::as_writable_bytes(std::span(words)).subspan(i.begin, i.end - i.begin)));
      for (std::uint64_t w = i.begin / 8; w < i.end / 8; ++w) ASSERT_EQ(words[w], word_of(published, w));
      ++beyond;
    }
    ASSERT_TRUE(reader->held(round_key(1 + (published + 1) / 20, published + 1)).empty());
  }
  EXPECT_GT(checked, 1000u);
  RecordProperty("rounds_beyond", static_cast<int>(beyond));
  ::munmap(shared, 4096);
}

}  // namespace
}  // namespace warren
