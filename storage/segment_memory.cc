#include "storage/segment_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace warren {
namespace {

constexpr unsigned kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

struct Mapping {
  Mapping(void* p, std::size_t n) : at(p), bytes(n) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(at, bytes); }
  void* at;
  std::size_t bytes;
};

}  // namespace

OwnedFd& OwnedFd::operator=(OwnedFd&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

OwnedFd::~OwnedFd() {
  if (fd_ >= 0) ::close(fd_);
}

Result<std::shared_ptr<MemfdSegment>> memfd_segment(std::size_t bytes, const char* name) {
  const auto fail = [bytes, name](const char* what) {
    return Status(Code::kUnavailable, "cannot make " + std::string(name) + " of " + std::to_string(bytes) +
                                          " bytes: " + what + ": " + std::strerror(errno));
  };
  std::shared_ptr<MemfdSegment> segment(new MemfdSegment);
  segment->fd_ = OwnedFd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int fd = segment->fd_.get();
  if (fd < 0) return fail("memfd_create");
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return fail("ftruncate");
  if (::fcntl(fd, F_ADD_SEALS, kSeals) != 0) return fail("sealing");
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) return fail("mmap");
  segment->bytes_ = {static_cast<std::byte*>(at), bytes};
  // F_SEAL_FUTURE_WRITE would do the same without /proc, and forbid to release pages.
  segment->shown_ = OwnedFd(::open(("/proc/self/fd/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));
  return segment;
}

MemfdSegment::~MemfdSegment() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void MemfdSegment::release(std::size_t at, std::size_t size) {
  // Where it is refused the pages stay: they are within the budget.
  (void)::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(at),
                    static_cast<off_t>(size));
}

Result<MappedSegment> map_segment(int fd, std::size_t bytes) {
  struct stat info {};
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || ::fstat(fd, &info) != 0) return Status(Code::kRefused, "a log segment that is not a memory file");
  if ((static_cast<unsigned>(seals) & F_SEAL_SHRINK) == 0) {
    return Status(Code::kRefused, "a log segment that is not sealed against shrinking");
  }
  if (bytes == 0 || info.st_size != static_cast<off_t>(bytes)) {
    return Status(Code::kRefused, "a log segment that is said to have " + std::to_string(bytes) + " bytes and has " +
                                      std::to_string(info.st_size));
  }
  void* at = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    return Status(Code::kUnavailable, "cannot map a log segment of " + std::to_string(bytes) +
                                          " bytes: " + std::strerror(errno) +
                                          (errno == ENOMEM ? "; raise the limit on this process's address space "
                                                             "(`ulimit -v`), or set a smaller log_memory_bytes"
                                                           : ""));
  }
  // With the logs of other processes in it, this core dump would be as long as the host's whole log.
  (void)::madvise(at, bytes, MADV_DONTDUMP);
  return MappedSegment{{static_cast<const std::byte*>(at), bytes}, std::make_shared<const Mapping>(at, bytes)};
}

}  // namespace warren
