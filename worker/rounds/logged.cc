#include "worker/rounds/logged.h"

#include <algorithm>
#include <vector>

#include "recovery/base/limits.h"

namespace warren::worker {

namespace {

wire::Logged logged_by(HostLogReader& reader, std::uint64_t run, std::span<const Incarnation> kept) {
  wire::Logged logged;
  logged.set_run(run);
  for (const Incarnation life : kept.first(std::min(kept.size(), limits::kMaxLoggedLives))) {
    logged.add_lives(life.value);
  }
  const std::vector<RecordKey> newest = reader.newest_rounds(),
                               setups = reader.setup_rounds(limits::kMaxLoggedSetups + 1);
  // Ascending: the newest timeline stands last.
  Timeline timeline;
  if (!newest.empty()) timeline = newest.back().round.timeline;
  if (!setups.empty()) timeline = std::max(timeline, setups.back().round.timeline);
  logged.set_timeline(timeline.value);
  bool whole = true;
  std::size_t ranges = 0;
  const auto add_held = [&](const RecordKey& key, auto& entry) {
    const Ranges held = reader.held(key);
    if (ranges + held.intervals().size() > limits::kMaxLoggedRanges) {
      whole = false;
      return;
    }
    ranges += held.intervals().size();
    for (const Interval& i : held.intervals()) {
      wire::ByteRange& range = *entry.add_final();
      range.set_begin(i.begin);
      range.set_end(i.end);
    }
  };
  for (const RecordKey& key : newest) {
    if (key.round.timeline != timeline) continue;
    if (static_cast<std::size_t>(logged.positions_size()) == limits::kMaxLoggedPositions) {
      whole = false;
      break;
    }
    wire::Position& p = *logged.add_positions();
    p.set_group(key.round.group.value);
    p.set_version(key.round.version.value);
    p.set_rounds(key.round.sequence.value);
    add_held(key, p);
    say_of_whole(reader, key, p);
  }
  for (const RecordKey& key : setups) {
    if (key.round.timeline != timeline) continue;
    if (static_cast<std::size_t>(logged.setups_size()) == limits::kMaxLoggedSetups) {
      whole = false;
      break;
    }
    wire::Setup& s = *logged.add_setups();
    s.set_group(key.round.group.value);
    s.set_name(key.round.sequence.value);
    s.set_timeline(timeline.value);
    add_held(key, s);
    if (s.final_size() != 0) s.set_total_bytes(whole_bytes(reader, key));
  }
  // What is not told of them is as good as lost.
  if (!whole) logged.clear_lives();
  return logged;
}

}  // namespace

std::uint64_t whole_bytes(HostLogReader& reader, const RecordKey& key) {
  const auto info = reader.info(key);
  return info.ok() && info.value() ? info.value()->total_bytes : 0;
}

void say_of_whole(HostLogReader& reader, const RecordKey& key, wire::Position& position) {
  const auto info = reader.info(key);
  if (!info.ok() || !info.value()) return;
  if (!position.final().empty()) position.set_total_bytes(info.value()->total_bytes);
  position.set_empty(key.round.group == kWorldGroup && info.value()->total_bytes == 0);
}

wire::Logged logged_on(HostLogReader& reader, std::uint64_t run) {
  return logged_by(reader, run, {});
}

wire::Logged kept_in(const HostLog& log) {
  const auto run = log.attached_run();
  if (!run) return {};
  wire::Logged logged = logged_by(*log.reader(), *run, log.attached());
  if (auto given_up = given_up_in(log)) *logged.mutable_given_up() = *std::move(given_up);
  return logged;
}

std::optional<wire::GivenUp> given_up_in(const HostLog& log) {
  const auto newest = log.given_up();
  if (!newest) return std::nullopt;
  wire::GivenUp g;
  g.set_timeline(newest->timeline.value);
  g.set_version(newest->version.value);
  return g;
}

bool says_nothing(const wire::Logged& logged) {
  return logged.positions_size() == 0 && logged.setups_size() == 0 && logged.lives_size() == 0 &&
         !logged.has_given_up();
}

}  // namespace warren::worker
