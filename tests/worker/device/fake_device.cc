#include "tests/worker/device/fake_device.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuda/request.h"
#include "cuda/twins.h"

namespace warren::test {
namespace {

constexpr int kDevices = 2;
// Addresses alone, until they are used. What a test's device has failed with is never used again.
constexpr std::size_t kDeviceBytes = std::size_t{1} << 30;
constexpr std::size_t kAlignment = 256;

// Of a fixed size and in static memory of threads: LeakSanitizer (gcc 12) takes the memory that the loader gives a
// library's thread_local for a block with a header, reads what is before it, and crashes.
[[gnu::tls_model("initial-exec")]] thread_local std::array<char, 256> last_error{};

warren_device_code failed(const std::string& text, warren_device_code code = WARREN_DEVICE_FAILED) {
  last_error[text.copy(last_error.data(), last_error.size() - 1)] = 0;
  return code;
}

[[noreturn]] void broken(const char* what) {
  std::perror(what);
  std::abort();
}

std::atomic<bool> nccl_has_noticed{false};  // an error
// What the exchange that this stream is at meets.
[[gnu::tls_model("initial-exec")]] thread_local bool aborts_alone = false, flips_a_byte = false;

// ---- faults

void stand_still() {
  const pid_t self = getpid();
  if (fork() == 0) {
    (void)sleep(8);
    (void)kill(self, SIGCONT);
    _exit(0);
  }
  (void)kill(self, SIGSTOP);
}

class Faults {
 public:
  void arm(const char* where, int after, FakeFault fault) {
    const std::lock_guard lock(mutex_);
    where_ = where;
    after_ = after;
    fault_ = fault;
    armed_ = true;
  }
  void release() {
    const std::lock_guard lock(mutex_);
    armed_ = false;
    nccl_has_noticed = false;
    released_++;
    changed_.notify_all();
  }
  std::uint64_t calls(const char* where) {
    const std::lock_guard lock(mutex_);
    return calls_[where];
  }
  // What becomes of this call.
  warren_device_code meet(const char* where) {
    std::unique_lock lock(mutex_);
    calls_[where]++;
    if (!armed_ || where_ != where || after_-- > 0) return WARREN_DEVICE_OK;
    armed_ = false;
    const std::string text = std::string("injected into ") + where;
    switch (fault_) {
      case FakeFault::kError: return failed(text);
      case FakeFault::kNoMemory: return failed(text, WARREN_DEVICE_NO_MEMORY);
      case FakeFault::kNone: return failed(text, WARREN_DEVICE_NONE);
      case FakeFault::kHang: changed_.wait(lock, [this, before = released_] { return released_ != before; }); break;
      case FakeFault::kKill: (void)kill(getpid(), SIGKILL); break;
      case FakeFault::kStop: stand_still(); break;
      case FakeFault::kAbort: aborts_alone = true; break;
      case FakeFault::kFlip: flips_a_byte = true; break;
      case FakeFault::kNoticed: nccl_has_noticed = true; break;
    }
    return WARREN_DEVICE_OK;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::string where_;
  int after_ = 0;
  FakeFault fault_ = FakeFault::kError;
  bool armed_ = false;
  std::uint64_t released_ = 0;
  std::map<std::string, std::uint64_t> calls_;
};

// Never destroyed: streams may outlive main().
Faults& faults() {
  static Faults& all = *new Faults;
  return all;
}

// ---- memory

// One device's: at `program` for whoever holds pointers, at `mine` for the streams.
class Memory {
 public:
  Memory() {
    const int fd = memfd_create("fake-device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, kDeviceBytes) != 0) broken("fake device memory");
    program_ = map(fd, PROT_NONE);
    mine_ = map(fd, PROT_READ | PROT_WRITE);
    ::close(fd);
  }
  [[nodiscard]] bool holds(const void* pointer) const {
    const auto* const p = static_cast<const std::byte*>(pointer);
    return p >= program_ && p < program_ + kDeviceBytes;
  }
  // nullptr: not all of it lies in one allocation.
  std::byte* behind(const void* pointer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!holds(pointer)) return nullptr;
    const auto at = static_cast<std::size_t>(static_cast<const std::byte*>(pointer) - program_);
    const auto it = used_.upper_bound(at);
    if (it == used_.begin()) return nullptr;
    const auto& [begin, size] = *std::prev(it);
    return at + bytes <= begin + size ? mine_ + at : nullptr;
  }
  std::byte* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    std::size_t at = 0;
    for (const auto& [begin, size] : used_) {
      if (begin - at >= bytes) break;
      at = (begin + size + kAlignment - 1) / kAlignment * kAlignment;
    }
    if (at + bytes > kDeviceBytes) return nullptr;
    used_[at] = bytes;
    return program_ + at;
  }
  bool release(void* pointer) {
    const std::lock_guard lock(mutex_);
    return holds(pointer) && used_.erase(static_cast<std::size_t>(static_cast<std::byte*>(pointer) - program_)) == 1;
  }

