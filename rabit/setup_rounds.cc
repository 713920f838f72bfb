#include "rabit/setup_rounds.h"

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
  key_ = 0;
  Regular& regular = at_hand(place);
  const CallPlace& known = regular.place;
  if (known.file == place.file && known.line == place.line && known.caller == place.caller && regular.site != 0) {
    site_ = regular.site;
    return {};
  }
  site_ = warren_site_of(place.file, place.line, place.caller);
  if (site_ == 0) return {};
  if (table_.regular.contains(site_)) {
    regular = {place, site_};
    return {};
  }
  key_ = key_of(site_, calls_[site_]++);
  if (loaded_ && !called_before_.contains(site_)) {
    const auto kept = std::ranges::find_if(
        table_.kept, [&](const SetupRound& r) { return has(r.keys, key_) && r.where != Result::kNone; });
    if (kept != table_.kept.end()) return {&*kept, site_};
  }
  made_.insert(site_);
  return {};
}

SetupRounds::Regular& SetupRounds::at_hand(const CallPlace& place) {
  const auto file = reinterpret_cast<std::uintptr_t>(place.file),
             caller = reinterpret_cast<std::uintptr_t>(place.caller);
  return regulars_[(file + caller + static_cast<std::uintptr_t>(place.line)) % kRegularsAtHand];
}

bool SetupRounds::decided(const Call& call, bool met) {
  if (met) made_.insert(call.site);
  return met || !made_.contains(call.site);
}

void SetupRounds::gave(std::span<const std::byte> result) {
  if (!watches_ || seen_.size() == kMaxRounds) return;
  seen_.push_back({key_, site_});
  if (key_ == 0) return;
  news_ = true;
  Gave& gave = gave_[seen_.size() - 1];
  gave.bytes = result.size();
  gave.remembered = result.size() <= kMaxKeptBytes - kept_bytes_;
  if (!gave.remembered) return;
  kept_bytes_ += result.size();
  gave.result.assign(result.begin(), result.end());
}

void SetupRounds::count_kept_bytes() {
  kept_bytes_ = 0;
  for (const SetupRound& r : table_.kept) kept_bytes_ += r.result.size();
}

// Greatest values and, as their complements, least ones.
std::vector<std::uint64_t> SetupRounds::names() const {
  std::vector<std::uint64_t> words;
  words.reserve(kNameWords * seen_.size());
  for (const Seen& s : seen_) words.insert(words.end(), {s.key, ~s.key, s.site, ~s.site});
  return words;
}

void SetupRounds::match(std::span<const std::uint64_t> greatest) {
  matched_.resize(seen_.size());
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto words = greatest.subspan(kNameWords * i, kNameWords);
    Matched& m = matched_[i];
    m.keys = {~words[1], words[0]};
    m.sites = {~words[3], words[2]};
    // Called from three places or more, or from nowhere by some rank: who is new cannot tell which round it is.
    m.elsewhere = !has(m.keys, seen_[i].key) || !has(m.sites, seen_[i].site) || m.sites[0] == 0;
  }
}

std::vector<std::uint64_t> SetupRounds::facts() const {
  std::vector<std::uint64_t> words(kFacts * seen_.size() / 64 + 1);
  const auto set = [&](std::size_t i) { words[i / 64] |= std::uint64_t{1} << i % 64; };
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const auto gave = gave_.find(i);
    if (called_before_.contains(seen_[i].site)) set(kFacts * i + kRecurs);
    if (gave == gave_.end() || !gave->second.remembered) set(kFacts * i + kForgotten);
    if (matched_[i].elsewhere) set(kFacts * i + kElsewhere);
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
  const auto is_regular = [&](const auto& r) { return regular.contains(r.sites[0]) || regular.contains(r.sites[1]); };
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const Matched& m = matched_[i];
    const bool known = fact(i, kRecurs) || is_regular(m);
    if (known && !fact(i, kElsewhere) && regular.size() + 2 <= kMaxRounds) regular.insert({m.sites[0], m.sites[1]});
  }
  std::map<std::array<std::uint64_t, 2>, std::size_t> newest;  // rounds to be kept, by their keys
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    if (!fact(i, kElsewhere) && !fact(i, kRecurs) && !is_regular(matched_[i])) newest[matched_[i].keys] = i;
  }
  std::erase_if(table_.kept, [&](const SetupRound& r) { return newest.contains(r.keys) || is_regular(r); });
  std::vector<std::size_t> in_order;
  for (const auto& [keys, i] : newest) in_order.push_back(i);
  std::ranges::sort(in_order);
  for (const std::size_t i : in_order) {
    if (table_.kept.size() == kMaxRounds) return;
    Gave& gave = gave_[i];
    const bool forgotten = fact(i, kForgotten);
    left_out_ += forgotten;
    table_.kept.push_back({version_, i, matched_[i].keys, matched_[i].sites, gave.bytes,
                           forgotten ? Result::kNone : Result::kHere, 0,
                           forgotten ? std::vector<std::byte>() : std::move(gave.result)});
  }
}

std::vector<SetupRound> SetupRounds::due() const {
  std::vector<SetupRound> due;
  std::uint64_t rounds = table_.logged_rounds, bytes = table_.logged_bytes;
  for (const SetupRound& r : table_.kept) {
    if (r.where != Result::kHere || r.bytes <= kMaxSmallBytes || r.version + kVersionsKept > version_) continue;
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
  matched_.clear();
  gave_.clear();
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
