#include "launcher/worker_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "worker/system/text.h"

namespace warren::worker {
namespace {

// For what is still to be written when the launcher gives up.
constexpr std::int64_t kLastWordsMs = 1000;

}  // namespace

WorkerOutput::WorkerOutput(const LaunchOptions& options)
    : options_(options),
      output_(options.output_fd),
      separate_error_(options.error_fd),
      error_(same_file(options.output_fd, options.error_fd) ? &output_ : &separate_error_) {}

std::string WorkerOutput::prefix_of(const LaunchedWorker& w) const {
  return options_.prefix ? "[" + std::to_string(w.id) + "] " : "";
}

void WorkerOutput::begin(LaunchedWorker& w) const {
  w.ending = {LastLines(prefix_of(w)), written_};
}

Status WorkerOutput::attach(LaunchedWorker& w, Fd output, Fd error) {
  w.streams[0] = {std::move(output), LineSplitter(prefix_of(w)), &output_};
  w.streams[1] = {std::move(error), LineSplitter(prefix_of(w)), error_};
  for (const WorkerStream& s : w.streams) {
    if (fcntl(s.pipe.get(), F_SETFL, O_NONBLOCK) != 0) return system_failure("cannot read a worker's output");
  }
  return {};
}

void WorkerOutput::read_some(LaunchedWorker& w, WorkerStream& s) {
  std::array<char, 16384> bytes;
  const ssize_t n = read(s.pipe.get(), bytes.data(), bytes.size());
  if (n > 0) {
    show(w, s, std::string_view(bytes.data(), static_cast<std::size_t>(n)));
  } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
    show_rest(w, s);
  }
}

void WorkerOutput::show(LaunchedWorker& w, WorkerStream& s, std::string_view bytes) {
  const std::size_t before = s.queue->buffer().size();
  s.lines.take(bytes, s.queue->buffer());
  note_lines(w, *s.queue, before);
}

// The stream has ended.
void WorkerOutput::show_rest(LaunchedWorker& w, WorkerStream& s) {
  if (s.queue != nullptr) {
    const std::size_t before = s.queue->buffer().size();
    s.lines.finish(s.queue->buffer());
    note_lines(w, *s.queue, before);
  }
  s.pipe = Fd();
}

// The worker's lines that the queue has from `begin` on.
void WorkerOutput::note_lines(LaunchedWorker& w, OutputQueue& queue, std::size_t begin) {
  const std::string_view lines = std::string_view(queue.buffer()).substr(begin);
  if (lines.empty()) return;
  w.ending.lines.add(lines);
  w.ending.written = written_ += lines.size();
}

void WorkerOutput::drain(LaunchedWorker& w) {
  for (WorkerStream& s : w.streams) drain(w, s);
}

void WorkerOutput::drain(LaunchedWorker& w, WorkerStream& s) {
  const int most = s.pipe.open() ? fcntl(s.pipe.get(), F_GETPIPE_SZ) : 0;
  int taken = 0;
  std::array<char, 16384> bytes;
  while (s.pipe.open() && taken < most) {
    const ssize_t n = read(s.pipe.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    show(w, s, std::string_view(bytes.data(), static_cast<std::size_t>(n)));
    taken += static_cast<int>(n);
  }
  show_rest(w, s);
}

void WorkerOutput::notice(const char* event, const std::string& text) {
  error_->buffer() += utc_now() + " warren: " + std::string(event) + ": " + text + "\n";
}

void WorkerOutput::take_other_lines() {
  if (options_.other_lines == nullptr || !error_->has_room()) return;
  const std::uint64_t dropped = options_.other_lines->take(error_->buffer());
  if (dropped == 0) return;
  notice("lines_dropped", std::to_string(dropped) +
                              " lines of this launcher's own threads were dropped: nobody read "
                              "the standard error meanwhile");
}

void WorkerOutput::repeat_last_lines() {
  if (!failed_ || failed_->written == written_ || failed_->lines.lines().empty()) return;
  notice("last_lines", "the output of the worker that failed ended with:");
  error_->buffer() += failed_->lines.text();
  failed_.reset();
}

void WorkerOutput::write_some() {
  output_.write_some();
  error_->write_some();
}

void WorkerOutput::write_last_words() {
  const std::int64_t until_ms = now_ms() + kLastWordsMs;
  while (true) {
    write_some();
    std::vector<pollfd> fds;
    add_writable(fds);
    const std::int64_t left_ms = until_ms - now_ms();
    if (fds.empty() || left_ms <= 0 || poll(fds.data(), fds.size(), static_cast<int>(left_ms)) < 0) return;
  }
}

void WorkerOutput::abandon() {
  output_.buffer().clear();
  error_->buffer().clear();
}

void WorkerOutput::add_writable(std::vector<pollfd>& fds) const {
  for (const OutputQueue* q : {&output_, static_cast<const OutputQueue*>(error_)}) {
    if (!q->empty()) fds.push_back({q->fd(), POLLOUT, 0});
  }
}

// take_other_lines() sees to them.
void WorkerOutput::add_other_lines(std::vector<pollfd>& fds) const {
  if (options_.other_lines != nullptr && error_->has_room()) fds.push_back({options_.other_lines->fd(), POLLIN, 0});
}

}  // namespace warren::worker
