#include "worker/rabit/setup_rounds.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "warren/c_api.h"

namespace rabit::layer {
namespace {

using Result = SetupRound::Result;

std::uint64_t key_of(std::uint64_t site, std::uint64_t occurrence) {
  std::uint64_t h = site + 0x9e3779b97f4a7c15u * (occurrence + 1);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

bool has(const std::array<std::uint64_t, 2>& pair, std::uint64_t value) {
  return pair[0] == value || pair[1] == value;
}

// Of each round that a rank has seen: names, and bits.
constexpr std::size_t kNameWords = 4;
enum Fact : std::uint8_t { kRecurs, kForgotten, kElsewhere, kFacts };

// The name of a result in the log has it: another result of the same version and number, from before a job went back,
// is not taken for this one.
std::uint64_t digest_of(std::span<const std::byte> bytes) {
  std::uint64_t h = bytes.size();
  for (std::size_t at = 0; at < bytes.size(); at += sizeof h) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    h = key_of(h ^ word, at);
  }
  return h;
}

constexpr char kMagic[8] = {'r', 'a', 'b', 'i', 't', 0, 0, 4};  // the last one: version of this format
constexpr std::size_t kFixedBytes = sizeof kMagic + 6 * sizeof(std::uint64_t);
constexpr std::size_t kRoundBytes = 9 * sizeof(std::uint64_t);  // without its result

void append(std::string& to, std::uint64_t value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
std::uint64_t take(std::string_view& from) {
  std::uint64_t value;
  std::memcpy(&value, from.data(), sizeof value);
  from.remove_prefix(sizeof value);
  return value;
}

bool read_round(std::string_view& rest, SetupRound& round) {
  if (rest.size() < kRoundBytes) return false;
  round.version = take(rest);
  round.index = take(rest);
  for (std::uint64_t& key : round.keys) key = take(rest);
  for (std::uint64_t& site : round.sites) site = take(rest);
  round.bytes = take(rest);
  const std::uint64_t where = take(rest);
  round.digest = take(rest);
  if (round.index >= SetupRounds::kMaxRounds || where > static_cast<std::uint64_t>(Result::kNone)) return false;
  round.where = static_cast<Result>(where);
  const std::uint64_t here = round.where == Result::kHere ? round.bytes : 0;
  if (here > rest.size()) return false;
  const auto* bytes = reinterpret_cast<const std::byte*>(rest.data());
  round.result.assign(bytes, bytes + here);
  rest.remove_prefix(here);
  return true;
}

}  // namespace

SetupRounds SetupRounds::first(std::uint64_t version) {
  SetupRounds made;
  made.watches_ = true;
  made.version_ = version;
  return made;
}

SetupRounds SetupRounds::loaded(std::uint64_t version, SetupTable table) {
  SetupRounds made = first(version);
  made.loaded_ = true;
  made.table_ = std::move(table);
  made.count_kept_bytes();
  return made;
}

SetupRounds::Call SetupRounds::call(const CallPlace& place) {
  if (!watches_) return {};
  site_ = warren_site_of(place.file, place.line, place.caller);
  key_ = 0;
  if (site_ == 0) return {};
  const std::uint64_t number = calls_[site_]++;
  if (table_.regular.contains(site_)) return {};
  key_ = key_of(site_, number);
  if (loaded_ && !called_before_.contains(site_)) {
    const auto kept = std::ranges::find_if(
        table_.kept, [&](const SetupRound& r) { return has(r.keys, key_) && r.where != Result::kNone; });
    if (kept != table_.kept.end()) return {&*kept, site_};
  }
  made_.insert(site_);
  return {};
}

bool SetupRounds::decided(const Call& call, bool met) {
  if (met) made_.insert(call.site);
  return met || !made_.contains(call.site);
}

void SetupRounds::gave(std::span<const std::byte> result) {
  if (!watches_ || seen_.size() == kMaxRounds) return;
  Seen& seen = seen_.emplace_back();
  SetupRound& round = seen.round;
  round.version = version_;
  round.index = seen_.size() - 1;
  round.keys = {key_, key_};
  round.sites = {site_, site_};
  round.bytes = result.size();
  round.where = Result::kNone;
  seen.recurs = called_before_.contains(site_);
  if (key_ == 0) return;  // from nowhere, or from a regular place
  news_ = true;
  if (result.size() > kMaxKeptBytes - kept_bytes_) return;
  kept_bytes_ += result.size();
  round.where = Result::kHere;
  round.result.assign(result.begin(), result.end());
}

void SetupRounds::count_kept_bytes() {
  kept_bytes_ = 0;
  for (const SetupRound& r : table_.kept) kept_bytes_ += r.result.size();
}

// Greatest values and, as their complements, least ones.
std::vector<std::uint64_t> SetupRounds::names() const {
  std::vector<std::uint64_t> words;
  words.reserve(kNameWords * seen_.size());
  for (const Seen& s : seen_) {
    for (const std::uint64_t word : {s.round.keys[0], s.round.sites[0]}) words.insert(words.end(), {word, ~word});
  }
  return words;
}

void SetupRounds::match(std::span<const std::uint64_t> greatest) {
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto words = greatest.subspan(kNameWords * i, kNameWords);
    const std::array<std::uint64_t, 2> keys{~words[1], words[0]}, sites{~words[3], words[2]};
    SetupRound& r = seen_[i].round;
    // Called from three places or more, or from nowhere by some rank: who is new cannot tell which round it is.
    seen_[i].elsewhere = !has(keys, r.keys[0]) || !has(sites, r.sites[0]) || sites[0] == 0;
    r.keys = keys;
    r.sites = sites;
  }
}

std::vector<std::uint64_t> SetupRounds::facts() const {
  std::vector<std::uint64_t> words(kFacts * seen_.size() / 64 + 1);
  const auto set = [&](std::size_t i) { words[i / 64] |= std::uint64_t{1} << i % 64; };
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (seen_[i].recurs) set(kFacts * i + kRecurs);
    if (seen_[i].round.where == Result::kNone) set(kFacts * i + kForgotten);
    if (seen_[i].elsewhere) set(kFacts * i + kElsewhere);
  }
  return words;
}

