#!/usr/bin/env python3
"""By how much a kill delays the trainers' examples, without a spare and with one.

    PYTHONPATH=build/release/python build/venv/bin/python bench/trainers.py [--kills=5] [CLIENT ...]

Two ranks train; rank 1 is killed by `kill -9` now and then. The delay is the time from the epoch before a kill to the
second one after it, less two undisturbed epochs. Prints a row for each client: the median delay and the longest,
without a spare and with one, and the median of an undisturbed epoch. PyTorch's clients need build/venv-torch.
"""

import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python"))
os.environ.setdefault("TESTED_WARREN", str(ROOT / "build/release/bin/warren"))
from killing import BEGINS, EPOCH
from soak_trainers import BOOSTING, TORCH, program_of

PLACED = re.compile(r"\[(\d+)\] \S+ warren info: rank (\d+) of 2 in generation")
CALM = 4  # epochs between two kills, at least


class Job:
    """The lines of a job of two ranks: who has rank 1, and when epochs have ended."""

    def __init__(self, client, kills, spares):
        jobs, (program, *arguments) = program_of(client, (kills + 1) * (CALM + 3))
        command = jobs.command(2, program, *arguments, flags=["--restarts=100", f"--spares={spares}"])
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.pids, self.of_rank, self.ended = {}, {}, []  # ended: when each epoch has

    def next_epoch(self):
        """Waits for the end of one that had not ended before; False: the job has ended."""
        for line in self.process.stdout:
            for worker, pid in BEGINS.findall(line):
                self.pids[worker] = int(pid)
            if placed := PLACED.search(line):
                self.of_rank[placed[2]] = placed[1]
            epoch = EPOCH.search(line)
            if epoch and int(epoch[1]) > len(self.ended):
                self.ended.append(time.monotonic())
                return True
        return False

    def kill(self):
        os.kill(self.pids[self.of_rank["1"]], signal.SIGKILL)


def delays(client, kills, spares):
    """Of each kill, in seconds; and the median of an undisturbed epoch."""
    job, found, calm = Job(client, kills, spares), [], []
    for _ in range(kills):
        for _ in range(CALM):
            assert job.next_epoch(), "the job has ended early"
        calm += [b - a for a, b in zip(job.ended[-CALM:], job.ended[-CALM + 1 :], strict=False)]
        # In the midst of training: XGBoost's ranks connect when an epoch begins, and a kill then costs a time-out.
        time.sleep(statistics.median(calm) / 2)
        job.kill()
        assert job.next_epoch() and job.next_epoch(), "the job has ended after a kill"
        found.append(job.ended[-1] - job.ended[-3])
    while job.next_epoch():
        pass
    assert job.process.wait() == 0
    usual = statistics.median(calm)
    return [max(0.0, f - 2 * usual) for f in found], usual


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("client", nargs="*", choices=[*TORCH, *BOOSTING, []])
    parser.add_argument("--kills", type=int, default=5)
    options = parser.parse_args()
    for client in options.client or [*TORCH, *BOOSTING]:
        (alone, usual), (spare, _) = delays(client, options.kills, 0), delays(client, options.kills, 1)
        cells = [f"{statistics.median(d):.2f} ({max(d):.2f})" for d in (alone, spare)]
        print(f"| {client} | {cells[0]} | {cells[1]} | {usual:.2f} |", flush=True)


if __name__ == "__main__":
    main()
