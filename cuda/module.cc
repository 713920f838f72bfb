// libwarren_cuda.so: the table over the CUDA runtime, which is linked in statically and finds the driver by itself.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <iterator>
#include <string>

#include "cuda/driver.h"
#include "cuda/kernels.h"
#include "cuda/nccl.h"
#include "cuda/request.h"
#include "worker/device/device_table.h"

namespace warren::cuda {
namespace {

thread_local std::string last_error;

warren_device_code failed(std::string text, warren_device_code code = WARREN_DEVICE_FAILED) {
  last_error = std::move(text);
  return code;
}

warren_device_code answer(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return WARREN_DEVICE_OK;
  (void)cudaGetLastError();  // it is said here, and must not show up in a call of the program's
  return failed(std::string(what) + ": " + cudaGetErrorString(error) + " (" + cudaGetErrorName(error) + ")",
                error == cudaErrorMemoryAllocation ? WARREN_DEVICE_NO_MEMORY : WARREN_DEVICE_FAILED);
}

warren_device_code answer(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return WARREN_DEVICE_OK;
  const char* name = nullptr;
  (void)driver().error_name(error, &name);
  return failed(std::string(what) + ": " + (name == nullptr ? "an unknown error" : name),
                error == CUDA_ERROR_OUT_OF_MEMORY ? WARREN_DEVICE_NO_MEMORY : WARREN_DEVICE_FAILED);
}

// A graph that the program captures meanwhile, in this thread or another, is none of ours: without this, CUDA refuses
// much of what is done here, and the capture comes to nothing.
class BesideCaptures {
 public:
  BesideCaptures() { (void)driver().exchange_capture_mode(&mode_); }
  ~BesideCaptures() { (void)driver().exchange_capture_mode(&mode_); }
  BesideCaptures(const BesideCaptures&) = delete;
  BesideCaptures& operator=(const BesideCaptures&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // then the thread's own
};

// The context that the calling thread, which may be the program's, has current, or none, is so again at the end of the
// scope. By the driver: cudaSetDevice() makes one where it goes back to, on the first GPU for a thread that had none.
class KeepsCurrent {
 public:
  KeepsCurrent() { (void)driver().current(&before_); }
  ~KeepsCurrent() { (void)driver().make_current(before_); }
  KeepsCurrent(const KeepsCurrent&) = delete;
  KeepsCurrent& operator=(const KeepsCurrent&) = delete;
  [[nodiscard]] bool had_one() const { return before_ != nullptr; }

 private:
  const BesideCaptures beside_;
  CUcontext before_ = nullptr;
};

// Makes a device the calling thread's for the scope, with a context there.
class OnDevice {
 public:
  explicit OnDevice(int device) : error_(cudaSetDevice(device)) {}
  [[nodiscard]] cudaError_t error() const { return error_; }

 private:
  const KeepsCurrent before_;  // before what follows
  const cudaError_t error_;
};

// For what is of no device: in the scope the thread has its own context, or one that the process has anyway, of
// whichever device; where there is none it has none.
class AnyContext {
 public:
  AnyContext() {
    int count = 0;
    if (before_.had_one() || driver().count(&count) != CUDA_SUCCESS) return;
    for (int device = 0; device < count && held_ < 0; device++) {
      unsigned flags = 0;
      int active = 0;
      CUcontext context = nullptr;
      if (driver().state(device, &flags, &active) != CUDA_SUCCESS || active == 0) continue;
      if (driver().retain(&context, device) != CUDA_SUCCESS) continue;
      held_ = device;
      (void)driver().make_current(context);
    }
  }
  ~AnyContext() {
    if (held_ < 0) return;
    (void)driver().make_current(nullptr);
    (void)driver().let_go(held_);
  }
  AnyContext(const AnyContext&) = delete;
  AnyContext& operator=(const AnyContext&) = delete;

