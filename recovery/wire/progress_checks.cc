#include "recovery/wire/progress_checks.h"

#include <utility>

#include "recovery/base/ids.h"
#include "recovery/base/limits.h"
#include "recovery/base/text.h"
#include "recovery/wire/field_checks.h"

namespace warren::checks {
namespace {

// The result of the round that is in flight: the bytes of it that are final.
template <class Known>
Status validate_final(const Known& p) {
  static constexpr std::uint64_t kMostBytes = limits::kMaxBufferBytes * limits::kMaxWorldSize;
  if (p.total_bytes() > limits::kMaxResultBytes || (p.total_bytes() != 0 && p.final().empty())) {
    return bad("a whole result of " + str(p.total_bytes()) + " bytes");
  }
  std::uint64_t last = 0;
  for (const wire::ByteRange& range : p.final()) {
    if (range.begin() >= range.end()) return bad("the range " + str(range.begin()) + " is empty");
    if (range.begin() < last) return bad("ranges are not in rising order, or overlap");
    if (range.end() > kMostBytes) return bad("a range ends at " + str(range.end()) + ", no result is as large");
    last = range.end();
  }
  return {};
}

}  // namespace

std::string name_of(const wire::Position& p) {
  const std::string version = p.version() == 0 ? "the preamble" : "version " + str(p.version() - 1);
  return "position in " + version + (p.group() == 0 ? "" : " of group " + hex(p.group()));
}

Status validate_timeline(std::uint32_t timeline, const Most& most) {
  return timeline <= most.timeline ? Status() : bad("timeline " + str(timeline) + " is over the limit");
}

Status validate_positions(const google::protobuf::RepeatedPtrField<wire::Position>& positions, std::size_t most_ranges,
                          const Most& most) {
  if (static_cast<std::size_t>(positions.size()) > limits::kMaxPositions) {
    return bad(str(positions.size()) + " positions are over the limit of " + str(limits::kMaxPositions));
  }
  std::size_t ranges = 0;
  const wire::Position* last = nullptr;
  for (const wire::Position& p : positions) {
    const auto wrong = [&](const std::string& why) { return bad(name_of(p) + ": " + why); };
    if (last != nullptr && std::pair(last->group(), last->version()) >= std::pair(p.group(), p.version())) {
      return wrong("not in rising order, or it stands twice");
    }
    if (p.version() > most.count) return wrong("version is over the limit");
    if (p.rounds() > most.count) return wrong("number of rounds is over the limit");
    if (p.closed() && p.final_size() != 0) return wrong("it is closed, and a round is in flight");
    if (Status s = validate_final(p); !s.ok()) return s.because_of_this(name_of(p));
    if (p.empty() && (p.group() != 0 || p.closed() || p.final_size() != 0)) return wrong("a result without bytes");
    ranges += static_cast<std::size_t>(p.final_size());
    last = &p;
  }
  if (ranges > most_ranges) return bad(str(ranges) + " ranges are over the limit of " + str(most_ranges));
  return {};
}

Status validate_setups(const google::protobuf::RepeatedPtrField<wire::Setup>& setups, std::size_t most,
                       std::size_t most_ranges) {
  if (static_cast<std::size_t>(setups.size()) > most) {
    return bad(str(setups.size()) + " set-up rounds are over the limit of " + str(most));
  }
  std::size_t ranges = 0;
  const wire::Setup* last = nullptr;
  for (const wire::Setup& s : setups) {
    const auto wrong = [&](const std::string& why) { return bad("set-up round " + hex(s.name()) + ": " + why); };
    if (last != nullptr && std::pair(last->group(), last->name()) >= std::pair(s.group(), s.name())) {
      return wrong("not in rising order, or it stands twice");
    }
    // The greatest number ends listings.
    if ((s.name() & kSetupBit) == 0 || s.name() == UINT64_MAX) return wrong("not the hash of a name");
    if (s.done() && s.final_size() != 0) return wrong("it is done, and in flight");
    if (most_ranges == 0 && !s.done()) return wrong("it is not done");
    if (Status status = validate_final(s); !status.ok()) {
      return status.because_of_this("set-up round " + hex(s.name()));
    }
    ranges += static_cast<std::size_t>(s.final_size());
    last = &s;
  }
  if (ranges > most_ranges) return bad(str(ranges) + " ranges of set-up rounds are over the limit");
  return {};
}

Status validate_given_up(const wire::GivenUp& g) {
  if (Status s = validate_timeline(g.timeline(), kOfClaims); !s.ok()) return s;
  return in_range("version of results that were given up", g.version(), 0, kOfClaims.count);
}

Status validate_logged(const wire::Logged& l) {
  if (Status s = validate_timeline(l.timeline(), kOfClaims); !s.ok()) return s;
  if (Status s = validate_given_up(l.given_up()); !s.ok()) return s;
  if (l.run() == 0 && (!l.positions().empty() || !l.setups().empty())) return bad("what is logged is of no run");
  for (const wire::Position& p : l.positions()) {
    if (p.closed()) return bad(name_of(p) + ": what is logged closes nothing");
  }
  for (const wire::Setup& s : l.setups()) {
    if (s.done()) return bad("set-up round " + hex(s.name()) + ": memory does not know what is done");
    if (s.timeline() != l.timeline()) return bad("set-up round " + hex(s.name()) + " is of another timeline");
  }
  if (static_cast<std::size_t>(l.lives_size()) > limits::kMaxLoggedLives) {
    return bad(str(l.lives_size()) + " lives are over the limit of " + str(limits::kMaxLoggedLives));
  }
  if (Status s = validate_setups(l.setups(), limits::kMaxSetups, limits::kMaxLoggedRanges); !s.ok()) return s;
  return validate_positions(l.positions(), limits::kMaxLoggedRanges, kOfClaims);
}

Status validate_run(const wire::HeldRun& run, std::uint64_t after) {
  if (run.first() < after) return bad("runs are not in rising order, or overlap");
  constexpr std::uint64_t kMost = kOfClaims.count;
  if (run.count() == 0 || run.count() > kMost || run.first() > kMost - run.count()) {
    return bad("a run of " + str(run.count()) + " rounds from " + str(run.first()));
  }
  if (run.total_bytes() > limits::kMaxResultBytes) return bad("no result is of " + str(run.total_bytes()) + " bytes");
  std::uint64_t last = 0;
  for (const wire::ByteRange& range : run.held()) {
    if (range.begin() >= range.end()) return bad("the range " + str(range.begin()) + " is empty");
    if (range.begin() < last) return bad("ranges are not in rising order, or overlap");
    if (range.end() > run.total_bytes()) return bad("a range ends behind its result");
    last = range.end();
  }
  return {};
}

Status validate_committed(bool committed, std::uint64_t version, std::uint32_t timeline, const Most& most) {
  if (Status s = validate_timeline(timeline, most); !s.ok()) return s;
  if (committed) return in_range("committed version", version, kFirstCommit.value, most.count);
  return version == 0 && timeline == 0 ? Status() : bad("a version, and it is not committed");
}

}  // namespace warren::checks
