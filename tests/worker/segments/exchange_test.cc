// Exchanges of two or more ranks of a host: segments reach whoever needs them before rounds run, and nobody else.
#include "worker/segments/exchange.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <random>

#include "recovery/wire/packed_members.h"
#include "tests/worker/segments/fixture.h"
#include "tests/worker/send_fds.h"
#include "worker/transport/same_user.h"

namespace warren::worker {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct Node : LogLife {
  Node(int r, std::uint64_t id, int key = 1, const std::string& job = "job") : LogLife(id), rank(r) {
    SegmentExchange::Events events;
    events.attached = [this](Incarnation life, MappedSegment mapped) {
      if (!refuse.ok()) return refuse;
      return log->attach(life, mapped.bytes, mapped.keeper);
    };
    events.complete = [this](Generation generation) { complete.push_back(generation.value); };
    events.failed = [this](Generation, Rank mate, const Status& why) { failed.emplace(mate.value, why); };
    events.borrowed = [this](Incarnation life, std::uint32_t number, MappedSegment mapped) {
      EXPECT_TRUE(borrowed.try_emplace({life, number}, std::move(mapped)).second);
      ++ever_borrowed;
    };
    events.returned = [this](Incarnation life, std::uint32_t number) { EXPECT_EQ(borrowed.erase({life, number}), 1u); };
    events.lent = [this](Incarnation life, std::uint32_t number) { EXPECT_TRUE(lent.insert({life, number}).second); };
    events.offered = [this](Incarnation life, std::uint32_t number, OwnedFd fd, std::uint64_t bytes) {
      offered.push_back({life, number, std::move(fd), bytes});
    };
    events.warning = [this](const std::string& text) { warnings.push_back(text); };
    exchange = std::move(SegmentExchange::create(job, key_of(key), self, memory, std::move(events))).value();
  }
  [[nodiscard]] SegmentExchange::Mate mate() const { return {Rank(rank), self, exchange->socket()}; }
  [[nodiscard]] bool done(std::uint64_t generation) const { return !complete.empty() && complete.back() == generation; }

  int rank;
  Status refuse;
  std::vector<std::uint64_t> complete;
  std::map<int, Status> failed;
  std::vector<std::string> warnings;
  std::map<std::pair<Incarnation, std::uint32_t>, MappedSegment> borrowed;
  std::size_t ever_borrowed = 0;
  std::set<std::pair<Incarnation, std::uint32_t>> lent;
  struct Offered {
    Incarnation life;
    std::uint32_t memory = 0;
    OwnedFd fd;
    std::uint64_t bytes = 0;
  };
  std::vector<Offered> offered;
  std::unique_ptr<SegmentExchange> exchange;
};

class SegmentExchangeTest : public testing::Test {
 protected:
  Node& add(int rank, std::uint64_t id, int key = 1, const std::string& job = "job") {
    nodes_[rank] = std::make_unique<Node>(rank, id, key, job);
    return *nodes_[rank];
  }
  Node& node(int rank) { return *nodes_.at(rank); }
  void begin(int rank, std::uint64_t generation) {
    SegmentExchange::Membership m;
    m.generation = Generation(generation);
    m.self = Rank(rank);
    m.timeout_ms = 2000;
    for (auto& [r, n] : nodes_) {
      if (r != rank) m.mates.push_back(n->mate());
    }
    node(rank).exchange->end_generation();
    node(rank).exchange->begin_generation(std::move(m), now_);
  }
  void begin_all(std::uint64_t generation) {
    for (auto& [r, n] : nodes_) begin(r, generation);
  }
  // A virtual clock that moves only when nothing else does.
  bool run_until(const std::function<bool()>& done) {
    for (int i = 0; i < 5000; ++i) {
      for (auto& [r, n] : nodes_) n->exchange->run(now_);
      if (done()) return true;
      std::vector<pollfd> fds;
      for (auto& [r, n] : nodes_) n->exchange->collect_pollfds(fds);
      if (::poll(fds.data(), fds.size(), 0) > 0) continue;
      now_ = now_ + 5;
    }
    return false;
  }
  bool run_until_all(std::uint64_t generation) {
    return run_until([&] { return std::ranges::all_of(nodes_, [&](auto& n) { return n.second->done(generation); }); });
  }
  void run_for(std::int64_t ms) {
    const TimeMs end = now_ + ms;
    run_until([&] { return now_ >= end; });
  }
  // A connection to a rank's socket, by hand.
  OwnedFd dial(int rank) {
    OwnedFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    const std::string& name = node(rank).exchange->socket();
    sockaddr_un a{};
    a.sun_family = AF_UNIX;
    std::memcpy(a.sun_path + 1, name.data(), name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&a), length), 0);
    return fd;
  }
  // One that has proven that it holds the key; of a life that may be in the plan.
  std::unique_ptr<SegmentChannel> channel_to(int rank, Incarnation from, int key = 1) {
    handshake::Hello hello;
    hello.job_hash = handshake::job_hash("job");
    hello.from = Rank(7);
    hello.to = Rank(rank);
    hello.from_incarnation = from;
    hello.to_incarnation = node(rank).self;
    auto channel =
        std::move(SegmentChannel::connect(node(rank).exchange->socket(), segment_key(key_of(key)), hello)).value();
    EXPECT_TRUE(run_until([&] {
      channel->run();
      return channel->open() || channel->closed();
    }));
    return channel;
  }

  std::map<int, std::unique_ptr<Node>> nodes_;
  TimeMs now_{1000};
};

