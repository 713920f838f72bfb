// A rank that leaves without finalize and comes back as a new life, in one process: what the others owe it in places
// where a killed process seldom finds them.
#include <gmock/gmock.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <latch>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/e2e/two_ranks.h"
#include "tests/sanitized.h"

namespace warren {
namespace {

using testing::apart;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::run_two_ranks;

TEST(Lives, WhoFinalizesSendsMessagesAgain) {
  Cluster cluster;
  std::promise<void> sent;
  const auto receiver = [&](Options& o) {
    {
      Communicator first = Communicator::create(o);
      EXPECT_EQ(first.allreduce(1), 2);
      sent.get_future().wait();
    }
    Communicator second = Communicator::create(o);
    EXPECT_EQ(second.allreduce(1), 2);
    std::vector<int> got(3);
    second.recv(got, 0, 7);
    EXPECT_EQ(got, (std::vector{5, 6, 7}));
    second.finalize();
  };
  const auto sender = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.allreduce(1), 2);
    comm.send(std::vector{5, 6, 7}, 1, 7);
    sent.set_value();
    comm.finalize();
  };
  run_two_ranks(cluster, sender, receiver);
}

// As where workers were started by hand: nobody keeps their logs open, and all of them have ended.
TEST(Lives, WhereAllCopiesAreLostEveryRankHearsThatTheJobCannotGoOn) {
  Cluster cluster;
  std::latch committed(2);
  const auto first = cluster.run(
      2,
      [&](Communicator& comm) {
        (void)comm.load_checkpoint();
        for (int version = 1; version <= 2; ++version) comm.checkpoint(comm.allreduce(std::vector<int>(1000, version)));
        committed.arrive_and_wait();
      },
      apart, false);
  for (const auto& error : first) EXPECT_FALSE(error.has_value()) << error->what();
  const auto expect_lost = [](const std::vector<std::optional<Error>>& errors, const std::string& says) {
    for (const auto& error : errors) {
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->code(), ErrorCode::unavailable) << error->what();
      for (const std::string& part : {says, std::string("what it would go on from is lost, as rank "),
                                      std::string("its copies are lost"), std::string("`warren forget --job=job`")}) {
        EXPECT_NE(std::string(error->what()).find(part), std::string::npos) << error->what();
      }
    }
  };
  // Of the states some may be on one rank's host and some on the other's: whoever finds out first, both hear it.
  expect_lost(cluster.run(
                  2, [](Communicator& comm) { (void)comm.load_checkpoint(); }, apart, false),
              "job job cannot go on");
  // And so does one that comes later, alone.
  expect_lost(cluster.run(
                  1, [](Communicator&) {},
                  [](int rank, Options& o) {
                    apart(rank, o);
                    o.world_size = 2;
                  },
                  false),
              "cannot join job job: the tracker at ");
}

