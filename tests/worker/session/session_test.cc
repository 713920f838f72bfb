// A worker of one rank whose disk hangs, before a tracker that the test plays: what it is heard of meanwhile.
#include "worker/session/session.h"
#include "tests/worker/input_made_by.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <new>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "tests/sanitized.h"
#include "tests/worker/no_threads.h"
#include "tests/worker/played_tracker.h"
#include "tests/worker/session/hanging_store.h"
#include "tests/worker/sum_call.h"
#include "worker/segments/keeper.h"
#include "worker/settings/settings.h"

namespace warren::worker {
namespace {

class PlayedTracker : public PlayedTrackerSocket {
 public:
  // The next message of this kind; what comes before it is passed over. Nothing for long, or other things again and
  // again: a failure.
  wire::Envelope receive(wire::Envelope::BodyCase kind) {
    for (int i = 0; i < 30; i++) {
      const auto message = next_message();
      if (!message) {
        ADD_FAILURE() << "the worker is silent";
        return {};
      }
      from_ = message->from;
      auto decoded = decode_envelope(std::as_bytes(std::span(message->bytes)), Side::kWorker);
      EXPECT_TRUE(decoded.ok()) << decoded.status().describe();
      if (!decoded.ok()) return {};
      life_ = decoded.value().sender();
      if (decoded.value().body_case() == kind) return std::move(decoded).value();
    }
    ADD_FAILURE() << "the worker says other things than message " << kind;
    return {};
  }
  wire::Envelope envelope() const {
    wire::Envelope e;
    address_to(life_, e);
    return e;
  }
  void send(const wire::Envelope& e) { send_to(from_, e); }

  // Takes the worker for the whole of its job.
  void plan(const wire::Join& join, std::uint64_t generation, const wire::Report* report = nullptr) {
    wire::Envelope e = envelope();
    wire::Plan& p = *e.mutable_plan();
    p.set_generation(generation);
    p.set_run(life_);
    *p.mutable_settings() = join.settings();
    wire::Member& m = *p.add_members();
    m.set_incarnation(life_);
    m.set_worker_id(join.worker_id());
    m.set_host_id(join.host_id());
    m.set_domain_id(join.domain_id());
    *m.mutable_endpoints() = join.endpoints();
    m.set_fetch_port(join.fetch_port());
    m.set_segment_socket(join.segment_socket());
    m.set_local_size(1);
    if (report != nullptr) *p.mutable_frontier() = report->positions();
    send(e);
  }
  void committed(std::uint64_t version) {
    wire::Envelope e = envelope();
    e.mutable_committed()->set_version(version);
    send(e);
  }
  void finish(std::uint64_t generation) {
    (void)receive(wire::Envelope::kLeave);
    wire::Envelope e = envelope();
    e.mutable_finished()->set_generation(generation);
    send(e);
  }

 private:
  std::string from_;
  std::uint64_t life_ = 0;
};

// Where set: called before each sleep of the thread, which lasts for as long as a test has patience where no buffers
// move.
thread_local void (*before_sleep)() = nullptr;
thread_local int sleeps_in_vain = 0;
// Where set: called before the thread takes memory for what it puts together.
[[maybe_unused]] thread_local const std::function<void()>* before_put_together = nullptr;
// Of threads that say so: how many sleep in poll(), at most at once.
thread_local bool is_counted = false;
std::atomic<int> sleeping{0}, most_sleeping{0};

HangingDisk& disk() {
  void* library = dlopen(WARREN_HANGING_STORE, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  EXPECT_NE(library, nullptr) << dlerror();
  return *reinterpret_cast<HangingDisk* (*)()>(dlsym(library, "warren_hanging_disk"))();
}

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    std::string pattern = std::filesystem::temp_directory_path() / "warren-session-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    disk().hang();
  }
  ~SessionTest() override {
    disk().let_go();
    if (program_.joinable()) program_.join();
    std::filesystem::remove_all(folder_);
  }

