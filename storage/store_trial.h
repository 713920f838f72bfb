// Whether a process dies of opening a result store's database, or a journal. The program warren_store_trial
// (storage/store_trial.cc) finds that out, which lies beside libwarren_store.so. Inside storage/.
//
// The program forks a child, which opens the database to read it, and looks at its tables. The program then tells how
// the child has ended, by one byte on descriptor kTrialSays. This process need not wait for a child of its own for
// that, which the user's program may collect or ignore. Any thread; blocks for kLongestTrialSeconds at most.
#pragma once

#include <string>

namespace warren::storage {

inline constexpr int kTrialSays = 3;
inline constexpr unsigned kLongestTrialSeconds = 20;

enum class Trial : char {
  kOpens = 'o',    // also with an error
  kDies = 'd',     // of SIGABRT, SIGSEGV or SIGBUS
  kUnknown = 'u',  // the program cannot be started, was killed, or has taken too long
};

// `program`: empty: warren_store_trial beside the library that this code is in, or among the libraries of this program.
[[nodiscard]] Trial try_to_open(const std::string& program, const std::string& directory);

}  // namespace warren::storage
