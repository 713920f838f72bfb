#include "worker/settings/costs_file.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <tuple>

#include "recovery/base/limits.h"
#include "worker/system/text.h"

namespace warren::worker {
namespace {

using schedule::Algorithm;
using schedule::Costs;
using schedule::Measured;
using schedule::Network;
using Json = nlohmann::ordered_json;

constexpr std::uint64_t kFormat = 1;
// Of schedule::choose() and what it calls: one more whenever they choose otherwise by the same costs. So that ranks,
// and lives of a job, that choose differently do not agree on their settings.
constexpr std::uint32_t kFormulas = 2;
constexpr std::size_t kMostFileBytes = std::size_t{64} << 10;
// So that the job's settings have room for all of it (limits::kMaxCostsBytes).
constexpr std::size_t kMostNetworks = 4, kMostMeasured = 64;
constexpr std::uint64_t kMostRate = 1'000'000'000;

// The rates of a network, and what they are called.
struct Member {
  const char* name;
  std::uint32_t Network::*member;
  std::uint64_t most;
};
constexpr std::array<Member, 8> kMembers = {{
    {"cores", &Network::cores, 65536},
    {"most_ranks", &Network::most_ranks, limits::kMaxWorldSize},
    {"hop_ns", &Network::hop_ns, kMostRate},
    {"message_ns", &Network::message_ns, kMostRate},
    {"shared_message_ns", &Network::shared_message_ns, kMostRate},
    {"byte_ps", &Network::byte_ps, kMostRate},
    {"reduced_byte_ps", &Network::reduced_byte_ps, kMostRate},
    {"logged_byte_ps", &Network::logged_byte_ps, kMostRate},
}};

std::optional<Collective> collective_named(std::string_view name) {
  for (int c = static_cast<int>(Collective::kAllreduce); c <= static_cast<int>(Collective::kAllToAll); ++c) {
    if (name == to_string(static_cast<Collective>(c))) return static_cast<Collective>(c);
  }
  return std::nullopt;
}

// Takes members out of a JSON object, and keeps the first thing that is wrong.
class Object {
 public:
  Object(const Json& json, std::string place, Status& status) : json_(json), place_(std::move(place)), status_(status) {
    if (!json.is_object()) fail("is no object");
  }

  // An object has these members and no others.
  void only(std::initializer_list<std::string_view> names) {
    if (!status_.ok()) return;
    for (const auto& [name, value] : json_.items()) {
      if (std::ranges::find(names, name) == names.end()) return fail("has an unknown member " + in_quotes(name));
    }
    for (const std::string_view name : names) {
      if (!json_.contains(name)) return fail("has no " + in_quotes(std::string(name)));
    }
  }
  void number(const char* name, std::uint64_t least, std::uint64_t most, auto& out) {
    if (!status_.ok()) return;
    const Json& value = json_[name];
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < least || value.get<std::uint64_t>() > most) {
      return fail(std::string(name) + " is no whole number from " + std::to_string(least) + " to " +
                  std::to_string(most));
    }
    out = static_cast<std::remove_reference_t<decltype(out)>>(value.get<std::uint64_t>());
  }
  void boolean(const char* name, bool& out) {
    if (!status_.ok()) return;
    if (!json_[name].is_boolean()) return fail(std::string(name) + " is neither true nor false");
    out = json_[name].get<bool>();
  }
  [[nodiscard]] std::string text(const char* name) {
    if (!status_.ok()) return {};
    if (!json_[name].is_string()) {
      fail(std::string(name) + " is no text");
      return {};
    }
    return json_[name].get<std::string>();
  }
  // Each entry of an array of `least` to `most`, with its place.
  void each(const char* name, std::size_t least, std::size_t most, auto take) {
    if (!status_.ok()) return;
    const Json& array = json_[name];
    if (!array.is_array() || array.size() < least || array.size() > most) {
      return fail(std::string(name) + " is no list of " + std::to_string(least) + " to " + std::to_string(most));
    }
    for (std::size_t i = 0; i < array.size() && status_.ok(); ++i) {
      Object entry(array[i], std::string(name) + "[" + std::to_string(i) + "]", status_);
      take(entry);
    }
  }
  void fail(const std::string& why) {
    if (status_.ok()) status_ = Status(Code::kInvalidArgument, place_ + " " + why);
  }
  [[nodiscard]] bool ok() const { return status_.ok(); }

