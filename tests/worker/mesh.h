// K engines in one process and one thread, joined by real sockets: what the tests of the data path run on.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <memory>
#include <set>
#include <tuple>
#include <vector>

#include "worker/engine.h"
#include "worker/transport/link_transport.h"

namespace warren::worker::testing {

class Mesh {
 public:
  struct Options {
    int size = 2;
    schedule::Algorithm algorithm = schedule::Algorithm::kAuto;
    std::uint64_t chunk_bytes = 4096;
    std::uint32_t streams = 1;
    bool checksums = true;
    bool check_call_sites = false;
    int socket_buffer_bytes = 0;  // small ones make partial reads and writes; 0: the kernel's
    bool pipes = false;           // of shared memory, as within a host
    bool one_host = false;        // what schedules are told
  };

  explicit Mesh(const Options& options) : options_(options) {
    for (int r = 0; r < options.size; r++) {
      nodes_.push_back(std::make_unique<Node>());
      Node& n = *nodes_.back();
      n.transport = std::make_unique<LinkTransport>([this, r](GroupId g, Rank p) { wanted_.emplace_back(r, g, p); });
      n.engine = std::make_unique<Engine>(*n.transport, n.board);
      n.transport->open(Epoch(1), options.streams, options.checksums);
      Engine::Plan plan;
      plan.epoch = Epoch(1);
      plan.self = Rank(r);
      plan.world_size = static_cast<std::uint32_t>(options.size);
      for (int peer = 0; peer < options.size; peer++) plan.present.emplace_back(peer);
      plan.algorithm = options.algorithm;
      plan.chunk_bytes = options.chunk_bytes;
      plan.check_call_sites = options.check_call_sites;
      if (options.one_host)
        plan.hosts = plan.domains = std::vector<std::uint32_t>(static_cast<std::size_t>(options.size));
      n.engine->install(plan);
      n.engine->open();
    }
  }

  Engine& engine(int rank) { return *nodes_[static_cast<std::size_t>(rank)]->engine; }
  RoundBoard& board(int rank) { return nodes_[static_cast<std::size_t>(rank)]->board; }
  LinkTransport& transport(int rank) { return *nodes_[static_cast<std::size_t>(rank)]->transport; }
  [[nodiscard]] int size() const { return options_.size; }

  // Progress everywhere until `done`; false when nothing has moved for a long time.
  bool run(const std::function<bool()>& done) {
    int idle = 0;
    while (!done()) {
      bool moved = connect();
      for (auto& n : nodes_) moved = n->engine->progress() || moved;
      idle = moved ? 0 : idle + 1;
      if (idle > 20000) return false;
    }
    return true;
  }

  // Makes the connections that engines asked for. The file descriptors of a link's first end are kept in `raw`.
  bool connect() {
    bool made = false;
    while (!wanted_.empty()) {
      const auto [from, group, peer] = wanted_.front();
      wanted_.pop_front();
      const int a = std::min(from, peer.value), b = std::max(from, peer.value);
      if (!connected_.insert({group, a, b}).second) continue;
      for (std::uint16_t s = 0; s < options_.streams; s++) {
        int fds[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
        if (options_.socket_buffer_bytes != 0) {
          for (const int fd : fds) {
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &options_.socket_buffer_bytes, sizeof(int));
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &options_.socket_buffer_bytes, sizeof(int));
          }
        }
        std::unique_ptr<HostPipe> first, second;
        if (options_.pipes) {
          const OwnedFd memory = HostPipe::create().value();
          first = HostPipe::map(memory.get(), true).value();
          second = HostPipe::map(memory.get(), false).value();
        }
        EXPECT_TRUE(transport(a).adopt(Epoch(1), group, Rank(b), s, fds[0], std::move(first)).ok());
        EXPECT_TRUE(transport(b).adopt(Epoch(1), group, Rank(a), s, fds[1], std::move(second)).ok());
      }
      made = true;
    }
    return made;
  }

 private:
  struct Node {
    RoundBoard board;
    std::unique_ptr<LinkTransport> transport;
    std::unique_ptr<Engine> engine;
  };
  struct Less {
    bool operator()(const std::tuple<GroupId, int, int>& x, const std::tuple<GroupId, int, int>& y) const {
      return std::tuple(std::get<0>(x).value, std::get<1>(x), std::get<2>(x)) <
             std::tuple(std::get<0>(y).value, std::get<1>(y), std::get<2>(y));
    }
  };
  Options options_;
  std::vector<std::unique_ptr<Node>> nodes_;
  std::deque<std::tuple<int, GroupId, Rank>> wanted_;
  std::set<std::tuple<GroupId, int, int>, Less> connected_;
};

}  // namespace warren::worker::testing
