// The loop that times a collective, the same for Warren and for every program that it is compared with.
//
// A sample is the time of a batch of calls in a row, from the earliest start to the latest end over all ranks, divided
// by the batch. Ranks meet between batches in a futex barrier in shared memory, which costs the measured program
// nothing. After the first call and after each sample, the samples that are not counted among them, every rank looks at
// each element of its output, as the last call has left it; before the sample it was filled with NaNs. A program that
// works in place would sum its sums: it has zeros in calls that are timed in a batch, and one more call, not timed, on
// the true input is checked after them.
//
// Machines that share their processor have bad moments: for seconds to minutes copies within the cache take 1.75 times
// as long, and yields 1.2 times, while arithmetic goes on as ever (measured on two virtual cores of an AMD EPYC).
// Before and after each sample as many ranks as there are cores copy, and where that takes much longer than usual the
// sample is made again. The same for all programs.
#pragma once

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace warren::bench {

constexpr int kMaxRanks = 64;

[[noreturn]] inline void fail(const std::string& why) {
  std::fprintf(stderr, "bench: %s\n", why.c_str());
  std::exit(1);
}

inline double now_us() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) * 1e-3;
}

// User and system time of this process.
inline double cpu_us() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

// --name=value arguments.
class Arguments {
 public:
  Arguments(int argc, char** argv) : arguments_(argv + 1, argv + argc) {}

  [[nodiscard]] std::string text(const std::string& name, const std::string& otherwise) const {
    const std::string prefix = "--" + name + "=";
    for (const auto& argument : arguments_) {
      if (argument.compare(0, prefix.size(), prefix) == 0) return argument.substr(prefix.size());
    }
    return otherwise;
  }
  [[nodiscard]] long number(const std::string& name, long otherwise) const {
    const std::string value = text(name, "");
    if (value.empty()) return otherwise;
    char* end = nullptr;
    const long number = std::strtol(value.c_str(), &end, 10);
    if (*end != '\0') fail("--" + name + "=" + value + " is not a number");
    return number;
  }
  // "4,1K,16M" in bytes.
  [[nodiscard]] std::vector<std::size_t> sizes() const {
    std::vector<std::size_t> out;
    const std::string value = text("sizes", "4,1K,64K,1M,16M,100M");
    for (const char* at = value.c_str(); *at != '\0';) {
      char* end = nullptr;
      std::size_t bytes = std::strtoull(at, &end, 10);
      if (end == at) fail("--sizes=" + value + " is not a list of sizes");
      if (*end == 'K') bytes <<= 10;
      if (*end == 'M') bytes <<= 20;
      if (*end == 'K' || *end == 'M') ++end;
      if (*end != ',' && *end != '\0') fail("--sizes=" + value + " is not a list of sizes");
      out.push_back(bytes);
      at = *end == ',' ? end + 1 : end;
    }
    return out;
  }

 private:
  std::vector<std::string> arguments_;
};

// What the ranks share: a barrier, and the times of the sample at hand.
class Meeting {
 public:
  // `path` is a new file for each run, in a file system in memory.
  Meeting(const std::string& path, int ranks) : ranks_(ranks) {
    if (ranks > kMaxRanks) fail("at most 64 ranks");
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof(Shared)) != 0) fail("cannot make " + path + ": " + std::strerror(errno));
    void* memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("cannot map " + path);
    close(fd);
    shared_ = static_cast<Shared*>(memory);
  }

  // `meanwhile`, if not empty: called now and then by who waits.
  void wait(const std::function<void()>& meanwhile = nullptr) {
    const std::uint32_t generation = shared_->generation.load();
    if (shared_->count.fetch_add(1) + 1 == static_cast<std::uint32_t>(ranks_)) {
      shared_->count.store(0);
      shared_->generation.fetch_add(1);
      futex(FUTEX_WAKE, INT_MAX);
    } else {
      constexpr timespec kNowAndThen{0, 50'000'000};
      while (shared_->generation.load() == generation) {
        futex(FUTEX_WAIT, static_cast<int>(generation), meanwhile ? &kNowAndThen : nullptr);
        if (meanwhile) meanwhile();
      }
    }
  }

  struct Shared {
    std::atomic<std::uint32_t> count, generation, batch, go_on;
    std::atomic<std::uint32_t> made_again;
    double start_us[kMaxRanks], end_us[kMaxRanks], cpu_us[kMaxRanks], copy_us[kMaxRanks];
    std::atomic<std::uint64_t> checked, wrong;  // elements
    std::atomic<std::uint64_t> written;         // bytes
  };
  [[nodiscard]] Shared& shared() { return *shared_; }

 private:
  void futex(int operation, int value, const timespec* longest = nullptr) {
    syscall(SYS_futex, &shared_->generation, operation, value, longest, nullptr, 0);
  }

  int ranks_;
  Shared* shared_;
};

