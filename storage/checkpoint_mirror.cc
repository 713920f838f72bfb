#include "storage/checkpoint_mirror.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <sstream>
#include <utility>

#include "recovery/limits.h"
#include "recovery/ranges.h"
#include "storage/files.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr char kManifestName[] = "COMPLETE";
constexpr char kManifestFormat[] = "warren-checkpoint-1";
constexpr char kMagic[] = "WARRCKP1";
constexpr std::uint32_t kShardFormat = 1;
constexpr std::uint32_t kGlobalKind = 1, kLocalKind = 2;
constexpr std::size_t kBlockBytes = limits::kMaxChunkBytes;
constexpr std::size_t kTrailerBytes = 8;
constexpr std::size_t kMostManifestBytes = 4096;

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie in memory");

// "v3-t1"
std::string place_name(const CheckpointMirror::Checkpoint& c) {
  return "v" + std::to_string(c.version.value) + "-t" + std::to_string(c.timeline.value);
}

std::optional<CheckpointMirror::Checkpoint> parse_place(const std::string& name) {
  const std::size_t dash = name.find("-t");
  if (!name.starts_with('v') || dash == std::string::npos) return std::nullopt;
  CheckpointMirror::Checkpoint c;
  std::from_chars(name.data() + 1, name.data() + dash, c.version.value);
  std::from_chars(name.data() + dash + 2, name.data() + name.size(), c.timeline.value);
  return place_name(c) == name ? std::optional(c) : std::nullopt;
}

std::string global_name(std::uint64_t first_byte) {
  char name[32];
  std::snprintf(name, sizeof name, "global-%016llx", static_cast<unsigned long long>(first_byte));
  return name;
}

std::string local_name(Rank rank) {
  return "local-" + std::to_string(rank.value);
}

// Of ours, under its own name or a temporary one.
bool is_ours(const std::string& name) {
  return name == kManifestName || name.starts_with("global-") || name.starts_with("local-") ||
         (name.starts_with(kManifestName) && name.ends_with(".tmp"));
}

// What is in a directory, by name; nothing if it cannot be read.
std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename());
  }
  std::ranges::sort(names);
  return names;
}

bool newer(const CheckpointMirror::Checkpoint& a, const CheckpointMirror::Checkpoint& b) {
  return std::pair(a.version, a.timeline) > std::pair(b.version, b.timeline);
}

Status failed(const std::string& what, int error) {
  return {error == ENOSPC || error == EDQUOT ? Code::kExhausted : Code::kUnavailable,
          what + ": " + std::strerror(error)};
}

// A file descriptor that closes itself.
class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  [[nodiscard]] bool ok() const { return fd_ >= 0; }

  bool write_all(const void* bytes, std::size_t size) {
    const char* at = static_cast<const char*>(bytes);
    while (size > 0) {
      const ssize_t n = ::write(fd_, at, size);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += n;
      size -= static_cast<std::size_t>(n);
    }
    return true;
  }
  // False: the file ends before, or an error.
  bool read_all(void* bytes, std::size_t size) {
    char* at = static_cast<char*>(bytes);
    while (size > 0) {
      const ssize_t n = ::read(fd_, at, size);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += n;
      size -= static_cast<std::size_t>(n);
    }
    return true;
  }
  bool sync() { return ::fsync(fd_) == 0; }

 private:
  int fd_;
};

}  // namespace

struct CheckpointMirror::Header {
  char magic[8];
  std::uint32_t format, kind, timeline, world_size;
  std::uint64_t version, rank, total_bytes, begin, end, job, reserved, checksum;

  static Header of(const Checkpoint& c, std::uint32_t kind, std::uint64_t rank, const std::string& job) {
    Header h{};
    std::memcpy(h.magic, kMagic, sizeof h.magic);
    h.format = kShardFormat;
    h.kind = kind;
    h.timeline = c.timeline.value;
    h.world_size = c.world_size;
    h.version = c.version.value;
    h.rank = rank;
    h.job = XXH3_64bits(job.data(), job.size());
    return h;
  }
  [[nodiscard]] std::uint64_t sum() const { return XXH3_64bits(this, offsetof(Header, checksum)); }
  [[nodiscard]] std::uint64_t size() const { return end - begin; }
};

Result<CheckpointMirror> CheckpointMirror::open(const std::string& directory, const std::string& job) {
  std::string of_job = directory + "/" + file_name(job);
  if (Status s = make_directory(of_job); !s.ok()) return s.because_of_this("cannot mirror checkpoints");
  if (::access(of_job.c_str(), R_OK | W_OK | X_OK) != 0) return failed("cannot mirror checkpoints in " + of_job, errno);
  return CheckpointMirror(std::move(of_job), job);
}

std::string CheckpointMirror::place(const Checkpoint& checkpoint) const {
  return directory_ + "/" + place_name(checkpoint);
}

