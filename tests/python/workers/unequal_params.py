"""Ranks give LightGBM different parameters: the error names the line that trains."""

import lightgbm
import numpy as np

import warren
import warren.lightgbm

x = np.random.default_rng(1).random((200, 3))

with warren.init() as comm:
    params = {"num_leaves": 4 + comm.rank, "num_threads": 1}
    warren.lightgbm.train(comm, params, lambda: lightgbm.Dataset(x, x[:, 0] * x[:, 1]), 10)