TEST(Lives, ACallbackIsCalledWhenItsResultWasFetched) {
  Cluster cluster;
  std::promise<void> done;
  const auto two_lives = [&](Options& o) {
    std::vector<int> values(50'000, 1);
    {
      Communicator first = Communicator::create(o);
      first.allreduce(std::span(values));
      done.get_future().wait();
    }
    std::fill(values.begin(), values.end(), 1);
    Communicator second = Communicator::create(o);
    std::promise<void> called;
    Handle handle = second.allreduce_async(std::span(values));
    handle.on_complete([&](const Error* e) {
      EXPECT_EQ(e, nullptr);
      called.set_value();
    });
    called.get_future().wait();  // no call of Warren's helps the callback on
    EXPECT_EQ(values, std::vector<int>(50'000, 2));
    handle.wait();
    second.finalize();
  };
  const auto one_life = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    std::vector<int> values(50'000, 1);
    comm.allreduce(std::span(values));
    done.set_value();
    comm.finalize();
  };
  run_two_ranks(cluster, one_life, two_lives);
}

// Rank 0 is in the middle of version 2 and makes no set-up round.
TEST(Lives, ANewLifeGetsTheResultOfASetUpRoundAlone) {
  Cluster cluster;
  std::promise<void> gone;
  const auto checkpoints_from = [](Communicator& comm, std::uint64_t version) {
    for (; version < 2; version++) comm.checkpoint(std::vector{static_cast<int>(version)});
  };
  const auto two_lives = [&](Options& o) {
    {
      Communicator first = Communicator::create(o);
      EXPECT_EQ(first.load_checkpoint().version, 0u);
      EXPECT_EQ(first.once("sketch").allreduce(100), 107);
      EXPECT_EQ(first.once("sketch").allreduce(5), 107) << "a name again, in the same life";
      EXPECT_THROW((void)first.once("").allreduce(1), Error);
      checkpoints_from(first, 0);
    }
    gone.set_value();
    Communicator second = Communicator::create(o);
    const std::uint64_t version = second.load_checkpoint().version;
    EXPECT_GE(version, 1u);
    EXPECT_EQ(second.once("sketch").allreduce(999), 107);
    checkpoints_from(second, version);
    EXPECT_EQ(second.allreduce(1), 3);
    EXPECT_THROW((void)second.split(0)->once("late").allreduce(1), Error)
        << "a life that loads a later version has no such group";
    second.finalize();
  };
  const auto one_life = [&](Options& o) {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.load_checkpoint().version, 0u);
    EXPECT_EQ(comm.once("sketch").allreduce(7), 107);
    checkpoints_from(comm, 0);
    gone.get_future().wait();
    EXPECT_EQ(comm.allreduce(2), 3);
    (void)comm.split(0);
    comm.finalize();
  };
  run_two_ranks(cluster, one_life, two_lives);
}

// A life that ends between a lazy checkpoint and the next call has given no state: nothing is committed.
TEST(Lives, ALazyCheckpointIsSerializedByTheNextCall) {
  Cluster cluster;
  const auto lazily = [](Communicator& comm, int& model, int& calls) {
    comm.lazy_checkpoint([&] {
      calls++;
      return std::vector{model};
    });
    EXPECT_EQ(calls, 0);
  };
  const auto rest = [](Communicator& comm, int& calls) {
    EXPECT_EQ(comm.allreduce(1), 2);
    EXPECT_EQ(calls, 1);
    comm.checkpoint(std::vector{5});  // returns when the lazy one is committed
    EXPECT_GE(comm.committed_version(), 1u);
  };
  const auto two_lives = [&](Options& o) {
    int model = 17, calls = 0;
    {
      Communicator first = Communicator::create(o);
      EXPECT_EQ(first.load_checkpoint().version, 0u);
      lazily(first, model, calls);
    }
    EXPECT_EQ(calls, 0);
    {
      Communicator second = Communicator::create(o);
      EXPECT_EQ(second.load_checkpoint().version, 0u) << "rank 1 had not given it";
      lazily(second, model, calls);
      rest(second, calls);
    }
    Communicator third = Communicator::create(o);
    const auto loaded = third.load_checkpoint();
    EXPECT_GE(loaded.version, 1u);
    if (loaded.version == 1) {
      EXPECT_EQ(loaded.global_as<int>(), std::vector{17});
      EXPECT_EQ(third.allreduce(1), 2);
      third.checkpoint(std::vector{5});
    }
    third.barrier();
    third.finalize();
  };
  const auto one_life = [&](Options& o) {
    int model = 17, calls = 0;
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.load_checkpoint().version, 0u);
    lazily(comm, model, calls);
    rest(comm, calls);
    comm.barrier();
    comm.finalize();
  };
  run_two_ranks(cluster, one_life, two_lives);
}

TEST(Lives, AfterARollbackThatIsAnErrorACommunicatorIsMadeAgain) {
  Cluster cluster;
  const auto body = [&](int rank, Options& o) {
    o.on_rollback = "error";
    o.data_dir = cluster.file("data-" + std::to_string(rank));
    {
      Communicator first = Communicator::create(o);
      EXPECT_EQ(first.load_checkpoint().version, 0u);
      first.checkpoint(std::vector{1});
      first.checkpoint(std::vector{2});  // returns when the one before is committed
      std::vector<int> values(rank == 0 ? 10 : 20, 1);
      EXPECT_THROW(first.allreduce(std::span(values)), Error);
      EXPECT_THROW(first.barrier(), Error);
    }
    Communicator second = Communicator::create(o);
    const auto loaded = second.load_checkpoint();
    EXPECT_GE(loaded.version, 1u);
    EXPECT_EQ(loaded.global_as<int>(), std::vector{static_cast<int>(loaded.version)});
    EXPECT_EQ(second.allreduce(static_cast<int>(loaded.version)), 2 * static_cast<int>(loaded.version));
    second.finalize();
  };
  run_two_ranks(
      cluster, [&](Options& o) { body(0, o); }, [&](Options& o) { body(1, o); });
}

// Small and large, and whether its caller waits in the call or not. What it throws reaches the caller of a blocking
// call; the other rank waits for the next life, which replays what was done before.
TEST(Lives, AReductionThatThrowsEndsItsLifeAlone) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{300'000}}) {
    for (const bool async : {false, true}) {
      SCOPED_TRACE(std::to_string(count) + " elements" + (async ? ", asynchronous" : ""));
      Cluster cluster;
      const auto sum = [](int a, int b) { return a + b; };
      const auto expect_sum = [](const std::vector<int>& values) {
        EXPECT_EQ(values, std::vector<int>(values.size(), 30));
      };
      const auto two_lives = [&](Options& o) {
        std::vector<int> values(count, 10);
        {
          Communicator first = Communicator::create(o);
          first.allreduce(std::span(values), sum);
          values.assign(count, 10);
          const auto fails = [](int, int) -> int { throw std::out_of_range("row 7"); };
          if (async) {
            Handle handle = first.allreduce_async(std::span(values), fails);
            try {
              handle.wait();
              ADD_FAILURE() << "the call has succeeded";
            } catch (const Error& e) {
              EXPECT_EQ(e.code(), ErrorCode::internal);
              EXPECT_NE(std::string(e.what()).find("the reduction has thrown: row 7"), std::string::npos) << e.what();
            }
          } else {
            EXPECT_THROW(first.allreduce(std::span(values), fails), std::out_of_range);
          }
          EXPECT_THROW((void)first.allreduce(1), Error) << "the life is over";
        }
        values.assign(count, 10);
        Communicator second = Communicator::create(o);
        second.allreduce(std::span(values), sum);
        expect_sum(values);
        values.assign(count, 10);
        second.allreduce(std::span(values), sum);
        expect_sum(values);
        second.finalize();
      };
      const auto one_life = [&](Options& o) {
        Communicator comm = Communicator::create(o);
        for (int call = 0; call < 2; call++) {
          std::vector<int> values(count, 20);
          comm.allreduce(std::span(values), sum);
          expect_sum(values);
        }
        comm.finalize();
      };
      run_two_ranks(cluster, one_life, two_lives);
      if (HasFailure()) return;
    }
  }
}

