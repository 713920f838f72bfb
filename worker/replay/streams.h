// The records of each stream: the hosts that hold them, the bytes that were asked for, and the wants that there are.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"
#include "worker/replay/fetch_window.h"
#include "worker/replay/hosts.h"
#include "worker/replay/listings.h"

namespace warren::worker::replay {

struct Round {
  std::optional<RecordInfo> info;  // from listings and data
  std::string info_from;
  Status conflict;  // what holders say contradicts itself
  std::vector<Holder> holders;
  Ranges requested;
  std::vector<std::uint64_t> wants;
  FetchedAhead ahead;
  std::uint32_t damaged = 0;  // times that bytes of it arrived damaged, since others of it were of use
  bool was_damaged = false;   // ever
  bool served = false;        // a want for it has ended: nobody will want it again

  // A host says that it holds these bytes.
  void add_held(std::size_t host, const wire::FetchEntry& entry);
  // A host turns out not to hold these bytes, or has to list them again.
  void not_held(std::size_t host, const Ranges& bytes);
  void forget_host(std::size_t host);
};

struct Stream {
  std::map<std::uint64_t, Round> rounds;              // by sequence
  std::multimap<std::uint64_t, std::uint64_t> wants;  // sequence → id
  std::set<std::uint64_t> open;                       // sequences whose wants may have bytes that nobody was asked for
  Listings listings;
  std::uint64_t base = 0;   // nothing below is of interest
  std::uint64_t ahead = 0;  // rounds below were looked at for fetching ahead
  std::uint64_t used = 0;   // when a want last came: the least is forgotten first
  bool asleep = true;       // nothing was needed from others since the plan: they are not asked
  bool look = false;        // all wants are to be looked at

  void open_all_wants() {
    for (const auto& [sequence, id] : wants) open.insert(sequence);
  }
  [[nodiscard]] std::optional<std::uint64_t> last_wanted() const {
    return wants.empty() ? std::nullopt : std::optional(wants.rbegin()->first);
  }
};

class Streams {
 public:
  explicit Streams(FetchWindow& window) : window_(window) {}

  [[nodiscard]] Stream* find(const RecordKey& stream);
  [[nodiscard]] bool contains(const RecordKey& stream) const { return streams_.contains(stream); }
  [[nodiscard]] Stream& at(const RecordKey& stream) { return streams_.at(stream); }
  [[nodiscard]] auto begin() { return streams_.begin(); }
  [[nodiscard]] auto end() { return streams_.end(); }
  [[nodiscard]] auto begin() const { return streams_.begin(); }
  [[nodiscard]] auto end() const { return streams_.end(); }

  // The stream of a want that comes now, and whether it is a new one. A stream without wants goes, if there are many.
  std::pair<Stream&, bool> use(const RecordKey& stream);
  [[nodiscard]] std::uint64_t next_edition() { return ++clock_; }

  // A want has ended, or was given up.
  void leave(const RecordKey& key, std::uint64_t id);
  // Forgets rounds that nobody will want again.
  void trim(Stream& s);
  // Forgets streams that nobody comes back to. Bytes that were fetched ahead for a program that has gone another way do
  // not stop the stream that is in use.
  void drop_forgotten(const Stream& current);

 private:
  using Place = std::map<RecordKey, Stream>::iterator;
  void make_room();
  void erase(Place s);

  FetchWindow& window_;
  std::map<RecordKey, Stream> streams_;
  std::uint64_t clock_ = 0;
};

}  // namespace warren::worker::replay