  // Joins, runs `body` and finalizes, in a thread of its own.
  void start(const std::string& log, std::function<void(Session&)> body, bool ends_well = true) {
    join(log, [body = std::move(body), ends_well](std::shared_ptr<Session> session) {
      body(*session);
      const Status end = session->finalize();
      EXPECT_EQ(end.ok(), ends_well) << end.describe();
    });
  }
  // Joins, and gives what it has made to `program`, in a thread of its own.
  void join(const std::string& log, std::function<void(std::shared_ptr<Session>)> program) {
    warren_options o{};
    o.struct_size = sizeof o;
    o.log_level = WARREN_LOG_ERROR;
    o.grace_ms = -1;
    const std::string tracker = tracker_.address();
    o.tracker = tracker.c_str();
    o.job = "j";
    o.worker_id = "w0";
    o.world_size = 1;
    o.insecure_no_auth = 1;
    o.replicas = 1;
    o.round_timeout_ms = kRoundTimeoutMs;
    o.log = log.c_str();
    o.data_dir = folder_.c_str();
    o.log_memory_bytes = 1 << 20;
    o.mode = mode_;
    auto settings = resolve(&o, [](const std::string&) { return std::nullopt; });
    ASSERT_TRUE(settings.ok()) << settings.status().describe();
    program_ = std::thread([s = std::move(settings).value(), program = std::move(program)] {
      auto session = Session::create(s, Log{nullptr, nullptr, WARREN_LOG_ERROR});
      ASSERT_TRUE(session.ok()) << session.status().describe();
      program(std::move(session).value());
    });
    join_ = tracker_.receive(wire::Envelope::kJoin).join();
    tracker_.plan(join_, 1);
  }
  // A sum whose input a function of the program's fills.
  static Status prepared_sum(Session& session, std::vector<std::uint64_t>& values, PrepareInput prepare,
                             void* context) {
    Call call;
    make_sum(call.spec, values.data(), values.size());
    call.spec.prepare = prepare;
    call.spec.prepare_context = context;
    return session.calls().run(kWorldGroup, call);
  }
  // A sum in place.
  static std::shared_ptr<Call> sum_of(std::span<std::uint64_t> values) {
    auto call = std::make_shared<Call>();
    make_sum(call->spec, values.data(), values.size());
    return call;
  }
  // Sums over one rank: what went in comes out.
  static void sum(Session& session, std::uint64_t count) {
    std::vector<std::uint64_t> in(count), out(count);
    std::iota(in.begin(), in.end(), 5);
    Call call;
    make_sum(call.spec, in.data(), out.data(), count);
    const Status status = session.calls().run(kWorldGroup, call);
    EXPECT_TRUE(status.ok()) << status.describe();
    EXPECT_EQ(out, in);
  }

