// The lock of a session, the threads that move its calls, and the end of a wait.
#include "worker/session/driver.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "tests/worker/session/parts.h"
#include "tests/worker/sum_call.h"

namespace warren::worker {
namespace {

using testing::kPatience;
using testing::SessionParts;

template <class T>
bool comes(std::future<T>& event) {
  return event.wait_for(kPatience) == std::future_status::ready;
}

// The blame of the life's end, if it has ended.
std::optional<Blame> blame_of(const std::vector<LifeEffect>& effects) {
  for (const LifeEffect& effect : effects) {
    if (const auto* end = std::get_if<life_effect::End>(&effect)) return end->blame;
  }
  return std::nullopt;
}

TEST(Driver, AThreadThatMustNotOnlyWaitBeatsUntilItHasTheLock) {
  SessionParts parts;
  std::unique_lock lock(parts.driver.mutex());
  std::promise<void> beats;
  bool told = false;    // of the control thread
  bool has_it = false;  // under the lock
  std::thread control([&] {
    const auto its = parts.driver.lock_for_control([&] {
      if (!std::exchange(told, true)) beats.set_value();
    });
    has_it = its.owns_lock();
  });
  auto beat = beats.get_future();
  EXPECT_TRUE(comes(beat)) << "a tracker would take this life for lost";
  EXPECT_FALSE(has_it);
  lock.unlock();
  control.join();
  EXPECT_TRUE(has_it);
}

TEST(Driver, ACallerThatNeverWaitsLetsSeldomThreadsHaveTheLock) {
  SessionParts parts;
  std::unique_lock lock(parts.driver.mutex());
  bool came = false;  // under the lock
  std::thread seldom([&] {
    const auto its = parts.driver.lock_before_callers();
    came = true;
  });
  const auto until = Driver::Clock::now() + kPatience;
  while (!came && Driver::Clock::now() < until) parts.driver.yield_to_control(lock);
  EXPECT_TRUE(came);
  lock.unlock();
  seldom.join();
}

TEST(Driver, AProgramThatDoesNotWantToWaitEndsItsLife) {
  for (const bool drives : {true, false}) {
    SessionParts parts({[](void*) { return std::int32_t{1}; }, nullptr});
    parts.begin();
    std::unique_lock lock(parts.driver.mutex());
    const auto until = Driver::Clock::now() + kPatience;
    const auto ended = [&] { return !parts.life.failure().ok() || Driver::Clock::now() >= until; };
    if (drives) {
      parts.driver.drive(lock, ended, until);
    } else {
      parts.driver.await(lock, ended);
    }
    EXPECT_TRUE(lock.owns_lock());
    EXPECT_EQ(parts.life.failure().code(), Code::kClosed) << parts.life.failure().describe();
    EXPECT_EQ(blame_of(parts.carried_out), Blame::kProgram);
  }
}

TEST(Driver, TheEnginesThreadMovesWhatNoCallerWaitsFor) {
  SessionParts parts;
  parts.begin();
  std::promise<bool> ends;
  ASSERT_TRUE(parts.driver.start([&] { ends.set_value(parts.driver.on_engine_thread()); }).ok());
  std::vector<std::uint64_t> values{1, 2, 3};
  struct Program {
    std::vector<std::uint64_t>& values;
    std::promise<warren_code> done;
  } program{values, {}};
  const auto call = std::make_shared<Call>();
  make_sum(call->spec, values.data(), values.size());
  // Without a thread that drives, this function is not called.
  call->spec.prepare = [](void* context) {
    static_cast<Program*>(context)->values.back() = 7;
    return std::int32_t{0};
  };
  call->spec.prepare_context = &program;
  call->callback = [](warren_code code, const char*, void* context) {
    static_cast<Program*>(context)->done.set_value(code);
  };
  call->callback_context = &program;
  {
    const std::lock_guard lock(parts.driver.mutex());
    call->self = call;
    ASSERT_TRUE(parts.life.engine().submit(kWorldGroup, *call).ok());
    parts.driver.wake_engine();
  }
  auto done = program.done.get_future();
  ASSERT_TRUE(comes(done));
  EXPECT_EQ(done.get(), WARREN_OK);
  EXPECT_EQ(values, (std::vector<std::uint64_t>{1, 2, 7}));
  {
    const std::lock_guard lock(parts.driver.mutex());
    parts.life.close();
    parts.driver.wake_all();
  }
  auto end = ends.get_future();
  ASSERT_TRUE(comes(end)) << "a session would wait for it for ever";
  EXPECT_TRUE(end.get());
  parts.driver.join();
}

TEST(Driver, ACallbackRunsWithoutTheLockAndInsideItsSession) {
  SessionParts parts;
  struct Program {
    SessionParts& parts;
    bool lock_was_free = false, was_inside = false;
    std::string text;
  } program{parts, false, false, {}};
  const auto call = std::make_shared<Call>();
  call->status = Status(Code::kTimeout, "it took too long");
  call->finished = true;
  call->callback = [](warren_code, const char* text, void* context) {
    auto& p = *static_cast<Program*>(context);
    p.text = text;
    p.was_inside = Inside::of(p.parts.mark);
    std::thread([&p] {
      const std::unique_lock lock(p.parts.driver.mutex(), std::try_to_lock);
      p.lock_was_free = lock.owns_lock();
    }).join();
  };
  call->callback_context = &program;
  std::unique_lock lock(parts.driver.mutex());
  parts.life.engine().finished_calls().push_back(call);
  parts.driver.run_callbacks(lock);
  EXPECT_TRUE(lock.owns_lock());
  EXPECT_TRUE(program.lock_was_free);
  EXPECT_TRUE(program.was_inside);
  EXPECT_FALSE(Inside::any());
  EXPECT_EQ(program.text, call->status.describe());
  EXPECT_TRUE(call->settled);
  EXPECT_TRUE(parts.life.engine().finished_calls().empty());
}

TEST(Driver, AnErrorOfAGpuEndsTheLifeAndAMistakeOfTheProgramDoesNot) {
  SessionParts parts;
  parts.begin();
  EXPECT_EQ(parts.driver.judge(Status(Code::kInvalidArgument, "two GPUs")).code(), Code::kInvalidArgument);
  EXPECT_TRUE(parts.life.failure().ok());
  EXPECT_EQ(parts.driver.judge(Status(Code::kUnavailable, "the GPU is gone")).code(), Code::kUnavailable);
  EXPECT_EQ(parts.life.failure().code(), Code::kUnavailable);
  EXPECT_EQ(blame_of(parts.carried_out), Blame::kNobody);
}

TEST(Driver, ACallThatAnExceptionLeavesEndsTheLifeUnderTheLock) {
  SessionParts parts;
  parts.begin();
  std::unique_lock lock(parts.driver.mutex(), std::defer_lock);
  parts.driver.abandon_call(lock);
  EXPECT_TRUE(lock.owns_lock());
  EXPECT_EQ(parts.life.failure().code(), Code::kExhausted);
}

}  // namespace
}  // namespace warren::worker
