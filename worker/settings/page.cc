#include "worker/settings/page.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "recovery/base/check.h"

namespace warren::worker {
namespace {

std::string code(std::string_view text) {
  return "`" + std::string(text) + "`";
}

// 262144 -> "256K"
std::string bytes_text(std::uint64_t bytes) {
  constexpr std::string_view kUnits = "KMG";
  std::string unit;
  for (const char letter : kUnits) {
    if (bytes == 0 || bytes % 1024 != 0) break;
    bytes /= 1024;
    unit = letter;
  }
  return std::to_string(bytes) + unit;
}

std::string number_text(const Number& number, std::uint64_t value) {
  return number.unit == Unit::kBytes ? bytes_text(value) : std::to_string(value);
}

// "`a`, `b` or `c`"
std::string words_text(const Word& word, bool markdown) {
  std::string out;
  for (std::size_t i = 0; i < word.words.size(); ++i) {
    out += i == 0 ? "" : i + 1 == word.words.size() ? " or " : ", ";
    out += markdown ? code(word.words[i]) : std::string(word.words[i]);
  }
  return out;
}

std::string values_text(const Setting& setting) {
  if (!setting.values.empty()) return std::string(setting.values);
  if (const auto* number = std::get_if<Number>(&setting.value)) {
    return number_text(*number, number->least) + " to " + number_text(*number, number->most);
  }
  if (const auto* word = std::get_if<Word>(&setting.value)) {
    return words_text(*word, true) + (word->numbered ? "; or 0 to " + std::to_string(word->words.size() - 1) : "");
  }
  return is_switch(setting) ? "0 or 1" : "any";
}

std::string default_text(const Setting& setting) {
  if (!setting.otherwise.empty()) return std::string(setting.otherwise);
  if (const auto* number = std::get_if<Number>(&setting.value)) return number_text(*number, number->by_default);
  if (const auto* word = std::get_if<Word>(&setting.value)) return code(word->words[word->by_default]);
  if (const auto* text = std::get_if<Text>(&setting.value)) return code(text->by_default);
  return is_on_by_default(setting) ? "1" : "0";
}

// The help with the unit: "how long, in milliseconds; 0: for ever".
std::string with_unit(const Setting& setting) {
  std::string help(setting.help);
  const auto* number = std::get_if<Number>(&setting.value);
  if (number != nullptr && number->unit == Unit::kMs)
    help.insert(std::min(help.find(';'), help.size()), ", in milliseconds");
  return help;
}

// Without marks of code and targets of links.
std::string plain(std::string_view markdown) {
  std::string out;
  for (std::size_t i = 0; i < markdown.size(); ++i) {
    if (markdown.substr(i).starts_with("](")) {
      i = markdown.find(')', i);
      WARREN_CHECK(i != std::string_view::npos, "the target of a link ends");
    } else if (markdown[i] != '`' && markdown[i] != '[') {
      out += markdown[i];
    }
  }
  return out;
}

std::string row_of(const Setting& setting) {
  std::string meaning = with_unit(setting);
  if (setting.agreed != Agreed::kNo) meaning += "; equal on all workers";
  if (!setting.option.name.empty()) meaning += " (option: " + code(setting.option.name) + ")";
  return "| " + code(setting.name) + " | " + code(variable_of(setting.name)) + " | " + meaning + " | " +
         values_text(setting) + " | " + default_text(setting) + " |\n";
}

std::string rows_of_flags(Section section) {
  std::string flags;
  for (const Setting& setting : settings_table()) {
    if (setting.section != section || !setting.flag) continue;
    flags += (flags.empty() ? "" : ", ") + code("--" + std::string(setting.name));
  }
  if (flags.empty()) return {};
  std::string title(title_of(section));
  title[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(title[0])));
  return "| " + title + " | " + flags + " |\n";
}

template <class Do>
void for_each_section(Do act) {
  for (int i = 0; i <= static_cast<int>(kLastSection); ++i) act(static_cast<Section>(i));
}

// The table of this name; empty: there is none.
std::string named_table(std::string_view name) {
  if (name == "flags") return table_of_flags();
  if (name == "without option") return settings_without_option();
  std::string out;
  for_each_section([&](Section section) {
    if (title_of(section) == name) out = table_of(section);
  });
  return out;
}

}  // namespace

bool is_switch(const Setting& setting) {
  return std::holds_alternative<Switch>(setting.value);
}

bool is_on_by_default(const Setting& setting) {
  const auto* on_off = std::get_if<Switch>(&setting.value);
  return on_off != nullptr && on_off->by_default;
}

std::string table_of(Section section) {
  std::string out = "| setting | variable | meaning | values | default |\n| --- | --- | --- | --- | --- |\n";
  for (const Setting& setting : settings_table()) {
    if (setting.section == section) out += row_of(setting);
  }
  return out;
}

std::string settings_without_option() {
  std::string out;
  for (const Setting& setting : settings_table()) {
    if (setting.option.member.index() == 0) out += (out.empty() ? "" : ", ") + code(setting.name);
  }
  return out + "\n";
}

std::string table_of_flags() {
  std::string out = "| about | flags |\n| --- | --- |\n";
  for_each_section([&](Section section) { out += rows_of_flags(section); });
  return out;
}

std::string flag_help(const Setting& setting) {
  std::string help = plain(with_unit(setting));
  const std::string by_default = plain(default_text(setting));
  std::string more;
  if (const auto* word = std::get_if<Word>(&setting.value)) more = words_text(*word, false) + "; ";
  if (is_switch(setting)) {
    // The flag's form says the value.
    help.erase(0, 3);
    if (!is_on_by_default(setting)) return help;
  } else if (by_default.starts_with("required") || by_default == "none") {
    return help;
  }
  return help + " (" + more + "default " + by_default + ")";
}

std::string with_tables(std::string_view page) {
  constexpr std::string_view kBegin = "<!-- table ", kClose = " -->\n", kEnd = "<!-- end -->";
  std::string out;
  while (true) {
    const std::size_t begin = page.find(kBegin);
    if (begin == std::string_view::npos) return out + std::string(page);
    const std::size_t name = begin + kBegin.size();
    const std::size_t close = page.find(kClose, name);
    const std::size_t end = page.find(kEnd, name);
    if (close == std::string_view::npos || end == std::string_view::npos) return out + std::string(page);
    out += std::string(page.substr(0, close + kClose.size())) + "\n" + named_table(page.substr(name, close - name)) +
           "\n" + std::string(kEnd);
    page.remove_prefix(end + kEnd.size());
  }
}

}  // namespace warren::worker
