// What a host's memory says of rounds that no living rank may have seen: whoever has logged something of a round had
// completed those before it, and may have returned them.
#pragma once

#include <optional>
#include <span>

#include "recovery/base/ids.h"
#include "recovery/wire/messages.pb.h"
#include "storage/host_log.h"

namespace warren::worker {

// Of the newest timeline that memory has rounds of, in this run. What is too much for a message
// (recovery/base/limits.h) is left out, ranges first: it is computed again.
[[nodiscard]] wire::Logged logged_on(HostLogReader& reader, std::uint64_t run);
// For a join, of a log to which what the launcher has kept is attached, the segment of the worker's own last life among
// it: also the lives. Nothing where they are of several runs: those of the newer one have logged nothing, or the
// others' segments would have gone.
[[nodiscard]] wire::Logged kept_in(const HostLog& log);
// Of a round in flight, by the records that this host has of it: how long its result is; 0: that is not known, or it
// has no bytes.
[[nodiscard]] std::uint64_t whole_bytes(HostLogReader& reader, const RecordKey& key);
// Likewise, and of the world's whether it has none.
void say_of_whole(HostLogReader& reader, const RecordKey& key, wire::Position& position);
// The newest results that lives of this host have given up; nothing: none have.
[[nodiscard]] std::optional<wire::GivenUp> given_up_in(const HostLog& log);
[[nodiscard]] bool says_nothing(const wire::Logged& logged);

}  // namespace warren::worker
