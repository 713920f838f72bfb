#include "cli/doctor_checks.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <optional>
#include <string_view>

#include "storage/secret.h"
#include "storage/zeromq.h"
#include "worker/settings/settings.h"
#include "worker/system/netinfo.h"

extern char** environ;

namespace warren::cli {
namespace {

using Findings = std::vector<Finding>;
using Clock = std::chrono::steady_clock;

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

std::string error_text() {
  return std::strerror(errno);
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 10'240 && unit + 1 < kUnits.size()) bytes >>= 10, ++unit;
  return std::to_string(bytes) + " " + kUnits[unit];
}

std::optional<std::int64_t> number_in(const char* path) {
  std::ifstream file(path);
  std::int64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

void check_cores(Findings& out) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 0;
  Finding f{"cores", Health::kOk, std::to_string(cores) + " cores", ""};
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (file >> quota >> period && quota != "max" && period > 0) {
    const double share = std::strtod(quota.c_str(), nullptr) / period;
    f.text += ", of which this container may use " + std::to_string(share).substr(0, 4);
    if (share < 1) {
      f.health = Health::kWarn;
      f.advice = "a worker that is throttled looks like a slow one: give the container at least one core";
    }
  }
  out.push_back(std::move(f));
}

void check_limit(Findings& out, const char* name, rlim_t limit, std::uint64_t enough, const std::string& text,
                 const std::string& advice) {
  const bool unlimited = limit == RLIM_INFINITY;
  const bool well = unlimited || limit >= enough;
  out.push_back({name, well ? Health::kOk : Health::kWarn, unlimited ? "unlimited" : text, well ? "" : advice});
}

// The soft limit is raised to the hard one, by trackers and by workers.
void check_open_files(Findings& out) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    out.push_back({"nofile", Health::kWarn, "unknown: " + error_text(), ""});
    return;
  }
  check_limit(out, "nofile", limit.rlim_max, 4096, std::to_string(limit.rlim_max),
              "each link takes descriptors: raise the hard limit with ulimit -Hn 65536 (LimitNOFILE= in a unit)");
}

void check_locked_memory(Findings& out) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
    out.push_back({"memlock", Health::kWarn, "unknown: " + error_text(), ""});
    return;
  }
  check_limit(out, "memlock", limit.rlim_cur, std::uint64_t{64} << 20, bytes_text(limit.rlim_cur),
              "only buffers for GPUs need more: ulimit -l unlimited (LimitMEMLOCK= in a unit)");
}

void check_shared_memory(Findings& out) {
  constexpr std::uint64_t kEnough = std::uint64_t{256} << 20;
  struct statvfs fs {};
  if (statvfs("/dev/shm", &fs) != 0) {
    out.push_back({"shm", Health::kWarn, "no /dev/shm: " + error_text(), "mount a tmpfs there"});
    return;
  }
  const std::uint64_t free = std::uint64_t{fs.f_bavail} * fs.f_frsize;
  Finding f{"shm", Health::kOk, "/dev/shm has " + bytes_text(free) + " free", ""};
  if (free < kEnough) {
    f.health = Health::kWarn;
    f.advice = "give a container more, as docker run --shm-size=1g does";
  }
  out.push_back(std::move(f));
}

void check_ptrace(Findings& out) {
  const auto scope = number_in("/proc/sys/kernel/yama/ptrace_scope");
  if (!scope || *scope == 0) {
    out.push_back({"ptrace_scope", Health::kOk, scope ? "0" : "not restricted", ""});
    return;
  }
  out.push_back({"ptrace_scope", Health::kWarn, std::to_string(*scope),
                 "ranks of one host cannot read each other's memory directly: sysctl kernel.yama.ptrace_scope=0"});
}

void check_somaxconn(Findings& out) {
  const auto n = number_in("/proc/sys/net/core/somaxconn");
  Finding f{"somaxconn", Health::kOk, n ? std::to_string(*n) : "unknown", ""};
  if (n && *n < 1024) {
    f.health = Health::kWarn;
    f.advice = "many workers that join at once may have to try again: sysctl net.core.somaxconn=4096";
  }
  out.push_back(std::move(f));
}

// Why the port cannot be bound on all interfaces; empty: it can.
std::string bind_trouble(std::uint16_t port) {
  const Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  if (fd.get() < 0 || bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), 1) != 0) {
    return error_text();
  }
  return {};
}

