// What a user sees when something is wrong: an error in a stated time that names rank, peer, round and what to do.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "tests/e2e/cluster.h"

namespace warren {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using testing::Cluster;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string text(const std::optional<Error>& e) {
  return e ? e->what() : "no error";
}

TEST(BadInput, AWrongSecretIsNamedWithinTheJoinTimeout) {
  Cluster cluster, other;
  std::mutex mutex;
  std::vector<std::string> warnings;
  const auto errors = cluster.run(
      1, [](Communicator&) {},
      [&](int, Options& o) {
        o.secret_file = other.root_file();
        o.join_timeout_ms = std::chrono::milliseconds(1500);
        o.log_level = LogLevel::warning;
        o.log_sink = [&](LogLevel, std::string_view line) {
          const std::lock_guard lock(mutex);
          warnings.emplace_back(line);
        };
      });
  constexpr const char* kWhy = "does not accept this worker's key";
  EXPECT_THAT(text(errors[0]), AllOf(HasSubstr(cluster.address()), HasSubstr(kWhy), HasSubstr("secret")));
  // However often the connection is tried again.
  const std::lock_guard lock(mutex);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr(kWhy)));
}

TEST(BadInput, AnotherJobsSecretIsRefused) {
  Cluster cluster;
  ASSERT_TRUE(cluster.secret().write_job_secret("theirs", cluster.file("theirs")).ok());
  const auto errors = cluster.run(
      1, [](Communicator&) {}, [&](int, Options& o) { o.secret_file = cluster.file("theirs"); });
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_EQ(errors[0]->code(), ErrorCode::refused);
  EXPECT_THAT(text(errors[0]), HasSubstr("theirs"));
}

TEST(BadInput, AJobsOwnSecretIsEnough) {
  Cluster cluster;
  ASSERT_TRUE(cluster.secret().write_job_secret("job", cluster.file("mine")).ok());
  cluster.run_well(
      2, [](Communicator& comm) { EXPECT_EQ(comm.allreduce(1), 2); },
      [&](int, Options& o) { o.secret_file = cluster.file("mine"); });
}

TEST(BadInput, NoTracker) {
  Cluster cluster;
  const std::string address = cluster.address();
  Options o = cluster.options(0, 2);
  cluster.stop_tracker();
  o.join_timeout_ms = std::chrono::milliseconds(1000);
  try {
    (void)Communicator::create(o);
    ADD_FAILURE() << "joined nothing";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr(address));
  }
}

// As one whose tracker is silent, which may be on its way: with its name, where that comes with it.
TEST(BadInput, ATrackersNameThatDoesNotResolveIsAskedForUntilTheJoinTimeout) {
  Cluster cluster;
  std::mutex mutex;
  std::vector<std::string> warnings;
  Options o = cluster.options(0, 1);
  o.tracker = "warren-tracker.invalid:9370";
  o.join_timeout_ms = std::chrono::milliseconds(500);
  o.log_level = LogLevel::warning;
  o.log_sink = [&](LogLevel, std::string_view line) {
    const std::lock_guard lock(mutex);
    warnings.emplace_back(line);
  };
  try {
    (void)Communicator::create(o);
    ADD_FAILURE() << "joined nothing";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("cannot resolve the host name 'warren-tracker.invalid'"));
  }
  const std::lock_guard lock(mutex);
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("it is asked for again")));
}

TEST(BadInput, AWorldThatNeverFillsSaysHowManyCame) {
  Cluster cluster;
  const auto errors = cluster.run(
      2, [](Communicator&) {},
      [&](int r, Options& o) {
        o = cluster.options(r, 3);
        o.join_timeout_ms = std::chrono::milliseconds(1500);
      });
  EXPECT_EQ(errors[0]->code(), ErrorCode::timeout);
  EXPECT_THAT(text(errors[0]), AllOf(HasSubstr("2"), HasSubstr("3")));
}

