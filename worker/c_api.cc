// The C interface: arguments checked, results turned into codes and a text per thread. No exception leaves it.
#include "warren/c_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "recovery/limits.h"
#include "storage/fork_guard.h"
#include "storage/standard_descriptors.h"
#include "storage/xxh3.h"
#include "worker/call.h"
#include "worker/launch/settings.h"
#include "worker/log.h"
#include "worker/schedule/schedule.h"
#include "worker/session.h"

using warren::Code;
using warren::Collective;
using warren::DataType;
using warren::GroupId;
using warren::Rank;
using warren::ReduceOp;
using warren::RoundId;
using warren::Status;
using warren::Version;
using warren::worker::Call;
using warren::worker::CallSpec;
using warren::worker::GroupShape;
using warren::worker::LogQueue;
using warren::worker::Session;

namespace {

// A failure as a thread of the program's may ask for it.
struct LastError {
  Code code = Code::kOk;
  std::int32_t rank = -1, peer = -1;
  std::string round, text;
};
// The calling thread's; null: it has none. Nothing that a thread destroys when it ends: destructors of what is static,
// and of what the thread made before, run later, and their calls may fail too. What those leave stays.
thread_local LastError* last_error = nullptr;
void free_at_end_of_thread() {
  struct Owner {
    ~Owner() { delete std::exchange(last_error, nullptr); }
  };
  thread_local const Owner owner;
}
LastError& error_to_tell() {
  if (last_error == nullptr) {
    free_at_end_of_thread();
    last_error = new LastError();
  }
  return *last_error;
}

// Longer waits are as good as endless, and still fit into a clock.
constexpr std::int64_t kMostWaitMs = std::int64_t{1000} * 3600 * 24 * 365;
constexpr std::size_t kMostReasonBytes = 1024;

// FNV-1a.
std::uint64_t hash_of(const char* text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char* c = text; *c != 0; c++) hash = (hash ^ static_cast<unsigned char>(*c)) * 0x100000001b3u;
  return hash;
}
const char* last_part(const char* path) {
  const char* slash = std::strrchr(path, '/');
  return slash != nullptr ? slash + 1 : path;
}

// A call site holds 23 bits of the hash of a module's name or a source file's, and 40 bits: the offset in the module;
// or 16 of the hash of a function's name, and the line.
constexpr std::uint64_t kFileBits = 0x7fffff, kOffsetBits = (std::uint64_t{1} << 40) - 1, kLineBits = 0xffffff;
std::uint64_t site_in(std::uint64_t file_hash, std::uint64_t offset) {
  return ((file_hash & kFileBits) << 40) | (offset & kOffsetBits);
}

// Modules and source files that made calls, by their hash in call sites.
class SiteNames {
 public:
  void add(std::uint64_t hash, const char* name, bool source) {
    const std::lock_guard lock(mutex_);
    names_.try_emplace(hash & kFileBits, name, source);
  }
  // Call sites with names instead of hashes, and how to read them.
  std::string explain(std::string text) {
    const std::lock_guard lock(mutex_);
    std::string hint;
    for (const auto& [hash, file] : names_) {
      char digits[16];
      (void)std::snprintf(digits, sizeof digits, "at %llx+0x", static_cast<unsigned long long>(hash));
      for (std::size_t at = text.find(digits); at != std::string::npos; at = text.find(digits, at)) {
        std::string readable = "at " + file.name + "+0x";
        std::size_t length = std::strlen(digits);
        if (file.source) {
          std::uint64_t offset = 0;
          const char* const end = text.data() + text.size();
          length = static_cast<std::size_t>(std::from_chars(text.data() + at + length, end, offset, 16).ptr -
                                            (text.data() + at));
          readable = "at " + file.name + ":" + std::to_string(offset & kLineBits);
        } else {
          hint = "; `addr2line -i -e " + file.name + " 0xOFFSET` shows the line, if it was built with -g";
        }
        text.replace(at, length, readable);
        at += readable.size();
      }
    }
    return text + hint;
  }
  std::mutex& mutex() { return mutex_; }

 private:
  struct File {
    File(const char* n, bool s) : name(n), source(s) {}
    std::string name;
    bool source;
  };
  std::mutex mutex_;
  std::map<std::uint64_t, File> names_;
};
// Never destroyed: threads of the library log, and destructors of statics call, when the program's statics go.
SiteNames& site_names() {
  static SiteNames& names = *new SiteNames;
  return names;
}

// Raised in the child of a fork: what the parent made is not the child's, which has none of its links either.
std::atomic<unsigned> fork_generation{0};
void count_forks() {
  warren::close_in_children();
  // A child calls, too: another thread of its parent must not have the names then.
  static const int once = pthread_atfork([] { site_names().mutex().lock(); }, [] { site_names().mutex().unlock(); },
                                         [] {
                                           site_names().mutex().unlock();
                                           fork_generation.fetch_add(1);
                                         });
  (void)once;
}

