// Packets with descriptors between two processes of one host, over a Unix socket: each proves before anything else that
// it holds the same key (worker/transport/handshake.h), and the kernel that it runs as the same user. Non-blocking.
//
// Whoever does not hold the key gets nothing, and what it sends along with its descriptors is dropped by the kernel.
#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/segment_memory.h"
#include "worker/transport/handshake.h"

namespace warren::worker {

// What two processes say to each other about segments, and about memory of a program that others may read.
struct SegmentMessage {
  enum class Kind : std::uint32_t {
    kSegment = 1,  // here is the segment of `life`, `value` bytes, of the worker `owner`; carries the descriptor
    kAck = 2,      // `life`'s segment is mapped, or kept; `value` is 0 if it was not taken
    kDone = 3,     // the sender has sent all that it holds; `value` is the generation, where there is one
    // `life`'s segment is not needed any more. `value` is 1: unless that life lives, and was called when the sender was
    // (Hello::generation), or later.
    kForget = 4,
    // Memory number `owner` of `life`, which is the sender's: here it is, of `value` bytes, with the descriptor; it is
    // mapped (`value` 0: it was not taken); it is no more.
    kMemory = 5,
    kMemoryAck = 6,  // it is mapped, or, where `value` is 0, it is not (any more)
    kMemoryGone = 7,
    kGpuMemory = 8,  // as kMemory, of a GPU; the answer may come much later
  };
  [[nodiscard]] static bool carries(Kind kind) {
    return kind == Kind::kSegment || kind == Kind::kMemory || kind == Kind::kGpuMemory;
  }
  Kind kind = Kind::kDone;
  Incarnation life;
  std::uint64_t value = 0;
  std::uint64_t owner = 0;
};

// An abstract Unix socket, which lives no longer than the process.
struct SegmentListener {
  OwnedFd fd;
  std::string name;
};
[[nodiscard]] Result<SegmentListener> listen_at(const std::string& name);
// At a random name.
[[nodiscard]] Result<SegmentListener> listen_for_segments(const std::string& prefix);

// The key of channels between the ranks of a job: data links and channels cannot pass for each other.
[[nodiscard]] handshake::LinkKey segment_key(const handshake::LinkKey& link_key);

class SegmentChannel {
 public:
  // What the acceptor says to a Hello whose sender has yet to prove that it holds the key.
  using Judge = std::function<handshake::Verdict(const handshake::Hello&)>;
  struct Received {
    SegmentMessage message;
    OwnedFd fd;  // of kSegment, kMemory and kGpuMemory: open
  };

  // kUnavailable: nobody listens there, or not yet. kRefused: it is another user's.
  static Result<std::unique_ptr<SegmentChannel>> connect(const std::string& name, const handshake::LinkKey& key,
                                                         handshake::Hello hello);
  // Of a listener's new connection, from a process of the same user.
  static std::unique_ptr<SegmentChannel> accept(OwnedFd fd, const handshake::LinkKey& key, Judge judge);
  ~SegmentChannel();
  SegmentChannel(const SegmentChannel&) = delete;
  SegmentChannel& operator=(const SegmentChannel&) = delete;

  // Sends what is waiting and takes the handshake as far as it goes.
  void run();
  // Both ends have proven themselves.
  [[nodiscard]] bool open() const { return state_ == State::kOpen; }
  [[nodiscard]] bool closed() const { return state_ == State::kClosed; }
  // Why it is closed; ok: the other end closed it.
  [[nodiscard]] const Status& trouble() const { return trouble_; }
  // The connector's; the acceptor has it once it is open.
  [[nodiscard]] const handshake::Hello& hello() const { return hello_; }
  // Acceptor: something was said, before it was closed.
  [[nodiscard]] bool heard() const { return state_ != State::kAwaitHello; }

  // Once open. The descriptor stays open until it is sent.
  void send(const SegmentMessage& message, std::shared_ptr<const OwnedFd> fd = nullptr);
  // The next one; nothing: later, or closed.
  [[nodiscard]] std::optional<Received> receive();

  // What to wait for. `reading`: also for packets.
  [[nodiscard]] pollfd wait_for(bool reading) const;

 private:
  enum class State : std::uint8_t {
    kAwaitChallenge,
    kAwaitVerdict,  // the connector's side
    kAwaitHello,
    kAwaitProof,  // the acceptor's
    kOpen,
    kClosed,
  };
  struct Packet {
    std::vector<std::byte> bytes;
    std::shared_ptr<const OwnedFd> fd;
  };

  SegmentChannel(OwnedFd fd, const handshake::LinkKey& key) : fd_(std::move(fd)), key_(key) {}
  void close(Status why);
  void put(std::span<const std::byte> bytes);
  void flush();
  bool take(std::span<std::byte> bytes);
  bool advance();

  OwnedFd fd_;
  handshake::LinkKey key_;
  Judge judge_;
  State state_ = State::kClosed;
  Status trouble_;
  handshake::Hello hello_;
  handshake::HelloBytes hello_bytes_{};
  handshake::ChallengeBytes challenge_{};
  handshake::Verdict verdict_ = handshake::Verdict::kWelcome;
  std::deque<Packet> waiting_;
};

}  // namespace warren::worker
