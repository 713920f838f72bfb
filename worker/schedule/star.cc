// Gather and scatter: the root talks to everybody, chunk by chunk, so that all peers are served at once.
#include "worker/schedule/generators.h"

namespace warren::schedule {
namespace {

constexpr std::size_t kSlotsPerPeer = 2;
constexpr std::size_t kSlotsFromRoot = 4;

// Of one chunk to each rank, where pieces say that all are published.
void scatter_published(const Request& request, Builder& builder, Copies& copies) {
  if (request.rank != request.root) {
    Slot slot = builder.slot(request.count);
    const Operand from = slot.as(Form::kValue);
    builder.recv(request.root, from, request.count);
    builder.copy(output(0), from, request.count, false);
    return;
  }
  std::vector<StepId> published;
  for (std::int32_t distance = 0; distance < request.size; ++distance) {
    const std::int32_t peer = modulo(request.root + distance, request.size);
    const Range result{static_cast<std::uint64_t>(peer) * request.count, request.count};
    StepId step = kNoStep;
    if (peer == request.root) {
      step = builder.copy(output(0), input(result.at), result.count, false);
      step = copies.publish_received(peer, output(0), result, step);
    } else {
      step = copies.publish_sent(peer, input(result.at), result);
    }
    if (step != kNoStep) published.push_back(step);
  }
  const StepId all = builder.join(published);
  for (std::int32_t distance = 1; distance < request.size; ++distance) {
    const std::int32_t peer = modulo(request.root + distance, request.size);
    builder.send(peer, input(static_cast<std::uint64_t>(peer) * request.count), request.count, {all});
  }
}

}  // namespace

void star_gather(const Request& request, Builder& builder, Copies& copies) {
  const Range own{0, request.count};
  const std::uint64_t chunks = chunks_of(request.count, request.chunk_elements);
  std::vector<SlotRing> slots(static_cast<std::size_t>(request.size));
  for (std::int32_t peer = 0; request.rank == request.root && peer < request.size; ++peer) {
    if (peer == request.rank) continue;
    slots[static_cast<std::size_t>(peer)] = builder.slots(kSlotsPerPeer, cut(own, chunks, 0).count);
  }
  for (std::uint64_t c = 0; c < chunks; ++c) {
    const Range chunk = cut(own, chunks, c);
    for (std::int32_t distance = 0; distance < request.size; ++distance) {
      const std::int32_t peer = modulo(request.root + distance, request.size);
      const Range result{static_cast<std::uint64_t>(peer) * request.count + chunk.at, chunk.count};
      StepId final = kNoStep;
      if (left_out(request, result)) {
        // Nobody sends it.
      } else if (request.rank == request.root) {
        Operand from = input(chunk.at);
        if (peer != request.rank) {
          from = slots[static_cast<std::size_t>(peer)].next().as(Form::kValue);
          builder.recv(peer, from, chunk.count);
        }
        final = builder.copy(output(result.at), from, chunk.count, false);
        final = copies.publish_received(peer, output(result.at), result, final);
      } else if (request.rank == peer) {
        // The root then knows by the piece itself that it is published.
        const StepId kept = copies.publish_sent(request.root, input(chunk.at), result);
        builder.send(request.root, input(chunk.at), chunk.count, {kept});
      }
      copies.back_up(request.root, peer, result, result.at, final);
    }
  }
}

void star_scatter(const Request& request, Builder& builder, Copies& copies) {
  if (copies.pieces_say_all()) return scatter_published(request, builder, copies);
  const Range own{0, request.count};
  const std::uint64_t chunks = chunks_of(request.count, request.chunk_elements);
  SlotRing slots;
  if (request.rank != request.root) slots = builder.slots(kSlotsFromRoot, cut(own, chunks, 0).count);
  for (std::uint64_t c = 0; c < chunks; ++c) {
    const Range chunk = cut(own, chunks, c);
    StepId final = kNoStep;
    for (std::int32_t distance = 0; distance < request.size; ++distance) {
      const std::int32_t peer = modulo(request.root + distance, request.size);
      const Range result{static_cast<std::uint64_t>(peer) * request.count + chunk.at, chunk.count};
      if (left_out(request, result)) continue;
      if (request.rank == peer) {
        Operand from = input(result.at);
        if (peer != request.root) {
          from = slots.next().as(Form::kValue);
          builder.recv(request.root, from, chunk.count);
        }
        final = builder.copy(output(chunk.at), from, chunk.count, false);
        final = copies.publish_received(request.root, output(chunk.at), result, final);
      } else if (request.rank == request.root) {
        const StepId kept = copies.publish_sent(peer, input(result.at), result);
        builder.send(peer, input(result.at), chunk.count, {kept});
      }
    }
    for (const std::int32_t owner : copies.owners()) {
      copies.back_up(owner, request.root, {static_cast<std::uint64_t>(owner) * request.count + chunk.at, chunk.count},
                     chunk.at, final);
    }
  }
}

}  // namespace warren::schedule
