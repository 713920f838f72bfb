#include "worker/session/trace_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

#include "storage/start_thread.h"

namespace warren::worker {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(100);
constexpr std::uint32_t kFirstLane = 16, kFirstThread = 100'000;
constexpr std::size_t kWriteBytes = std::size_t{64} << 10;
constexpr int kLockTries = 200;  // of a millisecond
constexpr std::size_t kMostLineBytes = 4096;
// Phases that are none of the format's: a stage begins, and the one before it ends; a round ends, and its stage.
constexpr char kStage = 's', kRoundEnd = 'r';

std::int64_t ns_of(auto time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::string cut(std::string_view text) {
  return std::string(text.substr(0, TraceFile::kMostTextBytes));
}

// Within quotes. What is not ASCII might be cut in the middle of a character.
void add_text(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else {
      out += c >= 0x20 && c < 0x7f ? c : '?';
    }
  }
}

std::string name_of(const Fingerprint& f) {
  std::string name = to_string(f.collective);
  if (f.collective == Collective::kBarrier) return name;
  if (f.op != ReduceOp::kNone) name += std::string(" ") + to_string(f.op);
  return name + " " + std::to_string(f.count) + " x " + to_string(f.type);
}

// Whoever writes holds it, and whoever cuts off what another one has left. One that was stopped with it is not waited
// for.
class FileLock {
 public:
  explicit FileLock(int fd) : fd_(fd) {
    for (int tries = 0; !(held_ = flock(fd, LOCK_EX | LOCK_NB) == 0) && tries < kLockTries; tries++) usleep(1000);
  }
  ~FileLock() {
    if (held_) (void)flock(fd_, LOCK_UN);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  [[nodiscard]] bool held() const { return held_; }

 private:
  const int fd_;
  bool held_ = false;
};

constexpr std::string_view kHead = "[\n", kEnd = "\n]\n";

// Cuts off the closing bracket, and what a process that was killed has left of a line: events come next. Of nothing but
// a timeline. Whether there are events before.
Result<bool> reopen(int fd) {
  struct stat file {};
  if (fstat(fd, &file) != 0) return Status(Code::kUnavailable, std::strerror(errno));
  if (!S_ISREG(file.st_mode)) return Status(Code::kUnavailable, "is no file");
  std::array<char, kMostLineBytes> end;
  const off_t from = std::max<off_t>(0, file.st_size - static_cast<off_t>(end.size()));
  const ssize_t got = ::pread(fd, end.data(), end.size(), from);
  if (got < 0) return Status(Code::kUnavailable, std::strerror(errno));
  const std::string_view tail(end.data(), static_cast<std::size_t>(got));
  std::array<char, 2> begin{};
  const ssize_t first = ::pread(fd, begin.data(), begin.size(), 0);
  const std::string_view head(begin.data(), static_cast<std::size_t>(std::max<ssize_t>(first, 0)));
  // Whole lines end so, with a comma but for the last one.
  std::size_t last = tail.rfind("}\n");
  if (const std::size_t comma = tail.rfind("},\n"); last == tail.npos || (comma != tail.npos && comma > last)) {
    last = comma;
  }
  if (head != kHead.substr(0, head.size()) || (last == tail.npos && from != 0)) {
    return Status(Code::kUnavailable, "it is no timeline, and is left as it is");
  }
  const bool events = last != tail.npos;
  const off_t size = events ? from + static_cast<off_t>(last) + 1 : 0;
  if (size != file.st_size && ftruncate(fd, size) != 0) return Status(Code::kUnavailable, std::strerror(errno));
  return events;
}

// All of it; false: errno says why not.
bool write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  return true;
}

// Writes the end of a timeline that has been reopened.
bool close_events(int fd, bool events) {
  return write_all(fd, events ? kEnd : "[\n]\n");
}

}  // namespace

std::int64_t TraceFile::now_ns() {
  return ns_of(std::chrono::steady_clock::now());
}

Result<std::unique_ptr<TraceFile>> TraceFile::open(const std::string& path, const Log& log) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return Status(Code::kUnavailable, "cannot open the timeline " + path + ": " + std::strerror(errno));
  const FileLock lock(fd);
  const Result<bool> events =
      lock.held() ? reopen(fd) : Status(Code::kUnavailable, "another process has held its lock for long");
  Status opened = events.status();
  if (opened.ok() && !close_events(fd, events.value())) opened = {Code::kUnavailable, std::strerror(errno)};
  if (!opened.ok()) {
    ::close(fd);
    return opened.because_of_this("cannot write the timeline " + path);
  }
  std::unique_ptr<TraceFile> file(new TraceFile(fd, path, log));
  const Status started = start_thread(file->writer_, [f = file.get()] { f->write_loop(); });
  if (!started.ok()) return started.because_of_this("cannot write the timeline " + path);
  return file;
}

TraceFile::TraceFile(int fd, std::string path, const Log& log)
    : fd_(fd), path_(std::move(path)), log_(log), to_wall_ns_(ns_of(std::chrono::system_clock::now()) - now_ns()) {
  events_.reserve(kMostEvents);
  writing_.reserve(kMostEvents);
}

