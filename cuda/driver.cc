#include "cuda/driver.h"

namespace warren::cuda {
namespace {

template <class Function>
cudaError_t find(Function*& function, const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess) return error;
  function = reinterpret_cast<Function*>(found);
  return result == cudaDriverEntryPointSuccess && found != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
}

}  // namespace

Driver::Driver() {
  const auto need = [this](auto& function, const char* name) {
    if (found == cudaSuccess) found = find(function, name);
  };
  need(error_name, "cuGetErrorName");
  need(current, "cuCtxGetCurrent");
  need(make_current, "cuCtxSetCurrent");
  need(state, "cuDevicePrimaryCtxGetState");
  need(retain, "cuDevicePrimaryCtxRetain");
  need(let_go, "cuDevicePrimaryCtxRelease");
  need(about, "cuPointerGetAttributes");
  need(exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  need(count, "cuDeviceGetCount");
  need(attribute, "cuDeviceGetAttribute");
  need(granularity, "cuMemGetAllocationGranularity");
  need(create, "cuMemCreate");
  need(release, "cuMemRelease");
  need(give, "cuMemExportToShareableHandle");
  need(take, "cuMemImportFromShareableHandle");
  need(reserve, "cuMemAddressReserve");
  need(free, "cuMemAddressFree");
  need(map, "cuMemMap");
  need(unmap, "cuMemUnmap");
  need(set_access, "cuMemSetAccess");
}

const Driver& driver() {
  static const Driver functions;
  return functions;
}

}  // namespace warren::cuda
