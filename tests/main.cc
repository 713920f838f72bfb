// main() of the test programs: GoogleTest's, with `--source=FILE` as first argument, which runs the tests of that
// source. CTest has one entry a source, so that a source's tests fail, time out and are labelled on their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

namespace {

constexpr std::string_view kSource = "--source=";

// The names of all tests in `source`, the end of a path, as a filter of GoogleTest; empty if there are none.
std::string tests_in(const std::string& source) {
  std::string filter;
  const testing::UnitTest& all = *testing::UnitTest::GetInstance();
  for (int s = 0; s < all.total_test_suite_count(); s++) {
    const testing::TestSuite& suite = *all.GetTestSuite(s);
    for (int t = 0; t < suite.total_test_count(); t++) {
      const testing::TestInfo& test = *suite.GetTestInfo(t);
      if (!("/" + std::string(test.file())).ends_with("/" + source)) continue;
      if (!filter.empty()) filter += ':';
      filter += std::string(suite.name()) + '.' + test.name();
    }
  }
  return filter;
}

// Names a case that takes long on standard error, so that one that hangs is known by its name when CTest kills the
// program. By SIGALRM, as a thread of its own would be one more in tests that count threads.
class NamesWhatHangs : public testing::EmptyTestEventListener {
 public:
  NamesWhatHangs() {
    struct sigaction action {};
    action.sa_flags = SA_RESTART;
    action.sa_handler = [](int) { (void)!::write(STDERR_FILENO, text_.data(), size_); };
    (void)::sigaction(SIGALRM, &action, nullptr);
  }
  void OnTestStart(const testing::TestInfo& test) override {
    const int n = std::snprintf(text_.data(), text_.size(), "%s.%s has not ended after %u s\n", test.test_suite_name(),
                                test.name(), kLongSeconds);
    size_ = std::min(static_cast<std::size_t>(std::max(n, 0)), text_.size() - 1);
    (void)::alarm(kLongSeconds);
  }
  void OnTestEnd(const testing::TestInfo&) override { (void)::alarm(0); }

 private:
  static constexpr unsigned kLongSeconds = 100;
  static inline std::array<char, 256> text_{};
  static inline std::size_t size_ = 0;
};

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
  testing::UnitTest::GetInstance()->listeners().Append(new NamesWhatHangs);  // which GoogleTest frees
  // The child of a death test has its test as filter.
  if (source.empty() || !GTEST_FLAG_GET(internal_run_death_test).empty()) return RUN_ALL_TESTS();

  if (GTEST_FLAG_GET(filter) != "*") {
    std::fprintf(stderr, "%s: give --source or --gtest_filter, not both\n", argv[0]);
    return 2;
  }
  const std::string filter = tests_in(source.string());
  if (filter.empty()) {
    std::fprintf(stderr, "%s: %s holds no test\n", argv[0], source.c_str());
    return 1;
  }
  GTEST_FLAG_SET(filter, filter);
  return RUN_ALL_TESTS();
}
