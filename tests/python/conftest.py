"""What the tests of the package share: jobs of worker programs, started as people start them."""

import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
WARREN = os.environ["TESTED_WARREN"]
TIMEOUT_S = float(os.environ.get("TESTED_TIMEOUT_S", "60"))  # of a job; more on a busy machine
# Workers that import a module which was built with a sanitizer preload its library. What the interpreter never frees is
# no leak of ours.
SANITIZER = os.environ.get("SANITIZER")
SANITIZED = ["env", f"LD_PRELOAD={SANITIZER}", "PYTHONMALLOC=malloc", "ASAN_OPTIONS=detect_leaks=0"] if SANITIZER else []


class Jobs:
    """Starts jobs by `warren run`."""

    def __init__(self, start=(), warren=WARREN, python=sys.executable):
        """start: what the command line begins with."""
        self.start, self.warren, self.python = start, warren, python

    def command(self, ranks, program, *arguments, flags=()):
        path = program if os.sep in str(program) else HERE / "workers" / program
        return [*self.start, self.warren, "run", "-n", str(ranks), *flags, "--", *SANITIZED, self.python, "-X",
                "faulthandler", str(path), *map(str, arguments)]

    def run(self, ranks, program, *arguments, flags=(), code=0):
        """The output of a job that has ended with the exit code."""
        done = subprocess.run(self.command(ranks, program, *arguments, flags=flags), capture_output=True, text=True,
                              timeout=TIMEOUT_S, check=False)
        output = done.stdout + done.stderr
        assert done.returncode == code, output
        return output


@pytest.fixture
def jobs():
    return Jobs()


@pytest.fixture
def pipes(tmp_path):
    """Makes named pipes and returns their paths."""

    def make(count):
        paths = [tmp_path / f"pipe{i}" for i in range(count)]
        for path in paths:
            os.mkfifo(path)
        return paths

    return make