// Element `i` of a rank's input, in [-1, 1): splitmix64.
inline float element(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = seed * 0x9E3779B97F4A7C15ULL + i * 0xD1342543DE82EF95ULL + 0x632BE59BD9B4E019ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  z ^= z >> 31;
  return static_cast<float>(static_cast<std::int32_t>(z >> 32)) * (1.0F / 2147483648.0F);
}

inline std::uint64_t seed_of(int rank, std::size_t bytes) {
  return static_cast<std::uint64_t>(rank) + 1 + bytes * 131;
}

// The collective that is measured. Of `count` elements, those of the larger buffer, each rank has a part. The root is
// rank 0.
//
//   message      rank 2i sends `count` elements to rank 2i + 1, which sends as many back: a time is that of both ways
//   allgatherv   the parts of even ranks are half as long, those of odd ranks half as long again
class Collective {
 public:
  enum class Kind : std::uint8_t {
    kAllreduce,
    kReduce,
    kBroadcast,
    kBarrier,
    kAllgather,
    kAllgatherv,
    kReduceScatter,
    kGather,
    kScatter,
    kAllToAll,
    kMessage
  };
  static constexpr std::string_view kNames[] = {"allreduce", "reduce",     "broadcast",      "barrier",
                                                "allgather", "allgatherv", "reduce_scatter", "gather",
                                                "scatter",   "all_to_all", "message"};

  Collective(const std::string& name, int rank, int ranks) : rank_(rank), ranks_(ranks) {
    const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
    if (found == std::end(kNames)) fail("no such collective: " + name);
    kind_ = static_cast<Kind>(found - std::begin(kNames));
    const bool in_pairs = kind_ == Kind::kMessage || kind_ == Kind::kAllgatherv;
    if (in_pairs && ranks % 2 != 0) fail(name + " is measured with an even number of ranks");
  }
  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] int peer() const { return rank_ ^ 1; }
  [[nodiscard]] std::size_t part(std::size_t count) const {
    const auto all = static_cast<std::size_t>(ranks_);
    if (count % all != 0) fail("sizes have a whole number of elements for each rank");
    return count / all;
  }
  // The ranks' parts of an allgatherv.
  [[nodiscard]] std::vector<std::size_t> parts(std::size_t count) const {
    if (part(count) % 2 != 0) fail("sizes have an even number of elements for each rank of an allgatherv");
    std::vector<std::size_t> parts;
    for (int r = 0; r < ranks_; ++r) parts.push_back(r % 2 == 0 ? part(count) / 2 : part(count) / 2 * 3);
    return parts;
  }
  [[nodiscard]] std::size_t in(std::size_t count) const {
    switch (kind_) {
      case Kind::kBarrier: return 0;
      case Kind::kBroadcast:
      case Kind::kScatter: return rank_ == 0 ? count : 0;
      case Kind::kAllgather:
      case Kind::kGather: return part(count);
      case Kind::kAllgatherv: return parts(count)[static_cast<std::size_t>(rank_)];
      case Kind::kAllreduce:
      case Kind::kReduce:
      case Kind::kReduceScatter:
      case Kind::kAllToAll:
      case Kind::kMessage: return count;
    }
    fail("no such collective");
  }
  [[nodiscard]] std::size_t out(std::size_t count) const {
    switch (kind_) {
      case Kind::kBarrier: return 0;
      case Kind::kBroadcast: return rank_ == 0 ? 0 : count;
      case Kind::kReduce:
      case Kind::kGather: return rank_ == 0 ? count : 0;
      case Kind::kReduceScatter:
      case Kind::kScatter: return part(count);
      case Kind::kAllreduce:
      case Kind::kAllgather:
      case Kind::kAllgatherv:
      case Kind::kAllToAll:
      case Kind::kMessage: return count;
    }
    fail("no such collective");
  }
  [[nodiscard]] bool sums() const {
    return kind_ == Kind::kAllreduce || kind_ == Kind::kReduce || kind_ == Kind::kReduceScatter;
  }
  // Where this rank's output begins in the sums of all inputs.
  [[nodiscard]] std::size_t sum_at(std::size_t count) const {
    return kind_ == Kind::kReduceScatter ? static_cast<std::size_t>(rank_) * part(count) : 0;
  }
  // This rank's output of a collective that only moves elements.
  [[nodiscard]] std::vector<float> moved(std::size_t count) const {
    std::vector<float> result;
    result.reserve(out(count));
    const auto append = [&](int from, std::size_t at, std::size_t elements) {
      for (std::size_t i = 0; i < elements; ++i)
        result.push_back(element(seed_of(from, count * sizeof(float)), at + i));
    };
    if (out(count) == 0) return result;
    switch (kind_) {
      case Kind::kBroadcast: append(0, 0, count); break;
      case Kind::kScatter: append(0, static_cast<std::size_t>(rank_) * part(count), part(count)); break;
      case Kind::kAllgather:
      case Kind::kGather:
        for (int r = 0; r < ranks_; ++r) append(r, 0, part(count));
        break;
      case Kind::kAllgatherv:
        for (int r = 0; r < ranks_; ++r) append(r, 0, parts(count)[static_cast<std::size_t>(r)]);
        break;
      case Kind::kAllToAll:
        for (int r = 0; r < ranks_; ++r) append(r, static_cast<std::size_t>(rank_) * part(count), part(count));
        break;
      case Kind::kMessage: append(peer(), 0, count); break;
      case Kind::kBarrier:
      case Kind::kAllreduce:
      case Kind::kReduce:
      case Kind::kReduceScatter: break;
    }
    return result;
  }

 private:
  Kind kind_{};
  int rank_, ranks_;
};