// Plans need not say such a name. Another one is said where a process has that name already.
TEST_F(SegmentExchangeTest, TheSocketIsNamedAfterTheIncarnationWhereThatNameIsFree) {
  add(0, 10);
  EXPECT_EQ(node(0).exchange->socket(), segment_socket_of(Incarnation(10)));
  add(1, 11);
  const Node of_another_job(0, 10, 2, "another");
  EXPECT_NE(of_another_job.exchange->socket(), node(0).exchange->socket());
  EXPECT_TRUE(of_another_job.exchange->socket().starts_with("warren-segments-"));
  begin_all(1);
  EXPECT_TRUE(run_until_all(1));
}

TEST_F(SegmentExchangeTest, EveryRankOfAHostMapsTheSegmentsOfAll) {
  for (int r = 0; r < 5; ++r) add(r, 100u + static_cast<unsigned>(r)).publish(1);
  begin_all(1);
  ASSERT_TRUE(run_until_all(1));
  for (auto& [r, n] : nodes_) {
    n->publish(2);
    EXPECT_EQ(n->log->attached().size(), 4u);
    EXPECT_TRUE(n->failed.empty() && n->warnings.empty());
  }
  for (auto& [r, n] : nodes_) {
    for (auto& [other, m] : nodes_) EXPECT_TRUE(n->reads(m->self, 1) && n->reads(m->self, 2));
  }
}

// A memory file of `bytes` that say `value`.
std::shared_ptr<MemfdSegment> memory_of(std::size_t bytes, int value) {
  auto memory = memfd_segment(bytes, "warren-memory").value();
  std::memset(memory->bytes().data(), value, bytes);
  return memory;
}
std::shared_ptr<const OwnedFd> fd_of(const std::shared_ptr<MemfdSegment>& memory) {
  return std::make_shared<const OwnedFd>(::fcntl(memory->fd(), F_DUPFD_CLOEXEC, 0));
}

TEST_F(SegmentExchangeTest, MemoryIsLentToTheLivingAndTakenBack) {
  for (int r = 0; r < 3; ++r) add(r, 100u + static_cast<unsigned>(r));
  const auto first = memory_of(8192, 1), second = memory_of(4096, 2);
  // Before anybody has met, and afterwards.
  node(0).exchange->lend(1, fd_of(first), 8192);
  begin_all(1);
  ASSERT_TRUE(run_until_all(1));
  node(0).exchange->lend(2, fd_of(second), 4096);
  ASSERT_TRUE(run_until([&] { return node(0).lent.size() == 4; }));
  for (const int r : {1, 2}) {
    ASSERT_EQ(node(r).borrowed.size(), 2u);
    const MappedSegment& mapped = node(r).borrowed.at({Incarnation(100), 2});
    ASSERT_EQ(mapped.bytes.size(), 4096u);
    EXPECT_EQ(mapped.bytes[4095], std::byte{2});
    second->bytes()[4095] = std::byte{9};
    EXPECT_EQ(mapped.bytes[4095], std::byte{9});
    second->bytes()[4095] = std::byte{2};
  }
  node(0).exchange->take_back(1);
  ASSERT_TRUE(run_until([&] { return node(1).borrowed.size() == 1 && node(2).borrowed.size() == 1; }));
  // The next generation goes on with what there is; a new life gets it, and a life that is over is not asked.
  add(2, 200);
  begin_all(2);
  ASSERT_TRUE(run_until_all(2));
  ASSERT_TRUE(run_until([&] { return node(2).borrowed.size() == 1; }));
  EXPECT_TRUE(node(0).lent.contains({Incarnation(200), 2}));
  EXPECT_EQ(node(1).borrowed.size(), 1u);
  EXPECT_TRUE(node(1).failed.empty() && node(1).warnings.empty());
}

