#include "rabit/node.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>
#include <vector>

#include "rabit/internal/utils.h"

namespace rabit::layer {
namespace {

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string name_of_round(const SetupRound& round) {
  return "rabit/" + std::to_string(round.version) + "/" + std::to_string(round.index) + "/" +
         std::to_string(round.digest);
}

std::string described(const CallPlace& place) {
  if (place.file == nullptr || *place.file == 0) return "";
  return std::string(" at ") + place.file + ":" + std::to_string(place.line);
}

// What Warren calls a custom reduction with.
struct Reduction {
  void (*function)(const void* src, void* dst, std::size_t count, std::size_t element_bytes);
  std::size_t element_bytes;
  static std::int32_t run(const void* a, void* inout, std::size_t count, void* context) noexcept {
    const Reduction& self = *static_cast<const Reduction*>(context);
    try {
      self.function(a, inout, count, self.element_bytes);
      return 0;
    } catch (const std::exception& e) {
      end_process(e.what());
    } catch (...) {
      end_process("something that is no std::exception");
    }
  }
  // In the middle of a round, whose other ranks must not get what is half combined.
  [[noreturn]] static void end_process(const char* what) {
    std::fprintf(stderr, "rabit: a reduction has thrown: %s\n", what);
    utils::EndProcess(255);
  }
};

bool product_of(std::size_t count, std::size_t width, std::size_t& bytes) {
  return !__builtin_mul_overflow(count, width, &bytes);
}

Outcome too_large(const char* name, std::size_t count, std::size_t width, const CallPlace& place) {
  return Outcome(name + described(place) + ": " + std::to_string(count) + " elements of " + std::to_string(width) +
                 " bytes are more than memory can hold");
}

std::size_t write_state(std::uint64_t version, const SetupTable& table, bool no_local, const Node::Save& save,
                        std::string& to) {
  write_head(version, table, no_local, to);
  const std::size_t head_bytes = to.size();
  if (save) save(to);
  return head_bytes;
}

}  // namespace

Node::Node(Parameters parameters) : parameters_(std::move(parameters)), version_began_(now_seconds()) {}

Node::~Node() {
  leave();
}

void Node::leave() {
  warren_destroy(std::exchange(comm_, nullptr));
}

template <class Function>
void Node::run_program(Function function) {
  try {
    function();
  } catch (...) {
    thrown_ = std::current_exception();
    throw;  // tells Warren that there is no input, or no state
  }
}

Outcome Node::failed(const std::string& what, const CallPlace& place) {
  if (thrown_ != nullptr) std::rethrow_exception(std::exchange(thrown_, nullptr));
  const char* why = warren_last_error();
  return Outcome(what + described(place) + ": " + (why != nullptr ? why : "out of memory"));
}

Outcome Node::join() {
  if (parameters_.alone) return {};
  warren_options options;
  warren_options_init(&options);
  if (!parameters_.tracker.empty()) options.tracker = parameters_.tracker.c_str();
  if (!parameters_.worker_id.empty()) options.worker_id = parameters_.worker_id.c_str();
  options.world_size = parameters_.world_size;
  if (parameters_.replicas > 0) options.replicas = parameters_.replicas;
  options.on_rollback = "exit";  // such a program has no way to go on after an error
  if (warren_create(&options, &comm_) != WARREN_OK) return failed("Init");
  if (warren_min_workers(comm_) != 0) {
    return Outcome(
        "Init: a program of rabit's counts on all ranks, and in mode shrink some may be missing; give mode=wait "
        "(WARREN_MODE)");
  }
  rank_ = warren_rank(comm_);
  world_size_ = warren_world_size(comm_);
  distributed_ = true;
  return {};
}

Outcome Node::finalize() {
  if (comm_ != nullptr && warren_finalize(comm_) != WARREN_OK) return failed("Finalize");
  return {};
}

void Node::die_if_told(const char* name) const {
  const KillPoint here{rank(), version(), static_cast<int>(sequence_), parameters_.trial};
  const auto& points = parameters_.kill_points;
  if (!counting_ || std::find(points.begin(), points.end(), here) == points.end()) return;
  std::fprintf(stderr, "[%d]@@@Hit Mock Error:%s version=%d sequence=%d trial=%d\n", here.rank, name, here.version,
               here.sequence, here.trial);
  utils::EndProcess(kKillPointExitCode);  // as if it were killed: nobody is told
}

// ---- operations

namespace {
// Errors name the program's line, and a log compares it.
warren_call_options said_at(const CallPlace& place) {
  warren_call_options said;
  warren_call_options_init(&said);
  said.file = place.file;
  said.line = place.line;
  said.function = place.caller;
  return said;
}
}  // namespace

template <class Issue>
Outcome Node::operate(const char* name, Prepare prepare, std::span<std::byte> result, const CallPlace& place,
                      Issue issue) {
  die_if_told(name);
  if (counting_) ++sequence_;
  if (comm_ == nullptr) {
    if (prepare.function != nullptr) prepare.function(prepare.argument);
    return {};
  }
  if (counting_) {
    if (const SetupRounds::Call call = setup_.call(place); call.kept != nullptr) {
      bool met = false;
      Outcome decided = decide(name, call, result, place, met);
      if (!met) return decided;
    }
  }
  warren_call_options said = said_at(place);
  if (prepare.function != nullptr) {
    prepare_ = prepare;
    said.prepare = [](void* context) {
      Node& self = *static_cast<Node*>(context);
      self.run_program([&] { self.prepare_.function(self.prepare_.argument); });
      return std::int32_t{0};
    };
    said.prepare_context = this;
  }
  if (issue(&said) != WARREN_OK) return failed(name, place);
  if (counting_) setup_.gave(result);
  return {};
}

Outcome Node::decide(const char* name, const SetupRounds::Call& call, std::span<std::byte> result,
                     const CallPlace& place, bool& met) {
  const SetupRound& kept = *call.kept;
  int32_t meets = 0;
  if (warren_meets_round(comm_, kept.sites.data(), kept.sites.size(), &meets) != WARREN_OK) return failed(name, place);
  met = meets != 0;
  if (!setup_.decided(call, met)) {
    return Outcome(std::string(name) + described(place) +
                   ": this line makes rounds that a process needs once, and in the same version rounds that recur; a "
                   "process that is started again cannot tell them apart: give each a line of its own");
  }
  if (met) return {};
  if (result.size() != kept.bytes) {
    return Outcome(std::string(name) + described(place) + ": taken for a set-up round, which gave " +
                   std::to_string(kept.bytes) + " bytes once; now it asks for " + std::to_string(result.size()));
  }
  std::fprintf(stderr, "rabit: %s%s: taken for a set-up round; its result is that of version %llu\n", name,
               described(place).c_str(), static_cast<unsigned long long>(kept.version));
  if (kept.where == SetupRound::Result::kHere) {
    std::copy(kept.result.begin(), kept.result.end(), result.begin());
    return {};
  }
  if (share_setup_round(kept, result.data(), result.size()) != WARREN_OK) {
    return failed(std::string(name) + " (set-up round)", place);
  }
  return {};
}

// Whoever keeps the result and whoever gets it call from one place, wherever the program is: a log compares.
warren_code Node::share_setup_round(const SetupRound& round, void* bytes, std::size_t size) {
  const std::string name = name_of_round(round);
  warren_call_options said = said_at({__FILE__, __LINE__, __func__});
  said.once = name.c_str();
  return warren_broadcast(comm_, bytes, size, WARREN_U8, 0, &said, nullptr);
}

Outcome Node::allreduce(void* buffer, std::size_t count, warren_type type, warren_op op, Prepare prepare,
                        const CallPlace& place) {
  std::size_t width = 8;
  if (type == WARREN_I8 || type == WARREN_U8) width = 1;
  if (type == WARREN_I32 || type == WARREN_U32 || type == WARREN_F32) width = 4;
  std::size_t bytes = 0;
  if (!product_of(count, width, bytes)) return too_large("Allreduce", count, width, place);
  const double began = now_seconds();
  Outcome outcome = operate("Allreduce", prepare, {static_cast<std::byte*>(buffer), bytes}, place,
                            [&](const warren_call_options* said) {
                              return warren_allreduce(comm_, buffer, buffer, count, type, op, said, nullptr);
                            });
  allreduce_seconds_ += now_seconds() - began;
  return outcome;
}

Outcome Node::allreduce_custom(void* buffer, std::size_t element_bytes, std::size_t count,
                               void (*reduce)(const void*, void*, std::size_t, std::size_t), Prepare prepare,
                               const CallPlace& place) {
  std::size_t bytes = 0;
  if (!product_of(count, element_bytes, bytes)) return too_large("Allreduce", count, element_bytes, place);
  Reduction reduction{reduce, element_bytes};
  const double began = now_seconds();
  Outcome outcome = operate("Allreduce", prepare, {static_cast<std::byte*>(buffer), bytes}, place,
                            [&](const warren_call_options* said) {
                              return warren_allreduce_custom(comm_, buffer, buffer, count, element_bytes,
                                                             &Reduction::run, &reduction, said, nullptr);
                            });
  allreduce_seconds_ += now_seconds() - began;
  return outcome;
}

Outcome Node::broadcast(void* buffer, std::size_t bytes, int root, const CallPlace& place) {
  if (root < 0 || root >= world_size()) {
    return Outcome("Broadcast" + described(place) + ": root " + std::to_string(root) + "; there are ranks 0 to " +
                   std::to_string(world_size() - 1));
  }
  return operate("Broadcast", {}, {static_cast<std::byte*>(buffer), bytes}, place,
                 [&](const warren_call_options* said) {
                   return warren_broadcast(comm_, buffer, bytes, WARREN_U8, root, said, nullptr);
                 });
}

Outcome Node::allgather(void* buffer, std::size_t total, std::size_t first, std::size_t slice, std::size_t previous,
                        const CallPlace& place) {
  const std::string name = "Allgather" + described(place);
  if (first > total || slice > total - first) {
    return Outcome(name + ": the slice has " + std::to_string(slice) + " bytes from " + std::to_string(first) +
                   " on, and the buffer " + std::to_string(total) +
                   "; the fourth argument is the slice's size, not its end");
  }
  std::byte* bytes = static_cast<std::byte*>(buffer);
  Outcome inner;
  Outcome outcome =
      operate("Allgather", {}, {bytes, total}, place, [&](const warren_call_options* said) -> warren_code {
        // Each rank knows its own slice and the size of the one before; where all of them lie takes a round.
        struct Slice {
          std::uint64_t total, first, size, previous;
        };
        const Slice mine{total, first, slice, previous};
        std::vector<Slice> all(ranks());
        const warren_code code = warren_allgather(comm_, &mine, all.data(), 4, WARREN_U64, said, nullptr);
        if (code != WARREN_OK) return code;
        std::vector<std::uint64_t> firsts;
        std::vector<std::size_t> sizes;
        for (std::size_t r = 0; r < all.size(); ++r) {
          const Slice& before = all[(r + all.size() - 1) % all.size()];
          const std::uint64_t end_before = before.first + before.size;
          const bool follows = all[r].first == end_before || (all[r].first == 0 && end_before == total);
          if (all.size() > 1 && (all[r].total != total || all[r].previous != before.size || !follows)) {
            inner = Outcome(name + ": rank " + std::to_string(r) + " has " + std::to_string(all[r].size) +
                            " bytes from " + std::to_string(all[r].first) + " of " + std::to_string(all[r].total) +
                            ", and takes the slice before it for one of " + std::to_string(all[r].previous) +
                            "; that has " + std::to_string(before.size) + " from " + std::to_string(before.first) +
                            " on: slices follow each other in the order of ranks");
            return WARREN_OK;
          }
          firsts.push_back(all[r].first);
          sizes.push_back(static_cast<std::size_t>(all[r].size));
        }
        inner = gather_slices(bytes, total, firsts, sizes, said);
        return inner.ok() ? WARREN_OK : WARREN_INTERNAL;
      });
  return inner.ok() ? std::move(outcome) : std::move(inner);
}

Outcome Node::gather_slices(std::byte* buffer, std::size_t total, std::span<const std::uint64_t> firsts,
                            std::span<const std::size_t> sizes, const warren_call_options* said) {
  const auto self = static_cast<std::size_t>(rank());
  std::size_t sum = 0;
  bool in_order = true;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    in_order = in_order && (sizes[r] == 0 || firsts[r] == sum);
    sum += sizes[r];
  }
  if (sum != total) {
    return Outcome("Allgather: the slices have " + std::to_string(sum) + " bytes, and the buffer " +
                   std::to_string(total));
  }
  // Warren puts slices in the order of ranks, from the beginning; the first of a ring may lie anywhere.
  if (!in_order) room_.resize(total);
  std::byte* const to = in_order ? buffer : room_.data();
  std::size_t own = 0;
  for (std::size_t r = 0; r < self; ++r) own += sizes[r];
  const std::byte* const mine = in_order ? buffer + own : buffer + firsts[self];
  if (warren_allgatherv(comm_, mine, to, sizes.data(), WARREN_U8, said, nullptr) != WARREN_OK)
    return failed("Allgather");
  if (in_order) return {};
  std::size_t at = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    if (sizes[r] != 0) std::memcpy(buffer + firsts[r], to + at, sizes[r]);
    at += sizes[r];
  }
  return {};
}

