// The replayer's other side: what a host answers to those who fetch.
#include <algorithm>
#include <utility>

#include "recovery/base/check.h"
#include "recovery/base/limits.h"
#include "recovery/wire/fetch_codec.h"
#include "storage/xxh3.h"
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
  reply.set_generation(request.generation());
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
    const Ranges held = reader.held_within(key, begin, info->total_bytes);
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

// Puts the bytes of pieces into an answer, up to a limit.
class Filler {
 public:
  Filler(const wire::FetchRequest& request, HostLogReader& reader, Replayer::Answer& answer)
      : request_(request), reader_(reader), answer_(answer) {
    for (const wire::FetchPiece& p : request.pieces()) {
      room_ = std::min<std::uint64_t>(request.most_bytes(), room_ + (p.end() - p.begin()));
    }
    answer.payloads = std::make_unique_for_overwrite<std::byte[]>(room_);
  }

  void fill() {
    for (const wire::FetchPiece& piece : request_.pieces()) {
      if (sequence_ != piece.sequence()) begin_entry(piece.sequence());
      if (!info_ || piece.begin() >= info_->total_bytes) continue;
      const Ranges there = reader_.held_within(key_of(request_, piece.sequence()), piece.begin(),
                                               std::min(piece.end(), info_->total_bytes));
      for (const Interval& i : there.intervals()) {
        if (const std::uint64_t end = add(i); end < i.end) return finish(piece.sequence(), end);
      }
    }
    finish(*sequence_ + 1, 0);
  }

 private:
  void begin_entry(std::uint64_t sequence) {
    seal();
    sequence_ = sequence;
    info_ = info_of(key_of(request_, sequence), reader_);
    added_ = false;
  }
  // How far there was room.
  std::uint64_t add(const Interval& i) {
    if (ranges_ == 0) return i.begin;
    const auto size = static_cast<std::size_t>(std::min<std::uint64_t>(i.end - i.begin, room_ - used()));
    if (size == 0) return i.begin;
    // Dropped since it was looked up: not held.
    if (!reader_.read(key_of(request_, *sequence_), i.begin, {answer_.payloads.get() + used(), size})) return i.end;
    if (!added_) add_entry(*sequence_, *info_, answer_.reply);
    added_ = true;
    --ranges_;
    add_range(i.begin, i.begin + size, last_entry(answer_.reply));
    answer_.payload_bytes += size;
    return i.begin + size;
  }
  void seal() {
    const std::size_t size = used() - entry_from_;
    if (size > 0) {
      last_entry(answer_.reply).set_checksum(xxh3({answer_.payloads.get() + entry_from_, size}));
    }
    entry_from_ = used();
  }
  void finish(std::uint64_t next_sequence, std::uint64_t next_begin) {
    seal();
    answer_.reply.set_next_sequence(next_sequence);
    answer_.reply.set_next_begin(next_begin);
  }
  [[nodiscard]] std::size_t used() const { return answer_.payload_bytes; }

  const wire::FetchRequest& request_;
  HostLogReader& reader_;
  Replayer::Answer& answer_;
  std::size_t room_ = 0, ranges_ = limits::kMaxFetchRanges;
  // The entry that is being filled.
  std::optional<std::uint64_t> sequence_;
  std::optional<RecordInfo> info_;
  std::size_t entry_from_ = 0;
  bool added_ = false;
};

}  // namespace

Replayer::Answer Replayer::answer_apart(const wire::FetchRequest& request, HostLogReader& reader) {
  Answer answer;
  if (request.pieces().empty()) {
    answer.reply = list(request, reader);
  } else {
    answer.reply = reply_to(request);
    Filler(request, reader, answer).fill();
  }
  return answer;
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
