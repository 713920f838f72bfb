// What the threads of a program are at, for people who look for where it hangs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warren::worker {

// Loads what stacks_of_program() needs, while no thread is stuck yet.
void prepare_stacks();

// Lines that name each thread of the program (those of the library left out), what it waits for in the kernel, and its
// stack, the main thread first, at most kMostStacks of them. Each thread is interrupted by a signal that the program
// does not use; one that does not answer within `timeout_ms` (it is in the kernel, or holds the loader's lock) is named
// without a stack. For a process that is about to end: a thread that answers late goes on in the handler.
inline constexpr int kMostStacks = 8;
[[nodiscard]] std::vector<std::string> stacks_of_program(std::int64_t timeout_ms);

}  // namespace warren::worker
