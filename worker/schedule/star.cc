// Gather and scatter: the root talks to everybody, chunk by chunk, so that all peers are served at once.
#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

constexpr std::size_t kSlotsPerPeer = 2;
constexpr std::size_t kSlotsFromRoot = 4;

}  // namespace

void star_gather(const Request& request, Builder& builder) {
  const Range own{0, request.count};
  const std::uint64_t chunks = chunks_of(request.count, request.chunk_elements);
  if (request.rank != request.root) {
    for (std::uint64_t c = 0; c < chunks; ++c) {
      const Range chunk = cut(own, chunks, c);
      builder.send(request.root, input(chunk.at), chunk.count);
    }
    return;
  }
  std::vector<SlotRing> slots;
  for (std::int32_t peer = 0; peer < request.size; ++peer) {
    slots.push_back(peer == request.rank ? SlotRing() : builder.slots(kSlotsPerPeer, cut(own, chunks, 0).count));
  }
  for (std::uint64_t c = 0; c < chunks; ++c) {
    const Range chunk = cut(own, chunks, c);
    for (std::int32_t distance = 0; distance < request.size; ++distance) {
      const std::int32_t peer = modulo(request.rank + distance, request.size);
      const Operand place = output(static_cast<std::uint64_t>(peer) * request.count + chunk.at);
      if (peer == request.rank) {
        builder.copy(place, input(chunk.at), chunk.count, false);
        continue;
      }
      const Operand received = slots[static_cast<std::size_t>(peer)].next().as(Form::kValue);
      builder.recv(peer, received, chunk.count);
      builder.copy(place, received, chunk.count, false);
    }
  }
}

void star_scatter(const Request& request, Builder& builder) {
  const Range own{0, request.count};
  const std::uint64_t chunks = chunks_of(request.count, request.chunk_elements);
  SlotRing slots;
  if (request.rank != request.root) slots = builder.slots(kSlotsFromRoot, cut(own, chunks, 0).count);
  for (std::uint64_t c = 0; c < chunks; ++c) {
    const Range chunk = cut(own, chunks, c);
    if (request.rank != request.root) {
      const Operand received = slots.next().as(Form::kValue);
      builder.recv(request.root, received, chunk.count);
      builder.copy(output(chunk.at), received, chunk.count, false);
      continue;
    }
    for (std::int32_t distance = 0; distance < request.size; ++distance) {
      const std::int32_t peer = modulo(request.rank + distance, request.size);
      const Operand block = input(static_cast<std::uint64_t>(peer) * request.count + chunk.at);
      if (peer == request.rank) {
        builder.copy(output(chunk.at), block, chunk.count, false);
      } else {
        builder.send(peer, block, chunk.count);
      }
    }
  }
}

}  // namespace warren::schedule
