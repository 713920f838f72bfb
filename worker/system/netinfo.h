// What this machine's network looks like from here: addresses, interfaces, and the way to the tracker.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/base/result.h"

namespace warren::worker {

struct HostPort {
  std::string host;  // a name or a numeric address, without brackets
  std::uint16_t port = 0;
};

// "host", "host:port", "v4", "v4:port", "v6", "[v6]" or "[v6]:port"; a missing port is `default_port`, or, if that is
// 0, an error. `what` names the setting in errors (kInvalidArgument).
[[nodiscard]] Result<HostPort> parse_host_port(std::string_view what, std::string_view text,
                                               std::uint16_t default_port);
// The other way: brackets around what has colons.
[[nodiscard]] std::string to_string(const HostPort& address);

// A numeric IPv4 or IPv6 address (with %scope); no name.
[[nodiscard]] bool is_numeric_address(std::string_view text);
// 127.0.0.0/8 or ::1, also as ::ffff:127.x.x.x.
[[nodiscard]] bool is_loopback_address(std::string_view numeric);

struct Interface {
  std::string name;
  std::vector<std::string> addresses;  // numeric, IPv4 first
  bool up = false;
  bool loopback = false;
};
// Sorted as the kernel lists them. kInternal: the kernel does not tell.
[[nodiscard]] Result<std::vector<Interface>> list_interfaces();

// How long those wait for name servers who are in no hurry.
inline constexpr std::chrono::milliseconds kResolverPatience{30'000};

// The numeric addresses of a name, in the resolver's order, each once. kUnavailable: it has none, no name server has
// answered within `patience`, or the system allows no more threads.
[[nodiscard]] Result<std::vector<std::string>> resolve_host(const std::string& host,
                                                            std::chrono::milliseconds patience = kResolverPatience);

// The local address that packets to `host` leave from (a connected UDP socket: nothing is sent). Loopback only if
// `host` is a numeric loopback address or "localhost". A name of this machine that resolves to loopback, as Debian's
// 127.0.1.1 does, gives the address that the network knows this machine by. kUnavailable: as for resolve_host(), or no
// route.
[[nodiscard]] Result<std::string> local_address_towards(const std::string& host, std::uint16_t port,
                                                        std::chrono::milliseconds patience = kResolverPatience);

// One of these that other machines may reach: the first that is up and not loopback, IPv4 before IPv6, link-local
// addresses last; where there is none, 127.0.0.1. `wildcard`: what a socket is bound to; 0.0.0.0 takes IPv4 alone.
[[nodiscard]] std::string own_address(std::span<const Interface> interfaces, std::string_view wildcard);

// Where a worker accepts data links, and what it tells its peers to connect to; both numeric.
struct DataAddresses {
  std::string bind;
  std::string advertise;
};
// From the settings: `bind` is numeric, the name of an interface, or empty (the address of the route to the tracker);
// `advertise` is numeric or empty (the bind address; that of the route if bind is a wildcard).
// kInvalidArgument: no such address or interface here; the message lists those there are. A loopback address is
// advertised only when the tracker is reached over loopback or the user named it. kUnavailable: as for
// local_address_towards().
[[nodiscard]] Result<DataAddresses> choose_data_addresses(const std::string& bind, const std::string& advertise,
                                                          const std::string& tracker_host, std::uint16_t tracker_port,
                                                          std::chrono::milliseconds patience = kResolverPatience);

}  // namespace warren::worker
