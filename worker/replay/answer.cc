// The replayer's other side: what a host answers to those who fetch.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "recovery/check.h"
#include "recovery/fetch_codec.h"
#include "recovery/limits.h"
#include "worker/replay/replayer.h"

namespace warren::worker {
namespace {

using Reply = wire::FetchReply;

RecordKey key_of(const wire::FetchRequest& request, std::uint64_t sequence) {
  return {static_cast<RecordKind>(request.kind()),
          {Timeline(request.timeline()), GroupId(request.group()), Version(request.version()), Sequence(sequence)}};
}

Reply reply_to(const wire::FetchRequest& request) {
  Reply reply;
  reply.set_protocol(request.protocol());
  reply.set_sender(request.receiver());
  reply.set_receiver(request.sender());
  reply.set_epoch(request.epoch());
  reply.set_id(request.id());
  reply.set_data(!request.pieces().empty());
  return reply;
}

void add_entry(std::uint64_t sequence, const RecordInfo& info, Reply& reply) {
  wire::FetchEntry& entry = *reply.add_entries();
  entry.set_sequence(sequence);
  set_fingerprint(info.fingerprint, entry);
  entry.set_total_bytes(info.total_bytes);
}

void add_range(std::uint64_t begin, std::uint64_t end, wire::FetchEntry& entry) {
  wire::ByteRange& range = *entry.add_held();
  range.set_begin(begin);
  range.set_end(end);
}

wire::FetchEntry& last_entry(Reply& reply) {
  return *reply.mutable_entries(reply.entries_size() - 1);
}

// Records that contradict each other are shown as none: whoever needs them finds a gap.
std::optional<RecordInfo> info_of(const RecordKey& key, HostLogReader& reader) {
  auto info = reader.info(key);
  return info.ok() ? info.value() : std::nullopt;
}

Reply list(const wire::FetchRequest& request, HostLogReader& reader) {
  Reply reply = reply_to(request);
  const auto keys =
      reader.list(static_cast<RecordKind>(request.kind()), Timeline(request.timeline()), GroupId(request.group()),
                  Version(request.version()), Sequence(request.first_sequence()), Sequence(request.end_sequence()),
                  limits::kMaxFetchEntries);
  std::uint64_t room = request.most_ranges();
  for (const RecordKey& key : keys) {
    const std::uint64_t sequence = key.round.sequence.value;
    const auto info = info_of(key, reader);
    if (!info) continue;
    const std::uint64_t begin = sequence == request.first_sequence() ? request.begin() : 0;
    const Ranges held = reader.held(key).intersect(begin, info->total_bytes);
    if (room == 0) {
      reply.set_next_sequence(sequence);
      reply.set_next_begin(begin);
      return reply;
    }
    add_entry(sequence, *info, reply);
    for (const Interval& i : held.intervals()) {
      if (room == 0) {
        reply.set_next_sequence(sequence);
        reply.set_next_begin(i.begin);
        return reply;
      }
      add_range(i.begin, i.end, last_entry(reply));
      --room;
    }
  }
  reply.set_next_sequence(keys.size() < limits::kMaxFetchEntries ? request.end_sequence()
                                                                 : keys.back().round.sequence.next().value);
  return reply;
}

// Fills a reply's payloads up to a limit.
class PayloadWriter {
 public:
  explicit PayloadWriter(std::size_t room) : bytes_(new std::byte[room]), room_(room) {}

  [[nodiscard]] std::size_t room() const { return room_ - used_; }
  [[nodiscard]] std::size_t used() const { return used_; }
  [[nodiscard]] std::span<std::byte> next(std::size_t size) { return {bytes_.get() + used_, size}; }
  void take(std::size_t size) { used_ += size; }
  // Of what was written since `from`.
  [[nodiscard]] std::uint64_t checksum(std::size_t from) const {
    return XXH3_64bits(bytes_.get() + from, used_ - from);
  }
  [[nodiscard]] std::unique_ptr<std::byte[]> release() { return std::move(bytes_); }

 private:
  std::unique_ptr<std::byte[]> bytes_;
  std::size_t room_, used_ = 0;
};

}  // namespace

Replayer::Answer Replayer::answer_apart(const wire::FetchRequest& request, HostLogReader& reader) {
  if (request.pieces().empty()) return {list(request, reader), nullptr, 0};
  Reply reply = reply_to(request);
  std::uint64_t asked = 0;
  for (const wire::FetchPiece& p : request.pieces()) {
    asked = std::min<std::uint64_t>(request.most_bytes(), asked + (p.end() - p.begin()));
  }
  PayloadWriter payload(static_cast<std::size_t>(asked));
  std::size_t ranges = limits::kMaxFetchRanges;
  std::size_t entry_from = 0;
  std::optional<RecordInfo> info;
  Ranges held;
  const auto seal = [&] {
    if (payload.used() > entry_from) last_entry(reply).set_checksum(payload.checksum(entry_from));
    entry_from = payload.used();
  };
  std::optional<std::uint64_t> at;  // the sequence that `info` and `held` are of
  bool added = false;
  for (const wire::FetchPiece& piece : request.pieces()) {
    const RecordKey key = key_of(request, piece.sequence());
    if (at != piece.sequence()) {
      seal();
      at = piece.sequence();
      info = info_of(key, reader);
      held = info ? reader.held(key) : Ranges();
      added = false;
    }
    const std::uint64_t end = std::min(piece.end(), info ? info->total_bytes : 0);
    const Ranges there = held.intersect(piece.begin(), std::max(piece.begin(), end));
    for (const Interval& i : there.intervals()) {
      if (payload.room() == 0 || ranges == 0) {
        seal();
        reply.set_next_sequence(piece.sequence());
        reply.set_next_begin(i.begin);
        return {std::move(reply), payload.release(), payload.used()};
      }
      const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(i.end - i.begin, payload.room()));
      // Dropped since it was looked up: not held.
      if (!reader.read(key, i.begin, payload.next(size))) continue;
      if (!added) add_entry(piece.sequence(), *info, reply);
      added = true;
      payload.take(size);
      --ranges;
      add_range(i.begin, i.begin + size, last_entry(reply));
      if (size < i.end - i.begin) {
        seal();
        reply.set_next_sequence(piece.sequence());
        reply.set_next_begin(i.begin + size);
        return {std::move(reply), payload.release(), payload.used()};
      }
    }
  }
  seal();
  reply.set_next_sequence(*at + 1);
  const std::size_t used = payload.used();
  return {std::move(reply), payload.release(), used};
}

wire::FetchReply Replayer::answer(const wire::FetchRequest& request, HostLogReader& reader) {
  Answer apart = answer_apart(request, reader);
  std::size_t at = 0;
  for (wire::FetchEntry& entry : *apart.reply.mutable_entries()) {
    if (!apart.reply.data()) break;
    const auto size = static_cast<std::size_t>(range_bytes(entry));
    entry.set_payload(apart.payloads.get() + at, size);
    at += size;
  }
  WARREN_CHECK(at == apart.payload_bytes, "a reply's payloads are what its ranges say");
  return std::move(apart.reply);
}

}  // namespace warren::worker
