#include "worker/system/port_range.h"

#include <limits>

#include "worker/system/text.h"

namespace warren::worker {

std::string to_string(const PortRange& range) {
  return std::to_string(range.first) + ":" + std::to_string(range.last);
}

Result<PortRange> parse_port_range(const std::string& what, const std::string& text) {
  const Status wrong(
      Code::kInvalidArgument,
      what + " is " + in_quotes(text) + ": give the first and the last port that a worker may listen on, as 9400:9431");
  const auto colon = text.find(':');
  if (colon == std::string::npos) return wrong;
  constexpr std::uint64_t kLast = std::numeric_limits<std::uint16_t>::max();
  const auto first = parse_number(what, text.substr(0, colon), 1, kLast);
  const auto last = parse_number(what, text.substr(colon + 1), 1, kLast);
  if (!first.ok() || !last.ok() || first.value() > last.value()) return wrong;
  return PortRange{static_cast<std::uint16_t>(first.value()), static_cast<std::uint16_t>(last.value())};
}

Result<std::uint16_t> listen_in(const PortRange& range,
                                const std::function<Result<std::uint16_t>(std::uint16_t port)>& listen) {
  if (!range.given()) return listen(0);
  for (std::uint32_t port = range.first; port <= range.last; ++port) {
    auto got = listen(static_cast<std::uint16_t>(port));
    if (got.ok() || got.status().code() != Code::kExhausted) return got;
  }
  return Status(Code::kUnavailable, "all ports of the range " + to_string(range) +
                                        " (port_range) are taken; each worker of a machine listens on " +
                                        std::to_string(kPortsOfWorker) + ": give a wider range, or another one");
}

}  // namespace warren::worker
