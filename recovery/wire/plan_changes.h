// A plan told by what has changed since one that the receiver has. Of 10,000 ranks one was replaced, say, and 9,999
// plans that name every member are 1.2 GB. Pure functions.
#pragma once

#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"

namespace warren {

// `after` as changes to `before`. Members that are not named and ring orders are as before, but that such a
// member is not fresh any more. Empty (base_generation is 0): the worlds differ in size, or all members have changed.
[[nodiscard]] wire::Plan changes_between(const wire::Plan& before, const wire::Plan& after);

// `changes` passed validate_told(); the result passes validate(). kRefused: they are to another plan, or lead to none
// that is valid.
[[nodiscard]] Result<wire::Plan> with_changes(const wire::Plan& before, const wire::Plan& changes);

}  // namespace warren