// ---- checkpoints

Outcome Node::load_checkpoint(const Load& global, const Load& local, int& version) {
  version = 0;
  const bool again = counting_;
  sequence_ = 0;
  counting_ = true;
  version_began_ = now_seconds();
  if (comm_ == nullptr) return {};
  if (!again) {
    std::uint64_t checkpoints = 0;
    const void *global_state = nullptr, *local_state = nullptr;
    std::size_t global_bytes = 0, local_bytes = 0;
    const warren_code code =
        warren_load_checkpoint(comm_, &checkpoints, &global_state, &global_bytes, &local_state, &local_bytes);
    if (code != WARREN_OK) return failed("LoadCheckPoint");
    if (checkpoints == 0) {
      if (parameters_.infer_setup_rounds) setup_ = SetupRounds::first(0);
      return {};
    }
    global_.assign(static_cast<const char*>(global_state), global_bytes);
    if (local_bytes != 0) local_.assign(static_cast<const char*>(local_state), local_bytes);
    StateHead head;
    head_bytes_ = read_head(global_, head);
    if (head_bytes_ == 0) {
      return Outcome(
          "LoadCheckPoint: the job's checkpoint was not made by a program of rabit's, or by one with another version "
          "of "
          "Warren; give this job another name");
    }
    locals_ = head.no_local ? Locals::kNone : Locals::kGiven;
    if (const std::uint32_t was = warren_checkpoint_world_size(comm_);
        locals_ == Locals::kGiven && was != static_cast<std::uint32_t>(warren_world_size(comm_))) {
      return Outcome("LoadCheckPoint: the job's checkpoint has a local model of each of its " + std::to_string(was) +
                     " workers, and cannot be loaded by " + std::to_string(warren_world_size(comm_)));
    }
    const Outcome begun = begin_from(std::move(head));
    if (!begun.ok()) return begun;
  }
  version = static_cast<int>(version_);
  if (version_ == 0) return {};
  // In rabit's order.
  if (local && locals_ == Locals::kGiven) local(local_.data(), local_.size());
  if (global) global(global_.data() + head_bytes_, global_.size() - head_bytes_);
  return {};
}

