// Checkpoints and set-up rounds in the C interface.
#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "worker/api/call_sites.h"
#include "worker/api/handles.h"

namespace warren::api {
namespace {

using Places = std::vector<std::span<std::byte>>;

// kInvalidArgument: one that is nowhere.
Result<Places> places_of(const warren_place* places, std::size_t count, const char* what) {
  Places out;
  if (places == nullptr && count != 0) {
    return Status(Code::kInvalidArgument, std::string(what) + ": " + std::to_string(count) + " places at NULL");
  }
  for (std::size_t i = 0; i < count; i++) {
    if (places[i].data == nullptr && places[i].bytes != 0) {
      return Status(Code::kInvalidArgument,
                    std::string(what) + ": a place of " + std::to_string(places[i].bytes) + " bytes at NULL");
    }
    out.emplace_back(static_cast<std::byte*>(places[i].data), places[i].bytes);
  }
  return out;
}

// Which are read alone.
std::vector<std::span<const std::byte>> read_only(const Places& places) {
  return {places.begin(), places.end()};
}

// That the places of a state have its size.
Status fits(const Places& places, const char* which, const std::vector<std::byte>& state) {
  std::uint64_t bytes = 0;
  // Nonsense stays too large.
  for (const auto& place : places) bytes += std::min<std::uint64_t>(place.size(), ~bytes);
  if (bytes == state.size()) return {};
  return {Code::kInvalidArgument, "restore: the places of the " + std::string(which) + " state have " +
                                      std::to_string(bytes) + " bytes, and the state that was loaded " +
                                      std::to_string(state.size())};
}

}  // namespace
}  // namespace warren::api

using warren::Code;
using warren::Status;
using namespace warren::api;

extern "C" {

warren_code warren_load_checkpoint(warren_comm* comm, uint64_t* version, const void** global, size_t* global_bytes,
                                   const void** local, size_t* local_bytes) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "load_checkpoint: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (!comm->first) {
      return {Code::kInvalidArgument, "load_checkpoint: only on the communicator that warren_create made"};
    }
    auto state = comm->shared->session->load();
    if (!state.ok()) return state.status().because_of_this("load_checkpoint");
    comm->loaded = std::move(state).value();
    if (version != nullptr) *version = comm->loaded.version;
    if (global != nullptr) *global = comm->loaded.global.data();
    if (global_bytes != nullptr) *global_bytes = comm->loaded.global.size();
    if (local != nullptr) *local = comm->loaded.local.data();
    if (local_bytes != nullptr) *local_bytes = comm->loaded.local.size();
    return {};
  });
}

warren_code warren_checkpoint(warren_comm* comm, const void* global, size_t global_bytes, const void* local,
                              size_t local_bytes) {
  // Nothing is written to.
  const warren_place global_place = {const_cast<void*>(global), global_bytes};
  const warren_place local_place = {const_cast<void*>(local), local_bytes};
  if (comm == nullptr || (global == nullptr && global_bytes != 0) || (local == nullptr && local_bytes != 0)) {
    return report(Status(Code::kInvalidArgument, "checkpoint: a pointer is NULL"));
  }
  return warren_checkpoint_places(comm, &global_place, 1, local == nullptr ? nullptr : &local_place,
                                  local == nullptr ? 0 : 1);
}

warren_code warren_checkpoint_places(warren_comm* comm, const warren_place* global, size_t global_places,
                                     const warren_place* local, size_t local_places) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "checkpoint: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (!comm->first) {
      return {Code::kInvalidArgument, "checkpoint: only on the communicator that warren_create made"};
    }
    const auto globals = places_of(global, global_places, "checkpoint");
    const auto locals = places_of(local, local_places, "checkpoint");
    if (!globals.ok()) return globals.status();
    if (!locals.ok()) return locals.status();
    const auto global_state = read_only(globals.value()), local_state = read_only(locals.value());
    const Session::Places mine(local_state);
    return comm->shared->session->checkpoint(global_state, local == nullptr ? nullptr : &mine, comm->stream);
  });
}

