#include "worker/rabit/setup_rounds.h"

#include <cstring>
#include <utility>

namespace rabit::layer {
namespace {

constexpr std::uint64_t kHashSeed = 0xcbf29ce484222325u;

std::uint64_t mixed_in(std::uint64_t hash, std::string_view bytes) {
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return (hash ^ 0xff) * 0x100000001b3u;  // between two texts
}
std::uint64_t mixed_in(std::uint64_t hash, std::uint64_t number) {
  char bytes[sizeof number];
  std::memcpy(bytes, &number, sizeof number);
  return mixed_in(hash, {bytes, sizeof bytes});
}

// 0: nowhere.
std::uint64_t hash_of(const CallPlace& place) {
  if (place.file == nullptr || *place.file == 0) return 0;
  std::uint64_t hash = mixed_in(kHashSeed, std::string_view(place.file));
  hash = mixed_in(hash, static_cast<std::uint64_t>(static_cast<std::uint32_t>(place.line)));
  if (place.caller != nullptr) hash = mixed_in(hash, std::string_view(place.caller));
  return hash == 0 ? 1 : hash;
}

bool bit(std::span<const std::uint64_t> words, std::size_t i) {
  return (words[i / 64] >> i % 64 & 1) != 0;
}

constexpr char kMagic[8] = {'r', 'a', 'b', 'i', 't', 0, 0, 1};  // the last one: version of this format
constexpr std::size_t kEntryBytes = sizeof(std::uint64_t) + sizeof(std::uint32_t);

template <class T>
void append(std::string& to, const T& value) {
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}
template <class T>
T take(std::string_view& from) {
  T value;
  std::memcpy(&value, from.data(), sizeof value);
  from.remove_prefix(sizeof value);
  return value;
}

}  // namespace

SetupRounds SetupRounds::first() {
  SetupRounds made;
  made.phase_ = Phase::kFirst;
  return made;
}

SetupRounds SetupRounds::loaded(Table table) {
  SetupRounds made;
  made.phase_ = Phase::kDecided;
  made.new_ = true;
  made.table_ = std::move(table);
  return made;
}

std::uint64_t SetupRounds::key_of(const CallPlace& place) {
  place_ = hash_of(place);
  if (place_ == 0) return 0;
  return mixed_in(place_, std::uint64_t{calls_[place_]++});
}

SetupRounds::Call SetupRounds::call(const CallPlace& place) {
  if (phase_ == Phase::kOff || (phase_ == Phase::kDecided && table_.empty())) return {};
  key_ = key_of(place);
  if (phase_ == Phase::kSecond && place_ != 0 && calls_[place_] == 1) {
    for (Round& round : rounds_) {
      if (round.place != place_ || !round.candidate) continue;
      round.candidate = false;
      round.result = {};
    }
  }
  if (phase_ != Phase::kDecided) return {};
  const auto at = table_.find(key_);
  if (at == table_.end()) return {};
  return {new_ ? Call::kServed : Call::kAgain, at->second};
}

void SetupRounds::gave(std::span<const std::byte> result) {
  if (phase_ != Phase::kFirst || rounds_.size() == kMaxRounds) return;
  Round round{key_, place_, {}, place_ != 0};
  if (round.candidate && result.size() > kMaxKeptBytes - remembered_bytes_) {
    round.candidate = false;
    left_out_++;
  }
  if (round.candidate) {
    remembered_bytes_ += result.size();
    round.result.assign(result.begin(), result.end());
  }
  rounds_.push_back(std::move(round));
}

std::vector<std::uint64_t> SetupRounds::against() const {
  std::vector<std::uint64_t> words((rounds_.size() + 63) / 64);
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    if (!rounds_[i].candidate) words[i / 64] |= std::uint64_t{1} << i % 64;
  }
  return words;
}

void SetupRounds::decide(std::span<const std::uint64_t> against) {
  for (std::size_t i = 0; i < rounds_.size(); ++i) {
    if (bit(against, i)) continue;
    if (decided_.size() < kMaxKept) {
      decided_.push_back(static_cast<std::uint32_t>(i));
    } else {
      left_out_++;
    }
  }
}

std::vector<SetupRounds::Kept> SetupRounds::kept() {
  std::vector<Kept> out;
  for (const std::uint32_t i : decided_) out.push_back({i, rounds_[i].result});
  return out;
}

std::vector<std::uint64_t> SetupRounds::keys() const {
  std::vector<std::uint64_t> out;
  for (const std::uint32_t i : decided_) out.push_back(rounds_[i].key);
  return out;
}

void SetupRounds::adopt(std::span<const std::uint64_t> keys) {
  for (std::size_t i = 0; i < keys.size(); ++i) table_.emplace(keys[i], decided_[i % decided_.size()]);
}

void SetupRounds::next_version() {
  calls_.clear();
  new_ = false;
  if (phase_ == Phase::kFirst) {
    phase_ = Phase::kSecond;
  } else if (phase_ == Phase::kSecond) {
    phase_ = Phase::kDecided;
    rounds_ = {};
    decided_ = {};
  }
}

void write_head(const StateHead& head, std::string& to) {
  to.append(kMagic, sizeof kMagic);
  append(to, head.version);
  append(to, static_cast<std::uint64_t>(head.table.size()));
  for (const auto& [key, round] : head.table) {
    append(to, key);
    append(to, round);
  }
}

std::size_t read_head(std::string_view state, StateHead& head) {
  std::string_view rest = state;
  constexpr std::size_t kFixedBytes = sizeof kMagic + 2 * sizeof(std::uint64_t);
  if (rest.size() < kFixedBytes || rest.substr(0, sizeof kMagic) != std::string_view(kMagic, sizeof kMagic)) return 0;
  rest.remove_prefix(sizeof kMagic);
  head.version = take<std::uint64_t>(rest);
  const auto entries = take<std::uint64_t>(rest);
  if (entries > rest.size() / kEntryBytes) return 0;
  for (std::uint64_t i = 0; i < entries; ++i) {
    const auto key = take<std::uint64_t>(rest);
    const auto round = take<std::uint32_t>(rest);
    if (round >= SetupRounds::kMaxRounds) return 0;
    head.table.emplace(key, round);
  }
  return state.size() - rest.size();
}

}  // namespace rabit::layer
