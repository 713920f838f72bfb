"""What the ranks of dask_digits.py and ray_digits.py run: the models of softmax.py and boosting.py as functions.

Each rank gets its communicator and its share of the images, and returns the model that all ranks have.
"""

import os
import sys

import digits
import numpy as np

BATCH = 16
LEARNING_RATE = 0.1
MOMENTUM = 0.9
ROUNDS = 2  # of a segment of boosting


def say(line):
    """Prints a line in one piece: all ranks may write to one terminal, and print() writes a line's end by itself."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def shares(ranks):
    """The images of each rank: as many for all of them."""
    (pixels, labels), _ = digits.load()
    last = len(labels) - len(labels) % ranks
    return [(pixels[rank:last:ranks], labels[rank:last:ranks]) for rank in range(ranks)]


def softmax(comm, share, epochs, report=say):
    """Softmax regression by synchronous minibatch SGD: the weights, as bytes."""
    pixels, labels = share
    report(f"[{comm.rank}] process {os.getpid()} begins")
    state = {"weights": np.zeros((65, 10)), "velocity": np.zeros((65, 10))}
    weights, velocity = state["weights"], state["velocity"]
    for epoch in comm.epochs(epochs, state):
        order = np.random.default_rng([7, epoch, comm.rank]).permutation(len(labels))
        total_loss = 0.0
        for begin in range(0, len(order), BATCH):
            own = order[begin : begin + BATCH]
            loss, by_score = digits.softmax_loss(pixels[own] @ weights, labels[own])
            sums = np.append(pixels[own].T @ by_score, loss)
            comm.allreduce(sums, out=sums)
            velocity *= MOMENTUM
            velocity -= LEARNING_RATE / (len(own) * comm.size) * sums[:-1].reshape(65, 10)
            weights += velocity
            total_loss += sums[-1]
        if comm.rank == 0:
            loss = total_loss / (len(labels) * comm.size)
            report(f"[0] epoch {epoch + 1:3} of {epochs}: loss {loss:.4f}")
    return weights.tobytes()


def boosting(comm, share, segments, report=say):
    """LightGBM: the model, as text."""
    import lightgbm

    import warren.lightgbm

    report(f"[{comm.rank}] process {os.getpid()} begins")
    params = {"objective": "multiclass", "num_class": digits.CLASSES, "num_leaves": 8, "learning_rate": 0.2,
              "bagging_fraction": 0.8, "bagging_freq": 1, "num_threads": 1}  # fmt: skip

    def after_segment(rounds, booster):
        if comm.rank == 0:
            report(f"[0] segment {rounds // ROUNDS:3} of {segments}: {booster.num_trees()} trees")

    booster = warren.lightgbm.train(
        comm,
        params,
        lambda: lightgbm.Dataset(*share),
        ROUNDS * segments,
        checkpoint_every=ROUNDS,
        after_segment=after_segment,
    )
    return booster.model_to_string().encode()


MODELS = {"softmax": softmax, "boosting": boosting}


def accuracy(model, trained):
    """Of the images that are held out."""
    _, (pixels, labels) = digits.load()
    if model == "softmax":
        scores = pixels @ np.frombuffer(trained).reshape(65, 10)
    else:
        import lightgbm

        scores = lightgbm.Booster(model_str=trained.decode()).predict(pixels)
    return np.mean(scores.argmax(axis=1) == labels)


def finish(model, results, weights_file):
    """Checks and writes what the ranks have returned."""
    if len(set(results)) != 1:
        raise SystemExit("the ranks have returned different models")
    found = accuracy(model, results[0])
    print(f"test accuracy {found:.4f}", flush=True)
    if weights_file:
        weights_file.write_bytes(results[0])
    if found < 0.92:
        raise SystemExit("the model has not learned: its accuracy is below 0.92")
