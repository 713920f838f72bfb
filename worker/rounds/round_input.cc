#include "worker/rounds/round_input.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace warren::worker {
namespace {

constexpr std::size_t kMostKept = std::size_t{64} << 20;  // between two rounds

}  // namespace

Status RoundInput::keep(const Call& call) {
  const CallSpec& spec = call.spec;
  if (is_kept_ || spec.input == nullptr || spec.input != spec.output) return {};
  const std::uint64_t bytes = spec.count * element_bytes(spec);
  if (bytes == 0) return {};
  std::byte* const copy = copy_.try_reserve(bytes);
  if (copy == nullptr) {
    return {Code::kExhausted,
            "mode shrink keeps a copy of an input that its result takes the place of, and there is no "
            "memory for " +
                std::to_string(bytes) + " bytes in " + name_of(call) +
                ": give the result another buffer, make several smaller calls, or give the "
                "process more memory"};
  }
  std::memcpy(copy, spec.input, bytes);
  is_kept_ = true;
  return {};
}

void RoundInput::forget() {
  is_kept_ = false;
  if (copy_.bytes() > kMostKept) copy_.give_back();
}

void RoundInput::order(const Call& call, const GroupShape& shape, const PreparedSchedule* prepared) {
  BufferStream& stream = *stream_of(call);
  const std::uint64_t width = element_bytes(call.spec);
  const BufferBytes sizes = buffer_bytes(call.spec, shape);
  const std::uint64_t input_bytes = is_root_of_broadcast(call.spec, shape.rank) ? sizes.output : sizes.input;
  pieces_ = input_order(prepared == nullptr ? schedule::Schedule() : prepared->schedule(), input_bytes / width,
                        std::max<std::uint64_t>(1, stream.most_bytes(shape.size) / width));
  std::vector<ByteRange> bytes;
  for (const InputPiece& piece : pieces_) bytes.push_back({piece.at * width, piece.count * width});
  stream.order(std::move(bytes));
}

bool is_root_of_broadcast(const CallSpec& spec, std::int32_t rank) {
  return spec.collective == Collective::kBroadcast && spec.root == rank;
}

}  // namespace warren::worker
