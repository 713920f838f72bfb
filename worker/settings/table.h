// The table of a worker's settings: one row each. Names, variables, options, parsing, validation, the flags of `warren
// run` and the tables of docs/settings.md come from the rows.
//
// A new setting is a member of Settings, a row here, and the place where it is used. One that all workers have to agree
// on also has a row in recovery/wire/job_settings.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "recovery/base/result.h"
#include "warren/c_api.h"
#include "worker/settings/settings.h"

namespace warren::worker {

struct Raw;
class Resolver;

// The headings of docs/settings.md, and of the flags in `warren help run`.
enum class Section { kJob, kPlace, kPatience, kBytes, kKept, kLost, kEnds, kGpus, kRest };
inline constexpr Section kLastSection = Section::kRest;
[[nodiscard]] std::string_view title_of(Section section);

enum class Unit { kNone, kMs, kBytes };

// A whole number. Bytes may be given with K, M or G.
struct Number {
  std::uint64_t (*get)(const Settings&) = nullptr;
  void (*set)(Settings&, std::uint64_t) = nullptr;
  std::uint64_t least = 0, most = 0, by_default = 0;
  Unit unit = Unit::kNone;
  // Where the default, or the most, depends on other settings or on the machine.
  std::uint64_t (*computed)(const Resolver&, const Settings&) = nullptr;
  std::uint64_t (*most_here)(const Settings&) = nullptr;
};
// On or off.
struct Switch {
  bool Settings::*member = nullptr;
  bool by_default = false;
  bool (*computed)(const Resolver&, const Settings&) = nullptr;
};
// One of some words.
struct Word {
  std::string_view (*get)(const Settings&) = nullptr;
  void (*set)(Settings&, std::size_t) = nullptr;
  std::span<const std::string_view> words = {};
  std::size_t by_default = 0;
  std::size_t (*computed)(const Resolver&, const Settings&) = nullptr;
  bool numbered = false;  // the number of the word is understood too
};
struct Text {
  std::string Settings::*member = nullptr;
  Status (*check)(const Raw&) = nullptr;
  std::string_view by_default = {};
  std::string (*computed)(const Resolver&, const Settings&) = nullptr;
};
// A setting that a function of its own reads.
struct Special {
  void (*read)(Resolver&, Settings&) = nullptr;
};

// The member of warren_options that gives a setting. Most settings have none: warren_options_set takes them by name.
struct Option {
  enum class Given { kNotNull, kAbove0, kFrom0, kOn, kOff };  // kOn, kOff: above 0, the setting is 1 or 0
  std::variant<std::monostate, const char * warren_options::*, std::int32_t warren_options::*,
               std::int64_t warren_options::*>
      member;
  Given given = Given::kNotNull;
  std::string_view name;  // where it is not the setting's
};

// Whether a worker with another value is refused.
enum class Agreed {
  kNo,
  kAsItIs,  // by the job's setting of the same name
  kDerived  // by one that agreed_settings() makes of it
};

struct Setting {
  std::string_view name;
  Section section = Section::kRest;
  std::variant<Number, Switch, Word, Text, Special> value;
  Option option = {};
  Agreed agreed = Agreed::kNo;
  bool shrink_only = false;  // it says something only in mode shrink
  bool flag = false;         // `warren run` has a flag for it
  // A phrase that says in Markdown what the setting does, without full stop. The unit, the values and the default are
  // added to it.
  std::string_view help;
  std::string_view values = {};     // where the type does not tell, in Markdown
  std::string_view otherwise = {};  // the default, where it is no value, in Markdown
  // Runs when the setting has been read: what is made of it before others are.
  void (*then)(Resolver&, Settings&) = nullptr;
};

// In the order of docs/settings.md.
[[nodiscard]] std::span<const Setting> settings_table();
// Null: there is no setting of this name.
[[nodiscard]] const Setting* find_setting(std::string_view name);
// "streams" -> "WARREN_STREAMS"
[[nodiscard]] std::string variable_of(std::string_view name);

}  // namespace warren::worker
