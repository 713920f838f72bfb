// The hosts of the newest plan, as the replayer asks them: the ranks that stand for each, and those that are silent.
// They also say how many failure domains have to hold a result.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/ranges.h"
#include "worker/replay/replayer.h"

namespace warren::worker::replay {

// A gap is believed when it has been seen so often, and each rank of each host was asked.
inline constexpr std::uint32_t kAsks = 4;

// Bytes of one result that a host has said it holds.
struct Holder {
  std::size_t host;
  Ranges held;
};

// Another host, and the ranks that can be asked for what it holds.
struct Host {
  std::string id, domain;
  bool own = false;          // this one: its other ranks may have on their disks what nobody else can read
  bool server = false;       // has no rank: a life that has left serves what lies there
  std::vector<Rank> ranks;   // those that answer, in the order in which they are asked
  std::vector<Rank> silent;  // the others
  std::set<Rank> unheard;    // have not answered since they were silent
  [[nodiscard]] bool gone() const { return ranks.empty(); }
  // A host's ranks are all silent at times, and are asked again later.
  [[nodiscard]] Rank first() const { return gone() ? silent.front() : ranks.front(); }
  [[nodiscard]] Rank after(Rank rank) const;
};

class Hosts {
 public:
  void install(const Replayer::Plan& plan);

  [[nodiscard]] std::size_t size() const { return hosts_.size(); }
  [[nodiscard]] const Host& operator[](std::size_t host) const { return hosts_[host]; }
  [[nodiscard]] std::optional<std::size_t> host_of(Rank rank) const;
  [[nodiscard]] Incarnation life_of(Rank rank) const { return lives_.at(rank); }
  [[nodiscard]] Rank self() const { return self_; }
  [[nodiscard]] Incarnation own_life() const { return own_life_; }
  // The lives of the plan on this host, this one among them.
  [[nodiscard]] std::span<const Incarnation> own_lives() const { return own_lives_; }

  // A rank has answered.
  void hear(Rank rank);
  // A rank of the host does not answer, and is asked no more. The rank that is asked instead; nullopt: it was not
  // asked.
  std::optional<Rank> silence(std::size_t host, Rank rank);
  // The host's silent ranks are given another chance, after the others; returned are these ranks.
  std::vector<Rank> revive(std::size_t host);
  // Every other host has a rank that answers.
  [[nodiscard]] bool all_answer() const;
  // Each rank answers. Each may have on its disk what nobody else of its host can read.
  [[nodiscard]] bool all_ranks_answer() const;
  // How often a gap has to be seen. Of each host one rank is asked at a time, and each may have on its disk what the
  // others cannot read. The own one's are asked from the second time on.
  [[nodiscard]] std::uint32_t enough_asks() const;

  // Those of `wanted` that enough domains hold; `living`: those of them that living ranks of this host hold.
  [[nodiscard]] Ranges held_enough(const Ranges& wanted, std::span<const Holder> holders, const Ranges& living) const;
  // Whether a copy there is one in another domain than this rank's, or one of a life that has left.
  [[nodiscard]] bool elsewhere(std::size_t host) const {
    return hosts_[host].domain != own_domain_ || hosts_[host].server;
  }
  // This rank is the one of `members` that fills up copies on this host (Replayer::refills()).
  [[nodiscard]] bool refills(std::span<const Rank> members) const;

  // A rank, or a life that has left, in words.
  [[nodiscard]] std::string answerer(Rank rank) const;
  [[nodiscard]] std::string answerers(const std::set<std::int32_t>& ranks) const;

 private:
  void add_ranks(const Replayer::Plan& plan, const Replayer::Peer& self);
  void add_servers(const Replayer::Plan& plan);
  void sort_newest_here(const Replayer::Plan& plan, std::string_view own_host);

  std::vector<Host> hosts_;
  std::map<Rank, std::size_t> host_of_;
  std::map<Rank, Incarnation> lives_;
  Rank self_;
  Incarnation own_life_;
  std::string own_domain_;
  std::vector<Incarnation> own_lives_;
  std::size_t need_domains_ = 1;
  std::vector<Rank> newest_here_;  // ranks of this host, those with the newest lives first
};

}  // namespace warren::worker::replay
