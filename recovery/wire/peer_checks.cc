#include "recovery/wire/peer_checks.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <string_view>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/field_checks.h"

namespace warren::checks {
namespace {

bool numeric_ipv4(std::string_view text) {
  int parts = 0;
  std::size_t at = 0;
  while (true) {
    std::size_t digits = 0;
    unsigned value = 0;
    while (at < text.size() && text[at] >= '0' && text[at] <= '9' && digits < 4) {
      value = value * 10 + static_cast<unsigned>(text[at++] - '0');
      ++digits;
    }
    if (digits == 0 || digits > 3 || value > 255) return false;
    if (++parts == 4) return at == text.size();
    if (at == text.size() || text[at++] != '.') return false;
  }
}

// Groups of up to four hex digits, one "::" for a run of zeros, an IPv4 address as the last two groups, a zone after
// '%'.
bool numeric_ipv6(std::string_view text) {
  if (const std::size_t percent = text.find('%'); percent != std::string_view::npos) {
    const std::string_view zone = text.substr(percent + 1);
    const auto zone_char = [](char c) {
      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' ||
             c == '-';
    };
    if (zone.empty() || !std::all_of(zone.begin(), zone.end(), zone_char)) return false;
    text = text.substr(0, percent);
  }
  int groups = 0;
  bool compressed = false;
  if (text.starts_with("::")) {
    compressed = true;
    text.remove_prefix(2);
    if (text.empty()) return true;
  }
  while (true) {
    const std::size_t end = std::min(text.find(':'), text.size());
    const std::string_view group = text.substr(0, end);
    if (end == text.size() && group.find('.') != std::string_view::npos) {
      if (!numeric_ipv4(group)) return false;
      groups += 2;
      break;
    }
    const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); };
    if (group.empty() || group.size() > 4 || !std::all_of(group.begin(), group.end(), hex)) return false;
    ++groups;
    text.remove_prefix(end);
    if (text.empty()) break;
    if (text.starts_with("::")) {
      if (compressed) return false;
      compressed = true;
      text.remove_prefix(2);
      if (text.empty()) break;
    } else {
      text.remove_prefix(1);
      if (text.empty()) return false;
    }
  }
  return compressed ? groups < 8 : groups == 8;
}

}  // namespace

Status validate_endpoints(const google::protobuf::RepeatedPtrField<wire::Endpoint>& endpoints) {
  if (endpoints.empty()) return bad("no endpoint: peers could not connect");
  if (static_cast<std::size_t>(endpoints.size()) > limits::kMaxEndpointsPerWorker) {
    return bad(str(endpoints.size()) + " endpoints are over the limit of " + str(limits::kMaxEndpointsPerWorker));
  }
  std::set<std::pair<std::string_view, std::uint32_t>> seen;
  for (const wire::Endpoint& e : endpoints) {
    if (e.address().size() > limits::kMaxAddressBytes) return bad("an address is too long");
    if (!numeric_ipv4(e.address()) && !numeric_ipv6(e.address())) {
      return bad("an endpoint's address is not a numeric IPv4 or IPv6 address: '" + wire_text(e.address()) + "'");
    }
    if (Status s = in_range("port", e.port(), 1, 65535); !s.ok()) return s;
    if (!seen.emplace(e.address(), e.port()).second) {
      return bad("endpoint " + e.address() + " port " + str(e.port()) + " stands twice");
    }
  }
  return {};
}

Status validate_identity(const std::string& worker_id, const std::string& host_id, const std::string& domain_id) {
  if (Status s = validate_name("worker id", worker_id, limits::kMaxWorkerIdBytes); !s.ok()) return s;
  if (Status s = validate_name("host id", host_id, limits::kMaxHostIdBytes); !s.ok()) return s;
  return validate_name("domain id", domain_id, limits::kMaxHostIdBytes);
}

Status validate_log_addresses(std::uint32_t fetch_port, const std::string& segment_socket, std::uint32_t replicas) {
  if (Status s = in_range("fetch port", fetch_port, replicas == 0 ? 0 : 1, 65535); !s.ok()) return s;
  return text_is_printable("segment socket", segment_socket, limits::kMaxSegmentSocketBytes);
}

Status validate_traits(const wire::Traits& t) {
  if (Status s = in_range("cores", t.cores(), 0, limits::kMaxCores); !s.ok()) return s;
  return in_range("first core", t.first_core(), 0, limits::kMaxCores - 1);
}

wire::Traits known_fields(const wire::Traits& traits) {
  wire::Traits known;
  known.set_cores(traits.cores());
  known.set_first_core(traits.first_core());
  known.set_maps(traits.maps());
  known.set_gpu(traits.gpu());
  return known;
}

}  // namespace warren::checks
