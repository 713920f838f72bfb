#include "storage/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kPrivateDirectory = S_IRWXU, kPrivateFile = S_IRUSR | S_IWUSR;
constexpr std::size_t kMostNameBytes = 200;   // of 255 that file systems take
constexpr std::size_t kMostFormatBytes = 64;  // of the name of an unknown format, in a message

Status failed(const std::string& what, int error) {
  return {error == ENOSPC || error == EDQUOT ? Code::kExhausted : Code::kUnavailable,
          what + ": " + std::strerror(error)};
}

// The permission bits that were changed; 0: none. `type`: S_IFREG or S_IFDIR, others stay as they are.
mode_t take_from_others(const std::string& path, mode_t type, mode_t mode) {
  const int follow = type == S_IFDIR ? O_DIRECTORY : O_NOFOLLOW;
  const int fd = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | follow);
  if (fd < 0) return 0;
  struct stat file {};
  const bool open_to_others = ::fstat(fd, &file) == 0 && file.st_uid == ::geteuid() &&
                              (file.st_mode & S_IFMT) == type && (file.st_mode & (S_IRWXG | S_IRWXO)) != 0;
  const bool changed = open_to_others && ::fchmod(fd, mode) == 0;
  ::close(fd);
  return changed ? file.st_mode & ALLPERMS : 0;
}

}  // namespace

Status sync_directory(const std::string& directory) {
  const int fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  return synced ? Status() : failed("cannot make what is in the directory " + directory + " durable", error);
}

Status make_directory(const std::string& directory) {
  std::error_code error;
  if (fs::is_directory(directory, error)) return {};
  const fs::path above = fs::path(directory).lexically_normal().parent_path();
  if (!above.empty() && above != fs::path(directory)) {
    if (Status s = make_directory(above); !s.ok()) return s;
  }
  if (::mkdir(directory.c_str(), kPrivateDirectory) == 0) {
    // The umask may have taken from the owner.
    (void)::chmod(directory.c_str(), kPrivateDirectory);
  } else if (errno != EEXIST || !fs::is_directory(directory, error)) {
    return failed("cannot make the directory " + directory, errno);
  }
  return sync_directory(above.empty() ? "." : above.string());
}

std::string make_private(const std::string& directory) {
  const mode_t before = take_from_others(directory, S_IFDIR, kPrivateDirectory);
  std::size_t files = 0;  // RocksDB makes its files with mode 0644: nobody else reaches them in a private directory
  const auto names = names_in(directory);
  for (const std::string& name : names.ok() ? names.value() : std::vector<std::string>()) {
    std::string path = directory;
    path.append("/").append(name);
    if (take_from_others(path, S_IFREG, kPrivateFile) != 0) files++;
  }
  if (before == 0) return "";
  return "permissions corrected: other users could read the directory " + directory +
         ", which belongs to its owner alone now, with " + std::to_string(files) + " files in it";
}

Status write_file(const std::string& path, std::string_view bytes, std::string_view writer) {
  const std::string temporary = path + std::string(writer) + ".tmp";
  const int fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return failed("cannot write " + temporary, errno);
  bool written = true;
  for (std::size_t at = 0; at < bytes.size() && written;) {
    const ssize_t n = ::write(fd, bytes.data() + at, bytes.size() - at);
    if (n > 0) {
      at += static_cast<std::size_t>(n);
    } else {
      written = n < 0 && errno == EINTR;
    }
  }
  written = written && ::fsync(fd) == 0;
  int error = errno;
  ::close(fd);
  if (written && ::rename(temporary.c_str(), path.c_str()) != 0) {
    error = errno;
    written = false;
  }
  if (!written) {
    ::unlink(temporary.c_str());
    return failed("cannot write " + path, error);
  }
  return sync_directory(fs::path(path).parent_path().string());
}

Result<std::optional<std::string>> read_file(const std::string& path, std::size_t most_bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return std::optional<std::string>();
    return failed("cannot read " + path, errno);
  }
  std::string bytes(most_bytes + 1, '\0');
  std::size_t size = 0;
  ssize_t n = 1;
  while (size < bytes.size() && n != 0) {
    n = ::read(fd, bytes.data() + size, bytes.size() - size);
    if (n > 0) size += static_cast<std::size_t>(n);
    if (n < 0 && errno != EINTR) break;
  }
  const int error = errno;
  ::close(fd);
  if (n < 0) return failed("cannot read " + path, error);
  if (size > most_bytes) {
    return Status(Code::kCorrupt,
                  path + " is longer than the " + std::to_string(most_bytes) + " bytes that it may have");
  }
  bytes.resize(size);
  return std::optional(std::move(bytes));
}

Result<std::vector<std::string>> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return failed("cannot read the directory " + directory, error.value());
  }
  std::ranges::sort(names);
  return names;
}

Status of_another_version(const std::string& what, std::string_view format, std::string_view known,
                          const std::string& removable) {
  return {Code::kRefused, what + " was written by another version of Warren (format \"" +
                              std::string(format.substr(0, kMostFormatBytes)) + "\", this build knows \"" +
                              std::string(known) + "\"): finish the job with that version, or remove " + removable};
}

std::string file_name(std::string_view name) {
  std::string out;
  for (const char c : name) {
    const bool plain = (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
                       c == ':' || c == '@' || c == '-' || (c == '.' && !out.empty());
    if (plain) {
      out += c;
    } else {
      char hex[4];
      std::snprintf(hex, sizeof hex, "%%%02X", static_cast<unsigned char>(c));
      out += hex;
    }
  }
  if (out.size() <= kMostNameBytes) return out;
  std::uint64_t hash = 0xcbf29ce484222325;  // FNV-1a: no protection against who wants two names to meet is needed
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  char tail[18];
  std::snprintf(tail, sizeof tail, "%%%016llx", static_cast<unsigned long long>(hash));
  return out.substr(0, kMostNameBytes) + tail;
}

}  // namespace warren::storage
