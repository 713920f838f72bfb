// A pipe that nobody reads.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

namespace warren {

// Writes to a pipe until it takes no more, and leaves its flags as they were: others share them.
inline void fill(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  EXPECT_EQ(fcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
  const std::array<char, 4096> bytes{};
  while (write(fd, bytes.data(), bytes.size()) > 0) {
  }
  EXPECT_EQ(fcntl(fd, F_SETFL, flags), 0);
}

}  // namespace warren
