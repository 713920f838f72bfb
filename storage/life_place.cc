#include "storage/life_place.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>
#include <system_error>
#include <utility>

#include "storage/files.h"
#include "storage/fork_guard.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr char kLockName[] = "LOCK-life";
constexpr char kLifeName[] = "LIFE";
constexpr char kRemovedName[] = "LIFE-removed";
constexpr char kStaleName[] = "LIFE-stale";
constexpr char kLifePrefix[] = "life-";
constexpr std::size_t kMostTextBytes = 64;  // of a file that somebody else may have written

std::optional<Incarnation> parse_life(const std::string& name) {
  if (!name.starts_with(kLifePrefix)) return std::nullopt;
  const Incarnation life(std::strtoull(name.c_str() + std::strlen(kLifePrefix), nullptr, 16));
  return life_name(life) == name ? std::optional(life) : std::nullopt;
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
  const std::string path = directory + "/" + kLockName;
  const int fd = not_for_children(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
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
  std::ifstream in(directory + "/" + kLifeName);
  LifeFile file;
  std::getline(in, file.format);
  for (std::string line; std::getline(in, line);) file.process = line;
  file.format.resize(std::min(file.format.size(), kMostTextBytes));
  file.process.resize(std::min(file.process.size(), kMostTextBytes));
  return file;
}

Status write_life(const std::string& directory, const std::string& job, const std::string& worker_id) {
  return write_file(directory + "/" + kLifeName, std::string(kResultFormat) + "\njob " + job + "\nworker " + worker_id +
                                                     "\nprocess " + std::to_string(::getpid()) + "\n");
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