// The sums of the inputs, for all sizes, in memory that the ranks share: each computes a part of it. What a collective
// only moves each rank computes for itself.
class Expected {
 public:
  // `path`: a new file for each run, in a file system in memory.
  Expected(const std::string& path, std::size_t most_bytes) : bytes_(std::max<std::size_t>(most_bytes, 1)) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes_)) != 0) fail("cannot make " + path);
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("cannot map " + path);
    close(fd);
    sums_ = static_cast<float*>(memory);
  }
  Expected(const Expected&) = delete;
  Expected& operator=(const Expected&) = delete;
  ~Expected() { munmap(sums_, bytes_); }

  // This rank's part; whole when all ranks have been here.
  void compute(int rank, int ranks, std::size_t count, const Collective& collective) {
    moved_.clear();
    sum_at_ = collective.sum_at(count);
    if (!collective.sums()) {
      moved_ = collective.moved(count);
      return;
    }
    const auto begin_of = [&](int r) { return count * static_cast<std::size_t>(r) / static_cast<std::size_t>(ranks); };
    for (std::size_t i = begin_of(rank); i < begin_of(rank + 1); ++i) {
      double sum = 0;
      for (int r = 0; r < ranks; ++r) sum += static_cast<double>(element(seed_of(r, count * sizeof(float)), i));
      sums_[i] = static_cast<float>(sum);
    }
  }

  // How many elements of this rank's output are wrong; fills them with NaNs on the way.
  std::size_t check(float* result, std::size_t count, int ranks) const {
    const float* const expected = moved_.empty() ? sums_ + sum_at_ : moved_.data();
    const float most = moved_.empty() ? 1e-5F * static_cast<float>(ranks) : 0;
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < count; ++i) {
      wrong += static_cast<std::size_t>(!(std::fabs(result[i] - expected[i]) <= most));
      result[i] = std::numeric_limits<float>::quiet_NaN();
    }
    return wrong;
  }

 private:
  std::size_t bytes_;
  float* sums_;
  std::size_t sum_at_ = 0;
  std::vector<float> moved_;
};

// Bytes for a disk that this process has given to the page cache or past it; 0 where the system does not say.
inline std::uint64_t written_bytes() {
  std::FILE* file = std::fopen("/proc/self/io", "r");
  if (file == nullptr) return 0;
  unsigned long long bytes = 0;
  for (char line[128]; std::fgets(line, sizeof line, file) != nullptr;) {
    if (std::sscanf(line, "write_bytes: %llu", &bytes) == 1) break;
  }
  std::fclose(file);
  return bytes;
}

using Buffer = std::unique_ptr<float, std::function<void(void*)>>;

// The program under measurement.
struct Subject {
  std::string name;
  bool in_place = false;
  // False: it only moves as many bytes, and there is nothing to check.
  bool sums = true;
  // Called once for each size, before `call`. `count`: elements of the larger buffer.
  std::function<void(const float* in, float* out, std::size_t count)> prepare;
  // One blocking call from in to out.
  std::function<void()> call;
  // Between samples, not timed; all ranks. May be empty.
  std::function<void()> rest;
  // Called every 50 ms by a rank that waits for the others between samples. May be empty.
  std::function<void()> meanwhile;
  // Where its buffers come from. Empty: from the heap.
  std::function<Buffer(std::size_t bytes)> allocate;
};

