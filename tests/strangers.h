// Strangers who connect to every socket on which this process listens, and close, as fast as they can.
#pragma once

#include <arpa/inet.h>
#include <dirent.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace warren {

class Strangers {
 public:
  explicit Strangers(int threads) : doors_(listening()) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { flood(); });
  }
  ~Strangers() {
    over_ = true;
    for (std::thread& t : threads_) t.join();
  }
  Strangers(const Strangers&) = delete;
  Strangers& operator=(const Strangers&) = delete;

  [[nodiscard]] std::size_t doors() const { return doors_.size(); }

 private:
  struct Door {
    int type = 0;
    sockaddr_storage address{};
    socklen_t length = sizeof address;
  };

  static std::vector<Door> listening() {
    std::vector<Door> doors;
    DIR* const dir = ::opendir("/proc/self/fd");
    while (const dirent* entry = ::readdir(dir)) {
      const int fd = std::atoi(entry->d_name);
      int listens = 0;
      socklen_t size = sizeof listens;
      Door door;
      socklen_t type_size = sizeof door.type;
      if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0 ||
          ::getsockopt(fd, SOL_SOCKET, SO_TYPE, &door.type, &type_size) != 0 ||
          ::getsockname(fd, reinterpret_cast<sockaddr*>(&door.address), &door.length) != 0) {
        continue;
      }
      doors.push_back(door);
    }
    ::closedir(dir);
    return doors;
  }

  void flood() const {
    while (!over_) {
      for (const Door& door : doors_) {
        const int fd = ::socket(door.address.ss_family, door.type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0) continue;
        // Without TIME_WAIT, which would use up the machine's ports.
        const linger at_once{1, 0};
        (void)::setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        (void)::connect(fd, reinterpret_cast<const sockaddr*>(&door.address), door.length);
        ::close(fd);
      }
    }
  }

  const std::vector<Door> doors_;
  std::atomic<bool> over_{false};
  std::vector<std::thread> threads_;
};

}  // namespace warren