 private:
  static std::byte* map(int fd, int protection) {
    void* const at = mmap(nullptr, kDeviceBytes, protection, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (at == MAP_FAILED) broken("fake device memory");
    return static_cast<std::byte*>(at);
  }
  std::byte *program_ = nullptr, *mine_ = nullptr;
  std::mutex mutex_;
  std::map<std::size_t, std::size_t> used_;
};

Memory& memory(int device) {
  static auto* const all = new Memory[kDevices];
  return all[device];
}

// What processes share, made here or elsewhere: each piece of it has addresses of its own.
class Shared {
 public:
  static constexpr std::size_t kUnit = std::size_t{2} << 20;
  // nullptr: the system gives no more addresses.
  std::byte* add(std::int32_t device, int fd, std::size_t bytes) {
    void* const program = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    void* const mine = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (program == MAP_FAILED || mine == MAP_FAILED) return nullptr;
    const std::lock_guard lock(mutex_);
    pieces_[static_cast<std::byte*>(program)] = {device, static_cast<std::byte*>(mine), bytes};
    return static_cast<std::byte*>(program);
  }
  bool remove(std::int32_t device, void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto it = pieces_.find(static_cast<std::byte*>(memory));
    if (it == pieces_.end() || it->second.device != device || it->second.bytes != bytes) return false;
    munmap(it->second.mine, bytes);
    munmap(memory, bytes);
    pieces_.erase(it);
    return true;
  }
  // Of this device, or, where that is negative, of any.
  std::byte* behind(std::int32_t device, const void* pointer, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto* const p = static_cast<const std::byte*>(pointer);
    const auto it = pieces_.upper_bound(p);
    if (it == pieces_.begin()) return nullptr;
    const auto& [begin, piece] = *std::prev(it);
    const auto at = static_cast<std::size_t>(p - begin);
    const bool whole = at <= piece.bytes && bytes <= piece.bytes - at;
    return whole && (device < 0 || piece.device == device) ? piece.mine + at : nullptr;
  }
  std::size_t pieces() {
    const std::lock_guard lock(mutex_);
    return pieces_.size();
  }

