"""Kills workers of jobs, as the lines that they print come."""

import contextlib
import os
import random
import re
import signal
import subprocess
import threading
import time

from conftest import ROOT, TIMEOUT_S, Jobs

EXAMPLES = ("softmax", "local_sgd", "pipeline", "mixed_precision", "boosting")
SILENCE_S = 2 * TIMEOUT_S  # after which a job that prints nothing is ended: it hangs
LONGEST_S = 6 * TIMEOUT_S  # after which any job is ended: it is started again and again
# Programs print these lines; the second one is the library's.
BEGINS = re.compile(r"\[(\d+)\] process (\d+) begins")
JOINED = re.compile(r"\] \S+ warren info: rank \d+ of \d+ in generation")
EPOCH = re.compile(r"\[0\] (?:epoch|segment) +(\d+)")


def example(name):
    return ROOT / f"examples/python/{name}.py"


class Moments:
    """When workers are to be killed: so many in start-up, so many in the first version, of which less may be left than
    that, and so many at random epochs from then on."""

    # Seconds after a line, at most: somewhere in what follows it.
    LATEST = {"early": 0.03, "first": 0.005, "later": 0.02}

    def __init__(self, chance, early, first, later, last_epoch):
        self.chance = chance
        self.early, self.first = early, first
        self.targets = sorted(chance.sample(range(1, last_epoch), later))
        self.in_epochs = False
        self.killed = {"early": 0, "first": 0, "later": 0}

    def due(self, line):
        """The moment for which a worker is to be killed after this line; None: none is."""
        if epoch := EPOCH.search(line):
            self.in_epochs = True
            done = self.killed["later"]
            return "later" if done < len(self.targets) and int(epoch[1]) >= self.targets[done] else None
        if self.in_epochs:
            return None
        if BEGINS.search(line) and self.killed["early"] < self.early:
            return "early"
        if JOINED.search(line) and self.killed["first"] < self.first:
            return "first"
        return None


@contextlib.contextmanager
def lines_of(job):
    """A block with the lines of a job, which is killed if none comes for SILENCE_S, or if it takes LONGEST_S."""
    timer = None
    end = time.monotonic() + LONGEST_S

    def watched():
        nonlocal timer
        while True:
            timer = threading.Timer(min(SILENCE_S, max(0, end - time.monotonic())), job.kill)
            timer.start()
            line = job.stdout.readline()
            timer.cancel()
            if not line:
                return
            yield line

    with job:
        try:
            yield watched()
        finally:
            if timer is not None:
                timer.cancel()


def run_and_kill(ranks, program, *arguments, early=0, first=0, later=0, last_epoch=20, flags=(), jobs=None,
                 how=signal.SIGKILL, apart=False):
    """Runs a job that is to end well, and kills workers of it. How many at which moments, and the output.

    how: the signal. A worker that is stopped is killed and started again by the launcher after a round timeout.
    apart: after a kill, all ranks begin and end an epoch before the next one. Without a launcher, nobody keeps the log of
    a host whose processes have all gone.
    """
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    moments = Moments(chance, early, first, later, last_epoch)
    command = (jobs or Jobs()).command(ranks, program, *arguments, flags=[*flags, "--restarts=100"])
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    processes, lines, all_there = {}, [f"seed {seed}"], True
    with lines_of(job) as of_job:
        for line in of_job:
            lines.append(line.rstrip())
            for begins in BEGINS.finditer(line):  # two ranks without a launcher may share a line
                processes[begins[1]] = int(begins[2])
            all_there = all_there or (EPOCH.search(line) is not None and len(processes) == ranks)
            if apart and not (all_there and len(processes) == ranks):
                continue
            moment = moments.due(line)
            if moment is None or not processes:
                continue
            time.sleep(chance.random() * moments.LATEST[moment])
            rank = chance.choice(sorted(processes))
            try:
                os.kill(processes.pop(rank), how)
                moments.killed[moment] += 1
                all_there = False
                lines.append(f"killed worker {rank}: {moment}")
            except ProcessLookupError:
                pass
    output = "\n".join(lines)
    assert job.returncode == 0, output
    return moments.killed, output


def run_until_epoch(last, ranks, program, *arguments, flags=(), jobs=None):
    """Runs a job up to an epoch, and kills all of its processes at once. The output."""
    job = subprocess.Popen((jobs or Jobs()).command(ranks, program, *arguments, flags=flags), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    lines = []
    with lines_of(job) as of_job:
        for line in of_job:
            lines.append(line)
            epoch = EPOCH.search(line)
            if epoch and int(epoch[1]) == last:
                job.kill()  # the launcher; its workers and its tracker go with it
    assert job.returncode == -signal.SIGKILL, lines
    return "".join(lines)
