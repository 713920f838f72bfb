// What tests of segments share: lives with logs in memory files, and what their rounds contain.
#pragma once

#include <dirent.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "storage/host_log.h"
#include "storage/segment_memory.h"
#include "worker/transport/handshake.h"

namespace warren::worker {

inline constexpr std::size_t kSegmentBytes = std::size_t{4} << 20;

inline handshake::LinkKey key_of(int seed) {
  handshake::LinkKey k;
  k.fill(static_cast<std::byte>(seed));
  return k;
}

// How many descriptors this process has open.
inline std::size_t open_descriptors() {
  DIR* dir = ::opendir("/proc/self/fd");
  std::size_t n = 0;
  while (::readdir(dir) != nullptr) ++n;
  ::closedir(dir);
  return n;
}

inline RecordKey round_key(Incarnation life, std::uint64_t sequence) {
  return {RecordKind::kRound, {Timeline(0), GroupId(life.value), Version(1), Sequence(sequence)}};
}
// The words of a life's round; sizes differ, so that a kill meets every part of a publication.
inline std::vector<std::uint64_t> words_of(Incarnation life, std::uint64_t sequence) {
  const std::size_t n = sequence % 3 == 0 ? sequence % 50 : 100 + sequence * 977 % 3000;
  std::vector<std::uint64_t> words(n);
  for (std::size_t i = 0; i < n; ++i) words[i] = life.value * 1'000'003 + sequence * 10'007 + i;
  return words;
}
[[nodiscard]] inline Status publish_round(HostLog& log, Incarnation life, std::uint64_t sequence) {
  const std::vector<std::uint64_t> words = words_of(life, sequence);
  RecordInfo info;
  info.fingerprint.collective = Collective::kAllreduce;
  info.total_bytes = words.size() * 8;
  return log.publish(round_key(life, sequence), info, 0, std::as_bytes(std::span(words)));
}
[[nodiscard]] inline bool reads_round(HostLogReader& reader, Incarnation life, std::uint64_t sequence) {
  const std::vector<std::uint64_t> words = words_of(life, sequence);
  std::vector<std::uint64_t> out(words.size());
  return reader.read(round_key(life, sequence), 0, std::as_writable_bytes(std::span(out))) && out == words;
}

// A life's log in a memory file.
struct LogLife {
  explicit LogLife(std::uint64_t id) : self(id), memory(memfd_segment(kSegmentBytes).value()) {
    auto made = HostLog::create(self, memory);
    EXPECT_TRUE(made.ok()) << made.status().describe();
    log = std::move(made).value();
    reader = log->reader();
  }
  [[nodiscard]] bool reads(Incarnation life, std::uint64_t sequence) const {
    return reads_round(*reader, life, sequence);
  }
  void publish(std::uint64_t sequence) const { EXPECT_TRUE(publish_round(*log, self, sequence).ok()); }

  Incarnation self;
  std::shared_ptr<MemfdSegment> memory;
  std::unique_ptr<HostLog> log;
  std::unique_ptr<HostLogReader> reader;
};

}  // namespace warren::worker
