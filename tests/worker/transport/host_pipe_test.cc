#include "worker/transport/host_pipe.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/membarrier.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "tests/sanitized.h"

namespace warren::worker {
namespace {

struct Pipe {
  explicit Pipe(std::size_t ring_bytes = HostPipe::kRingBytes) {
    memory = std::move(HostPipe::create(ring_bytes)).value();
    first = std::move(HostPipe::map(memory.get(), true)).value();
    second = std::move(HostPipe::map(memory.get(), false)).value();
  }
  OwnedFd memory;
  std::unique_ptr<HostPipe> first, second;
};

// As much as there is room for, in one piece.
std::size_t write(HostPipe& pipe, std::span<const std::byte> bytes) {
  const auto room = pipe.room();
  EXPECT_TRUE(room);
  const std::size_t n = std::min(bytes.size(), room->size());
  if (n != 0) std::memcpy(room->data(), bytes.data(), n);
  pipe.put(n);
  return n;
}

// As much as has come.
std::size_t read(HostPipe& pipe, std::span<std::byte> bytes) {
  const auto come = pipe.come();
  EXPECT_TRUE(come);
  const std::size_t n = std::min(bytes.size(), come->size());
  if (n != 0) std::memcpy(bytes.data(), come->data(), n);
  pipe.take(n);
  return n;
}

// As a sleeper does. Whether it would sleep.
bool wait_to_read(HostPipe& pipe, std::size_t bytes) {
  pipe.will_wait_to_read();
  EXPECT_TRUE(HostPipe::fence());
  return !pipe.can_read(bytes);
}
bool wait_to_write(HostPipe& pipe, std::size_t bytes) {
  pipe.will_wait_to_write();
  EXPECT_TRUE(HostPipe::fence());
  return !pipe.can_write(bytes);
}

std::byte byte_at(std::uint64_t i) {
  return static_cast<std::byte>((i * 0x9e3779b97f4a7c15) >> 56);
}

void bytes_arrive_in_order_both_ways(std::size_t ring_bytes) {
  Pipe pipe(ring_bytes);
  EXPECT_EQ(pipe.second->ring_bytes(), ring_bytes);
  std::mt19937 random(7);
  for (auto [from, to] : {std::pair(pipe.first.get(), pipe.second.get()), {pipe.second.get(), pipe.first.get()}}) {
    std::uint64_t written = 0, taken = 0;
    std::vector<std::byte> bytes(ring_bytes);
    while (taken < 20 * ring_bytes) {
      const std::size_t n = random() % bytes.size();
      for (std::size_t i = 0; i < n; i++) bytes[i] = byte_at(written + i);
      const std::size_t put = write(*from, std::span(bytes).first(n));
      ASSERT_EQ(put, std::min<std::uint64_t>(n, ring_bytes - (written - taken)));
      written += put;
      const std::size_t m = random() % bytes.size();
      const std::size_t got = read(*to, std::span(bytes).first(m));
      ASSERT_EQ(got, std::min<std::uint64_t>(m, written - taken));
      for (std::size_t i = 0; i < got; i++) ASSERT_EQ(bytes[i], byte_at(taken + i));
      taken += got;
    }
  }
}

TEST(HostPipe, BytesArriveInOrderBothWays) {
  bytes_arrive_in_order_both_ways(HostPipe::kRingBytes);
}

TEST(HostPipe, RingsAreAsLargeAsTheirMakerSays) {
  bytes_arrive_in_order_both_ways(HostPipe::kLeastRingBytes);
}

// Else it cannot be mapped.
TEST(HostPipe, RingsBeginOnAPageOfThisSystem) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  Pipe pipe;
  struct stat about {};
  ASSERT_EQ(fstat(pipe.memory.get(), &about), 0);
  const std::size_t head = HostPipe::memory_bytes(HostPipe::kRingBytes) - 2 * HostPipe::kRingBytes;
  EXPECT_EQ(head % page, 0u);
  EXPECT_EQ(static_cast<std::size_t>(about.st_size), HostPipe::memory_bytes(HostPipe::kRingBytes));
  std::byte ring = std::byte{1};
  for (HostPipe* end : {pipe.first.get(), pipe.second.get()}) {
    const std::span<std::byte> room = *end->room();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(room.data()) % page, 0u);
    room[0] = ring;
    ring = std::byte{2};
  }
  for (std::size_t i = 0; i < 2; i++) {
    std::byte first{};
    ASSERT_EQ(pread(pipe.memory.get(), &first, 1, static_cast<off_t>(head + i * HostPipe::kRingBytes)), 1);
    EXPECT_EQ(first, static_cast<std::byte>(i + 1));
  }
}

