#include "worker/replay/listings.h"

#include <algorithm>

#include "recovery/base/limits.h"
#include "worker/replay/record_text.h"

namespace warren::worker::replay {
namespace {

// Of rounds that are looked at ahead of the wanted one.
constexpr std::uint64_t kWindowRounds = 4096;
// Of listings, over all hosts.
constexpr std::uint64_t kListedRounds = std::uint64_t{1} << 17;
constexpr std::uint64_t kListedRanges = std::uint64_t{1} << 20;

std::uint64_t window(std::size_t hosts) {
  return std::clamp<std::uint64_t>(kListedRounds / std::max<std::size_t>(hosts, 1), 64, kWindowRounds);
}

std::uint64_t ranges_a_listing(std::size_t hosts) {
  return std::clamp<std::uint64_t>(kListedRanges / std::max<std::size_t>(hosts, 1), 1024, limits::kMaxFetchRanges);
}

}  // namespace

std::uint64_t end_of_window(const RecordKey& stream, std::uint64_t base, std::size_t hosts) {
  if (!windowed(stream.kind)) return base + 1;
  return base + std::min(window(hosts), UINT64_MAX - base);
}

void Listings::restart(const Hosts& hosts, std::uint64_t edition, std::uint64_t base) {
  edition_ = edition;
  again_at_.reset();
  by_host_.resize(hosts.size());
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    const bool known = std::ranges::find(hosts[h].ranks, by_host_[h].asked) != hosts[h].ranks.end();
    by_host_[h] = {known ? by_host_[h].asked : hosts[h].first(), base, 0, 0};
  }
  first_.clear();
  all_ = false;
}

// A local state that is to be copied comes from its rank's host. If each of K ranks asked all hosts at every
// checkpoint, K² requests would travel. After a change of plan somebody else may have it.
void Listings::aim(const Hosts& hosts, const Wanted& w, TimeMs now, std::int64_t timeout_ms) {
  const auto host = w.sequence() <= INT32_MAX ? hosts.host_of(Rank(static_cast<std::int32_t>(w.sequence())))
                                              : std::optional<std::size_t>();
  if (!w.is_copied() || now >= w.one_host_until(timeout_ms) || !host) {
    all_ = true;
  } else {
    first_.insert(*host);
  }
}

bool Listings::asks(const Hosts& hosts, std::size_t host) const {
  const Host& h = hosts[host];
  return !h.gone() && (!h.own || gap_) && (all_ || first_.contains(host));
}

std::uint64_t Listings::known_below(const Hosts& hosts) const {
  std::uint64_t known = UINT64_MAX;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    if (asks(hosts, h)) known = std::min(known, by_host_[h].sequence);
  }
  return known;
}

void Listings::request(const Hosts& hosts, const RecordKey& stream, std::uint64_t base,
                       std::optional<std::uint64_t> last_wanted, Requests& requests, TimeMs now,
                       std::vector<Replayer::Send>& out) {
  const std::uint64_t end = end_of_window(stream, base, hosts.size());
  // A page more when half of the last one is used, or a want needs it.
  std::uint64_t enough = base + (end - base + 1) / 2;
  if (last_wanted) enough = std::max(enough, std::min(end, *last_wanted + 1));
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    Listing& l = by_host_[h];
    if (!asks(hosts, h) || l.request != 0) continue;
    if (l.sequence < base) l = {l.asked, base, 0, 0};
    if (l.sequence >= enough) continue;
    Pending p;
    p.host = h;
    p.edition = edition_;
    p.first_sequence = l.sequence;
    p.end_sequence = end;
    p.begin = l.begin;
    wire::FetchRequest& r = requests.add(l.asked, stream, std::move(p), now, out);
    r.set_first_sequence(l.sequence);
    r.set_end_sequence(end);
    r.set_begin(l.begin);
    r.set_most_ranges(ranges_a_listing(hosts.size()));
    l.request = r.id();
  }
}

void Listings::settle(std::size_t host, std::uint64_t edition) {
  if (edition == edition_) by_host_[host].request = 0;
}

void Listings::advance(std::size_t host, std::pair<std::uint64_t, std::uint64_t> next) {
  by_host_[host].sequence = next.first;
  by_host_[host].begin = next.second;
}

std::string Listings::asked_text(const Hosts& hosts) const {
  std::set<std::int32_t> asked;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    if (!hosts[h].gone() && !hosts[h].server) asked.insert(by_host_[h].asked.value);
  }
  return asked.empty() ? " (there is no other host)" : " (asked " + ranks_text(asked) + " and this host)";
}

void Listings::ask_next_rank(const Hosts& hosts, std::size_t host) {
  by_host_[host].asked = hosts[host].after(by_host_[host].asked);
}

void Listings::ask_again_by(TimeMs at) {
  if (!again_at_ || at < *again_at_) again_at_ = at;
}

}  // namespace warren::worker::replay
