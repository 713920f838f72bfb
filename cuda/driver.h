// The driver's own interface, which the runtime finds: nothing here links it.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

namespace warren::cuda {

struct Driver {
  decltype(&cuGetErrorName) error_name = nullptr;
  decltype(&cuCtxGetCurrent) current = nullptr;
  decltype(&cuCtxSetCurrent) make_current = nullptr;
  decltype(&cuDevicePrimaryCtxGetState) state = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain = nullptr;
  decltype(&cuDevicePrimaryCtxRelease) let_go = nullptr;
  decltype(&cuPointerGetAttributes) about = nullptr;
  decltype(&cuThreadExchangeStreamCaptureMode) exchange_capture_mode = nullptr;
  decltype(&cuDeviceGetCount) count = nullptr;
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemExportToShareableHandle) give = nullptr;
  decltype(&cuMemImportFromShareableHandle) take = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  cudaError_t found = cudaSuccess;

  Driver();
};
// Found at the first call. Where `found` is no success, functions are missing, and none may be called.
const Driver& driver();

}  // namespace warren::cuda
