#include "recovery/wire/packed_members.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/wire/columns.h"
#include "recovery/wire/field_checks.h"
#include "recovery/wire/peer_checks.h"

namespace warren {

using checks::bad;
using checks::in_range;
using checks::str;

namespace {

using Members = google::protobuf::RepeatedPtrField<wire::Member>;
using Numbers = std::vector<std::uint64_t>;

constexpr std::uint64_t kFresh = 1;
constexpr std::uint64_t kWaits = 2;
constexpr std::uint64_t kAbsent = 4;
constexpr std::uint64_t kSocketOfIncarnation = 8;
constexpr std::uint64_t kAllFlags = 15;

bool has_socket_of_incarnation(const wire::Member& m) {
  return !m.segment_socket().empty() && m.segment_socket() == segment_socket_of(Incarnation(m.incarnation()));
}

// A number of each member.
struct NumberField {
  std::string_view name;
  std::uint64_t most;
  std::uint64_t (*get)(const wire::Member&);
  void (*set)(wire::Member&, std::uint64_t);
  const wire::NumberColumn& (wire::PackedMembers::*column)() const;
  wire::NumberColumn* (wire::PackedMembers::*mutable_column)();
};
using Columns = wire::PackedMembers;
constexpr std::array kNumberFields = {
    NumberField{"ranks", UINT32_MAX, [](const wire::Member& m) -> std::uint64_t { return m.rank(); },
                [](wire::Member& m, std::uint64_t v) { m.set_rank(static_cast<std::uint32_t>(v)); }, &Columns::ranks,
                &Columns::mutable_ranks},
    NumberField{"incarnations", UINT64_MAX, [](const wire::Member& m) -> std::uint64_t { return m.incarnation(); },
                [](wire::Member& m, std::uint64_t v) { m.set_incarnation(v); }, &Columns::incarnations,
                &Columns::mutable_incarnations},
    NumberField{"local ranks", UINT32_MAX, [](const wire::Member& m) -> std::uint64_t { return m.local_rank(); },
                [](wire::Member& m, std::uint64_t v) { m.set_local_rank(static_cast<std::uint32_t>(v)); },
                &Columns::local_ranks, &Columns::mutable_local_ranks},
    NumberField{"local sizes", UINT32_MAX, [](const wire::Member& m) -> std::uint64_t { return m.local_size(); },
                [](wire::Member& m, std::uint64_t v) { m.set_local_size(static_cast<std::uint32_t>(v)); },
                &Columns::local_sizes, &Columns::mutable_local_sizes},
    NumberField{"fetch ports", UINT32_MAX, [](const wire::Member& m) -> std::uint64_t { return m.fetch_port(); },
                [](wire::Member& m, std::uint64_t v) { m.set_fetch_port(static_cast<std::uint32_t>(v)); },
                &Columns::fetch_ports, &Columns::mutable_fetch_ports},
    NumberField{"generations since when", UINT64_MAX, [](const wire::Member& m) -> std::uint64_t { return m.since(); },
                [](wire::Member& m, std::uint64_t v) { m.set_since(v); }, &Columns::since, &Columns::mutable_since},
    NumberField{"counts of lives", UINT32_MAX, [](const wire::Member& m) -> std::uint64_t { return m.lives(); },
                [](wire::Member& m, std::uint64_t v) { m.set_lives(static_cast<std::uint32_t>(v)); }, &Columns::lives,
                &Columns::mutable_lives},
};

// A text of each member.
struct TextField {
  std::string_view name;
  std::size_t limit_bytes;
  std::string_view (*get)(const wire::Member&);
  void (*set)(wire::Member&, const std::string&);
  const wire::TextColumn& (wire::PackedMembers::*column)() const;
  wire::TextColumn* (wire::PackedMembers::*mutable_column)();
};
constexpr std::array kTextFields = {
    TextField{"worker ids", limits::kMaxWorkerIdBytes,
              [](const wire::Member& m) -> std::string_view { return m.worker_id(); },
              [](wire::Member& m, const std::string& v) { m.set_worker_id(v); }, &Columns::worker_ids,
              &Columns::mutable_worker_ids},
    TextField{"host ids", limits::kMaxHostIdBytes,
              [](const wire::Member& m) -> std::string_view { return m.host_id(); },
              [](wire::Member& m, const std::string& v) { m.set_host_id(v); }, &Columns::host_ids,
              &Columns::mutable_host_ids},
    TextField{"domain ids", limits::kMaxHostIdBytes,
              [](const wire::Member& m) -> std::string_view { return m.domain_id(); },
              [](wire::Member& m, const std::string& v) { m.set_domain_id(v); }, &Columns::domain_ids,
              &Columns::mutable_domain_ids},
    TextField{"segment sockets", limits::kMaxSegmentSocketBytes,
              [](const wire::Member& m) -> std::string_view {
                return has_socket_of_incarnation(m) ? std::string_view() : m.segment_socket();
              },
              [](wire::Member& m, const std::string& v) { m.set_segment_socket(v); }, &Columns::segment_sockets,
              &Columns::mutable_segment_sockets},
};

void pack_flags(const Members& members, wire::PackedMembers& packed) {
  Numbers flags;
  for (const wire::Member& m : members) {
    flags.push_back((m.fresh() ? kFresh : 0) | (m.waits() ? kWaits : 0) | (m.absent() ? kAbsent : 0) |
                    (has_socket_of_incarnation(m) ? kSocketOfIncarnation : 0));
  }
  *packed.mutable_flags() = column_of(flags);
}

// After the incarnations and the sockets that have other names.
Status unpack_flags(const wire::PackedMembers& packed, Members& members) {
  const auto all = numbers_of(packed.flags(), packed.count());
  if (!all.ok()) return all.status().because_of_this("flags");
  for (int i = 0; i < members.size(); ++i) {
    const std::uint64_t flags = all.value()[static_cast<std::size_t>(i)];
    if (Status s = in_range("flags", flags, 0, kAllFlags); !s.ok()) return s;
    wire::Member& m = *members.Mutable(i);
    m.set_fresh((flags & kFresh) != 0);
    m.set_waits((flags & kWaits) != 0);
    m.set_absent((flags & kAbsent) != 0);
    if ((flags & kSocketOfIncarnation) == 0) continue;
    if (!m.segment_socket().empty()) return bad("entry " + str(i) + " has two segment sockets");
    m.set_segment_socket(segment_socket_of(Incarnation(m.incarnation())));
  }
  return {};
}

void pack_endpoints(const Members& members, wire::PackedMembers& packed) {
  Numbers counts, ports;
  std::vector<std::string_view> addresses;
  for (const wire::Member& m : members) {
    counts.push_back(static_cast<std::uint64_t>(m.endpoints_size()));
    for (const wire::Endpoint& e : m.endpoints()) {
      addresses.push_back(e.address());
      ports.push_back(e.port());
    }
  }
  *packed.mutable_endpoint_counts() = column_of(counts);
  *packed.mutable_addresses() = column_of(addresses);
  *packed.mutable_ports() = column_of(ports);
}

Status unpack_endpoints(const wire::PackedMembers& packed, Members& members) {
  const auto counts = numbers_of(packed.endpoint_counts(), packed.count());
  if (!counts.ok()) return counts.status().because_of_this("counts of endpoints");
  std::size_t all = 0;
  for (const std::uint64_t count : counts.value()) {
    if (Status s = in_range("number of endpoints", count, 0, limits::kMaxEndpointsPerWorker); !s.ok()) return s;
    all += count;
  }
  const auto addresses = texts_of(packed.addresses(), all, limits::kMaxAddressBytes);
  if (!addresses.ok()) return addresses.status().because_of_this("addresses");
  const auto ports = numbers_of(packed.ports(), all);
  if (!ports.ok()) return ports.status().because_of_this("ports");
  std::size_t next = 0;
  for (int i = 0; i < members.size(); ++i) {
    for (std::uint64_t n = counts.value()[static_cast<std::size_t>(i)]; n != 0; --n, ++next) {
      if (Status s = in_range("port", ports.value()[next], 0, UINT32_MAX); !s.ok()) return s;
      wire::Endpoint& e = *members.Mutable(i)->add_endpoints();
      e.set_address(addresses.value().at(next));
      e.set_port(static_cast<std::uint32_t>(ports.value()[next]));
    }
  }
  return {};
}

void pack_traits(const Members& members, wire::PackedMembers& packed) {
  std::map<std::string, std::uint64_t> known;
  Numbers rows;
  for (const wire::Member& m : members) {
    if (!m.has_traits()) {
      rows.push_back(0);
      continue;
    }
    const auto [row, is_new] = known.emplace(m.traits().SerializeAsString(), known.size() + 1);
    if (is_new) *packed.add_traits() = m.traits();
    rows.push_back(row->second);
  }
  *packed.mutable_trait_rows() = column_of(rows);
}

Status unpack_traits(const wire::PackedMembers& packed, Members& members) {
  const auto rows = numbers_of(packed.trait_rows(), packed.count());
  if (!rows.ok()) return rows.status().because_of_this("traits");
  const auto known = static_cast<std::uint64_t>(packed.traits_size());
  if (known > packed.count()) return bad("traits: " + str(known) + " different ones of " + str(packed.count()));
  for (int i = 0; i < members.size(); ++i) {
    const std::uint64_t row = rows.value()[static_cast<std::size_t>(i)];
    if (row > known) return bad("traits: row " + str(row) + " of " + str(known));
    if (row != 0)
      *members.Mutable(i)->mutable_traits() = checks::known_fields(packed.traits(static_cast<int>(row - 1)));
  }
  return {};
}

Status unpack_numbers(const NumberField& field, const wire::PackedMembers& packed, Members& members) {
  const auto numbers = numbers_of((packed.*field.column)(), packed.count());
  if (!numbers.ok()) return numbers.status().because_of_this(std::string(field.name));
  for (int i = 0; i < members.size(); ++i) {
    const std::uint64_t number = numbers.value()[static_cast<std::size_t>(i)];
    if (Status s = in_range(field.name, number, 0, field.most); !s.ok()) return s;
    field.set(*members.Mutable(i), number);
  }
  return {};
}

Status unpack_texts(const TextField& field, const wire::PackedMembers& packed, Members& members) {
  const auto texts = texts_of((packed.*field.column)(), packed.count(), field.limit_bytes);
  if (!texts.ok()) return texts.status().because_of_this(std::string(field.name));
  for (int i = 0; i < members.size(); ++i) {
    field.set(*members.Mutable(i), texts.value().at(static_cast<std::size_t>(i)));
  }
  return {};
}

Status unpack_members(const wire::PackedMembers& packed, Members& members) {
  members.Reserve(static_cast<int>(packed.count()));
  for (std::uint32_t i = 0; i < packed.count(); ++i) members.Add();
  for (const NumberField& field : kNumberFields) {
    if (Status s = unpack_numbers(field, packed, members); !s.ok()) return s;
  }
  for (const TextField& field : kTextFields) {
    if (Status s = unpack_texts(field, packed, members); !s.ok()) return s;
  }
  if (Status s = unpack_flags(packed, members); !s.ok()) return s;
  if (Status s = unpack_endpoints(packed, members); !s.ok()) return s;
  return unpack_traits(packed, members);
}

}  // namespace

std::string segment_socket_of(Incarnation life) {
  return "warren-segments-" + hex(life.value);
}

wire::Plan packed(wire::Plan plan) {
  wire::PackedMembers& columns = *plan.mutable_packed();
  const Members& members = plan.members();
  columns.set_count(static_cast<std::uint32_t>(members.size()));
  for (const NumberField& field : kNumberFields) {
    Numbers numbers;
    numbers.reserve(static_cast<std::size_t>(members.size()));
    for (const wire::Member& m : members) numbers.push_back(field.get(m));
    *(columns.*field.mutable_column)() = column_of(numbers);
  }
  for (const TextField& field : kTextFields) {
    std::vector<std::string_view> texts;
    texts.reserve(static_cast<std::size_t>(members.size()));
    for (const wire::Member& m : members) texts.push_back(field.get(m));
    *(columns.*field.mutable_column)() = column_of(texts);
  }
  pack_flags(members, columns);
  pack_endpoints(members, columns);
  pack_traits(members, columns);
  plan.clear_members();
  return plan;
}

Result<wire::Plan> unpack(wire::Plan plan) {
  if (!plan.members().empty()) return bad("a list of members");
  if (!plan.has_packed()) return bad("no members");
  const wire::PackedMembers& columns = plan.packed();
  const std::uint32_t world_size = plan.settings().world_size();
  if (Status s = in_range("world size", world_size, 1, limits::kMaxWorldSize); !s.ok()) return s;
  const std::uint32_t least = plan.base_generation() == 0 ? world_size : 0;
  if (Status s = in_range("number of members", columns.count(), least, world_size); !s.ok()) return s;
  Members members;
  if (Status s = unpack_members(columns, members); !s.ok()) return s.because_of_this("packed members");
  plan.mutable_members()->Swap(&members);
  plan.clear_packed();
  return plan;
}

}  // namespace warren
