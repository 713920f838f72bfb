#include "worker/replay/own_log.h"

#include <algorithm>
#include <cstdint>

namespace warren::worker::replay {
namespace {

// Bytes go to the program in blocks of this size, by way of a buffer. A record may turn out to be dropped while it is
// read, and its rubbish must not be in the program's memory.
constexpr std::size_t kBounceBytes = std::size_t{256} << 10;

}  // namespace

void OwnLog::copy_to(Wanted& w) {
  const Ranges there = reader_.held(w.key()).intersect(w.missing());
  for (const Interval& i : there.intervals()) {
    bounce_.resize(std::max<std::size_t>(bounce_.size(), std::min<std::uint64_t>(i.end - i.begin, kBounceBytes)));
    for (std::uint64_t at = i.begin; at < i.end;) {
      const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(i.end - at, bounce_.size()));
      const std::span<std::byte> block = std::span(bounce_).first(size);
      if (!reader_.read(w.key(), at, block)) break;  // dropped meanwhile
      w.write(at, block);
      at += size;
    }
  }
}

Ranges OwnLog::log_again(const Wanted& w, std::span<const Holder> holders, const Hosts& hosts) const {
  const Ranges wanted = w.asked_for();
  const Ranges living = reader_.held_by(w.key(), hosts.own_lives()).intersect(wanted);
  Ranges again = wanted.minus(hosts.held_enough(wanted, holders, living));
  again.add(reader_.held(w.key()).intersect(wanted).minus(living));
  return again;
}

Ranges OwnLog::refill(const Wanted& w, std::span<const Holder> holders, const Hosts& hosts) const {
  const Ranges rest = Ranges(0, w.info()->total_bytes).minus(w.want().bytes);
  const Ranges living = reader_.held_by(w.key(), hosts.own_lives()).intersect(rest);
  Ranges somewhere = reader_.held(w.key());
  for (const Holder& h : holders) {
    if (hosts.elsewhere(h.host)) somewhere.add(h.held);
  }
  return rest.minus(hosts.held_enough(rest, holders, living)).minus(living).intersect(somewhere);
}

}  // namespace warren::worker::replay
