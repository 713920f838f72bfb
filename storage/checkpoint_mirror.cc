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
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/ranges.h"
#include "storage/files.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace warren::storage {
namespace {

namespace fs = std::filesystem;

constexpr char kManifestName[] = "COMPLETE";
constexpr std::string_view kManifestFamily = "warren-checkpoint-", kManifestFormat = "warren-checkpoint-2";
constexpr char kMagic[] = "WARRCKP1";
constexpr std::uint32_t kShardFormat = 1;
constexpr std::uint32_t kGlobalKind = 1, kLocalKind = 2;
constexpr std::size_t kBlockBytes = limits::kMaxChunkBytes;
constexpr std::size_t kTrailerBytes = 8;
constexpr std::size_t kMostManifestBytes = 4096;
constexpr std::size_t kSumLineBytes = 17;

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie in memory");

std::string sum_line(std::string_view text) {
  char sum[kSumLineBytes + 1];
  std::snprintf(sum, sizeof sum, "%016llx\n", static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return sum;
}

// Whether a manifest, of whatever version, has a checksum as its last line that does not hold.
bool sum_is_wrong(const std::string& manifest) {
  if (manifest.size() < kSumLineBytes) return false;
  const std::size_t sum_at = manifest.size() - kSumLineBytes;
  const std::string sum = manifest.substr(sum_at);
  return sum.find_first_not_of("0123456789abcdef") == kSumLineBytes - 1 &&
         sum != sum_line(std::string_view(manifest).substr(0, sum_at));
}

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

bool is_shard(const std::string& name) {
  return (name.starts_with("global-") || name.starts_with("local-")) && name.find(".tmp") == std::string::npos;
}

// Of ours, under its own name or a temporary one.
bool is_ours(const std::string& name) {
  return name == kManifestName || name.starts_with("global-") || name.starts_with("local-") ||
         (name.starts_with(kManifestName) && name.ends_with(".tmp"));
}

// With the fall back to an older one a timeline begins in which versions are lower than some that were undone.
bool newer(const CheckpointMirror::Checkpoint& a, const CheckpointMirror::Checkpoint& b) {
  return std::pair(a.timeline, a.version) > std::pair(b.timeline, b.version);
}

Status failed(const std::string& what, int error) {
  return {error == ENOSPC || error == EDQUOT ? Code::kExhausted : Code::kUnavailable,
          what + ": " + std::strerror(error)};
}

// From any machine.
std::string writer_name() {
  std::random_device random;
  return std::to_string(::getpid()) + "-" + std::to_string(random());
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
  // kCorrupt: the file ends before. Any other failure says nothing about what is in it.
  Status read_all(const std::string& path, void* bytes, std::size_t size) {
    char* at = static_cast<char*>(bytes);
    while (size > 0) {
      const ssize_t n = ::read(fd_, at, size);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return failed("cannot read " + path, errno);
      if (n == 0) return {Code::kCorrupt, path + " is cut short"};
      at += n;
      size -= static_cast<std::size_t>(n);
    }
    return {};
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

// What the headers of a checkpoint's shards say.
struct CheckpointMirror::Shards {
  std::vector<std::pair<std::string, Header>> files;  // by path
  Ranges global;
  std::set<std::uint64_t> locals;  // ranks

  // Empty: nothing.
  [[nodiscard]] std::string missing(const Checkpoint& c) const {
    const Ranges rest = Ranges(0, c.global_bytes).minus(global);
    if (!rest.empty()) return "byte " + std::to_string(rest.intervals().front().begin) + " of the global state";
    for (std::uint64_t rank = 0; rank < c.locals; ++rank) {
      if (!locals.contains(rank)) return "the local state of rank " + std::to_string(rank);
    }
    return {};
  }
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
  const std::string temporary = path + ".tmp" + writer_name();
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
  if (!file.ok()) return errno == ENOENT ? corrupt("is missing") : failed("cannot read " + path, errno);
  Header h{};
  if (Status s = file.read_all(path, &h, sizeof h); !s.ok()) return s;
  if (std::memcmp(h.magic, kMagic, sizeof h.magic) != 0) return corrupt("is not a shard of a checkpoint");
  if (h.format != kShardFormat) {
    return corrupt("has format " + std::to_string(h.format) + " and this build knows " + std::to_string(kShardFormat) +
                   " only: run the version of Warren that wrote it");
  }
  if (h.checksum != h.sum()) return corrupt("is damaged: the checksum of its header does not hold");
  if (h.job != XXH3_64bits(job_.data(), job_.size())) return corrupt("is of another job");
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (error) return failed("cannot read " + path, error.value());
  if (h.begin > h.end || h.end > h.total_bytes || h.total_bytes > limits::kMaxStateBytes ||
      size != sizeof h + h.size() + kTrailerBytes) {
    return corrupt("is cut short, or longer than it should be");
  }
  return h;
}

Result<CheckpointMirror::Header> CheckpointMirror::shard(const Checkpoint& checkpoint, const std::string& name) const {
  const std::string path = place(checkpoint) + "/" + name;
  auto head = head_of(path);
  if (!head.ok()) return head;
  const Header& h = head.value();
  const bool named = h.kind == kGlobalKind ? name == global_name(h.begin)
                                           : h.kind == kLocalKind && name == "local-" + std::to_string(h.rank);
  if (!named || h.version != checkpoint.version.value || h.timeline != checkpoint.timeline.value) {
    return Status(Code::kCorrupt, path + " holds something else than its name says");
  }
  return head;
}

Result<CheckpointMirror::Shards> CheckpointMirror::shards_of(const Checkpoint& checkpoint) const {
  const std::string directory = place(checkpoint);
  const auto names = names_in(directory);
  if (!names.ok()) return names.status();
  Shards shards;
  for (const std::string& name : names.value()) {
    if (!is_shard(name)) continue;
    const auto head = shard(checkpoint, name);
    if (!head.ok()) return head.status();
    const Header& h = head.value();
    // Of another attempt, with another world or state.
    const bool global = h.kind == kGlobalKind;
    if (h.world_size != checkpoint.world_size || (global && h.total_bytes != checkpoint.global_bytes)) continue;
    if (global) {
      shards.global.add(h.begin, h.end);
    } else {
      shards.locals.insert(h.rank);
    }
    shards.files.emplace_back((fs::path(directory) / name).string(), h);
  }
  return shards;
}

std::string CheckpointMirror::manifest_of(const Checkpoint& checkpoint) const {
  std::string text = std::string(kManifestFormat) + "\njob " + job_ + "\nworld_size " +
                     std::to_string(checkpoint.world_size) + "\nglobal " + std::to_string(checkpoint.global_bytes) +
                     "\nlocals " + std::to_string(checkpoint.locals) + "\n";
  return text + sum_line(text);
}

Result<bool> CheckpointMirror::complete(const Checkpoint& checkpoint) {
  const auto shards = shards_of(checkpoint);
  if (!shards.ok()) return shards.status();
  if (!shards.value().missing(checkpoint).empty()) return false;
  const std::string directory = place(checkpoint);
  if (Status s = make_directory(directory); !s.ok()) return s;
  // All ranks that see it complete write it.
  const std::string path = directory + "/" + kManifestName;
  if (Status s = write_file(path, manifest_of(checkpoint), "." + writer_name()); !s.ok()) return s;
  remove_old();
  return true;
}

Result<std::optional<CheckpointMirror::Checkpoint>> CheckpointMirror::read_manifest(Checkpoint named) const {
  const std::string path = place(named) + "/" + kManifestName;
  const auto text = read_file(path, kMostManifestBytes);
  if (!text.ok()) return text.status();
  if (!text.value()) return std::optional<Checkpoint>();
  std::istringstream lines(*text.value());
  std::string format, job, word;
  std::getline(lines, format);
  if (format.starts_with(kManifestFamily) && format != kManifestFormat && !sum_is_wrong(*text.value())) {
    return of_another_version(path, format, kManifestFormat, directory_);
  }
  std::getline(lines, job);
  lines >> word >> named.world_size >> word >> named.global_bytes >> word >> named.locals;
  if (!lines || *text.value() != manifest_of(named)) {
    return Status(Code::kCorrupt, path + " is damaged, or of another job: its checksum does not hold");
  }
  if (named.world_size == 0 || named.world_size > limits::kMaxWorldSize ||
      named.global_bytes > limits::kMaxStateBytes || (named.locals != 0 && named.locals != named.world_size)) {
    return Status(Code::kCorrupt, path + " names a state that no job has");
  }
  return std::optional(named);
}

CheckpointMirror::Listing CheckpointMirror::list() const {
  Listing listing;
  const auto names = names_in(directory_);
  if (!names.ok()) {
    listing.left_out.push_back(names.status());
    return listing;
  }
  for (const std::string& name : names.value()) {
    const auto named = parse_place(name);
    if (!named) continue;
    const auto found = read_manifest(*named);
    if (!found.ok()) {
      listing.left_out.push_back(found.status());
    } else if (found.value()) {
      listing.complete.push_back(*found.value());
    }
  }
  std::ranges::sort(listing.complete, newer);
  return listing;
}

Status CheckpointMirror::check(const Checkpoint& checkpoint, std::uint64_t most_bytes) const {
  const auto shards = shards_of(checkpoint);
  if (!shards.ok()) return shards.status();
  if (const std::string missing = shards.value().missing(checkpoint); !missing.empty()) {
    return {Code::kCorrupt, place(checkpoint) + " lacks " + missing};
  }
  std::uint64_t bytes = 0;
  for (const auto& [path, head] : shards.value().files) bytes += head.size();
  if (bytes > most_bytes) return {};
  for (const auto& [path, head] : shards.value().files) {
    if (Status s = pass(path, head, nullptr); !s.ok()) return s;
  }
  return {};
}

// Twice: what is given was checked.
Status CheckpointMirror::give(const std::string& path, const Header& head, const Sink& sink) {
  const Status checked = pass(path, head, nullptr);
  return checked.ok() ? pass(path, head, sink) : checked;
}

// Reads all of a shard, and checks it.
Status CheckpointMirror::pass(const std::string& path, const Header& head, const Sink& sink) {
  File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  Header again{};
  if (!file.ok())
    return errno == ENOENT ? Status(Code::kCorrupt, path + " is missing") : failed("cannot read " + path, errno);
  if (Status s = file.read_all(path, &again, sizeof again); !s.ok()) return s;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(hash.get());
  std::vector<std::byte> block;
  for (std::uint64_t at = head.begin; at < head.end; at += block.size()) {
    block.resize(std::min<std::uint64_t>(kBlockBytes, head.end - at));
    if (Status s = file.read_all(path, block.data(), block.size()); !s.ok()) return s;
    XXH3_64bits_update(hash.get(), block.data(), block.size());
    if (sink) sink(at, block);
  }
  std::uint64_t sum = 0;
  if (Status s = file.read_all(path, &sum, sizeof sum); !s.ok()) return s;
  if (sum != XXH3_64bits_digest(hash.get())) {
    return {Code::kCorrupt, path + " is damaged: its checksum does not hold"};
  }
  return {};
}

Status CheckpointMirror::read_global(const Checkpoint& checkpoint, const Sink& sink) const {
  const auto shards = shards_of(checkpoint);
  if (!shards.ok()) return shards.status();
  std::uint64_t done = 0;
  while (done < checkpoint.global_bytes) {
    // Another cut, of an earlier attempt, may overlap.
    const auto& files = shards.value().files;
    const auto found = std::ranges::find_if(files, [done](const auto& file) {
      return file.second.kind == kGlobalKind && file.second.begin <= done && done < file.second.end;
    });
    if (found == files.end()) {
      return {Code::kCorrupt, place(checkpoint) + " has no shard for byte " + std::to_string(done)};
    }
    const Status s = give(found->first, found->second, [&](std::uint64_t first, std::span<const std::byte> bytes) {
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
  const auto head = shard(checkpoint, local_name(rank));
  return head.ok() ? give(place(checkpoint) + "/" + local_name(rank), head.value(), sink) : head.status();
}

// Only files that this class writes, and only directories that are empty then.
void CheckpointMirror::remove_old() const {
  const std::vector<Checkpoint> complete = list().complete;
  const auto names = names_in(directory_);
  if (complete.size() <= kKept || !names.ok()) return;
  const Checkpoint& oldest_kept = complete[kKept - 1];
  for (const std::string& name : names.value()) {
    const auto c = parse_place(name);
    if (!c || !newer(oldest_kept, *c)) continue;
    const std::string directory = (fs::path(directory_) / name).string();
    // The manifest first: what is left after a crash in between is incomplete.
    ::unlink((directory + "/" + kManifestName).c_str());
    const auto files = names_in(directory);
    if (!files.ok()) continue;
    for (const std::string& file : files.value()) {
      if (is_ours(file)) ::unlink((fs::path(directory) / file).c_str());
    }
    ::rmdir(directory.c_str());
  }
}

}  // namespace warren::storage
