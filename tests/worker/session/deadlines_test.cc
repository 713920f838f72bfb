#include "worker/session/deadlines.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>

namespace warren::worker {
namespace {

TEST(Deadlines, ACallThatHasNotFinishedIsOverdueAtItsTime) {
  Deadlines deadlines;
  EXPECT_EQ(deadlines.next(), std::nullopt);
  const auto soon = std::make_shared<Call>(), later = std::make_shared<Call>();
  deadlines.add(later, 50, TimeMs{100});
  deadlines.add(soon, 20, TimeMs{100});
  EXPECT_EQ(deadlines.next(), TimeMs{120});
  EXPECT_FALSE(deadlines.overdue(TimeMs{119}).has_value());
  const auto over = deadlines.overdue(TimeMs{120});
  ASSERT_TRUE(over.has_value());
  EXPECT_EQ(over->call.lock(), soon);
  EXPECT_EQ(over->timeout_ms, 20);
}

// Its prepare function may run for long, and until then the call does not end: nobody is to come again for it.
TEST(Deadlines, ACallThatIsOverdueIsToldOnce) {
  Deadlines deadlines;
  const auto call = std::make_shared<Call>(), later = std::make_shared<Call>();
  deadlines.add(call, 20, TimeMs{100});
  deadlines.add(later, 50, TimeMs{100});
  ASSERT_TRUE(deadlines.overdue(TimeMs{120}).has_value());
  EXPECT_FALSE(deadlines.overdue(TimeMs{120}).has_value());
  EXPECT_EQ(deadlines.next(), TimeMs{150});
}

TEST(Deadlines, ACallThatHasFinishedOrIsGoneIsForgotten) {
  Deadlines deadlines;
  const auto finished = std::make_shared<Call>();
  deadlines.add(finished, 10, TimeMs{0});
  deadlines.add(std::make_shared<Call>(), 10, TimeMs{0});
  finished->finished = true;
  EXPECT_FALSE(deadlines.overdue(TimeMs{1000}).has_value());
  EXPECT_EQ(deadlines.next(), std::nullopt);
}

}  // namespace
}  // namespace warren::worker
