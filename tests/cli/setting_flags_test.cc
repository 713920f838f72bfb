#include "cli/setting_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/table.h"
#include "worker/settings/page.h"
#include "worker/settings/table.h"

namespace warren::cli {
namespace {

using testing::HasSubstr;
using testing::Not;

// The settings that `warren run` takes from a command line.
class SettingFlags : public testing::Test {
 protected:
  SettingFlags() { forget(); }
  ~SettingFlags() override { forget(); }

  static void forget() {
    for (const worker::Setting& setting : worker::settings_table()) {
      EXPECT_TRUE(give_setting(setting.name, "").ok());
    }
  }
  static Parsed parse(const std::vector<std::string>& words) { return parse_arguments(kRunCommand, words); }
};

TEST_F(SettingFlags, ValuesAreKeptByTheNamesOfTheSettings) {
  const Parsed parsed = parse({"--streams=3", "--log", "sync", "--job=", "program", "--streams=4"});
  EXPECT_TRUE(parsed.ok);
  EXPECT_THAT(parsed.words, testing::ElementsAre("program", "--streams=4"));
  EXPECT_EQ(given_setting("streams"), "3");
  EXPECT_EQ(given_setting("log", "memory"), "sync");
  EXPECT_EQ(given_setting("replicas", "2"), "2");
  EXPECT_EQ(given_settings().size(), 2u) << "an empty value counts as not given";
}

TEST_F(SettingFlags, TheLastOneCounts) {
  EXPECT_TRUE(parse({"--streams=3", "--streams=4"}).ok);
  EXPECT_EQ(given_setting("streams"), "4");
  EXPECT_TRUE(parse({"--streams="}).ok);
  EXPECT_EQ(given_setting("streams", "none"), "none");
}

// A switch that is on by default takes its value, as ever, also from the next word.
TEST_F(SettingFlags, Switches) {
  EXPECT_FALSE(is_given_on("resize"));
  EXPECT_THAT(parse({"--resize", "0"}).words, testing::ElementsAre("0"));
  EXPECT_TRUE(is_given_on("resize"));
  EXPECT_TRUE(parse({"--noresize"}).ok);
  EXPECT_FALSE(is_given_on("resize"));
  EXPECT_THAT(parse({"--rewire", "0"}).words, testing::IsEmpty());
  EXPECT_EQ(given_setting("rewire"), "0");
  EXPECT_FALSE(parse({"--resize=maybe"}).ok);
  EXPECT_FALSE(parse({"--noresize=1"}).ok);
}

TEST_F(SettingFlags, OnlyThoseOfTheCommandAreTaken) {
  EXPECT_FALSE(parse({"--stream=3"}).ok);
  EXPECT_FALSE(parse({"--nccl_root=/p"}).ok) << "it is a setting, and no flag";
  const std::vector<std::string> streams = {"--streams=3"};
  EXPECT_FALSE(parse_arguments(kStatusCommand, streams).ok);
  EXPECT_TRUE(given_settings().empty());
}

TEST_F(SettingFlags, HelpHasThemUnderTheirHeadingsWithDefaults) {
  const std::string page = help_page(kRunCommand);
  EXPECT_THAT(page, HasSubstr("\nHow long to wait:\n  --round_timeout_ms=N      how long a silent peer"));
  EXPECT_THAT(page, HasSubstr("(default 10000)"));
  EXPECT_THAT(page, HasSubstr("300000)")) << "a line may end before it";
  EXPECT_THAT(page, HasSubstr("\n  --rewire=0 "));
  EXPECT_THAT(page, HasSubstr("\n  --resize "));
  EXPECT_THAT(page, HasSubstr("\n  --log=TEXT "));
  EXPECT_THAT(page, Not(HasSubstr("GPUs:"))) << "none of them is a flag";
  for (const worker::Setting& setting : worker::settings_table()) {
    const std::string form = "\n  --" + std::string(setting.name);
    const bool shown = page.find(form + "=") != std::string::npos || page.find(form + " ") != std::string::npos;
    // The launcher's own flags have the names of these.
    const bool launchers = setting.name == "tracker" || setting.name == "world_size" || setting.name == "spares";
    EXPECT_EQ(shown, setting.flag || launchers) << setting.name;
  }
}

}  // namespace
}  // namespace warren::cli
