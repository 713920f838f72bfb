// What libwarren asks of libwarren_store. Both are built from one source tree; the symbol's name carries a number that
// changes with this file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/result_store.h"

namespace warren::worker {

inline constexpr const char* kStoreLibrary = "libwarren_store.so";
inline constexpr const char* kOpenStore = "warren_open_store_4";

struct StoreRequest {
  std::string data_dir, job, worker_id;
  Incarnation life;
  std::uint64_t disk_bytes = 0;
  std::uint64_t memory_bytes = 0;  // for RocksDB's caches and buffers
};
using OpenStore = void(const StoreRequest&, Result<std::unique_ptr<storage::ResultStore>>&);

}  // namespace warren::worker
