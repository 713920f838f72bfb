// Warren's C++ interface: collectives over the ranks of a job.
//
//   warren::Communicator comm = warren::Communicator::create();    // settings from WARREN_* variables
//   auto sum = comm.allreduce(std::vector<int>{1, 2, 3});          // the sum over all ranks, on all ranks
//   comm.finalize();
//
// Header-only, over the C interface in c_api.h, whose rules hold here:
//
// Elements. `Element` is any integer of 8, 16, 32 or 64 bits, bool, std::byte (as u8), float, double, warren::float16
// or warren::bfloat16. Buffers are contiguous ranges (std::span, std::vector, std::array, …) aligned as their type is,
// and all sizes are in elements. Input and output must not overlap; a single std::span argument is reduced in place.
// Zero elements are allowed.
//
// Agreement. All ranks of a communicator make the same collective calls in the same order, with equal sizes, types,
// operations and roots (and, with Options::check_call_sites, from the same place in the program). Ranks that
// disagree get Error with ErrorCode::desync, never a wrong number.
//
// Errors. Every function that talks to other ranks throws Error. After a failure outputs are undefined. Sizes that
// cannot be right are found before anything is sent (ErrorCode::invalid_argument).
//
// Results. Integers wrap; an average of integers rounds toward zero; of bool, sum, max and bit_or are the logical or,
// product, min and bit_and the logical and, bit_xor the exclusive or, and there is no average; f16 and bf16 are
// accumulated in f32; min and max give NaN if any input is NaN. Results are the same bits on all ranks.
//
// Threads. One thread at a time may use a communicator and those split from it, handles included; another may take over
// if the two synchronize. Communicators from different create() calls are independent. After fork() the child must not
// use those of its parent.
//
// Collectives are always inlined: the library names a call by the address that it returns to, which has to lie in your
// code for it to tell one call from another.
#ifndef WARREN_WARREN_H_
#define WARREN_WARREN_H_

#if __cplusplus < 202002L
#error "Warren's C++ interface needs C++20 (-std=c++20); warren/c_api.h is C99"
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "warren/c_api.h"

namespace warren {

// What a caller can do about a failure.
enum class ErrorCode : int {
  invalid_argument = WARREN_INVALID_ARGUMENT,  // change the call or the setting
  unavailable = WARREN_UNAVAILABLE,            // nobody answers, or a resource is missing: look at it and try again
  refused = WARREN_REFUSED,                    // the tracker or a peer said no: secret, job, version, world size
  timeout = WARREN_TIMEOUT,                    // a time that a setting or this call gives is over
  peer_lost = WARREN_PEER_LOST,  // a rank is gone: destroy the communicator and create a new one to join again
  desync = WARREN_DESYNC,        // ranks called different things: fix the program
  closed = WARREN_CLOSED,        // finalized, destroyed, moved from, forked or fenced
  exhausted = WARREN_EXHAUSTED,  // a limit was reached; the message names it
  corrupt = WARREN_CORRUPT,      // bytes do not match their checksum or format
  internal = WARREN_INTERNAL,    // a function of the program's has failed, or the library met what it did not expect
  rolled_back = WARREN_ROLLED_BACK,  // the job starts again from its newest checkpoint: make another communicator, load
  finished = WARREN_FINISHED,        // the job has ended well: there is nothing left to do
};

// A failure of a call. what() is the whole chain of causes: which rank, peer and round, and what to do.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& what) : std::runtime_error(what), code_(code) {}
  explicit Error(const warren_failure& failure)
      : std::runtime_error(failure.text),
        code_(static_cast<ErrorCode>(failure.code)),
        rank_(failure.rank),
        peer_(failure.peer),
        round_(std::make_shared<const std::string>(failure.round)) {}
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  // This worker's rank in its job; nothing: it had none yet.
  [[nodiscard]] std::optional<int> rank() const { return rank_ < 0 ? std::nullopt : std::optional(rank_); }
  // The other rank that it concerns; nothing: nobody can tell, or it concerns none.
  [[nodiscard]] std::optional<int> peer() const { return peer_ < 0 ? std::nullopt : std::optional(peer_); }
  // In which round it happened, as texts name it: "5.3"; empty: in none.
  [[nodiscard]] std::string_view round() const { return round_ == nullptr ? std::string_view() : *round_; }

 private:
  ErrorCode code_;
  int rank_ = -1, peer_ = -1;
  std::shared_ptr<const std::string> round_;  // copying an exception must not throw
};

enum class Op : int {
  sum = WARREN_SUM,
  product = WARREN_PRODUCT,
  min = WARREN_MIN,
  max = WARREN_MAX,
  bit_and = WARREN_BIT_AND,  // integers and bool only
  bit_or = WARREN_BIT_OR,
  bit_xor = WARREN_BIT_XOR,
  average = WARREN_AVERAGE,
};

// The type in which f32 values travel; f32: as they are. See Calls::wire.
enum class Wire : int { f32 = WARREN_F32, f16 = WARREN_F16, bf16 = WARREN_BF16, i8 = WARREN_I8 };

// A 16-bit float as IEEE 754 has it: 5 exponent bits, 10 of fraction. For storage: arithmetic happens in float.
struct float16 {
  std::uint16_t bits;

  float16() = default;
  // To nearest even; beyond ±65,504 (and half a step) infinity.
  constexpr explicit float16(float value) : bits(narrow(std::bit_cast<std::uint32_t>(value))) {}
  constexpr operator float() const {  // NOLINT(google-explicit-constructor): every value has an exact float
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude < 0x0400u) {  // zero and denormals: multiples of 2^-24
      const float value = static_cast<float>(magnitude) * 0x1p-24f;
      return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
    }
    const std::uint32_t rebias = magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u;
    const std::uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return std::bit_cast<float>(((magnitude << 13) + rebias) | quiet | sign);
  }
  static constexpr float16 from_bits(std::uint16_t b) {
    float16 h{};
    h.bits = b;
    return h;
  }

 private:
  static constexpr std::uint16_t narrow(std::uint32_t wide) {
    const std::uint32_t sign = (wide >> 16) & 0x8000u, magnitude = wide & 0x7fffffffu;
    std::uint32_t half = 0;
    if (magnitude > 0x7f800000u) {
      half = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x47800000u) {
      half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {
      half = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    } else if (magnitude >= 0x33000000u) {
      const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u, shift = 126u - (magnitude >> 23);
      const std::uint32_t rest = significand & ((1u << shift) - 1u), tie = 1u << (shift - 1u);
      half = significand >> shift;
      if (rest > tie || (rest == tie && (half & 1u) != 0)) ++half;
    }
    return static_cast<std::uint16_t>(sign | half);
  }
};

// The upper half of a float: 8 exponent bits, 7 of fraction. For storage: arithmetic happens in float.
struct bfloat16 {
  std::uint16_t bits;

  bfloat16() = default;
  // To nearest even.
  constexpr explicit bfloat16(float value) : bits(narrow(std::bit_cast<std::uint32_t>(value))) {}
  constexpr operator float() const {  // NOLINT(google-explicit-constructor): every value has an exact float
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
  }
  static constexpr bfloat16 from_bits(std::uint16_t b) {
    bfloat16 h{};
    h.bits = b;
    return h;
  }

