#include "worker/device/streamed_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/check.h"

namespace warren::worker {

StreamedCall::StreamedCall(DeviceCopies& copies, std::unique_ptr<DeviceCopies::Event> after, void* stream,
                           const Staged& input, const Staged& output, std::vector<PinnedArena::Block> memory)
    : copies_(copies),
      after_(std::move(after)),
      stream_(stream),
      input_(input),
      output_(output),
      memory_(std::move(memory)),
      in_(copies, *after_, input.wire),
      out_(copies, *after_, output.wire),
      lent_(copies, *after_),
      peers_(copies, *after_) {}

StreamedCall::~StreamedCall() {
  // Whoever ends a call has seen its copies end, or a failure.
  if (in_.under_way() + out_.under_way() + lent_.under_way() + peers_.under_way() == 0) return;
  for (PinnedArena::Block& block : memory_) block.abandon();
}

void StreamedCall::order(std::vector<ByteRange> pieces) {
  const std::lock_guard lock(mutex_);
  WARREN_CHECK(!fills_, "the order is known before the first piece moves");
  pieces_ = std::move(pieces);
}

const std::byte* StreamedCall::lendable() const {
  return shares_ == nullptr ? nullptr : shares_->own_on(copies_.device());
}

bool StreamedCall::lend() {
  const std::lock_guard lock(mutex_);
  WARREN_CHECK(!fills_, "where the input comes to is known before the first piece moves");
  block_ = shares_->take(input_.bytes);
  return block_ != nullptr;
}

std::shared_ptr<const std::byte> StreamedCall::lent() const {
  const std::lock_guard lock(mutex_);
  return comes_home_ ? nullptr : block_;
}

void StreamedCall::bring_home() {
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
  home_ = Ranges(0, input_.bytes);
  // What is final there has taken the input's place, and nobody needs that any more.
  if (input_.host == output_.host) home_ = home_.minus(landed_.minus(beside_));
}

void StreamedCall::begin_filling() {
  if (prepare_ != nullptr) {
    prepare_(prepare_context_);
    begun_ = copies_.record(*after_, stream_);
  }
  if (begun_.ok()) {
    {
      const std::lock_guard lock(mutex_);
      fills_ = true;
    }
    begun_ = fill();
  }
  if (!begun_.ok()) begun_ = fail(begun_);
}

Status StreamedCall::deliver() {
  WARREN_CHECK(false, "a stream is moved");
}

bool StreamedCall::all_arrived() const {
  const std::lock_guard lock(mutex_);
  if (comes_home_) return home_.empty() && filling_ == pieces_.size() && lent_under_way_ == 0;
  return input_.bytes == 0 || (fills_ && arrived() == pieces_.size());
}

void StreamedCall::landed(const ByteRange& bytes) {
  if (output_.bytes == 0) return;
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  const std::uint64_t end = bytes.at + bytes.bytes;
  // What stood final in an earlier epoch may be told again.
  const Ranges fresh = Ranges(bytes.at, end).minus(landed_.intersect(bytes.at, end));
  waiting_.add(fresh);
  landed_.add(bytes.at, end);
}

// Peers' memory is mapped for the GPU that this life's own is on.
bool StreamedCall::bring(const ByteRange& bytes, const std::shared_ptr<const FinalOnGpu>& from, std::uint64_t number) {
  if (output_.bytes == 0 || lendable() == nullptr) return false;
  const std::lock_guard lock(mutex_);
  if (ended_) return false;
  to_bring_.push_back({number, bytes, from});
  return true;
}

std::optional<BufferStream::Brought> StreamedCall::take_brought() {
  const std::lock_guard lock(mutex_);
  if (brought_.empty()) return std::nullopt;
  const Brought brought = brought_.front();
  brought_.pop_front();
  return brought;
}

void StreamedCall::conclude() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  filling_ = pieces_.size();
  home_ = {};
  waiting_.add(Ranges(0, output_.bytes).minus(landed_));
  landed_ = Ranges(0, output_.bytes);
}

void StreamedCall::give_up() {
  const std::lock_guard lock(mutex_);
  drop();
}

// Nothing more begins to move.
void StreamedCall::drop() {
  ended_ = true;
  filling_ = pieces_.size();
  home_ = {};
  waiting_ = {};
  to_bring_.clear();
}

bool StreamedCall::moves() const {
  const std::lock_guard lock(mutex_);
  return under_way_ != 0 || (fills_ && filling_ < pieces_.size()) || !home_.empty() || !waiting_.empty() ||
         !to_bring_.empty();
}

// In the order of one stream: the block is whole before anything comes from there.
std::optional<StreamedCall::Next> StreamedCall::next_piece() {
  const std::lock_guard lock(mutex_);
  if (!fills_ || (filling_ == pieces_.size() && home_.empty())) return std::nullopt;
  if (!(block_ == nullptr ? in_ : lent_).has_room()) return std::nullopt;
  Next next;
  next.block = block_;
  if (filling_ < pieces_.size()) {
    next.bytes = pieces_[filling_++];
  } else {
    const Interval first = home_.intervals().front();
    next.bytes = {first.begin, std::min<std::uint64_t>(first.end - first.begin, kDeviceChunkBytes)};
    next.home = true;
    home_ = home_.minus(Ranges(next.bytes.at, next.bytes.at + next.bytes.bytes));
  }
  under_way_++;
  if (block_ != nullptr) lent_under_way_++;
  return next;
}

