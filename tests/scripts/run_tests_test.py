"""The counting of test cases: a skipped or disabled one is never overlooked."""

import pathlib
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


if __name__ == "__main__":
    unittest.main()
