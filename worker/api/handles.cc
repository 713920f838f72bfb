#include "worker/api/handles.h"

#include <algorithm>

using warren::Code;
using warren::Status;
using namespace warren::api;

extern "C" {

warren_code warren_wait(warren_handle* handle) {
  if (handle == nullptr) return report(Status(Code::kInvalidArgument, "wait: the handle is NULL"));
  return guarded(*handle->shared, [&] {
    const Entry entry(*handle->shared);
    if (!entry.status().ok()) return entry.status();
    Status status = handle->shared->session->calls().wait(*handle->call);
    if (status.ok() && handle->newest != nullptr) *handle->newest = {true, handle->call->contributors};
    return status;
  });
}

warren_code warren_wait_for(warren_handle* handle, int64_t timeout_ms, int32_t* finished) {
  if (handle == nullptr || finished == nullptr || timeout_ms < 0) {
    return report(Status(Code::kInvalidArgument, "wait_for: a pointer is NULL, or the time negative"));
  }
  *finished = 0;
  return guarded(*handle->shared, [&]() -> Status {
    const Entry entry(*handle->shared);
    if (!entry.status().ok()) return entry.status();
    if (!handle->shared->session->calls().wait_for(*handle->call, std::min(timeout_ms, kMostWaitMs))) return {};
    *finished = 1;
    const Status status = handle->call->status;
    if (status.ok() && handle->newest != nullptr) *handle->newest = {true, handle->call->contributors};
    return status;
  });
}

warren_code warren_test(warren_handle* handle, int32_t* finished) {
  if (handle == nullptr || finished == nullptr) {
    return report(Status(Code::kInvalidArgument, "test: a pointer is NULL"));
  }
  return guarded(*handle->shared, [&]() -> Status {
    const Entry entry(*handle->shared);
    if (!entry.status().ok()) return entry.status();
    *finished = handle->shared->session->calls().test(*handle->call) ? 1 : 0;
    return {};
  });
}

warren_code warren_handle_contributors(const warren_handle* handle, int32_t* ranks, size_t capacity, size_t* count) {
  if (handle == nullptr || count == nullptr || (ranks == nullptr && capacity != 0)) {
    return report(Status(Code::kInvalidArgument, "contributors: a pointer is NULL"));
  }
  return guarded(*handle->shared, [&]() -> Status {
    if (forked(*handle->shared)) return {Code::kClosed, "this handle was made before a fork"};
    if (handle->newest == nullptr) {
      return {Code::kInvalidArgument, "contributors: a message has none, only the result of a collective"};
    }
    // From then on nobody writes to the call.
    if (!handle->call->finished.load(std::memory_order_acquire)) {
      return {Code::kInvalidArgument, "contributors: the call has not finished"};
    }
    if (!handle->call->status.ok()) return handle->call->status;
    copy_contributors(handle->call->contributors.get(), handle->ranks, ranks, capacity, *count);
    return {};
  });
}

warren_code warren_on_complete(warren_handle* handle, warren_callback callback, void* context) {
  if (handle == nullptr || callback == nullptr) {
    return report(Status(Code::kInvalidArgument, "on_complete: a pointer is NULL"));
  }
  return guarded(*handle->shared, [&]() -> Status {
    if (forked(*handle->shared)) return {Code::kClosed, "this handle was made before a fork"};
    // The callback of a call that has finished is called in here, and may free the handle.
    const auto shared = handle->shared;
    const auto call = handle->call;
    return shared->session->calls().on_complete(*call, callback, context);
  });
}

void warren_handle_free(warren_handle* handle) {
  if (handle == nullptr || forked(*handle->shared)) return;  // as warren_destroy
  // Also where another thread is inside a call: the buffers are in use until this one has finished. From a callback of
  // the same job's, the call that it belongs to has finished, and no other may be waited for; nor may another job's
  // callback, which may wait for this one.
  Session& session = *handle->shared->session;
  const bool called_back = Session::inside_callback() && handle->call->finished.load(std::memory_order_acquire);
  if (!session.calls_back_here() && !called_back)
    (void)guarded(*handle->shared, [&] { return session.calls().wait(*handle->call); });
  delete handle;
}

}  // extern "C"
