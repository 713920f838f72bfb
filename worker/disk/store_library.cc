#include "worker/disk/store_library.h"

#include "storage/rocks_result_store.h"

extern "C" __attribute__((visibility("default"))) void warren_open_store_4(
    const warren::worker::StoreRequest& request,
    warren::Result<std::unique_ptr<warren::storage::ResultStore>>& result) {
  warren::storage::RocksResultStore::Options options;
  options.disk_bytes = request.disk_bytes;
  options.memory_bytes = request.memory_bytes;
  auto store = warren::storage::RocksResultStore::open({request.data_dir, request.job, request.worker_id, request.life},
                                                       options);
  if (store.ok()) {
    result = std::unique_ptr<warren::storage::ResultStore>(std::move(store).value());
  } else {
    result = store.status();
  }
}
