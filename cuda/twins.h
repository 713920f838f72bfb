// The kernels on the CPU: bit for bit what kernels.cu computes. For tests, and for the fake device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker/device/device_table.h"

namespace warren::cuda::twins {

// As in the table, on memory of the CPU, at once, for what cuda/request.h lets pass.
void reduce(void* out, const void* const* in, std::size_t count, const warren_device_reduction& how);
void convert(void* out, warren_type out_type, const void* in, warren_type in_type, std::size_t count);
void checksum(std::uint64_t* out, const void* in, std::size_t bytes);
void pack(void* packed, const warren_device_piece* pieces, std::size_t count);
void unpack(const void* packed, const warren_device_piece* pieces, std::size_t count);

}  // namespace warren::cuda::twins
