"""Kills workers of jobs, as the lines that they print come."""

import os
import random
import re
import signal
import subprocess
import time

from conftest import ROOT, Jobs

EXAMPLES = ("softmax", "local_sgd", "pipeline", "mixed_precision", "boosting")
# Programs print these lines; the second one is the library's.
BEGINS = re.compile(r"\[(\d+)\] process (\d+) begins")
JOINED = re.compile(r"\] \S+ warren info: rank \d+ of \d+ in epoch")
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


def run_and_kill(ranks, program, *arguments, early=0, first=0, later=0, last_epoch=20, flags=(), jobs=None):
    """Runs a job that is to end well, and kills workers of it. How many at which moments, and the output."""
    seed = random.SystemRandom().randrange(2**32)
    chance = random.Random(seed)
    moments = Moments(chance, early, first, later, last_epoch)
    command = (jobs or Jobs()).command(ranks, program, *arguments, flags=[*flags, "--restarts=100"])
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    processes, lines = {}, [f"seed {seed}"]
    with job:
        for line in job.stdout:
            lines.append(line.rstrip())
            if begins := BEGINS.search(line):
                processes[begins[1]] = int(begins[2])
            moment = moments.due(line)
            if moment is None or not processes:
                continue
            time.sleep(chance.random() * moments.LATEST[moment])
            rank = chance.choice(sorted(processes))
            try:
                os.kill(processes.pop(rank), signal.SIGKILL)
                moments.killed[moment] += 1
                lines.append(f"killed worker {rank}: {moment}")
            except ProcessLookupError:
                pass
    output = "\n".join(lines)
    assert job.returncode == 0, output
    return moments.killed, output


def run_until_epoch(last, ranks, program, *arguments, flags=()):
    """Runs a job up to an epoch, and kills all of its processes at once. The output."""
    job = subprocess.Popen(Jobs().command(ranks, program, *arguments, flags=flags), stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    lines = []
    with job:
        for line in job.stdout:
            lines.append(line)
            epoch = EPOCH.search(line)
            if epoch and int(epoch[1]) == last:
                job.kill()  # the launcher; its workers and its tracker go with it
    assert job.returncode == -signal.SIGKILL, lines
    return "".join(lines)