  const char* mode_ = nullptr;
  std::string folder_;
  PlayedTracker tracker_;
  wire::Join join_;
  std::thread program_;
};

// In mode sync a call waits for the disk. Its rank is heard as before, and answers an interrupt at once.
TEST_F(SessionTest, ADiskThatHangsHoldsUpACallAndNothingElse) {
  std::atomic<bool> returned{false};
  start("sync", [&](Session& session) {
    sum(session, 1000);
    returned = true;
  });
  disk().await_put();
  tracker_.committed(2);
  for (int i = 0; i < 2; i++) (void)tracker_.receive(wire::Envelope::kHeartbeat);
  EXPECT_FALSE(returned);
  wire::Envelope interrupt = tracker_.envelope();
  interrupt.mutable_interrupt()->set_generation(2);
  interrupt.mutable_interrupt()->set_code(static_cast<std::uint32_t>(Code::kPeerLost));
  interrupt.mutable_interrupt()->set_reason("a rank is gone");
  interrupt.mutable_interrupt()->set_resume(true);
  tracker_.send(interrupt);
  const wire::Report report = tracker_.receive(wire::Envelope::kReport).report();
  EXPECT_EQ(report.generation(), 2u);
  EXPECT_EQ(report.committed_version(), 2u);
  ASSERT_EQ(report.positions_size(), 1);
  EXPECT_EQ(report.positions(0).rounds(), 0u);
  ASSERT_EQ(report.positions(0).final_size(), 1) << "it stands in memory";
  EXPECT_EQ(report.positions(0).final(0).end(), 8000u);
  tracker_.plan(join_, 2, &report);
  for (int i = 0; i < 2; i++) (void)tracker_.receive(wire::Envelope::kHeartbeat);
  EXPECT_FALSE(returned) << "it is not on disk";
  disk().let_go();
  tracker_.finish(2);
  program_.join();
  EXPECT_TRUE(returned);
}

// The call ends before what it stands on is gone, with an error, and so does this life: the tracker is told.
class FailingPrepare : public SessionTest {
 protected:
  void ends_the_life(PrepareInput prepare, const char* why) {
    disk().let_go();
    std::atomic<bool> returned{false};
    start(
        "async",
        [&](Session& session) {
          sum(session, 10);
          std::vector<std::uint64_t> values(10);
          const Status failed = prepared_sum(session, values, prepare, nullptr);
          EXPECT_EQ(failed.code(), Code::kInternal);
          EXPECT_NE(failed.describe().find(why), std::string::npos) << failed.describe();
          EXPECT_FALSE(Session::inside_callback());
          int asked = 0;
          const Status after =
              prepared_sum(session, values, &input_made_by<[](void* count) { ++*static_cast<int*>(count); }>, &asked);
          EXPECT_NE(after.describe().find("this worker's life in the job is over"), std::string::npos)
              << after.describe();
          EXPECT_EQ(asked, 0);
          returned = true;
        },
        false);
    EXPECT_FALSE(tracker_.receive(wire::Envelope::kLeave).leave().finalize());
    program_.join();
    EXPECT_TRUE(returned);
  }
};

TEST_F(FailingPrepare, ThatThrowsEndsTheLife) {
  ends_the_life([](void*) -> std::int32_t { throw std::out_of_range("row 7"); },
                "the prepare function has thrown: row 7");
}

// A binding's function can throw nothing.
TEST_F(FailingPrepare, ThatReturnsAFailureEndsTheLife) {
  ends_the_life([](void*) -> std::int32_t { return 7; }, "the prepare function has failed, and returned 7");
}

// The engine had its call, which goes with the frame that made it.
TEST_F(SessionTest, NothingIsLeftOfACallThatEndsWithAnException) {
  start(
      "sync",
      [&](Session& session) {
        before_sleep = [] { throw std::bad_alloc(); };
        {
          std::vector<std::uint64_t> values(1000);
          EXPECT_THROW((void)prepared_sum(session, values, nullptr, nullptr), std::bad_alloc);
        }
        before_sleep = nullptr;
        disk().let_go();
        std::vector<std::uint64_t> values(10);
        const Status after = prepared_sum(session, values, nullptr, nullptr);
        EXPECT_EQ(after.code(), Code::kExhausted) << after.describe();
        EXPECT_NE(after.describe().find("ended with an exception"), std::string::npos) << after.describe();
      },
      false);
  program_.join();
}

// A call's buffers of which nothing comes, and which move until nobody wants them any more, and once again.
class MovingBuffers final : public CallBuffers, public BufferStream {
 public:
  explicit MovingBuffers(std::atomic<bool>& moves) : moves_(moves) { moves_ = true; }
  [[nodiscard]] Status filled() const override { return {}; }
  [[nodiscard]] bool delivers() const override { return true; }
  [[nodiscard]] Status deliver() override { return {}; }
  [[nodiscard]] BufferStream* stream() override { return this; }
  [[nodiscard]] std::size_t most_bytes(std::int32_t) const override { return 4096; }
  void order(std::vector<ByteRange>) override {}
  [[nodiscard]] std::size_t arrived() const override { return 0; }
  [[nodiscard]] bool all_arrived() const override { return false; }
  void landed(const ByteRange&) override {}
  void conclude() override {}
  void give_up() override { given_up_ = true; }
  [[nodiscard]] bool moves() const override { return moves_; }
  [[nodiscard]] Result<bool> move() override {
    if (given_up_) moves_ = false;
    return false;
  }