// One that does not read, while its mate allocates and frees: what lies in its channel keeps its pages.
TEST_F(SegmentExchangeTest, LittleMemoryIsUnderWayToAMateThatStandsStill) {
  for (int r = 0; r < 2; ++r) add(r, 100u + static_cast<unsigned>(r));
  begin_all(1);
  ASSERT_TRUE(run_until_all(1));
  const auto memory = memory_of(4096, 1);
  std::vector<std::weak_ptr<const OwnedFd>> files;
  for (std::uint32_t i = 1; i <= 100; ++i) {
    auto fd = fd_of(memory);
    files.push_back(fd);
    node(0).exchange->lend(i, std::move(fd), 4096);
    node(0).exchange->run(now_);
    node(0).exchange->take_back(i);
    node(0).exchange->run(now_);
  }
  node(0).exchange->lend(101, fd_of(memory), 4096);
  ASSERT_TRUE(run_until([&] { return node(1).borrowed.contains({Incarnation(100), 101}); }));
  ASSERT_TRUE(run_until([&] { return node(1).borrowed.size() == 1; }));
  EXPECT_LE(node(1).ever_borrowed, 5u);
  EXPECT_TRUE(std::ranges::all_of(files, [](const auto& file) { return file.expired(); }));
}

// What cannot be mapped is not lent; nothing waits for it.
TEST_F(SegmentExchangeTest, MemoryThatIsNoneIsNotTaken) {
  for (int r = 0; r < 2; ++r) add(r, 100u + static_cast<unsigned>(r));
  begin_all(1);
  ASSERT_TRUE(run_until_all(1));
  const auto good = memory_of(4096, 1);
  OwnedFd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  node(0).exchange->lend(1, std::make_shared<const OwnedFd>(std::move(zeros)), 4096);
  node(0).exchange->lend(2, fd_of(good), 8192);  // it is shorter
  node(0).exchange->lend(3, fd_of(good), 4096);
  ASSERT_TRUE(run_until([&] { return node(0).lent.size() == 1; }));
  EXPECT_TRUE(node(0).lent.contains({Incarnation(101), 3}));
  EXPECT_EQ(node(1).borrowed.size(), 1u);
  node(0).exchange->take_back(1);
  node(0).exchange->take_back(3);
  ASSERT_TRUE(run_until([&] { return node(1).borrowed.empty(); }));
}

// It is handed on with its descriptor, whatever that is, and answered when that is decided: nothing waits meanwhile.
TEST_F(SegmentExchangeTest, MemoryOfAGpuIsOfferedAndAnsweredLater) {
  for (int r = 0; r < 3; ++r) add(r, 100u + static_cast<unsigned>(r));
  OwnedFd zeros(::open("/dev/zero", O_RDONLY | O_CLOEXEC));
  const auto good = memory_of(4096, 1);
  node(0).exchange->lend(1, std::make_shared<const OwnedFd>(std::move(zeros)), std::uint64_t{1} << 30, true);
  begin_all(1);
  ASSERT_TRUE(run_until_all(1));
  ASSERT_TRUE(run_until([&] { return node(1).offered.size() == 1 && node(2).offered.size() == 1; }));
  EXPECT_EQ(node(1).offered[0].life, Incarnation(100));
  EXPECT_EQ(node(1).offered[0].bytes, std::uint64_t{1} << 30);
  EXPECT_TRUE(node(1).offered[0].fd.open());
  // Other memory is not held up.
  node(0).exchange->lend(2, fd_of(good), 4096);
  ASSERT_TRUE(run_until([&] { return node(0).lent.size() == 2; }));
  EXPECT_FALSE(node(0).lent.contains({Incarnation(101), 1}));
  node(1).exchange->answer(Incarnation(100), 1, true);
  node(2).exchange->answer(Incarnation(100), 1, false);
  node(2).exchange->answer(Incarnation(100), 7, true);
  node(2).exchange->answer(Incarnation(999), 1, true);
  ASSERT_TRUE(run_until([&] { return node(0).lent.contains({Incarnation(101), 1}); }));
  run_for(500);
  EXPECT_FALSE(node(0).lent.contains({Incarnation(102), 1}));
  EXPECT_FALSE(node(0).lent.contains({Incarnation(102), 7}));
  // A plan later it is still so, and nobody is asked again but who is new.
  add(2, 200);
  begin_all(2);
  ASSERT_TRUE(run_until_all(2));
  ASSERT_TRUE(run_until([&] { return node(2).offered.size() == 1; }));
  EXPECT_EQ(node(1).offered.size(), 1u);
  node(2).exchange->answer(Incarnation(100), 1, true);
  ASSERT_TRUE(run_until([&] { return node(0).lent.contains({Incarnation(200), 1}); }));
  // It may be no more one day.
  node(0).exchange->take_back(2);
  ASSERT_TRUE(run_until([&] { return node(1).borrowed.empty() && node(2).borrowed.empty(); }));
}