Outcome Node::check_locals(const char* name, bool given) {
  const Locals here = given ? Locals::kGiven : Locals::kNone;
  if (locals_ == Locals::kUnknown) locals_ = here;
  if (locals_ == here) return {};
  return Outcome(std::string(name) +
                 (given ? " with a local model, and there were checkpoints without one"
                        : " without a local model, and there were checkpoints with one") +
                 ": give one in every checkpoint, or in none");
}

Outcome Node::begin_from(StateHead head) {
  version_ = head.version;
  if (!parameters_.infer_setup_rounds) return {};
  for (const SetupRound& round : head.table.kept) {
    if (round.where != SetupRound::Result::kLogged) continue;
    int32_t known = 0;
    if (warren_once_known(comm_, name_of_round(round).c_str(), &known) != WARREN_OK) return failed("LoadCheckPoint");
    if (known != 0) continue;
    // The job has lost them, for which all processes were started again: they make them again, and it is found out
    // anew.
    setup_ = SetupRounds::first(version_);
    return {};
  }
  setup_ = SetupRounds::loaded(version_, std::move(head.table));
  return {};
}

// What set-up rounds need at the end of a version.
Outcome Node::end_version(const char* name) {
  if (!counting_) {
    int version = 0;
    const Outcome loaded = load_checkpoint(nullptr, nullptr, version);
    if (!loaded.ok()) return loaded;
    if (version != 0) {
      return Outcome(std::string(name) + ": the job has a checkpoint of version " + std::to_string(version) +
                     ", and this program has never called LoadCheckPoint");
    }
  }
  if (!setup_.watches()) return {};
  const Outcome looked = look_at_setup_rounds();
  return looked.ok() ? Outcome() : Outcome(std::string(name) + ": set-up rounds: " + looked.why());
}

