"""Programs that are killed, at random moments, end with the bytes of an undisturbed run. test_kills.py kills more."""

import functools
import pathlib
import re
import tempfile

import pytest
from conftest import ROOT, Jobs
from killing import EXAMPLES, example, run_and_kill


@functools.cache
def undisturbed(name, ranks):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "weights"
        Jobs().run(ranks, example(name), f"--weights_file={path}")
        return path.read_bytes()


@pytest.mark.parametrize("name, arguments", [*((name, ()) for name in EXAMPLES), ("softmax", ("--every=4",))])
def test_an_example_that_is_killed_ends_with_the_same_weights(tmp_path, name, arguments):
    path = tmp_path / "weights"
    killed, output = run_and_kill(2, example(name), f"--weights_file={path}", *arguments, early=1, later=2)
    assert killed["early"] == 1 and killed["later"] == 2, output
    assert path.read_bytes() == undisturbed(name, 2), output


def test_the_program_of_the_read_me_ends_as_if_undisturbed(tmp_path):
    text = (ROOT / "README.md").read_text()
    program = re.search(r"^```python\n(.*?)^```", text, re.M | re.S)[1]
    ended = re.search(r"^(\[0\] end .*?\])", text, re.M)[1]  # what the recording shows
    begins = 'import os\nprint("process", os.getpid(), "begins")\n'
    (tmp_path / "program.py").write_text(begins + program.replace("time.sleep(0.1)", "time.sleep(0.01)"))
    killed, output = run_and_kill(4, tmp_path / "program.py", later=2, last_epoch=60)
    assert killed["later"] == 2 and ended in output, output


def test_all_kinds_of_state_come_back_in_place(tmp_path):
    path = tmp_path / "result"
    Jobs().run(2, "resuming.py", path)
    undisturbed = path.read_bytes()
    killed, output = run_and_kill(2, "resuming.py", path, early=1, later=3, last_epoch=60)
    assert killed["later"] >= 2, output
    assert path.read_bytes() == undisturbed, output


def test_a_loop_whose_state_stays_as_it_was_is_warned(jobs):
    output = jobs.run(1, "forgetful.py")
    assert "forgetful.py:9: RuntimeWarning: the state that epochs() was given is the same" in output, output
    assert output.count("RuntimeWarning") == 1, output


def test_a_state_that_could_not_be_restored_is_refused_before_a_kill(jobs):
    output = jobs.run(1, "growing.py", code=1)
    assert "state['losses'] is float64[0] before the loop, and in the checkpoint float64[1]" in output, output


def test_a_worker_that_is_killed_after_finalize_is_named_as_one_whose_program_did_not_end(jobs):
    output = jobs.run(2, "killed_late.py")
    assert output.count("the end of the program") == 1, output
    assert "worker_too_late: worker 1 was started again after its job had finished" in output, output
    assert output.count("worker_too_late") == 1, output