 private:
  static constexpr std::uint16_t narrow(std::uint32_t wide) {
    if ((wide & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((wide >> 16) | 0x40u);
    return static_cast<std::uint16_t>((wide + 0x7fffu + ((wide >> 16) & 1u)) >> 16);
  }
};

namespace detail {

template <class T>
consteval int type_code() {
  if constexpr (std::is_same_v<T, float>) {
    return WARREN_F32;
  } else if constexpr (std::is_same_v<T, double>) {
    return WARREN_F64;
  } else if constexpr (std::is_same_v<T, float16>) {
    return WARREN_F16;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return WARREN_BF16;
  } else if constexpr (std::is_same_v<T, std::byte>) {
    return WARREN_U8;
  } else if constexpr (std::is_same_v<T, bool>) {
    return sizeof(bool) == 1 ? WARREN_BOOL : 0;
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, wchar_t> && !std::is_same_v<T, char8_t> &&
                       !std::is_same_v<T, char16_t> && !std::is_same_v<T, char32_t>) {
    switch (sizeof(T)) {
      case 1: return std::is_signed_v<T> ? WARREN_I8 : WARREN_U8;
      case 2: return std::is_signed_v<T> ? WARREN_I16 : WARREN_U16;
      case 4: return std::is_signed_v<T> ? WARREN_I32 : WARREN_U32;
      case 8: return std::is_signed_v<T> ? WARREN_I64 : WARREN_U64;
      default: return 0;
    }
  } else {
    return 0;
  }
}

// What the function of a lazy checkpoint threw in the call that this thread is inside, which fails for it.
inline thread_local std::exception_ptr serializer_threw;

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_last(warren_code code) {
  if (serializer_threw != nullptr) std::rethrow_exception(std::exchange(serializer_threw, nullptr));
  warren_failure failure = warren_last_failure();
  failure.code = code;
  throw Error(failure);
}

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_size(const char* what, std::size_t got, std::size_t want) {
  throw Error(ErrorCode::invalid_argument,
              std::string(what) + " has " + std::to_string(got) + " elements, not " + std::to_string(want));
}

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_shares(const char* what, std::size_t got, std::size_t ranks) {
  throw Error(ErrorCode::invalid_argument, std::string(what) + " has " + std::to_string(got) +
                                               " elements, which are not equal shares of " + std::to_string(ranks) +
                                               " ranks");
}

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_closed() {
  throw Error(ErrorCode::closed, "this communicator was moved from");
}

[[gnu::always_inline]] inline void check(warren_code code) {
  if (code != WARREN_OK) [[unlikely]]
    throw_last(code);
}

// A reduction for the length of a call, and what it threw, from whichever thread.
template <class T, class F>
struct Combine {
  // The library makes a failure of what is thrown, and this its text.
  static std::int32_t run(const void* a, void* inout, std::size_t n, void* context) {
    Combine& self = *static_cast<Combine*>(context);
    const std::byte* first = static_cast<const std::byte*>(a);
    std::byte* second = static_cast<std::byte*>(inout);
    try {
      for (std::size_t i = 0; i < n; ++i, first += sizeof(T), second += sizeof(T)) {
        T x, y;  // copied, because the library aligns its memory to the element's size, which may be odd
        std::memcpy(&x, first, sizeof(T));
        std::memcpy(&y, second, sizeof(T));
        const T r = std::as_const(self.function)(x, y);
        std::memcpy(second, &r, sizeof(T));
      }
    } catch (...) {
      self.thrown = std::current_exception();
      throw;
    }
    return 0;
  }
  // In place of the library's error, in the call that it was made for.
  void check(warren_code code) const {
    if (thrown != nullptr) [[unlikely]]
      std::rethrow_exception(thrown);
    detail::check(code);
  }

  F function;
  std::exception_ptr thrown;
};

}  // namespace detail

// Types that the library can reduce.
template <class T>
concept Element = detail::type_code<T>()
!= 0;

// Elements of which a std::vector is contiguous: std::vector<bool> is not.
template <class T>
concept VectorElement = Element<T> && !std::same_as<T, bool>;

// Contiguous elements to read from.
template <class R>
concept InputRange =
    std::ranges::contiguous_range<R> && std::ranges::sized_range<R> && Element<std::ranges::range_value_t<R>>;

// Contiguous elements to write to, which live longer than the call.
template <class R>
concept OutputRange = InputRange<R> && std::ranges::borrowed_range<R> &&
    !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>;

template <class In, class Out>
concept SameElements = std::same_as<std::ranges::range_value_t<In>, std::ranges::range_value_t<Out>>;

// A function that combines two elements: pure and associative, and commutative as far as the program needs. Called from
// a thread inside a call. A blocking call rethrows what the function throws; wait() reports ErrorCode::internal. This
// worker's life in the job is then over. Its other calls fail, and no wrong number reaches another rank.
template <class F, class T>
concept Reduction = std::is_trivially_copyable_v<T> && std::default_initializable<T> &&
    std::is_invocable_r_v<T, const F&, const T&, const T&>;

enum class LogLevel : int { info = WARREN_LOG_INFO, warning = WARREN_LOG_WARNING, error = WARREN_LOG_ERROR };

struct LogLine {
  LogLevel level;
  std::string text;
};

// Log lines that wait until the program takes them, so that no thread of the library waits for the program: of the
// communicators that are made with it (Options::log_queue). Bounded: where it is full the oldest line is dropped, and
// the next one says how many were. Move-only. For a thread of its own: while (auto line = queue.next())
// print(line->text);
class LogQueue {
 public:
  explicit LogQueue(std::size_t lines) { detail::check(warren_log_queue_create(lines, &queue_)); }
  LogQueue(LogQueue&& other) noexcept : queue_(std::exchange(other.queue_, nullptr)) {}
  LogQueue& operator=(LogQueue&& other) noexcept {
    std::swap(queue_, other.queue_);
    return *this;
  }
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;
  ~LogQueue() { warren_log_queue_free(queue_); }

  // The oldest line, which it waits for. Nothing: all communicators that log here are gone, and no line is left. From
  // one thread at a time, also beside calls and create().
  [[nodiscard]] std::optional<LogLine> next() { return take(-1); }
  // Nothing: also where none has come within this time.
  [[nodiscard]] std::optional<LogLine> next(std::chrono::milliseconds within) {
    return take(std::max<std::int64_t>(0, within.count()));
  }
  [[nodiscard]] warren_log_queue* get() const noexcept { return queue_; }

 private:
  std::optional<LogLine> take(std::int64_t timeout_ms) {
    warren_log_level level = WARREN_LOG_INFO;
    const char* text = nullptr;
    const warren_code code = warren_next_log(queue_, timeout_ms, &level, &text);
    if (code == WARREN_TIMEOUT || code == WARREN_CLOSED) return std::nullopt;
    detail::check(code);
    return LogLine{static_cast<LogLevel>(level), text};
  }

  warren_log_queue* queue_ = nullptr;
};

// Settings of create(). A member that is empty, 0 or false is not given. Its setting comes from WARREN_* variables, the
// file of WARREN_CONFIG, the launcher's variables, or the default, in this order. Sizes are bytes.
struct Options {
  std::string tracker;                            // "host:port" or "[v6]:port"
  std::string job;                                // name of the job
  std::string worker_id;                          // stable identity of this worker over its lives, unique in the job
  int world_size = 0;                             // ranks
  std::string secret_file;                        // a file of mode 0600, made by `warren keygen`
  bool insecure_no_auth = false;                  // no authentication, where nobody else can connect
  std::string host_id;                            // equal for ranks that share memory
  std::string bind_address;                       // where data links are accepted
  std::string advertise_address;                  // what peers are told to connect to
  std::chrono::milliseconds round_timeout_ms{0};  // how long a silent rank is waited for before it counts as lost
  std::chrono::milliseconds join_timeout_ms{0};   // how long to wait until world_size workers are there
  std::string transport;                          // "auto": shared memory within a host; "tcp"
  std::string algorithm;                          // "auto", "star", "tree", "butterfly", "ring", "direct"
  std::int64_t chunk_bytes = 0;                   // the most bytes that travel in one piece
  int streams = 0;                                // TCP connections of each link between hosts
  bool no_checksums = false;                      // payload on TCP links, and what NCCL moves, is not checksummed
  bool check_call_sites = false;                  // a collective must be called from the same place on all ranks
  // Empty: standard error. Called from any thread of the library, and from several at once, a line each; the text is
  // valid during the call. What it throws is swallowed. Where it may block, recoveries wait: take a log_queue then.
  std::function<void(LogLevel, std::string_view)> log_sink;
  LogQueue* log_queue = nullptr;      // lines wait there instead. The queue must be there until create() has returned
  std::optional<LogLevel> log_level;  // least level that is logged
  std::string domain_id;              // equal for what dies together
  // Replicas of each logged result and checkpoint, in distinct failure domains. 0: no fault tolerance.
  std::optional<int> replicas;
  std::string log;                           // "memory", "async" or "sync": when results are written to data_dir
  std::int64_t log_memory_bytes = 0;         // this rank's part of the log in memory
  std::string data_dir;                      // directory for this host's log and checkpoints
  std::chrono::milliseconds log_lag_ms{0};   // log "async": results older than this are written
  std::int64_t log_lag_bytes = 0;            // log "async": results beyond this many bytes are written
  std::int64_t log_disk_bytes = 0;           // the most bytes of one worker's log in data_dir
  std::string checkpoint_mirror;             // directory that gets a copy of each committed checkpoint
  std::string on_rollback;                   // "exit": the process exits with code 77; "error": calls fail
  std::optional<std::int64_t> fusion_bytes;  // the most bytes of a fused round (fuse()); 0: nothing is fused
  std::string timeline;                      // a file that gets a Chrome trace of calls, rounds and recoveries
  // How long a rank may hold up the others before a spare takes its rank. 0: a spare never does. Empty: as the
  // settings.
  std::optional<std::chrono::milliseconds> replace_after_ms;
  std::string mode;     // "wait" for workers that were lost, or "shrink": continue without them
  int min_workers = 0;  // mode shrink: the fewest workers that the job continues with
  std::optional<std::chrono::milliseconds> grace_ms;  // mode shrink: how long it waits for lost workers first
  bool no_rewire = false;                             // bytes never go by way of other workers around a slow link
  int max_workers = 0;  // mode shrink, in place of world_size: how many the job may have, which begins with fewer
  // The ring may go around a slow link in another order, from a checkpoint on: results may be rounded otherwise than in
  // a run without it, alike on all workers.
  bool nondeterministic = false;
  // What a full log does. "suspend": it gives up its oldest results, and a loss undoes what is not committed; "error":
  // calls fail.
  std::string log_full;
  // Any setting by its name in docs/settings.md, as text; before the members above: {{"rewire", "1"}, {"spares", "2"}}.
  std::map<std::string, std::string> settings;
  // Asks the program whether to stop waiting. Called about ten times a second, from a thread of the program's that
  // waits in a call or in create(). If it returns true, the wait ends, and this worker's life in the job, as by
  // Communicator::abort. An exception counts as true. Of the communicator's functions it may call abort() alone.
  std::function<bool()> interrupt;
};

namespace detail {

struct State {
  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() { warren_destroy(comm); }

  static void log(warren_log_level level, const char* text, void* context) noexcept {
    try {
      static_cast<State*>(context)->log_sink(static_cast<LogLevel>(level), text);
    } catch (...) {  // a broken sink must not end the job
    }
  }

  static std::int32_t ask(void* context) noexcept {
    try {
      return static_cast<State*>(context)->interrupt() ? 1 : 0;
    } catch (...) {
      return 1;
    }
  }

  warren_comm* comm = nullptr;
  std::shared_ptr<State> parent;  // of which the C interface would free this one: so it is freed later
  std::function<void(LogLevel, std::string_view)> log_sink;
  std::function<bool()> interrupt;
  std::shared_ptr<void> serializer;  // of the newest lazy checkpoint
};

template <class R>
concept Plain = std::ranges::contiguous_range<R> && std::is_trivially_copyable_v<std::ranges::range_value_t<R>>;

// A function that serializes the state of a lazy checkpoint, and the state that it gave.
template <class F>
struct Lazy {
  explicit Lazy(F f) : function(std::move(f)) {}
  // Keeps for the caller what the function throws, and tells the library that there is no state.
  static std::int32_t run(const void** bytes, std::size_t* size, void* context) {
    Lazy& self = *static_cast<Lazy*>(context);
    try {
      const auto& values = self.values.emplace(self.function());
      *bytes = std::ranges::data(values);
      *size = std::ranges::size(values) * sizeof(*std::ranges::data(values));
    } catch (...) {
      serializer_threw = std::current_exception();
      return 1;
    }
    return 0;
  }

  F function;
  std::optional<std::remove_cvref_t<std::invoke_result_t<F&>>> values;
};

// A prepare function for the length of a call, and what it threw, from whichever thread.
template <class F>
struct Prepare {
  static std::int32_t run(void* context) {
    Prepare& self = *static_cast<Prepare*>(context);
    try {
      self.function();
    } catch (...) {
      self.thrown = std::current_exception();
      return 1;
    }
    return 0;
  }

  F& function;
  std::exception_ptr thrown;
};

}  // namespace detail

// Options of one collective beside its arguments (rules: warren_call_options in c_api.h).
struct CallOptions {
  std::optional<std::string> once;       // the name of the set-up round that the call is; empty: it is none
  Wire wire = Wire::f32;                 // the type in which its f32 values travel; equal on all ranks
  std::optional<std::string> algorithm;  // the algorithm to use, in place of the setting; equal on all ranks
  std::chrono::milliseconds timeout{0};  // the call ends this life if it takes longer; 0: no limit
};

namespace detail {

// The same for the C interface; NULL where nothing is said. As long as the options live.
class Said {
 public:
  [[gnu::always_inline]] explicit Said(const std::optional<CallOptions>& options) {
    if (options) [[unlikely]]
      say(*options);
  }
  Said(const Said&) = delete;
  Said& operator=(const Said&) = delete;
  void prepare(std::int32_t (*function)(void* context), void* context) {
    if (!said_) warren_call_options_init(&said_.emplace());
    said_->prepare = function;
    said_->prepare_context = context;
  }
  [[nodiscard]] const warren_call_options* get() const { return said_ ? &*said_ : nullptr; }

 private:
  void say(const CallOptions& options) {
    warren_call_options_init(&said_.emplace());
    if (options.once) said_->once = options.once->c_str();
    if (options.algorithm) said_->algorithm = options.algorithm->c_str();
    said_->wire = static_cast<std::int32_t>(options.wire);
    said_->timeout_ms = options.timeout.count();
  }

  std::optional<warren_call_options> said_;
};

}  // namespace detail

// A handle of an asynchronous call. The call's buffers stay untouched until it has finished. The handle keeps its
// communicator alive. Move-only.
class Handle {
 public:
  Handle() = default;
  Handle(Handle&& other) noexcept
      : handle_(std::exchange(other.handle_, nullptr)),
        state_(std::move(other.state_)),
        functor_(std::move(other.functor_)) {}
  Handle& operator=(Handle&& other) noexcept {
    if (this != &other) {
      warren_handle_free(handle_);
      handle_ = std::exchange(other.handle_, nullptr);
      functor_ = std::move(other.functor_);
      state_ = std::move(other.state_);
    }
    return *this;
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  // Waits until the call has finished, and drops its failure. In a callback of the same job it does not wait; the
  // buffers stay in use until the call has finished (warren_handle_free in c_api.h).
  ~Handle() { warren_handle_free(handle_); }

  // Waits until the call has finished, and throws Error if it failed. Any number of times, with the same outcome.
  void wait() { detail::check(warren_wait(get())); }

  // Waits at most `time`. True: the call has finished; throws Error if it failed. False: the call continues, and may be
  // waited for again.
  [[nodiscard]] bool wait_for(std::chrono::milliseconds time) {
    std::int32_t finished = 0;
    detail::check(warren_wait_for(get(), std::max<std::int64_t>(0, time.count()), &finished));
    return finished != 0;
  }

  // Whether the call has finished; does not block. wait() then says how.
  [[nodiscard]] bool test() {
    std::int32_t finished = 0;
    detail::check(warren_test(get(), &finished));
    return finished != 0;
  }

  // The ranks whose inputs are in the result of this call, as Communicator::contributors. The call has finished, else
  // ErrorCode::invalid_argument. From any thread, also in a callback.
  [[nodiscard]] std::vector<int> contributors() const {
    std::size_t count = 0;
    detail::check(warren_handle_contributors(get(), nullptr, 0, &count));
    std::vector<int> ranks(count);
    detail::check(warren_handle_contributors(get(), ranks.data(), ranks.size(), &count));
    return ranks;
  }

  // Has `callback` called once, with nullptr on success. It is called at once if the call has finished, else from the
  // thread that finishes the call, which may be the library's. It must not throw (the process would end) or use the
  // communicator. One for each handle.
  void on_complete(std::function<void(const Error*)> callback) {
    auto owned = std::make_unique<std::function<void(const Error*)>>(std::move(callback));
    detail::check(warren_on_complete(get(), &Handle::complete, owned.get()));
    (void)owned.release();  // complete() frees it
  }

  [[nodiscard]] bool valid() const noexcept { return handle_ != nullptr; }

 private:
  friend class Calls;
  friend class Communicator;
  Handle(warren_handle* handle, std::shared_ptr<detail::State> state, std::shared_ptr<void> functor)
      : handle_(handle), state_(std::move(state)), functor_(std::move(functor)) {}

  static void complete(warren_code code, const char* error, void* context) noexcept {
    const std::unique_ptr<std::function<void(const Error*)>> callback(
        static_cast<std::function<void(const Error*)>*>(context));
    if (code == WARREN_OK) return (*callback)(nullptr);
    const Error failure(static_cast<ErrorCode>(code), error != nullptr ? error : "");
    (*callback)(&failure);
  }

  [[nodiscard]] warren_handle* get() const {
    if (handle_ == nullptr) throw Error(ErrorCode::invalid_argument, "this handle stands for no call");
    return handle_;
  }

  warren_handle* handle_ = nullptr;
  std::shared_ptr<detail::State> state_;
  std::shared_ptr<void> functor_;
};

// A span of the program's own in the trace: from Communicator::span() until this object is destroyed. Destroy it on the
// thread that made it, the newest first. Move-only.
class Span {
 public:
  Span(Span&& other) noexcept : state_(std::move(other.state_)) {}
  Span& operator=(Span&&) = delete;
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;
  ~Span() {
    if (state_ != nullptr) (void)warren_span_end(state_->comm);
  }

 private:
  friend class Communicator;
  explicit Span(std::shared_ptr<detail::State> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::State> state_;
};

// Asynchronous allreduces are fused until this object is destroyed: see Communicator::fuse.
class Fusion {
 public:
  Fusion(Fusion&& other) noexcept : state_(std::move(other.state_)) {}
  Fusion& operator=(Fusion&&) = delete;
  Fusion(const Fusion&) = delete;
  Fusion& operator=(const Fusion&) = delete;
  ~Fusion() {
    if (state_ != nullptr) (void)warren_fusion_end(state_->comm);
  }

 private:
  friend class Communicator;
  explicit Fusion(std::shared_ptr<detail::State> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::State> state_;
};

template <class T>
requires std::is_trivially_copyable_v<T>
class Memory;

// A part of a checkpoint's state: contiguous memory of the program's, on the CPU or a GPU.
struct Place : warren_place {
  template <std::ranges::contiguous_range R>
  requires(std::is_trivially_copyable_v<std::ranges::range_value_t<R>> &&
           !std::is_const_v<std::remove_reference_t<std::ranges::range_reference_t<R>>>)
      Place(R&& values)  // NOLINT(google-explicit-constructor,bugprone-forwarding-reference-overload): of ranges
      : warren_place{std::ranges::data(values), std::ranges::size(values) * sizeof(std::ranges::range_value_t<R>)} {}
};

// The collectives and messages of a communicator, each made with what once(), wire(), algorithm() and within() have
// said; a message has no name, wire type or algorithm.
// Counts are elements; buffers that are asynchronous stay untouched until the handle has finished. Keeps the
// communicator alive, and so the job, which is left when this is gone too.
class Calls {
 public:
  // A set-up round of this name: comm.once("sketch").allgather(…). Its result is kept for as long as the job lasts; a
  // process that is started again gets the same bytes at once, wherever the others are. The rules stand in c_api.h
  // ("Set-up rounds").
  [[nodiscard]] Calls once(const std::string& name) const {
    return with([&](CallOptions& o) { o.once = name; });
  }

  // The floats travel as f16, bf16, or 8-bit integers with a scale for each 256 of them:
  // comm.wire(warren::Wire::bf16).allreduce(…). An allreduce or reduce_scatter by sum, average, min or max (not i8), or
  // an allgather; equal on all ranks. Inputs are rounded, combined in f32, and the result is rounded once more, to the
  // same bits everywhere (warren_call_options in c_api.h).
  [[nodiscard]] Calls wire(Wire type) const {
    return with([&](CallOptions& o) { o.wire = type; });
  }

  // Made by this algorithm, whatever the setting says: comm.algorithm("ring").allreduce(…). Equal on all ranks; one
  // that serves the collective (docs/algorithms.md).
  [[nodiscard]] Calls algorithm(const std::string& name) const {
    return with([&](CallOptions& o) { o.algorithm = name; });
  }

  // A call that has not finished within so long ends this worker's life in the job (warren_call_options in c_api.h):
  // comm.within(std::chrono::seconds(30)).allreduce(…). Zero: it takes as long as it takes.
  [[nodiscard]] Calls within(std::chrono::milliseconds time) const {
    return with([&](CallOptions& o) { o.timeout = time; });
  }

  // ---- allreduce: every rank gets in[i] of all ranks combined ---------------------------------------------------

  // `prepare` fills the buffer; it is not called where the result is replayed. It must not use the communicator. What
  // it throws, allreduce throws; this worker's life in the job is then over: every further call fails, the others wait
  // for its next life, and nothing of the buffer reaches them.
  template <Element T, std::size_t N, std::invocable F>
  [[gnu::always_inline]] void allreduce(std::span<T, N> buffer, Op op, F prepare) {
    detail::Prepare<F> called{prepare, nullptr};
    detail::Said said(options_);
    said.prepare(&detail::Prepare<F>::run, std::addressof(called));
    const warren_code code =
        warren_allreduce(get(), buffer.data(), buffer.data(), buffer.size(), type<T>(), c_op(op), said.get(), nullptr);
    if (called.thrown != nullptr) [[unlikely]]
      std::rethrow_exception(called.thrown);
    detail::check(code);
  }
  // In place.
  template <Element T, std::size_t N>
  [[gnu::always_inline]] void allreduce(std::span<T, N> buffer, Op op = Op::sum) {
    detail::check(warren_allreduce(get(), buffer.data(), buffer.data(), buffer.size(), type<T>(), c_op(op),
                                   said().get(), nullptr));
  }
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void allreduce(const In& in, Out&& out, Op op = Op::sum) {
    require_size("allreduce: out", std::ranges::size(out), std::ranges::size(in));
    detail::check(warren_allreduce(get(), std::ranges::data(in), std::ranges::data(out), std::ranges::size(in),
                                   range_type<In>(), c_op(op), said().get(), nullptr));
  }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> allreduce(std::vector<T> values, Op op = Op::sum) {
    allreduce(std::span(values), op);
    return values;
  }
  template <Element T, std::size_t N>
  [[nodiscard, gnu::always_inline]] std::array<T, N> allreduce(std::array<T, N> values, Op op = Op::sum) {
    allreduce(std::span(values), op);
    return values;
  }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> allreduce(std::initializer_list<T> values, Op op = Op::sum) {
    return allreduce(std::vector<T>(values), op);
  }
  template <Element T>
  [[nodiscard, gnu::always_inline]] T allreduce(T value, Op op = Op::sum) {
    allreduce(std::span(&value, 1), op);
    return value;
  }
  // Combined by your function, elements of 1 byte to 4 MiB. Ranks must give equal functions.
  template <class T, std::size_t N, Reduction<T> F>
  [[gnu::always_inline]] void allreduce(std::span<T, N> buffer, const F& combine) {
    detail::Combine<T, const F&> called{combine, nullptr};
    called.check(warren_allreduce_custom(get(), buffer.data(), buffer.data(), buffer.size(), sizeof(T),
                                         &detail::Combine<T, const F&>::run, &called, said().get(), nullptr));
  }

  template <Element T, std::size_t N>
  [[nodiscard, gnu::always_inline]] Handle allreduce_async(std::span<T, N> buffer, Op op = Op::sum) {
    warren_handle* handle = nullptr;
    detail::check(warren_allreduce(get(), buffer.data(), buffer.data(), buffer.size(), type<T>(), c_op(op),
                                   said().get(), &handle));
    return Handle(handle, state_, nullptr);
  }
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle allreduce_async(In&& in, Out&& out, Op op = Op::sum) {
    require_size("allreduce: out", std::ranges::size(out), std::ranges::size(in));
    warren_handle* handle = nullptr;
    detail::check(warren_allreduce(get(), std::ranges::data(in), std::ranges::data(out), std::ranges::size(in),
                                   range_type<In>(), c_op(op), said().get(), &handle));
    return Handle(handle, state_, nullptr);
  }
  // The handle keeps a copy of the function.
  template <class T, std::size_t N, Reduction<T> F>
  [[nodiscard, gnu::always_inline]] Handle allreduce_async(std::span<T, N> buffer, F combine) {
    using Combine = detail::Combine<T, F>;
    auto kept = std::make_shared<Combine>(Combine{std::move(combine), nullptr});
    warren_handle* handle = nullptr;
    detail::check(warren_allreduce_custom(get(), buffer.data(), buffer.data(), buffer.size(), sizeof(T), &Combine::run,
                                          kept.get(), said().get(), &handle));
    return Handle(handle, state_, std::move(kept));
  }

  // ---- reduce: `root` gets in[i] of all ranks combined ----------------------------------------------------------

  // `out` has the size of `in` at the root; elsewhere it is not touched and may be empty.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void reduce(const In& in, Out&& out, int root, Op op = Op::sum) {
    issue_reduce(in, out, root, op, nullptr);
  }
  // In place at the root; elsewhere the buffer stays as it is.
  template <Element T, std::size_t N>
  [[gnu::always_inline]] void reduce(std::span<T, N> buffer, int root, Op op = Op::sum) {
    issue_reduce(buffer, buffer, root, op, nullptr);
  }
  // Elsewhere than at the root the result is empty.
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> reduce(std::vector<T> values, int root, Op op = Op::sum) {
    issue_reduce(values, values, root, op, nullptr);
    if (warren_rank(get()) != root) values.clear();
    return values;
  }
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle reduce_async(In&& in, Out&& out, int root, Op op = Op::sum) {
    warren_handle* handle = nullptr;
    issue_reduce(in, out, root, op, &handle);
    return Handle(handle, state_, nullptr);
  }

  // ---- broadcast: every rank gets the root's buffer -------------------------------------------------------------

  template <OutputRange R>
  [[gnu::always_inline]] void broadcast(R&& buffer, int root) {
    detail::check(warren_broadcast(get(), std::ranges::data(buffer), std::ranges::size(buffer), range_type<R>(), root,
                                   said().get(), nullptr));
  }
  template <Element T>
  [[nodiscard, gnu::always_inline]] T broadcast(T value, int root) {
    broadcast(std::span(&value, 1), root);
    return value;
  }
  template <OutputRange R>
  [[nodiscard, gnu::always_inline]] Handle broadcast_async(R&& buffer, int root) {
    warren_handle* handle = nullptr;
    detail::check(warren_broadcast(get(), std::ranges::data(buffer), std::ranges::size(buffer), range_type<R>(), root,
                                   said().get(), &handle));
    return Handle(handle, state_, nullptr);
  }

  // ---- barrier: returns when all ranks have entered it ----------------------------------------------------------

  [[gnu::always_inline]] void barrier() { detail::check(warren_barrier(get(), said().get(), nullptr)); }
  [[nodiscard, gnu::always_inline]] Handle barrier_async() {
    warren_handle* handle = nullptr;
    detail::check(warren_barrier(get(), said().get(), &handle));
    return Handle(handle, state_, nullptr);
  }

  // ---- allgather: every rank gets the inputs of all, in the order of ranks --------------------------------------

  // `out` has world_size() times the elements of `in`.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void allgather(const In& in, Out&& out) { issue_allgather(in, out, nullptr); }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> allgather(const std::vector<T>& in) {
    std::vector<T> out(in.size() * ranks());
    issue_allgather(in, out, nullptr);
    return out;
  }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> allgather(T value) {
    std::vector<T> out(ranks());
    issue_allgather(std::span(&value, 1), out, nullptr);
    return out;
  }
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle allgather_async(In&& in, Out&& out) {
    warren_handle* handle = nullptr;
    issue_allgather(in, out, &handle);
    return Handle(handle, state_, nullptr);
  }

  // Rank r gives counts[r] elements; `counts` is equal on all ranks and `out` has their sum.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void allgatherv(const In& in, Out&& out, std::span<const std::size_t> counts) {
    issue_allgatherv(in, out, counts, nullptr);
  }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> allgatherv(const std::vector<T>& in,
                                                              std::span<const std::size_t> counts) {
    std::vector<T> out(total(counts));
    issue_allgatherv(in, out, counts, nullptr);
    return out;
  }
  // `counts` is read before the call returns.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle allgatherv_async(In&& in, Out&& out, std::span<const std::size_t> counts) {
    warren_handle* handle = nullptr;
    issue_allgatherv(in, out, counts, &handle);
    return Handle(handle, state_, nullptr);
  }

  // ---- reduce_scatter: rank r gets share r of all ranks' inputs combined ----------------------------------------

  // `in` has world_size() times the elements of `out`.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void reduce_scatter(const In& in, Out&& out, Op op = Op::sum) {
    issue_reduce_scatter(in, out, op, nullptr);
  }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> reduce_scatter(const std::vector<T>& in, Op op = Op::sum) {
    std::vector<T> out(in.size() / ranks());
    issue_reduce_scatter(in, out, op, nullptr);
    return out;
  }
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle reduce_scatter_async(In&& in, Out&& out, Op op = Op::sum) {
    warren_handle* handle = nullptr;
    issue_reduce_scatter(in, out, op, &handle);
    return Handle(handle, state_, nullptr);
  }

