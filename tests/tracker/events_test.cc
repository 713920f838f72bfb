// Log lines for machines, and whether docs/events.md lists what the sources log, both ways.
#include "tracker/events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

namespace warren::tracker {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

TEST(JsonLine, HasTheStandingFieldsInEveryEvent) {
  const json line = json::parse(json_line(1'763'690'523'004, "train",
                                          {Severity::kWarning,
                                           "interrupted",
                                           "why \"so\"\n",
                                           {{"rank", "3"}, {"generation", "7"}, {"worker", "w"}, {"job", "x"}}}));
  EXPECT_EQ(line.at("time"), "2025-11-21T02:02:03.004Z");
  EXPECT_EQ(line.at("severity"), "warning");
  EXPECT_EQ(line.at("event"), "interrupted");
  EXPECT_EQ(line.at("job"), "train") << "a field never takes the place of a standing one";
  EXPECT_EQ(line.at("rank"), 3);
  EXPECT_EQ(line.at("generation"), 7);
  EXPECT_TRUE(line.at("version").is_null());
  EXPECT_TRUE(line.at("sequence").is_null());
  EXPECT_EQ(line.at("text"), "why \"so\"\n");
  EXPECT_EQ(line.at("worker"), "w");
}

TEST(JsonLine, IsOneLineOfJsonForAnyBytes) {
  const std::string line = json_line(0, "", {Severity::kInfo, "x", "\xff\n\0", {{"rank", "none"}}});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const json parsed = json::parse(line);
  EXPECT_TRUE(parsed.at("job").is_null());
  EXPECT_EQ(parsed.at("rank"), "none");
}

TEST(JsonLine, TheSinkWritesLines) {
  char* text = nullptr;
  std::size_t size = 0;
  std::FILE* out = open_memstream(&text, &size);
  const EventSink sink = json_line_sink(out);
  sink("a", {Severity::kInfo, "one", "", {}});
  sink("b", {Severity::kError, "two", "", {}});
  std::fclose(out);
  const std::string lines(text, size);
  std::free(text);
  const auto end = lines.find('\n');
  EXPECT_EQ(json::parse(lines.substr(0, end)).at("event"), "one");
  EXPECT_EQ(json::parse(lines.substr(end + 1)).at("job"), "b");
}

TEST(FromLevel, PassesOnWhatIsAsSevereAndMore) {
  std::vector<std::string> passed;
  const EventSink sink =
      from_level(Severity::kInfo, [&](std::string_view, const LogEvent& event) { passed.push_back(event.name); });
  sink("a", {Severity::kDebug, "committed", "", {}});
  sink("a", {Severity::kInfo, "recovered", "", {}});
  sink("a", {Severity::kError, "lost", "", {}});
  EXPECT_EQ(passed, (std::vector<std::string>{"recovered", "lost"}));

  EXPECT_EQ(parse_severity("debug").value(), Severity::kDebug);
  EXPECT_EQ(parse_severity("verbose").status().code(), Code::kInvalidArgument);
}

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The names of events in a source: the first string after a Severity in a call of log() or in a LogEvent, or after a
// sink in a call of say(), or the first of a call of notice(), as the launcher makes it.
std::set<std::string> names_in(const fs::path& folder) {
  static const std::regex kEvent(
      R"re((?:(?:Severity::k(?:Debug|Info|Warning|Error)|say\(sink),|notice\()\s*"([a-z_]+)")re");
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() != ".cc") continue;
    const std::string text = read(entry.path());
    for (std::sregex_iterator it(text.begin(), text.end(), kEvent), end; it != end; ++it) names.insert((*it)[1]);
  }
  return names;
}

TEST(EventsDocument, ListsWhatTheSourcesLogAndNothingElse) {
  const fs::path root = WARREN_SOURCE_DIR;
  std::set<std::string> logged;
  for (const char* folder : {"recovery", "storage", "tracker", "worker", "launcher", "cli"})
    logged.merge(names_in(root / folder));
  ASSERT_GT(logged.size(), 20u) << "the search still finds them";
  // Rows of its tables begin with the name: | `worker_joined` | …
  static const std::regex kRow(R"(\n\| `([a-z_]+)` \|)");
  const std::string document = read(root / "docs" / "events.md");
  std::set<std::string> listed;
  for (std::sregex_iterator it(document.begin(), document.end(), kRow), end; it != end; ++it) listed.insert((*it)[1]);
  for (const std::string& name : logged) EXPECT_TRUE(listed.contains(name)) << "docs/events.md does not list " << name;
  for (const std::string& name : listed) EXPECT_TRUE(logged.contains(name)) << "nothing logs " << name;
}

TEST(MetricsDocument, ListsWhatTheSourcesMeasureAndNothingElse) {
  const fs::path root = WARREN_SOURCE_DIR;
  const std::string source = read(root / "tracker" / "metrics.cc") + read(root / "tracker" / "alert_metrics.cc");
  const std::string document = read(root / "docs" / "metrics.md");
  static const std::regex kMetric(R"re("(warren_[a-z_]+)")re"), kRow(R"(\n\| `(warren_[a-z_]+)` \|)");
  std::set<std::string> measured, listed;
  for (std::sregex_iterator it(source.begin(), source.end(), kMetric), end; it != end; ++it) measured.insert((*it)[1]);
  for (std::sregex_iterator it(document.begin(), document.end(), kRow), end; it != end; ++it) listed.insert((*it)[1]);
  ASSERT_GT(measured.size(), 15u);
  EXPECT_EQ(measured, listed);
}

}  // namespace
}  // namespace warren::tracker
