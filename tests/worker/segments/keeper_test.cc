// The keeper: what all workers of a host have left is there for those that come after them.
#include "worker/segments/keeper.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <set>

#include "tests/worker/segments/fixture.h"

namespace warren::worker {
namespace {

using testing::HasSubstr;
using testing::UnorderedElementsAre;

constexpr std::int64_t kTimeoutMs = 20'000;

class SegmentKeeperTest : public testing::Test {
 protected:
  void start(std::uint32_t workers = 4) {
    keeper_.reset();
    keeper_ = std::move(SegmentKeeper::start(workers, [this](const std::string& text) {
                const std::lock_guard lock(mutex_);
                warnings_.push_back(text);
              })).value();
  }
  Result<std::unique_ptr<KeeperLink>> offer(const LogLife& life, const std::string& worker = "w0",
                                            const std::string& job = "job", const std::string& host = "host") const {
    return KeeperLink::offer(keeper_->environment(), {job, host, worker, life.self, life.memory}, kTimeoutMs);
  }
  // The lives whose segments a new life is given.
  std::multiset<std::uint64_t> given(std::uint64_t id, const std::string& job = "job",
                                     const std::string& host = "host") {
    const LogLife life(id);
    auto link = offer(life, "asks", job, host);
    EXPECT_TRUE(link.ok()) << link.status().describe();
    std::multiset<std::uint64_t> lives;
    for (const KeeperLink::Kept& k : link.value()->take()) {
      EXPECT_EQ(k.bytes, kSegmentBytes);
      EXPECT_TRUE(map_segment(k.fd.get(), k.bytes).ok());
      lives.insert(k.life.value);
    }
    link.value()->forget(life.self);
    return lives;
  }

