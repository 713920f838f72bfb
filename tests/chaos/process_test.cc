// The parts of the process-level chaos runner that judge: they must see what is wrong.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <thread>

#include "chaos/process/cluster.h"
#include "chaos/process/judge.h"
#include "chaos/process/oracle.h"
#include "chaos/process/program.h"
#include "chaos/process/runner.h"
#include "chaos/process/watch.h"
#include "chaos/process/worker.h"

namespace warren::chaos::process {
namespace {

ProgramShape small_shape() {
  ProgramShape s;
  s.seed = 3;
  s.ranks = 3;
  s.bytes = kBigBytes + 4096;
  s.iterations = 6;
  s.checkpoint_every = 2;
  return s;
}

Record record(RecordEvent event, std::uint64_t iteration = 0, std::uint32_t call = 0, std::uint64_t value = 0) {
  Record r;
  r.event = static_cast<std::uint32_t>(event);
  r.rank = 1;
  r.iteration = iteration;
  r.call = call;
  r.value = value;
  return r;
}

// What rank 1 records in a life without faults.
std::vector<Record> honest(const Program& program) {
  Oracle oracle(program);
  std::vector<Record> out = {record(RecordEvent::kStarted), record(RecordEvent::kJoined, 0, 0, 1),
                             record(RecordEvent::kPreamble, 0, 0, oracle.preamble()[1]), record(RecordEvent::kLoaded),
                             record(RecordEvent::kLoadedLocal)};
  const auto setups = oracle.setups();
  for (std::uint32_t c = 0; c < setups.size(); c++) out.push_back(record(RecordEvent::kSetup, 0, c, setups[c][1]));
  for (std::uint64_t i = 0; i < program.shape().iterations; i++) {
    const auto& results = oracle.iteration(i);
    for (std::uint32_t c = 0; c < results.size(); c++) {
      out.push_back(record(RecordEvent::kResult, i, c, results[c][1]));
    }
  }
  out.push_back(record(RecordEvent::kFinished));
  return out;
}

std::string first_complaint(const Program& program, const std::vector<Record>& records) {
  Judge judge(program);
  for (const Record& r : records) {
    if (const auto why = judge.take(1, r)) return *why;
  }
  return "";
}

// Without it a run never ends. That of groups had none.
TEST(ChaosProgram, EachIterationDecidesOnceWhetherToGoOn) {
  ProgramShape shape = small_shape();
  shape.iterations = 0;
  for (const Mix mix : {Mix::kMixed, Mix::kBig, Mix::kInPlace, Mix::kAllocated, Mix::kInFlight, Mix::kGroups,
                        Mix::kOneSided, Mix::kSmall, Mix::kNarrow, Mix::kFused, Mix::kMessages, Mix::kLarge}) {
    SCOPED_TRACE(name_of(mix));
    shape.mix = mix;
    for (std::uint64_t i = 0; i < 5; i++) {
      const std::vector<Call> calls = Program(shape).iteration(i);
      EXPECT_EQ(std::ranges::count(calls, true, &Call::decision), 1);
      EXPECT_TRUE(calls.front().decision);
    }
  }
}

// Of most calls on all ranks, and of some on one and not on the other.
TEST(ChaosProgram, BuffersLieOnGpusWhereTheShapeSaysSo) {
  ProgramShape shape = small_shape();
  EXPECT_FALSE(Program(shape).places(1, 2, 0).in);
  shape.on_gpus = true;
  const Program program(shape);
  int all = 0, some = 0;
  for (std::uint64_t i = 0; i < 400; i++) {
    int on = 0;
    for (std::uint32_t rank = 0; rank < 3; rank++) on += program.places(i, 1, rank).in + program.places(i, 1, rank).out;
    all += on == 6;
    some += on > 0 && on < 6;
  }
  EXPECT_GT(all, 300);
  EXPECT_GT(some, 20);
}

TEST(ChaosJudge, AnHonestLifeIsRight) {
  const Program program(small_shape());
  Judge judge(program);
  for (const Record& r : honest(program)) EXPECT_EQ(judge.take(1, r), std::nullopt);
  EXPECT_TRUE(judge.progress(1).finished);
  EXPECT_FALSE(judge.all_finished());
  EXPECT_GT(judge.progress(1).rounds, 30u);
  EXPECT_EQ(judge.progress(1).replayed, 0u);
}

TEST(ChaosJudge, SeesAWrongBitAHoleAndAWrongState) {
  const Program program(small_shape());
  const std::vector<Record> good = honest(program);
  for (std::size_t i = 0; i < good.size(); i++) {
    const auto event = static_cast<RecordEvent>(good[i].event);
    if (event != RecordEvent::kResult && event != RecordEvent::kPreamble && event != RecordEvent::kSetup) continue;
    std::vector<Record> bad = good;
    bad[i].value ^= std::uint64_t{1} << (i % 64);
    EXPECT_NE(first_complaint(program, bad).find("digest"), std::string::npos) << i;
    if (event != RecordEvent::kResult || i + 2 >= good.size()) continue;
    bad = good;
    bad.erase(bad.begin() + static_cast<std::ptrdiff_t>(i));
    EXPECT_NE(first_complaint(program, bad).find("missing"), std::string::npos) << i;
  }
  Oracle oracle(program);
  std::vector<Record> loads = {record(RecordEvent::kStarted),
                               record(RecordEvent::kLoaded, 1, 0, oracle.version(1).global),
                               record(RecordEvent::kLoadedLocal, 1, 0, oracle.version(1).local[1])};
  EXPECT_EQ(first_complaint(program, loads), "");
  loads[2].value = oracle.version(1).local[2];
  EXPECT_NE(first_complaint(program, loads).find("local state"), std::string::npos);
  loads[1].value = oracle.version(2).global;
  EXPECT_NE(first_complaint(program, loads).find("global state"), std::string::npos);
}

TEST(ChaosJudge, VersionsNeverFallAndDecisionsAreEqual) {
  ProgramShape shape = small_shape();
  shape.iterations = 0;
  const Program program(shape);
  Oracle oracle(program);
  Judge judge(program);
  EXPECT_EQ(judge.take(1, record(RecordEvent::kStarted)), std::nullopt);
  EXPECT_EQ(judge.take(1, record(RecordEvent::kLoaded, 2, 0, oracle.version(2).global)), std::nullopt);
  EXPECT_EQ(judge.take(1, record(RecordEvent::kResult, 4, 0, 0)), std::nullopt);
  Record next = record(RecordEvent::kStarted);
  next.life = 1;
  EXPECT_EQ(judge.take(1, next), std::nullopt);
  next = record(RecordEvent::kLoaded, 2, 0, oracle.version(2).global);
  next.life = 1;
  EXPECT_EQ(judge.take(1, next), std::nullopt);
  next = record(RecordEvent::kResult, 4, 0, 1);
  next.life = 1;
  EXPECT_NE(judge.take(1, next), std::nullopt) << "what was decided is replayed, not decided again";
  next = record(RecordEvent::kLoaded, 1, 0, oracle.version(1).global);
  next.life = 1;
  EXPECT_NE(judge.take(1, next), std::nullopt) << "a version that was committed is gone";
}

// A job in mode shrink, and what its workers record of it.
class ShrunkJob {
 public:
  ShrunkJob() : program_(shape()), oracle_(program_) {
    for (std::uint64_t i = 0; i < program_.shape().iterations; i++) {
      for (std::uint32_t c = 0; c < program_.iteration(i).size(); c++) {
        // Rank 2 is lost in iteration 1, and is there again from iteration 4 on.
        const Contributors there = i == 0 || i >= 4 ? 0b111 : 0b011;
        Record r = record(RecordEvent::kResult, i, c, oracle_.next(there));
        r.contributors = there;
        results_.push_back(r);
      }
      if (program_.checkpoint_after(i)) {
        const std::uint64_t version = (i + 1) / program_.shape().checkpoint_every;
        states_.push_back(digest_of(program_.global_state(version, oracle_.state())));
      }
    }
  }
  static ProgramShape shape() {
    ProgramShape s = small_shape();
    s.min_workers = 2;
    return s;
  }
  [[nodiscard]] const Program& program() const { return program_; }
  [[nodiscard]] const std::vector<Record>& results() const { return results_; }

