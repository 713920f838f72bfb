// How far the hosts have said what they hold of one stream of records, which of them are asked, and when again.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "storage/host_log.h"
#include "worker/replay/hosts.h"
#include "worker/replay/replayer.h"
#include "worker/replay/requests.h"
#include "worker/replay/wants.h"

namespace warren::worker::replay {

// The first sequence that is of no interest yet, where nothing below `base` is any more.
[[nodiscard]] std::uint64_t end_of_window(const RecordKey& stream, std::uint64_t base, std::size_t hosts);

class Listings {
 public:
  // Begins anew from `base`, with each host's rank that was asked last. No host is asked until ask_all_hosts() or aim()
  // names it. `edition`: no other stream has had the same.
  void restart(const Hosts& hosts, std::uint64_t edition, std::uint64_t base);
  // Another plan: hosts are numbered anew.
  void forget_ranks() { by_host_.clear(); }
  [[nodiscard]] std::uint64_t edition() const { return edition_; }

  void ask_all_hosts() { all_ = true; }
  void ask_no_host() { all_ = false; }
  // Asks the hosts where this want's record appears first.
  void aim(const Hosts& hosts, const Wanted& w, TimeMs now, std::int64_t timeout_ms);
  // A gap was seen: the own host's other ranks are asked too.
  void see_gap() { gap_ = true; }
  [[nodiscard]] bool asks(const Hosts& hosts, std::size_t host) const;
  // Of rounds below this every host that is asked has said what it holds, as far as it says anything.
  [[nodiscard]] std::uint64_t known_below(const Hosts& hosts) const;

  // Requests the next page of each host that is asked. `last_wanted`: the last sequence that is wanted.
  void request(const Hosts& hosts, const RecordKey& stream, std::uint64_t base,
               std::optional<std::uint64_t> last_wanted, Requests& requests, TimeMs now,
               std::vector<Replayer::Send>& out);
  // A request of this edition has ended.
  void settle(std::size_t host, std::uint64_t edition);
  // The host has said what it holds, up to this sequence and byte.
  void advance(std::size_t host, std::pair<std::uint64_t, std::uint64_t> next);

  // Which of the host's ranks makes the listing, and is asked for the bytes.
  [[nodiscard]] Rank asked(std::size_t host) const { return by_host_[host].asked; }
  [[nodiscard]] std::string asked_text(const Hosts& hosts) const;
  void ask_next_rank(const Hosts& hosts, std::size_t host);
  // Another rank of the host is asked from `base` on: what the last one listed may be different.
  void restart_host(std::size_t host, Rank rank, std::uint64_t base) { by_host_[host] = {rank, base, 0, 0}; }

  // When all hosts are asked again.
  [[nodiscard]] std::optional<TimeMs> again_at() const { return again_at_; }
  void ask_again_at(TimeMs at) { again_at_ = at; }
  void ask_again_by(TimeMs at);
  void ask_no_more() { again_at_.reset(); }

 private:
  // How far a host's listing is known, and which of its ranks makes it. That rank is asked for the bytes too: they may
  // lie on its disk, which no other rank reads. Streams go through the ranks of a host each by itself: two that shared
  // a turn would each meet every second rank alone.
  struct Listing {
    Rank asked = kNoRank;  // none yet
    std::uint64_t sequence = 0, begin = 0;
    std::uint64_t request = 0;  // in flight; 0: none
  };
  std::vector<Listing> by_host_;
  std::uint64_t edition_ = 0;
  std::optional<TimeMs> again_at_;
  bool gap_ = false;
  // Which hosts are asked; all, if it is not known where what is wanted appears first.
  bool all_ = true;
  std::set<std::size_t> first_;
};

}  // namespace warren::worker::replay