// `rank`: of this worker in its job; -1: it has none.
warren_code report(const Status& status, std::int32_t rank = -1) noexcept {
  if (status.ok()) [[likely]]
    return WARREN_OK;
  try {
    LastError& error = error_to_tell();
    error = {status.code(), rank, status.peer().value, std::string(status.round()), status.describe()};
    if (status.code() == Code::kDesync) error.text = site_names().explain(std::move(error.text));
  } catch (const std::bad_alloc&) {
    if (last_error != nullptr) *last_error = {status.code(), rank, -1, {}, {}};  // the code says enough
  }
  return static_cast<warren_code>(status.code());
}

// What communicators of one job share besides the session.
struct Shared {
  std::shared_ptr<Session> session;
  Rank rank;  // of this worker in the job
  unsigned generation = 0;
  std::atomic<bool> busy{false};
  std::vector<warren_comm*> children;  // split from the first one and not destroyed
  // By name, members and version: how often warren_group has made it in the version that is the newest here.
  std::map<std::uint64_t, std::uint64_t> groups_made;
  Version groups_made_in;

  // Allocated memory that was given back while the session was in use: by a callback, or beside another thread's call.
  void free_later(void* memory) {
    const std::lock_guard lock(freed_mutex);
    freed.push_back(memory);
    any_freed.store(true, std::memory_order_release);
  }
  void free_now() {
    std::vector<void*> all;
    {
      const std::lock_guard lock(freed_mutex);
      all.swap(freed);
      any_freed.store(false, std::memory_order_relaxed);
    }
    // Who freed what is no memory of ours has been told that all is well, and the next call has nothing to do with it.
    for (void* memory : all) (void)session->free(memory);
  }
  std::mutex freed_mutex;
  std::vector<void*> freed;
  std::atomic<bool> any_freed{false};
};

// Of the collective of a communicator that was waited for last, for the communicator and its handles.
struct Newest {
  bool is_one = false;
  std::shared_ptr<const std::vector<Rank>> contributors;  // null: all ranks
};

// While it lives, the library may log to this queue.
class LogUse {
 public:
  explicit LogUse(std::shared_ptr<LogQueue> queue) : queue_(std::move(queue)) { queue_->begin(); }
  ~LogUse() { queue_->end(); }
  LogUse(const LogUse&) = delete;
  LogUse& operator=(const LogUse&) = delete;

 private:
  const std::shared_ptr<LogQueue> queue_;
};

}  // namespace

struct warren_log_queue {
  std::shared_ptr<LogQueue> queue;
  unsigned generation = 0;
  std::string text;  // that was taken last
};

struct warren_comm {
  std::unique_ptr<LogUse> log_use;  // null: no queue, or not made by warren_create. Outlives the session
  std::shared_ptr<Shared> shared;
  std::shared_ptr<Newest> newest = std::make_shared<Newest>();
  GroupId group;
  std::vector<Rank> members;
  std::int32_t rank = 0;
  std::int32_t local_rank = 0, local_size = 1;
  void* stream = nullptr;          // of calls on GPU buffers
  std::uint64_t fusion_bytes = 0;  // of what is put together; 0: nothing is
  bool fuses = false;              // between fusion_begin and fusion_end
  bool lasts = true;               // every life makes it again, under the same name
  warren::worker::Session::State loaded;
  bool released = false;  // what was loaded
  bool first = false;     // made by warren_create
  std::string name;       // made by warren_group; else empty
};

struct warren_handle {
  std::shared_ptr<Shared> shared;
  std::shared_ptr<Call> call;
  std::shared_ptr<Newest> newest;  // null: a message
  std::int32_t ranks = 0;          // of its communicator
};

namespace {

// One thread at a time inside a job's communicators, and never a forked child.
class Entry {
 public:
  explicit Entry(Shared& shared) : shared_(shared) {
    if (shared.generation != fork_generation.load(std::memory_order_relaxed)) {
      status_ = Status(Code::kClosed, "this communicator was made before a fork: the child has to make its own");
      return;
    }
    if (Session::inside_callback()) {
      status_ = Status(Code::kInvalidArgument, "a callback or a reduction called the communicator: it must not");
      return;
    }
    if (shared.busy.exchange(true, std::memory_order_acquire)) {
      status_ = Status(Code::kInvalidArgument, "another thread is inside a call of this communicator");
      return;
    }
    entered_ = true;
    if (shared.any_freed.load(std::memory_order_acquire)) shared.free_now();
  }
  ~Entry() {
    if (entered_) shared_.busy.store(false, std::memory_order_release);
  }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  [[nodiscard]] const Status& status() const { return status_; }

 private:
  Shared& shared_;
  Status status_;
  bool entered_ = false;
};

bool forked(const Shared& shared) {
  return shared.generation != fork_generation.load(std::memory_order_relaxed);
}

template <class Body>
Status caught(Body body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return {Code::kExhausted, "out of memory"};
  } catch (const std::exception& e) {
    return {Code::kInternal, std::string("unexpected: ") + e.what()};
  }
}

// Runs a call on a communicator of this job, and reports its failure with this worker's rank.
template <class Body>
warren_code guarded(const Shared& shared, Body body) {
  const Status status = caught(body);
  return status.ok() ? WARREN_OK : report(status, shared.rank.value);
}