  // Those of a life that loads this version, as far as iteration `end`.
  [[nodiscard]] std::vector<Record> life(std::uint32_t number, std::uint64_t version, std::uint64_t end) const {
    std::vector<Record> out = {record(RecordEvent::kStarted),
                               record(RecordEvent::kLoaded, version, 0, version == 0 ? 0 : states_[version - 1])};
    for (const Record& r : results_) {
      if (r.iteration >= program_.first_iteration(version) && r.iteration < end) out.push_back(r);
    }
    for (Record& r : out) r.life = number;
    return out;
  }

 private:
  const Program program_;
  ShrinkOracle oracle_;
  std::vector<Record> results_;
  std::vector<std::uint64_t> states_;
};

// The first complaint about these records of these workers, one worker after the other, or about all of them.
std::string complaint(const Program& program, const std::vector<std::vector<Record>>& workers) {
  Judge judge(program);
  for (std::uint32_t w = 0; w < workers.size(); w++) {
    for (const Record& r : workers[w]) {
      if (const auto why = judge.take(w, r)) return *why;
    }
  }
  return judge.conclude().value_or("");
}

// Also where those are read first who have come back last.
TEST(ChaosJudge, InModeShrinkWhatAllHaveIsRightInWhateverOrderItIsRead) {
  const ShrunkJob job;
  std::vector<Record> lost = job.life(0, 0, 1);
  const std::vector<Record> back = job.life(1, 2, 6);
  lost.insert(lost.end(), back.begin(), back.end());
  const std::vector<Record> other = job.life(0, 0, 6);
  EXPECT_EQ(complaint(job.program(), {lost, other, other}), "");
  EXPECT_EQ(complaint(job.program(), {other, other, lost}), "");
}

TEST(ChaosJudge, InModeShrinkSeesOtherContributorsOtherBytesAndInputsOfOthers) {
  const ShrunkJob job;
  const std::vector<Record> good = job.life(0, 0, 6);
  for (std::size_t i = 2; i < good.size(); i++) {
    std::vector<Record> bad = good;
    bad[i].contributors ^= 0b100;
    EXPECT_NE(complaint(job.program(), {good, bad}).find("contributors"), std::string::npos) << i;
    bad = good;
    bad[i].value ^= 1;
    EXPECT_NE(complaint(job.program(), {good, bad}).find("elsewhere"), std::string::npos) << i;
    // All agree on it.
    const std::string why = complaint(job.program(), {bad, bad});
    EXPECT_NE(why.find("what all have said of iteration " + std::to_string(bad[i].iteration)), std::string::npos)
        << why;
    bad = good;
    bad[i].contributors = 0b001;
    EXPECT_NE(complaint(job.program(), {bad}).find("2 at least"), std::string::npos) << i;
    bad[i].contributors = 0b1011;
    EXPECT_NE(complaint(job.program(), {bad}).find("of 3 ranks"), std::string::npos) << i;
  }
  // All name one who has given nothing.
  std::vector<Record> bad = good;
  for (Record& r : bad) {
    if (r.iteration == 1) r.contributors = 0b111;
  }
  EXPECT_NE(complaint(job.program(), {bad}).find("what all have said of iteration 1"), std::string::npos);
}

TEST(ChaosJudge, InModeShrinkSeesWhatNobodyHasReturnedAndAStateThatNeverWas) {
  const ShrunkJob job;
  EXPECT_NE(complaint(job.program(), {job.life(0, 0, 1), job.life(0, 1, 6)}).find("nobody has said"),
            std::string::npos);
  std::vector<Record> bad = job.life(0, 1, 6);
  bad[1].value ^= 1;
  const std::vector<Record> good = job.life(0, 0, 6);
  EXPECT_NE(complaint(job.program(), {good, bad}).find("state of version 1"), std::string::npos);
  EXPECT_NE(complaint(job.program(), {bad, good}).find("state of version 1"), std::string::npos);
}

// By hand, for a call that can be checked by hand.
TEST(ChaosOracle, InModeShrinkAddsUpTheContributors) {
  ProgramShape shape = ShrunkJob::shape();
  shape.mix = Mix::kSmall;
  const Program program(shape);
  const std::size_t count = program.iteration(0)[0].count;
  std::vector<std::int64_t> sum(count, 0);
  for (const std::uint32_t r : {0u, 2u}) {
    const std::uint64_t base = program.input_base(0, 0, r, program.initial(r));
    for (std::size_t j = 0; j < count; j++) {
      sum[j] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum[j]) +
                                         static_cast<std::uint64_t>(element_at<std::int64_t>(base, j)));
    }
  }
  ShrinkOracle oracle(program);
  EXPECT_EQ(oracle.next(0b101), digest_of(std::as_bytes(std::span<const std::int64_t>(sum))));
  EXPECT_EQ(oracle.call(), 1u);
}

