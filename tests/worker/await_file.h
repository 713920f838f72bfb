// A file that another thread or process makes.
#pragma once

#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <filesystem>

#include "storage/segment_memory.h"

namespace warren {

// Returns once it is there, whole if it was renamed into its place; its directories may be missing as yet. CTest ends
// what never comes.
inline void await_file(const std::filesystem::path& file) {
  namespace fs = std::filesystem;
  while (!fs::exists(file)) {
    fs::path there = file.parent_path();
    while (!fs::exists(there)) there = there.parent_path();
    const OwnedFd changes(::inotify_init1(IN_CLOEXEC));
    ASSERT_TRUE(changes.open());
    if (::inotify_add_watch(changes.get(), there.c_str(), IN_CREATE | IN_MOVED_TO) < 0) continue;  // gone again
    // Made since it was looked for: nothing would tell.
    const fs::path next = there / *file.lexically_relative(there).begin();
    if (fs::exists(next)) continue;
    alignas(inotify_event) std::array<char, 4096> events;
    ASSERT_GT(::read(changes.get(), events.data(), events.size()), 0);
  }
}

}  // namespace warren