void SetupRounds::learn(std::span<const std::uint64_t> facts) {
  const auto fact = [&](std::size_t round, Fact which) {
    const std::size_t i = kFacts * round + which;
    return (facts[i / 64] >> i % 64 & 1) != 0;
  };
  auto& regular = table_.regular;
  // Where one of a round's two places is regular, who calls from there asks for nothing.
  const auto is_regular = [&](const SetupRound& r) {
    return regular.contains(r.sites[0]) || regular.contains(r.sites[1]);
  };
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const SetupRound& r = seen_[i].round;
    const bool known = fact(i, kRecurs) || is_regular(r);
    if (known && !fact(i, kElsewhere) && regular.size() + 2 <= kMaxRounds) regular.insert({r.sites[0], r.sites[1]});
  }
  std::map<std::array<std::uint64_t, 2>, SetupRound*> newest;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    SetupRound& r = seen_[i].round;
    if (fact(i, kElsewhere) || fact(i, kRecurs) || is_regular(r)) continue;
    if (fact(i, kForgotten)) {
      r.where = Result::kNone;
      r.result = {};
    }
    newest[r.keys] = &r;
  }
  std::erase_if(table_.kept, [&](const SetupRound& r) { return newest.contains(r.keys) || is_regular(r); });
  for (Seen& s : seen_) {
    const auto it = newest.find(s.round.keys);
    if (it == newest.end() || it->second != &s.round || table_.kept.size() == kMaxRounds) continue;
    if (s.round.where == Result::kNone) ++left_out_;
    table_.kept.push_back(std::move(s.round));
  }
}

std::vector<SetupRound> SetupRounds::due() const {
  std::vector<SetupRound> due;
  std::uint64_t rounds = table_.logged_rounds, bytes = table_.logged_bytes;
  for (const SetupRound& r : table_.kept) {
    if (r.where != Result::kHere || r.result.empty() || r.version + kVersionsKept > version_) continue;
    if (rounds == kMaxLogged || r.bytes > kMaxLoggedBytes - bytes) break;
    ++rounds;
    bytes += r.bytes;
    due.push_back(r);
    due.back().digest = digest_of(r.result);
  }
  return due;
}

void SetupRounds::logged() {
  for (const SetupRound& d : due()) {
    SetupRound& r = *std::ranges::find(table_.kept, d.keys, &SetupRound::keys);
    r.where = Result::kLogged;
    r.digest = d.digest;
    r.result = {};
    ++table_.logged_rounds;
    table_.logged_bytes += r.bytes;
  }
}

void SetupRounds::next_version() {
  for (const auto& [site, calls] : calls_) called_before_.insert(site);
  ++version_;
  calls_.clear();
  made_.clear();
  seen_.clear();
  count_kept_bytes();
  news_ = false;
}

std::size_t SetupRounds::take_left_out() {
  return std::exchange(left_out_, 0);
}

void write_head(std::uint64_t version, const SetupTable& table, bool no_local, std::string& to) {
  to.append(kMagic, sizeof kMagic);
  for (const std::uint64_t word : {version, std::uint64_t{no_local}, table.logged_rounds, table.logged_bytes,
                                   std::uint64_t{table.regular.size()}, std::uint64_t{table.kept.size()}}) {
    append(to, word);
  }
  for (const std::uint64_t site : table.regular) append(to, site);
  for (const SetupRound& r : table.kept) {
    for (const std::uint64_t word : {r.version, r.index, r.keys[0], r.keys[1], r.sites[0], r.sites[1], r.bytes,
                                     static_cast<std::uint64_t>(r.where), r.digest}) {
      append(to, word);
    }
    to.append(reinterpret_cast<const char*>(r.result.data()), r.result.size());
  }
}

std::size_t read_head(std::string_view state, StateHead& head) {
  std::string_view rest = state;
  if (rest.size() < kFixedBytes || rest.substr(0, sizeof kMagic) != std::string_view(kMagic, sizeof kMagic)) return 0;
  rest.remove_prefix(sizeof kMagic);
  head = {};
  head.version = take(rest);
  const std::uint64_t no_local = take(rest);
  head.table.logged_rounds = take(rest);
  head.table.logged_bytes = take(rest);
  const std::uint64_t regular = take(rest), kept = take(rest);
  if (head.table.logged_rounds > SetupRounds::kMaxLogged || head.table.logged_bytes > SetupRounds::kMaxLoggedBytes) {
    return 0;
  }
  if (no_local > 1 || regular > SetupRounds::kMaxRounds || regular > rest.size() / sizeof(std::uint64_t)) return 0;
  head.no_local = no_local != 0;
  for (std::uint64_t i = 0; i < regular; ++i) head.table.regular.insert(take(rest));
  if (head.table.regular.size() != regular || kept > SetupRounds::kMaxRounds || kept > rest.size() / kRoundBytes) {
    return 0;
  }
  for (std::uint64_t i = 0; i < kept; ++i) {
    if (!read_round(rest, head.table.kept.emplace_back())) return 0;
  }
  return state.size() - rest.size();
}

}  // namespace rabit::layer
