#include "worker/disk/past.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "recovery/decide/frontier.h"
#include "recovery/decide/held.h"
#include "recovery/wire/codec.h"

namespace warren::worker {

std::optional<Past> past_on(storage::ResultStore& store) {
  std::map<std::uint64_t, std::vector<wire::Known>> runs;
  std::set<std::string> seen;  // members of a generation that died together have left the same
  for (const storage::ResultStore::Note& note : store.notes()) {
    if (!seen.insert(note.text).second) continue;
    wire::Known known;
    const bool valid = known.ParseFromString(note.text) && validate(known).ok() &&
                       (!known.has_plan() || known.plan().run() == note.run);
    if (valid) runs[note.run].push_back(std::move(known));
  }
  if (runs.empty()) return std::nullopt;
  const auto most = std::max_element(runs.begin(), runs.end(),
                                     [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  // A plan holds what was committed when it was made; what notes of older ones say beyond it was taken back, with the
  // fall back to a mirror.
  const auto order = [](const wire::Known& k) { return std::pair(k.plan_generation(), commit_order(k)); };
  wire::Known newest = *std::max_element(most->second.begin(), most->second.end(),
                                         [&](const auto& a, const auto& b) { return order(a) < order(b); });
  newest.clear_setups();
  std::vector<const google::protobuf::RepeatedPtrField<wire::Setup>*> setups;
  for (const wire::Known& known : most->second) {
    // Others were undone since, or stand in the newest plan.
    if (known.plan().timeline() == newest.plan().timeline()) setups.push_back(&known.setups());
  }
  if (auto merged = merge_setups(setups, {}, Timeline(newest.plan().timeline())); merged.ok()) {
    newest.mutable_setups()->Assign(merged.value().begin(), merged.value().end());
    // What is left out is called done by others, or begun again.
    const int over = newest.setups_size() - static_cast<int>(limits::kMaxSetups);
    if (over > 0) newest.mutable_setups()->DeleteSubrange(newest.setups_size() - over, over);
  }
  store.belong(most->first);
  const HeldReport report = store.report(false);
  const Version committed(newest.committed_version());
  Past past;
  past.held = to_wire(report, committed);
  past.held.set_run(most->first);
  past.serves = newest.committed() &&
                (std::ranges::any_of(report.states, [&](const HeldState& s) { return s.version >= committed; }) ||
                 std::ranges::any_of(report.rounds, [&](const HeldRounds& r) {
                   return r.version >= committed && r.version != kPreamble;
                 }));
  *past.held.mutable_known() = std::move(newest);
  return past;
}

std::optional<wire::Held> with_mirror(std::optional<Past> past, std::optional<wire::Held> mirrored) {
  if (!past) return mirrored;
  wire::Held& held = past->held;
  if (past->serves || !held.known().committed() || !mirrored || mirrored->run() != held.run()) return std::move(held);
  wire::Known& known = *mirrored->mutable_known();
  if (held.known().plan_generation() <= known.plan_generation()) return mirrored;
  const std::uint64_t version = known.committed_version();
  const std::uint32_t timeline = known.committed_timeline();
  known = std::move(*held.mutable_known());
  known.set_committed_version(version);
  known.set_committed_timeline(timeline);
  return mirrored;
}

Status leave_out_stale(storage::ResultStore& store, const std::string& host_id, Generation called) {
  return store.leave_out([&](Incarnation life, const storage::ResultStore::Note& note) {
    wire::Known known;
    if (!known.ParseFromString(note.text) || !validate(known).ok()) return true;
    if (known.plan_generation() >= called.value) return false;
    const auto& members = known.plan().members();
    // A plan that was too long is not in the note.
    return members.empty() || std::ranges::any_of(members, [&](const wire::Member& m) {
             return m.incarnation() == life.value && m.host_id() == host_id;
           });
  });
}

bool leaves_host(const wire::Plan& before, const wire::Plan& now, Rank self) {
  if (before.members().empty()) return true;
  const std::string& host = now.members(self.value).host_id();
  const auto here = [&](const wire::Member& m) { return m.host_id() == host && !m.absent(); };
  return std::ranges::any_of(before.members(), [&](const wire::Member& m) {
    return here(m) && std::ranges::none_of(now.members(), [&](const wire::Member& n) {
             return here(n) && n.incarnation() == m.incarnation();
           });
  });
}

std::vector<Incarnation> lives_of(const wire::Plan& plan) {
  std::vector<Incarnation> lives;
  for (const wire::Member& m : plan.members()) {
    if (!m.absent()) lives.emplace_back(m.incarnation());
  }
  return lives;
}

wire::Known known_of(const wire::Plan& plan) {
  wire::Known known;
  known.set_generation(plan.generation());
  known.set_plan_generation(plan.generation());
  *known.mutable_plan() = plan;
  known.set_committed(plan.committed());
  known.set_committed_version(plan.committed_version());
  known.set_committed_timeline(plan.committed_timeline());
  return known;
}

storage::ResultStore::Note note_of(const wire::Known& whole) {
  wire::Known known = whole;
  // Where nobody survives, the disks themselves say how far rounds have come.
  known.mutable_plan()->clear_frontier();
  if (known.plan().ByteSizeLong() <= limits::kMaxHeldPlanBytes) return {known.plan().run(), known.SerializeAsString()};
  wire::Known less = known;
  less.clear_plan();
  return {known.plan().run(), less.SerializeAsString()};
}

}  // namespace warren::worker