// Where a drain must not end the process: what the program calls afterwards fails, and nobody else's calls do.
TEST(Lives, WhoDrainsBeginsNothingAndItsNextLifeGoesOn) {
  Cluster cluster;
  const auto drainer = [&](Options& o) {
    o.on_rollback = "error";
    {
      Communicator first = Communicator::create(o);
      EXPECT_EQ(first.allreduce(1), 2);
      first.drain(std::chrono::minutes(10));
      // It leaves before this, or this waits until it has left.
      try {
        (void)first.allreduce(100);
        ADD_FAILURE() << "a call began";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::closed) << e.what();
      }
    }
    Communicator second = Communicator::create(o);
    EXPECT_EQ(second.allreduce(1), 2);
    EXPECT_EQ(second.allreduce(5), 10);
    second.finalize();
  };
  const auto other = [&](Options& o) {
    o.on_rollback = "error";
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.allreduce(1), 2);
    EXPECT_EQ(comm.allreduce(5), 10);
    comm.finalize();
  };
  run_two_ranks(cluster, other, drainer);
}

// A sink of the program's is called by the thread that recovers, which waits for it as long as it takes.
TEST(Lives, ARecoveryWaitsForNobodyToTakeLogLinesFromAQueue) {
  Cluster cluster;
  const auto two_lives = [&](Options& o) {
    for (int life = 0; life < 2; life++) {
      Communicator comm = Communicator::create(o);
      EXPECT_EQ(comm.allreduce(1), 2);
      if (life == 0) continue;  // it leaves without finalize
      EXPECT_EQ(comm.allreduce(5), 10);
      comm.finalize();
    }
  };
  const auto other = [&](Options& o) {
    LogQueue queue(2);
    o.log_queue = &queue;
    o.log_level = LogLevel::info;
    {
      Communicator comm = Communicator::create(o);
      EXPECT_EQ(comm.allreduce(1), 2);
      EXPECT_EQ(comm.allreduce(5), 10);
      comm.finalize();
    }
    const auto dropped = queue.next();
    ASSERT_TRUE(dropped);
    EXPECT_EQ(dropped->level, LogLevel::warning);
    EXPECT_THAT(dropped->text, HasSubstr("log lines are missing here"));
    EXPECT_TRUE(queue.next());
    EXPECT_TRUE(queue.next());
    EXPECT_FALSE(queue.next()) << "the communicator is gone";
  };
  run_two_ranks(cluster, other, two_lives);
}

