// Requests bytes of one stream from the hosts that hold them, striped over these hosts.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "recovery/base/machine.h"
#include "recovery/base/ranges.h"
#include "storage/host_log.h"
#include "worker/replay/fetch_window.h"
#include "worker/replay/hosts.h"
#include "worker/replay/replayer.h"
#include "worker/replay/requests.h"
#include "worker/replay/streams.h"

namespace warren::worker::replay {

// All that is asked for in one go. The parts that it is made of outlive it.
class Striping {
 public:
  struct Parts {
    const Hosts& hosts;
    FetchWindow& window;
    Requests& requests;
  };
  Striping(const Parts& parts, const RecordKey& at, const Listings& listings, TimeMs now,
           std::vector<Replayer::Send>& out);

  // Asks for as much of `need` as holders take; true: for all of it that anybody holds. `ahead`: nobody wants it yet.
  bool assign(std::uint64_t sequence, Round& round, const Ranges& need, bool ahead);
  // Nothing more in this go.
  [[nodiscard]] bool full() const { return full_; }
  // Of rounds below, every host has said what it holds.
  [[nodiscard]] std::uint64_t known_below() const { return known_below_; }
  // Requests what is left.
  void flush();

 private:
  struct Batch {
    std::vector<Piece> pieces;
    FetchWindow::Booking booked;
  };
  struct Choice {
    std::size_t host;        // kNone: none
    std::uint64_t end = 0;   // until where it holds what follows
    bool held = false;       // somebody holds this byte
    std::uint64_t next = 0;  // where somebody holds bytes again, if nobody holds this one
  };
  [[nodiscard]] Choice choose(const Round& round, std::uint64_t at, bool all_known) const;
  [[nodiscard]] bool has_less_to_do(std::size_t host, std::size_t than) const;
  void flush(std::size_t host, Batch& batch);

  Parts parts_;
  const RecordKey& at_;
  const Listings& listings_;
  TimeMs now_;
  std::vector<Replayer::Send>& out_;
  std::map<std::size_t, Batch> batches_;  // by host
  std::size_t skipped_ = 0;               // pieces whose holders take no more now
  bool full_ = false;
  std::uint64_t known_below_;
};

}  // namespace warren::worker::replay
