// The replayer's requests in flight, and the ranks that leave them unanswered.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"
#include "worker/replay/hosts.h"
#include "worker/replay/replayer.h"

namespace warren::worker::replay {

// Bytes of one record of a stream.
struct Piece {
  std::uint64_t sequence, begin, end;
  friend auto operator<=>(const Piece&, const Piece&) = default;
};

struct Pending {
  Rank rank;
  std::size_t host = 0;
  RecordKey stream;
  std::uint64_t edition = 0;
  std::vector<Piece> pieces;  // none: a listing
  std::uint64_t first_sequence = 0, end_sequence = 0, begin = 0;
  std::uint64_t load = 0;      // what it counts for at its host
  std::uint64_t reserved = 0;  // in the cache
  TimeMs sent;
};

class Requests {
 public:
  explicit Requests(const Hosts& hosts) : hosts_(hosts) {}

  void install(const Replayer::Plan& plan);
  void suspend() { pending_.clear(); }
  [[nodiscard]] Generation generation() const { return generation_; }

  // Begins a request of a stream, which the caller completes. Ids rise with time.
  wire::FetchRequest& add(Rank to, const RecordKey& stream, Pending p, TimeMs now, std::vector<Replayer::Send>& out);
  // Takes out the request that a reply answers; nullopt: none of this generation.
  [[nodiscard]] std::optional<Pending> take(Rank from, const wire::FetchReply& reply, TimeMs now);
  [[nodiscard]] std::vector<Pending> take_all_of(Rank rank);

  // Ranks that have not answered in time. Takes out the requests that a rank at work has passed over.
  [[nodiscard]] std::set<Rank> look_for_silent(TimeMs now, std::vector<Pending>& passed_over);
  // A silent rank is asked again, as if it had never been heard.
  void forget(Rank rank) { heard_.erase(rank); }
  [[nodiscard]] std::optional<TimeMs> next_deadline() const;

  // The ranks that are asked for data of a stream, and those that are asked for a listing.
  struct Asked {
    std::set<std::int32_t> data, listing;
  };
  [[nodiscard]] Asked asked(const RecordKey& stream) const;

 private:
  // The newest answer of a rank in this generation.
  struct Heard {
    TimeMs at;
    std::uint64_t id = 0;  // of the newest request that it has answered
    int lost = 0;          // requests that it has passed over
  };
  [[nodiscard]] TimeMs deadline_of(std::uint64_t id, const Pending& p) const;

  const Hosts& hosts_;
  Generation generation_;
  bool follows_ = false;
  std::int64_t timeout_ms_ = 1;
  std::map<std::uint64_t, Pending> pending_;  // by id
  std::map<Rank, Heard> heard_;
  std::uint64_t last_ = 0;
};

}  // namespace warren::worker::replay
