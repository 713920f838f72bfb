#include "worker/rounds/buffer_moves.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "recovery/base/check.h"

namespace warren::worker {

BufferMoves::BufferMoves(std::span<const std::byte> input, std::span<const std::byte> output,
                         std::uint64_t least_final_bytes)
    : input_bytes_(input.size()), output_bytes_(output.size()), least_final_bytes_(least_final_bytes) {
  const std::less<const std::byte*> before;
  const bool meet = !input.empty() && !output.empty() && before(input.data(), output.data() + output.size()) &&
                    before(output.data(), input.data() + input.size());
  if (meet) output_at_ = output.data() - input.data();
}

void BufferMoves::order(std::vector<ByteRange> pieces) {
  const std::lock_guard lock(mutex_);
  WARREN_CHECK(!fills_, "the order is known before the first piece moves");
  if (input_bytes_ != 0) pieces_ = std::move(pieces);
}

void BufferMoves::lend(std::shared_ptr<std::byte> block) {
  const std::lock_guard lock(mutex_);
  WARREN_CHECK(!fills_, "where the input comes to is known before the first piece moves");
  block_ = std::move(block);
}

std::shared_ptr<const std::byte> BufferMoves::lent() const {
  const std::lock_guard lock(mutex_);
  return comes_home_ ? nullptr : block_;
}

void BufferMoves::bring_home() {
  const std::lock_guard lock(mutex_);
  to_bring_.clear();
  brought_.clear();
  if (block_ == nullptr || comes_home_) return;
  if (!fills_) {
    block_ = nullptr;
    return;
  }
  if (ended_) return;
  comes_home_ = true;
  // What is final there has taken the input's place, and nobody needs that any more.
  home_ = Ranges(0, input_bytes_).minus(in_the_input(landed_.minus(beside_)));
}

// What of these bytes of the output is of the input, too.
Ranges BufferMoves::in_the_input(const Ranges& of_output) const {
  Ranges there;
  if (!output_at_) return there;
  const std::uint64_t before = *output_at_ < 0 ? static_cast<std::uint64_t>(-*output_at_) : 0;
  const std::uint64_t after = *output_at_ < 0 ? 0 : static_cast<std::uint64_t>(*output_at_);
  const Ranges beyond = of_output.minus(Ranges(0, before));
  for (const Interval& i : beyond.intervals()) there.add(i.begin - before + after, i.end - before + after);
  return there;
}

bool BufferMoves::all_arrived() const {
  const std::lock_guard lock(mutex_);
  if (abandoned_) return false;
  if (comes_home_) return home_.empty() && filling_ == pieces_.size() && by_block_under_way_ == 0;
  return input_bytes_ == 0 || (fills_ && arrived() == pieces_.size());
}

void BufferMoves::landed(const ByteRange& bytes) {
  if (output_bytes_ == 0) return;
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  const std::uint64_t end = bytes.at + bytes.bytes;
  // What stood final in an earlier generation may be told again.
  waiting_.add(Ranges(bytes.at, end).minus(landed_.intersect(bytes.at, end)));
  landed_.add(bytes.at, end);
}

bool BufferMoves::bring(const ByteRange& bytes, const std::shared_ptr<const FinalOnGpu>& from, std::uint64_t number) {
  if (output_bytes_ == 0) return false;
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  to_bring_.push_back({number, bytes, from});
  return true;
}

std::optional<BufferStream::Brought> BufferMoves::take_brought() {
  const std::lock_guard lock(mutex_);
  if (brought_.empty()) return std::nullopt;
  const BufferStream::Brought brought = brought_.front();
  brought_.pop_front();
  return brought;
}

void BufferMoves::result_is_there() {
  const std::lock_guard lock(mutex_);
  landed_ = Ranges(0, output_bytes_);
  waiting_ = {};
}

void BufferMoves::conclude() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  filling_ = pieces_.size();
  home_ = {};
  waiting_.add(Ranges(0, output_bytes_).minus(landed_));
  landed_ = Ranges(0, output_bytes_);
}

void BufferMoves::give_up() {
  const std::lock_guard lock(mutex_);
  drop();
}

// Nothing more begins to move.
void BufferMoves::drop() {
  ended_ = true;
  filling_ = pieces_.size();
  home_ = {};
  waiting_ = {};
  to_bring_.clear();
}

bool BufferMoves::moves() const {
  const std::lock_guard lock(mutex_);
  return under_way_ != 0 || (fills_ && filling_ < pieces_.size()) || !home_.empty() ||
         large_enough(waiting_) != nullptr || !to_bring_.empty();
}

