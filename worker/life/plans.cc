#include "worker/life/plans.h"

#include <algorithm>
#include <map>
#include <string>

#include "recovery/base/check.h"
#include "worker/replay/done_reader.h"

namespace warren::worker {
namespace {

// By rank; equal texts get equal numbers.
template <class Name>
std::vector<std::uint32_t> numbered(const wire::Plan& plan, Name name) {
  std::map<std::string, std::uint32_t> numbers;
  std::vector<std::uint32_t> out;
  for (const wire::Member& m : plan.members()) {
    out.push_back(numbers.try_emplace(name(m), static_cast<std::uint32_t>(numbers.size())).first->second);
  }
  return out;
}

// By number of the host.
std::vector<schedule::Host> shared_by(const wire::Plan& plan, const std::vector<std::uint32_t>& hosts) {
  std::vector<schedule::Host> shared(hosts.empty() ? 0 : *std::ranges::max_element(hosts) + 1);
  // By host, then by the lowest core that a rank may run on: ranks that are bound to sets of cores have sets that are
  // equal or have nothing in common.
  std::vector<std::map<std::uint32_t, std::uint32_t>> sets(shared.size());
  std::vector<bool> known(shared.size(), true);
  for (schedule::Host& host : shared) host.gpus = true;
  for (const wire::Member& m : plan.members()) {
    if (m.absent()) continue;
    const std::uint32_t host = hosts[m.rank()];
    shared[host].maps = shared[host].maps && (!m.has_traits() || m.traits().maps());
    shared[host].gpus = shared[host].gpus && m.traits().gpu();
    if (m.traits().cores() == 0) known[host] = false;
    std::uint32_t& cores = sets[host][m.traits().first_core()];
    cores = std::max(cores, m.traits().cores());
  }
  for (std::size_t host = 0; host < shared.size(); ++host) {
    if (!known[host]) continue;
    for (const auto& [first, count] : sets[host]) shared[host].cores += count;
  }
  return shared;
}

}  // namespace

Engine::Plan engine_plan(const wire::Plan& plan, Rank self) {
  Engine::Plan p;
  p.generation = Generation(plan.generation());
  p.run = plan.run();
  p.timeline = Timeline(plan.timeline());
  p.self = self;
  p.world_size = static_cast<std::uint32_t>(plan.members_size());
  p.chunk_bytes = plan.settings().chunk_bytes();
  p.check_call_sites = plan.settings().check_call_sites();
  p.replicas = plan.settings().replicas();
  const auto algorithm = schedule::parse_algorithm(plan.settings().algorithm());
  WARREN_CHECK(algorithm.ok(), "a plan that was validated names a known algorithm");
  p.algorithm = algorithm.value();
  p.hosts = numbered(plan, [](const wire::Member& m) -> const std::string& { return m.host_id(); });
  p.domains = numbered(plan, [](const wire::Member& m) -> const std::string& { return m.domain_id(); });
  p.shared = shared_by(plan, p.hosts);
  for (const wire::Position& at : plan.frontier()) {
    Engine::Frontier& f = p.frontier.emplace_back();
    f.group = GroupId(at.group());
    f.version = Version(at.version());
    f.rounds = at.rounds();
    f.closed = at.closed();
    for (const wire::ByteRange& r : at.final()) f.final.add(r.begin(), r.end());
  }
  for (const wire::Setup& known : plan.setups()) {
    Engine::Setup& s = p.setups.emplace_back();
    s.group = GroupId(known.group());
    s.name = Sequence(known.name());
    s.timeline = Timeline(known.timeline());
    s.done = known.done();
    for (const wire::ByteRange& r : known.final()) s.final.add(r.begin(), r.end());
  }
  for (const wire::Kept& k : plan.kept()) {
    p.kept.push_back({GroupId(k.group()), Version(k.version()), Timeline(k.timeline()), k.rounds()});
  }
  for (const wire::RingOrder& o : plan.orders()) {
    Engine::RingOrder& order = p.orders.emplace_back();
    order.from = Version(o.from_version());
    for (const std::uint32_t rank : o.ranks()) order.ranks.emplace_back(static_cast<std::int32_t>(rank));
  }
  p.shrinks = plan.settings().min_workers() != 0;
  for (const wire::Member& m : plan.members()) {
    if (!m.absent()) p.present.emplace_back(static_cast<std::int32_t>(m.rank()));
  }
  for (const wire::Absence& a : plan.absences()) {
    std::vector<Rank> ranks;
    for (const wire::Member& m : plan.members()) {
      if (std::ranges::find(a.ranks(), m.rank()) == a.ranks().end()) {
        ranks.emplace_back(static_cast<std::int32_t>(m.rank()));
      }
    }
    p.contributors[Timeline(a.timeline())] = std::make_shared<const std::vector<Rank>>(std::move(ranks));
  }
  p.resumes = p.replicas != 0 && std::any_of(plan.members().begin(), plan.members().end(),
                                             [](const wire::Member& m) { return !m.fresh() && !m.absent(); });
  return p;
}

Replayer::Plan replay_plan(const wire::Plan& plan, Rank self) {
  Replayer::Plan p;
  p.generation = Generation(plan.generation());
  p.self = self;
  p.replicas = plan.settings().replicas();
  p.timeout_ms = static_cast<std::int64_t>(plan.settings().round_timeout_ms());
  for (const wire::Member& m : plan.members()) {
    if (m.absent()) continue;
    p.peers.push_back({Rank(static_cast<std::int32_t>(m.rank())), Incarnation(m.incarnation()), m.host_id(),
                       m.domain_id(), m.fresh(), Generation(m.since())});
  }
  for (int i = 0; i < plan.servers_size(); ++i) {
    const wire::Member& m = plan.servers(i);
    Replayer::Peer& peer = p.peers.emplace_back();
    peer.rank = server_rank(plan, i);
    peer.life = Incarnation(m.incarnation());
    peer.host_id = m.host_id();
    peer.domain_id = m.domain_id();
    peer.server = true;
  }
  return p;
}

Replayer::Plan follow_plan(const wire::Plan& plan, Incarnation self) {
  Replayer::Plan p = replay_plan(plan, server_rank(plan, plan.servers_size()));
  p.follows = true;
  Replayer::Peer& peer = p.peers.emplace_back();
  peer.rank = p.self;
  peer.life = self;
  // Of no host: what ranks of its host have logged it has not mapped, and it asks them like others.
  peer.server = true;
  return p;
}

std::vector<Way> ways_of(const wire::Plan& plan, Rank self) {
  std::vector<Way> ways;
  const std::string& host = plan.members(self.value).host_id();
  for (const wire::Member& m : plan.members()) {
    Way& way = ways.emplace_back();
    way.within_host = m.host_id() == host && !m.absent();
    if (!way.within_host) way.streams = plan.settings().streams();
  }
  for (const wire::Detour& d : plan.detours()) {
    const auto own = static_cast<std::uint32_t>(self.value);
    if (d.a() != own && d.b() != own) continue;
    Way& way = ways[d.a() == own ? d.b() : d.a()];
    way.streams = static_cast<std::uint32_t>(d.relays_size());
    for (const std::uint32_t relay : d.relays()) way.relays.emplace_back(static_cast<std::int32_t>(relay));
  }
  return ways;
}

}  // namespace warren::worker
