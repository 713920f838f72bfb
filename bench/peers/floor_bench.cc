// The least that an allreduce takes on this hardware, with no fault tolerance, no protocol and no checks: what Warren
// is measured against besides its peers, and nothing to be used. bench/run.py builds it and starts one process a rank.
//
//   --how=shared  buffers of all ranks lie in one mapping; each rank sums its segment of all inputs into all outputs
//   --how=staged  private buffers; inputs and results cross, block by block, an area that stays in the cache
//   --how=read    private buffers, read by process_vm_readv
//   --how=tcp     up to 4 KiB through rank 0, above around a ring; one connection between two ranks
//   --how=stream  no allreduce: each rank sends the next one the 2(K-1)/K of the bytes that a ring sends, and that is
//   all
//   --how=copies  no ranks: for --seconds it copies as the harness does before each sample, on all cores at once, and
//   says how many µs that usually takes
//
// Up to 4 KiB the first three are the same: each rank shows its input, and sums all of them itself.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <barrier>
#include <cerrno>
#include <thread>

#include "bench/harness.h"

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace {

using warren::bench::fail;
using warren::bench::kMaxRanks;

constexpr std::size_t kSmallBytes = 4096;
constexpr std::size_t kStreamedBytes = 8 << 20;  // outputs of more in all leave the caches anyway
constexpr std::size_t kBlockBytes = 1 << 20;     // of the staging area
constexpr std::size_t kPieceBytes = 256 << 10;   // of a copy or a receive
constexpr std::size_t kHugePageBytes = 2 << 20;

[[noreturn]] void fail_errno(const std::string& what) {
  fail(what + ": " + std::strerror(errno));
}

struct About {
  pid_t pid;
  const float* in;
  float* out;
  sockaddr_in address;
};

struct Control {
  alignas(64) std::atomic<std::uint32_t> count;
  alignas(64) std::atomic<std::uint32_t> generation;
  std::array<About, kMaxRanks> about;
  alignas(4096) std::array<std::array<std::array<std::byte, kSmallBytes>, kMaxRanks>, 2> small;
};

// Rank and number of ranks, and how often to look before the core is given away.
struct Place {
  int rank, ranks;
  int spins;
  Control* control;
};

void* map(const std::string& path, std::size_t bytes) {
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail_errno("cannot make " + path);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) fail_errno("cannot map " + path);
  close(fd);
  madvise(memory, bytes, MADV_HUGEPAGE);
  return memory;
}

void barrier(const Place& place) {
  Control& control = *place.control;
  const std::uint32_t generation = control.generation.load(std::memory_order_acquire);
  if (control.count.fetch_add(1) + 1 == static_cast<std::uint32_t>(place.ranks)) {
    control.count.store(0);
    control.generation.store(generation + 1, std::memory_order_release);
    return;
  }
  for (int looks = 0; control.generation.load(std::memory_order_acquire) == generation; ++looks) {
    if (looks >= place.spins) {
      sched_yield();
      continue;
    }
#ifdef __SSE2__
    _mm_pause();
#endif
  }
}

using Vector = float __attribute__((vector_size(64), aligned(4), may_alias));
constexpr std::size_t kVectorFloats = sizeof(Vector) / sizeof(float);

// `to` has to lie at a multiple of 16 bytes if it is to go past the caches.
void store(float* to, Vector v, bool past_caches) {
#ifdef __SSE2__
  if (past_caches) {
    std::array<float, kVectorFloats> parts;
    std::memcpy(parts.data(), &v, sizeof v);
    for (std::size_t i = 0; i < kVectorFloats; i += 4) _mm_stream_ps(to + i, _mm_loadu_ps(&parts[i]));
    return;
  }
#endif
  (void)past_caches;
  *reinterpret_cast<Vector*>(to) = v;
}

using Sources = std::array<const float*, kMaxRanks>;
using Targets = std::array<float*, kMaxRanks>;

// Each of the targets becomes the sum of the sources.
void sum(const Targets& to, int targets, const Sources& from, int sources, std::size_t count, bool past_caches) {
  std::size_t i = 0;
  for (; i + kVectorFloats <= count; i += kVectorFloats) {
    Vector v = *reinterpret_cast<const Vector*>(from[0] + i);
    for (int s = 1; s < sources; ++s) v += *reinterpret_cast<const Vector*>(from[s] + i);
    for (int t = 0; t < targets; ++t) store(to[t] + i, v, past_caches);
  }
  for (; i < count; ++i) {
    float v = 0;
    for (int s = 0; s < sources; ++s) v += from[s][i];
    for (int t = 0; t < targets; ++t) to[t][i] = v;
  }
#ifdef __SSE2__
  if (past_caches) _mm_sfence();
#endif
}

