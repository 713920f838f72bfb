// Workers that write results are killed with SIGKILL, again and again: what they have said is durable is there.
//
// Started with --writer, this program is such a worker. It says on standard output what is durable, a line each: "R n"
// for round n, "S v" for the state of version v; "D v" before it drops what is below version v.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <set>
#include <string>
#include <thread>

#include "storage/rocks_result_store.h"
#include "storage/write_behind.h"
#include "tests/storage/result_batch.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

// Everything about round n follows from n, in whatever life it is written.
constexpr std::uint64_t kRoundsPerVersion = 40;
std::uint64_t version_of(std::uint64_t n) {
  return 1 + n / kRoundsPerVersion;
}
RecordKey key_of(std::uint64_t n) {
  return round_key(n % kRoundsPerVersion, version_of(n), n % 3);
}
std::uint64_t total_of(std::uint64_t n) {
  static constexpr std::uint64_t kTotals[] = {0, 8, 257, 20'000, 700'000};
  return kTotals[n * 0x9e3779b97f4a7c15 >> 33 & 0xffff ? (n * 2654435761 >> 8) % 5 : 0];
}
// Half of the state changes with each version, the other half seldom.
constexpr std::uint64_t kHalfBytes = 100'000, kStateBytes = 2 * kHalfBytes;
std::vector<std::byte> half_of_state(std::uint64_t version, bool second) {
  const std::uint64_t begin = second ? kHalfBytes : 0;
  return bytes_of(state_key(second ? version : version / 3), begin, begin + kHalfBytes);
}
void add_state(RecordBatch& batch, std::uint64_t version) {
  for (const bool second : {false, true}) {
    const auto out =
        batch.add(state_key(version), info_of(kStateBytes), second ? kHalfBytes : 0, std::uint32_t{kHalfBytes});
    std::ranges::copy(half_of_state(version, second), out.begin());
  }
}
bool holds_state(HostLogReader& reader, std::uint64_t version) {
  std::vector<std::byte> out(kHalfBytes);
  return std::ranges::all_of(std::array{false, true}, [&](bool second) {
    return reader.read(state_key(version), second ? kHalfBytes : 0, out) && out == half_of_state(version, second);
  });
}

void say(const char* what, std::uint64_t n) {
  char line[64];
  const int size = std::snprintf(line, sizeof line, "%s %llu\n", what, static_cast<unsigned long long>(n));
  if (::write(STDOUT_FILENO, line, static_cast<std::size_t>(size)) != size) std::exit(1);
}

// A kill in the middle of opening leaves the suspicion that the opening kills: the next life has it tried.
RocksResultStore::Options with_trials() {
  RocksResultStore::Options options;
  options.trial_program = WARREN_STORE_TRIAL_PROGRAM;
  return options;
}

