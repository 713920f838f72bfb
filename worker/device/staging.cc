#include "worker/device/staging.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/check.h"
#include "worker/device/device_library.h"
#include "worker/device/packed_call.h"

namespace warren::worker {
namespace {

// A call whose buffers are copied as a whole, before the round and after it.
class StagedCall final : public CallBuffers {
 public:
  StagedCall(DeviceCopies& copies, std::unique_ptr<DeviceCopies::Event> after, void* stream)
      : copies_(copies), after_(std::move(after)), stream_(stream) {}

  // Reads the input: as the call's prepare function, with the program's own before it.
  std::int32_t fill() {
    if (prepare != nullptr) {
      if (const std::int32_t failed = prepare(prepare_context); failed != 0) return failed;
      status_ = copies_.record(*after_, stream_);
    }
    if (status_.ok() && input.bytes != 0)
      status_ = copies_.to_host(input.host, input.device, input.device_bytes, *after_, input.wire);
    if (!status_.ok()) abandon();
    return 0;
  }
  [[nodiscard]] Status filled() const override { return status_; }
  [[nodiscard]] bool delivers() const override { return output.bytes != 0; }
  [[nodiscard]] Status deliver() override {
    Status status = copies_.to_device(output.device, output.host, output.device_bytes, *after_, output.wire);
    if (!status.ok()) abandon();
    return status;
  }

  Staged input, output;
  std::vector<PinnedArena::Block> memory;
  PrepareInput prepare = nullptr;  // the program's
  void* prepare_context = nullptr;

 private:
  void abandon() {
    for (PinnedArena::Block& block : memory) block.abandon();
  }

