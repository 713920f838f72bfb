"""PyTorch over the package: torch.distributed's calls, and what is refused."""

import re
import subprocess

import pytest
from conftest import HERE, WARREN
from torch_venv import PYTHON, TorchJobs


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_collective_with_every_type(ranks):
    TorchJobs().run(ranks, "torch_collectives.py", flags=["--restarts=0"])


def test_wrong_arguments_are_errors_that_say_what_to_do():
    TorchJobs().run(1, "torch_arguments.py", flags=["--restarts=0"])


def test_errors_name_the_programs_line():
    assert "] named" in TorchJobs().run(2, "torch_sites.py", flags=["--restarts=0"], code=3)


def test_a_program_that_fails_while_a_call_waits_ends_and_its_next_life_takes_its_place():
    output = TorchJobs().run(2, "torch_leaving.py", flags=["--restarts=1"])
    assert output.count("done") == 2 and "ValueError: on purpose" in output, output
    assert "signal" not in output, output


@pytest.mark.parametrize("what_follows, restarts", [("ends", 0), ("fails", 1), ("again", 0)])
def test_a_program_that_leaves_while_it_handles_an_exception_ends_as_its_exit_code_says(what_follows, restarts):
    output = TorchJobs().run(2, "torch_catching.py", what_follows, flags=[f"--restarts={restarts}"])
    assert output.count("] done") == 2 and "ranks disagree" not in output, output
    assert output.count("ended with exit code 3") == restarts, output


def test_works_tell_whether_they_are_complete_and_wait_for_nothing_else():
    assert "works are complete" in TorchJobs().run(2, "torch_works.py", flags=["--restarts=0"])


@pytest.mark.parametrize("how", ["destroys", "leaves"])
def test_a_program_that_exits_with_0_has_ended_well(how):
    TorchJobs(as_it_is=True).run(1, "torch_exiting.py", how, flags=["--restarts=0"])


def test_a_call_that_fails_fails_the_backward_pass():
    output = TorchJobs().run(2, "torch_failing.py", flags=["--restarts=0"], code=3)
    assert re.search("caught: .*on purpose", output) and "Fatal" not in output, output


def test_a_module_of_a_package_is_run_as_it_is(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "names.py").write_text("import os\nRANK = os.environ['RANK']\n")
    (package / "train.py").write_text("import sys\nfrom .names import RANK\nprint(__name__, RANK, *sys.argv[1:])\n")
    command = [WARREN, "run", "-n", "2", "--restarts=0", "--", PYTHON, "-m", "warren.torch", "-m", "package.train", "-m", "3"]
    TorchJobs()
    output = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert output.returncode == 0 and "__main__ 0 -m 3" in output.stdout and "__main__ 1 -m 3" in output.stdout, output


def test_tensors_come_back_in_their_order_in_memory():
    TorchJobs()
    subprocess.run([PYTHON, HERE / "workers/torch_states.py"], check=True)


def test_the_backend_is_found_by_its_entry_point_and_import_warren_imports_no_torch():
    TorchJobs()
    program = ("import sys, warren; assert 'torch' not in sys.modules; import torch.distributed as dist; "
               "assert dist.is_backend_available('warren') and 'warren.torch' in sys.modules")
    subprocess.run([PYTHON, "-c", program], check=True)
