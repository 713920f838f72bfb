// What a life's store has written of the states of checkpoints, so that what has not changed since is not written
// again: a later version refers to where it lies. Inside storage/ and its tests.
//
// Bytes are taken for equal if they are as many, at the same place of the same state, and have the same XXH3 of 128
// bits. What an older version has written is kept as a whole as long as a version that is not obsolete refers to any
// of it. So that little is kept in vain, and nothing relies on what was written long ago, a version that is complete
// does not go on to refer to what has less than half of its bytes in use, to what belongs to more than kMostOrigins
// older versions, nor to what was written more than kMostCommits commits ago: that is worn(), is written once more
// before the version counts, and goes with the version that is obsolete then.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "storage/result_format.h"
#include "storage/result_store.h"
#include "storage/xxh3.h"

namespace warren::storage {

class UnchangedStates {
 public:
  // A reference is no use for less: another version's data would be kept for it.
  static constexpr std::size_t kLeastBytes = std::size_t{64} << 10;
  static constexpr std::size_t kMostOrigins = 8;
  static constexpr std::uint64_t kMostCommits = 64;

  using Place = StatePiece;
  // nullopt: nothing that is kept track of.
  [[nodiscard]] static std::optional<Place> place_of(const RecordKey& key, std::uint64_t first_byte,
                                                     std::uint32_t payload_bytes);

  // The bin whose data have these bytes, if they need not be written again.
  [[nodiscard]] std::optional<Bin> find(const Place& place, const Hash128& hash) const;
  // Version `of` may have this piece from now on, in the data of `lies_in`: its own, or what find() has said. Before it
  // is written: what a failed write has left refers to it, too.
  void refer(const Bin& of, const Place& place, const Bin& lies_in);
  // It is durable.
  void wrote(const Bin& of, const Place& place, const Hash128& hash, const Bin& lies_in);
  // Version `of` has written so much, durably, that is not kept track of.
  void wrote_apart(const Bin& of, std::uint64_t bytes) { data_[of].bytes += bytes; }
  // What this version, all of which is durable, had better not refer to: it is not found any more, and what is returned
  // is to be written again.
  [[nodiscard]] std::vector<Place> worn(const Bin& of);
  // The entries of these versions go, and with them what nobody else refers to. If any go, that was a commit.
  void drop(const std::function<bool(const Bin&)>& obsolete);
  // Whether a version that has not gone refers to what this one has written.
  [[nodiscard]] bool referred_to(const Bin& bin) const;
  // How much this one has written, as long as that is kept.
  [[nodiscard]] std::uint64_t bytes_in(const Bin& bin) const;
  [[nodiscard]] bool empty() const { return refers_.empty() && data_.empty(); }

 private:
  struct Known {
    Hash128 hash;
    Bin lies_in;
  };
  struct Data {
    std::set<Place> places;
    std::uint64_t bytes = 0, commits = 0;
  };

  std::map<Place, Known> newest_;
  std::map<Bin, Data> data_;  // what each one has written
  // Of each version: where its pieces lie. In more than one place: a write that has failed may have moved it.
  std::map<Bin, std::map<Place, std::vector<Bin>>> refers_;
  std::set<Bin> worn_;  // not to be referred to again
};

}  // namespace warren::storage