 private:
  const KeepsCurrent before_;
  int held_ = -1;
};

template <class Call>
warren_device_code on_device(int device, const char* what, Call call) {
  const OnDevice here(device);
  if (here.error() != cudaSuccess) return answer(here.error(), "cudaSetDevice");
  return answer(call(), what);
}

const char* error_text() {
  return last_error.c_str();
}

warren_device_code init(std::int32_t* devices) {
  *devices = 0;
  int version = 0, count = 0;
  const cudaError_t asked = cudaDriverGetVersion(&version);
  if (asked == cudaErrorStubLibrary) return failed("only the stub of a driver is here", WARREN_DEVICE_NONE);
  if (asked == cudaSuccess && version == 0) return failed("there is no driver", WARREN_DEVICE_NONE);
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorNoDevice || error == cudaErrorStubLibrary || (error == cudaSuccess && count == 0)) {
    (void)cudaGetLastError();
    return failed(cudaGetErrorString(cudaErrorNoDevice), WARREN_DEVICE_NONE);
  }
  if (error != cudaSuccess) return answer(error, "cudaGetDeviceCount");
  *devices = count;
  return answer(driver().found, "cudaGetDriverEntryPointByVersion");
}

// By the driver: the runtime makes a context first, for buffers on the CPU, too.
warren_device_code locate(const void* pointer, std::int32_t* device) {
  *device = WARREN_DEVICE_HOST;
  const BesideCaptures beside;
  unsigned type = 0, managed = 0;
  int number = WARREN_DEVICE_HOST;
  const auto ask = [&] {
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void* answers[] = {&type, &managed, &number};
    return driver().about(std::size(asked), asked, answers, reinterpret_cast<CUdeviceptr>(pointer));
  };
  CUresult error = ask();
  if (error == CUDA_ERROR_INVALID_CONTEXT) {
    const AnyContext here;
    error = ask();
  }
  if (error == CUDA_ERROR_INVALID_CONTEXT) return WARREN_DEVICE_OK;  // nobody has one, nor memory of a GPU
  if (error != CUDA_SUCCESS) return answer(error, "cuPointerGetAttributes");
  // The CPU could read managed memory too, but not in the order of a stream.
  if (type != CU_MEMORYTYPE_DEVICE && managed == 0) return WARREN_DEVICE_OK;
  // Here, as nothing comes to a GPU but what lies there: one that cannot be used is in nobody's way.
  int major = 0, minor = 0;
  CUresult told = driver().attribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CUdevice(number));
  if (told == CUDA_SUCCESS) {
    told = driver().attribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, CUdevice(number));
  }
  if (told != CUDA_SUCCESS) return answer(told, "cuDeviceGetAttribute");
  if (std::string why = why_not_on(number, major, minor, lowest_capability()); !why.empty()) {
    return failed(std::move(why));
  }
  *device = number;
  return WARREN_DEVICE_OK;
}

warren_device_code allocate_pinned(std::size_t bytes, void** memory) {
  const AnyContext here;
  return answer(cudaHostAlloc(memory, bytes, cudaHostAllocPortable), "cudaHostAlloc");
}
warren_device_code free_pinned(void* memory) {
  const AnyContext here;
  return answer(cudaFreeHost(memory), "cudaFreeHost");
}

warren_device_code allocate(std::int32_t device, std::size_t bytes, void** memory) {
  return on_device(device, "cudaMalloc", [&] { return cudaMalloc(memory, bytes); });
}
warren_device_code release(std::int32_t device, void* memory) {
  return on_device(device, "cudaFree", [&] { return cudaFree(memory); });
}

CUmemAllocationProp shared_on(std::int32_t device) {
  CUmemAllocationProp what{};
  what.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  what.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  what.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  what.location.id = device;
  return what;
}

// Gives the memory an address at which the device's kernels and copies have it. The handle is used up, whatever comes
// of it: what is mapped stays without it.
warren_device_code place(std::int32_t device, CUmemGenericAllocationHandle handle, std::size_t bytes, void** memory) {
  CUdeviceptr at = 0;
  auto code = answer(driver().reserve(&at, bytes, 0, 0, 0), "cuMemAddressReserve");
  if (code == WARREN_DEVICE_OK) {
    code = answer(driver().map(at, bytes, 0, handle, 0), "cuMemMap");
    if (code == WARREN_DEVICE_OK) {
      CUmemAccessDesc access{};
      access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access.location.id = device;
      access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
      code = answer(driver().set_access(at, bytes, &access, 1), "cuMemSetAccess (the GPU may not read that memory)");
      if (code != WARREN_DEVICE_OK) (void)driver().unmap(at, bytes);
    }
    if (code != WARREN_DEVICE_OK) (void)driver().free(at, bytes);
  }
  (void)driver().release(handle);
  if (code == WARREN_DEVICE_OK) *memory = std::bit_cast<void*>(at);
  return code;
}

