#include "recovery/wire/plan_changes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/wire/codec.h"

namespace warren {

namespace {
bool same_orders(const wire::Plan& before, const wire::Plan& after) {
  return std::ranges::equal(before.orders(), after.orders(), [](const wire::RingOrder& a, const wire::RingOrder& b) {
    return a.from_version() == b.from_version() && std::ranges::equal(a.ranks(), b.ranks());
  });
}
}  // namespace

wire::Plan changes_between(const wire::Plan& before, const wire::Plan& after) {
  if (before.members_size() != after.members_size()) return {};
  // That there is none any more cannot be said.
  if (after.orders().empty() && !before.orders().empty()) return {};
  // All but the members is small, or must be said.
  wire::Plan changes;
  changes.set_base_generation(before.generation());
  for (int i = 0; i < after.members_size(); ++i) {
    wire::Member same = before.members(i);
    same.set_fresh(false);
    if (same.SerializeAsString() != after.members(i).SerializeAsString()) *changes.add_members() = after.members(i);
  }
  if (changes.members_size() == after.members_size()) return {};
  changes.set_generation(after.generation());
  changes.set_timeline(after.timeline());
  *changes.mutable_settings() = after.settings();
  if (!same_orders(before, after)) *changes.mutable_orders() = after.orders();
  *changes.mutable_frontier() = after.frontier();
  changes.set_committed(after.committed());
  changes.set_committed_version(after.committed_version());
  changes.set_committed_timeline(after.committed_timeline());
  changes.set_run(after.run());
  *changes.mutable_kept() = after.kept();
  *changes.mutable_setups() = after.setups();
  *changes.mutable_absences() = after.absences();
  *changes.mutable_detours() = after.detours();
  *changes.mutable_servers() = after.servers();
  return changes;
}

Result<wire::Plan> with_changes(const wire::Plan& before, const wire::Plan& changes) {
  if (before.generation() != changes.base_generation() || changes.base_generation() == 0) {
    return Status(Code::kRefused, "the changes are to the plan of generation " +
                                      std::to_string(changes.base_generation()) + ", not to that of generation " +
                                      std::to_string(before.generation()));
  }
  wire::Plan after = changes;
  after.clear_base_generation();
  *after.mutable_members() = before.members();
  for (wire::Member& m : *after.mutable_members()) m.set_fresh(false);
  for (const wire::Member& m : changes.members()) {
    if (m.rank() < static_cast<std::uint32_t>(after.members_size())) {
      *after.mutable_members(static_cast<int>(m.rank())) = m;
    }
  }
  if (changes.orders().empty()) *after.mutable_orders() = before.orders();
  if (Status s = validate(after); !s.ok()) return s.because_of_this(Code::kRefused, "a plan told by its changes");
  return after;
}

}  // namespace warren
