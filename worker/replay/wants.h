// Results that the replayer's owner wants, with the bytes of them that are still missing, and those that have ended.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "storage/host_log.h"
#include "worker/replay/replayer.h"

namespace warren::worker::replay {

// A want that waits asks more and more seldom, up to so many times.
inline constexpr std::uint32_t kMaxAsks = 20;

// One want, and how far it has been served.
class Wanted {
 public:
  Wanted(Replayer::Want want, TimeMs now);

  [[nodiscard]] const Replayer::Want& want() const { return want_; }
  [[nodiscard]] const RecordKey& key() const { return want_.key; }
  [[nodiscard]] std::uint64_t sequence() const { return want_.key.round.sequence.value; }
  [[nodiscard]] const std::optional<RecordInfo>& info() const { return info_; }
  [[nodiscard]] const Ranges& missing() const { return missing_; }
  [[nodiscard]] bool has_all() const { return info_ && missing_.empty(); }
  // The bytes that the owner asked for; a record is known.
  [[nodiscard]] Ranges asked_for() const;
  // The bytes that were asked for are here; those that are missing are parts of other ranks.
  [[nodiscard]] bool extended() const { return extended_; }

  // Compares with what a record in the log of `where` says. An error ends the want.
  [[nodiscard]] Status take_info(const RecordInfo& info, const std::string& where);
  // Bytes of the whole result from `begin` on, which are missing.
  void write(std::uint64_t begin, std::span<const std::byte> bytes);
  // Parts of other ranks are missing from now on.
  void extend(Ranges extra);

  // Another plan: its hosts are asked from now on.
  void restart(TimeMs now);
  // Listings up to this edition are older than the want.
  void ignore_listings_to(std::uint64_t edition) { stale_edition_ = edition; }
  [[nodiscard]] bool newer_than(std::uint64_t edition) const { return edition <= stale_edition_; }
  // How many listings have shown a gap.
  [[nodiscard]] std::uint32_t asks() const { return asks_; }
  // A listing shows a gap. Each counts once. `enough`: Hosts::enough_asks().
  void count_ask(std::uint64_t edition, std::uint32_t enough);
  void limit_asks(std::uint32_t most);

  // A local state that is to be copied.
  [[nodiscard]] bool is_copied() const { return want_.key.kind == RecordKind::kLocal && want_.wait; }
  // Until then a local state's own host is asked alone.
  [[nodiscard]] TimeMs one_host_until(std::int64_t timeout_ms) const;

  // Takes what was written out of a want that ends.
  [[nodiscard]] Replayer::Done end(Status status);
  [[nodiscard]] Ranges take_written();

 private:
  Replayer::Want want_;
  Ranges missing_;
  Ranges written_;
  bool sized_ = false;  // the length is known
  std::optional<RecordInfo> info_;
  std::vector<std::byte> bytes_;
  bool extended_ = false;
  Ranges extra_;                                                 // `missing_` is within it, if extended
  std::map<std::uint64_t, std::vector<std::byte>> extra_bytes_;  // by first byte: one for each interval of `extra_`
  std::uint32_t asks_ = 0;                                       // gaps that were seen
  std::uint64_t asked_edition_ = 0;                              // of the newest of them
  std::uint64_t stale_edition_ = 0;
  TimeMs since_;  // it is wanted of the newest plan's ranks
};

class Wants {
 public:
  // Returns its id.
  std::uint64_t add(Replayer::Want want, TimeMs now);
  [[nodiscard]] bool empty() const { return wants_.empty(); }
  [[nodiscard]] Wanted& at(std::uint64_t id) { return wants_.at(id); }
  [[nodiscard]] const Wanted& at(std::uint64_t id) const { return wants_.at(id); }
  [[nodiscard]] Wanted* find(std::uint64_t id);
  [[nodiscard]] const Wanted& oldest() const { return wants_.begin()->second; }
  // Another plan. Returns the ids of all wants.
  std::vector<std::uint64_t> restart(TimeMs now);

  void finish(std::uint64_t id, Generation generation, Status status, Ranges again);
  // The bytes that have been written of one that is given up; the owner of the streams takes it out of them.
  [[nodiscard]] Ranges remove(std::uint64_t id);

  [[nodiscard]] bool has_done() const { return !done_.empty(); }
  [[nodiscard]] std::vector<Replayer::Done> take_done();
  // Nobody gets the end of this one any more. The bytes that were written of it; nullopt: it has not ended.
  [[nodiscard]] std::optional<Ranges> drop_done(std::uint64_t id);

 private:
  std::map<std::uint64_t, Wanted> wants_;
  std::vector<Replayer::Done> done_;
  std::uint64_t last_ = 0;
};

}  // namespace warren::worker::replay
