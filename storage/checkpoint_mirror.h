// Copies of committed checkpoints in a directory that outlives the workers' disks: a network file system, or another
// disk. Every rank of the job writes its share; the job can start from it when all else is lost.
//
//   DIR/<job>/v<version>-t<timeline>/      job's name as file_name() makes it; version as the protocol counts (ids.h)
//     global-<first byte, 16 hex digits>   a shard of the global state
//     local-<rank>                         the local state of a rank
//     COMPLETE                             text, written last: what belongs to it
//
// A shard is a header of 88 bytes, the bytes, and their XXH3 (8 bytes); little-endian:
//   "WARRCKP1", format 4, kind 4 (1 global, 2 local), timeline 4, world size 4, version 8, rank of a local state 8,
//   total bytes of the state 8, first byte 8, end byte 8, XXH3 of the job's name 8, reserved 8, XXH3 of what is before
//   8
// COMPLETE has the lines "warren-checkpoint-2", "job NAME", "world_size N", "global BYTES", "locals N", and the XXH3 of
// what is before in 16 hex digits.
//
// Each file is written under another name, synced, renamed, and its directory synced; so it is there as a whole or not
// at all, whenever a writer dies. Names that are none of these belong to somebody else, and are left alone.
//
// Threads: one at a time an object. Objects of different ranks work on one directory at once.
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "storage/host_log.h"

namespace warren::storage {

class CheckpointMirror {
 public:
  static constexpr std::size_t kKept = 2;  // complete versions

  struct Checkpoint {
    Timeline timeline;
    Version version;
    std::uint32_t world_size = 0;
    std::uint64_t global_bytes = 0;
    std::uint32_t locals = 0;  // how many ranks have a local state: none or all
    friend bool operator==(const Checkpoint&, const Checkpoint&) = default;
  };

  // `directory` is made when it is missing. kUnavailable: it cannot be, or cannot be read and written.
  static Result<CheckpointMirror> open(const std::string& directory, const std::string& job);

  // Writes bytes [begin, end) of the global state, or the whole local state of a rank, as `source` holds it under
  // `key`. kUnavailable: the source does not hold it all; or the directory refuses. kExhausted: no space left.
  [[nodiscard]] Status write_global(const Checkpoint& checkpoint, HostLogReader& source, const RecordKey& key,
                                    std::uint64_t begin, std::uint64_t end);
  [[nodiscard]] Status write_local(const Checkpoint& checkpoint, Rank rank, HostLogReader& source, const RecordKey& key,
                                   std::uint64_t total_bytes);

  // Whether all of it is there; if so, says so in its directory, and removes versions before the newest kKept complete
  // ones. Each rank calls it when it has written its share: the last one finds all. Where a directory's contents are
  // seen late (NFS), rank 0 calls it again later.
  [[nodiscard]] Result<bool> complete(const Checkpoint& checkpoint);

  struct Listing {
    std::vector<Checkpoint> complete;  // as manifests say; the newest timeline first, its newest version first
    // What has a manifest, or may have one, and is left out. kCorrupt: damaged. kUnavailable: it cannot be read.
    // kRefused: another version of Warren has written it.
    std::vector<Status> left_out;
  };
  [[nodiscard]] Listing list() const;
  // Whether all shards are there, by their names, lengths and headers; and by their checksums too, if they have at most
  // `most_bytes` together. kCorrupt: the text names what is damaged or missing. kUnavailable: it cannot be read.
  [[nodiscard]] Status check(const Checkpoint& checkpoint, std::uint64_t most_bytes) const;

  // Its folder.
  [[nodiscard]] std::string place(const Checkpoint& checkpoint) const;

  // Gives the global state, or a rank's local one, to `sink` in pieces in order; each is checked before. kCorrupt: a
  // file is damaged, of another job or missing: the text names it. kUnavailable: it cannot be read, and may be whole.
  // What was given before is not to be used then.
  using Sink = std::function<void(std::uint64_t first_byte, std::span<const std::byte> bytes)>;
  [[nodiscard]] Status read_global(const Checkpoint& checkpoint, const Sink& sink) const;
  [[nodiscard]] Status read_local(const Checkpoint& checkpoint, Rank rank, const Sink& sink) const;

 private:
  struct Header;
  struct Shards;

  CheckpointMirror(std::string directory, std::string job) : directory_(std::move(directory)), job_(std::move(job)) {}
  Status write(const Checkpoint& checkpoint, Header header, const std::string& name, HostLogReader& source,
               const RecordKey& key);
  [[nodiscard]] std::string manifest_of(const Checkpoint& checkpoint) const;
  // Of the one in this place, as far as its name tells; nothing: it has no manifest.
  [[nodiscard]] Result<std::optional<Checkpoint>> read_manifest(Checkpoint named) const;
  [[nodiscard]] Result<Header> head_of(const std::string& path) const;
  [[nodiscard]] Result<Shards> shards_of(const Checkpoint& checkpoint) const;
  // Of a file in a checkpoint's place.
  [[nodiscard]] Result<Header> shard(const Checkpoint& checkpoint, const std::string& name) const;
  [[nodiscard]] static Status give(const std::string& path, const Header& head, const Sink& sink);
  [[nodiscard]] static Status pass(const std::string& path, const Header& head, const Sink& sink);
  void remove_old() const;

  std::string directory_;  // of the job
  std::string job_;
};

}  // namespace warren::storage