  // Rank r gets counts[r] elements; `counts` is equal on all ranks and `in` has their sum.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void reduce_scatterv(const In& in, Out&& out, std::span<const std::size_t> counts,
                                              Op op = Op::sum) {
    issue_reduce_scatterv(in, out, counts, op, nullptr);
  }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> reduce_scatterv(const std::vector<T>& in,
                                                                   std::span<const std::size_t> counts,
                                                                   Op op = Op::sum) {
    std::vector<T> out(own(counts));
    issue_reduce_scatterv(in, out, counts, op, nullptr);
    return out;
  }
  // `counts` is read before the call returns.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle reduce_scatterv_async(In&& in, Out&& out,
                                                                 std::span<const std::size_t> counts, Op op = Op::sum) {
    warren_handle* handle = nullptr;
    issue_reduce_scatterv(in, out, counts, op, &handle);
    return Handle(handle, state_, nullptr);
  }
  // Combined by your function, in the order of ranks: ((0 ⊕ 1) ⊕ 2) ⊕ …. It need not be commutative.
  template <std::ranges::contiguous_range In, std::ranges::contiguous_range Out,
            Reduction<std::ranges::range_value_t<In>> F>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void reduce_scatterv(const In& in, Out&& out, std::span<const std::size_t> counts,
                                              const F& combine) {
    using Combine = detail::Combine<std::ranges::range_value_t<In>, const F&>;
    Combine called{combine, nullptr};
    require_scattered(std::ranges::size(in), std::ranges::size(out), counts);
    called.check(warren_reduce_scatterv_custom(get(), std::ranges::data(in), std::ranges::data(out), counts.data(),
                                               sizeof(std::ranges::range_value_t<In>), &Combine::run, &called,
                                               said().get(), nullptr));
  }
  // The handle keeps a copy of the function.
  template <std::ranges::contiguous_range In, std::ranges::contiguous_range Out,
            Reduction<std::ranges::range_value_t<In>> F>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In> && std::ranges::borrowed_range<Out>
  [[nodiscard, gnu::always_inline]] Handle reduce_scatterv_async(In&& in, Out&& out,
                                                                 std::span<const std::size_t> counts, F combine) {
    using Combine = detail::Combine<std::ranges::range_value_t<In>, F>;
    auto kept = std::make_shared<Combine>(Combine{std::move(combine), nullptr});
    require_scattered(std::ranges::size(in), std::ranges::size(out), counts);
    warren_handle* handle = nullptr;
    detail::check(warren_reduce_scatterv_custom(get(), std::ranges::data(in), std::ranges::data(out), counts.data(),
                                                sizeof(std::ranges::range_value_t<In>), &Combine::run, kept.get(),
                                                said().get(), &handle));
    return Handle(handle, state_, std::move(kept));
  }

  // ---- gather: `root` gets the inputs of all, in the order of ranks ---------------------------------------------

  // At the root `out` has world_size() times the elements of `in`; elsewhere it is not touched and may be empty.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void gather(const In& in, Out&& out, int root) { issue_gather(in, out, root, nullptr); }
  // Elsewhere than at the root the result is empty.
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> gather(const std::vector<T>& in, int root) {
    std::vector<T> out(warren_rank(get()) == root ? in.size() * ranks() : 0);
    issue_gather(in, out, root, nullptr);
    return out;
  }
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle gather_async(In&& in, Out&& out, int root) {
    warren_handle* handle = nullptr;
    issue_gather(in, out, root, &handle);
    return Handle(handle, state_, nullptr);
  }

  // ---- scatter: rank r gets share r of the root's input ---------------------------------------------------------

  // At the root `in` has world_size() times the elements of `out`; elsewhere it is not read and may be empty.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void scatter(const In& in, Out&& out, int root) { issue_scatter(in, out, root, nullptr); }
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle scatter_async(In&& in, Out&& out, int root) {
    warren_handle* handle = nullptr;
    issue_scatter(in, out, root, &handle);
    return Handle(handle, state_, nullptr);
  }

  // ---- all_to_all: share j of rank i's input becomes share i of rank j's output ---------------------------------

  // Both have the same size, a multiple of world_size().
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void all_to_all(const In& in, Out&& out) { issue_all_to_all(in, out, nullptr); }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> all_to_all(const std::vector<T>& in) {
    std::vector<T> out(in.size());
    issue_all_to_all(in, out, nullptr);
    return out;
  }
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle all_to_all_async(In&& in, Out&& out) {
    warren_handle* handle = nullptr;
    issue_all_to_all(in, out, &handle);
    return Handle(handle, state_, nullptr);
  }

  // Sends counts_to[j] elements of `in` to rank j, and writes counts_from[j] elements of rank j to `out`. Blocks lie in
  // the order of ranks. A rank's counts_to[j] equals rank j's counts_from for it; else ErrorCode::desync. Not in place.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out>
  [[gnu::always_inline]] void all_to_allv(const In& in, std::span<const std::size_t> counts_to, Out&& out,
                                          std::span<const std::size_t> counts_from) {
    issue_all_to_allv(in, counts_to, out, counts_from, nullptr);
  }
  template <VectorElement T>
  [[nodiscard, gnu::always_inline]] std::vector<T> all_to_allv(const std::vector<T>& in,
                                                               std::span<const std::size_t> counts_to,
                                                               std::span<const std::size_t> counts_from) {
    std::vector<T> out(total(counts_from));
    issue_all_to_allv(in, counts_to, out, counts_from, nullptr);
    return out;
  }
  // Counts are read before the call returns.
  template <InputRange In, OutputRange Out>
  requires SameElements<In, Out> && std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle all_to_allv_async(In&& in, std::span<const std::size_t> counts_to, Out&& out,
                                                             std::span<const std::size_t> counts_from) {
    warren_handle* handle = nullptr;
    issue_all_to_allv(in, counts_to, out, counts_from, &handle);
    return Handle(handle, state_, nullptr);
  }

  // ---- point to point: messages between two ranks with one tag (0 … 2^31 − 1) arrive in order -------------------
  // Size and type must agree. A large send() waits about a second for its recv() (warren_send in c_api.h). Once it has
  // returned, the message still arrives, even where the sender destroys its communicator. Destroying the receiver's
  // communicator drops messages that it has not received.

  template <InputRange In>
  [[gnu::always_inline]] void send(const In& buffer, int peer, int tag = 0) {
    detail::check(warren_send(get(), std::ranges::data(buffer), std::ranges::size(buffer), range_type<In>(), peer, tag,
                              said().get(), nullptr));
  }
  template <OutputRange Out>
  [[gnu::always_inline]] void recv(Out&& buffer, int peer, int tag = 0) {
    detail::check(warren_recv(get(), std::ranges::data(buffer), std::ranges::size(buffer), range_type<Out>(), peer, tag,
                              said().get(), nullptr));
  }
  template <InputRange In>
  requires std::ranges::borrowed_range<In>
  [[nodiscard, gnu::always_inline]] Handle send_async(In&& buffer, int peer, int tag = 0) {
    warren_handle* handle = nullptr;
    detail::check(warren_send(get(), std::ranges::data(buffer), std::ranges::size(buffer), range_type<In>(), peer, tag,
                              said().get(), &handle));
    return Handle(handle, state_, nullptr);
  }
  template <OutputRange Out>
  [[nodiscard, gnu::always_inline]] Handle recv_async(Out&& buffer, int peer, int tag = 0) {
    warren_handle* handle = nullptr;
    detail::check(warren_recv(get(), std::ranges::data(buffer), std::ranges::size(buffer), range_type<Out>(), peer, tag,
                              said().get(), &handle));
    return Handle(handle, state_, nullptr);
  }

 protected:
  explicit Calls(std::shared_ptr<detail::State> state) : state_(std::move(state)) {}

  template <class T>
  static constexpr warren_type type() {
    return static_cast<warren_type>(detail::type_code<T>());
  }
  template <class R>
  static constexpr warren_type range_type() {
    return type<std::ranges::range_value_t<R>>();
  }
  static constexpr warren_op c_op(Op op) { return static_cast<warren_op>(op); }

  [[gnu::always_inline]] warren_comm* get() const {
    if (state_ == nullptr) [[unlikely]]
      detail::throw_closed();
    return state_->comm;
  }
  [[nodiscard]] std::size_t ranks() const { return static_cast<std::size_t>(warren_world_size(get())); }

  [[gnu::always_inline]] void require_size(const char* what, std::size_t got, std::size_t want) const {
    if (got == want) [[likely]]
      return;
    detail::throw_size(what, got, want);
  }
  // whole = part · ranks, without overflow.
  [[gnu::always_inline]] void require_shares(const char* what, std::size_t whole, std::size_t part) const {
    if (whole % ranks() != 0) [[unlikely]] {
      detail::throw_shares(what, whole, ranks());
    }
    if (whole / ranks() != part) [[unlikely]] {
      detail::throw_size(what, whole, part * ranks());
    }
  }
  [[nodiscard]] std::size_t total(std::span<const std::size_t> counts) const {
    std::size_t sum = 0;
    for (const std::size_t count : counts) {
      if (__builtin_add_overflow(sum, count, &sum)) {
        throw Error(ErrorCode::invalid_argument, "the counts add up to more than memory can hold");
      }
    }
    return sum;
  }
  [[nodiscard]] std::size_t own(std::span<const std::size_t> counts) const {
    require_size("counts", counts.size(), ranks());
    return counts[static_cast<std::size_t>(warren_rank(get()))];
  }
  void require_scattered(std::size_t in, std::size_t out, std::span<const std::size_t> counts) const {
    require_size("reduce_scatterv: out", out, own(counts));
    require_size("reduce_scatterv: in", in, total(counts));
  }

  std::shared_ptr<detail::State> state_;

 private:
  template <class Say>
  [[nodiscard]] Calls with(Say say) const {
    Calls said(*this);
    if (!said.options_) said.options_.emplace();
    say(*said.options_);
    return said;
  }
  [[nodiscard, gnu::always_inline]] detail::Said said() const { return detail::Said(options_); }

  template <class In, class Out>
  [[gnu::always_inline]] void issue_reduce(const In& in, Out& out, int root, Op op, warren_handle** handle) {
    const bool here = warren_rank(get()) == root;
    if (here) require_size("reduce: out", std::ranges::size(out), std::ranges::size(in));
    detail::check(warren_reduce(get(), std::ranges::data(in), here ? std::ranges::data(out) : nullptr,
                                std::ranges::size(in), range_type<In>(), c_op(op), root, said().get(), handle));
  }
  template <class In, class Out>
  [[gnu::always_inline]] void issue_allgather(const In& in, Out& out, warren_handle** handle) {
    require_shares("allgather: out", std::ranges::size(out), std::ranges::size(in));
    detail::check(warren_allgather(get(), std::ranges::data(in), std::ranges::data(out), std::ranges::size(in),
                                   range_type<In>(), said().get(), handle));
  }
  template <class In, class Out>
  [[gnu::always_inline]] void issue_allgatherv(const In& in, Out& out, std::span<const std::size_t> counts,
                                               warren_handle** handle) {
    require_size("allgatherv: counts", counts.size(), ranks());
    require_size("allgatherv: in", std::ranges::size(in), counts[static_cast<std::size_t>(warren_rank(get()))]);
    require_size("allgatherv: out", std::ranges::size(out), total(counts));
    detail::check(warren_allgatherv(get(), std::ranges::data(in), std::ranges::data(out), counts.data(),
                                    range_type<In>(), said().get(), handle));
  }
  template <class In, class Out>
  [[gnu::always_inline]] void issue_reduce_scatter(const In& in, Out& out, Op op, warren_handle** handle) {
    require_shares("reduce_scatter: in", std::ranges::size(in), std::ranges::size(out));
    detail::check(warren_reduce_scatter(get(), std::ranges::data(in), std::ranges::data(out), std::ranges::size(out),
                                        range_type<In>(), c_op(op), said().get(), handle));
  }
  template <class In, class Out>
  [[gnu::always_inline]] void issue_reduce_scatterv(const In& in, Out& out, std::span<const std::size_t> counts, Op op,
                                                    warren_handle** handle) {
    require_scattered(std::ranges::size(in), std::ranges::size(out), counts);
    detail::check(warren_reduce_scatterv(get(), std::ranges::data(in), std::ranges::data(out), counts.data(),
                                         range_type<In>(), c_op(op), said().get(), handle));
  }
  template <class In, class Out>
  [[gnu::always_inline]] void issue_all_to_allv(const In& in, std::span<const std::size_t> counts_to, Out& out,
                                                std::span<const std::size_t> counts_from, warren_handle** handle) {
    require_size("all_to_allv: counts_to", counts_to.size(), ranks());
    require_size("all_to_allv: counts_from", counts_from.size(), ranks());
    require_size("all_to_allv: in", std::ranges::size(in), total(counts_to));
    require_size("all_to_allv: out", std::ranges::size(out), total(counts_from));
    detail::check(warren_all_to_allv(get(), std::ranges::data(in), counts_to.data(), std::ranges::data(out),
                                     counts_from.data(), range_type<In>(), said().get(), handle));
  }
  template <class In, class Out>
  [[gnu::always_inline]] void issue_gather(const In& in, Out& out, int root, warren_handle** handle) {
    const bool here = warren_rank(get()) == root;
    if (here) require_shares("gather: out", std::ranges::size(out), std::ranges::size(in));
    detail::check(warren_gather(get(), std::ranges::data(in), here ? std::ranges::data(out) : nullptr,
                                std::ranges::size(in), range_type<In>(), root, said().get(), handle));
  }
  template <class In, class Out>
  [[gnu::always_inline]] void issue_scatter(const In& in, Out& out, int root, warren_handle** handle) {
    const bool here = warren_rank(get()) == root;
    if (here) require_shares("scatter: in", std::ranges::size(in), std::ranges::size(out));
    detail::check(warren_scatter(get(), here ? std::ranges::data(in) : nullptr, std::ranges::data(out),
                                 std::ranges::size(out), range_type<Out>(), root, said().get(), handle));
  }
  template <class In, class Out>
  [[gnu::always_inline]] void issue_all_to_all(const In& in, Out& out, warren_handle** handle) {
    require_size("all_to_all: out", std::ranges::size(out), std::ranges::size(in));
    require_shares("all_to_all: in", std::ranges::size(in), std::ranges::size(in) / ranks());
    detail::check(warren_all_to_all(get(), std::ranges::data(in), std::ranges::data(out),
                                    std::ranges::size(in) / ranks(), range_type<In>(), said().get(), handle));
  }

  std::optional<CallOptions> options_;
};

