// Where the lives of a job's workers keep their results under a data directory, which of them are over, and how places
// go. The states that a crash leaves are in storage/rocks_result_store.h. Inside storage/. Any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"

namespace warren::storage {

inline constexpr char kResultFormat[] = "warren-results-5";

// "life-00000000000000ab"
[[nodiscard]] std::string life_name(Incarnation life);
// A finished job's directory has this between its name and a life's number.
inline constexpr char kFinishedMark[] = "%finished-";
// Likewise what a life of another run has left.
inline constexpr char kOtherMark[] = "%other-";
// The place of a life whose database ends the processes that open it has this between the job and the life.
inline constexpr char kDamagedMark[] = "%damaged-";

// What is in a directory; nothing if it cannot be read.
[[nodiscard]] std::vector<std::filesystem::path> entries_of(const std::filesystem::path& directory);
// Of all files in it, and in the directories in it.
[[nodiscard]] std::uint64_t size_of(const std::filesystem::path& directory);
[[nodiscard]] bool there(const std::filesystem::path& path);

// A lock, held until this object goes. An open file description's (F_OFD_SETLK): it also excludes this process itself,
// and a child closes its copy (storage/fork_guard.h).
class LifeLock {
 public:
  // Of a life's place. nullptr: somebody else has it, or it cannot be locked.
  static std::unique_ptr<LifeLock> take(const std::string& directory);
  // Of a file, which is made if it is missing and `make` says so.
  static std::unique_ptr<LifeLock> take_file(const std::string& path, bool make);
  ~LifeLock();
  LifeLock(const LifeLock&) = delete;
  LifeLock& operator=(const LifeLock&) = delete;

 private:
  explicit LifeLock(int fd) : fd_(fd) {}
  const int fd_;
};

// Notes in the place of another life that this one is about to open its database. RocksDB may end the process there
// where a file is damaged (an assertion that Debian's build keeps): the note stays then. A note stays as well where the
// process was killed just then, as all of a host's may be at once: notes are a suspicion, and storage/store_trial.h
// finds out whether the suspicion is right.
class OpeningNote {
 public:
  // `self`: the life that opens it.
  OpeningNote(std::string directory, Incarnation self);
  ~OpeningNote();
  OpeningNote(const OpeningNote&) = delete;
  OpeningNote& operator=(const OpeningNote&) = delete;

  // Lives have died while they opened the database.
  [[nodiscard]] static bool any_died(const std::string& directory);
  // The database has been opened: nobody has died of it.
  static void forget_deaths(const std::string& directory);

 private:
  const std::string path_;
  const std::unique_ptr<LifeLock> lock_;
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
  std::string format;   // empty: there is none, so the place is being made, or was. Damaged alone it reads as written
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