 private:
  struct Piece {
    std::int32_t device = 0;
    std::byte* mine = nullptr;
    std::size_t bytes = 0;
  };
  std::mutex mutex_;
  std::map<const std::byte*, Piece> pieces_;
};

Shared& shared() {
  static Shared& all = *new Shared;
  return all;
}

// What a stream of the device finds there; nullptr: it is not all this device's.
std::byte* behind(std::int32_t device, const void* pointer, std::size_t bytes) {
  std::byte* const own = memory(device).behind(pointer, bytes);
  return own != nullptr ? own : shared().behind(device, pointer, bytes);
}

std::byte* behind_any(const void* pointer, std::size_t bytes) {
  for (int d = 0; d < kDevices; d++) {
    if (std::byte* const at = memory(d).behind(pointer, bytes); at != nullptr) return at;
  }
  return shared().behind(-1, pointer, bytes);
}

struct Pinned {
  std::mutex mutex;
  std::map<const std::byte*, std::size_t> blocks;
  bool holds(const void* pointer, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const auto* const p = static_cast<const std::byte*>(pointer);
    const auto it = blocks.upper_bound(p);
    return it != blocks.begin() && p + bytes <= std::prev(it)->first + std::prev(it)->second;
  }
};
Pinned& pinned() {
  static Pinned& all = *new Pinned;
  return all;
}

// ---- streams and events

// What is queued on all streams together.
class Pending {
 public:
  void add(int tasks) {
    const std::lock_guard lock(mutex_);
    tasks_ += tasks;
    if (tasks_ == 0) none_.notify_all();
  }
  void settle() {
    std::unique_lock lock(mutex_);
    none_.wait(lock, [&] { return tasks_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable none_;
  int tasks_ = 0;
};
Pending& pending() {
  static Pending& all = *new Pending;
  return all;
}

struct Event {
  explicit Event(std::int32_t of) : device(of) {}
  const std::int32_t device;
  std::mutex mutex;
  std::condition_variable changed;
  std::uint64_t recorded = 0, reached = 0;
  std::string failure;  // of the stream, when it was reached
};
using EventHolder = std::shared_ptr<Event>;

class Stream : public std::enable_shared_from_this<Stream> {
 public:
  // Returns why the stream fails from here on; empty: it does not.
  using Task = std::function<std::string(const std::string& failure)>;
  explicit Stream(std::int32_t device) : device_(device) {}
  static std::shared_ptr<Stream> make(std::int32_t device) {
    auto stream = std::make_shared<Stream>(device);
    std::thread([stream] { stream->run(); }).detach();
    return stream;
  }
  [[nodiscard]] std::int32_t device() const { return device_; }
  void push(Task task) {
    pending().add(1);
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }
  void end() {
    push([this](const std::string& failure) {
      ends_ = true;
      return failure;
    });
  }

 private:
  void run() {
    std::string failure;
    while (!ends_) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      failure = task(failure);
      pending().add(-1);
    }
  }
  const std::int32_t device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;
  bool ends_ = false;  // of the stream's thread
};
using StreamHolder = std::shared_ptr<Stream>;

// Handles that were given out. The core leaves those of a device that has failed as they are; here they stay in reach,
// so that a sanitizer does not take them for leaks.
class Handles {
 public:
  void* add(void* handle) {
    const std::lock_guard lock(mutex_);
    all_.insert(handle);
    return handle;
  }
  void remove(void* handle) {
    const std::lock_guard lock(mutex_);
    if (all_.erase(handle) == 0) broken("a stream or event that is none");
  }

 private:
  std::mutex mutex_;
  std::set<void*> all_;
};
Handles& handles() {
  static Handles& all = *new Handles;
  return all;
}

// nullptr: it is another device's.
StreamHolder stream_of(std::int32_t device, void* handle) {
  if (handle != nullptr) {
    const StreamHolder& stream = *static_cast<StreamHolder*>(handle);
    return stream->device() == device ? stream : nullptr;
  }
  static auto* const by_default = new std::vector<StreamHolder>{Stream::make(0), Stream::make(1)};
  return (*by_default)[static_cast<std::size_t>(device)];
}
const EventHolder& event_of(void* handle) {
  return *static_cast<EventHolder*>(handle);
}

warren_device_code push(std::int32_t device, void* handle, Stream::Task task) {
  const StreamHolder stream = stream_of(device, handle);
  if (stream == nullptr) return failed("a stream of another device");
  stream->push(std::move(task));
  return WARREN_DEVICE_OK;
}

// Queues what runs unless the stream has failed before.
warren_device_code queue(std::int32_t device, void* stream, const char* where, std::function<void()> work) {
  return push(device, stream, [where, work = std::move(work)](const std::string& failure) -> std::string {
    if (!failure.empty()) return failure;
    if (faults().meet(where) != WARREN_DEVICE_OK) return last_error.data();
    work();
    return {};
  });
}

// ---- the table

// ---- NCCL: ranks of one or several processes of this host, by sockets

void tell(int fd, const void* bytes, std::size_t size) {
  (void)!::send(fd, bytes, size, MSG_NOSIGNAL);
}

sockaddr_un address_of(const std::string& name, socklen_t& bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);  // of no file
  bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

int listen_as(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t bytes = 0;
  const sockaddr_un address = address_of(name, bytes);
  if (fd < 0 || bind(fd, reinterpret_cast<const sockaddr*>(&address), bytes) != 0 || listen(fd, 64) != 0) {
    broken("a socket of the fake NCCL");
  }
  return fd;
}

int connect_to(const std::string& name) {
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t bytes = 0;
  const sockaddr_un address = address_of(name, bytes);
  if (fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&address), bytes) == 0) return fd;
  ::close(fd);
  return -1;
}

// Where ranks meet: in the process that has made the id, which is of no use when that is gone.
void be_root(int listener) {
  std::vector<int> joined;
  std::int32_t size = 1;
  while (joined.size() < static_cast<std::size_t>(size)) {
    const int fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) return;
    if (recv(fd, &size, sizeof size, MSG_WAITALL) != sizeof size) {
      ::close(fd);
      continue;
    }
    joined.push_back(fd);
  }
  for (const int fd : joined) tell(fd, "g", 1);
  for (const int fd : joined) ::close(fd);
  ::close(listener);
}

std::atomic<int> nccl_says{22809};

// What was in the memory by which it came: no small number as f32.
constexpr int kJunk = 0x5a;

class FakeNccl : public std::enable_shared_from_this<FakeNccl> {
 public:
  FakeNccl(std::int32_t device, std::string id, std::int32_t size, std::int32_t rank)
      : device_(device), id_(std::move(id)), size_(size), rank_(rank) {
    to_.assign(static_cast<std::size_t>(size), -1);
    from_ = to_;
    peers_aborted_.assign(to_.size(), false);
    listener_ = listen_as(name_of(rank));
  }
  ~FakeNccl() {
    for (const int fd : to_) ::close(fd);
    for (const int fd : from_) ::close(fd);
    ::close(listener_);
  }
  void begin() {
    std::thread([self = shared_from_this()] { self->join(); }).detach();
  }
  void end() {
    ends_ = true;
    abort();
  }
  [[nodiscard]] std::int32_t rank() const { return rank_; }
  warren_device_code state() {
    if (ends_) return WARREN_DEVICE_OK;
    if (nccl_has_noticed) return failed("an error that NCCL has noticed");
    if (no_root_) return failed("the root of this communicator is gone");
    return joined_ ? WARREN_DEVICE_OK : WARREN_DEVICE_NOT_READY;
  }
  struct Message {
    std::byte* at = nullptr;
    std::size_t bytes = 0;
    std::int32_t peer = 0;
    bool sends = false;
  };
  [[nodiscard]] std::int32_t device() const { return device_; }
  // On a stream. What a peer that is gone does not take, or send, is waited for: NCCL says nothing, either. A peer that
  // aborts says that all has been moved, as NCCL's kernels do when they leave: to who sends, and to who receives, whose
  // memory then has anything in it.
  void exchange(std::vector<Message> messages) {
    const bool aborts = std::exchange(aborts_alone, false), flips = std::exchange(flips_a_byte, false);
    if (aborts) abort();
    const std::vector<Message> all = messages;
    while (!ends_ && (aborts || !messages.empty())) {
      std::vector<pollfd> fds;
      for (const Message& m : messages) {
        fds.push_back({fd_of(m), static_cast<short>(m.sends ? POLLOUT : POLLIN), 0});
      }
      (void)::poll(fds.data(), aborts ? 0 : fds.size(), 5);
      bool some = false;
      for (Message& m : messages) {
        if (aborts) break;
        const ssize_t n = m.sends ? send(fd_of(m), m.at, m.bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
                                  : recv(fd_of(m), m.at, m.bytes, MSG_DONTWAIT);
        const bool is_over = m.sends ? n < 0 && errno == EPIPE : n == 0;
        if (is_over && has_aborted(m.peer)) {
          if (!m.sends) std::memset(m.at, kJunk, m.bytes);
          m.bytes = 0;
        }
        if (n <= 0) continue;
        some = true;
        m.at += n;
        m.bytes -= static_cast<std::size_t>(n);
      }
      std::erase_if(messages, [](const Message& m) { return m.bytes == 0; });
      if (!some) std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    const auto received = std::ranges::find(all, false, &Message::sends);
    if (flips && received != all.end()) received->at[received->bytes / 2] ^= std::byte{1};
  }

 private:
  [[nodiscard]] std::string name_of(std::int32_t rank) const { return id_ + "-" + std::to_string(rank); }
  // Seen by peers, in other processes too, for as long as this one lives.
  void abort() {
    if (aborted_.exchange(true) || !joined_) return;
    (void)listen_as(name_of(rank_) + "-aborted");
    for (const int fd : to_) (void)::shutdown(fd, SHUT_WR);
    for (const int fd : from_) (void)::shutdown(fd, SHUT_RD);
  }
  bool has_aborted(std::int32_t peer) {
    const auto p = static_cast<std::size_t>(peer);
    if (peers_aborted_[p]) return true;
    const int fd = connect_to(name_of(peer) + "-aborted");
    peers_aborted_[p] = fd >= 0;
    if (fd >= 0) ::close(fd);
    return fd >= 0;
  }
  [[nodiscard]] int fd_of(const Message& m) const { return (m.sends ? to_ : from_)[static_cast<std::size_t>(m.peer)]; }
  bool readable(int fd) {
    while (!ends_) {
      pollfd one{fd, POLLIN, 0};
      if (::poll(&one, 1, 5) > 0) return true;
    }
    return false;
  }
  void join() {
    const int root = connect_to(id_);
    char word = 0;
    if (root >= 0) tell(root, &size_, sizeof size_);
    const bool met = root >= 0 && readable(root) && recv(root, &word, 1, 0) == 1;
    ::close(root);
    if (!met) {
      no_root_ = true;
      return;
    }
    for (std::int32_t peer = 0; peer < size_; peer++) {
      if (peer == rank_) continue;
      const int fd = connect_to(name_of(peer));
      to_[static_cast<std::size_t>(peer)] = fd;
      tell(fd, &rank_, sizeof rank_);
    }
    for (std::int32_t i = 1; i < size_; i++) {
      if (!readable(listener_)) return;
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      std::int32_t peer = 0;
      if (recv(fd, &peer, sizeof peer, MSG_WAITALL) != sizeof peer) return;
      from_[static_cast<std::size_t>(peer)] = fd;
    }
    joined_ = true;
  }

  const std::int32_t device_;
  const std::string id_;
  const std::int32_t size_, rank_;
  std::vector<int> to_, from_;       // by peer
  std::vector<bool> peers_aborted_;  // of the stream
  int listener_ = -1;
  std::atomic<bool> ends_{false}, aborted_{false}, no_root_{false}, joined_{false};
};
using NcclHolder = std::shared_ptr<FakeNccl>;
const NcclHolder& nccl_of(void* handle) {
  return *static_cast<NcclHolder*>(handle);
}

#define FAKE_MEETS(name) \
  if (const auto met = faults().meet(name); met != WARREN_DEVICE_OK) return met

const char* error_text() {
  return last_error.data();
}

warren_device_code init(std::int32_t* devices) {
  FAKE_MEETS("init");
  *devices = kDevices;
  return WARREN_DEVICE_OK;
}

warren_device_code locate(const void* pointer, std::int32_t* device) {
  FAKE_MEETS("locate");
  *device = WARREN_DEVICE_HOST;
  for (int d = 0; d < kDevices; d++) {
    if (memory(d).holds(pointer)) *device = d;
  }
  return WARREN_DEVICE_OK;
}

warren_device_code allocate_pinned(std::size_t bytes, void** out) {
  FAKE_MEETS("allocate_pinned");
  void* const at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return failed("mmap", WARREN_DEVICE_NO_MEMORY);
  const std::lock_guard lock(pinned().mutex);
  pinned().blocks[static_cast<std::byte*>(at)] = bytes;
  *out = at;
  return WARREN_DEVICE_OK;
}

warren_device_code free_pinned(void* pointer) {
  FAKE_MEETS("free_pinned");
  pending().settle();
  const std::lock_guard lock(pinned().mutex);
  const auto it = pinned().blocks.find(static_cast<std::byte*>(pointer));
  if (it == pinned().blocks.end()) return failed("not pinned");
  munmap(pointer, it->second);
  pinned().blocks.erase(it);
  return WARREN_DEVICE_OK;
}

warren_device_code allocate(std::int32_t device, std::size_t bytes, void** out) {
  FAKE_MEETS("allocate");
  *out = memory(device).allocate(bytes);
  return *out == nullptr ? failed("the fake device is full", WARREN_DEVICE_NO_MEMORY) : WARREN_DEVICE_OK;
}

warren_device_code release(std::int32_t device, void* pointer) {
  FAKE_MEETS("release");
  pending().settle();
  return memory(device).release(pointer) ? WARREN_DEVICE_OK : failed("not allocated");
}

warren_device_code allocate_shared(std::int32_t device, std::size_t* bytes, void** out, int* fd) {
  FAKE_MEETS("allocate_shared");
  *bytes = (*bytes + Shared::kUnit - 1) / Shared::kUnit * Shared::kUnit;
  const int file = memfd_create("fake-device-shared", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, static_cast<off_t>(*bytes)) != 0) broken("shared fake device memory");
  *out = shared().add(device, file, *bytes);
  *fd = file;
  if (*out != nullptr) return WARREN_DEVICE_OK;
  ::close(file);
  return failed("mmap", WARREN_DEVICE_NO_MEMORY);
}

warren_device_code import_shared(std::int32_t device, int fd, std::size_t bytes, void** out) {
  FAKE_MEETS("import_shared");
  struct stat about {};
  if (fstat(fd, &about) != 0 || about.st_size != static_cast<off_t>(bytes) || bytes % Shared::kUnit != 0) {
    return failed("this is no memory of a device, or not of that size");
  }
  *out = shared().add(device, fd, bytes);
  return *out != nullptr ? WARREN_DEVICE_OK : failed("mmap", WARREN_DEVICE_NO_MEMORY);
}

warren_device_code release_shared(std::int32_t device, void* pointer, std::size_t bytes) {
  FAKE_MEETS("release_shared");
  return shared().remove(device, pointer, bytes) ? WARREN_DEVICE_OK : failed("not shared");
}

warren_device_code make_stream(std::int32_t device, void** out) {
  FAKE_MEETS("make_stream");
  *out = handles().add(new StreamHolder(Stream::make(device)));
  return WARREN_DEVICE_OK;
}

warren_device_code end_stream(std::int32_t, void* stream) {
  FAKE_MEETS("end_stream");
  auto* const holder = static_cast<StreamHolder*>(stream);
  handles().remove(stream);
  (*holder)->end();
  delete holder;
  return WARREN_DEVICE_OK;
}

warren_device_code make_event(std::int32_t device, void** out) {
  FAKE_MEETS("make_event");
  *out = handles().add(new EventHolder(std::make_shared<Event>(device)));
  return WARREN_DEVICE_OK;
}

warren_device_code end_event(std::int32_t, void* event) {
  FAKE_MEETS("end_event");
  handles().remove(event);
  delete static_cast<EventHolder*>(event);
  return WARREN_DEVICE_OK;
}

warren_device_code record(std::int32_t device, void* handle, void* stream) {
  FAKE_MEETS("record");
  const EventHolder event = event_of(handle);
  if (event->device != device) return failed("an event of another device");
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = ++event->recorded;
  }
  return push(device, stream, [event, number](const std::string& failure) {
    const std::lock_guard lock(event->mutex);
    event->reached = number;
    event->failure = failure;
    event->changed.notify_all();
    return failure;
  });
}

warren_device_code wait_for(std::int32_t device, void* stream, void* handle) {
  FAKE_MEETS("wait_for");
  const EventHolder event = event_of(handle);
  std::uint64_t number = 0;
  {
    const std::lock_guard lock(event->mutex);
    number = event->recorded;
  }
  return push(device, stream, [event, number](const std::string& failure) {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->reached >= number; });
    return failure.empty() ? event->failure : failure;
  });
}

