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
      out_(copies, *after_, output.wire) {}

StreamedCall::~StreamedCall() {
  // Whoever ends a call has seen its copies end, or a failure.
  if (in_.under_way() + out_.under_way() == 0) return;
  for (PinnedArena::Block& block : memory_) block.abandon();
}

void StreamedCall::order(std::vector<ByteRange> pieces) {
  const std::lock_guard lock(mutex_);
  WARREN_CHECK(!fills_, "the order is known before the first piece moves");
  pieces_ = std::move(pieces);
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

void StreamedCall::conclude() {
  const std::lock_guard lock(mutex_);
  if (ended_) return;
  filling_ = pieces_.size();
  waiting_.add(Ranges(0, output_.bytes).minus(landed_));
  landed_ = Ranges(0, output_.bytes);
}

void StreamedCall::give_up() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  filling_ = pieces_.size();
  waiting_ = {};
}

bool StreamedCall::moves() const {
  const std::lock_guard lock(mutex_);
  return under_way_ != 0 || (fills_ && filling_ < pieces_.size()) || !waiting_.empty();
}

// Puts as many pieces of the input on their way as may be.
Status StreamedCall::fill() {
  for (;;) {
    ByteRange piece;
    {
      const std::lock_guard lock(mutex_);
      if (!fills_ || filling_ == pieces_.size() || !in_.has_room()) return {};
      piece = pieces_[filling_++];
      under_way_++;
    }
    const std::span<const std::byte> from = input_.on_gpu(piece);
    const Status status = in_.to_host(input_.host + piece.at, from.data(), from.size());
    if (!status.ok()) return status.because_of_this("the input does not come");
  }
}

// Likewise finals; the more of them wait, the larger the copies.
Status StreamedCall::bring_back() {
  for (;;) {
    ByteRange piece;
    {
      const std::lock_guard lock(mutex_);
      if (waiting_.empty() || !out_.has_room()) return {};
      const Interval first = waiting_.intervals().front();
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
  const std::size_t before = in_.under_way() + out_.under_way();
  const auto in = in_.look();
  if (!in.ok()) return in.status().because_of_this("the input does not come");
  const auto out = out_.look();
  if (!out.ok()) return out.status().because_of_this("the result does not come back");
  if (!in.value() && !out.value()) return false;
  arrived_.store(in_.arrived(), std::memory_order_release);
  const std::lock_guard lock(mutex_);
  under_way_ -= before - in_.under_way() - out_.under_way();
  return true;
}

Result<bool> StreamedCall::move() {
  if (copies_.ended()) {
    give_up();
    // The program's own work may take for ever.
    const bool waits = (in_.under_way() != 0 && !in_.began()) || (out_.under_way() != 0 && !out_.began());
    if (waits)
      return fail(
          {Code::kClosed, "the communicator was destroyed during a copy on GPU " + std::to_string(copies_.device())});
  }
  const auto some = look();
  if (!some.ok()) return fail(some.status());
  Status status = fill();
  if (status.ok()) status = bring_back();
  if (!status.ok()) return fail(status);
  return some;
}

// The GPU may still write to the memory, or read it.
Status StreamedCall::fail(const Status& why) {
  for (PinnedArena::Block& block : memory_) block.abandon();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  filling_ = pieces_.size();
  waiting_ = {};
  under_way_ = 0;
  return why;
}

}  // namespace warren::worker