// Which the system gives to outgoing connections; nothing: it does not say.
std::optional<worker::PortRange> ephemeral_ports() {
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  worker::PortRange range;
  return file >> range.first >> range.last ? std::optional(range) : std::nullopt;
}

void check_port(Findings& out, const char* name, const char* flag, std::uint16_t port) {
  Finding f{name, Health::kOk, std::to_string(port) + " is free", ""};
  const auto ephemeral = ephemeral_ports();
  if (const std::string trouble = bind_trouble(port); !trouble.empty()) {
    f.health = Health::kWarn;
    f.text = std::to_string(port) + ": " + trouble;
    f.advice = std::string("if that is not a tracker that runs here, choose another one with ") + flag;
  } else if (ephemeral && port >= ephemeral->first && port <= ephemeral->last) {
    f.health = Health::kWarn;
    f.text += ", but outgoing connections may take it: it lies in the range of ephemeral ports";
    f.advice = std::string("choose one below ") + std::to_string(ephemeral->first) + " with " + flag;
  }
  out.push_back(std::move(f));
}

void check_worker_ports(Findings& out, const worker::PortRange& range) {
  Finding f{"worker_ports", Health::kOk, "each worker listens on any two free ports", ""};
  if (!range.given()) {
    f.text += "; --port_range=LOW:HIGH (WARREN_PORT_RANGE) gives those that a firewall lets through";
    out.push_back(std::move(f));
    return;
  }
  std::uint32_t free = 0;
  for (std::uint32_t port = range.first; port <= range.last; ++port) {
    free += bind_trouble(static_cast<std::uint16_t>(port)).empty() ? 1 : 0;
  }
  const std::uint32_t workers = free / worker::kPortsOfWorker;
  f.text = std::to_string(free) + " of the " + std::to_string(range.size()) + " ports of " + to_string(range) +
           " are free: enough for " + std::to_string(workers) + (workers == 1 ? " worker" : " workers");
  const auto ephemeral = ephemeral_ports();
  if (workers == 0) {
    f.health = Health::kBad;
    f.advice = "no worker could start here: give a wider range, or end what listens there";
  } else if (ephemeral && range.first <= ephemeral->last && range.last >= ephemeral->first) {
    f.health = Health::kWarn;
    f.text += ", but outgoing connections may take some: they lie in the range of ephemeral ports";
    f.advice = "choose a range below " + std::to_string(ephemeral->first);
  }
  out.push_back(std::move(f));
}

void check_interfaces(Findings& out) {
  const auto interfaces = worker::list_interfaces();
  if (!interfaces.ok()) {
    out.push_back(
        {"interfaces", Health::kBad, interfaces.status().describe(), "check the permissions of this process"});
    return;
  }
  Finding f{"interfaces", Health::kWarn, "", "only programs on this machine can reach a tracker or worker here"};
  for (const worker::Interface& i : interfaces.value()) {
    if (!i.up || i.addresses.empty()) continue;
    if (!i.loopback) {
      f.health = Health::kOk;
      f.advice.clear();
    }
    f.text += (f.text.empty() ? "" : "; ") + i.name;
    for (const std::string& address : i.addresses) f.text += " " + address;
  }
  out.push_back(std::move(f));
}

// Why no TCP connection comes up; empty: one did.
std::string connect_trouble(const worker::HostPort& to) {
  constexpr int kPatienceMs = 2000;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &list);
  if (rc != 0) return gai_strerror(rc);
  const Fd fd(socket(list->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  int trouble = connect(fd.get(), list->ai_addr, list->ai_addrlen) == 0 ? 0 : errno;
  freeaddrinfo(list);
  if (trouble == EINPROGRESS) {
    pollfd ready{.fd = fd.get(), .events = POLLOUT, .revents = 0};
    socklen_t size = sizeof trouble;
    if (poll(&ready, 1, kPatienceMs) != 1) return "no answer within 2 s";
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &trouble, &size) != 0) trouble = errno;
  }
  return trouble == 0 ? "" : std::strerror(trouble);
}

struct ZmqClose {
  void operator()(void* socket) const { zmq_close(socket); }
};
struct ZmqEnd {
  void operator()(void* context) const { end_zeromq(context); }
};

