#include "worker/life/state_hashes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "recovery/base/limits.h"
#include "recovery/wire/state_digest.h"
#include "storage/xxh3.h"

namespace warren::worker {
namespace {

static_assert(limits::kStatePieceBytes % StateHashes::kBlockBytes == 0, "blocks make up what a digest has a hash for");

}  // namespace

std::uint64_t hash_of_state(std::span<const std::byte> bytes) {
  const std::uint64_t hash = xxh3(bytes);
  return hash == 0 ? 1 : hash;
}

StateHashes::StateHashes(std::uint64_t state_bytes)
    : state_bytes_(state_bytes), hashes_((state_bytes + kBlockBytes - 1) / kBlockBytes) {}

std::uint64_t hash_of_placed(const PlacedState& state) {
  const std::uint64_t hash = xxh3_of_pieces(state.places());
  return hash == 0 ? 1 : hash;
}

StateHashes::StateHashes(const PlacedState& state) : StateHashes(state.size()) {
  add_outside({}, state);
}

Result<StateHashes> StateHashes::of(std::uint64_t state_bytes, std::vector<std::uint64_t> hashes) {
  StateHashes made(state_bytes);
  if (hashes.size() != made.blocks() || std::ranges::find(hashes, 0u) != hashes.end()) {
    return Status(Code::kCorrupt, "a state of " + std::to_string(state_bytes) + " bytes does not have these " +
                                      std::to_string(hashes.size()) + " hashes");
  }
  made.hashes_ = std::move(hashes);
  return made;
}

Interval StateHashes::block(std::uint64_t index) const {
  const std::uint64_t begin = index * kBlockBytes;
  return {begin, std::min(state_bytes_, begin + kBlockBytes)};
}

void StateHashes::add(std::uint64_t index, std::span<const std::byte> bytes) {
  hashes_[index] = hash_of_state(bytes);
}

void StateHashes::add_outside(const Ranges& bytes, const PlacedState& state) {
  std::vector<std::byte> scratch;
  for (std::uint64_t i = 0; i < blocks(); ++i) {
    const Interval b = block(i);
    if (!bytes.covers(b.begin, b.end)) add(i, state.bytes(b.begin, b.end, scratch));
  }
}

bool StateHashes::contradicts(std::uint64_t at, std::span<const std::byte> bytes) const {
  for (std::uint64_t i = (at + kBlockBytes - 1) / kBlockBytes; i < blocks(); ++i) {
    const Interval b = block(i);
    if (b.end > at + bytes.size()) break;
    if (has(i) && hashes_[i] != hash_of_state(bytes.subspan(b.begin - at, b.end - b.begin))) return true;
  }
  return false;
}

wire::StateDigest StateHashes::digest(bool has_local, std::uint32_t world_size) const {
  wire::StateDigest d;
  d.set_global_bytes(state_bytes_);
  d.set_has_local(has_local);
  if (state_bytes_ == 0) return d;
  d.set_piece_bytes(digest_piece_bytes(state_bytes_, world_size));
  const std::uint64_t together = d.piece_bytes() / kBlockBytes;
  for (std::uint64_t first = 0; first < blocks(); first += together) {
    const auto these = std::span(hashes_).subspan(first, std::min(together, blocks() - first));
    const bool whole = std::ranges::find(these, 0u) == these.end();
    d.add_hashes(whole ? hash_of_state(std::as_bytes(these)) : 0);
  }
  return d;
}

}  // namespace warren::worker
