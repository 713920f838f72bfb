// Begins of the workers that tests start as programs: their options, and the state that they load.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "warren/warren.h"

namespace warren::testing {

// Options from the first arguments, which are TRACKER SECRET_FILE WORKER_ID WORLD_SIZE.
inline Options options_of(char** argv, const char* job, std::chrono::milliseconds round_timeout_ms) {
  Options options;
  options.tracker = argv[1];
  options.job = job;
  options.secret_file = argv[2];
  options.worker_id = argv[3];
  options.world_size = std::atoi(argv[4]);
  options.round_timeout_ms = round_timeout_ms;
  options.log_level = LogLevel::error;
  return options;
}

// The state of a program that sums until it is told to stop.
struct State {
  int version = 0, stop = 0;
};
// The state of the newest checkpoint. Prints "joined RANK VERSION".
inline State load_state(Communicator& comm) {
  State state;
  const auto loaded = comm.load_checkpoint();
  if (loaded.version > 0) std::memcpy(&state, loaded.global.data(), sizeof state);
  std::printf("joined %d %d\n", comm.rank(), state.version);
  std::fflush(stdout);
  return state;
}

}  // namespace warren::testing
