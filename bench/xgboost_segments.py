"""What training in segments costs: XGBoost over Warren beside XGBoost's own ranks, which end where a worker is lost.

    build/venv/bin/python bench/xgboost_segments.py [--ranks=2] [--rows=200000] [--features=50] [--rounds=40]

Takes build/release and the package in it. Prints the rows of the tables of docs/xgboost.md: training by turns in one
job, so that the machine's other work disturbs all alike; and what becomes of the training when a worker is killed.
"""

import argparse
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TURNS = 5
KILLS = 9
PARAMS = {"objective": "binary:logistic", "max_depth": 6, "tree_method": "hist", "nthread": 1}


def share(options, rank):
    import numpy as np

    draws = np.random.default_rng(rank)
    x = draws.random((options.rows // options.ranks, options.features), "float32")
    return x, (x[:, :5].sum(axis=1) + draws.random(len(x)) > 3).astype("float32")


def own_ranks(comm, make_data, rounds, callbacks=()):
    """Trains by XGBoost's ranks alone, which find each other by a tracker of XGBoost's on rank 0."""
    import xgboost
    from xgboost import collective
    from xgboost.tracker import RabitTracker

    tracker = RabitTracker(host_ip="127.0.0.1", n_workers=comm.size, sortby="task") if comm.rank == 0 else None
    if tracker is not None:
        tracker.start()
    place = comm.broadcast_object(tracker.worker_args() if tracker is not None else None)
    with xgboost.config_context(verbosity=0), collective.CommunicatorContext(**place, dmlc_task_id=str(comm.rank)):
        xgboost.train(PARAMS, make_data(), rounds, callbacks=callbacks)
    comm.barrier()  # the tracker is there until all have left it


def compare(options):
    import warren
    import warren.xgboost
    import xgboost

    with warren.init() as comm:
        x, y = share(options, comm.rank)
        comm.load_checkpoint()
        comm.load_checkpoint = lambda: None  # each turn trains from the beginning
        seconds = {}

        def make_data():
            return xgboost.DMatrix(x, y)

        for _ in range(TURNS):
            for name in ("own", 20, 10, 5):
                comm.barrier()
                begin = time.perf_counter()
                if name == "own":
                    own_ranks(comm, make_data, options.rounds)
                else:
                    warren.xgboost.train(comm, PARAMS, make_data, options.rounds, checkpoint_every=name)
                comm.barrier()
                seconds.setdefault(name, []).append(time.perf_counter() - begin)
        if comm.rank == 0:
            own = statistics.median(seconds["own"])
            for name, all_turns in seconds.items():
                label = "XGBoost's ranks, one group" if name == "own" else f"Warren, `checkpoint_every={name}`"
                median = statistics.median(all_turns)
                print(f"row | {label} | {median:.2f} ({min(all_turns):.2f} to {max(all_turns):.2f}) | "
                      f"{median / own:.2f} |", flush=True)


def steps(options):
    """Trains for ever; rank 0 tells of each round."""
    import warren
    import warren.xgboost
    import xgboost

    print("process", os.getpid(), flush=True)
    with warren.init() as comm:
        x, y = share(options, comm.rank)

        class Tell(xgboost.callback.TrainingCallback):
            def after_iteration(self, model, epoch, evals_log):
                if comm.rank == 0:
                    print("round", time.monotonic_ns(), flush=True)
                return False

        def make_data():
            return xgboost.DMatrix(x, y)

        if options.work == "own":
            own_ranks(comm, make_data, 10**6, [Tell()])
        else:
            tell = lambda rounds, booster: print("round", time.monotonic_ns(), flush=True)
            warren.xgboost.train(comm, PARAMS, make_data, 10**6, checkpoint_every=2,
                                 after_segment=tell if comm.rank == 0 else None)


def job(options, work, ranks, *flags):
    arguments = [f"--{name}={getattr(options, name)}" for name in ("rows", "features", "rounds")]
    command = [ROOT / "build/release/bin/warren", "run", "-n", ranks, *flags, "--", sys.executable, "-u", __file__,
               f"--work={work}", f"--ranks={ranks}", *arguments]
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "build/release/python"), WARREN_LOG_LEVEL="error")
    return subprocess.Popen(list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            text=True)


def kill_and_wait(options, spares):
    """Seconds from each kill of a rank other than 0 until rank 0 has finished a segment that needed its next life."""
    times = []
    with job(options, "steps", 2, "--restarts=1000", f"--spares={spares}") as running:
        processes, killed_ns, left = [], None, 2
        for line in running.stdout:
            worker, word, number = line.split()[:3]
            if word == "process" and worker != "[0]":
                processes.append(int(number))
            if word != "round":
                continue
            if killed_ns is not None and int(number) - killed_ns > 200e6:  # a segment before the loss was noticed
                times.append((int(number) - killed_ns) / 1e9)
                killed_ns, left = None, 2
                if len(times) == KILLS:
                    break
            elif killed_ns is None:
                left -= 1
                if left < 0 and len(processes) > spares:
                    killed_ns = time.monotonic_ns()
                    os.kill(processes.pop(0), signal.SIGKILL)
        running.send_signal(signal.SIGTERM)
        running.stdout.read()
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=200000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    if options.work is not None:
        return compare(options) if options.work == "compare" else steps(options)
    with job(options, "compare", options.ranks, "--restarts=0") as running:
        for line in running.stdout:
            if " row " in line:
                print(line.split("row ", 1)[1].rstrip(), flush=True)
    options.rows = 20000
    for spares in (0, 1):
        times = kill_and_wait(options, spares)
        print(f"| {spares} spares: seconds from a kill to the end of the next segment | "
              f"{statistics.median(times):.2f} (most {max(times):.2f}) |", flush=True)


if __name__ == "__main__":
    main()