Status CheckpointMirror::write_global(const Checkpoint& checkpoint, HostLogReader& source, const RecordKey& key,
                                      std::uint64_t begin, std::uint64_t end) {
  static_assert(sizeof(Header) == 88);
  Header h = Header::of(checkpoint, kGlobalKind, 0, job_);
  h.total_bytes = checkpoint.global_bytes;
  h.begin = begin;
  h.end = end;
  return write(checkpoint, h, global_name(begin), source, key);
}

Status CheckpointMirror::write_local(const Checkpoint& checkpoint, Rank rank, HostLogReader& source,
                                     const RecordKey& key, std::uint64_t total_bytes) {
  Header h = Header::of(checkpoint, kLocalKind, static_cast<std::uint64_t>(rank.value), job_);
  h.total_bytes = h.end = total_bytes;
  return write(checkpoint, h, local_name(rank), source, key);
}

Status CheckpointMirror::write(const Checkpoint& checkpoint, Header header, const std::string& name,
                               HostLogReader& source, const RecordKey& key) {
  header.checksum = header.sum();
  const std::string directory = place(checkpoint), path = directory + "/" + name;
  if (Status s = make_directory(directory); !s.ok()) return s.because_of_this("cannot mirror a checkpoint");
  // Two lives of one rank may write at once: each under a name of its own.
  const std::string temporary = path + ".tmp" + std::to_string(::getpid());
  const auto write_it = [&]() -> Status {
    File file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!file.ok() || !file.write_all(&header, sizeof header)) return failed("cannot write " + temporary, errno);
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
    XXH3_64bits_reset(hash.get());
    std::vector<std::byte> block;
    for (std::uint64_t at = header.begin; at < header.end; at += block.size()) {
      block.resize(std::min<std::uint64_t>(kBlockBytes, header.end - at));
      if (!source.read(key, at, block)) {
        return {Code::kUnavailable, "bytes " + std::to_string(at) + " to " + std::to_string(at + block.size()) +
                                        " of the checkpoint are not held here, or were dropped"};
      }
      XXH3_64bits_update(hash.get(), block.data(), block.size());
      if (!file.write_all(block.data(), block.size())) return failed("cannot write " + temporary, errno);
    }
    const std::uint64_t sum = XXH3_64bits_digest(hash.get());
    if (!file.write_all(&sum, sizeof sum) || !file.sync()) return failed("cannot write " + temporary, errno);
    if (::rename(temporary.c_str(), path.c_str()) != 0) return failed("cannot write " + path, errno);
    return sync_directory(directory);
  };
  Status s = write_it();
  if (s.ok()) return s;
  ::unlink(temporary.c_str());
  return s.because_of_this("cannot mirror version " + std::to_string(checkpoint.version.value) + " to " + path);
}

Result<CheckpointMirror::Header> CheckpointMirror::head_of(const std::string& path) const {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const auto corrupt = [&](const std::string& why) { return Status(Code::kCorrupt, path + " " + why); };
  Header h{};
  if (!file.ok() || !file.read_all(&h, sizeof h)) return corrupt("is missing or cut short");
  if (std::memcmp(h.magic, kMagic, sizeof h.magic) != 0) return corrupt("is not a shard of a checkpoint");
  if (h.format != kShardFormat) {
    return corrupt("has format " + std::to_string(h.format) + " and this build knows " + std::to_string(kShardFormat) +
                   " only: run the version of Warren that wrote it");
  }
  if (h.checksum != h.sum()) return corrupt("is damaged: the checksum of its header does not hold");
  if (h.job != XXH3_64bits(job_.data(), job_.size())) return corrupt("is of another job");
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (h.begin > h.end || h.end > h.total_bytes || h.total_bytes > limits::kMaxResultBytes || error ||
      size != sizeof h + h.size() + kTrailerBytes) {
    return corrupt("is cut short, or longer than it should be");
  }
  return h;
}

Result<bool> CheckpointMirror::complete(const Checkpoint& checkpoint) {
  const std::string directory = place(checkpoint);
  Ranges global;
  std::uint32_t locals = 0;
  for (const std::string& name : names_in(directory)) {
    if (name.find(".tmp") != std::string::npos || name == kManifestName || !is_ours(name)) continue;
    const auto head = head_of((fs::path(directory) / name).string());
    if (!head.ok()) return head.status();
    const Header& h = head.value();
    if (h.world_size != checkpoint.world_size) continue;
    if (h.kind == kGlobalKind && h.total_bytes == checkpoint.global_bytes) global.add(h.begin, h.end);
    if (h.kind == kLocalKind) ++locals;
  }
  if (!global.covers(0, checkpoint.global_bytes) || locals < checkpoint.locals) return false;
  if (Status s = make_directory(directory); !s.ok()) return s;
  std::ostringstream text;
  text << kManifestFormat << "\njob " << job_ << "\nworld_size " << checkpoint.world_size << "\nglobal "
       << checkpoint.global_bytes << "\nlocals " << checkpoint.locals << "\nend\n";
  // All ranks that see it complete write it, from any machine.
  std::random_device random;
  const std::string writer = "." + std::to_string(::getpid()) + "-" + std::to_string(random());
  if (Status s = write_file(directory + "/" + kManifestName, text.str(), writer); !s.ok()) return s;
  remove_old();
  return true;
}

