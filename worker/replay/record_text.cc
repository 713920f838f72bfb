#include "worker/replay/record_text.h"

#include <cstddef>

namespace warren::worker::replay {
namespace {

constexpr std::size_t kMaxRangesInText = 8;

}  // namespace

bool windowed(RecordKind kind) {
  return kind == RecordKind::kRound || kind == RecordKind::kMessage;
}

RecordKey stream_key(const RecordKey& key) {
  RecordKey out = key;
  if (windowed(key.kind)) out.round.sequence = Sequence(0);
  return out;
}

std::string name_of(const RecordKey& key) {
  const auto version = [&] {
    return key.round.version == kPreamble ? std::string("the preamble")
                                          : "version " + std::to_string(key.round.version.value - 1);
  };
  switch (key.kind) {
    case RecordKind::kRound:
    case RecordKind::kSetup: return to_string(key.round);
    case RecordKind::kGlobal: return "the global state of " + version();
    case RecordKind::kLocal:
      return "rank " + std::to_string(key.round.sequence.value) + "'s local state of " + version();
    case RecordKind::kMessage: return "message " + to_string(key.round);
  }
  return "a record";
}

std::string ranks_text(const std::set<std::int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  std::size_t n = 0;
  for (const std::int32_t rank : ranks) {
    if (n == kMaxRangesInText) return text + " and " + std::to_string(ranks.size() - n) + " more";
    text += (n++ == 0 ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

std::string ranges_text(const Ranges& ranges) {
  std::string text = "bytes ";
  std::size_t n = 0;
  for (const Interval& i : ranges.intervals()) {
    if (n == kMaxRangesInText) {
      return text + " and " + std::to_string(ranges.intervals().size() - n) + " ranges more";
    }
    text += (n++ == 0 ? "" : ", ") + std::to_string(i.begin) + "-" + std::to_string(i.end);
  }
  return text;
}

std::string contradiction(const std::string& a, const RecordInfo& one, const std::string& b, const RecordInfo& other) {
  return "the log of " + a + " has " + to_string(one.fingerprint) + " of " + std::to_string(one.total_bytes) +
         " bytes, that of " + b + " " + to_string(other.fingerprint) + " of " + std::to_string(other.total_bytes) +
         " bytes";
}

}  // namespace warren::worker::replay
