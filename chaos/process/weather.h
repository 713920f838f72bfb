// What a kernel without netem cannot do to a cable: delay, jitter and loss. Frames go by way of this process: the
// host's end of a cable and the bridge's are devices of it, and it carries each frame from one to the other when its
// time has come. Frames keep their order, as on a real path; each takes the delay and up to as much as the jitter more.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "recovery/base/result.h"

namespace warren::chaos::process {

struct Forecast {
  std::int64_t delay_ms = 0;   // each way
  std::int64_t jitter_ms = 0;  // more than that, at most
  int loss_permille = 0;       // of frames, each way
  std::uint64_t seed = 1;
  [[nodiscard]] bool fine() const { return delay_ms == 0 && jitter_ms == 0 && loss_permille == 0; }
};

class Weather {
 public:
  // Starts the thread that carries frames. kUnavailable: the system has no such devices (/dev/net/tun, root).
  static Result<std::unique_ptr<Weather>> begin(const Forecast& forecast);
  ~Weather();
  Weather(const Weather&) = delete;
  Weather& operator=(const Weather&) = delete;

  // A cable: `bridge_end` in the calling thread's network, `host_end` likewise, to be moved from there. Both go with
  // drop(), and the host's with its network too.
  [[nodiscard]] Status lay(const std::string& bridge_end, const std::string& host_end);
  void drop(const std::string& bridge_end);

 private:
  struct State;
  explicit Weather(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace warren::chaos::process