  std::unique_ptr<SegmentKeeper> keeper_;
  std::mutex mutex_;
  std::vector<std::string> warnings_;
};

TEST_F(SegmentKeeperTest, KeepsWhatItsOfferersHaveLeft) {
  start();
  for (std::uint64_t id = 1; id <= 3; ++id) {
    const LogLife life(id);
    life.publish(7);
    ASSERT_TRUE(offer(life, "w" + std::to_string(id)).ok());
  }
  const LogLife later(9);
  auto link = offer(later);
  ASSERT_TRUE(link.ok()) << link.status().describe();
  std::vector<KeeperLink::Kept> kept = link.value()->take();
  EXPECT_EQ(kept.size(), 3u);
  for (const KeeperLink::Kept& k : kept) {
    auto mapped = map_segment(k.fd.get(), k.bytes);
    ASSERT_TRUE(mapped.ok());
    ASSERT_TRUE(later.log->attach(k.life, mapped.value().bytes, mapped.value().keeper).ok());
    EXPECT_TRUE(later.reads(k.life, 7));
  }
}

TEST_F(SegmentKeeperTest, OtherJobsAndHostsAreApart) {
  start();
  const LogLife life(1);
  ASSERT_TRUE(offer(life).ok());
  EXPECT_TRUE(given(2, "other").empty());
  EXPECT_TRUE(given(3, "job", "elsewhere").empty());
  EXPECT_THAT(given(4), UnorderedElementsAre(1u));
}

TEST_F(SegmentKeeperTest, ForgettingClosesThatLifeAlone) {
  start();
  std::unique_ptr<KeeperLink> link;
  for (const std::uint64_t id : {1, 2, 3, 4}) {
    const LogLife life(id);
    ASSERT_TRUE(offer(life, "a").ok());
    const LogLife other(10 + id);
    link = std::move(offer(other, "b")).value();
  }
  link->forget(Incarnation(99));
  link->forget(Incarnation(3));
  // Over another connection: the word is under way.
  while (given(20).contains(3)) {
  }
  EXPECT_THAT(given(20), UnorderedElementsAre(1u, 2u, 4u, 11u, 12u, 13u, 14u));
}

// Two spares of a host that was left are called together, and each has closed what is stale: the process of the other
// lives, and may have a place next. One that lives and was not called is in no plan that anybody could still go by.
TEST_F(SegmentKeeperTest, WhoIsCalledWithOthersForgetsNoneOfThem) {
  start();
  const auto offer_called = [&](const LogLife& life, std::uint64_t generation) {
    return std::move(KeeperLink::offer(keeper_->environment(),
                                       {"job", "host", "w", life.self, life.memory, Generation(generation)},
                                       kTimeoutMs))
        .value();
  };
  const LogLife dead(1), fenced(2), earlier(3), first(4), second(5), later(6);
  ASSERT_TRUE(offer(dead).ok());
  auto fenced_link = std::move(offer(fenced)).value();
  auto earlier_link = offer_called(earlier, 6);
  auto first_link = offer_called(first, 7);
  auto later_link = offer_called(later, 8);
  auto second_link = offer_called(second, 7);
  for (const auto& kept : second_link->take()) second_link->forget_stale(kept.life);
  while (given(20).contains(earlier.self.value)) {
  }
  EXPECT_THAT(given(20), UnorderedElementsAre(4u, 5u, 6u));
  // Once it is dead it can be forgotten as any other.
  first_link.reset();
  while (given(20).contains(first.self.value)) second_link->forget_stale(first.self);
  EXPECT_THAT(given(20), UnorderedElementsAre(5u, 6u));
}

TEST_F(SegmentKeeperTest, ItKeepsABoundedNumberAndGivesUpTheOldestOfTheWorkerWithMost) {
  start(1);  // 68
  const std::size_t before = open_descriptors();
  const LogLife quiet(5);
  ASSERT_TRUE(offer(quiet, "quiet").ok());
  const LogLife busy(6);
  for (std::uint64_t id = 100; id < 200; ++id) {
    // The same memory under many names: only the descriptors count.
    ASSERT_TRUE(
        KeeperLink::offer(keeper_->environment(), {"job", "host", "busy", Incarnation(id), busy.memory}, kTimeoutMs)
            .ok());
  }
  const LogLife asks(7);
  auto link = offer(asks, "asks");
  std::set<std::uint64_t> lives;
  for (const KeeperLink::Kept& k : link.value()->take()) lives.insert(k.life.value);
  EXPECT_TRUE(lives.contains(5)) << "not the oldest of all";
  EXPECT_TRUE(lives.contains(199));
  EXPECT_FALSE(lives.contains(100));
  EXPECT_EQ(lives.size(), 68u);
  EXPECT_LE(open_descriptors(), before + 68 + 3 * 2 + 3);
  const std::lock_guard lock(mutex_);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("over 68 log segments"));
}

TEST_F(SegmentKeeperTest, TheSameLifeTwiceIsOne) {
  start();
  const LogLife life(1);
  ASSERT_TRUE(offer(life).ok());
  ASSERT_TRUE(offer(life).ok());
  EXPECT_THAT(given(2), UnorderedElementsAre(1u));
}

// A keeper's file with another text.
class KeeperFile {
 public:
  explicit KeeperFile(const std::string& text) : file_(::memfd_create("warren-test", MFD_CLOEXEC)) {
    EXPECT_EQ(::write(file_.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  [[nodiscard]] std::string environment() const { return "/proc/self/fd/" + std::to_string(file_.get()); }

 private:
  const OwnedFd file_;
};

TEST_F(SegmentKeeperTest, AValueThatIsNoKeepersIsSaid) {
  start();
  const LogLife life(1);
  const auto with = [&](const std::string& value) {
    auto link = KeeperLink::offer(value, {"job", "host", "w", life.self, life.memory}, kTimeoutMs);
    EXPECT_FALSE(link.ok());
    return link.ok() ? Status() : link.status();
  };
  const auto with_text = [&](const std::string& text) { return with(KeeperFile(text).environment()); };
  const std::string good = keeper_->description();
  const std::size_t colon = good.find(':');
  for (const std::string& bad : {std::string(), std::string("x"), good.substr(0, colon), good + "0", good + good + good,
                                 good.substr(0, good.size() - 2), good.substr(0, good.size() - 1) + "g"}) {
    const Status s = with_text(bad);
    EXPECT_EQ(s.code(), Code::kInvalidArgument) << bad;
    EXPECT_THAT(s.describe(), HasSubstr("WARREN_SEGMENT_KEEPER"));
  }
  EXPECT_EQ(with(good).code(), Code::kInvalidArgument) << "what the file says, and not its path";
  EXPECT_EQ(with("").code(), Code::kInvalidArgument);
  EXPECT_EQ(with_text(good.substr(colon)).code(), Code::kUnavailable);
  EXPECT_EQ(with_text("nobody" + good.substr(colon)).code(), Code::kUnavailable);
  const Status wrong = with_text(good.substr(0, colon + 1) + std::string(64, 'a'));
  EXPECT_EQ(wrong.code(), Code::kRefused) << wrong.describe();
  const std::string environment = keeper_->environment();
  EXPECT_EQ(environment.find(good.substr(colon + 1)), std::string::npos) << "the key stands in the environment";
  keeper_.reset();
  EXPECT_EQ(with(environment).code(), Code::kUnavailable);
  EXPECT_EQ(with_text(good).code(), Code::kUnavailable);
}

TEST_F(SegmentKeeperTest, AKeeperThatDoesNotAnswerIsATimeout) {
  auto silent = listen_for_segments("warren-test-");
  ASSERT_TRUE(silent.ok());
  const LogLife life(1);
  const KeeperFile file(silent.value().name + ":" + std::string(64, 'a'));
  const auto link = KeeperLink::offer(file.environment(), {"job", "host", "w", life.self, life.memory}, 50);
  ASSERT_FALSE(link.ok());
  EXPECT_EQ(link.status().code(), Code::kTimeout);
}

// Connects a socket to the keeper of this description.
void connect_to(const std::string& description, int fd) {
  const std::string name = description.substr(0, description.find(':'));
  sockaddr_un a{};
  a.sun_family = AF_UNIX;
  std::memcpy(a.sun_path + 1, name.data(), name.size());
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&a), length), 0);
}

TEST_F(SegmentKeeperTest, WhereDescriptorsRunOutItIsSaidOnce) {
  std::promise<std::string> said;
  keeper_ = std::move(SegmentKeeper::start(4, [&](const std::string& text) { said.set_value(text); })).value();
  const OwnedFd stranger(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(OwnedFd(::dup(0)).get());  // the lowest that is free
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  connect_to(keeper_->description(), stranger.get());
  auto text = said.get_future();
  const bool heard = text.wait_for(std::chrono::minutes(1)) == std::future_status::ready;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_TRUE(heard);
  EXPECT_THAT(text.get(), HasSubstr("(Too many open files)"));
  EXPECT_TRUE(given(2).empty()) << "it takes in connections again";
}

TEST_F(SegmentKeeperTest, StrangersHoldNobodyUpAndGetNothing) {
  start();
  const LogLife life(1);
  ASSERT_TRUE(offer(life).ok());
  std::vector<OwnedFd> strangers;
  for (int i = 0; i < 50; ++i) {
    strangers.emplace_back(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    connect_to(keeper_->description(), strangers.back().get());
    const std::string rubbish(static_cast<std::size_t>(i * 5), 'x');
    ASSERT_TRUE(i <= 10 || ::send(strangers.back().get(), rubbish.data(), rubbish.size(), MSG_NOSIGNAL) > 0);
  }
  EXPECT_THAT(given(2), UnorderedElementsAre(1u));
  for (std::size_t i = 11; i < strangers.size(); ++i) {
    char bytes[512];
    EXPECT_LE(::recv(strangers[i].get(), bytes, sizeof bytes, 0), 0);
  }
}

TEST_F(SegmentKeeperTest, NoDescriptorLeaks) {
  const std::size_t before = open_descriptors();
  for (int i = 0; i < 5; ++i) {
    start();
    for (std::uint64_t id = 1; id <= 5; ++id) {
      const LogLife life(id);
      ASSERT_TRUE(offer(life).ok());
    }
    keeper_.reset();
  }
  EXPECT_EQ(open_descriptors(), before);
}

// Every worker of the host is killed in mid-publish, again and again; a new one reads all that was ever published.
TEST_F(SegmentKeeperTest, AHostWhoseWorkersAreAllKilledHasItsLog) {
  struct Shared {
    std::atomic<std::uint64_t> published[2];
    std::atomic<int> given[2];
  };
  start(2);
  void* memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  const std::string environment = keeper_->environment();
  std::map<Incarnation, std::uint64_t> dead;
  for (std::uint64_t i = 0; i < 10; ++i) {
    auto* shared = new (memory) Shared{};
    pid_t children[2];
    for (std::uint64_t w = 0; w < 2; ++w) {
      children[w] = ::fork();
      ASSERT_GE(children[w], 0);
      if (children[w] != 0) continue;
      const LogLife me(10 * i + w + 1);
      auto link =
          KeeperLink::offer(environment, {"job", "host", "w" + std::to_string(w), me.self, me.memory}, kTimeoutMs);
      if (!link.ok()) ::_exit(2);
      shared->given[w] = static_cast<int>(link.value()->take().size()) + 1;
      for (std::uint64_t s = 0; s < 200; ++s) {
        if (!publish_round(*me.log, me.self, s).ok()) ::_exit(3);
        shared->published[w] = s + 1;
      }
      ::pause();
    }
    while (shared->published[0].load() < 20 * i || shared->given[0].load() == 0 || shared->given[1].load() == 0) {
      ::sched_yield();
    }
    for (const pid_t child : children) ASSERT_EQ(::kill(child, SIGKILL), 0);
    for (std::uint64_t w = 0; w < 2; ++w) {
      ASSERT_EQ(::waitpid(children[w], nullptr, 0), children[w]);
      // The other of this round may have been there or not.
      EXPECT_GE(shared->given[w].load(), static_cast<int>(dead.size()) + 1);
    }
    for (std::uint64_t w = 0; w < 2; ++w) dead[Incarnation(10 * i + w + 1)] = shared->published[w].load();
  }
  const LogLife last(1000);
  auto link = offer(last);
  ASSERT_TRUE(link.ok());
  for (const KeeperLink::Kept& k : link.value()->take()) {
    auto mapped = map_segment(k.fd.get(), k.bytes);
    ASSERT_TRUE(last.log->attach(k.life, mapped.value().bytes, mapped.value().keeper).ok());
  }
  EXPECT_EQ(last.log->attached().size(), dead.size());
  for (const auto& [life, published] : dead) {
    for (std::uint64_t s = 0; s < published; ++s) ASSERT_TRUE(last.reads(life, s)) << life.value << " " << s;
  }
  ::munmap(memory, 4096);
}

}  // namespace
}  // namespace warren::worker
