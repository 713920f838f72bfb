"""Trains LightGBM on handwritten digits. Each worker holds a share of the images, and all of them grow the same trees.

    warren run -n 4 -- python examples/python/boosting.py [--segments=N] [--learner=NAME] [--weights_file=PATH]

A worker that is killed, at any moment, comes back, and the model ends as that of an undisturbed run, byte for byte.
Rank 0 writes it as text.
"""

import argparse
import os
import pathlib

import digits
import lightgbm
import numpy as np

import warren
import warren.lightgbm

ROUNDS = 2  # of a segment


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=20)
    parser.add_argument("--learner", default="data", choices=["data", "voting"])
    parser.add_argument("--boosting", default="gbdt", choices=["gbdt", "dart"])
    parser.add_argument("--sampling", default="bagging", choices=["bagging", "goss"])
    parser.add_argument("--quantized", action="store_true", help="histograms of quantized gradients")
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    (pixels, labels), (test_pixels, test_labels) = digits.load()

    params = {
        "objective": "multiclass",
        "num_class": digits.CLASSES,
        "num_leaves": 8,
        "learning_rate": 0.2,
        "tree_learner": options.learner,
        "boosting": options.boosting,
        "data_sample_strategy": options.sampling,
        "use_quantized_grad": options.quantized,
        "num_threads": 1,
    }
    if options.sampling == "bagging":
        params |= {"bagging_fraction": 0.8, "bagging_freq": 1}

    with warren.init() as comm:

        def make_dataset():
            return lightgbm.Dataset(pixels[comm.rank :: comm.size], labels[comm.rank :: comm.size])

        def report(rounds, booster):
            if comm.rank == 0:
                print(f"segment {rounds // ROUNDS:3} of {options.segments}: {booster.num_trees()} trees", flush=True)

        booster = warren.lightgbm.train(
            comm, params, make_dataset, ROUNDS * options.segments, checkpoint_every=ROUNDS, after_segment=report
        )
        # All ranks have the same model, and leave with the same verdict.
        accuracy = np.mean(booster.predict(test_pixels).argmax(axis=1) == test_labels)
        if comm.rank == 0:
            print(f"test accuracy {accuracy:.4f}", flush=True)
            if options.weights_file:
                pathlib.Path(options.weights_file).write_text(booster.model_to_string(), encoding="utf-8")
    if options.segments >= 20 and accuracy < 0.94:
        raise SystemExit("the model has not learned: its accuracy is below 0.94")


main()
