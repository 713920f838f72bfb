#include "worker/transport/frame_pipe.h"

#include <algorithm>
#include <cstring>
#include <optional>

namespace warren::worker {
namespace {

constexpr std::size_t kHeader = FrameHeader::kWireBytes;

// The place of a payload, behind the header.
struct Where {
  std::uint64_t stamp = 0;  // of the log's extent; 0: it is not in the log
  std::uint64_t at = 0;
  std::uint32_t extent = 0;
  std::uint32_t memory = 0;  // that is lent; 0: it is in none. In the log: a GPU's, where it lies too
  std::uint64_t number = 0;  // then: of what was made there
};
constexpr std::size_t kLine = 64;
constexpr std::size_t kHead = kHeader + sizeof(Where);
static_assert(kHead % kLine == 0 && kHead <= HostPipe::kLeastRingBytes);
constexpr std::size_t lines(std::size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}
// At most so many bytes move in one step: the other end begins on them while the next ones are copied.
constexpr std::size_t kPieceBytes = std::size_t{32} << 10;
// Below these a copy costs less than what it saves.
constexpr std::size_t kLeastInPlace = std::size_t{2} << 10;

// A frame as a note: what tells it from the newest one whose header went through the ring, then its payload. Programs
// repeat their calls, and small frames of theirs differ in little else. Both ends know that header: the frame that a
// note stands for is checked like any other.
struct NoteHead {
  std::uint64_t sequence = 0;
  std::uint32_t message = 0;
  std::uint32_t payload_bytes = 0;
};
constexpr std::size_t kMostNoted = HostPipe::kNoteBytes - sizeof(NoteHead);

bool differ_in_number_alone(const FrameHeader& a, const FrameHeader& b) {
  return a.generation == b.generation && a.fingerprint == b.fingerprint && a.round.version == b.round.version &&
         a.round.group == b.round.group && a.round.timeline == b.round.timeline && a.kind == b.kind &&
         a.stream == b.stream;
}

Where where_of(const Outgoing& out) {
  Where where;
  if (out.logged.known()) {
    where.stamp = out.logged.stamp;
    where.at = out.logged.at;
    where.extent = out.logged.extent;
    where.memory = out.lent.memory;
    where.number = out.lent.at;
  } else if (out.lent.known()) {
    where.at = out.lent.at;
    where.memory = out.lent.memory;
  }
  return where;
}

}  // namespace

std::size_t FramePipe::needed_to_take(const Incoming& in) const {
  if (taken_ != 0) return kLine;
  return whole_ ? kHead + lines(in.payload.size()) : kHead;
}

bool FramePipe::can_take(const Incoming& in) const {
  return pipe_->can_read(needed_to_take(in));
}

bool FramePipe::can_put() const {
  return pipe_->can_write(put_ == 0 ? kHead : kLine);
}

FramePipe::Put FramePipe::put(Outgoing& out) {
  const auto room = pipe_->room();
  if (!room) return Put::kDamaged;
  // Whole lines, whatever the other end's counter says.
  const std::size_t free = room->size() / kLine * kLine;
  if (free < (put_ == 0 ? kHead : kLine)) return Put::kNothing;
  // The log may have been full since it was posted.
  if (out.logged.known() && !out.logged.stands()) out.logged = {}, out.lent = {};
  const bool told = out.logged.known() || out.lent.known();
  const std::span<const std::byte> payload = told ? std::span<const std::byte>() : out.payload;
  std::size_t n = 0;
  if (put_ == 0) {
    encode(out.header, room->first<kHeader>());
    said_ = out.header;
    const Where where = where_of(out);
    std::memcpy(room->data() + kHeader, &where, sizeof where);
    n = kHead;
  }
  const std::size_t done = put_ + n - kHead;
  const std::size_t piece = std::min({payload.size() - done, free - n, kPieceBytes});
  if (piece != 0) std::memcpy(room->data() + n, payload.data() + done, piece);
  n += lines(piece);
  pipe_->put(n);
  put_ += n;
  if (done + piece < payload.size()) return Put::kPiece;
  put_ = 0;
  return Put::kFrame;
}

FramePipe::Taken FramePipe::take(const Incoming& in, View& view) {
  if (const auto note = pipe_->note(); !note.empty()) {
    if (taken_ != 0 || checked_) return Taken::kDamaged;
    return take_note(note, in.expected, in.payload) ? Taken::kFrame : Taken::kRefused;
  }
  const auto come = pipe_->come();
  if (!come) return Taken::kDamaged;
  if (come->size() < needed_to_take(in)) {
    make_room();
    return Taken::kNothing;
  }
  const std::size_t total = kHead + lines(in.payload.size());
  if (!checked_) {
    // Copied before it is looked at: the other end could write there.
    FrameBytes bytes;
    std::memcpy(bytes.data(), come->data(), kHeader);
    Where where;
    std::memcpy(&where, come->data() + kHeader, sizeof where);
    auto header = decode(bytes);
    refusal_ = header.ok() ? match(in.expected, header.value()) : header.status();
    if (!refusal_.ok()) return Taken::kRefused;
    heard_ = header.value();
    if (where.stamp != 0) {
      told_ = {{where.extent, where.stamp, where.at}, {where.memory, where.number}};
      return Taken::kTold;
    }
    if (where.memory != 0) {
      told_ = {{}, {where.memory, where.at}};
      return Taken::kTold;
    }
    checked_ = true;
    const auto free = std::ranges::find(views_, nullptr, &Held::payload);
    whole_ = in.in_place && in.payload.size() >= kLeastInPlace && free != views_.end() && pipe_->can_hold(total);
  }
  if (whole_) {
    if (come->size() < total) return Taken::kNothing;
    Held& held = *std::ranges::find(views_, nullptr, &Held::payload);
    held = {come->data() + kHead, come->data(), in.payload};
    pipe_->hold(total);
    view.held = &held.payload;
    end_frame();
    return Taken::kFrame;
  }
  // The payload that has come, in whole lines.
  std::size_t n = taken_ == 0 ? kHead : 0;
  const std::size_t done = taken_ + n - kHead;
  const std::size_t piece = std::min({in.payload.size() - done, (come->size() - n) / kLine * kLine, kPieceBytes});
  if (piece != 0) std::memcpy(in.payload.data() + done, come->data() + n, piece);
  n += lines(piece);
  pipe_->take(n);
  made_room_ = true;
  taken_ += n;
  if (done + piece < in.payload.size()) return Taken::kPiece;
  end_frame();
  return Taken::kFrame;
}

void FramePipe::end_frame() {
  taken_ = 0;
  checked_ = whole_ = false;
}

void FramePipe::take_head() {
  pipe_->take(kHead);
  made_room_ = true;
  end_frame();
}

bool FramePipe::release(const View& view) {
  for (Held& held : views_) {
    if (view.held != &held.payload || held.payload == nullptr) continue;
    if (held.frame != nullptr) {
      pipe_->release(held.frame);
      made_room_ = true;
    }
    held = {};
    return true;
  }
  return false;
}

void FramePipe::make_room() {
  if (!pipe_->holds() || pipe_->free_bytes() >= kHead) return;
  for (Held& held : views_) {
    if (held.frame == nullptr) continue;
    if (!held.buffer.empty()) std::memcpy(held.buffer.data(), held.payload, held.buffer.size());
    held.payload = held.buffer.data();
    pipe_->release(std::exchange(held.frame, nullptr));
    made_room_ = true;
  }
}

FramePipe::Now FramePipe::send_now(const FrameHeader& header, std::span<const std::byte> payload) {
  if (payload.size() <= kMostNoted && differ_in_number_alone(header, said_)) {
    if (const std::span<std::byte> note = pipe_->note_room(); !note.empty()) {
      const NoteHead head{header.round.sequence.value, header.message, header.payload_bytes};
      std::memcpy(note.data(), &head, sizeof head);
      if (!payload.empty()) std::memcpy(note.data() + sizeof head, payload.data(), payload.size());
      pipe_->put_note();
      return Now::kDone;
    }
  }
  const auto room = pipe_->room();
  const std::size_t total = kHead + lines(payload.size());
  if (!room || room->size() < total) return Now::kPost;
  encode(header, room->first<kHeader>());
  said_ = header;
  constexpr Where kHere;
  std::memcpy(room->data() + kHeader, &kHere, sizeof kHere);
  if (!payload.empty()) std::memcpy(room->data() + kHead, payload.data(), payload.size());
  pipe_->put(total);
  return Now::kDone;
}

bool FramePipe::take_note(std::span<const std::byte> note, const FrameHeader& expected, std::span<std::byte> payload) {
  // Copied before it is looked at: the other end could write there.
  NoteHead head;
  std::memcpy(&head, note.data(), sizeof head);
  if (!differ_in_number_alone(heard_, expected) || head.sequence != expected.round.sequence.value ||
      head.message != expected.message || head.payload_bytes != expected.payload_bytes) {
    // Headers that agree need not be equal.
    FrameHeader stands_for = heard_;
    stands_for.round.sequence = Sequence(head.sequence);
    stands_for.message = head.message;
    stands_for.payload_bytes = head.payload_bytes;
    refusal_ = match(expected, stands_for);
    if (!refusal_.ok()) return false;
  }
  if (payload.size() > kMostNoted) {
    refusal_ = Status(Code::kCorrupt, "a note that is longer than notes are");
    return false;
  }
  if (!payload.empty()) std::memcpy(payload.data(), note.data() + sizeof head, payload.size());
  pipe_->take_note();
  return true;
}

FramePipe::Now FramePipe::recv_now(const FrameHeader& expected, std::span<std::byte> payload) {
  if (const auto note = pipe_->note(); !note.empty()) {
    // The caller posts, and hears then what else it is.
    return take_note(note, expected, payload) ? Now::kDone : Now::kPost;
  }
  const auto come = pipe_->come();
  if (!come || taken_ != 0 || checked_) return Now::kPost;
  if (come->size() < kHead) return Now::kLater;
  std::array<std::byte, kHead> due{};
  encode(expected, std::span(due).first<kHeader>());
  const bool same = std::memcmp(come->data(), due.data(), kHead) == 0;
  FrameHeader came = expected;
  if (!same) {
    // Copied before it is looked at: the other end could write there. Headers that agree need not be equal. Whoever
    // posts hears what else it is, or where its payload lies.
    std::memcpy(due.data(), come->data(), kHead);
    constexpr Where kHere;
    const auto header = decode(std::span<const std::byte, kHead>(due).first<kHeader>());
    if (!header.ok() || !match(expected, header.value()).ok() ||
        std::memcmp(due.data() + kHeader, &kHere, sizeof kHere) != 0) {
      return Now::kPost;
    }
    came = header.value();
  }
  const std::size_t total = kHead + lines(payload.size());
  if (come->size() < total) return Now::kLater;
  heard_ = came;
  if (!payload.empty()) std::memcpy(payload.data(), come->data() + kHead, payload.size());
  pipe_->take(total);
  made_room_ = true;
  return Now::kDone;
}

}  // namespace warren::worker