warren_code warren_checkpoint_from(warren_comm* comm, int32_t root, const warren_place* global, size_t global_places,
                                   const warren_place* local, size_t local_places) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "checkpoint_from: the communicator is NULL"));
  const std::uint64_t site = WARREN_SITE;
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (!comm->first) {
      return {Code::kInvalidArgument, "checkpoint_from: only on the communicator that warren_create made"};
    }
    const bool is_root = comm->rank == root;
    const auto globals = places_of(is_root ? global : nullptr, is_root ? global_places : 0, "checkpoint_from");
    const auto locals = places_of(local, local_places, "checkpoint_from");
    if (!globals.ok()) return globals.status();
    if (!locals.ok()) return locals.status();
    const auto global_state = read_only(globals.value()), local_state = read_only(locals.value());
    const Session::Places mine(local_state);
    return comm->shared->session->checkpoint_from(root, global_state, local == nullptr ? nullptr : &mine, comm->stream,
                                                  site);
  });
}

warren_code warren_lazy_checkpoint(warren_comm* comm, warren_serialize serialize, void* context) {
  if (comm == nullptr || serialize == nullptr) {
    return report(Status(Code::kInvalidArgument, "lazy_checkpoint: a pointer is NULL"));
  }
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (!comm->first) {
      return {Code::kInvalidArgument, "lazy_checkpoint: only on the communicator that warren_create made"};
    }
    return comm->shared->session->lazy_checkpoint(serialize, context, comm->stream);
  });
}

warren_code warren_restore(warren_comm* comm, const warren_place* global, size_t global_places,
                           const warren_place* local, size_t local_places) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "restore: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (comm->loaded.version == 0) return {Code::kInvalidArgument, "restore: load_checkpoint has given no state"};
    if (comm->released) return {Code::kInvalidArgument, "restore: the states were released"};
    const auto globals = places_of(global, global_places, "restore");
    const auto locals = places_of(local, local_places, "restore");
    if (!globals.ok()) return globals.status();
    if (!locals.ok()) return locals.status();
    Status status = fits(globals.value(), "global", comm->loaded.global);
    if (status.ok() && local != nullptr) status = fits(locals.value(), "local", comm->loaded.local);
    if (!status.ok()) return status;
    Session& session = *comm->shared->session;
    status = session.restore(globals.value(), comm->loaded.global, comm->stream);
    if (status.ok()) status = session.restore(locals.value(), comm->loaded.local, comm->stream);
    return status;
  });
}

warren_code warren_release_states(warren_comm* comm) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "release_states: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    comm->loaded = {.version = comm->loaded.version, .world_size = comm->loaded.world_size, .global = {}, .local = {}};
    comm->released = true;
    return {};
  });
}

uint32_t warren_checkpoint_world_size(const warren_comm* comm) {
  return comm == nullptr ? 0 : comm->loaded.world_size;
}

// Under a lock, which a fork may leave locked in the child for ever.
uint64_t warren_checkpoint_version(const warren_comm* comm) {
  return comm == nullptr || forked(*comm->shared) ? 0 : comm->shared->session->version();
}

uint64_t warren_committed_version(const warren_comm* comm) {
  return comm == nullptr || forked(*comm->shared) ? 0 : comm->shared->session->committed_version();
}

warren_code warren_meets_round(warren_comm* comm, const uint64_t* sites, size_t count, int32_t* meets) {
  if (comm == nullptr || sites == nullptr || meets == nullptr) {
    return report(Status(Code::kInvalidArgument, "meets_round: a pointer is NULL"));
  }
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (!comm->first) {
      return {Code::kInvalidArgument, "meets_round: only on the communicator that warren_create made"};
    }
    if (count == 0 || count > warren::limits::kMaxQuestionSites) {
      return {Code::kInvalidArgument, "meets_round: " + std::to_string(count) + " call sites are outside 1 to " +
                                          std::to_string(warren::limits::kMaxQuestionSites)};
    }
    auto met = comm->shared->session->calls().meets({sites, sites + count});
    if (!met.ok()) return met.status();
    *meets = met.value() ? 1 : 0;
    return {};
  });
}

warren_code warren_once_known(warren_comm* comm, const char* name, int32_t* known) {
  if (comm == nullptr || name == nullptr || known == nullptr) {
    return report(Status(Code::kInvalidArgument, "once_known: a pointer is NULL"));
  }
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    *known = comm->shared->session->groups().setup_known(comm->group, name) ? 1 : 0;
    return {};
  });
}

}  // extern "C"
