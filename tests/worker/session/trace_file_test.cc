// The file of a timeline: what each event becomes, bounds, and who is killed in the middle of a line.
#include "worker/session/trace_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/worker/no_threads.h"

namespace warren::worker {
namespace {

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest() {
    char name[] = "/tmp/warren-trace-XXXXXX";
    folder_ = mkdtemp(name);
    path_ = folder_ + "/trace.json";
  }
  ~TraceFileTest() override { std::filesystem::remove_all(folder_); }

  [[nodiscard]] std::unique_ptr<TraceFile> open() {
    Log log;
    log.sink = [](warren_log_level, const char* text, void* context) {
      static_cast<std::string*>(context)->append(text);
    };
    log.context = &said_;
    auto file = TraceFile::open(path_, log);
    EXPECT_TRUE(file.ok()) << file.status().describe();
    return std::move(file).value();
  }
  [[nodiscard]] std::string text() const {
    std::ifstream file(path_);
    std::ostringstream all;
    all << file.rdbuf();
    return all.str();
  }
  // Its events but for those that name rows and processes.
  [[nodiscard]] std::vector<nlohmann::json> events() const {
    const std::string all = text();
    EXPECT_TRUE(all.starts_with("[\n"));
    EXPECT_TRUE(all.ends_with("\n]\n"));
    std::vector<nlohmann::json> out;
    for (const auto& e : nlohmann::json::parse(all)) {
      if (e["ph"] != "M") out.push_back(e);
    }
    return out;
  }
  static std::string shape(const std::vector<nlohmann::json>& events) {
    std::string out;
    for (const auto& e : events) {
      out += e["ph"].get<std::string>() + ":" + e["name"].get<std::string>() + " ";
    }
    return out;
  }