 private:
  std::atomic<bool>& moves_;
  std::atomic<bool> given_up_{false};
};

// Nor of one whose buffers a GPU is at.
TEST_F(SessionTest, NothingMovesForACallThatEndsWithAnException) {
  disk().let_go();
  start(
      "async",
      [&](Session& session) {
        std::atomic<bool> moves{false};
        std::vector<std::uint64_t> values(1000);
        {
          Call call;
          call.spec = sum_of(values)->spec;
          call.spec.prepare = &input_made_by<[](void*) {}>;
          call.buffers = std::make_unique<MovingBuffers>(moves);
          before_sleep = [] { throw std::bad_alloc(); };
          EXPECT_THROW((void)session.calls().run(kWorldGroup, call), std::bad_alloc);
          before_sleep = nullptr;
          EXPECT_FALSE(moves) << "a GPU may write to what is freed now";
          EXPECT_EQ(call.moves, Call::Moves::kNot) << "the engine has a call that is gone";
        }
      },
      false);
  program_.join();
}

// In the world of one that goes on without others, what would need them is refused, and nothing else.
TEST_F(SessionTest, ModeShrinkHasWhatDoesNotNeedAllRanks) {
  disk().let_go();
  mode_ = "shrink";
  start("async", [&](Session& session) {
    const auto expect_refused = [](const Status& status, const std::string& what) {
      EXPECT_EQ(status.code(), Code::kInvalidArgument) << what;
      EXPECT_EQ(status.describe().find(what + ": mode shrink"), 0u) << status.describe();
    };
    std::vector<std::uint64_t> values(10);
    const auto call_of = [&](Collective collective) {
      auto call = std::make_shared<Call>();
      call->spec.collective = collective;
      call->spec.type = DataType::kU64;
      call->spec.op = collective == Collective::kAllreduce ? ReduceOp::kSum : ReduceOp::kNone;
      call->spec.input = call->spec.output = values.data();
      call->spec.count = values.size();
      call->spec.root = 0;
      return call;
    };
    for (const Collective c : {Collective::kReduce, Collective::kBroadcast, Collective::kAllgather,
                               Collective::kAllgatherv, Collective::kReduceScatter, Collective::kGather,
                               Collective::kScatter, Collective::kAllToAll, Collective::kPoint}) {
      expect_refused(session.calls().run(kWorldGroup, *call_of(c)), to_string(c));
      expect_refused(session.calls().submit(kWorldGroup, call_of(c)), to_string(c));
    }
    expect_refused(session.calls().run(GroupId(7), *call_of(Collective::kAllreduce)), "a call on a group");
    const auto setup = call_of(Collective::kAllreduce);
    setup->setup = "sketch";
    expect_refused(session.calls().run(kWorldGroup, *setup), "the set-up round \"sketch\"");
    expect_refused(prepared_sum(session, values, &input_made_by<[](void*) {}>, nullptr), "a prepare function");
    std::vector<float> floats(10);
    Call narrow;
    narrow.spec = call_of(Collective::kAllreduce)->spec;
    narrow.spec.type = DataType::kF32;
    narrow.spec.wire = DataType::kF16;
    narrow.spec.input = narrow.spec.output = floats.data();
    const Status staged = session.calls().stage(narrow, {0, 1});
    EXPECT_TRUE(staged.ok()) << staged.describe();
    expect_refused(session.calls().run(kWorldGroup, narrow), "a wire type, or a buffer on a GPU");
    expect_refused(session.fused().begin(kWorldGroup), "fusion_begin");
    expect_refused(session.calls().meets({1}).status(), "meets_round");
    const auto loaded = session.load();
    EXPECT_TRUE(loaded.ok()) << loaded.status().describe();
    const Session::Places local;
    expect_refused(session.checkpoint({}, &local, nullptr), "a checkpoint with local states");
    expect_refused(session.lazy_checkpoint([](const void**, std::size_t*, void*) { return 0; }, nullptr, nullptr),
                   "lazy_checkpoint");
    sum(session, 10);
    const auto barrier = std::make_shared<Call>();
    barrier->spec.collective = Collective::kBarrier;
    EXPECT_TRUE(session.calls().submit(kWorldGroup, barrier).ok());
    EXPECT_TRUE(session.calls().wait(*barrier).ok());
  });
  EXPECT_EQ(join_.settings().min_workers(), 1u);
  EXPECT_EQ(join_.settings().grace_ms(), 1000u);
  EXPECT_TRUE(join_.waits()) << "who finds its place given up waits until it is taken in again";
  (void)tracker_.receive(wire::Envelope::kLoad);
  wire::Envelope begins = tracker_.envelope();
  begins.mutable_loaded();
  tracker_.send(begins);
  tracker_.finish(1);
  program_.join();
}

// What a call of the program's thread sleeps for is done by the engine's thread: it is woken, and does not wait for the
// end of its sleep, which takes here as long as a test has patience.
TEST_F(SessionTest, WhoWaitsForACallIsWokenWhenItsPrepareFunctionHasReturned) {
  static std::promise<void> runs, sleeps;
  runs = {};
  sleeps = {};
  disk().let_go();
  start("async", [&](Session& session) {
    std::vector<std::uint64_t> values(10);
    const auto call = std::make_shared<Call>();
    make_sum(call->spec, values.data(), values.size());
    call->spec.prepare_context = &values;
    call->spec.prepare = &input_made_by<[](void* context) {
      runs.set_value();
      sleeps.get_future().wait();
      static_cast<std::vector<std::uint64_t>*>(context)->assign(10, 7);
    }>;
    const Status submitted = session.calls().submit(kWorldGroup, call);
    EXPECT_TRUE(submitted.ok()) << submitted.describe();
    runs.get_future().wait();
    sleeps_in_vain = 0;
    before_sleep = [] {
      before_sleep = [] {};
      sleeps.set_value();
    };
    const Status status = session.calls().wait(*call);
    before_sleep = nullptr;
    EXPECT_TRUE(status.ok()) << status.describe();
    EXPECT_EQ(values, std::vector<std::uint64_t>(10, 7));
    EXPECT_EQ(sleeps_in_vain, 0);
  });
  tracker_.finish(1);
  program_.join();
}

// Asynchronous calls rely on a thread that is there from the session's begin: one that could not be started when the
// engine has the call already would leave it to others, who use the buffer when the program has freed it.
TEST_F(SessionTest, AnAsynchronousCallNeedsNoThreadThatIsNotThere) {
  disk().let_go();
  start("async", [&](Session& session) {
    std::vector<std::uint64_t> values(10);
    const auto call = std::make_shared<Call>();
    make_sum(call->spec, values.data(), values.size());
    call->spec.prepare_context = &values;
    call->spec.prepare =
        &input_made_by<[](void* context) { static_cast<std::vector<std::uint64_t>*>(context)->assign(10, 7); }>;
    const int blocked = testing::blocked_signals();
    {
      const testing::NoThreads none;
      const Status submitted = session.calls().submit(kWorldGroup, call);
      EXPECT_TRUE(submitted.ok()) << submitted.describe();
    }
    EXPECT_EQ(testing::blocked_signals(), blocked);
    const Status status = session.calls().wait(*call);
    EXPECT_TRUE(status.ok()) << status.describe();
    EXPECT_EQ(values, std::vector<std::uint64_t>(10, 7));
  });
  tracker_.finish(1);
  program_.join();
}

// Programs may run one job after another: what each has logged stayed in memory as long as its launcher.
TEST_F(SessionTest, ALauncherKeepsNothingOfAJobThatHasFinished) {
  disk().let_go();
  auto keeper = std::move(SegmentKeeper::start(1, [](const std::string& text) { ADD_FAILURE() << text; })).value();
  ASSERT_EQ(::setenv(kKeeperVariable, keeper->environment().c_str(), 1), 0);
  std::promise<std::string> host;
  const std::shared_future<std::string> host_id = host.get_future().share();
  const auto kept = [&](std::uint64_t life) {
    const auto segment = std::move(memfd_segment(4096, "another-life")).value();
    const auto link =
        KeeperLink::offer(keeper->environment(), {"j", host_id.get(), "w1", Incarnation(life), segment}, kPatienceMs);
    EXPECT_TRUE(link.ok()) << link.status().describe();
    const std::size_t n = link.value()->take().size();
    link.value()->forget(Incarnation(life));
    return n;
  };
  start("async", [&](Session& session) {
    sum(session, 1000);
    EXPECT_EQ(kept(71), 1u) << "it is kept while the job runs";
  });
  host.set_value(join_.host_id());
  tracker_.finish(1);
  program_.join();
  EXPECT_EQ(kept(72), 0u);
  ASSERT_EQ(::unsetenv(kKeeperVariable), 0);
}

// They would sleep on the same descriptors, and who wakes sooner takes away what would wake the other.
TEST_F(SessionTest, OfTwoThreadsThatWaitOneWatchesTheLinks) {
  most_sleeping = 0;
  std::promise<void> two;
  start("sync", [&](Session& session) {
    std::vector<std::uint64_t> values(2);
    std::vector<std::shared_ptr<Call>> calls;
    for (std::uint64_t& value : values) {
      const auto& call = calls.emplace_back(std::make_shared<Call>());
      make_sum(call->spec, &value, 1);
      EXPECT_TRUE(session.calls().submit(kWorldGroup, call).ok());
    }
    const auto wait = [&](Call& call) {
      is_counted = true;
      const Status status = session.calls().wait(call);
      is_counted = false;
      EXPECT_TRUE(status.ok()) << status.describe();
    };
    std::thread other([&] { wait(*calls[0]); });
    two.set_value();
    wait(*calls[1]);
    other.join();
  });
  disk().await_put();
  two.get_future().wait();
  for (int i = 0; i < 3; i++) (void)tracker_.receive(wire::Envelope::kHeartbeat);
  disk().let_go();
  tracker_.finish(1);
  program_.join();
  EXPECT_EQ(most_sleeping, 1);
}

#ifndef WARREN_TESTS_TSAN  // whose operators of new come all together
// The batch is closed outside the lock, for a thread that waits for a part or frees it, as it may beside others. A call
// that comes meanwhile comes after it: other ranks may have sent the batch before.
TEST_F(SessionTest, ACallThatComesWhileABatchIsClosedComesAfterIt) {
  disk().let_go();
  std::promise<void> closes, goes_on;
  start("async", [&](Session& session) {
    std::vector<std::uint64_t> values(4);
    EXPECT_TRUE(session.fused().begin(kWorldGroup).ok());
    std::vector<std::shared_ptr<Call>> calls;
    for (std::uint64_t& value : values) {
      calls.push_back(sum_of({&value, 1}));
      EXPECT_TRUE(session.fused().submit(kWorldGroup, {0, 1}, calls.back(), 1 << 20).ok());
    }
    const std::function<void()> close_slowly = [&] {
      closes.set_value();
      goes_on.get_future().wait();
    };
    std::thread other([&] {
      before_put_together = &close_slowly;
      session.fused().send();
      before_put_together = nullptr;
    });
    closes.get_future().wait();
    const auto next = sum_of(values);
    EXPECT_TRUE(session.calls().run(kWorldGroup, *next).ok());
    EXPECT_EQ(next->round.sequence, Sequence(1));
    other.join();
    for (const auto& call : calls) EXPECT_TRUE(session.calls().wait(*call).ok());
    session.fused().end();
  });
  for (int i = 0; i < 3; i++) (void)tracker_.receive(wire::Envelope::kHeartbeat);
  goes_on.set_value();
  tracker_.finish(1);
  program_.join();
}
#endif

// They wait until one more call may be under way, and one of them finds the batch sent then.
TEST_F(SessionTest, OfTwoThreadsThatSendABatchOneDoes) {
  std::promise<void> two;
  std::vector<std::uint64_t> values(limits::kMaxOutstandingRounds + 2);
  start("sync", [&](Session& session) {
    const auto value = [&](std::size_t i) { return std::span(values).subspan(i, 1); };
    std::vector<std::shared_ptr<Call>> calls;
    for (std::size_t i = 0; i < limits::kMaxOutstandingRounds; i++) {
      calls.push_back(sum_of(value(i)));
      EXPECT_TRUE(session.calls().submit(kWorldGroup, calls.back()).ok());
    }
    EXPECT_TRUE(session.fused().begin(kWorldGroup).ok());
    for (std::size_t i = limits::kMaxOutstandingRounds; i < values.size(); i++) {
      calls.push_back(sum_of(value(i)));
      EXPECT_TRUE(session.fused().submit(kWorldGroup, {0, 1}, calls.back(), 1 << 20).ok());
    }
    std::thread other([&] { session.fused().send(); });
    two.set_value();
    session.fused().send();
    other.join();
    for (const auto& call : calls) EXPECT_TRUE(session.calls().wait(*call).ok());
    session.fused().end();
  });
  disk().await_put();
  two.get_future().wait();
  for (int i = 0; i < 3; i++) (void)tracker_.receive(wire::Envelope::kHeartbeat);
  disk().let_go();
  tracker_.finish(1);
  program_.join();
}

// A callback may take as long as it likes: the tracker is told at once that this life has stopped.
TEST_F(SessionTest, ACallbackHoldsUpNoWordToTheTracker) {
  std::promise<void> issued, told;
  start(
      "sync",
      [&](Session& session) {
        std::vector<std::uint64_t> values(10);
        const auto call = sum_of(values);
        EXPECT_TRUE(session.calls().submit(kWorldGroup, call).ok());
        const auto callback = [](warren_code, const char*, void* context) {
          static_cast<std::promise<void>*>(context)->get_future().wait();
        };
        EXPECT_TRUE(session.calls().on_complete(*call, callback, &told).ok());
        issued.set_value();
        EXPECT_EQ(session.calls().wait(*call).code(), Code::kDesync);
      },
      false);
  issued.get_future().wait();
  wire::Envelope interrupt = tracker_.envelope();
  interrupt.mutable_interrupt()->set_generation(2);
  interrupt.mutable_interrupt()->set_code(static_cast<std::uint32_t>(Code::kDesync));
  interrupt.mutable_interrupt()->set_reason("ranks disagree");
  tracker_.send(interrupt);
  (void)tracker_.receive(wire::Envelope::kStopped);
  told.set_value();
  disk().let_go();
  program_.join();
}

std::ptrdiff_t threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), std::filesystem::directory_iterator());
}

