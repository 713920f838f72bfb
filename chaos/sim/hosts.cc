#include "chaos/sim/hosts.h"

#include <algorithm>
#include <utility>

namespace warren::chaos {

void Hosts::add(const std::string& host, Incarnation life, std::shared_ptr<SegmentMemory> memory, bool kept) {
  hosts_[host].push_back({life, std::move(memory), kept, true, {}, {}});
}

void Hosts::mapped(Incarnation segment, Incarnation by) {
  for (auto& [host, segments] : hosts_) {
    for (Segment& s : segments) {
      if (s.life != segment) continue;
      if (std::find(s.holders.begin(), s.holders.end(), by) == s.holders.end()) s.holders.push_back(by);
      return;
    }
  }
}

void Hosts::called(Incarnation life, Generation generation) {
  for (auto& [host, segments] : hosts_) {
    const auto found = std::ranges::find(segments, life, &Segment::life);
    if (found != segments.end()) found->called = generation;
  }
}

void Hosts::forgotten(Incarnation segment, Incarnation by) {
  for (auto& [host, segments] : hosts_) {
    std::erase_if(segments, [&](Segment& s) {
      if (s.life != segment) return false;
      s.kept = false;
      std::erase(s.holders, by);
      return !s.running && s.holders.empty();
    });
  }
}

bool Hosts::ended(Incarnation life) {
  bool lost = false;
  for (auto& [host, segments] : hosts_) {
    for (Segment& s : segments) {
      std::erase(s.holders, life);
      if (s.life == life) s.running = false;
    }
    lost = std::erase_if(segments, [](const Segment& s) { return !s.running && !s.kept && s.holders.empty(); }) > 0 ||
           lost;
  }
  return lost;
}

void Hosts::lose(const std::string& host) {
  hosts_.erase(host);
}

bool Hosts::keeps(Incarnation life, Incarnation later) const {
  return std::ranges::any_of(hosts_, [&](const auto& host) {
    const auto& segments = host.second;  // in the order in which they came
    const auto found = std::ranges::find(segments, life, &Segment::life);
    return found != segments.end() && found->kept &&
           std::find_if(found, segments.end(), [&](const Segment& s) { return s.life == later; }) != segments.end();
  });
}

const std::vector<Hosts::Segment>& Hosts::segments(const std::string& host) {
  return hosts_[host];
}

}  // namespace warren::chaos
