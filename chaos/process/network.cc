#include "chaos/process/network.h"

#include <sched.h>

#include <cerrno>
#include <cstring>

#include "chaos/process/child.h"

namespace warren::chaos::process {
namespace {

Status ip(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "ip");
  return run_program(arguments);
}

}  // namespace

Result<Network> Network::create(std::uint32_t hosts, const Forecast& forecast) {
  if (unshare(CLONE_NEWNET) != 0) {
    return Status(Code::kUnavailable, std::string("no network namespace: ") + std::strerror(errno));
  }
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"link", "set", "lo", "up"},
           // With an address of its own: otherwise it has a port's, gets another one when that host has ended, and the
           // other hosts do not reach the tracker any more until they ask for its address again.
           {"link", "add", "warren", "address", "02:77:61:72:72:65", "type", "bridge"},
           {"addr", "add", tracker_address() + "/24", "dev", "warren"},
           {"link", "set", "warren", "up"},
       }) {
    if (Status s = ip(command); !s.ok()) return s.because_of_this(Code::kUnavailable, "no network of our own");
  }
  Network network(hosts);
  if (!forecast.fine()) {
    auto weather = Weather::begin(forecast);
    if (!weather.ok()) return weather.status();
    network.weather_ = std::move(weather).value();
    // So that it is known now whether there are such devices.
    if (Status s = network.weather_->lay("probe0", "probe1"); !s.ok()) return s;
    network.weather_->drop("probe0");
  }
  return network;
}

Status Network::wire(std::uint32_t host, pid_t pid) {
  // A dead host's namespace stays for as long as its kernel sends what nobody acknowledges any more: with its cable in
  // it would answer for the host's address.
  const std::string cable = "cable" + std::to_string(made_), far = "far" + std::to_string(made_);
  ++made_;
  const std::string space = std::to_string(pid);
  if (weather_ != nullptr) {
    weather_->drop(cables_[host]);
    if (Status s = weather_->lay(cable, far); !s.ok()) return s;
    if (Status s = ip({"link", "set", far, "netns", space, "name", "eth0"}); !s.ok()) return s;
  } else {
    if (!cables_[host].empty()) (void)ip({"link", "delete", cables_[host]});
    if (Status s = ip({"link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", space}); !s.ok())
      return s;
  }
  cables_[host] = cable;
  return ip({"link", "set", cable, "master", "warren", "up"});
}

std::vector<std::string> Network::prefix(std::uint32_t host) {
  return {"/bin/sh", "-c",
          "ip link set lo up && ip addr add 10.77.0." + std::to_string(host + 2) +
              "/24 dev eth0 && ip link set eth0 up && exec \"$@\"",
          "sh"};
}

Status Network::set_cut(std::uint32_t host, bool cut) {
  return ip({"link", "set", cables_[host], cut ? "down" : "up"});
}

}  // namespace warren::chaos::process
