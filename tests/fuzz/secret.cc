// Secret files: any text is refused with a reason or gives keys, the same ones each time.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <string>

#include "recovery/base/check.h"
#include "storage/secret.h"

namespace {

// The interface reads files, so there is one, in memory where the machine has such a file system.
const std::string& path() {
  static const std::string kPath = [] {
    std::string name = "/dev/shm/warren-fuzz-secret-XXXXXX";
    const int fd = ::mkstemp(name.data());
    WARREN_CHECK(fd >= 0, "there is a place for the file");
    ::close(fd);
    std::atexit([] { ::unlink(path().c_str()); });
    return name;
  }();
  return kPath;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const int fd = ::open(path().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
  WARREN_CHECK(fd >= 0 && ::write(fd, data, size) == static_cast<ssize_t>(size), "the file is written");
  ::close(fd);
  const auto secret = warren::storage::Secret::load(path());
  if (!secret.ok()) {
    WARREN_CHECK(!secret.status().message().empty(), "a refusal has a reason");
    return 0;
  }
  if (secret.value().is_root()) {
    WARREN_CHECK(secret.value().tracker_keys().public_z85.size() == 40, "a root secret has the tracker's keys");
  }
  const auto first = secret.value().for_job("digits");
  const auto second = secret.value().for_job("digits");
  WARREN_CHECK(first.ok() == second.ok(), "a derivation is a function");
  WARREN_CHECK(!first.ok() || first.value().link_key == second.value().link_key, "a derivation is a function");
  return 0;
}
