#include "recovery/wire/plan_changes.h"

#include <gtest/gtest.h>

#include <functional>

#include "recovery/wire/codec.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

// Generation 2 of three workers: the second one has a new life.
struct Plans {
  wire::Plan before = plan_of(1, {{"w0", 10}, {"w1", 11}, {"w2", 12}});
  wire::Plan after = plan_of(2, {{"w0", 10}, {"w1", 21}, {"w2", 12}});
  Plans() {
    for (wire::Member& m : *before.mutable_members()) {
      m.set_fresh(true);
      m.set_since(1);
    }
    for (wire::Member& m : *after.mutable_members()) {
      m.set_fresh(m.incarnation() == 21);
      m.set_since(m.fresh() ? 2 : 1);
    }
  }
};

TEST(PlanChanges, OnlyWhoHasChangedIsNamed) {
  const Plans p;
  const wire::Plan changes = changes_between(p.before, p.after);
  ASSERT_EQ(changes.members_size(), 1);
  EXPECT_EQ(changes.members(0).rank(), 1u);
  EXPECT_EQ(changes.orders_size(), 0);
  EXPECT_TRUE(validate_told(changes).ok()) << validate_told(changes).describe();
  EXPECT_FALSE(validate(changes).ok()) << "it does not say everything";
  const auto whole = with_changes(p.before, changes);
  ASSERT_TRUE(whole.ok()) << whole.status().describe();
  EXPECT_EQ(whole.value().SerializeAsString(), p.after.SerializeAsString());
}

TEST(PlanChanges, RingOrdersAreSaidWhereTheyChange) {
  Plans p;
  for (wire::Plan* plan : {&p.before, &p.after}) {
    plan->mutable_settings()->set_rewire(true);
    plan->mutable_settings()->set_reorders(true);
  }
  const auto add = [](wire::Plan& plan, std::uint64_t from, const std::vector<std::uint32_t>& ranks) {
    wire::RingOrder& o = *plan.add_orders();
    o.set_from_version(from);
    o.mutable_ranks()->Add(ranks.begin(), ranks.end());
  };
  const auto said = [&](int orders) {
    const wire::Plan changes = changes_between(p.before, p.after);
    EXPECT_EQ(changes.base_generation(), 1u);
    EXPECT_EQ(changes.orders_size(), orders);
    EXPECT_EQ(with_changes(p.before, changes).value().SerializeAsString(), p.after.SerializeAsString());
  };
  add(p.after, 3, {0, 2, 1});
  said(1);
  add(p.before, 3, {0, 2, 1});
  said(0);
  add(p.after, 7, {1, 0, 2});
  said(2);
  p.before.mutable_orders(0)->set_ranks(0, 2);
  p.before.mutable_orders(0)->set_ranks(1, 0);
  said(2);
  p.after.clear_orders();
  EXPECT_EQ(changes_between(p.before, p.after).base_generation(), 0u)
      << "that there is none any more takes the whole plan";
}

TEST(PlanChanges, WhoServesIsNamed) {
  Plans p;
  for (wire::Plan* plan : {&p.before, &p.after}) {
    plan->mutable_settings()->set_replicas(2);
    for (wire::Member& m : *plan->mutable_members()) m.set_fetch_port(6000);
  }
  *p.after.add_servers() = p.before.members(1);
  p.after.mutable_servers(0)->set_fresh(false);
  p.after.mutable_servers(0)->set_since(2);
  EXPECT_EQ(with_changes(p.before, changes_between(p.before, p.after)).value().SerializeAsString(),
            p.after.SerializeAsString());
}

TEST(PlanChanges, NothingIsLeftOutWhereAllHasChanged) {
  const Plans p;
  EXPECT_EQ(changes_between(p.before, plan_of(2, {{"w0", 20}, {"w1", 21}, {"w2", 22}})).base_generation(), 0u);
  EXPECT_EQ(changes_between(p.before, plan_of(2, {{"w0", 10}, {"w1", 11}})).base_generation(), 0u);
}

TEST(PlanChanges, ToAnotherPlanOrToNoneThatIsValidAreRefused) {
  const Plans p;
  const wire::Plan changes = changes_between(p.before, p.after);
  wire::Plan other = p.before;
  other.set_generation(3);
  EXPECT_FALSE(with_changes(other, changes).ok());
  EXPECT_FALSE(with_changes(p.before, p.after).ok()) << "it says everything";
  wire::Plan twice = changes;
  twice.mutable_members(0)->set_incarnation(10);
  EXPECT_FALSE(with_changes(p.before, twice).ok()) << "the life of another member";
}

TEST(PlanChanges, WhatIsWrongWithThemAloneIsSeenBeforeTheyAreApplied) {
  const Plans p;
  const auto bad = [&](const std::function<void(wire::Plan&)>& spoil) {
    wire::Plan changes = changes_between(p.before, p.after);
    spoil(changes);
    return !validate_told(changes).ok();
  };
  EXPECT_FALSE(bad([](wire::Plan&) {}));
  EXPECT_TRUE(bad([](wire::Plan& c) { c.set_base_generation(2); }));
  EXPECT_TRUE(bad([](wire::Plan& c) { c.mutable_members(0)->set_rank(3); }));
  EXPECT_TRUE(bad([](wire::Plan& c) { *c.add_members() = c.members(0); }));
  EXPECT_TRUE(bad([](wire::Plan& c) { c.mutable_members(0)->set_incarnation(0); }));
  EXPECT_TRUE(bad([](wire::Plan& c) { c.set_run(0); }));
}

}  // namespace
}  // namespace warren::test
