"""./dev test: a skipped or disabled case is never overlooked, nor is a test program that is not built yet."""

import json
import pathlib
import re
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import run_tests  # noqa: E402

GOOD = ('<testsuites><testsuite name="A"><testcase name="one" status="run" result="completed" classname="A"/>'
        '<testcase name="two" status="run" result="completed" classname="A"/></testsuite></testsuites>')
SKIPPED = ('<testsuites><testsuite name="A"><testcase name="one" status="run" result="skipped" classname="A">'
           '<skipped message="no GPU"/></testcase></testsuite></testsuites>')
DISABLED = '<testsuite name="t"><testcase name="three" classname="three" status="disabled"/></testsuite>'
PASSED_BY_CTEST = '<testsuite name="t"><testcase name="four" classname="four" status="run"/></testsuite>'


class Count(unittest.TestCase):
    def count(self, **reports: str):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in reports.items():
                (pathlib.Path(folder) / f"{name.replace('_', '.')}.xml").write_text(text)
            return run_tests.count(pathlib.Path(folder))

    def test_cases_are_googletests(self):
        self.assertEqual(self.count(a=GOOD, ctest_junit=PASSED_BY_CTEST), (2, []))

    def test_a_skipped_case_is_found(self):
        self.assertEqual(self.count(a=GOOD, b=SKIPPED), (2, ["b:A.one"]))

    def test_a_disabled_program_is_found(self):
        self.assertEqual(self.count(ctest_junit=DISABLED), (0, ["ctest.junit:three.three"]))


class WithoutGpu(unittest.TestCase):
    """Cases that need a GPU are counted apart, as long as the whole program has none."""

    def apart(self, report: str):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "gpu_test.xml").write_text(report)
            (path / "other.xml").write_text(SKIPPED)
            return run_tests.skipped_without_gpu(path, run_tests.count(path)[1])

    def test_all_of_them(self):
        self.assertEqual(self.apart(SKIPPED), (["gpu_test:A.one"], ["other:A.one"]))

    def test_one_of_them_is_a_skip_like_any_other(self):
        some = SKIPPED.replace("</testsuite>", '<testcase name="two" status="run" classname="A"/></testsuite>')
        self.assertEqual(self.apart(some), ([], ["gpu_test:A.one", "other:A.one"]))

    def test_that_one_is_required_reaches_them(self):
        self.assertEqual(run_tests.test_environment({"WARREN_REQUIRE_GPU": "1", "WARREN_JOB": "j"}),
                         {"WARREN_REQUIRE_GPU": "1"})


class NothingRan(unittest.TestCase):
    def test_a_program_without_a_case_is_found(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            (path / "full.xml").write_text(GOOD)
            (path / "empty.xml").write_text('<testsuites tests="0"></testsuites>')
            (path / "ctest.junit.xml").write_text('<testsuite/>')
            self.assertEqual(run_tests.without_cases(path), ["empty"])

    def test_a_filter_in_the_environment_does_not_reach_the_tests(self):
        inherited = {"PATH": "/bin", "GTEST_FILTER": "None", "GTEST_TOTAL_SHARDS": "99", "WARREN_TRACKER": "h"}
        self.assertEqual(run_tests.test_environment(inherited), {"PATH": "/bin"})


class Selection(unittest.TestCase):
    def test_a_program_that_is_not_built_yet_is_chosen_too(self):
        build = pathlib.Path("/b")
        shown = json.dumps({"tests": [
            {"name": "one", "command": ["/b/tests/one"], "properties": [
                {"name": "LABELS", "value": ["gtest"]}, {"name": "WORKING_DIRECTORY", "value": "/b/tests/worker/kernels"}]},
            {"name": "two", "properties": [
                {"name": "LABELS", "value": ["gtest", "e2e"]}, {"name": "WORKING_DIRECTORY", "value": "/b/tests/e2e"}]},
            {"name": "script", "command": ["python3"], "properties": [
                {"name": "LABELS", "value": ["scripts"]}, {"name": "WORKING_DIRECTORY", "value": "/b/tests/scripts"}]}]})
        self.assertEqual(run_tests.gtest_programs(shown, build), [{"name": "one", "folder": ("worker", "kernels")},
                                                                  {"name": "two", "folder": ("e2e",)}])

    def test_what_a_sanitizer_leaves_out_exists(self):
        cmake = "".join(path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt"))
        for names, pattern in re.findall(r"foreach\(name ([^)]+)\)\s+warren_test\(NAME (\S+)", cmake):
            cmake += " ".join(pattern.replace("${name}", name) for name in names.split())
        left_out = (run_tests.TOO_SLOW_SANITIZED | run_tests.OF_COMMANDS | run_tests.THREADS_ABOVE_ALL |
                    run_tests.WITHOUT_THREADS | run_tests.OTHER_THREADS_ALIKE | run_tests.THREADED)
        self.assertEqual([name for name in sorted(left_out) if not re.search(rf"\b{name}\b", cmake)], [])

    def test_who_makes_threads_is_not_left_out_of_their_sanitizer(self):
        with_threads = []
        for path in (ROOT / "tests").rglob("CMakeLists.txt"):
            for name, sources in re.findall(r"warren_test\(NAME (\w+)\s+SOURCES ([^)]*?)\s+DEPS", path.read_text()):
                code = "".join((path.parent / source).read_text() for source in sources.split())
                if name in run_tests.WITHOUT_THREADS and re.search(r"std::(j?thread\b|async)|pthread_create", code):
                    with_threads.append(name)
        self.assertEqual(with_threads, [])


if __name__ == "__main__":
    unittest.main()
