// The tracker's journal may be an older copy of itself, or made up again: what it lacks is known to those who were
// told, or to nobody any more, and then the job goes on as if it had never been (decision 0006).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "chaos/sim/world.h"
#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"

namespace warren::chaos {

class OlderJournal {
 public:
  explicit OlderJournal(const World& world) : world_(world) {}

  // What a life that runs was told, read or not.
  struct Life {
    Incarnation who;
    Generation plan;
    Version commit;
    bool says_so = false;  // it has read all plans, and the tracker, since it was started, has heard from it
  };
  // What is left of the plans that were made.
  struct Left {
    Generation heard;     // of later ones nobody knows, or nobody has told the tracker in time
    wire::Plan plan;      // the newest that the tracker knows, but for the one that it makes
    bool missed = false;  // it makes one without having heard of the newest that there was
  };

  // An older copy is in the journal's place, which had this plan.
  void restored(Generation newest);
  // It was lost, and is made up from what members have told.
  void rebuilt() { lacks_commit_ = true; }
  // A record is in the journal: each that ever is, and again when a tracker starts. Nothing: it lacks no plan.
  [[nodiscard]] std::optional<Left> stored(const wire::JobRecord& record, const std::vector<Life>& lives);
  // Likewise; `committed`: the newest that anybody was told of, `newest`: the newest plan. Whether it has gone with the
  // members of that plan and of the record's.
  [[nodiscard]] bool forgets(std::optional<Version> committed, const wire::JobRecord& record, const wire::Plan& newest,
                             const std::vector<Life>& lives);
  // Until the tracker has learned the newest plan, or goes on from one of its own.
  [[nodiscard]] bool lacks_plans() const { return newest_.has_value(); }
  // A member may know of a newer commit, and will say so: until then the others are told of the older one.
  [[nodiscard]] bool lacks_commit() const { return lacks_commit_; }
  // Another job has the name.
  void forget();

 private:
  const World& world_;
  std::set<std::string> plans_;       // that the journal has held, whole and as disks know them
  wire::Plan plan_;                   // that it held last
  std::optional<Generation> newest_;  // of the plans that it held before it was an older copy
  std::uint64_t message_faults_ = 0;  // until then
  bool lacks_commit_ = false;
};

}  // namespace warren::chaos
