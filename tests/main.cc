// main() of the test programs: GoogleTest's, with `--source=FILE` as first argument, which runs the tests of that
// source. CTest has one entry a source, so that a source's tests fail, time out and are labelled on their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kSource = "--source=";

// The names of all tests in `source`, as a filter of GoogleTest; empty if there are none.
std::string tests_in(const std::filesystem::path& source) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); s++) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); t++) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (std::filesystem::path(test.file()).filename() != source) continue;
      if (!filter.empty()) filter += ':';
      filter += std::string(suite.name()) + '.' + test.name();
    }
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  std::filesystem::path source;
  if (argc > 1 && std::string_view(argv[1]).starts_with(kSource)) {
    source = std::string_view(argv[1]).substr(kSource.size());
    // A folder for reports gets one a source, as sources of this program may run at the same time. GoogleTest chooses
    // the file while it is set up.
    if (const std::string output = GTEST_FLAG_GET(output); output.ends_with('/')) {
      const std::string program = std::filesystem::path(argv[0]).filename();
      GTEST_FLAG_SET(output, output + program + '.' + source.stem().string() + ".xml");
    }
  }
  testing::InitGoogleMock(&argc, argv);
  const int known = source.empty() ? 1 : 2;
  if (argc > known) {
    std::fprintf(stderr, "%s: unknown argument '%s'\n", argv[0], argv[known]);
    return 2;
  }
  // The child of a death test has its test as filter.
  if (source.empty() || !GTEST_FLAG_GET(internal_run_death_test).empty()) return RUN_ALL_TESTS();

  if (GTEST_FLAG_GET(filter) != "*") {
    std::fprintf(stderr, "%s: give --source or --gtest_filter, not both\n", argv[0]);
    return 2;
  }
  const std::string filter = tests_in(source);
  if (filter.empty()) {
    std::fprintf(stderr, "%s: %s holds no test\n", argv[0], source.c_str());
    return 1;
  }
  GTEST_FLAG_SET(filter, filter);
  return RUN_ALL_TESTS();
}
