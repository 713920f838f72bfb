#include "worker/session/process_traits.h"

#include <sched.h>

#include <cstdint>

namespace warren::worker {

wire::Traits traits_of_process(bool maps, bool gpu) {
  wire::Traits traits;
  traits.set_maps(maps);
  traits.set_gpu(gpu);
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return traits;
  traits.set_cores(static_cast<std::uint32_t>(CPU_COUNT(&allowed)));
  std::uint32_t first = 0;
  while (first < CPU_SETSIZE && !CPU_ISSET(first, &allowed)) ++first;
  if (traits.cores() != 0) traits.set_first_core(first);
  return traits;
}

}  // namespace warren::worker
