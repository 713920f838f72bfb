#include "recovery/wire/job_settings.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "recovery/wire/codec.h"
#include "tests/recovery/script.h"

namespace warren::test {
namespace {

// Key and value of a field, as protobuf writes them: a number, or a text of one byte.
std::string number_field(int field) {
  std::string out;
  for (unsigned key = static_cast<unsigned>(field) << 3;; key >>= 7) {
    if (key < 0x80) return out + static_cast<char>(key) + "\x01";
    out += static_cast<char>(0x80 | (key & 0x7f));
  }
}
std::string text_field(int field) {
  std::string out = number_field(field) + "x";
  out[0] = static_cast<char>(out[0] | 2);
  return out;
}

// The fields of the message as bytes, one after the other.
std::vector<std::string> fields() {
  std::ifstream file(WARREN_SOURCE_DIR "/recovery/wire/messages.proto");
  std::vector<std::string> out;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line == "message JobSettings {") inside = true;
    if (line == "}") inside = false;
    std::istringstream words(line.substr(0, line.find(';')));
    std::string type, name, equals;
    int number = 0;
    if (!inside || !(words >> type >> name >> equals >> number) || equals != "=") continue;
    out.push_back(type == "bytes" ? text_field(number) : number_field(number));
  }
  return out;
}

// A field of the message that has no row would not be compared, and not kept.
TEST(JobSettings, EachFieldOfTheMessageHasARow) {
  const std::vector<std::string> all = fields();
  EXPECT_EQ(all.size(), job_settings().size());
  for (const std::string& bytes : all) {
    wire::JobSettings s;
    ASSERT_TRUE(s.ParseFromString(bytes));
    EXPECT_EQ(copy_of(s).SerializeAsString(), bytes);
    EXPECT_FALSE(difference(s, {}).name.empty());
  }
}

TEST(JobSettings, FieldsThatNobodyKnowsAreNotKept) {
  wire::JobSettings s;
  ASSERT_TRUE(s.ParseFromString(number_field(199)));
  EXPECT_EQ(copy_of(s).SerializeAsString(), "");
}

TEST(JobSettings, TheFirstDifferenceIsNamedWithBothValues) {
  EXPECT_EQ(difference(settings(2), settings(2)).name, "");
  for (const JobSetting& setting : job_settings()) {
    wire::JobSettings theirs = settings(2);
    if (setting.text != nullptr) {
      *setting.mutable_text(theirs) += "x";
    } else {
      setting.set(theirs, setting.get(theirs) == 0 ? 1 : 0);
    }
    const JobDifference found = difference(theirs, settings(2));
    EXPECT_EQ(found.name, setting.name);
    EXPECT_EQ(found.theirs, setting.shown(setting, theirs));
    EXPECT_EQ(found.ours, setting.shown(setting, settings(2)));
    EXPECT_NE(found.theirs, found.ours) << setting.name;
  }
}

TEST(JobSettings, NumbersOutsideOfTheirRangeAreRefusedByName) {
  for (const JobSetting& setting : job_settings()) {
    if (setting.text != nullptr || setting.most == 1) continue;  // no number
    for (const std::uint64_t value : {setting.least - 1, setting.most + 1}) {
      if (value > UINT32_MAX) continue;  // one below 0
      wire::JobSettings s = settings(2);
      setting.set(s, value);
      EXPECT_EQ(validate(s).describe(), std::string(setting.name) + " " + std::to_string(value) + " is outside " +
                                            std::to_string(setting.least) + " to " + std::to_string(setting.most));
    }
  }
}

TEST(JobSettings, AreFoundByTheirNames) {
  ASSERT_NE(find_job_setting("streams"), nullptr);
  EXPECT_EQ(find_job_setting("streams")->most, 16u);
  EXPECT_EQ(find_job_setting("stream"), nullptr);
}

}  // namespace
}  // namespace warren::test
