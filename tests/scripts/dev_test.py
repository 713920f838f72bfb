"""./dev itself: its list of commands, what it answers to a wrong one, and that the folder it is called from is no matter."""

import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = ["setup", "build", "demo", "test", "bench", "sim", "chaos", "format", "check"]


def dev(*arguments: str, cwd: pathlib.Path = ROOT):
    return subprocess.run([str(ROOT / "dev"), *arguments], cwd=cwd, capture_output=True, text=True)


class Dev(unittest.TestCase):
    def test_alone_lists_every_command_with_a_line_of_help(self):
        result = dev()
        self.assertEqual(result.returncode, 0)
        listed = re.findall(r"^  (\w+)\b.* {2,}(\S.*)$", result.stdout, re.M)
        self.assertEqual([name for name, _ in listed], COMMANDS)

    def test_an_unknown_command_is_exit_status_2(self):
        result = dev("rehearse")
        self.assertEqual(result.returncode, 2)
        self.assertIn("rehearse", result.stderr)
        self.assertEqual(dev("test", "--stage=nonsense").returncode, 2)
        self.assertEqual(dev("build", "--preset").returncode, 2)

    def test_works_from_any_folder_and_through_a_link(self):
        with tempfile.TemporaryDirectory() as folder:
            link = pathlib.Path(folder) / "dev"
            link.symlink_to(ROOT / "dev")
            result = subprocess.run([str(link), "test", "--list"], cwd=folder, capture_output=True, text=True)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("unit", result.stdout)

    def test_the_list_of_packages_is_well_formed(self):
        seen = set()
        for line in (ROOT / "scripts/packages.txt").read_text().splitlines():
            if line.startswith("#"):
                continue
            self.assertRegex(line, r"^[a-z0-9.+-]+ +(build|test|bench)$")
            package = line.split()[0]
            self.assertNotIn(package, seen)
            seen.add(package)


if __name__ == "__main__":
    unittest.main()
