"""./dev itself: its list of commands, what it answers to a wrong one, and that the folder it is called from is no matter."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMANDS = ["setup", "build", "demo", "test", "wheel", "gpu", "bench", "sim", "chaos", "settings", "format", "check"]


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
            self.assertIn("* fast", result.stdout)

    def test_the_list_of_packages_is_well_formed(self):
        seen = set()
        for line in (ROOT / "scripts/packages.txt").read_text().splitlines():
            if line.startswith("#"):
                continue
            self.assertRegex(line, r"^[a-z0-9.+-]+ +(build|test|bench)$")
            package = line.split()[0]
            self.assertNotIn(package, seen)
            seen.add(package)


class Setup(unittest.TestCase):
    """scripts/setup.sh with a package database, an identity and an apt-get of the test's own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "scripts").mkdir()
        (self.root / "bin").mkdir()
        script = (ROOT / "scripts/setup.sh").read_text()
        self.policy = self.root / "policy-rc.d"
        self.assertEqual(script.count("/usr/sbin/policy-rc.d"), 1)
        (self.root / "scripts/setup.sh").write_text(script.replace("/usr/sbin/policy-rc.d", str(self.policy)))
        (self.root / "scripts/setup.sh").chmod(0o755)
        (self.root / "scripts/packages.txt").write_text("# a comment\none build\ntwo test\npeer bench\n")
        (self.root / "installed").write_text("one\n")
        self.fake("dpkg-query", f"sed 's/$/ installed/' {self.root}/installed; exit 1")
        self.fake("apt-get", f"echo \"$@\" >> {self.root}/calls; printf 'two\\npeer\\n' >> {self.root}/installed")

    def fake(self, name: str, script: str):
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run_setup(self, *arguments: str, uid: int = 0):
        self.fake("id", f"echo {uid}")
        return subprocess.run([str(self.root / "scripts/setup.sh"), *arguments], capture_output=True, text=True,
                              env=os.environ | {"PATH": f"{self.root}/bin:{os.environ['PATH']}"})

    def test_installs_what_is_missing_and_nothing_more(self):
        self.assertEqual(self.run_setup().returncode, 0)
        install = (self.root / "calls").read_text().splitlines()[-1].split()
        self.assertIn("two", install)
        self.assertNotIn("one", install)
        self.assertNotIn("peer", install)

    def test_the_second_run_calls_no_apt(self):
        self.run_setup()
        (self.root / "calls").unlink()
        self.assertEqual(self.run_setup().returncode, 0)
        self.assertFalse((self.root / "calls").exists())

    def test_no_package_may_start_a_daemon(self):
        self.fake("apt-get", f"sh {self.policy} >> {self.root}/calls; echo $? >> {self.root}/calls; "
                             f"printf 'two\\n' >> {self.root}/installed")
        self.assertEqual(self.run_setup().returncode, 0)
        self.assertEqual(set((self.root / "calls").read_text().split()), {"101"})
        self.assertFalse(self.policy.exists())

    def test_the_machines_own_policy_stays(self):
        self.policy.write_text("exit 104\n")
        self.assertEqual(self.run_setup().returncode, 0)
        self.assertEqual(self.policy.read_text(), "exit 104\n")

    def test_peers_only_for_the_benchmark(self):
        self.assertEqual(self.run_setup("--bench").returncode, 0)
        self.assertIn("peer", (self.root / "calls").read_text())

    def test_without_root_it_says_what_to_do(self):
        result = self.run_setup(uid=1000)
        self.assertEqual(result.returncode, 1)
        self.assertIn("two", result.stderr)
        self.assertFalse((self.root / "calls").exists())

    def test_a_package_that_apt_does_not_bring_is_an_error(self):
        self.fake("apt-get", "exit 0")
        result = self.run_setup()
        self.assertEqual(result.returncode, 1)
        self.assertIn("two", result.stderr)


if __name__ == "__main__":
    unittest.main()
