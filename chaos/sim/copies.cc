#include "chaos/sim/copies.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "recovery/base/limits.h"

namespace warren::chaos {

void Copies::plan_changed() {
  least_copies_ = std::min(least_copies_, least_copies());
  leave_hosts();
}

// The members of the newest plan, by rank, but for those without which the job goes on, if all run in it and have what
// it says that the job has done; otherwise none.
std::vector<SimWorker*> Copies::caught_up() const {
  const wire::Plan& plan = run_.judge.plan();
  std::vector<SimWorker*> members;
  for (const wire::Member& m : plan.members()) {
    if (m.absent()) continue;
    SimWorker* life = launchers_.find(Incarnation(m.incarnation()));
    if (life == nullptr || !life->runs() || life->generation().value != plan.generation() || life->behind()) return {};
    if (run_.judge.committed() && !life->has_loaded()) return {};
    members.push_back(life);
  }
  return members;
}

// In how many domains what these ranks log is to lie.
std::size_t Copies::copies(const std::vector<SimWorker*>& members, std::span<const Rank> ranks) const {
  std::set<std::string> domains;
  for (const SimWorker* member : members) {
    if (std::ranges::find(ranks, member->rank()) != ranks.end()) domains.insert(member->domain());
  }
  return std::min<std::size_t>(domains.size(), run_.judge.plan().settings().replicas());
}

// Whether each byte lies in so many domains.
bool Copies::lies(const std::vector<SimWorker*>& members, const RecordKey& key, std::size_t needed) {
  std::optional<RecordInfo> info;
  std::map<std::string, Ranges> by_domain;
  for (SimWorker* member : members) {
    const auto here = member->log()->info(key);
    if (!here.ok() || !here.value()) continue;
    info = here.value();
    by_domain[member->domain()].add(member->log()->held(key));
  }
  if (!info) return false;
  // Which domains hold a byte changes only where a range begins or ends.
  std::set<std::uint64_t> bytes{0};
  for (const auto& [domain, ranges] : by_domain) {
    for (const Interval& i : ranges.intervals()) bytes.insert({i.begin, i.end});
  }
  for (const std::uint64_t byte : bytes) {
    const auto holds = [byte](const auto& domain) { return domain.second.covers(byte, byte + 1); };
    if (byte >= info->total_bytes) break;
    if (static_cast<std::size_t>(std::ranges::count_if(by_domain, holds)) < needed) return false;
  }
  return by_domain.size() >= needed;
}

// A round that all its ranks have done, and that is not obsolete, of which something lies in fewer domains than it
// should.
std::optional<RoundId> Copies::short_of_copies(const std::vector<SimWorker*>& members) const {
  const wire::Plan& plan = run_.judge.plan();
  Version newest = kPreamble;
  for (SimWorker* member : members) newest = std::max(newest, member->engine().version());
  for (const ProgramGroup& group : run_.program.groups()) {
    for (Version v = kPreamble; v <= newest; v = v.next()) {
      if (v != kPreamble && run_.judge.committed() && v < *run_.judge.committed()) continue;
      std::uint64_t rounds = UINT64_MAX;
      for (const SimWorker* member : members) {
        if (std::ranges::find(group.members, member->rank()) == group.members.end()) continue;
        rounds = std::min(rounds, member->engine().rounds_done(group.id, v).value_or(0));
      }
      for (std::uint64_t s = 0; s < rounds; ++s) {
        const auto kept = std::ranges::find_if(plan.kept(), [&](const wire::Kept& k) {
          return k.group() == group.id.value && k.version() == v.value && s < k.rounds();
        });
        const Timeline timeline(kept == plan.kept().end() ? plan.timeline() : kept->timeline());
        const RoundId round{timeline, group.id, v, Sequence(s)};
        if (!lies(members, {RecordKind::kRound, round}, copies(members, group.members))) return round;
      }
    }
  }
  return std::nullopt;
}

// Whether everything that is logged and not obsolete lies in as many failure domains again as it should, on hosts that
// a rank of the plan answers for: then what was lost before does not count any more.
bool Copies::refilled() const {
  const wire::Plan& plan = run_.judge.plan();
  const std::vector<SimWorker*> members = caught_up();
  if (members.empty() || run_.judge.unprotected()) return false;
  if (!std::ranges::all_of(members, [](const SimWorker* member) { return member->disk_is_current(); })) return false;
  const std::vector<Rank>& all = run_.program.groups().front().members;
  if (run_.judge.committed()) {
    const RoundId round{run_.judge.committed_timeline(), kWorldGroup, *run_.judge.committed(), Sequence(0)};
    if (!lies(members, {RecordKind::kGlobal, round}, copies(members, all))) return false;
    const bool local = members.front()->log()->info({RecordKind::kGlobal, round}).value()->fingerprint.shape != 0;
    for (const Rank r : all) {
      RoundId of_rank = round;
      of_rank.sequence = Sequence(static_cast<std::uint64_t>(r.value));
      if (local && !lies(members, {RecordKind::kLocal, of_rank}, copies(members, all))) return false;
    }
  }
  if (short_of_copies(members)) return false;
  // Also those of earlier timelines.
  std::vector<wire::Setup> setups(plan.setups().begin(), plan.setups().end());
  for (SimWorker* member : members) std::ranges::copy(member->engine().setups_done(), std::back_inserter(setups));
  for (const wire::Setup& s : setups) {
    const auto group = std::ranges::find(run_.program.groups(), GroupId(s.group()), &ProgramGroup::id);
    const RoundId round{Timeline(s.timeline()), group->id, kPreamble, Sequence(s.name())};
    if (s.done() && !lies(members, result_key(round), copies(members, group->members))) return false;
  }
  return true;
}

// I4: ranks that have caught up have logged again what was lost, however often all were interrupted on the way. Not
// where a rank went to a host that has it already: another domain has none then. Nor where the job continues without
// lost ranks: the others do not log again what these held.
void Copies::check_refill() {
  const bool followed = followed_in_ && (!run_.judge.committed() || *run_.judge.committed() <= *followed_in_);
  if (run_.setting.shrinks() || !run_.setting.survivable || launchers_.crowded() || followed ||
      run_.judge.loss_excused() || run_.judge.unprotected() || checked_refill_ == run_.judge.plan().generation())
    return;
  const std::vector<SimWorker*> members = caught_up();
  // A rank that calls something else logs something else.
  if (members.empty() || std::ranges::any_of(members, &SimWorker::desynced)) return;
  checked_refill_ = run_.judge.plan().generation();
  if (const auto round = short_of_copies(members)) {
    run_.world.violated("I4", "all ranks have caught up in generation " + std::to_string(checked_refill_) +
                                  ", and of " + to_string(*round) + " there are too few copies");
  }
}

// A host that had ranks in the plan before and has none in this one: nobody answers for what it holds any more.
void Copies::leave_hosts() {
  std::map<std::string, std::string> hosts;
  std::set<std::string> domains;  // of the plan before
  for (const auto& [host, domain] : hosts_of_plan_) domains.insert(domain);
  for (const wire::Member& m : run_.judge.plan().members()) {
    if (m.absent()) continue;
    hosts[m.host_id()] = m.domain_id();
    // Of the ranks of a machine that is taken one may die early, log elsewhere what the machine has, and the others
    // follow.
    std::string& of_rank = domain_of_rank_[m.rank()];
    const bool moves = of_rank != m.domain_id() && domains.contains(m.domain_id());
    if (moves && taken_domains_.contains(of_rank)) {
      followed_in_ = kPreamble;
      for (const auto& life : launchers_.lives()) followed_in_ = std::max(*followed_in_, life->engine().version());
    }
    of_rank = m.domain_id();
  }
  for (const wire::Member& m : run_.judge.plan().servers()) {
    const SimWorker* life = launchers_.find(Incarnation(m.incarnation()));
    if (life != nullptr && life->alive()) hosts[m.host_id()] = m.domain_id();
  }
  for (const auto& [host, domain] : hosts_of_plan_) {
    if (hosts.contains(host)) continue;
    domain_lost(domain);
    // Memory that a later worker would find there is out of date.
    run_.judge.memory_lost(host);
  }
  hosts_of_plan_ = std::move(hosts);
}

// How many failure domains hold what is logged least often: a group that has fewer of them than replicas has one copy
// in each.
std::size_t Copies::least_copies() const {
  std::size_t least = run_.setting.job.replicas();
  for (const ProgramGroup& group : run_.program.groups()) {
    std::set<std::string> domains;
    for (const Rank r : group.members) {
      const wire::Plan& plan = run_.judge.plan();
      if (r.value < plan.members_size() && plan.members(r.value).absent()) continue;
      domains.insert(r.value < plan.members_size() ? plan.members(r.value).domain_id() : "");
    }
    least = std::min(least, domains.size());
  }
  return least;
}

bool Copies::may_lose(const std::string& domain) {
  if (tracker_faults_.journal_is_away()) return false;
  if (run_.judge.journal_lacks_something()) return false;
  if (!run_.setting.survivable) return true;
  if (run_.judge.plan().members().empty()) return false;
  if (refilled()) forget_losses();
  std::set<std::string> lost = lost_domains_;
  lost.insert(domain);
  return lost.size() < std::min(least_copies_, least_copies());
}

void Copies::domain_lost(const std::string& domain) {
  if (run_.judge.plan().members().empty()) return;
  lost_domains_.insert(domain);
  if (lost_domains_.size() >= std::min(least_copies_, least_copies())) run_.judge.excuse_loss();
}

// Nobody answers any more for what this host holds. That is a loss as far as others do not hold enough of it.
void Copies::no_copy_left(const std::string& host, const std::string& domain) {
  hosts_of_plan_.erase(host);
  run_.judge.memory_lost(host);
  if (refilled()) return forget_losses();
  if (run_.world.keeps_transcript()) run_.world.tell("host " + host + " counts as lost");
  domain_lost(domain);
}

void Copies::forget_losses() {
  lost_domains_.clear();
  least_copies_ = least_copies();
}

}  // namespace warren::chaos
