// What a child of a fork must not use: it has none of its parent's threads and links.
#pragma once

#include <atomic>

namespace warren::api {

// Raised in the child of a fork: what was made under another number is its parent's.
inline constinit std::atomic<unsigned> fork_number{0};

// From then on forks are counted. Called before anything is made that a child must not use.
void count_forks();

}  // namespace warren::api
