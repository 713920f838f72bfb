#include "worker/system/netinfo.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "recovery/base/limits.h"
#include "storage/start_thread.h"
#include "worker/system/text.h"

namespace warren::worker {
namespace {

constexpr std::size_t kMaxHostNameBytes = 253;

bool is_ipv6(std::string_view text) {
  in6_addr parsed;
  const std::string address(text.substr(0, text.find('%')));
  return inet_pton(AF_INET6, address.c_str(), &parsed) == 1;
}

bool is_ipv4(std::string_view text) {
  in_addr parsed;
  return inet_pton(AF_INET, std::string(text).c_str(), &parsed) == 1;
}

bool is_host_name(std::string_view text) {
  if (text.empty() || text.size() > kMaxHostNameBytes || text.front() == '-' || text.front() == '.') return false;
  // Digits and dots that are no address are a mistyped address, not a name.
  if (text.find_first_not_of("0123456789.") == std::string_view::npos) return false;
  return std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '.' ||
           c == '_';
  });
}

struct FreeAddrinfo {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddrinfoList = std::unique_ptr<addrinfo, FreeAddrinfo>;

constexpr const char* kAnyPort = "9";

// Blocks as long as the resolver does.
Result<AddrinfoList> ask_resolver(const std::string& host, const std::string& port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(host.c_str(), port.c_str(), &hints, &list);
  if (rc != 0) {
    const char* why = rc == EAI_SYSTEM ? std::strerror(errno) : gai_strerror(rc);
    return Status(Code::kUnavailable, "cannot resolve the host name " + in_quotes(host) + ": " + why +
                                          "; check the spelling and this machine's DNS, or give a numeric address");
  }
  return AddrinfoList(list);
}

// What the thread that asks the resolver shares with the one that waits for its answer.
struct Question {
  std::mutex mutex;
  std::condition_variable answered;
  std::optional<Result<AddrinfoList>> answer;
};

// A thread of its own asks for a name, as nothing ends a resolver that waits for silent name servers. It outlives this
// call where they do not answer in time.
Result<AddrinfoList> look_up(const std::string& host, const std::string& port, std::chrono::milliseconds patience) {
  if (is_numeric_address(host)) return ask_resolver(host, port);
  const auto question = std::make_shared<Question>();
  std::thread thread;
  Status started = start_thread(thread, [question, host, port] {
    auto answer = ask_resolver(host, port);
    const std::lock_guard lock(question->mutex);
    question->answer = std::move(answer);
    question->answered.notify_all();
  });
  if (!started.ok()) return started.because_of_this("cannot resolve the host name " + in_quotes(host));
  thread.detach();
  std::unique_lock lock(question->mutex);
  if (!question->answered.wait_for(lock, patience, [&] { return question->answer.has_value(); })) {
    return Status(Code::kUnavailable, "cannot resolve the host name " + in_quotes(host) +
                                          ": no name server has answered within " + std::to_string(patience.count()) +
                                          " ms; check this machine's DNS, or give a numeric address");
  }
  return std::move(*question->answer);
}

std::string numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) return {};
  return text.data();
}

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

