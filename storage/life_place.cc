#include "storage/life_place.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <system_error>
#include <utility>

#include "storage/files.h"
#include "storage/fork_guard.h"
#include "storage/result_format.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr char kLockName[] = "LOCK-life";
constexpr char kLifeName[] = "LIFE";
constexpr char kRemovedName[] = "LIFE-removed";
constexpr char kStaleName[] = "LIFE-stale";
constexpr char kOpeningPrefix[] = "LIFE-opening-";
constexpr char kLifePrefix[] = "life-";
constexpr std::string_view kSumWord = "sum ";
constexpr std::size_t kMostLifeBytes = 4096;
constexpr std::size_t kMostTextBytes = 64;  // of a file that somebody else may have written

std::optional<Incarnation> parse_life(const std::string& name) {
  if (!name.starts_with(kLifePrefix)) return std::nullopt;
  const Incarnation life(std::strtoull(name.c_str() + std::strlen(kLifePrefix), nullptr, 16));
  return life_name(life) == name ? std::optional(life) : std::nullopt;
}

// The last line: of the first one as it is written, and of what follows that.
std::string sum_of_life(const std::string& rest) {
  const std::string text = std::string(kResultFormat) + "\n" + rest;
  char sum[17];
  std::snprintf(sum, sizeof sum, "%016llx",
                static_cast<unsigned long long>(checksum_of(std::as_bytes(std::span(text.data(), text.size())))));
  return std::string(kSumWord) + sum;
}

}  // namespace

std::string life_name(Incarnation life) {
  char hex[17];
  std::snprintf(hex, sizeof hex, "%016llx", static_cast<unsigned long long>(life.value));
  return kLifePrefix + std::string(hex);
}

bool there(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

std::vector<fs::path> entries_of(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  // Not a range-for: its step throws when somebody removes the directory meanwhile.
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  std::ranges::sort(entries);
  return entries;
}

std::uint64_t size_of(const fs::path& directory) {
  std::uint64_t bytes = 0;
  for (const fs::path& entry : entries_of(directory)) {
    std::error_code error;
    if (fs::is_directory(entry, error)) {
      bytes += size_of(entry);
      continue;
    }
    const std::uint64_t size = fs::file_size(entry, error);
    if (!error) bytes += size;
  }
  return bytes;
}

std::unique_ptr<LifeLock> LifeLock::take(const std::string& directory) {
  return take_file(directory + "/" + kLockName, true);
}

std::unique_ptr<LifeLock> LifeLock::take_file(const std::string& path, bool make) {
  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | (make ? O_CREAT : 0);
  const int fd = not_for_children(::open(path.c_str(), flags, 0600));
  if (fd < 0) return nullptr;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  whole.l_whence = SEEK_SET;
  if (::fcntl(fd, F_OFD_SETLK, &whole) != 0) {
    ::close(fd);
    return nullptr;
  }
  return std::unique_ptr<LifeLock>(new LifeLock(fd));
}

LifeLock::~LifeLock() {
  ::close(fd_);
}

OpeningNote::OpeningNote(std::string directory, Incarnation self)
    : path_(std::move(directory) + "/" + kOpeningPrefix + life_name(self)), lock_(LifeLock::take_file(path_, true)) {}

OpeningNote::~OpeningNote() {
  if (lock_) ::unlink(path_.c_str());
}

bool OpeningNote::any_died(const std::string& directory) {
  return std::ranges::any_of(entries_of(directory), [](const fs::path& entry) {
    return entry.filename().string().starts_with(kOpeningPrefix) && LifeLock::take_file(entry, false) != nullptr;
  });
}

void OpeningNote::forget_deaths(const std::string& directory) {
  for (const fs::path& entry : entries_of(directory)) {
    if (!entry.filename().string().starts_with(kOpeningPrefix)) continue;
    if (const auto over = LifeLock::take_file(entry, false)) ::unlink(entry.c_str());
  }
}

std::vector<FoundLife> lives_in(const fs::path& job_directory, const std::string& worker_file) {
  std::vector<FoundLife> lives;
  for (const fs::path& worker : entries_of(job_directory)) {
    for (const fs::path& entry : entries_of(worker)) {
      if (const auto life = parse_life(entry.filename())) {
        lives.push_back({*life, entry, worker.filename() == worker_file});
      }
    }
  }
  return lives;
}

LifeFile read_life(const std::string& directory) {
  const auto read = read_file(directory + "/" + kLifeName, kMostLifeBytes);
  LifeFile file;
  if (!read.ok() || !read.value()) return file;
  const std::string& text = *read.value();
  file.format = text.substr(0, std::min(text.find('\n'), kMostTextBytes));
  if (const auto at = text.find("process "); at != std::string::npos) {
    file.process = text.substr(at, std::min(text.find('\n', at) - at, kMostTextBytes));
  }
  // A first line that is damaged alone.
  constexpr std::size_t kRestAt = sizeof kResultFormat;
  const std::size_t sum_at = text.rfind(kSumWord);
  if (sum_at != std::string::npos && sum_at >= kRestAt &&
      text.substr(sum_at) == sum_of_life(text.substr(kRestAt, sum_at - kRestAt)) + "\n") {
    file.format = kResultFormat;
  }
  return file;
}

Status write_life(const std::string& directory, const std::string& job, const std::string& worker_id) {
  const std::string rest = "job " + job + "\nworker " + worker_id + "\nprocess " + std::to_string(::getpid()) + "\n";
  return write_file(directory + "/" + kLifeName, std::string(kResultFormat) + "\n" + rest + sum_of_life(rest) + "\n");
}

Status mark_stale(const std::string& directory) {
  return write_file(directory + "/" + kStaleName, "", "mark-" + std::to_string(::getpid()));
}

bool marked_stale(const std::string& directory) {
  return there(directory + "/" + kStaleName);
}

bool under_removal(const std::string& directory) {
  return there(directory + "/" + kRemovedName);
}

void remove_place(const std::string& directory) {
  std::error_code error;
  const fs::path place(directory);
  fs::rename(place / kLifeName, place / kRemovedName, error);
  for (const fs::path& entry : entries_of(place)) {
    if (entry.filename() != kRemovedName && entry.filename() != kLockName) fs::remove_all(entry, error);
  }
  fs::remove(place / kRemovedName, error);
  fs::remove(place / kLockName, error);
  fs::remove(place, error);
}

void sweep_finished(const std::string& data_dir, const std::string& job_file) {
  std::error_code error;
  for (const fs::path& entry : entries_of(data_dir)) {
    if (!entry.filename().string().starts_with(job_file + kFinishedMark)) continue;
    for (const fs::path& worker : entries_of(entry)) {
      for (const fs::path& life : entries_of(worker)) {
        if (const auto lock = LifeLock::take(life)) remove_place(life);
      }
      fs::remove(worker, error);  // fails as long as something is in it
    }
    fs::remove(entry, error);
  }
}

}  // namespace warren::storage
