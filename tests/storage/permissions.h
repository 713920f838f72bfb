// Permissions of other users on files that a test has made.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <vector>

namespace warren::storage {

// The process's umask while this object lives.
class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}
  ~Umask() { ::umask(before_); }
  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  const mode_t before_;
};

// Those that a user other than the owner can read, write or search: `path`, and what can be reached below it.
inline std::vector<std::string> open_to_others(const std::filesystem::path& path) {
  std::vector<std::string> found;
  struct stat file {};
  EXPECT_EQ(::lstat(path.c_str(), &file), 0) << path;
  if ((file.st_mode & (S_IRWXG | S_IRWXO)) == 0) return found;
  found.push_back(path);
  if (!S_ISDIR(file.st_mode)) return found;
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const auto below = open_to_others(entry.path());
    found.insert(found.end(), below.begin(), below.end());
  }
  return found;
}

}  // namespace warren::storage
