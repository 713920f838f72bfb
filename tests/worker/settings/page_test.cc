#include "worker/settings/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

namespace warren::worker {
namespace {

using testing::HasSubstr;

std::string contents_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

// `./dev settings` writes the tables into the pages (WARREN_WRITE_PAGES).
TEST(SettingsPage, TheTablesOfThePagesAreWhatTheTableOfSettingsSays) {
  for (const char* page : {"/docs/settings.md", "/docs/commands.md"}) {
    const std::string path = std::string(WARREN_SOURCE_DIR) + page;
    const std::string is = contents_of(path), should_be = with_tables(is);
    ASSERT_THAT(is, HasSubstr("<!-- table "));
    if (is == should_be) continue;
    if (std::getenv("WARREN_WRITE_PAGES") != nullptr) {  // NOLINT(concurrency-mt-unsafe): one thread
      std::ofstream(path) << should_be;
      continue;
    }
    ADD_FAILURE() << page << " does not say what worker/settings/table.cc does: `./dev settings` writes it";
  }
}

TEST(SettingsPage, EverySectionIsOnThePage) {
  const std::string page = contents_of(WARREN_SOURCE_DIR "/docs/settings.md");
  for (const Setting& setting : settings_table()) {
    EXPECT_THAT(page, HasSubstr("<!-- table " + std::string(title_of(setting.section)) + " -->"));
    EXPECT_THAT(page, HasSubstr("| `" + std::string(setting.name) + "` | `" + variable_of(setting.name) + "` |"));
  }
}

TEST(SettingsPage, WhatStandsBetweenTheMarksIsReplaced) {
  const std::string page = "a\n<!-- table How long to wait -->\nold\n<!-- end -->\nb\n";
  const std::string with = with_tables(page);
  EXPECT_EQ(with, "a\n<!-- table How long to wait -->\n\n" + table_of(Section::kPatience) + "\n<!-- end -->\nb\n");
  EXPECT_EQ(with_tables(with), with);
  EXPECT_EQ(with_tables("no table"), "no table");
  EXPECT_EQ(with_tables("<!-- table The job -->\nno end"), "<!-- table The job -->\nno end");
}

TEST(SettingsPage, ARowSaysMeaningUnitAgreementValuesAndDefault) {
  EXPECT_THAT(table_of(Section::kPatience),
              HasSubstr("\n| `round_timeout_ms` | `WARREN_ROUND_TIMEOUT_MS` | how long a silent peer is waited for, in "
                        "milliseconds; equal on all workers | 100 to 86400000 | 10000 |\n"));
  EXPECT_THAT(table_of(Section::kBytes), HasSubstr("(option: `no_rewire`) | 0 or 1 | 1 |"));
  EXPECT_THAT(table_of(Section::kBytes), HasSubstr("| 1K to 4M | 256K |"));
  EXPECT_THAT(table_of(Section::kLost), HasSubstr("the others before [a spare replaces it](commands.md#slow-ranks-and-"
                                                  "links), in milliseconds; 0: never replaced; equal on all workers"));
}

TEST(SettingsPage, FlagsSayTheirDefaultsInPlainText) {
  const auto help = [](std::string_view name) { return flag_help(*find_setting(name)); };
  EXPECT_EQ(help("round_timeout_ms"), "how long a silent peer is waited for, in milliseconds (default 10000)");
  EXPECT_EQ(help("join_timeout_ms"), "how long workers wait until all are there, in milliseconds (default 300000)");
  EXPECT_EQ(help("algorithm"),
            "the algorithm of collectives (auto, star, tree, butterfly, ring or direct; default auto)");
  EXPECT_EQ(help("log"),
            "when logged results are written to data_dir (memory, async or sync; default async if there is a data_dir, "
            "else memory)");
  EXPECT_EQ(help("rewire"), "bytes never go by way of other workers around a slow link (default 1)");
  EXPECT_EQ(help("insecure_no_auth"), "no authentication, where nobody else can connect");
  EXPECT_EQ(help("timeline"), "file that gets a Chrome trace of calls, rounds and recoveries");
}

}  // namespace
}  // namespace warren::worker
