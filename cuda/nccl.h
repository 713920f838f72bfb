// NCCL as the module uses it: found when it is first asked for, by the name under which a framework that was loaded
// before has it, too, so that a process has one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "worker/device/device_table.h"

namespace warren::cuda {

struct NcclAnswer {
  warren_device_code code = WARREN_DEVICE_OK;
  std::string text;
};

// As the table's functions of these names.
class Nccl {
 public:
  [[nodiscard]] static NcclAnswer version(std::int32_t& version, const char*& file);
  [[nodiscard]] static NcclAnswer make_id(void* id);
  // On the calling thread's device.
  [[nodiscard]] static NcclAnswer join(const void* id, std::int32_t size, std::int32_t rank, void*& communicator);
  [[nodiscard]] static NcclAnswer state(void* communicator);
  [[nodiscard]] static NcclAnswer exchange(void* communicator, const warren_device_message* messages, std::size_t count,
                                           cudaStream_t stream);
  [[nodiscard]] static NcclAnswer revoke(void* communicator);
  [[nodiscard]] static NcclAnswer abort(void* communicator);
};

}  // namespace warren::cuda
