// Descriptors 0, 1 and 2.
#pragma once

#include <fcntl.h>
#include <unistd.h>

namespace warren {

// Opens /dev/null in the place of each standard descriptor that is closed. Otherwise the next file or socket takes that
// place, and whatever the program prints goes into it.
inline void open_standard_descriptors() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= 2);
  if (fd > 2) ::close(fd);
}

}  // namespace warren
