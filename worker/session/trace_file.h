// A worker's timeline as a Chrome trace (the JSON array format, whose end may be missing): calls, rounds and what they
// wait for, recoveries, checkpoints, and spans of the program's own. chrome://tracing and ui.perfetto.dev show it.
//
// Events are kept in bounded memory and written by a thread of this object's, ten times a second: nobody waits for the
// file. What is killed loses the last tenth of a second. The workers of a machine, and their lives one after the other,
// append to one file; each event is a line. docs/timeline.md says what is in it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "worker/rounds/trace.h"
#include "worker/session/log.h"

namespace warren::worker {

// Any thread may call.
class TraceFile final : public Trace {
 public:
  static constexpr std::size_t kMostEvents = 16'384;                   // in memory; more are counted and left out
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 30;  // that one life writes
  static constexpr std::size_t kMostTextBytes = 200;                   // of a name or a detail; the rest is cut off
  // The rows that a worker's events stand in, besides those of its groups' rounds and its threads.
  enum class Row : std::uint32_t { kRecovery = 1, kCheckpoints = 2, kWaits = 3, kBuffers = 4 };

  // Appends to the file, which is made if it is not there; a line that a killed process has left unfinished at its end
  // is cut off. kUnavailable: it cannot be written, or no thread be started. `log` hears of what goes wrong later,
  // once.
  static Result<std::unique_ptr<TraceFile>> open(const std::string& path, const Log& log);
  // Writes what is left.
  ~TraceFile() override;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Who this is; nothing is written before. Again: nothing happens.
  void belongs_to(Rank rank, const std::string& worker_id, std::uint32_t attempt);
  // Writes what there is, now: before the process ends itself.
  void flush();

  void issued(const Call& call) override;
  void ended(const Call& call) override;
  void round_began(std::uint32_t lane, const Call& call) override;
  void round_does(std::uint32_t lane, Stage stage) override;
  void round_ended(std::uint32_t lane) override;

  // Spans of a row nest; the newest one ends first.
  void begin(Row row, std::string_view name, std::string_view detail = {});
  void end(Row row);
  // One that is over and began then, by now_ns().
  void was(Row row, std::int64_t began_ns, std::string_view name, std::string_view detail = {});
  void instant(Row row, std::string_view name, std::string_view detail = {});
  // Spans of the program, on the calling thread's own row.
  void begin_here(std::string_view name);
  void end_here();
  // Of the monotonic clock.
  static std::int64_t now_ns();

 private:
  struct Event {
    std::int64_t at_ns = 0, lasted_ns = 0;
    char phase = 'i';      // as in the format
    bool of_call = false;  // round and fingerprint say which
    std::uint32_t row = 0;
    std::uint64_t id = 0;  // of calls, which overlap
    RoundId round;
    Fingerprint fingerprint;
    std::string text, detail;
  };

  TraceFile(int fd, std::string path, const Log& log);
  static Event event(char phase, std::uint32_t row, std::string_view text = {}, std::string_view detail = {});
  static Event of_call(char phase, std::uint32_t row, const Call& call);
  void add(Event event);
  void write_loop();
  void write(std::string_view lines);
  void format(const Event& event, std::string& out);
  void name_row(std::uint32_t row, std::string& out);

  const int fd_;
  const std::string path_;
  const Log log_;
  const std::int64_t to_wall_ns_;  // what makes the monotonic clock that of the machine's day

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
  std::uint64_t left_out_ = 0;
  std::string who_;
  std::uint32_t process_ = 0;
  bool ends_ = false;

  std::mutex file_mutex_;  // taken before mutex_
  std::vector<Event> writing_;
  std::set<std::uint32_t> named_rows_, in_stage_;
  std::uint64_t bytes_ = 0;
  bool over_ = false;
  std::thread writer_;
};

// Shows what the calling thread does, until it has done it.
class TraceSpan {
 public:
  // `trace` null: nobody wants it.
  TraceSpan(TraceFile* trace, TraceFile::Row row, const char* name)
      : trace_(trace), row_(row), name_(name), began_ns_(trace == nullptr ? 0 : TraceFile::now_ns()) {}
  ~TraceSpan() {
    if (trace_ != nullptr) trace_->was(row_, began_ns_, name_);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  TraceFile* const trace_;
  const TraceFile::Row row_;
  const char* const name_;
  const std::int64_t began_ns_;
};

}  // namespace warren::worker
