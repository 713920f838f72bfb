#include "worker/session/memberships.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/life/plans.h"

namespace warren::worker {

Connector::Membership links_of(const wire::Plan& plan, Incarnation self) {
  Connector::Membership m;
  m.generation = Generation(plan.generation());
  m.timeout_ms = static_cast<std::int64_t>(plan.settings().round_timeout_ms());
  for (const wire::Member& member : plan.members()) {
    Connector::Peer peer;
    peer.incarnation = Incarnation(member.incarnation());
    for (const wire::Endpoint& p : member.endpoints()) {
      peer.addresses.push_back({p.address(), static_cast<std::uint16_t>(p.port())});
    }
    if (peer.incarnation == self) m.self = Rank(static_cast<std::int32_t>(member.rank()));
    m.peers.push_back(std::move(peer));
  }
  std::vector<Way> ways = ways_of(plan, m.self);
  for (std::size_t r = 0; r < m.peers.size(); r++) {
    m.peers[r].same_host = ways[r].within_host;
    m.peers[r].streams = ways[r].streams;
    m.peers[r].relays = std::move(ways[r].relays);
  }
  for (const wire::Detour& d : plan.detours()) {
    const auto at = std::ranges::find(d.relays(), static_cast<std::uint32_t>(m.self.value));
    if (at == d.relays().end()) continue;
    m.relayed.push_back({Rank(static_cast<std::int32_t>(d.a())), Rank(static_cast<std::int32_t>(d.b())),
                         static_cast<std::uint16_t>(at - d.relays().begin()),
                         static_cast<std::uint16_t>(d.relays_size())});
  }
  return m;
}

SegmentExchange::Membership mates_of(const wire::Plan& plan, Incarnation self) {
  SegmentExchange::Membership mates;
  mates.generation = Generation(plan.generation());
  mates.timeout_ms = static_cast<std::int64_t>(plan.settings().round_timeout_ms());
  std::string host;
  for (const wire::Member& member : plan.members()) {
    if (Incarnation(member.incarnation()) != self) continue;
    mates.self = Rank(static_cast<std::int32_t>(member.rank()));
    host = member.host_id();
  }
  for (const wire::Member& member : plan.members()) {
    const Rank rank(static_cast<std::int32_t>(member.rank()));
    if (member.host_id() == host && rank != mates.self && !member.absent()) {
      mates.mates.push_back({rank, Incarnation(member.incarnation()), member.segment_socket()});
    }
  }
  return mates;
}

}  // namespace warren::worker