void copy(float* to, const float* from, std::size_t count, bool past_caches) {
  if (!past_caches) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  sum({to}, 1, {from}, 1, count, true);
}

// The elements that a rank sums, at whole vectors.
struct Segment {
  std::size_t begin, size;
};
Segment segment_of(int rank, int ranks, std::size_t count) {
  const auto k = static_cast<std::size_t>(ranks);
  const std::size_t each = ((count + k - 1) / k + kVectorFloats - 1) / kVectorFloats * kVectorFloats;
  const std::size_t begin = std::min(count, each * static_cast<std::size_t>(rank));
  return {begin, std::min(each, count - begin)};
}

// What one size has.
struct Buffers {
  const float* in = nullptr;
  float* out = nullptr;
  std::size_t count = 0;
  [[nodiscard]] std::size_t bytes() const { return count * sizeof(float); }
};

// One barrier: a slot is written again two calls later, when all have come past the call between.
void sum_small(const Place& place, const Buffers& buffers) {
  static std::size_t calls = 0;
  auto& slots = place.control->small[calls++ % 2];
  std::memcpy(slots[static_cast<std::size_t>(place.rank)].data(), buffers.in, buffers.bytes());
  barrier(place);
  Sources from{};
  for (int r = 0; r < place.ranks; ++r) {
    from[static_cast<std::size_t>(r)] = reinterpret_cast<const float*>(slots[static_cast<std::size_t>(r)].data());
  }
  sum({buffers.out}, 1, from, place.ranks, buffers.count, false);
}

// `area`: of each rank an output and an input, `stride` floats apart.
void sum_shared(const Place& place, const Buffers& buffers, float* area, std::size_t stride) {
  barrier(place);
  const Segment mine = segment_of(place.rank, place.ranks, buffers.count);
  Sources from{};
  Targets to{};
  for (std::size_t r = 0; r < static_cast<std::size_t>(place.ranks); ++r) {
    from[r] = area + stride * (2 * r) + mine.begin;
    to[r] = area + stride * (2 * r + 1) + mine.begin;
  }
  const bool past_caches = buffers.bytes() * static_cast<std::size_t>(place.ranks) > kStreamedBytes;
  sum(to, place.ranks, from, place.ranks, mine.size, past_caches);
  barrier(place);
}

// `area`: two blocks for each rank's input, then two for the result.
void sum_staged(const Place& place, const Buffers& buffers, float* area) {
  constexpr std::size_t kBlock = kBlockBytes / sizeof(float);
  const auto ranks = static_cast<std::size_t>(place.ranks);
  const bool past_caches = buffers.bytes() > kStreamedBytes;
  std::size_t half = 0;
  for (std::size_t at = 0; at < buffers.count; at += kBlock, half ^= 1) {
    const std::size_t size = std::min(kBlock, buffers.count - at);
    const auto block = [&](std::size_t owner) { return area + kBlock * (2 * owner + half); };
    std::memcpy(block(static_cast<std::size_t>(place.rank)), buffers.in + at, size * sizeof(float));
    barrier(place);
    const Segment mine = segment_of(place.rank, place.ranks, size);
    Sources from{};
    for (std::size_t r = 0; r < ranks; ++r) from[r] = block(r) + mine.begin;
    sum({block(ranks) + mine.begin}, 1, from, place.ranks, mine.size, false);
    barrier(place);
    copy(buffers.out + at, block(ranks), size, past_caches);
  }
}

void read_from(const About& peer, const float* from, float* to, std::size_t count) {
  const iovec here{to, count * sizeof(float)};
  const iovec there{const_cast<float*>(from), count * sizeof(float)};
  if (process_vm_readv(peer.pid, &here, 1, &there, 1, 0) != static_cast<ssize_t>(here.iov_len)) {
    fail_errno("cannot read another rank's memory");
  }
}