warren_device_code query(std::int32_t device, void* handle) {
  FAKE_MEETS("query");
  const EventHolder event = event_of(handle);
  if (event->device != device) return failed("an event of another device");
  const std::lock_guard lock(event->mutex);
  if (event->reached != event->recorded) return WARREN_DEVICE_NOT_READY;
  FAKE_MEETS("query.reached");
  return event->failure.empty() ? WARREN_DEVICE_OK : failed(event->failure);
}

warren_device_code to_host(std::int32_t device, void* to, const void* from, std::size_t bytes, void* stream) {
  FAKE_MEETS("to_host");
  const std::byte* const source = behind(device, from, bytes);
  if (source == nullptr) return failed("a copy from what is not this device's memory");
  if (!pinned().holds(to, bytes)) return failed("a copy to memory that is not pinned");
  return queue(device, stream, "stream.to_host", [=] {
    if (bytes != 0) std::memcpy(to, source, bytes);
  });
}

warren_device_code to_device(std::int32_t device, void* to, const void* from, std::size_t bytes, void* stream) {
  FAKE_MEETS("to_device");
  std::byte* const target = behind(device, to, bytes);
  if (target == nullptr) return failed("a copy to what is not this device's memory");
  if (!pinned().holds(from, bytes)) return failed("a copy from memory that is not pinned");
  return queue(device, stream, "stream.to_device", [=] {
    if (bytes != 0) std::memcpy(target, from, bytes);
  });
}

