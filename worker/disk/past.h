// What the lives before this one have left on a disk, as the tracker is told of it, and what this life leaves to those
// after it.
//
// Threads: as storage::ResultStore.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "recovery/base/ids.h"
#include "recovery/base/result.h"
#include "recovery/wire/messages.pb.h"
#include "storage/result_store.h"

namespace warren::worker {

struct Past {
  wire::Held held;
  // Whether there is anything of the committed checkpoint, or of what came after it; not where nothing was committed.
  bool serves = false;
};
// Of the run that most generations' notes name; from here on the store reads what belongs to it. nullopt: nothing is
// there.
[[nodiscard]] std::optional<Past> past_on(storage::ResultStore& store);

// What a life says in its join, with what the job's mirror of checkpoints holds (worker/disk/mirror.h). A disk that has
// nothing but notes is as good as an empty one: they are of lives that have found neither disk nor mirror.
[[nodiscard]] std::optional<wire::Held> with_mirror(std::optional<Past> past, std::optional<wire::Held> mirrored);

// For a host that has no rank in the newest plan: what its lives have left on disk, checkpoints that were not committed
// among it, may differ from what the others have computed since, and is read and reported no more. `called`: the
// generation of the interrupt that ended that plan; lives that are in a newer one, or were on another host, are not
// meant. Errors as of ResultStore::leave_out().
[[nodiscard]] Status leave_out_stale(storage::ResultStore& store, const std::string& host_id, Generation called);

// Whether a life of this one's host has gone with the plan `now`, or may have: what it alone has on the host's disk, of
// lives before it too, is for all that are left there to read, whether a new life of its worker comes or not. `before`:
// the plan that this life was in; without members: none.
[[nodiscard]] bool leaves_host(const wire::Plan& before, const wire::Plan& now, Rank self);
[[nodiscard]] std::vector<Incarnation> lives_of(const wire::Plan& plan);

// What a life knows that has installed this plan.
[[nodiscard]] wire::Known known_of(const wire::Plan& plan);
// `known` has been brought up to date since. A plan that is too long to be told stays out.
[[nodiscard]] storage::ResultStore::Note note_of(const wire::Known& known);

}  // namespace warren::worker
