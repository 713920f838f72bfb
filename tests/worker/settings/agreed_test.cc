#include "worker/settings/agreed.h"

#include <gtest/gtest.h>

#include "recovery/wire/codec.h"
#include "recovery/wire/job_settings.h"

namespace warren::worker {
namespace {

Settings some() {
  Settings s;
  s.world_size = 5;
  s.max_workers = 5;
  s.round_timeout_ms = 2000;
  s.algorithm = "ring";
  s.chunk_bytes = 4096;
  s.streams = 3;
  s.checksums = false;
  s.check_call_sites = true;
  s.replicas = 3;
  s.replace_after_ms = 7000;
  s.mode = Mode::kShrink;
  s.min_workers = 2;
  s.grace_ms = 500;
  s.rewire = true;
  s.deterministic = false;
  return s;
}

// Field by field, as the tracker of an older build reads it.
TEST(AgreedSettings, AreThoseOfTheWorker) {
  const wire::JobSettings job = agreed_settings(some(), "5d1f23ab {}", 22809);
  EXPECT_EQ(job.world_size(), 5u);
  EXPECT_EQ(job.round_timeout_ms(), 2000u);
  EXPECT_EQ(job.algorithm(), "ring");
  EXPECT_EQ(job.chunk_bytes(), 4096u);
  EXPECT_EQ(job.streams(), 3u);
  EXPECT_FALSE(job.checksums());
  EXPECT_TRUE(job.check_call_sites());
  EXPECT_EQ(job.replicas(), 3u);
  EXPECT_EQ(job.costs(), "5d1f23ab {}");
  EXPECT_EQ(job.replace_after_ms(), 7000u);
  EXPECT_EQ(job.min_workers(), 2u);
  EXPECT_EQ(job.grace_ms(), 500u);
  EXPECT_TRUE(job.rewire());
  EXPECT_TRUE(job.reorders());
  EXPECT_TRUE(job.elastic_start());
  EXPECT_EQ(job.nccl(), 22809u);
  EXPECT_TRUE(validate(job).ok()) << validate(job).describe();
}

TEST(AgreedSettings, NoLinkIsGoneAroundWhereNothingIsLogged) {
  Settings s = some();
  s.replicas = 0;
  EXPECT_FALSE(agreed_settings(s, "", 0).rewire());
  EXPECT_FALSE(agreed_settings(s, "", 0).reorders());
  s = some();
  s.rewire = false;
  EXPECT_FALSE(agreed_settings(s, "", 0).reorders());
  s = some();
  s.deterministic = true;
  EXPECT_FALSE(agreed_settings(s, "", 0).reorders());
  s.max_workers = 0;
  EXPECT_FALSE(agreed_settings(s, "", 0).elastic_start());
}

// A job's setting that no worker sets would be the same everywhere.
TEST(AgreedSettings, EachOneOfTheJobsIsSet) {
  const wire::JobSettings job = agreed_settings(some(), "5d1f23ab {}", 22809);
  for (const JobSetting& setting : job_settings()) {
    if (setting.name == "checksums") continue;
    EXPECT_TRUE(setting.text != nullptr ? !setting.text(job).empty() : setting.get(job) != 0) << setting.name;
  }
}

}  // namespace
}  // namespace warren::worker
