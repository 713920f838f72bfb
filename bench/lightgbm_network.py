"""LightGBM over Warren beside LightGBM over its own sockets: the same data, parameters and trees, by turns.

    build/venv/bin/python bench/lightgbm_network.py [--ranks=2] [--rows=200000] [--features=50] [--rounds=50]
        [--transport=tcp]

Takes build/release and the package in it. Prints a row of the table of docs/lightgbm.md. Both share one job, so the
machine's other work disturbs them alike; each turn's trees are compared.
"""

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TURNS = 5


def work(options):
    import lightgbm
    import numpy as np
    import warren
    import warren.lightgbm

    rows = options.rows // int(os.environ["WARREN_WORLD_SIZE"])
    with warren.init() as comm:
        draws = np.random.default_rng(comm.rank)
        x = draws.random((rows, options.features), "float32")
        y = (x[:, :5].sum(axis=1) + draws.random(rows) > 3).astype("float32")
        params = {"objective": "binary", "num_leaves": 31, "num_threads": 1, "verbosity": -1, "deterministic": True,
                  "force_col_wise": True, "pre_partition": True, "tree_learner": "data"}
        seconds, models = {"warren": [], "sockets": []}, {}

        def train(name, params):
            """Data and trees: LightGBM's ranks agree on the bins of features, too."""
            comm.barrier()
            begin = time.perf_counter()
            booster = lightgbm.train(params, lightgbm.Dataset(x, y, params=params), options.rounds)
            comm.barrier()
            seconds[name].append(time.perf_counter() - begin)
            models[name] = booster.model_to_string().split("end of trees")[0]
            booster.free_network()

        for _ in range(TURNS):
            with warren.lightgbm._Network(comm):
                train("warren", params | {"num_machines": comm.size})
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                ports = comm.allgather_object(taken.getsockname()[1])
            machines = ",".join(f"127.0.0.1:{port}" for port in ports)
            train("sockets", params | {"machines": machines, "local_listen_port": ports[comm.rank],
                                       "num_machines": comm.size})
            assert models["warren"] == models["sockets"], "the two have grown other trees"
        if comm.rank == 0:
            print("seconds", *(f"{name} {statistics.median(all):.3f} {min(all):.3f} {max(all):.3f}"
                               for name, all in seconds.items()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", type=int, default=200000)
    parser.add_argument("--features", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--transport", default="auto")
    options = parser.parse_args()
    if "WARREN_WORLD_SIZE" in os.environ:
        return work(options)
    environment = dict(os.environ, PYTHONPATH=str(ROOT / "build/release/python"), WARREN_LOG_LEVEL="warning",
                       WARREN_TRANSPORT=options.transport)
    subprocess.run([ROOT / "build/release/bin/warren", "run", "-n", str(options.ranks), "--", sys.executable, *sys.argv],
                   env=environment, check=True)


main()