// Until it is killed.
[[noreturn]] void write_rounds(const std::string& directory, const std::string& worker, Incarnation life,
                               std::uint64_t n, bool behind) {
  auto opened = RocksResultStore::open({directory, "job", worker, life}, with_trials());
  WARREN_CHECK(opened.ok(), "the store opens");
  std::unique_ptr<ResultStore> store = std::move(opened).value();
  RecordBatch batch;
  const auto horizon = [](std::uint64_t version) {
    return Horizon{Timeline(1), Version(version), Horizon::Checkpoint{Timeline(1), Version(version)}};
  };
  if (!behind) {
    for (;; ++n) {
      batch.clear();
      const std::uint64_t begin = n;
      for (const std::uint64_t end = n + 1 + n % 4; n < end; ++n) add(batch, key_of(n), total_of(n), 0, total_of(n));
      WARREN_CHECK(store->put(batch).ok(), "the disk takes it");
      --n;
      for (std::uint64_t i = begin; i <= n; ++i) say("R", i);
      if (version_of(n) != version_of(begin)) {
        batch.clear();
        add_state(batch, version_of(n));
        WARREN_CHECK(store->put(batch).ok(), "the disk takes it");
        say("S", version_of(n));
        say("D", version_of(n));
        WARREN_CHECK(store->drop(horizon(version_of(n))).ok(), "the disk takes it");
      }
    }
  }
  const auto segment = heap_segment(32 << 20);
  auto log = std::move(HostLog::create(life, segment)).value();
  auto started = WriteBehind::start({.lag_ms = 20}, std::move(store), life, segment, [](const LogEvent& e) {
    std::fprintf(stderr, "%s: %s\n", e.name.c_str(), e.text.c_str());
  });
  auto& thread = *started.value();
  const std::uint64_t first = n;
  for (;; ++n) {
    WARREN_CHECK(log->publish(key_of(n), info_of(total_of(n)), 0, bytes_of(key_of(n), 0, total_of(n))).ok(), "room");
    if (n % 5 == 0) {
      WARREN_CHECK(thread.sync(60'000).ok(), "the disk takes it");
      for (std::uint64_t i = std::max(first, n - std::min<std::uint64_t>(n, 4)); i <= n; ++i) say("R", i);
    }
    if (version_of(n + 1) != version_of(n)) {
      const std::uint64_t v = version_of(n + 1);
      for (const bool second : {false, true}) {
        const auto half = half_of_state(v, second);
        WARREN_CHECK(log->publish(state_key(v), info_of(kStateBytes), second ? kHalfBytes : 0, half).ok(), "room");
      }
      thread.make_durable(Timeline(1), Version(v), [&, v](const Status& s) {
        if (!s.ok()) return;
        say("S", v);
        say("D", v);
        thread.drop(horizon(v));
      });
      // The job waits for the commit before the one after it.
      if (v > 2) log->drop_below(Version(v - 1));
    }
  }
}

class ResultCrashTest : public testing::TestWithParam<bool> {
 protected:
  ResultCrashTest() {
    std::string pattern = fs::temp_directory_path() / "warren-crash-XXXXXX";
    base_ = ::mkdtemp(pattern.data());
  }
  ~ResultCrashTest() override { fs::remove_all(base_); }

  // Starts a writer, kills it `ms` milliseconds later, counted from its first word if `begun`, and notes what it said.
  void run_and_kill(const std::string& worker, std::uint64_t first, bool begun, std::int64_t ms) {
    int out[2];
    ASSERT_EQ(::pipe(out), 0);
    const std::string life = std::to_string(++life_), at = std::to_string(first);
    const char* behind = GetParam() ? "behind" : "direct";
    const pid_t child = ::fork();
    if (child == 0) {
      ::dup2(out[1], STDOUT_FILENO);
      ::close(out[0]);
      ::close(out[1]);
      ::execl("/proc/self/exe", "writer", "--writer", base_.c_str(), worker.c_str(), life.c_str(), at.c_str(), behind,
              nullptr);
      ::_exit(127);
    }
    ::close(out[1]);
    std::string said;
    std::promise<void> spoken;
    std::thread reader([&] {
      char buffer[4096];
      for (ssize_t n; (n = ::read(out[0], buffer, sizeof buffer)) > 0;) {
        if (said.empty()) spoken.set_value();
        said.append(buffer, static_cast<std::size_t>(n));
      }
    });
    if (begun) spoken.get_future().wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(ms));
    ::kill(child, SIGKILL);
    reader.join();
    ::close(out[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << status;
    std::size_t at_line = 0;
    for (std::size_t end; (end = said.find('\n', at_line)) != std::string::npos; at_line = end + 1) {
      const std::uint64_t n = std::strtoull(said.c_str() + at_line + 2, nullptr, 10);
      if (said[at_line] == 'R') rounds_.insert(n);
      if (said[at_line] == 'S') states_.insert(n);
      if (said[at_line] == 'D') horizon_ = std::max(horizon_, n);
    }
  }

  void check() {
    auto store = RocksResultStore::open({base_, "job", "checker", Incarnation(~0ull)}, with_trials());
    ASSERT_TRUE(store.ok()) << store.status().describe();
    auto reader = store.value()->reader();
    std::size_t checked = 0;
    for (const std::uint64_t n : rounds_) {
      if (version_of(n) < horizon_) continue;
      ++checked;
      ASSERT_TRUE(reader->info(key_of(n)).value()) << "round " << n << " after life " << life_;
      ASSERT_TRUE(holds(*reader, key_of(n), 0, total_of(n))) << "round " << n << " after life " << life_;
    }
    for (const std::uint64_t v : states_) {
      if (v < horizon_) continue;
      ++checked;
      ASSERT_TRUE(holds_state(*reader, v)) << "state " << v << " after life " << life_;
    }
    checked_ += checked;
    for (const std::string& w : store.value()->take_warnings()) {
      EXPECT_NE(w.find("never confirmed"), std::string::npos) << w;
    }
  }

  fs::path base_;
  std::uint64_t life_ = 0, horizon_ = 0;
  std::set<std::uint64_t> rounds_, states_;
  std::size_t checked_ = 0;
};

TEST_P(ResultCrashTest, WhatWasDurableIsThereAfterEachKill) {
  std::uint64_t random = 2026;
  for (int kill = 0; kill < 25; ++kill) {
    random = random * 6364136223846793005 + 1442695040888963407;
    const std::uint64_t first = rounds_.empty() ? 0 : *rounds_.rbegin() + 1;
    run_and_kill(kill % 3 == 0 ? "w1" : "w0", first, kill % 5 != 4, static_cast<std::int64_t>(random >> 33) % 250);
    check();
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(rounds_.size(), 50u);
  EXPECT_GT(checked_, 50u);
  EXPECT_GT(states_.size(), 0u);
  // Whatever state they were killed in, what they have left goes once it is obsolete.
  auto store = RocksResultStore::open({base_, "job", "checker", Incarnation(~0ull)}, with_trials());
  const Status dropped = store.value()->drop({Timeline(2), Version(1), std::nullopt});
  EXPECT_TRUE(dropped.ok()) << dropped.describe();
  for (const auto& entry : fs::recursive_directory_iterator(base_)) {
    EXPECT_NE(entry.path().extension(), ".sst") << entry.path();
    EXPECT_NE(entry.path().filename(), "LIFE") << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, ResultCrashTest, testing::Bool(),
                         [](const auto& way) { return way.param ? "WriteBehind" : "Direct"; });

}  // namespace
}  // namespace warren::storage

int main(int argc, char** argv) {
  if (argc == 7 && std::string(argv[1]) == "--writer") {
    warren::storage::write_rounds(argv[2], argv[3], warren::Incarnation(std::strtoull(argv[4], nullptr, 10)),
                                  std::strtoull(argv[5], nullptr, 10), std::string(argv[6]) == "behind");
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
