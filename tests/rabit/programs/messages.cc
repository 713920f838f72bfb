// A program that handles rabit's messages itself.
//   messages error=root|size|buffer|seek     an error of the library's; its handler returns
#define RABIT_CUSTOMIZE_MSG_
#include <rabit/rabit.h>

#include "common.h"

namespace {
bool ends = true;
}

namespace rabit {
namespace utils {
void HandleAssertError(const char* message) {
  std::printf("my assertion: %s\n", message);
}
void HandleCheckError(const char* message) {
  std::printf("my check: %s\n", message);
  if (ends) std::exit(3);
}
void HandlePrint(const char* message) {
  std::printf("my print: %s", message);
}
void HandleLogInfo(const char* format, ...) {
  std::printf("my log: %s", format);
}
}  // namespace utils
}  // namespace rabit

int main(int argc, char* argv[]) {
  rabit::Init(argc, argv);
  const std::string error = programs::argument(argc, argv, "error", "");
  if (!error.empty()) {
    ends = false;
    char room[16] = {};
    rabit::utils::MemoryFixSizeBuffer buffer(room, 8);
    if (error == "root") rabit::Broadcast(room, sizeof room, 5);
    if (error == "size") rabit::Allgather(reinterpret_cast<long*>(room), ~size_t(0) / 4, 0, 1, 1);
    if (error == "buffer") buffer.Write("123456789", 9);
    if (error == "seek") buffer.Seek(9);
    std::printf("went on\n");
    return 0;
  }
  rabit::utils::Printf("%d\n", 7);
  rabit::utils::HandleLogInfo("a line\n");
  rabit::utils::Assert(false, "one");
  rabit::utils::Check(false, "two");
  return 0;
}
