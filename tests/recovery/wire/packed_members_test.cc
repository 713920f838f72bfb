#include "recovery/wire/packed_members.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/columns.h"
#include "recovery/wire/plan_changes.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

wire::Envelope told(const wire::Plan& plan) {
  wire::Envelope e = from_tracker(10);
  *e.mutable_plan() = plan;
  return e;
}
Result<wire::Envelope> decoded(const std::string& bytes) {
  return decode_envelope(std::as_bytes(std::span(bytes)), Side::kTracker);
}
// As a worker gets it.
void expect_arrives(const wire::Plan& plan) {
  const auto back = unpack(packed(plan));
  ASSERT_TRUE(back.ok()) << back.status().describe();
  EXPECT_EQ(back.value().SerializeAsString(), plan.SerializeAsString());
  const auto e = decoded(encode(told(plan), Side::kTracker));
  ASSERT_TRUE(e.ok()) << e.status().describe();
  EXPECT_EQ(e.value().plan().SerializeAsString(), plan.SerializeAsString());
}

class PlanMaker {
 public:
  explicit PlanMaker(std::uint64_t seed) : random_(seed) {}

  wire::Plan plan() {
    const auto n = static_cast<std::uint32_t>(1 + below(one_in(3) ? 4 : 60));
    wire::Plan p = plan_of(5, {{"w0", 10}});
    p.clear_members();
    *p.mutable_settings() = settings(n, 1);
    p.mutable_settings()->set_min_workers(1);
    p.mutable_settings()->set_elastic_start(true);
    const std::uint64_t hosts = 1 + below(n), style = below(4);
    for (std::uint32_t rank = 0; rank < n; ++rank) add_member(p, rank, style == 0 ? below(hosts) : rank % hosts, style);
    number_locally(p);
    name_absent(p);
    EXPECT_TRUE(validate(p).ok()) << validate(p).describe();
    return p;
  }
  // Some of the members of `plan`, none of them included.
  wire::Plan changes(const wire::Plan& plan) {
    wire::Plan c = plan;
    c.set_base_generation(plan.generation() - 1);
    c.clear_members();
    const bool none = one_in(4);
    for (const wire::Member& m : plan.members()) {
      if (!none && one_in(3)) *c.add_members() = m;
    }
    EXPECT_TRUE(validate_told(c).ok()) << validate_told(c).describe();
    return c;
  }

 private:
  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(std::uint64_t n) { return below(n) == 0; }