  std::string folder_, path_, said_;
};

void allreduce(Call& call, std::uint64_t sequence) {
  call.spec.collective = Collective::kAllreduce;
  call.spec.type = DataType::kF32;
  call.spec.op = ReduceOp::kSum;
  call.spec.count = 1000;
  call.round = {Timeline(0), kWorldGroup, Version(3), Sequence(sequence)};
  call.fingerprint = fingerprint_of(call.spec, 4);
}

TEST_F(TraceFileTest, StagesEndWithTheNextOneOrWithTheirRound) {
  {
    const auto file = open();
    file->belongs_to(Rank(3), "w\"3", 2);
    Call call;
    allreduce(call, 7);
    file->issued(call);
    file->round_began(0, call);
    file->round_does(0, Trace::Stage::kPrepares);
    file->round_does(0, Trace::Stage::kRuns);
    file->round_ended(0);
    file->ended(call);
    file->begin(TraceFile::Row::kRecovery, "recovery", "rank 2\nis \\ \"gone\"");
    file->end(TraceFile::Row::kRecovery);
    file->was(TraceFile::Row::kWaits, TraceFile::now_ns() - 5'000, "waits", "for rank 2");
    file->begin_here("backward");
    file->end_here();
  }
  const auto all = events();
  EXPECT_EQ(shape(all),
            "b:allreduce sum 1000 x f32 B:allreduce sum 1000 x f32 B:prepare E: B:run E: E: e:allreduce sum 1000 x f32 "
            "B:recovery E: X:waits B:backward E: ");
  EXPECT_EQ(all[0]["id"], all[7]["id"]);
  EXPECT_EQ(all[1]["args"]["round"], "round 2.7");
  EXPECT_EQ(all[8]["args"]["detail"], "rank 2?is \\ \"gone\"");
  EXPECT_GE(all[10]["dur"].get<double>(), 5.0);
  EXPECT_EQ(all[0]["pid"].get<int>() >> 16, 3);
  EXPECT_EQ(all[1]["tid"], all[6]["tid"]);
  EXPECT_NE(all[11]["tid"], all[1]["tid"]);
  EXPECT_NE(text().find(R"("process_name","ph":"M","pid":)"), std::string::npos);
  EXPECT_NE(text().find(R"("rank 3, worker w\"3, attempt 2")"), std::string::npos);
}

TEST_F(TraceFileTest, NothingIsWrittenBeforeItIsKnownWhoWrites) {
  const auto file = open();
  file->begin_here("before the plan");
  file->end_here();
  file->flush();
  EXPECT_EQ(text(), "[\n]\n");
  file->belongs_to(Rank(0), "0", 0);
  file->flush();
  EXPECT_EQ(shape(events()), "B:before the plan E: ");
}

TEST_F(TraceFileTest, WhatIsTooMuchAtOnceIsCounted) {
  {
    const auto file = open();  // nothing is taken out before it is known who writes
    for (std::size_t i = 0; i < TraceFile::kMostEvents + 5; i++) file->instant(TraceFile::Row::kWaits, "i");
    file->belongs_to(Rank(0), "0", 0);
    file->flush();
    file->instant(TraceFile::Row::kWaits, std::string(1000, 'x'));
  }
  const auto all = events();
  ASSERT_EQ(all.size(), TraceFile::kMostEvents + 2);
  EXPECT_EQ(all[TraceFile::kMostEvents]["name"], "5 events left out: too many at once");
  EXPECT_EQ(all.back()["name"].get<std::string>().size(), TraceFile::kMostTextBytes);
}

TEST_F(TraceFileTest, ManyAppendAndALineThatAKillHasCutIsRemoved) {
  {
    const auto one = open(), other = open();
    one->belongs_to(Rank(0), "0", 0);
    other->belongs_to(Rank(1), "1", 0);
    one->instant(TraceFile::Row::kWaits, "a");
    one->flush();
    // A process was killed in the middle of its write.
    std::ofstream(path_, std::ios::app) << R"({"ph":"B","name":"cut o)";
    other->instant(TraceFile::Row::kWaits, "b");
    other->flush();
    std::ofstream(path_, std::ios::app) << "{\"ph\"";
  }
  {
    const auto next = open();
    EXPECT_EQ(shape(events()), "i:a i:b ");
    next->belongs_to(Rank(0), "0", 1);
    next->instant(TraceFile::Row::kWaits, "c");
  }
  EXPECT_EQ(shape(events()), "i:a i:b i:c ");
}

// Whoever was stopped while it wrote has the file's lock.
TEST_F(TraceFileTest, AFileThatIsNoTimelineStaysAsItIs) {
  for (const std::string& text : {std::string("{\"precious\": 1}"), "[1, 2]\n" + std::string(10'000, 'x')}) {
    std::ofstream(path_) << text;
    const auto file = TraceFile::open(path_, Log());
    EXPECT_FALSE(file.ok());
    std::ifstream in(path_);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), text);
  }
}

TEST_F(TraceFileTest, AStoppedWriterIsNotWaitedFor) {
  const auto file = open();
  file->belongs_to(Rank(0), "0", 0);
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX), 0);
  file->instant(TraceFile::Row::kWaits, "a");
  file->flush();
  EXPECT_EQ(text(), "[\n]\n") << "it may be mending the file's end";
  ::close(fd);
  file->instant(TraceFile::Row::kWaits, "b");
  file->flush();
  EXPECT_NE(text().find("events left out"), std::string::npos);
  EXPECT_NE(text().find("\"b\""), std::string::npos);
}

TEST_F(TraceFileTest, AThreadThatCannotBeStartedIsAnErrorOfOpen) {
  const int blocked = testing::blocked_signals();
  Result<std::unique_ptr<TraceFile>> file = Status(Code::kInternal, "not opened");
  {
    const testing::NoThreads none;
    file = TraceFile::open(path_, Log());
  }
  EXPECT_EQ(file.status().code(), Code::kUnavailable) << file.status().describe();
  EXPECT_NE(file.status().describe().find("cannot start a thread"), std::string::npos) << file.status().describe();
  EXPECT_EQ(testing::blocked_signals(), blocked);
}

TEST_F(TraceFileTest, WhatCannotBeWrittenIsTold) {
  EXPECT_NE(TraceFile::open(folder_ + "/none/trace.json", Log()).status().describe().find("cannot open the timeline"),
            std::string::npos);
  EXPECT_EQ(TraceFile::open("/dev/null", Log()).status().code(), Code::kUnavailable);
  const auto file = open();
  file->belongs_to(Rank(0), "0", 0);
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit none{2, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &none);
  file->instant(TraceFile::Row::kWaits, "a");
  file->flush();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_NE(said_.find("cannot write the timeline"), std::string::npos);
  file->instant(TraceFile::Row::kWaits, "b");
  file->flush();
  EXPECT_EQ(text(), "[\n");
}

}  // namespace
}  // namespace warren::worker