warren_device_code copy(std::int32_t device, void* to, const void* from, std::size_t bytes, void* stream) {
  FAKE_MEETS("copy");
  std::byte* const target = behind(device, to, bytes);
  const std::byte* const source = behind(device, from, bytes);
  if (source == nullptr || target == nullptr) return failed("a copy of what is not this device's memory");
  return queue(device, stream, "stream.copy", [=] {
    if (bytes != 0) std::memcpy(target, source, bytes);
  });
}

std::atomic<bool> kernels_are_there{true};
void load_kernels() {
  if (!kernels_are_there.exchange(true)) pending().settle();
}

warren_device_code load(std::int32_t) {
  FAKE_MEETS("load");
  load_kernels();
  return WARREN_DEVICE_OK;
}

warren_device_code reduce(std::int32_t device, void* out, const void* const* in, std::size_t count,
                          const warren_device_reduction* asked, void* stream) {
  FAKE_MEETS("reduce");
  load_kernels();
  const warren_device_reduction how = *asked;
  if (const char* why = cuda::why_not_reduce(how); why != nullptr) return failed(why);
  std::vector<const void*> sources;
  for (std::size_t i = 0; i < how.inputs; i++) {
    sources.push_back(behind(device, in[i], cuda::reduced_bytes(how, i, count)));
  }
  std::byte* const target = behind(device, out, cuda::reduced_bytes(how, count));
  for (const void* source : sources) {
    if (source == nullptr || target == nullptr) return failed("an operand is not this device's memory");
  }
  return queue(device, stream, "stream.reduce", [=] { cuda::twins::reduce(target, sources.data(), count, how); });
}

