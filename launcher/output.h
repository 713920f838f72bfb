// The launcher's output: lines of many processes, each whole and marked with who wrote it, on two streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

namespace warren::worker {

// Cuts a stream of bytes into lines with a prefix. A line longer than kMaxLineBytes is cut into several, so that one
// process that never ends its line cannot fill the memory.
class LineSplitter {
 public:
  static constexpr std::size_t kMaxLineBytes = std::size_t{64} << 10;

  explicit LineSplitter(std::string prefix) : prefix_(std::move(prefix)) {}

  // Appends to `out` the lines that `bytes` completes, each with prefix and newline.
  void take(std::string_view bytes, std::string& out);
  // The stream has ended: what is left is a line.
  void finish(std::string& out);

 private:
  void emit(std::string_view end, std::string& out);

  std::string prefix_;
  std::string partial_;
};

// Bytes on their way to a descriptor that others may share (a terminal, a pipe): written only when they can be taken at
// once, without making the descriptor non-blocking. Whoever fills it asks has_room() first: that bounds it.
class OutputQueue {
 public:
  static constexpr std::size_t kRoomBytes = std::size_t{256} << 10;

  // `fd` stays the caller's.
  explicit OutputQueue(int fd) : fd_(fd) {}

  // Room for whatever one read of a process' pipe can give.
  [[nodiscard]] bool has_room() const { return queue_.size() < kRoomBytes; }
  [[nodiscard]] bool empty() const { return queue_.empty(); }
  [[nodiscard]] int fd() const { return fd_; }
  // Where lines are appended.
  [[nodiscard]] std::string& buffer() { return queue_; }

  // Writes what the descriptor takes now. If nobody reads it any more, the rest and all that follows is dropped.
  // SIGPIPE must be blocked or ignored.
  void write_some();

 private:
  int fd_;
  std::string queue_;
  bool broken_ = false;
};

// Lines of other threads of the launcher's process for its error stream. They never wait for who reads that: a tracker
// that did would recover nothing.
class OtherLines {
 public:
  static constexpr std::size_t kRoomBytes = std::size_t{256} << 10;

  OtherLines();
  ~OtherLines();  // what nobody has taken goes to standard error, as far as that takes it at once
  OtherLines(const OtherLines&) = delete;
  OtherLines& operator=(const OtherLines&) = delete;

  // From any thread. `line` without its newline. Dropped if there is no room.
  void add(const std::string& line);
  // Can be read once there is a line; -1 if the system gave none: lines wait until take() is called anyway.
  [[nodiscard]] int fd() const { return fd_; }
  // Appends all lines to `out`, and returns how many were dropped since the last call.
  std::uint64_t take(std::string& out);

 private:
  const int fd_;
  std::mutex mutex_;
  std::string lines_;
  std::uint64_t dropped_ = 0;
};

}  // namespace warren::worker