TEST(BadInput, SettingsThatDifferAreRefusedNamingBoth) {
  Cluster cluster;
  const auto errors = cluster.run(
      2, [](Communicator&) {},
      [&](int r, Options& o) {
        o.join_timeout_ms = std::chrono::milliseconds(2000);
        if (r == 1) o.algorithm = "star";
      });
  const int refused = errors[1]->code() == ErrorCode::refused ? 1 : 0;
  EXPECT_THAT(text(errors[static_cast<std::size_t>(refused)]), AllOf(HasSubstr("star"), HasSubstr("auto")));
}

TEST(BadInput, RanksThatDisagreeAllHearWhoAndWhere) {
  struct Variant {
    const char* expected;
    std::function<void(Communicator&)> call;
  };
  const auto sum = [](Communicator& comm, std::size_t n) {
    std::vector<float> v(n, 1.0f);
    comm.allreduce(std::span(v));
  };
  const Variant variants[] = {
      {"count 11", [&](Communicator& comm) { sum(comm, comm.rank() == 2 ? 11 : 10); }},
      {"count 0", [&](Communicator& comm) { sum(comm, comm.rank() == 1 ? 0 : 10); }},
      {"f64",
       [](Communicator& comm) {
         if (comm.rank() == 2) {
           (void)comm.allreduce(1.0);
         } else {
           (void)comm.allreduce(1.0f);
         }
       }},
      {"broadcast",
       [&](Communicator& comm) {
         if (comm.rank() == 1) {
           std::vector<float> v(10);
           comm.broadcast(v, 1);
         }
         sum(comm, 10);
       }},
      {"barrier",
       [&](Communicator& comm) {
         if (comm.rank() == 0) comm.barrier();
         sum(comm, 100000);
       }},
  };
  for (const auto& variant : variants) {
    SCOPED_TRACE(variant.expected);
    Cluster cluster;
    std::barrier joined(3);  // where two disagree sooner, the third one's create fails, and it has no rank
    const auto errors = cluster.run(3, [&](Communicator& comm) {
      joined.arrive_and_wait();
      variant.call(comm);
    });
    for (int rank = 0; rank < 3; rank++) {
      const auto& e = errors[static_cast<std::size_t>(rank)];
      ASSERT_TRUE(e.has_value());
      EXPECT_EQ(e->code(), ErrorCode::desync) << e->what();
      EXPECT_EQ(e->rank(), rank);
      EXPECT_TRUE(e->peer().has_value());
      EXPECT_NE(e->peer(), rank);
      EXPECT_EQ(e->round().substr(0, 2), "p.");
      EXPECT_THAT(text(e), AllOf(HasSubstr("allreduce"), HasSubstr(variant.expected), HasSubstr("rank"),
                                 HasSubstr("at e2e_tests+0x"), HasSubstr("addr2line")));
    }
  }
}