TEST(Lives, LogLinesAreTakenWhileCreateWaits) {
  LogQueue queue(100);
  Options o;
  o.tracker = "127.0.0.1:1";  // where nobody is
  o.insecure_no_auth = true;
  o.job = "job";
  o.worker_id = "0";
  o.world_size = 1;
  o.join_timeout_ms = std::chrono::milliseconds(500);
  o.log_queue = &queue;
  o.log_level = LogLevel::info;
  std::promise<std::string> first;
  std::thread taker([&] {
    const auto line = queue.next();
    first.set_value(line ? line->text : "none");
    while (queue.next()) {
    }
  });
  EXPECT_THROW((void)Communicator::create(o), Error);
  EXPECT_THAT(first.get_future().get(), HasSubstr("warren 0.1.0: "));
  taker.join();  // no line comes where no communicator was made
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// A state of which ranks make different bytes, such as a pickle: the root's are everybody's.
TEST(Lives, ACheckpointFromARootIsLoadedByAll) {
  Cluster cluster;
  const auto global_of = [](int rank, std::uint64_t version) {
    return bytes_of("made by rank " + std::to_string(rank) + " for version " + std::to_string(version));
  };
  const auto life = [&](int rank, const Options& o, std::uint64_t loads_least, std::uint64_t leaves_at) {
    Communicator comm = Communicator::create(o);
    const auto loaded = comm.load_checkpoint();
    EXPECT_GE(loaded.version, loads_least);
    if (loaded.version != 0) {
      EXPECT_EQ(loaded.global, global_of(1, loaded.version));
      EXPECT_EQ(loaded.local, bytes_of("local of " + std::to_string(rank)));
    }
    for (std::uint64_t version = loaded.version; version < 3; version++) {
      if (version != 0) {
        EXPECT_EQ(comm.allreduce(1), 2);
      }
      if (version + 1 == leaves_at) return;  // without finalize
      // Returns when the one before is committed.
      comm.checkpoint_from(1, global_of(rank, version + 1), bytes_of("local of " + std::to_string(rank)));
    }
    try {
      comm.checkpoint_from(2, {});
      ADD_FAILURE() << "there is no rank 2";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument) << e.what();
    }
    comm.finalize();
  };
  run_two_ranks(
      cluster, [&](Options& o) { life(0, o, 0, 0); },
      [&](Options& o) {
        life(1, o, 0, 3);
        life(1, o, 1, 0);
      });
}