// On the engine's thread, which cannot wait for its own end. No thread is left.
TEST_F(SessionTest, ItsLastOwnerMayLetGoOfItInACallback) {
  disk().let_go();
  struct Program {
    std::vector<std::uint64_t> values = std::vector<std::uint64_t>(10);
    std::shared_ptr<Session> session;
    std::promise<void> owns, called;
  } program;
  const std::ptrdiff_t before = threads();
  join("async", [&](std::shared_ptr<Session> session) {
    const auto call = sum_of(program.values);
    call->spec.prepare =
        &input_made_by<[](void* context) { static_cast<Program*>(context)->owns.get_future().wait(); }>;
    call->spec.prepare_context = &program;
    EXPECT_TRUE(session->calls().submit(kWorldGroup, call).ok());
    const auto callback = [](warren_code code, const char*, void* context) {
      EXPECT_EQ(code, WARREN_OK);
      static_cast<Program*>(context)->session.reset();
      static_cast<Program*>(context)->called.set_value();
    };
    EXPECT_TRUE(session->calls().on_complete(*call, callback, &program).ok());
    program.session = std::move(session);
    program.owns.set_value();
  });
  EXPECT_FALSE(tracker_.receive(wire::Envelope::kLeave).leave().finalize());
  program_.join();
  program.called.get_future().wait();
  const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(kPatienceMs);
  while (threads() != before && std::chrono::steady_clock::now() < until) std::this_thread::yield();
  EXPECT_EQ(threads(), before);
}

