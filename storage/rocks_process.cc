#include "storage/rocks_process.h"

#include <pthread.h>
#include <rocksdb/file_system.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "storage/fork_guard.h"
#include "storage/no_options_files.h"
#include "storage/no_rocks_log.h"
#include "storage/start_thread.h"

namespace warren::storage {
namespace {

// How long exit() waits for disks, all together.
constexpr std::chrono::seconds kLongestUse(10);
constexpr std::uint64_t kCacheBytes = std::uint64_t{8} << 20, kLeastCacheBytes = std::uint64_t{256} << 10;
constexpr std::uint64_t kMostLogBytes = std::uint64_t{16} << 20, kLeastLogBytes = std::uint64_t{1} << 20;

// State of one process. A child begins with a new one, as threads of its parent may have held these locks.
struct Process {
  explicit Process(unsigned n) : number(n) {}
  const unsigned number;

  std::mutex mutex;
  std::condition_variable changed;
  bool exits = false;
  std::uint64_t uses = 0;     // that run
  std::uint64_t writers = 0;  // databases that are open for writing
  bool has_thread = false;
  std::deque<std::pair<void (*)(void*), void*>> jobs;
  std::shared_ptr<rocksdb::Cache> cache;
  std::uint64_t cache_bytes = kCacheBytes, log_bytes = kMostLogBytes;

