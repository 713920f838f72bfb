// Machines in virtual time: the memory segments that their processes' logs lie in, who has mapped them, and which of
// them a dead process leaves behind.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "chaos/sim/world.h"
#include "recovery/base/ids.h"
#include "storage/host_log.h"

namespace warren::chaos {

class Hosts {
 public:
  // `kept`: a launcher holds the segment open too, whatever happens to the process.
  void add(const std::string& host, Incarnation life, std::shared_ptr<SegmentMemory> memory, bool kept);
  // A life of the host has mapped another's segment.
  void mapped(Incarnation segment, Incarnation by);
  // A life was called as a spare, and has offered its segment to the launcher since.
  void called(Incarnation life, Generation generation);
  // A life of the host, and its launcher, hold a dead life's segment open no longer.
  void forgotten(Incarnation segment, Incarnation by);
  // The process has gone: segments that nobody holds open any more are lost. True: one was.
  bool ended(Incarnation life);
  // The machine has gone, with all its memory; whoever runs on it must be ended by the caller.
  void lose(const std::string& host);

  struct Segment {
    Incarnation life;
    std::shared_ptr<SegmentMemory> memory;
    bool kept = false, running = true;
    std::vector<Incarnation> holders;  // living others that have mapped it
    Generation called{};
  };
  // Whether a launcher holds the segment of this life, and did when `later`, of the same host, began.
  [[nodiscard]] bool keeps(Incarnation life, Incarnation later) const;
  [[nodiscard]] const std::vector<Segment>& segments(const std::string& host);
  [[nodiscard]] const std::map<std::string, std::vector<Segment>>& all() const { return hosts_; }

 private:
  std::map<std::string, std::vector<Segment>> hosts_;
};

}  // namespace warren::chaos
