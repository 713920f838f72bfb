// Processes whose large allreduces NCCL, here a fake, moves the bytes of: every result is that of the same job on the
// CPU, bit for bit, whatever happens to NCCL or to a process.
#include <gmock/gmock.h>
#include <stdlib.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"
#include "tests/e2e/loan_jobs.h"

namespace warren {
namespace {

using ::testing::HasSubstr;

// What workers load in the place of libwarren_cuda.so.
const bool kFakeLoads = setenv("WARREN_DEVICE_LIBRARY", WARREN_FAKE_DEVICE, 1) == 0 &&
                        setenv("WARREN_NCCL_ROOT", WARREN_NCCL_ROOT_PROGRAM, 1) == 0;

using testing::file_text;

std::vector<std::string> run_processes(const std::string& folder, const std::string& mode, const std::string& fault,
                                       const std::string& flag = "") {
  EXPECT_TRUE(kFakeLoads);
  return testing::run_processes(folder, mode, 12, fault, flag);
}

// Rounds that NCCL has moved the bytes of.
int exchanged(const std::string& folder) {
  return testing::counted(folder, ".exchanged");
}

TEST(NcclProcesses, GiveTheBitsOfTheCpuWhateverHappens) {
  const testing::TempDir folder;
  const std::string none = "none none 0 none";
  const auto expected = run_processes(folder / "cpu", "cpu", none);
  for (const std::string& state : expected) {
    ASSERT_EQ(state.size(), 3'001 * sizeof(float));
    EXPECT_EQ(state, expected[0]);
  }
  EXPECT_EQ(exchanged(folder / "cpu"), 0);
  for (const char* mode : {"nccl", "nccl-mixed"}) {
    EXPECT_EQ(run_processes(folder / mode, mode, none), expected);
    EXPECT_GT(exchanged(folder / mode), 2) << mode;
  }
  struct Case {
    const char* fault;
    const char* says;  // in the log
  };
  // A round has six turns: inputs, inputs, finals, inputs, finals, finals.
  for (const Case& c : {
           Case{"1 stream.nccl_exchange 0 kill", "signal 9"},
           Case{"0 stream.nccl_exchange 8 kill", "signal 9"},  // with the id's process
           Case{"2 stream.nccl_exchange 11 kill", "signal 9"},
           Case{"1 nccl_exchange 9 kill", "signal 9"},
           Case{"2 stream.nccl_exchange 7 stop", "hung and was killed"},
           Case{"0 stream.nccl_exchange 10 stop", "hung and was killed"},
           Case{"1 stream.nccl_exchange 6 late", ""},
           Case{"2 stream.nccl_exchange 2 late", ""},
           // Neither a revoke nor an abort ends what the GPU is at.
           Case{"0 stream.nccl_exchange 7 hang", "nothing has come of a turn for 2000 ms"},
           // Their peers take it for all that was to come.
           Case{"0 stream.nccl_exchange 6 abort", "nothing has come of a turn for 2000 ms"},
           Case{"2 stream.nccl_exchange 8 abort", "nothing has come of a turn for 2000 ms"},
           Case{"1 stream.nccl_exchange 11 abort", "nothing has come of a turn for 2000 ms"},
           Case{"1 stream.nccl_exchange 9 flip", "has another checksum than what was sent"},
           Case{"1 stream.nccl_exchange 4 error", "injected into stream.nccl_exchange"},
           Case{"2 nccl_exchange 3 error", "NCCL does not take messages among GPUs: injected into nccl_exchange"},
           Case{"0 nccl_state 60 error", "injected into nccl_state"},
           // What is made of inputs that have come so.
           Case{"0 stream.reduce 3 kill", "signal 9"},
           Case{"1 stream.reduce 2 stop", "hung and was killed"},
           Case{"2 reduce 1 error", "injected into reduce"},
           // When it is brought up.
           Case{"0 nccl_join 0 kill", "signal 9"},
           Case{"1 nccl_join 0 late", ""},
           Case{"2 nccl_join 0 hang", ""},
       }) {
    SCOPED_TRACE(c.fault);
    std::string name = c.fault;
    std::ranges::replace(name, ' ', '-');
    EXPECT_EQ(run_processes(folder / name, "nccl", c.fault), expected);
    EXPECT_THAT(file_text(folder / name + "/log"), HasSubstr(c.says)) << "nothing has happened";
  }
}

// Nothing ever lets go of the thread that has given NCCL a turn: the program's, or the engine's. The process ends all
// the same, and the job goes on with its next life.
TEST(NcclProcesses, AThreadThatNeverComesBackFromNcclEndsItsProcess) {
  const testing::TempDir folder;
  const auto expected = run_processes(folder / "cpu", "cpu", "none none 0 none");
  struct Case {
    const char* mode;
    const char* flag;
    const char* says;
  };
  for (const Case& c : {
           Case{"nccl", "", "ended with exit code 76"},
           Case{"nccl-async", "", "ended with exit code 76"},
           Case{"nccl", "--on_rollback=error", "hung and was killed"},
           Case{"nccl-async", "--on_rollback=error", "hung and was killed"},
       }) {
    SCOPED_TRACE(std::string(c.mode) + c.flag);
    const std::string here = folder / (std::string(c.mode) + c.flag);
    EXPECT_EQ(run_processes(here, c.mode, "1 nccl_exchange 4 hang", c.flag), expected);
    EXPECT_THAT(file_text(here + "/log"), HasSubstr(c.says));
    EXPECT_THAT(file_text(here + "/log"), HasSubstr("has not ended in 2000 ms"));
  }
}

}  // namespace
}  // namespace warren
