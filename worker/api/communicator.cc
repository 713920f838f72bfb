// A communicator's life, and what it says of itself.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "storage/standard_descriptors.h"
#include "worker/api/call_sites.h"
#include "worker/api/groups.h"
#include "worker/api/handles.h"
#include "worker/api/options.h"
#include "worker/session/log.h"
#include "worker/settings/settings.h"

using warren::Code;
using warren::Rank;
using warren::Status;
using namespace warren::api;

namespace {

constexpr std::size_t kMostReasonBytes = 1024;

}  // namespace

extern "C" {

const char* warren_version(void) {
  return WARREN_VERSION;
}

warren_code warren_create(const warren_options* options, warren_comm** comm) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "where the communicator goes is NULL"));
  *comm = nullptr;
  return report(caught([&]() -> Status {
    warren_options all;
    if (options != nullptr) {
      const auto read = of_this_version(*options, all_defaults(), "warren_options_init");
      if (!read.ok()) return read.status();
      all = read.value();
      options = &all;
    }
    // From here on, so that whoever waits for lines hears of any failure.
    std::unique_ptr<LogUse> log_use;
    if (options != nullptr && options->log_queue != nullptr) {
      log_use = std::make_unique<LogUse>(options->log_queue->queue);
      if (options->log_sink != nullptr) return {Code::kInvalidArgument, "log_queue and log_sink are both given"};
    }
    count_forks();
    warren::open_standard_descriptors();
    auto settings = warren::worker::resolve(options, warren::worker::process_environment());
    std::vector<std::string_view> variables;
    for (char** v = environ; v != nullptr && *v != nullptr; v++) variables.emplace_back(*v);
    const std::vector<std::string> misspelled = warren::worker::misspelled_variables(variables);
    if (!settings.ok())
      return misspelled.empty() ? settings.status() : settings.status().because_of_this(misspelled[0]);
    warren::worker::Log log;
    log.least = settings.value().log_level;
    log.readable = [](std::string text) { return site_names().explain(std::move(text)); };
    if (options != nullptr) {
      log.sink = options->log_sink;
      log.context = options->log_context;
      if (log_use != nullptr) log.queue = options->log_queue->queue;
    }
    log(WARREN_LOG_INFO, std::string("warren ") + WARREN_VERSION + ": " + describe(settings.value()) +
                             "; the others have their defaults");
    for (const std::string& line : misspelled) log(WARREN_LOG_WARNING, line);
    warren::worker::Interrupt interrupt;
    if (options != nullptr) interrupt = {options->interrupt, options->interrupt_context};
    auto session = Session::create(settings.value(), log, interrupt);
    if (!session.ok()) return session.status();
    auto made = std::make_unique<warren_comm>();
    made->log_use = std::move(log_use);
    made->shared = std::make_shared<Shared>();
    made->shared->session = std::move(session).value();
    made->shared->fork_number = warren::api::fork_number.load();
    made->shared->rank = made->shared->session->rank();
    made->rank = made->shared->rank.value;
    for (std::uint32_t r = 0; r < made->shared->session->world_size(); r++) {
      made->members.emplace_back(static_cast<std::int32_t>(r));
    }
    made->first = true;
    find_local(*made);
    *comm = made.release();
    return {};
  }));
}

warren_code warren_finalize(warren_comm* comm) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (!comm->first) return {Code::kInvalidArgument, "only the communicator that warren_create made is finalized"};
    return comm->shared->session->finalize();
  });
}

warren_code warren_drain(warren_comm* comm, int64_t within_ms) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    if (comm->shared->fork_number != warren::api::fork_number.load()) {
      return {Code::kClosed, "this process was forked: the communicator is its parent's"};
    }
    if (!comm->first) return {Code::kInvalidArgument, "only the communicator that warren_create made drains"};
    if (within_ms < 0) return {Code::kInvalidArgument, "within_ms is negative"};
    comm->shared->session->drain(std::min(within_ms, warren::limits::kMaxDrainMs), "the program asked for it");
    return {};
  });
}

warren_code warren_abort(warren_comm* comm, const char* reason) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    if (forked(*comm->shared)) return {Code::kClosed, "this process was forked: the communicator is its parent's"};
    const std::string_view why = reason == nullptr ? "it gave no reason" : reason;
    comm->shared->session->abort(std::string(why.substr(0, kMostReasonBytes)));
    return {};
  });
}

void warren_destroy(warren_comm* comm) {
  if (comm == nullptr) return;
  if (comm->shared->fork_number != warren::api::fork_number.load())
    return;  // the parent's threads and sockets: not ours to end
  (void)guarded(*comm->shared, [&]() -> Status {
    Shared& shared = *comm->shared;
    if (comm->first) {
      for (warren_comm* child : shared.children) delete child;
      shared.children.clear();
      shared.session->close();
    } else {
      std::erase(shared.children, comm);
      shared.session->groups().remove(comm->group);
    }
    return {};
  });
  delete comm;
}

