#include "recovery/decide/frontier.h"

#include <algorithm>
#include <map>
#include <utility>

#include "recovery/base/limits.h"
#include "recovery/base/ranges.h"
#include "recovery/base/text.h"

namespace warren {
namespace {

// What is known of one (group, version), and from whom. kNoRank: from the plan before.
struct Known {
  std::uint64_t rounds = 0;
  Rank furthest = kNoRank;
  Ranges final;                   // of round `rounds`
  Ranges served;                  // likewise, if that makes it whole
  std::uint64_t total_bytes = 0;  // of its result; 0: not known
  bool differ = false;            // who knows it does not agree
  bool empty = false;             // it has none, and is published
  Rank in_flight = kNoRank;
  bool closed = false;
  std::uint64_t closed_after = 0;
  Rank closer = kNoRank;
  bool torn = false;  // closed after different numbers of rounds
  Rank other_closer = kNoRank;
  std::uint64_t other_closed_after = 0;
};

// Whether what is called final is.
enum class Finals : std::uint8_t { kNone, kServed, kHeld };

// Whether there is all of a result, and who serves holds some of it. It counts as completed then also where the rest
// does not need what is served: what is in flight would not be served, and would be lost with the others.
bool made_whole(const Ranges& final, const Ranges& served, std::uint64_t total_bytes) {
  if (total_bytes == 0 || served.empty()) return false;
  Ranges all = final;
  for (const Interval& i : served.intervals()) all.add(i.begin, i.end);
  return all.covers(0, total_bytes);
}

void take(Known& known, Rank rank, const wire::Position& p, bool closed, Finals finals) {
  if (p.rounds() > known.rounds) {
    known.rounds = p.rounds();
    known.furthest = rank;
    known.final = Ranges();
    known.served = Ranges();
    known.total_bytes = 0;
    known.differ = false;
    known.empty = false;
    known.in_flight = kNoRank;
  }
  if (closed && !known.closed) {
    known.closed = true;
    known.closed_after = p.rounds();
    known.closer = rank;
  } else if (closed && p.rounds() != known.closed_after && !known.torn) {
    known.torn = true;
    known.other_closer = rank;
    known.other_closed_after = p.rounds();
  }
  if (finals == Finals::kNone || p.rounds() != known.rounds) return;
  Ranges& of = finals == Finals::kServed ? known.served : known.final;
  for (const wire::ByteRange& range : p.final()) of.add(range.begin(), range.end());
  if (p.total_bytes() != 0) {
    known.differ = known.differ || (known.total_bytes != 0 && known.total_bytes != p.total_bytes());
    known.total_bytes = p.total_bytes();
  }
  if (finals == Finals::kServed) return;
  known.empty = known.empty || p.empty();
  if (p.final_size() != 0 || p.empty()) known.in_flight = rank;
}

// Empty if nothing contradicts anything.
std::string contradiction(const Known& k, const std::string& where, const std::function<std::string(Rank)>& name) {
  const auto who = [&](Rank rank) { return rank == kNoRank ? std::string("an earlier life") : name(rank); };
  if (!k.closed) return {};
  const std::string closed =
      who(k.closer) + " has done " + rounds_text(k.closed_after) + " " + where + " and gone on, ";
  if (k.torn) return closed + who(k.other_closer) + " has done " + rounds_text(k.other_closed_after) + " and gone on";
  if (k.rounds > k.closed_after) return closed + who(k.furthest) + " has done " + rounds_text(k.rounds);
  if (!k.final.empty() || k.empty) return closed + who(k.in_flight) + " is in another one";
  return {};
}

}  // namespace

Result<std::vector<wire::Position>> merge_frontier(std::span<const RankPositions> reports,
                                                   std::span<const wire::Position* const> before,
                                                   std::span<const wire::Position* const> logged,
                                                   std::span<const wire::Position* const> served,
                                                   std::optional<Version> committed,
                                                   const std::function<std::string(Rank)>& name) {
  const auto matters = [&](const wire::Position& p) {
    return p.version() == kPreamble.value || !committed || p.version() >= committed->value;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Known> all;  // by (group, version)
  for (const wire::Position* p : before) {
    if (matters(*p)) take(all[{p->group(), p->version()}], kNoRank, *p, p->closed(), Finals::kNone);
  }
  for (const wire::Position* p : logged) {
    if (matters(*p)) take(all[{p->group(), p->version()}], kNoRank, *p, false, Finals::kHeld);
  }
  for (const wire::Position* p : served) {
    if (matters(*p)) take(all[{p->group(), p->version()}], kNoRank, *p, false, Finals::kServed);
  }
  for (const auto& [rank, report, finals] : reports) {
    for (const wire::Position& p : report->positions()) {
      if (!matters(p)) continue;
      take(all[{p.group(), p.version()}], rank, p, p.closed() || p.version() < report->version(),
           finals ? Finals::kHeld : Finals::kNone);
    }
  }

  std::vector<wire::Position> frontier;
  std::size_t ranges = 0;
  for (auto& [key, known] : all) {
    if (!known.closed && !known.differ && made_whole(known.final, known.served, known.total_bytes)) {
      ++known.rounds;
      known.final = Ranges();
      known.empty = false;
    }
    const std::string where = (key.second == 0 ? "in the preamble" : "in version " + std::to_string(key.second - 1)) +
                              (key.first == 0 ? "" : " of a group");
    if (const std::string why = contradiction(known, where, name); !why.empty()) return Status(Code::kDesync, why);
    if (known.rounds == 0 && known.final.empty() && !known.empty && !known.closed) continue;
    wire::Position& p = frontier.emplace_back();
    p.set_group(key.first);
    p.set_version(key.second);
    p.set_rounds(known.rounds);
    p.set_closed(known.closed);
    if (!known.differ && !known.final.empty()) p.set_total_bytes(known.total_bytes);
    // Who knows of bytes and who knows of none contradict each other: it is nobody's whole result.
    p.set_empty(known.empty && known.final.empty());
    for (const Interval& i : known.final.intervals()) {
      wire::ByteRange& range = *p.add_final();
      range.set_begin(i.begin);
      range.set_end(i.end);
    }
    ranges += known.final.intervals().size();
  }
  if (frontier.size() > limits::kMaxPositions || ranges > limits::kMaxRangesPerFrontier) {
    return Status(Code::kUnavailable, "the job stands in " + std::to_string(frontier.size()) +
                                          " groups and versions and " + std::to_string(ranges) +
                                          " pieces of results, more than a plan can hold (" +
                                          std::to_string(limits::kMaxPositions) + " and " +
                                          std::to_string(limits::kMaxRangesPerFrontier) + ")");
  }
  return frontier;
}

Result<std::vector<wire::Setup>> merge_setups(
    std::span<const google::protobuf::RepeatedPtrField<wire::Setup>* const> lists,
    std::span<const google::protobuf::RepeatedPtrField<wire::Setup>* const> served, Timeline newest) {
  struct Setup {
    Timeline timeline;
    bool done = false;
    bool told = false;  // not only by who serves
    Ranges final, served;
    std::uint64_t total_bytes = 0;
    bool differ = false;
  };
  std::map<std::pair<std::uint64_t, std::uint64_t>, Setup> all;  // by (group, name)
  const auto add = [&](const wire::Setup& s, bool serves) -> Status {
    if (Timeline(s.timeline()) > newest) return {};
    const auto [it, added] = all.try_emplace({s.group(), s.name()});
    Setup& known = it->second;
    if (added) known.timeline = Timeline(s.timeline());
    if (known.timeline != Timeline(s.timeline())) {
      if (serves && !s.done()) return {};
      return {Code::kDesync, to_string(RoundId{known.timeline, GroupId(s.group()), kPreamble, Sequence(s.name())}) +
                                 " was begun in timeline " + std::to_string(s.timeline()) + " too"};
    }
    known.done = known.done || s.done();
    known.told = known.told || !serves;
    Ranges& of = serves ? known.served : known.final;
    for (const wire::ByteRange& range : s.final()) of.add(range.begin(), range.end());
    if (s.total_bytes() == 0) return {};
    known.differ = known.differ || (known.total_bytes != 0 && known.total_bytes != s.total_bytes());
    known.total_bytes = s.total_bytes();
    return {};
  };
  for (const auto* list : lists) {
    for (const wire::Setup& s : *list) {
      if (Status status = add(s, false); !status.ok()) return status;
    }
  }
  for (const auto* list : served) {
    for (const wire::Setup& s : *list) {
      if (Status status = add(s, true); !status.ok()) return status;
    }
  }
  std::vector<wire::Setup> setups;
  std::size_t ranges = 0;
  for (auto& [key, known] : all) {
    known.done = known.done || (!known.differ && made_whole(known.final, known.served, known.total_bytes));
    if (!known.done && !known.told) continue;  // it is begun anew
    wire::Setup& s = setups.emplace_back();
    s.set_group(key.first);
    s.set_name(key.second);
    s.set_timeline(known.timeline.value);
    s.set_done(known.done);
    if (known.done) continue;
    for (const Interval& i : known.final.intervals()) {
      wire::ByteRange& range = *s.add_final();
      range.set_begin(i.begin);
      range.set_end(i.end);
    }
    ranges += known.final.intervals().size();
  }
  if (setups.size() > limits::kMaxSetupsPerJob || ranges > limits::kMaxSetupRangesPerPlan) {
    return Status(Code::kExhausted, "the job has " + std::to_string(setups.size()) + " set-up rounds with " +
                                        std::to_string(ranges) + " pieces of results, more than it may (" +
                                        std::to_string(limits::kMaxSetupsPerJob) + " and " +
                                        std::to_string(limits::kMaxSetupRangesPerPlan) + ")");
  }
  return setups;
}

}  // namespace warren
