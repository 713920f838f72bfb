#include "chaos/process/records.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <utility>

#include "recovery/base/check.h"

namespace warren::chaos::process {
namespace {

Status cannot_open(const std::string& path) {
  return {Code::kUnavailable, "cannot open " + path + ": " + std::strerror(errno)};
}

}  // namespace

std::uint64_t monotonic_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(t.tv_nsec);
}

Result<RecordWriter> RecordWriter::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return cannot_open(path);
  return RecordWriter(fd);
}

RecordWriter::RecordWriter(RecordWriter&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

RecordWriter::~RecordWriter() {
  if (fd_ >= 0) close(fd_);
}

void RecordWriter::write(Record record) const {
  record.at_ns = monotonic_ns();
  ssize_t n;
  do {
    n = ::write(fd_, &record, sizeof record);
  } while (n < 0 && errno == EINTR);
  WARREN_CHECK(n == sizeof record, "a record was written");
}

Result<RecordReader> RecordReader::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return cannot_open(path);
  return RecordReader(fd);
}

RecordReader::RecordReader(RecordReader&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), rest_(std::move(other.rest_)) {}

RecordReader::~RecordReader() {
  if (fd_ >= 0) close(fd_);
}

std::vector<Record> RecordReader::take() {
  std::vector<Record> out;
  char bytes[sizeof(Record) * 256];
  while (true) {
    const ssize_t n = read(fd_, bytes, sizeof bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    rest_.append(bytes, static_cast<std::size_t>(n));
  }
  std::size_t at = 0;
  for (; at + sizeof(Record) <= rest_.size(); at += sizeof(Record)) {
    Record r;
    std::memcpy(&r, rest_.data() + at, sizeof r);
    out.push_back(r);
  }
  rest_.erase(0, at);
  return out;
}

const char* name_of(Phase phase) {
  switch (phase) {
    case Phase::kNone: return "none";
    case Phase::kStarting: return "starting";
    case Phase::kPreamble: return "preamble";
    case Phase::kLoad: return "load";
    case Phase::kIdle: return "idle";
    case Phase::kSmallRound: return "small_round";
    case Phase::kBigRound: return "big_round";
    case Phase::kReplay: return "replay";
    case Phase::kCheckpoint: return "checkpoint";
    case Phase::kCheckpointed: return "checkpointed";
    case Phase::kFinalize: return "finalize";
    case Phase::kGone: return "gone";
  }
  return "unknown";
}

void keep_away(Page& page) {
  page.away.store(1);
}

void let_in(Page& page) {
  page.away.store(0);
  syscall(SYS_futex, &page.away, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// Between processes, so not std::atomic's wait.
void wait_until_let_in(Page& page) {
  static_assert(sizeof page.away == 4 && std::atomic<std::uint32_t>::is_always_lock_free);
  while (page.away.load() != 0) syscall(SYS_futex, &page.away, FUTEX_WAIT, 1, nullptr, nullptr, 0);
}

Result<std::shared_ptr<Page>> map_page(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0) return cannot_open(path);
  void* at = MAP_FAILED;
  if (ftruncate(fd, sizeof(Page)) == 0) at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int why = errno;
  close(fd);
  if (at == MAP_FAILED) return Status(Code::kUnavailable, "cannot map " + path + ": " + std::strerror(why));
  return std::shared_ptr<Page>(static_cast<Page*>(at), [](Page* p) { munmap(p, sizeof(Page)); });
}

std::string records_path(const std::string& folder, std::uint32_t worker) {
  return folder + "/worker-" + std::to_string(worker) + ".records";
}
std::string page_path(const std::string& folder, std::uint32_t worker) {
  return folder + "/worker-" + std::to_string(worker) + ".page";
}
std::string gate_path(const std::string& folder, std::uint32_t process) {
  return folder + "/process-" + std::to_string(process) + ".page";
}
std::string stop_path(const std::string& folder) {
  return folder + "/stop";
}
std::string shape_path(const std::string& folder) {
  return folder + "/shape.json";
}

}  // namespace warren::chaos::process
