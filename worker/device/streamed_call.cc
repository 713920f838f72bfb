#include "worker/device/streamed_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "recovery/base/check.h"

namespace warren::worker {
namespace {

std::size_t least_final_bytes(std::size_t output_bytes) {
  return std::clamp(output_bytes / StreamedCall::kPiecesOfTheOutput, StreamedCall::kLeastPieceBytes,
                    StreamedCall::kPieceBytes / 2);
}

}  // namespace

StreamedCall::StreamedCall(DeviceCopies& copies, std::unique_ptr<DeviceCopies::Event> after, void* stream,
                           const Staged& input, const Staged& output, std::vector<PinnedArena::Block> memory)
    : copies_(copies),
      after_(std::move(after)),
      stream_(stream),
      input_(input),
      output_(output),
      memory_(std::make_shared<std::vector<PinnedArena::Block>>(std::move(memory))),
      moves_({input.host, input.bytes}, {output.host, output.bytes}, least_final_bytes(output.bytes)),
      in_(copies, *after_, input.wire),
      out_(copies, *after_, output.wire),
      lent_(copies, *after_, WARREN_F32, DeviceCopies::kWindowOnGpu),
      peers_(copies, *after_, WARREN_F32, DeviceCopies::kWindowOnGpu) {}

StreamedCall::~StreamedCall() {
  // Whoever ends a call has seen its copies end, or a failure.
  if (in_.under_way() + out_.under_way() + lent_.under_way() + peers_.under_way() == 0) return;
  for (PinnedArena::Block& block : *memory_) block.abandon();
}

const std::byte* StreamedCall::lendable() const {
  return shares_ == nullptr ? nullptr : shares_->own_on(copies_.device());
}

std::size_t StreamedCall::most_bytes(std::int32_t size) const {
  const std::size_t chunk = bytes_on_cpu(input_.wire, kDeviceChunkBytes);
  if (moves_.lent() != nullptr) return std::min(kLentPieceBytes, chunk);
  const std::size_t most = std::min(kPieceBytes, chunk);
  const std::size_t pieces = static_cast<std::size_t>(size) * kPiecesOfASegment;
  return std::clamp(input_.bytes / pieces / kLeastPieceBytes * kLeastPieceBytes, std::min(kLeastPieceBytes, most),
                    most);
}

bool StreamedCall::lend() {
  auto block = shares_->take(input_.bytes);
  if (block == nullptr) return false;
  moves_.lend(std::move(block));
  return true;
}

std::int32_t StreamedCall::begin_filling() {
  if (prepare_ != nullptr) {
    if (const std::int32_t failed = prepare_(prepare_context_); failed != 0) return failed;
    begun_ = copies_.record(*after_, stream_);
  }
  if (begun_.ok()) {
    moves_.begin();
    begun_ = fill();
  }
  if (!begun_.ok()) begun_ = fail(begun_);
  return 0;
}

Status StreamedCall::deliver() {
  WARREN_UNREACHABLE("a stream is moved");
}

// Peers' memory is mapped for the GPU that this life's own is on.
bool StreamedCall::bring(const ByteRange& bytes, const std::shared_ptr<const FinalOnGpu>& from, std::uint64_t number) {
  return lendable() != nullptr && moves_.bring(bytes, from, number);
}

// Puts as many pieces of the input on their way as may be.
Status StreamedCall::fill() {
  const auto has_room = [this](bool by_block) { return (by_block ? lent_ : in_).has_room(); };
  while (const auto next = moves_.next_input(kDeviceChunkBytes, has_room)) {
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
  while (const auto next = moves_.next_from_peer(kMostFromPeerBytes, [this] { return peers_.has_room(); })) {
    const std::span<std::byte> to = output_.on_gpu(next->bytes);
    const Status status = peers_.widened(to.data(), next->from->at, to.size(), output_.wire);
    if (!status.ok()) return status.because_of_this("the result does not come from another rank's GPU");
  }
  return {};
}

// Likewise finals.
Status StreamedCall::bring_back() {
  const std::uint64_t most_bytes = bytes_on_cpu(output_.wire, kDeviceChunkBytes);
  while (const auto piece = moves_.next_final(most_bytes, [this] { return out_.has_room(); })) {
    const std::span<std::byte> to = output_.on_gpu(*piece);
    const Status status = out_.to_device(to.data(), output_.host + piece->at, to.size());
    if (!status.ok()) return status.because_of_this("the result does not come back");
  }
  return {};
}

Result<bool> StreamedCall::look() {
  BufferMoves::Ended ended;
  bool some = false;
  const auto look_at = [&some](DeviceCopies::Flow& flow, std::size_t& came, const char* what) -> Status {
    const std::size_t before = flow.under_way();
    const auto looked = flow.look();
    if (!looked.ok()) return looked.status().because_of_this(what);
    some = some || looked.value();
    came = before - flow.under_way();
    return {};
  };
  Status status = look_at(in_, ended.inputs, "the input does not come");
  if (status.ok()) status = look_at(out_, ended.finals, "the result does not come back");
  if (status.ok()) status = look_at(lent_, ended.by_block, "the input does not come");
  if (status.ok()) {
    status = look_at(peers_, ended.from_peers, "the result does not come from another rank's GPU");
  }
  if (!status.ok()) return status;
  if (some) moves_.came(ended);
  return some;
}

Result<bool> StreamedCall::move() {
  if (!failed_.ok()) return failed_;
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
  for (PinnedArena::Block& block : *memory_) block.abandon();
  moves_.abandon();
  failed_ = why;
  return why;
}

}  // namespace warren::worker
