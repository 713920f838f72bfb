"""Trains XGBoost on handwritten digits. Each worker holds a share of the images, and all of them grow the same trees.

    warren run -n 4 -- python examples/python/xgboosting.py [--segments=N] [--tree_method=NAME] [--weights_file=PATH]

A worker that is killed, at any moment, comes back, and the model ends as that of an undisturbed run, byte for byte.
Rank 0 writes it as JSON.
"""

import argparse
import os
import pathlib

import digits
import numpy as np
import xgboost

import warren
import warren.xgboost

ROUNDS = 2  # of a segment


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--segments", type=int, default=20)
    parser.add_argument("--tree_method", default="hist", choices=["hist", "approx"])
    parser.add_argument("--booster", default="gbtree", choices=["gbtree", "dart"])
    parser.add_argument("--grow_policy", default="depthwise", choices=["depthwise", "lossguide"])
    parser.add_argument("--timeout_s", type=int, default=300, help="how long XGBoost waits for a silent rank")
    parser.add_argument("--weights_file")
    options = parser.parse_args()
    print(f"process {os.getpid()} begins", flush=True)
    (pixels, labels), (test_pixels, test_labels) = digits.load()

    params = {
        "objective": "multi:softprob",
        "num_class": digits.CLASSES,
        "max_depth": 3,
        "eta": 0.3,
        "subsample": 0.8,
        "colsample_bytree": 0.8,
        "tree_method": options.tree_method,
        "booster": options.booster,
        "grow_policy": options.grow_policy,
        "nthread": 1,
    }
    if options.booster == "dart":
        params |= {"rate_drop": 0.1, "skip_drop": 0.5}

    with warren.init() as comm:

        def make_data():
            return xgboost.DMatrix(pixels[comm.rank :: comm.size], labels[comm.rank :: comm.size])

        def report(rounds, booster):
            if comm.rank == 0:
                trees = booster.num_boosted_rounds() * digits.CLASSES
                print(f"segment {rounds // ROUNDS:3} of {options.segments}: {trees} trees", flush=True)

        booster = warren.xgboost.train(
            comm,
            params,
            make_data,
            ROUNDS * options.segments,
            checkpoint_every=ROUNDS,
            after_segment=report,
            timeout_s=options.timeout_s,
        )
        # All ranks have the same model, and leave with the same verdict.
        accuracy = np.mean(booster.predict(xgboost.DMatrix(test_pixels)).argmax(axis=1) == test_labels)
        if comm.rank == 0:
            print(f"test accuracy {accuracy:.4f}", flush=True)
            if options.weights_file:
                pathlib.Path(options.weights_file).write_bytes(booster.save_raw("json"))
    if options.segments >= 20 and accuracy < 0.94:
        raise SystemExit("the model has not learned: its accuracy is below 0.94")


main()
