#include "chaos/sim/data_network.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "chaos/sim/sim_gpu.h"
#include "chaos/sim/sim_transport.h"

namespace warren::chaos {

bool Loan::holds(std::span<const std::byte> payload) const {
  return std::memcmp(SimGpu::readable(at), payload.data(), bytes) == 0;
}

DataNetwork::DataNetwork(World& world) : world_(world) {
  static constexpr std::size_t kWindows[] = {0, 512, 8192, 262144};
  window_bytes_ = world.random.pick(kWindows);
  latency_base_us_ = world.random.between(5, 300);
  bytes_per_us_ = world.random.between(1, 200);
}

Micros DataNetwork::latency_us() {
  return latency_base_us_ + world_.random.between(0, latency_base_us_);
}
Micros DataNetwork::transfer_us(std::size_t bytes) {
  return 1 + world_.random.between(0, 5) + static_cast<Micros>(bytes) / bytes_per_us_;
}

SimTransport* DataNetwork::find(Incarnation life) const {
  const auto it = lives_.find(life);
  return it == lives_.end() ? nullptr : it->second;
}

std::shared_ptr<Wire> DataNetwork::some_wire() {
  std::erase_if(wires_, [](const auto& wire) { return wire.expired(); });
  std::vector<std::shared_ptr<Wire>> up;
  for (const auto& weak : wires_) {
    auto wire = weak.lock();
    if (wire && !wire->dead) up.push_back(std::move(wire));
  }
  return up.empty() ? nullptr : up[world_.random.below(up.size())];
}

void DataNetwork::detach(Incarnation life, bool silently) {
  if (lives_.erase(life) != 0 && silently) unheard_.insert(life);
}

void DataNetwork::silence_one(Micros for_us) {
  const auto wire = some_wire();
  if (!wire) return;
  world_.count(Fault::link_silent);
  const int only = world_.random.chance(0.5) ? static_cast<int>(world_.random.below(2)) : -1;
  for (int side = 0; side < 2; ++side) {
    if (only < 0 || side == only) wire->silent_until_us[side] = world_.now_us() + for_us;
  }
}

void DataNetwork::cut_one() {
  const auto wire = some_wire();
  if (!wire) return;
  world_.count(Fault::link_cut);
  wire->dead = true;
  const int only = world_.random.chance(0.3) ? static_cast<int>(world_.random.below(2)) : -1;
  for (int side = 0; side < 2; ++side) {
    SimTransport* transport = wire->ends[side].transport;
    if (transport == nullptr || (only >= 0 && side != only)) continue;
    transport->reset_later(wire->ends[side].link);
  }
}

void DataNetwork::end_relays(SimTransport* relay, bool silently) {
  if (!any_relayed_) return;
  for (const auto& weak : wires_) {
    const auto wire = weak.lock();
    if (!wire || wire->dead || std::ranges::find(wire->relays, relay) == wire->relays.end()) continue;
    wire->dead = true;
    for (const Wire::End& end : wire->ends) {
      if (end.transport != nullptr && !silently) end.transport->reset_later(end.link);
    }
  }
}

}  // namespace warren::chaos