// The states that the library has loaded; what the program has copied is its own.
TEST(Lives, LoadedStatesAreReleased) {
  constexpr std::size_t kBytes = std::size_t{64} << 20;
  Cluster cluster;
  Options o = cluster.options(0, 1);
  o.data_dir = cluster.file("data");
  {
    Communicator comm = Communicator::create(o);
    EXPECT_EQ(comm.load_checkpoint().version, 0u);
    comm.checkpoint(std::vector<std::byte>(kBytes, std::byte{7}));
    comm.checkpoint(std::vector<std::byte>(kBytes, std::byte{7}));  // returns when the one before is committed
  }
  warren_options c;
  warren_options_init(&c);
  c.tracker = o.tracker.c_str();
  c.secret_file = o.secret_file.c_str();
  c.job = o.job.c_str();
  c.worker_id = o.worker_id.c_str();
  c.data_dir = o.data_dir.c_str();
  c.world_size = 1;
  c.round_timeout_ms = o.round_timeout_ms.count();
  warren_comm* comm = nullptr;
  ASSERT_EQ(warren_create(&c, &comm), WARREN_OK) << warren_last_error();
  EXPECT_EQ(warren_release_states(comm), WARREN_OK) << "there are none";
  std::uint64_t version = 0;
  const void* state = nullptr;
  std::size_t bytes = 0;
  ASSERT_EQ(warren_load_checkpoint(comm, &version, &state, &bytes, nullptr, nullptr), WARREN_OK);
  ASSERT_GE(version, 1u);
  ASSERT_EQ(bytes, kBytes);
  EXPECT_EQ(static_cast<const std::byte*>(state)[bytes - 1], std::byte{7});
  const auto used = [] { return mallinfo2().uordblks + mallinfo2().hblkhd; };
  const std::size_t before = used();
  EXPECT_EQ(warren_release_states(comm), WARREN_OK);
  EXPECT_EQ(warren_release_states(comm), WARREN_OK) << "again";
  if (!kAddressSanitized && !kThreadSanitized) {
    EXPECT_LE(used() + kBytes, before + (std::size_t{1} << 20));
  }
  std::vector<std::byte> memory(kBytes);
  const warren_place place{memory.data(), memory.size()};
  EXPECT_EQ(warren_restore(comm, &place, 1, nullptr, 0), WARREN_INVALID_ARGUMENT);
  EXPECT_EQ(warren_checkpoint_world_size(comm), 1u);
  EXPECT_EQ(warren_finalize(comm), WARREN_OK);
  warren_destroy(comm);
}

// The sum of the ranks of a group's members, computed in the group.
int sum_of(Communicator& group, int rank) {
  return group.allreduce(rank);
}

constexpr std::array kFrontRanks = {0, 1, 2};
constexpr std::array kBackRanks = {3, 2}, kEndRanks = {0, 3};

