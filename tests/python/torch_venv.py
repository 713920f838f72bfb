"""Jobs of programs that use PyTorch: their Python is that of build/venv-torch."""

import os

import pytest
from conftest import ROOT, Jobs

PYTHON = ROOT / "build/venv-torch/bin/python"
SKIPPED = 77  # as CTest knows it


class TorchJobs(Jobs):
    """Starts jobs of PyTorch's programs; without their Python the test ends here, and is counted as skipped."""

    def __init__(self, as_it_is=False):
        """as_it_is: the program does not import warren.torch; `python -m warren.torch` runs it."""
        if not PYTHON.exists():
            pytest.exit(f"{PYTHON} is not there: scripts/python_env.sh build/venv-torch '' python/requirements-torch.lock "
                        "makes it", SKIPPED)
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        super().__init__(python=str(PYTHON))
        self.as_it_is = as_it_is

    def command(self, ranks, program, *arguments, flags=()):
        command = super().command(ranks, program, *arguments, flags=flags)
        if self.as_it_is:
            at = len(command) - len(arguments) - 1
            command[at:at] = ["-m", "warren.torch"]
        return command