// The first of them that is to be copied; null: none is, yet.
const Interval* BufferMoves::large_enough(const Ranges& finals) const {
  const std::uint64_t least = landed_.covers(0, output_bytes_) ? 1 : least_final_bytes_;
  const auto first =
      std::ranges::find_if(finals.intervals(), [&](const Interval& i) { return i.end - i.begin >= least; });
  return first == finals.intervals().end() ? nullptr : &*first;
}

void BufferMoves::begin() {
  const std::lock_guard lock(mutex_);
  fills_ = true;
}

// In the order of one stream: the block is whole before anything comes from there.
std::optional<BufferMoves::Input> BufferMoves::next_input(std::uint64_t most_bytes,
                                                          const std::function<bool(bool by_block)>& has_room) {
  const std::lock_guard lock(mutex_);
  if (!fills_ || (filling_ == pieces_.size() && home_.empty())) return std::nullopt;
  if (!has_room(block_ != nullptr)) return std::nullopt;
  Input next;
  next.block = block_;
  if (filling_ < pieces_.size()) {
    next.bytes = pieces_[filling_++];
  } else {
    const Interval first = home_.intervals().front();
    next.bytes = {first.begin, std::min(first.end - first.begin, most_bytes)};
    next.home = true;
    home_ = home_.minus(Ranges(next.bytes.at, next.bytes.at + next.bytes.bytes));
  }
  under_way_++;
  if (block_ != nullptr) by_block_under_way_++;
  return next;
}

// The more of them wait, the larger the copies. Those of other peers stand between them.
std::optional<BufferMoves::FromPeer> BufferMoves::next_from_peer(std::uint64_t most_bytes, const HasRoom& has_room) {
  const std::lock_guard lock(mutex_);
  if (to_bring_.empty() || !has_room()) return std::nullopt;
  FromPeer all = to_bring_.front();
  all.bytes.bytes = 0;
  const std::size_t before = bringing_.size();
  std::erase_if(to_bring_, [&](const FromPeer& next) {
    if (next.from->memory != all.from->memory || next.from->at != all.from->at + all.bytes.bytes ||
        next.bytes.at != all.bytes.at + all.bytes.bytes) {
      return false;
    }
    if (all.bytes.bytes != 0 && all.bytes.bytes + next.bytes.bytes > most_bytes) return false;
    all.bytes.bytes += next.bytes.bytes;
    bringing_.push_back(next);
    return true;
  });
  brought_by_.push_back(bringing_.size() - before);
  under_way_++;
  return all;
}

// Likewise.
std::optional<ByteRange> BufferMoves::next_final(std::uint64_t most_bytes, const HasRoom& has_room) {
  const std::lock_guard lock(mutex_);
  // Not before what is under way to the same place has come.
  Ranges free = waiting_;
  for (const FromPeer& b : bringing_) free = free.minus(Ranges(b.bytes.at, b.bytes.at + b.bytes.bytes));
  const Interval* const first = large_enough(free);
  if (first == nullptr || !has_room()) return std::nullopt;
  const ByteRange piece{first->begin, std::min(first->end - first->begin, most_bytes)};
  waiting_ = waiting_.minus(Ranges(piece.at, piece.at + piece.bytes));
  under_way_++;
  return piece;
}

void BufferMoves::came(const Ended& ended) {
  const std::lock_guard lock(mutex_);
  const std::size_t all = ended.inputs + ended.by_block + ended.finals + ended.from_peers;
  WARREN_CHECK(all <= under_way_ && ended.from_peers <= brought_by_.size(), "what ends was begun");
  under_way_ -= all;
  by_block_under_way_ -= ended.by_block;
  inputs_came_ += ended.inputs + ended.by_block;
  // What comes from the block is no piece.
  arrived_.store(std::min(inputs_came_, pieces_.size()), std::memory_order_release);
  std::size_t come_now = 0;
  for (std::size_t i = 0; i < ended.from_peers; i++, brought_by_.pop_front()) come_now += brought_by_.front();
  for (std::size_t i = 0; i < come_now; i++, bringing_.pop_front()) {
    const FromPeer& come = bringing_.front();
    // Also of an earlier generation: as its owner stands now, so did what was copied.
    const bool stood = come.from->stands();
    const std::uint64_t end = come.bytes.at + come.bytes.bytes;
    if (stood) {
      beside_.add(Ranges(come.bytes.at, end).minus(landed_.intersect(come.bytes.at, end)));
      landed_.add(come.bytes.at, end);
    }
    brought_.push_back({come.number, stood});
  }
}

void BufferMoves::abandon() {
  const std::lock_guard lock(mutex_);
  drop();
  abandoned_ = true;
  bringing_.clear();
  brought_by_.clear();
  under_way_ = by_block_under_way_ = 0;
}

}  // namespace warren::worker
