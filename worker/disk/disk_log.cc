#include "worker/disk/disk_log.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "worker/disk/store_library.h"

namespace warren::worker {
namespace {

// Of the log in memory: what the thread that writes it to disk copies at once, and what RocksDB keeps in memory. Both
// take less where that is plenty.
constexpr std::uint64_t kShareOfBatch = 4, kShareOfStore = 4;

// Beside the library that this code is in, else wherever the run path leads. It stays loaded: RocksDB's threads outlive
// its last user.
void* load_store_library() {
  constexpr int kHow = RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE;
  Dl_info here{};
  if (dladdr(reinterpret_cast<const void*>(&load_store_library), &here) != 0 && here.dli_fname != nullptr) {
    const std::string file = here.dli_fname;
    const auto slash = file.rfind('/');
    if (slash != std::string::npos) {
      void* library = dlopen((file.substr(0, slash + 1) + kStoreLibrary).c_str(), kHow);
      if (library != nullptr) return library;
    }
  }
  return dlopen(kStoreLibrary, kHow);
}

}  // namespace

Result<std::unique_ptr<DiskLog>> DiskLog::open(const Settings& settings, Incarnation self,
                                               std::shared_ptr<SegmentMemory> segment,
                                               std::function<void(const LogEvent&)> events,
                                               std::function<void()> synced) {
  std::unique_ptr<DiskLog> log(new DiskLog());
  void* library = load_store_library();
  if (library == nullptr) {
    return Status(Code::kUnavailable, std::string("data_dir needs ") + kStoreLibrary + ", which does not load: " +
                                          dlerror() + "; install it beside libwarren, or leave data_dir out");
  }
  log->library_ = std::shared_ptr<void>(library, [](void* handle) { dlclose(handle); });
  const auto open_store = reinterpret_cast<OpenStore*>(dlsym(library, kOpenStore));
  if (open_store == nullptr) {
    return Status(Code::kUnavailable, std::string(kStoreLibrary) + " is of another version: it lacks " + kOpenStore);
  }
  StoreRequest request;
  request.data_dir = settings.data_dir;
  request.job = settings.job;
  request.worker_id = settings.worker_id;
  request.life = self;
  request.disk_bytes = settings.log_disk_bytes;
  request.memory_bytes = settings.log_memory_bytes / kShareOfStore;
  Result<std::unique_ptr<storage::ResultStore>> store = Status(Code::kInternal, "the store did not answer");
  open_store(request, store);
  if (!store.ok()) return store.status();
  storage::WriteBehind::Options options;
  options.lag_ms = settings.log_lag_ms;
  // So that a memory log that fills up finds most of itself on disk already.
  options.lag_bytes = std::min<std::uint64_t>(settings.log_lag_bytes, settings.log_memory_bytes / 4);
  options.batch_bytes = settings.log_memory_bytes / kShareOfBatch;
  options.budget_bytes = settings.log_disk_bytes;
  options.synced = std::move(synced);
  auto writer = storage::WriteBehind::start(std::move(options), std::move(store).value(), self, std::move(segment),
                                            std::move(events));
  if (!writer.ok()) return writer.status();
  log->writer_ = std::move(writer).value();
  return log;
}

std::unique_ptr<HostLogReader> DiskLog::behind(std::unique_ptr<HostLogReader> memory) {
  return storage::combined_reader(std::move(memory), writer_->store().reader());
}

}  // namespace warren::worker
