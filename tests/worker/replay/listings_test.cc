#include "worker/replay/listings.h"

#include <gtest/gtest.h>

#include "worker/replay/hosts.h"

namespace warren::worker::replay {
namespace {

// Rank 3 is alone on its host, and this one; the others share one.
Replayer::Plan plan_with_fresh(std::int32_t fresh) {
  Replayer::Plan plan;
  plan.generation = Generation(2);
  plan.self = Rank(3);
  for (std::int32_t rank = 0; rank < 4; rank++) {
    const std::string host = rank == 3 ? "own" : "other";
    plan.peers.push_back({Rank(rank), Incarnation(static_cast<std::uint64_t>(rank) + 1), host, host, rank == fresh});
  }
  return plan;
}

// A new life may not have mapped all segments of its host, and then lists less than the host holds. Rank 0 was asked
// first even so: a listing that had not begun named it.
TEST(Listings, ANewLifeIsAskedLastWhateverItsRank) {
  for (const std::int32_t fresh : {0, 1}) {
    Hosts hosts;
    hosts.install(plan_with_fresh(fresh));
    Listings listings;
    listings.restart(hosts, 1, 0);
    EXPECT_EQ(listings.asked(*hosts.host_of(Rank(0))), Rank(1 - fresh));
  }
}

// A stream that begins anew goes on with the rank that it asked last.
TEST(Listings, GoOnWithTheRankThatWasAskedLast) {
  Hosts hosts;
  hosts.install(plan_with_fresh(0));
  const std::size_t other = *hosts.host_of(Rank(0));
  Listings listings;
  listings.restart(hosts, 1, 0);
  listings.ask_next_rank(hosts, other);
  EXPECT_EQ(listings.asked(other), Rank(2));
  listings.restart(hosts, 2, 0);
  EXPECT_EQ(listings.asked(other), Rank(2));
}

}  // namespace
}  // namespace warren::worker::replay
