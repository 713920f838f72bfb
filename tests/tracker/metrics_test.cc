#include "tracker/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warren::tracker {
namespace {

using testing::HasSubstr;

Snapshot with_job(std::uint64_t serial, std::uint64_t joins) {
  JobStatus job;
  job.name = "a";
  job.serial = serial;
  job.view.state = TrackerMachine::State::kRunning;
  job.view.joins = joins;
  Snapshot s;
  s.jobs.push_back(job);
  return s;
}

// It was forgotten and made anew between two looks.
TEST(Metrics, AJobOfTheSameNameBeginsAtNought) {
  Metrics metrics("1");
  metrics.update({}, with_job(1, 7));
  EXPECT_THAT(metrics.text(), HasSubstr("warren_job_joins_total{job=\"a\"} 7\n"));
  metrics.update({}, with_job(1, 9));
  EXPECT_THAT(metrics.text(), HasSubstr("warren_job_joins_total{job=\"a\"} 9\n"));
  metrics.update({}, with_job(2, 3));
  EXPECT_THAT(metrics.text(), HasSubstr("warren_job_joins_total{job=\"a\"} 3\n"));
}

}  // namespace
}  // namespace warren::tracker