warren_device_code convert(std::int32_t device, void* out, warren_type out_type, const void* in, warren_type in_type,
                           std::size_t count, void* stream) {
  FAKE_MEETS("convert");
  load_kernels();
  if (const char* why = cuda::why_not_convert(out_type, in_type); why != nullptr) return failed(why);
  const std::byte* const source = behind(device, in, cuda::converted_bytes(in_type, count));
  std::byte* const target = behind(device, out, cuda::converted_bytes(out_type, count));
  if (source == nullptr || target == nullptr) return failed("an operand is not this device's memory");
  return queue(device, stream, "stream.convert",
               [=] { cuda::twins::convert(target, out_type, source, in_type, count); });
}

warren_device_code checksum(std::int32_t device, std::uint64_t* out, const void* in, std::size_t bytes, void* stream) {
  FAKE_MEETS("checksum");
  load_kernels();
  const std::size_t blocks = (bytes + WARREN_DEVICE_CHECKSUM_BLOCK - 1) / WARREN_DEVICE_CHECKSUM_BLOCK;
  const std::byte* const source = behind(device, in, bytes);
  std::byte* const target = behind(device, out, blocks * sizeof *out);
  if (source == nullptr || target == nullptr) return failed("an operand is not this device's memory");
  return queue(device, stream, "stream.checksum",
               [=] { cuda::twins::checksum(reinterpret_cast<std::uint64_t*>(target), source, bytes); });
}