// What is held stays as it was while others come and go, wherever in the ring it lies, and makes room when it is
// released, in any order.
TEST(HostPipe, WhatIsHeldStaysUntilItIsReleased) {
  constexpr std::size_t kPiece = HostPipe::kRingBytes / 8 * 3;
  Pipe pipe;
  std::vector<std::byte> bytes(kPiece);
  std::uint64_t written = 0;
  const auto send = [&] {
    for (std::size_t i = 0; i < kPiece; i++) bytes[i] = byte_at(written + i);
    const std::size_t put = write(*pipe.first, bytes);
    if (put == kPiece) written += kPiece;
    return put;
  };
  const auto right = [&](const std::byte* at, std::uint64_t from) {
    for (std::size_t i = 0; i < kPiece; i++) {
      if (at[i] != byte_at(from + i)) return false;
    }
    return true;
  };
  for (int turn = 0; turn < 5; turn++) {  // a different place in the ring each time
    const std::uint64_t begin = written;
    ASSERT_EQ(send(), kPiece);
    const std::byte* one = pipe.second->come()->data();
    pipe.second->hold(kPiece);
    ASSERT_EQ(send(), kPiece);
    const std::byte* two = pipe.second->come()->data();
    EXPECT_TRUE(pipe.second->can_hold(kPiece));
    pipe.second->hold(kPiece);
    EXPECT_FALSE(pipe.second->can_hold(kPiece)) << "it would never come while the others are held";
    EXPECT_TRUE(pipe.second->can_hold(HostPipe::kRingBytes - 2 * kPiece));
    EXPECT_EQ(pipe.first->room()->size(), HostPipe::kRingBytes - 2 * kPiece);
    EXPECT_TRUE(right(one, begin) && right(two, begin + kPiece)) << turn;
    pipe.second->release(two);
    EXPECT_EQ(pipe.first->room()->size(), HostPipe::kRingBytes - 2 * kPiece) << "what came before it is held";
    pipe.second->release(one);
    EXPECT_EQ(pipe.first->room()->size(), HostPipe::kRingBytes);
  }
  // What is taken behind something that is held is free with it.
  ASSERT_EQ(send(), kPiece);
  const std::byte* held = pipe.second->come()->data();
  pipe.second->hold(kPiece);
  ASSERT_EQ(send(), kPiece);
  pipe.second->take(kPiece);
  EXPECT_EQ(pipe.first->room()->size(), HostPipe::kRingBytes - 2 * kPiece);
  pipe.second->release(held);
  EXPECT_EQ(pipe.first->room()->size(), HostPipe::kRingBytes);
}

bool put_note(HostPipe& pipe, std::uint64_t number) {
  const std::span<std::byte> note = pipe.note_room();
  if (note.empty()) return false;
  EXPECT_EQ(note.size(), HostPipe::kNoteBytes);
  for (std::size_t i = 0; i < note.size(); i++) note[i] = byte_at(number + i);
  pipe.put_note();
  return true;
}

