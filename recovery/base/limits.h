// Every limit of the protocol, in one place, with the relations between them checked here.
#pragma once

#include <cstddef>
#include <cstdint>

namespace warren::limits {

inline constexpr std::uint32_t kMaxWorldSize = 16384;
inline constexpr std::size_t kMaxJobNameBytes = 128;
inline constexpr std::size_t kMaxWorkerIdBytes = 128;
inline constexpr std::size_t kMaxHostIdBytes = 128;
inline constexpr std::size_t kMaxAddressBytes = 128;
inline constexpr std::size_t kMaxEndpointsPerWorker = 8;
inline constexpr std::size_t kMaxReasonBytes = 4096;
inline constexpr std::size_t kMaxRoundTextBytes = 96;
inline constexpr std::size_t kMaxRoundsPerHeartbeat = 16;
inline constexpr std::size_t kMaxLinksPerHeartbeat = 16;
// A life that has more of them does not say that it is blocked.
inline constexpr std::size_t kMaxBlockedCalls = 16;
inline constexpr std::size_t kMaxBlockedGroups = 32;
inline constexpr std::size_t kMaxBlockedLinks = 32;  // for messages
// Of each of a life's counters: sums over lives stay far from where 64 bits end.
inline constexpr std::uint64_t kMaxGpuCount = std::uint64_t{1} << 48;
inline constexpr std::uint64_t kMaxLogBytes = std::uint64_t{1} << 48;  // of one life's log in memory
inline constexpr std::size_t kMaxSpares = 1024;                        // that wait, of one job
inline constexpr std::uint32_t kMaxCores = 65536;                      // of a host
inline constexpr std::size_t kMaxVerdicts = 64;                        // of stragglers, standing in one job
inline constexpr std::size_t kMaxSegmentSocketBytes = 107;  // an abstract Unix address without its leading zero

// Recovery.
inline constexpr std::uint32_t kMaxReplicas = 16;
// In a report, a vote, or a plan's frontier: groups times versions that are not committed.
inline constexpr std::size_t kMaxPositions = 16384;
// Versions that a rank has taken and the tracker has not committed, because it is away.
inline constexpr std::size_t kMaxPendingVersions = 256;
// Of rounds in flight: in one report, and in the union of all.
inline constexpr std::size_t kMaxRangesPerReport = 16384;
inline constexpr std::size_t kMaxRangesPerFrontier = 65536;
inline constexpr std::size_t kMaxPositionBytes = 36;  // without its ranges
inline constexpr std::size_t kMaxRangeBytes = 24;
// Set-up rounds, whose results stay in the log for as long as the job lasts: those that one life calls (so one report
// or vote), the bytes of their whole results together, and those of a job.
inline constexpr std::size_t kMaxSetups = 1024;
inline constexpr std::uint64_t kMaxSetupBytes = std::uint64_t{1} << 30;
inline constexpr std::size_t kMaxSetupsPerJob = 4096;
inline constexpr std::size_t kMaxSetupNameBytes = 128;
inline constexpr std::size_t kMaxSetupEntryBytes = 32;         // without its ranges
inline constexpr std::size_t kMaxSetupRangesPerReport = 1024;  // of those in flight
inline constexpr std::size_t kMaxSetupRangesPerPlan = 16384;
// What the memory of a host is said to hold when its lives join: what is over is computed again, and lives count as
// lost.
inline constexpr std::size_t kMaxLoggedPositions = 1024;
inline constexpr std::size_t kMaxLoggedRanges = 4096;
inline constexpr std::size_t kMaxLoggedSetups = 512;
inline constexpr std::size_t kMaxLoggedLives = 2048;
// What the disk of a host is said to hold when its lives join: what is over is left out, and counts as not held.
inline constexpr std::size_t kMaxHeldRounds = 4096;
inline constexpr std::size_t kMaxHeldRuns = 8192;
inline constexpr std::size_t kMaxHeldRanges = 8192;
inline constexpr std::size_t kMaxHeldRoundsBytes = 32;  // without its runs
inline constexpr std::size_t kMaxHeldRunBytes = 48;     // without its ranges
// A plan that is longer is not told by disks: such a job needs its tracker's journal.
inline constexpr std::size_t kMaxHeldPlanBytes = std::size_t{64} << 10;
// In a plan: rounds that keep the names of older timelines.
inline constexpr std::size_t kMaxKept = 16384;
inline constexpr std::size_t kMaxKeptBytes = 40;
// In a plan: ranks without whose inputs the rounds of a timeline are, over all its timelines.
inline constexpr std::size_t kMaxAbsences = 16384;
inline constexpr std::size_t kMaxAbsenceBytes = 12;  // of one rank; a timeline has at least one
// What the tracker keeps of one job's reports and votes.
inline constexpr std::size_t kMaxPositionBytesPerJob = std::size_t{64} << 20;
// And of what the disks and the memory of hosts hold; the least that is kept of each disk.
inline constexpr std::size_t kMaxJoinBytesPerJob = std::size_t{64} << 20;
inline constexpr std::size_t kMaxShortHeldBytes = 128;
static_assert(kMaxJoinBytesPerJob / kMaxShortHeldBytes > std::size_t{2} * kMaxWorldSize);

// A plan lists every member; nothing else on the control plane comes near it.
inline constexpr std::size_t kMaxMemberBytes = kMaxWorkerIdBytes + 2 * kMaxHostIdBytes +
                                               kMaxEndpointsPerWorker * (kMaxAddressBytes + 16) +
                                               kMaxSegmentSocketBytes + 128;
inline constexpr std::size_t kMaxCostsBytes = 8192;  // of the job's settings
inline constexpr std::size_t kMaxFrontierBytes = kMaxPositions * kMaxPositionBytes +
                                                 kMaxRangesPerFrontier * kMaxRangeBytes + kMaxKept * kMaxKeptBytes +
                                                 kMaxAbsences * kMaxAbsenceBytes;
// Lives of a job that never come back, in the tracker's memory and in its journal.
constexpr std::size_t retired_lives(std::size_t world_size) {
  return 4 * world_size < 256 ? 256 : 4 * world_size;
}

inline constexpr std::size_t kMaxControlMessageBytes = std::size_t{32} << 20;
static_assert((kMaxWorldSize + kMaxReplicas) * (kMaxMemberBytes + 8) + kMaxFrontierBytes +
                      2 * kMaxSetupsPerJob * kMaxSetupEntryBytes + kMaxSetupRangesPerPlan * kMaxRangeBytes +
                      3 * kMaxReasonBytes + 2 * kMaxRoundTextBytes + 2 * kMaxCostsBytes +
                      8 * retired_lives(kMaxWorldSize) <=
                  kMaxControlMessageBytes,
              "the largest plan fits in one message, and with the interrupt that ended it in the journal");

// Data plane. A frame carries one chunk.
inline constexpr std::size_t kMinChunkBytes = 1024;
inline constexpr std::size_t kDefaultChunkBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMaxChunkBytes = std::size_t{4} << 20;
inline constexpr std::uint32_t kMaxStreams = 16;
inline constexpr std::size_t kMaxRelays = kMaxStreams;  // of one link, which has a stream by each of them
inline constexpr std::size_t kMaxDetours = 64;          // in one plan
inline constexpr std::size_t kMaxRingOrders = 2;        // likewise: the one in force, and one that is to come
inline constexpr std::size_t kMaxRelayed = 512;         // connections between others that one rank passes on
// A collective moves at most this many bytes per rank: offsets and byte counts never overflow 63 bits.
inline constexpr std::uint64_t kMaxBufferBytes = std::uint64_t{1} << 46;
inline constexpr std::uint64_t kMaxTag = (std::uint64_t{1} << 31) - 1;
// A user's reduction works on elements up to this size: one has to fit in a chunk.
inline constexpr std::size_t kMaxCustomElementBytes = kMaxChunkBytes;
// Each rank holds what each rank sends to each rank: 32 MiB of counts.
inline constexpr std::uint32_t kMaxUnevenExchange = 2048;
inline constexpr std::uint64_t kMaxResultBytes = kMaxBufferBytes * kMaxWorldSize;  // over all ranks
static_assert(kMinChunkBytes <= kDefaultChunkBytes && kDefaultChunkBytes <= kMaxChunkBytes);
static_assert(kMaxBufferBytes <= INT64_MAX / kMaxWorldSize, "total bytes over all ranks fit in 63 bits");

// A checkpoint's global state, or one rank's local one: whoever loads it has it in memory.
inline constexpr std::uint64_t kMaxStateBytes = std::uint64_t{1} << 38;

// Hashes by which ranks find out whether their global states are equal: one for each piece of so many bytes, or for
// several where a job would have more of them.
inline constexpr std::uint64_t kStatePieceBytes = std::uint64_t{1} << 20;
inline constexpr std::size_t kMaxStateHashes = 1024;  // of one rank
inline constexpr std::size_t kMaxLocalCopies = 1024;  // that a vote names
inline constexpr std::size_t kMaxLocalCopyBytes = 16;
inline constexpr std::size_t kMaxStateHashesPerJob = std::size_t{1} << 18;
constexpr std::size_t state_hashes(std::size_t world_size) {
  const std::size_t each = kMaxStateHashesPerJob / world_size;
  return each < 1 ? 1 : each > kMaxStateHashes ? kMaxStateHashes : each;
}

// Fetching what is logged. A reply is a head, and the bytes of the pieces that it answers.
inline constexpr std::size_t kMaxFetchPieces = 4096;
inline constexpr std::size_t kMaxFetchEntries = 4096;
inline constexpr std::size_t kMaxQuestionSites = 16;   // from where one round may be called
inline constexpr std::size_t kMaxFetchRanges = 16384;  // in one reply, over all entries
inline constexpr std::size_t kMaxFetchRequestBytes = std::size_t{256} << 10;
inline constexpr std::size_t kMaxFetchHeadBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMaxFetchPayloadBytes = std::size_t{8} << 20;
inline constexpr std::size_t kMaxFetchReplyBytes = kMaxFetchHeadBytes + kMaxFetchPayloadBytes;
static_assert(kMaxFetchPieces * 40 + 256 <= kMaxFetchRequestBytes, "a piece takes at most 40 bytes");
static_assert(kMaxFetchEntries * 112 + kMaxFetchRanges * 24 + 256 <= kMaxFetchHeadBytes,
              "an entry takes at most 112 bytes, a range 24");

// Queues.
inline constexpr std::size_t kMaxOutstandingRounds = 4096;  // asynchronous calls not yet finished, per worker
inline constexpr std::size_t kMaxUnexpectedBytes = std::size_t{64} << 20;  // early point-to-point payload, per peer
inline constexpr std::size_t kMaxPendingHandshakes = 1024;
inline constexpr std::size_t kMaxJobsPerTracker = 1024;
inline constexpr std::size_t kMaxGroups = 4096;

// Time. The user gives the round timeout; the rest derives from it.
inline constexpr std::int64_t kMinRoundTimeoutMs = 100;
inline constexpr std::int64_t kDefaultRoundTimeoutMs = 10'000;
inline constexpr std::int64_t kMaxRoundTimeoutMs = 24LL * 3600 * 1000;
inline constexpr std::int64_t kHeartbeatsPerRoundTimeout = 5;
inline constexpr std::int64_t kMaxHeartbeatIntervalMs = 1000;
// Who waits to join, and has been told that it is heard, says so again so many times until it would count as lost.
inline constexpr std::int64_t kJoinsPerRoundTimeout = 4;
// Who is silent for so many intervals is suspected, long before it counts as lost.
inline constexpr std::int64_t kSuspectHeartbeats = 3;
static_assert(kSuspectHeartbeats < kHeartbeatsPerRoundTimeout);
// What was of no use to a job that is lost takes it up again only after so many.
inline constexpr std::int64_t kLookAgainRoundTimeouts = 4;
// What each rank does is looked at so often within an interval, and judged over so many of them.
inline constexpr std::int64_t kSamplesPerHeartbeat = 10;
inline constexpr std::int64_t kMinSampleIntervalMs = 10;
inline constexpr std::int64_t kHeartbeatsPerWindow = 10;
inline constexpr std::int64_t kDefaultJoinTimeoutMs = 300'000;
// From the notice that a worker's place is needed elsewhere until it has left.
inline constexpr std::int64_t kDefaultDrainMs = 10'000;
inline constexpr std::int64_t kMaxDrainMs = 24LL * 3600 * 1000;
// From when a rank is found to hold up the others until a spare takes its place; and from one such replacement to the
// next, over which much may change.
inline constexpr std::int64_t kMaxReplaceAfterMs = 24LL * 3600 * 1000;
inline constexpr std::int64_t kWindowsBetweenReplacements = 10;
// For which a job waits for lost ranks before it goes on without them.
inline constexpr std::int64_t kMaxGraceMs = 24LL * 3600 * 1000;
// As it counts: 22809 is 2.28.9.
inline constexpr std::uint32_t kMaxNcclVersion = 10'000'000;

}  // namespace warren::limits