// The ranks of a job, or of a group split from it. Move-only. The job is left when the communicator, those split from
// it and their handles are gone; without finalize() before, the other ranks then learn that this one has gone.
class Communicator : public Calls {
 public:
  // Joins the job and waits until all of it is there, at most Options::join_timeout_ms.
  [[nodiscard]] static Communicator create(const Options& options = {});

  Communicator(Communicator&&) noexcept = default;
  Communicator& operator=(Communicator&&) noexcept = default;

  [[nodiscard]] int rank() const { return warren_rank(get()); }
  [[nodiscard]] int world_size() const { return warren_world_size(get()); }
  // This worker's position among the ranks of this communicator on the same host, and how many they are.
  [[nodiscard]] int local_rank() const { return warren_local_rank(get()); }
  [[nodiscard]] int local_size() const { return warren_local_size(get()); }
  // Mode shrink: with how few workers the job continues. 0: it waits for those that are lost.
  [[nodiscard]] int min_workers() const { return warren_min_workers(get()); }
  // The ranks whose inputs are in this communicator's newest result, rising: all ranks, except in mode shrink. Equal on
  // all ranks and in all lives. ErrorCode::invalid_argument: no collective has returned yet.
  [[nodiscard]] std::vector<int> contributors() const {
    std::vector<int> ranks(this->ranks());
    std::size_t count = 0;
    detail::check(warren_contributors(get(), ranks.data(), ranks.size(), &count));
    ranks.resize(count);
    return ranks;
  }
  // Rounds and messages that this life has finished, replayed ones included, and bytes of payload that it has sent, on
  // all communicators of the job.
  [[nodiscard]] std::uint64_t rounds_finished() const { return warren_rounds_finished(get()); }
  [[nodiscard]] std::uint64_t bytes_sent() const { return warren_bytes_sent(get()); }
  // How many ranks of this host read this rank's GPU memory at present.
  [[nodiscard]] std::uint64_t gpu_readers() const { return warren_gpu_readers(get()); }
  // How many inputs of this rank, in this life, lay on its GPU for other ranks of the host to read.
  [[nodiscard]] std::uint64_t inputs_lent() const { return warren_inputs_lent(get()); }
  // How many pieces of results, in this life, came from another rank's GPU instead of the CPU.
  [[nodiscard]] std::uint64_t finals_from_gpus() const { return warren_finals_from_gpus(get()); }
  // How many rounds, in this life, NCCL was to move the bytes of among GPUs.
  [[nodiscard]] std::uint64_t rounds_exchanged() const { return warren_rounds_exchanged(get()); }