std::vector<CheckpointMirror::Checkpoint> CheckpointMirror::list() const {
  std::vector<Checkpoint> found;
  for (const std::string& name : names_in(directory_)) {
    auto c = parse_place(name);
    if (!c) continue;
    std::ifstream in(directory_ + "/" + name + "/" + kManifestName);
    std::string text(kMostManifestBytes, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<std::size_t>(std::max<std::streamsize>(in.gcount(), 0)));
    std::istringstream lines(text);
    std::string format, job, word, end;
    std::getline(lines, format);
    std::getline(lines, job);
    std::string global, locals;
    lines >> word >> c->world_size >> global >> c->global_bytes >> locals >> c->locals >> end;
    if (lines && format == kManifestFormat && job == "job " + job_ && word == "world_size" && global == "global" &&
        locals == "locals" && end == "end") {
      found.push_back(*c);
    }
  }
  std::ranges::sort(found, newer);
  return found;
}

Status CheckpointMirror::give(const Checkpoint& checkpoint, const std::string& path, const Header& expected,
                              const Sink& sink) const {
  const auto head = head_of(path);
  if (!head.ok()) return head.status();
  const Header& h = head.value();
  if (h.kind != expected.kind || h.version != expected.version || h.timeline != expected.timeline ||
      h.rank != expected.rank || h.world_size != checkpoint.world_size) {
    return {Code::kCorrupt, path + " holds something else than its name says"};
  }
  // Twice: what is given was checked.
  for (const bool check : {true, false}) {
    File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    Header again{};
    if (!file.ok() || !file.read_all(&again, sizeof again)) return {Code::kCorrupt, path + " cannot be read"};
    const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
    XXH3_64bits_reset(hash.get());
    std::vector<std::byte> block;
    for (std::uint64_t at = h.begin; at < h.end; at += block.size()) {
      block.resize(std::min<std::uint64_t>(kBlockBytes, h.end - at));
      if (!file.read_all(block.data(), block.size())) return {Code::kCorrupt, path + " cannot be read"};
      if (check) {
        XXH3_64bits_update(hash.get(), block.data(), block.size());
      } else {
        sink(at, block);
      }
    }
    std::uint64_t sum = 0;
    if (!file.read_all(&sum, sizeof sum)) return {Code::kCorrupt, path + " cannot be read"};
    if (check && sum != XXH3_64bits_digest(hash.get())) {
      return {Code::kCorrupt, path + " is damaged: its checksum does not hold"};
    }
  }
  return {};
}

Status CheckpointMirror::read_global(const Checkpoint& checkpoint, const Sink& sink) const {
  const std::string directory = place(checkpoint);
  std::uint64_t done = 0;
  while (done < checkpoint.global_bytes) {
    // The shard that holds byte `done`: names sort by first byte. Another cut, of an earlier attempt, may overlap.
    std::string found;
    for (const std::string& name : names_in(directory)) {
      if (name.starts_with("global-") && name.find(".tmp") == std::string::npos && name <= global_name(done)) {
        found = name;
      }
    }
    if (found.empty()) return {Code::kCorrupt, directory + " has no shard for byte " + std::to_string(done)};
    const std::string path = (fs::path(directory) / found).string();
    const auto head = head_of(path);
    if (!head.ok()) return head.status();
    if (head.value().end <= done || head.value().total_bytes != checkpoint.global_bytes) {
      return {Code::kCorrupt, directory + " has no shard for byte " + std::to_string(done)};
    }
    const Status s = give(checkpoint, path, Header::of(checkpoint, kGlobalKind, 0, job_),
                          [&](std::uint64_t first, std::span<const std::byte> bytes) {
                            if (first + bytes.size() <= done) return;
                            const std::uint64_t skip = done > first ? done - first : 0;
                            sink(first + skip, bytes.subspan(skip));
                            done = first + bytes.size();
                          });
    if (!s.ok()) return s;
  }
  return {};
}

Status CheckpointMirror::read_local(const Checkpoint& checkpoint, Rank rank, const Sink& sink) const {
  return give(checkpoint, place(checkpoint) + "/" + local_name(rank),
              Header::of(checkpoint, kLocalKind, static_cast<std::uint64_t>(rank.value), job_), sink);
}

// Only files that this class writes, and only directories that are empty then.
void CheckpointMirror::remove_old() const {
  const std::vector<Checkpoint> complete = list();
  if (complete.size() <= kKept) return;
  const Checkpoint& oldest_kept = complete[kKept - 1];
  for (const std::string& name : names_in(directory_)) {
    const auto c = parse_place(name);
    if (!c || !newer(oldest_kept, *c)) continue;
    const std::string directory = (fs::path(directory_) / name).string();
    // The manifest first: what is left after a crash in between is incomplete.
    ::unlink((directory + "/" + kManifestName).c_str());
    for (const std::string& file : names_in(directory)) {
      if (is_ours(file)) ::unlink((fs::path(directory) / file).c_str());
    }
    ::rmdir(directory.c_str());
  }
}

}  // namespace warren::storage
