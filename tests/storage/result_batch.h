// Records whose bytes follow from their keys, so that what is read back can be checked without keeping it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "storage/result_store.h"
#include "tests/storage/record_info.h"

namespace warren::storage {

inline RecordKey round_key(std::uint64_t sequence, std::uint64_t version = 1, std::uint64_t group = 0,
                           std::uint32_t timeline = 1) {
  return {RecordKind::kRound, {Timeline(timeline), GroupId(group), Version(version), Sequence(sequence)}};
}
inline RecordKey state_key(std::uint64_t version, std::uint32_t timeline = 1) {
  return {RecordKind::kGlobal, {Timeline(timeline), kWorldGroup, Version(version), Sequence(0)}};
}
inline RecordKey setup_key(std::uint64_t name) {
  return {RecordKind::kSetup, {Timeline(0), kWorldGroup, Version(0), Sequence(name)}};
}

inline RecordInfo info_of(std::uint64_t total_bytes) {
  return record_info(total_bytes, total_bytes, DataType::kU8, ReduceOp::kSum);
}

// Byte `at` of the whole result of `key`.
inline std::byte byte_of(const RecordKey& key, std::uint64_t at) {
  const std::uint64_t x =
      (key.round.sequence.value * 131 + key.round.version.value * 17 + key.round.group.value + at / 8) *
      0x9e3779b97f4a7c15;
  return static_cast<std::byte>(x >> (8 * (at % 7)));
}

inline std::vector<std::byte> bytes_of(const RecordKey& key, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::byte> bytes(end - begin);
  for (std::uint64_t i = begin; i < end; ++i) bytes[i - begin] = byte_of(key, i);
  return bytes;
}

inline void add(RecordBatch& batch, const RecordKey& key, std::uint64_t total_bytes, std::uint64_t begin,
                std::uint64_t end) {
  const auto out = batch.add(key, info_of(total_bytes), begin, static_cast<std::uint32_t>(end - begin));
  for (std::uint64_t i = begin; i < end; ++i) out[i - begin] = byte_of(key, i);
}

// A batch of one record that holds all of its result.
inline const RecordBatch& one(RecordBatch& batch, const RecordKey& key, std::uint64_t total_bytes) {
  batch.clear();
  add(batch, key, total_bytes, 0, total_bytes);
  return batch;
}

inline bool holds(HostLogReader& reader, const RecordKey& key, std::uint64_t begin, std::uint64_t end) {
  std::vector<std::byte> out(end - begin);
  return reader.read(key, begin, out) && out == bytes_of(key, begin, end);
}

}  // namespace warren::storage
