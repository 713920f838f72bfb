"""Trains on handwritten digits as the ranks of one job on workers of a Dask cluster.

    python examples/python/dask_digits.py [-n RANKS] [--model=softmax|boosting] [--scheduler=ADDRESS]

Without a scheduler it starts a cluster on this machine. A worker that is killed, at any moment, is replaced, and the
model ends as that of an undisturbed run, byte for byte.
"""

import argparse
import contextlib
import pathlib

import dask.distributed
import digits_ranks

import warren.dask


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--model", default="softmax", choices=digits_ranks.MODELS)
    parser.add_argument("--epochs", type=int, default=40, help="or segments of two boosting rounds")
    parser.add_argument("--scheduler", help="the address of a cluster whose workers can import this folder's modules")
    parser.add_argument("--restarts", type=int, default=20, help="how often each rank may be started again")
    parser.add_argument("--weights_file", type=pathlib.Path)
    options = parser.parse_args()

    with contextlib.ExitStack() as stack:
        cluster = options.scheduler or stack.enter_context(
            dask.distributed.LocalCluster(n_workers=options.n, threads_per_worker=1, dashboard_address=":0")
        )
        client = stack.enter_context(dask.distributed.Client(cluster))
        results = warren.dask.run(
            client,
            digits_ranks.MODELS[options.model],
            options.n,
            each=digits_ranks.shares(options.n),
            args=[options.epochs],
            restarts=options.restarts,
        )
    digits_ranks.finish(options.model, results, options.weights_file)


if __name__ == "__main__":
    main()
