#include "worker/replay/fetch_window.h"

namespace warren::worker::replay {
namespace {

constexpr std::size_t kRequestsPerHolder = 4;
constexpr std::uint64_t kBytesInFlight = std::uint64_t{64} << 20;
// The price of a piece where holders are compared, beside its bytes.
constexpr std::uint64_t kPieceCostBytes = 256;
// For bytes that were fetched ahead of the wanted round.
constexpr std::uint64_t kCacheBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kCachePieceOverhead = 128;

}  // namespace

void FetchWindow::install(std::size_t hosts) {
  hosts_.assign(hosts, {});
}

void FetchWindow::suspend() {
  reserved_ = 0;
  in_flight_ = 0;
}

bool FetchWindow::full() const {
  return in_flight_ >= kBytesInFlight;
}

bool FetchWindow::takes(std::size_t host) const {
  return hosts_[host].requests < kRequestsPerHolder;
}

void FetchWindow::book(std::size_t host, std::uint64_t bytes, bool ahead, Booking& into) {
  const std::uint64_t load = bytes + kPieceCostBytes;
  const std::uint64_t reserve = ahead ? bytes + kCachePieceOverhead : 0;
  into.bytes += bytes;
  into.load += load;
  into.reserved += reserve;
  reserved_ += reserve;
  in_flight_ += load;
  hosts_[host].load += load;
}

void FetchWindow::settle(std::size_t host, std::uint64_t load, std::uint64_t reserved) {
  Host& h = hosts_[host];
  --h.requests;
  h.load -= load;
  in_flight_ -= load;
  reserved_ -= reserved;
}

std::uint64_t FetchWindow::room_ahead() const {
  const std::uint64_t used = kept_ + reserved_ + kCachePieceOverhead;
  return used >= kCacheBytes ? 0 : kCacheBytes - used;
}

bool FetchWindow::fetches_ahead() const {
  return kept_ + reserved_ <= kCacheBytes / 2;
}

bool FetchWindow::keep(FetchedAhead& ahead, std::uint64_t begin, std::span<const std::byte> bytes) {
  const std::uint64_t cost = bytes.size() + kCachePieceOverhead;
  if (kept_ + reserved_ + cost > kCacheBytes) return false;
  ahead.pieces_.emplace(begin, std::vector<std::byte>(bytes.begin(), bytes.end()));
  ahead.bytes_.add(begin, begin + bytes.size());
  kept_ += cost;
  return true;
}

void FetchWindow::drop(FetchedAhead& ahead) {
  for (const auto& [at, bytes] : ahead.pieces_) kept_ -= bytes.size() + kCachePieceOverhead;
  ahead.pieces_.clear();
  ahead.bytes_ = {};
}

}  // namespace warren::worker::replay
