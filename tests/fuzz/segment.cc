// A log segment in which anything may stand: readers refuse it, or show what is within its bounds.
//
// The input is a list of patches to a good segment: where (2 bytes, times 8), how many bytes, the bytes. If the first
// byte of the input is odd, the headers that it has touched get their right checksums again.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "recovery/base/check.h"
#include "storage/segment.h"

namespace {

using namespace warren;

constexpr Incarnation kLife{11};
constexpr std::uint64_t kRecords = 6, kVersions = 3;

struct Good {
  Good() : memory(heap_segment(kMinSegmentBytes)), layout(segment_layout(kMinSegmentBytes).value()) {
    auto log = HostLog::create(kLife, memory);
    for (std::uint64_t v = 0; v < kVersions; ++v) {
      for (std::uint64_t s = 0; s < kRecords; ++s) {
        RecordInfo info;
        info.total_bytes = 1000;
        const std::vector<std::byte> payload(s * 32);
        const RecordKey key{RecordKind::kRound, {Timeline(0), kWorldGroup, Version(v), Sequence(s % 3)}};
        WARREN_CHECK(log.value()->publish(key, info, s * 50, payload).ok(), "there is room");
      }
    }
    const auto view = SegmentView::open(memory->bytes(), kLife);
    for (std::uint32_t e = 0; e < kVersions; ++e) {
      SegmentView::Record record;
      for (std::uint64_t at = 0; view.value().record(e, 2, at, record) == SegmentView::Found::kRecord;
           at = record.next) {
        headers.push_back(record.payload_at - kRecordHeaderBytes);
      }
    }
    WARREN_CHECK(headers.size() == kVersions * kRecords, "every record has its place");
  }
  std::shared_ptr<SegmentMemory> memory;
  SegmentLayout layout;
  std::vector<std::uint64_t> headers;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Good good;
  static const auto memory = heap_segment(kMinSegmentBytes);
  static const auto own = heap_segment(kMinSegmentBytes);
  if (size == 0) return 0;
  const bool reseal = *data % 2 != 0;
  const std::span<std::byte> bytes = memory->bytes();
  std::ranges::copy(good.memory->bytes(), bytes.begin());
  for (std::size_t at = 1; at + 3 <= size;) {
    const std::size_t where = (data[at] + data[at + 1] * 256u) * 8 % bytes.size();
    const std::size_t n = std::min<std::size_t>({data[at + 2], size - at - 3, bytes.size() - where});
    std::memcpy(bytes.data() + where, data + at + 3, n);
    at += 3 + n;
  }
  for (const std::uint64_t at : good.headers) {
    if (!reseal) break;
    const std::uint32_t sum = record_checksum(bytes.subspan(at).first<kRecordHeaderBytes>(), kLife, at, 2);
    std::memcpy(bytes.data() + at + kRecordChecksumAt, &sum, sizeof sum);
  }

  auto log = HostLog::create(Incarnation(12), own);
  const Status attached = log.value()->attach(kLife, bytes, memory);
  if (!attached.ok()) {
    WARREN_CHECK(!attached.message().empty(), "a refusal has a reason");
    return 0;
  }
  const auto reader = log.value()->reader();
  for (std::uint64_t v = 0; v < kVersions; ++v) {
    for (const RecordKey& key : reader->list(RecordKind::kRound, Timeline(0), kWorldGroup, Version(v), Sequence(0),
                                             Sequence(UINT64_MAX), 100)) {
      const auto info = reader->info(key);
      if (!info.ok()) continue;
      WARREN_CHECK(info.value().has_value(), "what is listed is known");
      const Ranges held = reader->held(key);
      for (const Interval& i : held.intervals()) {
        WARREN_CHECK(i.end <= info.value()->total_bytes, "a piece is one of its result");
        std::vector<std::byte> out(i.end - i.begin);
        WARREN_CHECK(reader->read(key, i.begin, out), "what is held can be read");
      }
    }
  }
  return 0;
}
