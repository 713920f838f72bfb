#include "worker/launch/joined_mark.h"

#include <gmock/gmock.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

namespace warren::worker {
namespace {

using ::testing::HasSubstr;

Settings worker(const std::string& id) {
  Settings settings;
  settings.tracker_host = "127.0.0.1";
  settings.tracker_port = 9370;
  settings.job = "job";
  settings.worker_id = id;
  settings.resolved = {{"worker_id", id, "WARREN_WORKER_ID"}};
  return settings;
}

bool may_join(const Settings& settings) {
  return JoinedMark::make(settings).ok();
}

// What `body` says in a child of this process.
bool in_a_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 0;
}

TEST(JoinedMark, AChildDoesNotTakeTheRankOfItsParentThatIsInTheJob) {
  const auto mark = JoinedMark::make(worker("0"));
  ASSERT_TRUE(mark.ok()) << mark.status().describe();
  EXPECT_FALSE(in_a_child([] { return may_join(worker("0")); }));
  EXPECT_FALSE(in_a_child([] { return in_a_child([] { return may_join(worker("0")); }); })) << "nor a child of its";
  EXPECT_TRUE(in_a_child([] {
    const Status refused = JoinedMark::make(worker("0")).status();
    return refused.code() == Code::kInvalidArgument &&
           ::testing::Value(refused.describe(), ::testing::AllOf(HasSubstr(std::to_string(::getppid())),
                                                                 HasSubstr("job"), HasSubstr("WARREN_WORKER_ID")));
  }));
}

TEST(JoinedMark, AChildJoinsAsAnotherWorkerOrAnotherJob) {
  const auto mark = JoinedMark::make(worker("0"));
  ASSERT_TRUE(mark.ok()) << mark.status().describe();
  EXPECT_TRUE(in_a_child([] { return may_join(worker("1")); }));
  EXPECT_TRUE(in_a_child([] {
    Settings other = worker("0");
    other.job = "another";
    return may_join(other);
  }));
  EXPECT_TRUE(in_a_child([] {
    Settings other = worker("0");
    other.tracker_port = 9371;
    return may_join(other);
  }));
  EXPECT_TRUE(may_join(worker("0"))) << "the process itself";
}

// As a launcher's restarts, and the workers of a program that was a worker once.
TEST(JoinedMark, AChildTakesTheRankOfAParentThatHasLeft) {
  { const auto mark = JoinedMark::make(worker("0")); }
  EXPECT_TRUE(in_a_child([] { return may_join(worker("0")); }));
}

}  // namespace
}  // namespace warren::worker
