// What the C interface's handles hold, and how a function enters one: alone, in the process that made it.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "warren/c_api.h"
#include "worker/api/forks.h"
#include "worker/api/last_error.h"
#include "worker/rounds/call.h"
#include "worker/session/log_queue.h"
#include "worker/session/session.h"

namespace warren::api {

using worker::Call;
using worker::Calls;
using worker::CallSpec;
using worker::GroupCalls;
using worker::GroupShape;
using worker::LogQueue;
using worker::Session;

// What communicators of one job share besides the session.
struct Shared {
  std::shared_ptr<Session> session;
  Rank rank;                 // of this worker in the job
  unsigned fork_number = 0;  // of the process that made it
  std::atomic<bool> busy{false};
  std::vector<warren_comm*> children;  // split from the first one and not destroyed
  // By name, members and version: how often warren_group has made it in the version that is the newest here.
  std::map<std::uint64_t, std::uint64_t> groups_made;
  Version groups_made_in;

  // Allocated memory that was given back while the session was in use: by a callback, or beside another thread's call.
  void free_later(void* memory) {
    const std::lock_guard lock(freed_mutex);
    freed.push_back(memory);
    any_freed.store(true, std::memory_order_release);
  }
  void free_now() {
    std::vector<void*> all;
    {
      const std::lock_guard lock(freed_mutex);
      all.swap(freed);
      any_freed.store(false, std::memory_order_relaxed);
    }
    // Who freed what is no memory of ours has been told that all is well, and the next call has nothing to do with it.
    for (void* memory : all) (void)session->free(memory);
  }
  std::mutex freed_mutex;
  std::vector<void*> freed;
  std::atomic<bool> any_freed{false};
};

// Of the collective of a communicator that was waited for last, for the communicator and its handles.
struct Newest {
  bool is_one = false;
  std::shared_ptr<const std::vector<Rank>> contributors;  // null: all ranks
};

// While it lives, the library may log to this queue.
class LogUse {
 public:
  explicit LogUse(std::shared_ptr<LogQueue> queue) : queue_(std::move(queue)) { queue_->begin(); }
  ~LogUse() { queue_->end(); }
  LogUse(const LogUse&) = delete;
  LogUse& operator=(const LogUse&) = delete;

 private:
  const std::shared_ptr<LogQueue> queue_;
};

}  // namespace warren::api

struct warren_log_queue {
  std::shared_ptr<warren::worker::LogQueue> queue;
  unsigned fork_number = 0;  // of the process that made it
  std::string text;          // that was taken last
};

struct warren_comm {
  std::unique_ptr<warren::api::LogUse> log_use;  // null: no queue, or not made by warren_create. Outlives the session
  std::shared_ptr<warren::api::Shared> shared;
  std::shared_ptr<warren::api::Newest> newest = std::make_shared<warren::api::Newest>();
  warren::GroupId group;
  std::vector<warren::Rank> members;
  std::int32_t rank = 0;
  std::int32_t local_rank = 0, local_size = 1;
  void* stream = nullptr;          // of calls on GPU buffers
  std::uint64_t fusion_bytes = 0;  // of what is put together; 0: nothing is
  bool fuses = false;              // between fusion_begin and fusion_end
  bool lasts = true;               // every life makes it again, under the same name
  warren::worker::Session::State loaded;
  bool released = false;  // what was loaded
  bool first = false;     // made by warren_create
  std::string name;       // made by warren_group; else empty
};

struct warren_handle {
  std::shared_ptr<warren::api::Shared> shared;
  std::shared_ptr<warren::worker::Call> call;
  std::shared_ptr<warren::api::Newest> newest;  // null: a message
  std::int32_t ranks = 0;                       // of its communicator
};

namespace warren::api {

// Longer waits are as good as endless, and still fit into a clock.
inline constexpr std::int64_t kMostWaitMs = std::int64_t{1000} * 3600 * 24 * 365;

// One thread at a time inside a job's communicators, and never a forked child.
class Entry {
 public:
  explicit Entry(Shared& shared) : shared_(shared) {
    if (shared.fork_number != api::fork_number.load(std::memory_order_relaxed)) {
      status_ = Status(Code::kClosed, "this communicator was made before a fork: the child has to make its own");
      return;
    }
    if (Session::inside_callback()) {
      status_ = Status(Code::kInvalidArgument, "a callback or a reduction called the communicator: it must not");
      return;
    }
    if (shared.busy.exchange(true, std::memory_order_acquire)) {
      status_ = Status(Code::kInvalidArgument, "another thread is inside a call of this communicator");
      return;
    }
    entered_ = true;
    if (shared.any_freed.load(std::memory_order_acquire)) shared.free_now();
  }
  ~Entry() {
    if (entered_) shared_.busy.store(false, std::memory_order_release);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Shared& shared_;
  Status status_;
  bool entered_ = false;
};

inline bool forked(const Shared& shared) {
  return shared.fork_number != api::fork_number.load(std::memory_order_relaxed);
}

template <class Body>
Status caught(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return {Code::kExhausted, "out of memory"};
  } catch (const std::exception& e) {
    return {Code::kInternal, std::string("unexpected: ") + e.what()};
  }
}

// Runs a call on a communicator of this job, and reports its failure with this worker's rank.
template <class Body>
warren_code guarded(const Shared& shared, Body body) {
  const Status status = caught(body);
  return status.ok() ? WARREN_OK : report(status, shared.rank.value);
}

// As many as there is room for; `contributors` null: all of so many ranks.
inline void copy_contributors(const std::vector<Rank>* contributors, std::int32_t ranks, int32_t* to, size_t capacity,
                              size_t& count) {
  count = contributors != nullptr ? contributors->size() : static_cast<size_t>(ranks);
  for (size_t i = 0; i < std::min(count, capacity); i++) {
    to[i] = contributors != nullptr ? (*contributors)[i].value : static_cast<int32_t>(i);
  }
}

}  // namespace warren::api