  // ---- checkpoints: what a life starts from (c_api.h says how programs are written that survive) -----------------

  struct Checkpoint {
    std::uint64_t version = 0;     // how many the program had taken; 0: it starts from the beginning
    std::uint32_t world_size = 0;  // when it was taken; no local state comes from a job of another size
    std::vector<std::byte> global, local;
    // The global state as what checkpoint() was given: N elements of T.
    template <class T>
    requires std::is_trivially_copyable_v<T>
    [[nodiscard]] std::vector<T> global_as() const {
      std::vector<T> values(global.size() / sizeof(T));
      if (!values.empty()) std::memcpy(values.data(), global.data(), values.size() * sizeof(T));
      return values;
    }
  };
  // Loads the newest committed checkpoint; version 0: there is none. Once a life, after the preamble (the rounds that
  // every life needs), on what create() made. Completes outstanding calls. Lost replicas are ErrorCode::unavailable.
  [[nodiscard]] Checkpoint load_checkpoint() {
    Checkpoint c;
    const void *global = nullptr, *local = nullptr;
    std::size_t global_bytes = 0, local_bytes = 0;
    detail::check(warren_load_checkpoint(get(), &c.version, &global, &global_bytes, &local, &local_bytes));
    const auto take = [](std::vector<std::byte>& to, const void* from, std::size_t bytes) {
      to.resize(bytes);
      if (bytes != 0) std::memcpy(to.data(), from, bytes);
    };
    c.world_size = warren_checkpoint_world_size(get());
    take(c.global, global, global_bytes);
    take(c.local, local, local_bytes);
    detail::check(warren_release_states(get()));
    return c;
  }
  // Takes a checkpoint: after load_checkpoint(), on what create() made. Returns when a snapshot is taken, and waits
  // first for the commit of the one before. `global` is equal on all ranks, else ErrorCode::desync. `local` may differ;
  // all ranks give one, or none does.
  void checkpoint(std::span<const std::byte> global) {
    detail::check(warren_checkpoint(get(), global.data(), global.size(), nullptr, 0));
  }
  void checkpoint(std::span<const std::byte> global, std::span<const std::byte> local) {
    static constexpr std::byte kNothing{};
    detail::check(warren_checkpoint(get(), global.data(), global.size(),
                                    local.data() == nullptr ? &kNothing : local.data(), local.size()));
  }
  template <std::ranges::contiguous_range R>
  requires(std::is_trivially_copyable_v<std::ranges::range_value_t<R>> &&
           !std::is_same_v<std::ranges::range_value_t<R>, std::byte>) void checkpoint(const R& values) {
    checkpoint(std::as_bytes(std::span(values)));
  }
  // States that lie in several places, on the CPU or one GPU: their bytes, one after the other.
  // comm.checkpoint_places({weights, momentum}). The places are read, and only during the call.
  void checkpoint_places(const std::vector<Place>& global) {
    detail::check(warren_checkpoint_places(get(), global.data(), global.size(), nullptr, 0));
  }
  void checkpoint_places(const std::vector<Place>& global, const std::vector<Place>& local) {
    static constexpr warren_place kNowhere{};
    detail::check(warren_checkpoint_places(get(), global.data(), global.size(),
                                           local.empty() ? &kNowhere : local.data(), local.size()));
  }
  // Takes a checkpoint of a global state that ranks cannot make alike: the root's bytes are the state. Others' `global`
  // is not read, and may be empty. See warren_checkpoint_from in c_api.h.
  [[gnu::always_inline]] void checkpoint_from(int root, std::span<const std::byte> global) {
    const warren_place place = whole(global);
    detail::check(warren_checkpoint_from(get(), root, &place, 1, nullptr, 0));
  }
  [[gnu::always_inline]] void checkpoint_from(int root, std::span<const std::byte> global,
                                              std::span<const std::byte> local) {
    const warren_place place = whole(global), local_place = whole(local);
    detail::check(warren_checkpoint_from(get(), root, &place, 1, &local_place, 1));
  }
  struct Loaded {
    std::uint64_t version = 0;     // as of a Checkpoint; 0: nothing was written
    std::uint32_t world_size = 0;  // likewise; of a job of another size the local state is not written
  };
  // Loads as load_checkpoint() does, and copies the states to the program's places, on the CPU or a GPU. Places on a
  // GPU are written after the work on the stream of use_stream(), and are ready for all streams when this returns.
  // Places of another size than the state are ErrorCode::invalid_argument. `local` empty: none is wanted.
  Loaded load_checkpoint_into(const std::vector<Place>& global, const std::vector<Place>& local = {}) {
    Loaded loaded;
    detail::check(warren_load_checkpoint(get(), &loaded.version, nullptr, nullptr, nullptr, nullptr));
    if (loaded.version == 0) return loaded;
    loaded.world_size = warren_checkpoint_world_size(get());
    const bool ours = !local.empty() && loaded.world_size == static_cast<std::uint32_t>(world_size());
    detail::check(
        warren_restore(get(), global.data(), global.size(), ours ? local.data() : nullptr, ours ? local.size() : 0));
    detail::check(warren_release_states(get()));
    return loaded;
  }
  // Takes a checkpoint whose state `serialize` gives later: a contiguous range of trivially copyable values. It is
  // called once, on the thread of the job's next call, before that call does anything. Do not change the model from the
  // last round before the checkpoint until the first one after it returns. `serialize` must not use a communicator. The
  // call rethrows what it throws. This worker's life in the job is then over, and its next one takes its place.
  template <std::invocable F>
  requires detail::Plain<std::invoke_result_t<F&>>
  void lazy_checkpoint(F serialize) {
    using Lazy = detail::Lazy<F>;
    auto lazy = std::make_shared<Lazy>(std::move(serialize));
    detail::check(warren_lazy_checkpoint(get(), &Lazy::run, lazy.get()));
    state_->serializer = std::move(lazy);
  }
  // How many checkpoints the program has taken, counted from the loaded version; and the newest committed version that
  // this rank knows of.
  [[nodiscard]] std::uint64_t version() const { return warren_checkpoint_version(get()); }
  [[nodiscard]] std::uint64_t committed_version() const { return warren_committed_version(get()); }

