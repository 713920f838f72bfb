// Communicators made of another one: by split, or by their members alone.
#include "worker/api/groups.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "storage/xxh3.h"
#include "worker/api/call_sites.h"
#include "worker/api/calls.h"

namespace warren::api {

void find_local(warren_comm& comm) {
  const std::vector<std::string> hosts = comm.shared->session->hosts();
  const auto host_of = [&](Rank rank) -> const std::string& { return hosts[static_cast<std::size_t>(rank.value)]; };
  comm.local_rank = comm.local_size = 0;
  for (std::size_t r = 0; r < comm.members.size(); r++) {
    if (host_of(comm.members[r]) != host_of(comm.shared->rank)) continue;
    if (static_cast<std::int32_t>(r) < comm.rank) comm.local_rank++;
    comm.local_size++;
  }
}

namespace {

// The group that a split of `parent` at `round` makes of a color: the same at every member, in each of its lives.
GroupId split_id(const RoundId& round, std::int32_t color) {
  std::uint64_t h = round.group.value;
  for (const std::uint64_t v : {round.version.value + 1, round.sequence.value + 1,
                                static_cast<std::uint64_t>(static_cast<std::uint32_t>(color)) + 1}) {
    h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
    h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
    h ^= h >> 31;
  }
  return GroupId(h == 0 ? 1 : h);
}

constexpr std::size_t kMaxGroupNameBytes = 128;

// "group \"pipeline\" of ranks 0, 3": as many as fit in a line.
std::string describe_group(const char* name, std::span<const int32_t> ranks) {
  constexpr std::size_t kMostShown = 16;
  std::string text = "group \"" + std::string(name, strnlen(name, kMaxGroupNameBytes)) + "\" of ranks";
  for (std::size_t i = 0; i < std::min(kMostShown, ranks.size()); i++) {
    text += (i == 0 ? " " : ", ") + std::to_string(ranks[i]);
  }
  return text + (ranks.size() > kMostShown ? ", … (" + std::to_string(ranks.size()) + ")" : "");
}

// The ranks of the job that these of `comm` are. kInvalidArgument: they, or the name, cannot be a group of this rank's.
Result<std::vector<Rank>> members_of(const warren_comm& comm, const char* name, std::span<const int32_t> ranks) {
  const auto refuse = [&](const std::string& why) {
    return Status(Code::kInvalidArgument, describe_group(name, ranks) + ": " + why);
  };
  const std::size_t name_bytes = strnlen(name, kMaxGroupNameBytes + 1);
  if (name_bytes == 0 || name_bytes > kMaxGroupNameBytes) {
    return refuse("its name has 1 to " + std::to_string(kMaxGroupNameBytes) + " bytes, this one " +
                  (name_bytes == 0 ? "none" : "more"));
  }
  const auto size = static_cast<std::int32_t>(comm.members.size());
  std::vector<bool> taken(comm.members.size());
  std::vector<Rank> members;
  for (const std::int32_t rank : ranks) {
    if (rank < 0 || rank >= size) return refuse("the communicator has ranks 0 to " + std::to_string(size - 1));
    if (taken[static_cast<std::size_t>(rank)]) return refuse("rank " + std::to_string(rank) + " is named twice");
    taken[static_cast<std::size_t>(rank)] = true;
    members.push_back(comm.members[static_cast<std::size_t>(rank)]);
  }
  if (taken[static_cast<std::size_t>(comm.rank)]) return members;
  return refuse("rank " + std::to_string(comm.rank) + " has called it, and is none of them: its members alone do");
}

// What groups of this name and these members that are made in this version have in common.
std::uint64_t hash_of_group(const std::string& name, const std::vector<Rank>& members, Version version) {
  std::string text = name + '\0' + std::to_string(version.value);
  for (const Rank rank : members) text += ' ' + std::to_string(rank.value);
  return xxh3(std::as_bytes(std::span(text)));
}

// One of them, by how many were made before: the same number at each member, in each of its lives, without a word of
// the others. One that is destroyed may have messages that a new life asks for: the next one is another group.
GroupId group_id(std::uint64_t hash, std::uint64_t before) {
  const std::uint64_t id = xxh3(std::as_bytes(std::span(&before, 1)), hash);
  return GroupId(id == 0 ? 1 : id);
}

}  // namespace
}  // namespace warren::api

using warren::Code;
using warren::Collective;
using warren::DataType;
using warren::GroupId;
using warren::Rank;
using warren::ReduceOp;
using warren::RoundId;
using warren::Status;
using warren::Version;
using namespace warren::api;

