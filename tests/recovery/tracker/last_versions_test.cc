#include "recovery/tracker/last_versions.h"

#include <gtest/gtest.h>

namespace warren::test {
namespace {

TEST(LastVersions, NamesARankOfTheOldestAndOneOfTheNewest) {
  LastVersions last;
  EXPECT_FALSE(last.oldest());
  last.note(4, Version(3));
  EXPECT_EQ(last.oldest()->rank, 4u);
  EXPECT_EQ(last.newest()->rank, 4u);
  last.note(1, Version(5));
  last.note(2, Version(2));
  last.note(3, Version(5));
  EXPECT_EQ(last.oldest()->rank, 2u);
  EXPECT_EQ(last.oldest()->version, Version(2));
  EXPECT_EQ(last.newest()->rank, 1u) << "the first that has called finalize in it";
  last.clear();
  EXPECT_FALSE(last.newest());
}

}  // namespace
}  // namespace warren::test