// Why the tracker at `endpoint` does not talk to who has these keys; empty: it does. It proves which tracker it is, and
// looks at who we are only once something is said, which is nothing here.
std::string handshake_trouble(const std::string& endpoint, const storage::JobCredentials& keys) {
  constexpr long kPatienceMs = 2000;
  constexpr const char* kMonitor = "inproc://warren-doctor";
  constexpr int kNoLinger = 0, kIpv6 = 1;
  if (const Status s = has_room_for_zeromq(1); !s.ok()) return s.describe();
  const std::unique_ptr<void, ZmqEnd> context(zmq_ctx_new());
  const std::unique_ptr<void, ZmqClose> tracker(zmq_socket(context.get(), ZMQ_DEALER));
  const auto set = [&](int option, const std::string& value) {
    return zmq_setsockopt(tracker.get(), option, value.data(), value.size()) == 0;
  };
  bool ok = tracker && zmq_setsockopt(tracker.get(), ZMQ_LINGER, &kNoLinger, sizeof kNoLinger) == 0 &&
            zmq_setsockopt(tracker.get(), ZMQ_IPV6, &kIpv6, sizeof kIpv6) == 0 &&
            set(ZMQ_CURVE_SERVERKEY, keys.tracker_public_z85) && set(ZMQ_CURVE_PUBLICKEY, keys.worker.public_z85) &&
            set(ZMQ_CURVE_SECRETKEY, keys.worker.secret_z85) &&
            zmq_socket_monitor(tracker.get(), kMonitor, ZMQ_EVENT_HANDSHAKE_SUCCEEDED) == 0;
  const std::unique_ptr<void, ZmqClose> monitor(zmq_socket(context.get(), ZMQ_PAIR));
  ok = ok && monitor && zmq_setsockopt(monitor.get(), ZMQ_LINGER, &kNoLinger, sizeof kNoLinger) == 0 &&
       zmq_connect(monitor.get(), kMonitor) == 0 && zmq_connect(tracker.get(), endpoint.c_str()) == 0;
  if (!ok) return zmq_strerror(zmq_errno());
  zmq_pollitem_t item{monitor.get(), 0, ZMQ_POLLIN, 0};
  const int rc = zmq_poll(&item, 1, kPatienceMs);
  zmq_socket_monitor(tracker.get(), nullptr, 0);
  return rc == 1 ? "" : "the tracker did not accept it within 2 s";
}

void check_secret(Findings& out, const std::string& tracker, const DoctorOptions& options) {
  const auto bad = [&](const std::string& text, const std::string& advice) {
    out.push_back({"secret", Health::kBad, text, advice});
  };
  const auto secret = storage::Secret::load(options.secret_file);
  if (!secret.ok()) return bad(secret.status().describe(), "name a file that `warren keygen` made");
  const auto keys = secret.value().for_job(options.job);
  if (!keys.ok()) return bad(keys.status().describe(), "name the job by --job or WARREN_JOB, or that job's own file");
  const std::string trouble = handshake_trouble("tcp://" + tracker, keys.value());
  if (!trouble.empty()) {
    return bad(
        options.secret_file + ": " + trouble,
        "copy the secret of this tracker, or of a job of it, to here; a tracker with --insecure_no_auth wants none");
  }
  out.push_back({"secret", Health::kOk, options.secret_file + " opens job " + options.job + " of this tracker", ""});
}

void check_tracker(Findings& out, const DoctorOptions& options) {
  const auto address = worker::parse_host_port("the tracker", options.tracker, worker::kDefaultTrackerPort);
  if (!address.ok()) {
    out.push_back({"route", Health::kBad, address.status().describe(), "correct the address"});
    return;
  }
  const auto local = worker::local_address_towards(address.value().host, address.value().port);
  if (!local.ok()) {
    out.push_back({"route", Health::kBad, local.status().describe(), "check name resolution and routes"});
    return;
  }
  const bool loopback = worker::is_loopback_address(local.value());
  out.push_back({"route", Health::kOk,
                 "to " + to_string(address.value()) + " from " + local.value() +
                     (loopback ? ": only workers on this machine can take part" : ""),
                 ""});
  const std::string trouble = connect_trouble(address.value());
  out.push_back({"tracker", trouble.empty() ? Health::kOk : Health::kBad,
                 to_string(address.value()) + (trouble.empty() ? " answers" : ": " + trouble),
                 trouble.empty() ? "" : "start it with `warren tracker`, or check firewalls between here and there"});
  if (trouble.empty() && !options.secret_file.empty()) check_secret(out, to_string(address.value()), options);
}

