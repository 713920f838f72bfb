#include "worker/replay/striping.h"

#include <algorithm>
#include <utility>

#include "recovery/base/limits.h"

namespace warren::worker::replay {
namespace {

// One request: so many bytes at most, in so many pieces; one piece comes from one holder.
constexpr std::uint64_t kRequestBytes = std::uint64_t{2} << 20;
constexpr std::size_t kRequestPieces = 1024;
constexpr std::uint64_t kPieceBytes = std::uint64_t{512} << 10;
static_assert(kRequestBytes + kPieceBytes <= limits::kMaxFetchPayloadBytes);
static_assert(kRequestPieces <= limits::kMaxFetchPieces && kRequestPieces <= limits::kMaxFetchEntries);
// Pieces whose holders are busy that are passed over for later ones, in one go.
constexpr std::size_t kMaxSkipped = 256;

constexpr std::size_t kNone = SIZE_MAX;

// The interval that holds byte `at`, or the first after it; null: none.
const Interval* interval_from(const Ranges& ranges, std::uint64_t at) {
  const auto& all = ranges.intervals();
  const auto i =
      std::lower_bound(all.begin(), all.end(), at, [](const Interval& v, std::uint64_t b) { return v.end <= b; });
  return i == all.end() ? nullptr : &*i;
}

}  // namespace

Striping::Striping(const Parts& parts, const RecordKey& at, const Listings& listings, TimeMs now,
                   std::vector<Replayer::Send>& out)
    : parts_(parts),
      at_(at),
      listings_(listings),
      now_(now),
      out_(out),
      known_below_(listings.known_below(parts.hosts)) {}

// Ties: several ranks that fetch the same begin with different holders.
bool Striping::has_less_to_do(std::size_t host, std::size_t than) const {
  if (than == kNone) return true;
  const std::uint64_t load = parts_.window.load(host), other = parts_.window.load(than);
  if (load != other) return load < other;
  const Hosts& hosts = parts_.hosts;
  const auto turn = [&](std::size_t x) { return (x + static_cast<std::size_t>(hosts.self().value)) % hosts.size(); };
  return turn(host) < turn(than);
}

// The holder of byte `at` that has least to do and takes more.
Striping::Choice Striping::choose(const Round& round, std::uint64_t at, bool all_known) const {
  Choice best{kNone, 0, false, UINT64_MAX};
  for (const Holder& h : round.holders) {
    const Interval* i = interval_from(h.held, at);
    if (i == nullptr) continue;
    if (i->begin > at) {
      best.next = std::min(best.next, i->begin);
      continue;
    }
    best.held = true;
    if (parts_.hosts[h.host].gone() || !parts_.window.takes(h.host)) continue;
    // As long as others may turn out to hold it too, the host that answered first does not get it all.
    if (!all_known && parts_.window.load(h.host) > 0) continue;
    if (has_less_to_do(h.host, best.host)) {
      best.host = h.host;
      best.end = i->end;
    }
  }
  return best;
}

bool Striping::assign(std::uint64_t sequence, Round& round, const Ranges& need, bool ahead) {
  FetchWindow& window = parts_.window;
  bool all = true;
  for (const Interval& i : need.intervals()) {
    for (std::uint64_t b = i.begin; b < i.end;) {
      if (window.full() || skipped_ >= kMaxSkipped) full_ = true;
      if (full_) return false;
      const std::uint64_t piece_end = std::min(i.end, b + kPieceBytes);
      const Choice choice = choose(round, b, sequence < known_below_);
      if (choice.host == kNone) {
        // Others may have room for what follows.
        skipped_ += choice.held;
        all = all && !choice.held;
        b = choice.held ? piece_end : choice.next;
        continue;
      }
      std::uint64_t end = std::min(piece_end, choice.end);
      if (ahead) {
        const std::uint64_t room = window.room_ahead();
        full_ = room == 0;
        if (full_) return false;
        end = std::min(end, b + room);
      }
      Batch& batch = batches_[choice.host];
      batch.pieces.push_back({sequence, b, end});
      window.book(choice.host, end - b, ahead, batch.booked);
      round.requested.add(b, end);
      if (batch.booked.bytes >= kRequestBytes || batch.pieces.size() >= kRequestPieces) flush(choice.host, batch);
      b = end;
    }
  }
  return all;
}

void Striping::flush() {
  for (auto& [host, batch] : batches_) flush(host, batch);
}

void Striping::flush(std::size_t host, Batch& batch) {
  if (batch.pieces.empty()) return;
  std::sort(batch.pieces.begin(), batch.pieces.end());
  Pending p;
  p.host = host;
  p.load = batch.booked.load;
  p.reserved = batch.booked.reserved;
  for (const Piece& piece : batch.pieces) {
    if (!p.pieces.empty() && p.pieces.back().sequence == piece.sequence && p.pieces.back().end == piece.begin) {
      p.pieces.back().end = piece.end;
    } else {
      p.pieces.push_back(piece);
    }
  }
  parts_.window.send(host);
  const std::vector<Piece> pieces = p.pieces;
  wire::FetchRequest& r = parts_.requests.add(listings_.asked(host), at_, std::move(p), now_, out_);
  for (const Piece& piece : pieces) {
    wire::FetchPiece& to = *r.add_pieces();
    to.set_sequence(piece.sequence);
    to.set_begin(piece.begin);
    to.set_end(piece.end);
  }
  r.set_most_bytes(batch.booked.bytes);
  batch = {};
}

}  // namespace warren::worker::replay
