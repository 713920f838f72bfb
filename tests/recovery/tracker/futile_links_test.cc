#include "recovery/tracker/futile_links.h"

#include <gtest/gtest.h>

namespace warren::test {
namespace {

const auto kAny = [](const RankPair&) { return true; };

// The link between two ranks ends generations 1, 2 …, which begin at 10 ms, 20 ms …
void end_generations(FutileLinks& links, std::uint32_t a, std::uint32_t b, int generations) {
  for (int g = 1; g <= generations; ++g) {
    links.note(a, b, "no route", Generation(static_cast<std::uint64_t>(g)), TimeMs{10 * g});
  }
}

TEST(FutileLinks, ALinkIsUnusableOnceItHasEndedThreeGenerationsInARow) {
  FutileLinks links;
  end_generations(links, 2, 1, 2);
  EXPECT_FALSE(links.any_unusable());
  end_generations(links, 2, 1, 3);
  EXPECT_TRUE(links.any_unusable());
  const FutileLinks::Link& link = links.all().at(RankPair{1, 2});
  EXPECT_EQ(link.since, TimeMs{10});
  EXPECT_EQ(link.why_b, "no route");
  EXPECT_EQ(link.why_a, "");
}

TEST(FutileLinks, BothEndsOfALinkEndAGenerationOnce) {
  FutileLinks links;
  for (int g = 1; g <= 2; ++g) {
    links.note(1, 2, "refused", Generation(static_cast<std::uint64_t>(g)), TimeMs{g});
    links.note(2, 1, "timed out", Generation(static_cast<std::uint64_t>(g)), TimeMs{g});
  }
  EXPECT_FALSE(links.any_unusable());
  EXPECT_EQ(links.all().at(RankPair{1, 2}).generations, 2);
  EXPECT_EQ(links.all().at(RankPair{1, 2}).why_a, "refused");
  EXPECT_EQ(links.all().at(RankPair{1, 2}).why_b, "timed out");
}

TEST(FutileLinks, ProgressAndNewLivesMakeItForgotten) {
  FutileLinks links;
  end_generations(links, 1, 2, 3);
  end_generations(links, 1, 3, 3);
  links.forget_if([](const RankPair& pair) { return pair.b == 2; });
  EXPECT_EQ(links.all().size(), 1u);
  links.clear();
  EXPECT_TRUE(links.empty());
}

TEST(FutileLinks, TheRankWithTheMostUnusableLinksIsTheWorst) {
  FutileLinks links;
  EXPECT_FALSE(links.worst_rank(kAny));
  end_generations(links, 0, 2, 3);
  end_generations(links, 1, 2, 3);
  end_generations(links, 0, 1, 2);  // usable as yet
  const auto worst = links.worst_rank(kAny);
  ASSERT_TRUE(worst);
  EXPECT_EQ(worst->rank, 2u);
  EXPECT_EQ(worst->links, 2);
  EXPECT_EQ(worst->ranks, 3u);
  EXPECT_FALSE(links.worst_rank([](const RankPair&) { return false; }));
  links.judge_anew(2);
  EXPECT_FALSE(links.any_unusable());
}

TEST(FutileLinks, SoManyLinksAreNotedAndNoMore) {
  FutileLinks links;
  for (std::uint32_t peer = 1; peer <= 1000; ++peer) links.note(0, peer, "", Generation(1), TimeMs{1});
  EXPECT_EQ(links.all().size(), 256u);
}

}  // namespace
}  // namespace warren::test
