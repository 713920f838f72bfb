// What `warren doctor` looks at. Each look changes nothing that lasts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/system/port_range.h"

namespace warren::cli {

enum class Health { kOk, kWarn, kBad };

struct Finding {
  std::string name;  // "nofile"; stable, for scripts
  Health health = Health::kOk;
  std::string text;    // what was found
  std::string advice;  // what to do; empty if all is well
};

struct DoctorOptions {
  std::string data_dir;  // where a tracker would keep its journal
  std::uint16_t port = 0;
  std::uint16_t http_port = 0;
  worker::PortRange port_range;  // of workers
  std::string tracker;           // "host:port"; empty: no tracker is looked for
  std::string secret_file;       // tried at that tracker; empty: none is
  std::string job;               // whose worker the secret is to make
};

// In the order in which they are shown. Takes at most a few seconds.
[[nodiscard]] std::vector<Finding> examine(const DoctorOptions& options);

}  // namespace warren::cli