// The ranks are told before anything is committed, whatever form the checkpoint has, and whichever shares of the state
// are logged where. (Rank 2 alone has a local state: its vote would wait for those of the others.)
TEST(BadInput, RanksThatCheckpointDifferentStatesAreNamed) {
  using Bytes = std::vector<std::byte>;
  struct Variant {
    const char* expected;
    std::function<void(Communicator&, Bytes state)> checkpoint;
  };
  const auto changed_at = [](Communicator& comm, Bytes& state, std::size_t at) {
    if (comm.rank() == 1) state[at] ^= std::byte{1};
  };
  const Variant variants[] = {
      {"the first difference is in MiB 1 (bytes 1048576 to 2097151)",
       [&](Communicator& comm, Bytes state) {
         changed_at(comm, state, 2'000'000);
         comm.checkpoint(state);
       }},
      {"rank 1 (worker 1 on host",
       [&](Communicator& comm, Bytes state) {
         changed_at(comm, state, 3'000'000);
         comm.checkpoint(state, state);
       }},
      {"gave a global state of 3000004 bytes and no local state",
       [](Communicator& comm, Bytes state) {
         if (comm.rank() == 1) state.pop_back();
         comm.checkpoint(state);
       }},
      {"gave a global state of 3000005 bytes and a local state",
       [](Communicator& comm, const Bytes& state) {
         if (comm.rank() == 2) return comm.checkpoint(state, Bytes(10));
         comm.checkpoint(state);
       }},
      {"the first difference is in MiB 2",
       [&](Communicator& comm, Bytes state) {
         changed_at(comm, state, 3'000'004);
         comm.lazy_checkpoint([state] { return state; });
       }},
      {"the first difference is in MiB 0",
       [&](Communicator& comm, Bytes state) {
         changed_at(comm, state, 7);
         Bytes first(state.begin(), state.begin() + 1000), rest(state.begin() + 1000, state.end());
         comm.checkpoint_places({first, rest});
       }},
  };
  for (const auto& variant : variants) {
    for (const bool apart : {false, true}) {
      SCOPED_TRACE(std::string(variant.expected) + (apart ? ", on hosts of their own" : ""));
      Cluster cluster;
      const auto errors = cluster.run(
          3,
          [&](Communicator& comm) {
            (void)comm.load_checkpoint();
            variant.checkpoint(comm, Bytes(3'000'005, std::byte{7}));
            comm.checkpoint(Bytes(8));
          },
          [&](int worker, Options& o) {
            if (apart) o.host_id = o.domain_id = "host-" + std::to_string(worker);
          });
      for (const auto& e : errors) {
        ASSERT_TRUE(e.has_value());
        EXPECT_EQ(e->code(), ErrorCode::desync) << e->what();
        EXPECT_THAT(text(e), AllOf(HasSubstr(variant.expected), HasSubstr("version 1, which is not committed")));
      }
    }
  }
}

// Places whose bytes add up to more than fits into a number.
TEST(BadInput, AStateOfPlacesThatCannotBeIsRefused) {
  Cluster cluster;
  const Options o = cluster.options(0, 1);
  warren_options c;
  warren_options_init(&c);
  c.tracker = o.tracker.c_str();
  c.secret_file = o.secret_file.c_str();
  c.job = o.job.c_str();
  c.worker_id = o.worker_id.c_str();
  c.world_size = 1;
  warren_comm* comm = nullptr;
  ASSERT_EQ(warren_create(&c, &comm), WARREN_OK) << warren_last_error();
  ASSERT_EQ(warren_load_checkpoint(comm, nullptr, nullptr, nullptr, nullptr, nullptr), WARREN_OK);
  std::vector<std::byte> state(8);
  const warren_place good = {state.data(), state.size()};
  const warren_place bad[] = {{state.data(), SIZE_MAX}, {state.data(), 3}};
  EXPECT_EQ(warren_checkpoint_places(comm, bad, 2, nullptr, 0), WARREN_INVALID_ARGUMENT);
  EXPECT_EQ(warren_checkpoint_places(comm, &good, 1, bad, 2), WARREN_INVALID_ARGUMENT);
  EXPECT_EQ(warren_checkpoint_from(comm, 0, bad, 2, nullptr, 0), WARREN_INVALID_ARGUMENT);
  EXPECT_EQ(warren_checkpoint_from(comm, 0, &good, 1, bad, 2), WARREN_INVALID_ARGUMENT);
  EXPECT_EQ(warren_checkpoint_version(comm), 0u);
  EXPECT_EQ(warren_checkpoint_from(comm, 0, &good, 1, &good, 1), WARREN_OK) << warren_last_error();
  EXPECT_EQ(warren_finalize(comm), WARREN_OK);
  warren_destroy(comm);
}