void sum_read(const Place& place, const Buffers& buffers) {
  constexpr std::size_t kPiece = 16 << 10;  // floats
  static std::array<float, kPiece> read;
  const auto& about = place.control->about;
  barrier(place);
  const Segment mine = segment_of(place.rank, place.ranks, buffers.count);
  for (std::size_t at = mine.begin; at < mine.begin + mine.size; at += kPiece) {
    const std::size_t size = std::min(kPiece, mine.begin + mine.size - at);
    const float* so_far = buffers.in + at;
    for (int step = 1; step < place.ranks; ++step) {
      const About& peer = about[static_cast<std::size_t>((place.rank + step) % place.ranks)];
      read_from(peer, peer.in + at, read.data(), size);
      sum({buffers.out + at}, 1, {so_far, read.data()}, 2, size, false);
      so_far = buffers.out + at;
    }
  }
  barrier(place);
  for (int step = 1; step < place.ranks; ++step) {
    const int r = (place.rank + step) % place.ranks;
    const Segment its = segment_of(r, place.ranks, buffers.count);
    const About& peer = about[static_cast<std::size_t>(r)];
    if (its.size > 0) read_from(peer, peer.out + its.begin, buffers.out + its.begin, its.size);
  }
  barrier(place);
}

// Of one rank: to the next and from the last one; to rank 0, and of rank 0 to everybody.
class Sockets {
 public:
  Sockets(const Place& place, const std::string& host, warren::bench::Meeting& meeting) : place_(place) {
    About& self = place.control->about[static_cast<std::size_t>(place.rank)];
    const int listener = new_socket();
    self.address.sin_family = AF_INET;
    if (inet_pton(AF_INET, host.c_str(), &self.address.sin_addr) != 1) fail("--host is no address: " + host);
    socklen_t length = sizeof self.address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&self.address), length) != 0 || listen(listener, kMaxRanks) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&self.address), &length) != 0) {
      fail_errno("cannot listen at " + host);
    }
    meeting.wait();
    next_ = connect_to((place.rank + 1) % place.ranks, Use::kRing);
    if (place.rank != 0) root_ = connect_to(0, Use::kStar);
    for (int i = 0; i < (place.rank == 0 ? place.ranks : 1); ++i) {
      const int fd = accept(listener, nullptr, nullptr);
      if (fd < 0) fail_errno("cannot accept");
      at_once(fd);
      Hello hello{};
      receive(fd, &hello, sizeof hello);
      (hello.use == Use::kRing ? last_ : leaves_[static_cast<std::size_t>(hello.rank)]) = fd;
    }
    close(listener);
  }

  // Through rank 0: no way takes fewer messages.
  void star(const Buffers& buffers) {
    if (place_.rank != 0) {
      send_all(root_, buffers.in, buffers.bytes());
      receive(root_, buffers.out, buffers.bytes());
      return;
    }
    std::array<float, kSmallBytes / sizeof(float)> input;
    const float* so_far = buffers.in;
    for (int r = 1; r < place_.ranks; ++r) {
      receive(leaves_[static_cast<std::size_t>(r)], input.data(), buffers.bytes());
      sum({buffers.out}, 1, {so_far, input.data()}, 2, buffers.count, false);
      so_far = buffers.out;
    }
    for (int r = 1; r < place_.ranks; ++r) {
      send_all(leaves_[static_cast<std::size_t>(r)], buffers.out, buffers.bytes());
    }
  }

  // In step s a rank sends segment rank - s and receives the one before: K-1 steps of sums, then K-1 of results. What
  // has come of a segment goes on at once.
  void ring(const Buffers& buffers) {
    const int steps = 2 * (place_.ranks - 1);
    const auto begin = [&](int segment) {
      return buffers.count * static_cast<std::size_t>(segment) / static_cast<std::size_t>(place_.ranks) * sizeof(float);
    };
    const auto segment_in = [&](int step) { return (place_.rank - step + 2 * place_.ranks) % place_.ranks; };
    const auto size = [&](int segment) { return begin(segment + 1) - begin(segment); };
    const char* in = reinterpret_cast<const char*>(buffers.in);
    char* out = reinterpret_cast<char*>(buffers.out);
    int send_step = 0, receive_step = 0;
    std::size_t sent = 0, received = 0;  // of the steps' segments
    std::size_t torn = 0;                // bytes of an element that has not come whole
    int idle = 0;
    while (send_step < steps || receive_step < steps) {
      bool moved = false;
      bool can_send = false;
      if (send_step < steps) {
        const int segment = segment_in(send_step);
        const std::size_t there = send_step == 0 || receive_step >= send_step ? size(segment)
                                  : receive_step == send_step - 1             ? received
                                                                              : 0;
        if (there > sent) {
          can_send = true;
          const std::size_t n = push((send_step == 0 ? in : out) + begin(segment) + sent, there - sent);
          sent += n;
          moved = n > 0;
        }
        if (sent == size(segment)) ++send_step, sent = 0;
      }
      if (receive_step < steps) {
        const int segment = segment_in(receive_step + 1);
        const std::size_t at = begin(segment) + received;
        const std::size_t left = size(segment) - received;
        if (receive_step < place_.ranks - 1) {
          const std::size_t n = pull(scratch_.data() + torn, std::min(left, kPieceBytes) - torn);
          moved = moved || n > 0;
          const std::size_t whole = (torn + n) / sizeof(float) * sizeof(float);
          torn = torn + n - whole;
          sum({reinterpret_cast<float*>(out + at)}, 1,
              {reinterpret_cast<const float*>(in + at), reinterpret_cast<const float*>(scratch_.data())}, 2,
              whole / sizeof(float), false);
          std::memmove(scratch_.data(), scratch_.data() + whole, torn);
          received += whole;
        } else {
          const std::size_t n = pull(out + at, left);
          moved = moved || n > 0;
          received += n;
        }
        if (received == size(segment)) ++receive_step, received = 0;
      }
      idle = moved ? 0 : idle + 1;
      if (idle > place_.spins) wait(receive_step < steps, can_send);
    }
  }

  void stream(const Buffers& buffers) {
    const auto ranks = static_cast<std::size_t>(place_.ranks);
    const std::size_t bytes = buffers.bytes() * 2 * (ranks - 1) / ranks;
    std::size_t sent = 0, received = 0;
    while (sent < bytes || received < bytes) {
      std::size_t moved = 0;
      if (sent < bytes) {
        const std::size_t at = sent % buffers.bytes();
        moved = push(reinterpret_cast<const char*>(buffers.in) + at, std::min(bytes - sent, buffers.bytes() - at));
        sent += moved;
      }
      if (received < bytes) {
        const std::size_t n = pull(scratch_.data(), std::min(bytes - received, scratch_.size()));
        received += n;
        moved += n;
      }
      if (moved == 0) wait(received < bytes, sent < bytes);
    }
  }

 private:
  enum class Use : int { kRing, kStar };
  struct Hello {
    int rank;
    Use use;
  };

  static int new_socket() {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) fail_errno("no socket");
    return fd;
  }
  static void at_once(int fd) {
    const int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) fail_errno("cannot set TCP_NODELAY");
  }
  int connect_to(int rank, Use use) {
    const int fd = new_socket();
    const sockaddr_in& address = place_.control->about[static_cast<std::size_t>(rank)].address;
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      fail_errno("cannot connect to rank " + std::to_string(rank));
    }
    at_once(fd);
    const Hello hello{place_.rank, use};
    send_all(fd, &hello, sizeof hello);
    return fd;
  }
  static void send_all(int fd, const void* data, std::size_t bytes) {
    if (send(fd, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) fail_errno("cannot send");
  }
  void receive(int fd, void* data, std::size_t bytes) const {
    std::size_t got = 0;
    for (int looks = 0; got < bytes; ++looks) {
      const int flags = looks < place_.spins ? MSG_DONTWAIT : 0;
      const ssize_t n = recv(fd, static_cast<char*>(data) + got, bytes - got, flags);
      if (n > 0) got += static_cast<std::size_t>(n);
      if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) fail_errno("cannot receive");
    }
  }
  // What the socket takes at once.
  std::size_t push(const void* data, std::size_t bytes) const {
    const ssize_t n = send(next_, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) fail_errno("cannot send");
    return n < 0 ? 0 : static_cast<std::size_t>(n);
  }
  std::size_t pull(void* data, std::size_t bytes) const {
    if (bytes == 0) return 0;
    const ssize_t n = recv(last_, data, bytes, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) fail_errno("cannot receive");
    return n < 0 ? 0 : static_cast<std::size_t>(n);
  }
  void wait(bool to_receive, bool to_send) const {
    std::array<pollfd, 2> events{{{to_receive ? last_ : -1, POLLIN, 0}, {to_send ? next_ : -1, POLLOUT, 0}}};
    (void)poll(events.data(), events.size(), -1);
  }

  Place place_;
  int next_ = -1, last_ = -1, root_ = -1;
  std::array<int, kMaxRanks> leaves_{};
  alignas(64) std::array<char, kPieceBytes> scratch_;
};

}  // namespace

