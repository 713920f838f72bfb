#include "worker/replay/done_reader.h"

#include <algorithm>

namespace warren::worker {

DoneReader::DoneReader(HostLogReader& from, const wire::Plan& plan) : from_(from) {
  for (const wire::Kept& k : plan.kept()) {
    rounds_[{GroupId(k.group()), Version(k.version())}].push_back({k.rounds(), Timeline(k.timeline())});
  }
  for (const wire::Position& p : plan.frontier()) {
    rounds_[{GroupId(p.group()), Version(p.version())}].push_back({p.rounds(), Timeline(plan.timeline())});
  }
  for (const wire::Setup& s : plan.setups()) {
    if (s.done()) setups_.insert({Timeline(s.timeline()), GroupId(s.group()), kPreamble, Sequence(s.name())});
  }
  if (plan.committed()) committed_ = {Timeline(plan.committed_timeline()), Version(plan.committed_version())};
}

bool DoneReader::done(const RecordKey& key) const {
  switch (key.kind) {
    case RecordKind::kRound: {
      const auto rounds = rounds_.find({key.round.group, key.round.version});
      if (rounds == rounds_.end()) return false;
      const auto named =
          std::ranges::find_if(rounds->second, [&](const Named& n) { return key.round.sequence.value < n.end; });
      return named != rounds->second.end() && named->timeline == key.round.timeline;
    }
    case RecordKind::kSetup: return setups_.contains(key.round);
    case RecordKind::kGlobal:
    case RecordKind::kLocal: return committed_ == std::pair(key.round.timeline, key.round.version);
    case RecordKind::kMessage: return false;  // nobody asks another host for one
  }
  return false;
}

Result<std::optional<RecordInfo>> DoneReader::info(const RecordKey& key) {
  if (!done(key)) return std::optional<RecordInfo>();
  return from_.info(key);
}

Ranges DoneReader::held(const RecordKey& key) {
  return done(key) ? from_.held(key) : Ranges();
}

Ranges DoneReader::held_within(const RecordKey& key, std::uint64_t begin, std::uint64_t end) {
  return done(key) ? from_.held_within(key, begin, end) : Ranges();
}

Ranges DoneReader::held_by(const RecordKey& key, std::span<const Incarnation> live) {
  return done(key) ? from_.held_by(key, live) : Ranges();
}

bool DoneReader::recorded_by(const RecordKey& key, std::span<const Incarnation> live) {
  return done(key) && from_.recorded_by(key, live);
}

bool DoneReader::read(const RecordKey& key, std::uint64_t begin, std::span<std::byte> out) {
  return done(key) && from_.read(key, begin, out);
}

// As many as `limit`, if there are: whoever gets fewer takes them for all.
std::vector<RecordKey> DoneReader::list(RecordKind kind, Timeline timeline, GroupId group, Version version,
                                        Sequence first, Sequence end, std::size_t limit) {
  std::vector<RecordKey> keys;
  while (keys.size() < limit && first < end) {
    const auto more = from_.list(kind, timeline, group, version, first, end, limit);
    for (const RecordKey& key : more) {
      if (keys.size() < limit && done(key)) keys.push_back(key);
    }
    if (more.size() < limit) break;
    first = more.back().round.sequence.next();
  }
  return keys;
}

std::vector<RecordKey> DoneReader::newest_rounds() {
  std::vector<RecordKey> keys = from_.newest_rounds();
  std::erase_if(keys, [this](const RecordKey& key) { return !done(key); });
  return keys;
}

std::vector<RecordKey> DoneReader::setup_rounds(std::size_t limit) {
  std::vector<RecordKey> keys = from_.setup_rounds(limit);
  std::erase_if(keys, [this](const RecordKey& key) { return !done(key); });
  return keys;
}

}  // namespace warren::worker