int32_t warren_rank(const warren_comm* comm) {
  return comm == nullptr ? -1 : comm->rank;
}

int32_t warren_world_size(const warren_comm* comm) {
  return comm == nullptr ? -1 : static_cast<int32_t>(comm->members.size());
}

int32_t warren_local_rank(const warren_comm* comm) {
  return comm == nullptr ? -1 : comm->local_rank;
}

int32_t warren_local_size(const warren_comm* comm) {
  return comm == nullptr ? -1 : comm->local_size;
}

int32_t warren_min_workers(const warren_comm* comm) {
  return comm == nullptr ? -1 : static_cast<int32_t>(comm->shared->session->min_workers());
}

warren_code warren_contributors(warren_comm* comm, int32_t* ranks, size_t capacity, size_t* count) {
  if (comm == nullptr || count == nullptr || (ranks == nullptr && capacity != 0)) {
    return report(Status(Code::kInvalidArgument, "contributors: a pointer is NULL"));
  }
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (!comm->newest->is_one) {
      return {Code::kInvalidArgument, "contributors: no collective of this communicator was waited for yet"};
    }
    copy_contributors(comm->newest->contributors.get(), warren_world_size(comm), ranks, capacity, *count);
    return {};
  });
}

uint64_t warren_rounds_finished(const warren_comm* comm) {
  return comm == nullptr ? 0 : comm->shared->session->board().rounds_finished.load(std::memory_order_relaxed);
}

uint64_t warren_gpu_readers(const warren_comm* comm) {
  return comm == nullptr ? 0 : comm->shared->session->board().gpu_readers.load(std::memory_order_relaxed);
}

uint64_t warren_inputs_lent(const warren_comm* comm) {
  return comm == nullptr ? 0 : comm->shared->session->board().inputs_lent.load(std::memory_order_relaxed);
}

uint64_t warren_finals_from_gpus(const warren_comm* comm) {
  return comm == nullptr ? 0 : comm->shared->session->board().finals_from_gpus.load(std::memory_order_relaxed);
}

uint64_t warren_rounds_exchanged(const warren_comm* comm) {
  return comm == nullptr ? 0 : comm->shared->session->board().rounds_exchanged.load(std::memory_order_relaxed);
}

uint64_t warren_bytes_sent(const warren_comm* comm) {
  return comm == nullptr ? 0 : comm->shared->session->board().bytes_moved.load(std::memory_order_relaxed);
}

warren_code warren_use_stream(warren_comm* comm, void* stream) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "use_stream: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (entry.status().ok()) comm->stream = stream;
    return entry.status();
  });
}

warren_code warren_allocate(warren_comm* comm, size_t bytes, void** memory) {
  if (comm == nullptr || memory == nullptr)
    return report(Status(Code::kInvalidArgument, "allocate: a pointer is NULL"));
  *memory = nullptr;
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    const auto made = comm->shared->session->allocate(bytes);
    if (!made.ok()) return made.status().because_of_this("cannot allocate memory that ranks share");
    *memory = made.value();
    return {};
  });
}

warren_code warren_free(warren_comm* comm, void* memory) {
  if (memory == nullptr) return WARREN_OK;
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "free: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    if (comm->shared->fork_number != warren::api::fork_number.load()) {
      return {Code::kClosed, "this process was forked: the memory is its parent's"};
    }
    const Entry entry(*comm->shared);
    if (entry.status().ok()) return comm->shared->session->free(memory);
    comm->shared->free_later(memory);
    return {};
  });
}

warren_code warren_fusion_begin(warren_comm* comm, int64_t bytes) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "fusion_begin: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (const Status begun = comm->shared->session->fused().begin(comm->group); !begun.ok()) return begun;
    comm->fuses = true;
    const std::uint64_t most =
        bytes < 0 ? comm->shared->session->fused().default_bytes() : static_cast<std::uint64_t>(bytes);
    comm->fusion_bytes = std::min(most, warren::limits::kMaxBufferBytes);
    return {};
  });
}

warren_code warren_fusion_end(warren_comm* comm) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "fusion_end: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (!comm->fuses) return {Code::kInvalidArgument, "fusion_end: none has begun"};
    comm->fuses = false;
    comm->fusion_bytes = 0;
    comm->shared->session->fused().end();
    return {};
  });
}

warren_code warren_span_begin(warren_comm* comm, const char* name) {
  if (comm == nullptr || name == nullptr) {
    return report(Status(Code::kInvalidArgument, "span_begin: a pointer is NULL"));
  }
  return guarded(*comm->shared, [&]() -> Status {
    if (forked(*comm->shared)) return {Code::kClosed, "this communicator was made before a fork"};
    if (auto* const trace = comm->shared->session->trace()) trace->begin_here(name);
    return {};
  });
}

warren_code warren_span_end(warren_comm* comm) {
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "span_end: the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    if (forked(*comm->shared)) return {Code::kClosed, "this communicator was made before a fork"};
    if (auto* const trace = comm->shared->session->trace()) trace->end_here();
    return {};
  });
}

}  // extern "C"