  // Begins fusion: small asynchronous allreduces that follow each other share rounds of up to `bytes`, until the
  // returned object is destroyed. -1: Options::fusion_bytes. Waiting for or testing a fused call sends its round early,
  // which ranks must do alike (warren_fusion_begin in c_api.h). One fusion at a time.
  [[nodiscard]] Fusion fuse(std::int64_t bytes = -1) {
    detail::check(warren_fusion_begin(get(), bytes));
    return Fusion(state_);
  }

  // A span of the program's own in the timeline (Options::timeline): auto span = comm.span("backward of layer 3"). From
  // any thread, also beside a call; nothing happens where there is no timeline.
  [[nodiscard]] Span span(const std::string& name) const {
    detail::check(warren_span_begin(get(), name.c_str()));
    return Span(state_);
  }

  // Sets the stream for buffers on a GPU: later calls read and write after the stream's work at the time of the call.
  // `stream`: a cudaStream_t; nullptr, as at the beginning: the default one. Such buffers are given as spans:
  // comm.allreduce(std::span(p, n)). See "GPU buffers" in c_api.h.
  void use_stream(void* stream) { detail::check(warren_use_stream(get(), stream)); }

  // ---- groups and the end ---------------------------------------------------------------------------------------

  // Collective. Ranks with the same color (≥ 0) make a new communicator, ordered by (key, rank); color −1: none.
  [[nodiscard, gnu::always_inline]] std::optional<Communicator> split(int color, int key = 0) {
    warren_comm* comm = nullptr;
    detail::check(warren_split(get(), color, key, &comm));
    return adopt(comm);
  }

