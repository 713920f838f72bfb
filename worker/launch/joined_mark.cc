#include "worker/launch/joined_mark.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include <xxhash.h>

namespace warren::worker {
namespace {

namespace fs = std::filesystem;

// Ancestors that are looked at; more than any system nests.
constexpr int kMostAncestors = 1000;

std::string mark_of(pid_t pid, const Settings& settings) {
  const std::string worker = settings.tracker_host + '\0' + std::to_string(settings.tracker_port) + '\0' +
                             settings.job + '\0' + settings.worker_id;
  return "warren-joined-" + std::to_string(pid) + "-" + std::to_string(XXH3_64bits(worker.data(), worker.size()));
}

// Nothing: it has ended, or the system does not tell.
std::optional<pid_t> parent_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  // "PID (NAME) STATE PARENT …"; the name may hold anything.
  const auto name_end = text.rfind(')');
  if (name_end == std::string::npos || text.size() < name_end + 4) return std::nullopt;
  const long parent = std::strtol(text.c_str() + name_end + 4, nullptr, 10);
  return parent > 0 ? std::optional(static_cast<pid_t>(parent)) : std::nullopt;
}

bool has_open(pid_t pid, const std::string& memory_file) {
  const std::string link = "/memfd:" + memory_file + " (deleted)";
  std::error_code gone;  // the process may end meanwhile, and may be another user's
  for (fs::directory_iterator at("/proc/" + std::to_string(pid) + "/fd", gone), end; !gone && at != end;
       at.increment(gone)) {
    std::error_code closed;
    if (fs::read_symlink(at->path(), closed) == link) return true;
  }
  return false;
}

std::string source_of_worker_id(const Settings& settings) {
  const auto given = std::ranges::find(settings.resolved, "worker_id", &Resolved::name);
  return given == settings.resolved.end() ? "" : " (" + given->source + ")";
}

}  // namespace

Result<JoinedMark> JoinedMark::make(const Settings& settings) {
  std::optional<pid_t> ancestor = ::getppid();
  for (int i = 0; i < kMostAncestors && ancestor && *ancestor > 0; i++, ancestor = parent_of(*ancestor)) {
    if (!has_open(*ancestor, mark_of(*ancestor, settings))) continue;
    return Status(
        Code::kInvalidArgument,
        "this process would take the place of its parent: process " + std::to_string(*ancestor) +
            ", which has started it, is in job " + settings.job + " as worker " + settings.worker_id +
            source_of_worker_id(settings) +
            "; give a child that is to be a worker an id of its own, and let all others make no communicator");
  }
  return JoinedMark(OwnedFd(::memfd_create(mark_of(::getpid(), settings).c_str(), MFD_CLOEXEC)));
}

}  // namespace warren::worker
