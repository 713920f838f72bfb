#include "worker/settings/resolver.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "worker/system/text.h"

namespace warren::worker {
namespace {

// The place of a word, or of its number; the number of words: it is none of them.
std::size_t place_of(const Word& word, std::string_view text) {
  const auto at = std::ranges::find(word.words, text);
  if (at != word.words.end()) return static_cast<std::size_t>(at - word.words.begin());
  const bool digit = word.numbered && text.size() == 1 && text[0] >= '0' && text[0] <= '9';
  return std::min(digit ? static_cast<std::size_t>(text[0] - '0') : word.words.size(), word.words.size());
}

// "memory, async or sync", and the numbers of numbered ones.
std::string all_of(const Word& word) {
  std::string words, numbers;
  for (std::size_t i = 0; i < word.words.size(); ++i) {
    words += (i == 0 ? "" : i + 1 == word.words.size() ? " or " : ", ") + std::string(word.words[i]);
    numbers += (i == 0 ? "" : ", ") + std::to_string(i);
  }
  return words + (word.numbered ? " (" + numbers + ")" : "");
}

}  // namespace

Resolver::Resolver(std::vector<Layer> layers, Layer launcher, SystemFacts facts, std::uint64_t local_world_size)
    : layers_(std::move(layers)),
      launcher_(std::move(launcher)),
      facts_(std::move(facts)),
      local_world_size_(local_world_size) {}

const Raw* Resolver::find(std::string_view name) const {
  for (const Layer& layer : layers_) {
    if (const auto at = layer.find(name); at != layer.end()) return &at->second;
  }
  const auto at = launcher_.find(name);
  return at != launcher_.end() ? &at->second : nullptr;
}

void Resolver::show(std::string_view name, const std::string& value, const Raw* raw) {
  resolved_.push_back({std::string(name), value, raw != nullptr ? raw->source : std::string(kDefaultSource)});
}

void Resolver::keep(const Status& status) {
  if (!status.ok()) failures_.push_back(status.describe());
}

Status Resolver::status() const {
  if (failures_.empty()) return {};
  std::string all;
  for (const std::string& failure : failures_) all += (all.empty() ? "" : "\n") + failure;
  return {Code::kInvalidArgument, all};
}

void Resolver::read(const Setting& setting, Settings& s) {
  const Raw* raw = find(setting.name);
  if (setting.shrink_only && s.mode != Mode::kShrink) {
    if (raw != nullptr) {
      refuse(raw->what +
             " says how a job goes on without lost workers, and this one waits for them: give mode=shrink "
             "(WARREN_MODE) too, or leave it out");
    }
    return show(setting.name, "(none)", raw);
  }
  if (const auto* special = std::get_if<Special>(&setting.value)) {
    special->read(*this, s);
  } else {
    std::visit(
        [&](const auto& value) {
          if constexpr (!std::is_same_v<std::remove_cvref_t<decltype(value)>, Special>) read(setting, value, raw, s);
        },
        setting.value);
  }
  if (setting.then != nullptr) setting.then(*this, s);
}

void Resolver::read(const Setting& setting, const Number& number, const Raw* raw, Settings& s) {
  number.set(s, number.computed != nullptr ? number.computed(*this, s) : number.by_default);
  if (raw != nullptr) {
    const std::uint64_t most = number.most_here != nullptr ? number.most_here(s) : number.most;
    const auto parsed = number.unit == Unit::kBytes ? parse_bytes(raw->what, raw->text, number.least, most)
                                                    : parse_number(raw->what, raw->text, number.least, most);
    keep(parsed.status());
    if (parsed.ok()) number.set(s, parsed.value());
  }
  show(setting.name, std::to_string(number.get(s)), raw);
}

void Resolver::read(const Setting& setting, const Switch& on_off, const Raw* raw, Settings& s) {
  bool& into = s.*on_off.member;
  into = on_off.computed != nullptr ? on_off.computed(*this, s) : on_off.by_default;
  if (raw != nullptr) {
    const auto parsed = parse_switch(raw->what, raw->text);
    keep(parsed.status());
    if (parsed.ok()) into = parsed.value();
  }
  show(setting.name, into ? "1" : "0", raw);
}

void Resolver::read(const Setting& setting, const Word& word, const Raw* raw, Settings& s) {
  std::size_t chosen = word.computed != nullptr ? word.computed(*this, s) : word.by_default;
  if (raw != nullptr) {
    const std::size_t place = place_of(word, raw->text);
    if (place < word.words.size()) {
      chosen = place;
    } else {
      refuse(raw->what + " is " + in_quotes(raw->text) + ": give " + all_of(word) +
             did_you_mean(raw->text, word.words));
    }
  }
  word.set(s, chosen);
  show(setting.name, std::string(word.words[chosen]), raw);
}

void Resolver::read(const Setting& setting, const Text& text, const Raw* raw, Settings& s) {
  std::string& into = s.*text.member;
  if (raw != nullptr) {
    if (text.check != nullptr) keep(text.check(*raw));
    into = raw->text;
  } else {
    into = text.computed != nullptr ? text.computed(*this, s) : std::string(text.by_default);
  }
  show(setting.name, into.empty() ? "(none)" : into, raw);
}

}  // namespace warren::worker
