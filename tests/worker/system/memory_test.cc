// What control groups allow, and have left, by folders that a test makes.
#include "worker/system/memory.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace warren::worker {
namespace {

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    char name[] = "/tmp/warren-cgroup-XXXXXX";
    root_ = mkdtemp(name);
  }
  ~MemoryTest() override { std::filesystem::remove_all(root_); }
  void put(const std::string& file, const std::string& text) const {
    const std::filesystem::path at = root_ + "/" + file;
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text << "\n";
  }

  std::string root_;
};

TEST_F(MemoryTest, ControlGroupsLimitIt) {
  put("a/b/memory.max", "max");
  EXPECT_EQ(control_group_memory("0::/a/b\n", root_), std::nullopt);
  put("a/memory.max", "7000");
  EXPECT_EQ(control_group_memory("0::/a/b\n", root_), 7000u);
  put("a/b/memory.max", "5000");
  EXPECT_EQ(control_group_memory("0::/a/b\n", root_), 5000u);
  EXPECT_EQ(control_group_memory("0::/elsewhere\n", root_), std::nullopt);
  put("memory.max", "9000");
  EXPECT_EQ(control_group_memory("0::/elsewhere\n", root_), 9000u);
  EXPECT_EQ(control_group_memory("0::/\n", root_), 9000u);
  put("memory/x/memory.limit_in_bytes", "300");
  EXPECT_EQ(control_group_memory("11:cpu,memory:/x\n3:cpuset:/y\n", root_), 300u);
  EXPECT_EQ(control_group_memory("nonsense\n\n:\n4:memory_recursive:/x\n", root_), std::nullopt);
}

TEST_F(MemoryTest, WhereAGroupIsHeldBackIsAsFarAsItGoes) {
  put("a/memory.max", "max");
  put("a/memory.high", "6000");
  EXPECT_EQ(control_group_memory("0::/a\n", root_), 6000u);
  put("a/memory.max", "5000");
  EXPECT_EQ(control_group_memory("0::/a\n", root_), 5000u);
  put("a/memory.high", "max");
  EXPECT_EQ(control_group_memory("0::/a\n", root_), 5000u);
}

TEST_F(MemoryTest, WhatIsLeftIsTheLeastOfAllGroups) {
  EXPECT_EQ(control_group_memory_left("0::/a/b\n", root_), std::nullopt);
  put("a/b/memory.max", "max");
  put("a/b/memory.current", "6000");
  EXPECT_EQ(control_group_memory_left("0::/a/b\n", root_), std::nullopt);
  put("a/memory.max", "7000");
  put("a/memory.current", "6500");
  EXPECT_EQ(control_group_memory_left("0::/a/b\n", root_), 500u);
  put("a/memory.stat", "anon 5000\nfile 1500\nactive_file 100\ninactive_file 300\nslab 9");
  EXPECT_EQ(control_group_memory_left("0::/a/b\n", root_), 900u) << "what files have in memory can go";
  put("a/b/memory.max", "6000");
  EXPECT_EQ(control_group_memory_left("0::/a/b\n", root_), 0u);
  put("a/b/memory.current", "9000");
  EXPECT_EQ(control_group_memory_left("0::/a/b\n", root_), 0u) << "the limit was lowered";
  put("memory/x/memory.limit_in_bytes", "300");
  put("memory/x/memory.usage_in_bytes", "250");
  put("memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 20\ntotal_active_file 3");
  EXPECT_EQ(control_group_memory_left("11:cpu,memory:/x\n", root_), 73u);
}

TEST_F(MemoryTest, OfThisMachineSomeIsLeft) {
  const auto left = memory_left();
  ASSERT_TRUE(left.has_value());
  EXPECT_GT(*left, 0u);
}

}  // namespace
}  // namespace warren::worker