// Where in its module a call was made: the same number in every process that runs the same binary, wherever it was
// loaded. Modules are looked up once an address; a handful of addresses make all the calls of a program.
std::uint64_t site_of(const void* address) noexcept {
  struct Cached {
    const void* address = nullptr;
    std::uint64_t site = 0;
  };
  thread_local Cached cache[16];
  Cached& slot = cache[(reinterpret_cast<std::uintptr_t>(address) >> 2) & 15];
  if (slot.address == address) return slot.site;
  Dl_info info{};
  std::uint64_t site = 0;
  if (dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    const char* name = last_part(info.dli_fname);
    const std::uint64_t hash = hash_of(name);
    try {
      site_names().add(hash, name, false);
    } catch (const std::bad_alloc&) {
      return 0;  // unknown; agrees with all
    }
    site = site_in(
        hash, static_cast<std::uint64_t>(static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase)));
  }
  slot = {address, site};
  return site;
}

// Of all that this library knows.
warren_options all_defaults() {
  warren_options all{};
  all.log_level = -1;
  all.replicas = -1;
  all.fusion_bytes = -1;
  all.replace_after_ms = -1;
  all.grace_ms = -1;
  return all;
}

// As much of it as the caller's struct has room for, whose size it then says.
template <class Options>
void give_sized(Options* options, Options all, size_t size) {
  if (options == nullptr) return;
  all.struct_size = size;
  std::memcpy(options, &all, std::min(size, sizeof all));
}

// A struct of the caller's header, which may be older: what that does not know is as in `all`.
template <class Options>
warren::Result<Options> of_this_version(const Options& given, Options all, const char* init) {
  if (given.struct_size < sizeof given.struct_size || given.struct_size > sizeof all) {
    return Status(Code::kInvalidArgument, std::string("the options were not filled by ") + init +
                                              ", or by that of a newer version than this library (" + WARREN_VERSION +
                                              ")");
  }
  std::memcpy(&all, &given, given.struct_size);
  all.struct_size = sizeof all;
  return all;
}

Status check_name(const warren_comm& comm, const char* name) {
  if (const Status status = comm.shared->session->needs_mode_wait("a set-up round"); !status.ok()) return status;
  const std::size_t bytes = strnlen(name, warren::limits::kMaxSetupNameBytes + 1);
  if (bytes == 0 || bytes > warren::limits::kMaxSetupNameBytes) {
    return {Code::kInvalidArgument, "the name of a set-up round has 1 to " +
                                        std::to_string(warren::limits::kMaxSetupNameBytes) + " bytes, this one " +
                                        (bytes == 0 ? "none" : "more")};
  }
  if (comm.lasts) return {};
  return {Code::kInvalidArgument, "\"" + std::string(name) +
                                      "\" is a set-up round on a communicator that was split after load_checkpoint: a "
                                      "process that is started again would not find it; split it before"};
}

// The options of a call that its spec does not hold.
struct Said {
  std::string setup;            // the name of a set-up round; empty: it is none
  std::int64_t timeout_ms = 0;  // 0: none
};

// Puts the options of a call into its spec.
warren::Result<Said> say(const warren_comm& comm, const warren_call_options& given, CallSpec& spec) {
  const auto options = of_this_version(given, warren_call_options{}, "warren_call_options_init");
  if (!options.ok()) return options.status();
  const warren_call_options& said = options.value();
  const std::uint64_t site = said.site != 0 ? said.site : warren_site_of(said.file, said.line, said.function);
  if (site != 0) {
    spec.site = site;
  } else if (said.address != nullptr) {
    spec.site = site_of(said.address);
  }
  if (said.timeout_ms < 0) return Status(Code::kInvalidArgument, "timeout_ms is negative");
  Said rest{{}, std::min(said.timeout_ms, kMostWaitMs)};
  if (spec.collective == Collective::kPoint) {
    if ((said.wire == 0 || said.wire == WARREN_F32) && said.algorithm == nullptr && said.once == nullptr &&
        said.prepare == nullptr) {
      return rest;
    }
    return Status(Code::kInvalidArgument,
                  "a message has no wire type, algorithm, name or prepare function: collectives have");
  }
  if (said.wire != 0 && said.wire != WARREN_F16 && said.wire != WARREN_BF16 && said.wire != WARREN_I8 &&
      said.wire != WARREN_F32) {
    return Status(Code::kInvalidArgument,
                  "f32 travels as f16, bf16, i8 or f32, not as type " + std::to_string(said.wire));
  }
  spec.wire = said.wire == WARREN_F32 ? DataType{} : static_cast<DataType>(said.wire);
  if (said.algorithm != nullptr) {
    const auto algorithm = warren::schedule::parse_algorithm(said.algorithm);
    if (!algorithm.ok()) return algorithm.status();
    const auto number = static_cast<std::uint8_t>(algorithm.value());
    if (spec.algorithm != 0 && number != 0 && number != spec.algorithm) {
      return Status(Code::kInvalidArgument, std::string(to_string(spec.collective)) +
                                                ": a reduction of the program's is called in the order of "
                                                "ranks, which algorithm direct does, and " +
                                                said.algorithm + " does not");
    }
    if (number != 0) spec.algorithm = number;
  }
  spec.prepare = said.prepare;
  spec.prepare_context = said.prepare_context;
  if (said.once == nullptr) return rest;
  if (const Status status = check_name(comm, said.once); !status.ok()) return status;
  rest.setup = said.once;
  return rest;
}