// Overlapping groups, each made by its members alone, in the orders that these have. `leaves_at`: 0, before the load;
// 1, in a version; 2, at the end, well.
void life_with_groups(const Options& options, int leaves_at) {
  Communicator comm = Communicator::create(options);
  const int rank = comm.rank();
  std::optional<Communicator> front, back, ends;
  if (rank <= 2) front.emplace(comm.group("front", kFrontRanks));
  if (rank >= 2) back.emplace(comm.group("back", kBackRanks));
  if (back) {
    EXPECT_EQ(back->rank(), rank == 3 ? 0 : 1) << "as the list has them";
    EXPECT_EQ(sum_of(*back, rank), 5);
  }
  if (leaves_at == 0) return;  // without finalize
  EXPECT_EQ(comm.load_checkpoint().version, 0u);
  if (front) {
    EXPECT_EQ(front->world_size(), 3);
    EXPECT_EQ(sum_of(*front, rank), 3);
  }
  if (rank == 0 || rank == 3) ends.emplace(comm.group("ends", kEndRanks));
  if (ends) {
    EXPECT_EQ(sum_of(*ends, rank), 3);
  }
  if (leaves_at == 1) return;
  EXPECT_EQ(comm.allreduce(rank), 6);
  // A name that is free again.
  ends.reset();
  if (rank == 1 || rank == 2) ends.emplace(comm.group("ends", std::array{1, 2}));
  if (ends) {
    EXPECT_EQ(sum_of(*ends, rank), 3);
  }
  comm.finalize();
}

// One rank that is in two of them leaves and is started again in between: before the load and in a version.
TEST(Lives, GroupsAreMadeByTheirMembersAlone) {
  Cluster cluster;
  const auto life = [&](int rank, int leaves_at) {
    Options o = cluster.options(rank, 4);
    apart(rank, o);
    life_with_groups(o, leaves_at);
  };
  std::vector<std::thread> others;
  for (const int rank : {0, 1, 3}) others.emplace_back([&, rank] { life(rank, 2); });
  for (const int leaves_at : {0, 1, 2}) life(2, leaves_at);
  for (std::thread& other : others) other.join();
}

// Two of four at once: both members of a group, or one and another rank. What both have logged is lost then, and made
// again, or all begin again.
TEST(Lives, GroupsAreMadeWhereTwoOfFourRanksAreLost) {
  for (const auto& [a, b] : {std::pair(2, 3), std::pair(1, 3)}) {
    for (const int replicas : {1, 2}) {
      SCOPED_TRACE("ranks " + std::to_string(a) + " and " + std::to_string(b) + ", " + std::to_string(replicas));
      Cluster cluster;
      const auto lives = [&, leavers = std::array{a, b}](int rank) {
        Options o = cluster.options(rank, 4);
        apart(rank, o);
        o.replicas = replicas;
        o.on_rollback = "error";
        int leaves_at = std::ranges::count(leavers, rank) != 0 ? 0 : 2;
        for (int rollbacks = 0; leaves_at <= 2;) {
          try {
            life_with_groups(o, leaves_at);
            ++leaves_at;
          } catch (const Error& e) {
            ASSERT_EQ(e.code(), ErrorCode::rolled_back) << e.what();
            ASSERT_LT(++rollbacks, 10);
          }
        }
      };
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < 4; rank++) ranks.emplace_back(lives, rank);
      for (std::thread& rank : ranks) rank.join();
    }
  }
}

// More than there may be at once, and under ever new names.
TEST(Lives, GroupsAreMadeAndDestroyedForEver) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    (void)comm.load_checkpoint();
    for (int version = 0; version < 12; version++) {
      for (int i = 0; i < 400; i++) {
        const std::string name = i % 2 == 0 ? "again" : "group " + std::to_string(version) + "." + std::to_string(i);
        Communicator group = comm.group(name, std::array{1, 0});
        if (i % 100 == 0) {
          EXPECT_EQ(group.allreduce(group.rank() + 1), 3);
        }
      }
      comm.checkpoint(std::vector<int>(1));
    }
    comm.finalize();
  });
}

