// K engines in one process and one thread, joined by real sockets: what the tests of the data path run on.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "storage/segment_memory.h"
#include "worker/rounds/engine.h"
#include "worker/transport/host_memory.h"
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
    std::uint32_t cores = 0;      // of each host: likewise
    // By rank, for schedules, links and logs: pipes join ranks of a host alone, and several streams those of two.
    // Empty: as above.
    std::vector<std::uint32_t> hosts;
    std::size_t ring_bytes = HostPipe::kRingBytes;
    std::size_t log_bytes = 0;  // results are logged, with two copies
    bool shrinks = false;
  };

  explicit Mesh(const Options& options) : options_(options) {
    for (int r = 0; r < options.size; r++) {
      nodes_.push_back(std::make_unique<Node>());
      Node& n = *nodes_.back();
      n.transport = std::make_unique<LinkTransport>(
          [this, r](GroupId g, Rank p) { wanted_.emplace_back(r, g, p); },
          [&n](Rank p) { return n.log == nullptr ? nullptr : n.log->segment_of(life_of(p.value)); }, &n.memory);
      n.engine = std::make_unique<Engine>(*n.transport, n.board);
      if (options.log_bytes != 0) keep_log(r);
    }
    for (int r = 0; r < options.size; r++) {
      Node& n = *nodes_[static_cast<std::size_t>(r)];
      std::vector<std::uint32_t> streams_to;
      for (int peer = 0; peer < options.size && !options.hosts.empty(); peer++) {
        streams_to.push_back(same_host(r, peer) ? 1 : options.streams);
      }
      n.transport->open(Generation(1), options.streams, options.checksums, std::move(streams_to));
      n.memory.install(lives());
      if (n.log != nullptr) install_log(r);
      Engine::Plan plan;
      plan.replicas = n.log == nullptr ? 0 : 2;
      plan.generation = Generation(1);
      plan.self = Rank(r);
      plan.world_size = static_cast<std::uint32_t>(options.size);
      for (int peer = 0; peer < options.size; peer++) plan.present.emplace_back(peer);
      plan.algorithm = options.algorithm;
      plan.chunk_bytes = options.chunk_bytes;
      plan.check_call_sites = options.check_call_sites;
      plan.shrinks = options.shrinks;
      if (options.one_host)
        plan.hosts = plan.domains = std::vector<std::uint32_t>(static_cast<std::size_t>(options.size));
      if (!options.hosts.empty()) plan.hosts = plan.domains = options.hosts;
      for (std::size_t host = 0; host < plan.hosts.size(); host++) {
        plan.shared.push_back({.maps = options.pipes, .cores = options.cores});
      }
      n.engine->install(plan);
      n.engine->open();
    }
  }

  Engine& engine(int rank) { return *nodes_[static_cast<std::size_t>(rank)]->engine; }
  RoundBoard& board(int rank) { return nodes_[static_cast<std::size_t>(rank)]->board; }
  LinkTransport& transport(int rank) { return *nodes_[static_cast<std::size_t>(rank)]->transport; }
  [[nodiscard]] int size() const { return options_.size; }

  // Memory of this rank's that all ranks of its host have mapped.
  std::span<std::byte> allocate(int rank, std::size_t bytes) {
    auto memory = HostMemory::make(bytes).value();
    HostMemory& own = nodes_[static_cast<std::size_t>(rank)]->memory;
    const std::uint32_t number = own.add(memory).value();
    for (int mate = 0; mate < options_.size; mate++) {
      if (mate == rank || !same_host(rank, mate)) continue;
      auto mapped = map_segment(memory->fd(), memory->bytes().size()).value();
      nodes_[static_cast<std::size_t>(mate)]->memory.attach(life_of(rank), number, std::move(mapped));
      own.mapped_by(life_of(mate), number);
    }
    return memory->bytes();
  }

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
      const bool within = same_host(a, b);
      const std::uint32_t streams = within && !options_.hosts.empty() ? 1 : options_.streams;
      for (std::uint16_t s = 0; s < streams; s++) {
        int fds[2];
        EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
        if (options_.socket_buffer_bytes != 0) {
          for (const int fd : fds) {
            setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &options_.socket_buffer_bytes, sizeof(int));
            setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &options_.socket_buffer_bytes, sizeof(int));
          }
        }
        std::unique_ptr<HostPipe> first, second;
        if (options_.pipes && within) {
          const OwnedFd memory = HostPipe::create(options_.ring_bytes).value();
          first = HostPipe::map(memory.get(), true).value();
          second = HostPipe::map(memory.get(), false).value();
        }
        EXPECT_TRUE(transport(a).adopt(Generation(1), group, Rank(b), s, fds[0], std::move(first)).ok());
        EXPECT_TRUE(transport(b).adopt(Generation(1), group, Rank(a), s, fds[1], std::move(second)).ok());
      }
      made = true;
    }
    return made;
  }

 private:
  struct Node {
    RoundBoard board;
    HostMemory memory;
    std::shared_ptr<SegmentMemory> segment;
    std::unique_ptr<HostLog> log;
    std::unique_ptr<LinkTransport> transport;
    std::optional<Recall> recall;
    std::unique_ptr<Engine> engine;
  };
  static Incarnation life_of(int rank) { return Incarnation(static_cast<std::uint64_t>(rank) + 1); }
  [[nodiscard]] std::vector<Incarnation> lives() const {
    std::vector<Incarnation> all;
    for (int r = 0; r < options_.size; r++) all.push_back(life_of(r));
    return all;
  }
  [[nodiscard]] bool same_host(int a, int b) const {
    return options_.hosts.empty() ||
           options_.hosts[static_cast<std::size_t>(a)] == options_.hosts[static_cast<std::size_t>(b)];
  }
  void keep_log(int rank) {
    Node& n = *nodes_[static_cast<std::size_t>(rank)];
    n.segment = heap_segment(options_.log_bytes);
    n.log = HostLog::create(life_of(rank), n.segment).value();
    // Nobody is lost, and nothing asked for.
    n.recall.emplace(
        *n.log, [] { return TimeMs(); }, [](const Replayer::Send&) {});
    n.engine->use(*n.recall);
  }
  void install_log(int rank) {
    Node& n = *nodes_[static_cast<std::size_t>(rank)];
    Replayer::Plan plan;
    plan.generation = Generation(1);
    plan.self = Rank(rank);
    plan.replicas = 2;
    plan.timeout_ms = 1000;
    for (int peer = 0; peer < options_.size; peer++) {
      Node& other = *nodes_[static_cast<std::size_t>(peer)];
      if (peer != rank && same_host(rank, peer)) {
        ASSERT_TRUE(n.log->attach(life_of(peer), other.segment->bytes(), other.segment).ok());
      }
      const std::uint32_t at = options_.hosts.empty() ? 0 : options_.hosts[static_cast<std::size_t>(peer)];
      const std::string host = "h" + std::to_string(at);
      plan.peers.push_back({Rank(peer), life_of(peer), host, host, false, Generation(1)});
    }
    n.recall->install(plan);
  }
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