// In the same rounds on all ranks, and in each life of them.
Outcome Node::look_at_setup_rounds() {
  const auto combine = [&](std::vector<std::uint64_t>& words, warren_op op) {
    return words.empty() || warren_allreduce(comm_, words.data(), words.data(), words.size(), WARREN_U64, op, nullptr,
                                             nullptr) == WARREN_OK;
  };
  std::vector<std::uint64_t> news{setup_.has_news()};
  if (!combine(news, WARREN_BIT_OR)) return failed("whether there are any");
  if (news[0] != 0) {
    auto names = setup_.names();
    if (!combine(names, WARREN_MAX)) return failed("their places");
    setup_.match(names);
    auto facts = setup_.facts();
    if (!combine(facts, WARREN_BIT_OR)) return failed("which of them recur");
    setup_.learn(facts);
    if (const std::size_t left_out = setup_.take_left_out(); left_out != 0 && rank() == 0) {
      std::fprintf(
          stderr,
          "rabit: the results of %zu rounds of version %llu are too large to be kept; a process that makes one "
          "of them again when it is started again cannot go on\n",
          left_out, static_cast<unsigned long long>(version_));
    }
  }
  auto due = setup_.due();
  for (SetupRound& round : due) {
    if (share_setup_round(round, round.result.data(), round.result.size()) != WARREN_OK) {
      return failed("their results");
    }
  }
  setup_.logged();
  return {};
}

