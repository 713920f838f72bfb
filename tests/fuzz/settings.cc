// Settings: a node list, and a file and variables of any text, are refused with a reason or give settings that hold
// what their header promises. The first byte chooses; the rest is the text.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "worker/settings/settings.h"

namespace {

using warren::worker::resolve;

const std::string& path() {
  static const std::string kPath = [] {
    std::string name = "/dev/shm/warren-fuzz-settings-XXXXXX";
    const int fd = ::mkstemp(name.data());
    WARREN_CHECK(fd >= 0, "there is a place for the file");
    ::close(fd);
    std::atexit([] { ::unlink(path().c_str()); });
    return name;
  }();
  return kPath;
}

void check(const warren::Result<warren::worker::Settings>& settings) {
  if (!settings.ok()) {
    WARREN_CHECK(!settings.status().message().empty(), "a refusal has a reason");
    return;
  }
  WARREN_CHECK(settings.value().world_size >= 1 && settings.value().world_size <= warren::limits::kMaxWorldSize,
               "a world size is within its limits");
  WARREN_CHECK(settings.value().secret_file.empty() == settings.value().no_auth, "a secret exactly if it is needed");
  WARREN_CHECK(!warren::worker::describe(settings.value()).empty(), "settings can be told");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const warren::worker::SystemFacts facts{"boot", "1", "2", "3", "0", "host", std::uint64_t{8} << 30};
  switch (data[0] % 3) {
    case 0: {
      const auto nodes = warren::worker::expand_node_list(text);
      WARREN_CHECK(!nodes.ok() || nodes.value().size() <= warren::limits::kMaxWorldSize, "a list is bounded");
      break;
    }
    case 1: {  // a settings file
      const int fd = ::open(path().c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC);
      WARREN_CHECK(fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()), "written");
      ::close(fd);
      check(resolve(
          nullptr,
          [](const std::string& name) {
            return name == "WARREN_CONFIG" ? std::optional<std::string>(path()) : std::nullopt;
          },
          facts));
      break;
    }
    default: {  // NAME=value lines, as variables
      check(resolve(
          nullptr,
          [&text](const std::string& name) -> std::optional<std::string> {
            const std::string key = "\n" + name + "=";
            const std::string all = "\n" + text;
            const auto at = all.find(key);
            if (at == std::string::npos) return std::nullopt;
            const auto begin = at + key.size();
            return all.substr(begin, all.find('\n', begin) - begin);
          },
          facts));
    }
  }
  return 0;
}
