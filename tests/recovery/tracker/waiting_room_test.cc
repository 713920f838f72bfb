#include "recovery/tracker/waiting_room.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/recovery/script.h"

namespace warren::test {
namespace {

WaitingRoom::Life waits(const std::string& worker, std::uint64_t life, const std::string& host = "h") {
  WaitingRoom::Life w;
  w.member.set_worker_id(worker);
  w.member.set_incarnation(life);
  w.member.set_host_id(host);
  return w;
}

WaitingRoom::Life survives(const std::string& worker, std::uint64_t life, const std::string& host = "h") {
  WaitingRoom::Life w = waits(worker, life, host);
  w.report.emplace();
  *w.report->add_positions() = position(1, 3);
  return w;
}

WaitingRoom::Life candidate(const std::string& worker, std::uint64_t life, std::uint64_t arrival) {
  WaitingRoom::Life w = waits(worker, life);
  w.candidate = true;
  w.arrival = arrival;
  return w;
}

WaitingRoom::Life takes(const std::string& worker, std::uint64_t life, std::size_t rank) {
  WaitingRoom::Life w = candidate(worker, life, 1);
  w.called = Generation(2);
  w.takes = rank;
  return w;
}

std::string names(const std::vector<const WaitingRoom::Life*>& lives) {
  std::string text;
  for (const WaitingRoom::Life* w : lives) text += w->member.worker_id() + " ";
  return text;
}

TEST(WaitingRoom, AWorkerComesAndGoes) {
  WaitingRoom room;
  room.add(waits("w0", 10));
  room.add(waits("w1", 11));
  EXPECT_EQ(room.size(), 2u);
  ASSERT_NE(room.find("w1"), nullptr);
  EXPECT_EQ(room.find("w1"), room.find(Incarnation(11)));
  room.check();
  room.remove("w0");
  EXPECT_FALSE(room.contains("w0"));
  EXPECT_FALSE(room.contains(Incarnation(10)));
  EXPECT_EQ(room.find("w0"), nullptr);
  EXPECT_EQ(room.find(Incarnation(10)), nullptr);
  room.check();
}

TEST(WaitingRoom, AWorkerWaitsInOneLife) {
  WaitingRoom room;
  room.add(waits("w0", 10));
  EXPECT_DEATH(room.add(waits("w0", 20)), "a worker waits in one life");
  room.remove("w0");
  room.add(waits("w0", 20));
  EXPECT_EQ(room.at("w0").id(), Incarnation(20));
  EXPECT_DEATH(room.remove("w1"), "only a worker that waits can cease to");
}

TEST(WaitingRoom, SurvivorsAndTheirReportsAreCounted) {
  WaitingRoom room;
  room.add(waits("w0", 10));
  EXPECT_EQ(room.survivors(), 0u);
  const WaitingRoom::Life survivor = survives("w1", 11, "h1");
  room.add(survivor);
  EXPECT_EQ(room.survivors(), 1u);
  EXPECT_EQ(room.report_bytes(), survivor.report->ByteSizeLong());
  EXPECT_TRUE(room.has_survivor_on("h1"));
  EXPECT_FALSE(room.has_survivor_on("h"));
  room.check();
  room.remove("w1");
  EXPECT_EQ(room.survivors(), 0u);
  EXPECT_EQ(room.report_bytes(), 0u);
  EXPECT_FALSE(room.has_survivor_on("h1"));
}

TEST(WaitingRoom, JoinsHaveRoomUntilTheirLimit) {
  WaitingRoom room;
  WaitingRoom::Life w = waits("w0", 10);
  w.held.emplace().set_run(7);
  w.logged.add_lives(9);
  const std::size_t bytes = w.join_bytes();
  EXPECT_EQ(bytes, w.held->ByteSizeLong() + w.logged.ByteSizeLong());
  room.add(w);
  EXPECT_EQ(room.join_bytes(), bytes);
  EXPECT_TRUE(room.has_room_for(WaitingRoom::kJoinRoomBytes - bytes));
  EXPECT_FALSE(room.has_room_for(WaitingRoom::kJoinRoomBytes - bytes + 1));
  room.check();
  room.remove("w0");
  EXPECT_TRUE(room.has_room_for(WaitingRoom::kJoinRoomBytes));
}

TEST(WaitingRoom, ASpareTakesTheRankThatItWasCalledFor) {
  WaitingRoom room;
  room.add(takes("spare", 30, 1));
  ASSERT_EQ(room.takers().size(), 1u);
  EXPECT_EQ(room.takers().at(1), "spare");
  room.check();
  room.remove("spare");
  EXPECT_TRUE(room.takers().empty());
}

TEST(WaitingRoom, CandidatesStandInTheOrderOfTheirArrival) {
  WaitingRoom room;
  room.add(candidate("a", 10, 3));
  room.add(candidate("b", 11, 2));
  room.add(waits("w0", 12));        // it has a rank of its own
  room.add(takes("spare", 13, 4));  // called for one
  EXPECT_EQ(names(room.candidates()), "b a ");
  EXPECT_EQ(room.last_candidate().member.worker_id(), "a");
  room.remove("a");
  EXPECT_EQ(room.last_candidate().member.worker_id(), "b");
}

TEST(WaitingRoom, AHostHoldsWhatASurvivorADiskOrALauncherHasKept) {
  WaitingRoom room;
  room.add(waits("new", 10, "empty"));
  room.add(survives("survivor", 11, "alive"));
  WaitingRoom::Life disk = waits("disk", 12, "disk");
  disk.held.emplace();
  room.add(disk);
  WaitingRoom::Life mirror = waits("mirror", 13, "mirror");
  mirror.held.emplace().set_mirrored(true);
  room.add(mirror);  // all hosts have the mirror: it is no reason to count on this one
  WaitingRoom::Life launcher = waits("launcher", 14, "launcher");
  launcher.logged.add_lives(4);
  room.add(launcher);
  EXPECT_EQ(room.hosts_that_hold(), (std::set<std::string>{"alive", "disk", "launcher"}));
}

TEST(WaitingRoom, ALifeThatWasNotCalledHasLookedAtItsHostEarly) {
  WaitingRoom room;
  room.add(waits("w0", 10, "early"));
  room.add(survives("w1", 11, "alive"));
  WaitingRoom::Life called = takes("spare", 12, 0);
  called.member.set_host_id("called");
  room.add(called);
  EXPECT_EQ(room.hosts_looked_at_early(), std::set<std::string>{"early"});
}

TEST(WaitingRoom, WhatASurvivorSaysOfItsMemoryIsInItsReport) {
  WaitingRoom::Life w = survives("w0", 10);
  w.report->mutable_logged()->set_run(7);
  EXPECT_EQ(w.in_memory().run(), 7u);
  w.report.reset();
  w.logged.set_run(8);
  EXPECT_EQ(w.in_memory().run(), 8u);
}

TEST(WaitingRoom, ALifeIsSilentOnceItWasNotHeardForTheTimeout) {
  WaitingRoom room;
  room.add(waits("w0", 10));
  room.add(waits("w1", 11));
  room.hear(Incarnation(11), TimeMs{50});
  room.hear(Incarnation(99), TimeMs{60});  // it does not wait
  EXPECT_TRUE(room.silent(TimeMs{99}, 100).empty());
  EXPECT_EQ(room.silent(TimeMs{100}, 100), std::vector<std::string>{"w0"});
  // The tracker was held up.
  room.excuse(TimeMs{20});
  EXPECT_TRUE(room.silent(TimeMs{119}, 100).empty());
  EXPECT_EQ(room.silent(TimeMs{120}, 100), std::vector<std::string>{"w0"});
  EXPECT_EQ(room.at("w1").heard, TimeMs{50});
}

TEST(WaitingRoom, ALifeMayCountAsOneOfAnotherHost) {
  WaitingRoom room;
  room.add(survives("w0", 10, "h"));
  room.move_to_host("w0", "h:rank-0");
  EXPECT_EQ(room.at("w0").member.host_id(), "h:rank-0");
  EXPECT_FALSE(room.has_survivor_on("h"));
}

TEST(WaitingRoom, ForgetsAllAtOnce) {
  WaitingRoom room;
  room.add(survives("w0", 10));
  room.add(takes("spare", 11, 1));
  room.clear();
  EXPECT_TRUE(room.empty());
  EXPECT_TRUE(room.workers().empty());
  EXPECT_TRUE(room.takers().empty());
  EXPECT_EQ(room.report_bytes() + room.join_bytes() + room.survivors(), 0u);
  room.check();
}

}  // namespace
}  // namespace warren::test
