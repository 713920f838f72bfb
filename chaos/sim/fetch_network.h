// Between workers: requests for what is logged, and their answers, through the real encoder and validator. Nothing is
// kept of what a socket would promise: messages are lost, late, doubled, overtake each other, or arrive damaged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>

#include "chaos/sim/world.h"
#include "recovery/base/ids.h"
#include "worker/replay/replayer.h"

namespace warren::chaos {

class FetchNetwork {
 public:
  enum class Reach { kServed, kNotYet, kGone };
  struct Ends {
    // Answers a request in the life that it is meant for. kNotYet: it stands still, or its plan has not come.
    std::function<Reach(Incarnation server, const wire::FetchRequest& request, std::optional<wire::FetchReply>& answer)>
        serve;
    std::function<void(std::size_t life, Rank from, const wire::FetchReply& reply)> reply;
  };
  FetchNetwork(World& world, Ends ends, std::int64_t round_timeout_ms);

  void send(std::size_t life, const worker::Replayer::Send& request);

 private:
  // Each of 300 ranks, each on a host of its own, asks all hosts what they hold, which may arrive twice.
  static constexpr std::size_t kMostInFlight = std::size_t{1} << 18;
  // Bytes that arrive damaged each time count as not held: so often a life asks again for bytes of a round (kAsks).
  static constexpr int kMostDamaged = 3;
  void travel(const std::function<void()>& arrive);
  void arrive(std::size_t life, Rank to, const std::string& bytes, int tries);
  void damage(std::size_t life, const wire::FetchRequest& request, wire::FetchReply& reply);

  World& world_;
  Ends ends_;
  std::int64_t round_timeout_ms_;
  Micros latency_us_;
  std::size_t in_flight_ = 0;
  // Of each life: of which rounds bytes have arrived damaged, and how often.
  std::map<std::tuple<std::size_t, std::uint32_t, std::uint32_t, std::uint64_t, std::uint64_t, std::uint64_t>, int>
      damaged_;
};

}  // namespace warren::chaos