// In a good moment, of which there are some in each minute or so: the tenth of all moments that was the fastest.
int say_usual_copy_us(double seconds) {
  const auto cores = static_cast<std::ptrdiff_t>(std::thread::hardware_concurrency());
  std::barrier together(cores);
  std::vector<double> took_us(static_cast<std::size_t>(cores)), longest_us;
  std::atomic<bool> over{false};
  const double begin_us = warren::bench::now_us();
  const auto copy = [&](std::size_t core) {
    warren::bench::Copies copies;
    while (!over) {
      together.arrive_and_wait();
      took_us[core] = copies.us(static_cast<int>(core));
      together.arrive_and_wait();
      if (core == 0) {
        longest_us.push_back(*std::max_element(took_us.begin(), took_us.end()));
        over = warren::bench::now_us() > begin_us + seconds * 1e6;
      }
      together.arrive_and_wait();
      usleep(10'000);
    }
  };
  std::vector<std::jthread> others;
  for (std::size_t core = 1; core < took_us.size(); ++core) others.emplace_back(copy, core);
  copy(0);
  others.clear();
  std::sort(longest_us.begin(), longest_us.end());
  std::printf("%.0f\n", longest_us[longest_us.size() / 10]);
  return 0;
}

int main(int argc, char** argv) {
  const warren::bench::Arguments arguments(argc, argv);
  if (arguments.text("how", "") == "copies")
    return say_usual_copy_us(static_cast<double>(arguments.number("seconds", 40)));
  const int rank = static_cast<int>(arguments.number("rank", 0));
  const int ranks = static_cast<int>(arguments.number("ranks", 1));
  const std::string how = arguments.text("how", "");
  const std::string path = arguments.text("meeting", "");
  warren::bench::Meeting meeting(path, ranks);
  const bool crowded = ranks > static_cast<int>(std::thread::hardware_concurrency());
  const bool over_tcp = how == "tcp" || how == "stream";
  const Place place{rank, ranks, crowded ? (over_tcp ? 0 : 50) : 2'000,
                    static_cast<Control*>(map(path + ".control", sizeof(Control)))};
  // Ranks are not each other's parents, which some systems want for process_vm_readv.
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);

  Buffers buffers;
  warren::bench::Subject subject;
  subject.name = arguments.text("name", "floor");
  subject.prepare = [&](const float* in, float* out, std::size_t count) {
    buffers = {in, out, count};
    About& self = place.control->about[static_cast<std::size_t>(rank)];
    self.pid = getpid();
    self.in = in;
    self.out = out;
  };
  std::function<void()> large;
  std::unique_ptr<Sockets> sockets;
  int allocations = 0;  // one size's input, then its output
  if (how == "shared") {
    const auto sizes = arguments.sizes();
    const std::size_t most = *std::max_element(sizes.begin(), sizes.end());
    const std::size_t stride = (most / kHugePageBytes + 1) * kHugePageBytes;
    auto* area = static_cast<char*>(map(path + ".area", stride * 2 * static_cast<std::size_t>(ranks)));
    subject.allocate = [=, &allocations](std::size_t) {
      const auto at = static_cast<std::size_t>(2 * rank + allocations++ % 2);
      return warren::bench::Buffer(reinterpret_cast<float*>(area + stride * at), [](void*) {});
    };
    large = [&, area, stride] { sum_shared(place, buffers, reinterpret_cast<float*>(area), stride / sizeof(float)); };
  } else if (how == "staged") {
    auto* area = static_cast<float*>(map(path + ".area", kBlockBytes * 2 * static_cast<std::size_t>(ranks + 1)));
    large = [&, area] { sum_staged(place, buffers, area); };
  } else if (how == "read") {
    large = [&] { sum_read(place, buffers); };
  } else if (over_tcp) {
    sockets = std::make_unique<Sockets>(place, arguments.text("host", "127.0.0.1"), meeting);
    large = [&] { sockets->ring(buffers); };
  } else {
    fail("--how=" + how + " is none of shared, staged, read, tcp and stream");
  }
  if (how == "stream") {
    subject.sums = false;
    subject.call = [&] { sockets->stream(buffers); };
  } else {
    subject.call = [&] {
      if (buffers.bytes() > kSmallBytes) return large();
      over_tcp ? sockets->star(buffers) : sum_small(place, buffers);
    };
  }
  warren::bench::run(arguments, meeting, rank, ranks, subject);
  meeting.wait();
  return 0;
}
