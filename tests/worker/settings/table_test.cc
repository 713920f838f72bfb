#include "worker/settings/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "recovery/wire/job_settings.h"
#include "warren/c_api.h"

namespace warren::worker {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

TEST(SettingsTable, EachNameIsThereOnceAndThereIsRoomForAll) {
  std::set<std::string_view> names;
  for (const Setting& setting : settings_table()) EXPECT_TRUE(names.insert(setting.name).second) << setting.name;
  EXPECT_LE(names.size(), std::size_t{WARREN_MOST_SETTINGS});
  ASSERT_NE(find_setting("streams"), nullptr);
  EXPECT_EQ(find_setting("stream"), nullptr);
  EXPECT_EQ(variable_of("round_timeout_ms"), "WARREN_ROUND_TIMEOUT_MS");
}

TEST(SettingsTable, SectionsStandTogether) {
  Section last = Section::kJob;
  for (const Setting& setting : settings_table()) {
    EXPECT_GE(setting.section, last) << setting.name;
    last = setting.section;
    EXPECT_NE(title_of(setting.section), "");
  }
  EXPECT_EQ(last, kLastSection);
}

// A flag of a switch says the value that is not the default: help begins with it.
TEST(SettingsTable, HelpIsOnePhrase) {
  for (const Setting& setting : settings_table()) {
    SCOPED_TRACE(setting.name);
    EXPECT_THAT(setting.help, Not(testing::EndsWith(".")));
    EXPECT_LE(std::count(setting.help.begin(), setting.help.end(), ' '), 25);
    if (const auto* on_off = std::get_if<Switch>(&setting.value)) {
      EXPECT_THAT(setting.help, StartsWith(on_off->by_default ? "0: " : "1: "));
    }
  }
}

TEST(SettingsTable, DefaultsAreWithinTheirRanges) {
  for (const Setting& setting : settings_table()) {
    SCOPED_TRACE(setting.name);
    if (const auto* number = std::get_if<Number>(&setting.value)) {
      EXPECT_LE(number->least, number->most);
      if (number->computed == nullptr && setting.otherwise.empty()) {
        EXPECT_GE(number->by_default, number->least);
        EXPECT_LE(number->by_default, number->most);
      }
      Settings s;
      number->set(s, number->most);
      EXPECT_EQ(number->get(s), number->most) << "the member has room for the most";
    } else if (const auto* word = std::get_if<Word>(&setting.value)) {
      for (std::size_t i = 0; i < word->words.size(); ++i) {
        Settings s;
        word->set(s, i);
        EXPECT_EQ(word->get(s), word->words[i]);
      }
    }
  }
}

// Two rows with one member would overwrite each other.
TEST(SettingsTable, EachRowHasAMemberOfItsOwn) {
  for (const Setting& setting : settings_table()) {
    const auto* number = std::get_if<Number>(&setting.value);
    if (number == nullptr) continue;
    Settings s;
    number->set(s, number->most);
    for (const Setting& other : settings_table()) {
      const auto* also = std::get_if<Number>(&other.value);
      if (also == nullptr || other.name == setting.name) continue;
      EXPECT_EQ(also->get(s), 0u) << setting.name << " sets " << other.name;
    }
  }
}

TEST(SettingsTable, RangesOfAgreedSettingsAreThoseOfTheTracker) {
  for (const Setting& setting : settings_table()) {
    if (setting.agreed != Agreed::kAsItIs) continue;
    SCOPED_TRACE(setting.name);
    const JobSetting* job = find_job_setting(setting.name);
    ASSERT_NE(job, nullptr);
    if (const auto* number = std::get_if<Number>(&setting.value)) {
      EXPECT_GE(number->least, job->least);
      EXPECT_EQ(number->most, job->most);
    } else if (const auto* word = std::get_if<Word>(&setting.value)) {
      EXPECT_EQ(word->words.data(), job->words.data());
    } else {
      EXPECT_TRUE(std::holds_alternative<Switch>(setting.value));
    }
  }
}

}  // namespace
}  // namespace warren::worker
