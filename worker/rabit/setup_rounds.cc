#include "worker/rabit/setup_rounds.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "warren/c_api.h"

namespace rabit::layer {
namespace {

std::uint64_t key_of(std::uint64_t site, std::uint64_t occurrence) {
  std::uint64_t h = site + 0x9e3779b97f4a7c15u * (occurrence + 1);
  h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9u;
  h = (h ^ (h >> 27)) * 0x94d049bb133111ebu;
  return h ^ (h >> 31);
}

bool has(const std::array<std::uint64_t, 2>& pair, std::uint64_t value) {
  return pair[0] == value || pair[1] == value;
}

void set_bit(std::vector<std::uint64_t>& words, std::size_t i) {
  words[i / 64] |= std::uint64_t{1} << i % 64;
}
bool bit(std::span<const std::uint64_t> words, std::size_t i) {
  return (words[i / 64] >> i % 64 & 1) != 0;
}

constexpr char kMagic[8] = {'r', 'a', 'b', 'i', 't', 0, 0, 3};  // the last one: version of this format
constexpr std::uint64_t kNoLocal = 256;                         // beside the phase
constexpr std::size_t kFixedBytes = sizeof kMagic + 4 * sizeof(std::uint64_t);
constexpr std::size_t kRoundBytes = 7 * sizeof(std::uint64_t);  // without its result

void append(std::string& to, std::uint64_t value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
std::uint64_t take(std::string_view& from) {
  std::uint64_t value;
  std::memcpy(&value, from.data(), sizeof value);
  from.remove_prefix(sizeof value);
  return value;
}

bool read_round(std::string_view& rest, bool with_result, SetupRound& round) {
  if (rest.size() < kRoundBytes) return false;
  round.index = take(rest);
  for (std::uint64_t& key : round.keys) key = take(rest);
  for (std::uint64_t& site : round.sites) site = take(rest);
  round.bytes = take(rest);
  const std::uint64_t result_bytes = take(rest);
  if (round.index >= SetupRounds::kMaxRounds || result_bytes > rest.size()) return false;
  if (result_bytes != 0 && (!with_result || result_bytes != round.bytes)) return false;
  const auto* bytes = reinterpret_cast<const std::byte*>(rest.data());
  round.result.assign(bytes, bytes + result_bytes);
  rest.remove_prefix(result_bytes);
  return true;
}

}  // namespace

SetupRounds SetupRounds::first(std::uint64_t version) {
  SetupRounds made;
  made.gathering_ = true;
  made.first_ = version;
  return made;
}

SetupRounds SetupRounds::loaded(std::shared_ptr<const SetupTable> table) {
  SetupRounds made;
  made.new_ = true;
  made.table_ = std::move(table);
  made.against_.assign(made.table_->rounds.size(), false);
  return made;
}

SetupRounds::Call SetupRounds::call(const CallPlace& place) {
  if (!gathering_ && !watching() && (!new_ || table_->rounds.empty())) return {};
  site_ = warren_site_of(place.file, place.line, place.caller);
  key_ = site_ == 0 ? 0 : key_of(site_, calls_[site_]++);
  if (gathering_ || site_ == 0) return {};
  const auto& rounds = table_->rounds;
  if (!new_) {
    if (calls_[site_] > 1) return {};
    for (std::size_t i = 0; i < rounds.size(); ++i) against_[i] = against_[i] || has(rounds[i].sites, site_);
    return {};
  }
  const bool decided = table_->phase == SetupTable::Phase::kDecided;
  const auto kept = std::find_if(rounds.begin(), rounds.end(), [&](const SetupRound& r) {
    return has(r.keys, key_) && (decided || !r.result.empty());
  });
  if (kept != rounds.end()) return {&*kept, site_};
  made_.insert(site_);
  return {};
}

bool SetupRounds::decided(const Call& call, bool met) {
  if (met) made_.insert(call.site);
  return met || !made_.contains(call.site);
}

void SetupRounds::gave(std::span<const std::byte> result) {
  if (!gathering_ || rounds_.size() == kMaxRounds) return;
  SetupRound& round = rounds_.emplace_back();
  round.index = rounds_.size() - 1;
  round.keys = {key_, key_};
  round.sites = {site_, site_};
  round.bytes = result.size();
  against_.push_back(site_ == 0 || result.empty());
  if (against_.back() || result.size() > kMaxKeptBytes - remembered_bytes_) return;
  remembered_bytes_ += result.size();
  round.result.assign(result.begin(), result.end());
}

// Greatest values and, as their complements, least ones.
std::vector<std::uint64_t> SetupRounds::names() const {
  std::vector<std::uint64_t> words;
  words.reserve(4 * rounds_.size());
  for (const SetupRound& r : rounds_) {
    for (const std::uint64_t word : {r.keys[0], r.sites[0]}) words.insert(words.end(), {word, ~word});
  }
  return words;
}

void SetupRounds::match(std::span<const std::uint64_t> greatest) {
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    SetupRound& r = rounds_[i];
    const auto words = greatest.subspan(4 * i, 4);
    const std::array<std::uint64_t, 2> keys{~words[1], words[0]}, sites{~words[3], words[2]};
    // Called from three places or more, or from nowhere by some rank.
    if (!has(keys, r.keys[0]) || !has(sites, r.sites[0]) || sites[0] == 0) against_[i] = true;
    r.keys = keys;
    r.sites = sites;
  }
}

void SetupRounds::keep(std::span<const std::uint64_t> against) {
  auto table = std::make_shared<SetupTable>();
  table->phase = SetupTable::Phase::kCandidates;
  table->first = first_;
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    if (!bit(against, i)) table->rounds.push_back(std::move(rounds_[i]));
  }
  gathering_ = false;
  rounds_ = {};
  against_.assign(table->rounds.size(), false);
  table_ = std::move(table);
}

