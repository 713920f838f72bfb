#include "recovery/decide/detours.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>

#include "recovery/base/limits.h"

namespace warren {
namespace {

// Ranks by host.
google::protobuf::RepeatedPtrField<wire::Member> on_hosts(const std::vector<std::string>& hosts) {
  google::protobuf::RepeatedPtrField<wire::Member> members;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    wire::Member& m = *members.Add();
    m.set_rank(static_cast<std::uint32_t>(rank));
    m.set_host_id(hosts[rank]);
  }
  return members;
}
using Relays = std::vector<std::uint32_t>;

TEST(Detours, GoByWayOfOneRankOfEachOtherHost) {
  EXPECT_EQ(find_ways(on_hosts({"a", "b", "c", "d"}), {1, 2}, {}).relays, (Relays{0, 3}));
  const auto members = on_hosts({"a", "a", "b", "b", "c", "c", "d"});
  EXPECT_EQ(find_ways(members, {0, 2}, {}).relays, (Relays{4, 6}));
  EXPECT_EQ(find_ways(members, {1, 2}, {}).relays, (Relays{5, 6})) << "another pair, another rank of the host";
}

TEST(Detours, NotByWayOfWhoIsAbsent) {
  auto members = on_hosts({"a", "b", "c", "d"});
  members.at(3).set_absent(true);
  EXPECT_EQ(find_ways(members, {0, 1}, {}).relays, (Relays{2}));
}

TEST(Detours, NotByWayOfAHostWhoseOwnLinkIsSlow) {
  const auto members = on_hosts({"a", "b", "c", "d"});
  EXPECT_EQ(find_ways(members, {0, 1}, {{0, 1}, {1, 2}}).relays, (Relays{3}));
  EXPECT_EQ(find_ways(members, {0, 1}, {{0, 1}, {2, 3}}).relays, (Relays{2, 3})) << "it has nothing to do with these";
  const Ways none = find_ways(members, {0, 1}, {{0, 1}, {1, 2}, {0, 3}});
  EXPECT_TRUE(none.relays.empty());
  EXPECT_EQ(none.obstacle, "the links of all other hosts to one of the two are slow as well");
}

TEST(Detours, SayWhyThereIsNone) {
  EXPECT_EQ(find_ways(on_hosts({"a", "a", "b"}), {0, 1}, {}).obstacle, "both are on host a");
  EXPECT_EQ(find_ways(on_hosts({"a", "b", "a", "b"}), {0, 1}, {}).obstacle, "there is no third host");
}

TEST(Detours, AreSpreadWhereThereAreMoreHostsThanStreams) {
  std::vector<std::string> hosts;
  for (int i = 0; i < 100; ++i) hosts.push_back("h" + std::to_string(i));
  const auto members = on_hosts(hosts);
  const Relays first = find_ways(members, {0, 1}, {}).relays, other = find_ways(members, {50, 51}, {}).relays;
  EXPECT_EQ(first.size(), limits::kMaxRelays);
  EXPECT_TRUE(std::ranges::is_sorted(first) && std::ranges::is_sorted(other));
  Relays both;
  std::ranges::set_intersection(first, other, std::back_inserter(both));
  EXPECT_TRUE(both.empty());
}

}  // namespace
}  // namespace warren