TraceFile::~TraceFile() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (writer_.joinable()) writer_.join();
  flush();
  ::close(fd_);
}

void TraceFile::belongs_to(Rank rank, const std::string& worker_id, std::uint32_t attempt) {
  const std::lock_guard lock(mutex_);
  if (!who_.empty()) return;
  who_ = "rank " + std::to_string(rank.value) + ", worker " + worker_id +
         (attempt == 0 ? "" : ", attempt " + std::to_string(attempt));
  // Of 31 bits, different for the lives of a rank and in files of several machines.
  process_ = static_cast<std::uint32_t>(rank.value) << 16 | (static_cast<std::uint32_t>(getpid()) & 0xffff);
}

void TraceFile::add(Event event) {
  const std::lock_guard lock(mutex_);
  if (events_.size() == kMostEvents) {
    left_out_++;
    return;
  }
  event.at_ns = event.at_ns == 0 ? now_ns() : event.at_ns;
  events_.push_back(std::move(event));
  if (events_.size() == kMostEvents / 2) changed_.notify_all();
}

TraceFile::Event TraceFile::event(char phase, std::uint32_t row, std::string_view text, std::string_view detail) {
  Event e;
  e.phase = phase;
  e.row = row;
  e.text = cut(text);
  e.detail = cut(detail);
  return e;
}

TraceFile::Event TraceFile::of_call(char phase, std::uint32_t row, const Call& call) {
  Event e = event(phase, row);
  e.of_call = true;
  e.id = reinterpret_cast<std::uintptr_t>(&call);
  e.round = call.round;
  e.fingerprint = call.fingerprint;
  if (call.spec.collective == Collective::kPoint) {
    // Messages have no round, and what they are stands in their call.
    e.fingerprint = fingerprint_of(call.spec, 0);
    e.detail = call.spec.sends ? "send to " : "receive from ";
    e.detail += std::to_string(call.spec.root);
  } else {
    e.detail = cut(call.setup);
  }
  return e;
}

void TraceFile::issued(const Call& call) {
  add(of_call('b', 0, call));
}

void TraceFile::ended(const Call& call) {
  Event e = of_call('e', 0, call);
  if (!call.status.ok()) e.detail = cut(call.status.describe());
  add(std::move(e));
}

void TraceFile::round_began(std::uint32_t lane, const Call& call) {
  add(of_call('B', kFirstLane + lane, call));
}

void TraceFile::round_does(std::uint32_t lane, Stage stage) {
  static constexpr const char* kNames[] = {"prepare", "replay", "run", "wait for the next generation"};
  add(event(kStage, kFirstLane + lane, kNames[static_cast<std::size_t>(stage)]));
}

void TraceFile::round_ended(std::uint32_t lane) {
  add(event(kRoundEnd, kFirstLane + lane));
}

void TraceFile::begin(Row row, std::string_view name, std::string_view detail) {
  add(event('B', static_cast<std::uint32_t>(row), name, detail));
}

void TraceFile::end(Row row) {
  add(event('E', static_cast<std::uint32_t>(row)));
}

void TraceFile::was(Row row, std::int64_t began_ns, std::string_view name, std::string_view detail) {
  Event e = event('X', static_cast<std::uint32_t>(row), name, detail);
  e.at_ns = began_ns;
  e.lasted_ns = now_ns() - began_ns;
  add(std::move(e));
}

void TraceFile::instant(Row row, std::string_view name, std::string_view detail) {
  add(event('i', static_cast<std::uint32_t>(row), name, detail));
}

void TraceFile::begin_here(std::string_view name) {
  add(event('B', kFirstThread + static_cast<std::uint32_t>(gettid()), name));
}

void TraceFile::end_here() {
  add(event('E', kFirstThread + static_cast<std::uint32_t>(gettid())));
}

// ---- the file

void TraceFile::write_loop() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    changed_.wait_for(lock, kInterval, [this] { return ends_ || events_.size() >= kMostEvents / 2; });
    lock.unlock();
    flush();
    lock.lock();
  }
}

