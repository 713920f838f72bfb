#include "chaos/sim/twin_tracker.h"

#include <span>
#include <utility>
#include <variant>

#include "chaos/sim/sim_tracker.h"
#include "recovery/wire/codec.h"
#include "tracker/topology.h"

namespace warren::chaos {
namespace {
constexpr Micros kTickUs = 20'000;
}  // namespace

TwinTracker::TwinTracker(World& world, const std::string& job, const std::string& record, SendDown send)
    : world_(world), send_(std::move(send)), self_(Incarnation(world.random.next() | 1)), record_(record) {
  if (world_.keeps_transcript()) world_.tell("a second tracker starts");
  auto machine = TrackerMachine::make({job, self_, tracker::plan_topology, kMostPlanBytesOut}, record_, world_.now());
  if (machine.ok()) {
    machine_.emplace(std::move(machine).value());
    tick();
  } else {
    world_.violated("I5", "a copy of the journal cannot be read: " + machine.status().describe());
  }
}

void TwinTracker::tick() {
  if (ended_ || world_.failed()) return;
  std::vector<TrackerEffect> effects;
  machine_->on_tick(world_.now(), effects);
  carry_out(std::nullopt, effects);
  world_.after(kTickUs, [this] { tick(); });
}

void TwinTracker::receive(std::size_t life, const std::string& bytes) {
  if (ended_ || !machine_) return;
  auto decoded = decode_envelope(std::as_bytes(std::span(bytes)), Side::kWorker);
  if (!decoded.ok()) return;
  std::vector<TrackerEffect> effects;
  machine_->on_message(decoded.value(), world_.now(), effects);
  invariants_.look(*machine_);
  carry_out(life, effects);
  if (!world_.is(Mutant::acts_without_promises) || term_ == 0) return;
  effects.clear();
  forge_promises(decoded.value(), effects);
  carry_out(life, effects);
}

void TwinTracker::forge_promises(const wire::Envelope& said, std::vector<TrackerEffect>& effects) {
  wire::JobRecord record;
  if (!record.ParseFromString(record_)) return;
  wire::Envelope e;
  e.set_protocol(kProtocolVersion);
  e.set_job(said.job());
  e.set_receiver(self_.value);
  e.set_term(term_);
  e.mutable_heartbeat()->set_generation(record.plan().generation());
  for (const wire::Member& m : record.plan().members()) {
    e.set_sender(m.incarnation());
    machine_->on_message(e, world_.now(), effects);
  }
}

void TwinTracker::carry_out(std::optional<std::size_t> life, const std::vector<TrackerEffect>& effects) {
  for (const TrackerEffect& effect : effects) {
    if (const auto* log = std::get_if<tracker_effect::Log>(&effect)) {
      if (world_.keeps_transcript()) world_.tell("second tracker: " + log->event.name + ": " + log->event.text);
      continue;
    }
    const auto* send = std::get_if<tracker_effect::Send>(&effect);
    if (send == nullptr || (!send->envelope.has_heartbeat_reply() && !send->envelope.has_tell())) {
      return world_.violated("I6", "a second tracker has decided something that few have promised to obey");
    }
    term_ = send->envelope.term();
    if (life) send_(*life, encode(*send));
  }
}

}  // namespace warren::chaos
