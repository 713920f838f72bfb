// Keeps the log segments of a host's workers open in a process that outlives them, the launcher: what a worker has
// published is there for its next life even if all workers of the host die at once.
//
// The keeper listens on an abstract Unix socket. Its name, and the key that opens it, are in a file in memory that the
// keeper has open. WARREN_SEGMENT_KEEPER is the path of that file, /proc/PID/fd/N, which only processes of this user
// can read: keys do not stand in environment variables (docs/decisions/0004-one-secret-scheme.md). The key is the
// keeper's own, made anew for each launch. A worker offers its segment before it joins a job and gets those that other
// lives have left for the same job and host.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/segment_memory.h"
#include "worker/segments/channel.h"

namespace warren::worker {

inline constexpr const char* kKeeperVariable = "WARREN_SEGMENT_KEEPER";

// The launcher's side: a thread of its own.
class SegmentKeeper {
 public:
  using Warn = std::function<void(const std::string&)>;  // from the keeper's thread

  // Keeps at most 64 + 4 × workers segments; over that, the oldest of the worker that has most goes. The thread takes
  // no signals. kUnavailable: no socket or thread.
  static Result<std::unique_ptr<SegmentKeeper>> start(std::uint32_t workers, Warn warn);
  // Closes everything that is kept.
  ~SegmentKeeper();
  SegmentKeeper(const SegmentKeeper&) = delete;
  SegmentKeeper& operator=(const SegmentKeeper&) = delete;

  // The value of kKeeperVariable for the workers.
  [[nodiscard]] std::string environment() const;
  // The content of the file that the variable names.
  [[nodiscard]] std::string description() const;

 private:
  struct Segment {
    std::uint64_t scope = 0;  // job and host, hashed
    std::uint64_t owner = 0;  // worker id, hashed
    Incarnation life;
    std::shared_ptr<const OwnedFd> fd;
    std::uint64_t bytes = 0;
  };
  struct Client {
    std::unique_ptr<SegmentChannel> channel;
    std::int64_t deadline_ms = 0;  // of its handshake
  };

  SegmentKeeper(SegmentListener listener, OwnedFd wake, OwnedFd file, std::uint32_t workers, Warn warn);
  void loop();
  void accept_some(std::int64_t now_ms, bool& accepting);
  void serve(Client& client);
  void keep(Segment segment);
  void forget(std::uint64_t scope, Incarnation life);
  [[nodiscard]] bool was_called(std::uint64_t scope, Incarnation life, Generation since) const;

  const SegmentListener listener_;
  const OwnedFd wake_;
  const OwnedFd file_;
  const std::size_t most_;
  const std::size_t most_clients_;
  const Warn warn_;
  handshake::LinkKey key_{};
  std::list<Segment> segments_;  // the oldest first
  std::list<Client> clients_;
  bool full_told_ = false;
  bool shut_told_ = false;
  std::thread thread_;
};

// A worker's side.
class KeeperLink {
 public:
  struct Kept {
    Incarnation life;
    OwnedFd fd;
    std::uint64_t bytes = 0;
  };
  struct Offer {
    std::string job, host_id, worker_id;
    Incarnation self;
    std::shared_ptr<MemfdSegment> segment;
    Generation called{};  // of the interrupt for which this life was called as a spare; 0: for none
  };

  // Offers the own segment and takes those of other lives, dead ones among them. Blocks, for at most `timeout_ms`.
  // `environment`: as environment(). kInvalidArgument: not a value that a launcher has set. kUnavailable, kTimeout,
  // kRefused: there is no keeper any more, it does not answer, or does not know the key.
  static Result<std::unique_ptr<KeeperLink>> offer(const std::string& environment, const Offer& offer,
                                                   std::int64_t timeout_ms);

  // What the keeper gave, once.
  [[nodiscard]] std::vector<Kept> take() { return std::move(kept_); }
  // The keeper closes this life's segment. Never blocks; lost if the keeper is gone.
  void forget(Incarnation life);
  // The same of what the job went on without, said by a life that was called: not of one whose process lives and was
  // called for the same interrupt or a later one. It may have a place by now, and need its segment kept.
  void forget_stale(Incarnation life);

 private:
  explicit KeeperLink(std::unique_ptr<SegmentChannel> channel) : channel_(std::move(channel)) {}
  Status exchange(const Offer& offer, std::int64_t timeout_ms);

  std::unique_ptr<SegmentChannel> channel_;
  std::vector<Kept> kept_;
};

}  // namespace warren::worker