  std::string name(const std::string& stem, std::uint64_t i, std::uint64_t style) {
    switch (style) {
      case 0: return stem + std::to_string(i);
      case 1: return "r7-" + std::string(i % 3, '0') + std::to_string(i) + "." + stem + "/00x" + std::to_string(i);
      case 2: return std::to_string(i * 0x9e3779b97f4a7c15) + std::string(40, '0') + std::to_string(i);
      default: return stem + "_" + std::string(100, 'A' + static_cast<char>(i % 26)) + std::to_string(i);
    }
  }
  void add_member(wire::Plan& p, std::uint32_t rank, std::uint64_t host, std::uint64_t style) {
    wire::Member& m = *p.add_members();
    m.set_rank(rank);
    if (rank != 0 && one_in(12)) return m.set_absent(true);
    m.set_incarnation(random_() | 1);
    m.set_worker_id(name("w", rank, style));
    m.set_host_id(name("host", host, style));
    m.set_domain_id(one_in(9) ? "odd" : m.host_id());
    for (std::uint64_t k = 0, count = 1 + below(one_in(5) ? 8 : 2); k < count; ++k) {
      wire::Endpoint& e = *m.add_endpoints();
      e.set_address(k % 2 == 1 ? "fe80::" + std::to_string(host) + "%eth0" : "10.0.0." + std::to_string(host));
      e.set_port(static_cast<std::uint32_t>(100 * k + 1 + below(100)));
    }
    m.set_fetch_port(static_cast<std::uint32_t>(1 + below(65'535)));
    if (!one_in(4)) m.set_segment_socket(segment_socket_of(Incarnation(m.incarnation())));
    if (one_in(9)) m.set_segment_socket("gr\u00fcn 00" + std::to_string(rank));
    m.set_since(one_in(2) ? 5 : 1 + below(5));
    m.set_fresh(m.since() == 5);
    if (!m.fresh()) m.set_absent(rank != 0 && one_in(8));
    m.set_waits(one_in(5));
    m.set_lives(static_cast<std::uint32_t>(below(3)));
    if (one_in(6)) return;
    m.mutable_traits()->set_maps(style != 0);
    if (one_in(3)) return;
    m.mutable_traits()->set_cores(static_cast<std::uint32_t>(1 + below(8)));
    m.mutable_traits()->set_first_core(rank % 8);
  }
  static void number_locally(wire::Plan& p) {
    std::map<std::string, std::uint32_t> sizes, next;
    for (const wire::Member& m : p.members()) ++sizes[m.host_id()];
    for (wire::Member& m : *p.mutable_members()) {
      if (is_vacant(m)) continue;
      m.set_local_size(sizes[m.host_id()]);
      m.set_local_rank(next[m.host_id()]++);
    }
  }
  static void name_absent(wire::Plan& p) {
    wire::Absence absence;
    absence.set_timeline(p.timeline());
    for (const wire::Member& m : p.members()) {
      if (m.absent()) absence.add_ranks(m.rank());
    }
    if (!absence.ranks().empty()) *p.add_absences() = absence;
  }
  std::mt19937_64 random_;
};

TEST(PackedMembers, EveryPlanComesBackAsItWas) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    PlanMaker maker(seed);
    const wire::Plan plan = maker.plan();
    expect_arrives(plan);
    expect_arrives(maker.changes(plan));
    if (HasFailure()) return;
  }
}

// A host has `ranks_per_host` ranks, with what `warren run` says of them.
wire::Plan plan_of_hosts(std::uint32_t ranks, std::uint32_t ranks_per_host) {
  std::mt19937_64 random(3);
  const auto port = [&random] { return static_cast<std::uint32_t>(32'768 + random() % 28'000); };
  wire::Plan p = plan_of(1, {{"w0", 10}});
  p.clear_members();
  *p.mutable_settings() = settings(ranks, 2);
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const std::uint32_t host = rank / ranks_per_host;
    wire::Member& m = *p.add_members();
    m.set_rank(rank);
    m.set_incarnation(random());
    m.set_worker_id("w" + std::to_string(rank));
    m.set_host_id("host" + std::to_string(host));
    m.set_domain_id(m.host_id());
    wire::Endpoint& e = *m.add_endpoints();
    e.set_address("10.0." + std::to_string(host / 250) + "." + std::to_string(host % 250 + 1));
    e.set_port(port());
    m.set_local_rank(rank % ranks_per_host);
    m.set_local_size(ranks_per_host);
    m.set_fetch_port(port());
    m.set_segment_socket(segment_socket_of(Incarnation(m.incarnation())));
    m.set_fresh(true);
    m.set_since(1);
    m.set_lives(1);
    m.mutable_traits()->set_cores(64);
    m.mutable_traits()->set_maps(true);
  }
  return p;
}

