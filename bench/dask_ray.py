#!/usr/bin/env python3
"""Seconds from the kill -9 of a rank to the end of the next step of the job, under Dask and Ray.

    build/venv-dask-ray/bin/python bench/dask_ray.py [--turns=N]

The package and the program `warren` are looked for in build/release, unless PYTHONPATH and PATH have others.
"""

import argparse
import os
import pathlib
import signal
import statistics
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILT = ROOT / "build/release"
sys.path.append(str(BUILT / "python"))
os.environ["PYTHONPATH"] = f"{os.environ.get('PYTHONPATH', '')}:{BUILT / 'python'}:{ROOT / 'bench'}"
os.environ["PATH"] += f":{BUILT / 'bin'}"
STEPS_BEFORE = 100


def steps(comm, folder):
    """Steps of 5 ms. Writes the process of each life, and when the newest step has ended."""
    folder = pathlib.Path(folder)
    (folder / f"rank{comm.rank}").write_text(str(os.getpid()))
    state = {"step": 0}
    for step in comm.epochs(1_000_000, state, every=50):
        time.sleep(0.005)
        going_on = comm.allreduce(0 if (folder / "end").exists() else 1, "min")
        state["step"] = step + 1
        if comm.rank == 0:
            (folder / "new").write_text(f"{step} {time.time()}")
            (folder / "new").rename(folder / "newest")
        if not going_on:
            break


def newest(folder):
    try:
        step, when = (folder / "newest").read_text().split()
        return int(step), float(when)
    except FileNotFoundError:
        return -1, 0.0


def recovery_s(run):
    """One job of two ranks, of which rank 1 is killed."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        thread = threading.Thread(target=run, args=(steps,), kwargs={"n": 2, "args": [name], "log_level": "error"})
        thread.start()
        while newest(folder)[0] < STEPS_BEFORE:
            time.sleep(0.001)
        os.kill(int((folder / "rank1").read_text()), signal.SIGKILL)
        killed = time.time()
        time.sleep(0.02)  # a step that rank 1 had contributed to may still end
        before = newest(folder)[0]
        while newest(folder)[0] == before:
            time.sleep(0.001)
        took = newest(folder)[1] - killed
        (folder / "end").touch()
        thread.join()
        return took


def show(name, run, turns):
    took = [recovery_s(run) for _ in range(turns)]
    print(f"{name}: median {statistics.median(took):.2f} s, {min(took):.2f} to {max(took):.2f} s, {turns} turns", flush=True)


def under_dask(workers, turns):
    import dask.distributed

    import warren.dask

    with dask.distributed.LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=":0") as cluster:
        with dask.distributed.Client(cluster) as client:

            def run(fn, **options):
                client.wait_for_workers(workers)
                warren.dask.run(client, fn, **options)

            show(f"Dask, {workers} workers with nannies", run, turns)


def under_ray(turns):
    import ray

    import warren.ray

    with ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False):
        show("Ray", warren.ray.run, turns)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    under_dask(2, options.turns)
    under_dask(3, options.turns)
    under_ray(options.turns)