// Takes the next note, if there is one.
bool take_note(HostPipe& pipe, std::uint64_t number) {
  const std::span<const std::byte> note = pipe.note();
  if (note.empty()) return false;
  for (std::size_t i = 0; i < note.size(); i++) EXPECT_EQ(note[i], byte_at(number + i)) << number;
  pipe.take_note();
  return true;
}

TEST(HostPipe, NotesKeepTheirPlaceAmongTheBytes) {
  Pipe pipe;
  std::array<std::byte, 100> bytes{};
  for (std::uint64_t turn = 0; turn < 20; turn++) {
    EXPECT_TRUE(put_note(*pipe.first, 3 * turn));
    EXPECT_EQ(write(*pipe.first, bytes), 100u);
    EXPECT_TRUE(put_note(*pipe.first, 3 * turn + 1));
    EXPECT_TRUE(put_note(*pipe.first, 3 * turn + 2));
    EXPECT_TRUE(pipe.second->come()->empty()) << "a note comes before them";
    EXPECT_TRUE(take_note(*pipe.second, 3 * turn));
    EXPECT_FALSE(take_note(*pipe.second, 0)) << "bytes come before it";
    EXPECT_EQ(read(*pipe.second, std::span(bytes).first(60)), 60u);
    EXPECT_FALSE(take_note(*pipe.second, 0));
    EXPECT_EQ(pipe.second->come()->size(), 40u);
    pipe.second->hold(40);  // is as good as taken
    EXPECT_TRUE(take_note(*pipe.second, 3 * turn + 1));
    EXPECT_TRUE(take_note(*pipe.second, 3 * turn + 2));
    EXPECT_FALSE(take_note(*pipe.second, 0));
    pipe.second->release(pipe.second->come()->data() - 40);
  }
}

TEST(HostPipe, FullSlotsTakeNoNoteUntilOneIsTaken) {
  Pipe pipe;
  std::uint64_t put = 0, taken = 0;
  for (int turn = 0; turn < 10; turn++) {
    while (put_note(*pipe.first, put)) put++;
    ASSERT_EQ(put - taken, HostPipe::kNotes);
    ASSERT_TRUE(take_note(*pipe.second, taken++));
  }
  // What goes the other way says what has been taken, too.
  EXPECT_TRUE(put_note(*pipe.second, 77));
  EXPECT_TRUE(take_note(*pipe.first, 77));
  EXPECT_TRUE(put_note(*pipe.first, put));
  EXPECT_FALSE(put_note(*pipe.first, put));
}

TEST(HostPipe, WhoSleepsIsToldOfANote) {
  Pipe pipe;
  EXPECT_TRUE(wait_to_read(*pipe.second, 8));
  EXPECT_TRUE(put_note(*pipe.first, 0));
  EXPECT_TRUE(pipe.first->must_wake_reader());
  EXPECT_FALSE(wait_to_read(*pipe.second, 8)) << "there is something already";
}

// Two ends that answer each other by notes and bytes in turn, and sleep now and then.
TEST(HostPipe, NotesAndBytesBetweenThreads) {
  Pipe pipe;
  constexpr std::uint64_t kTurns = kThreadSanitized ? 20'000 : 200'000;
  const auto play = [&](HostPipe& end, std::uint32_t seed) {
    std::mt19937 mine(seed), theirs(1 - seed);
    std::uint64_t written = 0, read = 0;
    for (std::uint64_t turn = 0; turn < kTurns; turn++) {
      std::array<std::byte, 64> bytes;
      if (mine() % 3 != 0) {
        while (end.note_room().empty()) std::this_thread::yield();
        const std::span<std::byte> note = end.note_room();
        std::memcpy(note.data() + turn % 1000, &turn, sizeof turn);
        end.put_note();
      } else {
        while (end.room()->size() < bytes.size()) std::this_thread::yield();
        std::memcpy(end.room()->data(), &turn, sizeof turn);
        end.put(bytes.size());
        written += bytes.size();
      }
      std::uint64_t got = 0;
      if (theirs() % 3 != 0) {
        while (end.note().empty()) std::this_thread::yield();
        EXPECT_TRUE(end.come()->empty());
        std::memcpy(&got, end.note().data() + turn % 1000, sizeof got);
        end.take_note();
      } else {
        while (end.come()->size() < bytes.size()) std::this_thread::yield();
        EXPECT_TRUE(end.note().empty());
        std::memcpy(&got, end.come()->data(), sizeof got);
        end.take(bytes.size());
        read += bytes.size();
      }
      if (got != turn) return ADD_FAILURE() << got << " came for " << turn;
    }
    EXPECT_GT(written, 0u);
    EXPECT_GT(read, 0u);
  };
  std::thread other([&] { play(*pipe.second, 1); });
  play(*pipe.first, 0);
  other.join();
}