// Where the streams find these pieces; `bytes`: of all. Empty: not all of them are this device's memory.
std::vector<warren_device_piece> behind_all(std::int32_t device, const warren_device_piece* pieces, std::size_t count,
                                            std::size_t& bytes) {
  std::vector<warren_device_piece> all;
  bytes = 0;
  for (std::size_t i = 0; i < count; i++) {
    std::byte* const at = behind(device, pieces[i].data, pieces[i].bytes);
    if (at == nullptr) return {};
    all.push_back({at, pieces[i].bytes});
    bytes += pieces[i].bytes;
  }
  return all;
}

warren_device_code pack(std::int32_t device, void* packed, const warren_device_piece* pieces, std::size_t count,
                        void* stream) {
  FAKE_MEETS("pack");
  load_kernels();
  if (const char* why = cuda::why_not_pack(count); why != nullptr) return failed(why);
  std::size_t bytes = 0;
  auto all = behind_all(device, pieces, count, bytes);
  std::byte* const target = behind(device, packed, bytes);
  if (all.size() != count || target == nullptr) return failed("an operand is not this device's memory");
  return queue(device, stream, "stream.pack", [=] { cuda::twins::pack(target, all.data(), all.size()); });
}

warren_device_code unpack(std::int32_t device, const void* packed, const warren_device_piece* pieces, std::size_t count,
                          void* stream) {
  FAKE_MEETS("unpack");
  load_kernels();
  if (const char* why = cuda::why_not_pack(count); why != nullptr) return failed(why);
  std::size_t bytes = 0;
  auto all = behind_all(device, pieces, count, bytes);
  const std::byte* const source = behind(device, packed, bytes);
  if (all.size() != count || source == nullptr) return failed("an operand is not this device's memory");
  return queue(device, stream, "stream.unpack", [=] { cuda::twins::unpack(source, all.data(), all.size()); });
}

warren_device_code nccl_version(std::int32_t* version, const char** file) {
  FAKE_MEETS("nccl_version");
  *version = nccl_says;
  *file = "";
  return WARREN_DEVICE_OK;
}

warren_device_code nccl_id(void* id) {
  FAKE_MEETS("nccl_id");
  std::array<unsigned char, 12> random{};
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) broken("getrandom");
  std::string name = "fake-nccl-";
  for (const unsigned char byte : random) name += "0123456789abcdef"[byte & 15];
  std::memset(id, 0, WARREN_DEVICE_NCCL_ID_BYTES);
  name.copy(static_cast<char*>(id), WARREN_DEVICE_NCCL_ID_BYTES - 1);
  std::thread(be_root, listen_as(name)).detach();
  return WARREN_DEVICE_OK;
}

warren_device_code nccl_join(std::int32_t device, const void* id, std::int32_t size, std::int32_t rank, void** out) {
  FAKE_MEETS("nccl_join");
  auto made = std::make_shared<FakeNccl>(device, std::string(static_cast<const char*>(id)), size, rank);
  made->begin();
  *out = handles().add(new NcclHolder(std::move(made)));
  return WARREN_DEVICE_NOT_READY;
}