// By hand, for a call that can be checked by hand.
TEST(ChaosOracle, AddsUp) {
  ProgramShape shape = small_shape();
  shape.mix = Mix::kSmall;
  shape.iterations = 1;
  const Program program(shape);
  const std::vector<Call> calls = program.iteration(0);
  ASSERT_EQ(calls.size(), 100u);
  std::vector<std::int64_t> sum(calls[0].count, 0);
  for (std::uint32_t r = 0; r < 3; r++) {
    const std::uint64_t base = program.input_base(0, 0, r, program.initial(r));
    for (std::size_t j = 0; j < sum.size(); j++) {
      sum[j] = static_cast<std::int64_t>(static_cast<std::uint64_t>(sum[j]) +
                                         static_cast<std::uint64_t>(element_at<std::int64_t>(base, j)));
    }
  }
  Oracle oracle(program);
  const std::uint64_t want = digest_of(std::as_bytes(std::span<const std::int64_t>(sum)));
  EXPECT_EQ(oracle.iteration(0)[0], (std::vector<std::uint64_t>{want, want, want}));
  EXPECT_NE(oracle.iteration(0)[1][0], want);
}

TEST(ChaosProgram, AMixHasAllKindsAndABigCallInEachIteration) {
  ProgramShape shape = small_shape();
  shape.iterations = 0;
  const Program program(shape);
  std::vector<int> kinds(static_cast<std::size_t>(CallKind::kExchange) + 1, 0);
  int big = 0, groups = 0, in_flight = 0, all = 0;
  for (std::uint64_t i = 0; i < 200; i++) {
    for (const Call& c : program.iteration(i)) {
      kinds[static_cast<std::size_t>(c.kind)]++;
      big += call_bytes(c, 3) > kBigBytes ? 1 : 0;
      groups += c.on_group ? 1 : 0;
      in_flight += c.in_flight ? 1 : 0;
      all++;
    }
  }
  for (const int n : kinds) EXPECT_GT(n, 0);
  EXPECT_GE(big, 200) << "each iteration has a big one";
  EXPECT_GT(groups, 50);
  EXPECT_GT(in_flight, 100);
  EXPECT_GT(all, 1500);
}

