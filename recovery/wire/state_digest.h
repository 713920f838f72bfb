// Compares what ranks say of the states that they have given to one checkpoint. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "recovery/wire/messages.pb.h"

namespace warren {

// How many bytes of a global state one hash of its digest stands for: limits::kStatePieceBytes, or so many times more
// (a power of two) that all ranks' digests together stay within their limit. The same on all ranks of a plan.
[[nodiscard]] std::uint64_t digest_piece_bytes(std::uint64_t state_bytes, std::uint32_t world_size);

// Names the ranks whose states differ, and how: in their lengths, in whether there are local states, or in the bytes of
// the first piece that is not equal. Empty: nothing differs. `digests` by rank; `name` says who a rank is. A piece that
// has no hash (0) is not compared.
[[nodiscard]] std::string difference_of_states(const std::map<std::size_t, wire::StateDigest>& digests,
                                               const std::function<std::string(std::size_t)>& name);

// Whether somebody holds another local state of a rank than that one has given: of an earlier life. Empty: nobody.
[[nodiscard]] std::string stale_copy(const std::map<std::size_t, wire::Vote>& votes,
                                     const std::function<std::string(std::size_t)>& name);

}  // namespace warren
