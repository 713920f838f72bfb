#include "worker/replay/hosts.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include "recovery/base/check.h"
#include "worker/replay/record_text.h"

namespace warren::worker::replay {

Rank Host::after(Rank rank) const {
  const auto i = std::ranges::find(ranks, rank);
  return i == ranks.end() || std::next(i) == ranks.end() ? first() : *std::next(i);
}

void Hosts::install(const Replayer::Plan& plan) {
  hosts_.clear();
  host_of_.clear();
  lives_.clear();
  own_lives_.clear();
  const auto self =
      std::find_if(plan.peers.begin(), plan.peers.end(), [&](const Replayer::Peer& p) { return p.rank == plan.self; });
  WARREN_CHECK(self != plan.peers.end(), "a plan names its own rank");
  self_ = plan.self;
  own_life_ = self->life;
  own_domain_ = self->domain_id;
  add_ranks(plan, *self);
  add_servers(plan);
  sort_newest_here(plan, self->host_id);
}

void Hosts::add_ranks(const Replayer::Plan& plan, const Replayer::Peer& self) {
  std::set<std::string_view> domains;
  std::map<std::string_view, std::size_t> by_id;
  for (const bool fresh : {false, true}) {
    for (const Replayer::Peer& p : plan.peers) {
      if (p.fresh != fresh || p.server) continue;
      domains.insert(p.domain_id);
      lives_[p.rank] = p.life;
      if (p.host_id == self.host_id) own_lives_.push_back(p.life);
      if (p.rank == plan.self) continue;
      const auto [at, is_new] = by_id.emplace(p.host_id, hosts_.size());
      if (is_new) {
        hosts_.emplace_back();
        hosts_.back().id = p.host_id;
        hosts_.back().domain = p.domain_id;
        hosts_.back().own = p.host_id == self.host_id;
      }
      hosts_[at->second].ranks.push_back(p.rank);
      host_of_[p.rank] = at->second;
    }
  }
  need_domains_ = std::max<std::size_t>(1, std::min<std::size_t>(plan.replicas, domains.size()));
}

// A host may have ranks again beside the life that has left it, so that each such life is a host by itself.
void Hosts::add_servers(const Replayer::Plan& plan) {
  for (const Replayer::Peer& p : plan.peers) {
    if (!p.server || p.rank == plan.self) continue;
    lives_[p.rank] = p.life;
    host_of_[p.rank] = hosts_.size();
    Host& host = hosts_.emplace_back();
    host.id = p.host_id;
    host.domain = p.domain_id;
    host.server = true;
    host.ranks.push_back(p.rank);
  }
}

void Hosts::sort_newest_here(const Replayer::Plan& plan, std::string_view own_host) {
  std::vector<const Replayer::Peer*> here;
  for (const Replayer::Peer& p : plan.peers) {
    if (p.host_id == own_host && !p.server) here.push_back(&p);
  }
  std::ranges::stable_sort(here, std::greater(), &Replayer::Peer::since);
  newest_here_.clear();
  for (const Replayer::Peer* p : here) newest_here_.push_back(p->rank);
}

std::optional<std::size_t> Hosts::host_of(Rank rank) const {
  const auto at = host_of_.find(rank);
  if (at == host_of_.end()) return std::nullopt;
  return at->second;
}

void Hosts::hear(Rank rank) {
  if (const auto host = host_of(rank)) hosts_[*host].unheard.erase(rank);
}

std::optional<Rank> Hosts::silence(std::size_t host, Rank rank) {
  Host& h = hosts_[host];
  const auto at = std::find(h.ranks.begin(), h.ranks.end(), rank);
  if (at == h.ranks.end()) return std::nullopt;
  const Rank next = h.after(rank);
  h.ranks.erase(at);
  h.silent.push_back(rank);
  h.unheard.insert(rank);
  return next;
}

std::vector<Rank> Hosts::revive(std::size_t host) {
  Host& h = hosts_[host];
  h.ranks.insert(h.ranks.end(), h.silent.begin(), h.silent.end());
  return std::exchange(h.silent, {});
}

bool Hosts::all_answer() const {
  return std::none_of(hosts_.begin(), hosts_.end(), [](const Host& h) { return h.gone() && !h.own && !h.server; });
}

bool Hosts::all_ranks_answer() const {
  return std::none_of(hosts_.begin(), hosts_.end(), [](const Host& h) { return !h.unheard.empty() && !h.server; });
}

std::uint32_t Hosts::enough_asks() const {
  std::size_t most = kAsks;
  for (const Host& h : hosts_) most = std::max(most, h.ranks.size() + (h.own ? 1 : 0));
  return static_cast<std::uint32_t>(most);
}

Ranges Hosts::held_enough(const Ranges& wanted, std::span<const Holder> holders, const Ranges& living) const {
  std::map<std::string_view, Ranges> by_domain;
  for (const Holder& h : holders) {
    if (!hosts_[h.host].server) by_domain[hosts_[h.host].domain].add(h.held.intersect(wanted));
  }
  by_domain[own_domain_].add(living);
  // +1 where a domain's bytes begin, −1 where they end.
  std::map<std::uint64_t, std::int64_t> steps;
  for (const auto& [domain, held] : by_domain) {
    for (const Interval& i : held.intervals()) {
      ++steps[i.begin];
      --steps[i.end];
    }
  }
  Ranges enough;
  std::int64_t depth = 0;
  std::uint64_t from = 0;
  for (const auto& [at, step] : steps) {
    if (depth >= static_cast<std::int64_t>(need_domains_)) enough.add(from, at);
    depth += step;
    from = at;
  }
  return enough;
}

bool Hosts::refills(std::span<const Rank> members) const {
  if (need_domains_ == 1) return false;
  const auto newest =
      std::ranges::find_if(newest_here_, [&](Rank rank) { return std::ranges::find(members, rank) != members.end(); });
  return newest != newest_here_.end() && *newest == self_;
}

std::string Hosts::answerer(Rank rank) const {
  const auto at = host_of(rank);
  if (at && hosts_[*at].server) return "who has left host " + hosts_[*at].id;
  return "rank " + std::to_string(rank.value);
}

std::string Hosts::answerers(const std::set<std::int32_t>& all) const {
  std::set<std::int32_t> ranks;
  std::string text;
  for (const std::int32_t rank : all) {
    const auto at = host_of(Rank(rank));
    if (!at || !hosts_[*at].server) {
      ranks.insert(rank);
    } else {
      text += (text.empty() ? "" : ", ") + answerer(Rank(rank));
    }
  }
  if (ranks.empty()) return text;
  return ranks_text(ranks) + (text.empty() ? "" : ", ") + text;
}

}  // namespace warren::worker::replay