TEST(HostPipe, WhoSleepsIsToldOnce) {
  Pipe pipe;
  std::array<std::byte, 8> bytes{};
  EXPECT_FALSE(pipe.first->must_wake_reader()) << "nobody sleeps";
  EXPECT_TRUE(wait_to_read(*pipe.second, 1));
  EXPECT_EQ(write(*pipe.first, bytes), 8u);
  EXPECT_TRUE(pipe.first->must_wake_reader());
  EXPECT_FALSE(pipe.first->must_wake_reader());
  EXPECT_FALSE(wait_to_read(*pipe.second, 8)) << "there is something already";
  EXPECT_TRUE(wait_to_read(*pipe.second, 9)) << "but not so much";
  EXPECT_EQ(write(*pipe.first, std::span(bytes).first(1)), 1u);
  EXPECT_TRUE(pipe.first->must_wake_reader());
  EXPECT_EQ(read(*pipe.second, std::span(bytes).first(1)), 1u);
  EXPECT_FALSE(pipe.second->must_wake_reader()) << "the other way is another ring";

  EXPECT_FALSE(wait_to_write(*pipe.first, 1)) << "there is room";
  const std::vector<std::byte> full(HostPipe::kRingBytes);
  std::size_t written = 8;
  for (std::size_t n = 1; n != 0; written += n) n = write(*pipe.first, full);
  EXPECT_EQ(written, HostPipe::kRingBytes);
  EXPECT_TRUE(wait_to_write(*pipe.first, 1));
  EXPECT_EQ(read(*pipe.second, bytes), 8u);
  EXPECT_TRUE(pipe.second->must_wake_writer());
  EXPECT_FALSE(pipe.second->must_wake_writer());
}