  DeviceCopies& copies_;
  const std::unique_ptr<DeviceCopies::Event> after_;
  void* const stream_;
  Status status_;
};

// In pinned memory at once of what is copied as a whole, and has a place on the CPU.
constexpr std::size_t kSliceBytes = 4 * kDeviceChunkBytes;

// Larger ones move while the round runs. Up to this a call's thread waits for its copy and hands nothing over.
constexpr std::size_t kStreamedBytes = kDeviceChunkBytes;

// Of a result that comes as one block a rank, each of which would be a copy of its own, and cost some microseconds.
constexpr std::uint64_t kLeastBlockBytes = std::uint64_t{128} << 10;

bool comes_in_blocks(Collective collective) {
  switch (collective) {
    case Collective::kAllgather:
    case Collective::kAllgatherv:
    case Collective::kGather:
    case Collective::kAllToAll:
    case Collective::kAllToAllv: return true;
    case Collective::kAllreduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kBarrier:
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv:
    case Collective::kScatter:
    case Collective::kPoint: return false;
  }
  return false;
}

// Whether the round runs while its buffers, of so many bytes, move. One that is narrowed on the CPU is so as a whole,
// before.
bool streams(const CallSpec& spec, const GroupShape& group, std::uint64_t input_bytes, std::uint64_t output_bytes) {
  if (spec.collective == Collective::kPoint || spec.wire != DataType{}) return false;
  const auto size = static_cast<std::uint64_t>(group.size);
  if (comes_in_blocks(spec.collective) && output_bytes != 0 && output_bytes / size < kLeastBlockBytes) return false;
  return std::max(input_bytes, output_bytes) > kStreamedBytes;
}

// Whether other ranks of the host may read the input on the GPU: to reduce it, or as a part of the result.
bool read_on_gpus(const CallSpec& spec) {
  switch (spec.collective) {
    case Collective::kAllreduce:
    case Collective::kReduceScatter:
    case Collective::kReduceScatterv: return reduced_as(spec.type, spec.op).has_value();
    case Collective::kAllgather:
    case Collective::kAllgatherv: return true;
    case Collective::kReduce:
    case Collective::kBroadcast:
    case Collective::kBarrier:
    case Collective::kGather:
    case Collective::kScatter:
    case Collective::kAllToAll:
    case Collective::kPoint:
    case Collective::kAllToAllv: return false;
  }
  return false;
}

// Whether the elements of all shares of a call with a wire type follow each other on the GPU: none but the last is
// filled up.
bool in_one_piece(const CallSpec& spec) {
  return spec.collective == Collective::kAllreduce || spec.count % element_values(narrow_type(spec.wire)) == 0;
}

// Whether a call has something to do before its round: to copy its input, or to run the program's prepare function,
// whose work on the stream may write to the output, too.
bool must_prepare(const CallSpec& spec, const Staged& input) {
  return input.bytes != 0 || spec.prepare != nullptr;
}

// 16 hosts of 16 ranks (worker/schedule/hierarchical.cc): more lend nothing but to gather.
constexpr std::int32_t kMostRanksThatLend = 256;

static_assert(sizeof(warren_device_i8_block) == kI8BlockBytes && WARREN_DEVICE_I8_VALUES == kI8BlockValues);

}  // namespace

DeviceCopies& Staging::copies_on(std::int32_t device) {
  const std::lock_guard lock(mutex_);
  auto& copies = copies_[device];
  if (!copies) copies = std::make_unique<DeviceCopies>(table_, device, stall_ms_, ends_);
  return *copies;
}

Result<std::int32_t> Staging::device_of(const void* pointer) {
  std::int32_t device = WARREN_DEVICE_HOST;
  const warren_device_code code = table_.locate(pointer, &device);
  if (code != WARREN_DEVICE_OK) return device_error(table_, code, "cannot tell where a buffer lies");
  return device;
}

Result<Staging::Lies> Staging::find(const CallSpec& spec, const GroupShape& group) {
  Lies lies;
  lies.sizes = buffer_bytes(spec, group);
  const auto on = [&](const void* buffer, std::uint64_t bytes) -> Result<std::int32_t> {
    if (bytes == 0) return WARREN_DEVICE_HOST;
    return device_of(buffer);
  };
  const auto in = on(spec.input, lies.sizes.input), out = on(spec.output, lies.sizes.output);
  if (!in.ok()) return in.status();
  if (!out.ok()) return out.status();
  lies.in = in.value();
  lies.out = out.value();
  if (lies.in != WARREN_DEVICE_HOST && lies.out != WARREN_DEVICE_HOST && lies.in != lies.out) {
    return Status(Code::kInvalidArgument, std::string(to_string(spec.collective)) + ": the input is on GPU " +
                                              std::to_string(lies.in) + " and the output on GPU " +
                                              std::to_string(lies.out));
  }
  return lies;
}

Status Staging::stage(Call& call, const GroupShape& group, bool may_stream,
                      std::unique_ptr<DeviceCopies::Event> after) {
  CallSpec& spec = call.spec;
  const auto found = find(spec, group);
  if (!found.ok()) return found.status();
  const Lies& lies = found.value();
  const bool stages_in = lies.in != WARREN_DEVICE_HOST, stages_out = lies.out != WARREN_DEVICE_HOST;
  if (!stages_in && !stages_out) [[likely]]
    return {};
  const std::string name = to_string(spec.collective);
  DeviceCopies& copies = copies_on(lies.device());
  bool narrows = false;
  if (spec.wire != DataType{} && stages_in && stages_out && in_one_piece(spec)) {
    const auto converts = copies.converts(scratch_);
    if (!converts.ok()) return converts.status().because_of_this(name);
    narrows = converts.value();
  }
  if (after == nullptr) {
    auto marked = mark(lies.device(), spec.stream);
    if (!marked.ok()) return marked.status().because_of_this(name);
    after = std::move(marked).value();
  }
  auto made = place(spec, group, lies, narrows);
  if (!made.ok()) return made.status().because_of_this(name);
  Placed& placed = made.value();
  if (narrows) {
    count_narrow(spec);
    spec.wire = {};
  }
  if (stages_in) spec.input = placed.from.host;
  if (stages_out) spec.output = placed.to.host;
  // The one buffer of a broadcast is its root's input.
  if (spec.collective == Collective::kBroadcast && spec.root == group.rank) placed.from = placed.to;
  if (may_stream && streams(spec, group, placed.from.bytes, placed.to.bytes)) {
    stream(call, group, lies, copies, std::move(after), std::move(placed));
    return {};
  }
  return stage_at_once(call, copies, std::move(after), std::move(placed));
}

// Takes pinned memory for the copies of a call's buffers.
Result<Staging::Placed> Staging::place(const CallSpec& spec, const GroupShape& group, const Lies& lies, bool narrows) {
  const BufferBytes& sizes = lies.sizes;
  const bool stages_in = lies.in != WARREN_DEVICE_HOST, stages_out = lies.out != WARREN_DEVICE_HOST;
  auto* const input = static_cast<std::byte*>(const_cast<void*>(spec.input));
  auto* const output = static_cast<std::byte*>(spec.output);
  Placed placed;
  const auto take = [&](std::uint64_t bytes) -> Result<std::byte*> {
    auto block = arena_.take(bytes);
    if (!block.ok()) return block.status();
    placed.memory.push_back(std::move(block).value());
    return placed.memory.back().data();
  };
  if (narrows) {
    const NarrowCopies narrow = narrow_copies(spec, group);
    const auto at = take(narrow.bytes);
    if (!at.ok()) return at.status();
    const auto wire = static_cast<warren_type>(spec.wire);
    placed.from = {input, at.value() + narrow.input_at, sizes.input, narrow.input_bytes, wire};
    placed.to = {output, at.value() + narrow.output_at, sizes.output, narrow.output_bytes, wire};
    return placed;
  }
  if (stages_in && stages_out && input < output + sizes.output && output < input + sizes.input) {
    // In place: one contains the other, and so do the copies.
    std::byte* const begin = std::min(input, output);
    std::byte* const end = std::max(input + sizes.input, output + sizes.output);
    const auto at = take(static_cast<std::uint64_t>(end - begin));
    if (!at.ok()) return at.status();
    placed.from = {input, at.value() + (input - begin), sizes.input, sizes.input};
    placed.to = {output, at.value() + (output - begin), sizes.output, sizes.output};
    return placed;
  }
  if (stages_in) {
    const auto at = take(sizes.input);
    if (!at.ok()) return at.status();
    placed.from = {input, at.value(), sizes.input, sizes.input};
  }
  if (stages_out) {
    const auto at = take(sizes.output);
    if (!at.ok()) return at.status();
    placed.to = {output, at.value(), sizes.output, sizes.output};
  }
  return placed;
}

// Lets a call's buffers move while its round runs.
void Staging::stream(Call& call, const GroupShape& group, const Lies& lies, DeviceCopies& copies,
                     std::unique_ptr<DeviceCopies::Event> after, Placed placed) {
  CallSpec& spec = call.spec;
  auto streamed = std::make_unique<StreamedCall>(copies, std::move(after), spec.stream, placed.from, placed.to,
                                                 std::move(placed.memory));
  if (must_prepare(spec, placed.from)) {
    streamed->prepare_by(spec.prepare, spec.prepare_context);
    spec.prepare = [](void* context) { return static_cast<StreamedCall*>(context)->begin_filling(); };
    spec.prepare_context = streamed.get();
  }
  const bool both = lies.in != WARREN_DEVICE_HOST && lies.out != WARREN_DEVICE_HOST;
  const bool lends = lends_.load(std::memory_order_relaxed) || exchange_ != nullptr;
  if (read_on_gpus(spec) && both && lends && group.size <= kMostRanksThatLend) {
    shares_.prepare(lies.device());
    if (exchange_ != nullptr) exchange_->prepare();
    streamed->may_lend(shares_);
  }
  call.buffers = std::move(streamed);
}

// Copies a call's buffers as a whole, before its round and after it; reads those of a send here.
Status Staging::stage_at_once(Call& call, DeviceCopies& copies, std::unique_ptr<DeviceCopies::Event> after,
                              Placed placed) {
  CallSpec& spec = call.spec;
  auto staged = std::make_unique<StagedCall>(copies, std::move(after), spec.stream);
  staged->input = placed.from;
  staged->output = placed.to;
  staged->memory = std::move(placed.memory);
  if (spec.collective == Collective::kPoint) {
    if (spec.sends) (void)staged->fill();
    if (const Status filled = staged->filled(); !filled.ok()) return filled;
  } else if (must_prepare(spec, placed.from)) {
    staged->prepare = spec.prepare;
    staged->prepare_context = spec.prepare_context;
    spec.prepare = [](void* context) { return static_cast<StagedCall*>(context)->fill(); };
    spec.prepare_context = staged.get();
  }
  call.buffers = std::move(staged);
  return {};
}

Result<std::unique_ptr<DeviceCopies::Event>> Staging::mark(const Lies& lies, void* stream) {
  if (lies.sizes.output == 0 || lies.device() == WARREN_DEVICE_HOST) return std::unique_ptr<DeviceCopies::Event>();
  return mark(lies.device(), stream);
}

Result<std::unique_ptr<DeviceCopies::Event>> Staging::mark(std::int32_t device, void* stream) {
  DeviceCopies& copies = copies_on(device);
  auto event = copies.make_event();
  if (!event.ok()) return event.status();
  if (const Status status = copies.record(*event.value(), stream); !status.ok()) return status;
  return event;
}

void Staging::add(const Lies& lies, std::unique_ptr<DeviceCopies::Event> after, PartsOnGpu& parts) {
  parts.after_.push_back(std::move(after));
  if (lies.sizes.output == 0) return;
  const std::int32_t device = lies.device();
  if (device == WARREN_DEVICE_HOST) {
    parts.scattered_ = true;
    return;
  }
  if (parts.empty()) parts.device_ = device;
  parts.scattered_ = parts.scattered_ || device != parts.device_ || lies.in != lies.out;
}

Result<bool> Staging::pack(const PartsOnGpu& parts, std::span<const std::shared_ptr<Call>> calls,
                           const GroupShape& group, Call& packed) {
  if (parts.scattered_) return false;
  PackedCall::Pieces inputs, outputs;
  std::uint64_t bytes = 0;
  for (const auto& call : calls) {
    const BufferBytes sizes = buffer_bytes(call->spec, group);
    if (sizes.output == 0) continue;
    inputs.push_back({const_cast<void*>(call->spec.input), sizes.input});
    outputs.push_back({call->spec.output, sizes.output});
    bytes += sizes.output;
  }
  auto block = snapshots_.take(parts.device_, bytes);
  if (!block.ok()) return block.status();
  if (block.value().data() == nullptr) return false;
  DeviceCopies& copies = copies_on(parts.device_);
  auto stream = copies.make_stream();
  if (!stream.ok()) return stream.status();
  for (const auto& after : parts.after_) {
    if (after == nullptr) continue;
    if (const Status status = copies.follow(*stream.value(), *after); !status.ok()) return status;
  }
  packed.spec.input = packed.spec.output = block.value().data();
  auto buffers = std::make_unique<PackedCall>(copies, std::move(stream).value(), std::move(block).value(),
                                              std::move(inputs), std::move(outputs));
  if (const Status status = buffers->prepare(); !status.ok()) return status;
  packed.spec.stream = buffers->lane();
  packed.spec.prepare = [](void* context) {
    static_cast<PackedCall*>(context)->pack();
    return 0;
  };
  packed.spec.prepare_context = buffers.get();
  if (const Status status = stage_whole(packed, group); !status.ok()) return status;
  buffers->around(std::move(packed.buffers));
  packed.buffers = std::move(buffers);
  return true;
}

Result<Staging::Copy> Staging::read(std::span<const std::byte> bytes, void* stream) {
  Copy out;
  out.bytes = bytes;
  if (bytes.empty()) return out;
  const auto device = device_of(bytes.data());
  if (!device.ok()) return device.status();
  if (device.value() == WARREN_DEVICE_HOST) return out;
  DeviceCopies& copies = copies_on(device.value());
  auto block = arena_.take(bytes.size());
  if (!block.ok()) return block.status();
  out.memory = std::move(block).value();
  auto after = copies.make_event();
  if (!after.ok()) return after.status();
  Status status = copies.record(*after.value(), stream);
  if (status.ok()) status = copies.to_host(out.memory.data(), bytes.data(), bytes.size(), *after.value());
  if (!status.ok()) {
    out.memory.abandon();
    return status;
  }
  out.bytes = {out.memory.data(), bytes.size()};
  return out;
}

Status Staging::write(std::span<std::byte> to, std::span<const std::byte> from, void* stream) {
  WARREN_CHECK(to.size() == from.size(), "the same bytes");
  if (to.empty()) return {};
  const auto device = device_of(to.data());
  if (!device.ok()) return device.status();
  if (device.value() == WARREN_DEVICE_HOST) {
    std::memcpy(to.data(), from.data(), from.size());
    return {};
  }
  DeviceCopies& copies = copies_on(device.value());
  auto block = arena_.take(std::min(kSliceBytes, from.size()));
  if (!block.ok()) return block.status();
  auto after = copies.make_event();
  if (!after.ok()) return after.status();
  Status status = copies.record(*after.value(), stream);
  for (std::size_t at = 0; at < from.size() && status.ok(); at += kSliceBytes) {
    const std::size_t bytes = std::min(kSliceBytes, from.size() - at);
    std::memcpy(block.value().data(), from.data() + at, bytes);
    status = copies.to_device(to.data() + at, block.value().data(), bytes, *after.value());
  }
  if (!status.ok()) block.value().abandon();
  return status;
}

Status Staging::append(std::vector<std::byte>& to, std::span<const std::byte> from, void* stream) {
  for (std::size_t at = 0; at < from.size(); at += kSliceBytes) {
    const auto slice = read(from.subspan(at, std::min(kSliceBytes, from.size() - at)), stream);
    if (!slice.ok()) return slice.status();
    to.insert(to.end(), slice.value().bytes.begin(), slice.value().bytes.end());
  }
  return {};
}

Result<bool> Staging::holds(std::span<const StatePiece> pieces) {
  std::int32_t device = WARREN_DEVICE_HOST;
  for (const StatePiece& piece : pieces) {
    const auto lies = where(piece);
    if (!lies.ok()) return lies.status();
    if (lies.value() == WARREN_DEVICE_HOST) continue;
    if (device != WARREN_DEVICE_HOST && lies.value() != device) {
      return Status(Code::kInvalidArgument, "checkpoint: states are on GPU " + std::to_string(device) + " and on GPU " +
                                                std::to_string(lies.value()));
    }
    device = lies.value();
  }
  return device != WARREN_DEVICE_HOST;
}

Result<std::int32_t> Staging::where(const StatePiece& piece) {
  return piece.bytes.empty() ? Result<std::int32_t>(WARREN_DEVICE_HOST) : device_of(piece.bytes.data());
}

Result<std::unique_ptr<Snapshot>> Staging::snapshot(std::span<const StatePiece> pieces, void* stream) {
  std::int32_t device = WARREN_DEVICE_HOST;
  std::uint64_t bytes = 0;  // on it
  std::vector<bool> there;
  for (const StatePiece& piece : pieces) {
    const auto lies = where(piece);
    if (!lies.ok()) return lies.status();
    there.push_back(lies.value() != WARREN_DEVICE_HOST);
    if (!there.back()) continue;
    device = lies.value();
    bytes += piece.bytes.size();
  }
  auto block = device == WARREN_DEVICE_HOST ? Result<DeviceMemory::Block>(DeviceMemory::Block())
                                            : snapshots_.take(device, bytes);
  if (!block.ok()) return block.status();
  std::vector<Snapshot::Copied> copied;
  std::vector<Snapshot::Kept> kept;
  std::vector<DeviceCopies::Within> within;
  std::uint64_t used = 0;
  for (std::size_t i = 0; i < pieces.size(); i++) {
    const StatePiece& piece = pieces[i];
    if (piece.bytes.empty()) continue;
    if (there[i] && block.value().data() != nullptr) {
      within.push_back({block.value().data() + used, piece.bytes.data(), piece.bytes.size()});
      used += piece.bytes.size();
      // Those that follow each other come as one: a state may consist of many small arrays.
      if (!kept.empty() && kept.back().state == piece.state && kept.back().at + kept.back().bytes == piece.at) {
        kept.back().bytes += piece.bytes.size();
      } else {
        kept.push_back({piece.state, piece.at, piece.bytes.size()});
      }
      continue;
    }
    if (copied.empty() || copied.back().state != piece.state ||
        copied.back().at + copied.back().bytes.size() != piece.at) {
      copied.push_back({piece.state, piece.at, {}});
    }
    if (const Status status = append(copied.back().bytes, piece.bytes, stream); !status.ok()) return status;
  }
  if (kept.empty()) return std::make_unique<Snapshot>(std::move(copied));
  DeviceCopies& copies = copies_on(device);
  auto cut = Snapshot::cut(kept);
  auto slots = arena_.take(Snapshot::slots_bytes(cut));
  if (!slots.ok()) return slots.status();
  auto after = copies.make_event();
  if (!after.ok()) return after.status();
  Status status = copies.record(*after.value(), stream);
  if (status.ok()) status = copies.within(within, *after.value());
  if (!status.ok()) {
    block.value().abandon();
    slots.value().abandon();
    return status;
  }
  return std::make_unique<Snapshot>(std::move(copied), std::move(cut), copies, std::move(after).value(),
                                    std::move(block).value(), std::move(slots).value());
}

}  // namespace warren::worker