// 8 bytes of incarnation and twice 2 of a port are random: 120,000 bytes of 10,000 members.
TEST(PackedMembers, WhatIsNotRandomCostsNextToNothing) {
  for (const std::uint32_t ranks : {1000u, 10'000u}) {
    const wire::Plan plan = plan_of_hosts(ranks, 8);
    ASSERT_TRUE(validate(plan).ok()) << validate(plan).describe();
    expect_arrives(plan);
    const std::size_t bytes = packed(plan).ByteSizeLong();
    EXPECT_LE(bytes, 12 * ranks + 800);
  }
}

TEST(PackedMembers, TheLargestPlanArrives) {
  expect_arrives(plan_of_hosts(limits::kMaxWorldSize, 8));
}

// One long number in a column of numbers makes all of them long.
TEST(PackedMembers, TheLargestPlanOfTheHardestNamesFitsInAMessage) {
  std::mt19937_64 random(5);
  const auto name = [&](std::size_t at, std::size_t bytes) {
    std::string text;
    while (text.size() + 3 <= bytes - 18) text += "x" + std::to_string(10 + random() % 90);
    return text += at == 0 ? "y" + std::string(17, '9') : "y" + std::string(17, 'z');
  };
  wire::Plan p = plan_of_hosts(limits::kMaxWorldSize, 1);
  for (int i = 0; i < p.members_size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    wire::Member& m = *p.mutable_members(i);
    m.set_worker_id(name(at, limits::kMaxWorkerIdBytes));
    m.set_host_id(name(at, limits::kMaxHostIdBytes));
    m.set_domain_id(name(at, limits::kMaxHostIdBytes));
    m.set_segment_socket(name(at, limits::kMaxSegmentSocketBytes));
    m.clear_endpoints();
    for (std::size_t e = 0; e < limits::kMaxEndpointsPerWorker; ++e) {
      m.add_endpoints()->set_address(name(at + e, limits::kMaxAddressBytes));
      m.mutable_endpoints(static_cast<int>(e))->set_port(1 + static_cast<std::uint32_t>(random() % 60'000));
    }
  }
  const wire::Plan travels = packed(p);
  EXPECT_LT(travels.ByteSizeLong(), limits::kMaxControlMessageBytes);
  EXPECT_LT(travels.ByteSizeLong(), p.ByteSizeLong() * 11 / 10);
  const auto back = unpack(travels);
  ASSERT_TRUE(back.ok()) << back.status().describe();
  EXPECT_EQ(back.value().SerializeAsString(), p.SerializeAsString());
}

TEST(PackedMembers, WhatNobodyKnowsOfTraitsGoesToNobody) {
  wire::Plan p = packed(plan_of_hosts(1000, 8));
  wire::PackedMembers& columns = *p.mutable_packed();
  wire::Traits traits;
  traits.set_cores(3);
  std::string bytes = traits.SerializeAsString();
  bytes += "\xa2\x06\x80\x80\x04" + std::string(1 << 16, 'x');  // field 100
  columns.clear_traits();
  ASSERT_TRUE(columns.add_traits()->ParseFromString(bytes));
  *columns.mutable_trait_rows() = column_of(std::vector<std::uint64_t>(1000, 1));
  const auto plan = unpack(p);
  ASSERT_TRUE(plan.ok()) << plan.status().describe();
  EXPECT_EQ(plan.value().members(999).traits().cores(), 3u);
  EXPECT_LT(plan.value().ByteSizeLong(), 200'000u);
  for (int i = 0; i < 1000; ++i) columns.add_traits();
  EXPECT_EQ(unpack(p).status().describe(), "packed members: traits: 1001 different ones of 1000");
}

TEST(PackedMembers, APlanToASpareIsPackedToo) {
  wire::Envelope e = from_tracker(10);
  wire::Welcome& w = *e.mutable_welcome();
  w.set_world_size(40);
  w.set_spare(true);
  wire::Follow& follow = *w.mutable_follow();
  *follow.mutable_plan() = plan_of_hosts(40, 8);
  follow.set_generation(1);
  follow.set_run(follow.plan().run());
  follow.set_version(2);
  const std::string bytes = encode(e, Side::kTracker);
  EXPECT_LT(bytes.size(), e.ByteSizeLong() / 3);
  const auto back = decoded(bytes);
  ASSERT_TRUE(back.ok()) << back.status().describe();
  EXPECT_EQ(back.value().SerializeAsString(), e.SerializeAsString());
}

TEST(PackedMembers, EachPlaceHasOneForm) {
  const wire::Plan plan = plan_of_hosts(16, 8);
  EXPECT_EQ(decoded(told(plan).SerializeAsString()).status().describe(),
            "message refused: bad Plan: a list of members");
  wire::Plan both = packed(plan);
  *both.mutable_members() = plan.members();
  EXPECT_EQ(unpack(both).status().describe(), "a list of members");
  wire::Plan neither = plan;
  neither.clear_members();
  EXPECT_EQ(unpack(neither).status().describe(), "no members");
  EXPECT_EQ(validate(packed(plan)).describe(), "packed members, and it is not on its way to a worker");
  wire::Known known;
  known.set_generation(1);
  known.set_plan_generation(1);
  *known.mutable_plan() = packed(plan);
  EXPECT_EQ(validate(known).describe(), "bad plan: packed members, and it is not on its way to a worker");
}

TEST(PackedMembers, AnotherVersionIsRefusedByNameBeforeItsPlanIsRead) {
  wire::Envelope e = told(plan_of_hosts(16, 8));
  e.set_protocol(kProtocolVersion + 1);
  EXPECT_EQ(decoded(e.SerializeAsString()).status().code(), Code::kRefused);
}

TEST(PackedMembers, ColumnsThatDoNotFitTogetherAreRefused) {
  const wire::Plan plan = plan_of_hosts(16, 8);
  using Spoil = std::function<void(wire::PackedMembers&)>;
  const auto why = [&](const Spoil& spoil) {
    wire::Plan p = packed(plan);
    spoil(*p.mutable_packed());
    const std::string text = unpack(p).status().describe();
    const std::string before = "packed members: ";
    return text.starts_with(before) ? text.substr(before.size()) : text;
  };
  const auto all = [](std::uint64_t n) { return column_of(std::vector<std::uint64_t>(16, n)); };
  const auto text = [](const std::string& t) { return column_of(std::vector<std::string_view>(16, t)); };
  constexpr std::uint64_t kTooLarge = std::uint64_t{1} << 32;
  EXPECT_EQ(why([](auto&) {}), "");
  EXPECT_EQ(why([](auto& p) { p.set_count(15); }), "number of members 15 is outside 16 to 16");
  EXPECT_EQ(why([](auto& p) { p.set_count(1'000'000); }), "number of members 1000000 is outside 16 to 16");
  for (const auto& [name, column] : std::map<std::string, wire::NumberColumn* (wire::PackedMembers::*)()>{
           {"ranks", &wire::PackedMembers::mutable_ranks},
           {"local ranks", &wire::PackedMembers::mutable_local_ranks},
           {"local sizes", &wire::PackedMembers::mutable_local_sizes},
           {"fetch ports", &wire::PackedMembers::mutable_fetch_ports},
           {"counts of lives", &wire::PackedMembers::mutable_lives},
           {"port", &wire::PackedMembers::mutable_ports}}) {
    const Spoil large = [&, column = column](auto& p) { *(p.*column)() = all(kTooLarge); };
    EXPECT_EQ(why(large), name + " 4294967296 is outside 0 to 4294967295");
    const Spoil few = [&, column = column](auto& p) { *(p.*column)() = column_of(std::vector<std::uint64_t>(15, 1)); };
    EXPECT_NE(why(few).find("15 numbers, not 16"), std::string::npos) << name;
  }
  EXPECT_EQ(why([&](auto& p) { *p.mutable_flags() = all(16); }), "flags 16 is outside 0 to 15");
  EXPECT_EQ(why([](auto& p) { p.mutable_incarnations()->mutable_values()->pop_back(); }),
            "incarnations: half a number");
  EXPECT_EQ(why([&](auto& p) { *p.mutable_worker_ids() = text(std::string(129, 'w')); }),
            "worker ids: a pattern of 129 bytes");
  EXPECT_EQ(why([&](auto& p) { *p.mutable_segment_sockets() = text("of-another"); }),
            "entry 0 has two segment sockets");
  EXPECT_EQ(why([&](auto& p) { *p.mutable_endpoint_counts() = all(9); }), "number of endpoints 9 is outside 0 to 8");
  EXPECT_EQ(why([&](auto& p) { *p.mutable_endpoint_counts() = all(2); }), "addresses: 16 numbers, not 32");
  EXPECT_EQ(why([&](auto& p) { *p.mutable_trait_rows() = all(2); }), "traits: row 2 of 1");
}

TEST(PackedMembers, NothingGrowsOverWhatAPlanMayHave) {
  // As few bytes as promise as much as can be promised.
  const std::size_t n = limits::kMaxWorldSize;
  wire::Plan p = packed(plan_of_hosts(n, 8));
  wire::PackedMembers& columns = *p.mutable_packed();
  const auto longest = [](std::size_t count, std::size_t bytes) {
    const std::string text(bytes, 'x');
    return column_of(std::vector<std::string_view>(count, text));
  };
  *columns.mutable_incarnations() = column_of(std::vector<std::uint64_t>(n, 1));
  *columns.mutable_worker_ids() = longest(n, limits::kMaxWorkerIdBytes);
  *columns.mutable_host_ids() = *columns.mutable_domain_ids() = longest(n, limits::kMaxHostIdBytes);
  *columns.mutable_flags() = column_of(std::vector<std::uint64_t>(n, 1));
  *columns.mutable_segment_sockets() = longest(n, limits::kMaxSegmentSocketBytes);
  *columns.mutable_endpoint_counts() = column_of(std::vector<std::uint64_t>(n, limits::kMaxEndpointsPerWorker));
  *columns.mutable_addresses() = longest(n * limits::kMaxEndpointsPerWorker, limits::kMaxAddressBytes);
  *columns.mutable_ports() = column_of(std::vector<std::uint64_t>(n * limits::kMaxEndpointsPerWorker, 1));
  *columns.mutable_fetch_ports() = column_of(std::vector<std::uint64_t>(n, 1));
  EXPECT_LT(p.ByteSizeLong(), 2000u);
  const auto most = unpack(p);
  ASSERT_TRUE(most.ok()) << most.status().describe();
  EXPECT_LE(most.value().ByteSizeLong(), limits::kMaxControlMessageBytes);
  EXPECT_FALSE(validate(most.value()).ok()) << "all have one name";
  p.mutable_settings()->set_world_size(limits::kMaxWorldSize + 1);
  columns.set_count(limits::kMaxWorldSize + 1);
  EXPECT_EQ(unpack(p).status().describe(), "world size 16385 is outside 1 to 16384");
}

}  // namespace
}  // namespace warren::test