// While a version is watched, one bit more: this process was not new in it.
std::vector<std::uint64_t> SetupRounds::against() const {
  std::vector<std::uint64_t> words(against_.size() / 64 + 1);
  for (std::size_t i = 0; i < against_.size(); ++i) {
    if (against_[i]) set_bit(words, i);
  }
  if (!gathering_ && !new_) set_bit(words, against_.size());
  return words;
}

bool SetupRounds::decide(std::span<const std::uint64_t> against, std::vector<SetupRound>& kept) {
  const auto& rounds = table_->rounds;
  if (!bit(against, rounds.size())) return false;
  auto table = std::make_shared<SetupTable>();
  table->phase = SetupTable::Phase::kDecided;
  table->first = table_->first;
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    if (bit(against, i)) continue;
    if (rounds[i].result.empty() || kept.size() == kMaxKept) {
      left_out_++;
      continue;
    }
    kept.push_back(rounds[i]);
    SetupRound& r = table->rounds.emplace_back(rounds[i]);
    r.result = {};
  }
  table_ = std::move(table);
  against_ = {};
  return true;
}

void SetupRounds::next_version() {
  calls_.clear();
  made_.clear();
  new_ = false;
}

void write_head(const StateHead& head, std::string& to) {
  to.append(kMagic, sizeof kMagic);
  append(to, head.version);
  append(to, static_cast<std::uint64_t>(head.table->phase) | (head.no_local ? kNoLocal : 0));
  append(to, head.table->first);
  append(to, head.table->rounds.size());
  for (const SetupRound& r : head.table->rounds) {
    for (const std::uint64_t word : {r.index, r.keys[0], r.keys[1], r.sites[0], r.sites[1], r.bytes}) append(to, word);
    append(to, r.result.size());
    to.append(reinterpret_cast<const char*>(r.result.data()), r.result.size());
  }
}

std::size_t read_head(std::string_view state, StateHead& head) {
  std::string_view rest = state;
  if (rest.size() < kFixedBytes || rest.substr(0, sizeof kMagic) != std::string_view(kMagic, sizeof kMagic)) return 0;
  rest.remove_prefix(sizeof kMagic);
  head.version = take(rest);
  auto table = std::make_shared<SetupTable>();
  const std::uint64_t word = take(rest), phase = word & ~kNoLocal;
  table->first = take(rest);
  const std::uint64_t rounds = take(rest);
  if (phase > static_cast<std::uint64_t>(SetupTable::Phase::kDecided) || rounds > rest.size() / kRoundBytes) return 0;
  table->phase = static_cast<SetupTable::Phase>(phase);
  for (std::uint64_t i = 0; i < rounds; ++i) {
    const bool candidates = table->phase == SetupTable::Phase::kCandidates;
    if (!read_round(rest, candidates, table->rounds.emplace_back())) return 0;
  }
  head.table = std::move(table);
  head.no_local = (word & kNoLocal) != 0;
  return state.size() - rest.size();
}

}  // namespace rabit::layer