TEST(BadInput, BuffersAndArguments) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    std::vector<float> v(8);
    std::vector<char> bytes(64);
    const auto refused = [](auto call, const std::string& what) {
      try {
        call();
        ADD_FAILURE() << "taken: " << what;
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
        EXPECT_THAT(e.what(), HasSubstr(what));
      }
    };
    float* null = nullptr;
    auto* odd = reinterpret_cast<float*>(bytes.data() + 1);
    refused([&] { comm.allreduce(std::span(null, 4)); }, "null");
    refused([&] { comm.allreduce(std::span(odd, 4)); }, "aligned");
    refused([&] { comm.allreduce(std::span(v.data(), std::size_t{1} << 60)); }, "limit");
    refused([&] { comm.allreduce(std::span<const float>(v.data(), 4), std::span(v.data() + 2, 4)); }, "overlap");
    refused([&] { comm.broadcast(v, 2); }, "root 2");
    refused([&] { comm.broadcast(v, -1); }, "root -1");
    refused([&] { comm.send(v, comm.rank()); }, "itself");
    refused([&] { comm.send(v, 7); }, "peer 7");
    refused([&] { comm.send(v, 1 - comm.rank(), -4); }, "tag");
    refused([&] { comm.allreduce(std::span(v), Op::bit_or); }, "bit_or");
    // What was to fill a buffer does not outlive the call that is refused.
    static std::atomic<int> prepared;
    prepared = 0;
    refused([&] { comm.allreduce(std::span(v), static_cast<Op>(0), [] { ++prepared; }); }, "unknown operation 0");
    comm.allreduce(std::span(v));
    EXPECT_EQ(prepared, 0);
    // Nothing of it has disturbed the communicator; zero counts are served.
    comm.allreduce(std::span(null, 0));
    EXPECT_EQ(comm.allreduce(1), 2);
  });
}

TEST(BadInput, ACallThatIsRefusedGivesNoHandle) {
  int x = 0;
  const auto type = static_cast<warren_type>(0);
  const auto refused = [&](auto call) {
    warren_handle* handle = reinterpret_cast<warren_handle*>(&x);  // of an older call
    EXPECT_EQ(call(&handle), WARREN_INVALID_ARGUMENT);
    EXPECT_EQ(handle, nullptr) << warren_last_error();
  };
  using Handle = warren_handle**;
  refused([&](Handle h) { return warren_barrier(nullptr, nullptr, h); });
  refused([&](Handle h) { return warren_allreduce(nullptr, &x, &x, 1, type, WARREN_SUM, nullptr, h); });
  refused([&](Handle h) {
    return warren_allreduce(nullptr, &x, &x, 1, WARREN_I32, static_cast<warren_op>(0), nullptr, h);
  });
  refused([&](Handle h) { return warren_allreduce_custom(nullptr, &x, &x, 1, 4, nullptr, nullptr, nullptr, h); });
  refused([&](Handle h) { return warren_reduce(nullptr, &x, &x, 1, type, WARREN_SUM, 0, nullptr, h); });
  refused([&](Handle h) { return warren_reduce_scatter(nullptr, &x, &x, 1, type, WARREN_SUM, nullptr, h); });
  refused([&](Handle h) { return warren_broadcast(nullptr, &x, 1, type, 0, nullptr, h); });
  refused([&](Handle h) { return warren_allgather(nullptr, &x, &x, 1, type, nullptr, h); });
  refused([&](Handle h) { return warren_allgatherv(nullptr, &x, &x, nullptr, WARREN_I32, nullptr, h); });
  refused(
      [&](Handle h) { return warren_reduce_scatterv(nullptr, &x, &x, nullptr, WARREN_I32, WARREN_SUM, nullptr, h); });
  refused([&](Handle h) {
    return warren_reduce_scatterv_custom(nullptr, &x, &x, nullptr, 4, nullptr, nullptr, nullptr, h);
  });
  refused([&](Handle h) { return warren_all_to_allv(nullptr, &x, nullptr, &x, nullptr, WARREN_I32, nullptr, h); });
  refused([&](Handle h) { return warren_gather(nullptr, &x, &x, 1, type, 0, nullptr, h); });
  refused([&](Handle h) { return warren_send(nullptr, &x, 1, type, 0, 0, nullptr, h); });
  refused([&](Handle h) { return warren_recv(nullptr, &x, 1, type, 0, 0, nullptr, h); });
}

