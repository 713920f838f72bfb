// Where the lives of a job's workers keep their results under a data directory, which of them are over, and how places
// go. The states that a crash leaves are in storage/rocks_result_store.h. Inside storage/. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "recovery/ids.h"
#include "recovery/result.h"

namespace warren::storage {

inline constexpr char kResultFormat[] = "warren-results-5";

// "life-00000000000000ab"
[[nodiscard]] std::string life_name(Incarnation life);
// A finished job's directory has this between its name and a life's number.
inline constexpr char kFinishedMark[] = "%finished-";
// Likewise what a life of another run has left.
inline constexpr char kOtherMark[] = "%other-";

// What is in a directory; nothing if it cannot be read.
[[nodiscard]] std::vector<std::filesystem::path> entries_of(const std::filesystem::path& directory);
// Of all files in it, and in the directories in it.
[[nodiscard]] std::uint64_t size_of(const std::filesystem::path& directory);
[[nodiscard]] bool there(const std::filesystem::path& path);

// The lock of a life's place, held until this object goes. An open file description's (F_OFD_SETLK): it also excludes
// this process itself, and a child closes its copy (storage/fork_guard.h).
class LifeLock {
 public:
  // nullptr: somebody else has it, or it cannot be locked.
  static std::unique_ptr<LifeLock> take(const std::string& directory);
  ~LifeLock();
  LifeLock(const LifeLock&) = delete;
  LifeLock& operator=(const LifeLock&) = delete;

 private:
  explicit LifeLock(int fd) : fd_(fd) {}
  const int fd_;
};

struct FoundLife {
  Incarnation life;
  std::string directory;
  bool of_this_worker = false;
};
// By directory. `worker_file`: the name of this worker's directory.
[[nodiscard]] std::vector<FoundLife> lives_in(const std::filesystem::path& job_directory,
                                              const std::string& worker_file);

struct LifeFile {
  std::string format;   // empty: there is none, so the place is being made, or was
  std::string process;  // "process 1234"
};
[[nodiscard]] LifeFile read_life(const std::string& directory);
[[nodiscard]] Status write_life(const std::string& directory, const std::string& job, const std::string& worker_id);

// Nothing of what is there is to be read, by whomever, from when this returns success. Errors as write_file().
[[nodiscard]] Status mark_stale(const std::string& directory);
[[nodiscard]] bool marked_stale(const std::string& directory);

// Who removes a place holds its lock.
void remove_place(const std::string& directory);
[[nodiscard]] bool under_removal(const std::string& directory);
// Removes what finished jobs of this name have left, but for lives that are not over.
void sweep_finished(const std::string& data_dir, const std::string& job_file);

}  // namespace warren::storage
