"""What the tests of Dask and Ray share: what ranks run, and how they are killed."""

import os
import pathlib
import random
import signal
import sys
import threading
import time

import numpy as np
import psutil
from conftest import TIMEOUT_S
from killing import BEGINS, EPOCH

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples/python"))
import digits_ranks

STEPS = 15  # of an epoch
EPOCHS = {"softmax": 40, "boosting": 10}


def train(comm, epochs=20, folder=None):
    """A state that each rank's inputs go into, as bytes. Each life writes its process id, and rank 0 its epochs."""
    write(folder, f"rank{comm.rank}", os.getpid())
    state = {"w": np.zeros(500)}
    for epoch in comm.epochs(epochs, state):
        for step in range(STEPS):
            own = np.sin(state["w"] + comm.rank) / (1 + epoch + step)
            comm.allreduce(own, out=own)
            state["w"] += own
            time.sleep(0.002)
        if comm.rank == 0:
            write(folder, "epoch", epoch)
    return state["w"].tobytes()


def digits(comm, share, model, folder):
    """A model of examples/python, whose lines become files. Epochs are slow until there is a file `go`."""

    def report(line):
        if begins := BEGINS.search(line):
            write(folder, f"rank{begins[1]}", begins[2])
        elif epoch := EPOCH.search(line):
            write(folder, "epoch", epoch[1])
            if not (folder / "go").exists():
                time.sleep(0.8)  # enough for the kills of a loaded machine

    return digits_ranks.MODELS[model](comm, share, EPOCHS[model], report)


def write(folder, name, value):
    """Whole or not at all."""
    if folder is not None:
        new = pathlib.Path(folder) / f"{name}.{os.getpid()}"
        new.write_text(str(value))
        new.rename(pathlib.Path(folder) / name)


def read(folder, name):
    try:
        return int((pathlib.Path(folder) / name).read_text())
    except FileNotFoundError:
        return None


def wait_for(what):
    """Waits until what() is true, and returns it."""
    until = time.monotonic() + TIMEOUT_S
    while not (found := what()):
        assert time.monotonic() < until, f"nothing has come within {TIMEOUT_S:g} s"
        time.sleep(0.005)
    return found


def trackers():
    """Processes of trackers that this process has started."""
    return [process for process in psutil.Process().children(recursive=True) if name_of(process) == "warren"]


def name_of(process):
    """None: it has ended since it was listed."""
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return None


class Running(threading.Thread):
    """A run that goes on beside the test. run: warren.dask.run or warren.ray.run."""

    def __init__(self, run, *arguments, **options):
        super().__init__(daemon=True)
        self.call, self.results, self.error = (run, arguments, options), None, None
        self.start()

    def run(self):
        run, arguments, options = self.call
        try:
            self.results = run(*arguments, **options)
        except BaseException as error:
            self.error = error

    def end(self):
        self.join(TIMEOUT_S)
        assert not self.is_alive() and self.error is None, self.error
        return self.results

    def kill(self, folder, ranks, kills, ready=lambda: True):
        """Kills ranks at random, the first one in the first epoch. All ranks begin, and end an epoch, between two kills:
        without a launcher, nobody keeps the log of a host whose processes have all gone. ready: when one may be killed.
        """
        seed = random.SystemRandom().randrange(2**32)
        print("seed", seed)
        chance, killed = random.Random(seed), set()

        def all_begun():
            assert self.is_alive(), f"the run has ended after {len(killed)} kills: {self.error}"
            now = [read(folder, f"rank{rank}") for rank in range(ranks)]
            return now if None not in now and killed.isdisjoint(now) else None

        for kill in range(kills):
            processes = wait_for(all_begun)
            epoch = read(folder, "epoch")
            wait_for(lambda: kill == 0 or not self.is_alive() or read(folder, "epoch") != epoch)
            wait_for(ready)
            time.sleep(chance.random() * 0.03)
            process = chance.choice(processes)
            os.kill(process, signal.SIGKILL)
            killed.add(process)
        (folder / "go").touch()


def fail(comm):
    comm.allreduce(1)
    if comm.rank == 1:
        raise ValueError("on purpose")
    while True:
        comm.allreduce(1)


def crash(comm):
    comm.allreduce(1)
    if comm.rank == 1:
        os.kill(os.getpid(), 9)
    comm.allreduce(1)


def never_end(comm, folder):
    write(folder, f"rank{comm.rank}", os.getpid())
    while True:
        comm.allreduce(1)
        time.sleep(0.001)


def return_early(comm, folder):
    """Rank 0 returns at once. The others return when there is a file `go`."""
    total = comm.allreduce(np.arange(5.0) + comm.rank)
    write(folder, f"rank{comm.rank}", os.getpid())
    if comm.rank != 0:
        wait_for(lambda: (pathlib.Path(folder) / "go").exists())
    return total.tobytes(), os.getpid()


def own_and_shared(comm, own, shared):
    return comm.rank, os.getpid(), own, comm.allreduce(shared)


def wait_for_file(path):
    wait_for(lambda: pathlib.Path(path).exists())
