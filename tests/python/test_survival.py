"""Programs that are killed, at random moments, end with the bytes of an undisturbed run."""

import os
import random
import re
import signal
import subprocess
import time

import pytest
from conftest import ROOT, Jobs

SOFTMAX = ROOT / "examples/python/softmax.py"
BEGINS = re.compile(r"\[(\d+)\] process (\d+) begins")
EPOCH = re.compile(r"\[0\] epoch +(\d+)")


def run_and_kill(ranks, kills, last_epoch, program, *arguments, flags=()):
    """Runs a job, and kills workers of it as its lines come: one in start-up, and the others at random epochs before the
    last one. How many of these others it killed, and the output."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    job = subprocess.Popen(Jobs().command(ranks, program, *arguments, flags=[*flags, "--restarts=100"]),
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    targets = sorted(chance.sample(range(1, last_epoch), kills))
    processes, early, killed, lines = {}, 0, 0, [f"seed {seed}"]
    with job:
        for line in job.stdout:
            lines.append(line.rstrip())
            if begins := BEGINS.search(line):
                processes[begins[1]] = int(begins[2])
            epoch = EPOCH.search(line)
            if epoch:
                due = killed < kills and int(epoch[1]) >= targets[killed]
            else:
                due = early == 0 and chance.random() < 0.1
            if processes and due:
                time.sleep(chance.random() * 0.02)  # somewhere in what follows the line
                rank = chance.choice(sorted(processes))
                try:
                    os.kill(processes.pop(rank), signal.SIGKILL)
                    killed, early = (killed + 1, early) if epoch else (killed, early + 1)
                    lines.append(f"killed worker {rank}")
                except ProcessLookupError:
                    pass
    output = "\n".join(lines)
    assert job.returncode == 0, output
    return killed, output


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("undisturbed") / "weights"
    Jobs().run(3, SOFTMAX, f"--weights_file={path}")
    return path.read_bytes()


@pytest.mark.parametrize("every", [1, 4])
def test_softmax_that_is_killed_ends_with_the_same_weights(tmp_path, undisturbed, every):
    path = tmp_path / "weights"
    killed, output = run_and_kill(3, 4, 35, SOFTMAX, f"--weights_file={path}", f"--every={every}")
    assert killed >= 3, output
    assert path.read_bytes() == undisturbed, output


def test_all_kinds_of_state_come_back_in_place(tmp_path):
    path = tmp_path / "result"
    Jobs().run(2, "resuming.py", path)
    undisturbed = path.read_bytes()
    killed, output = run_and_kill(2, 3, 60, "resuming.py", path)
    assert killed >= 2, output
    assert path.read_bytes() == undisturbed, output


def test_a_loop_whose_state_stays_as_it_was_is_warned(jobs):
    output = jobs.run(1, "forgetful.py")
    assert "forgetful.py:9: RuntimeWarning: the state that epochs() was given is the same" in output, output
    assert output.count("RuntimeWarning") == 1, output
