// warren_nccl_root LIBRARY VERSION NCCL: makes an id of NCCL by a library that implements the table, writes it to
// descriptor 3, and stays, as the root of its communicator, until nobody has the other end of its standard input, or
// its parent is gone. NCCL is that of its parent, the file (or "": whichever is found) and the version, or none.
#include <dlfcn.h>
#include <poll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "worker/device/device_table.h"

namespace {

constexpr int kLives = 0, kSays = 3;
// Between two looks at the parent: a child that it has forked may have the other end, too.
constexpr int kLookMs = 500;

}  // namespace

int main(int argc, char** argv) {
  const pid_t parent = getppid();
  (void)prctl(PR_SET_NAME, "warren-nccl");
  if (argc != 4) return 2;
  // The library asks for it by its name, and gets the one that is loaded.
  if (*argv[3] != 0 && dlopen(argv[3], RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    std::fprintf(stderr, "%s: %s\n", argv[0], dlerror());
    return 1;
  }
  void* const library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  const auto function =
      library == nullptr ? nullptr
                         : reinterpret_cast<warren_device_table_function>(dlsym(library, WARREN_DEVICE_TABLE_SYMBOL));
  if (function == nullptr) {
    std::fprintf(stderr, "%s: %s\n", argv[0], dlerror());
    return 1;
  }
  const warren_device_table& table = *function();
  std::int32_t version = 0;
  const char* file = nullptr;
  std::array<char, WARREN_DEVICE_NCCL_ID_BYTES> id{};
  warren_device_code code = table.nccl_version(&version, &file);
  if (code == WARREN_DEVICE_OK && version != std::atoi(argv[2])) {
    std::fprintf(stderr, "%s: finds NCCL %d, not %s, which its parent has\n", argv[0], version, argv[2]);
    return 1;
  }
  if (code == WARREN_DEVICE_OK) code = table.nccl_id(id.data());
  if (code != WARREN_DEVICE_OK) {
    std::fprintf(stderr, "%s: no id of NCCL: %s\n", argv[0], table.error_text());
    return 1;
  }
  // So few bytes go into a pipe at once.
  if (write(kSays, id.data(), id.size()) != static_cast<ssize_t>(id.size())) return 1;
  pollfd lives{kLives, POLLIN, 0};
  while (getppid() == parent) {
    if (poll(&lives, 1, kLookMs) > 0) break;
  }
  // NCCL's thread goes on waiting.
  _exit(0);
}