TEST(Lives, AGroupThatCannotBeIsRefused) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    const auto refused = [&](const std::string& name, const std::vector<int>& ranks) {
      try {
        (void)comm.group(name, ranks);
        return std::string("made");
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
        return std::string(e.what());
      }
    };
    const int self = comm.rank(), other = 1 - self;
    EXPECT_THAT(refused("a", {other}),
                HasSubstr("rank " + std::to_string(self) + " has called it, and is none of them"));
    EXPECT_THAT(refused("a", {self, self}), HasSubstr("rank " + std::to_string(self) + " is named twice"));
    EXPECT_THAT(refused("a", {self, 2}), HasSubstr("group \"a\" of ranks " + std::to_string(self) + ", 2"));
    EXPECT_THAT(refused("a", {}), HasSubstr("is none of them"));
    EXPECT_THAT(refused("", {0, 1}), HasSubstr("its name has 1 to 128 bytes"));
    EXPECT_THAT(refused(std::string(129, 'x'), {0, 1}), HasSubstr("its name has 1 to 128 bytes"));
    const Communicator a = comm.group("a", std::array{0, 1});
    EXPECT_THAT(refused("a", {0, 1}), HasSubstr("there is a group of this name: destroy it first"));
    EXPECT_THAT(refused("a", {self}), HasSubstr("there is a group of this name, of other ranks"));
    comm.finalize();
  });
}

// Nobody waits for ever, and nobody gets a number of another group.
TEST(Lives, RanksThatGiveOneGroupDifferentListsHearOfIt) {
  for (const bool orders : {false, true}) {
    Cluster cluster;
    const auto errors = cluster.run(
        2,
        [&](Communicator& comm) {
          if (orders) {
            (void)comm.group(comm.rank() == 0 ? "a" : "b", std::array{0, 1});
          } else {
            (void)comm.group("a", comm.rank() == 0 ? std::array{0, 1} : std::array{1, 0});
          }
        },
        [](int, Options& o) { o.round_timeout_ms = std::chrono::milliseconds(2000); });
    for (const auto& error : errors) {
      ASSERT_TRUE(error.has_value());
      EXPECT_EQ(error->code(), ErrorCode::desync) << error->what();
      EXPECT_THAT(error->what(), HasSubstr("group \""));
    }
  }
}

// Plans come on a thread of the library's, at any moment, also while the program asks for what they say.
TEST(Lives, AProgramThatCallsWhileAGenerationBeginsSeesOneWorld) {
  constexpr int kRanks = 3, kLives = 60;
  Cluster cluster;
  std::atomic<bool> over{false}, told{false};
  const auto create = [&](int rank) {
    Options o = cluster.options(rank, kRanks);
    o.host_id = "a-host-whose-name-is-longer-than-what-a-string-holds-without-memory-of-its-own-";
    o.domain_id = o.host_id = o.host_id + std::to_string(rank);
    return Communicator::create(o);
  };
  const auto stays = [&](int rank) {
    Communicator comm = create(rank);
    (void)comm.load_checkpoint();
    while (!over) {
      try {
        comm.checkpoint_from(kRanks, {});
        ADD_FAILURE() << "there is no such rank";
      } catch (const Error& e) {
        const bool right = std::string(e.what()).find("the job has 3 ranks") != std::string::npos;
        EXPECT_TRUE(right || told.exchange(true)) << e.what();
      }
    }
    comm.finalize();
  };
  std::thread a([&] { stays(0); }), b([&] { stays(2); });
  for (int life = 0; life < kLives; life++) (void)create(1);
  Communicator last = create(1);
  (void)last.load_checkpoint();
  over = true;
  last.finalize();
  a.join();
  b.join();
}

// Three ranks, each of which makes a group with the next one: no frame of one group meets a call of another.
TEST(Lives, RanksThatMakeGroupsInACircleHearOfIt) {
  Cluster cluster;
  const auto errors = cluster.run(3, [](Communicator& comm) {
    const int next = (comm.rank() + 1) % 3;
    (void)comm.group("from " + std::to_string(comm.rank()), std::array{comm.rank(), next});
  });
  for (const auto& error : errors) {
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), ErrorCode::desync) << error->what();
    EXPECT_THAT(error->what(), HasSubstr("calls wait for each other in a circle"));
  }
}

}  // namespace
}  // namespace warren