// Both ends sleep whenever they can, on a socket each: what is lost is waited for until CTest ends it.
TEST(HostPipe, NoWakeUpIsLost) {
  Pipe pipe;
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, sockets), 0);
  constexpr std::uint64_t kBytes = 40 * HostPipe::kRingBytes;
  const auto ring = [](int fd) { EXPECT_EQ(send(fd, "", 1, MSG_NOSIGNAL), 1); };
  const auto sleep = [](int fd) {
    pollfd p{fd, POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, -1), 1);
    std::array<char, 64> rung;
    while (recv(fd, rung.data(), rung.size(), MSG_DONTWAIT) > 0) {
    }
  };
  std::thread writer([&] {
    std::mt19937 random(1);
    std::vector<std::byte> bytes(70'000);
    for (std::uint64_t at = 0; at < kBytes;) {
      const std::size_t n = std::min<std::uint64_t>(random() % bytes.size() + 1, kBytes - at);
      for (std::size_t i = 0; i < n; i++) bytes[i] = byte_at(at + i);
      for (std::size_t done = 0; done < n;) {
        const std::size_t put = write(*pipe.first, std::span(bytes).subspan(done, n - done));
        done += put;
        if (put != 0 && pipe.first->must_wake_reader()) ring(sockets[0]);
        if (put == 0 && wait_to_write(*pipe.first, 1)) sleep(sockets[0]);
      }
      at += n;
    }
  });
  std::mt19937 random(2);
  std::vector<std::byte> bytes(70'000);
  bool right = true;
  for (std::uint64_t at = 0; at < kBytes;) {
    const std::size_t got = read(*pipe.second, std::span(bytes).first(random() % bytes.size() + 1));
    for (std::size_t i = 0; i < got; i++) right = right && bytes[i] == byte_at(at + i);
    at += got;
    if (got != 0 && pipe.second->must_wake_writer()) ring(sockets[1]);
    if (got == 0 && wait_to_read(*pipe.second, 1)) sleep(sockets[1]);
  }
  writer.join();
  EXPECT_TRUE(right);
  close(sockets[0]);
  close(sockets[1]);
}

// The rest of the process's life without this system call, as a program may have it that filters its own. False: such
// a filter cannot be set up here.
bool forbid_membarrier() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_membarrier, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

TEST(HostPipe, AFenceThatIsTakenBackCostsNoLife) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    Pipe before;
    const long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    const bool could = commands > 0 && (commands & MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) != 0;
    if (!forbid_membarrier()) _exit(3);
    before.first->will_wait_to_read();
    if (HostPipe::fence() == could || before.first->fence_no_more() != could) _exit(1);
    // Once said; pipes that are made later never say otherwise. Sleepers are told as ever.
    Pipe after;
    if (before.first->fence_no_more() || after.first->fence_no_more()) _exit(1);
    before.second->put(1);
    if (!before.second->must_wake_reader() || !before.first->can_read(1)) _exit(2);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: as if nothing had happened; 2: a wake-up is lost; 3: no filter can be set";
}

TEST(HostPipe, CountersThatCannotBeAreFound) {
  Pipe pipe;
  auto* raw = static_cast<std::byte*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, pipe.memory.get(), 0));
  ASSERT_NE(raw, MAP_FAILED);
  const std::uint64_t rubbish = HostPipe::kRingBytes + 1;
  std::memcpy(raw, &rubbish, sizeof rubbish);  // first's "written"
  EXPECT_FALSE(pipe.second->come().has_value());
  const std::uint64_t taken = 1;
  std::memcpy(raw + 128, &taken, sizeof taken);  // and what of it second has taken
  EXPECT_FALSE(pipe.first->room().has_value());
  munmap(raw, 4096);
}

TEST(HostPipe, OtherMemoryIsRefused) {
  const auto memory = [](off_t bytes) {
    OwnedFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(fd.get(), bytes), 0);
    return fd;
  };
  const auto seal = [](const OwnedFd& fd) {
    EXPECT_EQ(fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
  };
  const off_t page = sysconf(_SC_PAGESIZE), ring = HostPipe::kRingBytes, least = HostPipe::kLeastRingBytes;
  const off_t head = static_cast<off_t>(HostPipe::memory_bytes(HostPipe::kRingBytes)) - 2 * ring;
  const OwnedFd unsealed = memory(head + 2 * ring);
  EXPECT_EQ(HostPipe::map(unsealed.get(), true).status().code(), Code::kRefused) << "it could shrink under us";
  seal(unsealed);
  EXPECT_TRUE(HostPipe::map(unsealed.get(), true).ok()) << "the seals were all that it lacked";
  for (const off_t bytes : {off_t{0}, head - 1, head, head + least, head + 3 * least, head + 4 * ring,
                            head + 2 * ring + 1, head + 2 * (ring - page)}) {
    const OwnedFd other = memory(bytes);
    seal(other);
    EXPECT_EQ(HostPipe::map(other.get(), true).status().code(), Code::kRefused) << bytes;
  }
  const OwnedFd file(open("/dev/null", O_RDWR | O_CLOEXEC));
  EXPECT_EQ(HostPipe::map(file.get(), true).status().code(), Code::kRefused);
}

}  // namespace
}  // namespace warren::worker
