#include "tracker/handshake_watch.h"

#include <algorithm>
#include <utility>

namespace warren::tracker {
namespace {

// So many may always be under way, however few descriptors are left.
constexpr std::size_t kAlwaysStrangers = 32;

}  // namespace

void HandshakeWatch::accepted(int descriptor, std::string peer, TimeMs now) {
  if (const auto old = connections_.find(descriptor); old != connections_.end()) forget(old);
  const std::uint64_t order = ++last_order_;
  connections_[descriptor] = {std::move(peer), now, order, false};
  strangers_[order] = descriptor;
}

void HandshakeWatch::succeeded() {
  ++silent_;
}

void HandshakeWatch::given_up() {
  ++given_up_;
}

void HandshakeWatch::spoke(int descriptor) {
  const auto at = connections_.find(descriptor);
  if (at == connections_.end() || at->second.spoken) return;
  at->second.spoken = true;
  strangers_.erase(at->second.order);
  ++spoken_;
  --silent_;
}

std::optional<std::string> HandshakeWatch::closed(int descriptor) {
  const auto at = connections_.find(descriptor);
  if (at == connections_.end()) return std::nullopt;
  const Connection connection = at->second;
  forget(at);
  if (connection.spoken) return std::nullopt;
  // A message may be read before the success of its handshake is known, never the other way round.
  for (std::int64_t* const other_end : {&given_up_, &silent_}) {
    if (*other_end <= 0) continue;
    --*other_end;
    return std::nullopt;
  }
  return connection.peer;
}

std::optional<HandshakeWatch::Stranger> HandshakeWatch::overdue(std::size_t descriptors, TimeMs older_than) {
  if (strangers_.empty()) return std::nullopt;
  const auto [order, descriptor] = *strangers_.begin();
  const Connection& oldest = connections_.at(descriptor);
  const std::size_t left = descriptors - std::min(descriptors, spoken_);
  if (strangers_.size() <= std::max(left / 2, kAlwaysStrangers) && oldest.since >= older_than) return std::nullopt;
  strangers_.erase(order);
  return Stranger{descriptor, oldest.peer};
}

void HandshakeWatch::forget(std::map<int, Connection>::iterator at) {
  if (at->second.spoken) --spoken_;
  strangers_.erase(at->second.order);
  connections_.erase(at);
}

}  // namespace warren::tracker