void check_disk(Findings& out, const std::string& folder) {
  constexpr std::uint64_t kEnough = std::uint64_t{1} << 30;
  struct statvfs fs {};
  if (statvfs(folder.c_str(), &fs) != 0) {
    out.push_back(
        {"disk", Health::kBad, folder + ": " + error_text(), "make the folder, or name another by --data_dir"});
    return;
  }
  const std::uint64_t free = std::uint64_t{fs.f_bavail} * fs.f_frsize;
  out.push_back({"disk", free < kEnough ? Health::kWarn : Health::kOk, folder + " has " + bytes_text(free) + " free",
                 free < kEnough ? "make room, or name another folder by --data_dir" : ""});

  // A file without a name is gone when it is closed, whatever happens.
  const Fd fd(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd.get() < 0) {
    out.push_back({"fsync", Health::kBad, "cannot write in " + folder + ": " + error_text(),
                   "check the folder's owner and mode, or name another by --data_dir"});
    return;
  }
  constexpr int kTimes = 11;
  std::array<std::byte, 4096> block{};
  std::vector<std::int64_t> took_us;
  for (int i = 0; i < kTimes; ++i) {
    const auto begin = Clock::now();
    if (pwrite(fd.get(), block.data(), block.size(), i * static_cast<off_t>(block.size())) < 0 ||
        fsync(fd.get()) != 0) {
      out.push_back({"fsync", Health::kBad, "cannot write in " + folder + ": " + error_text(), "check the disk"});
      return;
    }
    took_us.push_back(std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - begin).count());
  }
  std::ranges::sort(took_us);
  const std::int64_t median = took_us[kTimes / 2];
  constexpr std::int64_t kSlowUs = 20'000;
  out.push_back({"fsync", median > kSlowUs ? Health::kWarn : Health::kOk,
                 std::to_string(median) + " us (median of " + std::to_string(kTimes) + ")",
                 median > kSlowUs ? "each change of a job waits for one: use a local disk for --data_dir" : ""});
}

void check_clocks(Findings& out) {
  constexpr int kReads = 10'000;
  auto before = Clock::now();
  bool monotonic = true;
  for (int i = 0; i < kReads; ++i) {
    const auto now = Clock::now();
    monotonic = monotonic && now >= before;
    before = now;
  }
  out.push_back({"clock", monotonic ? Health::kOk : Health::kBad,
                 monotonic ? "monotonic" : "the monotonic clock ran backwards",
                 monotonic ? "" : "timeouts cannot be trusted here: check the hypervisor's clock source"});
  timex state{};
  const int rc = adjtimex(&state);
  constexpr std::time_t kLongAgo = 1'700'000'000;  // November 2023
  const bool sane = std::time(nullptr) > kLongAgo;
  const bool synchronized = rc >= 0 && rc != TIME_ERROR;
  out.push_back({"time", sane && synchronized ? Health::kOk : Health::kWarn,
                 !sane           ? "the date is wrong"
                 : !synchronized ? "the time of day is not synchronized"
                                 : "synchronized",
                 sane && synchronized ? "" : "logs of different machines will not fit together: run an NTP client"});
}

void check_variables(Findings& out) {
  std::vector<std::string_view> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) entries.emplace_back(*entry);
  const auto wrong = worker::misspelled_variables(entries);
  for (const std::string& text : wrong) out.push_back({"variables", Health::kWarn, text, "correct or unset it"});
  if (wrong.empty()) out.push_back({"variables", Health::kOk, "every WARREN_* variable is known", ""});
}

}  // namespace

std::vector<Finding> examine(const DoctorOptions& options) {
  Findings out;
  check_cores(out);
  check_open_files(out);
  check_locked_memory(out);
  check_shared_memory(out);
  check_ptrace(out);
  check_somaxconn(out);
  check_port(out, "port", "--port", options.port);
  check_port(out, "http_port", "--http_port", options.http_port);
  check_worker_ports(out, options.port_range);
  check_interfaces(out);
  if (!options.tracker.empty()) check_tracker(out, options);
  check_disk(out, options.data_dir);
  check_clocks(out);
  check_variables(out);
  return out;
}

}  // namespace warren::cli
