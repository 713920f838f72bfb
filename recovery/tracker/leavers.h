// Ranks that have left, and whose word still counts. Servers serve what their hosts have logged. Farewells are the last
// words of ranks that need not serve.
//
// The machine decides which rank may serve, for how long, and when its word is taken for the next plan.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/machine.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

class Leavers {
 public:
  // A life that has left its rank, and serves what its host has logged.
  struct Server {
    wire::Member member;  // as plans name it
    // Said when the life left: counts for the first plan that names it. In flight is what it will not serve.
    wire::Logged logged;
    google::protobuf::RepeatedPtrField<wire::Setup> setups;
    // The newest version of which the life may hold rounds that no rank has: it is needed until a newer one is
    // committed.
    Version newest;
    TimeMs heard, until;
    bool aware = false;  // of the first plan that names it: it knows what it may serve

    // A plan has named the life, which has not said that it has the plan.
    [[nodiscard]] bool unaware() const { return member.since() != 0 && !aware; }
  };
  // The last word of a rank that need not serve, as others answer for its host.
  struct Farewell {
    wire::Leave said;
    std::string host_id;
  };
  using Servers = std::map<Incarnation, Server>;

  // `member` leaves, and serves.
  const Server& serve(const wire::Member& member, const wire::Leave& said, TimeMs now);
  // The journal's plan names this server. How far it has gone is not in the journal: at most as far as `newest`.
  void restore(const wire::Member& member, Version newest, TimeMs now, TimeMs until);
  // The server says again that it serves. Returns whether it knows by now what it may serve, and did not before.
  bool hear(Incarnation server, const wire::Leave& said, TimeMs now);
  // The server serves no more.
  wire::Member remove(Incarnation server);
  void remove_all() { servers_.clear(); }
  // The tracker could hear nobody before `at`.
  void excuse(TimeMs at);
  // All servers have time until then at least.
  void prolong(TimeMs until);
  // A plan of this generation names all servers.
  void name_in(Generation plan);

  [[nodiscard]] const Servers& servers() const { return servers_; }
  [[nodiscard]] bool serves(Incarnation life) const { return servers_.contains(life); }
  [[nodiscard]] std::vector<Incarnation> unaware() const;

  // A rank of this host has left, and need not serve.
  void say_farewell(const wire::Leave& said, const std::string& host_id);
  [[nodiscard]] const std::vector<Farewell>& farewells() const { return farewells_; }
  [[nodiscard]] std::size_t farewell_bytes() const { return farewell_bytes_; }
  void forget_farewells();
  // All that leavers have said is undone. Servers stay.
  void forget_what_they_said();

  // Checks that what is kept is counted, and that servers are known by their lives.
  void check() const;

 private:
  Servers servers_;
  std::vector<Farewell> farewells_;  // for the next plan
  std::size_t farewell_bytes_ = 0;
};

}  // namespace warren
