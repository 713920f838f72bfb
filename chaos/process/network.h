// Hosts as network namespaces, joined by a bridge in a namespace of the runner's own: nothing of it is seen outside,
// and it goes with the processes. A cut takes a host's cable out.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "chaos/process/weather.h"
#include "recovery/base/result.h"

namespace warren::chaos::process {

class Network {
 public:
  // Puts the calling thread, which must be the only one, into the runner's namespace. kUnavailable: the system does not
  // allow it (it takes root) or has no bridges; nothing has changed then that matters.
  // Where `forecast` is not fine, what hosts send to each other and to the tracker goes through it.
  static Result<Network> create(std::uint32_t hosts, const Forecast& forecast = {});

  // Of the runner and what it starts without wire(): the tracker.
  [[nodiscard]] static std::string tracker_address() { return "10.77.0.1"; }
  // Gives the process, which is in a new namespace, the host's cable. Again: a new one.
  [[nodiscard]] Status wire(std::uint32_t host, pid_t pid);
  // What the program of such a process begins with: waits for nothing, sets the addresses, executes the rest.
  [[nodiscard]] static std::vector<std::string> prefix(std::uint32_t host);
  [[nodiscard]] Status set_cut(std::uint32_t host, bool cut);

 private:
  explicit Network(std::uint32_t hosts) : cables_(hosts) {}
  std::vector<std::string> cables_;  // the bridge's end of each host's
  std::shared_ptr<Weather> weather_;
  int made_ = 0;
};

}  // namespace warren::chaos::process