TEST(ChaosProgram, InModeShrinkThereAreAllreducesAndBarriersOnAllRanks) {
  ProgramShape shape = ShrunkJob::shape();
  shape.iterations = 0;
  const Program program(shape);
  int big = 0, averages = 0, barriers = 0, in_flight = 0, in_place = 0;
  for (std::uint64_t i = 0; i < 200; i++) {
    const std::vector<Call> calls = program.iteration(i);
    EXPECT_TRUE(calls[0].decision);
    for (const Call& c : calls) {
      EXPECT_TRUE(c.kind == CallKind::kAllreduce || c.kind == CallKind::kBarrier);
      EXPECT_FALSE(c.on_group || c.on_own_group || c.prepares || c.wire != CallWire::kNone);
      EXPECT_TRUE(c.op != CallOp::kAverage || c.type == ElementType::kF32 || c.type == ElementType::kF64);
      big += call_bytes(c, 3) > kBigBytes ? 1 : 0;
      averages += c.op == CallOp::kAverage ? 1 : 0;
      barriers += c.kind == CallKind::kBarrier ? 1 : 0;
      in_flight += c.in_flight ? 1 : 0;
      in_place += c.in_place ? 1 : 0;
    }
  }
  EXPECT_GE(big, 200);
  EXPECT_GT(averages, 50);
  EXPECT_GT(barriers, 50);
  EXPECT_GT(in_flight, 100);
  EXPECT_GT(in_place, 500);
}