  // These ranks, `ranks[i]` as rank i, make a new communicator, which they alone call, with the same name and list
  // (warren_group in c_api.h).
  [[nodiscard, gnu::always_inline]] Communicator group(const std::string& name, std::span<const std::int32_t> ranks) {
    warren_comm* comm = nullptr;
    detail::check(warren_group(get(), name.c_str(), ranks.data(), ranks.size(), nullptr, &comm));
    return *adopt(comm);
  }

  // The collective end of the job: completes what is outstanding and returns when all ranks have entered it. Only on
  // what create() made.
  [[gnu::always_inline]] void finalize() { detail::check(warren_finalize(get())); }
  // This worker is to leave: what is under way is finished, and no other call begins. The process ends within that time
  // with exit code 75. The job keeps its rank for its next life. From any thread. Only on what create() made.
  void drain(std::chrono::milliseconds within) { detail::check(warren_drain(get(), within.count())); }
  // Gives this worker's life in the job up: calls that are under way, and all that follow, throw ErrorCode::closed with
  // this reason; the other ranks wait for its next life. From any thread, beside calls and in callbacks.
  void abort(const std::string& reason) { detail::check(warren_abort(get(), reason.c_str())); }

 private:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  friend Memory<T> allocate(Communicator& comm, std::size_t size);
  explicit Communicator(std::shared_ptr<detail::State> state) : Calls(std::move(state)) {}

