// The bytes of one step of a handshake, on their way over a non-blocking socket.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "worker/transport/handshake.h"

namespace warren::worker {

class HandshakeBytes {
 public:
  // `bytes` are due next, at most as many as a hello has.
  void expect(std::size_t bytes);
  // These leave next.
  void load(std::span<const std::byte> bytes);
  // Moves what can be moved without waiting. Returns whether all has been; `dead`: the connection is over.
  [[nodiscard]] bool read(int fd, bool& dead);
  [[nodiscard]] bool write(int fd, bool& dead);
  // A part has been moved.
  [[nodiscard]] bool begun() const { return done_ != 0; }
  // Those that have been read stand in front.
  [[nodiscard]] std::span<const std::byte, handshake::kHelloBytes> all() const { return buffer_; }

 private:
  std::array<std::byte, handshake::kHelloBytes> buffer_{};
  std::size_t due_ = 0, done_ = 0;
};

}  // namespace warren::worker
