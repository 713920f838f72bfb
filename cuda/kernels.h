// The launches of the kernels. Each queues on the stream of the current device and returns what the launch returned.
// CUDA loads a kernel when it is first launched, or asked about, and may wait for the whole device then.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "worker/device/device_table.h"

namespace warren::cuda {

// All of them, on the current device.
cudaError_t load_kernels();
// The lowest compute capability that they were built for, as the compiler counts: 800 is 8.0. What is newer runs them,
// as they are or from PTX.
int lowest_capability();
// For what cuda/request.h lets pass.
cudaError_t launch_reduce(void* out, const void* const* in, std::size_t count, const warren_device_reduction& how,
                          cudaStream_t stream);
cudaError_t launch_convert(void* out, warren_type out_type, const void* in, warren_type in_type, std::size_t count,
                           cudaStream_t stream);
cudaError_t launch_checksum(std::uint64_t* out, const void* in, std::size_t bytes, cudaStream_t stream);
cudaError_t launch_pack(void* packed, const warren_device_piece* pieces, std::size_t count, cudaStream_t stream);
cudaError_t launch_unpack(const void* packed, const warren_device_piece* pieces, std::size_t count,
                          cudaStream_t stream);

}  // namespace warren::cuda