// Puts as many pieces of the input on their way as may be.
Status StreamedCall::fill() {
  while (const auto next = next_piece()) {
    const ByteRange& piece = next->bytes;
    const std::span<const std::byte> from = input_.on_gpu(piece);
    std::byte* const block = next->block.get();
    Status status;
    if (block == nullptr) {
      status = in_.to_host(input_.host + piece.at, from.data(), from.size());
    } else if (next->home) {
      status = lent_.to_host(input_.host + piece.at, block + piece.at, piece.bytes);
    } else {
      status = lent_.within(block + piece.at, from.data(), from.size(), input_.wire);
    }
    if (!status.ok()) return status.because_of_this("the input does not come");
  }
  return {};
}

// Likewise finals from peers' GPUs.
Status StreamedCall::bring_all() {
  for (;;) {
    Bringing next;
    {
      const std::lock_guard lock(mutex_);
      if (to_bring_.empty() || !peers_.has_room()) return {};
      next = to_bring_.front();
      to_bring_.pop_front();
      bringing_.push_back(next);
      under_way_++;
    }
    const std::span<std::byte> to = output_.on_gpu(next.bytes);
    const Status status = peers_.widened(to.data(), next.from->at, to.size(), output_.wire);
    if (!status.ok()) return status.because_of_this("the result does not come from another rank's GPU");
  }
}

// Those that have come, of an earlier epoch too: as their owner stands now, so did what was copied. Under the lock.
void StreamedCall::conclude_brought() {
  for (; bringing_.size() > peers_.under_way(); bringing_.pop_front()) {
    const Bringing& come = bringing_.front();
    const bool stood = come.from->stands();
    const std::uint64_t end = come.bytes.at + come.bytes.bytes;
    if (stood) {
      beside_.add(Ranges(come.bytes.at, end).minus(landed_.intersect(come.bytes.at, end)));
      landed_.add(come.bytes.at, end);
    }
    brought_.push_back({come.number, stood});
  }
}

// Likewise finals; the more of them wait, the larger the copies.
Status StreamedCall::bring_back() {
  for (;;) {
    ByteRange piece;
    {
      const std::lock_guard lock(mutex_);
      // Not before what is under way to the same place has come.
      Ranges free = waiting_;
      for (const Bringing& b : bringing_) free = free.minus(Ranges(b.bytes.at, b.bytes.at + b.bytes.bytes));
      if (free.empty() || !out_.has_room()) return {};
      const Interval first = free.intervals().front();
      const std::uint64_t most = bytes_on_cpu(output_.wire, kDeviceChunkBytes);
      piece = {first.begin, std::min<std::uint64_t>(first.end - first.begin, most)};
      waiting_ = waiting_.minus(Ranges(piece.at, piece.at + piece.bytes));
      under_way_++;
    }
    const std::span<std::byte> to = output_.on_gpu(piece);
    const Status status = out_.to_device(to.data(), output_.host + piece.at, to.size());
    if (!status.ok()) return status.because_of_this("the result does not come back");
  }
}

Result<bool> StreamedCall::look() {
  const std::size_t before = in_.under_way() + out_.under_way() + peers_.under_way(), lent_before = lent_.under_way();
  const auto in = in_.look();
  if (!in.ok()) return in.status().because_of_this("the input does not come");
  const auto out = out_.look();
  if (!out.ok()) return out.status().because_of_this("the result does not come back");
  const auto lent = lent_.look();
  if (!lent.ok()) return lent.status().because_of_this("the input does not come");
  const auto peers = peers_.look();
  if (!peers.ok()) return peers.status().because_of_this("the result does not come from another rank's GPU");
  if (!in.value() && !out.value() && !lent.value() && !peers.value()) return false;
  const std::lock_guard lock(mutex_);
  // What comes from the block is no piece.
  arrived_.store(std::min(in_.arrived() + lent_.arrived(), pieces_.size()), std::memory_order_release);
  const std::size_t lent_came = lent_before - lent_.under_way();
  lent_under_way_ -= lent_came;
  under_way_ -= before - in_.under_way() - out_.under_way() - peers_.under_way() + lent_came;
  conclude_brought();
  return true;
}

Result<bool> StreamedCall::move() {
  if (copies_.ended()) {
    give_up();
    // The program's own work may take for ever.
    const auto waits_for_work = [](const DeviceCopies::Flow& flow) { return flow.under_way() != 0 && !flow.began(); };
    const bool waits = waits_for_work(in_) || waits_for_work(out_) || waits_for_work(lent_) || waits_for_work(peers_);
    if (waits)
      return fail(
          {Code::kClosed, "the communicator was destroyed during a copy on GPU " + std::to_string(copies_.device())});
  }
  const auto some = look();
  if (!some.ok()) return fail(some.status());
  Status status = fill();
  if (status.ok()) status = bring_all();
  if (status.ok()) status = bring_back();
  if (!status.ok()) return fail(status);
  return some;
}

// The GPU may still write to the memory, or read it.
Status StreamedCall::fail(const Status& why) {
  for (PinnedArena::Block& block : memory_) block.abandon();
  const std::lock_guard lock(mutex_);
  drop();
  under_way_ = 0;
  return why;
}

}  // namespace warren::worker
