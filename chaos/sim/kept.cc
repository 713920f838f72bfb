#include "chaos/sim/kept.h"

#include <cstddef>

#include "recovery/base/check.h"
#include "storage/host_log.h"
#include "worker/disk/past.h"
#include "worker/rounds/logged.h"

namespace warren::chaos {

std::optional<wire::Held> held_on(storage::ResultStore& store, const SimMirror* mirror) {
  return worker::with_mirror(worker::past_on(store), mirror == nullptr ? std::nullopt : mirror->held());
}

wire::Logged kept_by_launcher(const std::string& host, Hosts& hosts, Incarnation self) {
  const auto log = HostLog::create(self, heap_segment(std::size_t{64} << 10)).value();
  for (const Hosts::Segment& s : hosts.segments(host)) {
    if (s.life == self || !s.kept) continue;
    WARREN_CHECK(log->attach(s.life, s.memory->bytes(), s.memory).ok(), "a kept segment is one");
  }
  return worker::kept_in(*log);
}

}  // namespace warren::chaos
