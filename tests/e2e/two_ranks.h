// Jobs of two ranks, each in a thread and on a host of its own.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <thread>

#include "tests/e2e/cluster.h"

namespace warren::testing {

// Each rank is a host and a failure domain of its own: a new life fetches what it replays, and nothing goes with one.
inline void apart(int rank, Options& o) {
  o.host_id = o.domain_id = "host-" + std::to_string(rank);
  o.replicas = 2;
}

// The program of a rank, which may change its options. No exception may leave it.
using Program = std::function<void(Options&)>;

inline void run_two_ranks(const Cluster& cluster, const Program& rank_0, const Program& rank_1,
                          const std::string& job = "job") {
  const auto run = [&](int rank, const Program& program) {
    Options o = cluster.options(rank, 2, job);
    apart(rank, o);
    try {
      program(o);
    } catch (const std::exception& e) {
      ADD_FAILURE() << "rank " << rank << ": " << e.what();
    }
  };
  std::thread other([&] { run(1, rank_1); });
  run(0, rank_0);
  other.join();
}

}  // namespace warren::testing
