// Decides whether NCCL moves what GPUs exchange in a group's active call (docs/decisions/0024-nccl.md). Each rank says
// in a word whether it could, and all do, or none. The class asks this rank, makes the round in which ranks tell each
// other, and keeps what an exchange needs until it is decided.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/rounds/call.h"
#include "worker/rounds/gpu_exchange.h"
#include "worker/rounds/group_schedules.h"
#include "worker/rounds/round.h"

namespace warren::worker {

class ExchangeVote {
 public:
  // `exchange` null: nothing is exchanged.
  explicit ExchangeVote(GpuExchange* exchange) : exchange_(exchange) {}

  // Calls of this kind may be exchanged, as far as all ranks know alike.
  [[nodiscard]] bool serves(const Call& call, const GroupSchedules& schedules) const;
  // This rank could. It is asked once a call and generation, and takes then what it needs. `may`: nothing of the round
  // speaks against it.
  [[nodiscard]] bool could(const Call& call, GroupSchedules& schedules, bool may);
  // The round in which ranks tell each other. This object holds its buffers.
  [[nodiscard]] Round ask(const Call& call, const GroupSchedules& schedules, Generation generation, bool could);
  // The round of ask() is over, and ranks have agreed. The call gets its schedule, or its input goes where it would
  // have gone. True: all could. kCorrupt, with the rank that said it: a word is none, and nothing is agreed.
  [[nodiscard]] Result<bool> hear(Call& call, const std::vector<Rank>& members, Generation generation);
  [[nodiscard]] bool agreed() const { return agreed_; }
  // They do not, and the input comes from the GPU after all.
  [[nodiscard]] bool comes_home() const { return comes_home_; }

  // If this rank could; null: it could not.
  [[nodiscard]] const PreparedSchedule* schedule() const { return schedule_.get(); }
  // Memory of the GPU for the round that is exchanged.
  [[nodiscard]] std::shared_ptr<std::byte> take_scratch() { return std::move(scratch_); }

  // Another call, or another generation.
  void forget();
  // The group's members sit elsewhere, or are others.
  void place() { words_schedule_ = nullptr; }

 private:
  [[nodiscard]] bool take(const Call& call, GroupSchedules& schedules);

  GpuExchange* const exchange_;
  bool asked_ = false, agreed_ = false, comes_home_ = false;
  std::shared_ptr<const PreparedSchedule> schedule_;
  std::shared_ptr<std::byte> scratch_;
  std::shared_ptr<const PreparedSchedule> words_schedule_;  // all ranks tell each other
  std::vector<std::byte> words_;                            // by rank, and behind them this one's
};

}  // namespace warren::worker
