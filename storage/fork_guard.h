// What a child of a fork is not to have of its parent's. A child that runs on without exec has a copy of every
// descriptor: as long as it lives no other process sees the end of a socket whose owner was killed, and memory that the
// dead one has shared stays. So the child closes, before its own code runs, what was told here.
//
// Any thread may call. A fork in the moment between making a descriptor and telling of it leaves the child that one.
// Children of vfork(), posix_spawn() and clone() run none of this; they exec, which closes what is CLOEXEC.
#pragma once

#include <cstddef>
#include <span>

namespace warren {

// From now on, in each child of this process.
void close_in_children();

// Tells of a descriptor that was just made, and returns it; -1: nothing. It need not be told again when it is closed,
// or handed on: the child closes what is still the same file under the same number. Of a socket, a pipe, or memory;
// nothing happens for others.
int not_for_children(int fd);

// The child gets nothing in the place of these pages, which are whole. Without effect where the system refuses it.
void not_for_children(std::span<const std::byte> pages);

}  // namespace warren