TEST_F(SegmentExchangeTest, ARankThatIsAloneOnItsHostIsCompleteAtOnce) {
  add(3, 100);
  begin(3, 4);
  EXPECT_TRUE(node(3).done(4));
}

TEST_F(SegmentExchangeTest, ItIsNotCompleteBeforeTheMateHasTakenThePlan) {
  for (const bool lower_first : {true, false}) {
    nodes_.clear();
    add(0, 100);
    add(1, 101);
    const int first = lower_first ? 0 : 1;
    begin(first, 1);
    run_for(500);
    EXPECT_TRUE(node(first).complete.empty());
    EXPECT_TRUE(node(1 - first).log->attached().empty());
    begin(1 - first, 1);
    ASSERT_TRUE(run_until_all(1));
    // The same for the next generation, in which nothing is missing.
    begin(first, 2);
    run_for(500);
    EXPECT_FALSE(node(first).done(2));
    begin(1 - first, 2);
    ASSERT_TRUE(run_until_all(2));
    EXPECT_EQ(node(0).complete, (std::vector<std::uint64_t>{1, 2}));
  }
}

TEST_F(SegmentExchangeTest, ANewLifeGetsTheSegmentsOfTheDead) {
  for (int r = 0; r < 3; ++r) add(r, 100u + static_cast<unsigned>(r));
  begin_all(1);
  ASSERT_TRUE(run_until_all(1));
  std::vector<Incarnation> dead;
  // Each in turn: in the end nobody of the first lives is left.
  for (int r = 0; r < 3; ++r) {
    node(r).publish(9);
    dead.push_back(node(r).self);
    nodes_.erase(r);
    add(r, 200u + static_cast<unsigned>(r));
    begin_all(2 + static_cast<unsigned>(r));
    ASSERT_TRUE(run_until_all(2 + static_cast<unsigned>(r)));
    for (const Incarnation life : dead) {
      for (auto& [other, n] : nodes_) EXPECT_TRUE(n->reads(life, 9)) << other << " " << life.value;
    }
  }
}

// Whoever keeps a segment gives it away with the next plan, also to those that it has long been connected to.
TEST_F(SegmentExchangeTest, WhatOneRankKeepsReachesTheOthers) {
  const LogLife dead(50);
  dead.publish(4);
  add(0, 100);
  add(1, 101);
  begin_all(1);
  ASSERT_TRUE(run_until_all(1));
  ASSERT_TRUE(node(0).exchange->add(dead.self, OwnedFd(::dup(dead.memory->fd())), kSegmentBytes).ok());
  EXPECT_TRUE(node(0).reads(dead.self, 4));
  run_for(100);
  EXPECT_FALSE(node(1).reads(dead.self, 4));
  begin_all(2);
  ASSERT_TRUE(run_until_all(2));
  EXPECT_TRUE(node(1).reads(dead.self, 4)) << "complete, and something is missing";
  EXPECT_THAT(node(1).exchange->kept(), UnorderedElementsAre(dead.self, node(0).self));
}

TEST_F(SegmentExchangeTest, WhatIsForgottenIsClosedAndDoesNotComeBack) {
  const LogLife dead(50);
  for (int r = 0; r < 2; ++r) add(r, 100u + static_cast<unsigned>(r));
  ASSERT_TRUE(node(0).exchange->add(dead.self, OwnedFd(::dup(dead.memory->fd())), kSegmentBytes).ok());
  begin_all(1);
  ASSERT_TRUE(run_until_all(1));
  const std::size_t before = open_descriptors();
  node(0).exchange->forget(dead.self);
  EXPECT_EQ(open_descriptors(), before - 1);
  add(2, 102);
  begin_all(2);
  ASSERT_TRUE(run_until_all(2));
  EXPECT_THAT(node(2).exchange->kept(), UnorderedElementsAre(dead.self, node(0).self, node(1).self));
  begin_all(3);
  ASSERT_TRUE(run_until_all(3));
  EXPECT_THAT(node(0).exchange->kept(), UnorderedElementsAre(node(1).self, node(2).self));
}