inline Buffer allocate(const Subject& subject, std::size_t bytes) {
  if (subject.allocate) return subject.allocate(bytes);
  void* memory = nullptr;
  if (posix_memalign(&memory, 4096, bytes + 64) != 0) fail("out of memory");
  return {static_cast<float*>(memory), std::free};
}

// Above this a call takes so long that few samples have to do.
constexpr std::size_t kFewSamplesBytes = std::size_t{128} << 20;
constexpr long kFewSamples = 3;

// Between samples, of all programs alike. Warren's checkpoint is written to disk meanwhile: by as many processes as
// there are ranks, with some syncs each.
constexpr useconds_t kRestUs = 30'000;

// What tells a bad moment from others: 8 MiB within 2 MiB of the cache, on one core.
class Copies {
 public:
  // `index`: of the core, among those that the caller may use.
  double us(int index) {
    cpu_set_t may_use, one;
    if (sched_getaffinity(0, sizeof may_use, &may_use) != 0) fail("no affinity");
    CPU_ZERO(&one);
    for (int core = 0, i = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &may_use) && i++ == index % CPU_COUNT(&may_use)) CPU_SET(core, &one);
    }
    sched_setaffinity(0, sizeof one, &one);
    const double us = copy_us();
    sched_setaffinity(0, sizeof may_use, &may_use);
    return us;
  }

 private:
  double copy_us() {
    const double before_us = now_us();
    for (int i = 0; i < 8; ++i) {
      std::memcpy(to_.data(), from_.data(), to_.size());
      asm volatile("" : : "r"(to_.data()) : "memory");
    }
    return now_us() - before_us;
  }

  std::vector<char> from_ = std::vector<char>(std::size_t{1} << 20), to_ = from_;
};
constexpr double kBadMoment = 1.25;           // times as long as usual
constexpr double kMostInBadMomentsUs = 25e6;  // that one run spends on samples that are made again

