#include "cuda/nccl.h"

#include <dlfcn.h>

#include <cstring>

#if __has_include(<nccl.h>)
#include <nccl.h>
#endif
// Older headers lack what is used here.
#if defined(NCCL_VERSION_CODE) && defined(NCCL_VERSION)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 9)
#define WARREN_HAS_NCCL 1
#endif
#endif

namespace warren::cuda {

#ifdef WARREN_HAS_NCCL

namespace {

static_assert(sizeof(ncclUniqueId) == WARREN_DEVICE_NCCL_ID_BYTES);

// What is newer has what is used here; what is older lacks ncclCommRevoke, or is not what the headers describe.
constexpr int kOldest = NCCL_VERSION(2, 28, 9);

struct Library {
  decltype(&::ncclGetVersion) get_version = nullptr;
  decltype(&::ncclGetErrorString) error_string = nullptr;
  decltype(&::ncclGetLastError) last_error = nullptr;
  decltype(&::ncclGetUniqueId) unique_id = nullptr;
  decltype(&::ncclCommInitRankConfig) init = nullptr;
  decltype(&::ncclCommGetAsyncError) async_error = nullptr;
  decltype(&::ncclCommRevoke) revoke = nullptr;
  decltype(&::ncclCommAbort) abort = nullptr;
  decltype(&::ncclGroupStart) group_start = nullptr;
  decltype(&::ncclGroupEnd) group_end = nullptr;
  decltype(&::ncclSend) send = nullptr;
  decltype(&::ncclRecv) recv = nullptr;
  int version = 0;
  std::string file;
  std::string missing;  // why it does not serve

  Library() {
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) {
      const char* const why = dlerror();
      missing = std::string("there is no NCCL: ") + (why == nullptr ? "libnccl.so.2 does not load" : why);
      return;
    }
    const auto need = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && missing.empty()) missing = std::string("this NCCL lacks ") + name;
    };
    need(get_version, "ncclGetVersion");
    if (get_version != nullptr && get_version(&version) == ncclSuccess && version < kOldest) {
      missing = "NCCL " + name_of(version) + " is older than " + name_of(kOldest);
    }
    // Another process may not find the same by name: a framework has its own beside it.
    Dl_info found{};
    if (get_version != nullptr && dladdr(reinterpret_cast<void*>(get_version), &found) != 0 &&
        found.dli_fname != nullptr) {
      file = found.dli_fname;
    }
    need(error_string, "ncclGetErrorString");
    need(last_error, "ncclGetLastError");
    need(unique_id, "ncclGetUniqueId");
    need(init, "ncclCommInitRankConfig");
    need(async_error, "ncclCommGetAsyncError");
    need(revoke, "ncclCommRevoke");
    need(abort, "ncclCommAbort");
    need(group_start, "ncclGroupStart");
    need(group_end, "ncclGroupEnd");
    need(send, "ncclSend");
    need(recv, "ncclRecv");
  }

  static std::string name_of(int version) {
    return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
  }
};
const Library& nccl() {
  static const Library library;
  return library;
}

NcclAnswer answer(ncclResult_t result, const char* what, ncclComm_t communicator) {
  if (result == ncclSuccess) return {};
  if (result == ncclInProgress) return {WARREN_DEVICE_NOT_READY, {}};
  std::string text = std::string(what) + ": " + nccl().error_string(result);
  if (const char* const more = nccl().last_error(communicator); more != nullptr && *more != 0) {
    text += std::string(" (") + more + ")";
  }
  return {WARREN_DEVICE_FAILED, text};
}

ncclComm_t of(void* communicator) {
  return static_cast<ncclComm_t>(communicator);
}

}  // namespace

NcclAnswer Nccl::version(std::int32_t& version, const char*& file) {
  version = nccl().version;
  file = nccl().file.c_str();
  return nccl().missing.empty() ? NcclAnswer() : NcclAnswer{WARREN_DEVICE_NONE, nccl().missing};
}

NcclAnswer Nccl::make_id(void* id) {
  if (!nccl().missing.empty()) return {WARREN_DEVICE_NONE, nccl().missing};
  ncclUniqueId made{};
  NcclAnswer said = answer(nccl().unique_id(&made), "ncclGetUniqueId", nullptr);
  if (said.code == WARREN_DEVICE_OK) std::memcpy(id, &made, sizeof made);
  return said;
}

NcclAnswer Nccl::join(const void* id, std::int32_t size, std::int32_t rank, void*& communicator) {
  ncclUniqueId made{};
  std::memcpy(&made, id, sizeof made);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t joined = nullptr;
  NcclAnswer said = answer(nccl().init(&joined, size, made, rank, &config), "ncclCommInitRankConfig", nullptr);
  communicator = joined;
  return said;
}

NcclAnswer Nccl::state(void* communicator) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl().async_error(of(communicator), &state);
  return answer(asked == ncclSuccess ? state : asked, "NCCL", of(communicator));
}

NcclAnswer Nccl::exchange(void* communicator, const warren_device_message* messages, std::size_t count,
                          cudaStream_t stream) {
  if (const NcclAnswer said = answer(nccl().group_start(), "ncclGroupStart", of(communicator));
      said.code != WARREN_DEVICE_OK) {
    return said;
  }
  NcclAnswer wrong;
  for (std::size_t i = 0; i < count && wrong.code != WARREN_DEVICE_FAILED; i++) {
    const warren_device_message& m = messages[i];
    wrong = m.sends != 0 ? answer(nccl().send(m.data, m.bytes, ncclInt8, m.peer, of(communicator), stream), "ncclSend",
                                  of(communicator))
                         : answer(nccl().recv(m.data, m.bytes, ncclInt8, m.peer, of(communicator), stream), "ncclRecv",
                                  of(communicator));
  }
  // A group that was begun is ended, whatever is in it.
  NcclAnswer ended = answer(nccl().group_end(), "ncclGroupEnd", of(communicator));
  return wrong.code == WARREN_DEVICE_FAILED ? wrong : ended;
}

NcclAnswer Nccl::revoke(void* communicator) {
  return answer(nccl().revoke(of(communicator), NCCL_REVOKE_DEFAULT), "ncclCommRevoke", of(communicator));
}

NcclAnswer Nccl::abort(void* communicator) {
  return answer(nccl().abort(of(communicator)), "ncclCommAbort", nullptr);
}

#else

namespace {

const NcclAnswer kNone{WARREN_DEVICE_NONE, "this module was built without the header of NCCL 2.28.9 or newer"};

}  // namespace

NcclAnswer Nccl::version(std::int32_t& version, const char*& file) {
  version = 0;
  file = "";
  return kNone;
}
NcclAnswer Nccl::make_id(void*) {
  return kNone;
}
NcclAnswer Nccl::join(const void*, std::int32_t, std::int32_t, void*&) {
  return kNone;
}
NcclAnswer Nccl::state(void*) {
  return kNone;
}
NcclAnswer Nccl::exchange(void*, const warren_device_message*, std::size_t, cudaStream_t) {
  return kNone;
}
NcclAnswer Nccl::revoke(void*) {
  return kNone;
}
NcclAnswer Nccl::abort(void*) {
  return kNone;
}

#endif

}  // namespace warren::cuda