TEST_F(SegmentExchangeTest, AMateThatDoesNotAnswerIsReportedOnce) {
  add(0, 100);
  add(1, 101);
  add(2, 102);
  begin(0, 1);
  begin(2, 1);
  ASSERT_TRUE(run_until([&] { return !node(0).failed.empty() && !node(2).failed.empty(); }));
  for (const int r : {0, 2}) {
    ASSERT_EQ(node(r).failed.size(), 1u);
    const Status& why = node(r).failed.at(1);
    EXPECT_EQ(why.code(), Code::kPeerLost);
    EXPECT_THAT(why.describe(), HasSubstr("rank 1 of this host has not mapped this life's log segment within 2000 ms"));
    EXPECT_TRUE(node(r).complete.empty());
  }
  node(0).failed.clear();
  run_for(3000);
  EXPECT_TRUE(node(0).failed.empty());
  // The next generation is a new try.
  begin_all(2);
  EXPECT_TRUE(run_until_all(2));
}

TEST_F(SegmentExchangeTest, AMateThatHasGoneIsReported) {
  add(0, 100);
  const Node& gone = add(1, 101);
  SegmentExchange::Membership m{Generation(1), Rank(0), {gone.mate()}, 300};
  nodes_.erase(1);
  node(0).exchange->begin_generation(std::move(m), now_);
  ASSERT_TRUE(run_until([&] { return !node(0).failed.empty(); }));
  EXPECT_THAT(node(0).failed.at(1).describe(), HasSubstr("Connection refused"));
}

TEST_F(SegmentExchangeTest, AMateThatCannotMapOursSaysSo) {
  add(0, 100);
  add(1, 101).refuse = Status(Code::kUnavailable, "no address space");
  begin_all(1);
  ASSERT_TRUE(run_until([&] { return !node(0).failed.empty(); }));
  EXPECT_THAT(node(0).failed.at(1).describe(), HasSubstr("could not map it"));
  EXPECT_TRUE(node(0).complete.empty());
  ASSERT_TRUE(run_until([&] { return !node(1).failed.empty(); }));
  EXPECT_THAT(node(1).failed.at(0).describe(), HasSubstr("no address space")) << "and why";
  EXPECT_TRUE(node(1).complete.empty());
}

// It is asked again in each generation, and need not be waited for.
TEST_F(SegmentExchangeTest, AMateThatCouldNotMapOursIsAskedAgainInTheNextGeneration) {
  add(0, 100);
  add(1, 101).refuse = Status(Code::kUnavailable, "no address space");
  begin_all(1);
  ASSERT_TRUE(run_until([&] { return !node(0).failed.empty() && !node(1).failed.empty(); }));
  for (const auto& [r, n] : nodes_) {
    n->exchange->end_generation();
    n->failed.clear();
  }
  begin_all(2);
  ASSERT_TRUE(run_until([&] { return !node(0).failed.empty() && !node(1).failed.empty(); }));
  EXPECT_THAT(node(0).failed.at(1).describe(), HasSubstr("could not map it"));
  for (const auto& [r, n] : nodes_) n->exchange->end_generation();
  node(1).refuse = Status();
  begin_all(3);
  EXPECT_TRUE(run_until_all(3));
}

TEST_F(SegmentExchangeTest, WhoDoesNotHoldTheKeyOrIsOfAnotherJobGetsNothing) {
  struct Case {
    int key;
    const char* job;
    const char* why;
  };
  for (const Case& c : {Case{2, "job", "does not hold this job's secret"}, Case{1, "other", "not the one"}}) {
    nodes_.clear();
    add(0, 100);
    add(1, 101, c.key, c.job);
    begin_all(1);
    ASSERT_TRUE(run_until([&] { return !node(0).failed.empty() && !node(1).failed.empty(); })) << c.why;
    EXPECT_THAT(node(0).failed.at(1).describe(), HasSubstr(c.why));
    for (auto& [r, n] : nodes_) EXPECT_TRUE(n->log->attached().empty() && n->complete.empty());
    EXPECT_FALSE(node(1).warnings.empty());
  }
}