void Node::next_version() {
  if (parameters_.report_stats && rank() == 0) {
    std::printf("[v%llu] global_size=%zu,local_size=%zu,operations=%llu,allreduce_tcost=%g sec,between_chpt=%g sec\n",
                static_cast<unsigned long long>(version_), global_.size() - head_bytes_, local_.size(),
                static_cast<unsigned long long>(sequence_), allreduce_seconds_, now_seconds() - version_began_);
    std::fflush(stdout);
  }
  allreduce_seconds_ = 0;
  version_began_ = now_seconds();
  sequence_ = 0;
  counting_ = true;
  setup_.next_version();
}

Outcome Node::checkpoint(const char* name, const Save& global, const Save& local) {
  die_if_told(name);
  Outcome locals = check_locals(name, static_cast<bool>(local));
  if (!locals.ok()) return locals;
  if (comm_ == nullptr) {
    ++version_;
    next_version();
    return {};
  }
  const Outcome outcome = end_version(name);
  if (!outcome.ok()) return outcome;
  ++version_;
  global_.clear();
  head_bytes_ = write_state(version_, setup_.table(), !local, global, global_);
  local_.clear();
  if (local) local(local_);
  if (warren_checkpoint(comm_, global_.data(), global_.size(), local ? local_.data() : nullptr, local_.size()) !=
      WARREN_OK) {
    return failed(name);
  }
  next_version();
  return {};
}

}  // namespace rabit::layer
