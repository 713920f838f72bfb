// The ports that a worker may listen on, for firewalls that let only some through.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "recovery/base/result.h"

namespace warren::worker {

// What a worker listens on: one port for data links, and one for those who fetch what it has logged.
inline constexpr std::uint32_t kPortsOfWorker = 2;

struct PortRange {
  std::uint16_t first = 0, last = 0;  // 0: any free port

  [[nodiscard]] bool given() const { return first != 0; }
  [[nodiscard]] std::uint32_t size() const { return given() ? std::uint32_t{last} - first + 1 : 0; }
};

[[nodiscard]] std::string to_string(const PortRange& range);

// "9400:9431". kInvalidArgument: it is no such range; `what` names where it was given.
[[nodiscard]] Result<PortRange> parse_port_range(const std::string& what, const std::string& text);

// Calls `listen` with one port after the other until it succeeds, or with 0 where no range is given, and returns what
// it returns. `listen` returns kExhausted where another socket has that port. kUnavailable: all ports are taken.
[[nodiscard]] Result<std::uint16_t> listen_in(const PortRange& range,
                                              const std::function<Result<std::uint16_t>(std::uint16_t port)>& listen);

}  // namespace warren::worker
