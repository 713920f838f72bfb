"""Trains softmax regression on handwritten digits in mixed precision, with a loss scale that follows the gradients.

    warren run -n 4 -- python examples/python/mixed_precision.py [--epochs=N] [--weights_file=PATH]

Workers compute in float16 from a copy of the weights, which are float32. The loss is multiplied by a scale, so that
small gradients do not become 0; where one becomes infinite, all workers see that in the sum, skip the step alike, and
halve the scale. The scale is part of the state: a worker that is killed, at any moment, comes back with it, and the
weights end as those of an undisturbed run, byte for byte.
"""

import argparse
import os
import pathlib

import digits
import numpy as np

import warren

BATCH = 64
LEARNING_RATE = np.float32(0.5)
STEPS_TO_DOUBLE = 50


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    (pixels, labels), (test_pixels, test_labels) = digits.load()
    pixels = pixels.astype("float16")
    np.seterr(over="ignore", invalid="ignore")  # what is infinite is skipped

    with warren.init() as comm:
        mine = np.arange(len(labels)) % comm.size == comm.rank
        state = {"weights": np.zeros((65, 10), "float32"), "scale": 2.0**16, "good_steps": 0, "skipped": 0}
        weights = state["weights"]
        for epoch in comm.epochs(options.epochs, state):
            order = np.random.default_rng([7, epoch]).permutation(len(labels))
            for begin in range(0, len(order), BATCH):
                batch = order[begin : begin + BATCH]
                own = batch[mine[batch]]
                _, by_score = digits.softmax_loss(pixels[own] @ weights.astype("float16"), labels[own])
                gradient = pixels[own].T @ (by_score * np.float16(state["scale"] / len(batch)))
                comm.allreduce(gradient, out=gradient)  # of float16, added up in float32
                if np.isfinite(gradient).all():
                    weights -= LEARNING_RATE * (gradient.astype("float32") / np.float32(state["scale"]))
                    state["good_steps"] += 1
                    if state["good_steps"] % STEPS_TO_DOUBLE == 0:
                        state["scale"] *= 2
                else:
                    state["scale"] /= 2
                    state["good_steps"] = 0
                    state["skipped"] += 1
            if comm.rank == 0:
                scale, skipped = state["scale"], state["skipped"]
                print(f"epoch {epoch + 1:3} of {options.epochs}: scale {scale:g}, {skipped} steps skipped", flush=True)

        accuracy = np.mean((test_pixels @ weights).argmax(axis=1) == test_labels)  # alike on all ranks
        if comm.rank == 0:
            print(f"test accuracy {accuracy:.4f}", flush=True)
            if options.weights_file:
                pathlib.Path(options.weights_file).write_bytes(weights.tobytes())
    if options.epochs >= 20 and (accuracy < 0.94 or state["skipped"] == 0):
        raise SystemExit("the model has not learned, or no step was skipped")


main()
