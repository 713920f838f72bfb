// Passes on the bytes of links between other ranks, where a plan leads them by way of this one (Plan.detours). It knows
// nothing of what they mean: both ends have proven to each other who they are, and check what arrives.
//
// One thread, from the first connection of a generation to the generation's end. Bytes move from socket to pipe to
// socket within the kernel, or, where that does not splice, through a buffer. What one end does not take holds up the
// other, and no other connection.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "recovery/base/result.h"
#include "storage/segment_memory.h"

namespace warren::worker {

// Driven by one thread.
class Relay {
 public:
  // The most that is held of what one end of a connection has sent and the other has not taken, beside what their
  // sockets hold; less where the system grants smaller pipes.
  static constexpr std::size_t kWindowBytes = std::size_t{256} << 10;

  Relay() = default;
  ~Relay() { stop(); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Passes on what comes from either socket to the other, both non-blocking, and that it ends: when all of both
  // directions has been passed on, or one fails, both are closed. kExhausted: limits::kMaxRelayed are. kUnavailable: no
  // descriptors, or no thread.
  [[nodiscard]] Status join(OwnedFd one, OwnedFd other);
  // Closes all: nothing is passed on any more when this returns. How many bytes were, since the first connection.
  std::uint64_t stop();

  // That are not over.
  [[nodiscard]] std::size_t connections() const { return connections_.load(std::memory_order_relaxed); }

 private:
  struct End {
    OwnedFd fd;
    // As far as is known: the kernel tells only of changes.
    bool readable = false, writable = false;
  };
  // From one end to the other.
  struct Lane {
    OwnedFd out, in;                // of the pipe
    std::size_t window = 0;         // bytes
    std::size_t held = 0;           // in the pipe, or the buffer
    bool full = false;              // the pipe takes no more until something has left it
    bool ended = false;             // nothing more comes
    bool shut = false;              // and the other end has been told
    std::vector<std::byte> buffer;  // instead of the pipe, where the kernel does not splice; else empty
    std::size_t begin = 0;          // of what is held, in it

    [[nodiscard]] Status make();
    [[nodiscard]] bool may_move(const End& from, const End& to) const;
    // A step: what has come, and then what is held, as far as both sides take it at once. False: the connection has
    // failed.
    [[nodiscard]] bool move(End& from, End& to, std::uint64_t& bytes);
    [[nodiscard]] bool take(End& from);
    [[nodiscard]] bool give(End& to, std::uint64_t& bytes);
    void use_buffer();
  };
  struct Connection {
    std::array<End, 2> ends;
    std::array<Lane, 2> lanes;  // from the end of the same number
    bool listed = false;        // something may move, as far as is known
  };

  [[nodiscard]] Status start();
  void run();
  void begin_joined();
  // False: it is over.
  bool move(Connection& c);
  void end(std::uint64_t id);

  std::thread thread_;
  OwnedFd wake_, poll_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Connection>> joined_;  // and not seen by the thread
  bool stopping_ = false;
  std::atomic<std::size_t> connections_{0};
  // Of the thread.
  std::uint64_t bytes_ = 0;  // passed on
  std::map<std::uint64_t, std::unique_ptr<Connection>> running_;
  std::uint64_t last_id_ = 0;
};

}  // namespace warren::worker