 private:
  const Json& json_;
  std::string place_;
  Status& status_;
};

Network take_network(Object& o) {
  Network n;
  o.only({"one_host", "cores", "most_ranks", "hop_ns", "message_ns", "shared_message_ns", "byte_ps", "reduced_byte_ps",
          "logged_byte_ps"});
  o.boolean("one_host", n.one_host);
  for (const Member& m : kMembers) o.number(m.name, 0, m.most, n.*m.member);
  return n;
}

Measured take_measured(Object& o) {
  Measured m;
  o.only({"collective", "ranks", "from_bytes", "algorithm"});
  o.number("ranks", 2, limits::kMaxWorldSize, m.size);
  o.number("from_bytes", 0, std::uint64_t{1} << 62, m.from_bytes);
  const std::string collective = o.text("collective");
  const std::string algorithm = o.text("algorithm");
  if (!o.ok()) return m;
  const auto found = collective_named(collective);
  const auto parsed = schedule::parse_algorithm(algorithm);
  if (!found) {
    o.fail("names no collective: " + in_quotes(collective));
  } else if (!parsed.ok()) {
    o.fail("names no algorithm: " + in_quotes(algorithm));
  } else {
    m.collective = *found;
    m.algorithm = parsed.value();
    const auto serving = schedule::algorithms_for(m.collective);
    if (m.algorithm != Algorithm::kAuto && std::ranges::find(serving, m.algorithm) == serving.end()) {
      o.fail("says that " + algorithm + " serves " + collective + ", which it does not");
    }
  }
  return m;
}

auto order_of(const Measured& m) {
  return std::tuple(m.collective, m.size, m.from_bytes);
}

Json json_of(const Costs& costs) {
  Json json = {{"format", kFormat}, {"networks", Json::array()}, {"measured", Json::array()}};
  for (const Network& n : costs.networks) {
    Json& out = json["networks"].emplace_back(Json::object());
    out["one_host"] = n.one_host;
    for (const Member& m : kMembers) out[m.name] = n.*m.member;
  }
  for (const Measured& m : costs.measured) {
    json["measured"].push_back({{"collective", to_string(m.collective)},
                                {"ranks", m.size},
                                {"from_bytes", m.from_bytes},
                                {"algorithm", schedule::to_string(m.algorithm)}});
  }
  return json;
}

}  // namespace

Result<Costs> parse_costs(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) return Status(Code::kInvalidArgument, "it is no JSON");
  Status status;
  Costs costs;
  Object whole(json, "it", status);
  whole.only({"format", "networks", "measured"});
  std::uint64_t format = 0;
  whole.number("format", 0, std::numeric_limits<std::uint64_t>::max(), format);
  if (status.ok() && format != kFormat) {
    whole.fail("has format " + std::to_string(format) + ", this version of Warren reads format " +
               std::to_string(kFormat) + ": fit anew");
  }
  whole.each("networks", 1, kMostNetworks, [&](Object& o) { costs.networks.push_back(take_network(o)); });
  whole.each("measured", 0, kMostMeasured, [&](Object& o) {
    costs.measured.push_back(take_measured(o));
    if (costs.measured.size() < 2 || !o.ok()) return;
    const auto last = costs.measured.end() - 1;
    if (order_of(*(last - 1)) >= order_of(*last)) o.fail("does not follow the one before it");
  });
  if (!status.ok()) return status;
  if (std::ranges::none_of(costs.networks, [](const Network& n) { return n.most_ranks == 0; })) {
    return Status(Code::kInvalidArgument, "no network holds groups of any size: give one most_ranks 0");
  }
  return costs;
}

Result<Costs> read_costs(const std::string& path) {
  if (path.empty()) return schedule::default_costs();
  std::ifstream file(path, std::ios::binary);
  std::string text(kMostFileBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file.is_open() || file.bad()) return Status(Code::kUnavailable, "cannot read the costs in " + path);
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > kMostFileBytes) {
    return Status(Code::kInvalidArgument,
                  "the costs in " + path + " are longer than " + std::to_string(kMostFileBytes) + " bytes");
  }
  auto costs = parse_costs(text);
  if (!costs.ok()) return costs.status().because_of_this("the costs in " + path + " cannot be used");
  return costs;
}

std::string to_json(const Costs& costs, bool for_people) {
  return json_of(costs).dump(for_people ? 2 : -1);
}

std::string name_of(const Costs& costs) {
  const std::string text = to_json(costs, false);
  std::array<char, 9> digits{};
  std::snprintf(digits.data(), digits.size(), "%08x", XXH32(text.data(), text.size(), kFormulas));
  return digits.data();
}

std::string settings_text(const Costs& costs) {
  return name_of(costs) + " " + to_json(costs, false);
}

}  // namespace warren::worker
