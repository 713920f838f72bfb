#include "storage/full_disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "storage/files.h"
#include "storage/life_place.h"

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr off_t kReserveBytes = 1 << 20;

// Where the file system of this directory begins.
fs::path mount_point_of(const std::string& directory) {
  std::error_code unknown;
  fs::path at = fs::absolute(directory, unknown);
  struct stat here {};
  if (unknown || ::stat(at.c_str(), &here) != 0) return directory;
  while (at.has_relative_path()) {
    struct stat above {};
    if (::stat(at.parent_path().c_str(), &above) != 0 || above.st_dev != here.st_dev) break;
    at = at.parent_path();
  }
  return at;
}

}  // namespace

void keep_reserves(const std::string& directory) {
  for (const char* name : {kReserveOfNoteName, kReserveName}) {
    const std::string reserve = directory + "/" + name;
    if (there(reserve)) continue;
    const int fd = ::open(reserve.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return;
    const bool kept = ::posix_fallocate(fd, 0, kReserveBytes) == 0;
    ::close(fd);
    std::error_code error;
    if (!kept) fs::remove(reserve, error);
  }
}

Status with_remedy(Status status, const std::string& directory) {
  if (status.code() != Code::kExhausted) return status;
  struct statvfs disk {};
  std::string free;
  if (::statvfs(directory.c_str(), &disk) == 0) {
    free = " (" + std::to_string(disk.f_bavail * disk.f_frsize) + " of its " +
           std::to_string(disk.f_blocks * disk.f_frsize) + " bytes are free)";
  }
  return status.because_of_this("the disk mounted at " + mount_point_of(directory).string() + ", where " + directory +
                                " lies, is full, or its quota is used up" + free +
                                ": remove files there that are not Warren's; a checkpoint that is committed frees "
                                "what the log takes");
}

}  // namespace warren::storage
