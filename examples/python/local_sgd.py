"""Trains softmax regression on handwritten digits by local SGD: workers train alone, and now and then average.

    warren run -n 4 -- python examples/python/local_sgd.py [--epochs=N] [--weights_file=PATH]

Each worker goes once through its own images, in an order that it draws, and then the workers average their weights:
one allreduce an epoch, where softmax.py makes one a minibatch. The generator that a worker draws from is its own, so it
is in `local`. A worker that is killed, at any moment, comes back, draws the same orders as before, and the weights end
as those of an undisturbed run, byte for byte.
"""

import argparse
import os
import pathlib

import digits
import numpy as np

import warren

BATCH = 16
LEARNING_RATE = 0.2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    (pixels, labels), (test_pixels, test_labels) = digits.load()

    with warren.init() as comm:
        pixels, labels = pixels[comm.rank :: comm.size], labels[comm.rank :: comm.size]
        state = {"weights": np.zeros((65, 10)), "loss": 0.0}
        local = {"draws": np.random.default_rng([7, comm.rank])}
        weights = state["weights"]
        for epoch in comm.epochs(options.epochs, state, local=local):
            order = local["draws"].permutation(len(labels))
            own_loss = 0.0
            for begin in range(0, len(order), BATCH):
                batch = order[begin : begin + BATCH]
                loss, by_score = digits.softmax_loss(pixels[batch] @ weights, labels[batch])
                weights -= LEARNING_RATE / len(batch) * (pixels[batch].T @ by_score)
                own_loss += loss / len(labels)
            with comm.fuse():  # both travel in one round
                averaging = comm.allreduce_async(weights, "average", out=weights)
                loss = comm.allreduce_async(own_loss, "average")
            averaging.wait()
            state["loss"] = loss.wait()
            if comm.rank == 0:
                print(f"epoch {epoch + 1:3} of {options.epochs}: loss {state['loss']:.4f}", flush=True)

        accuracy = np.mean((test_pixels @ weights).argmax(axis=1) == test_labels)  # alike on all ranks
        if comm.rank == 0:
            print(f"test accuracy {accuracy:.4f}", flush=True)
            if options.weights_file:
                pathlib.Path(options.weights_file).write_bytes(weights.tobytes())
    if options.epochs >= 20 and accuracy < 0.94:
        raise SystemExit("the model has not learned: its accuracy is below 0.94")


main()