// A log that is full waits for its disk under the lock: whoever wants the lock meanwhile goes on with heartbeats.
TEST_F(SessionTest, HeartbeatsGoOnWhileAFullLogWaitsForItsDisk) {
  constexpr int kRounds = 24;  // of 64 KiB, for a log of 1 MiB
  std::atomic<int> rounds{0};
  start("async", [&](Session& session) {
    for (int i = 0; i < kRounds; i++) {
      sum(session, 8192);
      rounds++;
    }
  });
  // From the second heartbeat without a round on the control thread has been after the lock.
  int last = -1, still = 0;
  for (std::uint64_t version = 2; still < 4 && !HasFailure(); version++) {
    tracker_.committed(version);
    (void)tracker_.receive(wire::Envelope::kHeartbeat);
    const int now = rounds;
    still = now == last ? still + 1 : 0;
    last = now;
  }
  EXPECT_LT(last, kRounds);
  disk().let_go();
  tracker_.finish(1);
  program_.join();
  EXPECT_EQ(rounds, kRounds);
}

}  // namespace
}  // namespace warren::worker

#ifndef WARREN_TESTS_TSAN
// In the place of the library's: CopyMemory's.
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  if (warren::worker::before_put_together != nullptr) (*warren::worker::before_put_together)();
  try {
    return ::operator new(bytes, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
#endif

namespace {

int wait_for_any(pollfd* fds, nfds_t count, const timespec* timeout) {
  timespec limit = timeout != nullptr ? *timeout : timespec{};  // which the system changes
  return static_cast<int>(syscall(SYS_ppoll, fds, count, timeout != nullptr ? &limit : nullptr, nullptr, 0));
}

}  // namespace

// In the place of the system's.
extern "C" int ppoll(pollfd* fds, nfds_t count, const timespec* timeout, const sigset_t*) {
  if (warren::worker::before_sleep != nullptr) warren::worker::before_sleep();
  return wait_for_any(fds, count, timeout);
}

extern "C" int poll(pollfd* fds, nfds_t count, int timeout_ms) {
  using warren::worker::before_sleep;
  if (before_sleep != nullptr) {
    const timespec none{};
    if (const int ready = wait_for_any(fds, count, &none); ready != 0) return ready;
    before_sleep();
    timeout_ms = warren::worker::kPatienceMs;
  }
  const timespec limit{timeout_ms / 1000, timeout_ms % 1000 * 1'000'000L};
  using warren::worker::most_sleeping, warren::worker::sleeping;
  const bool counted = warren::worker::is_counted;
  if (counted) most_sleeping = std::max<int>(most_sleeping, ++sleeping);
  const int ready = wait_for_any(fds, count, timeout_ms < 0 ? nullptr : &limit);
  if (counted) sleeping--;
  if (before_sleep != nullptr && ready == 0) warren::worker::sleeps_in_vain++;
  return ready;
}
