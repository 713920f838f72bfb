"""Trains on handwritten digits as the ranks of one job in actors of a Ray cluster.

    python examples/python/ray_digits.py [-n RANKS] [--model=softmax|boosting] [--address=ADDRESS]

Without an address it starts Ray on this machine. An actor that is killed, at any moment, is replaced, and the model ends
as that of an undisturbed run, byte for byte.
"""

import argparse
import pathlib

import digits_ranks
import ray

import warren.ray


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=2, help="ranks")
    parser.add_argument("--model", default="softmax", choices=digits_ranks.MODELS)
    parser.add_argument("--epochs", type=int, default=40, help="or segments of two boosting rounds")
    parser.add_argument("--address", help="the address of a cluster whose workers can import this folder's modules")
    parser.add_argument("--restarts", type=int, default=20, help="how often each rank may be started again")
    parser.add_argument("--weights_file", type=pathlib.Path)
    options = parser.parse_args()

    with ray.init(address=options.address, **({} if options.address else {"num_cpus": options.n, "include_dashboard": False})):
        results = warren.ray.run(
            digits_ranks.MODELS[options.model],
            options.n,
            each=digits_ranks.shares(options.n),
            args=[options.epochs],
            restarts=options.restarts,
        )
    digits_ranks.finish(options.model, results, options.weights_file)


if __name__ == "__main__":
    main()
