// The mirror of checkpoints (worker/disk/mirror.h) as a directory in memory that no fault takes away, with its rules:
// each rank writes its share behind a commit, rank 0 the note before; a version is there once all have; the newest two
// are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"
#include "storage/result_store.h"

namespace warren::chaos {

class SimMirror {
 public:
  explicit SimMirror(std::uint32_t world_size) : world_size_(world_size) {}

  // A rank's share, as `log` holds it; nothing if it does not any more.
  void write(const storage::ResultStore::Note& note, Timeline timeline, Version version, Rank rank, HostLogReader& log);
  void finish() { finished_ = true; }

  struct State {
    std::vector<std::byte> global;
    std::map<std::uint32_t, std::vector<std::byte>> locals;
    bool has_local = false;
    std::set<std::uint32_t> ranks;  // that have written their share
  };
  // What a life whose disk is empty says of it in its join.
  [[nodiscard]] std::optional<wire::Held> held() const;
  // Null: it is not there as a whole.
  [[nodiscard]] const State* find(Timeline timeline, Version version) const;

 private:
  [[nodiscard]] bool complete(const State& state) const { return state.ranks.size() == world_size_; }

  const std::uint32_t world_size_;
  std::map<std::pair<Version, Timeline>, State> states_;
  storage::ResultStore::Note note_{};  // run 0: there is none
  bool finished_ = false;
};

}  // namespace warren::chaos