warren_device_code nccl_state(void* communicator) {
  FAKE_MEETS("nccl_state");
  return nccl_of(communicator)->state();
}

warren_device_code nccl_exchange(void* communicator, const warren_device_message* messages, std::size_t count,
                                 void* stream) {
  FAKE_MEETS("nccl_exchange");
  const NcclHolder& nccl = nccl_of(communicator);
  FAKE_MEETS(("nccl_exchange." + std::to_string(nccl->rank())).c_str());
  std::vector<FakeNccl::Message> all;
  for (std::size_t i = 0; i < count; i++) {
    std::byte* const at = behind(nccl->device(), messages[i].data, messages[i].bytes);
    if (at == nullptr) return failed("a message is not this device's memory");
    all.push_back({at, messages[i].bytes, messages[i].peer, messages[i].sends != 0});
  }
  const auto queued = queue(nccl->device(), stream, "stream.nccl_exchange", [nccl, all] {
    (void)faults().meet(("stream.nccl_exchange." + std::to_string(nccl->rank())).c_str());
    nccl->exchange(all);
  });
  return queued == WARREN_DEVICE_OK ? WARREN_DEVICE_NOT_READY : queued;
}

warren_device_code nccl_revoke(void* communicator) {
  FAKE_MEETS("nccl_revoke");
  nccl_of(communicator)->end();
  return WARREN_DEVICE_OK;
}

warren_device_code nccl_abort(void* communicator) {
  FAKE_MEETS("nccl_abort");
  FAKE_MEETS(nccl_of(communicator)->device() == 0 ? "nccl_abort.0" : "nccl_abort.1");  // of that device
  handles().remove(communicator);
  nccl_of(communicator)->end();
  delete static_cast<NcclHolder*>(communicator);
  return WARREN_DEVICE_OK;
}

constexpr warren_device_table kTable = {
    .version = WARREN_DEVICE_TABLE_VERSION,
    .bytes = sizeof(warren_device_table),
    .name = "a fake device",
    .error_text = error_text,
    .init = init,
    .locate = locate,
    .allocate_pinned = allocate_pinned,
    .free_pinned = free_pinned,
    .allocate = allocate,
    .release = release,
    .allocate_shared = allocate_shared,
    .import_shared = import_shared,
    .release_shared = release_shared,
    .make_stream = make_stream,
    .end_stream = end_stream,
    .make_event = make_event,
    .end_event = end_event,
    .record = record,
    .wait_for = wait_for,
    .query = query,
    .to_host = to_host,
    .to_device = to_device,
    .copy = copy,
    .reduce = reduce,
    .convert = convert,
    .checksum = checksum,
    .load = load,
    .pack = pack,
    .unpack = unpack,
    .nccl_version = nccl_version,
    .nccl_id = nccl_id,
    .nccl_join = nccl_join,
    .nccl_state = nccl_state,
    .nccl_exchange = nccl_exchange,
    .nccl_revoke = nccl_revoke,
    .nccl_abort = nccl_abort,
};

constexpr FakeControls kControls = {
    .arm = [](const char* where, int after, FakeFault fault) { faults().arm(where, after, fault); },
    .release =
        [] {
          faults().release();
          pending().settle();
        },
    .calls = [](const char* where) { return faults().calls(where); },
    .shared = [] { return shared().pieces(); },
    .say_nccl = [](int version) { nccl_says = version; },
    .unload = [] { kernels_are_there = false; },
    .drop =
        [](int device, void* device_memory) {
          if (!memory(device).release(device_memory)) std::abort();
        },
    .write =
        [](void* device_memory, const void* from, std::size_t bytes) {
          std::byte* const target = behind_any(device_memory, bytes);
          if (target == nullptr) std::abort();
          if (bytes != 0) std::memcpy(target, from, bytes);
        },
    .read =
        [](void* to, const void* device_memory, std::size_t bytes) {
          const std::byte* const source = behind_any(device_memory, bytes);
          if (source == nullptr) std::abort();
          if (bytes != 0) std::memcpy(to, source, bytes);
        },
};

}  // namespace
}  // namespace warren::test

extern "C" __attribute__((visibility("default"))) const warren_device_table* warren_device_table_7(void) {
  return &warren::test::kTable;
}

extern "C" __attribute__((visibility("default"))) const warren::test::FakeControls* fake_device_controls() {
  return &warren::test::kControls;
}
