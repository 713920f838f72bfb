// What session_test loads in the place of libwarren_store.so.
#include "tests/worker/session/hanging_store.h"

#include "worker/disk/store_library.h"

namespace {

std::shared_ptr<warren::worker::HangingDisk> the_disk() {
  static const auto disk = std::make_shared<warren::worker::HangingDisk>();
  return disk;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void warren_open_store_4(
    const warren::worker::StoreRequest&, warren::Result<std::unique_ptr<warren::storage::ResultStore>>& result) {
  result = std::unique_ptr<warren::storage::ResultStore>(new warren::worker::HangingStore(the_disk()));
}

// For the test: the disk of all stores.
extern "C" __attribute__((visibility("default"))) warren::worker::HangingDisk* warren_hanging_disk() {
  return the_disk().get();
}
