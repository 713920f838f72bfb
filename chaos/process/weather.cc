#include "chaos/process/weather.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <deque>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "chaos/sim/random.h"

namespace warren::chaos::process {
namespace {

using Clock = std::chrono::steady_clock;

// Of one direction: what a router would keep.
constexpr std::size_t kMostFrames = 4096;
constexpr std::size_t kFrameBytes = 2048;  // of an Ethernet with its usual frames
constexpr int kFramesATurn = 64;

class Device {
 public:
  static Result<Device> make(const std::string& name) {
    Device d(::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC));
    ifreq request{};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    name.copy(request.ifr_name, IFNAMSIZ - 1);
    if (d.fd_ < 0 || ::ioctl(d.fd_, TUNSETIFF, &request) != 0) {
      return Status(Code::kUnavailable, "no device for frames: " + std::string(std::strerror(errno)));
    }
    return d;
  }
  Device(Device&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Device& operator=(Device&&) = delete;
  ~Device() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  explicit Device(int fd) : fd_(fd) {}
  int fd_;
};

struct Flow {
  struct Frame {
    Clock::time_point due;
    std::vector<std::byte> bytes;
  };
  std::deque<Frame> frames;
  Clock::time_point last{};
};

struct Cable {
  std::string name;
  std::array<Device, 2> ends;
  std::array<Flow, 2> from{};  // by end
  bool gone = false;           // the host's network is, and its end with it
};

}  // namespace

struct Weather::State {
  Forecast forecast;
  Random random{1};
  std::mutex mutex;
  std::list<Cable> cables;
  int wake = -1;
  bool ending = false;
  std::thread thread;

  void run() {
    std::vector<pollfd> fds;
    while (true) {
      fds.assign(1, {wake, POLLIN, 0});
      std::optional<Clock::time_point> next;
      {
        const std::lock_guard lock(mutex);
        if (ending) return;
        for (Cable& c : cables) {
          if (c.gone) continue;
          for (std::size_t end = 0; end < 2; ++end) {
            take(c, end);
            hand_on(c, end);
            if (!c.from[end].frames.empty()) {
              const auto due = c.from[end].frames.front().due;
              next = next ? std::min(*next, due) : due;
            }
            fds.push_back({c.ends[end].fd(), POLLIN, 0});
          }
        }
      }
      int timeout_ms = -1;
      if (next) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - Clock::now());
        timeout_ms = static_cast<int>(std::max<std::int64_t>(0, left.count()));
      }
      (void)::poll(fds.data(), fds.size(), timeout_ms);
      std::uint64_t woken = 0;
      if ((fds[0].revents & POLLIN) != 0) (void)!::read(wake, &woken, sizeof woken);
    }
  }

  void take(Cable& c, std::size_t end) {
    Flow& flow = c.from[end];
    for (int i = 0; i < kFramesATurn; ++i) {
      std::array<std::byte, kFrameBytes> frame;
      const ssize_t n = ::read(c.ends[end].fd(), frame.data(), frame.size());
      if (n <= 0) {
        // EIO: it is down, as a cable that is cut. EBADFD: it went with its network.
        if (n < 0 && errno == EBADFD) c.gone = true;
        return;
      }
      const bool lost = random.below(1000) < static_cast<std::uint64_t>(forecast.loss_permille);
      if (lost || flow.frames.size() == kMostFrames) continue;
      const auto delay_us = forecast.delay_ms * 1000 + random.between(0, forecast.jitter_ms * 1000);
      flow.last = std::max(flow.last, Clock::now() + std::chrono::microseconds(delay_us));
      flow.frames.push_back({flow.last, {frame.begin(), frame.begin() + n}});
    }
  }

  static void hand_on(Cable& c, std::size_t end) {
    Flow& flow = c.from[end];
    for (const auto now = Clock::now(); !flow.frames.empty() && flow.frames.front().due <= now;) {
      // What the other end cannot take is lost, as anywhere.
      (void)!::write(c.ends[1 - end].fd(), flow.frames.front().bytes.data(), flow.frames.front().bytes.size());
      flow.frames.pop_front();
    }
  }

  void rouse() const {
    const std::uint64_t one = 1;
    (void)!::write(wake, &one, sizeof one);
  }
};

Weather::Weather(std::unique_ptr<State> state) : state_(std::move(state)) {}

Result<std::unique_ptr<Weather>> Weather::begin(const Forecast& forecast) {
  auto state = std::make_unique<State>();
  state->forecast = forecast;
  state->random = Random(forecast.seed);
  state->wake = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (state->wake < 0) return Status(Code::kUnavailable, std::string("no eventfd: ") + std::strerror(errno));
  state->thread = std::thread([s = state.get()] { s->run(); });
  return std::unique_ptr<Weather>(new Weather(std::move(state)));
}

Weather::~Weather() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->ending = true;
  }
  state_->rouse();
  state_->thread.join();
  ::close(state_->wake);
}

Status Weather::lay(const std::string& bridge_end, const std::string& host_end) {
  auto bridge = Device::make(bridge_end);
  if (!bridge.ok()) return bridge.status();
  auto host = Device::make(host_end);
  if (!host.ok()) return host.status();
  const std::lock_guard lock(state_->mutex);
  state_->cables.push_back({bridge_end, {std::move(bridge).value(), std::move(host).value()}});
  state_->rouse();
  return {};
}

void Weather::drop(const std::string& bridge_end) {
  const std::lock_guard lock(state_->mutex);
  state_->cables.remove_if([&](const Cable& c) { return c.name == bridge_end; });
  state_->rouse();
}

}  // namespace warren::chaos::process
