// The logs of this host, as the replayer reads them: before it asks other hosts, and to tell what they lack.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "recovery/base/ranges.h"
#include "recovery/base/result.h"
#include "storage/host_log.h"
#include "worker/replay/hosts.h"
#include "worker/replay/wants.h"

namespace warren::worker::replay {

class OwnLog {
 public:
  explicit OwnLog(HostLogReader& reader) : reader_(reader) {}

  [[nodiscard]] Result<std::optional<RecordInfo>> info(const RecordKey& key) const { return reader_.info(key); }
  [[nodiscard]] Ranges held(const RecordKey& key) const { return reader_.held(key); }
  // Copies what is missing of a want, whose record is known.
  void copy_to(Wanted& w);

  // Of the bytes that were asked for, those that too few domains hold.
  [[nodiscard]] Ranges log_again(const Wanted& w, std::span<const Holder> holders, const Hosts& hosts) const;
  // Of the other bytes of the result, those that too few domains hold, and some log.
  [[nodiscard]] Ranges refill(const Wanted& w, std::span<const Holder> holders, const Hosts& hosts) const;

 private:
  HostLogReader& reader_;
  std::vector<std::byte> bounce_;
};

}  // namespace warren::worker::replay
