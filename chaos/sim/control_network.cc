#include "chaos/sim/control_network.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "recovery/wire/codec.h"

namespace warren::chaos {
namespace {
Result<wire::Envelope> of_tracker(const std::string& bytes) {
  return decode_envelope(std::as_bytes(std::span(bytes)), Side::kTracker);
}

// Whether it is a plan in which its receiver's life is new, of a job that has had one before.
bool is_first_plan(const std::string& bytes) {
  const auto e = of_tracker(bytes);
  if (!e.ok() || !e.value().has_plan() || e.value().plan().generation() < 2) return false;
  return std::ranges::any_of(e.value().plan().members(), [&](const wire::Member& m) {
    return m.incarnation() == e.value().receiver() && m.since() == e.value().plan().generation();
  });
}
}  // namespace

ControlNetwork::ControlNetwork(World& world, Ends ends, std::int64_t round_timeout_ms)
    : world_(world),
      ends_(std::move(ends)),
      round_timeout_ms_(round_timeout_ms),
      latency_us_(world.random.between(20, 2000)) {}

void ControlNetwork::send(std::size_t life, const std::string& bytes, bool up) {
  Connection& c = connections_[life];
  if (world_.now_us() < c.broken_until_us) return;
  if (world_.strikes(Fault::message_lost)) return;
  if (!up && world_.rate(Fault::first_plan_lost) > 0 && is_first_plan(bytes) &&
      world_.strikes(Fault::first_plan_lost)) {
    return;
  }
  Micros delay = latency_us_ + world_.random.between(0, latency_us_);
  if (world_.strikes(Fault::message_late)) delay += world_.random.between(0, 1500 * round_timeout_ms_);
  const bool twice = world_.strikes(Fault::message_twice);
  for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
    if (++c.in_flight > kMostInFlight) {
      return world_.violated("I8", "over " + std::to_string(kMostInFlight) + " control messages are on their way");
    }
    Micros& last = c.last_us[up];
    last = std::max(last + 1, world_.now_us() + delay);
    world_.at(last, [this, use = c.use, message = Message{life, bytes, up}] {
      Connection& now = connections_[message.life];
      --now.in_flight;
      if (use == now.use) deliver(message);
    });
  }
}

void ControlNetwork::deliver(const Message& message) {
  world_.note(message.bytes);
  if (!world_.is_calm()) {
    remembered_.push_back(message);
    if (remembered_.size() > kRemembered) remembered_.pop_front();
    wire::Envelope envelope;
    if (!message.up && world_.rate(Fault::message_misdirected) > 0 && envelope.ParseFromString(message.bytes) &&
        (envelope.has_plan() || envelope.has_interrupt())) {
      decisions_.push_back(message);
      if (decisions_.size() > kRemembered) decisions_.pop_front();
    }
  }
  (message.up ? ends_.to_tracker : ends_.to_worker)(message.life, message.bytes);
}

void ControlNetwork::drop_connection(std::size_t life) {
  Connection& c = connections_[life];
  ++c.use;
  c.broken_until_us = world_.now_us() + world_.random.between(1000, 700 * round_timeout_ms_);
  ends_.trouble(life, "the connection was closed");
}

void ControlNetwork::drop_all() {
  for (Connection& c : connections_) ++c.use;
}

void ControlNetwork::replay() {
  if (remembered_.empty()) return;
  world_.count(Fault::message_replayed);
  const Message message = remembered_[world_.random.below(remembered_.size())];
  (message.up ? ends_.to_tracker : ends_.to_worker)(message.life, message.bytes);
}

void ControlNetwork::forget() {
  remembered_.clear();
}

void ControlNetwork::misdirect(std::size_t life, Incarnation its_incarnation) {
  const bool decision = world_.random.chance(0.6);
  const std::deque<Message>& from = decision ? decisions_ : remembered_;
  if (from.empty()) return;
  wire::Envelope envelope;
  Message message = from[world_.random.below(from.size())];
  // There are fewer interrupts than plans.
  for (int i = 0; decision && i < 2 && envelope.ParseFromString(message.bytes) && envelope.has_plan(); ++i) {
    message = from[world_.random.below(from.size())];
  }
  if (message.up || message.life == life) return;
  world_.count(Fault::message_misdirected);
  if (!decision || world_.random.chance(0.3)) return ends_.to_worker(life, message.bytes);
  auto decoded = of_tracker(message.bytes);
  if (!decoded.ok()) return ends_.to_worker(life, message.bytes);
  // A life that is no member takes no plan, even with its own name on it. Nor does an old interrupt stop it.
  decoded.value().set_receiver(its_incarnation.value);
  ends_.to_worker(life, encode(decoded.value(), Side::kTracker));
}

void ControlNetwork::garbage(std::size_t life) {
  world_.count(Fault::garbage);
  std::string bytes(world_.random.below(200), '\0');
  for (char& c : bytes) c = static_cast<char>(world_.random.next());
  // A tag that no message has.
  bytes.insert(bytes.begin(), static_cast<char>(0xff));
  (world_.random.chance(0.5) ? ends_.to_tracker : ends_.to_worker)(life, bytes);
}

}  // namespace warren::chaos
