"""Trains a network of two layers on handwritten digits as a pipeline: one worker has each layer.

    warren run -n 2 -- python examples/python/pipeline.py [--epochs=N] [--weights_file=PATH]

The first worker of a pair sends the hidden layer's values of one small batch after the other, and the second one sends
back what the loss is by them; both have several batches under way. With more pairs (-n 4, 6, …) each has its share of
the images, and the workers with one layer sum up their gradients in a group. A worker's layer is its own, so it is in
`local`. A worker that is killed, at any moment, comes back, gets what was sent to it meanwhile, and the weights end as
those of an undisturbed run, byte for byte.
"""

import argparse
import os
import pathlib

import digits
import numpy as np

import warren

BATCH = 64
PARTS = 4  # of a batch, on their way at once
HIDDEN = 32
LEARNING_RATE = 0.5


def first_layer(comm, layer, parts, peer):
    """Gradient of the layer that is on this worker, summed over the parts."""
    hidden = []
    sending = []
    for tag, pixels in enumerate(parts):
        hidden.append(np.tanh(pixels @ layer))
        sending.append(comm.send_async(hidden[-1], peer, tag))
    gradient = np.zeros_like(layer)
    for tag, pixels in enumerate(parts):
        by_hidden = comm.recv(np.empty_like(hidden[tag]), peer, tag)
        gradient += pixels.T @ (by_hidden * (1 - hidden[tag] ** 2))
    for handle in sending:
        handle.wait()
    return gradient, 0.0


def second_layer(comm, layer, parts, peer):
    """As first_layer, and the loss."""
    gradient = np.zeros_like(layer)
    total_loss = 0.0
    sending = []
    for tag, labels in enumerate(parts):
        hidden = comm.recv(np.empty((len(labels), HIDDEN)), peer, tag)
        loss, by_score = digits.softmax_loss(hidden @ layer, labels)
        sending.append(comm.send_async(by_score @ layer.T, peer, tag))
        gradient += hidden.T @ by_score
        total_loss += loss
    for handle in sending:
        handle.wait()
    return gradient, total_loss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    (pixels, labels), (test_pixels, test_labels) = digits.load()

    with warren.init() as comm:
        if comm.size % 2 != 0:
            raise SystemExit(f"give an even number of workers, not {comm.size}")
        is_first, pair, pairs = comm.rank % 2 == 0, comm.rank // 2, comm.size // 2
        peer = comm.rank + 1 if is_first else comm.rank - 1
        mates = comm.split(comm.rank % 2)  # with the same layer; groups are split before the loop
        assert mates is not None
        shape = (65, HIDDEN) if is_first else (HIDDEN, digits.CLASSES)
        local = {"layer": np.random.default_rng(3).normal(0, 0.1, shape)}
        layer = local["layer"]
        for epoch in comm.epochs(options.epochs, {}, local=local):
            order = np.random.default_rng([7, epoch]).permutation(len(labels))
            total_loss = 0.0
            for begin in range(0, len(order), BATCH):
                batch = order[begin : begin + BATCH]
                parts = np.array_split(batch[pair::pairs], PARTS)
                if is_first:
                    gradient, loss = first_layer(comm, layer, [pixels[part] for part in parts], peer)
                else:
                    gradient, loss = second_layer(comm, layer, [labels[part] for part in parts], peer)
                mates.allreduce(gradient, out=gradient)
                layer -= LEARNING_RATE / len(batch) * gradient
                total_loss += loss
            total_loss = comm.allreduce(total_loss)
            if comm.rank == 0:
                print(f"epoch {epoch + 1:3} of {options.epochs}: loss {total_loss / len(labels):.4f}", flush=True)

        first, second = comm.allgather_object(layer)[:2]
        accuracy = np.mean((np.tanh(test_pixels @ first) @ second).argmax(axis=1) == test_labels)
        if comm.rank == 0:
            print(f"test accuracy {accuracy:.4f}", flush=True)
            if options.weights_file:
                pathlib.Path(options.weights_file).write_bytes(first.tobytes() + second.tobytes())
    if options.epochs >= 20 and accuracy < 0.94:
        raise SystemExit("the model has not learned: its accuracy is below 0.94")


main()