// The local end of a UDP socket connected to `to`, or empty with `why` set.
std::string route_source(const addrinfo& to, std::string& why) {
  const Descriptor fd(socket(to.ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage local{};
  socklen_t size = sizeof local;
  if (fd.get() < 0 || connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0 ||
      getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &size) != 0) {
    why = std::strerror(errno);
    return {};
  }
  return numeric(reinterpret_cast<const sockaddr*>(&local), size);
}

bool means_loopback(const std::string& host) {
  return host == "localhost" || host == "ip6-localhost" || is_loopback_address(host);
}

// The address that the rest of the network knows this machine by: the source of the default route, else the first
// address that is not loopback. A machine that has none of them is alone: its loopback address.
Result<std::string> outward_address() {
  // Addresses set aside for documentation: nobody has a route of their own for them, and connecting sends nothing.
  for (const char* anywhere : {"192.0.2.1", "2001:db8::1"}) {
    auto list = ask_resolver(anywhere, kAnyPort);
    std::string why;
    if (!list.ok()) continue;
    std::string source = route_source(*list.value(), why);
    if (!source.empty() && !is_loopback_address(source)) return source;
  }
  auto interfaces = list_interfaces();
  if (!interfaces.ok()) return interfaces.status();
  return own_address(interfaces.value(), "::");
}

std::string join_names(const std::vector<Interface>& interfaces) {
  std::string out;
  for (const Interface& i : interfaces) {
    if (!i.up || i.addresses.empty()) continue;
    out += (out.empty() ? "" : ", ") + i.name + " (" + i.addresses.front() + ")";
  }
  return out;
}

bool is_wildcard(const std::string& address) {
  return address == "0.0.0.0" || address == "::";
}

// The numeric form of `bind`, which the user gave.
Result<std::string> bind_to_numeric(const std::string& bind) {
  auto interfaces = list_interfaces();
  if (is_wildcard(bind)) return bind;
  if (!interfaces.ok())
    return interfaces.status().because_of_this("cannot look up the bind address " + in_quotes(bind));
  for (const Interface& i : interfaces.value()) {
    if (std::ranges::find(i.addresses, bind) != i.addresses.end()) return bind;
    if (i.name != bind) continue;
    if (!i.up || i.addresses.empty()) {
      return Status(Code::kInvalidArgument, "the bind address names the interface " + in_quotes(bind) + ", which is " +
                                                (i.up ? "without an address" : "down") + "; there are " +
                                                join_names(interfaces.value()));
    }
    return i.addresses.front();
  }
  // All of 127.0.0.0/8 belongs to the loopback interface, which lists one address of it.
  if (is_numeric_address(bind) && is_loopback_address(bind)) return bind;
  return Status(Code::kInvalidArgument, "the bind address " + in_quotes(bind) +
                                            " is no address or interface of this machine; there are " +
                                            join_names(interfaces.value()));
}

}  // namespace

bool is_numeric_address(std::string_view text) {
  return is_ipv4(text) || is_ipv6(text);
}

bool is_loopback_address(std::string_view numeric_address) {
  in_addr v4;
  const std::string text(numeric_address.substr(0, numeric_address.find('%')));
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

Result<HostPort> parse_host_port(std::string_view what, std::string_view text, std::uint16_t default_port) {
  const auto wrong = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, std::string(what) + " is " + in_quotes(text) + ": " + why +
                                              "; give host:port, or [v6]:port for an IPv6 address");
  };
  std::string_view host = text;
  std::optional<std::string_view> port;
  if (!text.empty() && text.front() == '[') {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return wrong("the bracket is not closed");
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!is_ipv6(host)) return wrong("what is in brackets is not an IPv6 address");
    if (!rest.empty()) {
      if (rest.front() != ':') return wrong("after the bracket comes a colon and a port");
      port = rest.substr(1);
    }
  } else if (!is_ipv6(text)) {
    const std::size_t colon = text.rfind(':');
    if (colon != std::string_view::npos) {
      host = text.substr(0, colon);
      port = text.substr(colon + 1);
    }
    if (host.find(':') != std::string_view::npos) return wrong("too many colons");
    if (host.empty()) return wrong("the host is missing");
    if (!is_ipv4(host) && !is_host_name(host)) return wrong("that host is neither a name nor an address");
  }
  HostPort out;
  out.host = host;
  out.port = default_port;
  if (port) {
    auto number = parse_number("the port in " + std::string(what), *port, 1, 65535);
    if (!number.ok()) return number.status();
    out.port = static_cast<std::uint16_t>(number.value());
  } else if (default_port == 0) {
    return wrong("the port is missing");
  }
  return out;
}

