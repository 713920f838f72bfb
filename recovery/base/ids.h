// Identifiers. Each is a type of its own, so that a generation is never passed for a version.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace warren {

template <class Tag, class Int>
struct Id {
  using value_type = Int;
  Int value{};

  constexpr Id() = default;
  constexpr explicit Id(Int v) : value(v) {}
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
  [[nodiscard]] constexpr Id next() const { return Id(static_cast<Int>(value + 1)); }
};

// A worker's stable slot in the job, 0 … world size − 1.
using Rank = Id<struct RankTag, std::int32_t>;
// One membership of the job; raised by the tracker alone. 0: none yet.
using Generation = Id<struct GenerationTag, std::uint64_t>;
// One process life of a worker or of the tracker: random, never 0.
using Incarnation = Id<struct IncarnationTag, std::uint64_t>;
// Of a tracker's right to decide: workers obey the highest that they have heard of, and the tracker that said it.
using Term = Id<struct TermTag, std::uint64_t>;
// Raised by each rollback.
using Timeline = Id<struct TimelineTag, std::uint32_t>;
// Where rounds stand: 0, the preamble, before the program has loaded; then 1 + how many checkpoints it has taken. So it
// is one more than the version of docs/glossary.md, which people read: texts for them subtract 1.
using Version = Id<struct VersionTag, std::uint64_t>;
inline constexpr Version kPreamble{0};
// What the program calls version v is Version(v + 1): see above.
[[nodiscard]] constexpr Version version_of_program(std::uint64_t v) {
  return Version(v + 1);
}
// Position of a round within its version and group.
using Sequence = Id<struct SequenceTag, std::uint64_t>;
// The job's whole world is group 0; groups split from it carry a hash of how they were made.
using GroupId = Id<struct GroupTag, std::uint64_t>;

inline constexpr GroupId kWorldGroup{0};
inline constexpr Rank kNoRank{-1};

// The name of one round.
struct RoundId {
  Timeline timeline;
  GroupId group;
  Version version;
  Sequence sequence;
  friend constexpr auto operator<=>(const RoundId&, const RoundId&) = default;
};

// A set-up round keeps its result for the whole job, under a name: its version is 0, its sequence a hash of the name
// with this bit set, its timeline the one in which it was first called.
inline constexpr std::uint64_t kSetupBit = std::uint64_t{1} << 63;
[[nodiscard]] constexpr bool is_setup(const RoundId& round) {
  return round.version == kPreamble && (round.sequence.value & kSetupBit) != 0;
}

// "round 3.17" or "round 3.17 of group 1f": the program's version and the sequence, for people; "round p.17" in the
// preamble; "set-up round 8c5f…" with its name's hash.
[[nodiscard]] std::string to_string(const RoundId& round);

}  // namespace warren

template <class Tag, class Int>
struct std::hash<warren::Id<Tag, Int>> {
  std::size_t operator()(const warren::Id<Tag, Int>& id) const noexcept { return std::hash<Int>{}(id.value); }
};