TEST_F(SegmentExchangeTest, StrangersGetNothingAndHoldNobodyUp) {
  add(0, 100);
  add(1, 101);
  const std::size_t before = open_descriptors();
  std::vector<OwnedFd> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(dial(1));
  const auto say = [&](std::size_t i, const void* bytes, std::size_t n) {
    ASSERT_EQ(::send(strangers[i].get(), bytes, n, MSG_NOSIGNAL), static_cast<ssize_t>(n));
  };
  const std::string rubbish(200, 'x');
  say(0, rubbish.data(), 1);
  say(1, rubbish.data(), handshake::kHelloBytes);
  say(2, rubbish.data(), 200);
  handshake::Hello hello;
  hello.job_hash = handshake::job_hash("job");
  hello.from = Rank(0);
  hello.to = Rank(1);
  hello.from_incarnation = node(0).self;
  hello.to_incarnation = node(1).self;
  const auto good = handshake::encode(hello);
  say(3, good.data(), good.size());
  say(4, good.data(), good.size());
  say(4, rubbish.data(), handshake::kProofBytes);
  // A greeting that brings descriptors along.
  for (int i = 5; i < 10; ++i) {
    send_with_descriptors(strangers[static_cast<std::size_t>(i)].get(), good.data(), good.size(), 8);
  }
  strangers.pop_back();  // one that goes without a word
  begin_all(1);
  EXPECT_TRUE(run_until_all(1));
  EXPECT_EQ(node(1).log->attached().size(), 1u);
  // None is sent anything but a challenge, and in the end all are closed.
  run_for(6000);
  for (const OwnedFd& fd : strangers) {
    char bytes[512];
    ssize_t n = 0;
    while ((n = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
      EXPECT_TRUE(n == handshake::kChallengeBytes || n == handshake::kVerdictBytes) << n;
    }
    EXPECT_TRUE(n == 0 || errno == ECONNRESET) << errno;
  }
  strangers.clear();
  EXPECT_FALSE(node(1).warnings.empty());
  EXPECT_LE(open_descriptors(), before + 4) << "two connections' ends and two segments";
}

// Two lives that hold the key, as another life's program might go wrong.
TEST_F(SegmentExchangeTest, WhatIsNotASegmentIsNotTaken) {
  Node& n = add(0, 100);
  // Of two ranks the lower one connects.
  n.exchange->begin_generation({Generation(1), Rank(9), {{Rank(7), Incarnation(107), "nobody-listens-here"}}, 300},
                               now_);
  const LogLife other(50);
  const OwnedFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), kSegmentBytes), 0);
  const std::size_t before = open_descriptors();
  const auto answer_to = [&](SegmentMessage message, int fd) {
    auto channel = channel_to(0, Incarnation(107));
    EXPECT_TRUE(channel->open()) << channel->trouble().describe();
    channel->send(message, std::make_shared<const OwnedFd>(fd));
    std::optional<std::uint64_t> answer;
    EXPECT_TRUE(run_until([&] {
      while (auto r = channel->receive()) {
        if (r->message.kind == SegmentMessage::Kind::kAck) answer = r->message.value;
      }
      return answer || channel->closed();
    }));
    return answer;
  };
  const auto segment = [](std::uint64_t life, std::uint64_t bytes) {
    return SegmentMessage{SegmentMessage::Kind::kSegment, Incarnation(life), bytes, 0};
  };
  EXPECT_EQ(answer_to(segment(51, kSegmentBytes), ::dup(other.memory->fd())), 0u) << "another life's";
  EXPECT_EQ(answer_to(segment(50, kSegmentBytes * 2), ::dup(other.memory->fd())), 0u) << "another size";
  EXPECT_EQ(answer_to(segment(50, 0), ::dup(other.memory->fd())), 0u);
  EXPECT_EQ(answer_to(segment(50, UINT64_MAX), ::dup(other.memory->fd())), 0u);
  EXPECT_EQ(answer_to(segment(50, kSegmentBytes), ::open("/dev/null", O_RDONLY | O_CLOEXEC)), 0u);
  EXPECT_EQ(answer_to(segment(50, kSegmentBytes), ::dup(unsealed.get())), 0u);
  EXPECT_TRUE(n.exchange->kept().empty());
  EXPECT_EQ(answer_to(segment(50, kSegmentBytes), ::dup(other.memory->fd())), 1u);
  EXPECT_LE(open_descriptors(), before + 2) << "the last connection and the segment";
}

