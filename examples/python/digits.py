"""Handwritten digits for the examples: 1797 images of 8 by 8 pixels (examples/data/README.md)."""

import gzip
import os
import pathlib

# The order in which one process adds numbers up is then the same in each of its lives.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

DATA = pathlib.Path(__file__).resolve().parent.parent / "data/digits.csv.gz"
TEST_IMAGES = 360
CLASSES = 10


def load():
    """(pixels and a 1 for the bias, labels) of the images to train on, and of those that are held out."""
    with gzip.open(DATA, "rt") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int64)
    table = table[np.random.default_rng(1).permutation(len(table))]
    pixels = np.hstack([table[:, :64] / 16.0, np.ones((len(table), 1))])
    labels = table[:, 64]
    return (pixels[TEST_IMAGES:], labels[TEST_IMAGES:]), (pixels[:TEST_IMAGES], labels[:TEST_IMAGES])


def softmax_loss(scores, labels):
    """The sum of the losses of these images, and its gradient by the scores, in the scores' element type."""
    scores = scores - scores.max(axis=1, keepdims=True)
    chances = np.exp(scores)
    chances /= chances.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -np.log(chances[rows, labels]).sum()
    chances[rows, labels] -= 1
    return loss, chances
