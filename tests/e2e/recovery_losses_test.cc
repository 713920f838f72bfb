// More than one death in a round: of several workers or lives, around checkpoints, of the tracker, of all processes and
// their disks. Every result of every life is the oracle's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "tests/e2e/recovery_job.h"

namespace warren {
namespace {

using chaos::process::Mix;
using chaos::process::name_of;
using chaos::process::Phase;
using chaos::process::ProgramShape;
using chaos::process::Record;
using chaos::process::RecordEvent;
using testing::Job;
using testing::kMiB;
using testing::shape;
using testing::two_hosts;

TEST(Recovery, KilledTwice) {
  Job job(shape(3, Mix::kBig, 16 * kMiB, 8, 3), two_hosts(3));
  job.order(1, 0, Phase::kBigRound, 2, 5'000);
  job.order(1, 1, Phase::kBigRound, 5, 5'000);
  job.run();
}

// No checkpoint makes anything obsolete: segments of lives that are over go all the same.
TEST(Recovery, ManyLivesWithoutACheckpoint) {
  // Every life computes an iteration and dies by itself in the next: one that dies in its replay, because this process
  // was late to kill the one before it, leaves a segment more, which may stay until rounds are computed again.
  constexpr std::uint32_t kDeaths = 16;
  Job job(shape(2, Mix::kSmall, 256 << 10, kDeaths + 2, 1000), {"a", "a"}, 1);
  std::size_t most = 0;
  job.order(1, 0, Phase::kSmallRound, 1, 0);
  for (std::uint32_t life = 0; life < kDeaths; life++) {
    // This record is read before the next life is started.
    job.when({1, RecordEvent::kBegin, life, life}, [&, life] {
      most = std::max(most, job.mapped_segments(0));
      if (life + 1 < kDeaths) job.order(1, life + 1, Phase::kSmallRound, life + 2, 0);
    });
  }
  job.run();
  EXPECT_EQ(job.judge().progress(1).lives, kDeaths + 1);
  EXPECT_GE(most, 2u);
  EXPECT_LE(most, 8u) << "two that live, four that may stay, one that has died since the last look, the last one's";
}

TEST(Recovery, TwoAtOnce) {
  for (const std::uint32_t other : {1u, 2u}) {  // of the other host, of the same
    SCOPED_TRACE("workers 0 and " + std::to_string(other));
    Job job(shape(4, Mix::kBig, 16 * kMiB, 6, 2), two_hosts(4));
    job.when({0, RecordEvent::kBegin, 3, 0}, [&] {
      job.kill(0);
      job.kill(other);
    });
    job.run();
    if (HasFailure()) return;
  }
}

TEST(Recovery, KilledDuringReplayAndLoad) {
  Job job(shape(3, Mix::kBig, 16 * kMiB, 7, 100), two_hosts(3));
  job.order(2, 0, Phase::kBigRound, 5, 5'000);
  job.order(2, 1, Phase::kReplay, 2, 3'000);
  job.order(2, 2, Phase::kLoad, 0, 0);
  job.order(2, 3, Phase::kReplay, 3, 0);
  job.run();
  EXPECT_EQ(job.judge().progress(2).lives, 5u);
}

TEST(Recovery, ManySmallRoundsAreReplayed) {
  Job job(shape(3, Mix::kSmall, 4096, 30, 1000), two_hosts(3));
  job.order(1, 0, Phase::kSmallRound, 28, 0);
  job.run();
  EXPECT_GE(job.judge().progress(1).replayed, 2800u);
}

TEST(Recovery, KilledAroundACheckpoint) {
  for (const Phase phase : {Phase::kCheckpoint, Phase::kCheckpointed}) {
    for (const std::uint64_t delay_us : {0u, 500u, 5'000u}) {
      SCOPED_TRACE(std::string(name_of(phase)) + ", killed after " + std::to_string(delay_us) + " us");
      ProgramShape s = shape(3, Mix::kSmall, 4096, 8, 2);
      s.state_bytes = 8 * kMiB;
      Job job(s, two_hosts(3));
      job.order(1, 0, phase, 3, delay_us);
      job.run();
      if (HasFailure()) return;
    }
  }
}

// Segments of dead lives go after two commits. What of the preamble only they held has been logged again by then.
TEST(Recovery, ThePreambleOutlivesAllThatWroteIt) {
  for (const bool one_host : {true, false}) {
    SCOPED_TRACE(one_host ? "one host" : "two hosts");
    Job job(shape(4, Mix::kSmall, 4096, 28, 1),
            one_host ? std::vector<std::string>(4, "a") : std::vector<std::string>{"a", "a", "b", "b"});
    for (std::uint32_t life = 0; life < 2; life++) {
      for (std::uint32_t w = 0; w < 4; w++) job.order(w, life, Phase::kSmallRound, 3 * (4 * life + w) + 2, 0);
    }
    job.run();
    if (HasFailure()) return;
  }
}

TEST(Recovery, KilledInFinalize) {
  Job job(shape(3, Mix::kSmall, 4096, 3, 2), two_hosts(3));
  job.order(1, 0, Phase::kFinalize, 0, 0);
  job.run();
}

// The one that returned may be the only one that knows the result.
void kill_the_owner(const std::vector<std::string>& hosts) {
  Job job(shape(2, Mix::kBig, 4 * kMiB, 8, 3), hosts);
  job.when({1, RecordEvent::kResult, 1, 0}, [&] { job.kill(0); });
  job.when({1, RecordEvent::kResult, 4, 0}, [&] { job.kill(0); });
  job.run();
}
TEST(Recovery, TheOwnerIsKilledAfterItsPeerHasReturnedOnOneHost) {
  kill_the_owner({"a", "a"});
}
TEST(Recovery, TheOwnerIsKilledAfterItsPeerHasReturnedOnTwoHosts) {
  kill_the_owner({"a", "b"});
}

TEST(Recovery, AStoppedWorkerIsReplacedAndFindsItselfFenced) {
  Job job(shape(3, Mix::kBig, 16 * kMiB, 8, 2), two_hosts(3));
  job.when({1, RecordEvent::kBegin, 3, 0}, [&] { job.replace_stopped(1); });
  // The others have gone on without it.
  job.when({0, RecordEvent::kResult, 4, 0}, [&] { job.wake_zombies(); });
  job.run();
  const std::vector<int> ends = job.zombies_end();
  ASSERT_EQ(ends.size(), 1u);
  EXPECT_TRUE(WIFEXITED(ends[0]) && WEXITSTATUS(ends[0]) == 1) << "wait status " << ends[0];
  ASSERT_EQ(job.failures().size(), 1u);
  EXPECT_EQ(job.failures()[0].life, 0u);
  EXPECT_EQ(job.failures()[0].value, static_cast<std::uint64_t>(ErrorCode::closed));
}

TEST(Recovery, TheTrackerIsKilledWhileRoundsGoOn) {
  Job job(shape(3, Mix::kBig, 4 * kMiB, 12, 1), two_hosts(3));
  job.when({0, RecordEvent::kBegin, 2, 0}, [&] { job.kill_tracker(); });
  // Rounds and checkpoints go on; commits wait for it. Then a rank comes back, and goes through all that was pending.
  job.when({0, RecordEvent::kResult, 9, 0}, [&] {
    job.start_tracker();
    job.kill(1);
  });
  job.run();
  EXPECT_GE(job.judge().progress(1).replayed, 6u);
}

TEST(Recovery, TheTrackerIsKilledThenAWorker) {
  Job job(shape(3, Mix::kBig, 4 * kMiB, 12, 4), two_hosts(3));
  job.when({0, RecordEvent::kBegin, 2, 0}, [&] {
    job.kill_tracker();
    job.kill(1);
  });
  job.when({1, RecordEvent::kStarted, 0, 1}, [&] { job.start_tracker(); });
  job.run();
}

// A job with a checkpoint after every fourth iteration, of which all processes are killed when worker 0 has begun the
// last call but one of iteration `at`. Returns how many rounds are not run again: they are on disks.
std::uint64_t kept_after_the_loss_of_all(const std::string& mode, std::uint64_t at,
                                         const std::function<void(Job&)>& between) {
  Job job(shape(4, Mix::kBig, kMiB, 9, 4), two_hosts(4));
  job.use_disks(mode);
  job.when({0, RecordEvent::kBegin, at, 0}, [&] { job.kill_all([&] { between(job); }); });
  job.run();
  EXPECT_EQ(job.judge().progress(0).lives, 2u);
  return job.rounds_kept();
}

// One round an iteration, and worker 0 is at most one ahead of those that it waits for.
TEST(Recovery, AfterTheLossOfAllProcessesLoggedRoundsAreNotRunAgain) {
  EXPECT_GE(kept_after_the_loss_of_all("sync", 7, [](Job&) {}), 3u);
}
TEST(Recovery, AfterTheLossOfAllProcessesAndADiskLoggedRoundsAreNotRunAgain) {
  for (const char* host : {"a", "b"}) {
    SCOPED_TRACE(host);
    EXPECT_GE(kept_after_the_loss_of_all("sync", 7, [&](Job& job) { job.lose_disk(host); }), 3u);
  }
}
TEST(Recovery, AfterTheLossOfAllProcessesWhatWasNotWrittenIsRunAgain) {
  (void)kept_after_the_loss_of_all("async", 7, [](Job&) {});
}
TEST(Recovery, AfterTheLossOfAllProcessesAndTheJournalTheDisksKnowTheJob) {
  EXPECT_GE(kept_after_the_loss_of_all("sync", 7, [](Job& job) { job.lose_journal(); }), 3u);
  SCOPED_TRACE("and a disk");
  const auto lose_both = [](Job& job) {
    job.lose_journal();
    job.lose_disk("a");
  };
  EXPECT_GE(kept_after_the_loss_of_all("sync", 7, lose_both), 3u);
}
// Everything but the mirror is lost, with a checkpoint that is there.
TEST(Recovery, AfterTheLossOfAllDisksTheMirrorHasTheCheckpoints) {
  for (const bool journal : {true, false}) {
    SCOPED_TRACE(journal);
    Job job(shape(4, Mix::kBig, 64 << 10, 300, 4), two_hosts(4));
    job.use_disks("async");
    job.use_mirror();
    job.when({0, RecordEvent::kBegin, 10, 0}, [&] {
      job.await_mirror();
      job.kill_all([&] {
        for (const char* host : {"a", "b"}) job.lose_disk(host);
        if (!journal) job.lose_journal();
      });
    });
    job.run();
    EXPECT_EQ(job.judge().progress(0).lives, 2u);
    EXPECT_GE(job.judge().progress(0).loaded, 1u) << "it did not begin anew";
  }
}

// It may be whole: the worker fails, and the job waits for its next life. It ended for all of them.
TEST(Recovery, WhoCannotReadTheMirrorDoesNotEndTheJob) {
  // The next checkpoint comes long after the mirror has the first.
  Job job(shape(4, Mix::kBig, kMiB, 600, 200), two_hosts(4));
  job.use_disks("async");
  job.use_mirror();
  bool hidden = false;
  job.when({0, RecordEvent::kBegin, 202, 0}, [&] {
    job.await_mirror();
    job.kill_all([&] {
      for (const char* host : {"a", "b"}) job.lose_disk(host);
      job.hide_mirrored_shards(true);
      hidden = true;
    });
  });
  job.on_failure([&] {
    if (std::exchange(hidden, false)) job.hide_mirrored_shards(false);
  });
  job.run();
  EXPECT_FALSE(job.failures().empty());
  for (const Record& r : job.failures()) {
    EXPECT_EQ(r.value, static_cast<std::uint64_t>(ErrorCode::unavailable)) << "worker of life " << r.life;
  }
  EXPECT_GE(job.judge().progress(0).loaded, 1u) << "it did not begin anew";
  std::ifstream log(job.tracker_log());
  const std::string said{std::istreambuf_iterator<char>(log), {}};
  EXPECT_NE(said.find("interrupted: "), std::string::npos);
  EXPECT_EQ(said.find("job_lost: "), std::string::npos);
}

// What disks have after that is notes of lives that had found nothing: the job was taken up because of them, and lost
// again, without end.
TEST(Recovery, AnOlderVersionThatTheMirrorHasServesAlsoAfterTheJobWasCalledLost) {
  // The job does not wait while the mirror is looked at: it must not be at its end by then, however slow the machine
  // is.
  Job job(shape(4, Mix::kBig, 64 << 10, 1'200, 200), two_hosts(4));
  job.use_disks("async");
  job.use_mirror();
  bool away = false;
  job.when({0, RecordEvent::kBegin, 410, 0}, [&] {
    job.await_mirror(2);
    job.kill_all([&] {
      for (const char* host : {"a", "b"}) job.lose_disk(host);
      job.take_mirror_away();
      away = true;
    });
  });
  job.on_failure([&] {
    if (std::exchange(away, false)) job.give_back_oldest_of_mirror();
  });
  job.run();
  EXPECT_GE(job.judge().progress(0).loaded, 1u) << "it did not begin anew";
  std::ifstream log(job.tracker_log());
  const std::string said{std::istreambuf_iterator<char>(log), {}};
  EXPECT_NE(said.find("job_lost: "), std::string::npos);
  EXPECT_NE(said.find("mirror_used: "), std::string::npos);
}

TEST(Recovery, TheLossOfAllProcessesBeforeTheFirstCheckpoint) {
  EXPECT_GE(kept_after_the_loss_of_all("sync", 2, [](Job&) {}), 2u);
}

}  // namespace
}  // namespace warren
