"""Every example with two and four ranks, killed in start-up, in the first version and later: more than 48 kills. And a
job whose processes are all killed at once.
"""

import collections

import pytest
from conftest import Jobs
from killing import EPOCH, EXAMPLES, example, run_and_kill, run_until_epoch
from test_survival import undisturbed

ALL = collections.Counter()


class TwoOnALine:
    """A job whose two ranks write their first lines at one moment, and which ends when one of them is killed."""

    SCRIPT = """
sleep 600 >&- 2>&- & first=$!
sleep 600 >&- 2>&- & second=$!
echo "[1] process $first begins[0] process $second begins"
echo "[0] epoch 1 of 2"
wait -n
kill $first $second
true
"""

    def command(self, ranks, program, *arguments, flags=()):
        return ["bash", "-c", self.SCRIPT]


def test_ranks_that_share_a_line_are_both_found():
    killed, output = run_and_kill(2, "unused", later=1, last_epoch=2, jobs=TwoOnALine(), apart=True)
    assert killed["later"] == 1, output


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", EXAMPLES)
def test_weights_are_those_of_an_undisturbed_run(tmp_path, name, ranks):
    path = tmp_path / "weights"
    killed, output = run_and_kill(ranks, example(name), f"--weights_file={path}", early=2, first=2, later=4)
    assert killed["early"] == 2 and killed["later"] == 4, output
    assert path.read_bytes() == undisturbed(name, ranks), output
    ALL.update(killed)


def test_some_were_killed_in_the_first_version():
    assert ALL["first"] >= 4, ALL


def test_a_job_whose_processes_were_all_killed_goes_on_from_its_disk(tmp_path):
    path = tmp_path / "weights"
    program = (2, example("local_sgd"), f"--weights_file={path}")
    flags = [f"--data_dir={tmp_path / 'data'}", "--round_timeout_ms=1000"]
    first = run_until_epoch(10, *program, flags=flags)
    assert not path.exists(), first
    epochs = EPOCH.findall(Jobs().run(*program, flags=flags))
    assert 1 < int(epochs[0]) <= 12 and int(epochs[-1]) == 40, epochs
    assert path.read_bytes() == undisturbed("local_sgd", 2)
