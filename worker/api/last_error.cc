#include "worker/api/last_error.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "worker/api/call_sites.h"

namespace warren::api {
namespace {

// A failure as a thread of the program's may ask for it.
struct LastError {
  Code code = Code::kOk;
  std::int32_t rank = -1, peer = -1;
  std::string round, text;
};
// The calling thread's; null: it has none. Nothing that a thread destroys when it ends: destructors of what is static,
// and of what the thread made before, run later, and their calls may fail too. What those leave stays.
thread_local LastError* last_error = nullptr;
void free_at_end_of_thread() {
  struct Owner {
    ~Owner() { delete std::exchange(last_error, nullptr); }
  };
  thread_local const Owner owner;
}
LastError& error_to_tell() {
  if (last_error == nullptr) {
    free_at_end_of_thread();
    last_error = new LastError();
  }
  return *last_error;
}

}  // namespace

warren_code report(const Status& status, std::int32_t rank) noexcept {
  if (status.ok()) [[likely]]
    return WARREN_OK;
  try {
    LastError& error = error_to_tell();
    error = {status.code(), rank, status.peer().value, std::string(status.round()), status.describe()};
    error.text = site_names().explain(std::move(error.text));
  } catch (const std::bad_alloc&) {
    if (last_error != nullptr) *last_error = {status.code(), rank, -1, {}, {}};  // the code says enough
  }
  return static_cast<warren_code>(status.code());
}

namespace {

// Never destroyed, as destructors of the program's statics may ask too.
const LastError& told() {
  static const LastError& none = *new LastError;
  return last_error == nullptr ? none : *last_error;
}

}  // namespace
}  // namespace warren::api

extern "C" {

const char* warren_last_error(void) {
  return warren::api::told().text.c_str();
}

void warren_last_failure_sized(warren_failure* failure, size_t size) {
  if (failure == nullptr) return;
  const auto& e = warren::api::told();
  const warren_failure all{static_cast<warren_code>(e.code), e.rank, e.peer, e.round.c_str(), e.text.c_str()};
  std::memcpy(failure, &all, std::min(size, sizeof all));
}

}  // extern "C"