// With a log, a rank that is gone is waited for; without one, the others end.
void log_nothing(int, Options& o) {
  o.replicas = 0;
}

TEST(BadInput, ARankThatGoesWithoutFinalizing) {
  Cluster cluster;
  const auto errors = cluster.run(
      3,
      [](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 1) return;
        std::vector<float> v(1000000, 1.0f);
        comm.allreduce(std::span(v));
        ADD_FAILURE() << "summed without rank 1";
      },
      log_nothing, false);
  EXPECT_FALSE(errors[1].has_value());
  for (const std::size_t r : {0u, 2u}) {
    ASSERT_TRUE(errors[r].has_value());
    EXPECT_EQ(errors[r]->code(), ErrorCode::peer_lost);
    EXPECT_THAT(text(errors[r]), HasSubstr("rank 1"));
  }
}

TEST(BadInput, AfterAFailureEveryCallFailsAlikeAndANewCommunicatorJoinsAgain) {
  Cluster cluster;
  const auto errors = cluster.run(
      2,
      [](Communicator& comm) {
        comm.barrier();
        if (comm.rank() == 1) return;
        for (int i = 0; i < 3; i++) {
          try {
            comm.barrier();
            ADD_FAILURE();
          } catch (const Error& e) {
            EXPECT_EQ(e.code(), ErrorCode::peer_lost);
          }
        }
      },
      log_nothing, false);
  cluster.run_well(
      2, [](Communicator& comm) { EXPECT_EQ(comm.allreduce(1), 2); }, log_nothing);
}

// While the tracker is down rounds go on; started again on its journal, it takes up the job where it was.
TEST(BadInput, ATrackerThatDiesAndComesBackIsNotMissed) {
  Cluster cluster;
  const std::uint16_t port = cluster.tracker().port();
  std::barrier all(2);
  cluster.run_well(2, [&](Communicator& comm) {
    EXPECT_EQ(comm.allreduce(1), 2);
    all.arrive_and_wait();
    if (comm.rank() == 0) cluster.stop_tracker();
    all.arrive_and_wait();
    for (int i = 0; i < 100; i++) EXPECT_EQ(comm.allreduce(i), 2 * i);
    if (comm.rank() == 0) cluster.start_tracker(port);
    EXPECT_EQ(comm.allreduce(1), 2);
  });
}

TEST(BadInput, ARankThatGoesWhileTheTrackerIsDownEndsInAnError) {
  Cluster cluster;
  std::barrier all(2);
  const auto errors = cluster.run(
      2,
      [&](Communicator& comm) {
        comm.barrier();
        all.arrive_and_wait();
        if (comm.rank() == 0) cluster.stop_tracker();
        all.arrive_and_wait();
        if (comm.rank() == 1) return;
        comm.barrier();
      },
      [](int, Options& o) {
        o.join_timeout_ms = std::chrono::milliseconds(1500);
        o.replicas = 0;
      },
      false);
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_EQ(errors[0]->code(), ErrorCode::peer_lost);
  EXPECT_THAT(text(errors[0]), AllOf(HasSubstr("rank 1"), HasSubstr("has not answered")));
}

TEST(BadInput, ACountThatNoScheduleServesIsAnErrorOfThisCallAlone) {
  Cluster cluster;
  cluster.run_well(
      1,
      [](Communicator& comm) {
        // 2^45 bytes that are never touched: refused before anything begins.
        auto* data = reinterpret_cast<std::uint8_t*>(std::uintptr_t{1} << 12);
        try {
          comm.allreduce(std::span(data, std::size_t{1} << 45));
          ADD_FAILURE() << "taken";
        } catch (const Error& e) {
          EXPECT_EQ(e.code(), ErrorCode::exhausted) << e.what();
        }
        EXPECT_EQ(comm.allreduce(1), 1);
      },
      [](int, Options& o) { o.chunk_bytes = 1024; });
}