void TraceFile::flush() {
  // Who ends the process does not wait for a disk that hangs.
  std::unique_lock file_lock(file_mutex_, std::try_to_lock);
  for (int tries = 0; !file_lock && tries < kLockTries; tries++) {
    usleep(1000);
    (void)file_lock.try_lock();
  }
  if (!file_lock) return;
  std::uint64_t left_out = 0;
  bool first = false;
  {
    const std::lock_guard lock(mutex_);
    if (who_.empty() || (events_.empty() && left_out_ == 0)) return;
    events_.swap(writing_);
    left_out = std::exchange(left_out_, 0);
    first = bytes_ == 0;
  }
  std::string lines;
  const auto metadata = [&](const char* name, std::uint32_t row, const std::string& args) {
    lines += "{\"name\":\"" + std::string(name) + "\",\"ph\":\"M\",\"pid\":" + std::to_string(process_) +
             ",\"tid\":" + std::to_string(row) + ",\"args\":{" + args + "}},\n";
  };
  if (first) {
    std::string name = "\"name\":\"";
    add_text(name, who_);
    metadata("process_name", 0, name + "\"");
    metadata("process_sort_index", 0, "\"sort_index\":" + std::to_string(process_ >> 16));
  }
  if (left_out != 0) {
    writing_.push_back(event('i', static_cast<std::uint32_t>(Row::kRecovery),
                             std::to_string(left_out) + " events left out: too many at once"));
    writing_.back().at_ns = now_ns();
  }
  for (const Event& e : writing_) {
    if (named_rows_.insert(e.row).second) name_row(e.row, lines);
    format(e, lines);
    if (lines.size() < kWriteBytes) continue;
    write(lines);
    lines.clear();
  }
  write(lines);
  writing_.clear();
}

void TraceFile::name_row(std::uint32_t row, std::string& out) {
  static constexpr const char* kNames[] = {"calls", "recovery", "checkpoints", "waits", "buffers"};
  std::string name = "thread of the program";
  if (row < std::size(kNames)) name = kNames[row];
  if (row >= kFirstLane && row < kFirstThread) {
    name = row == kFirstLane ? "rounds" : "rounds of a group, " + std::to_string(row - kFirstLane);
  }
  out += "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":" + std::to_string(process_) +
         ",\"tid\":" + std::to_string(row) + ",\"args\":{\"name\":\"" + name + "\"}},\n";
}

// One line an event; two where a stage ends with the next one, or with its round.
void TraceFile::format(const Event& event, std::string& out) {
  char numbers[128];
  const auto line = [&](char phase, std::string_view name) {
    out += "{\"ph\":\"";
    out += phase;
    out += "\",\"name\":\"";
    add_text(out, name);
    const std::int64_t ns = event.at_ns + to_wall_ns_;
    (void)std::snprintf(numbers, sizeof numbers, "\",\"ts\":%" PRId64 ".%03d,\"pid\":%u,\"tid\":%u", ns / 1000,
                        static_cast<int>(ns % 1000), process_, event.row);
    out += numbers;
    if (phase == 'X') {
      (void)std::snprintf(numbers, sizeof numbers, ",\"dur\":%" PRId64 ".%03d", event.lasted_ns / 1000,
                          static_cast<int>(event.lasted_ns % 1000));
      out += numbers;
    }
    if (phase == 'i') out += ",\"s\":\"p\"";
    if (phase == 'b' || phase == 'e') {
      (void)std::snprintf(numbers, sizeof numbers, ",\"cat\":\"call\",\"id\":\"%" PRIx64 "\"", event.id);
      out += numbers;
    }
    if (event.of_call) {
      out += ",\"args\":{\"round\":\"";
      add_text(out, to_string(event.round));
      out += "\",\"call\":\"";
      add_text(out, to_string(event.fingerprint));
      out += "\",\"detail\":\"";
      add_text(out, event.detail);
      out += "\"}";
    } else if (!event.detail.empty()) {
      out += ",\"args\":{\"detail\":\"";
      add_text(out, event.detail);
      out += "\"}";
    }
    out += "},\n";
  };
  const auto end_stage = [&] {
    if (in_stage_.erase(event.row) != 0) line('E', "");
  };
  if (event.phase == kStage) {
    end_stage();
    in_stage_.insert(event.row);
    line('B', event.text);
  } else if (event.phase == kRoundEnd) {
    end_stage();
    line('E', "");
  } else {
    line(event.phase, event.of_call ? name_of(event.fingerprint) : event.text);
  }
}

// Whole lines.
void TraceFile::write(std::string_view lines) {
  if (lines.empty() || over_) return;
  if (lines.size() > kMostBytes - bytes_) {
    over_ = true;
    return log_(WARREN_LOG_WARNING,
                "the timeline " + path_ + " has " + std::to_string(bytes_) + " bytes of this life; it ends here");
  }
  const FileLock lock(fd_);
  if (!lock.held()) {
    // Whoever holds it may be cutting off what it takes for half a line.
    const std::lock_guard guard(mutex_);
    left_out_ += static_cast<std::uint64_t>(std::ranges::count(lines, '\n'));
    named_rows_.clear();
    return;
  }
  const Result<bool> events = reopen(fd_);
  if (!events.ok()) {
    over_ = true;
    return log_(WARREN_LOG_WARNING, "the timeline " + path_ + " ends here: " + events.status().describe());
  }
  bytes_ += lines.size();
  constexpr std::string_view kSeparator = ",\n";  // also after the last line
  lines.remove_suffix(kSeparator.size());
  if (write_all(fd_, events.value() ? kSeparator : kHead) && write_all(fd_, lines) && close_events(fd_, true)) return;
  over_ = true;
  log_(WARREN_LOG_WARNING, "cannot write the timeline " + path_ + ", which ends here: " + std::strerror(errno));
}

}  // namespace warren::worker
