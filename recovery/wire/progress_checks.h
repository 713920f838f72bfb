// Checks of how far a job has come: rounds, set-up rounds, versions and timelines, as reports, votes and plans say
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "recovery/base/result.h"
#include "recovery/wire/codec.h"
#include "recovery/wire/messages.pb.h"

namespace warren::checks {

// The most that numbers of rounds and versions, and timelines, may be. The tracker counts on from the numbers of
// workers, and its plans and records say more then.
struct Most {
  std::uint64_t count;
  std::uint32_t timeline;
};
inline constexpr Most kOfClaims{kMaxVersion / 2, UINT32_MAX / 2}, kOfDecisions{kMaxVersion, UINT32_MAX - 1};

[[nodiscard]] std::string name_of(const wire::Position& p);
[[nodiscard]] Status validate_timeline(std::uint32_t timeline, const Most& most);
[[nodiscard]] Status validate_positions(const google::protobuf::RepeatedPtrField<wire::Position>& positions,
                                        std::size_t most_ranges, const Most& most);
// most_ranges 0: all of them are done.
[[nodiscard]] Status validate_setups(const google::protobuf::RepeatedPtrField<wire::Setup>& setups, std::size_t most,
                                     std::size_t most_ranges);
[[nodiscard]] Status validate_given_up(const wire::GivenUp& g);
[[nodiscard]] Status validate_logged(const wire::Logged& l);
// `after`: where the run before it ends.
[[nodiscard]] Status validate_run(const wire::HeldRun& run, std::uint64_t after);
// The committed version of a plan, a record or an answer.
[[nodiscard]] Status validate_committed(bool committed, std::uint64_t version, std::uint32_t timeline,
                                        const Most& most);

}  // namespace warren::checks
