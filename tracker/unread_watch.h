// Bounds the bytes that wait in this process to be read from one connection. ZeroMQ itself must not: storage/zeromq.h
// says why. Of each connection it knows the bytes that TCP has taken, which the kernel counts, and those whose messages
// have been read.
//
// The bound holds at each look(): between two of them, more may come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace warren::tracker {

class UnreadWatch {
 public:
  struct Connection {
    int descriptor = -1;
    std::string peer;  // its address, as given to accepted()
  };

  // `most`: bytes that may wait. `overhead`: bytes that authentication adds to each frame.
  UnreadWatch(std::uint64_t most, std::size_t overhead) : most_(most), overhead_(overhead) {}

  void accepted(int descriptor, std::string peer);
  // A frame of this size has been read from the connection.
  void read(int descriptor, std::size_t frame_bytes);
  void closed(int descriptor);
  // Connections of which more than `most` waits. The same one is told at each look, until it has closed.
  [[nodiscard]] std::vector<Connection> overfull() const;

 private:
  struct Bytes {
    std::string peer;
    std::uint64_t read = 0;
  };

  const std::uint64_t most_;
  const std::size_t overhead_;
  std::map<int, Bytes> connections_;  // by descriptor
};

}  // namespace warren::tracker