warren_device_code allocate_shared(std::int32_t device, std::size_t* bytes, void** memory, int* fd) {
  const OnDevice here(device);
  auto code = answer(here.error(), "cudaSetDevice");
  if (code != WARREN_DEVICE_OK) return code;
  int shares = 0;
  code = answer(
      driver().attribute(&shares, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, CUdevice(device)),
      "cuDeviceGetAttribute");
  if (code != WARREN_DEVICE_OK) return code;
  if (shares == 0) return failed("the driver gives no descriptors of this GPU's memory");
  const CUmemAllocationProp what = shared_on(device);
  std::size_t unit = 0;
  code =
      answer(driver().granularity(&unit, &what, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "cuMemGetAllocationGranularity");
  if (code != WARREN_DEVICE_OK) return code;
  *bytes = (*bytes + unit - 1) / unit * unit;
  CUmemGenericAllocationHandle handle = 0;
  code = answer(driver().create(&handle, *bytes, &what, 0), "cuMemCreate");
  if (code != WARREN_DEVICE_OK) return code;
  code = answer(driver().give(fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
  if (code != WARREN_DEVICE_OK) {
    (void)driver().release(handle);
    return code;
  }
  // The driver does not say that it does so: a program that this one starts would keep the memory.
  (void)fcntl(*fd, F_SETFD, FD_CLOEXEC);
  code = place(device, handle, *bytes, memory);
  if (code != WARREN_DEVICE_OK) (void)::close(*fd);
  return code;
}

warren_device_code import_shared(std::int32_t device, int fd, std::size_t bytes, void** memory) {
  const OnDevice here(device);
  auto code = answer(here.error(), "cudaSetDevice");
  if (code != WARREN_DEVICE_OK) return code;
  CUmemGenericAllocationHandle handle = 0;
  code = answer(driver().take(&handle, std::bit_cast<void*>(static_cast<std::intptr_t>(fd)),
                              CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                "cuMemImportFromShareableHandle");
  return code == WARREN_DEVICE_OK ? place(device, handle, bytes, memory) : code;
}

warren_device_code release_shared(std::int32_t device, void* memory, std::size_t bytes) {
  const OnDevice here(device);
  auto code = answer(here.error(), "cudaSetDevice");
  if (code != WARREN_DEVICE_OK) return code;
  const auto at = reinterpret_cast<CUdeviceptr>(memory);
  code = answer(driver().unmap(at, bytes), "cuMemUnmap");
  return code == WARREN_DEVICE_OK ? answer(driver().free(at, bytes), "cuMemAddressFree") : code;
}

warren_device_code make_stream(std::int32_t device, void** stream) {
  return on_device(device, "cudaStreamCreate", [&] {
    cudaStream_t made = nullptr;
    const cudaError_t error = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    *stream = made;
    return error;
  });
}
warren_device_code end_stream(std::int32_t device, void* stream) {
  return on_device(device, "cudaStreamDestroy", [&] { return cudaStreamDestroy(static_cast<cudaStream_t>(stream)); });
}

warren_device_code make_event(std::int32_t device, void** event) {
  return on_device(device, "cudaEventCreate", [&] {
    cudaEvent_t made = nullptr;
    const cudaError_t error = cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    *event = made;
    return error;
  });
}
warren_device_code end_event(std::int32_t device, void* event) {
  return on_device(device, "cudaEventDestroy", [&] { return cudaEventDestroy(static_cast<cudaEvent_t>(event)); });
}

warren_device_code record(std::int32_t device, void* event, void* stream) {
  return on_device(device, "cudaEventRecord",
                   [&] { return cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream)); });
}

warren_device_code wait_for(std::int32_t device, void* stream, void* event) {
  return on_device(device, "cudaStreamWaitEvent", [&] {
    return cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0);
  });
}

warren_device_code query(std::int32_t device, void* event) {
  const OnDevice here(device);
  if (here.error() != cudaSuccess) return answer(here.error(), "cudaSetDevice");
  const cudaError_t error = cudaEventQuery(static_cast<cudaEvent_t>(event));
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return WARREN_DEVICE_NOT_READY;
  }
  return answer(error, "work on the GPU");
}

warren_device_code to_host(std::int32_t device, void* to, const void* from, std::size_t bytes, void* stream) {
  return on_device(device, "a copy from the GPU", [&] {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
  });
}

warren_device_code to_device(std::int32_t device, void* to, const void* from, std::size_t bytes, void* stream) {
  return on_device(device, "a copy to the GPU", [&] {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
  });
}

warren_device_code copy(std::int32_t device, void* to, const void* from, std::size_t bytes, void* stream) {
  return on_device(device, "a copy on the GPU", [&] {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
  });
}

warren_device_code reduce(std::int32_t device, void* out, const void* const* in, std::size_t count,
                          const warren_device_reduction* how, void* stream) {
  if (const char* why = why_not_reduce(*how); why != nullptr) return failed(why);
  return on_device(device, "reduce",
                   [&] { return launch_reduce(out, in, count, *how, static_cast<cudaStream_t>(stream)); });
}

warren_device_code convert(std::int32_t device, void* out, warren_type out_type, const void* in, warren_type in_type,
                           std::size_t count, void* stream) {
  if (const char* why = why_not_convert(out_type, in_type); why != nullptr) return failed(why);
  return on_device(device, "convert", [&] {
    return launch_convert(out, out_type, in, in_type, count, static_cast<cudaStream_t>(stream));
  });
}

warren_device_code checksum(std::int32_t device, std::uint64_t* out, const void* in, std::size_t bytes, void* stream) {
  return on_device(device, "checksum",
                   [&] { return launch_checksum(out, in, bytes, static_cast<cudaStream_t>(stream)); });
}