// A call that has a time within which it is to finish: another thread watches it, so that it outlives who waits.
Status run_within(warren_comm& comm, const GroupShape& shape, const std::shared_ptr<Call>& call,
                  std::int64_t timeout_ms) {
  Session& session = *comm.shared->session;
  Status status = session.stage(*call, shape);
  if (status.ok()) status = session.submit(comm.group, call);
  if (!status.ok()) return status;
  session.finish_within(call, timeout_ms);
  return session.wait(*call);
}

// Of a group that is made only the place of the call is said.
Status say_of_group(const warren_comm& comm, const warren_call_options& given, CallSpec& spec) {
  const auto said = say(comm, given, spec);
  if (!said.ok()) return said.status();
  const bool else_nothing = said.value().setup.empty() && said.value().timeout_ms == 0 && spec.wire == DataType{} &&
                            spec.algorithm == 0 && spec.prepare == nullptr;
  if (else_nothing) return {};
  return {Code::kInvalidArgument,
          "a group has no wire type, algorithm, name of a set-up round, prepare function or timeout"};
}

Status issue(warren_comm& comm, CallSpec& spec, Said said, warren_handle** handle) {
  spec.stream = comm.stream;
  const GroupShape shape{comm.rank, static_cast<std::int32_t>(comm.members.size())};
  const Status valid = validate(spec, shape);
  if (!valid.ok()) return valid;
  Session& session = *comm.shared->session;
  if (handle == nullptr) {
    std::shared_ptr<const std::vector<Rank>> contributors;
    Status status;
    if (said.timeout_ms != 0) {
      const auto call = std::make_shared<Call>();
      call->spec = spec;
      call->setup = std::move(said.setup);
      status = run_within(comm, shape, call, said.timeout_ms);
      contributors = call->contributors;
    } else if (said.setup.empty()) {
      status = session.run(comm.group, shape, spec, contributors);
    } else {
      Call call;
      call.spec = spec;
      call.setup = std::move(said.setup);
      status = session.stage(call, shape);
      if (status.ok()) status = session.run(comm.group, call);
      contributors = std::move(call.contributors);
    }
    if (status.ok() && spec.collective != Collective::kPoint) {
      comm.newest->is_one = true;
      comm.newest->contributors = std::move(contributors);
    }
    return status;
  }
  auto call = std::make_shared<Call>();
  call->spec = spec;
  call->setup = std::move(said.setup);
  auto made = std::make_unique<warren_handle>(
      warren_handle{comm.shared, call, spec.collective == Collective::kPoint ? nullptr : comm.newest, shape.size});
  Status status;
  if (comm.fusion_bytes != 0 && spec.collective == Collective::kAllreduce) {
    status = session.fuse(comm.group, shape, call, comm.fusion_bytes);
  } else {
    status = session.stage(*call, shape);
    if (status.ok()) status = session.submit(comm.group, call);
  }
  if (status.ok() && said.timeout_ms != 0) session.finish_within(call, said.timeout_ms);
  if (status.ok()) *handle = made.release();
  return status;
}

warren_code start(warren_comm* comm, CallSpec& spec, const warren_call_options* options, warren_handle** handle) {
  if (handle != nullptr) *handle = nullptr;
  if (comm == nullptr) return report(Status(Code::kInvalidArgument, "the communicator is NULL"));
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    if (options == nullptr) return issue(*comm, spec, {}, handle);
    auto said = say(*comm, *options, spec);
    return said.ok() ? issue(*comm, spec, std::move(said).value(), handle) : said.status();
  });
}

// As many as there is room for; `contributors` null: all of so many ranks.
void copy_contributors(const std::vector<Rank>* contributors, std::int32_t ranks, int32_t* to, size_t capacity,
                       size_t& count) {
  count = contributors != nullptr ? contributors->size() : static_cast<size_t>(ranks);
  for (size_t i = 0; i < std::min(count, capacity); i++) {
    to[i] = contributors != nullptr ? (*contributors)[i].value : static_cast<int32_t>(i);
  }
}

// Of a call that is not even issued.
warren_code refuse(warren_handle** handle, const Status& why) {
  if (handle != nullptr) *handle = nullptr;
  return report(why);
}

bool is_type(warren_type type) {
  return warren::is_public(static_cast<DataType>(type));
}
bool is_op(warren_op op) {
  return op >= WARREN_SUM && op <= WARREN_AVERAGE;
}

Status check_type(const char* name, warren_type type) {
  if (is_type(type)) return {};
  return {Code::kInvalidArgument, std::string(name) + ": unknown type " + std::to_string(static_cast<int>(type))};
}

Status check_op(const char* name, warren_op op) {
  if (is_op(op)) return {};
  return {Code::kInvalidArgument, std::string(name) + ": unknown operation " + std::to_string(static_cast<int>(op))};
}

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
warren::Result<std::vector<Rank>> members_of(const warren_comm& comm, const char* name,
                                             std::span<const int32_t> ranks) {
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
  return warren::xxh3(std::as_bytes(std::span(text)));
}