class Folder {
 public:
  Folder() : path_(::testing::TempDir() + "warren-chaos-test-XXXXXX") { EXPECT_NE(mkdtemp(path_.data()), nullptr); }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void append(const std::string& folder, std::uint32_t worker, const Record& record) {
  std::ofstream(records_path(folder, worker), std::ios::app | std::ios::binary)
      .write(reinterpret_cast<const char*>(&record), sizeof record);
}

// The last result before the fault to the first new one of the worker that is last; replayed results are none.
TEST(ChaosWatch, MeasuresAStall) {
  const Folder folder;
  auto opened = Watch::open(folder.path(), 2);
  ASSERT_TRUE(opened.ok());
  Watch watch = std::move(opened).value();
  const auto result = [&](std::uint32_t worker, std::uint64_t iteration, std::uint64_t at_ms) {
    Record r = record(RecordEvent::kResult, iteration);
    r.at_ns = at_ms * 1'000'000;
    append(folder.path(), worker, r);
  };
  result(0, 0, 100);
  result(1, 0, 110);
  result(0, 1, 120);
  watch.look();
  EXPECT_FALSE(watch.recovering());
  EXPECT_EQ(watch.rounds(), 1u);
  const std::size_t fault = watch.fault(115'000'000);  // heard of late: 120 was after it
  EXPECT_TRUE(watch.recovering());
  result(1, 0, 300);  // replayed
  watch.look();
  EXPECT_TRUE(watch.recovering());
  EXPECT_EQ(watch.stall_ms(fault), std::nullopt);
  result(1, 1, 350);
  watch.look();
  EXPECT_FALSE(watch.recovering());
  ASSERT_TRUE(watch.stall_ms(fault).has_value());
  EXPECT_DOUBLE_EQ(*watch.stall_ms(fault), 240);
}

// A figure of what one fault takes is none of two.
TEST(ChaosWatch, KnowsWhichFaultsWereAlone) {
  const Folder folder;
  auto opened = Watch::open(folder.path(), 1);
  ASSERT_TRUE(opened.ok());
  Watch watch = std::move(opened).value();
  const auto result = [&](std::uint64_t iteration, std::uint64_t at_ms) {
    Record r = record(RecordEvent::kResult, iteration);
    r.at_ns = at_ms * 1'000'000;
    append(folder.path(), 0, r);
    watch.look();
  };
  result(0, 100);
  const std::size_t alone = watch.fault(110'000'000);
  result(1, 120);
  const std::size_t first = watch.fault(130'000'000), second = watch.fault(140'000'000);
  result(2, 150);
  const std::size_t last = watch.fault(160'000'000);
  EXPECT_TRUE(watch.alone(alone));
  EXPECT_FALSE(watch.alone(first));
  EXPECT_FALSE(watch.alone(second));
  EXPECT_TRUE(watch.alone(last));
}

// What a takeover is counted by: whose process a life is of, and how long it replays.
TEST(ChaosWatch, KnowsWhoseProcessALifeIsOfAndHowLongItReplays) {
  const Folder folder;
  auto opened = Watch::open(folder.path(), 1);
  ASSERT_TRUE(opened.ok());
  Watch watch = std::move(opened).value();
  const auto say = [&](RecordEvent event, std::uint32_t life, std::uint64_t iteration, std::uint32_t call,
                       std::uint64_t at_ms) {
    Record r = record(event, iteration, call);
    r.life = life;
    r.at_ns = at_ms * 1'000'000;
    append(folder.path(), 0, r);
  };
  say(RecordEvent::kJoined, 0, 0, 0, 10);
  say(RecordEvent::kLoaded, 0, 0, 0, 20);
  for (const std::uint64_t i : {0u, 1u, 2u}) say(RecordEvent::kResult, 0, i, 0, 30 + i);
  say(RecordEvent::kJoined, 1, 0, 4, 100);
  say(RecordEvent::kLoaded, 1, 1, 0, 110);
  say(RecordEvent::kResult, 1, 1, 0, 120);
  say(RecordEvent::kResult, 1, 2, 0, 130);
  say(RecordEvent::kResult, 1, 3, 0, 150);
  watch.look();
  EXPECT_EQ(watch.process_of(0, 0), 0u);
  EXPECT_EQ(watch.process_of(0, 1), 4u);
  EXPECT_EQ(watch.process_of(0, 2), std::nullopt);
  EXPECT_DOUBLE_EQ(watch.replay_ms(0, 0), 0);
  EXPECT_DOUBLE_EQ(watch.replay_ms(0, 1), 20);
}

// In mode shrink to the first call whose result all of its contributors have, and nobody had before.
TEST(ChaosWatch, MeasuresAStallOfThoseWhoAreThere) {
  const Folder folder;
  auto opened = Watch::open(folder.path(), 3, true);
  ASSERT_TRUE(opened.ok());
  Watch watch = std::move(opened).value();
  const auto result = [&](std::uint32_t worker, std::uint64_t iteration, std::uint64_t at_ms, Contributors there) {
    Record r = record(RecordEvent::kResult, iteration);
    r.at_ns = at_ms * 1'000'000;
    r.contributors = there;
    append(folder.path(), worker, r);
  };
  for (std::uint32_t w = 0; w < 3; w++) result(w, 0, 100 + w, 0b111);
  watch.look();
  EXPECT_TRUE(watch.all_there());
  const std::size_t fault = watch.fault(110'000'000, Watch::Life{2, 0});
  // The lost one had contributed, and whether it dies a moment later says nothing.
  for (std::uint32_t w = 0; w < 3; w++) result(w, 1, 120 + w, 0b111);
  result(0, 2, 150, 0b011);
  watch.look();
  EXPECT_TRUE(watch.recovering());
  result(1, 2, 160, 0b011);
  watch.look();
  EXPECT_FALSE(watch.recovering());
  EXPECT_DOUBLE_EQ(watch.stall_ms(fault).value_or(0), 58);
  EXPECT_EQ(watch.ended_with(fault), 0b011u);
  EXPECT_FALSE(watch.all_there());
  EXPECT_EQ(watch.last_progress_ns(), 150'000'000u) << "since then somebody is missing";
  EXPECT_EQ(watch.rounds(), 3u);
  // Of another fault, with nobody lost.
  const std::size_t next = watch.fault(170'000'000);
  result(0, 3, 180, 0b011);
  result(1, 3, 190, 0b011);
  watch.look();
  EXPECT_DOUBLE_EQ(watch.stall_ms(next).value_or(0), 30);
}

// As between two processes: each has a mapping of its own.
TEST(ChaosPage, WhoIsKeptAwaySleepsUntilItIsLetIn) {
  const Folder folder;
  const auto runner = map_page(page_path(folder.path(), 0)), worker = map_page(page_path(folder.path(), 0));
  ASSERT_TRUE(runner.ok() && worker.ok());
  wait_until_let_in(*worker.value());  // nobody has kept it away
  keep_away(*runner.value());
  std::thread life([&] {
    wait_until_let_in(*worker.value());
    EXPECT_EQ(worker.value()->away.load(), 0U);
  });
  let_in(*runner.value());
  life.join();
}

// Each launcher that `warren run --timeline` starts would begin it anew.
TEST(ChaosCluster, LaunchersAppendToOneTimeline) {
  const Folder folder;
  const std::string timeline = folder.path() + "/timeline", program = folder.path() + "/program";
  std::ofstream(timeline) << "of a run before";
  std::ofstream(program) << "#!/bin/sh\necho \"$WARREN_TIMELINE $*\"\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  ClusterOptions options;
  options.program = program;
  options.folder = folder.path();
  options.shape = small_shape();
  options.timeline = timeline;
  const auto cluster = Cluster::create(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status().describe();
  EXPECT_EQ(std::filesystem::file_size(timeline), 0U);
  ASSERT_TRUE(cluster.value()->start_host(0).ok());
  while (!cluster.value()->ended(0)) std::this_thread::yield();
  std::ifstream log(cluster.value()->log_file("host-0"));
  std::string said;
  ASSERT_TRUE(std::getline(log, said));
  EXPECT_EQ(said.rfind(timeline + " run ", 0), 0U) << said;
  EXPECT_EQ(said.find("--timeline"), std::string::npos) << said;

  options.timeline = folder.path() + "/missing/timeline";
  EXPECT_FALSE(Cluster::create(options).ok());
}

TEST(ChaosShape, IsReadAsItWasWrittenAndDamageIsRefused) {
  const Folder folder;
  EXPECT_FALSE(read_shape(folder.path()).ok());
  ProgramShape shape = small_shape();
  shape.mix = Mix::kInFlight;
  shape.min_workers = 2;
  ASSERT_TRUE(write_shape(folder.path(), shape).ok());
  const auto read = read_shape(folder.path());
  ASSERT_TRUE(read.ok()) << read.status().describe();
  EXPECT_EQ(read.value().seed, shape.seed);
  EXPECT_EQ(read.value().mix, Mix::kInFlight);
  EXPECT_EQ(read.value().bytes, shape.bytes);
  EXPECT_EQ(read.value().min_workers, 2u);
  for (const char* text : {"", "[]", "{\"ranks\":3}", "{\"seed\":1,\"ranks\":17}"}) {
    std::ofstream(shape_path(folder.path())) << text;
    EXPECT_FALSE(read_shape(folder.path()).ok()) << text;
  }
}

// Faults of some kinds bring a log on disk with them, whatever was asked for.
TEST(ChaosReport, SaysWhetherThereWasALogOnDisk) {
  ChaosReport report;
  report.disk_log = true;
  EXPECT_NE(report.json(ChaosOptions()).find("\"disk_log\":true"), std::string::npos);
}

}  // namespace
}  // namespace warren::chaos::process