warren_device_code load(std::int32_t device) {
  return on_device(device, "loading kernels", [] { return load_kernels(); });
}

warren_device_code pack(std::int32_t device, void* packed, const warren_device_piece* pieces, std::size_t count,
                        void* stream) {
  if (const char* why = why_not_pack(count); why != nullptr) return failed(why);
  return on_device(device, "pack",
                   [&] { return launch_pack(packed, pieces, count, static_cast<cudaStream_t>(stream)); });
}

// What NCCL's part of the module says, in the words of the table.
warren_device_code said(const NcclAnswer& answer) {
  return answer.code == WARREN_DEVICE_OK || answer.code == WARREN_DEVICE_NOT_READY ? answer.code
                                                                                   : failed(answer.text, answer.code);
}
// NCCL goes back to the device that a thread had, which makes a context there, or does not: it is at the communicator's
// before, and what was current is put back by us. An error of the device NCCL finds itself.
struct Communicator {
  void* nccl = nullptr;
  std::int32_t device = 0;
};
template <class Call>
warren_device_code with_nccl(void* communicator, Call call) {
  const Communicator& its = *static_cast<const Communicator*>(communicator);
  const OnDevice here(its.device);
  if (here.error() != cudaSuccess) (void)cudaGetLastError();
  return said(call(its.nccl));
}
warren_device_code nccl_version(std::int32_t* version, const char** file) {
  return said(Nccl::version(*version, *file));
}
warren_device_code nccl_id(void* id) {
  return said(Nccl::make_id(id));
}
warren_device_code nccl_join(std::int32_t device, const void* id, std::int32_t size, std::int32_t rank,
                             void** communicator) {
  const OnDevice here(device);
  if (here.error() != cudaSuccess) return answer(here.error(), "cudaSetDevice");
  void* joins = nullptr;
  const auto code = said(Nccl::join(id, size, rank, joins));
  *communicator = joins == nullptr ? nullptr : new Communicator{joins, device};
  return code;
}
warren_device_code nccl_state(void* communicator) {
  return with_nccl(communicator, Nccl::state);
}
warren_device_code nccl_exchange(void* communicator, const warren_device_message* messages, std::size_t count,
                                 void* stream) {
  return with_nccl(communicator, [&](void* nccl) {
    return Nccl::exchange(nccl, messages, count, static_cast<cudaStream_t>(stream));
  });
}
warren_device_code nccl_revoke(void* communicator) {
  return with_nccl(communicator, Nccl::revoke);
}
warren_device_code nccl_abort(void* communicator) {
  const auto code = with_nccl(communicator, Nccl::abort);
  if (code != WARREN_DEVICE_FAILED) delete static_cast<Communicator*>(communicator);
  return code;
}

warren_device_code unpack(std::int32_t device, const void* packed, const warren_device_piece* pieces, std::size_t count,
                          void* stream) {
  if (const char* why = why_not_pack(count); why != nullptr) return failed(why);
  return on_device(device, "unpack",
                   [&] { return launch_unpack(packed, pieces, count, static_cast<cudaStream_t>(stream)); });
}

#define WARREN_TEXT_OF(number) #number
#define WARREN_TEXT(number) WARREN_TEXT_OF(number)
constexpr warren_device_table kTable = {
    .version = WARREN_DEVICE_TABLE_VERSION,
    .bytes = sizeof(warren_device_table),
    .name = "CUDA runtime " WARREN_TEXT(CUDART_VERSION),
    .error_text = error_text,
    .init = init,
    .locate = locate,
    .allocate_pinned = allocate_pinned,
    .free_pinned = free_pinned,
    .allocate = allocate,
    .release = release,
    .allocate_shared = allocate_shared,
    .import_shared = import_shared,
    .release_shared = release_shared,
    .make_stream = make_stream,
    .end_stream = end_stream,
    .make_event = make_event,
    .end_event = end_event,
    .record = record,
    .wait_for = wait_for,
    .query = query,
    .to_host = to_host,
    .to_device = to_device,
    .copy = copy,
    .reduce = reduce,
    .convert = convert,
    .checksum = checksum,
    .load = load,
    .pack = pack,
    .unpack = unpack,
    .nccl_version = nccl_version,
    .nccl_id = nccl_id,
    .nccl_join = nccl_join,
    .nccl_state = nccl_state,
    .nccl_exchange = nccl_exchange,
    .nccl_revoke = nccl_revoke,
    .nccl_abort = nccl_abort,
};

}  // namespace
}  // namespace warren::cuda

extern "C" __attribute__((visibility("default"))) const warren_device_table* warren_device_table_7(void) {
  return &warren::cuda::kTable;
}
