// What the disk of a job of one rank knows of it.
#pragma once

#include <cstdint>

#include "recovery/wire/messages.pb.h"

namespace warren::worker {

inline constexpr std::uint64_t kRun = 11;

inline wire::Plan plan_of(std::uint64_t generation, std::uint32_t timeline, std::uint64_t run = kRun) {
  wire::Plan p;
  p.set_run(run);
  p.set_generation(generation);
  p.set_timeline(timeline);
  wire::JobSettings& settings = *p.mutable_settings();
  settings.set_world_size(1);
  settings.set_round_timeout_ms(10'000);
  settings.set_algorithm("auto");
  settings.set_chunk_bytes(1 << 18);
  settings.set_streams(1);
  settings.set_replicas(1);
  wire::Member& m = *p.add_members();
  m.set_incarnation(run + generation);
  m.set_worker_id("w0");
  m.set_host_id("a");
  m.set_domain_id("a");
  m.set_local_size(1);
  m.set_fetch_port(6000);
  m.add_endpoints()->set_address("127.0.0.1");
  m.mutable_endpoints(0)->set_port(5000);
  return p;
}

}  // namespace warren::worker
