// How a record lies on disk, and what readers of any kind of store share. Inside storage/ and its tests.
//
//   key    41 bytes, big-endian, so that their order is that of the members:
//            kind 1, timeline 4, group 8, version 8, sequence 8, first_byte 8, payload_bytes 4
//   entry  68 bytes, little-endian:
//            collective 1, type 1, op 1, algorithm 1, root 4, count 8, shape 8, site 8, total_bytes 8,
//            timeline 4 and version 8 of the bin whose data have the payload (0: its own),
//            XXH3 of the payload 8, XXH3 of the key and of what is before it in the entry 8
//          then the payload, if it has at most kMostInlineBytes
// A longer payload lies apart, under the same key, so that finding out what is held reads no payloads. One of a state
// that has not changed lies where an older version has written it (storage/unchanged_states.h), under its key there.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "storage/result_store.h"

namespace warren::storage {

inline constexpr std::size_t kRecordKeyBytes = 41;
inline constexpr std::size_t kRecordEntryBytes = 68;
inline constexpr std::size_t kMostInlineBytes = 256;

// What is dropped as a whole.
struct Bin {
  enum class Kind : std::uint8_t { kSetup, kStates, kRounds };
  Kind kind = Kind::kRounds;
  Timeline timeline;  // 0 for kSetup
  Version version;    // 0 for kSetup
  friend constexpr auto operator<=>(const Bin&, const Bin&) = default;

  // Not dropped before the job is finished, or rolled back.
  [[nodiscard]] bool lasting() const { return kind == Kind::kSetup || (kind == Kind::kRounds && version == kPreamble); }
};
[[nodiscard]] Bin bin_of(const RecordKey& key);
[[nodiscard]] bool obsolete(const Horizon& horizon, const Bin& bin);
// "rounds-3-17"
[[nodiscard]] std::string to_string(const Bin& bin);
[[nodiscard]] std::optional<Bin> parse_bin(std::string_view name);

struct StoredRecord {
  RecordKey key;
  RecordInfo info;
  std::uint64_t first_byte = 0;
  std::uint32_t payload_bytes = 0;
  std::uint64_t checksum = 0;  // of the payload
  // If it is inlined: lies where the entry does.
  std::span<const std::byte> inlined_payload{};
  // Whose data have the payload; nullopt: its own bin's.
  std::optional<Bin> lies_in{};

  [[nodiscard]] std::uint64_t end() const { return first_byte + payload_bytes; }
  [[nodiscard]] bool inlined() const { return payload_bytes <= kMostInlineBytes; }
};

using KeyBytes = std::array<unsigned char, kRecordKeyBytes>;
using EntryBytes = std::array<char, kRecordEntryBytes>;

[[nodiscard]] KeyBytes encode_key(const RecordKey& key, std::uint64_t first_byte, std::uint32_t payload_bytes);
[[nodiscard]] inline std::string_view view(const KeyBytes& key) {
  return {reinterpret_cast<const char*>(key.data()), key.size()};
}
// `checksum` of the payload is set by the caller.
[[nodiscard]] EntryBytes encode_entry(std::string_view key, const StoredRecord& record);
// nullopt: damaged, or not a record that this build could have written. Looks at an inlined payload too.
[[nodiscard]] std::optional<StoredRecord> decode_record(std::string_view key, std::string_view entry);
[[nodiscard]] std::uint64_t checksum_of(std::span<const std::byte> payload);

// One life's records, as readers see them. Any thread.
class RecordSource {
 public:
  virtual ~RecordSource() = default;
  [[nodiscard]] virtual Incarnation life() const = 0;
  [[nodiscard]] virtual std::vector<Bin> bins() = 0;
  // Visits the records of key's bin from (key, first_byte) on, by key and first byte, until `visit` returns false.
  // Damaged ones are not visited. What a record refers to lives during the visit.
  using Visit = std::function<bool(const StoredRecord&)>;
  virtual void scan(const RecordKey& from, std::uint64_t first_byte, const Visit& visit) = 0;
  // Copies [begin, begin + out.size()) of the whole result, which the record covers; during its visit. False: it is
  // damaged or gone, which is noted, and it is visited no more.
  [[nodiscard]] virtual bool read(const StoredRecord& record, std::uint64_t begin, std::span<std::byte> out) = 0;
};

using Sources = std::vector<std::shared_ptr<RecordSource>>;

// `sources` is asked at every call. `own`: the life whose records held_by() may count.
[[nodiscard]] std::unique_ptr<HostLogReader> source_reader(std::function<Sources()> sources, Incarnation own);
[[nodiscard]] HeldReport report_of(const Sources& sources, bool verify);

}  // namespace warren::storage
