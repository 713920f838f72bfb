#include "chaos/sim/fetch_network.h"

#include <algorithm>
#include <span>
#include <utility>

#include "recovery/wire/fetch_codec.h"

namespace warren::chaos {

FetchNetwork::FetchNetwork(World& world, Ends ends, std::int64_t round_timeout_ms)
    : world_(world),
      ends_(std::move(ends)),
      round_timeout_ms_(round_timeout_ms),
      latency_us_(world.random.between(10, 1000)) {}

void FetchNetwork::travel(const std::function<void()>& arrive) {
  if (world_.strikes(Fault::fetch_lost)) return;
  const int copies = world_.strikes(Fault::fetch_twice) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    if (++in_flight_ > kMostInFlight) return world_.violated("I8", "too many fetch messages are on their way");
    Micros delay = latency_us_ + world_.random.between(0, latency_us_);
    if (world_.strikes(Fault::fetch_late)) delay += world_.random.between(0, 2000 * round_timeout_ms_);
    world_.after(delay, [this, arrive] {
      --in_flight_;
      arrive();
    });
  }
}

// Logged bytes carry checksums of their own; the rest of a message is the business of who carries it.
void FetchNetwork::damage(std::size_t life, const wire::FetchRequest& request, wire::FetchReply& reply) {
  if (!reply.data() || reply.entries().empty()) return;
  const auto which = static_cast<int>(world_.random.below(static_cast<std::uint64_t>(reply.entries_size())));
  wire::FetchEntry& entry = *reply.mutable_entries(which);
  std::string& bytes = *entry.mutable_payload();
  int& times =
      damaged_[{life, request.kind(), request.timeline(), request.group(), request.version(), entry.sequence()}];
  if (bytes.empty() || times == kMostDamaged || !world_.strikes(Fault::fetch_damaged)) return;
  ++times;
  const std::size_t bit = world_.random.below(bytes.size() * 8);
  bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ static_cast<char>(1u << (bit % 8)));
}

void FetchNetwork::send(std::size_t life, const worker::Replayer::Send& request) {
  std::string bytes = encode(request.request);
  world_.note(bytes);
  if (world_.keeps_transcript()) {
    const wire::FetchRequest& r = request.request;
    std::string text = "life " + std::to_string(life) + " asks rank " + std::to_string(request.to.value) +
                       " in request " + std::to_string(r.id()) + " for kind " + std::to_string(r.kind()) + " of " +
                       std::to_string(r.timeline()) + "/" + std::to_string(r.version());
    for (const wire::FetchPiece& p : r.pieces()) {
      text +=
          " " + std::to_string(p.sequence()) + "[" + std::to_string(p.begin()) + "-" + std::to_string(p.end()) + "]";
    }
    world_.tell(text);
  }
  travel([this, life, to = request.to, bytes = std::move(bytes)] { arrive(life, to, bytes, 0); });
}

void FetchNetwork::arrive(std::size_t life, Rank to, const std::string& bytes, int tries) {
  const auto request = decode_fetch_request(std::as_bytes(std::span(bytes.data(), bytes.size())));
  if (!request.ok()) return world_.violated("I8", "a request does not decode: " + request.status().describe());
  std::optional<wire::FetchReply> answer;
  switch (ends_.serve(Incarnation(request.value().receiver()), request.value(), answer)) {
    case Reach::kGone: return;
    case Reach::kNotYet:
      // It lies in a queue.
      if (tries < 40) {
        world_.after(std::min<Micros>(1000 << std::min(tries, 10), 100'000),
                     [this, life, to, bytes, tries] { arrive(life, to, bytes, tries + 1); });
      }
      return;
    case Reach::kServed: break;
  }
  if (!answer) return;
  const Status valid = validate(*answer, Payloads::kInside);
  if (!valid.ok()) return world_.violated("I8", "a reply of the log is not valid: " + valid.describe());
  std::string head = encode(*answer, Payloads::kInside);
  world_.note(head);
  travel([this, life, to, asked = request.value(), head = std::move(head)] {
    auto reply = decode_fetch_reply(std::as_bytes(std::span(head.data(), head.size())), Payloads::kInside);
    if (!reply.ok()) return world_.violated("I8", "a reply of the log does not decode: " + reply.status().describe());
    if (world_.rate(Fault::fetch_damaged) > 0) damage(life, asked, reply.value());
    ends_.reply(life, to, reply.value());
  });
}

}  // namespace warren::chaos
