// The lines that the workers print, with the launcher's own notices between them.
#pragma once

#include <poll.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/launcher.h"
#include "launcher/output.h"
#include "launcher/worker.h"

namespace warren::worker {

class WorkerOutput {
 public:
  explicit WorkerOutput(const LaunchOptions& options);
  WorkerOutput(const WorkerOutput&) = delete;
  WorkerOutput& operator=(const WorkerOutput&) = delete;

  // A life of a worker begins, which writes to these pipes.
  void begin(LaunchedWorker& w) const;
  [[nodiscard]] Status attach(LaunchedWorker& w, Fd output, Fd error);
  // Shows the bytes that have come from a worker's pipe.
  void read_some(LaunchedWorker& w, WorkerStream& s);
  // A worker has ended: what it left in its pipes, at most what a pipe holds. A process that fled from the group may
  // hold the pipe open for ever; it is not waited for.
  void drain(LaunchedWorker& w);

  // A line of the launcher's: "warren: event: text".
  void notice(const char* event, const std::string& text);
  void take_other_lines();
  // Repeats the last lines of the worker that ended the job, once, where others have written something since.
  void set_failed(const LaunchedWorker& w) { failed_ = w.ending; }
  void repeat_last_lines();

  void write_some();
  [[nodiscard]] bool empty() const { return output_.empty() && error_->empty(); }
  // Writes what can be written within a moment.
  void write_last_words();
  void abandon();
  // Descriptors to wait for until something can be written, or other threads have a line.
  void add_writable(std::vector<pollfd>& fds) const;
  void add_other_lines(std::vector<pollfd>& fds) const;

 private:
  [[nodiscard]] std::string prefix_of(const LaunchedWorker& w) const;
  void show(LaunchedWorker& w, WorkerStream& s, std::string_view bytes);
  void show_rest(LaunchedWorker& w, WorkerStream& s);
  void note_lines(LaunchedWorker& w, OutputQueue& queue, std::size_t begin);
  void drain(LaunchedWorker& w, WorkerStream& s);

  const LaunchOptions& options_;
  OutputQueue output_, separate_error_;
  OutputQueue* error_;            // &output_ if both are one file: then no line of one cuts a line of the other
  std::optional<Ending> failed_;  // of the worker whose exit code stands for all
  std::uint64_t written_ = 0;     // bytes of lines, by all workers
};

}  // namespace warren::worker
