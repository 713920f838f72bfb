#include "chaos/sim/older_journal.h"

#include <algorithm>
#include <utility>

namespace warren::chaos {

void OlderJournal::restored(Generation newest) {
  newest_ = newest;
  message_faults_ = world_.message_faults();
  lacks_commit_ = true;
}

std::optional<OlderJournal::Left> OlderJournal::stored(const wire::JobRecord& record, const std::vector<Life>& lives) {
  const Generation generation(record.plan().generation());
  // Otherwise it was there before, or is learned.
  const bool made = plans_.insert(record.plan().SerializeAsString()).second;
  if (made) {
    wire::Plan on_disks = record.plan();
    on_disks.clear_frontier();
    plans_.insert(on_disks.SerializeAsString());
    on_disks.clear_setups();  // where a life had more to note of them
    plans_.insert(on_disks.SerializeAsString());
  }
  const wire::Plan before = std::exchange(plan_, record.plan());
  if (!newest_) return std::nullopt;

  Left left;
  left.plan = made ? before : plan_;
  left.heard = Generation(left.plan.generation());
  left.missed = made && left.heard < *newest_;
  const bool in_time = message_faults_ == world_.message_faults();
  for (const Life& life : lives) {
    // Of one that has not come to it, or is answered late, the tracker knows nothing when it makes a plan.
    const bool counts = !made || (life.says_so && in_time);
    left.heard = std::max(left.heard, counts ? life.plan : std::min(life.plan, Generation(generation.value - 1)));
  }
  // Once it has made one it learns of no other.
  if (made || generation >= *newest_) newest_.reset();
  return left;
}

bool OlderJournal::forgets(std::optional<Version> committed, const wire::JobRecord& record, const wire::Plan& newest,
                           const std::vector<Life>& lives) {
  if (!lacks_commit_) return false;
  const bool behind = committed && (!record.committed() || Version(record.committed_version()) < *committed);
  const auto says = [&](const Life& life) {
    const auto is = [&](const wire::Member& m) { return m.incarnation() == life.who.value; };
    return life.commit >= *committed &&
           (std::ranges::any_of(record.plan().members(), is) || std::ranges::any_of(newest.members(), is));
  };
  lacks_commit_ = behind && std::ranges::any_of(lives, says);
  return behind && !lacks_commit_;
}

void OlderJournal::forget() {
  plans_.clear();
  plan_.Clear();
  newest_.reset();
  lacks_commit_ = false;
}

}  // namespace warren::chaos