  std::mutex exit_mutex;  // held while calls are made
  std::list<ResultStore::AtExit> exit_calls;
  std::vector<const void*> left_behind;  // found here by whoever looks for leaks
};

// Neither is ever destroyed. Replaced in a child, which has one thread then.
Process* process = new Process(1);
bool timer_of_parent = false;

void begin_child() {
  timer_of_parent = timer_of_parent || process->writers > 0;
  process = new Process(process->number + 1);
}

// Before RocksDB's static objects are destroyed.
void end_of_process(int status, void*) {
  Process& p = *process;
  // However many disks do not answer.
  const auto deadline = std::chrono::steady_clock::now() + kLongestUse;
  {
    const std::lock_guard lock(p.exit_mutex);
    for (const ResultStore::AtExit& calls : p.exit_calls) calls.begin();
    for (const ResultStore::AtExit& calls : p.exit_calls) calls.wait(deadline);
  }
  bool used = false;
  {
    std::unique_lock lock(p.mutex);
    p.exits = true;
    used = !p.changed.wait_until(lock, deadline, [&] { return p.uses == 0; });
  }
  if (!used && !timer_of_parent) return;
  (void)std::fflush(nullptr);
  _exit(status);
}

void run_jobs(Process& p) {
  std::unique_lock lock(p.mutex);
  while (true) {
    p.changed.wait(lock, [&] { return !p.jobs.empty(); });
    // Where the process exits: whoever still uses a database may wait for this.
    p.changed.wait(lock, [&] { return !p.exits || p.uses > 0; });
    const auto [function, argument] = p.jobs.front();
    p.jobs.pop_front();
    p.uses++;
    lock.unlock();
    function(argument);
    lock.lock();
    if (--p.uses == 0) p.changed.notify_all();
  }
}

// RocksDB's default environment, but for its threads.
class OwnThread final : public rocksdb::EnvWrapper {
 public:
  explicit OwnThread(Env* env) : EnvWrapper(env) {
    file_system_ = std::make_shared<NoOptionsFiles>(rocksdb::FileSystem::Default());
    system_clock_ = env->GetSystemClock();
  }
  void Schedule(void (*function)(void*), void* argument, Priority, void*, void (*)(void*)) override {
    Process& p = *process;
    const std::lock_guard lock(p.mutex);
    p.jobs.emplace_back(function, argument);
    p.changed.notify_all();
  }
  // Closing a database waits for its jobs.
  int UnSchedule(void*, Priority) override { return 0; }
  unsigned int GetThreadPoolQueueLen(Priority) const override {
    const std::lock_guard lock(process->mutex);
    return static_cast<unsigned int>(process->jobs.size());
  }
  int ReserveThreads(int, Priority) override { return 0; }
  int ReleaseThreads(int, Priority) override { return 0; }
  void SetBackgroundThreads(int, Priority) override {}
  int GetBackgroundThreads(Priority) override { return 1; }
  void IncBackgroundThreadsIfNeeded(int, Priority) override {}
  void LowerThreadPoolIOPriority(Priority) override {}
  void LowerThreadPoolCPUPriority(Priority) override {}
  rocksdb::Status LowerThreadPoolCPUPriority(Priority, rocksdb::CpuPriority) override { return {}; }
};

// A database in memory, so that RocksDB makes the static objects of its functions now: they are destroyed later than
// what is registered next is called.
void make_static_objects() {
  const std::unique_ptr<rocksdb::Env> memory(rocksdb::NewMemEnv(rocks_env()));
  rocksdb::Options options;
  options.env = memory.get();
  options.create_if_missing = true;
  options.info_log = std::make_shared<NoRocksLog>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  options.compression = rocksdb::kNoCompression;
  rocksdb::DB* opened = nullptr;
  if (!rocksdb::DB::Open(options, "/warren", &opened).ok()) return;
  const std::unique_ptr<rocksdb::DB> db(opened);
  std::string value;
  if (db->Put({}, "key", "value").ok() && db->Flush({}).ok()) (void)db->Get({}, "key", &value);
}

bool belongs_here(unsigned made_in) {
  return made_in == process->number;
}

}  // namespace

Status prepare_rocks() {
  {
    Process& p = *process;
    std::lock_guard lock(p.mutex);
    if (!p.has_thread) {
      std::thread thread;
      if (Status s = start_thread(thread, [&p] { run_jobs(p); }); !s.ok()) return s;
      thread.detach();
      p.has_thread = true;
    }
  }
  static const int once = [] {
    close_in_children();
    make_static_objects();
    (void)pthread_atfork(nullptr, nullptr, begin_child);
    return on_exit(end_of_process, nullptr);
  }();
  if (once != 0)
    return {Code::kUnavailable, "there is no memory to register what has to be done when the process ends"};
  return {};
}

rocksdb::Env* rocks_env() {
  static rocksdb::Env* const env = new OwnThread(rocksdb::Env::Default());
  return env;
}

RocksUse::RocksUse() {
  const std::lock_guard lock(process->mutex);
  begun_ = !process->exits;
  if (begun_) process->uses++;
}

RocksUse::~RocksUse() {
  if (!begun_) return;
  const std::lock_guard lock(process->mutex);
  if (--process->uses == 0 && process->exits) process->changed.notify_all();
}

unsigned rocks_process() {
  return process->number;
}

CallAtExit::CallAtExit(ResultStore::AtExit calls) : process_(rocks_process()) {
  const std::lock_guard lock(process->exit_mutex);
  place_ = process->exit_calls.insert(process->exit_calls.end(), std::move(calls));
}

CallAtExit::~CallAtExit() {
  if (!belongs_here(process_)) return;
  const std::lock_guard lock(process->exit_mutex);
  process->exit_calls.erase(place_);
}

void destroy_rocks(unsigned made_in, const void* object, const std::function<void()>& destroy) {
  const RocksUse use;
  if (use && belongs_here(made_in)) return destroy();
  const std::lock_guard lock(process->mutex);
  process->left_behind.push_back(object);
}

std::shared_ptr<rocksdb::DB> own_database(rocksdb::DB* db, bool writes) {
  const unsigned made_in = rocks_process();
  if (writes) {
    const std::lock_guard lock(process->mutex);
    process->writers++;
  }
  return {db, [made_in, writes](rocksdb::DB* d) {
            destroy_rocks(made_in, d, [=] {
              delete d;
              if (!writes) return;
              const std::lock_guard lock(process->mutex);
              process->writers--;
            });
          }};
}

std::shared_ptr<rocksdb::Cache> rocks_cache() {
  const std::lock_guard lock(process->mutex);
  if (!process->cache) process->cache = rocksdb::NewLRUCache(process->cache_bytes);
  return process->cache;
}

void limit_rocks_memory(std::uint64_t bytes) {
  if (bytes == 0) return;
  const std::lock_guard lock(process->mutex);
  process->cache_bytes = std::min(process->cache_bytes, std::max(bytes / 4, kLeastCacheBytes));
  process->log_bytes = std::min(process->log_bytes, std::max(bytes / 2, kLeastLogBytes));
  if (process->cache) process->cache->SetCapacity(process->cache_bytes);
}

std::uint64_t most_rocks_log_bytes() {
  const std::lock_guard lock(process->mutex);
  return process->log_bytes;
}

}  // namespace warren::storage