TEST(BadInput, AReceiveFromARankThatHasFinalizedEndsInAnError) {
  Cluster cluster;
  const auto errors = cluster.run(
      2,
      [](Communicator& comm) {
        if (comm.rank() == 1) return;
        std::vector<int> v(1);
        comm.recv(v, 1, 4);
      },
      [](int, Options& o) { o.round_timeout_ms = std::chrono::milliseconds(500); });
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_EQ(errors[0]->code(), ErrorCode::desync) << text(errors[0]);
  EXPECT_THAT(text(errors[0]), AllOf(HasSubstr("rank 1"), HasSubstr("finalize")));
}

TEST(BadInput, ACallbackThatCallsTheCommunicatorIsRefused) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    std::vector<float> v(10, 1.0f);
    ErrorCode code{};
    Handle h = comm.allreduce_async(std::span(v));
    h.on_complete([&](const Error*) {
      try {
        comm.barrier();
      } catch (const Error& e) {
        code = e.code();
      }
    });
    h.wait();
    EXPECT_EQ(code, ErrorCode::invalid_argument);
  });
}

TEST(BadInput, ALogQueueEndsWhereNoCommunicatorCouldBeMade) {
  warren_log_queue* queue = nullptr;
  ASSERT_EQ(warren_log_queue_create(10, &queue), WARREN_OK);
  warren_options options;
  warren_options_init(&options);
  options.log_queue = queue;
  options.chunk_bytes = 1;
  warren_comm* comm = nullptr;
  EXPECT_EQ(warren_create(&options, &comm), WARREN_INVALID_ARGUMENT);
  warren_log_level level = WARREN_LOG_INFO;
  const char* line = nullptr;
  EXPECT_EQ(warren_next_log(queue, 0, &level, &line), WARREN_CLOSED);
  warren_log_queue_free(queue);
}

TEST(BadInput, AFinishedJobTakesNobody) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) { comm.barrier(); });
  const auto errors = cluster.run(
      1, [](Communicator&) {},
      [&](int r, Options& o) {
        o = cluster.options(r, 2);
        o.round_timeout_ms = std::chrono::milliseconds(300);  // it waits for others, which might make a new run
      });
  ASSERT_TRUE(errors[0].has_value());
  EXPECT_THAT(text(errors[0]), HasSubstr("finished"));
}

TEST(BadInput, CallsAfterFinalize) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    comm.finalize();
    try {
      comm.barrier();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::closed);
    }
  });
}

TEST(BadInput, AForkedChildIsTurnedAwayAndTheParentGoesOn) {
  Cluster cluster;
  cluster.run_well(1, [](Communicator& comm) {
    (void)comm.load_checkpoint();
    comm.checkpoint(std::vector<int>{1});
    EXPECT_EQ(comm.version(), 1u);
    const pid_t child = fork();
    if (child == 0) {
      int code = 1;
      try {
        comm.barrier();
      } catch (const Error& e) {
        code = e.code() == ErrorCode::closed ? 0 : 2;
      }
      // Another thread of the parent may have had the lock that these are under.
      if (comm.version() != 0 || comm.committed_version() != 0) code = 3;
      _exit(code);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 0);
    comm.barrier();
  });
}

// A reduction runs in the middle of a call: what it calls comes while another call is inside.
TEST(BadInput, ACallInsideACallIsRefused) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    int refused = 0;
    struct One {
      int value;
    };
    std::vector<One> v(1, One{1});
    comm.allreduce(std::span(v), [&](const One& a, const One& b) {
      try {
        comm.barrier();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
        refused++;
      }
      return One{a.value + b.value};
    });
    EXPECT_EQ(v[0].value, 2);
    EXPECT_GE(comm.allreduce(refused), 1);
  });
}

