#include "tracker/unread_watch.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <utility>

namespace warren::tracker {
namespace {

// ZeroMQ's header of a frame: its flags, and its size in one byte or in eight.
constexpr std::size_t kShortHeader = 2, kLongHeader = 9, kMostShort = 255;

// 0: the connection is gone.
std::uint64_t received_by_tcp(int connection) {
  tcp_info info{};
  socklen_t size = sizeof info;
  return ::getsockopt(connection, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 ? info.tcpi_bytes_received : 0;
}

}  // namespace

void UnreadWatch::accepted(int descriptor, std::string peer) {
  connections_[descriptor] = {std::move(peer), 0};
}

void UnreadWatch::read(int descriptor, std::size_t frame_bytes) {
  const auto at = connections_.find(descriptor);
  if (at == connections_.end()) return;
  const std::size_t content = frame_bytes + overhead_;
  at->second.read += content + (content <= kMostShort ? kShortHeader : kLongHeader);
}

void UnreadWatch::closed(int descriptor) {
  connections_.erase(descriptor);
}

std::vector<UnreadWatch::Connection> UnreadWatch::overfull() const {
  std::vector<Connection> found;
  for (const auto& [descriptor, bytes] : connections_) {
    const std::uint64_t received = received_by_tcp(descriptor);
    if (received > bytes.read && received - bytes.read > most_) found.push_back({descriptor, bytes.peer});
  }
  return found;
}

}  // namespace warren::tracker
