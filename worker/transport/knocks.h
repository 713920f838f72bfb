// Looks whether the processes of peers are there still, where no link would tell: before links are up, and when all
// have been closed for an interrupt.
//
// A life listens for data links for as long as its process is there. So if the machine refuses connections at all of
// its addresses, several times in a row, that process has gone. Whatever else becomes of an attempt says nothing: a
// process that stands still is connected to by its kernel, and who is cut off or whose machine has gone is not heard at
// all. A connection that comes up is closed at once, and the other end ignores it.
//
// Non-blocking; driven by the control thread alone.
#pragma once

#include <poll.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "storage/segment_memory.h"
#include "worker/transport/numeric_address.h"

namespace warren::worker {

class Knocks {
 public:
  // More peers than this are not looked after at once: each takes a descriptor.
  static constexpr std::size_t kMost = 64;
  // A process is gone after so many refusals in a row, at each of its places, over so long.
  static constexpr std::size_t kRefusals = 3;
  static constexpr std::int64_t kRefusedForMs = 50;

  // Where a life listens. One of its places may be out of reach from here while it lives (a host's own address behind a
  // gateway; a Unix socket in another container), so all of them have to refuse.
  struct Place {
    SocketAddress address;
    std::string name;  // for people
  };
  struct Gone {
    Rank peer;
    std::string evidence;
  };

  // Looks after `first_ms`, and then more and more seldom, for `for_ms`. No effect on a peer that is looked after.
  void begin(Rank peer, std::vector<Place> places, std::int64_t first_ms, std::int64_t for_ms, TimeMs now);
  void end(Rank peer) { knocks_.erase(peer); }
  void end_all() { knocks_.clear(); }
  [[nodiscard]] std::vector<Rank> peers() const;

  void collect_pollfds(std::vector<pollfd>& out) const;
  // Moves every attempt as far as it goes; who is known to have gone since, each once.
  [[nodiscard]] std::vector<Gone> run(TimeMs now);
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

 private:
  enum class Answer : std::uint8_t { kNone, kAccepted, kRefused, kOther };
  struct Knock {
    std::vector<Place> places;
    OwnedFd fd;   // of an attempt that is under way
    TimeMs next;  // when the next one begins, or this one is given up
    TimeMs until;
    std::int64_t pause_ms = 0;
    std::size_t attempts = 0, refusals = 0;
    TimeMs refused_since;
  };

  static Answer attempt(Knock& k);
  static Answer look(Knock& k);
  // Whether that was enough to know.
  static bool judge(Knock& k, Answer answer, TimeMs now);

  std::map<Rank, Knock> knocks_;
};

}  // namespace warren::worker
