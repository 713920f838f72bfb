// How many bytes the replayer asks for at once, and how many it keeps that were fetched ahead of the program.
//
// Threads: one at a time, the owner of the data path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "recovery/base/ranges.h"

namespace warren::worker::replay {

// Bytes of one record that were fetched before anybody wanted them. Changed by a FetchWindow alone, which counts them.
class FetchedAhead {
 public:
  // By first byte; disjoint.
  [[nodiscard]] const std::map<std::uint64_t, std::vector<std::byte>>& pieces() const { return pieces_; }
  [[nodiscard]] const Ranges& bytes() const { return bytes_; }

 private:
  friend class FetchWindow;
  std::map<std::uint64_t, std::vector<std::byte>> pieces_;
  Ranges bytes_;
};

class FetchWindow {
 public:
  // Another plan, of so many hosts. Nothing is in flight to them.
  void install(std::size_t hosts);
  // All requests in flight are forgotten.
  void suspend();

  // No more is asked for until something has come.
  [[nodiscard]] bool full() const;
  // The host takes another request.
  [[nodiscard]] bool takes(std::size_t host) const;
  // The load of the host: the bytes that are asked of it, and a price a piece.
  [[nodiscard]] std::uint64_t load(std::size_t host) const { return hosts_[host].load; }

  // Pieces to be asked for at one host.
  struct Booking {
    std::uint64_t bytes = 0, load = 0, reserved = 0;
  };
  // Books a piece of `bytes`, into `into` too. Ahead of the program it also books room to keep them.
  void book(std::size_t host, std::uint64_t bytes, bool ahead, Booking& into);
  // Pieces that were booked are requested.
  void send(std::size_t host) { ++hosts_[host].requests; }
  // Such a request has ended.
  void settle(std::size_t host, std::uint64_t load, std::uint64_t reserved);

  // Bytes that one more piece ahead of the program may have.
  [[nodiscard]] std::uint64_t room_ahead() const;
  // Enough of what was fetched ahead is used up to fetch more.
  [[nodiscard]] bool fetches_ahead() const;
  // Keeps bytes that are not there yet; false: no room.
  [[nodiscard]] bool keep(FetchedAhead& ahead, std::uint64_t begin, std::span<const std::byte> bytes);
  void drop(FetchedAhead& ahead);

 private:
  struct Host {
    std::size_t requests = 0;  // with data, in flight
    std::uint64_t load = 0;
  };
  std::vector<Host> hosts_;
  std::uint64_t kept_ = 0, reserved_ = 0, in_flight_ = 0;
};

}  // namespace warren::worker::replay
