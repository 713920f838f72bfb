// Of what a host holds, that which a plan calls done, and nothing else: what a life that has left its rank may serve.
// Rounds that were in flight then, and what its program began, are made again by others under the same names, maybe
// of other inputs.
//
// Threads: as the reader that it reads from.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"

namespace warren::worker {

// By which rank the replayer and the fetch service name the plan's server number `index`: beyond the world's.
[[nodiscard]] inline Rank server_rank(const wire::Plan& plan, int index) {
  return Rank(static_cast<std::int32_t>(plan.members_size() + index));
}

class DoneReader final : public HostLogReader {
 public:
  // `from` outlives this.
  DoneReader(HostLogReader& from, const wire::Plan& plan);

  [[nodiscard]] Result<std::optional<RecordInfo>> info(const RecordKey& key) override;
  [[nodiscard]] Ranges held(const RecordKey& key) override;
  [[nodiscard]] Ranges held_within(const RecordKey& key, std::uint64_t begin, std::uint64_t end) override;
  [[nodiscard]] Ranges held_by(const RecordKey& key, std::span<const Incarnation> live) override;
  [[nodiscard]] bool recorded_by(const RecordKey& key, std::span<const Incarnation> live) override;
  [[nodiscard]] bool read(const RecordKey& key, std::uint64_t begin, std::span<std::byte> out) override;
  [[nodiscard]] std::vector<RecordKey> list(RecordKind kind, Timeline timeline, GroupId group, Version version,
                                            Sequence first, Sequence end, std::size_t limit) override;
  [[nodiscard]] std::vector<RecordKey> newest_rounds() override;
  [[nodiscard]] std::vector<RecordKey> setup_rounds(std::size_t limit) override;

 private:
  [[nodiscard]] bool done(const RecordKey& key) const;

  HostLogReader& from_;
  // Rounds before `end` have the names of this timeline, but for those that others before it have.
  struct Named {
    std::uint64_t end;
    Timeline timeline;
  };
  std::map<std::pair<GroupId, Version>, std::vector<Named>> rounds_;
  std::set<RoundId> setups_;
  std::optional<std::pair<Timeline, Version>> committed_;
};

}  // namespace warren::worker