// Runs every size of --sizes and appends one JSON object a size to --json_file (rank 0).
// Other arguments: --collective (allreduce by default), --samples (at most 3 above 128 MiB), --batch_us (the batch is
// as many calls as take about this long), --cap_s for one size,
// --usual_copy_us (of Copies, on all cores at once; 0: every sample counts).
inline void run(const Arguments& arguments, Meeting& meeting, int rank, int ranks, Subject& subject) {
  const long most_samples = arguments.number("samples", 9);
  const double batch_us = static_cast<double>(arguments.number("batch_us", 10'000));
  const double cap_us = static_cast<double>(arguments.number("cap_s", 12)) * 1e6;
  const std::string json_file = arguments.text("json_file", "/dev/stdout");
  const double most_copy_us = kBadMoment * static_cast<double>(arguments.number("usual_copy_us", 0));
  const int copying = std::min(ranks, static_cast<int>(std::thread::hardware_concurrency()));
  Copies copies;
  double bad_us = 0;  // rank 0's
  auto& shared = meeting.shared();
  const Collective collective(arguments.text("collective", "allreduce"), rank, ranks);
  if (subject.in_place && collective.kind() != Collective::Kind::kAllreduce) {
    fail("only allreduces are measured in place");
  }
  const std::vector<std::size_t> sizes = arguments.sizes();
  Expected expected(arguments.text("meeting", "") + ".expected", *std::max_element(sizes.begin(), sizes.end()));
  for (const std::size_t bytes : sizes) {
    const std::size_t count = bytes / sizeof(float);
    const std::size_t in_count = collective.in(count), out_count = collective.out(count);
    const Buffer in = allocate(subject, in_count * sizeof(float));
    const Buffer out = allocate(subject, out_count * sizeof(float));
    for (std::size_t i = 0; i < in_count; ++i) in.get()[i] = element(seed_of(rank, bytes), i);
    expected.compute(rank, ranks, count, collective);
    const auto poison = [&] { std::fill_n(out.get(), out_count, std::numeric_limits<float>::quiet_NaN()); };
    const auto fill = [&] { std::memcpy(out.get(), in.get(), bytes); };
    const auto clear = [&] { std::memset(out.get(), 0, bytes); };
    const auto check = [&] {
      if (!subject.sums) return;
      shared.wrong.fetch_add(expected.check(out.get(), out_count, ranks));
      shared.checked.fetch_add(out_count);
    };
    subject.in_place ? fill() : poison();
    if (rank == 0) shared.checked = shared.wrong = shared.written = 0;
    subject.prepare(subject.in_place ? out.get() : in.get(), out.get(), count);
    meeting.wait(subject.meanwhile);
    subject.call();
    meeting.wait(subject.meanwhile);
    check();
    if (subject.in_place) clear();
    meeting.wait(subject.meanwhile);

    const int warm = bytes >= (std::size_t{64} << 20) ? 1 : bytes >= (std::size_t{1} << 20) ? 4 : 30;
    for (int i = 0; i < warm; ++i) subject.call();
    const double warm_start_us = now_us();
    for (int i = 0; i < warm; ++i) subject.call();
    if (rank == 0) {
      const double one_us = (now_us() - warm_start_us) / warm;
      shared.batch = static_cast<std::uint32_t>(std::clamp(batch_us / one_us, 1.0, 20'000.0));
    }
    meeting.wait(subject.meanwhile);
    const std::uint32_t batch = shared.batch;

    const long samples = bytes > kFewSamplesBytes ? std::min(most_samples, kFewSamples) : most_samples;
    std::vector<double> times_us, cpu_times_us;
    std::size_t bad = 0, repeats = 0;  // of those that count; of those that do not
    // All ranks; true at rank 0 if this is a bad moment.
    const auto look = [&] {
      if (most_copy_us == 0) return false;
      if (rank < copying) shared.copy_us[rank] = copies.us(rank);
      meeting.wait(subject.meanwhile);
      return *std::max_element(shared.copy_us, shared.copy_us + copying) > most_copy_us;
    };
    double begin_us = now_us();
    const std::uint64_t written_before = written_bytes();
    if (!subject.in_place) poison();
    for (long sample = 0; sample <= samples; ++sample) {  // the first is not counted
      if (subject.rest) subject.rest();
      ::usleep(kRestUs);
      if (subject.in_place) batch == 1 ? fill() : clear();
      meeting.wait(subject.meanwhile);
      const double look_us = now_us();
      bool bad_moment = look();
      const double cpu_before_us = cpu_us();
      shared.start_us[rank] = now_us();
      for (std::uint32_t i = 0; i < batch; ++i) subject.call();
      shared.end_us[rank] = now_us();
      shared.cpu_us[rank] = cpu_us() - cpu_before_us;
      meeting.wait(subject.meanwhile);
      bad_moment = look() || bad_moment;
      if (rank == 0) shared.made_again = bad_moment && sample > 0 && bad_us < kMostInBadMomentsUs;
      meeting.wait(subject.meanwhile);
      const bool made_again = shared.made_again != 0;
      if (made_again) {
        sample--;
        repeats++;
        bad_us += now_us() - look_us;
        begin_us += now_us() - look_us;
      } else if (sample > 0) {
        bad += static_cast<std::size_t>(bad_moment);
        const double first = *std::min_element(shared.start_us, shared.start_us + ranks);
        const double last = *std::max_element(shared.end_us, shared.end_us + ranks);
        double cpu = 0;
        for (int r = 0; r < ranks; ++r) cpu += shared.cpu_us[r];
        times_us.push_back((last - first) / batch);
        cpu_times_us.push_back(cpu / batch);
      }
      if (subject.in_place && batch > 1) {
        fill();
        meeting.wait(subject.meanwhile);
        subject.call();
      }
      check();
      if (rank == 0) shared.go_on = sample < 3 || now_us() - begin_us < cap_us;
      meeting.wait(subject.meanwhile);
      if (shared.go_on == 0) break;
    }
    shared.written.fetch_add(written_bytes() - written_before);
    meeting.wait(subject.meanwhile);
    if (rank == 0) {
      std::sort(times_us.begin(), times_us.end());
      std::sort(cpu_times_us.begin(), cpu_times_us.end());
      std::FILE* file = std::fopen(json_file.c_str(), "a");
      if (file == nullptr) fail("cannot write " + json_file);
      std::fprintf(
          file,
          "{\"program\":\"%s\",\"ranks\":%d,\"bytes\":%zu,\"median_us\":%.2f,\"min_us\":%.2f,\"max_us\":%.2f,"
          "\"cpu_us\":%.2f,\"samples\":%zu,\"bad\":%zu,\"repeats\":%zu,\"batch\":%u,\"written\":%llu,\"checked\":%llu,"
          "\"wrong\":%llu}\n",
          subject.name.c_str(), ranks, bytes, times_us[times_us.size() / 2], times_us.front(), times_us.back(),
          cpu_times_us[cpu_times_us.size() / 2], times_us.size(), bad, repeats, batch,
          static_cast<unsigned long long>(shared.written.load()),
          static_cast<unsigned long long>(shared.checked.load()), static_cast<unsigned long long>(shared.wrong.load()));
      std::fclose(file);
    }
    meeting.wait(subject.meanwhile);
  }
}

}  // namespace warren::bench