// From one that has proven that it holds the key: the connection ends, and nothing else.
TEST_F(SegmentExchangeTest, PacketsThatAreRubbishEndTheConnection) {
  add(0, 100);
  const Incarnation mate(107);
  node(0).exchange->begin_generation({Generation(1), Rank(9), {{Rank(7), mate, "nobody-listens-here"}}, 300}, now_);
  const std::size_t before = open_descriptors();
  struct Packet {
    std::uint32_t magic, kind;
    std::uint64_t life, value, owner;
  };
  const Packet good{0x474e5257, 3, mate.value, 1, 0};
  struct Case {
    Packet packet;
    std::size_t bytes;
    int fds;
    bool taken;
  };
  for (const Case& c : {Case{good, 32, 0, true}, Case{good, 31, 0, false}, Case{good, 32, 1, false},
                        Case{{0x474e5257, 1, 50, kSegmentBytes, 0}, 32, 0, false},
                        Case{{0x474e5257, 1, 50, kSegmentBytes, 0}, 32, 3, false},
                        Case{{0x474e5257, 1, 50, kSegmentBytes, 0}, 32, 9, false},
                        Case{{0x474e5257, 77, 50, 0, 0}, 32, 0, false}, Case{{0, 3, mate.value, 1, 0}, 32, 0, false}}) {
    const OwnedFd fd = dial(0);
    handshake::Hello hello;
    hello.job_hash = handshake::job_hash("job");
    hello.from = Rank(7);
    hello.to = Rank(9);
    hello.from_incarnation = mate;
    hello.to_incarnation = node(0).self;
    const auto key = segment_key(key_of(1));
    const auto hello_bytes = handshake::encode(hello);
    handshake::ChallengeBytes challenge;
    handshake::VerdictBytes verdict;
    ASSERT_GT(::send(fd.get(), hello_bytes.data(), hello_bytes.size(), 0), 0);
    ASSERT_TRUE(run_until([&] { return ::recv(fd.get(), challenge.data(), challenge.size(), MSG_DONTWAIT) > 0; }));
    const auto proof = handshake::make_proof(key, hello_bytes, challenge);
    ASSERT_GT(::send(fd.get(), proof.data(), proof.size(), 0), 0);
    ASSERT_TRUE(run_until([&] { return ::recv(fd.get(), verdict.data(), verdict.size(), MSG_DONTWAIT) > 0; }));
    ASSERT_EQ(handshake::decode_verdict(verdict).value(), handshake::Verdict::kWelcome);
    send_with_descriptors(fd.get(), &c.packet, c.bytes, c.fds);
    run_for(50);
    char bytes[64];
    ssize_t n = 0;
    while ((n = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
    }
    EXPECT_EQ(n < 0 && errno == EAGAIN, c.taken) << c.bytes << " " << c.fds << " " << c.packet.kind;
  }
  run_for(50);
  EXPECT_EQ(open_descriptors(), before);
}

TEST_F(SegmentExchangeTest, ALifeThatNoPlanNamesIsGivenNothing) {
  add(0, 100).publish(1);
  begin(0, 1);
  auto channel = channel_to(0, Incarnation(66));
  ASSERT_TRUE(channel->open());
  run_for(6000);
  EXPECT_FALSE(channel->receive().has_value());
  EXPECT_TRUE(channel->closed());
}

TEST_F(SegmentExchangeTest, AProcessOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  add(0, 100);
  begin(0, 1);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setresuid(65534, 65534, 65534) != 0) ::_exit(9);
    handshake::Hello hello;
    hello.job_hash = handshake::job_hash("job");
    hello.from = Rank(1);
    hello.to = Rank(0);
    hello.from_incarnation = Incarnation(66);
    hello.to_incarnation = node(0).self;
    auto channel = SegmentChannel::connect(node(0).exchange->socket(), segment_key(key_of(1)), hello);
    if (channel.ok()) ::_exit(1);
    if (channel.status().code() != Code::kRefused) ::_exit(2);
    // The other side looks for itself: not even a challenge comes.
    const OwnedFd fd = dial(0);
    const auto bytes = handshake::encode(hello);
    (void)::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    char byte = 0;
    ::_exit(::recv(fd.get(), &byte, 1, 0) <= 0 ? 0 : 3);
  }
  int status = -1;
  ASSERT_TRUE(run_until([&] {
    ::usleep(100);
    return ::waitpid(child, &status, WNOHANG) == child;
  }));
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

TEST_F(SegmentExchangeTest, NoDescriptorOrMappingLeaks) {
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    for (int r = 0; r < 3; ++r) add(r, 100u + static_cast<unsigned>(10 * i + r));
    begin_all(static_cast<unsigned>(i) + 1);
    ASSERT_TRUE(run_until_all(static_cast<unsigned>(i) + 1));
  }
  nodes_.clear();
  EXPECT_EQ(open_descriptors(), before);
}

