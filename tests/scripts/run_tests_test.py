"""./dev test: no skipped or disabled case is overlooked, every test has its labels, and the report says what took long.

The argument is the folder of a configured build, whose CTest is asked for its labels (default: build/release)."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import run_tests  # noqa: E402

BUILD = sys.argv.pop() if len(sys.argv) > 1 and not sys.argv[-1].startswith("-") else str(ROOT / "build/release")
# Sources with threads that ThreadSanitizer does not run, each for the reason that its CMakeLists.txt gives.
WITHOUT_THREAD_SANITIZER = {"tests/e2e/signal_storm_test.cc", "tests/e2e/wire_test.cc",
                            "tests/examples/digits_test.cc", "tests/storage/result_crash_test.cc",
                            "tests/worker/system/stacks_test.cc"}

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
            (path / "gpu_test.gpu_test.xml").write_text(report)
            (path / "other.xml").write_text(SKIPPED)
            return run_tests.skipped_without_gpu(path, run_tests.count(path)[1])

    def test_all_of_them(self):
        self.assertEqual(self.apart(SKIPPED), (["gpu_test.gpu_test:A.one"], ["other:A.one"]))

    def test_one_of_them_is_a_skip_like_any_other(self):
        some = SKIPPED.replace("</testsuite>", '<testcase name="two" status="run" classname="A"/></testsuite>')
        self.assertEqual(self.apart(some), ([], ["gpu_test.gpu_test:A.one", "other:A.one"]))

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


class Order(unittest.TestCase):
    def test_the_longest_come_first_and_the_others_in_any_order(self):
        names = ["a", "b", run_tests.LONGEST[1], "c", run_tests.LONGEST[0]]
        orders = set()
        for _ in range(100):
            costs = run_tests.costs(names)
            orders.add(tuple(sorted(names, key=lambda name: -costs[name])))
        self.assertEqual({order[:2] for order in orders}, {run_tests.LONGEST[:2]})
        self.assertEqual(len(orders), 6)


class Report(unittest.TestCase):
    def test_a_stage_over_its_budget_says_so_and_passes(self):
        budget = run_tests.STAGES["fast"].budget_min
        shown = run_tests.table([("check", 0.1, "ok"), ("fast", budget + 0.1, "ok")], budget + 0.2)
        self.assertRegex(shown, r"check +0\.1 +[0-9.]+  ok\n")
        self.assertRegex(shown, r"fast .* ok, OVER ITS BUDGET\n")
        self.assertRegex(shown, r"total .* ok$")

    def test_a_failed_stage_is_named_in_the_total(self):
        self.assertRegex(run_tests.table([("fast", 0.1, "FAILED: ctest")], 0.1), r"total .* FAILED: fast$")

    def test_stages_that_came_too_late_are_counted_and_are_no_failure(self):
        late = [(name, 0.0, run_tests.NOT_BEGUN) for name in ("asan", "tsan")]
        shown = run_tests.table([("fast", 0.1, "ok"), *late], 0.1)
        self.assertRegex(shown, r"total .* ok\n2 STAGES NOT BEGUN, .*: asan, tsan$")

    def test_stages_that_did_not_run_are_named(self):
        quick = [name for name, stage in run_tests.STAGES.items() if stage.quick]
        lines = "\n".join(run_tests.left_out(quick))
        for name in ("slow", "e2e", "asan", "tsan", "fuzz", "--all"):
            self.assertIn(name, lines)
        self.assertEqual(run_tests.left_out(list(run_tests.STAGES)), [])

    def test_the_quick_stages_are_those_of_15_minutes_and_all_are_those_of_60(self):
        stages = run_tests.STAGES.values()
        self.assertLessEqual(sum(stage.budget_min for stage in stages if stage.quick), 15)
        self.assertLessEqual(sum(stage.budget_min for stage in stages), 60)

    def test_the_slowest_entries_come_first(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            self.assertEqual(run_tests.slowest(path), [])
            cases = "".join(f'<testcase name="t{second}" time="{second}"/>' for second in range(9))
            (path / "ctest.junit.xml").write_text(f"<testsuite>{cases}</testsuite>")
            self.assertEqual(run_tests.slowest(path)[:2], [("t8", 8.0), ("t7", 7.0)])
            self.assertEqual(len(run_tests.slowest(path)), run_tests.SLOWEST)


class Labels(unittest.TestCase):
    @staticmethod
    def declared():
        """(source, the rest of its warren_test) for each test source; names in a foreach are put in."""
        for path in (ROOT / "tests").rglob("CMakeLists.txt"):
            text = path.read_text()
            for name, values, body in re.findall(r"foreach\((\w+) ([^)]+)\)\n(.*?)endforeach\(\)", text, re.S):
                for value in values.split():
                    text += body.replace("${" + name + "}", value)
            for source, rest in re.findall(r"warren_test\(\w+ ([\w./]+\.cc)([^)]*)\)", text):
                yield path.parent / source, rest.split()

    def test_every_source_is_some_programs(self):
        named = {source for source, _ in self.declared()}
        self.assertEqual(named, {path for path in (ROOT / "tests").rglob("*_test.cc")})

    def test_threads_run_under_their_sanitizer(self):
        unlabelled = [source.relative_to(ROOT).as_posix() for source, rest in self.declared()
                      if not {"threads", "THREADS_ONLY", "RELEASE_ONLY"} & set(rest) and
                      re.search(r"std::(j?thread\b|async)|pthread_create", source.read_text())]
        self.assertEqual(sorted(unlabelled), sorted(WITHOUT_THREAD_SANITIZER))

    @staticmethod
    def shown() -> list[dict]:
        return json.loads(subprocess.run(["ctest", "--test-dir", BUILD, "--show-only=json-v1"], check=True,
                                         capture_output=True).stdout)["tests"]

    @staticmethod
    def labels(test: dict) -> set[str]:
        properties = {item["name"]: item["value"] for item in test.get("properties", [])}
        return set(properties.get("LABELS", []))

    def test_every_entry_of_ctest_is_fast_or_slow(self):
        for test in self.shown():
            labels = self.labels(test)
            self.assertEqual(len(labels & {"fast", "slow"}), 1, f"{test['name']} has the labels {sorted(labels)}")

    def test_the_longest_are_entries_of_ctest(self):
        self.assertEqual(len(set(run_tests.LONGEST)), len(run_tests.LONGEST))
        entries = {test["name"] for test in self.shown()}
        # Without nvcc there is no gpu_run, and without the venv none of Python.
        missing = [name for name in run_tests.LONGEST if name not in entries and name != "gpu_run"]
        self.assertEqual([name for name in missing if "python/calls_test" in entries or "python/" not in name], [])

    def test_every_source_is_an_entry_of_ctest(self):
        entries = {test["name"] for test in self.shown() if "gtest" in self.labels(test)}
        sources = {path.relative_to(ROOT / "tests").with_suffix("").as_posix() for path in (ROOT / "tests").rglob("*_test.cc")}
        self.assertEqual(entries, sources)


if __name__ == "__main__":
    unittest.main()