  // Nothing is written to.
  [[nodiscard]] static warren_place whole(std::span<const std::byte> state) {
    return {const_cast<std::byte*>(state.data()), state.size()};
  }

  [[nodiscard]] std::optional<Communicator> adopt(warren_comm* comm) const {
    if (comm == nullptr) return std::nullopt;
    auto state = std::make_shared<detail::State>();
    state->comm = comm;
    state->parent = state_;
    return Communicator(std::move(state));
  }
};

// Elements in memory that the other ranks of this host read where it lies (warren_allocate in c_api.h): for the buffers
// of large allreduces. A contiguous range; keeps its communicator alive. Move-only. No outstanding call may use it when
// it goes.
template <class T>
requires std::is_trivially_copyable_v<T>
class Memory {
 public:
  Memory() = default;
  Memory(Memory&& other) noexcept
      : state_(std::move(other.state_)),
        data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)) {}
  Memory& operator=(Memory&& other) noexcept {
    Memory taken(std::move(other));
    std::swap(state_, taken.state_);
    std::swap(data_, taken.data_);
    std::swap(size_, taken.size_);
    return *this;
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory() {
    if (data_ != nullptr) (void)warren_free(state_->comm, data_);
  }

  [[nodiscard]] T* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] T* begin() const noexcept { return data_; }
  [[nodiscard]] T* end() const noexcept { return data_ + size_; }
  [[nodiscard]] T& operator[](std::size_t i) const noexcept { return data_[i]; }

 private:
  template <class U>
  requires std::is_trivially_copyable_v<U>
  friend Memory<U> allocate(Communicator& comm, std::size_t size);
  std::shared_ptr<detail::State> state_;
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

// `size` elements, all zero. ErrorCode::exhausted, unavailable: too many of them, or too little memory.
template <class T>
requires std::is_trivially_copyable_v<T>
[[nodiscard]] Memory<T> allocate(Communicator& comm, std::size_t size) {
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(size, sizeof(T), &bytes)) {
    throw Error(ErrorCode::invalid_argument, "allocate: more than memory can hold");
  }
  void* data = nullptr;
  detail::check(warren_allocate(comm.get(), bytes, &data));
  Memory<T> memory;
  memory.state_ = comm.state_;
  memory.data_ = static_cast<T*>(data);
  memory.size_ = size;
  return memory;
}

inline Communicator Communicator::create(const Options& options) {
  const auto text = [](const std::string& s) { return s.empty() ? nullptr : s.c_str(); };
  warren_options c;
  warren_options_init(&c);
  c.tracker = text(options.tracker);
  c.job = text(options.job);
  c.worker_id = text(options.worker_id);
  c.world_size = options.world_size;
  c.secret_file = text(options.secret_file);
  c.insecure_no_auth = options.insecure_no_auth ? 1 : 0;
  c.host_id = text(options.host_id);
  c.bind_address = text(options.bind_address);
  c.advertise_address = text(options.advertise_address);
  c.round_timeout_ms = options.round_timeout_ms.count();
  c.join_timeout_ms = options.join_timeout_ms.count();
  c.transport = text(options.transport);
  c.algorithm = text(options.algorithm);
  c.chunk_bytes = options.chunk_bytes;
  c.streams = options.streams;
  c.no_checksums = options.no_checksums ? 1 : 0;
  c.check_call_sites = options.check_call_sites ? 1 : 0;
  c.log_level = options.log_level ? static_cast<std::int32_t>(*options.log_level) : -1;
  c.domain_id = text(options.domain_id);
  c.replicas = options.replicas ? *options.replicas : -1;
  c.log = text(options.log);
  c.log_memory_bytes = options.log_memory_bytes;
  c.data_dir = text(options.data_dir);
  c.log_lag_ms = options.log_lag_ms.count();
  c.log_lag_bytes = options.log_lag_bytes;
  c.log_disk_bytes = options.log_disk_bytes;
  c.checkpoint_mirror = text(options.checkpoint_mirror);
  c.on_rollback = text(options.on_rollback);
  c.fusion_bytes = options.fusion_bytes ? *options.fusion_bytes : -1;
  c.timeline = text(options.timeline);
  c.replace_after_ms = options.replace_after_ms ? options.replace_after_ms->count() : -1;
  c.mode = text(options.mode);
  c.log_full = text(options.log_full);
  c.min_workers = options.min_workers;
  c.max_workers = options.max_workers;
  c.grace_ms = options.grace_ms ? options.grace_ms->count() : -1;
  c.no_rewire = options.no_rewire ? 1 : 0;
  c.nondeterministic = options.nondeterministic ? 1 : 0;
  for (const auto& [name, value] : options.settings) {
    detail::check(warren_options_set(&c, name.c_str(), value.c_str()));
  }
  auto state = std::make_shared<detail::State>();
  if (options.interrupt) {
    state->interrupt = options.interrupt;
    c.interrupt = &detail::State::ask;
    c.interrupt_context = state.get();
  }
  if (options.log_sink) {
    state->log_sink = options.log_sink;
    c.log_sink = &detail::State::log;
    c.log_context = state.get();
  }
  if (options.log_queue != nullptr) c.log_queue = options.log_queue->get();
  detail::check(warren_create(&c, &state->comm));
  return Communicator(std::move(state));
}

// "0.1.0"
[[nodiscard]] inline std::string_view version() {
  return warren_version();
}

}  // namespace warren

#endif  // WARREN_WARREN_H_