// In an asynchronous call the reduction runs in the library's thread.
TEST(BadInput, AReductionThatCallsTheCommunicatorAsynchronouslyIsRefused) {
  Cluster cluster;
  cluster.run_well(2, [](Communicator& comm) {
    struct One {
      int value;
    };
    std::atomic<int> refused{0};
    std::vector<One> v(1, One{1});
    const auto add = [&](const One& a, const One& b) {
      try {
        comm.barrier();
      } catch (const Error& e) {
        refused += e.code() == ErrorCode::invalid_argument;
      }
      return One{a.value + b.value};
    };
    std::atomic<bool> done{false};
    Handle h = comm.allreduce_async(std::span(v), add);
    h.on_complete([&](const Error*) {
      done = true;
      done.notify_one();
    });
    done.wait(false);
    h.wait();
    EXPECT_EQ(v[0].value, 2);
    EXPECT_GE(comm.allreduce(refused.load()), 1);
  });
}

// Its thread has destroyed its own by then. (That the names of call sites are still there is AddressSanitizer's to
// see.)
TEST(BadInputDeath, ACallThatFailsInADestructorOfAStaticSaysWhy) {
  struct Late {
    ~Late() {
      (void)warren_barrier(nullptr, nullptr, nullptr);
      (void)warren_allgatherv(nullptr, nullptr, nullptr, nullptr, WARREN_F32, nullptr, nullptr);
      std::fputs(warren_last_error(), stderr);
    }
  };
  EXPECT_EXIT(
      {
        static const Late late;
        (void)warren_barrier(nullptr, nullptr, nullptr);
        std::exit(0);
      },
      ::testing::ExitedWithCode(0), "allgatherv: the communicator or the counts are NULL");
}

TEST(BadInput, OptionsOfAnotherVersion) {
  warren_options options;
  warren_options_init(&options);
  options.struct_size = 3;
  warren_comm* comm = nullptr;
  EXPECT_EQ(warren_create(&options, &comm), WARREN_INVALID_ARGUMENT);
  EXPECT_THAT(warren_last_error(), HasSubstr("warren_options_init"));
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(warren_barrier(nullptr, nullptr, nullptr), WARREN_INVALID_ARGUMENT);
  EXPECT_EQ(warren_create(nullptr, nullptr), WARREN_INVALID_ARGUMENT);
}

// A program that was compiled with an older header, whose structs are smaller: nothing is written beyond them, and what
// it does not know has its default.
TEST(BadInput, OptionsOfAnOlderHeaderAreTaken) {
  constexpr std::size_t kOld = offsetof(warren_options, settings);
  alignas(warren_options) std::array<std::byte, sizeof(warren_options)> memory;
  memory.fill(std::byte{0xab});
  auto* const old = reinterpret_cast<warren_options*>(memory.data());
  warren_options_init_sized(old, kOld);
  EXPECT_EQ(old->struct_size, kOld);
  EXPECT_TRUE(std::all_of(memory.begin() + kOld, memory.end(), [](std::byte b) { return b == std::byte{0xab}; }));
  EXPECT_EQ(warren_options_set(old, "attempt", "1"), WARREN_INVALID_ARGUMENT) << "it has no room for that";
  old->tracker = "nowhere:port";
  warren_comm* comm = nullptr;
  EXPECT_EQ(warren_create(old, &comm), WARREN_INVALID_ARGUMENT);
  EXPECT_THAT(warren_last_error(), HasSubstr("tracker")) << "the options were read";
}

TEST(BadInput, RubbishOnTheTrackersPortDisturbsNobody) {
  Cluster cluster;
  cluster.run_well(2, [&](Communicator& comm) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(cluster.tracker().port());
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(::connect(fd, reinterpret_cast<sockaddr*>(&a), sizeof a), 0);
    std::string rubbish(100000, '\xff');
    (void)!::send(fd, rubbish.data(), rubbish.size(), MSG_NOSIGNAL);
    EXPECT_EQ(comm.allreduce(1), 2);
    ::close(fd);
  });
}

}  // namespace
}  // namespace warren