std::string to_string(const HostPort& address) {
  const bool brackets = address.host.find(':') != std::string::npos;
  return (brackets ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

Result<std::vector<Interface>> list_interfaces() {
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) {
    return Status(Code::kInternal, std::string("cannot list the network interfaces: ") + std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  std::vector<Interface> out;
  for (const ifaddrs* entry = list.get(); entry != nullptr; entry = entry->ifa_next) {
    auto at = std::ranges::find(out, entry->ifa_name, &Interface::name);
    if (at == out.end()) {
      out.push_back({.name = entry->ifa_name,
                     .addresses = {},
                     .up = (entry->ifa_flags & IFF_UP) != 0,
                     .loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0});
      at = out.end() - 1;
    }
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::string address = numeric(entry->ifa_addr, size);
    if (!address.empty()) at->addresses.push_back(std::move(address));
  }
  for (Interface& i : out) {
    std::stable_partition(i.addresses.begin(), i.addresses.end(), [](const auto& a) { return is_ipv4(a); });
  }
  return out;
}

std::string own_address(std::span<const Interface> interfaces, std::string_view wildcard) {
  const auto is_link_local = [](const std::string& a) { return a.starts_with("fe80:") || a.starts_with("169.254."); };
  std::string last_resort = "127.0.0.1";
  for (const bool ipv4 : {true, false}) {
    if (!ipv4 && is_ipv4(std::string(wildcard))) break;
    for (const Interface& i : interfaces) {
      if (!i.up || i.loopback) continue;
      for (const std::string& address : i.addresses) {
        if (is_ipv4(address) != ipv4) continue;
        if (!is_link_local(address)) return address;
        if (last_resort == "127.0.0.1") last_resort = address;
      }
    }
  }
  return last_resort;
}

Result<std::vector<std::string>> resolve_host(const std::string& host, std::chrono::milliseconds patience) {
  auto list = look_up(host, kAnyPort, patience);
  if (!list.ok()) return list.status();
  std::vector<std::string> out;
  for (const addrinfo* a = list.value().get(); a != nullptr; a = a->ai_next) {
    std::string address = numeric(a->ai_addr, a->ai_addrlen);
    if (!address.empty() && std::ranges::find(out, address) == out.end()) out.push_back(std::move(address));
  }
  if (out.empty()) return Status(Code::kUnavailable, "the host name " + in_quotes(host) + " has no IP address");
  return out;
}

Result<std::string> local_address_towards(const std::string& host, std::uint16_t port,
                                          std::chrono::milliseconds patience) {
  auto list = look_up(host, std::to_string(port), patience);
  if (!list.ok()) return list.status();
  const bool loopback_meant = means_loopback(host);
  bool only_loopback = true;
  std::string why = "no address";
  for (const addrinfo* a = list.value().get(); a != nullptr; a = a->ai_next) {
    if (!loopback_meant && is_loopback_address(numeric(a->ai_addr, a->ai_addrlen))) continue;
    only_loopback = false;
    std::string source = route_source(*a, why);
    if (!source.empty()) return source;
  }
  if (only_loopback) return outward_address();
  return Status(Code::kUnavailable, "there is no route to " + to_string(HostPort{host, port}) + " (" + why +
                                        "); check the network, or name a bind address");
}

Result<DataAddresses> choose_data_addresses(const std::string& bind, const std::string& advertise,
                                            const std::string& tracker_host, std::uint16_t tracker_port,
                                            std::chrono::milliseconds patience) {
  DataAddresses out;
  if (!bind.empty()) {
    auto address = bind_to_numeric(bind);
    if (!address.ok()) return address.status();
    out.bind = std::move(address).value();
  }
  out.advertise = advertise;
  if (!advertise.empty() && !is_numeric_address(advertise)) {
    return Status(Code::kInvalidArgument, "the advertised address " + in_quotes(advertise) +
                                              " is not a numeric IPv4 or IPv6 address; give one that peers can reach");
  }
  if (is_wildcard(advertise)) {
    return Status(Code::kInvalidArgument,
                  "the advertised address " + in_quotes(advertise) + " stands for all; give one that peers can reach");
  }
  if (out.bind.empty() || (out.advertise.empty() && is_wildcard(out.bind))) {
    auto route = local_address_towards(tracker_host, tracker_port, patience);
    if (!route.ok()) return route.status().because_of_this("cannot choose the address for data links");
    if (out.bind.empty()) out.bind = route.value();
    if (out.advertise.empty()) out.advertise = std::move(route).value();
  }
  if (out.advertise.empty()) out.advertise = out.bind;
  return out;
}

}  // namespace warren::worker
