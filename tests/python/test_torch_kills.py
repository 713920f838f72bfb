"""Programs of PyTorch's that are killed, at random moments, end with the bytes of an undisturbed run: 20 kills."""

import functools
import pathlib
import signal
import tempfile

import pytest
from conftest import HERE
from killing import EPOCH, example, run_and_kill, run_until_epoch
from torch_venv import TorchJobs

TRAINING = HERE / "workers/torch_training.py"
EPOCHS = 8
# And whether it is run as it is, by `python -m warren.torch`.
EXAMPLES = [
    ("ddp", False), ("fsdp2", False), ("horovod_steps", False), ("lightning", True), ("lightning --checkpoints", True),
    ("accelerate", True),
]


@functools.cache
def undisturbed(as_it_is, ranks, program, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "weights"
        TorchJobs(as_it_is).run(ranks, program, f"--weights_file={path}", *arguments)
        return path.read_text(encoding="latin1")


def run_killed(path, ranks, program, *arguments, as_it_is=False, options=(), **kills):
    """options: of the killed run alone, which change nothing about what is trained."""
    killed, output = run_and_kill(
        ranks, program, f"--weights_file={path}", *arguments, *options, jobs=TorchJobs(as_it_is), last_epoch=EPOCHS, **kills
    )
    assert killed["later"] == kills["later"], output
    # A worker that makes other calls than in its life before would take all back to the checkpoint, and end as well.
    assert "ranks disagree" not in output and "Traceback" not in output, output
    assert path.read_text(encoding="latin1") == undisturbed(as_it_is, ranks, program, *arguments), output
    return output


@pytest.mark.parametrize("ranks, early", [(2, 0), (4, 1)])
def test_every_way_of_training_ends_with_the_same_bytes(tmp_path, ranks, early):
    path = tmp_path / "weights"
    output = run_killed(path, ranks, TRAINING, f"--epochs={EPOCHS}", early=early, first=early, later=7)
    assert "goes on at batch 3" in output, output  # in the midst of an epoch


@pytest.mark.parametrize("name, as_it_is", EXAMPLES)
def test_an_example_that_is_killed_ends_with_the_same_weights(tmp_path, name, as_it_is):
    name, *options = name.split()
    program = example(f"torch_{name}")
    run_killed(tmp_path / "weights", 2, program, f"--epochs={EPOCHS}", options=options, later=1, as_it_is=as_it_is)


def test_a_communication_hook_in_a_process_group_of_each_process_alone_survives(tmp_path):
    run_killed(tmp_path / "weights", 2, HERE / "workers/torch_hook.py", f"--epochs={EPOCHS}", "--wire=bf16", first=1, later=1)


def test_a_worker_that_is_stopped_is_replaced_by_its_next_life(tmp_path):
    output = run_killed(tmp_path / "weights", 2, example("torch_ddp"), f"--epochs={EPOCHS}", later=1, how=signal.SIGSTOP,
                        flags=["--round_timeout_ms=1000"])
    assert "hung and was killed" in output, output


def test_a_job_whose_processes_were_all_killed_goes_on_from_its_disk(tmp_path):
    path = tmp_path / "weights"
    arguments = (2, example("torch_ddp"), f"--epochs={EPOCHS}")
    flags = [f"--data_dir={tmp_path / 'data'}", "--round_timeout_ms=1000"]
    first = run_until_epoch(4, *arguments, f"--weights_file={path}", flags=flags, jobs=TorchJobs())
    assert not path.exists(), first
    output = TorchJobs().run(*arguments, f"--weights_file={path}", flags=flags)
    assert 1 < int(EPOCH.findall(output)[0]) <= 6, first + output
    assert path.read_text(encoding="latin1") == undisturbed(False, *arguments), output


def test_a_job_that_goes_on_with_other_ranks_uses_the_samples_that_are_left(tmp_path):
    program = (HERE / "workers/torch_samples.py", f"--weights_file={tmp_path / 'weights'}")
    flags = [f"--data_dir={tmp_path / 'data'}", "--round_timeout_ms=1000"]
    first = run_until_epoch(4, 4, *program, flags=flags, jobs=TorchJobs())
    output = TorchJobs().run(2, *program, flags=[*flags, "--resize"])
    epochs = EPOCH.findall(output)
    assert 1 < int(epochs[0]) <= 5 and int(epochs[-1]) == 8, first + output
