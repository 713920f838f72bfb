// Whether a plan contradicts itself.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/field_checks.h"
#include "recovery/wire/peer_checks.h"
#include "recovery/wire/plan_checks.h"

namespace warren {

using namespace checks;

namespace {

Status validate_member(const wire::Member& m, const wire::JobSettings& settings) {
  if (is_vacant(m)) {
    if (!settings.elastic_start()) return bad("nobody has had the place, and the job begins with all");
    wire::Member nobody;
    nobody.set_rank(m.rank());
    nobody.set_absent(true);
    return m.SerializeAsString() == nobody.SerializeAsString()
               ? Status()
               : bad("nobody has had the place, and somebody is told of");
  }
  const std::uint32_t replicas = settings.replicas();
  if (m.incarnation() == 0) return bad("no incarnation");
  if (Status s = validate_identity(m.worker_id(), m.host_id(), m.domain_id()); !s.ok()) return s;
  if (Status s = validate_log_addresses(m.fetch_port(), m.segment_socket(), replicas); !s.ok()) return s;
  if (Status s = validate_traits(m.traits()); !s.ok()) return s;
  return validate_endpoints(m.endpoints());
}

// Rounds that keep older names.
Status validate_kept(const wire::Plan& p, const Most& most) {
  if (static_cast<std::size_t>(p.kept_size()) > limits::kMaxKept) {
    return bad(str(p.kept_size()) + " of them are over the limit of " + str(limits::kMaxKept));
  }
  const wire::Kept* last = nullptr;
  for (const wire::Kept& k : p.kept()) {
    const bool same = last != nullptr && last->group() == k.group() && last->version() == k.version();
    if (last != nullptr &&
        std::tuple(last->group(), last->version(), last->rounds()) >= std::tuple(k.group(), k.version(), k.rounds())) {
      return bad("not in rising order, or they stand twice");
    }
    if (k.rounds() == 0 || k.rounds() > most.count || k.version() > most.count) return bad("numbers out of range");
    if (k.timeline() >= p.timeline()) return bad("of timeline " + str(k.timeline()) + ", which is not over");
    if (same && last->timeline() >= k.timeline()) return bad("timelines do not rise");
    last = &k;
  }
  return {};
}

// Ranks without whose inputs rounds are computed; `absent`: those of the plan's own.
Status validate_absences(const wire::Plan& p, const std::vector<std::uint32_t>& absent) {
  std::int64_t last = -1;
  std::size_t all = 0;
  bool own = false;
  for (const wire::Absence& a : p.absences()) {
    if (a.timeline() <= last || a.timeline() > p.timeline()) {
      return bad("timeline " + str(a.timeline()) + " is not in rising order, or has not begun");
    }
    last = a.timeline();
    if (a.ranks().empty()) return bad("no rank in timeline " + str(a.timeline()));
    std::int64_t last_rank = -1;
    for (const std::uint32_t rank : a.ranks()) {
      if (rank <= last_rank || rank >= p.settings().world_size()) {
        return bad("ranks of timeline " + str(a.timeline()) + " are not in rising order, or not of this world");
      }
      last_rank = rank;
    }
    all += static_cast<std::size_t>(a.ranks_size());
    if (a.timeline() == p.timeline()) own = std::ranges::equal(a.ranks(), absent);
  }
  if (all > limits::kMaxAbsences) return bad(str(all) + " ranks are over the limit of " + str(limits::kMaxAbsences));
  if (!absent.empty() && !own) return bad("other ranks than the plan's in its own timeline");
  if (absent.empty() && last == static_cast<std::int64_t>(p.timeline())) return bad("ranks, and all are there");
  if (p.absences_size() != 0 && p.settings().min_workers() == 0) return bad("the job waits for all its ranks");
  return {};
}

// In which order rings visit ranks.
Status validate_orders(const wire::Plan& p) {
  if (static_cast<std::size_t>(p.orders_size()) > limits::kMaxRingOrders) {
    return bad(str(p.orders_size()) + " of them are over the limit of " + str(limits::kMaxRingOrders));
  }
  if (p.orders_size() != 0 && !p.settings().reorders()) return bad("the job has none");
  std::uint64_t last = 0;
  for (const wire::RingOrder& o : p.orders()) {
    if (Status s = in_range("version", o.from_version(), last + 1, kMaxVersion); !s.ok()) return s;
    last = o.from_version();
    const std::string what = "from version " + str(last) + " on";
    std::vector<bool> seen(static_cast<std::size_t>(p.members_size()), false);
    if (static_cast<std::size_t>(o.ranks_size()) != seen.size()) {
      return bad(what + ": " + str(o.ranks_size()) + " ranks of " + str(seen.size()));
    }
    for (const std::uint32_t rank : o.ranks()) {
      if (rank >= seen.size()) return bad(what + ": rank " + str(rank) + " of " + str(seen.size()));
      if (seen[rank]) return bad(what + ": rank " + str(rank) + " twice");
      seen[rank] = true;
    }
  }
  return {};
}

// Links whose bytes go by way of others, given that the plan's members are right.
Status validate_detours(const wire::Plan& p) {
  if (static_cast<std::size_t>(p.detours_size()) > limits::kMaxDetours) {
    return bad(str(p.detours_size()) + " of them are over the limit of " + str(limits::kMaxDetours));
  }
  if (p.detours_size() != 0 && !p.settings().rewire()) return bad("the job has none");
  const auto n = static_cast<std::uint32_t>(p.members_size());
  const wire::Detour* last = nullptr;
  for (const wire::Detour& d : p.detours()) {
    const std::string what = "between ranks " + str(d.a()) + " and " + str(d.b());
    if (d.a() >= d.b() || d.b() >= n) return bad(what + " of " + str(n));
    if (last != nullptr && std::pair(last->a(), last->b()) >= std::pair(d.a(), d.b())) {
      return bad(what + ": not in rising order");
    }
    last = &d;
    if (d.relays().empty() || static_cast<std::size_t>(d.relays_size()) > limits::kMaxRelays) {
      return bad(what + ": " + str(d.relays_size()) + " relays");
    }
    const auto host = [&](std::uint32_t rank) -> const std::string& {
      return p.members(static_cast<int>(rank)).host_id();
    };
    if (host(d.a()) == host(d.b())) return bad(what + ", which are on one host");
    std::int64_t last_relay = -1;
    for (const std::uint32_t relay : d.relays()) {
      if (relay <= last_relay || relay >= n)
        return bad(what + ": relays are not in rising order, or not of this world");
      last_relay = relay;
      if (host(relay) == host(d.a()) || host(relay) == host(d.b())) {
        return bad(what + ": relay " + str(relay) + " is on a host of theirs");
      }
    }
    for (const std::uint32_t rank : {d.a(), d.b()}) {
      if (p.members(static_cast<int>(rank)).absent()) return bad(what + ": rank " + str(rank) + " is absent");
    }
    for (const std::uint32_t rank : d.relays()) {
      if (p.members(static_cast<int>(rank)).absent()) return bad(what + ": relay " + str(rank) + " is absent");
    }
  }
  return {};
}

// Lives that have left, and serve.
Status validate_servers(const wire::Plan& p) {
  if (p.servers().empty()) return {};
  if (static_cast<std::uint32_t>(p.servers_size()) >= p.settings().replicas()) {
    return bad(str(p.servers_size()) + " of them, with " + str(p.settings().replicas()) + " copies of what is logged");
  }
  if (p.settings().min_workers() != 0) return bad("the job goes on without lost ranks");
  std::uint64_t last = 0;
  for (const wire::Member& m : p.servers()) {
    if (Status s = validate_member(m, p.settings()); !s.ok()) return s;
    if (m.incarnation() <= last) return bad("not in rising order");
    last = m.incarnation();
    if (m.absent() || m.fresh()) return bad("one of them is a member");
    if (m.since() == 0 || m.since() > p.generation()) return bad("named since generation " + str(m.since()));
    const bool member = std::ranges::any_of(
        p.members(), [&](const wire::Member& other) { return other.incarnation() == m.incarnation(); });
    if (member) return bad("one of them has a rank");
  }
  return {};
}

// Of one that says everything.
Status validate_members(const wire::Plan& p) {
  if (static_cast<std::uint32_t>(p.members_size()) != p.settings().world_size()) {
    return bad(str(p.members_size()) + " members in a world of " + str(p.settings().world_size()));
  }
  std::set<std::string_view> ids;
  std::set<std::uint64_t> incarnations;
  std::map<std::string_view, std::vector<bool>> hosts;  // local ranks seen
  std::vector<std::uint32_t> absent;
  for (const wire::Member& m : p.members()) {
    if (!is_vacant(m)) hosts[m.host_id()].push_back(false);
  }
  for (int i = 0; i < p.members_size(); ++i) {
    const wire::Member& m = p.members(i);
    const std::string who = "member " + str(i);
    if (m.rank() != static_cast<std::uint32_t>(i)) return bad(who + " has rank " + str(m.rank()));
    if (Status s = validate_member(m, p.settings()); !s.ok()) return s.because_of_this(who);
    if (is_vacant(m)) {
      absent.push_back(m.rank());
      continue;
    }
    if (m.since() > p.generation() || m.fresh() != (m.since() == p.generation())) {
      return bad(who + " is " + (m.fresh() ? "" : "not ") + "fresh in generation " + str(p.generation()) +
                 ", and in plans since generation " + str(m.since()));
    }
    if (!ids.insert(m.worker_id()).second) return bad("worker id " + m.worker_id() + " stands twice");
    if (!incarnations.insert(m.incarnation()).second) return bad(who + "'s incarnation stands twice");
    std::vector<bool>& local = hosts[m.host_id()];
    if (m.local_size() != local.size()) {
      return bad(who + " has local size " + str(m.local_size()) + ", its host has " + str(local.size()) + " ranks");
    }
    if (m.local_rank() >= local.size() || local[m.local_rank()]) {
      return bad(who + "'s local rank " + str(m.local_rank()) + " is taken or over its host's size");
    }
    local[m.local_rank()] = true;
    if (m.absent() && m.fresh()) return bad(who + " is absent, and fresh");
    if (m.absent()) absent.push_back(m.rank());
  }
  const std::size_t present = static_cast<std::size_t>(p.members_size()) - absent.size();
  if (!absent.empty() && (p.settings().min_workers() == 0 || present < p.settings().min_workers())) {
    return bad(str(present) + " members are there, the least is " +
               str(p.settings().min_workers() == 0 ? p.settings().world_size() : p.settings().min_workers()));
  }
  if (Status s = validate_absences(p, absent); !s.ok()) return s.because_of_this("absences");
  if (Status s = validate_detours(p); !s.ok()) return s.because_of_this("detours");
  if (Status s = validate_orders(p); !s.ok()) return s.because_of_this("ring orders");
  return {};
}
// Of one that is told by changes: what is wrong with these alone.
Status validate_changed_members(const wire::Plan& p) {
  if (p.base_generation() >= p.generation())
    return bad("changes to the plan of generation " + str(p.base_generation()));
  std::int64_t last = -1;
  for (const wire::Member& m : p.members()) {
    const std::string who = "member " + str(m.rank());
    if (m.rank() <= last) return bad(who + " is not in rising order of ranks");
    if (m.rank() >= p.settings().world_size()) return bad(who + " in a world of " + str(p.settings().world_size()));
    if (Status s = validate_member(m, p.settings()); !s.ok()) return s.because_of_this(who);
    last = m.rank();
  }
  return {};
}

Status check_told(const wire::Plan& p, const Most& most) {
  if (Status s = member_generation(p.generation()); !s.ok()) return s;
  if (!p.has_settings()) return bad("no settings");
  if (Status s = validate(p.settings()); !s.ok()) return s;
  if (p.has_packed()) return bad("packed members, and it is not on its way to a worker");
  if (Status s = p.base_generation() == 0 ? validate_members(p) : validate_changed_members(p); !s.ok()) return s;
  if (Status s = validate_timeline(p.timeline(), most); !s.ok()) return s;
  if (Status s = validate_committed(p.committed(), p.committed_version(), p.committed_timeline(), most); !s.ok()) {
    return s;
  }
  if (p.committed_timeline() > p.timeline()) return bad("a version was committed in a later timeline");
  if (Status s = validate_positions(p.frontier(), limits::kMaxRangesPerFrontier, most); !s.ok()) {
    return s.because_of_this("frontier");
  }
  if (Status s = validate_setups(p.setups(), limits::kMaxSetupsPerJob, limits::kMaxSetupRangesPerPlan); !s.ok())
    return s;
  for (const wire::Setup& s : p.setups()) {
    if (s.timeline() > p.timeline()) return bad("set-up round " + hex(s.name()) + " was begun in a later timeline");
  }
  if (p.settings().replicas() == 0 && (p.committed() || p.frontier_size() != 0 || p.setups_size() != 0)) {
    return bad("nothing is logged, and there is a frontier or a committed version");
  }
  if (p.run() == 0) return bad("it is of no run");
  if (Status s = validate_kept(p, most); !s.ok()) return s.because_of_this("rounds that were kept");
  if (Status s = validate_servers(p); !s.ok()) return s.because_of_this("servers");
  return {};
}

}  // namespace

namespace checks {

Status check_plan(const wire::Plan& p, const Most& most) {
  return p.base_generation() == 0 ? check_told(p, most)
                                  : bad("only its changes since generation " + str(p.base_generation()));
}

}  // namespace checks

Status validate_told(const wire::Plan& p) {
  return check_told(p, kOfDecisions);
}

Status validate(const wire::Plan& p) {
  return check_plan(p, kOfDecisions);
}

}  // namespace warren