// ---- real processes

struct Shared {
  std::atomic<std::uint64_t> published{0};
  std::atomic<std::uint64_t> begun{0};
  std::atomic<int> attached{-1};
  char socket[108] = {};
  std::atomic<bool> named{false};
};

// Rank 1 of two: exchanges, tells how many segments it has got, then publishes until it is killed.
[[noreturn]] void run_life(Shared& shared, Incarnation self, const SegmentExchange::Mate& mate,
                           std::uint64_t generation) {
  Node me(1, self.value);
  std::memcpy(shared.socket, me.exchange->socket().data(), me.exchange->socket().size());
  shared.named = true;
  me.exchange->begin_generation({Generation(generation), Rank(1), {mate}, 20'000}, TimeMs{0});
  while (!me.done(generation)) {
    std::vector<pollfd> fds;
    me.exchange->collect_pollfds(fds);
    (void)::poll(fds.data(), fds.size(), 20);
    me.exchange->run(TimeMs{0});
  }
  shared.attached = static_cast<int>(me.log->attached().size());
  for (std::uint64_t s = 0; s < 256; ++s) {
    shared.begun = s + 1;
    if (!publish_round(*me.log, self, s).ok()) ::_exit(3);
    shared.published = s + 1;
  }
  for (;;) ::pause();
}

TEST_F(SegmentExchangeTest, AFloodIsTakenInTurns) {
  Node& one = add(0, 100);
  constexpr int kFlood = 3 * kAcceptsATurn;
  std::vector<OwnedFd> strangers;
  for (int i = 0; i < kFlood; ++i) {
    strangers.push_back(dial(0));
    ASSERT_EQ(::shutdown(strangers.back().get(), SHUT_WR), 0);
  }
  const auto served = [&] {
    return std::ranges::count_if(strangers, [](const OwnedFd& fd) {
      char byte = 0;
      const ssize_t n = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
      return n == 0 || (n < 0 && errno != EAGAIN);
    });
  };
  for (int turn = 1; turn <= 3; ++turn) {
    one.exchange->run(now_);
    EXPECT_LE(served(), turn * kAcceptsATurn);
  }
  EXPECT_TRUE(run_until([&] { return served() == kFlood; }));
}

TEST_F(SegmentExchangeTest, LivesThatAreKilledInMidPublishLoseNothing) {
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  Node& survivor = add(0, 100);
  std::mt19937_64 random(3);
  std::vector<std::pair<Incarnation, std::uint64_t>> dead;
  const std::size_t before = open_descriptors();
  for (std::uint64_t i = 1; i <= 40; ++i) {
    auto* shared = new (memory) Shared;
    const Incarnation life(1000 + i);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) run_life(*shared, life, survivor.mate(), i);
    while (!shared->named.load()) ::sched_yield();
    survivor.exchange->end_generation();
    survivor.exchange->begin_generation({Generation(i), Rank(0), {{Rank(1), life, shared->socket}}, 20'000}, now_);
    ASSERT_TRUE(run_until([&] { return survivor.done(i) && shared->attached.load() >= 0; }) || [&] {
      // The virtual clock is no measure of another process' time.
      while (!(survivor.done(i) && shared->attached.load() >= 0)) {
        survivor.exchange->run(now_);
        ::sched_yield();
      }
      return true;
    }());
    EXPECT_EQ(shared->attached.load(), static_cast<int>(dead.size()) + 1) << "the survivor's, and those of the dead";
    const std::uint64_t rounds = random() % 200;
    while (shared->published.load() < rounds) ::sched_yield();
    for (std::uint64_t n = random() % 3000; n > 0; --n) std::atomic_signal_fence(std::memory_order_seq_cst);
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    dead.emplace_back(life, shared->published.load());
    for (std::uint64_t s = 0; s < shared->published.load(); ++s) ASSERT_TRUE(survivor.reads(life, s)) << s;
    ASSERT_TRUE(survivor.reader->held(round_key(life, shared->begun.load())).empty());
  }
  for (const auto& [life, published] : dead) {
    for (std::uint64_t s = 0; s < published; ++s) ASSERT_TRUE(survivor.reads(life, s));
    survivor.exchange->forget(life);
    survivor.log->detach(life);
  }
  survivor.exchange->end_generation();
  survivor.exchange->begin_generation({Generation(99), Rank(0), {}, 1000}, now_);
  EXPECT_EQ(open_descriptors(), before);
  ::munmap(memory, 4096);
}

}  // namespace
}  // namespace warren::worker