// One of them, by how many were made before: the same number at each member, in each of its lives, without a word of
// the others. One that is destroyed may have messages that a new life asks for: the next one is another group.
GroupId group_id(std::uint64_t hash, std::uint64_t before) {
  const std::uint64_t id = warren::xxh3(std::as_bytes(std::span(&before, 1)), hash);
  return GroupId(id == 0 ? 1 : id);
}

using Places = std::vector<std::span<std::byte>>;

// kInvalidArgument: one that is nowhere.
warren::Result<Places> places_of(const warren_place* places, std::size_t count, const char* what) {
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

// With the elements' type and how they are combined in `spec`.
warren_code reduce_scatterv(warren_comm* comm, CallSpec& spec, const void* in, void* out, const size_t* counts,
                            const warren_call_options* options, warren_handle** handle) {
  if (comm == nullptr || counts == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "reduce_scatterv: the communicator or the counts are NULL"));
  }
  spec.collective = Collective::kReduceScatterv;
  spec.input = in;
  spec.output = out;
  spec.counts = {counts, comm->members.size()};
  return start(comm, spec, options, handle);
}

}  // namespace

#define WARREN_SITE site_of(__builtin_return_address(0))

extern "C" {

void warren_options_init_sized(warren_options* options, size_t size) {
  give_sized(options, all_defaults(), size);
}

warren_code warren_options_set(warren_options* options, const char* name, const char* value) {
  if (options == nullptr || name == nullptr || value == nullptr) {
    return report(Status(Code::kInvalidArgument, "options_set: a pointer is NULL"));
  }
  return report(caught([&]() -> Status {
    if (options->struct_size != sizeof *options || options->settings_count > WARREN_MOST_SETTINGS) {
      return {Code::kInvalidArgument,
              "options_set: the options were not filled by warren_options_init of this version, " WARREN_VERSION};
    }
    if (const Status known = warren::worker::check_setting_name(name); !known.ok()) return known;
    if (*value == 0) return {Code::kInvalidArgument, "options_set: " + std::string(name) + " has no value"};
    const std::span given(options->settings, options->settings_count);
    const auto same =
        std::ranges::find_if(given, [&](const warren_setting& s) { return std::string_view(s.name) == name; });
    if (same == given.end()) ++options->settings_count;  // there are fewer names than places
    *same = {name, value};
    return {};
  }));
}

void warren_call_options_init_sized(warren_call_options* options, size_t size) {
  give_sized(options, warren_call_options{}, size);
}

const char* warren_version(void) {
  return WARREN_VERSION;
}

const char* warren_last_error(void) {
  return last_error == nullptr ? "" : last_error->text.c_str();
}

void warren_last_failure_sized(warren_failure* failure, size_t size) {
  if (failure == nullptr) return;
  static const LastError none;
  const LastError& e = last_error == nullptr ? none : *last_error;
  const warren_failure all{static_cast<warren_code>(e.code), e.rank, e.peer, e.round.c_str(), e.text.c_str()};
  std::memcpy(failure, &all, std::min(size, sizeof all));
}

warren_code warren_log_queue_create(size_t lines, warren_log_queue** queue) {
  if (queue == nullptr) return report(Status(Code::kInvalidArgument, "log_queue_create: a pointer is NULL"));
  *queue = nullptr;
  return report(caught([&]() -> Status {
    if (lines == 0 || lines > LogQueue::kMostLines) {
      return {Code::kInvalidArgument, "log_queue_create: " + std::to_string(lines) + " lines are outside 1 to " +
                                          std::to_string(LogQueue::kMostLines)};
    }
    count_forks();
    auto made = std::make_unique<warren_log_queue>();
    made->queue = std::make_shared<LogQueue>(lines);
    made->generation = fork_generation.load();
    *queue = made.release();
    return {};
  }));
}

warren_code warren_next_log(warren_log_queue* queue, int64_t timeout_ms, warren_log_level* level, const char** text) {
  if (queue == nullptr || level == nullptr || text == nullptr) {
    return report(Status(Code::kInvalidArgument, "next_log: a pointer is NULL"));
  }
  return report(caught([&]() -> Status {
    // Another thread of the parent may have held its lock.
    if (queue->generation != fork_generation.load()) return {Code::kClosed, "this log queue was made before a fork"};
    auto line = queue->queue->take(timeout_ms);
    if (!line.ok()) return line.status();
    queue->text = std::move(line.value().text);
    *level = line.value().level;
    *text = queue->text.c_str();
    return {};
  }));
}

void warren_log_queue_free(warren_log_queue* queue) {
  if (queue == nullptr || queue->generation != fork_generation.load()) return;
  (void)report(caught([&]() -> Status {
    (void)queue->queue->divert();
    return {};
  }));
  delete queue;
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
    made->shared->generation = fork_generation.load();
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
    if (comm->shared->generation != fork_generation.load()) {
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
  if (comm->shared->generation != fork_generation.load()) return;  // the parent's threads and sockets: not ours to end
  (void)guarded(*comm->shared, [&]() -> Status {
    Shared& shared = *comm->shared;
    if (comm->first) {
      for (warren_comm* child : shared.children) delete child;
      shared.children.clear();
      shared.session->close();
    } else {
      std::erase(shared.children, comm);
      shared.session->remove_group(comm->group);
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

warren_code warren_split(warren_comm* comm, int32_t color, int32_t key, warren_comm** out) {
  if (comm == nullptr || out == nullptr) return report(Status(Code::kInvalidArgument, "split: a pointer is NULL"));
  *out = nullptr;
  const std::uint64_t site = WARREN_SITE;
  return guarded(*comm->shared, [&]() -> Status {
    const Entry entry(*comm->shared);
    if (!entry.status().ok()) return entry.status();
    Status refused = comm->shared->session->needs_mode_wait("split");
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
    const RoundId round = comm->shared->session->next_round(comm->group);
    Status status = issue(*comm, spec, {}, nullptr);
    if (!status.ok()) return status.because_of_this("split");
    // A channel that no rank uses for another group.
    auto used = comm->shared->session->used_channels();
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
    if (!channel) return Session::no_channel().because_of_this("split");
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
    status = comm->shared->session->add_group(made->group, made->members, *channel);
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
    if (Status refused = session.needs_mode_wait("group"); !refused.ok()) return refused;
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
    const Version version = session.next_round(comm->group).version;
    if (std::exchange(comm->shared->groups_made_in, version) != version) comm->shared->groups_made.clear();
    const std::uint64_t hash = hash_of_group(made->name, made->members, version);
    made->group = group_id(hash, comm->shared->groups_made[hash]);
    made->lasts = comm->lasts && version == warren::kPreamble;
    find_local(*made);
    const Status status = session.make_group(made->group, made->members, said.site);
    if (!status.ok()) return status.because_of_this(what);
    ++comm->shared->groups_made[hash];
    comm->shared->children.push_back(made.get());
    *out = made.release();
    return {};
  });
}

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
    if (comm->shared->generation != fork_generation.load()) {
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
    if (const Status begun = comm->shared->session->begin_fusion(comm->group); !begun.ok()) return begun;
    comm->fuses = true;
    const std::uint64_t most = bytes < 0 ? comm->shared->session->fusion_bytes() : static_cast<std::uint64_t>(bytes);
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
    comm->shared->session->end_fusion();
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

uint64_t warren_site_of(const char* file, int32_t line, const char* function) {
  if (file == nullptr || *file == 0) return 0;
  const std::uint64_t caller = function == nullptr ? 0 : hash_of(function) & 0xffff;
  const char* const name = last_part(file);
  const std::uint64_t hash = hash_of(name);
  try {
    site_names().add(hash, name, true);
  } catch (const std::bad_alloc&) {
    return 0;  // unknown; agrees with all
  }
  return site_in(hash, caller << 24 | (static_cast<std::uint64_t>(line) & kLineBits));
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
    auto met = comm->shared->session->meets({sites, sites + count});
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
    *known = comm->shared->session->setup_known(comm->group, name) ? 1 : 0;
    return {};
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

warren_code warren_allreduce(warren_comm* comm, const void* in, void* out, size_t count, warren_type type, warren_op op,
                             const warren_call_options* options, warren_handle** handle) {
  if (!is_type(type)) return refuse(handle, check_type("allreduce", type));
  if (!is_op(op)) return refuse(handle, check_op("allreduce", op));
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = static_cast<DataType>(type);
  spec.op = static_cast<ReduceOp>(op);
  spec.input = in;
  spec.output = out;
  spec.count = count;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_allreduce_custom(warren_comm* comm, const void* in, void* out, size_t count, size_t element_bytes,
                                    warren_custom_reduce reduce, void* context, const warren_call_options* options,
                                    warren_handle** handle) {
  if (reduce == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "allreduce: the reduction is NULL"));
  }
  CallSpec spec;
  spec.collective = Collective::kAllreduce;
  spec.type = DataType::kCustom;
  spec.op = ReduceOp::kCustom;
  spec.input = in;
  spec.output = out;
  spec.count = count;
  spec.custom = reduce;
  spec.custom_context = context;
  spec.custom_bytes = element_bytes;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_reduce(warren_comm* comm, const void* in, void* out, size_t count, warren_type type, warren_op op,
                          int32_t root, const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("reduce", type); !s.ok()) return refuse(handle, s);
  if (const Status s = check_op("reduce", op); !s.ok()) return refuse(handle, s);
  CallSpec spec;
  spec.collective = Collective::kReduce;
  spec.type = static_cast<DataType>(type);
  spec.op = static_cast<ReduceOp>(op);
  spec.input = in;
  spec.output = out;
  spec.count = count;
  spec.root = root;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_reduce_scatter(warren_comm* comm, const void* in, void* out, size_t count, warren_type type,
                                  warren_op op, const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("reduce_scatter", type); !s.ok()) return refuse(handle, s);
  if (const Status s = check_op("reduce_scatter", op); !s.ok()) return refuse(handle, s);
  CallSpec spec;
  spec.collective = Collective::kReduceScatter;
  spec.type = static_cast<DataType>(type);
  spec.op = static_cast<ReduceOp>(op);
  spec.input = in;
  spec.output = out;
  spec.count = count;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_broadcast(warren_comm* comm, void* buffer, size_t count, warren_type type, int32_t root,
                             const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("broadcast", type); !s.ok()) return refuse(handle, s);
  CallSpec spec;
  spec.collective = Collective::kBroadcast;
  spec.type = static_cast<DataType>(type);
  spec.output = buffer;
  spec.count = count;
  spec.root = root;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_barrier(warren_comm* comm, const warren_call_options* options, warren_handle** handle) {
  CallSpec spec;
  spec.collective = Collective::kBarrier;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_allgatherv(warren_comm* comm, const void* in, void* out, const size_t* counts, warren_type type,
                              const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("allgatherv", type); !s.ok()) return refuse(handle, s);
  if (comm == nullptr || counts == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "allgatherv: the communicator or the counts are NULL"));
  }
  static_assert(std::is_same_v<size_t, std::uint64_t>);
  CallSpec spec;
  spec.collective = Collective::kAllgatherv;
  spec.type = static_cast<DataType>(type);
  spec.input = in;
  spec.output = out;
  spec.counts = {counts, comm->members.size()};
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_reduce_scatterv(warren_comm* comm, const void* in, void* out, const size_t* counts, warren_type type,
                                   warren_op op, const warren_call_options* options, warren_handle** handle) {
  if (const Status s = check_type("reduce_scatterv", type); !s.ok()) return refuse(handle, s);
  if (const Status s = check_op("reduce_scatterv", op); !s.ok()) return refuse(handle, s);
  CallSpec spec;
  spec.type = static_cast<DataType>(type);
  spec.op = static_cast<ReduceOp>(op);
  spec.site = WARREN_SITE;
  return reduce_scatterv(comm, spec, in, out, counts, options, handle);
}

warren_code warren_reduce_scatterv_custom(warren_comm* comm, const void* in, void* out, const size_t* counts,
                                          size_t element_bytes, warren_custom_reduce reduce, void* context,
                                          const warren_call_options* options, warren_handle** handle) {
  if (reduce == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "reduce_scatterv: the reduction is NULL"));
  }
  CallSpec spec;
  spec.type = DataType::kCustom;
  spec.op = ReduceOp::kCustom;
  spec.custom = reduce;
  spec.custom_context = context;
  spec.custom_bytes = element_bytes;
  spec.site = WARREN_SITE;
  // In the order of ranks, whatever the setting says.
  spec.algorithm = static_cast<std::uint8_t>(warren::schedule::Algorithm::kDirect);
  return reduce_scatterv(comm, spec, in, out, counts, options, handle);
}

warren_code warren_all_to_allv(warren_comm* comm, const void* in, const size_t* counts_to, void* out,
                               const size_t* counts_from, warren_type type, const warren_call_options* options,
                               warren_handle** handle) {
  if (const Status s = check_type("all_to_allv", type); !s.ok()) return refuse(handle, s);
  if (comm == nullptr || counts_to == nullptr || counts_from == nullptr) {
    return refuse(handle, Status(Code::kInvalidArgument, "all_to_allv: the communicator or the counts are NULL"));
  }
  CallSpec spec;
  spec.collective = Collective::kAllToAllv;
  spec.type = static_cast<DataType>(type);
  spec.input = in;
  spec.output = out;
  spec.counts = {counts_to, comm->members.size()};
  spec.counts_from = {counts_from, comm->members.size()};
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

// The collectives that move equal blocks from `in` to `out` and have at most a root.
#define WARREN_MOVING(name, kind, ...)                                            \
  if (const Status s = check_type(name, type); !s.ok()) return refuse(handle, s); \
  CallSpec spec;                                                                  \
  spec.collective = kind;                                                         \
  spec.type = static_cast<DataType>(type);                                        \
  spec.input = in;                                                                \
  spec.output = out;                                                              \
  spec.count = count;                                                             \
  __VA_ARGS__;                                                                    \
  spec.site = WARREN_SITE;                                                        \
  return start(comm, spec, options, handle)

warren_code warren_allgather(warren_comm* comm, const void* in, void* out, size_t count, warren_type type,
                             const warren_call_options* options, warren_handle** handle) {
  WARREN_MOVING("allgather", Collective::kAllgather);
}

warren_code warren_gather(warren_comm* comm, const void* in, void* out, size_t count, warren_type type, int32_t root,
                          const warren_call_options* options, warren_handle** handle) {
  WARREN_MOVING("gather", Collective::kGather, spec.root = root);
}

warren_code warren_scatter(warren_comm* comm, const void* in, void* out, size_t count, warren_type type, int32_t root,
                           const warren_call_options* options, warren_handle** handle) {
  WARREN_MOVING("scatter", Collective::kScatter, spec.root = root);
}

warren_code warren_all_to_all(warren_comm* comm, const void* in, void* out, size_t count, warren_type type,
                              const warren_call_options* options, warren_handle** handle) {
  WARREN_MOVING("all_to_all", Collective::kAllToAll);
}

warren_code warren_send(warren_comm* comm, const void* buffer, size_t count, warren_type type, int32_t peer,
                        int32_t tag, const warren_call_options* options, warren_handle** handle) {
  if (handle != nullptr) *handle = nullptr;
  if (const Status s = check_type("send", type); !s.ok()) return report(s);
  CallSpec spec;
  spec.collective = Collective::kPoint;
  spec.type = static_cast<DataType>(type);
  spec.input = buffer;
  spec.count = count;
  spec.root = peer;
  spec.tag = tag;
  spec.sends = true;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_recv(warren_comm* comm, void* buffer, size_t count, warren_type type, int32_t peer, int32_t tag,
                        const warren_call_options* options, warren_handle** handle) {
  if (handle != nullptr) *handle = nullptr;
  if (const Status s = check_type("recv", type); !s.ok()) return report(s);
  CallSpec spec;
  spec.collective = Collective::kPoint;
  spec.type = static_cast<DataType>(type);
  spec.output = buffer;
  spec.count = count;
  spec.root = peer;
  spec.tag = tag;
  spec.site = WARREN_SITE;
  return start(comm, spec, options, handle);
}

warren_code warren_wait(warren_handle* handle) {
  if (handle == nullptr) return report(Status(Code::kInvalidArgument, "wait: the handle is NULL"));
  return guarded(*handle->shared, [&] {
    const Entry entry(*handle->shared);
    if (!entry.status().ok()) return entry.status();
    Status status = handle->shared->session->wait(*handle->call);
    if (status.ok() && handle->newest != nullptr) *handle->newest = {true, handle->call->contributors};
    return status;
  });
}

warren_code warren_wait_for(warren_handle* handle, int64_t timeout_ms, int32_t* finished) {
  if (handle == nullptr || finished == nullptr || timeout_ms < 0) {
    return report(Status(Code::kInvalidArgument, "wait_for: a pointer is NULL, or the time negative"));
  }
  *finished = 0;
  return guarded(*handle->shared, [&]() -> Status {
    const Entry entry(*handle->shared);
    if (!entry.status().ok()) return entry.status();
    if (!handle->shared->session->wait_for(*handle->call, std::min(timeout_ms, kMostWaitMs))) return {};
    *finished = 1;
    const Status status = handle->call->status;
    if (status.ok() && handle->newest != nullptr) *handle->newest = {true, handle->call->contributors};
    return status;
  });
}

warren_code warren_test(warren_handle* handle, int32_t* finished) {
  if (handle == nullptr || finished == nullptr) {
    return report(Status(Code::kInvalidArgument, "test: a pointer is NULL"));
  }
  return guarded(*handle->shared, [&]() -> Status {
    const Entry entry(*handle->shared);
    if (!entry.status().ok()) return entry.status();
    *finished = handle->shared->session->test(*handle->call) ? 1 : 0;
    return {};
  });
}

warren_code warren_handle_contributors(const warren_handle* handle, int32_t* ranks, size_t capacity, size_t* count) {
  if (handle == nullptr || count == nullptr || (ranks == nullptr && capacity != 0)) {
    return report(Status(Code::kInvalidArgument, "contributors: a pointer is NULL"));
  }
  return guarded(*handle->shared, [&]() -> Status {
    if (forked(*handle->shared)) return {Code::kClosed, "this handle was made before a fork"};
    if (handle->newest == nullptr) {
      return {Code::kInvalidArgument, "contributors: a message has none, only the result of a collective"};
    }
    // From then on nobody writes to the call.
    if (!handle->call->finished.load(std::memory_order_acquire)) {
      return {Code::kInvalidArgument, "contributors: the call has not finished"};
    }
    if (!handle->call->status.ok()) return handle->call->status;
    copy_contributors(handle->call->contributors.get(), handle->ranks, ranks, capacity, *count);
    return {};
  });
}

warren_code warren_on_complete(warren_handle* handle, warren_callback callback, void* context) {
  if (handle == nullptr || callback == nullptr) {
    return report(Status(Code::kInvalidArgument, "on_complete: a pointer is NULL"));
  }
  return guarded(*handle->shared, [&]() -> Status {
    if (forked(*handle->shared)) return {Code::kClosed, "this handle was made before a fork"};
    // The callback of a call that has finished is called in here, and may free the handle.
    const auto shared = handle->shared;
    const auto call = handle->call;
    return shared->session->on_complete(*call, callback, context);
  });
}

void warren_handle_free(warren_handle* handle) {
  if (handle == nullptr || forked(*handle->shared)) return;  // as warren_destroy
  // Also where another thread is inside a call: the buffers are in use until this one has finished. From a callback of
  // the same job's, the call that it belongs to has finished, and no other may be waited for; nor may another job's
  // callback, which may wait for this one.
  Session& session = *handle->shared->session;
  const bool called_back = Session::inside_callback() && handle->call->finished.load(std::memory_order_acquire);
  if (!session.calls_back_here() && !called_back)
    (void)guarded(*handle->shared, [&] { return session.wait(*handle->call); });
  delete handle;
}

}  // extern "C"
