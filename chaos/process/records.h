// What a worker of a chaos run leaves outside of itself, so that it survives the worker: its records, a file (or pipe)
// that it appends to, and its page, a mapped file in which the runner sees where the worker stands and gives it orders
// to die.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "recovery/base/result.h"

namespace warren::chaos::process {

enum class RecordEvent : std::uint32_t {
  kStarted = 1,      // value: process id; call: the Phase that the life before ended in
  kJoined = 2,       // value: rank; call: the number by which its launcher knows it
  kPreamble = 3,     // value: digest of its allreduce
  kLoaded = 4,       // iteration: version; value: digest of the global state, 0 without
  kLoadedLocal = 5,  // likewise of the local state
  kBegin = 6,        // iteration, call; value: bytes
  kResult = 7,       // iteration, call; value: digest (of a decision: what was decided)
  kCheckpoint = 8,   // iteration: version; the call has begun
  kCheckpointed = 9,
  kFinalizing = 10,
  kFinished = 11,
  kFailed = 12,    // value: a warren::ErrorCode; 0: another failure. The text is on standard error
  kPrepared = 13,  // iteration, call; value: how often; an input was prepared more than once, or for a replayed result
  kSetup = 14,     // call: which of the set-up rounds; value: digest
};

// Native layout: records never leave the machine. Of such a size that none lies in two pages of the file: SIGKILL can
// cut a write off between two pages, and whatever followed would be read from the middle of a record.
struct alignas(64) Record {
  std::uint32_t event = 0;
  std::uint32_t life = 0;  // 0, 1, … of this worker
  std::uint32_t call = 0;
  std::uint32_t rank = 0;
  std::uint64_t iteration = 0;
  std::uint64_t value = 0;
  std::uint64_t at_ns = 0;         // of the machine's monotonic clock
  std::uint64_t contributors = 0;  // in mode shrink, of a preamble and a result
};
static_assert(4096 % sizeof(Record) == 0);

[[nodiscard]] std::uint64_t monotonic_ns();

// Appends each record with one write. Thread rule: one thread.
class RecordWriter {
 public:
  // kUnavailable names the path.
  static Result<RecordWriter> open(const std::string& path);
  RecordWriter(RecordWriter&& other) noexcept;
  RecordWriter& operator=(RecordWriter&&) = delete;
  ~RecordWriter();
  // A record that cannot be written ends the process: its results could not be judged.
  void write(Record record) const;

 private:
  explicit RecordWriter(int fd) : fd_(fd) {}
  int fd_ = -1;
};

// Reads what has been appended since.
class RecordReader {
 public:
  // The file is made if it is missing.
  static Result<RecordReader> open(const std::string& path);
  RecordReader(RecordReader&& other) noexcept;
  RecordReader& operator=(RecordReader&&) = delete;
  ~RecordReader();
  [[nodiscard]] std::vector<Record> take();

 private:
  explicit RecordReader(int fd) : fd_(fd) {}
  int fd_ = -1;
  std::string rest_;  // of a record that is not whole yet
};

// Where a worker stands.
enum class Phase : std::uint32_t {
  kNone = 0,  // no life yet
  kStarting,  // before it has joined
  kPreamble,
  kLoad,
  kIdle,  // computes, between calls
  kSmallRound,
  kBigRound,
  kReplay,  // a round that this worker has finished in an earlier life
  kCheckpoint,
  kCheckpointed,  // the call has returned; its version may not be committed yet
  kFinalize,
  kGone,  // has finished
};
inline constexpr std::uint32_t kPhases = 12;
[[nodiscard]] const char* name_of(Phase phase);

// Orders to die: the worker kills itself `delay_us` after it has entered a phase.
struct Order {
  // 0: none. Set last; the worker sets 0 when it has begun to obey.
  std::atomic<std::uint32_t> phase;      // a Phase
  std::atomic<std::uint32_t> life;       // this one alone; kAnyLife
  std::atomic<std::uint64_t> iteration;  // from this one on
  std::atomic<std::uint64_t> delay_us;   // 0: at once, before the call is made
};
inline constexpr std::uint32_t kAnyLife = UINT32_MAX;
inline constexpr std::size_t kOrders = 8;

// All zero is a page of a worker that has never lived.
struct Page {
  std::atomic<std::uint32_t> lives;
  std::atomic<std::int32_t> pid;  // of the newest life
  std::atomic<std::uint32_t> phase;
  std::atomic<std::uint32_t> call;
  std::atomic<std::uint64_t> iteration;
  // Calls that some life of this worker has finished: iteration · 4096 + call + 1; never falls.
  std::atomic<std::uint64_t> done;
  // Likewise of those calls that no rank finishes before all have entered them.
  std::atomic<std::uint64_t> together;
  std::atomic<std::uint64_t> dies_at_ns;  // by the order that was obeyed last
  std::atomic<std::uint32_t> away;        // not 0: the next life does not begin yet
  std::atomic<std::uint32_t> process;     // the number by which its launcher knows the newest life
  // On GPUs, over all lives: warren_inputs_lent, warren_finals_from_gpus, warren_rounds_exchanged.
  std::atomic<std::uint64_t> inputs_lent, finals_from_gpus, rounds_exchanged;
  Order orders[kOrders];
};

[[nodiscard]] constexpr std::uint64_t position(std::uint64_t iteration, std::uint32_t call) {
  return iteration * 4096 + call;
}

// Maps a page; the file is made if it is missing.
[[nodiscard]] Result<std::shared_ptr<Page>> map_page(const std::string& path);

// A worker whose next life is kept away sleeps until it is let in.
void keep_away(Page& page);
void let_in(Page& page);
void wait_until_let_in(Page& page);

// The files of one run.
[[nodiscard]] std::string records_path(const std::string& folder, std::uint32_t worker);
[[nodiscard]] std::string page_path(const std::string& folder, std::uint32_t worker);
// A page of which only `away` is used. In a job with spares nobody knows before it has joined whose life it is, so
// there processes are kept away, by their launcher's numbers.
[[nodiscard]] std::string gate_path(const std::string& folder, std::uint32_t process);
[[nodiscard]] std::string stop_path(const std::string& folder);   // there: the decision is to stop
[[nodiscard]] std::string shape_path(const std::string& folder);  // the program's shape

}  // namespace warren::chaos::process