extern "C" {

warren_code warren_split(warren_comm* comm, int32_t color, int32_t key, warren_comm** out) {
  if (comm == nullptr || out == nullptr) return report(Status(Code::kInvalidArgument, "split: a pointer is NULL"));
  *out = nullptr;
  const std::uint64_t site = WARREN_SITE;
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    Status refused = comm->shared->session->calls().needs_mode_wait("split");
    if (refused.ok() && color < -1) {
      refused = Status(Code::kInvalidArgument, "split: color " + std::to_string(color) + "; -1 or more is served");
    }
    if (!refused.ok()) return refused;
    constexpr std::size_t kFields = 2;
    const std::int32_t mine[kFields] = {color, key};
    std::vector<std::int32_t> all(comm->members.size() * kFields);
    CallSpec spec;
    spec.collective = Collective::kAllgather;
    spec.type = DataType::kI32;
    spec.input = mine;
    spec.output = all.data();
    spec.count = kFields;
    spec.site = site;
    const RoundId round = comm->shared->session->groups().next_round(comm->group);
    Status status = issue(*comm, spec, {}, nullptr);
    if (!status.ok()) return status.because_of_this("split");
    // A channel that no rank uses for another group.
    auto used = comm->shared->session->groups().used_channels();
    spec = CallSpec();
    spec.collective = Collective::kAllreduce;
    spec.type = DataType::kU64;
    spec.op = ReduceOp::kBitOr;
    spec.input = spec.output = used.data();
    spec.count = used.size();
    spec.site = site;
    status = issue(*comm, spec, {}, nullptr);
    if (!status.ok()) return status.because_of_this("split");
    const auto channel = warren::worker::Engine::free_channel(used);
    if (!channel) return GroupCalls::no_channel().because_of_this("split");
    if (color == -1) return {};
    struct Entrant {
      std::int32_t key;
      std::size_t rank;
    };
    std::vector<Entrant> entrants;
    for (std::size_t r = 0; r < comm->members.size(); r++) {
      if (all[kFields * r] != color) continue;
      entrants.push_back({all[kFields * r + 1], r});
    }
    std::stable_sort(entrants.begin(), entrants.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    auto made = std::make_unique<warren_comm>();
    made->shared = comm->shared;
    made->group = split_id(round, color);
    made->stream = comm->stream;
    made->lasts = comm->lasts && round.version == warren::kPreamble;
    for (std::size_t i = 0; i < entrants.size(); i++) {
      if (entrants[i].rank == static_cast<std::size_t>(comm->rank)) made->rank = static_cast<std::int32_t>(i);
      made->members.push_back(comm->members[entrants[i].rank]);
    }
    find_local(*made);
    status = comm->shared->session->groups().add(made->group, made->members, *channel);
    if (!status.ok()) return status.because_of_this("split");
    comm->shared->children.push_back(made.get());
    *out = made.release();
    return {};
  });
}

warren_code warren_group(warren_comm* comm, const char* name, const int32_t* ranks, size_t count,
                         const warren_call_options* options, warren_comm** out) {
  if (comm == nullptr || out == nullptr || name == nullptr || (ranks == nullptr && count != 0)) {
    return report(Status(Code::kInvalidArgument, "group: a pointer is NULL"));
  }
  *out = nullptr;
  CallSpec said;
  said.collective = Collective::kAllreduce;
  said.site = WARREN_SITE;
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    Session& session = *comm->shared->session;
    if (Status refused = session.calls().needs_mode_wait("group"); !refused.ok()) return refused;
    if (options != nullptr) {
      if (Status refused = say_of_group(*comm, *options, said); !refused.ok()) return refused;
    }
    const auto members = members_of(*comm, name, {ranks, count});
    if (!members.ok()) return members.status();
    const std::string what = describe_group(name, {ranks, count});
    for (const warren_comm* child : comm->shared->children) {
      if (child->name != name) continue;
      return {Code::kInvalidArgument, what + ": there is a group of this name" +
                                          (child->members == members.value() ? "" : ", of other ranks") +
                                          ": destroy it first, or take another name"};
    }
    auto made = std::make_unique<warren_comm>();
    made->shared = comm->shared;
    made->name = name;
    made->members = members.value();
    made->rank =
        static_cast<std::int32_t>(std::ranges::find(made->members, comm->shared->rank) - made->members.begin());
    made->stream = comm->stream;
    const Version version = session.groups().next_round(comm->group).version;
    if (std::exchange(comm->shared->groups_made_in, version) != version) comm->shared->groups_made.clear();
    const std::uint64_t hash = hash_of_group(made->name, made->members, version);
    made->group = group_id(hash, comm->shared->groups_made[hash]);
    made->lasts = comm->lasts && version == warren::kPreamble;
    find_local(*made);
    const Status status = session.groups().make(made->group, made->members, said.site);
    if (!status.ok()) return status.because_of_this(what);
    ++comm->shared->groups_made[hash];
    comm->shared->children.push_back(made.get());
    *out = made.release();
    return {};
  });
}

}  // extern "C"
