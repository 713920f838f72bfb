#include "recovery/tracker/leavers.h"

#include <algorithm>
#include <utility>

#include "recovery/base/check.h"

namespace warren {

const Leavers::Server& Leavers::serve(const wire::Member& member, const wire::Leave& said, TimeMs now) {
  Server& s = servers_[Incarnation(member.incarnation())];
  s.member = member;
  s.member.clear_fresh();
  s.member.clear_since();
  s.member.clear_waits();
  s.member.clear_traits();
  s.member.clear_local_rank();
  s.member.clear_local_size();
  s.logged = said.logged();
  s.setups = said.setups();
  s.newest = kPreamble;
  for (const wire::Position& p : said.logged().positions()) s.newest = std::max(s.newest, Version(p.version()));
  s.heard = now;
  s.until = now + static_cast<std::int64_t>(said.serves_ms());
  return s;
}

void Leavers::restore(const wire::Member& member, Version newest, TimeMs now, TimeMs until) {
  servers_[Incarnation(member.incarnation())] = {member, {}, {}, newest, now, until, false};
}

bool Leavers::hear(Incarnation server, const wire::Leave& said, TimeMs now) {
  Server& s = servers_.at(server);
  s.heard = now;
  s.until = now + static_cast<std::int64_t>(said.serves_ms());
  const bool was_aware = s.aware;
  s.aware = s.aware || (s.member.since() != 0 && said.generation() >= s.member.since());
  return s.aware && !was_aware;
}

wire::Member Leavers::remove(Incarnation server) {
  const auto found = servers_.find(server);
  WARREN_CHECK(found != servers_.end(), "only a server can cease to serve");
  wire::Member member = std::move(found->second.member);
  servers_.erase(found);
  return member;
}

void Leavers::excuse(TimeMs at) {
  for (auto& [life, server] : servers_) server.heard = std::max(server.heard, at);
}

void Leavers::prolong(TimeMs until) {
  for (auto& [life, server] : servers_) server.until = std::max(server.until, until);
}

void Leavers::name_in(Generation plan) {
  for (auto& [life, server] : servers_) {
    if (server.member.since() == 0) server.member.set_since(plan.value);
  }
}

std::vector<Incarnation> Leavers::unaware() const {
  std::vector<Incarnation> lives;
  for (const auto& [life, server] : servers_) {
    if (server.unaware()) lives.push_back(life);
  }
  return lives;
}

void Leavers::say_farewell(const wire::Leave& said, const std::string& host_id) {
  farewell_bytes_ += said.ByteSizeLong();
  farewells_.push_back({said, host_id});
}

void Leavers::forget_farewells() {
  farewells_.clear();
  farewell_bytes_ = 0;
}

void Leavers::forget_what_they_said() {
  for (auto& [life, server] : servers_) {
    server.logged.Clear();
    server.setups.Clear();
    server.newest = kPreamble;
  }
  forget_farewells();
}

void Leavers::check() const {
  for (const auto& [life, server] : servers_) {
    WARREN_CHECK(Incarnation(server.member.incarnation()) == life, "indexes agree");
  }
  std::size_t bytes = 0;
  for (const Farewell& f : farewells_) bytes += f.said.ByteSizeLong();
  WARREN_CHECK(bytes == farewell_bytes_, "what is kept of farewells is counted");
}

}  // namespace warren
