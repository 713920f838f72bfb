"""Trains softmax regression on handwritten digits by synchronous minibatch SGD, as examples/digits.cc does, in NumPy.

    warren run -n 4 -- python examples/python/softmax.py [--epochs=N] [--every=N] [--weights_file=PATH]

Each worker holds a share of the images, and an allreduce sums the gradients of every minibatch. A worker that is
killed, at any moment, comes back, and the weights end as those of an undisturbed run, byte for byte. Rank 0 writes them
as they are in memory.
"""

import argparse
import os
import pathlib

import digits
import numpy as np

import warren

BATCH = 64
LEARNING_RATE = 0.1
MOMENTUM = 0.9


def gradient_and_loss(weights, pixels, labels):
    """The sums over these images, in one array, so that one allreduce adds them up over the workers."""
    loss, by_score = digits.softmax_loss(pixels @ weights, labels)
    return np.append(pixels.T @ by_score, loss)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--every", type=int, default=1, help="epochs a checkpoint")
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    (pixels, labels), (test_pixels, test_labels) = digits.load()

    with warren.init() as comm:
        mine = np.arange(len(labels)) % comm.size == comm.rank
        state = {"weights": np.zeros((65, 10)), "velocity": np.zeros((65, 10))}
        weights, velocity = state["weights"], state["velocity"]
        for epoch in comm.epochs(options.epochs, state, every=options.every):
            order = np.random.default_rng([7, epoch]).permutation(len(labels))
            total_loss = 0.0
            for begin in range(0, len(order), BATCH):
                batch = order[begin : begin + BATCH]
                own = batch[mine[batch]]
                sums = gradient_and_loss(weights, pixels[own], labels[own])
                comm.allreduce(sums, out=sums)
                velocity *= MOMENTUM
                velocity -= LEARNING_RATE / len(batch) * sums[:-1].reshape(65, 10)
                weights += velocity
                total_loss += sums[-1]
            if comm.rank == 0:
                print(f"epoch {epoch + 1:3} of {options.epochs}: loss {total_loss / len(labels):.4f}", flush=True)

        # All ranks leave with rank 0's verdict.
        accuracy = np.zeros(1)
        if comm.rank == 0:
            accuracy[0] = np.mean((test_pixels @ weights).argmax(axis=1) == test_labels)
            print(f"test accuracy {accuracy[0]:.4f}", flush=True)
            if options.weights_file:
                pathlib.Path(options.weights_file).write_bytes(weights.tobytes())
        comm.broadcast(accuracy)
    if options.epochs >= 20 and accuracy[0] < 0.94:
        raise SystemExit("the model has not learned: its accuracy is below 0.94")


main()
